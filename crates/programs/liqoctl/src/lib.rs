//! Liqo's command line, as a library: `liqoctl`, or `kubectl liqo` when the program is named
//! `kubectl-liqo`.
//!
//! A command works through the API server of the cluster, and of a second cluster if it takes two
//! kubeconfigs. No command talks to Liqo's own processes: it writes an object, the controllers act
//! on it, and the command shows the conditions that they write. The exception is [`catalog`], which
//! asks the plugin of a broker over HTTPS.
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
//! Start at `run_command` in `main.rs`: it calls the module of each command. `cli` declares commands
//! and flags; where a module takes its flags as they are, it declares them (`UnpeerOptions`).
//! Commands return values; [`output`] prints them as a table, JSON or YAML. `liqo-playground` and
//! the tests call the same functions.
//!
//! - Install: [`install`], [`settings`], [`manifests`], [`preflight`], [`image_pulls`],
//!   [`uninstall`]; [`chart`] generates the Helm chart.
//! - Peer: [`peer`], [`unpeer`], [`token`], [`approve`], [`discover`], [`renew`], [`tether`].
//! - Lend and borrow: [`offer`], [`policy`], [`broker`] (lends on what this cluster borrows),
//!   [`catalog`].
//! - Contracts and costs: [`contract`] (what was signed), [`usage`] and [`receipt`] (what
//!   controllers counted), [`cost`].
//! - Pods: [`offload`], [`move_pods`]; [`evict`] for these and `unpeer`: a command can wait for a
//!   disruption budget, and give up, so it evicts pods itself.
//! - Look: [`status`], [`explain`], [`doctor`], with [`inspect`], which reads a cluster. `explain`
//!   and `doctor` judge it by rules of their own, and return a [`finding`] for each.
//! - Test: [`network_test`].
//!
//! Commands list objects with the functions of [`lists`]: one for each kind, which fail with the
//! same words.
//!
//! `policy explain`, `broker status` and `cost` use the controllers' own pure rules. The commands
//! `contract verify` and `receipt verify` need no cluster.

pub mod apply;
pub mod approve;
pub mod ask;
pub mod branch;
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
pub mod finding;
pub mod gateways;
pub mod generate;
pub mod image_pulls;
pub mod inspect;
pub mod install;
mod interrupts;
pub mod kept_addresses;
pub mod lists;
pub mod manifests;
pub mod move_pods;
pub mod network_test;
mod node_fit;
pub mod offer;
pub mod offload;
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
pub mod reference_pages;
pub mod renew;
pub mod replicas;
pub mod rights_table;
pub mod rollout;
pub mod selector;
pub mod settings;
pub mod status;
pub mod terminal;
pub mod tether;
pub mod token;
pub mod uninstall;
pub mod unpeer;
pub mod usage;
pub mod version;
pub mod wait;
