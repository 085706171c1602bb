//! Reads one cluster for `liqoctl status` and `liqoctl doctor`. It changes nothing.
//!
//! ```text
//!              ┌─▶ LiqoObjects, Usage ─▶ status: a tree
//!   Reader ────┤
//!              └─▶ Facts ──────────────▶ doctor: findings
//! ```
//!
//! What cannot be read stays in its place as an error text, so `doctor` can still judge the rest.

mod collect;
mod facts;
pub mod failed_creations;
#[cfg(test)]
pub mod fixtures;
mod reader;

pub use collect::{collect, collect_usage, container_statuses, is_fabric, wanted_rights};
pub use facts::{
    ApiServerFacts, BorrowedAndLentUsage, ClusterComponents, ClusterFacts, CredentialLifetime,
    LeaseHeartbeat, LeasedGateway, LiqoObjects, PodDiagnostics, ReadResult, VirtualNodeUsage,
    WebhookCertificate, is_virtual,
};
pub use reader::ClusterReader;
