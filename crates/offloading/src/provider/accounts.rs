//! Settles each account: who must give room back, and what the metrics show.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use jiff::Timestamp;
use liqo_api::Charge;
use liqo_kit::{Key, Next, metrics};
use liqo_quantity::{Quantity, ResourceList};
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use tokio::time::Instant;

use super::{
    Provider,
    admission::Account,
    lock,
    reclaim::{Charged, Pool, plan},
};

/// What is remembered of accounts, by offer (tenant namespace and pool). Losing it costs a minute.
#[derive(Default)]
pub struct Memory {
    /// Shadow pods whose pods are to end, with the reason for people.
    ending: Mutex<HashMap<Key, BTreeMap<Key, String>>>,
    /// Since when the offer of a pool with pods is missing.
    missing: Mutex<HashMap<Key, Instant>>,
    /// Resources that the metrics show.
    shown: Mutex<HashMap<Key, BTreeSet<String>>>,
}

/// Settles every account.
pub fn settle_all(provider: &Provider) {
    let offers = provider.offers.all().into_iter().map(|(key, _)| key);
    let charged = provider.pods.all().into_iter().map(|(_, pod)| pod.account().offer());
    let all: BTreeSet<Key> = offers.chain(charged).collect();
    for key in all {
        if let Next::After(delay) = settle(provider, &key) {
            provider.queues.accounts.add_after(key, delay);
        }
    }
}

/// Settles the account of one offer. Says when it is to be looked at again.
pub fn settle(provider: &Provider, key: &Key) -> Next {
    let account = Account { tenant: key.namespace.clone(), pool: key.name.clone() };
    let offer = provider.offers.get(key);
    let ours = |namespace: &str| provider.is_mapped_for(namespace, &key.namespace);
    let charge = provider.charge(&key.namespace);
    let used = lock(&provider.ledger).charged(&account, charge, ours);
    show(provider, key, offer.as_ref().map(|offer| &offer.hard), &used);

    // Most of the time nothing is taken back, and the pods need not be looked at.
    let nothing_due = offer.as_ref().is_some_and(|offer| offer.withdrawal.is_none() && offer.reclaim.is_none());
    let pods = if nothing_due { Vec::new() } else { charged_pods(provider, &account, charge) };
    let missing = {
        let mut missing = lock(&provider.accounts.missing);
        if offer.is_some() || pods.is_empty() {
            missing.remove(key);
            Duration::ZERO
        } else {
            missing.entry(key.clone()).or_insert_with(Instant::now).elapsed()
        }
    };
    let pool = offer.as_deref().map_or(Pool::Missing(missing), Pool::Offered);
    let plan = plan(&key.name, pool, &pods, Timestamp::now());
    let before = {
        let mut all = lock(&provider.accounts.ending);
        let before = all.remove(key).unwrap_or_default();
        if !plan.ending.is_empty() {
            all.insert(key.clone(), plan.ending.clone());
        }
        before
    };
    let changed = before.keys().chain(plan.ending.keys()).filter(|shadow| before.get(*shadow) != plan.ending.get(*shadow));
    for shadow in changed.cloned().collect::<BTreeSet<_>>() {
        tracing::info!(%shadow, pool = key.name, why = plan.ending.get(&shadow), "what is taken back of a consumer changed");
        provider.queues.shadows.add(shadow);
    }
    plan.again.map_or(Next::OnChange, Next::After)
}

impl Provider {
    /// Why the pod of this shadow pod is to end, if its room is taken back.
    pub(super) fn reclaim_of(&self, shadow: &Key, pool: &str) -> Option<String> {
        let offer = Key::new(shadow.namespace.clone(), pool);
        lock(&self.accounts.ending).get(&offer)?.get(shadow).cloned()
    }
}

/// The pods that are charged to an account. Those without a shadow pod end anyway.
fn charged_pods(provider: &Provider, account: &Account, charge: Charge) -> Vec<Charged> {
    let pods = provider.pods.all().into_iter().map(|(_, pod)| pod);
    let charged = pods.filter(|pod| pod.counts() && pod.account() == *account);
    let ours = charged.filter(|pod| provider.is_mapped_for(&pod.key.namespace, &account.tenant));
    ours.filter_map(|pod| {
        let key = pod.shadow_key();
        let shadow = provider.shadows.get(&key)?;
        Some(Charged {
            turn: shadow.turn(&key.name),
            shadow: key,
            amounts: pod.charge.charged(charge).clone(),
            // One that takes its time is as good as staying.
            leaving: pod.deletion_grace.is_some_and(|grace| grace <= super::lifecycle::LONGEST_GRACE) || shadow.deleted,
        })
    })
    .collect()
}

type Labels = [(&'static str, String); 3];
type Amounts = Family<Labels, Gauge<f64, AtomicU64>>;

fn gauges() -> &'static (Amounts, Amounts) {
    static GAUGES: OnceLock<(Amounts, Amounts)> = OnceLock::new();
    GAUGES.get_or_init(|| {
        let offered = "How much of a resource is offered to a consumer as a pool, in cores, bytes or pieces";
        let charged = "How much of that is charged for the consumer's unfinished pods";
        (
            metrics::register("pool_offered", offered, Amounts::default()),
            metrics::register("pool_charged", charged, Amounts::default()),
        )
    })
}

/// Shows what is charged beside what is offered, and forgets resources of which there is neither any more.
fn show(provider: &Provider, key: &Key, available: Option<&ResourceList>, used: &ResourceList) {
    let consumer = provider.tenant(&key.namespace).map(|tenant| tenant.consumer.to_string());
    let mut all = lock(&provider.accounts.shown);
    let before = all.remove(key).unwrap_or_default();
    // Of a tenant that is gone nothing is shown, and its name has the consumer's ID at its end.
    let (id, amounts) = match &consumer {
        Some(consumer) => (consumer.clone(), amounts(available, used)),
        None => (key.namespace.rsplit('-').next().unwrap_or_default().to_owned(), BTreeMap::new()),
    };
    let (offered, charged) = gauges();
    let labels =
        |resource: &str| -> Labels { [("consumer", id.clone()), ("pool", key.name.clone()), ("resource", resource.to_owned())] };
    for gone in before.iter().filter(|resource| !amounts.contains_key(*resource)) {
        offered.remove(&labels(gone));
        charged.remove(&labels(gone));
    }
    for (resource, (available, used)) in &amounts {
        offered.get_or_create(&labels(resource)).set(*available);
        charged.get_or_create(&labels(resource)).set(*used);
    }
    if !amounts.is_empty() {
        all.insert(key.clone(), amounts.into_keys().collect());
    }
}

/// What is offered and what is charged of each resource of which there is either.
fn amounts(offered: Option<&ResourceList>, charged: &ResourceList) -> BTreeMap<String, (f64, f64)> {
    let none = ResourceList::new();
    let offered = offered.unwrap_or(&none);
    let used = charged.iter().filter(|(_, amount)| !amount.is_zero()).map(|(name, _)| name);
    let names: BTreeSet<&str> = offered.names().chain(used).collect();
    names.into_iter().map(|name| (name.to_owned(), (number(offered.get(name)), number(charged.get(name))))).collect()
}

/// In cores, bytes or pieces. Metrics are floating-point numbers anyway.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
fn number(quantity: Quantity) -> f64 {
    quantity.nanos() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> ResourceList {
        text.split(',').map(|part| part.split_once('=').unwrap()).map(|(name, amount)| (name, amount.parse().unwrap())).collect()
    }

    #[test]
    fn each_resource_shows_what_is_charged_beside_what_is_offered() {
        let shown = amounts(Some(&list("cpu=2,memory=1Gi")), &list("cpu=1500m,pods=1,nvidia.com/gpu=0"));
        let expected = [("cpu", (2.0, 1.5)), ("memory", (1_073_741_824.0, 0.0)), ("pods", (0.0, 1.0))];
        assert_eq!(shown, expected.map(|(name, amounts)| (name.to_owned(), amounts)).into());
    }

    #[test]
    fn what_is_charged_without_an_offer_is_still_shown() {
        assert_eq!(amounts(None, &list("cpu=1")), [("cpu".to_owned(), (0.0, 1.0))].into());
        assert!(amounts(None, &ResourceList::new()).is_empty());
    }
}
