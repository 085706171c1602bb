//! Clusters with IPv4 and IPv6: pods and Services have addresses of both families, at the peer,
//! too.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::network::{ABROAD, AT_HOME, ask, connected, endpoint, exec, seen, servers};

/// Addresses by family, as `EndpointSlice`s name them.
pub type ByFamily = BTreeMap<&'static str, BTreeSet<String>>;

fn family(address: &str) -> &'static str {
    if address.contains(':') {
        "IPv6"
    } else {
        "IPv4"
    }
}

pub fn by_family<'a>(addresses: impl IntoIterator<Item = &'a String>) -> ByFamily {
    let mut all = ByFamily::new();
    for address in addresses {
        all.entry(family(address))
            .or_default()
            .insert(address.clone());
    }
    all
}

/// The address as part of a URL.
fn host(address: &str) -> String {
    if family(address) == "IPv6" {
        format!("[{address}]")
    } else {
        address.to_owned()
    }
}

/// The addresses of a pod, one of each family.
fn addresses(pod: &Pod) -> Result<Vec<String>> {
    let status = pod.status.clone().unwrap_or_default();
    let all: Vec<String> = status
        .pod_ips
        .unwrap_or_default()
        .into_iter()
        .map(|one| one.ip)
        .collect();
    ensure!(by_family(&all).len() == 2, "{} has {all:?}", pod.name_any());
    Ok(all)
}

/// A Service for the servers of the app `web`.
fn service(namespace: &str, name: &str, policy: &str, families: &[&str]) -> String {
    let ports = json!([{ "name": "http", "port": 80, "targetPort": 8080 }]);
    let spec = json!({ "selector": { "app": "web" }, "ports": ports, "ipFamilyPolicy": policy, "ipFamilies": families });
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": namespace }, "spec": spec })
        .to_string()
}

/// Waits until a Service has these endpoints.
pub async fn has_endpoints(
    cluster: &Cluster,
    namespace: &str,
    service: &str,
    wanted: &ByFamily,
) -> Result<()> {
    eventually(
        &format!(
            "Service {service} at {} has endpoints {wanted:?}",
            cluster.name
        ),
        Duration::from_secs(30),
        || async {
            let label = format!("kubernetes.io/service-name={service}");
            let mut found = BTreeSet::new();
            for slice in cluster
                .items(&["-n", namespace, "endpointslices", "-l", &label])
                .await?
            {
                for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                    let address = endpoint["addresses"][0].as_str().context("no address")?;
                    ensure!(slice["addressType"] == family(address), "{slice:#}");
                    found.insert(address.to_owned());
                }
            }
            ensure!(by_family(&found) == *wanted, "it has {found:?}");
            Ok(Some(()))
        },
    )
    .await
}

/// Waits until both pods answer at each address of a Service.
pub async fn both_answer(
    world: &World,
    namespace: &str,
    caller: &str,
    services: &[String],
    pods: [&str; 2],
) -> Result<()> {
    for address in services {
        eventually(
            &format!("{caller} reaches both pods at {address}"),
            Duration::from_secs(30),
            || async {
                let line = format!(
                    "i=0; while [ $i -lt 20 ]; do timeout 3 wget -qO- http://{}; i=$((i+1)); done",
                    host(address)
                );
                let answers = exec(&world.rome, namespace, caller, &line).await?;
                ensure!(pods.iter().all(|pod| answers.contains(pod)), "{answers}");
                Ok(Some(()))
            },
        )
        .await?;
    }
    Ok(())
}

/// The addresses of a Service.
pub async fn cluster_ips(cluster: &Cluster, namespace: &str, name: &str) -> Result<Vec<String>> {
    let found = cluster
        .object(&["-n", namespace, "service", name])
        .await?
        .context("no such Service")?;
    Ok(serde_json::from_value(found["spec"]["clusterIPs"].clone())?)
}

pub async fn ranges_of_both_families_are_detected_and_negotiated(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    for cluster in [rome, milan] {
        let config = cluster
            .object(&["clusterconfig", "liqo"])
            .await?
            .context("no ClusterConfig")?;
        let found = &config["status"]["network"];
        ensure!(
            found["podCIDRs"] == json!(["10.244.0.0/16", "fd00:10:244::/48"]),
            "{found:#}"
        );
        ensure!(
            found["serviceCIDRs"] == json!(["10.96.0.0/12", "fd00:10:96::/112"]),
            "{found:#}"
        );
    }
    let (here, there) = (
        endpoint(rome, milan).await?.spec,
        endpoint(milan, rome).await?.spec,
    );
    ensure!(
        here.imported == there.exported && here.exported == there.imported,
        "{here:?} {there:?}"
    );
    for range in [
        "10.244.0.0/16",
        "fd00:10:244::/48",
        "10.70.0.0/24",
        "fd70::/120",
    ] {
        ensure!(
            here.imported.contains_key(&range.parse()?),
            "{range} of milan: {here:?}"
        );
        ensure!(
            here.exported.contains_key(&range.parse()?),
            "{range} of rome: {here:?}"
        );
    }
    Ok(())
}

pub async fn pods_and_services_have_addresses_of_both_families_on_both_sides(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, namespace) = (&world.rome, &world.milan, "families");
    connected(rome, milan).await?;
    rome.offloaded_namespace(namespace, "LocalAndRemote")
        .await?;
    let remote = rome.remote_namespace(namespace, milan).await?;
    rome.apply(&service(
        namespace,
        "web",
        "PreferDualStack",
        &["IPv4", "IPv6"],
    ))
    .await?;
    rome.apply(&service(namespace, "six", "SingleStack", &["IPv6"]))
        .await?;
    rome.apply(&servers(namespace, "near", "web", 1, AT_HOME))
        .await?;
    rome.apply(&servers(namespace, "far", "web", 1, ABROAD))
        .await?;
    let near = rome
        .ready_pods(namespace, "server=near", 1)
        .await?
        .remove(0);
    let far = eventually(
        "the pod abroad has two addresses at home",
        Duration::from_mins(1),
        || async {
            let far = rome.ready_pods(namespace, "server=far", 1).await?.remove(0);
            addresses(&far)?;
            Ok(Some(far))
        },
    )
    .await?;
    let own_of_far = addresses(&milan.api::<Pod>(&remote).get(&far.name_any()).await?)?;
    let (to_milan, to_rome) = (endpoint(rome, milan).await?, endpoint(milan, rome).await?);
    let (own_of_near, far_as_seen) = (addresses(&near)?, addresses(&far)?);
    let near_as_seen = own_of_near
        .iter()
        .map(|address| seen(&to_milan, address))
        .collect::<Result<Vec<_>>>()?;
    let expected = own_of_far
        .iter()
        .map(|address| seen(&to_rome, address))
        .collect::<Result<Vec<_>>>()?;
    ensure!(
        far_as_seen == expected,
        "at home it has {far_as_seen:?}, but it is reachable there at {expected:?}"
    );

    let (near, far) = (near.name_any(), far.name_any());
    for (caller, called, addresses, sources) in [
        (&near, &far, &far_as_seen, &near_as_seen),
        (&far, &near, &near_as_seen, &far_as_seen),
    ] {
        for (address, source) in addresses.iter().zip(sources) {
            let (address, source) = (host(address), source.parse::<IpAddr>()?);
            let answer = ask(rome, namespace, caller, &address, "").await?;
            ensure!(answer == *called, "{answer:?} is not {called}");
            let seen_as = ask(rome, namespace, caller, &address, "cgi-bin/who").await?;
            ensure!(
                seen_as.trim_start_matches('[').parse() == Ok(source),
                "{caller} is seen as {seen_as}, not as {source}"
            );
            // Larger than one packet: routers do not fragment IPv6.
            let line = format!("timeout 150 wget -qO- http://{address}:8080/large | md5sum");
            let large = exec(rome, namespace, caller, &line).await?;
            let sent = exec(rome, namespace, called, "md5sum < /tmp/w/large").await?;
            ensure!(large == sent, "a large answer of {address} arrives damaged");
        }
    }

    let at_home = by_family(own_of_near.iter().chain(&far_as_seen));
    let abroad = by_family(near_as_seen.iter().chain(&own_of_far));
    for (cluster, namespace_there, caller, endpoints) in [
        (rome, namespace, &near, at_home),
        (milan, &remote, &far, abroad),
    ] {
        has_endpoints(cluster, namespace_there, "web", &endpoints).await?;
        let web = cluster_ips(cluster, namespace_there, "web").await?;
        ensure!(
            by_family(&web).len() == 2,
            "web at {} has {web:?}",
            cluster.name
        );
        both_answer(&world, namespace, caller, &web, [&near, &far]).await?;

        let of_six: ByFamily = endpoints
            .into_iter()
            .filter(|(family, _)| *family == "IPv6")
            .collect();
        has_endpoints(cluster, namespace_there, "six", &of_six).await?;
        let six = cluster_ips(cluster, namespace_there, "six").await?;
        ensure!(
            by_family(&six).keys().eq([&"IPv6"]),
            "six at {} has {six:?}",
            cluster.name
        );
        both_answer(
            &world,
            namespace,
            caller,
            &["six".to_owned()],
            [&near, &far],
        )
        .await?;
    }

    // A Service gets its second family and loses it again, in both clusters.
    for (patch, count) in [
        (r#"{"spec":{"ipFamilyPolicy":"PreferDualStack"}}"#, 2),
        (
            r#"{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv6"]}}"#,
            1,
        ),
    ] {
        rome.kubectl(&[
            "-n",
            namespace,
            "patch",
            "service",
            "six",
            "--type=merge",
            "-p",
            patch,
        ])
        .await?;
        for (cluster, namespace) in [(rome, namespace), (milan, &remote)] {
            eventually(
                &format!("six has {count} addresses at {}", cluster.name),
                Duration::from_secs(30),
                || async {
                    let six = cluster_ips(cluster, namespace, "six").await?;
                    ensure!(six.len() == count && family(&six[0]) == "IPv6", "{six:?}");
                    Ok(Some(()))
                },
            )
            .await?;
        }
    }
    world.quiet(&[rome, milan]).await?;
    rome.end_namespace(namespace).await
}
