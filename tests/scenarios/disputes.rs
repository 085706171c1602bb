//! Whoever counts wrong is named by the receipt, a receipt waits for a consumer that is away, and
//! no second counts twice: not when a price changes, not when a contract is renewed or ends, and
//! not after peering again.
//!
//! ```text
//!   a period        | the next one                    | the one after
//!   price changes   | both cheat about this period    | rome's manager starts: it signs the first receipt,
//!   pods run        | pods end, rome's manager stops  | and disputes the second one at the end
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::ListParams;
use liqo_api::{Contract, Receipt, ReceiptPhase, ReceiptStatus, UsageRecord};
use liqo_tests::{
    Cluster, World,
    docs::{Page, with_names},
    eventually,
};
use serde_json::{Value, json};

use crate::{
    contracts::{contract_in_force, copies, offers_need_no_contract, pay_at_most, tenant},
    pods::pod,
    policies::apply_policy,
};

const NAMESPACE: &str = "disputed";
const POLICY: &str = "disputed";
const PERIOD_SECONDS: i64 = 60;
/// Length of the contract once it has an end. It is renewed when half of that is left.
const CONTRACT_SECONDS: u32 = 60;
/// Both clusters have the clock of this machine.
const CLOCK_TOLERANCE_SECONDS: i64 = 5;
/// A receipt comes up to a period and a minute after what it is about.
const TIMEOUT: Duration = Duration::from_mins(4);

/// One contract, and where both sides keep its records and receipts.
struct Papers<'a> {
    world: &'a World,
    /// Its ID.
    contract: String,
    /// The name of its object.
    name: String,
    tenant: String,
    copies: String,
}

/// By pod and first second: the first second that does not count any more.
type Entries = BTreeMap<(String, i64), i64>;

fn entries(records: &[UsageRecord]) -> Result<Entries> {
    let mut entries = Entries::new();
    for line in records
        .iter()
        .flat_map(|record| record.spec.entries.lines())
    {
        let fields: Vec<&str> = line.split(' ').collect();
        let [uid, _, from, until, ..] = fields[..] else {
            bail!("{line:?} is no entry")
        };
        let second = |text: &str| {
            text.trim_start_matches('~')
                .parse::<i64>()
                .with_context(|| format!("a time of {line:?}"))
        };
        let (key, until) = ((uid.to_owned(), second(from)?), second(until)?);
        entries
            .entry(key)
            .and_modify(|known| *known = until.min(*known))
            .or_insert(until);
    }
    Ok(entries)
}

/// How many seconds a pod counts.
fn seconds_of(entries: &Entries, uid: &str) -> i64 {
    entries
        .iter()
        .filter(|((pod, _), _)| pod == uid)
        .map(|((_, from), until)| until - from)
        .sum()
}

fn now() -> Result<i64> {
    Ok(i64::try_from(
        SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    )?)
}

fn phase(receipt: &Receipt) -> ReceiptPhase {
    receipt
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

fn name_of(receipt: &Receipt) -> &str {
    receipt.metadata.name.as_deref().unwrap_or_default()
}

/// What milan proposes to rome. `end`: whether the contract has one.
async fn propose(world: &World, price: &str, end: bool) -> Result<()> {
    let mut contract = json!({ "meteringPeriodSeconds": PERIOD_SECONDS });
    if end {
        contract["periodSeconds"] = CONTRACT_SECONDS.into();
    }
    let spec = json!({ "priority": 20, "peers": { "clusterIDs": [world.rome.cluster_id().await?] }, "provide": {
        "percentage": 100,
        "noticeSeconds": 5,
        "contract": contract,
        "prices": { "currency": "EUR", "rates": { "cpu": price } },
    } });
    apply_policy(&world.milan, POLICY, spec).await
}

impl<'a> Papers<'a> {
    /// Those of the contract with this price that is in force, unless it has the ID `not`.
    async fn of(world: &'a World, price: &str, not: &str) -> Result<Self> {
        let found = contract_in_force(
            world,
            &format!("a core costs {price}, receipts for each minute"),
            |contract| {
                let terms = &contract["spec"]["terms"];
                let is_ours =
                    terms["meteringPeriodSeconds"] == PERIOD_SECONDS && terms["contract"] != not;
                is_ours && terms["prices"]["default"]["rates"]["cpu"] == price
            },
        )
        .await?;
        let contract = found["spec"]["terms"]["contract"]
            .as_str()
            .context("the contract has no ID")?
            .to_owned();
        let name = found["metadata"]["name"]
            .as_str()
            .context("the contract has no name")?
            .to_owned();
        Ok(Self {
            world,
            contract,
            name,
            tenant: tenant(world).await?,
            copies: copies(world).await?,
        })
    }

    /// Both sides: the cluster, and the namespace with its papers.
    fn sides(&self) -> [(&Cluster, &str); 2] {
        [
            (&self.world.milan, &self.tenant),
            (&self.world.rome, &self.copies),
        ]
    }

    /// The usage records of a period.
    async fn records(
        &self,
        (cluster, namespace): (&Cluster, &str),
        period: i64,
    ) -> Result<Vec<UsageRecord>> {
        let mut all = cluster
            .api::<UsageRecord>(namespace)
            .list(&ListParams::default())
            .await?
            .items;
        all.retain(|record| {
            record.spec.contract == self.contract
                && record.spec.period.start.0.as_second() == period
        });
        Ok(all)
    }

    /// The receipts by the start of their periods.
    async fn receipts(
        &self,
        (cluster, namespace): (&Cluster, &str),
    ) -> Result<BTreeMap<i64, Receipt>> {
        let all = cluster
            .api::<Receipt>(namespace)
            .list(&ListParams::default())
            .await?
            .items;
        let ours = all
            .into_iter()
            .filter(|receipt| receipt.spec.statement.contract == self.contract);
        Ok(ours
            .map(|receipt| (receipt.spec.statement.period.start.0.as_second(), receipt))
            .collect())
    }

    /// The receipt of a period, in the same state at both sides.
    async fn answered(&self, period: i64, wanted: ReceiptPhase) -> Result<Receipt> {
        let [milan, rome] = self.sides();
        eventually(
            &format!("both sides have a receipt that is {wanted:?}"),
            TIMEOUT,
            || async {
                let (mut theirs, mut ours) =
                    (self.receipts(milan).await?, self.receipts(rome).await?);
                let (Some(receipt), Some(copy)) = (theirs.remove(&period), ours.remove(&period))
                else {
                    return Ok(None);
                };
                ensure!(phase(&receipt) == wanted, "{:#?}", receipt.status);
                ensure!(
                    (&copy.spec, &copy.status) == (&receipt.spec, &receipt.status),
                    "the copy differs: {:#?}",
                    copy.status
                );
                Ok(Some(receipt))
            },
        )
        .await
    }

    /// Changes when the entry of a pod ends. Its manager must be stopped.
    ///
    /// A manager that writes and does not hear that it did so writes an entry once more, in another
    /// record. That one counts once.
    async fn change_end(
        &self,
        side: (&Cluster, &str),
        period: i64,
        uid: &str,
        until: i64,
    ) -> Result<()> {
        let mut changed = BTreeSet::new();
        for record in self.records(side, period).await? {
            let name = record
                .metadata
                .name
                .as_deref()
                .context("a record has no name")?;
            ensure!(
                record.spec.chunks.is_none(),
                "{name} of {} was complete before its manager stopped",
                side.0.name
            );
            let mut lines = String::new();
            for line in record.spec.entries.lines() {
                let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
                if fields[0] == uid {
                    fields[3] = until.to_string();
                    changed.insert(fields[2].clone());
                }
                lines = format!("{lines}{}\n", fields.join(" "));
            }
            let patch = json!({ "spec": { "entries": lines } }).to_string();
            side.0
                .kubectl(&[
                    "-n",
                    side.1,
                    "patch",
                    "usagerecords.sharing.liqo.io",
                    name,
                    "--type",
                    "merge",
                    "-p",
                    &patch,
                ])
                .await?;
        }
        ensure!(
            changed.len() == 1,
            "{} has entries of {uid} that begin at {changed:?} in that period",
            side.0.name
        );
        Ok(())
    }
}

/// The UID of a pod of rome.
async fn uid(rome: &Cluster, name: &str) -> Result<String> {
    let found = rome
        .object(&["-n", NAMESPACE, "pod", name])
        .await?
        .with_context(|| format!("there is no pod {name}"))?;
    found["metadata"]["uid"]
        .as_str()
        .map(str::to_owned)
        .context("the pod has no UID")
}

/// Creates pods in rome that run at milan.
async fn run_pods(rome: &Cluster, names: &[&str]) -> Result<()> {
    let all: Vec<String> = names
        .iter()
        .map(|name| {
            pod(
                NAMESPACE,
                name,
                "Always",
                "trap exit TERM; sleep 3600 & wait",
            )
        })
        .collect();
    rome.apply(&all.join("---\n")).await?;
    for name in names {
        rome.wait_for(&["-n", NAMESPACE, "pod", name], "condition=Ready", 120)
            .await?;
    }
    Ok(())
}

/// Waits for the next period, and until some seconds of it are over. Returns its start.
async fn next_period() -> Result<i64> {
    let before = now()?;
    eventually(
        "the next period began some seconds ago",
        Duration::from_secs(150),
        || async {
            let now = now()?;
            let into = now.rem_euclid(PERIOD_SECONDS);
            // Then there is time for what follows in this period.
            Ok((now - into > before && (5..20).contains(&into)).then_some(now - into))
        },
    )
    .await
}

/// The scenario: first a contract, and a price that changes while a pod runs.
pub async fn a_cheat_is_named_an_absent_consumer_signs_later_and_no_second_counts_twice(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    // They must not delay stopping a manager.
    world.ended_namespaces_are_gone().await?;
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
    pay_at_most(
        rome,
        json!({ "currency": "EUR", "rates": { "cpu": "0.05" } }),
    )
    .await?;
    propose(&world, "0.04", false).await?;
    let papers = Papers::of(&world, "0.04", "").await?;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    run_pods(rome, &["steady", "long", "short"]).await?;
    let (long, short) = (uid(rome, "long").await?, uid(rome, "short").await?);
    propose(&world, "0.05", false).await?;
    let amended = Papers::of(&world, "0.05", "").await?;
    ensure!(
        amended.contract == papers.contract,
        "an amendment is no other contract"
    );
    let cheated = next_period().await?;
    let honest = cheated - PERIOD_SECONDS;

    rome.kubectl(&["-n", NAMESPACE, "delete", "pod", "long", "short"])
        .await?;
    let known = both_count_wrong(&papers, cheated, &long, &short).await?;
    a_receipt_waits_for_the_consumer(&papers, honest, cheated).await?;
    rome.start_manager().await?;
    let signed = papers.answered(honest, ReceiptPhase::Signed).await?;
    both_prices_are_in_signed_receipts(&papers, cheated).await?;
    commands_of_the_page_work(&world, name_of(&signed)).await?;
    the_contract_is_renewed(&world).await?;
    both_are_named(
        &papers,
        cheated,
        &[(long.as_str(), known.long), (short.as_str(), known.short)],
    )
    .await?;

    a_new_contract_counts_only_its_own_seconds(&papers).await?;
    rome.end_namespace(NAMESPACE).await?;
    milan.kubectl(&["delete", "peeringpolicy", POLICY]).await?;
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
    .await?;
    offers_need_no_contract(&world).await
}

/// Seconds of the provider and of the consumer, for each pod.
struct Known {
    long: (i64, i64),
    short: (i64, i64),
}

/// Stops both managers. Milan's administrator then counts one pod to the end of the period, and
/// rome's only one second of another one. Starts milan's manager. Returns what each of them counts
/// now.
async fn both_count_wrong(
    papers: &Papers<'_>,
    period: i64,
    long: &str,
    short: &str,
) -> Result<Known> {
    let [milan, rome] = papers.sides();
    eventually("both sides stored what the pods used", TIMEOUT, || async {
        let all = [
            entries(&papers.records(milan, period).await?)?,
            entries(&papers.records(rome, period).await?)?,
        ];
        let have = |uid: &str| all.iter().all(|entries| seconds_of(entries, uid) > 1);
        Ok((have(long) && have(short)).then_some(()))
    })
    .await?;
    tokio::try_join!(milan.0.stop_manager(), rome.0.stop_manager())?;
    let (theirs, ours) = (
        entries(&papers.records(milan, period).await?)?,
        entries(&papers.records(rome, period).await?)?,
    );
    let end = period + PERIOD_SECONDS;
    let ended = theirs
        .iter()
        .find(|((uid, _), _)| uid == long)
        .map(|(_, until)| *until)
        .context("milan knows no such pod")?;
    ensure!(
        ended + 2 * CLOCK_TOLERANCE_SECONDS < end,
        "the pod ended so late that the lie would be within the tolerance"
    );
    papers.change_end(milan, period, long, end).await?;
    papers.change_end(rome, period, short, period + 1).await?;
    milan.0.start_manager().await?;
    Ok(Known {
        long: (PERIOD_SECONDS, seconds_of(&ours, long)),
        short: (seconds_of(&theirs, short), 1),
    })
}

/// While rome's manager is stopped, milan's receipt of an honest period waits, and its records
/// stay.
async fn a_receipt_waits_for_the_consumer(
    papers: &Papers<'_>,
    honest: i64,
    cheated: i64,
) -> Result<()> {
    let [milan, rome] = papers.sides();
    let receipt = eventually("milan has a receipt", TIMEOUT, || async {
        Ok(papers.receipts(milan).await?.remove(&honest))
    })
    .await?;
    ensure!(
        phase(&receipt) == ReceiptPhase::Pending,
        "{:#?}",
        receipt.status
    );
    ensure!(
        !papers.receipts(rome).await?.contains_key(&honest),
        "rome's manager does not run, and rome has a copy"
    );
    let listed = milan.0.liqoctl(&["receipt", "list", "rome"]).await?;
    ensure!(
        listed
            .lines()
            .any(|line| line.contains(name_of(&receipt)) && line.contains("Pending")),
        "{listed}"
    );
    let shown = milan
        .0
        .liqoctl(&["receipt", "show", name_of(&receipt)])
        .await?;
    ensure!(
        shown.contains("the consumer has not compared it yet"),
        "{shown}"
    );

    let kept = papers.records(milan, honest).await?;
    ensure!(
        kept.iter().any(|record| record.spec.chunks.is_some()),
        "the records are not complete: {kept:#?}"
    );
    let counted = entries(&kept)?;
    let evidence: i64 = counted.iter().map(|((_, from), until)| until - from).sum();
    let pools = &receipt.spec.statement.pools;
    let charged = pools.iter().filter_map(|pool| {
        pool.resources
            .get("pods")?
            .amount_seconds
            .to_string()
            .parse::<i64>()
            .ok()
    });
    let charged: i64 = charged.sum();
    ensure!(
        charged == evidence && charged > 0,
        "the receipt has {charged} s, and the entries have {evidence} s: {pools:#?}"
    );
    let mut both = counted;
    both.extend(entries(&papers.records(milan, cheated).await?)?);
    let neighbours: Vec<(&(String, i64), &i64)> = both.iter().collect();
    let twice = neighbours
        .windows(2)
        .find(|pair| pair[0].0.0 == pair[1].0.0 && *pair[0].1 > pair[1].0.1);
    ensure!(twice.is_none(), "some seconds count twice: {twice:?}");
    Ok(())
}

/// What was used before the amendment has the old price, and what was used after it the new one.
async fn both_prices_are_in_signed_receipts(papers: &Papers<'_>, before: i64) -> Result<()> {
    let [milan, _] = papers.sides();
    eventually("receipts with both prices are signed", TIMEOUT, || async {
        let mut rates: Vec<String> = Vec::new();
        for receipt in papers
            .receipts(milan)
            .await?
            .range(..before)
            .map(|(_, receipt)| receipt)
        {
            ensure!(
                phase(receipt) == ReceiptPhase::Signed,
                "{}: {:#?}",
                name_of(receipt),
                receipt.status
            );
            let lines = receipt
                .spec
                .statement
                .pools
                .iter()
                .filter_map(|pool| pool.resources.get("cpu"));
            rates.extend(
                lines
                    .filter_map(|line| line.rate)
                    .map(|rate| rate.to_string()),
            );
        }
        ensure!(
            ["0.04", "0.05"]
                .iter()
                .all(|rate| rates.iter().any(|found| found == rate)),
            "the rates are {rates:?}"
        );
        Ok(Some(()))
    })
    .await?;
    Ok(())
}

/// The contract gets an end, and before that another period.
async fn the_contract_is_renewed(world: &World) -> Result<()> {
    propose(world, "0.05", true).await?;
    let first = contract_in_force(world, "it has an end", |contract| {
        contract["spec"]["terms"]["end"].is_string()
    })
    .await?;
    let (id, version) = (
        &first["spec"]["terms"]["contract"],
        first["spec"]["terms"]["version"].as_u64(),
    );
    let renewed = contract_in_force(world, "it is renewed", |contract| {
        let terms = &contract["spec"]["terms"];
        terms["contract"] == *id
            && terms["version"].as_u64() > version
            && terms["end"].as_str() > first["spec"]["terms"]["end"].as_str()
    })
    .await?;
    let earlier = renewed["spec"]["earlier"].as_array().map_or(0, Vec::len);
    ensure!(
        earlier >= 3,
        "the contract remembers {earlier} earlier versions: {:#}",
        renewed["spec"]["earlier"]
    );
    Ok(())
}

/// The receipt of the period about which both lied is disputed, unsigned, and names both pods with
/// the seconds of each side.
async fn both_are_named(
    papers: &Papers<'_>,
    period: i64,
    pods: &[(&str, (i64, i64))],
) -> Result<()> {
    let disputed = papers.answered(period, ReceiptPhase::Disputed).await?;
    let ReceiptStatus {
        signature, dispute, ..
    } = disputed.status.clone().unwrap_or_default();
    ensure!(signature.is_none(), "rome signed what it disputes");
    let dispute = dispute.context("the dispute names nothing")?;
    let named: BTreeMap<&str, (i64, i64)> = dispute
        .pods
        .iter()
        .map(|pod| {
            (
                pod.uid.as_str(),
                (pod.provider_seconds, pod.consumer_seconds),
            )
        })
        .collect();
    let expected: BTreeMap<&str, (i64, i64)> = pods.iter().copied().collect();
    ensure!(
        named == expected && dispute.number == 2,
        "it names {named:?} instead of {expected:?}"
    );
    for (cluster, _) in papers.sides() {
        let shown = cluster
            .liqoctl(&["receipt", "show", name_of(&disputed)])
            .await?;
        for (uid, (theirs, ours)) in pods {
            let line = format!("{uid}: provider {theirs} s, consumer {ours} s");
            ensure!(
                shown.contains("The consumer disputes it") && shown.contains(&line),
                "{line:?} is not in {shown}"
            );
        }
    }
    let [milan, _] = papers.sides();
    ensure!(
        !papers.records(milan, period).await?.is_empty(),
        "the evidence is gone"
    );
    eventually(
        "the records of what both signed are gone",
        TIMEOUT,
        || async {
            Ok(papers
                .records(milan, period - PERIOD_SECONDS)
                .await?
                .is_empty()
                .then_some(()))
        },
    )
    .await
}

/// Runs the commands of docs/how-to/check-usage-and-receipts.md as printed, on a receipt that both
/// signed.
async fn commands_of_the_page_work(world: &World, receipt: &str) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let mut page = Page::new(
        "docs/how-to/check-usage-and-receipts.md",
        include_str!("../../docs/how-to/check-usage-and-receipts.md"),
    );
    let directory = world.scratch("receipts");
    std::fs::create_dir_all(&directory)?;
    let (id_of_rome, id_of_milan) = (rome.cluster_id().await?, milan.cluster_id().await?);
    let names = [
        ("receipt-3f2a9c01-202601011300", receipt),
        ("ROME", id_of_rome.as_str()),
        ("MILAN", id_of_milan.as_str()),
    ];
    let run = async |cluster: &Cluster, command: Result<String>, shows: &str| {
        let command = with_names(&command?, &names);
        let shown = cluster.printed(&command, &directory).await?;
        ensure!(
            shown.contains(shows),
            "`{command}` does not show {shows:?}: {shown}"
        );
        anyhow::Ok(())
    };
    let usage = page.take("liqoctl usage")?;
    for cluster in [rome, milan] {
        run(cluster, Ok(usage.clone()), "core-hours").await?;
    }
    run(rome, page.take("liqoctl usage milan"), "core-hours").await?;
    run(rome, page.take("liqoctl receipt list"), receipt).await?;
    run(rome, page.take("liqoctl receipt show"), "Both signed it").await?;
    run(rome, page.take("receipt export csv"), "").await?;
    let csv = std::fs::read_to_string(directory.join("receipts.csv"))?;
    ensure!(
        csv.starts_with("receipt,contract,") && csv.contains(receipt),
        "{csv}"
    );
    let exported = page.take("receipt export json")?;
    let exported: Value = serde_json::from_str(&rome.printed(&exported, &directory).await?)?;
    ensure!(exported.to_string().contains(receipt), "{exported:#}");
    run(milan, page.take("liqo-tenant-ROME"), "").await?;
    run(rome, page.take("liqo-provider-MILAN"), "").await?;
    run(
        rome,
        page.take("receipt verify"),
        "provider and consumer signed it",
    )
    .await?;
    page.all_were_taken()
}

/// Ends the contract and the peering, peers again, and runs a pod under the next contract.
async fn a_new_contract_counts_only_its_own_seconds(papers: &Papers<'_>) -> Result<()> {
    let (world, [milan, _]) = (papers.world, papers.sides());
    world
        .rome
        .liqoctl(&["contract", "end", "milan", "--yes"])
        .await?;
    eventually("the contract is over", TIMEOUT, || async {
        let found = milan
            .0
            .object(&["-n", milan.1, "contracts", &papers.name])
            .await?;
        Ok(found
            .filter(|contract| contract["status"]["phase"] == "Ended")
            .map(drop))
    })
    .await?;
    world.rome.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    eventually(
        "nothing of the peering is left at milan",
        TIMEOUT,
        || async {
            Ok(milan
                .0
                .object(&["namespace", milan.1])
                .await?
                .is_none()
                .then_some(()))
        },
    )
    .await?;
    world.peer_rome_with_milan().await?;
    let next = Papers::of(world, "0.05", &papers.contract).await?;
    let contract = milan.0.api::<Contract>(milan.1).get(&next.name).await?;
    let since = contract
        .spec
        .first_in_force()
        .context("it is not in force")?
        .0
        .as_second();

    run_pods(&world.rome, &["again"]).await?;
    let again = uid(&world.rome, "again").await?;
    world
        .rome
        .kubectl(&["-n", NAMESPACE, "delete", "pod", "again"])
        .await?;
    for side in next.sides() {
        let all = side
            .0
            .api::<UsageRecord>(side.1)
            .list(&ListParams::default())
            .await?
            .items;
        ensure!(
            all.iter()
                .all(|record| record.spec.contract == next.contract),
            "{} kept records of the old contract",
            side.0.name
        );
        let counted = entries(&all)?;
        ensure!(
            seconds_of(&counted, &again) > 0,
            "{} counts nothing for the pod: {counted:?}",
            side.0.name
        );
        ensure!(
            counted.keys().all(|(_, from)| *from >= since),
            "{} counts seconds before {since}: {counted:?}",
            side.0.name
        );
    }
    Ok(())
}
