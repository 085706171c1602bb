//! What an honest consumer does during an attack, and how long each step takes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
    runtime::wait::{Condition, await_condition, conditions},
};
use liqo_api::labels;
use liqo_peering::{auth::client::Applicant, protocol::PeeringAnswer};
use liqo_tests::{
    Cluster, World, eventually,
    load::{COMPARISON_HEADER, Latencies, Memory, compare},
};
use serde_json::json;

use crate::{
    peering::{key_of, milan},
    pods::deployment,
    takeover::runs_each_once,
};

/// Users who create and delete pods at the same time.
const USERS: usize = 3;
/// Pods that run all the time.
const RESIDENTS: usize = 2;
/// A pod that is not running after this time counts as lost.
const LOST: Duration = Duration::from_mins(2);
/// The provider answers a consumer once in two seconds.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(2500);

/// How long each step took.
#[derive(Debug, Default)]
pub struct Paces {
    /// From the creation of a local pod until it is shown as running.
    running: Latencies,
    /// From the deletion of a local pod until it is gone.
    deletion: Latencies,
    /// A new credential from the auth endpoint.
    pub renewal: Latencies,
    pub failed_renewals: Vec<String>,
}

/// Prints how long each step took without an attack and under one.
pub fn show(without: &Paces, under: &Paces) {
    println!("{COMPARISON_HEADER}");
    println!(
        "{}",
        compare("a pod runs after", &without.running, &under.running)
    );
    println!(
        "{}",
        compare(
            "a deleted pod is gone after",
            &without.deletion,
            &under.deletion
        )
    );
    println!(
        "{}",
        compare(
            "a credential is renewed after",
            &without.renewal,
            &under.renewal
        )
    );
    for failed in &under.failed_renewals {
        println!("a renewal under attack failed: {failed}");
    }
}

/// An honest user of rome, in a namespace that is offloaded to milan only.
pub struct Honest<'a> {
    world: &'a World,
    namespace: &'a str,
    /// Name of the namespace at milan.
    remote: String,
    residents: Vec<Pod>,
}

impl<'a> Honest<'a> {
    /// Offloads a new namespace, and starts the pods that run all the time.
    pub async fn start(world: &'a World, namespace: &'a str) -> Result<Self> {
        let (rome, milan) = (&world.rome, &world.milan);
        let selector = format!(
            "{}={}",
            labels::REMOTE_CLUSTER_ID,
            milan.cluster_id().await?
        );
        rome.kubectl(&["create", "namespace", namespace]).await?;
        let offload = [
            "offload",
            "namespace",
            namespace,
            "--pod-offloading-strategy",
            "Remote",
            "--selector",
            &selector,
        ];
        rome.liqoctl(&offload).await?;
        rome.wait_for(
            &["-n", namespace, "namespaceoffloading/offloading"],
            "condition=Ready",
            90,
        )
        .await?;
        rome.apply(&deployment(namespace, "web", u32::try_from(RESIDENTS)?))
            .await?;
        let residents = rome.ready_pods(namespace, "app=web", RESIDENTS).await?;
        let remote = rome.remote_namespace(namespace, milan).await?;
        Ok(Self {
            world,
            namespace,
            remote,
            residents,
        })
    }

    /// Creates and deletes pods, and renews rome's credential, for this long. Fails if a pod is
    /// lost, or runs twice.
    pub async fn work(&self, phase: &str, length: Duration) -> Result<Paces> {
        let until = Instant::now() + length;
        let users = try_join_all(
            (0..USERS).map(|user| self.pods_come_and_go(format!("{phase}-{user}"), until)),
        );
        let (users, mut paces) = tokio::try_join!(users, renewals(self.world, until))?;
        for user in users {
            paces.running.append(user.running);
            paces.deletion.append(user.deletion);
        }
        Ok(paces)
    }

    async fn pods_come_and_go(&self, prefix: String, until: Instant) -> Result<Paces> {
        let (api, provider) = (
            self.world.rome.api::<Pod>(self.namespace),
            &self.world.milan,
        );
        let (mut paces, mut number) = (Paces::default(), 0);
        while number == 0 || Instant::now() < until {
            let name = format!("{prefix}-{number}");
            number += 1;
            let begun = Instant::now();
            let uid = api
                .create(&PostParams::default(), &sleeper(&name)?)
                .await?
                .uid()
                .context("the pod has no UID")?;
            reaches(&api, &name, "runs", conditions::is_pod_running()).await?;
            paces.running.add(begun.elapsed());
            let there = provider
                .pods(&self.remote, &format!("{}={uid}", labels::SHADOW_POD))
                .await?;
            ensure!(
                there.len() == 1,
                "{} pods of {} run for {name}",
                there.len(),
                provider.name
            );
            let begun = Instant::now();
            api.delete(&name, &DeleteParams::default()).await?;
            reaches(&api, &name, "is gone", conditions::is_deleted(&uid)).await?;
            paces.deletion.add(begun.elapsed());
        }
        Ok(paces)
    }

    /// Checks that the pods that ran all the time were never restarted, that milan runs each of
    /// rome's pods once, and no other, and that the credential is renewed.
    pub async fn has_everything(&self) -> Result<()> {
        let rome = &self.world.rome;
        let now = rome
            .ready_pods(self.namespace, "app=web", RESIDENTS)
            .await?;
        for pod in &now {
            let is_same = self
                .residents
                .iter()
                .any(|resident| resident.uid() == pod.uid());
            let statuses = pod
                .status
                .iter()
                .filter_map(|status| status.container_statuses.as_ref())
                .flatten();
            let restarts: i32 = statuses.map(|container| container.restart_count).sum();
            ensure!(
                is_same && restarts == 0,
                "pod {} was replaced, or restarted {restarts} times",
                pod.name_any()
            );
        }
        runs_each_once(
            &self.world.milan,
            &self.remote,
            &now.iter().collect::<Vec<_>>(),
        )
        .await?;
        let all = self.world.milan.pods(&self.remote, "").await?;
        ensure!(
            all.len() == RESIDENTS,
            "milan runs {} pods of rome instead of {RESIDENTS}",
            all.len()
        );
        is_renewed(self.world).await
    }

    pub async fn end(self) -> Result<()> {
        self.world.rome.end_namespace(self.namespace).await
    }
}

/// Renews rome's credential at milan until then, and at least once.
pub async fn renewals(world: &World, until: Instant) -> Result<Paces> {
    let (client, key) = (milan(world).await?, key_of(&world.rome).await?);
    let rome = Applicant {
        identity: &key,
        cluster_name: &world.rome.name,
        token: None,
    };
    let mut paces = Paces::default();
    loop {
        let begun = Instant::now();
        match client.request_peering(&rome).await {
            Ok(PeeringAnswer::Granted(_)) => paces.renewal.add(begun.elapsed()),
            Ok(PeeringAnswer::Denied(refusal) | PeeringAnswer::Pending(refusal)) => {
                paces.failed_renewals.push(refusal.reason);
            }
            Ok(PeeringAnswer::Ended {}) => paces.failed_renewals.push("Ended".to_owned()),
            Err(error) => paces.failed_renewals.push(error.to_string()),
        }
        if Instant::now() >= until {
            return Ok(paces);
        }
        tokio::time::sleep(RENEWAL_INTERVAL).await;
    }
}

/// Checks that rome's credential is renewed when nobody attacks.
pub async fn is_renewed(world: &World) -> Result<()> {
    eventually(
        "rome's credential is renewed",
        Duration::from_secs(30),
        || async {
            let paces = renewals(world, Instant::now()).await?;
            ensure!(
                paces.failed_renewals.is_empty(),
                "{:?}",
                paces.failed_renewals
            );
            Ok(Some(()))
        },
    )
    .await
}

/// A small pod that ends at once on SIGTERM.
fn sleeper(name: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "localhost/busybox:1",
                "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"],
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }],
        },
    }))?)
}

async fn reaches(
    api: &Api<Pod>,
    name: &str,
    what: &str,
    condition: impl Condition<Pod>,
) -> Result<()> {
    let reached = tokio::time::timeout(LOST, await_condition(api.clone(), name, condition)).await;
    reached.with_context(|| {
        format!(
            "honest pod {name} is lost: waited {} s until it {what}",
            LOST.as_secs()
        )
    })??;
    Ok(())
}

/// The memory of a cluster's manager before an attack.
pub struct ManagerWatch<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    before: BTreeMap<i32, Memory>,
}

impl<'a> ManagerWatch<'a> {
    pub fn start(world: &'a World, cluster: &'a Cluster) -> Result<Self> {
        Ok(Self {
            world,
            cluster,
            before: world.managers(cluster)?,
        })
    }

    /// Prints the memory, and checks that the manager was not restarted and stayed below the limit
    /// of its container.
    pub async fn end(self) -> Result<()> {
        let (name, limit) = (
            &self.cluster.name,
            self.cluster.manager_memory_limit().await?,
        );
        let after = self.world.managers(self.cluster)?;
        for (pid, memory) in &after {
            let before = self.before.get(pid).map(|memory| memory.resident);
            println!(
                "memory of the manager of {name}: {} MiB before, at most {} MiB, limit {} MiB",
                before.unwrap_or_default() / 1024,
                memory.peak / 1024,
                limit / 1024
            );
        }
        ensure!(
            self.before.keys().eq(after.keys()),
            "the manager of {name} was restarted: {:?}, {after:?}",
            self.before
        );
        ensure!(
            after.values().all(|memory| memory.peak < limit),
            "the manager of {name} took more than {limit} KiB: {after:?}"
        );
        Ok(())
    }
}
