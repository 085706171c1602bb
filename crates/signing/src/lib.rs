//! The key of a cluster, and documents that clusters signed with it.
//!
//! ```text
//!   ClusterIdentity ── sign ──▶ Envelope { payload, type, signatures }      one signature: a request, a grant
//!                                   │                                       two signatures over the same bytes: a contract, a receipt
//!                                   ▼
//!                               verify ──▶ the exact bytes, and who signed them
//! ```
//!
//! * [`identity`]: the Ed25519 key, from which the ID of the cluster is derived.
//! * [`envelope`]: DSSE envelopes. A verifier checks the bytes that were sent, and never serialises them again.
//! * [`sign_in`]: a small envelope with which a cluster reads what needs no challenge.
//!
//! This crate has neither a client nor a runtime, so that programs can verify documents offline.

#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used))] // It reads what peers write.

pub mod envelope;
pub mod identity;
pub mod sign_in;

pub use envelope::{Envelope, EnvelopeError, Signature, Verified, digest};
pub use identity::{ClusterIdentity, KeyError, PublicKey};
