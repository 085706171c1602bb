//! Checks the prerequisites, and creates the namespaces of the workload.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::{
    ClusterId, Contract, ContractPhase, ForeignCluster, PodOffloadingStrategy, labels,
    provider_namespace,
};
use liqo_playground::{FAKE_NODE, NODE_KIND_LABEL, Write};
use liqo_quantity::Quantity;
use liqoctl::{
    cluster::Cluster,
    lists, offload,
    probes::{NamespaceSecurity, TestNamespaces},
    progress::StepProgress,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::writes::WriteLocation;
use crate::bench::{builds::measured_builds, clusters::is_served_by};

/// Components of the control plane whose client limits decide how fast a Deployment grows.
const LIMITED: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];
/// Time limit until the namespace exists at the provider.
const OFFLOADING_TIMEOUT: Duration = Duration::from_mins(1);

/// The clusters and namespaces in which the bench works.
pub(super) struct OffloadBenchSetup {
    pub home: ClusterId,
    pub offloaded: BenchVariant,
    pub plain: BenchVariant,
    /// The home cluster and the provider; empty outside of a playground.
    pub machines: Vec<liqo_playground::Cluster>,
    pub limits: Vec<ClientLimits>,
    pub notes: Vec<String>,
}

/// One of the two ways to run the pods.
pub(super) struct BenchVariant {
    pub title: &'static str,
    /// Cluster where the user creates the pods.
    pub cluster: Cluster,
    pub namespace: String,
    /// The provider and the namespace there, for pods that are offloaded.
    pub remote: Option<(Cluster, String)>,
    /// The part of a pod's spec that says where it runs.
    pub placement: Value,
}

/// Limits for the requests of a component of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientLimits {
    pub cluster: String,
    pub component: String,
    /// Requests per second; missing if the component uses its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

/// The result of [`find_provider`].
pub(super) struct BenchProvider {
    pub provider: Cluster,
    /// Labels of the virtual node for the fake nodes.
    selector: BTreeMap<&'static str, String>,
}

/// Finds the provider and the virtual node, or says what is missing.
pub(super) async fn find_provider(
    home: &Cluster,
    others: &[Cluster],
    foreign: &ForeignCluster,
    pods: u32,
) -> anyhow::Result<BenchProvider> {
    let name = foreign.display_name();
    let mut provider = None;
    for other in others {
        if other.require_installed().await?.id == foreign.spec.cluster_id {
            provider = Some(other.clone());
        }
    }
    let provider = provider.with_context(|| {
        format!("the bench also creates the pods directly at {name}: give its kubeconfig with --remote-kubeconfig, or use --playground")
    })?;
    let fake = BTreeMap::from([(NODE_KIND_LABEL, FAKE_NODE.to_owned())]);
    let room = allocatable_pods(&provider, &fake).await?.with_context(|| {
        format!(
            "{name} has no node with the label {NODE_KIND_LABEL}={FAKE_NODE}: `cargo playground up --fake-nodes 20` creates some"
        )
    })?;
    ensure!(
        room >= pods,
        "the fake nodes of {name} have room for {room} pods: use fewer with --pods, or add fake nodes"
    );
    let selector = BTreeMap::from([
        (labels::TYPE, labels::TYPE_VIRTUAL_NODE.to_owned()),
        (
            labels::REMOTE_CLUSTER_ID,
            foreign.spec.cluster_id.to_string(),
        ),
        (labels::POOL, FAKE_NODE.to_owned()),
    ]);
    let room = allocatable_pods(home, &selector).await?.with_context(|| {
        format!(
            "there is no virtual node for the fake nodes of {name}: they must be a separate pool, with granularity.by: NodeLabel and \
             granularity.label: {NODE_KIND_LABEL} in {name}'s PeeringPolicy. `cargo playground up --fake-nodes 20` sets that"
        )
    })?;
    ensure!(
        room >= pods,
        "{name} lends {room} pods on fake nodes: use fewer with --pods, or add fake nodes"
    );
    Ok(BenchProvider { provider, selector })
}

/// Maximum number of pods on the nodes with these labels together; nothing if there are no such
/// nodes.
async fn allocatable_pods(
    cluster: &Cluster,
    selector: &BTreeMap<&'static str, String>,
) -> anyhow::Result<Option<u32>> {
    let text: Vec<String> = selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let api: Api<Node> = Api::all(cluster.client.clone());
    let selected = ListParams::default().labels(&text.join(","));
    let nodes = lists::list_selected(&api, &selected, "the nodes").await?;
    let allocatable = nodes
        .iter()
        .filter_map(|node| node.status.as_ref()?.allocatable.as_ref()?.get("pods"));
    let pods = allocatable
        .filter_map(|pods| {
            pods.0
                .parse::<Quantity>()
                .ok()?
                .to_string()
                .parse::<u32>()
                .ok()
        })
        .sum();
    Ok((!nodes.is_empty()).then_some(pods))
}

/// The cluster of the playground that has this API server.
fn playground_cluster<'a>(
    machines: &'a [liqo_playground::Cluster],
    cluster: &Cluster,
) -> Option<&'a liqo_playground::Cluster> {
    machines
        .iter()
        .find(|machine| is_served_by(cluster, machine))
}

/// Creates the namespaces, and offloads one of them.
pub(super) async fn create_setup(
    (home, id): (&Cluster, &ClusterId),
    foreign: &ForeignCluster,
    prepared: BenchProvider,
    machines: &[liqo_playground::Cluster],
    namespaces: &TestNamespaces,
    prefix: &str,
    progress: &StepProgress,
) -> anyhow::Result<OffloadBenchSetup> {
    let BenchProvider { provider, selector } = prepared;
    let name = foreign.display_name();
    let namespace = namespaces
        .create_namespace(home, prefix, NamespaceSecurity::Restricted)
        .await?;
    let offloading = offload::OffloadOptions {
        strategy: Some(PodOffloadingStrategy::Remote),
        clusters: Some(offload::SelectedClusters::Matching(node_selector(
            &selector,
        ))),
        timeout: OFFLOADING_TIMEOUT,
        ..offload::OffloadOptions::default()
    };
    let offloaded = offload::offload(home, &namespace, &offloading, progress).await?;
    let Some(remote) = offloaded
        .remote
        .into_iter()
        .find(|remote| remote.cluster == name)
    else {
        bail!(
            "namespace {namespace} was not created at {name}: see `kubectl -n {namespace} describe namespaceoffloading`"
        );
    };
    let plain = namespaces
        .create_namespace(
            &provider,
            &format!("{prefix}-plain"),
            NamespaceSecurity::Restricted,
        )
        .await?;
    let machines: Vec<_> = [home, &provider]
        .into_iter()
        .filter_map(|cluster| playground_cluster(machines, cluster))
        .cloned()
        .collect();
    let mut notes = vec![measured_builds(&[home, &provider]).await?];
    notes.extend(contract_in_force(home, &foreign.spec.cluster_id).await?);
    if machines.is_empty() {
        notes.push(
            "writes, CPU time, memory and client limits are measured only if the clusters belong to a playground on this machine"
                .to_owned(),
        );
    }
    Ok(OffloadBenchSetup {
        home: id.clone(),
        offloaded: BenchVariant {
            title: "offloaded",
            cluster: home.clone(),
            namespace,
            remote: Some((provider.clone(), remote.namespace)),
            placement: json!({ "nodeSelector": selector }),
        },
        plain: BenchVariant {
            title: "plain",
            cluster: provider,
            namespace: plain,
            remote: None,
            placement: json!({ "nodeSelector": { NODE_KIND_LABEL: FAKE_NODE } }),
        },
        limits: machines.iter().flat_map(client_limits).collect(),
        machines,
        notes,
    })
}

/// The contract under which the pods will run, in words.
async fn contract_in_force(home: &Cluster, provider: &ClusterId) -> anyhow::Result<Option<String>> {
    let api: Api<Contract> = Api::namespaced(home.client.clone(), &provider_namespace(provider));
    let contracts = lists::list_selected(&api, &ListParams::default(), "the contracts").await?;
    let in_force = contracts.into_iter().find(|contract| {
        contract
            .status
            .as_ref()
            .is_some_and(|one| one.phase == ContractPhase::InForce)
    });
    Ok(in_force.map(|contract| {
        let (name, terms) = (contract.name_any(), &contract.spec.terms);
        format!(
            "under {name}, version {}, with periods of {} s",
            terms.version, terms.metering_period_seconds
        )
    }))
}

fn node_selector(labels: &BTreeMap<&'static str, String>) -> NodeSelector {
    let term = NodeSelectorTerm {
        match_expressions: Some(
            labels
                .iter()
                .map(|(key, value)| NodeSelectorRequirement {
                    key: (*key).to_owned(),
                    operator: "In".to_owned(),
                    values: Some(vec![value.clone()]),
                })
                .collect(),
        ),
        ..NodeSelectorTerm::default()
    };
    NodeSelector {
        node_selector_terms: vec![term],
    }
}

fn client_limits(machine: &liqo_playground::Cluster) -> Vec<ClientLimits> {
    let command_lines = machine.command_lines();
    LIMITED
        .into_iter()
        .filter_map(|component| {
            let arguments = command_lines.get(component)?;
            Some(ClientLimits {
                cluster: machine.name().to_owned(),
                component: component.to_owned(),
                qps: flag_value(arguments, "--kube-api-qps"),
                burst: flag_value(arguments, "--kube-api-burst"),
            })
        })
        .collect()
}

fn flag_value(arguments: &[String], name: &str) -> Option<u32> {
    arguments
        .iter()
        .find_map(|argument| argument.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

impl OffloadBenchSetup {
    /// Lengths of the audit logs now; nothing outside of a playground.
    pub fn audit_positions(&self) -> anyhow::Result<Option<Vec<u64>>> {
        let positions = self
            .machines
            .iter()
            .map(liqo_playground::Cluster::audit_position)
            .collect::<Result<Vec<_>, _>>()?;
        Ok((!positions.is_empty()).then_some(positions))
    }

    /// The writes in both clusters since these positions.
    pub fn writes_since(&self, positions: &[u64]) -> anyhow::Result<Vec<(WriteLocation, Write)>> {
        let mut all = Vec::new();
        for ((machine, position), location) in self
            .machines
            .iter()
            .zip(positions)
            .zip([WriteLocation::Home, WriteLocation::Provider])
        {
            all.extend(
                machine
                    .writes_since(*position)?
                    .into_iter()
                    .map(|write| (location, write)),
            );
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_from_the_command_line() {
        let arguments = [
            "kube-scheduler",
            "--kube-api-qps=1000",
            "--kube-api-burst=x",
        ]
        .map(str::to_owned);
        assert_eq!(
            (
                flag_value(&arguments, "--kube-api-qps"),
                flag_value(&arguments, "--kube-api-burst")
            ),
            (Some(1000), None)
        );
    }
}
