//! Amounts of resources times the seconds for which they were used.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Quantity;
use crate::decimal::{self, DecimalVisitor, ParseDecimalError};

/// An amount of a resource times the seconds for which it was used: core-seconds, byte-seconds, piece-seconds.
///
/// It is an exact whole number of billionths of the resource's own unit (core, byte, piece) times a second, in 128 bits. One
/// PiB for ten years is 3.6e32 of them; the largest value, 1e38 - 1, is 280,000 times as much. Sums saturate there. The text is a
/// decimal number of unit-seconds: `5400` is one and a half cores for an hour.
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
    pub fn of(amount: Quantity, seconds: u64) -> Self {
        let nanos = u128::try_from(amount.nanos()).unwrap_or_default();
        Self::from_nanos(nanos.saturating_mul(u128::from(seconds)))
    }

    /// A number of billionths of a unit times a second. Saturates at the largest value.
    pub const fn from_nanos(nanos: u128) -> Self {
        Self { nanos: if nanos > Self::MAX_NANOS { Self::MAX_NANOS } else { nanos } }
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
        Ok(Self { nanos: decimal::parse(text, Self::MAX_DIGITS)? })
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
        deserializer.deserialize_any(DecimalVisitor { expecting, read: str::parse })
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
