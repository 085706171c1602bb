//! Several real nodes and many fake ones, on the machine that runs the test: it needs root, and the
//! programs or Go to build them.
#![allow(
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, and the steps of this one are functions of their own"
)]

use std::{fs, future::Future, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Node, Pod, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{ListParams, LogParams, PostParams},
};
use liqo_playground::{
    BUSYBOX, Cluster, ClusterSpec, FakeNodes, Playground, Requirements, Silent, fake_node_resources,
};
use serde_json::{Value, json};

const INSTANCE: &str = "nodetest";
/// A node that is silent for this long is dead. Kubernetes' default would take most of this test's
/// time.
const GRACE_SECONDS: u16 = 8;

#[tokio::test]
async fn nodes_come_and_go_and_pods_with_them() {
    Requirements::check(&[])
        .await
        .unwrap_or_else(|missing| panic!("{missing}"));
    let playground = Playground::open(INSTANCE).unwrap();
    // An earlier run that was killed may have left something behind.
    playground.down().await.unwrap();
    let fake_nodes = FakeNodes {
        count: 50,
        resources: fake_node_resources(["nvidia.com/gpu=4".parse().unwrap()]),
        taint: false,
    };
    let spec = ClusterSpec {
        nodes: 2,
        fake_nodes,
        node_grace_seconds: Some(GRACE_SECONDS),
        ..ClusterSpec::new("rome")
    };
    let cluster = playground
        .up(std::slice::from_ref(&spec), &Silent)
        .await
        .unwrap()
        .remove(0);
    let client = cluster.client().await.unwrap();

    the_status_knows_all_nodes(&playground).await;
    the_name_server_is_on_every_real_node(&client).await;
    a_pod_on_one_node_reaches_a_pod_on_the_other(&client).await;
    a_deployment_lands_on_fake_nodes_and_becomes_ready(&client).await;
    resources_and_labels_of_a_fake_node_can_change(&cluster, &client).await;
    a_pod_that_runs_to_completion_ends_on_a_fake_node(&client).await;
    fake_nodes_come_and_go_while_the_cluster_runs(&cluster, &client).await;
    a_node_that_loses_power_dies_and_comes_back(&cluster, &client).await;
    a_removed_node_leaves_nothing_behind(&playground, spec, &client).await;

    playground.down().await.unwrap();
    assert_eq!(traces(INSTANCE), Vec::<String>::new());
}

async fn the_status_knows_all_nodes(playground: &Playground) {
    let status = playground.status().await.unwrap().clusters.remove(0);
    assert!(
        status
            .nodes
            .iter()
            .map(|node| (node.node.name.as_str(), node.ready))
            .eq([("rome-1", Some(true)), ("rome-2", Some(true))])
    );
    assert_eq!(
        (
            status.fake_nodes.wanted,
            status.fake_nodes.found,
            status.fake_nodes.ready
        ),
        (50, 50, 50)
    );
}

async fn the_name_server_is_on_every_real_node(client: &Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let servers = pods
        .list(&ListParams::default().labels("k8s-app=kube-dns"))
        .await
        .unwrap();
    let mut nodes: Vec<_> = servers.iter().map(node_of).collect();
    nodes.sort();
    assert_eq!(nodes, ["rome-1", "rome-2"]);
}

/// Uses the address of the pod and the name of its Service. The other side sees the caller's own
/// address.
async fn a_pod_on_one_node_reaches_a_pod_on_the_other(client: &Client) {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    eventually("the namespace has its account", || async {
        accounts.get("default").await.is_ok()
    })
    .await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    create(&pods, &shell("server", "rome-2", "httpd -f -vv -p 8080")).await;
    let services: Api<k8s_openapi::api::core::v1::Service> =
        Api::default_namespaced(client.clone());
    create(
        &services,
        &json!({ "metadata": { "name": "server" }, "spec": { "selector": { "name": "server" }, "ports": [{ "port": 8080 }] } }),
    )
    .await;
    eventually("the server has an address", || async {
        !address(&pods.get("server").await.unwrap()).is_empty()
    })
    .await;
    let server = address(&pods.get("server").await.unwrap());
    assert!(server.starts_with("10.244.1."), "{server}");
    let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 server.default.svc.cluster.local 8080 | grep HTTP";
    let script = format!(
        "until ping -c 1 -W 1 {server} && {ask}; do sleep 0.2; done; echo reached; sleep 3600"
    );
    create(&pods, &shell("client", "rome-1", &script)).await;
    let log = |pod: &'static str| {
        let pods = pods.clone();
        async move { pods.logs(pod, &LogParams::default()).await }
    };
    let reached = || async {
        log("client")
            .await
            .is_ok_and(|log| log.contains("bytes from") && log.contains("reached"))
    };
    eventually("the client reaches the server", reached).await;
    let client = address(&pods.get("client").await.unwrap());
    // Read through the first node's API server from the second node's kubelet.
    let seen = || async { log("server").await.is_ok_and(|log| log.contains(&client)) };
    eventually("the server sees the client's own address", seen).await;
}

async fn a_deployment_lands_on_fake_nodes_and_becomes_ready(client: &Client) {
    let labels = json!({ "app": "many" });
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    create(&deployments, &json!({
        "metadata": { "name": "many" },
        "spec": {
            "replicas": 100,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "c", "image": "registry.invalid/nothing:1", "resources": { "limits": { "nvidia.com/gpu": 1 } } }] },
            },
        },
    }))
    .await;
    let available = || async {
        deployments
            .get("many")
            .await
            .unwrap()
            .status
            .unwrap_or_default()
            .available_replicas
    };
    eventually("a hundred pods are available", || async {
        available().await == Some(100)
    })
    .await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pods = pods
        .list(&ListParams::default().labels("app=many"))
        .await
        .unwrap();
    assert!(
        pods.iter()
            .all(|pod| node_of(pod).starts_with("rome-fake-")),
        "only fake nodes have what it asks for"
    );
    // Addresses may repeat: kwok gives the first address of a fake node to two pods that come at
    // the same moment.
    let is_elsewhere =
        |address: &str| !address.starts_with("10.244.0.") && !address.starts_with("10.244.1.");
    assert!(
        pods.iter()
            .map(address)
            .all(|address| address.starts_with("10.") && is_elsewhere(&address))
    );
}

async fn resources_and_labels_of_a_fake_node_can_change(cluster: &Cluster, client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    cluster
        .label_fake_node("rome-fake-7", "zone", Some("a"))
        .await
        .unwrap();
    cluster
        .set_fake_node_resources("rome-fake-7", &[("cpu", "3".parse().unwrap())].into())
        .await
        .unwrap();
    let node = nodes.get("rome-fake-7").await.unwrap();
    let allocatable = node.status.unwrap().allocatable.unwrap();
    assert_eq!(
        allocatable
            .iter()
            .map(|(name, amount)| (name.as_str(), amount.0.as_str()))
            .collect::<Vec<_>>(),
        [("cpu", "3")]
    );
    assert_eq!(node.metadata.labels.unwrap()["zone"], "a");
    cluster
        .label_fake_node("rome-fake-7", "zone", None)
        .await
        .unwrap();
    assert!(
        !nodes
            .get("rome-fake-7")
            .await
            .unwrap()
            .metadata
            .labels
            .unwrap()
            .contains_key("zone")
    );
    let refused = cluster
        .label_fake_node("rome-1", "zone", Some("a"))
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("no fake node rome-1"),
        "{refused}"
    );
}

async fn a_pod_that_runs_to_completion_ends_on_a_fake_node(client: &Client) {
    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    let mut pod = shell("job", "rome-fake-1", "true")["spec"].clone();
    pod["restartPolicy"] = json!("Never");
    create(
        &jobs,
        &json!({ "metadata": { "name": "job" }, "spec": { "template": { "spec": pod } } }),
    )
    .await;
    let succeeded = || async {
        jobs.get("job")
            .await
            .unwrap()
            .status
            .unwrap_or_default()
            .succeeded
    };
    eventually("the job is done", || async { succeeded().await == Some(1) }).await;
}

async fn fake_nodes_come_and_go_while_the_cluster_runs(cluster: &Cluster, client: &Client) {
    let processes = || async {
        cluster
            .components()
            .await
            .unwrap()
            .into_iter()
            .map(|one| one.pid)
            .collect::<Vec<_>>()
    };
    let before = processes().await;
    cluster.scale_fake_nodes(60).await.unwrap();
    assert_eq!(cluster.fake_nodes().unwrap().len(), 60);
    cluster.scale_fake_nodes(30).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    assert_eq!(
        nodes
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        32
    );
    assert_eq!(processes().await, before, "no program restarted");
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let is_there = |pod: &Pod| cluster.fake_nodes().unwrap().contains(&node_of(pod));
    eventually("all pods are where nodes are", || async {
        let pods = pods
            .list(&ListParams::default().labels("app=many"))
            .await
            .unwrap()
            .items;
        pods.len() == 100
            && pods
                .iter()
                .all(|pod| is_there(pod) && !address(pod).is_empty())
    })
    .await;
}

async fn a_node_that_loses_power_dies_and_comes_back(cluster: &Cluster, client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let ready = || async { is_ready(&nodes.get("rome-2").await.unwrap()) };
    cluster.stop_node("rome-2").await.unwrap();
    assert_eq!(processes_of("rome-2"), Vec::<String>::new());
    eventually("the node is not ready", || async { !ready().await }).await;
    assert!(
        is_ready(&nodes.get("rome-fake-1").await.unwrap()),
        "kwok goes on"
    );
    cluster.start_node("rome-2").await.unwrap();
    eventually("the node is ready again", || async { ready().await }).await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let restarts = |pod: Pod| {
        pod.status?
            .container_statuses?
            .first()
            .map(|status| (status.restart_count, status.ready))
    };
    eventually("its pod runs again", || async {
        restarts(pods.get("server").await.unwrap()) == Some((1, true))
    })
    .await;
    assert!(
        cluster
            .stop_node("rome-3")
            .await
            .unwrap_err()
            .to_string()
            .contains("no node rome-3")
    );
}

async fn a_removed_node_leaves_nothing_behind(
    playground: &Playground,
    spec: ClusterSpec,
    client: &Client,
) {
    let before = playground.status().await.unwrap().clusters.remove(0);
    playground
        .up(
            &[ClusterSpec {
                nodes: 1,
                ..spec.with_fake_nodes(30)
            }],
            &Silent,
        )
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    assert!(nodes.get_opt("rome-2").await.unwrap().is_none());
    let pods: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields("spec.nodeName=rome-2");
    assert_eq!(pods.list(&on_node).await.unwrap().items.len(), 0);
    let last_octet = |status: &liqo_playground::ClusterStatus| {
        status.nodes.last().unwrap().node.address.octets()[3]
    };
    assert_eq!(traces(&format!("{INSTANCE}-rome-2")), Vec::<String>::new());
    assert_eq!(
        traces(&format!("{INSTANCE}/rome/rome-2")),
        Vec::<String>::new()
    );
    assert_eq!(
        traces(&format!("lp-{INSTANCE}-{}", last_octet(&before))),
        Vec::<String>::new()
    );
    assert_eq!(processes_of("rome-2"), Vec::<String>::new());
    let after = playground.status().await.unwrap().clusters.remove(0);
    let first = |status: &liqo_playground::ClusterStatus| {
        let kept = status
            .components
            .iter()
            .filter(|one| !one.component.contains('@'));
        kept.map(|one| (one.component.clone(), one.pid))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        first(&before),
        first(&after),
        "the programs on the first node keep running"
    );
    assert_eq!(after.nodes.len(), 1);
    assert!(
        after
            .components
            .iter()
            .all(|one| !one.component.contains('@'))
    );
}

fn shell(name: &str, node: &str, script: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "name": name } },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": name, "image": BUSYBOX, "command": ["sh", "-c", script] }],
            "terminationGracePeriodSeconds": 0,
        },
    })
}

async fn create<K>(api: &Api<K>, object: &Value)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    api.create(
        &PostParams::default(),
        &serde_json::from_value(object.clone()).unwrap(),
    )
    .await
    .unwrap();
}

fn node_of(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default()
}

fn address(pod: &Pod) -> String {
    pod.status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .unwrap_or_default()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.type_ == "Ready")
        .any(|condition| condition.status == "True")
}

async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while !holds().await {
        assert!(
            std::time::Instant::now() < deadline,
            "not within a minute: {what}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Processes of a node of this instance: those with its mark, and those in its cgroup.
fn processes_of(node: &str) -> Vec<String> {
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let of_node = |process: &String| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let marked = String::from_utf8_lossy(&environment)
            .split('\0')
            .any(|variable| {
                variable.starts_with(&format!("LIQO_PLAYGROUND={INSTANCE}/"))
                    && variable.ends_with(&format!("@{node}"))
            });
        let cgroups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        // A zombie process has no command line.
        let ended = fs::read(format!("/proc/{process}/cmdline"))
            .unwrap_or_default()
            .is_empty();
        !ended
            && (marked
                || cgroups.contains(&format!(
                    "{INSTANCE}-rome-{}",
                    node.rsplit('-').next().unwrap()
                )))
    };
    list("/proc")
        .into_iter()
        .filter(is_number)
        .filter(of_node)
        .collect()
}

/// Everything on this machine whose name contains this text: namespaces, links, mounts, cgroups,
/// directories.
fn traces(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for directory in [
        "/run/netns",
        "/sys/class/net",
        "/var/lib/liqo-playground",
        "/sys/fs/cgroup",
    ] {
        names.extend(
            list(directory)
                .into_iter()
                .map(|name| format!("{directory}/{name}")),
        );
    }
    for hierarchy in list("/sys/fs/cgroup") {
        names.extend(
            list(&format!("/sys/fs/cgroup/{hierarchy}"))
                .into_iter()
                .map(|name| format!("cgroup {hierarchy}/{name}")),
        );
    }
    let cluster = format!("/var/lib/liqo-playground/{INSTANCE}/rome");
    for directory in ["", "/pki", "/logs"] {
        names.extend(
            list(&format!("{cluster}{directory}"))
                .into_iter()
                .map(|name| format!("file {INSTANCE}/rome/{name}")),
        );
    }
    names.extend(
        fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            .map(str::to_owned),
    );
    for result in list("/var/lib/cni/results") {
        names
            .push(fs::read_to_string(format!("/var/lib/cni/results/{result}")).unwrap_or_default());
    }
    names
        .into_iter()
        .filter(|name| name.contains(text))
        .collect()
}

fn list(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
