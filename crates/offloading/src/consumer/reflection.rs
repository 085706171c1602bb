//! What is reflected at each provider: the `ConfigMap`s and `Secret`s that pods there name, and no others; and, of the namespaces
//! that are offloaded to it, `NetworkPolicy`s and, where there is a network, Services (see [`services`]).
//!
//! What is wanted of the former follows from the pods: an object is recorded before the first pod that names it is sent, updated
//! when it changes at home, and removed when no pod at that provider names it any more.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::Ingress,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, PostParams},
    runtime::watcher,
};
use liqo_api::{NAMESPACE_OFFLOADING, ReflectedObject};
use liqo_kit::{
    Cache, Key, Next,
    peers::{PeerError, call},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Consumer, api_server, locked, network_policies,
    peer::{Peer, Remote},
    reduced::HomePod,
    reflected::{
        HomeIngress, HomeService, HomeSlice, Reference, Twin, fingerprint_of_object, fingerprint_of_secret, object_of, record_of,
        record_of_secret,
    },
    services,
    virtual_nodes::all_pods_known,
};
use crate::decide::{home_status::cut, kind::Kind, network_policies::NetworkPolicy};

/// Objects that are looked at at the same time, for each provider.
const CONCURRENCY: usize = 4;

/// An object could not be reflected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object at home cannot be read.
    #[error("reading {kind} {namespace}/{name} to reflect it: {source}")]
    Read {
        /// Its kind.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// A pod that uses our API server there gets no token.
    #[error("{what} for pod {pod}, which runs at a provider and uses this cluster's API server: {source}")]
    Token {
        /// What was tried.
        what: &'static str,
        /// The home pod.
        pod: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// The record at the provider cannot be written.
    #[error("writing the record of {kind} {namespace}/{name} at the provider: {source}")]
    Write {
        /// Its kind.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What the peer said.
        source: PeerError,
    },
}

/// What is followed in one offloaded namespace: which of its `ConfigMap`s and `Secret`s changed, and what of its Services, their
/// endpoints and its policies travels.
pub struct HomeObjects {
    _config_maps: Cache<u64>,
    _secrets: Cache<u64>,
    /// The Services that are reflected.
    pub services: Cache<HomeService>,
    /// The slices of all Services.
    pub slices: Cache<HomeSlice>,
    /// The Ingresses that are reflected.
    pub ingresses: Cache<HomeIngress>,
    /// The policies that are reflected.
    pub policies: Cache<NetworkPolicy>,
    _stop: DropGuard,
}

/// Follows the objects of a namespace, from when the manager may read them until the namespace is no longer offloaded.
pub fn follow_namespace(consumer: &Arc<Consumer>, namespace: &str) {
    let mut all = locked(&consumer.home_objects);
    if all.contains_key(namespace) {
        return;
    }
    let stop = consumer.context.stop.child_token();
    let client = consumer.context.client.clone();
    let config_maps = Cache::watch(
        Api::<ConfigMap>::namespaced(client.clone(), namespace),
        watcher::Config::default(),
        stop.clone(),
        |map| Some(fingerprint_of_object(&object_of(&map))),
        changed(consumer, Kind::ConfigMap),
    );
    let secrets = Cache::watch(
        Api::<Secret>::namespaced(client.clone(), namespace),
        watcher::Config::default(),
        stop.clone(),
        |secret| Some(fingerprint_of_secret(&secret)),
        changed(consumer, Kind::Secret),
    );
    let slices = Cache::watch(
        Api::<EndpointSlice>::namespaced(client.clone(), namespace),
        watcher::Config::default(),
        stop.clone(),
        HomeSlice::of,
        services::slice_changed(consumer),
    );
    let ingresses = Cache::watch(
        Api::<Ingress>::namespaced(client.clone(), namespace),
        watcher::Config::default(),
        stop.clone(),
        HomeIngress::of,
        services::ingress_changed(consumer),
    );
    let services = Cache::watch(
        Api::<Service>::namespaced(client, namespace),
        watcher::Config::default(),
        stop.clone(),
        HomeService::of,
        services::service_changed(consumer, slices.clone()),
    );
    services::look_when_known(consumer, namespace, (&services, &slices, &ingresses));
    let policies = network_policies::follow(consumer, namespace, stop.clone());
    let followed = HomeObjects {
        _config_maps: config_maps,
        _secrets: secrets,
        services,
        slices,
        ingresses,
        policies,
        _stop: stop.drop_guard(),
    };
    all.insert(namespace.to_owned(), followed);
}

/// Stops following the objects of a namespace.
pub fn forget_namespace(consumer: &Consumer, namespace: &str) {
    locked(&consumer.home_objects).remove(namespace);
}

fn changed(consumer: &Arc<Consumer>, kind: Kind) -> impl FnMut(&Key, Option<&Arc<u64>>, Option<&Arc<u64>>) + Send + use<> {
    let consumer = Arc::downgrade(consumer);
    move |key, _, _| {
        let reference = Reference { kind, namespace: key.namespace.clone(), name: key.name.clone() };
        let Some(consumer) = consumer.upgrade() else { return };
        for peer in consumer.all_peers() {
            let by_ingress = || {
                peer.remote().is_some_and(|remote| services::ingress_names(&consumer, &peer, &remote, &reference) == Some(true))
            };
            if peer.home_pods().iter().any(|pod| reference.is_named_by(pod)) || by_ingress() {
                peer.references.add(reference.clone());
            }
        }
    }
}

/// Starts the worker for one provider.
pub fn start(consumer: Arc<Consumer>, peer: &Arc<Peer>, stop: CancellationToken) {
    let (queue, peer) = (peer.references.clone(), Arc::downgrade(peer));
    tokio::spawn(async move {
        queue
            .run("reflection", CONCURRENCY, stop, move |reference| {
                let (consumer, peer) = (consumer.clone(), peer.upgrade());
                async move {
                    match peer {
                        Some(peer) => reconcile(&consumer, &peer, &reference).await,
                        None => Ok(Next::OnChange),
                    }
                }
            })
            .await;
    });
}

/// Records, before a pod is sent, those of these objects that the provider does not have yet. What goes wrong is left to the
/// worker. Says whether all of them are there now: for what a pod names the provider waits, as a kubelet does, but for no policy.
pub async fn ensure(consumer: &Arc<Consumer>, peer: &Arc<Peer>, remote: &Remote, wanted: &[Reference]) -> bool {
    let stays = |record: Arc<Twin>| !record.terminating;
    let missing = |reference: &&Reference| !recorded(remote, reference).is_some_and(stays) && !peer.is_reflected(reference);
    for reference in wanted.iter().filter(missing) {
        let _one_at_a_time = peer.reflecting.lock().await;
        if !missing(&reference) {
            continue;
        }
        if let Err(error) = reconcile(consumer, peer, reference).await {
            tracing::debug!(peer = %peer.id, ?reference, %error, "not reflected yet");
            peer.references.add(reference.clone());
        }
    }
    !wanted.iter().any(|reference| missing(&reference))
}

/// Which of the objects that a pod names the provider has no twin of, and why, in a sentence.
pub fn missing(remote: &Remote, pod: &HomePod) -> Option<String> {
    let told: Vec<String> = Reference::all(pod)
        .iter()
        .filter_map(|one| Some(format!("{} {}: {}", one.kind.name(), one.name, recorded(remote, one)?.problem.as_ref()?)))
        .collect();
    (!told.is_empty()).then(|| cut(&format!("the provider took the pod, but not all that it names: {}", told.join("; "))))
}

/// What is known of the record of an object at the provider.
pub fn recorded(remote: &Remote, reference: &Reference) -> Option<Arc<Twin>> {
    let key = Key::new(&remote.connection.tenant_namespace, reference.record());
    if reference.kind == Kind::Secret { remote.secrets.get(&key) } else { remote.objects.get(&key) }
}

async fn reconcile(consumer: &Arc<Consumer>, peer: &Arc<Peer>, reference: &Reference) -> Result<Next, Error> {
    // When the peer answers (again), everything is looked at.
    let Some(remote) = peer.answering() else { return Ok(Next::OnChange) };
    if reference.kind.is_of_namespace() {
        return services::reconcile(consumer, peer, &remote, reference).await;
    }
    if let Some(uid) = reference.is_for_api_server() {
        return api_server::reconcile(consumer, peer, &remote, reference, uid).await;
    }
    let by_ingress = services::ingress_names(consumer, peer, &remote, reference);
    let is_named = by_ingress == Some(true) || peer.home_pods().iter().any(|pod| reference.is_named_by(pod));
    let wanted = is_named && is_offloaded(consumer, &reference.namespace);
    let record = recorded(&remote, reference);
    if !wanted {
        let Some(record) = record.filter(|record| !record.terminating) else { return Ok(Next::OnChange) };
        if !all_pods_known(consumer, &peer.id) || by_ingress.is_none() {
            return Ok(Next::After(Duration::from_secs(2)));
        }
        remove(peer, &remote, &record.reference).await?;
        return Ok(Next::OnChange);
    }
    if record.as_ref().is_some_and(|record| record.terminating) {
        return Ok(Next::OnChange);
    }
    let (client, namespace) = (consumer.context.client.clone(), &reference.namespace);
    if reference.kind == Kind::Secret {
        let home = read(reference, Api::<Secret>::namespaced(client, namespace)).await?;
        let wanted = home.and_then(|secret| record_of_secret(reference, &secret));
        let print = wanted.as_ref().map(fingerprint_of_secret);
        write(peer, &remote, reference, record.as_deref(), wanted.zip(print)).await?;
    } else {
        let home = read(reference, Api::<ConfigMap>::namespaced(client, namespace)).await?;
        write_object(peer, &remote, reference, record.as_deref(), home.map(|map| object_of(&map))).await?;
    }
    Ok(Next::OnChange)
}

/// Makes the record of an object that is no Secret hold this object, or not be there.
pub async fn write_object(
    peer: &Peer,
    remote: &Remote,
    reference: &Reference,
    record: Option<&Twin>,
    wanted: Option<Value>,
) -> Result<(), Error> {
    let wanted = wanted.map(|object| (fingerprint_of_object(&object), record_of(reference, object)));
    write(peer, remote, reference, record, wanted.map(|(print, record)| (record, print))).await
}

/// Whether the namespace is offloaded, to whichever provider.
pub fn is_offloaded(consumer: &Consumer, namespace: &str) -> bool {
    // Also while it is being unoffloaded: its pods still read what they name.
    consumer.offloadings.get(&Key::new(namespace, NAMESPACE_OFFLOADING)).is_some()
}

async fn read<K>(reference: &Reference, api: Api<K>) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let Reference { namespace, name, .. } = reference.clone();
    api.get_opt(&name).await.map_err(|source| Error::Read { kind: reference.kind.name(), namespace, name, source })
}

/// Makes the record be what is wanted, if it is not.
pub async fn write<K>(
    peer: &Peer,
    remote: &Remote,
    reference: &Reference,
    record: Option<&Twin>,
    wanted: Option<(K, u64)>,
) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Serialize
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let failed = |source| {
        let Reference { namespace, name, .. } = reference.clone();
        Error::Write { kind: reference.kind.name(), namespace, name, source }
    };
    let api: Api<K> = Api::namespaced(remote.connection.client.clone(), &remote.connection.tenant_namespace);
    match (wanted, record) {
        (None, None) => Ok(()),
        (None, Some(_)) => remove(peer, remote, reference).await,
        (Some((_, print)), Some(record)) if record.fingerprint == print => Ok(()),
        (Some((wanted, _)), None) => match call(api.create(&PostParams::default(), &wanted)).await {
            // Another worker, or a watch that lags: its event brings us here again.
            Err(PeerError::Api(kube::Error::Api(status))) if status.is_already_exists() => Ok(()),
            Err(error) => Err(failed(error)),
            Ok(_) => {
                peer.reflected(reference);
                Ok(())
            }
        },
        (Some((mut wanted, _)), Some(_)) => {
            // Whole, so that removed keys go; with the version that it replaces.
            let now = call(api.get_metadata(&reference.record())).await.map_err(failed)?;
            wanted.meta_mut().resource_version = now.resource_version();
            match call(api.replace(&reference.record(), &PostParams::default(), &wanted)).await {
                // The type of a Secret cannot be changed: it is made anew when the old one is gone.
                Err(PeerError::Api(kube::Error::Api(status))) if status.is_invalid() => remove(peer, remote, reference).await,
                result => result.map(drop).map_err(failed),
            }
        }
    }
}

/// Removes the record of an object.
pub async fn remove(peer: &Peer, remote: &Remote, reference: &Reference) -> Result<(), Error> {
    let (client, namespace, name) = (remote.connection.client.clone(), &remote.connection.tenant_namespace, reference.record());
    let parameters = DeleteParams::default();
    peer.not_reflected(reference);
    let removed = if reference.kind == Kind::Secret {
        call(async { Api::<Secret>::namespaced(client, namespace).delete(&name, &parameters).await.map(drop) }).await
    } else {
        call(async { Api::<ReflectedObject>::namespaced(client, namespace).delete(&name, &parameters).await.map(drop) }).await
    };
    match removed {
        Err(PeerError::Api(kube::Error::Api(status))) if status.is_not_found() => Ok(()),
        Err(source) => {
            let Reference { namespace, name, .. } = reference.clone();
            Err(Error::Write { kind: reference.kind.name(), namespace, name, source })
        }
        Ok(()) => Ok(()),
    }
}
