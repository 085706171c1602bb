//! The data path: carries packets between pods of different clusters.
//!
//! Packets leave a cluster through one of its gateways: nodes that other clusters' gateways can
//! reach, or that can reach them. Between two gateways packets travel encrypted, in WireGuard's own
//! format. The other end may also be the kernel's WireGuard or wireguard-go.
//!
//! ```text
//!   pods, nodes                               gateway                        gateway of the peer
//!
//!      |  routes of the node  +--------+  TUN  +--------+  UDP, encrypted  +--------+  TUN  +--------+
//!      +--------------------->| kernel |------>| tunnel |----------------->| tunnel |------>| kernel |----> pods
//!                             +--------+<------+--------+<-----------------+--------+<------+--------+
//!                             routes, address translation                   routes, address translation
//! ```
//!
//! - [`node`]: the kernel state of every node: the overlay between nodes, routes, rules, nftables.
//! - [`tunnel`]: the encryption, in user space, for kernels without WireGuard.
//! - [`relay`]: carries a tunnel's datagrams over TLS where UDP does not pass.
//!
//! `liqo-fabric` calls all three. It passes the wanted state; each part compares it with the
//! present state and applies only the difference. Nothing here talks to Kubernetes or decides what
//! is wanted: `liqo-network-model` computes that. The kernel owns what must outlive the process
//! (the device, its routes), so a restart is only a short pause.
//!
//! Start with `node/steps.rs` (a pure comparison) and `tunnel/interface.rs` (the trait and the
//! wanted state). [`node::FakeKernel`] and [`tunnel::FakeTunnel`] are for the tests of other
//! crates. Tests on real kernels are in `crates/networking/testbed`.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

mod message;
pub mod node;
pub mod relay;
pub mod tunnel;
