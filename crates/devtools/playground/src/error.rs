//! Everything that can go wrong, with what to do about it.

use std::path::{Path, PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, for which object, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Namespaces and cgroups exist only on Linux.
    #[error("the playground needs Linux: run it on a Linux machine or in a Linux virtual machine")]
    NotLinux,
    /// Namespaces, mounts and cgroups need root.
    #[error("the playground needs root: run the same command with sudo")]
    NotRoot,
    /// A program must be built and there is no Go.
    #[error(
        "{programs} {version} not found and there is no Go to build them: install Go from https://go.dev/dl, or put the programs on PATH"
    )]
    NoGo { programs: String, version: String },
    /// cargo failed. The last lines that it printed.
    #[error("the programs do not build:\n{output}")]
    Build { output: String },
    /// cargo succeeded without a program that it was asked for.
    #[error("cargo built {program} and did not say where it is")]
    NotBuilt { program: String },
    #[error("cargo cannot read the workspace:\n{output}")]
    Workspace { output: String },
    /// A system program is missing and there is no apt-get.
    #[error("missing on this machine: {programs}; install them with your package manager")]
    MissingPrograms { programs: String },
    /// An instance name that cannot become part of interface names.
    #[error(
        "{name:?} is not a valid name for a playground: use 1 to 8 lower-case letters and digits that begin with a letter"
    )]
    InstanceName { name: String },
    /// A cluster name that cannot become part of host names.
    #[error(
        "{name:?} is not a valid name for a cluster: use 1 to 16 lower-case letters, digits and dashes that begin with a letter and do not end in a dash"
    )]
    ClusterName { name: String },
    /// An invalid specification of a cluster.
    #[error("cluster {cluster}: {reason}")]
    ClusterSpec {
        cluster: String,
        /// What is wrong, and what to ask for.
        reason: String,
    },
    #[error("cluster {cluster} has no {kind} {name}: see the status of the playground")]
    NoSuchNode {
        cluster: String,
        /// `node` or `fake node`.
        kind: &'static str,
        name: String,
    },
    /// The cluster cannot get fake nodes, because kwok does not run there.
    #[error(
        "cluster {cluster} was brought up without fake nodes: bring it up with at least one, then their number can change"
    )]
    NoFakeNodes { cluster: String },
    #[error("there is no cluster {name} in playground {instance}: see its status")]
    NoSuchCluster { instance: String, name: String },
    /// The bridge has no address for another node.
    #[error("playground {instance} has no address left for another node: run fewer clusters")]
    NoAddress { instance: String },
    /// Every candidate subnet collides with a route of this machine.
    #[error(
        "no free subnet for playground {instance} in 172.30.0.0/16: take down other playgrounds"
    )]
    NoSubnet { instance: String },
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// A file has content that this library did not write.
    #[error("{} is damaged ({reason}): take the playground down and up again", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("cannot run {program}: {source}")]
    Run {
        program: String,
        source: std::io::Error,
    },
    #[error("{command} failed ({status}): {output}")]
    Command {
        command: String,
        status: String,
        /// The end of what it printed.
        output: String,
    },
    #[error("cannot create the certificate for {subject}: {source}")]
    Certificate {
        subject: String,
        source: rcgen::Error,
    },
    #[error("cannot {action} in cluster {cluster}: {source}")]
    Kubernetes {
        action: String,
        cluster: String,
        source: Box<kube::Error>,
    },
    #[error(
        "cannot use the kubeconfig of cluster {cluster}: {reason}; take the playground down and up again"
    )]
    Kubeconfig { cluster: String, reason: String },
    #[error("{what} of cluster {cluster} was not ready after {seconds} s: {hint}")]
    NotReady {
        what: String,
        cluster: String,
        seconds: u64,
        hint: String,
    },
    #[error(
        "the supervisor of playground {instance} does not answer ({reason}): bring the playground up again"
    )]
    NoSupervisor { instance: String, reason: String },
    #[error("the supervisor of playground {instance} refused: {reason}")]
    Refused { instance: String, reason: String },
    /// SIGKILL did not end some processes.
    #[error(
        "these processes of playground {instance} do not end: {pids:?}; look at them with ps and run down again"
    )]
    Unkillable { instance: String, pids: Vec<i32> },
    /// An image cannot be built.
    #[error("image {reference}: {reason}")]
    Image { reference: String, reason: String },
}

impl Error {
    /// For `map_err` on file operations.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// For `map_err` on Kubernetes requests.
    pub(crate) fn kubernetes(
        action: impl Into<String>,
        cluster: &str,
    ) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Kubernetes {
            action: action.into(),
            cluster: cluster.to_owned(),
            source: Box::new(source),
        }
    }
}
