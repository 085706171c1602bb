//! Pods that are resized in place. What a resize adds must fit into what is free. It is charged
//! from before the API server is asked until the watch shows the new amounts; from then on the pod
//! is charged the larger of what it has and what it asks for.
//!
//! A request whose answer was lost may have been accepted, so only the watch ends a resize that is
//! in flight. Until then it is charged what the API server says that the pod asks for.
//!
//! A resize that has no room holds up nobody, and is tried again whenever room may have become
//! free.

use liqo_api::requests::EffectiveAmounts;
use liqo_api::{Charge, Key};
use liqo_quantity::{Quantity, ResourceList};

use crate::pod::admission::{PoolAccount, PoolOffer};
use crate::pod::carry::resize::{PendingResize, ResizeCharge};
use crate::pod::ledger::{Ledger, WatchedCharge, usable_offer};
use crate::pod::remote_pod::RemotePod;

/// A pod that is to have other amounts.
#[derive(Clone, Debug, PartialEq)]
pub struct ResizeRequest {
    account: PoolAccount,
    shadow: Key,
    namespace: String,
    uid: String,
    /// The amounts that it is to have.
    charge: ResizeCharge,
}

impl ResizeRequest {
    pub fn new(pod: &RemotePod, charge: ResizeCharge) -> Self {
        let (namespace, uid) = (pod.key.namespace.clone(), pod.uid.clone());
        Self {
            account: pod.account(),
            shadow: pod.shadow_key(),
            namespace,
            uid,
            charge,
        }
    }

    /// A pod that is to have the amounts that it asks for.
    pub fn for_asked_amounts(pod: &RemotePod) -> Self {
        Self::new(
            pod,
            ResizeCharge {
                asked: pod.asked_amounts().clone(),
                held: pod.charge.clone(),
            },
        )
    }

    pub(super) fn is_for_account(&self, account: &PoolAccount) -> bool {
        self.account == *account
    }

    /// Whether this change is the end of the pod.
    fn is_ended_by(&self, old: Option<&RemotePod>, new: Option<&RemotePod>) -> bool {
        match (old, new) {
            (_, Some(new)) if new.uid == self.uid => !new.is_charged(),
            (Some(old), _) => old.uid == self.uid,
            _ => false,
        }
    }
}

/// A resize that the API server may have accepted, and that the watch has not shown.
#[derive(Debug)]
pub(super) struct ResizeInFlight {
    request: ResizeRequest,
    /// The amounts of earlier resizes, as long as the watch has not shown these amounts either.
    earlier: Option<ResizeCharge>,
}

impl ResizeInFlight {
    fn charge(&self) -> ResizeCharge {
        self.earlier.as_ref().map_or_else(
            || self.request.charge.clone(),
            |earlier| earlier.max(&self.request.charge),
        )
    }

    /// The watch shows that the pod asks for these amounts. Returns whether it has shown the
    /// resize.
    fn record_shown(&mut self, asked: &EffectiveAmounts) -> bool {
        self.earlier
            .take_if(|earlier| covers_amounts(asked, &earlier.asked));
        self.earlier.is_none() && covers_amounts(asked, &self.request.charge.asked)
    }
}

/// Whether a pod that asks for these amounts has room for the others.
fn covers_amounts(asked: &EffectiveAmounts, others: &EffectiveAmounts) -> bool {
    [Charge::Requests, Charge::Limits]
        .into_iter()
        .all(|charge| {
            others
                .charged_amounts(charge)
                .fits_in(asked.charged_amounts(charge))
                .is_ok()
        })
}

impl Ledger {
    /// Decides whether a pod may have other amounts now, and if so charges them until the watch
    /// shows the pod with them. Otherwise the resize waits for room.
    pub fn admit_resize(
        &mut self,
        request: ResizeRequest,
        offer: Option<&PoolOffer>,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> Result<(), PendingResize> {
        let verdict = self.check_replacement_room(&request, offer, charge, ours);
        let shadow = request.shadow.clone();
        if verdict.is_err() {
            self.deferred.insert(shadow, request);
            return verdict;
        }
        self.deferred.remove(&shadow);
        let before = self
            .resizing
            .remove(&shadow)
            .filter(|before| before.request.uid == request.uid);
        self.sums.remove(&request.account);
        self.resizing.insert(
            shadow,
            ResizeInFlight {
                request,
                earlier: before.map(|before| before.charge()),
            },
        );
        verdict
    }

    /// Whether there is room now for a resize that waits for it.
    pub fn may_resize(
        &mut self,
        shadow: &Key,
        offer: Option<&PoolOffer>,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> bool {
        let request = self.deferred.get(shadow).cloned();
        request.is_some_and(|request| {
            self.check_replacement_room(&request, offer, charge, ours)
                .is_ok()
        })
    }

    /// Records what the API server says that a pod asks for. A resize in flight is charged that,
    /// and none waits for room any more. Returns the shadow pods that may fit now.
    pub fn record_asked_amounts(&mut self, live: ResizeRequest) -> Vec<Key> {
        let (shadow, account) = (live.shadow.clone(), live.account.clone());
        self.deferred.remove(&shadow);
        let asked = self
            .watched_pod(&live)
            .map(|pod| pod.asked.as_deref().unwrap_or(&pod.charge).clone());
        let Some(in_flight) = self.resizing.get_mut(&shadow) else {
            return Vec::new();
        };
        if in_flight.request.uid != live.uid || in_flight.request.charge.asked == live.charge.asked
        {
            return Vec::new();
        }
        in_flight.request = live;
        // The watch reported that already, and will not report it again.
        if asked.is_some_and(|asked| in_flight.record_shown(&asked)) {
            self.resizing.remove(&shadow);
        }
        self.sums.remove(&account);
        self.pods_without_room(&account)
    }

    /// Ends the resize of a pod that is gone or is created again. Returns the shadow pods that may
    /// fit now.
    pub(super) fn forget_resize(&mut self, shadow: &Key) -> Vec<Key> {
        self.deferred.remove(shadow);
        let Some(ResizeInFlight { request, .. }) = self.resizing.remove(shadow) else {
            return Vec::new();
        };
        self.sums.remove(&request.account);
        self.pods_without_room(&request.account)
    }

    /// The shadow pods of a tenant whose resize waits for room.
    pub fn deferred_resizes(&self, tenant: &str) -> Vec<Key> {
        self.deferred
            .keys()
            .filter(|shadow| shadow.namespace == tenant)
            .cloned()
            .collect()
    }

    /// The watch shows a change of a pod: the resize ends if that shows the new amounts, or if the
    /// pod ended.
    pub(super) fn observe_pod_change(
        &mut self,
        old: Option<&RemotePod>,
        new: Option<&RemotePod>,
    ) -> Vec<Key> {
        let Some(shadow) = new.or(old).map(RemotePod::shadow_key) else {
            return Vec::new();
        };
        if self
            .deferred
            .get(&shadow)
            .is_some_and(|request| request.is_ended_by(old, new))
        {
            self.deferred.remove(&shadow);
        }
        let Some(in_flight) = self.resizing.get_mut(&shadow) else {
            return Vec::new();
        };
        let had_earlier = in_flight.earlier.is_some();
        let is_over = in_flight.request.is_ended_by(old, new)
            || new.is_some_and(|new| {
                new.uid == in_flight.request.uid && in_flight.record_shown(new.asked_amounts())
            });
        if !is_over && in_flight.earlier.is_some() == had_earlier {
            return Vec::new();
        }
        let account = in_flight.request.account.clone();
        if is_over {
            self.resizing.remove(&shadow);
        }
        self.sums.remove(&account);
        self.pods_without_room(&account)
    }

    /// The amounts that resizes add to the charges for the pods of an account.
    pub(super) fn added_by_resizes(
        &self,
        account: &PoolAccount,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> ResourceList {
        let resizing = self
            .resizing
            .values()
            .filter(|one| one.request.account == *account && ours(&one.request.namespace));
        resizing.fold(ResourceList::new(), |sum, one| {
            sum + &self.added_charge(&one.request, &one.charge(), charge)
        })
    }

    /// The additional charge for the pod of this request if it is charged these amounts.
    fn added_charge(
        &self,
        request: &ResizeRequest,
        amounts: &ResizeCharge,
        charge: Charge,
    ) -> ResourceList {
        let held = match self.watched_pod(request) {
            Some(pod) => Some(&pod.charge),
            // The watch may not show a new pod yet.
            None => self.reserved.get(&request.shadow).map(|(_, held)| held),
        };
        let wanted = amounts.held.charged_amounts(charge);
        held.map_or_else(
            || wanted.clone(),
            |held| wanted.saturating_sub(held.charged_amounts(charge)),
        )
    }

    fn watched_pod(&self, request: &ResizeRequest) -> Option<&WatchedCharge> {
        self.pods
            .get(&request.account)?
            .get(&request.namespace)?
            .get(&request.uid)
    }

    /// Whether there is room, if a resize of the same pod that is in flight is not charged.
    fn check_replacement_room(
        &mut self,
        request: &ResizeRequest,
        offer: Option<&PoolOffer>,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> Result<(), PendingResize> {
        let Some(in_flight) = self.resizing.remove(&request.shadow) else {
            return self.check_resize_room(request, offer, charge, ours);
        };
        self.sums.remove(&request.account);
        let verdict = self.check_resize_room(request, offer, charge, ours);
        self.resizing.insert(request.shadow.clone(), in_flight);
        self.sums.remove(&request.account);
        verdict
    }

    fn check_resize_room(
        &mut self,
        request: &ResizeRequest,
        offer: Option<&PoolOffer>,
        charge: Charge,
        ours: impl Fn(&str) -> bool,
    ) -> Result<(), PendingResize> {
        let added = self.added_charge(request, &request.charge, charge);
        if added.is_zero() {
            return Ok(());
        }
        let pool = &request.account.pool;
        let offer = usable_offer(offer, pool)
            .map_err(|refusal| PendingResize::infeasible(refusal.message))?;
        let mut growing = request.charge.asked.charged_amounts(charge).clone();
        growing.retain(|name, _| added.get(name) > Quantity::ZERO);
        growing.fits_in(&offer.hard).map_err(|short| {
            let short: Vec<String> = short.iter().map(ToString::to_string).collect();
            PendingResize::infeasible(format!(
                "the provider offers less in pool {pool} than the pod asks for: {}",
                short.join(", ")
            ))
        })?;
        let free = offer
            .hard
            .saturating_sub(&self.total_charged(&request.account, charge, ours));
        added.fits_in(&free).map_err(|short| {
            let short: Vec<String> = short.iter().map(ToString::to_string).collect();
            PendingResize::deferred(format!(
                "pool {pool} is too small for what the pod asks for in addition: {}; it is resized when other pods end or when more is offered",
                short.join(", ")
            ))
        })
    }
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, pod};

    fn offer(cpu: &str) -> PoolOffer {
        let hard = [
            ("cpu".to_owned(), cpu.parse().unwrap()),
            ("pods".to_owned(), Quantity::from_units(10)),
        ];
        fixtures::offer(hard.into_iter().collect())
    }

    fn requests(cpu: &str) -> Value {
        json!({ "requests": { "cpu": cpu } })
    }

    /// A pod that has one amount and asks for another one.
    fn running(has: &str, asks: &str, conditions: Value) -> RemotePod {
        pod("web", "u1", |object| {
            object["spec"]["containers"][0]["resources"] = requests(asks);
            object["status"] = json!({ "phase": "Running", "conditions": conditions,
                "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "resources": requests(has), "allocatedResources": { "cpu": has } }] });
        })
    }

    fn settled(cpu: &str) -> RemotePod {
        running(cpu, cpu, json!([]))
    }

    fn other(cpu: &str) -> RemotePod {
        pod("other", "u2", |object| {
            object["metadata"]["labels"]["liqo.io/shadow-pod"] = "other".into();
            object["spec"]["containers"][0]["resources"] = requests(cpu);
        })
    }

    fn ledger(pods: &[&RemotePod]) -> Ledger {
        let mut ledger = Ledger::default();
        for pod in pods {
            ledger.pod_changed(None, Some(pod));
        }
        ledger
    }

    fn resize(ledger: &mut Ledger, to: &str, offer: &PoolOffer) -> Result<(), PendingResize> {
        let pod = settled("1");
        let to = settled(to).charge;
        let request = ResizeRequest::new(
            &pod,
            ResizeCharge {
                asked: to.clone(),
                held: to,
            },
        );
        ledger.admit_resize(request, Some(offer), Charge::Requests, |_| true)
    }

    fn charged(ledger: &mut Ledger) -> String {
        ledger
            .total_charged(&settled("1").account(), Charge::Requests, |_| true)
            .get("cpu")
            .to_string()
    }

    #[test]
    fn a_resize_is_charged_before_it_is_asked_for_and_never_twice() {
        let (pod, offer) = (settled("1"), offer("4"));
        let mut ledger = ledger(&[&pod]);
        assert_eq!(resize(&mut ledger, "3", &offer), Ok(()));
        assert_eq!(charged(&mut ledger), "3");
        // Something else of the pod changes before the watch shows its new amounts.
        let labelled = pod_with_label(&pod);
        ledger.pod_changed(Some(&pod), Some(&labelled));
        assert_eq!(charged(&mut ledger), "3");
        let resized = running("1", "3", json!([]));
        ledger.pod_changed(Some(&labelled), Some(&resized));
        assert_eq!(charged(&mut ledger), "3");
        assert!(ledger.resizing.is_empty());
        ledger.pod_changed(Some(&resized), Some(&settled("3")));
        assert_eq!(charged(&mut ledger), "3");
    }

    fn pod_with_label(pod: &RemotePod) -> RemotePod {
        RemotePod {
            node: None,
            ..pod.clone()
        }
    }

    #[test]
    fn what_a_resize_takes_away_is_free_only_when_the_kubelet_has_released_it() {
        let (pod, offer) = (settled("2"), offer("2"));
        let mut ledger = ledger(&[&pod]);
        assert_eq!(resize(&mut ledger, "1", &offer), Ok(()));
        assert_eq!(charged(&mut ledger), "2");
        let shrinking = running("2", "1", json!([]));
        ledger.pod_changed(Some(&pod), Some(&shrinking));
        assert_eq!(charged(&mut ledger), "2");
        ledger.pod_changed(Some(&shrinking), Some(&settled("1")));
        assert_eq!(charged(&mut ledger), "1");
    }

    #[test]
    fn a_resize_that_the_node_can_never_do_is_not_charged_once_it_shows() {
        let (pod, offer) = (settled("1"), offer("4"));
        let mut ledger = ledger(&[&pod]);
        resize(&mut ledger, "3", &offer).unwrap();
        let pending =
            json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
        ledger.pod_changed(Some(&pod), Some(&running("1", "3", pending)));
        assert_eq!(charged(&mut ledger), "1");
        assert!(ledger.resizing.is_empty());
    }

    #[test]
    fn beyond_what_is_free_a_resize_waits_and_beyond_the_offer_it_is_infeasible() {
        let (pod, neighbour, offer) = (settled("1"), other("2"), offer("4"));
        let mut ledger = ledger(&[&pod, &neighbour]);
        let refused = resize(&mut ledger, "3", &offer).unwrap_err();
        assert_eq!(refused.reason, "Deferred");
        assert!(
            refused.message.contains("cpu: 1 short"),
            "{}",
            refused.message
        );
        assert_eq!(charged(&mut ledger), "3", "a refused resize is not charged");
        let shadow = pod.shadow_key();
        assert_eq!(
            ledger.deferred_resizes(&shadow.namespace),
            std::slice::from_ref(&shadow)
        );
        assert!(!ledger.may_resize(&shadow, Some(&offer), Charge::Requests, |_| true));
        assert_eq!(
            ledger.pod_changed(Some(&neighbour), None),
            std::slice::from_ref(&shadow)
        );
        assert!(ledger.may_resize(&shadow, Some(&offer), Charge::Requests, |_| true));
        assert_eq!(
            resize(&mut ledger, "5", &offer).unwrap_err().reason,
            "Infeasible"
        );
        assert_eq!(resize(&mut ledger, "4", &offer), Ok(()));
        assert!(ledger.deferred_resizes(&shadow.namespace).is_empty());
    }

    #[test]
    fn a_pod_becomes_smaller_whatever_is_offered_and_larger_only_in_an_offer_that_stays() {
        let pod = settled("2");
        let mut ledger = ledger(&[&pod]);
        let withdrawn = PoolOffer {
            withdrawal: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            ..offer("9")
        };
        for offer in [&offer("1"), &withdrawn] {
            assert_eq!(resize(&mut ledger, "1", offer), Ok(()));
            assert_eq!(
                resize(&mut ledger, "3", offer).unwrap_err().reason,
                "Infeasible"
            );
        }
    }

    #[test]
    fn nothing_is_kept_of_a_pod_that_ends_or_that_nobody_wants() {
        let (pod, offer) = (settled("1"), offer("4"));
        let mut ledger = ledger(&[&pod]);
        resize(&mut ledger, "3", &offer).unwrap();
        ledger.pod_changed(Some(&pod), None);
        assert_eq!(
            (charged(&mut ledger), ledger.resizing.len()),
            ("0".into(), 0)
        );
        ledger.pod_changed(None, Some(&pod));
        resize(&mut ledger, "3", &offer).unwrap();
        ledger.forget_shadow(&pod.shadow_key());
        assert_eq!(
            (charged(&mut ledger), ledger.resizing.len()),
            ("1".into(), 0)
        );
        resize(&mut ledger, "9", &offer).unwrap_err();
        ledger.forget_shadow(&pod.shadow_key());
        assert!(ledger.deferred.is_empty());
    }

    #[test]
    fn a_resize_that_the_api_server_accepted_is_charged_until_the_watch_shows_it() {
        let (pod, offer) = (settled("1"), offer("4"));
        let mut ledger = ledger(&[&pod]);
        resize(&mut ledger, "3", &offer).unwrap();
        // The next pass reads the pod, and wants nothing more.
        ledger.record_asked_amounts(ResizeRequest::for_asked_amounts(&running(
            "1",
            "3",
            json!([]),
        )));
        assert_eq!(charged(&mut ledger), "3");
        // Another size that the offer refuses, and then a smaller one.
        assert_eq!(
            resize(&mut ledger, "9", &offer).unwrap_err().reason,
            "Infeasible"
        );
        assert_eq!(charged(&mut ledger), "3");
        resize(&mut ledger, "1", &offer).unwrap();
        ledger.record_asked_amounts(ResizeRequest::for_asked_amounts(&settled("1")));
        assert_eq!(
            charged(&mut ledger),
            "3",
            "the kubelet may have seen the larger size"
        );
        let larger = running("1", "3", json!([]));
        ledger.pod_changed(Some(&pod), Some(&larger));
        assert!(ledger.resizing.is_empty());
        ledger.pod_changed(Some(&larger), Some(&settled("1")));
        assert_eq!(charged(&mut ledger), "1");
    }

    #[test]
    fn a_resize_that_never_arrived_is_charged_until_the_api_server_says_so() {
        let (pod, offer) = (settled("1"), offer("4"));
        let mut ledger = ledger(&[&pod]);
        resize(&mut ledger, "3", &offer).unwrap();
        ledger.record_asked_amounts(ResizeRequest::for_asked_amounts(&pod));
        assert_eq!(
            (charged(&mut ledger), ledger.resizing.len()),
            ("1".into(), 0)
        );
    }

    #[test]
    fn what_admission_adds_to_a_resize_is_charged_as_soon_as_the_api_server_answers() {
        let (pod, offer) = (settled("1"), offer("4"));
        let mut ledger = ledger(&[&pod]);
        resize(&mut ledger, "2", &offer).unwrap();
        ledger.record_asked_amounts(ResizeRequest::for_asked_amounts(&running(
            "1",
            "3",
            json!([]),
        )));
        assert_eq!(charged(&mut ledger), "3");
        // The watch may be faster than the answer, and admission may take something away.
        let resized = running("1", "2", json!([]));
        resize(&mut ledger, "4", &offer).unwrap();
        ledger.pod_changed(Some(&pod), Some(&running("1", "3", json!([]))));
        ledger.pod_changed(Some(&running("1", "3", json!([]))), Some(&resized));
        ledger.record_asked_amounts(ResizeRequest::for_asked_amounts(&resized));
        assert_eq!(
            (charged(&mut ledger), ledger.resizing.len()),
            ("2".into(), 0)
        );
    }

    #[test]
    fn what_a_kubelet_has_not_released_leaves_no_room_for_another_container_to_grow() {
        let (pod, offer) = (settled("2"), offer("2"));
        let mut ledger = ledger(&[&pod]);
        let charge = ResizeCharge {
            asked: settled("2").charge,
            held: settled("3").charge,
        };
        let refused = ledger
            .admit_resize(
                ResizeRequest::new(&pod, charge),
                Some(&offer),
                Charge::Requests,
                |_| true,
            )
            .unwrap_err();
        assert_eq!(refused.reason, "Deferred");
    }

    #[test]
    fn no_resize_waits_for_room_for_a_pod_that_ended_or_is_gone() {
        let (pod, offer) = (settled("1"), offer("4"));
        let ended = RemotePod {
            end: Some(crate::pod::remote_pod::PodEnd::Failed),
            ..pod.clone()
        };
        for (old, new) in [(&pod, Some(&ended)), (&pod, None), (&ended, None)] {
            let mut ledger = ledger(&[&pod, &other("2")]);
            resize(&mut ledger, "3", &offer).unwrap_err();
            ledger.pod_changed(Some(old), new);
            assert!(ledger.deferred.is_empty());
        }
    }

    #[test]
    fn a_resize_takes_no_room_that_a_pod_was_admitted_to() {
        let (pod, offer) = (settled("1"), offer("3"));
        let mut ledger = ledger(&[&pod]);
        resize(&mut ledger, "2", &offer).unwrap();
        let free = offer.hard.saturating_sub(&ledger.total_charged(
            &pod.account(),
            Charge::Requests,
            |_| true,
        ));
        assert_eq!(free.get("cpu").to_string(), "1");
        assert_eq!(
            resize(&mut ledger, "3", &offer),
            Ok(()),
            "the one before it does not count"
        );
        assert_eq!(charged(&mut ledger), "3");
    }
}
