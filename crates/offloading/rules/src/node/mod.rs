//! The Node object of a virtual node: `object` computes it, `difference` compares it with the live
//! one, `priced` says what a pod costs there.

pub mod difference;
pub mod object;
pub mod priced;
