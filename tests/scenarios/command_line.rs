//! `liqoctl` as a user types it: several namespaces at once, single settings, and the way of one pod.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use liqo_tests::World;
use serde_json::Value;

use crate::pods::{deployment, name_of};

pub async fn an_offloaded_namespace_keeps_the_settings_that_are_not_named(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    for namespace in ["kept-one", "kept-two"] {
        rome.kubectl(&["create", "namespace", namespace]).await?;
    }
    let selector = "liqo.io/type=virtual-node";
    let preview = rome.liqoctl(&["offload", "ns", "kept-one", "kept-two", "-l", selector, "-o", "json"]).await?;
    ensure!(serde_json::from_str::<Value>(&preview)?["items"].as_array().is_some_and(|items| items.len() == 2), "{preview}");
    ensure!(rome.items(&["-n", "kept-one", "namespaceoffloadings"]).await?.is_empty(), "the preview wrote something");

    let said = rome.liqoctl(&["offload", "ns", "kept-one", "kept-two", "-l", selector]).await?;
    ensure!(said.matches("New pods may run there").count() == 2, "{said}");
    let said = rome.liqoctl(&["offload", "namespace", "kept-one", "--pod-offloading-strategy", "local"]).await?;
    ensure!(said.contains("New pods run only in this cluster"), "{said}");
    let spec = |namespace: &'static str| async move {
        let object = rome.object(&["-n", namespace, "namespaceoffloading", "offloading"]).await?;
        Ok::<Value, anyhow::Error>(object.context("there is no NamespaceOffloading")?["spec"].clone())
    };
    let (changed, other) = (spec("kept-one").await?, spec("kept-two").await?);
    ensure!(changed["podOffloadingStrategy"] == "Local" && other["podOffloadingStrategy"] == "LocalAndRemote", "{changed}");
    ensure!(changed["clusterSelector"].is_object() && changed["clusterSelector"] == other["clusterSelector"], "{changed}");

    rome.liqoctl(&["unoffload", "ns", "kept-one", "kept-two", "--yes"]).await?;
    for namespace in ["kept-one", "kept-two"] {
        rome.delete_namespace(namespace).await?;
    }
    Ok(())
}

pub async fn the_way_of_a_pod_is_explained_up_to_the_provider(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("explained", "Remote").await?;
    rome.apply(&deployment("explained", "web", 1)).await?;
    let pods = rome.ready_pods("explained", "app=web", 1).await?;
    let name = pods.first().map(name_of).context("there is no pod")?;
    let explained = rome.liqoctl(&["explain", "pod", name, "-n", "explained", "-o", "json"]).await?;
    let explained: Value = serde_json::from_str(&explained)?;
    let verdict = |step: &str| {
        let steps = explained["steps"].as_array().into_iter().flatten();
        steps.filter(|one| one["step"] == step).map(|one| one["verdict"].clone()).next()
    };
    for step in ["local-pod", "virtual-node", "peering", "namespace", "shadow-pod", "remote-pod"] {
        ensure!(verdict(step) == Some("Ok".into()), "{step}: {explained:#}");
    }
    let tree = rome.liqoctl(&["explain", "pod", &format!("explained/{name}")]).await?;
    ensure!(tree.contains("├─ ✓ shadow-pod: Created"), "{tree}");
    rome.delete_namespace("explained").await
}
