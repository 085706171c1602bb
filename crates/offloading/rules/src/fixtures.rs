//! Objects that the tests of several modules use.

use std::time::Duration;

use liqo_api::{
    ClusterId, LargestPods, MappedNamespace, MappedNamespacePhase, NamespaceMap, NamespaceMapSpec,
    NamespaceMapStatus, WantedNamespace, labels,
};
use liqo_quantity::ResourceList;
use serde_json::{Value, json};

use crate::namespace::mapped::{ConsumerNamespace, NamespaceKind};
use crate::node::object::{NodeSpec, Outage};
use crate::pod::admission::PoolOffer;
use crate::pod::consumer_policy::ConsumerPolicy;
use crate::pod::remote_pod::RemotePod;
use crate::replica::replica_source::ReplicaSource;

/// A remote pod of shadow pod `home-uid`.
pub fn pod(name: &str, uid: &str, change: impl FnOnce(&mut Value)) -> RemotePod {
    let mut object = json!({
        "metadata": {
            "name": name, "namespace": "demo-rome-aaaaaa", "uid": uid,
            "labels": { labels::CONSUMER_ID: consumer(), labels::SHADOW_POD: "home-uid", labels::POOL: "default" },
        },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }], "nodeName": "n1" },
        "status": { "phase": "Pending" },
    });
    change(&mut object);
    RemotePod::from_pod(serde_json::from_value(object).unwrap()).unwrap()
}

/// An accepted offer of these amounts, which needs no contract.
pub fn offer(hard: ResourceList) -> PoolOffer {
    PoolOffer {
        hard,
        accepted: true,
        withdrawal: None,
        reclaim: None,
        reclaim_to: None,
        drain: None,
        missing_contract: None,
        advertised: Vec::new(),
        nodes: Vec::new(),
        largest_pods: LargestPods::default(),
        borrowed: false,
    }
}

/// Runs `then` with a virtual node of [`provider`] that has these labels.
pub fn with_node_spec<T>(
    peer_labels: &[(&str, &str)],
    outage: Outage,
    then: impl FnOnce(&NodeSpec) -> T,
) -> T {
    let peer_labels = peer_labels
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let resources = json!({"cpu": "2", "memory": "1Gi"})
        .as_object()
        .cloned()
        .unwrap();
    then(&NodeSpec {
        name: "milan",
        cluster_id: provider().as_str(),
        pool: "default",
        peer_labels: &peer_labels,
        resources: &resources,
        allocatable: &resources,
        address: "10.0.0.5",
        port: 20250,
        version: "v1.34.4",
        outage,
        withdrawal: None,
        prices: None,
        largest_pods: &LargestPods::default(),
        no_new_pods: None,
    })
}

pub fn provider() -> ClusterId {
    ClusterId::of_public_key(&[2; 32])
}

pub fn consumer() -> ClusterId {
    ClusterId::of_public_key(&[7; 32])
}

pub fn tenant() -> ConsumerNamespace {
    let kind = NamespaceKind::Tenant {
        cluster_name: Some("rome".into()),
    };
    ConsumerNamespace {
        uid: "t".into(),
        consumer: consumer(),
        kind,
        terminating: false,
        pod_security: Vec::new(),
    }
}

pub fn mapped(home: &str, uid: &str) -> ConsumerNamespace {
    ConsumerNamespace {
        uid: uid.into(),
        kind: NamespaceKind::Mapped { home: home.into() },
        ..tenant()
    }
}

/// A map with these names in its spec and these in its status.
pub fn map(wanted: &[(&str, &str)], have: &[(&str, &str, &str)]) -> NamespaceMap {
    let mappings = wanted.iter().map(|(home, name)| {
        (
            (*home).to_owned(),
            WantedNamespace {
                remote_name: (*name).to_owned(),
            },
        )
    });
    let mut map = NamespaceMap::new(
        "namespaces",
        NamespaceMapSpec {
            mappings: mappings.collect(),
        },
    );
    let entry = |name: &str, uid: &str| MappedNamespace {
        remote_name: name.to_owned(),
        uid: Some(uid.to_owned()),
        phase: MappedNamespacePhase::Ready,
        message: None,
    };
    let namespaces = have
        .iter()
        .map(|(home, name, uid)| ((*home).to_owned(), entry(name, uid)))
        .collect();
    map.status = Some(NamespaceMapStatus { namespaces });
    map
}

pub fn object(
    object_name: &str,
    content: &Value,
    change: impl FnOnce(&mut Value),
) -> ReplicaSource {
    let mut object = json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
        "metadata": { "name": object_name, "namespace": "t", "uid": "o" }, "spec": { "namespace": "demo", "object": content },
    });
    change(&mut object);
    object["spec"]["object"] = object["spec"]["object"].to_string().into();
    ReplicaSource::from_object(serde_json::from_value(object).unwrap())
}

pub fn policy(usage: Value) -> ConsumerPolicy {
    let notice = Duration::from_mins(5);
    ConsumerPolicy {
        name: "partners".into(),
        usage: serde_json::from_value(usage).unwrap(),
        notice,
    }
}
