//! The offers as text for people.

use liqo_api::catalog::Entry;

use crate::{
    broker::abbreviated_names,
    output::{self, strip_control_characters},
};

/// One line for each offer.
pub fn render_catalog_offers(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "No offer meets these criteria.".to_owned();
    }
    let header = [
        "PROVIDER", "POOL", "AMOUNTS", "PRICES", "LATENCY", "HOPS", "ACCEPTED",
    ];
    output::format_table(&header, entries.iter().map(offer_row))
}

fn offer_row(entry: &Entry) -> Vec<String> {
    let accepted = if entry.accepted { "yes" } else { "no" };
    vec![
        strip_control_characters(&entry.name),
        strip_control_characters(&entry.pool),
        strip_control_characters(&entry.capacity.rounded()),
        entry.prices.as_ref().map_or_else(
            || "-".to_owned(),
            |prices| strip_control_characters(&prices.to_string()),
        ),
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
        .map(|id| id.short_id().to_owned())
        .collect();
    if behind.is_empty() {
        entry.hops.to_string()
    } else {
        format!("{} via {}", entry.hops, abbreviated_names(&behind))
    }
}
