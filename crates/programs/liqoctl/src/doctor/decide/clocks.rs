//! Whether clocks agree.
//!
//! Little in Liqo depends on it: leases are judged by how long they did not change, challenges and
//! tokens by a single clock. Only certificates depend on it, and times that people and peers write.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use liqo_api::leases;

use super::{first_few, unread_finding};
use crate::{
    doctor::{Check, CheckFinding},
    inspect::{ClusterFacts, LeaseHeartbeat, is_virtual},
};

/// A larger difference is a warning.
pub const WARN_DIFFERENCE: SignedDuration = SignedDuration::from_secs(10);
/// Certificates that Kubernetes signs are valid from five minutes in the past: a clock further
/// behind refuses new ones.
pub const FAIL_DIFFERENCE: SignedDuration = SignedDuration::from_mins(5);

/// Advice about a wrong clock.
pub const ADVICE: &str = "let its machine use NTP (`timedatectl`, chrony)";

pub fn check_clocks(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let mut found = vec![check_own_clock(facts), check_node_clocks(facts)];
    found.extend(check_consumer_clocks(facts));
    found
}

fn check_own_clock(facts: &ClusterFacts) -> CheckFinding {
    let api = &facts.api_server;
    let Some(date) = api.date else {
        return CheckFinding::unknown(Check::OwnClock, "the API server does not report its time");
    };
    judge_clock_difference(
        Check::OwnClock,
        date.duration_since(api.asked_at),
        "the clock of the API server",
        "this machine's",
        "let both use NTP: this machine's clock determines the lifetime of tokens that you create here",
    )
}

/// A verdict on two clocks; `ahead` is by how much the first one is.
pub fn judge_clock_difference(
    check: Check,
    ahead: SignedDuration,
    one: &str,
    other: &str,
    advice: &str,
) -> CheckFinding {
    let what = format!("{one} is {} {other}", describe_difference(ahead));
    match ahead.abs() {
        apart if apart <= WARN_DIFFERENCE => CheckFinding::ok(check, what),
        apart if apart <= FAIL_DIFFERENCE => CheckFinding::warn(check, what, advice),
        _ => CheckFinding::fail(check, what, advice),
    }
}

/// `12 s ahead of`.
fn describe_difference(ahead: SignedDuration) -> String {
    // Times have a precision of one second.
    match ahead.as_secs() {
        -1..=1 => "in step with".to_owned(),
        seconds if seconds < 0 => format!("{} s behind", -seconds),
        seconds => format!("{seconds} s ahead of"),
    }
}

fn check_node_clocks(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::NodeClocks;
    let (nodes, leases) = match (&facts.nodes, &facts.node_leases) {
        (Ok(nodes), Ok(leases)) => (nodes, leases),
        (Err(why), _) | (_, Err(why)) => return unread_finding(check, why),
    };
    let real: Vec<String> = nodes
        .iter()
        .filter(|node| !is_virtual(node))
        .map(ResourceExt::name_any)
        .collect();
    let apart = ahead_by_name(
        leases
            .iter()
            .filter(|lease| real.contains(&lease.name_any())),
        ResourceExt::name_any,
    );
    worst_clock_finding(check, &apart, "node", ADVICE)
}

/// Time by which each holder's clock is ahead of the API server's.
fn ahead_by_name<'a>(
    leases: impl Iterator<Item = &'a Lease>,
    name: impl Fn(&Lease) -> String,
) -> BTreeMap<String, SignedDuration> {
    leases
        .filter_map(|lease| {
            Some((
                name(lease),
                LeaseHeartbeat::from_lease(lease)?.clock_ahead()?,
            ))
        })
        .collect()
}

fn worst_clock_finding(
    check: Check,
    apart: &BTreeMap<String, SignedDuration>,
    who: &str,
    advice: &str,
) -> CheckFinding {
    let (harmful, notable) = (
        clocks_beyond(apart, FAIL_DIFFERENCE, who),
        clocks_beyond(apart, WARN_DIFFERENCE, who),
    );
    if !harmful.is_empty() {
        return CheckFinding::fail(check, first_few(&harmful), advice);
    }
    if !notable.is_empty() {
        return CheckFinding::warn(check, first_few(&notable), advice);
    }
    if apart.is_empty() {
        return CheckFinding::unknown(check, "no Lease shows the time there");
    }
    CheckFinding::ok(
        check,
        format!(
            "the clocks of {} and the API server agree",
            super::count_of(apart.len(), who)
        ),
    )
}

/// The clocks that differ by more than the limit.
fn clocks_beyond(
    apart: &BTreeMap<String, SignedDuration>,
    limit: SignedDuration,
    who: &str,
) -> Vec<String> {
    let far = apart.iter().filter(|(_, ahead)| ahead.abs() > limit);
    far.map(|(name, ahead)| {
        format!(
            "the clock of {who} {name} is {} the API server's",
            describe_difference(*ahead)
        )
    })
    .collect()
}

/// Consumers write the time into their Leases here.
fn check_consumer_clocks(facts: &ClusterFacts) -> Option<CheckFinding> {
    let tenants = match &facts.tenant_leases {
        Ok(tenants) => tenants,
        Err(why) => return Some(unread_finding(Check::PeerClocks, why)),
    };
    let renewed = tenants
        .iter()
        .filter(|lease| lease.name_any() == leases::CONSUMER);
    let apart = ahead_by_name(renewed, |lease| {
        let namespace = lease.namespace().unwrap_or_default();
        let id = namespace.trim_start_matches("liqo-tenant-").parse().ok();
        let peer = id.and_then(|id| facts.liqo.peer(&id).ok()?);
        peer.map_or(namespace, ResourceExt::name_any)
    });
    let advice =
        "both clusters read the times at which offers end and tokens expire: let both use NTP";
    (!apart.is_empty()).then(|| worst_clock_finding(Check::PeerClocks, &apart, "peer", advice))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::{
        finding::CheckVerdict,
        inspect::fixtures::{facts, lease, of},
    };

    #[test]
    fn our_clock_is_compared_with_the_api_servers() {
        let mut facts = facts();
        for (ahead, verdict) in [
            (0, CheckVerdict::Ok),
            (-9, CheckVerdict::Ok),
            (30, CheckVerdict::Warn),
            (-301, CheckVerdict::Fail),
        ] {
            facts.api_server.date =
                Some(facts.api_server.asked_at + SignedDuration::from_secs(ahead));
            assert_eq!(check_own_clock(&facts).verdict, verdict, "{ahead}");
        }
        assert!(
            check_own_clock(&facts).what.contains("301 s behind"),
            "{}",
            check_own_clock(&facts).what
        );
        facts.api_server.date = None;
        assert_eq!(check_own_clock(&facts).verdict, CheckVerdict::Unknown);
    }

    #[test]
    fn a_node_whose_clock_is_off_is_named() {
        let mut facts = facts();
        let node: Node = of(json!({ "metadata": { "name": "rome-2" } }));
        facts.nodes.as_mut().unwrap().push(node);
        facts.node_leases = Ok(vec![
            lease("rome-1", "rome-1", 0, 0),
            lease("rome-2", "rome-2", 1, 60),
            lease("gone", "gone", 0, 900),
        ]);
        let found = check_node_clocks(&facts);
        assert_eq!(found.verdict, CheckVerdict::Warn);
        assert!(
            found.what.contains("rome-2 is 60 s ahead of") && !found.what.contains("rome-1"),
            "{}",
            found.what
        );
        facts.node_leases = Ok(vec![lease("rome-1", "rome-1", 5, -400)]);
        assert_eq!(check_node_clocks(&facts).verdict, CheckVerdict::Fail);
    }

    #[test]
    fn a_consumers_clock_shows_in_its_lease() {
        let mut facts = facts();
        assert!(
            check_consumer_clocks(&facts).is_none(),
            "nobody borrows from here"
        );
        let mut renewed = lease(leases::CONSUMER, "x", 1, -25);
        renewed.metadata.namespace = Some(liqo_api::tenant_namespace(
            &crate::inspect::fixtures::milan(),
        ));
        facts.tenant_leases = Ok(vec![renewed, lease(leases::PROVIDER, "y", 1, 900)]);
        let found = check_consumer_clocks(&facts).unwrap();
        assert_eq!(found.verdict, CheckVerdict::Warn);
        assert!(
            found.what.contains("peer milan is 25 s behind"),
            "{}",
            found.what
        );
    }
}
