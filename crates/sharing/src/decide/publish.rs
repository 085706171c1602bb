//! Which offers are worth rewriting, and in which order.
//!
//! What is free changes with every pod; an offer becomes the capacity of a node that a scheduler counts on. So an offer is
//! rewritten only when some resource is off by more than the threshold, and at most every ten seconds. Because the
//! threshold is measured from what was published last, what moves to and fro within it is never written.
//!
//! Three things are exact whatever the threshold: whether there is any of a resource at all, the limit that the consumer
//! asked for, and what it uses already.
//!
//! The offers as published must not promise the same thing twice. Therefore an offer grows only by what the others, as they
//! stand published, leave of the total; and when somebody new is to get an offer, the others shrink to their share at once.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use liqo_quantity::{Quantity, ResourceList, unit_of};

use super::ledger::{cap, rounded_up};

/// An offer is not rewritten within this time.
pub const PACE: Duration = Duration::from_secs(10);

/// One offer: how it stands, and how it should.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// What is published; nothing if there is no offer.
    pub published: Option<ResourceList>,
    /// When we wrote it last, if that is not long ago.
    pub written: Option<Instant>,
    /// Whether something else than the amounts (labels, for instance) is to be rewritten.
    pub outdated: bool,
    /// What the ledger says.
    pub target: ResourceList,
    /// What the consumer's pods use.
    pub in_use: ResourceList,
    /// What the consumer asked for at most.
    pub asked: ResourceList,
    /// By how much, in percent, a resource must be off for the offer to be rewritten.
    pub threshold: u8,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Publication {
    /// Offers to write: index and amounts. Those that only shrink come first, and must have succeeded before the others.
    pub writes: Vec<Write>,
    /// When an offer that is to be rewritten may be.
    pub wake: Option<Duration>,
}

/// One offer to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// Which.
    pub index: usize,
    /// How much.
    pub hard: ResourceList,
    /// Whether it takes more of something than before, and so must come after those that give it up.
    pub grows: bool,
}

/// Why an offer may be written now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Not at all.
    No,
    /// It may become what it should be.
    Free,
    /// Only to make room for a newcomer, because it was written just now.
    ShrinkOnly,
}

/// Decides on all offers together. `total` is what the ledger split.
pub fn decide(total: &ResourceList, standings: &[Standing], now: Instant) -> Publication {
    let newcomer = |s: &Standing| s.published.is_none() && !s.target.is_zero() && pause(s, now).is_zero();
    let make_room = standings.iter().any(newcomer);
    let mut turns: Vec<Turn> = Vec::new();
    let mut wake: Option<Duration> = None;
    for standing in standings {
        let pause = pause(standing, now);
        let moved = match &standing.published {
            None => !standing.target.is_zero(),
            Some(published) => standing.outdated || moved(standing, published, &standing.target),
        };
        let shrinks = standing.published.as_ref().is_some_and(|published| shrinks(published, &standing.target));
        let turn = match (moved || (make_room && shrinks), pause.is_zero()) {
            (true, true) => Turn::Free,
            (true, false) if make_room && shrinks => Turn::ShrinkOnly,
            _ => Turn::No,
        };
        if moved && turn != Turn::Free {
            wake = Some(wake.map_or(pause, |other| other.min(pause)));
        }
        turns.push(turn);
    }
    if turns.iter().all(|turn| *turn == Turn::No) {
        return Publication { writes: Vec::new(), wake };
    }
    // What the others leave may be too little to be worth a write; then that one is out, and its share is free again.
    loop {
        let amounts = trim(total, standings, &turns);
        let mut settled = true;
        for ((standing, turn), hard) in standings.iter().zip(&mut turns).zip(&amounts) {
            let worth = match &standing.published {
                None => !hard.is_zero(),
                Some(published) => {
                    standing.outdated || moved(standing, published, hard) || (make_room && shrinks(published, hard))
                }
            };
            if *turn != Turn::No && !worth {
                (*turn, settled) = (Turn::No, false);
            }
        }
        if settled {
            return Publication { writes: writes(standings, &turns, amounts), wake };
        }
    }
}

fn writes(standings: &[Standing], turns: &[Turn], amounts: Vec<ResourceList>) -> Vec<Write> {
    let chosen = standings.iter().zip(turns).zip(amounts).enumerate().filter(|(_, ((_, turn), _))| **turn != Turn::No);
    let mut writes: Vec<Write> = chosen
        .map(|(index, ((standing, _), hard))| {
            let grows = hard.iter().any(|(name, amount)| amount > published(standing, name));
            Write { index, hard, grows }
        })
        .collect();
    writes.sort_by_key(|write| write.grows);
    writes
}

/// How long the offer must not be written yet.
fn pause(standing: &Standing, now: Instant) -> Duration {
    standing.written.map_or(Duration::ZERO, |written| PACE.saturating_sub(now.saturating_duration_since(written)))
}

fn published(standing: &Standing, name: &str) -> Quantity {
    standing.published.as_ref().map(|list| list.get(name)).unwrap_or_default()
}

fn shrinks(published: &ResourceList, to: &ResourceList) -> bool {
    published.iter().any(|(name, amount)| to.get(name) < amount)
}

/// Whether going from what is published to `to` is worth a write.
fn moved(standing: &Standing, published: &ResourceList, to: &ResourceList) -> bool {
    published.names().chain(to.names()).any(|name| {
        let (before, after) = (published.get(name), to.get(name));
        if before == after {
            return false;
        }
        let in_use = rounded_up(standing.in_use.get(name), unit_of(name));
        let limit = cap(&standing.asked, name);
        before.is_zero() != after.is_zero()
            || before.differs_by_more_than(after, u32::from(standing.threshold))
            || before < in_use
            || limit.is_some_and(|limit| after == limit || before > limit.max(in_use))
    })
}

/// What each offer would hold: those whose turn it is become what they should, but grow only by what is left of the total
/// when everything that stays published is subtracted.
fn trim(total: &ResourceList, standings: &[Standing], turns: &[Turn]) -> Vec<ResourceList> {
    let mut amounts: Vec<ResourceList> = standings
        .iter()
        .zip(turns)
        .map(
            |(standing, turn)| {
                if *turn == Turn::No { standing.published.clone().unwrap_or_default() } else { standing.target.clone() }
            },
        )
        .collect();
    let lists = standings.iter().flat_map(|standing| standing.published.iter().chain([&standing.target]));
    let names: BTreeSet<&str> = lists.flat_map(ResourceList::names).collect();
    for name in names {
        let used: Quantity = standings.iter().map(|s| rounded_up(s.in_use.get(name), unit_of(name))).sum();
        // What each holds at least after the writes: less if it shrinks now, never less than it uses.
        let least: Vec<Quantity> = standings
            .iter()
            .zip(turns)
            .map(|(standing, turn)| {
                let (before, target) = (published(standing, name), standing.target.get(name));
                let in_use = rounded_up(standing.in_use.get(name), unit_of(name));
                if *turn == Turn::No { before } else { before.max(in_use).min(target) }
            })
            .collect();
        let mut left = total.get(name).max(used).saturating_sub(least.iter().copied().sum());
        for ((amount, least), turn) in amounts.iter_mut().zip(least).zip(turns) {
            if *turn == Turn::No || !amount.contains(name) {
                continue;
            }
            let growth = if *turn == Turn::Free { amount.get(name).saturating_sub(least).min(left) } else { Quantity::ZERO };
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
        decide::ledger::{Claim, split},
        tests::{cluster, list},
    };
    use proptest::{collection::vec, option, prelude::*};

    fn standing(published: &str, target: &str) -> Standing {
        Standing { published: Some(list(published)), target: list(target), threshold: 5, ..Standing::default() }
    }

    fn with_threshold(mut standings: Vec<Standing>, threshold: u8) -> Vec<Standing> {
        for standing in &mut standings {
            standing.threshold = threshold;
        }
        standings
    }

    fn newcomer(target: &str) -> Standing {
        Standing { target: list(target), threshold: 5, ..Standing::default() }
    }

    /// What is written, as text, with a threshold of 5%.
    fn written(total: &str, standings: &[Standing]) -> Vec<(usize, String)> {
        let publication = decide(&list(total), standings, Instant::now());
        publication.writes.into_iter().map(|write| (write.index, write.hard.to_string())).collect()
    }

    fn rewritten(standing: Standing) -> bool {
        let total = standing.target.clone();
        !decide(&total, &[standing], Instant::now()).writes.is_empty()
    }

    #[test]
    fn the_first_offer_is_made_at_once() {
        assert_eq!(written("cpu=4", &[newcomer("cpu=4")]), [(0, "cpu=4".to_owned())]);
    }

    #[test]
    fn where_there_is_nothing_no_offer_is_made() {
        assert_eq!(written("cpu=0", &[newcomer("cpu=0")]), []);
        assert_eq!(written("", &[newcomer("")]), []);
    }

    #[test]
    fn a_settled_offer_is_not_rewritten() {
        assert!(!rewritten(standing("cpu=4, memory=4Gi", "cpu=4, memory=4Gi")));
        assert!(!rewritten(standing("memory=4Gi", "memory=4096Mi")));
    }

    #[test]
    fn a_change_within_the_threshold_is_not_written_in_either_direction() {
        for target in ["cpu=95", "cpu=105"] {
            assert!(!rewritten(standing("cpu=100", target)), "{target}");
        }
        for target in ["cpu=94", "cpu=106"] {
            assert!(rewritten(standing("cpu=100", target)), "{target}");
        }
    }

    #[test]
    fn one_resource_beyond_the_threshold_takes_the_others_along() {
        assert_eq!(
            written("cpu=102, pods=8", &[standing("cpu=100, pods=4", "cpu=102, pods=8")]),
            [(0, "cpu=102, pods=8".to_owned())]
        );
    }

    #[test]
    fn that_a_resource_is_used_up_or_appears_is_always_written() {
        assert!(rewritten(standing("cpu=4, nvidia.com/gpu=1", "cpu=4, nvidia.com/gpu=0")));
        assert!(rewritten(standing("cpu=4", "cpu=4, nvidia.com/gpu=1")));
        assert!(rewritten(standing("cpu=4", "cpu=0")));
    }

    #[test]
    fn a_new_limit_is_followed_exactly() {
        let limited = |published, target, asked| Standing { asked: list(asked), ..standing(published, target) };
        assert!(rewritten(limited("cpu=4", "cpu=4100m", "cpu=4100m")));
        assert!(rewritten(limited("cpu=4100m", "cpu=4", "cpu=4")));
        assert!(!rewritten(limited("cpu=4100m", "cpu=4", "cpu=8")));
    }

    #[test]
    fn an_offer_below_what_is_used_is_mended() {
        let used = Standing { in_use: list("cpu=101"), ..standing("cpu=100", "cpu=101") };
        assert!(rewritten(used));
    }

    #[test]
    fn new_labels_are_written_although_the_amounts_stand() {
        assert!(rewritten(Standing { outdated: true, ..standing("cpu=4", "cpu=4") }));
    }

    #[test]
    fn an_offer_rests_for_ten_seconds_and_is_looked_at_again_after_them() {
        let start = Instant::now();
        let moved = Standing { written: Some(start), ..standing("cpu=4", "cpu=2") };
        let early = decide(&list("cpu=2"), std::slice::from_ref(&moved), start + Duration::from_secs(4));
        assert_eq!(early, Publication { writes: Vec::new(), wake: Some(Duration::from_secs(6)) });
        let late = decide(&list("cpu=2"), &[moved], start + PACE);
        assert_eq!((late.writes.len(), late.wake), (1, None));
    }

    #[test]
    fn an_offer_that_rests_and_need_not_move_wakes_nobody() {
        let rests = Standing { written: Some(Instant::now()), ..standing("cpu=4", "cpu=4") };
        assert_eq!(decide(&list("cpu=4"), &[rests], Instant::now()), Publication::default());
    }

    #[test]
    fn an_offer_that_was_just_made_is_not_made_again_while_the_cache_lags() {
        let start = Instant::now();
        let made = Standing { written: Some(start), ..newcomer("cpu=4") };
        assert_eq!(decide(&list("cpu=4"), &[made], start).writes, []);
    }

    #[test]
    fn the_others_make_room_for_a_newcomer_before_it_gets_its_offer() {
        let start = Instant::now();
        // Within the threshold, and written just now: both do not matter when somebody has nothing yet.
        let old = Standing { written: Some(start), ..standing("cpu=100, pods=10", "cpu=96, pods=5") };
        let decided = decide(&list("cpu=100, pods=10"), &[newcomer("cpu=4, pods=5"), old], start);
        let order: Vec<_> = decided.writes.iter().map(|write| (write.index, write.hard.to_string(), write.grows)).collect();
        assert_eq!(order, [(1, "cpu=96, pods=5".to_owned(), false), (0, "cpu=4, pods=5".to_owned(), true)]);
    }

    #[test]
    fn making_room_lets_nobody_grow_who_has_to_rest() {
        let start = Instant::now();
        let old = Standing { written: Some(start), ..standing("cpu=4, pods=5", "cpu=2, pods=10") };
        let decided = decide(&list("cpu=4, pods=10"), &[old, newcomer("cpu=2, pods=0")], start);
        assert_eq!(decided.writes[0].hard.to_string(), "cpu=2, pods=5");
        assert_eq!(decided.wake, Some(PACE));
    }

    #[test]
    fn nobody_grows_into_what_another_still_holds() {
        let start = Instant::now();
        let resting = Standing { written: Some(start), ..standing("cpu=8", "cpu=5") };
        let decided = decide(&list("cpu=10"), &[resting, standing("cpu=2", "cpu=5")], start);
        assert_eq!(decided.writes, []);
    }

    #[test]
    fn who_grows_takes_what_is_left_at_least() {
        let start = Instant::now();
        let resting = Standing { written: Some(start), ..standing("cpu=7", "cpu=5") };
        let decided = decide(&list("cpu=10"), &[resting, standing("cpu=2", "cpu=5")], start);
        assert_eq!(decided.writes, [Write { index: 1, hard: list("cpu=3"), grows: true }]);
    }

    #[test]
    fn when_a_consumer_leaves_the_others_get_its_share() {
        assert_eq!(written("cpu=4", &[standing("cpu=2", "cpu=4")]), [(0, "cpu=4".to_owned())]);
    }

    fn any_standings() -> impl Strategy<Value = (ResourceList, Vec<Standing>)> {
        let one = (option::of(0..200_i64), 0..100_i64, option::of(0..200_i64), option::of(0..20_u64));
        (0..300_i64, vec(one, 1..7)).prop_map(|(total, parts)| {
            let pods = |count: i64| ResourceList::from([("pods", Quantity::from_units(count))]);
            let total = pods(total);
            let claims: Vec<Claim> = (1_u8..)
                .zip(&parts)
                .map(|(number, (_, used, asked, _))| Claim {
                    consumer: cluster(number),
                    weight: 1,
                    in_use: pods(*used),
                    asked: asked.map(pods).unwrap_or_default(),
                })
                .collect();
            let now = Instant::now();
            let standings = split(&total, &claims).into_iter().zip(claims).zip(parts).map(|((target, claim), part)| Standing {
                threshold: 0,
                published: part.0.map(pods),
                written: part.3.and_then(|seconds| now.checked_sub(Duration::from_secs(seconds))),
                outdated: false,
                target,
                in_use: claim.in_use,
                asked: claim.asked,
            });
            (total, standings.collect())
        })
    }

    fn after(standings: &[Standing], publication: &Publication) -> Vec<Quantity> {
        let mut held: Vec<Quantity> = standings.iter().map(|standing| published(standing, "pods")).collect();
        for write in &publication.writes {
            held[write.index] = write.hard.get("pods");
        }
        held
    }

    proptest! {
        #[test]
        fn publishing_never_promises_more_than_there_is(
            (total, standings) in any_standings(), threshold in 0..50_u8
        ) {
            let standings = with_threshold(standings, threshold);
            let publication = decide(&total, &standings, Instant::now());
            let used: Quantity = standings.iter().map(|standing| standing.in_use.get("pods")).sum();
            // What was promised too much before may stand within the threshold; use that exceeds its offer is mended.
            let before: Quantity = standings
                .iter()
                .map(|standing| published(standing, "pods").max(standing.in_use.get("pods")))
                .sum();
            let held: Quantity = after(&standings, &publication).into_iter().sum();
            prop_assert!(held <= total.get("pods").max(used).max(before), "{publication:?}");
        }

        #[test]
        fn without_threshold_and_rest_exactly_the_targets_are_published((total, mut standings) in any_standings()) {
            for standing in &mut standings {
                standing.written = None;
            }
            let publication = decide(&total, &standings, Instant::now());
            let targets: Vec<Quantity> = standings.iter().map(|standing| standing.target.get("pods")).collect();
            prop_assert_eq!(after(&standings, &publication), targets);
        }

        #[test]
        fn what_was_published_is_not_published_again(
            (total, standings) in any_standings(), threshold in 0..50_u8
        ) {
            let now = Instant::now();
            let mut standings = with_threshold(standings, threshold);
            let publication = decide(&total, &standings, now);
            for write in publication.writes {
                standings[write.index].published = Some(write.hard);
            }
            for standing in &mut standings {
                standing.written = None;
            }
            // Those that rested may follow; then nothing does.
            let mut rounds = 0;
            loop {
                let publication = decide(&total, &standings, now);
                if publication.writes.is_empty() {
                    break;
                }
                for write in publication.writes {
                    standings[write.index].published = Some(write.hard);
                }
                rounds += 1;
                prop_assert!(rounds < 4, "it does not settle");
            }
        }

        #[test]
        fn a_write_always_lies_between_what_stood_and_the_target(
            (total, standings) in any_standings(), threshold in 0..50_u8
        ) {
            let standings = with_threshold(standings, threshold);
            for write in decide(&total, &standings, Instant::now()).writes {
                let standing = &standings[write.index];
                let (before, target) = (published(standing, "pods"), standing.target.get("pods"));
                let hard = write.hard.get("pods");
                prop_assert!(hard >= before.min(target) && hard <= target);
                prop_assert!(hard >= standing.in_use.get("pods"));
            }
        }
    }
}
