//! Which nodes are gateways, and which of them is in use.
//!
//! Gateways hold numbered Leases. Whether a holder is alive is judged by how long the local clock has not seen its Lease change, never
//! by the times written in it. All that are alive are in use. One whose node another gateway does not hear any more is not, unless it
//! renews its Lease.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use liqo_api::Unheard;
use liqo_datapath::tunnel::PublicKey;

use super::siblings::Other;

/// How long a Lease holds after it was last seen to change.
pub const LEASE_DURATION: Duration = Duration::from_secs(6);
/// Time between two renewals.
pub const RENEW_PERIOD: Duration = Duration::from_secs(2);
/// Within this time every gateway renews its Lease, if the API server answers.
pub const ONE_ROUND: Duration = Duration::from_secs(4);

/// A gateway in use that cannot carry packets for so long makes room for another one.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// And does not come back for so long, and for twice as long each time that it does not work then.
pub const REST: Duration = Duration::from_mins(1);
/// But not for longer.
const LONGEST_REST: Duration = Duration::from_hours(1);

/// How this node does as a gateway.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fitness {
    failing_since: Option<Instant>,
    rests_until: Option<Instant>,
    rest: Duration,
}

impl Fitness {
    /// Whether its tunnel and the tables that guard it are as they should be.
    pub fn works(&mut self, works: bool, now: Instant) {
        if works {
            *self = Self { rests_until: self.rests_until, ..Self::default() };
        } else {
            self.failing_since.get_or_insert(now);
        }
    }

    /// Whether it may be a gateway. One that fails is still better than none.
    pub fn may(&mut self, is_another_alive: bool, now: Instant) -> bool {
        let fails = self.failing_since.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE);
        if fails && is_another_alive {
            let rest = (self.rest * 2).clamp(REST, LONGEST_REST);
            *self = Self { failing_since: None, rests_until: Some(now + rest), rest };
        }
        !(is_another_alive && self.rests_until.is_some_and(|until| now < until))
    }
}

/// A gateway in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Its node.
    pub node: String,
    /// The key that peers know it by.
    pub key: PublicKey,
    /// The first key that it had, which its part of the flows follows from.
    pub first_key: PublicKey,
}

/// The gateways in use, by the numbers of their Leases.
pub type AllInUse = BTreeMap<u8, InUse>;

/// What was seen of the Leases.
#[derive(Clone, Debug, Default)]
pub struct Sightings(BTreeMap<u8, Sighting>);

/// What stands in a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The node that holds it.
    pub holder: Option<String>,
    /// The key that peers know the node by.
    pub key: Option<PublicKey>,
    /// The first one that it had, where that is another one.
    pub first_key: Option<PublicKey>,
    /// What changes with each write.
    pub version: Option<String>,
    /// The gateways that the node does not hear any more.
    pub unheard: Unheard,
}

#[derive(Clone, Debug)]
struct Sighting {
    held: Held,
    changed_at: Instant,
}

impl Sighting {
    fn is_of(&self, node: &str) -> bool {
        self.held.holder.as_deref() == Some(node)
    }

    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.changed_at) < LEASE_DURATION
    }

    fn is_overtaken(&self, newest: Option<Instant>) -> bool {
        newest.is_some_and(|newest| newest.saturating_duration_since(self.changed_at) >= ONE_ROUND)
    }
}

/// What a node does about the Leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Others have what there is to have, or this node may have none.
    Nothing,
    /// The Lease that it holds is renewed.
    Renew(u8),
    /// This Lease becomes its own.
    Take(u8),
    /// This one is given up.
    GiveUp(u8),
}

impl Sightings {
    /// A Lease was seen, and it is not as it was before.
    pub fn saw(&mut self, number: u8, held: Held, now: Instant) {
        // When all were silent, it was the API server that was: nobody is to lose a Lease by that.
        if self.0.values().all(|one| !one.is_fresh(now)) {
            self.interrupted(now);
        }
        let holder = held.holder.filter(|holder| !holder.is_empty());
        self.0.insert(number, Sighting { held: Held { holder, ..held }, changed_at: now });
    }

    /// A Lease is gone.
    pub fn gone(&mut self, number: u8) {
        self.0.remove(&number);
    }

    /// Nothing could be seen for a while: silence up to now says nothing about anybody, but for those who were silent while another was
    /// heard.
    pub fn interrupted(&mut self, now: Instant) {
        let newest = self.newest();
        self.0.values_mut().filter(|one| !one.is_overtaken(newest)).for_each(|one| one.changed_at = now);
    }

    /// The gateways in use: those that were not silent for too long while another one was heard. So what carries packets goes on while
    /// the API server is away. As long as nobody is known, those who were it before. `this` node knows of itself that it is there,
    /// whoever does not hear it.
    pub fn in_use(&self, this: &str, before: &AllInUse, now: Instant) -> AllInUse {
        let newest = self.newest();
        let alive = self.0.iter().filter(|(_, one)| one.is_fresh(now) || !one.is_overtaken(newest));
        let alive = alive.filter(|(number, one)| one.is_of(this) || !self.is_unheard(**number, now));
        let in_use =
            |held: &Held| Some(InUse { node: held.holder.clone()?, key: held.key?, first_key: held.first_key.or(held.key)? });
        let known = alive.filter_map(|(number, one)| Some((*number, in_use(&one.held)?)));
        let alive: AllInUse = known.collect();
        if alive.is_empty() { before.clone() } else { alive }
    }

    /// When the next Lease runs out, if it is not renewed.
    pub fn next_silence(&self, now: Instant) -> Option<Duration> {
        let fresh = self.0.values().filter(|one| one.is_fresh(now));
        fresh.map(|one| (one.changed_at + LEASE_DURATION).saturating_duration_since(now)).min()
    }

    fn newest(&self) -> Option<Instant> {
        self.0.values().map(|one| one.changed_at).max()
    }

    /// Whether another node than `this` is known to be alive as a gateway.
    pub fn is_another_alive(&self, this: &str, now: Instant) -> bool {
        let mut alive = self.0.iter().filter(|(number, one)| one.is_fresh(now) && !self.is_unheard(**number, now));
        alive.any(|(_, one)| one.held.holder.as_deref().is_some_and(|holder| holder != this))
    }

    /// The other nodes that hold Leases, alive or not; nobody, if this one holds none.
    pub fn others(&self, this: &str) -> Vec<Other> {
        let is_gateway = self.0.values().any(|one| one.is_of(this));
        let all = self.0.iter().filter(|(_, one)| is_gateway && !one.is_of(this));
        let other = |(number, one): (&u8, &Sighting)| {
            Some(Other { node: one.held.holder.clone()?, number: *number, version: one.held.version.clone()? })
        };
        all.filter_map(other).collect()
    }

    /// The version of a Lease that was seen last.
    pub fn version(&self, number: u8) -> Option<&str> {
        self.0.get(&number)?.held.version.as_deref()
    }

    /// Whether a gateway says that it does not hear the holder of this Lease, which was not renewed since. It says so as long as it was not
    /// silent itself while another was heard.
    pub fn is_unheard(&self, number: u8, now: Instant) -> bool {
        let Some(version) = self.0.get(&number).and_then(|one| one.held.version.as_deref()) else { return false };
        let newest = self.newest();
        let is_alive = |by: &Sighting| by.is_fresh(now) || !by.is_overtaken(newest);
        let mut others = self.0.iter().filter(|(other, by)| **other != number && is_alive(by));
        others.any(|(_, by)| by.held.unheard.names(number, version))
    }

    /// Whether that is said of the Lease that this node holds.
    pub fn is_own_unheard(&self, this: &str, now: Instant) -> bool {
        self.0.iter().any(|(number, one)| one.is_of(this) && self.is_unheard(*number, now))
    }

    /// What `this` node does, of which `may` says whether it fits to be a gateway, where there are to be `replicas`. Where the first alone
    /// is in use, others `move_up` to its place when it is lost, so that it takes nothing back when it returns.
    pub fn next(&self, this: &str, may: bool, replicas: u8, move_up: bool, now: Instant) -> Move {
        let held: Vec<u8> = self.0.iter().filter(|(_, one)| one.is_of(this)).map(|(number, _)| *number).collect();
        if let Some(last) = held.last().filter(|last| !may || held.len() > 1 || **last >= replicas) {
            return Move::GiveUp(*last);
        }
        if !may {
            return Move::Nothing;
        }
        let is_lost = |number: u8, one: &Sighting| !one.is_of(this) && (!one.is_fresh(now) || self.is_unheard(number, now));
        let is_free = |number: &u8| self.0.get(number).is_none_or(|one| one.held.holder.is_none() || is_lost(*number, one));
        if let Some(own) = held.first() {
            let higher = (0..*own).filter(|_| move_up).find(is_free);
            return higher.map_or(Move::Renew(*own), Move::Take);
        }
        (0..replicas).find(is_free).map_or(Move::Nothing, Move::Take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_cannot_carry_packets_makes_room_if_there_is_another() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut fitness = Fitness::default();
        fitness.works(false, start);
        fitness.works(false, at(9));
        assert!(fitness.may(true, at(9)));
        assert!(fitness.may(false, at(10)), "nobody else is there");
        assert!(!fitness.may(true, at(10)));
        fitness.works(true, at(11));
        assert!(!fitness.may(true, at(69)), "it rests");
        assert!(fitness.may(false, at(30)), "unless the other one is gone");
        assert!(fitness.may(true, at(70)));
        fitness.works(false, at(71));
        fitness.works(true, at(75));
        fitness.works(false, at(76));
        assert!(fitness.may(true, at(85)), "it worked in between");
    }

    #[test]
    fn one_that_never_works_rests_for_longer_each_time() {
        let start = Instant::now();
        let (mut fitness, mut now, mut rests) = (Fitness::default(), start, Vec::new());
        for _ in 0..8 {
            fitness.works(false, now);
            now += PATIENCE;
            assert!(!fitness.may(true, now));
            let given_up = now;
            while !fitness.may(true, now) {
                now += Duration::from_mins(1);
            }
            rests.push((now - given_up).as_secs() / 60);
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60]);
        fitness.works(true, now);
        fitness.works(false, now);
        assert!(!fitness.may(true, now + PATIENCE) && fitness.may(true, now + PATIENCE + REST), "it worked in between");
    }

    #[test]
    fn where_one_is_in_use_the_next_moves_up_and_keeps_the_place() {
        let start = Instant::now();
        let mut sightings = seen(&[(0, "n1"), (1, "n2")], start);
        assert_eq!(sightings.next("n2", true, 2, true, start), Move::Renew(1));
        let later = start + LEASE_DURATION;
        sightings.saw(1, held("n2"), start + RENEW_PERIOD * 2);
        assert_eq!(sightings.next("n2", true, 2, true, later), Move::Take(0));
        sightings.saw(0, held("n2"), later);
        assert_eq!(sightings.next("n2", true, 2, true, later), Move::GiveUp(1));
        sightings.saw(1, Held::default(), later);
        assert_eq!(sightings.next("n1", true, 2, true, later), Move::Take(1), "it is back");
    }

    /// Numbers and holders, all seen at the same moment.
    fn seen(leases: &[(u8, &str)], now: Instant) -> Sightings {
        let mut sightings = Sightings::default();
        for (number, holder) in leases {
            sightings.saw(*number, held(holder), now);
        }
        sightings
    }

    const KEY: PublicKey = PublicKey([1; 32]);

    fn held(node: &str) -> Held {
        Held { holder: Some(node.to_owned()), key: Some(KEY), ..Held::default() }
    }

    /// A Lease as its holder wrote it, who does not hear these.
    fn written(node: &str, version: &str, unheard: &str) -> Held {
        Held { version: Some(version.to_owned()), unheard: unheard.parse().unwrap(), ..held(node) }
    }

    fn nodes(in_use: &AllInUse) -> Vec<(u8, &str)> {
        in_use.iter().map(|(number, one)| (*number, one.node.as_str())).collect()
    }

    #[test]
    fn the_lowest_free_number_is_taken_and_kept() {
        let now = Instant::now();
        assert_eq!(Sightings::default().next("n1", true, 2, false, now), Move::Take(0));
        assert_eq!(seen(&[(0, "n1")], now).next("n2", true, 2, false, now), Move::Take(1));
        assert_eq!(seen(&[(0, "n1"), (1, "n2")], now).next("n3", true, 2, false, now), Move::Nothing);
        assert_eq!(seen(&[(0, "n1"), (1, "n2")], now).next("n2", true, 2, false, now), Move::Renew(1));
        assert_eq!(seen(&[(0, "")], now).next("n2", true, 2, false, now), Move::Take(0));
    }

    #[test]
    fn who_stands_by_takes_the_place_of_a_lost_one_and_nobody_else_moves() {
        let start = Instant::now();
        let mut sightings = seen(&[(0, "n1"), (1, "n2")], start);
        let later = start + LEASE_DURATION;
        sightings.saw(1, held("n2"), start + RENEW_PERIOD * 2);
        assert_eq!(sightings.next("n2", true, 2, false, later), Move::Renew(1));
        assert_eq!(sightings.next("n3", true, 2, false, later), Move::Take(0));
        // Whoever holds two gives the higher one up.
        sightings.saw(0, held("n2"), later);
        assert_eq!(sightings.next("n2", true, 2, false, later), Move::GiveUp(1));
    }

    #[test]
    fn a_node_that_does_not_fit_and_a_number_too_many_are_given_up() {
        let now = Instant::now();
        let sightings = seen(&[(0, "n1"), (1, "n2")], now);
        assert_eq!(sightings.next("n1", false, 2, false, now), Move::GiveUp(0));
        assert_eq!(sightings.next("n2", true, 1, false, now), Move::GiveUp(1));
        assert_eq!(sightings.next("n3", false, 3, false, now), Move::Nothing);
    }

    #[test]
    fn all_that_are_alive_are_in_use() {
        let start = Instant::now();
        let mut sightings = seen(&[(0, "n1"), (1, "n2")], start);
        assert_eq!(nodes(&sightings.in_use("n9", &AllInUse::new(), start)), [(0, "n1"), (1, "n2")]);
        let later = start + LEASE_DURATION;
        sightings.saw(1, held("n2"), start + ONE_ROUND);
        assert_eq!(sightings.next_silence(start + ONE_ROUND), Some(LEASE_DURATION.saturating_sub(ONE_ROUND)));
        assert_eq!(nodes(&sightings.in_use("n9", &AllInUse::new(), later)), [(1, "n2")]);
        // One whose key is not known cannot be told from others.
        sightings.saw(0, Held { key: None, ..held("n3") }, later);
        assert_eq!(nodes(&sightings.in_use("n9", &AllInUse::new(), later)), [(1, "n2")]);
    }

    #[test]
    fn while_nobody_is_heard_the_gateways_stay_what_they_are() {
        let start = Instant::now();
        let mut sightings = seen(&[(0, "n1"), (1, "n2"), (2, "n3")], start);
        sightings.saw(1, held("n2"), start + RENEW_PERIOD * 2);
        sightings.saw(0, held("n1"), start + RENEW_PERIOD * 2 + Duration::from_secs(1));
        // They run out one after another; the third one was lost before.
        for seconds in [7, 10, 11, 100] {
            let in_use = sightings.in_use("n9", &AllInUse::new(), start + Duration::from_secs(seconds));
            assert_eq!(nodes(&in_use), [(0, "n1"), (1, "n2")], "after {seconds} s");
        }
        // The first that is heard of again is not the only one alive, and the lost one stays lost.
        let long_after = start + LEASE_DURATION * 10;
        sightings.saw(1, held("n2"), long_after);
        assert_eq!(nodes(&sightings.in_use("n9", &AllInUse::new(), long_after)), [(0, "n1"), (1, "n2")]);
        // A Lease that was given up for a restart changes nothing as long as nobody has any.
        let mut restarting = seen(&[(0, "n1")], start);
        let before = restarting.in_use("n9", &AllInUse::new(), start);
        restarting.saw(0, Held::default(), start);
        assert_eq!(restarting.in_use("n9", &before, start), before);
        assert_eq!(restarting.in_use("n9", &AllInUse::new(), start), AllInUse::new());
    }

    #[test]
    fn silence_while_nothing_could_be_seen_costs_nobody_the_lease() {
        let start = Instant::now();
        let mut sightings = seen(&[(0, "n1")], start);
        let later = start + LEASE_DURATION;
        assert_eq!(sightings.next("n2", true, 1, false, later), Move::Take(0));
        sightings.interrupted(later);
        assert_eq!(sightings.next("n2", true, 1, false, later), Move::Nothing);
        assert_eq!(sightings.next("n2", true, 1, false, later + LEASE_DURATION), Move::Take(0));
    }

    #[test]
    fn who_is_not_heard_any_more_is_replaced_at_once_unless_the_lease_is_renewed() {
        let start = Instant::now();
        let mut sightings = Sightings::default();
        sightings.saw(0, written("n1", "10", ""), start);
        sightings.saw(1, written("n2", "11", ""), start);
        assert_eq!(sightings.others("n2"), [Other { node: "n1".to_owned(), number: 0, version: "10".to_owned() }]);
        assert_eq!(sightings.others("n3"), [], "it is no gateway");
        let soon = start + Duration::from_secs(1);
        sightings.saw(1, written("n2", "12", "0@10"), soon);
        assert_eq!(nodes(&sightings.in_use("n9", &AllInUse::new(), soon)), [(1, "n2")]);
        let much_later = soon + LEASE_DURATION * 3;
        assert_eq!(
            nodes(&sightings.in_use("n9", &AllInUse::new(), much_later)),
            [(1, "n2")],
            "also while the API server is away"
        );
        assert_eq!(sightings.next("n3", true, 2, false, soon), Move::Take(0));
        assert_eq!(sightings.next("n2", true, 2, true, soon), Move::Take(0), "where one alone is in use");
        assert_eq!(nodes(&sightings.in_use("n1", &AllInUse::new(), soon)), [(0, "n1"), (1, "n2")], "it knows better");
        assert!(!sightings.is_another_alive("n2", soon));
        assert!(sightings.is_own_unheard("n1", soon) && !sightings.is_own_unheard("n2", soon));
        assert_eq!(sightings.next("n1", true, 2, false, soon), Move::Renew(0));
        sightings.saw(0, written("n1", "13", ""), soon);
        assert_eq!(nodes(&sightings.in_use("n9", &AllInUse::new(), soon)), [(0, "n1"), (1, "n2")], "it lives");
        assert_eq!(sightings.next("n3", true, 2, false, soon), Move::Nothing);
    }

    #[test]
    fn a_word_of_one_that_is_silent_itself_and_of_oneself_does_not_count() {
        let start = Instant::now();
        let mut sightings = Sightings::default();
        sightings.saw(0, written("n1", "10", "0@10 1@12"), start);
        assert!(!sightings.is_unheard(0, start));
        let later = start + LEASE_DURATION;
        sightings.saw(1, written("n2", "12", ""), start + ONE_ROUND);
        assert!(sightings.is_unheard(1, start + ONE_ROUND) && !sightings.is_unheard(1, later));
        assert_eq!(nodes(&sightings.in_use("n9", &AllInUse::new(), later)), [(1, "n2")]);
        // Two that do not hear each other: what there is, stays, until both have renewed their Leases.
        sightings.saw(0, written("n1", "13", "1@14"), later);
        sightings.saw(1, written("n2", "14", "0@13"), later);
        let before: AllInUse = [(0, InUse { node: "n1".to_owned(), key: KEY, first_key: KEY })].into();
        assert_eq!(sightings.in_use("n9", &before, later), before);
    }
}
