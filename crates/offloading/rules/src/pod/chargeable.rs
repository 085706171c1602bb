//! What a consumer may be charged for one of its pods.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use liqo_api::Charge;
use liqo_api::requests::Effective;
use liqo_quantity::ResourceList;
use serde::Deserialize as _;
use serde_json::Value;

use crate::pod::carry::amounts::{Amounts, EPHEMERAL_STORAGE, MEMORY, complete};
use crate::pod::carry::api_server::bound_at;
use crate::pod::local_state::LocalPod;

/// When a local pod was sent at the earliest: when it was bound to its node. Second 0 if nobody knows.
pub fn sent_at(pod: &LocalPod) -> Timestamp {
    bound_at(&pod.json()).unwrap_or_default()
}

/// The amounts that a provider may charge for a local pod: what it has, and what it asks for, each as the provider completes it.
/// `limit_percentage` is that of the contract.
pub fn chargeable(pod: &LocalPod, charge: Charge, limit_percentage: u32) -> Vec<ResourceList> {
    // Where limits are charged, containers get one of ephemeral storage only if that is offered.
    let limited: &[&[&'static str]] = match charge {
        Charge::Requests => &[&[MEMORY, EPHEMERAL_STORAGE]],
        Charge::Limits => &[&[EPHEMERAL_STORAGE], &[]],
    };
    let json = pod.json();
    let status = PodStatus::deserialize(&json["status"]).unwrap_or_default();
    let mut all = Vec::new();
    for limited in limited {
        let mut spec = json["spec"].as_object().cloned().unwrap_or_default();
        let mut amounts = Amounts { limited: limited.to_vec(), limit_percentage, ..Amounts::default() };
        if !limited.is_empty() {
            amounts.default_requests.push((EPHEMERAL_STORAGE.to_owned(), "0".to_owned()));
        }
        complete(&mut spec, &amounts);
        let Ok(spec) = PodSpec::deserialize(Value::from(spec)) else { continue };
        all.push(Effective::of_pod(&spec).charged(charge).clone());
        all.push(Effective::of_bound_pod(json["metadata"]["generation"].as_i64(), spec, &status).charged(charge).clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use liqo_api::Key;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_consumer_expects_what_the_provider_makes_of_its_pod() {
        let local = |resources: serde_json::Value| {
            let object = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
                "spec": { "containers": [{ "name": "c", "resources": resources }] } });
            LocalPod::of(serde_json::from_value(object).unwrap(), &Key::new("liqo", "milan")).unwrap()
        };
        let first = |resources, percentage| chargeable(&local(resources), Charge::Requests, percentage)[0].to_string();
        assert_eq!(first(json!({}), 800), "cpu=10m, ephemeral-storage=0, memory=32Mi, pods=1");
        let large = json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "memory": "16Gi" } });
        assert!(first(large.clone(), 800).contains("memory=2Gi"), "{}", first(large, 800));
        assert_eq!(chargeable(&local(json!({})), Charge::Limits, 800).len(), 4);
    }
}
