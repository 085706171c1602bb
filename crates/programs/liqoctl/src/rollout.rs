//! The rollout of `liqo-fabric`, the `DaemonSet` of the agent on each node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use parking_lot::Mutex;

use crate::{
    cluster::{Cluster, ExplainFailure as _, is_absent},
    image_pulls::{FailedPulls, MissingImage, PullOutlook, missing_images_of_version},
    lists::{self, NodeSelection},
    manifests::{FABRIC, FABRIC_NAMESPACE},
    readiness,
    wait::{PollResult, final_error, until},
};

/// The argument with which the agent removes its changes from the node.
pub const CLEAR: &str = "--clear";

/// The progress of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// Whether it is complete on every Ready node.
    pub is_done: bool,
    /// Nodes on which it is not complete, and why.
    pub waiting: BTreeMap<String, String>,
    /// Images that nodes do not have.
    pub missing_images: Vec<MissingImage>,
    /// Nodes that are not Ready. The rollout does not wait for them.
    pub away: BTreeSet<String>,
}

impl Rollout {
    fn describe(&self) -> String {
        match self.waiting.first_key_value() {
            None => "its pods are starting".to_owned(),
            Some((node, why)) if self.waiting.len() == 1 => format!("node {node}: {why}"),
            Some((node, why)) => format!(
                "node {node}: {why}; {} more nodes wait",
                self.waiting.len() - 1
            ),
        }
    }
}

/// The form of the agent that is rolled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricForm {
    Normal,
    /// It cleans up its node.
    Clearing,
}

/// Waits until the current version of the agent is ready in this form on every Ready node. Fails
/// early if a node cannot get the image, unless the agent cleans up: other nodes go on with that.
pub async fn wait_for_rollout(
    cluster: &Cluster,
    timeout: Duration,
    form: FabricForm,
    news: impl FnMut(&str),
) -> anyhow::Result<Rollout> {
    let pulls = Mutex::new(FailedPulls::default());
    until(
        "liqo-fabric is ready on every node",
        timeout,
        news,
        || async {
            let rollout = read_rollout(cluster, form).await?;
            if rollout.is_done {
                return Ok(PollResult::Done(rollout));
            }
            let outlook = match form {
                FabricForm::Normal => pulls.lock().observe(rollout.missing_images.clone()),
                FabricForm::Clearing => PullOutlook::NothingMissing,
            };
            match outlook {
                PullOutlook::Hopeless(text) => Err(final_error(text)),
                PullOutlook::TriedAgain(text) => Ok(PollResult::NotYet(text)),
                PullOutlook::NothingMissing => Ok(PollResult::NotYet(rollout.describe())),
            }
        },
    )
    .await
}

/// Reads the current progress.
pub async fn read_rollout(cluster: &Cluster, form: FabricForm) -> anyhow::Result<Rollout> {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), FABRIC_NAMESPACE);
    let set = sets.get(FABRIC).await.doing("read DaemonSet liqo-fabric")?;
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={FABRIC}"));
    let pods = lists::list_pods_of_namespace(cluster, FABRIC_NAMESPACE, &ours).await?;
    Ok(judge_rollout(
        &set,
        &pods,
        &nodes_not_ready(cluster).await?,
        form,
    ))
}

/// Nodes of this cluster itself that are not Ready.
pub async fn nodes_not_ready(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let nodes = lists::list_nodes(cluster, NodeSelection::Own).await?;
    Ok(nodes
        .iter()
        .filter(|node| !readiness::node(node))
        .map(Node::name_any)
        .collect())
}

/// Force-deletes the pods on nodes that are not Ready, because their kubelets cannot confirm the
/// end.
pub async fn forget_pods(
    cluster: &Cluster,
    namespace: &str,
    away: &BTreeSet<String>,
) -> anyhow::Result<()> {
    if away.is_empty() {
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    for pod in lists::list_pods_of_namespace(cluster, namespace, &ListParams::default()).await? {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        if !node.is_some_and(|node| away.contains(node)) {
            continue;
        }
        match pods
            .delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
            .await
        {
            Err(error) if is_absent(&error) => {}
            deleted => deleted
                .map(drop)
                .doing(format!("remove pod {namespace}/{}", pod.name_any()))?,
        }
    }
    Ok(())
}

fn judge_rollout(
    set: &DaemonSet,
    pods: &[Pod],
    away: &BTreeSet<String>,
    form: FabricForm,
) -> Rollout {
    let (gone, present): (Vec<&Pod>, Vec<&Pod>) = pods
        .iter()
        .partition(|pod| away.contains(&node_of_pod(pod)));
    let unready = present.iter().filter_map(|pod| {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
        let is_clearing = spec
            .containers
            .iter()
            .any(|one| one.args.iter().flatten().any(|argument| argument == CLEAR));
        let is_former = form == FabricForm::Clearing && !is_clearing;
        (!readiness::pod(pod) || is_former).then(|| {
            (
                node_of_pod(pod),
                readiness::why_pod_not_ready(status).unwrap_or_else(|| "not ready yet".to_owned()),
            )
        })
    });
    let waiting: BTreeMap<String, String> = unready.collect();
    let template = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let containers = template.map(|spec| spec.containers.as_slice());
    let missing_images =
        missing_images_of_version(present.iter().copied(), containers.unwrap_or_default());
    let is_done = set.status.as_ref().is_some_and(|status| {
        let wanted = pod_count(status.desired_number_scheduled).saturating_sub(gone.len());
        status.observed_generation >= set.metadata.generation
            && pod_count(status.updated_number_scheduled.unwrap_or(0)) >= wanted
            && present.len() >= wanted
            && waiting.is_empty()
    });
    Rollout {
        is_done,
        waiting,
        missing_images,
        away: away.clone(),
    }
}

fn pod_count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn node_of_pod(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_else(|| "none yet".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(observed: i64, updated: i32) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": { "generation": 2 },
            "status": {
                "observedGeneration": observed, "updatedNumberScheduled": updated, "desiredNumberScheduled": 2,
                "currentNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 0,
            },
        }))
        .unwrap()
    }

    fn pod(node: &str, ready: bool, arguments: &[&str]) -> Pod {
        serde_json::from_value(json!({
            "spec": { "nodeName": node, "containers": [{ "name": "c", "args": arguments }] },
            "status": { "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        }))
        .unwrap()
    }

    #[test]
    fn it_is_done_only_when_each_node_has_the_present_form() {
        let none = BTreeSet::new();
        let ready = [pod("n1", true, &[]), pod("n2", true, &[])];
        assert!(judge_rollout(&set(2, 2), &ready, &none, FabricForm::Normal).is_done);
        assert!(!judge_rollout(&set(1, 2), &ready, &none, FabricForm::Normal).is_done);
        assert!(!judge_rollout(&set(2, 1), &ready, &none, FabricForm::Normal).is_done);
        assert!(!judge_rollout(&set(2, 2), &ready[..1], &none, FabricForm::Normal).is_done);
        assert!(!judge_rollout(&DaemonSet::default(), &[], &none, FabricForm::Normal).is_done);
        let starting = judge_rollout(
            &set(2, 2),
            &[pod("n1", true, &[]), pod("n2", false, &[])],
            &none,
            FabricForm::Normal,
        );
        assert!(
            !starting.is_done && starting.describe().contains("node n2: "),
            "{starting:?}"
        );
    }

    #[test]
    fn a_node_that_is_away_holds_up_nobody_and_is_named() {
        let away = BTreeSet::from(["n2".to_owned()]);
        let rollout = judge_rollout(
            &set(2, 1),
            &[pod("n1", true, &[]), pod("n2", false, &[])],
            &away,
            FabricForm::Normal,
        );
        assert!(rollout.is_done && rollout.away == away);
    }

    #[test]
    fn an_image_that_a_ready_node_cannot_get_is_told_and_that_of_a_node_that_is_away_is_not() {
        let set: DaemonSet = serde_json::from_value(json!({ "spec": { "selector": {},
            "template": { "spec": { "containers": [{ "name": "c", "image": "fabric:2" }] } } } }))
        .unwrap();
        let without_image = |node: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": format!("liqo-fabric-{node}"), "namespace": FABRIC_NAMESPACE },
                "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "fabric:2" }] },
                "status": { "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "waiting": { "reason": "ErrImagePull", "message": "not found" } } }] },
            }))
            .unwrap()
        };
        let away = BTreeSet::from(["n2".to_owned()]);
        let pods = [without_image("n1"), without_image("n2")];
        let missing = judge_rollout(&set, &pods, &away, FabricForm::Normal).missing_images;
        let pods: Vec<&str> = missing.iter().map(|missing| missing.pod.as_str()).collect();
        assert_eq!(pods, ["liqo-fabric/liqo-fabric-n1"]);
    }

    #[test]
    fn a_node_is_cleared_only_by_the_form_that_clears() {
        let none = BTreeSet::new();
        let rollout = judge_rollout(
            &set(2, 2),
            &[pod("n1", true, &[CLEAR]), pod("n2", true, &[])],
            &none,
            FabricForm::Clearing,
        );
        assert_eq!(rollout.waiting.keys().collect::<Vec<_>>(), ["n2"]);
        assert!(
            judge_rollout(
                &set(2, 2),
                &[pod("n1", true, &[CLEAR]), pod("n2", true, &[CLEAR])],
                &none,
                FabricForm::Clearing
            )
            .is_done
        );
    }
}
