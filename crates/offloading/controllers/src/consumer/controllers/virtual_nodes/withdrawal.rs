//! A provider gave notice that it takes a pool back: the Node gets no new pods, and its pods are
//! evicted in time, at the pace that the disruption budgets of this cluster allow.
//!
//! ```text
//!   notice --> Node cordoned, condition PoolWithdrawn --> pods evicted --> withdrawal --> VirtualNode goes, drain ends the rest
//!      |                                                       |
//!      +--- withdrawn notice: uncordoned, if we cordoned it <--+
//! ```
//!
//! Pods of our own consumers have their own notice, see [`brokered::moves_before_notice_ends`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::Timestamp;
use liqo_api::departure::DepartureCause;
use liqo_api::{Key, VirtualNode, rfc3339};
use liqo_controller_runtime::departures::{self, Departure};
use liqo_controller_runtime::{
    Context, events::object_ref, eviction::EvictionOutcome, writes::StepError,
};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::VirtualNodeError;
use crate::consumer::node_objects;
use crate::consumer::state::{ConsumerState, DelayedEvictions, EvictionBackoff};
use liqo_offloading_rules::namespace::brokered;
use liqo_offloading_rules::namespace::placement::CandidateNode;
use liqo_offloading_rules::pod::controller;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::saving::takes_new_pods;
use liqo_offloading_rules::views::NodeObjectView;

/// Annotation on a Node that we cordoned, with the time at which its pool goes. A Node without it
/// was cordoned by somebody else.
const CORDONED: &str = "liqo.io/cordoned-until";

/// Interval between two checks of a Node that has to become empty.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Delays after a disruption budget did not allow an eviction.
const FIRST_DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Evictions that are requested at the same time.
const CONCURRENCY: usize = 16;

impl EvictionBackoff {
    /// The delay after one more refusal: twice the last one.
    fn after_refusal(before: Option<&Self>, now: Instant) -> Self {
        let last = before.map_or(FIRST_DELAY, |before| (before.last * 2).min(MAX_DELAY));
        Self {
            until: now + last,
            last,
        }
    }
}

/// Cordons the Node of a pool that is taken back, or uncordons it again; evicts its pods while
/// there is time. Returns when to look again.
pub async fn follow_withdrawal(
    consumer: &Arc<ConsumerState>,
    key: &Key,
    node: &VirtualNode,
    name: &str,
) -> Result<Option<Duration>, VirtualNodeError> {
    let withdrawal = node.spec.withdrawal_timestamp.as_ref().map(|time| time.0);
    let context = &consumer.context;
    if let Some(live) = consumer.nodes.get(&Key::new("", name))
        && let Some(patch) = cordon_patch(&live, withdrawal)
    {
        node_objects::patch(&context.client, "cordon", name, &patch).await?;
        if let Some(until) = withdrawal.filter(|_| !NodeObjectView::of(&live).is_cordoned()) {
            tracing::info!(node = name, cluster = %node.spec.cluster_id, %until, "pool is taken back, node cordoned");
            warn_about_withdrawal(consumer, &live, name, &node.spec.cluster_name, until).await;
        }
    }
    let Some(again) = next_check(withdrawal) else {
        with_delayed(consumer, key, DelayedEvictions::clear);
        return Ok(None);
    };
    let Some(pods) = consumer
        .node_tasks
        .lock()
        .get(key)
        .map(|tasks| tasks.pods.clone())
    else {
        return Ok(Some(POLL_INTERVAL));
    };
    let delayed =
        with_delayed(consumer, key, |delayed| DelayedEvictions::clone(delayed)).unwrap_or_default();
    let now = Instant::now();
    let nodes = WithdrawnNode::with_alternatives(consumer, name);
    let due: Vec<Arc<LocalPod>> = pods
        .all()
        .into_iter()
        .map(|(_, pod)| pod)
        .filter(|pod| is_due(pod, &delayed, now) && nodes.may_leave(consumer, pod))
        .collect();
    let mut evictions = futures::stream::iter(due.into_iter().map(|pod| async move {
        let allowed = request_eviction(context, &pod).await;
        (pod, allowed)
    }))
    .buffer_unordered(CONCURRENCY);
    let (mut failure, mut refused) = (None, Vec::new());
    while let Some((pod, allowed)) = evictions.next().await {
        match allowed {
            Ok(true) => {
                tracing::info!(node = name, pod = %pod.key, "pod evicted, its pool is taken back");
            }
            Ok(false) => refused.push(pod.uid.clone()),
            // One pod that cannot be evicted holds up no other.
            Err(error) => failure = Some(error),
        }
    }
    drop(evictions);
    with_delayed(consumer, key, |delayed| {
        delayed.retain(|uid, _| pods.all().iter().any(|(_, pod)| pod.uid == *uid));
        for uid in refused {
            let delay = EvictionBackoff::after_refusal(delayed.get(&uid), Instant::now());
            delayed.insert(uid, delay);
        }
    });
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(Some(again)),
    }
}

/// A Node whose pool is taken back, and the other virtual nodes, if they take new pods.
struct WithdrawnNode {
    node: CandidateNode,
    others: Vec<CandidateNode>,
}

impl WithdrawnNode {
    fn with_alternatives(consumer: &ConsumerState, name: &str) -> Self {
        let all = consumer.nodes.all();
        let others = all
            .iter()
            .filter(|(key, live)| key.name != name && takes_new_pods(live));
        let live = consumer.nodes.get(&Key::new("", name)).unwrap_or_default();
        Self {
            node: candidate_node(name, &live),
            others: others
                .map(|(key, live)| candidate_node(&key.name, live))
                .collect(),
        }
    }

    /// Whether the pod may be evicted before the provider ends it.
    fn may_leave(&self, consumer: &ConsumerState, pod: &LocalPod) -> bool {
        if !consumer.is_brokered(&pod.key.namespace) {
            return true;
        }
        let offer =
            brokered::offer_of_pod(&pod.to_json()).and_then(|offer| consumer.offers.get(&offer));
        brokered::moves_before_notice_ends(pod.restarts, offer.as_deref(), &self.node, &self.others)
    }
}

fn candidate_node(name: &str, live: &Value) -> CandidateNode {
    let labels = NodeObjectView::of(live).metadata().labels();
    let labels = labels.and_then(|labels| BTreeMap::deserialize(labels).ok());
    CandidateNode {
        node: name.to_owned(),
        labels: labels.unwrap_or_default(),
    }
}

fn with_delayed<T>(
    consumer: &ConsumerState,
    key: &Key,
    then: impl FnOnce(&mut DelayedEvictions) -> T,
) -> Option<T> {
    consumer
        .node_tasks
        .lock()
        .get_mut(key)
        .map(|tasks| then(&mut tasks.delayed_evictions))
}

/// Returns the delay before the next check of a Node whose pool is taken back. Pods are evicted
/// until the provider has taken it: the time of the withdrawal is by the provider's clock, and may
/// pass earlier by this cluster's clock.
fn next_check(withdrawal: Option<Timestamp>) -> Option<Duration> {
    withdrawal.map(|_| POLL_INTERVAL)
}

/// A merge patch that cordons a live Node, or undoes that; nothing if the Node is as it should be.
/// A Node that somebody else cordoned is not ours to uncordon.
fn cordon_patch(live: &Value, withdrawal: Option<Timestamp>) -> Option<Value> {
    let live = NodeObjectView::of(live);
    let ours = live.metadata().annotation(CORDONED);
    match (withdrawal.map(rfc3339), ours) {
        (Some(_), None) if live.is_cordoned() => None,
        (Some(until), Some(before)) if before == until && live.is_cordoned() => None,
        (Some(until), _) => Some(
            json!({ "metadata": { "annotations": { CORDONED: until } }, "spec": { "unschedulable": true } }),
        ),
        (None, Some(_)) => Some(
            json!({ "metadata": { "annotations": { CORDONED: null } }, "spec": { "unschedulable": null } }),
        ),
        (None, None) => None,
    }
}

/// Whether a pod is evicted now. One of a `DaemonSet` would be created again at once, and a static
/// one belongs to its node.
fn is_due(pod: &LocalPod, delayed: &DelayedEvictions, now: Instant) -> bool {
    let waits = delayed.get(&pod.uid).is_some_and(|delay| delay.until > now);
    !pod.finished
        && pod.deletion.is_none()
        && DepartureCause::PoolWithdrawn
            .takes_pods_of(controller::controller_kind(pod.controller.as_ref()))
        && !waits
}

/// Requests the eviction of a local pod. Returns whether the budgets allow it.
async fn request_eviction(context: &Context, pod: &LocalPod) -> Result<bool, StepError> {
    let outcome = departures::request_departure(
        context,
        Departure::new(DepartureCause::PoolWithdrawn, &pod.key, &pod.uid),
    )
    .await?;
    Ok(!matches!(outcome, EvictionOutcome::NotAllowed(_)))
}

/// An event on the Node.
async fn warn_about_withdrawal(
    consumer: &ConsumerState,
    live: &Value,
    name: &str,
    cluster: &str,
    until: Timestamp,
) {
    let uid = NodeObjectView::of(live).metadata().uid().map(str::to_owned);
    let node = object_ref("v1", "Node", &Key::new("", name), uid);
    let message = format!(
        "cluster {cluster} takes the pool of this node back at {}; its pods are evicted until then",
        rfc3339(until)
    );
    consumer
        .context
        .events
        .record_warning(&node, "PoolWithdrawn", message)
        .await;
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use super::*;

    const UNTIL: &str = "2026-01-02T03:04:05Z";

    fn until() -> Option<Timestamp> {
        UNTIL.parse().ok()
    }

    fn patched(mut live: Value, withdrawal: Option<Timestamp>) -> Value {
        if let Some(patch) = cordon_patch(&live, withdrawal) {
            json_patch::merge(&mut live, &patch);
        }
        live
    }

    #[test]
    fn a_node_whose_pool_is_taken_back_is_cordoned_once_and_uncordoned_when_it_is_not() {
        let plain = json!({"metadata": {"annotations": {"other": "x"}}, "spec": {"taints": []}});
        let cordoned = patched(plain.clone(), until());
        assert!(NodeObjectView::of(&cordoned).is_cordoned());
        assert_eq!(cordoned["metadata"]["annotations"][CORDONED], UNTIL);
        assert_eq!(cordon_patch(&cordoned, until()), None);
        assert_eq!(patched(cordoned, None), plain);
    }

    #[test]
    fn a_node_that_somebody_else_cordoned_stays_so() {
        let theirs = json!({"metadata": {}, "spec": {"unschedulable": true}});
        assert_eq!(cordon_patch(&theirs, until()), None);
        assert_eq!(cordon_patch(&theirs, None), None);
    }

    #[test]
    fn a_node_that_is_uncordoned_by_hand_while_its_pool_is_taken_back_is_cordoned_again() {
        let uncordoned = json!({"metadata": {"annotations": {CORDONED: UNTIL}}, "spec": {}});
        assert!(NodeObjectView::of(&patched(uncordoned, until())).is_cordoned());
    }

    #[test]
    fn another_time_is_written_down() {
        let cordoned = patched(json!({"metadata": {}, "spec": {}}), until());
        let later = patched(cordoned, "2026-01-03T00:00:00Z".parse().ok());
        assert_eq!(
            later["metadata"]["annotations"][CORDONED],
            "2026-01-03T00:00:00Z"
        );
    }

    fn pod(changes: Value) -> LocalPod {
        let mut pod = json!({"metadata": {"namespace": "demo", "name": "web", "uid": "u"}, "spec": {"containers": []},
            "status": {"phase": "Running"}});
        json_patch::merge(&mut pod, &changes);
        LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("p", "default"),
        )
        .unwrap()
    }

    fn of_kind(kind: &str) -> Value {
        let owner = json!([{"apiVersion": "x/v1", "kind": kind, "name": "o", "uid": "o", "controller": true}]);
        json!({"metadata": {"ownerReferences": owner}})
    }

    #[tokio::test]
    async fn pods_move_away_except_those_that_end_already_or_belong_to_the_node() {
        let moves =
            |changes: Value| is_due(&pod(changes), &DelayedEvictions::new(), Instant::now());
        assert!(moves(json!({})) && moves(of_kind("ReplicaSet")) && moves(of_kind("Job")));
        assert!(!moves(of_kind("DaemonSet")) && !moves(of_kind("Node")));
        assert!(!moves(json!({"status": {"phase": "Succeeded"}})));
        assert!(!moves(
            json!({"metadata": {"deletionTimestamp": UNTIL, "deletionGracePeriodSeconds": 30}})
        ));
    }

    #[tokio::test]
    async fn an_eviction_that_is_not_allowed_is_asked_for_again_later_and_later() {
        let now = Instant::now();
        let mut delay = EvictionBackoff::after_refusal(None, now);
        assert!(!is_due(
            &pod(json!({})),
            &[("u".to_owned(), delay)].into(),
            now
        ));
        assert!(is_due(
            &pod(json!({})),
            &[("u".to_owned(), delay)].into(),
            now + FIRST_DELAY
        ));
        let mut delays = Vec::new();
        for _ in 0..6 {
            delays.push(delay.last.as_secs());
            delay = EvictionBackoff::after_refusal(Some(&delay), now);
        }
        assert_eq!(delays, [2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn pods_are_evicted_until_the_provider_takes_the_pool_whatever_the_clock_here_shows() {
        assert_eq!(next_check(None), None);
        for until in [until(), Some(Timestamp::UNIX_EPOCH), Some(Timestamp::MAX)] {
            assert_eq!(next_check(until), Some(POLL_INTERVAL));
        }
    }
}
