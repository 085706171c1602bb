//! Exact amounts of money.

use std::borrow::Cow;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::decimal::{self, DecimalVisitor, ParseDecimalError};

/// Maximum number of digits before the point.
const MAX_DIGITS: usize = 18;
/// The largest amount in billionths: `999999999999999999.999999999`.
const MAX_NANOS: i128 = 1_000_000_000_000_000_000_000_000_000 - 1;

/// An exact amount of some currency: a whole number of billionths. The currency is known from the
/// context.
///
/// The text has at most 18 digits before the point and nine after it: `12`, `0.04`, `-3.5`. The
/// parser refuses anything finer or larger, an exponent, and a plus. Sums saturate at the largest
/// amount that has a text, `999999999999999999.999999999`, and at its negative, so every amount can
/// be printed and parsed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Money {
    nanos: i128,
}

impl Money {
    /// Zero.
    pub const ZERO: Self = Self { nanos: 0 };

    /// A number of billionths. Saturates at the largest amount.
    pub const fn from_nanos(nanos: i128) -> Self {
        let nanos = if nanos > MAX_NANOS { MAX_NANOS } else { nanos };
        Self {
            nanos: if nanos < -MAX_NANOS {
                -MAX_NANOS
            } else {
                nanos
            },
        }
    }

    /// The exact amount in billionths.
    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    /// The text for people: at most two decimals from 1 on, at most four significant digits below
    /// 1, half away from zero. Only zero is `0`. Use it for computed amounts; rates, budgets and
    /// receipts are shown as they were written.
    pub fn rounded(self) -> String {
        let nanos = self.nanos.unsigned_abs();
        let step = if nanos >= decimal::NANOS {
            decimal::NANOS / 100
        } else {
            let zeros = nanos.checked_ilog10().unwrap_or_default();
            10_u128.pow(zeros.saturating_sub(3))
        };
        let rounded = (nanos + step / 2) / step * step;
        decimal::print(rounded, self.is_negative())
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// `percent` per cent of the amount, rounded to billionths, half away from zero. Saturates.
    #[must_use]
    pub fn times_percent(self, percent: u32) -> Self {
        self.times(percent, 100)
    }

    /// `part` ten-thousandths of the amount, rounded to billionths, half away from zero. Saturates.
    /// The product of two percentages is rounded once this way.
    #[must_use]
    pub fn times_ten_thousandths(self, part: u32) -> Self {
        self.times(part, 10_000)
    }

    fn times(self, part: u32, whole: i128) -> Self {
        // The largest amount times the largest part is below 2^123.
        let product = self.nanos * i128::from(part);
        Self::from_nanos((product + whole / 2 * product.signum()) / whole)
    }
}

/// Whether a text can be the name of a currency, such as `EUR` or `credits`: letters, digits and
/// dashes, at most 12, beginning with a letter.
pub fn is_currency(text: &str) -> bool {
    text.len() <= 12
        && text
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl Add for Money {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::from_nanos(self.nanos + other.nanos)
    }
}

impl AddAssign for Money {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Money {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self::from_nanos(self.nanos - other.nanos)
    }
}

/// Always exact, because the range is symmetric.
impl Neg for Money {
    type Output = Self;

    fn neg(self) -> Self {
        Self { nanos: -self.nanos }
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl FromStr for Money {
    type Err = ParseDecimalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, digits) = text
            .strip_prefix('-')
            .map_or((false, text), |digits| (true, digits));
        // At most 18 + 9 digits, so it fits.
        let nanos = i128::try_from(decimal::parse(digits, MAX_DIGITS)?).unwrap_or(MAX_NANOS);
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
        })
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal::print(
            self.nanos.unsigned_abs(),
            self.is_negative(),
        ))
    }
}

/// Always a string.
impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A string or an integer. Other numbers are refused, because a float is not exact.
impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "an amount of money in quotes as in \"0.04\", or an integer";
        deserializer.deserialize_any(DecimalVisitor {
            expecting,
            read: str::parse,
        })
    }
}

/// An integer or a string that matches the grammar. See the schema of [`Quantity`](crate::Quantity)
/// for why there is no `type`.
impl JsonSchema for Money {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Money".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "pattern": r"^-?[0-9]{1,18}(\.[0-9]{1,9})?$" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{from_str, to_string};

    use super::*;

    fn money(text: &str) -> Money {
        text.parse().unwrap()
    }

    #[test]
    fn amounts_are_printed_without_trailing_zeros() {
        for (text, printed) in [
            ("12", "12"),
            ("0.04", "0.04"),
            ("0.040", "0.04"),
            ("12.000", "12"),
            ("-3.5", "-3.5"),
            ("-0", "0"),
            ("007", "7"),
            ("0.000000001", "0.000000001"),
            (
                "999999999999999999.999999999",
                "999999999999999999.999999999",
            ),
        ] {
            assert_eq!(money(text).to_string(), printed, "{text}");
        }
        assert_eq!(money("0.04").nanos(), 40_000_000);
    }

    #[test]
    fn people_read_few_digits_of_an_amount() {
        for (text, shown) in [
            ("0", "0"),
            ("0.04", "0.04"),
            ("0.173242787", "0.1732"),
            ("0.173250000", "0.1733"),
            ("0.000022578", "0.00002258"),
            ("0.000000001", "0.000000001"),
            ("0.000012345", "0.00001235"),
            ("0.99996", "1"),
            ("1.004999999", "1"),
            ("1.005", "1.01"),
            ("799.2", "799.2"),
            ("-0.173242787", "-0.1732"),
            ("-12.345", "-12.35"),
            ("999999999999999999.999999999", "1000000000000000000"),
        ] {
            assert_eq!(money(text).rounded(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_not_exact_is_an_error_and_never_rounded() {
        for text in [
            "", "-", ".", "1.", ".5", "+1", "1e3", "1,5", " 1", "1 ", "1.2.3", "--1", "0x1", "NaN",
            "1k", "٣",
        ] {
            assert_eq!(
                text.parse::<Money>(),
                Err(ParseDecimalError::Form),
                "{text:?}"
            );
        }
        assert_eq!(
            "0.0000000001".parse::<Money>(),
            Err(ParseDecimalError::TooFine)
        );
        assert_eq!(
            "0.1000000000".parse::<Money>(),
            Err(ParseDecimalError::TooFine)
        );
        assert_eq!(
            "1000000000000000000".parse::<Money>(),
            Err(ParseDecimalError::TooLarge { max: 18 })
        );
    }

    #[test]
    fn sums_saturate_at_the_largest_amount_with_a_text() {
        let most = money("999999999999999999.999999999");
        assert_eq!(most + most, most);
        assert_eq!(-most - most, -most);
        assert_eq!(most.times_percent(u32::MAX), most);
        assert_eq!(Money::from_nanos(i128::MAX), most);
        assert_eq!(Money::from_nanos(i128::MIN), -most);
    }

    #[test]
    fn a_percentage_is_rounded_half_away_from_zero() {
        assert_eq!(money("0.04").times_percent(150), money("0.06"));
        assert_eq!(money("0.000000001").times_percent(50), money("0.000000001"));
        assert_eq!(money("0.000000001").times_percent(49), Money::ZERO);
        assert_eq!(
            money("-0.000000001").times_percent(50),
            money("-0.000000001")
        );
        assert_eq!(money("5").times_percent(0), Money::ZERO);
        assert_eq!(money("0.04").times_ten_thousandths(7_500), money("0.03"));
        assert_eq!(
            money("0.000000001").times_ten_thousandths(4_999),
            Money::ZERO
        );
    }

    #[test]
    fn currencies_are_short_words() {
        assert!(
            ["EUR", "credits", "x", "gpu-hours-v2"]
                .into_iter()
                .all(is_currency)
        );
        assert!(
            !["", "1x", "-x", "EUR ", "thirteen-char", "€", "a/b"]
                .into_iter()
                .any(is_currency)
        );
    }

    #[test]
    fn json_has_strings_and_integers_are_read_but_no_floats() {
        for (json, written) in [
            (r#""0.04""#, r#""0.04""#),
            ("3", r#""3""#),
            ("-3", r#""-3""#),
            (r#""-0.5""#, r#""-0.5""#),
        ] {
            assert_eq!(
                to_string(&from_str::<Money>(json).unwrap()).unwrap(),
                written,
                "{json}"
            );
        }
        for json in [
            "0.04",
            "1e3",
            "null",
            "true",
            "[]",
            r#"" 1""#,
            "18446744073709551615",
        ] {
            assert!(from_str::<Money>(json).is_err(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn every_amount_is_read_as_it_was_printed(nanos in -MAX_NANOS..=MAX_NANOS) {
            let amount = Money::from_nanos(nanos);
            prop_assert_eq!(amount.to_string().parse::<Money>(), Ok(amount));
            let json = to_string(&amount).unwrap();
            prop_assert_eq!(from_str::<Money>(&json).unwrap(), amount);
        }

        #[test]
        fn only_zero_is_shown_as_zero(nanos in -MAX_NANOS..=MAX_NANOS, shift in 0..90_u32) {
            let amount = Money::from_nanos(nanos >> shift);
            prop_assert_eq!(amount.rounded() == "0", amount.is_zero());
        }

        #[test]
        fn any_text_is_refused_or_means_one_amount(text in "-?[0-9]{0,20}(\\.[0-9]{0,11})?|[-+.0-9e]{0,8}") {
            if let Ok(amount) = text.parse::<Money>() {
                prop_assert_eq!(amount.to_string().parse::<Money>(), Ok(amount));
            }
        }
    }
}
