//! What people do: they peer, offload namespaces, and run things in them.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Node, Pod, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{ForeignCluster, NAMESPACE_OFFLOADING, NamespaceOffloading};
use liqoctl::{
    manifests,
    token::{self, Use},
};
use serde_json::{Value, json};

use crate::world::{AUTH_PORT, Cluster, Start, World, object};

/// How long people wait for what takes seconds.
pub const SOON: Duration = Duration::from_secs(120);

impl World {
    /// Rome, which borrows from milan.
    pub async fn peered(start: Start) -> Self {
        let world = Self::start(&["rome", "milan"], start).await;
        world.peer(0, 1).await;
        world.until("the virtual node is Ready", SOON, async || world.clusters[0].node_is_ready("milan").await).await;
        world
    }

    /// Lets the first cluster borrow from another one.
    pub async fn peer(&self, consumer: usize, provider: usize) {
        let (consumer, provider) = (&self.clusters[consumer], &self.clusters[provider]);
        let text = "t".repeat(52);
        let expires = provider.server.now().checked_add(SignedDuration::from_hours(1)).unwrap();
        let offered = token::secret(&format!("for-{}", consumer.name), &text, Some(Use::OneTime), Some(expires));
        let taken = token::secret(&format!("peer-{}", provider.id), &text, None, None);
        for (cluster, secret) in [(provider, &offered), (consumer, &taken)] {
            let secrets: Api<Secret> = Api::namespaced(cluster.user.clone(), manifests::NAMESPACE);
            secrets.create(&PostParams::default(), secret).await.unwrap();
        }
        let peer: ForeignCluster = object(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": provider.name },
            "spec": {
                "clusterID": provider.id, "authURL": format!("https://{}", provider.service(AUTH_PORT)),
                "outgoingPeering": "Yes", "tokenSecretName": taken.name_any(),
            },
        }));
        Api::<ForeignCluster>::all(consumer.user.clone()).create(&PostParams::default(), &peer).await.unwrap();
    }

    /// Lets the namespaces of these names run at the peers of a cluster, and waits until new pods are sent there.
    pub async fn offload(&self, consumer: usize, namespace: &str, strategy: &str) {
        let cluster = &self.clusters[consumer];
        let new: Namespace = object(json!({ "metadata": { "name": namespace } }));
        cluster.all::<Namespace>().create(&PostParams::default(), &new).await.unwrap();
        let offloading: NamespaceOffloading = object(json!({
            "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": NAMESPACE_OFFLOADING },
            "spec": { "podOffloadingStrategy": strategy },
        }));
        let offloadings = cluster.api::<NamespaceOffloading>(namespace);
        offloadings.create(&PostParams::default(), &offloading).await.unwrap();
        self.until("the namespace is offloaded", SOON, async || {
            let status = offloadings.get(NAMESPACE_OFFLOADING).await.unwrap().status.unwrap_or_default();
            status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
        })
        .await;
    }
}

impl Cluster {
    pub async fn node_is_ready(&self, name: &str) -> bool {
        let node = self.all::<Node>().get_opt(name).await.unwrap();
        let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
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
        self.api::<Deployment>(namespace).create(&PostParams::default(), &deployment).await.unwrap();
    }

    pub async fn scale(&self, namespace: &str, name: &str, replicas: u8) {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.api::<Deployment>(namespace).patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Ends the peering with a provider.
    pub async fn unpeer(&self, provider: &str) {
        self.all::<ForeignCluster>().delete(provider, &DeleteParams::default()).await.unwrap();
    }

    /// The pods of a namespace that are ready.
    pub async fn ready_pods(&self, namespace: &str) -> Vec<Pod> {
        let pods = self.api::<Pod>(namespace).list(&ListParams::default()).await.unwrap();
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        pods.items.into_iter().filter(is_ready).collect()
    }

    /// All pods with this value of the label `app`, in any namespace.
    pub fn pods_of(&self, app: &str) -> Vec<Value> {
        let objects = self.server.objects().into_iter();
        let pods = objects.filter(|(key, object)| key.resource == "pods" && object["metadata"]["labels"]["app"] == app);
        pods.map(|(_, pod)| (*pod).clone()).collect()
    }

    /// What exists for a peer.
    pub fn kept_for(&self, peer: &Self) -> Vec<String> {
        let objects = self.server.objects().into_iter().map(|(key, _)| key);
        let of_peer = objects.filter(|key| {
            [&key.namespace, &key.name].into_iter().any(|name| name.contains(peer.id.as_str())) || key.name == peer.name
        });
        of_peer.map(|key| format!("{} {}/{}", key.resource, key.namespace, key.name)).collect()
    }
}
