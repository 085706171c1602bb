//! The auth endpoint: the first contact of two clusters, and every later credential.
//!
//! ```text
//!  consumer                                        provider
//!  client ──GET /ids──────────────────────────────▶ server     who answers (proved by TLS), which versions
//!         ──GET /v1/challenge─────────────────────▶            valid for 30 s by the provider's clock, once
//!         ──POST /v1/peerings (signed envelope)───▶ decide ─▶ tenancies: namespace, rights, credential
//!         ──POST /v1/peerings/end (signed)────────▶ decide ─▶ tenancies: remove all of it
//! ```
//!
//! [`decide::access`](crate::decide::access) decides what is allowed, from facts that [`server`]
//! collects; [`tokens`] claims and discards tokens for the first contact. `connections` decides
//! which connections stay open. `request_turns` limits how often the endpoint works for each caller.

pub mod client;
mod connections;
mod request_turns;
pub mod server;
pub mod tokens;

#[cfg(test)]
mod tests;
