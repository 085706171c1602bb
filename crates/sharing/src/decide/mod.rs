//! The rules of sharing: pure functions with time as an argument. Read `provider::decide_offers`
//! first.
//!
//! ```text
//!   provider:  objects ── reduce, pods ──▶ snapshot ── provider::decide_offers ──▶ ProviderPlan: offers, conditions, contracts, ...
//!      upstream     which virtual nodes it may lend on     shares       splits it between policies and consumers
//!      pools        divides the nodes as policies say      ledger       how one amount is split
//!      source       what is free in each partition         prices       what a pool costs now
//!      absence      which consumers are silent too long    publish      which offers are worth a write
//!      granularity  who gets one pool for each node        tethering    what the working mode changes
//!   consumer:  offers, policy ── consumer::judge_offers ──▶ OfferJudgement: virtual nodes, copies, answers
//!      request_answers  our request there, and what it answers to it
//!   both:      peer_conditions: what the ForeignCluster shows
//!              archive: what stays when a peering ends
//!              isolation: whether the pod network enforces NetworkPolicies, without which nothing is offered
//! ```
//! [`lists`] builds a snapshot for a program that computes offers once, such as
//! `liqoctl policy explain`. `plugin` reads the answers of resource plugins. The rules of contracts
//! and receipts are in the crate `liqo-market`.

pub mod absence;
pub(crate) mod archive;
pub(crate) mod consumer;
pub(crate) mod free_capacity;
pub(crate) mod granularity;
pub(crate) mod isolation;
pub(crate) mod ledger;
pub mod lists;
pub(crate) mod peer_conditions;
pub(crate) mod plugin;
pub mod pods_by_node;
pub(crate) mod pools;
pub(crate) mod prices;
pub mod provider;
pub(crate) mod publish;
pub mod reduce;
pub(crate) mod request_answers;
pub mod scheduled_pod;
pub(crate) mod shares;
pub mod snapshot;
pub mod tethering;
pub(crate) mod upstream;
