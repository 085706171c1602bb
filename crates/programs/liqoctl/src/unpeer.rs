//! `liqoctl unpeer`: stops borrowing from a cluster, even if that cluster is gone.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use liqo_api::{ClusterId, ForeignCluster, PeeringIntent, VirtualNode, links, provider_namespace, tenant_namespace};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, Explained as _, is_absent, list_or_none},
    evict::{
        self,
        cordon::{Uncordon, with_cordon},
    },
    output,
    progress::Progress,
    wait::{Poll, until},
};

#[derive(Clone, Debug)]
pub struct Options {
    /// Also take back what the peer borrows from this cluster.
    pub incoming: bool,
    /// Delete the pods that run at the peer at once, instead of evicting them as disruption budgets allow.
    pub now: bool,
    /// How long to wait for each step.
    pub timeout: Duration,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unpeered {
    /// Name of the `ForeignCluster`.
    pub name: String,
    /// Whether the peer still borrows from this cluster.
    pub still_lending: bool,
}

/// The peer of this name or ID.
pub async fn find(cluster: &Cluster, name: &str) -> anyhow::Result<ForeignCluster> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let all = list_or_none(&api, &ListParams::default()).await.doing("list the known clusters")?;
    find_in(all, name)
}

/// An ID never counts as a name: a cluster chooses its own name, and could choose another cluster's ID.
fn find_in(all: Vec<ForeignCluster>, name: &str) -> anyhow::Result<ForeignCluster> {
    let names: Vec<_> = all.iter().map(kube::ResourceExt::name_any).collect();
    let is_id = name.parse::<ClusterId>().is_ok();
    let is_meant =
        |foreign: &ForeignCluster| if is_id { foreign.spec.cluster_id.as_str() == name } else { foreign.name_any() == name };
    match all.into_iter().find(is_meant) {
        Some(foreign) => Ok(foreign),
        None if names.is_empty() => bail!("there is no peer {name}: this cluster has no peers"),
        None if is_id => bail!("there is no peer with the ID {name}: the peers are called {}", names.join(", ")),
        None => bail!("there is no peer {name}: {}", output::there_are(&names)),
    }
}

/// Whether this peer borrows, or may borrow, from this cluster. A tenancy that is ending does not count.
pub fn lends_to(foreign: &ForeignCluster) -> bool {
    let ending = foreign.metadata.deletion_timestamp.is_some()
        || foreign.condition(links::CONSUMER_AUTHORIZED).is_some_and(|condition| condition.status == "False");
    !ending && foreign.status.as_ref().is_some_and(|status| status.tenant_namespace.is_some())
}

/// Ends the peering and waits until this cluster has nothing left of it.
pub async fn unpeer(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    options: &Options,
    progress: &Progress,
) -> anyhow::Result<Unpeered> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let name = foreign.name_any();
    if !options.now {
        evict_pods(cluster, foreign, options.timeout, progress).await?;
    }
    let still_lending = lends_to(foreign) && !options.incoming;
    if still_lending {
        // The peer still borrows from this cluster, so the ForeignCluster stays.
        let change = json!({ "spec": { "outgoingPeering": PeeringIntent::No, "tokenSecretName": null } });
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await.doing(format!("change ForeignCluster {name}"))?;
    } else {
        match api.delete(&name, &DeleteParams::background()).await {
            Err(error) if is_absent(&error) => {}
            deleted => drop(deleted.doing(format!("delete ForeignCluster {name}"))?),
        }
    }
    let step = format!("Ending the peering with {name}");
    let what = format!("the peering with {name} is ended");
    let ended = until(&what, options.timeout, |text| progress.message(&step, text), || left(cluster, foreign, still_lending));
    progress.step(&step, ended).await?;
    Ok(Unpeered { name, still_lending })
}

/// The question to ask first.
pub async fn question(cluster: &Cluster, foreign: &ForeignCluster, options: &Options) -> anyhow::Result<String> {
    let name = foreign.name_any();
    let mut text = format!("This gives back what is borrowed from {name}");
    if options.incoming && lends_to(foreign) {
        text += ", and takes back what it borrows from this cluster";
    }
    if let Some(lost) = lost(cluster, &foreign.spec.cluster_id).await? {
        text = text + &lost + if options.now { " at once" } else { ", as disruption budgets allow" };
    }
    Ok(text + ". Continue?")
}

/// Evicts the pods that run at a peer, while its virtual nodes take no new ones. Pods at a peer that does not answer stay: they are
/// deleted with their node.
async fn evict_pods(cluster: &Cluster, foreign: &ForeignCluster, timeout: Duration, progress: &Progress) -> anyhow::Result<()> {
    let (name, nodes) = (foreign.name_any(), nodes_of(cluster, &foreign.spec.cluster_id).await?);
    let answering = || async {
        let answering = evict::answering_nodes(cluster).await?;
        anyhow::Ok(nodes.intersection(&answering).cloned().collect::<BTreeSet<String>>())
    };
    let leaving = || async { evict::leaving(cluster, None, &answering().await?).await };
    if leaving().await?.is_empty() {
        return Ok(());
    }
    let step = format!("Evicting the pods that run at {name}");
    let evicted = Box::pin(evict::evict(cluster, &step, timeout, progress, leaving));
    let evicted = with_cordon(cluster, &answering().await?, Uncordon::OnFailure, evicted).await;
    evicted.map_err(|error| {
        anyhow!("{error:#}. The peering goes on. Run the command again, or with --now, which deletes the remaining pods at once")
    })
}

/// The names of the virtual nodes of a provider.
pub async fn nodes_of(cluster: &Cluster, provider: &ClusterId) -> anyhow::Result<BTreeSet<String>> {
    let api: Api<VirtualNode> = Api::namespaced(cluster.client.clone(), &provider_namespace(provider));
    let nodes = list_or_none(&api, &ListParams::default()).await.doing("list the virtual nodes")?;
    Ok(nodes.into_iter().filter_map(|node| node.status?.node_name).collect())
}

/// The end of a sentence: how many pods end with the virtual nodes of a provider; empty if none does.
pub async fn lost(cluster: &Cluster, provider: &ClusterId) -> anyhow::Result<Option<String>> {
    let mut pods = 0;
    for node in nodes_of(cluster, provider).await? {
        let on_it = ListParams::default().fields(&format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"));
        let api: Api<Pod> = Api::all(cluster.client.clone());
        pods += api.list_metadata(&on_it).await.doing(format!("list the pods of Node {node}"))?.items.len();
    }
    Ok(match pods {
        0 => None,
        1 => Some("; the pod that runs there is deleted".to_owned()),
        _ => Some(format!("; {pods} pods that run there are deleted")),
    })
}

/// What is left of a peering.
async fn left(cluster: &Cluster, foreign: &ForeignCluster, still_lending: bool) -> anyhow::Result<Poll<()>> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let id = &foreign.spec.cluster_id;
    let mut names = vec![provider_namespace(id)];
    if !still_lending {
        names.push(tenant_namespace(id));
        let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
        let object = api.get_metadata_opt(&foreign.name_any()).await.doing("read the ForeignCluster")?;
        if object.is_some_and(|object| object.metadata.uid == foreign.metadata.uid) {
            return Ok(Poll::NotYet("pods, virtual nodes and rights are being removed".to_owned()));
        }
    }
    for name in names {
        if namespaces.get_metadata_opt(&name).await.doing(format!("read namespace {name}"))?.is_some() {
            return Ok(Poll::NotYet(format!("namespace {name} is being removed")));
        }
    }
    Ok(Poll::Done(()))
}

/// The result as text for people.
pub fn table(unpeered: &Unpeered) -> String {
    let name = &unpeered.name;
    if unpeered.still_lending {
        format!(
            "This cluster does not borrow from {name} any more. {name} still borrows from this cluster; `liqoctl unpeer {name} --incoming` ends that, too."
        )
    } else {
        format!("The peering with {name} is ended.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, seed: u8) -> ForeignCluster {
        let id = ClusterId::of_public_key(&[seed; 32]);
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "clusterID": id } })).unwrap()
    }

    #[test]
    fn a_peer_is_found_by_its_name_and_by_its_id() {
        let all = vec![known("rome", 1), known("turin", 2)];
        let turin = ClusterId::of_public_key(&[2; 32]);
        assert_eq!(find_in(all.clone(), "rome").unwrap().name_any(), "rome");
        assert_eq!(find_in(all.clone(), turin.as_str()).unwrap().name_any(), "turin");
        assert!(find_in(all, "milan").unwrap_err().to_string().contains("rome, turin"));
    }

    #[test]
    fn a_peer_that_calls_itself_by_the_id_of_another_is_not_taken_for_it() {
        let turin = ClusterId::of_public_key(&[2; 32]);
        let impostor = known(turin.as_str(), 3);
        let found = find_in(vec![impostor.clone(), known("turin", 2)], turin.as_str()).unwrap();
        assert_eq!(found.spec.cluster_id, turin);
        // The same if the other cluster is unknown.
        assert!(find_in(vec![impostor], turin.as_str()).is_err());
    }
}
