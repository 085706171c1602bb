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

pub use collect::{collect, is_fabric, statuses, usage, wanted_rights};
pub use facts::{
    ApiServer, ClusterComponents, Credential, Facts, Gateway, Heartbeat, LiqoObjects, NodeUsage,
    PodDiagnostics, Read, Usage, WebhookCertificate, is_virtual,
};
pub use reader::Reader;
