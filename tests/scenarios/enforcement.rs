//! The provider's policy decides what the pods of a consumer may be and use, and may change at any
//! time.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use liqo_api::{DEFAULT_POOL, Quantity, ResourceOffer};
use liqo_tests::{Cluster, World, eventually, still};
use serde_json::json;

use crate::names::ROMES_DOMAIN;
use crate::network::{ABROAD, AT_HOME, connected, servers, service};
use crate::pods::{deployment, pod};

/// Applies a policy at milan for rome's pods.
pub async fn policy(world: &World, usage: &serde_json::Value) -> Result<()> {
    let policy = json!({
        "apiVersion": "sharing.liqo.io/v1alpha1",
        "kind": "PeeringPolicy",
        "metadata": { "name": "strict" },
        "spec": { "priority": 100, "peers": { "clusterIDs": [world.rome.cluster_id().await?] }, "provide": { "usage": usage } },
    });
    world.milan.apply(&policy.to_string()).await
}

pub async fn no_policy(world: &World) -> Result<()> {
    world
        .milan
        .kubectl(&["delete", "peeringpolicy", "strict", "--ignore-not-found"])
        .await
        .map(drop)
}

/// Waits until a namespace has this Pod Security level.
async fn level(milan: &Cluster, namespace: &str, wanted: &str) -> Result<()> {
    eventually(
        &format!("{namespace} enforces {wanted}"),
        Duration::from_secs(30),
        || async {
            let labels = Api::<Namespace>::all(milan.client.clone())
                .get(namespace)
                .await?
                .metadata
                .labels
                .unwrap_or_default();
            Ok((labels
                .get("pod-security.kubernetes.io/enforce")
                .map(String::as_str)
                == Some(wanted))
            .then_some(()))
        },
    )
    .await
}

/// Waits until the local pod shows with this reason and these words why it does not run.
pub async fn refused(
    rome: &Cluster,
    namespace: &str,
    name: &str,
    reason: &str,
    words: &[&str],
) -> Result<()> {
    let what = format!("pod {name} is refused with {reason}, {words:?}");
    eventually(&what, Duration::from_secs(30), || async {
        let status = rome
            .api::<Pod>(namespace)
            .get(name)
            .await?
            .status
            .unwrap_or_default();
        let condition = status
            .conditions
            .into_iter()
            .flatten()
            .find(|one| one.type_ == "liqo.io/Offloaded" && one.status == "False");
        Ok(condition.filter(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            condition.reason.as_deref() == Some(reason)
                && words.iter().all(|word| message.contains(word))
        }))
    })
    .await
    .map(drop)
}

pub async fn the_pod_security_of_a_consumers_pods_follows_the_policy(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("security", "Remote").await?;
    let remote = rome.remote_namespace("security", milan).await?;
    level(milan, &remote, "baseline").await?;
    rome.apply(&deployment("security", "before", 1)).await?;
    let before = rome.ready_pods("security", "app=before", 1).await?;

    policy(&world, &json!({ "podSecurity": "restricted" })).await?;
    level(milan, &remote, "restricted").await?;
    let ordinary = pod("security", "ordinary", "Always", "sleep 600");
    rome.apply(&ordinary).await?;
    refused(
        rome,
        "security",
        "ordinary",
        "NotAllowed",
        &["PodSecurity \"restricted"],
    )
    .await?;
    let context = r"    securityContext:
      runAsNonRoot: true
      runAsUser: 1000
      allowPrivilegeEscalation: false
      capabilities: { drop: [ALL] }
      seccompProfile: { type: RuntimeDefault }
    resources:";
    rome.apply(
        &pod("security", "hardened", "Always", "sleep 600").replace("    resources:", context),
    )
    .await?;
    rome.ready_pods("security", "app=hardened", 1).await?;
    let after = rome.ready_pods("security", "app=before", 1).await?;
    ensure!(
        before[0].metadata.uid == after[0].metadata.uid,
        "a pod that ran before was ended by a narrower policy"
    );

    // A person may set a looser level than the manager, and it stays.
    milan
        .kubectl(&[
            "label",
            "namespace",
            &remote,
            "pod-security.kubernetes.io/enforce=privileged",
            "--overwrite",
        ])
        .await?;
    still(
        "what a person set stays",
        Duration::from_secs(3),
        (),
        || level(milan, &remote, "privileged"),
    )
    .await?;
    let manager = "--as=system:serviceaccount:liqo:liqo-controller-manager";
    let loosen = [
        "label",
        "namespace",
        &remote,
        "pod-security.kubernetes.io/enforce=privileged",
        "--overwrite",
        manager,
    ];
    milan
        .kubectl(&[
            "label",
            "namespace",
            &remote,
            "pod-security.kubernetes.io/enforce=restricted",
            "--overwrite",
        ])
        .await?;
    ensure!(
        !milan.try_kubectl(&loosen).await?.success,
        "the manager could loosen the Pod Security of a namespace"
    );

    no_policy(&world).await?;
    level(milan, &remote, "baseline").await?;
    rome.ready_pods("security", "app=ordinary", 1).await?;
    rome.end_namespace("security").await
}

pub async fn a_consumers_pods_get_only_the_priority_volumes_and_objects_of_the_policy(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let class = json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "guests" },
        "value": 7, "preemptionPolicy": "Never" });
    milan.apply(&class.to_string()).await?;
    rome.offloaded_namespace("guests", "Remote").await?;
    rome.kubectl(&[
        "-n",
        "guests",
        "create",
        "secret",
        "generic",
        "login",
        "--from-literal=a=b",
    ])
    .await?;
    policy(
        &world,
        &json!({ "priorityClassName": "guests", "volumeTypes": ["emptyDir"], "reflectedKinds": ["ConfigMap"],
            "tolerations": [{ "key": "gpu", "operator": "Exists" }] }),
    )
    .await?;
    let plain = pod("guests", "plain", "Always", "sleep 600").replace(
        "spec:\n",
        "spec:\n  volumes: [{ name: v, emptyDir: {} }]\n  tolerations: [{ key: gpu, value: a100 }, { key: spot, operator: Exists }]\n",
    );
    rome.apply(&plain).await?;
    rome.ready_pods("guests", "app=plain", 1).await?;
    let remote = rome.remote_namespace("guests", milan).await?;
    let spec = milan
        .pods(&remote, "app=plain")
        .await?
        .pop()
        .and_then(|pod| pod.spec)
        .context("no remote pod")?;
    ensure!(
        spec.priority == Some(7) && spec.priority_class_name.as_deref() == Some("guests"),
        "{spec:?}"
    );
    let tolerated: Vec<_> = spec
        .tolerations
        .iter()
        .flatten()
        .filter_map(|one| one.key.clone())
        .collect();
    ensure!(
        tolerated.contains(&"gpu".to_owned()) && !tolerated.contains(&"spot".to_owned()),
        "{tolerated:?}"
    );

    let volume = "spec:\n  volumes: [{ name: v, configMap: { name: m, optional: true } }]\n";
    rome.apply(&pod("guests", "volume", "Always", "sleep 600").replace("spec:\n", volume))
        .await?;
    refused(
        rome,
        "guests",
        "volume",
        "VolumeType",
        &["type configMap", "PeeringPolicy strict"],
    )
    .await?;
    let needs = "    envFrom: [{ secretRef: { name: login } }]\n    resources:";
    rome.apply(&pod("guests", "secret", "Always", "sleep 600").replace("    resources:", needs))
        .await?;
    refused(
        rome,
        "guests",
        "secret",
        "KindNotAllowed",
        &["Secret login", "PeeringPolicy strict"],
    )
    .await?;
    ensure!(
        milan.replica(&remote, "secrets", "login").await?.is_none(),
        "the Secret was reflected"
    );

    no_policy(&world).await?;
    rome.ready_pods("guests", "app=secret", 1).await?;
    rome.ready_pods("guests", "app=volume", 1).await?;
    milan
        .kubectl(&["delete", "priorityclass", "guests"])
        .await?;
    rome.end_namespace("guests").await
}

pub async fn a_policy_cannot_allow_pods_on_the_providers_virtual_nodes(
    world: Arc<World>,
) -> Result<()> {
    for (toleration, why) in [
        (
            json!({ "operator": "Exists" }),
            "tolerations[0].key: Required value",
        ),
        (
            json!({ "key": "", "operator": "Exists" }),
            "tolerations[0].key",
        ),
        (
            json!({ "key": "virtual-node.liqo.io/not-allowed", "operator": "Exists" }),
            "Liqo's own taints",
        ),
        (json!({ "key": "liqo.io/any" }), "Liqo's own taints"),
    ] {
        let refused = policy(&world, &json!({ "tolerations": [toleration] }))
            .await
            .err();
        let refused = refused.with_context(|| format!("{toleration} was accepted"))?;
        ensure!(
            format!("{refused:#}").contains(why),
            "{toleration}: {refused:#}"
        );
    }
    policy(
        &world,
        &json!({ "tolerations": [{ "key": "example.com/liqo.io" }, { "key": "notliqo.io/x" }] }),
    )
    .await?;
    no_policy(&world).await
}

pub async fn a_pod_shows_which_of_its_objects_the_provider_does_not_have(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("papers", "Remote").await?;
    let remote = rome.remote_namespace("papers", milan).await?;
    let secret = |kind: &'static str| async move {
        let kind = format!("--type={kind}");
        rome.kubectl(&[
            "-n",
            "papers",
            "create",
            "secret",
            "generic",
            "login",
            "--from-literal=a=b",
            &kind,
        ])
        .await
    };
    secret("bootstrap.kubernetes.io/token").await?;
    // Milan's own ConfigMap of that name is in nobody's way.
    milan
        .kubectl(&[
            "-n",
            &remote,
            "create",
            "configmap",
            "settings",
            "--from-literal=whose=milan's",
        ])
        .await?;
    rome.kubectl(&[
        "-n",
        "papers",
        "create",
        "configmap",
        "settings",
        "--from-literal=whose=rome's",
    ])
    .await?;
    let needs = "    envFrom: [{ secretRef: { name: login } }, { configMapRef: { name: settings } }]\n    resources:";
    rome.apply(&pod("papers", "reader", "Always", "sleep 600").replace("    resources:", needs))
        .await?;
    accepted(
        rome,
        "reader",
        "NotReflected",
        &["Secret login: KindNotAllowed: "],
    )
    .await?;
    let events = rome
        .kubectl(&[
            "-n",
            "papers",
            "get",
            "events",
            "-o",
            "jsonpath={range .items[*]}{.reason} {.message}\n{end}",
        ])
        .await?;
    ensure!(
        events.lines().any(|line| line.starts_with("NotReflected ")),
        "no event says it:\n{events}"
    );

    // The type of an operator means nothing to a pod.
    rome.kubectl(&["-n", "papers", "delete", "secret", "login"])
        .await?;
    secret("example.com/own").await?;
    rome.ready_pods("papers", "app=reader", 1).await?;
    accepted(rome, "reader", "Offloaded", &[]).await?;
    let read = rome
        .kubectl(&[
            "-n",
            "papers",
            "exec",
            "reader",
            "--",
            "sh",
            "-c",
            "echo $whose $a",
        ])
        .await?;
    ensure!(read == "rome's b\n", "it reads {read:?}");
    let replica = milan
        .replica(&remote, "secrets", "login")
        .await?
        .context("there is no replica")?;
    ensure!(replica["type"] == "Opaque", "{}", replica["type"]);
    rome.end_namespace("papers").await
}

/// Waits until a local pod shows that the provider accepted it, with this reason and these words.
async fn accepted(rome: &Cluster, name: &str, reason: &str, words: &[&str]) -> Result<()> {
    eventually(
        &format!("pod {name} says {reason}, {words:?}"),
        Duration::from_secs(90),
        || async {
            let status = rome
                .api::<Pod>("papers")
                .get(name)
                .await?
                .status
                .unwrap_or_default();
            let condition = status
                .conditions
                .into_iter()
                .flatten()
                .find(|one| one.type_ == "liqo.io/Offloaded" && one.status == "True");
            Ok(condition.filter(|condition| {
                let message = condition.message.as_deref().unwrap_or_default();
                condition.reason.as_deref() == Some(reason)
                    && words.iter().all(|word| message.contains(word))
            }))
        },
    )
    .await
    .map(drop)
}

pub async fn limits_are_charged_if_the_policy_says_so(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("limits", "Remote").await?;
    policy(&world, &json!({ "charge": "Limits" })).await?;
    let limited = |name: &str, limits: &str| {
        let resources = format!("resources: {{ limits: {limits}, requests");
        pod("limits", name, "Always", "sleep 600").replace("resources: { requests", &resources)
    };
    rome.apply(&pod("limits", "unlimited", "Always", "sleep 600"))
        .await?;
    refused(
        rome,
        "limits",
        "unlimited",
        "LimitMissing",
        &["main has no limit of cpu", "PeeringPolicy strict"],
    )
    .await?;
    // It requests little, but may use more than anybody offers.
    rome.apply(&limited("huge", "{ cpu: 1k, memory: 32Mi }"))
        .await?;
    refused(
        rome,
        "limits",
        "huge",
        "OfferExceeded",
        &["cpu", "1k requested"],
    )
    .await?;
    rome.apply(&limited("modest", "{ cpu: 20m, memory: 32Mi }"))
        .await?;
    rome.ready_pods("limits", "app=modest", 1).await?;

    no_policy(&world).await?;
    rome.ready_pods("limits", "app=unlimited", 1).await?;
    rome.ready_pods("limits", "app=huge", 1).await?;
    // Running pods continue and count with their limits. That exceeds the cluster, so the provider
    // announces that it takes the excess back.
    policy(&world, &json!({ "charge": "Limits" })).await?;
    let tenant = liqo_api::tenant_namespace(&rome.cluster_id().await?.parse()?);
    eventually(
        "the provider announces that it takes back what the huge pod uses",
        Duration::from_secs(30),
        || async {
            let offer = milan
                .api::<ResourceOffer>(&tenant)
                .get(DEFAULT_POOL)
                .await?
                .spec;
            Ok(offer
                .reclaim_timestamp
                .filter(|_| offer.resource_quota.hard.get("cpu") >= Quantity::from_units(1000))
                .map(drop))
        },
    )
    .await?;
    ensure!(
        rome.ready_pods("limits", "app=huge", 1).await?.len() == 1,
        "a pod was ended without notice"
    );
    no_policy(&world).await?;
    rome.end_namespace("limits").await
}

pub async fn a_namespace_has_its_own_name_at_a_provider_whose_policy_allows_that(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan, name) = (&world.rome, &world.milan, "same-name");
    connected(rome, milan).await?;
    policy(&world, &json!({ "namespaceNames": ["same-*"] })).await?;
    rome.kubectl(&["create", "namespace", name]).await?;
    rome.liqoctl(&[
        "offload",
        "namespace",
        name,
        "--namespace-mapping-strategy",
        "EnforceSameName",
    ])
    .await?;
    let remote = rome.remote_namespace(name, milan).await?;
    ensure!(remote == name, "at milan it is {remote}");
    rome.apply(&service(name, "web")).await?;
    rome.apply(&servers(name, "near", "web", 1, AT_HOME))
        .await?;
    rome.apply(&servers(name, "far", "other", 1, ABROAD))
        .await?;
    rome.ready_pods(name, "server=near", 1).await?;
    let far = rome.ready_pods(name, "server=far", 1).await?.remove(0);
    for host in [
        "web.same-name".to_owned(),
        format!("web.same-name.svc.{ROMES_DOMAIN}"),
    ] {
        eventually(
            &format!("a remote pod reaches {host}"),
            Duration::from_secs(30),
            || async {
                let line = format!("timeout 3 wget -qO- http://{host}");
                let far = far.metadata.name.as_deref().unwrap_or_default();
                let answer = rome
                    .try_kubectl(&["-n", name, "exec", far, "--", "sh", "-c", &line])
                    .await?;
                Ok(answer.stdout.contains("near").then_some(()))
            },
        )
        .await?;
    }
    a_chosen_name_that_is_taken_has_no_other(&world).await?;
    no_policy(&world).await?;
    rome.end_namespace(name).await
}

/// Only default names have an alternative.
async fn a_chosen_name_that_is_taken_has_no_other(world: &World) -> Result<()> {
    let (rome, milan, taken) = (&world.rome, &world.milan, "same-taken");
    milan.kubectl(&["create", "namespace", taken]).await?;
    milan
        .kubectl(&["-n", taken, "create", "configmap", "precious"])
        .await?;
    rome.kubectl(&["create", "namespace", "chosen"]).await?;
    let chosen = [
        "--namespace-mapping-strategy",
        "SelectedName",
        "--remote-namespace-name",
        taken,
    ];
    eventually(
        "the command says that the name is taken",
        Duration::from_secs(30),
        || async {
            let offloaded = rome
                .liqoctl(
                    &[
                        &["offload", "namespace", "chosen", "--timeout", "5s"][..],
                        &chosen,
                    ]
                    .concat(),
                )
                .await;
            let said = offloaded
                .err()
                .map(|error| format!("{error:#}"))
                .unwrap_or_default();
            ensure!(
                said.contains("same-taken exists in this cluster and is not this consumer's"),
                "liqoctl says: {said}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    rome.delete_namespace("chosen").await?;
    ensure!(
        milan
            .object(&["-n", taken, "configmap", "precious"])
            .await?
            .is_some(),
        "the namespace that was there before was touched"
    );
    milan.delete_namespace(taken).await
}
