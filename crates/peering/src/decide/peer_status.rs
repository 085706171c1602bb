//! The status and the conditions that the `ForeignCluster` of a peer shall have.

use liqo_api::conditions::DesiredCondition;
use liqo_api::conditions::StatusCondition as _;
use liqo_api::{
    AuthenticatedReason, ClusterId, ConsumerAuthorizedReason, ConsumerReachableReason,
    ForeignCluster, ForeignClusterStatus, PeeringIntent, links, tenant_namespace,
};

use super::{
    heartbeats::ConsumerHealth,
    peer::{ApprovalWait, IncomingAction, OutgoingAction, PeerPlan, PeerSnapshot},
    session_view::SessionView,
};

/// The conditions of peering.
pub fn wanted_conditions(
    view: Option<&SessionView>,
    plan: PeerPlan,
    snapshot: PeerSnapshot,
    health: ConsumerHealth,
    id: &ClusterId,
) -> Vec<DesiredCondition> {
    let mut wanted = Vec::new();
    match (plan.outgoing, view) {
        (OutgoingAction::Run, Some(view)) => wanted.extend([
            view.identity.clone(),
            view.authenticated.clone(),
            view.reachable.clone(),
        ]),
        (OutgoingAction::TearDown | OutgoingAction::AwaitGone, _) => {
            wanted.push(DesiredCondition::no(
                links::AUTHENTICATED,
                AuthenticatedReason::Ending,
                "the peering is ending",
            ));
        }
        _ => {}
    }
    match plan.incoming {
        IncomingAction::Serve => {
            let text = format!("it may use namespace {}", tenant_namespace(id));
            wanted.extend([
                DesiredCondition::yes(
                    links::CONSUMER_AUTHORIZED,
                    ConsumerAuthorizedReason::Granted,
                    text,
                ),
                consumer_reachable(health),
            ]);
        }
        IncomingAction::End | IncomingAction::AwaitGone => {
            let text = "this cluster is taking back what it lent";
            wanted.push(DesiredCondition::no(
                links::CONSUMER_AUTHORIZED,
                ConsumerAuthorizedReason::Ending,
                text,
            ));
        }
        IncomingAction::Nothing
            if snapshot
                .peer
                .is_some_and(|peer| peer.incoming == PeeringIntent::No) =>
        {
            wanted.push(DesiredCondition::no(
                links::CONSUMER_AUTHORIZED,
                ConsumerAuthorizedReason::Blocked,
                "spec.incomingPeering is No",
            ));
        }
        IncomingAction::Nothing
            if snapshot
                .peer
                .is_some_and(|peer| matches!(peer.waiting, ApprovalWait::For(_))) =>
        {
            let text = format!(
                "it wants to borrow from this cluster, and somebody has to decide: `liqoctl approve {id}` or `liqoctl refuse {id}`"
            );
            wanted.push(DesiredCondition::no(
                links::CONSUMER_AUTHORIZED,
                ConsumerAuthorizedReason::PendingApproval,
                text,
            ));
        }
        IncomingAction::Nothing => {}
    }
    wanted
}

/// A restarted process knows nothing yet: keeps conditions that were True until this process has a
/// result of its own.
pub fn keep_previous_true(
    mut wanted: Vec<DesiredCondition>,
    record: &ForeignCluster,
) -> Vec<DesiredCondition> {
    for undecided in wanted.iter_mut().filter(|wanted| wanted.status.is_none()) {
        if let Some(known) = record
            .condition(undecided.kind)
            .filter(|known| known.is_true())
        {
            *undecided =
                DesiredCondition::yes(undecided.kind, known.reason.clone(), known.message.clone());
        }
    }
    wanted
}

fn consumer_reachable(health: ConsumerHealth) -> DesiredCondition {
    let kind = links::CONSUMER_REACHABLE;
    match health {
        ConsumerHealth::Unknown => DesiredCondition::unknown(
            kind,
            ConsumerReachableReason::Waiting,
            "the consumer has not renewed its lease since this process started",
        ),
        ConsumerHealth::Reachable => DesiredCondition::yes(
            kind,
            ConsumerReachableReason::Reachable,
            "the consumer renews its lease",
        ),
        ConsumerHealth::Silent => DesiredCondition::no(
            kind,
            ConsumerReachableReason::Silent,
            "the consumer does not renew its lease: is it up, and does it reach the API server of this cluster?",
        ),
        ConsumerHealth::Expired => DesiredCondition::no(
            kind,
            ConsumerReachableReason::Expired,
            "the consumer has been silent for longer than peering.consumerExpirySeconds",
        ),
    }
}

/// The status without conditions.
pub fn wanted_status(
    old: &ForeignClusterStatus,
    view: Option<&SessionView>,
    plan: PeerPlan,
    id: &ClusterId,
) -> ForeignClusterStatus {
    let granted = view.and_then(|view| view.granted.clone());
    // A new session knows nothing yet: keep the results of an earlier one.
    let keep = plan.outgoing == OutgoingAction::Run && granted.is_none();
    let (namespace, url, version) = match granted {
        Some(granted) => (
            Some(granted.tenant_namespace),
            Some(granted.api_server_url),
            Some(granted.protocol_version),
        ),
        None if keep => (
            old.remote_tenant_namespace.clone(),
            old.api_server_url.clone(),
            old.protocol_version,
        ),
        None => (None, None, None),
    };
    ForeignClusterStatus {
        remote_tenant_namespace: namespace,
        api_server_url: url,
        protocol_version: version,
        called_through: view
            .and_then(|view| view.gateway)
            .map(|gateway| gateway.to_string()),
        tenant_namespace: (plan.incoming != IncomingAction::Nothing).then(|| tenant_namespace(id)),
        ..old.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decide::peer::{PeerFacts, PeerNamespaceState, RecordAction};

    fn id() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    fn planned(outgoing: OutgoingAction, incoming: IncomingAction) -> PeerPlan {
        PeerPlan {
            outgoing,
            incoming,
            record: RecordAction::Keep,
        }
    }

    fn kinds(plan: PeerPlan, incoming: PeeringIntent) -> Vec<(&'static str, Option<bool>)> {
        let peer = PeerFacts {
            wants_outgoing: false,
            incoming,
            deleting: false,
            automatic: false,
            finalizer: true,
            waiting: ApprovalWait::No,
        };
        let snapshot = PeerSnapshot {
            peer: Some(peer),
            provider_namespace: PeerNamespaceState::Absent,
            tenant_namespace: PeerNamespaceState::Absent,
            consumer_expired: false,
        };
        let wanted = wanted_conditions(None, plan, snapshot, ConsumerHealth::Reachable, &id());
        wanted
            .into_iter()
            .map(|wanted| (wanted.kind, wanted.status))
            .collect()
    }

    #[test]
    fn each_direction_shows_its_own_links_only() {
        let serving = planned(OutgoingAction::Nothing, IncomingAction::Serve);
        assert_eq!(
            kinds(serving, PeeringIntent::Auto),
            [
                (links::CONSUMER_AUTHORIZED, Some(true)),
                (links::CONSUMER_REACHABLE, Some(true))
            ]
        );
        assert_eq!(
            kinds(
                planned(OutgoingAction::TearDown, IncomingAction::Nothing),
                PeeringIntent::Auto
            ),
            [(links::AUTHENTICATED, Some(false))]
        );
        assert_eq!(
            kinds(
                planned(OutgoingAction::Nothing, IncomingAction::Nothing),
                PeeringIntent::Auto
            ),
            []
        );
        assert_eq!(
            kinds(
                planned(OutgoingAction::Nothing, IncomingAction::Nothing),
                PeeringIntent::No
            ),
            [(links::CONSUMER_AUTHORIZED, Some(false))]
        );
    }

    #[test]
    fn a_restart_does_not_make_good_conditions_flicker() {
        let mut record: ForeignCluster = serde_json::from_value(
            json!({"metadata": {"name": "milan"}, "spec": {"clusterID": id()}}),
        )
        .unwrap();
        let waiting = [DesiredCondition::unknown(
            links::PEER_REACHABLE,
            "Waiting",
            "",
        )];
        assert_eq!(keep_previous_true(waiting.to_vec(), &record), waiting);
        let conditions = |status: &str| json!({"conditions": [{"type": "PeerReachable", "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        record.status = Some(serde_json::from_value(conditions("True")).unwrap());
        assert_eq!(
            keep_previous_true(waiting.to_vec(), &record),
            [DesiredCondition::yes(links::PEER_REACHABLE, "R", "m")]
        );
        record.status = Some(serde_json::from_value(conditions("False")).unwrap());
        assert_eq!(keep_previous_true(waiting.to_vec(), &record), waiting);
    }

    #[test]
    fn a_restart_does_not_wipe_what_is_known_of_a_provider() {
        let old = ForeignClusterStatus {
            remote_tenant_namespace: Some("t".into()),
            protocol_version: Some(1),
            ..Default::default()
        };
        let run = planned(OutgoingAction::Run, IncomingAction::Nothing);
        assert_eq!(wanted_status(&old, None, run, &id()), old);
        let over = wanted_status(
            &old,
            None,
            planned(OutgoingAction::Nothing, IncomingAction::Nothing),
            &id(),
        );
        assert_eq!(
            (over.remote_tenant_namespace, over.protocol_version),
            (None, None)
        );
    }
}
