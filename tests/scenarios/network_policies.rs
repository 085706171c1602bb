//! `NetworkPolicy`s of offloaded namespaces at the provider: what they say there. What packets find is in `walls`.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use liqo_api::short_hash;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    network::{endpoint, not_wanted, wanted_again},
    pods::{deployment, node_of, pod},
    services::{gone, moved, prefixes},
};

const SPREAD: &str = "      topologySpreadConstraints: [{ maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
                      labelSelector: { matchLabels: { app: web } }, nodeTaintsPolicy: Honor }]\n      containers:";

pub fn policy(name: &str, namespace: &str, spec: &Value) -> String {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": name, "namespace": namespace }, "spec": spec })
        .to_string()
}

/// What the policy of this name says, once it does what is asked of it.
async fn says(cluster: &Cluster, namespace: &str, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(&format!("NetworkPolicy {name} at {}: {what}", cluster.name), Duration::from_secs(30), || async {
        let found = cluster.object(&["-n", namespace, "networkpolicy", name]).await?.context("it does not exist")?;
        ensure!(check(&found["spec"]), "{:#}", found["spec"]);
        Ok(Some(found["spec"].clone()))
    })
    .await
}

/// The names of the policies that say what is open by default.
async fn defaults(cluster: &Cluster, namespace: &str, wanted: &[&str]) -> Result<()> {
    eventually(&format!("what is open by default at {}: {wanted:?}", cluster.name), Duration::from_secs(30), || async {
        let all = cluster.items(&["-n", namespace, "networkpolicies"]).await?;
        let names = all.iter().filter_map(|policy| policy["metadata"]["name"].as_str());
        let found: Vec<&str> = names.filter(|name| name.starts_with("liqo-")).collect();
        ensure!(found == wanted, "{found:?}");
        Ok(Some(()))
    })
    .await
}

/// Whether the ranges among these peers have exactly these addresses.
fn names_exactly(peers: &Value, addresses: &BTreeSet<Ipv4Addr>) -> bool {
    let cidrs = peers.as_array().into_iter().flatten().filter_map(|peer| peer["ipBlock"]["cidr"].as_str()?.split_once('/'));
    let hosts = cidrs.filter_map(|(first, length)| {
        let (first, length): (Ipv4Addr, u32) = (first.parse().ok()?, length.parse().ok()?);
        Some((0..1_u32 << (32 - length).min(6)).map(move |host| Ipv4Addr::from(u32::from(first) + host)))
    });
    let hosts = hosts.flatten();
    hosts.collect::<BTreeSet<Ipv4Addr>>() == *addresses
}

/// Where the provider sees those of these pods that run at home.
fn seen(pods: &[Pod], home: &str, prefix: &str) -> BTreeSet<Ipv4Addr> {
    let at_home = pods.iter().filter(|pod| node_of(pod) == home);
    at_home.filter_map(|pod| moved(&pod.status.as_ref()?.pod_ip.clone()?, prefix).parse().ok()).collect()
}

pub async fn policies_apply_at_the_provider_and_follow_the_pods_that_are_not_there(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (_, romes_at_milan) = prefixes(&world).await?;
    rome.offloaded_namespace("walled", "LocalAndRemote").await?;
    let remote = rome.remote_namespace("walled", milan).await?;
    rome.apply(&deployment("walled", "web", 4).replace("      containers:", SPREAD)).await?;
    let pods = rome.ready_pods("walled", "app=web", 4).await?;

    // By default pods meet the tenant's pods, here and there.
    defaults(milan, &remote, &["liqo-egress", "liqo-ingress"]).await?;
    let closed = says(milan, &remote, "liqo", "it closes all pods", |spec| spec["podSelector"] == json!({})).await?;
    ensure!(
        closed.get("ingress").is_none() && closed.get("egress").is_none() && closed["policyTypes"].to_string().contains("Egress"),
        "{closed:#}"
    );
    let open = says(milan, &remote, "liqo-ingress", "it is for all pods", |spec| spec["podSelector"] == json!({})).await?;
    ensure!(open.to_string().contains(&format!("{romes_at_milan}.0.0/16")), "{open:#}");

    // A policy is for the same pods there; those at home are addresses, and for these pods there is no default beside it.
    let web = json!({ "matchLabels": { "app": "web" } });
    rome.apply(&policy(
        "web",
        "walled",
        &json!({ "podSelector": web, "ingress": [{ "from": [{ "podSelector": web }], "ports": [{ "port": 8000 }] }] }),
    ))
    .await?;
    let at_home = seen(&pods, "rome-1", &romes_at_milan);
    ensure!(at_home.len() == 2, "{at_home:?}");
    let twin =
        says(milan, &remote, "web", "it names the pods at home", |spec| names_exactly(&spec["ingress"][0]["from"], &at_home))
            .await?;
    let from = twin["ingress"][0]["from"].as_array().cloned().unwrap_or_default();
    ensure!(from.contains(&json!({ "podSelector": web })) && twin["ingress"][0]["ports"][0]["port"] == 8000, "{twin:#}");
    let others = json!({ "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["web"] }] });
    says(milan, &remote, "liqo-ingress", "it is for other pods", |spec| spec["podSelector"] == others).await?;
    says(milan, &remote, "liqo-egress", "nothing was said of that", |spec| spec["podSelector"] == json!({})).await?;
    world.quiet(&[rome, milan]).await?;

    rome.kubectl(&["-n", "walled", "scale", "deployment", "web", "--replicas=6"]).await?;
    let pods = rome.ready_pods("walled", "app=web", 6).await?;
    let at_home = seen(&pods, "rome-1", &romes_at_milan);
    ensure!(at_home.len() == 3, "{at_home:?}");
    says(milan, &remote, "web", "it follows", |spec| names_exactly(&spec["ingress"][0]["from"], &at_home)).await?;

    // A namespace that stays at home is its pods' addresses.
    rome.kubectl(&["create", "namespace", "walled-friends"]).await?;
    rome.kubectl(&["label", "namespace", "walled-friends", "friend=yes"]).await?;
    rome.apply(&pod("walled-friends", "friend", "Always", "sleep 3600")).await?;
    let friend = rome.ready_pods("walled-friends", "app=friend", 1).await?;
    let friend = seen(&friend, "rome-1", &romes_at_milan);
    let friends = json!({ "namespaceSelector": { "matchLabels": { "friend": "yes" } } });
    rome.apply(&policy("friends", "walled", &json!({ "podSelector": web, "ingress": [{ "from": [friends] }] }))).await?;
    says(milan, &remote, "friends", "it names the friend", |spec| names_exactly(&spec["ingress"][0]["from"], &friend)).await?;

    // A policy that closes all pods leaves no default; one that stays at home changes nothing there.
    rome.apply(&policy("closed", "walled", &json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }))).await?;
    defaults(milan, &remote, &[]).await?;
    rome.kubectl(&["-n", "walled", "annotate", "networkpolicy", "closed", "liqo.io/reflection=deny"]).await?;
    gone(milan, &remote, "networkpolicy", "closed").await?;
    defaults(milan, &remote, &["liqo-egress", "liqo-ingress"]).await?;

    // Without a network nobody at home can be meant, and the policy stays.
    not_wanted(&world).await?;
    let only_there = json!([{ "podSelector": web }]);
    says(milan, &remote, "web", "only pods there are meant", |spec| spec["ingress"][0]["from"] == only_there).await?;
    wanted_again(&world).await?;
    prefixes(&world).await?;
    says(milan, &remote, "web", "pods at home are meant again", |spec| names_exactly(&spec["ingress"][0]["from"], &at_home))
        .await?;
    rome.kubectl(&["-n", "walled", "delete", "networkpolicy", "web", "friends"]).await?;
    gone(milan, &remote, "networkpolicy", "web").await?;
    says(milan, &remote, "liqo-ingress", "it is for all pods again", |spec| spec["podSelector"] == json!({})).await?;
    rome.delete_namespace("walled-friends").await?;
    rome.delete_namespace("walled").await
}

pub async fn a_consumer_opens_nothing_that_is_the_providers(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (_, romes_at_milan) = prefixes(&world).await?;
    // Rome's pods, and what stands for its nodes.
    let seen: Vec<String> = endpoint(milan, rome).await?.spec.imported.values().map(ToString::to_string).collect();
    rome.offloaded_namespace("walls", "Local").await?;
    let remote = rome.remote_namespace("walls", milan).await?;
    let tenant = format!("liqo-tenant-{}", rome.cluster_id().await?);
    let record = |name: &str, spec: &Value| {
        let object =
            json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": name }, "spec": spec });
        json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
            "metadata": { "name": format!("networkpolicy-{}", short_hash(&format!("walls/{name}"))), "namespace": tenant },
            "spec": { "namespace": "walls", "object": object } })
        .to_string()
    };
    // While its manager does not look, these are what a hostile consumer would write.
    rome.stop_manager().await?;
    let everybody = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}, { "to": [
        { "namespaceSelector": {} }, { "ipBlock": { "cidr": "10.244.0.0/16" } }, { "ipBlock": { "cidr": "169.254.169.254/32" } },
        { "ipBlock": { "cidr": format!("{romes_at_milan}.7.7/32") } }] }] });
    milan.apply(&record("open", &everybody)).await?;
    milan.apply(&record("liqo", &json!({ "podSelector": {}, "ingress": [{}] }))).await?;
    let opened = says(milan, &remote, "open", "it exists", |spec| spec["egress"].is_array()).await?;
    let all = opened["egress"].as_array().cloned().unwrap_or_default();
    let peers: Vec<&Value> = all.iter().flat_map(|rule| rule["to"].as_array().into_iter().flatten()).collect();
    ensure!(all.iter().all(|rule| rule["to"].as_array().is_some_and(|to| !to.is_empty())), "a rule is for everybody: {opened:#}");
    for peer in peers {
        let labels = &peer["namespaceSelector"]["matchLabels"];
        let cidr = peer["ipBlock"]["cidr"].as_str();
        let is_tenant = labels["liqo.io/consumer-id"] == rome.cluster_id().await?;
        let is_dns =
            labels["kubernetes.io/metadata.name"] == "kube-system" && peer["podSelector"]["matchLabels"]["k8s-app"] == "kube-dns";
        let is_seen =
            cidr.is_some_and(|cidr| cidr.starts_with(&format!("{romes_at_milan}.")) || seen.iter().any(|one| one == cidr));
        let is_elsewhere = is_seen || cidr.is_some_and(|cidr| !cidr.starts_with("10."));
        let is_internet = cidr.is_some_and(|cidr| cidr.ends_with("/0"))
            && peer["ipBlock"]["except"].as_array().is_some_and(|all| all.len() >= 3);
        let is_single = cidr.is_some_and(|cidr| !cidr.ends_with("/0") && is_elsewhere && !cidr.starts_with("169."));
        ensure!(is_tenant || is_dns || is_internet || is_single, "it opens {peer}");
    }
    let status = |name: &str| {
        let (tenant, name) = (tenant.clone(), format!("networkpolicy-{}", short_hash(&format!("walls/{name}"))));
        async move {
            Ok::<_, anyhow::Error>(
                milan.object(&["-n", &tenant, "reflectedobject", &name]).await?.unwrap_or_default()["status"].clone(),
            )
        }
    };
    eventually("the consumer is told what was refused", Duration::from_secs(30), || async {
        let (open, own) = (status("open").await?, status("liqo").await?);
        let named =
            open["message"].as_str().is_some_and(|said| said.contains("10.244.0.0/16") && said.contains("169.254.169.254/32"));
        ensure!(open["reason"] == "AddressRefused" && named && own["reason"] == "NameTaken", "{open}, {own}");
        Ok(Some(()))
    })
    .await?;
    let closed = says(milan, &remote, "liqo", "it exists", |_| true).await?;
    ensure!(closed.get("ingress").is_none(), "{closed:#}");
    // Home takes back what it does not know.
    rome.start_manager().await?;
    gone(milan, &remote, "networkpolicy", "open").await?;
    defaults(milan, &remote, &["liqo-egress", "liqo-ingress"]).await?;
    rome.delete_namespace("walls").await
}
