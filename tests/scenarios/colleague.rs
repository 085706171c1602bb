//! A colleague of the administrator has the role `edit` in one namespace, and nothing else: she
//! offloads that namespace and understands its pods, and every other command tells her in one line
//! what she may not do.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use liqo_tests::{Cluster, World};

use crate::pods::{deployment, name_of, node_of};

const NAMESPACE: &str = "colleague";
const ACCOUNT: &str = "ann";

/// Commands that need rights in the whole cluster.
const OF_ADMINISTRATORS: [&[&str]; 12] = [
    &["install", "--timeout", "10s"],
    &["uninstall", "-y"],
    &[
        "peer",
        "--id",
        ID,
        "--auth-url",
        "https://203.0.113.5:1",
        "--token",
        "none",
        "-y",
    ],
    &["unpeer", "milan", "-y"],
    &["approve", "milan"],
    &["token", "list"],
    &["generate", "peer-command"],
    &["policy", "list"],
    &["broker", "status"],
    &["tether", "milan"],
    &["renew", "gateway-keys"],
    &["contract", "list"],
];
const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

pub async fn a_colleague_with_one_namespace_offloads_it_and_nothing_else(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    rome.kubectl(&["create", "namespace", NAMESPACE]).await?;
    rome.kubectl(&["-n", NAMESPACE, "create", "serviceaccount", ACCOUNT])
        .await?;
    let account = format!("--serviceaccount={NAMESPACE}:{ACCOUNT}");
    rome.kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "rolebinding",
        ACCOUNT,
        "--clusterrole=edit",
        &account,
    ])
    .await?;
    let token = rome
        .kubectl(&["-n", NAMESPACE, "create", "token", ACCOUNT])
        .await?;
    let ann = rome
        .with_token(token.trim(), &world.scratch("ann.kubeconfig"))
        .await?;

    ann.liqoctl(&[
        "offload",
        "namespace",
        NAMESPACE,
        "--pod-offloading-strategy",
        "Remote",
    ])
    .await?;
    ann.apply(&deployment(NAMESPACE, "web", 1)).await?;
    ann.wait_for(
        &["-n", NAMESPACE, "deployment/web"],
        "condition=Available",
        90,
    )
    .await?;
    let pods = ann
        .api::<Pod>(NAMESPACE)
        .list(&ListParams::default())
        .await?;
    let pod = pods.items.first().context("there is no pod")?;
    ensure!(node_of(pod) == "milan", "it is on {}", node_of(pod));
    let pod = name_of(pod).to_owned();
    ann.kubectl(&["-n", NAMESPACE, "logs", &pod]).await?;
    let explained = ann
        .liqoctl(&["explain", "pod", &pod, "-n", NAMESPACE])
        .await?;
    ensure!(
        explained.contains("local-pod") && explained.contains("you may not"),
        "{explained}"
    );
    for command in OF_ADMINISTRATORS {
        is_refused_in_one_line(&ann, command).await?;
    }
    is_refused_in_one_line(&ann, &["cost", "-n", NAMESPACE]).await?;
    costs_are_seen_by_groups_that_may(&world, &ann).await?;
    ann.liqoctl(&["unoffload", "namespace", NAMESPACE, "-y"])
        .await?;
    rome.kubectl(&["delete", "namespace", NAMESPACE]).await?;
    Ok(())
}

/// The message is one line without the API server's own words.
async fn is_refused_in_one_line(ann: &Cluster, command: &[&str]) -> Result<()> {
    let output = ann.try_liqoctl(command).await?;
    let said = output.stderr;
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("liqoctl: "))
        .collect();
    let is_one_sentence = lines.len() == 1 && lines[0].contains(" may not ");
    ensure!(
        !output.success && is_one_sentence && !said.contains("system:serviceaccount"),
        "{command:?}: {said}"
    );
    Ok(())
}

/// An administrator binds `liqo-user` to a group, and its people see what nodes have and cost.
async fn costs_are_seen_by_groups_that_may(world: &World, ann: &Cluster) -> Result<()> {
    let rome = &world.rome;
    let group = format!("--group=system:serviceaccounts:{NAMESPACE}");
    rome.kubectl(&[
        "create",
        "clusterrolebinding",
        "liqo-users",
        "--clusterrole=liqo-user",
        &group,
    ])
    .await?;
    let seen = costs_are_seen(ann, &world.scratch("plan.yaml")).await;
    rome.kubectl(&["delete", "clusterrolebinding", "liqo-users"])
        .await?;
    seen
}

async fn costs_are_seen(ann: &Cluster, file: &Path) -> Result<()> {
    std::fs::write(file, deployment(NAMESPACE, "planned", 1))?;
    let file = file.display().to_string();
    liqo_tests::eventually("the right counts", Duration::from_secs(20), || async {
        let output = ann.try_liqoctl(&["cost", "-n", NAMESPACE]).await?;
        Ok(output.success.then_some(()))
    })
    .await?;
    let costs = ann.liqoctl(&["cost", "-n", NAMESPACE]).await?;
    ensure!(costs.contains("milan"), "{costs}");
    let plan = ann.liqoctl(&["cost", "plan", "-f", &file]).await?;
    ensure!(plan.contains("milan") && plan.contains("1/1"), "{plan}");
    is_refused_in_one_line(ann, &["policy", "list"]).await
}
