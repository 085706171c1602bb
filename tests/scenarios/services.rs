//! Services of offloaded namespaces at the provider, and attempts of a hostile consumer.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_api::short_hash;
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::{
    network::{connected, disable_network, enable_network, endpoint},
    pods::{deployment, name_of, node_of},
};

/// The first halves of the addresses under which each cluster sees the other's pods: milan's at
/// rome, rome's at milan.
pub async fn prefixes(world: &World) -> Result<(String, String)> {
    connected(&world.rome, &world.milan).await?;
    let half = async |here: &Cluster, peer: &Cluster| {
        let pods = pod_prefix(peer).await?;
        let imported = endpoint(here, peer).await?.spec.imported;
        let found = imported
            .iter()
            .find(|(there, _)| there.to_string().starts_with(&pods));
        let (_, here) = found.context("the peer's pods are not imported")?;
        anyhow::Ok(
            here.to_string()
                .split('.')
                .take(2)
                .collect::<Vec<_>>()
                .join("."),
        )
    };
    Ok((
        half(&world.rome, &world.milan).await?,
        half(&world.milan, &world.rome).await?,
    ))
}

/// The first half of the addresses of a cluster's pods.
async fn pod_prefix(cluster: &Cluster) -> Result<String> {
    let range = cluster
        .kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].spec.podCIDR}"])
        .await?;
    let octets: Vec<&str> = range.split('.').take(2).collect();
    ensure!(octets.len() == 2, "no range of pods: {range:?}");
    Ok(octets.join("."))
}

/// The address with this prefix as its first half.
pub fn moved(address: &str, prefix: &str) -> String {
    let host: Vec<&str> = address.split('.').skip(2).collect();
    format!("{prefix}.{}", host.join("."))
}

fn addresses(slices: &[Value]) -> BTreeSet<String> {
    let endpoints = slices
        .iter()
        .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
    endpoints
        .filter_map(|endpoint| Some(endpoint["addresses"][0].as_str()?.to_owned()))
        .collect()
}

async fn slices(cluster: &Cluster, namespace: &str, service: &str) -> Result<Vec<Value>> {
    cluster
        .items(&[
            "-n",
            namespace,
            "endpointslices",
            "-l",
            &format!("kubernetes.io/service-name={service}"),
        ])
        .await
}

/// Waits until a Service has exactly these endpoints.
async fn endpoints(
    cluster: &Cluster,
    namespace: &str,
    service: &str,
    wanted: &BTreeSet<String>,
) -> Result<()> {
    eventually(
        &format!(
            "Service {service} at {} has endpoints {wanted:?}",
            cluster.name
        ),
        Duration::from_secs(30),
        || async {
            let found = addresses(&slices(cluster, namespace, service).await?);
            ensure!(found == *wanted, "it has {found:?}");
            Ok(Some(()))
        },
    )
    .await
}

/// A Service without a selector, with this number of ports, and its slice with this number of
/// endpoints, whose hostnames are as long as they can be.
fn large_service(namespace: &str, prefix: &str, endpoints: u8, ports: u16) -> String {
    let port = |number: u16| json!({ "name": format!("p{number}"), "port": 1000 + number });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "large", "namespace": namespace },
        "spec": { "ports": (0..ports).map(port).collect::<Vec<_>>() } });
    let endpoint = |last: u8| {
        json!({ "addresses": [format!("{prefix}.200.{last}")], "hostname": format!("{last:063}"),
            "conditions": { "ready": true, "serving": true, "terminating": false } })
    };
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "large-1", "namespace": namespace, "labels": { "kubernetes.io/service-name": "large" } },
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(), "ports": [{ "name": "p0", "port": 1000 }] });
    json!({ "apiVersion": "v1", "kind": "List", "items": [service, slice] }).to_string()
}

/// Waits until an object is gone.
pub async fn gone(cluster: &Cluster, namespace: &str, kind: &str, name: &str) -> Result<()> {
    eventually(
        &format!("{kind} {name} is gone at {}", cluster.name),
        Duration::from_secs(30),
        || async {
            Ok(cluster
                .object(&["-n", namespace, kind, name])
                .await?
                .is_none()
                .then_some(()))
        },
    )
    .await
}

/// A slice grows beyond a record, and a Service beyond the ports that a provider takes.
async fn a_service_that_grows_keeps_what_worked(
    world: &World,
    remote: &str,
    romes_at_milan: &str,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let prefix = pod_prefix(rome).await?;
    for (count, ports) in [(50, 3), (100, 25)] {
        rome.apply(&large_service("services", &prefix, count, ports))
            .await?;
        let wanted = (0..count)
            .map(|last| format!("{romes_at_milan}.200.{last}"))
            .collect();
        endpoints(milan, remote, "large", &wanted).await?;
    }
    eventually(
        "the Service has its first twenty ports",
        Duration::from_secs(20),
        || async {
            let now = milan
                .object(&["-n", remote, "service", "large"])
                .await?
                .context("it is gone")?;
            Ok((now["spec"]["ports"].as_array().map(Vec::len) == Some(20)).then_some(()))
        },
    )
    .await?;
    ensure!(
        slices(milan, remote, "large").await?.len() == 2,
        "a slice of 17 KiB travels in two parts"
    );
    Ok(())
}

pub async fn services_are_reflected_with_endpoints_as_the_provider_sees_them(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    disable_network(&world).await?;
    rome.offloaded_namespace("services", "LocalAndRemote")
        .await?;
    let remote = rome.remote_namespace("services", milan).await?;
    let spread = "      topologySpreadConstraints: [{ maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
                  labelSelector: { matchLabels: { app: web } }, nodeTaintsPolicy: Honor }]\n      containers:";
    rome.apply(&deployment("services", "web", 4).replace("      containers:", spread))
        .await?;
    rome.ready_pods("services", "app=web", 4).await?;
    rome.kubectl(&[
        "-n",
        "services",
        "expose",
        "deployment",
        "web",
        "--port=80",
        "--target-port=8000",
        "--type=NodePort",
    ])
    .await?;
    ensure!(
        milan
            .object(&["-n", &remote, "service", "web"])
            .await?
            .is_none(),
        "a Service was reflected without a network"
    );

    enable_network(&world).await?;
    let (milans_at_rome, romes_at_milan) = prefixes(&world).await?;
    let there = milan.ready_pods(&remote, "app=web", 2).await?;
    let here = eventually(
        "local pods have addresses",
        Duration::from_secs(30),
        || async {
            let pods = rome.pods("services", "app=web").await?;
            for pod in &there {
                let there = pod.status.clone().unwrap_or_default();
                let theirs = there.pod_ip.context("no address at milan")?;
                let home = pods
                    .iter()
                    .find(|home| name_of(home) == name_of(pod))
                    .context("no local pod")?;
                let status = home.status.clone().unwrap_or_default();
                let listed: Vec<String> = status
                    .pod_ips
                    .unwrap_or_default()
                    .into_iter()
                    .map(|one| one.ip)
                    .collect();
                let wanted = moved(&theirs, &milans_at_rome);
                ensure!(
                    status.pod_ip.as_ref() == Some(&wanted),
                    "{:?}",
                    status.pod_ip
                );
                let of_each_family = there.pod_ips.unwrap_or_default().len();
                ensure!(
                    listed.first() == Some(&wanted) && listed.len() == of_each_family,
                    "{listed:?}"
                );
                let annotation = home
                    .metadata
                    .annotations
                    .as_ref()
                    .and_then(|all| all.get("liqo.io/remote-pod-ip"));
                ensure!(annotation == Some(&theirs), "{annotation:?}");
            }
            Ok(Some(pods))
        },
    )
    .await?;
    let address = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.clone()?.pod_ip;
    endpoints(
        rome,
        "services",
        "web",
        &here.iter().filter_map(address).collect(),
    )
    .await?;
    let local = here
        .iter()
        .filter(|pod| node_of(pod) == "rome-1")
        .filter_map(address)
        .map(|own| moved(&own, &romes_at_milan));
    let wanted: BTreeSet<String> = there.iter().filter_map(address).chain(local).collect();
    ensure!(wanted.len() == 4, "{wanted:?}");
    endpoints(milan, &remote, "web", &wanted).await?;

    let replica = milan
        .object(&["-n", &remote, "service", "web"])
        .await?
        .context("no replica")?;
    let port = &replica["spec"]["ports"][0];
    ensure!(
        replica["spec"]["type"] == "ClusterIP"
            && port["targetPort"] == 8000
            && port.get("nodePort").is_none(),
        "{replica:#}"
    );
    ensure!(replica["spec"].get("selector").is_none(), "{replica:#}");
    let slice = slices(milan, &remote, "web")
        .await?
        .pop()
        .context("no slice")?;
    ensure!(
        slice["endpoints"]
            .as_array()
            .into_iter()
            .flatten()
            .all(|one| one.get("nodeName").is_none()),
        "{slice:#}"
    );
    let policy = milan
        .object(&["-n", &remote, "networkpolicy", "liqo-ingress"])
        .await?
        .context("no NetworkPolicy")?
        .to_string();
    ensure!(
        policy.contains(&format!("{romes_at_milan}.0.0/16")),
        "{policy}"
    );

    // Changes are applied, the address of the Service stays, and nothing is written if nothing
    // changes.
    rome.kubectl(&[
        "-n",
        "services",
        "patch",
        "service",
        "web",
        "-p",
        r#"{"spec":{"sessionAffinity":"ClientIP"}}"#,
    ])
    .await?;
    eventually("the replica follows", Duration::from_secs(20), || async {
        let now = milan
            .object(&["-n", &remote, "service", "web"])
            .await?
            .unwrap_or_default();
        ensure!(
            now["spec"]["clusterIP"] == replica["spec"]["clusterIP"],
            "the address changed: {now:#}"
        );
        Ok((now["spec"]["sessionAffinity"] == "ClientIP").then_some(()))
    })
    .await?;
    a_service_that_grows_keeps_what_worked(&world, &remote, &romes_at_milan).await?;
    world.quiet(&[rome, milan]).await?;

    rome.kubectl(&[
        "-n",
        "services",
        "annotate",
        "service",
        "web",
        "liqo.io/reflection=deny",
    ])
    .await?;
    gone(milan, &remote, "service", "web").await?;
    endpoints(milan, &remote, "web", &BTreeSet::new()).await?;
    rome.kubectl(&[
        "-n",
        "services",
        "annotate",
        "service",
        "web",
        "liqo.io/reflection-",
    ])
    .await?;
    endpoints(milan, &remote, "web", &wanted).await?;

    disable_network(&world).await?;
    gone(milan, &remote, "service", "web").await?;
    endpoints(
        rome,
        "services",
        "web",
        &here
            .iter()
            .filter(|pod| node_of(pod) == "rome-1")
            .filter_map(address)
            .collect(),
    )
    .await?;
    enable_network(&world).await?;
    rome.end_namespace("services").await
}

pub async fn pods_of_a_stateful_set_have_their_names_in_both_clusters(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (_, romes_at_milan) = prefixes(&world).await?;
    rome.offloaded_namespace("members", "LocalAndRemote")
        .await?;
    let remote = rome.remote_namespace("members", milan).await?;
    let set = deployment("members", "db", 2)
        .replace("kind: Deployment", "kind: StatefulSet")
        .replace("spec:\n  replicas", "spec:\n  serviceName: db\n  replicas")
        .replace(
            "      containers:",
            "      topologySpreadConstraints: [{ maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
             labelSelector: { matchLabels: { app: db } }, nodeTaintsPolicy: Honor }]\n      containers:",
        );
    let headless = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db", "namespace": "members" },
        "spec": { "clusterIP": "None", "selector": { "app": "db" }, "ports": [{ "port": 5432 }] } });
    rome.apply(&headless.to_string()).await?;
    rome.apply(&set).await?;
    rome.ready_pods("members", "app=db", 2).await?;
    let there = milan.ready_pods(&remote, "app=db", 1).await?;
    let inside = there.first().map(name_of).context("no remote pod")?;
    let other = if inside == "db-0" { "db-1" } else { "db-0" };
    let at_home = rome.pods("members", "app=db").await?;
    let home_of = |name: &str| {
        at_home
            .iter()
            .find(|pod| name_of(pod) == name)
            .and_then(|pod| pod.status.clone()?.pod_ip)
    };
    let wanted = moved(
        &home_of(other).context("no address at home")?,
        &romes_at_milan,
    );
    eventually(
        "the member at home has its name at milan",
        Duration::from_mins(1),
        || async {
            let line = format!("nslookup {other}.db.{remote}.svc.cluster.local");
            let found = rome
                .kubectl(&["-n", "members", "exec", inside, "--", "sh", "-c", &line])
                .await?;
            ensure!(found.contains(&wanted), "{found}");
            Ok(Some(()))
        },
    )
    .await?;
    rome.end_namespace("members").await
}

pub async fn a_hostile_consumer_adds_no_endpoints_outside_its_prefixes_and_services(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (_, romes_at_milan) = prefixes(&world).await?;
    let own_address = format!("{romes_at_milan}.7.7");
    rome.offloaded_namespace("hostile", "Local").await?;
    let remote = rome.remote_namespace("hostile", milan).await?;
    let tenant = format!("liqo-tenant-{}", rome.cluster_id().await?);
    milan
        .kubectl(&[
            "-n",
            &remote,
            "create",
            "service",
            "clusterip",
            "admins",
            "--tcp=80",
        ])
        .await?;
    // The names that rome's manager would use.
    let named =
        |kind: &str, name: &str| format!("{kind}-{}", short_hash(&format!("hostile/{name}")));
    let record = |name: &str, object: &Value| {
        json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
            "metadata": { "name": name, "namespace": tenant }, "spec": { "namespace": "hostile", "object": object.to_string() } })
        .to_string()
    };
    let service = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "type": "LoadBalancer", "externalIPs": ["192.0.2.1"], "selector": { "app": "x" }, "ports": [{ "port": 80 }] } })
    };
    let slice = |service: &str, addresses: &[&str]| {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({ "addresses": [address] }))
            .collect();
        json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{ "port": 80 }],
            "metadata": { "name": format!("{service}-x"), "labels": { "kubernetes.io/service-name": service } }, "endpoints": endpoints })
    };
    let refused = |name: String, reason: &'static str, words: &'static str| {
        let tenant = tenant.clone();
        async move {
            eventually(
                &format!("record {name} is refused with {reason}"),
                Duration::from_secs(30),
                || async {
                    let record = milan
                        .object(&["-n", &tenant, "reflectedobject", &name])
                        .await?
                        .context("the record is gone")?;
                    let status = &record["status"];
                    let said = status["message"].as_str().unwrap_or_default();
                    ensure!(
                        status["reason"] == reason && said.contains(words),
                        "{status}"
                    );
                    Ok(Some(()))
                },
            )
            .await
        }
    };
    // Without its manager, rome writes what a hostile consumer would write.
    rome.stop_manager().await?;
    milan
        .apply(&record(&named("service", "mine"), &service("mine")))
        .await?;
    milan
        .apply(&record(
            &named("endpointslice", "mine-x"),
            &slice("mine", &[own_address.as_str(), "192.0.2.7", "10.96.0.1"]),
        ))
        .await?;
    milan
        .apply(&record(&named("service", "admins"), &service("admins")))
        .await?;
    milan
        .apply(&record(
            &named("endpointslice", "admins-x"),
            &slice("admins", &[own_address.as_str()]),
        ))
        .await?;
    refused(
        named("endpointslice", "mine-x"),
        "AddressRefused",
        "10.96.0.1, 192.0.2.7",
    )
    .await?;
    refused(named("service", "admins"), "NameTaken", "a Service admins").await?;
    refused(named("endpointslice", "admins-x"), "NoService", "admins").await?;
    endpoints(
        milan,
        &remote,
        "mine",
        &BTreeSet::from([own_address.clone()]),
    )
    .await?;
    endpoints(milan, &remote, "admins", &BTreeSet::new()).await?;
    let replica = milan
        .object(&["-n", &remote, "service", "mine"])
        .await?
        .context("no replica")?;
    let clean = replica["spec"]["type"] == "ClusterIP"
        && ["externalIPs", "selector"]
            .iter()
            .all(|field| replica["spec"].get(field).is_none());
    ensure!(clean, "{replica:#}");
    // Rome's manager removes the records that it did not write.
    rome.start_manager().await?;
    gone(milan, &remote, "service", "mine").await?;
    endpoints(milan, &remote, "mine", &BTreeSet::new()).await?;
    rome.end_namespace("hostile").await
}
