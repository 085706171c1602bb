//! draft
mod changes;
mod codec;
mod source;
pub mod arguments;
pub mod model;
pub mod wire;
pub use async_trait::async_trait;
pub use changes::{Announcer, Changes};
pub use model::{Change, Pool};
pub use source::{ResourceSource, SourceError};
pub use wire::Generation;
