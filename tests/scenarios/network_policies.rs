//! The content of replicas of `NetworkPolicies` at the provider. `enforced_network_policies` checks
//! that packets obey them.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use liqo_api::short_hash;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    network::{disable_network, enable_network, endpoint},
    pods::{deployment, node_of, pod},
    services::{gone, moved, prefixes},
};

const SPREAD: &str = "      topologySpreadConstraints: [{ maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
                      labelSelector: { matchLabels: { app: web } }, nodeTaintsPolicy: Honor }]\n      containers:";

pub fn policy(name: &str, namespace: &str, spec: &Value) -> String {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": name, "namespace": namespace }, "spec": spec })
        .to_string()
}

/// Waits until the policy of this name passes a check, and returns its spec.
async fn says(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    what: &str,
    check: impl Fn(&Value) -> bool,
) -> Result<Value> {
    eventually(
        &format!("NetworkPolicy {name} at {}: {what}", cluster.name),
        Duration::from_secs(30),
        || async {
            let found = cluster
                .object(&["-n", namespace, "networkpolicy", name])
                .await?
                .context("it does not exist")?;
            ensure!(check(&found["spec"]), "{:#}", found["spec"]);
            Ok(Some(found["spec"].clone()))
        },
    )
    .await
}

/// Waits until exactly these default policies exist.
async fn defaults(cluster: &Cluster, namespace: &str, wanted: &[&str]) -> Result<()> {
    eventually(
        &format!("the default policies at {}: {wanted:?}", cluster.name),
        Duration::from_secs(30),
        || async {
            let all = cluster.items(&["-n", namespace, "networkpolicies"]).await?;
            let names = all
                .iter()
                .filter_map(|policy| policy["metadata"]["name"].as_str());
            let found: Vec<&str> = names.filter(|name| name.starts_with("liqo-")).collect();
            ensure!(found == wanted, "{found:?}");
            Ok(Some(()))
        },
    )
    .await
}

/// Whether the address ranges of these peers cover exactly these addresses.
fn covers_exactly(peers: &Value, addresses: &BTreeSet<Ipv4Addr>) -> bool {
    let cidrs = peers
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|peer| peer["ipBlock"]["cidr"].as_str()?.split_once('/'));
    let hosts = cidrs.filter_map(|(first, length)| {
        let (first, length): (Ipv4Addr, u32) = (first.parse().ok()?, length.parse().ok()?);
        Some(
            (0..1_u32 << (32 - length).min(6))
                .map(move |host| Ipv4Addr::from(u32::from(first) + host)),
        )
    });
    let hosts = hosts.flatten();
    hosts.collect::<BTreeSet<Ipv4Addr>>() == *addresses
}

/// The addresses under which the provider sees those of these pods that run at home.
fn seen(pods: &[Pod], home: &str, prefix: &str) -> BTreeSet<Ipv4Addr> {
    let at_home = pods.iter().filter(|pod| node_of(pod) == home);
    at_home
        .filter_map(|pod| {
            moved(&pod.status.as_ref()?.pod_ip.clone()?, prefix)
                .parse()
                .ok()
        })
        .collect()
}

pub async fn policies_are_translated_and_follow_the_pods_at_home(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (_, romes_at_milan) = prefixes(&world).await?;
    rome.offloaded_namespace("isolated", "LocalAndRemote")
        .await?;
    let remote = rome.remote_namespace("isolated", milan).await?;
    rome.apply(&deployment("isolated", "web", 4).replace("      containers:", SPREAD))
        .await?;
    let pods = rome.ready_pods("isolated", "app=web", 4).await?;

    // By default pods reach the tenant's pods in both clusters.
    defaults(milan, &remote, &["liqo-egress", "liqo-ingress"]).await?;
    let closed = says(milan, &remote, "liqo", "it closes all pods", |spec| {
        spec["podSelector"] == json!({})
    })
    .await?;
    ensure!(
        closed.get("ingress").is_none()
            && closed.get("egress").is_none()
            && closed["policyTypes"].to_string().contains("Egress"),
        "{closed:#}"
    );
    let open = says(
        milan,
        &remote,
        "liqo-ingress",
        "it is for all pods",
        |spec| spec["podSelector"] == json!({}),
    )
    .await?;
    ensure!(
        open.to_string()
            .contains(&format!("{romes_at_milan}.0.0/16")),
        "{open:#}"
    );

    // A policy selects the same pods there. Pods at home become addresses, and the defaults no
    // longer apply to the selected pods.
    let web = json!({ "matchLabels": { "app": "web" } });
    rome.apply(&policy(
        "web",
        "isolated",
        &json!({ "podSelector": web, "ingress": [{ "from": [{ "podSelector": web }], "ports": [{ "port": 8000 }] }] }),
    ))
    .await?;
    let at_home = seen(&pods, "rome-1", &romes_at_milan);
    ensure!(at_home.len() == 2, "{at_home:?}");
    let replica = says(milan, &remote, "web", "it names the pods at home", |spec| {
        covers_exactly(&spec["ingress"][0]["from"], &at_home)
    })
    .await?;
    let from = replica["ingress"][0]["from"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    ensure!(
        from.contains(&json!({ "podSelector": web }))
            && replica["ingress"][0]["ports"][0]["port"] == 8000,
        "{replica:#}"
    );
    let others =
        json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["web"] }] });
    says(
        milan,
        &remote,
        "liqo-ingress",
        "it is for other pods",
        |spec| spec["podSelector"] == others,
    )
    .await?;
    says(
        milan,
        &remote,
        "liqo-egress",
        "it still applies to all pods",
        |spec| spec["podSelector"] == json!({}),
    )
    .await?;
    world.quiet(&[rome, milan]).await?;

    rome.kubectl(&[
        "-n",
        "isolated",
        "scale",
        "deployment",
        "web",
        "--replicas=6",
    ])
    .await?;
    let pods = rome.ready_pods("isolated", "app=web", 6).await?;
    let at_home = seen(&pods, "rome-1", &romes_at_milan);
    ensure!(at_home.len() == 3, "{at_home:?}");
    says(milan, &remote, "web", "it follows the pods", |spec| {
        covers_exactly(&spec["ingress"][0]["from"], &at_home)
    })
    .await?;

    // A namespace that is not offloaded becomes the addresses of its pods.
    rome.kubectl(&["create", "namespace", "isolated-friends"])
        .await?;
    rome.kubectl(&["label", "namespace", "isolated-friends", "friend=yes"])
        .await?;
    rome.apply(&pod("isolated-friends", "friend", "Always", "sleep 3600"))
        .await?;
    let friend = rome.ready_pods("isolated-friends", "app=friend", 1).await?;
    let friend = seen(&friend, "rome-1", &romes_at_milan);
    let friends = json!({ "namespaceSelector": { "matchLabels": { "friend": "yes" } } });
    rome.apply(&policy(
        "friends",
        "isolated",
        &json!({ "podSelector": web, "ingress": [{ "from": [friends] }] }),
    ))
    .await?;
    says(milan, &remote, "friends", "it names the friend", |spec| {
        covers_exactly(&spec["ingress"][0]["from"], &friend)
    })
    .await?;

    // A policy that selects all pods leaves no default. A policy that is not reflected changes
    // nothing there.
    rome.apply(&policy(
        "closed",
        "isolated",
        &json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
    ))
    .await?;
    defaults(milan, &remote, &[]).await?;
    rome.kubectl(&[
        "-n",
        "isolated",
        "annotate",
        "networkpolicy",
        "closed",
        "liqo.io/reflection=deny",
    ])
    .await?;
    gone(milan, &remote, "networkpolicy", "closed").await?;
    defaults(milan, &remote, &["liqo-egress", "liqo-ingress"]).await?;

    // Without a network the policy contains no addresses of pods at home.
    disable_network(&world).await?;
    let only_there = json!([{ "podSelector": web }]);
    says(milan, &remote, "web", "it names only pods there", |spec| {
        spec["ingress"][0]["from"] == only_there
    })
    .await?;
    enable_network(&world).await?;
    prefixes(&world).await?;
    says(
        milan,
        &remote,
        "web",
        "it names the pods at home again",
        |spec| covers_exactly(&spec["ingress"][0]["from"], &at_home),
    )
    .await?;
    rome.kubectl(&[
        "-n",
        "isolated",
        "delete",
        "networkpolicy",
        "web",
        "friends",
    ])
    .await?;
    gone(milan, &remote, "networkpolicy", "web").await?;
    says(
        milan,
        &remote,
        "liqo-ingress",
        "it is for all pods again",
        |spec| spec["podSelector"] == json!({}),
    )
    .await?;
    rome.end_namespace("isolated-friends").await?;
    rome.end_namespace("isolated").await
}

pub async fn a_hostile_consumer_opens_nothing_of_the_provider(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (_, romes_at_milan) = prefixes(&world).await?;
    // The prefixes of rome's pods and nodes.
    let seen: Vec<String> = endpoint(milan, rome)
        .await?
        .spec
        .imported
        .values()
        .map(ToString::to_string)
        .collect();
    rome.offloaded_namespace("closed", "Local").await?;
    let remote = rome.remote_namespace("closed", milan).await?;
    let tenant = format!("liqo-tenant-{}", rome.cluster_id().await?);
    let record = |name: &str, spec: &Value| {
        let object = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": name }, "spec": spec });
        json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
            "metadata": { "name": format!("networkpolicy-{}", short_hash(&format!("closed/{name}"))), "namespace": tenant },
            "spec": { "namespace": "closed", "object": object.to_string() } })
        .to_string()
    };
    // Without its manager, rome writes what a hostile consumer would write.
    rome.stop_manager().await?;
    let everybody = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}, { "to": [
        { "namespaceSelector": {} }, { "ipBlock": { "cidr": "10.244.0.0/16" } }, { "ipBlock": { "cidr": "169.254.169.254/32" } },
        { "ipBlock": { "cidr": format!("{romes_at_milan}.7.7/32") } }] }] });
    milan.apply(&record("open", &everybody)).await?;
    milan
        .apply(&record(
            "liqo",
            &json!({ "podSelector": {}, "ingress": [{}] }),
        ))
        .await?;
    let opened = says(milan, &remote, "open", "it exists", |spec| {
        spec["egress"].is_array()
    })
    .await?;
    let all = opened["egress"].as_array().cloned().unwrap_or_default();
    let peers: Vec<&Value> = all
        .iter()
        .flat_map(|rule| rule["to"].as_array().into_iter().flatten())
        .collect();
    ensure!(
        all.iter()
            .all(|rule| rule["to"].as_array().is_some_and(|to| !to.is_empty())),
        "a rule is for everybody: {opened:#}"
    );
    for peer in peers {
        let labels = &peer["namespaceSelector"]["matchLabels"];
        let cidr = peer["ipBlock"]["cidr"].as_str();
        let is_tenant = labels["liqo.io/consumer-id"] == rome.cluster_id().await?;
        let (namespace, pods) = (
            &labels["kubernetes.io/metadata.name"],
            &peer["podSelector"]["matchLabels"],
        );
        let is_dns = namespace == "liqo" && pods["app.kubernetes.io/name"] == "liqo-dns";
        let is_seen = cidr.is_some_and(|cidr| {
            cidr.starts_with(&format!("{romes_at_milan}.")) || seen.iter().any(|one| one == cidr)
        });
        let is_elsewhere = is_seen || cidr.is_some_and(|cidr| !cidr.starts_with("10."));
        let is_internet = cidr.is_some_and(|cidr| cidr.ends_with("/0"))
            && peer["ipBlock"]["except"]
                .as_array()
                .is_some_and(|all| all.len() >= 3);
        let is_single = cidr
            .is_some_and(|cidr| !cidr.ends_with("/0") && is_elsewhere && !cidr.starts_with("169."));
        ensure!(
            is_tenant || is_dns || is_internet || is_single,
            "it opens {peer}"
        );
    }
    let status = |name: &str| {
        let (tenant, name) = (
            tenant.clone(),
            format!("networkpolicy-{}", short_hash(&format!("closed/{name}"))),
        );
        async move {
            Ok::<_, anyhow::Error>(
                milan
                    .object(&["-n", &tenant, "reflectedobject", &name])
                    .await?
                    .unwrap_or_default()["status"]
                    .clone(),
            )
        }
    };
    eventually(
        "the consumer is told what was refused",
        Duration::from_secs(30),
        || async {
            let (open, own) = (status("open").await?, status("liqo").await?);
            let named = open["message"].as_str().is_some_and(|said| {
                said.contains("10.244.0.0/16") && said.contains("169.254.169.254/32")
            });
            ensure!(
                open["reason"] == "AddressRefused" && named && own["reason"] == "NameTaken",
                "{open}, {own}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    let closed = says(milan, &remote, "liqo", "it exists", |_| true).await?;
    ensure!(closed.get("ingress").is_none(), "{closed:#}");
    // Rome's manager removes the records that it did not write.
    rome.start_manager().await?;
    gone(milan, &remote, "networkpolicy", "open").await?;
    defaults(milan, &remote, &["liqo-egress", "liqo-ingress"]).await?;
    rome.end_namespace("closed").await
}
