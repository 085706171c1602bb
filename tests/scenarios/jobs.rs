//! A job runs once, whatever happens in between, and is not charged for what a provider does.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_tests::{Cluster, World, eventually, still};
use serde_json::json;

/// A Job that fails with its first pod.
pub fn job(namespace: &str, name: &str, script: &str) -> String {
    format!(
        r#"
apiVersion: batch/v1
kind: Job
metadata: {{ name: {name}, namespace: {namespace} }}
spec:
  backoffLimit: 0
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers: [{{ name: main, image: localhost/busybox:1, command: [sh, -c, "{script}"] }}]
"#
    )
}

async fn uids(world: &World, namespace: &str, selector: &str) -> Result<Vec<String>> {
    let pods = world.milan.pods(namespace, selector).await?;
    Ok(pods
        .into_iter()
        .filter_map(|pod| pod.metadata.uid)
        .collect())
}

pub async fn a_finished_job_never_runs_again(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("jobs", "Remote").await?;
    rome.apply(&job("jobs", "once", "echo ran")).await?;
    rome.wait_for(&["-n", "jobs", "job/once"], "condition=Complete", 60)
        .await?;
    ensure!(rome.kubectl(&["-n", "jobs", "logs", "job/once"]).await? == "ran\n");
    let remote = rome.remote_namespace("jobs", milan).await?;
    let before = uids(&world, &remote, "app=once").await?;
    ensure!(before.len() == 1, "{} remote pods", before.len());
    tokio::try_join!(milan.restart_manager(), rome.restart_manager())?;
    still(
        "the job's remote pods",
        Duration::from_secs(3),
        before.clone(),
        || uids(&world, &remote, "app=once"),
    )
    .await?;
    milan
        .kubectl(&[
            "-n",
            &remote,
            "delete",
            "pod",
            "-l",
            "app=once",
            "--wait=false",
        ])
        .await?;
    eventually(
        "the remote pod is gone",
        Duration::from_secs(30),
        || async {
            Ok(uids(&world, &remote, "app=once")
                .await?
                .is_empty()
                .then_some(()))
        },
    )
    .await?;
    still(
        "no new remote pod",
        Duration::from_secs(2),
        Vec::new(),
        || uids(&world, &remote, "app=once"),
    )
    .await?;
    let job = rome
        .api::<Job>("jobs")
        .get("once")
        .await?
        .status
        .unwrap_or_default();
    ensure!(
        job.succeeded == Some(1) && job.failed.unwrap_or(0) == 0,
        "the job's status changed: {job:?}"
    );
    rome.end_namespace("jobs").await
}

/// A Job that may not fail, and does not count pods that something else than the pod ended.
fn job_that_ignores_disruptions(namespace: &str) -> String {
    let policy = json!({ "rules": [{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }] });
    let manifest = job(namespace, "work", "trap 'exit 143' TERM; sleep 3600 & wait");
    manifest.replace(
        "  backoffLimit: 0\n",
        &format!("  backoffLimit: 0\n  podFailurePolicy: {policy}\n"),
    )
}

/// The pods of both Jobs at turin that are not being deleted.
async fn working(turin: &Cluster) -> Result<Vec<Pod>> {
    let mut pods = Api::<Pod>::all(turin.client.clone())
        .list(&ListParams::default().labels("app=work"))
        .await?
        .items;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(pods)
}

/// Milan runs a Job at turin, and so does rome, through milan. Rome knows only milan.
pub async fn a_job_outlives_a_drain_at_its_provider_and_behind_a_broker(
    world: Arc<World>,
) -> Result<()> {
    let (milan, turin) = (&world.milan, &world.turin);
    let consumers = [(&world.rome, "drained-far"), (milan, "drained-near")];
    for (consumer, namespace) in consumers {
        consumer.offloaded_namespace(namespace, "Remote").await?;
        consumer
            .apply(&job_that_ignores_disruptions(namespace))
            .await?;
    }
    for (consumer, namespace) in consumers {
        consumer.ready_pods(namespace, "app=work", 1).await?;
    }
    let before = working(turin).await?;
    ensure!(before.len() == 2, "{} pods run at turin", before.len());
    let nodes: Vec<&str> = before
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    for node in &nodes {
        turin
            .kubectl(&[
                "drain",
                node,
                "--ignore-daemonsets",
                "--force",
                "--pod-selector=app=work",
                "--timeout=90s",
            ])
            .await?;
        turin.kubectl(&["uncordon", node]).await?;
    }
    for (consumer, namespace) in consumers {
        eventually(
            &format!("another pod of the Job in {namespace} is ready"),
            Duration::from_mins(1),
            || async {
                let status = consumer
                    .api::<Job>(namespace)
                    .get("work")
                    .await?
                    .status
                    .unwrap_or_default();
                ensure!(
                    status.failed.unwrap_or(0) == 0,
                    "the Job in {namespace} counts the drain: {status:?}"
                );
                let is_new = |pod: &Pod| before.iter().all(|one| one.uid() != pod.uid());
                Ok(
                    (status.ready == Some(1) && working(turin).await?.iter().all(is_new))
                        .then_some(()),
                )
            },
        )
        .await?;
    }
    for (consumer, namespace) in consumers {
        consumer.end_namespace(namespace).await?;
    }
    Ok(())
}
