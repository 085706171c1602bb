//! The key of a cluster, and documents that clusters signed with it.
//!
//! A document goes to another cluster, or is stored in an object that both clusters read. Whoever
//! reads it checks who signed it, with nothing but the document itself: it contains the public
//! keys, and the ID of a cluster is the hash of its key.
//!
//! ```text
//!   ClusterIdentity ── sign ──▶ Envelope { payload, type, signatures }    one signature: a request
//!                                   │                                     two of the same bytes: a contract, a receipt
//!                                   ▼
//!                               verify ──▶ the exact bytes, and who signed them
//! ```
//!
//! * [`identity`]: the Ed25519 key, from which the ID of the cluster is derived.
//! * [`envelope`]: DSSE envelopes (Dead Simple Signing Envelope). A verifier checks the bytes that
//!   were sent, and never serialises them again. Read this first.
//! * [`sign_in`]: a small envelope in a request header, with which a cluster reads the catalog of a
//!   broker.
//!
//! This crate has neither a client nor a runtime, so that programs can verify documents offline. It
//! does not know what a payload says: `liqo-peering` reads requests, `liqo-market` contracts and
//! receipts. `liqo-peering` also stores the key, in a Secret.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

pub mod envelope;
pub mod identity;
pub mod sign_in;

pub use envelope::{Envelope, EnvelopeError, Signature, VerifiedPayload, payload_digest};
pub use identity::{ClusterIdentity, IdentityKeyError, PublicKey};
