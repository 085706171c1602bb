//! What sharing decides, without a client, a clock or a task: snapshots in, actions out.
//!
//! Provider: [`picture`] holds what [`reduce`] keeps of nodes, pods and namespaces, the [`pods`] summed by node; [`pools`] divides the nodes as the policies
//! say, [`source`] counts what is free, [`shares`] splits it between policies and consumers by the rules of the [`ledger`],
//! [`publish`] says which offers are worth rewriting, and [`provider`] puts them together.
//! [`lists`] makes a picture for a program that looks only once.
//! Consumer: [`consumer`] judges the offers and says what follows from them. [`links`] is what both tell the user.

pub mod consumer;
pub mod ledger;
pub mod links;
pub mod lists;
pub mod picture;
pub mod plugin;
pub mod pods;
pub mod pools;
pub mod provider;
pub mod publish;
pub mod reduce;
pub mod shares;
pub mod source;
