//! `liqoctl move pods`: Kubernetes cannot move a running pod, so this evicts it, and its controller
//! creates another one elsewhere.
//!
//! The user's objects do not change. Where the new pods go follows from which virtual nodes are
//! cordoned for the time of the move.

pub mod decide;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use anyhow::bail;
use clap::{ArgGroup, Args};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    apps::v1::{ReplicaSet, StatefulSet},
    core::v1::{Pod, ReplicationController},
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};

use liqo_api::ResourceList;
use liqo_offloading_rules::node::priced::default_charge_on_node;

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    evict::{
        self,
        cordon::{UncordonWhen, with_cordon},
        decide::{EvictionNode, PodToEvict, first_few_names},
    },
    lists, offload, output,
    progress::StepProgress,
    token, unpeer,
    wait::{PollResult, wait_until_every},
};
use decide::{MoveFacts, MovePlan, MoveRequest, MovedPod, PeerNodes, PodOwner, WantedReplicas};

/// Controllers that are read at the same time.
const CONCURRENCY: usize = 16;

/// Options of `move pods`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("where").required(true).multiple(true).args(["from", "to"]))]
pub struct MoveOptions {
    /// The pods [default: all of the namespace]
    #[arg(value_name = "POD")]
    pub names: Vec<String>,
    /// Namespace of the pods [default: as kubectl]
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Label selector for pods, as in kubectl
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    pub selector: Option<String>,
    /// Name or ID of a peer: only pods that run there move. With only this flag they may go to any
    /// other cluster, and to this one
    #[arg(long, value_name = "CLUSTER")]
    pub from: Option<String>,
    /// Name or ID of the peer to which they move. Only with strategy `Remote`, otherwise the
    /// scheduler may choose this cluster
    #[arg(long, value_name = "CLUSTER")]
    pub to: Option<String>,
    /// Also end pods that no controller creates again
    #[arg(long)]
    pub force: bool,
    /// Only print what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// How long to wait until the pods have left, and then until the new ones are ready
    #[arg(long, default_value = "5m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

impl MoveOptions {
    /// The namespace of the pods; without the flag, that of the kubeconfig's context.
    fn namespace_in<'a>(&'a self, cluster: &'a Cluster) -> &'a str {
        self.namespace
            .as_deref()
            .unwrap_or_else(|| cluster.client.default_namespace())
    }
}

/// Plans a move. Changes nothing.
pub async fn plan_move(cluster: &Cluster, options: &MoveOptions) -> anyhow::Result<MovePlan> {
    let (from, to) = (
        peer_with_nodes(cluster, options.from.as_deref()).await?,
        peer_with_nodes(cluster, options.to.as_deref()).await?,
    );
    let (nodes, pods) = (
        evict::virtual_nodes(cluster).await?,
        requested_pods(cluster, options).await?,
    );
    let offloading = offload::present_offloading(cluster, options.namespace_in(cluster)).await?;
    let request = MoveRequest {
        namespace: options.namespace_in(cluster),
        names: &options.names,
        from: from.as_ref(),
        to: to.as_ref(),
        force: options.force,
    };
    let free = free_resources(cluster, &nodes, &decide::target_nodes(&request, &nodes)).await?;
    decide::plan_moves(
        &request,
        &MoveFacts {
            offloading: offloading.as_ref(),
            nodes: &nodes,
            pods: &pods,
            free: &free,
        },
    )
}

/// Free resources of these virtual nodes. Nodes whose pods the user may not read are missing.
async fn free_resources(
    cluster: &Cluster,
    nodes: &[EvictionNode],
    wanted: &BTreeSet<String>,
) -> anyhow::Result<BTreeMap<String, ResourceList>> {
    let mut all = BTreeMap::new();
    for node in nodes.iter().filter(|node| wanted.contains(&node.name)) {
        let found = lists::list_pods_on_node(cluster, &node.name).await;
        let Some(found) = lists::if_allowed(found)? else {
            continue;
        };
        let used = found.into_iter().filter_map(|pod| {
            Some(default_charge_on_node(
                pod.metadata.generation,
                pod.spec?,
                &pod.status.unwrap_or_default(),
            ))
        });
        all.insert(
            node.name.clone(),
            node.allocatable
                .saturating_sub(&used.fold(ResourceList::new(), |sum, one| sum + &one)),
        );
    }
    Ok(all)
}

async fn peer_with_nodes(
    cluster: &Cluster,
    name: Option<&str>,
) -> anyhow::Result<Option<PeerNodes>> {
    let Some(name) = name else { return Ok(None) };
    let foreign = unpeer::peer_by_name(cluster, name).await?;
    let nodes = unpeer::virtual_nodes_of(cluster, &foreign.spec.cluster_id).await?;
    let name = foreign.name_any();
    if nodes.is_empty() {
        bail!("{name} has no virtual node: this cluster borrows nothing from it");
    }
    Ok(Some(PeerNodes { name, nodes }))
}

async fn requested_pods(cluster: &Cluster, options: &MoveOptions) -> anyhow::Result<Vec<Pod>> {
    let selected = options
        .selector
        .as_deref()
        .map_or_else(ListParams::default, |selector| {
            ListParams::default().labels(selector)
        });
    lists::list_pods_of_namespace(cluster, options.namespace_in(cluster), &selected).await
}

/// Moves the pods, and waits until those that replace them are ready. The virtual nodes that were
/// cordoned for that are uncordoned, even after a failure or an interruption.
pub async fn move_planned_pods(
    cluster: &Cluster,
    plan: &MovePlan,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<Vec<MovedPod>> {
    // Pods that are created from now on may replace those that move.
    let everything = ListParams::default();
    let known =
        lists::list_pod_metadata_of_namespace(cluster, &plan.namespace, &everything).await?;
    let known = known.iter().filter_map(kube::ResourceExt::uid).collect();
    let moved = Box::pin(async {
        evict::evict_until_gone(cluster, "Evicting the pods", timeout, progress, || {
            planned_pods_left(cluster, plan)
        })
        .await?;
        let step = "Waiting for the new pods";
        let ready = wait_until_every(
            evict::POLL_INTERVAL,
            "the new pods are ready",
            timeout,
            |text| progress.message(step, text),
            || async {
                let pods =
                    lists::list_pods_of_namespace(cluster, &plan.namespace, &everything).await?;
                let mut moved = decide::match_replacements(plan, &known, &pods);
                let wanted = count_wanted_pods(
                    cluster,
                    &plan.namespace,
                    decide::owners_that_wait(plan, &moved),
                )
                .await?;
                decide::skip_needless_waits(plan, &mut moved, &wanted, &pods);
                Ok(decide::describe_missing(&moved)
                    .map_or(PollResult::Done(moved), PollResult::NotYet))
            },
        );
        progress.run_step(step, ready).await
    });
    with_cordon(cluster, &plan.cordoned_nodes, UncordonWhen::Always, moved).await
}

/// The pods of the plan that have not left yet, see [`evict::that_can_end`].
async fn planned_pods_left(cluster: &Cluster, plan: &MovePlan) -> anyhow::Result<Vec<PodToEvict>> {
    let nodes: HashMap<&str, &str> = plan
        .pods
        .iter()
        .map(|one| (one.uid.as_str(), one.node.as_str()))
        .collect();
    let unfinished = ListParams::default().fields(lists::UNFINISHED_PODS);
    let pods = lists::list_pod_metadata_of_namespace(cluster, &plan.namespace, &unfinished).await?;
    let planned = pods
        .iter()
        .filter_map(|pod| PodToEvict::from_node(pod, nodes.get(pod.metadata.uid.as_deref()?)?));
    evict::that_can_end(cluster, planned.collect()).await
}

/// Number of pods that each controller wants, by UID. A kind that liqoctl does not know, or that
/// the user may not read, is missing.
async fn count_wanted_pods(
    cluster: &Cluster,
    namespace: &str,
    owners: Vec<PodOwner>,
) -> anyhow::Result<WantedReplicas> {
    let requests = owners.into_iter().map(|owner| async move {
        let wanted = wanted_by(cluster, namespace, &owner).await?;
        anyhow::Ok(wanted.map(|wanted| (owner.uid, wanted)))
    });
    futures::stream::iter(requests)
        .buffer_unordered(CONCURRENCY)
        .try_filter_map(|one| async move { Ok(one) })
        .try_collect()
        .await
}

async fn wanted_by(
    cluster: &Cluster,
    namespace: &str,
    owner: &PodOwner,
) -> anyhow::Result<Option<u64>> {
    let resource = match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("apps/v1", "ReplicaSet") => ApiResource::erase::<ReplicaSet>(&()),
        ("apps/v1", "StatefulSet") => ApiResource::erase::<StatefulSet>(&()),
        ("v1", "ReplicationController") => ApiResource::erase::<ReplicationController>(&()),
        _ => return Ok(None),
    };
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), namespace, &resource);
    match api.get_opt(&owner.name).await {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        found => Ok(Some(decide::wanted_replicas(
            owner,
            found
                .doing(format!("read {} {}", owner.kind, owner.name))?
                .as_ref(),
        ))),
    }
}

/// The question to ask first.
pub fn question_before_move(plan: &MovePlan) -> String {
    let pods: Vec<&str> = plan.pods.iter().map(|one| one.pod.as_str()).collect();
    let lost: Vec<&str> = plan
        .pods
        .iter()
        .filter(|one| one.controller.is_none())
        .map(|one| one.pod.as_str())
        .collect();
    let nodes: Vec<&String> = plan.cordoned_nodes.iter().collect();
    let staying: Vec<&str> = plan.staying.iter().map(|one| one.pod.as_str()).collect();
    let what = format!(
        "This evicts pods of namespace {}, as disruption budgets allow: {}.",
        plan.namespace,
        first_few_names(&pods)
    );
    let lost = (!lost.is_empty()).then(|| {
        format!(
            "No controller creates these again: {}.",
            first_few_names(&lost)
        )
    });
    let cordoned = (!nodes.is_empty()).then(|| {
        format!(
            "Until the new pods are ready, these nodes take no new pods of any namespace: {}.",
            first_few_names(&nodes)
        )
    });
    let stay = (!staying.is_empty()).then(|| {
        format!(
            "These stay, `--dry-run` says why: {}.",
            first_few_names(&staying)
        )
    });
    [
        Some(what),
        stay,
        lost,
        cordoned,
        Some("Continue?".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join(" ")
}

/// The planned move, as text for people.
pub fn render_planned_move(plan: &MovePlan) -> String {
    let mut lines = Vec::new();
    if plan.pods.is_empty() {
        lines.push(format!(
            "There is no pod to move in namespace {}.",
            plan.namespace
        ));
    } else {
        lines.push(output::format_table(
            &["POD", "NODE", "CONTROLLER"],
            plan.pods.iter().map(planned_row),
        ));
        let nodes: Vec<&str> = plan.cordoned_nodes.iter().map(String::as_str).collect();
        if !nodes.is_empty() {
            lines.push(format!("Cordoned meanwhile: {}.", nodes.join(", ")));
        }
    }
    if !plan.staying.is_empty() {
        lines.push(format!(
            "{} of {} pods move.",
            plan.pods.len(),
            plan.pods.len() + plan.staying.len()
        ));
    }
    lines.extend(reasons_to_stay(plan));
    lines.join("\n")
}

fn planned_row(one: &decide::PlannedEviction) -> Vec<String> {
    let controller = one
        .controller
        .as_ref()
        .map(|owner| format!("{}/{}", owner.kind, owner.name));
    vec![
        one.pod.clone(),
        one.node.clone(),
        controller.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// Reasons why pods that were asked for stay.
fn reasons_to_stay(plan: &MovePlan) -> impl Iterator<Item = String> {
    plan.staying
        .iter()
        .map(|one| format!("Pod {} stays: {}.", one.pod, one.reason))
}

/// The result as text for people.
pub fn render_finished_move(plan: &MovePlan, moved: &[MovedPod]) -> String {
    let table = output::format_table(
        &["POD", "FROM", "NEW POD", "TO"],
        moved.iter().map(moved_row),
    );
    [table]
        .into_iter()
        .chain(reasons_to_stay(plan))
        .collect::<Vec<_>>()
        .join("\n")
}

fn moved_row(one: &MovedPod) -> Vec<String> {
    vec![
        one.pod.clone(),
        one.from.clone(),
        one.new_pod.as_deref().unwrap_or("-").to_owned(),
        one.to.as_deref().unwrap_or("-").to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::{PlannedEviction, StayingPod};

    #[test]
    fn a_user_learns_which_pods_stay_before_and_after_the_move() {
        let web = PlannedEviction {
            pod: "web".into(),
            node: "turin".into(),
            controller: None,
            uid: "w".into(),
        };
        let bound = StayingPod {
            pod: "bound".into(),
            reason: "volume v is a hostPath".into(),
        };
        let plan = MovePlan {
            namespace: "demo".into(),
            cordoned_nodes: [].into(),
            pods: vec![web],
            staying: vec![bound],
        };
        assert!(question_before_move(&plan).contains(" These stay, `--dry-run` says why: bound."));
        let moved = MovedPod {
            pod: "web".into(),
            from: "turin".into(),
            new_pod: None,
            to: None,
            waits: None,
        };
        let (preview, table) = (
            render_planned_move(&plan),
            render_finished_move(&plan, &[moved]),
        );
        for text in [preview, table] {
            assert!(
                text.ends_with("\nPod bound stays: volume v is a hostPath."),
                "{text}"
            );
        }
        assert!(
            !question_before_move(&MovePlan {
                staying: Vec::new(),
                ..plan
            })
            .contains("stay")
        );
    }
}
