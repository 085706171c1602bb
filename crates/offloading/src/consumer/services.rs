//! What is at a provider because its namespace is: `NetworkPolicy`s (see [`network_policies`]), and Services with their endpoints
//! where there is a network.
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
    Consumer, locked, network_policies,
    peer::{Peer, Remote},
    reflected::{HomeService, HomeSlice, Reference},
    reflection::{Error, recorded, remove, write_object},
};
use crate::decide::kind::Kind;

/// When an object is looked at again while not everything is known that decides on it.
const LOOK: Duration = Duration::from_secs(2);

/// Why a policy may open less at a provider than here.
const NARROWED: &str = "it is too long, names too many pods that are not there, or labels of Liqo's own, or has a field that Liqo does not know; what \
                        cannot be said is closed there";

/// What a provider is to have of an object.
pub enum Wanted {
    /// Not everything is known that decides on it.
    Unknown,
    /// Nothing.
    Nothing,
    /// This.
    Object(Value),
}

/// Makes the record of such an object at this provider be what is wanted.
pub async fn reconcile(consumer: &Arc<Consumer>, peer: &Peer, remote: &Remote, reference: &Reference) -> Result<Next, Error> {
    let record = recorded(remote, reference);
    let is_mapped = remote.map().is_some_and(|map| map.spec.mappings.contains_key(&reference.namespace))
        && remote.mapped(&reference.namespace).is_some();
    let (wanted, narrowed) = match reference.kind {
        _ if !is_mapped => (Wanted::Nothing, false),
        Kind::NetworkPolicy => network_policies::wanted(consumer, peer, remote, reference),
        _ => (wanted(consumer, peer, reference), false),
    };
    let wanted = match wanted {
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
        peer.forget(&narrowed_key(reference));
        remove(peer, remote, &record.reference).await?;
        return Ok(Next::OnChange);
    }
    write_object(peer, remote, reference, record.as_deref(), wanted).await?;
    if let Some(problem) = record.as_ref().and_then(|record| record.problem.as_ref())
        && peer.may_warn(&reference.record())
    {
        let message = format!("cluster {} does not have it as it is here: {problem}", peer.id);
        warn(consumer, reference, pods::NOT_REFLECTED, message).await;
    }
    if narrowed && peer.may_warn(&narrowed_key(reference)) {
        let message = format!("not all of it can be said to cluster {}: {NARROWED}", peer.id);
        warn(consumer, reference, "Narrowed", message).await;
    }
    Ok(Next::OnChange)
}

/// By what it is known when that a policy is narrower was told last.
fn narrowed_key(reference: &Reference) -> String {
    format!("{}/narrowed", reference.record())
}

fn wanted(consumer: &Consumer, peer: &Peer, reference: &Reference) -> Wanted {
    let namespace = &reference.namespace;
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

/// Tells, on the object at home, what is not as it is here.
async fn warn(consumer: &Consumer, reference: &Reference, reason: &str, message: String) {
    let Reference { kind, namespace, name } = reference.clone();
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
    consumer.context.events.warning(&object, reason, message).await;
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

/// Looks at everything again that is or should be reflected at this provider with its namespace, of one namespace or of all.
pub fn look_at(consumer: &Consumer, peer: &Peer, namespace: Option<&str>) {
    // Policies of other namespaces may speak of this one.
    network_policies::look_at(consumer, peer, None);
    let concerns = |one: &str| namespace.is_none_or(|namespace| namespace == one);
    for (_, home) in locked(&consumer.home_objects).iter().filter(|(namespace, _)| concerns(namespace)) {
        let services = home.services.all().into_iter().map(|(key, _)| reference(Kind::Service, &key));
        let slices = home.slices.all().into_iter().map(|(key, _)| reference(Kind::EndpointSlice, &key));
        for one in services.chain(slices) {
            peer.references.add(one);
        }
    }
    for (_, twin) in peer.remote().iter().flat_map(|remote| remote.objects.all()) {
        if Kind::SERVICES.contains(&twin.reference.kind) && concerns(&twin.reference.namespace) {
            peer.references.add(twin.reference.clone());
        }
    }
}
