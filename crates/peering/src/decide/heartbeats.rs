//! Decides from heartbeats whether a provider or a consumer is alive.

use std::time::Duration;

use rustls::CertificateError;
use tokio::time::Instant;

/// A provider that has not answered for this long counts as unreachable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// If a provider's lease has not changed for this long, its manager counts as gone.
const MANAGER_TIMEOUT: Duration = Duration::from_secs(30);

/// If a consumer's lease has not changed for this long, the consumer counts as unreachable.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(20);

/// The last signs of life of a provider, by the local monotonic clock.
#[derive(Clone, Debug)]
pub struct ProviderHeartbeat {
    /// The last time at which its API server answered a request of ours with success.
    pub answered: Option<Instant>,
    /// The version of its manager's lease that was last seen.
    pub lease: Option<String>,
    /// The time at which that version was first seen.
    pub lease_changed: Instant,
    /// Whether its last answer denied us access.
    pub refused: bool,
    /// Whether the CA that the provider named does not verify its last certificate.
    pub invalid_certificate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerHealth {
    /// Its API server answers and its manager renews its lease.
    Reachable,
    /// Its API server does not answer.
    NoAnswer,
    /// Its API server answers, but denies us access.
    AccessDenied,
    /// Its API server answers, but the CA that the provider named does not verify its certificate.
    InvalidCertificate,
    /// Its API server answers, but its manager does not renew its lease.
    ManagerSilent,
}

impl ProviderHeartbeat {
    pub fn new(now: Instant) -> Self {
        Self {
            answered: None,
            lease: None,
            lease_changed: now,
            refused: false,
            invalid_certificate: false,
        }
    }

    /// Records that the API server answered with success, and with this version of the lease.
    pub fn answered_with(&mut self, lease: Option<String>, now: Instant) {
        self.answered = Some(now);
        self.record_failure(false);
        if self.lease != lease {
            self.lease = lease;
            self.lease_changed = now;
        }
    }

    /// Records that the API server did not answer, or with a certificate that cannot be verified.
    pub fn record_failure(&mut self, invalid_certificate: bool) {
        self.refused = false;
        self.invalid_certificate = invalid_certificate;
    }

    pub fn health(&self, now: Instant) -> PeerHealth {
        if self
            .answered
            .is_none_or(|at| now.saturating_duration_since(at) >= ANSWER_TIMEOUT)
        {
            match (self.refused, self.invalid_certificate) {
                (true, _) => PeerHealth::AccessDenied,
                (false, true) => PeerHealth::InvalidCertificate,
                (false, false) => PeerHealth::NoAnswer,
            }
        } else if now.saturating_duration_since(self.lease_changed) >= MANAGER_TIMEOUT {
            PeerHealth::ManagerSilent
        } else {
            PeerHealth::Reachable
        }
    }
}

/// The last signs of life of a consumer, by the local monotonic clock.
#[derive(Clone, Debug)]
pub struct ConsumerHeartbeat {
    lease: Option<String>,
    changed: Instant,
    /// Whether the lease has changed since this process started.
    alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerHealth {
    /// This process has not seen its lease change, and has not waited for long.
    Unknown,
    Reachable,
    /// It does not renew its lease.
    Silent,
    /// It has been silent for longer than the configured expiry.
    Expired,
}

impl ConsumerHeartbeat {
    /// Starts with the version of its lease that was first seen.
    pub fn new(lease: Option<String>, now: Instant) -> Self {
        Self {
            lease,
            changed: now,
            alive: false,
        }
    }

    /// Records the current version of its lease.
    pub fn observe_lease(&mut self, lease: Option<String>, now: Instant) {
        if self.lease != lease {
            *self = Self {
                lease,
                changed: now,
                alive: true,
            };
        }
    }

    pub fn health(&self, expiry: Duration, now: Instant) -> ConsumerHealth {
        let silence = now.saturating_duration_since(self.changed);
        if silence >= expiry {
            ConsumerHealth::Expired
        } else if silence >= CONSUMER_TIMEOUT {
            ConsumerHealth::Silent
        } else if self.alive {
            ConsumerHealth::Reachable
        } else {
            ConsumerHealth::Unknown
        }
    }
}

/// Whether a call failed because the API server's certificate cannot be verified with the CA that
/// the provider named: it may have another CA now.
pub fn is_invalid_certificate(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref::<rustls::Error>()
        {
            // Another CA would not make up for a wrong name or time.
            return matches!(
                why,
                CertificateError::UnknownIssuer | CertificateError::BadSignature
            );
        }
        // The source of an I/O error is that of the error inside.
        let inside = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        next = match inside {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use liqo_controller_runtime::leader::LeaseTiming;

    use super::*;
    use crate::{decide::manifests, session, tenancy};

    #[test]
    fn a_provider_that_does_not_answer_is_unreachable_within_ten_seconds() {
        let start = Instant::now();
        let mut heartbeat = ProviderHeartbeat::new(start);
        assert_eq!(heartbeat.health(start), PeerHealth::NoAnswer);
        heartbeat.answered_with(Some("1".into()), start);
        assert_eq!(
            heartbeat.health(start + Duration::from_secs(7)),
            PeerHealth::Reachable
        );
        assert_eq!(
            heartbeat.health(start + Duration::from_secs(8)),
            PeerHealth::NoAnswer
        );
        heartbeat.refused = true;
        assert_eq!(
            heartbeat.health(start + Duration::from_secs(8)),
            PeerHealth::AccessDenied
        );
        heartbeat.record_failure(true);
        assert_eq!(
            heartbeat.health(start + Duration::from_secs(8)),
            PeerHealth::InvalidCertificate
        );
        heartbeat.answered_with(Some("1".into()), start + Duration::from_secs(9));
        assert_eq!(
            heartbeat.health(start + Duration::from_secs(9)),
            PeerHealth::Reachable
        );
    }

    #[test]
    fn a_replica_that_takes_over_does_so_before_the_peer_counts_its_cluster_as_gone() {
        // Until another replica leads, its controllers have started, and it has sent its first
        // heartbeat.
        let takeover = LeaseTiming::WITH_STANDBY.takeover_limit() + Duration::from_secs(3);
        assert!(
            session::HEARTBEAT_INTERVAL + takeover < CONSUMER_TIMEOUT,
            "the provider does not see a silent consumer"
        );
        // The consumer reads the provider's lease only with its own heartbeats.
        let silence = tenancy::HEARTBEAT_INTERVAL + takeover + session::HEARTBEAT_INTERVAL;
        assert!(
            silence < MANAGER_TIMEOUT,
            "the consumer does not see a silent provider"
        );
    }

    #[test]
    fn a_provider_whose_manager_is_gone_is_unreachable_although_its_api_server_answers() {
        let start = Instant::now();
        let mut heartbeat = ProviderHeartbeat::new(start);
        for second in 0..30 {
            heartbeat.answered_with(Some("1".into()), start + Duration::from_secs(second));
            assert_eq!(
                heartbeat.health(start + Duration::from_secs(second)),
                PeerHealth::Reachable
            );
        }
        heartbeat.answered_with(Some("1".into()), start + Duration::from_secs(30));
        assert_eq!(
            heartbeat.health(start + Duration::from_secs(30)),
            PeerHealth::ManagerSilent
        );
        heartbeat.answered_with(Some("2".into()), start + Duration::from_secs(31));
        assert_eq!(
            heartbeat.health(start + Duration::from_secs(31)),
            PeerHealth::Reachable
        );
    }

    #[test]
    fn a_consumer_is_judged_by_what_this_process_saw() {
        let (start, expiry) = (Instant::now(), Duration::from_hours(1));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heartbeat = ConsumerHeartbeat::new(Some("1".into()), start);
        assert_eq!(heartbeat.health(expiry, at(5)), ConsumerHealth::Unknown);
        heartbeat.observe_lease(Some("2".into()), at(6));
        assert_eq!(heartbeat.health(expiry, at(7)), ConsumerHealth::Reachable);
        heartbeat.observe_lease(Some("2".into()), at(26));
        assert_eq!(heartbeat.health(expiry, at(26)), ConsumerHealth::Silent);
        assert_eq!(heartbeat.health(expiry, at(3606)), ConsumerHealth::Expired);
        heartbeat.observe_lease(Some("3".into()), at(3607));
        assert_eq!(
            heartbeat.health(expiry, at(3607)),
            ConsumerHealth::Reachable
        );
    }

    #[test]
    fn the_times_in_the_leases_of_a_peer_do_not_matter() {
        let start = Instant::now();
        let id = liqo_api::ClusterId::of_public_key(&[1; 32]);
        let (mut provider, mut consumer) = (
            ProviderHeartbeat::new(start),
            ConsumerHeartbeat::new(None, start),
        );
        // Its clock is five minutes behind or ahead, and jumps between.
        for (seconds, offset) in (0..240)
            .step_by(3)
            .zip([-300, 300, -299, 301].into_iter().cycle())
        {
            let now = start + Duration::from_secs(seconds.try_into().unwrap());
            let lease = manifests::lease_renewal(
                &id,
                Timestamp::from_second(1_800_000_000 + seconds + offset).unwrap(),
            );
            provider.answered_with(manifests::lease_version(&lease), now);
            consumer.observe_lease(manifests::lease_version(&lease), now);
            assert_eq!(provider.health(now), PeerHealth::Reachable);
            assert_eq!(
                consumer.health(Duration::from_mins(1), now),
                ConsumerHealth::Reachable
            );
        }
    }
}
