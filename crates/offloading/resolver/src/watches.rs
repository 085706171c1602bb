//! Keeps the directory current: mapped namespaces, the domains of their consumers, external names,
//! addresses of remote pods.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::{Api, Client, ResourceExt as _, runtime::watcher::Config};
use liqo_api::{
    Key, NAMESPACE_MAP, NamespaceMap, PartialObject, annotations, consumer_of_tenant_namespace,
    is_final_phase, labels,
};
use liqo_controller_runtime::Cache;
use liqo_offloading_rules::namespace::mapped::{ConsumerNamespace, NamespaceKind};
use liqo_offloading_rules::pod::carry::home_names::announced_domain;
use serde::{Deserialize, de::IgnoredAny};
use tokio_util::sync::CancellationToken;

use crate::directory::MappedNamespaceState;
use crate::message::DomainName;
use crate::server::SharedDirectory;

/// A pod, of which only the addresses are read.
type PodWithAddresses = PartialObject<Pod, IgnoredAny, PodAddresses>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodAddresses {
    phase: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodAddress>,
    #[serde(rename = "hostIPs")]
    host_ips: Vec<PodAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PodAddress {
    ip: String,
}

/// Time for which the API server keeps a watch, in seconds: a watch that is silently dead is
/// replaced after about this time.
const WATCH_TIMEOUT: u32 = 60;
/// Page size of lists of pods: each may be as large as the API server allows, and only little of it
/// is kept.
const POD_PAGE: u32 = 50;
/// Page size of lists of maps: each may have a thousand namespaces, and only an annotation of it is
/// kept.
const MAP_PAGE: u32 = 10;

/// The caches of the watches.
pub struct DirectoryWatches {
    namespaces: Cache<MappedNamespaceState>,
    domains: Cache<DomainName>,
    external_names: Cache<DomainName>,
    pods: Cache<Vec<IpAddr>>,
}

impl DirectoryWatches {
    /// Waits for all initial lists. `false` if a watch ended before.
    pub async fn synced(&self) -> bool {
        self.namespaces.wait_until_synced().await
            && self.domains.wait_until_synced().await
            && self.external_names.wait_until_synced().await
            && self.pods.wait_until_synced().await
    }
}

/// Starts the watches, which run until `stop`.
pub fn start_watches(
    client: &Client,
    known: &Arc<SharedDirectory>,
    stop: &CancellationToken,
) -> DirectoryWatches {
    let mapped = Config::default()
        .labels(&format!(
            "{}={}",
            labels::NAMESPACE_KIND,
            labels::KIND_MAPPED
        ))
        .timeout(WATCH_TIMEOUT);
    let directory = known.clone();
    let namespaces = Cache::watch(
        Api::all(client.clone()),
        mapped,
        stop.clone(),
        reduce_namespace,
        move |key, old, new| {
            directory.change(|directory| {
                directory.namespace_changed(
                    &key.name,
                    old.map(AsRef::as_ref),
                    new.map(AsRef::as_ref),
                );
            });
        },
    );
    let directory = known.clone();
    let domains = Cache::watch(
        Api::all(client.clone()),
        map_selection(),
        stop.clone(),
        reduce_map,
        move |key: &Key, _, new| {
            if let Some(consumer) = consumer_of_tenant_namespace(&key.namespace) {
                directory.change(|directory| {
                    directory.domain_changed(&consumer, new.map(AsRef::as_ref));
                });
            }
        },
    );
    let reflected = Config::default()
        .labels(&format!("{}=true", labels::REFLECTED))
        .timeout(WATCH_TIMEOUT);
    let directory = known.clone();
    let external_names = Cache::watch(
        Api::all(client.clone()),
        reflected,
        stop.clone(),
        reduce_service,
        move |key, _, new| {
            directory
                .change(|directory| directory.external_name_changed(key, new.map(AsRef::as_ref)));
        },
    );
    let remote = Config::default()
        .labels(labels::SHADOW_POD)
        .page_size(POD_PAGE)
        .timeout(WATCH_TIMEOUT);
    let api: Api<PodWithAddresses> = Api::all(client.clone());
    let directory = known.clone();
    let pods = Cache::watch(
        api,
        remote,
        stop.clone(),
        reduce_pod,
        move |key: &Key, old, new| {
            let [old, new] = [old, new].map(|pod| pod.map(|pod| pod.to_vec()).unwrap_or_default());
            directory.change(|directory| directory.pod_changed(key, &old, &new));
        },
    );
    DirectoryWatches {
        namespaces,
        domains,
        external_names,
        pods,
    }
}

/// Selects the maps to watch: one of each consumer, however many it creates.
fn map_selection() -> Config {
    Config::default()
        .fields(&format!("metadata.name={NAMESPACE_MAP}"))
        .page_size(MAP_PAGE)
        .timeout(WATCH_TIMEOUT)
}

fn reduce_namespace(namespace: Namespace) -> Option<MappedNamespaceState> {
    let ConsumerNamespace {
        consumer,
        kind,
        terminating,
        ..
    } = ConsumerNamespace::from_namespace(namespace)?;
    match kind {
        NamespaceKind::Mapped { home } => Some(MappedNamespaceState {
            consumer,
            home,
            terminating,
        }),
        NamespaceKind::Tenant { .. } => None,
    }
}

/// The domain that a consumer's map announces.
#[allow(
    clippy::needless_pass_by_value,
    reason = "what a watch's reduction takes"
)]
fn reduce_map(map: NamespaceMap) -> Option<DomainName> {
    announced_domain(&map)
        .filter(|_| map.name_any() == NAMESPACE_MAP)
        .and_then(DomainName::parse)
}

/// The name that a replica stands for.
#[allow(
    clippy::needless_pass_by_value,
    reason = "what a watch's reduction takes"
)]
fn reduce_service(service: Service) -> Option<DomainName> {
    DomainName::parse(service.annotations().get(annotations::EXTERNAL_NAME)?)
}

/// The addresses that belong to this pod alone. A pod that ended may have given them to another
/// one.
fn reduce_pod(pod: PodWithAddresses) -> Option<Vec<IpAddr>> {
    let status = pod.status.unwrap_or_default();
    if is_final_phase(&status.phase) {
        return None;
    }
    let own = status
        .pod_ips
        .iter()
        .filter(|address| !status.host_ips.contains(address));
    let addresses: Vec<IpAddr> = own.filter_map(|address| address.ip.parse().ok()).collect();
    (!addresses.is_empty()).then_some(addresses)
}

#[cfg(test)]
mod tests {
    use liqo_api::NamespaceMapSpec;
    use serde_json::json;

    use super::*;

    fn addresses(status: &serde_json::Value) -> Vec<String> {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" }, "spec": {}, "status": status });
        let addresses = reduce_pod(serde_json::from_value(pod).unwrap()).unwrap_or_default();
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_domain_comes_from_the_map_of_its_name_and_an_external_name_from_an_annotation() {
        let map = |name: &str, domain: &str| {
            let mut map = NamespaceMap::new(name, NamespaceMapSpec::default());
            map.metadata.annotations =
                Some([(annotations::CLUSTER_DOMAIN.to_owned(), domain.to_owned())].into());
            reduce_map(map)
        };
        assert_eq!(
            map(NAMESPACE_MAP, "corp.local"),
            DomainName::parse("corp.local")
        );
        assert_eq!(
            (
                map("other", "corp.local"),
                map(NAMESPACE_MAP, "corp..local")
            ),
            (None, None)
        );
        let service = |annotations: serde_json::Value| {
            reduce_service(
                serde_json::from_value(json!({ "metadata": { "annotations": annotations } }))
                    .unwrap(),
            )
        };
        assert_eq!(
            service(json!({ annotations::EXTERNAL_NAME: "db.example.org" })),
            DomainName::parse("db.example.org")
        );
        assert_eq!(
            (
                service(json!({})),
                service(json!({ annotations::EXTERNAL_NAME: "a..b" }))
            ),
            (None, None)
        );
    }

    #[test]
    fn only_the_map_of_its_name_is_read_and_few_of_them_at_a_time() {
        let config = map_selection();
        assert_eq!(
            config.field_selector.as_deref(),
            Some(format!("metadata.name={NAMESPACE_MAP}").as_str())
        );
        assert_eq!(config.page_size, Some(MAP_PAGE));
    }

    #[test]
    fn a_pod_has_its_own_addresses_until_it_ends() {
        let own = json!([{ "ip": "10.244.0.7" }, { "ip": "fd00::7" }]);
        let hosts = json!([{ "ip": "192.168.1.1" }]);
        assert_eq!(
            addresses(&json!({ "phase": "Running", "podIPs": own, "hostIPs": hosts })),
            ["10.244.0.7", "fd00::7"]
        );
        assert_eq!(
            addresses(&json!({ "phase": "Succeeded", "podIPs": own })),
            [""; 0]
        );
        assert_eq!(
            addresses(&json!({ "phase": "Running", "podIPs": hosts, "hostIPs": hosts })),
            [""; 0],
            "the address of a node"
        );
        assert_eq!(addresses(&json!({ "phase": "Pending" })), [""; 0]);
    }
}
