//! The explanation as text for people.

use liqo_api::{PriceList, ResourceList};
use liqo_quantity::per_hour;

use super::explain::{Considered, Explanation, Outcome, Pool, Received, pairs};
use crate::output::{Paint, plain};

pub fn render(explanation: &Explanation, paint: Paint) -> String {
    let mut lines = vec![head(explanation, paint), String::new()];
    lines.push(paint.strong("Policies, in the order in which Liqo tries them"));
    if explanation.policies.is_empty() {
        lines.push("  there is none".to_owned());
    }
    for policy in &explanation.policies {
        considered(policy, paint, &mut lines);
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
                let field = format!("{:width$}", one.field);
                lines.push(format!("  {}   {}", paint.faint(&field), plain(&one.text)));
            }
        }
    }
    lines.extend(
        explanation
            .notes
            .iter()
            .map(|note| format!("Note: {}.", plain(note))),
    );
    lines.push(String::new());
    offer(&explanation.offer, paint, &mut lines);
    if let Some(theirs) = &explanation.received {
        lines.push(String::new());
        received(theirs, paint, &mut lines);
    }
    lines.join("\n")
}

fn head(explanation: &Explanation, paint: Paint) -> String {
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
        format!("labels {}", pairs(&explanation.labels))
    });
    format!(
        "{} {}",
        paint.strong(name.unwrap_or_default()),
        paint.faint(&format!("({})", about.join(", ")))
    )
}

fn considered(policy: &Considered, paint: Paint, lines: &mut Vec<String>) {
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
    lines.extend(
        policy
            .misfits
            .iter()
            .map(|misfit| format!("      {}: {}", misfit.field, plain(&misfit.text))),
    );
}

fn offer(outcome: &Outcome, paint: Paint, lines: &mut Vec<String>) {
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
            .map(|prices| cost(prices, &pool.resources))
            .unwrap_or_default();
        lines.push(format!(
            "  pool {}: {}{cost}{}",
            pool.name,
            amounts(&pool.resources),
            change(outcome, pool)
        ));
    }
    if outcome.pools.is_empty() {
        lines.push("  nothing".to_owned());
    }
    if !outcome.message.is_empty() {
        lines.push(format!("  {}", paint.faint(&plain(&outcome.message))));
    }
    lines.extend(
        outcome
            .other_pools
            .as_ref()
            .map(|why| format!("  {}", paint.faint(&plain(why)))),
    );
}

fn received(received: &Received, paint: Paint, lines: &mut Vec<String>) {
    lines.push(paint.strong("Its offer to this cluster"));
    for pool in &received.pools {
        let cost = pool
            .prices
            .as_ref()
            .map(|prices| cost(prices, &pool.resources))
            .unwrap_or_default();
        let amounts = amounts(&pool.resources);
        lines.push(format!(
            "  pool {}: {}{} ({:?})",
            plain(&pool.name),
            plain(&amounts),
            plain(&cost),
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
            .map(|message| format!("  {}", paint.faint(&plain(message)))),
    );
}

fn amounts(list: &ResourceList) -> String {
    list.rounded()
}

/// The price of all of it, and of each unit.
fn cost(prices: &PriceList, resources: &ResourceList) -> String {
    let PriceList { currency, rates } = prices;
    format!(
        ", for {} {currency} per hour ({rates})",
        per_hour(rates, resources)
    )
}

/// The difference from the current offer.
fn change(outcome: &Outcome, pool: &Pool) -> String {
    let mut text = match &pool.standing {
        Some(standing) if *standing != pool.resources => format!(" (now {})", amounts(standing)),
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
