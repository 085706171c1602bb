//! Receipts: which periods get one, what the consumer answers, and which objects are deleted.
//!
//! ```text
//!   provider   issue       records of a complete period ──▶ Receipt; when both signed it ──▶ the records go
//!              unanswered  consumers that leave many receipts unsigned
//!   consumer   counted     whether its own entries of a period are complete
//!              answer      receipt, provider's records, own records ──▶ signature, or the pods that differ
//!              given       which answer it already gave: by its own copy or its own signature
//!              settle      adds up the costs of complete periods before their records go
//!              unclaimed   deletes records of periods for which no receipt will come
//!   both       document: the signed bytes     contract: what a receipt needs of a contract
//! ```
//! `liqo_metering` counts and compares entries. Offloading writes the records, because it sees the
//! pods.

pub mod answer;
pub mod contract;
pub mod counted;
pub mod document;
pub mod given;
pub mod issue;
pub mod settle;
pub mod unanswered;
pub mod unclaimed;
