//! Finds other clusters by DNS service discovery (RFC 6763): on the local network by multicast (RFC 6762), and in DNS domains.
//!
//! Everything here is pure: bytes or records in, decisions out, and time is an argument. `liqo-fabric` does the input and output of
//! the local network, and the manager that of domains, because packets to a multicast group do not leave a pod's network.
//!
//! ```text
//!  packets ─▶ message ─▶ announcement ─▶ lan_table ─▶ a list in a ConfigMap ─┐
//!                             ▲                                               ├─▶ merge ─▶ ForeignCluster: create, change, delete
//!  answers ─▶ message ─▶ domain_lookup ─▶ status of a SearchDomain ──────────┘
//! ```
//!
//! An announcement proves nothing: anybody on the network can send one with any cluster ID. So nothing follows from it before the
//! manager called the announced address and the cluster there proved the ID by its key. What others can send is bounded: the length
//! of a packet, the records in it, the entries of one sender, the entries in all, and how long an entry lives.

#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used))] // It reads what peers write.

pub mod announcement;
pub mod domain_lookup;
pub mod lan_table;
pub mod merge;
pub mod message;
pub mod pace;
pub mod responder;
pub mod written_list;
