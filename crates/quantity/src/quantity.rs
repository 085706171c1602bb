//! The [`Quantity`]: construction, comparison and arithmetic.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// Nano-units in one unit. A nano-unit is the finest step in Kubernetes.
pub(crate) const NANOS: i128 = 1_000_000_000;

/// The largest magnitude, in nano-units: the largest whole unit that fits into 128 bits.
const MAX_NANOS: i128 = i128::MAX / NANOS * NANOS;

/// The notation of a quantity, in text and when it is printed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    /// Powers of ten with a suffix: `1500m`, `12M`.
    #[default]
    DecimalSi,
    /// Powers of 1024 with a suffix: `12Mi`. Small or fractional values are printed as
    /// [`Notation::DecimalSi`].
    BinarySi,
    /// Powers of ten with an exponent: `12e6`.
    DecimalExponent,
}

/// An exact amount of a resource, as in Kubernetes' `resource.Quantity`.
///
/// The value is a whole number of nano-units. The parser rounds anything finer away from zero, so
/// that a tiny request never becomes nothing. Magnitudes beyond about 1.7e29 units saturate, in the
/// parser and in every operation. The parser limits a value with a binary suffix to 2^63-1 units,
/// as Kubernetes does.
///
/// Equality, order and hash depend **only on the numeric value**: `1Gi`, `1024Mi` and `1073741824`
/// are equal. Equal quantities may print differently, so compare values, not texts, to detect a
/// change.
///
/// Differences from the Go implementation:
///
/// - It does not keep the original text: `+1` prints `1` and `1E3` prints `1e3`, so that one value
///   in one notation has one text.
/// - A number needs a digit, as in the published grammar: `Ki`, `-` and `.` are refused. Go reads
///   them as zero.
/// - `1000E` prints `1000E` (Go prints `1`), and exponents beyond 32 bits saturate instead of
///   wrapping around.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    pub(crate) nanos: i128,
    pub(crate) format: Notation,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Notation::DecimalSi,
    };

    /// A number of whole units, for instance cores, pods or GPUs.
    pub const fn from_units(units: i64) -> Self {
        // An i64 times a billion always fits into 128 bits.
        Self {
            nanos: units as i128 * NANOS,
            format: Notation::DecimalSi,
        }
    }

    /// A number of thousandths of a unit, for instance milli-cores.
    pub const fn from_millis(millis: i64) -> Self {
        Self {
            nanos: millis as i128 * (NANOS / 1000),
            format: Notation::DecimalSi,
        }
    }

    /// A number of bytes, printed in powers of 1024.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self {
            nanos: bytes as i128 * NANOS,
            format: Notation::BinarySi,
        }
    }

    /// A number of billionths of a unit. Saturates at the largest magnitude.
    pub fn from_nanos(nanos: i128, format: Notation) -> Self {
        Self {
            nanos: nanos.clamp(-MAX_NANOS, MAX_NANOS),
            format,
        }
    }

    /// The exact value in billionths of a unit.
    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    /// The notation for printing.
    pub const fn format(self) -> Notation {
        self.format
    }

    /// The value in whole units, rounded away from zero. Saturates at the limits of `i64`.
    pub fn value(self) -> i64 {
        self.rounded_to(NANOS)
    }

    /// The value in thousandths of a unit, rounded away from zero. Saturates at the limits of
    /// `i64`.
    pub fn milli_value(self) -> i64 {
        self.rounded_to(NANOS / 1000)
    }

    fn rounded_to(self, step: i128) -> i64 {
        let away = if self.nanos % step == 0 {
            0
        } else {
            self.nanos.signum()
        };
        let rounded = self.nanos / step + away;
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// `self - other`, or zero if that is negative.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        let difference = self - other;
        if difference.is_negative() {
            Self {
                nanos: 0,
                ..difference
            }
        } else {
            difference
        }
    }

    /// `self - other`, or `None` if that is negative.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        let difference = self - other;
        (!difference.is_negative()).then_some(difference)
    }

    /// Whether `other` differs from `self` by more than `percent` per cent of `self`. True for any
    /// change from zero, and for any change at all if `percent` is zero.
    pub fn differs_by_more_than(self, other: Self, percent: u32) -> bool {
        // The share may be rounded down, because the difference is a whole number of nano-units.
        self.nanos.saturating_sub(other.nanos).saturating_abs()
            > percent_of(self.nanos.abs(), percent)
    }
}

/// `amount * percent / 100`, rounded down. Saturates. `amount` must not be negative.
pub(crate) fn percent_of(amount: i128, percent: u32) -> i128 {
    let percent = i128::from(percent);
    // Splits the amount, so that the part that needs rounding stays small.
    (amount / 100)
        .saturating_mul(percent)
        .saturating_add(amount % 100 * percent / 100)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

/// The sum has the notation of the left side, or of the right side if the left is zero, as in
/// Kubernetes.
impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Self::from_nanos(self.nanos.saturating_add(other.nanos), format)
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

/// Always exact, because the range is symmetric.
impl Neg for Quantity {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            nanos: -self.nanos,
            ..self
        }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(quantities: I) -> Self {
        quantities.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unit;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn a_whole_unit_is_never_lost_by_rounding() {
        let cases = [
            (1, 90, 1),
            (1, 1, 1),
            (1, 0, 0),
            (2, 90, 1),
            (8, 50, 4),
            (10, 99, 9),
            (0, 90, 0),
            (3, 150, 4),
        ];
        for (have, percent, want) in cases {
            let share = Quantity::from_units(have).percentage(percent, Unit::Whole);
            assert_eq!(share, Quantity::from_units(want), "{percent}% of {have}");
        }
    }

    #[test]
    fn less_than_one_whole_unit_is_not_rounded_up_to_one() {
        assert_eq!(q("500m").percentage(90, Unit::Whole), Quantity::ZERO);
    }

    #[test]
    fn a_share_of_cpu_is_rounded_down_to_millicores() {
        assert_eq!(q("2").percentage(90, Unit::Milli).to_string(), "1800m");
        assert_eq!(q("999m").percentage(50, Unit::Milli).to_string(), "499m");
        assert_eq!(q("1m").percentage(90, Unit::Milli), Quantity::ZERO);
    }

    #[test]
    fn a_share_of_memory_is_rounded_down_to_bytes() {
        assert_eq!(q("4Gi").percentage(50, Unit::Bytes).to_string(), "2Gi");
        assert_eq!(
            q("4Gi").percentage(90, Unit::Bytes).to_string(),
            "3865470566"
        );
    }

    #[test]
    fn a_share_of_huge_pages_is_a_number_of_pages() {
        let pages = Unit::Pages(2 << 20);
        assert_eq!(q("10Mi").percentage(90, pages).to_string(), "8Mi");
        assert_eq!(q("2Mi").percentage(10, pages).to_string(), "2Mi");
    }

    #[test]
    fn a_negative_amount_has_no_share() {
        assert_eq!(q("-4").percentage(50, Unit::Whole), Quantity::ZERO);
    }

    #[test]
    fn values_are_rounded_away_from_zero_and_saturate() {
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("-1500m").value(), -2);
        assert_eq!(q("1n").milli_value(), 1);
        assert_eq!(q("1e25").value(), i64::MAX);
        assert_eq!(q("-1e25").milli_value(), i64::MIN);
    }

    #[test]
    fn a_sum_takes_the_notation_of_its_first_term_that_is_not_zero() {
        assert_eq!((q("1Gi") + q("1G")).to_string(), "2073741824");
        assert_eq!((q("1Gi") + q("1024Mi")).to_string(), "2Gi");
        assert_eq!((q("0") + q("1Gi")).to_string(), "1Gi");
        assert_eq!((q("0") - q("1Gi")).to_string(), "-1Gi");
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let most = q("1e40");
        assert_eq!(most + most, most);
        assert_eq!(-most - most, -most);
        assert_eq!(most.percentage(u32::MAX, Unit::Bytes), most);
    }

    #[test]
    fn checked_and_saturating_subtraction_never_go_below_zero() {
        assert_eq!(q("1").saturating_sub(q("2")), Quantity::ZERO);
        assert_eq!(q("1").checked_sub(q("1001m")), None);
        assert_eq!(q("1").checked_sub(q("1")), Some(Quantity::ZERO));
    }

    #[test]
    fn a_change_counts_only_beyond_the_percentage() {
        assert!(!q("100").differs_by_more_than(q("105"), 5));
        assert!(q("100").differs_by_more_than(q("105001m"), 5));
        assert!(q("100").differs_by_more_than(q("94"), 5));
        assert!(q("0").differs_by_more_than(q("1n"), 100));
        assert!(q("1").differs_by_more_than(q("1000000001n"), 0));
        assert!(!q("1").differs_by_more_than(q("1000m"), 0));
    }
}
