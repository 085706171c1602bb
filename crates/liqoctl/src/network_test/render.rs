//! The matrix for people.

use std::collections::BTreeSet;

use super::{Found, From, Matrix, To, WayState};
use crate::{
    output::{self, Paint},
    probes::LeftOut,
};

/// So many failures of one way are told; the others are like them.
const TOLD: usize = 3;

impl From {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
        }
    }
}

impl To {
    /// In a word or two.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Service => "service",
            Self::NodePort => "node port",
        }
    }
}

/// All matrices, and what to do about failures.
pub fn render(found: &Found, paint: Paint) -> String {
    let left = found.left.iter().map(|left| format!("{} {left}", paint.bad("LEFT")));
    found.matrices.iter().map(|matrix| one(matrix, paint)).chain(left).collect::<Vec<_>>().join("\n\n")
}

fn one(matrix: &Matrix, paint: Paint) -> String {
    let mut blocks = vec![table(matrix, paint)];
    let nodes = matrix.clusters.iter().map(|cluster| {
        let on = if cluster.nodes.is_empty() { "nowhere".to_owned() } else { cluster.nodes.join(", ") };
        format!("{} on {on}", cluster.cluster)
    });
    blocks.push(paint.faint(&format!("Pods ran in {}.", nodes.collect::<Vec<_>>().join("; in "))));
    let closed: BTreeSet<&str> =
        matrix.ways.iter().filter(|way| way.state == WayState::Closed).filter_map(|way| way.message.as_deref()).collect();
    blocks.extend(closed.iter().map(|why| paint.faint(&format!("-  {why}."))));
    let missing = matrix.ways.iter().filter(|way| way.state == WayState::Failed);
    let mut text = blocks.join("\n");
    for way in missing {
        let title = format!("{} {} to {} {}", way.from_cluster, way.from.word(), way.to_cluster, way.to.word());
        let failures: Vec<_> = matrix.failures.iter().filter(|failure| failure.way == title).collect();
        let why = way.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
        let mut lines = vec![format!("\n\n{} {}{why}", paint.bad("FAILED"), paint.strong(&title))];
        let mut advised = "";
        for failure in failures.iter().take(TOLD) {
            lines.push(format!("\n  {}: {}", failure.tried, failure.happened));
            if failure.advice != advised {
                lines.push(format!("\n    {} {}", paint.unsure("what to do:"), failure.advice));
                advised = &failure.advice;
            }
        }
        if failures.len() > TOLD {
            lines.push(format!("\n  and {} more (`-o json` shows all)", failures.len() - TOLD));
        }
        text += &lines.concat();
    }
    for cluster in &matrix.clusters {
        for LeftOut { node, why } in &cluster.left_out {
            let title = paint.strong(&format!("node {node} of {} takes no part", cluster.cluster));
            let (failed, advice) = (paint.bad("FAILED"), paint.unsure("what to do:"));
            let told = format!("\n\n{failed} {title}: {why}\n    {advice} `liqoctl doctor` in that cluster says more");
            text += &told;
        }
    }
    text
}

fn table(matrix: &Matrix, paint: Paint) -> String {
    // In the order of the clusters: one way or another may be missing, because a pod alone has nobody near to ask.
    let clusters = || matrix.clusters.iter().map(|cluster| cluster.cluster.as_str());
    let rows: Vec<(&str, From)> = clusters()
        .flat_map(|cluster| [From::Pod, From::Node].map(|from| (cluster, from)))
        .filter(|row| matrix.ways.iter().any(|way| (way.from_cluster.as_str(), way.from) == *row))
        .collect();
    let columns: Vec<(&str, To)> = clusters()
        .flat_map(|cluster| [To::Pod, To::Service, To::NodePort].map(|to| (cluster, to)))
        .filter(|column| matrix.ways.iter().any(|way| (way.to_cluster.as_str(), way.to) == *column))
        .collect();
    let header: Vec<String> = columns.iter().map(|(cluster, to)| format!("{cluster} {}", to.word())).collect();
    let header: Vec<&str> = std::iter::once("FROM \\ TO").chain(header.iter().map(String::as_str)).collect();
    let cell = |row: (&str, From), column: (&str, To)| {
        let way = matrix
            .ways
            .iter()
            .find(|way| (way.from_cluster.as_str(), way.from) == row && (way.to_cluster.as_str(), way.to) == column);
        match way.map(|way| (way.state, way.millis)) {
            Some((WayState::Ok, Some(millis))) => paint.good(&format!("ok {millis:.1} ms")),
            Some((WayState::Ok, None)) => paint.good("ok"),
            Some((WayState::Failed, _)) => paint.bad("FAILED"),
            Some((WayState::Closed, _)) | None => paint.faint("-"),
        }
    };
    let lines = rows.iter().map(|row| {
        let title = format!("{} {}", row.0, row.1.word());
        std::iter::once(title).chain(columns.iter().map(|column| cell(*row, *column))).collect()
    });
    output::table(&header, lines)
}
