//! liqo-fabric: the program on each node that carries packets between clusters.
//!
//! It runs on every node, in the node's own network. The desired state of a node's kernel is computed from objects that the program
//! watches: the nodes, the ranges of this cluster, and one `TunnelEndpoint` for each peer, which the controller manager writes. Each
//! change leads to one pure decision (`decide`), and the agent applies only the difference. It also checks every half minute, because
//! other programs change kernels, too.
//!
//! ```text
//!   TunnelEndpoints --+                     +--> overlay, routes, nftables    every node
//!   Nodes ------------+--> decide --> agent-+
//!   ClusterConfig ----+        ^            +--> tunnel                       gateways
//!                              |                    |
//!   gateway Leases --> which are in use             +--> TunnelEndpoint.status, metrics
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `node_controller`, `agent` | apply the desired state to this node, again and again |
//! | `gateway_leases`, `decide::election` | hold one of the numbered Leases if this node fits; know which gateways are in use |
//! | `gateway_probes` | probe the other gateways' nodes, so the others take over from a dead one within two seconds |
//! | `passed_by` | on a broker's gateways: connections of which packets pass by a direct path go on |
//! | `open_watches`, `decide::reachable_addresses` | on gateways: which addresses single peers may reach, and which pods there use the API server here |
//! | `relays`, `decide::fallback` | carry the tunnel's datagrams over TLS while UDP does not pass |
//! | `tunnel_clients` | if only the tunnel's port is exposed: connect other clusters' managers to our auth endpoint and API server |
//! | `lan`, `decide::lan` | on one node: announce this cluster on the local network, and write which others are there |
//! | `report`, `decide::status`, `metrics` | write how the tunnels are |
//!
//! All gateways in use have tunnels to all peers and share the flows ([`liqo_network_model::spread`]).
//! [`liqo_network_model::gateways`] says when a gateway is taken for lost.
//!
//! **What stays.** The kernel's state outlives the process, so a restart is a pause and does not end connections. While the API server
//! is away nothing changes. Only a network that is switched off, or `--clear`, removes everything.

mod agent;
mod decide;
mod gateway_leases;
mod gateway_probes;
mod key;
mod lan;
mod metrics;
mod node_controller;
mod open_watches;
mod options;
mod passed_by;
mod relays;
mod report;
mod resolve;
mod run;
mod tunnel_clients;
mod view;
mod watches;

pub use lan::service as lan_service;
pub use options::Options;
pub use run::{clear, run};
