//! Decides which disruption budgets of a consumer hold at its provider, and for how long.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::json::field_at;
use crate::replica::label_selector::{LabelMap, NormalizedSelector};
use crate::replica::replica_source::{ReplicaProblem, ReplicaSource};

/// Maximum number of budgets of one namespace that a provider keeps.
const MAX_BUDGETS: usize = 32;

/// A pod of a consumer that is to leave its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeavingPod {
    pub labels: LabelMap,
    pub why: LeavingReason,
}

/// The reason why a pod is to leave its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeavingReason {
    /// The node was cordoned then.
    Drained { node: String, since: Timestamp },
    /// Its consumer had notice that its room is taken back.
    TakenBack,
}

impl LeavingReason {
    /// Time for which budgets of its consumer may still keep it.
    fn time_left(&self, notice: Duration, now: Timestamp) -> Duration {
        match self {
            Self::Drained { since, .. } => notice
                .saturating_sub(Duration::try_from(now.duration_since(*since)).unwrap_or_default()),
            Self::TakenBack => Duration::ZERO,
        }
    }

    fn in_words(&self, notice: Duration) -> String {
        match self {
            Self::Drained { node, .. } => format!(
                "node {node} was cordoned more than {} s ago",
                notice.as_secs()
            ),
            Self::TakenBack => "the room of a pod was taken back after its notice".to_owned(),
        }
    }
}

/// Reason of a budget that would keep pods longer than the notice of the provider.
pub const NOTICE_OVER: &str = "NoticeOver";

/// The budgets of one mapped namespace after [`limit_budgets`].
#[derive(Debug)]
pub struct LimitedBudgets {
    pub sources: Vec<ReplicaSource>,
    /// Time until the next one ceases to hold.
    pub next_end: Option<Duration>,
}

/// The budgets of one mapped namespace, of which only the first ones hold, and none that would keep
/// a pod longer than the notice.
pub fn limit_budgets(
    mut sources: Vec<ReplicaSource>,
    leaving: &[LeavingPod],
    notice: Duration,
    now: Timestamp,
) -> LimitedBudgets {
    sources.sort_by(|one, other| one.key.cmp(&other.key));
    let (mut next_end, mut guarded): (Option<Duration>, BTreeSet<usize>) = (None, BTreeSet::new());
    for (number, source) in sources
        .iter_mut()
        .filter(|source| !source.deleted && source.problem.is_none())
        .enumerate()
    {
        if number >= MAX_BUDGETS {
            let why = format!(
                "a namespace has at most {MAX_BUDGETS} PodDisruptionBudgets at the provider"
            );
            source.problem = Some(ReplicaProblem::new("LimitReached", why));
            continue;
        }
        // One whose change is refused may still select every pod.
        let selector = source
            .content()
            .and_then(|content| {
                NormalizedSelector::from_json(field_at(&content, &["spec", "selector"])?)
            })
            .unwrap_or_default();
        for (number, pod) in leaving
            .iter()
            .enumerate()
            .filter(|(_, pod)| selector.matches(&pod.labels))
        {
            let left = pod.why.time_left(notice, now);
            let problem = if left.is_zero() {
                let why = format!("the provider waits no longer: {}", pod.why.in_words(notice));
                Some(ReplicaProblem::new(NOTICE_OVER, why))
            } else if guarded.contains(&number) {
                let why = "another PodDisruptionBudget selects the same pod, and Kubernetes evicts no pod that two select";
                Some(ReplicaProblem::new("Invalid", why))
            } else {
                None
            };
            if problem.is_some() {
                source.problem = problem;
                break;
            }
            source.is_draining = true;
            next_end = Some(next_end.map_or(left, |end| end.min(left)));
        }
        source.is_draining &= source.problem.is_none();
        if source.problem.is_none() {
            let selected = leaving
                .iter()
                .enumerate()
                .filter(|(_, pod)| selector.matches(&pod.labels));
            guarded.extend(selected.map(|(number, _)| number));
        }
    }
    LimitedBudgets { sources, next_end }
}

#[cfg(test)]
mod tests {
    use liqo_api::ReflectedObject;
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn source(name: &str, app: &str) -> ReplicaSource {
        let object = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": app } } } });
        let record = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
            "metadata": { "namespace": "t", "name": name }, "spec": { "namespace": "demo", "object": object.to_string() } });
        ReplicaSource::from_object(serde_json::from_value::<ReflectedObject>(record).unwrap())
    }

    fn leaving(app: &str, why: LeavingReason) -> LeavingPod {
        LeavingPod {
            labels: [("app".to_owned(), app.to_owned())].into(),
            why,
        }
    }

    #[test]
    fn a_budget_keeps_pods_of_a_drained_node_for_the_notice_and_no_pod_that_is_taken_back() {
        let notice = Duration::from_mins(5);
        let drained = |app: &str| {
            leaving(
                app,
                LeavingReason::Drained {
                    node: "milan-1".into(),
                    since: at(100),
                },
            )
        };
        let judged = |leaving: &[LeavingPod], second: i64| {
            let LimitedBudgets { sources, next_end } = limit_budgets(
                vec![source("web", "web"), source("db", "db")],
                leaving,
                notice,
                at(second),
            );
            let reasons = sources
                .iter()
                .map(|one| one.problem.as_ref().map(|problem| problem.reason.clone()))
                .collect::<Vec<_>>();
            (
                sources
                    .iter()
                    .map(|one| one.is_draining)
                    .collect::<Vec<_>>(),
                reasons,
                next_end,
            )
        };
        let over = || Some(NOTICE_OVER.to_owned());
        assert_eq!(
            judged(&[], 100),
            (vec![false, false], vec![None, None], None)
        );
        assert_eq!(
            judged(&[drained("web")], 399),
            (
                vec![false, true],
                vec![None, None],
                Some(Duration::from_secs(1))
            )
        );
        assert_eq!(
            judged(&[drained("web")], 400),
            (vec![false, false], vec![None, over()], None),
            "it asks for nothing any more"
        );
        assert_eq!(
            judged(&[leaving("db", LeavingReason::TakenBack)], 0),
            (vec![false, false], vec![over(), None], None)
        );
    }

    #[test]
    fn of_two_budgets_for_one_pod_that_is_to_leave_the_first_holds() {
        let both = vec![source("a", "web"), source("b", "web"), source("c", "db")];
        let drained = leaving(
            "web",
            LeavingReason::Drained {
                node: "milan-1".into(),
                since: at(0),
            },
        );
        let reasons = |leaving: &[LeavingPod]| {
            let limited = limit_budgets(both.clone(), leaving, Duration::from_secs(9), at(1));
            limited
                .sources
                .into_iter()
                .map(|one| one.problem.map(|problem| problem.reason))
                .collect::<Vec<_>>()
        };
        assert_eq!(reasons(&[]), [None, None, None]);
        assert_eq!(
            reasons(&[drained]),
            [None, Some("Invalid".to_owned()), None]
        );
    }

    #[test]
    fn a_namespace_has_a_bounded_number_of_budgets_and_none_that_cannot_be_read() {
        let many = (0..40)
            .map(|number| source(&format!("b{number:02}"), "web"))
            .collect();
        let limited = limit_budgets(many, &[], Duration::ZERO, at(0));
        let refused: Vec<&str> = limited
            .sources
            .iter()
            .filter(|one| one.problem.is_some())
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!((refused.len(), refused[0]), (8, "b32"));
        let mut record = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" }, "spec": {} });
        for spec in [
            json!({}),
            json!({ "minAvailable": "50%", "selector": {} }),
            Value::Null,
        ] {
            record["spec"] = spec;
            let object = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
                "metadata": { "namespace": "t", "name": "x" }, "spec": { "namespace": "demo", "object": record.to_string() } });
            let source = ReplicaSource::from_object(serde_json::from_value(object).unwrap());
            assert_eq!(
                source.problem.map(|problem| problem.reason).as_deref(),
                Some("Invalid")
            );
        }
    }
}
