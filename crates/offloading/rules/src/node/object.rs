//! The Node object of a pool of a provider.
//!
//! The provider says how much there is and which labels describe it. This cluster decides
//! everything else: a label, name or taint chosen by the peer could attract pods to the Node or
//! disguise it as another node.

use std::collections::BTreeMap;
use std::time::Duration;

use liqo_api::{LargestPods, PriceList, labels, pods};
use serde_json::{Map, Value, json};

use crate::dns_names;
use crate::json::key_domain;
use crate::views::{ConditionView, NodeObjectView, TaintView, Views};

/// Labels of Kubernetes that a provider may set, because they describe hardware and location.
const DESCRIPTIVE: [&str; 4] = [
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// A silence of the peer after which its node gets no new pods.
pub(crate) const SUSPECTED_AFTER: Duration = Duration::from_secs(8);

/// A silence of the peer after which its node and pods are not Ready.
pub const DOWN_AFTER: Duration = Duration::from_secs(40);

/// Condition of the Node whose pool the provider takes back.
const POOL_WITHDRAWN: &str = "PoolWithdrawn";

/// The effect of the peer's silence on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// The peer answers.
    None,
    /// Probably short: no new pods, and nothing moves running pods.
    Suspected,
    /// The node and its pods are not Ready; Kubernetes evicts them as from any other node.
    Down,
}

impl Outage {
    /// The outage that a silence of this length means.
    pub fn after(silence: Duration) -> Self {
        match silence {
            silence if silence >= DOWN_AFTER => Self::Down,
            silence if silence >= SUSPECTED_AFTER => Self::Suspected,
            _ => Self::None,
        }
    }

    /// Time until a longer silence means more.
    pub fn time_until_change(silence: Duration) -> Option<Duration> {
        [SUSPECTED_AFTER, DOWN_AFTER]
            .into_iter()
            .find_map(|limit| limit.checked_sub(silence).filter(|rest| !rest.is_zero()))
    }
}

/// The input of a virtual node.
#[derive(Debug, Clone)]
pub struct NodeSpec<'a> {
    /// The Node's name, from [`node_name`].
    pub name: &'a str,
    pub cluster_id: &'a str,
    pub pool: &'a str,
    /// Labels that the provider advertises, unfiltered.
    pub peer_labels: &'a BTreeMap<String, String>,
    /// The capacity, as Kubernetes prints quantities.
    pub resources: &'a Map<String, Value>,
    /// The amounts that pods can still request in all: the provider charges some more than they
    /// request.
    pub allocatable: &'a Map<String, Value>,
    /// Address of our kubelet API.
    pub address: &'a str,
    pub port: u16,
    /// Version of Kubernetes that the Node shows, also as that of its kubelet.
    pub version: &'a str,
    pub outage: Outage,
    /// The time at which the provider takes the pool back, if it does.
    pub withdrawal: Option<&'a str>,
    /// The provider's prices, checked.
    pub prices: Option<&'a PriceList>,
    /// The free resources of the provider's nodes with the most room.
    pub largest_pods: &'a LargestPods,
    /// The reason why no new pods come although the provider answers, if so.
    pub no_new_pods: Option<&'a str>,
}

/// Metadata and spec of the Node. Its status is `node_status`, its taints afterwards are
/// [`wanted_taints`].
pub fn node(spec: &NodeSpec) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": node_labels(spec)},
        "spec": {
            "providerID": format!("liqo://{}/{}", spec.cluster_id, spec.pool),
            "taints": wanted_taints(&[], spec),
        },
    })
}

/// The labels of the Node: ours, the prices, and those of the peer that only describe.
pub fn node_labels(spec: &NodeSpec) -> BTreeMap<String, String> {
    let mut wanted = descriptive_labels(spec.peer_labels);
    wanted.extend(spec.prices.map(PriceList::node_labels).unwrap_or_default());
    for (key, value) in [
        ("kubernetes.io/hostname", spec.name),
        (
            "node.kubernetes.io/exclude-from-external-load-balancers",
            "true",
        ),
        (labels::TYPE, labels::TYPE_VIRTUAL_NODE),
        (labels::REMOTE_CLUSTER_ID, spec.cluster_id),
        (labels::POOL, spec.pool),
        (labels::MANAGED, "true"),
    ] {
        wanted.insert(key.to_owned(), value.to_owned());
    }
    wanted
}

/// The labels of a peer that its node may have, and by which its pods may select nodes there.
pub fn descriptive_labels(peer_labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let kept = peer_labels.iter().filter(|(key, value)| {
        (DESCRIPTIVE.contains(&key.as_str()) || !is_reserved_key(key))
            && is_label_key(key)
            && is_label_value(value)
    });
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn is_reserved_key(key: &str) -> bool {
    ["kubernetes.io", "k8s.io", labels::DOMAIN]
        .iter()
        .any(|suffix| key_domain(key).ends_with(suffix))
}

/// The taints that the Node should have, including those that others set.
pub fn wanted_taints(live: &[Value], spec: &NodeSpec) -> Vec<Value> {
    let ours = [
        pods::VIRTUAL_NODE_TAINT,
        pods::UNREACHABLE_TAINT,
        pods::NO_NEW_PODS_TAINT,
    ];
    let mut wanted =
        vec![json!({"key": pods::VIRTUAL_NODE_TAINT, "value": "true", "effect": "NoExecute"})];
    let closed_by = [
        (pods::UNREACHABLE_TAINT, spec.outage != Outage::None),
        (pods::NO_NEW_PODS_TAINT, spec.no_new_pods.is_some()),
    ];
    for (key, _) in closed_by.into_iter().filter(|(_, closed)| *closed) {
        wanted.push(json!({"key": key, "value": "true", "effect": "NoSchedule"}));
    }
    wanted.extend(
        live.iter()
            .filter(|taint| {
                let key = TaintView::of(taint).key();
                !key.is_some_and(|key| ours.contains(&key))
            })
            .cloned(),
    );
    wanted
}

/// A merge patch that sets the taints of a live Node, if they differ. It contains the resource
/// version, because it replaces the whole list and the home cluster's controllers write it, too.
pub fn taints_patch(live: &Value, spec: &NodeSpec) -> Option<Value> {
    let live = NodeObjectView::of(live);
    let now = live.spec().taints();
    let wanted = wanted_taints(now, spec);
    let same = wanted.len() == now.len() && wanted.iter().all(|taint| now.contains(taint));
    (!same)
        .then(|| json!({"metadata": {"resourceVersion": live.metadata().resource_version()}, "spec": {"taints": wanted}}))
}

/// The status of the Node. Conditions with unchanged content keep their times, so the status of a
/// settled node never changes.
pub(crate) fn node_status(spec: &NodeSpec, live: &Value, now: &str) -> Value {
    let live_conditions = NodeObjectView::of(live).status().conditions();
    let mut conditions = reachability_conditions(spec.outage);
    conditions.extend(unknown_pressures());
    conditions.extend(withdrawal_condition(spec, &live_conditions));
    conditions.extend(no_new_pods_condition(spec, &live_conditions));
    for condition in &mut conditions {
        keep_times(condition, &live_conditions, now);
    }
    json!({
        "capacity": spec.resources,
        "allocatable": spec.allocatable,
        "addresses": [{"type": "InternalIP", "address": spec.address}, {"type": "Hostname", "address": spec.name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": spec.port}},
        "nodeInfo": {
            "architecture": spec.peer_labels.get("kubernetes.io/arch").map_or("", String::as_str),
            "operatingSystem": spec.peer_labels.get("kubernetes.io/os").map_or("", String::as_str),
            "kubeletVersion": spec.version,
            "kubeProxyVersion": "",
            "containerRuntimeVersion": "liqo://",
            "kernelVersion": "",
            "osImage": "Liqo virtual node",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        },
        "conditions": conditions,
    })
}

fn reachability_conditions(outage: Outage) -> Vec<Value> {
    let reachable = outage == Outage::None;
    let (reason, message) = match outage {
        Outage::Down => (
            "PeerUnreachable",
            "the cluster behind this node does not answer",
        ),
        _ => (
            "VirtualNodeReady",
            "the cluster behind this node accepts pods",
        ),
    };
    let (peer_reason, peer_message) = if reachable {
        ("PeerAnswers", "the peer answers")
    } else {
        (
            "PeerSilent",
            "the peer does not answer; no new pods are scheduled here",
        )
    };
    vec![
        node_condition(
            "Ready",
            condition_word(outage != Outage::Down),
            reason,
            message,
        ),
        node_condition(
            pods::PEER_REACHABLE,
            condition_word(reachable),
            peer_reason,
            peer_message,
        ),
    ]
}

fn condition_word(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

fn unknown_pressures() -> impl Iterator<Item = Value> {
    [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "NetworkUnavailable",
    ]
    .into_iter()
    .map(|pressure| {
        node_condition(
            pressure,
            "False",
            "NotKnownOfAPeer",
            "unknown: the other cluster manages its own nodes",
        )
    })
}

/// Whether the provider takes the pool back. Absent if it never did.
fn withdrawal_condition(spec: &NodeSpec, live: &Views<'_, ConditionView<'_>>) -> Option<Value> {
    if let Some(until) = spec.withdrawal {
        let message = format!(
            "the provider takes the pool back at {until}; no new pods come, and those here are evicted until then"
        );
        return Some(node_condition(
            POOL_WITHDRAWN,
            "True",
            "NoticeGiven",
            &message,
        ));
    }
    is_condition_true(live, POOL_WITHDRAWN).then(|| {
        node_condition(
            POOL_WITHDRAWN,
            "False",
            "NoticeWithdrawn",
            "the provider offers the pool on",
        )
    })
}

/// Whether no new pods come. Absent if they always came.
fn no_new_pods_condition(spec: &NodeSpec, live: &Views<'_, ConditionView<'_>>) -> Option<Value> {
    if let Some(why) = spec.no_new_pods {
        let message = format!("no new pods come, and those here stay: {why}");
        return Some(node_condition(
            pods::NO_NEW_PODS,
            "True",
            "OutsideLimits",
            &message,
        ));
    }
    is_condition_true(live, pods::NO_NEW_PODS).then(|| {
        node_condition(
            pods::NO_NEW_PODS,
            "False",
            "WithinLimits",
            "new pods come again",
        )
    })
}

fn is_condition_true(live: &Views<'_, ConditionView<'_>>, kind: &str) -> bool {
    live.clone().any(|one| one.has_status(kind, "True"))
}

fn node_condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

fn keep_times(condition: &mut Value, live: &Views<'_, ConditionView<'_>>, now: &str) {
    let wanted = ConditionView::of(condition);
    let before = live.clone().find(|before| before.kind() == wanted.kind());
    let same_status = before.filter(|before| before.status() == wanted.status());
    let transition = same_status.and_then(ConditionView::last_transition_time);
    let beat = same_status
        .filter(|before| before.reason() == wanted.reason() && before.message() == wanted.message())
        .and_then(ConditionView::last_heartbeat_time);
    let (transition, beat) = (transition.cloned(), beat.cloned());
    condition["lastHeartbeatTime"] = beat.unwrap_or_else(|| now.into());
    condition["lastTransitionTime"] = transition.unwrap_or_else(|| now.into());
}

/// The name of the Node: the peer's name, reduced to valid characters, followed by the pool unless
/// that is the default one. If another Node has that name, characters of the cluster's ID follow,
/// which nobody else can claim.
pub fn node_name(
    peer_name: &str,
    cluster_id: &str,
    pool: &str,
    taken: impl Fn(&str) -> bool,
) -> String {
    let mut base = dns_label(peer_name);
    if base.is_empty() {
        base = "peer".into();
    }
    if pool != liqo_api::DEFAULT_POOL {
        base = format!("{base}-{}", dns_label(pool));
    }
    let id = dns_label(cluster_id);
    let short: String = id.chars().take(6).collect();
    let plain = truncate_label(&base, 63);
    if !taken(&plain) {
        return plain;
    }
    let with_short_id = format!("{}-{short}", truncate_label(&base, 56));
    if taken(&with_short_id) {
        format!("{}-{}", truncate_label(&base, 30), truncate_label(&id, 32))
    } else {
        with_short_id
    }
}

/// The characters that are valid in a DNS label; others become hyphens.
fn dns_label(text: &str) -> String {
    let lower = text.chars().map(|c| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    });
    lower.collect::<String>().trim_matches('-').to_owned()
}

fn truncate_label(text: &str, length: usize) -> String {
    text.chars()
        .take(length)
        .collect::<String>()
        .trim_matches('-')
        .to_owned()
}

/// Kubernetes' rule for label values, and for the name in a key.
fn is_label_value(value: &str) -> bool {
    value.len() <= 63
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && [value.chars().next(), value.chars().next_back()]
            .into_iter()
            .flatten()
            .all(|c| c.is_ascii_alphanumeric())
}

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));

    !name.is_empty() && is_label_value(name) && prefix.is_none_or(dns_names::is_subdomain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{provider, with_node_spec as with};
    use crate::json::items_at;

    const ID: &str = "abcdefghijklmnopqrstuvwxyz234567";

    #[test]
    fn the_node_says_what_it_stands_for() {
        let node = with(&[("zone", "a")], Outage::None, node);
        assert_eq!(
            node["spec"],
            json!({"providerID": format!("liqo://{}/default", provider()),
            "taints": [{"key": "virtual-node.liqo.io/not-allowed", "value": "true", "effect": "NoExecute"}]})
        );
        assert_eq!(
            node["metadata"]["labels"],
            json!({"kubernetes.io/hostname": "milan", "liqo.io/managed": "true", "liqo.io/pool": "default",
            "liqo.io/remote-cluster-id": provider(), "liqo.io/type": "virtual-node", "node.kubernetes.io/exclude-from-external-load-balancers": "true", "zone": "a"})
        );
    }

    #[test]
    fn a_hostile_label_does_nothing() {
        let hostile = [
            ("node-role.kubernetes.io/control-plane", ""),
            ("kubernetes.io/hostname", "n1"),
            ("liqo.io/type", "local"),
            ("liqo.io/remote-cluster-id", "somebody"),
            ("price.liqo.io/cpu", "0"),
            ("price.liqo.io/currency", "EUR"),
            (
                "node.kubernetes.io/exclude-from-external-load-balancers",
                "false",
            ),
            ("x.k8s.io/y", "1"),
            ("notkubernetes.io/y", "1"),
            ("Kubernetes.io/hostname", "n1"),
            ("a/b/c", "1"),
            ("", "1"),
            ("spaced key", "1"),
            ("bad-value", "-"),
            (
                "long",
                "0123456789012345678901234567890123456789012345678901234567890123",
            ),
        ];
        assert_eq!(
            with(&hostile, Outage::None, node_labels),
            with(&[], Outage::None, node_labels)
        );
    }

    #[test]
    fn labels_that_describe_pass() {
        let described = [
            ("kubernetes.io/arch", "arm64"),
            ("kubernetes.io/os", "linux"),
            ("topology.kubernetes.io/region", "eu"),
            ("topology.kubernetes.io/zone", "eu-1"),
            ("example.com/gpu", "yes"),
            ("plain", ""),
        ];
        assert_eq!(
            with(&described, Outage::None, |spec| descriptive_labels(
                spec.peer_labels
            )
            .len()),
            described.len()
        );
    }

    #[test]
    fn a_glitch_only_stops_scheduling() {
        assert_eq!(Outage::after(Duration::from_secs(7)), Outage::None);
        assert_eq!(Outage::after(Duration::from_secs(39)), Outage::Suspected);
        assert_eq!(Outage::after(Duration::from_secs(40)), Outage::Down);
        let status = |outage| {
            with(&[], outage, |spec| {
                node_status(spec, &json!({}), "t")["conditions"].clone()
            })
        };
        let says = |conditions: &Value, kind: &str| {
            items_at(conditions, "")
                .iter()
                .find(|c| c["type"] == kind)
                .unwrap()["status"]
                .clone()
        };
        assert_eq!(says(&status(Outage::Suspected), "Ready"), "True");
        assert_eq!(says(&status(Outage::Suspected), "PeerReachable"), "False");
        assert_eq!(says(&status(Outage::Down), "Ready"), "False");
    }

    #[test]
    fn the_next_look_is_when_the_silence_means_more() {
        assert_eq!(
            Outage::time_until_change(Duration::ZERO),
            Some(SUSPECTED_AFTER)
        );
        assert_eq!(
            Outage::time_until_change(Duration::from_secs(8)),
            Some(Duration::from_secs(32))
        );
        assert_eq!(Outage::time_until_change(Duration::from_secs(40)), None);
    }

    #[test]
    fn taints_of_others_stay() {
        let theirs = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"});
        let live = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": [theirs]}});
        let patch_for = |live: &Value, outage| with(&[], outage, |spec| taints_patch(live, spec));
        let patch = patch_for(&live, Outage::Suspected).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let taints = patch["spec"]["taints"].as_array().unwrap();
        assert_eq!(
            taints
                .iter()
                .map(|taint| taint["key"].as_str().unwrap())
                .collect::<Vec<_>>(),
            [
                "virtual-node.liqo.io/not-allowed",
                "virtual-node.liqo.io/peer-unreachable",
                "node.kubernetes.io/unreachable"
            ]
        );
        let settled = json!({"spec": {"taints": taints}});
        assert_eq!(patch_for(&settled, Outage::Suspected), None);
        assert_eq!(
            patch_for(&settled, Outage::None).unwrap()["spec"]["taints"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
    }

    #[test]
    fn a_node_that_gets_no_new_pods_has_a_taint_and_says_why() {
        let closed = |live: &Value, why: Option<&str>| {
            with(&[], Outage::None, |spec| {
                let spec = NodeSpec {
                    no_new_pods: why,
                    ..spec.clone()
                };
                let status = node_status(&spec, live, "t");
                let said = items_at(&status, "/conditions")
                    .iter()
                    .find(|one| one["type"] == pods::NO_NEW_PODS)
                    .cloned();
                (wanted_taints(&[], &spec), said)
            })
        };
        let (taints, said) = closed(&json!({}), Some("cpu costs 0.05 EUR"));
        assert_eq!(
            taints[1],
            json!({"key": "virtual-node.liqo.io/no-new-pods", "value": "true", "effect": "NoSchedule"})
        );
        let said = said.unwrap();
        assert_eq!(
            said["message"],
            "no new pods come, and those here stay: cpu costs 0.05 EUR"
        );
        let (taints, over) = closed(&json!({"status": {"conditions": [said]}}), None);
        assert_eq!(
            (taints.len(), over.unwrap()["status"].as_str()),
            (1, Some("False"))
        );
        assert_eq!(closed(&json!({}), None).1, None);
    }

    #[test]
    fn prices_are_labels_of_the_node_and_win_over_those_of_the_peer() {
        let prices: PriceList =
            serde_json::from_value(json!({"currency": "EUR", "rates": {"cpu": "0.04"}})).unwrap();
        let hostile = [("price.liqo.io/cpu", "0"), ("price.liqo.io/memory", "0")];
        let labels = with(&hostile, Outage::None, |spec| {
            node_labels(&NodeSpec {
                prices: Some(&prices),
                ..spec.clone()
            })
        });
        let of_prices: Vec<_> = labels
            .iter()
            .filter(|(key, _)| key.starts_with("price."))
            .collect();
        assert_eq!(of_prices.len(), 2);
        assert_eq!(
            (
                labels["price.liqo.io/cpu"].as_str(),
                labels["price.liqo.io/currency"].as_str()
            ),
            ("0.04", "EUR")
        );
    }

    #[test]
    fn a_settled_status_stays_as_it_is() {
        let status =
            |live: &Value, outage, now| with(&[], outage, |spec| node_status(spec, live, now));
        let first = json!({"status": status(&json!({}), Outage::None, "t1")});
        assert_eq!(status(&first, Outage::None, "t2"), first["status"]);
        let down = status(&first, Outage::Down, "t3");
        assert_eq!(down["conditions"][0]["lastTransitionTime"], "t3");
        assert_eq!(down["conditions"][2]["lastTransitionTime"], "t1");
    }

    #[test]
    fn a_pool_that_is_taken_back_shows_until_when_it_is_there() {
        let withdrawn = |live: &Value, withdrawal: Option<&str>| {
            let status = with(&[], Outage::None, |spec| {
                node_status(
                    &NodeSpec {
                        withdrawal,
                        ..spec.clone()
                    },
                    live,
                    "t",
                )
            });
            items_at(&status, "/conditions")
                .iter()
                .find(|one| one["type"] == "PoolWithdrawn")
                .cloned()
        };
        assert_eq!(withdrawn(&json!({}), None), None);
        let condition = withdrawn(&json!({}), Some("2026-01-02T03:04:05Z")).unwrap();
        assert_eq!(condition["status"], "True");
        assert!(
            condition["message"]
                .as_str()
                .unwrap()
                .contains("2026-01-02T03:04:05Z")
        );
        let over = withdrawn(&json!({"status": {"conditions": [condition]}}), None).unwrap();
        assert_eq!(over["status"], "False");
        assert_eq!(
            withdrawn(&json!({"status": {"conditions": [over]}}), None),
            None,
            "it is said once"
        );
    }

    #[test]
    fn the_status_leads_to_our_kubelet_api() {
        let status = with(&[("kubernetes.io/arch", "amd64")], Outage::None, |spec| {
            node_status(spec, &json!({}), "t")
        });
        assert_eq!(
            status["addresses"][0],
            json!({"type": "InternalIP", "address": "10.0.0.5"})
        );
        assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 20250);
        assert_eq!(
            (&status["capacity"], &status["nodeInfo"]["architecture"]),
            (&json!({"cpu": "2", "memory": "1Gi"}), &json!("amd64"))
        );
    }

    #[test]
    fn the_node_is_named_after_the_peer() {
        assert_eq!(node_name("milan", ID, "default", |_| false), "milan");
        assert_eq!(node_name("milan", ID, "gpu", |_| false), "milan-gpu");
    }

    #[test]
    fn a_taken_name_is_never_taken_over() {
        assert_eq!(
            node_name("n1", ID, "default", |name| name == "n1"),
            "n1-abcdef"
        );
        assert_eq!(
            node_name("n1", ID, "default", |name| name.len() < 10),
            format!("n1-{ID}")
        );
    }

    #[test]
    fn a_hostile_name_becomes_a_valid_one() {
        for hostile in [
            "",
            "---",
            "UPPER Case",
            "a.b",
            "../../etc",
            "é",
            "x\u{0}y",
            &"long".repeat(100),
            "-a-",
        ] {
            for taken in [false, true] {
                let name = node_name(hostile, ID, "default", |_| taken);
                assert!(!name.is_empty() && name.len() <= 63, "{hostile}: {name}");
                assert!(
                    name.chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                    "{hostile}: {name}"
                );
                assert!(
                    !name.starts_with('-') && !name.ends_with('-'),
                    "{hostile}: {name}"
                );
            }
        }
    }
}
