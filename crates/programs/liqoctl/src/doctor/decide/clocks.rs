//! Whether clocks agree.
//!
//! Little in Liqo depends on it: leases are judged by how long they did not change, challenges and
//! tokens by a single clock. Only certificates depend on it, and times that people and peers write.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use liqo_api::leases;

use super::{some, unread};
use crate::{
    doctor::{Check, Finding},
    inspect::{Facts, Heartbeat, is_virtual},
};

/// A larger difference is a warning.
pub const WARN_DIFFERENCE: SignedDuration = SignedDuration::from_secs(10);
/// Certificates that Kubernetes signs are valid from five minutes in the past: a clock further
/// behind refuses new ones.
pub const FAIL_DIFFERENCE: SignedDuration = SignedDuration::from_mins(5);

/// Advice about a wrong clock.
pub const ADVICE: &str = "let its machine use NTP (`timedatectl`, chrony)";

pub fn decide(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![own(facts), nodes(facts)];
    found.extend(consumers(facts));
    found
}

fn own(facts: &Facts) -> Finding {
    let api = &facts.api_server;
    let Some(date) = api.date else {
        return Finding::unknown(Check::OwnClock, "the API server does not report its time");
    };
    judged(
        Check::OwnClock,
        date.duration_since(api.asked_at),
        "the clock of the API server",
        "this machine's",
        "let both use NTP: this machine's clock determines the lifetime of tokens that you create here",
    )
}

/// A verdict on two clocks; `ahead` is by how much the first one is.
pub fn judged(
    check: Check,
    ahead: SignedDuration,
    one: &str,
    other: &str,
    advice: &str,
) -> Finding {
    let what = format!("{one} is {} {other}", distance(ahead));
    match ahead.abs() {
        apart if apart <= WARN_DIFFERENCE => Finding::ok(check, what),
        apart if apart <= FAIL_DIFFERENCE => Finding::warn(check, what, advice),
        _ => Finding::fail(check, what, advice),
    }
}

/// `12 s ahead of`.
fn distance(ahead: SignedDuration) -> String {
    // Times have a precision of one second.
    match ahead.as_secs() {
        -1..=1 => "in step with".to_owned(),
        seconds if seconds < 0 => format!("{} s behind", -seconds),
        seconds => format!("{seconds} s ahead of"),
    }
}

fn nodes(facts: &Facts) -> Finding {
    let check = Check::NodeClocks;
    let (nodes, leases) = match (&facts.nodes, &facts.node_leases) {
        (Ok(nodes), Ok(leases)) => (nodes, leases),
        (Err(why), _) | (_, Err(why)) => return unread(check, why),
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
    summed(check, &apart, "node", ADVICE)
}

/// Time by which each holder's clock is ahead of the API server's.
fn ahead_by_name<'a>(
    leases: impl Iterator<Item = &'a Lease>,
    name: impl Fn(&Lease) -> String,
) -> BTreeMap<String, SignedDuration> {
    leases
        .filter_map(|lease| Some((name(lease), Heartbeat::of(lease)?.ahead()?)))
        .collect()
}

fn summed(
    check: Check,
    apart: &BTreeMap<String, SignedDuration>,
    who: &str,
    advice: &str,
) -> Finding {
    let beyond = |limit: SignedDuration| {
        let far = apart.iter().filter(|(_, ahead)| ahead.abs() > limit);
        far.map(|(name, ahead)| {
            format!(
                "the clock of {who} {name} is {} the API server's",
                distance(*ahead)
            )
        })
        .collect::<Vec<_>>()
    };
    let (harmful, notable) = (beyond(FAIL_DIFFERENCE), beyond(WARN_DIFFERENCE));
    if !harmful.is_empty() {
        return Finding::fail(check, some(&harmful), advice);
    }
    if !notable.is_empty() {
        return Finding::warn(check, some(&notable), advice);
    }
    if apart.is_empty() {
        return Finding::unknown(check, "no Lease shows the time there");
    }
    Finding::ok(
        check,
        format!(
            "the clocks of {} and the API server agree",
            super::count(apart.len(), who)
        ),
    )
}

/// Consumers write the time into their Leases here.
fn consumers(facts: &Facts) -> Option<Finding> {
    let tenants = match &facts.tenant_leases {
        Ok(tenants) => tenants,
        Err(why) => return Some(unread(Check::PeerClocks, why)),
    };
    let renewed = tenants
        .iter()
        .filter(|lease| lease.name_any() == leases::CONSUMER);
    let name = |lease: &Lease| {
        let namespace = lease.namespace().unwrap_or_default();
        let id = namespace.trim_start_matches("liqo-tenant-").parse().ok();
        let peer = id.and_then(|id| facts.liqo.peer(&id).ok()?);
        peer.map_or(namespace, ResourceExt::name_any)
    };
    let apart = ahead_by_name(renewed, name);
    let advice =
        "both clusters read the times at which offers end and tokens expire: let both use NTP";
    (!apart.is_empty()).then(|| summed(Check::PeerClocks, &apart, "peer", advice))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::{
        doctor::Verdict,
        inspect::fixtures::{facts, lease, of},
    };

    #[test]
    fn our_clock_is_compared_with_the_api_servers() {
        let mut facts = facts();
        for (ahead, verdict) in [
            (0, Verdict::Ok),
            (-9, Verdict::Ok),
            (30, Verdict::Warn),
            (-301, Verdict::Fail),
        ] {
            facts.api_server.date =
                Some(facts.api_server.asked_at + SignedDuration::from_secs(ahead));
            assert_eq!(own(&facts).verdict, verdict, "{ahead}");
        }
        assert!(
            own(&facts).what.contains("301 s behind"),
            "{}",
            own(&facts).what
        );
        facts.api_server.date = None;
        assert_eq!(own(&facts).verdict, Verdict::Unknown);
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
        let found = nodes(&facts);
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(
            found.what.contains("rome-2 is 60 s ahead of") && !found.what.contains("rome-1"),
            "{}",
            found.what
        );
        facts.node_leases = Ok(vec![lease("rome-1", "rome-1", 5, -400)]);
        assert_eq!(nodes(&facts).verdict, Verdict::Fail);
    }

    #[test]
    fn a_consumers_clock_shows_in_its_lease() {
        let mut facts = facts();
        assert!(consumers(&facts).is_none(), "nobody borrows from here");
        let mut renewed = lease(leases::CONSUMER, "x", 1, -25);
        renewed.metadata.namespace = Some(liqo_api::tenant_namespace(
            &crate::inspect::fixtures::milan(),
        ));
        facts.tenant_leases = Ok(vec![renewed, lease(leases::PROVIDER, "y", 1, 900)]);
        let found = consumers(&facts).unwrap();
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(
            found.what.contains("peer milan is 25 s behind"),
            "{}",
            found.what
        );
    }
}
