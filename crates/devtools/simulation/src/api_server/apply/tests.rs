use super::*;

fn manager(name: &'static str, minute: u8) -> (String, &'static str) {
    (format!("2026-01-01T00:{minute:02}:00Z"), name)
}

fn update(
    kind: &Lists,
    old: Option<&Value>,
    mut new: Value,
    (time, name): &(String, &str),
) -> Value {
    track_update(
        kind,
        old,
        &mut new,
        &Manager {
            name,
            subresource: "",
            api_version: "v1",
            time,
        },
    );
    new
}

fn applied(
    kind: &Lists,
    live: Option<&Value>,
    configuration: &Value,
    name: &str,
    force: bool,
) -> Result<Value, Refusal> {
    let manager = Manager {
        name,
        subresource: "",
        api_version: "v1",
        time: "2026-01-01T01:00:00Z",
    };
    apply(
        kind,
        live,
        configuration,
        &manager,
        &How {
            untouched: &[],
            is_forced: force,
        },
    )
}

/// The fields of a manager, and the time of its last write.
fn owned<'a>(object: &'a Value, name: &str) -> (&'a Value, Option<&'a str>) {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let entry = entries
        .iter()
        .find(|entry| entry["manager"] == name)
        .unwrap();
    (&entry["fieldsV1"], entry["time"].as_str())
}

fn config_map(data: &Value) -> Value {
    let metadata = json!({ "name": "x", "namespace": "n", "uid": "u" });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })
}

#[test]
fn who_creates_an_object_owns_its_fields() {
    let pods = Lists::of_built_in("", "Pod");
    let pod = json!({
        "metadata": { "name": "x", "labels": { "a": "1" }, "finalizers": ["f/1"] },
        "spec": { "containers": [{ "name": "a", "resources": {}, "ports": [{ "containerPort": 80, "protocol": "TCP" }] }] },
        "status": {},
    });
    let created = update(&pods, None, pod, &manager("m", 0));
    let port = json!({ ".": {}, "f:containerPort": {}, "f:protocol": {} });
    let ports = json!({ ".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": port });
    let container = json!({ ".": {}, "f:name": {}, "f:ports": ports, "f:resources": {} });
    let fields = json!({
        "f:metadata": { "f:finalizers": { ".": {}, "v:\"f/1\"": {} }, "f:labels": { ".": {}, "f:a": {} } },
        "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": container } },
    });
    assert_eq!(
        owned(&created, "m"),
        (&fields, Some("2026-01-01T00:00:00Z"))
    );
}

#[test]
fn an_update_takes_the_fields_that_it_changes() {
    let maps = Lists::of_built_in("", "ConfigMap");
    let first = update(
        &maps,
        None,
        config_map(&json!({ "a": "1", "b": "1", "c": "1" })),
        &manager("one", 0),
    );
    let second = update(
        &maps,
        Some(&first),
        config_map(&json!({ "a": "2", "b": "1" })),
        &manager("two", 1),
    );
    assert_eq!(
        owned(&second, "one"),
        (
            &json!({ "f:data": { ".": {}, "f:b": {} } }),
            Some("2026-01-01T00:00:00Z")
        )
    );
    assert_eq!(
        owned(&second, "two"),
        (
            &json!({ "f:data": { "f:a": {} } }),
            Some("2026-01-01T00:01:00Z")
        )
    );
    let third = update(
        &maps,
        Some(&second),
        config_map(&json!({ "a": "2", "b": "1" })),
        &manager("two", 2),
    );
    assert_eq!(
        third["metadata"]["managedFields"],
        second["metadata"]["managedFields"]
    );
}

#[test]
fn an_apply_conflicts_with_owners_of_other_values() {
    let maps = Lists::of_built_in("", "ConfigMap");
    let live = update(
        &maps,
        None,
        config_map(&json!({ "a": "1" })),
        &manager("one", 0),
    );
    let mut configuration = config_map(&json!({ "a": "2", "b": "1" }));
    let conflict = Refusal::Conflicts(vec![("\"one\" using v1".to_owned(), ".data.a".to_owned())]);
    assert_eq!(
        applied(&maps, Some(&live), &configuration, "two", false),
        Err(conflict)
    );
    let forced = applied(&maps, Some(&live), &configuration, "two", true).unwrap();
    assert_eq!(forced["data"], json!({ "a": "2", "b": "1" }));
    assert_eq!(owned(&forced, "one").0, &json!({ "f:data": {} }));
    configuration["data"] = json!({ "b": "1" });
    let removed = applied(&maps, Some(&forced), &configuration, "two", false).unwrap();
    assert_eq!(removed["data"], json!({ "b": "1" }));
}

#[test]
fn what_another_manager_applied_stays() {
    let maps = Lists::of_built_in("", "ConfigMap");
    let both = config_map(&json!({ "a": "1", "b": "1" }));
    let live = applied(&maps, None, &both, "one", false).unwrap();
    let live = applied(
        &maps,
        Some(&live),
        &config_map(&json!({ "a": "1" })),
        "two",
        false,
    )
    .unwrap();
    // The second apply changed nothing, so it has no time.
    assert_eq!(
        owned(&live, "two"),
        (&json!({ "f:data": { "f:a": {} } }), None)
    );
    let live = applied(&maps, Some(&live), &config_map(&Value::Null), "one", false).unwrap();
    assert_eq!(live["data"], json!({ "a": "1" }));
}

#[test]
fn an_apply_gives_fields_without_owner_to_a_manager_first() {
    let maps = Lists::of_built_in("", "ConfigMap");
    let live = config_map(&json!({ "a": "1" }));
    let conflict = Refusal::Conflicts(vec![(
        "\"before-first-apply\" using v1".to_owned(),
        ".data.a".to_owned(),
    )]);
    assert_eq!(
        applied(
            &maps,
            Some(&live),
            &config_map(&json!({ "a": "2" })),
            "one",
            false
        ),
        Err(conflict)
    );
    let untracked = update(
        &maps,
        Some(&live),
        config_map(&json!({ "a": "2" })),
        &manager("one", 0),
    );
    assert!(untracked["metadata"]["managedFields"].is_null());
}

#[test]
fn a_configuration_that_does_not_fit_is_refused() {
    let pods = Lists::of_built_in("", "Pod");
    let refused = |spec: Value| {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x", "namespace": "n" }, "spec": spec });
        match applied(&pods, None, &pod, "m", false) {
            Err(Refusal::Unfit(message)) => message,
            other => panic!("{other:?}"),
        }
    };
    let prefix = "failed to create typed patch object (n/x; /v1, Kind=Pod): .spec";
    let twice = refused(json!({ "containers": [{ "name": "a" }, { "name": "a" }] }));
    assert_eq!(
        twice,
        format!("{prefix}.containers: duplicate entries for key [name=\"a\"]")
    );
    assert_eq!(
        refused(json!({ "foo": 1 })),
        format!("{prefix}.foo: field not declared in schema")
    );
    assert_eq!(
        refused(json!({ "priority": "x" })),
        format!("{prefix}.priority: expected numeric (int or float), got string")
    );
}
