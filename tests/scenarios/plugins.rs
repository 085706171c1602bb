//! Resource plugins that misbehave, and the manifests of those that do not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use liqo_api::{ForeignCluster, Quantity};
use liqo_tests::{World, eventually, still};
use serde_json::json;

use crate::{
    policies::{allocatable, apply_policy, offer},
    puppet::{Act, Answer, Puppet, Subscribers, pool},
};

/// How long a change may take from the plugin to the node, with a connection to be made anew on a busy machine.
const SOON: Duration = Duration::from_secs(40);
/// How long nothing may happen, or only so much.
const WINDOW: Duration = Duration::from_secs(5);

/// An honest answer.
fn amounts(cpu: &str) -> Vec<u8> {
    pool("", &[("cpu", cpu), ("memory", "2Gi"), ("pods", "20")])
}

/// A plugin at milan, which decides what rome is offered, and has offered this.
async fn decides_for_rome(world: &World, cpu: &str) -> Result<Puppet> {
    let act = Act { answer: Answer::Says(amounts(cpu)), subscribers: Subscribers::Told };
    let puppet = Puppet::start(world, &world.milan, act).await?;
    let policy =
        json!({ "priority": 10, "peers": { "clusterIDs": [world.rome.cluster_id().await?] }, "provide": puppet.provide() });
    apply_policy(&world.milan, "puppet", policy).await?;
    node_has(world, cpu).await?;
    Ok(puppet)
}

async fn node_has(world: &World, cpu: &str) -> Result<()> {
    let wanted: Quantity = cpu.parse()?;
    eventually(&format!("rome's node has {cpu} CPUs"), SOON, || async {
        Ok((allocatable(&world.rome, "milan").await?.get("cpu") == wanted).then_some(()))
    })
    .await
}

/// Takes the plugin out of milan's policies; returns when the nodes decide again. The peering lives: the plugin hears of no end.
async fn without_plugin(world: &World, puppet: &Puppet) -> Result<()> {
    world.milan.kubectl(&["delete", "peeringpolicy", "puppet"]).await?;
    eventually("the nodes decide again", SOON, || async {
        Ok((allocatable(&world.rome, "milan").await?.get("pods") > Quantity::from_units(20)).then_some(()))
    })
    .await?;
    ensure!(puppet.farewells() == 0, "the plugin was told that a peering ended, which lives");
    Ok(())
}

/// What milan says of the resources that it offers to rome: reason and message.
async fn told(world: &World) -> Result<(String, String)> {
    let id = world.rome.cluster_id().await?;
    let peers: kube::Api<ForeignCluster> = kube::Api::all(world.milan.client.clone());
    let peers = peers.list(&kube::api::ListParams::default()).await?;
    let rome = peers.into_iter().find(|peer| peer.spec.cluster_id.as_str() == id).context("milan does not know rome")?;
    let condition = rome.condition("ResourcesOffered").context("milan says nothing of its offer")?;
    Ok((condition.reason.clone(), condition.message.clone()))
}

pub async fn a_plugin_that_lies_hangs_or_dies_is_named_and_its_last_offer_stays(world: Arc<World>) -> Result<()> {
    let puppet = decides_for_rome(&world, "2").await?;
    let rome_id = world.rome.cluster_id().await?;
    let version = || async {
        let offer = offer(&world.milan, &world.rome).await?.context("the offer is gone")?;
        Ok::<_, anyhow::Error>(offer.metadata.generation)
    };
    let before = version().await?;
    let blamed = async |words: &str| {
        let named = [puppet.address(), format!("asked about cluster {rome_id}"), words.to_owned()];
        eventually(&format!("the plugin is blamed: {words}"), SOON, || async {
            let (reason, message) = told(&world).await?;
            ensure!(reason == "PluginFailed" && named.iter().all(|word| message.contains(word)), "{reason}: {message}");
            ensure!(message.ends_with("what was offered last stays"), "{message}");
            Ok(Some(()))
        })
        .await?;
        ensure!(version().await? == before, "the offer was rewritten");
        anyhow::Ok(())
    };
    for (lie, words) in [
        (pool("", &[("cpu", "-1")]), "holds -1 of cpu; less than nothing"),
        (pool("", &[("cpu", "plenty")]), "holds \"plenty\" of cpu"),
        ([pool("gold", &[("cpu", "1")]), pool("gold", &[("cpu", "2")])].concat(), "pool \"gold\" appears more than once"),
        (Vec::new(), "its answer is empty"),
    ] {
        puppet.say(lie);
        blamed(words).await?;
    }
    puppet.act(Answer::Hangs, Subscribers::Told);
    blamed("it did not answer within 5s").await?;
    puppet.say(amounts("2"));
    eventually("all is well again", SOON, || async { Ok((told(&world).await?.0 == "Offered").then_some(())) }).await?;
    ensure!(version().await? == before, "the same amounts were written again");

    puppet.kill();
    blamed("it cannot be reached").await?;
    // Nobody tells what changed meanwhile: the plugin is asked again because it is back.
    puppet.say(amounts("3"));
    still("the offer of a dead plugin", WINDOW, before, version).await?;
    puppet.revive().await?;
    node_has(&world, "3").await?;
    ensure!(told(&world).await?.0 == "Offered");
    without_plugin(&world, &puppet).await
}

pub async fn a_plugin_that_floods_or_hangs_up_does_not_keep_the_manager_busy(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let puppet = decides_for_rome(&world, "2").await?;
    world.quiet(&[milan]).await?;
    // Once a second, once when it begins, and one that was under way.
    let bound = |window: Instant| usize::try_from(window.elapsed().as_secs()).map(|seconds| seconds + 3);

    let id = rome.cluster_id().await?;
    let flood = || Subscribers::Flooded(id.clone());
    puppet.act(Answer::Says(amounts("2")), flood());
    eventually("the flood is on", SOON, || async { Ok((puppet.notifications() > 2000).then_some(())) }).await?;
    let (window, notifications, reads, log) = (Instant::now(), puppet.notifications(), puppet.reads(), milan.audit_length()?);
    tokio::time::sleep(WINDOW).await;
    let (heard, reads) = (puppet.notifications() - notifications, puppet.reads() - reads);
    ensure!(heard > 1000, "only {heard} notifications are no flood");
    ensure!((1..=bound(window)?).contains(&reads), "{reads} reads for {heard} notifications in {:?}", window.elapsed());
    let writes = milan.liqo_writes(log)?;
    ensure!(writes.is_empty(), "a flood of nothing new was written down: {writes:#?}");

    // The same with something new each time: offers change as often as it is asked, and no more often.
    let (window, log) = (Instant::now(), milan.audit_length()?);
    puppet.act(Answer::EverMore, flood());
    tokio::time::sleep(WINDOW).await;
    let written = milan.liqo_writes(log)?.iter().filter(|write| write.contains(" resourceoffers ")).count();
    ensure!((1..=bound(window)?).contains(&written), "{written} offers written in {:?}", window.elapsed());

    // Delays of 0.2, 0.4, 0.8, ... seconds, each at least half of that: six attempts in the first 6.3 seconds.
    let subscriptions = puppet.subscriptions();
    puppet.act(Answer::Says(amounts("2")), Subscribers::SentAway);
    tokio::time::sleep(WINDOW).await;
    let subscriptions = puppet.subscriptions() - subscriptions;
    ensure!((1..=8).contains(&subscriptions), "{subscriptions} subscriptions");
    puppet.act(Answer::Says(amounts("4")), Subscribers::SentAway);
    node_has(&world, "4").await?;
    without_plugin(&world, &puppet).await
}

pub async fn the_manifests_of_every_plugin_and_of_a_new_one_bring_up_a_ready_pod(world: Arc<World>) -> Result<()> {
    let milan = &world.milan;
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(world.manifests(""))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name that is no text")?;
        if entry.file_type()?.is_dir() && name != "liqo" {
            world.load_plugin(&name, milan).await?;
            folders.push((world.manifests(&name), name));
        }
    }
    ensure!(folders.len() >= 2, "{folders:?}");
    let (scratch, sdk) = (world.scratch(""), world.manifests("../crates/resource-plugin"));
    milan.liqoctl(&["plugin", "new", "brand-new", "--dir", &scratch.display().to_string(), "--sdk", &sdk]).await?;
    // The program of a new plugin is this example.
    world.load_example("one_gpu_for_each", "brand-new", milan).await?;
    folders.push((scratch.join("brand-new/deploy").display().to_string(), "brand-new".to_owned()));
    for (folder, _) in &folders {
        let applied = milan.try_kubectl(&["apply", "-f", folder, "-n", "liqo"]).await?;
        ensure!(applied.success && applied.stderr.is_empty(), "{applied:?}");
    }
    for (folder, name) in &folders {
        let deployment = format!("deployment/liqo-{name}-plugin");
        milan.kubectl(&["-n", "liqo", "rollout", "status", &deployment, "--timeout=90s"]).await?;
        milan.kubectl(&["delete", "-f", folder, "-n", "liqo"]).await?;
    }
    Ok(())
}
