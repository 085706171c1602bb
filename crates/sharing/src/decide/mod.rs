//! What sharing decides, without a client, a clock or a task: snapshots in, actions out.
//!
//! Provider: [`reduce`] keeps what matters of nodes, pods and namespaces, [`source`] counts what is there, [`ledger`] splits
//! it between the consumers, [`publish`] says which offers are worth rewriting, and [`provider`] puts the four together.
//! Consumer: [`consumer`] judges the offers and says what follows from them. [`links`] is what both tell the user.

pub mod consumer;
pub mod ledger;
pub mod links;
pub mod provider;
pub mod publish;
pub mod reduce;
pub mod source;
