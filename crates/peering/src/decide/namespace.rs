//! The namespaces that Liqo creates for peers (tenant, provider, mapped), reduced to the fields
//! that peering needs.

use data_encoding::BASE64;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use liqo_api::{
    ClusterId, annotations,
    peer_namespace::{PeerNamespace, PeerNamespaceKind},
};

use super::manifests;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiqoNamespace {
    pub kind: PeerNamespaceKind,
    /// The consumer, or for a provider namespace the provider.
    pub cluster: ClusterId,
    /// The consumer's name, on tenant namespaces.
    pub cluster_name: Option<String>,
    /// The consumer's key, on tenant namespaces.
    pub public_key: Option<[u8; 32]>,
    /// Kubernetes is deleting it.
    pub terminating: bool,
    /// Liqo is ending the tenancy.
    pub ending: bool,
}

impl LiqoNamespace {
    /// Returns none if Liqo did not create the namespace.
    #[allow(clippy::needless_pass_by_value)] // The signature that a cache requires.
    pub fn from_namespace(namespace: Namespace) -> Option<Self> {
        let PeerNamespace { peer, kind } = PeerNamespace::from_metadata(&namespace.metadata)?;
        Some(Self {
            kind,
            cluster: peer,
            cluster_name: namespace
                .annotations()
                .get(annotations::CLUSTER_NAME)
                .cloned(),
            public_key: namespace
                .annotations()
                .get(annotations::PUBLIC_KEY)
                .and_then(|text| {
                    let key = BASE64.decode(text.as_bytes()).ok()?;
                    key.try_into().ok()
                }),
            terminating: namespace.metadata.deletion_timestamp.is_some(),
            ending: namespace.annotations().contains_key(manifests::ENDING),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::access::GrantedConsumer;

    #[test]
    fn a_namespace_is_known_by_its_labels_and_its_name() {
        let id = ClusterId::of_public_key(&[1; 32]);
        let consumer = GrantedConsumer {
            id: id.clone(),
            public_key: [1; 32],
            name: "rome".into(),
            protocol_version: 1,
        };
        let made = manifests::namespace_of_tenant(&consumer);
        let known = LiqoNamespace::from_namespace(made.clone()).unwrap();
        assert_eq!(
            (&known.kind, &known.cluster, known.cluster_name.as_deref()),
            (&PeerNamespaceKind::Tenant, &id, Some("rome"))
        );
        assert!(!known.ending && !known.terminating);
        let provider =
            LiqoNamespace::from_namespace(manifests::namespace_of_provider(&id)).unwrap();
        assert_eq!(
            (&provider.kind, &provider.cluster),
            (&PeerNamespaceKind::Provider, &id)
        );
        let mut strange = made;
        strange.metadata.labels = None;
        assert_eq!(LiqoNamespace::from_namespace(strange), None);
    }
}
