//! Prepares the test: reads the clusters, creates namespaces, pods and Services, and waits for
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{
        NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Service as ServiceObject,
        ServicePort,
    },
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use liqo_api::conditions::StatusCondition;
use liqo_api::policies::{PolicyPeer, policies_of_peer};
use liqo_api::{
    ClusterConfig, ClusterId, ForeignCluster, PeeringIntent, PeeringPolicy, SYSTEM_NAMESPACE,
    TunnelEndpoint, labels, links,
};
use liqo_network_model::{PeerMaps, There, map::fallback_stand_in, spread::BUCKETS};
use liqo_network_probe::PORT;
use serde_json::json;

use super::{
    NetworkTestOptions,
    setup::{
        AskerKind, HomeView, NetworkTestSetup, ProbedService, Prober, ReportedTunnel, TestedCluster,
    },
};
use crate::{
    cluster::{Cluster, ExplainFailure as _},
    lists,
    offload::OffloadResult,
    probes::{self, ExcludedNode, NamespaceSecurity, ProbeNode, TestNamespaces, pods},
    progress::StepProgress,
    readiness,
    wait::{PollResult, until},
};

/// Prefix of the names of namespaces.
const NAMESPACE: &str = "network-test";
/// Time limit until the pods are ready.
const PODS_TIMEOUT: Duration = Duration::from_mins(2);
/// Time limit until a remote pod that is ready has an address.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit until all `EndpointSlices` are up to date.
const SLICES_TIMEOUT: Duration = Duration::from_secs(30);
/// Pods on each virtual node; the provider decides where they run.
const PODS_ON_VIRTUAL_NODE: usize = 2;

/// A cluster to which the user has access.
pub struct KnownCluster {
    pub cluster: Cluster,
    pub name: String,
    id: ClusterId,
    config: ClusterConfig,
    /// Its virtual nodes that are ready, by provider.
    pub virtual_nodes: BTreeMap<ClusterId, Vec<String>>,
    asleep: BTreeMap<ClusterId, Vec<String>>,
    foreign: BTreeMap<ClusterId, ForeignCluster>,
    endpoints: BTreeMap<ClusterId, TunnelEndpoint>,
    /// The peers that may reach other peers.
    transit: BTreeSet<ClusterId>,
    nodes: Vec<ProbeNode>,
    left_out: Vec<ExcludedNode>,
}

/// The prepared test.
pub struct PreparedTest {
    /// The participants.
    pub setup: NetworkTestSetup,
    /// In the order of the setup's probers.
    pub locations: Vec<ProberLocation>,
}

pub struct ProberLocation {
    /// The cluster whose API server has it.
    pub cluster: Cluster,
    pub namespace: String,
}

/// Reads everything that the test needs to know about a cluster.
pub async fn read_clusters(clusters: &[Cluster]) -> anyhow::Result<Vec<KnownCluster>> {
    let mut all: Vec<KnownCluster> = Vec::new();
    for cluster in clusters {
        let known = read_cluster(cluster)
            .await
            .with_context(|| format!("reading cluster {}", cluster.context))?;
        if all.iter().all(|other| other.id != known.id) {
            all.push(known);
        }
    }
    Ok(all)
}

async fn read_cluster(cluster: &Cluster) -> anyhow::Result<KnownCluster> {
    let installed = cluster.require_installed().await?;
    let nodes = probes::real_virtual_nodes(cluster).await?;
    let (mut virtual_nodes, mut asleep): (BTreeMap<ClusterId, Vec<String>>, BTreeMap<_, Vec<_>>) =
        Default::default();
    for node in nodes {
        let Some(id) = node
            .labels()
            .get(labels::REMOTE_CLUSTER_ID)
            .and_then(|id| id.parse::<ClusterId>().ok())
        else {
            continue;
        };
        if readiness::node(&node) {
            virtual_nodes.entry(id).or_default().push(node.name_any());
        } else {
            asleep.entry(id).or_default().push(node.name_any());
        }
    }
    let foreign = lists::list_peers(cluster).await?;
    let endpoints: Api<TunnelEndpoint> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let endpoints =
        lists::list_selected(&endpoints, &ListParams::default(), "the tunnel endpoints").await?;
    let policies = lists::list_peering_policies(cluster).await?;
    let policies: Vec<Arc<PeeringPolicy>> = policies.into_iter().map(Arc::new).collect();
    let transit = foreign
        .iter()
        .filter(|peer| allows_transit(&policies, peer))
        .map(|peer| peer.spec.cluster_id.clone())
        .collect();
    let status = endpoints
        .iter()
        .filter_map(|endpoint| endpoint.status.as_ref());
    let gateways: Vec<String> = status
        .flat_map(|status| &status.gateways)
        .map(|gateway| gateway.node.clone())
        .collect();
    let nodes = probes::list_probe_nodes(cluster, &gateways).await?;
    Ok(KnownCluster {
        cluster: cluster.clone(),
        name: installed.config.spec.cluster_name.clone(),
        id: installed.id,
        config: installed.config,
        virtual_nodes,
        asleep,
        foreign: foreign
            .into_iter()
            .map(|one| (one.spec.cluster_id.clone(), one))
            .collect(),
        endpoints: endpoints
            .into_iter()
            .map(|one| (one.spec.cluster_id.clone(), one))
            .collect(),
        transit,
        nodes: nodes.ready,
        left_out: nodes.left_out,
    })
}

fn allows_transit(policies: &[Arc<PeeringPolicy>], peer: &ForeignCluster) -> bool {
    let held = policies_of_peer(
        policies,
        &PolicyPeer::new(&peer.spec.cluster_id, Some(peer)),
    );
    held.first()
        .is_some_and(|policy| policy.spec.network.transit)
}

/// The addresses that represent nodes in other clusters.
fn fallback_addresses(config: &ClusterConfig) -> BTreeSet<IpAddr> {
    let external = config
        .status
        .iter()
        .filter_map(|status| status.network.as_ref())
        .flat_map(|network| &network.external);
    external
        .flat_map(|prefix| (0..BUCKETS).map(move |low_bits| fallback_stand_in(prefix, low_bits)))
        .collect()
}

/// Prepares the test of one of these clusters.
pub async fn prepare_test(
    all: &[KnownCluster],
    home: usize,
    options: &NetworkTestOptions,
    namespaces: &TestNamespaces,
    progress: &StepProgress,
) -> anyhow::Result<PreparedTest> {
    let here = &all[home];
    let image = match &options.image {
        Some(image) => image.clone(),
        None => probes::fabric_image(&here.cluster).await?,
    };
    let offloaded = namespaces
        .offloaded_namespace(
            &here.cluster,
            NAMESPACE,
            ready_provider_selector(here),
            PODS_TIMEOUT,
            progress,
        )
        .await?;
    let namespace = &offloaded.namespace;
    let participants = PlacedParticipants::of(all, home);
    let providers = &participants.providers;
    let mut setup = participants.initial_setup(&offloaded);
    let planned = PlannedPods {
        here: answering_pods(here, providers, &setup, options.nodes.into()),
        hosts: host_network_pods(all, home, providers, &setup, options.nodes.into()),
        image,
    };
    let step = format!("Starting {} pods", planned.pod_count());
    let making = async {
        for member in &mut setup.clusters {
            member.service = create_services(
                &here.cluster,
                namespace,
                &member.service.name,
                &service_families(&here.config, member),
            )
            .await?;
        }
        participants
            .start_pods(&planned, namespace, namespaces, |text| {
                progress.message(&step, text);
            })
            .await
    };
    let StartedPods { found, apart } = progress.run_step(&step, making).await?;
    let found = with_addresses(here, namespace, &setup, found, progress).await;
    let mut prepared = PreparedTest {
        setup,
        locations: Vec::new(),
    };
    for pod in &planned.here {
        let prober = participants.prober_in_pod(&prepared.setup, pod, &found);
        prepared.setup.probers.push(prober);
        prepared.locations.push(ProberLocation {
            cluster: here.cluster.clone(),
            namespace: namespace.clone(),
        });
    }
    for (known, pod) in &planned.hosts {
        prepared
            .setup
            .probers
            .push(participants.prober_on_node(*known, pod));
        prepared.locations.push(ProberLocation {
            cluster: all[*known].cluster.clone(),
            namespace: apart[known].clone(),
        });
    }
    let nodes = here.nodes.iter().take(usize::from(options.nodes).max(1));
    prepared.setup.nodes = nodes
        .map(|node| (node.name.clone(), node.address))
        .collect();
    wait_for_slices(all, here, providers, &prepared.setup, progress).await;
    Ok(prepared)
}

/// The pods of a test, before they exist.
struct PlannedPods {
    /// Those of the home cluster's namespace.
    here: Vec<pods::ProbePod>,
    /// Those in the networks of nodes, each with the number of its cluster.
    hosts: Vec<(usize, pods::ProbePod)>,
    image: String,
}

impl PlannedPods {
    fn pod_count(&self) -> usize {
        self.here.len() + self.hosts.len()
    }
}

struct StartedPods {
    /// Those of the home cluster's namespace.
    found: Vec<Pod>,
    /// The namespace of the others in each cluster.
    apart: BTreeMap<usize, String>,
}

/// The clusters that take part in the test of one of them.
struct PlacedParticipants<'a> {
    all: &'a [KnownCluster],
    home: usize,
    providers: Vec<&'a ClusterId>,
}

impl<'a> PlacedParticipants<'a> {
    fn of(all: &'a [KnownCluster], home: usize) -> Self {
        let here = &all[home];
        let asleep = here
            .asleep
            .keys()
            .filter(|id| !here.virtual_nodes.contains_key(*id));
        Self {
            all,
            home,
            providers: here.virtual_nodes.keys().chain(asleep).collect(),
        }
    }

    fn here(&self) -> &'a KnownCluster {
        &self.all[self.home]
    }

    /// The setup without probers: the home cluster and its providers.
    fn initial_setup(&self, offloaded: &OffloadResult) -> NetworkTestSetup {
        let here = self.here();
        let mut setup = NetworkTestSetup {
            clusters: vec![tested_home(here, &offloaded.namespace)],
            ..NetworkTestSetup::default()
        };
        for id in &self.providers {
            let there = self.all.iter().find(|known| known.id == **id);
            let mut member = tested_provider(here, id, there);
            let remote = offloaded
                .remote
                .iter()
                .find(|remote| remote.cluster == member.name);
            member.namespace = remote
                .map(|remote| remote.namespace.clone())
                .unwrap_or_default();
            setup.clusters.push(member);
        }
        for (number, member) in setup.clusters.iter_mut().enumerate() {
            member.service.name = format!("{:.40}-{number}", member.name);
        }
        setup
    }

    /// Creates the pods and waits until they are ready.
    async fn start_pods(
        &self,
        planned: &PlannedPods,
        namespace: &str,
        namespaces: &TestNamespaces,
        news: impl Fn(&str) + Copy,
    ) -> anyhow::Result<StartedPods> {
        let home = &self.here().cluster;
        let image = &planned.image;
        try_join_all(
            planned
                .here
                .iter()
                .map(|pod| pods::create_pod(home, namespace, pod, image)),
        )
        .await?;
        let mut apart: BTreeMap<usize, String> = BTreeMap::new();
        for (known, pod) in &planned.hosts {
            let there = &self.all[*known].cluster;
            if !apart.contains_key(known) {
                let name = format!("{NAMESPACE}-nodes");
                apart.insert(
                    *known,
                    namespaces
                        .create_namespace(there, &name, NamespaceSecurity::Privileged)
                        .await?,
                );
            }
            pods::create_pod(there, &apart[known], pod, image).await?;
        }
        for (known, namespace) in &apart {
            let there = &self.all[*known].cluster;
            pods::wait_for_pods(there, namespace, PODS_TIMEOUT, news, |_| None).await?;
        }
        let found = pods::wait_for_pods(home, namespace, PODS_TIMEOUT, news, |_| None).await?;
        Ok(StartedPods { found, apart })
    }

    /// A prober in a pod of the home cluster, with the addresses that were found.
    fn prober_in_pod(
        &self,
        setup: &NetworkTestSetup,
        pod: &pods::ProbePod,
        found: &[Pod],
    ) -> Prober {
        let made = found.iter().find(|made| made.name_any() == pod.name);
        let cluster = setup
            .clusters
            .iter()
            .position(|member| member.service.name == pod.group)
            .unwrap_or_default();
        let addresses = made.map(pods::addresses_of_pod).unwrap_or_default();
        let provider = cluster
            .checked_sub(1)
            .and_then(|number| self.providers.get(number));
        let behind =
            provider.and_then(|id| view_behind_provider(self.all, self.here(), id, &addresses));
        Prober {
            cluster,
            kind: AskerKind::Pod,
            pod: pod.name.clone(),
            node: pod.node.clone(),
            addresses,
            behind,
        }
    }

    fn prober_on_node(&self, known: usize, pod: &pods::ProbePod) -> Prober {
        let cluster = if known == self.home {
            0
        } else {
            1 + self
                .providers
                .iter()
                .position(|id| **id == self.all[known].id)
                .unwrap_or_default()
        };
        Prober {
            cluster,
            kind: AskerKind::Node,
            pod: pod.name.clone(),
            node: pod.node.clone(),
            addresses: Vec::new(),
            behind: None,
        }
    }
}

/// Waits a little until each cluster with access has all pods of each Service in its
/// `EndpointSlices`.
async fn wait_for_slices(
    all: &[KnownCluster],
    here: &KnownCluster,
    providers: &[&ClusterId],
    setup: &NetworkTestSetup,
    progress: &StepProgress,
) {
    let ids = [&here.id]
        .into_iter()
        .chain(providers.iter().copied())
        .enumerate();
    let locations: Vec<(usize, &Cluster)> = ids
        .filter(|(number, _)| !setup.clusters[*number].namespace.is_empty())
        .filter_map(|(number, id)| {
            let known = all.iter().find(|known| known.id == *id)?;
            Some((number, &known.cluster))
        })
        .collect();
    let step = "Waiting for the EndpointSlices";
    progress.start_step(step);
    match until(
        "all pods are in EndpointSlices",
        SLICES_TIMEOUT,
        |text| progress.message(step, text),
        || poll_slices(setup, &locations),
    )
    .await
    {
        Ok(()) => progress.finish_step(step),
        // The questions show what is missing.
        Err(_) => progress.fail_step(step),
    }
}

async fn poll_slices(
    setup: &NetworkTestSetup,
    locations: &[(usize, &Cluster)],
) -> anyhow::Result<PollResult<()>> {
    for (number, cluster) in locations {
        let member = &setup.clusters[*number];
        let api: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), &member.namespace);
        // What cannot be read is not waited for.
        let Ok(slices) = api.list(&ListParams::default()).await else {
            continue;
        };
        if let Some(missing) = unpublished_pod(setup, *number, &slices.items) {
            return Ok(PollResult::NotYet(format!(
                "{} does not know {missing} yet",
                member.name
            )));
        }
    }
    Ok(PollResult::Done(()))
}

/// A pod that is not in the `EndpointSlices` of its Services, as they are in one cluster.
pub fn unpublished_pod(
    setup: &NetworkTestSetup,
    cluster: usize,
    slices: &[EndpointSlice],
) -> Option<String> {
    let mut ready: BTreeSet<(&str, IpAddr)> = BTreeSet::new();
    for slice in slices {
        let Some(service) = slice.labels().get("kubernetes.io/service-name") else {
            continue;
        };
        let those = slice.endpoints.iter().filter(|one| {
            one.conditions
                .as_ref()
                .is_none_or(|conditions| conditions.ready != Some(false))
        });
        let addresses = those
            .flat_map(|one| &one.addresses)
            .filter_map(|address| address.parse().ok());
        ready.extend(addresses.map(|address| (service.as_str(), address)));
    }
    let mut all = setup.probers.iter().flat_map(|prober| {
        setup
            .in_services(prober, &setup.clusters[cluster].sees)
            .into_iter()
            .map(move |address| (prober, address))
    });
    all.find_map(|(prober, address)| {
        let service = &setup.clusters[prober.cluster].service.name;
        let each = format!("{service}-each");
        let is_known = [service, &each]
            .iter()
            .all(|name| ready.contains(&(name.as_str(), address)));
        (!is_known).then(|| prober.pod.clone())
    })
}

/// Waits a little until remote pods have their addresses here; without a network they have none.
async fn with_addresses(
    here: &KnownCluster,
    namespace: &str,
    setup: &NetworkTestSetup,
    found: Vec<Pod>,
    progress: &StepProgress,
) -> Vec<Pod> {
    let networked: Vec<&str> = setup
        .clusters
        .iter()
        .filter(|member| matches!(member.sees, HomeView::Itself | HomeView::By(_)))
        .map(|member| member.service.name.as_str())
        .collect();
    if found
        .iter()
        .all(|pod| reason_without_address(pod, &networked).is_none())
    {
        return found;
    }
    let step = "Waiting for the addresses of remote pods";
    progress.start_step(step);
    let addressed = pods::wait_for_pods(
        &here.cluster,
        namespace,
        ADDRESS_TIMEOUT,
        |text| progress.message(step, text),
        |pod| reason_without_address(pod, &networked),
    );
    if let Ok(found) = addressed.await {
        progress.finish_step(step);
        return found;
    }
    // The questions show the failure.
    progress.fail_step(step);
    found
}

fn reason_without_address(pod: &Pod, networked: &[&str]) -> Option<String> {
    let group = pod
        .labels()
        .get("group")
        .map(String::as_str)
        .unwrap_or_default();
    (networked.contains(&group) && pods::addresses_of_pod(pod).is_empty())
        .then(|| "it has no address here yet".to_owned())
}

/// Selects only providers with ready nodes, because otherwise the namespace would never be ready.
fn ready_provider_selector(here: &KnownCluster) -> Option<NodeSelector> {
    let expression = NodeSelectorRequirement {
        key: labels::REMOTE_CLUSTER_ID.to_owned(),
        operator: "In".to_owned(),
        values: Some(here.virtual_nodes.keys().map(ToString::to_string).collect()),
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(vec![expression]),
        match_fields: None,
    };
    (!here.asleep.is_empty()).then(|| NodeSelector {
        node_selector_terms: vec![term],
    })
}

fn tested_home(here: &KnownCluster, namespace: &str) -> TestedCluster {
    TestedCluster {
        name: here.name.clone(),
        namespace: namespace.to_owned(),
        sees: HomeView::Itself,
        fallback_addresses: fallback_addresses(&here.config),
        service: ProbedService::default(),
        transit: false,
        left_out: here.left_out.clone(),
        tunnel: None,
    }
}

fn tested_provider(
    here: &KnownCluster,
    id: &ClusterId,
    there: Option<&KnownCluster>,
) -> TestedCluster {
    let foreign = here.foreign.get(id);
    let name = foreign.map_or_else(|| id.short_id().to_string(), ForeignCluster::display_name);
    let endpoint = here.endpoints.get(id);
    let sees = match (here.virtual_nodes.contains_key(id), endpoint) {
        (false, _) => HomeView::Nothing(format!(
            "the virtual node of {name} is not ready: see `liqoctl status`"
        )),
        (true, Some(endpoint)) => match PeerMaps::try_from(&endpoint.spec) {
            Ok(maps) => HomeView::By(maps),
            Err(error) => {
                HomeView::Nothing(format!("the prefixes of {name} are not valid: {error}"))
            }
        },
        (true, None) => no_network(&here.name, &name, foreign),
    };
    let fallback_addresses = match (&sees, there) {
        (HomeView::By(maps), Some(there)) => {
            let all = fallback_addresses(&there.config).into_iter();
            all.filter_map(|address| maps.imported.to_here(There(address)))
                .map(|here| here.0)
                .collect()
        }
        _ => BTreeSet::new(),
    };
    let tunnel = endpoint.map(|endpoint| {
        let connected = endpoint.connected_condition();
        ReportedTunnel {
            works: connected.is_some_and(StatusCondition::is_true),
            reason: connected.map_or_else(
                || "Unknown".to_owned(),
                |condition| condition.reason.clone(),
            ),
            message: connected.map_or_else(
                || "no gateway has reported anything".to_owned(),
                |condition| condition.message.clone(),
            ),
            gateway: endpoint
                .status
                .as_ref()
                .and_then(|status| status.gateway.clone()),
            mtu: endpoint.spec.mtu,
        }
    });
    let mut left_out = there
        .map(|there| there.left_out.clone())
        .unwrap_or_default();
    // If all are not Ready, this is why nothing can be asked.
    if here.virtual_nodes.contains_key(id) {
        let asleep = here.asleep.get(id).into_iter().flatten();
        left_out.extend(asleep.map(|node| ExcludedNode {
            node: node.clone(),
            why: format!(
                "it is the virtual node of {name} in {}, and not Ready",
                here.name
            ),
        }));
    }
    let transit = here.transit.contains(id);
    TestedCluster {
        name,
        namespace: String::new(),
        sees,
        fallback_addresses,
        service: ProbedService::default(),
        transit,
        left_out,
        tunnel,
    }
}

/// The view of home from a cluster behind a provider, if a pod with these addresses runs there.
/// Each cluster on the way knows the next one's view.
fn view_behind_provider(
    all: &[KnownCluster],
    here: &KnownCluster,
    provider: &ClusterId,
    addresses: &[IpAddr],
) -> Option<HomeView> {
    let spec = &here.endpoints.get(provider)?.spec;
    let (_, way) = spec.behind.iter().find(|(there, _)| {
        let here = spec.imported.get(*there);
        here.is_some_and(|here| addresses.iter().any(|address| here.contains(address)))
    })?;
    let mut maps = PeerMaps::try_from(spec).ok()?;
    let mut at = provider;
    for next in way.iter().rev() {
        let known = all.iter().find(|known| known.id == *at);
        let step =
            known.and_then(|known| PeerMaps::try_from(&known.endpoints.get(next)?.spec).ok());
        let Some(step) = step else {
            return Some(HomeView::Nothing(format!(
                "pods run in cluster {} behind {}, and only the latter knows how that sees {}: give access to it with --remote-kubeconfig",
                next.short_id(),
                known.map_or_else(|| at.short_id().to_owned(), |known| known.name.clone()),
                here.name
            )));
        };
        maps = maps.followed_by(&step);
        at = next;
    }
    Some(HomeView::By(maps))
}

/// Reason why there is no network to a provider.
fn no_network(home: &str, name: &str, foreign: Option<&ForeignCluster>) -> HomeView {
    let off = HomeView::Unwanted(format!(
        "the network between {home} and {name} is switched off (spec.network of the ForeignCluster, or its policy)"
    ));
    let Some(foreign) = foreign.filter(|foreign| foreign.spec.network != PeeringIntent::No) else {
        return off;
    };
    let conditions = foreign
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    match conditions
        .iter()
        .find(|condition| condition.type_ == links::NETWORK_AGREED)
    {
        Some(agreed) => HomeView::Nothing(format!(
            "{home} and {name} do not agree: {}: {}",
            agreed.reason, agreed.message
        )),
        None => off,
    }
}

/// The pods that answer: one on each node of home, some on each virtual one.
fn answering_pods(
    here: &KnownCluster,
    providers: &[&ClusterId],
    setup: &NetworkTestSetup,
    most: usize,
) -> Vec<pods::ProbePod> {
    let mut all = Vec::new();
    for node in here.nodes.iter().take(most.max(1)) {
        all.push(answering_pod(&all, &setup.clusters[0], &node.name));
    }
    for (number, id) in providers.iter().enumerate() {
        for node in here.virtual_nodes.get(*id).into_iter().flatten() {
            for _ in 0..PODS_ON_VIRTUAL_NODE {
                all.push(pods::ProbePod {
                    is_virtual: true,
                    ..answering_pod(&all, &setup.clusters[number + 1], node)
                });
            }
        }
    }
    all
}

/// The next pod of a cluster that answers, on a real node.
fn answering_pod(others: &[pods::ProbePod], cluster: &TestedCluster, node: &str) -> pods::ProbePod {
    let group = cluster.service.name.clone();
    let count = others.iter().filter(|pod| pod.group == group).count();
    pods::ProbePod {
        name: format!("{group}-{count}"),
        node: node.to_owned(),
        is_virtual: false,
        host_network: false,
        role: pods::ProbePodRole::Serve,
        group,
    }
}

/// The pods in the network of nodes, in each cluster with access.
fn host_network_pods(
    all: &[KnownCluster],
    home: usize,
    providers: &[&ClusterId],
    setup: &NetworkTestSetup,
    most: usize,
) -> Vec<(usize, pods::ProbePod)> {
    let mut wanted = Vec::new();
    for (number, known) in all
        .iter()
        .enumerate()
        .filter(|(number, known)| *number == home || providers.contains(&&known.id))
    {
        for (place, node) in known.nodes.iter().take(most.max(1)).enumerate() {
            let group = format!("{:.40}-node", known.name);
            let pod = pods::ProbePod {
                name: format!("{group}-{place}"),
                node: node.name.clone(),
                is_virtual: false,
                host_network: true,
                role: pods::ProbePodRole::Wait,
                group,
            };
            wanted.push((number, pod));
        }
    }
    // Without a network, nodes have nobody to ask.
    wanted.retain(|(number, _)| *number == home || setup.clusters.len() > 1);
    wanted
}

/// The address families for the Services of a cluster's pods: those that home has for Services and
/// shares with the cluster.
fn service_families(config: &ClusterConfig, member: &TestedCluster) -> serde_json::Value {
    let ranges = config
        .status
        .iter()
        .filter_map(|status| status.network.as_ref())
        .flat_map(|network| &network.services);
    let own: BTreeSet<bool> = ranges.map(|range| range.addr().is_ipv4()).collect();
    let wanted: Vec<bool> = own
        .iter()
        .copied()
        .filter(|is_ipv4| member.shares_family(*is_ipv4))
        .collect();
    match wanted.as_slice() {
        [_, _] => json!({ "ipFamilyPolicy": "PreferDualStack" }),
        [one] if own.len() > 1 => json!({ "ipFamilies": [if *one { "IPv4" } else { "IPv6" }] }),
        _ => json!({}),
    }
}

/// Creates a Service with node ports, and a headless one, with these address families.
async fn create_services(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    families: &serde_json::Value,
) -> anyhow::Result<ProbedService> {
    let api: Api<ServiceObject> = Api::namespaced(cluster.client.clone(), namespace);
    let selector = json!({ "group": name });
    let each = service_object(
        &format!("{name}-each"),
        families,
        &json!({ "clusterIP": "None", "selector": selector }),
    )?;
    api.create(&PostParams::default(), &each)
        .await
        .doing(format!("create Service {name}-each"))?;
    let one = service_object(
        name,
        families,
        &json!({ "type": "NodePort", "selector": selector }),
    )?;
    let made = api
        .create(&PostParams::default(), &one)
        .await
        .doing(format!("create Service {name}"))?;
    let spec = made.spec.unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    Ok(ProbedService {
        name: name.to_owned(),
        addresses: spec
            .cluster_ips
            .unwrap_or_default()
            .iter()
            .filter_map(|address| address.parse().ok())
            .collect(),
        node_ports: node_port_of(&ports, "TCP").zip(node_port_of(&ports, "UDP")),
    })
}

fn node_port_of(ports: &[ServicePort], protocol: &str) -> Option<u16> {
    let port = ports
        .iter()
        .find(|port| port.protocol.as_deref() == Some(protocol))?;
    u16::try_from(port.node_port?).ok()
}

fn service_object(
    name: &str,
    families: &serde_json::Value,
    spec: &serde_json::Value,
) -> serde_json::Result<ServiceObject> {
    let mut object = json!({ "metadata": { "name": name }, "spec": families });
    object["spec"]["ports"] = json!([service_port("TCP"), service_port("UDP")]);
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    serde_json::from_value(object)
}

fn service_port(protocol: &str) -> serde_json::Value {
    json!({ "name": protocol.to_lowercase(), "port": PORT, "protocol": protocol })
}
