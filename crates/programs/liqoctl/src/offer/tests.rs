use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::{Client, client::Body};
use liqo_api::ClusterId;
use serde_json::{Value, from_value};

use super::*;
use crate::cluster::ClusterAccess;

/// One request: method, path with query, body.
type Seen = Arc<Mutex<Vec<(Method, String, Value)>>>;

fn milan() -> ClusterId {
    ClusterId::of_public_key(&[2; 32])
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
fn foreign(offers: Value) -> Value {
    json!({
        "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster", "metadata": { "name": "milan" },
        "spec": { "clusterID": milan(), "outgoingPeering": "Yes", "authURL": "https://203.0.113.5:1", "offers": offers },
    })
}

/// An API server that answers with `answer`, which gets the number of earlier requests of the same
/// kind.
fn cluster(
    answer: impl Fn(&Method, &str, usize) -> Option<Value> + Send + Sync + 'static,
) -> (Cluster, Seen) {
    let (seen, answer) = (Seen::default(), Arc::new(answer));
    let log = seen.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (log, answer) = (log.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let path = parts.uri.to_string();
            let mut log = log.lock().unwrap();
            let before = log
                .iter()
                .filter(|(method, other, _)| (method, other) == (&parts.method, &path))
                .count();
            log.push((parts.method.clone(), path.clone(), body));
            let (code, value) = match answer(&parts.method, &path, before) {
                Some(value) => (200, value),
                None => (
                    404,
                    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not there", "reason": "NotFound", "code": 404 }),
                ),
            };
            let body = Body::from(serde_json::to_vec(&value).unwrap());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
        }
    });
    let client = Client::new(service, "default");
    (
        Cluster {
            client,
            access: ClusterAccess::default(),
            context: "rome".into(),
            server: "https://rome".into(),
        },
        seen,
    )
}

/// An API server where the second request shows this offer of pool gold, whose Node is milan-gold.
fn with_offer(then: &'static str, node: bool) -> (Cluster, Seen) {
    cluster(move |_, path, before| {
        let path = path.split('?').next()?;
        let name = path.rsplit('/').next()?;
        match name {
            "milan" => Some(foreign(json!({}))),
            "resourceoffers" => {
                let phase = if before == 0 {
                    "ManualActionRequired"
                } else {
                    then
                };
                let offer = json!({ "metadata": { "name": "gold" }, "status": { "phase": phase },
                    "spec": { "clusterID": milan(), "pool": "gold", "resourceQuota": { "hard": { "cpu": "2" } } } });
                Some(
                    json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOfferList", "metadata": {}, "items": [offer] }),
                )
            }
            "gold" if node => Some(
                json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "VirtualNode", "metadata": { "name": "gold" },
                "spec": { "clusterID": milan(), "clusterName": "milan", "pool": "gold", "resources": {} }, "status": { "nodeName": "milan-gold" } }),
            ),
            "pods" => Some(
                json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [
                { "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "name": "web-1", "namespace": "demo" } }] }),
            ),
            _ => None,
        }
    })
}

fn written(seen: &Seen) -> Vec<(String, Value)> {
    let seen = seen.lock().unwrap();
    seen.iter()
        .filter(|(method, _, _)| *method != Method::GET)
        .map(|(_, path, body)| (path.clone(), body.clone()))
        .collect()
}

const PATH: &str = "/apis/discovery.liqo.io/v1alpha1/foreignclusters/milan?";

#[tokio::test]
async fn a_decision_is_written_and_followed_until_it_was_taken_up() {
    let (cluster, seen) = with_offer("Accepted", true);
    let milan: ForeignCluster = from_value(foreign(json!({}))).unwrap();
    let progress = StepProgress::silent();
    let node = decide_and_wait(
        &cluster,
        &milan,
        "gold",
        OfferDecision::Accept,
        Duration::from_secs(20),
        &progress,
    )
    .await
    .unwrap();
    assert_eq!(node.as_deref(), Some("milan-gold"));
    assert_eq!(
        written(&seen),
        [(
            PATH.to_owned(),
            json!({ "spec": { "offers": { "gold": "Accept" } } })
        )]
    );

    let (cluster, seen) = with_offer("Refused", false);
    let node = decide_and_wait(
        &cluster,
        &milan,
        "gold",
        OfferDecision::Refuse,
        Duration::from_secs(20),
        &progress,
    )
    .await
    .unwrap();
    assert_eq!(node, None);
    assert_eq!(
        written(&seen),
        [(
            PATH.to_owned(),
            json!({ "spec": { "offers": { "gold": "Refuse" } } })
        )]
    );
}

#[tokio::test]
async fn a_decision_that_is_not_taken_up_in_time_says_how_to_take_it_back() {
    let (cluster, _) = with_offer("ManualActionRequired", false);
    let milan: ForeignCluster = from_value(foreign(json!({}))).unwrap();
    let decided = decide_and_wait(
        &cluster,
        &milan,
        "gold",
        OfferDecision::Accept,
        Duration::ZERO,
        &StepProgress::silent(),
    )
    .await;
    let error = decided.unwrap_err().to_string();
    assert!(
        error.contains("pool gold of milan is accepted: the controllers have not processed"),
        "{error}"
    );
    assert!(
        error.ends_with("`liqoctl offer forget milan gold` undoes it"),
        "{error}"
    );
}

#[tokio::test]
async fn the_pods_that_a_refusal_ends_are_those_on_the_node_of_the_pool() {
    let milan: ForeignCluster = from_value(foreign(json!({}))).unwrap();
    let (cluster, seen) = with_offer("Accepted", true);
    assert_eq!(
        pods_on(&cluster, &milan, "gold").await.unwrap(),
        ["demo/web-1"]
    );
    let asked = seen.lock().unwrap().last().unwrap().1.clone();
    assert!(asked.contains("spec.nodeName%3Dmilan-gold"), "{asked}");
    let (without_node, _) = with_offer("Accepted", false);
    assert_eq!(
        pods_on(&without_node, &milan, "gold").await.unwrap(),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn only_a_decision_that_stands_is_forgotten() {
    let decided: ForeignCluster = from_value(foreign(json!({ "gold": "Refuse" }))).unwrap();
    let (cluster, seen) = with_offer("Refused", false);
    forget_decision(&cluster, &decided, "gold").await.unwrap();
    assert_eq!(
        written(&seen),
        [(
            PATH.to_owned(),
            json!({ "spec": { "offers": { "gold": null } } })
        )]
    );
    assert!(
        forget_decision(&cluster, &decided, "bulk")
            .await
            .unwrap_err()
            .to_string()
            .contains("only Refuse gold")
    );
    assert_eq!(written(&seen).len(), 1);
}

#[test]
fn the_outcome_names_the_node_or_what_was_lost() {
    let accepted = DecidedOffer {
        peer: "milan".into(),
        pool: "gold".into(),
        decision: OfferDecision::Accept,
        node: Some("milan-gold".into()),
        lost_pods: Vec::new(),
    };
    assert_eq!(
        render_decided_offer(&accepted),
        "Pool gold of milan is accepted: it is Node milan-gold here."
    );
    let lost_pods = vec!["demo/web-1".to_owned(), "demo/web-2".to_owned()];
    assert_eq!(
        question_before_refusal("milan", "gold", &lost_pods),
        "This ends the pods that run on pool gold of milan: demo/web-1, demo/web-2. Continue?"
    );
    let many: Vec<String> = (1..=12)
        .map(|number| format!("demo/web-{number}"))
        .collect();
    assert!(
        question_before_refusal("milan", "gold", &many)
            .ends_with("demo/web-10 and 2 more. Continue?")
    );
    let refused = DecidedOffer {
        decision: OfferDecision::Refuse,
        node: None,
        lost_pods,
        ..accepted
    };
    assert_eq!(
        render_decided_offer(&refused),
        "Pool gold of milan is refused. 2 pods ended. `liqoctl offer forget milan gold` lets the policy decide again."
    );
}
