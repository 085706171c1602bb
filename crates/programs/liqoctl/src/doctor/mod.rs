//! `liqoctl doctor`: checks each step from the API server to a pod in another cluster, and prints
//! what works, what does not, and what to do. It changes nothing.
//!
//! ```text
//!   inspect ──▶ Facts ──▶ decide (pure): one file for each area ──▶ Findings ──▶ render
//! ```

mod check;
mod decide;
pub mod invariants;
mod render;
mod snapshot;

use futures::future::join_all;

pub use check::{Area, Check, CheckFinding, DoctorReport, ExaminedClusters, VerdictCounts};
pub use decide::isolation_verdict;
pub use render::{ShownDetails, render_report};

use crate::{
    cluster::{Cluster, ClusterAccess},
    inspect::{self, ClusterFacts},
};

/// Advice about the reasons of conditions. `explain` gives the same advice as `doctor`.
pub mod advice {
    use liqo_api::ForeignCluster;

    use super::decide::link_advice;
    pub use super::decide::offloading_advice::{
        UNPLACED, incomplete_pod_advice, namespace_advice, refused_pod_advice,
    };

    /// Advice for a link of this peer that does not work; nothing where there is nothing to do.
    pub fn advice_for_link(kind: &str, reason: &str, peer: &ForeignCluster) -> Option<String> {
        link_advice::link_advice(kind, reason, peer).text_for_peer(peer)
    }
}

/// Checks these clusters, and each pair of them that are peers; and, if wanted, what must hold in
/// all of them together.
pub async fn examine_clusters(
    all: &[ClusterAccess],
    with_invariants: bool,
) -> anyhow::Result<DoctorReport> {
    let mut clusters = Vec::new();
    for access in all {
        clusters.push(Cluster::connect(access).await?);
    }
    let facts = join_all(clusters.iter().map(inspect::collect)).await;
    let mut examined: Vec<ExaminedClusters> = clusters
        .iter()
        .zip(&facts)
        .map(|(cluster, facts)| examined_cluster(cluster, facts))
        .collect();
    let read: Vec<&ClusterFacts> = facts.iter().flatten().collect();
    for (index, first) in read.iter().enumerate() {
        for second in &read[index + 1..] {
            let findings = decide::check_cluster_pair(first, second);
            if !findings.is_empty() {
                examined.push(ExaminedClusters {
                    clusters: vec![first.name.clone(), second.name.clone()],
                    findings,
                });
            }
        }
    }
    if with_invariants {
        let readable: Vec<(&Cluster, &ClusterFacts)> = clusters
            .iter()
            .zip(&facts)
            .filter_map(|(cluster, facts)| Some((cluster, facts.as_ref().ok()?)))
            .collect();
        examined.push(snapshot::examine_invariants(&readable).await);
    }
    Ok(DoctorReport::new(examined))
}

fn examined_cluster(cluster: &Cluster, facts: &Result<ClusterFacts, String>) -> ExaminedClusters {
    match facts {
        Ok(facts) => ExaminedClusters {
            clusters: vec![facts.name.clone()],
            findings: decide::check_facts(facts),
        },
        Err(why) => {
            let advice = "check that the cluster is up, and that the kubeconfig belongs to it (`kubectl cluster-info`); nothing else was checked";
            ExaminedClusters {
                clusters: vec![cluster.context.clone()],
                findings: vec![CheckFinding::fail(Check::ApiServer, why.clone(), advice)],
            }
        }
    }
}
