//! Describes prices in plain sentences.

use liqo_api::{Budget, BudgetPeriod, PriceList, PricePolicy, Rates, ScheduleEntry, WhenSpent};
use liqo_quantity::{ResourceArgument, priced_unit};

/// The prices of a policy: field and text of each sentence.
pub fn price_sentences(prices: &PricePolicy, has_plugin: bool) -> Vec<(&'static str, String)> {
    let currency = &prices.currency;
    let mut all = vec![(
        "provide.prices.rates",
        rates_in_words(&prices.rates, currency),
    )];
    if has_plugin {
        all[0].1.push_str(", unless the plugin says what they cost");
    }
    for (pool, rates) in &prices.pools {
        all.push((
            "provide.prices.pools",
            format!("in pool {pool}, {}", rates_in_words(rates, currency)),
        ));
    }
    for entry in &prices.schedule {
        all.push((
            "provide.prices.schedule",
            schedule_in_words(entry, prices.utc_offset_minutes),
        ));
    }
    let mut steps: Vec<_> = prices.utilization.iter().collect();
    steps.sort_by_key(|step| step.above);
    for step in steps {
        let text = format!(
            "{} percent of that while more than {} percent of a pool is in use",
            step.percentage, step.above
        );
        all.push(("provide.prices.utilization", text));
    }
    let names = prices
        .rates
        .names()
        .chain(prices.pools.values().flat_map(Rates::names));
    let unknown: Vec<&str> = names
        .filter(|name| ResourceArgument::new(name, "0").is_err())
        .collect();
    if !unknown.is_empty() {
        all.push((
            "provide.prices.rates",
            format!("no pod can request {}: is it misspelt?", unknown.join(", ")),
        ));
    }
    all
}

/// The highest prices that are accepted.
pub fn price_limits_in_words(limits: &PriceList) -> String {
    if limits.rates.is_empty() {
        return format!(
            "only prices in {} are accepted; other offers wait",
            limits.currency
        );
    }
    let each: Vec<String> = limits
        .rates
        .iter()
        .map(|(name, rate)| format!("{rate} for {}", unit_in_words(name)))
        .collect();
    format!(
        "at most {} ({} per hour) is accepted; other offers wait",
        each.join(", "),
        limits.currency
    )
}

/// The amount that may be spent.
pub fn budget_in_words(budget: &Budget) -> String {
    let period = match budget.period {
        BudgetPeriod::Day => "day",
        BudgetPeriod::Month => "month",
    };
    let pods = match budget.when_spent {
        WhenSpent::Keep => "what runs goes on",
        WhenSpent::MoveHome => "what runs moves home",
    };
    format!(
        "all peers of the policy together may cost {} {} for each {period} (UTC); then no new pods go there, and {pods}",
        budget.amount, budget.currency
    )
}

/// `a core of cpu costs 0.04 EUR per hour`.
fn rates_in_words(rates: &Rates, currency: &str) -> String {
    let each: Vec<String> = rates
        .iter()
        .map(|(name, rate)| format!("{} costs {rate} {currency} per hour", unit_in_words(name)))
        .collect();
    if each.is_empty() {
        "nothing costs anything".to_owned()
    } else {
        each.join(", ")
    }
}

fn unit_in_words(name: &str) -> String {
    format!("a {} of {name}", priced_unit(name))
}

fn schedule_in_words(entry: &ScheduleEntry, offset: i16) -> String {
    let days: Vec<String> = entry.days.iter().map(|day| format!("{day:?}")).collect();
    let days = if days.is_empty() {
        "every day".to_owned()
    } else {
        format!("on {}", days.join(", "))
    };
    let next_day = if entry.to <= entry.from {
        " of the next day"
    } else {
        ""
    };
    let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs());
    let zone = if offset == 0 {
        "UTC".to_owned()
    } else {
        format!("UTC{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    };
    format!(
        "{} percent of that {days} from {} to {}{next_day} ({zone})",
        entry.percentage, entry.from, entry.to
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn prices_are_said_with_their_units() {
        let prices: PricePolicy = from_value(json!({
            "currency": "EUR",
            "rates": { "cpu": "0.04", "memory": "0.005", "gpu": "1" },
            "pools": { "gold": { "nvidia.com/gpu": "1.2" } },
            "schedule": [
                { "days": ["Sat", "Sun"], "from": "00:00", "to": "00:00", "percentage": 50 },
                { "from": "08:00", "to": "18:00", "percentage": 120 },
            ],
            "utcOffsetMinutes": -210,
            "utilization": [{ "above": 80, "percentage": 200 }, { "above": 50, "percentage": 150 }],
        }))
        .unwrap();
        let texts: Vec<String> = price_sentences(&prices, true)
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        assert_eq!(
            texts,
            [
                "a core of cpu costs 0.04 EUR per hour, a piece of gpu costs 1 EUR per hour, a GiB of memory costs 0.005 EUR per hour, unless the plugin says what they cost",
                "in pool gold, a piece of nvidia.com/gpu costs 1.2 EUR per hour",
                "50 percent of that on Sat, Sun from 00:00 to 00:00 of the next day (UTC-03:30)",
                "120 percent of that every day from 08:00 to 18:00 (UTC-03:30)",
                "150 percent of that while more than 50 percent of a pool is in use",
                "200 percent of that while more than 80 percent of a pool is in use",
                "no pod can request gpu: is it misspelt?",
            ]
        );
    }

    #[test]
    fn limits_are_said_with_their_units() {
        let limits = |rates| {
            price_limits_in_words(
                &from_value(json!({ "currency": "EUR", "rates": rates })).unwrap(),
            )
        };
        assert_eq!(
            limits(json!({ "cpu": "0.05", "memory": "0.01" })),
            "at most 0.05 for a core of cpu, 0.01 for a GiB of memory (EUR per hour) is accepted; other offers wait"
        );
        assert_eq!(
            limits(json!({})),
            "only prices in EUR are accepted; other offers wait"
        );
    }
}
