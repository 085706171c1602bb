//! What `NetworkPolicies` say, packets find: milan enforces them.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    network::{ABROAD, AT_HOME, connected, endpoint, exec, ip, seen, servers, service},
    network_policies::policy,
    policies::apply_policy,
};

const NAMESPACE: &str = "behind-walls";

/// A pod that asks, by way of the cluster that it is known to.
struct Caller<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    pod: String,
}

impl Caller<'_> {
    /// Whether a server answers at this address.
    async fn is_answered(&self, address: &str) -> Result<bool> {
        // The word tells a closed way from a question that was never asked.
        let line =
            format!("if timeout 2 wget -qO /dev/null http://{address}:8080; then echo open; else echo closed; fi 2>/dev/null");
        match exec(self.cluster, self.namespace, &self.pod, &line).await?.trim() {
            "open" => Ok(true),
            "closed" => Ok(false),
            other => bail!("{} said {other:?}", self.pod),
        }
    }

    /// Waits until it finds an address open, or closed.
    async fn finds(&self, open: bool, address: &str) -> Result<()> {
        let what = format!("{} finds {address} {}", self.pod, if open { "open" } else { "closed" });
        eventually(&what, Duration::from_secs(30), || async { Ok((self.is_answered(address).await? == open).then_some(())) })
            .await
    }
}

/// The server of this name, once it is ready and has an address.
async fn server(cluster: &Cluster, namespace: &str, name: &str) -> Result<Pod> {
    eventually(&format!("{name} has its address"), Duration::from_secs(60), || async {
        let pod = cluster.ready_pods(namespace, &format!("server={name}"), 1).await?.remove(0);
        Ok(ip(&pod).is_ok().then_some(pod))
    })
    .await
}

/// A policy for the servers of the app `web`, which come in as it says.
fn for_web(name: &str, ingress: &Value) -> String {
    let web = json!({ "matchLabels": { "app": "web" } });
    policy(name, NAMESPACE, &json!({ "podSelector": web, "policyTypes": ["Ingress"], "ingress": ingress }))
}

pub async fn packets_find_what_the_policies_say(world: Arc<World>) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    connected(rome, milan).await?;
    rome.offloaded_namespace(NAMESPACE, "LocalAndRemote").await?;
    let remote = rome.remote_namespace(NAMESPACE, milan).await?;
    rome.apply(&service(NAMESPACE, "web")).await?;
    for app in ["web", "friend", "stranger"] {
        rome.apply(&servers(NAMESPACE, &format!("near-{app}"), app, 1, AT_HOME)).await?;
        rome.apply(&servers(NAMESPACE, &format!("far-{app}"), app, 1, ABROAD)).await?;
    }
    for name in ["own", "own-too"] {
        milan.apply(&servers("default", name, name, 1, ("kubernetes.io/hostname", "milan-1"))).await?;
    }
    turin.liqoctl(&["peer", "--remote-kubeconfig", &milan.kubeconfig.display().to_string()]).await?;
    turin.offloaded_namespace(NAMESPACE, "Remote").await?;
    turin.apply(&servers(NAMESPACE, "tenant", "web", 1, ABROAD)).await?;

    let (near_web, far_web) = (server(rome, NAMESPACE, "near-web").await?, server(rome, NAMESPACE, "far-web").await?);
    let of_rome = async |name: &str| {
        anyhow::Ok(Caller { cluster: rome, namespace: NAMESPACE, pod: server(rome, NAMESPACE, name).await?.name_any() })
    };
    let (near_friend, near_stranger) = (of_rome("near-friend").await?, of_rome("near-stranger").await?);
    let (far_friend, far_stranger, far) =
        (of_rome("far-friend").await?, of_rome("far-stranger").await?, of_rome("far-web").await?);
    let of_milan = |pod: &Pod| Caller { cluster: milan, namespace: "default", pod: pod.name_any() };
    let (own, own_too) = (server(milan, "default", "own").await?, server(milan, "default", "own-too").await?);
    let (of_own, own, own_too) = (ip(&own)?, of_milan(&own), of_milan(&own_too));
    let tenant = turin.ready_pods(NAMESPACE, "server=tenant", 1).await?.remove(0);
    let id = rome.cluster_id().await?;
    let mapped = turin.remote_namespace(NAMESPACE, milan).await?;
    let of_tenant = ip(&milan.api::<Pod>(&mapped).get(&tenant.name_any()).await?)?;
    let tenant = Caller { cluster: turin, namespace: NAMESPACE, pod: tenant.name_any() };

    // Where each is reached from: by rome's pods at home, by those at milan.
    let from_home = ip(&far_web)?;
    let at_milan = ip(&milan.api::<Pod>(&remote).get(&far_web.name_any()).await?)?;
    let home_from_milan = seen(&endpoint(rome, milan).await?, &ip(&near_web)?)?;

    // By default rome's pods meet each other, here and there, and neither milan's nor another tenant's.
    own_too.finds(true, &of_own).await?;
    tenant.finds(true, &of_tenant).await?;
    near_stranger.finds(true, &from_home).await?;
    far_stranger.finds(true, &at_milan).await?;
    far.finds(true, &home_from_milan).await?;
    own.finds(false, &at_milan).await?;
    far.finds(false, &of_own).await?;
    tenant.finds(false, &at_milan).await?;
    far.finds(false, &of_tenant).await?;
    eventually("names resolve behind the walls", Duration::from_secs(30), || async {
        exec(rome, NAMESPACE, &far.pod, "timeout 5 wget -qO- http://web").await.map(Some)
    })
    .await?;

    // Through whom milan lets the world in, it says itself.
    let entrances = |entrances: Value| {
        let spec = json!({ "priority": 50, "peers": { "clusterIDs": [id] }, "provide": { "usage": { "entrances": entrances } } });
        apply_policy(milan, "doors", spec)
    };
    for odd in ["10.0.0.0/33", "10.0.0.256/24", "fd00::/129", "10.0.0.1", "Default"] {
        ensure!(entrances(json!([odd])).await.is_err(), "{odd} was taken");
    }
    entrances(json!(["default"])).await?;
    own.finds(true, &at_milan).await?;
    tenant.finds(false, &at_milan).await?;
    milan.kubectl(&["delete", "peeringpolicy", "doors"]).await?;
    own.finds(false, &at_milan).await?;

    // What the consumer closes is closed there, too, and follows its own pods wherever they are.
    rome.apply(&for_web("friends", &json!([{ "from": [{ "podSelector": { "matchLabels": { "app": "friend" } } }] }]))).await?;
    near_stranger.finds(false, &from_home).await?;
    far_stranger.finds(false, &at_milan).await?;
    near_friend.finds(true, &from_home).await?;
    far_friend.finds(true, &at_milan).await?;
    own.finds(false, &at_milan).await?;

    // What it opens to everybody is open to its own.
    rome.apply(&for_web("everybody", &json!([{}]))).await?;
    near_stranger.finds(true, &from_home).await?;
    far_stranger.finds(true, &at_milan).await?;
    own.finds(false, &at_milan).await?;
    tenant.finds(false, &at_milan).await?;

    // Whom its pods may call is bounded there, too.
    let stranger = json!({ "matchLabels": { "app": "stranger" } });
    rome.apply(&policy("silence", NAMESPACE, &json!({ "podSelector": stranger, "policyTypes": ["Egress"] }))).await?;
    far_stranger.finds(false, &at_milan).await?;
    rome.kubectl(&["-n", NAMESPACE, "delete", "networkpolicy", "silence"]).await?;
    far_stranger.finds(true, &at_milan).await?;

    // A policy that is gone closes nothing.
    rome.kubectl(&["-n", NAMESPACE, "delete", "networkpolicy", "everybody"]).await?;
    near_stranger.finds(false, &from_home).await?;
    rome.kubectl(&["-n", NAMESPACE, "delete", "networkpolicy", "friends"]).await?;
    near_stranger.finds(true, &from_home).await?;
    far_stranger.finds(true, &at_milan).await?;

    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    turin.delete_namespace(NAMESPACE).await?;
    milan.kubectl(&["-n", "default", "delete", "deployment", "own", "own-too"]).await?;
    rome.delete_namespace(NAMESPACE).await
}
