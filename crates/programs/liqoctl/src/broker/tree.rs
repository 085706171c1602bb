//! The status of a broker as a tree for people: customers, where their pods run, providers,
//! warnings.

use std::collections::BTreeMap;

use liqo_api::{NO_NEW_PODS, OfferPhase, links};
use liqo_quantity::per_hour;

use super::status::{
    BorrowedOffer, BrokerOffer, BrokerPolicy, BrokerProvider, BrokerStatus, Customer,
    CustomerNodeUsage, LentOffer, OtherConsumer,
};
use crate::{
    branch::Branch,
    output::{Paint, strip_control_characters},
    status::LinkSummary,
};

/// Maximum number of clusters to name behind an offer.
const MAX_CLUSTERS_NAMED: usize = 5;

pub fn render_broker_status(status: &BrokerStatus, paint: Paint) -> String {
    let name = paint.strong(&status.cluster);
    if !status.broker {
        return format!(
            "{name} is no broker: no policy lends on what it borrows. `liqoctl broker enable` changes that.{}",
            if status.providers.is_empty() {
                " First borrow something: `liqoctl peer`."
            } else {
                ""
            }
        );
    }
    let mut root = Branch::leaf(format!(
        "{name}{} lends on what it borrows",
        paint.faint(&format!(" (ID {})", status.cluster_id))
    ));
    root.children.extend(
        status
            .policies
            .iter()
            .map(|one| Branch::leaf(policy_line(one))),
    );
    root.children.extend(
        status
            .customers
            .iter()
            .map(|one| customer_branch(one, paint)),
    );
    root.children.extend(
        status
            .providers
            .iter()
            .map(|one| provider_branch(one, &status.cluster, paint)),
    );
    root.children.extend(
        status
            .other_consumers
            .iter()
            .map(|one| Branch::leaf(paint.faint(&other_consumer_line(one)))),
    );
    if !status.warnings.is_empty() {
        let children = status
            .warnings
            .iter()
            .map(|warning| {
                Branch::leaf(paint.unsure(&strip_control_characters(&warning.sentence())))
            })
            .collect();
        root.children.push(Branch {
            text: paint.strong("warnings"),
            children,
        });
    }
    let mut out = String::new();
    root.draw("", &mut out);
    out
}

fn policy_line(policy: &BrokerPolicy) -> String {
    let own = if policy.own_nodes {
        ", and of its own nodes,"
    } else {
        ""
    };
    let price = match &policy.margin {
        None => String::new(),
        Some(margin) => {
            let fixed = if margin.fixed.is_empty() {
                String::new()
            } else {
                format!(" and {}", margin.fixed)
            };
            format!("; margin {} %{fixed} ({})", margin.percent, margin.currency)
        }
    };
    match &policy.plugin {
        Some(address) => format!(
            "policy {}: as much of it as plugin {address} says, to {}",
            policy.name, policy.peers
        ),
        None => format!(
            "policy {}: {} % of it{own} to {}{price}",
            policy.name, policy.percentage, policy.peers
        ),
    }
}

/// Whether a cluster answers.
fn reachability_mark(links: &[LinkSummary], name: &str, paint: Paint) -> String {
    match links.iter().find(|link| link.name == name) {
        Some(link) if link.status == "True" => paint.good("✓ answers"),
        Some(link) => paint.bad(&format!("✗ does not answer since {}", link.since)),
        None => paint.unsure("? not heard yet"),
    }
}

fn pods(number: usize) -> String {
    format!("{number} {}", if number == 1 { "pod" } else { "pods" })
}

fn customer_branch(customer: &Customer, paint: Paint) -> Branch {
    let health = reachability_mark(&customer.links, links::CONSUMER_REACHABLE, paint);
    let policy = customer.policy.as_ref().map_or_else(
        || "no policy".to_owned(),
        |policy| format!("policy {policy}"),
    );
    let text = format!(
        "customer {} {health}, {policy}, {}",
        paint.strong(&customer.name),
        pods(customer.pods)
    );
    let mut children: Vec<Branch> = customer
        .offers
        .iter()
        .map(|one| lent_offer_branch(one, paint))
        .collect();
    if children.is_empty() {
        children.push(Branch::leaf(paint.faint("nothing is offered to it")));
    }
    Branch { text, children }
}

/// The text about an offer, the same for both directions.
fn offer_branch(offer: &BrokerOffer, paint: Paint) -> Branch {
    let phase = format!("{:?}", offer.phase);
    let phase = match offer.phase {
        OfferPhase::Accepted => paint.good(&phase),
        OfferPhase::Refused => paint.bad(&phase),
        OfferPhase::Pending | OfferPhase::ManualActionRequired => paint.unsure(&phase),
    };
    let mut branch = Branch::leaf(format!(
        "offer {}: {phase}: {}{}",
        strip_control_characters(&offer.pool),
        offer.resources.rounded(),
        clusters_behind(offer)
    ));
    if let Some(prices) = &offer.prices {
        let all = per_hour(&prices.rates, &offer.resources).rounded();
        let rates = if prices.rates.is_empty() {
            "nothing".to_owned()
        } else {
            prices.rates.to_string()
        };
        branch
            .children
            .push(Branch::leaf(strip_control_characters(&format!(
                "price: {all} {} per hour ({rates})",
                prices.currency
            ))));
    }
    branch
}

/// The clusters behind the provider, of which there may be many.
fn clusters_behind(offer: &BrokerOffer) -> String {
    if offer.behind.is_empty() {
        return String::new();
    }
    format!(
        ", through {} clusters ({})",
        offer.hops,
        abbreviated_names(&offer.behind)
    )
}

/// `turin, genoa and 3 more`.
pub fn abbreviated_names(names: &[String]) -> String {
    let first: Vec<&str> = names
        .iter()
        .take(MAX_CLUSTERS_NAMED)
        .map(String::as_str)
        .collect();
    match names.len().saturating_sub(first.len()) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn lent_offer_branch(lent: &LentOffer, paint: Paint) -> Branch {
    let mut branch = offer_branch(&lent.offer, paint);
    branch
        .children
        .push(Branch::leaf(format!("used: {}", lent.used.rounded())));
    branch.children.extend(
        lent.from
            .iter()
            .map(|one| Branch::leaf(node_usage_line(one))),
    );
    if lent.waiting > 0 {
        branch.children.push(Branch::leaf(
            paint.unsure(&format!("{} without a node", pods(lent.waiting))),
        ));
    }
    branch
}

fn node_usage_line(share: &CustomerNodeUsage) -> String {
    let node = share
        .node
        .as_ref()
        .map_or_else(|| "own nodes".to_owned(), |node| format!("node {node}"));
    let used = if share.pods == 0 {
        String::new()
    } else {
        format!(": {}", share.used.rounded())
    };
    format!(
        "from {} ({node}): {}{used}",
        share.cluster,
        pods(share.pods)
    )
}

fn provider_branch(provider: &BrokerProvider, own: &str, paint: Paint) -> Branch {
    let health = reachability_mark(&provider.links, links::PEER_REACHABLE, paint);
    let since = provider
        .known_since
        .as_ref()
        .map(|since| paint.faint(&format!(" (known since {since})")))
        .unwrap_or_default();
    let text = format!(
        "provider {} {health}{since}, {} of customers",
        paint.strong(&provider.name),
        pods(provider.customer_pods)
    );
    let mut children: Vec<Branch> = provider
        .offers
        .iter()
        .map(|one| borrowed_offer_branch(one, own, paint))
        .collect();
    if children.is_empty() {
        children.push(Branch::leaf(paint.faint("it offers nothing")));
    }
    Branch { text, children }
}

fn borrowed_offer_branch(borrowed: &BorrowedOffer, own: &str, paint: Paint) -> Branch {
    let mut branch = offer_branch(&borrowed.offer, paint);
    let Some(node) = &borrowed.node else {
        return branch;
    };
    let ready = if borrowed.ready {
        paint.good("Ready")
    } else {
        paint.bad("not Ready")
    };
    let closed = borrowed
        .no_new_pods
        .as_deref()
        .map(|why| why.strip_prefix(NO_NEW_PODS).unwrap_or(why));
    let closed = closed
        .map(|why| paint.unsure(&format!(", no new pods: {}", strip_control_characters(why))))
        .unwrap_or_default();
    let lent = if borrowed.lent_in.is_empty() {
        paint.faint("not lent on")
    } else {
        format!("lent on as {}", borrowed.lent_in.join(", "))
    };
    let cordoned = if borrowed.cordoned {
        paint.unsure(", cordoned")
    } else {
        String::new()
    };
    branch.children.push(Branch::leaf(format!(
        "node {node}: {ready}{cordoned}{closed}, {lent}"
    )));
    branch.children.push(Branch::leaf(format!(
        "used: {}{}",
        borrowed.used.rounded(),
        by_customer(&borrowed.pods, own)
    )));
    branch
}

/// ` (2 pods of rome, 1 pod of this cluster)`.
fn by_customer(counts: &BTreeMap<String, usize>, own: &str) -> String {
    let each: Vec<String> = counts
        .iter()
        .map(|(name, number)| {
            let who = if name == own { "this cluster" } else { name };
            format!("{} of {who}", pods(*number))
        })
        .collect();
    if each.is_empty() {
        String::new()
    } else {
        format!(" ({})", each.join(", "))
    }
}

fn other_consumer_line(other: &OtherConsumer) -> String {
    match &other.policy {
        Some(policy) => format!(
            "consumer {} gets nothing of it: policy {policy} applies to it",
            other.name
        ),
        None => format!(
            "consumer {} gets nothing of it: no policy applies to it",
            other.name
        ),
    }
}
