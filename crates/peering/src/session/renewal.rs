//! Triggers the renewal of a credential that is not due, and renews credentials at the provider's
//! API server while its auth endpoint does not answer.

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Secret, ServiceAccount},
};
use kube::{Api, Client, api::PostParams, runtime::watcher};
use liqo_api::{AuthenticatedReason, conditions::DesiredCondition, links};
use liqo_controller_runtime::Cache;
use tokio::time::timeout;

use super::SessionWorker;
use crate::{
    decide::{
        credential::{CREDENTIAL_SECRET, Credential, TokenRenewal},
        session_view::{granted_text, granted_view},
    },
    transport::BearerToken,
    triggers,
};

/// Timeout of a renewal at the API server.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

impl SessionWorker {
    /// Watches the Secret with the credential until the session ends. Whoever deletes it asks for a
    /// new credential.
    pub(super) fn watch_deletion(&self) {
        let only = watcher::Config::default().fields(&format!("metadata.name={CREDENTIAL_SECRET}"));
        let deleted = self.deleted.clone();
        Cache::watch(
            self.secrets(),
            only,
            self.stop.clone(),
            |_: Secret| Some(()),
            move |_, _, new| {
                if triggers::needs_new_credential(new) {
                    deleted.notify_one();
                }
            },
        );
    }

    /// A new token for a credential that still works; none if the provider does not issue one this
    /// way.
    pub(super) async fn renew_at_api_server(&self, current: &Credential) -> Option<Credential> {
        let renewal = current.renewal()?;
        let token = BearerToken::default();
        token.set(&current.token.0).ok()?;
        let client = self.provider_client(current, &token).ok()?;
        let answer = match timeout(RENEWAL_TIMEOUT, renewed_token(&client, renewal))
            .await
            .ok()?
        {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(provider = %self.purpose.cluster_id, %error, "cannot renew the credential at the API server");
                return None;
            }
        };
        let next = current.with_renewed_token(answer, self.context.now())?;
        if let Err(error) = self.store_credential(&next, None).await {
            tracing::warn!(provider = %self.purpose.cluster_id, %error, "cannot store the renewed credential");
        }
        self.update_view(|view| {
            let text = format!(
                "{}; renewed at its API server, because its auth endpoint does not answer",
                granted_text(&next)
            );
            view.authenticated =
                DesiredCondition::yes(links::AUTHENTICATED, AuthenticatedReason::Granted, text);
            view.granted = Some(granted_view(&next));
        });
        tracing::info!(provider = %self.purpose.cluster_id, "renewed the credential at the provider's API server");
        Some(next)
    }
}

/// Asks for a token as the credential says. If the provider refuses that, because it shortened the
/// lifetime of credentials meanwhile, asks for the shortest one.
async fn renewed_token(client: &Client, renewal: TokenRenewal) -> kube::Result<TokenRequest> {
    match request_token(client, &renewal).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
            match renewal.with_shortest_lifetime() {
                Some(shortest) => request_token(client, &shortest).await,
                None => Err(kube::Error::Api(status)),
            }
        }
        answer => answer,
    }
}

async fn request_token(client: &Client, renewal: &TokenRenewal) -> kube::Result<TokenRequest> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &renewal.namespace);
    accounts
        .create_token_request(&renewal.account, &PostParams::default(), &renewal.request)
        .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use liqo_api::ClusterId;
    use liqo_controller_runtime::{Peers, Tcp};
    use rustls::{ServerConfig, pki_types::PrivateKeyDer};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use crate::{decide::heartbeats::is_invalid_certificate, transport};

    use super::*;

    /// A CA certificate, and a server at 127.0.0.1 whose certificate it verifies.
    async fn tls_server() -> (Vec<u8>, u16) {
        let ca_key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = ca.self_signed(&ca_key).unwrap().der().to_vec();
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf
            .signed_by(&key, &rcgen::Issuer::new(ca, ca_key))
            .unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = config
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth();
        let config = config
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // It closes each connection after the handshake.
                drop(acceptor.accept(stream).await);
            }
        });
        (root, port)
    }

    #[tokio::test]
    async fn an_api_server_with_a_certificate_of_another_ca_is_told_from_one_that_does_not_answer()
    {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ((root, port), (other, _)) = tokio::join!(tls_server(), tls_server());
        let failure = async |root: &[u8], port: u16| {
            let mut config =
                kube::Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
            config.root_cert = Some(vec![root.to_vec()]);
            let limits = Peers::default().limits_of(&ClusterId::of_public_key(&[1; 32]));
            let client = transport::peer_client(
                &Tcp::network(),
                config,
                BearerToken::default(),
                limits,
                None,
            )
            .unwrap();
            client.apiserver_version().await.unwrap_err()
        };
        assert!(is_invalid_certificate(&failure(&other, port).await));
        assert!(!is_invalid_certificate(&failure(&root, port).await));
        assert!(!is_invalid_certificate(&failure(&root, 1).await));
    }

    /// A token of a consumer's account.
    fn token() -> String {
        let claims = json!({ "kubernetes.io": {
            "namespace": "liqo",
            "serviceaccount": { "name": "liqo-consumer-x", "uid": "1" },
            "secret": { "name": "liqo-consumer-x", "uid": "2" },
        }});
        let payload = data_encoding::BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
        format!("e30.{payload}.c2ln")
    }

    /// An API server that issues tokens for at most `longest` seconds, and refuses to issue others
    /// with this code.
    fn api_server(longest: i64, refusal: u16) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            assert_eq!(request.method(), Method::POST);
            assert_eq!(
                request.uri().path(),
                "/api/v1/namespaces/liqo/serviceaccounts/liqo-consumer-x/token"
            );
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let mut answer: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(answer["spec"]["boundObjectRef"]["kind"], "Secret");
            let is_allowed = answer["spec"]["expirationSeconds"].as_i64().unwrap() <= longest;
            if is_allowed {
                answer["status"] =
                    json!({ "token": "new", "expirationTimestamp": "2026-06-01T12:00:00Z" });
            } else {
                answer = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refusal });
            }
            let code = if is_allowed { 201 } else { refusal };
            let response = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, std::convert::Infallible>(response.unwrap())
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn the_credential_asks_for_a_token_of_its_own_account() {
        let renewal = Credential::renewal_of(&token(), 7200).unwrap();
        let answer = renewed_token(&api_server(86_400, 403), renewal)
            .await
            .unwrap();
        assert_eq!(
            (answer.spec.expiration_seconds, answer.status.unwrap().token),
            (Some(7200), "new".to_owned())
        );
    }

    #[tokio::test]
    async fn a_credential_asks_for_less_if_the_provider_issues_shorter_ones_now() {
        for refusal in [403, 422] {
            let renewal = Credential::renewal_of(&token(), 7200).unwrap();
            let answer = renewed_token(&api_server(3600, refusal), renewal)
                .await
                .unwrap();
            assert_eq!(answer.spec.expiration_seconds, Some(600));
        }
        for (longest, refusal) in [(0, 403), (3600, 401), (3600, 500)] {
            let renewal = Credential::renewal_of(&token(), 7200).unwrap();
            assert!(
                renewed_token(&api_server(longest, refusal), renewal)
                    .await
                    .is_err(),
                "{longest} {refusal}"
            );
        }
    }
}
