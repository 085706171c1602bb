//! Selects the path to a remote. Pure.
//!
//! As in every WireGuard that is the address that the remote last sent from, with one difference: a
//! path leads either over UDP, or over a [relay](crate::relay), which is only for the time when UDP
//! does not pass. While a relay carries packets, trial probes over UDP test whether it passes
//! again; they do not change the path at the other end. After some answers in a row both ends
//! return to UDP without losing a packet. Packets that still arrive over the relay were sent
//! before, and do not change the path back.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::socket::DatagramPath;
use crate::relay::is_relay;

/// A packet over a relay does not change the path if UDP delivered one within this time.
const UDP_PREFERENCE: Duration = Duration::from_secs(7);
/// The other end's relay is given up when it delivered nothing for this long.
const RELAY_TIMEOUT: Duration = Duration::from_secs(12);
/// Interval of trials over UDP.
const TRIAL_INTERVAL: Duration = Duration::from_secs(5);
/// Number of trials in a row that must be answered. It doubles, up to the maximum, each time that
/// UDP fails again soon.
const MIN_ANSWERS: u32 = 3;
const MAX_ANSWERS: u32 = 24;
/// UDP that fails again within this time is unstable.
const UNSTABLE: Duration = Duration::from_mins(2);

#[derive(Clone, Debug, Default)]
pub(super) struct PathSelection {
    path: Option<DatagramPath>,
    /// The configured address.
    direct: Option<SocketAddr>,
    /// The address of our relay to it.
    relay: Option<SocketAddr>,
    heard_directly: Option<Instant>,
    heard: Option<Instant>,
    trial: Option<PathTrial>,
    /// Number of trials in a row that were answered, and the number that is needed.
    answers: u32,
    needed: u32,
    came_back: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct PathTrial {
    token: u64,
    at: Instant,
    is_answered: bool,
}

impl PathSelection {
    pub(super) fn path(&self) -> Option<DatagramPath> {
        self.path
    }

    fn is_relayed(&self) -> bool {
        self.path.is_some_and(|path| is_relay(&path.remote))
    }

    fn switch_to(&mut self, path: DatagramPath) {
        if is_relay(&path.remote) && !self.is_relayed() {
            (self.trial, self.answers) = (None, 0);
        }
        self.path = Some(path);
    }

    /// Sets the configured address and our relay. Each takes effect when it changes. Returns
    /// whether the path changed: then the remote must learn it.
    pub(super) fn set_addresses(
        &mut self,
        direct: Option<SocketAddr>,
        relay: Option<SocketAddr>,
        now: Instant,
    ) -> bool {
        let (former_direct, former_relay) = (self.direct, self.relay);
        (self.direct, self.relay) = (direct, relay);
        if let Some(relay) = relay.filter(|relay| former_relay != Some(*relay)) {
            let is_unstable = self
                .came_back
                .is_some_and(|at| now.saturating_duration_since(at) < UNSTABLE);
            self.needed = if is_unstable {
                (self.needed * 2).clamp(MIN_ANSWERS, MAX_ANSWERS)
            } else {
                MIN_ANSWERS
            };
            self.switch_to(DatagramPath::to_remote(relay));
            return true;
        }
        let lost_relay = relay.is_none()
            && former_relay.is_some()
            && self.path.map(|path| path.remote) == former_relay;
        match direct {
            Some(direct) if lost_relay || (former_direct != Some(direct) && !self.is_relayed()) => {
                self.switch_to(DatagramPath::to_remote(direct));
                true
            }
            _ => false,
        }
    }

    /// An authenticated packet came from the remote over this path.
    pub(super) fn record_heard(&mut self, path: DatagramPath, now: Instant) {
        let prefers_udp = self
            .heard_directly
            .is_some_and(|at| now.saturating_duration_since(at) < UDP_PREFERENCE)
            && !self.is_relayed();
        self.heard = Some(now);
        if is_relay(&path.remote) {
            if !prefers_udp {
                self.switch_to(path);
            }
        } else {
            if self.is_relayed() {
                self.came_back = Some(now);
            }
            self.heard_directly = Some(now);
            self.switch_to(path);
        }
    }

    /// Our address that the remote sends to is gone.
    pub(super) fn forget_local(&mut self) {
        if let Some(path) = &mut self.path {
            path.local = None;
        }
    }

    /// The path for a trial over UDP, if one is due. The token is that of the probe.
    pub(super) fn next_trial(&mut self, token: u64, now: Instant) -> Option<DatagramPath> {
        let direct = DatagramPath {
            remote: self.direct?,
            local: None,
        };
        if !self.is_relayed() {
            return None;
        }
        let silent = self
            .heard
            .is_none_or(|at| now.saturating_duration_since(at) >= RELAY_TIMEOUT);
        if silent && self.path.map(|path| path.remote) != self.relay {
            self.switch_to(direct);
            return None;
        }
        if self
            .trial
            .is_some_and(|trial| now.saturating_duration_since(trial.at) < TRIAL_INTERVAL)
        {
            return None;
        }
        if self.trial.is_some_and(|trial| !trial.is_answered) {
            self.answers = 0;
        }
        self.trial = Some(PathTrial {
            token,
            at: now,
            is_answered: false,
        });
        Some(direct)
    }

    /// A trial was answered. Returns whether the path changed back to UDP.
    pub(super) fn record_trial_answer(&mut self, token: u64, now: Instant) -> bool {
        let Some(trial) = self
            .trial
            .as_mut()
            .filter(|trial| trial.token == token && !trial.is_answered)
        else {
            return false;
        };
        trial.is_answered = true;
        self.answers += 1;
        let Some(direct) = self
            .direct
            .filter(|_| self.answers >= self.needed.max(MIN_ANSWERS) && self.path.is_some())
        else {
            return false;
        };
        if !self.is_relayed() {
            return false;
        }
        self.record_heard(
            DatagramPath {
                remote: direct,
                local: None,
            },
            now,
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> DatagramPath {
        DatagramPath {
            remote: text.parse().unwrap(),
            local: None,
        }
    }

    const DIRECT: &str = "192.0.2.1:51840";
    const RELAY: &str = "127.0.0.1:4000";

    struct Case {
        paths: PathSelection,
        start: Instant,
    }

    impl Case {
        fn new() -> Self {
            let mut case = Self {
                paths: PathSelection::default(),
                start: Instant::now(),
            };
            case.set(None, 0);
            case
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn set(&mut self, relay: Option<&str>, seconds: u64) -> bool {
            let now = self.at(seconds);
            self.paths.set_addresses(
                DIRECT.parse().ok(),
                relay.map(|text| text.parse().unwrap()),
                now,
            )
        }

        fn heard(&mut self, from: &str, seconds: u64) {
            let now = self.at(seconds);
            self.paths.record_heard(path(from), now);
        }

        /// Tries UDP each second with these answers, and returns the second at which the path
        /// returned to UDP.
        fn tries(&mut self, from: u64, answered: impl Fn(u64) -> bool) -> Option<u64> {
            (from..from + 200).find(|&second| {
                let now = self.at(second);
                self.heard(RELAY, second);
                self.paths.next_trial(second, now).is_some()
                    && answered(second)
                    && self.paths.record_trial_answer(second, now)
            })
        }
    }

    #[test]
    fn the_path_leads_to_where_the_remote_last_sent_from() {
        let mut case = Case::new();
        assert_eq!(case.paths.path(), Some(path(DIRECT)));
        case.heard("192.0.2.9:1", 1);
        assert_eq!(case.paths.path(), Some(path("192.0.2.9:1")));
        assert!(!case.set(None, 2), "an unchanged address has no effect");
        assert_eq!(case.paths.path(), Some(path("192.0.2.9:1")));
    }

    #[test]
    fn a_relay_is_used_at_once_and_given_up_for_udp_when_it_ends() {
        let mut case = Case::new();
        assert!(case.set(Some(RELAY), 1));
        assert_eq!(case.paths.path(), Some(path(RELAY)));
        assert!(!case.set(Some(RELAY), 2));
        assert!(case.set(None, 3));
        assert_eq!(case.paths.path(), Some(path(DIRECT)));
    }

    #[test]
    fn the_other_ends_relay_is_used_only_when_udp_is_silent() {
        let mut case = Case::new();
        case.heard(DIRECT, 1);
        case.heard(RELAY, 7);
        assert_eq!(case.paths.path(), Some(path(DIRECT)));
        case.heard(RELAY, 8);
        assert_eq!(case.paths.path(), Some(path(RELAY)));
        // Its connection ended.
        let (before, after) = (case.at(19), case.at(20));
        case.paths.next_trial(1, before);
        assert_eq!(case.paths.path(), Some(path(RELAY)));
        case.paths.next_trial(2, after);
        assert_eq!(case.paths.path(), Some(path(DIRECT)));
    }

    #[test]
    fn after_three_answers_in_a_row_udp_is_used_again() {
        let mut case = Case::new();
        case.set(Some(RELAY), 1);
        assert_eq!(case.tries(1, |_| false), None);
        // One at 301, then every five seconds.
        assert_eq!(case.tries(301, |second| second != 311), Some(326));
        assert_eq!(case.paths.path(), Some(path(DIRECT)));
        case.heard(RELAY, 327);
        assert_eq!(case.paths.path(), Some(path(DIRECT)), "it was sent before");
        case.set(None, 328);
        assert_eq!(case.paths.path(), Some(path(DIRECT)));
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
    fn answers_to_other_trials_and_second_answers_do_not_count() {
        let mut case = Case::new();
        case.set(Some(RELAY), 0);
        let now = case.at(0);
        case.paths.next_trial(5, now);
        for token in [4, 5, 5, 5] {
            assert!(!case.paths.record_trial_answer(token, now));
        }
        assert_eq!(case.paths.answers, 1);
    }
}
