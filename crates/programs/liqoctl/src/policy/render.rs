//! The explanation as text for people.

use liqo_api::{PriceList, ResourceList};
use liqo_quantity::per_hour;

use super::explain::{
    ConsideredPolicy, OfferOutcome, OfferedPool, PolicyExplanation, ReceivedOffers, format_labels,
};
use crate::{
    output::{Paint, strip_control_characters},
    terminal,
};

pub fn render_policy_explanation(explanation: &PolicyExplanation, paint: Paint) -> String {
    let mut lines = vec![render_head(explanation, paint), String::new()];
    lines.push(paint.strong("Policies, in the order in which Liqo tries them"));
    if explanation.policies.is_empty() {
        lines.push("  there is none".to_owned());
    }
    for policy in &explanation.policies {
        append_considered(policy, paint, &mut lines);
    }
    lines.push(String::new());
    match explanation.policies.iter().find(|policy| policy.holds) {
        None => {
            lines.push("No policy selects this peer: this cluster offers it nothing, and accepts none of its offers.".to_owned());
        }
        Some(holding) => {
            lines.push(paint.strong(&format!("Rules of {}", holding.name)));
            let width = explanation
                .says
                .iter()
                .map(|one| one.field.len())
                .max()
                .unwrap_or_default();
            for one in &explanation.says {
                let field = format!("  {:width$}   ", one.field);
                let text = strip_control_characters(&one.text);
                let text = terminal::hang(&text, field.len());
                lines.push(format!("{}{text}", paint.faint(&field)));
            }
        }
    }
    lines.extend(
        explanation
            .notes
            .iter()
            .map(|note| format!("Note: {}.", strip_control_characters(note))),
    );
    lines.push(String::new());
    append_offer(&explanation.offer, paint, &mut lines);
    if let Some(theirs) = &explanation.received {
        lines.push(String::new());
        append_received(theirs, paint, &mut lines);
    }
    lines.join("\n")
}

fn render_head(explanation: &PolicyExplanation, paint: Paint) -> String {
    let name = explanation.peer.as_deref().or(explanation
        .cluster_id
        .as_ref()
        .map(liqo_api::ClusterId::as_str));
    let mut about = Vec::new();
    if explanation.peer.is_some() {
        about.extend(explanation.cluster_id.as_ref().map(|id| format!("ID {id}")));
    }
    about.push(match explanation.known {
        false => "not known here".to_owned(),
        true if explanation.came_by_itself => "it registered itself".to_owned(),
        true => format!("found: {}", explanation.discovered_by),
    });
    about.push(if explanation.labels.is_empty() {
        "no labels".to_owned()
    } else {
        format!("labels {}", format_labels(&explanation.labels))
    });
    format!(
        "{} {}",
        paint.strong(name.unwrap_or_default()),
        paint.faint(&format!("({})", about.join(", ")))
    )
}

fn append_considered(policy: &ConsideredPolicy, paint: Paint, lines: &mut Vec<String>) {
    let (mark, text) = match (policy.selects, policy.holds) {
        (_, true) => (paint.good("✓"), "selects the peer, and applies"),
        (true, false) => (paint.unsure("·"), "also selects the peer, but comes later"),
        (false, _) => (paint.bad("✗"), "does not select the peer"),
    };
    lines.push(format!(
        "  {mark} {} {}: {text}",
        policy.name,
        paint.faint(&format!("(priority {})", policy.priority))
    ));
    lines.extend(policy.misfits.iter().map(|misfit| {
        format!(
            "      {}: {}",
            misfit.field,
            strip_control_characters(&misfit.text)
        )
    }));
}

fn append_offer(outcome: &OfferOutcome, paint: Paint, lines: &mut Vec<String>) {
    let title = match (outcome.computed, &outcome.asked) {
        (false, _) => "The last offer to it; liqoctl cannot ask the plugin".to_owned(),
        (true, None) if outcome.asks => {
            "The offer to it now; its request cannot be parsed".to_owned()
        }
        (true, None) => "The offer to it now, if it requested everything".to_owned(),
        (true, Some(asked)) if asked.is_empty() => {
            "The offer to it now; it requests everything".to_owned()
        }
        (true, Some(asked)) => format!("The offer to it now; it requests at most {asked}"),
    };
    let nodes = if outcome.asks_for_nodes && outcome.computed {
        ", with one pool for each node"
    } else {
        ""
    };
    lines.push(paint.strong(&format!("{title}{nodes}")));
    for pool in &outcome.pools {
        let cost = pool
            .prices
            .as_ref()
            .map(|prices| format_cost(prices, &pool.resources))
            .unwrap_or_default();
        lines.push(format!(
            "  pool {}: {}{cost}{}",
            pool.name,
            format_resources(&pool.resources),
            describe_change(outcome, pool)
        ));
    }
    if outcome.pools.is_empty() {
        lines.push("  nothing".to_owned());
    }
    if !outcome.message.is_empty() {
        lines.push(format!(
            "  {}",
            paint.faint(&strip_control_characters(&outcome.message))
        ));
    }
    lines.extend(
        outcome
            .other_pools
            .as_ref()
            .map(|why| format!("  {}", paint.faint(&strip_control_characters(why)))),
    );
}

fn append_received(received: &ReceivedOffers, paint: Paint, lines: &mut Vec<String>) {
    lines.push(paint.strong("Its offer to this cluster"));
    for pool in &received.pools {
        let cost = pool
            .prices
            .as_ref()
            .map(|prices| format_cost(prices, &pool.resources))
            .unwrap_or_default();
        let amounts = format_resources(&pool.resources);
        lines.push(format!(
            "  pool {}: {}{} ({:?})",
            strip_control_characters(&pool.name),
            strip_control_characters(&amounts),
            strip_control_characters(&cost),
            pool.phase
        ));
    }
    if received.pools.is_empty() {
        lines.push("  nothing".to_owned());
    }
    lines.extend(
        received
            .message
            .as_ref()
            .map(|message| format!("  {}", paint.faint(&strip_control_characters(message)))),
    );
}

fn format_resources(list: &ResourceList) -> String {
    list.rounded()
}

/// The price of all of it, and of each unit.
fn format_cost(prices: &PriceList, resources: &ResourceList) -> String {
    let PriceList { currency, rates } = prices;
    format!(
        ", for {} {currency} per hour ({rates})",
        per_hour(rates, resources).rounded()
    )
}

/// The difference from the current offer.
fn describe_change(outcome: &OfferOutcome, pool: &OfferedPool) -> String {
    let mut text = match &pool.standing {
        Some(standing) if *standing != pool.resources => {
            format!(" (now {})", format_resources(standing))
        }
        None if outcome.asks && outcome.computed => " (is being written)".to_owned(),
        _ => String::new(),
    };
    if let Some(at) = &pool.withdrawal_timestamp {
        text = format!("{text}; withdrawn, ends at {at}");
    }
    if let Some(at) = &pool.reclaim_timestamp {
        text = format!("{text}; from {at} on, this cluster ends pods beyond the offer");
    }
    if let Some(at) = &pool.drain_timestamp {
        text = format!(
            "{text}; from {at} on, this cluster ends pods on nodes that the pool does not have any more"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_all_of_it_is_rounded_and_that_of_a_unit_is_not() {
        let prices = PriceList {
            currency: "EUR".to_owned(),
            rates: [("cpu", "0.0400001".parse().unwrap())]
                .into_iter()
                .collect(),
        };
        let resources = [("cpu", "2".parse().unwrap())].into_iter().collect();
        assert_eq!(
            format_cost(&prices, &resources),
            ", for 0.08 EUR per hour (cpu=0.0400001)"
        );
    }
}
