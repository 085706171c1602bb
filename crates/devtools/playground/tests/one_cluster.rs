//! A cluster from nothing to nothing, on the machine that runs the test: it needs root, and the
//! programs or Go to build them.
#![allow(
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, and the steps of this one are functions of their own"
)]

use std::{collections::BTreeSet, fs, future::Future, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, LogParams, PostParams},
};
use liqo_playground::{
    BUSYBOX, Cluster, ClusterSpec, ComponentState, Playground, Requirements, Silent,
};
use serde_json::json;

const INSTANCE: &str = "selftest";

#[tokio::test]
async fn a_cluster_runs_pods_survives_crashes_and_leaves_nothing_behind() {
    Requirements::check(&[])
        .await
        .unwrap_or_else(|missing| panic!("{missing}"));
    let playground = Playground::open(INSTANCE).unwrap();
    // An earlier run that was killed may have left something behind.
    playground.down().await.unwrap();
    let before = traces();

    let cluster = playground
        .up(&[ClusterSpec::new("rome")], &Silent)
        .await
        .unwrap()
        .remove(0);
    let client = cluster.client().await.unwrap();
    a_pod_resolves_names_and_its_log_can_be_read(&client).await;
    an_api_server_that_is_killed_comes_back(&playground, &cluster, &client).await;
    a_component_that_was_stopped_stays_stopped(&cluster).await;
    a_frozen_cluster_answers_again_when_it_is_thawed(&cluster, &client).await;
    a_cluster_that_is_cut_off_answers_again_when_it_is_connected(&cluster, &client).await;
    the_audit_log_names_who_wrote(&cluster);
    bringing_it_up_again_keeps_what_runs(&playground).await;

    playground.down().await.unwrap();
    assert_eq!(
        traces().difference(&before).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
    assert_eq!(playground.status().await.unwrap().clusters, []);
}

async fn a_pod_resolves_names_and_its_log_can_be_read(client: &Client) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let command = [
        "sh",
        "-c",
        "nslookup -type=a kubernetes.default.svc.cluster.local && id -u && sleep 3600",
    ];
    let pod = json!({
        "metadata": { "name": "shell" },
        "spec": { "containers": [{ "name": "shell", "image": BUSYBOX, "command": command }], "terminationGracePeriodSeconds": 0 },
    });
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::default_namespaced(client.clone());
    eventually("the namespace has its account", || async {
        accounts.get("default").await.is_ok()
    })
    .await;
    pods.create(
        &PostParams::default(),
        &serde_json::from_value(pod).unwrap(),
    )
    .await
    .unwrap();
    // Through the API server and the kubelet, so the kubelet's certificate is checked, too.
    let log = || async {
        pods.logs("shell", &LogParams::default())
            .await
            .unwrap_or_default()
    };
    eventually("the pod resolves the API server's name", || async {
        log().await.contains("Address: 10.96.0.1")
    })
    .await;
    eventually("the pod goes on after that", || async {
        log().await.lines().any(|line| line == "0")
    })
    .await;
}

async fn an_api_server_that_is_killed_comes_back(
    playground: &Playground,
    cluster: &Cluster,
    client: &Client,
) {
    cluster.kill("kube-apiserver").await.unwrap();
    let restarts = || async {
        let components = cluster.components().await.unwrap();
        let server = components
            .into_iter()
            .find(|component| component.component == "kube-apiserver")
            .unwrap();
        (server.restarts, server.last_exit)
    };
    eventually("the exit is noticed", || async {
        restarts().await == (1, Some("killed by signal 9".to_owned()))
    })
    .await;
    let nodes: Api<Node> = Api::all(client.clone());
    eventually("the API server answers again", || async {
        nodes.get("rome-1").await.is_ok()
    })
    .await;
    eventually("the status says so", || async {
        playground.status().await.unwrap().clusters[0].ready
    })
    .await;
}

async fn a_component_that_was_stopped_stays_stopped(cluster: &Cluster) {
    let state = || async {
        let components = cluster.components().await.unwrap();
        components
            .into_iter()
            .find(|component| component.component == "kubelet")
            .unwrap()
            .state
    };
    cluster.stop("kubelet").await.unwrap();
    assert_eq!(state().await, ComponentState::Stopped);
    cluster.start("kubelet").await.unwrap();
    assert_eq!(state().await, ComponentState::Running);
    assert!(cluster.stop("no-such-thing").await.is_err());
}

async fn a_frozen_cluster_answers_again_when_it_is_thawed(cluster: &Cluster, client: &Client) {
    cluster.freeze();
    assert!(!answers(client).await);
    cluster.thaw();
    eventually("the thawed cluster answers", || answers(client)).await;
}

async fn a_cluster_that_is_cut_off_answers_again_when_it_is_connected(
    cluster: &Cluster,
    client: &Client,
) {
    cluster.partition().await.unwrap();
    assert!(!answers(client).await);
    cluster.heal().await.unwrap();
    eventually("the connected cluster answers", || answers(client)).await;
}

fn the_audit_log_names_who_wrote(cluster: &Cluster) {
    let writes = cluster.writes_since(0).unwrap();
    let ours = writes.iter().filter(|write| {
        write.user == "kubernetes-admin"
            && write.verb == "create"
            && write.resource == "pods"
            && write.code == 201
    });
    assert_eq!(ours.count(), 1);
}

async fn bringing_it_up_again_keeps_what_runs(playground: &Playground) {
    let running = || async {
        let status = playground.status().await.unwrap();
        status.clusters[0]
            .components
            .iter()
            .map(|component| (component.component.clone(), component.pid))
            .collect::<Vec<_>>()
    };
    let before = running().await;
    playground
        .up(&[ClusterSpec::new("rome")], &Silent)
        .await
        .unwrap();
    assert_eq!(before, running().await);
    let client = playground.cluster("rome").unwrap().client().await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client);
    pods.delete("shell", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the pod goes", || async {
        pods.get_opt("shell").await.is_ok_and(|pod| pod.is_none())
    })
    .await;
}

async fn answers(client: &Client) -> bool {
    let nodes: Api<Node> = Api::all(client.clone());
    matches!(
        tokio::time::timeout(Duration::from_secs(2), nodes.get("rome-1")).await,
        Ok(Ok(_))
    )
}

async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let deadline = std::time::Instant::now() + Duration::from_mins(2);
    while !holds().await {
        assert!(
            std::time::Instant::now() < deadline,
            "not within two minutes: {what}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Everything on this machine that a playground of this name could leave: processes, namespaces,
/// links, mounts, cgroups, files.
fn traces() -> BTreeSet<String> {
    let mut traces = BTreeSet::new();
    let mut note = |kind: &str, name: String| {
        if name.contains(INSTANCE) {
            traces.insert(format!("{kind} {name}"));
        }
    };
    for process in list("/proc")
        .into_iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let marked =
            String::from_utf8_lossy(&environment).contains(&format!("LIQO_PLAYGROUND={INSTANCE}/"));
        let cgroups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        // A zombie process has no command line.
        let ended = fs::read(format!("/proc/{process}/cmdline"))
            .unwrap_or_default()
            .is_empty();
        if ended {
            continue;
        }
        if marked || cgroups.contains(INSTANCE) {
            note("process", format!("{process} of {INSTANCE}"));
        }
    }
    for mount in fs::read_to_string("/proc/self/mounts").unwrap().lines() {
        note("mount", mount.to_owned());
    }
    for directory in [
        "/run/netns",
        "/sys/class/net",
        "/var/lib/liqo-playground",
        "/sys/fs/cgroup",
    ] {
        for name in list(directory) {
            note(directory, name);
        }
    }
    for hierarchy in list("/sys/fs/cgroup") {
        for name in list(&format!("/sys/fs/cgroup/{hierarchy}")) {
            note("cgroup", format!("{hierarchy}/{name}"));
        }
    }
    for result in list("/var/lib/cni/results") {
        note(
            "result",
            fs::read_to_string(format!("/var/lib/cni/results/{result}")).unwrap_or_default(),
        );
    }
    for link in list("/var/log/containers") {
        note(
            "log",
            fs::read_link(format!("/var/log/containers/{link}"))
                .unwrap_or_default()
                .display()
                .to_string(),
        );
    }
    traces
}

fn list(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
