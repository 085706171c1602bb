//! The ledger: splits resources between claims.
//!
//! Each consumer gets a share in proportion to its weight, but never less than it uses and never
//! more than it requested. The others share what this leaves or costs, again by weight. So the
//! offers together never exceed the larger of what exists and what is used already, and an offer
//! does not change only because the consumer starts to use it.
//!
//! The ledger counts in the unit of each resource (milli-cores, bytes, pages, whole GPUs), so
//! rounding neither loses nor adds anything: the remaining steps go to the largest fractions, and
//! among equal ones to the lower cluster ID.

use std::{cmp::Reverse, collections::BTreeSet};

use liqo_api::ClusterId;
use liqo_quantity::{Quantity, ResourceList, Unit, unit_of};

/// The inputs for one consumer.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub consumer: ClusterId,
    /// Its share relative to the others'.
    pub weight: u16,
    /// Resources that its unfinished pods use.
    pub in_use: ResourceList,
    /// The maximum of each named resource.
    pub requested: ResourceList,
}

/// One resource of one claim, in steps of the resource.
struct ClaimPart {
    weight: i128,
    least: i128,
    most: i128,
    /// The final share, if it is `least` or `most`.
    fixed: Option<i128>,
}

/// The share of each claim, in the order of the claims.
pub fn split_by_claims(total: &ResourceList, claims: &[Claim]) -> Vec<ResourceList> {
    let mut offers = vec![ResourceList::new(); claims.len()];
    let used = claims.iter().flat_map(|claim| {
        claim
            .in_use
            .iter()
            .filter(|(_, used)| *used > Quantity::ZERO)
    });
    let names: BTreeSet<&str> = total.names().chain(used.map(|(name, _)| name)).collect();
    for name in names {
        let unit = unit_of(name);
        let mut parts: Vec<ClaimPart> = claims
            .iter()
            .map(|claim| {
                let least = steps_up(claim.in_use.get(name), unit);
                let most = requested_cap(&claim.requested, name)
                    .map_or(MAX_STEPS, |cap| steps_down(cap, unit));
                ClaimPart {
                    weight: i128::from(claim.weight),
                    least,
                    most: most.max(least),
                    fixed: None,
                }
            })
            .collect();
        let shares = split_one(steps_down(total.get(name), unit), &mut parts, claims);
        for ((offer, share), claim) in offers.iter_mut().zip(shares).zip(claims) {
            let notation = if total.contains(name) {
                total.get(name)
            } else {
                claim.in_use.get(name)
            };
            offer.insert(
                name,
                Quantity::from_nanos(share * unit_step(unit), notation.format()),
            );
        }
    }
    offers
}

/// Divides an amount in proportion to the capacities, in whole steps. The parts add up to the
/// amount exactly. No part exceeds its capacity if all capacities together suffice. If there is no
/// capacity at all, the first part gets everything.
pub fn spread_by_capacity(amount: &ResourceList, capacities: &[ResourceList]) -> Vec<ResourceList> {
    let mut parts = vec![ResourceList::new(); capacities.len()];
    for (name, whole) in amount {
        let unit = unit_of(name);
        let steps: Vec<i128> = capacities
            .iter()
            .map(|capacity| steps_down(capacity.get(name), unit))
            .collect();
        let all: i128 = steps.iter().sum();
        let last = steps
            .iter()
            .rposition(|steps| *steps > 0)
            .unwrap_or_default();
        let (mut before, mut given) = (0, Quantity::ZERO);
        for (index, (part, steps)) in parts.iter_mut().zip(steps).enumerate().take(last + 1) {
            before += steps;
            // Rounds the sum of all parts up to this one, so that rounding errors do not add up.
            let nearest = steps_down(whole, unit)
                .saturating_mul(before)
                .saturating_add(all / 2)
                / all.max(1);
            let reached = if index == last {
                whole
            } else {
                Quantity::from_nanos(nearest * unit_step(unit), whole.format())
            };
            if reached > given {
                part.insert(name, reached - given);
                given = reached;
            }
        }
    }
    parts
}

/// The requested maximum of this resource, rounded down to its unit and never negative; `None` if
/// there is no limit.
pub fn requested_cap(requested: &ResourceList, name: &str) -> Option<Quantity> {
    requested.contains(name).then(|| {
        requested
            .get(name)
            .max(Quantity::ZERO)
            .round_down(unit_of(name))
    })
}

/// The amount rounded up to whole steps, as the scheduler counts it.
pub fn rounded_up(quantity: Quantity, unit: Unit) -> Quantity {
    Quantity::from_nanos(
        steps_up(quantity, unit) * unit_step(unit),
        quantity.format(),
    )
}

/// Splits `total` steps: first finds the parts whose share is `least` or `most`, then splits the
/// rest by largest remainder.
///
/// This is the algorithm of CSS for flexible lengths: each round clamps every open share to its
/// limits. If the sum becomes too large, the raised shares are final; if it becomes too small, the
/// lowered ones. The next round splits the rest between the other parts. Each round makes at least
/// one share final.
fn split_one(total: i128, parts: &mut [ClaimPart], claims: &[Claim]) -> Vec<i128> {
    loop {
        let (rest, weights) = remaining_amounts(total, parts);
        let open = parts.iter().filter(|part| part.fixed.is_none());
        let sum: i128 = open.map(|part| scaled_distance(part, rest, weights)).sum();
        let (raised_are_final, lowered_are_final) = (sum >= 0, sum <= 0);
        let mut settled = false;
        for part in parts.iter_mut().filter(|part| part.fixed.is_none()) {
            let share = match scaled_distance(part, rest, weights).signum() {
                1 if raised_are_final => part.least,
                -1 if lowered_are_final => part.most,
                _ if weights == 0 => part.least,
                _ => continue,
            };
            part.fixed = Some(share);
            settled = true;
        }
        if !settled {
            return by_largest_remainder(rest, weights, parts, claims);
        }
    }
}

/// By how much the limits of a part move it. All distances are multiplied by the sum of the
/// weights, so that they have no fractions.
fn scaled_distance(part: &ClaimPart, rest: i128, weights: i128) -> i128 {
    clamp_scaled(part, rest, weights) - rest * part.weight
}

/// The amount that is left for the open parts, and the sum of their weights.
fn remaining_amounts(total: i128, parts: &[ClaimPart]) -> (i128, i128) {
    let taken: i128 = parts.iter().filter_map(|part| part.fixed).sum();
    let weights = parts
        .iter()
        .filter(|part| part.fixed.is_none())
        .map(|part| part.weight)
        .sum();
    ((total - taken).max(0), weights)
}

/// The share, clamped to its limits, times the sum of the weights.
fn clamp_scaled(part: &ClaimPart, rest: i128, weights: i128) -> i128 {
    (rest * part.weight).clamp(part.least * weights, part.most * weights)
}

fn by_largest_remainder(
    rest: i128,
    weights: i128,
    parts: &[ClaimPart],
    claims: &[Claim],
) -> Vec<i128> {
    let mut shares: Vec<i128> = parts
        .iter()
        .map(|part| {
            part.fixed
                .unwrap_or_else(|| rest * part.weight / weights.max(1))
        })
        .collect();
    let mut open: Vec<usize> = (0..parts.len())
        .filter(|&i| parts[i].fixed.is_none())
        .collect();
    let given: i128 = open.iter().map(|&i| shares[i]).sum();
    let left = if weights == 0 { 0 } else { rest - given };
    if left > 0 {
        open.sort_by_cached_key(|&i| {
            (
                Reverse(rest * parts[i].weight % weights.max(1)),
                &claims[i].consumer,
            )
        });
    }
    for &i in open.iter().take(usize::try_from(left).unwrap_or(0)) {
        shares[i] += 1;
    }
    shares
}

/// More steps than any cluster has. Keeps products with weights within 128 bits.
const MAX_STEPS: i128 = i64::MAX as i128;

fn unit_step(unit: Unit) -> i128 {
    const NANOS: i128 = 1_000_000_000;
    match unit {
        Unit::Milli => NANOS / 1000,
        Unit::Bytes | Unit::Whole => NANOS,
        Unit::Pages(bytes) => i128::from(bytes.max(1)) * NANOS,
    }
}

fn steps_down(quantity: Quantity, unit: Unit) -> i128 {
    (quantity.nanos().max(0) / unit_step(unit)).min(MAX_STEPS)
}

fn steps_up(quantity: Quantity, unit: Unit) -> i128 {
    let (nanos, step) = (quantity.nanos().max(0), unit_step(unit));
    (nanos / step + i128::from(nanos % step != 0)).min(MAX_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, list};
    use proptest::{collection::vec, option, prelude::*};

    fn claim(number: u8, in_use: &str, requested: &str) -> Claim {
        Claim {
            consumer: cluster(number),
            weight: 1,
            in_use: list(in_use),
            requested: list(requested),
        }
    }

    fn texts(total: &str, claims: &[Claim]) -> Vec<String> {
        split_by_claims(&list(total), claims)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn one_consumer_is_offered_everything() {
        assert_eq!(
            texts("cpu=1800m, memory=4Gi", &[claim(1, "", "")]),
            ["cpu=1800m, memory=4Gi"]
        );
    }

    #[test]
    fn consumers_of_equal_weight_get_equal_shares() {
        assert_eq!(
            texts(
                "cpu=3, pods=9",
                &[claim(1, "", ""), claim(2, "", ""), claim(3, "", "")]
            ),
            ["cpu=1, pods=3"; 3]
        );
    }

    #[test]
    fn shares_follow_the_weights() {
        let mut claims = [claim(1, "", ""), claim(2, "", "")];
        claims[1].weight = 3;
        assert_eq!(texts("cpu=4", &claims), ["cpu=1", "cpu=3"]);
    }

    #[test]
    fn a_consumer_that_uses_its_offer_changes_no_offer() {
        let idle = texts("cpu=10", &[claim(1, "", ""), claim(2, "", "")]);
        assert_eq!(
            texts("cpu=10", &[claim(1, "cpu=5", ""), claim(2, "", "")]),
            idle
        );
    }

    #[test]
    fn a_consumer_that_uses_more_than_its_share_keeps_it_and_the_others_split_the_rest() {
        let claims = [claim(1, "cpu=6", ""), claim(2, "", ""), claim(3, "", "")];
        assert_eq!(texts("cpu=10", &claims), ["cpu=6", "cpu=2", "cpu=2"]);
    }

    #[test]
    fn when_more_is_used_than_exists_everyone_is_offered_exactly_what_it_uses() {
        let claims = [
            claim(1, "cpu=3", ""),
            claim(2, "cpu=2", ""),
            claim(3, "", ""),
        ];
        assert_eq!(texts("cpu=4", &claims), ["cpu=3", "cpu=2", "cpu=0"]);
    }

    #[test]
    fn nobody_is_offered_more_than_it_requested_and_the_others_get_the_rest() {
        assert_eq!(
            texts(
                "cpu=10, memory=10Gi",
                &[claim(1, "", "cpu=1500m"), claim(2, "", "")]
            ),
            ["cpu=1500m, memory=5Gi", "cpu=8500m, memory=5Gi"]
        );
    }

    #[test]
    fn requesting_less_than_is_used_does_not_cut_the_use() {
        assert_eq!(texts("cpu=10", &[claim(1, "cpu=3", "cpu=1")]), ["cpu=3"]);
    }

    #[test]
    fn requesting_what_does_not_exist_yields_nothing() {
        assert_eq!(
            texts("cpu=1", &[claim(1, "", "cpu=2, nvidia.com/gpu=4")]),
            ["cpu=1"]
        );
    }

    #[test]
    fn an_invalid_request_hurts_only_its_own_consumer() {
        let claims = [
            claim(1, "", "cpu=-5, memory=1e40, pods=500m"),
            claim(2, "", ""),
        ];
        assert_eq!(
            texts("cpu=4, memory=4Gi, pods=10", &claims),
            ["cpu=0, memory=2Gi, pods=0", "cpu=4, memory=2Gi, pods=10"]
        );
    }

    #[test]
    fn a_single_gpu_goes_to_the_lowest_id_unless_another_consumer_uses_it() {
        let gpu = "nvidia.com/gpu=1";
        assert_eq!(
            texts(gpu, &[claim(2, "", ""), claim(1, "", "")]),
            ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
        );
        assert_eq!(
            texts(gpu, &[claim(2, gpu, ""), claim(1, "", "")]),
            ["nvidia.com/gpu=1", "nvidia.com/gpu=0"]
        );
    }

    #[test]
    fn remaining_whole_units_go_to_the_largest_fractions() {
        let mut claims = [claim(1, "", ""), claim(2, "", ""), claim(3, "", "")];
        claims[2].weight = 2;
        // Shares of 7: 1.75, 1.75, 3.5.
        assert_eq!(texts("pods=7", &claims), ["pods=2", "pods=2", "pods=3"]);
    }

    #[test]
    fn use_of_what_no_longer_exists_is_still_offered() {
        assert_eq!(
            texts("cpu=1", &[claim(1, "nvidia.com/gpu=1", "")]),
            ["cpu=1, nvidia.com/gpu=1"]
        );
    }

    #[test]
    fn weight_zero_gets_only_what_it_uses() {
        let mut claims = [claim(1, "cpu=1", ""), claim(2, "", "")];
        claims[0].weight = 0;
        assert_eq!(texts("cpu=4", &claims), ["cpu=1", "cpu=3"]);
        claims[1].weight = 0;
        assert_eq!(texts("cpu=4", &claims), ["cpu=1", "cpu=0"]);
    }

    #[test]
    fn without_claims_nothing_is_split() {
        assert_eq!(
            split_by_claims(&list("cpu=4"), &[]),
            Vec::<ResourceList>::new()
        );
    }

    fn spread_texts(amount: &str, capacities: &[&str]) -> Vec<String> {
        let capacities: Vec<ResourceList> =
            capacities.iter().map(|capacity| list(capacity)).collect();
        spread_by_capacity(&list(amount), &capacities)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn an_amount_is_spread_in_proportion_to_the_capacities() {
        assert_eq!(
            spread_texts("cpu=2, pods=1", &["cpu=6, pods=1", "cpu=2, pods=3"]),
            ["cpu=1500m", "cpu=500m, pods=1"]
        );
        assert_eq!(
            spread_texts(
                "nvidia.com/gpu=1",
                &["cpu=1", "nvidia.com/gpu=3", "nvidia.com/gpu=1"]
            ),
            ["nothing", "nvidia.com/gpu=1", "nothing"]
        );
    }

    #[test]
    fn without_capacity_the_first_gets_everything() {
        assert_eq!(
            spread_texts("cpu=2", &["cpu=0", "memory=1Gi"]),
            ["cpu=2", "nothing"]
        );
        assert_eq!(spread_texts("cpu=2", &[]), Vec::<String>::new());
    }

    fn any_claims() -> impl Strategy<Value = Vec<Claim>> {
        let amount = prop_oneof![0..20_000_i64, Just(0), Just(i64::MAX)];
        vec((0..4_u16, amount.clone(), option::of(amount)), 1..9).prop_map(|parts| {
            let claims =
                parts
                    .into_iter()
                    .zip(1_u8..)
                    .map(|((weight, used, requested), number)| Claim {
                        consumer: cluster(number),
                        weight,
                        in_use: [
                            ("cpu", Quantity::from_millis(used.min(20_000))),
                            ("pods", Quantity::from_units(used % 7)),
                        ]
                        .into(),
                        requested: requested
                            .into_iter()
                            .map(|requested| ("cpu", Quantity::from_millis(requested)))
                            .collect(),
                    });
            claims.collect()
        })
    }

    fn any_total() -> impl Strategy<Value = ResourceList> {
        (prop_oneof![0..100_000_i64, Just(i64::MAX)], 0..50_i64).prop_map(|(cpu, pods)| {
            [
                ("cpu", Quantity::from_millis(cpu)),
                ("pods", Quantity::from_units(pods)),
            ]
            .into()
        })
    }

    fn sum(offers: &[ResourceList], name: &str) -> Quantity {
        offers.iter().map(|offer| offer.get(name)).sum()
    }

    proptest! {
        #[test]
        fn the_parts_of_an_amount_add_up_and_fit_if_the_whole_fits(
            amount in prop_oneof![0..20_000_000_i128, Just(i128::from(i64::MAX))],
            capacities in vec(prop_oneof![0..20_i64, Just(i64::MAX)], 1..6)
        ) {
            // Also amounts that are finer than a step.
            let whole = Quantity::from_nanos(amount * 500_000, liqo_quantity::Notation::default());
            let capacities: Vec<ResourceList> = capacities.into_iter().map(|cpu| [("cpu", Quantity::from_millis(cpu))].into()).collect();
            let parts = spread_by_capacity(&[("cpu", whole)].into(), &capacities);
            prop_assert_eq!(sum(&parts, "cpu"), whole);
            if whole <= sum(&capacities, "cpu") && amount % 2 == 0 {
                for (part, capacity) in parts.iter().zip(&capacities) {
                    prop_assert!(part.get("cpu") <= capacity.get("cpu"), "{parts:?}");
                }
            }
        }

        #[test]
        fn offers_together_never_exceed_what_exists_or_is_used(total in any_total(), claims in any_claims()) {
            let offers = split_by_claims(&total, &claims);
            for name in ["cpu", "pods"] {
                let used: Quantity = claims.iter().map(|claim| claim.in_use.get(name)).sum();
                prop_assert!(sum(&offers, name) <= total.get(name).max(used), "{name}: {offers:?}");
            }
        }

        #[test]
        fn no_offer_is_below_use_or_above_the_request(total in any_total(), claims in any_claims()) {
            for (offer, claim) in split_by_claims(&total, &claims).iter().zip(&claims) {
                for name in ["cpu", "pods"] {
                    let (offered, used) = (offer.get(name), claim.in_use.get(name));
                    prop_assert!(offered >= used);
                    if let Some(cap) = requested_cap(&claim.requested, name) {
                        prop_assert!(offered <= cap.max(used));
                    }
                }
            }
        }

        #[test]
        fn nothing_is_left_over_while_somebody_wants_more(total in any_total(), claims in any_claims()) {
            let offers = split_by_claims(&total, &claims);
            for name in ["cpu", "pods"] {
                let hungry = offers.iter().zip(&claims).any(|(offer, claim)| {
                    claim.weight > 0 && requested_cap(&claim.requested, name).is_none_or(|cap| offer.get(name) < cap)
                });
                prop_assert!(!hungry || sum(&offers, name) >= total.get(name), "{name}: {offers:?}");
            }
        }

        #[test]
        fn without_limits_a_larger_weight_never_gets_less(total in any_total(), claims in any_claims()) {
            let offers = split_by_claims(&total, &claims);
            for (one, a) in offers.iter().zip(&claims) {
                for (other, b) in offers.iter().zip(&claims) {
                    let free = |offer: &ResourceList, claim: &Claim| {
                        offer.get("cpu") > claim.in_use.get("cpu") && !claim.requested.contains("cpu")
                    };
                    if free(one, a) && free(other, b) && a.weight < b.weight {
                        prop_assert!(one.get("cpu") <= other.get("cpu"));
                    }
                }
            }
        }

        #[test]
        fn the_order_of_the_claims_does_not_matter(total in any_total(), mut claims in any_claims()) {
            let forward = split_by_claims(&total, &claims);
            claims.reverse();
            let mut backward = split_by_claims(&total, &claims);
            backward.reverse();
            prop_assert_eq!(forward, backward);
        }
    }
}
