//! The kinds that an API server knows.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{lists::Lists, schema::Schema};

/// A kind of objects, as requests name it.
#[derive(Clone)]
#[allow(clippy::struct_field_names, reason = "as Kubernetes names it")]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub namespaced: bool,
    pub subresources: Vec<String>,
    /// `None` for a kind of Kubernetes itself.
    pub schema: Option<Arc<Schema>>,
    pub lists: Arc<Lists>,
}

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The group under which objects are stored, and messages name them: both groups of events show
    /// the same objects.
    pub fn home_group(&self) -> &str {
        if self.group == EVENTS {
            ""
        } else {
            &self.group
        }
    }

    /// Whether requests see another form of an object than the stored one.
    pub fn is_converted(&self) -> bool {
        self.group != self.home_group()
    }

    /// `pods` or `deployments.apps`, as messages name it.
    pub fn resource(&self) -> String {
        let group = self.home_group();
        if group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{group}", self.plural)
        }
    }

    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    pub fn is_custom(&self) -> bool {
        self.schema.is_some()
    }

    pub fn has_status(&self) -> bool {
        self.subresources
            .iter()
            .any(|subresource| subresource == "status")
    }
}

const EVENTS: &str = "events.k8s.io";

/// Group, version, kind, plural, whether it is namespaced, subresources.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    bool,
    &'static [&'static str],
);

const STATUS: &[&str] = &["status"];

const BUILT_IN: &[Row] = &[
    ("", "v1", "ConfigMap", "configmaps", true, &[]),
    ("", "v1", "Endpoints", "endpoints", true, &[]),
    ("", "v1", "Event", "events", true, &[]),
    ("", "v1", "LimitRange", "limitranges", true, &[]),
    (
        "",
        "v1",
        "Namespace",
        "namespaces",
        false,
        &["status", "finalize"],
    ),
    ("", "v1", "Node", "nodes", false, STATUS),
    (
        "",
        "v1",
        "PersistentVolume",
        "persistentvolumes",
        false,
        STATUS,
    ),
    (
        "",
        "v1",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        true,
        STATUS,
    ),
    (
        "",
        "v1",
        "Pod",
        "pods",
        true,
        &[
            "status",
            "eviction",
            "binding",
            "ephemeralcontainers",
            "resize",
        ],
    ),
    ("", "v1", "ResourceQuota", "resourcequotas", true, STATUS),
    ("", "v1", "Secret", "secrets", true, &[]),
    ("", "v1", "Service", "services", true, STATUS),
    (
        "",
        "v1",
        "ServiceAccount",
        "serviceaccounts",
        true,
        &["token"],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        false,
        &[],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
        STATUS,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
        &[],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        false,
        &[],
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
        STATUS,
    ),
    ("apps", "v1", "DaemonSet", "daemonsets", true, STATUS),
    ("apps", "v1", "Deployment", "deployments", true, STATUS),
    ("apps", "v1", "ReplicaSet", "replicasets", true, STATUS),
    ("apps", "v1", "StatefulSet", "statefulsets", true, STATUS),
    (
        "authentication.k8s.io",
        "v1",
        "TokenReview",
        "tokenreviews",
        false,
        &[],
    ),
    (
        "authentication.k8s.io",
        "v1",
        "SelfSubjectReview",
        "selfsubjectreviews",
        false,
        &[],
    ),
    (
        "authorization.k8s.io",
        "v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        false,
        &[],
    ),
    (
        "authorization.k8s.io",
        "v1",
        "SubjectAccessReview",
        "subjectaccessreviews",
        false,
        &[],
    ),
    ("batch", "v1", "Job", "jobs", true, STATUS),
    (
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        false,
        &["status", "approval"],
    ),
    ("coordination.k8s.io", "v1", "Lease", "leases", true, &[]),
    (
        "discovery.k8s.io",
        "v1",
        "EndpointSlice",
        "endpointslices",
        true,
        &[],
    ),
    ("events.k8s.io", "v1", "Event", "events", true, &[]),
    (
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "FlowSchema",
        "flowschemas",
        false,
        STATUS,
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
        false,
        STATUS,
    ),
    (
        "networking.k8s.io",
        "v1",
        "Ingress",
        "ingresses",
        true,
        STATUS,
    ),
    (
        "networking.k8s.io",
        "v1",
        "IngressClass",
        "ingressclasses",
        false,
        &[],
    ),
    (
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
        true,
        &[],
    ),
    (
        "node.k8s.io",
        "v1",
        "RuntimeClass",
        "runtimeclasses",
        false,
        &[],
    ),
    (
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        true,
        STATUS,
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRole",
        "clusterroles",
        false,
        &[],
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
        false,
        &[],
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "Role",
        "roles",
        true,
        &[],
    ),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "RoleBinding",
        "rolebindings",
        true,
        &[],
    ),
    (
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
        false,
        &[],
    ),
    (
        "storage.k8s.io",
        "v1",
        "StorageClass",
        "storageclasses",
        false,
        &[],
    ),
];

/// Whether the status of a built-in kind changes only by way of a subresource.
pub fn has_status(kind: &str) -> bool {
    BUILT_IN
        .iter()
        .any(|(_, _, name, _, _, subresources)| *name == kind && subresources.contains(&"status"))
}

/// All kinds, by group, version and plural.
#[derive(Clone, Default)]
pub struct Kinds(BTreeMap<(String, String, String), Arc<Kind>>);

impl Kinds {
    pub fn built_in() -> Self {
        let mut kinds = Self::default();
        for (group, version, kind, plural, namespaced, subresources) in BUILT_IN {
            kinds.insert(Kind {
                group: (*group).to_owned(),
                version: (*version).to_owned(),
                kind: (*kind).to_owned(),
                plural: (*plural).to_owned(),
                namespaced: *namespaced,
                subresources: subresources.iter().map(|name| (*name).to_owned()).collect(),
                schema: None,
                lists: Arc::new(Lists::of_built_in(group, kind)),
            });
        }
        kinds
    }

    fn insert(&mut self, kind: Kind) {
        self.0.insert(
            (
                kind.group.clone(),
                kind.version.clone(),
                kind.plural.clone(),
            ),
            Arc::new(kind),
        );
    }

    pub fn get(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        self.0
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
            .cloned()
    }

    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.0
            .keys()
            .any(|(of_group, of_version, _)| of_group == group && of_version == version)
    }

    pub fn is_built_in(&self, group: &str) -> bool {
        self.0
            .values()
            .any(|kind| kind.group == group && !kind.is_custom())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.values()
    }

    /// Serves the kind of a `CustomResourceDefinition`, or serves its new schema.
    pub fn define(&mut self, definition: &Value) {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for version in spec["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|version| version["served"] == true)
        {
            let open_api = &version["schema"]["openAPIV3Schema"];
            let mut subresources = vec!["status", "scale"];
            subresources.retain(|name| version["subresources"].get(name).is_some());
            self.insert(Kind {
                group: text(&spec["group"]),
                version: text(&version["name"]),
                kind: text(&spec["names"]["kind"]),
                plural: text(&spec["names"]["plural"]),
                namespaced: spec["scope"] == "Namespaced",
                subresources: subresources.into_iter().map(str::to_owned).collect(),
                schema: Some(Arc::new(Schema::new(open_api))),
                lists: Arc::new(Lists::of_schema(open_api)),
            });
        }
    }

    /// Serves the kind of a `CustomResourceDefinition` no longer.
    pub fn remove(&mut self, definition: &Value) {
        let spec = &definition["spec"];
        self.0.retain(|(group, _, plural), _| {
            spec["group"] != group.as_str() || spec["names"]["plural"] != plural.as_str()
        });
    }
}
