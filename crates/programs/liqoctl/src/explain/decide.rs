//! Judges what was read about a pod. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, PodSpec, PodStatus};
use kube::ResourceExt as _;
use liqo_api::conditions::{StatusCondition as _, has_true_condition};
use liqo_api::{
    ClusterId, ForeignCluster, NamespaceOffloading, OffloadedReason, PodOffloadingStrategy,
    RemoteNamespace, ShadowPod, ShadowPodPhase, annotations, is_final_phase, links, pods, requests,
    short_on_largest_node,
};
use liqo_offloading_rules::{
    node::priced::{PricedNode, default_charge},
    pod::{
        added_limits::describe_added_limits,
        carry::obstacle::pod_obstacle,
        refusals::{Refusals, RefusedOwner, avoided_message},
    },
};
use serde_json::json;

use super::{
    PodExplanation, PodStep, PodStepName,
    containers::{self, RunsIn, UnreadyContainer},
    facts::{PodFacts, ProviderPodFacts},
};
use crate::{
    doctor::advice,
    finding::CheckVerdict,
    inspect::{ReadResult, is_virtual},
    node_fit::why_not_on_node,
    output::strip_control_characters,
    readiness,
};

/// The steps, and which of them the pod waits for.
pub fn explain_facts(facts: &PodFacts) -> PodExplanation {
    let mut steps = steps_of_pod(facts);
    let waits_for = [
        CheckVerdict::Fail,
        CheckVerdict::Warn,
        CheckVerdict::Unknown,
    ]
    .into_iter()
    .find_map(|verdict| step_to_wait_for(&steps, verdict))
    .map(|step| step.check.as_str());
    drop_repeated_advice(&mut steps, waits_for);
    PodExplanation {
        namespace: facts.pod.namespace().unwrap_or_default(),
        pod: facts.pod.name_any(),
        phase: phase(&facts.pod).to_owned(),
        waits_for,
        steps,
    }
}

/// Several steps see one fault, and its advice is read once: at the step that the pod waits for, or
/// at the first of them.
fn drop_repeated_advice(steps: &mut [PodStep], waits_for: Option<&str>) {
    let mut given = BTreeSet::new();
    let (waited_for, others): (Vec<_>, Vec<_>) = steps
        .iter_mut()
        .partition(|step| Some(step.check.as_str()) == waits_for);
    for step in waited_for.into_iter().chain(others) {
        let is_repeated = step
            .advice
            .as_ref()
            .is_some_and(|advice| !given.insert(advice.clone()));
        if is_repeated {
            step.advice = None;
        }
    }
}

/// A later step is more often the cause of what the local pod shows than the local pod itself.
fn step_to_wait_for(steps: &[PodStep], verdict: CheckVerdict) -> Option<&PodStep> {
    let mut alike = steps.iter().filter(|step| step.verdict == verdict);
    let first = alike.clone().next();
    alike
        .find(|step| step.check != PodStepName::LocalPod)
        .or(first)
}

fn steps_of_pod(facts: &PodFacts) -> Vec<PodStep> {
    let mut steps = vec![local_pod(facts)];
    if facts.node_name().is_none() {
        steps.push(namespace_step(facts, None));
        if let Some(kept) = runs_only_here_step(facts) {
            steps.push(kept);
            return steps;
        }
        let refusals = refusals_of_owner(facts);
        steps.extend(refused_providers_step(facts, &refusals, CheckVerdict::Warn));
        steps.extend(toleration_step(facts));
        steps.push(candidate_nodes(facts, &refusals));
        return steps;
    }
    steps.push(virtual_node(facts));
    if matches!(&facts.node, Ok(Some(node)) if !is_virtual(node)) {
        steps.extend(runs_only_here_step(facts).or_else(|| {
            refused_providers_step(facts, &refusals_of_owner(facts), CheckVerdict::Ok)
        }));
        return steps;
    }
    let provider = facts.provider_id();
    let peer = provider.as_ref().map(|id| peer_with_id(facts, id));
    steps.extend(peer.as_ref().map(|peer| peering_step(peer.clone())));
    steps.extend(peer.and_then(|peer| network_step(peer.ok()??)));
    steps.push(namespace_step(facts, provider.as_ref()));
    if let Some(provider) = &facts.provider {
        steps.push(shadow_pod(facts, provider));
    }
    steps.extend(condition_steps(&facts.pod));
    if let Some(provider) = &facts.provider {
        steps.push(remote_pod_step(facts, provider));
        steps.extend(limits_step(facts, provider));
    }
    steps
}

fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

/// `Reason: message`, as far as there is any.
fn reason_and_message(reason: Option<&str>, message: Option<&str>) -> String {
    let parts: Vec<&str> = [reason, message]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect();
    if parts.is_empty() {
        "no reason".to_owned()
    } else {
        parts.join(": ")
    }
}

fn local_pod(facts: &PodFacts) -> PodStep {
    let (step, pod) = (PodStepName::LocalPod, &facts.pod);
    let phase = phase(pod);
    let status = pod.status.clone().unwrap_or_default();
    if phase == "Failed" {
        let why = reason_and_message(status.reason.as_deref(), status.message.as_deref());
        return PodStep::new(step, CheckVerdict::Fail, format!("Failed: {why}"))
            .with_advice("a controller replaces it; a single pod has to be created again");
    }
    if let Some(at) = &pod.metadata.deletion_timestamp {
        let what = format!(
            "it is being deleted; its grace period ends at {}",
            at.0.strftime("%FT%TZ")
        );
        return PodStep::new(step, CheckVerdict::Warn, what)
            .with_advice("the provider ends its pod first: see the steps below");
    }
    let Some(node) = facts.node_name() else {
        return match condition(pod, "PodScheduled").filter(|condition| condition.status == "False")
        {
            Some(condition) => {
                let why =
                    reason_and_message(condition.reason.as_deref(), condition.message.as_deref());
                PodStep::new(step, CheckVerdict::Warn, format!("{phase}, without a node: {why}"))
                    .with_advice("the scheduler's message counts the nodes by what does not fit; see the steps below")
            }
            None => PodStep::new(
                step,
                CheckVerdict::Unknown,
                format!("{phase}, and the scheduler has not looked for a node yet"),
            ),
        };
    };
    let is_ready = readiness::pod(pod);
    let ready = if is_ready { ", Ready" } else { "" };
    let what = format!("{phase}{ready}, on node {node}");
    let runs_here = matches!(&facts.node, Ok(Some(node)) if !is_virtual(node));
    if !runs_here || is_ready || phase == "Succeeded" {
        return PodStep::new(step, CheckVerdict::Ok, what);
    }
    match unready_container_of(facts, &status, RunsIn::ThisCluster) {
        Some(trouble) => not_ready_step(step, &what, trouble),
        None => PodStep::new(step, CheckVerdict::Unknown, format!("{what}, not Ready"))
            .with_advice(describe_command(facts)),
    }
}

/// The first container of the pod that is not ready; commands name the local pod, also if the
/// status is that of the remote one.
fn unready_container_of(
    facts: &PodFacts,
    status: &PodStatus,
    runs_in: RunsIn,
) -> Option<UnreadyContainer> {
    containers::unready_container(
        status,
        &kubectl_command(facts),
        &facts.pod.name_any(),
        runs_in,
    )
}

fn not_ready_step(step: PodStepName, what: &str, trouble: UnreadyContainer) -> PodStep {
    let verdict = if trouble.may_pass {
        CheckVerdict::Unknown
    } else {
        CheckVerdict::Warn
    };
    PodStep::new(step, verdict, format!("{what}: {}", trouble.what)).with_advice(trouble.advice)
}

fn kubectl_command(facts: &PodFacts) -> String {
    format!("kubectl -n {}", facts.pod.namespace().unwrap_or_default())
}

fn describe_command(facts: &PodFacts) -> String {
    format!(
        "`{} describe pod {}` shows its events",
        kubectl_command(facts),
        facts.pod.name_any()
    )
}

fn virtual_node(facts: &PodFacts) -> PodStep {
    let step = PodStepName::VirtualNode;
    let name = facts.node_name().unwrap_or_default();
    match &facts.node {
        Err(why) => PodStep::new(step, CheckVerdict::Unknown, why),
        Ok(None) => PodStep::new(
            step,
            CheckVerdict::Fail,
            format!("Node {name} does not exist any more"),
        )
        .with_advice(
            "a controller replaces the pod when Kubernetes has deleted it; otherwise delete it",
        ),
        Ok(Some(node)) if !is_virtual(node) => PodStep::new(
            step,
            CheckVerdict::Ok,
            format!("Node {name} belongs to this cluster, so the pod is not offloaded"),
        ),
        Ok(Some(node)) => match node_state(node) {
            NodeState::NotReady(why) => PodStep::new(
                step,
                CheckVerdict::Fail,
                format!("Node {name} is not Ready: {why}"),
            )
            .with_advice("the peering is the cause: see the next step"),
            NodeState::Closed(why) => PodStep::new(
                step,
                CheckVerdict::Ok,
                format!("Node {name} is Ready; {why}, which keeps only new pods away"),
            ),
            NodeState::Open => {
                PodStep::new(step, CheckVerdict::Ok, format!("Node {name} is Ready"))
            }
        },
    }
}

/// Whether a virtual node takes pods.
enum NodeState {
    Open,
    /// Cordoned or tainted.
    Closed(String),
    NotReady(String),
}

fn node_state(node: &Node) -> NodeState {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    if !readiness::node(node) {
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "Ready");
        let why = ready
            .map(|ready| reason_and_message(ready.reason.as_deref(), ready.message.as_deref()));
        return NodeState::NotReady(
            why.unwrap_or_else(|| "there is no condition Ready".to_owned()),
        );
    }
    let spec = node.spec.as_ref();
    let is_cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
    // Every virtual node has the first of these taints, and the API server adds the second one to a
    // cordoned node.
    let usual = [pods::VIRTUAL_NODE_TAINT, "node.kubernetes.io/unschedulable"];
    let closed = conditions
        .into_iter()
        .flatten()
        .find(|one| one.type_ == pods::NO_NEW_PODS && one.is_true());
    let why = closed
        .and_then(|closed| closed.message.as_deref())
        .map(|why| format!(" ({})", strip_control_characters(why)))
        .unwrap_or_default();
    let taints = spec
        .and_then(|spec| spec.taints.as_ref())
        .into_iter()
        .flatten();
    let taints: Vec<&str> = taints
        .filter(|taint| taint.effect != "PreferNoSchedule" && !usual.contains(&taint.key.as_str()))
        .map(|taint| taint.key.as_str())
        .collect();
    match (is_cordoned, taints.as_slice()) {
        (false, []) => NodeState::Open,
        (true, []) => NodeState::Closed("it is cordoned".to_owned()),
        (false, taints) => {
            NodeState::Closed(format!("it has the taints {}{why}", taints.join(", ")))
        }
        (true, taints) => NodeState::Closed(format!(
            "it is cordoned and has the taints {}{why}",
            taints.join(", ")
        )),
    }
}

/// The reason why the pod of an offloaded namespace runs in this cluster only, whatever its
/// providers allow.
fn runs_only_here_step(facts: &PodFacts) -> Option<PodStep> {
    facts.remote_offloading()?;
    let obstacle = pod_obstacle(&serde_json::to_value(&facts.pod).unwrap_or_default())?;
    let what = format!(
        "the pod runs in this cluster only: {}: {obstacle}",
        obstacle.reason
    );
    Some(PodStep::new(
        PodStepName::Placement,
        CheckVerdict::Skipped,
        what,
    ))
}

/// The providers that refused another pod of the same owner. Where pods may run only at providers,
/// that keeps none away from them.
fn refusals_of_owner(facts: &PodFacts) -> Vec<RefusedOwner> {
    let Some(offloading) = facts
        .remote_offloading()
        .filter(|one| one.spec.pod_offloading_strategy == PodOffloadingStrategy::LocalAndRemote)
    else {
        return Vec::new();
    };
    let all = Refusals::parse(
        offloading
            .annotations()
            .get(annotations::REFUSED_PODS)
            .map(String::as_str),
    );
    let pod = serde_json::to_value(&facts.pod).unwrap_or_default();
    all.refusals_of_pod(&pod, facts.read_at)
        .into_iter()
        .cloned()
        .collect()
}

fn refused_providers_step(
    facts: &PodFacts,
    refusals: &[RefusedOwner],
    verdict: CheckVerdict,
) -> Option<PodStep> {
    if refusals.is_empty() {
        return None;
    }
    let (namespace, annotation) = (
        facts.pod.namespace().unwrap_or_default(),
        annotations::REFUSED_PODS,
    );
    let step = PodStep::new(
        PodStepName::Placement,
        verdict,
        avoided_message(&refusals.iter().collect::<Vec<_>>()),
    );
    Some(step.with_advice(format!(
        "to try earlier: `kubectl -n {namespace} annotate namespaceoffloading offloading {annotation}-`, and delete the pod"
    )))
}

/// The virtual nodes that a pod without a node could get.
fn candidate_nodes(facts: &PodFacts, refusals: &[RefusedOwner]) -> PodStep {
    let step = PodStepName::VirtualNode;
    let nodes = match &facts.virtual_nodes {
        Ok(nodes) => nodes,
        Err(why) => return PodStep::new(step, CheckVerdict::Unknown, why),
    };
    let shown: Vec<(bool, String)> = nodes
        .iter()
        .map(|node| judge_candidate(node, facts, refusals))
        .collect();
    let what = shown
        .iter()
        .map(|(_, text)| text.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    if nodes.is_empty() {
        return PodStep::new(step, CheckVerdict::Warn, "there is no virtual node")
            .with_advice("`liqoctl peer` borrows from another cluster");
    }
    if shown.iter().any(|(takes, _)| *takes) {
        return PodStep::new(step, CheckVerdict::Ok, what);
    }
    PodStep::new(step, CheckVerdict::Warn, what)
        .with_advice("`liqoctl status` shows the peering behind each node, `kubectl describe node` its labels and taints; `kubectl uncordon` opens a cordoned node")
}

fn judge_candidate(node: &Node, facts: &PodFacts, refusals: &[RefusedOwner]) -> (bool, String) {
    let name = node.name_any();
    let id: Option<ClusterId> = node
        .labels()
        .get(liqo_api::labels::REMOTE_CLUSTER_ID)
        .and_then(|id| id.parse().ok());
    let has_namespace = id.as_ref().is_some_and(|id| {
        facts
            .remote_namespace(id)
            .is_some_and(|remote| remote.ready)
    });
    let has_refused = id.is_some_and(|id| refusals.iter().any(|one| one.cluster_id == id));
    if let NodeState::NotReady(why) = node_state(node) {
        return (false, format!("{name} is not Ready: {why}"));
    }
    let why_not = if !has_namespace {
        Some("its cluster does not have the namespace".to_owned())
    } else if has_refused {
        Some("its cluster refused a pod with this template".to_owned())
    } else {
        let spec = facts.pod.spec.as_ref();
        spec.and_then(|spec| why_not_on_node(spec, node))
            .or_else(|| reason_without_room(node, &facts.pod))
    };
    match why_not {
        Some(why) => (false, format!("{name} is Ready, but {why}")),
        None => (true, format!("{name} is Ready and takes pods")),
    }
}

/// The reason why a virtual node never has room for the pod, or why no node behind it has now.
fn reason_without_room(node: &Node, pod: &Pod) -> Option<String> {
    let amounts = default_charge(pod.spec.clone()?);
    let offered = requests::parse_amounts(node.status.as_ref()?.allocatable.as_ref()?);
    if let Err(short) = amounts.fits_in(&offered) {
        let short: Vec<String> = short.iter().map(ToString::to_string).collect();
        return Some(format!("offers too little: {}", short.join(", ")));
    }
    let short =
        PricedNode::from_metadata(&node.name_any(), node.labels().clone(), node.annotations())
            .largest_pods
            .may_have_room(&amounts)
            .err()?;
    Some(format!(
        "no node there has room for the pod: {}",
        short_on_largest_node(&short)
    ))
}

/// Whether a pod of an offloaded namespace may go to virtual nodes at all.
fn toleration_step(facts: &PodFacts) -> Option<PodStep> {
    facts.remote_offloading()?;
    let tolerations = facts
        .pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_ref());
    let tolerates = tolerations
        .into_iter()
        .flatten()
        .any(|one| match one.key.as_deref() {
            Some(key) if !key.is_empty() => key == pods::VIRTUAL_NODE_TAINT,
            _ => one.operator.as_deref() == Some("Exists"),
        });
    Some(if tolerates {
        PodStep::new(
            PodStepName::Toleration,
            CheckVerdict::Ok,
            "the pod tolerates virtual nodes",
        )
    } else {
        let what = "the pod does not tolerate virtual nodes: it was created before the namespace was offloaded, or while the admission webhook did not answer";
        PodStep::new(PodStepName::Toleration, CheckVerdict::Fail, what)
            .with_advice("delete the pod, so that its controller creates it again; `liqoctl doctor` checks the webhook")
    })
}

fn peer_with_id<'a>(facts: &'a PodFacts, id: &ClusterId) -> ReadResult<Option<&'a ForeignCluster>> {
    let peers = facts.peers.as_ref().map_err(Clone::clone)?;
    Ok(peers.iter().find(|peer| peer.spec.cluster_id == *id))
}

/// The links of borrowing. The first one that does not work is the cause of the others.
fn peering_step(peer: ReadResult<Option<&ForeignCluster>>) -> PodStep {
    let step = PodStepName::Peering;
    let peer = match peer {
        Err(why) => return PodStep::new(step, CheckVerdict::Unknown, why),
        Ok(None) => {
            return PodStep::new(
                step,
                CheckVerdict::Fail,
                "there is no ForeignCluster for the node's cluster",
            )
            .with_advice("the peering ended: a controller replaces the pod when the node is gone");
        }
        Ok(Some(peer)) => peer,
    };
    let name = peer.name_any();
    if peer.metadata.deletion_timestamp.is_some() {
        return PodStep::new(
            step,
            CheckVerdict::Warn,
            format!("the peering with {name} is ending, and the pod with it"),
        );
    }
    broken_link_step(step, &name, &links::BORROWING, peer).unwrap_or_else(|| {
        PodStep::new(
            step,
            CheckVerdict::Ok,
            format!("every link to {name} works"),
        )
    })
}

/// The network to the peer, if there should be one.
fn network_step(peer: &ForeignCluster) -> Option<PodStep> {
    peer.condition(links::NETWORK_AGREED)?;
    let (step, name) = (PodStepName::Network, peer.name_any());
    Some(match broken_link_step(step, &name, &links::NETWORK, peer) {
        // The pod runs without it.
        Some(broken) => PodStep {
            verdict: CheckVerdict::Warn,
            ..broken
        },
        None => PodStep::new(
            step,
            CheckVerdict::Ok,
            format!("the tunnel to {name} is connected"),
        ),
    })
}

/// The first link that does not work.
fn broken_link_step(
    step: PodStepName,
    name: &str,
    chain: &[&str],
    peer: &ForeignCluster,
) -> Option<PodStep> {
    let kind = chain.iter().find(|kind| {
        peer.condition(kind)
            .is_none_or(|condition| condition.status != "True")
    })?;
    let Some(condition) = peer.condition(kind) else {
        return Some(PodStep::new(
            step,
            CheckVerdict::Unknown,
            format!("{name}: {kind}: there is no condition yet"),
        ));
    };
    let verdict = if condition.status == "False" {
        CheckVerdict::Fail
    } else {
        CheckVerdict::Unknown
    };
    let what = format!(
        "{name}: {kind}: {}",
        reason_and_message(Some(&condition.reason), Some(&condition.message))
    );
    Some(PodStep {
        advice: advice::advice_for_link(kind, &condition.reason, peer),
        ..PodStep::new(step, verdict, what)
    })
}

/// Whether the pod's namespace is offloaded and, for a pod on a virtual node, whether it exists at
/// that provider.
fn namespace_step(facts: &PodFacts, provider: Option<&ClusterId>) -> PodStep {
    let step = PodStepName::Namespace;
    let name = facts.pod.namespace().unwrap_or_default();
    let offloading = match &facts.offloading {
        Err(why) => return PodStep::new(step, CheckVerdict::Unknown, why),
        Ok(None) if facts.node_name().is_none() => {
            return PodStep::new(
                step,
                CheckVerdict::Skipped,
                format!("{name} is not offloaded: its pods stay in this cluster"),
            )
            .with_advice(format!(
                "`liqoctl offload namespace {name}` lets new pods run in other clusters"
            ));
        }
        Ok(None) => {
            return PodStep::new(step, CheckVerdict::Fail, format!("{name} is not offloaded"))
                .with_advice(format!(
                    "`liqoctl offload namespace {name}`, or keep the pod off virtual nodes"
                ));
        }
        Ok(Some(offloading)) => offloading,
    };
    let strategy = offloading.spec.pod_offloading_strategy;
    if strategy == PodOffloadingStrategy::Local {
        let verdict = if facts.node_name().is_some() {
            CheckVerdict::Warn
        } else {
            CheckVerdict::Skipped
        };
        return PodStep::new(
            step,
            verdict,
            format!("{name} is offloaded with the strategy Local: new pods stay in this cluster"),
        );
    }
    match provider {
        Some(provider) => {
            namespace_at_provider(step, &name, offloading, facts.remote_namespace(provider))
        }
        None => offloading_step(step, &name, offloading),
    }
}

fn namespace_at_provider(
    step: PodStepName,
    name: &str,
    offloading: &NamespaceOffloading,
    remote: Option<&RemoteNamespace>,
) -> PodStep {
    let strategy = offloading.spec.pod_offloading_strategy;
    match remote {
        None => PodStep::new(step, CheckVerdict::Fail, format!("{name} is offloaded ({strategy:?}), but not to the node's cluster"))
            .with_advice("the clusterSelector of its NamespaceOffloading does not select that cluster, or not yet"),
        Some(remote) if remote.ready => {
            PodStep::new(step, CheckVerdict::Ok, format!("{name} is {} in {} ({strategy:?})", remote.namespace, remote.cluster_name))
        }
        Some(remote) => {
            let why = remote.message.as_deref().unwrap_or("it is being created");
            PodStep::new(step, CheckVerdict::Fail, format!("{name} is not ready in {}: {why}", remote.cluster_name))
                .with_advice(advice::namespace_advice(ready_condition(offloading).map_or("", |(_, reason, _)| reason)))
        }
    }
}

fn offloading_step(step: PodStepName, name: &str, offloading: &NamespaceOffloading) -> PodStep {
    let strategy = offloading.spec.pod_offloading_strategy;
    match ready_condition(offloading) {
        Some(("True", ..)) => PodStep::new(
            step,
            CheckVerdict::Ok,
            format!("{name} is offloaded ({strategy:?})"),
        ),
        Some((_, reason, message)) => PodStep::new(
            step,
            CheckVerdict::Fail,
            format!(
                "{name}: {}",
                reason_and_message(Some(reason), Some(message))
            ),
        )
        .with_advice(advice::namespace_advice(reason)),
        None => PodStep::new(
            step,
            CheckVerdict::Unknown,
            format!("{name}: there is no condition yet"),
        ),
    }
}

/// Status, reason and message of the condition Ready.
fn ready_condition(offloading: &NamespaceOffloading) -> Option<(&str, &str, &str)> {
    let ready = offloading
        .status
        .as_ref()?
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")?;
    Some((
        ready.status.as_str(),
        ready.reason.as_str(),
        ready.message.as_str(),
    ))
}

fn shadow_pod(facts: &PodFacts, provider: &ProviderPodFacts) -> PodStep {
    let step = PodStepName::ShadowPod;
    let shadow: &ShadowPod = match &provider.shadow_pod {
        Err(why) => return PodStep::new(step, CheckVerdict::Unknown, why),
        Ok(None) if is_final_phase(phase(&facts.pod)) => {
            return PodStep::new(
                step,
                CheckVerdict::Skipped,
                "there is none any more: the pod has ended",
            );
        }
        Ok(None) => {
            return PodStep::new(step, CheckVerdict::Warn, "the provider has none: the pod is not sent, or is gone there")
                .with_advice("the earlier steps and the conditions say why; the manager sends it when they allow it");
        }
        Ok(Some(shadow)) => shadow,
    };
    let status = shadow.status.clone().unwrap_or_default();
    let reason = status.reason.as_deref();
    let said = match (reason, status.message.as_deref()) {
        (None, None) => format!("{:?}", status.phase),
        (reason, message) => format!(
            "{:?}: {}",
            status.phase,
            reason_and_message(reason, message)
        ),
    };
    match status.phase {
        ShadowPodPhase::Created | ShadowPodPhase::Succeeded | ShadowPodPhase::Failed => PodStep::new(step, CheckVerdict::Ok, said),
        ShadowPodPhase::Pending => PodStep::new(step, CheckVerdict::Warn, said)
            .with_advice(reason.map_or("the provider has not handled it yet: is its manager alive?", advice::refused_pod_advice)),
        ShadowPodPhase::Refused => {
            PodStep::new(step, CheckVerdict::Fail, said).with_advice(advice::refused_pod_advice(reason.unwrap_or(OffloadedReason::Refused.as_str())))
        }
        ShadowPodPhase::Lost => PodStep::new(step, CheckVerdict::Fail, said)
            .with_advice("the remote pod is gone, and must not run twice: a controller replaces it, otherwise create it again"),
    }
}

/// The conditions that this cluster wrote on the local pod about the remote one. A pod that was
/// accepted at once has none.
fn condition_steps(pod: &Pod) -> Vec<PodStep> {
    let step = PodStepName::Conditions;
    let mut steps = Vec::new();
    if let Some(offloaded) = condition(pod, pods::OFFLOADED) {
        let reason = offloaded.reason.as_deref().unwrap_or_default();
        let what = format!(
            "{} is {}: {}",
            pods::OFFLOADED,
            offloaded.status,
            reason_and_message(Some(reason), offloaded.message.as_deref())
        );
        steps.push(match offloaded.status.as_str() {
            "False" => PodStep::new(step, CheckVerdict::Fail, what)
                .with_advice(advice::refused_pod_advice(reason)),
            "True" if pods::INCOMPLETE.contains(&reason) => {
                PodStep::new(step, CheckVerdict::Warn, what)
                    .with_advice(advice::incomplete_pod_advice(reason))
            }
            "True" => PodStep::new(step, CheckVerdict::Ok, what),
            _ => PodStep::new(step, CheckVerdict::Warn, what)
                .with_advice(advice::refused_pod_advice(reason)),
        });
    }
    if let Some(unplaced) =
        condition(pod, pods::REMOTE_SCHEDULED).filter(|condition| condition.status == "False")
    {
        let why = reason_and_message(unplaced.reason.as_deref(), unplaced.message.as_deref());
        let step = PodStep::new(
            step,
            CheckVerdict::Warn,
            format!("{} is False: {why}", pods::REMOTE_SCHEDULED),
        );
        steps.push(step.with_advice(advice::UNPLACED));
    }
    steps
}

/// Reason and message of the condition Ready, for example of a pod whose node does not answer.
fn not_ready_because(status: &PodStatus) -> Option<String> {
    let ready = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready")?;
    let (reason, message) = (ready.reason.as_deref(), ready.message.as_deref());
    reason
        .or(message)
        .map(|_| reason_and_message(reason, message))
}

/// The pod's node at its provider. A broker does not name the clusters behind it, and the
/// provider's pool may have nodes of both kinds.
fn node_at_provider(spec: &PodSpec) -> Option<String> {
    let node = spec.node_name.as_deref()?;
    let is_brokered = spec
        .tolerations
        .iter()
        .flatten()
        .any(|one| one.key.as_deref() == Some(pods::VIRTUAL_NODE_TAINT));
    Some(if is_brokered {
        ", there or behind it".to_owned()
    } else {
        format!(", on node {node} there")
    })
}

/// The limits that the provider adds to the pod.
fn limits_step(facts: &PodFacts, provider: &ProviderPodFacts) -> Option<PodStep> {
    let spec = provider.remote_pod.as_ref().ok()?.as_ref()?.spec.as_ref()?;
    let theirs = json!(
        [
            &spec.containers,
            spec.init_containers.as_deref().unwrap_or_default()
        ]
        .concat()
    );
    let added = describe_added_limits(&json!(facts.pod), theirs.as_array()?)?;
    let more = "set a limit of its own where a container needs more";
    Some(PodStep::new(PodStepName::Limits, CheckVerdict::Ok, added).with_advice(more))
}

fn remote_pod_step(facts: &PodFacts, provider: &ProviderPodFacts) -> PodStep {
    let step = PodStepName::RemotePod;
    let (status, node) = match &provider.remote_pod {
        Ok(Some(pod)) => (
            pod.status.clone(),
            pod.spec.as_ref().and_then(node_at_provider),
        ),
        Ok(None) => (reported_status(provider), None),
        Err(why) => match reported_status(provider) {
            Some(status) => (Some(status), None),
            None => return PodStep::new(step, CheckVerdict::Unknown, why),
        },
    };
    let Some(status) = status else {
        return PodStep::new(step, CheckVerdict::Skipped, "there is none");
    };
    let on = node.unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let is_ready = has_true_condition(status.conditions.iter().flatten(), "Ready");
    match phase {
        "Succeeded" => PodStep::new(step, CheckVerdict::Ok, format!("{phase}{on}")),
        "Failed" => PodStep::new(
            step,
            CheckVerdict::Fail,
            format!(
                "Failed{on}: {}",
                reason_and_message(status.reason.as_deref(), status.message.as_deref())
            ),
        ),
        _ if is_ready => PodStep::new(step, CheckVerdict::Ok, format!("{phase}, Ready{on}")),
        _ => match (
            unready_container_of(facts, &status, RunsIn::Provider),
            readiness::why_pod_not_ready(&status),
        ) {
            (Some(trouble), _) => not_ready_step(step, &format!("{phase}, not Ready{on}"), trouble),
            (None, Some(unscheduled)) => PodStep::new(
                step,
                CheckVerdict::Warn,
                format!("{phase}{on}: {unscheduled}"),
            )
            .with_advice(advice::UNPLACED),
            (None, None) => {
                let why = not_ready_because(&status)
                    .map(|why| format!(": {why}"))
                    .unwrap_or_default();
                PodStep::new(
                    step,
                    CheckVerdict::Unknown,
                    format!("{phase}, not Ready{on}{why}"),
                )
                .with_advice(describe_command(facts))
            }
        },
    }
}

/// The status of the remote pod that the provider reports to this cluster.
fn reported_status(provider: &ProviderPodFacts) -> Option<PodStatus> {
    let status = provider
        .shadow_pod
        .as_ref()
        .ok()?
        .as_ref()?
        .status
        .as_ref()?
        .pod
        .clone()?;
    serde_json::from_value::<PodStatus>(status).ok()
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests;
