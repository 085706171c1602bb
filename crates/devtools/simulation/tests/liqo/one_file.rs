//! A namespace, its `NamespaceOffloading` and its pods, applied in one go: what the file says holds
//! from the first pod on.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ServiceAccount};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy, labels};
use liqo_simulation::Faults;
use serde_json::{Value, json};

use crate::{
    json::object,
    users::SOON,
    world::{Cluster, Start, World},
};

/// In which order a program creates what the file contains.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// As it stands there.
    AsWritten,
    /// Helm: custom resources come last.
    KindsOfHelm,
}

/// The file of one namespace.
#[derive(Clone, Debug)]
struct File {
    namespace: String,
    order: Order,
    strategy: PodOffloadingStrategy,
    labels: Value,
}

impl File {
    fn new(number: u32, labels: Value) -> Self {
        let order = if number.is_multiple_of(2) {
            Order::AsWritten
        } else {
            Order::KindsOfHelm
        };
        let strategy = if number % 4 < 2 {
            PodOffloadingStrategy::Remote
        } else {
            PodOffloadingStrategy::Local
        };
        Self {
            namespace: format!("one-file-{number}"),
            order,
            strategy,
            labels,
        }
    }

    /// Applies the file, again and again until all of it is there. `pause` passes before the
    /// `NamespaceOffloading` comes last.
    async fn apply(&self, cluster: &Cluster, pause: Duration) {
        let metadata = json!({ "name": self.namespace, "labels": self.labels });
        let new: Namespace = object(json!({ "metadata": metadata }));
        cluster
            .all::<Namespace>()
            .create(&PostParams::default(), &new)
            .await
            .unwrap();
        // A real API server waits for the account of a new pod.
        while cluster
            .api::<ServiceAccount>(&self.namespace)
            .get_opt("default")
            .await
            .unwrap()
            .is_none()
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if self.order == Order::AsWritten {
            self.offload(cluster).await;
        }
        let pod: Pod = object(json!({
            "metadata": { "generateName": "alone-" },
            "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] },
        }));
        let created = cluster
            .api::<Pod>(&self.namespace)
            .create(&PostParams::default(), &pod)
            .await;
        created.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        cluster.deploy(&self.namespace, "web", 1).await;
        if self.order == Order::KindsOfHelm {
            tokio::time::sleep(pause).await;
            self.offload(cluster).await;
        }
    }

    async fn offload(&self, cluster: &Cluster) {
        let offloading: NamespaceOffloading = object(json!({
            "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": NAMESPACE_OFFLOADING }, "spec": { "podOffloadingStrategy": self.strategy },
        }));
        cluster
            .api::<NamespaceOffloading>(&self.namespace)
            .create(&PostParams::default(), &offloading)
            .await
            .unwrap();
    }

    fn is_allowed(&self, node: &str) -> bool {
        (node == "milan") == (self.strategy == PodOffloadingStrategy::Remote)
    }
}

/// Where each pod that got a node got it, by namespace and name.
fn watch_nodes(cluster: &Cluster) -> Arc<Mutex<BTreeMap<(String, String), String>>> {
    let nodes: Arc<Mutex<BTreeMap<(String, String), String>>> = Arc::default();
    let seen = nodes.clone();
    cluster.server.observe(move |key, _, after| {
        let node = after
            .and_then(|pod| pod["spec"]["nodeName"].as_str())
            .unwrap_or_default();
        if key.resource == "pods" && !node.is_empty() {
            seen.lock()
                .unwrap()
                .insert((key.namespace.clone(), key.name.clone()), node.to_owned());
        }
    });
    nodes
}

async fn pods(cluster: &Cluster, namespace: &str) -> Vec<Pod> {
    let pods = cluster
        .api::<Pod>(namespace)
        .list(&ListParams::default())
        .await
        .unwrap();
    pods.items
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .collect()
}

fn node(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn in_a_namespace_with_the_label_no_pod_ever_gets_a_node_that_its_strategy_forbids() {
    const TRIES: u32 = 100;
    let mut world = World::peered(Start::default()).await;
    let nodes = watch_nodes(&world.clusters[0]);
    let files: Vec<File> = (0..TRIES)
        .map(|number| File::new(number, json!({ labels::SCHEDULING_ENABLED: "true" })))
        .collect();
    for (number, file) in (0..).zip(&files) {
        // Nobody serves the webhook for a while.
        if number % 25 == 20 {
            world.clusters[0].manager(1).kill();
        }
        if number % 25 == 22 {
            world.clusters[0].restart_manager(1);
        }
        let is_down = world.clusters[0].manager(1).has_ended();
        let apply = file.apply(&world.clusters[0], Duration::from_secs(number % 3));
        if is_down {
            // Its pods would wait until the manager is back.
            let _ = tokio::time::timeout(Duration::from_secs(3), apply).await;
        } else {
            apply.await;
        }
    }
    let rome = &world.clusters[0];
    let complete: Vec<&File> = (0..)
        .zip(&files)
        .filter(|(number, _)| !matches!(number % 25, 20 | 21))
        .map(|(_, file)| file)
        .collect();
    let all_placed = async || {
        for file in &complete {
            let pods = pods(rome, &file.namespace).await;
            if pods.len() != 2 || pods.iter().any(|pod| node(pod).is_empty()) {
                return false;
            }
        }
        true
    };
    world
        .until("all pods have a node", SOON * 3, all_placed)
        .await;
    let nodes = nodes.lock().unwrap();
    for file in &files {
        for ((_, pod), node) in nodes
            .iter()
            .filter(|((namespace, _), _)| *namespace == file.namespace)
        {
            assert!(file.is_allowed(node), "{pod} got node {node}: {file:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_label_pods_of_a_controller_move_and_others_say_why_they_do_not() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    let files: Vec<File> = (0..20)
        .map(|number| File::new(number * 4, json!({})))
        .collect();
    // The manager says too late which namespaces the webhook is to see.
    let link = &rome.manager(1).link;
    link.set_faults(Faults {
        delay: Duration::from_millis(500),
        ..Faults::default()
    });
    for file in &files {
        file.apply(rome, Duration::ZERO).await;
    }
    let is_here = |pod: &Pod| node(pod).starts_with("rome");
    world
        .until("pods run here", SOON, async || {
            pods(rome, &files[0].namespace).await.iter().all(is_here)
        })
        .await;
    link.set_faults(Faults::default());
    let message = async |pod: &Pod| {
        let about =
            ListParams::default().fields(&format!("involvedObject.name={}", pod.name_any()));
        let events = rome
            .api::<Event>(&pod.namespace().unwrap())
            .list(&about)
            .await
            .unwrap();
        events
            .into_iter()
            .any(|event| event.reason.as_deref() == Some("NotPlaced"))
    };
    let is_settled = async |file: &File| {
        let mut is_settled = true;
        for pod in pods(rome, &file.namespace).await {
            let is_alone = pod.owner_references().is_empty();
            is_settled &= node(&pod) == "milan" || (is_alone && message(&pod).await);
        }
        is_settled
    };
    let all_settled = async || {
        for file in &files {
            if pods(rome, &file.namespace).await.len() != 2 || !is_settled(file).await {
                return false;
            }
        }
        true
    };
    world
        .until("what can be at milan is there", SOON, all_settled)
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_were_here_before_the_strategy_became_narrower_stay_here() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    // Milan takes nothing at first.
    assert!(rome.drain("milan").await);
    world.offload(0, "demo", "LocalAndRemote").await;
    rome.deploy("demo", "before", 2).await;
    world
        .until("two pods run here", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
    rome.uncordon("milan").await;
    tokio::time::sleep(SOON).await;
    let before = pods(rome, "demo").await;
    let offloadings: Api<NamespaceOffloading> = rome.api("demo");
    let remote = Patch::Merge(json!({ "spec": { "podOffloadingStrategy": "Remote" } }));
    offloadings
        .patch(NAMESPACE_OFFLOADING, &PatchParams::default(), &remote)
        .await
        .unwrap();
    rome.deploy("demo", "after", 2).await;
    let after = async || {
        pods(rome, "demo")
            .await
            .into_iter()
            .filter(|pod| pod.name_any().starts_with("after"))
    };
    world
        .until("new pods run at milan", SOON, async || {
            let after: Vec<Pod> = after().await.collect();
            after.len() == 2 && after.iter().all(|pod| node(pod) == "milan")
        })
        .await;
    tokio::time::sleep(SOON).await;
    let uids = |pods: Vec<Pod>| -> Vec<_> {
        pods.into_iter()
            .filter(|pod| pod.name_any().starts_with("before"))
            .map(|pod| (pod.uid(), node(&pod).to_owned()))
            .collect()
    };
    assert_eq!(uids(pods(rome, "demo").await), uids(before));
}
