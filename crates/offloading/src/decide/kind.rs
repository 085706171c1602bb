//! The kinds of objects that exist at a provider because they exist at home.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
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
}

impl Kind {
    /// Those that travel because a pod names them.
    pub const NAMED: [Self; 2] = [Self::ConfigMap, Self::Secret];
    /// Those that travel because their namespace is offloaded.
    pub const OF_NAMESPACE: [Self; 2] = [Self::Service, Self::EndpointSlice];

    /// The kind of this object, if it is one of these.
    pub fn of(object: &Value) -> Option<Self> {
        let said = (text(object, "/apiVersion")?, text(object, "/kind")?);
        Self::NAMED.into_iter().chain(Self::OF_NAMESPACE).find(|kind| (kind.api_version(), kind.name()) == said)
    }

    /// As Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
        }
    }

    /// Its group and version.
    pub fn api_version(self) -> &'static str {
        if self == Self::EndpointSlice { "discovery.k8s.io/v1" } else { "v1" }
    }

    /// How it is asked for.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::Secret => ApiResource::erase::<Secret>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::EndpointSlice => ApiResource::erase::<EndpointSlice>(&()),
        }
    }

    /// Whether it travels because its namespace is offloaded, and not because a pod names it.
    pub fn is_of_namespace(self) -> bool {
        Self::OF_NAMESPACE.contains(&self)
    }

    /// The word of a policy that lets it be reflected.
    pub fn word(self) -> ReflectedKind {
        match self {
            Self::ConfigMap => ReflectedKind::ConfigMap,
            Self::Secret => ReflectedKind::Secret,
            Self::Service | Self::EndpointSlice => ReflectedKind::Service,
        }
    }
}
