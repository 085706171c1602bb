use serde_json::{Value, json};

use super::*;

fn peer(name: &str) -> PeerNodes {
    PeerNodes {
        name: name.into(),
        nodes: [name.to_owned()].into(),
    }
}

fn node(name: &str) -> EvictionNode {
    EvictionNode {
        name: name.into(),
        labels: [("region".to_owned(), format!("of-{name}"))].into(),
        answers: true,
        ..EvictionNode::default()
    }
}

fn offloading(strategy: &str) -> NamespaceOffloading {
    serde_json::from_value(json!({ "metadata": { "name": "offloading" }, "spec": { "podOffloadingStrategy": strategy } }))
        .unwrap()
}

/// A ready pod of a `ReplicaSet`, whose UID is its name.
fn pod(name: &str, node: &str) -> Value {
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true }]);
    json!({ "metadata": { "name": name, "namespace": "demo", "uid": name, "ownerReferences": owner },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "i" }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } })
}

fn pods(all: &[Value]) -> Vec<Pod> {
    all.iter()
        .map(|one| serde_json::from_value(one.clone()).unwrap())
        .collect()
}

fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[field] = value;
    pod
}

fn planned(
    request: &MoveRequest,
    strategy: &str,
    nodes: &[EvictionNode],
    all: &[Value],
) -> anyhow::Result<MovePlan> {
    let (offloading, pods) = (offloading(strategy), pods(all));
    let free = nodes
        .iter()
        .filter(|node| !node.allocatable.is_empty())
        .map(|node| (node.name.clone(), node.allocatable.clone()));
    plan_moves(
        request,
        &MoveFacts {
            offloading: Some(&offloading),
            nodes,
            pods: &pods,
            free: &free.collect(),
        },
    )
}

fn names(plan: &MovePlan) -> Vec<&str> {
    plan.pods.iter().map(|one| one.pod.as_str()).collect()
}

fn problem(planned: anyhow::Result<MovePlan>) -> String {
    planned.unwrap_err().to_string()
}

const NOTHING: MoveRequest<'static> = MoveRequest {
    namespace: "demo",
    names: &[],
    from: None,
    to: None,
    force: false,
};

#[test]
fn pods_for_which_there_is_no_room_stay() {
    let turin = peer("turin");
    let large = |name: &str| {
        with(
            pod(name, "milan"),
            "/spec/containers/0/resources",
            json!({ "requests": { "cpu": "2", "memory": "1Mi" } }),
        )
    };
    let with_room = |allocatable: Value, largest: Value| EvictionNode {
        allocatable: serde_json::from_value(allocatable).unwrap(),
        largest_pods: serde_json::from_value(largest).unwrap(),
        ..node("turin")
    };
    let request = MoveRequest {
        to: Some(&turin),
        ..NOTHING
    };
    let all = [large("a"), large("b"), large("c")];
    let five = json!({ "cpu": "5", "memory": "1Gi", "pods": "9" });
    let moved = planned(
        &request,
        "Remote",
        &[node("milan"), with_room(five.clone(), json!([]))],
        &all,
    )
    .unwrap();
    assert_eq!((names(&moved), moved.staying.len()), (vec!["a", "b"], 1));
    assert_eq!(
        moved.staying[0].reason,
        "there is no room for it: turin: cpu: 1 short (2 requested, 1 available)"
    );
    let nodes = [
        node("milan"),
        with_room(
            five,
            json!([{ "cpu": "1719m", "memory": "1Gi", "pods": "1" }]),
        ),
    ];
    let moved = planned(&request, "Remote", &nodes, &all).unwrap();
    assert_eq!((names(&moved).len(), moved.staying.len()), (0, 3));
    assert!(
        moved.staying[0]
            .reason
            .ends_with("cpu: 281m short (2 requested, 1719m available) on the largest node")
    );
    let (turin_is_full, milan) = (
        MoveRequest {
            from: Some(&turin),
            ..NOTHING
        },
        pod("d", "turin"),
    );
    assert_eq!(
        names(&planned(&turin_is_full, "LocalAndRemote", &nodes, &[milan]).unwrap()),
        ["d"],
        "the scheduler finds a place"
    );
}

#[test]
fn the_pods_at_a_cluster_leave_it_and_it_takes_no_new_ones_meanwhile() {
    let milan = peer("milan");
    let request = MoveRequest {
        from: Some(&milan),
        ..NOTHING
    };
    let ending = with(
        pod("c", "milan"),
        "/metadata/deletionTimestamp",
        json!("2026-01-01T00:00:00Z"),
    );
    let all = [pod("a", "milan"), pod("b", "rome-1"), ending];
    let plan = planned(&request, "LocalAndRemote", &[node("milan")], &all).unwrap();
    assert_eq!(
        (names(&plan), &plan.cordoned_nodes),
        (vec!["a"], &milan.nodes)
    );
    assert!(planned(&request, "Local", &[node("milan")], &all).is_ok());
}

#[test]
fn pods_that_must_run_elsewhere_need_another_cluster() {
    let milan = peer("milan");
    let request = MoveRequest {
        from: Some(&milan),
        ..NOTHING
    };
    let at = |nodes: &[EvictionNode]| planned(&request, "Remote", nodes, &[pod("a", "milan")]);
    assert!(problem(at(&[node("milan")])).contains("no cluster except milan takes them"));
    assert!(at(&[node("milan"), node("turin")]).is_ok());
    let silent = EvictionNode {
        answers: false,
        ..node("turin")
    };
    let cordoned = EvictionNode {
        cordoned: true,
        ..node("turin")
    };
    assert!(at(&[node("milan"), silent]).is_err() && at(&[node("milan"), cordoned]).is_err());
}

#[test]
fn pods_move_to_a_cluster_only_if_they_cannot_go_anywhere_else() {
    let (milan, names_of) = (peer("milan"), |plan: &MovePlan| {
        plan.pods
            .iter()
            .map(|one| one.pod.clone())
            .collect::<Vec<_>>()
    });
    let request = MoveRequest {
        to: Some(&milan),
        ..NOTHING
    };
    let nodes = [node("milan"), node("turin")];
    let host_path = json!([{ "name": "v", "hostPath": { "path": "/" } }]);
    let bound = with(pod("bound", "rome-1"), "/spec/volumes", host_path);
    let all = [
        pod("a", "turin"),
        pod("b", "rome-1"),
        pod("c", "milan"),
        bound,
    ];
    let plan = planned(&request, "Remote", &nodes, &all).unwrap();
    assert_eq!(names_of(&plan), ["a", "b"]);
    assert_eq!(plan.cordoned_nodes, ["turin".to_owned()].into());
    assert_eq!(
        plan.staying
            .iter()
            .map(|one| one.pod.as_str())
            .collect::<Vec<_>>(),
        ["bound"]
    );

    let text = problem(planned(&request, "LocalAndRemote", &nodes, &all));
    assert!(
        text.contains("may also run in this cluster") && text.contains("only with strategy Remote"),
        "{text}"
    );
    assert!(problem(planned(&request, "Local", &nodes, &all)).contains("strategy Local"));
    let nowhere = MoveFacts {
        offloading: None,
        nodes: &nodes,
        pods: &pods(&all),
        free: &BTreeMap::new(),
    };
    assert!(problem(super::plan_moves(&request, &nowhere)).contains("is not offloaded"));
    let silent = [
        EvictionNode {
            answers: false,
            ..node("milan")
        },
        node("turin"),
    ];
    assert!(problem(planned(&request, "Remote", &silent, &all)).contains("takes no new pods"));

    let turin = peer("turin");
    let both = planned(
        &MoveRequest {
            from: Some(&turin),
            ..request
        },
        "Remote",
        &nodes,
        &all,
    )
    .unwrap();
    assert_eq!(names_of(&both), ["a"]);
}

#[test]
fn clusters_that_the_namespace_does_not_select_count_for_nothing() {
    let (milan, turin) = (peer("milan"), peer("turin"));
    let mut selecting = offloading("Remote");
    let region = json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "region", "operator": "In", "values": ["of-turin"] }] }] });
    selecting.spec.cluster_selector = Some(serde_json::from_value(region).unwrap());
    let (nodes, pods) = ([node("milan"), node("turin")], pods(&[pod("a", "rome-1")]));
    let facts = MoveFacts {
        offloading: Some(&selecting),
        nodes: &nodes,
        pods: &pods,
        free: &BTreeMap::new(),
    };
    assert!(
        problem(plan_moves(
            &MoveRequest {
                to: Some(&milan),
                ..NOTHING
            },
            &facts
        ))
        .contains("does not select milan")
    );
    let to_turin = plan_moves(
        &MoveRequest {
            to: Some(&turin),
            ..NOTHING
        },
        &facts,
    )
    .unwrap();
    assert!(
        to_turin.cordoned_nodes.is_empty(),
        "milan gets no pods of this namespace anyway"
    );
    assert!(
        plan_moves(
            &MoveRequest {
                from: Some(&turin),
                ..NOTHING
            },
            &facts
        )
        .is_err()
    );
}

#[test]
fn pods_without_a_controller_are_refused_by_name() {
    let milan = peer("milan");
    let alone = with(
        pod("alone", "milan"),
        "/metadata/ownerReferences",
        json!([]),
    );
    let all = [pod("a", "milan"), alone];
    let request = MoveRequest {
        from: Some(&milan),
        ..NOTHING
    };
    let text = problem(planned(&request, "LocalAndRemote", &[node("milan")], &all));
    assert!(
        text.contains(": alone.") && text.contains("--force"),
        "{text}"
    );
    let forced = planned(
        &MoveRequest {
            force: true,
            ..request
        },
        "LocalAndRemote",
        &[node("milan")],
        &all,
    )
    .unwrap();
    assert_eq!(names(&forced), ["a", "alone"]);
    let named = ["a".to_owned()];
    let others = planned(
        &MoveRequest {
            names: &named,
            ..request
        },
        "LocalAndRemote",
        &[node("milan")],
        &all,
    )
    .unwrap();
    assert_eq!(names(&others), ["a"]);
}

#[test]
fn a_named_pod_that_cannot_move_is_an_error() {
    let milan = peer("milan");
    let refused = |name: &str| {
        let named = [name.to_owned()];
        let request = MoveRequest {
            from: Some(&milan),
            names: &named,
            ..NOTHING
        };
        problem(planned(
            &request,
            "LocalAndRemote",
            &[node("milan")],
            &[pod("b", "rome-1")],
        ))
    };
    assert!(refused("b").contains("it is not at milan, but on node rome-1"));
    assert!(refused("c").contains("there is no pod c in namespace demo"));
}

#[test]
fn each_pod_is_shown_with_the_one_that_replaced_it() {
    let milan = peer("milan");
    let before = [
        pod("web-a", "milan"),
        pod("web-b", "milan"),
        pod("web-c", "rome-1"),
    ];
    let plan = planned(
        &MoveRequest {
            from: Some(&milan),
            ..NOTHING
        },
        "LocalAndRemote",
        &[node("milan")],
        &before,
    )
    .unwrap();
    let known: BTreeSet<String> = ["web-a", "web-b", "web-c"].map(str::to_owned).into();
    let waiting = json!([{ "type": "PodScheduled", "status": "False", "message": "0/2 nodes are available" }]);
    let unscheduled = with(
        with(pod("web-e", ""), "/status/conditions", waiting),
        "/spec/nodeName",
        Value::Null,
    );
    let found = match_replacements(
        &plan,
        &known,
        &pods(&[pod("web-c", "rome-1"), pod("web-d", "rome-1")]),
    );
    assert_eq!(found[0].new_pod.as_deref(), Some("web-d"));
    assert_eq!(
        (found[0].to.as_deref(), &found[0].waits),
        (Some("rome-1"), &None)
    );
    assert_eq!(
        describe_missing(&found).unwrap(),
        "ReplicaSet web has not created a pod instead of web-b yet"
    );
    let found = match_replacements(&plan, &known, &pods(&[pod("web-d", "rome-1"), unscheduled]));
    assert_eq!(
        describe_missing(&found).unwrap(),
        "web-e has no node: 0/2 nodes are available"
    );
    assert_eq!(
        describe_missing(&match_replacements(
            &plan,
            &known,
            &pods(&[pod("web-d", "rome-1"), pod("web-e", "turin")])
        )),
        None
    );
}

#[test]
fn a_pod_of_a_stateful_set_is_replaced_by_the_one_of_the_same_name() {
    let milan = peer("milan");
    let of_set = |name: &str, uid: &str, node: &str| {
        with(
            with(
                pod(name, node),
                "/metadata/ownerReferences/0/kind",
                json!("StatefulSet"),
            ),
            "/metadata/uid",
            json!(uid),
        )
    };
    let before = [of_set("db-0", "0", "milan"), of_set("db-1", "1", "milan")];
    let plan = planned(
        &MoveRequest {
            from: Some(&milan),
            ..NOTHING
        },
        "LocalAndRemote",
        &[node("milan")],
        &before,
    )
    .unwrap();
    let known: BTreeSet<String> = ["0", "1"].map(str::to_owned).into();
    let found = match_replacements(&plan, &known, &pods(&[of_set("db-1", "2", "rome-1")]));
    assert_eq!(
        (found[0].new_pod.as_deref(), found[1].new_pod.as_deref()),
        (None, Some("db-1"))
    );
    assert!(describe_missing(&found).unwrap().contains("db-0"));
}

#[test]
fn a_controller_that_has_all_the_pods_it_wants_is_not_waited_for() {
    let milan = peer("milan");
    let before = [pod("web-a", "milan"), pod("web-b", "milan")];
    let plan = planned(
        &MoveRequest {
            from: Some(&milan),
            ..NOTHING
        },
        "LocalAndRemote",
        &[node("milan")],
        &before,
    )
    .unwrap();
    let known: BTreeSet<String> = ["web-a", "web-b"].map(str::to_owned).into();
    let ending = with(
        pod("web-b", "milan"),
        "/metadata/deletionTimestamp",
        json!("2026-01-01T00:00:00Z"),
    );
    let now = pods(&[pod("web-c", "rome-1"), ending]);
    let found = match_replacements(&plan, &known, &now);
    let owners = owners_that_wait(&plan, &found);
    assert_eq!(
        owners
            .iter()
            .map(|owner| owner.name.as_str())
            .collect::<Vec<_>>(),
        ["web"]
    );
    let still_waits = |wanted: Option<u64>| {
        let (mut found, wanted) = (
            found.clone(),
            wanted
                .map(|count| ("r".to_owned(), count))
                .into_iter()
                .collect(),
        );
        skip_needless_waits(&plan, &mut found, &wanted, &now);
        describe_missing(&found).is_some()
    };
    assert!(still_waits(Some(2)), "the pod that ends does not count");
    assert!(still_waits(None), "nobody knows what it wants");
    assert!(!still_waits(Some(1)) && !still_waits(Some(0)));
}

#[test]
fn a_job_that_counts_the_old_pod_as_failed_is_not_waited_for() {
    let milan = peer("milan");
    let of_job = with(
        pod("task-a", "milan"),
        "/metadata/ownerReferences/0/kind",
        json!("Job"),
    );
    let plan = planned(
        &MoveRequest {
            from: Some(&milan),
            ..NOTHING
        },
        "LocalAndRemote",
        &[node("milan")],
        &[of_job],
    )
    .unwrap();
    let mut found = match_replacements(&plan, &["task-a".to_owned()].into(), &[]);
    assert!(describe_missing(&found).is_some());
    skip_needless_waits(&plan, &mut found, &WantedReplicas::new(), &[]);
    assert_eq!(describe_missing(&found), None);
}

#[test]
fn a_controller_that_is_gone_wants_no_pods() {
    let owner = PodOwner {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "r".into(),
    };
    let found = |uid: &str, deleted: Value| -> DynamicObject {
        let metadata = json!({ "name": "web", "uid": uid, "deletionTimestamp": deleted });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "replicas": 3 } })).unwrap()
    };
    assert_eq!(wanted_replicas(&owner, Some(&found("r", Value::Null))), 3);
    assert_eq!(
        wanted_replicas(&owner, Some(&found("another", Value::Null))),
        0
    );
    assert_eq!(
        wanted_replicas(&owner, Some(&found("r", json!("2026-01-01T00:00:00Z")))),
        0
    );
    assert_eq!(wanted_replicas(&owner, None), 0);
}
