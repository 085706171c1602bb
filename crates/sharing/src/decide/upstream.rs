//! Resources that this cluster borrows and may lend to others: its virtual nodes, each with the
//! offer that it comes from.
//!
//! ```text
//!   Node turin, of pool default ──▶ copy of turin's offer `default` ──▶ path turin, hops 1, prices
//!                                                                           │
//!   offer to rome:  path milan, turin   hops 2   prices with margin   ◀─────┘
//! ```
//!
//! **No loops.** An offer names all clusters behind it, and nobody is offered what comes from a
//! cluster that is behind it already, or from itself. A pool contains only resources with the same
//! number of hops, so what an offer contains depends only on offers with fewer hops: brokers that
//! lend to each other in a ring settle, however many they are. If pools had mixed hops, an offer
//! could depend on itself.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelectorTerm;
use liqo_api::{
    ClusterId, Key, LargestPods, MAX_PATH_LEN, Margin, PriceList, Rates, ResourceOffer,
    ResourceOfferSpec, labels, provider_namespace,
};
use liqo_quantity::Money;

use super::{
    reduce::{LocalNode, UpstreamOffer},
    snapshot::ProviderSnapshot,
};

/// The percentage of a price without a margin.
const FULL: u32 = 100;
/// Ten-thousandths in a percent.
const PER_PERCENT: u32 = 100;

/// The nodes that can be lent: the own ones, and the virtual ones whose offer is known and not
/// being withdrawn.
///
/// If all paths together have more clusters than an offer may name, the last virtual nodes by name
/// are left out.
pub fn lendable_nodes(snapshot: &ProviderSnapshot) -> Vec<(&str, Cow<'_, LocalNode>)> {
    let mut nodes: Vec<(&str, Cow<LocalNode>)> = Vec::new();
    let mut borrowed: Vec<(&str, &LocalNode)> = Vec::new();
    for (key, node) in &snapshot.nodes {
        match node.upstream {
            None => nodes.push((key.name.as_str(), Cow::Borrowed(node.as_ref()))),
            Some(_) => borrowed.push((key.name.as_str(), node.as_ref())),
        }
    }
    if borrowed.is_empty() {
        return nodes;
    }
    borrowed.sort_unstable_by_key(|(name, _)| *name);
    let offers: HashMap<&Key, &ResourceOffer> = snapshot
        .offers
        .iter()
        .map(|(key, offer)| (key, offer.as_ref()))
        .collect();
    let mut clusters = BTreeSet::from([snapshot.own.clone()]);
    for (name, node) in borrowed {
        let Some(upstream) = &node.upstream else {
            continue;
        };
        let key = Key::new(
            provider_namespace(&upstream.provider),
            upstream.pool.clone(),
        );
        let Some(offer) = offers
            .get(&key)
            .and_then(|offer| known_offer(&upstream.provider, offer))
        else {
            continue;
        };
        // What comes back to this cluster from the one that it is tethered to.
        if offer.path.contains(&snapshot.own) {
            continue;
        }
        let all: BTreeSet<ClusterId> = clusters.union(&offer.path).cloned().collect();
        if all.len() > MAX_PATH_LEN {
            continue;
        }
        clusters = all;
        let mut node = node.clone();
        // Else customers would have our notice only, although their pods have that of the provider,
        // which they read.
        node.allocatable = node.allocatable.clone() + &offer.taken_back;
        if let Some(upstream) = &mut node.upstream {
            upstream.offer = Some(offer);
        }
        nodes.push((name, Cow::Owned(node)));
    }
    nodes
}

/// The parts of an accepted offer that matter to who borrows from us; `None` while the provider
/// takes it back.
fn known_offer(provider: &ClusterId, offer: &ResourceOffer) -> Option<UpstreamOffer> {
    let spec = &offer.spec;
    // More than this version reads is as nothing.
    let largest_pods = if spec.largest_pods.is_too_long() {
        LargestPods::default()
    } else {
        spec.largest_pods.clone()
    };
    let is_leaving =
        spec.withdrawal_timestamp.is_some() || offer.metadata.deletion_timestamp.is_some();
    (spec.cluster_id == *provider && !is_leaving).then(|| UpstreamOffer {
        path: spec
            .path
            .iter()
            .cloned()
            .chain([provider.clone()])
            .collect(),
        hops: spec.hops.max(1),
        prices: spec.prices.clone(),
        largest_pods,
        taken_back: spec
            .resource_quota
            .hard
            .saturating_sub(&spec.lasting_resources()),
    })
}

/// Latest time at which the providers of a borrowed offer end its pods, if all of them take back
/// what it comes from.
pub fn ends_at(snapshot: &ProviderSnapshot, offer: &ResourceOfferSpec) -> Option<Timestamp> {
    let terms = offer
        .node_selector
        .iter()
        .flat_map(|selector| &selector.node_selector_terms);
    let mut last: Option<Timestamp> = None;
    for term in terms {
        let providers = selected_values(term, labels::REMOTE_CLUSTER_ID)
            .into_iter()
            .filter_map(|id| id.parse::<ClusterId>().ok());
        for (provider, pool) in providers.flat_map(|id| {
            selected_values(term, labels::POOL)
                .into_iter()
                .map(move |pool| (id.clone(), pool))
        }) {
            let key = Key::new(provider_namespace(&provider), pool);
            let Some((_, source)) = snapshot.offers.iter().find(|(found, _)| *found == key) else {
                continue;
            };
            last = last.max(Some(source.spec.withdrawal_timestamp.as_ref()?.0));
        }
    }
    last
}

fn selected_values(term: &NodeSelectorTerm, label: &str) -> Vec<String> {
    let expressions = term
        .match_expressions
        .iter()
        .flatten()
        .filter(|one| one.key == label);
    expressions
        .flat_map(|one| one.values.clone().unwrap_or_default())
        .collect()
}

/// Whether the currency of an upstream offer is that of the margin. What costs nothing has no
/// currency.
pub fn has_currency_of(offer: &UpstreamOffer, margin: &Margin) -> bool {
    offer
        .prices
        .as_ref()
        .filter(|prices| prices.rates.iter().any(|(_, rate)| !rate.is_zero()))
        .is_none_or(|prices| prices.currency == margin.currency)
}

/// Prices of a pool of these nodes: the highest price of each resource, and the margin. Nothing is
/// lent for less than it costs.
pub fn with_margin<'a>(
    margin: &Margin,
    nodes: impl IntoIterator<Item = &'a LocalNode>,
) -> PriceList {
    let mut highest = Rates::new();
    for prices in nodes
        .into_iter()
        .filter_map(|node| node.upstream.as_ref()?.offer.as_ref()?.prices.as_ref())
    {
        for (name, rate) in prices.rates.iter() {
            let known = highest.get(name).unwrap_or(rate);
            highest.insert(name, known.max(rate));
        }
    }
    let mut rates = highest.times_ten_thousandths((FULL + u32::from(margin.percent)) * PER_PERCENT);
    for (name, added) in margin.fixed.iter() {
        let before = rates.get(name).unwrap_or(Money::ZERO);
        rates.insert(name, before + added);
    }
    PriceList {
        currency: margin.currency.clone(),
        rates,
    }
}

/// Number of clusters that the resources of a virtual node come through, with this one; `None` if
/// the node is real or its offer unknown.
pub fn hops_to_owner(node: &LocalNode) -> Option<u8> {
    Some(
        node.upstream
            .as_ref()?
            .offer
            .as_ref()?
            .hops
            .saturating_add(1),
    )
}

/// Whether the provider of a virtual node takes back a part of what it lends there.
pub fn is_taken_back(node: &LocalNode) -> bool {
    let offer = node
        .upstream
        .as_ref()
        .and_then(|upstream| upstream.offer.as_ref());
    offer.is_some_and(|offer| !offer.taken_back.is_zero())
}

/// The path of an offer with these nodes, and its hops.
pub fn offer_path<'a>(
    own: &ClusterId,
    nodes: impl IntoIterator<Item = &'a LocalNode>,
) -> (Vec<ClusterId>, u8) {
    let (mut behind, mut hops) = (BTreeSet::new(), 1);
    for offer in nodes
        .into_iter()
        .filter_map(|node| node.upstream.as_ref()?.offer.as_ref())
    {
        behind.extend(offer.path.iter().filter(|cluster| *cluster != own).cloned());
        hops = hops.max(offer.hops.saturating_add(1));
    }
    ([own.clone()].into_iter().chain(behind).collect(), hops)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decide::reduce::UpstreamPool;
    use crate::tests::cluster;

    fn prices(value: serde_json::Value) -> PriceList {
        serde_json::from_value(value).unwrap()
    }

    fn node(path: &[u8], hops: u8, of: Option<PriceList>) -> LocalNode {
        let path_of = path.iter().map(|number| cluster(*number)).collect();
        let offer = UpstreamOffer {
            path: path_of,
            hops,
            prices: of,
            largest_pods: LargestPods::default(),
            taken_back: liqo_api::ResourceList::new(),
        };
        let upstream = UpstreamPool {
            provider: cluster(path[0]),
            pool: "default".into(),
            offer: Some(offer),
        };
        LocalNode {
            upstream: Some(upstream),
            ..LocalNode::default()
        }
    }

    #[test]
    fn a_pool_costs_the_highest_price_of_its_nodes_with_the_margin() {
        let margin = Margin {
            currency: "EUR".into(),
            percent: 10,
            fixed: [("cpu", "0.001".parse().unwrap())].into_iter().collect(),
        };
        let cheap = node(
            &[1],
            1,
            Some(prices(
                json!({ "currency": "EUR", "rates": { "cpu": "0.02", "memory": "0.01" } }),
            )),
        );
        let dear = node(
            &[2],
            1,
            Some(prices(
                json!({ "currency": "EUR", "rates": { "cpu": "0.04" } }),
            )),
        );
        let all = with_margin(&margin, [&cheap, &dear, &LocalNode::default()]);
        assert_eq!(
            all,
            prices(json!({ "currency": "EUR", "rates": { "cpu": "0.045", "memory": "0.011" } }))
        );
        assert_eq!(
            with_margin(&margin, [&node(&[1], 1, None)])
                .rates
                .to_string(),
            "cpu=0.001"
        );
    }

    #[test]
    fn another_currency_is_not_lent_under_a_margin_unless_it_costs_nothing() {
        let margin = Margin {
            currency: "EUR".into(),
            ..Margin::default()
        };
        let of = |value| {
            node(&[1], 1, Some(prices(value)))
                .upstream
                .unwrap()
                .offer
                .unwrap()
        };
        assert!(has_currency_of(
            &of(json!({ "currency": "EUR", "rates": { "cpu": "1" } })),
            &margin
        ));
        assert!(!has_currency_of(
            &of(json!({ "currency": "USD", "rates": { "cpu": "1" } })),
            &margin
        ));
        assert!(has_currency_of(
            &of(json!({ "currency": "USD", "rates": { "cpu": "0" } })),
            &margin
        ));
    }

    #[test]
    fn a_path_begins_with_the_provider_and_names_everybody_behind_once() {
        let own = cluster(9);
        let (path, hops) = offer_path(
            &own,
            [
                &node(&[2, 1], 2, None),
                &node(&[1], 1, None),
                &LocalNode::default(),
            ],
        );
        let mut behind = [cluster(1), cluster(2)];
        behind.sort();
        assert_eq!(
            (path[0].clone(), &path[1..], hops),
            (own.clone(), &behind[..], 3)
        );
        assert_eq!(
            super::offer_path(&own, [&LocalNode::default()]),
            (vec![own], 1)
        );
    }
}
