//! The data path: what carries packets between pods of different clusters.
//!
//! Packets leave a cluster through one of its gateways: programs on nodes that other clusters' gateways can reach, or that can reach
//! them. Between two gateways they travel encrypted, in WireGuard's own format, so that the other end may as well be the kernel's
//! WireGuard or wireguard-go.
//!
//! ```text
//!   pods, nodes                                gateway                                       gateway of the peer
//!
//!      |  routes of the node   +---------+   TUN   +----------+   UDP, encrypted   +----------+   TUN   +---------+
//!      +---------------------->| kernel  |-------->|  tunnel  |------------------->|  tunnel  |-------->| kernel  |----> pods
//!                              +---------+<--------+----------+<-------------------+----------+<--------+---------+
//!                                 routes, address translation                          routes, address translation
//! ```
//!
//! - [`node`]: what the kernel of every node holds: the overlay between nodes, routes, rules, nftables.
//! - [`tunnel`]: the encrypted part, in user space, for kernels without WireGuard.
//! - [`relay`]: another way between two tunnels, over TLS, for where UDP does not pass.
//!
//! Each part is told what is wanted, compares that with what there is, and changes the difference. Nothing here knows of
//! Kubernetes. What must outlive the process (the device, its routes) belongs to the kernel, so that a restart is only a pause.

pub mod node;
pub mod relay;
#[cfg(feature = "testbed")]
pub mod testbed;
pub mod tunnel;
