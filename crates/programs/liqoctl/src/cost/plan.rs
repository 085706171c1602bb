//! The costs of a workload at each place, and the reasons why it cannot run there. Pure.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use kube::ResourceExt as _;
use liqo_api::{
    Money, NamespaceOffloadingSpec, PodOffloadingStrategy, ResourceList, labels, requests,
    short_on_largest_node,
};
use liqo_offloading_rules::{
    namespace::node_selector,
    node::priced::{PricedNode, default_charge, default_charge_on_node, main_currency},
    pod::{carry::obstacle::pod_obstacle, preference},
};
use serde::Serialize;

use super::{amount_in_words, in_thirty_days, workload::PodWorkload};
use crate::{
    node_fit::why_not_on_node,
    output::{self, strip_control_characters},
};

/// The state of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct CostPlanFacts<'a> {
    pub nodes: &'a [Node],
    /// The unfinished pods that have a node, in all namespaces.
    pub pods: &'a [Pod],
    /// Names of peers, by their ID.
    pub peers: &'a BTreeMap<String, String>,
    /// Name of this cluster.
    pub own_name: &'a str,
    /// The offloading of the workload's namespace, if it is offloaded.
    pub offloaded: Option<&'a NamespaceOffloadingSpec>,
}

/// The computed costs of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadCosts {
    pub kind: String,
    pub name: String,
    pub namespace: String,
    pub replicas: u64,
    /// The resources that a provider charges for one pod.
    pub amounts: ResourceList,
    /// Possible ones first, then the cheapest.
    pub places: Vec<PlaceCosts>,
}

/// A place where the workload could run: this cluster, or a virtual node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaceCosts {
    /// Name of this cluster or of the virtual node.
    pub name: String,
    /// Name of the peer; nothing for this cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Price of all replicas.
    pub per_hour: Money,
    pub per_thirty_days: Money,
    /// Nothing if it costs nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Number of the pods that have room now, at most all.
    pub fits: u64,
    /// The preference of new pods for it, by the placement of the namespace: 1 is the best. Nothing
    /// without a placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// The reasons why not all of them can run there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why_not: Vec<String>,
}

/// Computes the costs of the workload at each place.
pub fn plan_workload_costs(
    workload: &PodWorkload,
    facts: &CostPlanFacts,
) -> anyhow::Result<WorkloadCosts> {
    let spec: PodSpec =
        serde_json::from_value(workload.pod["spec"].clone()).with_context(|| {
            format!(
                "the pod template of {} {} cannot be read",
                workload.kind, workload.name
            )
        })?;
    let all = CandidateNodes::with_free_resources(facts);
    let asked = PricedWorkload {
        workload,
        spec: &spec,
        amounts: default_charge(spec.clone()),
        obstacle: pod_obstacle(&workload.pod).map(|one| one.message),
    };
    let main = main_currency(
        all.virtual_nodes
            .iter()
            .filter_map(|one| one.priced.cost_per_hour(&asked.amounts).1),
    );
    let ranks = rank_places(&asked, facts, &all);
    let mut places: Vec<(bool, PlaceCosts)> = vec![(true, own_place(&asked, facts, &all, &ranks))];
    for node in &all.virtual_nodes {
        let place = costs_at_node(&asked, facts, node, &ranks, main);
        places.push((
            place.currency.is_none() || place.currency.as_deref() == main,
            place,
        ));
    }
    // Amounts in another currency are not comparable, so they come last.
    places.sort_by_cached_key(|(comparable, place)| {
        (
            !place.why_not.is_empty(),
            !comparable,
            place.per_hour,
            place.peer.is_some(),
            place.name.clone(),
        )
    });
    let PodWorkload {
        kind,
        name,
        namespace,
        replicas,
        ..
    } = workload.clone();
    let places = places.into_iter().map(|(_, place)| place).collect();
    Ok(WorkloadCosts {
        kind,
        name,
        namespace,
        replicas,
        amounts: asked.amounts,
        places,
    })
}

/// The workload that the user asked about.
struct PricedWorkload<'a> {
    workload: &'a PodWorkload,
    spec: &'a PodSpec,
    amounts: ResourceList,
    /// The reason why the pods can run in no other cluster.
    obstacle: Option<String>,
}

/// A node and what is free there.
struct NodeWithFreeResources<'a> {
    node: &'a Node,
    priced: PricedNode,
    free: ResourceList,
}

struct CandidateNodes<'a> {
    own: Vec<NodeWithFreeResources<'a>>,
    virtual_nodes: Vec<NodeWithFreeResources<'a>>,
}

impl<'a> CandidateNodes<'a> {
    fn with_free_resources(facts: &CostPlanFacts<'a>) -> Self {
        let (mut own, mut virtual_nodes) = (Vec::new(), Vec::new());
        for node in facts.nodes {
            let is_virtual = node
                .labels()
                .get(labels::TYPE)
                .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE);
            let name = node.name_any();
            let on_it = facts.pods.iter().filter(|pod| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&name)
            });
            let charge = if is_virtual {
                default_charge_on_node
            } else {
                requests::of_bound_pod
            };
            let used = on_it.fold(ResourceList::new(), |sum, pod| {
                let (spec, status) = (
                    pod.spec.clone().unwrap_or_default(),
                    pod.status.clone().unwrap_or_default(),
                );
                sum + &charge(pod.metadata.generation, spec, &status)
            });
            let amounts = node
                .status
                .as_ref()
                // `used` already has what the pods of a virtual node are charged beyond their requests.
                .and_then(|status| {
                    if is_virtual {
                        status.capacity.as_ref()
                    } else {
                        status.allocatable.as_ref()
                    }
                });
            let free = amounts
                .map(requests::parse_amounts)
                .unwrap_or_default()
                .saturating_sub(&used);
            let one = NodeWithFreeResources {
                node,
                priced: PricedNode::from_metadata(&name, node.labels().clone(), node.annotations()),
                free,
            };
            if is_virtual {
                virtual_nodes.push(one);
            } else {
                own.push(one);
            }
        }
        Self { own, virtual_nodes }
    }
}

/// Number of pods with these requests that have room.
fn pods_that_fit(free: &ResourceList, amounts: &ResourceList) -> u64 {
    let of_each = amounts
        .iter()
        .filter(|(_, amount)| !amount.is_zero() && !amount.is_negative());
    let counts = of_each.map(|(name, amount)| free.get(name).nanos() / amount.nanos());
    counts
        .min()
        .map_or(u64::MAX, |count| u64::try_from(count).unwrap_or_default())
}

/// Ranks by the name of the virtual node. `None` is this cluster.
type PlaceRanks = BTreeMap<Option<String>, usize>;

/// The ranks of places by the placement of the namespace.
fn rank_places(asked: &PricedWorkload, facts: &CostPlanFacts, all: &CandidateNodes) -> PlaceRanks {
    let Some(spec) = facts.offloaded else {
        return BTreeMap::new();
    };
    let Some(placement) = &spec.placement else {
        return BTreeMap::new();
    };
    let nodes: Vec<&PricedNode> = all
        .virtual_nodes
        .iter()
        .map(|one| &one.priced)
        .filter(|node| is_selected(spec, node))
        .collect();
    let (strategy, amounts, own_name) =
        (spec.pod_offloading_strategy, &asked.amounts, facts.own_name);
    let classes = preference::node_classes(&preference::PreferenceFacts {
        placement,
        strategy,
        nodes: &nodes,
        amounts,
        own_name,
    });
    let places = classes.into_iter().enumerate().flat_map(|(index, class)| {
        let own = class.own.then_some(None);
        own.into_iter()
            .chain(class.nodes.into_iter().map(|name| Some(name.to_owned())))
            .map(move |place| (place, index + 1))
    });
    places.collect()
}

fn is_selected(spec: &NamespaceOffloadingSpec, node: &PricedNode) -> bool {
    node_selector::selects_node(spec.cluster_selector.as_ref(), &node.name, &node.labels)
}

fn own_place(
    asked: &PricedWorkload,
    facts: &CostPlanFacts,
    all: &CandidateNodes,
    ranks: &PlaceRanks,
) -> PlaceCosts {
    let (replicas, namespace) = (asked.workload.replicas, &asked.workload.namespace);
    let needed = requests::of_pod(asked.spec);
    let taking: Vec<&NodeWithFreeResources> = all
        .own
        .iter()
        .filter(|one| why_not_on_node(asked.spec, one.node).is_none())
        .collect();
    let room = taking
        .iter()
        .map(|one| pods_that_fit(&one.free, &needed))
        .fold(0, u64::saturating_add);
    let fits = room.min(replicas);
    let mut why_not = Vec::new();
    // Pods that can run in no other cluster stay here, whatever the strategy says.
    if asked.obstacle.is_none()
        && facts
            .offloaded
            .is_some_and(|spec| spec.pod_offloading_strategy == PodOffloadingStrategy::Remote)
    {
        why_not.push(format!("the strategy of namespace {namespace} is Remote"));
    }
    if taking.is_empty() {
        why_not.push(
            "no node here takes the pods: see their node selector, affinity and tolerations"
                .to_owned(),
        );
    } else if fits < replicas {
        why_not.push(format!("there is room for {fits} of {replicas} pods now"));
    }
    PlaceCosts {
        name: facts.own_name.to_owned(),
        peer: None,
        per_hour: Money::ZERO,
        per_thirty_days: Money::ZERO,
        currency: None,
        fits,
        rank: ranks.get(&None).copied(),
        why_not,
    }
}

fn costs_at_node(
    asked: &PricedWorkload,
    facts: &CostPlanFacts,
    one: &NodeWithFreeResources,
    ranks: &PlaceRanks,
    main: Option<&str>,
) -> PlaceCosts {
    let (replicas, name) = (asked.workload.replicas, one.priced.name.clone());
    let (of_one, currency) = one.priced.cost_per_hour(&asked.amounts);
    let per_hour = Money::from_nanos(of_one.nanos().saturating_mul(i128::from(replicas)));
    let on_one_node = one.priced.largest_pods.may_have_room(&asked.amounts);
    let fits = if on_one_node.is_ok() {
        pods_that_fit(&one.free, &asked.amounts).min(replicas)
    } else {
        0
    };
    let mut why_not: Vec<String> = reason_not_allowed(asked, facts, &one.priced)
        .into_iter()
        .collect();
    why_not.extend(why_not_on_node(asked.spec, one.node));
    if fits == 0 && replicas > 0 {
        let short = asked.amounts.fits_in(&one.free).err().unwrap_or_default();
        let short: Vec<String> = short.iter().map(ToString::to_string).collect();
        why_not.push(match on_one_node {
            Err(on_one_node) if short.is_empty() => {
                format!("no node has room: {}", short_on_largest_node(&on_one_node))
            }
            _ => format!("there is no room: {}", short.join(", ")),
        });
    } else if fits < replicas {
        why_not.push(format!("there is room for {fits} of {replicas} pods now"));
    }
    if let (Some(currency), Some(main)) = (currency, main)
        && currency != main
    {
        why_not.push(format!(
            "{currency} cannot be compared with {main}, so it counts as the most expensive"
        ));
    }
    let peer = facts
        .peers
        .get(one.priced.cluster_id())
        .map_or_else(|| one.priced.cluster_id(), String::as_str);
    PlaceCosts {
        rank: ranks.get(&Some(name.clone())).copied(),
        peer: Some(peer.to_owned()),
        name,
        per_hour,
        per_thirty_days: in_thirty_days(per_hour),
        currency: currency.map(str::to_owned),
        fits,
        why_not,
    }
}

/// The reason why the namespace does not let its pods go to a virtual node.
fn reason_not_allowed(
    asked: &PricedWorkload,
    facts: &CostPlanFacts,
    node: &PricedNode,
) -> Option<String> {
    let namespace = &asked.workload.namespace;
    if let Some(obstacle) = &asked.obstacle {
        return Some(obstacle.clone());
    }
    match facts.offloaded {
        None => Some(format!(
            "namespace {namespace} is not offloaded: `liqoctl offload namespace {namespace}`"
        )),
        Some(spec) if spec.pod_offloading_strategy == PodOffloadingStrategy::Local => {
            Some(format!("the strategy of namespace {namespace} is Local"))
        }
        Some(spec) if !is_selected(spec, node) => Some(format!(
            "the cluster selector of namespace {namespace} does not select it"
        )),
        Some(_) => None,
    }
}

/// The plan as text for people.
pub fn render_workload_costs(planned: &[WorkloadCosts]) -> String {
    planned
        .iter()
        .map(table_of)
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn table_of(planned: &WorkloadCosts) -> String {
    let WorkloadCosts {
        kind,
        name,
        namespace,
        replicas,
        amounts,
        places,
    } = planned;
    let amounts = amounts.iter().filter(|(_, amount)| !amount.is_zero());
    let amounts: Vec<String> = amounts
        .map(|(name, amount)| format!("{name} {amount}"))
        .collect();
    let pods = if *replicas == 1 { "pod" } else { "pods" };
    let head = format!(
        "{kind} {name} in namespace {namespace}: {replicas} {pods}, each {}",
        amounts.join(", ")
    );
    let header = [
        "PLACE",
        "FIT NOW",
        "PER HOUR",
        "PER 30 DAYS",
        "RANK",
        "WHY NOT",
    ];
    format!(
        "{head}\n{}",
        output::format_table(
            &header,
            places.iter().map(|place| place_row(place, *replicas))
        )
    )
}

fn place_row(place: &PlaceCosts, replicas: u64) -> Vec<String> {
    let [per_hour, per_month] = [place.per_hour, place.per_thirty_days]
        .map(|amount| amount_in_words(amount, place.currency.as_deref()));
    let rank = place
        .rank
        .map_or_else(|| "-".to_owned(), |rank| rank.to_string());
    let why_not = if place.why_not.is_empty() {
        "-".to_owned()
    } else {
        strip_control_characters(&place.why_not.join("; "))
    };
    vec![
        strip_control_characters(&place.name),
        format!("{}/{replicas}", place.fits),
        per_hour,
        per_month,
        rank,
        why_not,
    ]
}

#[cfg(test)]
mod tests;
