//! Prices in offers.

use super::*;
use proptest::{collection::vec, prelude::*};

use crate::decide::publish::MIN_REWRITE_INTERVAL;
use liqo_api::PriceList;

/// All cpu and pods for everybody, at this price policy.
fn selling(prices: &Value) -> [(&'static str, i32, Value); 1] {
    [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "prices": prices } }),
    )]
}

#[expect(clippy::unnecessary_wraps, reason = "an offer may have no prices")]
fn eur(cpu: &str) -> Option<PriceList> {
    Some(serde_json::from_value(json!({ "currency": "EUR", "rates": { "cpu": cpu } })).unwrap())
}

impl ProviderSnapshot {
    /// Consumer and prices of each write.
    fn prices(&self) -> Vec<(ClusterId, Option<PriceList>)> {
        self.plan()
            .writes
            .into_iter()
            .map(|write| (write.consumer, write.spec.prices))
            .collect()
    }

    /// The prices of the offers of the default pool.
    fn published(&self, consumer: u8) -> Option<PriceList> {
        let namespace = tenant_namespace(&cluster(consumer));
        self.offers
            .iter()
            .find(|(key, _)| key.namespace == namespace)
            .and_then(|(_, offer)| offer.spec.prices.clone())
    }

    /// The last write of the consumer's offer was just now.
    fn just_written(mut self, consumer: u8) -> Self {
        let namespace = tenant_namespace(&cluster(consumer));
        let (_, offer) = self
            .offers
            .iter()
            .find(|(key, _)| key.namespace == namespace)
            .unwrap();
        let written = RecentWrite {
            at: Instant::now(),
            hard: offer.spec.resource_quota.hard.clone(),
            prices: offer.spec.prices.clone(),
            is_early: false,
        };
        self.recent_writes
            .insert((format!("tenant-{consumer}"), DEFAULT_POOL.into()), written);
        self
    }
}

#[test]
fn without_prices_in_the_policy_offers_have_none() {
    assert_eq!(milan().asks(ROME, "").prices(), [(cluster(ROME), None)]);
}

#[test]
fn all_consumers_of_a_policy_pay_the_same_and_another_policy_has_its_own_prices() {
    let turin = json!({ "peers": { "clusterIDs": [cluster(TURIN)] }, "provide": { "prices": { "currency": "EUR", "rates": { "cpu": "0.02" } } } });
    let [default] = selling(&json!({ "currency": "EUR", "rates": { "cpu": "0.04" } }));
    let snapshot = milan()
        .asks(ROME, "")
        .asks(TURIN, "")
        .asks(7, "")
        .under(&[default, ("turin", 1, turin)])
        .settled();
    assert_eq!(
        (
            snapshot.published(ROME),
            snapshot.published(TURIN),
            snapshot.published(7)
        ),
        (eur("0.04"), eur("0.02"), eur("0.04"))
    );
    assert_eq!(snapshot.prices(), []);
}

#[test]
fn new_rates_rewrite_the_offer_although_its_amounts_stay() {
    let before = milan()
        .asks(ROME, "")
        .under(&selling(
            &json!({ "currency": "EUR", "rates": { "cpu": "0.04" } }),
        ))
        .settled();
    let dearer = before.under(&selling(
        &json!({ "currency": "EUR", "rates": { "cpu": "0.05" } }),
    ));
    assert_eq!(dearer.prices(), [(cluster(ROME), eur("0.05"))]);
    let free =
        dearer
            .settled()
            .under(&[("default", 0, json!({ "provide": { "percentage": 100 } }))]);
    assert_eq!(free.prices(), [(cluster(ROME), None)]);
}

#[test]
fn the_schedule_changes_the_prices_on_time() {
    let night = json!({ "currency": "EUR", "rates": { "cpu": "0.04" }, "schedule": [{ "from": "22:00", "to": "06:00", "percentage": 50 }] });
    // 21:59:30 on the first of January 1970.
    let snapshot = milan()
        .asks(ROME, "")
        .under(&selling(&night))
        .at(22 * 3600 - 30)
        .settled();
    assert_eq!(snapshot.published(ROME), eur("0.04"));
    assert_eq!(snapshot.plan().requeue_after, Some(Duration::from_secs(30)));
    let snapshot = snapshot.at(22 * 3600);
    assert_eq!(snapshot.prices(), [(cluster(ROME), eur("0.02"))]);
    assert_eq!(
        snapshot.settled().plan().requeue_after,
        Some(Duration::from_hours(8))
    );
}

/// Dearer when more than 80 per cent of the 10 cores are in use.
fn by_utilization() -> Value {
    json!({ "currency": "EUR", "rates": { "cpu": "0.04" }, "utilization": [{ "above": 80, "percentage": 150 }] })
}

#[test]
fn the_utilization_counts_the_pods_of_all_consumers_but_not_own_ones() {
    let snapshot = milan()
        .asks(ROME, "")
        .asks(TURIN, "")
        .under(&selling(&by_utilization()))
        .settled();
    let own = snapshot.clone().pod("default", None, "cpu=9500m");
    assert!(
        own.prices()
            .iter()
            .all(|(_, prices)| *prices == eur("0.04")),
        "own pods are not sold"
    );
    let busy = snapshot
        .pod("mapped-1", Some(ROME), "cpu=5")
        .pod("mapped-2", Some(TURIN), "cpu=4")
        .settled();
    assert_eq!(
        (busy.published(ROME), busy.published(TURIN)),
        (eur("0.06"), eur("0.06"))
    );
    let fewer = |cpu: &str| {
        ProviderSnapshot {
            pods: Arc::default(),
            ..busy.clone()
        }
        .pod("mapped-1", Some(ROME), cpu)
        .settled()
        .published(ROME)
    };
    assert_eq!(
        (fewer("cpu=7600m"), fewer("cpu=7500m")),
        (eur("0.06"), eur("0.04")),
        "a step ends 5 points lower"
    );
    // A consumer that comes now sees the same prices as the others.
    let third = ProviderSnapshot {
        pods: Arc::default(),
        ..busy
    }
    .pod("mapped-1", Some(ROME), "cpu=7600m")
    .asks(7, "")
    .settled();
    assert_eq!(third.published(7), eur("0.06"));
}

#[test]
fn prices_change_no_more_often_than_every_ten_seconds_but_with_the_policy_at_once() {
    let idle = milan()
        .asks(ROME, "")
        .under(&selling(&by_utilization()))
        .settled()
        .just_written(ROME);
    let busy = idle.clone().pod("mapped-1", Some(ROME), "cpu=9");
    let plan = busy.plan();
    assert_eq!(plan.writes, []);
    assert!(
        plan.requeue_after
            .is_some_and(|after| after <= MIN_REWRITE_INTERVAL)
    );
    // An offer that has to shrink for another consumer keeps its prices as well.
    let shrinks = busy.clone().asks(TURIN, "");
    let of_rome = |snapshot: &ProviderSnapshot| {
        snapshot
            .prices()
            .into_iter()
            .find(|(consumer, _)| *consumer == cluster(ROME))
            .unwrap()
            .1
    };
    assert_eq!(of_rome(&shrinks), eur("0.04"));
    assert_eq!(
        ProviderSnapshot {
            recent_writes: HashMap::new(),
            ..busy.clone()
        }
        .prices(),
        [(cluster(ROME), eur("0.06"))]
    );
    let edited = busy.under(&[(
        "other",
        0,
        json!({ "provide": { "percentage": 100, "prices": by_utilization() } }),
    )]);
    assert_eq!(edited.prices(), [(cluster(ROME), eur("0.06"))]);
}

#[test]
fn prices_of_a_plugin_replace_those_of_the_policy() {
    let source = json!({ "plugin": { "address": "p.liqo:6001" } });
    let prices = json!({ "currency": "EUR", "rates": { "cpu": "0.04" }, "schedule": [{ "from": "00:00", "to": "00:00", "percentage": 50 }] });
    let mut snapshot = milan().asks(ROME, "").under(&[(
        "default",
        0,
        json!({ "provide": { "source": source, "prices": prices } }),
    )]);
    let pools = BTreeMap::from([
        ("default".to_owned(), list("cpu=2")),
        ("gold".to_owned(), list("cpu=1")),
    ]);
    let of_gold = BTreeMap::from([("gold".to_owned(), eur("1").unwrap())]);
    let answer = PluginAnswer {
        pools: Some(pools),
        prices: of_gold,
        ..PluginAnswer::default()
    };
    snapshot.plugin_answers.insert(cluster(ROME), answer);
    let found: Vec<_> = snapshot
        .plan()
        .writes
        .into_iter()
        .map(|write| (write.spec.pool, write.spec.prices))
        .collect();
    assert_eq!(
        found,
        [
            ("default".to_owned(), eur("0.02")),
            ("gold".to_owned(), eur("0.5"))
        ]
    );
    // After a restart, the plugin has not answered yet.
    let restarted = ProviderSnapshot {
        plugin_answers: HashMap::new(),
        ..snapshot.settled()
    };
    assert_eq!(restarted.prices(), []);
}

#[test]
fn a_withdrawn_offer_keeps_its_prices() {
    let snapshot = milan()
        .asks(ROME, "")
        .under(&selling(
            &json!({ "currency": "EUR", "rates": { "cpu": "0.04" } }),
        ))
        .settled();
    let withdrawn = snapshot.under(&[]);
    assert_eq!(withdrawn.prices(), [(cluster(ROME), eur("0.04"))]);
}

impl ProviderSnapshot {
    /// What the controller does at this time: it decides, writes, and remembers what it wrote.
    fn reconcile(mut self, now: Instant) -> Self {
        self.recent_writes
            .retain(|_, write| now.saturating_duration_since(write.at) < MIN_REWRITE_INTERVAL);
        let plan = decide_offers(&self, now);
        for OfferWrite {
            namespace_uid,
            spec,
            ..
        } in &plan.writes
        {
            let written = RecentWrite {
                at: now,
                hard: spec.resource_quota.hard.clone(),
                prices: spec.prices.clone(),
                is_early: false,
            };
            self.recent_writes
                .insert((namespace_uid.clone(), spec.pool.clone()), written);
        }
        self.after(plan)
    }
}

proptest! {
    /// Whatever pods come and go, whatever a plugin answers, and whoever makes room for another
    /// consumer.
    #[test]
    fn no_price_changes_twice_within_ten_seconds(
        events in vec((0..=10_u8, 0..8000_u64, any::<bool>()), 1..40),
        has_plugin in any::<bool>(),
    ) {
        let source = if has_plugin { json!({ "plugin": { "address": "p.liqo:6001" } }) } else { json!({}) };
        let provide = json!({ "percentage": 100, "source": source, "prices": by_utilization() });
        let mut snapshot = milan().asks(ROME, "").under(&[("default", 0, json!({ "provide": provide }))]);
        let (mut now, mut changed) = (Instant::now(), None);
        for (used, millis, more) in events {
            now += Duration::from_millis(millis);
            snapshot.pods = Arc::default();
            snapshot = snapshot.pod("mapped-1", Some(ROME), &format!("cpu={used}, pods=1"));
            if has_plugin {
                let pools = BTreeMap::from([("default".to_owned(), list(if more { "cpu=12" } else { "cpu=11" }))]);
                snapshot.plugin_answers.insert(cluster(ROME), PluginAnswer { pools: Some(pools), ..PluginAnswer::default() });
            } else if more && snapshot.requests.len() == 1 {
                snapshot = snapshot.asks(TURIN, "");
            }
            let before = snapshot.published(ROME);
            snapshot = snapshot.reconcile(now);
            if snapshot.published(ROME) != before {
                prop_assert!(changed.is_none_or(|last| now.saturating_duration_since(last) >= MIN_REWRITE_INTERVAL));
                changed = Some(now);
            }
        }
        // When nothing happens any more, the prices settle.
        for _ in 0..2 {
            now += MIN_REWRITE_INTERVAL;
            snapshot = snapshot.reconcile(now);
        }
        now += MIN_REWRITE_INTERVAL;
        let (settled, requeue) = (snapshot.published(ROME), decide_offers(&snapshot.clone().reconcile(now), now).requeue_after);
        prop_assert_eq!(snapshot.reconcile(now).published(ROME), settled);
        prop_assert!(has_plugin || requeue.is_none(), "{requeue:?}");
    }
}
