//! The warnings to a broker, in plain sentences. Pure.

use kube::ResourceExt as _;
use liqo_api::{ContractPhase, NO_NEW_PODS, OfferPhase, PriceList, links, tenant_namespace};

use super::status::{
    BorrowedOffer, BrokerFacts, BrokerProvider, BrokerStatus, BrokerWarning, Customer, LentOffer,
};
use crate::{
    finding::{CheckVerdict, Finding},
    output::strip_control_characters,
    status::LinkSummary,
};

fn warning(what: impl Into<String>) -> BrokerWarning {
    Finding::new((), CheckVerdict::Warn, what)
}

/// The warnings: about what is borrowed first, then about what is lent on.
pub(super) fn warnings_for_status(
    status: &BrokerStatus,
    facts: &BrokerFacts,
) -> Vec<BrokerWarning> {
    let mut warnings = Vec::new();
    if status.providers.is_empty() {
        warnings.push(
            warning("this cluster borrows nothing, so it has nothing to lend on")
                .with_advice("`liqoctl peer` borrows from another cluster"),
        );
    }
    for provider in &status.providers {
        warn_about_provider(provider, status, &mut warnings);
    }
    if status.policies.is_empty() {
        warnings.push(warning("no policy lends on what this cluster borrows any more: what customers still have of it ends"));
    }
    if !status.policies.is_empty() && status.customers.is_empty() {
        warnings.push(
            warning("no policy that lends on applies to a consumer")
                .with_advice("`liqoctl generate peer-command` invites one"),
        );
    }
    for policy in &status.policies {
        let accepted = accepted_offers(status).filter(|offer| {
            offer
                .lent_in
                .iter()
                .any(|pool| pool.split('/').next() == Some(policy.name.as_str()))
        });
        let shortest = accepted
            .filter_map(|offer| offer.offer.notice_seconds)
            .min();
        if let Some(seconds) = shortest.filter(|seconds| *seconds < policy.notice_seconds) {
            let (name, own) = (&policy.name, policy.notice_seconds);
            warnings.push(warning(format!(
                "policy {name} promises a notice of {own} s, and a provider gives only {seconds} s: customers' pods may end earlier than \
                 they were told"
            )));
        }
    }
    for customer in &status.customers {
        warn_about_customer(customer, status, facts, &mut warnings);
    }
    warnings
}

/// The accepted offers of all providers.
fn accepted_offers(status: &BrokerStatus) -> impl Iterator<Item = &BorrowedOffer> {
    let offers = status
        .providers
        .iter()
        .flat_map(|provider| &provider.offers);
    offers.filter(|offer| offer.offer.phase == OfferPhase::Accepted)
}

/// A link that should be True and is not.
fn broken_link<'a>(links: &'a [LinkSummary], name: &str) -> Option<&'a LinkSummary> {
    links
        .iter()
        .find(|link| link.name == name && link.status != "True")
}

fn warn_about_provider(
    provider: &BrokerProvider,
    status: &BrokerStatus,
    warnings: &mut Vec<BrokerWarning>,
) {
    let name = &provider.name;
    if let Some(link) = broken_link(&provider.links, links::PEER_REACHABLE) {
        warnings.push(warning(format!(
            "provider {name} does not answer since {}: {}",
            link.since,
            strip_control_characters(&link.message)
        )));
    }
    if provider.offers.is_empty() {
        warnings.push(
            warning(format!("provider {name} offers nothing"))
                .with_advice("`liqoctl status` shows why"),
        );
    }
    for borrowed in &provider.offers {
        let offer = &borrowed.offer;
        let what = format!("offer {} of {name}", strip_control_characters(&offer.pool));
        if let Some(at) = &offer.withdrawal_timestamp {
            warnings
                .push(warning(format!("{what} is withdrawn and ends at {at}: it is not lent on any more, and customers' pods leave it")));
            continue;
        }
        if let Some(at) = &offer.reclaim_timestamp {
            warnings.push(warning(format!("{what} is smaller than what is used of it: from {at} on, {name} ends pods beyond it")));
        }
        if let Some(at) = &offer.drain_timestamp {
            warnings.push(warning(format!(
                "{what} has other nodes now: from {at} on, {name} ends pods on the former ones"
            )));
        }
        if offer.phase != OfferPhase::Accepted {
            let why = offer
                .message
                .as_deref()
                .map(|why| format!(" ({})", strip_control_characters(why)))
                .unwrap_or_default();
            warnings.push(warning(format!(
                "{what} is {:?}{why}, so nothing of it is lent on",
                offer.phase
            )));
            continue;
        }
        if offer.resources.is_zero() {
            warnings.push(warning(format!("{what} contains nothing now")));
        }
        match (&borrowed.node, borrowed.ready, &borrowed.no_new_pods) {
            (None, _, _) => warnings.push(warning(format!(
                "{what} has no node yet, so nothing of it is lent on"
            ))),
            (Some(node), false, _) => warnings.push(warning(format!(
                "node {node} of {name} is not Ready, so nothing of it is lent on"
            ))),
            (Some(node), true, _) if borrowed.cordoned => {
                warnings.push(warning(format!(
                    "node {node} of {name} is cordoned, so nothing of it is lent on"
                )));
            }
            (Some(node), true, Some(why)) => {
                let why = strip_control_characters(why.strip_prefix(NO_NEW_PODS).unwrap_or(why));
                warnings.push(warning(format!(
                    "node {node} of {name} gets no new pods ({why}), so nothing of it is lent on"
                )));
            }
            (Some(node), true, None)
                if borrowed.lent_in.is_empty() && !status.policies.is_empty() =>
            {
                warnings.push(warning(format!(
                    "node {node} of {name} is in no pool that is lent on: {}",
                    reason_not_lent(borrowed, status)
                )));
            }
            _ => {}
        }
    }
}

/// The reason why no policy lends on the node of an accepted offer.
fn reason_not_lent(borrowed: &BorrowedOffer, status: &BrokerStatus) -> String {
    let mut margins = status
        .policies
        .iter()
        .filter_map(|policy| policy.margin.as_ref());
    let prices = borrowed
        .offer
        .prices
        .as_ref()
        .filter(|prices| asks_any_price(prices));
    match prices.filter(|prices| margins.any(|margin| margin.currency != prices.currency)) {
        Some(prices) => format!(
            "its prices are in {}, and the margin is in another currency",
            strip_control_characters(&prices.currency)
        ),
        None => "too many clusters are behind what this cluster borrows".to_owned(),
    }
}

fn asks_any_price(prices: &PriceList) -> bool {
    prices.rates.iter().any(|(_, rate)| !rate.is_zero())
}

fn warn_about_customer(
    customer: &Customer,
    status: &BrokerStatus,
    facts: &BrokerFacts,
    warnings: &mut Vec<BrokerWarning>,
) {
    let name = &customer.name;
    if let Some(link) = broken_link(&customer.links, links::CONSUMER_REACHABLE) {
        warnings.push(warning(format!(
            "customer {name} does not answer since {}: {}",
            link.since,
            strip_control_characters(&link.message)
        )));
    }
    let provide = customer
        .policy
        .as_deref()
        .and_then(|policy| facts.provide_of_policy(policy));
    if provide.is_some_and(|provide| provide.contract.is_some()) && !has_contract(customer, facts) {
        warnings.push(warning(format!(
            "customer {name} has no contract in force, which policy {} requires: its pods are not admitted (`liqoctl contract list {name}`)",
            customer.policy.as_deref().unwrap_or_default()
        )));
    }
    match broken_link(&customer.links, links::RESOURCES_OFFERED) {
        Some(link) => warnings.push(warning(format!(
            "customer {name} is offered nothing: {}: {}",
            link.reason,
            strip_control_characters(&link.message)
        ))),
        None if customer.offers.is_empty()
            && customer
                .links
                .iter()
                .any(|link| link.name == links::RESOURCES_OFFERED) =>
        {
            warnings.push(
                warning(format!("customer {name} is offered nothing"))
                    .with_advice(format!("`liqoctl policy explain {name}` shows why")),
            );
        }
        None => {}
    }
    for lent in &customer.offers {
        warn_about_lent_offer(name, lent, status, warnings);
    }
}

/// Whether a contract with this customer is in force.
fn has_contract(customer: &Customer, facts: &BrokerFacts) -> bool {
    let namespace = tenant_namespace(&customer.cluster_id);
    facts
        .contracts
        .iter()
        .filter(|contract| contract.namespace().as_ref() == Some(&namespace))
        .any(|contract| {
            let phase = contract
                .status
                .as_ref()
                .map(|status| status.phase)
                .unwrap_or_default();
            contract.spec.in_force_since.is_some() && phase != ContractPhase::Ended
        })
}

fn warn_about_lent_offer(
    customer: &str,
    lent: &LentOffer,
    status: &BrokerStatus,
    warnings: &mut Vec<BrokerWarning>,
) {
    let offer = &lent.offer;
    let what = format!(
        "offer {} to {customer}",
        strip_control_characters(&offer.pool)
    );
    if let Some(at) = &offer.withdrawal_timestamp {
        warnings.push(warning(format!("{what} is withdrawn and ends at {at}")));
        return;
    }
    if let Some(at) = &offer.reclaim_timestamp {
        warnings.push(warning(format!("{what} is smaller than what is used of it: from {at} on, this cluster ends pods beyond it")));
    }
    if let Some(at) = &offer.drain_timestamp {
        warnings.push(warning(format!(
            "{what} has other nodes now: from {at} on, this cluster ends pods on the former ones"
        )));
    }
    if offer.resources.is_zero() {
        warnings.push(warning(format!(
            "pool {} has nothing to lend to {customer} now",
            strip_control_characters(&offer.pool)
        )));
    }
    match (offer.phase, &offer.message) {
        (OfferPhase::Refused, Some(why)) => {
            warnings.push(warning(format!(
                "{customer} refuses offer {}: {}",
                strip_control_characters(&offer.pool),
                strip_control_characters(why)
            )));
        }
        (OfferPhase::Refused, None) => {
            warnings.push(warning(format!(
                "{customer} refuses offer {}",
                strip_control_characters(&offer.pool)
            )));
        }
        _ => {}
    }
    if lent.waiting > 0 {
        let pods = if lent.waiting == 1 {
            "pod of it waits"
        } else {
            "pods of it wait"
        };
        warnings.push(
            warning(format!("{what}: {} {pods} for a node", lent.waiting))
                .with_advice("`kubectl get pods -A -l liqo.io/consumer-id` shows which"),
        );
    }
    for (node, borrowed) in
        accepted_offers(status).filter_map(|borrowed| Some((borrowed.node.as_ref()?, borrowed)))
    {
        if lent
            .from
            .iter()
            .any(|share| share.node.as_ref() == Some(node))
        {
            warnings.extend(below_cost(&what, lent, node, borrowed));
        }
    }
}

/// Whether a resource is lent on for less than its provider asks.
fn below_cost(
    what: &str,
    lent: &LentOffer,
    node: &str,
    borrowed: &BorrowedOffer,
) -> Option<BrokerWarning> {
    let asked = borrowed
        .offer
        .prices
        .as_ref()
        .filter(|prices| asks_any_price(prices))?;
    let price = lent
        .offer
        .prices
        .as_ref()
        .filter(|prices| prices.currency == asked.currency);
    if lent.offer.prices.as_ref().is_some_and(asks_any_price) && price.is_none() {
        // Prices in two currencies cannot be compared.
        return None;
    }
    let mut cheaper = asked.rates.iter().filter_map(|(resource, rate)| {
        let got = price
            .and_then(|price| price.rates.get(resource))
            .unwrap_or_default();
        (got < rate).then(|| {
            format!("{resource} for {got}, for which the provider of node {node} asks {rate}")
        })
    });
    let first = cheaper.next()?;
    Some(warning(format!(
        "{what} costs less than this cluster pays: {} ({} per hour and unit)",
        strip_control_characters(&first),
        strip_control_characters(&asked.currency)
    )))
}
