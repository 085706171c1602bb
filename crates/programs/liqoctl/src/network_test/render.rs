//! The matrix for people.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{AskerKind, PathResult, PathState, TargetKind, TestMatrix, TestResult};
use crate::{
    finding::{FindingLook, finding_branch},
    output::{self, Paint},
    probes::ExcludedNode,
};

/// Failures of one path that are shown; the others are similar.
const MAX_SHOWN: usize = 3;

impl AskerKind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Node => "node",
        }
    }
}

impl TargetKind {
    /// As one or two words.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Service => "service",
            Self::NodePort => "node port",
        }
    }
}

/// All matrices, and advice for failures.
pub fn render_test_result(found: &TestResult, paint: Paint) -> String {
    let left = found
        .left
        .iter()
        .map(|left| format!("{} {left}", paint.bad("LEFT")));
    found
        .matrices
        .iter()
        .map(|matrix| render_matrix(matrix, paint))
        .chain(left)
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn render_matrix(matrix: &TestMatrix, paint: Paint) -> String {
    let mut blocks = vec![matrix_table(matrix, paint)];
    let nodes = matrix.clusters.iter().map(|cluster| {
        let on = if cluster.nodes.is_empty() {
            "nowhere".to_owned()
        } else {
            cluster.nodes.join(", ")
        };
        format!("{} on {on}", cluster.cluster)
    });
    blocks.push(paint.faint(&format!(
        "Pods ran in {}.",
        nodes.collect::<Vec<_>>().join("; in ")
    )));
    let closed: BTreeSet<&str> = matrix
        .paths
        .iter()
        .filter(|path| path.state == PathState::Closed)
        .filter_map(|path| path.message.as_deref())
        .collect();
    blocks.extend(closed.iter().map(|why| paint.faint(&format!("-  {why}."))));
    let missing = matrix
        .paths
        .iter()
        .filter(|path| path.state == PathState::Failed);
    let mut text = blocks.join("\n");
    for path in missing {
        let title = format!(
            "{} {} to {} {}",
            path.from_cluster,
            path.from.word(),
            path.to_cluster,
            path.to.word()
        );
        let failures: Vec<_> = matrix
            .failures
            .iter()
            .filter(|failure| failure.check.path == title)
            .collect();
        let why = path
            .message
            .as_ref()
            .map(|message| format!(": {message}"))
            .unwrap_or_default();
        let mut block = format!(
            "\n\n{} {}{why}\n",
            paint.bad("FAILED"),
            paint.strong(&title)
        );
        let mut advised = None;
        for failure in failures.iter().take(MAX_SHOWN) {
            let mut shown =
                finding_branch(&failure.check.tried, failure, FindingLook::InWords, paint);
            if advised == failure.advice.as_ref() {
                shown.children.clear();
            }
            advised = failure.advice.as_ref();
            shown.draw_list("  ", &mut block);
        }
        if failures.len() > MAX_SHOWN {
            let more = failures.len() - MAX_SHOWN;
            let _ = write!(block, "  and {more} more (`-o json` shows all)");
        }
        text += block.trim_end();
    }
    for cluster in &matrix.clusters {
        for ExcludedNode { node, why } in &cluster.left_out {
            let title = paint.strong(&format!("node {node} of {} takes no part", cluster.cluster));
            let (failed, advice) = (paint.bad("FAILED"), paint.unsure("what to do:"));
            let block = format!(
                "\n\n{failed} {title}: {why}\n    {advice} `liqoctl doctor` in that cluster says more"
            );
            text += &block;
        }
    }
    text
}

fn matrix_table(matrix: &TestMatrix, paint: Paint) -> String {
    // In the order of the clusters. Paths may be missing: a single pod has no neighbour to ask.
    let clusters: Vec<&str> = matrix
        .clusters
        .iter()
        .map(|cluster| cluster.cluster.as_str())
        .collect();
    let rows: Vec<(&str, AskerKind)> = clusters
        .iter()
        .flat_map(|&cluster| [AskerKind::Pod, AskerKind::Node].map(|from| (cluster, from)))
        .filter(|row| {
            matrix
                .paths
                .iter()
                .any(|path| (path.from_cluster.as_str(), path.from) == *row)
        })
        .collect();
    let columns: Vec<(&str, TargetKind)> = clusters
        .iter()
        .flat_map(|&cluster| {
            [TargetKind::Pod, TargetKind::Service, TargetKind::NodePort].map(|to| (cluster, to))
        })
        .filter(|column| {
            matrix
                .paths
                .iter()
                .any(|path| (path.to_cluster.as_str(), path.to) == *column)
        })
        .collect();
    let header: Vec<String> = columns
        .iter()
        .map(|(cluster, to)| format!("{cluster} {}", to.word()))
        .collect();
    let header: Vec<&str> = std::iter::once("FROM \\ TO")
        .chain(header.iter().map(String::as_str))
        .collect();
    let lines = rows.iter().map(|row| {
        let cells = columns.iter().map(|column| {
            let path = matrix.paths.iter().find(|path| {
                (path.from_cluster.as_str(), path.from) == *row
                    && (path.to_cluster.as_str(), path.to) == *column
            });
            path_cell(path, paint)
        });
        std::iter::once(format!("{} {}", row.0, row.1.word()))
            .chain(cells)
            .collect()
    });
    output::format_table(&header, lines)
}

fn path_cell(path: Option<&PathResult>, paint: Paint) -> String {
    match path.map(|path| (path.state, path.millis)) {
        Some((PathState::Ok, Some(millis))) => paint.good(&format!("ok {millis:.1} ms")),
        Some((PathState::Ok, None)) => paint.good("ok"),
        Some((PathState::Failed, _)) => paint.bad("FAILED"),
        Some((PathState::Closed, _)) | None => paint.faint("-"),
    }
}
