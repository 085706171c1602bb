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
    let (prefix, mark) = (instance.prefix(), format!("{}/", instance.name));
    find(|marked| marked.starts_with(&mark), |cgroup| cgroup.starts_with(&prefix))
}

/// All processes of a cluster, those in its pods included.
pub(crate) fn of_cluster(cluster: &ClusterLayout) -> Vec<i32> {
    let mark = cluster.mark();
    find(|marked| marked.starts_with(&mark), |cgroup| cluster.nodes.iter().any(|node| node.cgroup == cgroup))
}

/// All processes of one node of a cluster, those in its pods included.
pub(crate) fn of_node(cluster: &ClusterLayout, node: &NodeLayout) -> Vec<i32> {
    let mark = cluster.mark();
    let is_ours = |marked: &str| marked.strip_prefix(&mark).is_some_and(|component| node.runs(component));
    find(is_ours, |cgroup| cgroup == node.cgroup)
}

/// Ends everything in a node's pods.
pub(crate) fn kill_pods(node: &NodeLayout) {
    for pid in cgroups::processes(|cgroup| cgroup == node.cgroup) {
        signal(pid, Signal::KILL);
    }
}

/// Ends a supervisor that is a process of its own.
pub(crate) fn kill_supervisor(instance: &Instance) {
    let mark = supervisor_mark(instance);
    for pid in find(|marked| marked == mark, |_| false) {
        signal(pid, Signal::KILL);
    }
}

/// No cluster has an empty name.
pub(crate) fn supervisor_mark(instance: &Instance) -> String {
    format!("{}//supervisor", instance.name)
}

fn find(is_our_mark: impl Fn(&str) -> bool, is_our_cgroup: impl Fn(&str) -> bool) -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let marked = pids.filter(|pid| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| mark(&environment).is_some_and(&is_our_mark))
    });
    let mut found: Vec<i32> = marked.chain(cgroups::processes(is_our_cgroup)).filter(|pid| *pid != own).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The mark in a process's environment.
fn mark(environment: &[u8]) -> Option<&str> {
    let variables = environment.split(|byte| *byte == 0).filter_map(|variable| std::str::from_utf8(variable).ok());
    variables.filter_map(|variable| variable.split_once('=')).find(|(name, _)| *name == MARK).map(|(_, mark)| mark)
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

/// Ends all processes that are found, until none is found any more.
pub(crate) async fn kill_all(instance: &str, find: impl Fn() -> Vec<i32>) -> Result<()> {
    for _ in 0..200 {
        let processes = find();
        if processes.is_empty() {
            return Ok(());
        }
        for pid in processes {
            signal(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(Error::Unkillable { instance: instance.to_owned(), pids: find() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_whole_variable() {
        assert_eq!(mark(b"PATH=/bin\0LIQO_PLAYGROUND=liqo/rome/etcd\0"), Some("liqo/rome/etcd"));
        assert_eq!(mark(b"X=LIQO_PLAYGROUND=liqo/rome/etcd\0LIQO_PLAYGROUND_SUPERVISE=liqo\0"), None);
    }
}
