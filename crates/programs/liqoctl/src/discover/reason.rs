//! The reason why this cluster does not borrow from one that it finds.

use std::sync::Arc;

use kube::ResourceExt as _;
use liqo_api::conditions::StatusCondition;
use liqo_api::policies::{PolicyPeer, policies_of_peer};
use liqo_api::{Discovery, ForeignCluster, PeeringIntent, PeeringPolicy, labels, links};

use super::LAN;
use crate::{manifests::AUTO_PEERING, output::strip_control_characters};

/// Whether a link of the peering holds.
pub(super) fn is_true(record: &ForeignCluster, link: &str) -> bool {
    record.condition(link).is_some_and(StatusCondition::is_true)
}

/// The reason why this cluster does not borrow from a found one. `None`: it does. `sources` are the
/// ways in which it is found now.
pub(super) fn reason_not_borrowing(
    record: Option<&ForeignCluster>,
    policies: &[Arc<PeeringPolicy>],
    sources: &[String],
    problem: Option<String>,
) -> Option<String> {
    let Some(record) = record else {
        return Some(problem.map_or_else(
            || "its address is being called".to_owned(),
            |problem| strip_control_characters(&problem),
        ));
    };
    if record.metadata.deletion_timestamp.is_some() {
        return Some("its ForeignCluster is being deleted".to_owned());
    }
    if !record.wants_outgoing() {
        return Some(match record.spec.outgoing_peering {
            PeeringIntent::No => format!(
                "outgoingPeering of ForeignCluster {} is No",
                record.name_any()
            ),
            _ => not_automatic(record, policies, sources),
        });
    }
    let broken = [
        links::IDENTITY_VERIFIED,
        links::AUTHENTICATED,
        links::PEER_REACHABLE,
    ]
    .into_iter()
    .find(|link| !is_true(record, link));
    let condition = record.condition(broken?);
    Some(condition.map_or_else(
        || "the peering starts".to_owned(),
        |condition| strip_control_characters(&condition.message),
    ))
}

/// The reason why no policy starts a peering with the cluster.
fn not_automatic(
    record: &ForeignCluster,
    policies: &[Arc<PeeringPolicy>],
    sources: &[String],
) -> String {
    let peer = PolicyPeer::new(&record.spec.cluster_id, Some(record));
    let selecting = policies_of_peer(policies, &peer);
    if selecting
        .first()
        .is_some_and(|policy| policy.spec.consume.automatic)
    {
        return "the peering starts".to_owned();
    }
    if let (Some(first), Some(other)) = (
        selecting.first(),
        selecting
            .iter()
            .find(|policy| policy.spec.consume.automatic),
    ) {
        return format!(
            "policy {} starts no peering with it (consume.automatic) and applies before policy {}, which would: set it there, or give {} \
             the highest priority",
            first.name_any(),
            other.name_any(),
            other.name_any()
        );
    }
    if let Some(text) = other_label(record, &peer, policies, sources) {
        return text;
    }
    match selecting.first() {
        Some(policy) => format!(
            "policy {} starts no peering with it (consume.automatic): peer with `liqoctl peer`, or set discovery.autoPeering",
            policy.name_any()
        ),
        None => "no policy selects it".to_owned(),
    }
}

/// The reason why a policy for a way in which the cluster is found does not apply: the label of the
/// `ForeignCluster` says another way, and does not change while the two are peered. `None`: there
/// is no policy of this kind.
fn other_label(
    record: &ForeignCluster,
    peer: &PolicyPeer,
    policies: &[Arc<PeeringPolicy>],
    sources: &[String],
) -> Option<String> {
    let label = peer
        .labels
        .get(labels::DISCOVERED_BY)
        .and_then(|label| Discovery::of_label(label))
        .unwrap_or_default();
    let ways = sources.iter().map(|source| {
        if source == LAN {
            Discovery::LAN
        } else {
            Discovery::DNS
        }
    });
    let (way, policy) = { ways }.filter(|way| *way != label).find_map(|way| {
        let mut peer = peer.clone();
        peer.labels
            .insert(labels::DISCOVERED_BY.to_owned(), way.as_label().to_owned());
        let policy = policies_of_peer(policies, &peer)
            .into_iter()
            .next()
            .filter(|policy| policy.spec.consume.automatic)?;
        Some((way.as_label(), policy))
    })?;
    let (record, policy) = (record.name_any(), policy.name_any());
    let key = labels::DISCOVERED_BY;
    // A policy for `Manual` would select every consumer that comes by itself, and its
    // ForeignCluster may have no URL.
    if label == Discovery::Manual {
        return Some(format!(
            "policy {policy} is for {key}={way}, and ForeignCluster {record} has no such label: peer with `liqoctl peer`"
        ));
    }
    let label = label.as_label();
    let widen = if policy == AUTO_PEERING {
        "set discovery.autoPeering=LAN,DNS".to_owned()
    } else {
        format!("add {label} to discoveredBy of the policy")
    };
    Some(format!(
        "policy {policy} is for {key}={way}, and ForeignCluster {record} keeps {key}={label} while the two are peered, or {label} finds it: \
         set its outgoingPeering to Yes, or {widen}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(
        name: &str,
        priority: i32,
        automatic: bool,
        ways: &[Discovery],
    ) -> Arc<PeeringPolicy> {
        let mut policy = PeeringPolicy::new(
            name,
            liqo_api::PeeringPolicySpec {
                priority,
                ..Default::default()
            },
        );
        policy.spec.consume.automatic = automatic;
        policy.spec.peers.discovered_by = ways.to_vec();
        Arc::new(policy)
    }

    fn found_by_dns(label: Option<&str>, policies: &[Arc<PeeringPolicy>]) -> String {
        let id = liqo_api::ClusterId::of_public_key(&[2; 32]);
        let labels = json!({ labels::MANAGED: "true", labels::DISCOVERED_BY: label });
        let mut record = json!({ "metadata": { "name": "milan", "labels": labels }, "spec": { "clusterID": id } });
        if label.is_none() {
            record["metadata"]["labels"] = json!({});
        }
        reason_not_borrowing(
            Some(&serde_json::from_value(record).unwrap()),
            policies,
            &["example".to_owned()],
            None,
        )
        .unwrap()
    }

    #[test]
    fn a_label_that_stays_is_the_reason_why_automatic_peering_does_not_start() {
        let default = policy("default", 0, false, &[]);
        let text = found_by_dns(
            Some("LAN"),
            &[
                default.clone(),
                policy(AUTO_PEERING, 10, true, &[Discovery::DNS]),
            ],
        );
        assert!(
            text.contains("keeps liqo.io/discovered-by=LAN while the two are peered"),
            "{text}"
        );
        assert!(
            text.ends_with("set its outgoingPeering to Yes, or set discovery.autoPeering=LAN,DNS"),
            "{text}"
        );
        let text = found_by_dns(
            Some("LAN"),
            &[
                default.clone(),
                policy("partners", 10, true, &[Discovery::DNS]),
            ],
        );
        assert!(
            text.ends_with("or add LAN to discoveredBy of the policy"),
            "{text}"
        );
        let text = found_by_dns(
            None,
            &[
                default.clone(),
                policy(AUTO_PEERING, 10, true, &[Discovery::DNS]),
            ],
        );
        assert!(
            text.ends_with("has no such label: peer with `liqoctl peer`"),
            "{text}"
        );
        let text = found_by_dns(Some("LAN"), &[default]);
        assert!(text.ends_with("or set discovery.autoPeering"), "{text}");
    }

    #[test]
    fn a_policy_that_applies_before_the_automatic_one_is_named() {
        let policies = [
            policy("a", 10, false, &[]),
            policy(AUTO_PEERING, 10, true, &[Discovery::DNS]),
        ];
        let text = found_by_dns(Some("DNS"), &policies);
        assert!(
            text.starts_with("policy a starts no peering with it")
                && text.contains("before policy auto-peering"),
            "{text}"
        );
        assert_eq!(
            found_by_dns(Some("DNS"), &policies[1..]),
            "the peering starts"
        );
    }
}
