//! Effect of the working mode on sharing, on both sides: a tethered cluster offers everything to
//! its peer and nothing to others, and the peer lets the pods of a cluster that is tethered to it
//! come back to that cluster's own nodes.
//!
//! ```text
//!   rome, tethered to milan                     milan
//!   all of its nodes  ─── offer, 100 % ───────▶ node rome
//!   node milan        ◀── offer ─────────────── what the policy lends to rome, and node rome: one pool, so that milan's scheduler decides
//! ```
//!
//! Both are policies that replace the one that a person wrote, as long as the mode lasts.

use std::{collections::BTreeSet, sync::Arc};

use liqo_api::conditions::DesiredCondition;
use liqo_api::{
    ClusterId, Granularity, PeeringPolicy, Provide, ResourceList, Source, TETHERING,
    TetheringAnswer, TetheringState,
};

use super::{
    reduce::ConsumerRequest,
    snapshot::{OwnWorkingMode, ProviderSnapshot, Replacements},
};

/// Whether an offer to this cluster may contain nodes of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnNodesReturn {
    /// No: this cluster does not ask its provider to control it.
    #[default]
    No,
    /// Yes: it asks for that, or it is tethered.
    Allowed,
    /// It does not ask any more, and the provider has not taken note of that yet.
    BeingTakenBack,
}

impl OwnNodesReturn {
    /// `tethers` says whether this cluster asks, and `request` is its request as the provider
    /// answered it. A provider writes its offers before its answer.
    pub fn of_request(tethers: bool, request: Option<&ConsumerRequest>) -> Self {
        match (tethers, request) {
            (true, _) => Self::Allowed,
            (false, Some(request)) if !is_withdrawal_noted(request) => Self::BeingTakenBack,
            (false, _) => Self::No,
        }
    }
}

/// Whether the provider answered that this request does not ask to be tethered.
fn is_withdrawal_noted(request: &ConsumerRequest) -> bool {
    let answer = request
        .conditions
        .iter()
        .find(|condition| condition.type_ == TETHERING);
    answer.is_none_or(|answer| {
        !request.tethering
            && answer.reason == TetheringAnswer::NotAsked.as_str()
            && answer.observed_generation == request.generation
    })
}

/// The answer of this cluster to a consumer that asks to be tethered to it. `policy` is the one of
/// a person that applies to the consumer.
pub fn tethering_answer(
    mode: &OwnWorkingMode,
    policy: Option<&PeeringPolicy>,
) -> (TetheringAnswer, String) {
    let provide = policy.map(|policy| &policy.spec.provide);
    if mode.state != TetheringState::Autonomous {
        let message = "it is tethered itself, or on the way to or from that; a cluster that others control controls nobody";
        return (TetheringAnswer::Tethered, message.to_owned());
    }
    match provide {
        Some(provide) if provide.tethering && provide.source.plugin.is_some() => {
            let message = "its PeeringPolicy leaves the amounts to a resource plugin, which does not know the nodes of this cluster";
            (TetheringAnswer::NotAllowed, message.to_owned())
        }
        Some(provide) if provide.tethering => (
            TetheringAnswer::Granted,
            "it controls this cluster".to_owned(),
        ),
        _ => {
            let message = "its PeeringPolicy lets no cluster be tethered to it (provide.tethering)";
            (TetheringAnswer::NotAllowed, message.to_owned())
        }
    }
}

/// The consumers that are tethered to this cluster, or may be.
pub fn granted_consumers(snapshot: &ProviderSnapshot) -> BTreeSet<ClusterId> {
    let requests = snapshot.requests();
    let asking = snapshot.tenants().filter(|(namespace, _)| {
        requests
            .get(namespace)
            .is_some_and(|request| request.tethering)
    });
    let consumers = asking.map(|(_, tenant)| &tenant.consumer);
    consumers
        .filter(|consumer| {
            let policy = snapshot.policy_of_person(consumer).map(AsRef::as_ref);
            tethering_answer(&snapshot.mode, policy).0 == TetheringAnswer::Granted
        })
        .cloned()
        .collect()
}

/// The condition of a request: the answer, or that nothing is asked any more. `None` if nothing
/// ever was.
pub fn answer_condition(
    snapshot: &ProviderSnapshot,
    consumer: &ClusterId,
    asks: bool,
    has_answer: bool,
) -> Option<DesiredCondition> {
    if !asks {
        let message = "the consumer does not ask to be tethered";
        return has_answer
            .then(|| DesiredCondition::no(TETHERING, TetheringAnswer::NotAsked, message));
    }
    let (answer, message) = tethering_answer(
        &snapshot.mode,
        snapshot.policy_of_person(consumer).map(AsRef::as_ref),
    );
    Some(match answer {
        TetheringAnswer::Granted => DesiredCondition::yes(TETHERING, answer, message),
        _ => DesiredCondition::no(TETHERING, answer, message),
    })
}

/// The replacements that the mode of this cluster means, and those for clusters that are tethered
/// to it.
pub fn policy_replacements(snapshot: &ProviderSnapshot) -> Replacements {
    let mut all = Replacements::new();
    if let Some(peer) = &snapshot.mode.peer {
        for (_, tenant) in snapshot
            .tenants()
            .filter(|(_, tenant)| tenant.consumer != *peer)
        {
            all.insert(tenant.consumer.clone(), None);
        }
        let percentage = match snapshot.mode.state {
            TetheringState::Tethered => Some(100),
            TetheringState::Releasing => Some(0),
            TetheringState::Autonomous | TetheringState::Tethering => None,
        };
        if let (Some(percentage), Some(policy)) = (percentage, snapshot.policy_of_person(peer)) {
            all.insert(
                peer.clone(),
                Some(replacement_policy(
                    policy,
                    "tethered",
                    lend_everything(&policy.spec.provide, percentage),
                )),
            );
        }
        return all;
    }
    for consumer in granted_consumers(snapshot) {
        if let Some(policy) = snapshot.policy_of_person(&consumer) {
            let provide = Provide {
                granularity: Granularity::default(),
                ..policy.spec.provide.clone()
            };
            let replacement = replacement_policy(policy, consumer.as_str(), provide);
            all.insert(consumer, Some(replacement));
        }
    }
    all
}

/// A part of all own nodes, without what a person limits for ordinary peers. How the peer's pods
/// are kept, and what they cost, stays. How long the peer may be silent is decided by the mode, and
/// how long its pods may stay then by the notice.
fn lend_everything(provide: &Provide, percentage: u8) -> Provide {
    Provide {
        percentage,
        source: Source::default(),
        caps: ResourceList::default(),
        overcommit_percentage: 100,
        granularity: Granularity::default(),
        contract: None,
        absence_seconds: None,
        ..provide.clone()
    }
}

/// The name is none that a policy of a person can have.
fn replacement_policy(
    policy: &Arc<PeeringPolicy>,
    what: &str,
    provide: Provide,
) -> Arc<PeeringPolicy> {
    let mut replacement = PeeringPolicy::clone(policy);
    replacement.metadata.name = Some(format!(
        "{}/{what}",
        policy.metadata.name.as_deref().unwrap_or_default()
    ));
    replacement.spec.provide = provide;
    Arc::new(replacement)
}
