//! Judges what was read about a pod. Pure.

use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, PodSpec, PodStatus, Taint};
use kube::ResourceExt as _;
use liqo_api::{
    ClusterId, ForeignCluster, NamespaceOffloading, OffloadedReason, PodOffloadingStrategy,
    RemoteNamespace, ShadowPod, ShadowPodPhase, annotations, links, pods, requests,
    short_on_largest_node,
};
use liqo_offloading_rules::{
    node::priced::{PricedNode, charged},
    pod::{
        added_limits::added,
        carry::obstacle::obstacle,
        refusals::{Refusals, RefusedOwner, avoided},
    },
};
use serde_json::json;

use super::{
    Explanation, Step, StepName,
    containers::{self, Trouble},
    facts::{AtProvider, PodFacts},
};
use crate::{
    doctor::{Verdict, advice},
    inspect::{Read, is_virtual},
    output::plain,
    readiness,
};

/// The steps, and which of them the pod waits for.
pub fn explain(facts: &PodFacts) -> Explanation {
    let steps = steps(facts);
    // A later step is more often the cause of what the local pod shows than the local pod itself.
    let worst = |verdict: Verdict| {
        let is = |step: &&Step| step.verdict == verdict;
        steps
            .iter()
            .filter(|step| step.step != StepName::LocalPod)
            .find(is)
            .or_else(|| steps.iter().find(is))
    };
    let waits_for = [Verdict::Fail, Verdict::Warn, Verdict::Unknown]
        .into_iter()
        .find_map(worst)
        .map(|step| step.step);
    Explanation {
        namespace: facts.pod.namespace().unwrap_or_default(),
        pod: facts.pod.name_any(),
        phase: phase(&facts.pod).to_owned(),
        waits_for,
        steps,
    }
}

fn steps(facts: &PodFacts) -> Vec<Step> {
    let mut steps = vec![local_pod(facts)];
    if facts.node_name().is_none() {
        steps.push(namespace(facts, None));
        if let Some(kept) = kept_at_home(facts) {
            steps.push(kept);
            return steps;
        }
        let refusals = refusals(facts);
        steps.extend(avoids(facts, &refusals, Verdict::Warn));
        steps.extend(toleration(facts));
        steps.push(candidates(facts, &refusals));
        return steps;
    }
    steps.push(virtual_node(facts));
    if matches!(&facts.node, Ok(Some(node)) if !is_virtual(node)) {
        steps.extend(kept_at_home(facts).or_else(|| avoids(facts, &refusals(facts), Verdict::Ok)));
        return steps;
    }
    let provider = facts.provider_id();
    let peer = provider.as_ref().map(|id| peer(facts, id));
    steps.extend(peer.as_ref().map(|peer| peering(peer.clone())));
    steps.extend(peer.and_then(|peer| network(peer.ok()??)));
    steps.push(namespace(facts, provider.as_ref()));
    if let Some(provider) = &facts.provider {
        steps.push(shadow_pod(facts, provider));
    }
    steps.extend(conditions(&facts.pod));
    if let Some(provider) = &facts.provider {
        steps.push(remote_pod(facts, provider));
        steps.extend(limits(facts, provider));
    }
    steps
}

impl Step {
    fn new(step: StepName, verdict: Verdict, what: impl Into<String>) -> Self {
        Self {
            step,
            verdict,
            what: what.into(),
            advice: None,
        }
    }

    fn advise(self, advice: impl Into<String>) -> Self {
        Self {
            advice: Some(advice.into()),
            ..self
        }
    }
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
fn words(reason: Option<&str>, message: Option<&str>) -> String {
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

fn local_pod(facts: &PodFacts) -> Step {
    let (step, pod) = (StepName::LocalPod, &facts.pod);
    let phase = phase(pod);
    let status = pod.status.clone().unwrap_or_default();
    if phase == "Failed" {
        let why = words(status.reason.as_deref(), status.message.as_deref());
        return Step::new(step, Verdict::Fail, format!("Failed: {why}"))
            .advise("a controller replaces it; a single pod has to be created again");
    }
    if let Some(at) = &pod.metadata.deletion_timestamp {
        let what = format!(
            "it is being deleted; its grace period ends at {}",
            at.0.strftime("%FT%TZ")
        );
        return Step::new(step, Verdict::Warn, what)
            .advise("the provider ends its pod first: see the steps below");
    }
    let Some(node) = facts.node_name() else {
        return match condition(pod, "PodScheduled").filter(|condition| condition.status == "False")
        {
            Some(condition) => {
                let why = words(condition.reason.as_deref(), condition.message.as_deref());
                Step::new(step, Verdict::Warn, format!("{phase}, without a node: {why}"))
                    .advise("the scheduler's message counts the nodes by what does not fit; see the steps below")
            }
            None => Step::new(
                step,
                Verdict::Unknown,
                format!("{phase}, and the scheduler has not looked for a node yet"),
            ),
        };
    };
    let is_ready = readiness::pod(pod);
    let ready = if is_ready { ", Ready" } else { "" };
    let what = format!("{phase}{ready}, on node {node}");
    let runs_here = matches!(&facts.node, Ok(Some(node)) if !is_virtual(node));
    if !runs_here || is_ready || phase == "Succeeded" {
        return Step::new(step, Verdict::Ok, what);
    }
    match trouble(facts, &status, false) {
        Some(trouble) => not_ready(step, &what, trouble),
        None => {
            Step::new(step, Verdict::Unknown, format!("{what}, not Ready")).advise(describe(facts))
        }
    }
}

/// The first container of the pod that is not ready; commands name the local pod, also if the
/// status is that of the remote one.
fn trouble(facts: &PodFacts, status: &PodStatus, is_remote: bool) -> Option<Trouble> {
    containers::trouble(status, &kubectl(facts), &facts.pod.name_any(), is_remote)
}

fn not_ready(step: StepName, what: &str, trouble: Trouble) -> Step {
    let verdict = if trouble.may_pass {
        Verdict::Unknown
    } else {
        Verdict::Warn
    };
    Step::new(step, verdict, format!("{what}: {}", trouble.what)).advise(trouble.advice)
}

fn kubectl(facts: &PodFacts) -> String {
    format!("kubectl -n {}", facts.pod.namespace().unwrap_or_default())
}

fn describe(facts: &PodFacts) -> String {
    format!(
        "`{} describe pod {}` shows its events",
        kubectl(facts),
        facts.pod.name_any()
    )
}

fn virtual_node(facts: &PodFacts) -> Step {
    let step = StepName::VirtualNode;
    let name = facts.node_name().unwrap_or_default();
    match &facts.node {
        Err(why) => Step::new(step, Verdict::Unknown, why),
        Ok(None) => Step::new(
            step,
            Verdict::Fail,
            format!("Node {name} does not exist any more"),
        )
        .advise(
            "a controller replaces the pod when Kubernetes has deleted it; otherwise delete it",
        ),
        Ok(Some(node)) if !is_virtual(node) => Step::new(
            step,
            Verdict::Ok,
            format!("Node {name} belongs to this cluster, so the pod is not offloaded"),
        ),
        Ok(Some(node)) => match state(node) {
            NodeState::NotReady(why) => Step::new(
                step,
                Verdict::Fail,
                format!("Node {name} is not Ready: {why}"),
            )
            .advise("the peering is the cause: see the next step"),
            NodeState::Closed(why) => Step::new(
                step,
                Verdict::Ok,
                format!("Node {name} is Ready; {why}, which keeps only new pods away"),
            ),
            NodeState::Open => Step::new(step, Verdict::Ok, format!("Node {name} is Ready")),
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

fn state(node: &Node) -> NodeState {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    if !readiness::node(node) {
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "Ready");
        let why = ready.map(|ready| words(ready.reason.as_deref(), ready.message.as_deref()));
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
        .find(|one| one.type_ == pods::NO_NEW_PODS && one.status == "True");
    let why = closed
        .and_then(|closed| closed.message.as_deref())
        .map(|why| format!(" ({})", plain(why)))
        .unwrap_or_default();
    let repels =
        |taint: &&Taint| taint.effect != "PreferNoSchedule" && !usual.contains(&taint.key.as_str());
    let taints = spec
        .and_then(|spec| spec.taints.as_ref())
        .into_iter()
        .flatten();
    let taints: Vec<&str> = taints
        .filter(repels)
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
fn kept_at_home(facts: &PodFacts) -> Option<Step> {
    facts.remote_offloading()?;
    let obstacle = obstacle(&serde_json::to_value(&facts.pod).unwrap_or_default())?;
    let what = format!(
        "the pod runs in this cluster only: {}: {obstacle}",
        obstacle.reason
    );
    Some(Step::new(StepName::Placement, Verdict::Skipped, what))
}

/// The providers that refused another pod of the same owner. Where pods may run only at providers,
/// that keeps none away from them.
fn refusals(facts: &PodFacts) -> Vec<RefusedOwner> {
    let avoids = |one: &&NamespaceOffloading| {
        one.spec.pod_offloading_strategy == PodOffloadingStrategy::LocalAndRemote
    };
    let Some(offloading) = facts.remote_offloading().filter(avoids) else {
        return Vec::new();
    };
    let all = Refusals::parse(
        offloading
            .annotations()
            .get(annotations::REFUSED_PODS)
            .map(String::as_str),
    );
    let pod = serde_json::to_value(&facts.pod).unwrap_or_default();
    all.of_pod(&pod, facts.read_at)
        .into_iter()
        .cloned()
        .collect()
}

fn avoids(facts: &PodFacts, refusals: &[RefusedOwner], verdict: Verdict) -> Option<Step> {
    if refusals.is_empty() {
        return None;
    }
    let (namespace, annotation) = (
        facts.pod.namespace().unwrap_or_default(),
        annotations::REFUSED_PODS,
    );
    let step = Step::new(
        StepName::Placement,
        verdict,
        avoided(&refusals.iter().collect::<Vec<_>>()),
    );
    Some(step.advise(format!(
        "to try earlier: `kubectl -n {namespace} annotate namespaceoffloading offloading {annotation}-`, and delete the pod"
    )))
}

/// The virtual nodes that a pod without a node could get.
fn candidates(facts: &PodFacts, refusals: &[RefusedOwner]) -> Step {
    let step = StepName::VirtualNode;
    let nodes = match &facts.virtual_nodes {
        Ok(nodes) => nodes,
        Err(why) => return Step::new(step, Verdict::Unknown, why),
    };
    let shown: Vec<(bool, String)> = nodes
        .iter()
        .map(|node| candidate(node, facts, refusals))
        .collect();
    let what = shown
        .iter()
        .map(|(_, text)| text.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    if nodes.is_empty() {
        return Step::new(step, Verdict::Warn, "there is no virtual node")
            .advise("`liqoctl peer` borrows from another cluster");
    }
    if shown.iter().any(|(takes, _)| *takes) {
        return Step::new(step, Verdict::Ok, what);
    }
    Step::new(step, Verdict::Warn, what)
        .advise("`liqoctl status` shows the peering behind each node; `kubectl uncordon` opens a cordoned node")
}

fn candidate(node: &Node, facts: &PodFacts, refusals: &[RefusedOwner]) -> (bool, String) {
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
    match state(node) {
        NodeState::NotReady(why) => (false, format!("{name} is not Ready: {why}")),
        NodeState::Closed(why) => (false, format!("{name} is Ready, but {why}")),
        NodeState::Open if !has_namespace => (
            false,
            format!("{name} is Ready, but its cluster does not have the namespace"),
        ),
        NodeState::Open if has_refused => (
            false,
            format!("{name} is Ready, but its cluster refused a pod with this template"),
        ),
        NodeState::Open => match without_room(node, &facts.pod) {
            Some(short) => (false, format!("{name} is Ready, but {short}")),
            None => (true, format!("{name} is Ready and takes pods")),
        },
    }
}

/// The reason why a virtual node never has room for the pod, or why no node behind it has now.
fn without_room(node: &Node, pod: &Pod) -> Option<String> {
    let amounts = charged(pod.spec.clone()?);
    let offered = requests::list(node.status.as_ref()?.allocatable.as_ref()?);
    if let Err(short) = amounts.fits_in(&offered) {
        let short: Vec<String> = short.iter().map(ToString::to_string).collect();
        return Some(format!("offers too little: {}", short.join(", ")));
    }
    let short = PricedNode::of(&node.name_any(), node.labels().clone(), node.annotations())
        .largest_pods
        .may_take(&amounts)
        .err()?;
    Some(format!(
        "no node there has room for the pod: {}",
        short_on_largest_node(&short)
    ))
}

/// Whether a pod of an offloaded namespace may go to virtual nodes at all.
fn toleration(facts: &PodFacts) -> Option<Step> {
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
        Step::new(
            StepName::Toleration,
            Verdict::Ok,
            "the pod tolerates virtual nodes",
        )
    } else {
        let what = "the pod does not tolerate virtual nodes: it was created before the namespace was offloaded, or while the admission webhook did not answer";
        Step::new(StepName::Toleration, Verdict::Fail, what)
            .advise("delete the pod, so that its controller creates it again; `liqoctl doctor` checks the webhook")
    })
}

fn peer<'a>(facts: &'a PodFacts, id: &ClusterId) -> Read<Option<&'a ForeignCluster>> {
    let peers = facts.peers.as_ref().map_err(Clone::clone)?;
    Ok(peers.iter().find(|peer| peer.spec.cluster_id == *id))
}

/// The links of borrowing. The first one that does not work is the cause of the others.
fn peering(peer: Read<Option<&ForeignCluster>>) -> Step {
    let step = StepName::Peering;
    let peer = match peer {
        Err(why) => return Step::new(step, Verdict::Unknown, why),
        Ok(None) => {
            return Step::new(
                step,
                Verdict::Fail,
                "there is no ForeignCluster for the node's cluster",
            )
            .advise("the peering ended: a controller replaces the pod when the node is gone");
        }
        Ok(Some(peer)) => peer,
    };
    let name = peer.name_any();
    if peer.metadata.deletion_timestamp.is_some() {
        return Step::new(
            step,
            Verdict::Warn,
            format!("the peering with {name} is ending, and the pod with it"),
        );
    }
    link(step, &name, &links::BORROWING, peer)
        .unwrap_or_else(|| Step::new(step, Verdict::Ok, format!("every link to {name} works")))
}

/// The network to the peer, if there should be one.
fn network(peer: &ForeignCluster) -> Option<Step> {
    peer.condition(links::NETWORK_AGREED)?;
    let (step, name) = (StepName::Network, peer.name_any());
    Some(match link(step, &name, &links::NETWORK, peer) {
        // The pod runs without it.
        Some(broken) => Step {
            verdict: Verdict::Warn,
            ..broken
        },
        None => Step::new(
            step,
            Verdict::Ok,
            format!("the tunnel to {name} is connected"),
        ),
    })
}

/// The first link that does not work.
fn link(step: StepName, name: &str, chain: &[&str], peer: &ForeignCluster) -> Option<Step> {
    let holds = |kind: &&&str| {
        peer.condition(kind)
            .is_none_or(|condition| condition.status != "True")
    };
    let kind = chain.iter().find(holds)?;
    let Some(condition) = peer.condition(kind) else {
        return Some(Step::new(
            step,
            Verdict::Unknown,
            format!("{name}: {kind}: there is no condition yet"),
        ));
    };
    let verdict = if condition.status == "False" {
        Verdict::Fail
    } else {
        Verdict::Unknown
    };
    let what = format!(
        "{name}: {kind}: {}",
        words(Some(&condition.reason), Some(&condition.message))
    );
    Some(Step {
        advice: advice::of_link(kind, &condition.reason, peer),
        ..Step::new(step, verdict, what)
    })
}

/// Whether the pod's namespace is offloaded and, for a pod on a virtual node, whether it exists at
/// that provider.
fn namespace(facts: &PodFacts, provider: Option<&ClusterId>) -> Step {
    let step = StepName::Namespace;
    let name = facts.pod.namespace().unwrap_or_default();
    let offloading = match &facts.offloading {
        Err(why) => return Step::new(step, Verdict::Unknown, why),
        Ok(None) if facts.node_name().is_none() => {
            return Step::new(
                step,
                Verdict::Skipped,
                format!("{name} is not offloaded: its pods stay in this cluster"),
            )
            .advise(format!(
                "`liqoctl offload namespace {name}` lets new pods run in other clusters"
            ));
        }
        Ok(None) => {
            return Step::new(step, Verdict::Fail, format!("{name} is not offloaded")).advise(
                format!("`liqoctl offload namespace {name}`, or keep the pod off virtual nodes"),
            );
        }
        Ok(Some(offloading)) => offloading,
    };
    let strategy = offloading.spec.pod_offloading_strategy;
    if strategy == PodOffloadingStrategy::Local {
        let verdict = if facts.node_name().is_some() {
            Verdict::Warn
        } else {
            Verdict::Skipped
        };
        return Step::new(
            step,
            verdict,
            format!("{name} is offloaded with the strategy Local: new pods stay in this cluster"),
        );
    }
    match provider {
        Some(provider) => at(step, &name, offloading, facts.remote_namespace(provider)),
        None => in_general(step, &name, offloading),
    }
}

fn at(
    step: StepName,
    name: &str,
    offloading: &NamespaceOffloading,
    remote: Option<&RemoteNamespace>,
) -> Step {
    let strategy = offloading.spec.pod_offloading_strategy;
    match remote {
        None => Step::new(step, Verdict::Fail, format!("{name} is offloaded ({strategy:?}), but not to the node's cluster"))
            .advise("the clusterSelector of its NamespaceOffloading does not select that cluster, or not yet"),
        Some(remote) if remote.ready => {
            Step::new(step, Verdict::Ok, format!("{name} is {} in {} ({strategy:?})", remote.namespace, remote.cluster_name))
        }
        Some(remote) => {
            let why = remote.message.as_deref().unwrap_or("it is being created");
            Step::new(step, Verdict::Fail, format!("{name} is not ready in {}: {why}", remote.cluster_name))
                .advise(advice::of_namespace(ready(offloading).map_or("", |(_, reason, _)| reason)))
        }
    }
}

fn in_general(step: StepName, name: &str, offloading: &NamespaceOffloading) -> Step {
    let strategy = offloading.spec.pod_offloading_strategy;
    match ready(offloading) {
        Some(("True", ..)) => Step::new(
            step,
            Verdict::Ok,
            format!("{name} is offloaded ({strategy:?})"),
        ),
        Some((_, reason, message)) => Step::new(
            step,
            Verdict::Fail,
            format!("{name}: {}", words(Some(reason), Some(message))),
        )
        .advise(advice::of_namespace(reason)),
        None => Step::new(
            step,
            Verdict::Unknown,
            format!("{name}: there is no condition yet"),
        ),
    }
}

/// Status, reason and message of the condition Ready.
fn ready(offloading: &NamespaceOffloading) -> Option<(&str, &str, &str)> {
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

fn shadow_pod(facts: &PodFacts, provider: &AtProvider) -> Step {
    let step = StepName::ShadowPod;
    let shadow: &ShadowPod = match &provider.shadow_pod {
        Err(why) => return Step::new(step, Verdict::Unknown, why),
        Ok(None) if matches!(phase(&facts.pod), "Succeeded" | "Failed") => {
            return Step::new(
                step,
                Verdict::Skipped,
                "there is none any more: the pod has ended",
            );
        }
        Ok(None) => {
            return Step::new(step, Verdict::Warn, "the provider has none: the pod is not sent, or is gone there")
                .advise("the earlier steps and the conditions say why; the manager sends it when they allow it");
        }
        Ok(Some(shadow)) => shadow,
    };
    let status = shadow.status.clone().unwrap_or_default();
    let reason = status.reason.as_deref();
    let said = match (reason, status.message.as_deref()) {
        (None, None) => format!("{:?}", status.phase),
        (reason, message) => format!("{:?}: {}", status.phase, words(reason, message)),
    };
    match status.phase {
        ShadowPodPhase::Created | ShadowPodPhase::Succeeded | ShadowPodPhase::Failed => Step::new(step, Verdict::Ok, said),
        ShadowPodPhase::Pending => Step::new(step, Verdict::Warn, said)
            .advise(reason.map_or("the provider has not handled it yet: is its manager alive?", advice::of_refusal)),
        ShadowPodPhase::Refused => {
            Step::new(step, Verdict::Fail, said).advise(advice::of_refusal(reason.unwrap_or(OffloadedReason::Refused.as_str())))
        }
        ShadowPodPhase::Lost => Step::new(step, Verdict::Fail, said)
            .advise("the remote pod is gone, and must not run twice: a controller replaces it, otherwise create it again"),
    }
}

/// The conditions that this cluster wrote on the local pod about the remote one. A pod that was
/// accepted at once has none.
fn conditions(pod: &Pod) -> Vec<Step> {
    let step = StepName::Conditions;
    let mut steps = Vec::new();
    if let Some(offloaded) = condition(pod, pods::OFFLOADED) {
        let reason = offloaded.reason.as_deref().unwrap_or_default();
        let what = format!(
            "{} is {}: {}",
            pods::OFFLOADED,
            offloaded.status,
            words(Some(reason), offloaded.message.as_deref())
        );
        steps.push(match offloaded.status.as_str() {
            "False" => Step::new(step, Verdict::Fail, what).advise(advice::of_refusal(reason)),
            "True" if pods::INCOMPLETE.contains(&reason) => {
                Step::new(step, Verdict::Warn, what).advise(advice::of_incomplete(reason))
            }
            "True" => Step::new(step, Verdict::Ok, what),
            _ => Step::new(step, Verdict::Warn, what).advise(advice::of_refusal(reason)),
        });
    }
    if let Some(unplaced) =
        condition(pod, pods::REMOTE_SCHEDULED).filter(|condition| condition.status == "False")
    {
        let why = words(unplaced.reason.as_deref(), unplaced.message.as_deref());
        let step = Step::new(
            step,
            Verdict::Warn,
            format!("{} is False: {why}", pods::REMOTE_SCHEDULED),
        );
        steps.push(step.advise(advice::UNPLACED));
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
    reason.or(message).map(|_| words(reason, message))
}

/// The pod's node at its provider. A broker does not name the clusters behind it, and the
/// provider's pool may have nodes of both kinds.
fn node_there(spec: &PodSpec) -> Option<String> {
    let node = spec.node_name.as_deref()?;
    let is_lent_on = spec
        .tolerations
        .iter()
        .flatten()
        .any(|one| one.key.as_deref() == Some(pods::VIRTUAL_NODE_TAINT));
    Some(if is_lent_on {
        ", there or behind it".to_owned()
    } else {
        format!(", on node {node} there")
    })
}

/// The limits that the provider adds to the pod.
fn limits(facts: &PodFacts, provider: &AtProvider) -> Option<Step> {
    let spec = provider.remote_pod.as_ref().ok()?.as_ref()?.spec.as_ref()?;
    let theirs = json!(
        [
            &spec.containers,
            spec.init_containers.as_deref().unwrap_or_default()
        ]
        .concat()
    );
    let added = added(&json!(facts.pod), theirs.as_array()?)?;
    let more = "set a limit of its own where a container needs more";
    Some(Step::new(StepName::Limits, Verdict::Ok, added).advise(more))
}

fn remote_pod(facts: &PodFacts, provider: &AtProvider) -> Step {
    let step = StepName::RemotePod;
    let reported = || {
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
    };
    let (status, node) = match &provider.remote_pod {
        Ok(Some(pod)) => (pod.status.clone(), pod.spec.as_ref().and_then(node_there)),
        Ok(None) => (reported(), None),
        Err(why) => match reported() {
            Some(status) => (Some(status), None),
            None => return Step::new(step, Verdict::Unknown, why),
        },
    };
    let Some(status) = status else {
        return Step::new(step, Verdict::Skipped, "there is none");
    };
    let on = node.unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let is_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    match phase {
        "Succeeded" => Step::new(step, Verdict::Ok, format!("{phase}{on}")),
        "Failed" => Step::new(
            step,
            Verdict::Fail,
            format!(
                "Failed{on}: {}",
                words(status.reason.as_deref(), status.message.as_deref())
            ),
        ),
        _ if is_ready => Step::new(step, Verdict::Ok, format!("{phase}, Ready{on}")),
        _ => match (trouble(facts, &status, true), readiness::obstacle(&status)) {
            (Some(trouble), _) => not_ready(step, &format!("{phase}, not Ready{on}"), trouble),
            (None, Some(unscheduled)) => {
                Step::new(step, Verdict::Warn, format!("{phase}{on}: {unscheduled}"))
                    .advise(advice::UNPLACED)
            }
            (None, None) => {
                let why = not_ready_because(&status)
                    .map(|why| format!(": {why}"))
                    .unwrap_or_default();
                Step::new(
                    step,
                    Verdict::Unknown,
                    format!("{phase}, not Ready{on}{why}"),
                )
                .advise(describe(facts))
            }
        },
    }
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests;
