//! What people do in a story, and what they miss at its end.

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    batch::v1::Job,
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use liqo_api::{PeeringPolicy, TetheringState, departure::DepartureCause, labels};
use serde_json::{Value, json};

use crate::tethered;

use super::{GUEST, GUESTS, MANY_PODS, MILAN, NAMESPACES, REMOTE, ROME, Story, TURIN, Third};

/// Where the pods of an offloaded namespace may run.
const STRATEGIES: [&str; 3] = ["Local", "LocalAndRemote", REMOTE];
/// The percentages of its free resources that a provider offers.
const PERCENTAGES: [u8; 3] = [90, 20, 0];

impl Story {
    pub(super) async fn deploy(&mut self, namespace: &'static str) {
        if self.created >= MANY_PODS {
            return;
        }
        let (name, replicas) = (
            format!("app-{}", self.wanted.deployments.len()),
            5 + u8::try_from(self.below(8)).unwrap(),
        );
        self.world.clusters[ROME]
            .deploy(namespace, &name, replicas)
            .await;
        self.created += usize::from(replicas);
        self.tell(format!(
            "Deployment {namespace}/{name} with {replicas} pods"
        ));
        self.wanted.deployments.insert((namespace, name), replicas);
    }

    pub(super) async fn run_stateful_set(&mut self, namespace: &'static str) {
        if self.created >= MANY_PODS {
            return;
        }
        let (name, replicas) = (
            format!("db-{}", self.wanted.stateful_sets.len()),
            1 + u8::try_from(self.below(3)).unwrap(),
        );
        self.world.clusters[ROME]
            .run_stateful_set(namespace, &name, replicas)
            .await;
        self.created += usize::from(replicas);
        self.tell(format!(
            "StatefulSet {namespace}/{name} with {replicas} pods"
        ));
        self.wanted
            .stateful_sets
            .insert((namespace, name), replicas);
    }

    pub(super) async fn run_job(&mut self, namespace: &'static str) {
        if self.created >= MANY_PODS {
            return;
        }
        let (name, completions, seconds) = (
            format!("job-{}", self.wanted.jobs.len()),
            1 + u8::try_from(self.below(4)).unwrap(),
            1 + self.below(60),
        );
        self.world.clusters[ROME]
            .run_job(namespace, &name, completions, seconds, 100)
            .await;
        self.created += usize::from(completions);
        self.tell(format!(
            "Job {namespace}/{name} with {completions} pods for {seconds} s"
        ));
        self.wanted.jobs.insert((namespace, name), completions);
    }

    pub(super) async fn scale(&mut self) {
        let all: Vec<_> = self.wanted.deployments.keys().cloned().collect();
        let Some((namespace, name)) = self.any(all) else {
            return;
        };
        let replicas = u8::try_from(self.below(10)).unwrap();
        self.world.clusters[ROME]
            .scale(namespace, &name, replicas)
            .await;
        let before = self
            .wanted
            .deployments
            .insert((namespace, name.clone()), replicas)
            .unwrap_or_default();
        self.created += usize::from(replicas.saturating_sub(before));
        self.tell(format!(
            "Deployment {namespace}/{name} scaled to {replicas}"
        ));
    }

    pub(super) async fn roll_out(&mut self) {
        let all: Vec<_> = self.wanted.deployments.keys().cloned().collect();
        let Some((namespace, name)) = self.any(all) else {
            return;
        };
        let image = format!("example.com/main:{}", self.below(100));
        let containers = json!([{ "name": "main", "image": image }]);
        let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
        let api = self.world.clusters[ROME].api::<Deployment>(namespace);
        api.patch(&name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
            .unwrap();
        self.created += usize::from(self.wanted.deployments[&(namespace, name.clone())]);
        self.tell(format!("Deployment {namespace}/{name} rolls out {image}"));
    }

    pub(super) async fn delete_pod(&mut self, namespace: &'static str) {
        let api: Api<Pod> = self.world.clusters[ROME].api(namespace);
        let pods = api.list(&ListParams::default()).await.unwrap().items;
        if let Some(pod) = self.any(pods) {
            // It may have ended meanwhile.
            let _ = api.delete(&pod.name_any(), &DeleteParams::default()).await;
            self.created += 1;
            self.tell(format!("pod {namespace}/{} is deleted", pod.name_any()));
        }
    }

    /// Brings a namespace home, or sends it away again.
    pub(super) async fn change_offloading(&mut self, namespace: &'static str) {
        self.safety.wish();
        let rome = &self.world.clusters[ROME];
        if self.wanted.offloaded.remove(namespace).is_some() {
            rome.unoffload(namespace).await;
            self.tell(format!("namespace {namespace} comes home"));
        } else if rome.is_offloadable(namespace).await {
            let strategy = NAMESPACES
                .iter()
                .find(|(name, _)| *name == namespace)
                .unwrap()
                .1;
            rome.start_offloading(namespace, strategy).await;
            self.wanted.offloaded.insert(namespace, strategy);
            self.tell(format!("namespace {namespace} is offloaded again"));
        }
    }

    /// Lets the pods of a namespace run elsewhere.
    pub(super) async fn change_strategy(&mut self, namespace: &'static str) {
        self.safety.wish();
        let strategy = self.draws.one_of(&STRATEGIES);
        let Some(before) = self.wanted.offloaded.get_mut(namespace) else {
            return;
        };
        *before = strategy;
        self.world.clusters[ROME]
            .change_strategy(namespace, strategy)
            .await;
        self.tell(format!("namespace {namespace} has the strategy {strategy}"));
    }

    /// Hands rome over to milan, or takes it back.
    pub(super) async fn change_mode(&mut self) {
        self.safety.wish();
        self.wanted.is_tethered = !self.wanted.is_tethered;
        let milan = self.world.clusters[MILAN].id.clone();
        tethered::wish(
            &self.world.clusters[ROME],
            self.wanted.is_tethered.then_some(&milan),
        )
        .await;
        self.tell(if self.wanted.is_tethered {
            "rome is to be tethered to milan"
        } else {
            "rome is to be autonomous"
        });
    }

    /// Whether the mode of rome is what people want, and its pods are at home if nobody else
    /// controls it.
    async fn wrong_mode(&self, found: &mut Vec<String>) {
        let rome = &self.world.clusters[ROME];
        let state = tethered::state(rome).await;
        let wanted = if self.wanted.is_tethered {
            TetheringState::Tethered
        } else {
            TetheringState::Autonomous
        };
        if state != wanted {
            found.push(format!("rome should be {wanted:?}, and is {state:?}"));
        }
        if !self.wanted.is_tethered {
            let pods = rome
                .api::<Pod>(tethered::NAMESPACE)
                .list(&ListParams::default())
                .await
                .unwrap()
                .into_iter();
            let is_away = |pod: &Pod| {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                let owner = pod
                    .owner_references()
                    .first()
                    .map(|owner| owner.kind.as_str());
                node == Some("milan") && DepartureCause::ControlIsBack.takes_pods_of(owner)
            };
            found.extend(
                pods.filter(is_away)
                    .map(|pod| format!("pod {} does not come home", pod.name_any())),
            );
        }
    }

    /// Ends the peering, or begins another one.
    pub(super) async fn change_peering(&mut self) {
        self.safety.wish();
        let rome = &self.world.clusters[ROME];
        if self.wanted.is_peered {
            rome.unpeer("milan").await;
            self.wanted.is_peered = false;
            self.tell("the peering ends");
        } else {
            self.peer_again().await;
        }
    }

    async fn peer_again(&mut self) {
        if self.world.clusters[ROME].knows("milan").await {
            return;
        }
        self.safety.wish();
        self.peerings += 1;
        self.world.peer_as(ROME, MILAN, self.peerings).await;
        self.wanted.is_peered = true;
        self.tell("the clusters peer again");
    }

    pub(super) async fn change_policy(&mut self) {
        let percentage = self.draws.one_of(&PERCENTAGES);
        self.offer(percentage).await;
    }

    pub(super) async fn begin_or_end_broker(&mut self) {
        self.safety.wish();
        self.wanted.is_broker = !self.wanted.is_broker;
        let source = if self.wanted.is_broker {
            json!({ "offers": {} })
        } else {
            json!(null)
        };
        let policies: Api<PeeringPolicy> = self.world.clusters[MILAN].all();
        let patch = Patch::Merge(json!({ "spec": { "provide": { "source": source } } }));
        policies
            .patch("default", &PatchParams::default(), &patch)
            .await
            .unwrap();
        self.tell(if self.wanted.is_broker {
            "milan lends on what turin lends"
        } else {
            "milan lends its own nodes"
        });
    }

    /// Pods of rome on nodes of milan that its pool does not have.
    fn misplaced(&self) -> Vec<String> {
        let is_misplaced = |pod: &Value| {
            let has_ended = matches!(
                pod["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            );
            let node = pod["spec"]["nodeName"].as_str().filter(|_| !has_ended);
            node.is_some_and(|node| (node == "turin") != self.wanted.is_broker)
        };
        let objects = self.world.clusters[MILAN].server.objects().into_iter();
        let pods = objects.filter(|(key, pod)| {
            key.resource == "pods" && !pod["metadata"]["labels"][labels::SHADOW_POD].is_null()
        });
        pods.filter(|(_, pod)| is_misplaced(pod))
            .map(|(key, pod)| format!("{} is on node {}", key.name, pod["spec"]["nodeName"]))
            .collect()
    }

    async fn offer(&mut self, percentage: u8) {
        self.safety.wish();
        let policies: Api<PeeringPolicy> = self.world.clusters[MILAN].all();
        let patch = Patch::Merge(json!({ "spec": { "provide": { "percentage": percentage } } }));
        policies
            .patch("default", &PatchParams::default(), &patch)
            .await
            .unwrap();
        self.tell(format!("milan offers {percentage}%"));
    }

    /// Drains a node: of the provider, or the virtual one.
    pub(super) async fn drain(&mut self) {
        self.safety.wish();
        let nodes = [
            (MILAN, "milan-1"),
            (MILAN, "milan-2"),
            (ROME, "milan"),
            (ROME, "rome-1"),
        ];
        // A laptop's nodes belong to milan while it is tethered.
        let (cluster, node) = self
            .draws
            .one_of(if self.is_laptop { &nodes[..2] } else { &nodes });
        if self.world.clusters[cluster].drain(node).await {
            self.wanted.cordoned.insert((cluster, node.to_owned()));
            self.tell(format!(
                "node {node} of {} is drained",
                self.world.clusters[cluster].name
            ));
        }
    }

    pub(super) async fn uncordon_all(&mut self) {
        for (cluster, node) in std::mem::take(&mut self.wanted.cordoned) {
            self.world.clusters[cluster].uncordon(&node).await;
            self.tell(format!("node {node} takes pods again"));
        }
    }

    /// People want what can be had: all nodes take pods, and the provider lends. One peering in
    /// four stays ended. A provider with a cluster behind lends other nodes at last, because
    /// stories seldom do that while pods run there.
    pub(super) async fn end_wishes(&mut self) {
        self.uncordon_all().await;
        self.offer(PERCENTAGES[0]).await;
        if !self.wanted.is_peered && self.below(4) > 0 {
            let world = &self.world;
            let is_gone = async || !world.clusters[ROME].knows("milan").await;
            world
                .until("the peering has ended", super::REST_LIMIT, is_gone)
                .await;
            self.peer_again().await;
        }
        if self.wanted.is_peered && self.third == Third::IsBehind {
            self.begin_or_end_broker().await;
        }
        if !self.wanted.is_peered {
            // A provider that could not be told notices it by the silence.
            let (rome, milan) = (&self.world.clusters[ROME], &self.world.clusters[MILAN]);
            let is_gone = async || milan.kept_for(rome).is_empty();
            self.world
                .until(
                    "the provider has forgotten the consumer",
                    super::REST_LIMIT,
                    is_gone,
                )
                .await;
        }
    }

    /// What people asked for and did not get.
    pub(super) async fn unfulfilled(&self) -> Vec<String> {
        let (rome, wanted) = (&self.world.clusters[ROME], &self.wanted);
        let mut found = Vec::new();
        if wanted.is_peered && !rome.node_is_ready("milan").await {
            found.push("the virtual node is not Ready".to_owned());
        }
        if !wanted.is_peered && rome.knows("milan").await {
            found.push("the peering does not end".to_owned());
        }
        for cluster in &self.world.clusters {
            let objects = cluster.server.objects().into_iter();
            let ending =
                objects.filter(|(_, object)| !object["metadata"]["deletionTimestamp"].is_null());
            found.extend(
                ending.map(|(key, _)| format!("{} of {} does not end", key.name, cluster.name)),
            );
        }
        if self.third == Third::Lends && !rome.node_is_ready("turin").await {
            found.push("the virtual node of turin is not Ready".to_owned());
        }
        if self.third == Third::IsBehind {
            found.extend(self.misplaced());
        }
        if self.is_laptop {
            self.wrong_mode(&mut found).await;
        }
        if self.third == Third::Borrows {
            let ready = self.world.clusters[TURIN].ready_pods(GUEST).await.len();
            if ready != usize::from(GUESTS) {
                found.push(format!(
                    "turin should have {GUESTS} ready pods, and has {ready}"
                ));
            }
        }
        for ((namespace, name), replicas) in &wanted.deployments {
            let status = rome
                .api::<Deployment>(namespace)
                .get(name)
                .await
                .unwrap()
                .status
                .unwrap_or_default();
            if self.can_run(namespace)
                && status.ready_replicas.unwrap_or_default() != i32::from(*replicas)
            {
                found.push(format!(
                    "Deployment {namespace}/{name} should have {replicas} ready pods: {status:?}"
                ));
            }
        }
        for ((namespace, name), replicas) in &wanted.stateful_sets {
            let status = rome
                .api::<StatefulSet>(namespace)
                .get(name)
                .await
                .unwrap()
                .status
                .unwrap_or_default();
            if self.can_run(namespace)
                && status.ready_replicas.unwrap_or_default() != i32::from(*replicas)
            {
                found.push(format!(
                    "StatefulSet {namespace}/{name} should have {replicas} ready pods: {status:?}"
                ));
            }
        }
        for ((namespace, name), completions) in &wanted.jobs {
            let status = rome
                .api::<Job>(namespace)
                .get(name)
                .await
                .unwrap()
                .status
                .unwrap_or_default();
            if self.can_run(namespace)
                && status.succeeded.unwrap_or_default() != i32::from(*completions)
            {
                found.push(format!(
                    "Job {namespace}/{name} should have {completions} completions: {status:?}"
                ));
            }
        }
        found
    }
}
