use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::IgnoredAny};

/// An object of kind `K` without its managed fields. `Spec` and `Status` are the parts that are read.
///
/// An API server sends the managed fields with every object, often as much text as all else, and no
/// controller reads them. What is skipped takes neither memory nor the time to build it.
#[derive(Deserialize)]
#[serde(bound(deserialize = "Spec: Deserialize<'de> + Default, Status: Deserialize<'de>"))]
pub struct PartialObject<K, Spec, Status> {
    /// Without managed fields.
    #[serde(deserialize_with = "read_metadata")]
    pub metadata: ObjectMeta,
    /// The part of the spec that is read; the default if there is no spec.
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: Spec,
    /// The part of the status that is read.
    pub status: Option<Status>,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

/// An object of which only the metadata is read.
pub type MetadataOnly<K> = PartialObject<K, IgnoredAny, IgnoredAny>;

impl<K, Spec: Clone, Status: Clone> Clone for PartialObject<K, Spec, Status> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            spec: self.spec.clone(),
            status: self.status.clone(),
            kind: PhantomData,
        }
    }
}

impl<K, Spec, Status> fmt::Debug for PartialObject<K, Spec, Status> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialObject")
            .field("name", &self.metadata.name)
            .finish_non_exhaustive()
    }
}

impl<K: Resource, Spec, Status> Resource for PartialObject<K, Spec, Status> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Go prints `null` for some fields that are not there.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// All metadata but the managed fields.
fn read_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        annotations: Option<BTreeMap<String, String>>,
        creation_timestamp: Option<Time>,
        deletion_grace_period_seconds: Option<i64>,
        deletion_timestamp: Option<Time>,
        finalizers: Option<Vec<String>>,
        generate_name: Option<String>,
        generation: Option<i64>,
        labels: Option<BTreeMap<String, String>>,
        name: Option<String>,
        namespace: Option<String>,
        owner_references: Option<Vec<OwnerReference>>,
        resource_version: Option<String>,
        self_link: Option<String>,
        uid: Option<String>,
    }
    let read = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        annotations: read.annotations,
        creation_timestamp: read.creation_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        deletion_timestamp: read.deletion_timestamp,
        finalizers: read.finalizers,
        generate_name: read.generate_name,
        generation: read.generation,
        labels: read.labels,
        managed_fields: None,
        name: read.name,
        namespace: read.namespace,
        owner_references: read.owner_references,
        resource_version: read.resource_version,
        self_link: read.self_link,
        uid: read.uid,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, PodSpec};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn all_metadata_but_managed_fields_are_read() {
        let mut metadata = json!({
            "annotations": { "a": "1" },
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "deletionGracePeriodSeconds": 30,
            "deletionTimestamp": "2026-01-02T03:04:06Z",
            "finalizers": ["liqo.io/f"],
            "generateName": "web-",
            "generation": 7,
            "labels": { "l": "2" },
            "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": {} } }],
            "name": "web-1",
            "namespace": "demo",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true }],
            "resourceVersion": "12",
            "selfLink": "/s",
            "uid": "u1",
        });
        let object = json!({ "metadata": metadata, "spec": { "x": 1 }, "status": { "y": 2 } });
        let read: PartialObject<Pod, Value, Value> =
            serde_json::from_value(object.clone()).unwrap();
        metadata.as_object_mut().unwrap().remove("managedFields");
        let whole: ObjectMeta = serde_json::from_value(metadata).unwrap();
        assert_eq!(read.metadata, whole);
        assert_eq!(
            (&read.spec, &read.status),
            (&json!({ "x": 1 }), &Some(json!({ "y": 2 })))
        );
        let answer: MetadataOnly<Pod> = serde_json::from_value(object).unwrap();
        assert_eq!(answer.metadata, whole);
    }

    #[test]
    fn an_object_without_spec_and_status_is_read() {
        let object = json!({ "metadata": { "name": "a", "managedFields": null, "labels": null } });
        let mut with_null = object.clone();
        with_null["spec"] = Value::Null;
        with_null["status"] = Value::Null;
        for object in [object, with_null] {
            let read: PartialObject<Pod, PodSpec, Value> = serde_json::from_value(object).unwrap();
            assert_eq!(read.metadata.name.as_deref(), Some("a"));
            assert_eq!((read.spec, read.status), (PodSpec::default(), None));
        }
    }
}
