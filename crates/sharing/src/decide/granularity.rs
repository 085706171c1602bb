//! Whether a consumer gets one pool for each node, because it asked for that.
//!
//! ```text
//!   policy does not let it choose  ─▶ the pools of the policy
//!   a signed contract names pools  ─▶ these pools, until the contract is over
//!   it changed its mind just now   ─▶ what it has, until MIN_CHANGE_INTERVAL is over
//!   else                           ─▶ what it asks for
//! ```
//!
//! The last change is the transition time of the answer, so this process remembers nothing. A
//! consumer that keeps changing its mind causes a bounded number of writes.

use std::time::Duration;

use jiff::Timestamp;
use liqo_api::conditions::StatusCondition as _;
use liqo_api::{
    Condition, GranularityAnswer, POOL_FOR_EACH_NODE, PoolBy, Provide, conditions::DesiredCondition,
};

use super::reduce::ConsumerRequest;

/// Minimum time between two changes of the pools of one consumer because of what it asks for.
pub const MIN_CHANGE_INTERVAL: Duration = Duration::from_mins(1);

/// The pools that a contract in force names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundPools {
    /// At least one pool of the policy.
    OfPolicy,
    /// At least one pool of a single node, and none of the policy.
    OfNodes,
}

/// The division of the offer to one consumer into pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// Whether each node is a pool of its own, although the policy forms other pools.
    pub by_node: bool,
    /// Time until a changed wish counts.
    pub changes_in: Option<Duration>,
    /// The answer; `None` if the consumer never asked.
    pub condition: Option<DesiredCondition>,
}

/// Whether the policy lets its peers choose.
pub fn may_choose(provide: &Provide) -> bool {
    provide.granularity.peers_may_choose
        && provide.source.plugin.is_none()
        && provide.granularity.by != PoolBy::Node
}

/// Whether the consumer asks for one pool for each node, or did so before.
pub fn was_asked(request: &ConsumerRequest) -> bool {
    request.granularity.is_some() || answer_in(request).is_some()
}

fn answer_in(request: &ConsumerRequest) -> Option<&Condition> {
    request
        .conditions
        .iter()
        .find(|condition| condition.type_ == POOL_FOR_EACH_NODE)
}

impl Division {
    /// The division for a consumer. `provide` is from the policy that applies to it, and `bound`
    /// tells which pools its contract names.
    pub fn for_consumer(
        request: &ConsumerRequest,
        provide: Option<&Provide>,
        bound: impl FnOnce() -> Option<BoundPools>,
        now: Timestamp,
    ) -> Self {
        let bound = provide
            .filter(|provide| may_choose(provide))
            .and_then(|_| bound());
        if !was_asked(request) && bound != Some(BoundPools::OfNodes) {
            return Self::default();
        }
        let asks = request.granularity.is_some();
        let Some(provide) = provide else {
            let message = "no PeeringPolicy of the provider selects this cluster";
            return Self::as_policy(if asks {
                refused_answer(GranularityAnswer::NotAllowed, message)
            } else {
                unasked_answer()
            });
        };
        if provide.granularity.by == PoolBy::Node && provide.source.plugin.is_none() {
            let message =
                "the provider's PeeringPolicy has one pool for each node for all its peers";
            return Self::as_policy(if asks {
                granted_answer(message)
            } else {
                unasked_answer()
            });
        }
        if !may_choose(provide) {
            let message = if provide.source.plugin.is_some() {
                "the provider's resource plugin decides which pools there are"
            } else {
                "the provider's PeeringPolicy does not let its peers choose (provide.granularity.peersMayChoose)"
            };
            return Self::as_policy(if asks {
                refused_answer(GranularityAnswer::NotAllowed, message)
            } else {
                unasked_answer()
            });
        }
        if let Some(by_node) = bound
            .map(|bound| bound == BoundPools::OfNodes)
            .filter(|by_node| *by_node != asks)
        {
            let message = "the pools stay as the contract in force names them; the request counts when that contract is over";
            return Self {
                by_node,
                changes_in: None,
                condition: Some(granularity_answer(
                    by_node,
                    GranularityAnswer::BoundByContract,
                    message,
                )),
            };
        }
        let answered = answer_in(request);
        if let Some(answered) = answered.filter(|answered| answered.is_true() != asks) {
            let age = Duration::try_from(now.duration_since(answered.last_transition_time.0))
                .unwrap_or(MIN_CHANGE_INTERVAL);
            let left = MIN_CHANGE_INTERVAL.saturating_sub(age);
            if !left.is_zero() {
                let seconds = MIN_CHANGE_INTERVAL.as_secs();
                let message = format!(
                    "the request changed less than {seconds} s after its last change; it counts when these are over"
                );
                let condition =
                    granularity_answer(!asks, GranularityAnswer::ChangedRecently, &message);
                return Self {
                    by_node: !asks,
                    changes_in: Some(left),
                    condition: Some(condition),
                };
            }
        }
        let condition = if asks {
            granted_answer("each node is a pool, as this cluster asked")
        } else {
            unasked_answer()
        };
        Self {
            by_node: asks,
            changes_in: None,
            condition: Some(condition),
        }
    }

    fn as_policy(condition: DesiredCondition) -> Self {
        Self {
            by_node: false,
            changes_in: None,
            condition: Some(condition),
        }
    }
}

fn granularity_answer(by_node: bool, reason: GranularityAnswer, message: &str) -> DesiredCondition {
    if by_node {
        DesiredCondition::yes(POOL_FOR_EACH_NODE, reason, message)
    } else {
        DesiredCondition::no(POOL_FOR_EACH_NODE, reason, message)
    }
}

fn granted_answer(message: &str) -> DesiredCondition {
    granularity_answer(true, GranularityAnswer::Granted, message)
}

fn refused_answer(reason: GranularityAnswer, message: &str) -> DesiredCondition {
    granularity_answer(false, reason, message)
}

fn unasked_answer() -> DesiredCondition {
    refused_answer(
        GranularityAnswer::NotAsked,
        "the pools are those of the provider's PeeringPolicy, because this cluster asks for no others",
    )
}

#[cfg(test)]
mod tests {
    use liqo_api::RequestedGranularity;
    use serde_json::{Value, json};

    use super::*;

    fn provide(value: Value) -> Provide {
        serde_json::from_value(value).unwrap()
    }

    fn choosing() -> Provide {
        provide(json!({ "granularity": { "peersMayChoose": true } }))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// A request that was answered at second 0, if at all.
    fn request(asks: bool, answered: Option<bool>) -> ConsumerRequest {
        let status = |by_node: bool| if by_node { "True" } else { "False" };
        let condition = |by_node| {
            json!({ "type": "PoolForEachNode", "status": status(by_node), "reason": "R", "message": "",
                "lastTransitionTime": "1970-01-01T00:00:00Z" })
        };
        ConsumerRequest {
            granularity: asks.then_some(RequestedGranularity::Node),
            conditions: answered
                .map(|by_node| serde_json::from_value(condition(by_node)).unwrap())
                .into_iter()
                .collect(),
            ..ConsumerRequest::default()
        }
    }

    /// Whether each node is a pool, and the reason.
    fn decided(
        request: &ConsumerRequest,
        provide: &Provide,
        bound: Option<BoundPools>,
        now: i64,
    ) -> (bool, String) {
        let division = Division::for_consumer(request, Some(provide), || bound, at(now));
        (
            division.by_node,
            division
                .condition
                .map(|condition| condition.reason)
                .unwrap_or_default(),
        )
    }

    #[test]
    fn a_consumer_that_never_asked_gets_no_answer() {
        assert_eq!(
            Division::for_consumer(&request(false, None), Some(&choosing()), || None, at(0)),
            Division::default()
        );
    }

    #[test]
    fn the_policy_decides_whether_a_request_counts() {
        let asking = request(true, None);
        let reason = |provide: &Provide| decided(&asking, provide, None, 0);
        assert_eq!(reason(&choosing()), (true, "Granted".to_owned()));
        assert_eq!(
            reason(&Provide::default()),
            (false, "NotAllowed".to_owned())
        );
        let by_node = provide(json!({ "granularity": { "by": "Node" } }));
        assert_eq!(
            reason(&by_node),
            (false, "Granted".to_owned()),
            "the policy does it for everybody"
        );
        let plugin = json!({ "granularity": { "peersMayChoose": true }, "source": { "plugin": { "address": "p:1" } } });
        assert_eq!(reason(&provide(plugin)), (false, "NotAllowed".to_owned()));
    }

    #[test]
    fn a_request_that_is_taken_back_is_answered() {
        assert_eq!(
            decided(&request(false, Some(true)), &choosing(), None, 60),
            (false, "NotAsked".to_owned())
        );
        assert_eq!(
            decided(&request(false, Some(false)), &choosing(), None, 1),
            (false, "NotAsked".to_owned())
        );
    }

    #[test]
    fn a_change_counts_once_a_minute() {
        let changed = request(false, Some(true));
        assert_eq!(
            decided(&changed, &choosing(), None, 59),
            (true, "ChangedRecently".to_owned())
        );
        assert_eq!(
            Division::for_consumer(&changed, Some(&choosing()), || None, at(59)).changes_in,
            Some(Duration::from_secs(1))
        );
        let again = request(true, Some(false));
        assert_eq!(
            decided(&again, &choosing(), None, 10),
            (false, "ChangedRecently".to_owned())
        );
        assert_eq!(
            decided(&again, &choosing(), None, 60),
            (true, "Granted".to_owned())
        );
        assert_eq!(
            decided(&changed, &choosing(), None, -1),
            (false, "NotAsked".to_owned()),
            "the clock was set back"
        );
    }

    #[test]
    fn a_policy_that_no_longer_lets_its_peers_choose_counts_at_once() {
        assert_eq!(
            decided(&request(true, Some(true)), &Provide::default(), None, 1),
            (false, "NotAllowed".to_owned())
        );
    }

    #[test]
    fn pools_of_a_contract_stay() {
        let decided =
            |asks, bound| decided(&request(asks, Some(!asks)), &choosing(), Some(bound), 1000);
        assert_eq!(
            decided(true, BoundPools::OfPolicy),
            (false, "BoundByContract".to_owned())
        );
        assert_eq!(
            decided(false, BoundPools::OfNodes),
            (true, "BoundByContract".to_owned())
        );
        assert_eq!(
            decided(true, BoundPools::OfNodes),
            (true, "Granted".to_owned())
        );
        assert_eq!(
            decided(false, BoundPools::OfPolicy),
            (false, "NotAsked".to_owned())
        );
    }
}
