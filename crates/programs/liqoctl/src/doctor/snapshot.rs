//! Reads the objects that [`find_violations`] judges, several times as long as something does not hold.

use std::{sync::Arc, time::Duration};

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use liqo_api::{ForeignCluster, ResourceOffer};

use super::{
    check::{Area, Check, CheckFinding, ExaminedClusters},
    invariants::{ClusterSnapshot, InvariantViolation, find_violations},
};
use crate::{
    cluster::Cluster,
    inspect::{ClusterFacts, ClusterReader, ReadResult},
};

/// Between two looks: a cluster at work violates an invariant for less than that.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);
/// Looks at most. What is seen at each of them does not hold.
const LOOKS: u8 = 3;
/// Objects in one answer.
const PAGE: u32 = 500;

/// Judges all clusters together.
pub async fn examine_invariants(clusters: &[(&Cluster, &ClusterFacts)]) -> ExaminedClusters {
    let names = clusters
        .iter()
        .map(|(_, facts)| facts.name.clone())
        .collect();
    let findings = match lasting_violations(clusters).await {
        Ok(found) => findings_from_violations(&found, clusters.len()),
        Err(why) => invariant_checks()
            .map(|check| CheckFinding::unknown(check, why.clone()))
            .collect(),
    };
    ExaminedClusters {
        clusters: names,
        findings,
    }
}

/// The violations that exist at each of several looks.
async fn lasting_violations(
    clusters: &[(&Cluster, &ClusterFacts)],
) -> ReadResult<Vec<InvariantViolation>> {
    let mut found = current_violations(clusters).await?;
    for _ in 1..LOOKS {
        if found.is_empty() {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let again = current_violations(clusters).await?;
        found.retain(|one| {
            again
                .iter()
                .any(|other| (one.check, &one.about) == (other.check, &other.about))
        });
    }
    Ok(found)
}

async fn current_violations(
    clusters: &[(&Cluster, &ClusterFacts)],
) -> ReadResult<Vec<InvariantViolation>> {
    let snapshots = try_join_all(
        clusters
            .iter()
            .map(|(cluster, facts)| take_snapshot(cluster, facts)),
    )
    .await?;
    Ok(find_violations(&snapshots))
}

async fn take_snapshot(cluster: &Cluster, facts: &ClusterFacts) -> ReadResult<ClusterSnapshot> {
    let id = facts.liqo.id().ok_or_else(|| {
        format!(
            "Liqo is not installed in {}, or has no identity yet",
            facts.name
        )
    })?;
    let reader = ClusterReader::new(cluster);
    let ahead = facts
        .api_server
        .date
        .map(|date| date - facts.api_server.asked_at)
        .unwrap_or_default();
    let now = Timestamp::now()
        .checked_add(ahead)
        .unwrap_or_else(|_| Timestamp::now());
    let kinds = [
        ApiResource::erase::<Pod>(&()),
        ApiResource::erase::<Node>(&()),
        ApiResource::erase::<Namespace>(&()),
        ApiResource::erase::<Lease>(&()),
        ApiResource::erase::<ForeignCluster>(&()),
        ApiResource::erase::<ResourceOffer>(&()),
    ];
    let lists = try_join_all(kinds.into_iter().map(|kind| list_objects(&reader, kind))).await?;
    Ok(ClusterSnapshot {
        id: id.clone(),
        name: facts.name.clone(),
        now,
        objects: lists.into_iter().collect(),
    })
}

/// The objects of a kind, in pages, with the name of the kind.
async fn list_objects(
    reader: &ClusterReader,
    kind: ApiResource,
) -> ReadResult<(String, Vec<Arc<serde_json::Value>>)> {
    let resource = if kind.group.is_empty() {
        kind.plural.clone()
    } else {
        format!("{}.{}", kind.plural, kind.group)
    };
    let api: Api<DynamicObject> = Api::all_with(reader.client(), &kind);
    let (what, mut objects, mut parameters) = (
        format!("list {resource}"),
        Vec::new(),
        ListParams::default().limit(PAGE),
    );
    loop {
        let page = reader.await_answer(&what, api.list(&parameters)).await?;
        let json = page
            .items
            .into_iter()
            .filter_map(|object| serde_json::to_value(object).ok());
        objects.extend(json.map(Arc::new));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok((resource, objects)),
        }
    }
}

fn invariant_checks() -> impl Iterator<Item = Check> {
    Check::ALL
        .iter()
        .copied()
        .filter(|check| check.area() == Area::Invariants)
}

/// A finding for each invariant that holds, and one for each violation. Some invariants are about
/// two clusters.
fn findings_from_violations(found: &[InvariantViolation], clusters: usize) -> Vec<CheckFinding> {
    invariant_checks()
        .flat_map(|check| findings_of_check(check, found, clusters))
        .collect()
}

fn findings_of_check(
    check: Check,
    found: &[InvariantViolation],
    clusters: usize,
) -> Vec<CheckFinding> {
    let violated: Vec<CheckFinding> = found
        .iter()
        .filter(|one| one.check == check)
        .map(finding_from_violation)
        .collect();
    let of_one = matches!(check, Check::Leases | Check::Promises);
    match (violated.is_empty(), of_one || clusters > 1) {
        (false, _) => violated,
        (true, false) => vec![CheckFinding::skipped(
            check,
            "needs the peers, too: --remote-kubeconfig",
        )],
        (true, true) => vec![CheckFinding::ok(check, "holds")],
    }
}

fn finding_from_violation(violation: &InvariantViolation) -> CheckFinding {
    let InvariantViolation { check, what, .. } = violation;
    match check {
        // A policy may promise more on purpose.
        Check::Promises => CheckFinding::warn(
            *check,
            what,
            "fine with overcommitPercentage, fixed amounts or a plugin; otherwise please report it",
        ),
        Check::Leases => CheckFinding::fail(
            *check,
            what,
            "does whoever renews it run, and reach this API server?",
        ),
        _ => CheckFinding::fail(
            *check,
            what,
            "if it stays, and no other check fails, please report it with the logs of both managers",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::CheckVerdict;

    #[test]
    fn each_violation_is_told_and_each_invariant_that_holds() {
        let found = |check, what: &str| InvariantViolation {
            check,
            about: what.to_owned(),
            what: what.to_owned(),
        };
        let found = [
            found(Check::LocalPods, "a"),
            found(Check::LocalPods, "b"),
            found(Check::Promises, "c"),
        ];
        let findings = findings_from_violations(&found, 2);
        let verdicts: Vec<(Check, CheckVerdict)> = findings
            .iter()
            .map(|finding| (finding.check, finding.verdict))
            .collect();
        let expected = [
            (Check::LocalPods, CheckVerdict::Fail),
            (Check::LocalPods, CheckVerdict::Fail),
            (Check::RemotePods, CheckVerdict::Ok),
            (Check::EndedPeerings, CheckVerdict::Ok),
            (Check::Leases, CheckVerdict::Ok),
            (Check::Promises, CheckVerdict::Warn),
        ];
        assert_eq!(verdicts, expected);
        let alone = super::findings_from_violations(&[], 1)
            .into_iter()
            .map(|finding| finding.verdict);
        assert_eq!(
            alone.collect::<Vec<_>>(),
            [
                CheckVerdict::Skipped,
                CheckVerdict::Skipped,
                CheckVerdict::Skipped,
                CheckVerdict::Ok,
                CheckVerdict::Ok
            ]
        );
    }
}
