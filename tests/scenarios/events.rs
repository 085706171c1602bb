//! What a user sees of the events of a remote pod.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use liqo_tests::{World, eventually};

use crate::pods::{deployment, pod};

pub async fn warnings_about_remote_pods_are_events_of_the_local_pods(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("warnings", "Remote").await?;
    let remote = rome.remote_namespace("warnings", milan).await?;
    rome.apply(&deployment("warnings", "healthy", 3)).await?;
    rome.ready_pods("warnings", "app=healthy", 3).await?;

    let with = |name: &str, more: &str| {
        pod("warnings", name, "Always", "sleep 600")
            .replace("    resources:", &format!("{more}    resources:"))
    };
    rome.apply(&with("no-image", "").replace("localhost/busybox:1", "localhost/absent:1"))
        .await?;
    let volume = "spec:\n  volumes: [{ name: v, secret: { secretName: absent } }]\n";
    rome.apply(
        &with(
            "no-secret",
            "    volumeMounts: [{ name: v, mountPath: /v }]\n",
        )
        .replace("spec:\n", volume),
    )
    .await?;
    let probe = "    readinessProbe: { periodSeconds: 1, exec: { command: [sh, -c, exit 1] } }\n";
    rome.apply(&with("not-ready", probe)).await?;
    let probe = "    livenessProbe: { periodSeconds: 1, failureThreshold: 1, exec: { command: [sh, -c, exit 1] } }\n";
    rome.apply(&with("not-alive", probe)).await?;
    for (name, kind, reason, words, count) in [
        ("no-image", "Warning", "Failed", "localhost/absent:1", 1),
        (
            "no-secret",
            "Warning",
            "FailedMount",
            "\"absent\" not found",
            2,
        ),
        (
            "not-ready",
            "Warning",
            "Unhealthy",
            "Readiness probe failed",
            2,
        ),
        ("not-alive", "Normal", "Killing", "failed liveness probe", 1),
    ] {
        let pod = rome
            .object(&["-n", "warnings", "pod", name])
            .await?
            .unwrap_or_default();
        let about = format!("involvedObject.name={name},type={kind},reason={reason}");
        let event = eventually(
            &format!("{name} has an event {reason}"),
            Duration::from_secs(30),
            || async {
                let events = rome
                    .items(&["-n", "warnings", "events", "--field-selector", &about])
                    .await?;
                Ok(events.into_iter().find(|event| {
                    event["message"]
                        .as_str()
                        .is_some_and(|message| message.contains(words))
                        && event["count"].as_i64() >= Some(count)
                }))
            },
        )
        .await?;
        ensure!(
            event["involvedObject"]["uid"] == pod["metadata"]["uid"],
            "it is about another pod: {event}"
        );
        ensure!(
            event["source"]["component"] == "milan/kubelet" && event["source"]["host"] == "milan",
            "{event}"
        );
        ensure!(
            !event["message"].to_string().contains(&remote),
            "a name that exists only at milan: {event}"
        );
    }
    let described = rome
        .kubectl(&["-n", "warnings", "describe", "pod", "no-secret"])
        .await?;
    ensure!(
        described.contains("FailedMount") && described.contains("milan/kubelet"),
        "{described}"
    );

    // What is said of healthy pods stays at milan. A busy machine may give one a warning there, and
    // rome's scheduler may wait for room.
    let there = milan
        .items(&["-n", &remote, "events", "--field-selector", "type=Warning"])
        .await?;
    let mut told_limits = 0;
    for event in rome
        .items(&[
            "-n",
            "warnings",
            "events",
            "--field-selector",
            "involvedObject.kind=Pod",
        ])
        .await?
    {
        let name = &event["involvedObject"]["name"];
        let is_healthy = name
            .as_str()
            .is_some_and(|name| name.starts_with("healthy-"));
        let is_from_there = there.iter().any(|warning| {
            warning["involvedObject"]["name"] == *name && warning["reason"] == event["reason"]
        });
        let is_of_scheduler = event["reportingComponent"] == "default-scheduler";
        // Once for all three.
        let is_told_limit = is_healthy && event["reason"] == "LimitAdded";
        told_limits += usize::from(is_told_limit);
        ensure!(
            !is_healthy || is_of_scheduler || is_from_there || is_told_limit,
            "an event of a healthy pod: {event}"
        );
    }
    ensure!(
        told_limits <= 1,
        "{told_limits} of them say which limits milan adds"
    );
    rome.end_namespace("warnings").await
}
