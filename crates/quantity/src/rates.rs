//! Prices of resources, and what an amount costs for some time.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::decimal::{self, DecimalVisitor, ParseDecimalError};
use crate::resource::is_resource_name;
use crate::{Money, Quantity, ResourceList, Unit, unit_of};

/// Maximum number of rates in one list.
pub const MAX_RATES: usize = 64;
/// Maximum length of the name of a resource with a rate.
const MAX_NAME_LEN: usize = 317;
/// A rate is for one unit and this many seconds.
const SECONDS_PER_HOUR: u64 = 3600;
const NANOS: u128 = 1_000_000_000;

/// The amount of a resource to which its rate applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PricedUnit {
    /// One core: cpu.
    Core,
    /// 2^30 bytes: memory, storage, ephemeral-storage, hugepages-*.
    GiB,
    /// One piece: pods, GPUs, everything else.
    Piece,
}

impl PricedUnit {
    const fn nano_units(self) -> u128 {
        match self {
            Self::Core | Self::Piece => NANOS,
            Self::GiB => NANOS << 30,
        }
    }
}

/// For people: `core`, `GiB`, `piece`.
impl fmt::Display for PricedUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Core => "core",
            Self::GiB => "GiB",
            Self::Piece => "piece",
        })
    }
}

/// The unit to which the rate of the resource with this name applies.
pub fn priced_unit(resource: &str) -> PricedUnit {
    match unit_of(resource) {
        Unit::Milli => PricedUnit::Core,
        Unit::Bytes | Unit::Pages(_) => PricedUnit::GiB,
        Unit::Whole => PricedUnit::Piece,
    }
}

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
    const MAX_NANOS: u128 = 10_u128.pow(38) - 1;

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

/// What a resource costs that was used for some time, at a rate per unit and hour.
///
/// **The rounding rule.** One line, that is one resource at one rate, is computed exactly and rounded once, to a billionth of the
/// currency, half away from zero. A total is the sum of rounded lines and is not rounded again.
pub fn cost(rate: Money, unit: PricedUnit, used: AmountSeconds) -> Money {
    let per_rate = unit.nano_units() * u128::from(SECONDS_PER_HOUR);
    let rounded = rounded_fraction(used.nanos, rate.nanos().unsigned_abs(), per_rate);
    let amount = Money::from_nanos(i128::try_from(rounded).unwrap_or(i128::MAX));
    if rate.is_negative() { -amount } else { amount }
}

/// `value * times / divisor`, rounded half up. Saturates. `divisor` must be positive and below 2^126.
fn rounded_fraction(value: u128, times: u128, divisor: u128) -> u128 {
    let (whole, part) = (value / divisor, value % divisor);
    let (mut quotient, mut remainder) = (0_u128, 0_u128);
    // The product may need 256 bits. So this goes through the bits of `times`, and divides at each step.
    for bit in (0..u128::BITS - times.leading_zeros()).rev() {
        quotient = quotient.saturating_mul(2);
        remainder *= 2;
        if (times >> bit) & 1 == 1 {
            quotient = quotient.saturating_add(whole);
            remainder += part;
        }
        quotient = quotient.saturating_add(remainder / divisor);
        remainder %= divisor;
    }
    quotient.saturating_add(u128::from(remainder * 2 >= divisor))
}

/// What these amounts cost for one hour. A resource without a rate costs nothing.
pub fn per_hour(rates: &Rates, amounts: &ResourceList) -> Money {
    let line =
        |(name, rate): (&str, Money)| cost(rate, priced_unit(name), AmountSeconds::of(amounts.get(name), SECONDS_PER_HOUR));
    rates.iter().map(line).sum()
}

/// The price of each resource, by name: an amount of money for one [`PricedUnit`] and one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rates(BTreeMap<String, Money>);

impl Rates {
    /// No rates.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The rate of a resource, if it has one.
    pub fn get(&self, resource: &str) -> Option<Money> {
        self.0.get(resource).copied()
    }

    /// Sets the rate of a resource, and returns the previous one.
    pub fn insert(&mut self, resource: impl Into<String>, rate: Money) -> Option<Money> {
        self.0.insert(resource.into(), rate)
    }

    /// All resources with their rates, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Money)> {
        self.0.iter().map(|(name, rate)| (name.as_str(), *rate))
    }

    /// The names of the resources that have a rate, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The number of rates.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no resource has a rate.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `part` ten-thousandths of each rate, rounded to a billionth, half away from zero.
    #[must_use]
    pub fn times_ten_thousandths(&self, part: u32) -> Self {
        self.iter().map(|(name, rate)| (name, rate.times_ten_thousandths(part))).collect()
    }

    /// These rates; where `other` has a rate for the same resource, that one.
    #[must_use]
    pub fn replaced_by(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }
}

/// If a resource appears several times, the last rate counts.
impl<N: Into<String>> FromIterator<(N, Money)> for Rates {
    fn from_iter<I: IntoIterator<Item = (N, Money)>>(rates: I) -> Self {
        Self(rates.into_iter().map(|(name, rate)| (name.into(), rate)).collect())
    }
}

impl IntoIterator for Rates {
    type Item = (String, Money);
    type IntoIter = btree_map::IntoIter<String, Money>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Prints `cpu=0.04, memory=0.005`, or `nothing` without rates.
impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.iter().map(|(name, rate)| format!("{name}={rate}")).collect();
        f.pad(if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }.as_str())
    }
}

/// A map with at most [`MAX_RATES`] entries, none of them negative.
impl JsonSchema for Rates {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rates".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let rate = json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 28,
            "pattern": r"^[0-9]{1,18}(\.[0-9]{1,9})?$",
            "minimum": 0,
        });
        json_schema!({
            "type": "object",
            "additionalProperties": rate,
            "maxProperties": MAX_RATES,
            "x-kubernetes-validations": [{
                "rule": format!("self.all(name, name.size() <= {MAX_NAME_LEN})"),
                "message": "the name of a resource has at most 317 characters",
            }],
        })
    }
}

/// Why `name=rate` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateArgumentError {
    /// There is no equals sign.
    #[error("{0:?} is not of the form name=rate, as in cpu=0.04")]
    Form(String),
    /// Kubernetes would refuse the name.
    #[error(
        "{0:?} is not the name of a resource: use cpu, memory, pods, storage, ephemeral-storage, hugepages-<size>, or domain/name as in nvidia.com/gpu"
    )]
    Name(String),
    /// The rate can't be parsed.
    #[error("the rate of {name}: {source}")]
    Rate {
        /// The resource.
        name: String,
        /// The reason.
        source: ParseDecimalError,
    },
    /// The rate is negative.
    #[error("the rate of {name} is {rate}; it can't be negative")]
    Negative {
        /// The resource.
        name: String,
        /// The rate given.
        rate: Money,
    },
}

/// A valid rate of one resource, as users type it: `cpu=0.04`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateArgument {
    name: String,
    rate: Money,
}

impl FromStr for RateArgument {
    type Err = RateArgumentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rate) = text.split_once('=').ok_or_else(|| RateArgumentError::Form(text.to_owned()))?;
        if !is_resource_name(name) {
            return Err(RateArgumentError::Name(name.to_owned()));
        }
        let name = name.to_owned();
        match rate.parse::<Money>() {
            Ok(rate) if rate.is_negative() => Err(RateArgumentError::Negative { name, rate }),
            Ok(rate) => Ok(Self { name, rate }),
            Err(source) => Err(RateArgumentError::Rate { name, source }),
        }
    }
}

/// If a resource appears several times, the last argument counts.
impl FromIterator<RateArgument> for Rates {
    fn from_iter<I: IntoIterator<Item = RateArgument>>(arguments: I) -> Self {
        arguments.into_iter().map(|argument| (argument.name, argument.rate)).collect()
    }
}

#[cfg(test)]
mod tests;
