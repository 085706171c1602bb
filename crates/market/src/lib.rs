//! The market between two owners: what they agree on, what they count, and what they sign for it. Pure: no cluster, no clock.
//!
//! ```text
//!   contract   terms that both sign; amendments; the end
//!   receipt    what was used in a period, which both sign or one disputes
//! ```
//!
//! Each side keeps what it signed, and what the other one signed. Everything else in the objects is a view, for people and programs.

pub mod contract;
pub mod receipt;
#[cfg(test)]
mod tests;
