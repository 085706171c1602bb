//! Our request at a provider, and what the provider answers to it.

use liqo_api::conditions::DesiredCondition;
use liqo_api::{
    ANSWERED, GranularityAnswer, POOL_FOR_EACH_NODE, TETHERING, TetheringAnswer, links,
};

use super::{consumer::BorrowingIntent, reduce::ConsumerRequest, tethering::OwnNodesReturn};

/// Maximum length in characters of what a provider says about tethering.
const MAX_ANSWER_LEN: usize = 500;

/// Whether the request at the provider says what this cluster wants, in this peering.
pub fn is_request_current(
    existing: &ConsumerRequest,
    intent: &BorrowingIntent,
    peering: &str,
) -> bool {
    existing.resources.as_ref() == Ok(&intent.request.resources)
        && existing.granularity == intent.request.granularity
        && existing.tethering == (intent.returns == OwnNodesReturn::Allowed)
        && existing.peering.as_deref() == Some(peering)
}

/// The provider's own words about why it offers nothing.
pub fn no_offer_message(request: &ConsumerRequest) -> Option<String> {
    let answer = request
        .conditions
        .iter()
        .find(|condition| condition.type_ == ANSWERED && condition.status == "False")?;
    Some(answer.message.clone())
}

/// The provider's answer to the present request to control this cluster, if it has answered.
pub fn tethering_granted(request: &ConsumerRequest) -> Option<DesiredCondition> {
    let kind = links::TETHERING_GRANTED;
    let answer = request
        .conditions
        .iter()
        .find(|condition| condition.type_ == TETHERING)?;
    if !request.tethering || answer.observed_generation != request.generation {
        return None;
    }
    // The provider chooses reason and message.
    let reason = TetheringAnswer::parse(&answer.reason).unwrap_or(TetheringAnswer::NotAllowed);
    let message = answer
        .message
        .chars()
        .take(MAX_ANSWER_LEN)
        .collect::<String>();
    match answer.status.as_str() {
        "True" => Some(DesiredCondition::yes(
            kind,
            TetheringAnswer::Granted,
            message,
        )),
        _ => Some(DesiredCondition::no(kind, reason, message)),
    }
}

/// The provider's answer to the present request for one pool for each node, if it has answered.
pub fn pool_for_each_node(request: &ConsumerRequest) -> Option<DesiredCondition> {
    let kind = links::POOL_FOR_EACH_NODE;
    let answer = request
        .conditions
        .iter()
        .find(|condition| condition.type_ == POOL_FOR_EACH_NODE)?;
    if request.granularity.is_none() || answer.observed_generation != request.generation {
        return None;
    }
    // The provider chooses reason and message.
    let reason = GranularityAnswer::parse(&answer.reason).unwrap_or(GranularityAnswer::NotAllowed);
    let message = answer
        .message
        .chars()
        .take(MAX_ANSWER_LEN)
        .collect::<String>();
    match answer.status.as_str() {
        "True" => Some(DesiredCondition::yes(kind, reason, message)),
        _ => Some(DesiredCondition::no(kind, reason, message)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use liqo_api::Condition;
    use serde_json::json;

    use super::*;
    use crate::tests::{cluster, list};

    fn answer(kind: &str, status: &str, reason: &str, message: &str, generation: i64) -> Condition {
        serde_json::from_value(json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    fn answered(condition: Condition) -> ConsumerRequest {
        ConsumerRequest {
            tethering: true,
            granularity: Some(liqo_api::RequestedGranularity::Node),
            generation: Some(2),
            conditions: vec![condition],
            ..ConsumerRequest::default()
        }
    }

    #[test]
    fn a_request_is_written_again_when_it_or_the_peering_is_another_one() {
        let intent = BorrowingIntent {
            own: cluster(1),
            provider: cluster(2),
            cluster_name: "milan".into(),
            peer: "milan".into(),
            request: liqo_api::RequestedResources::default(),
            consume: None,
            decisions: BTreeMap::new(),
            contracts: BTreeMap::new(),
            returns: OwnNodesReturn::No,
            tethered_elsewhere: None,
        };
        let written = ConsumerRequest {
            peering: Some("uid".into()),
            ..ConsumerRequest::default()
        };
        assert!(is_request_current(&written, &intent, "uid"));
        assert!(!is_request_current(&written, &intent, "new"));
        for other in [
            ConsumerRequest {
                resources: Ok(list("cpu=1")),
                ..written.clone()
            },
            ConsumerRequest {
                resources: Err("unreadable".into()),
                ..written.clone()
            },
            ConsumerRequest {
                tethering: true,
                ..written.clone()
            },
            ConsumerRequest {
                granularity: Some(liqo_api::RequestedGranularity::Node),
                ..written
            },
        ] {
            assert!(!is_request_current(&other, &intent, "uid"), "{other:?}");
        }
    }

    #[test]
    fn only_the_answer_to_the_present_request_counts() {
        for (kind, read) in [
            (TETHERING, tethering_granted as fn(&ConsumerRequest) -> _),
            (POOL_FOR_EACH_NODE, pool_for_each_node),
        ] {
            let status = |status: &str, generation: i64| {
                let condition = answer(kind, status, "Granted", "", generation);
                read(&answered(condition)).and_then(|condition: DesiredCondition| condition.status)
            };
            assert_eq!(status("True", 2), Some(true), "{kind}");
            assert_eq!(status("False", 2), Some(false), "{kind}");
            assert_eq!(status("True", 1), None, "{kind}");
            assert_eq!(
                read(&ConsumerRequest {
                    tethering: false,
                    granularity: None,
                    ..answered(answer(kind, "True", "Granted", "", 2))
                }),
                None,
                "nobody asked for {kind}"
            );
        }
    }

    #[test]
    fn what_a_provider_answers_is_cut_and_its_reason_is_one_of_ours() {
        let long = "x".repeat(MAX_ANSWER_LEN + 1);
        let condition = answer(TETHERING, "False", "<script>", &long, 2);
        let shown = tethering_granted(&answered(condition)).unwrap();
        assert_eq!(
            (shown.reason.as_str(), shown.message.len()),
            (TetheringAnswer::NotAllowed.as_str(), MAX_ANSWER_LEN)
        );
    }

    #[test]
    fn a_provider_that_offers_nothing_says_why() {
        let message = |status| no_offer_message(&answered(answer(ANSWERED, status, "R", "why", 2)));
        assert_eq!(message("False").as_deref(), Some("why"));
        assert_eq!(message("True"), None);
    }
}
