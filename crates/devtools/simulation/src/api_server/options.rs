//! The options in the query of a request that writes.

use super::{
    failure::Failure,
    request::{PatchType, Request, Verb},
};

/// Refuses options that no request of this kind may have.
pub fn check(request: &Request) -> Result<(), Failure> {
    let kind = match request.verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Patch => "PatchOptions",
        _ => return Ok(()),
    };
    let refuse = |why: &str| Err(Failure::invalid_options(kind, &[why.to_owned()]));
    let is_apply = request.patch_type == Some(PatchType::Apply);
    if request.verb == Verb::Patch && !is_apply && request.parameter("force").is_some() {
        return refuse("force: Forbidden: may not be specified for non-apply patch");
    }
    let manager = request.parameter("fieldManager").unwrap_or_default();
    if is_apply && manager.is_empty() {
        return refuse("fieldManager: Required value: is required for apply patch");
    }
    if let Some((at, odd)) = manager.char_indices().find(|(_, character)| character.is_control()) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(odd));
        return refuse(&format!("fieldManager: Invalid value: {manager:?}: {why}"));
    }
    if let Some(odd) = request.parameter("dryRun").filter(|value| *value != "All") {
        return refuse(&format!("dryRun: Unsupported value: [{odd:?}]: supported values: \"All\""));
    }
    let validations = ["Ignore", "Strict", "Warn"];
    if let Some(odd) = request.parameter("fieldValidation").filter(|value| !validations.contains(value)) {
        let supported = "\"\", \"Ignore\", \"Strict\", \"Warn\"";
        return refuse(&format!("fieldValidation: Unsupported value: {odd:?}: supported values: {supported}"));
    }
    Ok(())
}
