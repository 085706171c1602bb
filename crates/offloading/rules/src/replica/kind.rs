//! The kinds of objects that exist at a provider because they exist at home.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::{Ingress, NetworkPolicy},
    policy::v1::PodDisruptionBudget,
};
use kube::core::ApiResource;
use liqo_api::ReflectedKind;
use serde_json::Value;

use crate::views::ObjectView;

/// Types that a Secret keeps when it travels. A Secret of another type arrives as the first of
/// these, because a type means nothing to the pods that read it, and may mean something to the
/// programs of a provider.
pub const SECRET_TYPES: [&str; 6] = [
    "Opaque",
    "kubernetes.io/basic-auth",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/ssh-auth",
    "kubernetes.io/tls",
];

/// Maximum stored size of an object that travels with its namespace, in bytes of JSON. All objects
/// of one consumer together take at most 24 MiB. The consumer sends a longer slice in parts.
pub(super) const MAX_LEN: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaKind {
    ConfigMap,
    Secret,
    Service,
    EndpointSlice,
    Ingress,
    NetworkPolicy,
    PodDisruptionBudget,
}

impl ReplicaKind {
    /// Kinds that travel because a pod names the object.
    pub const NAMED: [Self; 2] = [Self::ConfigMap, Self::Secret];
    /// Kinds that travel because their namespace is offloaded, while there is a network.
    pub const SERVICES: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Ingress];

    /// Kinds that travel because their namespace is offloaded, with or without a network.
    const OF_PODS: [Self; 2] = [Self::NetworkPolicy, Self::PodDisruptionBudget];

    /// The kind of this object, if it is one of these.
    pub fn of_object(object: &Value) -> Option<Self> {
        let object = ObjectView::of(object);
        let said = (object.api_version()?, object.kind()?);
        let all = Self::NAMED
            .into_iter()
            .chain(Self::SERVICES)
            .chain(Self::OF_PODS);
        all.into_iter()
            .find(|kind| (kind.api_version(), kind.name()) == said)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Ingress => "Ingress",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
        }
    }

    /// Several objects of this kind, in words.
    pub fn plural(self) -> String {
        let name = self.name();
        format!("{name}{}", if name.ends_with('s') { "es" } else { "s" })
    }

    pub fn api_version(self) -> &'static str {
        match self {
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::Ingress | Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::PodDisruptionBudget => "policy/v1",
            Self::ConfigMap | Self::Secret | Self::Service => "v1",
        }
    }

    pub fn api_resource(self) -> ApiResource {
        match self {
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::Secret => ApiResource::erase::<Secret>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::EndpointSlice => ApiResource::erase::<EndpointSlice>(&()),
            Self::Ingress => ApiResource::erase::<Ingress>(&()),
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
        }
    }

    /// Whether it travels because its namespace is offloaded, and not because a pod names it.
    pub fn is_of_namespace(self) -> bool {
        !Self::NAMED.contains(&self)
    }

    /// The kind that a policy must allow for it. `NetworkPolicy`s only close pods, so they need no
    /// permission; a policy limits Ingresses by other fields.
    pub fn reflected_kind(self) -> Option<ReflectedKind> {
        match self {
            Self::ConfigMap => Some(ReflectedKind::ConfigMap),
            Self::Secret => Some(ReflectedKind::Secret),
            Self::Service | Self::EndpointSlice => Some(ReflectedKind::Service),
            Self::PodDisruptionBudget => Some(ReflectedKind::PodDisruptionBudget),
            Self::Ingress | Self::NetworkPolicy => None,
        }
    }
}
