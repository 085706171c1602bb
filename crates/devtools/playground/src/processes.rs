//! Finds the processes of a playground, no matter who started them.
//!
//! Programs have a mark in their environment, which containerd's shims inherit. Processes in pods
//! are found by their cgroup.

use std::{fs, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    cgroups,
    error::{Error, Result},
    layout::{ClusterLayout, Instance, MARK, NodeLayout},
};

/// A process of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// File name of the program, such as `kube-apiserver`.
    pub program: String,
}

impl Process {
    /// Nothing for a process that is gone.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(Self {
            pid,
            program: program(&command_line)?,
        })
    }
}

/// The file name of the first argument.
fn program(command_line: &[u8]) -> Option<String> {
    let first = std::str::from_utf8(command_line.split(|byte| *byte == 0).next()?).ok()?;
    first
        .rsplit('/')
        .next()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// All processes of an instance except this one.
pub(crate) fn of_instance(instance: &Instance) -> Vec<i32> {
    let (prefix, mark) = (instance.prefix(), format!("{}/", instance.name));
    find(
        |marked| marked.starts_with(&mark),
        |cgroup| cgroup.starts_with(&prefix),
    )
}

/// All processes of a cluster, those in its pods included.
pub(crate) fn of_cluster(cluster: &ClusterLayout) -> Vec<i32> {
    let mark = cluster.mark();
    find(
        |marked| marked.starts_with(&mark),
        |cgroup| cluster.nodes.iter().any(|node| node.cgroup == cgroup),
    )
}

/// All processes of one node of a cluster, those in its pods included.
pub(crate) fn of_node(cluster: &ClusterLayout, node: &NodeLayout) -> Vec<i32> {
    let mark = cluster.mark();
    let is_ours = |marked: &str| {
        marked
            .strip_prefix(&mark)
            .is_some_and(|component| node.runs(component))
    };
    find(is_ours, |cgroup| cgroup == node.cgroup)
}

/// Ends everything in a node's pods.
pub(crate) fn kill_pods(node: &NodeLayout) {
    for pid in cgroups::processes(|cgroup| cgroup == node.cgroup) {
        signal(pid, Signal::KILL);
    }
}

/// Ends a detached supervisor.
pub(crate) fn kill_supervisor(instance: &Instance) {
    let mark = supervisor_mark(instance);
    for pid in find(|marked| marked == mark, |_| false) {
        signal(pid, Signal::KILL);
    }
}

/// The mark of a supervisor. Its cluster name is empty, unlike that of any program.
pub(crate) fn supervisor_mark(instance: &Instance) -> String {
    format!("{}//supervisor", instance.name)
}

fn find(is_our_mark: impl Fn(&str) -> bool, is_our_cgroup: impl Fn(&str) -> bool) -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let marked = pids.filter(|pid| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| mark(&environment).is_some_and(&is_our_mark))
    });
    let mut found: Vec<i32> = marked
        .chain(cgroups::processes(is_our_cgroup))
        .filter(|pid| *pid != own)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The mark in a process's environment.
fn mark(environment: &[u8]) -> Option<&str> {
    let variables = environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| std::str::from_utf8(variable).ok());
    variables
        .filter_map(|variable| variable.split_once('='))
        .find(|(name, _)| *name == MARK)
        .map(|(_, mark)| mark)
}

/// Sends a signal. It is no error if the process is gone.
pub(crate) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Sends a signal to all processes of a cluster, until no new ones appear.
pub(crate) fn signal_cluster(cluster: &ClusterLayout, wanted: Signal) {
    let mut seen = Vec::new();
    loop {
        let new: Vec<_> = of_cluster(cluster)
            .into_iter()
            .filter(|pid| !seen.contains(pid))
            .collect();
        if new.is_empty() {
            return;
        }
        for pid in &new {
            signal(*pid, wanted);
        }
        seen.extend(new);
    }
}

/// Kills all processes that `find` returns, until it returns none.
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
    Err(Error::Unkillable {
        instance: instance.to_owned(),
        pids: find(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_file_name_of_the_first_argument() {
        assert_eq!(
            program(b"/usr/bin/etcd\0--name=default\0").as_deref(),
            Some("etcd")
        );
        assert_eq!(program(b"liqo-fabric\0").as_deref(), Some("liqo-fabric"));
        assert_eq!(program(b""), None);
    }

    #[test]
    fn a_mark_is_a_whole_variable() {
        assert_eq!(
            mark(b"PATH=/bin\0LIQO_PLAYGROUND=liqo/rome/etcd\0"),
            Some("liqo/rome/etcd")
        );
        assert_eq!(
            mark(b"X=LIQO_PLAYGROUND=liqo/rome/etcd\0LIQO_PLAYGROUND_SUPERVISE=liqo\0"),
            None
        );
    }
}
