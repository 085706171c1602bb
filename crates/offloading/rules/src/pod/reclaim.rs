//! Decides which pods end because the provider took back what they use.
//!
//! A pool ends as a whole when the offer's withdrawal is due, or when the offer is gone. A pool
//! that became smaller keeps its oldest pods: from the time of reclaim on, the youngest pods that
//! use more than is offered end one after another, until the others fit. A pool that got other
//! nodes under its name, such as a broker's own instead of borrowed ones, keeps no pods on the
//! former: they end from the time of its drain on. Before, their consumer is told which ones these
//! are, so that it can move them.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use liqo_api::{Key, rfc3339};
use liqo_quantity::ResourceList;

use crate::pod::admission::{AdmissionPosition, PoolOffer};

/// The offer of a pool with pods counts as gone after it has been missing for this time.
pub(crate) const MISSING: Duration = Duration::from_mins(1);

/// A pod that is charged to a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct ChargedPod {
    pub shadow: Key,
    /// Its position in the order of admission.
    pub turn: AdmissionPosition,
    pub amounts: ResourceList,
    /// Whether it is ending already, so that its resources will be free.
    pub is_ending: bool,
    /// Whether its node is one of the pool, or not known.
    pub is_in_pool: bool,
    /// Whether a cluster behind this one ends it anyway.
    pub ends_behind: bool,
}

/// The offer of a pool.
#[derive(Clone, Copy, Debug)]
pub enum PoolState<'a> {
    Offered(&'a PoolOffer),
    /// There is none, for this long.
    Missing(Duration),
}

/// A pod whose room or node is taken back, with the reason for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodReclaim {
    /// It ends.
    Now(String),
    /// It ends when the notice is over, unless its consumer moves it before.
    AfterNotice(String),
}

/// The pods that end, and the time until the next decision even if nothing changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReclaimPlan {
    /// By their shadow pods.
    pub taken_back: BTreeMap<Key, PodReclaim>,
    /// Time until the next decision is due.
    pub again: Option<Duration>,
}

/// Decides which pods of a pool end now, and which ones later.
pub fn plan_reclaim(
    name: &str,
    pool: PoolState,
    pods: &[ChargedPod],
    now: Timestamp,
) -> ReclaimPlan {
    let offer = match pool {
        PoolState::Missing(_) if pods.is_empty() => return ReclaimPlan::default(),
        PoolState::Missing(since) if since < MISSING => {
            return ReclaimPlan {
                again: Some(MISSING.saturating_sub(since)),
                ..ReclaimPlan::default()
            };
        }
        PoolState::Missing(_) => {
            return reclaim_all(pods, &format!("pool {name} is no longer offered"));
        }
        PoolState::Offered(offer) => offer,
    };
    if offer.withdrawal.is_some_and(|due| due <= now) {
        return reclaim_all(pods, &format!("pool {name} was taken back as a whole"));
    }
    let next = [offer.withdrawal, offer.reclaim, offer.drain]
        .into_iter()
        .flatten()
        .filter(|due| *due > now)
        .min();
    ReclaimPlan {
        taken_back: pods_to_reclaim(name, offer, pods, now),
        again: next.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default()),
    }
}

/// The pods for which a pool that goes on has no node or no room.
fn pods_to_reclaim(
    name: &str,
    offer: &PoolOffer,
    pods: &[ChargedPod],
    now: Timestamp,
) -> BTreeMap<Key, PodReclaim> {
    let staying = pods.iter().filter(|pod| !pod.is_ending);
    let (in_pool, left): (Vec<&ChargedPod>, Vec<_>) =
        staying.partition(|pod| pod.is_in_pool || offer.drain.is_none());
    let elsewhere = match offer.drain.filter(|due| *due > now) {
        None => PodReclaim::Now(format!(
            "pool {name} has other nodes now, and the pod was on one that is not in it any more"
        )),
        Some(due) => PodReclaim::AfterNotice(format!(
            "the pod ends at {}, because its pool has other nodes now",
            rfc3339(due)
        )),
    };
    // Until the others end, they need their room.
    let stays = if is_due(offer.drain, now) {
        in_pool
    } else {
        in_pool.into_iter().chain(left.iter().copied()).collect()
    };
    let (beyond, notice) = match (offer.reclaim.filter(|due| *due > now), &offer.reclaim_to) {
        (None, _) if is_due(offer.reclaim, now) => (pods_beyond(&offer.hard, stays), None),
        (Some(due), Some(hard)) => (pods_beyond(hard, stays), Some(due)),
        _ => (Vec::new(), None),
    };
    let beyond = beyond.into_iter().map(|(pod, short)| {
        (
            pod.shadow.clone(),
            reclaim_by_shrinking(name, &short, notice),
        )
    });
    let left = left
        .into_iter()
        .map(|pod| (pod.shadow.clone(), elsewhere.clone()));
    // Of two causes, the earlier one counts.
    let is_sooner = notice.is_none_or(|reclaim| offer.drain.is_none_or(|drain| reclaim < drain));
    if is_sooner {
        left.chain(beyond).collect()
    } else {
        beyond.chain(left).collect()
    }
}

fn is_due(time: Option<Timestamp>, now: Timestamp) -> bool {
    time.is_some_and(|due| due <= now)
}

fn reclaim_all(pods: &[ChargedPod], reason: &str) -> ReclaimPlan {
    let staying = pods.iter().filter(|pod| !pod.is_ending);
    let taken_back = staying
        .map(|pod| (pod.shadow.clone(), PodReclaim::Now(reason.to_owned())))
        .collect();
    ReclaimPlan {
        taken_back,
        again: None,
    }
}

/// The end of a pod for which its pool is too small now, or when the notice is over.
fn reclaim_by_shrinking(pool: &str, short: &str, notice: Option<Timestamp>) -> PodReclaim {
    let among = format!("among the youngest of those that use too much of {short}");
    match notice {
        None => PodReclaim::Now(format!(
            "pool {pool} became smaller, and the pod was {among}"
        )),
        Some(due) => PodReclaim::AfterNotice(format!(
            "the pod ends at {}, because its pool becomes smaller, and it is {among}",
            rfc3339(due)
        )),
    }
}

/// The youngest pods without which the others fit, each with the resources that are short; before
/// them those that end anyway. A pod that uses none of these stays: its end would free nothing.
fn pods_beyond<'a>(
    hard: &ResourceList,
    mut pods: Vec<&'a ChargedPod>,
) -> Vec<(&'a ChargedPod, String)> {
    pods.sort_by(|one, other| (other.ends_behind, &other.turn).cmp(&(one.ends_behind, &one.turn)));
    let mut used: ResourceList = pods.iter().map(|pod| &pod.amounts).sum();
    let mut ending = Vec::new();
    for pod in pods {
        let Err(short) = used.fits_in(hard) else {
            break;
        };
        let names: Vec<&str> = short
            .iter()
            .map(|shortage| shortage.resource.as_str())
            .filter(|resource| !pod.amounts.get(resource).is_zero())
            .collect();
        if !names.is_empty() {
            used = used.saturating_sub(&pod.amounts);
            ending.push((pod, names.join(", ")));
        }
    }
    ending
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn list(text: &str) -> ResourceList {
        text.split(',')
            .map(|part| part.split_once('=').unwrap())
            .map(|(name, amount)| (name, amount.parse().unwrap()))
            .collect()
    }

    fn pod(uid: &str, created: i64, requests: &str) -> ChargedPod {
        let turn = AdmissionPosition {
            created: at(created),
            uid: uid.into(),
        };
        ChargedPod {
            shadow: Key::new("t", uid),
            turn,
            amounts: list(requests),
            is_ending: false,
            is_in_pool: true,
            ends_behind: false,
        }
    }

    fn offer(hard: &str) -> PoolOffer {
        fixtures::offer(list(hard))
    }

    fn ending(pool: PoolState, pods: &[ChargedPod], now: i64) -> Vec<String> {
        let all = plan_reclaim("default", pool, pods, at(now))
            .taken_back
            .into_iter();
        all.filter(|(_, one)| matches!(one, PodReclaim::Now(_)))
            .map(|(key, _)| key.name)
            .collect()
    }

    /// What the owner of the first of the pods reads.
    fn told(offer: &PoolOffer, pods: &[ChargedPod], now: i64) -> PodReclaim {
        plan_reclaim("default", PoolState::Offered(offer), pods, at(now))
            .taken_back
            .into_values()
            .next()
            .unwrap()
    }

    #[test]
    fn the_youngest_pods_beyond_the_offer_end_when_the_reclaim_is_due_and_not_before() {
        let offer = PoolOffer {
            reclaim: Some(at(100)),
            ..offer("cpu=2,pods=9")
        };
        let pods = [
            pod("young", 9, "cpu=1,pods=1"),
            pod("old", 1, "cpu=1,pods=1"),
            pod("b", 5, "cpu=1,pods=1"),
            pod("a", 5, "cpu=1,pods=1"),
        ];
        assert_eq!(ending(PoolState::Offered(&offer), &pods, 99), [""; 0]);
        assert_eq!(
            plan_reclaim("default", PoolState::Offered(&offer), &pods, at(99)).again,
            Some(Duration::from_secs(1))
        );
        assert_eq!(
            ending(PoolState::Offered(&offer), &pods, 100),
            ["b", "young"],
            "of two of one age the later UID ends"
        );
        assert_eq!(
            plan_reclaim("default", PoolState::Offered(&offer), &pods, at(100)).again,
            None
        );
    }

    #[test]
    fn before_a_reclaim_is_due_those_that_will_end_are_told_when() {
        let to = Some(list("cpu=1,pods=9"));
        let offer = PoolOffer {
            reclaim: Some(at(100)),
            reclaim_to: to,
            ..offer("cpu=3,pods=9")
        };
        let pods = [
            pod("old", 1, "cpu=1,pods=1"),
            pod("young", 2, "cpu=1,pods=1"),
            pod("last", 3, "pods=1"),
        ];
        let told = plan_reclaim("default", PoolState::Offered(&offer), &pods, at(99)).taken_back;
        let why = "the pod ends at 1970-01-01T00:01:40Z, because its pool becomes smaller, and it is among the youngest of those that use too much of cpu";
        assert_eq!(
            told,
            [(
                Key::new("t", "young"),
                PodReclaim::AfterNotice(why.to_owned())
            )]
            .into()
        );
        let moving = pods.map(|pod| ChargedPod {
            is_ending: pod.shadow.name == "young",
            ..pod
        });
        assert_eq!(
            plan_reclaim("default", PoolState::Offered(&offer), &moving, at(99)).taken_back,
            BTreeMap::new(),
            "the others fit"
        );
    }

    #[test]
    fn those_that_end_anyway_go_first_and_of_two_ends_the_earlier_one_is_told() {
        let to = Some(list("cpu=1,pods=9"));
        let offer = PoolOffer {
            reclaim: Some(at(100)),
            reclaim_to: to,
            drain: Some(at(50)),
            ..offer("cpu=2,pods=9")
        };
        let old = ChargedPod {
            ends_behind: true,
            ..pod("old", 1, "cpu=1,pods=1")
        };
        let pods = [old.clone(), pod("young", 2, "cpu=1,pods=1")];
        let told = plan_reclaim("default", PoolState::Offered(&offer), &pods, at(10)).taken_back;
        assert_eq!(
            told.into_keys().map(|key| key.name).collect::<Vec<_>>(),
            ["old"]
        );
        let both = [
            ChargedPod {
                is_in_pool: false,
                ..old
            },
            pods[1].clone(),
        ];
        let PodReclaim::AfterNotice(why) = self::told(&offer, &both, 10) else {
            panic!("it ends later")
        };
        assert!(why.contains("ends at 1970-01-01T00:00:50Z"), "{why}");
    }

    #[test]
    fn pods_within_the_offer_stay_even_when_a_reclaim_is_due() {
        let offer = PoolOffer {
            reclaim: Some(at(1)),
            ..offer("cpu=2,pods=9")
        };
        assert_eq!(
            ending(
                PoolState::Offered(&offer),
                &[pod("a", 1, "cpu=2,pods=1")],
                100
            ),
            [""; 0]
        );
    }

    #[test]
    fn a_smaller_offer_alone_ends_no_pod() {
        assert_eq!(
            ending(
                PoolState::Offered(&offer("cpu=0")),
                &[pod("a", 1, "cpu=2,pods=1")],
                100
            ),
            [""; 0]
        );
    }

    #[test]
    fn a_pod_that_uses_nothing_of_what_is_short_stays() {
        let offer = PoolOffer {
            reclaim: Some(at(1)),
            ..offer("cpu=9,pods=9")
        };
        let pods = [
            pod("gpu", 1, "cpu=1,pods=1,nvidia.com/gpu=1"),
            pod("plain", 2, "cpu=1,pods=1"),
        ];
        assert_eq!(ending(PoolState::Offered(&offer), &pods, 100), ["gpu"]);
        let PodReclaim::Now(why) = told(&offer, &pods, 100) else {
            panic!("it ends now")
        };
        assert!(
            why.contains("pool default") && why.ends_with("too much of nvidia.com/gpu"),
            "{why}"
        );
    }

    #[test]
    fn pods_on_former_nodes_end_when_the_drain_is_due_and_make_room_for_those_that_stay() {
        let offer = PoolOffer {
            drain: Some(at(100)),
            reclaim: Some(at(50)),
            ..offer("cpu=1,pods=9")
        };
        let pods = [
            ChargedPod {
                is_in_pool: false,
                ..pod("former", 1, "cpu=1")
            },
            pod("young", 9, "cpu=1"),
        ];
        assert_eq!(
            plan_reclaim("default", PoolState::Offered(&offer), &pods, at(20)).again,
            Some(Duration::from_secs(30))
        );
        assert_eq!(
            ending(PoolState::Offered(&offer), &pods, 99),
            ["young"],
            "before, the usual order counts"
        );
        assert_eq!(ending(PoolState::Offered(&offer), &pods, 100), ["former"]);
        let PodReclaim::Now(why) = told(&offer, &pods, 100) else {
            panic!("it ends now")
        };
        assert!(why.contains("pool default has other nodes now"), "{why}");
        let PodReclaim::AfterNotice(notice) = told(&offer, &pods, 99) else {
            panic!("it ends later")
        };
        assert_eq!(
            notice,
            "the pod ends at 1970-01-01T00:01:40Z, because its pool has other nodes now"
        );
    }

    #[test]
    fn what_ends_already_is_not_charged_twice() {
        let offer = PoolOffer {
            reclaim: Some(at(1)),
            ..offer("cpu=1,pods=9")
        };
        let pods = [
            pod("old", 1, "cpu=1,pods=1"),
            ChargedPod {
                is_ending: true,
                ..pod("young", 2, "cpu=1,pods=1")
            },
        ];
        assert_eq!(ending(PoolState::Offered(&offer), &pods, 100), [""; 0]);
    }

    #[test]
    fn all_pods_of_a_withdrawn_pool_end_when_it_is_due() {
        let offer = PoolOffer {
            withdrawal: Some(at(50)),
            ..offer("cpu=9,pods=9")
        };
        let pods = [
            pod("a", 1, "cpu=1"),
            pod("b", 2, "cpu=1"),
            ChargedPod {
                is_ending: true,
                ..pod("c", 3, "cpu=1")
            },
        ];
        assert_eq!(ending(PoolState::Offered(&offer), &pods, 49), [""; 0]);
        assert_eq!(ending(PoolState::Offered(&offer), &pods, 50), ["a", "b"]);
    }

    #[test]
    fn an_offer_that_is_gone_takes_its_pods_along_but_one_that_comes_back_does_not() {
        let pods = [pod("a", 1, "cpu=1")];
        let early = plan_reclaim(
            "default",
            PoolState::Missing(Duration::from_secs(20)),
            &pods,
            at(0),
        );
        assert_eq!(
            (early.taken_back.len(), early.again),
            (0, Some(Duration::from_secs(40)))
        );
        assert_eq!(ending(PoolState::Missing(MISSING), &pods, 0), ["a"]);
        assert_eq!(
            plan_reclaim("default", PoolState::Missing(Duration::ZERO), &[], at(0)),
            ReclaimPlan::default(),
            "there is nothing to wait for"
        );
    }

    #[test]
    fn what_stays_always_fits_and_nothing_ends_that_could_stay_beside_the_older_ones() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let offer = PoolOffer {
                reclaim: Some(at(0)),
                ..offer(&format!("cpu={},pods={}", random(8), random(8)))
            };
            let pods: Vec<ChargedPod> = (0..random(10))
                .map(|n| {
                    pod(
                        &n.to_string(),
                        i64::try_from(random(5)).unwrap(),
                        &format!("cpu={},pods=1", random(4)),
                    )
                })
                .collect();
            let ended = ending(PoolState::Offered(&offer), &pods, 1);
            let sum =
                |pods: &[&ChargedPod]| pods.iter().map(|pod| &pod.amounts).sum::<ResourceList>();
            let stays: Vec<&ChargedPod> = pods
                .iter()
                .filter(|pod| !ended.contains(&pod.shadow.name))
                .collect();
            assert!(sum(&stays).fits_in(&offer.hard).is_ok());
            // The oldest one that ends would not fit together with those that stay.
            if let Some(oldest) = pods
                .iter()
                .filter(|pod| ended.contains(&pod.shadow.name))
                .min_by_key(|pod| pod.turn.clone())
            {
                let with: Vec<&ChargedPod> = stays.iter().copied().chain([oldest]).collect();
                assert!(sum(&with).fits_in(&offer.hard).is_err());
            }
        }
    }
}
