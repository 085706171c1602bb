//! Fake nodes: creates, changes and removes their objects as the specification says.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, NodeStatus, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_quantity::ResourceList;
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    node_kind::{FAKE_NODE, NODE_KIND_LABEL},
    program::KUBERNETES_VERSION,
    spec::FakeNodes,
};

/// Addresses of fake nodes: the range for network benchmarks (RFC 2544), where nothing answers.
pub(crate) const FAKE_NODE_RANGE: &str = "198.18.0.0/15";
const FIRST_FAKE_ADDRESS: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// Requests in parallel.
const AT_ONCE: usize = 16;
/// How long the scheduler may use a node that is gone.
const SCHEDULER_LAG: Duration = Duration::from_secs(1);

/// Changes to the fake nodes of a cluster.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    create: Vec<Value>,
    /// Name, patch of the spec, patch of the status.
    update: Vec<(String, Option<Value>, Option<Value>)>,
    remove: Vec<String>,
}

/// The name of a cluster's fake node; the first number is 1.
pub(crate) fn name(cluster: &str, number: u16) -> String {
    format!("{cluster}-fake-{number}")
}

/// The number in the name of one of our fake nodes. Users may have created others.
fn number(cluster: &str, name: &str) -> Option<u16> {
    let number = name
        .strip_prefix(cluster)?
        .strip_prefix("-fake-")?
        .parse()
        .ok()?;
    (self::name(cluster, number) == name).then_some(number)
}

pub(crate) fn is_fake(node: &Node) -> bool {
    node.labels()
        .get(NODE_KIND_LABEL)
        .is_some_and(|kind| kind == FAKE_NODE)
}

fn fake() -> ListParams {
    ListParams::default().labels(&format!("{NODE_KIND_LABEL}={FAKE_NODE}"))
}

fn plan(cluster: &str, wanted: &FakeNodes, present: &[Node]) -> Plan {
    let mut ours: BTreeMap<u16, &Node> = present
        .iter()
        .filter(|node| is_fake(node))
        .filter_map(|node| Some((number(cluster, &node.name_any())?, node)))
        .collect();
    let surplus = ours.split_off(&(wanted.count.saturating_add(1)));
    let update = ours.values().filter_map(|present| {
        let patches = (
            specification_patch(present, wanted.taint),
            status_patch(present, &wanted.resources),
        );
        (patches.0.is_some() || patches.1.is_some())
            .then(|| (present.name_any(), patches.0, patches.1))
    });
    Plan {
        update: update.collect(),
        create: (1..=wanted.count)
            .filter(|number| !ours.contains_key(number))
            .map(|number| node(cluster, number, wanted))
            .collect(),
        remove: surplus.values().map(|node| node.name_any()).collect(),
    }
}

fn node(cluster: &str, number: u16, wanted: &FakeNodes) -> Value {
    let name = name(cluster, number);
    let address = Ipv4Addr::from(FIRST_FAKE_ADDRESS + u32::from(number));
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            // kwok's examples select nodes by the last label and the annotation.
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture,
                NODE_KIND_LABEL: FAKE_NODE, "type": "kwok",
            },
            "annotations": { NODE_KIND_LABEL: FAKE_NODE },
        },
        "spec": if wanted.taint { json!({ "taints": [taint()] }) } else { json!({}) },
        "status": {
            "capacity": wanted.resources,
            "allocatable": wanted.resources,
            "addresses": [{ "type": "InternalIP", "address": address }, { "type": "Hostname", "address": name }],
            "nodeInfo": {
                "architecture": architecture, "operatingSystem": "linux", "osImage": "fake", "kubeletVersion": KUBERNETES_VERSION,
                "bootID": "", "machineID": "", "systemUUID": "", "kernelVersion": "", "kubeProxyVersion": "", "containerRuntimeVersion": "",
            },
        },
    })
}

fn taint() -> Value {
    json!({ "key": NODE_KIND_LABEL, "value": FAKE_NODE, "effect": "NoSchedule" })
}

/// Adds or removes our taint; other taints stay.
fn specification_patch(present: &Node, tainted: bool) -> Option<Value> {
    let taints = present
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let is_ours = |key: &str| key == NODE_KIND_LABEL;
    if taints.iter().any(|taint| is_ours(&taint.key)) == tainted {
        return None;
    }
    let mut kept: Vec<Value> = taints
        .iter()
        .filter(|taint| !is_ours(&taint.key))
        .map(|taint| json!(taint))
        .collect();
    kept.extend(tainted.then(taint));
    Some(json!({ "spec": { "taints": kept } }))
}

fn status_patch(present: &Node, wanted: &ResourceList) -> Option<Value> {
    let status = present.status.clone().unwrap_or_default();
    if capacity(&status) == *wanted && allocatable(&status) == *wanted {
        return None;
    }
    let mut resources = json!(wanted);
    for name in status
        .capacity
        .iter()
        .chain(&status.allocatable)
        .flat_map(BTreeMap::keys)
    {
        if !wanted.contains(name) {
            resources[name] = Value::Null;
        }
    }
    Some(json!({ "status": { "capacity": resources, "allocatable": resources } }))
}

fn capacity(status: &NodeStatus) -> ResourceList {
    serde_json::from_value(json!(status.capacity.clone().unwrap_or_default())).unwrap_or_default()
}

fn allocatable(status: &NodeStatus) -> ResourceList {
    serde_json::from_value(json!(status.allocatable.clone().unwrap_or_default()))
        .unwrap_or_default()
}

/// Creates, changes and removes fake nodes until they are as wanted. kwok then makes them ready.
pub(crate) async fn ensure(cluster: &str, client: &Client, wanted: &FakeNodes) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let present = nodes
        .list(&fake())
        .await
        .map_err(Error::kubernetes("list the fake nodes", cluster))?;
    let plan = plan(cluster, wanted, &present.items);
    remove(cluster, client, &plan.remove).await?;
    let each = |object: Value| {
        let nodes = nodes.clone();
        async move {
            let failed = || {
                Error::kubernetes(
                    format!("create node {}", object["metadata"]["name"]),
                    cluster,
                )
            };
            let node: Node = serde_json::from_value(object.clone())
                .map_err(kube::Error::SerdeError)
                .map_err(failed())?;
            match nodes.create(&PostParams::default(), &node).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                created => created.map(drop).map_err(failed()),
            }
        }
    };
    stream::iter(plan.create)
        .map(each)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    let each = |(name, specification, status): (String, Option<Value>, Option<Value>)| {
        let nodes = nodes.clone();
        async move {
            let failed = || Error::kubernetes(format!("change node {name}"), cluster);
            if let Some(patch) = specification {
                nodes
                    .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .map_err(failed())?;
            }
            if let Some(patch) = status {
                nodes
                    .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                    .map_err(failed())?;
            }
            Ok(())
        }
    };
    stream::iter(plan.update)
        .map(each)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Removes node objects, then their pods: no kubelet will end these.
pub(crate) async fn remove(cluster: &str, client: &Client, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let each = |name: String| {
        let nodes = nodes.clone();
        async move {
            let failed = Error::kubernetes(format!("delete node {name}"), cluster);
            gone(nodes.delete(&name, &DeleteParams::default()).await).map_err(failed)
        }
    };
    stream::iter(names.to_vec())
        .map(each)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    // Until the scheduler notices, it may bind more pods there, which the controller manager would
    // remove only after a minute.
    let deleted = Instant::now();
    loop {
        let each =
            |name: String| async move { delete_pods(cluster, client, &name, 0, |_| true).await };
        let found: Vec<usize> = stream::iter(names.to_vec())
            .map(each)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        if found.into_iter().all(|count| count == 0) && deleted.elapsed() > SCHEDULER_LAG {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Deletes the chosen pods of a node with a grace period of `seconds`; returns how many there were.
pub(crate) async fn delete_pods(
    cluster: &str,
    client: &Client,
    node: &str,
    seconds: u32,
    chosen: fn(&Pod) -> bool,
) -> Result<usize> {
    let all: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = all.list(&on_node).await.map_err(Error::kubernetes(
        format!("list the pods of {node}"),
        cluster,
    ))?;
    let parameters = DeleteParams {
        grace_period_seconds: Some(seconds),
        ..DeleteParams::default()
    };
    // A pod without grace period left waits for a finalizer of somebody else.
    let has_time = |pod: &Pod| pod.metadata.deletion_grace_period_seconds != Some(0);
    let chosen: Vec<_> = pods
        .items
        .iter()
        .filter(|pod| has_time(pod) && chosen(pod))
        .collect();
    for pod in &chosen {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let failed = Error::kubernetes(format!("delete pod {} of {node}", pod.name_any()), cluster);
        gone(pods.delete(&pod.name_any(), &parameters).await).map_err(failed)?;
    }
    Ok(chosen.len())
}

fn gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// How many fake nodes a cluster has, and how many of them are ready.
pub(crate) fn count(cluster: &str, nodes: &[Node]) -> (usize, usize) {
    let ours = nodes
        .iter()
        .filter(|node| is_fake(node) && number(cluster, &node.name_any()).is_some());
    ours.fold((0, 0), |(found, ready), node| {
        (found + 1, ready + usize::from(is_ready(node)))
    })
}

pub(crate) async fn are_ready(cluster: &str, client: &Client, wanted: u16) -> bool {
    // From the API server's cache, because this is called repeatedly.
    let nodes: Api<Node> = Api::all(client.clone());
    let listed = nodes.list(&fake().match_any()).await;
    listed.is_ok_and(|nodes| {
        count(cluster, &nodes.items) == (usize::from(wanted), usize::from(wanted))
    })
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten();
    conditions
        .filter(|condition| condition.type_ == "Ready")
        .any(|condition| condition.status == "True")
}

/// Sets a label of a fake node, or removes it if there is no value.
pub(crate) async fn label(
    cluster: &str,
    client: &Client,
    name: &str,
    key: &str,
    value: Option<&str>,
) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    require_fake(cluster, &nodes, name).await?;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { key: value } } }));
    let written = nodes.patch(name, &PatchParams::default(), &patch).await;
    written
        .map(drop)
        .map_err(Error::kubernetes(format!("label node {name}"), cluster))
}

/// Sets the resources of a fake node. Resources that are not named are removed.
pub(crate) async fn set_resources(
    cluster: &str,
    client: &Client,
    name: &str,
    wanted: &ResourceList,
) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = require_fake(cluster, &nodes, name).await?;
    let Some(patch) = status_patch(&node, wanted) else {
        return Ok(());
    };
    let written = nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    written.map(drop).map_err(Error::kubernetes(
        format!("set the resources of node {name}"),
        cluster,
    ))
}

async fn require_fake(cluster: &str, nodes: &Api<Node>, name: &str) -> Result<Node> {
    let found = nodes
        .get_opt(name)
        .await
        .map_err(Error::kubernetes(format!("read node {name}"), cluster))?;
    found.filter(is_fake).ok_or_else(|| Error::NoSuchNode {
        cluster: cluster.to_owned(),
        kind: "fake node",
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::fake_node_resources;

    fn wanted(count: u16) -> FakeNodes {
        FakeNodes {
            count,
            ..FakeNodes::default()
        }
    }

    fn present(count: u16, wanted: &FakeNodes) -> Vec<Node> {
        (1..=count)
            .map(|number| serde_json::from_value(node("rome", number, wanted)).unwrap())
            .collect()
    }

    #[test]
    fn fake_nodes_that_are_as_wanted_do_not_change() {
        let with = FakeNodes {
            resources: fake_node_resources(["nvidia.com/gpu=8".parse().unwrap()]),
            taint: true,
            count: 3,
        };
        assert_eq!(plan("rome", &with, &present(3, &with)), Plan::default());
    }

    #[test]
    fn surplus_nodes_are_removed_from_the_end_and_gaps_are_filled() {
        let nodes = present(5, &wanted(5));
        assert_eq!(
            plan("rome", &wanted(3), &nodes).remove,
            ["rome-fake-4", "rome-fake-5"]
        );
        let plan = plan("rome", &wanted(5), &[&nodes[..1], &nodes[2..4]].concat());
        assert!(
            plan.create
                .iter()
                .map(|node| &node["metadata"]["name"])
                .eq(["rome-fake-2", "rome-fake-5"])
        );
        assert!(plan.remove.is_empty());
    }

    #[test]
    fn nodes_that_somebody_else_created_do_not_change() {
        let mut nodes = present(2, &wanted(2));
        nodes[0].metadata.name = Some("rome-fake-01".to_owned());
        nodes[1].metadata.labels = None;
        assert_eq!(plan("rome", &wanted(0), &nodes), Plan::default());
        assert_eq!(count("rome", &nodes), (0, 0));
    }

    #[test]
    fn a_resource_that_is_no_longer_wanted_is_removed() {
        let nodes = present(
            1,
            &FakeNodes {
                resources: fake_node_resources(["nvidia.com/gpu=8".parse().unwrap()]),
                ..wanted(1)
            },
        );
        let plan = plan("rome", &wanted(1), &nodes);
        let status = plan.update[0].2.as_ref().unwrap();
        assert!(status["status"]["allocatable"]["nvidia.com/gpu"].is_null());
        assert_eq!(status["status"]["capacity"]["cpu"], "32");
        assert_eq!(plan.update[0].1, None);
    }

    #[test]
    fn only_our_taint_is_added_and_removed() {
        let mut nodes = present(1, &wanted(1));
        let foreign = json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoSchedule" }]);
        nodes[0].spec.as_mut().unwrap().taints = serde_json::from_value(foreign).unwrap();
        let with = plan(
            "rome",
            &FakeNodes {
                taint: true,
                ..wanted(1)
            },
            &nodes,
        );
        let taints = with.update[0].1.as_ref().unwrap()["spec"]["taints"].clone();
        assert_eq!(taints.as_array().unwrap().len(), 2);
        nodes[0].spec.as_mut().unwrap().taints = serde_json::from_value(taints).unwrap();
        let without = plan("rome", &wanted(1), &nodes);
        assert_eq!(
            without.update[0].1.as_ref().unwrap()["spec"]["taints"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn no_two_fake_nodes_share_an_address() {
        let address =
            |number| node("rome", number, &wanted(1))["status"]["addresses"][0]["address"].clone();
        assert_eq!(address(1), "198.18.0.1");
        assert_eq!(address(u16::MAX), "198.18.255.255");
    }
}
