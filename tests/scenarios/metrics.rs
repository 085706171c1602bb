//! What remote pods use: `kubectl top`, and an autoscaler that follows it.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::pods::{deployment, node_of};

/// metrics-server in both clusters needs two readings, ten seconds apart, the second one after the
/// first. An autoscaler looks every 15 s.
const TIMEOUT: Duration = Duration::from_mins(3);

/// The numbers in a line of `kubectl top`, for example 12 and 3 in `web 12m 3Mi`.
async fn top(cluster: &Cluster, arguments: &[&str]) -> Result<Option<Vec<u64>>> {
    let output = cluster
        .try_kubectl(&[&["top"], arguments, &["--no-headers"]].concat())
        .await?;
    ensure!(output.success, "{}", output.stderr);
    let line = output.stdout.lines().next().unwrap_or_default().to_owned();
    let number = |word: &str| {
        word.trim_end_matches(|end: char| !end.is_ascii_digit())
            .parse()
            .ok()
    };
    let numbers: Vec<u64> = line.split_whitespace().skip(1).filter_map(number).collect();
    Ok((numbers.len() >= 2).then_some(numbers))
}

pub async fn remote_pods_are_measured_and_scaled_by_what_they_use(world: Arc<World>) -> Result<()> {
    let (rome, namespace) = (&world.rome, "measured");
    rome.offloaded_namespace(namespace, "Remote").await?;
    let busy = deployment(namespace, "busy", 1).replace("sleep 3600 & wait", "while :; do :; done");
    let limit = "{ requests: { cpu: 10m, memory: 16Mi }, limits: { cpu: 40m } }";
    rome.apply(&busy.replace("{ requests: { cpu: 10m, memory: 16Mi } }", limit))
        .await?;
    let scaler = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "busy", "namespace": namespace },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "busy" },
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 100 } } }],
        },
    });
    rome.apply(&scaler.to_string()).await?;
    rome.ready_pods(namespace, "app=busy", 1).await?;
    let pod = eventually(
        "kubectl top shows what the remote pod uses",
        TIMEOUT,
        || async {
            Ok(top(rome, &["pod", "-n", namespace, "-l", "app=busy"])
                .await?
                .filter(|numbers| numbers[0] > 0))
        },
    )
    .await?;
    let node = eventually(
        "kubectl top shows what runs on the virtual node",
        TIMEOUT,
        || async {
            Ok(top(rome, &["node", "milan"])
                .await?
                .filter(|numbers| numbers[0] > 0))
        },
    )
    .await?;
    eprintln!("kubectl top: pod {pod:?}, virtual node {node:?}");
    // At home every pod of this scenario runs at milan, so the autoscaler has no other numbers.
    let pods: Vec<Pod> = eventually("the autoscaler adds a pod", TIMEOUT, || async {
        let pods = rome.pods(namespace, "app=busy").await?;
        Ok((pods.len() == 2).then_some(pods))
    })
    .await?;
    rome.ready_pods(namespace, "app=busy", 2).await?;
    ensure!(
        pods.iter().all(|pod| ["milan", ""].contains(&node_of(pod))),
        "not all pods are on the virtual node"
    );
    let describe = rome
        .kubectl(&[
            "-n",
            namespace,
            "describe",
            "horizontalpodautoscaler",
            "busy",
        ])
        .await?;
    describe
        .lines()
        .find(|line| line.contains("resource cpu on pods"))
        .context("the autoscaler does not show what it measured")?;
    rome.end_namespace(namespace).await
}
