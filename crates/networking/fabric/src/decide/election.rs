//! Decides which node becomes a gateway, and which gateways are in use.
//!
//! Gateways hold numbered Leases. `liqo_network_model::gateways` says when a gateway is taken for
//! lost; all others are in use.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use liqo_datapath::tunnel::PublicKey;
use liqo_network_model::gateways::{GatewayLease, LeaseObservations};

use super::probe_results::OtherGateway;

/// A gateway in use that cannot carry packets for this long makes room for another one.
pub const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);
/// It does not come back for this long, and twice as long each time that it fails then.
pub const MIN_REST: Duration = Duration::from_mins(1);
const MAX_REST: Duration = Duration::from_hours(1);

/// Whether this node does its part as a gateway.
#[derive(Clone, Copy, Debug, Default)]
pub struct GatewayFitness {
    failing_since: Option<Instant>,
    rests_until: Option<Instant>,
    rest: Duration,
}

impl GatewayFitness {
    /// Records whether the tunnel and the tables that guard it are in their desired state.
    pub fn record_health(&mut self, works: bool, now: Instant) {
        if works {
            *self = Self {
                rests_until: self.rests_until,
                ..Self::default()
            };
        } else {
            self.failing_since.get_or_insert(now);
        }
    }

    /// Whether this node may be a gateway. A gateway that fails is still better than none.
    pub fn may_serve(&mut self, is_another_alive: bool, now: Instant) -> bool {
        let fails = self
            .failing_since
            .is_some_and(|since| now.saturating_duration_since(since) >= FAILURE_TIMEOUT);
        if fails && is_another_alive {
            let rest = (self.rest * 2).clamp(MIN_REST, MAX_REST);
            *self = Self {
                failing_since: None,
                rests_until: Some(now + rest),
                rest,
            };
        }
        !(is_another_alive && self.rests_until.is_some_and(|until| now < until))
    }
}

/// A gateway in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveGateway {
    pub node: String,
    /// The key by which peers know it.
    pub key: PublicKey,
    /// Its first key, which its share of the flows is derived from.
    pub first_key: PublicKey,
}

/// The gateways in use, by the numbers of their Leases.
pub type ActiveGateways = BTreeMap<u8, ActiveGateway>;

/// A node's next step in the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionMove {
    /// Other nodes hold all Leases, or this node may hold none.
    Nothing,
    Renew(u8),
    Take(u8),
    GiveUp(u8),
}

/// The gateways in use: those that are not lost. While none is known, those of `before`. `this`
/// node knows itself that it is there, whoever suspects it.
pub fn in_use(
    observations: &LeaseObservations,
    this: &str,
    before: &ActiveGateways,
    now: Instant,
) -> ActiveGateways {
    let alive = observations.leases().filter(|lease| {
        !observations.is_silent(lease.number, now)
            && (lease.is_held_by(this) || !observations.is_suspected(lease.number, now))
    });
    let active: ActiveGateways = alive
        .filter_map(|lease| Some((lease.number, active_gateway(lease)?)))
        .collect();
    if active.is_empty() {
        before.clone()
    } else {
        active
    }
}

/// The gateway that holds a Lease, if the Lease tells its node and its key.
fn active_gateway(lease: &GatewayLease) -> Option<ActiveGateway> {
    let key = parse_key(lease.public_key.as_deref())?;
    Some(ActiveGateway {
        node: lease.node.clone()?,
        key,
        first_key: parse_key(lease.first_key.as_deref()).unwrap_or(key),
    })
}

fn parse_key(text: Option<&str>) -> Option<PublicKey> {
    text?.parse().ok()
}

/// Time until the next Lease expires if it is not renewed.
pub fn next_expiry(observations: &LeaseObservations, now: Instant) -> Option<Duration> {
    observations
        .leases()
        .map(|lease| observations.expires_in(lease.number, now))
        .filter(|left| !left.is_zero())
        .min()
}

/// Whether another node than `this` is known to be alive as a gateway.
pub fn is_another_alive(observations: &LeaseObservations, this: &str, now: Instant) -> bool {
    observations.leases().any(|lease| {
        let is_of_another =
            lease.node.as_deref().is_some_and(|node| node != this) && observations.is_usable(lease);
        is_of_another
            && !observations.has_expired(lease.number, now)
            && !observations.is_suspected(lease.number, now)
    })
}

/// The other nodes that hold Leases, alive or not. Empty if this node holds none.
pub fn other_gateways(observations: &LeaseObservations, this: &str) -> Vec<OtherGateway> {
    let is_gateway = observations.leases().any(|lease| lease.is_held_by(this));
    let all = observations
        .leases()
        .filter(|lease| is_gateway && !lease.is_held_by(this));
    all.filter_map(|lease| {
        Some(OtherGateway {
            node: lease.node.clone()?,
            number: lease.number,
            version: lease.version.clone()?,
        })
    })
    .collect()
}

/// Whether another gateway suspects this node.
pub fn is_suspected(observations: &LeaseObservations, this: &str, now: Instant) -> bool {
    observations
        .leases()
        .any(|lease| lease.is_held_by(this) && observations.is_suspected(lease.number, now))
}

/// A node that takes part in the election.
#[derive(Clone, Copy, Debug)]
pub struct ElectionCandidate<'a> {
    pub node: &'a str,
    /// Whether the node may be a gateway.
    pub is_fit: bool,
    /// The number of gateways that the cluster wants.
    pub replicas: u8,
    /// Only the first gateway is in use. When it is lost, others move up to its Lease, so it takes
    /// nothing back when it returns.
    pub moves_up: bool,
}

impl ElectionCandidate<'_> {
    pub fn next_move(&self, observations: &LeaseObservations, now: Instant) -> ElectionMove {
        let numbers: Vec<u8> = observations
            .leases()
            .filter(|lease| lease.is_held_by(self.node))
            .map(|lease| lease.number)
            .collect();
        if let Some(last) = numbers
            .last()
            .filter(|last| !self.is_fit || numbers.len() > 1 || **last >= self.replicas)
        {
            return ElectionMove::GiveUp(*last);
        }
        if !self.is_fit {
            return ElectionMove::Nothing;
        }
        if let Some(own) = numbers.first() {
            let higher = (0..*own)
                .filter(|_| self.moves_up)
                .find(|number| self.can_take(*number, observations, now));
            return higher.map_or(ElectionMove::Renew(*own), ElectionMove::Take);
        }
        (0..self.replicas)
            .find(|number| self.can_take(*number, observations, now))
            .map_or(ElectionMove::Nothing, ElectionMove::Take)
    }

    fn can_take(&self, number: u8, observations: &LeaseObservations, now: Instant) -> bool {
        let Some(lease) = observations.lease(number) else {
            return true;
        };
        let is_lost =
            observations.has_expired(number, now) || observations.is_suspected(number, now);
        lease.node.is_none() || (is_lost && !lease.is_held_by(self.node))
    }
}

#[cfg(test)]
mod tests {
    use liqo_network_model::gateways::{LEASE_DURATION, RENEW_PERIOD, RENEWAL_ROUND};

    use super::*;

    #[test]
    fn a_gateway_that_cannot_carry_packets_makes_room_if_there_is_another() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut fitness = GatewayFitness::default();
        fitness.record_health(false, start);
        fitness.record_health(false, at(9));
        assert!(fitness.may_serve(true, at(9)));
        assert!(fitness.may_serve(false, at(10)), "nobody else is there");
        assert!(!fitness.may_serve(true, at(10)));
        fitness.record_health(true, at(11));
        assert!(!fitness.may_serve(true, at(69)), "it rests");
        assert!(
            fitness.may_serve(false, at(30)),
            "unless the other one is gone"
        );
        assert!(fitness.may_serve(true, at(70)));
        fitness.record_health(false, at(71));
        fitness.record_health(true, at(75));
        fitness.record_health(false, at(76));
        assert!(fitness.may_serve(true, at(85)), "it worked in between");
    }

    #[test]
    fn one_that_never_works_rests_for_longer_each_time() {
        let start = Instant::now();
        let (mut fitness, mut now, mut rests) = (GatewayFitness::default(), start, Vec::new());
        for _ in 0..8 {
            fitness.record_health(false, now);
            now += FAILURE_TIMEOUT;
            assert!(!fitness.may_serve(true, now));
            let given_up = now;
            while !fitness.may_serve(true, now) {
                now += Duration::from_mins(1);
            }
            rests.push((now - given_up).as_secs() / 60);
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60]);
        fitness.record_health(true, now);
        fitness.record_health(false, now);
        assert!(
            !fitness.may_serve(true, now + FAILURE_TIMEOUT)
                && fitness.may_serve(true, now + FAILURE_TIMEOUT + MIN_REST),
            "it worked in between"
        );
    }

    #[test]
    fn if_only_one_is_in_use_the_next_moves_up_and_stays_first() {
        let start = Instant::now();
        let mut observations = seen(&[(0, "n1"), (1, "n2")], start);
        assert_eq!(
            next(&observations, "n2", true, 2, true, start),
            ElectionMove::Renew(1)
        );
        let later = start + LEASE_DURATION;
        observations.observe(lease(1, "n2"), start + RENEW_PERIOD * 2);
        assert_eq!(
            next(&observations, "n2", true, 2, true, later),
            ElectionMove::Take(0)
        );
        observations.observe(lease(0, "n2"), later);
        assert_eq!(
            next(&observations, "n2", true, 2, true, later),
            ElectionMove::GiveUp(1)
        );
        observations.observe(
            GatewayLease {
                number: 1,
                ..GatewayLease::default()
            },
            later,
        );
        assert_eq!(
            next(&observations, "n1", true, 2, true, later),
            ElectionMove::Take(1),
            "it is back"
        );
    }

    /// Numbers and holders, all seen at the same moment.
    fn seen(leases: &[(u8, &str)], now: Instant) -> LeaseObservations {
        let mut observations = LeaseObservations::default();
        for (number, holder) in leases {
            observations.observe(lease(*number, holder), now);
        }
        observations
    }

    /// A Lease that was given up.
    fn free(now: Instant) -> LeaseObservations {
        let mut observations = LeaseObservations::default();
        observations.observe(GatewayLease::default(), now);
        observations
    }

    const KEY: PublicKey = PublicKey([1; 32]);

    fn lease(number: u8, node: &str) -> GatewayLease {
        GatewayLease {
            number,
            node: Some(node.to_owned()),
            public_key: Some(KEY.to_string()),
            ..GatewayLease::default()
        }
    }

    /// A Lease as its holder wrote it, who suspects these gateways.
    fn written(number: u8, node: &str, version: &str, suspects: &str) -> GatewayLease {
        GatewayLease {
            version: Some(version.to_owned()),
            suspects: suspects.parse().unwrap(),
            ..lease(number, node)
        }
    }

    fn next(
        observations: &LeaseObservations,
        node: &str,
        is_fit: bool,
        replicas: u8,
        moves_up: bool,
        now: Instant,
    ) -> ElectionMove {
        ElectionCandidate {
            node,
            is_fit,
            replicas,
            moves_up,
        }
        .next_move(observations, now)
    }

    fn nodes(in_use: &ActiveGateways) -> Vec<(u8, &str)> {
        in_use
            .iter()
            .map(|(number, one)| (*number, one.node.as_str()))
            .collect()
    }

    #[test]
    fn the_lowest_free_number_is_taken_and_kept() {
        let now = Instant::now();
        assert_eq!(
            next(&LeaseObservations::default(), "n1", true, 2, false, now),
            ElectionMove::Take(0)
        );
        assert_eq!(
            next(&seen(&[(0, "n1")], now), "n2", true, 2, false, now),
            ElectionMove::Take(1)
        );
        assert_eq!(
            next(
                &seen(&[(0, "n1"), (1, "n2")], now),
                "n3",
                true,
                2,
                false,
                now
            ),
            ElectionMove::Nothing
        );
        assert_eq!(
            next(
                &seen(&[(0, "n1"), (1, "n2")], now),
                "n2",
                true,
                2,
                false,
                now
            ),
            ElectionMove::Renew(1)
        );
        assert_eq!(
            next(&free(now), "n2", true, 2, false, now),
            ElectionMove::Take(0)
        );
    }

    #[test]
    fn a_standby_node_replaces_a_lost_gateway_and_nobody_else_moves() {
        let start = Instant::now();
        let mut observations = seen(&[(0, "n1"), (1, "n2")], start);
        let later = start + LEASE_DURATION;
        observations.observe(lease(1, "n2"), start + RENEW_PERIOD * 2);
        assert_eq!(
            next(&observations, "n2", true, 2, false, later),
            ElectionMove::Renew(1)
        );
        assert_eq!(
            next(&observations, "n3", true, 2, false, later),
            ElectionMove::Take(0)
        );
        // Whoever holds two gives the higher one up.
        observations.observe(lease(0, "n2"), later);
        assert_eq!(
            next(&observations, "n2", true, 2, false, later),
            ElectionMove::GiveUp(1)
        );
    }

    #[test]
    fn a_node_that_does_not_fit_and_a_number_too_many_are_given_up() {
        let now = Instant::now();
        let observations = seen(&[(0, "n1"), (1, "n2")], now);
        assert_eq!(
            next(&observations, "n1", false, 2, false, now),
            ElectionMove::GiveUp(0)
        );
        assert_eq!(
            next(&observations, "n2", true, 1, false, now),
            ElectionMove::GiveUp(1)
        );
        assert_eq!(
            next(&observations, "n3", false, 3, false, now),
            ElectionMove::Nothing
        );
    }

    #[test]
    fn all_that_are_alive_are_in_use() {
        let start = Instant::now();
        let mut observations = seen(&[(0, "n1"), (1, "n2")], start);
        assert_eq!(
            nodes(&in_use(&observations, "n9", &ActiveGateways::new(), start)),
            [(0, "n1"), (1, "n2")]
        );
        let later = start + LEASE_DURATION;
        observations.observe(lease(1, "n2"), start + RENEWAL_ROUND);
        assert_eq!(
            next_expiry(&observations, start + RENEWAL_ROUND),
            Some(LEASE_DURATION.saturating_sub(RENEWAL_ROUND))
        );
        assert_eq!(
            nodes(&in_use(&observations, "n9", &ActiveGateways::new(), later)),
            [(1, "n2")]
        );
        // A gateway without a key does not count.
        observations.observe(
            GatewayLease {
                public_key: None,
                ..lease(0, "n3")
            },
            later,
        );
        assert_eq!(
            nodes(&in_use(&observations, "n9", &ActiveGateways::new(), later)),
            [(1, "n2")]
        );
    }

    #[test]
    fn while_nobody_is_heard_the_same_gateways_stay_in_use() {
        let start = Instant::now();
        let mut observations = seen(&[(0, "n1"), (1, "n2"), (2, "n3")], start);
        observations.observe(lease(1, "n2"), start + RENEW_PERIOD * 2);
        observations.observe(
            lease(0, "n1"),
            start + RENEW_PERIOD * 2 + Duration::from_secs(1),
        );
        // They run out one after another; the third one was lost before.
        for seconds in [7, 10, 11, 100] {
            let in_use = in_use(
                &observations,
                "n9",
                &ActiveGateways::new(),
                start + Duration::from_secs(seconds),
            );
            assert_eq!(nodes(&in_use), [(0, "n1"), (1, "n2")], "after {seconds} s");
        }
        // The first one that renews again is not the only one alive, and the lost one stays lost.
        let long_after = start + LEASE_DURATION * 10;
        observations.observe(lease(1, "n2"), long_after);
        assert_eq!(
            nodes(&in_use(
                &observations,
                "n9",
                &ActiveGateways::new(),
                long_after
            )),
            [(0, "n1"), (1, "n2")]
        );
        // A Lease that was given up for a restart changes nothing as long as nobody has any.
        let mut restarting = seen(&[(0, "n1")], start);
        let before = in_use(&restarting, "n9", &ActiveGateways::new(), start);
        restarting.observe(GatewayLease::default(), start);
        assert_eq!(in_use(&restarting, "n9", &before, start), before);
        assert_eq!(
            in_use(&restarting, "n9", &ActiveGateways::new(), start),
            ActiveGateways::new()
        );
    }

    #[test]
    fn silence_while_nothing_could_be_observed_costs_nobody_the_lease() {
        let start = Instant::now();
        let mut observations = seen(&[(0, "n1")], start);
        let later = start + LEASE_DURATION;
        assert_eq!(
            next(&observations, "n2", true, 1, false, later),
            ElectionMove::Take(0)
        );
        observations.restart_silence_times(later);
        assert_eq!(
            next(&observations, "n2", true, 1, false, later),
            ElectionMove::Nothing
        );
        assert_eq!(
            next(&observations, "n2", true, 1, false, later + LEASE_DURATION),
            ElectionMove::Take(0)
        );
    }

    #[test]
    fn a_suspected_gateway_is_replaced_at_once_unless_it_renews_its_lease() {
        let start = Instant::now();
        let mut observations = LeaseObservations::default();
        observations.observe(written(0, "n1", "10", ""), start);
        observations.observe(written(1, "n2", "11", ""), start);
        assert_eq!(
            other_gateways(&observations, "n2"),
            [OtherGateway {
                node: "n1".to_owned(),
                number: 0,
                version: "10".to_owned()
            }]
        );
        assert_eq!(other_gateways(&observations, "n3"), [], "it is no gateway");
        let soon = start + Duration::from_secs(1);
        observations.observe(written(1, "n2", "12", "0@10"), soon);
        assert_eq!(
            nodes(&in_use(&observations, "n9", &ActiveGateways::new(), soon)),
            [(1, "n2")]
        );
        let much_later = soon + LEASE_DURATION * 3;
        assert_eq!(
            nodes(&in_use(
                &observations,
                "n9",
                &ActiveGateways::new(),
                much_later
            )),
            [(1, "n2")],
            "also while the API server is away"
        );
        assert_eq!(
            next(&observations, "n3", true, 2, false, soon),
            ElectionMove::Take(0)
        );
        assert_eq!(
            next(&observations, "n2", true, 2, true, soon),
            ElectionMove::Take(0),
            "where one alone is in use"
        );
        assert_eq!(
            nodes(&in_use(&observations, "n1", &ActiveGateways::new(), soon)),
            [(0, "n1"), (1, "n2")],
            "it knows better"
        );
        assert!(!is_another_alive(&observations, "n2", soon));
        assert!(
            is_suspected(&observations, "n1", soon) && !is_suspected(&observations, "n2", soon)
        );
        assert_eq!(
            next(&observations, "n1", true, 2, false, soon),
            ElectionMove::Renew(0)
        );
        observations.observe(written(0, "n1", "13", ""), soon);
        assert_eq!(
            nodes(&in_use(&observations, "n9", &ActiveGateways::new(), soon)),
            [(0, "n1"), (1, "n2")],
            "it lives"
        );
        assert_eq!(
            next(&observations, "n3", true, 2, false, soon),
            ElectionMove::Nothing
        );
    }

    #[test]
    fn a_suspicion_of_a_silent_gateway_and_of_the_node_itself_does_not_count() {
        let start = Instant::now();
        let mut observations = LeaseObservations::default();
        observations.observe(written(0, "n1", "10", "0@10 1@12"), start);
        assert!(!observations.is_suspected(0, start));
        let later = start + LEASE_DURATION;
        observations.observe(written(1, "n2", "12", ""), start + RENEWAL_ROUND);
        assert!(
            observations.is_suspected(1, start + RENEWAL_ROUND)
                && !observations.is_suspected(1, later)
        );
        assert_eq!(
            nodes(&in_use(&observations, "n9", &ActiveGateways::new(), later)),
            [(1, "n2")]
        );
        // Two that suspect each other: the gateways in use stay, until both have renewed their
        // Leases.
        observations.observe(written(0, "n1", "13", "1@14"), later);
        observations.observe(written(1, "n2", "14", "0@13"), later);
        let before: ActiveGateways = [(
            0,
            ActiveGateway {
                node: "n1".to_owned(),
                key: KEY,
                first_key: KEY,
            },
        )]
        .into();
        assert_eq!(in_use(&observations, "n9", &before, later), before);
    }
}
