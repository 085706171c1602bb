//! What pods use under a contract is counted by both sides, to the second, and both sign it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use liqo_tests::{Cluster, Measurement, World, eventually};
use serde_json::{Value, json};

use crate::{
    contracts::{contract_in_force, offers_need_no_contract, pay_at_most},
    pods::pod,
    policies::apply_policy,
};

const NAMESPACE: &str = "metered";
const POLICY: &str = "metered";
/// Number of short pods.
const PODS: usize = 20;
/// The same in a run that measures them.
const MEASURED_PODS: usize = 100;
/// The pods come and go in so many batches. A manager restarts during two of them.
const BATCHES: usize = 4;
const PERIOD_SECONDS: u32 = 60;
/// Both clusters have the clock of this machine.
const CLOCK_TOLERANCE_SECONDS: u32 = 5;
const TIMEOUT: Duration = Duration::from_mins(4);

/// Rome borrows from milan under a contract with short periods. Returns its ID: contracts of other
/// scenarios have longer periods.
async fn under_contract(world: &World) -> Result<String> {
    let (rome, milan) = (&world.rome, &world.milan);
    let tolerance =
        json!({ "spec": { "metering": { "clockToleranceSeconds": CLOCK_TOLERANCE_SECONDS } } })
            .to_string();
    rome.kubectl(&[
        "patch",
        "clusterconfig",
        "liqo",
        "--type",
        "merge",
        "-p",
        &tolerance,
    ])
    .await?;
    let spec = json!({ "priority": 20, "peers": { "clusterIDs": [rome.cluster_id().await?] }, "provide": {
        "percentage": 100,
        // The contract of this scenario is soon over.
        "noticeSeconds": 5,
        "contract": { "meteringPeriodSeconds": PERIOD_SECONDS },
        "prices": { "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.005" } },
    } });
    pay_at_most(
        rome,
        json!({ "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.005" } }),
    )
    .await?;
    apply_policy(milan, POLICY, spec).await?;
    let has_short_periods =
        |contract: &Value| contract["spec"]["terms"]["meteringPeriodSeconds"] == PERIOD_SECONDS;
    let contract = contract_in_force(world, "its periods are short", has_short_periods).await?;
    let id = contract["spec"]["terms"]["contract"]
        .as_str()
        .context("a contract without an ID")?;
    Ok(id.to_owned())
}

/// Whether an entry of a record has a second for certain. One without a second, or with an
/// estimated time, only says that a pod may have run beyond the boundary of a period: if the
/// provider counts nothing there, no receipt comes, and it goes with the next receipt.
fn counts_a_second(record: &Value) -> bool {
    let entries = record["spec"]["entries"].as_str().unwrap_or_default();
    entries.lines().any(|entry| {
        let mut times = entry.split(' ').skip(2);
        let (from, until) = (
            times.next().unwrap_or_default(),
            times.next().unwrap_or_default(),
        );
        from != until && !from.starts_with('~') && !until.starts_with('~')
    })
}

/// The receipts of a contract in a namespace, by name.
async fn receipts(
    cluster: &Cluster,
    namespace: &str,
    contract: &str,
) -> Result<BTreeMap<String, Value>> {
    let all = cluster.items(&["-n", namespace, "receipts"]).await?;
    let all = all
        .into_iter()
        .filter(|receipt| receipt["spec"]["statement"]["contract"] == contract);
    Ok(all
        .map(|one| {
            (
                one["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                one,
            )
        })
        .collect())
}

/// What is left of a contract in a namespace, for a message: the records, and what became of the
/// receipts.
async fn papers(
    cluster: &Cluster,
    namespace: &str,
    contract: &str,
    records: &[Value],
) -> Result<String> {
    let mut lines: Vec<String> = Vec::new();
    for record in records {
        let spec = &record["spec"];
        let count = spec["entries"].as_str().unwrap_or_default().lines().count();
        lines.push(format!(
            "{}: {count} entries, chunks {}",
            spec["period"]["start"], spec["chunks"]
        ));
    }
    for (name, receipt) in receipts(cluster, namespace, contract).await? {
        lines.push(format!("{name}: {}", receipt["status"]));
    }
    Ok(lines.join("\n"))
}

/// Creates short pods in batches, and deletes them, while managers restart.
async fn many_short_pods(rome: &Cluster, milan: &Cluster, number: usize) -> Result<()> {
    let batch = number.div_ceil(BATCHES);
    for (round, first) in (0..number).step_by(batch).enumerate() {
        let names: Vec<String> = (first..number.min(first + batch))
            .map(|n| format!("short-{n}"))
            .collect();
        let all: Vec<String> = names
            .iter()
            .map(|name| pod(NAMESPACE, name, "Always", "sleep 600"))
            .collect();
        rome.apply(&all.join("---\n")).await?;
        match round {
            1 => milan.restart_manager().await?,
            3 => rome.restart_manager().await?,
            _ => {}
        }
        // A pod that is deleted before the provider has it costs nothing.
        rome.wait_for(&["-n", NAMESPACE, "pods", "--all"], "condition=Ready", 120)
            .await?;
        let mut arguments = vec!["-n", NAMESPACE, "delete", "pod", "--wait=false"];
        arguments.extend(names.iter().map(String::as_str));
        rome.kubectl(&arguments).await?;
        rome.wait_for(&["-n", NAMESPACE, "pods", "--all"], "delete", 120)
            .await?;
    }
    Ok(())
}

/// A pod of rome runs at milan under a contract for a few seconds. No receipt of that is written
/// yet.
pub async fn run_for_a_moment(world: &World) -> Result<()> {
    let (rome, name) = (&world.rome, "metered-for-a-moment");
    let policy = ["delete", "peeringpolicy", POLICY, "--ignore-not-found"];
    world.milan.kubectl(&policy).await?;
    under_contract(world).await?;
    rome.offloaded_namespace(name, "Remote").await?;
    rome.apply(&pod(name, "short", "Always", "sleep 600"))
        .await?;
    rome.wait_for(&["-n", name, "pod/short"], "condition=Ready", 60)
        .await?;
    rome.kubectl(&["delete", "namespace", name]).await.map(drop)
}

pub async fn both_sides_count_the_same_seconds_over_restarts_and_sign_receipts(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let contract = under_contract(&world).await?;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    let from = milan.audit_length()?;
    let number = Measurement::MeteredPods.choose(PODS, MEASURED_PODS)?;
    many_short_pods(rome, milan, number).await?;

    let tenant = format!("liqo-tenant-{}", rome.cluster_id().await?);
    let provider = format!("liqo-provider-{}", milan.cluster_id().await?);
    let signed = eventually(
        "both sides signed all receipts, and no record is left",
        TIMEOUT,
        || async {
            let starts = |receipt: &Value| {
                receipt["spec"]["statement"]["period"]["start"]
                    .as_str()
                    .map(str::to_owned)
            };
            let last = receipts(milan, &tenant, &contract)
                .await?
                .values()
                .filter_map(starts)
                .max();
            for (cluster, namespace) in [(milan, &tenant), (rome, &provider)] {
                let mut records = cluster.items(&["-n", namespace, "usagerecords"]).await?;
                records.retain(|record| record["spec"]["contract"] == *contract);
                // After the last receipt, nothing says that none comes.
                records.retain(|record| {
                    counts_a_second(record)
                        || record["spec"]["period"]["start"].as_str() <= last.as_deref()
                });
                if !records.is_empty() {
                    let papers = papers(cluster, namespace, &contract, &records).await?;
                    bail!(
                        "{} has {} usage records:\n{papers}",
                        cluster.name,
                        records.len()
                    );
                }
            }
            let (theirs, ours) = (
                receipts(milan, &tenant, &contract).await?,
                receipts(rome, &provider, &contract).await?,
            );
            for (name, receipt) in &theirs {
                let state = &receipt["status"];
                ensure!(state["phase"] == "Signed", "{name}: {state:#}");
                let copy = ours
                    .get(name)
                    .with_context(|| format!("rome has no copy of {name}"))?;
                ensure!(
                    copy["spec"] == receipt["spec"] && copy["status"] == *state,
                    "the copy of {name} differs: {copy:#}"
                );
            }
            Ok((!theirs.is_empty()).then_some(theirs))
        },
    )
    .await?;
    let charged: u64 = signed
        .values()
        .filter_map(|receipt| receipt["spec"]["statement"]["pods"].as_u64())
        .sum();
    ensure!(
        charged >= number as u64,
        "only {charged} of {number} pods were charged"
    );

    let writes = milan.liqo_writes(from)?;
    let records = writes
        .iter()
        .filter(|write| write.contains(" usagerecords ") && !write.starts_with("delete"))
        .count();
    println!("{records} writes of usage records at the provider for {number} pods");
    // At most one a second: how many that are depends on how fast the pods end. Bursts are counted
    // by the tests of the recorder.
    ensure!(
        records <= 2 * number,
        "{records} writes of usage records for {number} pods: they come in batches"
    );
    let name = signed.keys().next().context("no receipt")?;
    receipts_are_shown_exported_and_verified_without_a_cluster(&world, name).await
}

async fn receipts_are_shown_exported_and_verified_without_a_cluster(
    world: &World,
    name: &str,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let rows: Value = serde_json::from_str(
        &rome
            .liqoctl(&["receipt", "list", "milan", "-o", "json"])
            .await?,
    )?;
    ensure!(
        rows.as_array()
            .is_some_and(|rows| rows.iter().any(|row| row["name"] == name)),
        "{rows:#}"
    );
    let shown = rome.liqoctl(&["receipt", "show", name]).await?;
    ensure!(
        shown.contains("core-hours at 0.04 EUR") && shown.contains("Both signed it"),
        "{shown}"
    );
    let csv = milan
        .liqoctl(&["receipt", "export", "csv", "--signed"])
        .await?;
    ensure!(
        csv.starts_with("receipt,contract,") && csv.contains(name),
        "{csv}"
    );

    let directory = std::env::temp_dir().join(format!("liqo-receipts-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let mut files = Vec::new();
    let tenant = format!("liqo-tenant-{}", rome.cluster_id().await?);
    let provider = format!("liqo-provider-{}", milan.cluster_id().await?);
    for (cluster, namespace) in [(milan, &tenant), (rome, &provider)] {
        let text = cluster
            .kubectl(&["-n", namespace, "get", "receipts", name, "-o", "yaml"])
            .await?;
        let file = directory.join(format!("{}.yaml", cluster.name));
        std::fs::write(&file, text)?;
        files.push(file.display().to_string());
    }
    let verified = rome
        .liqoctl(&["receipt", "verify", &files[0], &files[1]])
        .await?;
    ensure!(
        verified.matches("provider and consumer signed it").count() == 2,
        "{verified}"
    );
    let changed = std::fs::read_to_string(&files[1])?.replace("currency: EUR", "currency: USD");
    std::fs::write(&files[1], changed)?;
    let refused = rome.try_liqoctl(&["receipt", "verify", &files[1]]).await?;
    ensure!(
        !refused.success && refused.stderr.contains("spec.statement differs"),
        "{refused:?}"
    );
    std::fs::remove_dir_all(&directory)?;

    rome.end_namespace(NAMESPACE).await?;
    milan.kubectl(&["delete", "peeringpolicy", POLICY]).await?;
    // Whoever asks for a contract next must not meet this one.
    offers_need_no_contract(world).await?;
    pay_at_most(rome, Value::Null).await?;
    let back = json!({ "spec": { "metering": null } }).to_string();
    rome.kubectl(&[
        "patch",
        "clusterconfig",
        "liqo",
        "--type",
        "merge",
        "-p",
        &back,
    ])
    .await
    .map(drop)
}
