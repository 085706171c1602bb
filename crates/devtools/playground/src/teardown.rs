//! Removes everything of an instance or of one node, whatever state it is in.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use rustix::mount::{UnmountFlags, unmount};

use crate::{
    cgroups,
    components::ON_NODES,
    error::{Error, Result},
    files,
    layout::{ClusterLayout, Instance, NodeLayout},
    network, processes,
};

/// Where `liqo-fabric` stores the keys of gateways, unless it is installed with
/// [`ClusterLayout::keys`].
const KEYS: &str = "/var/lib/liqo";
const SHIM_BUNDLES: &str = "run/io.containerd.runtime.v2.task/k8s.io";

/// The supervisor must have ended before, or it would restart its programs.
pub(crate) async fn remove(instance: &Instance) -> Result<()> {
    let nodes: Vec<_> = files::entries(&instance.root)
        .into_iter()
        .flat_map(|cluster| files::entries(&cluster))
        .collect();
    let sockets: Vec<_> = nodes.iter().flat_map(|node| shim_sockets(node)).collect();
    processes::kill_all(&instance.name, || processes::of_instance(instance)).await?;
    unmount_below(&instance.root)?;
    network::remove(instance).await?;
    cgroups::remove(|name| name.starts_with(&instance.prefix()))?;
    nodes.iter().try_for_each(|node| remove_key(node))?;
    remove_files(&instance.root, &sockets)
}

/// Removes one node from this machine. The supervisor must not run its programs any more.
pub(crate) async fn remove_node(cluster: &ClusterLayout, node: &NodeLayout) -> Result<()> {
    let sockets = shim_sockets(&node.dir);
    processes::kill_all(&cluster.instance, || processes::of_node(cluster, node)).await?;
    unmount_below(&node.dir)?;
    network::remove_node(node).await?;
    cgroups::remove(|name| name == node.cgroup)?;
    remove_key(&node.dir)?;
    files::remove(&cluster.keys().join(format!("{}.key", node.name)))?;
    // A later node of the same name may have another address.
    for suffix in ["client.crt", "client.key", "server.crt", "server.key"] {
        files::remove(&cluster.pki(&format!("{}-{suffix}", node.name)))?;
    }
    for program in ON_NODES {
        let log = cluster.log(&node.component(program));
        files::remove(&log)?;
        files::remove(&log.with_extension("log.old"))?;
    }
    remove_files(&node.dir, &sockets)
}

fn remove_files(root: &Path, sockets: &[PathBuf]) -> Result<()> {
    for socket in sockets {
        files::remove(socket)?;
    }
    remove_strays(root)?;
    if root.exists() {
        fs::remove_dir_all(root).map_err(Error::file("remove", root))?;
    }
    Ok(())
}

/// Removes files whose paths are fixed: sockets of shims, results of CNI plugins, links to logs of
/// containers, the socket for device plugins.
fn remove_strays(root: &Path) -> Result<()> {
    for result in files::entries(Path::new("/var/lib/cni/results")) {
        if fs::read_to_string(&result)
            .is_ok_and(|text| text.contains(&format!("{}/", root.display())))
        {
            files::remove(&result)?;
        }
    }
    for link in files::entries(Path::new("/var/log/containers")) {
        if fs::read_link(&link).is_ok_and(|target| target.starts_with(root)) {
            files::remove(&link)?;
        }
    }
    let devices = Path::new("/var/lib/kubelet/device-plugins/kubelet.sock");
    // All kubelets of a machine share this socket. If nobody listens on it, nobody needs it.
    if UnixStream::connect(devices)
        .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    {
        files::remove(devices)?;
    }
    for emptied in [
        "/run/containerd/s",
        "/run/containerd",
        "/var/lib/cni/results",
        "/var/lib/cni",
        "/var/log/containers",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet",
        KEYS,
    ] {
        // It fails if others use the directory; then it stays.
        let _ = fs::remove_dir(emptied);
    }
    Ok(())
}

/// Removes the key of the node's gateway, unless a node of the same name in another playground uses
/// it.
fn remove_key(node: &Path) -> Result<()> {
    let (Some(name), Some(playgrounds)) = (node.file_name(), node.ancestors().nth(3)) else {
        return Ok(());
    };
    let clusters = files::entries(playgrounds)
        .into_iter()
        .flat_map(|instance| files::entries(&instance));
    if clusters
        .map(|cluster| cluster.join(name))
        .any(|other| other != node && other.exists())
    {
        return Ok(());
    }
    files::remove(&Path::new(KEYS).join(format!("{}.key", name.display())))
}

fn shim_sockets(node: &Path) -> Vec<PathBuf> {
    let bundles = files::entries(&node.join(SHIM_BUNDLES)).into_iter();
    let addresses = bundles.filter_map(|bundle| fs::read_to_string(bundle.join("address")).ok());
    let sockets =
        addresses.filter_map(|address| address.trim().strip_prefix("unix://").map(PathBuf::from));
    sockets
        .filter(|socket| socket.starts_with("/run/containerd/s"))
        .collect()
}

/// Unmounts everything below a directory before it is removed: a mount may be a directory of the
/// host.
fn unmount_below(root: &Path) -> Result<()> {
    // Mounts may be stacked, and one round shows only the topmost.
    for _ in 0..10 {
        let mounted = mounts_below(root);
        if mounted.is_empty() {
            return Ok(());
        }
        for path in mounted {
            unmount(&path, UnmountFlags::DETACH).map_err(|error| Error::File {
                action: "unmount",
                path,
                source: error.into(),
            })?;
        }
    }
    let path = root.to_owned();
    Err(Error::File {
        action: "unmount",
        path,
        source: std::io::Error::other("something mounts again and again below it"),
    })
}

pub(crate) fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut below = parse_mounts(&mounts, root);
    below.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
    below
}

fn parse_mounts(mountinfo: &str, root: &Path) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .filter(|point| point.starts_with(root))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_other_instances_stay() {
        let mountinfo = "36 35 98:0 / /var/lib/liqo-playground/liqo/rome/a rw - ext4 a b\n37 35 98:0 / /var/lib/liqo-playground/liqo2/rome rw - ext4 a b\n38 35 98:0 / / rw - ext4 a b\n";
        let below = parse_mounts(mountinfo, Path::new("/var/lib/liqo-playground/liqo"));
        assert_eq!(
            below,
            [PathBuf::from("/var/lib/liqo-playground/liqo/rome/a")]
        );
    }
}
