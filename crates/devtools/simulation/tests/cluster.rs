//! A simulated cluster: its controllers, its scheduler and its kubelets, on the simulated API
//! server.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Namespace, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_simulation::{ApiServer, Settings, User};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

struct Cluster {
    server: ApiServer,
    client: Client,
    settings: watch::Sender<Settings>,
    _stop: DropGuard,
}

impl Cluster {
    /// With two nodes, whose kubelets work.
    async fn start(seed: u64) -> Self {
        let (base, started) = (
            Timestamp::from_second(1_800_000_000).unwrap(),
            Instant::now(),
        );
        let server = ApiServer::seeded(seed, move || base + started.elapsed());
        let client = server.client(User::administrator());
        let stop = CancellationToken::new();
        let settings = watch::Sender::new(Settings::default());
        tokio::spawn(liqo_simulation::run(
            server.clone(),
            settings.subscribe(),
            stop.clone(),
        ));
        let cluster = Self {
            server,
            client,
            settings,
            _stop: stop.drop_guard(),
        };
        for number in 1..=2 {
            cluster.add_node(&format!("node-{number}"), number).await;
        }
        cluster
    }

    async fn add_node(&self, name: &str, number: u8) {
        let resources = json!({ "cpu": "4", "memory": "8Gi", "pods": "110" });
        let node = object(json!({
            "metadata": { "name": name, "labels": { "simulation.test/kubelet": "true" } },
            "status": {
                "capacity": resources, "allocatable": resources,
                "addresses": [{ "type": "InternalIP", "address": format!("10.0.0.{number}") }],
            },
        }));
        self.all::<Node>()
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
    }

    fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    fn api<K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(
        &self,
    ) -> Api<K> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn running(&self) -> usize {
        let pods = self
            .api::<Pod>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let is_running = |pod: &&Pod| {
            pod.status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                == Some("Running")
        };
        pods.items.iter().filter(is_running).count()
    }

    async fn is_ready(&self, node: &str) -> bool {
        let status = self
            .all::<Node>()
            .get(node)
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        status
            .conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    /// Waits, in simulated time, until a condition holds.
    async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        for _ in 0..600 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("it did not happen: {what}");
    }

    /// The version of each object, without Leases.
    fn versions(&self) -> BTreeMap<String, Value> {
        let objects = self
            .server
            .objects()
            .into_iter()
            .filter(|(key, _)| !key.resource.starts_with("leases."));
        let place =
            |key: &liqo_simulation::Key| format!("{}/{}/{}", key.resource, key.namespace, key.name);
        objects
            .map(|(key, object)| (place(&key), object["metadata"]["resourceVersion"].clone()))
            .collect()
    }
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn deployment(name: &str, replicas: u8) -> Deployment {
    object(json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] },
            },
        },
    }))
}

async fn deploy(cluster: &Cluster, replicas: u8) {
    cluster
        .api()
        .create(&PostParams::default(), &deployment("web", replicas))
        .await
        .unwrap();
    cluster
        .eventually("all pods run", async || {
            cluster.running().await == usize::from(replicas)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_runs_on_both_nodes_and_is_scaled() {
    let cluster = Cluster::start(1).await;
    deploy(&cluster, 4).await;
    let pods = cluster
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap();
    let nodes: std::collections::BTreeSet<_> = pods
        .items
        .iter()
        .map(|pod| pod.spec.clone().unwrap().node_name)
        .collect();
    assert_eq!(nodes.len(), 2);
    let fewer = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
    cluster
        .api::<Deployment>()
        .patch("web", &PatchParams::default(), &fewer)
        .await
        .unwrap();
    cluster
        .eventually("one pod is left", async || {
            cluster
                .api::<Pod>()
                .list(&ListParams::default())
                .await
                .unwrap()
                .items
                .len()
                == 1
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_has_settled_writes_only_leases() {
    let cluster = Cluster::start(2).await;
    let budget: PodDisruptionBudget = object(json!({
        "metadata": { "name": "web" },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    }));
    cluster
        .api()
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    deploy(&cluster, 3).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (before, requests) = (cluster.versions(), cluster.server.request_count());
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(cluster.versions(), before);
    // Each of the two nodes renews its Lease every ten seconds.
    let requests = cluster.server.request_count() - requests;
    assert!(requests <= 2 * 361, "{requests} requests");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_good_is_tried_less_and_less_often() {
    let cluster = Cluster::start(6).await;
    let mut refused = deployment("web", 3);
    let template = refused
        .spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap();
    template.service_account_name = Some("nobody".to_owned());
    cluster
        .api()
        .create(&PostParams::default(), &refused)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let requests = cluster.server.request_count();
    tokio::time::sleep(Duration::from_hours(1)).await;
    let requests = cluster.server.request_count() - requests;
    assert!(
        cluster.running().await == 0 && requests < 4_000,
        "{requests} requests"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_to_its_end() {
    let cluster = Cluster::start(3).await;
    let job: Job = object(json!({
        "metadata": { "name": "once" },
        "spec": { "template": {
            "metadata": { "annotations": { "simulation.test/run-seconds": "5" } },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "example.com/main:1" }] },
        } },
    }));
    cluster
        .api()
        .create(&PostParams::default(), &job)
        .await
        .unwrap();
    cluster
        .eventually("the Job is complete", async || {
            let status = cluster
                .api::<Job>()
                .get("once")
                .await
                .unwrap()
                .status
                .unwrap_or_default();
            status
                .conditions
                .unwrap_or_default()
                .iter()
                .any(|condition| condition.type_ == "Complete")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_ends_with_everything_in_it() {
    let cluster = Cluster::start(4).await;
    let namespace: Namespace = object(json!({ "metadata": { "name": "short" } }));
    cluster
        .all()
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let inside = Api::<Deployment>::namespaced(cluster.client.clone(), "short");
    cluster
        .eventually("the service account is there", async || {
            inside
                .create(&PostParams::default(), &deployment("web", 2))
                .await
                .is_ok()
        })
        .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    cluster
        .all::<Namespace>()
        .delete("short", &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .eventually("the namespace is gone", async || {
            cluster
                .all::<Namespace>()
                .get_opt("short")
                .await
                .unwrap()
                .is_none()
        })
        .await;
    let left: Vec<_> = cluster
        .server
        .objects()
        .into_iter()
        .filter(|(key, _)| key.namespace == "short")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_loses_its_power_and_gets_it_back() {
    let cluster = Cluster::start(7).await;
    cluster
        .eventually("the node is ready", async || {
            cluster.is_ready("node-1").await
        })
        .await;
    cluster
        .settings
        .send_modify(|settings| settings.nodes_without_power.extend(["node-1".to_owned()]));
    cluster
        .eventually("the node is not ready", async || {
            !cluster.is_ready("node-1").await
        })
        .await;
    cluster
        .settings
        .send_modify(|settings| settings.nodes_without_power.clear());
    cluster
        .eventually("the node is ready again", async || {
            cluster.is_ready("node-1").await
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    let mut histories = Vec::new();
    for _ in 0..2 {
        let cluster = Cluster::start(5).await;
        deploy(&cluster, 5).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        histories.push(cluster.server.objects());
    }
    assert_eq!(histories[0], histories[1]);
}
