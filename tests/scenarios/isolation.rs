//! Two consumers of one provider cannot see or touch each other.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::Secret,
};
use kube::{Api, api::PostParams};
use liqo_api::{provider_namespace, tenant_namespace};
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::pods::deployment;

/// The token of `consumer` for milan.
pub async fn token(world: &World, consumer: &Cluster) -> Result<String> {
    let namespace = provider_namespace(&world.milan.cluster_id().await?.parse()?);
    let secret = consumer.api::<Secret>(&namespace).get("credential").await?;
    let token = secret
        .data
        .unwrap_or_default()
        .remove("token")
        .context("the credential holds no token")?;
    Ok(String::from_utf8(token.0)?)
}

/// Whether this identity has a right.
async fn may(who: &Cluster, verb: &str, kind: &str, namespace: &str) -> Result<bool> {
    let (kind, subresource) = kind
        .split_once('/')
        .map_or((kind, None), |(kind, subresource)| {
            (kind, Some(subresource))
        });
    let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                namespace: Some(namespace.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: subresource.map(str::to_owned),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::all(who.client.clone())
        .create(&PostParams::default(), &review)
        .await?;
    Ok(answer.status.context("the review has no answer")?.allowed)
}

/// The rights of `who` in these namespaces, out of all that Liqo and its pods need there.
async fn all_that_is_allowed(who: &Cluster, namespaces: &[&str]) -> Result<Vec<String>> {
    let verbs = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ];
    let kinds = [
        "resourcerequests.discovery.liqo.io",
        "resourceoffers.sharing.liqo.io",
        "resourceoffers.sharing.liqo.io/status",
        "contracts.sharing.liqo.io",
        "contracts.sharing.liqo.io/status",
        "usagerecords.sharing.liqo.io",
        "receipts.sharing.liqo.io",
        "receipts.sharing.liqo.io/status",
        "namespacemaps.virtualkubelet.liqo.io",
        "shadowpods.virtualkubelet.liqo.io",
        "shadowpods.virtualkubelet.liqo.io/status",
        "reflectedobjects.virtualkubelet.liqo.io",
        "secrets",
        "configmaps",
        "pods",
        "pods/log",
        "pods/exec",
        "pods/attach",
        "pods/portforward",
        "leases.coordination.k8s.io",
        "serviceaccounts",
        "serviceaccounts/token",
        "rolebindings.rbac.authorization.k8s.io",
        "events",
    ];
    let mut allowed = Vec::new();
    for namespace in namespaces {
        for kind in kinds {
            for verb in verbs {
                if may(who, verb, kind, namespace).await? {
                    allowed.push(format!("{verb} {kind} in {namespace}"));
                }
            }
        }
    }
    Ok(allowed)
}

/// Checks that the API server forbids each of these commands.
async fn forbidden(who: &Cluster, name: &str, commands: &[&[&str]]) -> Result<()> {
    for arguments in commands {
        let output = who.try_kubectl(arguments).await?;
        ensure!(
            !output.success && output.stderr.to_lowercase().contains("forbidden"),
            "{name}: {arguments:?} gave {output:?}"
        );
    }
    Ok(())
}

/// Checks that a shadow pod cannot create a pod in another consumer's namespace.
async fn an_intruder_is_refused(
    world: &World,
    as_turin: &Cluster,
    own_tenant: &str,
    mapped: &str,
) -> Result<()> {
    const NAME: &str = "0f1e2d3c-0000-4000-8000-000000000000";
    let (turin, milan) = (&world.turin, &world.milan);
    // A running manager would delete the shadow pod at once.
    turin.stop_manager().await?;
    let intruder = json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1",
        "kind": "ShadowPod",
        "metadata": { "name": NAME, "namespace": own_tenant },
        "spec": {
            "namespace": "secret-plans",
            "pool": "default",
            "pod": json!({
                "metadata": { "name": "intruder" },
                "spec": { "containers": [{ "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "600"] }] },
            })
            .to_string(),
        },
    });
    as_turin.apply(&intruder.to_string()).await?;
    eventually(
        "the provider handled the intruder",
        Duration::from_secs(30),
        || async {
            let shadow = as_turin
                .object(&["-n", own_tenant, "shadowpod", NAME])
                .await?
                .unwrap_or_default();
            Ok((shadow["status"]["reason"] == "NamespaceNotReady").then_some(()))
        },
    )
    .await?;
    ensure!(
        milan
            .object(&["-n", mapped, "pod", "intruder"])
            .await?
            .is_none(),
        "turin runs a pod in rome's namespace"
    );
    turin.start_manager().await?;
    eventually(
        "turin's manager deletes the shadow pod that belongs to none of its pods",
        Duration::from_mins(1),
        || async {
            Ok(milan
                .object(&["-n", own_tenant, "shadowpod", NAME])
                .await?
                .is_none()
                .then_some(()))
        },
    )
    .await
}

pub async fn two_consumers_cannot_see_or_touch_each_other(world: Arc<World>) -> Result<()> {
    let (rome, turin, milan) = (&world.rome, &world.turin, &world.milan);
    turin
        .liqoctl(&[
            "peer",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    rome.offloaded_namespace("secret-plans", "Remote").await?;
    rome.apply(&deployment("secret-plans", "web", 1)).await?;
    let pods = rome.ready_pods("secret-plans", "app=web", 1).await?;
    let pod = pods[0].metadata.name.as_deref().unwrap_or_default();
    let tenant = tenant_namespace(&rome.cluster_id().await?.parse()?);
    let mapped = rome.remote_namespace("secret-plans", milan).await?;
    let own_tenant = tenant_namespace(&turin.cluster_id().await?.parse()?);
    let as_turin = milan
        .with_token(
            &token(&world, turin).await?,
            &world.scratch("turin.kubeconfig"),
        )
        .await?;
    let as_rome = milan
        .with_token(
            &token(&world, rome).await?,
            &world.scratch("rome.kubeconfig"),
        )
        .await?;

    // The tokens work where they should, or the refusals below would prove nothing.
    as_turin
        .kubectl(&[
            "-n",
            &own_tenant,
            "get",
            "resourceoffers,shadowpods,resourcerequests",
        ])
        .await?;
    as_rome.kubectl(&["-n", &mapped, "get", "pod", pod]).await?;

    let allowed = all_that_is_allowed(
        &as_turin,
        &[&tenant, &mapped, "liqo", "kube-system", "default"],
    )
    .await?;
    ensure!(allowed.is_empty(), "turin may do at milan: {allowed:#?}");
    ensure!(
        may(
            &as_turin,
            "create",
            "shadowpods.virtualkubelet.liqo.io",
            &own_tenant
        )
        .await?,
        "the review does not show rights that turin has"
    );

    // The same with real commands.
    forbidden(
        &as_turin,
        "turin",
        &[
            &["-n", &tenant, "get", "shadowpods"],
            &["-n", &mapped, "get", "pod", pod],
            &["-n", &mapped, "logs", pod],
            &["-n", &mapped, "exec", pod, "--", "true"],
            &["-n", &mapped, "delete", "pod", pod],
            &["-n", &tenant, "get", "secrets"],
            &["get", "namespaces"],
            &["get", "nodes"],
            &["get", "foreignclusters"],
            &["-n", &own_tenant, "create", "token", "default"],
            &["-n", "liqo", "get", "secret", "liqo-identity"],
        ],
    )
    .await?;
    // A consumer cannot write what the provider decides, and can only read single pods in a mapped
    // namespace.
    let more = r#"{"spec":{"resourceQuota":{"hard":{"cpu":"1000"}}}}"#;
    forbidden(
        &as_rome,
        "rome",
        &[
            &[
                "-n",
                &tenant,
                "patch",
                "resourceoffer",
                "default",
                "--type=merge",
                "-p",
                more,
            ],
            &["-n", &tenant, "delete", "resourceoffer", "default"],
            &[
                "-n",
                &tenant,
                "patch",
                "lease",
                "provider",
                "--type=merge",
                "-p",
                r#"{"spec":{"holderIdentity":"rome"}}"#,
            ],
            &["-n", &mapped, "delete", "pod", pod],
            &["-n", &mapped, "get", "secrets"],
            &["-n", &mapped, "get", "pods"],
            &["-n", &mapped, "run", "mine", "--image=localhost/busybox:1"],
        ],
    )
    .await?;
    an_intruder_is_refused(&world, &as_turin, &own_tenant, &mapped).await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    rome.end_namespace("secret-plans").await
}
