use std::time::{Duration, Instant};

use crate::fixtures;

use super::*;

const MAPPED: &str = "demo-rome-aaaaaa";

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

/// A warning about remote pod `r` with these changes.
fn event(changes: &Value) -> Event {
    let mut event = json!({
        "metadata": { "namespace": MAPPED, "name": "web.1", "uid": "e", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "involvedObject": { "kind": "Pod", "namespace": MAPPED, "name": "web", "uid": "r", "fieldPath": "spec.containers{main}" },
        "type": "Warning", "reason": "Failed", "message": "Failed to pull image \"x\"", "count": 3,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z",
        "source": { "component": "kubelet", "host": "milan-1" },
    });
    json_patch::merge(&mut event, changes);
    serde_json::from_value(event).unwrap()
}

fn remote(changes: &Value) -> Option<RemoteEvent> {
    RemoteEvent::from_event(event(changes), MAPPED, EventSelection::Notable, now())
}

fn local_pod() -> LocalPod {
    let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "home-uid" }, "spec": { "containers": [] } });
    LocalPod::from_pod(
        serde_json::from_value(pod).unwrap(),
        &Key::new("p", "default"),
    )
    .unwrap()
}

fn at_home(changes: &Value) -> Value {
    remote(changes)
        .unwrap()
        .to_local_event(&local_pod(), MAPPED, "milan", false)
        .1
}

#[test]
fn a_warning_becomes_an_event_of_the_local_pod() {
    let written = at_home(&json!({}));
    let name = written["metadata"]["name"].as_str().unwrap();
    assert!(
        name.starts_with("web.") && dns_names::is_subdomain(name),
        "{name}"
    );
    let expected = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "namespace": "demo", "name": name },
        "involvedObject": { "apiVersion": "v1", "kind": "Pod", "namespace": "demo", "name": "web", "uid": "home-uid",
            "fieldPath": "spec.containers{main}" },
        "type": "Warning", "reason": "Failed", "message": "Failed to pull image \"x\"", "count": 3,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z",
        "source": { "component": "milan/kubelet", "host": "milan" }, "reportingComponent": "liqo-controller-manager",
    });
    assert_eq!(written, expected);
}

#[test]
fn an_event_has_the_same_name_after_a_restart_and_another_one_has_another_name() {
    let name = |changes: &Value| at_home(changes)["metadata"]["name"].clone();
    assert_eq!(
        name(&json!({})),
        name(&json!({ "count": 7, "message": "other words" }))
    );
    assert_ne!(
        name(&json!({})),
        name(&json!({ "metadata": { "uid": "f" } }))
    );
}

#[test]
fn the_name_of_an_event_of_a_pod_with_a_long_name_is_valid() {
    let long = format!("{}-{}", "a".repeat(235), "b".repeat(17));
    let pod = json!({ "metadata": { "namespace": "demo", "name": long, "uid": "u" }, "spec": { "containers": [] } });
    let pod = LocalPod::from_pod(
        serde_json::from_value(pod).unwrap(),
        &Key::new("p", "default"),
    )
    .unwrap();
    let (key, _) = remote(&json!({}))
        .unwrap()
        .to_local_event(&pod, MAPPED, "milan", false);
    assert!(dns_names::is_subdomain(&key.name), "{}", key.name);
}

#[test]
fn only_warnings_about_pods_of_the_mapped_namespace_count() {
    for changes in [
        json!({ "type": "Normal" }),
        json!({ "type": "Other" }),
        json!({ "type": null }),
        json!({ "involvedObject": { "kind": "Service" } }),
        json!({ "involvedObject": { "namespace": "kube-system" } }),
        json!({ "involvedObject": { "name": "../web" } }),
        json!({ "involvedObject": { "uid": null } }),
        json!({ "metadata": { "uid": null } }),
        json!({ "reason": null }),
        json!({ "reason": "" }),
        json!({ "reason": "1st" }),
        json!({ "reason": "Two words" }),
        json!({ "reason": "A".repeat(129) }),
        json!({ "firstTimestamp": null, "lastTimestamp": null, "metadata": { "creationTimestamp": null } }),
    ] {
        assert_eq!(remote(&changes), None, "{changes}");
    }
    assert!(remote(&json!({ "reason": "A".repeat(128) })).is_some());
}

#[test]
fn texts_and_numbers_of_a_hostile_provider_are_bounded() {
    let hostile = at_home(&json!({
        "message": format!("\u{1b}[2Jone\ntwo\u{202e}{}", "é".repeat(5000)), "count": i32::MAX,
        "firstTimestamp": "2030-01-01T00:00:00Z", "lastTimestamp": "2029-01-01T00:00:00Z",
        "source": { "component": "kubelet\n<script>" }, "involvedObject": { "fieldPath": "x\u{7}" },
    }));
    let message = hostile["message"].as_str().unwrap();
    assert!(
        message.starts_with("[2Jone twoé") && message.ends_with('é'),
        "{message}"
    );
    assert!((1022..=1024).contains(&message.len()), "{}", message.len());
    assert_eq!(
        (&hostile["count"], &hostile["source"]["component"]),
        (&json!(1_000_000), &json!("milan"))
    );
    assert_eq!(
        (&hostile["firstTimestamp"], &hostile["lastTimestamp"]),
        (
            &json!(seconds_timestamp(now())),
            &json!(seconds_timestamp(now()))
        )
    );
    assert_eq!(hostile["involvedObject"].get("fieldPath"), None);
    assert_eq!(at_home(&json!({ "count": -5 }))["count"], 1);
}

#[test]
fn who_reports_an_event_of_a_brokered_pod_says_nothing_of_its_node() {
    let source = |changes: &Value| {
        remote(changes)
            .unwrap()
            .to_local_event(&local_pod(), MAPPED, "genoa", true)
            .1["source"]["component"]
            .clone()
    };
    assert_eq!(
        source(&json!({ "source": { "component": "kubelet" } })),
        "kubelet"
    );
    assert_eq!(
        source(&json!({ "source": null, "reportingComponent": "" })),
        liqo_api::CONTROLLER_MANAGER
    );
}

#[test]
fn names_that_exist_only_at_the_provider_become_those_at_home() {
    let message = |text: &str| {
        at_home(&json!({ "message": text }))["message"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        message("restarting container main in pod web_demo-rome-aaaaaa(r)"),
        "restarting container main in pod web_demo(home-uid)"
    );
    assert_eq!(
        message("object \"demo-rome-aaaaaa\"/\"m\" not registered"),
        "object \"demo\"/\"m\" not registered"
    );
    assert_eq!(message("demo-rome-aaaaaa"), "demo");
    assert_eq!(
        message("x-demo-rome-aaaaaa demo-rome-aaaaaab err"),
        "x-demo-rome-aaaaaa demo-rome-aaaaaab err"
    );
}

#[test]
fn events_of_the_newer_api_are_read_too() {
    let scheduler = at_home(&json!({
        "firstTimestamp": null, "lastTimestamp": null, "count": null, "source": null, "reportingComponent": "default-scheduler",
        "eventTime": "2026-01-01T00:01:00.123456Z",
        "series": { "count": 4, "lastObservedTime": "2026-01-01T00:02:00.123456Z" },
    }));
    assert_eq!(scheduler["source"]["component"], "milan/default-scheduler");
    assert_eq!(
        (&scheduler["firstTimestamp"], &scheduler["lastTimestamp"]),
        (
            &json!("2026-01-01T00:01:00Z"),
            &json!("2026-01-01T00:02:00Z")
        )
    );
    assert_eq!(scheduler["count"], 4);
}

#[test]
fn a_namespace_is_watched_when_the_provider_says_that_it_is_ready() {
    let map = fixtures::map(
        &[],
        &[("demo", MAPPED, "u"), ("evil", "../../kube-system", "v")],
    );
    assert_eq!(
        watched_namespace(Some(&map), "demo").as_deref(),
        Some(MAPPED)
    );
    assert_eq!(
        (
            watched_namespace(Some(&map), "evil"),
            watched_namespace(Some(&map), "other")
        ),
        (None, None)
    );
    let mut terminating = map;
    let namespaces = &mut terminating.status.as_mut().unwrap().namespaces;
    namespaces.get_mut("demo").unwrap().phase = MappedNamespacePhase::Terminating;
    assert_eq!(
        (
            watched_namespace(Some(&terminating), "demo"),
            watched_namespace(None, "demo")
        ),
        (None, None)
    );
}

/// A journal and a time.
struct JournalAtTime {
    journal: RemoteEventJournal,
    now: Instant,
}

impl JournalAtTime {
    fn new() -> Self {
        Self {
            journal: RemoteEventJournal::default(),
            now: Instant::now(),
        }
    }

    fn arrives(&mut self, changes: &Value) -> bool {
        self.journal
            .event_arrived("home-uid", Some("r"), remote(changes).unwrap(), self.now)
    }

    /// Writes all that is due, and returns how much that was and what follows.
    fn write(&mut self, uid: &str) -> (usize, DueEvent) {
        for count in 0.. {
            match self.journal.next_due(uid, "r", self.now) {
                DueEvent::Write(event) => self.journal.event_written(uid, *event, self.now),
                due => return (count, due),
            }
        }
        unreachable!()
    }
}

#[test]
fn an_event_is_written_once_and_a_repeated_one_soon_and_then_more_and_more_rarely() {
    let mut journal = JournalAtTime::new();
    assert!(journal.arrives(&json!({})));
    assert_eq!(journal.write("home-uid"), (1, DueEvent::Nothing));
    assert!(
        !journal.arrives(&json!({})),
        "a watch that starts again shows the same events"
    );
    assert_eq!(journal.write("home-uid"), (0, DueEvent::Nothing));
    let mut count = 3;
    for pause in [10, 20, 40, 60, 60].map(Duration::from_secs) {
        for _ in 0..5 {
            count += 1;
            assert!(journal.arrives(&json!({ "count": count })));
        }
        assert_eq!(journal.write("home-uid"), (0, DueEvent::After(pause)));
        journal.now += pause;
        assert_eq!(journal.write("home-uid"), (1, DueEvent::Nothing));
    }
}

#[test]
fn the_events_of_a_pod_are_written_in_the_order_in_which_they_happened() {
    let mut journal = JournalAtTime::new();
    let names = [
        "web.18a0000000000003",
        "web.18a0000000000001",
        "web.18a0000000000002",
    ];
    for name in names {
        journal.arrives(&json!({ "metadata": { "uid": name, "name": name } }));
    }
    journal.arrives(
        &json!({ "metadata": { "uid": "early" }, "lastTimestamp": "2026-01-01T00:04:59Z" }),
    );
    let mut written = Vec::new();
    while let DueEvent::Write(event) = journal.journal.next_due("home-uid", "r", journal.now) {
        written.push(event.uid.clone());
        journal
            .journal
            .event_written("home-uid", *event, journal.now);
    }
    assert_eq!(written, ["early", names[1], names[2], names[0]]);
}

#[test]
fn events_of_the_same_second_have_names_in_the_order_in_which_they_happened() {
    let name = |changes: Value| {
        at_home(&changes)["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let named = |end: &str, uid: &str| {
        name(json!({ "metadata": { "name": format!("web.{end}"), "uid": uid } }))
    };
    for uid in 0..9 {
        let sorted = [
            named("9", &format!("a{uid}")),
            named("10", &format!("b{uid}")),
            named("18a0000000000001", &format!("c{uid}")),
        ];
        assert!(sorted.is_sorted(), "{sorted:?}");
    }
    let created =
        |time: &str| json!({ "metadata": { "name": "web.no-number", "creationTimestamp": time } });
    assert!(name(created("2026-01-01T00:00:00Z")) < name(created("2026-01-01T00:00:01Z")));
}

#[test]
fn the_cause_of_a_restart_travels_and_the_end_of_a_deleted_pod_does_not() {
    let killing =
        |message: &str| json!({ "type": "Normal", "reason": "Killing", "message": message });
    for message in [
        "Container main failed liveness probe, will be restarted",
        "Container main failed startup probe, will be restarted",
    ] {
        let written = at_home(&killing(message));
        assert_eq!(
            (&written["type"], &written["reason"], &written["message"]),
            (&json!("Normal"), &json!("Killing"), &json!(message))
        );
    }
    assert_eq!(remote(&killing("Stopping container main")), None);
    let started = json!({ "type": "Normal", "reason": "Started", "message": "Container main failed liveness probe" });
    assert_eq!(remote(&started), None);
}

#[test]
fn a_failed_write_is_due_again() {
    let mut journal = JournalAtTime::new();
    journal.arrives(&json!({}));
    assert!(matches!(
        journal.journal.next_due("home-uid", "r", journal.now),
        DueEvent::Write(_)
    ));
    assert!(
        journal.arrives(&json!({})),
        "the next connection shows it again"
    );
    assert_eq!(journal.write("home-uid"), (1, DueEvent::Nothing));
}

#[test]
fn events_wait_until_the_remote_pod_is_known_and_never_count_for_another_one() {
    let mut journal = JournalAtTime::new();
    journal.arrives(&json!({}));
    assert_eq!(
        journal.journal.next_due("home-uid", "another", journal.now),
        DueEvent::Nothing
    );
    assert_eq!(
        journal.journal.next_due("another", "r", journal.now),
        DueEvent::Nothing
    );
    assert_eq!(journal.write("home-uid"), (1, DueEvent::Nothing));
    journal.journal.forget_pod("home-uid");
    assert!(!journal.journal.has_events("home-uid"));
}

#[test]
fn a_pod_with_many_warnings_has_a_burst_and_then_one_in_five_minutes() {
    let mut journal = JournalAtTime::new();
    let mut written = 0;
    for number in 0..100 {
        journal.arrives(&json!({ "metadata": { "uid": format!("e{number}") } }));
        written += journal.write("home-uid").0;
    }
    assert_eq!(written, 25);
    assert_eq!(
        journal.write("home-uid"),
        (0, DueEvent::After(Duration::from_mins(5)))
    );
    journal.now += Duration::from_mins(5);
    assert_eq!(
        journal.write("home-uid"),
        (1, DueEvent::After(Duration::from_mins(5)))
    );
}

#[test]
fn only_the_last_few_events_of_a_pod_are_held_and_those_of_an_earlier_pod_go_first() {
    let mut journal = JournalAtTime::new();
    journal.arrives(&json!({}));
    for number in 0..100 {
        journal.arrives(&json!({ "metadata": { "uid": format!("e{number}") }, "involvedObject": { "uid": "earlier" } }));
    }
    assert_eq!(
        journal.write("home-uid"),
        (1, DueEvent::Nothing),
        "the event of this pod is still there"
    );
    for number in 0..100 {
        journal.arrives(&json!({ "metadata": { "uid": format!("f{number}") } }));
    }
    assert_eq!(journal.write("home-uid"), (16, DueEvent::Nothing));
}

#[test]
fn all_pods_of_a_provider_share_one_rate() {
    let mut journal = JournalAtTime::new();
    let pods: Vec<String> = (0..1000).map(|number| format!("u{number}")).collect();
    for uid in &pods {
        journal
            .journal
            .event_arrived(uid, Some("r"), remote(&json!({})).unwrap(), journal.now);
    }
    let write_all =
        |journal: &mut JournalAtTime| pods.iter().map(|uid| journal.write(uid).0).sum::<usize>();
    assert_eq!(write_all(&mut journal), 200);
    journal.now += Duration::from_secs(1);
    assert_eq!(write_all(&mut journal), 10);
    assert_eq!(
        journal.write(&pods[999]),
        (0, DueEvent::After(Duration::from_secs(1)))
    );
}

/// An event about the pull for this container, at this second of the pod's tenth minute.
fn pull(reason: &str, container: &str, second: u32) -> Value {
    let message = if reason == "Pulled" {
        "Successfully pulled image \"x\" in 1s"
    } else {
        "Pulling image \"x\""
    };
    json!({
        "type": "Normal", "reason": reason, "message": message, "lastTimestamp": format!("2026-01-01T00:09:{second:02}Z"),
        "metadata": { "uid": format!("{reason}-{container}") },
        "involvedObject": { "fieldPath": format!("spec.containers{{{container}}}") },
    })
}

impl JournalAtTime {
    /// Writes all that is due, and returns its reasons and what follows.
    fn reasons(&mut self) -> (Vec<String>, DueEvent) {
        let mut reasons = Vec::new();
        loop {
            match self.journal.next_due("home-uid", "r", self.now) {
                DueEvent::Write(event) => {
                    reasons.push(event.reason.clone());
                    self.journal.event_written("home-uid", *event, self.now);
                }
                due => return (reasons, due),
            }
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

#[test]
fn a_pod_whose_image_is_there_or_comes_soon_has_no_event() {
    let present = json!({ "type": "Normal", "reason": "Pulled", "message": "Container image \"x\" already present on machine" });
    assert_eq!(remote(&present), None);
    let mut journal = JournalAtTime::new();
    assert!(
        !journal.arrives(&pull("Pulled", "main", 9)),
        "it began before this process could see it"
    );
    assert!(
        !journal.journal.has_events("home-uid"),
        "a healthy pod takes no memory"
    );
    journal.arrives(&pull("Pulling", "main", 5));
    assert_eq!(
        journal.reasons(),
        (vec![], DueEvent::After(Duration::from_secs(5)))
    );
    journal.pass(4);
    assert!(!journal.arrives(&pull("Pulled", "main", 9)));
    journal.pass(60);
    assert_eq!(journal.reasons(), (vec![], DueEvent::Nothing));
}

#[test]
fn a_pull_that_takes_long_is_shown_while_it_goes_on_and_when_it_ends() {
    let mut journal = JournalAtTime::new();
    journal.arrives(&pull("Pulling", "main", 5));
    journal.pass(3);
    assert!(
        journal.arrives(&pull("Pulling", "main", 5)),
        "a watch that starts again shows it again"
    );
    assert_eq!(
        journal.reasons(),
        (vec![], DueEvent::After(Duration::from_secs(2)))
    );
    journal.pass(2);
    assert_eq!(
        journal.reasons(),
        (vec!["Pulling".to_owned()], DueEvent::Nothing)
    );
    journal.pass(30);
    assert_eq!(journal.reasons(), (vec![], DueEvent::Nothing));
    assert!(journal.arrives(&pull("Pulled", "main", 10)));
    assert_eq!(
        journal.reasons(),
        (vec!["Pulled".to_owned()], DueEvent::Nothing)
    );
}

#[test]
fn a_restarted_process_writes_the_same_of_a_pull_that_ended_meanwhile() {
    let mut journal = JournalAtTime::new();
    for _ in 0..2 {
        journal.arrives(&pull("Pulling", "main", 5));
        journal.arrives(&pull("Pulled", "main", 40));
        journal.arrives(&pull("Pulling", "fast", 41));
        journal.arrives(&pull("Pulled", "fast", 46));
    }
    let both = ["Pulling", "Pulled"].map(str::to_owned).to_vec();
    assert_eq!(journal.reasons(), (both, DueEvent::Nothing));
    journal.pass(60);
    assert_eq!(
        journal.reasons(),
        (vec![], DueEvent::Nothing),
        "it is written once"
    );
}

#[test]
fn only_a_later_event_about_the_same_container_of_the_same_pod_ends_a_pull() {
    let mut journal = JournalAtTime::new();
    journal.arrives(&pull("Pulling", "main", 5));
    journal.arrives(&pull("Pulled", "main", 4));
    journal.arrives(&pull("Pulled", "other", 6));
    let mut earlier = pull("Pulled", "main", 6);
    earlier["involvedObject"]["uid"] = "earlier".into();
    journal.arrives(&earlier);
    journal.pass(5);
    assert_eq!(journal.reasons().0, ["Pulling"]);
    assert_eq!(
        journal.journal.next_due("home-uid", "earlier", journal.now),
        DueEvent::Nothing
    );
}

#[test]
fn a_pull_that_fails_soon_shows_only_its_warning_and_the_next_one_counts_again() {
    let mut journal = JournalAtTime::new();
    journal.arrives(&pull("Pulling", "main", 5));
    journal.arrives(&json!({ "lastTimestamp": "2026-01-01T00:09:06Z" }));
    journal.pass(6);
    assert_eq!(
        journal.reasons(),
        (vec!["Failed".to_owned()], DueEvent::Nothing)
    );
    journal.arrives(&pull("Pulling", "main", 16));
    journal.pass(5);
    assert_eq!(journal.reasons().0, ["Pulling"]);
}

#[test]
fn a_hostile_provider_that_begins_pulls_without_end_fills_no_memory() {
    let mut journal = JournalAtTime::new();
    for number in 0..100 {
        journal.arrives(&pull("Pulling", &format!("c{number}"), 5));
    }
    journal.pass(5);
    assert_eq!(journal.reasons().0.len(), 8);
}

#[test]
fn a_namespace_that_asks_for_all_events_has_them_at_once_but_not_those_of_liqo_there() {
    let all = |changes: &Value| {
        RemoteEvent::from_event(event(changes), MAPPED, EventSelection::All, now())
    };
    let mut journal = JournalAtTime::new();
    for reason in [
        "Scheduled",
        "Pulling",
        "Pulled",
        "Created",
        "Started",
        "Killing",
    ] {
        let event = all(&json!({ "type": "Normal", "reason": reason, "message": "m", "metadata": { "uid": reason } })).unwrap();
        assert!(
            journal
                .journal
                .event_arrived("home-uid", Some("r"), event, journal.now)
        );
        assert_eq!(
            journal.reasons(),
            (vec![reason.to_owned()], DueEvent::Nothing)
        );
    }
    let source = json!({ "component": liqo_api::CONTROLLER_MANAGER });
    assert_eq!(all(&json!({ "type": "Normal", "source": source })), None);
    assert!(all(&json!({ "type": "Warning", "source": source })).is_some());
    assert_eq!(all(&json!({ "type": "Other" })), None);
}
