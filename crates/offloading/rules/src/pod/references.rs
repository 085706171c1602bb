//! Finds the `ConfigMap`s and `Secret`s that a pod names: only these are reflected for it, and at a
//! provider it names their replicas.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::json::{field_at, field_mut};
use crate::pod::injected::injected_volumes;
use crate::replica::kind::ReplicaKind;
use crate::replica::name::replica_name;
use crate::views::{ContainerList, NamedView, PodView};

/// The `ConfigMap` with the CA of its cluster that every cluster's own controller manager writes
/// into every namespace.
pub const ROOT_CA: &str = "kube-root-ca.crt";

const PULL_SECRETS: &str = "imagePullSecrets";

/// A field of a pod with the name of an object.
struct ReferenceField {
    /// Path to the list with the references, in a container or volume; empty if there is only one.
    list: &'static [&'static str],
    /// Path to the reference, in an element of the list.
    reference: &'static [&'static str],
    /// Its field with the name.
    field: &'static str,
    kind: ReplicaKind,
}

impl ReferenceField {
    const fn new(
        list: &'static [&'static str],
        reference: &'static [&'static str],
        field: &'static str,
        kind: ReplicaKind,
    ) -> Self {
        Self {
            list,
            reference,
            field,
            kind,
        }
    }
}

const IN_CONTAINERS: [ReferenceField; 4] = [
    ReferenceField::new(
        &["env"],
        &["valueFrom", "configMapKeyRef"],
        "name",
        ReplicaKind::ConfigMap,
    ),
    ReferenceField::new(
        &["env"],
        &["valueFrom", "secretKeyRef"],
        "name",
        ReplicaKind::Secret,
    ),
    ReferenceField::new(
        &["envFrom"],
        &["configMapRef"],
        "name",
        ReplicaKind::ConfigMap,
    ),
    ReferenceField::new(&["envFrom"], &["secretRef"], "name", ReplicaKind::Secret),
];

const IN_VOLUMES: [ReferenceField; 4] = [
    ReferenceField::new(&[], &["configMap"], "name", ReplicaKind::ConfigMap),
    ReferenceField::new(&[], &["secret"], "secretName", ReplicaKind::Secret),
    ReferenceField::new(
        &["projected", "sources"],
        &["configMap"],
        "name",
        ReplicaKind::ConfigMap,
    ),
    ReferenceField::new(
        &["projected", "sources"],
        &["secret"],
        "name",
        ReplicaKind::Secret,
    ),
];

const IN_PULL_SECRETS: [ReferenceField; 1] =
    [ReferenceField::new(&[], &[], "name", ReplicaKind::Secret)];

/// The lists of a `PodSpec` whose elements name objects.
const LISTS: [(&str, &[ReferenceField]); 5] = [
    (ContainerList::Main.spec_field(), &IN_CONTAINERS),
    (ContainerList::Init.spec_field(), &IN_CONTAINERS),
    (ContainerList::Ephemeral.spec_field(), &IN_CONTAINERS),
    ("volumes", &IN_VOLUMES),
    (PULL_SECRETS, &IN_PULL_SECRETS),
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodReferences {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

/// The objects that a pod names in `env`, `envFrom`, volumes, projected volumes and
/// `imagePullSecrets`.
///
/// Optional references count like the others: an object that is not there yet is reflected when it
/// appears.
pub fn referenced_objects(pod: &Value) -> PodReferences {
    let mut found = objects_in_lists(pod, &ContainerList::ALL, &|_| true);
    found.secrets.extend(
        pull_secrets(pod)
            .into_iter()
            .filter(|name| !name.is_empty()),
    );
    found
}

/// The Secrets in a pod's `imagePullSecrets`.
pub fn pull_secrets(pod: &Value) -> BTreeSet<String> {
    PodView::of(pod)
        .spec()
        .image_pull_secrets()
        .filter_map(NamedView::name)
        .map(str::to_owned)
        .collect()
}

/// Leaves these Secrets out of a pod's `imagePullSecrets`.
pub fn leave_out_pull_secrets(pod: &mut Value, left_out: &BTreeSet<String>) {
    let secrets = field_mut(pod, &["spec", PULL_SECRETS]);
    if let Some(secrets) = secrets.and_then(Value::as_array_mut) {
        secrets.retain(|secret| {
            let name = NamedView::of(secret).name();
            name.is_none_or(|name| !left_out.contains(name))
        });
    }
}

/// The objects without which its containers do not start: neither optional ones nor those of
/// `imagePullSecrets`. Ephemeral containers do not count, because the others start without them.
pub fn required_objects(pod: &Value) -> PodReferences {
    objects_in_lists(pod, &ContainerList::OF_NEW_POD, &|reference| {
        reference.get("optional") != Some(&Value::Bool(true))
    })
}

/// The objects in volumes and projected volumes, and in `env` and `envFrom` of these lists of
/// containers, from references that count. The volume with which the API server gives the pod
/// access to itself stays at home. Another one takes its place, see
/// [`withhold_api_server`](crate::pod::carry::api_server::withhold_api_server).
fn objects_in_lists(
    pod: &Value,
    lists: &[ContainerList],
    counts: &dyn Fn(&Value) -> bool,
) -> PodReferences {
    let spec = PodView::of(pod).spec();
    let mut found = PodReferences::default();
    for container in lists.iter().flat_map(|list| spec.containers_in(*list)) {
        found.add_from(container.json(), &IN_CONTAINERS, counts);
    }
    let injected = injected_volumes(pod);
    for volume in spec
        .volumes()
        .filter(|volume| !injected.contains(volume.name()))
    {
        found.add_from(volume.json(), &IN_VOLUMES, counts);
    }
    found
}

/// The provider's side: gives every reference of a `PodSpec` the name of the replica, whether there
/// is one or not. So the pod reads nothing but what Liqo wrote there for its consumer, now and
/// later.
pub(crate) fn name_replicas(spec: &mut Map<String, Value>) {
    for (list, places) in LISTS {
        for holder in spec
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            for place in places {
                place.name_replicas(holder);
            }
        }
    }
}

impl ReferenceField {
    /// The references of a container, a volume or an image pull secret.
    fn references<'a>(&self, holder: &'a Value) -> impl Iterator<Item = &'a Value> {
        let elements = if self.list.is_empty() {
            Some(std::slice::from_ref(holder))
        } else {
            field_at(holder, self.list)
                .and_then(Value::as_array)
                .map(Vec::as_slice)
        };
        elements
            .into_iter()
            .flatten()
            .filter_map(|element| field_at(element, self.reference))
    }

    fn name_replicas(&self, holder: &mut Value) {
        let elements = if self.list.is_empty() {
            Some(std::slice::from_mut(holder))
        } else {
            field_mut(holder, self.list)
                .and_then(Value::as_array_mut)
                .map(Vec::as_mut_slice)
        };
        for element in elements.into_iter().flatten() {
            let field = field_mut(element, self.reference)
                .and_then(|reference| reference.get_mut(self.field));
            if let Some(Value::String(name)) = field.filter(|name| name.as_str() != Some("")) {
                *name = replica_name(self.kind, name);
            }
        }
    }
}

impl PodReferences {
    fn add_from(
        &mut self,
        holder: &Value,
        places: &[ReferenceField],
        counts: &dyn Fn(&Value) -> bool,
    ) {
        for place in places {
            let names = if place.kind == ReplicaKind::Secret {
                &mut self.secrets
            } else {
                &mut self.config_maps
            };
            let references = place
                .references(holder)
                .filter(|reference| counts(reference));
            let found = references.filter_map(|reference| reference.get(place.field)?.as_str());
            names.extend(found.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }

    /// All of them, with their kinds.
    pub(crate) fn kinds_and_names(&self) -> impl Iterator<Item = (ReplicaKind, &String)> {
        let config_maps = self
            .config_maps
            .iter()
            .map(|name| (ReplicaKind::ConfigMap, name));
        config_maps.chain(self.secrets.iter().map(|name| (ReplicaKind::Secret, name)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::carry::outgoing_pod;

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn every_place_where_a_pod_names_an_object_is_found() {
        let found = referenced_objects(&json!({"spec": {
            "containers": [{"name": "c",
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm-env", "key": "k"}}},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "k", "optional": true}}},
                        {"name": "C", "value": "plain"}],
                "envFrom": [{"configMapRef": {"name": "cm-from"}}, {"secretRef": {"name": "s-from"}}]}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "cm-init"}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "cm-vol"}}, {"name": "w", "secret": {"secretName": "s-vol"}},
                {"name": "p", "projected": {"sources": [{"configMap": {"name": "cm-proj"}}, {"secret": {"name": "s-proj"}}]}}],
            "imagePullSecrets": [{"name": "s-pull"}]}}));
        assert_eq!(
            names(&found.config_maps),
            ["cm-env", "cm-from", "cm-init", "cm-proj", "cm-vol"]
        );
        assert_eq!(
            names(&found.secrets),
            ["s-env", "s-from", "s-proj", "s-pull", "s-vol"]
        );
    }

    #[test]
    fn image_pull_secrets_of_this_cluster_are_left_out_and_nothing_else() {
        let mut pod = json!({ "spec": { "imagePullSecrets": [{ "name": "own" }, { "name": "sent" }],
            "volumes": [{ "name": "v", "secret": { "secretName": "own" } }] } });
        assert_eq!(names(&pull_secrets(&pod)), ["own", "sent"]);
        leave_out_pull_secrets(&mut pod, &["own".to_owned()].into());
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{ "name": "sent" }]));
        assert_eq!(names(&referenced_objects(&pod).secrets), ["own", "sent"]);
        let mut strange = json!({ "spec": { "imagePullSecrets": "own" } });
        leave_out_pull_secrets(&mut strange, &["own".to_owned()].into());
        assert!(pull_secrets(&strange).is_empty());
    }

    #[test]
    fn an_ephemeral_container_names_objects_that_the_pod_can_start_without() {
        let env = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let pod = json!({"spec": {"ephemeralContainers": [{"name": "e", "env": env, "envFrom": [{"configMapRef": {"name": "cm"}}]}]}});
        let found = referenced_objects(&pod);
        assert_eq!(
            (names(&found.config_maps), names(&found.secrets)),
            (vec!["cm"], vec!["s"])
        );
        assert_eq!(required_objects(&pod), PodReferences::default());
    }

    #[test]
    fn a_pod_names_the_root_ca_if_its_owner_did_and_not_in_the_injected_volume() {
        let injected = json!({"name": "kube-api-access-x", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": ROOT_CA}}]}});
        let pod = |volumes: Value| json!({ "spec": { "volumes": volumes } });
        assert_eq!(
            referenced_objects(&pod(json!([injected]))),
            PodReferences::default()
        );
        assert_eq!(
            required_objects(&pod(json!([injected]))),
            PodReferences::default()
        );
        let named = pod(json!([injected, { "name": "ca", "configMap": { "name": ROOT_CA } }]));
        assert_eq!(
            (
                names(&referenced_objects(&named).config_maps),
                names(&required_objects(&named).config_maps)
            ),
            (vec![ROOT_CA], vec![ROOT_CA])
        );
    }

    /// Everything that a source of a kind can be, with all fields: a field that a new version of
    /// Kubernetes adds does not compile here.
    mod all_fields {
        use k8s_openapi::api::core::v1::{
            ClusterTrustBundleProjection, ConfigMapEnvSource, ConfigMapKeySelector,
            ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, EnvFromSource,
            EnvVarSource, FileKeySelector, ObjectFieldSelector, PodCertificateProjection,
            ResourceFieldSelector, SecretEnvSource, SecretKeySelector, SecretProjection,
            SecretVolumeSource, ServiceAccountTokenProjection, VolumeProjection,
        };

        pub fn of_variable() -> EnvVarSource {
            EnvVarSource {
                config_map_key_ref: Some(ConfigMapKeySelector {
                    name: "m1".into(),
                    ..Default::default()
                }),
                field_ref: Some(ObjectFieldSelector::default()),
                file_key_ref: Some(FileKeySelector::default()),
                resource_field_ref: Some(ResourceFieldSelector::default()),
                secret_key_ref: Some(SecretKeySelector {
                    name: "s1".into(),
                    ..Default::default()
                }),
            }
        }

        pub fn of_environment() -> EnvFromSource {
            EnvFromSource {
                config_map_ref: Some(ConfigMapEnvSource {
                    name: "m2".into(),
                    ..Default::default()
                }),
                prefix: Some("P_".into()),
                secret_ref: Some(SecretEnvSource {
                    name: "s2".into(),
                    ..Default::default()
                }),
            }
        }

        pub fn of_projection() -> VolumeProjection {
            VolumeProjection {
                cluster_trust_bundle: Some(ClusterTrustBundleProjection::default()),
                config_map: Some(ConfigMapProjection {
                    name: "m3".into(),
                    ..Default::default()
                }),
                downward_api: Some(DownwardAPIProjection::default()),
                pod_certificate: Some(PodCertificateProjection::default()),
                secret: Some(SecretProjection {
                    name: "s3".into(),
                    ..Default::default()
                }),
                service_account_token: Some(ServiceAccountTokenProjection::default()),
            }
        }

        pub fn of_volumes() -> (ConfigMapVolumeSource, SecretVolumeSource) {
            let config_map = ConfigMapVolumeSource {
                name: "m4".into(),
                ..Default::default()
            };
            (
                config_map,
                SecretVolumeSource {
                    secret_name: Some("s4".into()),
                    ..Default::default()
                },
            )
        }
    }

    /// A pod that names an object in every place where one can be named.
    fn pod_with_all() -> Value {
        let container = |name: &str| {
            json!({ "name": name, "env": [{ "name": "A", "valueFrom": all_fields::of_variable() }],
                "envFrom": [all_fields::of_environment()] })
        };
        let (config_map, secret) = all_fields::of_volumes();
        json!({ "spec": {
            "containers": [container("c")], "initContainers": [container("i")], "ephemeralContainers": [container("e")],
            "volumes": [{ "name": "m", "configMap": config_map }, { "name": "s", "secret": secret },
                { "name": "p", "projected": { "sources": [all_fields::of_projection()] } }],
            "imagePullSecrets": [{ "name": "s5" }] } })
    }

    /// All texts of a JSON value.
    fn texts(value: &Value) -> Vec<String> {
        match value {
            Value::String(text) => vec![text.clone()],
            Value::Array(all) => all.iter().flat_map(texts).collect(),
            Value::Object(all) => all.values().flat_map(texts).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn at_a_provider_a_pod_names_replicas_in_every_place_and_nothing_else_changes() {
        let pod = pod_with_all();
        let named = referenced_objects(&pod);
        assert_eq!(names(&named.config_maps), ["m1", "m2", "m3", "m4"]);
        assert_eq!(names(&named.secrets), ["s1", "s2", "s3", "s4", "s5"]);
        let mut remote = pod.clone();
        name_replicas(remote["spec"].as_object_mut().unwrap());
        let derived: BTreeSet<String> = named
            .kinds_and_names()
            .map(|(kind, name)| replica_name(kind, name))
            .collect();
        let found = referenced_objects(&remote);
        assert_eq!(
            found
                .kinds_and_names()
                .map(|(_, name)| name.clone())
                .collect::<BTreeSet<_>>(),
            derived
        );
        let homes: BTreeSet<&String> = named.kinds_and_names().map(|(_, name)| name).collect();
        let left: Vec<String> = texts(&remote)
            .into_iter()
            .filter(|text| homes.contains(text))
            .collect();
        assert!(left.is_empty(), "a pod still names {left:?}");
        let others = |pod: &Value| {
            texts(pod)
                .into_iter()
                .filter(|text| !homes.contains(text) && !derived.contains(text))
                .collect::<Vec<_>>()
        };
        assert_eq!(others(&remote), others(&pod));
    }

    #[test]
    fn a_pod_of_a_strange_shape_names_nothing() {
        assert_eq!(
            referenced_objects(
                &json!({"spec": {"volumes": "none", "containers": [3, {"env": {"a": 1}}]}})
            ),
            PodReferences::default()
        );
        assert_eq!(referenced_objects(&json!(null)), PodReferences::default());
    }

    /// Each field of a pod, by type, that is called after a `ConfigMap` or Secret, or that refers
    /// to an object by name.
    fn fields_that_name_objects() -> BTreeSet<String> {
        let schema =
            serde_json::to_value(schemars::schema_for!(k8s_openapi::api::core::v1::PodSpec))
                .unwrap();
        let types = schema
            .get("definitions")
            .or(schema.get("$defs"))
            .unwrap()
            .as_object()
            .unwrap();
        let mut found = BTreeSet::new();
        for (type_, definition) in types
            .iter()
            .map(|(name, one)| (name.as_str(), one))
            .chain([("PodSpec", &schema)])
        {
            for (field, what) in definition
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let (field_lower, what) = (field.to_lowercase(), what.to_string());
                let is_called_so = ["secret", "configmap"]
                    .iter()
                    .any(|kind| field_lower.contains(kind));
                if is_called_so
                    || what.contains("ObjectReference")
                    || what.contains("SecretReference")
                {
                    found.insert(format!(
                        "{}.{field}",
                        type_.rsplit('.').next().unwrap_or(type_)
                    ));
                }
            }
        }
        found
    }

    /// Volumes of these types never travel, whatever they name.
    const REFUSED: [(&str, &str); 10] = [
        ("AzureFileVolumeSource.secretName", "azureFile"),
        ("CSIVolumeSource.nodePublishSecretRef", "csi"),
        ("CephFSVolumeSource.secretFile", "cephfs"),
        ("CephFSVolumeSource.secretRef", "cephfs"),
        ("CinderVolumeSource.secretRef", "cinder"),
        ("FlexVolumeSource.secretRef", "flexVolume"),
        ("ISCSIVolumeSource.secretRef", "iscsi"),
        ("RBDVolumeSource.secretRef", "rbd"),
        ("ScaleIOVolumeSource.secretRef", "scaleIO"),
        ("StorageOSVolumeSource.secretRef", "storageos"),
    ];

    #[test]
    fn every_field_of_kubernetes_that_names_an_object_is_renamed_or_refused() {
        // Those in `pod_with_all`, and the source of a claim, which never travels.
        let mut known: BTreeSet<String> = [
            "EnvFromSource.configMapRef",
            "EnvFromSource.secretRef",
            "EnvVarSource.configMapKeyRef",
            "EnvVarSource.secretKeyRef",
            "PodSpec.imagePullSecrets",
            "SecretVolumeSource.secretName",
            "Volume.configMap",
            "Volume.secret",
            "VolumeProjection.configMap",
            "VolumeProjection.secret",
            "PersistentVolumeClaimSpec.dataSource",
            "PersistentVolumeClaimSpec.dataSourceRef",
        ]
        .map(str::to_owned)
        .into();
        known.extend(REFUSED.map(|(field, _)| field.to_owned()));
        assert_eq!(fields_that_name_objects(), known);
        for volume in REFUSED
            .map(|(_, volume)| volume)
            .into_iter()
            .chain(["ephemeral", "persistentVolumeClaim"])
        {
            let pod =
                json!({ "spec": { "containers": [], "volumes": [{ "name": "v", volume: {} }] } });
            assert!(
                outgoing_pod(&pod, &BTreeSet::new()).is_err(),
                "{volume} travels"
            );
        }
    }
}
