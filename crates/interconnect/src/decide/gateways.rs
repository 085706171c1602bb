//! Which gateways this cluster has: the nodes that hold a Lease, and renew it.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use data_encoding::BASE64;
use k8s_openapi::api::coordination::v1::Lease;
use liqo_api::{GatewayAddress, Gateways, Unheard, annotations, gateway_lease};
use liqo_network::plan::MOST_GATEWAYS;

use super::ranges::NodeAddresses;

/// A gateway's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The node that holds it.
    pub node: String,
    /// The node's WireGuard key (base64).
    pub public_key: String,
    /// The first one that it had, where that is another one.
    pub first_key: Option<String>,
    /// The one before, which sessions still begin with.
    pub former_key: Option<String>,
    /// The TCP port on which it takes connections over TLS, if it does.
    pub tls_port: Option<u16>,
    /// How long it holds after a renewal.
    pub duration: Duration,
    /// What changes with each renewal.
    pub version: String,
    /// The gateways that the node does not hear any more.
    pub unheard: Unheard,
}

impl Held {
    /// Reduces a Lease; none if nobody holds it, or with something that is no key: peers refuse all that we say for the sake of that.
    #[allow(clippy::needless_pass_by_value)] // The form that a cache wants.
    pub fn of(lease: Lease) -> Option<Self> {
        let spec = lease.spec?;
        let mut annotations = lease.metadata.annotations?;
        Some(Self {
            node: spec.holder_identity.filter(|holder| !holder.is_empty())?,
            public_key: annotations.remove(annotations::GATEWAY_KEY).filter(|key| is_key(key))?,
            first_key: annotations.remove(annotations::GATEWAY_FIRST_KEY).filter(|key| is_key(key)),
            former_key: annotations.remove(annotations::GATEWAY_FORMER_KEY).filter(|key| is_key(key)),
            tls_port: annotations.remove(annotations::GATEWAY_TLS).and_then(|port| port.parse().ok()),
            duration: Duration::from_secs(u64::try_from(spec.lease_duration_seconds?).ok()?),
            version: lease.metadata.resource_version.unwrap_or_default(),
            unheard: annotations.remove(annotations::GATEWAY_UNHEARD).and_then(|text| text.parse().ok()).unwrap_or_default(),
        })
    }
}

/// Whether this is a WireGuard key in base64.
pub fn is_key(text: &str) -> bool {
    BASE64.decode(text.as_bytes()).is_ok_and(|key| key.len() == 32)
}

/// When each Lease was last seen to change, by our own clock: the times within it are of other clocks.
#[derive(Clone, Debug, Default)]
pub struct Observed(HashMap<String, Observation>);

#[derive(Clone, Debug)]
struct Observation {
    at: Instant,
    unheard: Unheard,
}

impl Observed {
    /// Takes note of a change of a Lease. Whether that is news: anything but a renewal in time by one that everybody hears.
    pub fn see(&mut self, name: &str, old: Option<&Held>, new: Option<&Held>, now: Instant) -> bool {
        let Some(new) = new else { return self.0.remove(name).is_some() };
        let before = self.0.insert(name.to_owned(), Observation { at: now, unheard: new.unheard.clone() });
        let in_time = before.is_some_and(|before| now.duration_since(before.at) < new.duration);
        let is_as_before = |old: &Held| Held { version: new.version.clone(), ..old.clone() } == *new;
        !in_time || old.is_none_or(|old| !is_as_before(old) || self.is_unheard(name, &old.version))
    }

    /// Whether a gateway says that it does not hear the holder of this Lease.
    fn is_unheard(&self, name: &str, version: &str) -> bool {
        let number = (0..MOST_GATEWAYS).find(|number| gateway_lease(*number) == name);
        number.is_some_and(|number| self.0.values().any(|other| other.unheard.names(number, version)))
    }
}

/// Our gateways in the order of their Leases; and when to look again. One is left out when its Lease ran out while another one was
/// renewed, or when another one does not hear it any more. When all fall silent, it is rather we who do not see: then all stay.
pub fn ours(
    settings: &Gateways,
    leases: &BTreeMap<String, Arc<Held>>,
    observed: &Observed,
    nodes: &BTreeMap<String, Arc<NodeAddresses>>,
    now: Instant,
) -> (Vec<GatewayAddress>, Option<Duration>) {
    let (mut found, mut again) = (Vec::new(), None);
    let names: Vec<String> = (0..settings.replicas.min(MOST_GATEWAYS)).map(gateway_lease).collect();
    let seen = |name: &str| observed.0.get(name).map(|observation| observation.at);
    let newest = names.iter().filter(|name| leases.contains_key(*name)).filter_map(|name| seen(name)).max();
    let left_of = |name: &str| Some(leases.get(name)?.duration.saturating_sub(now.duration_since(seen(name)?)));
    // Within this time each gateway renews its Lease, if the API server answers.
    let is_overtaken = |name: &str, duration: Duration| {
        newest.zip(seen(name)).is_some_and(|(newest, seen)| newest.duration_since(seen) >= duration * 2 / 3)
    };
    let is_alive = |name: &str| {
        let is_over = left_of(name).is_none_or(|left| left.is_zero());
        leases.get(name).is_some_and(|held| !(is_over && is_overtaken(name, held.duration)))
    };
    for (number, name) in (0..).zip(names.iter().map(String::as_str)) {
        let (Some(held), Some(left)) = (leases.get(name), left_of(name)) else { continue };
        let mut others = names.iter().filter(|other| *other != name && is_alive(other)).filter_map(|other| leases.get(other));
        if others.any(|other| other.unheard.names(number, &held.version)) {
            again = Some(again.map_or(held.duration, |again: Duration| again.min(held.duration)));
            continue;
        }
        if !left.is_zero() {
            again = Some(again.map_or(left, |again: Duration| again.min(left)));
        }
        if !is_alive(name) {
            continue;
        }
        // A node says of itself that it is a gateway; which may be one is said here.
        let fits =
            |node: &&Arc<NodeAddresses>| settings.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let Some(node) = nodes.get(&held.node).filter(fits) else { continue };
        let reached = |set: &[String], port: u16| match set {
            [] => node.addresses.iter().map(|&address| SocketAddr::new(address, port).to_string()).collect(),
            set => set.to_vec(),
        };
        let first_key = held.first_key.as_ref().or(held.former_key.as_ref());
        let gateway = |public_key: &String| GatewayAddress {
            public_key: public_key.clone(),
            first_key: first_key.filter(|first| *first != public_key).cloned(),
            endpoints: reached(&settings.addresses, settings.port),
            tls: held.tls_port.map(|port| reached(&settings.tls_addresses, port)).unwrap_or_default(),
        };
        // Of one gateway's ends peers send to the last that answers.
        let keys: Vec<&String> = [held.former_key.as_ref(), Some(&held.public_key)].into_iter().flatten().collect();
        if !found.iter().any(|other: &GatewayAddress| keys.contains(&&other.public_key)) {
            found.extend(keys.into_iter().map(gateway));
        }
    }
    (found, again)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn held(node: &str, version: u32) -> Arc<Held> {
        let public_key = format!("key of {node}");
        let (duration, version) = (6 * SECOND, version.to_string());
        let (node, unheard) = (node.into(), Unheard::default());
        Held { node, public_key, first_key: None, former_key: None, tls_port: None, duration, version, unheard }.into()
    }

    fn leases(all: &[(u8, Arc<Held>)]) -> BTreeMap<String, Arc<Held>> {
        all.iter().map(|(number, held)| (gateway_lease(*number), held.clone())).collect()
    }

    fn nodes() -> BTreeMap<String, Arc<NodeAddresses>> {
        let node = |address: &str| NodeAddresses { addresses: vec![address.parse().unwrap()], ..NodeAddresses::default() }.into();
        BTreeMap::from([("a".to_owned(), node("172.18.0.2")), ("b".to_owned(), node("fd00::2"))])
    }

    fn keys_of(found: &[GatewayAddress]) -> Vec<String> {
        keys(found).into_iter().map(str::to_owned).collect()
    }

    fn keys(found: &[GatewayAddress]) -> Vec<&str> {
        found.iter().map(|gateway| gateway.public_key.as_str()).collect()
    }

    #[test]
    fn a_gateway_that_renews_its_lease_stays_and_one_that_does_not_is_left_out() {
        let (start, settings, nodes) = (Instant::now(), Gateways::default(), nodes());
        let (a, b) = (held("a", 1), held("b", 1));
        let mut observed = Observed::default();
        assert!(observed.see(&gateway_lease(0), None, Some(&b), start));
        assert!(observed.see(&gateway_lease(1), None, Some(&a), start));
        assert!(!observed.see(&gateway_lease(1), Some(&a), Some(&held("a", 2)), start + 4 * SECOND), "it is only renewed");
        let now = leases(&[(0, b), (1, held("a", 2))]);
        let (found, again) = ours(&settings, &now, &observed, &nodes, start + 5 * SECOND);
        assert_eq!(keys(&found), ["key of b", "key of a"], "the order is that of the leases");
        assert_eq!(again, Some(SECOND));
        let (found, again) = ours(&settings, &now, &observed, &nodes, start + 6 * SECOND);
        assert_eq!((keys(&found), again), (vec!["key of a"], Some(4 * SECOND)));
        let (found, again) = ours(&settings, &now, &observed, &nodes, start + 60 * SECOND);
        assert_eq!((keys(&found), again), (vec!["key of a"], None), "nobody is seen: nothing is taken back");
    }

    #[test]
    fn one_that_another_does_not_hear_is_left_out_until_it_renews_its_lease() {
        let (start, settings, nodes) = (Instant::now(), Gateways::default(), nodes());
        let hears_nobody: Arc<Held> = Held { unheard: "0@1".parse().unwrap(), ..(*held("a", 5)).clone() }.into();
        let mut observed = Observed::default();
        observed.see(&gateway_lease(0), None, Some(&held("b", 1)), start);
        observed.see(&gateway_lease(1), None, Some(&held("a", 4)), start);
        let soon = start + SECOND;
        assert!(observed.see(&gateway_lease(1), Some(&held("a", 4)), Some(&hears_nobody), soon), "it is news");
        let of = |version, at| {
            keys_of(&ours(&settings, &leases(&[(0, held("b", version)), (1, hears_nobody.clone())]), &observed, &nodes, at).0)
        };
        assert_eq!(of(1, soon), ["key of a"]);
        assert!(observed.clone().see(&gateway_lease(0), Some(&held("b", 1)), Some(&held("b", 2)), soon), "and so is this");
        assert_eq!(of(2, soon), ["key of b", "key of a"], "it is there after all");
        assert_eq!(of(1, soon + 6 * SECOND), ["key of a"], "as long as the API server is away, too");
        let mut later = observed.clone();
        later.see(&gateway_lease(0), Some(&held("b", 1)), Some(&held("b", 2)), soon + 5 * SECOND);
        let all = leases(&[(0, held("b", 2)), (1, hears_nobody.clone())]);
        assert_eq!(
            keys_of(&ours(&settings, &all, &later, &nodes, soon + 6 * SECOND).0),
            ["key of b"],
            "who said so is not there"
        );
    }

    #[test]
    fn while_the_api_server_is_away_no_gateway_is_left_out() {
        let (start, nodes) = (Instant::now(), nodes());
        let (a, b) = (held("a", 1), held("b", 1));
        let mut observed = Observed::default();
        observed.see(&gateway_lease(0), None, Some(&b), start);
        observed.see(&gateway_lease(1), None, Some(&a), start + SECOND);
        let now = leases(&[(0, b), (1, a)]);
        for seconds in [6, 7, 60] {
            let (found, _) = ours(&Gateways::default(), &now, &observed, &nodes, start + seconds * SECOND);
            assert_eq!(keys(&found), ["key of b", "key of a"], "after {seconds} s");
        }
    }

    #[test]
    fn what_changes_but_by_a_renewal_in_time_is_news() {
        let now = Instant::now();
        let mut observed = Observed::default();
        observed.see("l", None, Some(&held("a", 1)), now);
        assert!(observed.see("l", Some(&held("a", 1)), Some(&held("a", 2)), now + 6 * SECOND), "it was given up");
        assert!(observed.see("l", Some(&held("a", 2)), Some(&held("b", 3)), now + 7 * SECOND), "another one holds it");
        let listening = Held { tls_port: Some(443), ..(*held("b", 4)).clone() };
        assert!(observed.see("l", Some(&held("b", 3)), Some(&listening), now + 8 * SECOND), "it listens");
        assert!(observed.see("l", Some(&listening), None, now + 9 * SECOND), "nobody holds it");
    }

    #[test]
    fn gateways_are_reached_at_their_nodes_unless_something_else_is_set() {
        let (now, nodes) = (Instant::now(), nodes());
        let all = leases(&[(0, held("b", 1)), (1, held("gone", 1))]);
        let mut observed = Observed::default();
        for (name, held) in &all {
            observed.see(name, None, Some(held), now);
        }
        let (found, _) = ours(&Gateways::default(), &all, &observed, &nodes, now);
        assert_eq!(found.len(), 1, "a node that is not there is no gateway");
        assert_eq!(found[0].endpoints, ["[fd00::2]:51840"]);
        let copied = Held { node: "a".into(), ..(*held("b", 1)).clone() };
        let twice = leases(&[(0, held("b", 1)), (1, copied.into())]);
        assert_eq!(keys(&ours(&Gateways::default(), &twice, &observed, &nodes, now).0), ["key of b"]);
        let labelled = Gateways { node_selector: [("edge".to_owned(), "yes".to_owned())].into(), ..Gateways::default() };
        assert_eq!(ours(&labelled, &all, &observed, &nodes, now).0, [], "a node that is not to be one, is none");
        let settings = Gateways { addresses: vec!["gw.example:1".into()], ..Gateways::default() };
        assert_eq!(ours(&settings, &all, &observed, &nodes, now).0[0].endpoints, ["gw.example:1"]);
    }

    #[test]
    fn a_gateway_whose_key_is_renewed_is_announced_with_both() {
        let now = Instant::now();
        let renewed = Held { former_key: Some("former".into()), first_key: Some("first".into()), ..(*held("b", 1)).clone() };
        let all = leases(&[(0, renewed.into()), (1, held("a", 1))]);
        let mut observed = Observed::default();
        for (name, held) in &all {
            observed.see(name, None, Some(held), now);
        }
        let (found, _) = ours(&Gateways::default(), &all, &observed, &nodes(), now);
        assert_eq!(keys(&found), ["former", "key of b", "key of a"]);
        assert_eq!(found[0].endpoints, found[1].endpoints);
        let first: Vec<Option<&str>> = found.iter().map(|one| one.first_key.as_deref()).collect();
        assert_eq!(first, [Some("first"), Some("first"), None]);
    }

    #[test]
    fn tls_is_announced_as_long_as_somebody_listens() {
        let (now, nodes) = (Instant::now(), nodes());
        let listening = Held { tls_port: Some(443), ..(*held("b", 1)).clone() };
        let all = leases(&[(0, listening.into()), (1, held("a", 1))]);
        let mut observed = Observed::default();
        for (name, held) in &all {
            observed.see(name, None, Some(held), now);
        }
        let tls = |settings: &Gateways| ours(settings, &all, &observed, &nodes, now).0.into_iter().map(|one| one.tls).collect();
        let found: Vec<Vec<String>> = tls(&Gateways::default());
        assert_eq!(found, [vec!["[fd00::2]:443".to_owned()], vec![]]);
        let behind = Gateways { tls_addresses: vec!["gw.example:443".into()], ..Gateways::default() };
        let found: Vec<Vec<String>> = tls(&behind);
        assert_eq!(found, [vec!["gw.example:443".to_owned()], vec![]]);
    }

    #[test]
    fn a_lease_says_whose_it_is_and_whether_tls_is_taken() {
        let lease = |annotations: serde_json::Value| -> Option<Held> {
            let spec = serde_json::json!({ "holderIdentity": "a", "leaseDurationSeconds": 6 });
            Held::of(
                serde_json::from_value(serde_json::json!({ "metadata": { "annotations": annotations }, "spec": spec })).unwrap(),
            )
        };
        let (key, tls) = (annotations::GATEWAY_KEY, annotations::GATEWAY_TLS);
        assert_eq!(lease(serde_json::json!({ tls: "443" })), None);
        assert_eq!(lease(serde_json::json!({ key: "k", tls: "443" })), None);
        let port = |text: &str| lease(serde_json::json!({ key: BASE64.encode(&[1; 32]), tls: text })).unwrap().tls_port;
        assert_eq!([port("443"), port("none")], [Some(443), None]);
    }
}
