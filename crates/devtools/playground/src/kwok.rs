//! kwok's configuration: which nodes it manages, and how pods on them change state. Pure: numbers
//! in, text out.

use serde_json::{Value, json};

use crate::{
    node_kind::{FAKE_NODE, NODE_KIND_LABEL},
    spec::ClusterSpec,
};

/// Kubernetes' default.
const GRACE_SECONDS: u16 = 50;

const NODE_STATUS: &str = r#"{{ $now := Quote Now }}
conditions:
- { type: Ready, status: "True", reason: FakeNode, message: "kwok answers for this node", lastHeartbeatTime: {{ $now }}, lastTransitionTime: {{ $now }} }
{{ range list "MemoryPressure" "DiskPressure" "PIDPressure" "NetworkUnavailable" }}
- { type: {{ . }}, status: "False", reason: FakeNode, message: "nothing runs on this node", lastHeartbeatTime: {{ $now }}, lastTransitionTime: {{ $now }} }
{{ end }}
"#;

const POD_READY_STATUS: &str = r#"{{ $now := Quote Now }}
phase: Running
startTime: {{ $now }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 }}
hostIPs: [{{ range . }}{ ip: {{ . }} },{{ end }}]
{{ end }}
{{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) (or .metadata.uid "") (or .metadata.name "") (or .metadata.namespace "") }}
podIP: {{ index . 0 }}
podIPs: [{{ range . }}{ ip: {{ . }} },{{ end }}]
{{ end }}
conditions:
{{ range list "PodReadyToStartContainers" "Initialized" "ContainersReady" "Ready" }}
- { type: {{ . }}, status: "True", lastTransitionTime: {{ $now }} }
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- { name: {{ Quote .name }}, image: {{ Quote .image }}, imageID: "", ready: true, started: true, restartCount: 0, state: { running: { startedAt: {{ $now }} } } }
{{ end }}
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
{{ if eq (or .restartPolicy "") "Always" }}
- { name: {{ Quote .name }}, image: {{ Quote .image }}, imageID: "", ready: true, started: true, restartCount: 0, state: { running: { startedAt: {{ $now }} } } }
{{ else }}
- { name: {{ Quote .name }}, image: {{ Quote .image }}, imageID: "", ready: true, started: false, restartCount: 0, state: { terminated: { exitCode: 0, reason: Completed, startedAt: {{ $now }}, finishedAt: {{ $now }} } } }
{{ end }}
{{ end }}
{{ end }}
"#;

const POD_COMPLETE_STATUS: &str = r#"{{ $now := Quote Now }}
{{ $started := Quote (or .status.startTime Now) }}
phase: Succeeded
conditions:
{{ range list "ContainersReady" "Ready" }}
- { type: {{ . }}, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now }} }
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- { name: {{ Quote .name }}, image: {{ Quote .image }}, imageID: "", ready: false, started: false, restartCount: 0, state: { terminated: { exitCode: 0, reason: Completed, startedAt: {{ $started }}, finishedAt: {{ $now }} } } }
{{ end }}
"#;

/// kwok's configuration file: several documents, each of them JSON, which is YAML, too.
pub(crate) fn configuration() -> String {
    let is =
        |path: &str, values: &[&str]| json!({ "key": path, "operator": "In", "values": values });
    let is_not =
        |path: &str, value: &str| json!({ "key": path, "operator": "NotIn", "values": [value] });
    let ready = r#".status.conditions.[] | select( .type == "Ready" ) | .status"#;
    let deleted =
        |operator: &str| json!({ "key": ".metadata.deletionTimestamp", "operator": operator });
    let write = |template: &str| json!({ "patch": { "subresource": "status", "root": "status", "template": template } });
    let documents = [
        json!({
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            // kwok's default of four in parallel is less than the API server can handle.
            "options": { "podPlayStageParallelism": 16, "nodePlayStageParallelism": 16, "nodeLeaseParallelism": 8 },
        }),
        stage(
            "node-ready",
            "Node",
            &[is_not(ready, "True")],
            &write(NODE_STATUS),
        ),
        stage(
            "pod-ready",
            "Pod",
            &[deleted("DoesNotExist"), is(".status.phase", &["Pending"])],
            &write(POD_READY_STATUS),
        ),
        {
            // A pod that runs to completion does so after a second. Its Job may be in another
            // cluster, so owners do not matter.
            let ends = is(".spec.restartPolicy", &["Never", "OnFailure"]);
            let running = is(".status.phase", &["Running"]);
            let mut stage = stage(
                "pod-complete",
                "Pod",
                &[deleted("DoesNotExist"), running, ends],
                &write(POD_COMPLETE_STATUS),
            );
            stage["spec"]["delay"] = json!({ "durationMilliseconds": 1000 });
            stage
        },
        stage(
            "pod-gone",
            "Pod",
            &[deleted("Exists")],
            &json!({ "delete": true }),
        ),
    ];
    documents
        .map(|document| format!("{document:#}\n"))
        .join("---\n")
}

fn stage(name: &str, kind: &str, conditions: &[Value], step: &Value) -> Value {
    json!({
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": { "name": name },
        "spec": {
            "resourceRef": { "apiGroup": "v1", "kind": kind },
            "selector": { "matchExpressions": conditions },
            "steps": [step],
        },
    })
}

/// Flags for which nodes kwok manages and how often it renews their Leases. Its client has no
/// limits to raise.
pub(crate) fn flags(spec: &ClusterSpec) -> Vec<String> {
    // kwok renews a Lease after a quarter of this, which is half of the grace period after which a
    // node counts as dead.
    let lease = 2 * u32::from(spec.node_grace_seconds.unwrap_or(GRACE_SECONDS));
    vec![
        "--manage-all-nodes=false".to_owned(),
        format!("--manage-nodes-with-label-selector={NODE_KIND_LABEL}={FAKE_NODE}"),
        format!("--cidr={}", spec.fake_pod_range()),
        format!("--node-lease-duration-seconds={lease}"),
        // It would write a line for each pod.
        "--v=WARN".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_of_the_configuration_can_be_read() {
        let text = configuration();
        let documents: Vec<Value> = text
            .split("---\n")
            .map(|part| serde_json::from_str(part).unwrap())
            .collect();
        let stages: Vec<_> = documents
            .iter()
            .filter_map(|document| document["metadata"]["name"].as_str())
            .collect();
        assert_eq!(
            stages,
            ["node-ready", "pod-ready", "pod-complete", "pod-gone"]
        );
    }

    #[test]
    fn kwok_does_not_manage_real_nodes() {
        let flags = flags(&ClusterSpec::new("rome"));
        assert!(
            flags
                .contains(&"--manage-nodes-with-label-selector=kwok.x-k8s.io/node=fake".to_owned())
        );
        assert!(flags.contains(&"--manage-all-nodes=false".to_owned()));
    }

    #[test]
    fn leases_are_renewed_twice_before_a_node_counts_as_dead() {
        let spec = ClusterSpec {
            node_grace_seconds: Some(10),
            ..ClusterSpec::new("rome")
        };
        assert!(flags(&spec).contains(&"--node-lease-duration-seconds=20".to_owned()));
    }
}
