use serde_json::json;

use super::*;
use crate::{
    finding::CheckVerdict,
    inspect::fixtures::{facts, of},
};

fn pod(state: &serde_json::Value, last: &serde_json::Value) -> Pod {
    of(json!({
        "metadata": { "name": "m", "namespace": "liqo" },
        "status": { "containerStatuses": [
            { "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 3, "state": state, "lastState": last },
        ] },
    }))
}

fn found(pod: Pod) -> CheckFinding {
    let mut facts = facts();
    facts
        .diagnostics
        .last_log_lines
        .insert("liqo/m".to_owned(), "no such Secret".to_owned());
    facts.pods = Ok(vec![pod]);
    pods(&facts)
}

#[test]
fn the_last_log_line_of_a_crashing_pod_is_shown() {
    let ended = json!({ "terminated": { "reason": "Error", "exitCode": 1, "finishedAt": "2026-01-01T09:00:00Z" } });
    let found = found(pod(
        &json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
        &ended,
    ));
    assert_eq!(found.verdict, CheckVerdict::Fail);
    assert!(
        found
            .what
            .ends_with("(last: Error, exit code 1); it logged: no such Secret"),
        "{}",
        found.what
    );
}

#[test]
fn a_pod_without_an_image_or_a_node_is_shown() {
    let image = found(pod(
        &json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } }),
        &json!({}),
    ));
    assert!(
        image.verdict == CheckVerdict::Fail
            && image.what == "pod liqo/m cannot get image i: ErrImagePull: not found",
        "{}",
        image.what
    );
    assert_eq!(image.advice.as_deref(), Some(image_pulls::ADVICE));
    let mut homeless = pod(&json!({}), &json!({}));
    homeless.status = Some(of(
        json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "0/1 nodes" }] }),
    ));
    assert!(found(homeless).what.contains("has no node: 0/1 nodes"));
    assert_eq!(
        found(pod(
            &json!({ "waiting": { "reason": "ContainerCreating" } }),
            &json!({})
        ))
        .verdict,
        CheckVerdict::Ok
    );
}

#[test]
fn a_restart_is_of_interest_for_an_hour() {
    let with = |at: &str| {
        let ended =
            json!({ "terminated": { "reason": "OOMKilled", "exitCode": 137, "finishedAt": at } });
        found(pod(&json!({ "running": {} }), &ended))
    };
    let lately = with("2026-01-01T11:30:00Z");
    assert!(
        lately.verdict == CheckVerdict::Warn && lately.what.contains("OOMKilled"),
        "{}",
        lately.what
    );
    assert_eq!(with("2026-01-01T10:30:00Z").verdict, CheckVerdict::Ok);
}

#[test]
fn a_cluster_without_liqos_pods_is_shown() {
    let mut facts = facts();
    facts.pods = Ok(Vec::new());
    assert_eq!(pods(&facts).verdict, CheckVerdict::Fail);
}
