//! What people do: they peer, offload namespaces, and run things in them.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    batch::v1::Job,
    core::v1::{Namespace, Node, Pod, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{ForeignCluster, NAMESPACE_OFFLOADING, NamespaceOffloading};
use liqoctl::{
    manifests,
    token::{self, TokenUse},
};
use serde_json::{Value, json};

use crate::{
    installed::AUTH_PORT,
    json::object,
    world::{Cluster, Start, World},
};

/// How long people wait for what takes seconds.
pub const SOON: Duration = Duration::from_mins(2);

impl World {
    /// Rome, which borrows from milan.
    pub async fn peered(start: Start) -> Self {
        let world = Self::start(&["rome", "milan"], start).await;
        world.peer_and_wait(0, 1).await;
        world
    }

    /// Lets the first cluster borrow from another one, and waits until it can.
    pub async fn peer_and_wait(&self, consumer: usize, provider: usize) {
        self.peer(consumer, provider).await;
        let (consumer, provider) = (&self.clusters[consumer], &self.clusters[provider]);
        self.until("the virtual node is Ready", SOON, async || {
            consumer.node_is_ready(&provider.name).await
        })
        .await;
    }

    /// Lets the first cluster borrow from another one.
    pub async fn peer(&self, consumer: usize, provider: usize) {
        self.peer_as(consumer, provider, 0).await;
    }

    /// As [`World::peer`], with a token and Secrets of this number: each token is good for one use.
    pub async fn peer_as(&self, consumer: usize, provider: usize, number: usize) {
        let (consumer, provider) = (&self.clusters[consumer], &self.clusters[provider]);
        let text = format!("{number:t>52}");
        let expires = provider
            .server
            .now()
            .checked_add(SignedDuration::from_hours(1))
            .unwrap();
        let offered = token::secret_with_token(
            &format!("for-{}-{number}", consumer.name),
            &text,
            Some(TokenUse::OneTime),
            Some(expires),
        );
        let taken =
            token::secret_with_token(&format!("peer-{}-{number}", provider.id), &text, None, None);
        for (cluster, secret) in [(provider, &offered), (consumer, &taken)] {
            let secrets: Api<Secret> = Api::namespaced(cluster.user.clone(), manifests::NAMESPACE);
            secrets
                .create(&PostParams::default(), secret)
                .await
                .unwrap();
        }
        let spec = json!({
            "clusterID": provider.id, "authURL": format!("https://{}", provider.service(AUTH_PORT)),
            "outgoingPeering": "Yes", "tokenSecretName": taken.name_any(),
        });
        let known = Api::<ForeignCluster>::all(consumer.user.clone());
        // A cluster knows its consumers, too.
        if known.get_opt(&provider.name).await.unwrap().is_some() {
            let change = Patch::Merge(json!({ "spec": spec }));
            known
                .patch(&provider.name, &PatchParams::default(), &change)
                .await
                .unwrap();
            return;
        }
        let peer = json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": provider.name }, "spec": spec,
        });
        known
            .create(&PostParams::default(), &object(peer))
            .await
            .unwrap();
    }

    /// Creates a namespace that runs at the peers of a cluster, and waits until new pods are sent
    /// there.
    pub async fn offload(&self, consumer: usize, namespace: &str, strategy: &str) {
        let cluster = &self.clusters[consumer];
        let new: Namespace = object(json!({ "metadata": { "name": namespace } }));
        cluster
            .all::<Namespace>()
            .create(&PostParams::default(), &new)
            .await
            .unwrap();
        cluster.start_offloading(namespace, strategy).await;
        self.until("the namespace is offloaded", SOON, async || {
            cluster.is_offloaded(namespace).await
        })
        .await;
    }
}

impl Cluster {
    pub async fn node_is_ready(&self, name: &str) -> bool {
        let node = self.all::<Node>().get_opt(name).await.unwrap();
        let conditions = node
            .and_then(|node| node.status?.conditions)
            .unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    /// Creates a Deployment whose pods run for ever.
    pub async fn deploy(&self, namespace: &str, name: &str, replicas: u8) {
        let resources = json!({ "requests": { "cpu": "100m", "memory": "64Mi" } });
        let deployment: Deployment = object(json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{ "name": "main", "image": "example.com/main:1", "resources": resources }] },
                },
            },
        }));
        self.api::<Deployment>(namespace)
            .create(&PostParams::default(), &deployment)
            .await
            .unwrap();
    }

    pub async fn run_stateful_set(&self, namespace: &str, name: &str, replicas: u8) {
        let set: StatefulSet = object(json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas, "serviceName": name, "selector": { "matchLabels": { "app": name } },
                "template": template(name, &json!([]), "Always"),
            },
        }));
        self.api::<StatefulSet>(namespace)
            .create(&PostParams::default(), &set)
            .await
            .unwrap();
    }

    /// Creates a Job whose pods, all at once, run for this time.
    pub async fn run_job(
        &self,
        namespace: &str,
        name: &str,
        completions: u8,
        seconds: u64,
        backoff_limit: u8,
    ) {
        let environment =
            json!([{ "name": "SIMULATION_RUN_SECONDS", "value": seconds.to_string() }]);
        let job: Job = object(json!({
            "metadata": { "name": name },
            "spec": {
                "completions": completions, "parallelism": completions, "backoffLimit": backoff_limit,
                "template": template(name, &environment, "Never"),
            },
        }));
        self.api::<Job>(namespace)
            .create(&PostParams::default(), &job)
            .await
            .unwrap();
    }

    pub async fn scale(&self, namespace: &str, name: &str, replicas: u8) {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.api::<Deployment>(namespace)
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Ends the peering with a provider.
    pub async fn unpeer(&self, provider: &str) {
        self.all::<ForeignCluster>()
            .delete(provider, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Whether there is still something of a peering with this cluster.
    pub async fn knows(&self, peer: &str) -> bool {
        self.all::<ForeignCluster>()
            .get_opt(peer)
            .await
            .unwrap()
            .is_some()
    }

    pub async fn start_offloading(&self, namespace: &str, strategy: &str) {
        let offloading: NamespaceOffloading = object(json!({
            "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": NAMESPACE_OFFLOADING },
            "spec": { "podOffloadingStrategy": strategy },
        }));
        self.api::<NamespaceOffloading>(namespace)
            .create(&PostParams::default(), &offloading)
            .await
            .unwrap();
    }

    /// Gives the pods of an offloaded namespace another strategy.
    pub async fn change_strategy(&self, namespace: &str, strategy: &str) {
        let change = Patch::Merge(json!({ "spec": { "podOffloadingStrategy": strategy } }));
        let offloadings = self.api::<NamespaceOffloading>(namespace);
        offloadings
            .patch(NAMESPACE_OFFLOADING, &PatchParams::default(), &change)
            .await
            .unwrap();
    }

    /// Whether a namespace is offloaded, and new pods know it.
    pub async fn is_offloaded(&self, namespace: &str) -> bool {
        let offloading = self
            .api::<NamespaceOffloading>(namespace)
            .get_opt(NAMESPACE_OFFLOADING)
            .await
            .unwrap();
        let conditions = offloading
            .and_then(|offloading| offloading.status)
            .unwrap_or_default()
            .conditions;
        conditions
            .iter()
            .any(|one| one.type_ == "Ready" && one.status == "True")
    }

    /// Brings the pods of a namespace home, without waiting for them.
    pub async fn unoffload(&self, namespace: &str) {
        let offloadings = self.api::<NamespaceOffloading>(namespace);
        offloadings
            .delete(NAMESPACE_OFFLOADING, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Whether nothing is left of an earlier offloading of a namespace.
    pub async fn is_offloadable(&self, namespace: &str) -> bool {
        self.api::<NamespaceOffloading>(namespace)
            .get_opt(NAMESPACE_OFFLOADING)
            .await
            .unwrap()
            .is_none()
    }

    /// Cordons a node and evicts its pods. Returns false if there is no such node.
    pub async fn drain(&self, node: &str) -> bool {
        if !self.set_cordoned(node, true).await {
            return false;
        }
        let pods = self
            .all::<Pod>()
            .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
            .await
            .unwrap();
        for pod in pods {
            // It may have ended meanwhile.
            let namespace = pod.namespace().unwrap_or_default();
            let _ = self
                .api::<Pod>(&namespace)
                .evict(&pod.name_any(), &EvictParams::default())
                .await;
        }
        true
    }

    pub async fn cordon(&self, node: &str) {
        self.set_cordoned(node, true).await;
    }

    pub async fn uncordon(&self, node: &str) {
        self.set_cordoned(node, false).await;
    }

    async fn set_cordoned(&self, node: &str, is_cordoned: bool) -> bool {
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": is_cordoned } }));
        self.all::<Node>()
            .patch(node, &PatchParams::default(), &patch)
            .await
            .is_ok()
    }

    /// The pods of a namespace that are ready.
    pub async fn ready_pods(&self, namespace: &str) -> Vec<Pod> {
        let pods = self
            .api::<Pod>(namespace)
            .list(&ListParams::default())
            .await
            .unwrap();
        let is_ready = |pod: &Pod| {
            let conditions = pod
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        pods.items.into_iter().filter(is_ready).collect()
    }

    /// All pods with this value of the label `app`, in any namespace.
    pub fn pods_of(&self, app: &str) -> Vec<Value> {
        let objects = self.server.objects().into_iter();
        let pods = objects.filter(|(key, object)| {
            key.resource == "pods" && object["metadata"]["labels"]["app"] == app
        });
        pods.map(|(_, pod)| (*pod).clone()).collect()
    }

    /// What exists for a peer.
    pub fn kept_for(&self, peer: &Self) -> Vec<String> {
        let objects = self.server.objects().into_iter().map(|(key, _)| key);
        let of_peer = objects.filter(|key| {
            [&key.namespace, &key.name]
                .into_iter()
                .any(|name| name.contains(peer.id.as_str()))
                || key.name == peer.name
        });
        of_peer
            .map(|key| format!("{} {}/{}", key.resource, key.namespace, key.name))
            .collect()
    }
}

pub fn template(app: &str, environment: &Value, restart_policy: &str) -> Value {
    let resources = json!({ "requests": { "cpu": "100m", "memory": "64Mi" } });
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "restartPolicy": restart_policy, "containers": [{
            "name": "main", "image": "example.com/main:1", "env": environment, "resources": resources,
        }] },
    })
}
