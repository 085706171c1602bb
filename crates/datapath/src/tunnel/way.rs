//! Where a remote is spoken to: pure.
//!
//! As with every WireGuard that is where it was heard from last, with one difference: there are ways over UDP, and ways over a
//! [relay](crate::relay), which are of use only while UDP does not pass. So UDP is tried while a relay carries packets, by questions
//! that move nobody, and after some answers in a row both ends go back to it without losing a packet. What arrives by the relay after
//! that was on its way before.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::socket::Path;
use crate::relay::is_relay;

/// While a remote was heard over UDP so lately, what comes over a relay does not move it.
const STICKS: Duration = Duration::from_secs(7);
/// A relay of the other end's that nothing came over for so long is given up.
const STALE: Duration = Duration::from_secs(12);
/// Time between two trials of UDP.
const TRIAL: Duration = Duration::from_secs(5);
/// So many must be answered in a row. When UDP fails again soon, twice as many next time, up to the other.
const ANSWERS: [u32; 2] = [3, 24];
/// What is soon.
const SOON: Duration = Duration::from_mins(2);

/// What is known of the ways to a remote.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    path: Option<Path>,
    /// Where it is said to be.
    direct: Option<SocketAddr>,
    /// Where our relay to it is.
    relay: Option<SocketAddr>,
    heard_directly: Option<Instant>,
    heard: Option<Instant>,
    trial: Option<Trial>,
    /// How many answers in a row are there, and how many there must be.
    answers: u32,
    needed: u32,
    came_back: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    token: u64,
    at: Instant,
    is_answered: bool,
}

impl Way {
    pub(super) fn path(&self) -> Option<Path> {
        self.path
    }

    fn is_relayed(&self) -> bool {
        self.path.is_some_and(|path| is_relay(&path.remote))
    }

    fn turn(&mut self, path: Path) {
        if is_relay(&path.remote) && !self.is_relayed() {
            (self.trial, self.answers) = (None, 0);
        }
        self.path = Some(path);
    }

    /// From now on it is said to be at `direct`, and there is this relay to it. Each counts from when it changes. Whether the remote has
    /// to be told that it is spoken to over another way.
    pub(super) fn set(&mut self, direct: Option<SocketAddr>, relay: Option<SocketAddr>, now: Instant) -> bool {
        let (former_direct, former_relay) = (self.direct, self.relay);
        (self.direct, self.relay) = (direct, relay);
        let to = |remote| Path { remote, local: None };
        if let Some(relay) = relay.filter(|relay| former_relay != Some(*relay)) {
            let is_soon = self.came_back.is_some_and(|at| now.saturating_duration_since(at) < SOON);
            let [least, most] = ANSWERS;
            self.needed = if is_soon { (self.needed * 2).clamp(least, most) } else { least };
            self.turn(to(relay));
            return true;
        }
        let lost_relay = relay.is_none() && former_relay.is_some() && self.path.map(|path| path.remote) == former_relay;
        match direct {
            Some(direct) if lost_relay || (former_direct != Some(direct) && !self.is_relayed()) => {
                self.turn(to(direct));
                true
            }
            _ => false,
        }
    }

    /// Something came from it for certain, this way.
    pub(super) fn heard(&mut self, path: Path, now: Instant) {
        let sticks = self.heard_directly.is_some_and(|at| now.saturating_duration_since(at) < STICKS) && !self.is_relayed();
        self.heard = Some(now);
        if is_relay(&path.remote) {
            if !sticks {
                self.turn(path);
            }
        } else {
            if self.is_relayed() {
                self.came_back = Some(now);
            }
            self.heard_directly = Some(now);
            self.turn(path);
        }
    }

    /// The address of ours that it spoke to is gone.
    pub(super) fn forget_local(&mut self) {
        if let Some(path) = &mut self.path {
            path.local = None;
        }
    }

    /// The way to try UDP now, and the token of the question.
    pub(super) fn trial(&mut self, token: u64, now: Instant) -> Option<Path> {
        let direct = Path { remote: self.direct?, local: None };
        if !self.is_relayed() {
            return None;
        }
        let silent = self.heard.is_none_or(|at| now.saturating_duration_since(at) >= STALE);
        if silent && self.path.map(|path| path.remote) != self.relay {
            self.turn(direct);
            return None;
        }
        if self.trial.is_some_and(|trial| now.saturating_duration_since(trial.at) < TRIAL) {
            return None;
        }
        if self.trial.is_some_and(|trial| !trial.is_answered) {
            self.answers = 0;
        }
        self.trial = Some(Trial { token, at: now, is_answered: false });
        Some(direct)
    }

    /// A trial was answered. Whether UDP is good enough now, and is taken from now on.
    pub(super) fn answered(&mut self, token: u64, now: Instant) -> bool {
        let Some(trial) = self.trial.as_mut().filter(|trial| trial.token == token && !trial.is_answered) else { return false };
        trial.is_answered = true;
        self.answers += 1;
        let Some(direct) = self.direct.filter(|_| self.answers >= self.needed.max(ANSWERS[0]) && self.path.is_some()) else {
            return false;
        };
        if !self.is_relayed() {
            return false;
        }
        self.heard(Path { remote: direct, local: None }, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path { remote: text.parse().unwrap(), local: None }
    }

    const DIRECT: &str = "192.0.2.1:51840";
    const RELAY: &str = "127.0.0.1:4000";

    struct Case {
        way: Way,
        start: Instant,
    }

    impl Case {
        fn new() -> Self {
            let mut case = Self { way: Way::default(), start: Instant::now() };
            case.set(None, 0);
            case
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn set(&mut self, relay: Option<&str>, seconds: u64) -> bool {
            let now = self.at(seconds);
            self.way.set(DIRECT.parse().ok(), relay.map(|text| text.parse().unwrap()), now)
        }

        fn heard(&mut self, from: &str, seconds: u64) {
            let now = self.at(seconds);
            self.way.heard(path(from), now);
        }

        /// Tries UDP each second, with these answers, and says at which second it was good.
        fn tries(&mut self, from: u64, answered: impl Fn(u64) -> bool) -> Option<u64> {
            (from..from + 200).find(|&second| {
                let now = self.at(second);
                self.heard(RELAY, second);
                self.way.trial(second, now).is_some() && answered(second) && self.way.answered(second, now)
            })
        }
    }

    #[test]
    fn a_remote_is_spoken_to_where_it_was_heard_last() {
        let mut case = Case::new();
        assert_eq!(case.way.path(), Some(path(DIRECT)));
        case.heard("192.0.2.9:1", 1);
        assert_eq!(case.way.path(), Some(path("192.0.2.9:1")));
        assert!(!case.set(None, 2), "what did not change counts no more");
        assert_eq!(case.way.path(), Some(path("192.0.2.9:1")));
    }

    #[test]
    fn a_relay_is_taken_at_once_and_given_up_for_udp_when_it_ends() {
        let mut case = Case::new();
        assert!(case.set(Some(RELAY), 1));
        assert_eq!(case.way.path(), Some(path(RELAY)));
        assert!(!case.set(Some(RELAY), 2));
        assert!(case.set(None, 3));
        assert_eq!(case.way.path(), Some(path(DIRECT)));
    }

    #[test]
    fn a_relay_of_the_other_end_is_followed_only_when_udp_is_silent() {
        let mut case = Case::new();
        case.heard(DIRECT, 1);
        case.heard(RELAY, 7);
        assert_eq!(case.way.path(), Some(path(DIRECT)));
        case.heard(RELAY, 8);
        assert_eq!(case.way.path(), Some(path(RELAY)));
        // It is heard no more: its connection ended.
        let (before, after) = (case.at(19), case.at(20));
        case.way.trial(1, before);
        assert_eq!(case.way.path(), Some(path(RELAY)));
        case.way.trial(2, after);
        assert_eq!(case.way.path(), Some(path(DIRECT)));
    }

    #[test]
    fn after_three_answers_in_a_row_udp_is_taken_again() {
        let mut case = Case::new();
        case.set(Some(RELAY), 1);
        assert_eq!(case.tries(1, |_| false), None);
        // One at 301 and each five seconds later.
        assert_eq!(case.tries(301, |second| second != 311), Some(326));
        assert_eq!(case.way.path(), Some(path(DIRECT)));
        case.heard(RELAY, 327);
        assert_eq!(case.way.path(), Some(path(DIRECT)), "that was on its way before");
        case.set(None, 328);
        assert_eq!(case.way.path(), Some(path(DIRECT)));
    }

    #[test]
    fn udp_that_comes_and_goes_is_trusted_less_each_time() {
        let mut case = Case::new();
        case.set(Some(RELAY), 0);
        assert_eq!(case.tries(0, |_| true), Some(10));
        case.set(None, 11);
        case.set(Some(RELAY), 30);
        assert_eq!(case.tries(30, |_| true), Some(55));
        case.set(None, 56);
        case.set(Some(RELAY), 300);
        assert_eq!(case.tries(300, |_| true), Some(310));
    }

    #[test]
    fn an_answer_to_another_question_or_a_second_one_is_none() {
        let mut case = Case::new();
        case.set(Some(RELAY), 0);
        let now = case.at(0);
        case.way.trial(5, now);
        for token in [4, 5, 5, 5] {
            assert!(!case.way.answered(token, now));
        }
        assert_eq!(case.way.answers, 1);
    }
}
