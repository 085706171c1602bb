//! What the machine must provide, checked before anything starts.

use std::path::Path;

use crate::{
    binaries::{self, search, search_path},
    configuration::{self, HostFacts},
    error::{Error, Result},
    lock::CacheLock,
    progress::Progress,
    run::run,
    spec::ClusterSpec,
};

/// A program of the system and the Debian package that has it.
const PACKAGES: [(&str, &str); 11] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("busybox", "busybox-static"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "mount"),
    ("ldd", "libc-bin"),
];
/// In addition for clusters that enforce `NetworkPolicies`.
const POLICY_PACKAGES: [(&str, &str); 2] = [("iptables", "iptables"), ("ipset", "ipset")];
const CNI_PACKAGE: &str = "containernetworking-plugins";
const CNI_DIRECTORIES: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// Debian packages that [`Requirements::install`] will install.
    pub missing_packages: Vec<String>,
}

impl Requirements {
    /// Fails if these clusters cannot run on this machine; the error says what to do. Changes
    /// nothing.
    pub async fn check(specs: &[ClusterSpec]) -> Result<Self> {
        if !cfg!(target_os = "linux") {
            return Err(Error::NotLinux);
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let path = search_path();
        let absent = |(program, _): &&(&str, &str)| search(program, &path).is_none();
        let policies = specs.iter().any(|spec| spec.network_policies);
        let wanted = PACKAGES
            .iter()
            .chain(POLICY_PACKAGES.iter().filter(|_| policies));
        let mut missing: Vec<_> = wanted
            .filter(absent)
            .map(|(_, package)| (*package).to_owned())
            .collect();
        if cni_directory().is_none() {
            missing.push(CNI_PACKAGE.to_owned());
        }
        missing.dedup();
        if !missing.is_empty() && search("apt-get", &path).is_none() {
            return Err(Error::MissingPrograms {
                programs: missing.join(", "),
            });
        }
        binaries::check().await?;
        Ok(Self {
            missing_packages: missing,
        })
    }

    /// The programs that images are made of, each with the Debian package that has it.
    pub fn of_programs(programs: &[(&str, &str)]) -> Self {
        let path = search_path();
        let absent = programs
            .iter()
            .filter(|(program, _)| search(program, &path).is_none());
        Self {
            missing_packages: absent.map(|(_, package)| (*package).to_owned()).collect(),
        }
    }

    /// Installs the missing packages.
    pub async fn install(&self, progress: &dyn Progress) -> Result<()> {
        if self.missing_packages.is_empty() {
            return Ok(());
        }
        // apt-get fails while another one works, and does nothing if that has installed the same
        // packages.
        let _lock = CacheLock::take().await?;
        let step = format!(
            "installing Debian packages {}",
            self.missing_packages.join(", ")
        );
        progress.started(&step);
        run("apt-get", &["update", "--quiet"]).await?;
        let mut arguments = vec![
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "install",
            "--yes",
            "--quiet",
            "--no-install-recommends",
        ];
        arguments.extend(self.missing_packages.iter().map(String::as_str));
        run("env", &arguments).await?;
        progress.finished(&step);
        Ok(())
    }
}

fn cni_directory() -> Option<&'static str> {
    CNI_DIRECTORIES.into_iter().find(|directory| {
        Path::new(directory).join("bridge").is_file()
            && Path::new(directory).join("host-local").is_file()
    })
}

/// Minimum number of inotify instances for root. A cluster uses about twenty; beyond the kernel's
/// default of 128 kubelets exit.
const INOTIFY_INSTANCES: u32 = 1024;

/// Raises the limit of inotify instances if it is too low for several clusters. If that fails,
/// kubelets report what they lack.
pub(crate) fn ensure_inotify_instances() {
    const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";
    let current = std::fs::read_to_string(LIMIT)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    if current.is_some_and(|current| current < INOTIFY_INSTANCES)
        && let Err(error) = std::fs::write(LIMIT, INOTIFY_INSTANCES.to_string())
    {
        tracing::warn!(%error, "{LIMIT} could not be raised");
    }
}

/// Facts about this machine that configuration files depend on.
pub(crate) fn host_facts(state_directory: &Path) -> Result<HostFacts> {
    let plugins = cni_directory().ok_or_else(|| Error::MissingPrograms {
        programs: CNI_PACKAGE.to_owned(),
    })?;
    Ok(HostFacts {
        cni_plugins: plugins.to_owned(),
        snapshotter: configuration::snapshotter(state_directory),
        iptables: search("iptables", &search_path()).is_some(),
    })
}
