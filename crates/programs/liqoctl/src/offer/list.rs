//! `liqoctl offer list`.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use liqo_api::{
    ClusterId, ForeignCluster, LargestPods, Money, NO_NEW_PODS, OfferDecision, OfferPhase,
    PriceList, ResourceList, ResourceOffer, provider_namespace, tenant_namespace,
};
use liqo_quantity::per_hour;
use serde::Serialize;

use super::decide::phase;
use crate::{
    broker::{abbreviated_names, peer_name},
    cluster::Cluster,
    lists,
    output::{self, strip_control_characters},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferDirection {
    /// Those that peers made to this cluster.
    Received,
    /// Those that this cluster made to peers.
    Made,
}

/// One offer, or a decision on a pool that is not offered now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedOffer {
    /// Name of the peer's `ForeignCluster`; its ID where there is none.
    pub peer: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    pub pool: String,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub resources: ResourceList,
    /// Free resources of the provider's nodes with the most room; nothing if they are not known.
    #[serde(skip_serializing_if = "LargestPods::is_empty")]
    pub largest_pods: LargestPods,
    /// Number of clusters that the resources come through, including the provider; nothing if the
    /// pool is not offered now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<u8>,
    /// IDs of the clusters that they come from or through, the provider first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<ClusterId>,
    /// The clusters behind the provider: the names of peers, and the beginnings of other IDs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<String>,
    /// Its phase; nothing if the pool is not offered now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<OfferPhase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The user's decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<OfferDecision>,
    /// The provider's notice before it ends pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice_seconds: Option<u32>,
    /// End of a withdrawn offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<String>,
    /// From then on, the provider ends pods beyond the offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_timestamp: Option<String>,
    /// The offer from `reclaim_timestamp` on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_to: Option<ResourceList>,
    /// From then on, the provider ends pods on nodes that the pool does not have any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timestamp: Option<String>,
    /// The price of each resource now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceList>,
    /// The present price of the whole offer for one hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<Money>,
}

/// The offers of all peers, or of one.
pub async fn list_offers(
    cluster: &Cluster,
    of: Option<&ForeignCluster>,
    which: OfferDirection,
) -> anyhow::Result<Vec<ListedOffer>> {
    let known = lists::list_peers(cluster).await?;
    let offers = lists::list_resource_offers(cluster).await?;
    let shown = offer_rows(&known, offers, which);
    Ok(shown
        .into_iter()
        .filter(|row| of.is_none_or(|of| of.spec.cluster_id == row.cluster_id))
        .collect())
}

/// The peer whose namespace this is.
fn peer_of(namespace: &str, which: OfferDirection) -> Option<ClusterId> {
    let id: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
    let expected = match which {
        OfferDirection::Received => provider_namespace(&id),
        OfferDirection::Made => tenant_namespace(&id),
    };
    (namespace == expected).then_some(id)
}

fn offer_rows(
    known: &[ForeignCluster],
    offers: Vec<ResourceOffer>,
    which: OfferDirection,
) -> Vec<ListedOffer> {
    let mut rows = Vec::new();
    let mut offered: BTreeSet<(ClusterId, String)> = BTreeSet::new();
    for offer in offers {
        let Some(id) = peer_of(&offer.namespace().unwrap_or_default(), which) else {
            continue;
        };
        let (pool, phase) = (offer.name_any(), phase(&offer));
        let foreign = known.iter().find(|foreign| foreign.spec.cluster_id == id);
        let decided = foreign
            .and_then(|foreign| foreign.spec.offers.get(&pool))
            .filter(|_| which == OfferDirection::Received);
        offered.insert((id.clone(), pool.clone()));
        rows.push(ListedOffer {
            peer: foreign.map_or_else(|| id.to_string(), kube::ResourceExt::name_any),
            cluster_id: id,
            pool,
            price_per_hour: offer
                .spec
                .prices
                .as_ref()
                .map(|prices| per_hour(&prices.rates, &offer.spec.resource_quota.hard)),
            prices: offer.spec.prices,
            hops: Some(offer.spec.hops),
            behind: offer
                .spec
                .path
                .iter()
                .skip(1)
                .map(|id| peer_name(known, id))
                .collect(),
            path: offer.spec.path,
            resources: offer.spec.resource_quota.hard,
            largest_pods: offer.spec.largest_pods,
            phase: Some(phase),
            message: offer.status.and_then(|status| status.message),
            decision: decided.copied(),
            notice_seconds: offer.spec.notice_seconds,
            withdrawal_timestamp: offer
                .spec
                .withdrawal_timestamp
                .map(|time| time.0.to_string()),
            reclaim_timestamp: offer.spec.reclaim_timestamp.map(|time| time.0.to_string()),
            reclaim_to: offer.spec.reclaim_to,
            drain_timestamp: offer.spec.drain_timestamp.map(|time| time.0.to_string()),
        });
    }
    let decisions: BTreeMap<_, _> = known
        .iter()
        .filter(|_| which == OfferDirection::Received)
        .flat_map(|foreign| {
            foreign
                .spec
                .offers
                .iter()
                .map(move |(pool, decision)| ((foreign.name_any(), pool), (foreign, decision)))
        })
        .collect();
    for ((peer, pool), (foreign, decision)) in decisions {
        let cluster_id = foreign.spec.cluster_id.clone();
        if offered.contains(&(cluster_id.clone(), pool.clone())) {
            continue;
        }
        rows.push(ListedOffer {
            peer,
            cluster_id,
            pool: pool.clone(),
            resources: ResourceList::new(),
            largest_pods: LargestPods::default(),
            hops: None,
            path: Vec::new(),
            behind: Vec::new(),
            phase: None,
            message: None,
            decision: Some(*decision),
            notice_seconds: None,
            withdrawal_timestamp: None,
            reclaim_timestamp: None,
            reclaim_to: None,
            drain_timestamp: None,
            prices: None,
            price_per_hour: None,
        });
    }
    rows.sort_by(|one, other| (&one.peer, &one.pool).cmp(&(&other.peer, &other.pool)));
    rows
}

/// The offers as text for people.
pub fn render_offers(shown: &[ListedOffer], of: Option<&str>, which: OfferDirection) -> String {
    if shown.is_empty() {
        return match (which, of) {
            (OfferDirection::Received, None) => {
                "No peer offers anything: `liqoctl status` shows why, `liqoctl peer` requests something.".to_owned()
            }
            (OfferDirection::Received, Some(peer)) => format!("{peer} offers nothing: `liqoctl status` shows why."),
            (OfferDirection::Made, None) => {
                "This cluster offers nothing: no peer requests anything, or no policy shares (`liqoctl policy list`).".to_owned()
            }
            (OfferDirection::Made, Some(peer)) => format!("Nothing is offered to {peer}: `liqoctl policy explain {peer}` shows why."),
        };
    }
    let rows = shown.iter().map(|one| offer_row(one, of, which));
    match which {
        OfferDirection::Received => output::format_table(
            &[
                "PEER", "POOL", "PHASE", "DECIDED", "AMOUNTS", "HOPS", "PRICE", "NOTES",
            ],
            rows,
        ),
        OfferDirection::Made => output::format_table(
            &["PEER", "POOL", "PHASE", "AMOUNTS", "HOPS", "PRICE", "NOTES"],
            rows,
        ),
    }
}

fn offer_row(one: &ListedOffer, of: Option<&str>, which: OfferDirection) -> Vec<String> {
    let phase = one
        .phase
        .map_or_else(|| "not offered".to_owned(), |phase| format!("{phase:?}"));
    let mut row = vec![
        strip_control_characters(&one.peer),
        strip_control_characters(&one.pool),
        phase,
    ];
    if which == OfferDirection::Received {
        row.push(
            one.decision
                .map_or_else(|| "-".to_owned(), |decision| format!("{decision:?}")),
        );
    }
    row.push(strip_control_characters(&one.resources.rounded()));
    row.push(hops(one));
    row.push(price(one));
    let rates = one
        .prices
        .as_ref()
        .filter(|_| of.is_some())
        .map(|prices| format!("per hour and unit: {}", prices.rates));
    let notes: Vec<String> = rates
        .as_deref()
        .map(strip_control_characters)
        .into_iter()
        .chain(notes(one, which))
        .collect();
    row.push(if notes.is_empty() {
        "-".to_owned()
    } else {
        notes.join("; ")
    });
    row
}

/// The number of clusters that the offer comes through, and those behind the provider:
/// `2 via turin`.
fn hops(one: &ListedOffer) -> String {
    let Some(hops) = one.hops else {
        return "-".to_owned();
    };
    if one.behind.is_empty() {
        hops.to_string()
    } else {
        format!("{hops} via {}", abbreviated_names(&one.behind))
    }
}

/// The price of the whole offer for one hour, or `-`.
fn price(one: &ListedOffer) -> String {
    let price = one.prices.as_ref().zip(one.price_per_hour);
    price.map_or_else(
        || "-".to_owned(),
        |(prices, all)| {
            strip_control_characters(&format!("{} {}/h", all.rounded(), prices.currency))
        },
    )
}

fn notes(one: &ListedOffer, which: OfferDirection) -> Vec<String> {
    let mut notes = Vec::new();
    match (one.phase, which) {
        (Some(OfferPhase::ManualActionRequired), OfferDirection::Received) => {
            notes.push(format!(
                "you have to decide: `liqoctl offer accept {} {}`",
                one.peer, one.pool
            ));
        }
        (Some(OfferPhase::ManualActionRequired), OfferDirection::Made) => {
            notes.push("the consumer has to decide".to_owned());
        }
        (Some(OfferPhase::Accepted), _) if one.resources.is_zero() => {
            notes.push("nothing is offered now".to_owned());
        }
        (Some(OfferPhase::Accepted), _) => {
            let closed = one
                .message
                .as_deref()
                .filter(|message| message.starts_with(NO_NEW_PODS));
            notes.extend(closed.map(strip_control_characters));
        }
        _ => notes.extend(one.message.as_deref().map(strip_control_characters)),
    }
    notes.extend(largest_pod(one));
    notes.extend(
        one.withdrawal_timestamp
            .as_ref()
            .map(|at| format!("withdrawn, ends at {at}")),
    );
    notes.extend(
        one.reclaim_timestamp
            .as_ref()
            .map(|at| match &one.reclaim_to {
                Some(to) => format!(
                    "from {at} on, it is {}, and the provider ends pods beyond that",
                    strip_control_characters(&to.rounded())
                ),
                None => format!("from {at} on, the provider ends pods beyond the offer"),
            }),
    );
    notes.extend(
        one.drain_timestamp
            .as_ref()
            .map(|at| format!("from {at} on, the provider ends pods on former nodes of the pool")),
    );
    notes
}

/// The largest pods that find a node now: cpu, memory and extended resources, each node once.
fn largest_pod(one: &ListedOffer) -> Option<String> {
    let shown = one.largest_pods.iter().map(|node| {
        node.iter()
            .filter(|(name, _)| ["cpu", "memory"].contains(name) || name.contains('/'))
            .collect::<ResourceList>()
    });
    let nodes: BTreeSet<String> = shown
        .map(|node| strip_control_characters(&node.rounded()))
        .collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "largest pod now: {}",
            nodes.into_iter().collect::<Vec<_>>().join(", or ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn id(seed: u8) -> ClusterId {
        ClusterId::of_public_key(&[seed; 32])
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "JSON literals are written in place"
    )]
    fn offer(
        namespace: String,
        pool: &str,
        phase: &str,
        message: Option<&str>,
        more: Value,
    ) -> ResourceOffer {
        let mut spec = json!({ "clusterID": id(2), "pool": pool, "resourceQuota": { "hard": { "cpu": "2", "memory": "4Gi" } } });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        from_value(json!({
            "metadata": { "name": pool, "namespace": namespace }, "spec": spec, "status": { "phase": phase, "message": message },
        }))
        .unwrap()
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "JSON literals are written in place"
    )]
    fn foreign(name: &str, seed: u8, offers: Value) -> ForeignCluster {
        from_value(json!({ "metadata": { "name": name }, "spec": { "clusterID": id(seed), "offers": offers } })).unwrap()
    }

    fn everything() -> Vec<ResourceOffer> {
        let milan = provider_namespace(&id(2));
        vec![
            offer(
                milan.clone(),
                "gold",
                "ManualActionRequired",
                Some("decide"),
                json!({}),
            ),
            offer(
                milan.clone(),
                "bulk",
                "Accepted",
                Some("no new pods: too dear"),
                json!({ "withdrawalTimestamp": "2026-01-01T00:05:00Z", "hops": 2, "path": [id(2), id(3)],
                    "prices": { "currency": "EUR", "rates": { "cpu": "0.0400001", "memory": "0.005" } } }),
            ),
            offer(
                milan,
                "old",
                "Refused",
                Some("it was\n refused by hand"),
                json!({}),
            ),
            offer(
                tenant_namespace(&id(3)),
                "default",
                "Accepted",
                None,
                json!({ "reclaimTimestamp": "2026-01-01T00:05:00Z" }),
            ),
            offer(
                tenant_namespace(&id(4)),
                "default",
                "ManualActionRequired",
                Some("decide"),
                json!({}),
            ),
            offer(
                "liqo-provider-of-nobody".into(),
                "default",
                "Accepted",
                None,
                json!({}),
            ),
        ]
    }

    fn known() -> Vec<ForeignCluster> {
        vec![
            foreign("turin", 3, json!({})),
            foreign("milan", 2, json!({ "old": "Refuse", "silver": "Accept" })),
        ]
    }

    #[test]
    fn received_offers_tell_who_is_to_decide_and_what_was_decided() {
        let mut offers = everything();
        offers.push(offer(
            provider_namespace(&id(2)),
            "dry",
            "Accepted",
            None,
            json!({ "resourceQuota": { "hard": { "cpu": "0" } } }),
        ));
        let expected = "\
PEER    POOL     PHASE                  DECIDED   AMOUNTS             HOPS          PRICE       NOTES
milan   bulk     Accepted               -         cpu=2, memory=4Gi   2 via turin   0.1 EUR/h   no new pods: too dear; withdrawn, ends at 2026-01-01T00:05:00Z
milan   dry      Accepted               -         cpu=0               1             -           nothing is offered now
milan   gold     ManualActionRequired   -         cpu=2, memory=4Gi   1             -           you have to decide: `liqoctl offer accept milan gold`
milan   old      Refused                Refuse    cpu=2, memory=4Gi   1             -           it was refused by hand
milan   silver   not offered            Accept    nothing             -             -           -";
        assert_eq!(
            render_offers(
                &offer_rows(&known(), offers, OfferDirection::Received),
                None,
                OfferDirection::Received
            ),
            expected
        );
    }

    #[test]
    fn an_offer_tells_which_pods_find_a_node() {
        let said = json!([{ "cpu": "1719m", "memory": "2Gi", "pods": "1" }, { "cpu": "1", "memory": "3Gi", "pods": "1" }]);
        let milan = offer(
            provider_namespace(&id(2)),
            "default",
            "Accepted",
            None,
            json!({ "largestPods": said }),
        );
        let text = render_offers(
            &offer_rows(&known(), vec![milan], OfferDirection::Received),
            None,
            OfferDirection::Received,
        );
        assert!(
            text.contains("largest pod now: cpu=1, memory=3Gi, or cpu=1719m, memory=2Gi"),
            "{text}"
        );
    }

    #[test]
    fn many_clusters_behind_an_offer_are_counted_and_not_named() {
        let path: Vec<ClusterId> = (2..=9).map(id).collect();
        let milan = offer(
            provider_namespace(&id(2)),
            "far",
            "Accepted",
            None,
            json!({ "hops": 3, "path": path }),
        );
        let row = offer_rows(&known(), vec![milan], OfferDirection::Received).remove(0);
        assert!(
            hops(&row).starts_with("3 via turin, ") && hops(&row).ends_with(" and 2 more"),
            "{}",
            hops(&row)
        );
    }

    #[test]
    fn the_rates_of_one_peer_are_among_the_notes() {
        let text = render_offers(
            &offer_rows(&known(), everything(), OfferDirection::Received),
            Some("milan"),
            OfferDirection::Received,
        );
        assert!(
            text.contains("per hour and unit: cpu=0.0400001, memory=0.005; no new pods: too dear"),
            "{text}"
        );
    }

    #[test]
    fn made_offers_tell_what_the_consumers_say() {
        let stranger = id(4);
        let text = render_offers(
            &offer_rows(&known(), everything(), OfferDirection::Made),
            None,
            OfferDirection::Made,
        );
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| {
                line.split("   ")
                    .map(str::trim)
                    .filter(|cell| !cell.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(
            lines[0],
            ["PEER", "POOL", "PHASE", "AMOUNTS", "HOPS", "PRICE", "NOTES"]
        );
        let of_stranger = [
            stranger.as_str(),
            "default",
            "ManualActionRequired",
            "cpu=2, memory=4Gi",
            "1",
            "-",
            "the consumer has to decide",
        ];
        let of_turin = [
            "turin",
            "default",
            "Accepted",
            "cpu=2, memory=4Gi",
            "1",
            "-",
            "from 2026-01-01T00:05:00Z on, the provider ends pods beyond the offer",
        ];
        assert!(lines.contains(&of_stranger.to_vec()), "{text}");
        assert!(lines.contains(&of_turin.to_vec()), "{text}");
        assert_eq!(lines.len(), 3, "{text}");
    }

    #[test]
    fn programs_get_a_list() {
        let json =
            serde_json::to_value(offer_rows(&known(), everything(), OfferDirection::Received))
                .unwrap();
        assert_eq!(json[0]["withdrawalTimestamp"], "2026-01-01T00:05:00Z");
        assert_eq!(
            (&json[0]["pricePerHour"], &json[0]["prices"]["rates"]["cpu"]),
            (&json!("0.1000002"), &json!("0.0400001"))
        );
        assert_eq!(
            (&json[0]["hops"], &json[0]["path"]),
            (&json!(2), &json!([id(2), id(3)]))
        );
        assert_eq!(
            (&json[0]["behind"], json[1].get("behind")),
            (&json!(["turin"]), None)
        );
        assert_eq!(json[1]["phase"], "ManualActionRequired");
        assert_eq!(
            (&json[3]["decision"], json[3].get("phase")),
            (&json!("Accept"), None)
        );
    }

    #[test]
    fn where_nothing_is_offered_the_next_step_is_told() {
        assert!(render_offers(&[], None, OfferDirection::Received).contains("`liqoctl peer`"));
        assert!(render_offers(&[], None, OfferDirection::Made).contains("`liqoctl policy list`"));
        assert_eq!(
            render_offers(&[], Some("rome"), OfferDirection::Received),
            "rome offers nothing: `liqoctl status` shows why."
        );
        assert!(
            render_offers(&[], Some("rome"), OfferDirection::Made)
                .contains("`liqoctl policy explain rome`")
        );
    }
}
