//! The offers as text for people.

use liqo_api::catalog::Entry;

use crate::{
    broker::via,
    output::{self, plain},
};

/// One line for each offer.
pub fn table(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "No offer meets these criteria.".to_owned();
    }
    let header = [
        "PROVIDER", "POOL", "AMOUNTS", "PRICES", "LATENCY", "HOPS", "ACCEPTED",
    ];
    output::table(&header, entries.iter().map(row))
}

fn row(entry: &Entry) -> Vec<String> {
    let accepted = if entry.accepted { "yes" } else { "no" };
    vec![
        plain(&entry.name),
        plain(&entry.pool),
        plain(&entry.capacity.rounded()),
        entry
            .prices
            .as_ref()
            .map_or_else(|| "-".to_owned(), |prices| plain(&prices.to_string())),
        entry
            .latency_microseconds
            .map_or_else(|| "-".to_owned(), latency),
        hops(entry),
        accepted.to_owned(),
    ]
}

/// `12.3 ms`.
fn latency(microseconds: u32) -> String {
    format!("{:.1} ms", f64::from(microseconds) / 1000.0)
}

/// The number of clusters that the offer comes through, and the IDs of those behind the provider:
/// `2 via 7mwcpa`.
fn hops(entry: &Entry) -> String {
    let behind: Vec<String> = entry
        .path
        .iter()
        .skip(1)
        .map(|id| id.short().to_owned())
        .collect();
    if behind.is_empty() {
        entry.hops.to_string()
    } else {
        format!("{} via {}", entry.hops, via(&behind))
    }
}
