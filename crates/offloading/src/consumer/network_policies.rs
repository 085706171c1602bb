//! The `NetworkPolicy`s of offloaded namespaces at each provider, with or without a network to it.
//!
//! What such a policy is there follows from the pods and namespaces of this whole cluster. They are followed from the first
//! policy on that an offloaded namespace has; who has none pays nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    runtime::watcher,
};
use liqo_kit::{Cache, Key, reflection::is_denied};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Consumer, locked,
    peer::{Peer, Remote},
    reflected::Reference,
    services::Wanted,
};
use crate::decide::{
    kind::Kind,
    network_policies::NetworkPolicy,
    policy_peers::{self, Seen, at_provider},
    selectors::Labels,
};

/// Pods come and go by the dozen: what follows from them is looked at once for all in this time.
const PAUSE: Duration = Duration::from_millis(300);

/// What policies select from.
pub struct Surroundings {
    namespaces: Cache<Labels>,
    pods: Cache<policy_peers::Pod>,
}

impl Surroundings {
    fn follow(consumer: &Arc<Consumer>) -> Self {
        let (client, stop) = (consumer.context.client.clone(), consumer.context.stop.clone());
        let weak = Arc::downgrade(consumer);
        let namespaces = Cache::watch(
            Api::<Namespace>::all(client.clone()),
            watcher::Config::default(),
            stop.clone(),
            |namespace| Some(namespace.metadata.labels.unwrap_or_default()),
            move |_, _, _| {
                if let Some(consumer) = weak.upgrade() {
                    look_at_those(&consumer, |_, _| true);
                }
            },
        );
        let (weak, known) = (Arc::downgrade(consumer), namespaces.clone());
        let pods = Cache::watch(Api::<Pod>::all(client), watcher::Config::default(), stop, reduced, move |_, old, new| {
            let Some(consumer) = weak.upgrade() else { return };
            let changed: Vec<_> = [old, new].into_iter().flatten().collect();
            let concerns = |namespace: &str, policy: &NetworkPolicy| {
                changed.iter().any(|pod| {
                    let labels = known.get(&Key::new("", pod.namespace.clone()));
                    policy_peers::concerns(policy, namespace, pod, labels.as_deref())
                })
            };
            look_at_those(&consumer, concerns);
        });
        let (weak, all) = (Arc::downgrade(consumer), (namespaces.clone(), pods.clone()));
        tokio::spawn(async move {
            if all.0.synced().await
                && all.1.synced().await
                && let Some(consumer) = weak.upgrade()
            {
                look_at_those(&consumer, |_, _| true);
            }
        });
        Self { namespaces, pods }
    }

    fn is_synced(&self) -> bool {
        self.namespaces.is_synced() && self.pods.is_synced()
    }
}

/// What is kept of a pod; nothing of one that has ended, because its address may be another's.
#[allow(clippy::needless_pass_by_value, reason = "what a watch's reduction takes")]
fn reduced(pod: Pod) -> Option<policy_peers::Pod> {
    let namespace = pod.namespace()?;
    let status = pod.status.unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let addresses: BTreeSet<IpAddr> = status
        .pod_ips
        .iter()
        .flatten()
        .map(|one| one.ip.as_str())
        .chain(status.pod_ip.as_deref())
        .filter_map(|ip| ip.parse().ok())
        .collect();
    Some(policy_peers::Pod {
        namespace,
        labels: pod.metadata.labels.unwrap_or_default(),
        addresses: addresses.into_iter().collect(),
    })
}

/// Follows the policies of a namespace that are reflected.
pub fn follow(consumer: &Arc<Consumer>, namespace: &str, stop: CancellationToken) -> Cache<NetworkPolicy> {
    // As JSON: what this version does not know must not vanish unseen.
    let resource = ApiResource::erase::<k8s_openapi::api::networking::v1::NetworkPolicy>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(consumer.context.client.clone(), namespace, &resource);
    let reduce = |object: DynamicObject| (!is_denied(&object)).then(|| NetworkPolicy::of(&object.data["spec"]));
    let weak = Arc::downgrade(consumer);
    let policies = Cache::watch(api, watcher::Config::default(), stop, reduce, move |key, _, _| {
        for peer in weak.upgrade().iter().flat_map(|consumer| consumer.all_peers()) {
            peer.references.add(reference(key));
        }
    });
    let (weak, namespace, known) = (Arc::downgrade(consumer), namespace.to_owned(), policies.clone());
    tokio::spawn(async move {
        if known.synced().await
            && let Some(consumer) = weak.upgrade()
        {
            for peer in consumer.all_peers() {
                look_at(&consumer, &peer, Some(&namespace));
            }
        }
    });
    policies
}

/// The policies of a namespace that are reflected; nothing while not all of them are known.
fn known(consumer: &Consumer, namespace: &str) -> Option<Cache<NetworkPolicy>> {
    let policies = locked(&consumer.home_objects).get(namespace).map(|home| home.policies.clone());
    policies.filter(Cache::is_synced)
}

/// What a provider is to have of a namespace before it gets a pod of it; nothing while that is not known.
pub fn before_pods(consumer: &Consumer, namespace: &str) -> Option<Vec<Reference>> {
    Some(known(consumer, namespace)?.all().iter().map(|(key, _)| reference(key)).collect())
}

fn reference(key: &Key) -> Reference {
    Reference { kind: Kind::NetworkPolicy, namespace: key.namespace.clone(), name: key.name.clone() }
}

/// Looks, a little later, at those policies again at every provider.
fn look_at_those(consumer: &Consumer, concerned: impl Fn(&str, &NetworkPolicy) -> bool) {
    let followed: Vec<Cache<NetworkPolicy>> = locked(&consumer.home_objects).values().map(|home| home.policies.clone()).collect();
    for (key, _) in followed.iter().flat_map(Cache::all).filter(|(key, policy)| concerned(&key.namespace, policy)) {
        for peer in consumer.all_peers() {
            peer.references.add_after(reference(&key), PAUSE);
        }
    }
}

/// Looks at every policy again that is or should be reflected at this provider, of one namespace or of all.
pub fn look_at(consumer: &Consumer, peer: &Peer, namespace: Option<&str>) {
    let concerns = |one: &str| namespace.is_none_or(|namespace| namespace == one);
    for (_, home) in locked(&consumer.home_objects).iter().filter(|(namespace, _)| concerns(namespace)) {
        for (key, _) in home.policies.all() {
            peer.references.add(reference(&key));
        }
    }
    for (_, twin) in peer.remote().iter().flat_map(|remote| remote.objects.all()) {
        if twin.reference.kind == Kind::NetworkPolicy && concerns(&twin.reference.namespace) {
            peer.references.add(twin.reference.clone());
        }
    }
}

/// What a provider is to have of a policy of a namespace that exists there, and whether that is narrower than it should be.
pub fn wanted(consumer: &Arc<Consumer>, peer: &Peer, remote: &Remote, reference: &Reference) -> (Wanted, bool) {
    let Some(policies) = known(consumer, &reference.namespace) else { return (Wanted::Unknown, false) };
    let Some(policy) = policies.get(&Key::new(reference.namespace.clone(), reference.name.clone())) else {
        return (Wanted::Nothing, false);
    };
    let surroundings = consumer.surroundings.get_or_init(|| Surroundings::follow(consumer));
    if !surroundings.is_synced() || !consumer.networks.is_synced() {
        return (Wanted::Unknown, false);
    }
    let namespaces: BTreeMap<String, Labels> =
        surroundings.namespaces.all().into_iter().map(|(key, labels)| (key.name, Arc::unwrap_or_clone(labels))).collect();
    let pods: Vec<Arc<policy_peers::Pod>> = surroundings.pods.all().into_iter().map(|(_, pod)| pod).collect();
    let pods: Vec<&policy_peers::Pod> = pods.iter().map(AsRef::as_ref).collect();
    let network = consumer.networks.of(&peer.id);
    let config = consumer.context.config();
    let ranges = config.status.as_ref().and_then(|status| Some(status.network.as_ref()?.pods.clone())).unwrap_or_default();
    let mapped = remote.map().map(|map| map.spec.mappings.keys().cloned().collect()).unwrap_or_default();
    let seen = Seen {
        namespaces: &namespaces,
        pods: &pods,
        mapped: &mapped,
        maps: network.as_deref().map(|network| &network.maps),
        ranges: &ranges,
    };
    let there = at_provider(&policy, &reference.namespace, &seen);
    (Wanted::Object(object(&reference.name, &there)), there.narrowed)
}

/// The object inside the record of a policy.
fn object(name: &str, policy: &NetworkPolicy) -> Value {
    json!({
        "apiVersion": Kind::NetworkPolicy.api_version(),
        "kind": Kind::NetworkPolicy.name(),
        "metadata": { "name": name },
        "spec": policy.to_json(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(pod: Value) -> Option<policy_peers::Pod> {
        reduced(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pod_has_all_its_addresses_until_it_has_ended() {
        let pod = |phase: &str| {
            json!({ "metadata": { "namespace": "shop", "name": "web", "labels": { "app": "web" } },
                "status": { "phase": phase, "podIP": "10.244.0.5", "podIPs": [{ "ip": "10.244.0.5" }, { "ip": "fd00::5" }] } })
        };
        let running = kept(pod("Running")).unwrap();
        assert_eq!(running.addresses, ["10.244.0.5", "fd00::5"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!((running.namespace.as_str(), running.labels["app"].as_str()), ("shop", "web"));
        assert_eq!((kept(pod("Succeeded")), kept(pod("Failed"))), (None, None));
    }
}
