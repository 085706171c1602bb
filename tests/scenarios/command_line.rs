//! `liqoctl` as a user types it: several namespaces at once, single settings, the way of one pod,
//! and pods that leave.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::World;
use serde_json::{Value, json};

use crate::{
    lending::is_healthy,
    pods::{deployment, name_of, node_of, pod},
};

/// A budget for the pods of Deployment `web`.
fn budget(namespace: &str, min_available: u32) -> String {
    let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web", "namespace": namespace },
        "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": "web" } } } });
    budget.to_string()
}

pub async fn an_offloaded_namespace_keeps_the_settings_that_are_not_named(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    for namespace in ["kept-one", "kept-two"] {
        rome.kubectl(&["create", "namespace", namespace]).await?;
    }
    let selector = "liqo.io/type=virtual-node";
    let preview = rome
        .liqoctl(&[
            "offload", "ns", "kept-one", "kept-two", "-l", selector, "-o", "json",
        ])
        .await?;
    ensure!(
        serde_json::from_str::<Value>(&preview)?["items"]
            .as_array()
            .is_some_and(|items| items.len() == 2),
        "{preview}"
    );
    ensure!(
        rome.items(&["-n", "kept-one", "namespaceoffloadings"])
            .await?
            .is_empty(),
        "the preview wrote something"
    );

    let said = rome
        .liqoctl(&["offload", "ns", "kept-one", "kept-two", "-l", selector])
        .await?;
    ensure!(
        said.matches("New pods may run there").count() == 2,
        "{said}"
    );
    let said = rome
        .liqoctl(&[
            "offload",
            "namespace",
            "kept-one",
            "--pod-offloading-strategy",
            "local",
        ])
        .await?;
    ensure!(said.contains("New pods run only in this cluster"), "{said}");
    let spec = |namespace: &'static str| async move {
        let object = rome
            .object(&["-n", namespace, "namespaceoffloading", "offloading"])
            .await?;
        Ok::<Value, anyhow::Error>(
            object.context("there is no NamespaceOffloading")?["spec"].clone(),
        )
    };
    let (changed, other) = (spec("kept-one").await?, spec("kept-two").await?);
    ensure!(
        changed["podOffloadingStrategy"] == "Local"
            && other["podOffloadingStrategy"] == "LocalAndRemote",
        "{changed}"
    );
    ensure!(
        changed["clusterSelector"].is_object()
            && changed["clusterSelector"] == other["clusterSelector"],
        "{changed}"
    );

    rome.liqoctl(&["unoffload", "ns", "kept-one", "kept-two", "--yes"])
        .await?;
    for namespace in ["kept-one", "kept-two"] {
        rome.end_namespace(namespace).await?;
    }
    Ok(())
}

pub async fn the_way_of_a_pod_is_explained_up_to_the_provider(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("explained", "Remote").await?;
    rome.apply(&deployment("explained", "web", 1)).await?;
    let pods = rome.ready_pods("explained", "app=web", 1).await?;
    let name = pods.first().map(name_of).context("there is no pod")?;
    let explained = rome
        .liqoctl(&["explain", "pod", name, "-n", "explained", "-o", "json"])
        .await?;
    let explained: Value = serde_json::from_str(&explained)?;
    let verdict = |step: &str| {
        let steps = explained["steps"].as_array().into_iter().flatten();
        steps
            .filter(|one| one["step"] == step)
            .map(|one| one["verdict"].clone())
            .next()
    };
    for step in [
        "local-pod",
        "virtual-node",
        "peering",
        "namespace",
        "shadow-pod",
        "remote-pod",
    ] {
        ensure!(verdict(step) == Some("Ok".into()), "{step}: {explained:#}");
    }
    let tree = rome
        .liqoctl(&["explain", "pod", &format!("explained/{name}")])
        .await?;
    ensure!(tree.contains("├─ ✓ shadow-pod: Created"), "{tree}");
    rome.end_namespace("explained").await
}

pub async fn unoffloading_evicts_pods_as_disruption_budgets_allow(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("guarded", "Remote").await?;
    // New pods become ready slowly, so evicting all at once would show.
    let slow = "    readinessProbe: { exec: { command: [\"true\"] }, initialDelaySeconds: 2, periodSeconds: 1 }\n        resources:";
    rome.apply(&deployment("guarded", "web", 2).replace("    resources:", slow))
        .await?;
    rome.apply(&budget("guarded", 2)).await?;
    rome.ready_pods("guarded", "app=web", 2).await?;
    rome.wait_for(
        &["-n", "guarded", "pdb/web"],
        "jsonpath={.status.currentHealthy}=2",
        30,
    )
    .await?;
    let held = rome
        .try_liqoctl(&[
            "unoffload",
            "namespace",
            "guarded",
            "--yes",
            "--timeout",
            "20s",
        ])
        .await?;
    ensure!(
        !held.success && held.stderr.contains("disruption budget web needs 2"),
        "{held:?}"
    );
    ensure!(
        held.stderr.contains("--now") && held.stderr.contains("--pod-offloading-strategy Remote"),
        "{held:?}"
    );
    let pods = rome.ready_pods("guarded", "app=web", 2).await?;
    ensure!(
        pods.iter().all(|pod| node_of(pod) == "milan"),
        "a pod left although the budget did not allow it"
    );

    rome.apply(&budget("guarded", 1)).await?;
    rome.wait_for(
        &["-n", "guarded", "pdb/web"],
        "jsonpath={.status.disruptionsAllowed}=1",
        30,
    )
    .await?;
    let is_done = AtomicBool::new(false);
    let unoffloading = async {
        let said = rome
            .liqoctl(&["unoffload", "namespace", "guarded", "--yes"])
            .await;
        is_done.store(true, Ordering::Relaxed);
        said
    };
    let watching = async {
        let mut fewest = 2;
        while !is_done.load(Ordering::Relaxed) {
            fewest = fewest.min(
                rome.pods("guarded", "app=web")
                    .await?
                    .iter()
                    .filter(|pod| is_healthy(pod))
                    .count(),
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(fewest)
    };
    let (said, fewest) = tokio::join!(unoffloading, watching);
    ensure!(said?.contains("is not offloaded any more"));
    ensure!(
        fewest? >= 1,
        "at one time no pod was available; the budget requires one"
    );
    let pods = rome.ready_pods("guarded", "app=web", 2).await?;
    ensure!(
        pods.iter().all(|pod| node_of(pod) == "rome-1"),
        "pods are still away"
    );
    rome.end_namespace("guarded").await
}

pub async fn pods_move_away_from_a_cluster_and_it_takes_pods_again(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    // All pods start at milan.
    rome.kubectl(&["cordon", "rome-1"]).await?;
    rome.offloaded_namespace("departing", "LocalAndRemote")
        .await?;
    rome.apply(&deployment("departing", "web", 2)).await?;
    rome.apply(&pod("departing", "alone", "Always", "sleep 600"))
        .await?;
    let before = rome.ready_pods("departing", "app=web", 2).await?;
    rome.ready_pods("departing", "app=alone", 1).await?;
    rome.kubectl(&["uncordon", "rome-1"]).await?;

    let refused = rome
        .try_liqoctl(&[
            "move",
            "pods",
            "-n",
            "departing",
            "--from",
            "milan",
            "--yes",
        ])
        .await?;
    ensure!(
        !refused.success && refused.stderr.contains("again: alone"),
        "{refused:?}"
    );
    let web = |flags: &[&'static str]| {
        [&["move", "pods", "-n", "departing", "-l", "app=web"], flags].concat()
    };
    let refused = rome.try_liqoctl(&web(&["--to", "milan", "--yes"])).await?;
    ensure!(
        !refused.success && refused.stderr.contains("strategy Remote"),
        "{refused:?}"
    );
    let preview: Value = serde_json::from_str(
        &rome
            .liqoctl(&web(&["--from", "milan", "-o", "json"]))
            .await?,
    )?;
    ensure!(
        preview["cordonedNodes"] == json!(["milan"])
            && preview["pods"].as_array().map(Vec::len) == Some(2),
        "{preview}"
    );

    let said = rome.liqoctl(&web(&["--from", "milan", "--yes"])).await?;
    ensure!(
        before.iter().all(|pod| said.contains(name_of(pod))) && said.matches("rome-1").count() == 2,
        "{said}"
    );
    let after = rome.ready_pods("departing", "app=web", 2).await?;
    ensure!(
        after.iter().all(|pod| node_of(pod) == "rome-1"),
        "not all pods left milan"
    );
    let node = rome
        .object(&["node", "milan"])
        .await?
        .context("there is no node milan")?;
    ensure!(
        node["spec"]["unschedulable"].is_null(),
        "the node is still cordoned"
    );
    let alone = rome.ready_pods("departing", "app=alone", 1).await?;
    ensure!(
        alone.iter().all(|pod| node_of(pod) == "milan"),
        "a pod moved that was not selected"
    );
    rome.end_namespace("departing").await
}
