//! A job runs once, whatever happens in between.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::ResourceExt as _;
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

pub async fn a_job_whose_remote_pod_was_removed_while_managers_were_down_does_not_run_twice(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("removed", "Remote").await?;
    rome.apply(&job("removed", "short", "until [ -e /tmp/go ]; do sleep 1; done; echo ran")).await?;
    rome.apply(&job("removed", "long", "sleep 600")).await?;
    let remote = rome.remote_namespace("removed", milan).await?;
    for name in ["short", "long"] {
        eventually("the job's pod runs", Duration::from_secs(40), || async {
            let pods = rome.pods("removed", &format!("app={name}")).await?;
            Ok(pods
                .iter()
                .any(|pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running")))
                .then_some(()))
        })
        .await?;
    }
    milan.stop_manager().await?;
    rome.stop_manager().await?;
    let short = milan.ready_pods(&remote, "app=short", 1).await?;
    milan.kubectl(&["-n", &remote, "exec", &short[0].name_any(), "--", "touch", "/tmp/go"]).await?;
    eventually("the short job ended at the peer", Duration::from_secs(90), || async {
        let pods = milan.pods(&remote, "app=short").await?;
        Ok(pods
            .iter()
            .any(|pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded")))
            .then_some(()))
    })
    .await?;
    // One pod is deleted: its finalizer keeps it until its end is recorded. The other is deleted by force, without its finalizer.
    milan.kubectl(&["-n", &remote, "delete", "pod", "-l", "app=short", "--wait=false"]).await?;
    for pod in milan.pods(&remote, "app=long").await? {
        let name = pod.metadata.name.unwrap_or_default();
        milan
            .kubectl(&["-n", &remote, "patch", "pod", &name, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
            .await?;
        milan.kubectl(&["-n", &remote, "delete", "pod", &name, "--force", "--grace-period=0"]).await?;
    }
    milan.start_manager().await?;
    rome.start_manager().await?;
    rome.wait_for(&["-n", "removed", "job/short"], "condition=Complete", 60).await?;
    rome.wait_for(&["-n", "removed", "job/long"], "condition=Failed", 60).await?;
    let lost = rome.pods("removed", "app=long").await?;
    let reason = |pod: &Pod| pod.status.as_ref().and_then(|status| status.reason.clone()).unwrap_or_default();
    ensure!(lost.len() == 1 && reason(&lost[0]) == "RemotePodLost", "{:?}", lost.iter().map(reason).collect::<Vec<_>>());
    still("no remote pod again", Duration::from_secs(5), Vec::new(), || uids(&world, &remote, "app in (short,long)")).await?;
    rome.end_namespace("removed").await
}
