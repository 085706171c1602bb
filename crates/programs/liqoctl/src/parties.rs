//! Tells who the peer of a contract, a receipt or a record is, and which role this cluster has in
//! it: provider or consumer.
//!
//! The namespace tells: what this cluster provides is in tenant namespaces, and copies of what it
//! consumes are in provider namespaces. Objects of ended peerings are in Liqo's namespace, with
//! labels that tell.

use std::{fmt, fmt::Debug};

use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use liqo_api::{
    ClusterId, ForeignCluster, SYSTEM_NAMESPACE, annotations, labels, provider_namespace,
    tenant_namespace,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{cluster::Cluster, lists};

/// The role of this cluster in a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ContractRole {
    Provider,
    Consumer,
}

impl fmt::Display for ContractRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Provider => "provider",
            Self::Consumer => "consumer",
        })
    }
}

/// One side of a contract: a peer, and the role of this cluster towards it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContractParty {
    pub id: ClusterId,
    pub role: ContractRole,
}

/// An object, and with whom it is.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerObject<K> {
    pub id: ClusterId,
    /// Name of the peer's `ForeignCluster`; where there is none, the name that was kept with the
    /// object, or its ID.
    pub peer: String,
    pub role: ContractRole,
    /// The peering has ended, and this is kept.
    pub is_kept: bool,
    /// The name that the object had in the peering.
    pub name: String,
    pub object: K,
}

/// The peer that a namespace is for, and the role of this cluster towards it.
pub fn peer_and_role(namespace: &str) -> Option<ContractParty> {
    let id: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
    let role = if namespace == tenant_namespace(&id) {
        ContractRole::Provider
    } else if namespace == provider_namespace(&id) {
        ContractRole::Consumer
    } else {
        return None;
    };
    Some(ContractParty { id, role })
}

/// The same of an object that is kept of an ended peering.
fn kept_role_of<K: Resource>(object: &K) -> Option<ContractParty> {
    // In other namespaces, users may write such labels.
    let labels = object
        .meta()
        .labels
        .as_ref()
        .filter(|_| object.meta().namespace.as_deref() == Some(SYSTEM_NAMESPACE))?;
    let role = match labels.get(labels::FORMER_ROLE)?.as_str() {
        "provider" => ContractRole::Provider,
        "consumer" => ContractRole::Consumer,
        _ => return None,
    };
    let id = labels.get(labels::FORMER_PEER_ID)?.parse().ok()?;
    Some(ContractParty { id, role })
}

/// The name of a peer's `ForeignCluster`, or its ID.
pub fn peer_name(known: &[ForeignCluster], id: &ClusterId) -> String {
    known_name(known, id).unwrap_or_else(|| id.to_string())
}

fn known_name(known: &[ForeignCluster], id: &ClusterId) -> Option<String> {
    known
        .iter()
        .find(|foreign| foreign.spec.cluster_id == *id)
        .map(kube::ResourceExt::name_any)
}

/// All objects of a kind that are with peers, or those that are with one. `what` is the plural of
/// the kind, for errors.
pub async fn list_objects_of_peers<K>(
    cluster: &Cluster,
    of: Option<&ForeignCluster>,
    what: &str,
) -> anyhow::Result<Vec<PeerObject<K>>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let known = lists::list_peers(cluster).await?;
    let all = lists::list_everywhere(cluster, &format!("the {what}")).await?;
    Ok(select_objects_of_peers(&known, of, all))
}

fn select_objects_of_peers<K: Resource>(
    known: &[ForeignCluster],
    of: Option<&ForeignCluster>,
    all: Vec<K>,
) -> Vec<PeerObject<K>> {
    all.into_iter()
        .filter_map(|object| object_of_peer(known, object))
        .filter(|one| of.is_none_or(|of| of.spec.cluster_id == one.id))
        .collect()
}

fn object_of_peer<K: Resource>(known: &[ForeignCluster], mut object: K) -> Option<PeerObject<K>> {
    let kept = kept_role_of(&object);
    let is_kept = kept.is_some();
    let ContractParty { id, role } = kept.or_else(|| peer_and_role(&object.namespace()?))?;
    object.meta_mut().managed_fields = None;
    let kept_name = object.annotations().get(annotations::CLUSTER_NAME);
    let peer = known_name(known, &id)
        .or_else(|| kept_name.filter(|_| is_kept).cloned())
        .unwrap_or_else(|| id.to_string());
    let name = object.name_any();
    let ending = format!("-{role}-{id}-");
    let name = name
        .split_once(&ending)
        .filter(|_| is_kept)
        .map_or(name.clone(), |(name, _)| name.to_owned());
    Some(PeerObject {
        id,
        peer,
        role,
        is_kept,
        name,
        object,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use liqo_api::ForeignClusterSpec;

    use super::*;

    #[test]
    fn the_role_follows_from_the_namespace() {
        let id = ClusterId::of_public_key(&[1; 32]);
        assert_eq!(
            peer_and_role(&tenant_namespace(&id)),
            Some(ContractParty {
                id: id.clone(),
                role: ContractRole::Provider
            })
        );
        assert_eq!(
            peer_and_role(&provider_namespace(&id)),
            Some(ContractParty {
                id: id.clone(),
                role: ContractRole::Consumer
            })
        );
        assert_eq!(peer_and_role(&format!("liqo-{id}")), None);
    }

    #[test]
    fn an_object_is_with_the_peer_of_its_namespace() {
        let (milan, rome) = (
            ClusterId::of_public_key(&[1; 32]),
            ClusterId::of_public_key(&[2; 32]),
        );
        let foreign = |name: &str, id: &ClusterId| {
            let spec: ForeignClusterSpec =
                serde_json::from_value(serde_json::json!({ "clusterID": id })).unwrap();
            ForeignCluster::new(name, spec)
        };
        let object = |namespace: String| {
            let mut object = ConfigMap::default();
            object.metadata.namespace = Some(namespace);
            object
        };
        let all = vec![
            object(provider_namespace(&milan)),
            object(tenant_namespace(&rome)),
            object("demo".to_owned()),
        ];
        let known = [foreign("milan", &milan)];
        let found: Vec<_> = select_objects_of_peers(&known, None, all.clone())
            .into_iter()
            .map(|one| (one.peer, one.role))
            .collect();
        assert_eq!(
            found,
            [
                ("milan".to_owned(), ContractRole::Consumer),
                (rome.to_string(), ContractRole::Provider)
            ]
        );
        let found = select_objects_of_peers(&known, Some(&foreign("r", &rome)), all);
        assert_eq!(
            (found.len(), found[0].role.to_string()),
            (1, "provider".to_owned())
        );
    }

    #[test]
    fn what_is_kept_of_an_ended_peering_has_the_peer_and_the_name_that_it_had() {
        let rome = ClusterId::of_public_key(&[2; 32]);
        let kept = |namespace: &str| {
            let mut object = ConfigMap::default();
            object.metadata.name = Some(format!("receipt-1-provider-{rome}-01234567"));
            object.metadata.namespace = Some(namespace.to_owned());
            let labels = [
                (labels::FORMER_ROLE, "provider".to_owned()),
                (labels::FORMER_PEER_ID, rome.to_string()),
            ];
            object.metadata.labels =
                Some(labels.map(|(key, value)| (key.to_owned(), value)).into());
            object.metadata.annotations =
                Some([(annotations::CLUSTER_NAME.to_owned(), "rome".to_owned())].into());
            object
        };
        let found = select_objects_of_peers(&[], None, vec![kept(SYSTEM_NAMESPACE), kept("demo")]);
        assert_eq!(found.len(), 1, "anybody may write into other namespaces");
        let one = &found[0];
        assert_eq!(
            (one.peer.as_str(), one.name.as_str(), one.role, one.is_kept),
            ("rome", "receipt-1", ContractRole::Provider, true)
        );
    }
}
