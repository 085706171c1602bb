//! Gateways' Leases: how to read them, and when a gateway counts as lost. A gateway holds a
//! numbered Lease, and renews it every [`RENEW_PERIOD`]. It is lost when one of these holds:
//! 1. **Silent.** Its Lease was not renewed for [`LossRule::expired_after`], and another usable
//!    gateway ([`GatewayLease::is_usable`]) renewed its own [`LossRule::overtaken_by`] later. If
//!    all are silent, the API server does not answer, so none is lost.
//! 2. **Abandoned.** Its Lease was not renewed for [`LossRule::abandoned_after`]. Only commands
//!    that look once use it.
//! 3. **Suspected.** The node of another gateway probed its node without an answer, and says so in
//!    its own Lease. The next renewal voids that. Only `liqo-fabric` and network negotiation use
//!    this rule.
//!
//! Clocks differ, so the limits depend on who looks; all follow from the duration in the Lease.
//! `liqo-fabric` and network negotiation watch, and use their own clock ([`LeaseObservations`],
//! [`LossRule::by_own_clock`]). Two commands look once: `generate peer-command --through-tunnel`
//! compares the times in the Leases ([`alive_gateways`], [`LossRule::by_holders_clocks`]), `doctor`
//! uses the API server's clock ([`LossRule::by_server_clock`]).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use data_encoding::BASE64;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use liqo_api::{SuspectedGateways, annotations, gateway_lease};

use crate::spread::Buckets;

/// The most gateways of a cluster: their marks are the numbers of their Leases plus one, in three
/// bits (`fabric::MARK_MASK`).
pub const MAX_GATEWAYS: u8 = 7;
/// Time for which a gateway's Lease holds after a renewal; also for Leases without a duration.
pub const LEASE_DURATION: Duration = Duration::from_secs(6);
/// A Lease that says less is read as this: renewals of healthy gateways are up to [`RENEWAL_ROUND`]
/// apart.
const MIN_LEASE_DURATION: Duration = RENEWAL_ROUND;
/// A Lease that says more is read as this, so that no Lease keeps a lost gateway for long.
const MAX_LEASE_DURATION: Duration = Duration::from_mins(1);
/// Time between two renewals.
pub const RENEW_PERIOD: Duration = Duration::from_secs(2);
/// Within this time every gateway renews its Lease, if the API server answers.
pub const RENEWAL_ROUND: Duration = Duration::from_secs(4);

/// Limits of the silence after which a gateway is taken for lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossRule {
    /// Its Lease was not renewed for this long, ...
    pub expired_after: Duration,
    /// ... and another gateway renewed its own this much later. Both have to hold.
    pub overtaken_by: Duration,
    /// Or its Lease was not renewed for longer than this, whatever the others do.
    pub abandoned_after: Duration,
}

impl LossRule {
    /// For a process that watches the Leases and takes the times by its own clock. Every gateway
    /// renews its Lease within two thirds of its duration, as within [`RENEWAL_ROUND`] of
    /// [`LEASE_DURATION`].
    pub fn by_own_clock(lease_duration: Duration) -> Self {
        Self {
            expired_after: lease_duration,
            overtaken_by: lease_duration * 2 / 3,
            abandoned_after: Duration::MAX,
        }
    }

    /// For a process that reads the Leases once, and compares the times in them. The holders'
    /// clocks may differ from each other by seconds, and from ours by minutes.
    pub fn by_holders_clocks(lease_duration: Duration) -> Self {
        Self {
            expired_after: Duration::ZERO,
            overtaken_by: lease_duration,
            abandoned_after: Duration::from_mins(5),
        }
    }

    /// For a process that reads the Leases once, and takes all times by the API server's clock.
    /// These times are truncated to the second, and requests take a while.
    pub fn by_server_clock(lease_duration: Duration) -> Self {
        let abandoned_after = lease_duration + Duration::from_secs(2);
        Self {
            expired_after: Duration::MAX,
            overtaken_by: Duration::MAX,
            abandoned_after,
        }
    }

    /// Whether a gateway is lost that was silent for `silent_for`, and renewed its Lease `behind`
    /// the latest renewal of a usable one.
    pub fn is_lost(&self, silent_for: Duration, behind: Duration) -> bool {
        (silent_for >= self.expired_after && behind >= self.overtaken_by)
            || silent_for > self.abandoned_after
    }
}

/// The contents of a gateway's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayLease {
    /// The number of the Lease, less than [`MAX_GATEWAYS`].
    pub number: u8,
    /// The node that holds it; `None` if the Lease was given up.
    pub node: Option<String>,
    /// The node's WireGuard key (base64).
    pub public_key: Option<String>,
    /// The first key that the node had, if that is another one.
    pub first_key: Option<String>,
    /// The key before a renewal of keys, which sessions still begin with.
    pub former_key: Option<String>,
    /// The TCP port on which the gateway takes connections over TLS, if it does.
    pub tls_port: Option<u16>,
    /// The buckets that the gateway carries.
    pub buckets: Buckets,
    /// Time for which the Lease holds after a renewal, if the Lease contains it: see
    /// [`GatewayLease::holding_time`].
    pub duration: Option<Duration>,
    /// The last renewal, by the holder's clock.
    pub renewed_at: Option<Timestamp>,
    /// `metadata.resourceVersion`, which changes with each write.
    pub version: Option<String>,
    /// The gateways that do not answer the node's probes any more.
    pub suspects: SuspectedGateways,
}

impl GatewayLease {
    /// Reads a Lease; `None` if it is no gateway's. Any node can write any text as a key: see
    /// [`is_key`].
    pub fn parse(lease: &Lease) -> Option<Self> {
        let number = lease_number(lease.metadata.name.as_deref()?)?;
        let spec = lease.spec.as_ref();
        let annotations = lease.metadata.annotations.as_ref();
        let annotation = |name| annotations?.get(name);
        let buckets = annotation(annotations::GATEWAY_BUCKETS)
            .and_then(|text| Buckets::from_str_radix(text, 16).ok());
        let suspects =
            annotation(annotations::SUSPECTED_GATEWAYS).and_then(|text| text.parse().ok());
        let seconds = spec.and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok());
        Some(Self {
            number,
            node: spec
                .and_then(|spec| spec.holder_identity.clone())
                .filter(|holder| !holder.is_empty()),
            public_key: annotation(annotations::GATEWAY_KEY).cloned(),
            first_key: annotation(annotations::GATEWAY_FIRST_KEY).cloned(),
            former_key: annotation(annotations::GATEWAY_FORMER_KEY).cloned(),
            tls_port: annotation(annotations::GATEWAY_TLS).and_then(|port| port.parse().ok()),
            buckets: buckets.unwrap_or_default(),
            duration: seconds.map(Duration::from_secs),
            renewed_at: spec
                .and_then(|spec| spec.renew_time.as_ref())
                .map(|time| time.0),
            version: lease.metadata.resource_version.clone(),
            suspects: suspects.unwrap_or_default(),
        })
    }

    /// Whether this node holds the Lease.
    pub fn is_held_by(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node)
    }

    /// Time for which the Lease holds after a renewal.
    pub fn holding_time(&self) -> Duration {
        self.duration
            .unwrap_or(LEASE_DURATION)
            .clamp(MIN_LEASE_DURATION, MAX_LEASE_DURATION)
    }

    /// Whether its holder can carry packets: its number is less than `replicas`, the configured
    /// number of gateways, and its key is valid. A Lease that was given up has no key.
    pub fn is_usable(&self, replicas: u8) -> bool {
        self.number < replicas && self.public_key.as_deref().is_some_and(is_key)
    }
}

/// The number of the gateway Lease with this name.
pub fn lease_number(name: &str) -> Option<u8> {
    (0..MAX_GATEWAYS).find(|number| gateway_lease(*number) == name)
}

/// Whether this is a WireGuard key in base64.
pub fn is_key(text: &str) -> bool {
    BASE64
        .decode(text.as_bytes())
        .is_ok_and(|key| key.len() == 32)
}

/// The Leases of usable gateways that are not lost, by the times written in them. A Lease that was
/// never renewed is left out.
pub fn alive_gateways(
    mut leases: Vec<GatewayLease>,
    replicas: u8,
    now: Timestamp,
) -> Vec<GatewayLease> {
    leases.retain(|lease| lease.is_usable(replicas));
    let newest = leases.iter().filter_map(|lease| lease.renewed_at).max();
    leases.retain(|lease| {
        let (Some(renewed), Some(newest)) = (lease.renewed_at, newest) else {
            return false;
        };
        !LossRule::by_holders_clocks(lease.holding_time())
            .is_lost(time_between(renewed, now), time_between(renewed, newest))
    });
    leases
}

/// The time from one moment to a later one; zero if it is not later.
pub fn time_between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

/// The Leases of gateways, and when this process saw each of them change.
#[derive(Clone, Debug, Default)]
pub struct LeaseObservations {
    all: BTreeMap<u8, LeaseObservation>,
    /// The configured number of gateways, if it is known.
    replicas: Option<u8>,
}

#[derive(Clone, Debug)]
struct LeaseObservation {
    lease: GatewayLease,
    changed_at: Instant,
}

impl LeaseObservation {
    fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.changed_at)
    }

    fn loss_rule(&self) -> LossRule {
        LossRule::by_own_clock(self.lease.holding_time())
    }
}

impl LeaseObservations {
    /// Sets the configured number of gateways. Before that, [`MAX_GATEWAYS`] are usable.
    pub fn set_replicas(&mut self, replicas: u8) {
        self.replicas = Some(replicas);
    }

    /// Records a Lease that changed.
    pub fn observe(&mut self, lease: GatewayLease, now: Instant) {
        // If all were silent, it was the API server: nobody loses the Lease because of that. A
        // Lease of a gateway that is not usable shows, too, that the API server answers.
        if self.all.keys().all(|number| self.has_expired(*number, now)) {
            self.restart_silence_times(now);
        }
        self.all.insert(
            lease.number,
            LeaseObservation {
                lease,
                changed_at: now,
            },
        );
    }

    /// Records that a Lease is gone. Returns whether it was there.
    pub fn forget(&mut self, number: u8) -> bool {
        self.all.remove(&number).is_some()
    }

    /// Nothing could be observed up to now, so silence says nothing about anybody, except about
    /// gateways that were already silent while another one was heard.
    pub fn restart_silence_times(&mut self, now: Instant) {
        let newest = self.newest_change();
        for one in self.all.values_mut() {
            let behind = newest.map(|newest| newest.saturating_duration_since(one.changed_at));
            if behind.is_none_or(|behind| behind < one.loss_rule().overtaken_by) {
                one.changed_at = now;
            }
        }
    }

    /// The Leases in the order of their numbers.
    pub fn leases(&self) -> impl Iterator<Item = &GatewayLease> {
        self.all.values().map(|one| &one.lease)
    }

    /// The Lease with this number.
    pub fn lease(&self, number: u8) -> Option<&GatewayLease> {
        self.all.get(&number).map(|one| &one.lease)
    }

    /// Time for which a Lease still holds if it is not renewed. Zero if it expired or is not known.
    pub fn expires_in(&self, number: u8, now: Instant) -> Duration {
        self.all
            .get(&number)
            .map(|one| one.lease.holding_time().saturating_sub(one.silent_for(now)))
            .unwrap_or_default()
    }

    /// Whether another node may take the Lease because it was not renewed in time.
    pub fn has_expired(&self, number: u8, now: Instant) -> bool {
        self.expires_in(number, now).is_zero()
    }

    /// Whether a gateway is taken for lost because its Lease expired while that of a usable gateway
    /// was renewed.
    pub fn is_silent(&self, number: u8, now: Instant) -> bool {
        let (Some(one), Some(newest)) = (self.all.get(&number), self.newest_change()) else {
            return false;
        };
        one.loss_rule().is_lost(
            one.silent_for(now),
            newest.saturating_duration_since(one.changed_at),
        )
    }

    /// Whether a gateway is taken for lost because another usable one, which is not silent itself,
    /// says that its node does not answer, and it did not renew its Lease since.
    pub fn is_suspected(&self, number: u8, now: Instant) -> bool {
        let Some(version) = self
            .lease(number)
            .and_then(|lease| lease.version.as_deref())
        else {
            return false;
        };
        let others = self.usable_observations().map(|one| &one.lease);
        let mut others =
            others.filter(|other| other.number != number && !self.is_silent(other.number, now));
        others.any(|other| other.suspects.contains(number, version))
    }

    /// Whether the holder of this Lease can carry packets.
    pub fn is_usable(&self, lease: &GatewayLease) -> bool {
        lease.is_usable(self.replicas.unwrap_or(MAX_GATEWAYS))
    }

    fn usable_observations(&self) -> impl Iterator<Item = &LeaseObservation> {
        self.all.values().filter(|one| self.is_usable(&one.lease))
    }

    fn newest_change(&self) -> Option<Instant> {
        self.usable_observations().map(|one| one.changed_at).max()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(name: &str, holder: &str, annotations: &Value) -> Option<GatewayLease> {
        let lease = json!({
            "metadata": { "name": name, "resourceVersion": "7", "annotations": annotations },
            "spec": { "holderIdentity": holder, "leaseDurationSeconds": 6, "renewTime": "2026-06-01T12:00:00.000000Z" },
        });
        GatewayLease::parse(&serde_json::from_value(lease).unwrap())
    }

    fn usable(number: u8) -> GatewayLease {
        GatewayLease {
            number,
            public_key: Some(BASE64.encode(&[1; 32])),
            ..GatewayLease::default()
        }
    }

    #[test]
    fn only_the_leases_of_gateways_have_a_number() {
        assert_eq!(lease_number(&gateway_lease(3)), Some(3));
        assert_eq!(lease_number("liqo-gateway-03"), None);
        assert_eq!(
            lease_number(&gateway_lease(MAX_GATEWAYS)),
            None,
            "its mark would be that of the first"
        );
        assert_eq!(lease_number("somebody-3"), None);
        assert_eq!(lease("liqo-controller-manager", "a", &json!({})), None);
    }

    #[test]
    fn a_lease_says_who_holds_it_with_which_keys_and_whether_tls_is_taken() {
        let (key, tls) = (annotations::GATEWAY_KEY, annotations::GATEWAY_TLS);
        let gateway = |annotations: Value| lease(&gateway_lease(0), "a", &annotations).unwrap();
        assert_eq!(gateway(json!({ tls: "443" })).public_key, None);
        let port = |text: &str| gateway(json!({ tls: text })).tls_port;
        assert_eq!([port("443"), port("none")], [Some(443), None]);
        let full = gateway(
            json!({ key: BASE64.encode(&[1; 32]), annotations::SUSPECTED_GATEWAYS: "1@9" }),
        );
        assert!(full.is_held_by("a") && full.suspects.contains(1, "9"));
        assert_eq!(
            (full.public_key, full.version.as_deref()),
            (Some(BASE64.encode(&[1; 32])), Some("7"))
        );
        assert_eq!(
            lease(&gateway_lease(0), "", &json!({})).unwrap().node,
            None,
            "it was given up"
        );
    }

    #[test]
    fn by_the_times_in_leases_one_that_nobody_renews_is_lost() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let renewed = |number: u8, ago: u64| GatewayLease {
            renewed_at: Some(now - Duration::from_secs(ago)),
            ..usable(number)
        };
        let numbers = |leases: Vec<GatewayLease>| {
            alive_gateways(leases, 2, now)
                .iter()
                .map(|lease| lease.number)
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(vec![renewed(0, 10), renewed(1, 1)]), [1]);
        assert_eq!(
            numbers(vec![renewed(0, 10), renewed(2, 1)]),
            [0],
            "the third is more than two"
        );
        assert_eq!(
            numbers(vec![
                renewed(0, 10),
                GatewayLease {
                    public_key: None,
                    ..renewed(1, 1)
                }
            ]),
            [0]
        );
        assert_eq!(
            numbers(vec![renewed(0, 62), renewed(1, 60)]),
            [0, 1],
            "our clock differs from theirs"
        );
        assert!(numbers(vec![renewed(0, 600)]).is_empty());
        assert!(numbers(vec![usable(0)]).is_empty());
    }

    #[test]
    fn by_the_api_servers_clock_one_is_lost_two_seconds_after_its_lease_expired() {
        let rule = LossRule::by_server_clock(LEASE_DURATION);
        let is_lost =
            |seconds| rule.is_lost(Duration::from_secs(seconds), Duration::from_secs(seconds));
        assert_eq!([7, 8, 9].map(is_lost), [false, false, true]);
    }

    #[test]
    fn a_gateway_is_lost_when_it_is_silent_while_another_one_is_heard() {
        let start = Instant::now();
        let mut observations = LeaseObservations::default();
        observations.observe(usable(0), start);
        observations.observe(usable(1), start);
        let later = start + LEASE_DURATION;
        assert!(
            observations.has_expired(0, later) && !observations.is_silent(0, later),
            "nobody is heard"
        );
        observations.observe(usable(1), start + RENEWAL_ROUND);
        assert!(
            !observations.is_silent(0, start + RENEWAL_ROUND),
            "its Lease still holds"
        );
        assert!(observations.is_silent(0, later) && !observations.is_silent(1, later));
    }

    #[test]
    fn a_lease_that_is_not_usable_neither_outlives_nor_suspects_a_gateway() {
        let start = Instant::now();
        let suspicious = |lease: GatewayLease| GatewayLease {
            suspects: "0@7".parse().unwrap(),
            ..lease
        };
        let surplus = suspicious(usable(2));
        let without_key = suspicious(GatewayLease {
            public_key: Some("no key".to_owned()),
            ..usable(1)
        });
        let later = start + LEASE_DURATION;
        for (another, replicas, is_usable) in [
            (surplus.clone(), 3, true),
            (surplus, 2, false),
            (without_key, 2, false),
        ] {
            let mut observations = LeaseObservations::default();
            observations.set_replicas(replicas);
            observations.observe(
                GatewayLease {
                    version: Some("7".to_owned()),
                    ..usable(0)
                },
                start,
            );
            observations.observe(another, start + RENEWAL_ROUND);
            assert_eq!(observations.is_silent(0, later), is_usable);
            assert_eq!(observations.is_suspected(0, later), is_usable);
            assert!(
                observations.has_expired(0, later),
                "the API server answers, so another node may take the Lease"
            );
        }
    }

    #[test]
    fn a_lease_holds_as_long_as_it_says_itself_within_limits() {
        let holds_for = |seconds: Value| {
            let lease = json!({ "metadata": { "name": gateway_lease(0) }, "spec": { "leaseDurationSeconds": seconds } });
            GatewayLease::parse(&serde_json::from_value(lease).unwrap())
                .unwrap()
                .holding_time()
                .as_secs()
        };
        let read = [json!(15), json!(null), json!(0), json!(-1), json!(86_400)].map(holds_for);
        assert_eq!(read, [15, 6, 4, 6, 60]);

        let start = Instant::now();
        let patient = |number: u8| GatewayLease {
            duration: Some(LEASE_DURATION * 2),
            ..usable(number)
        };
        let mut observations = LeaseObservations::default();
        observations.observe(patient(0), start);
        observations.observe(patient(1), start + RENEWAL_ROUND);
        let later = start + LEASE_DURATION * 2;
        assert!(
            !observations.has_expired(0, start + LEASE_DURATION)
                && observations.has_expired(0, later)
        );
        assert!(
            !observations.is_silent(0, later),
            "the next renewal of the other one was not due yet"
        );
        observations.observe(patient(1), start + RENEWAL_ROUND * 2);
        assert!(observations.is_silent(0, later));
    }
}
