//! Clusters in which Liqo is installed, and nothing runs yet. Each is made once, and copied for
//! every world.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, LazyLock, Mutex},
    thread,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, PostParams},
};
use liqo_simulation::{ApiServer, User};
use liqoctl::{
    apply::apply_object,
    manifests,
    settings::{InstallSettings as Installation, InstallValues, InstalledState},
};
use serde_json::json;

use crate::{api_endpoint::Certificate, json::object};

pub const AUTH_PORT: u16 = 8443;
pub const API_PORT: u16 = 6443;

/// After this silence a provider ends the peering with a consumer.
const EXPIRY_SECONDS: u32 = 900;

/// Name, number and size of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plan {
    pub name: String,
    /// Decides its addresses.
    pub number: u8,
    pub nodes: u8,
}

/// A cluster that nobody uses, to be copied.
pub struct Installed {
    pub server: ApiServer,
    pub certificate: Certificate,
}

impl Installed {
    /// The cluster of this plan. The first who asks waits until it is made; time does not pass
    /// meanwhile.
    pub fn get(plan: &Plan) -> Arc<Self> {
        static ALL: LazyLock<Mutex<BTreeMap<Plan, Arc<Installed>>>> = LazyLock::new(Mutex::default);
        let mut all = ALL.lock().unwrap();
        if let Some(installed) = all.get(plan) {
            return installed.clone();
        }
        let installed = thread::scope(|scope| scope.spawn(|| Self::make(plan)).join().unwrap());
        all.entry(plan.clone())
            .or_insert(Arc::new(installed))
            .clone()
    }

    fn make(plan: &Plan) -> Self {
        let certificate = Certificate::new(&plan.address(0).to_string());
        let server = ApiServer::seeded(0, || Timestamp::from_second(1_800_000_000).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            plan.install(&server.client(User::administrator()), &certificate.ca)
                .await;
        });
        Self {
            server,
            certificate,
        }
    }
}

impl Plan {
    /// The address of the API server (0) or of a replica of the manager (from 1).
    pub fn address(&self, process: u8) -> IpAddr {
        [10, self.number, 0, process + 1].into()
    }

    /// The address of the Services of Liqo.
    pub fn service(&self, port: u16) -> SocketAddr {
        ([10, self.number, 255, 1], port).into()
    }

    async fn install(&self, user: &Client, ca: &str) {
        let nodes = Api::<Node>::all(user.clone());
        for number in 1..=self.nodes {
            nodes
                .create(&PostParams::default(), &self.node(number))
                .await
                .unwrap();
        }
        let values = InstallValues::resolve(
            &Installation::default(),
            &InstalledState::default(),
            &self.name,
        );
        for mut object in manifests::render_manifests(&values).unwrap() {
            match manifests::kind(&object) {
                "Deployment" | "DaemonSet" => continue,
                "PeeringPolicy" if object.name_any() == manifests::AUTO_PEERING => continue,
                "ClusterConfig" => {
                    object.data["spec"]["apiServer"] = json!({ "address": format!("https://{}:{API_PORT}", self.address(0)), "ca": ca });
                    object.data["spec"]["authentication"] =
                        json!({ "address": format!("https://{}", self.service(AUTH_PORT)) });
                    object.data["spec"]["lendWithoutNetworkPolicies"] = json!(true);
                    object.data["spec"]["peering"]["consumerExpirySeconds"] = json!(EXPIRY_SECONDS);
                    object.data["spec"]["network"] = json!({ "enabled": false });
                }
                _ => {}
            }
            add(user, &object).await;
        }
        for object in kubernetes() {
            add(user, &object).await;
        }
    }

    fn node(&self, number: u8) -> Node {
        let resources = json!({ "cpu": "16", "memory": "64Gi", "pods": "110" });
        object(json!({
            "metadata": { "name": format!("{}-{number}", self.name), "labels": { "simulation.test/kubelet": "true" } },
            "spec": { "podCIDR": format!("10.{}.{number}.0/24", self.number) },
            "status": {
                "capacity": resources, "allocatable": resources,
                "addresses": [{ "type": "InternalIP", "address": format!("192.168.{}.{number}", self.number) }],
            },
        }))
    }
}

/// Kinds that the simulated API server does not know are left out.
async fn add(user: &Client, object: &DynamicObject) {
    match apply_object(user, object).await {
        Ok(_) => {}
        Err(error) if format!("{error:#}").contains("could not find the requested resource") => {
            println!(
                "left out: {} {}",
                manifests::kind(object),
                object.name_any()
            );
        }
        Err(error) => panic!("{error:#}"),
    }
}

/// Objects of every cluster that the simulated controllers do not create.
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
