//! Finds other clusters by DNS service discovery (RFC 6763): on the local network by multicast (RFC
//! 6762), and in DNS domains.
//!
//! Everything here is pure: bytes or records in, decisions out, and time is an argument.
//! `liqo-fabric` sends and receives on the local network, because packets to a multicast group do
//! not leave a pod's network. The manager (`liqo-peering`) asks about domains, and writes the
//! `ForeignCluster`s.
//!
//! ```text
//!                                                liqo-fabric                              manager
//!  packets ─▶ message ─▶ announcement ─▶ lan_table ─▶ list in a ConfigMap ─┐
//!                             ▲                                            ├─▶ merge ─▶ ForeignCluster:
//!  answers ─▶ message ─▶ domain_lookup ─▶ status of a SearchDomain ────────┘              create, change, delete
//!
//!  own ID and URL ─▶ responder ─▶ packets: what this cluster announces
//! ```
//!
//! An announcement proves nothing: anybody on the network can send one with any cluster ID. So a
//! `ForeignCluster` is created only after the manager called the announced URL and the cluster
//! there proved its ID by its key. What others can send is bounded: the length of a packet, the
//! records in it, the entries of one sender, all entries, and the life of an entry.
//!
//! Where to read, in this order:
//! - [`announcement`]: what one cluster says about itself. [`message`]: DNS messages.
//! - [`lan_table`]: the clusters that were heard on the local network. [`domain_lookup`]: what to
//!   ask about a domain.
//! - [`merge`]: what follows for each cluster; `decide` has the rules.
//! - [`responder`]: what this cluster says about itself, and when.
//! - [`write_pace`], [`written_list`]: when `liqo-fabric` writes its list.
//!
//! Peering with a cluster that was found is another matter: a `PeeringPolicy` decides it, see
//! docs/how-to/peer-automatically.md.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

pub mod announcement;
pub mod domain_lookup;
pub mod lan_table;
pub mod merge;
pub mod message;
pub mod responder;
pub mod write_pace;
pub mod written_list;
