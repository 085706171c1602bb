//! The namespaces that Liqo created here for consumers, and the mapped namespace of a home
//! namespace.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use liqo_api::{
    ClusterId, MappedNamespacePhase, NamespaceMap, annotations, mapped_namespace,
    peer_namespace::{PeerNamespace, PeerNamespaceKind},
};

use crate::dns_names;

/// A namespace that Liqo created here for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerNamespace {
    pub uid: String,
    pub consumer: ClusterId,
    pub kind: NamespaceKind,
    pub terminating: bool,
    /// Pod Security labels, which the provider's admin may set.
    pub pod_security: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// The namespace for the exchange with the consumer.
    Tenant {
        /// The consumer's friendly name, if it is known.
        cluster_name: Option<String>,
    },
    /// The mapped namespace of one of the consumer's namespaces.
    Mapped {
        /// Its name at home.
        home: String,
    },
}

impl ConsumerNamespace {
    /// Reduces a namespace. `None` if it has not the labels of a namespace that we created for a
    /// consumer, or if it claims to be another consumer's tenant namespace.
    pub fn from_namespace(namespace: Namespace) -> Option<Self> {
        let meta = namespace.metadata;
        let PeerNamespace { peer, kind } = PeerNamespace::from_metadata(&meta)?;
        let kind = match kind {
            PeerNamespaceKind::Tenant => NamespaceKind::Tenant {
                cluster_name: meta
                    .annotations
                    .as_ref()
                    .and_then(|all| all.get(annotations::CLUSTER_NAME))
                    .cloned(),
            },
            PeerNamespaceKind::Mapped { home } => NamespaceKind::Mapped { home },
            PeerNamespaceKind::Provider => return None,
        };
        let pod_security = meta
            .labels
            .iter()
            .flatten()
            .filter(|(key, _)| key.starts_with("pod-security.kubernetes.io/"));
        Some(Self {
            uid: meta.uid.clone()?,
            consumer: peer,
            kind,
            terminating: meta.deletion_timestamp.is_some(),
            pod_security: pod_security
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        })
    }

    /// Whether this is the mapped namespace of this home namespace.
    pub fn is_mapped_from(&self, consumer: &ClusterId, home_namespace: &str) -> bool {
        self.consumer == *consumer
            && matches!(&self.kind, NamespaceKind::Mapped { home } if home == home_namespace)
    }
}

/// The namespace where pods of a home namespace run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub namespace: String,
    pub state: DestinationState,
}

/// The message about pods that wait because, at other clusters, nothing would separate them from
/// those of other consumers.
pub fn not_brokered_message(namespace: &str) -> String {
    format!(
        "namespace {namespace} is being offloaded to the clusters that its pods run at; if that does not end, somebody else created a \
         NamespaceOffloading in it, and has to delete it"
    )
}

/// Whether pods may be created in a mapped namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DestinationState {
    Ready,
    /// Not now, for this reason. Running pods stay.
    NotReady(String),
    /// The consumer does not want the namespace: its pods are deleted.
    Unwanted,
}

fn no_destination() -> Destination {
    Destination {
        namespace: String::new(),
        state: DestinationState::Unwanted,
    }
}

/// Finds the namespace to which the pods and objects of a consumer's namespace belong, and whether
/// they may be created. `namespace` finds one of our namespaces by name; `tenant` is the consumer's
/// own, unless it is gone.
pub fn find_destination(
    tenant: Option<&ConsumerNamespace>,
    map: Option<&NamespaceMap>,
    home: &str,
    namespace: impl Fn(&str) -> Option<Arc<ConsumerNamespace>>,
) -> Destination {
    let Some(ConsumerNamespace {
        consumer,
        kind: NamespaceKind::Tenant { cluster_name },
        terminating,
        ..
    }) = tenant
    else {
        return no_destination();
    };
    let wanted = map.and_then(|map| map.spec.mappings.get(home));
    let entry = map.and_then(|map| map.status.as_ref()?.namespaces.get(home));

    let name = entry
        .map(|entry| entry.remote_name.clone())
        .or(wanted.map(|wanted| wanted.remote_name.clone()))
        .unwrap_or_else(|| {
            mapped_namespace(home, cluster_name.as_deref().unwrap_or_default(), consumer)
        });
    if !dns_names::is_label(home) || !dns_names::is_label(&name) {
        return no_destination();
    }
    let state = match (wanted, entry) {
        (None, _) => DestinationState::Unwanted,
        _ if *terminating => DestinationState::Unwanted,
        (Some(_), None) => {
            DestinationState::NotReady(format!("namespace {home} is being prepared"))
        }
        (Some(wanted), Some(entry)) if entry.remote_name != wanted.remote_name => {
            DestinationState::Unwanted
        }
        (Some(_), Some(entry)) if entry.phase != MappedNamespacePhase::Ready => {
            DestinationState::NotReady(
                entry
                    .message
                    .clone()
                    .unwrap_or_else(|| format!("namespace {name} is not ready")),
            )
        }
        (Some(_), Some(entry)) => match namespace(&name) {
            Some(found)
                if !found.terminating
                    && found.is_mapped_from(consumer, home)
                    && entry.uid.as_ref() == Some(&found.uid) =>
            {
                DestinationState::Ready
            }
            _ => DestinationState::NotReady(format!("namespace {name} is being deleted")),
        },
    };
    Destination {
        namespace: name,
        state,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use liqo_api::{labels, tenant_namespace};

    use super::*;
    use crate::fixtures::{consumer, map, mapped, tenant};

    fn reduce(labels: &serde_json::Value, name: &str) -> Option<ConsumerNamespace> {
        let object = json!({ "metadata": { "name": name, "uid": "u", "labels": labels } });
        ConsumerNamespace::from_namespace(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn whose_a_tenant_namespace_is_follows_from_its_name_and_labels_together() {
        let id = consumer();
        let labels = json!({ labels::MANAGED: "true", labels::NAMESPACE_KIND: labels::KIND_TENANT, labels::CONSUMER_ID: id });
        assert!(reduce(&labels, &tenant_namespace(&id)).is_some());
        assert_eq!(reduce(&labels, "liqo-tenant-of-somebody-else"), None);
        let mut unmanaged = labels;
        unmanaged[labels::MANAGED] = "false".into();
        assert_eq!(reduce(&unmanaged, &tenant_namespace(&id)), None);
    }

    #[test]
    fn pods_go_only_into_the_namespace_that_we_made_and_recorded() {
        let (wanted, have) = ([("demo", "demo-rome")], [("demo", "demo-rome", "u1")]);
        let state = |map: &NamespaceMap, found: Option<&ConsumerNamespace>| {
            find_destination(Some(&tenant()), Some(map), "demo", |_| {
                found.cloned().map(Arc::new)
            })
            .state
        };
        let full = map(&wanted, &have);
        assert_eq!(
            state(&full, Some(&mapped("demo", "u1"))),
            DestinationState::Ready
        );
        let other_consumer = ConsumerNamespace {
            consumer: ClusterId::of_public_key(&[8; 32]),
            ..mapped("demo", "u1")
        };
        let terminating = ConsumerNamespace {
            terminating: true,
            ..mapped("demo", "u1")
        };
        for found in [
            None,
            Some(&mapped("demo", "another")),
            Some(&mapped("other", "u1")),
            Some(&other_consumer),
            Some(&terminating),
        ] {
            assert!(
                matches!(state(&full, found), DestinationState::NotReady(_)),
                "{found:?}"
            );
        }
        assert!(matches!(
            state(&map(&wanted, &[]), None),
            DestinationState::NotReady(_)
        ));
    }

    #[test]
    fn what_is_not_mapped_is_unwanted() {
        let found = mapped("demo", "u1");
        let full = map(&[("demo", "demo-rome")], &[("demo", "demo-rome", "u1")]);
        let unwanted = |tenant: Option<&ConsumerNamespace>, map: Option<&NamespaceMap>| {
            find_destination(tenant, map, "demo", |_| Some(Arc::new(found.clone()))).state
                == DestinationState::Unwanted
        };
        assert!(!unwanted(Some(&tenant()), Some(&full)));
        assert!(unwanted(Some(&tenant()), None));
        assert!(unwanted(
            Some(&tenant()),
            Some(&map(&[], &[("demo", "demo-rome", "u1")]))
        ));
        assert!(unwanted(
            Some(&ConsumerNamespace {
                terminating: true,
                ..tenant()
            }),
            Some(&full)
        ));
        assert!(unwanted(None, Some(&full)));
        assert!(unwanted(
            Some(&tenant()),
            Some(&map(&[("demo", "renamed")], &[("demo", "demo-rome", "u1")]))
        ));
    }

    #[test]
    fn a_namespace_whose_name_is_none_has_no_place() {
        for home in ["", "..", "../../secrets", "a/b"] {
            let found = find_destination(
                Some(&tenant()),
                Some(&map(&[(home, "x")], &[])),
                home,
                |_| None,
            );
            assert_eq!(found, no_destination(), "{home}");
        }
    }

    #[test]
    fn the_namespace_is_known_by_name_even_after_the_map_is_gone() {
        let place = find_destination(Some(&tenant()), None, "demo", |_| None);
        assert_eq!(
            place.namespace,
            mapped_namespace("demo", "rome", &consumer())
        );
    }
}
