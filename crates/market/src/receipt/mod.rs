//! Metering: which periods get a receipt, what the consumer answers, and what is deleted.
//!
//! ```text
//!   provider   issue      records of a period that are complete ──▶ Receipt; signed by both ──▶ the records go
//!              unanswered consumers that sign none of many receipts
//!   consumer   answer     receipt, the provider's records, own records ──▶ signature, or the pods that differ
//!              counted    whether the own entries of a period are complete
//!              given      the answer that it gave already, by its own copy or its own signature
//!              settle     what complete periods cost is added up before their records go
//!              unclaimed  records of periods for which no receipt comes any more go, too
//!   both       document   the signed bytes, and what they say
//!              contract   what a receipt needs of a contract
//! ```
//!
//! How entries are counted and compared is in `liqo_metering`. Offloading writes the records, because it sees the pods.

pub mod answer;
pub mod contract;
pub mod counted;
pub mod document;
pub mod given;
pub mod issue;
pub mod settle;
pub mod unanswered;
pub mod unclaimed;
