//! The rules of sharing, as pure functions with time as an argument.
//!
//! ```text
//!   provider:  reduce, pods ──▶ snapshot ──▶ provider ──▶ Plan: offers, conditions, statuses of policies
//!                                               │
//!                 upstream  what virtual nodes stand for, and which of them may be lent on
//!                 pools     partitions the nodes as the policies say
//!                 source    computes what is free in each partition
//!                 shares    splits that between policies and consumers, by the rules of the ledger
//!                 prices    computes what a pool costs now
//!                 publish   selects the offers that are worth a write
//!                 absence   which consumers are silent for too long
//!                 granularity  who gets one pool for each node because it asked for that
//!                 tethering what the working mode changes
//!
//!   consumer:  offers, policy ──▶ consumer ──▶ Judgement: virtual nodes, copies, answers
//!
//!   both:      peer_conditions   what the ForeignCluster shows
//!
//!   isolation  whether the pod network enforces NetworkPolicies, without which nothing is offered
//! ```
//!
//! What both sides sign, and what follows from it, is in the crate `liqo-market`.
//!
//! [`lists`] builds a snapshot for a program that looks only once. `plugin` reads the answers of resource plugins.

pub mod absence;
pub(crate) mod consumer;
pub(crate) mod granularity;
pub(crate) mod isolation;
pub(crate) mod ledger;
pub mod lists;
pub(crate) mod peer_conditions;
pub(crate) mod plugin;
pub mod pods;
pub(crate) mod pools;
pub(crate) mod prices;
pub mod provider;
pub(crate) mod publish;
pub mod reduce;
pub(crate) mod shares;
pub mod snapshot;
pub(crate) mod source;
pub mod tethering;
pub(crate) mod upstream;
