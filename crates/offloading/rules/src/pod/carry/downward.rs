//! The values that a remote pod reads about itself through the downward API: the same as at home,
//! because it uses these values to talk about itself to other pods and to the API server of its
//! home cluster.
//!
//! | field | what the remote pod reads |
//! |---|---|
//! | `metadata.name`, one label or annotation that travels | its own, which is the same |
//! | one label or annotation that does not travel | the local pod's: the provider keeps it in an annotation of Liqo |
//! | `metadata.namespace`, `metadata.uid` | the local pod's: the provider has them in Liqo's labels |
//! | `metadata.labels`, `metadata.annotations` | the local pod's: the provider keeps them in an annotation, which follows changes |
//! | `spec.nodeName`, `spec.serviceAccountName` | the local pod's: the consumer writes them as plain values |
//! | `status.podIP`, `status.hostIP`, and the lists of both | its own, because a program binds to the address that its interface has |
//! | `resourceFieldRef` | its own requests and limits, which travel |
//!
//! Liqo's own labels and annotations of the local pod do not leave its cluster. If the local pod is
//! itself the remote pod of another cluster, what it reads from them travels under other names.
//!
//! A pod that uses the provider's API server reads everything about its remote pod, which is the
//! one that exists there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use liqo_api::{annotations, labels, short_hash};
use serde_json::{Map, Value};

use crate::json::key_domain;
use crate::pod::carry::api_server::service_account;
use crate::pod::carry::metadata::{
    PASSED_ON, is_liqo_key, keeps_annotation, keeps_label, kept_texts,
};
use crate::pod::carry::{ProviderRules, listed_items};
use crate::views::{
    ContainerList, ContainerView, DownwardFilesView, PodSpecView, PodView, ProjectionView,
    VariableView, VolumeView,
};

/// The consumer's side: writes as plain values what only this cluster knows.
pub(super) fn write_local_values(spec: &mut Map<String, Value>, local_pod: &Value) {
    for_each_variable(spec, |variable| {
        let value = match VariableView::of(variable).field_path() {
            Some("spec.nodeName") => {
                let node = PodView::of(local_pod).spec().node_name();
                node.filter(|node| !node.is_empty())
            }
            Some("spec.serviceAccountName") => Some(service_account(local_pod)),
            _ => None,
        };
        // Both are names, so they contain no `$(` that a kubelet would expand.
        if let (Some(value), Some(variable)) = (value, variable.as_object_mut()) {
            variable.remove("valueFrom");
            variable.insert("value".into(), value.into());
        }
    });
}

/// The consumer's side, for what a pod reads from labels and annotations of Liqo, which do not
/// travel: where this cluster created the pod for a consumer, these hold the values of its own
/// home. Returns them as annotations that travel, and makes the pod read these.
pub(super) fn pass_on_values(
    spec: &mut Map<String, Value>,
    local_pod: &Value,
) -> Map<String, Value> {
    let metadata = PodView::of(local_pod).metadata();
    let read = [
        ("labels", metadata.labels()),
        ("annotations", metadata.annotations()),
    ];
    let mut values = Map::new();
    for_each_path(spec, |path| {
        let found = read.into_iter().find_map(|(field, entries)| {
            let key = path
                .as_str()?
                .strip_prefix(&format!("metadata.{field}['"))?
                .strip_suffix("']")?;
            is_liqo_key(key).then(|| {
                let value = entries.and_then(|entries| entries.get(key));
                (
                    format!("{PASSED_ON}/{}", short_hash(&format!("{field}/{key}"))),
                    value,
                )
            })
        });
        if let Some((key, value)) = found {
            *path = annotation_path(&key).into();
            values.extend(value.map(|value| (key, value.clone())));
        }
    });
    values
}

/// The provider's side: refers to the labels and annotations of the remote pod that hold the values
/// of the local pod.
pub(super) fn refer_to_local_values(spec: &mut Map<String, Value>, rules: &ProviderRules) {
    for_each_path(spec, |path| refer_to_local_value(path, rules));
}

/// Calls `change` with each path of a field that variables and files read.
fn for_each_path(spec: &mut Map<String, Value>, mut change: impl FnMut(&mut Value)) {
    for_each_variable(spec, |variable| {
        let source = variable.get_mut("valueFrom");
        source
            .and_then(field_path_mut)
            .into_iter()
            .for_each(&mut change);
    });
    for volume in elements_mut(spec.get_mut("volumes")) {
        for_each_path_of_files(volume, &mut change);
        let projected = volume.get_mut("projected");
        for source in elements_mut(projected.and_then(|projected| projected.get_mut("sources"))) {
            for_each_path_of_files(source, &mut change);
        }
    }
}

/// The same for the files of a volume, or of a source of a projected one.
fn for_each_path_of_files(source: &mut Value, change: &mut impl FnMut(&mut Value)) {
    let files = source.get_mut("downwardAPI");
    elements_mut(files.and_then(|files| files.get_mut("items")))
        .filter_map(field_path_mut)
        .for_each(change);
}

fn field_path_mut(source: &mut Value) -> Option<&mut Value> {
    source.get_mut("fieldRef")?.get_mut("fieldPath")
}

fn refer_to_local_value(path: &mut Value, rules: &ProviderRules) {
    let Some(said) = path.as_str() else { return };
    let instead = match said {
        "metadata.namespace" => format!("metadata.labels['{}']", labels::HOME_NAMESPACE),
        "metadata.uid" => format!("metadata.labels['{}']", labels::SHADOW_POD),
        "metadata.labels" => annotation_path(annotations::HOME_LABELS),
        "metadata.annotations" => annotation_path(annotations::HOME_ANNOTATIONS),
        one => {
            let label = key_in_path(one, "metadata.labels")
                .filter(|key| !is_liqo_key(key) && !keeps_label(key, rules));
            let annotation =
                annotation_of(one).filter(|key| !is_liqo_key(key) && !keeps_annotation(key, rules));
            match label
                .map(|key| local_value(LABEL, key))
                .or(annotation.map(|key| local_value(ANNOTATION, key)))
            {
                Some(kept) => annotation_path(&kept),
                None => return,
            }
        }
    };
    *path = instead.into();
}

fn annotation_path(key: &str) -> String {
    format!("metadata.annotations['{key}']")
}

/// The annotation of the remote pod with the value of a label or annotation of the local pod that
/// does not travel: `example.com/tier` becomes `example.com.label.home.liqo.io/tier`.
fn local_value(kind: &str, key: &str) -> String {
    match key.split_once('/') {
        Some((domain, name)) => format!("{domain}.{kind}{LOCAL_VALUES}/{name}"),
        None => format!("{kind}{LOCAL_VALUES}/{key}"),
    }
}

const LABEL: &str = "label";
const ANNOTATION: &str = "annotation";
/// End of the domain of annotations that hold such a value.
const LOCAL_VALUES: &str = ".home.liqo.io";

/// Whether an annotation of a remote pod holds a value of its local pod that a container reads.
pub(super) fn is_local_value(key: &str) -> bool {
    key_domain(key).ends_with(LOCAL_VALUES)
}

/// The annotations with values of the local pod that the containers and volumes of this remote pod
/// read.
pub(super) fn local_values(spec: &Map<String, Value>, carried: &Value) -> Map<String, Value> {
    let read = annotations_read(spec);
    let metadata = PodView::of(carried).metadata();
    let (home_labels, home_annotations) = (
        kept_texts(metadata.labels(), |key| !is_liqo_key(key)),
        kept_texts(metadata.annotations(), |key| !is_liqo_key(key)),
    );
    let mut values = Map::new();
    for (kind, entries, file) in [
        (LABEL, &home_labels, annotations::HOME_LABELS),
        (ANNOTATION, &home_annotations, annotations::HOME_ANNOTATIONS),
    ] {
        if read.contains(file) {
            values.insert(file.to_owned(), file_content(entries).into());
        }
        let single = entries
            .iter()
            .map(|(key, value)| (local_value(kind, key), value.clone()));
        values.extend(single.filter(|(key, _)| read.contains(key.as_str())));
    }
    values
}

/// Whether a pod reads this annotation, by its name or together with all others.
pub(super) fn reads_annotation(spec: PodSpecView<'_>, key: &str) -> bool {
    spec.json().as_object().is_some_and(|spec| {
        paths_read(spec)
            .any(|path| path == "metadata.annotations" || annotation_of(path) == Some(key))
    })
}

/// The keys of the annotations that a pod reads one by one.
fn annotations_read(spec: &Map<String, Value>) -> BTreeSet<&str> {
    paths_read(spec).filter_map(annotation_of).collect()
}

fn annotation_of(path: &str) -> Option<&str> {
    key_in_path(path, "metadata.annotations")
}

/// The key in a path as `metadata.labels['key']`.
fn key_in_path<'a>(path: &'a str, field: &str) -> Option<&'a str> {
    path.strip_prefix(field)?
        .strip_prefix("['")?
        .strip_suffix("']")
}

/// The paths of the fields that variables and files of a pod read.
fn paths_read(spec: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let variables = ContainerList::ALL
        .into_iter()
        .flat_map(|list| listed_items(spec, list.spec_field()))
        .flat_map(|container| ContainerView::of(container).env());
    let variables = variables.filter_map(VariableView::field_path);
    let sources = listed_items(spec, "volumes").iter().flat_map(|volume| {
        let volume = VolumeView::of(volume);
        let projected = volume.projected().sources();
        [volume.downward_api()]
            .into_iter()
            .chain(projected.map(ProjectionView::downward_api))
    });
    let files = sources.flat_map(DownwardFilesView::items);
    variables.chain(files.filter_map(|file| file.field_ref().field_path()))
}

/// Labels or annotations as a kubelet writes them into a file: one line for each, in the order of
/// their keys.
fn file_content(entries: &Map<String, Value>) -> String {
    let ordered: BTreeMap<&String, &Value> = entries.iter().collect();
    let lines = ordered.into_iter().map(|(key, value)| {
        format!(
            "{key}={}",
            quote_like_go(value.as_str().unwrap_or_default())
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A text in quotes, with the escapes of Go's `strconv.Quote`, which a kubelet uses.
fn quote_like_go(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        let written = match character {
            '"' | '\\' => write!(quoted, "\\{character}"),
            '\n' => write!(quoted, "\\n"),
            '\r' => write!(quoted, "\\r"),
            '\t' => write!(quoted, "\\t"),
            '\u{7}' => write!(quoted, "\\a"),
            '\u{8}' => write!(quoted, "\\b"),
            '\u{b}' => write!(quoted, "\\v"),
            '\u{c}' => write!(quoted, "\\f"),
            _ if is_printable(character) => write!(quoted, "{character}"),
            '\0'..='\u{7f}' => write!(quoted, "\\x{:02x}", u32::from(character)),
            '\u{80}'..='\u{ffff}' => write!(quoted, "\\u{:04x}", u32::from(character)),
            _ => write!(quoted, "\\U{:08x}", u32::from(character)),
        };
        // Writing to a text cannot fail.
        let _ = written;
    }
    quoted.push('"');
    quoted
}

/// Go's `unicode.IsPrint`: letters, marks, numbers, punctuation, symbols and the ASCII space. Rust
/// decides the same where it escapes texts for programmers, except for quotes and marks at the
/// beginning. Only characters that Unicode added after version 15.0 differ: Go 1.26 does not know
/// them yet.
fn is_printable(character: char) -> bool {
    character == '\''
        || ['a', character]
            .iter()
            .collect::<String>()
            .escape_debug()
            .nth(1)
            == Some(character)
}

fn for_each_variable(spec: &mut Map<String, Value>, mut change: impl FnMut(&mut Value)) {
    for list in ContainerList::ALL {
        for container in elements_mut(spec.get_mut(list.spec_field())) {
            elements_mut(container.get_mut("env")).for_each(&mut change);
        }
    }
}

fn elements_mut(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::pod::carry::{
        ProviderRules, RemoteIdentity, outgoing_pod, remote_patch, remote_pod,
    };

    use super::*;
    use crate::json::{items_at, text_at};

    const IDENTITY: RemoteIdentity = RemoteIdentity {
        namespace: "demo-rome-abc123",
        name: "web",
        consumer: "rome-id",
        pool: "default",
        shadow_pod: "home-uid",
        home_namespace: "demo",
    };

    fn field(name: &str, path: &str) -> Value {
        json!({ "name": name, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } })
    }

    fn local_pod(env: &Value, items: &Value) -> Value {
        let items: Vec<Value> = items
            .as_array()
            .unwrap()
            .iter()
            .map(|path| json!({ "path": "p", "fieldRef": { "fieldPath": path } }))
            .collect();
        json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "home-uid", "labels": { "app": "web", "app-x/y": "1" } },
            "spec": {
                "nodeName": "milan", "serviceAccountName": "reader",
                "initContainers": [{ "name": "i", "image": "x", "env": env }],
                "containers": [{ "name": "c", "image": "x", "env": env }],
                "volumes": [{ "name": "v", "downwardAPI": { "items": items } },
                    { "name": "w", "projected": { "sources": [{ "downwardAPI": { "items": items } }] } }],
            },
        })
    }

    fn rules() -> ProviderRules {
        ProviderRules {
            api_server: true,
            ..ProviderRules::default()
        }
    }

    fn remote(local: &Value) -> Value {
        remote_pod(
            &outgoing_pod(local, &[].into()).unwrap(),
            &IDENTITY,
            &rules(),
        )
        .unwrap()
    }

    #[test]
    fn variables_hold_what_they_hold_at_home_and_addresses_are_those_of_the_pod_itself() {
        let own = [
            "metadata.name",
            "metadata.labels['app']",
            "status.podIP",
            "status.podIPs",
            "status.hostIP",
        ];
        let mut env = vec![
            field("NAMESPACE", "metadata.namespace"),
            field("UID", "metadata.uid"),
            field("NODE", "spec.nodeName"),
            field("ACCOUNT", "spec.serviceAccountName"),
            json!({ "name": "ADDRESS", "value": "web.$(NAMESPACE).svc" }),
            json!({ "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } }),
        ];
        env.extend(own.map(|path| field("OWN", path)));
        let mut wanted = env.clone();
        wanted[0] = field("NAMESPACE", "metadata.labels['liqo.io/home-namespace']");
        wanted[1] = field("UID", "metadata.labels['liqo.io/shadow-pod']");
        wanted[2] = json!({ "name": "NODE", "value": "milan" });
        wanted[3] = json!({ "name": "ACCOUNT", "value": "reader" });
        let remote = remote(&local_pod(&env.into(), &json!([])));
        for list in ["initContainers", "containers"] {
            assert_eq!(
                remote["spec"][list][0]["env"],
                Value::from(wanted.clone()),
                "{list}"
            );
        }
        let metadata = &remote["metadata"]["labels"];
        assert_eq!(
            (
                &metadata["liqo.io/home-namespace"],
                &metadata["liqo.io/shadow-pod"]
            ),
            (&json!("demo"), &json!("home-uid"))
        );
        assert_eq!(
            remote["metadata"]["annotations"].get("liqo.io/home-labels"),
            None,
            "nobody reads it"
        );
    }

    #[test]
    fn files_show_the_namespace_at_home_and_no_labels_of_liqo_and_follow_changes() {
        let paths = json!([
            "metadata.namespace",
            "metadata.uid",
            "metadata.labels",
            "metadata.annotations",
            "metadata.name"
        ]);
        let mut local = local_pod(&json!([]), &paths);
        let mut live = remote(&local);
        let of = |items: &Value| -> Vec<String> {
            let items = items.as_array().unwrap().iter();
            items
                .map(|item| text_at(item, "/fieldRef/fieldPath").unwrap().to_owned())
                .collect()
        };
        let wanted = [
            "metadata.labels['liqo.io/home-namespace']",
            "metadata.labels['liqo.io/shadow-pod']",
            "metadata.annotations['liqo.io/home-labels']",
            "metadata.annotations['liqo.io/home-annotations']",
            "metadata.name",
        ];
        assert_eq!(
            of(&live["spec"]["volumes"][0]["downwardAPI"]["items"]),
            wanted
        );
        assert_eq!(
            of(&live["spec"]["volumes"][1]["projected"]["sources"][0]["downwardAPI"]["items"]),
            wanted
        );
        assert_eq!(
            live["metadata"]["annotations"]["liqo.io/home-labels"],
            "app=\"web\"\napp-x/y=\"1\""
        );

        local["metadata"]["labels"] = json!({ "app": "web", "tier": "2" });
        let carried = outgoing_pod(&local, &[].into()).unwrap();
        let patch = remote_patch(&carried, &live, &rules(), true).unwrap();
        assert_eq!(
            patch["metadata"]["annotations"]["liqo.io/home-labels"],
            "app=\"web\"\ntier=\"2\""
        );
        json_patch::merge(&mut live, &patch);
        assert_eq!(remote_patch(&carried, &live, &rules(), true), None);
    }

    #[test]
    fn a_label_or_annotation_that_does_not_travel_is_read_all_the_same_and_follows_changes() {
        let read = [
            "metadata.labels['example.com/tier']",
            "metadata.annotations['note']",
            "metadata.annotations['liqo.io/x']",
        ];
        let mut local = local_pod(
            &read.map(|path| field("X", path)).to_vec().into(),
            &json!(["metadata.annotations"]),
        );
        local["metadata"]["labels"] =
            json!({ "app": "web", "example.com/tier": "1", "example.com/unread": "2" });
        local["metadata"]["annotations"] = json!({ "note": "a\"b", "example.com/unread": "c" });
        let mut live = remote(&local);
        let paths: Vec<_> = items_at(&live["spec"]["containers"][0], "/env")
            .iter()
            .map(|one| text_at(one, "/valueFrom/fieldRef/fieldPath"))
            .collect();
        // Annotations of Liqo are read as they are at home, too, and not as the provider's.
        let passed_on = local_value(
            ANNOTATION,
            &format!("{PASSED_ON}/{}", short_hash("annotations/liqo.io/x")),
        );
        let kept = [
            "example.com.label.home.liqo.io/tier",
            "annotation.home.liqo.io/note",
            passed_on.as_str(),
        ];
        let kept = kept.map(|key| format!("metadata.annotations['{key}']"));
        assert_eq!(paths, kept.each_ref().map(|path| Some(path.as_str())));
        let held = |pod: &Value| {
            let mut all = pod["metadata"]["annotations"].as_object().unwrap().clone();
            all.remove(annotations::TRAVELLED);
            all.remove(annotations::POOL_NODES);
            Value::from(all)
        };
        assert_eq!(live["metadata"]["labels"].get("example.com/tier"), None);
        assert_eq!(
            held(&live),
            json!({ "example.com.label.home.liqo.io/tier": "1", "annotation.home.liqo.io/note": "a\"b",
                "liqo.io/home-annotations": "example.com/unread=\"c\"\nnote=\"a\\\"b\"" })
        );

        local["metadata"]["labels"] = json!({ "app": "web", "example.com/tier": "2" });
        local["metadata"]["annotations"] = json!({});
        let carried = outgoing_pod(&local, &[].into()).unwrap();
        let patch = remote_patch(&carried, &live, &rules(), true).unwrap();
        json_patch::merge(&mut live, &patch);
        assert_eq!(
            held(&live),
            json!({ "example.com.label.home.liqo.io/tier": "2", "liqo.io/home-annotations": "" })
        );
        assert_eq!(remote_patch(&carried, &live, &rules(), true), None);
    }

    #[test]
    fn a_brokered_pod_reads_the_values_of_its_first_home() {
        let read = [
            "metadata.namespace",
            "metadata.uid",
            "metadata.labels['example.com/tier']",
        ];
        let mut local = local_pod(
            &read.map(|path| field("X", path)).to_vec().into(),
            &json!(["metadata.labels", "metadata.namespace"]),
        );
        local["metadata"]["labels"] = json!({ "app": "web", "example.com/tier": "1" });
        let at_broker = |local: &Value| {
            let mut pod = remote(local);
            pod["metadata"]["uid"] = json!("broker-uid");
            pod["spec"]["nodeName"] = json!("turin");
            pod
        };
        let identity = RemoteIdentity {
            consumer: "milan-id",
            shadow_pod: "broker-uid",
            home_namespace: "demo-rome-abc123",
            ..IDENTITY
        };
        let carried = outgoing_pod(&at_broker(&local), &[].into()).unwrap();
        assert!(
            !carried.to_string().contains("home-namespace"),
            "what is the broker's own does not travel: {carried}"
        );
        let mut there = remote_pod(&carried, &identity, &rules()).unwrap();
        // What the kubelet there puts into variables and files.
        let value = |pod: &Value, path: &str| {
            let key = path
                .strip_prefix("metadata.annotations['")
                .unwrap()
                .strip_suffix("']")
                .unwrap();
            pod["metadata"]["annotations"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let values = |pod: &Value| -> Vec<String> {
            let env = items_at(&pod["spec"]["containers"][0], "/env")
                .iter()
                .filter_map(|one| text_at(one, "/valueFrom/fieldRef/fieldPath"));
            let files = items_at(pod, "/spec/volumes/0/downwardAPI/items")
                .iter()
                .filter_map(|one| text_at(one, "/fieldRef/fieldPath"));
            env.chain(files).map(|path| value(pod, path)).collect()
        };
        let labels = |tier: &str| format!("app=\"web\"\nexample.com/tier=\"{tier}\"");
        assert_eq!(
            values(&there),
            ["demo", "home-uid", "1", &labels("1"), "demo"]
        );

        local["metadata"]["labels"]["example.com/tier"] = json!("2");
        let carried = outgoing_pod(&at_broker(&local), &[].into()).unwrap();
        let patch = remote_patch(&carried, &there, &rules(), true).unwrap();
        json_patch::merge(&mut there, &patch);
        assert_eq!(
            values(&there),
            ["demo", "home-uid", "2", &labels("2"), "demo"]
        );
    }

    #[test]
    fn an_ephemeral_container_reads_such_a_label_from_its_start() {
        let mut local = local_pod(&json!([]), &json!([]));
        local["metadata"]["labels"] = json!({ "app": "web", "example.com/tier": "1" });
        let live = remote(&local);
        let env = [field("X", "metadata.labels['example.com/tier']")];
        local["spec"]["ephemeralContainers"] =
            json!([{ "name": "debug", "image": "i", "env": env }]);
        let carried = outgoing_pod(&local, &[].into()).unwrap();
        let patch = remote_patch(&carried, &live, &rules(), true).unwrap();
        assert_eq!(
            patch["metadata"]["annotations"]["example.com.label.home.liqo.io/tier"],
            "1"
        );
    }

    #[test]
    fn files_have_the_escapes_of_a_kubelet() {
        // Written by Go's strconv.Quote.
        for (text, file) in [
            ("a b", "a b"),
            ("\"\\", "\\\"\\\\"),
            ("it's", "it's"),
            ("\n\t\r\u{7}\u{8}\u{b}\u{c}", "\\n\\t\\r\\a\\b\\v\\f"),
            ("\0\u{1}\u{1b}\u{7f}", "\\x00\\x01\\x1b\\x7f"),
            // Control characters and spaces beyond ASCII.
            (
                "\u{85}\u{a0}\u{2003}\u{2028}\u{3000}",
                "\\u0085\\u00a0\\u2003\\u2028\\u3000",
            ),
            ("ü€漢字Ω", "ü€漢字Ω"),
            // Characters that format others: soft hyphen, zero width space, right-to-left override,
            // byte order mark.
            (
                "\u{ad}\u{200b}\u{202e}\u{feff}",
                "\\u00ad\\u200b\\u202e\\ufeff",
            ),
            // An emoji of two that are joined.
            ("👩\u{200d}🚀", "👩\\u200d🚀"),
            // Accents and variation selectors are marks.
            ("e\u{301}\u{301}", "e\u{301}\u{301}"),
            ("\u{301}❤\u{fe0f}", "\u{301}❤\u{fe0f}"),
            // Private use, unassigned, no character, and tags.
            ("\u{e000}\u{378}\u{ffff}", "\\ue000\\u0378\\uffff"),
            (
                "\u{e0061}\u{f0000}\u{10ffff}",
                "\\U000e0061\\U000f0000\\U0010ffff",
            ),
            // In place of what is no UTF-8, which no JSON contains.
            ("\u{fffd}", "\u{fffd}"),
        ] {
            assert_eq!(quote_like_go(text), format!("\"{file}\""));
        }
    }

    #[test]
    fn a_pod_that_uses_the_providers_api_server_reads_what_that_knows_of_it() {
        let env = [
            "metadata.namespace",
            "metadata.uid",
            "spec.nodeName",
            "spec.serviceAccountName",
        ]
        .map(|path| field("X", path));
        let mut local = local_pod(&json!(env), &json!(["metadata.labels"]));
        local["metadata"]["annotations"] = json!({ annotations::API_SERVER: "remote" });
        let spec = remote(&local)["spec"].clone();
        assert_eq!(spec["containers"][0]["env"], json!(env));
        assert_eq!(spec["volumes"], local["spec"]["volumes"]);
    }
}
