//! The namespaces that Liqo made here for consumers, and which of them a home namespace is mapped to.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Namespace;
use liqo_api::{ClusterId, MappedNamespacePhase, NamespaceMap, annotations, labels, mapped_namespace, tenant_namespace};

use super::{
    dns_names,
    lifecycle::{Place, PlaceState},
};

/// Value of the label that tells tenant namespaces.
pub const TENANT: &str = "tenant";
/// Value of the label that tells mapped namespaces.
pub const MAPPED: &str = "mapped";

/// A namespace that Liqo made here for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OurNamespace {
    /// Its UID.
    pub uid: String,
    /// The consumer.
    pub consumer: ClusterId,
    /// What it is for.
    pub kind: OurKind,
    /// Whether it is going away.
    pub terminating: bool,
    /// Labels by which the provider's admin may change what pods in it may do.
    pub pod_security: Vec<(String, String)>,
}

/// What a namespace is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OurKind {
    /// The place where we talk with the consumer.
    Tenant {
        /// The consumer's friendly name, if it is known.
        cluster_name: Option<String>,
    },
    /// One of the consumer's namespaces lives here.
    Mapped {
        /// Its name at home.
        home: String,
    },
}

impl OurNamespace {
    /// What is kept of this namespace; nothing when its labels do not say that we made it for a consumer, or when it claims
    /// to be the place of a tenant that it is not.
    pub fn reduce(namespace: Namespace) -> Option<Self> {
        let meta = namespace.metadata;
        let text = |map: &Option<BTreeMap<String, String>>, key: &str| map.as_ref().and_then(|map| map.get(key)).cloned();
        if text(&meta.labels, labels::MANAGED)? != "true" {
            return None;
        }
        let consumer: ClusterId = text(&meta.labels, labels::CONSUMER_ID)?.parse().ok()?;
        let kind = match text(&meta.labels, labels::NAMESPACE_KIND)?.as_str() {
            TENANT if meta.name.as_deref() == Some(tenant_namespace(&consumer).as_str()) => {
                OurKind::Tenant { cluster_name: text(&meta.annotations, annotations::CLUSTER_NAME) }
            }
            MAPPED => OurKind::Mapped { home: text(&meta.labels, labels::HOME_NAMESPACE)? },
            _ => return None,
        };
        let pod_security = meta.labels.iter().flatten().filter(|(key, _)| key.starts_with("pod-security.kubernetes.io/"));
        Some(Self {
            uid: meta.uid.clone()?,
            consumer,
            kind,
            terminating: meta.deletion_timestamp.is_some(),
            pod_security: pod_security.map(|(key, value)| (key.clone(), value.clone())).collect(),
        })
    }

    /// Whether this is the place of this home namespace of this consumer.
    pub fn is_mapped_from(&self, consumer: &ClusterId, home_namespace: &str) -> bool {
        self.consumer == *consumer && matches!(&self.kind, OurKind::Mapped { home } if home == home_namespace)
    }
}

/// No place at all.
fn nowhere() -> Place {
    Place { namespace: String::new(), state: PlaceState::Unwanted }
}

/// Where the pods and objects of a consumer's namespace belong, and whether they may be there. `namespace` finds a namespace
/// of ours by name; `tenant` is the consumer's own, as long as it stays.
pub fn place(
    tenant: Option<&OurNamespace>,
    map: Option<&NamespaceMap>,
    home: &str,
    namespace: impl Fn(&str) -> Option<Arc<OurNamespace>>,
) -> Place {
    let Some(OurNamespace { consumer, kind: OurKind::Tenant { cluster_name }, terminating, .. }) = tenant else {
        return nowhere();
    };
    let wanted = map.and_then(|map| map.spec.mappings.get(home));
    let entry = map.and_then(|map| map.status.as_ref()?.namespaces.get(home));
    let by_rule = || mapped_namespace(home, cluster_name.as_deref().unwrap_or_default(), consumer);
    let name =
        entry.map(|entry| entry.remote_name.clone()).or(wanted.map(|wanted| wanted.remote_name.clone())).unwrap_or_else(by_rule);
    if !dns_names::is_label(home) || !dns_names::is_label(&name) {
        return nowhere();
    }
    let state = match (wanted, entry) {
        (None, _) => PlaceState::Unwanted,
        _ if *terminating => PlaceState::Unwanted,
        (Some(_), None) => PlaceState::NotReady(format!("namespace {home} is being prepared")),
        (Some(wanted), Some(entry)) if entry.remote_name != wanted.remote_name => PlaceState::Unwanted,
        (Some(_), Some(entry)) if entry.phase != MappedNamespacePhase::Ready => {
            PlaceState::NotReady(entry.message.clone().unwrap_or_else(|| format!("namespace {name} is not ready")))
        }
        (Some(_), Some(entry)) => match namespace(&name) {
            Some(found)
                if !found.terminating && found.is_mapped_from(consumer, home) && entry.uid.as_ref() == Some(&found.uid) =>
            {
                PlaceState::Ready
            }
            _ => PlaceState::NotReady(format!("namespace {name} is going away")),
        },
    };
    Place { namespace: name, state }
}

#[cfg(test)]
pub mod tests {
    use liqo_api::{MappedNamespace, NamespaceMapSpec, NamespaceMapStatus, WantedNamespace};
    use serde_json::json;

    use super::{super::remote_pods::tests::consumer, *};

    pub fn tenant() -> OurNamespace {
        let kind = OurKind::Tenant { cluster_name: Some("rome".into()) };
        OurNamespace { uid: "t".into(), consumer: consumer(), kind, terminating: false, pod_security: Vec::new() }
    }

    pub fn mapped(home: &str, uid: &str) -> OurNamespace {
        OurNamespace { uid: uid.into(), kind: OurKind::Mapped { home: home.into() }, ..tenant() }
    }

    /// A map that wants these names, and whose status has these.
    pub fn map(wanted: &[(&str, &str)], have: &[(&str, &str, &str)]) -> NamespaceMap {
        let mappings =
            wanted.iter().map(|(home, name)| ((*home).to_owned(), WantedNamespace { remote_name: (*name).to_owned() }));
        let mut map = NamespaceMap::new("namespaces", NamespaceMapSpec { mappings: mappings.collect() });
        let entry = |name: &str, uid: &str| MappedNamespace {
            remote_name: name.to_owned(),
            uid: Some(uid.to_owned()),
            phase: MappedNamespacePhase::Ready,
            message: None,
        };
        let namespaces = have.iter().map(|(home, name, uid)| ((*home).to_owned(), entry(name, uid))).collect();
        map.status = Some(NamespaceMapStatus { namespaces });
        map
    }

    fn reduce(labels: &serde_json::Value, name: &str) -> Option<OurNamespace> {
        let object = json!({ "metadata": { "name": name, "uid": "u", "labels": labels } });
        OurNamespace::reduce(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn whose_a_tenant_namespace_is_follows_from_its_name_and_labels_together() {
        let id = consumer();
        let labels = json!({ labels::MANAGED: "true", labels::NAMESPACE_KIND: TENANT, labels::CONSUMER_ID: id });
        assert!(reduce(&labels, &tenant_namespace(&id)).is_some());
        assert_eq!(reduce(&labels, "liqo-tenant-of-somebody-else"), None);
        let mut unmanaged = labels;
        unmanaged[labels::MANAGED] = "false".into();
        assert_eq!(reduce(&unmanaged, &tenant_namespace(&id)), None);
    }

    #[test]
    fn pods_go_only_into_the_namespace_that_we_made_and_recorded() {
        let (wanted, have) = ([("demo", "demo-rome")], [("demo", "demo-rome", "u1")]);
        let state = |map: &NamespaceMap, found: Option<&OurNamespace>| {
            place(Some(&tenant()), Some(map), "demo", |_| found.cloned().map(Arc::new)).state
        };
        let full = map(&wanted, &have);
        assert_eq!(state(&full, Some(&mapped("demo", "u1"))), PlaceState::Ready);
        let other_consumer = OurNamespace { consumer: ClusterId::of_public_key(&[8; 32]), ..mapped("demo", "u1") };
        let terminating = OurNamespace { terminating: true, ..mapped("demo", "u1") };
        for found in
            [None, Some(&mapped("demo", "another")), Some(&mapped("other", "u1")), Some(&other_consumer), Some(&terminating)]
        {
            assert!(matches!(state(&full, found), PlaceState::NotReady(_)), "{found:?}");
        }
        assert!(matches!(state(&map(&wanted, &[]), None), PlaceState::NotReady(_)));
    }

    #[test]
    fn what_is_not_mapped_is_unwanted() {
        let found = mapped("demo", "u1");
        let full = map(&[("demo", "demo-rome")], &[("demo", "demo-rome", "u1")]);
        let unwanted = |tenant: Option<&OurNamespace>, map: Option<&NamespaceMap>| {
            place(tenant, map, "demo", |_| Some(Arc::new(found.clone()))).state == PlaceState::Unwanted
        };
        assert!(!unwanted(Some(&tenant()), Some(&full)));
        assert!(unwanted(Some(&tenant()), None));
        assert!(unwanted(Some(&tenant()), Some(&map(&[], &[("demo", "demo-rome", "u1")]))));
        assert!(unwanted(Some(&OurNamespace { terminating: true, ..tenant() }), Some(&full)));
        assert!(unwanted(None, Some(&full)));
        assert!(unwanted(Some(&tenant()), Some(&map(&[("demo", "renamed")], &[("demo", "demo-rome", "u1")]))));
    }

    #[test]
    fn a_namespace_whose_name_is_none_has_no_place() {
        for home in ["", "..", "../../secrets", "a/b"] {
            let found = place(Some(&tenant()), Some(&map(&[(home, "x")], &[])), home, |_| None);
            assert_eq!(found, nowhere(), "{home}");
        }
    }

    #[test]
    fn the_namespace_is_known_by_name_even_after_the_map_is_gone() {
        let place = place(Some(&tenant()), None, "demo", |_| None);
        assert_eq!(place.namespace, mapped_namespace("demo", "rome", &consumer()));
    }
}
