//! The gateways that this cluster announces to its peers. `liqo_network_model::gateways` says when
//! a gateway is taken for lost.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use liqo_api::{GatewayAddress, Gateways};
use liqo_network_model::gateways::{
    GatewayLease, LEASE_DURATION, LeaseObservations, MAX_GATEWAYS, is_key,
};

use super::ranges::NodeNetwork;

/// Records a change of a Lease. Returns whether the announcement may change: after every change,
/// except a renewal in time by a gateway that nobody suspects.
pub fn observe_lease(
    observations: &mut LeaseObservations,
    number: u8,
    lease: Option<&GatewayLease>,
    now: Instant,
) -> bool {
    let Some(lease) = lease else {
        return observations.forget(number);
    };
    let is_in_time =
        !observations.has_expired(number, now) && !observations.is_suspected(number, now);
    let is_renewal = observations.lease(number).is_some_and(|before| {
        let renewed = GatewayLease {
            version: lease.version.clone(),
            renewed_at: lease.renewed_at,
            buckets: lease.buckets,
            ..before.clone()
        };
        renewed == *lease
    });
    observations.observe(lease.clone(), now);
    !(is_in_time && is_renewal)
}

/// Our gateways in the order of their Leases, without those that are lost; and after which time
/// that may change.
pub fn gateways_to_announce(
    settings: &Gateways,
    observations: &LeaseObservations,
    nodes: &BTreeMap<String, Arc<NodeNetwork>>,
    now: Instant,
) -> (Vec<GatewayAddress>, Option<Duration>) {
    let (mut found, mut changes_in): (Vec<GatewayAddress>, Vec<Duration>) = Default::default();
    for number in 0..settings.replicas.min(MAX_GATEWAYS) {
        let Some(lease) = observations.lease(number) else {
            continue;
        };
        if observations.is_suspected(number, now) {
            changes_in.push(LEASE_DURATION);
            continue;
        }
        if !observations.has_expired(number, now) {
            changes_in.push(observations.expires_in(number, now));
        }
        if observations.is_silent(number, now) {
            continue;
        }
        let (Some(node), Some(public_key)) = (&lease.node, valid_key(lease.public_key.as_ref()))
        else {
            continue;
        };
        // A node reports itself that it is a gateway; the settings say which nodes may be.
        let Some(node) = nodes
            .get(node)
            .filter(|node| settings.selects_node(&node.labels))
        else {
            continue;
        };
        // Peers send to the one of a gateway's keys that answered last.
        let keys: Vec<&String> = valid_key(lease.former_key.as_ref())
            .into_iter()
            .chain([public_key])
            .collect();
        if !found.iter().any(|other| keys.contains(&&other.public_key)) {
            found.extend(
                keys.into_iter()
                    .map(|key| gateway_address(settings, lease, node, key)),
            );
        }
    }
    (found, changes_in.into_iter().min())
}

/// One invalid key would make peers refuse our whole announcement.
fn valid_key(key: Option<&String>) -> Option<&String> {
    key.filter(|key| is_key(key))
}

fn gateway_address(
    settings: &Gateways,
    lease: &GatewayLease,
    node: &NodeNetwork,
    public_key: &String,
) -> GatewayAddress {
    let first_key = valid_key(lease.first_key.as_ref()).or(valid_key(lease.former_key.as_ref()));
    GatewayAddress {
        public_key: public_key.clone(),
        first_key: first_key.filter(|first| *first != public_key).cloned(),
        endpoints: endpoints_of(&settings.addresses, node, settings.port),
        tls: lease
            .tls_port
            .map(|port| endpoints_of(&settings.tls_addresses, node, port))
            .unwrap_or_default(),
    }
}

/// The addresses that the settings contain, or else those of the node.
fn endpoints_of(set: &[String], node: &NodeNetwork, port: u16) -> Vec<String> {
    if !set.is_empty() {
        return set.to_vec();
    }
    let addresses = node.addresses.iter();
    addresses
        .map(|&address| SocketAddr::new(address, port).to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease(number: u8, node: &str, version: u32) -> GatewayLease {
        GatewayLease {
            number,
            node: Some(node.to_owned()),
            public_key: Some(key(node)),
            version: Some(version.to_string()),
            ..GatewayLease::default()
        }
    }

    /// A key that begins with the first letter of this name.
    fn key(name: &str) -> String {
        BASE64.encode(&[name.as_bytes()[0]; 32])
    }

    /// Records a Lease that changed now.
    fn record(observations: &mut LeaseObservations, lease: &GatewayLease, now: Instant) -> bool {
        observe_lease(observations, lease.number, Some(lease), now)
    }

    fn observed(leases: &[GatewayLease], now: Instant) -> LeaseObservations {
        let mut observations = LeaseObservations::default();
        for lease in leases {
            record(&mut observations, lease, now);
        }
        observations
    }

    fn nodes() -> BTreeMap<String, Arc<NodeNetwork>> {
        let node = |address: &str| {
            NodeNetwork {
                addresses: vec![address.parse().unwrap()],
                ..NodeNetwork::default()
            }
            .into()
        };
        BTreeMap::from([
            ("a".to_owned(), node("172.18.0.2")),
            ("b".to_owned(), node("fd00::2")),
        ])
    }

    /// The first letters of the names of keys.
    fn keys(found: &[GatewayAddress]) -> String {
        found
            .iter()
            .map(|gateway| letter(&gateway.public_key))
            .collect()
    }

    fn letter(key: &str) -> char {
        BASE64.decode(key.as_bytes()).unwrap()[0].into()
    }

    #[test]
    fn a_gateway_that_renews_its_lease_stays_and_one_that_does_not_is_left_out() {
        let (start, settings, nodes) = (Instant::now(), Gateways::default(), nodes());
        let mut observations = LeaseObservations::default();
        assert!(record(&mut observations, &lease(0, "b", 1), start));
        assert!(record(&mut observations, &lease(1, "a", 1), start));
        assert!(
            !record(&mut observations, &lease(1, "a", 2), start + 4 * SECOND),
            "it is only renewed"
        );
        let (found, again) =
            gateways_to_announce(&settings, &observations, &nodes, start + 5 * SECOND);
        assert_eq!(keys(&found), "ba", "the order is that of the leases");
        assert_eq!(again, Some(SECOND));
        let (found, again) =
            gateways_to_announce(&settings, &observations, &nodes, start + 6 * SECOND);
        assert_eq!((keys(&found), again), ("a".to_owned(), Some(4 * SECOND)));
        let (found, again) =
            gateways_to_announce(&settings, &observations, &nodes, start + 60 * SECOND);
        assert_eq!(
            (keys(&found), again),
            ("a".to_owned(), None),
            "nobody is seen: nothing is withdrawn"
        );
    }

    #[test]
    fn a_suspected_gateway_is_left_out_until_it_renews_its_lease() {
        let start = Instant::now();
        let suspicious = GatewayLease {
            suspects: "0@1".parse().unwrap(),
            ..lease(1, "a", 5)
        };
        let mut observations = observed(&[lease(0, "b", 1), lease(1, "a", 4)], start);
        let soon = start + SECOND;
        assert!(record(&mut observations, &suspicious, soon), "it is news");
        let found = |observations: &LeaseObservations, at| {
            let (found, _) = gateways_to_announce(&Gateways::default(), observations, &nodes(), at);
            keys(&found)
        };
        assert_eq!(found(&observations, soon), "a");
        let mut renewed = observations.clone();
        assert!(
            record(&mut renewed, &lease(0, "b", 2), soon),
            "and so is this"
        );
        assert_eq!(found(&renewed, soon), "ba", "it is there after all");
        assert_eq!(
            found(&observations, soon + 6 * SECOND),
            "a",
            "as long as the API server is away, too"
        );
        record(&mut observations, &lease(0, "b", 2), soon + 5 * SECOND);
        assert_eq!(
            found(&observations, soon + 6 * SECOND),
            "b",
            "the gateway that suspected it is lost"
        );
    }

    #[test]
    fn while_the_api_server_is_away_no_gateway_is_left_out() {
        let (start, nodes) = (Instant::now(), nodes());
        let mut observations = observed(&[lease(0, "b", 1)], start);
        record(&mut observations, &lease(1, "a", 1), start + SECOND);
        let check = |observations: &LeaseObservations, seconds| {
            let (found, _) = gateways_to_announce(
                &Gateways::default(),
                observations,
                &nodes,
                start + seconds * SECOND,
            );
            assert_eq!(keys(&found), "ba", "after {seconds} s");
        };
        for seconds in [6, 7, 60] {
            check(&observations, seconds);
        }
        record(&mut observations, &lease(1, "a", 2), start + 60 * SECOND);
        check(&observations, 60);
    }

    #[test]
    fn every_change_but_a_renewal_in_time_is_news() {
        let now = Instant::now();
        let mut observations = observed(&[lease(0, "a", 1)], now);
        assert!(
            record(&mut observations, &lease(0, "a", 2), now + 6 * SECOND),
            "it had expired"
        );
        assert!(
            record(&mut observations, &lease(0, "b", 3), now + 7 * SECOND),
            "another one holds it"
        );
        let listening = GatewayLease {
            tls_port: Some(443),
            ..lease(0, "b", 4)
        };
        assert!(
            record(&mut observations, &listening, now + 8 * SECOND),
            "it listens"
        );
        assert!(
            observe_lease(&mut observations, 0, None, now + 9 * SECOND),
            "nobody holds it"
        );
    }

    #[test]
    fn gateways_are_reached_at_their_nodes_unless_something_else_is_set() {
        let (now, nodes) = (Instant::now(), nodes());
        let all = observed(&[lease(0, "b", 1), lease(1, "gone", 1)], now);
        let (found, _) = gateways_to_announce(&Gateways::default(), &all, &nodes, now);
        assert_eq!(found.len(), 1, "a node that is not there is no gateway");
        assert_eq!(found[0].endpoints, ["[fd00::2]:51840"]);
        let copied = GatewayLease {
            number: 1,
            node: Some("a".to_owned()),
            ..lease(0, "b", 1)
        };
        let twice = observed(&[lease(0, "b", 1), copied], now);
        assert_eq!(
            keys(&gateways_to_announce(&Gateways::default(), &twice, &nodes, now).0),
            "b"
        );
        let labelled = Gateways {
            node_selector: [("edge".to_owned(), "yes".to_owned())].into(),
            ..Gateways::default()
        };
        assert_eq!(
            gateways_to_announce(&labelled, &all, &nodes, now).0,
            [],
            "a node that may not be a gateway is none"
        );
        let settings = Gateways {
            addresses: vec!["gw.example:1".into()],
            ..Gateways::default()
        };
        assert_eq!(
            gateways_to_announce(&settings, &all, &nodes, now).0[0].endpoints,
            ["gw.example:1"]
        );
    }

    #[test]
    fn a_lease_that_nobody_holds_or_without_a_valid_key_is_not_announced() {
        let now = Instant::now();
        let all = observed(
            &[
                GatewayLease {
                    node: None,
                    ..lease(0, "a", 1)
                },
                GatewayLease {
                    public_key: Some("no key".to_owned()),
                    ..lease(1, "b", 1)
                },
            ],
            now,
        );
        assert_eq!(
            gateways_to_announce(&Gateways::default(), &all, &nodes(), now).0,
            []
        );
    }

    #[test]
    fn a_gateway_whose_key_is_renewed_is_announced_with_both() {
        let now = Instant::now();
        let renewed = GatewayLease {
            former_key: Some(key("g")),
            first_key: Some(key("f")),
            ..lease(0, "b", 1)
        };
        let (found, _) = gateways_to_announce(
            &Gateways::default(),
            &observed(&[renewed, lease(1, "a", 1)], now),
            &nodes(),
            now,
        );
        assert_eq!(keys(&found), "gba");
        assert_eq!(found[0].endpoints, found[1].endpoints);
        let first: Vec<Option<char>> = found
            .iter()
            .map(|one| one.first_key.as_deref().map(letter))
            .collect();
        assert_eq!(first, [Some('f'), Some('f'), None]);
    }

    #[test]
    fn tls_is_announced_as_long_as_a_gateway_listens() {
        let (now, nodes) = (Instant::now(), nodes());
        let listening = GatewayLease {
            tls_port: Some(443),
            ..lease(0, "b", 1)
        };
        let all = observed(&[listening, lease(1, "a", 1)], now);
        let tls = |settings: &Gateways| {
            gateways_to_announce(settings, &all, &nodes, now)
                .0
                .into_iter()
                .map(|one| one.tls)
                .collect()
        };
        let found: Vec<Vec<String>> = tls(&Gateways::default());
        assert_eq!(found, [vec!["[fd00::2]:443".to_owned()], vec![]]);
        let behind = Gateways {
            tls_addresses: vec!["gw.example:443".into()],
            ..Gateways::default()
        };
        let found: Vec<Vec<String>> = tls(&behind);
        assert_eq!(found, [vec!["gw.example:443".to_owned()], vec![]]);
    }
}
