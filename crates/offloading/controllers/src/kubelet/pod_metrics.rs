//! The usage of the pods of a virtual node, in the two forms that a kubelet serves. Pure.
//!
//! The provider's metrics API reports rates: cores in use over its last window. Kubelets report the
//! CPU time since the start, and metrics-server derives a rate from two answers. So the rates are
//! added up here, by this cluster's clock. What a container uses before it is first seen is
//! unknown, and does not count. The counter of the node never falls: it keeps what ended pods used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use liqo_api::rfc3339;
use liqo_quantity::Quantity;
use serde::Deserialize;
use serde_json::{Value, json};

use super::request::is_name;

/// CPU time at the start of a counter, in nanoseconds: metrics-server ignores nodes and containers
/// with none. It reads seconds as a floating-point number, so one nanosecond could become none.
const FIRST_CPU_TIME: u64 = 1000;
/// Larger amounts are not believed: a thousand cores, and an exabyte.
const MAX_NANO_CORES: i128 = 1_000_000_000_000;
const MAX_BYTES: i64 = 1 << 60;
/// Maximum number of containers of one pod that count.
const MAX_CONTAINERS: usize = 64;

/// The provider's list of what pods use (metrics.k8s.io/v1beta1), as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodMetricsList {
    pub items: Vec<PodMetrics>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodMetrics {
    metadata: PodMetricsMetadata,
    containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodMetricsMetadata {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerMetrics {
    name: String,
    usage: ContainerUsage,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerUsage {
    cpu: String,
    memory: String,
}

impl PodMetrics {
    pub(super) fn name(&self) -> &str {
        &self.metadata.name
    }
}

/// The pods of a node, as far as their containers are named by it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KubeletPodList {
    items: Vec<KubeletPod>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KubeletPod {
    metadata: KubeletPodMetadata,
    status: KubeletPodStatus,
}

impl KubeletPodList {
    fn container_status(&self, pod_uid: &str, container: &str) -> Option<&KubeletContainerStatus> {
        let pod = self.items.iter().find(|pod| pod.metadata.uid == pod_uid)?;
        let init = &pod.status.init_container_statuses;
        let mut statuses = pod.status.container_statuses.iter().chain(init);
        statuses.find(|status| status.name == container)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KubeletPodMetadata {
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct KubeletPodStatus {
    container_statuses: Vec<KubeletContainerStatus>,
    init_container_statuses: Vec<KubeletContainerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct KubeletContainerStatus {
    name: String,
    image: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

/// A local pod, as usage names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalPodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// The CPU time that was added up since a start.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CpuCounter {
    /// In nanoseconds.
    cpu_time: u64,
    since: Timestamp,
}

impl CpuCounter {
    fn starting_at(now: Timestamp) -> Self {
        Self {
            cpu_time: FIRST_CPU_TIME,
            since: now,
        }
    }

    fn plus_cpu_time(self, cpu_time: u64) -> Self {
        Self {
            cpu_time: self.cpu_time.saturating_add(cpu_time),
            ..self
        }
    }
}

/// The usage of one container.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ContainerSample {
    nano_cores: u64,
    /// In bytes.
    memory: u64,
    cpu: CpuCounter,
}

/// The usage of all containers of a node, at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct KubeletNodeUsage {
    at: Timestamp,
    /// `None` until the provider reported for the first time.
    cpu: Option<CpuCounter>,
    pods: BTreeMap<LocalPodRef, CpuCounter>,
    containers: BTreeMap<(LocalPodRef, String), ContainerSample>,
}

impl KubeletNodeUsage {
    /// The usage now, after this one. Pods and containers that the provider does not report any
    /// more are forgotten; the counters of their node and pod keep what they used.
    pub(super) fn updated_with(
        &self,
        reported: &[(LocalPodRef, PodMetrics)],
        now: Timestamp,
    ) -> Self {
        let elapsed = Duration::try_from(now.duration_since(self.at)).unwrap_or_default();
        let mut next = Self {
            at: now,
            ..Self::default()
        };
        let mut node = self.cpu.unwrap_or(CpuCounter::starting_at(now));
        for (pod, metrics) in reported {
            let mut total = self
                .pods
                .get(pod)
                .copied()
                .unwrap_or(CpuCounter::starting_at(now));
            for container in metrics
                .containers
                .iter()
                .take(MAX_CONTAINERS)
                .filter(|container| is_name(&container.name))
            {
                let Some((nano_cores, memory)) = container.usage.cpu_and_memory() else {
                    continue;
                };
                let key = (pod.clone(), container.name.clone());
                if next.containers.contains_key(&key) {
                    continue;
                }
                let before = self.containers.get(&key).map(|before| before.cpu);
                let used = before.map_or(0, |_| cpu_time(nano_cores, elapsed));
                (node, total) = (node.plus_cpu_time(used), total.plus_cpu_time(used));
                let cpu = before
                    .unwrap_or(CpuCounter::starting_at(now))
                    .plus_cpu_time(used);
                next.containers.insert(
                    key,
                    ContainerSample {
                        nano_cores,
                        memory,
                        cpu,
                    },
                );
                next.pods.insert(pod.clone(), total);
            }
        }
        next.cpu = Some(node);
        next
    }

    /// The form of `/metrics/resource`.
    pub(super) fn resource_metrics(&self) -> String {
        let mut metrics = MetricsText::at(self.at);
        let total = self.node_total();
        metrics.write_metric(
            "node_cpu_usage_seconds_total",
            "counter",
            [(String::new(), seconds_text(total.cpu.cpu_time))],
        );
        metrics.write_metric(
            "node_memory_working_set_bytes",
            "gauge",
            [(String::new(), total.memory.to_string())],
        );
        let containers: Vec<(String, &ContainerSample)> = self
            .containers
            .iter()
            .map(|((pod, container), sample)| {
                let labels = format!(
                    "container=\"{container}\",namespace=\"{}\",pod=\"{}\"",
                    pod.namespace, pod.name
                );
                (labels, sample)
            })
            .collect();
        metrics.write_container_metrics(&containers, "");
        metrics.text
    }

    /// The form of `/metrics/cadvisor`. Labels have what cAdvisor gives them: `id` and `name` of
    /// the container at the provider, its image, and all processors as one. A container without a
    /// status is left out: whoever asks for images would not see it.
    pub(super) fn container_metrics(&self, pods: &KubeletPodList) -> String {
        let labelled = self.containers.iter().filter_map(|((pod, name), container)| {
            let status = pods.container_status(&pod.uid, name)?;
            let id = status.container_id.as_deref().and_then(|id| id.split_once("://")).map(|(_, id)| id).unwrap_or_default();
            let labels = format!(
                "container=\"{name}\",id=\"/kubepods/pod{}/{}\",image=\"{}\",name=\"{}\",namespace=\"{}\",pod=\"{}\"",
                pod.uid,
                escaped_label(id),
                escaped_label(&status.image),
                escaped_label(id),
                pod.namespace,
                pod.name
            );
            Some((labels, container))
        });
        let labelled: Vec<(String, &ContainerSample)> = labelled.collect();
        let mut metrics = MetricsText::at(self.at);
        metrics.write_container_metrics(&labelled, ",cpu=\"total\"");
        metrics.text
    }

    /// The form of `/stats/summary`.
    pub(super) fn summary(&self, node: &str) -> Value {
        let mut pods: BTreeMap<&LocalPodRef, Vec<Value>> = BTreeMap::new();
        for ((pod, name), container) in &self.containers {
            let mut stats = self.stats_of_sample(container);
            stats["name"] = name.as_str().into();
            pods.entry(pod).or_default().push(stats);
        }
        let pods: Vec<Value> = pods
            .into_iter()
            .map(|(pod, containers)| {
                let mut stats = self.stats_of_sample(&self.pod_total(pod));
                stats["podRef"] =
                    json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid });
                stats["containers"] = containers.into();
                stats
            })
            .collect();
        let mut stats = self.stats_of_sample(&self.node_total());
        stats["nodeName"] = node.into();
        json!({ "node": stats, "pods": pods })
    }

    fn stats_of_sample(&self, container: &ContainerSample) -> Value {
        json!({
            "startTime": rfc3339(container.cpu.since),
            "cpu": {
                "time": rfc3339(self.at),
                "usageNanoCores": container.nano_cores,
                "usageCoreNanoSeconds": container.cpu.cpu_time,
            },
            "memory": { "time": rfc3339(self.at), "workingSetBytes": container.memory },
        })
    }

    fn node_total(&self) -> ContainerSample {
        self.sum_containers(self.cpu, |_| true)
    }

    fn pod_total(&self, pod: &LocalPodRef) -> ContainerSample {
        self.sum_containers(self.pods.get(pod).copied(), |one| one == pod)
    }

    /// Sums the usage of the containers of some pods now, with the counter of their CPU time.
    fn sum_containers(
        &self,
        cpu: Option<CpuCounter>,
        counts: impl Fn(&LocalPodRef) -> bool,
    ) -> ContainerSample {
        let none = ContainerSample {
            nano_cores: 0,
            memory: 0,
            cpu: cpu.unwrap_or(CpuCounter::starting_at(self.at)),
        };
        self.containers
            .iter()
            .filter(|((pod, _), _)| counts(pod))
            .fold(none, |sum, (_, one)| ContainerSample {
                nano_cores: sum.nano_cores.saturating_add(one.nano_cores),
                memory: sum.memory.saturating_add(one.memory),
                ..sum
            })
    }
}

/// Metrics in the text format of Prometheus, all of one time.
struct MetricsText {
    text: String,
    /// The time, in milliseconds.
    at: i64,
}

impl MetricsText {
    fn at(time: Timestamp) -> Self {
        Self {
            text: String::new(),
            at: time.as_millisecond(),
        }
    }

    /// Writes the samples of a metric: labels in braces or none, and the value.
    fn write_metric(
        &mut self,
        name: &str,
        kind: &str,
        samples: impl IntoIterator<Item = (String, String)>,
    ) {
        // Writing to a text never fails.
        _ = writeln!(self.text, "# TYPE {name} {kind}");
        for (labels, value) in samples {
            _ = writeln!(self.text, "{name}{labels} {value} {}", self.at);
        }
    }

    /// Writes the metrics of containers, each with its labels. Those of the CPU have more labels.
    fn write_container_metrics(&mut self, containers: &[(String, &ContainerSample)], cpu: &str) {
        let samples = containers.iter();
        let cpu_times = samples.clone().map(|(labels, container)| {
            let value = seconds_text(container.cpu.cpu_time);
            (format!("{{{labels}{cpu}}}"), value)
        });
        self.write_metric("container_cpu_usage_seconds_total", "counter", cpu_times);
        let memory = samples
            .clone()
            .map(|(labels, container)| (format!("{{{labels}}}"), container.memory.to_string()));
        self.write_metric("container_memory_working_set_bytes", "gauge", memory);
        let starts = samples.map(|(labels, container)| {
            let value = format!("{}.0", container.cpu.since.as_second());
            (format!("{{{labels}}}"), value)
        });
        self.write_metric("container_start_time_seconds", "gauge", starts);
    }
}

impl ContainerUsage {
    /// Nanocores and bytes; `None` if they cannot be.
    fn cpu_and_memory(&self) -> Option<(u64, u64)> {
        let cpu = self.cpu.parse::<Quantity>().ok()?.nanos();
        let memory = self.memory.parse::<Quantity>().ok()?.value();
        let believed = (0..=MAX_NANO_CORES).contains(&cpu) && (0..=MAX_BYTES).contains(&memory);
        believed.then(|| Some((u64::try_from(cpu).ok()?, u64::try_from(memory).ok()?)))?
    }
}

/// The form of a kubelet's own `/metrics`.
pub(super) fn own_metrics(node: &str, running_pods: usize) -> String {
    format!(
        "# TYPE kubelet_node_name gauge\nkubelet_node_name{{node=\"{}\"}} 1\n# TYPE kubelet_running_pods gauge\nkubelet_running_pods {running_pods}\n",
        escaped_label(node)
    )
}

/// The value of a label.
fn escaped_label(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn seconds_text(nanoseconds: u64) -> String {
    format!(
        "{}.{:09}",
        nanoseconds / 1_000_000_000,
        nanoseconds % 1_000_000_000
    )
}

/// The CPU time of this many nanocores in a period, in nanoseconds.
fn cpu_time(nano_cores: u64, period: Duration) -> u64 {
    u64::try_from(u128::from(nano_cores) * period.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::{Just, prop_assert, proptest};

    use super::*;

    fn web() -> LocalPodRef {
        LocalPodRef {
            namespace: "demo".into(),
            name: "web".into(),
            uid: "u".into(),
        }
    }

    fn reported(containers: &[(&str, &str, &str)]) -> Vec<(LocalPodRef, PodMetrics)> {
        let containers: Vec<Value> = containers
            .iter()
            .map(|(name, cpu, memory)| json!({ "name": name, "usage": { "cpu": cpu, "memory": memory } }))
            .collect();
        let metrics = json!({ "metadata": { "name": "web" }, "containers": containers });
        vec![(web(), serde_json::from_value(metrics).unwrap())]
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn rates_are_added_up_to_cpu_time() {
        let first =
            KubeletNodeUsage::default().updated_with(&reported(&[("c", "250m", "64Mi")]), at(0));
        let second = first.updated_with(&reported(&[("c", "250m", "64Mi")]), at(20));
        let text = second.resource_metrics();
        for line in [
            "node_cpu_usage_seconds_total 5.000001000 1000020000",
            "node_memory_working_set_bytes 67108864 1000020000",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"demo\",pod=\"web\"} 5.000001000 1000020000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"demo\",pod=\"web\"} 67108864 1000020000",
            "container_start_time_seconds{container=\"c\",namespace=\"demo\",pod=\"web\"} 1000000.0 1000020000",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }

    #[test]
    fn containers_have_the_labels_by_which_dashboards_find_them() {
        let usage = KubeletNodeUsage::default().updated_with(
            &reported(&[("c", "250m", "64Mi"), ("unknown", "1", "1Mi")]),
            at(0),
        );
        let status = json!({ "name": "c", "image": "example.com/a:1\"x", "containerID": "containerd://abc" });
        let pod =
            json!({ "metadata": { "uid": "u" }, "status": { "containerStatuses": [status] } });
        let text =
            usage.container_metrics(&serde_json::from_value(json!({ "items": [pod] })).unwrap());
        let labels = "container=\"c\",id=\"/kubepods/podu/abc\",image=\"example.com/a:1\\\"x\",name=\"abc\",namespace=\"demo\",pod=\"web\"";
        for line in [
            format!(
                "container_cpu_usage_seconds_total{{{labels},cpu=\"total\"}} 0.000001000 1000000000"
            ),
            format!("container_memory_working_set_bytes{{{labels}}} 67108864 1000000000"),
            format!("container_start_time_seconds{{{labels}}} 1000000.0 1000000000"),
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(own_metrics("milan", 3).contains("kubelet_node_name{node=\"milan\"} 1\n"));
    }

    /// The value of the node's counter, and of the container's if there is one, in nanoseconds.
    fn counters(usage: &KubeletNodeUsage) -> (u64, Option<u64>) {
        let summary = usage.summary("milan");
        let cpu_time = |of: &Value| of["cpu"]["usageCoreNanoSeconds"].as_u64();
        (
            cpu_time(&summary["node"]).unwrap(),
            cpu_time(&summary["pods"][0]["containers"][0]),
        )
    }

    #[test]
    fn a_new_pod_adds_no_cpu_time_and_an_ended_one_takes_none_away() {
        let pod = reported(&[("c", "250m", "64Mi")]);
        let empty = KubeletNodeUsage::default().updated_with(&[], at(0));
        assert_eq!(counters(&empty), (FIRST_CPU_TIME, None));
        let new = empty.updated_with(&pod, at(20));
        assert_eq!(counters(&new), (FIRST_CPU_TIME, Some(FIRST_CPU_TIME)));
        let used = FIRST_CPU_TIME + 5_000_000_000;
        let runs = new.updated_with(&pod, at(40));
        assert_eq!(counters(&runs), (used, Some(used)));
        let ended = runs.updated_with(&[], at(60));
        assert_eq!(counters(&ended), (used, None));
        assert!(
            ended
                .resource_metrics()
                .contains("node_cpu_usage_seconds_total 5.000001000 "),
            "{}",
            ended.resource_metrics()
        );
        let again = ended.updated_with(&pod, at(80));
        assert_eq!(
            counters(&again),
            (used, Some(FIRST_CPU_TIME)),
            "a container that starts has a counter that starts"
        );
        let summary = again.summary("milan");
        assert_eq!(
            (
                &summary["node"]["startTime"],
                &summary["pods"][0]["startTime"]
            ),
            (&json!(rfc3339(at(0))), &json!(rfc3339(at(80))))
        );
    }

    #[test]
    fn the_counter_of_a_pod_keeps_what_its_ended_containers_used() {
        let both = reported(&[("init", "1", "1Mi"), ("main", "1", "1Mi")]);
        let usage = KubeletNodeUsage::default()
            .updated_with(&both, at(0))
            .updated_with(&both, at(10))
            .updated_with(&reported(&[("main", "0", "1Mi")]), at(20));
        assert_eq!(
            usage.summary("milan")["pods"][0]["cpu"]["usageCoreNanoSeconds"],
            FIRST_CPU_TIME + 20_000_000_000
        );
    }

    #[test]
    fn a_container_that_is_reported_twice_counts_once() {
        let twice = reported(&[("c", "1", "1Mi"), ("c", "1", "1Mi")]);
        let usage = KubeletNodeUsage::default()
            .updated_with(&twice, at(0))
            .updated_with(&twice, at(10));
        assert_eq!(
            counters(&usage),
            (
                FIRST_CPU_TIME + 10_000_000_000,
                Some(FIRST_CPU_TIME + 10_000_000_000)
            )
        );
    }

    #[test]
    fn the_summary_has_the_sums_of_pods_and_node() {
        let usage = KubeletNodeUsage::default()
            .updated_with(&reported(&[("a", "1", "1Ki"), ("b", "500m", "1Ki")]), at(0));
        let summary = usage.summary("milan");
        assert_eq!(summary["node"]["nodeName"], "milan");
        assert_eq!(summary["node"]["cpu"]["usageNanoCores"], 1_500_000_000_u64);
        assert_eq!(
            summary["pods"][0]["podRef"],
            json!({ "name": "web", "namespace": "demo", "uid": "u" })
        );
        assert_eq!(summary["pods"][0]["memory"]["workingSetBytes"], 2048);
        assert_eq!(summary["pods"][0]["containers"][1]["name"], "b");
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        let strange = [
            ("a", "-1", "1Mi"),
            ("b", "1", "much"),
            ("c\"} 1\nx{y=\"", "1", "1Mi"),
            ("d", "5000000", "1Mi"),
            ("", "1", "1Mi"),
        ];
        assert_eq!(
            KubeletNodeUsage::default()
                .updated_with(&reported(&strange), at(0))
                .containers
                .len(),
            0
        );
        let usage =
            KubeletNodeUsage::default().updated_with(&reported(&[("c", "1", "1Mi")]), at(0));
        assert_eq!(
            usage.updated_with(&[], at(10)).containers.len(),
            0,
            "what is gone is forgotten"
        );
    }

    fn valid() -> String {
        let container =
            |name: &str| json!({ "name": name, "usage": { "cpu": "250m", "memory": "64Mi" } });
        let pod = json!({ "metadata": { "name": "web" }, "containers": [container("c"), container("d")] });
        json!({ "kind": "PodMetricsList", "items": [pod] }).to_string()
    }

    proptest! {
        #[test]
        fn a_mutated_list_adds_no_lines_but_those_of_its_containers(text in mutated_text(Just(valid()))) {
            let Ok(list) = serde_json::from_str::<PodMetricsList>(&text) else { return Ok(()) };
            let reported: Vec<_> = list.items.into_iter().map(|metrics| (web(), metrics)).collect();
            let first = KubeletNodeUsage::default().updated_with(&reported, at(0));
            let usage = first.updated_with(&reported, at(20));
            let lines = usage.resource_metrics().lines().count();
            prop_assert!(lines == 5 + 2 + 3 * usage.containers.len(), "{}", usage.resource_metrics());
            prop_assert!(usage.containers.values().all(|one| i128::from(one.nano_cores) <= MAX_NANO_CORES));
            let _ = usage.summary("milan");
        }
    }
}
