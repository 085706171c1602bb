//! Renews a credential at the provider's API server, while its auth endpoint does not answer.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{Api, Client, api::PostParams};
use liqo_api::{AuthenticatedReason, conditions::DesiredCondition, links};
use tokio::time::timeout;

use crate::{
    credential::{Credential, Renewal},
    transport::Token,
};

use super::{Worker, view::granted_text};

/// How long the API server may take.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

impl Worker {
    /// A new token for a credential that still works; none if the provider does not issue one this way.
    pub(super) async fn renew_at_api_server(&self, current: &Credential) -> Option<Credential> {
        let renewal = current.renewal()?;
        let token = Token::default();
        token.set(&current.token.0).ok()?;
        let client = self.client(current, &token).ok()?;
        let answer = match timeout(RENEWAL_TIMEOUT, request_token(client, &renewal)).await.ok()? {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(provider = %self.purpose.cluster_id, %error, "cannot renew the credential at the API server");
                return None;
            }
        };
        let next = current.renewed(answer, Timestamp::now())?;
        if let Err(error) = self.store(&next, false).await {
            tracing::warn!(provider = %self.purpose.cluster_id, %error, "cannot store the renewed credential");
        }
        self.show(|view| {
            let text = format!("{}; renewed at its API server, because its auth endpoint does not answer", granted_text(&next));
            view.authenticated = DesiredCondition::yes(links::AUTHENTICATED, AuthenticatedReason::Granted, text);
        });
        tracing::info!(provider = %self.purpose.cluster_id, "renewed the credential at the provider's API server");
        Some(next)
    }
}

async fn request_token(client: Client, renewal: &Renewal) -> kube::Result<TokenRequest> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client, &renewal.namespace);
    accounts.create_token_request(&renewal.account, &PostParams::default(), &renewal.request).await
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn the_credential_asks_for_a_token_of_its_own_account() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            assert_eq!(request.method(), Method::POST);
            assert_eq!(request.uri().path(), "/api/v1/namespaces/liqo/serviceaccounts/liqo-consumer-x/token");
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let mut answer: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(answer["spec"]["boundObjectRef"]["kind"], "Secret");
            answer["status"] = json!({ "token": "new", "expirationTimestamp": "2026-06-01T12:00:00Z" });
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
        });
        let claims = json!({ "kubernetes.io": {
            "namespace": "liqo",
            "serviceaccount": { "name": "liqo-consumer-x", "uid": "1" },
            "secret": { "name": "liqo-consumer-x", "uid": "2" },
        }});
        let payload = data_encoding::BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
        let renewal = Credential::renewal_of(&format!("e30.{payload}.c2ln")).unwrap();
        let answer = request_token(Client::new(service, "default"), &renewal).await.unwrap();
        assert_eq!(answer.status.unwrap().token, "new");
    }
}
