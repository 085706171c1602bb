//! Several clusters with Liqo, in one process.
//!
//! ```text
//!   World
//!    +- Internet
//!    +- Cluster rome                                   Cluster milan
//!        ApiServer <-- run: controllers, kubelets       ApiServer <-- ...
//!          ^   ^                                          ^
//!          |   +-- user (administrator)                   +-- HTTPS, by token <-- managers of rome
//!          +-- Link <-- manager (unchanged), one or more replicas
//! ```

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::{Api, Client, api::PostParams};
use liqo_api::ClusterId;
use liqo_controller_manager::ManagerReplica;
use liqo_controller_runtime::{Clock, Network as _, process::Readiness};
use liqo_signing::ClusterIdentity;
use liqo_simulation::{ApiServer, Faults, Link, Settings, User};
use liqoctl::{doctor::invariants::ClusterSnapshot, manifests};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    api_endpoint,
    installed::{API_PORT, AUTH_PORT, Installed, Plan},
    internet::{Host, Internet},
    json::object,
};

const WEBHOOK_PORT: u16 = 9443;
const LEASE_SECONDS: u64 = 7;
/// So that what goes wrong between clusters does not follow from the same numbers as the steps of a
/// story.
const WIRE_SEED: u64 = 0x5eed_0000_0000_0000;

/// What every cluster starts with.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub seed: u64,
    pub nodes: u8,
    /// Replicas of the manager.
    pub replicas: u8,
    /// By how many seconds the clock of each further cluster is ahead of the one before it.
    pub skew_seconds: i64,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 2,
            replicas: 1,
            skew_seconds: 0,
        }
    }
}

/// Several clusters.
pub struct World {
    pub internet: Internet,
    pub clusters: Vec<Cluster>,
}

impl World {
    /// Clusters of these names, with running managers. `RUST_LOG` says what they log.
    pub async fn start(names: &[&str], start: Start) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            let _ = tracing_subscriber::fmt()
                .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
                .try_init();
        }
        let internet = Internet::new(Duration::from_millis(5), start.seed ^ WIRE_SEED);
        let base = (
            Timestamp::from_second(1_800_000_000).unwrap(),
            Instant::now(),
        );
        let mut clusters = Vec::new();
        for (number, name) in (1..).zip(names) {
            clusters.push(Cluster::start(&internet, number, name, base, start).await);
        }
        Self { internet, clusters }
    }

    /// Lets time pass until a condition holds, and returns how long that took.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        mut holds: impl AsyncFnMut() -> bool,
    ) -> Duration {
        let started = Instant::now();
        while started.elapsed() < limit {
            if holds().await {
                return started.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("not within {limit:?}: {what}\n{}", self.to_text());
    }

    /// What a person would look at first.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for cluster in &self.clusters {
            for (key, object) in cluster.server.objects() {
                let (metadata, status) = (&object["metadata"], &object["status"]);
                let about = match key.resource.as_str() {
                    "pods" => json!([
                        object["spec"]["nodeName"],
                        metadata["annotations"],
                        status["phase"],
                        status["conditions"]
                    ]),
                    "shadowpods.virtualkubelet.liqo.io" => {
                        json!([status["phase"], status["pod"]["phase"]])
                    }
                    "foreignclusters.discovery.liqo.io" => status["conditions"].clone(),
                    "nodes" | "namespaces" => status["phase"].clone(),
                    _ => continue,
                };
                let ends = &metadata["deletionTimestamp"];
                let place = format!("{} {}/{}", cluster.name, key.namespace, key.name);
                let _ = writeln!(
                    text,
                    "{place} ends={ends} {}: {about}",
                    metadata["finalizers"]
                );
            }
        }
        text
    }
}

/// A cluster with Liqo.
pub struct Cluster {
    pub name: String,
    plan: Plan,
    /// What its kubelets and controllers do.
    pub settings: watch::Sender<Settings>,
    pub id: ClusterId,
    pub server: ApiServer,
    /// Of a person who may do everything.
    pub user: Client,
    clock: Clock,
    internet: Internet,
    seed: u64,
    pub managers: Vec<Manager>,
    /// The links of replicas that were started again: they tell which faults there were.
    pub former_links: Vec<Link>,
    /// How many replicas were started.
    starts: u64,
}

impl Cluster {
    async fn start(
        internet: &Internet,
        number: u8,
        name: &str,
        (base, started): (Timestamp, Instant),
        start: Start,
    ) -> Self {
        let seed = start
            .seed
            .wrapping_mul(1000)
            .wrapping_add(u64::from(number));
        let offset = SignedDuration::from_secs(start.skew_seconds * i64::from(number - 1));
        let clock = Clock::simulated(base, started, offset);
        let plan = Plan {
            name: name.to_owned(),
            number,
            nodes: start.nodes,
        };
        let installed = Installed::get(&plan);
        let server = installed.server.copy(seed, move || clock.now());
        let user = server.client(User::administrator());
        let (settings, read) = watch::channel(Settings::default());
        tokio::spawn(liqo_simulation::run(
            server.clone(),
            read,
            CancellationToken::new(),
        ));
        let identity = identity(seed);
        let mut cluster = Self {
            name: name.to_owned(),
            plan,
            settings,
            id: identity.id().clone(),
            server,
            user,
            clock,
            internet: internet.clone(),
            seed,
            managers: Vec::new(),
            former_links: Vec::new(),
            starts: 0,
        };
        cluster.identify(&identity).await;
        let listener = internet
            .host(cluster.address(0))
            .listen((cluster.address(0), API_PORT).into())
            .await
            .unwrap();
        tokio::spawn(api_endpoint::serve(
            cluster.server.clone(),
            listener,
            installed.certificate.tls(),
        ));
        let at = |port: u16| {
            (1..=start.replicas)
                .map(|replica| (cluster.address(replica), port).into())
                .collect()
        };
        internet.add_service(cluster.service(AUTH_PORT), at(AUTH_PORT));
        internet.add_service(cluster.service(443), at(WEBHOOK_PORT));
        let (host, webhook) = (internet.host(cluster.address(0)), cluster.service(443));
        cluster.server.set_webhooks(Arc::new(move |call| {
            Box::pin(api_endpoint::call_webhook(
                host.clone(),
                webhook,
                clock.now(),
                call,
            ))
        }));
        for replica in 1..=start.replicas {
            cluster.start_manager(replica, Faults::default());
        }
        cluster
    }

    /// Gives the cluster its key.
    async fn identify(&self, identity: &ClusterIdentity) {
        let secret: Secret = object(json!({
            "metadata": { "name": liqo_peering::identity::IDENTITY_SECRET },
            "data": { liqo_peering::identity::PRIVATE_KEY: k8s_openapi::ByteString(identity.pkcs8().to_vec()) },
            "immutable": true,
        }));
        self.api::<Secret>(manifests::NAMESPACE)
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();
    }

    /// What invariants are judged by.
    pub fn snapshot(&self) -> ClusterSnapshot {
        let mut objects: BTreeMap<String, Vec<Arc<Value>>> = BTreeMap::new();
        for (key, object) in self.server.objects() {
            objects.entry(key.resource).or_default().push(object);
        }
        ClusterSnapshot {
            id: self.id.clone(),
            name: self.name.clone(),
            now: self.server.now(),
            objects,
        }
    }

    /// The address of the API server (0) or of a replica of the manager (from 1).
    pub fn address(&self, process: u8) -> IpAddr {
        self.plan.address(process)
    }

    /// The address of the Services of Liqo.
    pub fn service(&self, port: u16) -> SocketAddr {
        self.plan.service(port)
    }

    /// Starts a replica of the manager.
    fn start_manager(&mut self, number: u8, faults: Faults) {
        let started = self.new_manager(number, faults);
        self.managers.push(started);
    }

    fn new_manager(&mut self, number: u8, faults: Faults) -> Manager {
        self.starts += 1;
        let link = Link::new(
            self.seed.wrapping_mul(1000).wrapping_add(self.starts),
            faults,
        );
        let host = self.internet.host(self.address(number));
        let replica = ManagerReplica {
            client: link.client(
                &self.server,
                User::service_account(manifests::NAMESPACE, manifests::MANAGER),
            ),
            clock: self.clock,
            network: Arc::new(host.clone()),
            namespace: manifests::NAMESPACE.to_owned(),
            pod_name: format!("manager-{number}"),
            pod_ip: self.address(number),
            cluster_domain: Some("cluster.local".to_owned()),
            webhook_port: WEBHOOK_PORT,
            auth_port: AUTH_PORT,
            lease_seconds: LEASE_SECONDS,
        };
        let stop = CancellationToken::new();
        let manager = Manager {
            link,
            host,
            stop: stop.clone(),
            killed: CancellationToken::new(),
        };
        let (process, running) = (
            manager.clone(),
            Box::pin(liqo_controller_manager::run(
                replica,
                Readiness::waiting("starting"),
                stop,
            )),
        );
        tokio::spawn(async move {
            let _ = process
                .killed
                .clone()
                .run_until_cancelled_owned(running)
                .await;
            // With the process ends everything that it started.
            process.kill();
        });
        manager
    }

    /// The number of the replica that leads.
    async fn leader(&self) -> Option<usize> {
        let lease = self
            .api::<Lease>(manifests::NAMESPACE)
            .get_opt(manifests::MANAGER)
            .await
            .unwrap()?;
        lease
            .spec?
            .holder_identity?
            .strip_prefix("manager-")?
            .parse()
            .ok()
    }

    /// Ends the leader without any order. Its container is not started again.
    pub async fn kill_leader(&mut self) {
        let leader = self.leader().await.unwrap();
        self.managers[leader - 1].kill();
    }

    pub fn manager(&self, number: u8) -> &Manager {
        &self.managers[usize::from(number) - 1]
    }

    /// Starts a replica again that has ended, with the same connection to the API server.
    pub fn restart_manager(&mut self, number: u8) {
        let link = self.manager(number).link.clone();
        let faults = link.faults();
        self.former_links.push(link);
        let started = self.new_manager(number, faults);
        self.managers[usize::from(number) - 1] = started;
    }

    pub fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.user.clone())
    }

    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.user.clone(), namespace)
    }
}

/// The process of one replica.
#[derive(Clone)]
pub struct Manager {
    pub link: Link,
    host: Host,
    stop: CancellationToken,
    killed: CancellationToken,
}

impl Manager {
    /// Whether it ended by itself.
    pub fn has_ended(&self) -> bool {
        self.killed.is_cancelled()
    }

    /// Ends it without any order: nothing that it still does arrives anywhere.
    pub fn kill(&self) {
        self.link.end();
        self.host.end();
        self.killed.cancel();
        self.stop.cancel();
    }
}

/// The identity of a cluster, decided by the seed.
fn identity(seed: u64) -> ClusterIdentity {
    let mut private = [7; 32];
    private[..8].copy_from_slice(&seed.to_le_bytes());
    let public = Ed25519KeyPair::from_seed_unchecked(&private).unwrap();
    // PKCS#8, second version (RFC 5958), of an Ed25519 key.
    let head = [
        0x30, 0x53, 0x02, 0x01, 0x01, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    let middle = [0xa1, 0x23, 0x03, 0x21, 0x00];
    let der = [&head[..], &private, &middle, public.public_key().as_ref()].concat();
    ClusterIdentity::from_pkcs8(&der).unwrap()
}
