//! Delay until Kubernetes evicts a pod from a node that does not answer: the `tolerationSeconds` of
//! two tolerations.

use liqo_api::EvictionDelay;
use serde_json::{Value, json};

use crate::json::set_at;
use crate::views::{PodView, TolerationView};

/// Taints of nodes that do not answer. Kubernetes gives each pod a toleration of both for five
/// minutes, unless the pod has its own.
const TAINTS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

const NO_EXECUTE: &str = "NoExecute";

/// The delay that the tolerations of the pod mean; `None` if the two taints differ.
pub fn toleration_delay(pod: &Value) -> Option<EvictionDelay> {
    let [one, other] = TAINTS.map(|taint| delay_for_taint(pod, taint));
    (one == other).then_some(one)
}

/// As Kubernetes decides: without a toleration at once, with several after the shortest time that
/// one names.
fn delay_for_taint(pod: &Value, taint: &str) -> EvictionDelay {
    let tolerating: Vec<TolerationView<'_>> = pod_tolerations(pod)
        .iter()
        .map(TolerationView::of)
        .filter(|one| tolerates_taint(*one, taint))
        .collect();
    if tolerating.is_empty() {
        return EvictionDelay::Seconds(0);
    }
    let seconds = tolerating
        .iter()
        .filter_map(|one| one.toleration_seconds()?.as_i64());
    let shortest = seconds
        .min()
        .map(|seconds| u32::try_from(seconds.max(0)).unwrap_or(u32::MAX));
    shortest.map_or(EvictionDelay::Never, EvictionDelay::Seconds)
}

fn pod_tolerations(pod: &Value) -> &[Value] {
    PodView::of(pod).spec().tolerations().unwrap_or_default()
}

fn tolerates_taint(toleration: TolerationView<'_>, taint: &str) -> bool {
    let exists = toleration.operator() == "Exists";
    let (key, effect) = (toleration.key(), toleration.effect());
    // The taints have no value.
    let fits = exists || toleration.value().is_empty();
    (key == taint && fits || key.is_empty() && exists)
        && (effect.is_empty() || effect == NO_EXECUTE)
}

/// The tolerations of the pod with this delay. The API server accepts that of a running pod: only
/// times change, or tolerations are added.
pub fn tolerations_with_delay(pod: &Value, delay: EvictionDelay) -> Vec<Value> {
    let mut all = pod_tolerations(pod).to_vec();
    for taint in TAINTS {
        let mut has_one = false;
        for toleration in &mut all {
            let known = TolerationView::of(toleration);
            if !tolerates_taint(known, taint) {
                continue;
            }
            // Only one with this effect may have seconds. Otherwise another one is added, and the
            // shortest time counts.
            let names_taint = known.key() == taint && known.effect() == NO_EXECUTE;
            has_one |= names_taint;
            let has_seconds = known.toleration_seconds().is_some();
            let Some(fields) = toleration.as_object_mut() else {
                continue;
            };
            match delay {
                EvictionDelay::Never => drop(fields.remove("tolerationSeconds")),
                // One for all taints is about others, too; it only must not be shorter.
                EvictionDelay::Seconds(seconds) if names_taint || has_seconds => {
                    fields.insert("tolerationSeconds".to_owned(), seconds.into());
                }
                EvictionDelay::Seconds(_) => {}
            }
        }
        if !has_one {
            let mut toleration =
                json!({ "key": taint, "operator": "Exists", "effect": NO_EXECUTE });
            if let EvictionDelay::Seconds(seconds) = delay {
                set_at(&mut toleration, &["tolerationSeconds"], seconds);
            }
            all.push(toleration);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*, sample::select};

    use super::*;

    fn pod(tolerations: &Value) -> Value {
        json!({ "spec": { "tolerations": tolerations } })
    }

    fn of(key: &str, seconds: Option<i64>) -> Value {
        let mut toleration = json!({ "key": key, "operator": "Exists", "effect": "NoExecute" });
        if let Some(seconds) = seconds {
            toleration["tolerationSeconds"] = seconds.into();
        }
        toleration
    }

    fn both(seconds: Option<i64>) -> Value {
        json!([of(TAINTS[0], seconds), of(TAINTS[1], seconds)])
    }

    #[test]
    fn the_delay_is_what_kubernetes_does_with_the_tolerations() {
        use EvictionDelay::{Never, Seconds};
        assert_eq!(toleration_delay(&pod(&both(Some(300)))), Some(Seconds(300)));
        assert_eq!(toleration_delay(&pod(&both(None))), Some(Never));
        assert_eq!(toleration_delay(&pod(&json!([]))), Some(Seconds(0)));
        assert_eq!(
            toleration_delay(&pod(&json!([{ "operator": "Exists" }]))),
            Some(Never)
        );
        assert_eq!(
            toleration_delay(&pod(
                &json!([{ "operator": "Exists" }, of(TAINTS[0], Some(-5)), of(TAINTS[1], Some(0))])
            )),
            Some(Seconds(0))
        );
        assert_eq!(
            toleration_delay(&pod(&json!([
                of(TAINTS[0], Some(300)),
                of(TAINTS[1], Some(9))
            ]))),
            None
        );
        let other_effect =
            json!([{ "key": TAINTS[0], "operator": "Exists", "effect": "NoSchedule" }]);
        assert_eq!(toleration_delay(&pod(&other_effect)), Some(Seconds(0)));
    }

    #[test]
    fn only_the_times_of_the_usual_tolerations_change() {
        let virtual_nodes = of("virtual-node.liqo.io/not-allowed", None);
        let usual = json!([
            virtual_nodes,
            of(TAINTS[0], Some(300)),
            of(TAINTS[1], Some(300))
        ]);
        let wanted = json!([
            virtual_nodes,
            of(TAINTS[0], Some(0)),
            of(TAINTS[1], Some(0))
        ]);
        assert_eq!(
            json!(tolerations_with_delay(
                &pod(&usual),
                EvictionDelay::Seconds(0)
            )),
            wanted
        );
        assert_eq!(
            json!(tolerations_with_delay(
                &pod(&json!([])),
                EvictionDelay::Never
            )),
            both(None)
        );
    }

    proptest! {
        /// The API server refuses another change of a running pod.
        #[test]
        fn the_result_has_the_delay_and_keeps_all_but_times(
            theirs in vec((select(vec!["", "gpu", TAINTS[0], TAINTS[1]]), select(vec!["", "NoExecute", "NoSchedule"]),
                select(vec!["Exists", "Equal"]), option::of(-2..400_i64)), 0..5),
            seconds in option::of(0..500_u32),
        ) {
            let theirs: Vec<Value> = theirs.into_iter().map(|(key, effect, operator, seconds)| {
                // The API server refuses seconds with another effect.
                let seconds = seconds.filter(|_| effect == NO_EXECUTE);
                json!({ "key": key, "effect": effect, "operator": operator, "tolerationSeconds": seconds })
            }).map(|mut one| {
                if one["tolerationSeconds"].is_null() {
                    one.as_object_mut().unwrap().remove("tolerationSeconds");
                }
                one
            }).collect();
            let wanted = seconds.map_or(EvictionDelay::Never, EvictionDelay::Seconds);
            let result = tolerations_with_delay(&pod(&json!(theirs)), wanted);
            prop_assert_eq!(toleration_delay(&pod(&json!(result))), Some(wanted));
            prop_assert!(result.iter().all(|one| one.get("tolerationSeconds").is_none() || one["effect"] == NO_EXECUTE));
            let timeless = |one: &Value| {
                let mut one = one.clone();
                one.as_object_mut().unwrap().remove("tolerationSeconds");
                one
            };
            let kept = result.iter().take(theirs.len()).map(timeless);
            prop_assert!(kept.eq(theirs.iter().map(timeless)));
        }
    }
}
