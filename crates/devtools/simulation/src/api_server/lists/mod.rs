//! How the fields of a kind merge: its maps by field or as a whole, its lists by keys, as a set or
//! as a whole.
//!
//! The fields come from k8s-openapi or from the schema of a custom kind. k8s-openapi lacks the
//! extensions that say how fields merge: `tables` adds them, as in `api/openapi-spec/swagger.json`
//! of Kubernetes 1.34.

mod tables;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use k8s_openapi::schemars::{Schema, SchemaGenerator};
use serde_json::{Map as Fields, Value, json};

use super::known_fields;

use tables::{ATOMIC_TYPES, MERGED_LISTS, built_in_kinds};

/// How the fields of one kind merge.
#[derive(Debug, Clone)]
pub struct Lists {
    types: Arc<Vec<Type>>,
    root: usize,
    empty: Value,
}

/// The values that a field takes. A field without a known type takes any.
#[derive(Debug, Clone, Default)]
pub struct Type {
    /// The last part of the name that Kubernetes gives the type, where it has one.
    pub name: String,
    pub map: Option<Map>,
    pub scalar: Option<Scalar>,
    pub list: Option<List>,
}

#[derive(Debug, Clone)]
pub struct Map {
    /// The map has one owner, and is applied as a whole.
    pub is_atomic: bool,
    /// A strategic merge patch replaces the map.
    pub is_replaced: bool,
    fields: BTreeMap<String, usize>,
    /// The type of a field that is not declared. `None`: there is no such field.
    rest: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    Text,
    Number,
    Boolean,
    Any,
}

#[derive(Debug, Clone)]
#[allow(clippy::struct_field_names, reason = "as Kubernetes names it")]
pub struct List {
    pub list_type: ListType,
    /// The key by which a strategic merge patch merges the list: empty for scalars, `None` where it
    /// replaces the list.
    pub patch_key: Option<String>,
    items: usize,
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, PartialEq)]
pub enum ListType {
    Atomic,
    Set,
    /// By these keys, each with the value of an item that lacks it.
    Map(Vec<(String, Option<Value>)>),
}

/// A place in an object of a kind.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    types: &'a [Type],
    id: usize,
}

impl Lists {
    /// The fields of a kind of Kubernetes. All fields of a kind that is not known merge as those
    /// without a schema.
    pub fn of_built_in(group: &str, kind: &str) -> Self {
        let name = format!("{group}/{kind}");
        let root = BUILT_IN.roots.get(&name).copied().unwrap_or(DEDUCED);
        let mut empty = json!({ "metadata": {} });
        known_fields::prune((kind, group), &mut empty);
        Self {
            types: Arc::clone(&BUILT_IN.types),
            root,
            empty,
        }
    }

    /// The fields of a custom kind, from the `openAPIV3Schema` of its definition.
    pub fn of_schema(schema: &Value) -> Self {
        let mut builder = Builder::new(&BUILT_IN.definitions);
        let mut root = schema.clone();
        root["x-kubernetes-embedded-resource"] = json!(true);
        let root = builder.add(&root, false);
        Self {
            types: Arc::new(builder.types),
            root,
            empty: json!({}),
        }
    }

    /// The fields that Kubernetes writes for an object that has none. Nobody owns them by creating
    /// an object.
    pub fn empty_object(&self) -> &Value {
        &self.empty
    }

    pub fn root(&self) -> Node<'_> {
        Node {
            types: &self.types,
            id: self.root,
        }
    }
}

impl<'a> Node<'a> {
    pub fn kind(self) -> &'a Type {
        &self.types[self.id]
    }

    /// The type of a field of a map, also of one that is not declared.
    pub fn field(self, name: &str) -> Option<Self> {
        let map = self.kind().map.as_ref()?;
        let id = map.fields.get(name).copied().or(map.rest)?;
        Some(Self { id, ..self })
    }

    /// Whether the schema names the field, rather than all fields of a map.
    pub fn declares(self, name: &str) -> bool {
        self.kind()
            .map
            .as_ref()
            .is_some_and(|map| map.fields.contains_key(name))
    }

    /// The type of the items of a list.
    pub fn items(self) -> Option<Self> {
        Some(Self {
            id: self.kind().list.as_ref()?.items,
            ..self
        })
    }
}

/// The type of values without a schema, whose maps merge by field.
const DEDUCED: usize = 0;
/// The type of values without a schema that have one owner.
const UNTYPED: usize = 1;

struct BuiltIn {
    types: Arc<Vec<Type>>,
    roots: BTreeMap<String, usize>,
    definitions: Fields<String, Value>,
}

static BUILT_IN: LazyLock<BuiltIn> = LazyLock::new(|| {
    let mut generator = SchemaGenerator::default();
    let schemas: Vec<(String, Schema)> = built_in_kinds()
        .into_iter()
        .map(|(name, generate)| (name, generate(&mut generator)))
        .collect();
    let definitions = generator.take_definitions(false);
    let mut builder = Builder::new(&definitions);
    let roots = schemas
        .iter()
        .map(|(name, schema)| (name.clone(), builder.add(schema.as_value(), false)))
        .collect();
    BuiltIn {
        types: Arc::new(builder.types),
        roots,
        definitions,
    }
});

/// The rules of `MERGED_LISTS`, by type and field.
static RULES: LazyLock<BTreeMap<(&str, &str), &str>> = LazyLock::new(|| {
    let mut rules = BTreeMap::new();
    for line in MERGED_LISTS.lines() {
        let mut words = line.split(' ');
        let type_name = words.next().unwrap_or_default();
        for word in words {
            let (field, rule) = word.split_at(
                word.find(['[', '{', '~', '!', '+', '^'])
                    .unwrap_or(word.len()),
            );
            rules.insert((type_name, field), rule);
        }
    }
    rules
});

/// Turns schemas into types.
struct Builder<'a> {
    definitions: &'a Fields<String, Value>,
    types: Vec<Type>,
    named: BTreeMap<&'a str, usize>,
}

impl<'a> Builder<'a> {
    fn new(definitions: &'a Fields<String, Value>) -> Self {
        let untyped = |is_atomic: bool, id: usize| Type {
            name: String::new(),
            map: Some(Map {
                is_atomic,
                is_replaced: false,
                fields: BTreeMap::new(),
                rest: Some(id),
            }),
            scalar: Some(Scalar::Any),
            list: Some(List {
                list_type: ListType::Atomic,
                patch_key: None,
                items: UNTYPED,
            }),
        };
        Self {
            definitions,
            types: vec![untyped(false, DEDUCED), untyped(true, UNTYPED)],
            named: BTreeMap::new(),
        }
    }

    /// Adds the type of a schema, or finds the one that a reference names.
    /// With `preserves`, maps may have fields that they do not declare.
    fn add(&mut self, schema: &Value, preserves: bool) -> usize {
        let reference = schema["$ref"]
            .as_str()
            .and_then(|path| path.rsplit('/').next());
        if let Some(name) = reference {
            return self.add_named(name);
        }
        let id = self.reserve();
        self.types[id] = self.convert(schema, "", preserves);
        id
    }

    fn add_named(&mut self, name: &str) -> usize {
        let Some((name, schema)) = self.definitions.get_key_value(name) else {
            return DEDUCED;
        };
        if let Some(id) = self.named.get(name.as_str()) {
            return *id;
        }
        let id = self.reserve();
        self.named.insert(name, id);
        self.types[id] = self.convert(schema, short_name(name), false);
        id
    }

    /// Types refer to themselves, so a type has an id before it is known.
    fn reserve(&mut self) -> usize {
        self.types.push(Type::default());
        self.types.len() - 1
    }

    fn convert(&mut self, schema: &Value, name: &str, preserves: bool) -> Type {
        let preserves = preserves || schema["x-kubernetes-preserve-unknown-fields"] == true;
        let of_scalar = |scalar| Type {
            scalar: Some(scalar),
            ..Type::default()
        };
        let is_text = matches!(schema["format"].as_str(), None | Some("" | "byte"));
        let mut converted = match (name, schema["type"].as_str()) {
            ("api.resource.Quantity", _) => of_scalar(Scalar::Any),
            ("pkg.runtime.RawExtension", _) => self.types[UNTYPED].clone(),
            ("apiextensions.v1.JSON", _) => self.types[DEDUCED].clone(),
            (_, Some("string")) => of_scalar(if is_text { Scalar::Text } else { Scalar::Any }),
            (_, Some("boolean")) => of_scalar(Scalar::Boolean),
            (_, Some("integer" | "number")) => of_scalar(Scalar::Number),
            (_, Some("object")) => Type {
                map: Some(self.convert_map(schema, name, preserves)),
                ..Type::default()
            },
            (_, Some("array")) => Type {
                list: Some(self.convert_list(schema, preserves)),
                ..Type::default()
            },
            _ => Type {
                map: Some(self.convert_map(schema, name, preserves)),
                scalar: Some(Scalar::Any),
                list: Some(self.convert_list(schema, preserves)),
                name: String::new(),
            },
        };
        name.rsplit('.')
            .next()
            .unwrap_or_default()
            .clone_into(&mut converted.name);
        converted
    }

    fn convert_map(&mut self, schema: &Value, name: &str, preserves: bool) -> Map {
        let properties = schema["properties"].as_object();
        let mut fields = BTreeMap::new();
        for (field, member) in properties.into_iter().flatten() {
            let id = self.add(member, preserves);
            let rule = RULES.get(&(name, field.as_str()));
            fields.insert(
                field.clone(),
                rule.map_or(id, |rule| self.add_ruled(id, rule)),
            );
        }
        if schema["x-kubernetes-embedded-resource"] == true {
            let text = self.add(&json!({ "type": "string" }), false);
            let metadata = self.add_named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
            fields.extend(
                [("apiVersion", text), ("kind", text), ("metadata", metadata)]
                    .map(|(name, id)| (name.to_owned(), id)),
            );
        }
        let rest = match &schema["additionalProperties"] {
            Value::Bool(allowed) => allowed.then_some(DEDUCED),
            Value::Null => {
                (preserves || properties.is_none_or(Fields::is_empty)).then_some(DEDUCED)
            }
            rest => Some(self.add(rest, preserves)),
        };
        let is_atomic = schema["x-kubernetes-map-type"] == "atomic" || ATOMIC_TYPES.contains(&name);
        Map {
            is_atomic,
            is_replaced: false,
            fields,
            rest,
        }
    }

    fn convert_list(&mut self, schema: &Value, preserves: bool) -> List {
        let items = schema
            .get("items")
            .map_or(UNTYPED, |items| self.add(items, preserves));
        let default = |key: &str| schema["items"]["properties"][key].get("default").cloned();
        let keys = schema["x-kubernetes-list-map-keys"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let list_type = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(keys.map(|key| (key.to_owned(), default(key))).collect()),
            _ => ListType::Atomic,
        };
        List {
            list_type,
            patch_key: None,
            items,
        }
    }

    /// Adds a type with a rule of `MERGED_LISTS`.
    fn add_ruled(&mut self, id: usize, rule: &str) -> usize {
        let mut ruled = self.types[id].clone();
        let (list_rule, patch_key) = rule
            .split_once('~')
            .map_or((rule, None), |(rule, key)| (rule, Some(key.to_owned())));
        if let Some(list) = &mut ruled.list {
            list.patch_key = patch_key;
            if let Some(keys) = list_rule
                .strip_prefix('[')
                .and_then(|rule| rule.strip_suffix(']'))
            {
                list.list_type = ListType::Map(keys.split(',').map(parse_key).collect());
            } else if list_rule == "{}" {
                list.list_type = ListType::Set;
            }
        }
        if let Some(map) = &mut ruled.map {
            map.is_replaced = rule == "^";
            map.is_atomic = rule == "!" || (map.is_atomic && rule != "+");
        }
        self.types.push(ruled);
        self.types.len() - 1
    }
}

/// A key, with what follows `=` as the value of an item without the key.
fn parse_key(text: &str) -> (String, Option<Value>) {
    let Some((key, default)) = text.split_once('=') else {
        return (text.to_owned(), None);
    };
    (
        key.to_owned(),
        Some(
            default
                .parse::<i64>()
                .map_or_else(|_| json!(default), |number| json!(number)),
        ),
    )
}

/// `core.v1.Pod` for `io.k8s.api.core.v1.Pod`.
fn short_name(name: &str) -> &str {
    name.rmatch_indices('.')
        .nth(2)
        .map_or(name, |(dot, _)| &name[dot + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of a field, without the items of lists.
    fn place<'a>(lists: &'a Lists, path: &str) -> Node<'a> {
        path.split('.').fold(lists.root(), |node, name| {
            let map = if node.kind().map.is_some() {
                node
            } else {
                node.items().unwrap()
            };
            map.field(name).unwrap()
        })
    }

    fn keys(lists: &Lists, path: &str) -> ListType {
        place(lists, path).kind().list.clone().unwrap().list_type
    }

    #[test]
    fn pod_templates_merge_as_pods_do() {
        let ports = ListType::Map(vec![
            ("containerPort".into(), Some(json!(0))),
            ("protocol".into(), Some(json!("TCP"))),
        ]);
        for (group, kind, prefix) in [
            ("", "Pod", ""),
            ("apps", "Deployment", "spec.template."),
            ("batch", "Job", "spec.template."),
        ] {
            let lists = Lists::of_built_in(group, kind);
            assert_eq!(
                keys(&lists, &format!("{prefix}spec.containers.ports")),
                ports
            );
            assert_eq!(
                keys(&lists, &format!("{prefix}spec.tolerations")),
                ListType::Atomic
            );
            assert_eq!(
                keys(&lists, &format!("{prefix}metadata.finalizers")),
                ListType::Set
            );
            assert!(
                place(&lists, &format!("{prefix}spec.nodeSelector"))
                    .kind()
                    .map
                    .as_ref()
                    .unwrap()
                    .is_atomic
            );
        }
    }

    /// A rule for a field that k8s-openapi does not have would have no effect.
    #[test]
    fn all_rules_name_fields_that_exist() {
        let fields = |name: &str| {
            let found = BUILT_IN
                .definitions
                .iter()
                .find(|(full, _)| short_name(full) == name);
            found.map(|(_, schema)| schema["properties"].as_object().unwrap().clone())
        };
        for (name, field) in RULES.keys() {
            assert!(
                fields(name).is_some_and(|fields| fields.contains_key(*field)),
                "{name} {field}"
            );
        }
        for name in ATOMIC_TYPES {
            assert!(fields(name).is_some(), "{name}");
        }
    }

    #[test]
    fn an_object_without_fields_has_those_that_go_always_writes() {
        let deployment = Lists::of_built_in("apps", "Deployment");
        let template = json!({ "metadata": {}, "spec": { "containers": null } });
        let spec = json!({ "selector": null, "template": template, "strategy": {} });
        assert_eq!(
            deployment.empty_object(),
            &json!({ "metadata": {}, "spec": spec, "status": {} })
        );
    }

    #[test]
    fn a_strategic_patch_merges_lists_by_one_key() {
        let node = Lists::of_built_in("", "Node");
        assert_eq!(
            place(&node, "spec.taints")
                .kind()
                .list
                .as_ref()
                .unwrap()
                .patch_key,
            None
        );
        assert_eq!(
            place(&node, "status.addresses")
                .kind()
                .list
                .as_ref()
                .unwrap()
                .patch_key
                .as_deref(),
            Some("type")
        );
        assert_eq!(
            place(&node, "metadata.finalizers")
                .kind()
                .list
                .as_ref()
                .unwrap()
                .patch_key
                .as_deref(),
            Some("")
        );
    }

    #[test]
    fn a_schema_says_how_a_custom_kind_merges() {
        let lists = Lists::of_schema(&json!({
            "type": "object",
            "properties": { "spec": { "type": "object", "properties": {
                "peers": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
                    "items": { "type": "object", "properties": {
                        "name": { "type": "string" }, "port": { "type": "integer", "default": 7 },
                    } },
                },
                "names": { "type": "array", "items": { "type": "string" } },
                "whole": { "type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": { "type": "string" } },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            } } },
        }));
        assert_eq!(
            keys(&lists, "spec.peers"),
            ListType::Map(vec![("name".into(), None), ("port".into(), Some(json!(7)))])
        );
        assert_eq!(keys(&lists, "spec.names"), ListType::Atomic);
        assert_eq!(keys(&lists, "metadata.finalizers"), ListType::Set);
        assert!(
            place(&lists, "spec.whole")
                .kind()
                .map
                .as_ref()
                .unwrap()
                .is_atomic
        );
        assert!(place(&lists, "spec.free.any.thing").kind().scalar.is_some());
        assert!(place(&lists, "spec").field("other").is_none());
    }
}
