//! The market between two owners who do not trust each other: contracts, which say what they agree
//! on, and receipts, which say what was used and what it costs. Both owners sign each document.
//!
//! Pure: no client, no clock. Each decision is a function of objects and a time, so a test can play
//! both owners. `liqo-sharing` reads the objects, calls these functions and writes the results.
//! `liqoctl` verifies stored documents.
//!
//! ```text
//!   provider: tenant namespace                         consumer: provider namespace
//!
//!   ResourceRequest   names the peering ◀───────────── UID of this namespace
//!   Contract          document: the signed terms ────▶ judged by policy, person and own copy
//!                     status.signature ◀────────────── signature   (the copy has it first, with its time)
//!                     inForceSince ──────────────────▶ copy, in force
//!                     pending: a signed amendment ───▶ judged against the terms in force
//!                     status.pendingSignature ◀─────── signature   (then the amendment becomes the document)
//!   UsageRecord       what was used                    UsageRecord   what was used
//!   Receipt           document: the sum of a period ─▶ compared with its own records and its own copy
//!                     status.signature ◀────────────── signature, or the pods that differ
//! ```
//! # The rule
//! Whatever enters a signature, a charge, a stored copy or a decision to delete evidence comes from
//! this cluster's own records, or from bytes that it verified against its own keys and its own
//! contract. All other fields are for people: Liqo shows them, and never reads them back as facts.
//! So what a peer wrote has the type [`Claimed`](liqo_api::Claimed) until a function verifies it;
//! docs/reference/trusted-fields.md lists these functions. For contracts this means:
//! - A signature of this cluster counts only if its own copy has it. Terms name their peering, so
//!   those of a former one never count.
//! - The copy stores the terms of the signed document, not the readable ones next to it, and
//!   earlier terms only from itself.
//! - Nobody signs when terms came into force. The consumer believes a time between its own
//!   signature and now.
//! - A dearer version says in its signed terms how long after the signature it begins: at least the
//!   notice.
//! - There is one contract at a time: the next one begins when the one before has ended, at the
//!   earliest.
//! - Nobody signs an end. The first end in the copy stays, unless a signed renewal replaces it.
//! - A consumer can name no cause of an end but its own, keeps no offer without a signature, and
//!   reserves nothing before it.
//!
//! Read [`contract`] first, then [`receipt`]. docs/reference/contracts.md shows the messages one by one.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

pub mod contract;
pub mod receipt;
#[cfg(test)]
mod tests;
