//! Decides what to do about one peer: [`plan`] is a function of this cluster's objects.
//!
//! A peer may be provider, consumer or both. The two directions are independent: each has a
//! namespace here, and the `ForeignCluster` stays until both namespaces are gone.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use liqo_api::peer_namespace::PeerNamespaceKind;
use liqo_api::{ForeignCluster, PeeringIntent, annotations, finalizers, labels};

use super::namespace::LiqoNamespace;

/// The facts in the `ForeignCluster` of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Facts that do not depend on each other.
pub struct PeerFacts {
    /// The user wants to borrow from it.
    pub wants_outgoing: bool,
    /// Whether the user wants to lend to it.
    pub incoming: PeeringIntent,
    /// The object is being deleted.
    pub deleting: bool,
    /// Liqo created the object when the consumer first called.
    pub automatic: bool,
    /// The object has our finalizer.
    pub finalizer: bool,
    pub waiting: ApprovalWait,
}

impl PeerFacts {
    pub fn from_record(record: &ForeignCluster, waiting: ApprovalWait) -> Self {
        Self {
            wants_outgoing: record.wants_outgoing(),
            incoming: record.spec.incoming_peering,
            deleting: record.metadata.deletion_timestamp.is_some(),
            // Discovery deletes what it found itself.
            automatic: record
                .labels()
                .get(labels::MANAGED)
                .is_some_and(|value| value == "true")
                && !record.labels().contains_key(labels::DISCOVERED_BY),
            waiting,
            finalizer: record
                .finalizers()
                .iter()
                .any(|name| name == finalizers::PEERING),
        }
    }
}

/// Whether a peer waits for approval to borrow from this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalWait {
    No,
    /// Somebody has to decide within this time.
    For(Duration),
    /// Somebody decided, and the peer has not called since.
    Decided,
    /// Nobody decided in time.
    Over,
}

/// Whether the peer of a record waits for approval, and for how much longer. A date that cannot be
/// parsed has passed.
pub fn approval_wait(record: &ForeignCluster, expiry: Duration, now: Timestamp) -> ApprovalWait {
    let Some(since) = record
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotations::PENDING_APPROVAL))
    else {
        return ApprovalWait::No;
    };
    if record.spec.incoming_peering != PeeringIntent::Auto {
        return ApprovalWait::Decided;
    }
    // A clock that was set back does not extend the time.
    let waited = since
        .parse::<Timestamp>()
        .map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default());
    match waited.ok().and_then(|waited| expiry.checked_sub(waited)) {
        Some(left) if !left.is_zero() => ApprovalWait::For(left),
        _ => ApprovalWait::Over,
    }
}

/// One of the two namespaces of a peer in this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerNamespaceState {
    Absent,
    Present,
    /// Liqo is removing its contents.
    Ending,
    /// Kubernetes is deleting it.
    Terminating,
}

impl PeerNamespaceState {
    /// The state of the namespace of this kind. One of another kind is not ours.
    pub fn of_kind(namespace: Option<&LiqoNamespace>, kind: &PeerNamespaceKind) -> Self {
        match namespace.filter(|namespace| namespace.kind == *kind) {
            None => Self::Absent,
            Some(namespace) if namespace.terminating => Self::Terminating,
            Some(namespace) if namespace.ending => Self::Ending,
            Some(_) => Self::Present,
        }
    }
}

/// This cluster's objects for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSnapshot {
    /// Its `ForeignCluster`.
    pub peer: Option<PeerFacts>,
    pub provider_namespace: PeerNamespaceState,
    pub tenant_namespace: PeerNamespaceState,
    /// As a consumer, it has been silent for longer than the configured expiry.
    pub consumer_expired: bool,
}

/// The action for a peer as our provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutgoingAction {
    Nothing,
    /// Ensure that its namespace and session exist.
    Run,
    /// Remove virtual nodes, then the session, then the namespace.
    TearDown,
    /// Wait until Kubernetes has deleted the namespace.
    AwaitGone,
}

/// The action for a peer as our consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncomingAction {
    /// There is no tenancy: remove what an earlier one left.
    Nothing,
    /// Ensure that all parts of the tenancy exist.
    Serve,
    /// Remove the tenancy: rights, contents, mapped namespaces, namespace.
    End,
    /// Wait until Kubernetes has deleted the namespace; ensure that the rights are gone.
    AwaitGone,
}

/// The action for the `ForeignCluster` itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordAction {
    Keep,
    /// Add our finalizer.
    Hold,
    /// Remove our finalizer.
    Release,
    /// Remove the annotation that says that the peer waits for approval.
    Forget,
    /// Delete it: Liqo created it for a consumer that is gone.
    Delete,
    /// Create it for a consumer that has none.
    Create,
}

/// The actions for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPlan {
    pub outgoing: OutgoingAction,
    pub incoming: IncomingAction,
    pub record: RecordAction,
}

pub fn plan(snapshot: PeerSnapshot) -> PeerPlan {
    let outgoing = match (wants_outgoing(snapshot), snapshot.provider_namespace) {
        (
            true,
            PeerNamespaceState::Absent | PeerNamespaceState::Present | PeerNamespaceState::Ending,
        ) => OutgoingAction::Run,
        (false, PeerNamespaceState::Absent) => OutgoingAction::Nothing,
        (false, PeerNamespaceState::Present | PeerNamespaceState::Ending) => {
            OutgoingAction::TearDown
        }
        (_, PeerNamespaceState::Terminating) => OutgoingAction::AwaitGone,
    };
    let unwanted = snapshot.consumer_expired
        || snapshot
            .peer
            .is_some_and(|peer| peer.deleting || peer.incoming == PeeringIntent::No);
    let incoming = match snapshot.tenant_namespace {
        PeerNamespaceState::Absent => IncomingAction::Nothing,
        PeerNamespaceState::Present if !unwanted => IncomingAction::Serve,
        PeerNamespaceState::Present | PeerNamespaceState::Ending => IncomingAction::End,
        PeerNamespaceState::Terminating => IncomingAction::AwaitGone,
    };
    PeerPlan {
        outgoing,
        incoming,
        record: record_action(snapshot.peer, outgoing, incoming),
    }
}

fn wants_outgoing(snapshot: PeerSnapshot) -> bool {
    snapshot
        .peer
        .is_some_and(|peer| peer.wants_outgoing && !peer.deleting)
}

fn record_action(
    peer: Option<PeerFacts>,
    outgoing: OutgoingAction,
    incoming: IncomingAction,
) -> RecordAction {
    let over = outgoing == OutgoingAction::Nothing && incoming == IncomingAction::Nothing;
    match peer {
        None if incoming == IncomingAction::Serve => RecordAction::Create,
        Some(peer) if peer.waiting == ApprovalWait::Over && !peer.deleting => RecordAction::Forget,
        // Keep a `No`, which keeps the consumer out, and a record that somebody has to decide on,
        // or decided on.
        Some(peer)
            if over
                && peer.automatic
                && peer.waiting == ApprovalWait::No
                && !peer.deleting
                && !peer.wants_outgoing
                && peer.incoming != PeeringIntent::No =>
        {
            RecordAction::Delete
        }
        Some(peer) if over && peer.finalizer => RecordAction::Release,
        Some(peer) if !over && !peer.finalizer && !peer.deleting => RecordAction::Hold,
        None | Some(_) => RecordAction::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerFacts = PeerFacts {
        wants_outgoing: false,
        incoming: PeeringIntent::Auto,
        deleting: false,
        automatic: false,
        finalizer: true,
        waiting: ApprovalWait::No,
    };
    const NOTHING: PeerSnapshot = PeerSnapshot {
        peer: Some(PEER),
        provider_namespace: PeerNamespaceState::Absent,
        tenant_namespace: PeerNamespaceState::Absent,
        consumer_expired: false,
    };

    fn with(peer: PeerFacts) -> PeerSnapshot {
        PeerSnapshot {
            peer: Some(peer),
            ..NOTHING
        }
    }

    #[test]
    fn a_wanted_provider_gets_a_session_and_the_finalizer_first() {
        let plan = plan(with(PeerFacts {
            wants_outgoing: true,
            finalizer: false,
            ..PEER
        }));
        assert_eq!(
            (plan.outgoing, plan.record),
            (OutgoingAction::Run, RecordAction::Hold)
        );
    }

    #[test]
    fn a_namespace_that_is_on_its_way_out_is_waited_for_before_a_new_session() {
        let snapshot = PeerSnapshot {
            provider_namespace: PeerNamespaceState::Terminating,
            ..with(PeerFacts {
                wants_outgoing: true,
                ..PEER
            })
        };
        assert_eq!(plan(snapshot).outgoing, OutgoingAction::AwaitGone);
    }

    #[test]
    fn unpeering_tears_down_and_releases_the_record_last() {
        let deleting = PeerFacts {
            wants_outgoing: true,
            deleting: true,
            ..PEER
        };
        for place in [PeerNamespaceState::Present, PeerNamespaceState::Terminating] {
            let plan = plan(PeerSnapshot {
                provider_namespace: place,
                ..with(deleting)
            });
            assert_ne!(plan.outgoing, OutgoingAction::Run);
            assert_eq!(plan.record, RecordAction::Keep, "{place:?}");
        }
        assert_eq!(plan(with(deleting)).record, RecordAction::Release);
    }

    #[test]
    fn without_a_record_what_is_left_of_a_provider_is_torn_down() {
        let snapshot = PeerSnapshot {
            peer: None,
            provider_namespace: PeerNamespaceState::Present,
            ..NOTHING
        };
        assert_eq!(
            plan(snapshot),
            PeerPlan {
                outgoing: OutgoingAction::TearDown,
                incoming: IncomingAction::Nothing,
                record: RecordAction::Keep
            }
        );
    }

    #[test]
    fn a_tenancy_stands_until_somebody_ends_it() {
        let tenant = |peer| PeerSnapshot {
            tenant_namespace: PeerNamespaceState::Present,
            ..with(peer)
        };
        assert_eq!(plan(tenant(PEER)).incoming, IncomingAction::Serve);
        assert_eq!(
            plan(tenant(PeerFacts {
                incoming: PeeringIntent::Yes,
                ..PEER
            }))
            .incoming,
            IncomingAction::Serve
        );
        assert_eq!(
            plan(tenant(PeerFacts {
                incoming: PeeringIntent::No,
                ..PEER
            }))
            .incoming,
            IncomingAction::End
        );
        assert_eq!(
            plan(tenant(PeerFacts {
                deleting: true,
                ..PEER
            }))
            .incoming,
            IncomingAction::End
        );
        assert_eq!(
            plan(PeerSnapshot {
                consumer_expired: true,
                ..tenant(PEER)
            })
            .incoming,
            IncomingAction::End
        );
        assert_eq!(
            plan(PeerSnapshot {
                tenant_namespace: PeerNamespaceState::Ending,
                ..tenant(PEER)
            })
            .incoming,
            IncomingAction::End
        );
    }

    #[test]
    fn a_tenancy_without_a_record_gets_one() {
        let snapshot = PeerSnapshot {
            peer: None,
            tenant_namespace: PeerNamespaceState::Present,
            ..NOTHING
        };
        assert_eq!(plan(snapshot).record, RecordAction::Create);
    }

    #[test]
    fn the_record_of_a_consumer_goes_with_it_if_it_came_with_it() {
        let automatic = PeerFacts {
            automatic: true,
            ..PEER
        };
        assert_eq!(plan(with(automatic)).record, RecordAction::Delete);
        assert_eq!(
            plan(PeerSnapshot {
                tenant_namespace: PeerNamespaceState::Terminating,
                ..with(automatic)
            })
            .record,
            RecordAction::Keep
        );
        // Keep a record that the other direction needs, that keeps the consumer out, or that the
        // user created.
        assert_eq!(
            plan(with(PeerFacts {
                wants_outgoing: true,
                ..automatic
            }))
            .record,
            RecordAction::Keep
        );
        assert_eq!(
            plan(with(PeerFacts {
                incoming: PeeringIntent::No,
                finalizer: false,
                ..automatic
            }))
            .record,
            RecordAction::Keep
        );
        assert_eq!(plan(with(PEER)).record, RecordAction::Release);
    }

    #[test]
    fn the_two_directions_end_independently() {
        let both = PeerSnapshot {
            provider_namespace: PeerNamespaceState::Present,
            tenant_namespace: PeerNamespaceState::Present,
            ..with(PeerFacts {
                wants_outgoing: false,
                ..PEER
            })
        };
        assert_eq!(
            plan(both),
            PeerPlan {
                outgoing: OutgoingAction::TearDown,
                incoming: IncomingAction::Serve,
                record: RecordAction::Keep
            }
        );
    }

    #[test]
    fn a_consumer_that_waits_for_approval_stays_known_for_as_long_as_it_may_wait() {
        let automatic = PeerFacts {
            automatic: true,
            ..PEER
        };
        let record = |peer: PeerFacts| {
            plan(PeerSnapshot {
                peer: Some(peer),
                ..NOTHING
            })
            .record
        };
        assert_eq!(record(automatic), RecordAction::Delete);
        let waits = ApprovalWait::For(Duration::from_secs(1));
        assert_ne!(
            record(PeerFacts {
                waiting: waits,
                ..automatic
            }),
            RecordAction::Delete
        );
        assert_ne!(
            record(PeerFacts {
                waiting: ApprovalWait::Decided,
                incoming: PeeringIntent::Yes,
                ..automatic
            }),
            RecordAction::Delete
        );
        for peer in [
            automatic,
            PEER,
            PeerFacts {
                wants_outgoing: true,
                ..PEER
            },
        ] {
            assert_eq!(
                record(PeerFacts {
                    waiting: ApprovalWait::Over,
                    ..peer
                }),
                RecordAction::Forget
            );
        }
        assert_eq!(
            record(PeerFacts {
                waiting: ApprovalWait::Over,
                deleting: true,
                ..automatic
            }),
            RecordAction::Release
        );
    }

    #[test]
    fn approval_is_waited_for_from_the_first_request_on() {
        let (day, now) = (
            Duration::from_hours(24),
            "2026-06-02T12:00:00Z".parse().unwrap(),
        );
        let state = |since: Option<&str>, incoming: PeeringIntent| {
            let annotations =
                since.map(|since| serde_json::json!({ annotations::PENDING_APPROVAL: since }));
            let spec = serde_json::json!({ "clusterID": liqo_api::ClusterId::of_public_key(&[1; 32]), "incomingPeering": incoming });
            let record = serde_json::json!({ "metadata": { "name": "rome", "annotations": annotations }, "spec": spec });
            approval_wait(&serde_json::from_value(record).unwrap(), day, now)
        };
        assert_eq!(state(None, PeeringIntent::Auto), ApprovalWait::No);
        assert_eq!(
            state(Some("2026-06-01T12:00:01Z"), PeeringIntent::Auto),
            ApprovalWait::For(Duration::from_secs(1))
        );
        assert_eq!(
            state(Some("2026-06-03T12:00:00Z"), PeeringIntent::Auto),
            ApprovalWait::For(day)
        );
        for over in [
            "2026-06-01T12:00:00Z",
            "1970-01-01T00:00:00Z",
            "yesterday",
            "",
        ] {
            assert_eq!(
                state(Some(over), PeeringIntent::Auto),
                ApprovalWait::Over,
                "{over:?}"
            );
            assert_eq!(
                state(Some(over), PeeringIntent::Yes),
                ApprovalWait::Decided,
                "{over:?}"
            );
        }
    }
}
