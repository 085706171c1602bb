//! Packets obey `NetworkPolicies` where a cluster enforces them, and the cluster knows that.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    lending::enforced,
    network::{ABROAD, AT_HOME, connected, endpoint, exec, ip, seen, servers, service},
    network_policies::policy,
    policies::apply_policy,
};

const NAMESPACE: &str = "isolated";

/// A pod that sends requests.
struct Caller<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    pod: String,
}

impl Caller<'_> {
    /// Whether a server answers at this address.
    async fn is_answered(&self, address: &str) -> Result<bool> {
        // The printed word distinguishes a closed address from a command that did not run.
        let line = format!(
            "if timeout 2 wget -qO /dev/null http://{address}:8080; then echo open; else echo closed; fi 2>/dev/null"
        );
        match exec(self.cluster, self.namespace, &self.pod, &line)
            .await?
            .trim()
        {
            "open" => Ok(true),
            "closed" => Ok(false),
            other => bail!("{} said {other:?}", self.pod),
        }
    }

    /// Waits until an address is open for it, or closed.
    async fn finds(&self, open: bool, address: &str) -> Result<()> {
        let what = format!(
            "{} finds {address} {}",
            self.pod,
            if open { "open" } else { "closed" }
        );
        eventually(&what, Duration::from_secs(30), || async {
            Ok((self.is_answered(address).await? == open).then_some(()))
        })
        .await
    }
}

/// Waits until the server of this name is ready and has an address, and returns it.
async fn server(cluster: &Cluster, namespace: &str, name: &str) -> Result<Pod> {
    eventually(
        &format!("{name} has its address"),
        Duration::from_mins(1),
        || async {
            let pod = cluster
                .ready_pods(namespace, &format!("server={name}"), 1)
                .await?
                .remove(0);
            Ok(ip(&pod).is_ok().then_some(pod))
        },
    )
    .await
}

/// A policy with these ingress rules for the servers of the app `web`.
fn for_web(name: &str, ingress: &Value) -> String {
    let web = json!({ "matchLabels": { "app": "web" } });
    policy(
        name,
        NAMESPACE,
        &json!({ "podSelector": web, "policyTypes": ["Ingress"], "ingress": ingress }),
    )
}

/// Pods that send requests: rome's at home and at milan, milan's own, and another consumer's at
/// milan.
struct Callers<'a> {
    near_friend: Caller<'a>,
    near_stranger: Caller<'a>,
    far_friend: Caller<'a>,
    far_stranger: Caller<'a>,
    own: Caller<'a>,
    tenant: Caller<'a>,
}

/// Checks that rome's policies also apply at milan. `from_home` and `at_milan` are the server's
/// addresses as seen from both clusters.
async fn policies_of_the_consumer_apply_at_the_provider(
    callers: &Callers<'_>,
    from_home: &str,
    at_milan: &str,
) -> Result<()> {
    let rome = callers.near_friend.cluster;
    // A policy that closes pods closes them there, too, and applies to the consumer's pods in both
    // clusters.
    rome.apply(&for_web(
        "friends",
        &json!([{ "from": [{ "podSelector": { "matchLabels": { "app": "friend" } } }] }]),
    ))
    .await?;
    callers.near_stranger.finds(false, from_home).await?;
    callers.far_stranger.finds(false, at_milan).await?;
    callers.near_friend.finds(true, from_home).await?;
    callers.far_friend.finds(true, at_milan).await?;
    callers.own.finds(false, at_milan).await?;

    // A policy that opens pods to everybody opens them only to the consumer's own pods.
    rome.apply(&for_web("everybody", &json!([{}]))).await?;
    callers.near_stranger.finds(true, from_home).await?;
    callers.far_stranger.finds(true, at_milan).await?;
    callers.own.finds(false, at_milan).await?;
    callers.tenant.finds(false, at_milan).await?;

    // Egress policies apply there, too.
    let stranger = json!({ "matchLabels": { "app": "stranger" } });
    rome.apply(&policy(
        "silence",
        NAMESPACE,
        &json!({ "podSelector": stranger, "policyTypes": ["Egress"] }),
    ))
    .await?;
    callers.far_stranger.finds(false, at_milan).await?;
    rome.kubectl(&["-n", NAMESPACE, "delete", "networkpolicy", "silence"])
        .await?;
    callers.far_stranger.finds(true, at_milan).await?;

    // Deleted policies no longer apply.
    rome.kubectl(&["-n", NAMESPACE, "delete", "networkpolicy", "everybody"])
        .await?;
    callers.near_stranger.finds(false, from_home).await?;
    rome.kubectl(&["-n", NAMESPACE, "delete", "networkpolicy", "friends"])
        .await?;
    callers.near_stranger.finds(true, from_home).await?;
    callers.far_stranger.finds(true, at_milan).await
}

pub async fn packets_obey_network_policies(world: Arc<World>) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    world.enforce_network_policies().await?;
    connected(rome, milan).await?;
    rome.offloaded_namespace(NAMESPACE, "LocalAndRemote")
        .await?;
    let remote = rome.remote_namespace(NAMESPACE, milan).await?;
    rome.apply(&service(NAMESPACE, "web")).await?;
    for app in ["web", "friend", "stranger"] {
        rome.apply(&servers(NAMESPACE, &format!("near-{app}"), app, 1, AT_HOME))
            .await?;
        rome.apply(&servers(NAMESPACE, &format!("far-{app}"), app, 1, ABROAD))
            .await?;
    }
    for name in ["own", "own-too"] {
        milan
            .apply(&servers(
                "default",
                name,
                name,
                1,
                ("kubernetes.io/hostname", "milan-1"),
            ))
            .await?;
    }
    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    turin.offloaded_namespace(NAMESPACE, "Remote").await?;
    turin
        .apply(&servers(NAMESPACE, "tenant", "web", 1, ABROAD))
        .await?;

    let (near_web, far_web) = (
        server(rome, NAMESPACE, "near-web").await?,
        server(rome, NAMESPACE, "far-web").await?,
    );
    let of_rome = async |name: &str| {
        anyhow::Ok(Caller {
            cluster: rome,
            namespace: NAMESPACE,
            pod: server(rome, NAMESPACE, name).await?.name_any(),
        })
    };
    let far = of_rome("far-web").await?;
    let of_milan = |pod: &Pod| Caller {
        cluster: milan,
        namespace: "default",
        pod: pod.name_any(),
    };
    let (own, own_too) = (
        server(milan, "default", "own").await?,
        server(milan, "default", "own-too").await?,
    );
    let (of_own, own_too) = (ip(&own)?, of_milan(&own_too));
    let tenant = turin
        .ready_pods(NAMESPACE, "server=tenant", 1)
        .await?
        .remove(0);
    let id = rome.cluster_id().await?;
    let mapped = turin.remote_namespace(NAMESPACE, milan).await?;
    let of_tenant = ip(&milan.api::<Pod>(&mapped).get(&tenant.name_any()).await?)?;
    let callers = Callers {
        near_friend: of_rome("near-friend").await?,
        near_stranger: of_rome("near-stranger").await?,
        far_friend: of_rome("far-friend").await?,
        far_stranger: of_rome("far-stranger").await?,
        own: of_milan(&own),
        tenant: Caller {
            cluster: turin,
            namespace: NAMESPACE,
            pod: tenant.name_any(),
        },
    };

    // The addresses of the servers, as rome's pods at home and at milan see them.
    let from_home = ip(&far_web)?;
    let at_milan = ip(&milan.api::<Pod>(&remote).get(&far_web.name_any()).await?)?;
    let home_from_milan = seen(&endpoint(rome, milan).await?, &ip(&near_web)?)?;

    // By default rome's pods reach each other in both clusters, but not milan's pods and those of
    // other tenants.
    own_too.finds(true, &of_own).await?;
    callers.tenant.finds(true, &of_tenant).await?;
    callers.near_stranger.finds(true, &from_home).await?;
    callers.far_stranger.finds(true, &at_milan).await?;
    far.finds(true, &home_from_milan).await?;
    callers.own.finds(false, &at_milan).await?;
    far.finds(false, &of_own).await?;
    callers.tenant.finds(false, &at_milan).await?;
    far.finds(false, &of_tenant).await?;
    eventually(
        "names resolve behind the policies",
        Duration::from_secs(30),
        || async {
            exec(rome, NAMESPACE, &far.pod, "timeout 5 wget -qO- http://web")
                .await
                .map(Some)
        },
    )
    .await?;

    // Milan's policy allows further ingress sources.
    let allow_ingress_from = |sources: Value| {
        let spec = json!({ "priority": 50, "peers": { "clusterIDs": [id] }, "provide": { "usage": { "allowedIngressSources": sources } } });
        apply_policy(milan, "sources", spec)
    };
    for invalid in [
        "10.0.0.0/33",
        "10.0.0.256/24",
        "fd00::/129",
        "10.0.0.1",
        "Default",
    ] {
        ensure!(
            allow_ingress_from(json!([invalid])).await.is_err(),
            "{invalid} was accepted"
        );
    }
    allow_ingress_from(json!(["default"])).await?;
    callers.own.finds(true, &at_milan).await?;
    callers.tenant.finds(false, &at_milan).await?;
    milan
        .kubectl(&["delete", "peeringpolicy", "sources"])
        .await?;
    callers.own.finds(false, &at_milan).await?;

    policies_of_the_consumer_apply_at_the_provider(&callers, &from_home, &at_milan).await?;

    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    turin.end_namespace(NAMESPACE).await?;
    milan
        .kubectl(&["-n", "default", "delete", "deployment", "own", "own-too"])
        .await?;
    rome.end_namespace(NAMESPACE).await
}

pub async fn a_cluster_knows_that_it_enforces_network_policies(world: Arc<World>) -> Result<()> {
    world.enforce_network_policies().await?;
    eventually("the test is over", Duration::from_mins(1), || async {
        let (status, message) = enforced(&world.milan).await?.context("no condition")?;
        ensure!(status == "True", "{status}: {message}");
        Ok(Some(()))
    })
    .await
}
