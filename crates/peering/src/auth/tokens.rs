//! Tokens for the first contact: Secrets in Liqo's namespace, labelled as reusable or one-time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use liqo_api::{ClusterId, Key, annotations};
use liqo_controller_runtime::{
    Cache, Clock,
    writes::{StepContext as _, StepError, delete_if_present, only_with_uid, unless_changed},
};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::decide::{
    access::{TokenClaim, TokenVerdict},
    tokens::verdict_on_token,
};

/// Maximum number, and interval, of the lookups of a token that the cache does not show.
const NEW_TOKEN_LOOKS: u32 = 5;
const NEW_TOKEN_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of requests that wait for a token to appear.
const MAX_WAITING: usize = 16;

/// The tokens of this cluster, in a cache: whoever guesses tokens costs the API server nothing.
pub struct Tokens {
    secrets: Cache<Secret>,
    waiting: Semaphore,
    clock: Clock,
}

impl Tokens {
    pub fn new(secrets: Cache<Secret>, clock: Clock) -> Self {
        Self {
            secrets,
            waiting: Semaphore::new(MAX_WAITING),
            clock,
        }
    }

    /// Checks a token. With `wait_for_cache`, waits a moment for one that is not known, because the
    /// cache may not show a new token yet.
    pub async fn judge_presented(
        &self,
        presented: Option<&str>,
        consumer: &ClusterId,
        wait_for_cache: bool,
    ) -> TokenVerdict {
        let first = self.verdict_now(presented, consumer);
        // Those who guess share few permits, so that they do not hold connections.
        let Some(_permit) = self.waiting.try_acquire().ok().filter(|_| wait_for_cache) else {
            return first;
        };
        let mut latest = first;
        for _ in 0..NEW_TOKEN_LOOKS {
            if latest != TokenVerdict::Unknown {
                break;
            }
            tokio::time::sleep(NEW_TOKEN_INTERVAL).await;
            latest = self.verdict_now(presented, consumer);
        }
        latest
    }

    fn verdict_now(&self, presented: Option<&str>, consumer: &ClusterId) -> TokenVerdict {
        let all = self.secrets.all().into_iter();
        let secrets: Vec<_> = all.map(|(_, secret)| secret).collect();
        verdict_on_token(&secrets, presented, consumer, self.clock.now())
    }
}

/// Writes into a token that the consumer uses it. Of several consumers at the same time exactly one
/// gets `true`; it gets it again, if what the token is for fails halfway.
pub async fn claim_for_consumer(
    secrets: &Api<Secret>,
    token: &TokenClaim,
) -> Result<bool, StepError> {
    if token.is_claimed {
        return Ok(true);
    }
    let patch = json!({ "metadata": {
        "uid": token.uid,
        "resourceVersion": token.resource_version,
        "annotations": { annotations::USED_BY: token.used_by },
    } });
    let answer = secrets
        .patch(&token.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    Ok(unless_changed(answer)
        .step("change", "Secret", key(secrets, &token.name))?
        .is_some())
}

/// Deletes a token that was used.
pub async fn delete_used_token(secrets: &Api<Secret>, token: &TokenClaim) -> Result<(), StepError> {
    let deleted = delete_if_present(secrets, &token.name, &only_with_uid(token.uid.clone())).await;
    deleted
        .step("delete", "Secret", key(secrets, &token.name))
        .map(drop)
}

fn key(secrets: &Api<Secret>, name: &str) -> Key {
    Key::new(secrets.namespace().unwrap_or_default(), name)
}

#[cfg(test)]
mod tests {
    use crate::decide::tokens::{ONE_TIME, token_secret};

    use super::*;

    fn rome() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    #[tokio::test]
    async fn a_token_is_claimed_only_in_the_state_that_was_judged() {
        use http::{Request, Response};
        use http_body_util::BodyExt;
        use kube::client::Body;

        let service = tower::service_fn(|request: Request<Body>| async move {
            assert_eq!(request.method(), http::Method::PATCH);
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            let patch: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(
                patch["metadata"]["annotations"][annotations::USED_BY],
                rome().as_str()
            );
            let refusal = |code: u16, reason: &str| {
                (
                    code,
                    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code }),
                )
            };
            let (code, answer) = match patch["metadata"]["resourceVersion"].as_str() {
                Some("7") => (
                    200,
                    serde_json::to_value(token_secret("t1", ONE_TIME, "abc", None)).unwrap(),
                ),
                Some("8") => refusal(404, "NotFound"),
                _ => refusal(409, "Conflict"),
            };
            let mut response = Response::new(Body::from(serde_json::to_vec(&answer).unwrap()));
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
            Ok::<_, std::convert::Infallible>(response)
        });
        let secrets: Api<Secret> = Api::namespaced(kube::Client::new(service, "liqo"), "liqo");
        let token = |version: &str, is_claimed| TokenClaim {
            name: "t1".into(),
            uid: "u1".into(),
            resource_version: version.into(),
            is_claimed,
            is_reusable: false,
            used_by: rome().to_string(),
        };
        assert!(
            claim_for_consumer(&secrets, &token("7", false))
                .await
                .unwrap()
        );
        assert!(
            !claim_for_consumer(&secrets, &token("8", false))
                .await
                .unwrap()
        );
        assert!(
            !claim_for_consumer(&secrets, &token("9", false))
                .await
                .unwrap()
        );
        // Claimed by an earlier request: nothing is written.
        assert!(
            claim_for_consumer(&secrets, &token("9", true))
                .await
                .unwrap()
        );
    }
}
