//! Reads everything that `status` shows.

use futures::future::try_join_all;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::{
    ClusterId, ForeignCluster, NamespaceOffloading, ResourceOffer, ShadowPod, ShadowPodPhase, TunnelEndpoint,
    VirtualNode as VirtualNodeObject, links, provider_namespace, tenant_namespace,
};

use super::{
    Borrowing, Lending, Link, Networking, Offer, OffloadedNamespace, Peer, Replicas, Status, ThisCluster, Through, Twin,
    VirtualNode, borrows,
};
use crate::{
    cluster::{Cluster, Explained as _, list_or_none},
    manifests::{MANAGER, NAMESPACE},
    readiness,
};

/// Looks at the cluster.
pub async fn collect(cluster: &Cluster) -> anyhow::Result<Status> {
    let this = this_cluster(cluster).await?;
    if !this.installed {
        return Ok(Status { cluster: this, peers: Vec::new(), namespaces: Vec::new() });
    }
    let everything = ListParams::default();
    let foreign: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let mut known = list_or_none(&foreign, &everything).await.doing("list the peers")?;
    known.sort_by_key(kube::ResourceExt::name_any);
    let offloadings: Api<NamespaceOffloading> = Api::all(cluster.client.clone());
    let offloadings = list_or_none(&offloadings, &everything).await.doing("list the offloaded namespaces")?;
    Ok(Status {
        cluster: this,
        peers: try_join_all(known.iter().map(|foreign| peer(cluster, foreign))).await?,
        namespaces: offloadings.into_iter().map(namespace).collect(),
    })
}

async fn this_cluster(cluster: &Cluster) -> anyhow::Result<ThisCluster> {
    let config = cluster.config().await?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let deployment = deployments.get_opt(MANAGER).await.doing("read the Deployment of the controller manager")?;
    let manager = deployment.map(|deployment| Replicas {
        available: deployment.status.and_then(|status| status.available_replicas).unwrap_or(0),
        wanted: deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1),
    });
    let installed = config.is_some();
    let name = config.as_ref().map_or_else(|| cluster.context.clone(), |config| config.spec.cluster_name.clone());
    let status = config.and_then(|config| config.status).unwrap_or_default();
    Ok(ThisCluster {
        name,
        installed,
        cluster_id: status.cluster_id,
        version: status.version,
        auth_url: status.auth_url,
        api_server_url: status.api_server_url,
        conditions: status.conditions.iter().map(Link::from).collect(),
        manager: manager.unwrap_or_default(),
    })
}

async fn peer(cluster: &Cluster, foreign: &ForeignCluster) -> anyhow::Result<Peer> {
    let id = &foreign.spec.cluster_id;
    let outgoing = super::links(foreign, &links::BORROWING);
    let borrowing = if borrows(foreign, &outgoing) { Some(borrowing(cluster, foreign, outgoing).await?) } else { None };
    let incoming = super::links(foreign, &links::LENDING);
    let tenant = foreign.status.as_ref().and_then(|status| status.tenant_namespace.clone());
    let lending =
        if tenant.is_some() || !incoming.is_empty() { Some(lending(cluster, id, tenant, incoming).await?) } else { None };
    Ok(Peer {
        name: foreign.name_any(),
        cluster_id: id.clone(),
        borrowing,
        lending,
        network: network(cluster, foreign).await?,
        ending: foreign.metadata.deletion_timestamp.is_some(),
    })
}

async fn network(cluster: &Cluster, foreign: &ForeignCluster) -> anyhow::Result<Option<Networking>> {
    let links = super::links(foreign, &links::NETWORK);
    if links.is_empty() {
        return Ok(None);
    }
    let api: Api<TunnelEndpoint> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let found = api.get_opt(foreign.spec.cluster_id.as_str()).await.doing("read the TunnelEndpoint of the peer")?;
    let (spec, status) = found.map(|found| (found.spec, found.status.unwrap_or_default())).unzip();
    let status = status.unwrap_or_default();
    Ok(Some(Networking { links, prefixes: spec.map(|spec| spec.imported).unwrap_or_default(), gateways: status.gateways }))
}

async fn borrowing(cluster: &Cluster, foreign: &ForeignCluster, links: Vec<Link>) -> anyhow::Result<Borrowing> {
    let namespace = provider_namespace(&foreign.spec.cluster_id);
    let api: Api<VirtualNodeObject> = Api::namespaced(cluster.client.clone(), &namespace);
    let mut objects = list_or_none(&api, &ListParams::default()).await.doing("list the virtual nodes")?;
    objects.sort_by(|one, other| one.spec.pool.cmp(&other.spec.pool));
    Ok(Borrowing {
        network_only: foreign.wants_outgoing() && !foreign.wants_resources(),
        tunnel: (!foreign.spec.tunnel.is_empty())
            .then(|| Through { gateway: foreign.status.as_ref().and_then(|status| status.called_through.clone()) }),
        links,
        offers: offers(cluster, &namespace).await?,
        nodes: try_join_all(objects.into_iter().map(|object| virtual_node(cluster, object))).await?,
    })
}

async fn virtual_node(cluster: &Cluster, object: VirtualNodeObject) -> anyhow::Result<VirtualNode> {
    let node = object.status.and_then(|status| status.node_name);
    let (mut ready, mut count) = (false, 0);
    if let Some(name) = &node {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let found = nodes.get_opt(name).await.doing(format!("read Node {name}"))?;
        ready = found.as_ref().is_some_and(readiness::node);
        let pods: Api<Pod> = Api::all(cluster.client.clone());
        let on_it = format!("spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed");
        count = pods
            .list_metadata(&ListParams::default().fields(&on_it))
            .await
            .doing(format!("list the pods of Node {name}"))?
            .items
            .len();
    }
    Ok(VirtualNode { pool: object.spec.pool, node, ready, resources: object.spec.resources, pods: count })
}

async fn lending(cluster: &Cluster, consumer: &ClusterId, tenant: Option<String>, links: Vec<Link>) -> anyhow::Result<Lending> {
    let namespace = tenant.clone().unwrap_or_else(|| tenant_namespace(consumer));
    let api: Api<ShadowPod> = Api::namespaced(cluster.client.clone(), &namespace);
    let shadow_pods = list_or_none(&api, &ListParams::default()).await.doing("list the shadow pods")?;
    let runs = |pod: &&ShadowPod| pod.status.as_ref().is_some_and(|status| status.phase == ShadowPodPhase::Created);
    Ok(Lending {
        tenant_namespace: tenant,
        links,
        offers: offers(cluster, &namespace).await?,
        pods: shadow_pods.iter().filter(runs).count(),
    })
}

async fn offers(cluster: &Cluster, namespace: &str) -> anyhow::Result<Vec<Offer>> {
    let api: Api<ResourceOffer> = Api::namespaced(cluster.client.clone(), namespace);
    let objects = list_or_none(&api, &ListParams::default()).await.doing("list the offers")?;
    let mut offers: Vec<Offer> = objects.into_iter().map(offer).collect();
    offers.sort_by(|one, other| one.pool.cmp(&other.pool));
    Ok(offers)
}

fn offer(object: ResourceOffer) -> Offer {
    let status = object.status.unwrap_or_default();
    Offer {
        pool: object.spec.pool,
        phase: status.phase,
        message: status.message,
        resources: object.spec.resource_quota.hard,
        withdrawal_timestamp: object.spec.withdrawal_timestamp.map(|time| time.0.to_string()),
        reclaim_timestamp: object.spec.reclaim_timestamp.map(|time| time.0.to_string()),
    }
}

fn namespace(object: NamespaceOffloading) -> OffloadedNamespace {
    let name = object.namespace().unwrap_or_default();
    let status = object.status.unwrap_or_default();
    let twin = |remote: liqo_api::RemoteNamespace| Twin {
        cluster: remote.cluster_name,
        namespace: remote.namespace,
        ready: remote.ready,
        message: remote.message,
        exposed: remote.exposed,
    };
    OffloadedNamespace {
        namespace: name,
        pod_offloading_strategy: object.spec.pod_offloading_strategy,
        ready: status.conditions.iter().find(|condition| condition.type_ == "Ready").map(Link::from),
        remote: status.remote_namespaces.into_iter().map(twin).collect(),
    }
}
