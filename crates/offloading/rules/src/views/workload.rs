//! Fields of workloads: of the objects from which controllers create pods.

use serde_json::Value;

use crate::views::MetadataView;

json_views! {
    /// A Deployment, `ReplicaSet`, `StatefulSet`, `DaemonSet`, Job or `CronJob`.
    WorkloadView {
        kind: &'a str = "kind",
        metadata: MetadataView<'a> = "metadata",
        spec: WorkloadSpecView<'a> = "spec",
    }

    /// The spec of a workload.
    WorkloadSpecView {
        replicas: Option<u64> = "replicas",
        parallelism: Option<u64> = "parallelism",
        completions: Option<u64> = "completions",
        template: Option<&'a Value> = "template",
        /// Only a `CronJob` has it.
        job_template: JobTemplateView<'a> = "jobTemplate",
    }

    /// The Job that a `CronJob` creates.
    JobTemplateView {
        spec: WorkloadSpecView<'a> = "spec",
    }
}
