//! A job runs once, whatever happens in between.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use liqo_tests::{World, eventually, still};

fn job(namespace: &str, name: &str, script: &str) -> String {
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
    Ok(pods.into_iter().filter_map(|pod| pod.metadata.uid).collect())
}

pub async fn a_finished_job_never_runs_again(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("jobs", "Remote").await?;
    rome.apply(&job("jobs", "once", "echo ran")).await?;
    rome.wait_for(&["-n", "jobs", "job/once"], "condition=Complete", 60).await?;
    ensure!(rome.kubectl(&["-n", "jobs", "logs", "job/once"]).await? == "ran\n");
    let remote = rome.remote_namespace("jobs", milan).await?;
    let before = uids(&world, &remote, "app=once").await?;
    ensure!(before.len() == 1, "{} remote pods", before.len());
    tokio::try_join!(milan.restart_manager(), rome.restart_manager())?;
    still("the job's remote pods", Duration::from_secs(3), before.clone(), || uids(&world, &remote, "app=once")).await?;
    milan.kubectl(&["-n", &remote, "delete", "pod", "-l", "app=once", "--wait=false"]).await?;
    eventually("the remote pod is gone", Duration::from_secs(30), || async {
        Ok(uids(&world, &remote, "app=once").await?.is_empty().then_some(()))
    })
    .await?;
    still("no new remote pod", Duration::from_secs(2), Vec::new(), || uids(&world, &remote, "app=once")).await?;
    let job = rome.api::<Job>("jobs").get("once").await?.status.unwrap_or_default();
    ensure!(job.succeeded == Some(1) && job.failed.unwrap_or(0) == 0, "the job's status changed: {job:?}");
    rome.end_namespace("jobs").await
}
