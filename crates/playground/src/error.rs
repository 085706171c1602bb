//! Everything that can go wrong, with what to do about it.

use std::path::{Path, PathBuf};

/// Result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, for which object, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Namespaces and cgroups are Linux'.
    #[error("the playground needs Linux: run it on a Linux machine or in a Linux virtual machine")]
    NotLinux,
    /// Namespaces, mounts and cgroups need root.
    #[error("the playground needs root: run the same command with sudo")]
    NotRoot,
    /// A program must be built and there is no Go.
    #[error(
        "{programs} {version} not found and there is no Go to build them: install Go from https://go.dev/dl, or put the programs on PATH"
    )]
    NoGo {
        /// The missing programs.
        programs: String,
        /// The version they must have.
        version: String,
    },
    /// A system program is missing and there is no apt-get.
    #[error("missing on this machine: {programs}; install them with your package manager")]
    MissingPrograms {
        /// The missing programs.
        programs: String,
    },
    /// An instance name that cannot become part of interface names.
    #[error("{name:?} is no name for a playground: use 1 to 8 lower-case letters and digits that begin with a letter")]
    InstanceName {
        /// The name given.
        name: String,
    },
    /// A cluster name that cannot become part of host names.
    #[error(
        "{name:?} is no name for a cluster: use 1 to 16 lower-case letters, digits and dashes that begin with a letter and do not end in a dash"
    )]
    ClusterName {
        /// The name given.
        name: String,
    },
    /// A cluster that cannot be as it is asked for.
    #[error("cluster {cluster}: {reason}")]
    ClusterSpec {
        /// The cluster.
        cluster: String,
        /// What is wrong, and what to ask for.
        reason: String,
    },
    /// No such node.
    #[error("cluster {cluster} has no {kind} {name}: see the status of the playground")]
    NoSuchNode {
        /// The cluster.
        cluster: String,
        /// `node` or `fake node`.
        kind: &'static str,
        /// The node asked for.
        name: String,
    },
    /// Fake nodes were to be added where nobody answers for them.
    #[error("cluster {cluster} was brought up without fake nodes: bring it up with at least one, then their number can change")]
    NoFakeNodes {
        /// The cluster.
        cluster: String,
    },
    /// No such cluster.
    #[error("there is no cluster {name} in playground {instance}: see its status")]
    NoSuchCluster {
        /// The instance.
        instance: String,
        /// The cluster asked for.
        name: String,
    },
    /// More nodes than one bridge has addresses.
    #[error("playground {instance} has no address left for another node: run fewer clusters")]
    NoAddress {
        /// The instance.
        instance: String,
    },
    /// Every candidate subnet collides with a route of this machine.
    #[error("no free subnet for playground {instance} in 172.30.0.0/16: take down other playgrounds")]
    NoSubnet {
        /// The instance.
        instance: String,
    },
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file has content that this library did not write.
    #[error("{} is damaged ({reason}): take the playground down and up again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A program could not be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program.
        program: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{command} failed ({status}): {output}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// A certificate could not be made.
    #[error("cannot make the certificate for {subject}: {source}")]
    Certificate {
        /// Whose.
        subject: String,
        /// Why not.
        source: rcgen::Error,
    },
    /// A Kubernetes request failed.
    #[error("cannot {action} in cluster {cluster}: {source}")]
    Kubernetes {
        /// What was tried.
        action: String,
        /// Where.
        cluster: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// A kubeconfig file could not be used.
    #[error("cannot use the kubeconfig of cluster {cluster}: {reason}; take the playground down and up again")]
    Kubeconfig {
        /// The cluster.
        cluster: String,
        /// Why not.
        reason: String,
    },
    /// Something did not come up in time.
    #[error("{what} of cluster {cluster} was not ready after {seconds} s: {hint}")]
    NotReady {
        /// What was waited for.
        what: String,
        /// Where.
        cluster: String,
        /// How long.
        seconds: u64,
        /// Where to look.
        hint: String,
    },
    /// The supervisor does not answer.
    #[error("the supervisor of playground {instance} does not answer ({reason}): bring the playground up again")]
    NoSupervisor {
        /// The instance.
        instance: String,
        /// Why not.
        reason: String,
    },
    /// The supervisor refused a command.
    #[error("the supervisor of playground {instance} refused: {reason}")]
    Refused {
        /// The instance.
        instance: String,
        /// Its words.
        reason: String,
    },
    /// Processes that SIGKILL did not end.
    #[error("these processes of playground {instance} do not end: {pids:?}; look at them with ps and run down again")]
    Unkillable {
        /// The instance.
        instance: String,
        /// The processes.
        pids: Vec<i32>,
    },
    /// An image names a program that is not there.
    #[error("image {reference}: {reason}")]
    Image {
        /// The image.
        reference: String,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    /// For `map_err` on file operations.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }

    /// For `map_err` on Kubernetes requests.
    pub(crate) fn kubernetes(action: impl Into<String>, cluster: &str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Kubernetes { action: action.into(), cluster: cluster.to_owned(), source: Box::new(source) }
    }
}
