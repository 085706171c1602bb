use serde_json::{Value, json};

use super::*;
use crate::inspect::fixtures::{condition as link_condition, facts as healthy, milan, of};

const UID: &str = "7d8f";

fn node(name: &str, ready: &str, spec: Value) -> Node {
    of(json!({
        "metadata": { "name": name, "labels": { "liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": milan() } },
        "spec": spec,
        "status": { "conditions": [{ "type": "Ready", "status": ready, "reason": "PeerUnreachable", "message": "no answer" }] },
    }))
}

fn pod(node: Option<&str>, status: Value) -> Pod {
    of(json!({
        "metadata": { "name": "web", "namespace": "demo", "uid": UID },
        "spec": {
            "containers": [], "nodeName": node,
            "tolerations": [{ "key": pods::VIRTUAL_NODE_TAINT, "operator": "Exists", "effect": "NoExecute" }],
        },
        "status": status,
    }))
}

fn shadow(status: Value) -> ShadowPod {
    of(json!({
        "metadata": { "name": UID, "namespace": "liqo-tenant-x" },
        "spec": { "namespace": "demo", "pool": "default", "pod": "{}" },
        "status": status,
    }))
}

fn offloading(strategy: &str, ready: bool) -> NamespaceOffloading {
    of(json!({
        "metadata": { "name": "offloading", "namespace": "demo" },
        "spec": { "podOffloadingStrategy": strategy },
        "status": {
            "conditions": [link_condition("Ready", if ready { "True" } else { "False" }, "NamespacesNotReady")],
            "remoteNamespaces": [{
                "clusterID": milan(), "clusterName": "milan", "namespace": "demo-rome-abc", "ready": ready, "message": "NameTaken",
            }],
        },
    }))
}

/// A remote pod, which a provider that does not lend it on runs on a node of its own.
fn remote(status: Value) -> Pod {
    let mut remote = pod(Some("milan-1"), status);
    remote.metadata.namespace = Some("demo-rome-abc".into());
    remote.spec.as_mut().unwrap().tolerations = None;
    remote
}

/// A pod that runs at milan.
fn running() -> PodFacts {
    let ready =
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
    let remote = remote(ready.clone());
    PodFacts {
        pod: pod(Some("milan"), ready),
        node: Ok(Some(node("milan", "True", json!({})))),
        virtual_nodes: Ok(vec![node("milan", "True", json!({}))]),
        peers: healthy().liqo.peers,
        offloading: Ok(Some(offloading("LocalAndRemote", true))),
        provider: Some(ProviderPodFacts {
            shadow_pod: Ok(Some(shadow(json!({ "phase": "Created" })))),
            remote_pod: Ok(Some(remote)),
        }),
        read_at: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

/// A pod that the scheduler finds no node for.
fn unscheduled() -> PodFacts {
    let no_node = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes" }]);
    PodFacts {
        pod: pod(None, json!({ "phase": "Pending", "conditions": no_node })),
        node: Ok(None),
        provider: None,
        ..running()
    }
}

fn find(facts: &PodFacts, name: PodStepName) -> PodStep {
    explain_facts(facts)
        .steps
        .into_iter()
        .find(|step| step.check == name)
        .unwrap()
}

fn waits_for(facts: &PodFacts) -> Option<PodStepName> {
    let explanation = explain_facts(facts);
    let mut steps = explanation.steps.iter().map(|step| step.check);
    steps.find(|step| explanation.waits_for == Some(step.as_str()))
}

#[test]
fn a_pod_that_runs_waits_for_nothing() {
    let explanation = explain_facts(&running());
    assert_eq!(
        (explanation.phase.as_str(), explanation.waits_for),
        ("Running", None)
    );
    let lines: Vec<String> = explanation
        .steps
        .iter()
        .map(|step| format!("{}: {}", step.check.as_str(), step.what))
        .collect();
    let expected = [
        "local-pod: Running, Ready, on node milan",
        "virtual-node: Node milan is Ready",
        "peering: every link to milan works",
        "network: the tunnel to milan is connected",
        "namespace: demo is demo-rome-abc in milan (LocalAndRemote)",
        "shadow-pod: Created",
        "remote-pod: Running, Ready, on node milan-1 there",
    ];
    assert_eq!(lines, expected);
    assert!(
        explanation
            .steps
            .iter()
            .all(|step| step.verdict == CheckVerdict::Ok && step.advice.is_none())
    );
}

#[test]
fn a_pod_at_home_is_not_followed_any_further() {
    let mut facts = running();
    facts.node = Ok(Some(of(json!({ "metadata": { "name": "rome-1" } }))));
    facts.provider = None;
    assert_eq!(explain_facts(&facts).steps.len(), 2);
    assert!(
        find(&facts, PodStepName::VirtualNode)
            .what
            .contains("not offloaded")
    );
}

#[test]
fn a_refused_pod_shows_the_reason_and_the_advice_for_it() {
    let mut facts = running();
    let refused =
        json!({ "phase": "Refused", "reason": "OfferExceeded", "message": "cpu: 1 short" });
    facts.provider = Some(ProviderPodFacts {
        shadow_pod: Ok(Some(shadow(refused))),
        remote_pod: Ok(None),
    });
    let told = json!([{ "type": pods::OFFLOADED, "status": "False", "reason": "OfferExceeded", "message": "cpu: 1 short" }]);
    facts.pod = pod(
        Some("milan"),
        json!({ "phase": "Pending", "conditions": told }),
    );
    let step = find(&facts, PodStepName::ShadowPod);
    assert_eq!(
        (step.verdict, step.what.as_str()),
        (CheckVerdict::Fail, "Refused: OfferExceeded: cpu: 1 short")
    );
    assert!(step.advice.unwrap().starts_with("request less"));
    assert_eq!(
        find(&facts, PodStepName::Conditions).verdict,
        CheckVerdict::Fail
    );
    assert_eq!(
        find(&facts, PodStepName::RemotePod).verdict,
        CheckVerdict::Skipped
    );
    assert_eq!(waits_for(&facts), Some(PodStepName::ShadowPod));
}

#[test]
fn a_broken_link_of_the_peering_is_the_cause() {
    let mut facts = running();
    facts.node = Ok(Some(node("milan", "False", json!({}))));
    assert_eq!(waits_for(&facts), Some(PodStepName::VirtualNode));
    facts.node = Ok(Some(node("milan", "True", json!({}))));
    let conditions = &mut facts.peers.as_mut().unwrap()[0]
        .status
        .as_mut()
        .unwrap()
        .conditions;
    for link in conditions.iter_mut().filter(|link| {
        [links::PEER_REACHABLE, links::TUNNEL_CONNECTED].contains(&link.type_.as_str())
    }) {
        (link.status, link.reason) = ("False".into(), "Unreachable".into());
    }
    let step = find(&facts, PodStepName::Peering);
    assert_eq!(
        (step.verdict, step.what.as_str()),
        (CheckVerdict::Fail, "milan: PeerReachable: Unreachable: m")
    );
    assert!(step.advice.is_some());
    assert_eq!(
        find(&facts, PodStepName::Network).verdict,
        CheckVerdict::Warn,
        "the pod runs without a network"
    );
    facts.peers = Ok(Vec::new());
    assert_eq!(
        find(&facts, PodStepName::Peering).verdict,
        CheckVerdict::Fail
    );
}

#[test]
fn a_namespace_that_does_not_exist_there_is_the_cause() {
    let mut facts = running();
    facts.offloading = Ok(Some(offloading("Remote", false)));
    assert_eq!(
        find(&facts, PodStepName::Namespace).what,
        "demo is not ready in milan: NameTaken"
    );
    facts.offloading = Ok(Some(offloading("Local", true)));
    assert_eq!(
        find(&facts, PodStepName::Namespace).verdict,
        CheckVerdict::Warn
    );
    facts.offloading = Ok(None);
    assert_eq!(
        (
            find(&facts, PodStepName::Namespace).verdict,
            waits_for(&facts)
        ),
        (CheckVerdict::Fail, Some(PodStepName::Namespace))
    );
    facts.offloading = Err("cannot read NamespaceOffloading demo/offloading".into());
    assert_eq!(
        find(&facts, PodStepName::Namespace).verdict,
        CheckVerdict::Unknown
    );
}

#[test]
fn what_the_provider_does_not_show_is_unknown() {
    let mut facts = running();
    let why = "cannot read Secret liqo-provider-x/credential: forbidden".to_owned();
    facts.provider = Some(ProviderPodFacts {
        shadow_pod: Err(why.clone()),
        remote_pod: Err(why.clone()),
    });
    for step in [PodStepName::ShadowPod, PodStepName::RemotePod] {
        assert_eq!(
            (find(&facts, step).verdict, find(&facts, step).what),
            (CheckVerdict::Unknown, why.clone())
        );
    }
}

#[test]
fn a_container_that_does_not_start_there_is_shown() {
    let mut facts = running();
    let waiting = json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } });
    let container = json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": waiting });
    let status = json!({ "phase": "Pending", "containerStatuses": [container] });
    let shadow = shadow(json!({ "phase": "Created", "pod": status }));
    // The status in the shadow pod is enough.
    facts.provider = Some(ProviderPodFacts {
        shadow_pod: Ok(Some(shadow)),
        remote_pod: Err("cannot read it".into()),
    });
    let step = find(&facts, PodStepName::RemotePod);
    assert_eq!(
        step.what,
        "Pending, not Ready: container c waits: ErrImagePull: not found"
    );
    assert!(
        step.advice
            .unwrap()
            .contains("`kubectl -n demo describe pod web`")
    );
    assert_eq!(waits_for(&facts), Some(PodStepName::RemotePod));
}

#[test]
fn a_pod_whose_node_there_does_not_answer_says_so() {
    let mut facts = running();
    let ready = json!({ "type": "Ready", "status": "False", "reason": "NodeNotReady", "message": "its node does not answer" });
    facts.provider.as_mut().unwrap().remote_pod = Ok(Some(remote(
        json!({ "phase": "Running", "conditions": [ready] }),
    )));
    let what = find(&facts, PodStepName::RemotePod).what;
    assert_eq!(
        what,
        "Running, not Ready, on node milan-1 there: NodeNotReady: its node does not answer"
    );
}

#[test]
fn a_broker_does_not_name_the_node_of_a_pod_that_it_lends_on() {
    let mut facts = running();
    let brokered = pod(
        Some("genoa"),
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] }),
    );
    facts.provider.as_mut().unwrap().remote_pod = Ok(Some(brokered));
    assert_eq!(
        find(&facts, PodStepName::RemotePod).what,
        "Running, Ready, there or behind it"
    );
}

#[test]
fn a_crash_there_is_shown_between_two_restarts_too() {
    let mut facts = running();
    let last = json!({ "terminated": { "reason": "Error", "exitCode": 1 } });
    for state in [
        json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
        last.clone(),
        json!({ "running": {} }),
    ] {
        let container = json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 3, "state": state,
            "lastState": last });
        let remote = remote(json!({ "phase": "Running", "containerStatuses": [container] }));
        facts.provider.as_mut().unwrap().remote_pod = Ok(Some(remote));
        let step = find(&facts, PodStepName::RemotePod);
        assert_eq!(step.verdict, CheckVerdict::Warn);
        assert!(
            step.what
                .starts_with("Running, not Ready, on node milan-1 there: container c "),
            "{}",
            step.what
        );
        assert!(
            step.what.contains("exit code 1") && step.what.ends_with("3 restarts"),
            "{}",
            step.what
        );
        assert!(
            step.advice
                .unwrap()
                .contains("`kubectl -n demo logs web -c c")
        );
    }
}

#[test]
fn a_pod_that_fails_in_this_cluster_says_why() {
    let mut facts = running();
    let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "not found" } });
    let container = json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": waiting });
    facts.pod = pod(
        Some("rome-1"),
        json!({ "phase": "Pending", "containerStatuses": [container] }),
    );
    (facts.node, facts.provider) = (
        Ok(Some(of(json!({ "metadata": { "name": "rome-1" } })))),
        None,
    );
    let step = find(&facts, PodStepName::LocalPod);
    assert_eq!(
        step.what,
        "Pending, on node rome-1: container c waits: ImagePullBackOff: not found"
    );
    assert!(
        step.advice
            .unwrap()
            .contains("`kubectl -n demo describe pod web`")
    );
    assert_eq!(waits_for(&facts), Some(PodStepName::LocalPod));
    facts.pod = pod(Some("rome-1"), json!({ "phase": "Pending" }));
    assert_eq!(
        find(&facts, PodStepName::LocalPod).verdict,
        CheckVerdict::Unknown
    );
}

#[test]
fn a_pod_that_is_too_large_learns_what_is_short() {
    let mut facts = unscheduled();
    let (spec, annotation) = (
        facts.pod.spec.as_mut().unwrap(),
        r#"[{"cpu":"1719m","memory":"1Gi","pods":"1"}]"#,
    );
    let requests = json!({ "requests": { "cpu": "2300m", "memory": "1Mi" } });
    spec.containers =
        serde_json::from_value(json!([{ "name": "c", "resources": requests }])).unwrap();
    let node = &mut facts.virtual_nodes.as_mut().unwrap()[0];
    node.annotations_mut()
        .insert(annotations::LARGEST_PODS.to_owned(), annotation.to_owned());
    let allocatable = |cpu: &str| {
        serde_json::from_value(json!({ "cpu": cpu, "memory": "8Gi", "pods": "99" })).unwrap()
    };
    let status = node.status.get_or_insert_default();
    status.allocatable = Some(allocatable("3438m"));
    let enough = facts.clone();
    facts.virtual_nodes.as_mut().unwrap()[0]
        .status
        .as_mut()
        .unwrap()
        .allocatable = Some(allocatable("2"));
    for (facts, what) in [
        (
            enough,
            "no node there has room for the pod: cpu: 581m short (2300m requested, 1719m available) on the largest node",
        ),
        (
            facts,
            "offers too little: cpu: 300m short (2300m requested, 2 available)",
        ),
    ] {
        let step = find(&facts, PodStepName::VirtualNode);
        assert_eq!(
            (step.verdict, step.what),
            (CheckVerdict::Warn, format!("milan is Ready, but {what}"))
        );
    }
}

#[test]
fn a_pod_without_a_node_says_what_the_virtual_nodes_lack() {
    let mut facts = unscheduled();
    assert_eq!(
        find(&facts, PodStepName::LocalPod).what,
        "Pending, without a node: Unschedulable: 0/2 nodes"
    );
    assert_eq!(
        find(&facts, PodStepName::VirtualNode).what,
        "milan is Ready and takes pods"
    );
    assert_eq!(
        waits_for(&facts),
        Some(PodStepName::LocalPod),
        "only the scheduler knows"
    );
    let taint = json!({ "key": pods::UNREACHABLE_TAINT, "effect": "NoSchedule" });
    facts.virtual_nodes = Ok(vec![node(
        "milan",
        "True",
        json!({ "unschedulable": true, "taints": [taint] }),
    )]);
    let step = find(&facts, PodStepName::VirtualNode);
    let expected = "milan is Ready, but the node is cordoned";
    assert_eq!(
        (step.verdict, step.what.as_str()),
        (CheckVerdict::Warn, expected)
    );
    let mut dear = node(
        "milan",
        "True",
        json!({ "taints": [{ "key": pods::NO_NEW_PODS_TAINT, "effect": "NoSchedule" }] }),
    );
    let why = of(
        json!({ "type": pods::NO_NEW_PODS, "status": "True", "message": "no new pods come: cpu costs too much" }),
    );
    dear.status
        .as_mut()
        .unwrap()
        .conditions
        .as_mut()
        .unwrap()
        .push(why);
    facts.virtual_nodes = Ok(vec![dear]);
    assert_eq!(
        find(&facts, PodStepName::VirtualNode).what,
        "milan is Ready, but no new pods come: cpu costs too much"
    );
    facts.virtual_nodes = Ok(Vec::new());
    assert_eq!(waits_for(&facts), Some(PodStepName::VirtualNode));
    facts.offloading = Ok(None);
    assert_eq!(
        find(&facts, PodStepName::Namespace).verdict,
        CheckVerdict::Skipped
    );
}

/// The words about milan, a node with the label `region=eu` and this spec, for a pod with these
/// fields.
fn said_of_candidate(node_spec: Value, pod_fields: Value) -> (CheckVerdict, String) {
    let mut facts = unscheduled();
    let mut spec = json!(facts.pod.spec);
    json_patch::merge(&mut spec, &pod_fields);
    facts.pod.spec = of(spec);
    let mut milan = node("milan", "True", node_spec);
    milan
        .labels_mut()
        .insert("region".to_owned(), "eu".to_owned());
    facts.virtual_nodes = Ok(vec![milan]);
    let step = find(&facts, PodStepName::VirtualNode);
    (step.verdict, step.what)
}

const TAKES_PODS: &str = "milan is Ready and takes pods";

#[test]
fn a_node_without_the_labels_of_the_node_selector_takes_no_pod() {
    let wants = |region: &str| json!({ "nodeSelector": { "region": region } });
    assert_eq!(
        said_of_candidate(json!({}), wants("us")),
        (
            CheckVerdict::Warn,
            "milan is Ready, but the pod's nodeSelector wants region=us, which the node does not have"
                .to_owned()
        )
    );
    assert_eq!(said_of_candidate(json!({}), wants("eu")).1, TAKES_PODS);
}

#[test]
fn a_node_that_the_required_affinity_does_not_match_takes_no_pod() {
    let wants = |region: &str| {
        let expression = json!({ "key": "region", "operator": "In", "values": [region] });
        let required = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
        json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } } })
    };
    assert_eq!(
        said_of_candidate(json!({}), wants("us")),
        (
            CheckVerdict::Warn,
            "milan is Ready, but the pod's required node affinity does not match the node"
                .to_owned()
        )
    );
    assert_eq!(said_of_candidate(json!({}), wants("eu")).1, TAKES_PODS);
}

#[test]
fn a_taint_keeps_only_pods_away_that_do_not_tolerate_it() {
    let tainted =
        || json!({ "taints": [{ "key": "team", "value": "web", "effect": "NoSchedule" }] });
    assert_eq!(
        said_of_candidate(tainted(), json!({})),
        (
            CheckVerdict::Warn,
            "milan is Ready, but the pod does not tolerate the taint team=web:NoSchedule"
                .to_owned()
        )
    );
    let tolerating = json!({ "tolerations": [{ "operator": "Exists" }] });
    assert_eq!(said_of_candidate(tainted(), tolerating).1, TAKES_PODS);
}

#[test]
fn a_node_without_a_gpu_takes_no_pod_that_requests_one() {
    let mut facts = unscheduled();
    let requests = json!({ "requests": { "example.com/gpu": "1" } });
    facts.pod.spec.as_mut().unwrap().containers =
        of(json!([{ "name": "c", "resources": requests }]));
    let milan = &mut facts.virtual_nodes.as_mut().unwrap()[0];
    let offered = json!({ "cpu": "8", "memory": "8Gi", "ephemeral-storage": "99Gi", "pods": "99" });
    milan.status.get_or_insert_default().allocatable = of(offered);
    let step = find(&facts, PodStepName::VirtualNode);
    assert_eq!(
        (step.verdict, step.what.as_str()),
        (
            CheckVerdict::Warn,
            "milan is Ready, but offers too little: example.com/gpu: 1 short (1 requested, 0 available)"
        )
    );
}

#[test]
fn the_advice_for_one_fault_is_given_once() {
    let mut facts = running();
    let unplaced =
        json!([{ "type": pods::REMOTE_SCHEDULED, "status": "False", "reason": "Unschedulable" }]);
    facts.pod = pod(
        Some("milan"),
        json!({ "phase": "Pending", "conditions": unplaced }),
    );
    let no_node = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes" }]);
    facts.provider.as_mut().unwrap().remote_pod = Ok(Some(remote(
        json!({ "phase": "Pending", "conditions": no_node }),
    )));
    let advised: Vec<PodStepName> = explain_facts(&facts)
        .steps
        .into_iter()
        .filter(|step| step.advice.as_deref() == Some(advice::UNPLACED))
        .map(|step| step.check)
        .collect();
    assert_eq!(advised, [PodStepName::Conditions]);
    assert_eq!(waits_for(&facts), Some(PodStepName::Conditions));
    assert_eq!(
        find(&facts, PodStepName::RemotePod).verdict,
        CheckVerdict::Warn
    );
}

#[test]
fn a_pod_that_the_webhook_did_not_see_is_named() {
    let mut facts = unscheduled();
    facts.pod.spec.as_mut().unwrap().tolerations = None;
    assert_eq!(waits_for(&facts), Some(PodStepName::Toleration));
    facts.offloading = Ok(Some(offloading("Local", true)));
    assert!(
        explain_facts(&facts)
            .steps
            .iter()
            .all(|step| step.check != PodStepName::Toleration)
    );
}

#[test]
fn a_pod_that_cannot_travel_is_explained_by_that_and_not_by_what_it_lacks_for_virtual_nodes() {
    let mut facts = unscheduled();
    let spec = facts.pod.spec.as_mut().unwrap();
    (spec.tolerations, spec.host_network) = (None, Some(true));
    let step = find(&facts, PodStepName::Placement);
    assert_eq!(step.verdict, CheckVerdict::Skipped);
    assert!(
        step.what
            .starts_with("the pod runs in this cluster only: HostNamespace: "),
        "{}",
        step.what
    );
    let shown: Vec<PodStepName> = explain_facts(&facts)
        .steps
        .iter()
        .map(|step| step.check)
        .collect();
    assert_eq!(
        shown,
        [
            PodStepName::LocalPod,
            PodStepName::Namespace,
            PodStepName::Placement
        ]
    );
    assert_eq!(waits_for(&facts), Some(PodStepName::LocalPod));
    facts.pod.spec.as_mut().unwrap().node_name = Some("rome-1".into());
    facts.node = Ok(Some(of(json!({ "metadata": { "name": "rome-1" } }))));
    assert_eq!(
        find(&facts, PodStepName::Placement).verdict,
        CheckVerdict::Skipped
    );
    facts.offloading = Ok(Some(offloading("Local", true)));
    assert!(
        explain_facts(&facts)
            .steps
            .iter()
            .all(|step| step.check != PodStepName::Placement),
        "no pod of the namespace leaves"
    );
}

#[test]
fn a_pod_whose_owner_was_refused_says_by_whom_until_the_provider_is_tried_again() {
    let refused = json!([{ "owner": "o", "clusterID": milan(), "clusterName": "milan", "reason": "NotAllowed",
        "until": "2026-01-01T00:30:00Z" }]);
    let with = |facts: PodFacts, strategy: &str| {
        let mut facts = PodFacts {
            offloading: Ok(Some(offloading(strategy, true))),
            ..facts
        };
        let offloading = facts.offloading.as_mut().unwrap().as_mut().unwrap();
        offloading.metadata.annotations =
            Some([(annotations::REFUSED_PODS.to_owned(), refused.to_string())].into());
        facts.pod.metadata.owner_references = of(
            json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
            "uid": "o", "controller": true }]),
        );
        facts
    };
    let mut facts = with(unscheduled(), "LocalAndRemote");
    let step = find(&facts, PodStepName::Placement);
    let expected = "pods with this template are not sent to milan (it refused one for NotAllowed) before 2026-01-01T00:30:00Z; \
                    a changed template is tried at once";
    assert_eq!(
        (step.verdict, step.what.as_str()),
        (CheckVerdict::Warn, expected)
    );
    assert_eq!(
        find(&facts, PodStepName::VirtualNode).what,
        "milan is Ready, but its cluster refused a pod with this template"
    );
    assert_eq!(waits_for(&facts), Some(PodStepName::Placement));
    facts.read_at = "2026-01-01T00:30:00Z".parse().unwrap();
    assert_eq!(
        find(&facts, PodStepName::VirtualNode).what,
        "milan is Ready and takes pods"
    );
    let facts = with(unscheduled(), "Remote");
    assert!(
        explain_facts(&facts)
            .steps
            .iter()
            .all(|step| step.check != PodStepName::Placement),
        "it has no other place to run"
    );
}

#[test]
fn an_evicted_pod_says_so() {
    let mut facts = running();
    facts.pod = pod(
        Some("milan"),
        json!({ "phase": "Failed", "reason": "Evicted", "message": "the provider took back what it used" }),
    );
    facts.provider = Some(ProviderPodFacts {
        shadow_pod: Ok(None),
        remote_pod: Ok(None),
    });
    assert_eq!(
        find(&facts, PodStepName::LocalPod).what,
        "Failed: Evicted: the provider took back what it used"
    );
    assert_eq!(
        (
            find(&facts, PodStepName::ShadowPod).verdict,
            waits_for(&facts)
        ),
        (CheckVerdict::Skipped, Some(PodStepName::LocalPod))
    );
}

#[test]
fn a_limit_that_the_provider_adds_is_shown_and_stops_nothing() {
    let mut facts = running();
    let step = |facts: &PodFacts| {
        explain_facts(facts)
            .steps
            .into_iter()
            .find(|step| step.check == PodStepName::Limits)
    };
    assert_eq!(step(&facts), None);
    let containers =
        |limits: Value| of(json!([{ "name": "c", "resources": { "limits": limits } }]));
    facts.pod.spec.as_mut().unwrap().containers = containers(json!({ "cpu": "1" }));
    let remote = facts
        .provider
        .as_mut()
        .unwrap()
        .remote_pod
        .as_mut()
        .unwrap()
        .as_mut()
        .unwrap();
    remote.spec.as_mut().unwrap().containers = containers(json!({ "cpu": "1", "memory": "256Mi" }));
    let said = step(&facts).unwrap();
    assert_eq!(
        said.what,
        "the provider limits container c to 256Mi of memory, because the pod sets no limit"
    );
    assert_eq!(
        (said.verdict, explain_facts(&facts).waits_for),
        (CheckVerdict::Ok, None)
    );
}
