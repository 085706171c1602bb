//! Which verbs Liqo uses on which resources.
//!
//! A first approximation: the rights in deploy/liqo/rbac-manager.yaml, rbac-bound.yaml and
//! rbac-fabric.yaml; what liqoctl writes; and what the programs of a cluster do to the same objects
//! in the scenarios (binding, eviction, finalize, scale, approval). Four of Liqo's sixteen kinds
//! stand for all.

const ALL: &str = "get list watch create update patch delete deletecollection";
const STATUS: &str = "get patch update";

const TABLE: &[(&str, &str)] = &[
    ("configmaps", ALL),
    ("secrets", ALL),
    ("services", ALL),
    ("services/status", STATUS),
    ("pods", ALL),
    ("pods/status", STATUS),
    ("pods/ephemeralcontainers", STATUS),
    ("pods/resize", STATUS),
    ("pods/eviction", "create"),
    ("pods/binding", "create"),
    ("namespaces", "get list watch create update patch delete"),
    ("namespaces/status", "patch"),
    ("namespaces/finalize", "update"),
    ("serviceaccounts", ALL),
    ("serviceaccounts/token", "create"),
    ("nodes", ALL),
    ("nodes/status", STATUS),
    ("leases.coordination.k8s.io", ALL),
    ("endpointslices.discovery.k8s.io", ALL),
    ("deployments.apps", ALL),
    ("deployments.apps/status", STATUS),
    ("replicasets.apps", ALL),
    ("replicasets.apps/status", STATUS),
    ("jobs.batch", ALL),
    ("jobs.batch/status", STATUS),
    ("resourcequotas", ALL),
    ("resourcequotas/status", STATUS),
    ("limitranges", ALL),
    ("events", ALL),
    ("events.events.k8s.io", "create patch list watch get"),
    ("roles.rbac.authorization.k8s.io", ALL),
    ("rolebindings.rbac.authorization.k8s.io", ALL),
    ("clusterroles.rbac.authorization.k8s.io", ALL),
    ("clusterrolebindings.rbac.authorization.k8s.io", ALL),
    ("ingresses.networking.k8s.io", ALL),
    ("ingresses.networking.k8s.io/status", STATUS),
    ("networkpolicies.networking.k8s.io", ALL),
    ("poddisruptionbudgets.policy", ALL),
    ("poddisruptionbudgets.policy/status", STATUS),
    ("runtimeclasses.node.k8s.io", ALL),
    ("certificatesigningrequests.certificates.k8s.io", ALL),
    (
        "certificatesigningrequests.certificates.k8s.io/approval",
        "get update patch",
    ),
    (
        "certificatesigningrequests.certificates.k8s.io/status",
        STATUS,
    ),
    (
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "get list watch create update patch delete",
    ),
    ("subjectaccessreviews.authorization.k8s.io", "create"),
    ("selfsubjectaccessreviews.authorization.k8s.io", "create"),
    ("tokenreviews.authentication.k8s.io", "create"),
    ("selfsubjectreviews.authentication.k8s.io", "create"),
    ("shadowpods.virtualkubelet.liqo.io", ALL),
    ("shadowpods.virtualkubelet.liqo.io/status", STATUS),
    ("namespacemaps.virtualkubelet.liqo.io", ALL),
    ("namespacemaps.virtualkubelet.liqo.io/status", STATUS),
    ("resourcerequests.discovery.liqo.io", ALL),
    ("resourcerequests.discovery.liqo.io/status", STATUS),
    ("searchdomains.discovery.liqo.io", ALL),
    ("searchdomains.discovery.liqo.io/status", STATUS),
];

/// A verb, and a resource with its subresource.
pub type Pair = (&'static str, &'static str);

pub fn all() -> Vec<Pair> {
    TABLE
        .iter()
        .flat_map(|(resource, verbs)| verbs.split(' ').map(move |verb| (verb, *resource)))
        .collect()
}
