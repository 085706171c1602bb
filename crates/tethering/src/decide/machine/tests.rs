//! Every transition, from every state that can be stored, with every combination of facts.

use liqo_api::TetheringState::{Autonomous, Releasing, Tethered, Tethering};

use super::*;

const RELEASE_AFTER: SignedDuration = SignedDuration::from_secs(240);
const NOTICE: SignedDuration = SignedDuration::from_secs(180);

pub fn cluster(number: u8) -> ClusterId {
    ClusterId::of_public_key(&[number; 32])
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

/// All that is needed is there, and nobody is away.
pub fn facts(wish: Option<u8>) -> MachineFacts {
    MachineFacts {
        wish: wish.map(cluster),
        release_after: RELEASE_AFTER,
        peer: "milan".into(),
        obstacle: None,
        answer: PeerAnswer::NotAsked,
        contact: PeerContact::Heard,
        borrows_here: true,
        missing: None,
        notice: NOTICE,
        away: 0,
        guests: 0,
    }
}

fn granted(wish: Option<u8>) -> MachineFacts {
    MachineFacts {
        answer: PeerAnswer::Granted,
        ..facts(wish)
    }
}

fn status(
    state: TetheringState,
    peer: Option<u8>,
    deadline: Option<i64>,
    reason: TetheringReason,
) -> TetheringStatus {
    TetheringStatus {
        state,
        cluster_id: peer.map(cluster),
        since: Time(at(-50)),
        deadline: deadline.map(|seconds| Time(at(seconds))),
        reason: reason.into(),
        message: "before".into(),
    }
}

/// State, seconds to the deadline, and reason, of a cluster with the wish to be tethered to 1.
fn after_one_look(
    before: &TetheringStatus,
    facts: &MachineFacts,
) -> (TetheringState, Option<i64>, TetheringReason) {
    let after = next_status(Some(before), facts, at(0)).unwrap_or_else(|| before.clone());
    let left = after
        .deadline
        .as_ref()
        .map(|time| time.0.duration_since(at(0)).as_secs());
    (
        after.state,
        left,
        TetheringReason::parse(&after.reason).unwrap(),
    )
}

fn all_facts() -> Vec<MachineFacts> {
    let mut all = Vec::new();
    let obstacle = LocalObstacle {
        reason: TetheringReason::LendsToOthers,
        message: "others".into(),
    };
    for wish in [None, Some(1), Some(2)] {
        for answer in [
            PeerAnswer::NotAsked,
            PeerAnswer::Waiting,
            PeerAnswer::Granted,
            PeerAnswer::Refused("no".into()),
        ] {
            for contact in [
                PeerContact::Heard,
                PeerContact::Silent,
                PeerContact::Unknown,
            ] {
                for bits in 0..16_u8 {
                    all.push(MachineFacts {
                        answer: answer.clone(),
                        contact,
                        obstacle: (bits & 1 == 0).then(|| obstacle.clone()),
                        borrows_here: bits & 2 == 0,
                        missing: (bits & 4 == 0).then(|| "a node".to_owned()),
                        away: usize::from(bits & 8 == 0),
                        ..facts(wish)
                    });
                }
            }
        }
    }
    all
}

/// What can be stored, also by a person, or before a clock was set back or forward.
fn all_statuses() -> Vec<Option<TetheringStatus>> {
    let mut all = vec![None];
    for state in [Autonomous, Tethering, Tethered, Releasing] {
        for peer in [None, Some(1), Some(2)] {
            for deadline in [
                None,
                Some(-1_000_000),
                Some(0),
                Some(1),
                Some(60),
                Some(100_000_000),
            ] {
                for reason in [
                    TetheringReason::Waiting,
                    TetheringReason::PeerSilent,
                    TetheringReason::RefusedByPeer,
                ] {
                    all.push(Some(status(state, peer, deadline, reason)));
                }
            }
        }
    }
    let mut odd = status(Tethered, Some(1), None, TetheringReason::Granted);
    odd.reason = "Unheard-of".into();
    all.push(Some(odd));
    all
}

/// The state as others understand it: without a peer, autonomous.
fn effective(status: Option<&TetheringStatus>) -> (TetheringState, Option<ClusterId>) {
    match status {
        Some(TetheringStatus {
            state,
            cluster_id: Some(peer),
            ..
        }) => (*state, Some(peer.clone())),
        _ => (Autonomous, None),
    }
}

fn each(check: impl Fn(Option<&TetheringStatus>, &MachineFacts, &TetheringStatus)) {
    for before in all_statuses() {
        for facts in all_facts() {
            let after = next_status(before.as_ref(), &facts, at(0)).or_else(|| before.clone());
            let Some(after) = after else { continue };
            check(before.as_ref(), &facts, &after);
        }
    }
}

#[test]
fn states_follow_each_other_only_as_the_picture_says() {
    each(|before, facts, after| {
        let (from, peer) = effective(before);
        let allowed: &[TetheringState] = match from {
            Autonomous => &[Autonomous, Tethering],
            Tethering => &[Tethering, Tethered, Releasing],
            Tethered => &[Tethered, Releasing],
            Releasing => &[Releasing, Autonomous],
        };
        assert!(
            allowed.contains(&after.state),
            "{before:?} {facts:?} {after:?}"
        );
        // A state is about one peer until it is over.
        if from != Autonomous && after.state != Autonomous {
            assert_eq!(after.cluster_id, peer, "{before:?} {facts:?}");
        }
    });
}

#[test]
fn a_peer_gets_control_only_if_both_sides_want_it_and_both_are_heard() {
    each(|before, facts, after| {
        if after.state == Tethered && effective(before).0 != Tethered {
            let wanted = facts.wish.is_some() && facts.wish == after.cluster_id;
            assert!(
                wanted
                    && facts.answer == PeerAnswer::Granted
                    && facts.contact == PeerContact::Heard,
                "{before:?} {facts:?}"
            );
            assert!(
                facts.obstacle.is_none() && facts.missing.is_none(),
                "{before:?} {facts:?}"
            );
        }
        if after.state == Tethering && effective(before).0 != Tethering {
            assert!(
                facts.obstacle.is_none() && facts.answer == PeerAnswer::NotAsked,
                "no former answer counts: {facts:?}"
            );
        }
    });
}

#[test]
fn control_comes_back_at_one_look_when_either_side_ends_it() {
    each(|before, facts, after| {
        let (from, peer) = effective(before);
        let borrows_no_more = facts.contact == PeerContact::Heard && !facts.borrows_here;
        let ended =
            facts.wish != peer || matches!(facts.answer, PeerAnswer::Refused(_)) || borrows_no_more;
        if from == Tethered && ended {
            assert_eq!(after.state, Releasing, "{before:?} {facts:?}");
            assert!(!StateEffects::of_state(after.state).peer_decides);
        }
    });
}

#[test]
fn every_state_on_the_way_has_an_end_however_the_clock_was_set() {
    each(|before, facts, after| {
        let left = after
            .deadline
            .as_ref()
            .map(|time| time.0.duration_since(at(0)));
        let at_most = match after.state {
            Autonomous => RETRY,
            Tethering => ATTEMPT,
            Tethered => RELEASE_AFTER,
            Releasing => NOTICE + RELEASE_MARGIN,
        };
        assert!(
            left.is_none_or(|left| left > SignedDuration::ZERO && left <= at_most),
            "{before:?} {facts:?} {after:?}"
        );
        let must_end = match after.state {
            Autonomous => false,
            Tethered => facts.contact != PeerContact::Heard,
            Tethering | Releasing => true,
        };
        assert!(
            !must_end || left.is_some(),
            "{before:?} {facts:?} {after:?}"
        );
    });
}

#[test]
fn a_settled_state_is_not_written_again() {
    each(|before, facts, after| {
        let again = next_status(Some(after), facts, at(0));
        let (from, same) = (effective(before).0, effective(Some(after)).0);
        assert!(
            again.is_none() || from != same || after.state == Autonomous,
            "{before:?} {facts:?} {again:?}"
        );
        // A second look at the same facts may be the next step, and a third one changes nothing
        // more than that.
        let mut steps = 0;
        let mut status = after.clone();
        while let Some(further) = next_status(Some(&status), facts, at(0)) {
            steps += 1;
            status = further;
            assert!(steps <= 4, "{before:?} {facts:?} {status:?}");
        }
    });
}

#[test]
fn the_peer_and_the_own_scheduler_never_decide_at_the_same_time() {
    for state in [Autonomous, Tethering, Tethered, Releasing] {
        let effects = StateEffects::of_state(state);
        assert_eq!(
            effects.peer_decides,
            effects.offer == PeerOffer::Everything,
            "{state:?}"
        );
    }
}

#[test]
fn an_attempt_goes_from_the_question_to_control() {
    let start = next_status(None, &facts(Some(1)), at(0)).unwrap();
    assert_eq!(
        (start.state, start.cluster_id.clone()),
        (Tethering, Some(cluster(1)))
    );
    let waiting = MachineFacts {
        answer: PeerAnswer::Waiting,
        ..facts(Some(1))
    };
    assert_eq!(
        next_status(Some(&start), &waiting, at(1)),
        None,
        "it says already that it waits for the answer"
    );
    let incomplete = MachineFacts {
        missing: Some("the node of milan".into()),
        ..granted(Some(1))
    };
    let told = next_status(Some(&start), &incomplete, at(2)).unwrap();
    assert_eq!(
        (told.state, told.message.as_str()),
        (Tethering, "waiting for the node of milan")
    );
    assert_eq!(
        told.deadline, start.deadline,
        "an attempt does not become longer"
    );
    let tethered = next_status(Some(&told), &granted(Some(1)), at(3)).unwrap();
    assert_eq!(
        (tethered.state, tethered.since.0, tethered.deadline),
        (Tethered, at(3), None)
    );
}

#[test]
fn a_short_silence_changes_nothing_and_a_long_one_brings_control_back() {
    let tethered = status(Tethered, Some(1), None, TetheringReason::Granted);
    let silent = MachineFacts {
        contact: PeerContact::Silent,
        ..granted(Some(1))
    };
    let first = next_status(Some(&tethered), &silent, at(0)).unwrap();
    assert_eq!(
        (first.state, due_in(&first, at(0))),
        (Tethered, Some(RELEASE_AFTER))
    );
    assert_eq!(first.since, tethered.since);
    assert_eq!(next_status(Some(&first), &silent, at(239)), None);
    let heard = next_status(Some(&first), &granted(Some(1)), at(239)).unwrap();
    assert_eq!((heard.state, heard.deadline), (Tethered, None));
    let ended = next_status(Some(&first), &silent, at(240)).unwrap();
    assert_eq!(
        (ended.state, ended.reason.as_str()),
        (Releasing, "PeerSilent")
    );
    assert_eq!(due_in(&ended, at(240)), Some(NOTICE + RELEASE_MARGIN));
}

#[test]
fn what_ends_during_a_silence_changes_nothing_before_its_deadline() {
    let tethered = status(Tethered, Some(1), None, TetheringReason::Granted);
    let gone = |contact| MachineFacts {
        contact,
        borrows_here: false,
        ..granted(Some(1))
    };
    for contact in [PeerContact::Silent, PeerContact::Unknown] {
        let expected = (
            Tethered,
            Some(RELEASE_AFTER.as_secs()),
            TetheringReason::PeerSilent,
        );
        assert_eq!(after_one_look(&tethered, &gone(contact)), expected);
        let over = status(Tethered, Some(1), Some(0), TetheringReason::PeerSilent);
        let (state, _, reason) = after_one_look(&over, &gone(contact));
        assert_eq!((state, reason), (Releasing, TetheringReason::PeerSilent));
    }
    let (state, _, reason) = after_one_look(&tethered, &gone(PeerContact::Heard));
    assert_eq!((state, reason), (Releasing, TetheringReason::EndedByPeer));
}

#[test]
fn a_shorter_time_that_is_set_during_a_silence_counts() {
    let silent = status(Tethered, Some(1), Some(200), TetheringReason::PeerSilent);
    let shorter = MachineFacts {
        contact: PeerContact::Silent,
        release_after: SignedDuration::from_secs(30),
        ..granted(Some(1))
    };
    assert_eq!(
        after_one_look(&silent, &shorter),
        (Tethered, Some(30), TetheringReason::PeerSilent)
    );
}

#[test]
fn the_release_ends_when_all_are_gone_and_at_the_deadline_in_any_case() {
    let releasing = status(Releasing, Some(1), Some(60), TetheringReason::Untethered);
    for (away, guests, deadline, expected) in [
        (1, 0, 60, Releasing),
        (0, 1, 60, Releasing),
        (0, 0, 60, Autonomous),
        (1, 1, 0, Autonomous),
    ] {
        let before = TetheringStatus {
            deadline: Some(Time(at(deadline))),
            ..releasing.clone()
        };
        assert_eq!(
            after_one_look(
                &before,
                &MachineFacts {
                    away,
                    guests,
                    ..facts(None)
                }
            )
            .0,
            expected,
            "{away} {guests} {deadline}"
        );
    }
}

#[test]
fn a_peer_that_refused_is_asked_again_later_and_one_that_was_silent_when_it_is_heard() {
    let refused = status(Releasing, Some(1), Some(60), TetheringReason::RefusedByPeer);
    let (state, left, reason) = after_one_look(&refused, &facts(Some(1)));
    assert_eq!(
        (state, left, reason),
        (
            Autonomous,
            Some(RETRY.as_secs()),
            TetheringReason::RefusedByPeer
        )
    );
    let pausing = status(
        Autonomous,
        Some(1),
        Some(10),
        TetheringReason::RefusedByPeer,
    );
    assert_eq!(next_status(Some(&pausing), &facts(Some(1)), at(0)), None);
    assert_eq!(
        after_one_look(&pausing, &facts(Some(2))).0,
        Tethering,
        "another peer is asked at once"
    );
    assert_eq!(
        next_status(Some(&pausing), &facts(Some(1)), at(10))
            .unwrap()
            .state,
        Tethering
    );
    let silent = status(Releasing, Some(1), Some(60), TetheringReason::PeerSilent);
    let unheard = MachineFacts {
        contact: PeerContact::Silent,
        ..facts(Some(1))
    };
    let (state, left, reason) = after_one_look(&silent, &unheard);
    assert_eq!(
        (state, left, reason),
        (Autonomous, None, TetheringReason::PeerSilent)
    );
    let alone = next_status(Some(&silent), &unheard, at(0)).unwrap();
    assert_eq!(after_one_look(&alone, &unheard).0, Autonomous);
    assert_eq!(after_one_look(&alone, &facts(Some(1))).0, Tethering);
}

#[test]
fn facts_are_about_the_peer_of_the_state_and_else_about_the_one_that_is_asked_for() {
    let (one, two) = (cluster(1), cluster(2));
    let subject = |state, peer, wish| {
        super::subject_peer(
            Some(&status(state, peer, None, TetheringReason::Waiting)),
            wish,
        )
        .cloned()
    };
    assert_eq!(subject(Releasing, Some(1), Some(&two)), Some(one));
    assert_eq!(subject(Autonomous, Some(1), Some(&two)), Some(two.clone()));
    assert_eq!(subject(Tethered, None, Some(&two)), Some(two));
    assert_eq!(super::subject_peer(None, None), None);
}

#[test]
fn a_cluster_that_never_was_tethered_has_no_status() {
    assert_eq!(next_status(None, &facts(None), at(0)), None);
}

#[test]
fn a_message_of_a_peer_is_bounded() {
    let long = MachineFacts {
        answer: PeerAnswer::Refused("x\u{1b}".repeat(5000)),
        ..facts(Some(1))
    };
    let ended = next_status(
        Some(&status(Tethered, Some(1), None, TetheringReason::Granted)),
        &long,
        at(0),
    )
    .unwrap();
    assert!(ended.message.chars().count() == 2048 && !ended.message.contains('\u{1b}'));
}
