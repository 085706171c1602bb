//! `liqoctl doctor`: checks each step from the API server to a pod in another cluster, and prints
//! what works, what does not, and what to do. It changes nothing.
//!
//! ```text
//!   inspect ──▶ Facts ──▶ decide (pure): one file for each area ──▶ Findings ──▶ render
//! ```

mod decide;
mod finding;
pub mod invariants;
mod render;
mod snapshot;

use futures::future::join_all;

pub use finding::{Area, Check, Examined, Finding, Report, Summary, Verdict};
pub use render::{mark, render};

use crate::{
    cluster::{Access, Cluster},
    inspect::{self, Facts},
};

/// Advice about the reasons of conditions. `explain` gives the same advice as `doctor`.
pub mod advice {
    use liqo_api::ForeignCluster;

    use super::decide::link_advice;
    pub use super::decide::offloading_advice::{UNPLACED, of_incomplete, of_namespace, of_refusal};

    /// Advice for a link of this peer that does not work; nothing where there is nothing to do.
    pub fn of_link(kind: &str, reason: &str, peer: &ForeignCluster) -> Option<String> {
        link_advice::of(kind, reason, peer).text(peer)
    }
}

/// Checks these clusters, and each pair of them that are peers; and, if wanted, what must hold in
/// all of them together.
pub async fn examine(all: &[Access], with_invariants: bool) -> anyhow::Result<Report> {
    let mut clusters = Vec::new();
    for access in all {
        clusters.push(Cluster::connect(access).await?);
    }
    let facts = join_all(clusters.iter().map(inspect::collect)).await;
    let mut examined: Vec<Examined> = clusters
        .iter()
        .zip(&facts)
        .map(|(cluster, facts)| one(cluster, facts))
        .collect();
    let read: Vec<&Facts> = facts.iter().flatten().collect();
    for (index, first) in read.iter().enumerate() {
        for second in &read[index + 1..] {
            let findings = decide::between(first, second);
            if !findings.is_empty() {
                examined.push(Examined {
                    clusters: vec![first.name.clone(), second.name.clone()],
                    findings,
                });
            }
        }
    }
    if with_invariants {
        let readable: Vec<(&Cluster, &Facts)> = clusters
            .iter()
            .zip(&facts)
            .filter_map(|(cluster, facts)| Some((cluster, facts.as_ref().ok()?)))
            .collect();
        examined.push(snapshot::examine(&readable).await);
    }
    Ok(Report::new(examined))
}

fn one(cluster: &Cluster, facts: &Result<Facts, String>) -> Examined {
    match facts {
        Ok(facts) => Examined {
            clusters: vec![facts.name.clone()],
            findings: decide::decide(facts),
        },
        Err(why) => {
            let advice = "check that the cluster is up, and that the kubeconfig belongs to it (`kubectl cluster-info`); nothing else was checked";
            Examined {
                clusters: vec![cluster.context.clone()],
                findings: vec![Finding::fail(Check::ApiServer, why.clone(), advice)],
            }
        }
    }
}
