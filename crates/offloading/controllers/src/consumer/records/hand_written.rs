//! Warns of addresses that somebody wrote into the endpoints of a Service, and from which pods at a
//! provider get no answer: the gateways open only addresses of pods of the same namespace to other
//! clusters.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use liqo_network_model::Here;

use super::{wanted, warn_about_object};
use crate::consumer::state::{ConsumerState, RemoteProvider};
use crate::consumer::watches::reduce_pod;
use crate::networks::NetworkToPeer;
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::record::{LocalSlice, Reference, no_pod_message};

/// Reason of the event.
const NO_POD_AT_ADDRESS: &str = "NoPodAtAddress";
/// Page size of lists of pods.
const PAGE: u32 = 50;
/// Nothing is said about the addresses in a namespace with more pods than these pages have.
const MAX_PAGES: usize = 40;

/// Compares the addresses of a slice with the pods of its namespace, once for each change of these
/// addresses, and writes an event on its Service. `goes`: its namespace exists at the provider.
pub async fn warn_of_silent_addresses(
    consumer: &Arc<ConsumerState>,
    peer: &RemoteProvider,
    reference: &Reference,
    goes: bool,
) {
    let slice = wanted::hand_written_slice(consumer, reference).filter(|_| goes);
    let network = consumer.networks.network_of_peer(&peer.id);
    let addresses = slice
        .as_ref()
        .zip(network)
        .map(|(slice, network)| closed_without_a_pod(slice, &network))
        .unwrap_or_default();
    if !peer.are_new_addresses(reference, &addresses) {
        return;
    }
    let Some(service) = slice.map(|slice| slice.service.clone()) else {
        return;
    };
    let silent = match addresses_without_pod(
        &consumer.context.client,
        &reference.namespace,
        addresses,
    )
    .await
    {
        Ok(silent) => silent,
        Err(error) => {
            tracing::debug!(%error, ?reference, "its addresses are not compared with pods");
            peer.are_new_addresses(reference, &BTreeSet::new());
            return;
        }
    };
    if !silent.is_empty() {
        let message = no_pod_message(&silent, &consumer.name_of_provider(&peer.id));
        let service = Reference {
            kind: ReplicaKind::Service,
            namespace: reference.namespace.clone(),
            name: service,
        };
        warn_about_object(consumer, &service, NO_POD_AT_ADDRESS, message).await;
    }
}

/// The addresses that the peer reaches only if a pod has them.
fn closed_without_a_pod(slice: &LocalSlice, network: &NetworkToPeer) -> BTreeSet<IpAddr> {
    slice
        .addresses()
        .into_iter()
        .filter(|address| {
            !network.reaches_all_pods || network.maps.exported.to_there(Here(*address)).is_none()
        })
        .collect()
}

/// A pod in the network of its node has the address of the node, which is closed, too.
fn has_own_address(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.host_network != Some(true))
}

/// Those of the addresses that no pod of the namespace has; none if it has too many pods.
async fn addresses_without_pod(
    client: &Client,
    namespace: &str,
    mut addresses: BTreeSet<IpAddr>,
) -> kube::Result<BTreeSet<IpAddr>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut page = ListParams::default().limit(PAGE);
    for _ in 0..MAX_PAGES {
        let list = pods.list(&page).await?;
        for pod in list
            .items
            .into_iter()
            .filter(has_own_address)
            .filter_map(reduce_pod)
        {
            addresses.retain(|address| !pod.addresses.contains(address));
        }
        page.continue_token = list.metadata.continue_.filter(|token| !token.is_empty());
        if addresses.is_empty() || page.continue_token.is_none() {
            return Ok(addresses);
        }
    }
    Ok(BTreeSet::new())
}

#[cfg(test)]
mod tests {
    use liqo_network_model::{Here, PeerMaps, PrefixMap, There};
    use serde_json::json;

    use super::*;

    #[test]
    fn where_all_pods_are_open_only_addresses_outside_of_our_prefixes_get_no_answer() {
        let slice = json!({ "metadata": { "name": "db-x", "labels": { "kubernetes.io/service-name": "db" } }, "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.244.0.5"] }, { "addresses": ["192.0.2.9"] }] });
        let slice =
            LocalSlice::from_endpoint_slice(serde_json::from_value(slice).unwrap()).unwrap();
        let exported = [(
            Here("10.244.0.0/16".parse().unwrap()),
            There("10.64.0.0/16".parse().unwrap()),
        )];
        let maps = PeerMaps {
            exported: PrefixMap::new(exported).unwrap(),
            ..PeerMaps::default()
        };
        let closed = |reaches_all_pods| {
            let network = NetworkToPeer {
                maps: maps.clone(),
                reaches_all_pods,
                ..NetworkToPeer::default()
            };
            closed_without_a_pod(&slice, &network)
                .into_iter()
                .map(|address| address.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(closed(false), ["10.244.0.5", "192.0.2.9"]);
        assert_eq!(closed(true), ["192.0.2.9"]);
    }
}
