//! What Go makes of the JSON of a built-in kind: unknown fields go, empty ones too, values get
//! their canonical form.
//!
//! `go_types.txt` lists the types of k8s.io/api v0.34.4 as reflection sees them, one a line (a line
//! that begins with a space goes on): the name, then `field:type`. A `!` after a field's name tells
//! that Go writes it even if it is empty.

mod scalars;

use scalars::{Problem, Scalar};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::LazyLock;

/// What [`prune`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Paths of fields that the kind does not have, such as `spec.containers[0].foo`.
    pub unknown: Vec<String>,
    /// Go's text of the first value of a wrong type: the request fails with it.
    pub error: Option<String>,
}

enum Kind {
    Scalar(Scalar),
    Pointer(Box<Kind>),
    Map(Box<Kind>),
    List(Box<Kind>),
    Struct(&'static str),
}

struct Field {
    name: &'static str,
    /// Written even if it is empty.
    always: bool,
    kind: Kind,
}

static TYPES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut types = HashMap::<_, Vec<Field>>::new();
    let mut name = "";
    for line in include_str!("go_types.txt").lines() {
        let mut words = line.split_whitespace();
        if !line.starts_with(' ') {
            name = words.next().unwrap_or_default();
        }
        types
            .entry(name)
            .or_default()
            .extend(words.filter_map(parse_field));
    }
    types
});

fn parse_field(text: &'static str) -> Option<Field> {
    let (name, kind) = text.split_once(':')?;
    Some(Field {
        name: name.trim_end_matches('!'),
        always: name.ends_with('!'),
        kind: parse_kind(kind),
    })
}

fn parse_kind(text: &'static str) -> Kind {
    if let Some(rest) = text.strip_prefix('*') {
        return Kind::Pointer(Box::new(parse_kind(rest)));
    }
    if let Some(rest) = text.strip_prefix("{}") {
        return Kind::Map(Box::new(parse_kind(rest)));
    }
    if let Some(rest) = text.strip_prefix("[]") {
        return Kind::List(Box::new(parse_kind(rest)));
    }
    Kind::Scalar(match text {
        "string" => Scalar::String,
        "bool" => Scalar::Bool,
        "int" | "int32" | "int64" | "uint16" => Scalar::Int(text),
        "bytes" => Scalar::Bytes,
        "time" => Scalar::Time,
        "micro" => Scalar::MicroTime,
        "quantity" => Scalar::Quantity,
        "int-or-string" => Scalar::IntOrString,
        "raw" => Scalar::Raw,
        name => return Kind::Struct(name),
    })
}

/// Gives an object of a built-in kind, as `(kind, group)`, the form in which the API server would
/// write it. Objects of other kinds keep all but the unknown fields of their metadata.
pub fn prune(kind_group: (&str, &str), object: &mut Value) -> Pruned {
    let mut decoder = Decoder::default();
    match type_of(kind_group) {
        Some(name) => *object = decoder.decode(&Kind::Struct(name), object.take(), &Place::Root),
        None => {
            if let Some(metadata) = object.get_mut("metadata") {
                let place = Place::Field(&Place::Root, kind_group.0, "metadata");
                *metadata = decoder.decode(&Kind::Struct("ObjectMeta"), metadata.take(), &place);
            }
        }
    }
    decoder.found
}

/// The name of a kind's type: some groups have a type of the same name, and those are listed as
/// `events.Event`.
fn type_of((kind, group): (&str, &str)) -> Option<&'static str> {
    if !matches!(group, "" | "apps" | "batch" | "policy") && !group.ends_with(".k8s.io") {
        return None;
    }
    let qualified = format!("{}.{kind}", group.split('.').next().unwrap_or_default());
    let (name, fields) = TYPES
        .get_key_value(qualified.as_str())
        .or_else(|| TYPES.get_key_value(kind))?;
    fields
        .iter()
        .any(|field| field.name == "apiVersion")
        .then_some(*name)
}

/// Where the decoder is: a step, and the place before it. The texts are made when somebody asks.
#[derive(Clone, Copy)]
enum Place<'a> {
    Root,
    /// A field of a type.
    Field(&'a Place<'a>, &'a str, &'a str),
    /// An item of a list.
    Item(&'a Place<'a>, usize),
    /// An entry of a map.
    Entry(&'a Place<'a>, &'a str),
}

impl<'a> Place<'a> {
    /// As unknown fields are reported: `spec.containers[0].image`.
    fn path(&self) -> String {
        match self {
            Place::Root => String::new(),
            Place::Field(before, _, name) | Place::Entry(before, name) => {
                join(&before.path(), name)
            }
            Place::Item(before, index) => format!("{}[{index}]", before.path()),
        }
    }

    /// The fields alone, as errors of types report them: `spec.containers.image`.
    fn fields(&self) -> String {
        match self {
            Place::Root => String::new(),
            Place::Field(before, _, name) => join(&before.fields(), name),
            Place::Item(before, _) | Place::Entry(before, _) => before.fields(),
        }
    }

    /// The type that has the field.
    fn owner(&self) -> &'a str {
        match self {
            Place::Root => "",
            Place::Field(_, owner, _) => owner,
            Place::Item(before, _) | Place::Entry(before, _) => before.owner(),
        }
    }

    /// As Go names it in errors: `Container.spec.containers.image`.
    fn in_struct(&self) -> String {
        format!(
            "{}.{}",
            self.owner().rsplit('.').next().unwrap_or_default(),
            self.fields()
        )
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[derive(Default)]
struct Decoder {
    found: Pruned,
    ended: bool,
}

impl Decoder {
    fn decode(&mut self, kind: &Kind, value: Value, place: &Place<'_>) -> Value {
        match (kind, value) {
            // An empty value of the storage is none: it does not tell an empty list from no list.
            (Kind::Pointer(_) | Kind::List(_) | Kind::Map(_), Value::Null) => Value::Null,
            (Kind::Pointer(inner), value) => self.decode(inner, value, place),
            (Kind::List(_), Value::Array(items)) if items.is_empty() => Value::Null,
            (Kind::Map(_), Value::Object(entries)) if entries.is_empty() => Value::Null,
            (Kind::List(inner), Value::Array(items)) => self.decode_list(inner, items, place),
            (Kind::Map(inner), Value::Object(entries)) => self.decode_map(inner, entries, place),
            (Kind::Struct(name), Value::Object(fields)) => self.decode_struct(name, fields, place),
            (Kind::Struct(name), Value::Null) => self.decode_struct(name, Map::new(), place),
            (Kind::Scalar(scalar), value) => match scalars::decode(*scalar, value) {
                Ok(value) => value,
                Err(problem) => self.fail(&problem, place),
            },
            (_, value) => self.fail(&Problem::mismatch(&value, kind_name(kind)), place),
        }
    }

    fn decode_list(&mut self, inner: &Kind, items: Vec<Value>, place: &Place<'_>) -> Value {
        let decode = |(index, item)| self.decode(inner, item, &Place::Item(place, index));
        items.into_iter().enumerate().map(decode).collect()
    }

    fn decode_map(
        &mut self,
        inner: &Kind,
        entries: Map<String, Value>,
        place: &Place<'_>,
    ) -> Value {
        let decode = |(key, entry): (String, Value)| {
            let decoded = self.decode(inner, entry, &Place::Entry(place, &key));
            (key, decoded)
        };
        Value::Object(entries.into_iter().map(decode).collect())
    }

    fn decode_struct(&mut self, name: &str, given: Map<String, Value>, place: &Place<'_>) -> Value {
        let Some((owner, fields)) = TYPES.get_key_value(name) else {
            return Value::Object(given);
        };
        let mut decoded = Map::new();
        for (key, value) in given {
            let place = Place::Field(place, owner, &key);
            let Some(field) = fields.iter().find(|field| field.name == key) else {
                self.found.unknown.push(place.path());
                continue;
            };
            let value = self.decode(&field.kind, value, &place);
            if field.always || !is_empty(&field.kind, &value) {
                decoded.insert(key, value);
            }
        }
        for field in fields.iter().filter(|field| field.always) {
            if decoded.contains_key(field.name) {
                continue;
            }
            let value = match field.kind {
                // Go tells missing bytes from empty ones.
                Kind::Scalar(Scalar::Bytes) => Value::Null,
                _ => self.decode(&field.kind, Value::Null, &Place::Root),
            };
            decoded.insert(field.name.to_owned(), value);
        }
        Value::Object(decoded)
    }

    /// The first problem counts, but one at which a type's own parser gives up ends everything.
    fn fail(&mut self, problem: &Problem, place: &Place<'_>) -> Value {
        if !self.ended && (problem.ends() || self.found.error.is_none()) {
            self.found.error = Some(problem.to_text(&place.in_struct()));
        }
        self.ended |= problem.ends();
        Value::Null
    }
}

/// What Go's `omitempty` leaves out.
fn is_empty(kind: &Kind, value: &Value) -> bool {
    match (kind, value) {
        (_, Value::Null) => true,
        (Kind::Scalar(Scalar::Raw), _) => false,
        (Kind::Scalar(_), Value::String(text)) => text.is_empty(),
        (Kind::Scalar(_), Value::Bool(flag)) => !flag,
        (Kind::Scalar(_), Value::Number(number)) => number.as_i64() == Some(0),
        _ => false,
    }
}

fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Struct(name) => format!("v1.{}", name.rsplit('.').next().unwrap_or(name)),
        Kind::Scalar(scalar) => scalar.go_name().to_owned(),
        Kind::Pointer(inner) => kind_name(inner),
        Kind::Map(inner) => format!("map[string]{}", kind_name(inner)),
        Kind::List(inner) => format!("[]{}", kind_name(inner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_gets_the_form_that_go_writes() {
        let mut slice = json!({
            "kind": "EndpointSlice", "addressType": "IPv4", "ports": [], "metadata": { "name": "e", "annotations": {} },
        });
        assert_eq!(
            prune(("EndpointSlice", "discovery.k8s.io"), &mut slice),
            Pruned::default()
        );
        let answer = json!({
            "kind": "EndpointSlice", "addressType": "IPv4", "ports": null, "endpoints": null, "metadata": { "name": "e" },
        });
        assert_eq!(slice, answer);
        let mut node = json!({
            "metadata": { "creationTimestamp": "2024-01-01T02:00:00.9+02:00" }, "spec": { "unschedulable": false },
            "status": { "capacity": { "cpu": 0.5, "memory": "1.5Gi" }, "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        prune(("Node", ""), &mut node);
        assert_eq!(
            node["metadata"]["creationTimestamp"],
            "2024-01-01T00:00:00Z"
        );
        assert_eq!(node["spec"], json!({}));
        assert_eq!(
            node["status"]["capacity"],
            json!({ "cpu": "500m", "memory": "1536Mi" })
        );
        assert_eq!(
            node["status"]["conditions"][0]["lastHeartbeatTime"],
            Value::Null
        );
    }

    #[test]
    fn unknown_fields_are_told() {
        let mut pod = json!({
            "metadata": { "x": 1 },
            "spec": { "foo": 1, "containers": [{ "name": "c", "bar": 2, "env": [{ "name": "a", "baz": {} }] }] },
        });
        let paths = [
            "metadata.x",
            "spec.containers[0].bar",
            "spec.containers[0].env[0].baz",
            "spec.foo",
        ];
        assert_eq!(prune(("Pod", ""), &mut pod).unknown, paths);
        let mut custom = json!({ "metadata": { "name": "n", "x": 1 }, "spec": { "foo": 1 } });
        assert_eq!(
            prune(("Pod", "example.com"), &mut custom).unknown,
            ["metadata.x"]
        );
        assert_eq!(custom["spec"], json!({ "foo": 1 }));
    }

    #[test]
    fn values_of_a_wrong_type_are_told_in_the_words_of_go() {
        let error = |spec: Value| {
            let mut pod = json!({ "spec": spec });
            prune(("Pod", ""), &mut pod).error.unwrap_or_default()
        };
        let of = "into Go struct field";
        assert_eq!(
            error(json!({ "containers": [{ "name": 5 }] })),
            format!(
                "json: cannot unmarshal number {of} Container.spec.containers.name of type string"
            )
        );
        assert_eq!(
            error(json!({ "containers": [{ "ports": [{ "containerPort": 1.5 }] }] })),
            format!(
                "json: cannot unmarshal number 1.5 {of} ContainerPort.spec.containers.ports.containerPort of type int32"
            )
        );
        // A type with a parser of its own ends everything.
        assert_eq!(
            error(
                json!({ "hostNetwork": "x", "containers": [{ "resources": { "limits": { "cpu": "1Mi1" } } }] })
            ),
            "unable to parse quantity's suffix"
        );
    }

    #[test]
    fn times_of_leases_have_six_digits() {
        let prune_time = |time: &str| {
            let mut lease = json!({ "spec": { "renewTime": time } });
            let pruned = prune(("Lease", "coordination.k8s.io"), &mut lease);
            pruned
                .error
                .ok_or_else(|| lease["spec"]["renewTime"].clone())
        };
        assert_eq!(
            prune_time("2024-01-01T02:00:00.123456+02:00"),
            Err("2024-01-01T00:00:00.123456Z".into())
        );
        let layout =
            "parsing time \"2024-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\":";
        assert_eq!(
            prune_time("2024-01-01T00:00:00Z"),
            Ok(format!("{layout} cannot parse \"Z\" as \".000000\""))
        );
    }
}
