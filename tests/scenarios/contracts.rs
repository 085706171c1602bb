//! Two owners agree on a contract, change it and end it; copies are verified offline, and a
//! provider that changes a term is found out.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{pods::pod, policies::apply_policy};

const NAMESPACE: &str = "contracted";
const POLICY: &str = "contracted";
/// Short, so that ends do not take long.
const NOTICE_SECONDS: u32 = 10;
/// Timeout until a change gets from one cluster to the other, with time to spare on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// What milan proposes to rome: a price for a core.
async fn propose(world: &World, price: &str) -> Result<()> {
    let spec = json!({ "priority": 20, "peers": { "clusterIDs": [world.rome.cluster_id().await?] }, "provide": {
        "percentage": 100,
        "noticeSeconds": NOTICE_SECONDS,
        "contract": {},
        "prices": { "currency": "EUR", "rates": { "cpu": price } },
    } });
    apply_policy(&world.milan, POLICY, spec).await
}

/// What rome's policy `default` says about contracts.
async fn set_consume(rome: &Cluster, contract: Value, max_prices: Value) -> Result<()> {
    let patch = json!({ "spec": { "consume": { "contract": contract, "maxPrices": max_prices } } })
        .to_string();
    rome.kubectl(&[
        "patch",
        "peeringpolicy",
        "default",
        "--type",
        "merge",
        "-p",
        &patch,
    ])
    .await
    .map(drop)
}

/// Rome signs without asking a person what costs at most this much.
pub async fn pay_at_most(rome: &Cluster, max_prices: Value) -> Result<()> {
    let patch = json!({ "spec": { "consume": { "maxPrices": max_prices } } }).to_string();
    rome.kubectl(&[
        "patch",
        "peeringpolicy",
        "default",
        "--type",
        "merge",
        "-p",
        &patch,
    ])
    .await
    .map(drop)
}

/// The namespace of rome's contracts and receipts at milan.
pub async fn tenant(world: &World) -> Result<String> {
    Ok(format!("liqo-tenant-{}", world.rome.cluster_id().await?))
}

/// The namespace of rome's copies of them.
pub async fn copies(world: &World) -> Result<String> {
    Ok(format!("liqo-provider-{}", world.milan.cluster_id().await?))
}

/// The contract at milan that is not over.
async fn contract(world: &World) -> Result<Option<Value>> {
    let all = world
        .milan
        .items(&["-n", &tenant(world).await?, "contracts"])
        .await?;
    Ok(all
        .into_iter()
        .find(|contract| contract["status"]["phase"] != "Ended"))
}

/// The contract like this whose terms both signed, without an announced end, in force at both
/// sides.
pub async fn contract_in_force(
    world: &World,
    what: &str,
    is_like_this: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let (tenant, copies) = (tenant(world).await?, copies(world).await?);
    eventually(
        &format!("both sides have a contract in force: {what}"),
        TIMEOUT,
        || async {
            let all = world.milan.items(&["-n", &tenant, "contracts"]).await?;
            let in_force = |contract: &&Value| {
                let spec = &contract["spec"];
                let goes_on = spec["ended"].is_null()
                    && spec["pending"].is_null()
                    && contract["status"]["phase"] == "InForce";
                spec["inForceSince"].is_string() && goes_on && is_like_this(contract)
            };
            let Some(found) = all.iter().find(in_force) else {
                return Ok(None);
            };
            let name = found["metadata"]["name"].as_str().context("no name")?;
            let copy = world
                .rome
                .object(&["-n", &copies, "contracts", name])
                .await?;
            let is_same = copy.is_some_and(|copy| {
                copy["spec"] == found["spec"] && copy["status"]["phase"] == "InForce"
            });
            Ok(is_same.then(|| found.clone()))
        },
    )
    .await
}

/// The contract with this price, in force at both sides.
pub async fn in_force(world: &World, price: &str) -> Result<Value> {
    let costs =
        |contract: &Value| contract["spec"]["terms"]["prices"]["default"]["rates"]["cpu"] == price;
    contract_in_force(world, &format!("a core costs {price}"), costs).await
}

/// What milan's offer to rome says.
async fn offer(world: &World) -> Result<Value> {
    let offer = world
        .milan
        .object(&["-n", &tenant(world).await?, "resourceoffers", "default"])
        .await?;
    Ok(offer.context("milan offers nothing")?["spec"].clone())
}

/// Everything as before.
async fn without_contracts(world: &World) -> Result<()> {
    set_consume(&world.rome, Value::Null, Value::Null).await?;
    world
        .milan
        .kubectl(&["delete", "peeringpolicy", POLICY, "--ignore-not-found"])
        .await?;
    offers_need_no_contract(world).await
}

/// Waits until the policies have no contracts any more, as far as rome's offer and node are
/// concerned.
pub async fn offers_need_no_contract(world: &World) -> Result<()> {
    eventually("rome's offer needs no contract", TIMEOUT, || async {
        Ok(offer(world)
            .await
            .ok()
            .filter(|offer| offer["contract"].is_null())
            .map(drop))
    })
    .await?;
    world
        .rome
        .wait_for(&["node", "milan"], "condition=Ready", 60)
        .await
}

pub async fn both_sign_change_and_end_a_contract(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    // A person decides, on the terms that the command shows.
    set_consume(rome, json!({ "accept": "Manual" }), Value::Null).await?;
    propose(&world, "0.04").await?;
    eventually("rome's person has to decide", TIMEOUT, || async {
        Ok(contract(&world)
            .await?
            .is_some_and(|found| found["status"]["phase"] == "AwaitingDecision")
            .then_some(()))
    })
    .await?;
    ensure!(
        offer(&world).await?["contract"]["inForce"] == false,
        "milan admits pods without a signature"
    );
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    let refused = rome
        .try_liqoctl(&["offer", "accept", "milan", "default"])
        .await?;
    ensure!(
        !refused.success && refused.stderr.contains("0.04 EUR per core and hour"),
        "{refused:?}"
    );
    rome.liqoctl(&["offer", "accept", "milan", "default", "--yes"])
        .await?;
    let first = in_force(&world, "0.04").await?;
    eventually("milan admits pods", TIMEOUT, || async {
        Ok((offer(&world).await?["contract"]["inForce"] == true).then_some(()))
    })
    .await?;
    rome.apply(&pod(NAMESPACE, "under-contract", "Always", "sleep 3600"))
        .await?;
    rome.wait_for(
        &["-n", NAMESPACE, "pod", "under-contract"],
        "condition=Ready",
        120,
    )
    .await?;
    let listed = rome.liqoctl(&["contract", "list"]).await?;
    ensure!(
        listed.contains("InForce") && listed.contains("BestEffort") && listed.contains("yes"),
        "{listed}"
    );
    let shown = milan.liqoctl(&["contract", "show", "rome"]).await?;
    ensure!(shown.contains("cpu 0.04 EUR per core and hour"), "{shown}");

    // A price that nobody signed changes nothing.
    set_consume(
        rome,
        json!({ "accept": "Automatic" }),
        json!({ "currency": "EUR", "rates": { "cpu": "0.05" } }),
    )
    .await?;
    propose(&world, "0.06").await?;
    eventually("the amendment waits", TIMEOUT, || async {
        Ok(contract(&world)
            .await?
            .is_some_and(|found| found["spec"]["pending"].is_object())
            .then_some(()))
    })
    .await?;
    ensure!(
        offer(&world).await?["prices"]["rates"]["cpu"] == "0.04",
        "{:#}",
        offer(&world).await?
    );
    propose(&world, "0.05").await?;
    let second = in_force(&world, "0.05").await?;
    ensure!(
        second["spec"]["terms"]["contract"] == first["spec"]["terms"]["contract"],
        "an amendment is no other contract"
    );
    // It counts after the notice.
    eventually("the offer has the new price", TIMEOUT, || async {
        Ok((offer(&world).await?["prices"]["rates"]["cpu"] == "0.05").then_some(()))
    })
    .await?;

    // Both managers start again, and nobody finds a breach.
    milan.restart_manager().await?;
    rome.restart_manager().await?;
    let listed: Value = serde_json::from_str(
        &rome
            .liqoctl(&["contract", "list", "milan", "-o", "json"])
            .await?,
    )?;
    ensure!(
        listed[0]["honoured"] == true && listed[0]["state"] == "InForce",
        "{listed:#}"
    );

    let ended = rome
        .liqoctl(&["contract", "end", "milan", "--reason", "too dear", "--yes"])
        .await?;
    ensure!(ended.contains("ends at"), "{ended}");
    eventually(
        "the contract is over at both sides, with a reason",
        TIMEOUT,
        || async {
            let name = second["metadata"]["name"].as_str().unwrap_or_default();
            let over = milan
                .object(&["-n", &tenant(&world).await?, "contracts", name])
                .await?;
            Ok(over
                .filter(|over| {
                    over["status"]["phase"] == "Ended"
                        && over["spec"]["ended"]["reason"] == "too dear"
                })
                .map(drop))
        },
    )
    .await?;
    rome.end_namespace(NAMESPACE).await?;
    rome.liqoctl(&["contract", "forget", "milan"]).await?;
    without_contracts(&world).await
}

/// Stores the copies of both sides.
async fn stored(world: &World, name: &str) -> Result<(PathBuf, Vec<String>)> {
    let directory = std::env::temp_dir().join(format!("liqo-contracts-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let mut files = Vec::new();
    for (cluster, namespace) in [
        (&world.milan, tenant(world).await?),
        (&world.rome, copies(world).await?),
    ] {
        let text = cluster
            .kubectl(&["-n", &namespace, "get", "contracts", name, "-o", "yaml"])
            .await?;
        let file = directory.join(format!("{}.yaml", cluster.name));
        std::fs::write(&file, text)?;
        files.push(file.display().to_string());
    }
    Ok((directory, files))
}

pub async fn stored_contracts_are_verified_and_a_provider_that_changes_a_term_is_found_out(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    pay_at_most(
        rome,
        json!({ "currency": "EUR", "rates": { "cpu": "0.04" } }),
    )
    .await?;
    propose(&world, "0.04").await?;
    let found = in_force(&world, "0.04").await?;
    let name = found["metadata"]["name"]
        .as_str()
        .context("no name")?
        .to_owned();

    let (directory, files) = stored(&world, &name).await?;
    let verified = rome
        .liqoctl(&["contract", "verify", &files[0], &files[1]])
        .await?;
    ensure!(
        verified.starts_with("Both copies contain the same contract"),
        "{verified}"
    );
    let text = std::fs::read_to_string(&files[1])?;
    for (term, other) in [
        ("noticeSeconds: 10", "noticeSeconds: 99"),
        ("sig: ", "sig: A"),
    ] {
        ensure!(text.contains(term), "{term} is not in {text}");
        std::fs::write(&files[1], text.replace(term, other))?;
        let refused = rome
            .try_liqoctl(&["contract", "verify", &files[0], &files[1]])
            .await?;
        ensure!(
            !refused.success && refused.stderr.contains(&files[1]),
            "{refused:?}"
        );
    }
    std::fs::remove_dir_all(&directory)?;

    // Milan's administrator wants another notice without asking.
    let namespace = tenant(&world).await?;
    let change = json!({ "spec": { "terms": { "noticeSeconds": 1 } } }).to_string();
    milan
        .kubectl(&[
            "-n",
            &namespace,
            "patch",
            "contracts",
            &name,
            "--type",
            "merge",
            "-p",
            &change,
        ])
        .await?;
    let ours = copies(&world).await?;
    eventually(
        "rome finds the change, and keeps the evidence",
        TIMEOUT,
        || async {
            let copy = rome
                .object(&["-n", &ours, "contracts", &name])
                .await?
                .context("rome has no copy")?;
            let breach = copy["status"]["breaches"][0].clone();
            let told = breach["kind"] == "TermsDiffer"
                && breach["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("noticeSeconds"));
            Ok((told && copy["spec"]["terms"]["noticeSeconds"] == NOTICE_SECONDS).then_some(()))
        },
    )
    .await?;
    let listed = milan.liqoctl(&["contract", "list", "rome"]).await?;
    ensure!(listed.contains("no: TermsDiffer"), "{listed}");
    for (cluster, namespace) in [(rome, &ours), (milan, &namespace)] {
        eventually("both clusters have an event", TIMEOUT, || async {
            let events = cluster.items(&["-n", namespace, "events"]).await?;
            Ok(events
                .iter()
                .any(|event| event["reason"] == "TermsDiffer")
                .then_some(()))
        })
        .await?;
    }
    let back = json!({ "spec": { "terms": { "noticeSeconds": NOTICE_SECONDS } } }).to_string();
    milan
        .kubectl(&[
            "-n",
            &namespace,
            "patch",
            "contracts",
            &name,
            "--type",
            "merge",
            "-p",
            &back,
        ])
        .await?;
    eventually("the breach is over", TIMEOUT, || async {
        let honoured = rome
            .liqoctl(&["contract", "list", "milan", "-o", "json"])
            .await?;
        let listed: Value = serde_json::from_str(&honoured)?;
        Ok((listed[0]["honoured"] == true).then_some(()))
    })
    .await?;
    without_contracts(&world).await
}
