//! Finds the processes of a playground, whoever started them and whatever became of their parents.
//!
//! Programs bear a mark in their environment, which containerd hands on to its shims; what runs in pods is found by its cgroup.

use std::{fs, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    cgroups,
    error::{Error, Result},
    layout::{ClusterLayout, Instance, MARK, NodeLayout},
};

/// All processes of an instance but this one.
pub(crate) fn of_instance(instance: &Instance) -> Vec<i32> {
    let prefix = instance.prefix();
    find(&format!("{}/", instance.name), |cgroup| cgroup.starts_with(&prefix))
}

/// All processes of a cluster, those in its pods included.
pub(crate) fn of_cluster(cluster: &ClusterLayout) -> Vec<i32> {
    find(&cluster.mark(), |cgroup| cluster.nodes.iter().any(|node| node.cgroup == cgroup))
}

/// Ends everything in a node's pods.
pub(crate) fn kill_pods(node: &NodeLayout) {
    for pid in cgroups::processes(|cgroup| cgroup == node.cgroup) {
        signal(pid, Signal::KILL);
    }
}

/// Ends a supervisor that is a process of its own.
pub(crate) fn kill_supervisor(instance: &Instance) {
    for pid in find(&supervisor_mark(instance), |_| false) {
        signal(pid, Signal::KILL);
    }
}

/// No cluster has an empty name.
pub(crate) fn supervisor_mark(instance: &Instance) -> String {
    format!("{}//supervisor", instance.name)
}

fn find(mark: &str, is_our_cgroup: impl Fn(&str) -> bool) -> Vec<i32> {
    let marked = format!("{MARK}={mark}");
    let own = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let marked = pids
        .filter(|pid| fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| bears(&environment, marked.as_bytes())));
    let mut found: Vec<i32> = marked.chain(cgroups::processes(is_our_cgroup)).filter(|pid| *pid != own).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn bears(environment: &[u8], marked: &[u8]) -> bool {
    environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(marked))
}

/// Sends a signal; a process that is gone is fine.
pub(crate) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Sends a signal to all processes of a cluster, until no new ones appear.
pub(crate) fn signal_cluster(cluster: &ClusterLayout, wanted: Signal) {
    let mut seen = Vec::new();
    loop {
        let new: Vec<_> = of_cluster(cluster).into_iter().filter(|pid| !seen.contains(pid)).collect();
        if new.is_empty() {
            return;
        }
        for pid in &new {
            signal(*pid, wanted);
        }
        seen.extend(new);
    }
}

/// Ends all processes of an instance at once.
pub(crate) async fn kill_instance(instance: &Instance) -> Result<()> {
    for _ in 0..200 {
        let processes = of_instance(instance);
        if processes.is_empty() {
            return Ok(());
        }
        for pid in processes {
            signal(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(Error::Unkillable { instance: instance.name.clone(), pids: of_instance(instance) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_whole_variable() {
        let environment = b"PATH=/bin\0LIQO_PLAYGROUND=liqo/rome/etcd\0";
        assert!(bears(environment, b"LIQO_PLAYGROUND=liqo/rome/"));
        assert!(!bears(environment, b"LIQO_PLAYGROUND=liqo/milan/"));
        assert!(!bears(b"X=LIQO_PLAYGROUND=liqo/rome/etcd\0", b"LIQO_PLAYGROUND=liqo/rome/"));
    }
}
