//! What a user sees of a pod that runs in another cluster.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_tests::{World, eventually};
use serde_json::{Value, json};

/// A Deployment whose pods sleep, and end at once on SIGTERM.
pub fn deployment(namespace: &str, name: &str, replicas: u32) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name}, namespace: {namespace} }}
spec:
  replicas: {replicas}
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/busybox:1
        command: [sh, -c, "echo started; trap exit TERM; sleep 3600 & wait"]
        resources: {{ requests: {{ cpu: 10m, memory: 16Mi }} }}
"#
    )
}

/// A pod that runs a script.
pub fn pod(namespace: &str, name: &str, restart_policy: &str, script: &str) -> String {
    format!(
        r"
apiVersion: v1
kind: Pod
metadata: {{ name: {name}, namespace: {namespace}, labels: {{ app: {name} }} }}
spec:
  restartPolicy: {restart_policy}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, {}]
    resources: {{ requests: {{ cpu: 10m, memory: 16Mi }} }}
",
        json!(script)
    )
}

pub fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

pub fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub async fn a_deployments_replicas_run_at_the_peer_and_are_ready_at_home(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("pods", "Remote").await?;
    rome.apply(&deployment("pods", "web", 3)).await?;
    let home = rome.ready_pods("pods", "app=web", 3).await?;
    ensure!(
        home.iter().all(|pod| node_of(pod) == "milan"),
        "not all pods are on the virtual node"
    );
    let remote = milan
        .ready_pods(&rome.remote_namespace("pods", milan).await?, "app=web", 3)
        .await?;
    let names = |pods: &[Pod]| {
        let mut names: Vec<_> = pods.iter().map(|pod| name_of(pod).to_owned()).collect();
        names.sort();
        names
    };
    ensure!(
        names(&home) == names(&remote),
        "other names: {:?} and {:?}",
        names(&home),
        names(&remote)
    );
    rome.wait_for(&["-n", "pods", "deployment/web"], "condition=Available", 30)
        .await?;
    rome.delete_namespace("pods").await?;
    eventually(
        "the remote namespace is gone",
        Duration::from_mins(1),
        || async {
            Ok(milan
                .items(&["namespaces", "-l", "liqo.io/home-namespace=pods"])
                .await?
                .is_empty()
                .then_some(()))
        },
    )
    .await
}

pub async fn a_deleted_pods_grace_period_is_honoured(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("grace", "Remote").await?;
    let script = "trap 'echo ending; sleep 10; echo ended; exit 0' TERM; echo ready; while true; do sleep 0.2; done";
    let yaml = pod("grace", "slow", "Always", script).replace(
        "terminationGracePeriodSeconds: 1",
        "terminationGracePeriodSeconds: 60",
    );
    rome.apply(&yaml).await?;
    rome.ready_pods("grace", "app=slow", 1).await?;
    let remote = rome.remote_namespace("grace", milan).await?;
    let log = format!(
        "{} > {}",
        milan.kubectl_line(&format!("-n {remote} logs -f slow")),
        world.scratch("grace.log").display()
    );
    let following = tokio::spawn({
        let world = world.clone();
        async move { world.shell(&log, 60).await }
    });
    rome.kubectl(&["-n", "grace", "delete", "pod", "slow", "--wait=false"])
        .await?;
    eventually(
        "the pod is terminating at the peer",
        Duration::from_secs(10),
        || async {
            let pod = milan.api::<Pod>(&remote).get("slow").await?;
            Ok(pod
                .metadata
                .deletion_timestamp
                .and(pod.metadata.deletion_grace_period_seconds)
                .filter(|grace| *grace == 60))
        },
    )
    .await?;
    ensure!(
        rome.api::<Pod>("grace").get_opt("slow").await?.is_some(),
        "the local pod went before its containers ended"
    );
    rome.wait_for(&["-n", "grace", "pod/slow"], "delete", 60)
        .await?;
    following.await??;
    let log = std::fs::read_to_string(world.scratch("grace.log"))?;
    ensure!(
        log.contains("ended"),
        "the container could not end in its own time: {log}"
    );
    rome.end_namespace("grace").await
}

pub async fn a_deletion_takes_four_writes(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("writes", "Remote").await?;
    let from = [rome.audit_length()?, milan.audit_length()?];
    rome.apply(&deployment("writes", "web", 3)).await?;
    let pods = rome.ready_pods("writes", "app=web", 3).await?;
    let remote = rome.remote_namespace("writes", milan).await?;
    let written = |from: [u64; 2], pod: &Pod| -> Result<Vec<String>> {
        let names = [
            format!("writes/{}", name_of(pod)),
            format!("{remote}/{}", name_of(pod)),
            pod.uid().unwrap_or_default(),
        ];
        let mut writes = [rome.liqo_writes(from[0])?, milan.liqo_writes(from[1])?].concat();
        writes.retain(|write| {
            names.iter().any(|name| write.contains(name)) && !write.contains("which failed")
        });
        Ok(writes)
    };
    let all_written = |from| {
        pods.iter()
            .map(|pod| written(from, pod))
            .collect::<Result<Vec<_>>>()
    };
    // The last details of how the pods started have arrived.
    let mut seen = (usize::MAX, Instant::now());
    eventually(
        "nothing is written about the pods",
        Duration::from_mins(1),
        || {
            let count = all_written(from).map(|writes| writes.concat().len());
            let is_quiet = count.map(|count| {
                if count != seen.0 {
                    seen = (count, Instant::now());
                }
                (seen.1.elapsed() > Duration::from_secs(4)).then_some(())
            });
            std::future::ready(is_quiet)
        },
    )
    .await?;
    let from = [rome.audit_length()?, milan.audit_length()?];
    rome.kubectl(&["-n", "writes", "scale", "deployment/web", "--replicas=0"])
        .await?;
    let writes = eventually(
        "the pods are gone, and the audit log says how",
        Duration::from_mins(1),
        || async {
            let writes = all_written(from)?;
            let are_gone = rome.pods("writes", "app=web").await?.is_empty()
                && writes.iter().all(|writes| writes.len() >= 4);
            Ok(are_gone.then_some(writes))
        },
    )
    .await?;
    for writes in writes {
        let count = |what: &str| {
            writes
                .iter()
                .filter(|write| write.starts_with(what))
                .count()
        };
        let expected = count("delete shadowpods ") == 1
            && count("delete pods ") == 2
            && count("patch shadowpods ") == 1;
        ensure!(expected && writes.len() == 4, "{writes:#?}");
    }
    rome.end_namespace("writes").await
}

pub async fn an_ephemeral_container_runs_at_the_peer_or_shows_why_not(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("ephemeral", "Remote").await?;
    rome.apply(&pod("ephemeral", "web", "Always", "sleep 600"))
        .await?;
    rome.ready_pods("ephemeral", "app=web", 1).await?;
    for (container, profile) in [("allowed", "baseline"), ("privileged", "sysadmin")] {
        let (profile, image) = (
            format!("--profile={profile}"),
            "--image=localhost/busybox:1",
        );
        let debug = [
            "-n",
            "ephemeral",
            "debug",
            "web",
            image,
            &profile,
            "-c",
            container,
            "--",
            "sh",
            "-c",
            "echo here; sleep 600",
        ];
        rome.kubectl(&debug).await?;
    }
    eventually(
        "one runs, and the other one is refused",
        Duration::from_secs(30),
        || async {
            let status = rome
                .api::<Pod>("ephemeral")
                .get("web")
                .await?
                .status
                .unwrap_or_default();
            let statuses = status.ephemeral_container_statuses.unwrap_or_default();
            let state = |name: &str| {
                statuses
                    .iter()
                    .find(|one| one.name == name)
                    .and_then(|one| one.state.clone())
                    .unwrap_or_default()
            };
            let refused = state("privileged")
                .terminated
                .and_then(|ended| ended.reason);
            Ok(
                (state("allowed").running.is_some() && refused.as_deref() == Some("NotAllowed"))
                    .then_some(()),
            )
        },
    )
    .await?;
    let said = rome
        .kubectl(&[
            "-n",
            "ephemeral",
            "exec",
            "web",
            "-c",
            "allowed",
            "--",
            "echo",
            "inside",
        ])
        .await?;
    ensure!(said == "inside\n", "exec printed {said:?}");
    eventually(
        "an event tells of the refusal",
        Duration::from_secs(30),
        || async {
            let events = [
                "-n",
                "ephemeral",
                "events",
                "--field-selector",
                "reason=EphemeralContainerRefused",
            ];
            Ok((!rome.items(&events).await?.is_empty()).then_some(()))
        },
    )
    .await?;
    eventually(
        "a command that names the refused container says why there is none",
        Duration::from_secs(10),
        || async {
            let said = rome
                .try_kubectl(&["-n", "ephemeral", "logs", "web", "-c", "privileged"])
                .await?
                .stderr;
            Ok((said.contains("refused the ephemeral container privileged")
                && said.contains("violates PodSecurity"))
            .then_some(()))
        },
    )
    .await?;
    // What it names follows it, and it reads about itself what it would read at home.
    rome.kubectl(&[
        "-n",
        "ephemeral",
        "create",
        "configmap",
        "settings",
        "--from-literal=WORD=hello",
    ])
    .await?;
    let here = json!({ "name": "HERE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } });
    let reader = json!({ "name": "reader", "image": "localhost/busybox:1", "command": ["sleep", "600"], "env": [here],
        "envFrom": [{ "configMapRef": { "name": "settings" } }] });
    let patch = Patch::Strategic(json!({ "spec": { "ephemeralContainers": [reader] } }));
    rome.api::<Pod>("ephemeral")
        .patch_subresource(
            "ephemeralcontainers",
            "web",
            &PatchParams::default(),
            &patch,
        )
        .await?;
    eventually("it has its variables", Duration::from_mins(1), || async {
        let say = [
            "-n",
            "ephemeral",
            "exec",
            "web",
            "-c",
            "reader",
            "--",
            "sh",
            "-c",
            "echo $WORD from $HERE",
        ];
        Ok((rome.try_kubectl(&say).await?.stdout == "hello from ephemeral\n").then_some(()))
    })
    .await?;
    rome.end_namespace("ephemeral").await
}

pub async fn a_pod_that_was_deleted_at_the_peer_shows_a_restart(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("recreated", "Remote").await?;
    rome.apply(&pod(
        "recreated",
        "web",
        "Always",
        "trap exit TERM; sleep 600 & wait",
    ))
    .await?;
    rome.ready_pods("recreated", "app=web", 1).await?;
    let remote = rome.remote_namespace("recreated", milan).await?;
    milan
        .kubectl(&["-n", &remote, "delete", "pod", "web", "--wait=false"])
        .await?;
    eventually(
        "a restart is counted at home",
        Duration::from_mins(1),
        || async {
            let status = rome
                .api::<Pod>("recreated")
                .get("web")
                .await?
                .status
                .unwrap_or_default();
            let restarted = status
                .container_statuses
                .unwrap_or_default()
                .into_iter()
                .any(|container| {
                    let last = container
                        .last_state
                        .and_then(|state| state.terminated)
                        .and_then(|ended| ended.reason);
                    container.ready
                        && container.restart_count == 1
                        && last.as_deref() == Some("RemotePodDeleted")
                });
            Ok(restarted.then_some(()))
        },
    )
    .await?;
    eventually("an event tells of it", Duration::from_secs(30), || async {
        let events = [
            "-n",
            "recreated",
            "events",
            "--field-selector",
            "reason=RemotePodDeleted",
        ];
        Ok((!rome.items(&events).await?.is_empty()).then_some(()))
    })
    .await?;
    rome.end_namespace("recreated").await
}

pub async fn a_command_and_a_log_that_a_restart_of_the_manager_cuts_do_not_look_complete(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("cut", "Remote").await?;
    rome.apply(&deployment("cut", "shell", 1)).await?;
    rome.ready_pods("cut", "app=shell", 1).await?;
    let command = [
        "-n",
        "cut",
        "exec",
        "deployment/shell",
        "--",
        "sh",
        "-c",
        "touch /tmp/begun; sleep 580; exit 5",
    ];
    let restart = async {
        eventually("the command runs", Duration::from_secs(30), || async {
            let begun = [
                "-n",
                "cut",
                "exec",
                "deployment/shell",
                "--",
                "test",
                "-e",
                "/tmp/begun",
            ];
            Ok(rome.try_kubectl(&begun).await?.success.then_some(()))
        })
        .await?;
        rome.restart_manager().await
    };
    let log = ["-n", "cut", "logs", "-f", "deployment/shell"];
    let (cut, log, restarted) =
        tokio::join!(rome.try_kubectl(&command), rome.try_kubectl(&log), restart);
    restarted?;
    let (cut, log) = (cut?, log?);
    ensure!(
        !cut.success && cut.stderr.contains("may still run"),
        "the command: {cut:?}"
    );
    ensure!(
        log.stdout.contains("liqo: the log ends here"),
        "the log: {log:?}"
    );
    rome.end_namespace("cut").await
}

pub async fn config_maps_and_secrets_of_a_pod_are_reflected(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("config", "Remote").await?;
    rome.kubectl(&[
        "-n",
        "config",
        "create",
        "configmap",
        "settings",
        "--from-literal=colour=red",
    ])
    .await?;
    rome.kubectl(&[
        "-n",
        "config",
        "create",
        "secret",
        "generic",
        "password",
        "--from-literal=word=open sesame",
    ])
    .await?;
    rome.kubectl(&[
        "-n",
        "config",
        "create",
        "secret",
        "generic",
        "unused",
        "--from-literal=word=stay",
    ])
    .await?;
    rome.apply(
        r"
apiVersion: v1
kind: Pod
metadata: { name: reader, namespace: config, labels: { app: reader } }
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{ name: secret, secret: { secretName: password } }]
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, trap exit TERM; while true; do sleep 0.2; done]
    env: [{ name: COLOUR, valueFrom: { configMapKeyRef: { name: settings, key: colour } } }]
    volumeMounts: [{ name: secret, mountPath: /secret }]
",
    )
    .await?;
    rome.ready_pods("config", "app=reader", 1).await?;
    let seen = rome
        .kubectl(&[
            "-n",
            "config",
            "exec",
            "reader",
            "--",
            "sh",
            "-c",
            "echo $COLOUR; cat /secret/word",
        ])
        .await?;
    ensure!(seen == "red\nopen sesame", "the pod sees {seen:?}");
    let remote = rome.remote_namespace("config", milan).await?;
    ensure!(
        milan.replica(&remote, "secrets", "unused").await?.is_none(),
        "a Secret that no pod names travelled"
    );
    rome.kubectl(&[
        "-n",
        "config",
        "patch",
        "configmap",
        "settings",
        "-p",
        r#"{"data":{"colour":"blue"}}"#,
    ])
    .await?;
    eventually("the replica follows", Duration::from_secs(20), || async {
        let replica = milan
            .replica(&remote, "configmaps", "settings")
            .await?
            .context("there is no replica")?;
        Ok((replica["data"]["colour"] == "blue").then_some(()))
    })
    .await?;
    rome.kubectl(&["-n", "config", "delete", "pod", "reader", "--wait"])
        .await?;
    eventually(
        "the replicas go when no pod names them",
        Duration::from_secs(20),
        || async {
            Ok(milan
                .replica(&remote, "secrets", "password")
                .await?
                .is_none()
                .then_some(()))
        },
    )
    .await?;
    rome.end_namespace("config").await
}

pub async fn a_remote_pod_is_resized_in_place_within_the_offer(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("sizes", "Remote").await?;
    let needs = "    envFrom: [{ secretRef: { name: late } }]\n    resources:";
    rome.apply(&pod("sizes", "web", "Always", "sleep 600").replace("    resources:", needs))
        .await?;
    let remote = rome.remote_namespace("sizes", milan).await?;
    let resize = |cpu: &str| {
        let patch =
            json!({ "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": cpu } } }] } }).to_string();
        async move {
            rome.kubectl(&[
                "-n",
                "sizes",
                "patch",
                "pod",
                "web",
                "--subresource=resize",
                "-p",
                &patch,
            ])
            .await
            .map(drop)
        }
    };
    let remote_pod_asks_for = |cpu: &'static str| {
        let remote = &remote;
        async move {
            eventually(
                &format!("the remote pod asks for {cpu}"),
                Duration::from_mins(1),
                || async {
                    let pod = milan
                        .object(&["-n", remote, "pod", "web"])
                        .await?
                        .unwrap_or_default();
                    let asked = pod.pointer("/spec/containers/0/resources/requests/cpu");
                    ensure!(asked.is_some_and(|asked| asked == cpu), "{asked:?}");
                    Ok(Some(()))
                },
            )
            .await
        }
    };
    let shown = |what: &'static str, pointer: &'static str, wanted: Option<&'static str>| async move {
        eventually(what, Duration::from_mins(1), || async {
            let pod = rome
                .object(&["-n", "sizes", "pod", "web"])
                .await?
                .unwrap_or_default();
            let conditions = pod
                .pointer("/status/conditions")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            let pending = conditions
                .filter(|one| one["type"] == "PodResizePending")
                .find_map(|one| one["reason"].as_str());
            let found = if pointer.is_empty() {
                pending
            } else {
                pod.pointer(pointer).and_then(Value::as_str)
            };
            ensure!(found == wanted, "{found:?}");
            Ok(Some(()))
        })
        .await
    };
    // The pod does not run yet, because its Secret is missing.
    remote_pod_asks_for("10m").await?;
    resize("20m").await?;
    remote_pod_asks_for("20m").await?;
    resize("1000").await?;
    shown("more than the offer is infeasible", "", Some("Infeasible")).await?;
    remote_pod_asks_for("20m").await?;
    resize("30m").await?;
    shown("a smaller size is feasible", "", None).await?;
    remote_pod_asks_for("30m").await?;
    rome.kubectl(&[
        "-n",
        "sizes",
        "create",
        "secret",
        "generic",
        "late",
        "--from-literal=a=b",
    ])
    .await?;
    rome.ready_pods("sizes", "app=web", 1).await?;
    resize("40m").await?;
    remote_pod_asks_for("40m").await?;
    shown(
        "the kubelet there has applied it",
        "/status/containerStatuses/0/resources/requests/cpu",
        Some("40m"),
    )
    .await?;
    rome.end_namespace("sizes").await
}
