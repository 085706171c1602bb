//! What a resource plugin's answer means: which pools are offered.

use std::collections::BTreeMap;

use liqo_api::{DEFAULT_POOL, ResourceList};
use liqo_resource_plugin::Pool;

use super::pools::pool_name;

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
    use super::*;
    use crate::tests::list;

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
