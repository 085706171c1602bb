//! What a receipt needs of a contract.

use liqo_api::ContractSpec;
use liqo_metering::receipt::{Contract, Version};

use crate::contract::document::{Document, DocumentError};

/// Reads a contract; `None` if it was never in force. The present terms are read from the signed document.
pub fn metered(spec: &ContractSpec) -> Result<Option<Contract>, DocumentError> {
    let Some(since) = &spec.in_force_since else { return Ok(None) };
    let Document { terms, digest, .. } = Document::read(&spec.document)?;
    let earlier = spec.earlier.iter().map(|earlier| Version {
        version: earlier.version,
        digest: earlier.digest.clone(),
        from: earlier.since.0.as_second(),
        prices: earlier.prices.clone(),
    });
    let current = Version { version: terms.version, digest, from: since.0.as_second(), prices: terms.prices };
    let mut versions: Vec<Version> = earlier.chain([current]).collect();
    versions.sort_by_key(|version| (version.from, version.version));
    let end = spec.ended.as_ref().map(|end| end.at.0.as_second());
    Ok(Some(Contract { id: terms.contract, provider: terms.provider, consumer: terms.consumer, versions, end }))
}
