//! `liqoctl playground`: real clusters on this machine, with Liqo in them, peered, and something running in both.
//!
//! The clusters are the library's ([`liqo_playground`]); what is done with them here is what a user would type: install,
//! peer, offload.

mod clusters;
mod programs;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use data_encoding::HEXLOWER;
use futures::future::try_join_all;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use liqo_api::PeeringPolicy;
use liqo_playground::{ClusterSpec, DUAL_STACK_SETTINGS, FAKE_NODE_LABEL, ImageSpec, Playground, Requirements, Supervision};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{
    cli::PlaygroundUp,
    cluster::{Access, Cluster, Explained as _},
    demo, install, offload,
    output::{self, Paint},
    peer,
    progress::Progress,
    settings::{Settings, default_fabric_image, default_image},
};

pub use clusters::{ClusterArgument, ClusterArgumentError, nodes};
use programs::{FABRIC, MANAGER};

const TIMEOUT: Duration = Duration::from_secs(180);

impl liqo_playground::Progress for Progress {
    fn started(&self, step: &str) {
        Self::started(self, step);
    }

    fn finished(&self, step: &str) {
        Self::finished(self, step);
    }

    fn message(&self, step: &str, text: &str) {
        Self::message(self, step, text);
    }
}

/// What is up.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Up {
    /// The clusters.
    pub clusters: Vec<UpCluster>,
    /// What runs where; nothing if nothing was started.
    pub demo: Vec<demo::Line>,
    /// Commands worth trying.
    pub commands: Vec<String>,
}

/// One cluster that is up.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpCluster {
    /// Its name.
    pub name: String,
    /// Its kubeconfig.
    pub kubeconfig: PathBuf,
    /// Its identity, where Liqo is installed.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The virtual nodes in it.
    pub virtual_nodes: Vec<String>,
}

/// The playground of this name, kept running by a process of its own.
pub fn open(instance: &str) -> anyhow::Result<Playground> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(Playground::open(instance)?.supervised_by(Supervision::Detached(program)))
}

/// Brings everything up, or repairs it.
pub async fn up(instance: &str, arguments: &PlaygroundUp, progress: &Progress) -> anyhow::Result<Up> {
    clusters::check(arguments)?;
    // Whatever is missing is said before anything starts.
    let requirements = Requirements::check(&clusters::specs(arguments, &[])).await?;
    if !requirements.missing_packages.is_empty() {
        progress.line(&format!("Debian packages that will be installed: {}", requirements.missing_packages.join(", ")));
    }
    let programs =
        if arguments.bare { None } else { Some(progress.step(programs::BUILDING, programs::programs(progress)).await?) };
    let playground = open(instance)?;
    let present = playground.clusters()?.iter().map(liqo_playground::Cluster::spec).collect::<Result<Vec<_>, _>>()?;
    let specs = clusters::specs(arguments, &present);
    let handles = playground.up(&specs, progress).await?;
    let mut clusters = Vec::new();
    for handle in &handles {
        clusters.push(Cluster::connect(&Access::file(handle.kubeconfig())).await?);
    }
    let Some(programs) = programs else { return summary(arguments, &clusters, Vec::new()).await };

    let manager = image_of(&programs[MANAGER], &default_image())?;
    // It changes the kernel of nodes partly by way of nft.
    let fabric = ImageSpec { programs: vec!["nft".to_owned()], ..image_of(&programs[FABRIC], &default_fabric_image())? };
    let plugins = programs.iter().filter(|(name, _)| ![MANAGER, FABRIC].contains(&name.as_str()));
    let plugins = plugins.map(|(name, program)| ImageSpec::new(image_name(name), program));
    let images: Vec<ImageSpec> = plugins.chain([manager.clone(), fabric.clone()]).collect();
    let loads = handles.iter().flat_map(|handle| images.iter().map(|image| handle.load_image(image)));
    progress.step("Loading Liqo's images", try_join_all(loads)).await?;
    let installs = clusters.iter().zip(&specs).map(|(cluster, spec)| install_in(cluster, spec, [&manager, &fabric]));
    progress.step("Installing Liqo", try_join_all(installs)).await?;
    let (Some((consumer, providers)), false) = (clusters.split_first(), arguments.bare_peering) else {
        return summary(arguments, &clusters, Vec::new()).await;
    };
    if providers.len() > 1 {
        pass_on(consumer).await?;
    }
    for (provider, spec) in providers.iter().zip(specs.iter().skip(1)) {
        let options = peer::Options { name: None, request: peer::Request::AsBefore, timeout: TIMEOUT, wait: true };
        let source = peer::Source::Remote(provider.clone());
        let peered = async { peer::peer(consumer, source, &options, &Progress::silent()).await };
        progress.step(&format!("Peering with {}", spec.name), peered).await?;
    }
    let lines = progress
        .step("Running something in all clusters", async {
            demo::ensure_namespace(consumer).await?;
            let options = offload::Options {
                strategy: liqo_api::PodOffloadingStrategy::LocalAndRemote,
                reflection: None,
                selector: None,
                timeout: TIMEOUT,
            };
            offload::offload(consumer, demo::NAMESPACE, &options, &Progress::silent()).await?;
            demo::run(consumer, arguments.clusters.len(), TIMEOUT, |text| {
                progress.message("Running something in all clusters", text);
            })
            .await
        })
        .await?;
    summary(arguments, &clusters, lines).await
}

/// Lets the clusters that the first one borrows from reach each other through it, unless somebody said otherwise.
async fn pass_on(consumer: &Cluster) -> anyhow::Result<()> {
    let api: Api<PeeringPolicy> = Api::all(consumer.client.clone());
    let wanted = json!({
        "apiVersion": "sharing.liqo.io/v1alpha1",
        "kind": "PeeringPolicy",
        "metadata": { "name": "default" },
        "spec": { "network": { "transit": true } },
    });
    match api.patch("default", &PatchParams::apply("liqoctl-playground"), &Patch::Apply(&wanted)).await {
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
        written => written.map(drop).doing("write the default PeeringPolicy"),
    }
}

async fn install_in(cluster: &Cluster, spec: &ClusterSpec, images: [&ImageSpec; 2]) -> anyhow::Result<install::Installed> {
    let name = &spec.name;
    // On a fake node it would seem to run.
    let (key, value) = FAKE_NODE_LABEL;
    let avoid_nodes = (spec.fake_nodes.count > 0).then(|| [(key.to_owned(), value.to_owned())].into());
    let [image, fabric_image] = images.map(|image| Some(image.reference.clone()));
    let room = if spec.dual_stack { Settings::parse(&DUAL_STACK_SETTINGS)? } else { Settings::default() };
    let settings = Settings { cluster_name: Some(name.clone()), image, fabric_image, avoid_nodes, ..room };
    let options = install::Options { settings, timeout: TIMEOUT };
    let installed =
        install::install(cluster, &options, &Progress::silent()).await.with_context(|| format!("in cluster {name}"))?;
    match &installed.warning {
        Some(warning) => bail!("in cluster {name}: {warning}"),
        None => Ok(installed),
    }
}

async fn summary(arguments: &PlaygroundUp, clusters: &[Cluster], demo: Vec<demo::Line>) -> anyhow::Result<Up> {
    let mut shown = Vec::new();
    for (cluster, argument) in clusters.iter().zip(&arguments.clusters) {
        shown.push(UpCluster {
            name: argument.name.clone(),
            kubeconfig: cluster.access.kubeconfig.clone().unwrap_or_default(),
            cluster_id: cluster.config().await?.and_then(|config| Some(config.status?.cluster_id?.to_string())),
            virtual_nodes: offload::virtual_nodes(cluster).await?.into_iter().collect(),
        });
    }
    let commands = commands(&shown, &demo);
    Ok(Up { clusters: shown, demo, commands })
}

fn commands(clusters: &[UpCluster], demo: &[demo::Line]) -> Vec<String> {
    let Some(first) = clusters.first() else { return Vec::new() };
    let export = format!("export KUBECONFIG={}", first.kubeconfig.display());
    let abroad = demo.iter().find(|line| first.virtual_nodes.contains(&line.node));
    let local = demo.iter().find(|line| !first.virtual_nodes.contains(&line.node));
    let Some(pod) = abroad.or(local).map(|line| &line.pod) else {
        let mut commands = vec![export, "kubectl get pods --all-namespaces".to_owned()];
        if first.cluster_id.is_some() {
            commands.push("cargo liqoctl status".to_owned());
            let ours =
                |node: &String, name: &str| node.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
            let peered = |other: &&UpCluster| first.virtual_nodes.iter().any(|node| ours(node, &other.name));
            let others = clusters.iter().skip(1).filter(|other| !peered(other));
            commands.extend(others.map(|other| format!("cargo liqoctl peer --remote-kubeconfig {}", other.kubeconfig.display())));
        }
        return commands;
    };
    let namespace = demo::NAMESPACE;
    vec![
        export,
        format!("kubectl -n {namespace} get pods -o wide"),
        format!("kubectl -n {namespace} logs {pod}"),
        format!("kubectl -n {namespace} exec -it {pod} -- sh"),
        format!(
            "kubectl -n {namespace} exec {} -- wget -qO- http://{}.{namespace}",
            local.map_or(pod, |line| &line.pod),
            demo::NAME
        ),
        "cargo liqoctl status".to_owned(),
    ]
}

/// The result for people.
pub fn table(up: &Up) -> String {
    let row = |cluster: &UpCluster| {
        let id = cluster.cluster_id.clone().unwrap_or_else(|| "no Liqo".to_owned());
        vec![cluster.name.clone(), id, cluster.virtual_nodes.join(", "), cluster.kubeconfig.display().to_string()]
    };
    let mut text = output::table(&["CLUSTER", "ID", "VIRTUAL NODES", "KUBECONFIG"], up.clusters.iter().map(row));
    if !up.demo.is_empty() {
        let row = |line: &demo::Line| vec![line.pod.clone(), line.phase.clone(), line.node.clone(), line.answers.to_string()];
        let calls: usize = up.demo.iter().map(|line| line.answers).sum();
        let heading = format!("OF {calls} CALLS");
        text = format!("{text}\n\n{}", output::table(&["POD", "STATUS", "NODE", &heading], up.demo.iter().map(row)));
    }
    text + "\n\nWorth trying:\n  " + &up.commands.join("\n  ")
}

/// Ends everything.
pub async fn down(instance: &str, progress: &Progress) -> anyhow::Result<()> {
    Ok(progress.step("Ending the clusters", open(instance)?.down()).await?)
}

/// The clusters and their programs for people.
pub fn status_table(status: &liqo_playground::Status, paint: Paint) -> String {
    if status.clusters.is_empty() {
        return "No clusters: `cargo playground up` starts some.".to_owned();
    }
    let mut blocks = Vec::new();
    for cluster in &status.clusters {
        let ready = if cluster.ready { paint.good("ready") } else { paint.bad("not ready") };
        let heading = format!(
            "{} {} at {}, kubeconfig {}",
            paint.strong(&cluster.name),
            ready,
            cluster.api_url,
            cluster.kubeconfig.display()
        );
        blocks.push(format!("{heading}\n{}", node_table(cluster, paint)));
        let rows = cluster.components.iter().map(|component| {
            vec![
                component.component.clone(),
                format!("{:?}", component.state),
                component.pid.map(|pid| pid.to_string()).unwrap_or_default(),
                component.restarts.to_string(),
                component.last_exit.clone().unwrap_or_default(),
            ]
        });
        blocks.push(output::table(&["COMPONENT", "STATE", "PID", "RESTARTS", "LAST EXIT"], rows));
    }
    blocks.join("\n\n")
}

/// The real nodes one by one, and the fake ones in one row.
fn node_table(cluster: &liqo_playground::ClusterStatus, paint: Paint) -> String {
    let ready = |ready: Option<bool>| match ready {
        Some(true) => paint.good("yes"),
        Some(false) => paint.bad("no"),
        None => "unknown".to_owned(),
    };
    let real = cluster.nodes.iter().map(|status| {
        let node = &status.node;
        let addresses: Vec<_> =
            [Some(node.address.to_string()), node.address_v6.map(|address| address.to_string())].into_iter().flatten().collect();
        vec![node.name.clone(), ready(status.ready), addresses.join(", "), node.network_namespace.clone()]
    });
    let fake = cluster.fake_nodes;
    let fake = (fake.wanted > 0 || fake.found > 0).then(|| {
        let text = format!("{} of {}", fake.ready, fake.wanted);
        let whole = cluster.ready && fake.ready == usize::from(fake.wanted) && fake.found == fake.ready;
        vec!["fake nodes".to_owned(), if whole { paint.good(&text) } else { paint.bad(&text) }, String::new(), String::new()]
    });
    output::table(&["NODE", "READY", "ADDRESS", "NETWORK NAMESPACE"], real.chain(fake))
}

/// Prints what a program wrote.
pub fn logs(instance: &str, cluster: &str, component: &str) -> anyhow::Result<()> {
    let path = open(instance)?.logs(cluster, component)?;
    let text = std::fs::read(&path)
        .with_context(|| format!("cannot read {}: is {component} one of `playground status`?", path.display()))?;
    output::write_out(&String::from_utf8_lossy(&text))
}

/// The image of a program, named after its content: the same content is not loaded or rolled out twice.
fn image_of(program: &Path, name: &str) -> anyhow::Result<ImageSpec> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let digest = HEXLOWER.encode(&Sha256::digest(&bytes));
    Ok(ImageSpec::new(format!("{name}-{}", &digest[..12]), program))
}

/// The image of a plugin, as its manifests name it.
fn image_name(plugin: &str) -> String {
    format!("localhost/liqo/{plugin}:{}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [UpCluster; 2] {
        [
            UpCluster {
                name: "rome".into(),
                kubeconfig: "/r".into(),
                cluster_id: Some("x".into()),
                virtual_nodes: vec!["milan".into()],
            },
            UpCluster { name: "milan".into(), kubeconfig: "/m".into(), cluster_id: Some("y".into()), virtual_nodes: Vec::new() },
        ]
    }

    #[test]
    fn nobody_is_told_to_peer_with_a_peer_nor_kept_from_the_demo_because_its_pods_are_all_at_home() {
        let local = demo::Line { pod: "a".into(), node: "rome-1".into(), phase: "Running".into(), answers: 5 };
        let at_home = commands(&two(), &[local]);
        assert!(at_home[2].ends_with("logs a") && at_home.len() == 6, "{at_home:?}");
        let offered = |clusters: &[UpCluster]| commands(clusters, &[]).iter().any(|command| command.contains("liqoctl peer"));
        let mut unpeered = two();
        unpeered[0].virtual_nodes.clear();
        assert_eq!((offered(&two()), offered(&unpeered)), (false, true));
    }

    #[test]
    fn six_commands_are_offered_when_a_pod_runs_abroad() {
        let clusters = two();
        let line = |pod: &str, node: &str| demo::Line { pod: pod.into(), node: node.into(), phase: "Running".into(), answers: 5 };
        let commands = commands(&clusters, &[line("a", "rome-1"), line("b", "milan")]);
        assert_eq!(commands.len(), 6);
        assert!(commands[2].ends_with("logs b"), "{commands:?}");
        assert!(commands[4].ends_with("exec a -- wget -qO- http://hello.demo"), "{commands:?}");
    }
}
