//! The objects that are read about one pod, here and at its provider.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use liqo_api::{
    ClusterId, ForeignCluster, NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy,
    RemoteNamespace, ShadowPod, labels, provider_namespace, tenant_namespace,
};
use liqo_controller_runtime::{
    Tcp,
    provider_limits::{ProviderLimits, TotalBytes},
};
use liqo_offloading_rules::pod::{
    home_text::with_home_names,
    references::{PodReferences, referenced_objects},
};
use liqo_peering::{
    decide::credential::{self, CREDENTIAL_SECRET},
    transport::{self, BearerToken},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cluster::Cluster,
    inspect::{ClusterReader, ReadResult},
    lists::NodeSelection,
};

/// The objects that were read. An object that could not be read is an error text instead.
#[derive(Clone, Debug)]
pub struct PodFacts {
    pub pod: Pod,
    /// The node of the pod; nothing if it has none, or if that node does not exist.
    pub node: ReadResult<Option<Node>>,
    pub virtual_nodes: ReadResult<Vec<Node>>,
    pub peers: ReadResult<Vec<ForeignCluster>>,
    /// That of the pod's namespace.
    pub offloading: ReadResult<Option<NamespaceOffloading>>,
    /// The provider's objects for the pod; nothing if the pod is on no virtual node.
    pub provider: Option<ProviderPodFacts>,
    pub read_at: Timestamp,
}

/// The objects that this cluster's credential may read at the provider.
#[derive(Clone, Debug)]
pub struct ProviderPodFacts {
    pub shadow_pod: ReadResult<Option<ShadowPod>>,
    pub remote_pod: ReadResult<Option<Pod>>,
}

impl ProviderPodFacts {
    fn unreadable(why: &str) -> Self {
        Self {
            shadow_pod: Err(why.to_owned()),
            remote_pod: Err(why.to_owned()),
        }
    }
}

impl PodFacts {
    /// Name of the pod's node.
    pub fn node_name(&self) -> Option<&str> {
        self.pod
            .spec
            .as_ref()?
            .node_name
            .as_deref()
            .filter(|name| !name.is_empty())
    }

    /// The `NamespaceOffloading`, if it lets pods of the namespace run elsewhere.
    pub fn remote_offloading(&self) -> Option<&NamespaceOffloading> {
        let offloading = self.offloading.as_ref().ok()?.as_ref()?;
        (offloading.spec.pod_offloading_strategy != PodOffloadingStrategy::Local)
            .then_some(offloading)
    }

    /// The cluster behind the pod's node.
    pub fn provider_id(&self) -> Option<ClusterId> {
        provider_of(self.node.as_ref().ok()?.as_ref()?)
    }

    /// The pod's namespace at a provider.
    pub fn remote_namespace(&self, provider: &ClusterId) -> Option<&RemoteNamespace> {
        remote_namespace(self.offloading.as_ref().ok()?.as_ref()?, provider)
    }
}

fn provider_of(node: &Node) -> Option<ClusterId> {
    node.labels().get(labels::REMOTE_CLUSTER_ID)?.parse().ok()
}

fn remote_namespace<'a>(
    offloading: &'a NamespaceOffloading,
    provider: &ClusterId,
) -> Option<&'a RemoteNamespace> {
    offloading
        .status
        .as_ref()?
        .remote_namespaces
        .iter()
        .find(|remote| remote.cluster_id == *provider)
}

/// Reads everything about a pod; nothing if there is no such pod.
pub async fn collect(
    cluster: &Cluster,
    own: Option<&ClusterId>,
    namespace: &str,
    name: &str,
) -> ReadResult<Option<PodFacts>> {
    let reader = ClusterReader::new(cluster);
    let Some(pod) = reader.get::<Pod>(namespace, name).await? else {
        return Ok(None);
    };
    let of_virtual_nodes = NodeSelection::Virtual.parameters();
    let all = ListParams::default();
    let (virtual_nodes, peers, offloading) = tokio::join!(
        reader.list::<Node>(&of_virtual_nodes),
        reader.list::<ForeignCluster>(&all),
        reader.get::<NamespaceOffloading>(namespace, NAMESPACE_OFFLOADING),
    );
    let node = match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        Some(node) if !node.is_empty() => reader.get_cluster_wide::<Node>(node).await,
        _ => Ok(None),
    };
    let mut facts = PodFacts {
        pod,
        node,
        virtual_nodes,
        peers,
        offloading,
        provider: None,
        read_at: Timestamp::now(),
    };
    if let Some(provider) = facts.provider_id() {
        facts.provider = Some(match own {
            Some(own) => read_provider_facts(&reader, own, &provider, &facts).await,
            None => ProviderPodFacts::unreadable("you may not read the ID of this cluster"),
        });
    }
    Ok(Some(facts))
}

async fn read_provider_facts(
    reader: &ClusterReader,
    own: &ClusterId,
    provider: &ClusterId,
    facts: &PodFacts,
) -> ProviderPodFacts {
    let peer = facts
        .peers
        .iter()
        .flatten()
        .find(|peer| peer.spec.cluster_id == *provider);
    let there = match provider_client(reader, own, provider, peer).await {
        Ok(client) => ClusterReader::with_client(client),
        Err(why) => return ProviderPodFacts::unreadable(&why),
    };
    let uid = facts.pod.uid().unwrap_or_default();
    let shadow_pod = async { there.get::<ShadowPod>(&tenant_namespace(own), &uid).await };
    let remote_pod = async {
        let Some(remote) = facts.remote_namespace(provider) else {
            return Ok(None);
        };
        let api: Api<Pod> = Api::namespaced(there.client(), &remote.namespace);
        let what = format!(
            "read Pod {}/{} at {}",
            remote.namespace,
            facts.pod.name_any(),
            remote.cluster_name
        );
        let found = there.get_from(&what, api, &facts.pod.name_any()).await?;
        // Another pod may have the name.
        Ok(found.filter(|found| found.labels().get(labels::SHADOW_POD) == Some(&uid)))
    };
    let (shadow_pod, remote_pod) = tokio::join!(shadow_pod, remote_pod);
    let named = referenced_objects(&serde_json::to_value(&facts.pod).unwrap_or_default());
    ProviderPodFacts {
        shadow_pod: in_home_names(shadow_pod, &named),
        remote_pod: in_home_names(remote_pod, &named),
    }
}

/// An object at the provider that shows `ConfigMap`s and Secrets by the names that they have here.
fn in_home_names<K: Serialize + DeserializeOwned>(
    object: ReadResult<Option<K>>,
    named: &PodReferences,
) -> ReadResult<Option<K>> {
    object.map(|object| {
        object.map(|object| {
            let text = serde_json::to_string(&object).ok();
            text.and_then(|text| serde_json::from_str(&with_home_names(&text, named)).ok())
                .unwrap_or(object)
        })
    })
}

/// A client for the provider's API server, with this cluster's credential.
async fn provider_client(
    reader: &ClusterReader,
    own: &ClusterId,
    provider: &ClusterId,
    peer: Option<&ForeignCluster>,
) -> ReadResult<Client> {
    if peer.is_some_and(|peer| !peer.spec.tunnel.is_empty()) {
        return Err(
            "this cluster calls the provider through its tunnel, which only the manager can do"
                .to_owned(),
        );
    }
    let secret = reader
        .get::<Secret>(&provider_namespace(provider), CREDENTIAL_SECRET)
        .await?;
    let credential = credential::stored_credential(secret)
        .ok_or("this cluster has no credential for the provider")?;
    let config = credential
        .client_config(&tenant_namespace(own))
        .map_err(|error| error.to_string())?;
    let (token, limits) = (
        BearerToken::default(),
        ProviderLimits::new(provider.clone(), TotalBytes::default()),
    );
    token
        .set(&credential.token.0)
        .map_err(|error| error.to_string())?;
    let client = transport::peer_client(&Tcp::network(), config, token, Arc::new(limits), None);
    client.map_err(|error| format!("cannot use the credential for the provider: {error}"))
}

#[cfg(test)]
mod tests {
    use liqo_offloading_rules::replica::{kind::ReplicaKind, name::replica_name};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_kubelet_there_says_names_the_objects_of_this_cluster() {
        let pod = |message: &str| -> Pod {
            serde_json::from_value(json!({ "status": { "message": message } })).unwrap()
        };
        let named = referenced_objects(
            &json!({ "spec": { "volumes": [{ "name": "v", "secret": { "secretName": "login" } }] } }),
        );
        let said = format!(
            "secret \"{}\" not found",
            replica_name(ReplicaKind::Secret, "login")
        );
        let shown = in_home_names(Ok(Some(pod(&said))), &named);
        assert_eq!(shown, Ok(Some(pod("secret \"login\" not found"))));
    }
}
