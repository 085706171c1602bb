//! The protocol of resource plugins: its files, its bytes, and both ends of it over loopback.
#![allow(clippy::unwrap_used, clippy::panic)]

mod descriptors;
mod golden;
mod hostile;
mod loopback;
mod serving;
mod support;
