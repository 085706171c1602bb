//! The HTTPS endpoint of a simulated API server, which other clusters call with a token; and its
//! calls to webhooks.

use std::{net::SocketAddr, sync::Arc};

use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use kube::client::Body;
use liqo_controller_runtime::{
    Network as _,
    network::{BoxNetworkStream, Listener},
};
use liqo_peering::exchange::exchange_http;
use liqo_simulation::{ApiServer, WebhookCall};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime, pem::PemObject as _},
    time_provider::TimeProvider,
};
use serde_json::Value;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::internet::Host;

/// Bytes of the answer of a webhook.
const MAX_REVIEW_LEN: usize = 3 * 1024 * 1024;

/// The certificate of an API server.
pub struct Certificate {
    /// The CA that signed it, as PEM.
    pub ca: String,
    tls: Arc<ServerConfig>,
}

impl Certificate {
    pub fn new(address: &str) -> Self {
        let (ca_key, key) = (
            KeyPair::generate_for(&PKCS_ED25519).unwrap(),
            KeyPair::generate_for(&PKCS_ED25519).unwrap(),
        );
        let mut parameters = CertificateParams::new([]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = parameters.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(parameters, ca_key);
        let certificate = CertificateParams::new([address.to_owned()])
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let private = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let tls = config
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        Self {
            ca: ca.pem(),
            tls: Arc::new(tls),
        }
    }

    pub fn tls(&self) -> Arc<ServerConfig> {
        self.tls.clone()
    }
}

/// Answers until the process that listens has ended.
pub async fn serve(server: ApiServer, listener: Box<dyn Listener>, tls: Arc<ServerConfig>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(
            server.clone(),
            stream,
            TlsAcceptor::from(tls.clone()),
        ));
    }
}

async fn connection(server: ApiServer, stream: BoxNetworkStream, acceptor: TlsAcceptor) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, hyper::Error>(
                server
                    .answer_to_token(hyper::Request::from_parts(parts, Body::from(body)))
                    .await,
            )
        }
    });
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The time by which a cluster judges certificates.
#[derive(Debug)]
struct At(Timestamp);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(
            self.0
                .duration_since(Timestamp::UNIX_EPOCH)
                .try_into()
                .ok()?,
        ))
    }
}

/// Calls a webhook at the address of its Service.
pub async fn call_webhook(
    from: Host,
    service: SocketAddr,
    now: Timestamp,
    call: WebhookCall,
) -> Result<Value, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(call.ca.as_bytes()) {
        roots
            .add(certificate.map_err(|error| error.to_string())?)
            .map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_details(provider, Arc::new(At(now)))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let name = format!("{}.{}.svc", call.service, call.namespace);
    let connected = from
        .connect(&service.ip().to_string(), service.port(), |_| true)
        .await;
    let (stream, _) = connected.map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(config)
        .connect(name.clone().try_into().unwrap(), stream)
        .await;
    let stream = stream.map_err(|error| error.to_string())?;
    let request = http::Request::post(&call.path)
        .header("host", name)
        .header("content-type", "application/json");
    let request = request
        .body(call.review.to_string().into_bytes())
        .map_err(|error| error.to_string())?;
    let (status, body) = exchange_http(stream, request, MAX_REVIEW_LEN)
        .await
        .map_err(|error| error.to_string())?;
    if !status.is_success() {
        return Err(format!(
            "status {status}: {}",
            String::from_utf8_lossy(&body)
        ));
    }
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}
