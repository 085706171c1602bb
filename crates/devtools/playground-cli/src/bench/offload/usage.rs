//! CPU time and memory of processes on this machine, from `/proc`.

use std::{fs, time::Duration};

use futures::future::{Either, select};
use liqoctl::manifests::{FABRIC, MANAGER};

/// Time between two samples of the memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// The unit of CPU times in `/proc/PID/stat` is 1/100 s on every architecture that the playground
/// runs on.
const TICKS_PER_SECOND: f64 = 100.0;
pub(super) const API_SERVER: &str = "kube-apiserver";

/// A process that is observed.
#[derive(Clone, Debug)]
pub(super) struct ObservedProcess {
    pub cluster: String,
    pub program: String,
    pid: i32,
}

/// CPU time and memory that a process used during a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedUsage {
    pub cluster: String,
    pub program: String,
    pub cpu_seconds: f64,
    /// Peak of the resident memory, in KiB.
    pub resident: f64,
    /// Peak of its anonymous part, in KiB.
    pub anonymous: f64,
}

/// Liqo's processes and the API server of each cluster.
pub(super) fn processes_to_observe(machines: &[liqo_playground::Cluster]) -> Vec<ObservedProcess> {
    machines
        .iter()
        .flat_map(|machine| {
            let processes = machine.processes().into_iter();
            let observed = processes.filter(|process| {
                [MANAGER, FABRIC, API_SERVER].contains(&process.program.as_str())
            });
            observed
                .map(|process| ObservedProcess {
                    cluster: machine.name().to_owned(),
                    program: process.program,
                    pid: process.pid,
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Does something, and observes the processes as long as it takes. A process that ends meanwhile is
/// left out.
pub(super) async fn observe_while<T>(
    targets: &[ObservedProcess],
    work: impl Future<Output = T>,
) -> (T, Vec<ObservedUsage>) {
    let before: Vec<_> = targets
        .iter()
        .map(|target| cpu_seconds_of(target.pid))
        .collect();
    let mut peaks = vec![ProcessMemory::default(); targets.len()];
    let mut work = Box::pin(work);
    let done = loop {
        for (target, peak) in targets.iter().zip(&mut peaks) {
            *peak = peak.max(read_memory(target.pid).unwrap_or_default());
        }
        match select(work, Box::pin(tokio::time::sleep(SAMPLE_INTERVAL))).await {
            Either::Left((done, _)) => break done,
            Either::Right(((), unfinished)) => work = unfinished,
        }
    };
    let mut observed = Vec::new();
    for ((target, before), peak) in targets.iter().zip(before).zip(peaks) {
        if let (Some(before), Some(after)) = (before, cpu_seconds_of(target.pid)) {
            observed.push(ObservedUsage {
                cluster: target.cluster.clone(),
                program: target.program.clone(),
                cpu_seconds: after - before,
                resident: peak.resident,
                anonymous: peak.anonymous,
            });
        }
    }
    (done, observed)
}

/// Memory of a process in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessMemory {
    resident: f64,
    anonymous: f64,
}

impl ProcessMemory {
    fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            anonymous: self.anonymous.max(other.anonymous),
        }
    }
}

fn cpu_seconds_of(pid: i32) -> Option<f64> {
    cpu_seconds(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn read_memory(pid: i32) -> Option<ProcessMemory> {
    memory_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// User and system time of all threads. The program's name, in parentheses, may contain spaces.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

fn memory_of(status: &str) -> Option<ProcessMemory> {
    Some(ProcessMemory {
        resident: kibibytes_of(status, "VmRSS")?,
        anonymous: kibibytes_of(status, "RssAnon")?,
    })
}

fn kibibytes_of(status: &str, name: &str) -> Option<f64> {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_user_and_system_time() {
        let stat =
            "42 (a ) name) S 1 42 42 0 -1 4194560 1000 0 3 0 150 50 7 8 20 0 9 0 100 1000 200";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("42 (cut"), None);
    }

    #[test]
    fn memory_is_resident_and_anonymous() {
        let status = "Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  700 kB\nRssAnon:\t  300 kB\nRssFile:\t  400 kB\n";
        assert_eq!(
            memory_of(status),
            Some(ProcessMemory {
                resident: 700.0,
                anonymous: 300.0
            })
        );
        assert_eq!(memory_of("Name:\tkthreadd\n"), None);
    }

    #[tokio::test]
    async fn a_process_is_observed_and_one_that_is_gone_is_left_out() {
        let target = |pid| ObservedProcess {
            cluster: "rome".to_owned(),
            program: "test".to_owned(),
            pid,
        };
        let own = i32::try_from(std::process::id()).unwrap();
        let (done, usage) = observe_while(&[target(own), target(i32::MAX)], async { 7 }).await;
        assert_eq!((done, usage.len()), (7, 1));
        assert!(
            usage[0].resident >= usage[0].anonymous && usage[0].anonymous > 0.0,
            "{usage:?}"
        );
    }
}
