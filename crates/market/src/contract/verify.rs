//! Verifies stored copies of a contract offline: what `liqoctl contract verify` does, and anybody
//! can do who has the two objects.

use liqo_api::{Contract, ContractSignature, ContractTerms};

use super::{document::ContractDocument, duties::differing_fields};

/// Content of one valid stored copy.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedCopy {
    pub document: ContractDocument,
    pub signature: ContractSignature,
}

/// Checks one stored copy. Returns everything that is wrong with it.
pub fn verify_copy(contract: &Contract) -> Result<VerifiedCopy, Vec<String>> {
    let mut faults = Vec::new();
    let document = ContractDocument::read(&contract.spec.document)
        .map_err(|error| vec![format!("spec.document: {error}")])?;
    typed_copy(
        "spec.terms",
        &document.terms,
        &contract.spec.terms,
        &mut faults,
    );
    if let Some(pending) = &contract.spec.pending {
        match ContractDocument::read(&pending.document) {
            Ok(amendment) => typed_copy(
                "spec.pending.terms",
                &amendment.terms,
                &pending.terms,
                &mut faults,
            ),
            Err(error) => faults.push(format!("spec.pending.document: {error}")),
        }
    }
    let status = contract.status.clone().unwrap_or_default();
    let named = [
        ("spec.countersignature", &contract.spec.countersignature),
        ("status.signature", &status.signature),
    ];
    let mut valid = None;
    for (field, signature) in named
        .into_iter()
        .filter_map(|(field, signature)| Some((field, signature.as_ref()?)))
    {
        match document.check_countersignature(signature) {
            Ok(()) => valid = valid.or(Some(signature.clone())),
            Err(error) => faults.push(format!("{field}: {error}")),
        }
    }
    match valid {
        Some(signature) if faults.is_empty() => Ok(VerifiedCopy {
            document,
            signature,
        }),
        None if faults.is_empty() => Err(vec![format!(
            "the consumer {} has not signed",
            document.terms.consumer
        )]),
        _ => Err(faults),
    }
}

fn typed_copy(
    field: &str,
    signed: &ContractTerms,
    shown: &ContractTerms,
    faults: &mut Vec<String>,
) {
    if signed != shown {
        faults.push(format!(
            "{field} differs from the signed document: {}",
            differing_fields(signed, shown)
        ));
    }
}

/// Names in what two valid copies differ; `None` if both signed the same bytes.
pub fn copies_difference(one: &VerifiedCopy, other: &VerifiedCopy) -> Option<String> {
    let (first, second) = (&one.document, &other.document);
    if first.payload == second.payload {
        return None;
    }
    if first.terms.contract != second.terms.contract {
        return Some(format!(
            "they are copies of two contracts: {} and {}",
            first.terms.contract, second.terms.contract
        ));
    }
    Some(format!(
        "the two copies have other terms: {}",
        differing_fields(&first.terms, &second.terms)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::fixtures::{Parties, terms};

    #[test]
    fn a_contract_that_both_signed_is_accepted() {
        let parties = Parties::new();
        let contract = parties.in_force(&terms(&parties));
        let found = verify_copy(&contract).unwrap();
        assert_eq!(
            copies_difference(&found, &verify_copy(&contract.clone()).unwrap()),
            None
        );
        let mut of_provider = contract.clone();
        of_provider.status = None;
        assert_eq!(
            verify_copy(&of_provider).unwrap(),
            found,
            "the provider has the signature in the spec"
        );
        let mut of_consumer = contract;
        of_consumer.spec.countersignature = None;
        assert_eq!(verify_copy(&of_consumer).unwrap(), found);
    }

    #[test]
    fn a_changed_term_is_named() {
        let parties = Parties::new();
        let mut contract = parties.in_force(&terms(&parties));
        contract.spec.terms.notice_seconds = 10;
        let faults = verify_copy(&contract).unwrap_err();
        assert_eq!(
            faults,
            ["spec.terms differs from the signed document: noticeSeconds is 10 instead of 300"]
        );
    }

    #[test]
    fn a_changed_byte_of_the_document_or_of_a_signature_is_found() {
        let parties = Parties::new();
        let contract = parties.in_force(&terms(&parties));
        for at in 0..contract.spec.document.len() {
            let mut changed = contract.clone();
            let byte = if contract.spec.document.as_bytes()[at] == b'A' {
                "B"
            } else {
                "A"
            };
            changed.spec.document.replace_range(at..=at, byte);
            assert!(verify_copy(&changed).is_err(), "byte {at}");
        }
        let mut forged = contract;
        let signature = forged.spec.countersignature.as_mut().unwrap();
        let first = if signature.sig.starts_with('A') {
            "B"
        } else {
            "A"
        };
        signature.sig.replace_range(..1, first);
        assert!(
            verify_copy(&forged).unwrap_err()[0]
                .starts_with("spec.countersignature: the signature")
        );
    }

    #[test]
    fn what_the_consumer_has_not_signed_is_no_contract() {
        let parties = Parties::new();
        let faults = verify_copy(&parties.proposal(&terms(&parties))).unwrap_err();
        assert_eq!(
            faults,
            [format!(
                "the consumer {} has not signed",
                parties.consumer.id()
            )]
        );
    }

    #[test]
    fn two_copies_with_other_terms_are_told_apart() {
        let parties = Parties::new();
        let one = verify_copy(&parties.in_force(&terms(&parties))).unwrap();
        let next = ContractTerms {
            version: 2,
            notice_seconds: 60,
            ..terms(&parties)
        };
        let other = verify_copy(&parties.in_force(&next)).unwrap();
        let message = copies_difference(&one, &other).unwrap();
        assert!(
            message.contains("noticeSeconds is 60 instead of 300")
                && message.contains("version is 2 instead of 1"),
            "{message}"
        );
        let another = ContractTerms {
            contract: "f".repeat(32),
            ..terms(&parties)
        };
        assert!(
            copies_difference(&one, &verify_copy(&parties.in_force(&another)).unwrap())
                .unwrap()
                .contains("two contracts")
        );
    }
}
