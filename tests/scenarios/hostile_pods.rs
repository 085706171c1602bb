//! Pods that ask the provider for more than was offered, and what they get.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_tests::{World, eventually, is_ready, still};
use serde_json::{Value, json};

use crate::enforcement::{no_policy, policy, refused};
use crate::pods::{node_of, pod};

/// A pod that sleeps, with these changes of its metadata, its spec and its container.
fn changed(
    namespace: &str,
    name: &str,
    metadata: &Value,
    spec: &Value,
    container: &Value,
) -> String {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "localhost/busybox:1",
                "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"],
            }],
        },
    });
    for (field, changes) in [
        ("/metadata", metadata),
        ("/spec", spec),
        ("/spec/containers/0", container),
    ] {
        if let (Some(Value::Object(object)), Some(changes)) =
            (pod.pointer_mut(field), changes.as_object())
        {
            object.extend(changes.clone());
        }
    }
    pod.to_string()
}

pub async fn a_pod_that_asks_for_nothing_is_charged_and_limited_and_keeps_its_own_labels(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, name) = (&world.rome, &world.milan, "greedy");
    rome.offloaded_namespace(name, "Remote").await?;
    let asked = json!({ "sidecar.istio.io/inject": "true", "k8s.v1.cni.cncf.io/networks": "host" });
    let metadata = json!({ "annotations": asked, "labels": { "app": "free", "sidecar.istio.io/inject": "true" } });
    let field = |path: &str| json!({ "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let (mut label, mut network) = (
        field("metadata.labels['sidecar.istio.io/inject']"),
        field("metadata.annotations['k8s.v1.cni.cncf.io/networks']"),
    );
    (label["name"], network["name"]) = ("LABEL".into(), "NETWORK".into());
    let container = json!({ "env": [label, network], "resources": { "requests": { "cpu": "0", "memory": "0" } } });
    let huge = json!({ "resources": { "requests": { "memory": "16Mi" }, "limits": { "memory": "100Ti" } } });
    rome.apply(&changed(name, "huge", &json!({}), &json!({}), &huge))
        .await?;
    rome.apply(&changed(name, "free", &metadata, &json!({}), &container))
        .await?;
    rome.ready_pods(name, "app=free", 1).await?;
    refused(rome, name, "huge", "OfferExceeded", &["memory"]).await?;
    let remote = rome.remote_namespace(name, milan).await?;
    let found = serde_json::to_value(milan.api::<Pod>(&remote).get("free").await?)?;
    for (field, map) in [
        ("labels", &found["metadata"]["labels"]),
        ("annotations", &found["metadata"]["annotations"]),
    ] {
        let foreign = map
            .as_object()
            .into_iter()
            .flatten()
            .find(|(key, _)| key.contains('/') && !liqo_api::is_own(key));
        ensure!(
            foreign.is_none(),
            "the provider has the {field} {foreign:?}"
        );
    }
    let (spec, container) = (&found["spec"], &found["spec"]["containers"][0]);
    ensure!(
        container["resources"]["requests"]["cpu"] == "10m"
            && container["resources"]["requests"]["memory"] == "16Mi"
    );
    ensure!(
        container["resources"]["limits"]["memory"] == "128Mi",
        "{container}"
    );
    ensure!(
        container["resources"]["limits"]["ephemeral-storage"].is_string(),
        "it may fill the disk: {container}"
    );
    ensure!(
        container["securityContext"]["capabilities"]["drop"] == json!(["NET_RAW"]),
        "{container}"
    );
    ensure!(
        spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault",
        "{spec}"
    );
    let read = rome
        .kubectl(&[
            "-n",
            name,
            "exec",
            "free",
            "--",
            "sh",
            "-c",
            "echo $LABEL $NETWORK",
        ])
        .await?;
    ensure!(
        read.trim() == "true host",
        "the pod reads {read:?} about itself"
    );
    // tail keeps the last line, which is all of it.
    let hoard = [
        "-n",
        name,
        "exec",
        "free",
        "--",
        "sh",
        "-c",
        "head -c 400000000 /dev/zero | tail",
    ];
    ensure!(
        !rome.try_kubectl(&hoard).await?.success,
        "it took more memory than its limit"
    );
    rome.end_namespace(name).await
}

pub async fn a_pod_reads_no_secret_of_the_provider_and_probes_none_of_its_nodes(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, name) = (&world.rome, &world.milan, "curious");
    rome.offloaded_namespace(name, "Remote").await?;
    let remote = rome.remote_namespace(name, milan).await?;
    let of_milan = |name: &'static str| {
        let remote = &remote;
        async move {
            milan
                .kubectl(&[
                    "-n",
                    remote,
                    "create",
                    "secret",
                    "generic",
                    name,
                    "--from-literal=password=milans",
                ])
                .await
                .map(drop)
        }
    };
    of_milan("registry").await?;
    let secret = |name: &str, secret: &str| json!({ "name": name, "secret": { "secretName": secret, "optional": true } });
    let volumes = json!({ "volumes": [secret("a", "registry"), secret("b", "later")],
        "imagePullSecrets": [{ "name": "registry" }] });
    let mounts = json!({ "volumeMounts": [{ "name": "a", "mountPath": "/a" }, { "name": "b", "mountPath": "/b" }] });
    rome.apply(&changed(name, "wants", &json!({}), &volumes, &mounts))
        .await?;
    for (pod, secret) in [("needs-registry", "registry"), ("needs-later", "later")] {
        let needs = json!({ "envFrom": [{ "secretRef": { "name": secret } }] });
        rome.apply(&changed(name, pod, &json!({}), &json!({}), &needs))
            .await?;
    }
    let probe =
        json!({ "readinessProbe": { "tcpSocket": { "host": "127.0.0.1", "port": 10250 } } });
    rome.apply(&changed(name, "probe", &json!({}), &json!({}), &probe))
        .await?;
    rome.ready_pods(name, "app=wants", 1).await?;
    // One that is written after the pods were created, as a replicator does.
    of_milan("later").await?;
    for (pod, secret) in [("needs-registry", "registry"), ("needs-later", "later")] {
        eventually(
            &format!("{pod} waits, and says what it lacks as home calls it"),
            Duration::from_mins(1),
            || async {
                let status = rome
                    .api::<Pod>(name)
                    .get(pod)
                    .await?
                    .status
                    .unwrap_or_default();
                let mut waiting = status
                    .container_statuses
                    .into_iter()
                    .flatten()
                    .filter_map(|one| one.state?.waiting?.message);
                Ok(waiting
                    .any(|message| message == format!("secret \"{secret}\" not found"))
                    .then_some(()))
            },
        )
        .await?;
    }
    // A kubelet looks after the volumes of a pod every minute or so.
    still(
        "no pod gets what it needs from milan",
        Duration::from_mins(2),
        false,
        || async {
            let pods = rome
                .pods(name, "app in (needs-registry,needs-later)")
                .await?;
            Ok(pods.iter().any(is_ready))
        },
    )
    .await?;
    let read = rome
        .kubectl(&[
            "-n",
            name,
            "exec",
            "wants",
            "--",
            "sh",
            "-c",
            "cat /a/* /b/* 2>/dev/null; true",
        ])
        .await?;
    ensure!(read.is_empty(), "the pod reads {read:?}");
    for pod in ["wants", "needs-registry", "needs-later"] {
        let spec = serde_json::to_string(&milan.api::<Pod>(&remote).get(pod).await?.spec)?;
        ensure!(
            !spec.contains(r#""registry""#) && !spec.contains(r#""later""#),
            "{pod} names an object of milan's: {spec}"
        );
    }
    eventually(
        "the pod with the probe stays at home",
        Duration::from_secs(30),
        || async {
            let pod = rome.api::<Pod>(name).get("probe").await?;
            ensure!(node_of(&pod) != "milan", "it is at milan");
            Ok((!node_of(&pod).is_empty()).then_some(()))
        },
    )
    .await?;
    rome.end_namespace(name).await
}

pub async fn no_token_leaves_a_namespace_that_does_not_allow_it(world: Arc<World>) -> Result<()> {
    let (rome, milan, name) = (&world.rome, &world.milan, "silent-robots");
    rome.offloaded_namespace(name, "Remote").await?;
    rome.kubectl(&["-n", name, "create", "serviceaccount", "robot"])
        .await?;
    let account = json!({ "serviceAccountName": "robot" });
    let requires = json!({ "annotations": { "liqo.io/api-server": "home" } });
    rome.apply(&changed(name, "requires", &requires, &account, &json!({})))
        .await?;
    rome.apply(&changed(name, "unaware", &json!({}), &account, &json!({})))
        .await?;
    refused(
        rome,
        name,
        "requires",
        "NoApiServer",
        &["--api-server true"],
    )
    .await?;
    let unaware = rome.ready_pods(name, "app=unaware", 1).await?.remove(0);
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    ensure!(
        !rome
            .try_kubectl(&["-n", name, "exec", "unaware", "--", "cat", token])
            .await?
            .success,
        "it has a token"
    );
    let remote = rome.remote_namespace(name, milan).await?;
    let secret = format!("liqo-api-server-{}", unaware.uid().context("a UID")?);
    ensure!(
        milan.replica(&remote, "secrets", &secret).await?.is_none(),
        "its token is at milan"
    );
    let events = rome
        .kubectl(&[
            "-n",
            name,
            "get",
            "events",
            "-o",
            "jsonpath={range .items[*]}{.reason} {.message}\n{end}",
        ])
        .await?;
    ensure!(
        events
            .lines()
            .any(|line| line.starts_with("NoApiServer ") && line.contains("--api-server")),
        "no event:\n{events}"
    );
    rome.end_namespace(name).await
}

pub async fn images_annotations_and_raw_sockets_follow_the_policy(world: Arc<World>) -> Result<()> {
    let (rome, milan, name) = (&world.rome, &world.milan, "images");
    rome.offloaded_namespace(name, "Remote").await?;
    policy(
        &world,
        &json!({ "images": ["docker.io", "localhost/busybox-of-others"] }),
    )
    .await?;
    rome.apply(&pod(name, "image", "Always", "sleep 600"))
        .await?;
    refused(
        rome,
        name,
        "image",
        "ImageNotAllowed",
        &["localhost/busybox:1", "PeeringPolicy strict"],
    )
    .await?;
    let open = json!({ "images": ["localhost"], "podAnnotations": ["prometheus.io/*"], "podLabels": ["example.com/*"],
        "hardening": "None", "defaultLimitPercentage": 0 });
    policy(&world, &open).await?;
    rome.ready_pods(name, "app=image", 1).await?;
    let metadata = json!({ "annotations": { "prometheus.io/scrape": "true", "other.io/x": "y" },
        "labels": { "app": "open", "example.com/tier": "1" } });
    rome.apply(&changed(name, "open", &metadata, &json!({}), &json!({})))
        .await?;
    rome.ready_pods(name, "app=open", 1).await?;
    let found = milan
        .api::<Pod>(&rome.remote_namespace(name, milan).await?)
        .get("open")
        .await?;
    let has = |key: &str| found.annotations().contains_key(key) || found.labels().contains_key(key);
    ensure!(
        has("prometheus.io/scrape") && has("example.com/tier") && !has("other.io/x"),
        "{:?}",
        found.metadata
    );
    let container = serde_json::to_value(&found)?["spec"]["containers"][0].clone();
    ensure!(
        container["securityContext"].is_null() && container["resources"]["limits"].is_null(),
        "{container}"
    );
    no_policy(&world).await?;
    rome.end_namespace(name).await
}
