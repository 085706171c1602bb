//! `liqoctl peer`: borrow from another cluster.
//!
//! The command reads the other cluster's ID, the URL of its auth endpoint and a token with its
//! kubeconfig, or takes them from a command that was generated there. It writes them into a
//! `ForeignCluster` here. The controllers do the rest, and this module shows their progress link by
//! link.

mod wait;

use std::{collections::BTreeMap, iter, str::FromStr, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use liqo_api::conditions::StatusCondition;
use liqo_api::{
    ADDRESSES_KNOWN, AuthenticatedReason, ClusterConfigStatus, ClusterId, ForeignCluster,
    GatewayAddress, PeeringIntent, Quantity, Reach, RequestedGranularity, RequestedResources,
    ResourceList, TunnelEndpoint, TunnelEndpointSpec, links,
};
use liqo_quantity::{ResourceArgument, ResourceArgumentError};
use serde::Serialize;
use serde_json::json;

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, ExplainFailure as _, InstalledLiqo},
    kept_addresses::KeepableRanges,
    lists,
    manifests::NAMESPACE,
    output::strip_control_characters,
    progress::StepProgress,
    settings::{host_of_url, means_this_machine},
    token::{self, TokenUse},
    unpeer,
    wait::{PollResult, until},
};

/// Lifetime of a token for one peering.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// The cluster to borrow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeeringTarget {
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    /// URL of its auth endpoint.
    pub auth_url: String,
    /// Its gateways, if it is reached through its tunnel.
    pub tunnel: Vec<GatewayAddress>,
}

impl PeeringTarget {
    /// Reads the target from its own cluster.
    pub async fn of_cluster(cluster: &Cluster) -> anyhow::Result<Self> {
        Self::from_installed(cluster.require_installed().await?)
            .with_context(|| format!("cannot borrow from cluster {} yet", cluster.context))
    }

    fn from_installed(installed: InstalledLiqo) -> anyhow::Result<Self> {
        let status = installed.config.status.unwrap_or_default();
        let auth_url = usable_address(
            status.auth_url.as_deref(),
            &status,
            "authentication.address",
            "the auth endpoint",
        )?;
        usable_address(
            status.api_server_url.as_deref(),
            &status,
            "apiServer.address",
            "the API server",
        )?;
        Ok(Self {
            cluster_id: installed.id,
            cluster_name: installed.config.spec.cluster_name,
            auth_url,
            tunnel: Vec::new(),
        })
    }
}

/// An address that another cluster can call; the error names the flag to set there.
fn usable_address(
    url: Option<&str>,
    status: &ClusterConfigStatus,
    flag: &str,
    what: &str,
) -> anyhow::Result<String> {
    let remedy = format!(
        "run `liqoctl install --set {flag}=https://ADDRESS:PORT` there, with an address that this cluster can reach"
    );
    match url {
        Some(url) if means_this_machine(host_of_url(url)) => {
            bail!(
                "its address of {what} is {url}, which only the machine itself can reach: {remedy}"
            )
        }
        Some(url) => Ok(url.to_owned()),
        None => match status
            .conditions
            .iter()
            .find(|condition| condition.type_ == ADDRESSES_KNOWN && condition.status != "True")
        {
            Some(condition) => bail!("its addresses are not known: {}", condition.message),
            None => bail!("it does not announce the address of {what}: {remedy}"),
        },
    }
}

/// Where the target and the token come from.
#[derive(Clone)]
pub enum PeeringSource {
    /// The other cluster itself.
    Remote(Cluster),
    /// The arguments from a command that was generated there.
    Invitation {
        target: PeeringTarget,
        /// The token; not needed if the peer granted access before.
        token: Option<String>,
    },
}

impl PeeringSource {
    /// The ID of the other cluster, if it is known.
    pub async fn cluster_id(&self) -> anyhow::Result<Option<ClusterId>> {
        match self {
            Self::Remote(cluster) => Ok(cluster
                .read_configuration()
                .await?
                .and_then(|config| config.status?.cluster_id)),
            Self::Invitation { target, .. } => Ok(Some(target.cluster_id.clone())),
        }
    }
}

/// The request in the command line.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestArguments {
    /// Nothing: the earlier request stays.
    AsBefore,
    /// New limits for these resources; the limits of others stay.
    Limits(Vec<LimitArgument>),
    /// Everything that the peer offers.
    Everything,
    NetworkOnly,
}

/// Which pools to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PoolGranularity {
    /// One pool for each node of the peer, if its policy lets its peers choose
    Node,
    /// The pools that the policy of the peer forms
    Policy,
}

/// How much of a resource to request at most: `nvidia.com/gpu=1`, or `none` for no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitArgument {
    pub resource: String,
    /// Nothing for no limit.
    pub amount: Option<Quantity>,
}

impl LimitArgument {
    /// The limit of this resource.
    pub fn new(resource: &str, amount: &str) -> Result<Self, ResourceArgumentError> {
        let is_none = amount.eq_ignore_ascii_case("none");
        // An amount checks the name of the resource, too.
        let (resource, amount) =
            ResourceArgument::new(resource, if is_none { "0" } else { amount })?.into_parts();
        Ok(Self {
            resource,
            amount: (!is_none).then_some(amount),
        })
    }
}

impl FromStr for LimitArgument {
    type Err = ResourceArgumentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.rsplit_once('=') {
            Some((resource, amount)) if amount.eq_ignore_ascii_case("none") => {
                Self::new(resource, amount)
            }
            _ => {
                let (resource, amount) = text.parse::<ResourceArgument>()?.into_parts();
                Ok(Self {
                    resource,
                    amount: Some(amount),
                })
            }
        }
    }
}

impl RequestArguments {
    /// The new request. Limits survive a time without resources.
    fn requested_after(&self, before: Option<&RequestedResources>) -> RequestedResources {
        let before = before.cloned().unwrap_or_default();
        match self {
            Self::AsBefore => before,
            Self::Limits(limits) => {
                let mut resources = before.resources;
                for LimitArgument { resource, amount } in limits {
                    match amount {
                        Some(amount) => drop(resources.insert(resource, *amount)),
                        None => drop(resources.remove(resource)),
                    }
                }
                RequestedResources {
                    resources,
                    network_only: false,
                    ..before
                }
            }
            Self::Everything => RequestedResources {
                granularity: before.granularity,
                ..RequestedResources::default()
            },
            Self::NetworkOnly => RequestedResources {
                network_only: true,
                ..before
            },
        }
    }
}

/// The request, and the limit of the wait.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Name of the `ForeignCluster`; nothing for the other cluster's name.
    pub name: Option<String>,
    /// The amounts to request.
    pub request: RequestArguments,
    /// Which pools to request; nothing for the same as before.
    pub granularity: Option<PoolGranularity>,
    /// Time limit until the virtual node, or the tunnel, works.
    pub timeout: Duration,
    /// Whether to wait at all.
    pub wait: bool,
}

/// The resulting peering.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeeringResult {
    /// Name of the `ForeignCluster`.
    pub name: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Its virtual nodes; none if the command did not wait, or requests no resources.
    pub nodes: Vec<PeeredNode>,
    /// Why there is not one pool for each node, although this cluster requests that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_pools: Option<String>,
    /// The network, if the peering is only for the network and the command waited for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<PeeredNetwork>,
    /// Ranges that could keep their addresses in the other cluster, if a policy said so.
    #[serde(flatten)]
    pub keepable: KeepableRanges,
    /// Whether the peering existed before with another request.
    pub changed: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeeredNode {
    /// Name of the Node.
    pub name: String,
    pub resources: ResourceList,
}

/// The network to a peer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeeredNetwork {
    /// The peer's prefixes, and what they are mapped to here.
    pub prefixes: BTreeMap<IpNet, IpNet>,
    /// The part of this cluster to which the peer may open connections.
    pub reach: Reach,
}

impl PeerOptions {
    /// The new request.
    fn request_after(
        &self,
        before: Option<&RequestedResources>,
    ) -> anyhow::Result<RequestedResources> {
        let mut request = self.request.requested_after(before);
        match self.granularity {
            Some(_) if request.network_only => {
                bail!(
                    "--granularity has no effect, because this peering is for the network alone: add --everything, or limits such as --cpu"
                )
            }
            Some(PoolGranularity::Node) => request.granularity = Some(RequestedGranularity::Node),
            Some(PoolGranularity::Policy) => request.granularity = None,
            None => {}
        }
        Ok(request)
    }
}

impl PeeringSource {
    async fn peering_target(&self) -> anyhow::Result<PeeringTarget> {
        match self {
            Self::Remote(remote) => PeeringTarget::of_cluster(remote).await,
            Self::Invitation { target, .. } => Ok(target.clone()),
        }
    }
}

/// The question to ask before giving back resources; nothing if no pod ends with that.
pub async fn question_before_peering(
    cluster: &Cluster,
    source: &PeeringSource,
    options: &PeerOptions,
) -> anyhow::Result<Option<String>> {
    if options.request != RequestArguments::NetworkOnly {
        return Ok(None);
    }
    let target = source.peering_target().await?;
    let lost = unpeer::describe_lost_pods(cluster, &target.cluster_id).await?;
    Ok(lost.map(|lost| {
        format!(
            "This gives back what is borrowed from {}{lost}. Continue?",
            target.cluster_name
        )
    }))
}

/// The known clusters, once an earlier peering with this one has ended.
async fn known_clusters(
    cluster: &Cluster,
    target: &PeeringTarget,
    options: &PeerOptions,
    progress: &StepProgress,
) -> anyhow::Result<Vec<ForeignCluster>> {
    let known = lists::list_peers(cluster).await?;
    if !is_peering_ending(&known, &target.cluster_id) {
        return Ok(known);
    }
    if !options.wait {
        bail!(
            "an earlier peering with {} is still ending: try again in some seconds",
            target.cluster_name
        );
    }
    let step = format!(
        "Waiting until the earlier peering with {} has ended",
        target.cluster_name
    );
    let what = format!("the earlier peering with {} has ended", target.cluster_name);
    let ended = until(
        &what,
        options.timeout,
        |text| progress.message(&step, text),
        || async {
            let known = lists::list_peers(cluster).await?;
            Ok(if is_peering_ending(&known, &target.cluster_id) {
                PollResult::NotYet("it is still ending".to_owned())
            } else {
                PollResult::Done(known)
            })
        },
    );
    progress.run_step(&step, ended).await
}

fn is_peering_ending(known: &[ForeignCluster], id: &ClusterId) -> bool {
    known.iter().any(|foreign| {
        foreign.spec.cluster_id == *id && foreign.metadata.deletion_timestamp.is_some()
    })
}

/// Peers, or changes the request to a peer.
pub async fn peer_and_wait(
    cluster: &Cluster,
    source: PeeringSource,
    options: &PeerOptions,
    progress: &StepProgress,
) -> anyhow::Result<PeeringResult> {
    let own = cluster.require_installed().await?;
    let target = source.peering_target().await?;
    if target.cluster_id == own.id {
        bail!(
            "both kubeconfigs belong to the same cluster ({}): a cluster cannot borrow from itself",
            own.config.spec.cluster_name
        );
    }
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let known = known_clusters(cluster, &target, options, progress).await?;
    let present = known
        .iter()
        .find(|foreign| foreign.spec.cluster_id == target.cluster_id);
    let name = choose_name(&known, options.name.as_deref(), &target)?;
    let before = present.map(|foreign| foreign.spec.request.clone());
    let request = options.request_after(before.as_ref())?;
    if request.network_only {
        let there = match &source {
            PeeringSource::Remote(remote) => remote.has_network().await?,
            PeeringSource::Invitation { .. } => true,
        };
        network_can_be(
            own.config.spec.network.enabled,
            there,
            &target.cluster_name,
            present,
        )?;
    }
    let token = needed_token(&source, present, &own.id, progress).await?;
    let token_secret = match &token {
        Some(token) => {
            let secret =
                token::secret_with_token(&format!("peer-{}", target.cluster_id), token, None, None);
            token::store_secret(cluster, &secret).await?;
            Some(secret.name_any())
        }
        None => None,
    };
    write_foreign_cluster(&api, &name, &target, &request, token_secret.as_deref()).await?;
    let waited = if options.wait {
        wait_until_usable(cluster, &name, &target, &request, options.timeout, progress).await
    } else {
        Ok(UsablePeer::default())
    };
    let usable = match waited {
        Ok(usable) => usable,
        Err(error) => {
            let rest =
                clean_up_after_failure(cluster, &name, present.is_none(), token_secret.as_deref())
                    .await;
            return Err(anyhow!("{error:#}. {rest}"));
        }
    };
    let changed = present.is_some_and(is_granted) && before.as_ref() != Some(&request);
    let keepable = if options.wait {
        keepable_ranges(cluster, &own, &source, &target).await
    } else {
        KeepableRanges::default()
    };
    Ok(PeeringResult {
        name,
        cluster_id: target.cluster_id,
        nodes: usable.nodes,
        other_pools: usable.other_pools,
        network: usable.network,
        keepable,
        changed,
    })
}

/// The token that the other cluster expects; none if it let this cluster in already.
async fn needed_token(
    source: &PeeringSource,
    present: Option<&ForeignCluster>,
    consumer: &ClusterId,
    progress: &StepProgress,
) -> anyhow::Result<Option<String>> {
    if present.is_some_and(is_granted) {
        return Ok(None);
    }
    match source {
        PeeringSource::Remote(remote) => progress
            .run_step(
                "Creating a token in the other cluster",
                one_time_token(remote, consumer),
            )
            .await
            .map(Some),
        PeeringSource::Invitation { token, .. } => Ok(token.clone()),
    }
}

async fn write_foreign_cluster(
    api: &Api<ForeignCluster>,
    name: &str,
    target: &PeeringTarget,
    request: &RequestedResources,
    token_secret: Option<&str>,
) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": { "name": name },
        "spec": {
            "clusterID": target.cluster_id,
            "clusterName": target.cluster_name,
            "authURL": target.auth_url,
            "tunnel": (!target.tunnel.is_empty()).then_some(&target.tunnel),
            "outgoingPeering": PeeringIntent::Yes,
            "request": stated_request(request),
            "tokenSecretName": token_secret,
        },
    });
    let written = api
        .patch(
            name,
            &PatchParams::apply(FIELD_MANAGER).force(),
            &Patch::Apply(without_nulls(object)),
        )
        .await
        .doing(format!("write ForeignCluster {name}"))?;
    if let Some(correction) = request_correction(&written.spec.request, request) {
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        api.patch(name, &parameters, &Patch::Merge(correction))
            .await
            .doing(format!("write ForeignCluster {name}"))?;
    }
    Ok(())
}

/// The part of a peer that can be used once the wait is over.
#[derive(Default)]
struct UsablePeer {
    nodes: Vec<PeeredNode>,
    network: Option<PeeredNetwork>,
    other_pools: Option<String>,
}

/// Waits for the network if only that is requested, else for the virtual nodes.
async fn wait_until_usable(
    cluster: &Cluster,
    name: &str,
    target: &PeeringTarget,
    request: &RequestedResources,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<UsablePeer> {
    if request.network_only {
        let network = wait::network_is_ready(cluster, name, target, timeout, progress).await?;
        return Ok(UsablePeer {
            network: Some(network),
            ..UsablePeer::default()
        });
    }
    let nodes = wait::nodes_are_ready(cluster, name, target, timeout, progress).await?;
    let other_pools = if request.granularity.is_some() {
        wait::other_pools(cluster, name, progress).await
    } else {
        None
    };
    Ok(UsablePeer {
        nodes,
        network: None,
        other_pools,
    })
}

/// Ranges that could keep their addresses in the other cluster. The network may come after the
/// virtual node: then `status` tells it.
async fn keepable_ranges(
    cluster: &Cluster,
    own: &InstalledLiqo,
    source: &PeeringSource,
    target: &PeeringTarget,
) -> KeepableRanges {
    let Some(tunnel) = tunnel_to(cluster, &target.cluster_id).await else {
        return KeepableRanges::default();
    };
    let ranges = own
        .config
        .status
        .as_ref()
        .and_then(|status| status.network.clone())
        .unwrap_or_default();
    let known = KeepableRanges::as_known_here(&ranges, &tunnel);
    let PeeringSource::Remote(remote) = source else {
        return known;
    };
    match tunnel_to(remote, &own.id).await {
        Some(at_peer) => known.confirmed_by_peer(&at_peer),
        None => known,
    }
}

async fn tunnel_to(cluster: &Cluster, peer: &ClusterId) -> Option<TunnelEndpointSpec> {
    let endpoints: Api<TunnelEndpoint> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    endpoints
        .get_opt(peer.as_str())
        .await
        .ok()
        .flatten()
        .map(|found| found.spec)
}

/// Lines about addresses that could stay.
fn addresses_that_could_stay(peered: &PeeringResult) -> Vec<String> {
    let sentences = peered.keepable.sentences(&peered.name).into_iter();
    match peered.keepable.summary() {
        Some(summary) => iter::once(format!("{}:", capitalized(summary)))
            .chain(sentences.map(|one| format!("- {one}.")))
            .collect(),
        None => sentences
            .map(|one| format!("{}.", capitalized(&one)))
            .collect(),
    }
}

fn capitalized(sentence: &str) -> String {
    let mut rest = sentence.chars();
    rest.next()
        .map(|first| first.to_uppercase().chain(rest).collect())
        .unwrap_or_default()
}

/// Removes what a failed command created, if the peer never let this cluster in. Returns a sentence
/// about what is left.
async fn clean_up_after_failure(
    cluster: &Cluster,
    name: &str,
    is_new: bool,
    token_secret: Option<&str>,
) -> String {
    let clusters: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let foreign = clusters.get_opt(name).await.ok().flatten();
    if is_new && foreign.as_ref().is_some_and(was_never_admitted) {
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        if let Some(secret) = token_secret {
            // A token that stays is overwritten by the next try.
            let _ = secrets.delete(secret, &DeleteParams::default()).await;
        }
        if clusters
            .delete(name, &DeleteParams::background())
            .await
            .is_ok()
        {
            return format!("ForeignCluster {name}, which this command created, is removed again");
        }
    }
    format!(
        "ForeignCluster {name} stays, and the controllers keep trying: see `liqoctl status`, or end it with `liqoctl unpeer {name}`"
    )
}

/// Whether there is nothing to keep: no access was granted, and nobody has to decide on it.
fn was_never_admitted(foreign: &ForeignCluster) -> bool {
    foreign
        .condition(links::AUTHENTICATED)
        .is_none_or(|condition| {
            condition.status != "True"
                && condition.reason != AuthenticatedReason::PendingApproval.as_str()
        })
}

/// Whether the peer granted access before; then no token is needed.
fn is_granted(foreign: &ForeignCluster) -> bool {
    foreign.wants_outgoing()
        && foreign
            .condition(links::AUTHENTICATED)
            .is_some_and(StatusCondition::is_true)
}

/// An error if it is already clear that there will be no network with the peer.
fn network_can_be(
    here: bool,
    there: bool,
    peer: &str,
    present: Option<&ForeignCluster>,
) -> anyhow::Result<()> {
    let remedy = "`liqoctl install --set network.enabled=true`";
    if !here {
        bail!("you requested only the network, which is switched off in this cluster: {remedy}");
    }
    if !there {
        bail!("you requested only the network, which is switched off in {peer}: {remedy} there");
    }
    if let Some(foreign) = present.filter(|foreign| foreign.spec.network == PeeringIntent::No) {
        let name = foreign.name_any();
        bail!(
            "you requested only the network, but spec.network of ForeignCluster {name} is No: \
             `kubectl patch foreigncluster {name} --type merge --patch '{{\"spec\":{{\"network\":\"Auto\"}}}}'`"
        );
    }
    Ok(())
}

/// The part of the request to apply: fields that are not set keep the value of another field
/// manager.
fn stated_request(request: &RequestedResources) -> serde_json::Value {
    let mut said = json!(request);
    said["networkOnly"] = json!(request.network_only);
    said
}

/// A patch that removes fields after the request was applied: leaving out fields that another field
/// manager set does not remove them.
fn request_correction(
    written: &RequestedResources,
    wanted: &RequestedResources,
) -> Option<serde_json::Value> {
    let foreign = written
        .resources
        .names()
        .filter(|name| !wanted.resources.contains(name));
    let nulls: serde_json::Map<String, serde_json::Value> =
        foreign.map(|name| (name.to_owned(), json!(null))).collect();
    let mut request = serde_json::Map::new();
    if !nulls.is_empty() {
        request.insert("resources".to_owned(), nulls.into());
    }
    if written.granularity.is_some() && wanted.granularity.is_none() {
        request.insert("granularity".to_owned(), json!(null));
    }
    (!request.is_empty()).then(|| json!({ "spec": { "request": request } }))
}

/// The existing name of the peer here, or the wanted one, or its own, unique with its ID if
/// necessary.
fn choose_name(
    known: &[ForeignCluster],
    wanted: Option<&str>,
    target: &PeeringTarget,
) -> anyhow::Result<String> {
    if let Some(present) = known
        .iter()
        .find(|foreign| foreign.spec.cluster_id == target.cluster_id)
    {
        let name = present.name_any();
        return match wanted {
            Some(wanted) if wanted != name => {
                bail!("the name of this peer is already {name}: remove --name")
            }
            _ => Ok(name),
        };
    }
    match wanted {
        Some(wanted) if is_name_taken(known, wanted) => {
            bail!("another peer has the name {wanted}: choose another --name")
        }
        Some(wanted) => Ok(wanted.to_owned()),
        None if !is_name_taken(known, &target.cluster_name)
            && target.cluster_name.parse::<ClusterId>().is_err() =>
        {
            Ok(target.cluster_name.clone())
        }
        None => {
            let base: String = target.cluster_name.chars().take(56).collect();
            Ok(format!(
                "{}-{}",
                base.trim_end_matches('-'),
                target.cluster_id.short_id()
            ))
        }
    }
}

fn is_name_taken(known: &[ForeignCluster], name: &str) -> bool {
    known.iter().any(|foreign| foreign.name_any() == name)
}

async fn one_time_token(remote: &Cluster, consumer: &ClusterId) -> anyhow::Result<String> {
    let token = token::random_token()?;
    let expires_at = Timestamp::now().checked_add(TOKEN_LIFETIME)?;
    // One Secret for each consumer, so that repeated tries leave only one token.
    token::store_secret(
        remote,
        &token::secret_with_token(
            &format!("peer-{consumer}"),
            &token,
            Some(TokenUse::OneTime),
            Some(expires_at),
        ),
    )
    .await?;
    token::remove_expired_tokens(remote, Timestamp::now()).await?;
    Ok(token)
}

/// Removes empty fields, so that server-side apply gives them up instead of setting them to null.
fn without_nulls(mut value: serde_json::Value) -> serde_json::Value {
    if let Some(object) = value.get_mut("spec").and_then(|spec| spec.as_object_mut()) {
        object.retain(|_, value| !value.is_null());
    }
    value
}

/// The result as text for people.
pub fn render_peering_result(peered: &PeeringResult) -> String {
    if let Some(network) = &peered.network {
        let prefixes = network
            .prefixes
            .iter()
            .map(|(there, here)| format!("Pods and nodes of {there} are mapped here to {here}."));
        let reach = match network.reach {
            Reach::Pods => "The peer reaches all pods of this cluster.",
            Reach::Offloaded => {
                "The peer reaches only offloaded pods here: `network.reach: Pods` in the policy that applies to it opens all pods."
            }
        };
        let lines = prefixes
            .chain([reach.to_owned()])
            .chain(addresses_that_could_stay(peered));
        return lines.collect::<Vec<_>>().join("\n");
    }
    if peered.nodes.is_empty() {
        return format!(
            "ForeignCluster {} is created: `liqoctl status` shows the progress of the peering.",
            peered.name
        );
    }
    let lines = peered.nodes.iter().map(|node| {
        format!(
            "Node {} is Ready, with {}.",
            node.name,
            node.resources.rounded()
        )
    });
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if peered.changed {
        text += "\nThe request has changed: the offer and the node follow in some seconds (`liqoctl status`).";
    }
    if let Some(why) = &peered.other_pools {
        text = format!(
            "{text}\nThe nodes of the peer are not pools of their own: {}.",
            strip_control_characters(why)
        );
    }
    for line in addresses_that_could_stay(peered) {
        text = format!("{text}\n{line}");
    }
    text += "\nNext: `liqoctl offload namespace NAMESPACE` to let its pods run there.";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seed: u8) -> ClusterId {
        ClusterId::of_public_key(&[seed; 32])
    }

    fn target(seed: u8) -> PeeringTarget {
        PeeringTarget {
            cluster_id: id(seed),
            cluster_name: "milan".into(),
            auth_url: "https://203.0.113.5:30443".into(),
            tunnel: Vec::new(),
        }
    }

    fn foreign(name: &str, seed: u8, conditions: &serde_json::Value) -> ForeignCluster {
        serde_json::from_value(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": name },
            "spec": { "clusterID": id(seed) },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn a_peer_keeps_its_name_and_never_takes_that_of_another() {
        let known = [
            foreign("milan", 1, &json!([])),
            foreign("consumer", 2, &json!([])),
        ];
        assert_eq!(choose_name(&known, None, &target(1)).unwrap(), "milan");
        assert_eq!(choose_name(&known, None, &target(2)).unwrap(), "consumer");
        assert_eq!(
            choose_name(&known, None, &target(3)).unwrap(),
            format!("milan-{}", id(3).short_id())
        );
        assert_eq!(
            choose_name(&known, Some("third"), &target(3)).unwrap(),
            "third"
        );
        assert!(choose_name(&known, Some("milan"), &target(3)).is_err());
        assert!(
            choose_name(&known, Some("other"), &target(1))
                .unwrap_err()
                .to_string()
                .contains("milan")
        );
    }

    #[test]
    fn no_peer_is_called_as_the_id_of_a_cluster() {
        let posing = PeeringTarget {
            cluster_name: id(2).to_string(),
            ..target(3)
        };
        assert_eq!(
            choose_name(&[], None, &posing).unwrap(),
            format!("{}-{}", id(2), id(3).short_id())
        );
    }

    #[test]
    fn addresses_that_could_stay_are_told_for_each_side() {
        let peered = |here: &[&str], there: &[&str]| {
            let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
            let keepable = KeepableRanges {
                could_keep: ranges(here),
                peer_could_keep: ranges(there),
                ..KeepableRanges::default()
            };
            let network = Some(PeeredNetwork {
                prefixes: BTreeMap::new(),
                reach: Reach::Pods,
            });
            let (name, nodes) = ("milan".to_owned(), Vec::new());
            PeeringResult {
                name,
                cluster_id: id(1),
                nodes,
                other_pools: None,
                network,
                keepable,
                changed: false,
            }
        };
        let both = peered(&["10.245.0.0/16"], &["10.244.0.0/16"]);
        let text = render_peering_result(&both);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines[0],
            "Both clusters could keep each other's addresses, so that a pod has one address everywhere:"
        );
        assert!(
            lines[1].starts_with("- addresses of 10.245.0.0/16 could stay")
                && lines[2].contains("there, spec.network.keptCIDRs")
        );
        assert_eq!(render_peering_result(&peered(&[], &[])).lines().count(), 1);
        assert!(
            render_peering_result(&peered(&["10.245.0.0/16"], &[]))
                .contains("\nAddresses of 10.245.0.0/16 could stay")
        );
        let document = serde_json::to_value(&both).unwrap();
        assert_eq!(
            (&document["couldKeep"], &document["peerCouldKeep"]),
            (&json!(["10.245.0.0/16"]), &json!(["10.244.0.0/16"]))
        );
    }

    #[test]
    fn limits_outlive_a_time_without_resources() {
        let limits: ResourceList = [("cpu", "2".parse().unwrap())].into_iter().collect();
        let lent = RequestArguments::Limits(vec![LimitArgument::new("cpu", "2").unwrap()])
            .requested_after(None);
        let connected = RequestArguments::NetworkOnly.requested_after(Some(&lent));
        assert_eq!(
            connected,
            RequestedResources {
                resources: limits,
                network_only: true,
                granularity: None
            }
        );
        assert_eq!(
            RequestArguments::AsBefore.requested_after(Some(&connected)),
            connected
        );
        assert_eq!(
            RequestArguments::Everything.requested_after(Some(&connected)),
            RequestedResources::default()
        );
    }

    #[test]
    fn a_limit_that_is_not_named_stays() {
        let limits = |all: &[(&str, &str)]| {
            RequestArguments::Limits(
                all.iter()
                    .map(|(resource, amount)| LimitArgument::new(resource, amount).unwrap())
                    .collect(),
            )
        };
        let cpu = limits(&[("cpu", "1")]).requested_after(None);
        let both = limits(&[("memory", "1Gi")]).requested_after(Some(&cpu));
        assert_eq!(both.resources.to_string(), "cpu=1, memory=1Gi");
        assert_eq!(
            limits(&[("cpu", "none")])
                .requested_after(Some(&both))
                .resources
                .to_string(),
            "memory=1Gi"
        );
        assert_eq!(
            limits(&[("memory", "2Gi")])
                .requested_after(Some(&both))
                .resources
                .to_string(),
            "cpu=1, memory=2Gi"
        );
    }

    #[test]
    fn a_limit_can_be_taken_away() {
        let gpu = |amount| LimitArgument {
            resource: "nvidia.com/gpu".into(),
            amount,
        };
        assert_eq!(
            "nvidia.com/gpu=none".parse::<LimitArgument>(),
            Ok(gpu(None))
        );
        assert_eq!(
            "nvidia.com/gpu=1".parse::<LimitArgument>(),
            Ok(gpu(Some(Quantity::from_units(1))))
        );
        assert!(
            "nvidia.com/gpu".parse::<LimitArgument>().is_err()
                && "=none".parse::<LimitArgument>().is_err()
        );
        assert_eq!(
            LimitArgument::new("cpu", "None"),
            Ok(LimitArgument {
                resource: "cpu".into(),
                amount: None
            })
        );
    }

    #[test]
    fn a_peering_is_removed_again_only_if_the_peer_never_let_us_in() {
        let authenticated = |status: &str, reason: &str| {
            let time = "2026-01-01T00:00:00Z";
            let condition = json!([{ "type": links::AUTHENTICATED, "status": status, "reason": reason, "message": "m", "lastTransitionTime": time }]);
            was_never_admitted(&foreign("milan", 1, &condition))
        };
        assert!(
            was_never_admitted(&foreign("milan", 1, &json!([]))),
            "its address does not answer"
        );
        assert!(authenticated("False", "TokenInvalid") && authenticated("Unknown", "Waiting"));
        assert!(!authenticated("True", "Granted") && !authenticated("False", "PendingApproval"));
    }

    #[test]
    fn what_others_said_of_the_request_is_undone() {
        let cpu: ResourceList = [("cpu", "4".parse().unwrap())].into_iter().collect();
        let wanted = RequestedResources {
            resources: cpu.clone(),
            ..RequestedResources::default()
        };
        assert_eq!(
            stated_request(&wanted),
            json!({ "resources": { "cpu": "4" }, "networkOnly": false })
        );
        assert_eq!(request_correction(&wanted, &wanted), None);
        let more: ResourceList = [
            ("cpu", "4".parse().unwrap()),
            ("memory", "1Gi".parse().unwrap()),
        ]
        .into_iter()
        .collect();
        let written = RequestedResources {
            resources: more,
            ..RequestedResources::default()
        };
        let memory = json!({ "spec": { "request": { "resources": { "memory": null } } } });
        assert_eq!(request_correction(&written, &wanted), Some(memory));
        let everything = request_correction(&wanted, &RequestedResources::default());
        assert_eq!(
            everything,
            Some(json!({ "spec": { "request": { "resources": { "cpu": null } } } }))
        );
        let by_node = RequestedResources {
            granularity: Some(RequestedGranularity::Node),
            ..wanted.clone()
        };
        assert_eq!(
            request_correction(&by_node, &wanted),
            Some(json!({ "spec": { "request": { "granularity": null } } }))
        );
        assert_eq!(request_correction(&by_node, &by_node), None);
    }

    #[test]
    fn the_requested_pools_stay_until_others_are_named() {
        let after = |request, granularity, before: Option<&RequestedResources>| {
            let (name, timeout, wait) = (None, Duration::ZERO, false);
            PeerOptions {
                name,
                request,
                granularity,
                timeout,
                wait,
            }
            .request_after(before)
        };
        let by_node = after(
            RequestArguments::AsBefore,
            Some(PoolGranularity::Node),
            None,
        )
        .unwrap();
        assert_eq!(by_node.granularity, Some(RequestedGranularity::Node));
        let limits = RequestArguments::Limits(vec![LimitArgument::new("cpu", "2").unwrap()]);
        for request in [
            RequestArguments::AsBefore,
            RequestArguments::Everything,
            RequestArguments::NetworkOnly,
            limits,
        ] {
            assert_eq!(
                after(request, None, Some(&by_node)).unwrap().granularity,
                by_node.granularity
            );
        }
        assert_eq!(
            after(
                RequestArguments::AsBefore,
                Some(PoolGranularity::Policy),
                Some(&by_node)
            )
            .unwrap(),
            RequestedResources::default()
        );
        let connected = after(RequestArguments::NetworkOnly, None, None).unwrap();
        let error = after(
            RequestArguments::AsBefore,
            Some(PoolGranularity::Node),
            Some(&connected),
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("--everything"), "{error}");
        assert!(
            after(
                RequestArguments::Everything,
                Some(PoolGranularity::Node),
                Some(&connected)
            )
            .is_ok()
        );
    }

    #[test]
    fn a_network_that_nobody_wants_is_not_waited_for() {
        let error = |here, there, present: Option<&ForeignCluster>| {
            network_can_be(here, there, "milan", present)
                .unwrap_err()
                .to_string()
        };
        let mut known = foreign("milan", 1, &json!([]));
        assert!(network_can_be(true, true, "milan", Some(&known)).is_ok());
        assert!(error(false, true, None).contains("in this cluster"));
        assert!(error(true, false, None).contains("in milan"));
        known.spec.network = PeeringIntent::No;
        assert!(error(true, true, Some(&known)).contains("'{\"spec\":{\"network\":\"Auto\"}}'"));
    }

    #[test]
    fn addresses_that_mean_the_machine_itself_are_refused_with_the_flag_to_set() {
        let installed = |auth: Option<&str>, api: Option<&str>| {
            let mut config =
                liqo_api::ClusterConfig::new("liqo", liqo_api::ClusterConfigSpec::default());
            config.status = Some(ClusterConfigStatus {
                auth_url: auth.map(Into::into),
                api_server_url: api.map(Into::into),
                ..ClusterConfigStatus::default()
            });
            PeeringTarget::from_installed(InstalledLiqo { id: id(1), config })
        };
        let good = Some("https://203.0.113.5:6443");
        assert!(installed(good, good).is_ok());
        for (auth, api, flag) in [
            (
                Some("https://127.0.0.1:30443"),
                good,
                "authentication.address",
            ),
            (good, Some("https://localhost:6443"), "apiServer.address"),
            (None, good, "authentication.address"),
        ] {
            let text = installed(auth, api).unwrap_err().to_string();
            assert!(text.contains(&format!("--set {flag}=")), "{text}");
        }
    }
}
