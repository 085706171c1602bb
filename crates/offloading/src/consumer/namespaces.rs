//! `NamespaceOffloading`s: the map of namespaces at each provider, the status at home, and the end of offloading.
//!
//! Maps are recomputed as a whole, for one provider at a time, from everything that stands: so a namespace that was
//! unoffloaded while a provider was away leaves its map when the provider is back.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::rbac::v1::{RoleBinding, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use liqo_api::{
    ClusterId, NAMESPACE_MAP, NAMESPACE_OFFLOADING, NamespaceMap, NamespaceMapSpec, NamespaceOffloading, RemoteNamespace,
    finalizers, labels, mapped_namespace, may_be_offloaded, roles,
};
use liqo_kit::{
    Key, Next,
    conditions::{self, Wanted},
    peers::{PeerError, call},
};
use serde_json::json;

use super::{
    Consumer, home_pods,
    namespace_decide::{self, Candidate, Provider},
    peer::Peer,
    reflection, services,
    virtual_nodes::all_pods_known,
};
use crate::{decide::node::Outage, webhook};

/// Namespaces and maps that are looked at at the same time.
const CONCURRENCY: usize = 4;

/// How long the pods of a namespace that is unoffloaded may take to end. After that they are removed at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often an unoffloading is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The name of the manager's own `RoleBinding`, and of its `ServiceAccount`.
const ROLE_BINDING: &str = "liqo-manager";
const SERVICE_ACCOUNT: &str = "liqo-controller-manager";

/// What to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// The map of one provider.
    Map(ClusterId),
    /// The maps of all providers.
    AllMaps,
    /// The `NamespaceOffloading` of a namespace.
    Namespace(String),
    /// All of them.
    AllNamespaces,
    /// The pods of a namespace, wherever they run.
    Pods(String),
    /// All pods.
    AllPods,
}

/// A namespace could not be handled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The map at a provider.
    #[error("writing the namespace map at provider {cluster}: {source}")]
    Map {
        /// The provider.
        cluster: ClusterId,
        /// What the peer said.
        source: PeerError,
    },
    /// An object in the namespace.
    #[error("{step} of namespace {namespace}: {source}")]
    Home {
        /// What was tried, and on what.
        step: &'static str,
        /// The namespace.
        namespace: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// A pod in the namespace.
    #[error(transparent)]
    Pod(#[from] home_pods::Error),
}

/// Runs the controller until the context stops.
pub async fn run(consumer: Arc<Consumer>) {
    let (queue, stop) = (consumer.namespace_queue.clone(), consumer.context.stop.clone());
    queue
        .run("namespaces", CONCURRENCY, stop, move |work| {
            let consumer = consumer.clone();
            async move {
                if !is_known(&consumer) {
                    return Ok(Next::After(LOOK));
                }
                match work {
                    Work::Map(id) => map(&consumer, &id).await,
                    Work::Namespace(namespace) => namespace_offloading(&consumer, &namespace).await,
                    Work::AllMaps => {
                        for peer in consumer.all_peers() {
                            consumer.namespace_queue.add(Work::Map(peer.id.clone()));
                        }
                        consumer.namespace_queue.add(Work::AllNamespaces);
                        Ok(Next::OnChange)
                    }
                    Work::Pods(namespace) => {
                        for peer in consumer.all_peers() {
                            peer.look_at_pods_of(&namespace);
                            peer.look_at_all_references();
                            services::look_at(&consumer, &peer, Some(&namespace));
                        }
                        Ok(Next::OnChange)
                    }
                    Work::AllPods => {
                        consumer.all_peers().iter().for_each(|peer| peer.look_at_all_pods());
                        Ok(Next::OnChange)
                    }
                    Work::AllNamespaces => {
                        for (key, _) in consumer.offloadings.all() {
                            consumer.namespace_queue.add(Work::Namespace(key.namespace));
                        }
                        Ok(Next::OnChange)
                    }
                }
            }
        })
        .await;
}

/// Nothing is decided on half a picture.
fn is_known(consumer: &Consumer) -> bool {
    consumer.offloadings.is_synced()
        && consumer.virtual_nodes.is_synced()
        && consumer.nodes.is_synced()
        && consumer.webhook.is_synced()
}

/// The namespaces of which two states of a map say something different.
pub fn changed(old: Option<&NamespaceMap>, new: Option<&NamespaceMap>) -> BTreeSet<String> {
    let of = |map: Option<&NamespaceMap>| map.and_then(|map| map.status.clone()).unwrap_or_default().namespaces;
    let (old, new) = (of(old), of(new));
    old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

/// The virtual nodes of a provider; nothing while one of them has no Node yet.
fn candidates(consumer: &Consumer, id: &ClusterId) -> Option<Vec<Candidate>> {
    let candidate = |node: &liqo_api::VirtualNode| {
        let labels = consumer.node_labels(node)?;
        Some(Candidate { node: node.status.as_ref()?.node_name.clone()?, labels })
    };
    consumer.nodes_of(id).iter().map(|(_, node)| candidate(node)).collect()
}

/// Whether a namespace goes to this provider, by what stands here; nothing while that is not known. What stands in the map there is no
/// answer: the provider can write it.
pub fn goes_to(consumer: &Consumer, peer: &Peer, namespace: &str) -> Option<bool> {
    if !is_known(consumer) {
        return None;
    }
    let Some(offloading) = consumer.offloadings.get(&Key::new(namespace, NAMESPACE_OFFLOADING)) else { return Some(false) };
    let stays = offloading.metadata.deletion_timestamp.is_none();
    if stays && namespace_decide::is_wanted(&offloading, &candidates(consumer, &peer.id)?) {
        return Some(true);
    }
    Some(peer.home_pods().iter().any(|pod| pod.key.namespace == namespace && peer.may_run(pod)))
}

async fn map(consumer: &Arc<Consumer>, id: &ClusterId) -> Result<Next, Error> {
    let Some(peer) = consumer.peers.get(id) else { return Ok(Next::OnChange) };
    if peer.remote().is_none() && consumer.nodes_of(id).is_empty() {
        drop(peer);
        // What worked with it may not have ended yet.
        return Ok(if consumer.peers.forget(id) { Next::OnChange } else { Next::After(LOOK) });
    }
    // When it answers, or the Node appears, we are called again.
    let (Some(remote), Some(nodes)) = (peer.answering(), candidates(consumer, id)) else { return Ok(Next::OnChange) };
    if !all_pods_known(consumer, id) {
        return Ok(Next::After(LOOK));
    }
    let system = &consumer.context.namespace;
    let counts = |key: &Key| key.name == NAMESPACE_OFFLOADING && may_be_offloaded(&key.namespace, system);
    let offloadings: Vec<_> = consumer.offloadings.all().into_iter().filter(|(key, _)| counts(key)).collect();
    let (shadows, pods) = (remote.shadows.all(), peer.home_pods());
    let in_use = |namespace: &str| {
        pods.iter().any(|pod| pod.key.namespace == namespace && peer.may_run(pod))
            || shadows.iter().any(|(_, shadow)| shadow.home.namespace == namespace)
    };
    let cluster_name = consumer.context.config().spec.cluster_name.clone();
    let wanted = namespace_decide::wanted(
        offloadings.iter().map(|(key, offloading)| (key.namespace.as_str(), offloading.as_ref())),
        &nodes,
        (&cluster_name, &consumer.context.cluster_id),
        in_use,
    );
    let api: Api<NamespaceMap> = Api::namespaced(remote.connection.client.clone(), &remote.connection.tenant_namespace);
    let failed = |source| Error::Map { cluster: id.clone(), source };
    match remote.map() {
        Some(standing) => {
            if let Some(patch) = namespace_decide::patch(&standing, &wanted) {
                call(api.patch(NAMESPACE_MAP, &PatchParams::default(), &Patch::Merge(&patch))).await.map_err(failed)?;
            }
        }
        None if wanted.is_empty() => {}
        None => {
            let mut map = NamespaceMap::new(NAMESPACE_MAP, NamespaceMapSpec { mappings: wanted });
            map.labels_mut().insert(labels::MANAGED.into(), "true".into());
            match call(api.create(&PostParams::default(), &map)).await {
                // Its event brings us here again.
                Err(PeerError::Api(kube::Error::Api(status))) if status.is_already_exists() => {}
                result => drop(result.map_err(failed)?),
            }
        }
    }
    Ok(Next::OnChange)
}

async fn namespace_offloading(consumer: &Arc<Consumer>, namespace: &str) -> Result<Next, Error> {
    let Some(offloading) = consumer.offloadings.get(&Key::new(namespace, NAMESPACE_OFFLOADING)) else {
        reflection::forget_namespace(consumer, namespace);
        return Ok(Next::OnChange);
    };
    if offloading.metadata.deletion_timestamp.is_some() {
        return unoffload(consumer, namespace, &offloading).await;
    }
    if !may_be_offloaded(namespace, &consumer.context.namespace) {
        write(consumer, namespace, &offloading, Vec::new(), namespace_decide::not_allowed()).await?;
        return Ok(Next::OnChange);
    }
    finalizer(consumer, namespace, &offloading, true).await?;
    bind(consumer, namespace).await?;
    reflection::follow_namespace(consumer, namespace);
    tell(consumer, namespace, &offloading).await?;
    Ok(Next::OnChange)
}

/// Says where the namespace is.
async fn tell(consumer: &Arc<Consumer>, namespace: &str, offloading: &NamespaceOffloading) -> Result<(), Error> {
    let cluster_name = consumer.context.config().spec.cluster_name.clone();
    let default_name = mapped_namespace(namespace, &cluster_name, &consumer.context.cluster_id);
    let status = offloading.status.clone().unwrap_or_default();
    let twins: Vec<RemoteNamespace> = providers(consumer)
        .iter()
        .filter(|(id, _)| candidates(consumer, id).is_none_or(|nodes| namespace_decide::is_wanted(offloading, &nodes)))
        .map(|(id, name)| {
            let (peer, answers) = (consumer.peer(id), consumer.peer(id).outage() == Outage::None);
            // A connection that is being made says nothing yet.
            let said = status.remote_namespaces.iter().find(|twin| twin.cluster_id == *id);
            if let (Some(said), true, None) = (said, answers, peer.answering()) {
                return said.clone();
            }
            let map = peer.remote().and_then(|remote| remote.map());
            let provider = Provider { cluster_id: id, cluster_name: name, map: map.as_deref(), answers };
            let mut twin = namespace_decide::twin(namespace, &default_name, &provider);
            // Who does not answer shows what it showed last.
            twin.exposed = match peer.answering() {
                Some(remote) => services::exposed(consumer, &remote, namespace),
                None => said.map(|said| said.exposed.clone()).unwrap_or_default(),
            };
            twin
        })
        .collect();
    let placed = webhook::selected(&consumer.webhook).covers(namespace, offloading.spec.pod_offloading_strategy);
    let ready = namespace_decide::ready(&twins, placed);
    write(consumer, namespace, offloading, twins, ready).await
}

/// Writes the status, if it says something new.
async fn write(
    consumer: &Consumer,
    namespace: &str,
    offloading: &NamespaceOffloading,
    twins: Vec<RemoteNamespace>,
    ready: Wanted,
) -> Result<(), Error> {
    let status = offloading.status.clone().unwrap_or_default();
    let generation = offloading.metadata.generation;
    let conditions = conditions::decide_for(generation, &status.conditions, &[ready], Timestamp::now());
    if conditions.is_none() && status.remote_namespaces == twins {
        return Ok(());
    }
    let patch = json!({ "status": {
        "conditions": conditions.unwrap_or(status.conditions),
        "remoteNamespaces": twins,
    } });
    let api: Api<NamespaceOffloading> = Api::namespaced(consumer.context.client.clone(), namespace);
    let written = api.patch_status(NAMESPACE_OFFLOADING, &PatchParams::default(), &Patch::Merge(&patch)).await;
    written.map(drop).or_else(unless_gone).map_err(failed("writing the status of the NamespaceOffloading", namespace))
}

/// The providers that have a virtual node, with their names.
fn providers(consumer: &Consumer) -> Vec<(ClusterId, String)> {
    let nodes = consumer.virtual_nodes.all();
    let mut providers: Vec<_> =
        nodes.iter().map(|(_, node)| (node.spec.cluster_id.clone(), node.spec.cluster_name.clone())).collect();
    providers.sort();
    providers.dedup_by(|one, other| one.0 == other.0);
    providers
}

/// Ends the offloading of a namespace: pods first, then the mapping, then our right to look into the namespace.
async fn unoffload(consumer: &Arc<Consumer>, namespace: &str, offloading: &NamespaceOffloading) -> Result<Next, Error> {
    let asked = offloading.metadata.deletion_timestamp.as_ref().map_or(Timestamp::now(), |time| time.0);
    let late = Duration::try_from(Timestamp::now().duration_since(asked)).is_ok_and(|waited| waited > PATIENCE);
    let mut open = false;
    for (id, _) in providers(consumer) {
        open |= !all_pods_known(consumer, &id);
    }
    for peer in consumer.all_peers() {
        let at_once = late || peer.outage() != Outage::None;
        for pod in peer.home_pods().iter().filter(|pod| pod.key.namespace == namespace) {
            if at_once {
                // Gone with the call, so there is nothing to wait for.
                if pod.deletion != Some(0) {
                    let immediately = DeleteParams::default().grace_period(0);
                    home_pods::delete_home_pod(&consumer.context.client, pod, immediately).await?;
                }
            } else if peer.may_run(pod) {
                if pod.deletion.is_none() {
                    home_pods::delete_home_pod(&consumer.context.client, pod, DeleteParams::default()).await?;
                }
                // One that only somebody's finalizer holds is not ours to wait for.
                open |= pod.deletion != Some(0);
            }
        }
        let mapped =
            peer.answering().and_then(|remote| remote.map()).is_some_and(|map| map.spec.mappings.contains_key(namespace));
        if mapped {
            consumer.namespace_queue.add(Work::Map(peer.id.clone()));
            open = true;
        }
    }
    if open && !late {
        return Ok(Next::After(LOOK));
    }
    reflection::forget_namespace(consumer, namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(consumer.context.client.clone(), namespace);
    let standing = bindings.get_opt(ROLE_BINDING).await.map_err(failed("reading RoleBinding liqo-manager", namespace))?;
    if let Some(ours) = standing.filter(is_our_binding) {
        let only_this =
            DeleteParams::default().preconditions(Preconditions { uid: ours.metadata.uid.clone(), resource_version: None });
        let unbound = bindings.delete(ROLE_BINDING, &only_this).await;
        unbound.map(drop).or_else(unless_gone).map_err(failed("deleting RoleBinding liqo-manager", namespace))?;
    }
    finalizer(consumer, namespace, offloading, false).await?;
    Ok(Next::OnChange)
}

/// Adds or removes our finalizer.
async fn finalizer(consumer: &Consumer, namespace: &str, offloading: &NamespaceOffloading, wanted: bool) -> Result<(), Error> {
    let mut all: Vec<String> = offloading.finalizers().to_vec();
    if all.iter().any(|one| one == finalizers::NAMESPACE_OFFLOADING) == wanted {
        return Ok(());
    }
    all.retain(|one| one != finalizers::NAMESPACE_OFFLOADING);
    if wanted {
        all.push(finalizers::NAMESPACE_OFFLOADING.to_owned());
    }
    let patch = json!({ "metadata": { "resourceVersion": offloading.resource_version(), "finalizers": all } });
    let api: Api<NamespaceOffloading> = Api::namespaced(consumer.context.client.clone(), namespace);
    let written = api.patch(NAMESPACE_OFFLOADING, &PatchParams::default(), &Patch::Merge(&patch)).await;
    written.map(drop).or_else(unless_gone).map_err(failed("changing the finalizers of the NamespaceOffloading", namespace))
}

/// Lets the manager read the `ConfigMap`s and Secrets of the namespace.
async fn bind(consumer: &Consumer, namespace: &str) -> Result<(), Error> {
    let api: Api<RoleBinding> = Api::namespaced(consumer.context.client.clone(), namespace);
    let standing = api.get_opt(ROLE_BINDING).await.map_err(failed("reading RoleBinding liqo-manager", namespace))?;
    if standing.as_ref().is_some_and(is_our_binding) {
        return Ok(());
    }
    let binding = RoleBinding {
        metadata: ObjectMeta {
            name: Some(ROLE_BINDING.into()),
            labels: Some([(labels::MANAGED.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "ClusterRole".into(),
            name: roles::OFFLOADED_NAMESPACE.into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: SERVICE_ACCOUNT.into(),
            namespace: Some(consumer.context.namespace.clone()),
            ..Subject::default()
        }]),
    };
    // One of that name which is somebody else's gives us nothing, and is not ours to change.
    let created = api.create(&PostParams::default(), &binding).await;
    created.map(drop).map_err(failed("creating RoleBinding liqo-manager", namespace))
}

/// Whether this is the binding that we make, and not one of the same name.
fn is_our_binding(binding: &RoleBinding) -> bool {
    binding.role_ref.kind == "ClusterRole" && binding.role_ref.name == roles::OFFLOADED_NAMESPACE
}

fn failed(step: &'static str, namespace: &str) -> impl FnOnce(kube::Error) -> Error {
    let namespace = namespace.to_owned();
    move |source| Error::Home { step, namespace, source }
}

fn unless_gone(error: kube::Error) -> kube::Result<()> {
    match error {
        kube::Error::Api(status) if status.is_not_found() => Ok(()),
        error => Err(error),
    }
}
