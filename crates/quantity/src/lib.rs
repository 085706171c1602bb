//! Exact Kubernetes quantities and lists of them.
//!
//! What clusters lend each other is counted in quantities: `1500m` of cpu, `4Gi` of memory, one GPU. Sums of
//! them decide whether a pod still fits into an offer, so they are computed exactly, never in floating point:
//! a [`Quantity`] is a whole number of nano-units, and remembers in which of the three notations of Kubernetes
//! it was written.
//!
//! ```text
//!     "1.5Gi"                                                     "1536Mi"
//!        │ parse (parse.rs)                          Display (print.rs) ▲
//!        ▼                                                              │
//!   Quantity { nanos: 1_610_612_736_000_000_000, format: BinarySI } ────┘
//!        │
//!        │ one per resource name
//!        ▼
//!   ResourceList { "cpu": 2, "memory": 4Gi, "nvidia.com/gpu": 1 }
//!        │  add, saturating_sub, fits_in, percentage, ...
//!        ▼
//!   Unit: what a resource is counted in, and so how a share of it is rounded
//! ```
//!
//! Two rules are worth knowing before reading on:
//!
//! - **Text.** Everything that Kubernetes' grammar allows is read, and what is printed is always Kubernetes'
//!   canonical form: no fraction, no precision lost, the largest suffix that allows both. The few places where
//!   we differ from the Go implementation on purpose are listed at [`Quantity`].
//! - **Shares.** A percentage is rounded down to what the resource is counted in ([`Unit`]): milli-cores of
//!   cpu, bytes of memory, whole GPUs. A resource that can't be split never silently becomes zero: 90% of one
//!   GPU is one GPU. See [`Quantity::percentage`].
//!
//! There is no I/O here and no Kubernetes client: who holds a quantity in another crate's type converts it by
//! its text.

mod list;
mod name;
mod parse;
mod print;
mod quantity;
mod resource;
mod wire;

pub use list::{ResourceList, Shortage};
pub use parse::ParseQuantityError;
pub use quantity::{Format, Quantity};
pub use resource::{ResourceArgument, ResourceArgumentError, Unit, unit_of};
