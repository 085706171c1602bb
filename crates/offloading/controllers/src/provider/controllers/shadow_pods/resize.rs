//! Resizes remote pods as their shadow pods ask, within what the offer has left.

use std::time::Duration;

use kube::{
    Api,
    api::{Patch, PatchParams},
    core::Status,
};
use liqo_api::Charge;
use liqo_controller_runtime::events::object_ref;
use liqo_controller_runtime::writes::{StepContext as _, unless_gone};
use liqo_offloading_rules::pod::admission::AdmissionRefusal;
use liqo_offloading_rules::pod::carry::resize::{PendingResize, Resize, ResizeCharge};
use liqo_offloading_rules::pod::consumer_policy::{self, ConsumerPolicy};
use liqo_offloading_rules::pod::ledger::ResizeRequest;
use liqo_offloading_rules::pod::remote::REFUSED_RETRY;
use liqo_offloading_rules::pod::remote_pod::{RemotePod, WatchedPod};
use serde_json::Value;
use tokio::time::Instant;

use super::ShadowPodReconciliation;
use crate::provider::state::ProviderError;
use crate::provider::triggers;

const NO_SUBRESOURCE: &str = "the provider's API server does not resize pods in place; Kubernetes does from 1.33 on. Set the old size \
     again, or delete the pod for a new one";

/// A resize that was refused.
pub(super) struct RefusedResize {
    pub(super) pending: PendingResize,
    /// Whether it waits for room. Otherwise it is tried again after a while.
    waits_for_room: bool,
    at: Instant,
}

/// A resize that the shadow pod asks for.
pub(super) struct WantedResize {
    /// For the subresource `resize`.
    patch: Value,
    /// The new charge of the pod, or the reason why it may not have these amounts.
    charge: Result<(ResizeCharge, Charge), PendingResize>,
}

/// The reason why a resize is not done now.
struct ResizeRefusal {
    pending: PendingResize,
    waits_for_room: bool,
}

impl ResizeRefusal {
    /// Room alone does not help.
    fn lasting(pending: PendingResize) -> Self {
        Self {
            pending,
            waits_for_room: false,
        }
    }
}

impl WantedResize {
    /// `None` if the pod has the amounts of its record, or has ended.
    pub(super) fn from_record(
        pod: &RemotePod,
        carried: &Value,
        live: &Value,
        policy: Option<&ConsumerPolicy>,
    ) -> Option<Self> {
        let rules = policy.cloned().unwrap_or_default().provider_rules(None);
        let resize = Resize::needed_for(carried, live, &rules).filter(|_| pod.end.is_none())?;
        let charge = policy
            .ok_or_else(|| PendingResize::infeasible(consumer_policy::not_shared_refusal().message))
            .and_then(|policy| Ok((resize.charge(policy)?, policy.usage.charge)));
        Some(Self {
            patch: resize.patch,
            charge,
        })
    }
}

/// Returns the amounts that the pod asks for by this answer of the API server; `None` for another
/// pod of its name.
pub(super) fn asked_resize(pod: &RemotePod, answer: WatchedPod) -> Option<ResizeRequest> {
    let live = RemotePod::from_pod(answer).filter(|live| live.uid == pod.uid)?;
    Some(ResizeRequest::for_asked_amounts(&live))
}

/// Whether the API server's answer names this object. An answer about a subresource that it does
/// not have names none.
fn is_about(status: &Status, name: &str) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.name == name)
}

impl ShadowPodReconciliation<'_> {
    /// Gives the pod the amounts of its shadow pod. `asked` is what it asks for now. Returns
    /// whether it has these amounts now, as far as this cluster's API server decides that.
    pub(super) async fn resize_pod(
        &mut self,
        pod: &RemotePod,
        asked: Option<ResizeRequest>,
        wanted: Option<WantedResize>,
    ) -> Result<bool, ProviderError> {
        self.record_asked_amounts(asked.clone());
        let Some(WantedResize { mut patch, charge }) = wanted else {
            self.memory.unresized = None;
            return Ok(true);
        };
        if let Err(refusal) = self.admit_resize(pod, charge) {
            self.refuse_resize(pod, refusal).await;
            return Ok(false);
        }
        patch["metadata"]["uid"] = pod.uid.as_str().into();
        let api: Api<WatchedPod> = self.pod_api(&pod.key.namespace);
        let params = PatchParams::default();
        let refusal = match api
            .patch_subresource("resize", &pod.key.name, &params, &Patch::Strategic(&patch))
            .await
        {
            Err(kube::Error::Api(status))
                if status.code == 404 && !is_about(&status, &pod.key.name) =>
            {
                NO_SUBRESOURCE.to_owned()
            }
            Err(kube::Error::Api(status)) if AdmissionRefusal::matches_status(&status) => {
                AdmissionRefusal::from_status(&status).message
            }
            // After an error it stays charged, because the API server may have accepted it. The
            // queue tries again.
            answer => {
                // If the pod is gone, its shadow pod gets a new one of the new size.
                let resized = unless_gone(answer).step("resize", "Pod", &pod.key)?;
                if resized.is_some() {
                    tracing::debug!(pod = %pod.key, "resized a remote pod");
                }
                // Admission plugins of this cluster may have changed what it requests.
                self.record_asked_amounts(resized.and_then(|resized| asked_resize(pod, resized)));
                self.memory.unresized = None;
                return Ok(true);
            }
        };
        self.record_asked_amounts(asked);
        self.refuse_resize(
            pod,
            ResizeRefusal::lasting(PendingResize::infeasible(refusal)),
        )
        .await;
        Ok(false)
    }

    /// Charges what the resize adds. Otherwise tells why not, and whether it waits for room.
    fn admit_resize(
        &self,
        pod: &RemotePod,
        charge: Result<(ResizeCharge, Charge), PendingResize>,
    ) -> Result<(), ResizeRefusal> {
        let (amounts, charge) = charge.map_err(ResizeRefusal::lasting)?;
        let offer = self.provider.offers.get(&pod.account().offer_key());
        let mut ledger = self.provider.ledger.lock();
        let verdict = ledger.admit_resize(
            ResizeRequest::new(pod, amounts),
            offer.as_deref(),
            charge,
            |namespace| self.provider.is_mapped_for(namespace, &self.key.namespace),
        );
        verdict.map_err(|pending| ResizeRefusal {
            pending,
            waits_for_room: true,
        })
    }

    /// Remembers why the pod is not resized, and reports each reason once.
    async fn refuse_resize(&mut self, pod: &RemotePod, refusal: ResizeRefusal) {
        let ResizeRefusal {
            pending,
            waits_for_room,
        } = refusal;
        let before = self.memory.unresized.take();
        let is_known = before.is_some_and(|before| before.pending.reason == pending.reason);
        self.memory.unresized = Some(RefusedResize {
            pending: pending.clone(),
            waits_for_room,
            at: Instant::now(),
        });
        if !is_known {
            tracing::info!(pod = %pod.key, reason = pending.reason, message = pending.message, "a remote pod is not resized");
            let reference = object_ref("v1", "Pod", &pod.key, Some(pod.uid.clone()));
            self.provider
                .context
                .events
                .record_warning(&reference, &pending.event_reason(), pending.message)
                .await;
        }
    }

    /// Charges what the API server says that the pod asks for, if the watch does not show it yet.
    fn record_asked_amounts(&self, asked: Option<ResizeRequest>) {
        let Some(asked) = asked else { return };
        let freed = self.provider.ledger.lock().record_asked_amounts(asked);
        self.provider.queues.add(triggers::shadow_pods_due(freed));
    }

    /// Time until a refused resize is tried again; `None` if there is none, or no room for it.
    pub(super) fn resize_retry(&self, pool: &str) -> Option<Duration> {
        let unresized = self.memory.unresized.as_ref()?;
        if !unresized.waits_for_room {
            return Some(REFUSED_RETRY.saturating_sub(unresized.at.elapsed()));
        }
        let tenant = &self.key.namespace;
        let offer = self
            .provider
            .offers
            .get(&liqo_api::Key::new(tenant.clone(), pool));
        let (charge, ours) = (self.provider.charge_basis(tenant), |namespace: &str| {
            self.provider.is_mapped_for(namespace, tenant)
        });
        let has_room =
            self.provider
                .ledger
                .lock()
                .may_resize(self.key, offer.as_deref(), charge, ours);
        has_room.then_some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests;
