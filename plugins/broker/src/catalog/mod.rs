//! The catalog: a read-only interface over HTTPS that shows what other clusters offer to this one,
//! by price, capacity, labels and latency.
//!
//! ```text
//!   GET /catalog/v1/offers?currency=EUR&maxPrice=cpu=0.04&sort=latency
//!        │ connections, pace: few connections and requests of each caller
//!        │ access: a token or the sign-in of a customer, and the right to read
//!        ▼
//!   offers, peers, tunnels ──▶ select: filters, sorts, one page
//! ```

mod access;
mod caller_pace;
mod connections;
mod select;
mod server;

pub use access::KnownClusters;
pub use select::entry_of;
pub use server::{Catalog, CatalogCertificate, CatalogError, CatalogSource};
