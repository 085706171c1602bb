//! Waits for a peering, and shows the progress of the controllers link by link.

use std::{
    cell::Cell,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use kube::Api;
use liqo_api::{
    AuthenticatedReason, ClusterId, ForeignCluster, TunnelEndpoint, conditions::StatusCondition,
    links,
};

use super::{PeeredNetwork, PeeredNode, PeeringTarget};
use crate::{
    cluster::{Cluster, ExplainFailure as _},
    lists,
    manifests::NAMESPACE,
    progress::StepProgress,
    wait::{PollResult, final_error, until},
};

/// Minimum age of a refusal until it counts: it may be from an earlier attempt.
const REFUSAL_DELAY: Duration = Duration::from_secs(5);
/// Refusals that only a person can resolve.
const FINAL_REASONS: [AuthenticatedReason; 5] = [
    AuthenticatedReason::Blocked,
    AuthenticatedReason::TokenRequired,
    AuthenticatedReason::TokenInvalid,
    AuthenticatedReason::TokenExpired,
    AuthenticatedReason::IncompatibleVersion,
];
/// The links of the consumer's side, in order.
const LINKS: &[&str] = &links::BORROWING;
/// The links of a peering for the network alone.
const LINKS_OF_NETWORK: &[&str] = &[
    links::IDENTITY_VERIFIED,
    links::AUTHENTICATED,
    links::PEER_REACHABLE,
    links::NETWORK_AGREED,
    links::TUNNEL_CONNECTED,
];

/// The meaning of a link, for people.
pub fn link_title(link: &str) -> &str {
    match link {
        links::IDENTITY_VERIFIED => "The peer proves its identity",
        links::AUTHENTICATED => "The peer grants access",
        links::PEER_REACHABLE => "The peer's API server and controllers answer",
        links::RESOURCES_REQUESTED => "This cluster requests resources",
        links::OFFER_ACCEPTED => "This cluster accepts an offer",
        links::VIRTUAL_NODES_READY => "The virtual node is Ready",
        links::NETWORK_AGREED => "Both clusters agree how they map each other's prefixes",
        links::TUNNEL_CONNECTED => "The gateways reach each other",
        other => other,
    }
}

/// Waits for the virtual nodes.
pub async fn nodes_are_ready(
    cluster: &Cluster,
    name: &str,
    target: &PeeringTarget,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<Vec<PeeredNode>> {
    let what = format!("the virtual node of {name} is Ready");
    watch_links(cluster, name, LINKS, &what, timeout, progress, || async {
        let nodes = peered_nodes(cluster, &target.cluster_id).await?;
        Ok(if nodes.is_empty() {
            PollResult::NotYet("the virtual node does not exist yet".to_owned())
        } else {
            PollResult::Done(nodes)
        })
    })
    .await
}

/// Waits for the network, and until this cluster borrows nothing any more.
pub async fn network_is_ready(
    cluster: &Cluster,
    name: &str,
    target: &PeeringTarget,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<PeeredNetwork> {
    let what = format!("pods of {name} can be reached");
    let endpoints: Api<TunnelEndpoint> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    watch_links(
        cluster,
        name,
        LINKS_OF_NETWORK,
        &what,
        timeout,
        progress,
        || async {
            let nodes = lists::list_virtual_nodes(cluster, Some(&target.cluster_id)).await?;
            if !nodes.is_empty() {
                return Ok(PollResult::NotYet(
                    "this cluster is giving back what it borrowed".to_owned(),
                ));
            }
            let found = endpoints
                .get_opt(target.cluster_id.as_str())
                .await
                .doing("read the TunnelEndpoint of the peer")?;
            Ok(match found.map(|found| found.spec) {
                Some(spec) => PollResult::Done(PeeredNetwork {
                    prefixes: spec.imported,
                    reach: spec.reach,
                }),
                None => PollResult::NotYet("there is no TunnelEndpoint yet".to_owned()),
            })
        },
    )
    .await
}

/// Time limit until the peer says whether each of its nodes is a pool. Earlier versions never do.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why not each node of the peer is a pool of its own, although this cluster requests that;
/// nothing if each is.
pub async fn other_pools(cluster: &Cluster, name: &str, progress: &StepProgress) -> Option<String> {
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let step = "The peer says which pools it offers";
    let answered = until(
        step,
        ANSWER_TIMEOUT,
        |text| progress.message(step, text),
        || async {
            let foreign = api
                .get(name)
                .await
                .doing(format!("read ForeignCluster {name}"))?;
            Ok(match foreign.condition(links::POOL_FOR_EACH_NODE) {
                None => PollResult::NotYet("it has not answered yet".to_owned()),
                Some(condition) => PollResult::Done(
                    (condition.status != "True").then(|| condition.message.clone()),
                ),
            })
        },
    )
    .await;
    answered.unwrap_or_else(|_| {
        Some(
            "the peer has not answered; earlier versions of Liqo do not know this request"
                .to_owned(),
        )
    })
}

/// Shows the links one after the other until all work, then polls `end` until it is done.
async fn watch_links<T, F, Fut>(
    cluster: &Cluster,
    name: &str,
    links: &'static [&'static str],
    what: &str,
    timeout: Duration,
    progress: &StepProgress,
    end: F,
) -> anyhow::Result<T>
where
    F: Fn() -> Fut,
    Fut: Future<Output = anyhow::Result<PollResult<T>>>,
{
    let api: Api<ForeignCluster> = Api::all(cluster.client.clone());
    // The number of links that are done; nothing before the first look.
    let shown: Cell<Option<usize>> = Cell::new(None);
    let refused_since: Cell<Option<Instant>> = Cell::new(None);
    let outcome = until(
        what,
        timeout,
        |text| {
            if let Some(title) = next_link_title(links, shown.get()) {
                progress.message(title, text);
            }
        },
        || async {
            let foreign = api
                .get(name)
                .await
                .doing(format!("read ForeignCluster {name}"))?;
            let found = link_progress(&foreign, links);
            for done in links_to_show(shown.get(), found.working) {
                if let Some(title) = next_link_title(links, shown.get()) {
                    progress.finish_step(title);
                }
                shown.set(Some(done));
                if let Some(title) = next_link_title(links, shown.get()) {
                    progress.start_step(title);
                }
            }
            if found.working == links.len() {
                return end().await;
            }
            if found.refused {
                let since = refused_since.get().unwrap_or_else(Instant::now);
                refused_since.set(Some(since));
                if since.elapsed() >= REFUSAL_DELAY {
                    return Err(final_error(format!("the peer refuses: {}", found.missing)));
                }
            } else {
                refused_since.set(None);
            }
            Ok(PollResult::NotYet(found.missing))
        },
    )
    .await;
    if let (true, Some(title)) = (outcome.is_err(), next_link_title(links, shown.get())) {
        progress.fail_step(title);
    }
    outcome
}

/// Title of the first link that does not work, if some were looked at.
fn next_link_title(links: &[&'static str], working: Option<usize>) -> Option<&'static str> {
    links.get(working?).map(|link| link_title(link))
}

/// The numbers of done links to show, one after the other. Links that worked at the first look, as
/// in an older peering, are no steps of this command.
fn links_to_show(shown: Option<usize>, working: usize) -> RangeInclusive<usize> {
    shown.map_or(working, |shown| shown + 1)..=working
}

/// The progress of a peering.
#[derive(Debug, PartialEq, Eq)]
struct LinkProgress {
    /// Number of links that work, counted from the first.
    working: usize,
    /// The text of the first link that does not work.
    missing: String,
    /// Whether only a person can help.
    refused: bool,
}

fn link_progress(foreign: &ForeignCluster, links: &[&str]) -> LinkProgress {
    let working = links
        .iter()
        .take_while(|link| {
            foreign
                .condition(link)
                .is_some_and(StatusCondition::is_true)
        })
        .count();
    match links.get(working).and_then(|link| foreign.condition(link)) {
        None => LinkProgress {
            working,
            missing: missing_condition_text(links.get(working).copied()),
            refused: false,
        },
        Some(condition) => LinkProgress {
            working,
            missing: format!("{}: {}", condition.reason, condition.message),
            refused: condition.status == "False"
                && AuthenticatedReason::parse(&condition.reason)
                    .is_some_and(|reason| FINAL_REASONS.contains(&reason)),
        },
    }
}

/// The text for a link without a condition. If nobody wants a network, its link never gets a
/// condition.
fn missing_condition_text(link: Option<&str>) -> String {
    match link {
        Some(links::NETWORK_AGREED) => {
            "the controllers have not reported anything yet; is network.enabled set in the PeeringPolicy that applies to the peer, or `network: Yes` in its ForeignCluster?".to_owned()
        }
        _ => "the controllers have not reported anything yet".to_owned(),
    }
}

async fn peered_nodes(cluster: &Cluster, provider: &ClusterId) -> anyhow::Result<Vec<PeeredNode>> {
    let nodes = lists::list_virtual_nodes(cluster, Some(provider)).await?;
    Ok(nodes
        .into_iter()
        .filter_map(|node| {
            Some(PeeredNode {
                name: node.status?.node_name?,
                resources: node.spec.resources,
            })
        })
        .collect())
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
    fn links_that_worked_before_are_no_steps() {
        let all = |shown, working| links_to_show(shown, working).collect::<Vec<_>>();
        assert_eq!(all(None, 6), [6]);
        assert_eq!(all(None, 0), [0]);
        assert_eq!((all(Some(1), 3), all(Some(3), 3)), (vec![2, 3], Vec::new()));
    }

    #[test]
    fn the_first_link_that_does_not_hold_is_shown() {
        let none = link_progress(&foreign(&json!([])), LINKS);
        assert_eq!((none.working, none.refused), (0, false));
        let conditions = json!([
            condition(links::IDENTITY_VERIFIED, "True", "Verified"),
            condition(links::AUTHENTICATED, "False", "TokenInvalid"),
            condition(links::PEER_REACHABLE, "True", "Answers"),
        ]);
        let refused = link_progress(&foreign(&conditions), LINKS);
        assert_eq!(
            refused,
            LinkProgress {
                working: 1,
                missing: "TokenInvalid: m".into(),
                refused: true
            }
        );
        let all: Vec<_> = LINKS
            .iter()
            .map(|link| condition(link, "True", "Fine"))
            .collect();
        assert_eq!(link_progress(&foreign(&json!(all)), LINKS).working, 6);
        let agreed = link_progress(&foreign(&json!(all)), LINKS_OF_NETWORK);
        assert!(
            agreed.working == 3 && agreed.missing.contains("network.enabled"),
            "{agreed:?}"
        );
    }
}
