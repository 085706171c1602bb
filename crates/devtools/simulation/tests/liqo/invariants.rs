//! What must hold in all clusters together, whatever happened before, once nothing changes any more.
//!
//! ```text
//!   objects of all clusters --> violations --> sentences, one for each
//! ```

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{ClusterId, labels, provider_namespace, tenant_namespace};
use liqo_simulation::Key;
use serde_json::Value;

/// The objects of one cluster at one moment.
pub struct Snapshot {
    pub id: ClusterId,
    pub name: String,
    /// By its clock.
    pub now: Timestamp,
    pub objects: Vec<(Key, Arc<Value>)>,
}

impl Snapshot {
    fn of<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |(key, _)| key.resource == resource).map(|(_, object)| &**object)
    }

    /// The pods that run for others here, with the uid of the pod that they run for.
    fn remote_pods(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.of("pods").filter_map(|pod| Some((label(pod, labels::SHADOW_POD)?, pod)))
    }

    /// The cluster behind each virtual node.
    fn virtual_nodes(&self) -> BTreeMap<&str, &str> {
        let nodes = self.of("nodes").filter(|node| label(node, labels::TYPE) == Some(labels::TYPE_VIRTUAL_NODE));
        nodes.filter_map(|node| Some((name(node), label(node, labels::REMOTE_CLUSTER_ID)?))).collect()
    }

    /// Whether this cluster wants to borrow from another one.
    fn borrows_from(&self, provider: &ClusterId) -> bool {
        self.of("foreignclusters.discovery.liqo.io").any(|peer| {
            peer["spec"]["clusterID"] == provider.as_str()
                && peer["spec"]["outgoingPeering"] == "Yes"
                && peer["metadata"]["deletionTimestamp"].is_null()
        })
    }
}

fn label<'a>(object: &'a Value, label: &str) -> Option<&'a str> {
    object["metadata"]["labels"][label].as_str()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn place(pod: &Value) -> String {
    format!("{}/{}", pod["metadata"]["namespace"].as_str().unwrap_or_default(), name(pod))
}

fn is_finished(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// What does not hold.
pub fn violations(clusters: &[Snapshot]) -> Vec<String> {
    let mut found = Vec::new();
    for cluster in clusters {
        local_pods(cluster, clusters, &mut found);
        remote_pods(cluster, clusters, &mut found);
        ended_peerings(cluster, clusters, &mut found);
        leases(cluster, &mut found);
    }
    found
}

/// Each pod on a virtual node that has not ended runs exactly once at its provider, or says why it does not run; and both are equal.
fn local_pods(home: &Snapshot, clusters: &[Snapshot], found: &mut Vec<String>) {
    let nodes = home.virtual_nodes();
    for pod in home.of("pods").filter(|pod| !is_finished(pod)) {
        let Some(provider) = pod["spec"]["nodeName"].as_str().and_then(|node| nodes.get(node)) else { continue };
        let Some(provider) = clusters.iter().find(|cluster| cluster.id.as_str() == *provider) else { continue };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let remote: Vec<&Value> = provider.remote_pods().filter(|(of, _)| *of == uid).map(|(_, pod)| pod).collect();
        let about = format!("pod {} of {} at {}", place(pod), home.name, provider.name);
        match remote.as_slice() {
            [] if says_why(pod) => {}
            [] => found.push(format!("{about} does not run there, and does not say why: {}", pod["status"])),
            [one] => {
                let states = |pod: &Value| (pod["status"]["phase"].clone(), is_ready(pod));
                if states(pod) != states(one) && pod["metadata"]["deletionTimestamp"].is_null() {
                    found.push(format!("{about} is {:?}, and there {:?}", states(pod), states(one)));
                }
            }
            more => found.push(format!("{about} runs {} times", more.len())),
        }
    }
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a pod shows a person why it does not run.
fn says_why(pod: &Value) -> bool {
    let status = &pod["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    status["message"].is_string()
        || conditions.any(|one| one["status"] == "False" && one["message"].as_str().is_some_and(|text| !text.is_empty()))
}

/// Each pod that runs for another cluster has a pod there.
fn remote_pods(provider: &Snapshot, clusters: &[Snapshot], found: &mut Vec<String>) {
    for (uid, pod) in provider.remote_pods() {
        let Some(consumer) = label(pod, labels::CONSUMER_ID) else {
            found.push(format!("pod {} at {} runs for nobody", place(pod), provider.name));
            continue;
        };
        let Some(home) = clusters.iter().find(|cluster| cluster.id.as_str() == consumer) else { continue };
        if !home.of("pods").any(|local| local["metadata"]["uid"] == uid) {
            found.push(format!("pod {} at {} runs for a pod of {} that does not exist", place(pod), provider.name, home.name));
        }
    }
}

/// Nothing is left of a peering that has ended.
fn ended_peerings(consumer: &Snapshot, clusters: &[Snapshot], found: &mut Vec<String>) {
    for provider in clusters.iter().filter(|provider| provider.id != consumer.id && !consumer.borrows_from(&provider.id)) {
        let mut left = |cluster: &Snapshot, what: &str| {
            found
                .push(format!("{} does not borrow from {}, but {} still has {what}", consumer.name, provider.name, cluster.name));
        };
        let (tenant, own) = (tenant_namespace(&consumer.id), provider_namespace(&provider.id));
        for namespace in provider.of("namespaces") {
            if name(namespace) == tenant || label(namespace, labels::CONSUMER_ID) == Some(consumer.id.as_str()) {
                left(provider, &format!("namespace {}", name(namespace)));
            }
        }
        if consumer.of("namespaces").any(|namespace| name(namespace) == own) {
            left(consumer, &format!("namespace {own}"));
        }
        for (node, _) in consumer.virtual_nodes().iter().filter(|(_, of)| **of == provider.id.as_str()) {
            left(consumer, &format!("node {node}"));
        }
    }
}

/// All leases are fresh.
fn leases(cluster: &Snapshot, found: &mut Vec<String>) {
    for lease in cluster.of("leases.coordination.k8s.io") {
        let spec = &lease["spec"];
        let Some(renewed) = spec["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok()) else { continue };
        let lasts = SignedDuration::from_secs(spec["leaseDurationSeconds"].as_i64().unwrap_or_default());
        if renewed + lasts < cluster.now {
            found.push(format!("lease {} of {} ran out: {spec}", place(lease), cluster.name));
        }
    }
}
