//! Some of Kubernetes' own conformance tests, with their pods at a peer.
//! `cargo playground conformance` runs all of them.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use liqo_tests::{World, eventually};
use serde_json::Value;

/// The label that Kubernetes' tests give their namespaces.
const NAMESPACE_OF_A_TEST: &str = "e2e-framework";

pub async fn kubernetes_tests_of_volumes_pass(world: Arc<World>) -> Result<()> {
    let tests = [
        "ConfigMap optional updates should be reflected in volume",
        "Projected combined should project all components",
        "Projected downwardAPI should update labels on modification",
        "Secrets should be consumable from pods in volume as non-root with defaultMode and fsGroup set",
        "EmptyDir volumes pod should support shared volumes between containers",
        "Subpath Atomic writer volumes should support subpaths with configmap pod with mountPath",
    ];
    pass(&world, "storage", &tests).await
}

pub async fn kubernetes_tests_of_controllers_pass(world: Arc<World>) -> Result<()> {
    let tests = [
        "RollingUpdateDeployment should delete old pods and create new ones",
        "deployment should support proportional scaling",
        "DisruptionController should block an eviction until the PDB is updated",
        "Job should run a job to completion when tasks sometimes fail and are locally restarted",
        "Job should create pods for an Indexed job with completion indexes and specified hostname",
        "ReplicaSet should adopt matching pods on creation and release no longer matching pods",
    ];
    pass(&world, "apps", &tests).await
}

pub async fn kubernetes_tests_of_pods_pass(world: Arc<World>) -> Result<()> {
    let tests = [
        "Pods should support remote command execution over websockets",
        "Pods should allow activeDeadlineSeconds to be updated",
        "should invoke init containers on a RestartNever pod",
        "should report termination message from file when pod succeeds",
        "Probing container should be restarted with a /healthz http liveness probe",
        "should support sysctls [MinimumKubeletVersion",
        "will start an ephemeral container in an existing pod",
        "should allow substituting values in a volume subpath",
    ];
    pass(&world, "node", &tests).await
}

/// Runs these tests of a group, and waits until their namespaces are gone.
async fn pass(world: &World, group: &str, tests: &[&str]) -> Result<()> {
    let processes = tests.len().to_string();
    let mut arguments = vec![
        "conformance",
        "--running",
        "--output=json",
        "--processes",
        &processes,
        "--group",
        group,
    ];
    arguments.extend(tests.iter().flat_map(|test| ["--test", test]));
    let results: Value = serde_json::from_str(&world.playground(&arguments).await?)?;
    let (passed, remote) = (
        results["groups"][0]["passed"].as_u64(),
        results["pods"]["remote"].as_u64(),
    );
    let count = Some(tests.len() as u64);
    ensure!(passed == count && remote >= count, "{results:#}");
    eventually(
        "the namespaces of the tests are gone",
        Duration::from_mins(2),
        || async {
            let namespaces = Api::<Namespace>::all(world.rome.client.clone());
            let left = namespaces
                .list_metadata(&ListParams::default().labels(NAMESPACE_OF_A_TEST))
                .await?;
            Ok(left.items.is_empty().then_some(()))
        },
    )
    .await
}
