//! The requests of a remote pod, and the amounts that it may use: the provider writes both into
//! every container, so that the ledger charges what the scheduler sees, and no pod uses much more
//! than it is charged.
//!
//! | resource | a container that says nothing requests | least request | limit, if it has none |
//! |---|---|---|---|
//! | cpu | 10m | 10m | none: a kernel shares it by requests |
//! | memory | 32Mi | 16Mi | a percentage of the request |
//! | ephemeral-storage | nothing | | a percentage of the request, and of 128Mi at least |
//!
//! A container that has such a limit itself requests at least what makes its limit this percentage
//! of it.
//!
//! The memory of an `emptyDir` of medium `Memory` counts as memory of the containers that write to
//! it, and the files of the others count as ephemeral storage of the pod. So both end at these
//! limits.

use std::collections::BTreeSet;

use liqo_quantity::Quantity;
use serde::Deserialize as _;
use serde_json::{Map, Value};

/// Name of a resource.
pub(crate) const MEMORY: &str = "memory";
/// Name of a resource: the files that a pod writes, and its logs.
pub(crate) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Minimum request from which the limit of ephemeral storage of a container is computed.
const DEFAULT_STORAGE: &str = "128Mi";

/// The lists of containers that may have requests.
const LISTS: [&str; 2] = ["containers", "initContainers"];

/// The provider's rules for requests and limits.
#[derive(Debug, Clone, PartialEq)]
pub struct AmountRules {
    /// Requests of containers that have none.
    pub default_requests: Vec<(String, String)>,
    /// Smaller requests are raised to these, so that no pod is free.
    pub minimum_requests: Vec<(String, String)>,
    /// Resources of which every container gets a limit.
    pub limited: Vec<&'static str>,
    /// Limit of a container that has none, in percent of its request; with 0 it gets none.
    pub limit_percentage: u32,
}

impl Default for AmountRules {
    fn default() -> Self {
        Self {
            default_requests: vec![
                ("cpu".to_owned(), "10m".to_owned()),
                (MEMORY.to_owned(), "32Mi".to_owned()),
            ],
            minimum_requests: vec![
                ("cpu".to_owned(), "10m".to_owned()),
                (MEMORY.to_owned(), "16Mi".to_owned()),
            ],
            limited: vec![MEMORY],
            limit_percentage: 800,
        }
    }
}

impl AmountRules {
    /// A limit is never below its request.
    fn effective_limit_percentage(&self) -> u32 {
        self.limit_percentage.max(100)
    }
}

/// Completes requests and limits, of a new pod and of one that is resized.
pub(crate) fn complete_amounts(spec: &mut Map<String, Value>, amounts: &AmountRules) {
    request_explicitly(spec, amounts);
    limit_containers(spec, amounts);
}

/// Sets the requests of every container explicitly, whatever the defaults of the namespace are.
///
/// As in Kubernetes, a limit without a request is also the request. If the pod as a whole has
/// requests, the containers get none: the sum of theirs may not exceed the pod's.
///
/// To a kubelet a limit of zero is no limit, so it is removed here: no request could be valid with
/// it.
fn request_explicitly(spec: &mut Map<String, Value>, amounts: &AmountRules) {
    let mut whole_pod = BTreeSet::new();
    if spec.contains_key("resources") {
        edit_object(spec, "resources", |resources| {
            for (resource, _) in &amounts.default_requests {
                drop_zero_limit(resources, resource);
                if let Some(amount) = amount_value(resources, "requests", resource)
                    .or_else(|| amount_value(resources, "limits", resource))
                {
                    whole_pod.insert(resource.clone());
                    edit_object(resources, "requests", |requests| {
                        _ = requests.insert(resource.clone(), amount);
                    });
                    raise_request(resources, resource, amounts);
                }
            }
        });
    }
    for container in containers_mut(spec) {
        edit_object(container, "resources", |resources| {
            for (resource, default) in &amounts.default_requests {
                drop_zero_limit(resources, resource);
                let otherwise = if whole_pod.contains(resource) {
                    "0"
                } else {
                    default
                };
                let wanted =
                    amount_value(resources, "limits", resource).unwrap_or_else(|| otherwise.into());
                edit_object(resources, "requests", |requests| {
                    _ = requests.entry(resource).or_insert(wanted);
                });
                if !whole_pod.contains(resource) {
                    raise_request(resources, resource, amounts);
                }
            }
        });
    }
}

/// Raises a request that is smaller than the minimum to the minimum, or to the limit if that is
/// smaller.
fn raise_request(resources: &mut Map<String, Value>, resource: &str, amounts: &AmountRules) {
    let minimum = amounts
        .minimum_requests
        .iter()
        .find(|(name, _)| name == resource);
    let Some(minimum) = minimum.and_then(|(_, amount)| amount.parse::<Quantity>().ok()) else {
        return;
    };
    let limit = parse_amount(resources, "limits", resource);
    let least = limit.map_or(minimum, |limit| limit.min(minimum));
    // The API server refuses what is no quantity, and the rules of admission what is negative.
    if parse_amount(resources, "requests", resource)
        .is_some_and(|asked| !asked.is_negative() && asked < least)
    {
        edit_object(resources, "requests", |requests| {
            _ = requests.insert(resource.to_owned(), least.to_string().into());
        });
    }
}

/// Gives a limit to each container that has none, and raises requests that are smaller than the
/// same percentage says for a limit of the pod's own. Where the pod as a whole has a request, this
/// happens for the pod.
fn limit_containers(spec: &mut Map<String, Value>, amounts: &AmountRules) {
    if amounts.limit_percentage == 0 {
        return;
    }
    for &resource in &amounts.limited {
        let largest = containers_mut(spec)
            .filter_map(|one| parse_amount(one.get("resources")?.as_object()?, "limits", resource))
            .max();
        let whole = spec.get_mut("resources").and_then(Value::as_object_mut);
        if let Some(whole) =
            whole.filter(|whole| parse_amount(whole, "requests", resource).is_some())
        {
            // The limit of a container may not exceed the pod's.
            balance_limit(
                whole,
                resource,
                largest.unwrap_or_default(),
                Quantity::ZERO,
                amounts,
            );
            continue;
        }
        let free = if resource == EPHEMERAL_STORAGE {
            DEFAULT_STORAGE.parse().unwrap_or_default()
        } else {
            Quantity::ZERO
        };
        let free = scaled_amount(free, amounts.effective_limit_percentage(), 100);
        for container in containers_mut(spec) {
            edit_object(container, "resources", |resources| {
                balance_limit(resources, resource, free, free, amounts);
            });
        }
    }
}

/// Sets the limit to the percentage of the request, or to `least` if that is more, unless there is
/// one. Then raises the request if the limit is more than the percentage of it; a limit up to
/// `free` needs no request.
fn balance_limit(
    resources: &mut Map<String, Value>,
    resource: &str,
    least: Quantity,
    free: Quantity,
    amounts: &AmountRules,
) {
    let Some(asked) =
        parse_amount(resources, "requests", resource).filter(|asked| !asked.is_negative())
    else {
        return;
    };
    let own = amount_value(resources, "limits", resource);
    let default = scaled_amount(asked, amounts.effective_limit_percentage(), 100).max(least);
    if own.is_none() && default > Quantity::ZERO {
        edit_object(resources, "limits", |limits| {
            _ = limits.insert(resource.to_owned(), default.to_string().into());
        });
    }
    // Otherwise a small request and a large limit would be as good as no limit.
    let Some(limit) = parse_amount(resources, "limits", resource).filter(|limit| *limit > free)
    else {
        return;
    };
    let needed = scaled_amount(limit, 100, amounts.effective_limit_percentage());
    if asked < needed {
        edit_object(resources, "requests", |requests| {
            _ = requests.insert(resource.to_owned(), needed.to_string().into());
        });
    }
}

/// An amount times a fraction, in whole units.
fn scaled_amount(amount: Quantity, numerator: u32, denominator: u32) -> Quantity {
    let nanos = amount.nanos().saturating_mul(numerator.into()) / i128::from(denominator);
    let unit = Quantity::from_units(1).nanos();
    Quantity::from_nanos(nanos / unit * unit, amount.format())
}

fn containers_mut(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let lists = spec
        .iter_mut()
        .filter(|(field, _)| LISTS.contains(&field.as_str()));
    lists
        .filter_map(|(_, list)| list.as_array_mut())
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// Removes a limit of zero, and the request of zero that the home API server derives from it:
/// together they mean nothing.
fn drop_zero_limit(resources: &mut Map<String, Value>, resource: &str) {
    if parse_amount(resources, "limits", resource) != Some(Quantity::ZERO) {
        return;
    }
    let request = parse_amount(resources, "requests", resource);
    let kinds: &[&str] = if request == Some(Quantity::ZERO) {
        &["limits", "requests"]
    } else {
        &["limits"]
    };
    for kind in kinds {
        if let Some(amounts) = resources.get_mut(*kind).and_then(Value::as_object_mut) {
            amounts.remove(resource);
        }
    }
}

/// The amount of one resource in the requests or limits.
fn amount_value(resources: &Map<String, Value>, kind: &str, resource: &str) -> Option<Value> {
    resources
        .get(kind)?
        .get(resource)
        .filter(|amount| !amount.is_null())
        .cloned()
}

fn parse_amount(resources: &Map<String, Value>, kind: &str, resource: &str) -> Option<Quantity> {
    Quantity::deserialize(resources.get(kind)?.get(resource)?).ok()
}

/// Changes the object at a key; creates it if there is none.
pub(super) fn edit_object(
    map: &mut Map<String, Value>,
    key: &str,
    change: impl FnOnce(&mut Map<String, Value>),
) {
    let mut object = match map.get_mut(key).map(Value::take) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    };
    change(&mut object);
    map.insert(key.into(), object.into());
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The resources of the pod and of its one container.
    fn completed(whole: Value, container: Value, amounts: &AmountRules) -> (Value, Value) {
        let mut spec = json!({ "containers": [{ "name": "c", "resources": container }] });
        if !whole.is_null() {
            spec["resources"] = whole;
        }
        let spec = spec.as_object_mut().unwrap();
        complete_amounts(spec, amounts);
        (
            spec.get("resources").cloned().unwrap_or_default(),
            spec["containers"][0]["resources"].clone(),
        )
    }

    fn of_container(container: Value) -> Value {
        completed(json!(null), container, &AmountRules::default()).1
    }

    #[test]
    fn no_container_is_free_and_none_has_memory_without_a_limit() {
        let nothing = of_container(json!({}));
        assert_eq!(
            nothing,
            json!({ "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } })
        );
        for zero in [json!("0"), json!(0), json!("0Mi")] {
            let free = of_container(json!({ "requests": { "cpu": zero, "memory": zero } }));
            assert_eq!(
                free,
                json!({ "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "memory": "128Mi" } }),
                "{zero}"
            );
        }
        let tiny = of_container(json!({ "requests": { "cpu": "1m", "memory": "1" } }));
        assert_eq!(tiny["requests"], json!({ "cpu": "10m", "memory": "16Mi" }));
        let honest = of_container(json!({ "requests": { "cpu": "2", "memory": "1Gi" } }));
        assert_eq!(
            honest,
            json!({ "requests": { "cpu": "2", "memory": "1Gi" }, "limits": { "memory": "8Gi" } })
        );
    }

    #[test]
    fn limits_of_the_container_stay_and_no_request_is_raised_above_them() {
        let small = json!({ "requests": { "cpu": "1m", "memory": "0" }, "limits": { "cpu": "5m", "memory": "8Mi" } });
        let limits = small["limits"].clone();
        assert_eq!(
            of_container(small),
            json!({ "requests": { "cpu": "5m", "memory": "8Mi" }, "limits": limits })
        );
        let large =
            json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "memory": "8Gi" } });
        assert_eq!(of_container(large.clone()), large);
    }

    #[test]
    fn a_large_limit_is_charged_in_part() {
        let huge =
            json!({ "requests": { "cpu": "1", "memory": "16Mi" }, "limits": { "memory": "1Ti" } });
        assert_eq!(
            of_container(huge)["requests"],
            json!({ "cpu": "1", "memory": "128Gi" })
        );
        let mut amounts = AmountRules {
            limited: vec![EPHEMERAL_STORAGE],
            ..AmountRules::default()
        };
        amounts.default_requests = vec![(EPHEMERAL_STORAGE.into(), "0".into())];
        let of = |limit: &str| {
            let asked = json!({ "requests": { EPHEMERAL_STORAGE: "0" }, "limits": { EPHEMERAL_STORAGE: limit } });
            completed(json!(null), asked, &amounts).1["requests"][EPHEMERAL_STORAGE].clone()
        };
        assert_eq!((of("1Gi"), of("8Ti")), (json!("0"), json!("1Ti")));
    }

    #[test]
    fn a_limit_for_the_whole_pod_leaves_room_for_those_of_its_containers() {
        let amounts = AmountRules::default();
        let (whole, container) = completed(
            json!({ "requests": { "memory": "64Mi", "cpu": "0" } }),
            json!({}),
            &amounts,
        );
        assert_eq!(
            whole,
            json!({ "requests": { "memory": "64Mi", "cpu": "10m" }, "limits": { "memory": "512Mi" } })
        );
        assert_eq!(
            container,
            json!({ "requests": { "cpu": "0", "memory": "0" } })
        );
        let (whole, _) = completed(
            json!({ "requests": { "memory": "1Mi" } }),
            json!({ "limits": { "memory": "1Gi" } }),
            &amounts,
        );
        assert_eq!(
            whole,
            json!({ "requests": { "memory": "128Mi" }, "limits": { "memory": "1Gi" } })
        );
        let limited = json!({ "requests": { "memory": "64Mi" }, "limits": { "memory": "64Mi" } });
        assert_eq!(completed(limited.clone(), json!({}), &amounts).0, limited);
    }

    #[test]
    fn ephemeral_storage_has_a_limit_also_where_it_is_not_charged() {
        let mut amounts = AmountRules {
            limited: vec![EPHEMERAL_STORAGE],
            ..AmountRules::default()
        };
        amounts.default_requests = vec![(EPHEMERAL_STORAGE.into(), "0".into())];
        let of = |container: Value| completed(json!(null), container, &amounts).1;
        assert_eq!(
            of(json!({})),
            json!({ "requests": { EPHEMERAL_STORAGE: "0" }, "limits": { EPHEMERAL_STORAGE: "1Gi" } })
        );
        let asked = of(json!({ "requests": { EPHEMERAL_STORAGE: "1Gi" } }));
        assert_eq!(asked["limits"], json!({ EPHEMERAL_STORAGE: "8Gi" }));
    }

    #[test]
    fn the_policy_chooses_the_limit_or_none_and_it_is_never_below_the_request() {
        let with = |limit_percentage| {
            completed(
                json!(null),
                json!({ "requests": { "memory": "1Gi" } }),
                &AmountRules {
                    limit_percentage,
                    ..AmountRules::default()
                },
            )
            .1
        };
        assert_eq!(with(150)["limits"], json!({ "memory": "1536Mi" }));
        assert_eq!(with(1)["limits"], json!({ "memory": "1Gi" }));
        assert_eq!(with(0).get("limits"), None);
    }

    #[test]
    fn what_is_no_quantity_or_negative_is_left_to_those_who_refuse_it() {
        for wrong in [json!("much"), json!("-1Gi"), json!([])] {
            assert_eq!(
                of_container(json!({ "requests": { "memory": wrong } }))["requests"]["memory"],
                wrong
            );
        }
    }
}
