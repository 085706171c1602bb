//! The clusters that a bench measures: those of the command line, and of the playground on this
//! machine.

use anyhow::{bail, ensure};
use kube::ResourceExt;
use liqo_api::ForeignCluster;
use liqo_playground::Playground;
use liqoctl::{
    cluster::{Cluster, ClusterAccess},
    lists, output,
    probes::{self, OtherClusterFlags},
    unpeer,
};

/// The clusters from the command line, that of `--kubeconfig` first.
pub async fn named_clusters(
    access: &ClusterAccess,
    others: &OtherClusterFlags,
) -> anyhow::Result<Vec<Cluster>> {
    let Some(instance) = &others.playground else {
        return probes::clusters(access, others).await;
    };
    let machines = Playground::open(instance)?.clusters()?;
    ensure!(!machines.is_empty(), probes::NO_PLAYGROUND);
    let mut clusters = Vec::new();
    for machine in &machines {
        clusters.push(connect_to(machine).await?);
    }
    Ok(clusters)
}

/// The same, and the playground on this machine, if all of them belong to it: `instance`, if the
/// flags name no other one.
///
/// If no other cluster is named, the other clusters of the first one's playground take part. If no
/// cluster is named and there is no kubeconfig, all clusters of the playground take part.
pub async fn clusters_and_playground(
    access: &ClusterAccess,
    others: &OtherClusterFlags,
    instance: &str,
) -> anyhow::Result<(Vec<Cluster>, Option<Playground>)> {
    let playground = Playground::open(others.playground.as_deref().unwrap_or(instance))?;
    // A user who may not read its files has no playground.
    let machines = playground.clusters().unwrap_or_default();
    let mut clusters = match named_clusters(access, others).await {
        Err(error) if access.kubeconfig.is_some() || access.context.is_some() => return Err(error),
        Err(error) if machines.is_empty() => {
            return Err(error.context("no cluster is named, and there is no playground (`cargo playground up --fake-nodes 20`)"));
        }
        Err(_) => Vec::new(),
        Ok(clusters) => clusters,
    };
    if clusters.is_empty() || (clusters.len() == 1 && is_in_playground(&clusters[0], &machines)) {
        for machine in &machines {
            let cluster = connect_to(machine).await?;
            if clusters.iter().all(|named| named.server != cluster.server) {
                clusters.push(cluster);
            }
        }
    }
    let playground = clusters
        .iter()
        .all(|cluster| is_in_playground(cluster, &machines))
        .then_some(playground);
    Ok((clusters, playground))
}

async fn connect_to(machine: &liqo_playground::Cluster) -> anyhow::Result<Cluster> {
    Cluster::connect(&ClusterAccess::from_file(machine.kubeconfig())).await
}

fn is_in_playground(cluster: &Cluster, machines: &[liqo_playground::Cluster]) -> bool {
    machines
        .iter()
        .any(|machine| is_served_by(cluster, machine))
}

/// True if the API server is that of this cluster of a playground.
pub fn is_served_by(cluster: &Cluster, machine: &liqo_playground::Cluster) -> bool {
    machine.api_url() == cluster.server.trim_end_matches('/')
}

/// The peer with this name, or else the only one that `home` borrows from; among `others`, if there
/// are any. If there are several, the error shows `command` with a peer.
pub async fn choose_peer(
    home: &Cluster,
    others: &[Cluster],
    name: Option<&str>,
    command: &str,
) -> anyhow::Result<ForeignCluster> {
    if let Some(name) = name {
        return unpeer::peer_by_name(home, name).await;
    }
    let borrowed = probes::virtual_nodes(home).await?;
    let mut peers = lists::list_peers(home).await?;
    peers.retain(|foreign| borrowed.contains_key(foreign.spec.cluster_id.as_str()));
    if !others.is_empty() {
        let mut named = Vec::new();
        for other in others {
            named.push(other.require_installed().await?.id);
        }
        peers.retain(|foreign| named.contains(&foreign.spec.cluster_id));
    }
    let names: Vec<String> = peers.iter().map(ResourceExt::name_any).collect();
    match peers.pop() {
        Some(peer) if peers.is_empty() => Ok(peer),
        Some(_) => bail!(
            "there are several peers; {}: `{command} {}`",
            output::existing_names(&names),
            names[0]
        ),
        None => {
            bail!(
                "cluster {} borrows from none of them, so none of its pods can run there: see `liqoctl peer`",
                home.context
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_network_leaves_out_the_fake_nodes_of_a_playground() {
        assert_eq!(probes::FAKE_POOL, liqo_playground::FAKE_NODE);
    }
}
