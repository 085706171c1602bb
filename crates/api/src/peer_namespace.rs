//! The namespaces that Liqo creates for peers, as their names and labels tell. All parts of Liqo
//! read them here, so they agree which namespaces are Liqo's, and whose.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{ClusterId, labels, provider_namespace, tenant_namespace};

/// The purpose of a namespace that Liqo created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerNamespaceKind {
    /// At the provider: where it talks with one consumer.
    Tenant,
    /// At the consumer: its objects about one provider.
    Provider,
    /// At the provider: where the pods of one namespace of a consumer run.
    Mapped {
        /// The name of that namespace in the consumer cluster.
        home: String,
    },
}

impl PeerNamespaceKind {
    /// The label that names the peer.
    const fn peer_label(&self) -> &'static str {
        match self {
            Self::Provider => labels::PROVIDER_ID,
            Self::Tenant | Self::Mapped { .. } => labels::CONSUMER_ID,
        }
    }

    const fn label_value(&self) -> &'static str {
        match self {
            Self::Tenant => labels::KIND_TENANT,
            Self::Provider => labels::KIND_PROVIDER,
            Self::Mapped { .. } => labels::KIND_MAPPED,
        }
    }
}

/// A namespace that Liqo created for a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerNamespace {
    /// The provider for [`PeerNamespaceKind::Provider`], else the consumer.
    pub peer: ClusterId,
    /// Its purpose.
    pub kind: PeerNamespaceKind,
}

impl PeerNamespace {
    /// Reads the name and the labels of a namespace. `None` if they are not exactly those that Liqo
    /// gives to the namespaces that it creates. So a namespace with the labels of a tenant namespace
    /// and another name is nobody's.
    pub fn from_metadata(namespace: &ObjectMeta) -> Option<Self> {
        let found = namespace.labels.as_ref()?;
        let label = |key: &str| found.get(key).map(String::as_str);
        if label(labels::MANAGED)? != "true" {
            return None;
        }
        let kind = match label(labels::NAMESPACE_KIND)? {
            labels::KIND_TENANT => PeerNamespaceKind::Tenant,
            labels::KIND_PROVIDER => PeerNamespaceKind::Provider,
            labels::KIND_MAPPED => PeerNamespaceKind::Mapped {
                home: label(labels::HOME_NAMESPACE)?.to_owned(),
            },
            _ => return None,
        };
        let peer: ClusterId = label(kind.peer_label())?.parse().ok()?;
        let only_name = match kind {
            PeerNamespaceKind::Tenant => Some(tenant_namespace(&peer)),
            PeerNamespaceKind::Provider => Some(provider_namespace(&peer)),
            PeerNamespaceKind::Mapped { .. } => None,
        };
        let has_right_name = only_name.is_none_or(|name| namespace.name == Some(name));
        has_right_name.then_some(Self { peer, kind })
    }

    /// The labels that make a namespace one of these.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([
            (labels::MANAGED.to_owned(), "true".to_owned()),
            (
                labels::NAMESPACE_KIND.to_owned(),
                self.kind.label_value().to_owned(),
            ),
            (self.kind.peer_label().to_owned(), self.peer.to_string()),
        ]);
        if let PeerNamespaceKind::Mapped { home } = &self.kind {
            all.insert(labels::HOME_NAMESPACE.to_owned(), home.clone());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    fn namespace(name: &str, labels: BTreeMap<String, String>) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        }
    }

    fn one_of_each_kind() -> [(String, PeerNamespace); 3] {
        let home = "shop".to_owned();
        [
            (tenant_namespace(&peer()), PeerNamespaceKind::Tenant),
            (provider_namespace(&peer()), PeerNamespaceKind::Provider),
            ("shop-rome".into(), PeerNamespaceKind::Mapped { home }),
        ]
        .map(|(name, kind)| (name, PeerNamespace { peer: peer(), kind }))
    }

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        for (name, written) in one_of_each_kind() {
            let read = PeerNamespace::from_metadata(&namespace(&name, written.labels()));
            assert_eq!(read, Some(written));
        }
    }

    #[test]
    fn a_namespace_without_one_of_its_labels_is_nobodys() {
        for (name, written) in one_of_each_kind() {
            for missing in written.labels().keys() {
                let (mut removed, mut changed) = (written.labels(), written.labels());
                removed.remove(missing);
                let removed = namespace(&name, removed);
                assert_eq!(PeerNamespace::from_metadata(&removed), None, "{missing}");
                if missing == labels::HOME_NAMESPACE {
                    continue;
                }
                changed.insert(missing.clone(), "another".into());
                let changed = namespace(&name, changed);
                assert_eq!(PeerNamespace::from_metadata(&changed), None, "{missing}");
            }
        }
        assert_eq!(PeerNamespace::from_metadata(&ObjectMeta::default()), None);
    }

    #[test]
    fn tenant_and_provider_namespaces_have_one_name_for_each_peer() {
        let [(_, tenant), (_, provider), (_, mapped)] = one_of_each_kind();
        for foreign in [
            "demo",
            &tenant_namespace(&ClusterId::of_public_key(&[2; 32])),
        ] {
            let read = |one: &PeerNamespace| {
                PeerNamespace::from_metadata(&namespace(foreign, one.labels()))
            };
            assert_eq!((read(&tenant), read(&provider)), (None, None), "{foreign}");
            assert_eq!(read(&mapped).as_ref(), Some(&mapped));
        }
    }
}
