//! Computes the status from what was read. Pure.

use kube::ResourceExt as _;
use liqo_api::{
    ForeignCluster, NamespaceOffloading, NetworkRanges, ResourceOffer, ShadowPodPhase,
    TetheringStatus, isolation::Lending, links, provider_namespace, tenant_namespace,
};

use super::{
    BorrowingSummary, LendingSummary, LinkSummary, NetworkSummary, OfferSummary,
    OffloadedNamespaceSummary, PeerSummary, RemoteNamespaceSummary, ReplicaCounts, StatusReport,
    ThisCluster, TunnelPath, VirtualNodeSummary, WorkingMode, borrows,
};
use crate::{
    doctor::isolation_verdict,
    inspect::{BorrowedAndLentUsage, LiqoObjects, ReadResult},
    kept_addresses::KeepableRanges,
    replicas,
};

/// The status of the cluster that the kubeconfig calls `context`; an error if an object that it
/// needs could not be read.
pub fn summarize_status(
    context: &str,
    objects: &LiqoObjects,
    usage: &BorrowedAndLentUsage,
) -> ReadResult<StatusReport> {
    let cluster = summarize_own_cluster(context, objects, usage)?;
    let mut known: Vec<&ForeignCluster> = as_read_result(&objects.peers)?.iter().collect();
    known.sort_by_key(|foreign| foreign.name_any());
    let peers = known
        .into_iter()
        .map(|foreign| summarize_peer(foreign, objects, usage))
        .collect::<ReadResult<_>>()?;
    Ok(StatusReport {
        cluster: Some(cluster),
        peers,
        namespaces: summarize_namespaces(objects)?,
    })
}

/// The offloaded namespaces, for a user who may not read the rest.
pub fn summarize_namespaces_alone(objects: &LiqoObjects) -> ReadResult<StatusReport> {
    Ok(StatusReport {
        cluster: None,
        peers: Vec::new(),
        namespaces: summarize_namespaces(objects)?,
    })
}

fn summarize_namespaces(objects: &LiqoObjects) -> ReadResult<Vec<OffloadedNamespaceSummary>> {
    let offloadings = as_read_result(&objects.offloadings)?;
    Ok(offloadings
        .iter()
        .cloned()
        .map(summarize_namespace)
        .collect())
}

fn as_read_result<T>(value: &ReadResult<T>) -> ReadResult<&T> {
    value.as_ref().map_err(Clone::clone)
}

fn summarize_own_cluster(
    context: &str,
    objects: &LiqoObjects,
    usage: &BorrowedAndLentUsage,
) -> ReadResult<ThisCluster> {
    let config = as_read_result(&objects.config)?.as_ref();
    let manager = as_read_result(&objects.manager)?
        .as_ref()
        .map(|deployment| ReplicaCounts {
            available: deployment
                .status
                .as_ref()
                .and_then(|status| status.available_replicas)
                .unwrap_or(0),
            wanted: deployment
                .spec
                .as_ref()
                .and_then(|spec| spec.replicas)
                .unwrap_or(1),
        });
    let misfit = manager
        .zip(usage.nodes_for_manager)
        .and_then(|(manager, nodes)| replicas::replica_mismatch(manager.wanted, nodes));
    let status = config
        .and_then(|config| config.status.clone())
        .unwrap_or_default();
    let lending = config.map(Lending::of_config).unwrap_or_default();
    let is_provider = objects.is_provider().map_err(Clone::clone)?;
    Ok(ThisCluster {
        name: config
            .map_or(context, |config| config.spec.cluster_name.as_str())
            .to_owned(),
        installed: config.is_some(),
        cluster_id: status.cluster_id,
        version: status.version,
        auth_url: status.auth_url,
        api_server_url: status.api_server_url,
        conditions: status.conditions.iter().map(LinkSummary::from).collect(),
        isolation: isolation_verdict(lending, is_provider),
        mode: status
            .tethering
            .map(|tethering| working_mode(tethering, objects))
            .transpose()?,
        manager: manager.unwrap_or_default(),
        replicas_note: misfit.map(|misfit| format!("{}; {}", misfit.what, misfit.advice)),
    })
}

/// The working mode, with the name of its peer.
fn working_mode(tethering: TetheringStatus, objects: &LiqoObjects) -> ReadResult<WorkingMode> {
    let known = as_read_result(&objects.peers)?;
    let TetheringStatus {
        state,
        cluster_id,
        deadline,
        reason,
        message,
        ..
    } = tethering;
    Ok(WorkingMode {
        state,
        peer: cluster_id.map(|id| {
            let found = known.iter().find(|foreign| foreign.spec.cluster_id == id);
            found.map_or_else(|| id.to_string(), kube::ResourceExt::name_any)
        }),
        deadline,
        reason,
        message,
    })
}

fn summarize_peer(
    foreign: &ForeignCluster,
    objects: &LiqoObjects,
    usage: &BorrowedAndLentUsage,
) -> ReadResult<PeerSummary> {
    let outgoing = super::links(foreign, &links::BORROWING);
    let incoming = super::links(foreign, &links::LENDING);
    let tenant = foreign
        .status
        .as_ref()
        .and_then(|status| status.tenant_namespace.clone());
    Ok(PeerSummary {
        name: foreign.name_any(),
        cluster_id: foreign.spec.cluster_id.clone(),
        borrowing: borrows(foreign, &outgoing)
            .then(|| summarize_borrowing(foreign, outgoing, objects, usage))
            .transpose()?,
        lending: (tenant.is_some() || !incoming.is_empty())
            .then(|| summarize_lending(foreign, tenant, incoming, objects, usage))
            .transpose()?,
        network: summarize_network(foreign, objects)?,
        ending: foreign.metadata.deletion_timestamp.is_some(),
    })
}

fn summarize_network(
    foreign: &ForeignCluster,
    objects: &LiqoObjects,
) -> ReadResult<Option<NetworkSummary>> {
    let links = super::links(foreign, &links::NETWORK);
    if links.is_empty() {
        return Ok(None);
    }
    let tunnel = objects
        .tunnel(&foreign.spec.cluster_id)
        .map_err(Clone::clone)?
        .cloned();
    let (spec, status) = tunnel
        .map(|tunnel| (tunnel.spec, tunnel.status.unwrap_or_default()))
        .unzip();
    let gateways = status.unwrap_or_default().gateways;
    // Without it, only what the peer could keep is not known.
    let own = as_read_result(&objects.config)
        .ok()
        .and_then(|config| config.as_ref())
        .and_then(|config| config.status.as_ref()?.network.as_ref());
    let keepable = KeepableRanges::default();
    let none = NetworkSummary {
        links,
        prefixes: [].into(),
        behind: [].into(),
        keepable,
        waiting: [].into(),
        gateways,
    };
    Ok(Some(match spec {
        None => none,
        Some(spec) => NetworkSummary {
            keepable: KeepableRanges::as_known_here(
                own.unwrap_or(&NetworkRanges::default()),
                &spec,
            ),
            prefixes: spec.imported,
            behind: spec.behind,
            waiting: spec.waiting,
            ..none
        },
    }))
}

fn summarize_borrowing(
    foreign: &ForeignCluster,
    links: Vec<LinkSummary>,
    objects: &LiqoObjects,
    usage: &BorrowedAndLentUsage,
) -> ReadResult<BorrowingSummary> {
    let namespace = provider_namespace(&foreign.spec.cluster_id);
    let mut nodes: Vec<VirtualNodeSummary> = as_read_result(&objects.virtual_nodes)?
        .iter()
        .filter(|node| node.namespace().as_ref() == Some(&namespace))
        .map(|node| summarize_virtual_node(node, usage))
        .collect();
    nodes.sort_by(|one, other| one.pool.cmp(&other.pool));
    Ok(BorrowingSummary {
        network_only: foreign.wants_outgoing() && !foreign.wants_resources(),
        tunnel: (!foreign.spec.tunnel.is_empty()).then(|| TunnelPath {
            gateway: foreign
                .status
                .as_ref()
                .and_then(|status| status.called_through.clone()),
        }),
        links,
        pool_for_each_node: foreign
            .condition(links::POOL_FOR_EACH_NODE)
            .map(LinkSummary::from),
        offers: offers_in_namespace(&namespace, objects)?,
        nodes,
    })
}

fn summarize_virtual_node(
    object: &liqo_api::VirtualNode,
    usage: &BorrowedAndLentUsage,
) -> VirtualNodeSummary {
    let node = object
        .status
        .as_ref()
        .and_then(|status| status.node_name.clone());
    let used = node
        .as_ref()
        .and_then(|name| usage.nodes.get(name))
        .cloned()
        .unwrap_or_default();
    let resources = object.spec.resources.clone();
    let requested = resources
        .names()
        .map(|name| (name.to_owned(), used.requests.get(name)));
    VirtualNodeSummary {
        pool: object.spec.pool.clone(),
        node,
        ready: used.ready,
        used: requested.collect(),
        free: resources.saturating_sub(&used.requests),
        resources,
        pods: used.pods,
    }
}

fn summarize_lending(
    foreign: &ForeignCluster,
    tenant: Option<String>,
    links: Vec<LinkSummary>,
    objects: &LiqoObjects,
    usage: &BorrowedAndLentUsage,
) -> ReadResult<LendingSummary> {
    let namespace = tenant
        .clone()
        .unwrap_or_else(|| tenant_namespace(&foreign.spec.cluster_id));
    Ok(LendingSummary {
        offers: offers_in_namespace(&namespace, objects)?,
        pods: usage
            .shadow_pods
            .iter()
            .filter(|pod| {
                pod.namespace().as_ref() == Some(&namespace)
                    && pod
                        .status
                        .as_ref()
                        .is_some_and(|status| status.phase == ShadowPodPhase::Created)
            })
            .count(),
        tenant_namespace: tenant,
        links,
    })
}

fn offers_in_namespace(namespace: &str, objects: &LiqoObjects) -> ReadResult<Vec<OfferSummary>> {
    let offers = as_read_result(&objects.offers)?
        .iter()
        .filter(|offer| offer.namespace().as_deref() == Some(namespace));
    let mut offers: Vec<OfferSummary> = offers.cloned().map(summarize_offer).collect();
    offers.sort_by(|one, other| one.pool.cmp(&other.pool));
    Ok(offers)
}

fn summarize_offer(object: ResourceOffer) -> OfferSummary {
    let status = object.status.unwrap_or_default();
    OfferSummary {
        pool: object.spec.pool,
        phase: status.phase,
        message: status.message,
        resources: object.spec.resource_quota.hard,
        withdrawal_timestamp: object
            .spec
            .withdrawal_timestamp
            .map(|time| time.0.to_string()),
        reclaim_timestamp: object.spec.reclaim_timestamp.map(|time| time.0.to_string()),
        drain_timestamp: object.spec.drain_timestamp.map(|time| time.0.to_string()),
    }
}

fn summarize_namespace(object: NamespaceOffloading) -> OffloadedNamespaceSummary {
    let name = object.namespace().unwrap_or_default();
    let status = object.status.unwrap_or_default();
    OffloadedNamespaceSummary {
        namespace: name,
        pod_offloading_strategy: object.spec.pod_offloading_strategy,
        placement: object.spec.placement,
        ready: status
            .conditions
            .iter()
            .find(|condition| condition.type_ == "Ready")
            .map(LinkSummary::from),
        remote: status
            .remote_namespaces
            .into_iter()
            .map(|remote| RemoteNamespaceSummary {
                cluster: remote.cluster_name,
                namespace: remote.namespace,
                ready: remote.ready,
                message: remote.message,
                exposed: remote.exposed,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        finding::CheckVerdict,
        inspect::{
            VirtualNodeUsage,
            fixtures::{condition, facts, milan, of},
        },
    };

    #[test]
    fn each_object_is_shown_with_the_peer_that_it_belongs_to() {
        let mut objects = facts().liqo;
        let node = |namespace: &str| {
            json!({
                "metadata": { "name": "default", "namespace": namespace },
                "spec": { "clusterID": milan(), "clusterName": "milan", "pool": "default", "resources": { "cpu": "2" } },
                "status": { "nodeName": "milan" },
            })
        };
        objects.virtual_nodes = Ok(vec![
            of(node(&provider_namespace(&milan()))),
            of(node("liqo-provider-another")),
        ]);
        let requests = [
            ("cpu", "1500m".parse().unwrap()),
            ("memory", "1Gi".parse().unwrap()),
        ]
        .into();
        let used = VirtualNodeUsage {
            ready: true,
            pods: 3,
            requests,
        };
        let usage = BorrowedAndLentUsage {
            nodes: [("milan".to_owned(), used)].into(),
            nodes_for_manager: Some(2),
            shadow_pods: Vec::new(),
        };
        let status =
            serde_json::to_value(summarize_status("kind", &objects, &usage).unwrap()).unwrap();
        assert_eq!(
            (
                &status["cluster"]["name"],
                &status["cluster"]["manager"]["available"]
            ),
            (&json!("rome"), &json!(1))
        );
        let expected = json!([{ "pool": "default", "node": "milan", "ready": true, "resources": { "cpu": "2" },
            "used": { "cpu": "1500m" }, "free": { "cpu": "500m" }, "pods": 3 }]);
        assert_eq!(status["peers"][0]["borrowing"]["nodes"], expected);
        assert_eq!(
            status["peers"][0]["network"]["prefixes"],
            json!({ "10.244.0.0/16": "10.65.0.0/16" })
        );
        assert_eq!(
            status["peers"][0]["network"].get("peerCouldKeep"),
            None,
            "the peer's pods have the same range"
        );
        let misfit = status["cluster"]["replicasNote"].as_str().unwrap();
        assert!(misfit.contains("one replica, although 2 nodes"), "{misfit}");
        let tunnel = objects.tunnels.as_mut().unwrap().first_mut().unwrap();
        tunnel.spec.imported = [(
            "10.245.0.0/16".parse().unwrap(),
            "10.65.0.0/16".parse().unwrap(),
        )]
        .into();
        let status =
            serde_json::to_value(summarize_status("kind", &objects, &usage).unwrap()).unwrap();
        assert_eq!(
            status["peers"][0]["network"]["peerCouldKeep"],
            json!(["10.244.0.0/16"])
        );
        objects.offers = Err("cannot list resourceoffers".to_owned());
        assert_eq!(
            summarize_status("kind", &objects, &usage).unwrap_err(),
            "cannot list resourceoffers"
        );
    }

    #[test]
    fn isolation_matters_once_a_peer_borrows() {
        let mut objects = facts().liqo;
        let config = objects.config.as_mut().unwrap().as_mut().unwrap();
        config.status.as_mut().unwrap().conditions = vec![condition(
            liqo_api::NETWORK_POLICIES_ENFORCED,
            "False",
            "NotEnforced",
        )];
        let mut verdict = |tenant: Option<&str>| {
            let peer = &mut objects.peers.as_mut().unwrap()[0];
            peer.status.as_mut().unwrap().tenant_namespace = tenant.map(str::to_owned);
            let usage = BorrowedAndLentUsage::default();
            let status = summarize_status("kind", &objects, &usage).unwrap();
            status.cluster.unwrap().isolation
        };
        assert_eq!(verdict(None), CheckVerdict::Ok);
        assert_eq!(verdict(Some("liqo-tenant-x")), CheckVerdict::Fail);
    }

    #[test]
    fn a_cluster_without_liqo_has_the_name_of_its_context() {
        let mut objects = facts().liqo;
        (objects.config, objects.manager, objects.peers) = (Ok(None), Ok(None), Ok(Vec::new()));
        let status = summarize_status("kind", &objects, &BorrowedAndLentUsage::default()).unwrap();
        let cluster = status.cluster.unwrap();
        assert!(cluster.name == "kind" && !cluster.installed && status.peers.is_empty());
    }
}
