//! Decides when a resource plugin is called, and which pools its answer offers.

use std::{collections::BTreeMap, time::Duration};

use liqo_api::{DEFAULT_POOL, PluginSource, PriceList, ResourceList};
use liqo_resource_plugin::{Pool, Prices};
use tokio::time::Instant;

use super::pools::pool_name;

/// Minimum time between two calls about one consumer, because each answer may rewrite an offer.
const MIN_CALL_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before a plugin that reports a change is asked.
pub fn pause_before_call(asked: Option<Instant>, now: Instant) -> Duration {
    asked.map_or(Duration::ZERO, |asked| {
        MIN_CALL_INTERVAL.saturating_sub(now.saturating_duration_since(asked))
    })
}

/// The next call about one cluster.
#[derive(Debug, PartialEq)]
pub enum PluginTask<'a> {
    /// Ask this plugin for the cluster's pools.
    Ask(&'a PluginSource),
    /// The cluster is a consumer, and no plugin decides about it.
    Nothing,
    /// The peering has ended: tell all plugins that were asked about it.
    Remove(&'a [PluginSource]),
}

/// The next call about a cluster. `wanted` is `Some` while the cluster is a consumer. `recorded`
/// are the plugins that were asked about it: they hear of the end of the peering, not of a policy
/// that names another plugin or none.
pub fn next_task<'a>(
    wanted: Option<&'a Option<PluginSource>>,
    recorded: &'a [PluginSource],
) -> PluginTask<'a> {
    match wanted {
        Some(Some(source)) => PluginTask::Ask(source),
        Some(None) => PluginTask::Nothing,
        None => PluginTask::Remove(recorded),
    }
}

/// Records that a plugin is asked about a cluster. Keeps one entry for each address, so that the
/// plugin there hears of the end once, even if its other settings changed.
pub fn record_source(recorded: &mut Vec<PluginSource>, source: &PluginSource) {
    if !recorded.contains(source) {
        recorded.retain(|other| other.address != source.address);
        recorded.push(source.clone());
    }
}

/// The pools of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedPools {
    /// The amounts, by pool.
    pub amounts: BTreeMap<String, ResourceList>,
    /// The prices, by pool, if the plugin gives any.
    pub prices: BTreeMap<String, PriceList>,
    /// Number of clusters that borrowed pools come through, by pool. Other pools are absent.
    pub hops: BTreeMap<String, u8>,
}

/// The pools of an answer by name, or the reason why the answer is invalid. A pool without a name
/// becomes the default pool; a pool with a prefix gets the name of this cluster after it.
pub fn named_pools(answer: Vec<Pool>, own_name: &str) -> Result<NamedPools, String> {
    let mut pools = NamedPools::default();
    for pool in answer {
        let name = match (pool.name, pool.prefix) {
            (Some(name), _) => name,
            (None, Some(prefix)) => pool_name(&format!("{prefix}-{own_name}")),
            (None, None) => DEFAULT_POOL.to_owned(),
        };
        if let Some(Prices { currency, rates }) = pool.prices {
            pools
                .prices
                .insert(name.clone(), PriceList { currency, rates });
        }
        if pool.hops > 1 {
            pools.hops.insert(name.clone(), pool.hops);
        }
        if pools.amounts.insert(name.clone(), pool.resources).is_some() {
            return Err(format!("it offers two pools named {name}"));
        }
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use liqo_api::{PluginGeneration, PluginOvercommit};

    use super::*;
    use crate::tests::list;

    #[test]
    fn a_plugin_is_asked_at_once_but_not_twice_within_a_second() {
        let asked = Instant::now();
        let after = |millis| pause_before_call(Some(asked), asked + Duration::from_millis(millis));
        assert_eq!(pause_before_call(None, asked), Duration::ZERO);
        assert_eq!(
            (after(0), after(300)),
            (Duration::from_secs(1), Duration::from_millis(700))
        );
        assert_eq!(
            (after(1000), after(90_000)),
            (Duration::ZERO, Duration::ZERO)
        );
    }

    fn at(address: &str) -> PluginSource {
        let (generation, overcommit) = (PluginGeneration::P3, PluginOvercommit::default());
        PluginSource {
            address: address.to_owned(),
            generation,
            tls: None,
            overcommit,
        }
    }

    #[test]
    fn plugins_hear_of_the_end_of_a_peering_but_not_of_another_policy() {
        let (mut recorded, first, second) = (Vec::new(), Some(at("first:1")), Some(at("second:1")));
        for source in [&first, &second] {
            assert_eq!(
                next_task(Some(source), &recorded),
                PluginTask::Ask(source.as_ref().unwrap())
            );
            record_source(&mut recorded, source.as_ref().unwrap());
        }
        assert_eq!(next_task(Some(&None), &recorded), PluginTask::Nothing);
        assert_eq!(
            next_task(None, &recorded),
            PluginTask::Remove(&[at("first:1"), at("second:1")]),
            "also the former plugin"
        );
    }

    #[test]
    fn each_address_is_recorded_once_with_the_latest_settings() {
        let newer = PluginSource {
            generation: PluginGeneration::P1,
            ..at("first:1")
        };
        let mut recorded = vec![at("first:1"), at("second:1")];
        record_source(&mut recorded, &at("first:1"));
        assert_eq!(recorded, [at("first:1"), at("second:1")]);
        record_source(&mut recorded, &newer);
        assert_eq!(recorded, [at("second:1"), newer]);
    }

    #[test]
    fn every_pool_gets_a_name() {
        let prefixed = Pool {
            prefix: Some("gpu".into()),
            resources: list("cpu=2"),
            ..Pool::default()
        };
        let answer = vec![
            Pool::unnamed(list("cpu=1")),
            prefixed,
            Pool::named("gold", list("cpu=3")),
        ];
        let found: Vec<_> = named_pools(answer, "milan")
            .unwrap()
            .amounts
            .into_keys()
            .collect();
        assert_eq!(found, ["default", "gold", "gpu-milan"]);
        assert_eq!(
            named_pools(Vec::new(), "milan").unwrap(),
            NamedPools::default()
        );
    }

    #[test]
    fn prices_go_with_the_name_of_their_pool() {
        let rates = [("cpu", "0.04".parse().unwrap())].into_iter().collect();
        let prefixed = Pool {
            prefix: Some("gpu".into()),
            ..Pool::unnamed(list("cpu=2"))
        };
        let prefixed = prefixed.at(Prices {
            currency: "EUR".into(),
            rates,
        });
        let found = named_pools(vec![Pool::unnamed(list("cpu=1")), prefixed], "milan").unwrap();
        assert_eq!(found.prices.keys().collect::<Vec<_>>(), ["gpu-milan"]);
        assert_eq!(found.prices["gpu-milan"].to_string(), "cpu=0.04 EUR");
    }

    #[test]
    fn borrowed_pools_are_told_from_others() {
        let through = |name: &str, hops| Pool {
            hops,
            ..Pool::named(name, list("cpu=1"))
        };
        let found = named_pools(
            vec![
                through("own", 1),
                through("far", 3),
                Pool::unnamed(list("cpu=1")),
            ],
            "milan",
        )
        .unwrap();
        assert_eq!(found.hops, BTreeMap::from([("far".to_owned(), 3)]));
    }

    #[test]
    fn two_pools_of_one_name_are_invalid() {
        let answer = vec![
            Pool::unnamed(list("cpu=1")),
            Pool::named("default", list("cpu=3")),
        ];
        assert!(
            named_pools(answer, "milan")
                .unwrap_err()
                .contains("two pools named default")
        );
    }
}
