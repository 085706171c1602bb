//! Resource plugins that misbehave, and the manifests of Liqo's plugins.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use liqo_api::{ForeignCluster, Quantity};
use liqo_tests::{World, eventually, still};
use serde_json::{Value, json};

use crate::{
    policies::{allocatable, apply_policy, offer},
    scripted_plugin::{Act, Answer, ScriptedPlugin, Subscribers, pool, priced_pool},
};

/// Timeout until a change of the plugin gets to the node, with a new connection on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(40);
/// How long a scenario checks that nothing happens, or not too much.
const WINDOW: Duration = Duration::from_secs(5);

/// A valid answer.
fn amounts(cpu: &str) -> Vec<u8> {
    pool("", &[("cpu", cpu), ("memory", "2Gi"), ("pods", "20")])
}

/// Starts a plugin at milan that decides what rome is offered, and waits until its offer has
/// arrived.
async fn decides_for_rome(world: &World, cpu: &str) -> Result<ScriptedPlugin> {
    let act = Act {
        answer: Answer::Says(amounts(cpu)),
        subscribers: Subscribers::Notified,
    };
    let plugin = ScriptedPlugin::start(world, &world.milan, act).await?;
    let policy = json!({ "priority": 10, "peers": { "clusterIDs": [world.rome.cluster_id().await?] }, "provide": plugin.provide() });
    apply_policy(&world.milan, "scripted", policy).await?;
    node_has(world, cpu).await?;
    Ok(plugin)
}

async fn node_has(world: &World, cpu: &str) -> Result<()> {
    let wanted: Quantity = cpu.parse()?;
    eventually(&format!("rome's node has {cpu} CPUs"), TIMEOUT, || async {
        Ok((allocatable(&world.rome, "milan").await?.get("cpu") == wanted).then_some(()))
    })
    .await
}

/// Removes the plugin from milan's policies, and waits until the nodes decide again. The plugin
/// must not be told that the peering ended.
async fn without_plugin(world: &World, plugin: &ScriptedPlugin) -> Result<()> {
    world
        .milan
        .kubectl(&["delete", "peeringpolicy", "scripted"])
        .await?;
    eventually("the nodes decide again", TIMEOUT, || async {
        Ok(
            (allocatable(&world.rome, "milan").await?.get("pods") > Quantity::from_units(20))
                .then_some(()),
        )
    })
    .await?;
    ensure!(
        plugin.removals() == 0,
        "the plugin was told that the peering ended"
    );
    Ok(())
}

/// Reason and message of milan's condition about its offer to rome.
async fn offer_condition(world: &World) -> Result<(String, String)> {
    let id = world.rome.cluster_id().await?;
    let peers: kube::Api<ForeignCluster> = kube::Api::all(world.milan.client.clone());
    let peers = peers.list(&kube::api::ListParams::default()).await?;
    let rome = peers
        .into_iter()
        .find(|peer| peer.spec.cluster_id.as_str() == id)
        .context("milan does not know rome")?;
    let condition = rome
        .condition("ResourcesOffered")
        .context("milan has no condition about its offer")?;
    Ok((condition.reason.clone(), condition.message.clone()))
}

pub async fn a_plugin_that_lies_hangs_or_dies_is_reported_and_its_last_offer_stays(
    world: Arc<World>,
) -> Result<()> {
    let plugin = decides_for_rome(&world, "2").await?;
    let rome_id = world.rome.cluster_id().await?;
    let version = || async {
        let offer = offer(&world.milan, &world.rome)
            .await?
            .context("the offer is gone")?;
        Ok::<_, anyhow::Error>(offer.metadata.generation)
    };
    let before = version().await?;
    let blamed = async |words: &str| {
        let named = [
            plugin.address(),
            format!("asked about cluster {rome_id}"),
            words.to_owned(),
        ];
        eventually(
            &format!("the plugin is blamed: {words}"),
            TIMEOUT,
            || async {
                let (reason, message) = offer_condition(&world).await?;
                ensure!(
                    reason == "PluginFailed" && named.iter().all(|word| message.contains(word)),
                    "{reason}: {message}"
                );
                ensure!(message.ends_with("the last offer stays"), "{message}");
                Ok(Some(()))
            },
        )
        .await?;
        ensure!(version().await? == before, "the offer was rewritten");
        anyhow::Ok(())
    };
    for (lie, words) in [
        (
            pool("", &[("cpu", "-1")]),
            "has -1 of cpu: an amount cannot be negative",
        ),
        (pool("", &[("cpu", "plenty")]), "has \"plenty\" of cpu"),
        (
            [pool("gold", &[("cpu", "1")]), pool("gold", &[("cpu", "2")])].concat(),
            "pool \"gold\" appears more than once",
        ),
        (Vec::new(), "its answer is empty"),
    ] {
        plugin.say(lie);
        blamed(words).await?;
    }
    plugin.act(Answer::Hangs, Subscribers::Notified);
    blamed("it did not answer within 5s").await?;
    plugin.say(amounts("2"));
    eventually("all is well again", TIMEOUT, || async {
        Ok((offer_condition(&world).await?.0 == "Offered").then_some(()))
    })
    .await?;
    ensure!(
        version().await? == before,
        "the same amounts were written again"
    );

    plugin.kill();
    blamed("it cannot be reached").await?;
    // No notification says what changed meanwhile. Liqo reads again because the plugin is back.
    plugin.say(amounts("3"));
    still("the offer of a dead plugin", WINDOW, before, version).await?;
    plugin.revive().await?;
    node_has(&world, "3").await?;
    ensure!(offer_condition(&world).await?.0 == "Offered");
    promises_beyond_the_nodes_are_allowed_told_or_cut(&world, &plugin).await?;
    without_plugin(&world, &plugin).await
}

async fn promises_beyond_the_nodes_are_allowed_told_or_cut(
    world: &World,
    plugin: &ScriptedPlugin,
) -> Result<()> {
    plugin.say(amounts("1000"));
    node_has(world, "1000").await?;
    ensure!(offer_condition(world).await?.0 == "Offered");
    for (overcommit, reason, words) in [
        (
            "Warn",
            "Overcommitted",
            "plugins promise more to all consumers than the nodes have: cpu",
        ),
        (
            "Cut",
            "Offered",
            "the nodes have less than the plugin says: cpu",
        ),
    ] {
        let patch = json!({ "spec": { "provide": { "source": { "plugin": { "overcommit": overcommit } } } } }).to_string();
        world
            .milan
            .kubectl(&[
                "patch",
                "peeringpolicy",
                "scripted",
                "--type",
                "merge",
                "-p",
                &patch,
            ])
            .await?;
        eventually(
            &format!("the condition says what {overcommit} does"),
            TIMEOUT,
            || async {
                let (said, message) = offer_condition(world).await?;
                ensure!(
                    said == reason && message.contains(words),
                    "{said}: {message}"
                );
                Ok(Some(()))
            },
        )
        .await?;
    }
    eventually(
        "rome's node has what milan's nodes have",
        TIMEOUT,
        || async {
            Ok(
                (allocatable(&world.rome, "milan").await?.get("cpu") < Quantity::from_units(1000))
                    .then_some(()),
            )
        },
    )
    .await
}

pub async fn a_plugin_that_floods_or_disconnects_does_not_keep_the_manager_busy(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let plugin = decides_for_rome(&world, "2").await?;
    world.quiet(&[milan]).await?;
    // One each second, one at the start, and one that was in progress.
    let max_reads =
        |window: Instant| usize::try_from(window.elapsed().as_secs()).map(|seconds| seconds + 3);

    let id = rome.cluster_id().await?;
    let flood = || Subscribers::Flooded(id.clone());
    plugin.act(Answer::Says(amounts("2")), flood());
    eventually("the flood is on", TIMEOUT, || async {
        Ok((plugin.notifications() > 2000).then_some(()))
    })
    .await?;
    let (window, notifications, reads, log) = (
        Instant::now(),
        plugin.notifications(),
        plugin.reads(),
        milan.audit_length()?,
    );
    tokio::time::sleep(WINDOW).await;
    let (heard, reads) = (
        plugin.notifications() - notifications,
        plugin.reads() - reads,
    );
    ensure!(heard > 1000, "only {heard} notifications are no flood");
    ensure!(
        (1..=max_reads(window)?).contains(&reads),
        "{reads} reads for {heard} notifications in {:?}",
        window.elapsed()
    );
    let writes = milan.liqo_writes(log)?;
    ensure!(
        writes.is_empty(),
        "notifications without changes caused writes: {writes:#?}"
    );

    // The same with a new amount each time: offers change only as often as the plugin is read.
    let (window, log) = (Instant::now(), milan.audit_length()?);
    plugin.act(Answer::EverMore, flood());
    tokio::time::sleep(WINDOW).await;
    let written = milan
        .liqo_writes(log)?
        .iter()
        .filter(|write| write.contains(" resourceoffers "))
        .count();
    ensure!(
        (1..=max_reads(window)?).contains(&written),
        "{written} offers written in {:?}",
        window.elapsed()
    );

    // Delays of 0.2, 0.4, 0.8, ... seconds, each at least half of that: six attempts in the first
    // 6.3 seconds.
    let subscriptions = plugin.subscriptions();
    plugin.act(Answer::Says(amounts("2")), Subscribers::Rejected);
    tokio::time::sleep(WINDOW).await;
    let subscriptions = plugin.subscriptions() - subscriptions;
    ensure!(
        (1..=8).contains(&subscriptions),
        "{subscriptions} subscriptions"
    );
    plugin.act(Answer::Says(amounts("4")), Subscribers::Rejected);
    node_has(&world, "4").await?;
    without_plugin(&world, &plugin).await
}

/// The prices that rome sees: in its offer, in the annotation of its node milan, and in the labels
/// of that.
async fn shown_prices(world: &World) -> Result<[Value; 3]> {
    let rome = &world.rome;
    let offers: Value = serde_json::from_str(
        &rome
            .liqoctl(&["offer", "list", "milan", "-o", "json"])
            .await?,
    )?;
    let metadata = rome
        .object(&["node", "milan"])
        .await?
        .context("rome has no Node milan")?["metadata"]
        .take();
    let annotation = metadata["annotations"]["liqo.io/prices"]
        .as_str()
        .map(serde_json::from_str)
        .transpose()?;
    let label = |name: &str| {
        metadata["labels"]
            .get(format!("price.liqo.io/{name}"))
            .cloned()
    };
    let rates = ["cpu", "memory"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), label(name)?)));
    let rates: serde_json::Map<String, Value> = rates.collect();
    let labels = label("currency").map(|currency| json!({ "currency": currency, "rates": rates }));
    Ok([
        offers[0]["prices"].clone(),
        annotation.unwrap_or_default(),
        labels.unwrap_or_default(),
    ])
}

/// Waits until rome sees these prices everywhere.
async fn shows_prices(world: &World, expected: &Value) -> Result<()> {
    eventually(
        &format!("rome's offer and node show {expected}"),
        TIMEOUT,
        || async {
            Ok(shown_prices(world)
                .await?
                .iter()
                .all(|shown| shown == expected)
                .then_some(()))
        },
    )
    .await
}

pub async fn prices_of_a_plugin_replace_those_of_the_policy_and_one_without_prices_changes_nothing(
    world: Arc<World>,
) -> Result<()> {
    let amounts_of_two = [("cpu", "2"), ("memory", "2Gi"), ("pods", "20")];
    let priced =
        |currency: &str, rates: &[(&str, &str)]| priced_pool("", &amounts_of_two, currency, rates);
    let sell = async |prices: Value| {
        let patch = json!({ "spec": { "provide": { "prices": prices } } }).to_string();
        world
            .milan
            .kubectl(&[
                "patch",
                "peeringpolicy",
                "scripted",
                "--type",
                "merge",
                "-p",
                &patch,
            ])
            .await
            .map(drop)
    };
    let plugin = decides_for_rome(&world, "2").await?;
    shows_prices(&world, &Value::Null).await?;
    let of_policy = json!({ "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.005" } });
    sell(of_policy.clone()).await?;
    shows_prices(&world, &of_policy).await?;

    plugin.say(priced("credits", &[("cpu", "3")]));
    shows_prices(
        &world,
        &json!({ "currency": "credits", "rates": { "cpu": "3" } }),
    )
    .await?;
    plugin.say(priced("credits", &[("cpu", "4"), ("memory", "0.5")]));
    shows_prices(
        &world,
        &json!({ "currency": "credits", "rates": { "cpu": "4", "memory": "0.5" } }),
    )
    .await?;
    // Schedule and utilization of the policy apply to the plugin's rates, too.
    sell(json!({ "schedule": [{ "from": "00:00", "to": "00:00", "percentage": 50 }] })).await?;
    let half = json!({ "currency": "credits", "rates": { "cpu": "2", "memory": "0.25" } });
    shows_prices(&world, &half).await?;

    plugin.say(priced("credits", &[("cpu", "-1")]));
    eventually("the plugin is blamed for its price", TIMEOUT, || async {
        let (reason, message) = offer_condition(&world).await?;
        Ok(
            (reason == "PluginFailed" && message.contains("the price of cpu is negative: -1"))
                .then_some(()),
        )
    })
    .await?;
    still(
        "the last prices",
        WINDOW,
        [&half; 3].map(Value::clone),
        || shown_prices(&world),
    )
    .await?;

    plugin.say(amounts("2"));
    let half = json!({ "currency": "EUR", "rates": { "cpu": "0.02", "memory": "0.0025" } });
    shows_prices(&world, &half).await?;
    sell(Value::Null).await?;
    shows_prices(&world, &Value::Null).await?;
    plugin.say(priced("EUR", &[("cpu", "0.07")]));
    shows_prices(
        &world,
        &json!({ "currency": "EUR", "rates": { "cpu": "0.07" } }),
    )
    .await?;
    without_plugin(&world, &plugin).await
}

pub async fn the_manifests_of_all_plugins_and_of_a_new_one_start_a_ready_pod(
    world: Arc<World>,
) -> Result<()> {
    let milan = &world.milan;
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(world.manifests(""))? {
        let entry = entry?;
        let name = entry
            .file_name()
            .into_string()
            .ok()
            .context("a file name that is not UTF-8")?;
        if entry.file_type()?.is_dir() && !["charts", "liqo"].contains(&name.as_str()) {
            world.load_plugin(&name, &name, milan).await?;
            folders.push((world.manifests(&name), name));
        }
    }
    ensure!(folders.len() >= 3, "{folders:?}");
    let (scratch, sdk) = (
        world.scratch(""),
        world.manifests("../crates/resource-plugin"),
    );
    milan
        .liqoctl(&[
            "plugin",
            "new",
            "brand-new",
            "--dir",
            &scratch.display().to_string(),
            "--sdk",
            &sdk,
        ])
        .await?;
    // The program of a new plugin is this example.
    world
        .load_plugin("one_gpu_for_each", "brand-new", milan)
        .await?;
    folders.push((
        scratch.join("brand-new/deploy").display().to_string(),
        "brand-new".to_owned(),
    ));
    for (folder, _) in &folders {
        let applied = milan
            .try_kubectl(&["apply", "-f", folder, "-n", "liqo"])
            .await?;
        ensure!(applied.success && applied.stderr.is_empty(), "{applied:?}");
    }
    for (folder, name) in &folders {
        let deployment = format!("deployment/liqo-{name}-plugin");
        milan
            .kubectl(&[
                "-n",
                "liqo",
                "rollout",
                "status",
                &deployment,
                "--timeout=90s",
            ])
            .await?;
        milan
            .kubectl(&["delete", "-f", folder, "-n", "liqo"])
            .await?;
    }
    Ok(())
}
