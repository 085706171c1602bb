//! Two consumers of one provider are strangers to each other.

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

/// The token that `consumer` holds for milan.
async fn token(world: &World, consumer: &Cluster) -> Result<String> {
    let namespace = provider_namespace(&world.milan.cluster_id().await?.parse()?);
    let secret = consumer.api::<Secret>(&namespace).get("credential").await?;
    let token = secret.data.unwrap_or_default().remove("token").context("the credential holds no token")?;
    Ok(String::from_utf8(token.0)?)
}

/// Whether the API server would let this identity do it.
async fn may(who: &Cluster, verb: &str, kind: &str, namespace: &str) -> Result<bool> {
    let (kind, subresource) = kind.split_once('/').map_or((kind, None), |(kind, subresource)| (kind, Some(subresource)));
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
    let answer = Api::all(who.client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.context("the review has no answer")?.allowed)
}

pub async fn two_consumers_cannot_see_or_touch_each_other(world: Arc<World>) -> Result<()> {
    let (rome, turin, milan) = (&world.rome, &world.turin, &world.milan);
    turin.liqoctl(&["peer", "--remote-kubeconfig", &milan.kubeconfig.display().to_string()]).await?;
    rome.offloaded_namespace("secret-plans", "Remote").await?;
    rome.apply(&deployment("secret-plans", "web", 1)).await?;
    let pods = rome.ready_pods("secret-plans", "app=web", 1).await?;
    let pod = pods[0].metadata.name.clone().unwrap_or_default();
    let tenant = tenant_namespace(&rome.cluster_id().await?.parse()?);
    let mapped = rome.remote_namespace("secret-plans", milan).await?;
    let own_tenant = tenant_namespace(&turin.cluster_id().await?.parse()?);
    let as_turin = milan.with_token(&token(&world, turin).await?, &world.scratch("turin.kubeconfig")).await?;
    let as_rome = milan.with_token(&token(&world, rome).await?, &world.scratch("rome.kubeconfig")).await?;

    // Its own token works where it should, else the refusals below would prove nothing.
    as_turin.kubectl(&["-n", &own_tenant, "get", "resourceoffers,shadowpods,resourcerequests"]).await?;
    as_rome.kubectl(&["-n", &mapped, "get", "pod", &pod]).await?;

    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let kinds = [
        "resourcerequests.discovery.liqo.io",
        "resourceoffers.sharing.liqo.io",
        "resourceoffers.sharing.liqo.io/status",
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
    for namespace in [tenant.as_str(), mapped.as_str(), "liqo", "kube-system", "default"] {
        for kind in kinds {
            for verb in verbs {
                if may(&as_turin, verb, kind, namespace).await? {
                    allowed.push(format!("{verb} {kind} in {namespace}"));
                }
            }
        }
    }
    ensure!(allowed.is_empty(), "turin may do at milan: {allowed:#?}");
    ensure!(may(&as_turin, "create", "shadowpods.virtualkubelet.liqo.io", &own_tenant).await?, "the question itself is wrong");

    // And tried for real.
    for arguments in [
        vec!["-n", &tenant, "get", "shadowpods"],
        vec!["-n", &mapped, "get", "pod", &pod],
        vec!["-n", &mapped, "logs", &pod],
        vec!["-n", &mapped, "exec", &pod, "--", "true"],
        vec!["-n", &mapped, "delete", "pod", &pod],
        vec!["-n", &tenant, "get", "secrets"],
        vec!["get", "namespaces"],
        vec!["get", "nodes"],
        vec!["get", "foreignclusters"],
        vec!["-n", &own_tenant, "create", "token", "default"],
        vec!["-n", "liqo", "get", "secret", "liqo-identity"],
    ] {
        let output = as_turin.try_kubectl(&arguments).await?;
        ensure!(!output.success && output.stderr.to_lowercase().contains("forbidden"), "turin: {arguments:?} gave {output:?}");
    }
    // A consumer does not write what is the provider's to say, nor act in a mapped namespace beyond looking at its pods.
    for arguments in [
        vec![
            "-n",
            &tenant,
            "patch",
            "resourceoffer",
            "default",
            "--type=merge",
            "-p",
            r#"{"spec":{"resourceQuota":{"hard":{"cpu":"1000"}}}}"#,
        ],
        vec!["-n", &tenant, "delete", "resourceoffer", "default"],
        vec!["-n", &tenant, "patch", "lease", "provider", "--type=merge", "-p", r#"{"spec":{"holderIdentity":"rome"}}"#],
        vec!["-n", &mapped, "delete", "pod", &pod],
        vec!["-n", &mapped, "get", "secrets"],
        vec!["-n", &mapped, "get", "pods"],
        vec!["-n", &mapped, "run", "mine", "--image=localhost/busybox:1"],
    ] {
        let output = as_rome.try_kubectl(&arguments).await?;
        ensure!(!output.success && output.stderr.to_lowercase().contains("forbidden"), "rome: {arguments:?} gave {output:?}");
    }
    // A shadow pod that names another consumer's namespace is not a way in. An honest manager would sweep it at once.
    turin.stop_manager().await?;
    let intruder = json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1",
        "kind": "ShadowPod",
        "metadata": { "name": "0f1e2d3c-0000-4000-8000-000000000000", "namespace": own_tenant },
        "spec": {
            "namespace": "secret-plans",
            "pool": "default",
            "pod": {
                "metadata": { "name": "intruder" },
                "spec": { "containers": [{ "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "600"] }] },
            },
        },
    });
    as_turin.apply(&intruder.to_string()).await?;
    eventually("the provider looked at the intruder", Duration::from_secs(30), || async {
        let shadow =
            as_turin.object(&["-n", &own_tenant, "shadowpod", "0f1e2d3c-0000-4000-8000-000000000000"]).await?.unwrap_or_default();
        Ok((shadow["status"]["reason"] == "NamespaceNotReady").then_some(()))
    })
    .await?;
    ensure!(milan.object(&["-n", &mapped, "pod", "intruder"]).await?.is_none(), "turin runs a pod in rome's namespace");
    turin.start_manager().await?;
    eventually("turin's manager sweeps the shadow pod that none of its pods made", Duration::from_secs(60), || async {
        let shadow = milan.object(&["-n", &own_tenant, "shadowpod", "0f1e2d3c-0000-4000-8000-000000000000"]).await?;
        Ok(shadow.is_none().then_some(()))
    })
    .await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    rome.delete_namespace("secret-plans").await
}
