//! Makes, checks and deletes the mapped namespaces of each consumer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, Preconditions},
};
use liqo_api::{ClusterId, MappedNamespace, MappedNamespacePhase, NAMESPACE_MAP, NamespaceMap};
use liqo_kit::{Key, Next};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Error, Provider, lock, manifests,
    mapping::{Plan, Situation, Step, plan},
    namespaces::OurNamespace,
    told::difference,
    unless_gone, unless_gone_or_replaced,
    usage::{self, ENFORCE, Held},
    walls::{self, Walls},
};
use crate::decide::travel::ProviderRules;

/// How often what belongs into a namespace is looked for again.
const CHECK: Duration = Duration::from_secs(600);
/// How often a refused name is looked at again.
const REFUSED_CHECK: Duration = Duration::from_secs(60);
/// What we write with.
const FIELD_MANAGER: &str = "liqo-offloading";

/// What is remembered between two looks; losing it costs some reads.
#[derive(Default)]
pub struct Memory {
    /// When what belongs into a namespace was found or put there, by the namespace's UID.
    prepared: Mutex<HashMap<String, Instant>>,
    /// What was written last, by tenant namespace: the cache may be behind.
    written: Mutex<HashMap<String, Written>>,
}

/// The status that a map was given.
struct Written {
    map_uid: Option<String>,
    namespaces: BTreeMap<String, MappedNamespace>,
}

/// Looks at all mapped namespaces of one tenant.
pub async fn reconcile(provider: Arc<Provider>, tenant_namespace: String) -> Result<Next, Error> {
    let Some(consumer) = consumer_of(&tenant_namespace) else { return Ok(Next::OnChange) };
    let (tenant, map) = (provider.tenant(&tenant_namespace), provider.map(&tenant_namespace));
    let mut namespaces = provider.all_namespaces();
    let held = provider.held(&consumer);
    let mut taken = HashSet::new();
    // Each round does what the plan says and plans again with what came of it; making a namespace takes three.
    let mut last = Plan::default();
    for _ in 0..4 {
        last = plan(
            &consumer,
            &Situation {
                tenant: tenant.as_deref(),
                map: map.as_deref(),
                namespaces: &namespaces,
                held: held.as_ref(),
                prepared: &|uid| lock(&provider.mapped.prepared).get(uid).is_some_and(|at| at.elapsed() < CHECK),
                has_pods: &|name| provider.pods.all().iter().any(|(key, _)| key.namespace == name),
                taken: &|name| taken.contains(name),
            },
        );
        if last.steps.is_empty() {
            break;
        }
        for step in &last.steps {
            match step {
                Step::Create { home, name } => match create(&provider, name, &consumer, home, held.as_ref()).await? {
                    Some(made) => _ = namespaces.insert(name.clone(), Arc::new(made)),
                    None => _ = taken.insert(name.clone()),
                },
                Step::Secure { name, uid, level } => {
                    secure(&provider, name, uid, level).await?;
                    if let Some(secured) = namespaces.get_mut(name) {
                        let labels = &mut Arc::make_mut(secured).pod_security;
                        labels.retain(|(key, _)| key != ENFORCE);
                        labels.push((ENFORCE.to_owned(), (*level).to_owned()));
                    }
                }
                Step::Prepare { name, uid } => {
                    prepare(&provider, name, &consumer).await?;
                    lock(&provider.mapped.prepared).insert(uid.clone(), Instant::now());
                }
                Step::Delete { name, uid } => {
                    delete(&provider, name, uid).await?;
                    lock(&provider.mapped.prepared).remove(uid);
                    if let Some(going) = namespaces.get_mut(name) {
                        Arc::make_mut(going).terminating = true;
                    }
                }
            }
        }
    }
    if let Some(map) = map.as_deref().filter(|_| tenant.is_some_and(|tenant| !tenant.terminating)) {
        tell(&provider, &tenant_namespace, map, &last.status).await?;
    } else {
        lock(&provider.mapped.written).remove(&tenant_namespace);
    }
    let phases: Vec<MappedNamespacePhase> = last.status.values().map(|entry| entry.phase).collect();
    Ok(if phases.contains(&MappedNamespacePhase::Refused) {
        Next::After(REFUSED_CHECK)
    } else if phases.contains(&MappedNamespacePhase::Ready) {
        Next::After(CHECK)
    } else {
        Next::OnChange
    })
}

/// What is not the internet for pods of any consumer.
pub fn inside(provider: &Provider) -> BTreeSet<IpNet> {
    let networks = provider.networks.all();
    let places = networks.iter().flat_map(|network| network.places());
    let nodes = provider.nodes.all().into_iter().flat_map(|(_, networks)| Arc::unwrap_or_clone(networks));
    walls::inside(&provider.context.config(), nodes.chain(places))
}

/// What limits the pods of a consumer.
pub fn walls(provider: &Provider, consumer: &ClusterId) -> Walls {
    let inside = inside(provider);
    let config = provider.context.config();
    let prefixes = provider.networks.of(consumer).iter().flat_map(|network| network.places().collect::<Vec<_>>()).collect();
    let ranges = config.status.iter().filter_map(|status| status.network.as_ref());
    let ranges = ranges.filter(|_| provider.held(consumer).is_some_and(|held| held.usage.api_server));
    let api_servers = ranges.flat_map(|ranges| &ranges.api_servers).map(|one| SocketAddr::new(one.address, one.port)).collect();
    let held = provider.held(consumer);
    let entrances = held.iter().flat_map(|held| &held.usage.entrances).filter_map(|one| walls::entrance(one)).collect();
    Walls { consumer: consumer.clone(), inside, prefixes, api_servers, entrances }
}

fn consumer_of(tenant_namespace: &str) -> Option<ClusterId> {
    let id: ClusterId = tenant_namespace.rsplit('-').next()?.parse().ok()?;
    (liqo_api::tenant_namespace(&id) == tenant_namespace).then_some(id)
}

/// The namespace that was made, or was made before; nothing when the name belongs to somebody else.
async fn create(
    provider: &Provider,
    name: &str,
    consumer: &ClusterId,
    home: &str,
    held: Option<&Held>,
) -> Result<Option<OurNamespace>, Error> {
    let api: Api<Namespace> = Api::all(provider.context.client.clone());
    let key = || Key::new("", name);
    let ours = |found: Namespace| OurNamespace::reduce(found).filter(|found| found.is_mapped_from(consumer, home));
    let found = api.get_opt(name).await.map_err(|source| Error::Read { kind: "Namespace", key: key(), source })?;
    if let Some(found) = found {
        return Ok(ours(found));
    }
    let wanted =
        manifests::namespace(name, consumer, home, usage::level(held.map(|held| held.usage.pod_security).unwrap_or_default()));
    let wanted: Namespace =
        serde_json::from_value(wanted).map_err(|source| Error::Encode { kind: "Namespace", key: key(), source })?;
    let made = api.create(&PostParams::default(), &wanted).await;
    let made = made.map_err(|source| Error::Create { kind: "Namespace", key: key(), source })?;
    tracing::info!(namespace = name, %consumer, home, "made a mapped namespace");
    Ok(ours(made))
}

/// Lets a namespace that exists enforce another Pod Security standard. Pods that run in it stay.
async fn secure(provider: &Provider, name: &str, uid: &str, level: &str) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(provider.context.client.clone());
    let patch = json!({ "metadata": { "uid": uid, "labels": { ENFORCE: level } } });
    let answer = unless_gone_or_replaced(api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await);
    answer.map_err(|source| Error::Change { kind: "Namespace", key: Key::new("", name), source })?;
    tracing::info!(namespace = name, level, "changed the Pod Security standard as the policy says");
    Ok(())
}

/// Puts into the namespace what belongs there and is not as it should be.
async fn prepare(provider: &Provider, name: &str, consumer: &ClusterId) -> Result<(), Error> {
    let requests = ProviderRules::default().default_requests;
    for wanted in manifests::contents(name, consumer, &provider.context.namespace, &requests) {
        ensure(provider, &wanted).await?;
    }
    Ok(())
}

/// Makes an object hold what is wanted of it; writes nothing when it does.
async fn ensure(provider: &Provider, wanted: &Value) -> Result<(), Error> {
    let text = |pointer: &str| wanted.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("/kind")));
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let kind = match text("/kind") {
        "RoleBinding" => "RoleBinding",
        "LimitRange" => "LimitRange",
        _ => "NetworkPolicy",
    };
    let key = || Key::new(namespace, name);
    let api: Api<DynamicObject> = Api::namespaced_with(provider.context.client.clone(), namespace, &resource);
    let found = api.get_opt(name).await.map_err(|source| Error::Read { kind, key: key(), source })?;
    if let Some(found) = found {
        let found = serde_json::to_value(found).map_err(|source| Error::Encode { kind, key: key(), source })?;
        if manifests::holds(&found, wanted) {
            return Ok(());
        }
    }
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(name, &params, &Patch::Apply(wanted)).await.map_err(|source| Error::Change { kind, key: key(), source })?;
    Ok(())
}

async fn delete(provider: &Provider, name: &str, uid: &str) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(provider.context.client.clone());
    let only_this = DeleteParams::default().preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    let answer = unless_gone_or_replaced(api.delete(name, &only_this).await);
    answer.map_err(|source| Error::Delete { kind: "Namespace", key: Key::new("", name), source })?;
    tracing::info!(namespace = name, "deleted a mapped namespace that is not wanted any more");
    Ok(())
}

/// Writes the status of the map if it says something new.
async fn tell(
    provider: &Provider,
    tenant: &str,
    map: &NamespaceMap,
    status: &BTreeMap<String, MappedNamespace>,
) -> Result<(), Error> {
    let shown = map.status.as_ref().map(|status| status.namespaces.clone()).unwrap_or_default();
    let last = lock(&provider.mapped.written)
        .get(tenant)
        .filter(|last| last.map_uid == map.metadata.uid)
        .map(|last| last.namespaces.clone());
    let before = json!({ "namespaces": last.unwrap_or(shown) });
    let Some(change) = difference(&before, &json!({ "namespaces": status })) else { return Ok(()) };
    let patch = json!({ "metadata": { "uid": map.metadata.uid }, "status": change });
    let api: Api<NamespaceMap> = Api::namespaced(provider.context.client.clone(), tenant);
    let answer = unless_gone(api.patch_status(NAMESPACE_MAP, &PatchParams::default(), &Patch::Merge(&patch)).await);
    answer.map_err(|source| Error::Change { kind: "NamespaceMap", key: Key::new(tenant, NAMESPACE_MAP), source })?;
    lock(&provider.mapped.written)
        .insert(tenant.to_owned(), Written { map_uid: map.metadata.uid.clone(), namespaces: status.clone() });
    Ok(())
}
