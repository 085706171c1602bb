//! A broker: milan lends to rome what it borrows from turin. Rome knows only milan.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::{
    pods::{deployment, node_of},
    policies::{allocatable, apply_policy, offer},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "chain";

/// Peers milan with turin, and lets milan lend to rome only what it borrows.
async fn broker(world: &World) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    milan.liqoctl(&["peer", "--remote-kubeconfig", &turin.kubeconfig.display().to_string()]).await?;
    milan.wait_for(&["node/turin"], "condition=Ready", 60).await?;
    let peers = json!({ "clusterIDs": [rome.cluster_id().await?] });
    let provide = json!({ "percentage": 100, "noticeSeconds": 4, "source": { "offers": {} } });
    apply_policy(milan, "broker", json!({ "priority": 10, "peers": peers, "provide": provide })).await?;
    eventually("milan offers what turin offers, and rome's node has it", TIMEOUT, || async {
        let offer = offer(milan, rome).await?.context("there is no offer")?.spec;
        ensure!(offer.hops == 2 && offer.path.len() == 2, "{offer:#?}");
        let (there, here) = (allocatable(milan, "turin").await?.get("cpu"), allocatable(rome, "milan").await?.get("cpu"));
        Ok((offer.resource_quota.hard.get("cpu") == there && here == there).then_some(()))
    })
    .await
}

async fn no_broker(world: &World) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan.kubectl(&["delete", "peeringpolicy", "broker"]).await?;
    eventually("milan lends its own nodes again", TIMEOUT, || async {
        let offer = offer(milan, rome).await?.context("there is no offer")?.spec;
        Ok((offer.hops == 1 && offer.node_selector.is_none()).then_some(()))
    })
    .await?;
    milan.liqoctl(&["unpeer", "turin", "--yes"]).await.map(drop)
}

/// Waits until the mapped namespace of a namespace is ready at a provider.
async fn mapped(consumer: &Cluster, namespace: &str, provider: &Cluster) -> Result<String> {
    consumer.wait_for(&["-n", namespace, "namespaceoffloading/offloading"], "condition=Ready", 90).await?;
    consumer.remote_namespace(namespace, provider).await
}

fn nodes(pods: &[Pod]) -> Vec<&str> {
    pods.iter().map(node_of).collect()
}

pub async fn a_deployment_runs_at_a_provider_of_the_provider(world: Arc<World>) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    broker(&world).await?;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    rome.apply(&deployment(NAMESPACE, "web", 2)).await?;
    let at_milan = mapped(rome, NAMESPACE, milan).await?;
    let at_turin = mapped(milan, &at_milan, turin).await?;

    let here = rome.ready_pods(NAMESPACE, "app=web", 2).await?;
    let between = milan.ready_pods(&at_milan, "app=web", 2).await?;
    let there = turin.ready_pods(&at_turin, "app=web", 2).await?;
    ensure!(nodes(&here) == ["milan"; 2], "at home they are on {:?}", nodes(&here));
    ensure!(nodes(&between) == ["turin"; 2], "at the broker they are on {:?}", nodes(&between));
    ensure!(nodes(&there) == ["turin-1"; 2], "they run on {:?}", nodes(&there));
    rome.wait_for(&["-n", NAMESPACE, "deployment/web"], "condition=Available", 30).await?;

    // Logs and commands go through both kubelet APIs.
    ensure!(rome.kubectl(&["-n", NAMESPACE, "logs", "deployment/web"]).await?.contains("started"), "there is no log");
    let said = rome.kubectl(&["-n", NAMESPACE, "exec", "deployment/web", "--", "sh", "-c", "echo hello; hostname"]).await?;
    ensure!(said.starts_with("hello\nweb-"), "exec printed {said:?}");
    let failed = rome.try_kubectl(&["-n", NAMESPACE, "exec", "deployment/web", "--", "sh", "-c", "exit 7"]).await?;
    ensure!(!failed.success && failed.stderr.contains("exit code 7"), "{failed:?}");

    // A container that ends is restarted by turin, and rome counts it.
    let name = here[0].name_any();
    // The command may end with its container.
    rome.try_kubectl(&["-n", NAMESPACE, "exec", &name, "--", "kill", "1"]).await?;
    eventually("rome counts a restart", TIMEOUT, || async {
        let status = rome.api::<Pod>(NAMESPACE).get(&name).await?.status.unwrap_or_default();
        let restarts: i32 = status.container_statuses.iter().flatten().map(|one| one.restart_count).sum();
        Ok((restarts > 0).then_some(()))
    })
    .await?;

    rome.kubectl(&["-n", NAMESPACE, "scale", "deployment/web", "--replicas=1"]).await?;
    for (cluster, namespace) in [(rome, NAMESPACE), (milan, &at_milan), (turin, &at_turin)] {
        cluster.ready_pods(namespace, "app=web", 1).await?;
    }
    rome.delete_namespace(NAMESPACE).await?;
    eventually("the namespaces are gone everywhere", Duration::from_secs(120), || async {
        let left = [milan.object(&["namespace", &at_milan]).await?, turin.object(&["namespace", &at_turin]).await?];
        Ok(left.iter().all(Option::is_none).then_some(()))
    })
    .await?;
    no_broker(&world).await
}

pub async fn a_pod_behind_a_broker_reads_its_configuration_and_what_it_is_at_home(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    broker(&world).await?;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    rome.kubectl(&["-n", NAMESPACE, "create", "configmap", "settings", "--from-literal=colour=red"]).await?;
    rome.kubectl(&["-n", NAMESPACE, "create", "secret", "generic", "login", "--from-literal=password=secret"]).await?;
    let variable = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let file = |path: &str, field: &str| json!({ "path": path, "fieldRef": { "fieldPath": field } });
    let files = json!([file("namespace", "metadata.namespace"), file("labels", "metadata.labels")]);
    let object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "reader", "namespace": NAMESPACE, "labels": { "app": "reader" } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "info", "downwardAPI": { "items": files } }, { "name": "settings", "configMap": { "name": "settings" } }],
            "containers": [{
                "name": "main",
                "image": "localhost/busybox:1",
                "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"],
                "env": [variable("NAMESPACE", "metadata.namespace"), variable("ID", "metadata.uid"), variable("NODE", "spec.nodeName"),
                    { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "login", "key": "password" } } }],
                "volumeMounts": [{ "name": "info", "mountPath": "/info" }, { "name": "settings", "mountPath": "/settings" }],
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }],
        },
    });
    rome.apply(&object.to_string()).await?;
    let pod = rome.ready_pods(NAMESPACE, "app=reader", 1).await?.remove(0);
    let line = "echo $NAMESPACE $ID $NODE $PASSWORD; cat /info/namespace; echo; cat /info/labels; echo; cat /settings/colour";
    let read = rome.kubectl(&["-n", NAMESPACE, "exec", "reader", "--", "sh", "-c", line]).await?;
    let wanted = format!("{NAMESPACE} {} milan secret\n{NAMESPACE}\napp=\"reader\"\nred", pod.uid().unwrap_or_default());
    ensure!(read == wanted, "it reads {read}");
    rome.end_namespace(NAMESPACE).await?;
    no_broker(&world).await
}

pub async fn nobody_is_offered_what_comes_from_itself(world: Arc<World>) -> Result<()> {
    let (rome, milan, turin) = (&world.rome, &world.milan, &world.turin);
    broker(&world).await?;
    // Turin borrows from the broker, too. All that the broker has comes from turin.
    let peers = json!({ "clusterIDs": [turin.cluster_id().await?] });
    apply_policy(milan, "back", json!({ "priority": 10, "peers": peers, "provide": { "source": { "offers": {} } } })).await?;
    // It never gets a node, so the command gives up.
    turin.try_liqoctl(&["peer", "--remote-kubeconfig", &milan.kubeconfig.display().to_string(), "--timeout", "20s"]).await?;
    let tenant = liqo_api::tenant_namespace(&turin.cluster_id().await?.parse()?);
    eventually("the request is answered with NothingFree", TIMEOUT, || async {
        let request = milan.object(&["-n", &tenant, "resourcerequest", liqo_api::RESOURCE_REQUEST]).await?;
        let request = request.context("there is no request")?;
        let found = request["status"]["conditions"].as_array().into_iter().flatten().any(|one| one["reason"] == "NothingFree");
        ensure!(found, "{}", request["status"]);
        Ok(Some(()))
    })
    .await?;
    ensure!(offer(milan, turin).await?.is_none(), "turin is offered its own resources");

    // Rome's policy accepts only what milan owns.
    let owned = json!({ "priority": 10, "peers": { "clusterIDs": [milan.cluster_id().await?] }, "consume": { "maxHops": 1 } });
    apply_policy(rome, "owned", owned).await?;
    eventually("rome refuses the offer, and says why", TIMEOUT, || async {
        let status = offer(milan, rome).await?.and_then(|offer| offer.status).context("no answer")?;
        let message = status.message.unwrap_or_default();
        ensure!(message.contains("come through 2 clusters"), "{message}");
        Ok(Some(()))
    })
    .await?;
    eventually("rome's node is gone", TIMEOUT, || async { Ok(rome.object(&["node", "milan"]).await?.is_none().then_some(())) })
        .await?;
    rome.kubectl(&["delete", "peeringpolicy", "owned"]).await?;
    eventually("rome has the node again", TIMEOUT, || async { Ok(rome.object(&["node", "milan"]).await?.map(drop)) }).await?;
    rome.wait_for(&["node/milan"], "condition=Ready", 60).await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    milan.kubectl(&["delete", "peeringpolicy", "back"]).await?;
    no_broker(&world).await
}
