//! What is at a provider because its namespace is: `NetworkPolicy`s (see [`network_policies`]), and, where there is a network, Services
//! with their endpoints, and Ingresses.
//!
//! All of a namespace are reflected that is offloaded to the provider, whether or not a pod names them. At home the endpoints
//! are already what the home controllers make of local and home pods; here their addresses become what the provider calls them.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, api::DynamicObject};
use liqo_api::{Exposed, NAMESPACE_OFFLOADING, pods};
use liqo_kit::{Cache, Key, Next, reflection::passes};
use serde_json::Value;

use super::{
    Consumer, locked, namespaces, network_policies,
    peer::{Peer, Remote},
    reflected::{HomeIngress, HomeService, HomeSlice, Reference, Twin},
    reflection::{Error, recorded, remove, write_object},
};
use crate::decide::kind::Kind;

/// When an object is looked at again while not everything is known that decides on it.
const LOOK: Duration = Duration::from_secs(2);

/// So many Services and Ingresses are shown in the status of a `NamespaceOffloading`, for each provider.
const MOST_EXPOSED: usize = 50;

/// The reasons that providers give.
const REASONS: [&str; 9] = [
    "AnnotationNotAllowed",
    "NameTaken",
    "KindNotAllowed",
    "NoService",
    "AddressRefused",
    "Invalid",
    "ClassNotAllowed",
    "HostNotAllowed",
    "LimitReached",
];

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
    let (wanted, narrowed) = match (reference.kind, namespaces::goes_to(consumer, peer, &reference.namespace)) {
        // Nobody tells when it is known.
        (_, None) => return Ok(Next::After(LOOK)),
        (_, Some(goes)) if !(goes && is_mapped) => (Wanted::Nothing, false),
        (Kind::NetworkPolicy, _) => network_policies::wanted(consumer, peer, remote, reference),
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
        REASONS.iter().chain([&""]).for_each(|reason| peer.forget(&problem_key(reference, reason)));
        peer.forget(&narrowed_key(reference));
        remove(peer, remote, &record.reference).await?;
        return Ok(Next::OnChange);
    }
    write_object(peer, remote, reference, record.as_deref(), wanted).await?;
    if let Some(problem) = record.as_ref().and_then(|record| problem(consumer, remote, record))
        && peer.may_warn(&problem_key(reference, &problem))
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

/// What is not at the provider as it is here: of this object or, of an Ingress, of the Secrets that it names.
fn problem(consumer: &Consumer, remote: &Remote, record: &Twin) -> Option<String> {
    let of_secrets = || {
        let Reference { kind, namespace, name } = &record.reference;
        let ingress =
            ingresses_of(consumer, namespace).filter(|_| *kind == Kind::Ingress)?.get(&Key::new(namespace.clone(), name.clone()));
        secrets_of(namespace, ingress.as_deref()).find_map(|secret| {
            let problem = recorded(remote, &secret)?.problem.clone()?;
            Some(format!("{problem} (Secret {})", secret.name))
        })
    };
    record.problem.clone().or_else(of_secrets)
}

/// The Ingresses of a namespace that is followed.
fn ingresses_of(consumer: &Consumer, namespace: &str) -> Option<Cache<HomeIngress>> {
    locked(&consumer.home_objects).get(namespace).map(|home| home.ingresses.clone())
}

/// Looks at the Ingresses again that name this Secret.
pub fn look_at_ingresses_that_name(consumer: &Consumer, peer: &Peer, secret: &Reference) {
    for (key, ingress) in ingresses_of(consumer, &secret.namespace).iter().flat_map(Cache::all) {
        if ingress.secrets.contains(&secret.name) {
            peer.references.add_after(reference(Kind::Ingress, &key), LOOK);
        }
    }
}

/// By what it is known when such a problem was told last. What a provider calls otherwise is one.
fn problem_key(reference: &Reference, problem: &str) -> String {
    let reason = REASONS.iter().find(|reason| problem.starts_with(**reason)).unwrap_or(&"");
    format!("{}/{reason}", reference.record())
}

/// By what it is known when that a policy is narrower was told last.
fn narrowed_key(reference: &Reference) -> String {
    format!("{}/narrowed", reference.record())
}

fn wanted(consumer: &Consumer, peer: &Peer, reference: &Reference) -> Wanted {
    let namespace = &reference.namespace;
    let followed = locked(&consumer.home_objects)
        .get(namespace)
        .map(|home| (home.services.clone(), home.slices.clone(), home.ingresses.clone()));
    let is_known = |all: &(Cache<HomeService>, Cache<HomeSlice>, Cache<HomeIngress>)| {
        all.0.is_synced() && all.1.is_synced() && all.2.is_synced() && consumer.networks.is_synced()
    };
    let Some((services, slices, ingresses)) = followed.filter(is_known) else { return Wanted::Unknown };
    let Some(network) = consumer.networks.of(&peer.id) else { return Wanted::Nothing };
    let goes = |is_allowed: bool| is_on_list(consumer, namespace, is_allowed);
    let service = |name: &str| services.get(&Key::new(namespace.clone(), name)).filter(|service| goes(service.is_allowed));
    let key = Key::new(namespace.clone(), reference.name.clone());
    let object = match reference.kind {
        Kind::Service => service(&reference.name).and_then(|service| service.object()),
        Kind::Ingress => ingresses.get(&key).filter(|ingress| goes(ingress.is_allowed)).and_then(|ingress| ingress.object()),
        _ => {
            let slice = slices.get(&key).filter(|slice| service(&slice.service).is_some());
            slice.and_then(|slice| slice.seen_by(&reference.name, &network.maps))
        }
    };
    object.map_or(Wanted::Nothing, Wanted::Object)
}

/// Whether the list of the namespace lets an object go.
fn is_on_list(consumer: &Consumer, namespace: &str, is_allowed: bool) -> bool {
    let offloading = consumer.offloadings.get(&Key::new(namespace, NAMESPACE_OFFLOADING));
    passes(offloading.map(|offloading| offloading.spec.reflection).unwrap_or_default(), is_allowed)
}

/// Whether an Ingress that goes to this provider, and that it took, names this object. Before it took it, its Secrets are nothing to it.
/// Nothing while not all is known that decides on it.
pub fn ingress_names(consumer: &Consumer, peer: &Peer, remote: &Remote, reference: &Reference) -> Option<bool> {
    if reference.kind != Kind::Secret {
        return Some(false);
    }
    // A namespace that is not followed is not offloaded.
    let Some(ingresses) = ingresses_of(consumer, &reference.namespace) else { return Some(false) };
    if !ingresses.is_synced() {
        return None;
    }
    // The provider writes both the record and what it says of it, so that alone gets it no key.
    let is_shown = |key: &Key| recorded(remote, &self::reference(Kind::Ingress, key)).is_some_and(|twin| twin.exposure.is_some());
    let is_sent = |ingress: &HomeIngress| is_on_list(consumer, &reference.namespace, ingress.is_allowed);
    let names = ingresses
        .all()
        .iter()
        .any(|(key, ingress)| ingress.secrets.contains(&reference.name) && is_sent(ingress) && is_shown(key));
    if names { namespaces::goes_to(consumer, peer, &reference.namespace) } else { Some(false) }
}

/// What of a namespace the world reaches at this provider.
pub fn exposed(consumer: &Consumer, remote: &Remote, namespace: &str) -> Vec<Exposed> {
    let home = locked(&consumer.home_objects).get(namespace).map(|home| (home.services.clone(), home.ingresses.clone()));
    let Some((services, ingresses)) = home else { return Vec::new() };
    // Only of what is here: names of anything else would be the provider's words.
    let is_ours = |reference: &Reference| {
        let key = Key::new(namespace, &*reference.name);
        match reference.kind {
            Kind::Service => services.get(&key).is_some(),
            Kind::Ingress => ingresses.get(&key).is_some(),
            _ => false,
        }
    };
    let twins =
        remote.objects.all().into_iter().filter(|(_, twin)| twin.reference.namespace == namespace && is_ours(&twin.reference));
    let mut all: Vec<Exposed> = twins
        .filter_map(|(_, twin)| {
            let (kind, name) = (twin.reference.kind.name().to_owned(), twin.reference.name.clone());
            Some(Exposed { kind, name, exposure: twin.exposure.clone()? })
        })
        .collect();
    all.sort_by(|one, other| (&one.kind, &one.name).cmp(&(&other.kind, &other.name)));
    all.truncate(MOST_EXPOSED);
    all
}

/// What is to be looked at when a provider says otherwise how the world reaches a twin. A little later, because it may say so as often
/// as it likes.
pub fn exposure_changed(consumer: &Consumer, peer: &Peer, twin: &Twin) {
    let Reference { kind, namespace, name } = &twin.reference;
    consumer.namespace_queue.add_after(namespaces::Work::Namespace(namespace.clone()), LOOK);
    if *kind == Kind::Ingress {
        let ingress = ingresses_of(consumer, namespace).and_then(|all| all.get(&Key::new(namespace.clone(), name.clone())));
        secrets_of(namespace, ingress.as_deref()).for_each(|secret| peer.references.add_after(secret, LOOK));
        // Also those that no Ingress names any more, or not for this one.
        for (_, twin) in peer.remote().iter().flat_map(|remote| remote.secrets.all()) {
            if twin.reference.namespace == *namespace && twin.reference.is_for_api_server().is_none() {
                peer.references.add_after(twin.reference.clone(), LOOK);
            }
        }
    }
}

fn secrets_of<'a>(namespace: &'a str, ingress: Option<&'a HomeIngress>) -> impl Iterator<Item = Reference> + use<'a> {
    let names = ingress.into_iter().flat_map(|ingress| &ingress.secrets);
    names.map(|name| Reference { kind: Kind::Secret, namespace: namespace.to_owned(), name: name.clone() })
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

/// What is to be looked at when a Service changed: itself and, when it comes or goes or is allowed to, its slices.
pub fn service_changed(
    consumer: &Arc<Consumer>,
    slices: Cache<HomeSlice>,
) -> impl FnMut(&Key, Option<&Arc<HomeService>>, Option<&Arc<HomeService>>) + Send + use<> {
    let consumer = Arc::downgrade(consumer);
    move |key, old, new| {
        let mut concerned = vec![reference(Kind::Service, key)];
        if old.map(|service| service.is_allowed) != new.map(|service| service.is_allowed) {
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

/// What is to be looked at when an Ingress changed: itself, and the Secrets that it names or named.
pub fn ingress_changed(
    consumer: &Arc<Consumer>,
) -> impl FnMut(&Key, Option<&Arc<HomeIngress>>, Option<&Arc<HomeIngress>>) + Send + use<> {
    let consumer = Arc::downgrade(consumer);
    move |key, old, new| {
        for peer in consumer.upgrade().iter().flat_map(|consumer| consumer.all_peers()) {
            peer.references.add(reference(Kind::Ingress, key));
            for secret in [old, new].into_iter().flat_map(|ingress| secrets_of(&key.namespace, ingress.map(AsRef::as_ref))) {
                peer.references.add(secret);
            }
        }
    }
}

fn reference(kind: Kind, key: &Key) -> Reference {
    Reference { kind, namespace: key.namespace.clone(), name: key.name.clone() }
}

/// Looks at the records of a namespace once it is known what stands at home: what is gone since must go.
pub fn look_when_known(
    consumer: &Arc<Consumer>,
    namespace: &str,
    (services, slices, ingresses): (&Cache<HomeService>, &Cache<HomeSlice>, &Cache<HomeIngress>),
) {
    let (consumer, namespace) = (Arc::downgrade(consumer), namespace.to_owned());
    let (services, slices, ingresses) = (services.clone(), slices.clone(), ingresses.clone());
    tokio::spawn(async move {
        if services.synced().await
            && slices.synced().await
            && ingresses.synced().await
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
        let ingresses = home.ingresses.all().into_iter().map(|(key, _)| reference(Kind::Ingress, &key));
        for one in services.chain(slices).chain(ingresses) {
            peer.references.add(one);
        }
    }
    for (_, twin) in peer.remote().iter().flat_map(|remote| remote.objects.all()) {
        if Kind::SERVICES.contains(&twin.reference.kind) && concerns(&twin.reference.namespace) {
            peer.references.add(twin.reference.clone());
        }
    }
}
