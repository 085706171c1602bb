//! The rules of offloading: what travels between clusters, what the provider admits, and what is
//! written where.
//!
//! Everything here is a pure function: a snapshot goes in, a decision comes out, and time is an
//! argument. The crate depends on neither a Kubernetes client nor a runtime. The controllers in
//! `liqo-offloading` read objects, ask these rules, and write. `liqoctl` asks the same rules to
//! explain what will happen.
//!
//! ```text
//!   consumer                                             provider
//!
//!   pod::scheduling    where a new pod may run           namespace::mapping   which mapped namespaces exist
//!   pod::local         what to do for a local pod        pod::remote          what to do for a shadow pod
//!   pod::carry         which fields of a pod travel      pod::carry           checks and completes them again
//!   pod::local_status  which status fields come back     pod::admission, ledger, reclaim   who gets resources
//!   pod::remote_events which events come back            replica::replica_plan  which replicas to create and delete
//!   namespace::placement  where a namespace goes         replica::isolation   what remote pods reach
//!   node::object       what a virtual node looks like
//!   replica::record    what of another object travels
//!   budget             which clusters get no new pods because of what they cost
//! ```
//!
//! Four words: a *local pod* is the pod that the user created, at home. A *shadow pod* is its
//! record at the provider. The *remote pod* runs there, in the *mapped namespace*, which the
//! provider creates for the namespace of the local pod. A *replica* is a copy of another object
//! there.
//!
//! Pods are JSON here and are edited by path, so that fields inside containers and metadata that
//! this version does not know survive. What is only read of them is read through [`views`], in which
//! each field has its name and its type. Everything that comes from a peer is treated as hostile.
//!
//! Read `pod::local` and `pod::remote` first: `decide_local_pod` and `decide_shadow_pod` tell the
//! life of a pod from both sides. The page of [`pod`] groups its modules. `json`, `dns_names`,
//! `finalizer`, `patterns` and `resolv_conf` are small and serve several others.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

pub mod budget;
mod dns_names;
mod finalizer;
#[cfg(test)]
mod fixtures;
pub mod json;
pub mod namespace;
pub mod node;
mod patterns;
pub mod pod;
pub mod replica;
pub mod resolv_conf;
pub mod views;
