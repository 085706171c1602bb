//! The kinds of objects that exist at a provider because they exist at home.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::{Ingress, NetworkPolicy},
};
use kube::api::ApiResource;
use liqo_api::ReflectedKind;
use serde_json::Value;

use super::text;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A `ConfigMap`.
    ConfigMap,
    /// A Secret.
    Secret,
    /// A Service.
    Service,
    /// An `EndpointSlice`.
    EndpointSlice,
    /// An Ingress.
    Ingress,
    /// A `NetworkPolicy`.
    NetworkPolicy,
}

impl Kind {
    /// Those that travel because a pod names them.
    pub const NAMED: [Self; 2] = [Self::ConfigMap, Self::Secret];
    /// Those that travel because their namespace is offloaded, while there is a network.
    pub const SERVICES: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Ingress];

    /// The kind of this object, if it is one of these.
    pub fn of(object: &Value) -> Option<Self> {
        let said = (text(object, "/apiVersion")?, text(object, "/kind")?);
        let all = Self::NAMED.into_iter().chain(Self::SERVICES).chain([Self::NetworkPolicy]);
        all.into_iter().find(|kind| (kind.api_version(), kind.name()) == said)
    }

    /// As Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Ingress => "Ingress",
            Self::NetworkPolicy => "NetworkPolicy",
        }
    }

    /// Its group and version.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::Ingress | Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::ConfigMap | Self::Secret | Self::Service => "v1",
        }
    }

    /// How it is asked for.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::Secret => ApiResource::erase::<Secret>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::EndpointSlice => ApiResource::erase::<EndpointSlice>(&()),
            Self::Ingress => ApiResource::erase::<Ingress>(&()),
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
        }
    }

    /// Whether it travels because its namespace is offloaded, and not because a pod names it.
    pub fn is_of_namespace(self) -> bool {
        !Self::NAMED.contains(&self)
    }

    /// The word of a policy that lets it be reflected. Whoever closes its own pods needs no leave, and an Ingress needs more than a word.
    pub fn word(self) -> Option<ReflectedKind> {
        match self {
            Self::ConfigMap => Some(ReflectedKind::ConfigMap),
            Self::Secret => Some(ReflectedKind::Secret),
            Self::Service | Self::EndpointSlice => Some(ReflectedKind::Service),
            Self::Ingress | Self::NetworkPolicy => None,
        }
    }
}
