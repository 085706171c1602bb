//! Settles the account of each offer: which pods must end because their room is taken back, and
//! what the metrics show.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use liqo_api::{Charge, pods};
use liqo_controller_runtime::{Key, Requeue, metrics};
use liqo_offloading_rules::pod::admission::{PoolAccount, PoolOffer};
use liqo_offloading_rules::pod::local_status::downstream_message;
use liqo_offloading_rules::pod::reclaim::{ChargedPod, PodReclaim, PoolState, plan_reclaim};
use liqo_offloading_rules::pod::remote_pod::RemotePod;
use liqo_offloading_rules::pod::shadow_pod::MAX_GRACE_SECONDS;
use liqo_quantity::{Quantity, ResourceList};
use parking_lot::Mutex;
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use tokio::time::Instant;

use crate::provider::state::{ProviderError, ProviderState};
use crate::provider::triggers;

/// The state that is kept between two passes, by offer. Lost at a restart, which costs a minute.
pub struct OfferAccountController {
    provider: Arc<ProviderState>,
    /// Begin of the time in which the offer of a pool with pods is missing.
    missing: Mutex<HashMap<Key, Instant>>,
    /// Resources that the metrics show.
    shown: Mutex<HashMap<Key, BTreeSet<String>>>,
}

impl OfferAccountController {
    /// Settles every account once.
    pub fn new(provider: Arc<ProviderState>) -> Arc<Self> {
        let controller = Arc::new(Self {
            provider,
            missing: Mutex::default(),
            shown: Mutex::default(),
        });
        let provider = &controller.provider;
        let offers = provider.offers.all().into_iter().map(|(key, _)| key);
        let charged = provider
            .pods
            .all()
            .into_iter()
            .map(|(_, pod)| pod.account().offer_key());
        for key in offers.chain(charged).collect::<BTreeSet<Key>>() {
            if let Requeue::After(delay) = controller.settle_account(&key) {
                provider.queues.accounts.add_after(key, delay);
            }
        }
        controller
    }

    /// Runs until the context's `stop`.
    pub async fn run(self: Arc<Self>) {
        let (queue, stop) = (
            self.provider.queues.accounts.clone(),
            self.provider.context.stop.clone(),
        );
        queue
            .run("accounts", 1, stop, move |key| {
                std::future::ready(Ok::<_, ProviderError>(self.settle_account(&key)))
            })
            .await;
    }

    /// Settles the account of one offer. Returns when it is due again.
    fn settle_account(&self, key: &Key) -> Requeue {
        let provider = &self.provider;
        let account = PoolAccount {
            tenant: key.namespace.clone(),
            pool: key.name.clone(),
        };
        let offer = provider.offers.get(key);
        let charge = provider.charge_basis(&key.namespace);
        let used = provider
            .ledger
            .lock()
            .total_charged(&account, charge, |namespace| {
                provider.is_mapped_for(namespace, &key.namespace)
            });
        self.show_amounts(key, offer.as_ref().map(|offer| &offer.hard), &used);

        // Listing the pods is only worth it while something is taken back.
        let nothing_due = offer.as_ref().is_some_and(|offer| {
            offer.withdrawal.is_none() && offer.reclaim.is_none() && offer.drain.is_none()
        });
        let pods = if nothing_due {
            Vec::new()
        } else {
            charged_pods(provider, &account, charge, offer.as_deref())
        };
        let missing = {
            let mut missing = self.missing.lock();
            if offer.is_some() || pods.is_empty() {
                missing.remove(key);
                Duration::ZERO
            } else {
                missing
                    .entry(key.clone())
                    .or_insert_with(Instant::now)
                    .elapsed()
            }
        };
        let pool = offer
            .as_deref()
            .map_or(PoolState::Missing(missing), PoolState::Offered);
        let plan = plan_reclaim(&key.name, pool, &pods, provider.context.now());
        let before = {
            let mut all = provider.taken_back.lock();
            let before = all.remove(key).unwrap_or_default();
            if !plan.taken_back.is_empty() {
                all.insert(key.clone(), plan.taken_back.clone());
            }
            before
        };
        let now = &plan.taken_back;
        let changed = before
            .keys()
            .chain(now.keys())
            .filter(|shadow| before.get(*shadow) != now.get(*shadow));
        let changed: BTreeSet<Key> = changed.cloned().collect();
        for shadow in &changed {
            tracing::info!(%shadow, pool = key.name, now = ?now.get(shadow), "what is taken back from a consumer changed");
        }
        // The budgets of those that end later stay.
        let homes = changed
            .iter()
            .filter(|shadow| ends_now(shadow, &before) || ends_now(shadow, now))
            .filter_map(|shadow| Some(provider.shadows.get(shadow)?.namespace.clone()))
            .collect();
        provider
            .queues
            .add(triggers::room_taken_back(&key.namespace, &homes));
        provider.queues.add(triggers::shadow_pods_due(changed));
        plan.again.map_or(Requeue::OnChange, Requeue::After)
    }

    /// Shows what is charged next to what is offered, and removes resources that have neither any
    /// more.
    fn show_amounts(&self, key: &Key, available: Option<&ResourceList>, used: &ResourceList) {
        let consumer = self
            .provider
            .tenant(&key.namespace)
            .map(|tenant| tenant.consumer.to_string());
        let mut all = self.shown.lock();
        let before = all.remove(key).unwrap_or_default();
        // A tenant that is gone shows nothing. The name of its namespace ends with the consumer's
        // ID.
        let (id, amounts) = match &consumer {
            Some(consumer) => (consumer.clone(), shown_amounts(available, used)),
            None => (
                key.namespace
                    .rsplit('-')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
                BTreeMap::new(),
            ),
        };
        let (offered, charged) = amount_gauges();
        for gone in before
            .iter()
            .filter(|resource| !amounts.contains_key(*resource))
        {
            let labels = amount_labels(&id, &key.name, gone);
            offered.remove(&labels);
            charged.remove(&labels);
        }
        for (resource, (available, used)) in &amounts {
            let labels = amount_labels(&id, &key.name, resource);
            offered.get_or_create(&labels).set(*available);
            charged.get_or_create(&labels).set(*used);
        }
        if !amounts.is_empty() {
            all.insert(key.clone(), amounts.into_keys().collect());
        }
    }
}

/// Whether a pod must end now, by these decisions.
fn ends_now(shadow: &Key, taken_back: &BTreeMap<Key, PodReclaim>) -> bool {
    matches!(taken_back.get(shadow), Some(PodReclaim::Now(_)))
}

fn amount_labels(consumer: &str, pool: &str, resource: &str) -> AmountLabels {
    [
        ("consumer", consumer.to_owned()),
        ("pool", pool.to_owned()),
        ("resource", resource.to_owned()),
    ]
}

/// The pods that are charged to an account and have a shadow pod. All others end anyway.
fn charged_pods(
    provider: &ProviderState,
    account: &PoolAccount,
    charge: Charge,
    offer: Option<&PoolOffer>,
) -> Vec<ChargedPod> {
    let pods = provider.pods.all().into_iter().map(|(_, pod)| pod);
    let charged = pods.filter(|pod| pod.is_charged() && pod.account() == *account);
    let ours = charged.filter(|pod| provider.is_mapped_for(&pod.key.namespace, &account.tenant));
    ours.filter_map(|pod| {
        let key = pod.shadow_key();
        let shadow = provider.shadows.get(&key)?;
        Some(ChargedPod {
            turn: shadow.admission_position(&key.name),
            shadow: key,
            amounts: pod.charge.charged_amounts(charge).clone(),
            is_in_pool: offer.is_none_or(|offer| is_in_pool(provider, &pod, offer)),
            ends_behind: downstream_message(&pod.status.to_value(), pods::ENDS_SOON).is_some(),
            // A pod with a longer grace counts as staying.
            is_ending: pod
                .deletion_grace
                .is_some_and(|grace| grace <= MAX_GRACE_SECONDS)
                || shadow.deleted,
        })
    })
    .collect()
}

/// Whether the pool has the pod's node, or nobody knows, or it does not matter yet. A borrowed node
/// that its provider takes back is cordoned, and has an end of its own.
fn is_in_pool(provider: &ProviderState, pod: &RemotePod, offer: &PoolOffer) -> bool {
    let (Some(_), Some(name)) = (offer.drain, pod.node.as_deref()) else {
        return true;
    };
    let Some(node) = provider.nodes.get(&Key::new("", name)) else {
        return true;
    };
    (offer.borrowed && node.cordoned_since.is_some()) || offer.has_node(name, &node.labels)
}

type AmountLabels = [(&'static str, String); 3];
type AmountGauges = Family<AmountLabels, Gauge<f64, AtomicU64>>;

fn amount_gauges() -> &'static (AmountGauges, AmountGauges) {
    static GAUGES: OnceLock<(AmountGauges, AmountGauges)> = OnceLock::new();
    GAUGES.get_or_init(|| {
        let offered =
            "How much of a resource is offered to a consumer as a pool, in cores, bytes or pieces";
        let charged = "How much of that is charged for the consumer's unfinished pods";
        (
            metrics::register("pool_offered", offered, AmountGauges::default()),
            metrics::register("pool_charged", charged, AmountGauges::default()),
        )
    })
}

/// Returns the offered and the charged amount of each resource that has either.
fn shown_amounts(
    offered: Option<&ResourceList>,
    charged: &ResourceList,
) -> BTreeMap<String, (f64, f64)> {
    let none = ResourceList::new();
    let offered = offered.unwrap_or(&none);
    let used = charged
        .iter()
        .filter(|(_, amount)| !amount.is_zero())
        .map(|(name, _)| name);
    let names: BTreeSet<&str> = offered.names().chain(used).collect();
    names
        .into_iter()
        .map(|name| {
            (
                name.to_owned(),
                (as_float(offered.get(name)), as_float(charged.get(name))),
            )
        })
        .collect()
}

/// In cores, bytes or pieces. Metrics are floating-point numbers anyway.
#[expect(
    clippy::cast_precision_loss,
    reason = "metrics are floating-point numbers"
)]
fn as_float(quantity: Quantity) -> f64 {
    quantity.nanos() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> ResourceList {
        text.split(',')
            .map(|part| part.split_once('=').unwrap())
            .map(|(name, amount)| (name, amount.parse().unwrap()))
            .collect()
    }

    #[test]
    fn each_resource_shows_what_is_charged_beside_what_is_offered() {
        let shown = shown_amounts(
            Some(&list("cpu=2,memory=1Gi")),
            &list("cpu=1500m,pods=1,nvidia.com/gpu=0"),
        );
        let expected = [
            ("cpu", (2.0, 1.5)),
            ("memory", (1_073_741_824.0, 0.0)),
            ("pods", (0.0, 1.0)),
        ];
        assert_eq!(
            shown,
            expected
                .map(|(name, amounts)| (name.to_owned(), amounts))
                .into()
        );
    }

    #[test]
    fn what_is_charged_without_an_offer_is_still_shown() {
        assert_eq!(
            shown_amounts(None, &list("cpu=1")),
            [("cpu".to_owned(), (0.0, 1.0))].into()
        );
        assert!(shown_amounts(None, &ResourceList::new()).is_empty());
    }
}
