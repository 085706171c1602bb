//! What must hold in all clusters together, whatever happened before, once nothing changes any more.
//!
//! ```text
//!   objects of all clusters --> violations: a check and a sentence for each
//! ```
//!
//! A cluster at work violates some of this for moments: who looks at running clusters looks twice. The simulated clusters in
//! `crates/devtools/simulation` are judged by the same rules.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{CONTROLLER_MANAGER, ClusterId, SYSTEM_NAMESPACE, labels, provider_namespace, tenant_namespace};
use liqo_quantity::ResourceList;
use serde_json::Value;

use super::finding::Check;

const PODS: &str = "pods";
const NODES: &str = "nodes";
const NAMESPACES: &str = "namespaces";
const PEERS: &str = "foreignclusters.discovery.liqo.io";
const OFFERS: &str = "resourceoffers.sharing.liqo.io";
const LEASES: &str = "leases.coordination.k8s.io";

/// How the names of tenant namespaces begin.
const TENANT_NAMESPACES: &str = "liqo-tenant-";

/// The objects of one cluster at one moment.
pub struct Snapshot {
    pub id: ClusterId,
    pub name: String,
    /// By its clock.
    pub now: Timestamp,
    /// By plural and group. Read are pods, nodes, namespaces, peers, offers and leases.
    pub objects: BTreeMap<String, Vec<Arc<Value>>>,
}

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub check: Check,
    pub what: String,
}

impl Snapshot {
    fn of(&self, resource: &str) -> impl Iterator<Item = &Value> {
        self.objects.get(resource).into_iter().flatten().map(|object| &**object)
    }

    /// The pods that run for others here, with the uid of the pod that they run for.
    fn remote_pods(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.of(PODS).filter_map(|pod| Some((label(pod, labels::SHADOW_POD)?, pod)))
    }

    /// The cluster behind each virtual node.
    fn virtual_nodes(&self) -> BTreeMap<&str, &str> {
        let nodes = self.of(NODES).filter(|node| is_virtual(node));
        nodes.filter_map(|node| Some((name(node), label(node, labels::REMOTE_CLUSTER_ID)?))).collect()
    }

    /// Whether this cluster knows another one as a peer.
    fn knows(&self, peer: &ClusterId) -> bool {
        let is_it =
            |known: &Value| known["spec"]["clusterID"] == peer.as_str() && known["metadata"]["deletionTimestamp"].is_null();
        self.of(PEERS).any(is_it)
    }
}

/// What does not hold.
pub fn violations(clusters: &[Snapshot]) -> Vec<Violation> {
    let mut found = Vec::new();
    for cluster in clusters {
        local_pods(cluster, clusters, &mut found);
        remote_pods(cluster, clusters, &mut found);
        ended_peerings(cluster, clusters, &mut found);
        leases(cluster, &mut found);
        promises(cluster, &mut found);
    }
    found
}

fn add(found: &mut Vec<Violation>, check: Check, what: String) {
    found.push(Violation { check, what });
}

/// Each pod on a virtual node that has not ended runs exactly once at its provider, or says why it does not run; and both are equal.
fn local_pods(home: &Snapshot, clusters: &[Snapshot], found: &mut Vec<Violation>) {
    let nodes = home.virtual_nodes();
    for pod in home.of(PODS).filter(|pod| !is_finished(pod)) {
        let Some(provider) = pod["spec"]["nodeName"].as_str().and_then(|node| nodes.get(node)) else { continue };
        let Some(provider) = clusters.iter().find(|cluster| cluster.id.as_str() == *provider) else { continue };
        let remote: Vec<&Value> = provider.remote_pods().filter(|(of, _)| *of == uid(pod)).map(|(_, pod)| pod).collect();
        let about = format!("pod {} of {} at {}", place(pod), home.name, provider.name);
        let what = match remote.as_slice() {
            [] if says_why(pod) => continue,
            [] => format!("{about} does not run there, and does not say why: {}", pod["status"]),
            [one] => {
                let states = |pod: &Value| (pod["status"]["phase"].clone(), is_ready(pod));
                if states(pod) == states(one) || !pod["metadata"]["deletionTimestamp"].is_null() {
                    continue;
                }
                format!("{about} is {}, and there {}", state(pod), state(one))
            }
            more => format!("{about} runs {} times", more.len()),
        };
        add(found, Check::LocalPods, what);
    }
}

/// Each pod that runs for another cluster has a pod there.
fn remote_pods(provider: &Snapshot, clusters: &[Snapshot], found: &mut Vec<Violation>) {
    for (uid_there, pod) in provider.remote_pods() {
        let Some(consumer) = label(pod, labels::CONSUMER_ID) else {
            add(found, Check::RemotePods, format!("pod {} at {} runs for nobody", place(pod), provider.name));
            continue;
        };
        let Some(home) = clusters.iter().find(|cluster| cluster.id.as_str() == consumer) else { continue };
        if !home.of(PODS).any(|local| uid(local) == uid_there) {
            let what = format!("pod {} at {} runs for a pod of {} that does not exist", place(pod), provider.name, home.name);
            add(found, Check::RemotePods, what);
        }
    }
}

/// Nothing is left of a peering that has ended.
fn ended_peerings(consumer: &Snapshot, clusters: &[Snapshot], found: &mut Vec<Violation>) {
    for provider in clusters.iter().filter(|provider| provider.id != consumer.id && !consumer.knows(&provider.id)) {
        let mut left = |cluster: &Snapshot, what: &str| {
            let (consumer, provider, cluster) = (&consumer.name, &provider.name, &cluster.name);
            add(
                found,
                Check::EndedPeerings,
                format!("{consumer} does not borrow from {provider}, but {cluster} still has {what}"),
            );
        };
        let (tenant, own) = (tenant_namespace(&consumer.id), provider_namespace(&provider.id));
        for namespace in provider.of(NAMESPACES) {
            if name(namespace) == tenant || label(namespace, labels::CONSUMER_ID) == Some(consumer.id.as_str()) {
                left(provider, &format!("namespace {}", name(namespace)));
            }
        }
        if consumer.of(NAMESPACES).any(|namespace| name(namespace) == own) {
            left(consumer, &format!("namespace {own}"));
        }
        for (node, _) in consumer.virtual_nodes().iter().filter(|(_, of)| **of == provider.id.as_str()) {
            left(consumer, &format!("node {node}"));
        }
    }
}

/// The leases of leaders, of consumers and providers, and of virtual nodes are fresh. Gateways come and go.
fn leases(cluster: &Snapshot, found: &mut Vec<Violation>) {
    let is_ours = |lease: &&Value| match namespace(lease) {
        SYSTEM_NAMESPACE => name(lease) == CONTROLLER_MANAGER,
        "kube-node-lease" => label(lease, labels::MANAGED).is_some(),
        namespace => namespace.starts_with(TENANT_NAMESPACES),
    };
    for lease in cluster.of(LEASES).filter(is_ours) {
        let spec = &lease["spec"];
        let Some(renewed) = spec["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok()) else { continue };
        let lasts = SignedDuration::from_secs(spec["leaseDurationSeconds"].as_i64().unwrap_or_default());
        if renewed + lasts < cluster.now {
            add(found, Check::Leases, format!("lease {} of {} was last renewed at {renewed}", place(lease), cluster.name));
        }
    }
}

/// A provider does not offer more of its own than its nodes have.
fn promises(provider: &Snapshot, found: &mut Vec<Violation>) {
    let list = |value: &Value| serde_json::from_value::<ResourceList>(value.clone()).unwrap_or_default();
    let is_own =
        |offer: &&Value| offer["spec"]["clusterID"] == provider.id.as_str() && offer["spec"]["hops"].as_u64().unwrap_or(1) == 1;
    let offers = provider.of(OFFERS).filter(is_own);
    let offered: Vec<ResourceList> = offers.map(|offer| list(&offer["spec"]["resourceQuota"]["hard"])).collect();
    let real = provider.of(NODES).filter(|node| !is_virtual(node));
    let exists: Vec<ResourceList> = real.map(|node| list(&node["status"]["allocatable"])).collect();
    let offered: ResourceList = offered.iter().sum();
    if let Err(shortages) = offered.fits_in(&exists.iter().sum()) {
        let names: Vec<String> = shortages.iter().map(ToString::to_string).collect();
        add(found, Check::Promises, format!("{} offers more than its nodes have: {}", provider.name, names.join(", ")));
    }
}

fn label<'a>(object: &'a Value, label: &str) -> Option<&'a str> {
    object["metadata"]["labels"][label].as_str()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

fn place(object: &Value) -> String {
    format!("{}/{}", namespace(object), name(object))
}

fn is_virtual(node: &Value) -> bool {
    label(node, labels::TYPE) == Some(labels::TYPE_VIRTUAL_NODE)
}

fn is_finished(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn state(pod: &Value) -> String {
    let phase = pod["status"]["phase"].as_str().unwrap_or("without a phase");
    format!("{phase} and {}", if is_ready(pod) { "ready" } else { "not ready" })
}

/// Whether a pod shows a person why it does not run.
fn says_why(pod: &Value) -> bool {
    let status = &pod["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    status["message"].is_string()
        || conditions.any(|one| one["status"] == "False" && one["message"].as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(number: u8, name: &str, objects: &[(&str, Value)]) -> Snapshot {
        let mut by_resource: BTreeMap<String, Vec<Arc<Value>>> = BTreeMap::new();
        for (resource, object) in objects {
            by_resource.entry((*resource).to_owned()).or_default().push(Arc::new(object.clone()));
        }
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        Snapshot { id: ClusterId::of_public_key(&[number; 32]), name: name.to_owned(), now, objects: by_resource }
    }

    fn pair(local: &[(&str, Value)], remote: &[(&str, Value)]) -> Vec<(Check, String)> {
        let milan = ClusterId::of_public_key(&[2; 32]);
        let node = json!({ "metadata": { "name": "milan", "labels": { "liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": milan } } });
        let peer = json!({ "metadata": { "name": "milan" }, "spec": { "clusterID": milan } });
        let home = [&[(NODES, node), (PEERS, peer)], local].concat();
        let rome = ClusterId::of_public_key(&[1; 32]);
        let back = json!({ "metadata": { "name": "rome" }, "spec": { "clusterID": rome } });
        let there = [&[(PEERS, back)], remote].concat();
        let found = violations(&[snapshot(1, "rome", &home), snapshot(2, "milan", &there)]);
        found.into_iter().map(|violation| (violation.check, violation.what)).collect()
    }

    fn local_pod(status: &Value) -> (&'static str, Value) {
        let metadata = json!({ "namespace": "demo", "name": "web", "uid": "u" });
        (PODS, json!({ "metadata": metadata, "spec": { "nodeName": "milan" }, "status": status }))
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
            (vec![running.clone()], vec![remote_pod("web", "u"), remote_pod("web-2", "u")], Check::LocalPods),
            (vec![local_pod(&json!({ "phase": "Pending" }))], vec![remote_pod("web", "u")], Check::LocalPods),
            (vec![], vec![remote_pod("web", "u")], Check::RemotePods),
        ] {
            let found = pair(&local, &remote);
            assert_eq!(found.iter().map(|(check, _)| *check).collect::<Vec<_>>(), [expected], "{found:?}");
        }
        assert!(pair(&[local_pod(&json!({ "phase": "Pending", "message": "the offer is exceeded" }))], &[]).is_empty());
    }

    #[test]
    fn nothing_is_left_of_an_ended_peering() {
        let (rome, milan) = (ClusterId::of_public_key(&[1; 32]), ClusterId::of_public_key(&[2; 32]));
        let left = json!({ "metadata": { "name": tenant_namespace(&rome) } });
        let found = violations(&[snapshot(1, "rome", &[]), snapshot(2, "milan", &[(NAMESPACES, left.clone())])]);
        assert_eq!(found.len(), 1, "{found:?}");
        let peer = json!({ "metadata": { "name": "milan" }, "spec": { "clusterID": milan } });
        assert!(violations(&[snapshot(1, "rome", &[(PEERS, peer)]), snapshot(2, "milan", &[(NAMESPACES, left)])]).is_empty());
    }

    #[test]
    fn leases_are_fresh_and_promises_are_covered() {
        let lease = |namespace: &str, renewed: &str| {
            let spec = json!({ "renewTime": renewed, "leaseDurationSeconds": 40 });
            (LEASES, json!({ "metadata": { "namespace": namespace, "name": "l" }, "spec": spec }))
        };
        let checks = |objects: &[(&str, Value)]| -> Vec<Check> {
            violations(&[snapshot(1, "rome", objects)]).into_iter().map(|violation| violation.check).collect()
        };
        assert_eq!(checks(&[lease("liqo-tenant-x", "2026-01-01T00:00:30.000000Z")]), []);
        assert_eq!(checks(&[lease("liqo-tenant-x", "2026-01-01T00:00:10.000000Z")]), [Check::Leases]);
        assert_eq!(checks(&[lease("kube-system", "2025-01-01T00:00:00.000000Z")]), []);
        let node = (NODES, json!({ "metadata": { "name": "n" }, "status": { "allocatable": { "cpu": "4" } } }));
        let offer = |cpu: &str, hops: u8| {
            let spec = json!({ "clusterID": ClusterId::of_public_key(&[1; 32]), "hops": hops, "resourceQuota": { "hard": { "cpu": cpu } } });
            (OFFERS, json!({ "metadata": { "namespace": "liqo-tenant-x", "name": "default" }, "spec": spec }))
        };
        assert_eq!(checks(&[node.clone(), offer("3", 1), offer("1", 1)]), []);
        assert_eq!(checks(&[node.clone(), offer("3", 1), offer("2", 1)]), [Check::Promises]);
        assert_eq!(checks(&[node, offer("3", 1), offer("9", 2)]), []);
    }
}
