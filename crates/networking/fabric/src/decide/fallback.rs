//! Decides which gateways of peers need a relay over TLS, because datagrams do not arrive.
//!
//! When UDP passes again, the tunnel itself goes back to it, and the unused relay ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use liqo_datapath::tunnel::{PublicKey, TunnelRemoteState};

use super::{TURN, TunnelEnd};

/// A gateway that is called and was not heard for this time is called over TLS.
pub const SILENCE: Duration = Duration::from_secs(TURN.as_secs() * 2);
/// If both ends accept connections, one of them waits for this time in addition, because one
/// connection is enough.
const SECOND_END_DELAY: Duration = Duration::from_secs(10);
/// An unused relay stays for this time, because datagrams may still be on their way.
const LINGER: Duration = Duration::from_secs(5);

/// The times since which gateways are called, and relays are unused.
#[derive(Clone, Debug, Default)]
pub struct RelayFallback {
    called: BTreeMap<PublicKey, Instant>,
    unused: BTreeMap<PublicKey, Instant>,
}

impl RelayFallback {
    /// The gateways that need a relay. `states` is the tunnel's state. `ours` is its key if
    /// connections are accepted here, too. `relays` are the local addresses of existing relays.
    pub fn needed_relays(
        &mut self,
        end: &TunnelEnd,
        states: &[TunnelRemoteState],
        relays: &BTreeMap<PublicKey, SocketAddr>,
        ours: Option<PublicKey>,
        now: Instant,
    ) -> BTreeSet<PublicKey> {
        let called = end.remotes.iter().filter(|remote| {
            remote.keepalive.is_some() && end.tls.contains_key(&remote.public_key)
        });
        let called: BTreeSet<PublicKey> = called.map(|remote| remote.public_key).collect();
        self.called.retain(|key, _| called.contains(key));
        self.unused.retain(|key, _| relays.contains_key(key));
        let mut needed = BTreeSet::new();
        for key in called {
            let state = states.iter().find(|state| state.public_key == key);
            let is_second_end = ours.is_some_and(|ours| ours.0 > key.0);
            let silent_for = self.silent_for(key, state, now);
            let is_needed = match relays.get(&key) {
                None if is_second_end => silent_for >= SILENCE + SECOND_END_DELAY,
                None => silent_for >= SILENCE,
                Some(relay) => {
                    // A relay that the other end opened is as good, but one of them has to stay.
                    let is_used = state.is_some_and(|state| {
                        state.endpoint == Some(*relay) || (state.is_relayed() && !is_second_end)
                    });
                    self.must_stay(key, is_used || silent_for >= SILENCE, now)
                }
            };
            if is_needed {
                needed.insert(key);
            }
        }
        needed
    }

    /// The time since we last heard the gateway, or since we began to call it.
    fn silent_for(
        &mut self,
        key: PublicKey,
        state: Option<&TunnelRemoteState>,
        now: Instant,
    ) -> Duration {
        let called_at = *self.called.entry(key).or_insert(now);
        state
            .and_then(|state| state.last_received)
            .unwrap_or(Duration::MAX)
            .min(now.saturating_duration_since(called_at))
    }

    /// Whether an existing relay stays: it lingers for a while after its last use.
    fn must_stay(&mut self, key: PublicKey, is_in_use: bool, now: Instant) -> bool {
        if is_in_use {
            self.unused.remove(&key);
            return true;
        }
        let unused_since = *self.unused.entry(key).or_insert(now);
        now.saturating_duration_since(unused_since) < LINGER
    }
}

#[cfg(test)]
mod tests {
    use liqo_datapath::tunnel::RemoteConfig;

    use super::{
        super::{KEEPALIVE, fixtures::key},
        *,
    };

    const RELAY: &str = "127.0.0.1:4000";
    const UDP: &str = "192.0.2.1:51840";

    struct Case {
        fallback: RelayFallback,
        end: TunnelEnd,
        start: Instant,
        ours: Option<PublicKey>,
    }

    impl Case {
        fn new() -> Self {
            let remote = RemoteConfig {
                endpoint: UDP.parse().ok(),
                keepalive: Some(KEEPALIVE),
                ..RemoteConfig::new(key(5))
            };
            let tls = [(key(5), vec!["192.0.2.1:443".parse().unwrap()])].into();
            let end = TunnelEnd {
                remotes: vec![remote],
                tls,
                ..TunnelEnd::default()
            };
            Self {
                fallback: RelayFallback::default(),
                end,
                start: Instant::now(),
                ours: None,
            }
        }

        /// Whether a relay is needed at this second, to a gateway that is called at `endpoint` and
        /// was heard `heard` seconds ago.
        fn at(&mut self, second: u64, endpoint: &str, heard: Option<u64>, has_relay: bool) -> bool {
            let (endpoint, last_received) = (endpoint.parse().ok(), heard.map(Duration::from_secs));
            let state = TunnelRemoteState {
                endpoint,
                last_received,
                ..TunnelRemoteState::silent(key(5))
            };
            let relays = has_relay
                .then(|| (key(5), RELAY.parse().unwrap()))
                .into_iter()
                .collect();
            let now = self.start + Duration::from_secs(second);
            !self
                .fallback
                .needed_relays(&self.end, &[state], &relays, self.ours, now)
                .is_empty()
        }
    }

    #[test]
    fn a_silent_gateway_is_called_over_tls() {
        let mut case = Case::new();
        assert!(!case.at(0, UDP, None, false), "it had no time to answer");
        assert!(!case.at(9, UDP, None, false));
        assert!(case.at(10, UDP, None, false));
        let mut case = Case::new();
        for second in 0..100 {
            assert!(!case.at(second, UDP, Some(second % 6), false));
        }
        assert!(case.at(100, UDP, Some(10), false));
    }

    #[test]
    fn if_both_ends_accept_connections_one_lets_the_other_begin() {
        for (ours, seconds) in [(key(4), 10), (key(6), 20)] {
            let mut case = Case {
                ours: Some(ours),
                ..Case::new()
            };
            assert_eq!(
                (0..100).find(|&second| case.at(second, UDP, None, false)),
                Some(seconds)
            );
        }
    }

    #[test]
    fn a_standby_and_a_gateway_that_accepts_no_connections_are_not_called() {
        let mut case = Case::new();
        case.end.remotes[0].keepalive = None;
        assert!((0..100).all(|second| !case.at(second, UDP, Some(200), false)));
        // Now it is called, and gets the time to answer.
        case.end.remotes[0].keepalive = Some(KEEPALIVE);
        assert!(!case.at(100, UDP, Some(300), false));
        assert!(case.at(110, UDP, Some(310), false));
        case.end.tls.clear();
        assert!(!case.at(111, UDP, Some(311), false));
    }

    #[test]
    fn a_relay_stays_while_it_is_used_or_nothing_else_works_and_ends_soon_after_udp_came_back() {
        let mut case = Case::new();
        assert!(case.at(0, UDP, Some(30), true), "it connects");
        assert!(case.at(100, RELAY, Some(1), true));
        assert!(
            case.at(200, UDP, Some(1), true),
            "something may be on its way"
        );
        assert!(case.at(204, UDP, Some(1), true));
        assert!(!case.at(205, UDP, Some(1), true));
        assert!(!case.at(250, UDP, Some(1), false), "it is gone");
        assert!(
            case.at(300, UDP, Some(0), true),
            "the time starts again for another one"
        );
    }

    #[test]
    fn one_of_two_relays_ends() {
        let other = "127.0.0.1:5000";
        for (ours, stays) in [(key(4), true), (key(6), false)] {
            let mut case = Case {
                ours: Some(ours),
                ..Case::new()
            };
            assert!(case.at(0, other, Some(1), true));
            assert_eq!(case.at(5, other, Some(1), true), stays);
        }
    }
}
