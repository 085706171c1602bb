//! For tests: a small cluster, rome, that borrows from milan and has no faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod, discovery::v1::EndpointSlice},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::ResourceExt as _;
use liqo_api::{ClusterId, Condition, annotations, gateway_lease, labels, links};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    ApiServerFacts, ClusterComponents, ClusterFacts, CredentialLifetime, LiqoObjects,
    PodDiagnostics, wanted_rights,
};
use crate::{
    manifests::{FABRIC, FABRIC_NAMESPACE, INSTALLED_BY, MANAGER},
    version::CLIENT,
};

/// The time of the API server.
pub const NOW: &str = "2026-01-01T12:00:00Z";

/// An object from its JSON.
pub fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub fn rome() -> ClusterId {
    ClusterId::of_public_key(&[1; 32])
}

pub fn milan() -> ClusterId {
    ClusterId::of_public_key(&[2; 32])
}

/// A condition that changed just now.
pub fn condition(kind: &str, status: &str, reason: &str) -> Condition {
    of(
        json!({ "type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": NOW }),
    )
}

/// A Lease that its holder renewed `ago` seconds ago; the holder's clock is `ahead` seconds ahead.
pub fn lease(name: &str, holder: &str, ago: i64, ahead: i64) -> Lease {
    let now: Timestamp = NOW.parse().unwrap();
    let written = now - SignedDuration::from_secs(ago);
    let renewed = written + SignedDuration::from_secs(ahead);
    of(json!({
        "metadata": { "name": name, "managedFields": [{ "operation": "Update", "time": written }] },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string() },
    }))
}

/// The fabric pod on rome-1.
pub fn fabric_pod(ready: &str) -> Pod {
    of(json!({
        "metadata": { "name": "liqo-fabric-x", "namespace": FABRIC_NAMESPACE, "labels": { "app.kubernetes.io/name": FABRIC } },
        "spec": { "nodeName": "rome-1", "hostNetwork": true, "containers": [] },
        "status": {
            "podIP": "172.18.0.2",
            "conditions": [{ "type": "Ready", "status": ready }],
            "containerStatuses": [{ "name": "fabric", "ready": ready == "True", "restartCount": 0, "image": "i", "imageID": "i", "state": { "running": {} } }],
        },
    }))
}

pub fn slice(service: &str, ready: bool) -> EndpointSlice {
    of(json!({
        "metadata": { "labels": { "kubernetes.io/service-name": service } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["10.244.0.3"], "conditions": { "ready": ready } }],
    }))
}

fn manager_pod() -> Pod {
    of(json!({
        "metadata": { "name": "manager-1", "namespace": "liqo" },
        "spec": { "nodeName": "rome-1", "containers": [] },
        "status": { "podIP": "10.244.0.5", "containerStatuses": [{ "name": "m", "ready": true, "restartCount": 0, "image": "i", "imageID": "i" }] },
    }))
}

fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = liqo_api::custom_resource_definitions();
    for definition in &mut definitions {
        definition
            .labels_mut()
            .insert(INSTALLED_BY.0.to_owned(), INSTALLED_BY.1.to_owned());
        let established = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
        definition.status = Some(of(established));
    }
    definitions
}

fn gateway() -> Lease {
    let mut gateway = lease(&gateway_lease(0), "rome-1", 1, 0);
    gateway
        .labels_mut()
        .insert(labels::GATEWAY.to_owned(), "true".to_owned());
    gateway.annotations_mut().insert(
        annotations::GATEWAY_KEY.to_owned(),
        "key of rome".to_owned(),
    );
    gateway
}

fn liqo_objects() -> LiqoObjects {
    let conditions: Vec<Condition> = links::BORROWING
        .iter()
        .chain(&links::NETWORK)
        .map(|kind| condition(kind, "True", "Fine"))
        .collect();
    LiqoObjects {
        config: Ok(Some(of(json!({
            "metadata": { "name": "liqo" },
            "spec": { "clusterName": "rome" },
            "status": {
                "clusterID": rome(),
                "version": CLIENT,
                "authURL": "https://172.18.0.2:30001",
                "apiServerURL": "https://172.18.0.2:6443",
                "network": { "podCIDRs": ["10.244.0.0/16"], "serviceCIDRs": ["10.96.0.0/12"], "externalCIDRs": ["10.70.0.0/24"] },
                "conditions": [condition(liqo_api::ADDRESSES_KNOWN, "True", "Found")],
            },
        })))),
        manager: Ok(Some(of(json!({
            "spec": { "replicas": 1, "selector": {}, "template": {} },
            "status": { "availableReplicas": 1 },
        })))),
        peers: Ok(vec![of(json!({
            "metadata": { "name": "milan", "creationTimestamp": NOW },
            "spec": { "clusterID": milan(), "authURL": "https://172.18.0.9:30001", "outgoingPeering": "Yes" },
            "status": { "conditions": conditions, "apiServerURL": "https://172.18.0.9:6443" },
        }))]),
        tunnels: Ok(vec![of(json!({
            "metadata": { "name": milan() },
            "spec": {
                "clusterID": milan(),
                "clusterName": "milan",
                "exported": { "10.244.0.0/16": "10.66.0.0/16" },
                "imported": { "10.244.0.0/16": "10.65.0.0/16" },
                "gateways": [{ "publicKey": "key of milan", "endpoints": ["172.18.0.9:51840"] }],
                "mtu": 1420,
            },
            "status": { "gateway": "rome-1", "conditions": [condition(liqo_api::CONNECTED, "True", "Connected")] },
        }))]),
        offers: Ok(Vec::new()),
        virtual_nodes: Ok(Vec::new()),
        offloadings: Ok(Vec::new()),
    }
}

fn components() -> ClusterComponents {
    ClusterComponents {
        daemon_sets: Ok(Vec::new()),
        kube_proxy: Ok(None),
        cilium_replaces_kube_proxy: Ok(None),
        corefile: Ok(Some(
            ".:53 {\n    kubernetes cluster.local in-addr.arpa {\n    }\n}\n".to_owned(),
        )),
        dns: Ok(vec![slice("kube-dns", true)]),
    }
}

/// A cluster without any fault.
pub fn facts() -> ClusterFacts {
    // Reading the manifests takes a while.
    static HEALTHY: LazyLock<ClusterFacts> = LazyLock::new(healthy);
    HEALTHY.clone()
}

fn healthy() -> ClusterFacts {
    let now: Timestamp = NOW.parse().unwrap();
    let credential = CredentialLifetime {
        issued_at: now,
        expires_at: now + SignedDuration::from_hours(1),
    };
    ClusterFacts {
        name: "rome".to_owned(),
        api_server: ApiServerFacts {
            url: "https://rome".to_owned(),
            version: "v1.34.4".to_owned(),
            minor: Some(34),
            date: Some(now),
            asked_at: now,
            took: SignedDuration::from_millis(4),
        },
        refused: Vec::new(),
        liqo: liqo_objects(),
        definitions: Ok(definitions()),
        pods: Ok(vec![manager_pod(), fabric_pod("True")]),
        diagnostics: PodDiagnostics::default(),
        leases: Ok(vec![lease(MANAGER, "manager-1", 1, 0), gateway()]),
        node_leases: Ok(vec![lease("rome-1", "rome-1", 5, 0)]),
        tenant_leases: Ok(Vec::new()),
        slices: Ok(["liqo-auth", "liqo-webhook", "liqo-dns"]
            .map(|service| slice(service, true))
            .into()),
        webhook: Ok(Some(of(json!({ "metadata": { "name": "liqo" } })))),
        webhook_certificate: Ok(None),
        rights: wanted_rights(),
        nodes: Ok(vec![of(json!({
            "metadata": { "name": "rome-1" },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "172.18.0.2" }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }))]),
        components: components(),
        namespaces: Ok(Vec::new()),
        announced_domains: Ok(BTreeMap::new()),
        credentials: BTreeMap::from([(milan(), Ok(Some(credential)))]),
        local_pods: Ok(Vec::new()),
        failed_creations: Ok(Vec::new()),
        created_since: BTreeSet::new(),
    }
}

/// The other side: milan, which lends to rome.
pub fn other() -> ClusterFacts {
    let mut facts = facts();
    let text = |value: &Value| {
        let pairs = [
            (rome().to_string(), milan().to_string()),
            ("172.18.0.2".into(), "172.18.0.9".into()),
            ("10.65.".into(), "10.66.".into()),
            ("rome".into(), "milan".into()),
        ];
        let mut text = value.to_string();
        for (one, other) in pairs {
            text = text
                .replace(&one, "<>")
                .replace(&other, &one)
                .replace("<>", &other);
        }
        text
    };
    macro_rules! swap {
        ($($field:expr),+) => {
            $($field = Ok(serde_json::from_str(&text(&json!($field.as_ref().unwrap()))).unwrap());)+
        };
    }
    swap!(facts.leases, facts.node_leases, facts.pods, facts.nodes);
    swap!(facts.liqo.config, facts.liqo.peers, facts.liqo.tunnels);
    facts.name = "milan".to_owned();
    facts.credentials.clear();
    let peer = &mut facts.liqo.peers.as_mut().unwrap()[0];
    peer.spec.outgoing_peering = liqo_api::PeeringIntent::Auto;
    let lending = links::LENDING
        .iter()
        .chain(&links::NETWORK)
        .map(|kind| condition(kind, "True", "Fine"))
        .collect();
    let status = peer.status.as_mut().unwrap();
    status.conditions = lending;
    status.tenant_namespace = Some(liqo_api::tenant_namespace(&rome()));
    facts
}
