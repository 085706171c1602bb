use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use data_encoding::HEXLOWER;
use futures::future::{BoxFuture, try_join_all};
use liqo_playground::{
    ClusterSpec, DUAL_STACK_SETTINGS, FAKE_NODE_LABEL, FakeNodes, ImageSpec, Playground, Progress,
    Supervision, fake_node_resources,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    process::Command,
    sync::{Mutex, RwLock},
};

use crate::{Cluster, PATIENCE, cluster::Programs, eventually};

/// The component of the playground that enforces `NetworkPolicies`.
const KUBE_ROUTER: &str = "kube-router";

/// The clusters of a set.
#[derive(Clone, Copy, Debug, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the settings are independent"
)]
pub struct Clusters {
    /// Name of their playground. It does not disturb a user's own playground.
    pub instance: &'static str,
    /// Number of nodes of turin.
    pub nodes_of_turin: u8,
    /// Whether the clusters have IPv6 in addition to IPv4.
    pub dual_stack: bool,
    /// Whether milan can enforce `NetworkPolicies`. See [`World::enforce_network_policies`].
    pub network_policies: bool,
    /// Whether rome and milan run metrics-server.
    pub metrics: bool,
    /// Seconds of silence after which a node of milan is dead; `None` for Kubernetes' default.
    pub milans_node_grace_seconds: Option<u16>,
    /// The domain of Services in rome; `None` for the usual one, which the others have.
    pub romes_domain: Option<&'static str>,
    /// The second octet of the range of turin's pods; `None` for the usual range, which the others
    /// have.
    pub turins_pod_octet: Option<u8>,
    /// Whether there is a fourth cluster, florence.
    pub florence: bool,
}

/// The programs and examples of this workspace, built in the profile of the tests.
#[derive(Clone, Debug)]
pub struct Built(BTreeMap<String, PathBuf>);

impl Built {
    /// Builds all of them at once. Examples are included so that cargo chooses the same features as
    /// for tests: otherwise it would compile nearly all libraries again. (A release build does so
    /// all the same: tests unwind, and programs abort.)
    pub async fn build() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let mut command = Command::new(cargo);
        // Variables that cargo sets for this test would make build scripts run again.
        let is_from_cargo = |name: &str| {
            [
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_BIN_",
                "CARGO_CRATE_",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        };
        for (name, _) in std::env::vars().filter(|(name, _)| {
            is_from_cargo(name) || name == "LD_LIBRARY_PATH" || name == "OUT_DIR"
        }) {
            command.env_remove(name);
        }
        command.args([
            "build",
            "--workspace",
            "--bins",
            "--examples",
            "--locked",
            "--quiet",
        ]);
        command
            .args([
                "--message-format=json-render-diagnostics",
                "--manifest-path",
            ])
            .arg(manifest);
        if !cfg!(debug_assertions) {
            command.arg("--release");
        }
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .await
            .context("starting cargo")?;
        ensure!(
            output.status.success(),
            "building the programs of this workspace failed"
        );
        let mut programs = BTreeMap::new();
        for line in output
            .stdout
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let message: Value =
                serde_json::from_slice(line).context("reading cargo's messages")?;
            if let (Some(path), Some(name)) = (
                message["executable"].as_str(),
                message["target"]["name"].as_str(),
            ) {
                programs.insert(name.to_owned(), path.into());
            }
        }
        Ok(Self(programs))
    }

    fn program(&self, name: &str) -> Result<&Path> {
        self.0
            .get(name)
            .map(PathBuf::as_path)
            .with_context(|| format!("cargo did not build a program named {name}"))
    }
}

/// The clusters to start. milan starts with one fake node without resources. Scenarios add the
/// nodes that they need.
fn cluster_specs(wanted: &Clusters) -> Result<Vec<ClusterSpec>> {
    let nothing = "cpu=0,memory=0,pods=0,ephemeral-storage=0"
        .split(',')
        .map(str::parse)
        .collect::<Result<Vec<_>, _>>()?;
    let fake_nodes = FakeNodes {
        count: 1,
        resources: fake_node_resources(nothing),
        taint: false,
    };
    // The default is a minute, which would only make scenarios slower.
    let spec = |name: &str| ClusterSpec {
        dual_stack: wanted.dual_stack,
        pod_sync_seconds: Some(10),
        // Six clusters run on a few processors.
        processors: Some(1),
        ..ClusterSpec::new(name)
    };
    let milan = ClusterSpec {
        fake_nodes,
        network_policies: wanted.network_policies,
        metrics: wanted.metrics,
        node_grace_seconds: wanted.milans_node_grace_seconds,
        ..spec("milan")
    };
    let mut turin = ClusterSpec {
        nodes: wanted.nodes_of_turin,
        ..spec("turin")
    };
    turin.pod_octet = wanted.turins_pod_octet.unwrap_or(turin.pod_octet);
    let mut rome = ClusterSpec {
        metrics: wanted.metrics,
        ..spec("rome")
    };
    rome.cluster_domain = wanted
        .romes_domain
        .map_or(rome.cluster_domain, str::to_owned);
    let mut specs = vec![rome, turin, milan];
    specs.extend(wanted.florence.then(|| spec("florence")));
    Ok(specs)
}

/// Loads Liqo's images into all clusters. Returns the names of those of the controller manager and
/// of `liqo-fabric`.
async fn load_images(playground: &Playground, built: &Built) -> Result<[String; 2]> {
    let (manager, fabric) = (
        built.program("liqo-controller-manager")?,
        built.program("liqo-fabric")?,
    );
    let images = [
        format!("localhost/liqo/controller-manager:{}", digest(manager)?),
        format!("localhost/liqo/fabric:{}", digest(fabric)?),
    ];
    let on_nodes = ImageSpec {
        programs: vec!["nft".to_owned()],
        ..ImageSpec::new(&images[1], fabric)
    };
    let of_manager = ImageSpec::new(&images[0], manager);
    tokio::try_join!(
        playground.load_image(&of_manager),
        playground.load_image(&on_nodes)
    )
    .context("loading Liqo's images")?;
    Ok(images)
}

/// The clusters of the scenarios, with Liqo installed in each and rome borrowing from milan.
pub struct World {
    /// A consumer.
    pub rome: Cluster,
    /// A second consumer, not yet peered.
    pub turin: Cluster,
    /// The provider.
    pub milan: Cluster,
    /// Another cluster, not yet peered. Few sets have it.
    florence: Option<Cluster>,
    kind: Clusters,
    built: Built,
    playground: Playground,
    /// The images of the controller manager and of `liqo-fabric`.
    images: [String; 2],
    scratch: PathBuf,
    keep: bool,
    /// Whoever does something on this machine reads it, and whoever needs the whole machine writes
    /// it. The runner reads it for most scenarios: only those with their own share may use it.
    pub machine: Arc<RwLock<()>>,
    /// The fixture that is set up now.
    fixture: Mutex<Option<&'static Fixture>>,
}

/// What several scenarios start from, such as a broker between three clusters. It is set up once
/// for all of them.
pub struct Fixture {
    pub name: &'static str,
    pub set_up: fn(&World) -> BoxFuture<'_, Result<()>>,
    pub take_down: fn(&World) -> BoxFuture<'_, Result<()>>,
}

impl World {
    /// Sets this fixture up, unless it is set up already, and takes another one down before.
    pub async fn arrange(&self, wanted: Option<&'static Fixture>) -> Result<()> {
        let mut now = self.fixture.lock().await;
        if now.map(|fixture| fixture.name) == wanted.map(|fixture| fixture.name) {
            return Ok(());
        }
        if let Some(fixture) = now.take() {
            (fixture.take_down)(self)
                .await
                .with_context(|| format!("taking down: {}", fixture.name))?;
        }
        if let Some(fixture) = wanted {
            (fixture.set_up)(self)
                .await
                .with_context(|| format!("setting up: {}", fixture.name))?;
            *now = Some(fixture);
        }
        Ok(())
    }

    /// No fixture is set up any more: the clusters were restored.
    pub(crate) async fn forget_fixture(&self) {
        *self.fixture.lock().await = None;
    }

    /// Starts the clusters, installs Liqo and peers rome with milan. This uses the whole machine.
    pub async fn build(wanted: Clusters, built: &Built, machine: Arc<RwLock<()>>) -> Result<Self> {
        let instance = wanted.instance;
        let keep = std::env::var_os("LIQO_TEST_KEEP").is_some();
        let supervision = if keep {
            Supervision::Detached(built.program("liqo-playground")?.to_owned())
        } else {
            Supervision::ThisProcess
        };
        let playground = Playground::open(instance)?.supervised_by(supervision);
        let specs = cluster_specs(&wanted)?;
        if !keep {
            // A run that was killed may have left something behind.
            playground.down().await?;
        }
        playground
            .up(&specs, &Lines(instance))
            .await
            .context("starting the clusters")?;
        let kubectl = without_dispatcher(liqo_playground::kubectl(&Lines(instance)).await?);
        let programs = Programs {
            kubectl,
            liqoctl: built.program("liqoctl")?.to_owned(),
        };
        let images = load_images(&playground, built).await?;
        let connect = async |name| {
            let cluster = playground.cluster(name)?;
            Cluster::new(
                name,
                cluster.kubeconfig(),
                cluster.audit_log(),
                programs.clone(),
            )
            .await
        };
        let (rome, turin, milan) =
            tokio::try_join!(connect("rome"), connect("turin"), connect("milan"))?;
        let florence = if wanted.florence {
            Some(connect("florence").await?)
        } else {
            None
        };
        let scratch =
            std::env::temp_dir().join(format!("liqo-tests-{}-{instance}", std::process::id()));
        std::fs::create_dir_all(&scratch)?;
        let (kind, built, fixture) = (wanted, built.clone(), Mutex::default());
        let world = Self {
            rome,
            turin,
            milan,
            florence,
            kind,
            built,
            playground,
            images,
            scratch,
            keep,
            machine,
            fixture,
        };
        if wanted.network_policies {
            world.stop_network_policies().await?;
        }
        try_join_all(world.clusters().map(|cluster| world.install(cluster))).await?;
        world.peer_rome_with_milan().await?;
        Ok(world)
    }

    /// All clusters.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        [&self.rome, &self.turin, &self.milan]
            .into_iter()
            .chain(&self.florence)
    }

    /// The fourth cluster. Fails if the set has none.
    pub fn florence(&self) -> Result<&Cluster> {
        self.florence
            .as_ref()
            .context("these clusters are without florence")
    }

    /// Installs Liqo again, without the settings of scenarios, and waits until the manager and
    /// `liqo-fabric` run.
    pub(crate) async fn reinstall(&self, cluster: &Cluster) -> Result<()> {
        self.install(cluster).await?;
        cluster
            .liqoctl(&[
                "install",
                "--set",
                "controllerManager.config.resourcePluginAddress=",
            ])
            .await?;
        cluster.start_manager().await?;
        cluster
            .kubectl(&[
                "-n",
                "liqo-fabric",
                "rollout",
                "status",
                "daemonset/liqo-fabric",
                "--timeout=90s",
            ])
            .await
            .map(drop)
    }

    /// Installs Liqo as a user would. It may be installed already.
    pub async fn install(&self, cluster: &Cluster) -> Result<()> {
        let name = format!("discovery.config.clusterName={}", cluster.name);
        let image = format!("controllerManager.image={}", self.images[0]);
        let fabric = format!("fabric.image={}", self.images[1]);
        let keys = format!(
            "fabric.keyDirectory={}",
            self.machinery(cluster)?.key_directory().display()
        );
        // A pod on a fake node never runs.
        let (key, value) = FAKE_NODE_LABEL;
        let avoid = format!("controllerManager.avoidNodes={key}={value}");
        // The machine is slower than its clusters need, and scenarios restart managers. `takeover`
        // has two replicas.
        let mut settings = vec![
            name.as_str(),
            &image,
            &fabric,
            &keys,
            &avoid,
            "controllerManager.replicas=1",
        ];
        // Most of these clusters do not enforce NetworkPolicies. `lending` tests what happens
        // without this setting.
        settings.push("lendWithoutNetworkPolicies=true");
        if self.kind.dual_stack {
            settings.extend(DUAL_STACK_SETTINGS);
        }
        let mut arguments = vec!["install"];
        arguments.extend(settings.into_iter().flat_map(|setting| ["--set", setting]));
        cluster.liqoctl(&arguments).await.map(drop)
    }

    /// Peers rome with milan as a user would; returns when the virtual node is Ready.
    pub async fn peer_rome_with_milan(&self) -> Result<()> {
        self.rome.peer_with(&self.milan).await
    }

    /// Runs the program of the playground on these clusters. Returns its output, and fails if it
    /// fails.
    pub async fn playground(&self, arguments: &[&str]) -> Result<String> {
        let program = self.built.program("liqo-playground")?;
        let output = Command::new(program)
            .args(["--instance", self.kind.instance])
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("starting {}", program.display()))?;
        let [said, failed] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(
            output.status.success(),
            "liqo-playground {}:\n{said}\n{failed}",
            arguments.join(" ")
        );
        Ok(said)
    }

    /// The playground's handle on a cluster: its nodes and components.
    pub fn machinery(&self, cluster: &Cluster) -> Result<liqo_playground::Cluster> {
        Ok(self.playground.cluster(&cluster.name)?)
    }

    /// Loads a resource plugin, or an example of one, into a cluster, as the image that the
    /// manifests of this plugin name.
    pub async fn load_plugin(&self, program: &str, plugin: &str, cluster: &Cluster) -> Result<()> {
        self.load_program(self.built.program(program)?, plugin, cluster)
            .await
    }

    /// Loads an image with kubectl and busybox into a cluster, and returns its name.
    pub async fn load_kubectl(&self, cluster: &Cluster) -> Result<&'static str> {
        let image = "localhost/kubectl:1";
        let kubectl = liqo_playground::kubectl(&Lines(self.kind.instance)).await?;
        let spec = ImageSpec {
            programs: vec!["busybox".to_owned()],
            ..ImageSpec::new(image, kubectl)
        };
        self.playground
            .cluster(&cluster.name)?
            .load_image(&spec)
            .await?;
        Ok(image)
    }

    async fn load_program(&self, program: &Path, plugin: &str, cluster: &Cluster) -> Result<()> {
        let image = format!("localhost/liqo/{plugin}:{}", env!("CARGO_PKG_VERSION"));
        Ok(self
            .playground
            .cluster(&cluster.name)?
            .load_image(&ImageSpec::new(&image, program))
            .await?)
    }

    /// The path of a folder in `deploy`.
    pub fn manifests(&self, folder: &str) -> String {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../deploy")
            .join(folder)
            .display()
            .to_string()
    }

    /// Waits until the namespaces that scenarios have ended are gone in all clusters.
    pub async fn ended_namespaces_are_gone(&self) -> Result<()> {
        try_join_all(self.clusters().map(Cluster::ended_namespaces_are_gone))
            .await
            .map(drop)
    }

    /// Waits likewise, unless `LIQO_TEST_KEEP` is set: Kubernetes needs ten seconds more for it,
    /// and somebody waits for the outcome.
    pub async fn ended_namespaces_are_gone_unless_kept(&self) -> Result<()> {
        if self.keep {
            Ok(())
        } else {
            self.ended_namespaces_are_gone().await
        }
    }

    /// Cuts a cluster off: all packets to and from it are lost.
    pub async fn cut(&self, cluster: &str) -> Result<()> {
        self.ended_namespaces_are_gone().await?;
        Ok(self.playground.cluster(cluster)?.partition().await?)
    }

    /// Connects a cluster again.
    pub async fn heal(&self, cluster: &str) -> Result<()> {
        Ok(self.playground.cluster(cluster)?.heal().await?)
    }

    /// Lets milan enforce `NetworkPolicies` from now on.
    pub async fn enforce_network_policies(&self) -> Result<()> {
        Ok(self.machinery(&self.milan)?.start(KUBE_ROUTER).await?)
    }

    /// Ends what enforces `NetworkPolicies` in milan, and removes its rules. It runs a dozen
    /// programs whenever a pod or a namespace changes, which takes a tenth of two cores while
    /// scenarios run that do not need it.
    async fn stop_network_policies(&self) -> Result<()> {
        let milan = self.machinery(&self.milan)?;
        milan.stop(KUBE_ROUTER).await?;
        let node = milan
            .nodes()
            .into_iter()
            .next()
            .context("milan has no node")?;
        let within = format!("nsenter --net=/run/netns/{}", node.network_namespace);
        let said = self
            .shell(
                &format!("{within} iptables -w -F && {within} iptables -w -X"),
                20,
            )
            .await?;
        ensure!(
            said.is_empty(),
            "removing the rules of {KUBE_ROUTER}: {said}"
        );
        Ok(())
    }

    /// Kills the API server of a cluster, so every watch breaks. The supervisor starts it again.
    /// Returns when it answers.
    pub async fn break_watches(&self, cluster: &Cluster) -> Result<()> {
        self.playground
            .cluster(&cluster.name)?
            .kill("kube-apiserver")
            .await?;
        self.api_server_answers(cluster).await
    }

    async fn api_server_answers(&self, cluster: &Cluster) -> Result<()> {
        eventually(
            "the API server answers again",
            Duration::from_mins(1),
            || async {
                Ok(cluster
                    .try_kubectl(&["get", "--raw", "/readyz"])
                    .await?
                    .success
                    .then_some(()))
            },
        )
        .await
    }

    /// Waits until an API server that was started again knows the kinds from which admission
    /// policies take parameters. It looks for them every half minute; before, it refuses everything
    /// that these policies check.
    pub async fn admission_policies_work(&self, cluster: &Cluster) -> Result<()> {
        let offloading = json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading", "namespace": "default" }, "spec": { "podOffloadingStrategy": "Local" } });
        eventually(
            &format!("the admission policies of {} work", cluster.name),
            Duration::from_secs(90),
            || async {
                let tried = cluster.try_dry_run(&offloading.to_string()).await?;
                Ok((!tried.stderr.contains("failed to configure policy")).then_some(()))
            },
        )
        .await
    }

    /// Takes the power from the only node of a cluster, and gives it back. Returns when the API
    /// server answers.
    pub async fn power_cut(&self, cluster: &Cluster) -> Result<()> {
        let (machinery, node) = (self.machinery(cluster)?, format!("{}-1", cluster.name));
        machinery.stop_node(&node).await?;
        machinery.start_node(&node).await?;
        self.api_server_answers(cluster).await
    }

    /// Waits until Liqo has written only leases for a while.
    pub async fn quiet(&self, clusters: &[&Cluster]) -> Result<()> {
        self.ended_namespaces_are_gone().await?;
        let is_quiet = clusters.iter().map(|cluster| async {
            let from = cluster.audit_length()?;
            let mut seen = (usize::MAX, std::time::Instant::now());
            let what = format!("Liqo is quiet in {}", cluster.name);
            eventually(&what, Duration::from_secs(90), || {
                let count = cluster.liqo_writes(from).map(|writes| writes.len());
                let result = count.map(|count| {
                    if count != seen.0 {
                        seen = (count, std::time::Instant::now());
                    }
                    (seen.1.elapsed() > Duration::from_secs(8)).then_some(())
                });
                std::future::ready(result)
            })
            .await
        });
        try_join_all(is_quiet).await.map(drop)
    }

    /// Runs a shell command line and returns its standard output and standard error.
    pub async fn shell(&self, line: &str, seconds: u64) -> Result<String> {
        let mut command = Command::new("sh");
        command
            .args(["-c", line])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output =
            tokio::time::timeout(Duration::from_secs(seconds) * PATIENCE, command.output())
                .await
                .with_context(|| format!("{line} did not end"))??;
        Ok(format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))
    }

    /// A path for a temporary file, which is removed at the end of this run.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Takes the clusters down, unless `LIQO_TEST_KEEP` is set.
    pub async fn end(&self, failed: bool) -> Result<()> {
        std::fs::remove_dir_all(&self.scratch)?;
        if self.keep {
            eprintln!("the clusters stay up: LIQO_TEST_KEEP is set");
            return Ok(());
        }
        if failed {
            self.show_manager_logs().await;
        }
        self.playground
            .down()
            .await
            .context("taking the clusters down")
    }

    /// Prints the last log lines of each manager, to explain a failure on another machine.
    async fn show_manager_logs(&self) {
        let logs = [
            "-n",
            "liqo",
            "logs",
            "-l",
            "app.kubernetes.io/name=liqo-controller-manager",
            "--prefix",
            "--tail=60",
        ];
        for cluster in self.clusters() {
            if let Ok(log) = cluster.try_kubectl(&logs).await {
                eprintln!(
                    "== manager of {} ({})\n{}{}",
                    cluster.name, self.kind.instance, log.stdout, log.stderr
                );
            }
        }
    }
}

/// Some packages install a dispatcher as `kubectl`. It asks the API server for its version each
/// time, and then starts one of the programs `kubectl.1.NUMBER` in its folder. Returns the newest
/// of them, or `kubectl` if there are none.
fn without_dispatcher(kubectl: PathBuf) -> PathBuf {
    let newest = || {
        let real = kubectl.canonicalize().ok()?;
        let files = real
            .parent()?
            .read_dir()
            .ok()?
            .flatten()
            .map(|entry| entry.path());
        let version = |path: &PathBuf| {
            path.file_name()?
                .to_str()?
                .strip_prefix("kubectl.1.")?
                .parse::<u32>()
                .ok()
        };
        files
            .filter_map(|path| Some((version(&path)?, path)))
            .max()
            .map(|(_, path)| path)
    };
    newest().unwrap_or(kubectl)
}

/// The first characters of the digest of a file, for an image tag that changes with its content.
fn digest(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(HEXLOWER.encode(&Sha256::digest(bytes)[..6]))
}

/// Prints progress on standard error, with the name of the playground.
struct Lines(&'static str);

impl Progress for Lines {
    fn started(&self, step: &str) {
        eprintln!("{}: {step} ...", self.0);
    }

    fn finished(&self, step: &str) {
        eprintln!("{}: {step}: done", self.0);
    }

    fn message(&self, _step: &str, _text: &str) {}

    fn line(&self, text: &str) {
        eprintln!("{}: {text}", self.0);
    }
}
