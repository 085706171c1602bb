//! Objects that another cluster may have written, parsed one by one.
//!
//! The API server accepts objects that this program cannot parse: for example, JSON may be nested
//! deeper than the parser allows. One object like that would make a whole list fail, and a page of
//! large objects would fill the memory. So a list or a watch parses only the few fields that it
//! needs, and the whole object is parsed when it is handled.

use std::{borrow::Cow, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Api, Resource};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;

/// The kinds (plural, as in URLs) that peers write, here or in their own cluster.
const WRITTEN_BY_PEERS: [&str; 11] = [
    "contracts",
    "events",
    "namespacemaps",
    "networkconfigs",
    "receipts",
    "reflectedobjects",
    "resourceoffers",
    "resourcerequests",
    "secrets",
    "shadowpods",
    "usagerecords",
];

pub(crate) fn is_written_by_peers(url: &str) -> bool {
    url.rsplit('/')
        .next()
        .is_some_and(|plural| WRITTEN_BY_PEERS.contains(&plural))
}

/// The same API, for unparsed objects.
pub fn unparsed_api<K: Resource>(api: Api<K>) -> Api<UnparsedObject<K>> {
    let url = api.resource_url().to_owned();
    Api::all_with(api.into_client(), &url)
}

/// An object of which only name, namespace, version, finalizers and time of deletion are parsed.
pub struct UnparsedObject<K> {
    metadata: ObjectMeta,
    text: Box<RawValue>,
    kind: PhantomData<fn() -> K>,
}

impl<K> UnparsedObject<K> {
    /// The object as JSON text.
    pub fn json_text(&self) -> &str {
        self.text.get()
    }
}

impl<K: DeserializeOwned> UnparsedObject<K> {
    /// Parses the whole object.
    pub fn parse_object(&self) -> serde_json::Result<K> {
        serde_json::from_str(self.text.get())
    }
}

impl<K> Clone for UnparsedObject<K> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            text: self.text.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> fmt::Debug for UnparsedObject<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unread")
            .field("name", &self.metadata.name)
            .finish_non_exhaustive()
    }
}

impl<'de, K> Deserialize<'de> for UnparsedObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not all metadata, because the fields under `managedFields` are nested as deeply as the
        // object.
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Needed {
            name: Option<String>,
            namespace: Option<String>,
            resource_version: Option<String>,
            deletion_timestamp: Option<Time>,
            finalizers: Option<Vec<String>>,
        }
        #[derive(Deserialize)]
        struct Object {
            metadata: Needed,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Object { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            resource_version: metadata.resource_version,
            deletion_timestamp: metadata.deletion_timestamp,
            finalizers: metadata.finalizers,
            ..ObjectMeta::default()
        };
        Ok(Self {
            metadata,
            text,
            kind: PhantomData,
        })
    }
}

/// Only the URL of the kind is known.
impl<K: Resource> Resource for UnparsedObject<K> {
    type DynamicType = String;
    type Scope = K::Scope;

    fn kind(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn group(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn version(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn plural(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn url_path(url: &String, _: Option<&str>) -> String {
        url.clone()
    }

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};
    use liqo_api::ShadowPod;

    use super::*;

    fn shadow_pod(name: &str, depth: usize) -> String {
        let deep = format!(
            "{}{}",
            "{\"a\":".repeat(depth),
            "1".to_owned() + &"}".repeat(depth)
        );
        format!(
            r#"{{"apiVersion":"virtualkubelet.liqo.io/v1alpha1","kind":"ShadowPod","metadata":{{"name":"{name}","namespace":"t","managedFields":[{{"fieldsV1":{deep}}}]}},"spec":{{"namespace":"demo","pool":"default","pod":{deep}}}}}"#
        )
    }

    #[test]
    fn an_object_that_cannot_be_read_spoils_no_list() {
        let (good, bad) = (shadow_pod("good", 1), shadow_pod("bad", 500));
        let list = format!(
            r#"{{"apiVersion":"v1","kind":"List","metadata":{{"resourceVersion":"7"}},"items":[{bad},{good}]}}"#
        );
        assert!(
            serde_json::from_str::<ObjectList<ShadowPod>>(&list).is_err(),
            "the whole list can be read: nothing is shown"
        );
        let list: ObjectList<UnparsedObject<ShadowPod>> = serde_json::from_str(&list).unwrap();
        let read: Vec<(&str, bool)> = list
            .items
            .iter()
            .map(|object| {
                (
                    object.meta().name.as_deref().unwrap(),
                    object.parse_object().is_ok(),
                )
            })
            .collect();
        assert_eq!(read, [("bad", false), ("good", true)]);
    }

    #[test]
    fn an_object_that_cannot_be_read_interrupts_no_watch() {
        let event = format!(r#"{{"type":"ADDED","object":{}}}"#, shadow_pod("bad", 500));
        let Ok(WatchEvent::Added(object)) =
            serde_json::from_str::<WatchEvent<UnparsedObject<ShadowPod>>>(&event)
        else {
            panic!("not an event");
        };
        assert_eq!(object.meta().name.as_deref(), Some("bad"));
        assert!(object.parse_object().is_err());
    }

    #[test]
    fn the_kinds_that_peers_write_are_known_by_their_url() {
        assert!(is_written_by_peers(
            "/apis/virtualkubelet.liqo.io/v1alpha1/shadowpods"
        ));
        assert!(is_written_by_peers(
            "/api/v1/namespaces/liqo-tenant-x/secrets"
        ));
        assert!(!is_written_by_peers(
            "/apis/discovery.liqo.io/v1alpha1/foreignclusters"
        ));
    }
}
