//! `PodDisruptionBudgets`: how many pods may be evicted now.

use serde_json::{Value, json};

use super::{
    fields::{controller, count, is_ending, namespace, new_condition, set_condition, share, text},
    plan::Plan,
    pods::{is_finished, is_ready},
    selectors::selects,
    snapshot::Snapshot,
};

const BUDGETS: &str = "poddisruptionbudgets.policy";

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    for budget in snapshot.list(BUDGETS) {
        plan.update_status(BUDGETS, &budget, status(snapshot, &budget));
    }
}

fn status(snapshot: &Snapshot, budget: &Value) -> Value {
    let is_selected = |pod: &&Value| {
        selects(&budget["spec"]["selector"], &pod["metadata"]["labels"]) && !is_finished(pod)
    };
    let pods: Vec<&Value> = snapshot
        .pods_in(namespace(budget))
        .filter(is_selected)
        .collect();
    let (least, most) = (
        &budget["spec"]["minAvailable"],
        &budget["spec"]["maxUnavailable"],
    );
    // Only a number of available pods does not depend on how many there should be.
    let expected = if least.is_number() {
        count(pods.iter())
    } else {
        expected_pods(snapshot, &pods)
    };
    let desired = if most.is_null() {
        share(least, expected, true).unwrap_or(0)
    } else {
        (expected - share(most, expected, true).unwrap_or(0)).max(0)
    };
    let healthy = count(pods.iter().filter(|pod| is_ready(pod) && !is_ending(pod)));
    let allowed = (healthy - desired).max(0);
    let mut status = budget["status"].clone();
    for (field, number) in [
        ("currentHealthy", healthy),
        ("desiredHealthy", desired),
        ("disruptionsAllowed", allowed),
        ("expectedPods", expected),
    ] {
        status[field] = json!(number);
    }
    if !budget["metadata"]["generation"].is_null() {
        status["observedGeneration"] = budget["metadata"]["generation"].clone();
    }
    let reason = if allowed > 0 {
        "SufficientPods"
    } else {
        "InsufficientPods"
    };
    set_condition(
        &mut status,
        &new_condition("DisruptionAllowed", allowed > 0, reason, ""),
        snapshot.now,
    );
    // Unlike other conditions, those of budgets have a message even if it is empty.
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition["message"] = json!("");
    }
    status
}

/// The replicas that the controllers of these pods want; pods without such a controller count
/// themselves.
fn expected_pods(snapshot: &Snapshot, pods: &[&Value]) -> i64 {
    let mut seen: Vec<String> = Vec::new();
    let mut sum = 0;
    for pod in pods {
        let Some(scale) = scale_of(snapshot, pod) else {
            sum += 1;
            continue;
        };
        let uid = text(&scale["metadata"]["uid"]).to_owned();
        if !seen.contains(&uid) {
            sum += scale["spec"]["replicas"].as_i64().unwrap_or(1);
            seen.push(uid);
        }
    }
    sum
}

/// The object that says how many pods like this one there should be.
fn scale_of(snapshot: &Snapshot, object: &Value) -> Option<std::sync::Arc<Value>> {
    let owner = controller(object)?;
    let resource = match text(&owner["kind"]) {
        "ReplicaSet" => "replicasets.apps",
        "Deployment" => "deployments.apps",
        "StatefulSet" => "statefulsets.apps",
        _ => return None,
    };
    let found = snapshot.get(resource, namespace(object), text(&owner["name"]))?;
    let is_same = found["metadata"]["uid"] == owner["uid"];
    is_same.then(|| scale_of(snapshot, &found).unwrap_or(found))
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{Cluster, workload},
        *,
    };

    #[test]
    fn a_budget_says_how_many_pods_may_go() {
        for (field, value, replicas, expected) in [
            ("minAvailable", json!(2), 3, [3, 2, 1, 3]),
            ("minAvailable", json!("50%"), 3, [3, 2, 1, 3]),
            ("maxUnavailable", json!(1), 3, [3, 2, 1, 3]),
            ("maxUnavailable", json!("100%"), 3, [3, 0, 3, 3]),
            ("minAvailable", json!(5), 3, [3, 5, 0, 3]),
            ("maxUnavailable", json!(1), 0, [0, 0, 0, 0]),
        ] {
            let mut cluster = Cluster::with_nodes(&["n1"]);
            let spec = workload("web", replicas, &json!({}));
            cluster.add(
                "deployments.apps",
                json!({ "metadata": { "name": "web" }, "spec": spec }),
            );
            let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, field: value });
            cluster.add(
                BUDGETS,
                json!({ "metadata": { "name": "web" }, "spec": spec }),
            );
            cluster.pass(5);
            let status = cluster.object(BUDGETS, "web")["status"].clone();
            let found = [
                "currentHealthy",
                "desiredHealthy",
                "disruptionsAllowed",
                "expectedPods",
            ]
            .map(|field| status[field].as_i64());
            assert_eq!(found, expected.map(Some), "{field} {value}");
            assert_eq!(status["observedGeneration"], 1);
        }
    }

    #[test]
    fn a_rollout_does_not_change_how_many_pods_are_expected() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        cluster.add(
            "deployments.apps",
            json!({ "metadata": { "name": "web" }, "spec": workload("web", 3, &json!({})) }),
        );
        let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "maxUnavailable": 1 });
        cluster.add(
            BUDGETS,
            json!({ "metadata": { "name": "web" }, "spec": spec }),
        );
        cluster.pass(5);
        cluster.change("deployments.apps", "web", |web| {
            web["spec"]["template"]["metadata"]["annotations"] =
                json!({ "simulation.test/image-missing": "true" });
        });
        cluster.pass(5);
        assert_eq!(
            (
                cluster.pods().len(),
                cluster.object(BUDGETS, "web")["status"]["expectedPods"].as_i64()
            ),
            (4, Some(3))
        );
    }
}
