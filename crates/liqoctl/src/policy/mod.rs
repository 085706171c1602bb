//! `liqoctl policy`: which policies there are, for whom each holds, and what follows for one peer.
//!
//! What would be offered is not guessed: the lists of the API server are made into the same picture that the controllers
//! decide by, and their own decision is asked.

mod explain;
#[cfg(test)]
mod page;
mod render;
#[cfg(test)]
mod tests;
mod words;

use std::{cmp::Reverse, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{Api, ResourceExt as _, api::ListParams, core::DeserializeGuard};
use liqo_api::{Accept, ForeignCluster, HONOURED, PeeringPolicy, ResourceOffer, ResourceRequest, labels};
use liqo_kit::policies::{PolicyPeer, of_peer};
use liqo_sharing::decide::lists::Lists;
use serde::Serialize;

use crate::{
    cluster::{Cluster, Explained as _, list_or_none},
    output,
};

pub use explain::{Explanation, Unknown, Whom, explain, whom};
pub use render::render;
pub use words::Sentence;

/// So many peers are named in a cell of the table.
const NAMED: usize = 5;

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Whom it is for, in words.
    pub peers: String,
    /// The known peers that it selects, and that no policy before it does.
    pub holds_for: Vec<String>,
    /// The known peers that it selects, too, but that a policy before it holds for.
    pub also_selects: Vec<String>,
    /// Where the amounts come from, in words.
    pub source: String,
    /// How much is shared, in words.
    pub shares: String,
    /// Who decides on offers.
    pub accept: Accept,
    /// `yes`, or why what is promised under it cannot be kept now; nothing as long as the provider has not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub honoured: Option<String>,
}

/// All policies, in the order in which they are looked at.
pub async fn list(cluster: &Cluster) -> anyhow::Result<Vec<Shown>> {
    let policies: Api<PeeringPolicy> = Api::all(cluster.client.clone());
    let foreign: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let everything = ListParams::default();
    let policies = list_or_none(&policies, &everything).await.doing("list the policies")?;
    let foreign = list_or_none(&foreign, &everything).await.doing("list the peers")?;
    Ok(rows(policies, &foreign))
}

fn rows(policies: Vec<PeeringPolicy>, foreign: &[ForeignCluster]) -> Vec<Shown> {
    let policies = in_order(policies);
    let mut rows: Vec<Shown> = policies.iter().map(|policy| shown(policy)).collect();
    for peer in foreign {
        let selecting = of_peer(&policies, &PolicyPeer::new(&peer.spec.cluster_id, Some(peer)));
        for (place, policy) in selecting.into_iter().enumerate() {
            let row = rows.iter_mut().find(|row| Some(&row.name) == policy.metadata.name.as_ref());
            let Some(row) = row else { continue };
            if place == 0 { row.holds_for.push(peer.name_any()) } else { row.also_selects.push(peer.name_any()) }
        }
    }
    rows
}

/// The policies as they are looked at: the highest priority first, and of equals the first by name.
fn in_order(policies: Vec<PeeringPolicy>) -> Vec<Arc<PeeringPolicy>> {
    let mut policies: Vec<Arc<PeeringPolicy>> = policies.into_iter().map(Arc::new).collect();
    policies.sort_by_key(|policy| (Reverse(policy.spec.priority), policy.name_any()));
    policies
}

fn shown(policy: &PeeringPolicy) -> Shown {
    let conditions = policy.status.iter().flat_map(|status| &status.conditions);
    let honoured = conditions.into_iter().find(|condition| condition.type_ == HONOURED);
    Shown {
        name: policy.name_any(),
        priority: policy.spec.priority,
        peers: words::peers(&policy.spec.peers),
        holds_for: Vec::new(),
        also_selects: Vec::new(),
        source: words::source_in_short(&policy.spec.provide.source),
        shares: words::shares(&policy.spec.provide),
        accept: policy.spec.consume.accept,
        honoured: honoured.map(|honoured| if honoured.status == "True" { "yes".to_owned() } else { honoured.reason.clone() }),
    }
}

/// The policies for people.
pub fn table(shown: &[Shown]) -> String {
    if shown.is_empty() {
        return "There is no policy: nothing is shared with anybody, and nothing is accepted (`liqoctl install` makes one)."
            .to_owned();
    }
    let names = |names: &[String]| match names.len() {
        0 => "-".to_owned(),
        1..=NAMED => names.join(", "),
        many => format!("{} and {} more", names[..NAMED].join(", "), many - NAMED),
    };
    let row = |one: &Shown| {
        vec![
            one.name.clone(),
            one.priority.to_string(),
            one.peers.clone(),
            names(&one.holds_for),
            names(&one.also_selects),
            one.source.clone(),
            one.shares.clone(),
            format!("{:?}", one.accept),
            one.honoured.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    let header = ["NAME", "PRIORITY", "FOR", "HOLDS FOR", "ALSO SELECTS", "SOURCE", "SHARES", "ACCEPT", "HONOURED"];
    output::table(&header, shown.iter().map(row))
}

/// All that decides over what is offered.
pub async fn gather(cluster: &Cluster) -> anyhow::Result<Lists> {
    let client = || cluster.client.clone();
    let everything = ListParams::default();
    let unfinished = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
    let of_consumers = ListParams::default().labels(labels::CONSUMER_ID);
    let (policies, foreign_clusters, nodes, pods, namespaces, requests, offers) = (
        Api::<PeeringPolicy>::all(client()),
        Api::<ForeignCluster>::all(client()),
        Api::<Node>::all(client()),
        Api::<Pod>::all(client()),
        Api::<Namespace>::all(client()),
        Api::<DeserializeGuard<ResourceRequest>>::all(client()),
        Api::<ResourceOffer>::all(client()),
    );
    let (policies, foreign_clusters, nodes, pods, namespaces, requests, offers) = tokio::join!(
        list_or_none(&policies, &everything),
        list_or_none(&foreign_clusters, &everything),
        list_or_none(&nodes, &everything),
        list_or_none(&pods, &unfinished),
        list_or_none(&namespaces, &of_consumers),
        list_or_none(&requests, &everything),
        list_or_none(&offers, &everything),
    );
    Ok(Lists {
        policies: policies.doing("list the policies")?,
        foreign_clusters: foreign_clusters.doing("list the peers")?,
        nodes: nodes.doing("list the nodes")?,
        pods: pods.doing("list the pods of all namespaces")?,
        namespaces: namespaces.doing("list the namespaces of consumers")?,
        requests: requests.doing("list what consumers ask for")?,
        offers: offers.doing("list the offers")?,
    })
}
