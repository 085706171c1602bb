//! `liqoctl policy`: shows the policies, the peers that each applies to, and the results for one
//! peer.
//!
//! To compute an offer, this module builds the controllers' own snapshot from the lists of the API
//! server, and calls their own decision.

mod contract_words;
mod explain;
#[cfg(test)]
mod page;
mod price_words;
mod render;
#[cfg(test)]
mod tests;
mod words;

use std::{cmp::Reverse, fmt::Write as _, sync::Arc};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _, api::ListParams, core::DeserializeGuard};
use liqo_api::conditions::StatusCondition as _;
use liqo_api::isolation::Lending;
use liqo_api::policies::{PolicyPeer, policies_of_peer};
use liqo_api::{ACTIVE, Accept, ForeignCluster, HONOURED, PeeringPolicy, ResourceRequest, labels};
use liqo_sharing::decide::{
    lists::ObjectLists, scheduled_pod::ScheduledPod, snapshot::OwnWorkingMode,
};
use serde::Serialize;

use crate::{
    cluster::Cluster,
    lists::{self, NodeSelection},
    output::{self, strip_control_characters},
};

pub use explain::{
    ExplainedPeer, PolicyExplanation, UnknownPeerError, explain_policy, peer_to_explain,
};
pub use render::render_policy_explanation;
pub use words::{PolicySentence, peers_in_words, shares_in_words, source_in_short};

/// Maximum number of peers to name in a cell of the table.
const MAX_PEERS_NAMED: usize = 5;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedPolicy {
    pub name: String,
    pub priority: i32,
    /// The peers that it is for, as text.
    pub peers: String,
    /// The known peers that it selects, and that no policy before it does.
    pub holds_for: Vec<String>,
    /// The known peers that it also selects, but to which an earlier policy applies.
    pub also_selects: Vec<String>,
    /// The source of the amounts, as text.
    pub source: String,
    /// How much is shared, as text.
    pub shares: String,
    /// Who decides on offers.
    pub accept: Accept,
    /// `yes`, or why the provider cannot keep its promises now; nothing if the provider has not
    /// reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub honoured: Option<String>,
    /// Why it applies to no peer, as the provider reported it; nothing if it applies to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inactive: Option<String>,
}

/// All policies, in the order in which Liqo tries them.
pub async fn list_policies(cluster: &Cluster) -> anyhow::Result<Vec<ListedPolicy>> {
    let policies = lists::list_peering_policies(cluster).await?;
    let foreign = lists::list_peers(cluster).await?;
    Ok(policy_rows(policies, &foreign))
}

fn policy_rows(policies: Vec<PeeringPolicy>, foreign: &[ForeignCluster]) -> Vec<ListedPolicy> {
    let policies = in_order_of_priority(policies);
    let mut rows: Vec<ListedPolicy> = policies
        .iter()
        .map(|policy| listed_policy(policy))
        .collect();
    for peer in foreign {
        let selecting = policies_of_peer(
            &policies,
            &PolicyPeer::new(&peer.spec.cluster_id, Some(peer)),
        );
        for (place, policy) in selecting.into_iter().enumerate() {
            let row = rows
                .iter_mut()
                .find(|row| Some(&row.name) == policy.metadata.name.as_ref());
            let Some(row) = row else { continue };
            if place == 0 {
                row.holds_for.push(peer.name_any());
            } else {
                row.also_selects.push(peer.name_any());
            }
        }
    }
    rows
}

/// The policies in the order in which Liqo tries them: by priority, the highest first, then by
/// name.
fn in_order_of_priority(policies: Vec<PeeringPolicy>) -> Vec<Arc<PeeringPolicy>> {
    let mut policies: Vec<Arc<PeeringPolicy>> = policies.into_iter().map(Arc::new).collect();
    policies.sort_by_key(|policy| (Reverse(policy.spec.priority), policy.name_any()));
    policies
}

fn listed_policy(policy: &PeeringPolicy) -> ListedPolicy {
    let conditions = policy
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let of_type = |type_: &str| conditions.iter().find(|one| one.type_ == type_);
    ListedPolicy {
        name: policy.name_any(),
        priority: policy.spec.priority,
        peers: words::peers_in_words(&policy.spec.peers),
        holds_for: Vec::new(),
        also_selects: Vec::new(),
        source: words::source_in_short(&policy.spec.provide.source),
        shares: words::shares_in_words(&policy.spec.provide),
        accept: policy.spec.consume.accept,
        honoured: of_type(HONOURED).map(|honoured| {
            if honoured.is_true() {
                "yes".to_owned()
            } else {
                honoured.reason.clone()
            }
        }),
        inactive: of_type(ACTIVE)
            .filter(|active| !active.is_true())
            .map(|active| active.message.clone()),
    }
}

/// The policies as text for people.
pub fn render_policies(shown: &[ListedPolicy]) -> String {
    if shown.is_empty() {
        return "There is no policy: this cluster shares nothing, and accepts nothing (`liqoctl install` creates one)."
            .to_owned();
    }
    let header = [
        "NAME",
        "PRIORITY",
        "SELECTS",
        "APPLIES TO",
        "ALSO SELECTS",
        "SOURCE",
        "SHARES",
        "ACCEPT",
        "HONOURED",
    ];
    let mut text = output::format_table(&header, shown.iter().map(policy_row));
    for one in shown {
        if let Some(inactive) = &one.inactive {
            let _ = write!(
                text,
                "\n{}: {}",
                one.name,
                strip_control_characters(inactive)
            );
        }
    }
    text
}

fn policy_row(one: &ListedPolicy) -> Vec<String> {
    vec![
        one.name.clone(),
        one.priority.to_string(),
        one.peers.clone(),
        first_peer_names(&one.holds_for),
        first_peer_names(&one.also_selects),
        one.source.clone(),
        one.shares.clone(),
        format!("{:?}", one.accept),
        one.honoured.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

fn first_peer_names(names: &[String]) -> String {
    match names.len() {
        0 => "-".to_owned(),
        1..=MAX_PEERS_NAMED => names.join(", "),
        many => format!(
            "{} and {} more",
            names[..MAX_PEERS_NAMED].join(", "),
            many - MAX_PEERS_NAMED
        ),
    }
}

/// The objects that determine the offers.
pub async fn collect_offer_inputs(cluster: &Cluster) -> anyhow::Result<ObjectLists> {
    let client = &cluster.client;
    let unfinished = ListParams::default().fields(lists::UNFINISHED_PODS);
    let of_consumers = ListParams::default().labels(labels::CONSUMER_ID);
    let pods = Api::<ScheduledPod>::all(client.clone());
    let namespaces = Api::<Namespace>::all(client.clone());
    let (policies, foreign_clusters, nodes, pods, namespaces, requests, offers, contracts) = tokio::join!(
        lists::list_peering_policies(cluster),
        lists::list_peers(cluster),
        lists::list_nodes(cluster, NodeSelection::All),
        lists::list_selected(&pods, &unfinished, "the pods of all namespaces"),
        lists::list_selected(&namespaces, &of_consumers, "the namespaces of consumers"),
        lists::list_everywhere::<DeserializeGuard<ResourceRequest>>(
            cluster,
            "what consumers ask for"
        ),
        lists::list_resource_offers(cluster),
        lists::list_contracts(cluster),
    );
    let config = cluster.read_configuration().await?.unwrap_or_default();
    Ok(ObjectLists {
        lending: Lending::of_config(&config),
        mode: OwnWorkingMode::of_config(&config),
        policies: policies?,
        foreign_clusters: foreign_clusters?,
        nodes: nodes?,
        pods: pods?,
        namespaces: namespaces?,
        requests: requests?,
        offers: offers?,
        contracts: contracts?,
    })
}
