//! What is to be done about one peer: a pure function of what stands in this cluster.
//!
//! A peer may be provider, consumer or both, and the two directions do not depend on each other: each has a namespace
//! here, and the `ForeignCluster` stays until both namespaces are gone.

use std::time::Duration;

use jiff::Timestamp;
use liqo_api::{ForeignCluster, Wish, annotations};
use tokio::time::Instant;

/// Without any answer for this long, a provider counts as unreachable.
const NO_ANSWER: Duration = Duration::from_secs(8);
/// With its lease unchanged for this long, a provider's manager counts as gone.
const MANAGER_SILENT: Duration = Duration::from_secs(30);
/// With its lease unchanged for this long, a consumer counts as unreachable.
const CONSUMER_SILENT: Duration = Duration::from_secs(20);

/// What the user says of a peer, from its `ForeignCluster`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Facts that do not depend on each other.
pub struct Peer {
    /// We are to borrow from it.
    pub wants_outgoing: bool,
    /// What is said of lending to it.
    pub incoming: Wish,
    /// The object is being deleted.
    pub deleting: bool,
    /// The object was made by Liqo, when the consumer came.
    pub automatic: bool,
    /// The object has our finalizer.
    pub finalizer: bool,
    /// Whether it waits for approval to borrow from us.
    pub waiting: Waiting,
}

/// Whether a peer waits for approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It does not.
    No,
    /// Somebody is to decide, within this time.
    For(Duration),
    /// Somebody decided, and it has not come again since.
    Decided,
    /// Nobody decided in time.
    Over,
}

/// Whether the peer of a record waits for approval, and how long it goes on to. A date that cannot be read has passed.
pub fn waiting(record: &ForeignCluster, expiry: Duration, now: Timestamp) -> Waiting {
    let Some(since) = record.metadata.annotations.as_ref().and_then(|all| all.get(annotations::PENDING_APPROVAL)) else {
        return Waiting::No;
    };
    if record.spec.incoming_peering != Wish::Auto {
        return Waiting::Decided;
    }
    // A clock that was set back lets nobody wait for longer.
    let waited = since.parse::<Timestamp>().map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default());
    match waited.ok().and_then(|waited| expiry.checked_sub(waited)) {
        Some(left) if !left.is_zero() => Waiting::For(left),
        _ => Waiting::Over,
    }
}

/// One of the two namespaces of a peer in this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is none.
    Absent,
    /// It is in use.
    Present,
    /// What is in it is being cleaned up.
    Ending,
    /// Kubernetes deletes it.
    Terminating,
}

/// What stands in this cluster about one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its `ForeignCluster`, if there is one.
    pub peer: Option<Peer>,
    /// Our namespace for it as a provider.
    pub provider_namespace: Place,
    /// Its namespace as our consumer.
    pub tenant_namespace: Place,
    /// As a consumer it was silent for longer than is held for it.
    pub consumer_expired: bool,
}

/// What is to be done about a peer as our provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Nothing is there and nothing is wanted.
    Nothing,
    /// Namespace and session are to be there.
    Run,
    /// Virtual nodes are to go, then the session, then the namespace.
    TearDown,
    /// The namespace is on its way out.
    AwaitGone,
}

/// What is to be done about a peer as our consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// There is no tenancy, and nothing of one is to be left.
    Nothing,
    /// The tenancy stands; all its parts are to be there.
    Serve,
    /// The tenancy ends: rights, contents, mapped namespaces, namespace.
    End,
    /// The namespace is on its way out; the rights are to be gone.
    AwaitGone,
}

/// What is to be done about the `ForeignCluster` itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It is as it should be.
    Keep,
    /// It needs our finalizer.
    Hold,
    /// Our finalizer is to go.
    Release,
    /// It is no longer to say that the peer waits for approval.
    Forget,
    /// It was made for a consumer that is gone.
    Delete,
    /// It is missing for a consumer that is there.
    Create,
}

/// All that is to be done about one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// As our provider.
    pub outgoing: Outgoing,
    /// As our consumer.
    pub incoming: Incoming,
    /// The `ForeignCluster`.
    pub record: Record,
}

/// Decides what is to be done about one peer.
pub fn plan(snapshot: Snapshot) -> Plan {
    let outgoing = match (wants_outgoing(snapshot), snapshot.provider_namespace) {
        (true, Place::Absent | Place::Present | Place::Ending) => Outgoing::Run,
        (false, Place::Absent) => Outgoing::Nothing,
        (false, Place::Present | Place::Ending) => Outgoing::TearDown,
        (_, Place::Terminating) => Outgoing::AwaitGone,
    };
    let unwanted = snapshot.consumer_expired || snapshot.peer.is_some_and(|peer| peer.deleting || peer.incoming == Wish::No);
    let incoming = match snapshot.tenant_namespace {
        Place::Absent => Incoming::Nothing,
        Place::Present if !unwanted => Incoming::Serve,
        Place::Present | Place::Ending => Incoming::End,
        Place::Terminating => Incoming::AwaitGone,
    };
    Plan { outgoing, incoming, record: record(snapshot.peer, outgoing, incoming) }
}

fn wants_outgoing(snapshot: Snapshot) -> bool {
    snapshot.peer.is_some_and(|peer| peer.wants_outgoing && !peer.deleting)
}

fn record(peer: Option<Peer>, outgoing: Outgoing, incoming: Incoming) -> Record {
    let over = outgoing == Outgoing::Nothing && incoming == Incoming::Nothing;
    match peer {
        None if incoming == Incoming::Serve => Record::Create,
        Some(peer) if peer.waiting == Waiting::Over && !peer.deleting => Record::Forget,
        // A `No` is kept: it is what keeps the consumer out. So is what somebody is to decide on, or decided.
        Some(peer)
            if over
                && peer.automatic
                && peer.waiting == Waiting::No
                && !peer.deleting
                && !peer.wants_outgoing
                && peer.incoming != Wish::No =>
        {
            Record::Delete
        }
        Some(peer) if over && peer.finalizer => Record::Release,
        Some(peer) if !over && !peer.finalizer && !peer.deleting => Record::Hold,
        None | Some(_) => Record::Keep,
    }
}

/// What was last heard of a provider, by the local monotonic clock.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// When its API server last did what we asked, if it ever did.
    pub answered: Option<Instant>,
    /// The version of its manager's lease that was seen last.
    pub lease: Option<String>,
    /// When that version was first seen.
    pub lease_changed: Instant,
    /// Whether it answered last that we may not.
    pub refused: bool,
}

/// How a provider is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerHealth {
    /// Its API server answers and its manager renews its lease.
    Reachable,
    /// Its API server does not answer.
    NoAnswer,
    /// Its API server answers and does not let us in.
    AccessDenied,
    /// Its API server answers, but its manager does not renew its lease.
    ManagerSilent,
}

impl Pulse {
    /// A provider that was not asked yet.
    pub fn new(now: Instant) -> Self {
        Self { answered: None, lease: None, lease_changed: now, refused: false }
    }

    /// The API server did what was asked, and this is the lease's version.
    pub fn heard(&mut self, lease: Option<String>, now: Instant) {
        self.answered = Some(now);
        self.refused = false;
        if self.lease != lease {
            self.lease = lease;
            self.lease_changed = now;
        }
    }

    /// How the provider is now.
    pub fn health(&self, now: Instant) -> PeerHealth {
        if self.answered.is_none_or(|at| now.saturating_duration_since(at) >= NO_ANSWER) {
            if self.refused { PeerHealth::AccessDenied } else { PeerHealth::NoAnswer }
        } else if now.saturating_duration_since(self.lease_changed) >= MANAGER_SILENT {
            PeerHealth::ManagerSilent
        } else {
            PeerHealth::Reachable
        }
    }
}

/// What was last heard of a consumer, by the local monotonic clock.
#[derive(Clone, Debug)]
pub struct ConsumerPulse {
    lease: Option<String>,
    changed: Instant,
    /// Whether a change was seen since this process started.
    alive: bool,
}

/// How a consumer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerHealth {
    /// Not heard yet, and not silent for long.
    Unknown,
    /// It renews its lease.
    Reachable,
    /// It does not.
    Silent,
    /// It has not for longer than anything is held for it.
    Expired,
}

impl ConsumerPulse {
    /// The state of its lease when it was first looked at.
    pub fn new(lease: Option<String>, now: Instant) -> Self {
        Self { lease, changed: now, alive: false }
    }

    /// The state of its lease now.
    pub fn saw(&mut self, lease: Option<String>, now: Instant) {
        if self.lease != lease {
            *self = Self { lease, changed: now, alive: true };
        }
    }

    /// How the consumer is now.
    pub fn health(&self, expiry: Duration, now: Instant) -> ConsumerHealth {
        let silence = now.saturating_duration_since(self.changed);
        if silence >= expiry {
            ConsumerHealth::Expired
        } else if silence >= CONSUMER_SILENT {
            ConsumerHealth::Silent
        } else if self.alive {
            ConsumerHealth::Reachable
        } else {
            ConsumerHealth::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer {
        wants_outgoing: false,
        incoming: Wish::Auto,
        deleting: false,
        automatic: false,
        finalizer: true,
        waiting: Waiting::No,
    };
    const NOTHING: Snapshot = Snapshot {
        peer: Some(PEER),
        provider_namespace: Place::Absent,
        tenant_namespace: Place::Absent,
        consumer_expired: false,
    };

    fn with(peer: Peer) -> Snapshot {
        Snapshot { peer: Some(peer), ..NOTHING }
    }

    #[test]
    fn a_wanted_provider_gets_a_session_and_the_finalizer_first() {
        let plan = plan(with(Peer { wants_outgoing: true, finalizer: false, ..PEER }));
        assert_eq!((plan.outgoing, plan.record), (Outgoing::Run, Record::Hold));
    }

    #[test]
    fn a_namespace_that_is_on_its_way_out_is_waited_for_before_a_new_session() {
        let snapshot = Snapshot { provider_namespace: Place::Terminating, ..with(Peer { wants_outgoing: true, ..PEER }) };
        assert_eq!(plan(snapshot).outgoing, Outgoing::AwaitGone);
    }

    #[test]
    fn unpeering_tears_down_and_releases_the_record_last() {
        let deleting = Peer { wants_outgoing: true, deleting: true, ..PEER };
        for place in [Place::Present, Place::Terminating] {
            let plan = plan(Snapshot { provider_namespace: place, ..with(deleting) });
            assert_ne!(plan.outgoing, Outgoing::Run);
            assert_eq!(plan.record, Record::Keep, "{place:?}");
        }
        assert_eq!(plan(with(deleting)).record, Record::Release);
    }

    #[test]
    fn without_a_record_what_is_left_of_a_provider_is_torn_down() {
        let snapshot = Snapshot { peer: None, provider_namespace: Place::Present, ..NOTHING };
        assert_eq!(plan(snapshot), Plan { outgoing: Outgoing::TearDown, incoming: Incoming::Nothing, record: Record::Keep });
    }

    #[test]
    fn a_tenancy_stands_until_somebody_ends_it() {
        let tenant = |peer| Snapshot { tenant_namespace: Place::Present, ..with(peer) };
        assert_eq!(plan(tenant(PEER)).incoming, Incoming::Serve);
        assert_eq!(plan(tenant(Peer { incoming: Wish::Yes, ..PEER })).incoming, Incoming::Serve);
        assert_eq!(plan(tenant(Peer { incoming: Wish::No, ..PEER })).incoming, Incoming::End);
        assert_eq!(plan(tenant(Peer { deleting: true, ..PEER })).incoming, Incoming::End);
        assert_eq!(plan(Snapshot { consumer_expired: true, ..tenant(PEER) }).incoming, Incoming::End);
        assert_eq!(plan(Snapshot { tenant_namespace: Place::Ending, ..tenant(PEER) }).incoming, Incoming::End);
    }

    #[test]
    fn a_tenancy_without_a_record_gets_one() {
        let snapshot = Snapshot { peer: None, tenant_namespace: Place::Present, ..NOTHING };
        assert_eq!(plan(snapshot).record, Record::Create);
    }

    #[test]
    fn the_record_of_a_consumer_goes_with_it_if_it_came_with_it() {
        let automatic = Peer { automatic: true, ..PEER };
        assert_eq!(plan(with(automatic)).record, Record::Delete);
        assert_eq!(plan(Snapshot { tenant_namespace: Place::Terminating, ..with(automatic) }).record, Record::Keep);
        // Not if it is needed for the other direction, or keeps the consumer out, or the user made it.
        assert_eq!(plan(with(Peer { wants_outgoing: true, ..automatic })).record, Record::Keep);
        assert_eq!(plan(with(Peer { incoming: Wish::No, finalizer: false, ..automatic })).record, Record::Keep);
        assert_eq!(plan(with(PEER)).record, Record::Release);
    }

    #[test]
    fn the_two_directions_end_independently() {
        let both = Snapshot {
            provider_namespace: Place::Present,
            tenant_namespace: Place::Present,
            ..with(Peer { wants_outgoing: false, ..PEER })
        };
        assert_eq!(plan(both), Plan { outgoing: Outgoing::TearDown, incoming: Incoming::Serve, record: Record::Keep });
    }

    #[test]
    fn a_provider_that_does_not_answer_is_unreachable_within_ten_seconds() {
        let start = Instant::now();
        let mut pulse = Pulse::new(start);
        assert_eq!(pulse.health(start), PeerHealth::NoAnswer);
        pulse.heard(Some("1".into()), start);
        assert_eq!(pulse.health(start + Duration::from_secs(7)), PeerHealth::Reachable);
        assert_eq!(pulse.health(start + Duration::from_secs(8)), PeerHealth::NoAnswer);
        pulse.refused = true;
        assert_eq!(pulse.health(start + Duration::from_secs(8)), PeerHealth::AccessDenied);
        pulse.heard(Some("1".into()), start + Duration::from_secs(9));
        assert_eq!(pulse.health(start + Duration::from_secs(9)), PeerHealth::Reachable);
    }

    #[test]
    fn a_provider_whose_manager_is_gone_is_unreachable_although_its_api_server_answers() {
        let start = Instant::now();
        let mut pulse = Pulse::new(start);
        for second in 0..30 {
            pulse.heard(Some("1".into()), start + Duration::from_secs(second));
            assert_eq!(pulse.health(start + Duration::from_secs(second)), PeerHealth::Reachable);
        }
        pulse.heard(Some("1".into()), start + Duration::from_secs(30));
        assert_eq!(pulse.health(start + Duration::from_secs(30)), PeerHealth::ManagerSilent);
        pulse.heard(Some("2".into()), start + Duration::from_secs(31));
        assert_eq!(pulse.health(start + Duration::from_secs(31)), PeerHealth::Reachable);
    }

    #[test]
    fn a_consumer_is_judged_by_what_this_process_saw() {
        let (start, expiry) = (Instant::now(), Duration::from_secs(3600));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pulse = ConsumerPulse::new(Some("1".into()), start);
        assert_eq!(pulse.health(expiry, at(5)), ConsumerHealth::Unknown);
        pulse.saw(Some("2".into()), at(6));
        assert_eq!(pulse.health(expiry, at(7)), ConsumerHealth::Reachable);
        pulse.saw(Some("2".into()), at(26));
        assert_eq!(pulse.health(expiry, at(26)), ConsumerHealth::Silent);
        assert_eq!(pulse.health(expiry, at(3606)), ConsumerHealth::Expired);
        pulse.saw(Some("3".into()), at(3607));
        assert_eq!(pulse.health(expiry, at(3607)), ConsumerHealth::Reachable);
    }

    #[test]
    fn a_consumer_that_waits_for_approval_stays_known_for_as_long_as_it_may_wait() {
        let automatic = Peer { automatic: true, ..PEER };
        let record = |peer: Peer| plan(Snapshot { peer: Some(peer), ..NOTHING }).record;
        assert_eq!(record(automatic), Record::Delete);
        let waits = Waiting::For(Duration::from_secs(1));
        assert_ne!(record(Peer { waiting: waits, ..automatic }), Record::Delete);
        assert_ne!(record(Peer { waiting: Waiting::Decided, incoming: Wish::Yes, ..automatic }), Record::Delete);
        for peer in [automatic, PEER, Peer { wants_outgoing: true, ..PEER }] {
            assert_eq!(record(Peer { waiting: Waiting::Over, ..peer }), Record::Forget);
        }
        assert_eq!(record(Peer { waiting: Waiting::Over, deleting: true, ..automatic }), Record::Release);
    }

    #[test]
    fn approval_is_waited_for_from_the_first_request_on() {
        let (day, now) = (Duration::from_secs(86_400), "2026-06-02T12:00:00Z".parse().unwrap());
        let state = |since: Option<&str>, incoming: Wish| {
            let annotations = since.map(|since| serde_json::json!({ annotations::PENDING_APPROVAL: since }));
            let spec =
                serde_json::json!({ "clusterID": liqo_api::ClusterId::of_public_key(&[1; 32]), "incomingPeering": incoming });
            let record = serde_json::json!({ "metadata": { "name": "rome", "annotations": annotations }, "spec": spec });
            waiting(&serde_json::from_value(record).unwrap(), day, now)
        };
        assert_eq!(state(None, Wish::Auto), Waiting::No);
        assert_eq!(state(Some("2026-06-01T12:00:01Z"), Wish::Auto), Waiting::For(Duration::from_secs(1)));
        assert_eq!(state(Some("2026-06-03T12:00:00Z"), Wish::Auto), Waiting::For(day));
        for over in ["2026-06-01T12:00:00Z", "1970-01-01T00:00:00Z", "yesterday", ""] {
            assert_eq!(state(Some(over), Wish::Auto), Waiting::Over, "{over:?}");
            assert_eq!(state(Some(over), Wish::Yes), Waiting::Decided, "{over:?}");
        }
    }
}
