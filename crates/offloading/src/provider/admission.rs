//! Whether one more pod fits into what was offered.
//!
//! What is in use is the sum over the pods that exist and are not finished, and over those that are just being created. It is
//! summed anew from these whenever one of them changed; there is no running total that could drift.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::core::v1::PodSpec;
use liqo_api::{OfferPhase, ResourceOffer, tenant_namespace};
use liqo_kit::{Key, requests};
use liqo_quantity::ResourceList;

use super::remote_pods::RemotePod;

/// Whose resources and which of them: a tenant namespace and a pool in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// The tenant namespace.
    pub tenant: String,
    /// The pool.
    pub pool: String,
}

/// What is kept of an offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// How much.
    pub hard: ResourceList,
    /// Whether the consumer accepted it.
    pub accepted: bool,
    /// Whether it is being taken back.
    pub withdrawn: bool,
    /// Keys of the labels that it advertises.
    pub advertised: Vec<String>,
}

impl Offer {
    /// What is kept of this offer; nothing when its name is not that of its pool.
    pub fn reduce(offer: ResourceOffer) -> Option<Self> {
        if offer.metadata.name.as_deref() != Some(offer.spec.pool.as_str()) || offer.metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Self {
            hard: offer.spec.resource_quota.hard,
            accepted: offer.status.is_some_and(|status| status.phase == OfferPhase::Accepted),
            withdrawn: offer.spec.withdrawal_timestamp.is_some(),
            advertised: offer.spec.labels.into_keys().collect(),
        })
    }
}

/// Why a pod is not run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word.
    pub reason: &'static str,
    /// What is in the way and what to do.
    pub message: String,
}

/// The refusal of a pod that asks for less than nothing, which would make room for others that there is not.
pub fn negative_quantity(spec: &PodSpec) -> Option<Refusal> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let resources = containers.filter_map(|container| container.resources.as_ref()).chain(&spec.resources);
    let lists = resources.flat_map(|resources| [&resources.requests, &resources.limits]).chain([&spec.overhead]).flatten();
    for list in lists {
        if let Some((name, quantity)) = requests::list(list).iter().find(|(_, quantity)| quantity.is_negative()) {
            return Some(Refusal {
                reason: "Invalid",
                message: format!("the pod asks for {quantity} of {name}, less than nothing"),
            });
        }
    }
    None
}

/// What is in use, and who waits for some of it.
#[derive(Default)]
pub struct Ledger {
    /// Unfinished pods, by the namespace that they are in.
    pods: HashMap<Account, BTreeMap<String, HashMap<String, ResourceList>>>,
    /// Pods that are being created and were not seen yet, by shadow pod.
    reserved: HashMap<Key, (Account, ResourceList)>,
    /// Shadow pods that found no room.
    waiting: HashMap<Account, HashSet<Key>>,
    /// Sums since which nothing changed.
    sums: HashMap<Account, ResourceList>,
}

impl Ledger {
    /// Takes over a change of a pod; gives the shadow pods that may find room now.
    pub fn pod_changed(&mut self, old: Option<&RemotePod>, new: Option<&RemotePod>) -> Vec<Key> {
        let mut freed = Vec::new();
        let same = old.zip(new).is_some_and(|(old, new)| {
            (&old.uid, old.counts(), &old.requests, &old.pool) == (&new.uid, new.counts(), &new.requests, &new.pool)
        });
        if let Some(old) = old.filter(|old| !same && old.counts()) {
            let account = account(old);
            if let Some(pods) = self.pods.get_mut(&account).and_then(|namespaces| namespaces.get_mut(&old.key.namespace)) {
                pods.remove(&old.uid);
            }
            freed = self.waiting(&account);
            self.sums.remove(&account);
        }
        if let Some(new) = new.filter(|_| !same) {
            let account = account(new);
            if new.counts() {
                let namespace = self.pods.entry(account.clone()).or_default().entry(new.key.namespace.clone()).or_default();
                namespace.insert(new.uid.clone(), new.requests.clone());
            }
            if let Some((reserving, _)) = self.reserved.remove(&new.shadow_key()) {
                self.sums.remove(&reserving);
            }
            self.sums.remove(&account);
        }
        freed
    }

    /// Forgets the sums: which namespaces count has changed.
    pub fn recount(&mut self) {
        self.sums.clear();
    }

    /// Decides whether this shadow pod may have its pod now, and if so holds the room for it until the pod is seen or the
    /// room is given back. `ours` tells the namespaces whose pods count. Calls are serialised by the lock around the ledger,
    /// so no two pods are given the same room.
    pub fn admit(
        &mut self,
        account: &Account,
        shadow: &Key,
        wanted: &ResourceList,
        offer: Option<&Offer>,
        ours: impl Fn(&str) -> bool,
    ) -> Result<(), Refusal> {
        self.forget(shadow);
        let verdict = match usable(offer, &account.pool) {
            Ok(offer) => fits(offer, &self.in_use(account, ours), wanted, &account.pool),
            Err(refusal) => Err(refusal),
        };
        if verdict.is_ok() {
            self.reserved.insert(shadow.clone(), (account.clone(), wanted.clone()));
            self.sums.remove(account);
        } else {
            self.waiting.entry(account.clone()).or_default().insert(shadow.clone());
        }
        verdict
    }

    /// Gives back the room that was held for this shadow pod and ends its wait; gives those who may find room now.
    pub fn forget(&mut self, shadow: &Key) -> Vec<Key> {
        for waiting in self.waiting.values_mut() {
            waiting.remove(shadow);
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
        self.give_back(shadow)
    }

    /// Gives back the room that was held for this shadow pod; gives those who may find room now.
    pub fn give_back(&mut self, shadow: &Key) -> Vec<Key> {
        let Some((account, _)) = self.reserved.remove(shadow) else { return Vec::new() };
        self.sums.remove(&account);
        self.waiting(&account)
    }

    fn waiting(&self, account: &Account) -> Vec<Key> {
        self.waiting.get(account).into_iter().flatten().cloned().collect()
    }

    fn in_use(&mut self, account: &Account, ours: impl Fn(&str) -> bool) -> ResourceList {
        if let Some(sum) = self.sums.get(account) {
            return sum.clone();
        }
        let namespaces = self.pods.get(account).into_iter().flatten().filter(|(namespace, _)| ours(namespace));
        let existing = namespaces.flat_map(|(_, pods)| pods.values());
        let reserved = self.reserved.values().filter(|(reserving, _)| reserving == account).map(|(_, requests)| requests);
        let sum: ResourceList = existing.chain(reserved).sum();
        self.sums.insert(account.clone(), sum.clone());
        sum
    }
}

fn account(pod: &RemotePod) -> Account {
    Account { tenant: tenant_namespace(&pod.consumer), pool: pod.pool.clone() }
}

fn usable<'a>(offer: Option<&'a Offer>, pool: &str) -> Result<&'a Offer, Refusal> {
    let refused = |message| Err(Refusal { reason: "NoOffer", message });
    match offer {
        None => refused(format!("nothing is offered to this cluster as pool {pool}")),
        Some(offer) if offer.withdrawn => refused(format!("the offer of pool {pool} is being taken back")),
        Some(offer) if !offer.accepted => refused(format!("the offer of pool {pool} was not accepted yet")),
        Some(offer) => Ok(offer),
    }
}

fn fits(offer: &Offer, in_use: &ResourceList, wanted: &ResourceList, pool: &str) -> Result<(), Refusal> {
    wanted.fits_in(&offer.hard.saturating_sub(in_use)).map_err(|shortages| {
        let short: Vec<String> = shortages.iter().map(ToString::to_string).collect();
        let message = format!(
            "pool {pool} has no room for the pod: {}; it starts when other pods end or when more is offered",
            short.join(", ")
        );
        Refusal { reason: "OfferExceeded", message }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::remote_pods::tests::{consumer, pod},
        *,
    };

    fn list(text: &str) -> ResourceList {
        text.split(',').map(|part| part.split_once('=').unwrap()).map(|(name, amount)| (name, amount.parse().unwrap())).collect()
    }

    fn offer(hard: &str) -> Offer {
        Offer { hard: list(hard), accepted: true, withdrawn: false, advertised: Vec::new() }
    }

    fn account() -> Account {
        Account { tenant: tenant_namespace(&consumer()), pool: "default".into() }
    }

    fn admit(ledger: &mut Ledger, shadow: &str, wanted: &str, offer: Option<&Offer>) -> Result<(), Refusal> {
        ledger.admit(&account(), &Key::new(account().tenant, shadow), &list(wanted), offer, |_| true)
    }

    #[test]
    fn a_pod_beyond_the_offer_is_refused_with_what_is_short_and_by_how_much() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=3,memory=1Gi,pods=10");
        assert_eq!(admit(&mut ledger, "a", "cpu=2,memory=1Gi,pods=1", Some(&offer)), Ok(()));
        let refusal = admit(&mut ledger, "b", "cpu=1500m,memory=1Mi,pods=1", Some(&offer)).unwrap_err();
        assert_eq!(refusal.reason, "OfferExceeded");
        assert!(refusal.message.contains("cpu: 500m short"), "{}", refusal.message);
        assert!(refusal.message.contains("memory: 1Mi short"), "{}", refusal.message);
    }

    #[test]
    fn a_pod_that_asks_for_less_than_nothing_is_refused() {
        let spec = |resources: serde_json::Value, at: &str| {
            let mut spec = serde_json::json!({ "containers": [{ "name": "c" }], "initContainers": [{ "name": "i" }] });
            match at {
                "" => spec["resources"] = resources,
                list => spec[list][0]["resources"] = resources,
            }
            serde_json::from_value::<PodSpec>(spec).unwrap()
        };
        for at in ["containers", "initContainers", ""] {
            for kind in ["requests", "limits"] {
                let refusal = negative_quantity(&spec(serde_json::json!({ kind: { "cpu": "1", "memory": "-1Gi" } }), at));
                assert_eq!(refusal.map(|refusal| refusal.reason), Some("Invalid"), "{at} {kind}");
                assert_eq!(negative_quantity(&spec(serde_json::json!({ kind: { "cpu": "0", "memory": "1Gi" } }), at)), None);
            }
        }
    }

    #[test]
    fn a_resource_that_is_not_offered_cannot_be_used() {
        let refusal = admit(&mut Ledger::default(), "a", "nvidia.com/gpu=1,pods=1", Some(&offer("cpu=3,pods=10"))).unwrap_err();
        assert!(refusal.message.contains("nvidia.com/gpu"), "{}", refusal.message);
    }

    #[test]
    fn pods_being_created_at_the_same_time_cannot_use_the_same_room() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=10,pods=3");
        let admitted = (0..20).filter(|n| admit(&mut ledger, &n.to_string(), "cpu=1,pods=1", Some(&offer)).is_ok()).count();
        assert_eq!(admitted, 3);
    }

    #[test]
    fn trying_again_does_not_count_twice() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=1,pods=1");
        for _ in 0..3 {
            assert_eq!(admit(&mut ledger, "home-uid", "cpu=1,pods=1", Some(&offer)), Ok(()));
        }
        // Seen in the watch: the reservation becomes the pod itself.
        let seen = pod("web", "u1", |_| {});
        ledger.pod_changed(None, Some(&seen));
        assert!(admit(&mut ledger, "other", "cpu=1,pods=1", Some(&offer)).is_err());
        ledger.pod_changed(Some(&seen), None);
        assert_eq!(admit(&mut ledger, "other", "cpu=1,pods=1", Some(&offer)), Ok(()));
    }

    #[test]
    fn a_finished_pod_makes_room_and_those_who_wait_are_told() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=1,pods=1");
        let running = pod("web", "u1", |_| {});
        ledger.pod_changed(None, Some(&running));
        assert!(admit(&mut ledger, "waits", "cpu=1,pods=1", Some(&offer)).is_err());
        let finished = pod("web", "u1", |object| object["status"]["phase"] = "Succeeded".into());
        assert_eq!(ledger.pod_changed(Some(&running), Some(&finished)), [Key::new(account().tenant, "waits")]);
        assert_eq!(admit(&mut ledger, "waits", "cpu=1,pods=1", Some(&offer)), Ok(()));
        assert!(ledger.pod_changed(Some(&finished), None).is_empty(), "it made its room before");
    }

    #[test]
    fn room_that_was_not_used_is_given_back() {
        let mut ledger = Ledger::default();
        let offer = offer("cpu=1,pods=1");
        admit(&mut ledger, "a", "cpu=1,pods=1", Some(&offer)).unwrap();
        admit(&mut ledger, "b", "cpu=1,pods=1", Some(&offer)).unwrap_err();
        assert_eq!(ledger.give_back(&Key::new(account().tenant, "a")), [Key::new(account().tenant, "b")]);
        assert_eq!(admit(&mut ledger, "b", "cpu=1,pods=1", Some(&offer)), Ok(()));
    }

    #[test]
    fn pods_in_namespaces_that_are_not_ours_do_not_count() {
        let mut ledger = Ledger::default();
        ledger.pod_changed(None, Some(&pod("web", "u1", |object| object["metadata"]["namespace"] = "somebody-elses".into())));
        let (offer, key) = (offer("cpu=1,pods=1"), Key::new(account().tenant, "a"));
        let ours = |namespace: &str| namespace != "somebody-elses";
        assert_eq!(ledger.admit(&account(), &key, &list("cpu=1,pods=1"), Some(&offer), ours), Ok(()));
    }

    #[test]
    fn what_is_in_use_is_always_the_sum_over_what_exists() {
        let mut ledger = Ledger::default();
        let mut existing: BTreeMap<u64, Arc<RemotePod>> = BTreeMap::new();
        let mut seed = 12345_u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (which, what) = ((seed >> 33) % 20, (seed >> 40) % 3);
            let old = existing.get(&which).cloned();
            let new = (what != 0).then(|| {
                Arc::new(pod(&which.to_string(), &format!("u{which}"), |object| {
                    object["spec"]["containers"][0]["resources"]["requests"]["cpu"] = format!("{}m", (seed >> 20) % 1000).into();
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
            let expected: ResourceList = existing.values().filter(|pod| pod.counts()).map(|pod| &pod.requests).sum();
            let sum = ledger.in_use(&account(), |_| true);
            assert!(expected.fits_in(&sum).is_ok() && sum.fits_in(&expected).is_ok());
        }
    }

    #[test]
    fn without_an_accepted_offer_nothing_runs() {
        let usual = offer("cpu=1,pods=1");
        let pending = Offer { accepted: false, ..usual.clone() };
        let withdrawn = Offer { withdrawn: true, ..usual };
        for offer in [None, Some(&pending), Some(&withdrawn)] {
            assert_eq!(admit(&mut Ledger::default(), "a", "cpu=1,pods=1", offer).unwrap_err().reason, "NoOffer");
        }
    }
}
