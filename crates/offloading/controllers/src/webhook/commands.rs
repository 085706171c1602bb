//! Paces the commands that consumers start in their pods here, and their connections to them. Each
//! costs a node processor time that no pod is charged for, and Kubernetes does not limit them: they
//! need no seat of the API server.

use std::time::Duration;

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};
use liqo_api::CONSUMER_SERVICE_ACCOUNTS;
use liqo_offloading_rules::pod::tenant_pace::TenantPace;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum time that a command waits for its turn. Less than the webhook's timeout, after which the
/// API server lets the command through.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The commands of all consumers, at this replica.
pub(super) struct ConsumerCommands {
    pace: Mutex<TenantPace>,
    /// See [`user_prefix`].
    prefix: String,
}

/// Returns the prefix of the consumers' names, as the API server knows them. `system` is Liqo's
/// namespace.
pub(super) fn user_prefix(system: &str) -> String {
    format!("system:serviceaccount:{system}:{CONSUMER_SERVICE_ACCOUNTS}")
}

impl ConsumerCommands {
    /// `system` is Liqo's namespace.
    pub fn new(system: &str) -> Self {
        Self {
            pace: Mutex::new(TenantPace::for_commands()),
            prefix: user_prefix(system),
        }
    }

    /// Waits for the turn of a consumer, and refuses what would wait too long. Lets everybody else
    /// through.
    pub async fn respond(&self, request: &AdmissionRequest<DynamicObject>) -> AdmissionResponse {
        let response = AdmissionResponse::from(request);
        let user = request.user_info.username.as_deref().unwrap_or_default();
        if !user.starts_with(&self.prefix) {
            return response;
        }
        let turn = self
            .pace
            .lock()
            .take_turn_within(MAX_WAIT, user, Instant::now().into_std());
        let Some(turn) = turn else {
            let what = "the pods of a consumer get 50 commands and connections at once after a pause, and then 2 a second: try again later";
            let mut refused = response.deny(what);
            refused.result.code = 429;
            "TooManyRequests".clone_into(&mut refused.result.reason);
            return refused;
        };
        tokio::time::sleep_until(turn.into()).await;
        response
    }
}
