//! Exact Kubernetes quantities, lists of them, and what they cost.
//!
//! Clusters lend each other quantities: `1500m` of cpu, `4Gi` of memory, one GPU. Sums of
//! quantities decide whether a pod still fits into an offer, so this crate computes exactly, never
//! in floating point: a [`Quantity`] is a whole number of nano-units. It also remembers which of
//! Kubernetes' three notations it was written in (decimal, binary, exponent).
//!
//! ```text
//!     "1.5Gi"                                                     "1536Mi"
//!        │ parse (parse.rs)                          Display (print.rs) ▲
//!        ▼                                                              │
//!   Quantity { nanos: 1_610_612_736_000_000_000, format: BinarySI } ────┘
//!        │ one for each resource name
//!        ▼
//!   ResourceList { "cpu": 2, "memory": 4Gi, "nvidia.com/gpu": 1 }     add, saturating_sub, fits_in, percentage, ...
//!        │ times the seconds of use
//!        ▼
//!   AmountSeconds ── cost, at Rates ──▶ Money
//! ```
//!
//! A [`Money`] amount is exact, too: a whole number of billionths of a currency. [`Rates`] are
//! prices of resources, and [`cost_of_use`] tells what an amount costs for some time, and how it is
//! rounded.
//!
//! Two rules are worth knowing before you read on:
//!
//! - **Text.** The parser accepts everything that Kubernetes' grammar allows. The printer writes
//!   Kubernetes' canonical form: no fraction, no loss of precision, the largest suffix that allows
//!   both. [`Quantity`] lists the few intended differences from the Go implementation.
//! - **Shares.** A percentage is rounded down to the resource's [`Unit`], its smallest step:
//!   milli-cores of cpu, bytes of memory, whole GPUs. An indivisible resource never becomes zero by
//!   rounding: 90% of one GPU is one GPU. See [`Quantity::percentage`].
//!
//! Read `quantity.rs` first, then `list.rs` and `rates.rs`. All crates that count resources use
//! this one. It needs nothing of Liqo, so resource plugins use it, too. It has neither I/O nor a
//! Kubernetes client. To convert a quantity from another crate's type, use its text.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

mod amount_seconds;
mod decimal;
mod list;
mod money;
mod name;
mod parse;
mod print;
mod quantity;
mod rates;
mod resource;
mod share;
mod wire;

pub use amount_seconds::AmountSeconds;
pub use decimal::ParseDecimalError;
pub use list::{ResourceList, Shortage};
pub use money::{Money, is_currency};
pub use parse::ParseQuantityError;
pub use quantity::{Notation, Quantity};
pub use rates::{
    MAX_RATES, PricedUnit, PricesError, RateArgument, RateArgumentError, Rates, cost_of_use,
    per_hour, priced_unit,
};
pub use resource::{MAX_RESOURCE_NAME_LEN, ResourceArgument, ResourceArgumentError, Unit, unit_of};
