//! `EndpointSlices` of Services with a selector, one for each Service.

use serde_json::{Map, Value, json};

use super::{
    fields::{is_ending, items, label, name, namespace, text, uid},
    plan::Plan,
    pods::{is_finished, is_ready, node_of, owner_reference},
    selectors::has_labels,
    snapshot::Snapshot,
};

const SLICES: &str = "endpointslices.discovery.k8s.io";
const MANAGER: &str = "endpointslice-controller.k8s.io";

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let services = snapshot.list("services");
    let slices = snapshot.list(SLICES);
    for service in services {
        let has_selector = service["spec"]["selector"]
            .as_object()
            .is_some_and(|selector| !selector.is_empty());
        if has_selector && !is_ending(&service) && service["spec"]["type"] != "ExternalName" {
            let is_own = |slice: &&std::sync::Arc<Value>| {
                namespace(slice) == namespace(&service)
                    && label(slice, "kubernetes.io/service-name") == name(&service)
                    && label(slice, "endpointslice.kubernetes.io/managed-by") == MANAGER
                    && !is_ending(slice)
            };
            sync(
                snapshot,
                &service,
                slices.iter().find(is_own).map(|slice| &**slice),
                plan,
            );
        }
    }
}

fn sync(snapshot: &Snapshot, service: &Value, slice: Option<&Value>, plan: &mut Plan) {
    let is_endpoint = |pod: &&Value| {
        has_labels(&pod["metadata"]["labels"], &service["spec"]["selector"])
            && !text(&pod["status"]["podIP"]).is_empty()
            && !is_finished(pod)
    };
    let pods: Vec<&Value> = snapshot
        .pods_in(namespace(service))
        .filter(is_endpoint)
        .collect();
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|pod| endpoint(snapshot, service, pod))
        .collect();
    let ports: Vec<Value> = items(&service["spec"]["ports"])
        .iter()
        .filter_map(|port| slice_port(port, &pods))
        .collect();
    let Some(old) = slice else {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "generateName": format!("{}-", name(service)), "namespace": namespace(service), "labels": labels(service),
                "ownerReferences": [owner_reference(service, "v1", "Service")],
            },
            "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
        });
        return plan.create(SLICES, slice);
    };
    let labels = Value::Object(labels(service));
    if old["metadata"]["labels"] == labels
        && items(&old["endpoints"]) == endpoints
        && items(&old["ports"]) == ports
    {
        return;
    }
    let mut next = old.clone();
    next["metadata"]["labels"] = labels;
    next["endpoints"] = Value::Array(endpoints);
    next["ports"] = Value::Array(ports);
    plan.update(SLICES, old, next);
}

fn labels(service: &Value) -> Map<String, Value> {
    let mut labels = service["metadata"]["labels"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    labels.insert(
        "kubernetes.io/service-name".to_owned(),
        json!(name(service)),
    );
    labels.insert(
        "endpointslice.kubernetes.io/managed-by".to_owned(),
        json!(MANAGER),
    );
    if service["spec"]["clusterIP"] == "None" {
        labels.insert("service.kubernetes.io/headless".to_owned(), json!(""));
    }
    labels
}

fn endpoint(snapshot: &Snapshot, service: &Value, pod: &Value) -> Value {
    let (is_serving, is_terminating) = (is_ready(pod), is_ending(pod));
    let is_ready =
        service["spec"]["publishNotReadyAddresses"] == true || is_serving && !is_terminating;
    let mut endpoint = json!({
        "addresses": [pod["status"]["podIP"]],
        "conditions": { "ready": is_ready, "serving": is_serving, "terminating": is_terminating },
        "nodeName": node_of(pod),
        "targetRef": { "kind": "Pod", "namespace": namespace(pod), "name": name(pod), "uid": uid(pod) },
    });
    if pod["spec"]["subdomain"] == name(service) && !text(&pod["spec"]["hostname"]).is_empty() {
        endpoint["hostname"] = pod["spec"]["hostname"].clone();
    }
    let zone = snapshot
        .node(node_of(pod))
        .map(|node| label(node, "topology.kubernetes.io/zone"))
        .unwrap_or_default();
    if !zone.is_empty() {
        endpoint["zone"] = json!(zone);
    }
    endpoint
}

/// A port of a Service as the pods have it. `None`: there is no pod, or none has a port of that
/// name.
fn slice_port(port: &Value, pods: &[&Value]) -> Option<Value> {
    if pods.is_empty() {
        return None;
    }
    let number = match &port["targetPort"] {
        Value::Number(number) => Value::Number(number.clone()),
        Value::String(wanted) => {
            let containers = pods
                .iter()
                .flat_map(|pod| items(&pod["spec"]["containers"]));
            let found = containers
                .flat_map(|one| items(&one["ports"]))
                .find(|one| one["name"] == **wanted)?;
            found["containerPort"].clone()
        }
        _ => port["port"].clone(),
    };
    let protocol = if port["protocol"].is_null() {
        json!("TCP")
    } else {
        port["protocol"].clone()
    };
    let mut result = json!({ "name": text(&port["name"]), "port": number, "protocol": protocol });
    if !port["appProtocol"].is_null() {
        result["appProtocol"] = port["appProtocol"].clone();
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{Cluster, annotated, pod},
        *,
    };

    fn slice(cluster: &Cluster) -> Value {
        let slices = cluster.list_all(SLICES);
        assert_eq!(slices.len(), 1);
        (*slices[0]).clone()
    }

    #[test]
    fn a_slice_follows_the_pods_of_its_service() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        let ports = json!([{ "name": "web", "port": 80, "targetPort": "http" }, { "name": "x", "port": 81, "targetPort": 9 }]);
        let service = json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" }, "ports": ports } });
        cluster.add("services", service);
        cluster.settle();
        assert!(items(&slice(&cluster)["endpoints"]).is_empty());
        let containers = json!([{ "name": "c", "image": "web:1", "ports": [{ "name": "http", "containerPort": 8080 }] }]);
        let times = annotated(&[("ready-seconds", "5"), ("stop-seconds", "5")]);
        cluster.add(
            "pods",
            pod("web", &times, &json!({ "containers": containers })),
        );
        let conditions = |cluster: &Cluster| {
            let conditions = slice(cluster)["endpoints"][0]["conditions"].clone();
            ["ready", "serving", "terminating"].map(|condition| conditions[condition] == true)
        };
        cluster.pass(1);
        assert_eq!(conditions(&cluster), [false, false, false]);
        cluster.pass(5);
        assert_eq!(conditions(&cluster), [true, true, false]);
        let ports: Vec<i64> = items(&slice(&cluster)["ports"])
            .iter()
            .filter_map(|port| port["port"].as_i64())
            .collect();
        assert_eq!(
            (ports, &slice(&cluster)["endpoints"][0]["addresses"][0]),
            (vec![8080, 9], &json!("10.244.0.2"))
        );
        cluster.delete("pods", "web", None);
        cluster.settle();
        assert_eq!(conditions(&cluster), [false, true, true]);
        cluster.pass(5);
        assert!(items(&slice(&cluster)["endpoints"]).is_empty());
        cluster.delete("services", "web", None);
        cluster.settle();
        assert!(cluster.list_all(SLICES).is_empty());
    }
}
