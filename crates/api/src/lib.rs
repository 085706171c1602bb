//! Liqo's Kubernetes kinds: the objects through which the clusters and the parts of Liqo
//! communicate.
//!
//! The parts of Liqo (peering, sharing, offloading, networking) never call each other. They
//! communicate through these objects, so this crate is the map of the system. It has no client: it
//! defines types, names, and small rules that several parts share.
//!
//! ```text
//!   consumer cluster                            provider cluster
//!   each has its own ClusterConfig, PeeringPolicies, SearchDomains; ForeignCluster and TunnelEndpoint for each peer
//!
//!   liqo-provider-<id>, one for each provider   liqo-tenant-<id>, one for each consumer
//!     VirtualNode, which becomes a Node           the consumer writes the spec, the provider writes the status:
//!     copies of ResourceOffer, Contract,          ResourceRequest NamespaceMap ShadowPod ReflectedObject NetworkConfig
//!       Receipt                                   the other way round: ResourceOffer Contract Receipt
//!     UsageRecord: what this cluster counted      only one side writes: UsageRecord (provider), Secret (consumer)
//!   namespaces of users: NamespaceOffloading      each side renews its own: Leases `consumer` and `provider`
//! ```
//!
//! Two clusters exchange everything through the tenant namespace on the provider, and the consumer
//! is always the client. One side writes the spec of an object there and the other side writes its
//! status, so writes never conflict.
//!
//! # Where to read
//! Each kind has a file of its own, named after it; its doc comment says who writes it and where it
//! is. Read `resource_request.rs`, `resource_offer.rs` and `shadow_pod.rs` first. The other files:
//! - `names`, `derived_names`, `reasons`: labels, annotations, object names, and the types and
//!   reasons of conditions,
//! - `prices`, `largest_pods`, `contract_policy`, `budget`, `tethering`, `schema`: parts of kinds,
//! - `claimed`: the type of everything that a peer wrote and nobody has verified; [`record_text`]:
//!   objects inside records; `partial_object`: objects of which only a part is read,
//! - [`peer_namespace`]: which namespaces are Liqo's, and whose; [`policies`]: which `PeeringPolicy`
//!   applies to a peer; [`reflection`]: which Services and
//!   Ingresses are reflected,
//! - [`requests`]: the effective requests of a pod; [`selectors`]: label selectors; [`conditions`]:
//!   whether a condition is true, and whether to write it,
//! - [`departure`]: which pods leave for which cause; [`isolation`]: whether this cluster lends,
//! - [`connection_limits`]: which connections of strangers stay open; [`token_bucket`]: how often
//!   something may happen; [`catalog`]: the catalog of a broker.
//!
//! `liqoctl generate crds` writes the custom resource definitions in `deploy/liqo/crds/` from these
//! types. A test checks that they are current. After you change a kind, run it again.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

mod budget;
pub mod catalog;
mod claimed;
mod cluster_config;
mod cluster_id;
pub mod conditions;
pub mod connection_limits;
mod contract;
mod contract_policy;
pub mod departure;
mod derived_names;
mod descriptions;
mod foreign_cluster;
pub mod isolation;
mod key;
mod largest_pods;
mod names;
mod namespace_map;
mod namespace_offloading;
mod network_config;
mod partial_object;
pub mod peer_namespace;
mod peering_policy;
mod pod_phase;
pub mod policies;
mod prices;
mod reasons;
mod receipt;
pub mod record_text;
mod reflected_object;
pub mod reflection;
pub mod requests;
mod resource_offer;
mod resource_request;
mod schema;
mod search_domain;
pub mod selectors;
mod shadow_pod;
mod suspected_gateways;
mod tethering;
mod time;
pub mod token_bucket;
mod tunnel_endpoint;
mod usage_record;
mod virtual_node;

pub use budget::*;
pub use claimed::Claimed;
pub use cluster_config::*;
pub use cluster_id::{ClusterId, InvalidClusterId, valid_cluster_name};
pub use contract::*;
pub use contract_policy::*;
pub use derived_names::{alternative_mapped_namespace, mapped_namespace, short_hash};
pub use foreign_cluster::*;
pub use key::Key;
pub use largest_pods::*;
pub use names::*;
pub use namespace_map::*;
pub use namespace_offloading::*;
pub use network_config::*;
pub use partial_object::{MetadataOnly, PartialObject};
pub use peering_policy::*;
pub use pod_phase::is_final_phase;
pub use prices::*;
pub use reasons::*;
pub use receipt::*;
pub use reflected_object::*;
pub use resource_offer::*;
pub use resource_request::*;
pub use schema::{MAX_BEHIND, MAX_CUSTOMERS, MAX_WAY_LEN};
pub use search_domain::*;
pub use shadow_pod::*;
pub use suspected_gateways::SuspectedGateways;
pub use tethering::*;
pub use time::rfc3339;
pub use tunnel_endpoint::*;
pub use usage_record::*;
pub use virtual_node::*;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
pub use liqo_quantity::{Money, Quantity, Rates, ResourceList};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// The custom resource definitions of all kinds.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    let definitions = vec![
        ClusterConfig::crd(),
        ForeignCluster::crd(),
        SearchDomain::crd(),
        PeeringPolicy::crd(),
        ResourceRequest::crd(),
        ResourceOffer::crd(),
        Contract::crd(),
        NamespaceOffloading::crd(),
        NamespaceMap::crd(),
        VirtualNode::crd(),
        ShadowPod::crd(),
        ReflectedObject::crd(),
        NetworkConfig::crd(),
        TunnelEndpoint::crd(),
        UsageRecord::crd(),
        Receipt::crd(),
    ];
    definitions.into_iter().map(with_joined_lines).collect()
}

fn with_joined_lines(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let Ok(mut value) = serde_json::to_value(&definition) else {
        return definition;
    };
    descriptions::join_lines(&mut value);
    serde_json::from_value(value).unwrap_or(definition)
}
