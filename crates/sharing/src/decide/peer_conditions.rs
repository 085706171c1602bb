//! The conditions of a peer's `ForeignCluster` that sharing owns.

use liqo_api::conditions::DesiredCondition;
use liqo_api::{Condition, ForeignCluster, links};

const CONSUMER_CONDITIONS: [&str; 4] = [
    links::RESOURCES_REQUESTED,
    links::OFFER_ACCEPTED,
    links::TETHERING_GRANTED,
    links::POOL_FOR_EACH_NODE,
];

/// Conditions that each side has reported about a peer since this process started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportedConditions {
    /// `None` until the consumer side has looked at the peer.
    pub consumer: Option<Vec<DesiredCondition>>,
    /// `None` until the provider side has looked at the peer; empty if the peer is no consumer.
    pub provider: Option<Vec<DesiredCondition>>,
}

/// The conditions that the `ForeignCluster` must have. Keeps existing conditions that a side has
/// not reported on yet, and drops those that no longer apply.
pub fn wanted_conditions(
    foreign_cluster: &ForeignCluster,
    reported: &ReportedConditions,
) -> Vec<DesiredCondition> {
    let mut wanted = Vec::new();
    if foreign_cluster.wants_resources() {
        match &reported.consumer {
            Some(conditions) => wanted.extend(conditions.iter().cloned()),
            None => wanted.extend(
                CONSUMER_CONDITIONS
                    .into_iter()
                    .filter_map(|kind| existing_condition(foreign_cluster, kind)),
            ),
        }
    }
    match &reported.provider {
        Some(conditions) => wanted.extend(conditions.iter().cloned()),
        None => wanted.extend(existing_condition(
            foreign_cluster,
            links::RESOURCES_OFFERED,
        )),
    }
    wanted
}

fn existing_condition(
    foreign_cluster: &ForeignCluster,
    kind: &'static str,
) -> Option<DesiredCondition> {
    foreign_cluster
        .condition(kind)
        .map(|condition| unchanged_condition(kind, condition))
}

fn unchanged_condition(kind: &'static str, condition: &Condition) -> DesiredCondition {
    let (reason, message) = (condition.reason.clone(), condition.message.clone());
    match condition.status.as_str() {
        "True" => DesiredCondition::yes(kind, reason, message),
        "False" => DesiredCondition::no(kind, reason, message),
        _ => DesiredCondition::unknown(kind, reason, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::cluster;
    use jiff::Timestamp;
    use liqo_api::conditions::updated_conditions;
    use liqo_api::{ForeignClusterSpec, ForeignClusterStatus, PeeringIntent};

    fn peer(outgoing: PeeringIntent, existing: &[DesiredCondition]) -> ForeignCluster {
        let spec = ForeignClusterSpec {
            cluster_id: cluster(1),
            cluster_name: None,
            auth_url: None,
            tunnel: Vec::new(),
            outgoing_peering: outgoing,
            incoming_peering: PeeringIntent::Auto,
            request: liqo_api::RequestedResources::default(),
            offers: std::collections::BTreeMap::new(),
            contracts: std::collections::BTreeMap::new(),
            network: PeeringIntent::Auto,
            token_secret_name: None,
        };
        let mut peer = ForeignCluster::new("peer", spec);
        let conditions =
            updated_conditions(&[], existing, Timestamp::UNIX_EPOCH).unwrap_or_default();
        peer.status = Some(ForeignClusterStatus {
            conditions,
            ..ForeignClusterStatus::default()
        });
        peer
    }

    fn accepted() -> DesiredCondition {
        DesiredCondition::yes(links::OFFER_ACCEPTED, "Accepted", "pool default accepted")
    }

    fn offered() -> DesiredCondition {
        DesiredCondition::yes(
            links::RESOURCES_OFFERED,
            "Offered",
            "pool default is offered",
        )
    }

    #[test]
    fn after_a_restart_existing_conditions_stay_until_a_side_reports() {
        let peer = peer(PeeringIntent::Yes, &[accepted(), offered()]);
        assert_eq!(
            wanted_conditions(&peer, &ReportedConditions::default()),
            [accepted(), offered()]
        );
    }

    #[test]
    fn each_side_changes_only_its_own_conditions() {
        let peer = peer(PeeringIntent::Yes, &[accepted()]);
        let reported = ReportedConditions {
            consumer: None,
            provider: Some(vec![offered()]),
        };
        assert_eq!(wanted_conditions(&peer, &reported), [accepted(), offered()]);
        let reported = ReportedConditions {
            consumer: Some(Vec::new()),
            provider: None,
        };
        assert_eq!(wanted_conditions(&peer, &reported), []);
    }

    #[test]
    fn an_unwanted_peer_has_no_consumer_conditions() {
        let peer = peer(PeeringIntent::No, &[accepted(), offered()]);
        assert_eq!(
            wanted_conditions(
                &peer,
                &ReportedConditions {
                    consumer: Some(vec![accepted()]),
                    provider: None
                }
            ),
            [offered()]
        );
    }

    #[test]
    fn a_network_only_peer_has_no_consumer_conditions() {
        let mut peer = peer(PeeringIntent::Yes, &[accepted(), offered()]);
        peer.spec.request.network_only = true;
        assert_eq!(
            wanted_conditions(
                &peer,
                &ReportedConditions {
                    consumer: Some(vec![accepted()]),
                    provider: None
                }
            ),
            [offered()]
        );
    }

    #[test]
    fn a_former_consumer_has_no_provider_condition() {
        let peer = peer(PeeringIntent::Yes, &[accepted(), offered()]);
        assert_eq!(
            wanted_conditions(
                &peer,
                &ReportedConditions {
                    consumer: None,
                    provider: Some(Vec::new())
                }
            ),
            [accepted()]
        );
    }
}
