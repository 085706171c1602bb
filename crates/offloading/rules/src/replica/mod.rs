//! Objects that are copied to the provider: `ConfigMap`s, Secrets, Services, Ingresses, `NetworkPolicy`s,
//! `PodDisruptionBudget`s.

pub mod chunk;
pub mod chunks;
pub mod disruption_budget;
pub mod exposure;
pub mod exposure_grant;
pub mod held_budgets;
pub mod ingress;
pub mod isolation;
pub mod kind;
pub mod label_selector;
pub mod lost_endpoints;
pub mod name;
pub mod network_policy;
pub mod network_policy_translation;
mod parts;
pub mod plan;
pub mod record;
pub mod service;
pub mod service_quota;
pub mod source;
