//! Charges the consumers' pods to pools and nodes.

use std::collections::{BTreeMap, HashMap, HashSet};

use liqo_api::ResourceList;
use liqo_api::requests::EffectiveAmounts;

use super::{
    allocations::{PoolAllocation, PoolNodes},
    pricing::PartitionUse,
};
use crate::decide::{
    free_capacity, ledger,
    pods_by_node::PodsByNode,
    pools::NodePartition,
    prices::Utilization,
    reduce::{ClaimedOwner, LocalNode, PodUsage},
    shares::{PartitionBudget, Shares},
    snapshot::{ProviderSnapshot, Requester},
};

/// Resources that the pods use, by place.
pub struct PoolUsage<'a> {
    /// For each allocation, by partition.
    by_partition: Vec<BTreeMap<usize, ResourceList>>,
    /// For each allocation, what its pods without a node use. [`Self::charge_waiting`] moves it to
    /// partitions.
    waiting: BTreeMap<usize, ResourceList>,
    /// Pools that must not exist but have pods, each with the index of its consumer.
    pub withdrawn_in_use: HashSet<(usize, &'a str)>,
    /// Resources of each partition, minus all use that is charged to no allocation.
    pub free: Vec<ResourceList>,
    /// The same, and pods of plugins' pools take nothing, wherever they are and wait.
    pub free_for_plugins: Vec<ResourceList>,
    /// The nodes that are pools of their own.
    pub nodes: HashMap<String, NodeUse>,
}

/// A node that is a pool of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeUse {
    /// Its resources, minus all use that is charged to no allocation.
    pub free: ResourceList,
    /// Resources of pods on it that are charged to other pools.
    pub by_others: ResourceList,
}

/// The allocation to which the pods of a pool are charged.
#[derive(Clone, Copy)]
struct ChargedTo {
    /// Index of the allocation.
    allocation: usize,
    /// Index of the node in it, if the node is a pool of its own.
    node_pool: Option<usize>,
}

/// Whether a pod was charged to a pool that has nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChargeResult {
    ToPool,
    /// To a pool of a plugin, so it reduces what others can get.
    OfPlugin,
    Nowhere,
}

/// Whether a pool does not have a node of this partition any more. What a provider takes back is in
/// no partition: it has an end of its own.
fn has_left(allocation: &PoolAllocation, partition: &NodePartition, node: &str) -> bool {
    let found = partition
        .nodes
        .binary_search_by_key(&node, |(name, _)| *name)
        .ok()
        .and_then(|at| partition.nodes.get(at));
    found.is_some_and(|(_, node)| !allocation.has_node(partition, node))
}

/// Resources that are taken from nodes and charged to no pool that has nodes.
#[derive(Default)]
struct Displaced<'a> {
    on_nodes: HashMap<&'a str, ResourceList>,
    /// The same without pods of plugins' pools.
    by_others: HashMap<&'a str, ResourceList>,
    waiting: Vec<(&'a PodUsage, ChargeResult)>,
}

impl<'a> Displaced<'a> {
    fn add(&mut self, node: &'a str, requests: &ResourceList, charged: ChargeResult) {
        if charged != ChargeResult::ToPool {
            *self.on_nodes.entry(node).or_default() += requests;
        }
        if charged == ChargeResult::Nowhere {
            *self.by_others.entry(node).or_default() += requests;
        }
    }

    /// What a node has not free: for pods of this cluster, and for these.
    fn taken_on<'t>(&'t self, node: &str, pods: &'t PodsByNode) -> [Option<&'t ResourceList>; 2] {
        [pods.own_requests(node), self.on_nodes.get(node)]
    }
}

impl ChargedTo {
    /// For each requester, by the name of the pool.
    fn by_pool(allocations: &[PoolAllocation]) -> HashMap<usize, HashMap<String, Self>> {
        let mut all: HashMap<usize, HashMap<String, Self>> = HashMap::new();
        for (index, allocation) in allocations.iter().enumerate() {
            let is_divided = matches!(allocation.nodes, PoolNodes::Divided(_));
            let pools = all.entry(allocation.requester).or_default();
            pools.extend(allocation.offer_names().enumerate().map(|(at, pool)| {
                (
                    pool.to_owned(),
                    Self {
                        allocation: index,
                        node_pool: is_divided.then_some(at),
                    },
                )
            }));
        }
        all
    }
}

/// Charges pods one by one.
struct PodCharging<'a, 'b, 'c> {
    snapshot: &'a ProviderSnapshot,
    partitions: &'b [NodePartition<'b>],
    /// Indices of the requesters.
    consumers: HashMap<&'b str, usize>,
    by_pool: HashMap<usize, HashMap<String, ChargedTo>>,
    /// A consumer has pods of one pool on many nodes, so each owner is looked up once.
    charged_to: HashMap<&'a ClaimedOwner, Option<ChargedTo>>,
    allocations: &'b mut [PoolAllocation<'c>],
    usage: PoolUsage<'a>,
}

impl<'a> PodCharging<'a, '_, '_> {
    fn look_up(&mut self, owner: &'a ClaimedOwner) -> Option<ChargedTo> {
        if let Some(known) = self.charged_to.get(owner) {
            return *known;
        }
        let found = self.find_allocation(owner);
        self.charged_to.insert(owner, found);
        found
    }

    fn find_allocation(&mut self, owner: &'a ClaimedOwner) -> Option<ChargedTo> {
        let (consumer, pool) = self.snapshot.verified_owner(owner)?;
        let &consumer = self.consumers.get(consumer)?;
        let found = self
            .by_pool
            .get(&consumer)
            .and_then(|pools| pools.get(pool))
            .copied();
        if found.is_none() {
            self.usage.withdrawn_in_use.insert((consumer, pool));
        }
        found
    }

    /// Charges a pod on a node. `partition` is that of the node.
    fn charge_pod(
        &mut self,
        owner: &'a ClaimedOwner,
        resources: &EffectiveAmounts,
        node: &str,
        partition: Option<usize>,
    ) -> ChargeResult {
        let Some(ChargedTo {
            allocation: index,
            node_pool,
        }) = self.look_up(owner)
        else {
            return ChargeResult::Nowhere;
        };
        let (partitions, usage) = (self.partitions, &mut self.usage);
        let allocation = &mut self.allocations[index];
        let charged = resources.charged_amounts(allocation.policy.usage.charge);
        allocation.charge(node_pool, charged);
        if !owner.is_ending
            && partition.is_some_and(|here| has_left(allocation, &partitions[here], node))
        {
            allocation.has_left_nodes = true;
        }
        let node_pool = node_pool.map(|at| &allocation.node_pools()[at]);
        match partition {
            // A plugin's pool has no nodes of its own, so its pods reduce what others can get.
            _ if allocation.is_of_plugin() => return ChargeResult::OfPlugin,
            None if let Some(pool) = node_pool => {
                *usage.by_partition[index].entry(pool.partition).or_default() += charged;
            }
            // A waiting pod gets a node of its pool, and a pod whose node is gone ends.
            None if partitions
                .iter()
                .any(|partition| allocation.includes(partition)) =>
            {
                *usage.waiting.entry(index).or_default() += charged;
            }
            Some(here) if allocation.includes(&partitions[here]) => {
                *usage.by_partition[index].entry(here).or_default() += charged;
                if let Some(on_node) = usage
                    .nodes
                    .get_mut(node)
                    .filter(|_| node_pool.is_none_or(|pool| pool.node != node))
                {
                    on_node.by_others += charged;
                }
            }
            // The pod's node has left the pool.
            _ => return ChargeResult::Nowhere,
        }
        ChargeResult::ToPool
    }
}

impl<'a> PoolUsage<'a> {
    /// Charges each pod to the pool that it uses, and sets `in_use` and `floor` of the allocations.
    /// Every other pod reduces what is free on its node.
    pub fn count_pods(
        snapshot: &'a ProviderSnapshot,
        requesters: &[Requester<'_>],
        allocations: &mut [PoolAllocation<'_>],
        partitions: &[NodePartition],
    ) -> Self {
        let consumers: HashMap<&str, usize> = requesters
            .iter()
            .enumerate()
            .map(|(index, requester)| (requester.tenant.consumer.as_str(), index))
            .collect();
        let by_pool = ChargedTo::by_pool(allocations);
        let nodes = allocations.iter().flat_map(PoolAllocation::node_pools);
        let nodes = nodes
            .map(|pool| (pool.node.clone(), NodeUse::default()))
            .collect();
        let by_node: HashMap<&str, usize> = partitions
            .iter()
            .enumerate()
            .flat_map(|(index, partition)| {
                partition.nodes.iter().map(move |(name, _)| (*name, index))
            })
            .collect();
        let usage = Self {
            by_partition: vec![BTreeMap::new(); allocations.len()],
            waiting: BTreeMap::new(),
            withdrawn_in_use: HashSet::new(),
            free: Vec::new(),
            free_for_plugins: Vec::new(),
            nodes,
        };
        let mut charging = PodCharging {
            snapshot,
            partitions,
            consumers,
            by_pool,
            charged_to: HashMap::new(),
            allocations,
            usage,
        };
        let mut displaced = Displaced::default();
        for (node, sums) in snapshot.pods.sums() {
            let partition = if sums.claimed.is_empty() {
                None
            } else {
                by_node.get(node).copied()
            };
            for (owner, resources) in &sums.claimed {
                displaced.add(
                    node,
                    &resources.requests,
                    charging.charge_pod(owner, resources, node, partition),
                );
            }
        }
        for pod in snapshot.pods.unbound_pods() {
            let charged = pod.owner.as_ref().map_or(ChargeResult::Nowhere, |owner| {
                charging.charge_pod(owner, &pod.resources, "", None)
            });
            displaced
                .waiting
                .extend((charged != ChargeResult::ToPool).then_some((pod, charged)));
        }
        let PodCharging {
            allocations,
            mut usage,
            ..
        } = charging;
        for allocation in allocations.iter_mut() {
            allocation.floor = allocation.in_use.clone();
        }
        usage.set_free(snapshot, allocations, partitions, &displaced);
        usage
    }

    /// Sets what partitions and nodes have free.
    fn set_free(
        &mut self,
        snapshot: &ProviderSnapshot,
        allocations: &[PoolAllocation],
        partitions: &[NodePartition],
        displaced: &Displaced,
    ) {
        let nodes: Vec<&[(&str, &LocalNode)]> = partitions
            .iter()
            .map(|partition| partition.nodes.as_slice())
            .collect();
        let pods = &snapshot.pods;
        let waiting: Vec<&PodUsage> = displaced.waiting.iter().map(|(pod, _)| *pod).collect();
        self.free =
            free_capacity::free_resources(&nodes, |node| displaced.taken_on(node, pods), &waiting);
        if allocations.iter().any(PoolAllocation::is_of_plugin) {
            let waiting = displaced
                .waiting
                .iter()
                .filter(|(_, charged)| *charged == ChargeResult::Nowhere);
            let waiting: Vec<&PodUsage> = waiting.map(|(pod, _)| *pod).collect();
            self.free_for_plugins = free_capacity::free_resources(
                &nodes,
                |node| [pods.own_requests(node), displaced.by_others.get(node)],
                &waiting,
            );
        }
        for &(name, node) in nodes.iter().copied().flatten() {
            if let Some(on_node) = self.nodes.get_mut(name) {
                let taken = displaced.taken_on(name, pods);
                on_node.free =
                    free_capacity::free_resources(&[&[(name, node)]], |_| taken, &[]).remove(0);
            }
        }
    }

    /// Returns the use of a node that is a pool of its own.
    pub fn node(&self, name: &str) -> &NodeUse {
        &self.nodes[name]
    }

    /// Charges pods without a node to the partitions of their pool: first where the consumer has
    /// some of its entitlement left, so that pods which are about to start change no offer; the
    /// rest where anything is left of `capacities`.
    pub fn charge_waiting(
        &mut self,
        allocations: &[PoolAllocation],
        partitions: &[NodePartition],
        entitlements: &Shares,
        capacities: Vec<ResourceList>,
    ) {
        let mut left = capacities;
        let nothing = ResourceList::new();
        for (&partition, used) in self.by_partition.iter().flatten() {
            left[partition] = left[partition].saturating_sub(used);
        }
        for (index, amount) in std::mem::take(&mut self.waiting) {
            let (allocation, used) = (&allocations[index], &mut self.by_partition[index]);
            let of_pool: Vec<usize> = (0..partitions.len())
                .filter(|&partition| allocation.includes(&partitions[partition]))
                .collect();
            let own: Vec<ResourceList> = of_pool
                .iter()
                .map(|&partition| {
                    let entitled = &entitlements[partition][&allocation.requester];
                    entitled
                        .saturating_sub(used.get(&partition).unwrap_or(&nothing))
                        .min(&left[partition])
                })
                .collect();
            let beyond = amount.saturating_sub(&own.iter().sum());
            let within = ledger::spread_by_capacity(&amount.saturating_sub(&beyond), &own);
            let rest: Vec<ResourceList> = of_pool
                .iter()
                .zip(&within)
                .map(|(&partition, part)| left[partition].saturating_sub(part))
                .collect();
            for ((partition, part), more) in of_pool
                .into_iter()
                .zip(within)
                .zip(ledger::spread_by_capacity(&beyond, &rest))
            {
                let part = part + &more;
                left[partition] = left[partition].saturating_sub(&part);
                *used.entry(partition).or_default() += &part;
            }
        }
    }

    /// Returns the utilization of each partition, with `promised` as its total. The key has the
    /// pools of the partition, for each policy.
    pub fn of_partitions<'p>(
        &self,
        partitions: &'p [NodePartition<'p>],
        promised: impl Iterator<Item = ResourceList>,
    ) -> Vec<PartitionUse<'p>> {
        let mut used = vec![ResourceList::new(); partitions.len()];
        for (&partition, amount) in self.by_partition.iter().flatten() {
            used[partition] += amount;
        }
        partitions
            .iter()
            .zip(used)
            .zip(promised)
            .map(|((partition, used), total)| PartitionUse {
                partition,
                utilization: Utilization { used, total },
            })
            .collect()
    }

    /// The budget of each partition, with the floors of its claimants.
    pub fn partition_budgets(
        &self,
        allocations: &[PoolAllocation],
        partitions: &[NodePartition],
    ) -> Vec<PartitionBudget> {
        let mut budgets = Vec::new();
        for (index, partition) in partitions.iter().enumerate() {
            let mut budget = PartitionBudget {
                free: self.free[index].clone(),
                ..PartitionBudget::default()
            };
            let members = allocations.iter().zip(&self.by_partition);
            for (allocation, used) in
                members.filter(|(allocation, _)| allocation.includes(partition))
            {
                let floor = used.get(&index).filter(|_| !allocation.is_reclaimed());
                budget
                    .floors
                    .insert(allocation.requester, floor.cloned().unwrap_or_default());
                budget
                    .refused
                    .extend(allocation.refused.then_some(allocation.requester));
            }
            budgets.push(budget);
        }
        budgets
    }
}
