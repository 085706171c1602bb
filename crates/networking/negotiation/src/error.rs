//! The requests that can fail, and the name under which this crate writes.

use liqo_controller_runtime::{peers::PeerError, writes::StepError};

/// Field manager of everything that this crate writes. It is stored in objects, so it keeps the crate's former name.
pub const FIELD_MANAGER: &str = liqo_api::conditions::owners::NETWORK.field_manager;

/// A request that failed. The controller tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Local(#[from] StepError),
    #[error(transparent)]
    Remote(#[from] StepError<PeerError>),
}
