//! Pods at a provider use the API server of their own cluster, with kubectl, which checks
//! certificates.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use liqo_api::{labels, pods};
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Value, json};

use crate::network::{connected, disable_network, enable_network};

const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Creates a namespace with a `ServiceAccount` that may read its pods, and whose tokens providers
/// may get.
async fn namespace(rome: &Cluster, name: &str) -> Result<()> {
    rome.offloaded_namespace(name, "Remote").await?;
    rome.liqoctl(&["offload", "namespace", name, "--api-server", "true"])
        .await?;
    let metadata = json!({ "name": "reader", "namespace": name });
    let group = "rbac.authorization.k8s.io";
    for object in [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }),
        json!({ "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] }] }),
        json!({ "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": "reader" },
            "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": name }] }),
    ] {
        rome.apply(&object.to_string()).await?;
    }
    Ok(())
}

/// A pod with this `ServiceAccount` and with kubectl.
fn client(namespace: &str, name: &str, image: &str, annotation: Option<&str>) -> String {
    let annotations: Value =
        annotation.map_or(json!({}), |said| json!({ "liqo.io/api-server": said }));
    let object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name }, "annotations": annotations },
        "spec": {
            "serviceAccountName": "reader",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": image,
                "command": ["busybox", "sleep", "3600"],
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }],
        },
    });
    object.to_string()
}

/// Runs a command in a pod. Returns whether it succeeded, with its standard output and standard
/// error.
async fn exec(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    command: &[&str],
) -> Result<(bool, String)> {
    let arguments = [&["-n", namespace, "exec", pod, "--"], command].concat();
    let tried = cluster.try_kubectl(&arguments).await?;
    Ok((tried.success, format!("{}{}", tried.stdout, tried.stderr)))
}

/// The Secrets with which this pod uses the API server: the record in the tenant namespace, and the
/// Secret that the pod mounts.
async fn secrets(world: &World, namespace: &str, pod: &Pod) -> Result<Vec<Secret>> {
    let (rome, milan) = (&world.rome, &world.milan);
    let name = format!("liqo-api-server-{}", pod.uid().context("a UID")?);
    let tenant = liqo_api::tenant_namespace(&rome.cluster_id().await?.parse()?);
    let records: Vec<Secret> = milan
        .api::<Secret>(&tenant)
        .list(&kube::api::ListParams::default())
        .await?
        .items;
    let of_pod =
        |secret: &Secret| secret.annotations().get(liqo_api::annotations::HOME_NAME) == Some(&name);
    let mut found: Vec<Secret> = records.into_iter().filter(of_pod).collect();
    let home = format!("{}={namespace}", labels::HOME_NAMESPACE);
    for mapped in milan.items(&["namespaces", "-l", &home]).await? {
        let mapped = mapped["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(replica) = milan.replica(mapped, "secrets", &name).await? {
            found.push(serde_json::from_value(replica)?);
        }
    }
    Ok(found)
}

async fn allow_api_server(rome: &Cluster, is_allowed: bool) -> Result<()> {
    let patch = json!({ "spec": { "network": { "apiServer": is_allowed } } }).to_string();
    rome.kubectl(&[
        "patch",
        "peeringpolicy",
        "default",
        "--type=merge",
        "-p",
        &patch,
    ])
    .await
    .map(drop)
}

pub async fn a_remote_pod_uses_its_home_api_server_and_nothing_else_there(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, name) = (&world.rome, &world.milan, "api-access");
    connected(rome, milan).await?;
    let image = world.load_kubectl(milan).await?;
    namespace(rome, name).await?;
    rome.apply(&client(name, "client", image, None)).await?;
    rome.apply(&client(name, "silent", image, Some("none")))
        .await?;
    let pod = rome.ready_pods(name, "app=client", 1).await?.remove(0);
    rome.ready_pods(name, "app=silent", 1).await?;

    // kubectl finds the address, CA, token and namespace in the usual places.
    let list = ["kubectl", "get", "pods", "-o", "name"];
    eventually(
        "the pod sees itself at home",
        Duration::from_secs(30),
        || async {
            let (success, said) = exec(rome, name, "client", &list).await?;
            ensure!(
                success && said.contains("pod/client") && said.contains("pod/silent"),
                "{said}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    let (success, said) = exec(rome, name, "client", &["kubectl", "get", "secrets"]).await?;
    ensure!(
        !success && said.contains(&format!("system:serviceaccount:{name}:reader")),
        "it has another identity than at home: {said}"
    );
    let knock = |port: &'static str| {
        [
            "busybox",
            "nc",
            "-w",
            "3",
            "kubernetes.default.svc",
            port,
            "-e",
            "busybox",
            "true",
        ]
    };
    ensure!(
        exec(rome, name, "client", &knock("443")).await?.0,
        "the port that is open"
    );
    try_join_all(["6443", "10250", "9479", "22"].map(|closed| async move {
        let (success, said) = exec(rome, name, "client", &knock(closed)).await?;
        ensure!(
            !success,
            "port {closed} of an API server's machine answers: {said}"
        );
        Ok(())
    }))
    .await?;
    ensure!(
        !exec(rome, name, "silent", &["busybox", "cat", TOKEN])
            .await?
            .0,
        "a pod that wants no token has one"
    );
    let (_, hosts) = exec(rome, name, "client", &["busybox", "cat", "/etc/hosts"]).await?;
    let line = hosts
        .lines()
        .find(|line| line.contains("kubernetes.default.svc"))
        .context("no line in the hosts file")?;
    let address = line
        .split_whitespace()
        .next()
        .context("no address in the hosts file")?;
    let directly = [
        "busybox", "nc", "-w", "3", address, "443", "-e", "busybox", "true",
    ];
    ensure!(
        exec(rome, name, "client", &directly).await?.0,
        "the address in the hosts file"
    );
    let (success, said) = exec(rome, name, "silent", &directly).await?;
    ensure!(
        !success,
        "a pod that uses no API server reaches that of rome: {said}"
    );

    // The annotation makes the consumer renew the token, and the new one gets into the pod.
    let found = secrets(&world, name, &pod).await?;
    ensure!(found.len() == 2, "{} Secrets", found.len());
    let (record, tenant) = (
        found[0].name_any(),
        found[0].namespace().unwrap_or_default(),
    );
    let (_, before) = exec(rome, name, "client", &["busybox", "cat", TOKEN]).await?;
    milan
        .kubectl(&[
            "-n",
            &tenant,
            "annotate",
            "--overwrite",
            "secret",
            &record,
            "liqo.io/renew-at=2026-01-01T00:00:00Z",
        ])
        .await?;
    eventually(
        "another token is in the pod",
        Duration::from_secs(200),
        || async {
            let (success, now) = exec(rome, name, "client", &["busybox", "cat", TOKEN]).await?;
            Ok((success && now != before).then_some(()))
        },
    )
    .await?;
    ensure!(
        exec(rome, name, "client", &list).await?.0,
        "the new token is good"
    );

    // A policy also closes the path for pods that run already.
    allow_api_server(rome, false).await?;
    let closed = eventually(
        "the API server is closed to pods there",
        Duration::from_secs(30),
        || async { Ok((!exec(rome, name, "client", &knock("443")).await?.0).then_some(())) },
    )
    .await;
    allow_api_server(rome, true).await?;
    closed?;

    rome.kubectl(&["-n", name, "delete", "pod", "client"])
        .await?;
    eventually(
        "its Secrets went with the pod",
        Duration::from_secs(30),
        || async { Ok(secrets(&world, name, &pod).await?.is_empty().then_some(())) },
    )
    .await?;
    rome.end_namespace(name).await
}

pub async fn a_pod_that_requires_its_api_server_waits_until_it_is_reachable(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, name) = (&world.rome, &world.milan, "api-required");
    connected(rome, milan).await?;
    let image = world.load_kubectl(milan).await?;
    namespace(rome, name).await?;
    disable_network(&world).await?;
    rome.apply(&client(name, "requires", image, Some("home")))
        .await?;
    rome.apply(&client(name, "optional", image, None)).await?;
    let reason = eventually(
        "the pod says what it waits for",
        Duration::from_secs(30),
        || async {
            let pod = rome.api::<Pod>(name).get("requires").await?;
            let conditions = pod
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let condition = conditions
                .into_iter()
                .find(|one| one.type_ == pods::OFFLOADED && one.status == "False");
            Ok(condition.and_then(|condition| condition.reason))
        },
    )
    .await;
    let optional = rome.ready_pods(name, "app=optional", 1).await;
    enable_network(&world).await?;
    let reason = reason?;
    ensure!(reason == pods::NO_API_SERVER, "{reason}");
    optional.context("a pod that does not require it does not run")?;
    rome.ready_pods(name, "app=requires", 1).await?;
    eventually(
        "the pod reaches its API server",
        Duration::from_secs(30),
        || async {
            let (success, said) = exec(rome, name, "requires", &["kubectl", "get", "pods"]).await?;
            ensure!(success, "{said}");
            Ok(Some(()))
        },
    )
    .await?;
    rome.end_namespace(name).await
}
