use k8s_openapi::api::core::v1::Toleration;
use liqo_byte_mutations::mutated_text;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::json::{items_at, text_at};
use crate::replica::{kind::ReplicaKind, name::replica_name};

fn keys<const N: usize>(keys: [&str; N]) -> BTreeSet<String> {
    keys.into_iter().map(str::to_owned).collect()
}

/// A pod as the home API server stores it, with one field changed.
fn local_pod(pointer: &str, value: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "web", "namespace": "demo", "uid": "home-uid", "labels": {"app": "web"}, "annotations": {"note": "x"}},
        "spec": {
            "containers": [{"name": "c", "image": "nginx:1", "volumeMounts": [
                {"name": "kube-api-access-abcde", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}, {"name": "tmp", "mountPath": "/tmp"}]}],
            "restartPolicy": "Always",
            "volumes": [
                {"name": "kube-api-access-abcde", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt"}}, {"downwardAPI": {"items": []}}]}},
                {"name": "tmp", "emptyDir": {}}]
        }
    });
    if let Some((parent, key)) = pointer.rsplit_once('/') {
        pod.pointer_mut(parent).unwrap()[key] = value;
    }
    pod
}

fn carried(pointer: &str, value: Value) -> Value {
    outgoing_pod(&local_pod(pointer, value), &keys(["zone"])).unwrap()
}

const IDENTITY: RemoteIdentity = RemoteIdentity {
    namespace: "demo-rome-abc123",
    name: "web",
    consumer: "rome-id",
    pool: "default",
    shadow_pod: "home-uid",
    home_namespace: "demo",
};

fn rules() -> ProviderRules {
    ProviderRules {
        advertised: keys(["zone"]),
        ..ProviderRules::default()
    }
}

fn remote(pointer: &str, value: Value) -> Value {
    remote_pod(&carried(pointer, value), &IDENTITY, &rules()).unwrap()
}

/// The refusal of both sides for a pod that must not travel; they must agree.
fn refused(pointer: &str, value: Value) -> &'static str {
    let pod = local_pod(pointer, value);
    let here = outgoing_pod(&pod, &keys([])).unwrap_err();
    let there = remote_pod(&pod, &IDENTITY, &rules()).unwrap_err();
    assert_eq!(here, there);
    here.reason
}

/// Both sides drop a field: the consumer does not send it, and the provider ignores it.
fn dropped(field: &str, value: &Value) {
    let pointer = format!("/spec/{field}");
    assert_eq!(
        carried(&pointer, value.clone()).pointer(&pointer),
        None,
        "{field} was sent"
    );
    let taken = remote_pod(&local_pod(&pointer, value.clone()), &IDENTITY, &rules()).unwrap();
    assert_ne!(taken.pointer(&pointer), Some(value), "{field} was taken");
}

#[test]
fn all_metadata_but_name_labels_and_annotations_is_dropped() {
    for (field, value) in [
        (
            "ownerReferences",
            json!([{"kind": "ReplicaSet", "name": "web", "uid": "u"}]),
        ),
        ("finalizers", json!(["batch.kubernetes.io/job-tracking"])),
        ("generateName", json!("web-")),
        ("namespace", json!("demo")),
        ("managedFields", json!([{}])),
    ] {
        let metadata = &carried(&format!("/metadata/{field}"), value)["metadata"];
        assert_eq!(
            metadata,
            &json!({"name": "web", "labels": {"app": "web"}, "annotations": {"note": "x"}}),
            "{field}"
        );
    }
    let mut hostile = carried("", json!(null));
    hostile["metadata"]["ownerReferences"] = json!([{"kind": "Node"}]);
    hostile["metadata"]["namespace"] = json!("kube-system");
    let remote = remote_pod(&hostile, &IDENTITY, &rules()).unwrap();
    assert_eq!(remote["metadata"].get("ownerReferences"), None);
    assert_eq!(remote["metadata"]["namespace"], "demo-rome-abc123");
}

#[test]
fn labels_and_annotations_of_liqo_never_travel() {
    let pod = carried(
        "/metadata/annotations",
        json!({"liqo.io/remote-pod-ip": "10.0.0.1", "x.liqo.io/y": "1", "note": "x"}),
    );
    assert_eq!(pod["metadata"]["annotations"], json!({"note": "x"}));
    let mut hostile = pod;
    hostile["metadata"]["labels"] = json!({"liqo.io/consumer-id": "somebody-else", "app": "web"});
    let remote = remote_pod(&hostile, &IDENTITY, &rules()).unwrap();
    assert_eq!(
        remote["metadata"]["labels"]["liqo.io/consumer-id"],
        "rome-id"
    );
}

#[test]
fn labels_and_annotations_that_the_policy_does_not_name_are_dropped_by_the_provider() {
    let mut sent = carried(
        "/metadata/annotations",
        json!({"mesh.example/inject": "true", "kubernetes.io/config.mirror": "m", "note": "x"}),
    );
    sent["metadata"]["labels"] = json!({"app": "web", "mesh.example/inject": "true"});
    let of = |rules: &ProviderRules| {
        let metadata = remote_pod(&sent, &IDENTITY, rules).unwrap()["metadata"].clone();
        let keys = |field: &str| {
            let keys = metadata[field]
                .as_object()
                .unwrap()
                .keys()
                .filter(|key| !is_liqo_key(key));
            keys.cloned().collect::<BTreeSet<String>>()
        };
        (keys("labels"), keys("annotations"))
    };
    assert_eq!(of(&rules()), (keys(["app"]), keys([])));
    let named = vec!["mesh.example/*".to_owned()];
    let open = ProviderRules {
        pod_labels: named.clone(),
        pod_annotations: named,
        ..rules()
    };
    assert_eq!(
        of(&open),
        (
            keys(["app", "mesh.example/inject"]),
            keys(["mesh.example/inject"])
        )
    );
}

#[test]
fn the_last_applied_configuration_is_not_carried() {
    let pod = carried(
        "/metadata/annotations",
        json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"}),
    );
    assert_eq!(pod["metadata"]["annotations"], json!({}));
}

#[test]
fn the_node_name_is_dropped() {
    dropped("nodeName", &json!("milan"));
}

#[test]
fn the_service_account_is_dropped() {
    dropped("serviceAccountName", &json!("admin"));
    dropped("serviceAccount", &json!("admin"));
}

#[test]
fn priority_is_dropped() {
    dropped("priority", &json!(2_000_001_000));
    dropped("priorityClassName", &json!("system-node-critical"));
    dropped("preemptionPolicy", &json!("PreemptLowerPriority"));
}

#[test]
fn the_scheduler_name_is_dropped() {
    dropped("schedulerName", &json!("mine"));
}

#[test]
fn runtime_class_and_overhead_are_dropped() {
    dropped("runtimeClassName", &json!("gvisor"));
    dropped("overhead", &json!({"cpu": "1"}));
}

#[test]
fn readiness_and_scheduling_gates_are_dropped() {
    dropped("readinessGates", &json!([{"conditionType": "lb"}]));
    dropped("schedulingGates", &json!([{"name": "wait"}]));
}

#[test]
fn topology_spread_over_home_nodes_is_dropped() {
    dropped(
        "topologySpreadConstraints",
        &json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}]),
    );
}

#[test]
fn ephemeral_containers_travel_without_injected_mounts_and_wait_until_the_remote_pod_exists() {
    let mounts = json!([{"name": "kube-api-access-abcde", "mountPath": "/x"}, {"name": "tmp", "mountPath": "/tmp"}]);
    let debug = json!([{"name": "debug", "image": "busybox", "targetContainerName": "c", "volumeMounts": mounts}]);
    let sent = carried("/spec/ephemeralContainers", debug);
    assert_eq!(
        sent["spec"]["ephemeralContainers"],
        json!([{"name": "debug", "image": "busybox", "targetContainerName": "c", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}])
    );
    assert_eq!(
        remote_pod(&sent, &IDENTITY, &rules()).unwrap()["spec"].get("ephemeralContainers"),
        None
    );
    let with_port = json!([{"name": "debug", "image": "busybox", "ports": [{"hostPort": 80}]}]);
    assert_eq!(refused("/spec/ephemeralContainers", with_port), "HostPort");
}

fn tolerations(list: Value) -> Vec<Toleration> {
    serde_json::from_value(list).unwrap()
}

/// Whether a pod keeps a toleration where the policy names one.
fn is_kept(asked: &Value, allowed: &Value) -> bool {
    let mut pod = carried("", json!(null));
    pod["spec"]["tolerations"] = json!([asked]);
    let rules = ProviderRules {
        tolerations: tolerations(json!([allowed])),
        ..rules()
    };
    remote_pod(&pod, &IDENTITY, &rules).unwrap()["spec"]
        .get("tolerations")
        .is_some()
}

#[test]
fn a_toleration_is_kept_if_it_tolerates_no_more_than_one_of_the_policy() {
    let (gpu, any) = (
        json!({"key": "gpu", "operator": "Exists"}),
        json!({"operator": "Exists"}),
    );
    let equal = json!({"key": "gpu", "value": "a100", "effect": "NoSchedule"});
    let minute =
        json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60});
    for (asked, allowed) in [
        (&equal, &equal),
        (
            &json!({"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}),
            &equal,
        ),
        (&equal, &gpu),
        (&gpu, &any),
        (&any, &any),
        (&minute, &gpu),
        (
            &json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 59}),
            &minute,
        ),
        (
            &json!({"key": "n", "operator": "Gt", "value": "5"}),
            &json!({"key": "n", "operator": "Gt", "value": "5"}),
        ),
    ] {
        assert!(is_kept(asked, allowed), "{asked} by {allowed}");
    }
    for (asked, allowed) in [
        (&gpu, &equal),
        (&any, &gpu),
        (&json!({"key": "gpu", "value": "a100"}), &equal),
        (
            &json!({"key": "gpu", "value": "h100", "effect": "NoSchedule"}),
            &equal,
        ),
        (&json!({"key": "fpga", "operator": "Exists"}), &gpu),
        (&gpu, &minute),
        (
            &json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
            &minute,
        ),
        (
            &json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 61}),
            &minute,
        ),
        (
            &json!({"key": "n", "operator": "Gt", "value": "4"}),
            &json!({"key": "n", "operator": "Gt", "value": "5"}),
        ),
        (
            &json!({"key": "gpu", "operator": "Exists", "brandNew": true}),
            &any,
        ),
        (&json!("gpu"), &any),
    ] {
        assert!(!is_kept(asked, allowed), "{asked} by {allowed}");
    }
}

#[test]
fn no_policy_opens_the_providers_own_virtual_nodes() {
    let ours = json!({"key": "virtual-node.liqo.io/not-allowed", "operator": "Exists"});
    assert!(!is_kept(&ours, &ours) && !is_kept(&ours, &json!({"operator": "Exists"})));
}

#[test]
fn tolerations_are_dropped_except_those_that_the_policy_allows() {
    let wanted = json!([
        {"key": "virtual-node.liqo.io/not-allowed", "operator": "Exists", "effect": "NoExecute"},
        {"operator": "Exists"},
        {"key": "gpu", "operator": "Exists"},
        {"key": "spot", "operator": "Exists"}]);
    let sent = carried("/spec/tolerations", wanted);
    assert_eq!(
        sent["spec"]["tolerations"].as_array().unwrap().len(),
        3,
        "all but our own are sent"
    );
    assert_eq!(
        remote_pod(&sent, &IDENTITY, &rules()).unwrap()["spec"].get("tolerations"),
        None
    );
    let rules = ProviderRules {
        tolerations: tolerations(json!([{"key": "gpu", "operator": "Exists"}])),
        ..rules()
    };
    let taken = remote_pod(&sent, &IDENTITY, &rules).unwrap();
    assert_eq!(
        taken["spec"]["tolerations"],
        json!([{"key": "gpu", "operator": "Exists"}])
    );
}

#[test]
fn the_node_selector_keeps_only_advertised_labels() {
    assert_eq!(
        remote("/spec/nodeSelector", json!({"zone": "a", "disk": "ssd"}))["spec"]["nodeSelector"],
        json!({"zone": "a"})
    );
    dropped("nodeSelector", &json!({"disk": "ssd"}));
}

#[test]
fn our_own_affinity_and_that_of_home_nodes_are_dropped() {
    dropped(
        "affinity",
        &json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "liqo.io/type", "operator": "In", "values": ["virtual-node"]}]}]}}}),
    );
    dropped(
        "affinity",
        &json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}}}),
    );
}

#[test]
fn affinity_between_pods_is_dropped() {
    dropped(
        "affinity",
        &json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}}),
    );
}

#[test]
fn node_affinity_keeps_only_advertised_labels() {
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let liqo = json!({"key": "liqo.io/type", "operator": "In", "values": ["virtual-node"]});
    let wanted = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone, liqo]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 5, "preference": {"matchExpressions": [zone]}}, {"weight": 6, "preference": {"matchExpressions": [liqo]}}]}});
    assert_eq!(
        remote("/spec/affinity", wanted)["spec"]["affinity"],
        json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": {"matchExpressions": [zone]}}]}})
    );
}

#[test]
fn an_alternative_that_asks_for_nothing_any_more_frees_the_whole_requirement() {
    dropped(
        "affinity",
        &json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}}}),
    );
}

#[test]
fn the_injected_api_access_is_dropped_with_its_mounts() {
    let pod = remote("", json!(null));
    assert_eq!(
        pod["spec"]["volumes"],
        json!([{"name": "tmp", "emptyDir": {}}])
    );
    assert_eq!(
        pod["spec"]["containers"][0]["volumeMounts"],
        json!([{"name": "tmp", "mountPath": "/tmp"}])
    );
}

#[test]
fn the_provider_switches_the_service_account_token_off() {
    assert_eq!(
        remote("/spec/automountServiceAccountToken", json!(true))["spec"]["automountServiceAccountToken"],
        false
    );
}

#[test]
fn the_provider_sets_priority_runtime_class_and_service_account_of_its_policy() {
    let rules = ProviderRules {
        priority_class: Some("tenants".into()),
        runtime_class: Some("gvisor".into()),
        service_account: Some("tenant".into()),
        ..rules()
    };
    let spec = &remote_pod(&carried("", json!(null)), &IDENTITY, &rules).unwrap()["spec"];
    assert_eq!(
        (
            &spec["priorityClassName"],
            &spec["runtimeClassName"],
            &spec["serviceAccountName"]
        ),
        (&json!("tenants"), &json!("gvisor"), &json!("tenant"))
    );
}

#[test]
fn the_provider_labels_the_pod_with_its_owner() {
    let pod = remote("", json!(null));
    assert_eq!(pod["metadata"]["name"], "web");
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"app": "web", "liqo.io/managed": "true", "liqo.io/consumer-id": "rome-id",
        "liqo.io/pool": "default", "liqo.io/shadow-pod": "home-uid", "liqo.io/home-namespace": "demo"})
    );
}

#[test]
fn containers_without_requests_get_explicit_ones() {
    let pod = remote(
        "/spec/initContainers",
        json!([{"name": "i", "image": "x", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}]),
    );
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "10m", "memory": "32Mi"})
    );
    assert_eq!(
        pod["spec"]["initContainers"][0]["resources"]["requests"],
        json!({"cpu": "2", "memory": "1Gi"})
    );
}

#[test]
fn a_limit_of_zero_is_none_and_makes_no_container_free() {
    let resources = |resources: Value| {
        let pod = remote(
            "/spec/initContainers",
            json!([{"name": "i", "image": "x", "resources": resources}]),
        );
        pod["spec"]["initContainers"][0]["resources"].clone()
    };
    let defaults = json!({"cpu": "10m", "memory": "32Mi"});
    for zero in [json!("0"), json!("0m"), json!("0Mi"), json!(0)] {
        let limits = json!({"cpu": zero, "memory": zero});
        let cleared = json!({"limits": {"memory": "256Mi"}, "requests": defaults});
        assert_eq!(resources(json!({"limits": limits})), cleared, "{zero}");
        // As the home API server stores it.
        assert_eq!(
            resources(json!({"limits": limits, "requests": limits})),
            cleared,
            "{zero}"
        );
        let pod = remote("/spec/resources", json!({"limits": limits}));
        assert_eq!(pod["spec"]["resources"]["limits"], json!({}), "{zero}");
        assert_eq!(
            pod["spec"]["containers"][0]["resources"]["requests"], defaults,
            "{zero}"
        );
    }
    let half = resources(
        json!({"limits": {"cpu": "0", "memory": "1Gi", "example.com/gpu": "0"}, "requests": {"memory": "0"}}),
    );
    assert_eq!(
        half["limits"],
        json!({"memory": "1Gi", "example.com/gpu": "0"})
    );
    assert_eq!(
        half["requests"],
        json!({"cpu": "10m", "memory": "128Mi"}),
        "a request of zero is raised to an eighth of the limit"
    );
}

#[test]
fn requests_of_the_whole_pod_stay_valid() {
    let pod = remote("/spec/resources", json!({"requests": {"cpu": "15m"}}));
    assert_eq!(
        pod["spec"]["resources"],
        json!({"requests": {"cpu": "15m"}})
    );
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "0", "memory": "32Mi"})
    );
    let pod = remote("/spec/resources", json!({"limits": {"memory": "1Gi"}}));
    assert_eq!(
        pod["spec"]["resources"]["requests"],
        json!({"memory": "1Gi"})
    );
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "10m", "memory": "0"})
    );
}

#[test]
fn a_pod_that_may_end_keeps_its_final_status_until_it_is_recorded() {
    assert_eq!(
        remote("/spec/restartPolicy", json!("Never"))["metadata"]["finalizers"],
        json!(["liqo.io/final-status"])
    );
    assert_eq!(
        remote("/spec/restartPolicy", json!("OnFailure"))["metadata"]["finalizers"],
        json!(["liqo.io/final-status"])
    );
    assert_eq!(
        remote("/spec/restartPolicy", json!("Always"))["metadata"].get("finalizers"),
        None
    );
}

#[test]
fn a_host_path_is_refused() {
    assert_eq!(
        refused(
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}])
        ),
        "HostPath"
    );
}

#[test]
fn host_namespaces_are_refused() {
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(
            refused(&format!("/spec/{field}"), json!(true)),
            "HostNamespace"
        );
        dropped(field, &json!(false));
    }
}

#[test]
fn a_user_namespace_of_its_own_travels_and_the_hosts_is_the_default() {
    assert_eq!(
        remote("/spec/hostUsers", json!(false))["spec"]["hostUsers"],
        false
    );
    dropped("hostUsers", &json!(true));
}

#[test]
fn a_host_port_is_refused() {
    assert_eq!(
        refused(
            "/spec/containers",
            json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}])
        ),
        "HostPort"
    );
}

#[test]
fn a_probe_or_hook_that_names_a_host_is_refused() {
    for user in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for action in ["httpGet", "tcpSocket"] {
            let container = |host: &str| json!([{"name": "c", "image": "i", user: {action: {"port": 80, "host": host}}}]);
            assert_eq!(
                refused("/spec/containers", container("127.0.0.1")),
                "ProbeHost",
                "{user} {action}"
            );
            assert_eq!(
                refused("/spec/initContainers", container("node.internal")),
                "ProbeHost",
                "{user} {action}"
            );
            assert!(outgoing_pod(&local_pod("/spec/containers", container("")), &keys([])).is_ok());
        }
    }
    for hook in ["postStart", "preStop"] {
        let containers = json!([{"name": "c", "lifecycle": {hook: {"httpGet": {"port": 80, "host": "10.0.0.1"}}}}]);
        assert_eq!(
            refused("/spec/containers", containers),
            "ProbeHost",
            "{hook}"
        );
    }
    let header = json!([{"name": "c", "image": "i",
        "livenessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "Host", "value": "shop.example"}]}}}]);
    assert!(
        outgoing_pod(&local_pod("/spec/containers", header), &keys([])).is_ok(),
        "a header is sent to the pod"
    );
}

#[test]
fn an_image_that_the_policy_does_not_allow_is_refused_at_creation_and_left_out_of_a_change() {
    let open = rules();
    let rules = ProviderRules {
        images: Some(vec!["docker.io/library".into()]),
        policy: "partners".into(),
        ..rules()
    };
    let pod = |image: &str| carried("/spec/containers", json!([{"name": "c", "image": image}]));
    assert_eq!(
        remote_pod(&pod("example.com/private"), &IDENTITY, &rules)
            .unwrap_err()
            .reason,
        "ImageNotAllowed"
    );
    let volume = carried(
        "/spec/volumes",
        json!([{"name": "v", "image": {"reference": "example.com/private"}}]),
    );
    assert_eq!(
        remote_pod(&volume, &IDENTITY, &rules).unwrap_err().reason,
        "ImageNotAllowed"
    );
    let mut live = remote_pod(&pod("nginx:1"), &IDENTITY, &rules).unwrap();
    let patch = remote_patch(&pod("example.com/private"), &live, &rules, true).unwrap();
    assert_eq!(patch.get("spec"), None, "{patch}");
    json_patch::merge(&mut live, &patch);
    let patch = remote_patch(&pod("example.com/private"), &live, &open, true).unwrap();
    assert_eq!(
        patch["spec"]["containers"][0]["image"], "example.com/private",
        "the policy allows it now"
    );
    let patch = remote_patch(&pod("nginx:2"), &live, &rules, true).unwrap();
    assert_eq!(patch["spec"]["containers"][0]["image"], "nginx:2");
}

#[test]
fn a_policy_can_make_nodes_pull_every_image_and_leave_out_the_hardening() {
    let container = |rules: &ProviderRules| {
        remote_pod(&carried("", json!(null)), &IDENTITY, rules).unwrap()["spec"]["containers"][0]
            .clone()
    };
    assert_eq!(container(&rules()).get("imagePullPolicy"), None);
    assert_eq!(
        container(&rules())["securityContext"],
        json!({"capabilities": {"drop": ["NET_RAW"]}})
    );
    let other = container(&ProviderRules {
        always_pull_images: true,
        hardened: false,
        ..rules()
    });
    assert_eq!(other["imagePullPolicy"], "Always");
    assert_eq!(other.get("securityContext"), None);
}

#[test]
fn a_persistent_volume_claim_is_refused() {
    assert_eq!(
        refused(
            "/spec/volumes",
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
        ),
        "PersistentVolumeClaim"
    );
    assert_eq!(
        refused(
            "/spec/volumes",
            json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}])
        ),
        "PersistentVolumeClaim"
    );
}

#[test]
fn a_volume_type_that_is_not_on_the_list_is_refused_by_name() {
    for kind in ["csi", "nfs", "gitRepo", "somethingNew"] {
        assert_eq!(
            refused("/spec/volumes", json!([{"name": "v", kind: {}}])),
            "VolumeType"
        );
    }
    let refusal = outgoing_pod(
        &local_pod("/spec/volumes", json!([{"name": "v", "nfs": {}}])),
        &keys([]),
    )
    .unwrap_err();
    assert!(
        refusal.message.contains("volume v is of type nfs"),
        "{refusal}"
    );
}

#[test]
fn a_projected_token_is_refused() {
    let volume = |source: Value| json!([{"name": "mine", "projected": {"sources": [source]}}]);
    assert_eq!(
        refused(
            "/spec/volumes",
            volume(json!({"serviceAccountToken": {"path": "t"}}))
        ),
        "TokenProjection"
    );
    assert_eq!(
        refused("/spec/volumes", volume(json!({"clusterTrustBundle": {}}))),
        "VolumeType"
    );
}

#[test]
fn resource_claims_are_refused() {
    assert_eq!(
        refused("/spec/resourceClaims", json!([{"name": "gpu"}])),
        "ResourceClaims"
    );
    assert_eq!(
        refused(
            "/spec/containers",
            json!([{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}])
        ),
        "ResourceClaims"
    );
    dropped("resourceClaims", &json!([]));
}

#[test]
fn an_unknown_field_of_the_pod_spec_is_refused_by_name() {
    assert_eq!(refused("/spec/hostMagic", json!({})), "UnknownField");
    let refusal = outgoing_pod(&local_pod("/spec/hostMagic", json!({})), &keys([])).unwrap_err();
    assert!(refusal.message.contains("spec.hostMagic"), "{refusal}");
}

#[test]
fn unknown_fields_inside_containers_survive() {
    let containers = json!([{"name": "c", "image": "x", "fromTheFuture": {"deep": [1, 2]}}]);
    assert_eq!(
        remote("/spec/containers", containers)["spec"]["containers"][0]["fromTheFuture"],
        json!({"deep": [1, 2]})
    );
}

#[test]
fn safe_fields_travel_unchanged() {
    for (field, value) in [
        ("activeDeadlineSeconds", json!(60)),
        (
            "dnsConfig",
            json!({"options": [{"name": "ndots", "value": "2"}]}),
        ),
        ("dnsPolicy", json!("Default")),
        ("enableServiceLinks", json!(false)),
        (
            "hostAliases",
            json!([{"ip": "10.0.0.9", "hostnames": ["db"]}]),
        ),
        ("hostname", json!("web-0")),
        ("os", json!({"name": "linux"})),
        (
            "securityContext",
            json!({"runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}),
        ),
        ("setHostnameAsFQDN", json!(true)),
        ("shareProcessNamespace", json!(true)),
        ("subdomain", json!("web")),
        ("terminationGracePeriodSeconds", json!(7)),
    ] {
        assert_eq!(
            remote(&format!("/spec/{field}"), value.clone())["spec"][field],
            value,
            "{field}"
        );
    }
}

#[test]
fn a_volume_type_that_the_policy_does_not_name_is_refused_with_type_and_policy() {
    let pod = carried(
        "/spec/volumes",
        json!([{"name": "a", "emptyDir": {}}, {"name": "b", "secret": {"secretName": "s"}}]),
    );
    let rules = |types: BTreeSet<String>| ProviderRules {
        volume_types: types,
        policy: "partners".into(),
        ..rules()
    };
    assert!(remote_pod(&pod, &IDENTITY, &rules(keys(["emptyDir", "secret"]))).is_ok());
    let refusal = remote_pod(&pod, &IDENTITY, &rules(keys(["configMap", "emptyDir"]))).unwrap_err();
    assert_eq!(refusal.reason, "VolumeType");
    for words in [
        "volume b",
        "type secret",
        "PeeringPolicy partners",
        "configMap, emptyDir",
    ] {
        assert!(refusal.message.contains(words), "{refusal}");
    }
    let refusal = remote_pod(&pod, &IDENTITY, &rules(keys([]))).unwrap_err();
    assert!(
        refusal.message.contains("type emptyDir") && refusal.message.contains("it allows none"),
        "{refusal}"
    );
}

#[test]
fn the_policy_does_not_open_more_volume_types_than_can_travel() {
    let hostile = local_pod(
        "/spec/volumes",
        json!([{"name": "v", "hostPath": {"path": "/"}}]),
    );
    let rules = ProviderRules {
        volume_types: keys(["hostPath"]),
        ..rules()
    };
    assert_eq!(
        remote_pod(&hostile, &IDENTITY, &rules).unwrap_err().reason,
        "HostPath"
    );
}

#[test]
fn a_pod_that_needs_an_object_of_a_kind_that_is_not_reflected_is_refused() {
    let with = |optional: bool| {
        let reference = json!({"name": "login", "key": "k", "optional": optional});
        carried(
            "/spec/containers",
            json!([{"name": "c", "image": "i", "env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}]}]),
        )
    };
    let only_config_maps = ProviderRules {
        reflected_kinds: vec![ReflectedKind::ConfigMap],
        policy: "partners".into(),
        ..rules()
    };
    assert!(remote_pod(&with(false), &IDENTITY, &rules()).is_ok());
    assert!(
        remote_pod(&with(true), &IDENTITY, &only_config_maps).is_ok(),
        "it starts without"
    );
    let refusal = remote_pod(&with(false), &IDENTITY, &only_config_maps).unwrap_err();
    assert_eq!(refusal.reason, "KindNotAllowed");
    for words in ["Secret login", "PeeringPolicy partners"] {
        assert!(refusal.message.contains(words), "{refusal}");
    }
}

#[test]
fn the_classes_of_the_policy_are_set_and_those_of_the_pod_are_not() {
    let mut hostile = carried("", json!(null));
    hostile["spec"]["priorityClassName"] = "system-node-critical".into();
    hostile["spec"]["runtimeClassName"] = "runc".into();
    let rules = ProviderRules {
        priority_class: Some("guests".into()),
        runtime_class: Some("sandbox".into()),
        ..rules()
    };
    let spec = remote_pod(&hostile, &IDENTITY, &rules).unwrap()["spec"].clone();
    assert_eq!(
        (&spec["priorityClassName"], &spec["runtimeClassName"]),
        (&json!("guests"), &json!("sandbox"))
    );
}

#[test]
fn allowed_volumes_travel() {
    let volumes = |config_map: &str, secret: &str| {
        json!([{"name": "a", "configMap": {"name": config_map}}, {"name": "b", "secret": {"secretName": secret}},
            {"name": "d", "downwardAPI": {}}, {"name": "e", "projected": {"sources": [{"secret": {"name": secret}}]}},
            {"name": "f", "image": {"reference": "r"}}])
    };
    let (config_map, secret) = (
        replica_name(ReplicaKind::ConfigMap, "c"),
        replica_name(ReplicaKind::Secret, "s"),
    );
    assert_eq!(
        carried("/spec/volumes", volumes("c", "s"))["spec"]["volumes"],
        volumes("c", "s"),
        "home says what it says"
    );
    assert_eq!(
        remote("/spec/volumes", volumes("c", "s"))["spec"]["volumes"],
        volumes(&config_map, &secret)
    );
}

/// Attacks: whatever a consumer writes into a pod, no reference of the remote pod is what it wrote.
#[test]
fn a_remote_pod_names_nothing_that_its_consumer_wrote() {
    // Among them names that Liqo itself gave to a replica, and those of objects that every cluster
    // has.
    let derived = replica_name(ReplicaKind::Secret, "registry");
    for named in [
        "registry",
        "kube-root-ca.crt",
        "liqo-api-server-home-uid",
        "../registry",
        derived.as_str(),
    ] {
        let reference = json!({"name": named, "key": "k", "optional": true});
        let container = json!({"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": named}}, {"configMapRef": {"name": named}}],
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}, {"name": "B", "valueFrom": {"configMapKeyRef": reference}}]});
        let mut hostile = local_pod("/spec/containers", json!([container]));
        hostile["spec"]["initContainers"] = json!([container]);
        hostile["spec"]["imagePullSecrets"] = json!([{"name": named}]);
        hostile["spec"]["volumes"] = json!([{"name": "a", "secret": {"secretName": named}}, {"name": "b", "configMap": {"name": named}},
            {"name": "p", "projected": {"sources": [{"secret": {"name": named}}, {"configMap": {"name": named}}]}}]);
        let remote = remote_pod(&hostile, &IDENTITY, &rules()).unwrap();
        let (secret, config_map) = (
            replica_name(ReplicaKind::Secret, named),
            replica_name(ReplicaKind::ConfigMap, named),
        );
        let found = references::referenced_objects(&remote);
        assert_eq!(
            (found.secrets, found.config_maps),
            ([secret.clone()].into(), [config_map].into()),
            "{named}"
        );
        assert!(
            !remote.to_string().contains(&json!(named).to_string()),
            "{named}"
        );
        let added = ephemeral_container(&hostile, &container, &rules()).unwrap();
        assert!(
            !added.to_string().contains(&json!(named).to_string())
                && added.to_string().contains(&secret),
            "{named}"
        );
    }
}

#[test]
fn what_a_provider_itself_gives_a_pod_is_not_renamed() {
    // Its API server adds the image pull secrets of the namespace's account to a pod that has none.
    let remote = remote("", json!(null));
    assert_eq!(remote.pointer("/spec/imagePullSecrets"), None);
    assert_eq!(
        references::referenced_objects(&remote),
        references::PodReferences::default()
    );
}

#[test]
fn variables_come_from_known_sources_only() {
    let from = |field: &str, value: Value| json!([{"name": "c", "image": "i", field: value}]);
    let known = json!([{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}]);
    assert!(
        outgoing_pod(
            &local_pod("/spec/containers", from("env", known)),
            &keys([])
        )
        .is_ok()
    );
    for field in ["containers", "initContainers", "ephemeralContainers"] {
        let pointer = format!("/spec/{field}");
        let unknown = json!([{"name": "A", "valueFrom": {"vaultRef": {"name": "registry"}}}]);
        assert_eq!(refused(&pointer, from("env", unknown)), "UnknownField");
        assert_eq!(
            refused(
                &pointer,
                from("envFrom", json!([{"vaultRef": {"name": "registry"}}]))
            ),
            "UnknownField"
        );
    }
}

#[test]
fn a_pod_of_a_strange_shape_is_refused() {
    assert_eq!(
        outgoing_pod(&json!({"metadata": {}}), &keys([]))
            .unwrap_err()
            .reason,
        "Malformed"
    );
    assert_eq!(refused("/spec/containers", json!("none")), "Malformed");
    assert_eq!(refused("/spec/volumes", json!({})), "Malformed");
}

#[test]
fn nothing_is_patched_when_nothing_changed() {
    assert_eq!(
        remote_patch(
            &carried("", json!(null)),
            &remote("", json!(null)),
            &rules(),
            true
        ),
        None
    );
}

#[test]
fn labels_that_changed_came_or_went_are_patched_and_those_of_others_stay() {
    let mut live = remote("/metadata/labels", json!({"app": "web", "old": "1"}));
    live["metadata"]["labels"]["providers-own"] = json!("x");
    let patch = remote_patch(
        &carried("/metadata/labels", json!({"app": "api", "new": "2"})),
        &live,
        &rules(),
        true,
    )
    .unwrap();
    assert_eq!(
        patch["metadata"]["labels"],
        json!({"app": "api", "new": "2", "old": null})
    );
    json_patch::merge(&mut live, &patch);
    assert_eq!(live["metadata"]["labels"]["providers-own"], "x");
    assert_eq!(live["metadata"]["labels"]["liqo.io/consumer-id"], "rome-id");
    assert_eq!(
        remote_patch(
            &carried("/metadata/labels", json!({"app": "api", "new": "2"})),
            &live,
            &rules(),
            true
        ),
        None
    );
}

#[test]
fn a_hostile_record_cannot_remove_our_labels() {
    let mut live = remote("", json!(null));
    live["metadata"]["annotations"]["liqo.io/travelled"] =
        json!(r#"{"labels":["liqo.io/consumer-id"]}"#);
    let patch = remote_patch(&carried("", json!(null)), &live, &rules(), true).unwrap();
    assert_eq!(patch["metadata"].get("labels"), None);
}

#[test]
fn a_new_image_is_patched_and_one_that_the_provider_rewrote_is_left() {
    let mut live = remote("", json!(null));
    live["spec"]["containers"][0]["image"] = json!("mirror.local/nginx:1");
    assert_eq!(
        remote_patch(&carried("", json!(null)), &live, &rules(), true),
        None
    );
    let changed = carried(
        "/spec/containers",
        json!([{"name": "c", "image": "nginx:2"}, {"name": "unknown", "image": "y"}]),
    );
    let patch = remote_patch(&changed, &live, &rules(), true).unwrap();
    assert_eq!(
        patch["spec"],
        json!({"containers": [{"name": "c", "image": "nginx:2"}]})
    );
}

#[test]
fn a_new_deadline_is_patched() {
    let patch = remote_patch(
        &carried("/spec/activeDeadlineSeconds", json!(9)),
        &remote("", json!(null)),
        &rules(),
        true,
    )
    .unwrap();
    assert_eq!(patch, json!({"spec": {"activeDeadlineSeconds": 9}}));
}

#[test]
fn a_pod_stays_on_the_nodes_of_its_pool_whatever_it_asks_for_itself() {
    let east = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]});
    let node =
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]});
    let confined = |affinity: Option<Value>| {
        let mut spec = serde_json::Map::new();
        spec.extend(affinity.map(|affinity| ("affinity".to_owned(), affinity)));
        crate::pod::carry::placement::confine_to_nodes(&mut spec, &[east.clone(), node.clone()]);
        spec["affinity"].clone()
    };
    let required = |terms: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    assert_eq!(confined(None), required(json!([east, node])));
    let arch = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]});
    let own = required(json!([{"matchExpressions": [arch]}]));
    let expected = required(json!([
        {"matchExpressions": [arch, east["matchExpressions"][0]]},
        {"matchExpressions": [arch], "matchFields": node["matchFields"]},
    ]));
    assert_eq!(confined(Some(own)), expected);
    let mut spec = serde_json::Map::new();
    crate::pod::carry::placement::confine_to_nodes(&mut spec, &[]);
    assert!(spec.is_empty());
}

/// A pod that reads the annotation `go`, with these annotations.
fn annotated(annotations: Value) -> Value {
    let mut pod = local_pod("/metadata/annotations", annotations);
    let go = json!([{"name": "GO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['go']"}}}]);
    pod["spec"]["containers"][0]["env"] = go;
    pod
}

#[test]
fn annotations_that_the_pod_does_not_read_stay_here_when_it_is_too_long_with_them_the_longest_first()
 {
    let annotations =
        |pod: &Value| outgoing_pod(pod, &keys([])).unwrap()["metadata"]["annotations"].clone();
    let state = "x".repeat(120 * 1024);
    assert_eq!(
        annotations(&annotated(json!({"state": state, "note": "x"}))),
        json!({"note": "x"})
    );
    assert_eq!(
        annotations(&annotated(
            json!({"state": state, "note": "x", "go": "READY"})
        )),
        json!({"note": "x", "go": "READY"})
    );
    let (half, third) = ("x".repeat(40 * 1024), "<".repeat(8 * 1024));
    let several = json!({"a": half, "b": third, "note": "x"});
    assert_eq!(
        annotations(&annotated(several)),
        json!({"a": half, "note": "x"}),
        "what is escaped is longer than it looks"
    );
    let fits = json!({"a": half, "note": "x"});
    assert_eq!(annotations(&annotated(fits.clone())), fits);
    let many: Map<String, Value> = (0..12_000)
        .map(|number| (format!("a{number}"), "".into()))
        .collect();
    assert!(
        annotations(&annotated(many.into()))
            .as_object()
            .unwrap()
            .len()
            > 1000
    );
    let profile = "container.apparmor.security.beta.kubernetes.io/c";
    assert_eq!(
        annotations(&annotated(
            json!({"state": state, profile: "runtime/default"})
        )),
        json!({profile: "runtime/default"})
    );
}

#[test]
fn annotations_that_the_pod_reads_count_whether_one_by_one_or_all_together() {
    let state = "x".repeat(120 * 1024);
    let refusal = outgoing_pod(&annotated(json!({"go": state})), &keys([])).unwrap_err();
    assert_eq!(refusal.reason, "TooLarge");
    let mut all = annotated(json!({"state": state}));
    let items = json!([{"path": "all", "fieldRef": {"fieldPath": "metadata.annotations"}}]);
    all["spec"]["volumes"][1] = json!({"name": "info", "downwardAPI": {"items": items}});
    assert_eq!(
        outgoing_pod(&all, &keys([])).unwrap_err().reason,
        "TooLarge"
    );
}

#[test]
fn what_can_travel_of_a_refused_change_does() {
    let part = |pod: &Value| {
        outgoing_pod(pod, &keys([])).unwrap_err();
        outgoing_part(pod, &keys([])).unwrap()
    };
    let bogus = annotated(json!({"liqo.io/api-server": "bogus", "go": "READY"}));
    let valid = annotated(json!({"liqo.io/api-server": "none", "go": "READY"}));
    let whole = OutgoingPart {
        pod: outgoing_pod(&valid, &keys([])).unwrap(),
        unchanged: keys([]),
    };
    assert_eq!(part(&bogus), whole);

    let long = part(&annotated(
        json!({"go": "x".repeat(120 * 1024), "note": "y", "liqo.io/api-server": "bogus"}),
    ));
    assert_eq!(
        (&long.pod["metadata"]["annotations"], &long.unchanged),
        (&json!({"note": "y"}), &keys(["go"]))
    );

    let mut debugged = annotated(json!({"go": "READY"}));
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "good", "image": "b"}, {"name": "bad", "image": "b", "ports": [{"containerPort": 1, "hostPort": 1}]}]);
    assert_eq!(
        part(&debugged).pod["spec"]["ephemeralContainers"],
        json!([{"name": "good", "image": "b"}])
    );

    let labels: Map<String, Value> = (0..2000)
        .map(|number| (format!("{number:050}"), "x".into()))
        .collect();
    let mut labelled = annotated(json!({"go": "READY"}));
    labelled["metadata"]["labels"] = labels.into();
    assert_eq!(
        outgoing_part(&labelled, &keys([])),
        None,
        "nobody can say which of them matter"
    );
}

#[test]
fn a_pod_that_is_too_large_stays_at_home_with_a_reason() {
    let pod = |bytes: usize| {
        let container = json!({"name": "c", "image": "i", "args": ["x".repeat(bytes)]});
        let pod = json!({"metadata": {"namespace": "demo", "name": "web"}, "spec": {"containers": [container]}});
        outgoing_pod(&pod, &BTreeSet::new()).map(drop)
    };
    assert_eq!(pod(64 * 1024), Ok(()));
    let refusal = pod(80 * 1024).unwrap_err();
    assert_eq!(refusal.reason, "TooLarge");
    assert!(
        refusal
            .message
            .contains("bytes travel; move what is long into a ConfigMap"),
        "{}",
        refusal.message
    );
}

/// Texts of pods as a hostile consumer writes them: with fields that must not arrive.
fn hostile_pods() -> impl Strategy<Value = String> {
    let fields = [
        ("/spec/hostNetwork", json!(true)),
        ("/spec/hostPID", json!(true)),
        ("/spec/nodeName", json!("node-1")),
        ("/spec/nodeSelector", json!({ "zone": "a" })),
        ("/spec/serviceAccountName", json!("admin")),
        ("/spec/priority", json!(2_000_000_000)),
        ("/spec/tolerations", json!([{ "operator": "Exists" }])),
        ("/spec/restartPolicy", json!("Never")),
        (
            "/spec/initContainers",
            json!([{ "name": "i", "image": "busybox", "resources": { "requests": { "cpu": "1e999" } } }]),
        ),
        (
            "/spec/ephemeralContainers",
            json!([{ "name": "e", "image": "busybox" }]),
        ),
        ("/spec/securityContext", json!({ "runAsUser": 0 })),
        (
            "/spec/volumes",
            json!([{ "name": "tmp", "hostPath": { "path": "/" } }]),
        ),
        (
            "/spec/volumes",
            json!([{ "name": "tmp", "emptyDir": { "sizeLimit": "-1" } }]),
        ),
        (
            "/spec/containers",
            json!([{ "name": "c", "image": "nginx", "resources": { "limits": { "memory": -1 } } }]),
        ),
        (
            "/spec/containers",
            json!([{ "name": "c", "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }] }]),
        ),
        (
            "/spec/containers",
            json!([{ "name": "c", "livenessProbe": { "httpGet": { "host": "127.0.0.1", "port": 10250 } } }]),
        ),
        (
            "/spec/containers",
            json!([{ "name": "c", "envFrom": [{ "secretRef": { "name": "registry", "optional": true } }] }]),
        ),
        (
            "/spec/volumes",
            json!([{ "name": "v", "projected": { "sources": [{ "secret": { "name": "registry" } }] } }]),
        ),
        ("/spec/imagePullSecrets", json!([{ "name": "registry" }])),
        (
            "/metadata/labels",
            json!({ "liqo.io/consumer-id": "other", "app": "web" }),
        ),
        (
            "/metadata/annotations",
            json!({ "k8s.v1.cni.cncf.io/networks": "host" }),
        ),
    ];
    prop::collection::vec(prop::sample::select(fields.to_vec()), 0..4).prop_map(|fields| {
        let mut pod = local_pod("", Value::Null);
        for (pointer, value) in fields {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[key] = value;
        }
        pod.to_string()
    })
}

proptest! {
    #[test]
    fn a_hostile_pod_is_refused_or_gets_only_what_the_provider_gives(text in prop_oneof![hostile_pods(), mutated_text(hostile_pods())]) {
        let Ok(carried) = record_text::parse_object(&text, MAX_POD_LEN) else { return Ok(()) };
        // What the consumer's side does with a pod of its own cluster must be as safe.
        let _ = outgoing_pod(&carried, &keys(["zone"]));
        let Ok(pod) = remote_pod(&carried, &IDENTITY, &rules()) else { return Ok(()) };
        let spec = &pod["spec"];
        for field in ["hostNetwork", "hostPID", "hostIPC", "nodeName", "priority", "serviceAccountName", "ephemeralContainers"] {
            prop_assert!(matches!(spec.get(field), None | Some(Value::Null | Value::Bool(false))), "{} in {}", field, spec);
        }
        prop_assert_eq!(&pod["metadata"]["namespace"], IDENTITY.namespace);
        prop_assert_eq!(&pod["metadata"]["labels"]["liqo.io/consumer-id"], IDENTITY.consumer);
        prop_assert!(items_at(spec, "/volumes").iter().all(|volume| volume.get("hostPath").is_none()), "{}", spec);
        prop_assert!(items_at(spec, "/tolerations").iter().all(|one| one.get("key").is_some()), "{}", spec);
        prop_assert!(pod.to_string().len() <= 4 * text.len() + 8192, "{} bytes of {}", pod.to_string().len(), text.len());
        let (wanted, named) = (references::referenced_objects(&carried), references::referenced_objects(&pod));
        let replicas: BTreeSet<String> = wanted.kinds_and_names().map(|(kind, name)| replica_name(kind, name)).collect();
        prop_assert!(named.kinds_and_names().all(|(_, name)| replicas.contains(name)), "{} names more than replicas", spec);
        // A pod that exists may get any later text.
        let _ = remote_patch(&carried, &pod, &rules(), false);
    }
}

/// The rules for a pool that the provider borrows from turin.
fn borrowed() -> ProviderRules {
    let virtual_node = json!({"key": "liqo.io/type", "operator": "In", "values": ["virtual-node"]});
    let turin = json!({"key": "liqo.io/remote-cluster-id", "operator": "In", "values": ["turin"]});
    ProviderRules {
        borrowed: true,
        nodes: vec![json!({"matchExpressions": [virtual_node, turin]})],
        ..rules()
    }
}

#[test]
fn only_pods_of_borrowed_pools_may_run_on_virtual_nodes() {
    const TERMS: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let tolerates = |pod: &Value| {
        items_at(pod, "/spec/tolerations")
            .iter()
            .any(|one| text_at(one, "/key") == Some("virtual-node.liqo.io/not-allowed"))
    };
    let hostile = carried(
        "/spec/tolerations",
        json!([{"key": "virtual-node.liqo.io/not-allowed", "operator": "Exists"}, {"operator": "Exists"}]),
    );
    let own = remote_pod(&hostile, &IDENTITY, &rules()).unwrap();
    assert_eq!(
        (own.pointer("/spec/tolerations"), own.pointer(TERMS)),
        (None, None)
    );
    // Also if the policy selects virtual nodes as its own.
    let by_label = ProviderRules {
        borrowed: false,
        ..borrowed()
    };
    assert!(!tolerates(
        &remote_pod(&hostile, &IDENTITY, &by_label).unwrap()
    ));
    let brokered = remote_pod(&hostile, &IDENTITY, &borrowed()).unwrap();
    assert!(tolerates(&brokered));
    assert_eq!(brokered.pointer(TERMS), Some(&json!(borrowed().nodes)));
    let kept = ProviderRules {
        tolerations: vec![Toleration {
            key: Some("gpu".into()),
            operator: Some("Exists".into()),
            ..Toleration::default()
        }],
        ..borrowed()
    };
    let gpu = carried(
        "/spec/tolerations",
        json!([{"key": "gpu", "operator": "Exists"}]),
    );
    assert_eq!(
        items_at(
            &remote_pod(&gpu, &IDENTITY, &kept).unwrap(),
            "/spec/tolerations"
        )
        .len(),
        2
    );
}

#[test]
fn nothing_that_liqo_wrote_on_a_pod_of_a_consumer_travels_on() {
    let mut at_broker = remote_pod(&carried("", Value::Null), &IDENTITY, &borrowed()).unwrap();
    at_broker["spec"]["nodeName"] = json!("turin");
    let onwards = outgoing_pod(&at_broker, &keys([])).unwrap();
    for (field, key) in [("labels", "liqo.io/"), ("annotations", "liqo.io/")] {
        let all = onwards["metadata"][field].as_object().unwrap();
        assert!(all.keys().all(|one| !one.contains(key)), "{all:?}");
    }
    assert_eq!(onwards["metadata"]["labels"]["app"], "web");
    for field in ["affinity", "tolerations", "nodeName", "priorityClassName"] {
        assert_eq!(
            onwards["spec"].get(field),
            None,
            "{field} means something at the broker only"
        );
    }
    let identity = RemoteIdentity {
        namespace: "n",
        consumer: "milan-id",
        shadow_pod: "broker-uid",
        home_namespace: "demo-rome-abc123",
        ..IDENTITY
    };
    let there = remote_pod(&onwards, &identity, &rules()).unwrap();
    assert_eq!(
        there["metadata"]["labels"]["liqo.io/consumer-id"],
        "milan-id"
    );
    assert_eq!(
        there["metadata"]["labels"]["liqo.io/shadow-pod"],
        "broker-uid"
    );
}

#[test]
fn a_consumer_cannot_write_the_labels_by_which_the_provider_knows_its_pods() {
    let every = vec!["*".to_owned()];
    for rules in [rules(), borrowed()].map(|rules| ProviderRules {
        pod_labels: every.clone(),
        pod_annotations: every.clone(),
        ..rules
    }) {
        let ours = remote_pod(&carried("", Value::Null), &IDENTITY, &rules).unwrap();
        let mut forged = carried("", Value::Null);
        for key in [
            "shadow-pod",
            "consumer-id",
            "pool",
            "home-namespace",
            "managed",
            "pool-nodes",
            "travelled",
            "unknown",
        ] {
            for field in ["labels", "annotations"] {
                forged["metadata"][field][format!("liqo.io/{key}")] = json!("forged");
            }
        }
        let pod = remote_pod(&forged, &IDENTITY, &rules).unwrap();
        assert_eq!(pod["metadata"], ours["metadata"]);
        assert_eq!(remote_patch(&forged, &ours, &rules, true), None);
    }
}

#[test]
fn a_brokered_pod_uses_no_api_server() {
    let refusal = |pod: &Value| {
        remote_pod(
            pod,
            &IDENTITY,
            &ProviderRules {
                api_server: true,
                ..borrowed()
            },
        )
        .unwrap_err()
        .reason
    };
    let of_the_provider = carried(
        "/metadata/annotations",
        json!({"liqo.io/api-server": "remote"}),
    );
    assert_eq!(refusal(&of_the_provider), "NoApiServer");
    let mut of_home = carried("", Value::Null);
    let local = local_pod("", Value::Null);
    api_server::point_to_api_server(
        &mut of_home,
        &local,
        &api_server::api_server_secret_name("home-uid"),
        &["10.0.0.1".parse().unwrap()],
        None,
    );
    assert_eq!(refusal(&of_home), "NoApiServer");
    assert!(
        remote_pod(&of_home, &IDENTITY, &rules()).is_ok(),
        "a provider that runs it itself takes it"
    );
}
