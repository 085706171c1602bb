//! The rules that must hold in all clusters together, whatever happened before, once nothing
//! changes any more.
//!
//! ```text
//!   objects of all clusters --> violations: a check and a sentence for each
//! ```
//!
//! A cluster at work violates some of this for moments: who looks at running clusters looks several
//! times. The simulated clusters in `crates/devtools/simulation` are judged by the same rules.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{
    CONTROLLER_MANAGER, ClusterId, ForeignCluster, SYSTEM_NAMESPACE, is_final_phase, labels, pods,
    provider_namespace, tenant_namespace,
};
use liqo_offloading_rules::views::{ConditionView, LeaseView, NodeObjectView, ObjectView, PodView};
use liqo_quantity::ResourceList;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::check::Check;

const PODS: &str = "pods";
const NODES: &str = "nodes";
const NAMESPACES: &str = "namespaces";
const PEERS: &str = "foreignclusters.discovery.liqo.io";
const OFFERS: &str = "resourceoffers.sharing.liqo.io";
const LEASES: &str = "leases.coordination.k8s.io";

/// Prefix of the names of tenant namespaces.
const TENANT_NAMESPACES: &str = "liqo-tenant-";

/// The objects of one cluster at one moment.
pub struct ClusterSnapshot {
    pub id: ClusterId,
    pub name: String,
    /// By its clock.
    pub now: Timestamp,
    /// By plural and group. Read are pods, nodes, namespaces, peers, offers and leases.
    pub objects: BTreeMap<String, Vec<Arc<Value>>>,
}

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvariantViolation {
    pub check: Check,
    /// The object, or the clusters: the same at each look.
    pub about: String,
    pub what: String,
}

impl ClusterSnapshot {
    fn objects_of(&self, resource: &str) -> impl Iterator<Item = &Value> {
        self.objects
            .get(resource)
            .into_iter()
            .flatten()
            .map(|object| &**object)
    }

    /// The pods that run for others here, with the uid of the pod that they run for.
    fn remote_pods(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.objects_of(PODS)
            .filter_map(|pod| Some((label(pod, labels::SHADOW_POD)?, pod)))
    }

    /// The cluster behind each virtual node.
    fn virtual_nodes(&self) -> BTreeMap<&str, &str> {
        let nodes = self.objects_of(NODES).filter(|node| is_virtual(node));
        nodes
            .filter_map(|node| Some((name(node), label(node, labels::REMOTE_CLUSTER_ID)?)))
            .collect()
    }

    /// Whether this cluster borrows from another one, or still ends that.
    fn borrows_from(&self, provider: &ClusterId) -> bool {
        let peers = self
            .objects_of(PEERS)
            .filter_map(|peer| serde_json::from_value::<ForeignCluster>(peer.clone()).ok());
        let mut those = peers.filter(|peer| peer.spec.cluster_id == *provider);
        those.any(|peer| peer.metadata.deletion_timestamp.is_some() || peer.wants_outgoing())
    }
}

/// Finds all violations.
pub fn find_violations(clusters: &[ClusterSnapshot]) -> Vec<InvariantViolation> {
    let mut found = Vec::new();
    for cluster in clusters {
        local_pods(cluster, clusters, &mut found);
        remote_pods(cluster, clusters, &mut found);
        ended_peerings(cluster, clusters, &mut found);
        check_leases(cluster, &mut found);
        check_promises(cluster, &mut found);
    }
    found
}

fn add_violation(found: &mut Vec<InvariantViolation>, check: Check, about: String, what: &str) {
    let what = format!("{about} {what}");
    found.push(InvariantViolation { check, about, what });
}

/// Each pod on a virtual node that has not ended runs exactly once at its provider, or says why it
/// does not run; and both are equal. Those that are being deleted do not count.
fn local_pods(
    home: &ClusterSnapshot,
    clusters: &[ClusterSnapshot],
    found: &mut Vec<InvariantViolation>,
) {
    let nodes = home.virtual_nodes();
    for pod in home
        .objects_of(PODS)
        .filter(|pod| !is_finished(pod) && !is_terminating(pod))
    {
        let Some(provider) = PodView::of(pod)
            .spec()
            .node_name()
            .and_then(|node| nodes.get(node))
        else {
            continue;
        };
        let Some(provider) = clusters
            .iter()
            .find(|cluster| cluster.id.as_str() == *provider)
        else {
            continue;
        };
        let remote: Vec<&Value> = provider
            .remote_pods()
            .filter(|(of, _)| *of == uid(pod))
            .map(|(_, pod)| pod)
            .collect();
        let what = match remote.as_slice() {
            [] if shows_refusal(pod) => continue,
            [] => format!(
                "is {}, does not run there, and does not say why",
                describe_pod_state(pod)
            ),
            [one] if describe_pod_state(pod) == describe_pod_state(one) || is_terminating(one) => {
                continue;
            }
            [one] => format!(
                "is {}, and there {}",
                describe_pod_state(pod),
                describe_pod_state(one)
            ),
            more => format!("runs {} times", more.len()),
        };
        add_violation(
            found,
            Check::LocalPods,
            format!(
                "pod {} of {} at {}",
                namespaced_name(pod),
                home.name,
                provider.name
            ),
            &what,
        );
    }
}

/// Each pod that runs for another cluster has a pod there.
fn remote_pods(
    provider: &ClusterSnapshot,
    clusters: &[ClusterSnapshot],
    found: &mut Vec<InvariantViolation>,
) {
    for (uid_there, pod) in provider
        .remote_pods()
        .filter(|(_, pod)| !is_terminating(pod))
    {
        let about = format!("pod {} of {}", namespaced_name(pod), provider.name);
        let Some(consumer) = label(pod, labels::CONSUMER_ID) else {
            add_violation(found, Check::RemotePods, about, "runs for nobody");
            continue;
        };
        let Some(home) = clusters
            .iter()
            .find(|cluster| cluster.id.as_str() == consumer)
        else {
            continue;
        };
        if !home.objects_of(PODS).any(|local| uid(local) == uid_there) {
            add_violation(
                found,
                Check::RemotePods,
                about,
                &format!("runs for a pod of {} that does not exist", home.name),
            );
        }
    }
}

#[derive(Clone, Copy)]
struct EndedPeering<'a> {
    consumer: &'a ClusterSnapshot,
    provider: &'a ClusterSnapshot,
}

/// Nothing is left of a peering that has ended.
fn ended_peerings(
    consumer: &ClusterSnapshot,
    clusters: &[ClusterSnapshot],
    found: &mut Vec<InvariantViolation>,
) {
    for provider in clusters
        .iter()
        .filter(|provider| provider.id != consumer.id && !consumer.borrows_from(&provider.id))
    {
        let ended = EndedPeering { consumer, provider };
        let (tenant, own) = (
            tenant_namespace(&consumer.id),
            provider_namespace(&provider.id),
        );
        for namespace in provider.objects_of(NAMESPACES) {
            if name(namespace) == tenant
                || label(namespace, labels::CONSUMER_ID) == Some(consumer.id.as_str())
            {
                add_remainder(
                    found,
                    ended,
                    provider,
                    &format!("namespace {}", name(namespace)),
                );
            }
        }
        if consumer
            .objects_of(NAMESPACES)
            .any(|namespace| name(namespace) == own)
        {
            add_remainder(found, ended, consumer, &format!("namespace {own}"));
        }
        for (node, _) in consumer
            .virtual_nodes()
            .iter()
            .filter(|(_, of)| **of == provider.id.as_str())
        {
            add_remainder(found, ended, consumer, &format!("node {node}"));
        }
    }
}

/// The peering has ended, and this part of it is left.
fn add_remainder(
    found: &mut Vec<InvariantViolation>,
    ended: EndedPeering,
    cluster: &ClusterSnapshot,
    what: &str,
) {
    let why = format!(
        "is left, although {} does not borrow from {}",
        ended.consumer.name, ended.provider.name
    );
    add_violation(
        found,
        Check::EndedPeerings,
        format!("{what} of {}", cluster.name),
        &why,
    );
}

/// The leases of leaders, of consumers and providers, and of virtual nodes are fresh. Gateways come
/// and go.
fn check_leases(cluster: &ClusterSnapshot, found: &mut Vec<InvariantViolation>) {
    for lease in cluster
        .objects_of(LEASES)
        .filter(|lease| is_lease_of_liqo(lease))
    {
        let spec = LeaseView::of(lease).spec();
        let Some(renewed) = spec
            .renew_time()
            .and_then(|time| time.parse::<Timestamp>().ok())
        else {
            continue;
        };
        let lasts = SignedDuration::from_secs(spec.lease_duration_seconds().unwrap_or_default());
        // A consumer writes its own Lease, so the sum may be no time.
        if renewed
            .checked_add(lasts)
            .is_ok_and(|end| end < cluster.now)
        {
            let about = format!("lease {} of {}", namespaced_name(lease), cluster.name);
            add_violation(
                found,
                Check::Leases,
                about,
                &format!("was last renewed at {renewed}"),
            );
        }
    }
}

fn is_lease_of_liqo(lease: &Value) -> bool {
    match namespace(lease) {
        SYSTEM_NAMESPACE => name(lease) == CONTROLLER_MANAGER,
        "kube-node-lease" => label(lease, labels::MANAGED).is_some(),
        namespace => namespace.starts_with(TENANT_NAMESPACES),
    }
}

/// A provider does not offer more of its own than its nodes have.
fn check_promises(provider: &ClusterSnapshot, found: &mut Vec<InvariantViolation>) {
    let offers = provider.objects_of(OFFERS).filter(|offer| {
        offer["spec"]["clusterID"] == provider.id.as_str()
            && offer["spec"]["hops"].as_u64().unwrap_or(1) == 1
    });
    let offered: Vec<ResourceList> = offers
        .map(|offer| parse_amounts(offer["spec"]["resourceQuota"]["hard"].as_object()))
        .collect();
    let real = provider.objects_of(NODES).filter(|node| !is_virtual(node));
    let exists: Vec<ResourceList> = real
        .map(|node| parse_amounts(NodeObjectView::of(node).status().allocatable()))
        .collect();
    let offered: ResourceList = offered.iter().sum();
    if let Err(shortages) = offered.fits_in(&exists.iter().sum()) {
        let names: Vec<String> = shortages.iter().map(ToString::to_string).collect();
        let what = format!("offers more than its nodes have: {}", names.join(", "));
        add_violation(found, Check::Promises, provider.name.clone(), &what);
    }
}

fn parse_amounts(amounts: Option<&Map<String, Value>>) -> ResourceList {
    amounts
        .and_then(|amounts| ResourceList::deserialize(amounts).ok())
        .unwrap_or_default()
}

fn label<'a>(object: &'a Value, label: &str) -> Option<&'a str> {
    ObjectView::of(object).metadata().label(label)
}

fn name(object: &Value) -> &str {
    ObjectView::of(object).metadata().name().unwrap_or_default()
}

fn namespace(object: &Value) -> &str {
    let metadata = ObjectView::of(object).metadata();
    metadata.namespace().unwrap_or_default()
}

fn uid(object: &Value) -> &str {
    ObjectView::of(object).metadata().uid().unwrap_or_default()
}

fn namespaced_name(object: &Value) -> String {
    format!("{}/{}", namespace(object), name(object))
}

fn is_virtual(node: &Value) -> bool {
    label(node, labels::TYPE) == Some(labels::TYPE_VIRTUAL_NODE)
}

fn is_finished(pod: &Value) -> bool {
    PodView::of(pod)
        .status()
        .phase()
        .is_some_and(is_final_phase)
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = PodView::of(pod).status().conditions();
    conditions.any(|condition| condition.has_status("Ready", "True"))
}

fn describe_pod_state(pod: &Value) -> String {
    let phase = PodView::of(pod).status().phase();
    format!(
        "{} and {}",
        phase.unwrap_or("without a phase"),
        if is_ready(pod) { "ready" } else { "not ready" }
    )
}

fn is_terminating(object: &Value) -> bool {
    let deleted_at = ObjectView::of(object).metadata().deletion_timestamp();
    deleted_at.is_some_and(|time| !time.is_null())
}

/// Whether a pod shows a person why it does not run: its provider, or Liqo, refuses it.
fn shows_refusal(pod: &Value) -> bool {
    PodView::of(pod).status().conditions().any(says_refusal)
}

fn says_refusal(condition: ConditionView<'_>) -> bool {
    condition.kind() == Some(pods::OFFLOADED)
        && condition.status() != Some("True")
        && condition.message().is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(number: u8, name: &str, objects: &[(&str, Value)]) -> ClusterSnapshot {
        let mut by_resource: BTreeMap<String, Vec<Arc<Value>>> = BTreeMap::new();
        for (resource, object) in objects {
            by_resource
                .entry((*resource).to_owned())
                .or_default()
                .push(Arc::new(object.clone()));
        }
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        ClusterSnapshot {
            id: ClusterId::of_public_key(&[number; 32]),
            name: name.to_owned(),
            now,
            objects: by_resource,
        }
    }

    fn borrows_from(id: &ClusterId) -> Value {
        json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster", "metadata": { "name": "peer" },
            "spec": { "clusterID": id, "outgoingPeering": "Yes" },
        })
    }

    fn pair(local: &[(&str, Value)], remote: &[(&str, Value)]) -> Vec<(Check, String)> {
        let milan = ClusterId::of_public_key(&[2; 32]);
        let node = json!({ "metadata": { "name": "milan", "labels": { "liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": milan } } });
        let peer = borrows_from(&milan);
        let home = [&[(NODES, node), (PEERS, peer)], local].concat();
        let rome = ClusterId::of_public_key(&[1; 32]);
        let back = borrows_from(&rome);
        let there = [&[(PEERS, back)], remote].concat();
        let found = find_violations(&[snapshot(1, "rome", &home), snapshot(2, "milan", &there)]);
        found
            .into_iter()
            .map(|violation| (violation.check, violation.what))
            .collect()
    }

    fn local_pod(status: &Value) -> (&'static str, Value) {
        let metadata = json!({ "namespace": "demo", "name": "web", "uid": "u" });
        (
            PODS,
            json!({ "metadata": metadata, "spec": { "nodeName": "milan" }, "status": status }),
        )
    }

    fn remote_pod(name: &str, of: &str) -> (&'static str, Value) {
        let rome = ClusterId::of_public_key(&[1; 32]);
        let labels = json!({ "liqo.io/shadow-pod": of, "liqo.io/consumer-id": rome });
        (
            PODS,
            json!({ "metadata": { "namespace": "demo-rome", "name": name, "labels": labels }, "status": { "phase": "Running" } }),
        )
    }

    #[test]
    fn a_pod_runs_once_or_says_why_not() {
        let running = local_pod(&json!({ "phase": "Running" }));
        assert!(pair(std::slice::from_ref(&running), &[remote_pod("web", "u")]).is_empty());
        for (local, remote, expected) in [
            (vec![running.clone()], vec![], Check::LocalPods),
            (
                vec![running.clone()],
                vec![remote_pod("web", "u"), remote_pod("web-2", "u")],
                Check::LocalPods,
            ),
            (
                vec![local_pod(&json!({ "phase": "Pending" }))],
                vec![remote_pod("web", "u")],
                Check::LocalPods,
            ),
            (vec![], vec![remote_pod("web", "u")], Check::RemotePods),
        ] {
            let found = pair(&local, &remote);
            assert_eq!(
                found.iter().map(|(check, _)| *check).collect::<Vec<_>>(),
                [expected],
                "{found:?}"
            );
        }
        let refused = json!({ "type": "liqo.io/Offloaded", "status": "False", "message": "the offer is exceeded" });
        assert!(
            pair(
                &[local_pod(
                    &json!({ "phase": "Pending", "conditions": [refused] })
                )],
                &[]
            )
            .is_empty()
        );
    }

    #[test]
    fn nothing_is_left_of_an_ended_peering() {
        let (rome, milan) = (
            ClusterId::of_public_key(&[1; 32]),
            ClusterId::of_public_key(&[2; 32]),
        );
        let left = json!({ "metadata": { "name": tenant_namespace(&rome) } });
        let found = find_violations(&[
            snapshot(1, "rome", &[]),
            snapshot(2, "milan", &[(NAMESPACES, left.clone())]),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        let peer = borrows_from(&milan);
        assert!(
            find_violations(&[
                snapshot(1, "rome", &[(PEERS, peer)]),
                snapshot(2, "milan", &[(NAMESPACES, left)])
            ])
            .is_empty()
        );
    }

    #[test]
    fn leases_are_fresh_and_promises_are_covered() {
        let lease = |namespace: &str, renewed: &str| {
            let spec = json!({ "renewTime": renewed, "leaseDurationSeconds": 40 });
            (
                LEASES,
                json!({ "metadata": { "namespace": namespace, "name": "l" }, "spec": spec }),
            )
        };
        let checks = |objects: &[(&str, Value)]| -> Vec<Check> {
            find_violations(&[snapshot(1, "rome", objects)])
                .into_iter()
                .map(|violation| violation.check)
                .collect()
        };
        assert_eq!(
            checks(&[lease("liqo-tenant-x", "2026-01-01T00:00:30.000000Z")]),
            []
        );
        assert_eq!(
            checks(&[lease("liqo-tenant-x", "2026-01-01T00:00:10.000000Z")]),
            [Check::Leases]
        );
        assert_eq!(
            checks(&[lease("kube-system", "2025-01-01T00:00:00.000000Z")]),
            []
        );
        let of_hostile_consumer = lease("liqo-tenant-x", "9999-12-30T22:00:00.000000Z");
        assert_eq!(checks(&[of_hostile_consumer]), []);
        let node = (
            NODES,
            json!({ "metadata": { "name": "n" }, "status": { "allocatable": { "cpu": "4" } } }),
        );
        let offer = |cpu: &str, hops: u8| {
            let spec = json!({ "clusterID": ClusterId::of_public_key(&[1; 32]), "hops": hops, "resourceQuota": { "hard": { "cpu": cpu } } });
            (
                OFFERS,
                json!({ "metadata": { "namespace": "liqo-tenant-x", "name": "default" }, "spec": spec }),
            )
        };
        assert_eq!(checks(&[node.clone(), offer("3", 1), offer("1", 1)]), []);
        assert_eq!(
            checks(&[node.clone(), offer("3", 1), offer("2", 1)]),
            [Check::Promises]
        );
        assert_eq!(checks(&[node, offer("3", 1), offer("9", 2)]), []);
    }
}
