//! Properties of all quantities and lists, checked with generated ones.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use liqo_byte_mutations::mutated_text;
use liqo_quantity::{Notation, Quantity, ResourceArgument, ResourceList, Unit, unit_of};
use proptest::prelude::*;

/// The largest magnitude in nano-units: about 1.7e29 units.
const MAX_NANOS: i128 = i128::MAX / 1_000_000_000 * 1_000_000_000;

fn formats() -> impl Strategy<Value = Notation> {
    prop_oneof![
        Just(Notation::DecimalSi),
        Just(Notation::BinarySi),
        Just(Notation::DecimalExponent)
    ]
}

/// Amounts of every size within the given magnitude, many of them round.
fn nanos(magnitude: i128) -> impl Strategy<Value = i128> {
    let round = (-2000_i128..2000, 0_u32..27).prop_map(|(number, tens)| number * 10_i128.pow(tens));
    let binary =
        (-2000_i128..2000, 0_u32..50).prop_map(|(number, twos)| (number << twos) * 1_000_000_000);
    prop_oneof![
        -magnitude..=magnitude,
        round,
        binary,
        -2_000_000_000_i128..2_000_000_000
    ]
    .prop_map(move |nanos| nanos.clamp(-magnitude, magnitude))
}

fn quantities_within(magnitude: i128) -> impl Strategy<Value = Quantity> {
    (nanos(magnitude), formats()).prop_map(|(nanos, format)| Quantity::from_nanos(nanos, format))
}

fn quantities() -> impl Strategy<Value = Quantity> {
    quantities_within(MAX_NANOS)
}

/// Whether the parser reads the printed text without a cap.
fn is_printable(quantity: Quantity) -> bool {
    quantity.format() != Notation::BinarySi
        || quantity.nanos().abs() <= i128::from(i64::MAX) * 1_000_000_000
}

fn names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "cpu",
        "memory",
        "pods",
        "hugepages-2Mi",
        "nvidia.com/gpu",
    ])
}

fn lists() -> impl Strategy<Value = ResourceList> {
    let amount = (0_i128..1 << 80, formats())
        .prop_map(|(nanos, format)| Quantity::from_nanos(nanos, format));
    prop::collection::vec((names(), amount), 0..6).prop_map(|pairs| pairs.into_iter().collect())
}

fn hash(quantity: Quantity) -> u64 {
    let mut hasher = DefaultHasher::new();
    quantity.hash(&mut hasher);
    hasher.finish()
}

proptest! {
    // A failure prints its smallest input. Important cases become tests of their own.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_quantity_is_parsed_exactly(quantity in quantities().prop_filter("capped", |q| is_printable(*q))) {
        let text = quantity.to_string();
        let read: Quantity = text.parse().unwrap();
        prop_assert_eq!(read.nanos(), quantity.nanos(), "{}", &text);
        // A binary amount without a binary suffix is read as a decimal one, as in Kubernetes.
        if quantity.format() != Notation::BinarySi || text.ends_with('i') {
            prop_assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn the_printed_text_has_no_fraction_and_the_largest_suffix(quantity in quantities()) {
        let text = quantity.to_string();
        prop_assert!(!text.contains('.') && !text.starts_with('+'), "{}", text);
        prop_assert!(quantity.format() == Notation::BinarySi || !text.ends_with("000"), "{}", text);
    }

    #[test]
    fn json_is_the_printed_text(quantity in quantities().prop_filter("capped", |q| is_printable(*q))) {
        let json = serde_json::to_string(&quantity).unwrap();
        prop_assert_eq!(&json, &format!("\"{quantity}\""));
        prop_assert_eq!(serde_json::from_str::<Quantity>(&json).unwrap(), quantity);
    }

    #[test]
    fn any_number_like_text_is_parsed_or_refused_without_a_panic(text in "[-+]?[0-9.]{0,60}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,22}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert!(quantity.nanos().abs() <= MAX_NANOS);
            prop_assert_eq!(quantity.is_negative(), text.starts_with('-') && !quantity.is_zero());
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = text.parse::<Quantity>();
        let _ = text.parse::<ResourceArgument>();
        let _ = unit_of(&text);
    }

    #[test]
    fn a_mutated_quantity_is_read_within_bounds_or_refused_in_few_words(text in mutated_text(quantities().prop_map(|q| q.to_string()))) {
        match text.parse::<Quantity>() {
            Ok(read) => {
                prop_assert!(read.nanos().abs() <= MAX_NANOS);
                prop_assert_eq!(read.to_string().parse::<Quantity>(), Ok(read));
            }
            Err(error) => prop_assert!(error.to_string().len() < 2000),
        }
    }

    #[test]
    fn mutated_json_of_a_list_is_refused_or_read_within_bounds(text in mutated_text(lists().prop_map(|list| serde_json::to_string(&list).unwrap()))) {
        if let Ok(list) = serde_json::from_str::<ResourceList>(&text) {
            prop_assert!(list.iter().all(|(_, amount)| amount.nanos().abs() <= MAX_NANOS));
            let _ = (unit_of(&text), list.clone() + &list, list.to_string());
        }
    }

    #[test]
    fn order_equality_and_hash_depend_only_on_the_number(left in quantities(), right in quantities(), format in formats()) {
        prop_assert_eq!(left.cmp(&right), left.nanos().cmp(&right.nanos()));
        let same = Quantity::from_nanos(left.nanos(), format);
        prop_assert_eq!(same, left);
        prop_assert_eq!(hash(same), hash(left));
    }

    #[test]
    fn sums_and_differences_are_exact(left in quantities_within(MAX_NANOS / 2), right in quantities_within(MAX_NANOS / 2)) {
        prop_assert_eq!((left + right).nanos(), left.nanos() + right.nanos());
        prop_assert_eq!((left - right).nanos(), left.nanos() - right.nanos());
        prop_assert_eq!(left + right - right, left);
        prop_assert_eq!(-(left - right), right - left);
    }

    #[test]
    fn sums_beyond_the_range_saturate(left in quantities(), right in quantities()) {
        let exact = left.nanos().checked_add(right.nanos());
        let want = exact.map_or(if right.is_negative() { -MAX_NANOS } else { MAX_NANOS }, |nanos| nanos.clamp(-MAX_NANOS, MAX_NANOS));
        prop_assert_eq!((left + right).nanos(), want);
    }

    #[test]
    fn a_share_is_rounded_down_to_its_unit_and_keeps_the_last_whole_one(
        quantity in quantities_within(1 << 110), percent in 0_u32..=300, name in names(),
    ) {
        let unit = unit_of(name);
        let share = quantity.percentage(percent, unit);
        prop_assert_eq!(share.round_down(unit), share);
        let exact = quantity.nanos().max(0) * i128::from(percent);
        let one = match unit {
            Unit::Milli => 1_000_000,
            Unit::Bytes | Unit::Whole => 1_000_000_000,
            Unit::Pages(bytes) => i128::from(bytes) * 1_000_000_000,
        };
        let whole = matches!(unit, Unit::Whole | Unit::Pages(_));
        if whole && percent > 0 && quantity.nanos() >= one && exact < one * 100 {
            prop_assert_eq!(share.nanos(), one);
        } else {
            prop_assert!(share.nanos() * 100 <= exact && exact < (share.nanos() + one) * 100);
        }
        if percent <= 100 {
            prop_assert!(share <= quantity.max(Quantity::ZERO));
        }
    }

    #[test]
    fn a_difference_counts_if_it_exceeds_the_percentage(
        before in quantities_within(1 << 100), after in quantities_within(1 << 100), percent in 0_u32..1000,
    ) {
        let differs = (after.nanos() - before.nanos()).abs() * 100 > before.nanos().abs() * i128::from(percent);
        prop_assert_eq!(before.differs_by_more_than(after, percent), differs);
    }

    #[test]
    fn a_list_that_fits_can_be_subtracted_and_added_again(have in lists(), want in lists()) {
        match have.checked_sub(&want) {
            Ok(rest) => {
                prop_assert!(want.fits_in(&have).is_ok());
                for (name, amount) in &have {
                    prop_assert_eq!(rest.get(name) + want.get(name), amount);
                }
            }
            Err(short) => {
                prop_assert!(!short.is_empty());
                for shortage in short {
                    prop_assert_eq!(have.get(&shortage.resource) + shortage.missing_amount(), want.get(&shortage.resource));
                    prop_assert!(shortage.missing_amount() > Quantity::ZERO);
                }
            }
        }
        let rest = have.saturating_sub(&want);
        prop_assert!(rest.iter().all(|(_, amount)| !amount.is_negative()));
    }

    #[test]
    fn a_sum_contains_both_of_its_parts(left in lists(), right in lists()) {
        let sum = left.clone() + &right;
        prop_assert!(left.fits_in(&sum).is_ok() && right.fits_in(&sum).is_ok());
        prop_assert_eq!(sum.checked_sub(&left).unwrap().checked_sub(&right).map(|rest| rest.is_zero()), Ok(true));
        prop_assert!(left.min(&right).fits_in(&left).is_ok() && left.fits_in(&left.max(&right)).is_ok());
    }

    #[test]
    fn a_list_never_differs_from_itself_and_differences_are_symmetric(left in lists(), right in lists(), percent in 0_u32..200) {
        prop_assert!(!left.differs_by_more_than(&left, percent));
        prop_assert_eq!(left.differs_by_more_than(&right, 0), right.differs_by_more_than(&left, 0));
    }
}
