//! How well a pod is treated when a node runs out of memory.

use liqo_quantity::Quantity;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

type Amounts = BTreeMap<&'static str, i128>;

/// `BestEffort` without amounts, `Guaranteed` where every container's limits equal its requests,
/// else `Burstable`.
pub fn quality_of_service(pod: &Value) -> &'static str {
    let spec = &pod["spec"];
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut guaranteed = true;
    let mut add = |resources: &Value| {
        sum(&mut requests, &resources["requests"]);
        guaranteed &= sum(&mut limits, &resources["limits"]) == 2;
    };
    if let Some(resources) = spec.get("resources") {
        add(resources);
    } else {
        let lists = ["containers", "initContainers"];
        let containers = lists
            .iter()
            .filter_map(|list| spec[*list].as_array())
            .flatten();
        containers.for_each(|container| add(&container["resources"]));
    }
    match (
        requests.is_empty() && limits.is_empty(),
        guaranteed && requests == limits,
    ) {
        (true, _) => "BestEffort",
        (_, true) => "Guaranteed",
        _ => "Burstable",
    }
}

/// Adds the amounts that count, and tells how many they are.
fn sum(into: &mut Amounts, amounts: &Value) -> usize {
    let empty = Map::new();
    let amounts = amounts.as_object().unwrap_or(&empty);
    let counted = ["cpu", "memory"].into_iter().filter_map(|name| {
        let nanos = amounts
            .get(name)?
            .as_str()?
            .parse::<Quantity>()
            .ok()?
            .nanos();
        (nanos > 0).then_some((name, nanos))
    });
    counted
        .map(|(name, nanos)| *into.entry(name).or_default() += nanos)
        .count()
}
