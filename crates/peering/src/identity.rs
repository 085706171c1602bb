//! Stores a cluster's key.
//!
//! The first start creates an Ed25519 key, which never changes: the cluster ID is derived from it,
//! and every grant from another cluster depends on it. It is stored in an immutable Secret, so that
//! a stray `kubectl apply` cannot replace it.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use liqo_signing::{ClusterIdentity, IdentityKeyError};
use liqo_tunnel_client::keys;

/// Name of the Secret with the key, in the namespace that Liqo runs in.
pub const IDENTITY_SECRET: &str = "liqo-identity";

/// The key in the Secret's data: the private key as PKCS#8 DER.
pub const PRIVATE_KEY: &str = "private-key";

/// The reason why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    Generate(IdentityKeyError),
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

/// Reads the identity from its Secret, or creates both.
///
/// Two processes may do this at the same time: the API server accepts one Secret, and the other
/// process reads it.
pub async fn load_or_create(secrets: &Api<Secret>) -> Result<ClusterIdentity, IdentityError> {
    if let Some(identity) = load_identity(secrets).await? {
        return Ok(identity);
    }
    let made = ClusterIdentity::generate().map_err(IdentityError::Generate)?;
    match secrets
        .create(&PostParams::default(), &to_secret(&made))
        .await
    {
        Ok(_) => {
            tracing::info!(cluster_id = %made.id(), "created this cluster's identity");
            Ok(made)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => from_secret(
            &secrets
                .get(IDENTITY_SECRET)
                .await
                .map_err(IdentityError::Read)?,
        ),
        Err(error) => Err(IdentityError::Create(error)),
    }
}

/// Reads the identity from its Secret; `None` if there is none.
pub async fn load_identity(
    secrets: &Api<Secret>,
) -> Result<Option<ClusterIdentity>, IdentityError> {
    let secret = secrets
        .get_opt(IDENTITY_SECRET)
        .await
        .map_err(IdentityError::Read)?;
    secret.as_ref().map(from_secret).transpose()
}

fn from_secret(secret: &Secret) -> Result<ClusterIdentity, IdentityError> {
    let der = secret
        .data
        .as_ref()
        .and_then(|data| data.get(PRIVATE_KEY))
        .ok_or(IdentityError::Unusable)?;
    ClusterIdentity::from_pkcs8(&der.0).map_err(|_| IdentityError::Unusable)
}

fn to_secret(identity: &ClusterIdentity) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(IDENTITY_SECRET.to_owned()),
            // Without the label of managed objects: uninstalling keeps the identity unless the user
            // purges it.
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            PRIVATE_KEY.to_owned(),
            ByteString(identity.pkcs8().to_vec()),
        )])),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// A cluster's private key for sessions in a peer's tunnel.
pub fn tunnel_key(identity: &ClusterIdentity) -> Option<[u8; 32]> {
    let key = keys::private_key_of_seed(identity.seed()?);
    (keys::public_key_of_cluster(identity.public_key()) == Some(keys::public_key(key)))
        .then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_its_secret() {
        let made = ClusterIdentity::generate().unwrap();
        let read = from_secret(&to_secret(&made)).unwrap();
        assert_eq!(read.id(), made.id());
        assert_eq!(read.sign(b"x"), made.sign(b"x"));
    }

    #[test]
    fn a_peer_knows_the_key_of_our_end_of_its_tunnel() {
        let made = ClusterIdentity::generate().unwrap();
        assert_eq!(
            tunnel_key(&made).map(keys::public_key),
            keys::public_key_of_cluster(made.public_key())
        );
    }

    #[test]
    fn a_damaged_secret_is_reported_and_never_replaced() {
        let mut secret = to_secret(&ClusterIdentity::generate().unwrap());
        secret.data = Some(BTreeMap::from([(
            PRIVATE_KEY.to_owned(),
            ByteString(vec![1, 2, 3]),
        )]));
        assert!(matches!(from_secret(&secret), Err(IdentityError::Unusable)));
        secret.data = None;
        assert!(matches!(from_secret(&secret), Err(IdentityError::Unusable)));
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
                            Method::GET => answer(StatusCode::OK, &to_secret(&first)),
                            _ => failure(StatusCode::CONFLICT, "AlreadyExists"),
                        };
                        Ok::<_, std::convert::Infallible>(response)
                    }
                }
            });
            let secrets: Api<Secret> = Api::namespaced(kube::Client::new(service, "liqo"), "liqo");
            assert_eq!(load_or_create(&secrets).await.unwrap().id(), first.id());
        }

        #[tokio::test]
        async fn the_first_start_stores_the_key_that_it_returns() {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            let service = tower::service_fn(move |request: Request<Body>| {
                let sender = sender.clone();
                async move {
                    if request.method() == Method::GET {
                        return Ok::<_, std::convert::Infallible>(failure(
                            StatusCode::NOT_FOUND,
                            "NotFound",
                        ));
                    }
                    let bytes = request.into_body().collect().await.unwrap().to_bytes();
                    let secret: Secret = serde_json::from_slice(&bytes).unwrap();
                    let response = answer(StatusCode::CREATED, &secret);
                    sender.send(secret).unwrap();
                    Ok(response)
                }
            });
            let secrets: Api<Secret> = Api::namespaced(kube::Client::new(service, "liqo"), "liqo");
            let made = load_or_create(&secrets).await.unwrap();
            let stored = receiver.recv().await.unwrap();
            assert_eq!(from_secret(&stored).unwrap().id(), made.id());
            assert_eq!(stored.immutable, Some(true));
        }
    }
}
