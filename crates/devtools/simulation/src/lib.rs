//! Simulated clusters in one process, for tests that need many orders of events and no real
//! kubelet.
//!
//! ```text
//!   a process under test                   a cluster
//!   kube::Client --> Link ----------------> ApiServer <-- run: controllers, scheduler, kubelets
//!                    delays, losses,          |            (cluster::decide, pure)
//!                    refusals, partitions,    +-- store, with the history that watches read
//!                    the end of a process     +-- kinds, schemas, patches, selectors, RBAC: pure
//! ```
//!
//! A test creates an [`ApiServer`], calls [`run`] for its controllers, and gives the process under
//! test a client through a [`Link`], which can fail. `tests/cluster.rs` shows how. The library
//! contains nothing of Liqo; `tests/liqo` runs Liqo's real controller managers in two or three of
//! these clusters. Tests of `liqo-sharing` use only the API server.
//!
//! Time is tokio's, so with a paused clock an hour passes within a second. Everything random
//! (names, uids, faults) comes from a seed: the same seed gives the same history.
//!
//! The API server answers as kube-apiserver does: `tests/judge` sends the same random requests to
//! both and compares the answers. A refusal has the same causes as kube-apiserver's, with a
//! different text. It accepts some invalid objects that our clients never send. It has no admission
//! policies, no aggregation, and nothing that a kubelet answers (logs, exec). The controllers are
//! as small as possible; the page of `cluster` says what they leave out.

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
