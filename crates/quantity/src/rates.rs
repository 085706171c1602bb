//! Prices of resources, and what an amount costs for some time.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::amount_seconds::AmountSeconds;
use crate::resource::is_resource_name;
use crate::{
    MAX_RESOURCE_NAME_LEN, Money, ParseDecimalError, ResourceList, Unit, is_currency, unit_of,
};

/// Maximum number of rates in one list.
pub const MAX_RATES: usize = 64;
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

/// What a resource costs that was used for some time, at a rate per unit and hour.
///
/// **The rounding rule.** One line, that is one resource at one rate, is computed exactly and
/// rounded once, to a billionth of the currency, half away from zero. A total is the sum of rounded
/// lines and is not rounded again.
pub fn cost_of_use(rate: Money, unit: PricedUnit, used: AmountSeconds) -> Money {
    let per_rate = unit.nano_units() * u128::from(SECONDS_PER_HOUR);
    let rounded = rounded_fraction(used.nanos(), rate.nanos().unsigned_abs(), per_rate);
    let amount = Money::from_nanos(i128::try_from(rounded).unwrap_or(i128::MAX));
    if rate.is_negative() { -amount } else { amount }
}

/// `value * times / divisor`, rounded half up. Saturates. `divisor` must be positive and below
/// 2^126.
fn rounded_fraction(value: u128, times: u128, divisor: u128) -> u128 {
    let (whole, part) = (value / divisor, value % divisor);
    let (mut quotient, mut remainder) = (0_u128, 0_u128);
    // The product may need 256 bits. So this goes through the bits of `times`, and divides at each
    // step.
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
    rates
        .iter()
        .map(|(name, rate)| {
            let used = AmountSeconds::from_amount(amounts.get(name), SECONDS_PER_HOUR);
            cost_of_use(rate, priced_unit(name), used)
        })
        .sum()
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

    /// Checks prices in this currency that came from another cluster or a plugin.
    pub fn check_prices(&self, currency: &str) -> Result<(), PricesError> {
        if !is_currency(currency) {
            return Err(PricesError::Currency);
        }
        if self.len() > MAX_RATES {
            return Err(PricesError::TooMany(self.len()));
        }
        if self.names().any(|name| name.len() > MAX_RESOURCE_NAME_LEN) {
            return Err(PricesError::LongName);
        }
        let negative = self.iter().find(|(_, rate)| rate.is_negative());
        negative.map_or(Ok(()), |(resource, rate)| {
            Err(PricesError::Negative {
                resource: resource.to_owned(),
                rate,
            })
        })
    }

    /// `part` ten-thousandths of each rate, rounded to a billionth, half away from zero.
    #[must_use]
    pub fn times_ten_thousandths(&self, part: u32) -> Self {
        self.iter()
            .map(|(name, rate)| (name, rate.times_ten_thousandths(part)))
            .collect()
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
        Self(
            rates
                .into_iter()
                .map(|(name, rate)| (name.into(), rate))
                .collect(),
        )
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
        let all: Vec<String> = self
            .iter()
            .map(|(name, rate)| format!("{name}={rate}"))
            .collect();
        f.pad(
            if all.is_empty() {
                "nothing".to_owned()
            } else {
                all.join(", ")
            }
            .as_str(),
        )
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
                "rule": format!("self.all(name, name.size() <= {MAX_RESOURCE_NAME_LEN})"),
                "message": format!("the name of a resource has at most {MAX_RESOURCE_NAME_LEN} characters"),
            }],
        })
    }
}

/// Why nobody should use prices that came from another cluster or a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PricesError {
    /// The currency is not a [currency](is_currency).
    #[error(
        "the prices have no valid currency: letters, digits and dashes, at most 12, beginning with a letter"
    )]
    Currency,
    /// There are more than [`MAX_RATES`].
    #[error("there are more than {MAX_RATES} prices: {0}")]
    TooMany(usize),
    /// The name of a resource has more than [`MAX_RESOURCE_NAME_LEN`] bytes.
    #[error("there is a price for a resource with an overlong name")]
    LongName,
    /// A rate is negative.
    #[error("the price of {resource} is negative: {rate}")]
    Negative {
        /// The resource.
        resource: String,
        /// The rate given.
        rate: Money,
    },
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
        let (name, rate) = text
            .split_once('=')
            .ok_or_else(|| RateArgumentError::Form(text.to_owned()))?;
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
        arguments
            .into_iter()
            .map(|argument| (argument.name, argument.rate))
            .collect()
    }
}

#[cfg(test)]
mod tests;
