//! Drains at providers wait for the disruption budgets of home.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use liqo_tests::{Cluster, World, eventually};

fn protected(namespace: &str) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: guarded, namespace: {namespace} }}
spec:
  selector: {{ matchLabels: {{ app: guarded }} }}
  template:
    metadata: {{ labels: {{ app: guarded }} }}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{{ name: main, image: localhost/busybox:1, command: [sleep, "3600"] }}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{ name: guarded, namespace: {namespace} }}
spec: {{ minAvailable: 1, selector: {{ matchLabels: {{ app: guarded }} }} }}
"#
    )
}

/// The pods of both Deployments at turin that are not being deleted.
async fn guarded(turin: &Cluster) -> Result<Vec<Pod>> {
    let mut pods = Api::<Pod>::all(turin.client.clone())
        .list(&ListParams::default().labels("app=guarded"))
        .await?
        .items;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(pods)
}

/// Milan runs a pod at turin, and so does rome, through milan. Rome knows only milan.
pub async fn a_drain_waits_for_the_budget_of_home_also_behind_a_broker(
    world: Arc<World>,
) -> Result<()> {
    let (milan, turin) = (&world.milan, &world.turin);
    let consumers = [(&world.rome, "guarded-far"), (milan, "guarded-near")];
    for (consumer, namespace) in consumers {
        consumer.offloaded_namespace(namespace, "Remote").await?;
        consumer.apply(&protected(namespace)).await?;
    }
    for (consumer, namespace) in consumers {
        consumer.ready_pods(namespace, "app=guarded", 1).await?;
    }
    let before = guarded(turin).await?;
    ensure!(before.len() == 2, "{} pods run at turin", before.len());
    for pod in &before {
        let namespace = pod.namespace().unwrap_or_default();
        eventually(
            &format!("turin knows the budget for {namespace}"),
            Duration::from_mins(1),
            || async {
                let allowed = [
                    "-n",
                    &namespace,
                    "get",
                    "pdb",
                    "guarded",
                    "-o",
                    "jsonpath={.status.currentHealthy} {.status.disruptionsAllowed}",
                ];
                Ok((turin.try_kubectl(&allowed).await?.stdout == "1 0").then_some(()))
            },
        )
        .await?;
    }
    let nodes: BTreeSet<&str> = before
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    let drain = async |node: &str, timeout: &str| {
        let selected = [
            "--ignore-daemonsets",
            "--force",
            "--pod-selector=app=guarded",
            timeout,
        ];
        turin
            .try_kubectl(&[&["drain", node][..], &selected].concat())
            .await
    };
    for node in &nodes {
        let output = drain(node, "--timeout=8s").await?;
        let said = output.stderr;
        ensure!(
            !output.success && said.contains("disruption budget"),
            "the drain of {node} did not wait: {said}"
        );
    }
    let uids = |pods: &[Pod]| {
        pods.iter()
            .filter_map(ResourceExt::uid)
            .collect::<BTreeSet<_>>()
    };
    ensure!(
        uids(&guarded(turin).await?) == uids(&before),
        "a pod ended although home allows nothing"
    );
    for (consumer, namespace) in consumers {
        consumer
            .kubectl(&[
                "-n",
                namespace,
                "patch",
                "pdb",
                "guarded",
                "-p",
                r#"{"spec":{"minAvailable":0}}"#,
            ])
            .await?;
    }
    for node in &nodes {
        let output = drain(node, "--timeout=90s").await?;
        ensure!(
            output.success,
            "the drain of {node} failed: {}",
            output.stderr
        );
    }
    for node in nodes {
        turin.kubectl(&["uncordon", node]).await?;
    }
    for (consumer, namespace) in consumers {
        // If turin had no room meanwhile, the pod has failed, and another one replaces it.
        consumer
            .wait_for(
                &["-n", namespace, "deployment/guarded"],
                "condition=Available",
                120,
            )
            .await?;
        consumer.end_namespace(namespace).await?;
    }
    Ok(())
}
