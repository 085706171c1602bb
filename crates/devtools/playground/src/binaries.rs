//! Finds the programs of a cluster, or builds them from their Go modules.
//!
//! It takes a program from PATH, from `$KUBEBUILDER_ASSETS` or from the cache, in that order, and only in exactly the pinned version.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    error::{Error, Result},
    progress::Progress,
    run::{last_lines, run},
};

/// The version of Kubernetes that the clusters run.
pub const KUBERNETES_VERSION: &str = "v1.34.4";

/// A go.mod file of ours that names programs as its tools.
struct Module {
    name: &'static str,
    version: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    linker_flags: &'static str,
}

struct Program {
    name: &'static str,
    module: &'static Module,
    package: &'static str,
    version_flag: &'static str,
}

static KUBERNETES: Module = Module {
    name: "kubernetes",
    version: KUBERNETES_VERSION,
    go_mod: include_str!("../go/kubernetes/go.mod"),
    go_sum: include_str!("../go/kubernetes/go.sum"),
    linker_flags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34 -X k8s.io/client-go/pkg/version.gitVersion=v1.34.4",
};
static ETCD: Module = Module {
    name: "etcd",
    version: "v3.5.21",
    go_mod: include_str!("../go/etcd/go.mod"),
    go_sum: include_str!("../go/etcd/go.sum"),
    linker_flags: "-s -w",
};
static COREDNS: Module = Module {
    name: "coredns",
    version: "v1.12.4",
    go_mod: include_str!("../go/coredns/go.mod"),
    go_sum: include_str!("../go/coredns/go.sum"),
    linker_flags: "-s -w",
};

static KWOK_MODULE: Module = Module {
    name: "kwok",
    version: "v0.8.0",
    go_mod: include_str!("../go/kwok/go.mod"),
    go_sum: include_str!("../go/kwok/go.sum"),
    linker_flags: "-s -w",
};

/// The only version that the module proxy has. The checksum database does not know it: its go.sum entry was computed from the tag v2.1.0 of
/// its repository, and equals what the proxy serves. Libraries that Kubernetes also uses have the same versions, so Go compiles them only once.
static KUBE_ROUTER_MODULE: Module = Module {
    name: "kube-router",
    version: "v2.1.0",
    go_mod: include_str!("../go/kube-router/go.mod"),
    go_sum: include_str!("../go/kube-router/go.sum"),
    linker_flags: "-s -w -X github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=v2.1.0",
};

static METRICS_SERVER_MODULE: Module = Module {
    name: "metrics-server",
    version: "v0.9.0",
    go_mod: include_str!("../go/metrics-server/go.mod"),
    go_sum: include_str!("../go/metrics-server/go.sum"),
    linker_flags: "-s -w -X k8s.io/client-go/pkg/version.gitVersion=v0.9.0",
};

static WIREGUARD: Module = Module {
    name: "wireguard",
    version: "v0.0.0-20260522210424-ecfc5a8d5446",
    go_mod: include_str!("../go/wireguard/go.mod"),
    go_sum: include_str!("../go/wireguard/go.sum"),
    linker_flags: "-s -w",
};

/// Paths of the programs of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Programs {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kube_controller_manager: PathBuf,
    pub kube_scheduler: PathBuf,
    pub kubelet: PathBuf,
    pub kube_proxy: PathBuf,
    pub coredns: PathBuf,
    pub containerd: PathBuf,
    /// Only for clusters with fake nodes.
    pub kwok: Option<PathBuf>,
    /// Only for clusters that enforce `NetworkPolicies`.
    pub kube_router: Option<PathBuf>,
    /// Only for clusters that serve the metrics API.
    pub metrics_server: Option<PathBuf>,
}

/// Programs that only some clusters need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extras {
    pub fake_nodes: bool,
    pub network_policies: bool,
    pub metrics: bool,
}

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, module: &KUBERNETES, package, version_flag: "--version" }
}

/// Builds run in this order. The API server is the first of the large ones: the others share most of its packages.
static PROGRAMS: [Program; 7] = [
    Program { name: "etcd", module: &ETCD, package: "go.etcd.io/etcd/server/v3", version_flag: "--version" },
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    Program { name: "coredns", module: &COREDNS, package: "github.com/coredns/coredns", version_flag: "-version" },
];

/// Not part of a cluster; tests and users need it.
static KUBECTL: Program = kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl");

/// Only for clusters with fake nodes.
static KWOK: Program =
    Program { name: "kwok", module: &KWOK_MODULE, package: "sigs.k8s.io/kwok/cmd/kwok", version_flag: "--version" };

/// Only for clusters that enforce `NetworkPolicies`.
static KUBE_ROUTER: Program = Program {
    name: "kube-router",
    module: &KUBE_ROUTER_MODULE,
    package: "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
    version_flag: "--version",
};

/// Only for clusters that serve the metrics API.
static METRICS_SERVER: Program = Program {
    name: "metrics-server",
    module: &METRICS_SERVER_MODULE,
    package: "sigs.k8s.io/metrics-server/cmd/metrics-server",
    version_flag: "--version",
};

/// Not part of a cluster: tests compare Liqo's tunnel with it, and check that both understand each other.
static WIREGUARD_GO: Program =
    Program { name: "wireguard-go", module: &WIREGUARD, package: "golang.zx2c4.com/wireguard", version_flag: "--version" };

impl Program {
    fn cached(&self) -> PathBuf {
        cache().join(format!("{}-{}", self.module.name, self.module.version)).join(self.name)
    }
}

/// `$XDG_CACHE_HOME/liqo-playground`, by default `~/.cache/liqo-playground`. Only this directory remains after `down`.
pub fn cache() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    base.unwrap_or_else(|| home().join(".cache")).join("liqo-playground")
}

/// Finds a file in the directories of a PATH-like list.
pub(crate) fn search(name: &str, path: &str) -> Option<PathBuf> {
    let candidates =
        path.split(':').filter(|directory| directory.starts_with('/')).map(|directory| Path::new(directory).join(name));
    candidates.into_iter().find(|candidate| candidate.is_file())
}

/// PATH, and the `sbin` directories that a user's PATH often lacks.
pub(crate) fn search_path() -> String {
    format!("{}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin", env::var("PATH").unwrap_or_default())
}

fn go() -> Option<PathBuf> {
    search("go", &format!("{}:/usr/local/go/bin", search_path()))
}

/// The paths of the programs that exist, and the programs that must be built.
async fn locate() -> (BTreeMap<&'static str, PathBuf>, Vec<&'static Program>) {
    let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
    for program in &PROGRAMS {
        match find(program).await {
            Some(path) => drop(found.insert(program.name, path)),
            None => missing.push(program),
        }
    }
    (found, missing)
}

async fn find(program: &Program) -> Option<PathBuf> {
    let assets = env::var("KUBEBUILDER_ASSETS").unwrap_or_default();
    for candidate in [search(program.name, &search_path()), search(program.name, &assets)].into_iter().flatten() {
        if has_version(program, &candidate).await {
            return Some(candidate);
        }
    }
    Some(program.cached()).filter(|path| path.is_file())
}

async fn has_version(program: &Program, candidate: &Path) -> bool {
    let printed = run(&candidate.display().to_string(), &[program.version_flag]).await.unwrap_or_default();
    says_version(&printed, program.module.version)
}

/// Whether the text contains exactly this version: `3.5.2` is not `3.5.21`.
fn says_version(text: &str, version: &str) -> bool {
    let number = version.trim_start_matches('v');
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).any(|word| word.trim_start_matches('v') == number)
}

/// Fails if a program is missing and cannot be built.
pub(crate) async fn check() -> Result<()> {
    let (_, missing) = locate().await;
    if missing.is_empty() || go().is_some() {
        return Ok(());
    }
    let programs = missing.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    Err(Error::NoGo { programs, version: missing[0].module.version.to_owned() })
}

/// Builds the programs that are missing; returns the paths of all programs.
pub(crate) async fn provide(containerd: PathBuf, extras: Extras, progress: &dyn Progress) -> Result<Programs> {
    let (mut found, missing) = locate().await;
    for program in missing {
        found.insert(program.name, build(program, progress).await?);
    }
    let kwok = provide_if(extras.fake_nodes, &KWOK, progress).await?;
    let kube_router = provide_if(extras.network_policies, &KUBE_ROUTER, progress).await?;
    let metrics_server = provide_if(extras.metrics, &METRICS_SERVER, progress).await?;
    // The map contains every name of the table now.
    let mut path = |name: &str| found.remove(name).unwrap_or_default();
    Ok(Programs {
        etcd: path("etcd"),
        kube_apiserver: path("kube-apiserver"),
        kube_controller_manager: path("kube-controller-manager"),
        kube_scheduler: path("kube-scheduler"),
        kubelet: path("kubelet"),
        kube_proxy: path("kube-proxy"),
        coredns: path("coredns"),
        containerd,
        kwok,
        kube_router,
        metrics_server,
    })
}

async fn provide_if(wanted: bool, program: &Program, progress: &dyn Progress) -> Result<Option<PathBuf>> {
    if wanted { provide_one(program, progress).await.map(Some) } else { Ok(None) }
}

async fn provide_one(program: &Program, progress: &dyn Progress) -> Result<PathBuf> {
    match find(program).await {
        Some(path) => Ok(path),
        None => build(program, progress).await,
    }
}

/// The path of kubectl: any version on PATH, else the one in the cache, which is built if it is missing.
pub async fn kubectl(progress: &dyn Progress) -> Result<PathBuf> {
    match search(KUBECTL.name, &search_path()).or_else(|| Some(KUBECTL.cached()).filter(|path| path.is_file())) {
        Some(path) => Ok(path),
        None => build(&KUBECTL, progress).await,
    }
}

/// The path of wireguard-go in exactly the pinned version; it is built if it is missing.
pub async fn wireguard_go(progress: &dyn Progress) -> Result<PathBuf> {
    provide_one(&WIREGUARD_GO, progress).await
}

async fn build(program: &Program, progress: &dyn Progress) -> Result<PathBuf> {
    let step = format!("building {} {}", program.name, program.module.version);
    let go = go().ok_or_else(|| Error::NoGo { programs: program.name.to_owned(), version: program.module.version.to_owned() })?;
    progress.started(&step);
    let target = program.cached();
    let directory = target.parent().map_or_else(cache, Path::to_path_buf);
    remove_abandoned(&directory);
    // Two processes may build at the same time: each uses its own files until the rename.
    let work = directory.join(format!(".build-{}-{}", program.name, std::process::id()));
    fs::create_dir_all(&work).map_err(Error::file("create", &work))?;
    let result = build_in(&work, program, &go, &step, progress).await;
    let result = result.and_then(|built| fs::rename(&built, &target).map_err(Error::file("write", &target)));
    let _ = fs::remove_dir_all(&work);
    result?;
    progress.finished(&step);
    Ok(target)
}

/// Removes the files of builds that were killed.
fn remove_abandoned(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let builder = name.strip_prefix(".build-").and_then(|rest| rest.rsplit('-').next());
        if builder.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

async fn build_in(work: &Path, program: &Program, go: &Path, step: &str, progress: &dyn Progress) -> Result<PathBuf> {
    for (name, text) in [("go.mod", program.module.go_mod), ("go.sum", program.module.go_sum)] {
        fs::write(work.join(name), text).map_err(Error::file("write", &work.join(name)))?;
    }
    let built = work.join(program.name);
    let failed = |source| Error::Run { program: go.display().to_string(), source };
    let mut child = Command::new(go)
        .args(["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", program.module.linker_flags, "-o"])
        .arg(&built)
        .arg(program.package)
        .current_dir(work)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "")
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (mut packages, mut said) = (0, String::new());
    if let Some(stderr) = child.stderr.take() {
        let mut lines = BufReader::new(stderr).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            // A line names a package that Go compiles or a module that it fetches, or it is an error.
            packages += 1;
            progress.message(step, &format!("{packages} packages, {line}"));
            said.push_str(&line);
            said.push('\n');
        }
    }
    let status = child.wait().await.map_err(failed)?;
    if status.success() {
        return Ok(built);
    }
    Err(Error::Command {
        command: format!("go build {}", program.package),
        status: status.to_string(),
        output: last_lines(&said, 5),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_version_counts() {
        assert!(says_version("Kubernetes v1.34.4\n", "v1.34.4"));
        assert!(says_version("etcd Version: 3.5.21\nGit SHA: x", "v3.5.21"));
        assert!(says_version("CoreDNS-1.12.4\nlinux/amd64, go1.26", "v1.12.4"));
        assert!(says_version("kwok version v0.8.0 go1.26.8 (linux/amd64)", "v0.8.0"));
        assert!(!says_version("Kubernetes v1.34.40", "v1.34.4"));
        assert!(!says_version("Kubernetes v1.34", "v1.34.4"));
    }

    #[test]
    fn the_modules_name_the_versions_that_the_cache_is_keyed_by() {
        for program in PROGRAMS.iter().chain([&KUBECTL, &KWOK, &KUBE_ROUTER, &WIREGUARD_GO]) {
            let pinned = program
                .module
                .go_mod
                .lines()
                .any(|line| line.split_whitespace().eq([module_of(program), program.module.version, "//", "indirect"]));
            assert!(pinned, "{} {}", program.package, program.module.version);
            assert!(program.module.go_mod.contains(program.package));
        }
        assert!(KUBERNETES.linker_flags.contains(&format!("gitVersion={KUBERNETES_VERSION} ")));
    }

    fn module_of(program: &Program) -> &'static str {
        program.package.split("/cmd/").next().unwrap()
    }
}
