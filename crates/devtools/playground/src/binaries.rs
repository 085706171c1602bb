//! The programs of a cluster: which they are, and where they are found.
//!
//! It takes a program from PATH, from `$KUBEBUILDER_ASSETS` or from the cache, in that order. What
//! is missing is built from its Go module.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    go_build,
    program::{Accepted, KUBERNETES_VERSION, Module, Program},
    progress::Progress,
    run::run,
};

/// The files of a module that has no code of ours.
macro_rules! module_files {
    ($name:literal) => {
        &[
            ("go.mod", include_str!(concat!("../go/", $name, "/go.mod"))),
            ("go.sum", include_str!(concat!("../go/", $name, "/go.sum"))),
        ]
    };
}

/// Kubernetes, and in the same module etcd and `CoreDNS`: so Go compiles once what they share.
static KUBERNETES: Module = Module {
    name: "kubernetes",
    files: &[
        ("go.mod", include_str!("../go/kubernetes/go.mod")),
        ("go.sum", include_str!("../go/kubernetes/go.sum")),
        (
            "coredns/main.go",
            include_str!("../go/kubernetes/coredns/main.go"),
        ),
    ],
    linker_flags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34 -X k8s.io/client-go/pkg/version.gitVersion=v1.34.4",
};

static KWOK_MODULE: Module = Module {
    name: "kwok",
    files: module_files!("kwok"),
    linker_flags: "-s -w",
};

/// The only version that the module proxy has. The checksum database does not know it: its go.sum
/// entry was computed from the tag v2.1.0 of its repository, and equals what the proxy serves.
/// Libraries that Kubernetes also uses have the same versions, so Go compiles them only once.
static KUBE_ROUTER_MODULE: Module = Module {
    name: "kube-router",
    files: module_files!("kube-router"),
    linker_flags: "-s -w -X github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=v2.1.0",
};

static METRICS_SERVER_MODULE: Module = Module {
    name: "metrics-server",
    files: module_files!("metrics-server"),
    linker_flags: "-s -w -X k8s.io/client-go/pkg/version.gitVersion=v0.9.0",
};

/// Kubernetes' end-to-end tests. They share the compiled libraries of [`KUBERNETES`], and no
/// cluster needs them. The cache knows the program by name and version: after a change of main.go
/// it must be removed there.
static CONFORMANCE: Module = Module {
    name: "conformance",
    files: &[
        ("go.mod", include_str!("../go/conformance/go.mod")),
        ("go.sum", include_str!("../go/conformance/go.sum")),
        ("e2e/main.go", include_str!("../go/conformance/e2e/main.go")),
    ],
    linker_flags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4 -X k8s.io/client-go/pkg/version.gitVersion=v1.34.4",
};

/// Helm 3 takes the version of Kubernetes for which it renders from the linker, Helm 4 from its own
/// modules.
static HELM_3_MODULE: Module = Module {
    name: "helm3",
    files: module_files!("helm3"),
    linker_flags: "-s -w -X helm.sh/helm/v3/internal/version.version=v3.22.0 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=37 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37",
};

static HELM_4_MODULE: Module = Module {
    name: "helm4",
    files: module_files!("helm4"),
    linker_flags: "-s -w -X helm.sh/helm/v4/internal/version.version=v4.3.1",
};

static WIREGUARD: Module = Module {
    name: "wireguard",
    files: module_files!("wireguard"),
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
    let (version, accepted) = (KUBERNETES_VERSION, Accepted::SameMinor);
    Program {
        name,
        version,
        module: &KUBERNETES,
        package,
        version_flag: "--version",
        accepted,
    }
}

/// The programs of every cluster.
static PROGRAMS: [Program; 7] = [
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes(
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    Program {
        name: "etcd",
        version: "v3.6.4",
        module: &KUBERNETES,
        package: "go.etcd.io/etcd/server/v3",
        version_flag: "--version",
        accepted: Accepted::SameMinor,
    },
    Program {
        name: "coredns",
        version: "v1.12.4",
        module: &KUBERNETES,
        package: "./coredns",
        version_flag: "-version",
        accepted: Accepted::SameMinor,
    },
];

/// Not part of a cluster; tests and users need it.
static KUBECTL: Program = kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl");

const fn extra(
    name: &'static str,
    version: &'static str,
    module: &'static Module,
    package: &'static str,
) -> Program {
    Program {
        name,
        version,
        module,
        package,
        version_flag: "--version",
        accepted: Accepted::Exact,
    }
}

/// Only for clusters with fake nodes.
static KWOK: Program = extra("kwok", "v0.8.0", &KWOK_MODULE, "sigs.k8s.io/kwok/cmd/kwok");

/// Only for clusters that enforce `NetworkPolicies`.
static KUBE_ROUTER: Program = extra(
    "kube-router",
    "v2.1.0",
    &KUBE_ROUTER_MODULE,
    "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
);

/// Only for clusters that serve the metrics API.
static METRICS_SERVER: Program = extra(
    "metrics-server",
    "v0.9.0",
    &METRICS_SERVER_MODULE,
    "sigs.k8s.io/metrics-server/cmd/metrics-server",
);

/// Not part of a cluster: tests compare Liqo's tunnel with it, and check that both understand each
/// other.
static WIREGUARD_GO: Program = extra(
    "wireguard-go",
    "v0.0.0-20260522210424-ecfc5a8d5446",
    &WIREGUARD,
    "golang.zx2c4.com/wireguard",
);

/// Not part of a cluster: tests render and check the chart with both.
static HELM: [Program; 2] = [
    helm(
        "helm3",
        "v3.22.0",
        &HELM_3_MODULE,
        "helm.sh/helm/v3/cmd/helm",
    ),
    helm(
        "helm4",
        "v4.3.1",
        &HELM_4_MODULE,
        "helm.sh/helm/v4/cmd/helm",
    ),
];

const fn helm(
    name: &'static str,
    version: &'static str,
    module: &'static Module,
    package: &'static str,
) -> Program {
    Program {
        name,
        version,
        module,
        package,
        version_flag: "version",
        accepted: Accepted::Exact,
    }
}

/// Kubernetes' end-to-end tests, and the program that most of their pods run.
static TESTS: [Program; 2] = [
    of_tests("e2e", "./e2e"),
    of_tests("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
];

const fn of_tests(name: &'static str, package: &'static str) -> Program {
    let (version, accepted) = (KUBERNETES_VERSION, Accepted::Exact);
    Program {
        name,
        version,
        module: &CONFORMANCE,
        package,
        version_flag: "--version",
        accepted,
    }
}

/// Finds a file in the directories of a PATH-like list.
pub(crate) fn search(name: &str, path: &str) -> Option<PathBuf> {
    let candidates = path
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join(name));
    candidates.into_iter().find(|candidate| candidate.is_file())
}

/// PATH, and the `sbin` directories that a user's PATH often lacks.
pub(crate) fn search_path() -> String {
    format!(
        "{}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
        env::var("PATH").unwrap_or_default()
    )
}

fn go() -> Option<PathBuf> {
    search("go", &format!("{}:/usr/local/go/bin", search_path()))
}

/// The paths of the programs that exist, and the programs that must be built. `say` gets a line
/// about each with another patch level.
async fn locate(
    mut say: impl FnMut(String),
) -> (BTreeMap<&'static str, PathBuf>, Vec<&'static Program>) {
    let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
    for program in &PROGRAMS {
        match find(program, &mut say).await {
            Some(path) => drop(found.insert(program.name, path)),
            None => missing.push(program),
        }
    }
    (found, missing)
}

async fn find(program: &Program, mut say: impl FnMut(String)) -> Option<PathBuf> {
    let assets = env::var("KUBEBUILDER_ASSETS").unwrap_or_default();
    for candidate in [
        search(program.name, &search_path()),
        search(program.name, &assets),
    ]
    .into_iter()
    .flatten()
    {
        let printed = run(&candidate.display().to_string(), &[program.version_flag])
            .await
            .unwrap_or_default();
        let Some(version) = program.accepted_version(&printed) else {
            continue;
        };
        if version != program.version.trim_start_matches('v') {
            let path = candidate.display();
            say(format!(
                "using {path}, which is v{version} (a build of it would be {})",
                program.version
            ));
        }
        return Some(candidate);
    }
    Some(program.cached()).filter(|path| path.is_file())
}

/// Fails if a program is missing and cannot be built.
pub(crate) async fn check() -> Result<()> {
    let (_, missing) = locate(drop).await;
    if missing.is_empty() || go().is_some() {
        return Ok(());
    }
    Err(no_go(&missing))
}

fn no_go(missing: &[&Program]) -> Error {
    let programs = missing
        .iter()
        .map(|program| program.name)
        .collect::<Vec<_>>()
        .join(", ");
    Error::NoGo {
        programs,
        version: missing
            .first()
            .map_or("", |program| program.version)
            .to_owned(),
    }
}

/// Builds the programs that are missing; returns the paths of all programs. `say` gets a line about
/// each with another patch level.
pub(crate) async fn provide(
    containerd: PathBuf,
    extras: Extras,
    progress: &dyn Progress,
    say: impl FnMut(String),
) -> Result<Programs> {
    let (mut found, missing) = locate(say).await;
    build(&missing, progress).await?;
    found.extend(
        missing
            .iter()
            .map(|program| (program.name, program.cached())),
    );
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

async fn provide_if(
    wanted: bool,
    program: &'static Program,
    progress: &dyn Progress,
) -> Result<Option<PathBuf>> {
    if wanted {
        provide_one(program, progress).await.map(Some)
    } else {
        Ok(None)
    }
}

async fn provide_one(program: &'static Program, progress: &dyn Progress) -> Result<PathBuf> {
    match find(program, drop).await {
        Some(path) => Ok(path),
        None => build(&[program], progress).await.map(|()| program.cached()),
    }
}

/// Builds programs of one module.
async fn build(programs: &[&'static Program], progress: &dyn Progress) -> Result<()> {
    if programs.is_empty() {
        return Ok(());
    }
    let go = go().ok_or_else(|| no_go(programs))?;
    go_build::build(&go, programs, progress).await
}

/// The path of kubectl: any version on PATH, else one of this Kubernetes, which is built if it is
/// missing.
pub async fn kubectl(progress: &dyn Progress) -> Result<PathBuf> {
    match search(KUBECTL.name, &search_path()) {
        Some(path) => Ok(path),
        None => provide_one(&KUBECTL, progress).await,
    }
}

/// Paths of Kubernetes' end-to-end tests, and of the program that most of their pods run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesTests {
    pub tests: PathBuf,
    pub agnhost: PathBuf,
}

/// Kubernetes' end-to-end tests in exactly the pinned version; they are built if they are missing.
pub async fn kubernetes_tests(progress: &dyn Progress) -> Result<KubernetesTests> {
    let missing: Vec<_> = TESTS
        .iter()
        .filter(|program| !program.cached().is_file())
        .collect();
    build(&missing, progress).await?;
    let [tests, agnhost] = &TESTS;
    Ok(KubernetesTests {
        tests: tests.cached(),
        agnhost: agnhost.cached(),
    })
}

/// Whether Kubernetes' end-to-end tests were built before, in the pinned version.
pub fn has_kubernetes_tests() -> bool {
    TESTS.iter().all(|program| program.cached().is_file())
}

/// The path of kube-apiserver as clusters run it; it is built if it is missing.
pub async fn kube_apiserver(progress: &dyn Progress) -> Result<PathBuf> {
    let [kube_apiserver, ..] = &PROGRAMS;
    provide_one(kube_apiserver, progress).await
}

/// The path of etcd as clusters run it; it is built if it is missing.
pub async fn etcd(progress: &dyn Progress) -> Result<PathBuf> {
    let [.., etcd, _] = &PROGRAMS;
    provide_one(etcd, progress).await
}

/// The path of wireguard-go in exactly the pinned version; it is built if it is missing.
pub async fn wireguard_go(progress: &dyn Progress) -> Result<PathBuf> {
    provide_one(&WIREGUARD_GO, progress).await
}

/// The paths of Helm 3 and Helm 4, in exactly the pinned versions; they are built if they are
/// missing.
pub async fn helm_3_and_4(progress: &dyn Progress) -> Result<[PathBuf; 2]> {
    let [helm_3, helm_4] = &HELM;
    Ok([
        provide_one(helm_3, progress).await?,
        provide_one(helm_4, progress).await?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(program: &Program, text: &str) -> bool {
        program.accepted_version(text).is_some()
    }

    #[test]
    fn kubernetes_may_have_another_patch_level_and_nothing_else() {
        let [api_server, .., etcd, coredns] = &PROGRAMS;
        assert_eq!(
            api_server.accepted_version("Kubernetes v1.34.1\n"),
            Some("1.34.1")
        );
        assert_eq!(
            api_server.accepted_version("Kubernetes v1.34.4-eks-3025e55"),
            Some("1.34.4")
        );
        assert_eq!(
            etcd.accepted_version("etcd Version: 3.6.5\nGit SHA: x\nGo Version: go1.24.1"),
            Some("3.6.5")
        );
        assert!(accepts(coredns, "CoreDNS-1.12.4\nlinux/amd64, go1.26"));
        assert!(
            !accepts(api_server, "Kubernetes v1.35.0") && !accepts(api_server, "Kubernetes v1.3.4")
        );
        assert!(!accepts(api_server, "Kubernetes v1.34") && !accepts(api_server, ""));
        assert!(
            !accepts(etcd, "etcd Version: 3.4.23"),
            "its watches do not suit this Kubernetes"
        );
    }

    #[test]
    fn other_programs_have_exactly_their_version() {
        assert!(accepts(&KWOK, "kwok version v0.8.0 go1.26.8 (linux/amd64)"));
        assert!(!accepts(&KWOK, "kwok version v0.8.1") && !accepts(&KWOK, "kwok version v0.8.01"));
    }

    #[test]
    fn the_modules_name_the_versions_that_the_cache_is_keyed_by() {
        for program in PROGRAMS
            .iter()
            .chain([
                &KUBECTL,
                &KWOK,
                &KUBE_ROUTER,
                &METRICS_SERVER,
                &WIREGUARD_GO,
            ])
            .chain(&HELM)
            .chain(&TESTS)
        {
            let module = module_of(program);
            let go_mod = program.module.files[0].1;
            let is_named = |line: &str| {
                let mut words = line.trim_start_matches("require").split_whitespace();
                words.next() == Some(module) && words.next() == Some(program.version)
            };
            assert!(
                go_mod.lines().any(is_named),
                "{} does not name {module} {}",
                program.module.name,
                program.version
            );
        }
    }
    #[test]
    fn the_linker_writes_the_version_of_kubernetes_into_its_programs() {
        for module in [&KUBERNETES, &CONFORMANCE] {
            assert!(
                module
                    .linker_flags
                    .contains(&format!("gitVersion={KUBERNETES_VERSION} ")),
                "{}",
                module.name
            );
        }
    }

    fn module_of(program: &Program) -> &'static str {
        match program.name {
            "coredns" => "github.com/coredns/coredns",
            "e2e" | "agnhost" => "k8s.io/kubernetes",
            _ => program.package.split("/cmd/").next().unwrap(),
        }
    }
}
