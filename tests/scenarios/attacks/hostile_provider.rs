//! A hostile provider that writes as much as it can, as fast as it can, into what its consumer
//! reads, beside an honest provider.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use liqo_api::{labels, tenant_namespace};
use liqo_tests::{Cluster, Measurement, World};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    CORE, RECORDS, filled,
    flood::{Answers, Right, client, end, length, request, send},
    honest::{Honest, ManagerWatch, show},
};
use crate::pods::{deployment, pod};

/// The namespace of rome's pods at the hostile provider.
const NAMESPACE: &str = "believers";
/// A pod there whose log never ends.
const TALKER: &str = "talker";
const HONEST: &str = "beside-a-hostile-provider";
/// Length of a text in a status: an object of more than 1.5 MiB does not fit into etcd.
const LONG: usize = 512 * 1024;
/// Length of a text in an event, and in a record.
const SHORT: usize = 60 * 1024;
/// Offers beside the real one.
const OFFERS: u64 = 100;
/// How much rome's etcd may grow, in MiB: as much as rome keeps of one provider in memory.
const MAX_GROWTH: f64 = 64.0;

const OFFERS_API: &str = "/apis/sharing.liqo.io/v1alpha1";

/// The attack of turin's administrator, who can write everything there.
struct Attack {
    turin: Client,
    rome: Client,
    /// Rome's tenant namespace at turin.
    tenant: String,
    /// The namespace of rome's pods at turin.
    mapped: String,
    shadow_pods: Vec<String>,
    offer: Value,
    answers: Answers,
    until: Instant,
}

impl Attack {
    async fn prepare(world: &World, length: Duration) -> Result<Self> {
        let (rome, turin) = (&world.rome, &world.turin);
        let tenant = tenant_namespace(&rome.cluster_id().await?.parse()?);
        let mapped = rome.remote_namespace(NAMESPACE, turin).await?;
        let shadow_pods = turin.items(&["-n", &tenant, "shadowpods"]).await?;
        let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
        let shadow_pods: Vec<String> = shadow_pods.iter().filter_map(name).collect();
        ensure!(!shadow_pods.is_empty(), "rome runs no pods at turin");
        let offer = turin
            .object(&["-n", &tenant, "resourceoffer", "default"])
            .await?
            .context("turin offers nothing")?;
        let (rome, turin) = (
            client(&rome.kubeconfig).await?,
            client(&turin.kubeconfig).await?,
        );
        let until = Instant::now() + length;
        Ok(Self {
            turin,
            rome,
            tenant,
            mapped,
            shadow_pods,
            offer,
            answers: Answers::new(),
            until,
        })
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<u16> {
        let code = send(&self.turin, request(method, path, Some(body))?).await;
        self.answers.add(Right::Has, code);
        Ok(code)
    }

    fn start(self: &Arc<Self>) -> JoinSet<Result<()>> {
        let mut tasks = JoinSet::new();
        for task in 0..2 {
            tasks.spawn(self.clone().writes_statuses(task));
            tasks.spawn(self.clone().writes_offers(task));
            tasks.spawn(self.clone().writes_events());
            tasks.spawn(self.clone().writes_records(task));
            tasks.spawn(self.clone().log_is_followed());
        }
        tasks.spawn(self.clone().says_that_it_lives());
        tasks
    }

    /// Huge statuses of rome's pods, each time other ones.
    async fn writes_statuses(self: Arc<Self>, task: u64) -> Result<()> {
        let mut version = task;
        while self.goes_on() {
            for name in &self.shadow_pods {
                version += 2;
                let text = filled(version, LONG);
                let conditions: Vec<Value> = (0..500)
                    .map(|number| json!({ "type": format!("example.com/{number}-{version}"), "status": "True", "message": "x" }))
                    .collect();
                let status = json!({ "status": { "message": text, "reason": format!("R{version}"),
                    "pod": { "message": filled(version, SHORT), "conditions": conditions } } });
                let path = format!(
                    "{RECORDS}/namespaces/{}/shadowpods/{name}/status",
                    self.tenant
                );
                self.send("PATCH", &path, &status).await?;
            }
        }
        Ok(())
    }

    /// Offers with huge labels, and new ones that would each be a virtual node.
    async fn writes_offers(self: Arc<Self>, task: u64) -> Result<()> {
        let path = format!("{OFFERS_API}/namespaces/{}/resourceoffers", self.tenant);
        let mut version = task;
        while self.goes_on() {
            version += 2;
            let name = format!("junk-{}", version % OFFERS);
            let mut spec = self.offer["spec"].clone();
            spec["pool"] = name.clone().into();
            spec["labels"] = json!({ "example.com/long": filled(version, LONG), format!("example.com/{version}"): "x" });
            let offer = json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer",
                "metadata": { "name": name, "labels": self.offer["metadata"]["labels"] }, "spec": spec });
            if self
                .send("PATCH", &format!("{path}/{name}"), &offer)
                .await?
                == 404
            {
                self.send("POST", &path, &offer).await?;
            }
        }
        Ok(())
    }

    /// Warnings about rome's pods.
    async fn writes_events(self: Arc<Self>) -> Result<()> {
        let (path, mut number) = (format!("{CORE}/namespaces/{}/events", self.mapped), 0);
        while self.goes_on() {
            number += 1;
            let event = json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "generateName": "junk-" },
                "involvedObject": { "apiVersion": "v1", "kind": "Pod", "namespace": self.mapped, "name": TALKER },
                "type": "Warning", "reason": format!("Junk{number}"), "message": filled(number, SHORT),
                "source": { "component": "junk" } });
            self.send("POST", &path, &event).await?;
        }
        Ok(())
    }

    /// Records in rome's name that rome did not write. A finalizer keeps them when rome deletes
    /// them.
    async fn writes_records(self: Arc<Self>, task: u64) -> Result<()> {
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            for (plural, kind, field) in [
                ("shadowpods", "ShadowPod", "pod"),
                ("reflectedobjects", "ReflectedObject", "object"),
            ] {
                let mut spec = json!({ "namespace": NAMESPACE, field: json!({ "x": filled(number, SHORT) }).to_string() });
                if kind == "ShadowPod" {
                    spec["pool"] = "default".into();
                }
                let record = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": kind,
                    "metadata": { "name": format!("junk-{task}-{number}"), "finalizers": ["example.com/stays"] }, "spec": spec });
                self.send(
                    "POST",
                    &format!("{RECORDS}/namespaces/{}/{plural}", self.tenant),
                    &record,
                )
                .await?;
            }
        }
        Ok(())
    }

    /// A user of rome follows the log that never ends.
    async fn log_is_followed(self: Arc<Self>) -> Result<()> {
        let path = format!("{CORE}/namespaces/{NAMESPACE}/pods/{TALKER}/log?follow=true");
        while self.goes_on() {
            send(&self.rome, request("GET", &path, None)?).await;
        }
        Ok(())
    }

    /// Turin's manager is stopped, and rome would notice that.
    async fn says_that_it_lives(self: Arc<Self>) -> Result<()> {
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases/provider",
            self.tenant
        );
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            self.send(
                "PATCH",
                &path,
                &json!({ "spec": { "renewTime": format!("2030-01-01T00:00:00.{number:06}Z") } }),
            )
            .await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        Ok(())
    }
}

/// Runs pods at the hostile provider only: one of them writes a log as fast as its little CPU time
/// allows.
async fn believe(rome: &Cluster, turin: &Cluster) -> Result<()> {
    let selector = format!(
        "{}={}",
        labels::REMOTE_CLUSTER_ID,
        turin.cluster_id().await?
    );
    rome.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let offload = [
        "offload",
        "namespace",
        NAMESPACE,
        "--pod-offloading-strategy",
        "Remote",
        "--selector",
        &selector,
    ];
    rome.liqoctl(&offload).await?;
    rome.wait_for(
        &["-n", NAMESPACE, "namespaceoffloading/offloading"],
        "condition=Ready",
        90,
    )
    .await?;
    let talker = pod(NAMESPACE, TALKER, "Always", "yes liqo").replace(
        "{ requests: { cpu: 10m, memory: 16Mi } }",
        "{ requests: { cpu: 10m, memory: 16Mi }, limits: { cpu: 100m } }",
    );
    rome.apply(&talker).await?;
    rome.apply(&deployment(NAMESPACE, "web", 2)).await?;
    rome.ready_pods(NAMESPACE, &format!("app={TALKER}"), 1)
        .await?;
    rome.ready_pods(NAMESPACE, "app=web", 2).await.map(drop)
}

pub async fn an_honest_provider_is_used_undisturbed_beside_a_hostile_one(
    world: Arc<World>,
) -> Result<()> {
    let (rome, turin, length) = (
        &world.rome,
        &world.turin,
        length(Measurement::HostileProvider)?,
    );
    rome.liqoctl(&[
        "peer",
        "--remote-kubeconfig",
        &turin.kubeconfig.display().to_string(),
    ])
    .await?;
    believe(rome, turin).await?;
    // It would put right what its administrator writes.
    turin.stop_manager().await?;
    let honest = Honest::start(&world, HONEST).await?;
    let from = rome.audit_length()?;
    let without = honest.work("calm", length).await?;
    let writes_without = rome.liqo_writes(from)?.len();

    let (manager, before) = (
        ManagerWatch::start(&world, rome)?,
        world.etcd_size(rome).await?,
    );
    let attack = Arc::new(Attack::prepare(&world, length).await?);
    let (tasks, from) = (attack.start(), rome.audit_length()?);
    let under = honest.work("attacked", length).await?;
    end(tasks).await?;

    let (after, writes) = (world.etcd_size(rome).await?, rome.liqo_writes(from)?.len());
    show(&without, &under);
    print!(
        "a hostile provider, {} s at full speed:\n{}",
        length.as_secs(),
        attack.answers
    );
    println!(
        "etcd of rome: {:+.1} MiB, and {:+.1} MiB with former versions",
        after.live - before.live,
        after.file - before.file
    );
    println!(
        "writes of Liqo in rome in {} s: {writes_without}, and {writes} under attack",
        length.as_secs()
    );
    manager.end().await?;
    ensure!(
        after.live - before.live < MAX_GROWTH,
        "etcd of rome grew by {:.1} MiB",
        after.live - before.live
    );
    ensure!(
        attack.answers.count(Right::Has, |code| code == 200) > 0,
        "the attacker did nothing: {}",
        attack.answers
    );
    rome.wait_for(&["node/milan"], "condition=Ready", 30)
        .await?;
    honest.has_everything().await?;

    turin.start_manager().await?;
    rome.liqoctl(&["unpeer", "turin", "--yes", "--now"]).await?;
    rome.end_namespace(NAMESPACE).await?;
    honest.has_everything().await?;
    honest.end().await
}
