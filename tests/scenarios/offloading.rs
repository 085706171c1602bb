//! Where pods run, and what happens to pods that may not run there.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, api::ListParams};
use liqo_tests::{Cluster, World, eventually};
use serde_json::json;

use crate::{
    network::{disable_network, enable_network},
    pods::{deployment, name_of, node_of, pod},
};

pub async fn the_namespace_offloading_in_the_docs_works(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.kubectl(&["create", "namespace", "documents"]).await?;
    rome.apply(
        r"
apiVersion: offloading.liqo.io/v1alpha1
kind: NamespaceOffloading
metadata:
  name: offloading
  namespace: documents
spec:
  namespaceMappingStrategy: DefaultName
  podOffloadingStrategy: Local
  clusterSelector:
    nodeSelectorTerms:
    - matchExpressions:
      - key: liqo.io/type
        operator: In
        values:
        - virtual-node
",
    )
    .await?;
    rome.wait_for(
        &["-n", "documents", "namespaceoffloading/offloading"],
        "condition=Ready",
        30,
    )
    .await?;
    rome.end_namespace("documents").await
}

pub async fn a_cluster_selector_limits_where_pods_go(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.kubectl(&["create", "namespace", "nowhere"]).await?;
    let offload = [
        "offload",
        "namespace",
        "nowhere",
        "--pod-offloading-strategy",
        "Remote",
        "--selector",
        "region=nowhere",
        "--timeout",
        "5s",
    ];
    eventually(
        "the command says that no cluster is selected",
        Duration::from_secs(30),
        || async {
            let waited = rome.try_liqoctl(&offload).await?;
            ensure!(
                !waited.success && waited.stderr.contains("NoClusterSelected"),
                "{waited:?}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    eventually(
        "the webhook applies to this namespace",
        Duration::from_secs(20),
        || async {
            let webhook = rome
                .kubectl(&["get", "mutatingwebhookconfiguration", "liqo", "-o", "yaml"])
                .await?;
            Ok(webhook.contains("- nowhere").then_some(()))
        },
    )
    .await?;
    rome.apply(&deployment("nowhere", "web", 1)).await?;
    eventually(
        "the scheduler says that no node fits",
        Duration::from_secs(30),
        || async {
            let pods = rome.pods("nowhere", "app=web").await?;
            let unschedulable = |pod: &Pod| {
                let conditions = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.conditions.as_ref());
                conditions.into_iter().flatten().any(|condition| {
                    condition.type_ == "PodScheduled" && condition.status == "False"
                })
            };
            Ok(pods.iter().any(unschedulable).then_some(()))
        },
    )
    .await?;
    ensure!(
        rome.pods("nowhere", "app=web")
            .await?
            .iter()
            .all(|pod| node_of(pod).is_empty())
    );
    rome.end_namespace("nowhere").await
}

pub async fn a_namespace_with_strategy_local_exists_at_the_peer_without_pods(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("stay", "Local").await?;
    let remote = rome.remote_namespace("stay", milan).await?;
    ensure!(
        Api::<Namespace>::all(milan.client.clone())
            .get_opt(&remote)
            .await?
            .is_some()
    );
    rome.apply(&deployment("stay", "web", 2)).await?;
    let pods = rome.ready_pods("stay", "app=web", 2).await?;
    ensure!(pods.iter().all(|pod| node_of(pod) == "rome-1"));
    rome.end_namespace("stay").await
}

pub async fn without_a_network_a_service_never_sends_packets_to_wrong_pods(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    disable_network(&world).await?;
    rome.offloaded_namespace("mixed", "LocalAndRemote").await?;
    let answering = |name: &str, text: &str| {
        deployment("mixed", name, 4)
            .replace("echo started; trap exit TERM; sleep 3600 & wait", &format!("mkdir /tmp/w; echo {text} > /tmp/w/index.html; exec httpd -f -p 8000 -h /tmp/w"))
            .replace(
                "      containers:",
                &format!("      topologySpreadConstraints: [{{ maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {{ matchLabels: {{ app: {name} }} }}, nodeTaintsPolicy: Honor }}]\n      containers:"),
            )
    };
    rome.apply(&answering("web", "right")).await?;
    let pods = rome.ready_pods("mixed", "app=web", 4).await?;
    let nodes: BTreeSet<_> = pods.iter().map(node_of).collect();
    ensure!(
        nodes == BTreeSet::from(["milan", "rome-1"]),
        "the pods are on {nodes:?}"
    );
    // Other pods of rome with the same addresses that the remote pods have at milan. They answer
    // something else.
    rome.apply(
        &answering("stranger", "wrong")
            .replace("replicas: 4", "replicas: 8")
            .replace(
                "      containers:",
                "      nodeSelector: { kubernetes.io/hostname: rome-1 }\n      containers:",
            )
            .replace("DoNotSchedule", "ScheduleAnyway"),
    )
    .await?;
    rome.ready_pods("mixed", "app=stranger", 8).await?;
    rome.kubectl(&["-n", "mixed", "expose", "deployment", "web", "--port=8000"])
        .await?;
    let local: BTreeSet<String> = pods
        .iter()
        .filter(|pod| node_of(pod) == "rome-1")
        .filter_map(|pod| pod.status.clone()?.pod_ip)
        .collect();
    let endpoints = eventually(
        "the Service has its endpoints",
        Duration::from_secs(20),
        || async {
            let slices = rome
                .items(&[
                    "-n",
                    "mixed",
                    "endpointslices",
                    "-l",
                    "kubernetes.io/service-name=web",
                ])
                .await?;
            let addresses: BTreeSet<String> = slices
                .iter()
                .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
                .filter_map(|endpoint| Some(endpoint["addresses"][0].as_str()?.to_owned()))
                .collect();
            Ok((!addresses.is_empty()).then_some(addresses))
        },
    )
    .await?;
    ensure!(
        endpoints == local,
        "endpoints {endpoints:?}, local pods {local:?}"
    );
    let client = pods
        .iter()
        .find(|pod| node_of(pod) == "rome-1")
        .map(name_of)
        .unwrap_or_default();
    let address = rome
        .kubectl(&[
            "-n",
            "mixed",
            "get",
            "service",
            "web",
            "-o",
            "jsonpath={.spec.clusterIP}",
        ])
        .await?;
    let ask = format!(
        "for i in $(seq 40); do printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 10 {address} 8000 | tail -1; done"
    );
    let answers = rome
        .kubectl(&["-n", "mixed", "exec", client, "--", "sh", "-c", &ask])
        .await?;
    ensure!(
        answers.lines().count() == 40 && answers.lines().all(|line| line == "right"),
        "answers: {answers}"
    );
    let remote = milan
        .ready_pods(
            &rome.remote_namespace("mixed", milan).await?,
            "app=web",
            pods.len() - local.len(),
        )
        .await?;
    let annotated = rome.pods("mixed", "app=web").await?;
    for there in &remote {
        let address = there
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.clone());
        let here = annotated
            .iter()
            .find(|pod| name_of(pod) == name_of(there))
            .and_then(|pod| {
                pod.metadata
                    .annotations
                    .clone()?
                    .get("liqo.io/remote-pod-ip")
                    .cloned()
            });
        ensure!(
            address == here,
            "the remote address {address:?} is shown as {here:?}"
        );
    }
    enable_network(&world).await?;
    rome.end_namespace("mixed").await
}

pub async fn a_namespace_that_exists_at_the_provider_is_not_taken_over(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let id = rome.cluster_id().await?;
    let taken = format!("taken-rome-{}", &id[..6]);
    milan.kubectl(&["create", "namespace", &taken]).await?;
    milan
        .kubectl(&["-n", &taken, "create", "configmap", "precious"])
        .await?;
    rome.kubectl(&["create", "namespace", "taken"]).await?;
    // The name with more of the cluster ID is free.
    rome.liqoctl(&[
        "offload",
        "namespace",
        "taken",
        "--pod-offloading-strategy",
        "Remote",
    ])
    .await?;
    let other = format!("taken-rome-{}", &id[..16]);
    rome.apply(&deployment("taken", "web", 1)).await?;
    rome.ready_pods("taken", "app=web", 1).await?;
    ensure!(
        milan.pods(&other, "app=web").await?.len() == 1,
        "no pod in {other}"
    );
    ensure!(
        milan.pods(&taken, "app=web").await?.is_empty(),
        "a pod in the namespace that was there before"
    );
    rome.delete_namespace("taken").await?;
    ensure!(
        milan
            .object(&["-n", &taken, "configmap", "precious"])
            .await?
            .is_some(),
        "the namespace that was there before was touched"
    );
    milan.delete_namespace(&taken).await
}

pub async fn pods_that_may_not_travel_show_why(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("refused", "Remote").await?;
    // The webhook keeps such a pod here, unless it names its node itself.
    let host = pod("refused", "host", "Always", "sleep 600").replace(
        "spec:\n",
        "spec:\n  hostNetwork: true\n  nodeName: milan\n  tolerations: [{ operator: Exists }]\n",
    );
    let privileged = pod("refused", "privileged", "Always", "sleep 600").replace(
        "    resources:",
        "    securityContext: { privileged: true }\n    resources:",
    );
    for (name, yaml, word) in [
        ("host", host, "hostNetwork"),
        ("privileged", privileged, "privileged"),
    ] {
        rome.apply(&yaml).await?;
        eventually(
            "the refusal is on the local pod",
            Duration::from_secs(30),
            || async {
                let pod = rome
                    .api::<Pod>("refused")
                    .get(name)
                    .await?
                    .status
                    .unwrap_or_default();
                let refused = |condition: &k8s_openapi::api::core::v1::PodCondition| {
                    condition.type_ == "liqo.io/Offloaded"
                        && condition.status == "False"
                        && condition
                            .message
                            .as_deref()
                            .unwrap_or_default()
                            .contains(word)
                };
                Ok((pod.phase.as_deref() == Some("Pending")
                    && pod.conditions.iter().flatten().any(refused))
                .then_some(()))
            },
        )
        .await?;
        let of_pod = format!("involvedObject.name={name},type=Warning");
        eventually(
            "an event tells of the refusal",
            Duration::from_secs(10),
            || async {
                let events = rome
                    .kubectl(&[
                        "-n",
                        "refused",
                        "get",
                        "events",
                        "--field-selector",
                        &of_pod,
                    ])
                    .await?;
                Ok(events.contains(word).then_some(()))
            },
        )
        .await?;
    }
    // A pod that sets the virtual node as its node, in a namespace that is not offloaded.
    rome.kubectl(&["create", "namespace", "stranger"]).await?;
    let sneaking = pod("stranger", "sneaking", "Always", "sleep 600").replace(
        "spec:\n",
        "spec:\n  nodeName: milan\n  tolerations: [{ operator: Exists }]\n",
    );
    rome.apply(&sneaking).await?;
    eventually(
        "the pod of a namespace that is not offloaded is refused",
        Duration::from_secs(30),
        || async {
            let pod = rome
                .api::<Pod>("stranger")
                .get("sneaking")
                .await?
                .status
                .unwrap_or_default();
            Ok(pod
                .conditions
                .iter()
                .flatten()
                .any(|condition| {
                    condition.type_ == "liqo.io/Offloaded" && condition.status == "False"
                })
                .then_some(()))
        },
    )
    .await?;
    rome.end_namespace("stranger").await?;
    rome.end_namespace("refused").await
}

pub async fn a_pod_that_no_provider_can_run_stays_at_home(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("homely", "Remote").await?;
    let host = "  hostNetwork: true\n  tolerations: [{ operator: Exists }]\n";
    rome.apply(
        &pod("homely", "host", "Always", "sleep 600").replace("spec:\n", &format!("spec:\n{host}")),
    )
    .await?;
    let pods = rome.ready_pods("homely", "app=host", 1).await?;
    ensure!(
        node_of(&pods[0]) == "rome-1",
        "it is on {}",
        node_of(&pods[0])
    );
    rome.end_namespace("homely").await
}

/// A pod that is created before its namespace is offloaded looks like one that was created while no
/// manager answered.
pub async fn a_pod_that_the_webhook_did_not_see_is_repaired_while_it_has_no_node(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    rome.kubectl(&["create", "namespace", "missed"]).await?;
    let at_peer = "  nodeSelector: { liqo.io/type: virtual-node }\n";
    rome.apply(
        &pod("missed", "early", "Always", "sleep 600")
            .replace("spec:\n", &format!("spec:\n{at_peer}")),
    )
    .await?;
    ensure!(node_of(&rome.api::<Pod>("missed").get("early").await?).is_empty());
    rome.liqoctl(&["offload", "namespace", "missed"]).await?;
    let pods = rome.ready_pods("missed", "app=early", 1).await?;
    ensure!(
        node_of(&pods[0]) == "milan",
        "it is on {}",
        node_of(&pods[0])
    );
    // The right to add a toleration is no right to change anything else.
    let manager = "--as=system:serviceaccount:liqo:liqo-controller-manager";
    let label = rome
        .try_kubectl(&[
            "-n",
            "missed",
            "label",
            "pod",
            "early",
            "changed=true",
            manager,
        ])
        .await?;
    ensure!(!label.success, "the manager could label a pod of a user");
    let nowhere = "  nodeSelector: { kubernetes.io/hostname: none }\n";
    rome.apply(
        &pod("missed", "stuck", "Always", "sleep 600")
            .replace("spec:\n", &format!("spec:\n{nowhere}")),
    )
    .await?;
    let add =
        r#"[{"op":"add","path":"/spec/tolerations/-","value":{"key":"spot","operator":"Exists"}}]"#;
    let another = rome
        .try_kubectl(&[
            "-n",
            "missed",
            "patch",
            "pod",
            "stuck",
            "--type=json",
            "-p",
            add,
            manager,
        ])
        .await?;
    ensure!(
        !another.success && another.stderr.contains("Liqo does not"),
        "another toleration: {another:?}"
    );
    rome.end_namespace("missed").await
}

/// A namespace with the label, a pod and a Deployment. Helm creates custom resources last.
async fn apply_one_file(
    rome: &Cluster,
    namespace: &str,
    strategy: &str,
    comes_last: bool,
) -> Result<()> {
    let labelled = json!({ "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "labels": { "liqo.io/scheduling-enabled": "true" } } });
    let offloading = json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
        "metadata": { "name": "offloading", "namespace": namespace }, "spec": { "podOffloadingStrategy": strategy } });
    let pods = format!(
        "{}---{}",
        pod(namespace, "alone", "Always", "sleep 600"),
        deployment(namespace, "web", 1)
    );
    let file = if comes_last {
        format!("{labelled}\n---{pods}---\n{offloading}")
    } else {
        format!("{labelled}\n---\n{offloading}\n---{pods}")
    };
    rome.apply(&file).await
}

pub async fn what_one_file_says_holds_from_the_first_pod_on(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    let tries = (0..20).map(|number| async move {
        let namespace = format!("one-file-{number}");
        let strategy = if number % 4 < 2 { "Remote" } else { "Local" };
        apply_one_file(rome, &namespace, strategy, number % 2 == 1).await?;
        eventually("both pods have a node", Duration::from_mins(1), || async {
            let pods: Vec<Pod> = rome
                .api::<Pod>(&namespace)
                .list(&ListParams::default())
                .await?
                .items;
            ensure!(pods.len() >= 2, "there are {} pods", pods.len());
            let placed = pods.iter().filter(|pod| !node_of(pod).is_empty()).count();
            let right = pods
                .iter()
                .filter(|pod| (node_of(pod) == "milan") == (strategy == "Remote"))
                .count();
            Ok((placed == pods.len()).then_some((pods.len(), right)))
        })
        .await
        .and_then(|counts| {
            ensure!(
                counts == (2, 2),
                "{namespace}, {strategy}: {} of {} pods are where they may be",
                counts.1,
                counts.0
            );
            Ok(())
        })?;
        rome.end_namespace(&namespace).await
    });
    // Twenty at once take all of a small machine, and the API server waits 3 s for the webhook.
    let tries: Vec<Result<()>> = stream::iter(tries).buffered(5).collect().await;
    tries.into_iter().collect()
}

pub async fn a_namespace_that_clusters_keep_for_themselves_is_refused_at_once(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    for namespace in ["default", "kube-public"] {
        let refused = rome
            .try_liqoctl(&["offload", "namespace", namespace])
            .await?;
        ensure!(
            !refused.success && refused.stderr.contains("use another namespace"),
            "{refused:?}"
        );
        ensure!(
            rome.items(&["-n", namespace, "namespaceoffloadings"])
                .await?
                .is_empty(),
            "something is left in {namespace}"
        );
    }
    Ok(())
}

pub async fn unoffloading_brings_pods_home_and_removes_the_remote_namespace(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("back", "Remote").await?;
    rome.apply(&deployment("back", "web", 2)).await?;
    rome.ready_pods("back", "app=web", 2).await?;
    let remote = rome.remote_namespace("back", milan).await?;
    let asked = rome
        .try_liqoctl(&["unoffload", "namespace", "back"])
        .await?;
    ensure!(
        !asked.success && asked.stderr.contains("--yes"),
        "without a terminal it must ask for --yes: {asked:?}"
    );
    rome.liqoctl(&["unoffload", "namespace", "back", "--yes"])
        .await?;
    let pods = rome.ready_pods("back", "app=web", 2).await?;
    ensure!(
        pods.iter().all(|pod| node_of(pod) == "rome-1"),
        "pods are still away"
    );
    eventually(
        "the remote namespace is gone",
        Duration::from_mins(1),
        || async {
            Ok(Api::<Namespace>::all(milan.client.clone())
                .get_opt(&remote)
                .await?
                .is_none()
                .then_some(()))
        },
    )
    .await?;
    rome.end_namespace("back").await
}

pub async fn a_daemon_set_has_no_pod_on_a_virtual_node(world: Arc<World>) -> Result<()> {
    let rome = &world.rome;
    rome.offloaded_namespace("daemons", "LocalAndRemote")
        .await?;
    let set = deployment("daemons", "agent", 1)
        .replace("kind: Deployment", "kind: DaemonSet")
        .replace("  replicas: 1\n", "");
    rome.apply(&set).await?;
    eventually(
        "one pod runs, on the real node",
        Duration::from_secs(40),
        || async {
            let set = rome
                .object(&["-n", "daemons", "daemonset", "agent"])
                .await?
                .unwrap_or_default();
            Ok((set["status"]["numberReady"] == json!(1)).then_some(()))
        },
    )
    .await?;
    let pods = rome.pods("daemons", "app=agent").await?;
    ensure!(pods.iter().filter(|pod| node_of(pod) == "rome-1").count() == 1);
    let remote = rome.remote_namespace("daemons", &world.milan).await?;
    ensure!(
        world.milan.pods(&remote, "app=agent").await?.is_empty(),
        "a pod of a DaemonSet travelled"
    );
    rome.end_namespace("daemons").await
}
