//! What resources cost: the prices that apply now, and the policy from which a provider computes
//! them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use liqo_quantity::Rates;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{labels, schema};

/// Maximum length of a label's value, and of the part of its key after the slash.
const MAX_LABEL_LEN: usize = 63;
/// Minutes in a day.
pub const MINUTES_PER_DAY: u16 = 24 * 60;

/// The prices that apply now.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PriceList {
    /// The currency, for example `EUR` or `credits`: letters, digits and dashes, at most 12,
    /// beginning with a letter. Prices in different currencies are never compared.
    #[schemars(regex(pattern = r"^[A-Za-z][A-Za-z0-9-]{0,11}$"))]
    pub currency: String,
    /// The price of each resource for one hour: of one core of `cpu`; of one GiB of `memory`,
    /// `storage`, `ephemeral-storage` and `hugepages-*`; of one piece of everything else. A
    /// resource without a rate costs nothing. At most 64 rates, none negative.
    #[serde(default)]
    pub rates: Rates,
}

impl PriceList {
    /// Why nobody should use this list, if it came from another cluster or a plugin.
    pub fn defect(&self) -> Option<String> {
        self.rates
            .check_prices(&self.currency)
            .err()
            .map(|error| error.to_string())
    }

    /// The labels of a Node with these prices: the currency, and the price of each resource whose
    /// name can be part of a label. In these names `_` replaces `/`.
    pub fn node_labels(&self) -> BTreeMap<String, String> {
        let rates = self
            .rates
            .iter()
            .map(|(name, rate)| (name.replace('/', "_"), rate.to_string()));
        let valid = rates.filter(|(name, rate)| is_label_text(name) && is_label_text(rate));
        let mut all: BTreeMap<String, String> = valid
            .map(|(name, rate)| (format!("{}/{name}", labels::PRICE_DOMAIN), rate))
            .collect();
        all.insert(labels::PRICE_CURRENCY.to_owned(), self.currency.clone());
        all
    }
}

/// For people: `cpu=0.04, memory=0.005 EUR`.
impl fmt::Display for PriceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.rates, self.currency))
    }
}

fn is_label_text(text: &str) -> bool {
    let edges = [text.bytes().next(), text.bytes().last()];
    text.len() <= MAX_LABEL_LEN
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && edges
            .iter()
            .all(|byte| byte.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

/// The prices of what this cluster lends, and how they change. If a resource plugin gives rates and
/// a currency, these replace the ones here.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PricePolicy {
    /// The currency, for example `EUR` or `credits`.
    #[schemars(regex(pattern = r"^[A-Za-z][A-Za-z0-9-]{0,11}$"))]
    pub currency: String,
    /// The price of each resource for one hour: of one core of `cpu`; of one GiB of `memory`,
    /// `storage`, `ephemeral-storage` and `hugepages-*`; of one piece of everything else. A
    /// resource without a rate costs nothing.
    #[serde(default)]
    #[schemars(schema_with = "schema::some_rates")]
    pub rates: Rates,
    /// Rates of single pools, by the name of the pool. They replace those of the same resources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::rates_of_pools")]
    pub pools: BTreeMap<String, Rates>,
    /// Percentages for times of the week. The first entry that matches applies; if none does, 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub schedule: Vec<ScheduleEntry>,
    /// Minutes by which the clock of the schedule is ahead of UTC: 60 in Rome in winter. It does
    /// not follow summer time.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = -720, max = 840))]
    pub utc_offset_minutes: i16,
    /// Percentages for how much of a pool is in use. The step with the highest `above` below the
    /// present utilization applies; if none does, 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub utilization: Vec<UtilizationStep>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(minutes: &i16) -> bool {
    *minutes == 0
}

/// A time of the week with its own prices.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleEntry {
    /// The days on which it begins. If empty, every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// When it begins, `HH:MM`.
    pub from: TimeOfDay,
    /// When it ends, `HH:MM`. If this is not after `from`, it ends on the next day.
    pub to: TimeOfDay,
    /// Percentage of each rate that applies then.
    #[schemars(range(max = 10_000))]
    pub percentage: u32,
}

/// Prices while much of a pool is in use.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UtilizationStep {
    /// Percentage of the pool in use above which the step applies. It ends when the utilization is
    /// 5 points below.
    #[schemars(range(max = 99))]
    pub above: u8,
    /// Percentage of each rate that applies then.
    #[schemars(range(max = 10_000))]
    pub percentage: u32,
}

/// A day of the week.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
#[allow(missing_docs, reason = "the days of the week")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Day {
    /// All days, from Monday.
    pub const ALL: [Self; 7] = [
        Self::Mon,
        Self::Tue,
        Self::Wed,
        Self::Thu,
        Self::Fri,
        Self::Sat,
        Self::Sun,
    ];
}

/// A time of the day in whole minutes, `HH:MM`, from `00:00` to `23:59`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String", into = "String")]
pub struct TimeOfDay {
    minutes: u16,
}

impl TimeOfDay {
    /// Minutes since midnight.
    pub fn minutes(self) -> u16 {
        self.minutes
    }
}

/// A text is not a time of the day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a time of the day from 00:00 to 23:59")]
pub struct InvalidTimeOfDay(String);

fn two_digits(text: &str) -> Option<u16> {
    let are_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| are_digits && text.len() == 2)
}

impl FromStr for TimeOfDay {
    type Err = InvalidTimeOfDay;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text
            .split_once(':')
            .and_then(|(hours, minutes)| Some((two_digits(hours)?, two_digits(minutes)?)));
        let valid = parsed.filter(|(hours, minutes)| *hours < 24 && *minutes < 60);
        valid
            .map(|(hours, minutes)| Self {
                minutes: hours * 60 + minutes,
            })
            .ok_or_else(|| InvalidTimeOfDay(text.to_owned()))
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = InvalidTimeOfDay;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TimeOfDay> for String {
    fn from(time: TimeOfDay) -> Self {
        time.to_string()
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{:02}:{:02}",
            self.minutes / 60,
            self.minutes % 60
        ))
    }
}

impl JsonSchema for TimeOfDay {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TimeOfDay".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$" })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "JSON literals are written in place"
    )]
    fn prices(currency: &str, rates: serde_json::Value) -> PriceList {
        from_value(json!({ "currency": currency, "rates": rates })).unwrap()
    }

    #[test]
    fn prices_become_labels_of_the_node() {
        let list = prices(
            "EUR",
            json!({ "cpu": "0.04", "nvidia.com/gpu": "1.2", "-": "3", "x".repeat(64): "1", "currency": "7" }),
        );
        let labels: Vec<(String, String)> = list.node_labels().into_iter().collect();
        let expected = [
            ("price.liqo.io/cpu", "0.04"),
            ("price.liqo.io/currency", "EUR"),
            ("price.liqo.io/nvidia.com_gpu", "1.2"),
        ];
        assert_eq!(
            labels,
            expected.map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
        assert!(
            labels.iter().all(|(key, _)| crate::is_own(key)),
            "no offer may set them"
        );
    }

    #[test]
    fn lists_of_others_are_checked() {
        assert_eq!(prices("credits", json!({ "cpu": "0" })).defect(), None);
        for currency in ["", "1x", "EUR ", "a-currency-with-a-long-name", "€"] {
            assert!(
                prices(currency, json!({}))
                    .defect()
                    .unwrap()
                    .contains("currency"),
                "{currency}"
            );
        }
        assert!(
            prices("EUR", json!({ "cpu": "-0.1" }))
                .defect()
                .unwrap()
                .contains("negative: -0.1")
        );
        let many: BTreeMap<String, &str> = (0..65)
            .map(|number| (format!("example.com/r{number}"), "1"))
            .collect();
        assert!(
            prices("EUR", json!(many))
                .defect()
                .unwrap()
                .contains("more than 64")
        );
        assert!(
            prices("EUR", json!({ "x".repeat(318): "1" }))
                .defect()
                .unwrap()
                .contains("overlong")
        );
    }

    #[test]
    fn a_policy_of_prices_is_written_as_it_was_read() {
        let value = json!({
            "currency": "EUR",
            "rates": { "cpu": "0.04" },
            "pools": { "gpu": { "nvidia.com/gpu": "1.2" } },
            "schedule": [{ "days": ["Sat", "Sun"], "from": "00:00", "to": "00:00", "percentage": 50 }],
            "utcOffsetMinutes": 60,
            "utilization": [{ "above": 80, "percentage": 150 }],
        });
        let policy: PricePolicy = from_value(value.clone()).unwrap();
        assert_eq!(to_value(&policy).unwrap(), value);
        assert_eq!(
            from_value::<PricePolicy>(json!({ "currency": "EUR" }))
                .unwrap()
                .utc_offset_minutes,
            0
        );
    }

    #[test]
    fn times_of_the_day_have_hours_and_minutes() {
        assert_eq!("08:30".parse::<TimeOfDay>().unwrap().minutes(), 510);
        assert_eq!("23:59".parse::<TimeOfDay>().unwrap().to_string(), "23:59");
        for text in [
            "24:00", "8:30", "08:60", "08-30", "", ":", "+8:30", "08:30:00",
        ] {
            assert!(text.parse::<TimeOfDay>().is_err(), "{text}");
        }
    }
}
