//! Clusters in one process, for tests that need many orders of events and no real kubelet.
//!
//! ```text
//!   a process under test                   a cluster
//!   kube::Client --> Link ----------------> ApiServer <-- run: controllers, scheduler, kubelets
//!                    delays, losses,          |            (cluster::decide, pure)
//!                    refusals, partitions,    +-- store, with the history that watches read
//!                    the end of a process     +-- kinds, schemas, patches, selectors, RBAC: pure
//! ```
//!
//! Time is tokio's, so a paused clock lets an hour pass within a second. All that is drawn (names, uids, faults) comes from a seed:
//! the same seed gives the same history.
//!
//! The API server answers as kube-apiserver does: `tests/judge` sends the same random requests to both and compares the answers.
//! The causes of its refusals are those of kube-apiserver; their texts are its own. It accepts invalid objects that clients of ours
//! do not send. It has no admission policies, no aggregation, and nothing that a kubelet answers (logs, exec). The controllers do
//! what Kubernetes' own do, as small as they can be; `cluster` says what they leave out.

mod api_server;
mod cluster;
mod control_plane;
mod link;
mod random;

pub use api_server::{Answered, ApiServer, Key, User, WebhookCall, Webhooks};
pub use cluster::Settings;
pub use control_plane::run;
pub use link::{Faults, Link};
pub use random::Draws;
