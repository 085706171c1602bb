//! The Services of offloaded namespaces, and their endpoints, at each provider that there is a network to.
//!
//! All of a namespace are reflected that is offloaded to the provider, whether or not a pod names them. At home the endpoints
//! are already what the home controllers make of local and home pods; here their addresses become what the provider calls them.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, api::DynamicObject};
use liqo_api::pods;
use liqo_kit::{Cache, Key, Next};
use serde_json::Value;

use super::{
    Consumer, locked,
    peer::{Peer, Remote},
    reflected::{HomeService, HomeSlice, Reference, Twin},
    reflection::{Error, recorded, remove, write_object},
};
use crate::decide::kind::Kind;

/// When an object is looked at again while not everything is known that decides on it.
const LOOK: Duration = Duration::from_secs(2);

/// What a provider is to have of an object.
enum Wanted {
    /// Not everything is known that decides on it.
    Unknown,
    /// Nothing.
    Nothing,
    /// This.
    Object(Value),
}

/// Makes the record of a Service or slice at this provider be what is wanted.
pub async fn reconcile(consumer: &Consumer, peer: &Peer, remote: &Remote, reference: &Reference) -> Result<Next, Error> {
    let record = recorded(remote, reference);
    let wanted = match wanted(consumer, peer, remote, reference) {
        Wanted::Unknown if record.is_none() => return Ok(Next::OnChange),
        Wanted::Unknown => return Ok(Next::After(LOOK)),
        Wanted::Nothing => None,
        Wanted::Object(object) => Some(object),
    };
    if record.as_ref().is_some_and(|record| record.terminating) {
        return Ok(Next::OnChange);
    }
    if let (None, Some(record)) = (&wanted, &record) {
        peer.forget(&reference.record());
        remove(peer, remote, &record.reference).await?;
        return Ok(Next::OnChange);
    }
    write_object(peer, remote, reference, record.as_deref(), wanted).await?;
    if let Some(record) = record {
        warn(consumer, peer, &record).await;
    }
    Ok(Next::OnChange)
}

fn wanted(consumer: &Consumer, peer: &Peer, remote: &Remote, reference: &Reference) -> Wanted {
    let namespace = &reference.namespace;
    let is_mapped =
        remote.map().is_some_and(|map| map.spec.mappings.contains_key(namespace)) && remote.mapped(namespace).is_some();
    if !is_mapped {
        return Wanted::Nothing;
    }
    let followed = locked(&consumer.home_objects).get(namespace).map(|home| (home.services.clone(), home.slices.clone()));
    let Some((services, slices)) = followed.filter(|(services, slices)| services.is_synced() && slices.is_synced()) else {
        return Wanted::Unknown;
    };
    if !consumer.networks.is_synced() {
        return Wanted::Unknown;
    }
    let Some(network) = consumer.networks.of(&peer.id) else { return Wanted::Nothing };
    let key = Key::new(namespace.clone(), reference.name.clone());
    let object = if reference.kind == Kind::Service {
        services.get(&key).and_then(|service| service.object())
    } else {
        let slice = slices.get(&key).filter(|slice| services.get(&Key::new(namespace.clone(), slice.service.clone())).is_some());
        slice.and_then(|slice| slice.seen_by(&reference.name, &network.maps))
    };
    object.map_or(Wanted::Nothing, Wanted::Object)
}

/// Tells, on the object at home, why the provider has it not or only in part.
async fn warn(consumer: &Consumer, peer: &Peer, record: &Twin) {
    let Some(problem) = record.problem.as_ref().filter(|_| peer.may_warn(&record.reference.record())) else { return };
    let Reference { kind, namespace, name } = record.reference.clone();
    let api: Api<DynamicObject> = Api::namespaced_with(consumer.context.client.clone(), &namespace, &kind.resource());
    let Ok(Some(home)) = api.get_metadata_opt(&name).await else { return };
    let object = ObjectReference {
        api_version: Some(kind.api_version().into()),
        kind: Some(kind.name().into()),
        namespace: Some(namespace),
        name: Some(name),
        uid: home.metadata.uid,
        ..ObjectReference::default()
    };
    let message = format!("cluster {} does not have it as it is here: {problem}", peer.id);
    consumer.context.events.warning(&object, pods::NOT_REFLECTED, message).await;
}

/// What is to be looked at when a Service changed: itself and, when it comes or goes, its slices.
pub fn service_changed(
    consumer: &Arc<Consumer>,
    slices: Cache<HomeSlice>,
) -> impl FnMut(&Key, Option<&Arc<HomeService>>, Option<&Arc<HomeService>>) + Send + use<> {
    let consumer = Arc::downgrade(consumer);
    move |key, old, new| {
        let mut concerned = vec![reference(Kind::Service, key)];
        if old.is_some() != new.is_some() {
            let of_it = slices.all().into_iter().filter(|(_, slice)| slice.service == key.name);
            concerned.extend(of_it.map(|(key, _)| reference(Kind::EndpointSlice, &key)));
        }
        for peer in consumer.upgrade().iter().flat_map(|consumer| consumer.all_peers()) {
            for one in &concerned {
                peer.references.add(one.clone());
            }
        }
    }
}

/// What is to be looked at when a slice changed.
pub fn slice_changed(
    consumer: &Arc<Consumer>,
) -> impl FnMut(&Key, Option<&Arc<HomeSlice>>, Option<&Arc<HomeSlice>>) + Send + use<> {
    let consumer = Arc::downgrade(consumer);
    move |key, _, _| {
        for peer in consumer.upgrade().iter().flat_map(|consumer| consumer.all_peers()) {
            peer.references.add(reference(Kind::EndpointSlice, key));
        }
    }
}

fn reference(kind: Kind, key: &Key) -> Reference {
    Reference { kind, namespace: key.namespace.clone(), name: key.name.clone() }
}

/// Looks at the records of a namespace once it is known what stands at home: what is gone since must go.
pub fn look_when_known(consumer: &Arc<Consumer>, namespace: &str, services: &Cache<HomeService>, slices: &Cache<HomeSlice>) {
    let (consumer, namespace) = (Arc::downgrade(consumer), namespace.to_owned());
    let (services, slices) = (services.clone(), slices.clone());
    tokio::spawn(async move {
        if services.synced().await
            && slices.synced().await
            && let Some(consumer) = consumer.upgrade()
        {
            for peer in consumer.all_peers() {
                look_at(&consumer, &peer, Some(&namespace));
            }
        }
    });
}

/// Looks at every Service and slice again that is or should be reflected at this provider, of one namespace or of all.
pub fn look_at(consumer: &Consumer, peer: &Peer, namespace: Option<&str>) {
    let concerns = |one: &str| namespace.is_none_or(|namespace| namespace == one);
    for (_, home) in locked(&consumer.home_objects).iter().filter(|(namespace, _)| concerns(namespace)) {
        let services = home.services.all().into_iter().map(|(key, _)| reference(Kind::Service, &key));
        let slices = home.slices.all().into_iter().map(|(key, _)| reference(Kind::EndpointSlice, &key));
        for one in services.chain(slices) {
            peer.references.add(one);
        }
    }
    for (_, twin) in peer.remote().iter().flat_map(|remote| remote.objects.all()) {
        if twin.reference.kind.is_of_namespace() && concerns(&twin.reference.namespace) {
            peer.references.add(twin.reference.clone());
        }
    }
}
