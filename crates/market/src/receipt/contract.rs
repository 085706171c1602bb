//! The part of a contract that a receipt needs.

use liqo_metering::receipt::{ContractVersion, ReceiptContract};

use crate::contract::document::{ContractDocument, DocumentError};

/// Reads a contract; `None` if it was never in force. The present terms are read from the document,
/// which both must have signed: terms without the consumer's signature in the same object price
/// nothing.
pub fn metered_contract(
    contract: &liqo_api::Contract,
) -> Result<Option<ReceiptContract>, DocumentError> {
    let liqo_api::Contract { spec, status, .. } = contract;
    let Some(since) = &spec.in_force_since else {
        return Ok(None);
    };
    let document = ContractDocument::read(&spec.document)?;
    let status = status.as_ref();
    let answers = [
        status.and_then(|one| one.signature.as_ref()),
        status.and_then(|one| one.pending_signature.as_ref()),
    ];
    let mut signatures = answers
        .into_iter()
        .chain([spec.countersignature.as_ref()])
        .flatten();
    if !signatures.any(|signature| document.check_countersignature(signature).is_ok()) {
        return Ok(None);
    }
    let ContractDocument { terms, digest, .. } = document;
    let earlier = spec.earlier.iter().map(|earlier| ContractVersion {
        version: earlier.version,
        digest: earlier.digest.clone(),
        from: earlier.since.0.as_second(),
        prices: earlier.prices.clone(),
    });
    let current = ContractVersion {
        version: terms.version,
        digest,
        from: since.0.as_second(),
        prices: terms.prices,
    };
    let mut versions: Vec<ContractVersion> = earlier.chain([current]).collect();
    versions.sort_by_key(|version| (version.from, version.version));
    let end = spec.ended.as_ref().map(|end| end.at.0.as_second());
    Ok(Some(ReceiptContract {
        id: terms.contract,
        provider: terms.provider,
        consumer: terms.consumer,
        versions,
        end,
    }))
}

#[cfg(test)]
mod tests {
    use liqo_api::ContractTerms;

    use super::*;
    use crate::contract::fixtures::{Parties, terms};

    #[test]
    fn terms_that_the_consumer_did_not_sign_price_nothing() {
        let parties = Parties::known();
        let mut contract = parties.in_force(&terms(&parties));
        assert!(metered_contract(&contract).unwrap().is_some());
        let dear = parties.proposal(&ContractTerms {
            version: 2,
            ..terms(&parties)
        });
        contract.spec.document = dear.spec.document;
        assert_eq!(
            metered_contract(&contract),
            Ok(None),
            "the signatures are under other terms"
        );
        (contract.spec.countersignature, contract.status) = (None, None);
        assert_eq!(metered_contract(&contract), Ok(None));
    }
}
