//! Finds out the ranges of this cluster, and writes them into the status of the `ClusterConfig`, where the fabric reads them.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, NetworkRanges, NetworkSettings};
use liqo_kit::Context;
use serde_json::json;

use crate::{
    Error, FIELD_MANAGER,
    decide::ranges::{self, NodeAddresses, Surroundings},
};

/// How often the cluster is looked at again: otherwise, and while something is missing.
pub const LATER: Duration = Duration::from_secs(60);
/// See [`LATER`].
pub const SOON: Duration = Duration::from_secs(5);

/// Our ranges, or what to set.
pub type Ranges = Result<NetworkRanges, String>;

/// What was found, and when.
#[derive(Clone)]
pub struct Found {
    pub ranges: Ranges,
    settings: NetworkSettings,
    around: Surroundings,
    at: Instant,
}

/// Our ranges: those of `before` unless they are old, or something that they follow from is different.
pub async fn find(context: &Context, nodes: Vec<NodeAddresses>, before: Option<Found>) -> Result<Found, Error> {
    let settings = context.config().spec.network.clone();
    let now = Instant::now();
    let (around, at) = match before {
        Some(before) if now.duration_since(before.at) < if before.ranges.is_ok() { LATER } else { SOON } => {
            if before.settings == settings && before.around.nodes == nodes {
                return Ok(before);
            }
            (Surroundings { nodes, ..before.around }, before.at)
        }
        _ => (look(context, nodes).await?, now),
    };
    let recorded = context.config().status.as_ref().and_then(|status| status.network.clone()).unwrap_or_default();
    let ranges = ranges::find(&settings, &around, &recorded.api_servers);
    if let Ok(ranges) = &ranges {
        write(context, ranges).await.map_err(Error::WriteRanges)?;
    }
    Ok(Found { ranges, settings, around, at })
}

async fn look(context: &Context, nodes: Vec<NodeAddresses>) -> Result<Surroundings, Error> {
    let client = &context.client;
    let failed = |what: &'static str| move |source| Error::Look { what, source };
    let managers: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let managers = managers.list(&ListParams::default().labels("component=kube-controller-manager").limit(20)).await;
    // Kubernetes before 1.33 has none.
    let of_services = match Api::<ServiceCIDR>::all(client.clone()).list(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(kube::Error::Api(status)) if status.is_not_found() => Vec::new(),
        Err(source) => return Err(Error::Look { what: "listing ServiceCIDRs", source }),
    };
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let api = services.get_opt("kubernetes").await.map_err(failed("reading Service default/kubernetes"))?;
    let api = api.and_then(|service| service.spec).unwrap_or_default();
    let addresses = api.cluster_ips.unwrap_or_else(|| api.cluster_ip.into_iter().collect());
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let slices = slices.list(&ListParams::default().labels("kubernetes.io/service-name=kubernetes")).await;
    let slices = slices.map_err(failed("listing EndpointSlices of Service default/kubernetes"))?;
    let prefixes = of_services.into_iter().filter_map(|range| range.spec).flat_map(|spec| spec.cidrs.unwrap_or_default());
    Ok(Surroundings {
        nodes,
        cluster_cidrs: ranges::cluster_cidrs(&managers.map_err(failed("listing pods of kube-controller-manager"))?.items),
        service_cidrs: prefixes.filter_map(|prefix| prefix.parse().ok()).collect(),
        api_servers: ranges::api_servers(&slices.items),
        api_services: addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok()).collect(),
    })
}

async fn write(context: &Context, ranges: &NetworkRanges) -> kube::Result<()> {
    if context.config().status.as_ref().and_then(|status| status.network.as_ref()) == Some(ranges) {
        return Ok(());
    }
    let api: Api<ClusterConfig> = Api::all(context.client.clone());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let body = json!({ "status": { "network": ranges } });
    api.patch_status(CLUSTER_CONFIG, &params, &Patch::Merge(&body)).await.map(drop)
}
