//! A hostile consumer that sends all that its credential allows, at full speed, beside an honest
//! one.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::AttachParams, client::UpgradeConnectionError};
use liqo_api::{
    CONTROLLER_MANAGER, consumer_service_account,
    record_text::{MAX_OBJECT_LEN, MAX_POD_LEN, MAX_SECRET_LEN},
    tenant_namespace,
};
use liqo_peering::{
    auth::client::Applicant, decide::manifests::tenant_quota, protocol::PeeringAnswer,
};
use liqo_tests::{Cluster, Measurement, World};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    CORE, RECORDS, filled,
    flood::{Answers, NO_ANSWER, Right, client, end, length, request, send},
    forget,
    honest::{Honest, ManagerWatch, show},
    nothing_is_left,
};
use crate::{
    isolation::token,
    peering::{key_of, milan},
    pods::pod,
};

/// The namespace of the attacker.
const NAMESPACE: &str = "attackers";
/// The pod of the attacker that it enters, and whose log it reads.
const TARGET: &str = "target";
const HONEST: &str = "beside-a-hostile-consumer";
/// How many clients the attacker has. Each opens as many connections as it has requests at the same
/// time.
const CLIENTS: usize = 8;
/// What metadata and other fields take of a text.
const REST: usize = 512;
/// etcd stores a value in whole pages, and some pages are not full.
const PAGES: f64 = 1.25;

/// Maximum size in MiB of what a tenant can store: the numbers of its quota times the maximum
/// sizes.
fn bound() -> Result<f64> {
    let hard = tenant_quota()
        .spec
        .and_then(|spec| spec.hard)
        .context("the quota is empty")?;
    let mut bytes = 0;
    for (kind, number) in hard {
        let size = match kind.as_str() {
            "count/shadowpods.virtualkubelet.liqo.io" => MAX_POD_LEN,
            "count/secrets" => MAX_SECRET_LEN,
            _ => MAX_OBJECT_LEN,
        };
        bytes += number.0.parse::<usize>()? * size;
    }
    Ok(f64::from(u32::try_from(bytes >> 20)?))
}

/// A kind that the attacker writes as large as it may be.
#[derive(Clone, Copy, Debug)]
enum Large {
    /// Requests more memory than anybody offers, so it costs work and never runs.
    Pod,
    Object,
    Secret,
}

impl Large {
    fn path(self, tenant: &str) -> String {
        match self {
            Self::Pod => format!("{RECORDS}/namespaces/{tenant}/shadowpods"),
            Self::Object => format!("{RECORDS}/namespaces/{tenant}/reflectedobjects"),
            Self::Secret => format!("{CORE}/namespaces/{tenant}/secrets"),
        }
    }

    /// An object of this kind. Each version has other contents.
    fn object(self, name: &str, version: u64) -> Value {
        let filled = |len: usize| filled(version, len - REST);
        let record = |kind: &str, field: &str, object: &Value| {
            json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": kind, "metadata": { "name": name },
                "spec": { "namespace": NAMESPACE, field: object.to_string() } })
        };
        match self {
            Self::Pod => {
                let mut pod = record(
                    "ShadowPod",
                    "pod",
                    &json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i",
                        "env": [{ "name": "X", "value": filled(MAX_POD_LEN) }],
                        "resources": { "requests": { "memory": "100Ti" } } }] } }),
                );
                pod["spec"]["pool"] = "default".into();
                pod
            }
            Self::Object => record(
                "ReflectedObject",
                "object",
                &json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
                    "data": { "x": filled(MAX_OBJECT_LEN) } }),
            ),
            Self::Secret => {
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "type": "Opaque",
                "stringData": { "x": filled(MAX_SECRET_LEN) } })
            }
        }
    }
}

/// The attack of turin, which uses its credential itself.
struct Attack {
    clients: Vec<Client>,
    tenant: String,
    mapped: String,
    account: String,
    /// What turin's tokens are bound to.
    session: Value,
    /// Requests that turin has no right to.
    beyond: Vec<http::Request<Vec<u8>>>,
    answers: Answers,
    until: Instant,
}

impl Attack {
    async fn prepare(world: &World, length: Duration) -> Result<Self> {
        let (rome, turin, milan) = (&world.rome, &world.turin, &world.milan);
        let id = turin.cluster_id().await?.parse()?;
        let (tenant, account) = (tenant_namespace(&id), consumer_service_account(&id));
        let mapped = turin.remote_namespace(NAMESPACE, milan).await?;
        let identity = milan
            .with_token(
                &token(world, turin).await?,
                &world.scratch("hostile.kubeconfig"),
            )
            .await?;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(client(&identity.kubeconfig).await?);
        }
        let uid = milan
            .kubectl(&[
                "-n",
                "liqo",
                "get",
                "secret",
                &account,
                "-o",
                "jsonpath={.metadata.uid}",
            ])
            .await?;
        let session = json!({ "apiVersion": "v1", "kind": "Secret", "name": account, "uid": uid });
        let other = tenant_namespace(&rome.cluster_id().await?.parse()?);
        let offer =
            format!("/apis/sharing.liqo.io/v1alpha1/namespaces/{tenant}/resourceoffers/default");
        let more = json!({ "spec": { "resourceQuota": { "hard": { "cpu": "1000" } } } });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mine" },
            "spec": { "containers": [{ "name": "c", "image": "localhost/busybox:1" }] } });
        let beyond = vec![
            request("GET", &Large::Pod.path(&other), None)?,
            request("DELETE", &Large::Pod.path(&other), None)?,
            request(
                "POST",
                &Large::Pod.path(&other),
                Some(&Large::Pod.object("intruder", 1)),
            )?,
            request("GET", &Large::Secret.path(&other), None)?,
            request("GET", &Large::Secret.path("liqo"), None)?,
            request("GET", &format!("{CORE}/nodes"), None)?,
            request("PATCH", &offer, Some(&more))?,
            request(
                "POST",
                &format!("{CORE}/namespaces/{mapped}/pods"),
                Some(&pod),
            )?,
            request(
                "POST",
                &token_path(CONTROLLER_MANAGER),
                Some(&token_request(&session)),
            )?,
        ];
        let (answers, until) = (Answers::new(), Instant::now() + length);
        Ok(Self {
            clients,
            tenant,
            mapped,
            account,
            session,
            beyond,
            answers,
            until,
        })
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    async fn send(&self, task: usize, right: Right, request: http::Request<Vec<u8>>) -> u16 {
        let code = send(&self.clients[task % CLIENTS], request).await;
        self.answers.add(right, code);
        code
    }

    /// All tasks of the attack.
    async fn start(self: &Arc<Self>, world: &World) -> Result<JoinSet<Result<()>>> {
        let mut tasks = JoinSet::new();
        for (task, kind) in [
            Large::Pod,
            Large::Object,
            Large::Secret,
            Large::Pod,
            Large::Secret,
            Large::Object,
        ]
        .into_iter()
        .enumerate()
        {
            tasks.spawn(self.clone().rewrites(task, kind));
            tasks.spawn(self.clone().creates_to_the_quota(task + 1, kind));
            tasks.spawn(self.clone().lists_and_watches(task + 2, kind));
        }
        for task in 0..4 {
            tasks.spawn(self.clone().enters_its_pod(task));
            tasks.spawn(self.clone().reaches_beyond_its_rights(task));
        }
        tasks.spawn(self.clone().runs_and_ends_a_pod(0));
        tasks.spawn(self.clone().requests_tokens(1));
        let (endpoint, key, attack) = (
            milan(world).await?,
            key_of(&world.turin).await?,
            self.clone(),
        );
        tasks.spawn(async move {
            while attack.goes_on() {
                let turin = Applicant {
                    identity: &key,
                    cluster_name: "turin",
                    token: None,
                };
                let code = match endpoint.request_peering(&turin).await {
                    Ok(PeeringAnswer::Granted(_)) => 200,
                    Ok(_) => 429,
                    Err(_) => NO_ANSWER,
                };
                attack.answers.add(Right::Has, code);
            }
            Ok(())
        });
        Ok(tasks)
    }

    async fn rewrites(self: Arc<Self>, task: usize, kind: Large) -> Result<()> {
        let (path, name) = (kind.path(&self.tenant), format!("rewritten-{task}"));
        self.send(
            task,
            Right::Has,
            request("POST", &path, Some(&kind.object(&name, 0)))?,
        )
        .await;
        let mut version = 0;
        while self.goes_on() {
            version += 1;
            let change = kind.object(&name, version);
            self.send(
                task,
                Right::Has,
                request("PATCH", &format!("{path}/{name}"), Some(&change))?,
            )
            .await;
        }
        Ok(())
    }

    /// Creates objects, deletes every fourth, and one for each that is too many.
    async fn creates_to_the_quota(self: Arc<Self>, task: usize, kind: Large) -> Result<()> {
        let (path, mut names, mut number) = (kind.path(&self.tenant), VecDeque::new(), 0);
        while self.goes_on() {
            number += 1;
            let name = format!("created-{task}-{number}");
            let code = self
                .send(
                    task,
                    Right::Has,
                    request("POST", &path, Some(&kind.object(&name, number)))?,
                )
                .await;
            if code == 200 {
                names.push_back(name);
            }
            if (code != 200 || number % 4 == 0)
                && let Some(old) = names.pop_front()
            {
                self.send(
                    task,
                    Right::Has,
                    request("DELETE", &format!("{path}/{old}"), None)?,
                )
                .await;
            }
        }
        Ok(())
    }

    async fn lists_and_watches(self: Arc<Self>, task: usize, kind: Large) -> Result<()> {
        let path = kind.path(&self.tenant);
        while self.goes_on() {
            self.send(task, Right::Has, request("GET", &path, None)?)
                .await;
            let watch = format!("{path}?watch=true&resourceVersion=0&timeoutSeconds=1");
            self.send(task, Right::Has, request("GET", &watch, None)?)
                .await;
        }
        Ok(())
    }

    async fn enters_its_pod(self: Arc<Self>, task: usize) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.clients[task % CLIENTS].clone(), &self.mapped);
        let log = format!("{CORE}/namespaces/{}/pods/{TARGET}/log", self.mapped);
        while self.goes_on() {
            let code = match pods.exec(TARGET, ["true"], &AttachParams::default()).await {
                Ok(_) => 200,
                Err(kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(
                    code,
                ))) => code.as_u16(),
                Err(_) => NO_ANSWER,
            };
            self.answers.add(Right::Has, code);
            self.send(task, Right::Has, request("GET", &log, None)?)
                .await;
        }
        Ok(())
    }

    /// Runs real pods, one after another: more of them would only show how fast the node starts
    /// containers.
    async fn runs_and_ends_a_pod(self: Arc<Self>, task: usize) -> Result<()> {
        let (path, mut number) = (Large::Pod.path(&self.tenant), 0);
        while self.goes_on() {
            number += 1;
            let name = format!("short-{number}");
            let pod = json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c",
                "image": "localhost/busybox:1", "command": ["true"],
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } } }] } });
            let shadow = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod", "metadata": { "name": name },
                "spec": { "namespace": NAMESPACE, "pool": "default", "pod": pod.to_string() } });
            self.send(task, Right::Has, request("POST", &path, Some(&shadow))?)
                .await;
            let own = format!("{path}/{name}");
            self.send(task, Right::Has, request("DELETE", &own, None)?)
                .await;
            while self.goes_on()
                && self
                    .send(task, Right::Has, request("GET", &own, None)?)
                    .await
                    != 404
            {}
        }
        Ok(())
    }

    async fn requests_tokens(self: Arc<Self>, task: usize) -> Result<()> {
        while self.goes_on() {
            let request = request(
                "POST",
                &token_path(&self.account),
                Some(&token_request(&self.session)),
            )?;
            self.send(task, Right::Has, request).await;
        }
        Ok(())
    }

    async fn reaches_beyond_its_rights(self: Arc<Self>, task: usize) -> Result<()> {
        while self.goes_on() {
            for request in &self.beyond {
                self.send(task, Right::HasNot, request.clone()).await;
            }
        }
        Ok(())
    }
}

fn token_path(account: &str) -> String {
    format!("{CORE}/namespaces/liqo/serviceaccounts/{account}/token")
}

fn token_request(session: &Value) -> Value {
    json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [], "expirationSeconds": 3600, "boundObjectRef": session } })
}

/// Checks that the tenant has no more objects than its quota allows.
async fn the_quota_holds(milan: &Cluster, tenant: &str) -> Result<()> {
    let quota = milan
        .object(&["-n", tenant, "resourcequota", "liqo-tenant"])
        .await?
        .context("the tenant has no quota")?;
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok());
    for (kind, hard) in quota["status"]["hard"].as_object().into_iter().flatten() {
        let used = &quota["status"]["used"][kind];
        println!("  {kind}: {used} of {hard}");
        ensure!(
            number(used)
                .zip(number(hard))
                .is_some_and(|(used, hard)| used <= hard),
            "{kind}: {used} of {hard}"
        );
    }
    Ok(())
}

/// Ends the tenancy at the provider, while the attacker's objects are still there. Then everything
/// is as before the attack.
async fn the_provider_ends_the_tenancy(world: &World) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    let id = turin.cluster_id().await?;
    let begun = Instant::now();
    milan.liqoctl(&["refuse", &id, "--yes"]).await?;
    nothing_is_left(milan, &id, Duration::from_mins(4)).await?;
    println!(
        "the provider removed everything of the attacker within {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    turin.start_manager().await?;
    turin
        .liqoctl(&["unpeer", "milan", "--yes", "--now"])
        .await?;
    forget(milan, &id).await?;
    turin.end_namespace(NAMESPACE).await
}

pub async fn an_honest_consumer_keeps_its_pace_beside_a_hostile_one(
    world: Arc<World>,
) -> Result<()> {
    let (turin, milan, length) = (
        &world.turin,
        &world.milan,
        length(Measurement::HostileConsumer)?,
    );
    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    turin.offloaded_namespace(NAMESPACE, "Remote").await?;
    turin
        .apply(&pod(
            NAMESPACE,
            TARGET,
            "Always",
            "trap exit TERM; while :; do echo line; sleep 1 & wait; done",
        ))
        .await?;
    turin
        .ready_pods(NAMESPACE, &format!("app={TARGET}"), 1)
        .await?;
    // A running manager would delete what it did not create.
    turin.stop_manager().await?;
    let honest = Honest::start(&world, HONEST).await?;
    let without = honest.work("calm", length).await?;

    let (manager, before) = (
        ManagerWatch::start(&world, milan)?,
        world.etcd_size(milan).await?,
    );
    let attack = Arc::new(Attack::prepare(&world, length).await?);
    let tasks = attack.start(&world).await?;
    let under = honest.work("attacked", length).await?;
    end(tasks).await?;

    let (after, bound) = (world.etcd_size(milan).await?, bound()?);
    show(&without, &under);
    print!(
        "a hostile consumer, {} s at full speed:\n{}",
        length.as_secs(),
        attack.answers
    );
    println!(
        "etcd of milan: {:+.1} MiB, and {:+.1} MiB with former versions; a tenant may store {bound} MiB",
        after.live - before.live,
        after.file - before.file
    );
    manager.end().await?;
    the_quota_holds(milan, &attack.tenant).await?;
    ensure!(
        after.live - before.live < bound * PAGES,
        "etcd of milan grew by {:.1} MiB",
        after.live - before.live
    );
    let succeeded = attack
        .answers
        .count(Right::HasNot, |code| (200..400).contains(&code));
    ensure!(
        succeeded == 0,
        "{succeeded} requests succeeded that turin has no right to"
    );
    ensure!(
        attack.answers.count(Right::HasNot, |code| code == 403) > 0,
        "nobody was refused: {}",
        attack.answers
    );
    ensure!(
        attack.answers.count(Right::Has, |code| code == 200) > 0,
        "the attacker did nothing: {}",
        attack.answers
    );
    honest.has_everything().await?;

    the_provider_ends_the_tenancy(&world).await?;
    let refused = send(
        &attack.clients[0],
        request("GET", &Large::Pod.path(&attack.tenant), None)?,
    )
    .await;
    ensure!(
        [401, 403].contains(&refused),
        "the attacker's credential is answered with {refused} after the end"
    );
    honest.has_everything().await?;
    honest.end().await
}
