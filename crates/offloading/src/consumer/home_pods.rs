//! Home pods: sent to the provider, their status brought back, removed when the remote pod is gone.
//!
//! This is the hot path. Each pod is one key in its provider's queue, so its writes never overlap, and changes that arrive
//! while one is under way become one further look. Whole objects are created, and merge patches sent, without asking for
//! more than the metadata of the answer.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api, Client, Resource as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{PartialObjectMeta, Request},
};
use liqo_api::{NAMESPACE_OFFLOADING, PodOffloadingStrategy, ShadowPod, VirtualNode, annotations, finalizers, labels, pods};
use liqo_kit::{
    Key, Next,
    peers::{PeerError, call},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Consumer, api_server, locked, namespace_decide,
    namespaces::Work,
    network_policies,
    peer::{Peer, Remote},
    pod_decide::{self, Action, Facts, Namespace, SENDING, decide},
    reduced::{HomePod, Shadow, change},
    reflected::Reference,
    reflection, selector,
};
use crate::decide::{
    OFFER_RECLAIMED,
    home_status::{
        Link, RESIZE_INFEASIBLE, evicted_patch, home_status_patch, is_told_of_resize, lost_patch, not_ready_patch, pod_addresses,
        refused_patch,
    },
    node::described_by,
    travel::{
        Refusal,
        api_server::{Start, Wish, bound_at, give, secret, way_to_start},
        outgoing,
    },
};

/// Pods that are handled at the same time, for each provider.
const CONCURRENCY: usize = 24;

/// At most one refused pod of an owner is replaced in this time.
const BETWEEN_REPLACEMENTS: Duration = Duration::from_secs(60);

/// A pod that waits for a time is looked at now and then, in case the configuration changes meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// When a pod is looked at again that was gone, or taken for another one, just before it was sent.
const UNMARKED_RETRY: Duration = Duration::from_secs(5);

/// When a pod is looked at again whose provider does not have the policies of its namespace yet.
const NO_POLICIES_RETRY: Duration = Duration::from_secs(2);

/// For how long it waits before it says so, since it was bound to its node.
const NO_POLICIES_TOLD: Duration = Duration::from_secs(30);

/// Why it waits, and what to do.
const NO_POLICIES: &str = "the NetworkPolicies of the pod's namespace are not recorded at the provider yet, and without them the pod would be \
     open to more than they say; it is sent when they are. The log of the manager here says what fails";

/// When a pod is looked at again that waits for a way to our API server.
const NO_API_SERVER_RETRY: Duration = Duration::from_secs(10);

/// Why there is none, and what to do.
const NO_API_SERVER: &str = "the provider has no way to this cluster's API server. See `liqoctl status` for the network between the two, and     network.apiServer of the PeeringPolicy here; or annotate the pod with liqo.io/api-server: none";

/// A step for a home pod failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The shadow pod could not be written or read.
    #[error("{step} the shadow pod of {pod} at the provider: {source}")]
    Shadow {
        /// What was tried.
        step: &'static str,
        /// The home pod.
        pod: Key,
        /// What the peer said.
        source: PeerError,
    },
    /// The home pod could not be written or read.
    #[error("{step} pod {pod}: {source}")]
    Home {
        /// What was tried.
        step: &'static str,
        /// The home pod.
        pod: Key,
        /// What the API server said.
        source: kube::Error,
    },
}

/// Starts the worker for one provider.
pub fn start(consumer: Arc<Consumer>, peer: &Arc<Peer>, stop: CancellationToken) {
    let (queue, peer) = (peer.pods.clone(), Arc::downgrade(peer));
    tokio::spawn(async move {
        queue
            .run("home pods", CONCURRENCY, stop, move |uid| {
                let (consumer, peer) = (consumer.clone(), peer.upgrade());
                async move {
                    match peer {
                        Some(peer) => reconcile(&consumer, &peer, &uid).await,
                        None => Ok(Next::OnChange),
                    }
                }
            })
            .await;
    });
}

async fn reconcile(consumer: &Arc<Consumer>, peer: &Arc<Peer>, uid: &str) -> Result<Next, Error> {
    let (home, remote, state) = (peer.home_pod(uid), peer.remote(), peer.state());
    let shadow = remote.as_ref().and_then(|remote| remote.shadow(uid));
    if home.is_none() {
        peer.forget(uid);
        if shadow.is_none() {
            // The last pod of a namespace that is no longer wanted there: its mapping may go.
            consumer.namespace_queue.add_after(Work::Map(peer.id.clone()), Duration::from_secs(1));
        }
    }
    let node = home.as_ref().and_then(|pod| consumer.virtual_nodes.get(&pod.virtual_node));
    let namespace = match (&home, &remote, &node) {
        (Some(pod), Some(remote), Some(node)) if shadow.is_none() => stands(consumer, remote, node, &pod.key.namespace),
        _ => Namespace::Waiting,
    };
    let tenancy = remote.as_ref().and_then(|remote| remote.tenancy());
    let facts = Facts {
        home: home.as_deref(),
        shadow: shadow.as_deref(),
        peer: state,
        namespace,
        tenancy: tenancy.as_deref(),
        sent: peer.sent(uid),
        refusal_timeout: Duration::from_secs(consumer.context.config().spec.offloading.refusal_timeout_seconds.into()),
        now: Timestamp::now(),
    };
    let decision = decide(&facts);
    let mut next = decision.again.map_or(Next::OnChange, |again| Next::After(again.min(LONGEST_WAIT)));
    for action in decision.actions {
        let look_again = match (&home, &remote) {
            (Some(pod), remote) => {
                let handling = Handling { consumer, peer, remote: remote.as_deref(), node: node.as_deref(), pod };
                handling.act(action, shadow.as_deref()).await?
            }
            (None, Some(remote)) => remove_orphan(consumer, remote, uid).await?,
            (None, None) => None,
        };
        if let Some(delay) = look_again {
            next = Next::After(delay);
        }
    }
    Ok(next)
}

/// Where a namespace stands at the provider of this virtual node.
fn stands(consumer: &Consumer, remote: &Remote, node: &VirtualNode, namespace: &str) -> Namespace {
    if !consumer.offloadings.is_synced() || !consumer.nodes.is_synced() {
        return Namespace::Waiting;
    }
    if node.metadata.deletion_timestamp.is_some() {
        let message = "the peering ends, and the virtual node with it; keep the pod off it".to_owned();
        return Namespace::Refused { reason: "NodeLeaving", message };
    }
    let offloading = consumer.offloadings.get(&Key::new(namespace, NAMESPACE_OFFLOADING));
    let Some(offloading) = offloading.filter(|offloading| offloading.metadata.deletion_timestamp.is_none()) else {
        let message = format!(
            "namespace {namespace} is not offloaded; run `liqoctl offload namespace {namespace}`, or keep the pod off virtual nodes"
        );
        return Namespace::Refused { reason: "NamespaceNotOffloaded", message };
    };
    if offloading.spec.pod_offloading_strategy == PodOffloadingStrategy::Local {
        let message = format!(
            "the pods of namespace {namespace} stay at home, by the podOffloadingStrategy Local of its NamespaceOffloading"
        );
        return Namespace::Refused { reason: "OffloadingIsLocal", message };
    }
    let Some(labels) = consumer.node_labels(node) else { return Namespace::Waiting };
    let name = node.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
    if !selector::matches(offloading.spec.cluster_selector.as_ref(), name, &labels) {
        let message = format!("the clusterSelector of the NamespaceOffloading of {namespace} does not select node {name}");
        return Namespace::Refused { reason: "ClusterNotSelected", message };
    }
    namespace_decide::stands(remote.map().as_deref(), namespace)
}

/// Removes a shadow pod whose home pod is gone, once the API server itself says so: what is not in the cache may merely not
/// be there yet.
async fn remove_orphan(consumer: &Consumer, remote: &Remote, uid: &str) -> Result<Option<Duration>, Error> {
    let Some(shadow) = remote.shadow(uid) else { return Ok(None) };
    let pod = shadow.home.clone();
    if !pod.name.is_empty() {
        let api: Api<Pod> = Api::namespaced(consumer.context.client.clone(), &pod.namespace);
        let live = api.get_metadata_opt(&pod.name).await;
        let live = live.map_err(|source| Error::Home { step: "looking for", pod: pod.clone(), source })?;
        if live.is_some_and(|live| live.metadata.uid.as_deref() == Some(uid)) {
            return Ok(Some(Duration::from_secs(5)));
        }
    }
    delete_shadow(remote, uid, &pod).await?;
    Ok(None)
}

async fn delete_shadow(remote: &Remote, uid: &str, pod: &Key) -> Result<(), Error> {
    let api: Api<ShadowPod> = Api::namespaced(remote.connection.client.clone(), &remote.connection.tenant_namespace);
    match call(async { api.delete(uid, &DeleteParams::default()).await.map(drop) }).await {
        Err(PeerError::Api(kube::Error::Api(status))) if status.is_not_found() => Ok(()),
        result => result.map_err(|source| Error::Shadow { step: "deleting", pod: pod.clone(), source }),
    }
}

/// One look at one home pod.
struct Handling<'a> {
    consumer: &'a Arc<Consumer>,
    peer: &'a Arc<Peer>,
    remote: Option<&'a Remote>,
    node: Option<&'a VirtualNode>,
    pod: &'a HomePod,
}

impl Handling<'_> {
    /// Does it. Returns when to look again, if that is not when something changes.
    async fn act(&self, action: Action, shadow: Option<&Shadow>) -> Result<Option<Duration>, Error> {
        let now = Timestamp::now();
        match action {
            Action::CreateShadow { mark } => return self.create(mark).await,
            Action::UpdateShadow { whole } => return self.update(whole, shadow).await,
            Action::PatchHomeStatus => {
                if let Some(shadow) = shadow {
                    self.show(shadow, now).await?;
                }
            }
            Action::NotReady => {
                self.patch_status(not_ready_patch(&self.pod.json(), now)).await?;
            }
            Action::AskDeletion(grace) => {
                let patch = json!({ "spec": { "deletion": { "gracePeriodSeconds": grace } } });
                self.patch_shadow("asking for the deletion of", &Patch::Merge(&patch)).await?;
            }
            Action::RemoveHomePod => {
                let immediately = DeleteParams::default().grace_period(0);
                delete_home_pod(&self.consumer.context.client, self.pod, immediately).await?;
            }
            // Only decided on where there is no home pod.
            Action::DeleteShadow => {}
            Action::Refuse { reason, message } => self.refuse(&reason, &message, now).await?,
            Action::Replace => return self.replace().await,
            Action::Evicted(message) => self.evicted(&message, now).await?,
            Action::Lost(message) => return self.lost(&message, now).await,
        }
        Ok(None)
    }

    /// Brings the remote pod's status home. What does not work as it would here is shown, too, with one event for each.
    async fn show(&self, shadow: &Shadow, now: Timestamp) -> Result<(), Error> {
        let Some(status) = shadow.remote_status() else { return Ok(()) };
        // Not to take an address away that the pod has rightly: everything is looked at when that is known.
        if !self.consumer.networks.is_synced() {
            return Ok(());
        }
        let network = self.consumer.networks.of(&self.peer.id);
        let network = network.filter(|network| network.works);
        let addresses = network.map(|network| pod_addresses(&status, &network.maps.imported)).unwrap_or_default();
        let missing = self.remote.and_then(|remote| reflection::missing(remote, self.pod));
        let missing = missing.map(|message| (pods::NOT_REFLECTED, message));
        let amiss = missing.or(addresses.refused.map(|message| (pods::ADDRESS_REFUSED, message)));
        let resized = self.pod.resources != shadow.resources;
        let link = Link {
            pod_ips: &addresses.here,
            host_ip: self.consumer.context.pod_ip.parse().ok(),
            peer_answers: true,
            amiss: amiss.as_ref().map(|(reason, message)| (*reason, message.as_str())),
            resized,
            now,
        };
        let home = self.pod.json();
        self.patch_status(home_status_patch(&home, &status, &link)).await?;
        if let Some((reason, message)) = amiss {
            let told_before = self.pod.told.as_ref().is_some_and(|told| told.reason == reason);
            if !told_before && self.peer.may_warn(&self.pod.uid) {
                tracing::warn!(peer = %self.peer.id, pod = %self.pod.key, reason, message, "not all of the pod is as it should be");
                self.warn(reason, &message).await;
            }
        }
        if resized && !is_told_of_resize(&home) {
            self.warn("ResizeInfeasible", RESIZE_INFEASIBLE).await;
        }
        Ok(())
    }

    async fn create(&self, mark: bool) -> Result<Option<Duration>, Error> {
        let (Some(remote), Some(node)) = (self.remote, self.node) else { return Ok(None) };
        if let Some(rest) = self.peer.resting(&self.pod.uid) {
            return Ok(Some(rest));
        }
        let mut carried = match self.carried(node) {
            Ok(carried) => carried,
            Err(refusal) => {
                self.refuse(refusal.reason, &refusal.message, Timestamp::now()).await?;
                return Ok(None);
            }
        };
        // Else the provider would open the pod as if there were none.
        let policies = network_policies::before_pods(self.consumer, &self.pod.key.namespace);
        let stand = match &policies {
            Some(policies) => reflection::ensure(self.consumer, self.peer, remote, policies).await,
            None => false,
        };
        if !stand {
            tracing::debug!(peer = %self.peer.id, pod = %self.pod.key, "pod waits for the NetworkPolicies of its namespace");
            let now = Timestamp::now();
            if self.bound_for(now).is_some_and(|waited| waited >= NO_POLICIES_TOLD) {
                self.refuse(pods::NOT_REFLECTED, NO_POLICIES, now).await?;
            }
            return Ok(Some(NO_POLICIES_RETRY));
        }
        let api_server = self.api_server(Timestamp::now());
        match &api_server {
            Some(Start::With(addresses)) => {
                give(&mut carried, &self.pod.json(), &secret(&self.pod.uid), addresses);
                api_server::ensure(self.consumer, self.peer, remote, self.pod).await;
            }
            Some(Start::Wait(rest)) => return Ok(Some(*rest)),
            Some(Start::Refuse) => {
                self.refuse(pods::NO_API_SERVER, NO_API_SERVER, Timestamp::now()).await?;
                return Ok(Some(NO_API_SERVER_RETRY));
            }
            Some(Start::Without) | None => {}
        }
        reflection::ensure(self.consumer, self.peer, remote, &Reference::all(self.pod)).await;
        if mark {
            // Without the mark nobody would know later that the pod may run there.
            if !self.patch_status(Some(mark_as_sending(remote.tenancy().as_deref(), Timestamp::now()))).await? {
                return Ok(Some(UNMARKED_RETRY));
            }
            self.peer.sending(&self.pod.uid);
        }
        let shadow = json!({
            "apiVersion": ShadowPod::api_version(&()),
            "kind": ShadowPod::kind(&()),
            "metadata": {
                "name": self.pod.uid,
                "labels": {
                    labels::MANAGED: "true",
                    labels::PROVIDER_ID: self.peer.id,
                    labels::POOL: node.spec.pool,
                    labels::HOME_NAMESPACE: self.pod.key.namespace,
                },
                "finalizers": [finalizers::SHADOW_POD],
            },
            "spec": { "namespace": self.pod.key.namespace, "pool": node.spec.pool, "pod": carried },
        });
        match call(create(&remote.connection.client, &remote.connection.tenant_namespace, &shadow)).await {
            Ok(()) => {}
            // Its name is the pod's UID: it is this pod's, whoever was faster.
            Err(PeerError::Api(kube::Error::Api(status))) if status.is_already_exists() => {}
            Err(PeerError::Api(kube::Error::Api(status))) if status.is_invalid() || status.is_forbidden() => {
                let message = format!("the provider's API server does not accept the pod: {}", status.message);
                self.refuse("NotAccepted", &message, Timestamp::now()).await?;
                return Ok(Some(self.peer.rest(&self.pod.uid)));
            }
            Err(source) => return Err(Error::Shadow { step: "creating", pod: self.pod.key.clone(), source }),
        }
        self.peer.created(&self.pod.uid, remote);
        tracing::debug!(peer = %self.peer.id, pod = %self.pod.key, "pod sent");
        if api_server == Some(Start::Without) {
            self.warn(pods::NO_API_SERVER, &format!("the pod runs without access to an API server: {NO_API_SERVER}")).await;
        }
        Ok(None)
    }

    /// What of the pod travels.
    fn carried(&self, node: &VirtualNode) -> Result<Value, Refusal> {
        let advertised: BTreeSet<String> = described_by(&node.spec.labels).into_keys().collect();
        outgoing(&self.pod.json(), &advertised)
    }

    /// How the pod is to be sent, if it uses the API server here.
    fn api_server(&self, now: Timestamp) -> Option<Start> {
        let Wish::Home { insists } = self.pod.api_server else { return None };
        let has_network = self.consumer.context.config().spec.network.enabled;
        let bound_for = has_network.then(|| self.bound_for(now)).flatten();
        Some(way_to_start(insists, api_server::addresses(self.consumer, self.peer), bound_for))
    }

    /// How long ago the pod was bound to its node.
    fn bound_for(&self, now: Timestamp) -> Option<Duration> {
        bound_at(&self.pod.json()).map(|at| Duration::try_from(now.duration_since(at)).unwrap_or_default())
    }

    async fn update(&self, whole: bool, shadow: Option<&Shadow>) -> Result<Option<Duration>, Error> {
        let Some(node) = self.node else { return Ok(None) };
        let Ok(mut carried) = self.carried(node) else { return Ok(None) };
        let addresses = api_server::addresses(self.consumer, self.peer);
        let uses_api_server = shadow.is_some_and(|shadow| shadow.uses_api_server);
        // Where the way there is not known at the moment, the one that was known stays.
        let whole = whole && !(uses_api_server && addresses.is_empty());
        if uses_api_server {
            give(&mut carried, &self.pod.json(), &secret(&self.pod.uid), &addresses);
        }
        let replaced = |carried| {
            json_patch::Patch(vec![json_patch::PatchOperation::Replace(json_patch::ReplaceOperation {
                path: json_patch::jsonptr::PointerBuf::from_tokens(["spec", "pod"]),
                value: carried,
            })])
        };
        let patch = if whole { replaced(carried) } else { change(&carried) };
        self.patch_shadow("updating", &Patch::Json::<()>(patch)).await?;
        Ok(None)
    }

    async fn patch_shadow<P: serde::Serialize + std::fmt::Debug>(
        &self,
        step: &'static str,
        patch: &Patch<P>,
    ) -> Result<(), Error> {
        let Some(remote) = self.remote else { return Ok(()) };
        let (client, namespace) = (remote.connection.client.clone(), &remote.connection.tenant_namespace);
        let api: Api<PartialObjectMeta<ShadowPod>> = Api::namespaced(client, namespace);
        match call(api.patch(&self.pod.uid, &PatchParams::default(), patch)).await {
            Ok(_) => Ok(()),
            // Its disappearance brings us here again.
            Err(PeerError::Api(kube::Error::Api(status))) if status.is_not_found() => Ok(()),
            Err(source) => Err(Error::Shadow { step, pod: self.pod.key.clone(), source }),
        }
    }

    /// Patches the home pod's status, and no other pod's of the same name. Says whether the pod is still there.
    async fn patch_status(&self, patch: Option<Value>) -> Result<bool, Error> {
        let Some(mut patch) = patch else { return Ok(true) };
        if !patch["metadata"].is_object() {
            patch["metadata"] = json!({});
        }
        patch["metadata"]["uid"] = self.pod.uid.as_str().into();
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.consumer.context.client.clone(), &self.pod.key.namespace);
        match api.patch_status(&self.pod.key.name, &PatchParams::default(), &Patch::Strategic(&patch)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
            Err(source) => Err(Error::Home { step: "writing the status of", pod: self.pod.key.clone(), source }),
        }
    }

    /// Shows the refusal, with one event for each new reason.
    async fn refuse(&self, reason: &str, message: &str, now: Timestamp) -> Result<(), Error> {
        let Some(patch) = refused_patch(&self.pod.json(), reason, message, now) else { return Ok(()) };
        self.patch_status(Some(patch)).await?;
        let told_before = self.pod.told.as_ref().is_some_and(|told| told.status == Some(false) && told.reason == reason);
        if !told_before {
            self.warn("NotOffloaded", message).await;
        }
        Ok(())
    }

    async fn warn(&self, reason: &str, message: &str) {
        warn(self.consumer, self.pod, reason, message).await;
    }

    /// Ends the home pod, for its controller to replace it.
    async fn evicted(&self, reason: &str, now: Timestamp) -> Result<(), Error> {
        let provider = self.node.map_or_else(|| self.peer.id.to_string(), |node| node.spec.cluster_name.clone());
        let message = format!("cluster {provider} took back resources: {reason}");
        let Some(patch) = evicted_patch(&self.pod.json(), &message, now) else { return Ok(()) };
        if self.patch_status(Some(patch)).await? {
            tracing::info!(peer = %self.peer.id, pod = %self.pod.key, message, "pod ended");
            self.warn(OFFER_RECLAIMED, &message).await;
        }
        Ok(())
    }

    /// Deletes a pod that was refused for long, unless another one of its owner was deleted a moment ago.
    async fn replace(&self) -> Result<Option<Duration>, Error> {
        let Some(controller) = &self.pod.controller else { return Ok(None) };
        {
            let mut replaced = locked(&self.consumer.replaced);
            replaced.retain(|_, at| at.elapsed() < BETWEEN_REPLACEMENTS);
            if let Some(at) = replaced.get(&controller.uid) {
                return Ok(Some(BETWEEN_REPLACEMENTS.saturating_sub(at.elapsed())));
            }
            replaced.insert(controller.uid.clone(), Instant::now());
        }
        tracing::info!(pod = %self.pod.key, "pod was refused for long and is deleted, for its controller to replace it");
        delete_home_pod(&self.consumer.context.client, self.pod, DeleteParams::default()).await?;
        Ok(None)
    }

    /// Ends the home pod, unless a live look shows that the provider has a record of it after all.
    async fn lost(&self, message: &str, now: Timestamp) -> Result<Option<Duration>, Error> {
        let Some(remote) = self.remote else { return Ok(None) };
        if remote.shadow(&self.pod.uid).is_none() {
            let (client, namespace) = (remote.connection.client.clone(), &remote.connection.tenant_namespace);
            let api: Api<ShadowPod> = Api::namespaced(client, namespace);
            let live = call(api.get_metadata_opt(&self.pod.uid)).await;
            let live = live.map_err(|source| Error::Shadow { step: "looking for", pod: self.pod.key.clone(), source })?;
            if live.is_some() {
                self.peer.created(&self.pod.uid, remote);
                return Ok(Some(pod_decide::VISIBLE_WITHIN));
            }
        }
        tracing::warn!(peer = %self.peer.id, pod = %self.pod.key, message, "remote pod lost");
        self.patch_status(lost_patch(&self.pod.json(), message, now)).await?;
        Ok(None)
    }
}

/// An event on a home pod.
pub async fn warn(consumer: &Consumer, pod: &HomePod, reason: &str, message: &str) {
    let pod = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.key.namespace.clone()),
        name: Some(pod.key.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    };
    consumer.context.events.warning(&pod, reason, message).await;
}

/// The condition that stands on a pod that may run only once, from before it is sent.
fn mark_as_sending(tenancy: Option<&str>, now: Timestamp) -> Value {
    let condition = json!({
        "type": pods::OFFLOADED,
        "status": "Unknown",
        "reason": SENDING,
        "message": "the pod is being sent to the provider",
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    json!({
        "metadata": { "annotations": { annotations::SENT_TO: tenancy } },
        "status": { "conditions": [condition] },
    })
}

/// Creates a shadow pod without reading back what was sent.
async fn create(client: &Client, namespace: &str, shadow: &Value) -> kube::Result<()> {
    let body = serde_json::to_vec(shadow).map_err(kube::Error::SerdeError)?;
    let request = Request::new(ShadowPod::url_path(&(), Some(namespace)))
        .create(&PostParams::default(), body)
        .map_err(kube::Error::BuildRequest)?;
    client.request::<PartialObjectMeta<ShadowPod>>(request).await.map(drop)
}

/// Deletes a home pod, and no other one of the same name.
pub async fn delete_home_pod(client: &Client, pod: &HomePod, parameters: DeleteParams) -> Result<(), Error> {
    let parameters = parameters.preconditions(Preconditions { uid: Some(pod.uid.clone()), ..Preconditions::default() });
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), &pod.key.namespace);
    match api.delete(&pod.key.name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(source) => Err(Error::Home { step: "deleting", pod: pod.key.clone(), source }),
    }
}

#[cfg(test)]
mod tests;
