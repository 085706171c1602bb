//! Limits that the provider adds to a pod, in words for its owner: a container without a limit may
//! be ended at a size that nobody wrote.

use liqo_quantity::Quantity;
use serde::Deserialize as _;
use serde_json::Value;

use crate::pod::carry::amounts::{EPHEMERAL_STORAGE, MEMORY};
use crate::pod::local_status::truncate_text;
use crate::views::{
    ContainerList, ContainerStatusView, ContainerView, PodStatusView, PodView, Views,
};

/// The reason of the event on the local pod.
pub const LIMIT_ADDED: &str = "LimitAdded";

/// The limits that the provider added, one of memory among them, if the remote pod runs and the
/// local pod does not show that yet. `status` is that of the remote pod. Kubelets before Kubernetes
/// 1.33 do not say which limits a container has.
pub fn describe_new_limits(home: &Value, status: &Value) -> Option<String> {
    let (pod, status) = (PodView::of(home), PodStatusView::of(status));
    let main = ContainerList::Main;
    if has_begun(pod, &pod.status().statuses_in(main)) || !has_begun(pod, &status.statuses_in(main))
    {
        return None;
    }
    let theirs: Vec<Value> = ContainerList::OF_NEW_POD
        .into_iter()
        .flat_map(|list| status.statuses_in(list))
        .map(|one| one.json().clone())
        .collect();
    // Few pods limit their storage, so an event about that alone would be on nearly all of them.
    describe_limits(home, &theirs, &[MEMORY]).and_then(|_| describe_added_limits(home, &theirs))
}

/// Whether every container of the pod has been created, by these statuses.
fn has_begun(pod: PodView<'_>, statuses: &Views<'_, ContainerStatusView<'_>>) -> bool {
    pod.spec().containers().all(|container| {
        let status = statuses
            .clone()
            .find(|status| status.name() == container.name());
        status
            .and_then(ContainerStatusView::container_id)
            .is_some_and(|id| !id.is_empty())
    })
}

/// The limits that the provider added to the containers of a local pod. `theirs` are the containers
/// of the remote pod, or their statuses.
pub fn describe_added_limits(home: &Value, theirs: &[Value]) -> Option<String> {
    let limited = describe_limits(home, theirs, &[MEMORY, EPHEMERAL_STORAGE])?;
    Some(truncate_text(&format!(
        "the provider limits {limited}, because the pod sets no limit"
    )))
}

/// Such as `container web to 256Mi of memory`.
fn describe_limits(home: &Value, theirs: &[Value], resources: &[&str]) -> Option<String> {
    let spec = PodView::of(home).spec();
    let containers = ContainerList::OF_NEW_POD
        .into_iter()
        .flat_map(|list| spec.containers_in(list));
    let limited = containers.filter_map(|container| {
        // The fields that are read have the same names in the status of a container.
        let there = theirs
            .iter()
            .map(ContainerView::of)
            .find(|one| one.name() == container.name())?;
        let mut limits = Vec::new();
        for resource in resources {
            if let (Some(amount), None) = (
                container_limit(there, resource),
                container_limit(container, resource),
            ) {
                limits.push(format!("{amount} of {resource}"));
            }
        }
        (!limits.is_empty())
            .then(|| format!("container {} to {}", container.name(), limits.join(" and ")))
    });
    Some(limited.collect::<Vec<_>>().join(", ")).filter(|all| !all.is_empty())
}

/// The limit of a container, or of its status.
fn container_limit(container: ContainerView<'_>, resource: &str) -> Option<Quantity> {
    Quantity::deserialize(container.resources().limits()?.get(resource)?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::items_at;
    use crate::pod::carry::{ProviderRules, RemoteIdentity, outgoing_pod, remote_pod};

    fn home() -> Value {
        json!({
            "metadata": { "name": "web", "namespace": "demo" },
            "spec": {
                "initContainers": [{ "name": "setup", "image": "i" }],
                "containers": [
                    { "name": "web", "image": "i" },
                    { "name": "own", "image": "i", "resources": { "limits": { "memory": "64Mi" } } },
                ],
            },
        })
    }

    fn status(container: &str, id: Option<&str>, memory: &str) -> Value {
        json!({ "name": container, "containerID": id, "resources": { "limits": { "memory": memory, "cpu": "1" } } })
    }

    #[test]
    fn a_limit_that_the_pod_does_not_set_is_told_as_the_provider_adds_it() {
        let identity = RemoteIdentity {
            namespace: "n",
            name: "web",
            consumer: "c",
            pool: "p",
            shadow_pod: "u",
            home_namespace: "demo",
        };
        let remote = remote_pod(
            &outgoing_pod(&home(), &[].into()).unwrap(),
            &identity,
            &ProviderRules::default(),
        )
        .unwrap();
        let containers = ["/spec/initContainers", "/spec/containers"]
            .map(|list| items_at(&remote, list))
            .concat();
        assert_eq!(
            describe_added_limits(&home(), &containers).as_deref(),
            Some(
                "the provider limits container setup to 256Mi of memory, container web to 256Mi of memory, because the pod sets no limit"
            )
        );
        assert_eq!(describe_added_limits(&remote, &containers), None);
        let storage = json!([{ "name": "web", "resources": { "limits": { "memory": "256Mi", "ephemeral-storage": "1Gi" } } }]);
        let said = describe_added_limits(&home(), storage.as_array().unwrap()).unwrap();
        assert!(
            said.contains("container web to 256Mi of memory and 1Gi of ephemeral-storage"),
            "{said}"
        );
    }

    #[test]
    fn it_is_told_once_when_all_containers_have_begun() {
        let (mut home, id) = (home(), Some("containerd://a"));
        let one = json!({ "containerStatuses": [status("web", id, "256Mi"), status("own", None, "64Mi")] });
        let all =
            json!({ "containerStatuses": [status("web", id, "256Mi"), status("own", id, "64Mi")] });
        assert_eq!(describe_new_limits(&home, &one), None);
        assert!(
            describe_new_limits(&home, &all)
                .unwrap()
                .contains("container web to 256Mi of memory,")
        );
        home["status"] = one;
        assert!(describe_new_limits(&home, &all).is_some());
        home["status"] = all.clone();
        assert_eq!(describe_new_limits(&home, &all), None);
    }

    #[test]
    fn a_limit_of_storage_alone_is_no_news() {
        let mut home = home();
        home["spec"] = json!({ "containers": [{ "name": "own", "resources": { "limits": { "memory": "64Mi" } } }] });
        let limits = json!({ "memory": "64Mi", "ephemeral-storage": "1Gi" });
        let status = json!({ "containerStatuses": [{ "name": "own", "containerID": "a", "resources": { "limits": limits } }] });
        assert_eq!(describe_new_limits(&home, &status), None);
        assert!(
            describe_added_limits(&home, items_at(&status, "/containerStatuses"))
                .unwrap()
                .contains("to 1Gi of ephemeral-storage")
        );
    }

    #[test]
    fn what_is_no_quantity_or_another_pods_container_is_left_out() {
        let nonsense = json!([
            status("web", None, "\u{1b}[2J"),
            status("stranger", None, "1Gi")
        ]);
        assert_eq!(
            describe_added_limits(&home(), nonsense.as_array().unwrap()),
            None
        );
        assert_eq!(
            describe_added_limits(&json!(null), nonsense.as_array().unwrap()),
            None
        );
    }
}
