//! Liqo's command line, as a library: `liqoctl`, and `kubectl liqo` when the program is named `kubectl-liqo`.
//!
//! Each command is one module. It works through the API server of the cluster, and of a second cluster if
//! the command takes two kubeconfigs. No command talks to Liqo's own processes: a command writes an object, the
//! controllers act on it, and the command shows the conditions that they write. The exception is [`catalog`], which asks the plugin of a
//! broker over HTTPS.
//!
//! ```text
//!   you ── liqoctl ──▶ API server of this cluster          install: objects of deploy/liqo, settings in ClusterConfig
//!            │          │                                  peer: Secret with a token, ForeignCluster
//!            │          ▼                                  offload: NamespaceOffloading; offer, approve: decisions
//!            │         controllers ──conditions──▶ status: a tree of all of it
//!            │
//!            └────────▶ API server of the other cluster    peer: its identity and address, a token for one use
//! ```
//!
//! `unoffload`, `unpeer` and `move pods` also evict pods themselves, with [`evict`], because only a command can wait for a budget and give up.
//!
//! `policy explain`, `broker status` and `cost` use the controllers' own pure rules. `status`, `explain pod` and `doctor` read the cluster with [`inspect`]; the last two judge it by
//! rules of their own.
//!
//! `broker status` shows who uses what of what this cluster borrows and lends on; `broker enable` and `disable` write the policy for it.
//! `contract` shows what was signed, and records decisions on it; `contract verify` needs no cluster.
//! `usage` and `receipt` read what the controllers counted under contracts; `receipt verify` needs no cluster.
//!
//! The commands return values; [`output`] prints them as a table, JSON or YAML. `liqo-playground` and the tests call the same
//! functions as the program.

pub mod apply;
pub mod approve;
pub mod ask;
pub mod bench_report;
pub mod broker;
pub mod catalog;
pub mod chart;
pub mod cli;
pub mod cluster;
pub mod complete;
pub mod contract;
pub mod cost;
pub mod discover;
pub mod doctor;
pub mod evict;
pub mod explain;
pub mod gateways;
pub mod generate;
pub mod inspect;
pub mod install;
mod interrupts;
pub mod kept_addresses;
pub mod manifests;
pub mod move_pods;
pub mod network_bench;
pub mod network_test;
pub mod offer;
pub mod offload;
pub mod offload_bench;
pub mod output;
pub mod parties;
pub mod peer;
pub mod playground;
pub mod plugin;
pub mod policy;
pub mod preflight;
pub mod probes;
pub mod program;
pub mod progress;
pub mod readiness;
pub mod receipt;
pub mod renew;
pub mod replicas;
pub mod rights_table;
pub mod rollout;
pub mod selector;
pub mod settings;
pub mod status;
pub mod tether;
pub mod token;
pub mod uninstall;
pub mod unpeer;
pub mod usage;
pub mod version;
pub mod wait;
