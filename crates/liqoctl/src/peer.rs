//! `liqoctl peer`: borrow from another cluster.
//!
//! What is needed of the other cluster (its ID, the URL of its auth endpoint, a token) is read with its kubeconfig, or comes
//! from a command that was made there. It is written into a `ForeignCluster` here; controllers do the rest, and this module
//! shows link by link how far they are.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::{
    ADDRESSES_KNOWN, ClusterConfigStatus, ClusterId, ForeignCluster, ResourceList, VirtualNode, Wish, links, provider_namespace,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, Explained as _, Installed},
    progress::Progress,
    settings::{host, means_this_machine},
    token::{self, Use},
    wait::{Look, give_up, until},
};

/// How long a token that was made for one peering can be used.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// How long a refusal that no controller can mend must stand before it is believed: it may be from an earlier try.
const REFUSAL_STANDS: Duration = Duration::from_secs(5);
/// Reasons that only a person can do something about.
const FINAL_REASONS: [&str; 5] = ["Blocked", "TokenRequired", "TokenInvalid", "TokenExpired", "IncompatibleVersion"];
/// The links of the consumer's side, in order.
const LINKS: &[&str] = &links::BORROWING;

/// The cluster to borrow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its identity.
    pub cluster_id: ClusterId,
    /// Its friendly name.
    pub cluster_name: String,
    /// URL of its auth endpoint.
    pub auth_url: String,
}

impl Target {
    /// What a cluster says about itself.
    pub async fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        Self::from_installed(cluster.installed().await?)
            .with_context(|| format!("cluster {} cannot be borrowed from yet", cluster.context))
    }

    fn from_installed(installed: Installed) -> anyhow::Result<Self> {
        let status = installed.config.status.unwrap_or_default();
        let auth_url = usable(status.auth_url.as_deref(), &status, "authentication.address", "the auth endpoint")?;
        usable(status.api_server_url.as_deref(), &status, "apiServer.address", "the API server")?;
        Ok(Self { cluster_id: installed.id, cluster_name: installed.config.spec.cluster_name, auth_url })
    }
}

/// An address that another cluster can call, or which flag to set there.
fn usable(url: Option<&str>, status: &ClusterConfigStatus, flag: &str, what: &str) -> anyhow::Result<String> {
    let remedy =
        format!("run `liqoctl install --set {flag}=https://ADDRESS:PORT` there, with an address that this cluster can reach");
    match url {
        Some(url) if means_this_machine(host(url)) => {
            bail!("its address of {what} is {url}, which means the machine itself: {remedy}")
        }
        Some(url) => Ok(url.to_owned()),
        None => match status.conditions.iter().find(|condition| condition.type_ == ADDRESSES_KNOWN && condition.status != "True")
        {
            Some(condition) => bail!("its addresses are not known: {}", condition.message),
            None => bail!("it does not say how {what} is reached: {remedy}"),
        },
    }
}

/// Where the target and the token come from.
#[derive(Clone)]
pub enum Source {
    /// The other cluster itself.
    Remote(Cluster),
    /// A command that was made there.
    Invitation {
        /// The cluster.
        target: Target,
        /// The token; not needed where access was granted before.
        token: Option<String>,
    },
}

/// What to ask for, and how long to wait.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the `ForeignCluster`; the other cluster's name when absent.
    pub name: Option<String>,
    /// How much to ask for; what is not named is taken as offered. When absent, what was asked for before.
    pub request: Option<ResourceList>,
    /// How long to wait for the virtual node.
    pub timeout: Duration,
    /// Whether to wait at all.
    pub wait: bool,
}

/// The peering as it is in the end.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peered {
    /// Name of the `ForeignCluster`.
    pub name: String,
    /// The peer's identity.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Its virtual nodes; none if nobody waited for them.
    pub nodes: Vec<PeeredNode>,
    /// Whether the peering stood before, and something else is asked for now.
    pub changed: bool,
}

/// One virtual node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeeredNode {
    /// Name of the Node.
    pub name: String,
    /// What it offers.
    pub resources: ResourceList,
}

/// Peers, or changes what is asked of a peer.
pub async fn peer(cluster: &Cluster, source: Source, options: &Options, progress: &Progress) -> anyhow::Result<Peered> {
    let own = cluster.installed().await?;
    let target = match &source {
        Source::Remote(remote) => Target::of(remote).await?,
        Source::Invitation { target, .. } => target.clone(),
    };
    if target.cluster_id == own.id {
        bail!(
            "both kubeconfigs are of the same cluster ({}): a cluster does not borrow from itself",
            own.config.spec.cluster_name
        );
    }
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let known = api.list(&ListParams::default()).await.doing("list the known clusters")?.items;
    let present = known.iter().find(|foreign| foreign.spec.cluster_id == target.cluster_id);
    if present.is_some_and(|foreign| foreign.metadata.deletion_timestamp.is_some()) {
        bail!("an earlier peering with {} is just being ended: try again in some seconds", target.cluster_name);
    }
    let name = choose_name(&known, options.name.as_deref(), &target)?;
    let before = present.map(|foreign| foreign.spec.request.resources.clone());
    let request = options.request.clone().or_else(|| before.clone()).unwrap_or_default();
    let token = match (&source, present) {
        (_, Some(foreign)) if is_granted(foreign) => None,
        (Source::Remote(remote), _) => {
            Some(progress.step("Making a token in the other cluster", one_time_token(remote, &own.id)).await?)
        }
        (Source::Invitation { token, .. }, _) => token.clone(),
    };
    let token_secret = match &token {
        Some(token) => {
            let secret = token::secret(&format!("peer-{}", target.cluster_id), token, None, None);
            token::store(cluster, &secret).await?;
            Some(secret.name_any())
        }
        None => None,
    };
    let wanted = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": { "name": name },
        "spec": {
            "clusterID": target.cluster_id,
            "clusterName": target.cluster_name,
            "authURL": target.auth_url,
            "outgoingPeering": Wish::Yes,
            "request": { "resources": request },
            "tokenSecretName": token_secret,
        },
    });
    api.patch(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(without_nulls(wanted)))
        .await
        .doing(format!("write ForeignCluster {name}"))?;
    let nodes = if options.wait { watch_links(cluster, &name, &target, options.timeout, progress).await? } else { Vec::new() };
    let changed = present.is_some_and(is_granted) && before.as_ref() != Some(&request);
    Ok(Peered { name, cluster_id: target.cluster_id, nodes, changed })
}

/// Whether the peer let us in before; then no token is needed.
fn is_granted(foreign: &ForeignCluster) -> bool {
    foreign.spec.outgoing_peering == Wish::Yes
        && foreign.condition(links::AUTHENTICATED).is_some_and(|condition| condition.status == "True")
}

/// The name that the peer has here already, else the wanted one, else its own, made unique by its ID.
fn choose_name(known: &[ForeignCluster], wanted: Option<&str>, target: &Target) -> anyhow::Result<String> {
    let owner = |name: &str| known.iter().find(|foreign| foreign.name_any() == name).map(|foreign| &foreign.spec.cluster_id);
    if let Some(present) = known.iter().find(|foreign| foreign.spec.cluster_id == target.cluster_id) {
        let name = present.name_any();
        return match wanted {
            Some(wanted) if wanted != name => bail!("this cluster is known as {name} already: leave --name away"),
            _ => Ok(name),
        };
    }
    match wanted {
        Some(wanted) if owner(wanted).is_some() => bail!("another cluster is known as {wanted}: choose another --name"),
        Some(wanted) => Ok(wanted.to_owned()),
        None if owner(&target.cluster_name).is_none() && target.cluster_name.parse::<ClusterId>().is_err() => {
            Ok(target.cluster_name.clone())
        }
        None => {
            let base: String = target.cluster_name.chars().take(56).collect();
            Ok(format!("{}-{}", base.trim_end_matches('-'), target.cluster_id.short()))
        }
    }
}

async fn one_time_token(remote: &Cluster, consumer: &ClusterId) -> anyhow::Result<String> {
    let token = token::random()?;
    let expires_at = Timestamp::now().checked_add(TOKEN_LIFETIME)?;
    // One Secret for each consumer, so that repeated tries leave one token and not many.
    token::store(remote, &token::secret(&format!("peer-{consumer}"), &token, Some(Use::OneTime), Some(expires_at))).await?;
    token::sweep(remote, Timestamp::now()).await?;
    Ok(token)
}

/// What a link means, for people.
pub fn link_title(link: &str) -> &str {
    match link {
        links::IDENTITY_VERIFIED => "The peer proves its identity",
        links::AUTHENTICATED => "The peer lets this cluster in",
        links::PEER_REACHABLE => "The peer's API server and controllers answer",
        links::RESOURCES_REQUESTED => "Resources are asked for",
        links::OFFER_ACCEPTED => "An offer is accepted",
        links::VIRTUAL_NODES_READY => "The virtual node is Ready",
        other => other,
    }
}

/// Shows the links one after the other until all hold.
async fn watch_links(
    cluster: &Cluster,
    name: &str,
    target: &Target,
    timeout: Duration,
    progress: &Progress,
) -> anyhow::Result<Vec<PeeredNode>> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let shown = Cell::new(0);
    let refused_since: Cell<Option<Instant>> = Cell::new(None);
    progress.started(link_title(LINKS[0]));
    let news = |text: &str| {
        if let Some(link) = LINKS.get(shown.get()) {
            progress.message(link_title(link), text);
        }
    };
    let what = format!("the virtual node of {name} is Ready");
    let outcome = until(&what, timeout, news, || async {
        let foreign = api.get(name).await.doing(format!("read ForeignCluster {name}"))?;
        let standing = standing(&foreign);
        while shown.get() < standing.holding {
            progress.finished(link_title(LINKS[shown.get()]));
            shown.set(shown.get() + 1);
            if let Some(next) = LINKS.get(shown.get()) {
                progress.started(link_title(next));
            }
        }
        if standing.holding == LINKS.len() {
            let nodes = nodes(cluster, &target.cluster_id).await?;
            return Ok(if nodes.is_empty() {
                Look::NotYet("the virtual node is being made".to_owned())
            } else {
                Look::Done(nodes)
            });
        }
        if standing.refused {
            let since = refused_since.get().unwrap_or_else(Instant::now);
            refused_since.set(Some(since));
            if since.elapsed() >= REFUSAL_STANDS {
                return Err(give_up(format!("the peer refuses: {}", standing.missing)));
            }
        } else {
            refused_since.set(None);
        }
        Ok(Look::NotYet(standing.missing))
    })
    .await;
    if outcome.is_err()
        && let Some(link) = LINKS.get(shown.get())
    {
        progress.failed(link_title(link));
    }
    outcome.map_err(|error| {
        anyhow!(
            "{error:#}. ForeignCluster {name} stays, and the controllers go on trying: see `liqoctl status`, or end it with `liqoctl unpeer {name}`"
        )
    })
}

/// How far a peering is.
#[derive(Debug, PartialEq, Eq)]
struct Standing {
    /// How many links hold, from the first one on.
    holding: usize,
    /// What the first other one says.
    missing: String,
    /// Whether only a person can help.
    refused: bool,
}

fn standing(foreign: &ForeignCluster) -> Standing {
    let holds = |link: &&&str| foreign.condition(link).is_some_and(|condition| condition.status == "True");
    let holding = LINKS.iter().take_while(holds).count();
    match LINKS.get(holding).and_then(|link| foreign.condition(link)) {
        None => Standing { holding, missing: "no news yet".to_owned(), refused: false },
        Some(condition) => Standing {
            holding,
            missing: format!("{}: {}", condition.reason, condition.message),
            refused: condition.status == "False" && FINAL_REASONS.contains(&condition.reason.as_str()),
        },
    }
}

async fn nodes(cluster: &Cluster, provider: &ClusterId) -> anyhow::Result<Vec<PeeredNode>> {
    let api: Api<VirtualNode> = Api::namespaced(cluster.client.clone(), &provider_namespace(provider));
    let list = api.list(&ListParams::default()).await.doing("list the virtual nodes")?;
    let shown = |node: VirtualNode| Some(PeeredNode { name: node.status?.node_name?, resources: node.spec.resources });
    Ok(list.items.into_iter().filter_map(shown).collect())
}

/// Absent fields are left out of what is applied, so that they are given up and not set to nothing.
fn without_nulls(mut value: serde_json::Value) -> serde_json::Value {
    if let Some(object) = value.get_mut("spec").and_then(|spec| spec.as_object_mut()) {
        object.retain(|_, value| !value.is_null());
    }
    value
}

/// The outcome for people.
pub fn table(peered: &Peered) -> String {
    if peered.nodes.is_empty() {
        return format!("ForeignCluster {} is written: `liqoctl status` shows how far the peering is.", peered.name);
    }
    let lines = peered.nodes.iter().map(|node| format!("Node {} is Ready, with {}.", node.name, node.resources));
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if peered.changed {
        text += "\nSomething else is asked for now: the offer and the node follow in some seconds (`liqoctl status`).";
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

    fn target(seed: u8) -> Target {
        Target { cluster_id: id(seed), cluster_name: "milan".into(), auth_url: "https://203.0.113.5:30443".into() }
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

    fn condition(kind: &str, status: &str, reason: &str) -> serde_json::Value {
        json!({ "type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" })
    }

    #[test]
    fn a_peer_keeps_its_name_and_never_takes_that_of_another() {
        let known = [foreign("milan", 1, &json!([])), foreign("consumer", 2, &json!([]))];
        assert_eq!(choose_name(&known, None, &target(1)).unwrap(), "milan");
        assert_eq!(choose_name(&known, None, &target(2)).unwrap(), "consumer");
        assert_eq!(choose_name(&known, None, &target(3)).unwrap(), format!("milan-{}", id(3).short()));
        assert_eq!(choose_name(&known, Some("third"), &target(3)).unwrap(), "third");
        assert!(choose_name(&known, Some("milan"), &target(3)).is_err());
        assert!(choose_name(&known, Some("other"), &target(1)).unwrap_err().to_string().contains("milan"));
    }

    #[test]
    fn no_peer_is_called_as_the_id_of_a_cluster() {
        let posing = Target { cluster_name: id(2).to_string(), ..target(3) };
        assert_eq!(choose_name(&[], None, &posing).unwrap(), format!("{}-{}", id(2), id(3).short()));
    }

    #[test]
    fn the_first_link_that_does_not_hold_is_shown() {
        let none = standing(&foreign("x", 1, &json!([])));
        assert_eq!((none.holding, none.refused), (0, false));
        let refused = standing(&foreign(
            "x",
            1,
            &json!([
                condition(links::IDENTITY_VERIFIED, "True", "Verified"),
                condition(links::AUTHENTICATED, "False", "TokenInvalid"),
                condition(links::PEER_REACHABLE, "True", "Answers"),
            ]),
        ));
        assert_eq!(refused, Standing { holding: 1, missing: "TokenInvalid: m".into(), refused: true });
        let all: Vec<_> = LINKS.iter().map(|link| condition(link, "True", "Fine")).collect();
        assert_eq!(standing(&foreign("x", 1, &json!(all))).holding, 6);
    }

    #[test]
    fn addresses_that_mean_the_machine_itself_are_refused_with_the_flag_to_set() {
        let installed = |auth: Option<&str>, api: Option<&str>| {
            let mut config = liqo_api::ClusterConfig::new("liqo", liqo_api::ClusterConfigSpec::default());
            config.status = Some(ClusterConfigStatus {
                auth_url: auth.map(Into::into),
                api_server_url: api.map(Into::into),
                ..ClusterConfigStatus::default()
            });
            Target::from_installed(Installed { id: id(1), config })
        };
        let good = Some("https://203.0.113.5:6443");
        assert!(installed(good, good).is_ok());
        for (auth, api, flag) in [
            (Some("https://127.0.0.1:30443"), good, "authentication.address"),
            (good, Some("https://localhost:6443"), "apiServer.address"),
            (None, good, "authentication.address"),
        ] {
            let text = installed(auth, api).unwrap_err().to_string();
            assert!(text.contains(&format!("--set {flag}=")), "{text}");
        }
    }
}
