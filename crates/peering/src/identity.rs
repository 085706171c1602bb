//! The key that identifies a cluster.
//!
//! The first start creates an Ed25519 key, which never changes: the cluster ID is derived from it, and every grant from another
//! cluster depends on it. It is stored in an immutable Secret, so that a stray `kubectl apply` cannot replace it.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use liqo_api::ClusterId;
use liqo_tunnel_client::keys;
use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};

/// Name of the Secret with the key, in the namespace that Liqo runs in.
pub const IDENTITY_SECRET: &str = "liqo-identity";

/// The key in the Secret's data: the private key as PKCS#8 DER.
pub const PRIVATE_KEY: &str = "private-key";

/// The raw form of an Ed25519 public key.
pub type PublicKey = [u8; 32];

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The system's random generator failed, or generated an unusable key.
    #[error("cannot create an Ed25519 key: the system's random generator failed")]
    Generate,
    /// The Secret could not be read.
    #[error("cannot read Secret {IDENTITY_SECRET}, which contains this cluster's key: {0}")]
    Read(#[source] kube::Error),
    /// The Secret could not be written.
    #[error("cannot create Secret {IDENTITY_SECRET} for this cluster's key: {0}")]
    Create(#[source] kube::Error),
    /// The Secret exists, but contains no valid key.
    #[error(
        "Secret {IDENTITY_SECRET} has no usable Ed25519 key (PKCS#8 DER) under `{PRIVATE_KEY}`: restore it from a backup, \
         or delete it to start with a new identity (then you have to repeat every peering)"
    )]
    Unusable,
}

/// This cluster's key, and the ID that is derived from it.
pub struct ClusterIdentity {
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
    public_key: PublicKey,
    id: ClusterId,
}

impl ClusterIdentity {
    pub fn generate() -> Result<Self, IdentityError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| IdentityError::Generate)?;
        Self::from_pkcs8(document.as_ref())
    }

    /// Reads a stored key, and checks that its public part matches the private part.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, IdentityError> {
        let pair = Ed25519KeyPair::from_pkcs8(der).map_err(|_| IdentityError::Unusable)?;
        let public_key = PublicKey::try_from(pair.public_key().as_ref()).map_err(|_| IdentityError::Unusable)?;
        Ok(Self { pair, pkcs8: der.to_vec(), public_key, id: ClusterId::of_public_key(&public_key) })
    }

    /// Reads the identity from its Secret, or creates both.
    ///
    /// Two processes may do this at the same time: the API server accepts one Secret, and the other process reads it.
    pub async fn load_or_create(secrets: &Api<Secret>) -> Result<Self, IdentityError> {
        if let Some(secret) = secrets.get_opt(IDENTITY_SECRET).await.map_err(IdentityError::Read)? {
            return Self::from_secret(&secret);
        }
        let made = Self::generate()?;
        match secrets.create(&PostParams::default(), &made.to_secret()).await {
            Ok(_) => {
                tracing::info!(cluster_id = %made.id, "created this cluster's identity");
                Ok(made)
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Self::from_secret(&secrets.get(IDENTITY_SECRET).await.map_err(IdentityError::Read)?)
            }
            Err(error) => Err(IdentityError::Create(error)),
        }
    }

    fn from_secret(secret: &Secret) -> Result<Self, IdentityError> {
        let der = secret.data.as_ref().and_then(|data| data.get(PRIVATE_KEY)).ok_or(IdentityError::Unusable)?;
        Self::from_pkcs8(&der.0)
    }

    fn to_secret(&self) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some(IDENTITY_SECRET.to_owned()),
                // Without the label of managed objects: uninstalling keeps the identity unless the user purges it.
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(PRIVATE_KEY.to_owned(), ByteString(self.pkcs8.clone()))])),
            immutable: Some(true),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        }
    }

    pub fn id(&self) -> &ClusterId {
        &self.id
    }

    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Returns the Ed25519 signature of a message.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }

    /// This cluster's private key for sessions in a peer's tunnel.
    pub fn tunnel_key(&self) -> Option<[u8; 32]> {
        // RFC 8410: the seed is an octet string within an octet string.
        let marked = self.pkcs8.windows(4).position(|window| window == [0x04, 0x22, 0x04, 0x20])?;
        let seed = self.pkcs8.get(marked + 4..)?.first_chunk::<32>()?;
        let key = keys::of_seed(seed);
        (keys::of_cluster(&self.public_key) == Some(keys::public(key))).then_some(key)
    }

    /// The private key as PKCS#8 DER, from which the TLS certificate is made.
    pub(crate) fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }
}

impl fmt::Debug for ClusterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterIdentity").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_its_secret() {
        let made = ClusterIdentity::generate().unwrap();
        let read = ClusterIdentity::from_secret(&made.to_secret()).unwrap();
        assert_eq!(read.id(), made.id());
        assert_eq!(read.sign(b"x"), made.sign(b"x"));
    }

    #[test]
    fn a_peer_knows_the_key_of_our_end_of_its_tunnel() {
        let made = ClusterIdentity::generate().unwrap();
        assert_eq!(made.tunnel_key().map(keys::public), keys::of_cluster(made.public_key()));
    }

    #[test]
    fn two_clusters_never_share_an_identity() {
        assert_ne!(ClusterIdentity::generate().unwrap().id(), ClusterIdentity::generate().unwrap().id());
    }

    #[test]
    fn a_damaged_secret_is_reported_and_never_replaced() {
        let mut secret = ClusterIdentity::generate().unwrap().to_secret();
        secret.data = Some(BTreeMap::from([(PRIVATE_KEY.to_owned(), ByteString(vec![1, 2, 3]))]));
        assert!(matches!(ClusterIdentity::from_secret(&secret), Err(IdentityError::Unusable)));
        secret.data = None;
        assert!(matches!(ClusterIdentity::from_secret(&secret), Err(IdentityError::Unusable)));
    }

    #[test]
    fn the_private_key_does_not_show_in_debug_output() {
        let made = ClusterIdentity::generate().unwrap();
        let text = format!("{made:?}");
        assert!(text.contains(made.id().as_str()));
        assert!(!text.contains("pkcs8"), "{text}");
    }

    mod load_or_create {
        use std::sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        };

        use http::{Method, Request, Response, StatusCode};
        use http_body_util::BodyExt;
        use kube::client::Body;

        use super::*;

        fn answer(code: StatusCode, body: &impl serde::Serialize) -> Response<Body> {
            let mut response = Response::new(Body::from(serde_json::to_vec(body).unwrap()));
            *response.status_mut() = code;
            response
        }

        fn failure(code: StatusCode, reason: &str) -> Response<Body> {
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code.as_u16()});
            answer(code, &status)
        }

        #[tokio::test]
        async fn whoever_comes_second_takes_the_key_of_the_first() {
            let first = Arc::new(ClusterIdentity::generate().unwrap());
            let reads = Arc::new(AtomicUsize::new(0));
            let service = tower::service_fn({
                let first = Arc::clone(&first);
                move |request: Request<Body>| {
                    let first = Arc::clone(&first);
                    let reads = Arc::clone(&reads);
                    async move {
                        // The Secret appears between our first read and our creation.
                        let response = match *request.method() {
                            Method::GET if reads.fetch_add(1, Ordering::SeqCst) == 0 => {
                                failure(StatusCode::NOT_FOUND, "NotFound")
                            }
                            Method::GET => answer(StatusCode::OK, &first.to_secret()),
                            _ => failure(StatusCode::CONFLICT, "AlreadyExists"),
                        };
                        Ok::<_, std::convert::Infallible>(response)
                    }
                }
            });
            let secrets: Api<Secret> = Api::namespaced(kube::Client::new(service, "liqo"), "liqo");
            assert_eq!(ClusterIdentity::load_or_create(&secrets).await.unwrap().id(), first.id());
        }

        #[tokio::test]
        async fn the_first_start_stores_the_key_that_it_returns() {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let service = tower::service_fn(move |request: Request<Body>| {
                let sender = sender.clone();
                async move {
                    if request.method() == Method::GET {
                        return Ok::<_, std::convert::Infallible>(failure(StatusCode::NOT_FOUND, "NotFound"));
                    }
                    let bytes = request.into_body().collect().await.unwrap().to_bytes();
                    let secret: Secret = serde_json::from_slice(&bytes).unwrap();
                    let response = answer(StatusCode::CREATED, &secret);
                    sender.send(secret).unwrap();
                    Ok(response)
                }
            });
            let secrets: Api<Secret> = Api::namespaced(kube::Client::new(service, "liqo"), "liqo");
            let made = ClusterIdentity::load_or_create(&secrets).await.unwrap();
            let stored = receiver.recv().await.unwrap();
            assert_eq!(ClusterIdentity::from_secret(&stored).unwrap().id(), made.id());
            assert_eq!(stored.immutable, Some(true));
        }
    }
}
