//! The options in the query of a request that writes.

use super::{
    cause::{Cause, CauseKind},
    failure::Failure,
    request::{PatchType, Request},
};

/// Refuses to apply fields without an owner.
pub fn check(request: &Request) -> Result<(), Failure> {
    if request.patch_type == Some(PatchType::Apply) && request.parameter("fieldManager").is_none() {
        return Err(Failure::invalid_options(&[Cause::plain(
            CauseKind::Required,
            "fieldManager",
            "",
        )]));
    }
    Ok(())
}
