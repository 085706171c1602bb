use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use data_encoding::HEXLOWER;
use liqo_playground::{
    ClusterSpec, DUAL_STACK_SETTINGS, FAKE_NODE_LABEL, FakeNodes, ImageSpec, Playground, Progress, Supervision,
    fake_node_resources,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use crate::{Cluster, cluster::Programs, eventually};

/// What the clusters of a set are.
#[derive(Clone, Copy, Debug)]
pub struct Clusters {
    /// Their playground, beside which a user's own may run.
    pub instance: &'static str,
    /// How many nodes turin has.
    pub nodes_of_turin: u8,
    /// Whether they have IPv6 beside IPv4.
    pub dual_stack: bool,
    /// Whether milan enforces `NetworkPolicies`.
    pub network_policies: bool,
}

/// The clusters of the scenarios, with Liqo installed in each and rome borrowing from milan.
pub struct World {
    /// A consumer.
    pub rome: Cluster,
    /// A second consumer, not yet peered.
    pub turin: Cluster,
    /// The provider.
    pub milan: Cluster,
    clusters: Clusters,
    playground: Playground,
    /// Of the controller manager, and of the program on each node.
    images: [String; 2],
    scratch: PathBuf,
    keep: bool,
}

impl World {
    /// Builds the programs, starts the clusters, installs Liqo and peers rome with milan.
    pub async fn build(wanted: Clusters) -> Result<Self> {
        let Clusters { instance, nodes_of_turin, dual_stack, network_policies } = wanted;
        let keep = std::env::var_os("LIQO_TEST_KEEP").is_some();
        let (manager, liqoctl) = (program("liqo-controller-manager").await?, program("liqoctl").await?);
        let fabric = program("liqo-fabric").await?;
        let supervision = if keep { Supervision::Detached(liqoctl.clone()) } else { Supervision::ThisProcess };
        let playground = Playground::open(instance)?.supervised_by(supervision);
        if !keep {
            // What a run that was killed left behind.
            playground.down().await?;
        }
        // milan's fake nodes start with one that has nothing: scenarios add those that they need.
        let nothing = "cpu=0,memory=0,pods=0,ephemeral-storage=0".split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?;
        let fake_nodes = FakeNodes { count: 1, resources: fake_node_resources(nothing), taint: false };
        let spec = |name: &str| ClusterSpec { dual_stack, ..ClusterSpec::new(name) };
        let milan = ClusterSpec { fake_nodes, network_policies, ..spec("milan") };
        let turin = ClusterSpec { nodes: nodes_of_turin, ..spec("turin") };
        let specs = [spec("rome"), turin, milan];
        playground.up(&specs, &Lines).await.context("starting the clusters")?;
        let programs = Programs { kubectl: liqo_playground::kubectl(&Lines).await?, liqoctl };
        let images = [
            format!("localhost/liqo/controller-manager:{}", digest(&manager)?),
            format!("localhost/liqo/fabric:{}", digest(&fabric)?),
        ];
        let on_nodes = ImageSpec { programs: vec!["nft".to_owned()], ..ImageSpec::new(&images[1], &fabric) };
        let mut clusters = Vec::new();
        for name in ["rome", "turin", "milan"] {
            let cluster = playground.cluster(name)?;
            cluster.load_image(&ImageSpec::new(&images[0], &manager)).await.context("loading the manager's image")?;
            cluster.load_image(&on_nodes).await.context("loading the image of the program on each node")?;
            clusters.push(Cluster::new(name, cluster.kubeconfig(), cluster.audit_log(), programs.clone()).await?);
        }
        let [rome, turin, milan]: [Cluster; 3] = clusters.try_into().ok().context("three clusters")?;
        let scratch = std::env::temp_dir().join(format!("liqo-tests-{}-{instance}", std::process::id()));
        std::fs::create_dir_all(&scratch)?;
        let world = Self { rome, turin, milan, clusters: wanted, playground, images, scratch, keep };
        tokio::try_join!(world.install(&world.rome), world.install(&world.turin), world.install(&world.milan))?;
        world.peer_rome_with_milan().await?;
        Ok(world)
    }

    /// Installs Liqo as a user would; again, if it is there.
    pub async fn install(&self, cluster: &Cluster) -> Result<()> {
        let name = format!("discovery.config.clusterName={}", cluster.name);
        let image = format!("controllerManager.image={}", self.images[0]);
        let fabric = format!("fabric.image={}", self.images[1]);
        // On a fake node the program would wait for ever.
        let (key, value) = FAKE_NODE_LABEL;
        let avoided = format!("controllerManager.avoidNodes={key}={value}");
        let mut settings = vec![name.as_str(), &image, &fabric, &avoided];
        if self.clusters.dual_stack {
            settings.extend(DUAL_STACK_SETTINGS);
        }
        let mut arguments = vec!["install"];
        arguments.extend(settings.into_iter().flat_map(|setting| ["--set", setting]));
        cluster.liqoctl(&arguments).await.map(drop)
    }

    /// Peers rome with milan as a user would; returns when the virtual node is Ready.
    pub async fn peer_rome_with_milan(&self) -> Result<()> {
        self.rome.liqoctl(&["peer", "--remote-kubeconfig", &self.milan.kubeconfig.display().to_string()]).await?;
        self.rome.wait_for(&["node/milan"], "condition=Ready", 90).await
    }

    /// The machinery of a cluster: its nodes and components.
    pub fn machinery(&self, cluster: &Cluster) -> Result<liqo_playground::Cluster> {
        Ok(self.playground.cluster(&cluster.name)?)
    }

    /// Builds a resource plugin and loads its image into a cluster, under the name that its manifests have.
    pub async fn load_plugin(&self, plugin: &str, cluster: &Cluster) -> Result<()> {
        self.load_program(&program(plugin).await?, plugin, cluster).await
    }

    /// Builds an example of this workspace and loads it into a cluster as the image of a resource plugin of this name.
    pub async fn load_example(&self, example: &str, plugin: &str, cluster: &Cluster) -> Result<()> {
        self.load_program(&build("--example", example).await?, plugin, cluster).await
    }

    /// Loads an image with kubectl and busybox into a cluster, and returns its name.
    pub async fn load_kubectl(&self, cluster: &Cluster) -> Result<&'static str> {
        let image = "localhost/kubectl:1";
        let kubectl = liqo_playground::kubectl(&Lines).await?;
        let spec = ImageSpec { programs: vec!["busybox".to_owned()], ..ImageSpec::new(image, kubectl) };
        self.playground.cluster(&cluster.name)?.load_image(&spec).await?;
        Ok(image)
    }

    async fn load_program(&self, program: &Path, plugin: &str, cluster: &Cluster) -> Result<()> {
        let image = format!("localhost/liqo/{plugin}:{}", env!("CARGO_PKG_VERSION"));
        Ok(self.playground.cluster(&cluster.name)?.load_image(&ImageSpec::new(&image, program)).await?)
    }

    /// The manifests of something that is deployed: a folder in `deploy`.
    pub fn manifests(&self, folder: &str) -> String {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(folder).display().to_string()
    }

    /// Cuts a cluster off: packets to and from it are lost.
    pub async fn cut(&self, cluster: &str) -> Result<()> {
        Ok(self.playground.cluster(cluster)?.partition().await?)
    }

    /// Connects it again.
    pub async fn heal(&self, cluster: &str) -> Result<()> {
        Ok(self.playground.cluster(cluster)?.heal().await?)
    }

    /// Kills the API server of a cluster, which is started again at once: every watch breaks. Returns when it answers.
    pub async fn break_watches(&self, cluster: &Cluster) -> Result<()> {
        self.playground.cluster(&cluster.name)?.kill("kube-apiserver").await?;
        eventually("the API server answers again", Duration::from_secs(60), || async {
            Ok(cluster.try_kubectl(&["get", "--raw", "/readyz"]).await?.success.then_some(()))
        })
        .await
    }

    /// Waits until Liqo wrote nothing but leases for a while.
    pub async fn quiet(&self, clusters: &[&Cluster]) -> Result<()> {
        for cluster in clusters {
            let mut seen = (usize::MAX, std::time::Instant::now());
            let what = format!("Liqo is quiet in {}", cluster.name);
            eventually(&what, Duration::from_secs(90), || {
                let count = cluster.liqo_writes(0).map(|writes| writes.len());
                let result = count.map(|count| {
                    if count != seen.0 {
                        seen = (count, std::time::Instant::now());
                    }
                    (seen.1.elapsed() > Duration::from_secs(8)).then_some(())
                });
                std::future::ready(result)
            })
            .await?;
        }
        Ok(())
    }

    /// Runs a line of shell and returns what it printed on both outputs.
    pub async fn shell(&self, line: &str, seconds: u64) -> Result<String> {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(seconds), command.output())
            .await
            .with_context(|| format!("{line}: did not end"))??;
        Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    /// A file of this run, removed at its end.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Takes everything down, unless it is to be kept.
    pub async fn end(&self, failed: bool) -> Result<()> {
        std::fs::remove_dir_all(&self.scratch)?;
        if self.keep {
            eprintln!("the clusters stay up: LIQO_TEST_KEEP is set");
            return Ok(());
        }
        if failed {
            self.show_manager_logs().await;
        }
        self.playground.down().await.context("taking the clusters down")
    }

    /// The last lines of each manager, so that a failure on another machine can be understood.
    async fn show_manager_logs(&self) {
        for cluster in [&self.rome, &self.turin, &self.milan] {
            if let Ok(log) = cluster.try_kubectl(&["-n", "liqo", "logs", "deployment/liqo-controller-manager", "--tail=60"]).await
            {
                eprintln!("== manager of {} ({})\n{}{}", cluster.name, self.clusters.instance, log.stdout, log.stderr);
            }
        }
    }
}

/// Builds a program of this workspace in the profile of the tests, and returns its path.
async fn program(name: &str) -> Result<PathBuf> {
    build("--bin", name).await
}

/// Builds what is of this kind and has this name.
async fn build(kind: &str, name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut command = Command::new(cargo);
    // What cargo tells this test about itself would make build scripts believe that everything changed.
    let about_this_test = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars().filter(|(name, _)| about_this_test(name) || name == "LD_LIBRARY_PATH" || name == "OUT_DIR")
    {
        command.env_remove(name);
    }
    command
        .args(["build", "--locked", "--quiet", "--message-format=json-render-diagnostics", kind, name, "--manifest-path"])
        .arg(manifest);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().await.context("starting cargo")?;
    ensure!(output.status.success(), "building {name} failed");
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Value = serde_json::from_slice(line).context("reading cargo's messages")?;
        if let (Some(path), true) = (message["executable"].as_str(), message["target"]["name"] == name) {
            return Ok(path.into());
        }
    }
    bail!("cargo built no program named {name}")
}

/// The first characters of the digest of a file, for an image tag that changes with the content.
fn digest(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(HEXLOWER.encode(&Sha256::digest(bytes)[..6]))
}

/// Progress as lines on standard error.
struct Lines;

impl Progress for Lines {
    fn started(&self, step: &str) {
        eprintln!("{step} ...");
    }

    fn finished(&self, step: &str) {
        eprintln!("{step}: done");
    }

    fn message(&self, _step: &str, _text: &str) {}
}
