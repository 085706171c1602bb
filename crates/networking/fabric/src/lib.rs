//! liqo-fabric: the program on each node that carries packets between clusters.
//!
//! It is a `DaemonSet` in the host's network. It computes the desired state of the node's kernel
//! from the objects that it watches: the nodes, the ranges of this cluster, gateway Leases, and one
//! `TunnelEndpoint` for each peer, which the controller manager writes. Each change leads to one
//! pure decision (`decide`), and the agent applies only the difference. It also checks every half
//! minute, because other programs change kernels, too.
//!
//! ```text
//!   TunnelEndpoints --+                     +--> overlay, routes, nftables    every node
//!   Nodes ------------+--> decide --> agent-+
//!   ClusterConfig ----+        ^            +--> tunnel                       gateways
//!                              |                    |
//!   gateway Leases --> which are in use             +--> TunnelEndpoint.status, metrics
//! ```
//!
//! Where prefixes appear is decided elsewhere (`liqo-network-negotiation`); `liqo-datapath` makes
//! the calls to the kernel. Read `run` for the tasks, then `node_controller`, then `decide`.
//!
//! | module | what it does |
//! |---|---|
//! | `node_controller`, `agent` | apply the desired state to this node, again and again |
//! | `watches`, `view`, `resolve` | read objects, and look up the names of peers' gateways |
//! | `gateway_leases`, `key` | hold a numbered Lease if this node fits, with its WireGuard key; follow the others |
//! | `gateway_probes` | probe the other gateways, so that others take over from a dead one within two seconds |
//! | `relays` | carry the tunnel's datagrams over TLS while UDP does not pass |
//! | `open_watches` | on gateways: which addresses single peers may reach, and which pods there use the API server |
//! | `tunnel_clients` | if only the tunnel's port is exposed: connect other clusters' managers to our two servers |
//! | `passed_by` | on a broker: keep connections alive whose packets took a direct path for a while |
//! | `lan` | on one node: announce this cluster on the local network, and write which others are there |
//! | `report`, `metrics` | write how the tunnels are |
//!
//! All gateways in use have tunnels to all peers and share the flows
//! ([`liqo_network_model::spread`]). [`liqo_network_model::gateways`] says when a gateway counts as
//! lost.
//!
//! **A restart is a pause** and ends no connections: the kernel keeps its state. While the API
//! server is away nothing changes. Only a network that is switched off, or `--clear`, removes
//! everything.

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
pub use options::AgentOptions;
pub use run::{clear, run};
