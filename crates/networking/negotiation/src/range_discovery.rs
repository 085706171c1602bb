//! Finds out the ranges of this cluster, and writes them into the status of the `ClusterConfig`,
//! where liqo-fabric reads them.

use std::{net::IpAddr, time::Duration};

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
use liqo_controller_runtime::{
    Context, Key,
    writes::{RequestError, StepContext as _, unless_gone},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    FIELD_MANAGER,
    decide::ranges::{self, NodeNetwork, RangeSources},
};

/// The ranges are discovered again after this time.
pub const REFRESH_PERIOD: Duration = Duration::from_mins(1);
/// The same while the ranges are not known, and the delay after a failure.
pub const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Our ranges, or which setting is missing or wrong.
pub type RangesResult = Result<NetworkRanges, String>;

/// The ranges, and what they were derived from.
#[derive(Clone)]
pub struct DiscoveredRanges {
    pub ranges: RangesResult,
    settings: NetworkSettings,
    environment: RangeSources,
    read_at: Instant,
}

impl DiscoveredRanges {
    fn max_age(&self) -> Duration {
        if self.ranges.is_ok() {
            REFRESH_PERIOD
        } else {
            RETRY_DELAY
        }
    }
}

/// Our ranges: the previous ones unless they are old, or the settings or nodes changed.
pub async fn discover_ranges(
    context: &Context,
    nodes: Vec<NodeNetwork>,
    previous: Option<DiscoveredRanges>,
) -> Result<DiscoveredRanges, RequestError> {
    let settings = context.config().spec.network.clone();
    let now = Instant::now();
    let (environment, read_at) = match previous {
        Some(previous) if now.duration_since(previous.read_at) < previous.max_age() => {
            if previous.settings == settings && previous.environment.nodes == nodes {
                return Ok(previous);
            }
            (
                RangeSources {
                    nodes,
                    ..previous.environment
                },
                previous.read_at,
            )
        }
        _ => (read_environment(context, nodes).await?, now),
    };
    let recorded = context
        .config()
        .status
        .as_ref()
        .and_then(|status| status.network.clone())
        .unwrap_or_default();
    let ranges = ranges::find_ranges(&settings, &environment, &recorded.api_servers);
    if let Ok(ranges) = &ranges {
        write_ranges(context, ranges).await.step(
            "write the ranges into the status of",
            "ClusterConfig",
            Key::new("", CLUSTER_CONFIG),
        )?;
    }
    Ok(DiscoveredRanges {
        ranges,
        settings,
        environment,
        read_at,
    })
}

async fn read_environment(
    context: &Context,
    nodes: Vec<NodeNetwork>,
) -> Result<RangeSources, RequestError> {
    let client = &context.client;
    let managers: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let managers = managers
        .list(
            &ListParams::default()
                .labels("component=kube-controller-manager")
                .limit(20),
        )
        .await;
    let managers = managers.step(
        "list",
        "pods of kube-controller-manager",
        Key::new("kube-system", ""),
    )?;
    // Kubernetes before 1.33 has none.
    let of_services = unless_gone(
        Api::<ServiceCIDR>::all(client.clone())
            .list(&ListParams::default())
            .await,
    );
    let of_services = of_services
        .step("list", "ServiceCIDRs", Key::default())?
        .into_iter()
        .flat_map(|list| list.items);
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let api = services.get_opt("kubernetes").await.step(
        "read",
        "Service",
        Key::new("default", "kubernetes"),
    )?;
    let api = api.and_then(|service| service.spec).unwrap_or_default();
    let addresses = api
        .cluster_ips
        .unwrap_or_else(|| api.cluster_ip.into_iter().collect());
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let slices = slices
        .list(&ListParams::default().labels("kubernetes.io/service-name=kubernetes"))
        .await;
    let slices = slices.step(
        "list",
        "EndpointSlices of Service kubernetes",
        Key::new("default", ""),
    )?;
    let prefixes = of_services
        .filter_map(|range| range.spec)
        .flat_map(|spec| spec.cidrs.unwrap_or_default());
    Ok(RangeSources {
        nodes,
        cluster_cidrs: ranges::cluster_cidrs(&managers.items),
        service_cidrs: prefixes.filter_map(|prefix| prefix.parse().ok()).collect(),
        api_servers: ranges::api_servers(&slices.items),
        api_services: addresses
            .iter()
            .filter_map(|address| address.parse::<IpAddr>().ok())
            .collect(),
    })
}

async fn write_ranges(context: &Context, ranges: &NetworkRanges) -> kube::Result<()> {
    if context
        .config()
        .status
        .as_ref()
        .and_then(|status| status.network.as_ref())
        == Some(ranges)
    {
        return Ok(());
    }
    let api: Api<ClusterConfig> = Api::all(context.client.clone());
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let body = json!({ "status": { "network": ranges } });
    api.patch_status(CLUSTER_CONFIG, &params, &Patch::Merge(&body))
        .await
        .map(drop)
}
