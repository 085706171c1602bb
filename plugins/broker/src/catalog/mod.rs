//! The catalog: a read-only interface over HTTPS that shows what other clusters offer to this one, by price, capacity, labels and latency.
//!
//! ```text
//!   GET /catalog/v1/offers?currency=EUR&maxPrice=cpu=0.04&sort=latency
//!        │ connections, pace: few connections and requests of each caller
//!        │ access: TokenReview, SubjectAccessReview
//!        ▼
//!   offers, peers, tunnels ──▶ select: filters, sorts, one page
//! ```

mod access;
mod connections;
mod pace;
mod select;
mod server;

pub use select::Entry;
pub use server::{Catalog, CatalogError, Certified, Offered};
