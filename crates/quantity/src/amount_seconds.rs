//! Amounts of resources times the seconds of their use: the input of every cost.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Quantity;
use crate::decimal::{self, DecimalVisitor, ParseDecimalError};

/// An amount of a resource times the seconds for which it was used: core-seconds, byte-seconds,
/// piece-seconds.
///
/// It is an exact whole number of billionths of the resource's own unit (core, byte, piece) times a
/// second, in 128 bits. One PiB for ten years is 3.6e32 of them; the largest value, 1e38 - 1, is
/// 280,000 times as much. Sums saturate there. The text is a decimal number of unit-seconds: `5400`
/// is one and a half cores for an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AmountSeconds {
    nanos: u128,
}

impl AmountSeconds {
    /// None.
    pub const ZERO: Self = Self { nanos: 0 };
    /// Digits before the point. 29 digits and nine decimals fit into 128 bits.
    const MAX_DIGITS: usize = 29;
    pub(crate) const MAX_NANOS: u128 = 10_u128.pow(38) - 1;

    /// This amount for so many seconds. A negative amount counts as zero.
    pub fn from_amount(amount: Quantity, seconds: u64) -> Self {
        let nanos = u128::try_from(amount.nanos()).unwrap_or_default();
        Self::from_nanos(nanos.saturating_mul(u128::from(seconds)))
    }

    /// A number of billionths of a unit times a second. Saturates at the largest value.
    pub const fn from_nanos(nanos: u128) -> Self {
        Self {
            nanos: if nanos > Self::MAX_NANOS {
                Self::MAX_NANOS
            } else {
                nanos
            },
        }
    }

    /// The exact value in billionths of a unit times a second.
    pub const fn nanos(self) -> u128 {
        self.nanos
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }
}

impl Add for AmountSeconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::from_nanos(self.nanos.saturating_add(other.nanos))
    }
}

impl AddAssign for AmountSeconds {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for AmountSeconds {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

impl FromStr for AmountSeconds {
    type Err = ParseDecimalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self {
            nanos: decimal::parse(text, Self::MAX_DIGITS)?,
        })
    }
}

impl fmt::Display for AmountSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decimal::print(self.nanos, false))
    }
}

/// Always a string.
impl Serialize for AmountSeconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A string or an integer.
impl<'de> Deserialize<'de> for AmountSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "an amount times seconds in quotes as in \"5400\", or an integer";
        deserializer.deserialize_any(DecimalVisitor {
            expecting,
            read: str::parse,
        })
    }
}

impl JsonSchema for AmountSeconds {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AmountSeconds".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "pattern": r"^[0-9]{1,29}(\.[0-9]{1,9})?$", "minimum": 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{from_str, to_string};

    use super::*;

    fn used(amount: &str, seconds: u64) -> AmountSeconds {
        AmountSeconds::from_amount(amount.parse().unwrap(), seconds)
    }

    #[test]
    fn an_amount_counts_for_each_second() {
        assert_eq!(used("1500m", 3600).to_string(), "5400");
        assert_eq!(used("1m", 1).to_string(), "0.001");
        assert_eq!(used("-1", 1), AmountSeconds::ZERO);
        assert_eq!(
            [used("1", 2), used("500m", 1)]
                .into_iter()
                .sum::<AmountSeconds>()
                .to_string(),
            "2.5"
        );
    }

    #[test]
    fn sums_saturate_at_the_largest_value_with_a_text() {
        let most = used("1e25", u64::MAX);
        assert_eq!(most.nanos(), AmountSeconds::MAX_NANOS);
        assert_eq!(most + used("1", 1), most);
        assert_eq!(most.to_string().parse(), Ok(most));
    }

    #[test]
    fn texts_are_exact_and_have_no_sign() {
        assert_eq!("-1".parse::<AmountSeconds>(), Err(ParseDecimalError::Form));
        assert_eq!(
            "0.0000000001".parse::<AmountSeconds>(),
            Err(ParseDecimalError::TooFine)
        );
        assert_eq!(
            "1".repeat(30).parse::<AmountSeconds>(),
            Err(ParseDecimalError::TooLarge { max: 29 })
        );
        assert_eq!(
            to_string(&from_str::<AmountSeconds>("5400").unwrap()).unwrap(),
            r#""5400""#
        );
        assert!(from_str::<AmountSeconds>("0.5").is_err());
    }

    proptest! {
        #[test]
        fn every_value_is_read_as_it_was_printed(nanos in 0..=AmountSeconds::MAX_NANOS) {
            let used = AmountSeconds::from_nanos(nanos);
            prop_assert_eq!(used.to_string().parse::<AmountSeconds>(), Ok(used));
            prop_assert_eq!(from_str::<AmountSeconds>(&to_string(&used).unwrap()).unwrap(), used);
        }
    }
}
