//! `up`: starts the clusters, installs Liqo, peers the clusters and runs the demo. Run again, it
//! repairs what is broken.

use std::{
    collections::BTreeMap,
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
use liqo_api::{PeeringPolicy, PodOffloadingStrategy};
use liqo_playground::{
    CargoProfile, ClusterSpec, DUAL_STACK_SETTINGS, FAKE_NODE, ImageSpec, NODE_KIND_LABEL,
    Playground, Requirements,
};
use liqoctl::{
    broker,
    cluster::{Cluster, ClusterAccess, ExplainFailure as _},
    evict, install, offload, peer,
    progress::StepProgress,
    settings::{InstallSettings, default_fabric_image, default_image},
};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{
    arguments::Up,
    demo::{self, DemoPod},
    programs::{self, FABRIC, MANAGER},
    specs,
};

const TIMEOUT: Duration = Duration::from_mins(3);
const DEMO_STEP: &str = "Running a demo in all clusters";

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpResult {
    pub clusters: Vec<UpCluster>,
    /// Empty if `up` did not run the demo.
    pub demo: Vec<DemoPod>,
    /// Commands worth trying.
    pub commands: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpCluster {
    pub name: String,
    pub kubeconfig: PathBuf,
    /// Missing where Liqo is not installed.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    pub virtual_nodes: Vec<String>,
}

/// Shows what the playground library reports as the steps of a command.
pub struct Steps<'a>(pub &'a StepProgress);

impl liqo_playground::Progress for Steps<'_> {
    fn started(&self, step: &str) {
        self.0.start_step(step);
    }

    fn finished(&self, step: &str) {
        self.0.finish_step(step);
    }

    fn message(&self, step: &str, text: &str) {
        self.0.message(step, text);
    }

    fn line(&self, text: &str) {
        self.0.print_line(text);
    }
}

/// Brings everything up, or repairs it.
pub async fn up(
    playground: &Playground,
    arguments: &Up,
    progress: &StepProgress,
) -> anyhow::Result<UpResult> {
    specs::check(arguments)?;
    install_requirements(arguments, progress).await?;
    let present = playground
        .clusters()?
        .iter()
        .map(liqo_playground::Cluster::spec)
        .collect::<Result<Vec<_>, _>>()?;
    let specs = specs::specs(arguments, &present);
    // What runs already may not fit the arguments either.
    specs.iter().try_for_each(ClusterSpec::check)?;
    specs::check_broker(arguments, &specs)?;
    let profile = if arguments.release {
        CargoProfile::Release
    } else {
        CargoProfile::Dev
    };
    let build = async {
        if arguments.bare {
            return Ok(None);
        }
        progress
            .run_step(
                programs::BUILDING,
                programs::programs(arguments.plugins, profile, progress),
            )
            .await
            .map(Some)
    };
    // Each of the two leaves processors idle at times: while it downloads, and while it links.
    let steps = Steps(progress);
    let provide = async { Ok(playground.provide_programs(&specs, &steps).await?) };
    let (programs, ()) = tokio::try_join!(build, provide)?;
    let handles = playground.up(&specs, &steps).await?;
    if let Some(line) = metrics_line(&specs) {
        progress.print_line(&line);
    }
    let mut clusters = Vec::new();
    for handle in &handles {
        clusters.push(Cluster::connect(&ClusterAccess::from_file(handle.kubeconfig())).await?);
    }
    let Some(programs) = programs else {
        return summary(arguments, &clusters, Vec::new()).await;
    };

    install_everywhere(
        playground, &programs, profile, &handles, &clusters, &specs, progress,
    )
    .await?;
    let (Some(consumer), false) = (clusters.first(), arguments.bare_peering) else {
        return summary(arguments, &clusters, Vec::new()).await;
    };
    let peerings = specs::peerings(arguments);
    for (index, (cluster, spec)) in clusters.iter().zip(&specs).enumerate() {
        let providers = peerings
            .iter()
            .filter(|(consumer, _)| *consumer == index)
            .count();
        write_policy(cluster, index == 0 && providers > 1, spec).await?;
    }
    for (consumer, provider) in &peerings {
        let peering = PlannedPeering {
            consumer: &clusters[*consumer],
            consumer_name: (*consumer != 0).then_some(&specs[*consumer].name),
            provider: &clusters[*provider],
            provider_name: &specs[*provider].name,
        };
        let is_broker = arguments.broker.as_ref() == Some(peering.provider_name);
        peering.establish(is_broker, progress).await?;
    }
    let borrowed = peerings
        .iter()
        .filter(|(consumer, _)| *consumer == 0)
        .count();
    let mut demo = progress
        .run_step(DEMO_STEP, run_demo(consumer, borrowed + 1, progress))
        .await?;
    let broker = arguments
        .broker
        .as_ref()
        .and_then(|broker| specs.iter().position(|spec| spec.name == *broker));
    if let Some(broker) = broker {
        demo::add_broker_nodes(&mut demo, consumer, &clusters[broker]).await?;
    }
    summary(arguments, &clusters, demo).await
}

/// Reports what is missing on this machine before anything starts, and installs it.
async fn install_requirements(arguments: &Up, progress: &StepProgress) -> anyhow::Result<()> {
    let requirements = Requirements::check(&specs::specs(arguments, &[])).await?;
    if !requirements.missing_packages.is_empty() {
        progress.print_line(&format!(
            "Debian packages that will be installed: {}",
            requirements.missing_packages.join(", ")
        ));
    }
    // Before anything else runs: if that failed, it would interrupt the installation.
    requirements.install(&Steps(progress)).await?;
    Ok(())
}

/// A peering between two clusters of the playground.
struct PlannedPeering<'a> {
    consumer: &'a Cluster,
    /// `None` for the first cluster, which messages leave out.
    consumer_name: Option<&'a String>,
    provider: &'a Cluster,
    provider_name: &'a String,
}

impl PlannedPeering<'_> {
    /// Peers the two. A broker lends on what it borrows.
    async fn establish(&self, is_broker: bool, progress: &StepProgress) -> anyhow::Result<()> {
        let Self {
            consumer,
            provider,
            provider_name,
            ..
        } = self;
        if is_broker {
            let step = format!("Letting {provider_name} lend on what it borrows");
            progress
                .run_step(&step, lend_on(provider, consumer))
                .await?;
        }
        let step = match self.consumer_name {
            None => format!("Peering with {provider_name}"),
            Some(consumer_name) => format!("Peering {consumer_name} with {provider_name}"),
        };
        progress
            .run_step(&step, peer_with(consumer, provider))
            .await?;
        if is_broker {
            let step = format!("Waiting until {provider_name} lends only what it borrows");
            let news = |text: &str| progress.message(&step, text);
            progress
                .run_step(
                    &step,
                    demo::wait_for_borrowed(consumer, provider, TIMEOUT, news),
                )
                .await?;
        }
        Ok(())
    }
}

/// Peers one cluster with another, and waits for its virtual node.
async fn peer_with(consumer: &Cluster, provider: &Cluster) -> anyhow::Result<()> {
    let options = peer::PeerOptions {
        name: None,
        request: peer::RequestArguments::AsBefore,
        granularity: None,
        timeout: TIMEOUT,
        wait: true,
    };
    peer::peer_and_wait(
        consumer,
        peer::PeeringSource::Remote(provider.clone()),
        &options,
        &StepProgress::silent(),
    )
    .await?;
    demo::wait_for_virtual_node(consumer, provider, TIMEOUT).await
}

/// Lets the broker lend to this customer what it borrows, as `liqoctl broker enable` does.
async fn lend_on(lender: &Cluster, customer: &Cluster) -> anyhow::Result<()> {
    let customers = Some(broker::Customers::These(vec![
        customer.require_installed().await?.id.to_string(),
    ]));
    let wanted = broker::RequestedPolicyChange {
        policy: broker::change::DEFAULT_POLICY.to_owned(),
        customers,
        ..broker::RequestedPolicyChange::default()
    };
    let plan = broker::plan_enabling(lender, &wanted).await?;
    if plan.is_needed() {
        broker::enable_lending_on(lender, &plan).await
    } else {
        Ok(())
    }
}

/// Where metrics-server runs; nothing if it runs nowhere.
fn metrics_line(specs: &[ClusterSpec]) -> Option<String> {
    let measured: Vec<&str> = specs
        .iter()
        .filter(|spec| spec.metrics)
        .map(|spec| spec.name.as_str())
        .collect();
    let clusters = measured.join(", ");
    (!measured.is_empty()).then(|| {
        format!("metrics-server runs in {clusters}: `kubectl top nodes` works within a minute")
    })
}

/// Loads Liqo's images into all clusters and installs Liqo there.
async fn install_everywhere(
    playground: &Playground,
    programs: &BTreeMap<String, PathBuf>,
    profile: CargoProfile,
    handles: &[liqo_playground::Cluster],
    clusters: &[Cluster],
    specs: &[ClusterSpec],
    progress: &StepProgress,
) -> anyhow::Result<()> {
    let manager = image_of(&programs[MANAGER], &default_image(), profile)?;
    // liqo-fabric runs nft to configure the node's kernel.
    let fabric = ImageSpec {
        programs: vec!["nft".to_owned()],
        ..image_of(&programs[FABRIC], &default_fabric_image(), profile)?
    };
    let plugins = programs
        .iter()
        .filter(|(name, _)| ![MANAGER, FABRIC].contains(&name.as_str()));
    let plugins = plugins.map(|(name, program)| ImageSpec::new(plugin_image(name), program));
    let images: Vec<ImageSpec> = plugins.chain([manager.clone(), fabric.clone()]).collect();
    let loads = images.iter().map(|image| playground.load_image(image));
    progress
        .run_step("Loading Liqo's images", try_join_all(loads))
        .await?;
    let installs = clusters.iter().zip(specs).zip(handles);
    let installs = installs
        .map(|((cluster, spec), handle)| install_in(cluster, spec, handle, [&manager, &fabric]));
    progress
        .run_step("Installing Liqo", try_join_all(installs))
        .await
        .map(drop)
}

async fn run_demo(
    consumer: &Cluster,
    clusters: usize,
    progress: &StepProgress,
) -> anyhow::Result<Vec<DemoPod>> {
    demo::ensure_namespace(consumer).await?;
    let strategy = Some(PodOffloadingStrategy::LocalAndRemote);
    let options = offload::OffloadOptions {
        strategy,
        timeout: TIMEOUT,
        ..offload::OffloadOptions::default()
    };
    offload::offload(consumer, demo::NAMESPACE, &options, &StepProgress::silent()).await?;
    demo::run(consumer, clusters, TIMEOUT, |text| {
        progress.message(DEMO_STEP, text);
    })
    .await
}

/// Completes the default `PeeringPolicy`. Fields that somebody else set stay as they are.
///
/// With `transit` the providers reach each other through this cluster. Fake nodes become a pool of
/// their own: a pod that must really run can avoid the virtual node that stands for them.
async fn write_policy(cluster: &Cluster, transit: bool, spec: &ClusterSpec) -> anyhow::Result<()> {
    let mut wanted = json!({});
    if transit {
        wanted["network"] = json!({ "transit": true });
    }
    if specs::lends_two_pools(spec) {
        wanted["provide"] =
            json!({ "granularity": { "by": "NodeLabel", "label": NODE_KIND_LABEL } });
    }
    if wanted == json!({}) {
        return Ok(());
    }
    let api: Api<PeeringPolicy> = Api::all(cluster.client.clone());
    let policy = json!({
        "apiVersion": "sharing.liqo.io/v1alpha1",
        "kind": "PeeringPolicy",
        "metadata": { "name": "default" },
        "spec": wanted,
    });
    match api
        .patch(
            "default",
            &PatchParams::apply("liqoctl-playground"),
            &Patch::Apply(&policy),
        )
        .await
    {
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
        written => written.map(drop).doing("write the default PeeringPolicy"),
    }
}

async fn install_in(
    cluster: &Cluster,
    spec: &ClusterSpec,
    handle: &liqo_playground::Cluster,
    images: [&ImageSpec; 2],
) -> anyhow::Result<install::InstallResult> {
    let name = &spec.name;
    // Liqo's pods would seem to run on a fake node.
    let avoid_nodes = (spec.fake_nodes.count > 0)
        .then(|| [(NODE_KIND_LABEL.to_owned(), FAKE_NODE.to_owned())].into());
    let [image, fabric_image] = images.map(|image| Some(image.reference.clone()));
    let base = if spec.dual_stack {
        InstallSettings::parse(&DUAL_STACK_SETTINGS)?
    } else {
        InstallSettings::default()
    };
    // Nothing else runs in these clusters, and most of them do not enforce NetworkPolicies.
    let lend_without_network_policies = Some(true);
    let key_directory = Some(handle.key_directory().display().to_string());
    let cluster_name = Some(name.clone());
    let settings = InstallSettings {
        cluster_name,
        image,
        fabric_image,
        key_directory,
        avoid_nodes,
        lend_without_network_policies,
        ..base
    };
    let options = install::InstallOptions {
        settings,
        allow_no_policies: false,
        timeout: TIMEOUT,
    };
    let installed = Box::pin(install::install_liqo(
        cluster,
        &options,
        &StepProgress::silent(),
    ))
    .await
    .with_context(|| format!("in cluster {name}"))?;
    match &installed.warning {
        Some(warning) => bail!("in cluster {name}: {warning}"),
        None => Ok(installed),
    }
}

async fn summary(
    arguments: &Up,
    clusters: &[Cluster],
    demo: Vec<DemoPod>,
) -> anyhow::Result<UpResult> {
    let mut shown = Vec::new();
    for (cluster, argument) in clusters.iter().zip(&arguments.clusters) {
        shown.push(UpCluster {
            name: argument.name.clone(),
            kubeconfig: cluster.access.kubeconfig.clone().unwrap_or_default(),
            cluster_id: cluster
                .read_configuration()
                .await?
                .and_then(|config| Some(config.status?.cluster_id?.to_string())),
            virtual_nodes: evict::virtual_nodes(cluster)
                .await?
                .into_iter()
                .map(|node| node.name)
                .collect(),
        });
    }
    let mut commands = commands(&shown, &demo);
    commands.extend(broker_commands(arguments, &shown));
    Ok(UpResult {
        clusters: shown,
        demo,
        commands,
    })
}

fn commands(clusters: &[UpCluster], demo: &[DemoPod]) -> Vec<String> {
    let Some(first) = clusters.first() else {
        return Vec::new();
    };
    let export = format!("export KUBECONFIG={}", first.kubeconfig.display());
    let remote = demo
        .iter()
        .find(|line| first.virtual_nodes.contains(&line.node));
    let local = demo
        .iter()
        .find(|line| !first.virtual_nodes.contains(&line.node));
    let Some(pod) = remote.or(local).map(|line| &line.pod) else {
        let mut commands = vec![export, "kubectl get pods --all-namespaces".to_owned()];
        if first.cluster_id.is_some() {
            commands.push("cargo liqoctl status".to_owned());
            let ours = |node: &String, name: &str| {
                node.strip_prefix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            let peered = |other: &&UpCluster| {
                first
                    .virtual_nodes
                    .iter()
                    .any(|node| ours(node, &other.name))
            };
            let others = clusters.iter().skip(1).filter(|other| !peered(other));
            commands.extend(others.map(|other| {
                format!(
                    "cargo liqoctl peer --remote-kubeconfig {}",
                    other.kubeconfig.display()
                )
            }));
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

/// Commands that show a broker, and where the pods really run.
fn broker_commands(arguments: &Up, clusters: &[UpCluster]) -> Vec<String> {
    let kubeconfig = |number: usize| {
        clusters
            .get(number)
            .map(|cluster| cluster.kubeconfig.display().to_string())
    };
    let Some((broker, provider)) = arguments
        .broker
        .as_ref()
        .and(specs::peerings(arguments).first().copied())
    else {
        return Vec::new();
    };
    let status =
        kubeconfig(broker).map(|path| format!("cargo liqoctl --kubeconfig {path} broker status"));
    let pods = kubeconfig(provider).map(|path| {
        format!("kubectl --kubeconfig {path} get pods -A -o wide -l liqo.io/consumer-id")
    });
    status.into_iter().chain(pods).collect()
}

/// The image of a program. Its name contains the program's profile, and its digest: the same
/// program is not loaded or rolled out twice.
fn image_of(program: &Path, name: &str, profile: CargoProfile) -> anyhow::Result<ImageSpec> {
    let bytes =
        std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let digest = HEXLOWER.encode(&Sha256::digest(&bytes));
    Ok(ImageSpec::new(
        format!("{name}-{}-{}", profile.name(), &digest[..12]),
        program,
    ))
}

/// The image of a plugin, with the name that its manifests use.
fn plugin_image(plugin: &str) -> String {
    format!("localhost/liqo/{plugin}:{}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn the_clusters_with_metrics_server_are_named() {
        let measured = |name: &str, metrics| ClusterSpec {
            metrics,
            ..ClusterSpec::new(name)
        };
        assert_eq!(metrics_line(&[measured("rome", false)]), None);
        let line = metrics_line(&[
            measured("rome", true),
            measured("milan", false),
            measured("turin", true),
        ])
        .unwrap();
        assert!(
            line.starts_with("metrics-server runs in rome, turin:"),
            "{line}"
        );
    }

    fn two() -> [UpCluster; 2] {
        [
            UpCluster {
                name: "rome".into(),
                kubeconfig: "/r".into(),
                cluster_id: Some("x".into()),
                virtual_nodes: vec!["milan".into()],
            },
            UpCluster {
                name: "milan".into(),
                kubeconfig: "/m".into(),
                cluster_id: Some("y".into()),
                virtual_nodes: Vec::new(),
            },
        ]
    }

    #[test]
    fn the_commands_skip_existing_peerings_and_work_with_only_local_pods() {
        let local = DemoPod {
            pod: "a".into(),
            node: "rome-1".into(),
            phase: "Running".into(),
            broker_node: None,
            answers: 5,
        };
        let for_local_pods = commands(&two(), &[local]);
        assert!(
            for_local_pods[2].ends_with("logs a") && for_local_pods.len() == 6,
            "{for_local_pods:?}"
        );
        let offered = |clusters: &[UpCluster]| {
            commands(clusters, &[])
                .iter()
                .any(|command| command.contains("liqoctl peer"))
        };
        let mut unpeered = two();
        unpeered[0].virtual_nodes.clear();
        assert_eq!((offered(&two()), offered(&unpeered)), (false, true));
    }

    #[test]
    fn a_broker_has_commands_that_show_where_the_pods_run() {
        let parse = |arguments: &[&str]| {
            let all = [
                &["liqo-playground", "up", "--clusters", "rome,milan,turin"],
                arguments,
            ]
            .concat();
            let Command::Up(up) = Arguments::try_parse_from(all).unwrap().command else {
                unreachable!()
            };
            up
        };
        let [rome, milan] = two();
        let turin = UpCluster {
            name: "turin".into(),
            kubeconfig: "/t".into(),
            ..milan.clone()
        };
        let clusters = [rome, milan, turin];
        assert!(broker_commands(&parse(&[]), &clusters).is_empty());
        let commands = broker_commands(&parse(&["--broker", "milan"]), &clusters);
        assert_eq!(commands[0], "cargo liqoctl --kubeconfig /m broker status");
        assert!(
            commands[1].starts_with("kubectl --kubeconfig /t get pods"),
            "{commands:?}"
        );
    }

    #[test]
    fn six_commands_are_shown_when_a_pod_runs_remotely() {
        let clusters = two();
        let line = |pod: &str, node: &str| DemoPod {
            pod: pod.into(),
            node: node.into(),
            phase: "Running".into(),
            broker_node: None,
            answers: 5,
        };
        let commands = commands(&clusters, &[line("a", "rome-1"), line("b", "milan")]);
        assert_eq!(commands.len(), 6);
        assert!(commands[2].ends_with("logs b"), "{commands:?}");
        assert!(
            commands[4].ends_with("exec a -- wget -qO- http://hello.demo"),
            "{commands:?}"
        );
    }
}
