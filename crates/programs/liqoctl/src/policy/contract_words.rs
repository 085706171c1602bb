//! Describes what a policy says about contracts in plain sentences.

use liqo_api::{
    AcceptContract, Commitment, ConsumeContract, IfNotSigned, OnBreach, ProvideContract, Renewal,
};

/// The contract that is proposed: field and text of each sentence.
pub fn proposed_contract_sentences(contract: &ProvideContract) -> Vec<(&'static str, String)> {
    let commitment = match contract.commitment {
        Commitment::BestEffort => {
            "it has to sign a contract before its pods are admitted; prices, notice, classes and limits are bound"
        }
        Commitment::Guaranteed => {
            "it has to sign a contract before its pods are admitted; its amounts are reserved"
        }
    };
    let period = match (contract.period_seconds, contract.renewal) {
        (None, _) => "the contract has no end".to_owned(),
        (Some(seconds), Renewal::Automatic) => {
            format!("the contract lasts {seconds} s, and is renewed if the peer signs again")
        }
        (Some(seconds), Renewal::None) => {
            format!("the contract lasts {seconds} s, and is not renewed")
        }
    };
    let seconds = contract.sign_within_seconds;
    let unsigned = match contract.if_not_signed {
        IfNotSigned::KeepTerms => {
            format!("if it does not sign a change within {seconds} s, the old terms go on")
        }
        IfNotSigned::WithdrawOffer => {
            format!("if it does not sign within {seconds} s, the offers are withdrawn with notice")
        }
    };
    vec![
        ("provide.contract.commitment", commitment.to_owned()),
        ("provide.contract.periodSeconds", period),
        ("provide.contract.ifNotSigned", unsigned),
        (
            "provide.contract.onBreach",
            breach_in_words(
                contract.on_breach,
                "it gets no new pods here while that lasts",
            ),
        ),
        (
            "provide.contract.meteringPeriodSeconds",
            format!(
                "there is a receipt every {} s",
                contract.metering_period_seconds
            ),
        ),
    ]
}

/// The contracts that are signed: field and text of each sentence.
pub fn signed_contract_sentences(contract: &ConsumeContract) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if contract.require {
        all.push((
            "consume.contract.require",
            "only offers under a contract are accepted".to_owned(),
        ));
    }
    if contract.accept == AcceptContract::Manual {
        let text =
            "a person has to decide on each contract and each change of it: `liqoctl offer accept`";
        all.push(("consume.contract.accept", text.to_owned()));
    }
    if let Some(seconds) = contract.max_period_seconds {
        all.push((
            "consume.contract.maxPeriodSeconds",
            format!("no contract is signed that lasts longer than {seconds} s"),
        ));
    }
    if !contract.max_resources.is_empty() {
        let text = format!(
            "no contract is signed that guarantees more than {}",
            contract.max_resources
        );
        all.push(("consume.contract.maxResources", text));
    }
    if contract.on_breach != OnBreach::Warn {
        all.push((
            "consume.contract.onBreach",
            breach_in_words(contract.on_breach, "no new pods go there while that lasts"),
        ));
    }
    all
}

fn breach_in_words(on_breach: OnBreach, refuses: &str) -> String {
    match on_breach {
        OnBreach::Warn => "if it breaks the contract, that is only told".to_owned(),
        OnBreach::RefuseNew => format!("if it breaks the contract, {refuses}"),
        OnBreach::EndWithNotice => {
            format!("if it breaks the contract, {refuses}, and the contract ends with notice")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_are_described() {
        let provide = ProvideContract {
            period_seconds: Some(3600),
            on_breach: OnBreach::EndWithNotice,
            ..ProvideContract::default()
        };
        let texts: Vec<String> = proposed_contract_sentences(&provide)
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        assert!(
            texts[0].contains("has to sign") && texts[1].contains("lasts 3600 s, and is renewed"),
            "{texts:?}"
        );
        assert!(
            texts[2].contains("within 86400 s")
                && texts[3].ends_with("the contract ends with notice"),
            "{texts:?}"
        );
        assert!(signed_contract_sentences(&ConsumeContract::default()).is_empty());
        let consume = ConsumeContract {
            require: true,
            accept: AcceptContract::Manual,
            ..ConsumeContract::default()
        };
        assert_eq!(signed_contract_sentences(&consume).len(), 2);
    }
}
