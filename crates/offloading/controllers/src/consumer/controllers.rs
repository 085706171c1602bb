//! The controllers of the consumer's side. Each works on one queue, follows connections, or looks
//! again after a time. They share the state and the rules, and never call each other: what one
//! changes, the watches report, and the triggers say which keys are due.

pub mod budgets;
pub mod connections;
pub mod namespaces;
pub mod notices;
pub mod pods;
pub mod records;
pub mod remote_events;
pub mod savings;
pub mod unscheduled_pods;
pub mod virtual_nodes;
