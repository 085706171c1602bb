//! What clusters take while they are attacked: how long steps last, the memory of managers, and the
//! size of etcd.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};
use liqo_api::{CONTROLLER_MANAGER, Quantity};

use crate::{Cluster, World};

const MIB: f64 = 1_048_576.0;

/// How long the same step took each time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn median(&self) -> Option<Duration> {
        let mut all = self.0.clone();
        all.sort();
        all.get(all.len() / 2).copied()
    }

    pub fn worst(&self) -> Option<Duration> {
        self.0.iter().max().copied()
    }
}

/// The header of the lines of [`compare`].
pub const COMPARISON_HEADER: &str = "                          without attack: median  worst (count)   under attack: median  worst (count)   ratio of medians";

/// A line of a table: what a step took without an attack, and under one.
pub fn compare(step: &str, without: &Latencies, under: &Latencies) -> String {
    let seconds = |time: Option<Duration>| {
        time.map_or_else(
            || "-".to_owned(),
            |time| format!("{:.2} s", time.as_secs_f64()),
        )
    };
    let ratio = without
        .median()
        .zip(under.median())
        .filter(|(without, _)| !without.is_zero());
    let ratio = ratio.map_or_else(
        || "-".to_owned(),
        |(without, under)| format!("{:.1}", under.as_secs_f64() / without.as_secs_f64()),
    );
    let side = |all: &Latencies| {
        format!(
            "{:>8} {:>8} ({})",
            seconds(all.median()),
            seconds(all.worst()),
            all.count()
        )
    };
    format!(
        "{step:<34} {:<30} {:<30} {ratio:>6}",
        side(without),
        side(under)
    )
}

/// Memory of a process in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub resident: u64,
    /// The most that was resident since the process started.
    pub peak: u64,
}

/// Reads `/proc/PID/status`.
fn memory(status: &str) -> Option<Memory> {
    let kibibytes = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    Some(Memory {
        resident: kibibytes("VmRSS:")?,
        peak: kibibytes("VmHWM:")?,
    })
}

/// Size of an etcd in MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EtcdSize {
    /// Size of its file. It holds former versions of all objects, too, until the API server
    /// compacts them every five minutes.
    pub file: f64,
    /// What it takes without former versions.
    pub live: f64,
}

/// The value of a metric without labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

impl World {
    /// The processes of a cluster's manager.
    pub fn managers(&self, cluster: &Cluster) -> Result<BTreeMap<i32, Memory>> {
        let processes = self.machinery(cluster)?.processes();
        let of_manager = processes
            .into_iter()
            .filter(|process| process.program == CONTROLLER_MANAGER);
        let of = |pid: i32| memory(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?);
        let managers: BTreeMap<i32, Memory> = of_manager
            .filter_map(|process| Some((process.pid, of(process.pid)?)))
            .collect();
        ensure!(
            !managers.is_empty(),
            "the manager of {} does not run",
            cluster.name
        );
        Ok(managers)
    }

    /// Compacts a cluster's etcd, and returns its size before and after. Lists that were read in
    /// part have to begin again.
    pub async fn etcd_size(&self, cluster: &Cluster) -> Result<EtcdSize> {
        let file = self
            .etcd_metric(cluster, "etcd_mvcc_db_total_size_in_bytes")
            .await?;
        let namespaces = Api::<Namespace>::all(cluster.client.clone())
            .list_metadata(&ListParams::default().limit(1))
            .await?;
        // The revision of etcd.
        let revision = namespaces
            .metadata
            .resource_version
            .context("the list has no version")?;
        let body = format!(r#"{{\"revision\":\"{revision}\",\"physical\":true}}"#);
        let line = format!(
            r#"printf "POST /v3/kv/compaction HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}" >&3"#,
            body.replace('\\', "").len()
        );
        let answer = self.ask_etcd(cluster, &line).await?;
        // The API server may have compacted to this revision at this moment.
        ensure!(
            answer.contains(" 200 ") || answer.contains("compacted"),
            "etcd of {} is not compacted: {answer}",
            cluster.name
        );
        Ok(EtcdSize {
            file: file / MIB,
            live: self
                .etcd_metric(cluster, "etcd_mvcc_db_total_size_in_use_in_bytes")
                .await?
                / MIB,
        })
    }

    async fn etcd_metric(&self, cluster: &Cluster, name: &str) -> Result<f64> {
        let text = self
            .ask_etcd(cluster, r#"printf "GET /metrics HTTP/1.0\r\n\r\n" >&3"#)
            .await?;
        metric(&text, name).with_context(|| {
            format!(
                "etcd of {} has no metric {name}: {:.500}",
                cluster.name, text
            )
        })
    }

    /// Sends a request to a cluster's etcd, which listens only inside of its node.
    async fn ask_etcd(&self, cluster: &Cluster, request: &str) -> Result<String> {
        let node = self
            .machinery(cluster)?
            .nodes()
            .into_iter()
            .next()
            .context("the cluster has no node")?;
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/2379; {request}; cat <&3");
        self.shell(
            &format!(
                "nsenter --net=/run/netns/{} bash -c '{script}'",
                node.network_namespace
            ),
            60,
        )
        .await
    }
}

impl Cluster {
    /// Limit of the memory of the manager's container in KiB.
    pub async fn manager_memory_limit(&self) -> Result<u64> {
        let deployment = self
            .object(&["-n", "liqo", "deployment", CONTROLLER_MANAGER])
            .await?
            .unwrap_or_default();
        let limit = &deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
            ["memory"];
        let limit: Quantity = limit
            .as_str()
            .context("the manager has no limit of memory")?
            .parse()?;
        Ok(u64::try_from(limit.value())? / 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(millis: &[u64]) -> Latencies {
        Latencies(millis.iter().copied().map(Duration::from_millis).collect())
    }

    #[test]
    fn median_and_worst_are_those_of_all_samples() {
        assert_eq!(
            (Latencies::default().median(), Latencies::default().worst()),
            (None, None)
        );
        let mut all = latencies(&[900, 100]);
        all.append(latencies(&[300]));
        assert_eq!(
            (all.median(), all.worst()),
            (
                Some(Duration::from_millis(300)),
                Some(Duration::from_millis(900))
            )
        );
    }

    #[test]
    fn a_comparison_shows_the_ratio_of_medians() {
        let line = compare("pod runs", &latencies(&[1000]), &latencies(&[2500, 2600]));
        for part in ["pod runs", "1.00 s", "2.60 s", "(2)", "2.6"] {
            assert!(line.contains(part), "{line}");
        }
        assert!(compare("nothing", &latencies(&[]), &latencies(&[1])).ends_with('-'));
    }

    #[test]
    fn memory_is_read_from_proc() {
        let status = "Name:\tx\nVmPeak:\t 1000 kB\nVmHWM:\t  900 kB\nVmRSS:\t  700 kB\n";
        assert_eq!(
            memory(status),
            Some(Memory {
                resident: 700,
                peak: 900
            })
        );
        assert_eq!(memory("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# HELP size x\nsize_in_use 1\nsize 2.5e+06\n";
        assert_eq!(metric(text, "size"), Some(2.5e6));
        assert_eq!(metric(text, "siz"), None);
    }
}
