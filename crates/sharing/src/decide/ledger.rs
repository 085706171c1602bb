//! The ledger: how what is there is split between those who asked for it.
//!
//! Each consumer gets its weight's share. Nobody gets less than it uses, and nobody more than it asked for; what that
//! leaves or costs is shared by the others, again by weight. So the offers together never exceed the larger of what is there
//! and what is used already, and an offer does not move only because the consumer starts using it.
//!
//! Everything is counted in the finest step of the resource (milli-cores, bytes, pages, whole GPUs), so nothing is lost or
//! invented by rounding: steps that remain go to the largest fractions, and between equal ones to the lower cluster ID.

use std::{cmp::Reverse, collections::BTreeSet};

use liqo_api::ClusterId;
use liqo_quantity::{Quantity, ResourceList, Unit, unit_of};

/// What one consumer asks for and has.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The consumer.
    pub consumer: ClusterId,
    /// Its share relative to the others'.
    pub weight: u16,
    /// What its unfinished pods use.
    pub in_use: ResourceList,
    /// At most this much of each resource named.
    pub asked: ResourceList,
}

/// One resource of one claim, in steps of the resource.
struct Part {
    weight: i128,
    least: i128,
    most: i128,
    /// Set once it is known that the share is bounded by `least` or `most`.
    fixed: Option<i128>,
}

/// What each claim is given of `total`, in the order of the claims.
pub fn split(total: &ResourceList, claims: &[Claim]) -> Vec<ResourceList> {
    let mut offers = vec![ResourceList::new(); claims.len()];
    let used = claims.iter().flat_map(|claim| claim.in_use.iter().filter(|(_, used)| *used > Quantity::ZERO));
    let names: BTreeSet<&str> = total.names().chain(used.map(|(name, _)| name)).collect();
    for name in names {
        let unit = unit_of(name);
        let mut parts: Vec<Part> = claims
            .iter()
            .map(|claim| {
                let least = steps_up(claim.in_use.get(name), unit);
                let most = cap(&claim.asked, name).map_or(LIMIT, |cap| steps_down(cap, unit));
                Part { weight: i128::from(claim.weight), least, most: most.max(least), fixed: None }
            })
            .collect();
        let shares = split_one(steps_down(total.get(name), unit), &mut parts, claims);
        for ((offer, share), claim) in offers.iter_mut().zip(shares).zip(claims) {
            let notation = if total.contains(name) { total.get(name) } else { claim.in_use.get(name) };
            offer.insert(name, Quantity::from_nanos(share * step(unit), notation.format()));
        }
    }
    offers
}

/// Divides an amount in proportion to the room that there is in each place, in whole steps, and exactly: the parts add up to
/// the amount. No part exceeds its room as long as all rooms together suffice; where there is none, the first takes it.
pub fn spread(amount: &ResourceList, room: &[ResourceList]) -> Vec<ResourceList> {
    let mut parts = vec![ResourceList::new(); room.len()];
    for (name, whole) in amount {
        let unit = unit_of(name);
        let places: Vec<i128> = room.iter().map(|room| steps_down(room.get(name), unit)).collect();
        let all: i128 = places.iter().sum();
        let end = places.iter().rposition(|place| *place > 0).unwrap_or_default();
        let (mut before, mut given) = (0, Quantity::ZERO);
        for (index, (part, place)) in parts.iter_mut().zip(places).enumerate().take(end + 1) {
            before += place;
            // What all of them together have up to here is rounded, so that nothing is lost or given twice.
            let nearest = steps_down(whole, unit).saturating_mul(before).saturating_add(all / 2) / all.max(1);
            let reached = if index == end { whole } else { Quantity::from_nanos(nearest * step(unit), whole.format()) };
            if reached > given {
                part.insert(name, reached - given);
                given = reached;
            }
        }
    }
    parts
}

/// What is asked for at most of this resource, in whole steps and never negative; nothing if there is no such limit.
pub fn cap(asked: &ResourceList, name: &str) -> Option<Quantity> {
    asked.contains(name).then(|| asked.get(name).max(Quantity::ZERO).round_down(unit_of(name)))
}

/// The amount as the scheduler counts it: a step that is used in part is used.
pub fn rounded_up(quantity: Quantity, unit: Unit) -> Quantity {
    Quantity::from_nanos(steps_up(quantity, unit) * step(unit), quantity.format())
}

/// Shares out `total` steps: bounds first, then the rest by largest remainder.
///
/// Finding who is bounded works as in other places where elastic things share a length: give everyone its share, cut to its
/// bounds; if that is too much in sum, those that were raised are final, if too little those that were cut; repeat with the
/// others. Each round settles at least one.
fn split_one(total: i128, parts: &mut [Part], claims: &[Claim]) -> Vec<i128> {
    loop {
        let (rest, weights) = remaining(total, parts);
        // Distances are compared multiplied by all weights, so that no fraction is needed.
        let distance = |part: &Part| clamp_scaled(part, rest, weights) - rest * part.weight;
        let open = || parts.iter().filter(|part| part.fixed.is_none());
        let sum: i128 = open().map(distance).sum();
        let (raised, cut) = (sum >= 0, sum <= 0);
        let mut settled = false;
        for part in parts.iter_mut().filter(|part| part.fixed.is_none()) {
            let distance = clamp_scaled(part, rest, weights) - rest * part.weight;
            let bound = match distance.signum() {
                1 if raised => part.least,
                -1 if cut => part.most,
                _ if weights == 0 => part.least,
                _ => continue,
            };
            part.fixed = Some(bound);
            settled = true;
        }
        if !settled {
            return by_largest_remainder(rest, weights, parts, claims);
        }
    }
}

/// What is left for those that are not bounded, and the sum of their weights.
fn remaining(total: i128, parts: &[Part]) -> (i128, i128) {
    let taken: i128 = parts.iter().filter_map(|part| part.fixed).sum();
    let weights = parts.iter().filter(|part| part.fixed.is_none()).map(|part| part.weight).sum();
    ((total - taken).max(0), weights)
}

/// The share within its bounds, times the sum of the weights.
fn clamp_scaled(part: &Part, rest: i128, weights: i128) -> i128 {
    (rest * part.weight).clamp(part.least * weights, part.most * weights)
}

fn by_largest_remainder(rest: i128, weights: i128, parts: &[Part], claims: &[Claim]) -> Vec<i128> {
    let mut shares: Vec<i128> =
        parts.iter().map(|part| part.fixed.unwrap_or_else(|| rest * part.weight / weights.max(1))).collect();
    let mut open: Vec<usize> = (0..parts.len()).filter(|&i| parts[i].fixed.is_none()).collect();
    let given: i128 = open.iter().map(|&i| shares[i]).sum();
    let left = if weights == 0 { 0 } else { rest - given };
    if left > 0 {
        open.sort_by_cached_key(|&i| (Reverse(rest * parts[i].weight % weights.max(1)), &claims[i].consumer));
    }
    for &i in open.iter().take(usize::try_from(left).unwrap_or(0)) {
        shares[i] += 1;
    }
    shares
}

/// More steps than any cluster has of anything; it keeps products with weights within 128 bits.
const LIMIT: i128 = i64::MAX as i128;

fn step(unit: Unit) -> i128 {
    const NANOS: i128 = 1_000_000_000;
    match unit {
        Unit::Milli => NANOS / 1000,
        Unit::Bytes | Unit::Whole => NANOS,
        Unit::Pages(bytes) => i128::from(bytes.max(1)) * NANOS,
    }
}

fn steps_down(quantity: Quantity, unit: Unit) -> i128 {
    (quantity.nanos().max(0) / step(unit)).min(LIMIT)
}

fn steps_up(quantity: Quantity, unit: Unit) -> i128 {
    let (nanos, step) = (quantity.nanos().max(0), step(unit));
    (nanos / step + i128::from(nanos % step != 0)).min(LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, list};
    use proptest::{collection::vec, option, prelude::*};

    fn claim(number: u8, in_use: &str, asked: &str) -> Claim {
        Claim { consumer: cluster(number), weight: 1, in_use: list(in_use), asked: list(asked) }
    }

    fn texts(total: &str, claims: &[Claim]) -> Vec<String> {
        split(&list(total), claims).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_consumer_is_offered_everything() {
        assert_eq!(texts("cpu=1800m, memory=4Gi", &[claim(1, "", "")]), ["cpu=1800m, memory=4Gi"]);
    }

    #[test]
    fn consumers_of_equal_weight_get_equal_shares() {
        assert_eq!(texts("cpu=3, pods=9", &[claim(1, "", ""), claim(2, "", ""), claim(3, "", "")]), ["cpu=1, pods=3"; 3]);
    }

    #[test]
    fn shares_follow_the_weights() {
        let mut claims = [claim(1, "", ""), claim(2, "", "")];
        claims[1].weight = 3;
        assert_eq!(texts("cpu=4", &claims), ["cpu=1", "cpu=3"]);
    }

    #[test]
    fn a_consumer_that_uses_what_it_was_offered_moves_no_offer() {
        let idle = texts("cpu=10", &[claim(1, "", ""), claim(2, "", "")]);
        assert_eq!(texts("cpu=10", &[claim(1, "cpu=5", ""), claim(2, "", "")]), idle);
    }

    #[test]
    fn who_uses_more_than_its_share_keeps_it_and_the_others_split_the_rest() {
        let claims = [claim(1, "cpu=6", ""), claim(2, "", ""), claim(3, "", "")];
        assert_eq!(texts("cpu=10", &claims), ["cpu=6", "cpu=2", "cpu=2"]);
    }

    #[test]
    fn when_more_is_used_than_there_is_everyone_is_offered_just_what_it_uses() {
        let claims = [claim(1, "cpu=3", ""), claim(2, "cpu=2", ""), claim(3, "", "")];
        assert_eq!(texts("cpu=4", &claims), ["cpu=3", "cpu=2", "cpu=0"]);
    }

    #[test]
    fn nobody_is_offered_more_than_it_asked_for_and_the_others_get_what_that_leaves() {
        assert_eq!(
            texts("cpu=10, memory=10Gi", &[claim(1, "", "cpu=1500m"), claim(2, "", "")]),
            ["cpu=1500m, memory=5Gi", "cpu=8500m, memory=5Gi"]
        );
    }

    #[test]
    fn asking_for_less_than_is_used_does_not_cut_the_use() {
        assert_eq!(texts("cpu=10", &[claim(1, "cpu=3", "cpu=1")]), ["cpu=3"]);
    }

    #[test]
    fn asking_for_what_does_not_exist_yields_nothing() {
        assert_eq!(texts("cpu=1", &[claim(1, "", "cpu=2, nvidia.com/gpu=4")]), ["cpu=1"]);
    }

    #[test]
    fn nonsense_that_a_consumer_asks_for_is_less_than_nothing_for_itself_only() {
        let claims = [claim(1, "", "cpu=-5, memory=1e40, pods=500m"), claim(2, "", "")];
        assert_eq!(texts("cpu=4, memory=4Gi, pods=10", &claims), ["cpu=0, memory=2Gi, pods=0", "cpu=4, memory=2Gi, pods=10"]);
    }

    #[test]
    fn a_single_gpu_goes_to_the_lowest_id_unless_somebody_uses_it() {
        let gpu = "nvidia.com/gpu=1";
        assert_eq!(texts(gpu, &[claim(2, "", ""), claim(1, "", "")]), ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]);
        assert_eq!(texts(gpu, &[claim(2, gpu, ""), claim(1, "", "")]), ["nvidia.com/gpu=1", "nvidia.com/gpu=0"]);
    }

    #[test]
    fn whole_units_that_remain_go_to_the_largest_fractions() {
        let mut claims = [claim(1, "", ""), claim(2, "", ""), claim(3, "", "")];
        claims[2].weight = 2;
        // Shares of 7: 1.75, 1.75, 3.5.
        assert_eq!(texts("pods=7", &claims), ["pods=2", "pods=2", "pods=3"]);
    }

    #[test]
    fn use_of_what_no_longer_exists_is_still_offered() {
        assert_eq!(texts("cpu=1", &[claim(1, "nvidia.com/gpu=1", "")]), ["cpu=1, nvidia.com/gpu=1"]);
    }

    #[test]
    fn the_weight_zero_keeps_only_what_is_used() {
        let mut claims = [claim(1, "cpu=1", ""), claim(2, "", "")];
        claims[0].weight = 0;
        assert_eq!(texts("cpu=4", &claims), ["cpu=1", "cpu=3"]);
        claims[1].weight = 0;
        assert_eq!(texts("cpu=4", &claims), ["cpu=1", "cpu=0"]);
    }

    #[test]
    fn nobody_asked_so_nothing_is_split() {
        assert_eq!(split(&list("cpu=4"), &[]), Vec::<ResourceList>::new());
    }

    fn spread_texts(amount: &str, room: &[&str]) -> Vec<String> {
        let room: Vec<ResourceList> = room.iter().map(|room| list(room)).collect();
        spread(&list(amount), &room).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_amount_is_spread_by_the_room_that_there_is() {
        assert_eq!(spread_texts("cpu=2, pods=1", &["cpu=6, pods=1", "cpu=2, pods=3"]), ["cpu=1500m", "cpu=500m, pods=1"]);
        assert_eq!(
            spread_texts("nvidia.com/gpu=1", &["cpu=1", "nvidia.com/gpu=3", "nvidia.com/gpu=1"]),
            ["nothing", "nvidia.com/gpu=1", "nothing"]
        );
    }

    #[test]
    fn what_nobody_has_room_for_is_taken_by_the_first() {
        assert_eq!(spread_texts("cpu=2", &["cpu=0", "memory=1Gi"]), ["cpu=2", "nothing"]);
        assert_eq!(spread_texts("cpu=2", &[]), Vec::<String>::new());
    }

    fn any_claims() -> impl Strategy<Value = Vec<Claim>> {
        let amount = prop_oneof![0..20_000_i64, Just(0), Just(i64::MAX)];
        vec((0..4_u16, amount.clone(), option::of(amount)), 1..9).prop_map(|parts| {
            let claims = parts.into_iter().zip(1_u8..).map(|((weight, used, asked), number)| Claim {
                consumer: cluster(number),
                weight,
                in_use: [("cpu", Quantity::from_millis(used.min(20_000))), ("pods", Quantity::from_units(used % 7))].into(),
                asked: asked.into_iter().map(|asked| ("cpu", Quantity::from_millis(asked))).collect(),
            });
            claims.collect()
        })
    }

    fn any_total() -> impl Strategy<Value = ResourceList> {
        (prop_oneof![0..100_000_i64, Just(i64::MAX)], 0..50_i64)
            .prop_map(|(cpu, pods)| [("cpu", Quantity::from_millis(cpu)), ("pods", Quantity::from_units(pods))].into())
    }

    fn sum(offers: &[ResourceList], name: &str) -> Quantity {
        offers.iter().map(|offer| offer.get(name)).sum()
    }

    proptest! {
        #[test]
        fn the_parts_of_an_amount_add_up_and_fit_where_all_of_it_does(
            amount in prop_oneof![0..20_000_000_i128, Just(i128::from(i64::MAX))],
            room in vec(prop_oneof![0..20_i64, Just(i64::MAX)], 1..6)
        ) {
            // Finer than a step, too.
            let whole = Quantity::from_nanos(amount * 500_000, liqo_quantity::Format::default());
            let room: Vec<ResourceList> = room.into_iter().map(|cpu| [("cpu", Quantity::from_millis(cpu))].into()).collect();
            let parts = spread(&[("cpu", whole)].into(), &room);
            prop_assert_eq!(sum(&parts, "cpu"), whole);
            if whole <= sum(&room, "cpu") && amount % 2 == 0 {
                for (part, room) in parts.iter().zip(&room) {
                    prop_assert!(part.get("cpu") <= room.get("cpu"), "{parts:?}");
                }
            }
        }

        #[test]
        fn offers_together_never_exceed_what_is_there_or_used(total in any_total(), claims in any_claims()) {
            let offers = split(&total, &claims);
            for name in ["cpu", "pods"] {
                let used: Quantity = claims.iter().map(|claim| claim.in_use.get(name)).sum();
                prop_assert!(sum(&offers, name) <= total.get(name).max(used), "{name}: {offers:?}");
            }
        }

        #[test]
        fn no_offer_is_below_use_or_above_what_was_asked(total in any_total(), claims in any_claims()) {
            for (offer, claim) in split(&total, &claims).iter().zip(&claims) {
                for name in ["cpu", "pods"] {
                    let (offered, used) = (offer.get(name), claim.in_use.get(name));
                    prop_assert!(offered >= used);
                    if let Some(cap) = cap(&claim.asked, name) {
                        prop_assert!(offered <= cap.max(used));
                    }
                }
            }
        }

        #[test]
        fn nothing_is_left_over_while_somebody_wants_more(total in any_total(), claims in any_claims()) {
            let offers = split(&total, &claims);
            for name in ["cpu", "pods"] {
                let hungry = offers.iter().zip(&claims).any(|(offer, claim)| {
                    claim.weight > 0 && cap(&claim.asked, name).is_none_or(|cap| offer.get(name) < cap)
                });
                prop_assert!(!hungry || sum(&offers, name) >= total.get(name), "{name}: {offers:?}");
            }
        }

        #[test]
        fn among_the_unbounded_a_larger_weight_never_gets_less(total in any_total(), claims in any_claims()) {
            let offers = split(&total, &claims);
            for (one, a) in offers.iter().zip(&claims) {
                for (other, b) in offers.iter().zip(&claims) {
                    let free = |offer: &ResourceList, claim: &Claim| {
                        offer.get("cpu") > claim.in_use.get("cpu") && !claim.asked.contains("cpu")
                    };
                    if free(one, a) && free(other, b) && a.weight < b.weight {
                        prop_assert!(one.get("cpu") <= other.get("cpu"));
                    }
                }
            }
        }

        #[test]
        fn the_order_of_the_claims_does_not_matter(total in any_total(), mut claims in any_claims()) {
            let forward = split(&total, &claims);
            claims.reverse();
            let mut backward = split(&total, &claims);
            backward.reverse();
            prop_assert_eq!(forward, backward);
        }
    }
}
