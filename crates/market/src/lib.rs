//! The market between two owners who do not know each other: what they agree on, what they count, and what they sign for it.
//!
//! Pure: no cluster, no clock. Each decision is a function of objects and a time, so that a test can play both owners.
//!
//! ```text
//!   provider's API server (tenant namespace)                    consumer's API server (provider namespace)
//!
//!   ResourceRequest   peering ◀──────────────────────────────── UID of the provider namespace
//!   Contract          document: terms with that peering ──────▶ judged by policy, person, own copy
//!                     status.signature ◀─────────────────────── signature   (the copy has it first, with its time)
//!                     countersignature, inForceSince ─────────▶ copy, in force
//!                     pending: an amendment of that digest ───▶ judged against the terms in force
//!                     status.pendingSignature ◀──────────────── signature
//!                     the amendment replaces the document ────▶ copy, with the former terms in `earlier`
//!   UsageRecord       what was used                             UsageRecord   what was used
//!   Receipt           document: the sum of a period ──────────▶ compared with its own records and its own copy
//!                     status.signature ◀─────────────────────── signature, or the pods that differ
//! ```
//!
//! # The rule
//! Whatever enters a signature, a charge, a stored copy or a decision to delete evidence comes from this cluster's own records, or from
//! bytes that this cluster verified against its own keys and its own contract. Everything else in the objects is a view for people. It is
//! shown, and never believed when it is read back. So what a peer wrote has the type [`Claimed`](liqo_api::Claimed) until a function
//! verifies it; docs/trusted-fields.md lists the functions that open one, and what each relies on.
//!
//! What this means for contracts:
//! - A signature of this cluster counts if its own copy has it. What the provider shows may be of another peering.
//! - Terms name the peering. Another peering has another name, so that nothing that was signed before comes back.
//! - The copy has the terms of the signed document, not the readable ones next to it. It lists as earlier terms only what it had itself.
//! - Nobody signs since when terms are in force. The provider says it, and the consumer believes a time between its own signature and now.
//! - A version that costs more says in the signed terms how long after the signature it counts: at least the notice.
//! - One contract at a time: the next one begins at the end of the one before, at the earliest.
//! - Nobody signs an end. The first one that the copy has stays, unless a signed renewal replaces it.
//!
//! What this means for a provider: a consumer chooses no cause of an end but its own, keeps no offer without a signature, and reserves
//! nothing before it signed.
//!
//! # Where to read
//! ```text
//!   contract   terms that both sign; amendments; the end
//!   receipt    what was used in a period, which both sign or one disputes
//! ```
//! docs/contracts.md has the messages one by one: what each binds, who stores it until when, and what each side can prove.

#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used))] // It reads what peers write.

pub mod contract;
pub mod receipt;
#[cfg(test)]
mod tests;
