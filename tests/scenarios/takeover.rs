//! Another replica of the manager takes over when the leader dies.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::DeleteParams};
use liqo_api::labels;
use liqo_tests::{Cluster, Measurement, World, eventually};
use serde_json::Value;

use crate::pods::{deployment, node_of};

const NAMESPACE: &str = "takeover";
/// Enough for a rollout of several steps; two cores start about two pods a second.
const PODS: usize = 12;
/// Maximum time until another replica leads, for a machine that is busy. How long it really takes
/// is printed, and told in docs/explanation/replicas-of-the-manager.md.
const TIMEOUT: Duration = Duration::from_secs(45);
const MANAGERS: &str = "app.kubernetes.io/name=liqo-controller-manager";

const DELETED_MANAGERS: &str = "deleted-managers";
/// Pods of the rollouts during which all managers are deleted.
const MANY_PODS: usize = 16;
/// How many rollouts there are, unless `LIQO_TEST_ROUNDS` says so.
const ROUNDS: u64 = 1;
/// The same in a run that measures them.
const MEASURED_ROUNDS: u64 = 5;
/// The managers are deleted at most this long after the rollout began; it takes about as long.
const MAX_DELAY_MILLIS: u64 = 7_000;

async fn set_replicas(cluster: &Cluster, replicas: &str) -> Result<()> {
    let setting = format!("controllerManager.replicas={replicas}");
    cluster
        .liqoctl(&["install", "--set", &setting])
        .await
        .map(drop)
}

/// As [`set_replicas`], but changes nothing else, and so takes less time.
async fn scale(cluster: &Cluster, replicas: &str) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    cluster
        .kubectl(&[
            "-n",
            "liqo",
            "scale",
            "deployment/liqo-controller-manager",
            &replicas,
        ])
        .await
        .map(drop)
}

/// Waits for a leader, and returns its pod.
async fn leader(cluster: &Cluster) -> Result<Pod> {
    eventually(
        &format!("{} has a leader", cluster.name),
        TIMEOUT,
        || async { leader_now(cluster).await.map(Some) },
    )
    .await
}

/// The pod of the leader: it holds the Lease, and it alone has the leader's label.
async fn leader_now(cluster: &Cluster) -> Result<Pod> {
    let lease = cluster
        .object(&["-n", "liqo", "lease", "liqo-controller-manager"])
        .await?
        .unwrap_or_default();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    let mut labelled = cluster
        .pods("liqo", &format!("{}=true", labels::LEADER))
        .await?;
    match (labelled.pop(), labelled.is_empty()) {
        (Some(pod), true) if pod.name_any() == holder => Ok(pod),
        (pod, _) => bail!(
            "{} has the label, {holder} the Lease",
            pod.map(|pod| pod.name_any()).unwrap_or_default()
        ),
    }
}

/// The process ID of the manager in this pod, unless it starts just now.
fn process_of(world: &World, cluster: &Cluster, pod: &str) -> Result<Option<i32>> {
    let variable = format!("POD_NAME={pod}");
    let is_in_pod = |pid: i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == variable.as_bytes())
    };
    let processes = world.machinery(cluster)?.processes();
    let mut managers = processes
        .iter()
        .filter(|process| process.program == "liqo-controller-manager");
    Ok(managers
        .find(|process| is_in_pod(process.pid))
        .map(|process| process.pid))
}

/// Kills the leader, and removes its pod before the kubelet starts the container again: so only
/// another replica can take over.
async fn kill_leader(world: &World, cluster: &Cluster) -> Result<()> {
    let what = format!("the leader of {} has a process", cluster.name);
    let (pod, pid) = eventually(&what, TIMEOUT, || async {
        let pod = leader_now(cluster).await?.name_any();
        let pid = process_of(world, cluster, &pod)?
            .with_context(|| format!("pod {pod} has no process"))?;
        Ok(Some((pod, pid)))
    })
    .await?;
    world.shell(&format!("kill -9 {pid}"), 10).await?;
    cluster
        .api::<Pod>("liqo")
        .delete(&pod, &DeleteParams::default().grace_period(0))
        .await?;
    succeeded(cluster, &pod, "was killed").await
}

/// Deletes the pod of the leader, which may end in order.
async fn delete_leader(cluster: &Cluster) -> Result<()> {
    let pod = leader(cluster).await?.name_any();
    cluster
        .api::<Pod>("liqo")
        .delete(&pod, &DeleteParams::default())
        .await?;
    succeeded(cluster, &pod, "was deleted").await
}

/// Waits until another replica leads, and shows how long that takes.
async fn succeeded(cluster: &Cluster, former: &str, what: &str) -> Result<()> {
    let begun = Instant::now();
    eventually(
        &format!("another replica leads in {}", cluster.name),
        TIMEOUT,
        || async { Ok((leader_now(cluster).await?.name_any() != former).then_some(())) },
    )
    .await?;
    println!(
        "{}: another replica led {:.1} s after the leader {what}",
        cluster.name,
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Begins a rollout, and returns when some pods are new, but not all.
async fn begin_rollout(turin: &Cluster, version: &str) -> Result<()> {
    turin
        .kubectl(&[
            "-n",
            NAMESPACE,
            "set",
            "env",
            "deployment/web",
            &format!("VERSION={version}"),
        ])
        .await?;
    eventually("the rollout has begun", Duration::from_secs(30), || async {
        let web = turin
            .object(&["-n", NAMESPACE, "deployment", "web"])
            .await?
            .unwrap_or_default();
        let is_observed = web["status"]["observedGeneration"] == web["metadata"]["generation"];
        Ok(
            (is_observed && web["status"]["updatedReplicas"].as_u64().unwrap_or(0) > 0)
                .then_some(()),
        )
    })
    .await
}

/// Waits until the rollout is complete: all pods are ready, and the provider runs each of them
/// once, and no other.
async fn end_rollout(world: &World, remote: &str) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    turin
        .kubectl(&[
            "-n",
            NAMESPACE,
            "rollout",
            "status",
            "deployment/web",
            "--timeout=150s",
        ])
        .await?;
    let pods = turin.ready_pods(NAMESPACE, "app=web", PODS).await?;
    runs_each_once(milan, remote, &pods.iter().collect::<Vec<_>>()).await
}

/// Waits until the provider runs each of these local pods once, and no other.
pub async fn runs_each_once(provider: &Cluster, remote: &str, pods: &[&Pod]) -> Result<()> {
    let uids: BTreeSet<String> = pods
        .iter()
        .filter_map(|pod| pod.metadata.uid.clone())
        .collect();
    eventually(
        "the provider runs each pod once, and no other",
        Duration::from_mins(1),
        || async {
            let there = provider.pods(remote, "app=web").await?;
            let mut theirs: Vec<&String> = there
                .iter()
                .filter_map(|pod| pod.labels().get(labels::SHADOW_POD))
                .collect();
            theirs.sort();
            ensure!(
                theirs.iter().copied().eq(&uids),
                "{} pods there are {theirs:?}, {} here are {uids:?}",
                there.len(),
                pods.len()
            );
            Ok(Some(()))
        },
    )
    .await
}

/// Checks that the API server finds the kubelet API of the virtual node at the leader.
async fn the_virtual_node_follows(turin: &Cluster) -> Result<()> {
    eventually(
        "the virtual node has the leader's address, and logs come through it",
        Duration::from_secs(30),
        || async {
            let address = leader(turin)
                .await?
                .status
                .and_then(|status| status.pod_ip)
                .context("the leader has no address")?;
            let node = turin.object(&["node", "milan"]).await?.unwrap_or_default();
            let addresses = node["status"]["addresses"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            ensure!(
                addresses
                    .iter()
                    .any(|one| one["address"] == address.as_str()),
                "{addresses:?} instead of {address}"
            );
            let logs = turin
                .try_kubectl(&["-n", NAMESPACE, "logs", "deployment/web"])
                .await?;
            ensure!(logs.success && logs.stdout.contains("started"), "{logs:?}");
            Ok(Some(()))
        },
    )
    .await
}

/// Checks that a cluster with two nodes has two replicas, on different nodes, if nobody chose a
/// number.
async fn two_nodes_have_two_replicas(turin: &Cluster) -> Result<()> {
    set_replicas(turin, "").await?;
    let nodes: BTreeSet<String> = turin
        .ready_pods("liqo", MANAGERS, 2)
        .await?
        .iter()
        .map(|pod| node_of(pod).to_owned())
        .collect();
    ensure!(nodes.len() == 2, "both replicas run on {nodes:?}");
    let budget = turin
        .object(&[
            "-n",
            "liqo",
            "poddisruptionbudget",
            "liqo-controller-manager",
        ])
        .await?;
    ensure!(budget.is_some(), "there is no disruption budget");
    let status: Value = serde_json::from_str(&turin.liqoctl(&["status", "-o", "json"]).await?)?;
    ensure!(
        status["cluster"]["replicasNote"].is_null(),
        "{}",
        status["cluster"]
    );
    Ok(())
}

pub async fn a_rollout_completes_although_the_leaders_of_both_clusters_die(
    world: Arc<World>,
) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    tokio::try_join!(two_nodes_have_two_replicas(turin), scale(milan, "2"))?;
    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    turin.offloaded_namespace(NAMESPACE, "Remote").await?;
    let replicas = format!("  replicas: {PODS}\n");
    let quick = format!(
        "{replicas}  strategy: {{ rollingUpdate: {{ maxSurge: 50%, maxUnavailable: 50% }} }}\n"
    );
    turin
        .apply(&deployment(NAMESPACE, "web", u32::try_from(PODS)?).replace(&replicas, &quick))
        .await?;
    turin.ready_pods(NAMESPACE, "app=web", PODS).await?;
    let remote = turin.remote_namespace(NAMESPACE, milan).await?;

    begin_rollout(turin, "2").await?;
    tokio::try_join!(kill_leader(&world, turin), kill_leader(&world, milan))?;
    end_rollout(&world, &remote).await?;
    the_virtual_node_follows(turin).await?;

    // Two replicas again, or nobody could take over at once.
    tokio::try_join!(
        turin.ready_pods("liqo", MANAGERS, 2),
        milan.ready_pods("liqo", MANAGERS, 2)
    )?;
    begin_rollout(turin, "3").await?;
    tokio::try_join!(delete_leader(turin), delete_leader(milan))?;
    end_rollout(&world, &remote).await?;
    the_virtual_node_follows(turin).await?;

    turin.end_namespace(NAMESPACE).await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    tokio::try_join!(set_replicas(turin, "1"), scale(milan, "1"))?;
    let budget = turin
        .object(&[
            "-n",
            "liqo",
            "poddisruptionbudget",
            "liqo-controller-manager",
        ])
        .await?;
    ensure!(budget.is_none(), "the disruption budget stays");
    Ok(())
}

/// Numbers that follow from a seed (xorshift), so that a run can be repeated.
struct Random(u64);

impl Random {
    /// Up to `max`.
    fn up_to(&mut self, max: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (max + 1)
    }
}

/// The number in an environment variable.
fn setting(variable: &str) -> Result<Option<u64>> {
    let value = std::env::var(variable).ok();
    value
        .map(|value| {
            value
                .parse()
                .with_context(|| format!("{variable} is no number: {value}"))
        })
        .transpose()
}

/// Deletes all managers of a cluster after this many milliseconds, and does not wait for new ones.
async fn delete_managers(cluster: &Cluster, delay: u64) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(delay)).await;
    cluster
        .kubectl(&[
            "-n",
            "liqo",
            "delete",
            "pod",
            "-l",
            MANAGERS,
            "--wait=false",
        ])
        .await
        .map(drop)
}

/// Rolls the Deployment out, deletes all managers meanwhile, and checks that every pod runs in the
/// end, each once.
async fn round(world: &World, remote: &str, number: u64, delays: (u64, u64)) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.kubectl(&[
        "-n",
        DELETED_MANAGERS,
        "set",
        "env",
        "deployment/web",
        &format!("ROUND={number}"),
    ])
    .await?;
    tokio::try_join!(
        delete_managers(rome, delays.0),
        delete_managers(milan, delays.1)
    )?;
    rome.kubectl(&[
        "-n",
        DELETED_MANAGERS,
        "rollout",
        "status",
        "deployment/web",
        "--timeout=240s",
    ])
    .await?;
    // All of them are Ready, so none waits for a node, with or without the toleration for virtual
    // nodes.
    let pods = rome
        .ready_pods(DELETED_MANAGERS, "app=web", MANY_PODS)
        .await?;
    let offloaded: Vec<&Pod> = pods.iter().filter(|pod| node_of(pod) == "milan").collect();
    println!(
        "round {number}: {} of {} pods run at the provider",
        offloaded.len(),
        pods.len()
    );
    runs_each_once(milan, remote, &offloaded).await
}

pub async fn rollouts_complete_whenever_all_managers_are_deleted(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let rounds = setting("LIQO_TEST_ROUNDS")?
        .unwrap_or(Measurement::Rollouts.choose(ROUNDS, MEASURED_ROUNDS)?);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let seed = setting("LIQO_TEST_SEED")?.unwrap_or(now.as_secs()).max(1);
    println!("{rounds} rounds with LIQO_TEST_SEED={seed}");
    rome.offloaded_namespace(DELETED_MANAGERS, "LocalAndRemote")
        .await?;
    let replicas = format!("  replicas: {MANY_PODS}\n");
    let quick = format!(
        "{replicas}  strategy: {{ rollingUpdate: {{ maxSurge: 100%, maxUnavailable: 50% }} }}\n"
    );
    rome.apply(
        &deployment(DELETED_MANAGERS, "web", u32::try_from(MANY_PODS)?).replace(&replicas, &quick),
    )
    .await?;
    rome.kubectl(&[
        "-n",
        DELETED_MANAGERS,
        "rollout",
        "status",
        "deployment/web",
        "--timeout=240s",
    ])
    .await?;
    let remote = rome.remote_namespace(DELETED_MANAGERS, milan).await?;
    let pods = rome
        .ready_pods(DELETED_MANAGERS, "app=web", MANY_PODS)
        .await?;
    ensure!(
        pods.iter().any(|pod| node_of(pod) == "milan"),
        "no pod runs at milan, so the rounds would not show anything"
    );

    let mut random = Random(seed);
    for number in 1..=rounds {
        let delays = (
            random.up_to(MAX_DELAY_MILLIS),
            random.up_to(MAX_DELAY_MILLIS),
        );
        println!(
            "round {number}: the managers of rome are deleted after {} ms, those of milan after {} ms",
            delays.0, delays.1
        );
        let outcome = round(&world, &remote, number, delays).await;
        outcome.with_context(|| format!("round {number} of the run with LIQO_TEST_SEED={seed}"))?;
    }
    for cluster in [rome, milan] {
        cluster
            .kubectl(&[
                "-n",
                "liqo",
                "rollout",
                "status",
                "deployment/liqo-controller-manager",
                "--timeout=90s",
            ])
            .await?;
    }
    rome.end_namespace(DELETED_MANAGERS).await
}
