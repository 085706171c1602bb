//! A consumer that uses everything that it has at the provider, also more often than it may, and is
//! refused.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, WatchParams};
use liqo_api::{ShadowPod, tenant_namespace};
use liqo_tests::{Cluster, World, eventually};
use tokio::task::JoinHandle;

use super::{
    CORE, RECORDS,
    flood::{client, request, send},
    forget, nothing_is_left,
};
use crate::{approval::shows, isolation::token, pods::deployment};

const NAMESPACE: &str = "refused";
/// More than a consumer may start at once.
const COMMANDS: usize = 200;
/// Streams end with the pods, after a grace period of at most 30 s.
const STREAM_TIMEOUT: u64 = 90;
/// The provider ends tokens within 10 s.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A command that runs until the provider ends it. Returns how long after `begun` it ended.
fn stream(world: &Arc<World>, line: String) -> JoinHandle<Result<Instant>> {
    let world = world.clone();
    tokio::spawn(async move {
        world
            .shell(&line, 2 * STREAM_TIMEOUT)
            .await
            .map(|_| Instant::now())
    })
}

/// Waits until this process runs in a pod.
async fn runs(cluster: &Cluster, pod: &str, process: &str) -> Result<()> {
    eventually(&format!("{process} runs in the pod"), TIMEOUT, || async {
        let processes = cluster
            .try_kubectl(&["-n", NAMESPACE, "exec", pod, "--", "ps"])
            .await?;
        Ok(processes.stdout.contains(process).then_some(()))
    })
    .await
}

/// Watches the consumer's shadow pods with its own credential until the watch ends.
async fn watch(api: Api<ShadowPod>) -> Result<()> {
    let mut events = pin!(api.watch(&WatchParams::default(), "0").await?);
    while let Some(event) = events.next().await {
        event?;
    }
    Ok(())
}

/// Starts commands with the consumer's credential, all at once. Some run, and the others are
/// refused.
async fn commands_have_a_limit(credential: &Cluster, mapped: &str, pod: &str) -> Result<()> {
    // This client sends each request once. The usual one would try again until the provider has
    // time.
    let pods = Api::<Pod>::namespaced(client(&credential.kubeconfig).await?, mapped);
    let parameters = AttachParams::default();
    let start = || pods.exec(pod, ["true"], &parameters);
    let started = join_all((0..COMMANDS).map(|_| start())).await;
    let refusals: Vec<_> = started
        .iter()
        .filter_map(|started| started.as_ref().err())
        .map(ToString::to_string)
        .collect();
    println!(
        "{} of {COMMANDS} commands at once were refused",
        refusals.len()
    );
    ensure!(
        (1..COMMANDS).contains(&refusals.len()),
        "{} of {COMMANDS} commands were refused: {refusals:?}",
        refusals.len()
    );
    ensure!(
        refusals.iter().all(|refusal| refusal.contains("429")),
        "a command was refused otherwise: {refusals:?}"
    );
    eventually("the consumer can start commands again", TIMEOUT, || async {
        Ok(start().await.is_ok().then_some(()))
    })
    .await
}

pub async fn a_refused_consumer_is_out_within_seconds(world: Arc<World>) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    turin.offloaded_namespace(NAMESPACE, "Remote").await?;
    turin.apply(&deployment(NAMESPACE, "web", 2)).await?;
    let pods = turin.ready_pods(NAMESPACE, "app=web", 2).await?;
    let pod = pods[0]
        .metadata
        .name
        .clone()
        .context("a pod without a name")?;
    let (id, mapped) = (
        turin.cluster_id().await?,
        turin.remote_namespace(NAMESPACE, milan).await?,
    );
    let tenant = tenant_namespace(&id.parse()?);
    let credential = milan
        .with_token(
            &token(&world, turin).await?,
            &world.scratch("refused.kubeconfig"),
        )
        .await?;

    // Through the virtual node, and with the credential itself.
    let streams = [
        (
            "exec",
            turin.kubectl_line(&format!("-n {NAMESPACE} exec {pod} -- sleep 601")),
        ),
        (
            "exec with the credential",
            credential.kubectl_line(&format!("-n {mapped} exec {pod} -- sleep 602")),
        ),
        (
            "logs -f",
            turin.kubectl_line(&format!("-n {NAMESPACE} logs -f {pod}")),
        ),
        (
            "logs -f with the credential",
            credential.kubectl_line(&format!("-n {mapped} logs -f {pod}")),
        ),
    ];
    let streams = streams.map(|(name, line)| (name, stream(&world, line)));
    let watched = tokio::spawn(watch(credential.api::<ShadowPod>(&tenant)));
    for process in ["sleep 601", "sleep 602"] {
        runs(turin, &pod, process).await?;
    }
    let goes_on = streams.iter().all(|(_, stream)| !stream.is_finished()) && !watched.is_finished();
    ensure!(goes_on, "a stream ended before its consumer was refused");
    commands_have_a_limit(&credential, &mapped, &pod).await?;

    let begun = Instant::now();
    milan.liqoctl(&["refuse", &id, "--yes"]).await?;
    let old = client(&credential.kubeconfig).await?;
    for path in [
        format!("{RECORDS}/namespaces/{tenant}/shadowpods"),
        format!("{RECORDS}/namespaces/{tenant}/shadowpods?watch=true&timeoutSeconds=1"),
        format!("{CORE}/namespaces/{mapped}/pods/{pod}"),
        format!("{CORE}/namespaces/{mapped}/pods/{pod}/exec?command=true&stdout=true"),
    ] {
        eventually(&format!("{path} is refused"), TIMEOUT, || async {
            let code = send(&old, request("GET", &path, None)?).await;
            ensure!([401, 403].contains(&code), "it is answered with {code}");
            Ok(Some(()))
        })
        .await?;
        println!(
            "{:.1} s after the consumer was refused: no {path}",
            begun.elapsed().as_secs_f64()
        );
    }
    shows(turin, &["Authenticated", "Blocked"]).await?;
    shows(milan, &["ConsumerAuthorized", "Blocked"]).await?;
    for (name, stream) in streams {
        let ended = tokio::time::timeout(Duration::from_secs(STREAM_TIMEOUT), stream).await;
        let ended = ended
            .with_context(|| format!("{name} goes on after the consumer was refused"))??
            .with_context(|| name)?;
        println!(
            "{name} ended {:.1} s after the consumer was refused",
            ended.saturating_duration_since(begun).as_secs_f64()
        );
    }
    nothing_is_left(milan, &id, Duration::from_secs(90)).await?;
    println!(
        "nothing was left {:.1} s after the consumer was refused",
        begun.elapsed().as_secs_f64()
    );
    ensure!(
        milan.api::<Pod>(&mapped).get_opt(&pod).await?.is_none(),
        "the pod is still there"
    );
    // Kubernetes checks rights only when a watch begins: docs/how-to/refuse-a-consumer.md says when
    // it ends. What it shows does not exist any more.
    println!(
        "the watch with the credential {}",
        if watched.is_finished() {
            "ended"
        } else {
            "is still open, and has nothing to show"
        }
    );
    watched.abort();

    turin
        .liqoctl(&["unpeer", "milan", "--yes", "--now"])
        .await?;
    forget(milan, &id).await?;
    turin.end_namespace(NAMESPACE).await
}
