//! The directory of each node in every cgroup hierarchy, with its pods below.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

const UNIFIED: &str = "/sys/fs/cgroup";

/// The share of the processors that all pods of a node get when programs compete, in the file of
/// cgroup v1 and of v2: as much as ten programs outside of cgroups. With the kernel's default, it
/// would be as much as one, and there are dozens.
const SHARES: [(&str, &str); 2] = [("cpu.shares", "10240"), ("cpu.weight", "1000")];

/// The mount points of all hierarchies: one with cgroup v2, several with v1.
fn hierarchies() -> Vec<PathBuf> {
    if Path::new(UNIFIED).join("cgroup.controllers").exists() {
        return vec![PathBuf::from(UNIFIED)];
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mount_points(&mounts)
}

fn mount_points(mounts: &str) -> Vec<PathBuf> {
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| matches!(fields.get(2), Some(&"cgroup" | &"cgroup2")))
        .map(|fields| PathBuf::from(fields[1]))
        .collect()
}

/// Creates the directory in every hierarchy; a kubelet refuses to start if one is missing.
pub(crate) fn ensure(name: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        enable_controllers(&hierarchy);
        let directory = hierarchy.join(name);
        fs::create_dir_all(&directory).map_err(Error::file("create", &directory))?;
        // A new cpuset of v1 is empty, and nothing can run in it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (parent, own) = (hierarchy.join(file), directory.join(file));
            if parent.exists() && fs::read_to_string(&own).is_ok_and(|text| text.trim().is_empty())
            {
                let text = fs::read_to_string(&parent).map_err(Error::file("read", &parent))?;
                fs::write(&own, text).map_err(Error::file("write", &own))?;
            }
        }
        for (file, share) in SHARES.map(|(file, share)| (directory.join(file), share)) {
            if file.exists() {
                fs::write(&file, share).map_err(Error::file("write", &file))?;
            }
        }
        enable_controllers(&directory);
    }
    Ok(())
}

/// With v2 the children have only the controllers that the parent delegates. The kubelet reports a
/// missing one when it starts.
fn enable_controllers(directory: &Path) {
    let Ok(controllers) = fs::read_to_string(directory.join("cgroup.controllers")) else {
        return;
    };
    for controller in controllers.split_whitespace() {
        let _ = fs::write(
            directory.join("cgroup.subtree_control"),
            format!("+{controller}"),
        );
    }
}

/// All processes in the directories with such names, and below.
pub(crate) fn processes(is_ours: impl Fn(&str) -> bool) -> Vec<i32> {
    let mut processes: Vec<i32> = top_directories(is_ours)
        .iter()
        .flat_map(|directory| tree(directory))
        .filter_map(|directory| fs::read_to_string(directory.join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<i32>>()
        })
        .filter(|pid| *pid > 0)
        .collect();
    processes.sort_unstable();
    processes.dedup();
    processes
}

/// Removes the directories with such names; their processes must have ended.
pub(crate) fn remove(is_ours: impl Fn(&str) -> bool) -> Result<()> {
    for top in top_directories(is_ours) {
        for directory in tree(&top).into_iter().rev() {
            match fs::remove_dir(&directory) {
                Err(source) if directory.exists() => {
                    return Err(Error::File {
                        action: "remove",
                        path: directory,
                        source,
                    });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn top_directories(is_ours: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let children = hierarchies()
        .into_iter()
        .flat_map(|hierarchy| subdirectories(&hierarchy));
    children
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| is_ours(&name.to_string_lossy()))
        })
        .collect()
}

/// The directory and all directories below it, parents first.
fn tree(top: &Path) -> Vec<PathBuf> {
    let mut all = vec![top.to_owned()];
    let mut next = 0;
    while next < all.len() {
        let below = subdirectories(&all[next]);
        all.extend(below);
        next += 1;
    }
    all
}

fn subdirectories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_by_type_and_not_by_path() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ntmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            mount_points(mounts),
            [
                PathBuf::from("/sys/fs/cgroup/cpu"),
                PathBuf::from("/sys/fs/cgroup/unified")
            ]
        );
    }
}
