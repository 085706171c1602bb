//! With whom a contract, a receipt or a record is, and what this cluster is in it. The namespace tells: what this cluster provides is in
//! tenant namespaces, and copies of what it consumes are in provider namespaces.

use std::{fmt, fmt::Debug};

use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _, api::ListParams};
use liqo_api::{ClusterId, ForeignCluster, provider_namespace, tenant_namespace};
use serde::{Serialize, de::DeserializeOwned};

use crate::cluster::{Cluster, Explained as _, list_or_none};

/// What this cluster is in a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Role {
    Provider,
    Consumer,
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Provider => "provider",
            Self::Consumer => "consumer",
        })
    }
}

/// An object, and with whom it is.
#[derive(Clone, Debug, PartialEq)]
pub struct OfPeer<K> {
    /// Name of the peer's `ForeignCluster`; its ID where there is none.
    pub peer: String,
    /// What this cluster is towards it.
    pub role: Role,
    pub object: K,
}

/// The peer that a namespace is for, and the role of this cluster towards it.
pub fn role_of(namespace: &str) -> Option<(ClusterId, Role)> {
    let id: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
    let role = if namespace == tenant_namespace(&id) {
        Role::Provider
    } else if namespace == provider_namespace(&id) {
        Role::Consumer
    } else {
        return None;
    };
    Some((id, role))
}

/// The name of a peer's `ForeignCluster`, or its ID.
pub fn name_of(known: &[ForeignCluster], id: &ClusterId) -> String {
    let found = known.iter().find(|foreign| foreign.spec.cluster_id == *id);
    found.map_or_else(|| id.to_string(), kube::ResourceExt::name_any)
}

/// The peers of this cluster.
pub async fn peers(cluster: &Cluster) -> anyhow::Result<Vec<ForeignCluster>> {
    let clusters: Api<ForeignCluster> = Api::all(cluster.client.clone());
    list_or_none(&clusters, &ListParams::default()).await.doing("list the peers")
}

/// All objects of a kind that are with peers, or those that are with one. `what` is the plural of the kind, for errors.
pub async fn list<K>(cluster: &Cluster, of: Option<&ForeignCluster>, what: &str) -> anyhow::Result<Vec<OfPeer<K>>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let known = peers(cluster).await?;
    let api: Api<K> = Api::all(cluster.client.clone());
    let all = list_or_none(&api, &ListParams::default()).await.doing(format!("list the {what}"))?;
    Ok(of_peers(&known, of, all))
}

fn of_peers<K: Resource>(known: &[ForeignCluster], of: Option<&ForeignCluster>, all: Vec<K>) -> Vec<OfPeer<K>> {
    let with = |mut object: K| {
        let (id, role) = role_of(&object.namespace()?)?;
        object.meta_mut().managed_fields = None;
        let is_wanted = of.is_none_or(|of| of.spec.cluster_id == id);
        is_wanted.then(|| OfPeer { peer: name_of(known, &id), role, object })
    };
    all.into_iter().filter_map(with).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use liqo_api::ForeignClusterSpec;

    use super::*;

    #[test]
    fn the_role_follows_from_the_namespace() {
        let id = ClusterId::of_public_key(&[1; 32]);
        assert_eq!(role_of(&tenant_namespace(&id)), Some((id.clone(), Role::Provider)));
        assert_eq!(role_of(&provider_namespace(&id)), Some((id.clone(), Role::Consumer)));
        assert_eq!(role_of(&format!("liqo-{id}")), None);
    }

    #[test]
    fn an_object_is_with_the_peer_of_its_namespace() {
        let (milan, rome) = (ClusterId::of_public_key(&[1; 32]), ClusterId::of_public_key(&[2; 32]));
        let foreign = |name: &str, id: &ClusterId| {
            let spec: ForeignClusterSpec = serde_json::from_value(serde_json::json!({ "clusterID": id })).unwrap();
            ForeignCluster::new(name, spec)
        };
        let object = |namespace: String| {
            let mut object = ConfigMap::default();
            object.metadata.namespace = Some(namespace);
            object
        };
        let all = vec![object(provider_namespace(&milan)), object(tenant_namespace(&rome)), object("demo".to_owned())];
        let known = [foreign("milan", &milan)];
        let found: Vec<_> = of_peers(&known, None, all.clone()).into_iter().map(|one| (one.peer, one.role)).collect();
        assert_eq!(found, [("milan".to_owned(), Role::Consumer), (rome.to_string(), Role::Provider)]);
        let found = of_peers(&known, Some(&foreign("r", &rome)), all);
        assert_eq!((found.len(), found[0].role.to_string()), (1, "provider".to_owned()));
    }
}
