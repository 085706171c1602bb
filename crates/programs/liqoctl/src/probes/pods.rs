//! The pods themselves.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use liqo_network_probe::PORT;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    lists, readiness,
    wait::{PollResult, until},
};

/// Label of every pod.
const APP: &str = "network-test";

/// The task that a pod does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbePodRole {
    Serve,
    /// Answers only callers that send this token first, because strangers can reach it.
    ServeWithToken(String),
    Wait,
}

/// A pod to create.
#[derive(Clone, Debug)]
pub struct ProbePod {
    pub name: String,
    /// Its node, real or virtual.
    pub node: String,
    /// Whether the node is virtual: then its pods are scheduled.
    pub is_virtual: bool,
    /// Whether it uses the network of its node.
    pub host_network: bool,
    pub role: ProbePodRole,
    /// The group that Services select it by.
    pub group: String,
}

/// The pod object. It complies with Pod Security's level `restricted`, except that it may use the
/// node's network.
pub fn pod_object(wanted: &ProbePod, image: &str) -> Value {
    let arguments = match &wanted.role {
        ProbePodRole::Serve => json!(["probe", "serve"]),
        ProbePodRole::ServeWithToken(token) => json!(["probe", "serve", "--token", token]),
        ProbePodRole::Wait => json!(["probe", "wait"]),
    };
    // On a virtual node the name is that node's, and only the address tells on which machine the
    // pod runs.
    let node = if wanted.is_virtual {
        "status.hostIP"
    } else {
        "spec.nodeName"
    };
    let ports = json!([
        { "name": "tcp", "containerPort": PORT, "protocol": "TCP" },
        { "name": "udp", "containerPort": PORT, "protocol": "UDP" },
    ]);
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "probe",
            "image": image,
            "args": arguments,
            "env": [field_variable("POD_NAME", "metadata.name"), field_variable("NODE_NAME", node)],
            "resources": { "requests": { "cpu": "20m", "memory": "16Mi" } },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
        }],
    });
    if wanted.is_virtual {
        spec["nodeSelector"] = json!({ "kubernetes.io/hostname": wanted.node });
    } else {
        // Tainted nodes take part, too.
        spec["nodeName"] = json!(wanted.node);
        spec["tolerations"] = json!([{ "operator": "Exists" }]);
    }
    if wanted.host_network {
        spec["hostNetwork"] = json!(true);
        spec["dnsPolicy"] = json!("ClusterFirstWithHostNet");
    }
    if wanted.role != ProbePodRole::Wait {
        spec["containers"][0]["ports"] = ports;
        spec["containers"][0]["readinessProbe"] =
            json!({ "tcpSocket": { "port": PORT }, "periodSeconds": 1 });
    }
    json!({
        "metadata": { "name": wanted.name, "labels": { "app": APP, "group": wanted.group } },
        "spec": spec,
    })
}

fn field_variable(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}

pub async fn create_pod(
    cluster: &Cluster,
    namespace: &str,
    wanted: &ProbePod,
    image: &str,
) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let pod = serde_json::from_value(pod_object(wanted, image))?;
    api.create(&PostParams::default(), &pod)
        .await
        .map(drop)
        .doing(format!("create pod {}", wanted.name))
}

/// Waits until all pods of a namespace are ready, and returns them.
pub async fn wait_for_pods(
    cluster: &Cluster,
    namespace: &str,
    timeout: Duration,
    news: impl FnMut(&str),
    also: impl Fn(&Pod) -> Option<String>,
) -> anyhow::Result<Vec<Pod>> {
    until(
        &format!(
            "the pods in namespace {namespace} of {} are ready",
            cluster.context
        ),
        timeout,
        news,
        || async {
            let everything = ListParams::default();
            let pods = lists::list_pods_of_namespace(cluster, namespace, &everything).await?;
            let missing = pods.iter().find_map(|pod| {
                let why = if readiness::pod(pod) {
                    also(pod)
                } else {
                    Some(reason_not_ready(pod))
                };
                why.map(|why| format!("{}: {why}", pod.name_any()))
            });
            Ok(missing.map_or_else(|| PollResult::Done(pods), PollResult::NotYet))
        },
    )
    .await
}

/// Its addresses, as its cluster knows them, one of each family that it has.
pub fn addresses_of_pod(pod: &Pod) -> Vec<IpAddr> {
    let all = pod
        .status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten());
    all.filter_map(|address| address.ip.parse().ok()).collect()
}

/// Reason why a pod is not ready.
fn reason_not_ready(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return "it has no status".to_owned();
    };
    let waiting = status
        .container_statuses
        .iter()
        .flatten()
        .find_map(|container| {
            let waiting = container.state.as_ref()?.waiting.as_ref()?;
            Some(
                [waiting.reason.clone(), waiting.message.clone()]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(": "),
            )
        });
    let conditions = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| condition.status == "False");
    let mut reasons = conditions.filter_map(|condition| {
        let message = condition
            .message
            .as_ref()
            .filter(|message| !message.is_empty())?;
        Some(format!(
            "{}: {message}",
            condition.reason.as_deref().unwrap_or(&condition.type_)
        ))
    });
    // Liqo's own conditions come last in the list, and say most.
    waiting
        .or_else(|| reasons.next_back())
        .unwrap_or_else(|| status.phase.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(is_virtual: bool, host_network: bool) -> ProbePod {
        let role = if host_network {
            ProbePodRole::Wait
        } else {
            ProbePodRole::Serve
        };
        ProbePod {
            name: "p".into(),
            node: "n".into(),
            is_virtual,
            host_network,
            role,
            group: "g".into(),
        }
    }

    #[test]
    fn a_pod_asks_for_no_rights_and_for_the_nodes_network_only_where_it_is_to() {
        let pod = pod_object(&wanted(true, false), "i");
        assert!(serde_json::from_value::<Pod>(pod.clone()).is_ok());
        assert_eq!(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"], "n");
        assert_eq!(
            (&pod["spec"]["nodeName"], &pod["spec"]["hostNetwork"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(
            pod["spec"]["containers"][0]["securityContext"]["capabilities"],
            json!({ "drop": ["ALL"] })
        );
        let on_node = pod_object(&wanted(false, true), "i");
        assert_eq!(
            (
                &on_node["spec"]["nodeName"],
                &on_node["spec"]["hostNetwork"]
            ),
            (&json!("n"), &json!(true))
        );
        assert_eq!(
            on_node["spec"]["containers"][0]["args"],
            json!(["probe", "wait"])
        );
        let guarded = pod_object(
            &ProbePod {
                role: ProbePodRole::ServeWithToken("t".into()),
                ..wanted(false, true)
            },
            "i",
        );
        assert_eq!(
            guarded["spec"]["containers"][0]["args"],
            json!(["probe", "serve", "--token", "t"])
        );
        assert_eq!(
            guarded["spec"]["containers"][0]["ports"][0]["containerPort"],
            PORT
        );
    }

    #[test]
    fn a_pod_that_is_not_ready_says_why() {
        let pod = |status: Value| {
            serde_json::from_value::<Pod>(json!({ "metadata": {}, "status": status })).unwrap()
        };
        let refused = pod(json!({ "phase": "Pending", "conditions": [
            { "type": "Ready", "status": "False" },
            { "type": "liqo.io/Offloaded", "status": "False", "reason": "OfferExceeded", "message": "there is no cpu left" },
        ] }));
        assert_eq!(
            reason_not_ready(&refused),
            "OfferExceeded: there is no cpu left"
        );
        let pulling = pod(
            json!({ "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ErrImagePull", "message": "no such image" } } }] }),
        );
        assert_eq!(reason_not_ready(&pulling), "ErrImagePull: no such image");
    }
}
