//! Liqo's Kubernetes kinds: what the clusters and the parts of Liqo say to each other.
//!
//! The slices (peering, sharing, offloading, ...) never call each other. They meet in these objects, so this crate is the
//! map of the system: one file for each kind, and one file for the words that must be spelled alike everywhere.
//!
//! ```text
//!        consumer cluster                                   provider cluster
//!
//!   ClusterConfig  PeeringPolicy                       ClusterConfig  PeeringPolicy
//!   ForeignCluster (the provider)                      ForeignCluster (the consumer)
//!   NamespaceOffloading, in any namespace
//!   TunnelEndpoint, in Liqo's own                      TunnelEndpoint, in Liqo's own
//!   +- liqo-provider-<id> --------+                    +- liqo-tenant-<id> -----------------+
//!   | ResourceOffer (a copy)      |  spec ---------->  | ResourceRequest   NamespaceMap     |
//!   | VirtualNode  => Node        |                    | ShadowPod  ReflectedObject  Secret |
//!   +-----------------------------+  <-------- status  | ResourceOffer     Lease (two)      |
//!                                                      | NetworkConfig                      |
//!                                                      +------------------------------------+
//! ```
//!
//! Everything between two clusters is written in the tenant namespace on the provider, and the consumer is always the
//! client. In each object of that namespace one side writes the spec and the other the status, so no write ever races.
//!
//! The custom resource definitions in `deploy/liqo/crds/` are generated from these types; a test checks that they are
//! current.

mod cluster_config;
mod cluster_id;
mod derived_names;
mod foreign_cluster;
mod names;
mod namespace_map;
mod namespace_offloading;
mod network_config;
mod peering_policy;
mod reflected_object;
mod resource_offer;
mod resource_request;
mod schema;
mod shadow_pod;
mod tunnel_endpoint;
mod unheard;
mod virtual_node;

pub use cluster_config::*;
pub use cluster_id::{ClusterId, InvalidClusterId};
pub use derived_names::{mapped_namespace, short_hash};
pub use foreign_cluster::*;
pub use names::*;
pub use namespace_map::*;
pub use namespace_offloading::*;
pub use network_config::*;
pub use peering_policy::*;
pub use reflected_object::*;
pub use resource_offer::*;
pub use resource_request::*;
pub use shadow_pod::*;
pub use tunnel_endpoint::*;
pub use unheard::Unheard;
pub use virtual_node::*;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
pub use liqo_quantity::{Quantity, ResourceList};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// The custom resource definitions of every kind, in the order of the crate's files.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    vec![
        ClusterConfig::crd(),
        ForeignCluster::crd(),
        PeeringPolicy::crd(),
        ResourceRequest::crd(),
        ResourceOffer::crd(),
        NamespaceOffloading::crd(),
        NamespaceMap::crd(),
        VirtualNode::crd(),
        ShadowPod::crd(),
        ReflectedObject::crd(),
        NetworkConfig::crd(),
        TunnelEndpoint::crd(),
    ]
}
