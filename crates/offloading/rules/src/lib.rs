//! The rules of offloading: what travels between clusters, what is admitted, and what is written where.
//!
//! Everything here is a pure function: a snapshot goes in, a decision comes out, and time is an argument. The crate depends on neither a
//! Kubernetes client nor a runtime. The controllers in `liqo-offloading` read, ask these rules, and write.
//!
//! ```text
//!   consumer                                             provider
//!
//!   pod::local         what to do for a local pod        pod::remote      what to do for a shadow pod
//!   pod::carry         which fields of a pod travel      pod::admission, ledger, reclaim   who gets room
//!   pod::local_status  which status fields come back     namespace::mapping, manifests     the mapped namespace
//!   pod::remote_events which events come back            replica::plan, isolation          what objects become
//!   namespace::placement  where a namespace goes
//!   node::object       what a virtual node looks like
//!   budget             which clusters get no new pods because of what they cost
//!   replica::record    what of an object travels
//! ```
//!
//! Pods are handled as JSON and edited by path, so that fields inside containers and metadata that this version does not know survive.
//! Everything that comes from a peer is treated as hostile.

#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used))] // It reads what peers write.

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
