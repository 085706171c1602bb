//! `ResourceQuotas`: what is used. Nothing enforces them yet.

use liqo_quantity::{Quantity, ResourceList};
use serde_json::{Value, json};

use super::{
    fields::namespace,
    plan::Plan,
    pods::{is_finished, needs},
    snapshot::Snapshot,
};

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    for quota in snapshot.list("resourcequotas") {
        let Some(hard) = quota["spec"]["hard"].as_object() else {
            continue;
        };
        let pods: Vec<&Value> = snapshot
            .pods_in(namespace(&quota))
            .filter(|pod| !is_finished(pod))
            .collect();
        let sum = |which: &str| {
            pods.iter()
                .fold(ResourceList::new(), |sum, pod| sum + &needs(pod, which))
        };
        let (requests, limits) = (sum("requests"), sum("limits"));
        let mut status = quota["status"].clone();
        status["hard"] = quota["spec"]["hard"].clone();
        for resource in hard.keys() {
            let used = match resource.split_once('.') {
                Some(("requests", name)) => requests.get(name),
                Some(("limits", name)) => limits.get(name),
                _ if ["cpu", "memory", "ephemeral-storage"].contains(&resource.as_str()) => {
                    requests.get(resource)
                }
                _ if ["pods", "count/pods"].contains(&resource.as_str()) => quantity(pods.len()),
                _ => {
                    let counted = resource.strip_prefix("count/").unwrap_or(resource);
                    quantity(snapshot.list_in(counted, namespace(&quota)).len())
                }
            };
            status["used"][resource] = json!(used.to_string());
        }
        plan.update_status("resourcequotas", &quota, status);
    }
}

fn quantity(count: usize) -> Quantity {
    Quantity::from_units(i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{Cluster, pod},
        *,
    };

    #[test]
    fn what_pods_request_is_used() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        let hard = json!({
            "pods": "9", "requests.cpu": "4", "memory": "1Gi", "limits.cpu": "8", "count/secrets": "3", "configmaps": "5",
        });
        cluster.add(
            "resourcequotas",
            json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } }),
        );
        let resources =
            json!({ "requests": { "cpu": "250m", "memory": "64Mi" }, "limits": { "cpu": "1" } });
        let containers = json!([{ "name": "c", "image": "web:1", "resources": resources }]);
        for name in ["a", "b"] {
            cluster.add(
                "pods",
                pod(name, &json!({}), &json!({ "containers": containers })),
            );
        }
        cluster.settle();
        let used = json!({
            "pods": "2", "requests.cpu": "500m", "memory": "128Mi", "limits.cpu": "2", "count/secrets": "0",
            "configmaps": "1",
        });
        assert_eq!(
            cluster.object("resourcequotas", "q")["status"],
            json!({ "hard": hard, "used": used })
        );
    }
}
