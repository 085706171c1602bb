//! Whether one more pod fits into what was offered.
//!
//! The ledger charges the sum of the effective requests, or limits if the policy says so, of the
//! pods that exist and have not finished, and of those that are being created. It computes the sum
//! again whenever one of them changes; no running total can drift.
//!
//! The order is: admitted pods, then waiting pods, by the creation of their shadow pod and then by
//! UID. A pod gets no room that a pod before it needs; a pod that does not fit, or that no node has
//! room for, blocks nobody. Shadow pods wait from their creation on, so the order survives a
//! restart, in whatever order the controller reconciles them then.

mod resize;

use std::collections::{BTreeMap, HashMap};

use liqo_api::requests::EffectiveAmounts;
use liqo_api::{Charge, Key, short_on_largest_node};
use liqo_quantity::{Quantity, ResourceList, Shortage};

use crate::pod::admission::{
    AdmissionPosition, AdmissionRefusal, CONTRACT_NOT_IN_FORCE, NO_OFFER, OFFER_EXCEEDED,
    POOL_WITHDRAWN, PoolAccount, PoolOffer,
};
use crate::pod::remote_pod::RemotePod;

use resize::ResizeInFlight;
pub use resize::ResizeRequest;

/// A pod that wants room.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionRequest {
    pub account: PoolAccount,
    pub shadow: Key,
    /// Its position in the order of admission.
    pub turn: AdmissionPosition,
    pub charge: EffectiveAmounts,
    /// Whether it had a pod before, which this cluster creates again.
    pub had_a_pod: bool,
}

/// A pod that has no room.
#[derive(Debug)]
struct WaitingPod {
    shadow: Key,
    charge: EffectiveAmounts,
    /// It was refused, and must be queued again when room becomes free.
    refused: bool,
}

/// A pod as the watch shows it.
#[derive(Debug)]
struct WatchedCharge {
    charge: EffectiveAmounts,
    /// The amounts in its spec, if they are others.
    asked: Option<Box<EffectiveAmounts>>,
}

/// The charges of each account, and the pods that wait for room.
#[derive(Default)]
pub struct Ledger {
    /// Unfinished pods, by their namespace.
    pods: HashMap<PoolAccount, BTreeMap<String, HashMap<String, WatchedCharge>>>,
    /// Pods that are being created and that the watch has not shown yet, by shadow pod.
    reserved: HashMap<Key, (PoolAccount, EffectiveAmounts)>,
    /// Shadow pods without a pod, in the order of admission.
    waiting: HashMap<PoolAccount, BTreeMap<AdmissionPosition, WaitingPod>>,
    /// The account and turn of each waiting shadow pod.
    turns: HashMap<Key, (PoolAccount, AdmissionPosition)>,
    /// Pods that are resized, until the watch shows it, by shadow pod.
    resizing: HashMap<Key, ResizeInFlight>,
    /// Pods whose resize waits for room, by shadow pod.
    deferred: BTreeMap<Key, ResizeRequest>,
    /// Sums that are still valid, with what they sum up.
    sums: HashMap<PoolAccount, (Charge, ResourceList)>,
}

impl Ledger {
    /// Records a change of a pod; returns the shadow pods that may fit now.
    pub fn pod_changed(&mut self, old: Option<&RemotePod>, new: Option<&RemotePod>) -> Vec<Key> {
        let mut freed = self.observe_pod_change(old, new);
        let same = old.zip(new).is_some_and(|(old, new)| {
            (&old.uid, &old.charge, &old.asked) == (&new.uid, &new.charge, &new.asked)
                && old.account() == new.account()
                && old.shadow_key() == new.shadow_key()
                && old.is_charged() == new.is_charged()
        });
        if let Some(old) = old.filter(|old| !same && old.is_charged()) {
            let account = old.account();
            self.remove_pod(&account, old);
            freed.extend(self.pods_without_room(&account));
            self.sums.remove(&account);
        }
        if let Some(new) = new.filter(|_| !same) {
            let account = new.account();
            if new.is_charged() {
                let namespace = self
                    .pods
                    .entry(account.clone())
                    .or_default()
                    .entry(new.key.namespace.clone())
                    .or_default();
                let asked = new.asked.clone().map(Box::new);
                namespace.insert(
                    new.uid.clone(),
                    WatchedCharge {
                        charge: new.charge.clone(),
                        asked,
                    },
                );
            }
            let shadow = new.shadow_key();
            if let Some((reserving, _)) = self.reserved.remove(&shadow) {
                self.sums.remove(&reserving);
            }
            self.remove_waiting(&shadow);
            self.sums.remove(&account);
        }
        freed
    }

    /// Removes entries without pods: tenants and their namespaces come and go.
    fn remove_pod(&mut self, account: &PoolAccount, pod: &RemotePod) {
        let Some(namespaces) = self.pods.get_mut(account) else {
            return;
        };
        if let Some(pods) = namespaces.get_mut(&pod.key.namespace) {
            pods.remove(&pod.uid);
            if pods.is_empty() {
                namespaces.remove(&pod.key.namespace);
            }
        }
        if namespaces.is_empty() {
            self.pods.remove(account);
        }
    }

    /// Discards the sums: other namespaces count now.
    pub fn discard_sums(&mut self) {
        self.sums.clear();
    }

    /// Records a shadow pod without a pod: it waits from now on.
    pub fn add_waiting_pod(&mut self, request: AdmissionRequest) {
        if !self.reserved.contains_key(&request.shadow) && !self.turns.contains_key(&request.shadow)
        {
            self.wait_for_room(request, false);
        }
    }

    /// Decides whether this shadow pod may have its pod now, and if so reserves the room until the
    /// watch shows the pod or [`release_reservation`](Self::release_reservation) is called. Only
    /// pods in namespaces for which `ours` is true count. The lock around the ledger serialises
    /// calls, so no two pods get the same room.
    pub fn admit(
        &mut self,
        request: AdmissionRequest,
        offer: Option<&PoolOffer>,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> Result<(), AdmissionRefusal> {
        self.forget_shadow(&request.shadow);
        let verdict = usable_offer(offer, &request.account.pool)
            .and_then(|offer| self.check_room(&request, offer, charge, ours));
        if verdict.is_ok() {
            self.sums.remove(&request.account);
            self.reserved
                .insert(request.shadow, (request.account, request.charge));
        } else {
            self.wait_for_room(request, true);
        }
        verdict
    }

    /// Records that the pod of this shadow pod was created, and what it is charged: the reservation
    /// may have been less.
    pub fn record_created(&mut self, shadow: &Key, charge: &EffectiveAmounts) {
        if let Some((account, reserved)) = self.reserved.get_mut(shadow) {
            reserved.clone_from(charge);
            self.sums.remove(account);
        }
    }

    /// Releases the room reserved for this shadow pod and ends its wait; returns the shadow pods
    /// that may fit now.
    pub fn forget_shadow(&mut self, shadow: &Key) -> Vec<Key> {
        let mut freed = self.stop_waiting(shadow);
        freed.extend(self.forget_resize(shadow));
        freed.extend(self.release_reservation(shadow));
        freed
    }

    /// Ends the wait of this shadow pod: it does not wait for room. Returns the shadow pods that
    /// may fit now.
    pub fn stop_waiting(&mut self, shadow: &Key) -> Vec<Key> {
        self.remove_waiting(shadow)
            .map(|account| self.pods_without_room(&account))
            .unwrap_or_default()
    }

    /// Releases the room reserved for this shadow pod; returns the shadow pods that may fit now.
    pub fn release_reservation(&mut self, shadow: &Key) -> Vec<Key> {
        let Some((account, _)) = self.reserved.remove(shadow) else {
            return Vec::new();
        };
        self.sums.remove(&account);
        self.pods_without_room(&account)
    }

    pub fn total_charged(
        &mut self,
        account: &PoolAccount,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> ResourceList {
        if let Some((_, sum)) = self
            .sums
            .get(account)
            .filter(|(summed, _)| *summed == charge)
        {
            return sum.clone();
        }
        let resizes = self.added_by_resizes(account, charge, &ours);
        let namespaces = self
            .pods
            .get(account)
            .into_iter()
            .flatten()
            .filter(|(namespace, _)| ours(namespace));
        let existing = namespaces.flat_map(|(_, pods)| pods.values().map(|pod| &pod.charge));
        let reserved = self
            .reserved
            .values()
            .filter(|(reserving, _)| reserving == account)
            .map(|(_, held)| held);
        let sum = existing
            .chain(reserved)
            .map(|held| held.charged_amounts(charge))
            .sum::<ResourceList>()
            + &resizes;
        self.sums.insert(account.clone(), (charge, sum.clone()));
        sum
    }

    fn check_room(
        &mut self,
        request: &AdmissionRequest,
        offer: &PoolOffer,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> Result<(), AdmissionRefusal> {
        let room = if request.had_a_pod {
            offer.room_for_former_pod()
        } else {
            offer.room_for_new_pod()
        };
        let free = room.saturating_sub(&self.total_charged(&request.account, charge, ours));
        let pool = &request.account.pool;
        let wanted = request.charge.charged_amounts(charge);
        wanted.fits_in(&free).map_err(|shortages| {
            let short: Vec<String> = shortages.iter().map(ToString::to_string).collect();
            let message = format!(
                "pool {pool} is too small for the pod: {}; it starts when other pods end or when more is offered",
                short.join(", ")
            );
            AdmissionRefusal { reason: OFFER_EXCEEDED, message }
        })?;
        check_room_on_node(offer, &request.charge).map_err(|short| {
            let short = short_on_largest_node(&short);
            let message = format!("no node of pool {pool} has room for the pod: {short}; it starts when other pods there end");
            AdmissionRefusal { reason: OFFER_EXCEEDED, message }
        })?;
        // There may be many, so the loop allocates nothing for those that have room.
        let mut taken = ResourceList::new();
        let earlier = self
            .waiting
            .get(&request.account)
            .into_iter()
            .flat_map(|waiting| waiting.range(..&request.turn));
        for (_, earlier) in
            earlier.filter(|(_, earlier)| check_room_on_node(offer, &earlier.charge).is_ok())
        {
            if fits_next_to(earlier.charge.charged_amounts(charge), &taken, &free) {
                taken += earlier.charge.charged_amounts(charge);
                if !fits_next_to(wanted, &taken, &free) {
                    let message = format!(
                        "what pool {pool} has left is for pods that have waited longer; this one starts when other pods end or when more is offered"
                    );
                    return Err(AdmissionRefusal {
                        reason: OFFER_EXCEEDED,
                        message,
                    });
                }
            }
        }
        Ok(())
    }

    fn wait_for_room(&mut self, request: AdmissionRequest, refused: bool) {
        let AdmissionRequest {
            account,
            shadow,
            turn,
            charge,
            ..
        } = request;
        self.turns
            .insert(shadow.clone(), (account.clone(), turn.clone()));
        self.waiting.entry(account).or_default().insert(
            turn,
            WaitingPod {
                shadow,
                charge,
                refused,
            },
        );
    }

    fn remove_waiting(&mut self, shadow: &Key) -> Option<PoolAccount> {
        let (account, turn) = self.turns.remove(shadow)?;
        if let Some(waiting) = self.waiting.get_mut(&account) {
            waiting.remove(&turn);
            if waiting.is_empty() {
                self.waiting.remove(&account);
            }
        }
        Some(account)
    }

    /// The shadow pods that have no room: those of pods that are to be resized, then the refused
    /// ones, the earliest first.
    fn pods_without_room(&self, account: &PoolAccount) -> Vec<Key> {
        let deferred = self
            .deferred
            .iter()
            .filter(|(_, request)| request.is_for_account(account))
            .map(|(shadow, _)| shadow);
        let waiting = self
            .waiting
            .get(account)
            .into_iter()
            .flat_map(BTreeMap::values);
        let refused = waiting
            .filter(|waiting| waiting.refused)
            .map(|waiting| &waiting.shadow);
        deferred.chain(refused).cloned().collect()
    }
}

/// Whether a node may have room for a pod. Which nodes a pool has that this cluster borrows, only
/// the cluster behind it knows.
///
/// What an offer says of its nodes counts the pods that are on them, and no pod that waits there
/// for a node: the scheduler may find room where nobody else does. When a node has more, the offer
/// changes, and all pods that wait are tried again.
fn check_room_on_node(offer: &PoolOffer, charge: &EffectiveAmounts) -> Result<(), Vec<Shortage>> {
    if offer.borrowed {
        Ok(())
    } else {
        offer.largest_pods.may_have_room(&charge.requests)
    }
}

/// Whether the wanted amounts fit into what is free, in addition to those that are taken.
fn fits_next_to(wanted: &ResourceList, taken: &ResourceList, free: &ResourceList) -> bool {
    wanted.iter().all(|(name, amount)| {
        amount <= Quantity::ZERO || amount + taken.get(name) <= free.get(name)
    })
}

fn usable_offer<'a>(
    offer: Option<&'a PoolOffer>,
    pool: &str,
) -> Result<&'a PoolOffer, AdmissionRefusal> {
    let (reason, message) = match offer {
        None => (
            NO_OFFER,
            format!("nothing is offered to this cluster as pool {pool}"),
        ),
        Some(PoolOffer {
            withdrawal: Some(until),
            ..
        }) => (
            POOL_WITHDRAWN,
            format!(
                "the provider takes pool {pool} back and takes no new pods for it; those that run there end at {until:.0}"
            ),
        ),
        Some(PoolOffer {
            missing_contract: Some(contract),
            ..
        }) => (
            CONTRACT_NOT_IN_FORCE,
            format!(
                "pool {pool} needs {contract}, which is not in force for it: `liqoctl contract list` shows who has to sign"
            ),
        ),
        Some(offer) if !offer.accepted => (
            NO_OFFER,
            format!("the offer of pool {pool} was not accepted yet"),
        ),
        Some(offer) => return Ok(offer),
    };
    Err(AdmissionRefusal { reason, message })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use liqo_api::tenant_namespace;

    use super::*;
    use crate::fixtures::{self, consumer, pod};

    fn list(text: &str) -> ResourceList {
        text.split(',')
            .map(|part| part.split_once('=').unwrap())
            .map(|(name, amount)| (name, amount.parse().unwrap()))
            .collect()
    }

    fn offer(hard: &str) -> PoolOffer {
        fixtures::offer(list(hard))
    }

    fn account() -> PoolAccount {
        PoolAccount {
            tenant: tenant_namespace(&consumer()),
            pool: "default".into(),
        }
    }

    fn admit(
        ledger: &mut Ledger,
        shadow: &str,
        wanted: &str,
        offer: Option<&PoolOffer>,
    ) -> Result<(), AdmissionRefusal> {
        ledger.admit(request(shadow, 0, wanted), offer, Charge::Requests, |_| {
            true
        })
    }

    fn request(shadow: &str, second: i64, wanted: &str) -> AdmissionRequest {
        let turn = AdmissionPosition {
            created: Timestamp::from_second(second).unwrap(),
            uid: shadow.into(),
        };
        let shadow = Key::new(account().tenant, shadow);
        AdmissionRequest {
            account: account(),
            shadow,
            turn,
            charge: list(wanted).into(),
            had_a_pod: false,
        }
    }

    #[test]
    fn a_new_pod_gets_nothing_of_what_is_being_taken_back_and_one_that_ran_is_created_again() {
        let offer = PoolOffer {
            reclaim_to: Some(list("cpu=1,pods=9")),
            ..offer("cpu=3,pods=9")
        };
        let mut ledger = Ledger::default();
        let admit = |ledger: &mut Ledger, shadow: &str, had_a_pod: bool| {
            let request = AdmissionRequest {
                had_a_pod,
                ..request(shadow, 0, "cpu=1,pods=1")
            };
            ledger
                .admit(request, Some(&offer), Charge::Requests, |_| true)
                .map_err(|refusal| refusal.reason)
        };
        assert_eq!(admit(&mut ledger, "first", false), Ok(()));
        assert_eq!(admit(&mut ledger, "new", false), Err(OFFER_EXCEEDED));
        assert_eq!(admit(&mut ledger, "again", true), Ok(()));
    }

    #[test]
    fn a_pod_beyond_the_offer_is_refused_with_what_is_short_and_by_how_much() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=3,memory=1Gi,pods=10");
        assert_eq!(
            admit(&mut ledger, "a", "cpu=2,memory=1Gi,pods=1", Some(&offer)),
            Ok(())
        );
        let refusal = admit(
            &mut ledger,
            "b",
            "cpu=1500m,memory=1Mi,pods=1",
            Some(&offer),
        )
        .unwrap_err();
        assert_eq!(refusal.reason, "OfferExceeded");
        assert!(
            refusal.message.contains("cpu: 500m short"),
            "{}",
            refusal.message
        );
        assert!(
            refusal.message.contains("memory: 1Mi short"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn a_resource_that_is_not_offered_cannot_be_used() {
        let refusal = admit(
            &mut Ledger::default(),
            "a",
            "nvidia.com/gpu=1,pods=1",
            Some(&offer("cpu=3,pods=10")),
        )
        .unwrap_err();
        assert!(
            refusal.message.contains("nvidia.com/gpu"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn pods_being_created_at_the_same_time_cannot_use_the_same_room() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=10,pods=3");
        let admitted = (0..20)
            .filter(|n| admit(&mut ledger, &n.to_string(), "cpu=1,pods=1", Some(&offer)).is_ok())
            .count();
        assert_eq!(admitted, 3);
    }

    #[test]
    fn trying_again_does_not_count_twice() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=1,pods=1");
        for _ in 0..3 {
            assert_eq!(
                admit(&mut ledger, "home-uid", "cpu=1,pods=1", Some(&offer)),
                Ok(())
            );
        }
        // Seen in the watch: the reservation becomes the pod itself.
        let seen = pod("web", "u1", |_| {});
        ledger.pod_changed(None, Some(&seen));
        assert!(admit(&mut ledger, "other", "cpu=1,pods=1", Some(&offer)).is_err());
        ledger.pod_changed(Some(&seen), None);
        assert_eq!(
            admit(&mut ledger, "other", "cpu=1,pods=1", Some(&offer)),
            Ok(())
        );
    }

    #[test]
    fn nothing_is_kept_of_those_who_have_no_pods() {
        let mut ledger = Ledger::default();
        let (one, other) = (pod("web", "u1", |_| {}), pod("db", "u2", |_| {}));
        ledger.pod_changed(None, Some(&one));
        ledger.pod_changed(None, Some(&other));
        ledger.pod_changed(Some(&one), None);
        assert_eq!(ledger.pods.len(), 1);
        ledger.pod_changed(Some(&other), None);
        assert!(ledger.pods.is_empty(), "{:?}", ledger.pods);
    }

    #[test]
    fn a_pod_that_is_given_to_another_consumer_is_charged_to_that_one_from_then_on() {
        let mut ledger = Ledger::default();
        let stranger = liqo_api::ClusterId::of_public_key(&[8; 32]);
        let ours = pod("web", "u1", |_| {});
        let theirs = pod("web", "u1", |object| {
            object["metadata"]["labels"]["liqo.io/consumer-id"] = stranger.as_str().into();
        });
        ledger.pod_changed(None, Some(&ours));
        assert!(
            admit(
                &mut ledger,
                "waits",
                "cpu=1,pods=1",
                Some(&offer("cpu=1,pods=1"))
            )
            .is_err()
        );
        assert_eq!(
            ledger.pod_changed(Some(&ours), Some(&theirs)),
            [Key::new(account().tenant, "waits")]
        );
        assert_eq!(
            ledger
                .total_charged(&account(), Charge::Requests, |_| true)
                .get("cpu")
                .to_string(),
            "0"
        );
        assert_eq!(
            ledger
                .total_charged(&theirs.account(), Charge::Requests, |_| true)
                .get("cpu")
                .to_string(),
            "1"
        );
    }

    #[test]
    fn a_pod_that_is_given_to_another_shadow_pod_takes_up_the_room_that_was_held_for_that_one() {
        let (mut ledger, offer) = (Ledger::default(), offer("cpu=2,pods=2"));
        let first = pod("web", "u1", |_| {});
        ledger.pod_changed(None, Some(&first));
        admit(&mut ledger, "other", "cpu=1,pods=1", Some(&offer)).unwrap();
        let second = pod("web", "u1", |object| {
            object["metadata"]["labels"]["liqo.io/shadow-pod"] = "other".into();
        });
        ledger.pod_changed(Some(&first), Some(&second));
        assert_eq!(
            ledger
                .total_charged(&account(), Charge::Requests, |_| true)
                .get("cpu")
                .to_string(),
            "1"
        );
    }

    #[test]
    fn a_finished_pod_makes_room_and_those_who_wait_are_told() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=1,pods=1");
        let running = pod("web", "u1", |_| {});
        ledger.pod_changed(None, Some(&running));
        assert!(admit(&mut ledger, "waits", "cpu=1,pods=1", Some(&offer)).is_err());
        let finished = pod("web", "u1", |object| {
            object["status"]["phase"] = "Succeeded".into();
        });
        assert_eq!(
            ledger.pod_changed(Some(&running), Some(&finished)),
            [Key::new(account().tenant, "waits")]
        );
        assert_eq!(
            admit(&mut ledger, "waits", "cpu=1,pods=1", Some(&offer)),
            Ok(())
        );
        assert!(
            ledger.pod_changed(Some(&finished), None).is_empty(),
            "it made its room before"
        );
    }

    #[test]
    fn room_that_was_not_used_is_given_back() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=1,pods=1");
        admit(&mut ledger, "a", "cpu=1,pods=1", Some(&offer)).unwrap();
        admit(&mut ledger, "b", "cpu=1,pods=1", Some(&offer)).unwrap_err();
        assert_eq!(
            ledger.release_reservation(&Key::new(account().tenant, "a")),
            [Key::new(account().tenant, "b")]
        );
        assert_eq!(
            admit(&mut ledger, "b", "cpu=1,pods=1", Some(&offer)),
            Ok(())
        );
    }

    #[test]
    fn pods_in_namespaces_that_are_not_ours_do_not_count() {
        let mut ledger = Ledger::default();
        ledger.pod_changed(
            None,
            Some(&pod("web", "u1", |object| {
                object["metadata"]["namespace"] = "somebody-elses".into();
            })),
        );
        let offer = offer("cpu=1,pods=1");
        let ours = |namespace: &str| namespace != "somebody-elses";
        assert_eq!(
            ledger.admit(
                request("a", 0, "cpu=1,pods=1"),
                Some(&offer),
                Charge::Requests,
                ours
            ),
            Ok(())
        );
    }

    #[test]
    fn what_is_in_use_is_always_the_sum_over_what_exists() {
        let mut ledger = Ledger::default();
        let mut existing: BTreeMap<u64, Arc<RemotePod>> = BTreeMap::new();
        let mut seed = 12345_u64;
        for _ in 0..2000 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (which, what) = ((seed >> 33) % 20, (seed >> 40) % 3);
            let old = existing.get(&which).cloned();
            let new = (what != 0).then(|| {
                Arc::new(pod(&which.to_string(), &format!("u{which}"), |object| {
                    object["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
                        format!("{}m", (seed >> 20) % 1000).into();
                    object["metadata"]["labels"]["liqo.io/shadow-pod"] = which.to_string().into();
                    if what == 2 {
                        object["status"]["phase"] = "Failed".into();
                    }
                }))
            });
            ledger.pod_changed(old.as_deref(), new.as_deref());
            match new {
                Some(new) => existing.insert(which, new),
                None => existing.remove(&which),
            };
            let expected: ResourceList = existing
                .values()
                .filter(|pod| pod.is_charged())
                .map(|pod| pod.charge.charged_amounts(Charge::Requests))
                .sum();
            let sum = ledger.total_charged(&account(), Charge::Requests, |_| true);
            assert!(expected.fits_in(&sum).is_ok() && sum.fits_in(&expected).is_ok());
        }
    }

    #[test]
    fn without_an_accepted_offer_nothing_runs() {
        let usual = offer("cpu=1,pods=1");
        let pending = PoolOffer {
            accepted: false,
            ..usual
        };
        for offer in [None, Some(&pending)] {
            assert_eq!(
                admit(&mut Ledger::default(), "a", "cpu=1,pods=1", offer)
                    .unwrap_err()
                    .reason,
                "NoOffer"
            );
        }
    }

    #[test]
    fn a_pool_that_is_taken_back_takes_no_new_pods_and_says_until_when_the_others_run() {
        let until = "2026-01-02T03:04:05Z".parse().unwrap();
        let withdrawn = PoolOffer {
            withdrawal: Some(until),
            ..offer("cpu=1,pods=1")
        };
        let refusal = admit(
            &mut Ledger::default(),
            "a",
            "cpu=1,pods=1",
            Some(&withdrawn),
        )
        .unwrap_err();
        assert_eq!(refusal.reason, "PoolWithdrawn");
        assert!(
            refusal.message.contains("2026-01-02T03:04:05Z"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn without_a_contract_in_force_no_pod_is_admitted() {
        let unsigned = PoolOffer {
            missing_contract: Some("contract-01234567".to_owned()),
            ..offer("cpu=1,pods=1")
        };
        let refusal =
            admit(&mut Ledger::default(), "a", "cpu=1,pods=1", Some(&unsigned)).unwrap_err();
        assert_eq!(refusal.reason, "ContractNotInForce");
        assert!(
            refusal.is_about_offer() && refusal.message.contains("contract-01234567"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn the_pod_that_waits_longest_is_admitted_first_in_whatever_order_they_are_looked_at() {
        let offer = offer("cpu=2,pods=10");
        let all = [
            request("old", 1, "cpu=1"),
            request("same-a", 5, "cpu=1"),
            request("same-b", 5, "cpu=1"),
            request("young", 9, "cpu=1"),
        ];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let mut ledger = Ledger::default();
            for request in &all {
                ledger.add_waiting_pod(request.clone());
            }
            let mut admitted = std::collections::BTreeSet::new();
            for which in order {
                if ledger
                    .admit(all[which].clone(), Some(&offer), Charge::Requests, |_| true)
                    .is_ok()
                {
                    admitted.insert(which);
                }
            }
            assert_eq!(admitted, [0, 1].into(), "{order:?}");
        }
    }

    #[test]
    fn pods_that_are_admitted_come_before_those_that_wait_longer() {
        let (mut ledger, offer) = (Ledger::default(), offer("cpu=1,pods=10"));
        ledger.pod_changed(None, Some(&pod("web", "u1", |_| {})));
        assert!(
            ledger
                .admit(
                    request("old", 1, "cpu=1"),
                    Some(&offer),
                    Charge::Requests,
                    |_| true
                )
                .is_err()
        );
    }

    #[test]
    fn a_pod_that_does_not_fit_holds_up_nobody() {
        let (mut ledger, offer) = (Ledger::default(), offer("cpu=2,pods=10"));
        assert!(
            ledger
                .admit(
                    request("huge", 1, "cpu=64"),
                    Some(&offer),
                    Charge::Requests,
                    |_| true
                )
                .is_err()
        );
        assert_eq!(
            ledger.admit(
                request("small", 2, "cpu=1"),
                Some(&offer),
                Charge::Requests,
                |_| true
            ),
            Ok(())
        );
    }

    #[test]
    fn a_pod_that_no_node_has_room_for_waits_until_the_offer_says_that_one_has_and_holds_up_nobody()
    {
        let nodes = |nodes: &str| PoolOffer {
            largest_pods: serde_json::from_str(nodes).unwrap(),
            ..offer("cpu=3,memory=8Gi")
        };
        let (mut ledger, before) = (
            Ledger::default(),
            nodes(r#"[{"cpu":"1900m","memory":"1Gi"},{"cpu":"1","memory":"4Gi"}]"#),
        );
        let large = request("large", 1, "cpu=2,memory=1Gi");
        let mut admit = |request: &AdmissionRequest, offer| {
            ledger.admit(request.clone(), Some(offer), Charge::Requests, |_| true)
        };
        let refusal = admit(&large, &before).unwrap_err();
        assert_eq!(refusal.reason, "OfferExceeded");
        assert!(
            refusal.message.contains("no node of pool default has room"),
            "{}",
            refusal.message
        );
        assert!(
            refusal
                .message
                .contains("cpu: 100m short (2 requested, 1900m available) on the largest node"),
            "{}",
            refusal.message
        );
        assert_eq!(admit(&request("small", 2, "cpu=1500m"), &before), Ok(()));
        let after = PoolOffer {
            hard: list("cpu=4,memory=8Gi"),
            ..nodes(r#"[{"cpu":"2","memory":"1Gi"}]"#)
        };
        assert_eq!(admit(&large, &after), Ok(()));
    }

    #[test]
    fn where_nobody_knows_what_nodes_have_only_the_sum_counts() {
        let told = PoolOffer {
            largest_pods: serde_json::from_str(r#"[{"cpu":"1"}]"#).unwrap(),
            ..offer("cpu=3")
        };
        assert!(admit(&mut Ledger::default(), "a", "cpu=2", Some(&told)).is_err());
        for untold in [
            PoolOffer {
                borrowed: true,
                ..told.clone()
            },
            offer("cpu=3"),
        ] {
            assert_eq!(
                admit(&mut Ledger::default(), "a", "cpu=2", Some(&untold)),
                Ok(())
            );
        }
    }

    #[test]
    fn a_pod_that_turns_out_not_to_wait_for_room_lets_the_next_one_in() {
        let (mut ledger, offer) = (Ledger::default(), offer("cpu=1,pods=10"));
        ledger.add_waiting_pod(request("forbidden", 1, "cpu=1"));
        let refusal = ledger
            .admit(
                request("young", 2, "cpu=1"),
                Some(&offer),
                Charge::Requests,
                |_| true,
            )
            .unwrap_err();
        assert!(
            refusal.message.contains("waited longer"),
            "{}",
            refusal.message
        );
        let young = Key::new(account().tenant, "young");
        assert_eq!(
            ledger.stop_waiting(&Key::new(account().tenant, "forbidden")),
            [young]
        );
        assert_eq!(
            ledger.admit(
                request("young", 2, "cpu=1"),
                Some(&offer),
                Charge::Requests,
                |_| true
            ),
            Ok(())
        );
    }

    #[test]
    fn what_admission_adds_to_a_pod_is_charged_as_soon_as_it_is_created() {
        let (mut ledger, offer) = (Ledger::default(), offer("cpu=2,pods=10"));
        admit(&mut ledger, "a", "cpu=1,pods=1", Some(&offer)).unwrap();
        ledger.record_created(
            &Key::new(account().tenant, "a"),
            &list("cpu=1250m,pods=1").into(),
        );
        let refusal = admit(&mut ledger, "b", "cpu=1,pods=1", Some(&offer)).unwrap_err();
        assert!(
            refusal.message.contains("cpu: 250m short"),
            "{}",
            refusal.message
        );
    }

    #[test]
    fn pods_are_charged_their_limits_from_the_moment_on_that_the_policy_says_so() {
        let limited = |requests: &str, limits: &str| {
            let resources =
                serde_json::json!({ "requests": { "cpu": requests }, "limits": { "cpu": limits } });
            pod("web", "u1", |object| {
                object["spec"]["containers"][0]["resources"] = resources.clone();
            })
        };
        let (mut ledger, offer) = (Ledger::default(), offer("cpu=4,pods=10"));
        ledger.pod_changed(None, Some(&limited("1", "3")));
        let another = AdmissionRequest {
            charge: limited("1", "2").charge,
            ..request("b", 0, "cpu=1")
        };
        assert_eq!(
            ledger.admit(another.clone(), Some(&offer), Charge::Requests, |_| true),
            Ok(())
        );
        ledger.forget_shadow(&another.shadow);
        let refusal = ledger
            .admit(another, Some(&offer), Charge::Limits, |_| true)
            .unwrap_err();
        assert!(
            refusal
                .message
                .contains("cpu: 1 short (2 requested, 1 available)"),
            "{}",
            refusal.message
        );
        assert_eq!(
            ledger
                .total_charged(&account(), Charge::Requests, |_| true)
                .get("cpu")
                .to_string(),
            "1"
        );
    }

    #[test]
    fn each_pool_is_charged_for_its_own_pods_only() {
        let (mut ledger, offer) = (Ledger::default(), offer("cpu=1,pods=1"));
        admit(&mut ledger, "a", "cpu=1,pods=1", Some(&offer)).unwrap();
        let mut other = request("b", 0, "cpu=1,pods=1");
        other.account.pool = "gpu".into();
        assert_eq!(
            ledger.admit(other, Some(&offer), Charge::Requests, |_| true),
            Ok(())
        );
    }
}
