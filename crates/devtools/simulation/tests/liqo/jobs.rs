//! Jobs whose pods run elsewhere.

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    json::object,
    lending::provide,
    users::SOON,
    world::{Cluster, Start, World},
};

/// The pods with this label at milan, with their phases.
async fn remote_phases(milan: &Cluster, app: &str) -> Vec<(String, Pod)> {
    let pods = milan
        .all::<Pod>()
        .list(&ListParams::default().labels(&format!("app={app}")))
        .await
        .unwrap();
    pods.into_iter()
        .map(|pod| {
            (
                pod.status
                    .clone()
                    .unwrap_or_default()
                    .phase
                    .unwrap_or_default(),
                pod,
            )
        })
        .collect()
}

async fn is_in_phase(milan: &Cluster, app: &str, phase: &str) -> bool {
    matches!(&remote_phases(milan, app).await[..], [(only, _)] if only == phase)
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_remote_pod_was_removed_while_managers_were_down_does_not_run_twice() {
    let mut world = World::peered(Start::default()).await;
    world.offload(0, "demo", "Remote").await;
    for (name, seconds) in [("short", 30), ("long", 3600)] {
        world.clusters[0].run_job("demo", name, 1, seconds, 0).await;
    }
    let milan = &world.clusters[1];
    for name in ["short", "long"] {
        world
            .until("the job's pod runs", SOON, async || {
                is_in_phase(milan, name, "Running").await
            })
            .await;
    }
    for cluster in &world.clusters {
        cluster.manager(1).kill();
    }
    world
        .until("the short job ended", SOON, async || {
            is_in_phase(milan, "short", "Succeeded").await
        })
        .await;
    // One pod is deleted: its finalizer keeps it until its end is recorded. The other is deleted by
    // force, without its finalizer.
    for name in ["short", "long"] {
        let (_, pod) = remote_phases(milan, name).await.remove(0);
        let pods: Api<Pod> = milan.api(&pod.namespace().unwrap());
        if name == "long" {
            let freed = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            pods.patch(&pod.name_any(), &PatchParams::default(), &freed)
                .await
                .unwrap();
        }
        let grace = DeleteParams {
            grace_period_seconds: (name == "long").then_some(0),
            ..DeleteParams::default()
        };
        pods.delete(&pod.name_any(), &grace).await.unwrap();
    }
    for cluster in &mut world.clusters {
        cluster.restart_manager(1);
    }
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    let condition = async |name: &str, wanted: &str| {
        let status = rome
            .api::<Job>("demo")
            .get(name)
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        status
            .conditions
            .unwrap_or_default()
            .iter()
            .any(|one| one.type_ == wanted && one.status == "True")
    };
    world
        .until("the short job is complete", SOON, async || {
            condition("short", "Complete").await
        })
        .await;
    world
        .until("the long job has failed", SOON, async || {
            condition("long", "Failed").await
        })
        .await;
    world
        .until("nothing is left at milan", SOON, async || {
            remote_phases(milan, "short").await.is_empty()
        })
        .await;
    tokio::time::sleep(SOON).await;
    assert!(
        remote_phases(milan, "long").await.is_empty(),
        "it runs again"
    );
}

#[tokio::test(start_paused = true)]
async fn home_sees_how_a_pod_ended_that_somebody_holds_and_what_ended_one_of_a_job() {
    let world = World::peered(Start::default()).await;
    world.offload(0, "demo", "Remote").await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    rome.run_job("demo", "work", 1, 3600, 0).await;
    let pods = rome.api::<Pod>("demo");
    let held: Pod = object(json!({
        "metadata": { "name": "held", "labels": { "app": "held" }, "finalizers": ["example.com/hold"] },
        "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] },
    }));
    pods.create(&PostParams::default(), &held).await.unwrap();
    let service: Service = object(json!({ "metadata": { "name": "held" },
        "spec": { "selector": { "app": "held" }, "ports": [{ "port": 80 }] } }));
    rome.api::<Service>("demo")
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    for name in ["work", "held"] {
        world
            .until("the pod runs", SOON, async || {
                is_in_phase(milan, name, "Running").await
            })
            .await;
    }
    pods.delete("held", &DeleteParams::default()).await.unwrap();
    let (_, drained) = remote_phases(milan, "work").await.remove(0);
    assert!(
        milan
            .drain(drained.spec.unwrap().node_name.as_deref().unwrap())
            .await
    );

    let end = async |app: &str| {
        let pod = pods
            .list(&ListParams::default().labels(&format!("app={app}")))
            .await
            .unwrap()
            .items
            .remove(0);
        let status = serde_json::to_value(pod.status).unwrap();
        matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")).then_some(status)
    };
    for name in ["held", "work"] {
        world
            .until("the pod has ended at home", SOON, async || {
                end(name).await.is_some()
            })
            .await;
    }
    let (held, work) = (end("held").await.unwrap(), end("work").await.unwrap());
    let reason = &held["containerStatuses"][0]["state"]["terminated"]["reason"];
    assert!(
        reason == "Error" || reason == "Completed",
        "what the kubelet at milan says: {held}"
    );
    let code = &held["containerStatuses"][0]["state"]["terminated"]["exitCode"];
    assert_eq!(
        held["phase"],
        if *code == 0 { "Succeeded" } else { "Failed" },
        "{held}"
    );
    let serving = async || {
        let slices = rome
            .api::<EndpointSlice>("demo")
            .list(&ListParams::default())
            .await
            .unwrap();
        let endpoints = slices.items.into_iter().flat_map(|slice| slice.endpoints);
        endpoints
            .filter_map(|one| one.conditions?.serving)
            .any(|serving| serving)
    };
    world
        .until("no endpoint serves", SOON, async || !serving().await)
        .await;
    let cause = work["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["type"] == "DisruptionTarget");
    assert_eq!(
        cause.map(|one| one["reason"].clone()),
        Some("EvictionByEvictionAPI".into()),
        "{work}"
    );
}

#[tokio::test(start_paused = true)]
async fn home_sees_how_a_pod_behind_a_broker_ended_that_somebody_holds() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.peer_and_wait(1, 2).await;
    provide(
        milan,
        json!({ "percentage": 100, "source": { "offers": {} } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    let pods = rome.api::<Pod>("demo");
    let held: Pod = object(json!({
        "metadata": { "name": "held", "labels": { "app": "held" }, "finalizers": ["example.com/hold"] },
        "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] },
    }));
    pods.create(&PostParams::default(), &held).await.unwrap();
    world
        .until("the pod runs", SOON, async || {
            is_in_phase(&world.clusters[2], "held", "Running").await
        })
        .await;
    world
        .until("the pod runs at home", SOON, async || {
            rome.ready_pods("demo").await.len() == 1
        })
        .await;
    pods.delete("held", &DeleteParams::default()).await.unwrap();
    let status = async || json!(pods.get("held").await.unwrap().status);
    let has_ended = async || {
        matches!(
            status().await["phase"].as_str(),
            Some("Succeeded" | "Failed")
        )
    };
    world.until("it has ended at home", SOON, has_ended).await;
    let status = status().await;
    let reason = &status["containerStatuses"][0]["state"]["terminated"]["reason"];
    assert!(
        reason == "Error" || reason == "Completed",
        "what the kubelet at turin says: {status}"
    );
    world
        .until("nothing of it is left at the others", SOON, async || {
            milan.pods_of("held").is_empty() && world.clusters[2].pods_of("held").is_empty()
        })
        .await;
}
