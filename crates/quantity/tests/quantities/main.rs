//! Quantities and lists of them: compared with Kubernetes' own implementation, and properties that
//! hold for all.

mod golden;
mod properties;
