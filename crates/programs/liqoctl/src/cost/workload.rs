//! The workloads in a file, as `kubectl apply` reads it. Pure.

use anyhow::{Context as _, bail};
use liqo_offloading_rules::views::{WorkloadSpecView, WorkloadView};
use serde_json::{Value, json};

/// A pod, or an object that creates equal pods.
#[derive(Clone, Debug, PartialEq)]
pub struct PodWorkload {
    pub kind: String,
    pub name: String,
    pub namespace: String,
    /// Number of pods that run at the same time.
    pub replicas: u64,
    /// One of its pods: metadata and spec.
    pub pod: Value,
}

/// The workloads in YAML or JSON. Other objects are skipped.
pub fn parse_workloads(text: &str, default_namespace: &str) -> anyhow::Result<Vec<PodWorkload>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let objects = documents.iter().flat_map(|document| {
        match document.get("items").and_then(Value::as_array) {
            Some(items) => items.iter().collect(),
            None => vec![document],
        }
    });
    let mut found = Vec::new();
    for object in objects {
        found.extend(parse_workload(object, default_namespace)?);
    }
    if found.is_empty() {
        bail!(
            "there is no workload: neither a Deployment, StatefulSet, ReplicaSet, DaemonSet, Job or CronJob nor a Pod"
        );
    }
    Ok(found)
}

fn parse_workload(object: &Value, default_namespace: &str) -> anyhow::Result<Option<PodWorkload>> {
    let workload = WorkloadView::of(object);
    let (kind, spec) = (workload.kind(), workload.spec());
    // The kind that creates the pods, their template, and how many there are.
    let (controller, template, replicas) = match kind {
        "Pod" => (None, Some(object), 1),
        "Deployment" => (
            Some("ReplicaSet"),
            spec.template(),
            spec.replicas().unwrap_or(1),
        ),
        "ReplicaSet" | "StatefulSet" | "ReplicationController" => {
            (Some(kind), spec.template(), spec.replicas().unwrap_or(1))
        }
        "DaemonSet" => (Some("DaemonSet"), spec.template(), 1),
        "Job" => (Some("Job"), spec.template(), pods_at_once(spec)),
        "CronJob" => {
            let job = spec.job_template().spec();
            (Some("Job"), job.template(), pods_at_once(job))
        }
        _ => return Ok(None),
    };
    let names = workload.metadata();
    let name = names.name().or(names.generate_name()).unwrap_or_default();
    let pod = template.filter(|pod| pod.get("spec").is_some_and(Value::is_object));
    let pod = pod.with_context(|| format!("{kind} {name} has no pod template"))?;
    let mut metadata = pod
        .get("metadata")
        .filter(|metadata| metadata.is_object())
        .cloned()
        .unwrap_or_else(|| json!({}));
    if let Some(controller) = controller {
        metadata["ownerReferences"] = json!([{ "kind": controller, "controller": true }]);
    }
    Ok(Some(PodWorkload {
        name: name.to_owned(),
        namespace: names.namespace().unwrap_or(default_namespace).to_owned(),
        replicas,
        pod: json!({ "metadata": metadata, "spec": pod["spec"] }),
        kind: kind.to_owned(),
    }))
}

/// Number of pods of a Job that run at the same time.
fn pods_at_once(job: WorkloadSpecView<'_>) -> u64 {
    let parallelism = job.parallelism().unwrap_or(1);
    job.completions()
        .map_or(parallelism, |completions| completions.min(parallelism))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_workload_is_read_and_other_objects_are_skipped() {
        let text = "\
apiVersion: v1
kind: Service
metadata: { name: web }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: shop }
spec:
  replicas: 3
  template: { metadata: { labels: { app: web } }, spec: { containers: [] } }
---
apiVersion: v1
kind: List
items:
  - { kind: Pod, metadata: { name: one }, spec: { containers: [] } }
  - { kind: DaemonSet, metadata: { name: each }, spec: { template: { spec: { containers: [] } } } }
  - { kind: Job, metadata: { name: job }, spec: { parallelism: 5, completions: 2, template: { spec: { containers: [] } } } }
  - { kind: CronJob, metadata: { name: cron }, spec: { jobTemplate: { spec: { template: { spec: { containers: [] } } } } } }
";
        let found = parse_workloads(text, "demo").unwrap();
        let short: Vec<_> = found
            .iter()
            .map(|one| (one.kind.as_str(), one.namespace.as_str(), one.replicas))
            .collect();
        assert_eq!(
            short,
            [
                ("Deployment", "shop", 3),
                ("Pod", "demo", 1),
                ("DaemonSet", "demo", 1),
                ("Job", "demo", 2),
                ("CronJob", "demo", 1)
            ]
        );
        assert_eq!(found[0].pod["metadata"]["labels"], json!({ "app": "web" }));
        assert_eq!(
            found[0].pod["metadata"]["ownerReferences"][0]["kind"],
            "ReplicaSet"
        );
        assert_eq!(found[1].pod["metadata"].get("ownerReferences"), None);
    }

    #[test]
    fn a_file_without_a_workload_is_an_error() {
        for text in ["kind: Service", "{}", "", "kind: Deployment\nspec: {}"] {
            assert!(parse_workloads(text, "demo").is_err(), "{text}");
        }
    }
}
