//! Finds the offer that the user means, and the progress of a decision.

use kube::ResourceExt as _;
use liqo_api::{ForeignCluster, OfferDecision, OfferPhase, ResourceOffer, VirtualNode, links};

use crate::output::strip_control_characters;

/// It is not clear which offer the user means.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OfferChoiceError {
    #[error("{peer} offers nothing now: `liqoctl status` shows why")]
    NoOffer { peer: String },
    /// There is no offer with this name.
    #[error("{peer} offers no pool {pool}: there {pools}")]
    UnknownPool {
        peer: String,
        pool: String,
        /// The existing ones.
        pools: String,
    },
    /// The user named none, and none waits.
    #[error("no offer of {peer} waits for a decision: name a pool; there {pools}")]
    NoneWaits {
        peer: String,
        /// The existing ones.
        pools: String,
    },
    /// The user named none, and several wait.
    #[error("several offers of {peer} wait for a decision: name one of {pools}")]
    SeveralWait { peer: String, pools: String },
    /// There is no decision on it.
    #[error("there is no decision on pool {pool} of {peer}: {decided}")]
    NotDecided {
        peer: String,
        pool: String,
        /// The existing decisions.
        decided: String,
    },
}

pub fn phase(offer: &ResourceOffer) -> OfferPhase {
    offer
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

/// The pool that the user means: the named one, or the only one that waits for a decision.
fn choose_pool(
    peer: &str,
    offers: &[ResourceOffer],
    pool: Option<&str>,
) -> Result<String, OfferChoiceError> {
    let peer = peer.to_owned();
    if offers.is_empty() {
        return Err(OfferChoiceError::NoOffer { peer });
    }
    if let Some(pool) = pool {
        let found = offers.iter().any(|offer| offer.name_any() == pool);
        return if found {
            Ok(pool.to_owned())
        } else {
            Err(OfferChoiceError::UnknownPool {
                peer,
                pool: pool.to_owned(),
                pools: existing_pools(offers),
            })
        };
    }
    let waiting: Vec<&ResourceOffer> = offers
        .iter()
        .filter(|offer| phase(offer) == OfferPhase::ManualActionRequired)
        .collect();
    match waiting.as_slice() {
        [one] => Ok(one.name_any()),
        [] => Err(OfferChoiceError::NoneWaits {
            peer,
            pools: existing_pools(offers),
        }),
        several => Err(OfferChoiceError::SeveralWait {
            peer,
            pools: list_pools(several.iter().copied()),
        }),
    }
}

fn existing_pools(offers: &[ResourceOffer]) -> String {
    let verb = if offers.len() == 1 { "is" } else { "are" };
    format!("{verb} {}", list_pools(offers))
}

fn list_pools<'a>(offers: impl IntoIterator<Item = &'a ResourceOffer>) -> String {
    let mut names: Vec<String> = offers
        .into_iter()
        .map(|offer| {
            format!(
                "{} ({:?})",
                strip_control_characters(&offer.name_any()),
                phase(offer)
            )
        })
        .collect();
    names.sort();
    names.join(", ")
}

/// Offer or terms that the user accepts.
#[derive(Debug, PartialEq, Eq)]
pub enum OfferOrTerms {
    /// The offer of this pool.
    Pool(String),
    /// Changed terms of a contract whose offers are accepted already.
    Terms,
}

/// Finds what the user accepts. If no offer waits, other terms of a contract may: then the user
/// need not name a pool. `terms_wait`: whether there are terms that this cluster has not signed.
pub fn choose_what_to_accept(
    peer: &str,
    offers: &[ResourceOffer],
    pool: Option<&str>,
    terms_wait: bool,
) -> Result<OfferOrTerms, OfferChoiceError> {
    match choose_pool(peer, offers, pool) {
        Err(OfferChoiceError::NoneWaits { .. }) if terms_wait => Ok(OfferOrTerms::Terms),
        chosen => chosen.map(OfferOrTerms::Pool),
    }
}

/// Whether there is a decision that can be forgotten.
pub fn ensure_decision_exists(
    foreign: &ForeignCluster,
    pool: &str,
) -> Result<(), OfferChoiceError> {
    if foreign.spec.offers.contains_key(pool) {
        return Ok(());
    }
    let decided: Vec<String> = foreign
        .spec
        .offers
        .iter()
        .map(|(pool, decision)| format!("{decision:?} {pool}"))
        .collect();
    let decided = if decided.is_empty() {
        "there are none".to_owned()
    } else {
        format!("only {}", decided.join(", "))
    };
    Err(OfferChoiceError::NotDecided {
        peer: foreign.name_any(),
        pool: pool.to_owned(),
        decided,
    })
}

/// The text while the state may be from before the decision.
pub const NOT_PROCESSED: &str = "the controllers have not processed it yet";

/// The progress of the controllers.
#[derive(Debug, PartialEq, Eq)]
pub enum DecisionProgress {
    /// Done; the pool's Node, if it has one.
    Done(Option<String>),
    /// Not done; what is missing.
    Waiting(String),
    /// They decided otherwise, unless that is older than the decision.
    Against(String),
}

/// The progress of a decision, by the objects in this cluster.
pub fn decision_progress(
    decision: OfferDecision,
    foreign: &ForeignCluster,
    offer: Option<&ResourceOffer>,
    node: Option<&VirtualNode>,
) -> DecisionProgress {
    let reachable = foreign
        .condition(links::PEER_REACHABLE)
        .filter(|condition| condition.status != "True");
    let unreachable = reachable.is_some();
    let not_yet = match reachable {
        Some(condition) => format!(
            "the controllers wait for the peer: {}",
            strip_control_characters(&condition.message)
        ),
        None => NOT_PROCESSED.to_owned(),
    };
    let message = offer
        .and_then(|offer| offer.status.as_ref()?.message.as_deref())
        .map(strip_control_characters)
        .unwrap_or_default();
    match (decision, offer.map(phase)) {
        // The state is from before the peer became silent.
        (OfferDecision::Accept, Some(OfferPhase::Refused)) if unreachable => {
            DecisionProgress::Waiting(not_yet)
        }
        (OfferDecision::Accept, None) => {
            DecisionProgress::Against("the peer withdrew the offer".to_owned())
        }
        (OfferDecision::Accept, Some(OfferPhase::Accepted)) => {
            match node.and_then(|node| node.status.as_ref()?.node_name.clone()) {
                Some(name) => DecisionProgress::Done(Some(name)),
                None => DecisionProgress::Waiting("the virtual node does not exist yet".to_owned()),
            }
        }
        // It is empty or costs too much, and the controllers accept it as soon as that changes.
        (OfferDecision::Accept, Some(OfferPhase::Pending))
            if !unreachable && !message.is_empty() =>
        {
            DecisionProgress::Waiting(message)
        }
        (OfferDecision::Accept, Some(OfferPhase::Refused)) => {
            DecisionProgress::Against(format!("it stays refused: {message}"))
        }
        (OfferDecision::Refuse, None | Some(OfferPhase::Refused)) if node.is_none() => {
            DecisionProgress::Done(None)
        }
        (OfferDecision::Refuse, None | Some(OfferPhase::Refused)) => DecisionProgress::Waiting(
            "its pods are ending, then its virtual node is removed".to_owned(),
        ),
        _ => DecisionProgress::Waiting(not_yet),
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::ClusterId;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn offer(pool: &str, phase: &str) -> ResourceOffer {
        from_value(json!({
            "metadata": { "name": pool },
            "spec": { "clusterID": ClusterId::of_public_key(&[2; 32]), "pool": pool, "resourceQuota": { "hard": { "cpu": "2" } } },
            "status": { "phase": phase, "message": "the policy says so\u{1b}" },
        }))
        .unwrap()
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "JSON literals are written in place"
    )]
    fn milan(offers: Value, reachable: &str) -> ForeignCluster {
        from_value(json!({
            "metadata": { "name": "milan" },
            "spec": { "clusterID": ClusterId::of_public_key(&[2; 32]), "offers": offers },
            "status": { "conditions": [{ "type": "PeerReachable", "status": reachable, "reason": "R", "message": "no answer for 50 s",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        }))
        .unwrap()
    }

    #[test]
    fn changed_terms_of_an_accepted_offer_need_no_name_of_a_pool() {
        let accepted = [offer("bulk", "Accepted")];
        assert_eq!(
            choose_what_to_accept("milan", &accepted, None, true),
            Ok(OfferOrTerms::Terms)
        );
        assert_eq!(
            choose_what_to_accept("milan", &accepted, Some("bulk"), true),
            Ok(OfferOrTerms::Pool("bulk".to_owned()))
        );
        assert!(matches!(
            choose_what_to_accept("milan", &accepted, None, false),
            Err(OfferChoiceError::NoneWaits { .. })
        ));
        let new = [offer("bulk", "ManualActionRequired")];
        assert_eq!(
            choose_what_to_accept("milan", &new, None, true),
            Ok(OfferOrTerms::Pool("bulk".to_owned()))
        );
        assert!(matches!(
            choose_what_to_accept("milan", &[], None, true),
            Err(OfferChoiceError::NoOffer { .. })
        ));
    }

    #[test]
    fn a_pool_need_not_be_named_when_exactly_one_waits() {
        let offers = [
            offer("bulk", "Accepted"),
            offer("gold", "ManualActionRequired"),
        ];
        assert_eq!(choose_pool("milan", &offers, None).unwrap(), "gold");
        assert_eq!(choose_pool("milan", &offers, Some("bulk")).unwrap(), "bulk");
        let error = |offers: &[ResourceOffer], pool| {
            choose_pool("milan", offers, pool).unwrap_err().to_string()
        };
        assert_eq!(
            error(&offers, Some("silver")),
            "milan offers no pool silver: there are bulk (Accepted), gold (ManualActionRequired)"
        );
        assert_eq!(
            error(&offers[..1], None),
            "no offer of milan waits for a decision: name a pool; there is bulk (Accepted)"
        );
        let both = [
            offer("bulk", "ManualActionRequired"),
            offer("gold", "ManualActionRequired"),
        ];
        assert_eq!(
            error(&both, None),
            "several offers of milan wait for a decision: name one of bulk (ManualActionRequired), gold (ManualActionRequired)"
        );
        assert_eq!(
            error(&[], Some("gold")),
            "milan offers nothing now: `liqoctl status` shows why"
        );
    }

    #[test]
    fn only_what_was_decided_can_be_forgotten() {
        assert_eq!(
            ensure_decision_exists(&milan(json!({ "gold": "Refuse" }), "True"), "gold"),
            Ok(())
        );
        let error = |offers| {
            ensure_decision_exists(&milan(offers, "True"), "bulk")
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(json!({ "gold": "Refuse" })),
            "there is no decision on pool bulk of milan: only Refuse gold"
        );
        assert_eq!(
            error(json!({})),
            "there is no decision on pool bulk of milan: there are none"
        );
    }

    #[test]
    fn an_accepted_offer_is_done_when_its_node_has_a_name() {
        let node = |name: Option<&str>| -> VirtualNode {
            from_value(json!({
                "metadata": { "name": "gold" },
                "spec": { "clusterID": ClusterId::of_public_key(&[2; 32]), "clusterName": "milan", "pool": "gold", "resources": {} },
                "status": { "nodeName": name },
            }))
            .unwrap()
        };
        let of = |phase: Option<&str>, node: Option<VirtualNode>, reachable: &str| {
            let offer = phase.map(|phase| offer("gold", phase));
            decision_progress(
                OfferDecision::Accept,
                &milan(json!({}), reachable),
                offer.as_ref(),
                node.as_ref(),
            )
        };
        assert_eq!(
            of(Some("Accepted"), Some(node(Some("milan-gold"))), "True"),
            DecisionProgress::Done(Some("milan-gold".into()))
        );
        assert!(matches!(
            of(Some("Accepted"), Some(node(None)), "True"),
            DecisionProgress::Waiting(_)
        ));
        assert!(matches!(
            of(Some("Accepted"), None, "True"),
            DecisionProgress::Waiting(_)
        ));
        assert!(
            matches!(of(Some("ManualActionRequired"), None, "True"), DecisionProgress::Waiting(text) if text.contains("not processed"))
        );
        assert!(
            matches!(of(Some("ManualActionRequired"), None, "False"), DecisionProgress::Waiting(text) if text.contains("50 s"))
        );
        assert_eq!(
            of(Some("Pending"), None, "True"),
            DecisionProgress::Waiting("the policy says so".to_owned())
        );
        assert!(
            matches!(of(Some("Pending"), None, "False"), DecisionProgress::Waiting(text) if text.contains("50 s"))
        );
        assert_eq!(
            of(Some("Refused"), None, "True"),
            DecisionProgress::Against("it stays refused: the policy says so".to_owned())
        );
        assert!(matches!(
            of(None, None, "True"),
            DecisionProgress::Against(_)
        ));
        let refused = |phase: Option<&str>, node: Option<VirtualNode>| {
            let offer = phase.map(|phase| offer("gold", phase));
            decision_progress(
                OfferDecision::Refuse,
                &milan(json!({}), "True"),
                offer.as_ref(),
                node.as_ref(),
            )
        };
        assert_eq!(refused(Some("Refused"), None), DecisionProgress::Done(None));
        assert_eq!(refused(None, None), DecisionProgress::Done(None));
        assert!(matches!(
            refused(Some("Refused"), Some(node(Some("milan-gold")))),
            DecisionProgress::Waiting(_)
        ));
        assert!(matches!(
            refused(Some("Accepted"), Some(node(Some("milan-gold")))),
            DecisionProgress::Waiting(_)
        ));
    }
}
