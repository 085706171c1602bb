//! Rules for the addresses of ours that a peer may open connections to, and for those of other
//! peers that it reaches through us. Some addresses are open only to packets of connections that
//! exist.
//!
//! Two peers reach each other in two cases. With transit, each reaches what the other one exports
//! to us, as far as it is reachable. If we offloaded pods of one (the customer) on to the other
//! (the provider), then only these pods and the customer reach each other: packets between the two
//! peers must have the address of such a pod at the provider's end. The customer decides which of
//! its addresses they reach.
//!
//! ```text
//!   customer --> its pods at the provider                    daddr @pods_customer
//!   pods of the customer at the provider --> customer        saddr @pods_customer, daddr in the customer's prefixes
//!                                        --> its pods here   saddr @pods_customer, daddr @pods_customer
//! ```

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use liqo_api::ClusterId;

use super::syntax::{IpFamily, add_chain, define_set, join_elements};
use crate::{
    fabric::{Fabric, PeerNetwork, ReachableScope},
    space::prefixes_overlap,
};

/// The sets of the pods of each customer.
pub(super) fn customer_sets(fabric: &Fabric, family: IpFamily) -> String {
    let mut text = String::new();
    for (id, customer) in fabric.customers() {
        let pods = addresses_of_family(&customer.offloaded, family);
        text.push_str(&define_set(family, &pods_of(id), "", pods));
    }
    text
}

fn pods_of(customer: &ClusterId) -> String {
    format!("pods_{customer}")
}

/// The chain that accepts packets of this peer.
pub(super) fn chain_of(
    text: &mut String,
    fabric: &Fabric,
    family: IpFamily,
    (id, peer): (&ClusterId, &PeerNetwork),
) {
    let keyword = family.keyword();
    let mut rules = Vec::new();
    match &peer.reachable {
        ReachableScope::Everything => {
            let everything = exported_prefixes(fabric, family, id, peer);
            if !everything.is_empty() {
                rules.push(format!(
                    "{keyword} daddr {{ {} }} accept",
                    join_elements(everything)
                ));
            }
        }
        ReachableScope::Only { all, established } => {
            text.push_str(&define_set(
                family,
                &format!("opened_{id}"),
                "",
                addresses_of_family(all, family),
            ));
            rules.push(format!("{keyword} daddr @opened_{id} accept"));
            let established = addresses_of_family(established, family);
            if !established.is_empty() {
                text.push_str(&define_set(
                    family,
                    &format!("established_{id}"),
                    "",
                    established,
                ));
                rules.push(format!(
                    "ct state established,related {keyword} daddr @established_{id} accept"
                ));
            }
        }
    }
    let customers = fabric.customers();
    if customers.contains_key(id) {
        rules.push(format!("{keyword} daddr @{} accept", pods_of(id)));
    }
    for (id, customer) in customers
        .into_iter()
        .filter(|(id, _)| peer.customers.contains(*id))
    {
        let pods = pods_of(id);
        let prefixes: Vec<IpNet> = peer_prefixes(customer)
            .filter(|prefix| family.contains_prefix(prefix))
            .collect();
        if !prefixes.is_empty() {
            rules.push(format!(
                "{keyword} saddr @{pods} {keyword} daddr {{ {} }} accept",
                join_elements(prefixes)
            ));
        }
        rules.push(format!(
            "{keyword} saddr @{pods} {keyword} daddr @{pods} accept"
        ));
    }
    add_chain(text, &format!("open_{id}"), "", &rules);
}

fn addresses_of_family(addresses: &BTreeSet<IpAddr>, family: IpFamily) -> Vec<IpAddr> {
    addresses
        .iter()
        .copied()
        .filter(|&address| family.contains_prefix(&address.into()))
        .collect()
}

/// All that is exported to a peer, except what it knows only for the pods that were offloaded on.
fn exported_prefixes(
    fabric: &Fabric,
    family: IpFamily,
    id: &ClusterId,
    peer: &PeerNetwork,
) -> Vec<IpNet> {
    // The prefixes of these are known to the peer only for the pods that were offloaded on.
    let others = fabric
        .peers
        .iter()
        .filter(|(other, _)| *other != id && !fabric.is_transit(id, other));
    let for_pods_alone: Vec<IpNet> = others.flat_map(|(_, other)| peer_prefixes(other)).collect();
    let exported = peer.maps.exported.pairs().map(|(here, _)| here.0);
    exported
        .filter(|prefix| {
            let mut others = for_pods_alone.iter();
            family.contains_prefix(prefix)
                && !fabric.external.contains(prefix)
                && !others.any(|other| prefixes_overlap(other, prefix))
        })
        .collect()
}

/// The prefixes of a peer, in our address space.
fn peer_prefixes(peer: &PeerNetwork) -> impl Iterator<Item = IpNet> {
    peer.maps.imported.pairs().map(|(here, _)| here.0)
}
