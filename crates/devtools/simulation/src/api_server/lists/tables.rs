//! The kinds of Kubernetes, and how their fields merge where their schemas do not say so.

use k8s_openapi::{
    Resource,
    api::{
        admissionregistration::v1 as admission, apps::v1 as apps,
        authentication::v1 as authentication, authorization::v1 as authorization,
        batch::v1 as batch, certificates::v1 as certificates, coordination::v1 as coordination,
        core::v1 as core, discovery::v1 as discovery, events::v1 as events,
        flowcontrol::v1 as flow_control, networking::v1 as networking, node::v1 as node,
        policy::v1 as policy, rbac::v1 as rbac, scheduling::v1 as scheduling,
        storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions,
    schemars::{JsonSchema, Schema, SchemaGenerator},
};

/// A type and its fields that do not merge as their schema says.
///
/// `[keys]` is a list of items with these keys (`=` precedes the value of an item without the key),
/// and `{}` is a set. `!` and `+` say that a map merges as a whole or by field. A strategic merge
/// patch merges a list with `~` by the key behind it, and replaces a map with `^`.
pub const MERGED_LISTS: &str = "
admissionregistration.v1.MutatingWebhook matchConditions[name=]~name
admissionregistration.v1.MutatingWebhookConfiguration webhooks[name=]~name
admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec validationActions{}
admissionregistration.v1.ValidatingAdmissionPolicySpec matchConditions[name=]~name variables[name=]~name
admissionregistration.v1.ValidatingAdmissionPolicyStatus conditions[type=]
admissionregistration.v1.ValidatingWebhook matchConditions[name=]~name
admissionregistration.v1.ValidatingWebhookConfiguration webhooks[name=]~name
apiextensions.v1.CustomResourceDefinitionStatus conditions[type=]
apiextensions.v1.JSONSchemaProps x-kubernetes-validations[rule=]~rule
apps.v1.DaemonSetStatus conditions[type=]~type
apps.v1.DeploymentStatus conditions[type=]~type
apps.v1.ReplicaSetStatus conditions[type=]~type
apps.v1.StatefulSetStatus conditions[type=]~type
batch.v1.JobStatus conditions~type
batch.v1.PodFailurePolicyOnExitCodesRequirement values{}
batch.v1.UncountedTerminatedPods failed{} succeeded{}
certificates.v1.CertificateSigningRequestStatus conditions[type=]
core.v1.Container env[name=]~name ports[containerPort=0,protocol=TCP]~containerPort
core.v1.Container volumeDevices[devicePath=]~devicePath volumeMounts[mountPath=]~mountPath
core.v1.ContainerRestartRuleOnExitCodes values{}
core.v1.ContainerStatus allocatedResourcesStatus[name=]~name volumeMounts[mountPath=]~mountPath
core.v1.EphemeralContainer env[name=]~name ports[containerPort=0,protocol=TCP]~containerPort
core.v1.EphemeralContainer volumeDevices[devicePath=]~devicePath volumeMounts[mountPath=]~mountPath
core.v1.NamespaceStatus conditions[type=]~type
core.v1.NodeSpec podCIDRs{}~
core.v1.NodeStatus addresses[type=]~type conditions[type=]~type
core.v1.PersistentVolumeClaimStatus conditions[type=]~type
core.v1.PersistentVolumeSpec claimRef+
core.v1.PodSpec containers[name=]~name ephemeralContainers[name=]~name hostAliases[ip=]~ip imagePullSecrets[name=]~name
core.v1.PodSpec initContainers[name=]~name nodeSelector! resourceClaims[name=]~name schedulingGates[name=]~name
core.v1.PodSpec topologySpreadConstraints[topologyKey=,whenUnsatisfiable=]~topologyKey volumes[name=]~name
core.v1.PodStatus conditions[type=]~type hostIPs~ip podIPs[ip=]~ip resourceClaimStatuses[name=]~name
core.v1.ResourceRequirements claims[name=]
core.v1.ResourceStatus resources[resourceID=]
core.v1.ServiceAccount secrets[name]~name
core.v1.ServiceSpec ports[port=0,protocol=TCP]~port selector!
core.v1.ServiceStatus conditions[type=]~type
discovery.v1.Endpoint addresses{}
flowcontrol.v1.FlowSchemaStatus conditions[type]~type
flowcontrol.v1.NonResourcePolicyRule nonResourceURLs{} verbs{}
flowcontrol.v1.PriorityLevelConfigurationStatus conditions[type]~type
flowcontrol.v1.ResourcePolicyRule apiGroups{} namespaces{} resources{} verbs{}
meta.v1.ObjectMeta finalizers{}~ ownerReferences[uid=]~uid
node.v1.Scheduling nodeSelector!
policy.v1.PodDisruptionBudgetSpec selector^
policy.v1.PodDisruptionBudgetStatus conditions[type=]~type
";

/// The types whose fields have one owner together.
pub const ATOMIC_TYPES: &[&str] = &[
    "admissionregistration.v1.MatchResources",
    "admissionregistration.v1.NamedRuleWithOperations",
    "admissionregistration.v1.ParamKind",
    "admissionregistration.v1.ParamRef",
    "admissionregistration.v1.Variable",
    "core.v1.ConfigMapKeySelector",
    "core.v1.EndpointAddress",
    "core.v1.EndpointPort",
    "core.v1.FileKeySelector",
    "core.v1.LocalObjectReference",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.ObjectFieldSelector",
    "core.v1.ObjectReference",
    "core.v1.ResourceFieldSelector",
    "core.v1.ScopeSelector",
    "core.v1.SecretKeySelector",
    "core.v1.SecretReference",
    "core.v1.TopologySelectorTerm",
    "core.v1.TypedLocalObjectReference",
    "discovery.v1.EndpointPort",
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
    "networking.v1.ServiceBackendPort",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
];

/// The kinds of Kubernetes whose fields are known.
pub fn built_in_kinds() -> Vec<BuiltInKind> {
    vec![
        kind::<core::ConfigMap>(),
        kind::<core::Endpoints>(),
        kind::<core::Event>(),
        kind::<core::LimitRange>(),
        kind::<core::Namespace>(),
        kind::<core::Node>(),
        kind::<core::PersistentVolume>(),
        kind::<core::PersistentVolumeClaim>(),
        kind::<core::Pod>(),
        kind::<core::ResourceQuota>(),
        kind::<core::Secret>(),
        kind::<core::Service>(),
        kind::<core::ServiceAccount>(),
        kind::<admission::MutatingWebhookConfiguration>(),
        kind::<admission::ValidatingAdmissionPolicy>(),
        kind::<admission::ValidatingAdmissionPolicyBinding>(),
        kind::<admission::ValidatingWebhookConfiguration>(),
        kind::<extensions::CustomResourceDefinition>(),
        kind::<apps::DaemonSet>(),
        kind::<apps::Deployment>(),
        kind::<apps::ReplicaSet>(),
        kind::<apps::StatefulSet>(),
        kind::<authentication::TokenReview>(),
        kind::<authorization::SelfSubjectAccessReview>(),
        kind::<authorization::SubjectAccessReview>(),
        kind::<batch::Job>(),
        kind::<certificates::CertificateSigningRequest>(),
        kind::<coordination::Lease>(),
        kind::<discovery::EndpointSlice>(),
        kind::<events::Event>(),
        kind::<flow_control::FlowSchema>(),
        kind::<flow_control::PriorityLevelConfiguration>(),
        kind::<networking::Ingress>(),
        kind::<networking::IngressClass>(),
        kind::<networking::NetworkPolicy>(),
        kind::<node::RuntimeClass>(),
        kind::<authentication::SelfSubjectReview>(),
        kind::<authentication::TokenRequest>(),
        kind::<policy::PodDisruptionBudget>(),
        kind::<rbac::ClusterRole>(),
        kind::<rbac::ClusterRoleBinding>(),
        kind::<rbac::Role>(),
        kind::<rbac::RoleBinding>(),
        kind::<scheduling::PriorityClass>(),
        kind::<storage::StorageClass>(),
    ]
}

/// `group/Kind`, and the function that generates its schema.
pub type BuiltInKind = (String, fn(&mut SchemaGenerator) -> Schema);

fn kind<K: Resource + JsonSchema>() -> BuiltInKind {
    (
        format!("{}/{}", K::GROUP, K::KIND),
        SchemaGenerator::subschema_for::<K>,
    )
}
