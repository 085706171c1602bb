//! What a resource plugin's answer means: which pools are offered. And when the plugin is asked again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use liqo_api::{DEFAULT_POOL, PluginSource, ResourceList};
use liqo_resource_plugin::Pool;

use super::pools::pool_name;

/// A plugin that tells of changes is asked about the same consumer no more often: each answer may rewrite an offer.
const PACE: Duration = Duration::from_secs(1);

/// How long a plugin that tells of a change is not asked yet.
pub fn pause(asked: Option<Instant>, now: Instant) -> Duration {
    asked.map_or(Duration::ZERO, |asked| PACE.saturating_sub(now.saturating_duration_since(asked)))
}

/// What is to be done about one cluster.
#[derive(Debug, PartialEq)]
pub enum Task<'a> {
    /// Ask this plugin what it is offered.
    Ask(&'a PluginSource),
    /// Nothing: it is a consumer, and no plugin decides about it.
    Nothing,
    /// The peering has ended: tell all that were asked about it.
    Tell(&'a [PluginSource]),
}

/// What is to be done about a cluster. `wanted` is there as long as it is a consumer; plugins hear of the end of a peering,
/// not of a policy that asks another one, or none.
pub fn task<'a>(wanted: Option<&'a Option<PluginSource>>, known: &'a [PluginSource]) -> Task<'a> {
    match wanted {
        Some(Some(source)) => Task::Ask(source),
        Some(None) => Task::Nothing,
        None => Task::Tell(known),
    }
}

/// Remembers that a plugin is asked about a cluster. Whoever answers at an address is told of the end once, whatever else was
/// set about it before.
pub fn remember(known: &mut Vec<PluginSource>, source: &PluginSource) {
    if !known.contains(source) {
        known.retain(|other| other.address != source.address);
        known.push(source.clone());
    }
}

/// The pools of an answer by name, or what is wrong with it. One that has no name gets the usual one, and one that has only a
/// prefix the name of this cluster after it.
pub fn pools(answer: Vec<Pool>, own_name: &str) -> Result<BTreeMap<String, ResourceList>, String> {
    let mut pools = BTreeMap::new();
    for pool in answer {
        let name = match (pool.name, pool.prefix) {
            (Some(name), _) => name,
            (None, Some(prefix)) => pool_name(&format!("{prefix}-{own_name}")),
            (None, None) => DEFAULT_POOL.to_owned(),
        };
        if pools.insert(name.clone(), pool.resources).is_some() {
            return Err(format!("it offers two pools named {name}"));
        }
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use liqo_api::PluginGeneration;

    use super::*;
    use crate::tests::list;

    #[test]
    fn a_plugin_is_asked_at_once_but_not_twice_within_a_second() {
        let asked = Instant::now();
        let after = |millis| pause(Some(asked), asked + Duration::from_millis(millis));
        assert_eq!(pause(None, asked), Duration::ZERO);
        assert_eq!((after(0), after(300)), (Duration::from_secs(1), Duration::from_millis(700)));
        assert_eq!((after(1000), after(90_000)), (Duration::ZERO, Duration::ZERO));
    }

    fn at(address: &str) -> PluginSource {
        PluginSource { address: address.to_owned(), generation: PluginGeneration::P3, tls: None }
    }

    #[test]
    fn plugins_hear_of_the_end_of_a_peering_and_not_of_another_policy() {
        let (mut known, first, second) = (Vec::new(), Some(at("first:1")), Some(at("second:1")));
        for source in [&first, &second] {
            assert_eq!(task(Some(source), &known), Task::Ask(source.as_ref().unwrap()));
            remember(&mut known, source.as_ref().unwrap());
        }
        assert_eq!(task(Some(&None), &known), Task::Nothing);
        assert_eq!(task(None, &known), Task::Tell(&[at("first:1"), at("second:1")]), "also one that is not asked any more");
    }

    #[test]
    fn whoever_answers_at_an_address_is_known_once_and_as_it_was_set_last() {
        let newer = PluginSource { generation: PluginGeneration::P1, ..at("first:1") };
        let mut known = vec![at("first:1"), at("second:1")];
        remember(&mut known, &at("first:1"));
        assert_eq!(known, [at("first:1"), at("second:1")]);
        remember(&mut known, &newer);
        assert_eq!(known, [at("second:1"), newer]);
    }

    #[test]
    fn every_pool_gets_a_name() {
        let prefixed = Pool { prefix: Some("gpu".into()), resources: list("cpu=2"), ..Pool::default() };
        let answer = vec![Pool::unnamed(list("cpu=1")), prefixed, Pool::named("gold", list("cpu=3"))];
        let found: Vec<_> = pools(answer, "milan").unwrap().into_keys().collect();
        assert_eq!(found, ["default", "gold", "gpu-milan"]);
        assert!(pools(Vec::new(), "milan").unwrap().is_empty());
    }

    #[test]
    fn two_pools_of_one_name_are_a_mistake() {
        let answer = vec![Pool::unnamed(list("cpu=1")), Pool::named("default", list("cpu=3"))];
        assert!(pools(answer, "milan").unwrap_err().contains("two pools named default"));
    }
}
