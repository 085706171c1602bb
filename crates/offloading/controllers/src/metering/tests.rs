//! A recorder whose API server has one contract, and stores usage records.

mod many_pods;

use std::convert::Infallible;

use http::{Method, Response};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use liqo_api::{ClusterId, provider_namespace, tenant_namespace};
use liqo_metering::UsageEntries;
use serde_json::{Value, json};

use super::*;
use crate::testing;

const CONTRACT: &str = "0123456789abcdef0123456789abcdef";
const RECORDS: &str = "/usagerecords";

fn consumer() -> ClusterId {
    ClusterId::of_public_key(&[7; 32])
}

/// The server ignores selectors, and serves either side.
fn peer_labels() -> Value {
    json!({ labels::CONSUMER_ID: consumer(), labels::PROVIDER_ID: ClusterId::of_public_key(&[1; 32]) })
}

fn contract(namespace: &str, period_seconds: u32) -> Value {
    let since = "2026-01-01T00:00:00Z";
    let limits = json!({ "podSecurity": "baseline", "maxNamespaces": 1, "maxServices": 1, "maxEndpoints": 1, "charge": "Requests",
        "defaultLimitPercentage": 800 });
    let terms = json!({ "contract": CONTRACT, "version": 1, "provider": ClusterId::of_public_key(&[1; 32]), "consumer": consumer(),
        "commitment": "BestEffort", "pools": [], "classes": {}, "prices": {}, "noticeSeconds": 0, "limits": limits, "start": since,
        "renewal": "None", "meteringPeriodSeconds": period_seconds });
    json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "Contract",
        "metadata": { "namespace": namespace, "name": "contract-01234567", "resourceVersion": "1", "labels": peer_labels() },
        "spec": { "document": "", "terms": terms, "inForceSince": since } })
}

/// What the API server stores, and what happened.
struct Server {
    contract: Value,
    records: BTreeMap<String, Value>,
    writes: usize,
    /// Codes of the next answers to writes; 200 does the write. After a 500, the write was done all
    /// the same.
    codes: Vec<u16>,
}

impl Default for Server {
    fn default() -> Self {
        let contract = contract(&tenant_namespace(&consumer()), 3600);
        Self {
            contract,
            records: BTreeMap::new(),
            writes: 0,
            codes: Vec::new(),
        }
    }
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, change: &Value) -> (u16, Value) {
        let list = |items: Vec<Value>| json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
        if method == Method::GET {
            let items = if path.ends_with(RECORDS) {
                self.records.values().cloned().collect()
            } else {
                vec![self.contract.clone()]
            };
            return (200, list(items));
        }
        self.writes += 1;
        let code = self.codes.pop().unwrap_or(200);
        let failed = |code: u16, reason: &str| {
            (
                code,
                json!({ "kind": "Status", "status": "Failure", "reason": reason, "message": "no", "code": code }),
            )
        };
        if code == 503 {
            return failed(503, "ServiceUnavailable");
        }
        let answer = if method == Method::POST {
            let name = change["metadata"]["name"].as_str().unwrap().to_owned();
            if self.records.contains_key(&name) {
                return failed(409, "AlreadyExists");
            }
            let mut record = change.clone();
            record["metadata"]["namespace"] = path.rsplit('/').nth(1).into();
            self.records.insert(name, record.clone());
            record
        } else {
            let record = self
                .records
                .get_mut(path.rsplit('/').next().unwrap())
                .unwrap();
            record["spec"] = change[0]["value"].clone();
            record.clone()
        };
        if code == 200 {
            (200, answer)
        } else {
            failed(code, "InternalError")
        }
    }

    /// The entries of all records.
    fn usage(&self) -> UsageEntries {
        let texts = self
            .records
            .values()
            .map(|record| record["spec"]["entries"].as_str().unwrap().to_owned());
        UsageEntries::parse(&texts.collect::<String>()).unwrap()
    }
}

fn client(server: &Arc<Mutex<Server>>) -> Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            if parts
                .uri
                .query()
                .is_some_and(|query| query.contains("watch=true"))
            {
                std::future::pending::<()>().await;
            }
            let change = serde_json::from_slice(&body.collect().await.unwrap().to_bytes())
                .unwrap_or_default();
            let (code, answer) = server
                .lock()
                .answer(&parts.method, parts.uri.path(), &change);
            Ok::<_, Infallible>(
                Response::builder()
                    .status(code)
                    .body(Body::from(answer.to_string().into_bytes()))
                    .unwrap(),
            )
        }
    });
    Client::new(service, "default")
}

#[derive(Default)]
struct Pods {
    stored: Mutex<HashSet<String>>,
    /// Whether the other side is away, so that nobody knows which pods run.
    is_away: std::sync::atomic::AtomicBool,
    open: Vec<UsageEntry>,
    /// After how many seconds a period is completed.
    grace: Seconds,
}

impl MeteringSide for Pods {
    fn open_entries(&self, _: &str, _: Seconds) -> Option<Vec<UsageEntry>> {
        (!self.is_away.load(std::sync::atomic::Ordering::Relaxed)).then(|| self.open.clone())
    }

    fn entry_parts(&self, entry: &UsageEntry, period_seconds: u32) -> Vec<(Period, UsageEntry)> {
        Period::parts(entry, period_seconds)
    }

    fn entries_stored(&self, _: &str, pods: Vec<String>) {
        self.stored.lock().extend(pods);
    }

    fn completion_grace(&self) -> Seconds {
        self.grace
    }
}

/// A process of a cluster with this API server.
fn context(server: &Arc<Mutex<Server>>) -> Context {
    testing::context("milan", client(server))
}

/// Runs a recorder.
async fn recorder(server: &Arc<Mutex<Server>>, side: &Arc<Pods>) -> Arc<UsageRecorder> {
    let recorder = UsageRecorder::start(&context(server), labels::CONSUMER_ID, "provider");
    tokio::spawn(recorder.clone().run(side.clone()));
    assert!(recorder.synced().await);
    recorder
}

fn now() -> Seconds {
    testing::clock().now().as_second()
}

fn entry(pod: &str, from: Seconds, until: Seconds) -> UsageEntry {
    format!("{pod} p {from} {until} cpu=1").parse().unwrap()
}

/// Stores what these pods used, and waits until all of it is stored.
async fn store(recorder: &UsageRecorder, side: &Pods, pods: std::ops::Range<usize>) {
    let (until, namespace) = (now(), tenant_namespace(&consumer()));
    for pod in pods.clone() {
        recorder.store_entries(
            &namespace,
            &format!("u{pod}"),
            vec![entry(&format!("u{pod}"), until - 10, until)],
        );
    }
    let all: Vec<String> = pods.map(|pod| format!("u{pod}")).collect();
    tokio::time::timeout(Duration::from_secs(20), async {
        while !all.iter().all(|pod| side.stored.lock().contains(pod)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert!(all.iter().all(|pod| recorder.is_stored(&namespace, pod)));
}

#[tokio::test]
async fn a_thousand_pods_cost_a_few_writes() {
    let (server, side) = (
        Arc::default(),
        Arc::new(Pods {
            grace: 100_000_000,
            ..Pods::default()
        }),
    );
    let recorder = recorder(&server, &side).await;
    store(&recorder, &side, 0..1000).await;
    let server = server.lock();
    assert!(server.writes <= 10, "{} writes", server.writes);
    let pods: HashSet<String> = server
        .usage()
        .entries()
        .map(|entry| entry.uid.clone())
        .collect();
    assert_eq!(pods.len(), 1000);
}

#[tokio::test]
async fn nothing_is_lost_or_replaced_when_writes_fail_or_a_name_is_taken() {
    let side = Arc::new(Pods {
        grace: 100_000_000,
        ..Pods::default()
    });
    let server = Arc::new(Mutex::new(Server {
        codes: vec![200, 500, 503],
        ..Server::default()
    }));
    {
        // Another process wrote the first chunks a moment ago, and the watch does not show them.
        let first = recorder(&server, &side).await;
        let period = Period::at(now(), 3600);
        let taken = json!({ "metadata": { "name": record_name(CONTRACT, period, 0) }, "spec": { "entries": "other p 1 9 cpu=1\n" } });
        server
            .lock()
            .records
            .insert(record_name(CONTRACT, period, 0), taken);
        store(&first, &side, 0..20).await;
    }
    let usage = server.lock().usage();
    let pods: HashSet<&str> = usage.pods().into_iter().collect();
    assert!(
        pods.contains("other") && (0..20).all(|pod| pods.contains(format!("u{pod}").as_str())),
        "{pods:?}"
    );
}

#[tokio::test]
async fn pods_that_still_run_are_added_when_a_period_is_over() {
    let before = Period::at(now(), 3600).previous();
    let open = vec![entry("open", before.start - 10, now() + 5)];
    let (server, side): (Arc<Mutex<Server>>, _) = (
        Arc::default(),
        Arc::new(Pods {
            open,
            ..Pods::default()
        }),
    );
    let recorder = recorder(&server, &side).await;
    tokio::time::timeout(Duration::from_secs(20), async {
        while recorder
            .settled_until(&tenant_namespace(&consumer()))
            .as_second()
            < before.end()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let server = server.lock();
    let record = &server.records[&record_name(CONTRACT, before, 0)];
    assert_eq!(record["spec"]["chunks"], 1);
    assert_eq!(
        record["spec"]["entries"],
        format!("open p {} {} cpu=1\n", before.start, before.end())
    );
    assert_eq!(
        record["metadata"]["labels"][labels::USAGE_PERIOD],
        period_label(CONTRACT, before)
    );
    assert!(
        !server
            .records
            .contains_key(&record_name(CONTRACT, before.next(), 0)),
        "the present period is not over"
    );
}

#[tokio::test]
async fn a_consumer_says_when_it_counted_and_only_after_the_provider_is_back() {
    let namespace = provider_namespace(&consumer());
    let (before, side) = (
        Period::at(now(), 3600).previous(),
        Arc::new(Pods {
            is_away: true.into(),
            ..Pods::default()
        }),
    );
    let server = Arc::new(Mutex::new(Server {
        contract: contract(&namespace, 3600),
        ..Server::default()
    }));
    let run = || async {
        let recorder = UsageRecorder::start(&context(&server), labels::PROVIDER_ID, "consumer");
        tokio::spawn(recorder.clone().run(side.clone()));
        assert!(recorder.synced().await);
        tokio::time::sleep(Duration::from_millis(200)).await;
        recorder
    };
    run().await;
    assert!(
        server.lock().records.is_empty(),
        "what the provider does is not known"
    );
    side.is_away
        .store(false, std::sync::atomic::Ordering::Relaxed);
    let recorder = run().await;
    tokio::time::timeout(Duration::from_secs(20), async {
        while recorder.settled_until(&namespace).as_second() < before.end() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let server = server.lock();
    let names: Vec<&String> = server.records.keys().collect();
    assert_eq!(
        names,
        [&record_name(CONTRACT, before, 0)],
        "one empty record, however long it was away"
    );
    let spec = &server.records[names[0]]["spec"];
    assert_eq!((&spec["entries"], &spec["chunks"]), (&json!(""), &json!(1)));
}

#[tokio::test]
async fn the_end_of_a_pod_that_a_complete_period_has_may_lie_in_it() {
    let before = Period::at(now(), 3600).previous();
    let ended = entry("ended", before.start, before.end() - 10);
    let again = [
        entry("again", before.start, before.end() - 10),
        entry("again", before.end() - 5, now() + 5),
    ];
    let open = [
        &[ended, entry("running", before.start, now() + 5)],
        again.as_slice(),
    ]
    .concat();
    let (server, side): (Arc<Mutex<Server>>, _) = (
        Arc::default(),
        Arc::new(Pods {
            open,
            ..Pods::default()
        }),
    );
    let recorder = recorder(&server, &side).await;
    let namespace = tenant_namespace(&consumer());
    let settled = |pod: &str| recorder.settled_until_running(&namespace, pod).as_second();
    tokio::time::timeout(Duration::from_secs(20), async {
        while settled("running") < before.end() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!((settled("ended"), settled("again")), (0, before.end()));
}

#[tokio::test]
async fn without_a_contract_nothing_waits_and_nothing_is_written() {
    let (server, side): (Arc<Mutex<Server>>, _) = (Arc::default(), Arc::new(Pods::default()));
    let recorder = recorder(&server, &side).await;
    let stranger = tenant_namespace(&ClusterId::of_public_key(&[9; 32]));
    assert!(
        recorder.store_entries(&stranger, "u", vec![entry("u", now() - 10, now())])
            && recorder.latest_contract(&stranger).is_none()
    );
}

#[test]
fn records_are_named_after_contract_period_and_chunk() {
    let name = record_name("0123456789abcdef", Period::at(1_767_225_600, 3600), 3);
    assert_eq!(name, "usage-01234567-202601010000-3");
}

#[test]
fn the_peer_is_derived_from_the_namespace() {
    let id = ClusterId::of_public_key(&[1; 32]);
    assert_eq!(peer_of_namespace(&tenant_namespace(&id)), Some(id.clone()));
    assert_eq!(peer_of_namespace(&provider_namespace(&id)), Some(id));
}

#[test]
fn only_the_end_of_the_namespace_lets_entries_go() {
    let status = |value: serde_json::Value| serde_json::from_value(value).unwrap();
    let causes =
        json!([{ "reason": "NamespaceTerminating", "message": "", "field": "metadata.namespace" }]);
    assert!(is_ending(&status(
        json!({ "code": 403, "reason": "Forbidden", "details": { "causes": causes } })
    )));
    assert!(is_ending(&status(
        json!({ "code": 404, "reason": "NotFound" })
    )));
    assert!(!is_ending(&status(
        json!({ "code": 403, "reason": "Forbidden", "details": {} })
    )));
    assert!(!is_ending(&status(
        json!({ "code": 500, "reason": "InternalError" })
    )));
}
