//! `liqoctl unpeer`: stop borrowing from a cluster; also when that cluster is gone.

use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use liqo_api::{ClusterId, ForeignCluster, VirtualNode, Wish, links, provider_namespace, tenant_namespace};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, Explained as _, is_absent, list_or_none},
    output,
    progress::Progress,
    wait::{Look, until},
};

/// What to end.
#[derive(Clone, Debug)]
pub struct Options {
    /// Also end what the peer borrows from here.
    pub incoming: bool,
    /// How long to wait.
    pub timeout: Duration,
}

/// What was ended.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unpeered {
    /// Name of the `ForeignCluster`.
    pub name: String,
    /// Whether the peer goes on borrowing from here.
    pub still_lending: bool,
}

/// The peer of this name or ID.
pub async fn find(cluster: &Cluster, name: &str) -> anyhow::Result<ForeignCluster> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let all = list_or_none(&api, &ListParams::default()).await.doing("list the known clusters")?;
    find_in(all, name)
}

/// An ID is never taken for a name: a cluster chooses its name itself, and could choose the ID of another.
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

/// Whether this peer borrows, or may borrow, from here. What is being ended does not count.
pub fn lends_to(foreign: &ForeignCluster) -> bool {
    let ending = foreign.metadata.deletion_timestamp.is_some()
        || foreign.condition(links::CONSUMER_AUTHORIZED).is_some_and(|condition| condition.status == "False");
    !ending && foreign.status.as_ref().is_some_and(|status| status.tenant_namespace.is_some())
}

/// Ends the peering and waits until nothing is left of it here.
pub async fn unpeer(
    cluster: &Cluster,
    foreign: &ForeignCluster,
    options: &Options,
    progress: &Progress,
) -> anyhow::Result<Unpeered> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let name = foreign.name_any();
    let still_lending = lends_to(foreign) && !options.incoming;
    if still_lending {
        // The object stays for the other direction.
        let wish = json!({ "spec": { "outgoingPeering": Wish::No, "tokenSecretName": null } });
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&wish)).await.doing(format!("change ForeignCluster {name}"))?;
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

/// What is asked before.
pub async fn question(cluster: &Cluster, foreign: &ForeignCluster, options: &Options) -> anyhow::Result<String> {
    let name = foreign.name_any();
    let mut text = format!("This ends what is borrowed from {name}");
    if options.incoming && lends_to(foreign) {
        text += ", and what it borrows from here";
    }
    Ok(text + &lost(cluster, &foreign.spec.cluster_id).await?.unwrap_or_default() + ". Go on?")
}

/// The end of a sentence that says how many pods end with the virtual nodes of a provider; none if none does.
pub async fn lost(cluster: &Cluster, provider: &ClusterId) -> anyhow::Result<Option<String>> {
    let api: Api<VirtualNode> = Api::namespaced(cluster.client.clone(), &provider_namespace(provider));
    let nodes = list_or_none(&api, &ListParams::default()).await.doing("list the virtual nodes")?;
    let mut pods = 0;
    for node in nodes.into_iter().filter_map(|node| node.status?.node_name) {
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

/// What still stands of a peering.
async fn left(cluster: &Cluster, foreign: &ForeignCluster, still_lending: bool) -> anyhow::Result<Look<()>> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let id = &foreign.spec.cluster_id;
    let mut names = vec![provider_namespace(id)];
    if !still_lending {
        names.push(tenant_namespace(id));
        let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
        let object = api.get_metadata_opt(&foreign.name_any()).await.doing("read the ForeignCluster")?;
        if object.is_some_and(|object| object.metadata.uid == foreign.metadata.uid) {
            return Ok(Look::NotYet("pods, virtual nodes and rights are being removed".to_owned()));
        }
    }
    for name in names {
        if namespaces.get_metadata_opt(&name).await.doing(format!("read namespace {name}"))?.is_some() {
            return Ok(Look::NotYet(format!("namespace {name} is being removed")));
        }
    }
    Ok(Look::Done(()))
}

/// The outcome for people.
pub fn table(unpeered: &Unpeered) -> String {
    let name = &unpeered.name;
    if unpeered.still_lending {
        format!(
            "Nothing is borrowed from {name} any more. It still borrows from here; `liqoctl unpeer {name} --incoming` ends that, too."
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
        // Nor when the other never came.
        assert!(find_in(vec![impostor], turin.as_str()).is_err());
    }
}
