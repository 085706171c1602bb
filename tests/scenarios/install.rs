//! Installing and uninstalling.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{World, eventually};
use serde_json::Value;

use crate::metering;

pub async fn a_manager_has_no_more_rights_than_it_needs(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    let mut roles = rome.items(&["clusterroles"]).await?;
    roles.extend(rome.items(&["roles", "-A"]).await?);
    roles.retain(|role| {
        role["metadata"]["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("liqo-"))
    });
    ensure!(roles.len() >= 4, "only {} roles", roles.len());
    for role in roles {
        for rule in role["rules"].as_array().into_iter().flatten() {
            let all = [&rule["apiGroups"], &rule["resources"], &rule["verbs"]];
            let wild = |list: &Value| {
                list.as_array()
                    .into_iter()
                    .flatten()
                    .any(|word| word.as_str().is_some_and(|word| word.contains('*')))
            };
            ensure!(
                !all.iter().any(|list| wild(list)),
                "a wildcard in {}: {rule}",
                role["metadata"]["name"]
            );
        }
    }
    let manager = "--as=system:serviceaccount:liqo:liqo-controller-manager";
    for (verb, kind, namespace) in [
        ("list", "secrets", "default"),
        ("get", "configmaps", "default"),
        ("create", "clusterrolebindings", "default"),
        ("escalate", "clusterroles", "default"),
        ("patch", "pods", "default"),
    ] {
        let answer = rome
            .try_kubectl(&["auth", "can-i", verb, kind, "-n", namespace, manager])
            .await?;
        ensure!(
            answer.stdout.trim() == "no",
            "the manager may {verb} {kind}"
        );
    }
    // Admission policies limit the manager to namespaces with Liqo's label.
    rome.kubectl(&["create", "namespace", "private"]).await?;
    let label = rome
        .try_kubectl(&[
            "label",
            "namespace",
            "private",
            "liqo.io/managed=true",
            manager,
        ])
        .await?;
    ensure!(
        !label.success,
        "the manager could label a namespace that Liqo did not create"
    );
    let delete = rome
        .try_kubectl(&["delete", "namespace", "private", manager])
        .await?;
    ensure!(
        !delete.success,
        "the manager could delete a namespace without a label"
    );
    rome.end_namespace("private").await?;
    let deployment = rome
        .object(&["-n", "liqo", "deployment", "liqo-controller-manager"])
        .await?
        .unwrap_or_default();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    ensure!(
        container["readOnlyRootFilesystem"] == true
            && container["allowPrivilegeEscalation"] == false,
        "{container}"
    );
    Ok(())
}

pub async fn installing_again_changes_nothing(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    let state = || async {
        let object = rome
            .object(&["-n", "liqo", "deployment", "liqo-controller-manager"])
            .await?
            .unwrap_or_default();
        Ok::<_, anyhow::Error>((
            object["metadata"]["generation"].clone(),
            rome.cluster_id().await?,
        ))
    };
    let before = state().await?;
    world.install(rome).await?;
    ensure!(
        state().await? == before,
        "a second install changed the Deployment or the identity"
    );
    Ok(())
}

pub async fn uninstalling_leaves_nothing(world: Arc<World>) -> Result<()> {
    world.ended_namespaces_are_gone().await?;
    let (rome, milan) = (&world.rome, &world.milan);
    let refused = rome.try_liqoctl(&["uninstall", "--yes"]).await?;
    ensure!(
        !refused.success && refused.stderr.contains("peer"),
        "it must refuse while a peering exists: {refused:?}"
    );
    metering::run_for_a_moment(&world).await?;
    rome.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    // milan ends the tenancy by itself. Until then it refuses to be uninstalled.
    eventually("milan lends to nobody", Duration::from_secs(90), || async {
        let peers = milan.items(&["foreignclusters"]).await?;
        Ok(peers
            .iter()
            .all(|peer| peer["status"]["tenantNamespace"].is_null())
            .then_some(()))
    })
    .await?;
    let kept = milan.liqoctl(&["receipt", "list", "-o", "json"]).await?;
    let kept: Vec<Value> = serde_json::from_str(&kept)?;
    let is_unfinished =
        |one: &&Value| one["isKept"] == true && one["peer"] == "rome" && one["phase"] == "Pending";
    let receipt = kept
        .iter()
        .find(is_unfinished)
        .with_context(|| format!("no receipt of the last minute: {kept:#?}"))?;
    ensure!(
        receipt["receipt"]["spec"]["statement"]["pods"].as_u64() >= Some(1),
        "{receipt:#}"
    );
    for kind in ["usagerecords", "contracts"] {
        let kept = rome
            .items(&["-n", "liqo", kind, "-l", "liqo.io/former-role=consumer"])
            .await?;
        ensure!(!kept.is_empty(), "rome has lost its {kind}");
    }
    let refused = milan.try_liqoctl(&["uninstall", "--yes"]).await?;
    ensure!(
        !refused.success && refused.stderr.contains("receipts of ended peerings"),
        "it must not delete them: {refused:?}"
    );
    // This pod waits for a strategy that nobody will give.
    rome.apply(
        r#"
apiVersion: v1
kind: Namespace
metadata: { name: undecided, labels: { liqo.io/scheduling-enabled: "true" } }
"#,
    )
    .await?;
    rome.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: { name: waiting, namespace: undecided }
spec:
  terminationGracePeriodSeconds: 1
  containers: [{ name: main, image: localhost/busybox:1, command: [sleep, "3600"] }]
"#,
    )
    .await?;
    let gates = [
        "-n",
        "undecided",
        "get",
        "pod",
        "waiting",
        "-o",
        "jsonpath={.spec.schedulingGates[*].name}",
    ];
    ensure!(
        rome.kubectl(&gates).await? == "liqo.io/offloading",
        "the pod does not wait"
    );
    for cluster in [rome, milan] {
        cluster
            .liqoctl(&["uninstall", "--yes", "--purge", "--force"])
            .await?;
        let kinds = cluster
            .kubectl(&[
                "api-resources",
                "--verbs=list",
                "-o",
                "name",
                "--cached=false",
            ])
            .await?;
        let mut left = Vec::new();
        for kind in kinds.lines().filter(|kind| !kind.starts_with("events")) {
            let names = cluster
                .try_kubectl(&["get", kind, "-A", "-o", "name", "--ignore-not-found"])
                .await?;
            left.extend(
                names
                    .stdout
                    .lines()
                    .filter(|name| name.contains("liqo"))
                    .map(str::to_owned),
            );
        }
        ensure!(left.is_empty(), "left at {}: {left:#?}", cluster.name);
    }
    rome.wait_for(&["-n", "undecided", "pod/waiting"], "condition=Ready", 60)
        .await?;
    rome.kubectl(&["delete", "namespace", "undecided"])
        .await
        .map(drop)
}
