//! Selects the offers that are worth a write, and the order of the writes.
//!
//! Free resources change with every pod, and an offer is the capacity of a node that a scheduler
//! counts on. Therefore an offer is rewritten only when some resource differs by more than the
//! threshold, and at most every ten seconds. The threshold is measured from the last published
//! amount, so small oscillations cause no write at all.
//!
//! Three things are exact whatever the threshold: whether the offer contains a resource at all, the
//! maximum that the consumer requested, and what it uses already.
//!
//! Published offers must not promise the same resource twice. Therefore an offer grows only by what
//! the other published offers leave of the total. When a consumer without an offer is due for one,
//! the others shrink to their share at once.

use std::{collections::BTreeSet, time::Duration};

use liqo_quantity::{Quantity, ResourceList, unit_of};
use tokio::time::Instant;

use super::ledger::{requested_cap, rounded_up};

/// Minimum time between two writes of one offer.
pub const MIN_REWRITE_INTERVAL: Duration = Duration::from_secs(10);

/// One offer: its published amounts, and its target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfferState {
    /// `None` if there is no offer.
    pub published: Option<ResourceList>,
    /// The last write, if it was within [`MIN_REWRITE_INTERVAL`].
    pub written: Option<Instant>,
    /// Whether anything besides the amounts must change, such as labels.
    pub outdated: bool,
    /// The share from the ledger.
    pub target: ResourceList,
    /// Resources that the consumer's pods use.
    pub in_use: ResourceList,
    /// The maximum of each resource that the consumer requested.
    pub requested: ResourceList,
    /// The difference, in percent, above which the offer is rewritten.
    pub threshold: u8,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Publication {
    /// The offers to write. Those that only shrink come first, and must succeed before the others.
    pub writes: Vec<AmountsWrite>,
    /// The time until the next postponed write is allowed.
    pub requeue_after: Option<Duration>,
}

/// One offer to write.
#[derive(Clone, Debug, PartialEq)]
pub struct AmountsWrite {
    /// Index of the offer.
    pub index: usize,
    pub hard: ResourceList,
    /// Whether any amount grows, so that the write must come after those that shrink.
    pub grows: bool,
}

/// Kind of change that an offer may get now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AllowedChange {
    None,
    Any,
    /// It was written just now, and may only make room for a new offer.
    Shrink,
}

/// Decides on all offers together. `total` is what the ledger has split.
pub fn decide_writes(total: &ResourceList, states: &[OfferState], now: Instant) -> Publication {
    let make_room = states.iter().any(|state| {
        let is_new = state.published.is_none() && !state.target.is_zero();
        is_new && remaining_pause(state, now).is_zero()
    });
    let mut allowed_changes: Vec<AllowedChange> = Vec::new();
    let mut requeue_after: Option<Duration> = None;
    for state in states {
        let remaining_pause = remaining_pause(state, now);
        let moved = match &state.published {
            None => !state.target.is_zero(),
            Some(published) => state.outdated || is_worth_write(state, published, &state.target),
        };
        let shrinks = state
            .published
            .as_ref()
            .is_some_and(|published| is_shrinking(published, &state.target));
        let allowed = match (moved || (make_room && shrinks), remaining_pause.is_zero()) {
            (true, true) => AllowedChange::Any,
            (true, false) if make_room && shrinks => AllowedChange::Shrink,
            _ => AllowedChange::None,
        };
        if moved && allowed != AllowedChange::Any {
            requeue_after =
                Some(requeue_after.map_or(remaining_pause, |other| other.min(remaining_pause)));
        }
        allowed_changes.push(allowed);
    }
    if allowed_changes
        .iter()
        .all(|allowed| *allowed == AllowedChange::None)
    {
        return Publication {
            writes: Vec::new(),
            requeue_after,
        };
    }
    // What the other offers leave may be too little to be worth a write. Then this offer does not
    // change, and its share is free again.
    loop {
        let amounts = trim_to_total(total, states, &allowed_changes);
        let mut settled = true;
        for ((state, allowed), hard) in states.iter().zip(&mut allowed_changes).zip(&amounts) {
            let worth = match &state.published {
                None => !hard.is_zero(),
                Some(published) => {
                    state.outdated
                        || is_worth_write(state, published, hard)
                        || (make_room && is_shrinking(published, hard))
                }
            };
            if *allowed != AllowedChange::None && !worth {
                (*allowed, settled) = (AllowedChange::None, false);
            }
        }
        if settled {
            return Publication {
                writes: amounts_writes(states, &allowed_changes, amounts),
                requeue_after,
            };
        }
    }
}

fn amounts_writes(
    states: &[OfferState],
    allowed_changes: &[AllowedChange],
    amounts: Vec<ResourceList>,
) -> Vec<AmountsWrite> {
    let chosen = states
        .iter()
        .zip(allowed_changes)
        .zip(amounts)
        .enumerate()
        .filter(|(_, ((_, allowed), _))| **allowed != AllowedChange::None);
    let mut writes: Vec<AmountsWrite> = chosen
        .map(|(index, ((state, _), hard))| {
            let grows = hard
                .iter()
                .any(|(name, amount)| amount > published_amount(state, name));
            AmountsWrite { index, hard, grows }
        })
        .collect();
    writes.sort_by_key(|write| write.grows);
    writes
}

/// The time until the offer may be written.
fn remaining_pause(state: &OfferState, now: Instant) -> Duration {
    state.written.map_or(Duration::ZERO, |written| {
        MIN_REWRITE_INTERVAL.saturating_sub(now.saturating_duration_since(written))
    })
}

fn published_amount(state: &OfferState, name: &str) -> Quantity {
    state
        .published
        .as_ref()
        .map(|list| list.get(name))
        .unwrap_or_default()
}

fn is_shrinking(published: &ResourceList, to: &ResourceList) -> bool {
    published.iter().any(|(name, amount)| to.get(name) < amount)
}

/// Whether the change from the published amounts to `to` is worth a write.
fn is_worth_write(state: &OfferState, published: &ResourceList, to: &ResourceList) -> bool {
    published.names().chain(to.names()).any(|name| {
        let (before, after) = (published.get(name), to.get(name));
        if before == after {
            return false;
        }
        let in_use = rounded_up(state.in_use.get(name), unit_of(name));
        let limit = requested_cap(&state.requested, name);
        before.is_zero() != after.is_zero()
            || before.differs_by_more_than(after, u32::from(state.threshold))
            || before < in_use
            || limit.is_some_and(|limit| after == limit || before > limit.max(in_use))
    })
}

/// The amounts of each offer after the writes. Offers that may change get their targets, but grow
/// only by what all other published amounts leave of the total.
fn trim_to_total(
    total: &ResourceList,
    states: &[OfferState],
    allowed_changes: &[AllowedChange],
) -> Vec<ResourceList> {
    let mut amounts: Vec<ResourceList> = states
        .iter()
        .zip(allowed_changes)
        .map(|(state, allowed)| {
            if *allowed == AllowedChange::None {
                state.published.clone().unwrap_or_default()
            } else {
                state.target.clone()
            }
        })
        .collect();
    let lists = states
        .iter()
        .flat_map(|state| state.published.iter().chain([&state.target]));
    let names: BTreeSet<&str> = lists.flat_map(ResourceList::names).collect();
    for name in names {
        let used: Quantity = states
            .iter()
            .map(|s| rounded_up(s.in_use.get(name), unit_of(name)))
            .sum();
        // The least amount of each offer after the writes: less if it shrinks now, but never less
        // than it uses.
        let least: Vec<Quantity> = states
            .iter()
            .zip(allowed_changes)
            .map(|(state, allowed)| {
                let (before, target) = (published_amount(state, name), state.target.get(name));
                let in_use = rounded_up(state.in_use.get(name), unit_of(name));
                if *allowed == AllowedChange::None {
                    before
                } else {
                    before.max(in_use).min(target)
                }
            })
            .collect();
        let mut left = total
            .get(name)
            .max(used)
            .saturating_sub(least.iter().copied().sum());
        for ((amount, least), allowed) in amounts.iter_mut().zip(least).zip(allowed_changes) {
            if *allowed == AllowedChange::None || !amount.contains(name) {
                continue;
            }
            let growth = if *allowed == AllowedChange::Any {
                amount.get(name).saturating_sub(least).min(left)
            } else {
                Quantity::ZERO
            };
            left -= growth;
            let granted = Quantity::from_nanos((least + growth).nanos(), amount.get(name).format());
            amount.insert(name, granted);
        }
    }
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decide::ledger::{Claim, split_by_claims},
        tests::{cluster, list},
    };
    use proptest::{collection::vec, option, prelude::*};

    fn state(published: &str, target: &str) -> OfferState {
        OfferState {
            published: Some(list(published)),
            target: list(target),
            threshold: 5,
            ..OfferState::default()
        }
    }

    fn with_threshold(mut states: Vec<OfferState>, threshold: u8) -> Vec<OfferState> {
        for state in &mut states {
            state.threshold = threshold;
        }
        states
    }

    fn newcomer(target: &str) -> OfferState {
        OfferState {
            target: list(target),
            threshold: 5,
            ..OfferState::default()
        }
    }

    /// The writes: index and amounts.
    fn written(total: &str, states: &[OfferState]) -> Vec<(usize, String)> {
        let publication = decide_writes(&list(total), states, Instant::now());
        publication
            .writes
            .into_iter()
            .map(|write| (write.index, write.hard.to_string()))
            .collect()
    }

    fn rewritten(state: OfferState) -> bool {
        let total = state.target.clone();
        !decide_writes(&total, &[state], Instant::now())
            .writes
            .is_empty()
    }

    #[test]
    fn the_first_offer_is_made_at_once() {
        assert_eq!(
            written("cpu=4", &[newcomer("cpu=4")]),
            [(0, "cpu=4".to_owned())]
        );
    }

    #[test]
    fn without_resources_no_offer_is_made() {
        assert_eq!(written("cpu=0", &[newcomer("cpu=0")]), []);
        assert_eq!(written("", &[newcomer("")]), []);
    }

    #[test]
    fn a_settled_offer_is_not_rewritten() {
        assert!(!rewritten(state("cpu=4, memory=4Gi", "cpu=4, memory=4Gi")));
        assert!(!rewritten(state("memory=4Gi", "memory=4096Mi")));
    }

    #[test]
    fn a_change_within_the_threshold_is_not_written_in_either_direction() {
        for target in ["cpu=95", "cpu=105"] {
            assert!(!rewritten(state("cpu=100", target)), "{target}");
        }
        for target in ["cpu=94", "cpu=106"] {
            assert!(rewritten(state("cpu=100", target)), "{target}");
        }
    }

    #[test]
    fn one_resource_beyond_the_threshold_takes_the_others_along() {
        assert_eq!(
            written(
                "cpu=102, pods=8",
                &[state("cpu=100, pods=4", "cpu=102, pods=8")]
            ),
            [(0, "cpu=102, pods=8".to_owned())]
        );
    }

    #[test]
    fn a_resource_that_appears_or_is_used_up_is_always_written() {
        assert!(rewritten(state(
            "cpu=4, nvidia.com/gpu=1",
            "cpu=4, nvidia.com/gpu=0"
        )));
        assert!(rewritten(state("cpu=4", "cpu=4, nvidia.com/gpu=1")));
        assert!(rewritten(state("cpu=4", "cpu=0")));
    }

    #[test]
    fn a_new_limit_is_followed_exactly() {
        let limited = |published, target, requested| OfferState {
            requested: list(requested),
            ..state(published, target)
        };
        assert!(rewritten(limited("cpu=4", "cpu=4100m", "cpu=4100m")));
        assert!(rewritten(limited("cpu=4100m", "cpu=4", "cpu=4")));
        assert!(!rewritten(limited("cpu=4100m", "cpu=4", "cpu=8")));
    }

    #[test]
    fn an_offer_below_what_is_used_is_corrected() {
        let used = OfferState {
            in_use: list("cpu=101"),
            ..state("cpu=100", "cpu=101")
        };
        assert!(rewritten(used));
    }

    #[test]
    fn new_labels_are_written_although_the_amounts_stay() {
        assert!(rewritten(OfferState {
            outdated: true,
            ..state("cpu=4", "cpu=4")
        }));
    }

    #[test]
    fn an_offer_is_not_rewritten_within_ten_seconds_and_is_requeued_for_later() {
        let start = Instant::now();
        let moved = OfferState {
            written: Some(start),
            ..state("cpu=4", "cpu=2")
        };
        let early = decide_writes(
            &list("cpu=2"),
            std::slice::from_ref(&moved),
            start + Duration::from_secs(4),
        );
        assert_eq!(
            early,
            Publication {
                writes: Vec::new(),
                requeue_after: Some(Duration::from_secs(6))
            }
        );
        let late = decide_writes(&list("cpu=2"), &[moved], start + MIN_REWRITE_INTERVAL);
        assert_eq!((late.writes.len(), late.requeue_after), (1, None));
    }

    #[test]
    fn an_unchanged_offer_is_not_requeued() {
        let unchanged = OfferState {
            written: Some(Instant::now()),
            ..state("cpu=4", "cpu=4")
        };
        assert_eq!(
            decide_writes(&list("cpu=4"), &[unchanged], Instant::now()),
            Publication::default()
        );
    }

    #[test]
    fn an_offer_that_was_just_created_is_not_created_again_while_the_cache_lags() {
        let start = Instant::now();
        let made = OfferState {
            written: Some(start),
            ..newcomer("cpu=4")
        };
        assert_eq!(decide_writes(&list("cpu=4"), &[made], start).writes, []);
    }

    #[test]
    fn the_other_offers_shrink_before_a_new_consumer_gets_its_offer() {
        let start = Instant::now();
        // The change is within the threshold, and the last write was just now. Neither matters
        // while a consumer has no offer.
        let old = OfferState {
            written: Some(start),
            ..state("cpu=100, pods=10", "cpu=96, pods=5")
        };
        let decided = decide_writes(
            &list("cpu=100, pods=10"),
            &[newcomer("cpu=4, pods=5"), old],
            start,
        );
        let order: Vec<_> = decided
            .writes
            .iter()
            .map(|write| (write.index, write.hard.to_string(), write.grows))
            .collect();
        assert_eq!(
            order,
            [
                (1, "cpu=96, pods=5".to_owned(), false),
                (0, "cpu=4, pods=5".to_owned(), true)
            ]
        );
    }

    #[test]
    fn an_offer_that_was_just_written_may_shrink_for_a_new_consumer_but_not_grow() {
        let start = Instant::now();
        let old = OfferState {
            written: Some(start),
            ..state("cpu=4, pods=5", "cpu=2, pods=10")
        };
        let decided = decide_writes(
            &list("cpu=4, pods=10"),
            &[old, newcomer("cpu=2, pods=0")],
            start,
        );
        assert_eq!(decided.writes[0].hard.to_string(), "cpu=2, pods=5");
        assert_eq!(decided.requeue_after, Some(MIN_REWRITE_INTERVAL));
    }

    #[test]
    fn no_offer_grows_into_what_another_one_still_contains() {
        let start = Instant::now();
        let recent = OfferState {
            written: Some(start),
            ..state("cpu=8", "cpu=5")
        };
        let decided = decide_writes(&list("cpu=10"), &[recent, state("cpu=2", "cpu=5")], start);
        assert_eq!(decided.writes, []);
    }

    #[test]
    fn a_growing_offer_takes_at_least_what_is_left() {
        let start = Instant::now();
        let recent = OfferState {
            written: Some(start),
            ..state("cpu=7", "cpu=5")
        };
        let decided = decide_writes(&list("cpu=10"), &[recent, state("cpu=2", "cpu=5")], start);
        assert_eq!(
            decided.writes,
            [AmountsWrite {
                index: 1,
                hard: list("cpu=3"),
                grows: true
            }]
        );
    }

    #[test]
    fn when_a_consumer_leaves_the_others_get_its_share() {
        assert_eq!(
            written("cpu=4", &[state("cpu=2", "cpu=4")]),
            [(0, "cpu=4".to_owned())]
        );
    }

    fn any_states() -> impl Strategy<Value = (ResourceList, Vec<OfferState>)> {
        let one = (
            option::of(0..200_i64),
            0..100_i64,
            option::of(0..200_i64),
            option::of(0..20_u64),
        );
        (0..300_i64, vec(one, 1..7)).prop_map(|(total, parts)| {
            let pods = |count: i64| ResourceList::from([("pods", Quantity::from_units(count))]);
            let total = pods(total);
            let claims: Vec<Claim> = (1_u8..)
                .zip(&parts)
                .map(|(number, (_, used, requested, _))| Claim {
                    consumer: cluster(number),
                    weight: 1,
                    in_use: pods(*used),
                    requested: requested.map(pods).unwrap_or_default(),
                })
                .collect();
            let now = Instant::now();
            let states = split_by_claims(&total, &claims)
                .into_iter()
                .zip(claims)
                .zip(parts)
                .map(|((target, claim), part)| OfferState {
                    threshold: 0,
                    published: part.0.map(pods),
                    written: part
                        .3
                        .and_then(|seconds| now.checked_sub(Duration::from_secs(seconds))),
                    outdated: false,
                    target,
                    in_use: claim.in_use,
                    requested: claim.requested,
                });
            (total, states.collect())
        })
    }

    fn after(states: &[OfferState], publication: &Publication) -> Vec<Quantity> {
        let mut amounts: Vec<Quantity> = states
            .iter()
            .map(|state| published_amount(state, "pods"))
            .collect();
        for write in &publication.writes {
            amounts[write.index] = write.hard.get("pods");
        }
        amounts
    }

    proptest! {
        #[test]
        fn publishing_never_promises_more_than_exists(
            (total, states) in any_states(), threshold in 0..50_u8
        ) {
            let states = with_threshold(states, threshold);
            let publication = decide_writes(&total, &states, Instant::now());
            let used: Quantity = states.iter().map(|state| state.in_use.get("pods")).sum();
            // An older promise may stay within the threshold. An offer below its use is corrected.
            let before: Quantity = states
                .iter()
                .map(|state| published_amount(state, "pods").max(state.in_use.get("pods")))
                .sum();
            let promised: Quantity = after(&states, &publication).into_iter().sum();
            prop_assert!(promised <= total.get("pods").max(used).max(before), "{publication:?}");
        }

        #[test]
        fn without_threshold_and_interval_exactly_the_targets_are_published((total, mut states) in any_states()) {
            for state in &mut states {
                state.written = None;
            }
            let publication = decide_writes(&total, &states, Instant::now());
            let targets: Vec<Quantity> = states.iter().map(|state| state.target.get("pods")).collect();
            prop_assert_eq!(after(&states, &publication), targets);
        }

        #[test]
        fn a_published_offer_is_not_published_again(
            (total, states) in any_states(), threshold in 0..50_u8
        ) {
            let now = Instant::now();
            let mut states = with_threshold(states, threshold);
            let publication = decide_writes(&total, &states, now);
            for write in publication.writes {
                states[write.index].published = Some(write.hard);
            }
            for state in &mut states {
                state.written = None;
            }
            // Postponed writes may follow. After that there are no more.
            let mut rounds = 0;
            loop {
                let publication = decide_writes(&total, &states, now);
                if publication.writes.is_empty() {
                    break;
                }
                for write in publication.writes {
                    states[write.index].published = Some(write.hard);
                }
                rounds += 1;
                prop_assert!(rounds < 4, "it does not settle");
            }
        }

        #[test]
        fn a_write_is_always_between_the_published_amount_and_the_target(
            (total, states) in any_states(), threshold in 0..50_u8
        ) {
            let states = with_threshold(states, threshold);
            for write in decide_writes(&total, &states, Instant::now()).writes {
                let state = &states[write.index];
                let (before, target) = (published_amount(state, "pods"), state.target.get("pods"));
                let hard = write.hard.get("pods");
                prop_assert!(hard >= before.min(target) && hard <= target);
                prop_assert!(hard >= state.in_use.get("pods"));
            }
        }
    }
}
