//! Deletes local pods.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::DeleteParams, core::PartialObjectMeta};
use liqo_controller_runtime::writes::{Step as _, StepError, delete_if_present, only};

use liqo_offloading_rules::pod::local_state::LocalPod;

/// Deletes a local pod, and no other one of the same name. Returns `false` if it is gone already.
pub async fn delete_pod(client: &Client, pod: &LocalPod, parameters: DeleteParams) -> Result<bool, StepError> {
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), &pod.key.namespace);
    let parameters = DeleteParams { preconditions: only(&pod.uid).preconditions, ..parameters };
    delete_if_present(&api, &pod.key.name, &parameters).await.step("delete", "Pod", &pod.key)
}
