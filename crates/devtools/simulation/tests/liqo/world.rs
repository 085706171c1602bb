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
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Secret},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, PostParams},
};
use liqo_api::ClusterId;
use liqo_controller_manager::Replica;
use liqo_controller_runtime::{Clock, Network as _, process::Readiness};
use liqo_signing::ClusterIdentity;
use liqo_simulation::{ApiServer, Faults, Link, Settings, User};
use liqoctl::{
    apply::apply,
    manifests,
    settings::{Present, Settings as Installation, Values},
};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    api_endpoint::{self, Certificate},
    internet::{Host, Internet},
};

pub const AUTH_PORT: u16 = 8443;
const WEBHOOK_PORT: u16 = 9443;
const API_PORT: u16 = 6443;
const LEASE_SECONDS: u64 = 7;

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
        Self { seed: 1, nodes: 2, replicas: 1, skew_seconds: 0 }
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
            let _ = tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).try_init();
        }
        let internet = Internet::new(Duration::from_millis(5));
        let base = (Timestamp::from_second(1_800_000_000).unwrap(), Instant::now());
        let mut clusters = Vec::new();
        for (number, name) in (1..).zip(names) {
            clusters.push(Cluster::start(&internet, number, name, base, start).await);
        }
        Self { internet, clusters }
    }

    /// Lets time pass until a condition holds, and returns how long that took.
    pub async fn until(&self, what: &str, limit: Duration, mut holds: impl AsyncFnMut() -> bool) -> Duration {
        let started = Instant::now();
        while started.elapsed() < limit {
            if holds().await {
                return started.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.print();
        panic!("not within {limit:?}: {what}");
    }

    /// Prints what a person would look at first.
    pub fn print(&self) {
        for cluster in &self.clusters {
            for (key, object) in cluster.server.objects() {
                let (metadata, status) = (&object["metadata"], &object["status"]);
                let about = match key.resource.as_str() {
                    "pods" => json!([object["spec"]["nodeName"], metadata["annotations"], status["phase"], status["conditions"]]),
                    "shadowpods.virtualkubelet.liqo.io" | "foreignclusters.discovery.liqo.io" => status["conditions"].clone(),
                    "nodes" | "namespaces" => status["phase"].clone(),
                    _ => continue,
                };
                let ends = &metadata["deletionTimestamp"];
                println!("{} {}/{} ends={ends} {}: {about}", cluster.name, key.namespace, key.name, metadata["finalizers"]);
            }
        }
    }
}

pub fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A cluster with Liqo.
pub struct Cluster {
    pub name: String,
    pub number: u8,
    pub id: ClusterId,
    pub server: ApiServer,
    /// Of a person who may do everything.
    pub user: Client,
    clock: Clock,
    internet: Internet,
    seed: u64,
    pub managers: Vec<Manager>,
    /// How many replicas were started.
    starts: u64,
}

impl Cluster {
    async fn start(internet: &Internet, number: u8, name: &str, (base, started): (Timestamp, Instant), start: Start) -> Self {
        let seed = start.seed.wrapping_mul(1000).wrapping_add(u64::from(number));
        let offset = SignedDuration::from_secs(start.skew_seconds * i64::from(number - 1));
        let clock = Clock::simulated(base, started, offset);
        let server = ApiServer::seeded(seed, move || clock.now());
        let user = server.client(User::administrator());
        tokio::spawn(liqo_simulation::run(server.clone(), Settings::default(), CancellationToken::new()));
        let identity = identity(seed);
        let id = identity.id().clone();
        let mut cluster = Self {
            name: name.to_owned(),
            number,
            id,
            server,
            user,
            clock,
            internet: internet.clone(),
            seed,
            managers: Vec::new(),
            starts: 0,
        };
        for node in 1..=start.nodes {
            cluster.add_node(node).await;
        }
        let certificate = Certificate::new(&cluster.address(0).to_string());
        cluster.install(&identity, &certificate.ca).await;
        let listener = internet.host(cluster.address(0)).listen((cluster.address(0), API_PORT).into()).await.unwrap();
        tokio::spawn(api_endpoint::serve(cluster.server.clone(), listener, certificate.tls()));
        let at = |port: u16| (1..=start.replicas).map(|replica| (cluster.address(replica), port).into()).collect();
        internet.add_service(cluster.service(AUTH_PORT), at(AUTH_PORT));
        internet.add_service(cluster.service(443), at(WEBHOOK_PORT));
        let (host, webhook) = (internet.host(cluster.address(0)), cluster.service(443));
        cluster
            .server
            .set_webhooks(Arc::new(move |call| Box::pin(api_endpoint::call_webhook(host.clone(), webhook, clock.now(), call))));
        for replica in 1..=start.replicas {
            cluster.start_manager(replica, Faults::default());
        }
        cluster
    }

    /// The address of the API server (0) or of a replica of the manager (from 1).
    pub fn address(&self, process: u8) -> IpAddr {
        [10, self.number, 0, process + 1].into()
    }

    /// The address of the Services of Liqo.
    pub fn service(&self, port: u16) -> SocketAddr {
        ([10, self.number, 255, 1], port).into()
    }

    async fn add_node(&self, number: u8) {
        let resources = json!({ "cpu": "16", "memory": "64Gi", "pods": "110" });
        let node: Node = object(json!({
            "metadata": { "name": format!("{}-{number}", self.name), "labels": { "simulation.test/kubelet": "true" } },
            "spec": { "podCIDR": format!("10.{}.{number}.0/24", self.number) },
            "status": {
                "capacity": resources, "allocatable": resources,
                "addresses": [{ "type": "InternalIP", "address": format!("192.168.{}.{number}", self.number) }],
            },
        }));
        Api::<Node>::all(self.user.clone()).create(&PostParams::default(), &node).await.unwrap();
    }

    async fn install(&self, identity: &ClusterIdentity, ca: &str) {
        let values = Values::resolve(&Installation::default(), &Present::default(), &self.name);
        for mut object in manifests::render(&values).unwrap() {
            match manifests::kind(&object) {
                "Deployment" | "DaemonSet" => continue,
                "PeeringPolicy" if object.name_any() == manifests::AUTO_PEERING => continue,
                "ClusterConfig" => {
                    object.data["spec"]["apiServer"] =
                        json!({ "address": format!("https://{}:{API_PORT}", self.address(0)), "ca": ca });
                    object.data["spec"]["authentication"] = json!({ "address": format!("https://{}", self.service(AUTH_PORT)) });
                    object.data["spec"]["lendWithoutNetworkPolicies"] = json!(true);
                    object.data["spec"]["network"] = json!({ "enabled": false });
                }
                _ => {}
            }
            self.apply(&object).await;
        }
        for object in kubernetes() {
            self.apply(&object).await;
        }
        let secret: Secret = object(json!({
            "metadata": { "name": liqo_peering::identity::IDENTITY_SECRET },
            "data": { liqo_peering::identity::PRIVATE_KEY: k8s_openapi::ByteString(identity.pkcs8().to_vec()) },
            "immutable": true,
        }));
        let secrets: Api<Secret> = Api::namespaced(self.user.clone(), manifests::NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }

    /// Kinds that the simulated API server does not know are left out.
    async fn apply(&self, object: &DynamicObject) {
        match apply(&self.user, object).await {
            Ok(_) => {}
            Err(error) if format!("{error:#}").contains("could not find the requested resource") => {
                println!("left out: {} {}", manifests::kind(object), object.name_any());
            }
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Starts a replica of the manager.
    fn start_manager(&mut self, number: u8, faults: Faults) {
        let started = self.new_manager(number, faults);
        self.managers.push(started);
    }

    fn new_manager(&mut self, number: u8, faults: Faults) -> Manager {
        self.starts += 1;
        let link = Link::new(self.seed.wrapping_mul(1000).wrapping_add(self.starts), faults);
        let host = self.internet.host(self.address(number));
        let replica = Replica {
            client: link.client(&self.server, User::service_account(manifests::NAMESPACE, manifests::MANAGER)),
            clock: self.clock,
            network: Arc::new(host.clone()),
            namespace: manifests::NAMESPACE.to_owned(),
            pod_name: format!("manager-{number}"),
            pod_ip: self.address(number),
            webhook_port: WEBHOOK_PORT,
            auth_port: AUTH_PORT,
            lease_seconds: LEASE_SECONDS,
        };
        let stop = CancellationToken::new();
        let manager = Manager { link, host, stop: stop.clone(), killed: CancellationToken::new() };
        let (process, running) =
            (manager.clone(), Box::pin(liqo_controller_manager::run(replica, Readiness::waiting("starting"), stop)));
        tokio::spawn(async move {
            let _ = process.killed.clone().run_until_cancelled_owned(running).await;
            // With the process ends everything that it started.
            process.kill();
        });
        manager
    }

    /// The number of the replica that leads.
    async fn leader(&self) -> Option<usize> {
        let lease = self.api::<Lease>(manifests::NAMESPACE).get_opt(manifests::MANAGER).await.unwrap()?;
        lease.spec?.holder_identity?.strip_prefix("manager-")?.parse().ok()
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
        let faults = self.manager(number).link.faults();
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

/// What every cluster has, and no controller of the simulation makes.
fn kubernetes() -> Vec<DynamicObject> {
    let reader = "extension-apiserver-authentication";
    [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": reader, "namespace": "kube-system" }, "data": {},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": format!("{reader}-reader"), "namespace": "kube-system" },
            "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [reader], "verbs": ["get", "list", "watch"] }],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "kubernetes", "namespace": "default" },
            "spec": { "ports": [{ "name": "https", "port": 443, "targetPort": 6443 }] },
        }),
    ]
    .map(object)
    .into()
}

/// The identity of a cluster, decided by the seed.
fn identity(seed: u64) -> ClusterIdentity {
    let mut private = [7; 32];
    private[..8].copy_from_slice(&seed.to_le_bytes());
    let public = Ed25519KeyPair::from_seed_unchecked(&private).unwrap();
    // PKCS#8, second version (RFC 5958), of an Ed25519 key.
    let head = [0x30, 0x53, 0x02, 0x01, 0x01, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
    let middle = [0xa1, 0x23, 0x03, 0x21, 0x00];
    let der = [&head[..], &private, &middle, public.public_key().as_ref()].concat();
    ClusterIdentity::from_pkcs8(&der).unwrap()
}
