//! The parts that make a cluster of an API server: Kubernetes' controllers, a scheduler and
//! kubelets, as small as they can be.
//! ```text
//!   Objects (as they are now) + time --> decide --> writes, and the time of the next look
//! ```
//! All parts are pure. As in Kubernetes, objects contain what they need to know later; only
//! [`Memory`] is not an object. Harsher than Kubernetes: the address of a pod that is gone is free
//! at once. Left out:
//! - sets: adoption and release by selector, `ControllerRevisions`, `DaemonSets`
//! - Deployments: pausing, `Recreate`, the condition `Progressing`, the end of old sets,
//!   proportional scaling
//! - stateful sets: partitions, `OnDelete`, `maxUnavailable`, other first ordinals
//! - Jobs: indexed, suspended, or without `completions`; policies of failures and replacements;
//!   `CronJobs`
//! - scheduler: preemption, spreading, pod affinity, preferred anti-affinity, host ports
//! - nodes: Kubernetes' halt of evictions when most nodes are down, pressure, reboots
//! - kubelets: failing init containers, probes, ephemeral containers, changes of running pods,
//!   volumes of claims
//! - Events, except those of kubelets about pulled images; Endpoints, conditions of namespaces

mod addresses;
mod containers;
mod deployments;
mod disruption_budgets;
mod endpoint_slices;
mod fields;
mod garbage;
mod jobs;
mod kubelet;
mod namespaces;
mod nodes;
mod placement;
mod plan;
mod pods;
mod pulls;
mod quotas;
mod replica_sets;
mod rollout;
mod scheduler;
mod selectors;
mod snapshot;
mod stateful_sets;
#[cfg(test)]
mod testing;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use jiff::Timestamp;
use serde_json::Value;

use self::{
    plan::Plan,
    snapshot::{ReadObjects, Snapshot},
};

/// The objects of a cluster as they are now. Resources are plural with their group: `pods`,
/// `deployments.apps`.
pub trait Objects {
    /// In the order of namespace and name. An empty namespace means all.
    fn list(&self, resource: &str, namespace: &str) -> Vec<Arc<Value>>;
    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// All resources that have objects.
    fn resources(&self) -> Vec<String>;
    /// Changes at least when an object goes, begins to end, or gets other owners or finalizers.
    fn ownership(&self) -> u64;
    /// A number that changes at least when an object of the resource comes, changes or goes.
    fn changed(&self, resource: &str) -> u64;
}

/// A request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// The object may have a generateName instead of a name.
    Create {
        resource: String,
        namespace: String,
        object: Value,
    },
    /// Replaces the object if its resourceVersion is still the same.
    Update {
        resource: String,
        namespace: String,
        name: String,
        object: Value,
    },
    UpdateStatus {
        resource: String,
        namespace: String,
        name: String,
        object: Value,
    },
    /// `PUT namespaces/NAME/finalize`.
    Finalize { object: Value },
    Bind {
        namespace: String,
        pod: String,
        node: String,
    },
    Delete {
        resource: String,
        namespace: String,
        name: String,
        /// Precondition.
        uid: String,
        grace_seconds: Option<i64>,
        propagation: Option<&'static str>,
    },
}

/// How a cluster differs from others.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// First address and prefix length of the pods' addresses. A node with a `podCIDR` uses that
    /// instead.
    pub pod_addresses: (Ipv4Addr, u8),
    /// Nodes whose kubelet does nothing.
    pub nodes_without_power: BTreeSet<String>,
    /// Seconds without a heartbeat after which a node is unreachable.
    pub node_grace_seconds: i64,
    /// Images that no node can pull.
    pub missing_images: BTreeSet<String>,
    /// Images of which kubelets tell in events, and how many seconds their pulls take; 0 for one
    /// that is there already.
    pub image_pulls: BTreeMap<String, i64>,
    /// Whether no node can make the network of a new pod.
    pub has_no_pod_network: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pod_addresses: (Ipv4Addr::new(10, 244, 0, 0), 16),
            nodes_without_power: BTreeSet::new(),
            node_grace_seconds: 40,
            missing_images: BTreeSet::new(),
            image_pulls: BTreeMap::new(),
            has_no_pod_network: false,
        }
    }
}

/// Nodes on which pods should run and that do not exist, with the time when that was first seen.
pub type MissingNodes = BTreeMap<String, Timestamp>;

/// The controllers' knowledge from earlier decisions that no object contains.
#[derive(Debug, Default)]
pub struct Memory {
    missing_nodes: MissingNodes,
    /// The objects that were read to find the missing nodes.
    missing_nodes_of: Option<ReadObjects>,
    /// The [`Objects::ownership`] with which there was no garbage. To look for some costs more than
    /// all else.
    without_garbage: Option<u64>,
    /// The settings with which the controllers rest.
    settings: Settings,
    /// The controllers that had nothing to do, by their place in [`CONTROLLERS`].
    resting: BTreeMap<usize, Rest>,
}

/// A controller that had nothing to do: it has nothing to do as long as it would read the same, up
/// to a time.
#[derive(Debug)]
struct Rest {
    read: ReadObjects,
    until: Option<Timestamp>,
}

impl Rest {
    fn lasts(&self, objects: &dyn Objects, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until) && self.read.is_still_so(objects)
    }
}

/// In the order of their writes. The garbage collector comes after the first one.
const CONTROLLERS: [fn(&Snapshot, &mut Plan); 11] = [
    namespaces::run,
    deployments::run,
    replica_sets::run,
    stateful_sets::run,
    jobs::run,
    scheduler::run,
    kubelet::run,
    nodes::run,
    endpoint_slices::run,
    disruption_budgets::run,
    quotas::run,
];

/// Returns what the controllers do next, and when to ask again although nothing changed. `None`:
/// only after a change.
///
/// A write that fails is returned again by the next call. The caller must not call again only
/// because a write failed.
pub fn decide(
    objects: &dyn Objects,
    now: Timestamp,
    settings: &Settings,
    memory: &mut Memory,
) -> (Vec<Write>, Option<Timestamp>) {
    if memory.settings != *settings {
        memory.settings = settings.clone();
        memory.resting.clear();
    }
    let mut snapshot = Snapshot::new(objects, now, settings);
    find_missing_nodes(&snapshot, objects, memory);
    snapshot.missing_nodes.clone_from(&memory.missing_nodes);
    let mut plan = Plan::at(now);
    for (place, run) in CONTROLLERS.into_iter().enumerate() {
        if place == 1 {
            plan.append(collect_garbage(&snapshot, objects, memory));
        }
        plan.append(run_controller((place, run), &snapshot, objects, memory));
    }
    plan.finish()
}

fn find_missing_nodes(snapshot: &Snapshot, objects: &dyn Objects, memory: &mut Memory) {
    let known = memory.missing_nodes_of.as_ref();
    if known.is_some_and(|read| read.is_still_so(objects)) {
        return;
    }
    let missing = nodes::missing(snapshot, &memory.missing_nodes);
    memory.missing_nodes_of = Some(snapshot.take_read());
    if missing != memory.missing_nodes {
        memory.missing_nodes = missing;
        memory.resting.clear();
    }
}

fn collect_garbage(snapshot: &Snapshot, objects: &dyn Objects, memory: &mut Memory) -> Plan {
    let mut plan = Plan::at(snapshot.now);
    let ownership = objects.ownership();
    if memory.without_garbage != Some(ownership) {
        garbage::run(snapshot, &mut plan);
        memory.without_garbage = plan.is_empty().then_some(ownership);
    }
    plan
}

/// Runs a controller, unless it rests.
fn run_controller(
    (place, run): (usize, fn(&Snapshot, &mut Plan)),
    snapshot: &Snapshot,
    objects: &dyn Objects,
    memory: &mut Memory,
) -> Plan {
    let mut plan = Plan::at(snapshot.now);
    let rest = memory.resting.remove(&place);
    let rest = rest.filter(|rest| rest.lasts(objects, snapshot.now));
    if let Some(rest) = rest {
        plan.look_again(rest.until);
        memory.resting.insert(place, rest);
        return plan;
    }
    snapshot.take_read();
    run(snapshot, &mut plan);
    if plan.is_empty() {
        let (read, until) = (snapshot.take_read(), plan.next());
        memory.resting.insert(place, Rest { read, until });
    }
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        fields::name,
        pods::is_finished,
        testing::{Cluster, annotated, workload},
    };

    const KINDS: [(&str, &str); 2] = [("deployments.apps", "web"), ("statefulsets.apps", "db")];

    fn disturb(cluster: &mut Cluster) {
        let (resource, app) = KINDS[usize::try_from(cluster.draw(2)).unwrap()];
        let node = format!("n{}", cluster.draw(3) + 1);
        match cluster.draw(7) {
            0 => {
                let replicas = cluster.draw(6);
                cluster.change(resource, app, |object| {
                    object["spec"]["replicas"] = json!(replicas);
                });
            }
            1 => {
                let image = format!("web:{}", cluster.draw(3));
                cluster.change(resource, app, |object| {
                    object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
                });
            }
            2 => drop(cluster.settings.nodes_without_power.insert(node)),
            3 => cluster.settings.nodes_without_power.clear(),
            4 => {
                let is_cordoned = cluster.draw(2) == 0;
                cluster.change("nodes", &node, |object| {
                    object["spec"]["unschedulable"] = json!(is_cordoned);
                });
            }
            _ => {
                let pods = cluster.pods();
                let index = usize::try_from(cluster.draw(100)).unwrap() % pods.len().max(1);
                if let Some(pod) = pods.get(index) {
                    cluster.delete("pods", name(pod), None);
                }
            }
        }
    }

    /// Whether everything runs as it should, with today's templates.
    fn is_well(cluster: &Cluster) -> bool {
        let wanted = |resource: &str, app: &str| {
            cluster.object(resource, app)["spec"]["replicas"]
                .as_u64()
                .unwrap_or(0)
        };
        let (web, db) = (
            wanted("deployments.apps", "web"),
            wanted("statefulsets.apps", "db"),
        );
        let is_current = |(resource, app): &(&str, &str)| {
            let image = &cluster.object(resource, app)["spec"]["template"]["spec"]["containers"][0]
                ["image"];
            let pods = cluster.pods();
            let mut own = pods
                .iter()
                .filter(|pod| pod["metadata"]["labels"]["app"] == *app);
            own.all(|pod| pod["spec"]["containers"][0]["image"] == *image)
        };
        let expected = usize::try_from(web + db).unwrap();
        let remaining = cluster
            .pods()
            .iter()
            .filter(|pod| !is_finished(pod))
            .count();
        cluster.ready() == expected && remaining == expected && KINDS.iter().all(is_current)
    }

    #[test]
    fn whatever_happens_and_fails_the_controllers_come_to_rest_and_everything_runs_again() {
        for seed in 0..2 {
            let mut cluster = Cluster::with_nodes(&["n1", "n2", "n3"]);
            (cluster.draws, cluster.failures) = (seed, 20);
            for (resource, app) in KINDS {
                let times = annotated(&[("ready-seconds", "2"), ("stop-seconds", "3")]);
                cluster.add(
                    resource,
                    json!({ "metadata": { "name": app }, "spec": workload(app, 3, &times) }),
                );
            }
            let work = json!({ "completions": 15, "parallelism": 2, "backoffLimit": 100, "template": {
                "metadata": { "annotations": annotated(&[("run-seconds", "40")]) },
                "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "work:1" }] },
            } });
            cluster.add(
                "jobs.batch",
                json!({ "metadata": { "name": "work" }, "spec": work }),
            );
            for _ in 0..30 {
                disturb(&mut cluster);
                let seconds = i64::try_from(cluster.draw(60)).unwrap();
                cluster.pass(seconds);
            }
            cluster.settings.nodes_without_power.clear();
            for node in ["n1", "n2", "n3"] {
                cluster.change("nodes", node, |object| {
                    object["spec"]["unschedulable"] = json!(false);
                });
            }
            cluster.pass(1500);
            assert_eq!(
                cluster.object("jobs.batch", "work")["status"]["succeeded"],
                15,
                "seed {seed}"
            );
            assert!(is_well(&cluster), "seed {seed}: {:#?}", cluster.pods());
        }
    }
}
