//! Shows link by link how far the controllers are with a peering, until it stands.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use kube::{Api, api::ListParams};
use liqo_api::{ClusterId, ForeignCluster, TunnelEndpoint, VirtualNode, links, provider_namespace};

use super::{PeeredNetwork, PeeredNode, Target};
use crate::{
    cluster::{Cluster, Explained as _, list_or_none},
    manifests::NAMESPACE,
    progress::Progress,
    wait::{Look, give_up, until},
};

/// How long a refusal that no controller can mend must stand before it is believed: it may be from an earlier try.
const REFUSAL_STANDS: Duration = Duration::from_secs(5);
/// Reasons that only a person can do something about.
const FINAL_REASONS: [&str; 5] = ["Blocked", "TokenRequired", "TokenInvalid", "TokenExpired", "IncompatibleVersion"];
/// The links of the consumer's side, in order.
const LINKS: &[&str] = &links::BORROWING;
/// The same where only the network is wanted.
const LINKS_OF_NETWORK: &[&str] =
    &[links::IDENTITY_VERIFIED, links::AUTHENTICATED, links::PEER_REACHABLE, links::NETWORK_AGREED, links::TUNNEL_CONNECTED];

/// What a link means, for people.
pub fn link_title(link: &str) -> &str {
    match link {
        links::IDENTITY_VERIFIED => "The peer proves its identity",
        links::AUTHENTICATED => "The peer lets this cluster in",
        links::PEER_REACHABLE => "The peer's API server and controllers answer",
        links::RESOURCES_REQUESTED => "Resources are asked for",
        links::OFFER_ACCEPTED => "An offer is accepted",
        links::VIRTUAL_NODES_READY => "The virtual node is Ready",
        links::NETWORK_AGREED => "Both know where they see each other's pods",
        links::TUNNEL_CONNECTED => "The gateways reach each other",
        other => other,
    }
}

/// Waits for the virtual nodes.
pub async fn nodes_are_ready(
    cluster: &Cluster,
    name: &str,
    target: &Target,
    timeout: Duration,
    progress: &Progress,
) -> anyhow::Result<Vec<PeeredNode>> {
    let what = format!("the virtual node of {name} is Ready");
    watch_links(cluster, name, LINKS, &what, timeout, progress, || async {
        let nodes = nodes(cluster, &target.cluster_id).await?;
        Ok(if nodes.is_empty() { Look::NotYet("the virtual node is being made".to_owned()) } else { Look::Done(nodes) })
    })
    .await
}

/// Waits for the network, and until nothing is borrowed any more.
pub async fn network_stands(
    cluster: &Cluster,
    name: &str,
    target: &Target,
    timeout: Duration,
    progress: &Progress,
) -> anyhow::Result<PeeredNetwork> {
    let what = format!("pods of {name} can be reached");
    let nodes: Api<VirtualNode> = Api::namespaced(cluster.client.clone(), &provider_namespace(&target.cluster_id));
    let endpoints: Api<TunnelEndpoint> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    watch_links(cluster, name, LINKS_OF_NETWORK, &what, timeout, progress, || async {
        if !list_or_none(&nodes, &ListParams::default()).await.doing("list the virtual nodes")?.is_empty() {
            return Ok(Look::NotYet("what was borrowed is being given back".to_owned()));
        }
        let found = endpoints.get_opt(target.cluster_id.as_str()).await.doing("read the TunnelEndpoint of the peer")?;
        Ok(match found.map(|found| found.spec) {
            Some(spec) => Look::Done(PeeredNetwork { prefixes: spec.imported, reach: spec.reach }),
            None => Look::NotYet("there is no TunnelEndpoint yet".to_owned()),
        })
    })
    .await
}

/// Shows the links one after the other until all hold, and then looks until the end is reached.
async fn watch_links<T, F, Fut>(
    cluster: &Cluster,
    name: &str,
    links: &'static [&'static str],
    what: &str,
    timeout: Duration,
    progress: &Progress,
    end: F,
) -> anyhow::Result<T>
where
    F: Fn() -> Fut,
    Fut: Future<Output = anyhow::Result<Look<T>>>,
{
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let shown = Cell::new(0);
    let refused_since: Cell<Option<Instant>> = Cell::new(None);
    progress.started(link_title(links[0]));
    let news = |text: &str| {
        if let Some(link) = links.get(shown.get()) {
            progress.message(link_title(link), text);
        }
    };
    let outcome = until(what, timeout, news, || async {
        let foreign = api.get(name).await.doing(format!("read ForeignCluster {name}"))?;
        let standing = standing(&foreign, links);
        while shown.get() < standing.holding {
            progress.finished(link_title(links[shown.get()]));
            shown.set(shown.get() + 1);
            if let Some(next) = links.get(shown.get()) {
                progress.started(link_title(next));
            }
        }
        if standing.holding == links.len() {
            return end().await;
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
        && let Some(link) = links.get(shown.get())
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

fn standing(foreign: &ForeignCluster, links: &[&str]) -> Standing {
    let holds = |link: &&&str| foreign.condition(link).is_some_and(|condition| condition.status == "True");
    let holding = links.iter().take_while(holds).count();
    match links.get(holding).and_then(|link| foreign.condition(link)) {
        None => Standing { holding, missing: silence(links.get(holding).copied()), refused: false },
        Some(condition) => Standing {
            holding,
            missing: format!("{}: {}", condition.reason, condition.message),
            refused: condition.status == "False" && FINAL_REASONS.contains(&condition.reason.as_str()),
        },
    }
}

/// What is said where a link says nothing. Of a network that nobody wants nothing is ever said.
fn silence(link: Option<&str>) -> String {
    match link {
        Some(links::NETWORK_AGREED) => {
            "no news yet; there is none without network.enabled in the PeeringPolicy that holds for the peer, or `network: Yes` in its ForeignCluster".to_owned()
        }
        _ => "no news yet".to_owned(),
    }
}

async fn nodes(cluster: &Cluster, provider: &ClusterId) -> anyhow::Result<Vec<PeeredNode>> {
    let api: Api<VirtualNode> = Api::namespaced(cluster.client.clone(), &provider_namespace(provider));
    let list = api.list(&ListParams::default()).await.doing("list the virtual nodes")?;
    let shown = |node: VirtualNode| Some(PeeredNode { name: node.status?.node_name?, resources: node.spec.resources });
    Ok(list.items.into_iter().filter_map(shown).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn foreign(conditions: &serde_json::Value) -> ForeignCluster {
        let spec = json!({ "clusterID": ClusterId::of_public_key(&[1; 32]) });
        serde_json::from_value(json!({ "metadata": { "name": "x" }, "spec": spec, "status": { "conditions": conditions } }))
            .unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str) -> serde_json::Value {
        json!({ "type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" })
    }

    #[test]
    fn the_first_link_that_does_not_hold_is_shown() {
        let none = standing(&foreign(&json!([])), LINKS);
        assert_eq!((none.holding, none.refused), (0, false));
        let conditions = json!([
            condition(links::IDENTITY_VERIFIED, "True", "Verified"),
            condition(links::AUTHENTICATED, "False", "TokenInvalid"),
            condition(links::PEER_REACHABLE, "True", "Answers"),
        ]);
        let refused = standing(&foreign(&conditions), LINKS);
        assert_eq!(refused, Standing { holding: 1, missing: "TokenInvalid: m".into(), refused: true });
        let all: Vec<_> = LINKS.iter().map(|link| condition(link, "True", "Fine")).collect();
        assert_eq!(standing(&foreign(&json!(all)), LINKS).holding, 6);
        let agreed = standing(&foreign(&json!(all)), LINKS_OF_NETWORK);
        assert!(agreed.holding == 3 && agreed.missing.contains("network.enabled"), "{agreed:?}");
    }
}
