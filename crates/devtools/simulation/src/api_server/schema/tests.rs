//! With the schemas of our kinds, and with texts of kube-apiserver 1.34.4.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/liqo/crds");

fn open_api(file: &Path) -> Value {
    let crd: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn schema(kind: &str) -> Schema {
    Schema::new(&open_api(&Path::new(CRDS).join(format!("{kind}.yaml"))))
}

fn texts(causes: &[Cause]) -> Vec<String> {
    causes.iter().map(ToString::to_string).collect()
}

fn rules(node: &Node) -> Vec<&Rule> {
    let inside = node.parts().flat_map(rules);
    node.rules.iter().chain(inside).collect()
}

#[test]
fn all_rules_and_patterns_of_our_kinds_compile() {
    let mut count = 0;
    for file in fs::read_dir(CRDS).unwrap() {
        let schema = Schema::new(&open_api(&file.unwrap().path()));
        let rules = rules(&schema.root);
        assert!(rules.iter().all(|rule| rule.compiles()));
        count += rules.len();
        assert!(
            patterns(&schema.root)
                .iter()
                .all(|pattern| pattern.regex.is_some() && means_the_same_in_go(&pattern.text))
        );
    }
    assert!(count > 40, "{count} rules");
}

/// Apart from `\s`, which `Pattern::new` translates.
fn means_the_same_in_go(pattern: &str) -> bool {
    let differs = [
        "\\d", "\\D", "\\S", "\\w", "\\W", "\\b", "[[", "&&", "~~", "--",
    ];
    !differs.iter().any(|text| pattern.contains(text))
}

/// A schema that begins to use another feature would be checked less strictly than by Kubernetes.
#[test]
fn our_kinds_use_no_feature_that_is_left_out() {
    for file in fs::read_dir(CRDS).unwrap() {
        check_features(&open_api(&file.unwrap().path()));
    }
}

fn check_features(schema: &Value) {
    const KNOWN: &str = "additionalProperties default description enum format items maxItems maxLength maxProperties maximum \
                         minItems minLength minimum multipleOf nullable pattern properties required title type \
                         x-kubernetes-int-or-string x-kubernetes-list-map-keys x-kubernetes-list-type \
                         x-kubernetes-preserve-unknown-fields x-kubernetes-validations";
    for (feature, value) in schema.as_object().unwrap() {
        assert!(
            KNOWN.split_whitespace().any(|known| known == feature),
            "{feature}"
        );
        match feature.as_str() {
            "properties" => value.as_object().unwrap().values().for_each(check_features),
            "items" | "additionalProperties" => check_features(value),
            "type" => assert!(TYPES.iter().any(|known| value == known), "{value}"),
            // kube-apiserver checks no format of numbers.
            "format" => assert!(
                value == "date-time" || schema["type"] == "integer",
                "{value}"
            ),
            "x-kubernetes-list-type" => assert_eq!(value, "map"),
            "x-kubernetes-validations" => {
                let mut fields = value
                    .as_array()
                    .unwrap()
                    .iter()
                    .flat_map(|rule| rule.as_object().unwrap().keys());
                assert!(
                    fields.all(|field| field == "rule" || field == "message"),
                    "{value}"
                );
            }
            _ => {}
        }
    }
}

fn patterns(node: &Node) -> Vec<&Pattern> {
    node.pattern
        .iter()
        .chain(node.parts().flat_map(patterns))
        .collect()
}

#[test]
fn a_policy_loses_unknown_fields_and_gets_defaults() {
    let schema = schema("sharing.liqo.io_peeringpolicies");
    let mut policy = json!({
        "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "PeeringPolicy", "metadata": {"name": "a", "unknown": 1}, "other": 1,
        "spec": {
            "provide": {"percentage": null, "caps": {"cpu": 1}, "a": 1, "approval": "Manual"},
            "peers": {"selector": {"matchExpressions": [{"key": "a", "operator": "In", "x": {}}]}, "clusterIDs": null},
        },
    });
    let removed = schema.prune(&mut policy);
    assert_eq!(
        removed,
        [
            "other",
            "spec.peers.selector.matchExpressions[0].x",
            "spec.provide.a"
        ]
    );
    assert_eq!(policy["metadata"], json!({"name": "a", "unknown": 1}));
    assert!(policy["spec"]["peers"].get("clusterIDs").is_none());
    schema.set_defaults(&mut policy);
    let spec = &policy["spec"];
    assert_eq!(spec["provide"]["percentage"], 90);
    assert_eq!(spec["provide"]["approval"], "Manual");
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["consume"]["accept"], "Automatic");
    assert!(spec["provide"].get("prices").is_none());
    assert!(policy.get("status").is_none());
    assert_eq!(schema.validate(&policy, None), []);
}

#[test]
fn a_policy_that_keeps_what_is_no_address_range_is_refused() {
    let schema = schema("sharing.liqo.io_peeringpolicies");
    let refused = |ranges: &[&str]| {
        let spec = json!({"priority": 0, "network": {"keptCIDRs": ranges}});
        let policy = json!({
            "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "PeeringPolicy", "metadata": {"name": "a"}, "spec": spec,
        });
        texts(&schema.validate(&policy, None))
    };
    assert!(refused(&["10.245.0.0/16", "fd00:10:245::/48"]).is_empty());
    let why = "spec.network.keptCIDRs[1]: Invalid value: \"string\": \
               not an address range such as 10.245.0.0/16 or fd00:10:245::/48";
    for range in ["10.245.0.0/33", "fd00::1::/48", "fd00:12345::/48"] {
        assert_eq!(refused(&["10.245.0.0/16", range]), [why], "{range}");
    }
}

#[test]
fn unknown_fields_stay_where_they_may() {
    let schema = schema("virtualkubelet.liqo.io_shadowpods");
    let mut pod = json!({"status": {"pod": {"phase": "Running", "a": [{"b": null}]}, "x": 1}});
    assert_eq!(schema.prune(&mut pod), ["status.x"]);
    assert_eq!(
        pod,
        json!({"status": {"pod": {"phase": "Running", "a": [{"b": null}]}}})
    );
}

fn shadow_pod(phase: &str) -> Value {
    json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod", "metadata": {"name": "a"},
        "spec": {"namespace": "default", "pod": "{}", "pool": "shared"}, "status": {"phase": phase},
    })
}

#[test]
fn a_terminal_phase_never_changes() {
    let schema = schema("virtualkubelet.liqo.io_shadowpods");
    let (pending, failed, lost) = (
        shadow_pod("Pending"),
        shadow_pod("Failed"),
        shadow_pod("Lost"),
    );
    let judge = |new, old| texts(&schema.validate_status(new, old));
    assert_eq!(schema.validate(&failed, None), []);
    assert!(judge(&failed, &pending).is_empty());
    assert!(judge(&failed, &failed).is_empty());
    assert_eq!(
        judge(&lost, &failed),
        ["<nil>: Invalid value: \"object\": a terminal phase never changes"]
    );
    let mut other = pending.clone();
    other["spec"]["pool"] = json!("other");
    let refused = "spec.pool: Invalid value: \"string\": the pool of a shadow pod does not change";
    assert_eq!(texts(&schema.validate(&other, Some(&pending))), [refused]);
    let refused = "status.phase: Unsupported value: \"x\": supported values: \
                   \"Pending\", \"Refused\", \"Created\", \"Succeeded\", \"Failed\", \"Lost\"";
    assert_eq!(judge(&shadow_pod("x"), &pending)[0], refused);
}

#[test]
fn what_is_refused_is_said_as_kube_apiserver_says_it() {
    let schema = schema("sharing.liqo.io_peeringpolicies");
    let mut policy = json!({"metadata": {"name": "a"}, "spec": {
        "priority": "high", "peers": {"clusterIDs": ["A"], "discoveredBy": ["LAN", "LAN", "DNS", "Fax"]},
        "consume": {"maxHops": 9, "budget": {"amount": "1"}, "maxResources": {"cpu": true, "memory": -1, "pods": "x"}},
        "provide": {"contract": {"meteringPeriodSeconds": 61}, "granularity": {"by": "NodeLabel"}},
    }});
    schema.set_defaults(&mut policy);
    let quantity =
        r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,18})?$";
    let pods = format!(
        "Invalid value: \"x\": spec.consume.maxResources.pods in body should match '{quantity}'"
    );
    let expected = [
        "spec.consume.budget.currency: Required value",
        "spec.consume.maxHops: Invalid value: 9: spec.consume.maxHops in body should be less than or equal to 8",
        "spec.consume.maxResources.cpu: Invalid value: \"boolean\": \
         spec.consume.maxResources.cpu in body must be of type integer,string: \"boolean\"",
        "spec.consume.maxResources.memory: Invalid value: -1: \
         spec.consume.maxResources.memory in body should be greater than or equal to 0",
        &format!("spec.consume.maxResources.pods: {pods}"),
        "spec.peers.clusterIDs[0]: Invalid value: \"A\": spec.peers.clusterIDs[0] in body should match '^[a-z2-7]{32}$'",
        "spec.peers.discoveredBy[3]: Unsupported value: \"Fax\": supported values: \"Manual\", \"LAN\", \"DNS\"",
        "spec.peers.discoveredBy: Too many: 4: must have at most 3 items",
        "spec.priority: Invalid value: \"string\": spec.priority in body must be of type integer: \"string\"",
        "spec.provide.contract.meteringPeriodSeconds: Invalid value: 61: \
         spec.provide.contract.meteringPeriodSeconds in body should be a multiple of 60",
        "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
         correct the existing errors to complete validation",
    ];
    let causes = schema.validate(&policy, None);
    assert_eq!(texts(&causes), expected);
    let reasons: Vec<_> = causes.iter().map(|cause| cause.kind.reason()).collect();
    assert_eq!(
        reasons[..3],
        [
            "FieldValueRequired",
            "FieldValueInvalid",
            "FieldValueTypeInvalid"
        ]
    );
    policy["spec"] = json!({"provide": {"granularity": {"by": "NodeLabel"}}});
    let refused = "spec.provide.granularity: Invalid value: \"object\": granularity by NodeLabel needs a label, and no other does";
    assert_eq!(texts(&schema.validate(&policy, None)), [refused]);
    policy["spec"] = json!({"provide": {"granularity": {"by": "Node", "peersMayChoose": true}}});
    assert!(texts(&schema.validate(&policy, None))[0].contains("leaves nothing to choose"));
    policy["spec"]["provide"]["granularity"] = json!({"by": "Cluster", "peersMayChoose": true});
    assert_eq!(schema.validate(&policy, None), []);
    policy["spec"]["provide"]["source"] = json!({"plugin": {"address": "p:1", "generation": "P3"}});
    assert!(texts(&schema.validate(&policy, None))[0].contains("the plugin names the pools"));
}

#[test]
fn what_an_update_does_not_change_is_not_refused() {
    let schema = schema("sharing.liqo.io_peeringpolicies");
    let old = json!({"metadata": {"name": "a"}, "spec": {
        "peers": {"clusterIDs": ["A"]}, "consume": {"maxHops": 9}, "provide": {"granularity": {"by": "NodeLabel"}},
    }});
    let mut new = old.clone();
    new["spec"]["priority"] = json!(1);
    assert_eq!(schema.validate(&new, Some(&old)), []);
    new["spec"]["peers"]["clusterIDs"] = json!(["A", "B"]);
    new["spec"]["consume"]["maxHops"] = json!(10);
    assert_eq!(schema.validate(&new, Some(&old)).len(), 3);
}

#[test]
fn lists_have_no_duplicates() {
    let schema = schema("discovery.liqo.io_resourcerequests");
    let now = "2026-01-02T03:04:05Z";
    let condition = |status: &str| json!({"type": "Answered", "status": status, "reason": "A", "message": "", "lastTransitionTime": now});
    let request = |conditions: &[Value]| json!({"metadata": {"name": "a"}, "spec": {}, "status": {"conditions": conditions}});
    let twice = request(&[condition("True"), condition("False")]);
    let duplicate = "status.conditions[1]: Duplicate value: {\"type\":\"Answered\"}";
    assert_eq!(texts(&schema.validate(&twice, None)), [duplicate]);
    assert_eq!(schema.validate(&twice, Some(&twice)), []);
    let judge = |object: &Value, old: &Value| texts(&schema.validate_status(object, old));
    assert_eq!(judge(&twice, &request(&[])), [duplicate]);
    let wrong = request(&[
        json!({"type": "Answered", "status": "Maybe", "lastTransitionTime": "now", "observedGeneration": 1.5}),
    ]);
    let causes = judge(&wrong, &request(&[]));
    let time = "status.conditions[0].lastTransitionTime: Invalid value: \"now\": \
                conditions[0].lastTransitionTime in body must be of type date-time: \"now\"";
    assert!(causes.contains(&time.to_owned()), "{causes:?}");
    // An item with the same key is the same item, wherever it is.
    let more = request(&[condition("True"), json!({"type": "B"})]);
    assert_eq!(
        judge(&request(&[json!({"type": "B"}), condition("True")]), &more),
        Vec::<String>::new()
    );
}

#[test]
fn rules_hold_in_items_and_in_maps() {
    let value = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "stays"}]});
    let schema = Schema::new(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                "type": "object", "properties": {"name": {"type": "string"}, "value": value},
            }},
            "map": {"type": "object", "additionalProperties": {
                "type": "string", "x-kubernetes-validations": [{"rule": "self != 'bad'"}],
            }},
        }}}}),
    );
    let judge = |spec: Value, old: Option<Value>| {
        let object = |spec| json!({"metadata": {"name": "a"}, "spec": spec});
        texts(&schema.validate(&object(spec), old.map(object).as_ref()))
    };
    let good = json!({"map": {"a": "a"}, "list": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]});
    assert!(judge(good.clone(), None).is_empty());
    let bad = json!({"map": {"a": "b", "c": "bad"}, "list": [{"name": "b", "value": "1"}, {"name": "c", "value": "2"}]});
    let expected = [
        "spec.list[0].value: Invalid value: \"string\": stays",
        "spec.map[c]: Invalid value: \"string\": failed rule: self != 'bad'",
    ];
    assert_eq!(judge(bad, Some(good)), expected);
}
