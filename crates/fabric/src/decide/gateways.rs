//! Which nodes are gateways, and which of them is in use.
//!
//! Gateways hold numbered Leases. Whether a holder is alive is judged by how long the local clock has not seen its Lease change, never
//! by the times written in it. All that are alive are in use.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use liqo_datapath::tunnel::PublicKey;

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
}

/// The gateways in use, by the numbers of their Leases.
pub type AllInUse = BTreeMap<u8, InUse>;

/// What was seen of the Leases.
#[derive(Clone, Debug, Default)]
pub struct Sightings(BTreeMap<u8, Sighting>);

#[derive(Clone, Debug)]
struct Sighting {
    holder: Option<String>,
    key: Option<PublicKey>,
    changed_at: Instant,
}

impl Sighting {
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
    /// A Lease was seen with this holder and its key, and it is not as it was before.
    pub fn saw(&mut self, number: u8, holder: Option<&str>, key: Option<PublicKey>, now: Instant) {
        // When all were silent, it was the API server that was: nobody is to lose a Lease by that.
        if self.0.values().all(|one| !one.is_fresh(now)) {
            self.interrupted(now);
        }
        let holder = holder.filter(|holder| !holder.is_empty()).map(str::to_owned);
        self.0.insert(number, Sighting { holder, key, changed_at: now });
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
    /// the API server is away. As long as nobody is known, those who were it before.
    pub fn in_use(&self, before: &AllInUse, now: Instant) -> AllInUse {
        let newest = self.newest();
        let alive = self.0.iter().filter(|(_, one)| one.is_fresh(now) || !one.is_overtaken(newest));
        let known = alive.filter_map(|(number, one)| Some((*number, InUse { node: one.holder.clone()?, key: one.key? })));
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
        self.0.values().any(|one| one.is_fresh(now) && one.holder.as_deref().is_some_and(|holder| holder != this))
    }

    /// What `this` node does, of which `may` says whether it fits to be a gateway, where there are to be `replicas`. Where the first alone
    /// is in use, others `move_up` to its place when it is lost, so that it takes nothing back when it returns.
    pub fn next(&self, this: &str, may: bool, replicas: u8, move_up: bool, now: Instant) -> Move {
        let is_own = |one: &Sighting| one.holder.as_deref() == Some(this);
        let held: Vec<u8> = self.0.iter().filter(|(_, one)| is_own(one)).map(|(number, _)| *number).collect();
        if let Some(last) = held.last().filter(|last| !may || held.len() > 1 || **last >= replicas) {
            return Move::GiveUp(*last);
        }
        if !may {
            return Move::Nothing;
        }
        let is_free =
            |number: &u8| self.0.get(number).is_none_or(|one| one.holder.is_none() || (!is_own(one) && !one.is_fresh(now)));
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
        sightings.saw(1, Some("n2"), Some(KEY), start + RENEW_PERIOD * 2);
        assert_eq!(sightings.next("n2", true, 2, true, later), Move::Take(0));
        sightings.saw(0, Some("n2"), Some(KEY), later);
        assert_eq!(sightings.next("n2", true, 2, true, later), Move::GiveUp(1));
        sightings.saw(1, None, None, later);
        assert_eq!(sightings.next("n1", true, 2, true, later), Move::Take(1), "it is back");
    }

    /// Numbers and holders, all seen at the same moment.
    fn seen(leases: &[(u8, &str)], now: Instant) -> Sightings {
        let mut sightings = Sightings::default();
        for (number, holder) in leases {
            sightings.saw(*number, Some(holder), Some(KEY), now);
        }
        sightings
    }

    const KEY: PublicKey = PublicKey([1; 32]);

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
        sightings.saw(1, Some("n2"), Some(KEY), start + RENEW_PERIOD * 2);
        assert_eq!(sightings.next("n2", true, 2, false, later), Move::Renew(1));
        assert_eq!(sightings.next("n3", true, 2, false, later), Move::Take(0));
        // Whoever holds two gives the higher one up.
        sightings.saw(0, Some("n2"), Some(KEY), later);
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
        assert_eq!(nodes(&sightings.in_use(&AllInUse::new(), start)), [(0, "n1"), (1, "n2")]);
        let later = start + LEASE_DURATION;
        sightings.saw(1, Some("n2"), Some(KEY), start + ONE_ROUND);
        assert_eq!(sightings.next_silence(start + ONE_ROUND), Some(LEASE_DURATION.saturating_sub(ONE_ROUND)));
        assert_eq!(nodes(&sightings.in_use(&AllInUse::new(), later)), [(1, "n2")]);
        // One whose key is not known cannot be told from others.
        sightings.saw(0, Some("n3"), None, later);
        assert_eq!(nodes(&sightings.in_use(&AllInUse::new(), later)), [(1, "n2")]);
    }

    #[test]
    fn while_nobody_is_heard_the_gateways_stay_what_they_are() {
        let start = Instant::now();
        let mut sightings = seen(&[(0, "n1"), (1, "n2"), (2, "n3")], start);
        sightings.saw(1, Some("n2"), Some(KEY), start + RENEW_PERIOD * 2);
        sightings.saw(0, Some("n1"), Some(KEY), start + RENEW_PERIOD * 2 + Duration::from_secs(1));
        // They run out one after another; the third one was lost before.
        for seconds in [7, 10, 11, 100] {
            let in_use = sightings.in_use(&AllInUse::new(), start + Duration::from_secs(seconds));
            assert_eq!(nodes(&in_use), [(0, "n1"), (1, "n2")], "after {seconds} s");
        }
        // The first that is heard of again is not the only one alive, and the lost one stays lost.
        let long_after = start + LEASE_DURATION * 10;
        sightings.saw(1, Some("n2"), Some(KEY), long_after);
        assert_eq!(nodes(&sightings.in_use(&AllInUse::new(), long_after)), [(0, "n1"), (1, "n2")]);
        // A Lease that was given up for a restart changes nothing as long as nobody has any.
        let mut restarting = seen(&[(0, "n1")], start);
        let before = restarting.in_use(&AllInUse::new(), start);
        restarting.saw(0, None, None, start);
        assert_eq!(restarting.in_use(&before, start), before);
        assert_eq!(restarting.in_use(&AllInUse::new(), start), AllInUse::new());
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
}
