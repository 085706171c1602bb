//! TLS in which the cluster key is the identity.
//!
//! ```text
//!  cluster key ──signs──▶ certificate (self-signed, subject key = cluster key, renewed in memory)
//!       └───────signs──▶ TLS 1.3 handshake
//!  client: key in the certificate ──▶ cluster ID = the expected one?   and   handshake signed by that key?
//! ```
//!
//! **The client ignores the certificate's dates and names.** The holder of the cluster key can
//! create a certificate for any time, so the dates prove nothing, and the clocks of two clusters
//! may differ. The expected cluster ID says more than any name. The end of the peering ends the
//! trust in a key, not a date. The server keeps the dates current only for other clients.

use liqo_signing::{ClusterIdentity, PublicKey};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use liqo_api::ClusterId;
use liqo_controller_runtime::Clock;
use parking_lot::Mutex;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring::sign::any_eddsa_type, verify_tls13_signature_with_raw_key},
    pki_types::{
        CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
    },
    server::{ClientHello, ResolvesServerCert},
    sign::{CertifiedKey, SigningKey},
    version::TLS13,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Lifetime of a certificate, which is renewed after half of it.
pub const VALIDITY: Duration = Duration::from_hours(720);

/// Certificates are valid from this long before their creation, for clients whose clock is behind.
const BACKDATED: Duration = Duration::from_hours(1);

/// The bytes before the 32 bytes of the key in the DER of an Ed25519 `SubjectPublicKeyInfo` (RFC
/// 8410).
const ED25519_SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// Failure to create a TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    #[error("cannot create a certificate with this cluster's key: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refused the key or the configuration.
    #[error("cannot set up TLS with this cluster's key: {0}")]
    Configuration(#[from] rustls::Error),
}

/// The TLS side of the auth endpoint: TLS 1.3 only, no session resumption, certificate bound to the
/// cluster key.
pub fn server_config(
    identity: &ClusterIdentity,
    clock: Clock,
) -> Result<ServerConfig, TlsConfigError> {
    let mut config = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(RenewedCertificate::new(identity, clock)?));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Each connection must prove the key.
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The TLS side of a client that accepts only one cluster.
pub fn client_config(expected: &ClusterId) -> Result<ClientConfig, TlsConfigError> {
    let mut config = ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(KeyVerifier {
            expected: expected.clone(),
        }))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    // The server has only one certificate, and the network need not see which cluster is called.
    config.enable_sni = false;
    Ok(config)
}

fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Provides the current certificate, and renews it after half of its lifetime.
struct RenewedCertificate {
    id: ClusterId,
    pkcs8: PrivatePkcs8KeyDer<'static>,
    signer: Arc<dyn SigningKey>,
    clock: Clock,
    current: Mutex<(Arc<CertifiedKey>, SystemTime)>,
}

impl RenewedCertificate {
    fn new(identity: &ClusterIdentity, clock: Clock) -> Result<Self, TlsConfigError> {
        let pkcs8 = PrivatePkcs8KeyDer::from(identity.pkcs8().to_vec());
        let signer = any_eddsa_type(&pkcs8)?;
        let now = clock.now().into();
        let certificate = make_certificate(&pkcs8, identity.id(), now)?;
        let current = Arc::new(CertifiedKey::new(vec![certificate], Arc::clone(&signer)));
        Ok(Self {
            id: identity.id().clone(),
            pkcs8,
            signer,
            clock,
            current: Mutex::new((current, now)),
        })
    }

    fn certificate_at(&self, now: SystemTime) -> Arc<CertifiedKey> {
        let mut current = self.current.lock();
        // A certificate from the future is old, too: the clock was set back.
        let old = now
            .duration_since(current.1)
            .map_or(true, |age| age > VALIDITY / 2);
        if old {
            match make_certificate(&self.pkcs8, &self.id, now) {
                Ok(certificate) => {
                    *current = (
                        Arc::new(CertifiedKey::new(
                            vec![certificate],
                            Arc::clone(&self.signer),
                        )),
                        now,
                    );
                    tracing::debug!("renewed the certificate of the auth endpoint");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the certificate of the auth endpoint, keeping the old one");
                }
            }
        }
        Arc::clone(&current.0)
    }
}

impl ResolvesServerCert for RenewedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certificate_at(self.clock.now().into()))
    }
}

impl fmt::Debug for RenewedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewedCertificate")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn make_certificate(
    pkcs8: &PrivatePkcs8KeyDer<'_>,
    id: &ClusterId,
    now: SystemTime,
) -> Result<CertificateDer<'static>, rcgen::Error> {
    let key = KeyPair::try_from(pkcs8)?;
    let mut parameters = CertificateParams::new(vec![id.to_string()])?;
    parameters.distinguished_name = DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::CommonName, id.as_str());
    parameters.not_before = (now - BACKDATED).into();
    parameters.not_after = (now + VALIDITY).into();
    Ok(parameters.self_signed(&key)?.into())
}

/// Accepts one cluster: the certificate's key must match its ID, and must have signed the
/// handshake.
#[derive(Debug)]
struct KeyVerifier {
    expected: ClusterId,
}

impl KeyVerifier {
    fn expected_key(&self, certificate: &CertificateDer<'_>) -> Result<PublicKey, rustls::Error> {
        let key = subject_key(certificate).ok_or(CertificateError::BadEncoding)?;
        if ClusterId::of_public_key(&key) == self.expected {
            Ok(key)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.expected_key(end_entity)
            .map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General(
            "TLS 1.2 is not supported".to_owned(),
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Checks the signature with exactly the key that the ID was computed from, without a second
        // parser.
        let spki = [
            ED25519_SPKI_PREFIX.as_slice(),
            &self.expected_key(certificate)?,
        ]
        .concat();
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(spki),
            signature,
            &algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// The Ed25519 key in a certificate; none if it has another kind of key, or is not a certificate.
fn subject_key(certificate: &CertificateDer<'_>) -> Option<PublicKey> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    let key = parsed.public_key().raw.strip_prefix(&ED25519_SPKI_PREFIX)?;
    if rest.is_empty() {
        key.try_into().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use liqo_byte_mutations::mutated;
    use proptest::prelude::{Just, prop_assert, proptest};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// Serves one connection: answers `hello` after the handshake.
    async fn serve(config: ServerConfig) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await {
                let _ = stream.write_all(b"hello").await;
                let _ = stream.shutdown().await;
            }
        });
        address
    }

    async fn greet(config: ClientConfig, address: SocketAddr) -> std::io::Result<String> {
        let stream = TcpStream::connect(address).await?;
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(ServerName::from(address.ip()), stream)
            .await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    fn signer(identity: &ClusterIdentity) -> Arc<dyn SigningKey> {
        any_eddsa_type(&PrivatePkcs8KeyDer::from(identity.pkcs8().to_vec())).unwrap()
    }

    fn certificate(identity: &ClusterIdentity, now: SystemTime) -> CertificateDer<'static> {
        make_certificate(
            &PrivatePkcs8KeyDer::from(identity.pkcs8().to_vec()),
            identity.id(),
            now,
        )
        .unwrap()
    }

    #[derive(Debug)]
    struct Fixed(Arc<CertifiedKey>);

    impl ResolvesServerCert for Fixed {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }
    }

    fn fixed(certificate: CertificateDer<'static>, signer: Arc<dyn SigningKey>) -> ServerConfig {
        ServerConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Fixed(Arc::new(CertifiedKey::new(
                vec![certificate],
                signer,
            )))))
    }

    #[tokio::test]
    async fn the_expected_cluster_is_believed() {
        let milan = ClusterIdentity::generate().unwrap();
        let address = serve(server_config(&milan, Clock::system()).unwrap()).await;
        assert_eq!(
            greet(client_config(milan.id()).unwrap(), address)
                .await
                .unwrap(),
            "hello"
        );
    }

    #[tokio::test]
    async fn another_clusters_key_is_refused() {
        let milan = ClusterIdentity::generate().unwrap();
        let other = ClusterIdentity::generate().unwrap();
        let address = serve(server_config(&other, Clock::system()).unwrap()).await;
        let error = greet(client_config(milan.id()).unwrap(), address)
            .await
            .unwrap_err();
        assert!(
            format!("{error:?}").contains("ApplicationVerificationFailure"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn the_right_certificate_with_a_wrong_key_is_refused() {
        let milan = ClusterIdentity::generate().unwrap();
        let thief = ClusterIdentity::generate().unwrap();
        let stolen = certificate(&milan, SystemTime::now());
        let address = serve(fixed(stolen.clone(), signer(&thief))).await;
        let error = greet(client_config(milan.id()).unwrap(), address)
            .await
            .unwrap_err();
        assert!(format!("{error:?}").contains("BadSignature"), "{error:?}");
        // The client accepts the same server with the right key, so only the key made the
        // difference.
        let address = serve(fixed(stolen, signer(&milan))).await;
        assert_eq!(
            greet(client_config(milan.id()).unwrap(), address)
                .await
                .unwrap(),
            "hello"
        );
    }

    #[tokio::test]
    async fn a_certificate_that_names_the_cluster_but_has_another_key_is_refused() {
        let milan = ClusterIdentity::generate().unwrap();
        let thief = ClusterIdentity::generate().unwrap();
        let forged = make_certificate(
            &PrivatePkcs8KeyDer::from(thief.pkcs8().to_vec()),
            milan.id(),
            SystemTime::now(),
        )
        .unwrap();
        let address = serve(fixed(forged, signer(&thief))).await;
        let error = greet(client_config(milan.id()).unwrap(), address)
            .await
            .unwrap_err();
        assert!(
            format!("{error:?}").contains("ApplicationVerificationFailure"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn the_server_refuses_tls_1_2() {
        let milan = ClusterIdentity::generate().unwrap();
        let address = serve(server_config(&milan, Clock::system()).unwrap()).await;
        let old = ClientConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(KeyVerifier {
                expected: milan.id().clone(),
            }))
            .with_no_client_auth();
        let error = greet(old, address).await.unwrap_err();
        assert!(
            format!("{error:?}").contains("ProtocolVersion"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn the_client_refuses_tls_1_2() {
        let milan = ClusterIdentity::generate().unwrap();
        let mut old = ServerConfig::builder_with_provider(crypto_provider())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(
                RenewedCertificate::new(&milan, Clock::system()).unwrap(),
            ));
        old.alpn_protocols = vec![b"http/1.1".to_vec()];
        let address = serve(old).await;
        let error = greet(client_config(milan.id()).unwrap(), address)
            .await
            .unwrap_err();
        assert!(
            format!("{error:?}").contains("ProtocolVersion"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn clocks_that_differ_by_years_do_not_matter() {
        let milan = ClusterIdentity::generate().unwrap();
        for year in [0_u32, 30] {
            let then = SystemTime::UNIX_EPOCH + Duration::from_hours(8760) * (1 + year);
            let address = serve(fixed(certificate(&milan, then), signer(&milan))).await;
            let text = greet(client_config(milan.id()).unwrap(), address)
                .await
                .unwrap();
            assert_eq!(text, "hello");
        }
    }

    #[test]
    fn the_certificate_is_renewed_at_half_of_its_time() {
        let milan = ClusterIdentity::generate().unwrap();
        let certificates = RenewedCertificate::new(&milan, Clock::system()).unwrap();
        let now = SystemTime::now();
        let first = certificates.certificate_at(now).cert[0].clone();
        assert_eq!(
            certificates.certificate_at(now + VALIDITY / 3).cert[0],
            first
        );
        let second = certificates
            .certificate_at(now + VALIDITY / 2 + Duration::from_mins(1))
            .cert[0]
            .clone();
        assert_ne!(second, first);
        assert_eq!(subject_key(&second), Some(*milan.public_key()));
    }

    #[test]
    fn certificates_with_other_kinds_of_keys_have_no_cluster_key() {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let certificate = CertificateParams::new(vec!["x".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        assert_eq!(subject_key(certificate.der()), None);
        assert_eq!(subject_key(&CertificateDer::from(vec![0x30, 0x00])), None);
    }

    fn valid_certificate() -> Vec<u8> {
        certificate(&ClusterIdentity::generate().unwrap(), SystemTime::now()).to_vec()
    }

    proptest! {
        #[test]
        fn a_mutated_certificate_has_a_key_of_32_bytes_that_it_contains_or_none(der in mutated(Just(valid_certificate()))) {
            if let Some(key) = subject_key(&CertificateDer::from(der.clone())) {
                prop_assert!(der.windows(key.len()).any(|part| part == key));
            }
        }
    }
}
