//! Objects that are copied to the provider: `ConfigMap`s, Secrets, Services, `EndpointSlice`s,
//! Ingresses, `NetworkPolicy`s, `PodDisruptionBudget`s.
//!
//! ```text
//!   every kind       kind; record: an object as it travels ──▶ replica_source: what the provider keeps ──▶ replica_plan: replicas
//!                    name: how a replica is called; parts, chunk, chunks: large objects in several records
//!   Services         service service_quota lost_endpoints
//!   from outside     ingress exposure exposure_grant: Ingresses and load balancers, as the provider's policy allows
//!   NetworkPolicies  network_policy network_policy_translation label_selector (consumer) ──▶ isolation (provider)
//!   disruption       disruption_budget (what home needs) ──▶ held_budgets (what holds at the provider)
//! ```
//! Read `record` and `replica_plan` first.

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
pub mod record;
pub mod replica_plan;
pub mod replica_source;
pub mod service;
pub mod service_quota;
