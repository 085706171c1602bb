//! Follows mapped namespaces and the addresses of remote pods.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, Client, api::ApiResource, core::Object, runtime::watcher::Config};
use liqo_api::{Key, labels};
use liqo_controller_runtime::Cache;
use liqo_offloading_rules::namespace::mapped::{ConsumerNamespace, MAPPED, NamespaceKind};
use serde::{Deserialize, de::IgnoredAny};
use tokio_util::sync::CancellationToken;

use crate::directory::Mapped;
use crate::server::SharedDirectory;

/// A pod, of which only the addresses are read.
type WatchedPod = Object<IgnoredAny, Status>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<Address>,
    #[serde(rename = "hostIPs")]
    host_ips: Vec<Address>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Address {
    ip: String,
}

/// How long the API server keeps a watch, in seconds: a watch that is silently dead is replaced after about this time.
const WATCH_TIMEOUT: u32 = 60;
/// Page size of lists of pods: each may be as large as the API server allows, and only little of it is kept.
const POD_PAGE: u32 = 50;

/// Starts both watches, which run until `stop`.
pub fn start(client: &Client, known: &Arc<SharedDirectory>, stop: &CancellationToken) -> (Cache<Mapped>, Cache<Vec<IpAddr>>) {
    let mapped = Config::default().labels(&format!("{}={MAPPED}", labels::NAMESPACE_KIND)).timeout(WATCH_TIMEOUT);
    let directory = known.clone();
    let namespaces = Cache::watch(Api::all(client.clone()), mapped, stop.clone(), reduce_namespace, move |key, old, new| {
        directory.change(|directory| directory.namespace_changed(&key.name, old.map(AsRef::as_ref), new.map(AsRef::as_ref)));
    });
    let remote = Config::default().labels(labels::SHADOW_POD).page_size(POD_PAGE).timeout(WATCH_TIMEOUT);
    let api: Api<WatchedPod> = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
    let directory = known.clone();
    let pods = Cache::watch(api, remote, stop.clone(), reduce_pod, move |key: &Key, old, new| {
        let addresses = |pod: Option<&Arc<Vec<IpAddr>>>| pod.map(|pod| pod.as_slice().to_vec()).unwrap_or_default();
        directory.change(|directory| directory.pod_changed(key, &addresses(old), &addresses(new)));
    });
    (namespaces, pods)
}

fn reduce_namespace(namespace: Namespace) -> Option<Mapped> {
    let ConsumerNamespace { consumer, kind, terminating, .. } = ConsumerNamespace::reduce(namespace)?;
    match kind {
        NamespaceKind::Mapped { home } => Some(Mapped { consumer, home, terminating }),
        NamespaceKind::Tenant { .. } => None,
    }
}

/// The addresses that belong to this pod alone. A pod that ended may have given them to another one.
fn reduce_pod(pod: WatchedPod) -> Option<Vec<IpAddr>> {
    let status = pod.status.unwrap_or_default();
    if ["Succeeded", "Failed"].contains(&status.phase.as_str()) {
        return None;
    }
    let own = status.pod_ips.iter().filter(|address| !status.host_ips.contains(address));
    let addresses: Vec<IpAddr> = own.filter_map(|address| address.ip.parse().ok()).collect();
    (!addresses.is_empty()).then_some(addresses)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn addresses(status: &serde_json::Value) -> Vec<String> {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" }, "spec": {}, "status": status });
        let addresses = reduce_pod(serde_json::from_value(pod).unwrap()).unwrap_or_default();
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pod_has_its_own_addresses_until_it_ends() {
        let own = json!([{ "ip": "10.244.0.7" }, { "ip": "fd00::7" }]);
        let hosts = json!([{ "ip": "192.168.1.1" }]);
        assert_eq!(addresses(&json!({ "phase": "Running", "podIPs": own, "hostIPs": hosts })), ["10.244.0.7", "fd00::7"]);
        assert_eq!(addresses(&json!({ "phase": "Succeeded", "podIPs": own })), [""; 0]);
        assert_eq!(
            addresses(&json!({ "phase": "Running", "podIPs": hosts, "hostIPs": hosts })),
            [""; 0],
            "the address of a node"
        );
        assert_eq!(addresses(&json!({ "phase": "Pending" })), [""; 0]);
    }
}
