//! Invariants that hold at every moment, also during faults. They are checked at each change of
//! each cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use liqo_api::labels;
use liqo_simulation::Key;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::world::Cluster;

/// The most pods of one controller.
const REPLICAS: usize = 12;
/// The last wish may move pods for this long. Notice and refusal timeout are five minutes each. A
/// second pod of one owner waits for another minute (story 115: a Job of two pods). What has to be
/// heard from a provider first takes up to half a minute.
const LATEST_MOVE: Duration = Duration::from_secs(390);

/// Sees the changes of all clusters. Clones are the same.
#[derive(Clone, Default)]
pub struct Safety(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    violations: BTreeSet<String>,
    /// The remote pods that exist for each local pod and do not end, by the local pod's uid.
    running: BTreeMap<String, BTreeSet<String>>,
    /// The remote pods that were started for each local pod that may run only once, by the local
    /// pod's uid.
    started: BTreeMap<String, BTreeSet<String>>,
    /// When people wished something last, and how often they did.
    wished: Option<Instant>,
    wishes: usize,
    /// When a local pod was created, and how many wishes there were then, by its uid.
    created: BTreeMap<String, (usize, Instant)>,
    /// The local pods that were moved.
    moved: BTreeSet<String>,
    /// How many pods of a controller were created and moved under the same wish, by the
    /// controller's uid.
    moved_again: BTreeMap<(String, usize), usize>,
}

impl Safety {
    pub fn watch(&self, cluster: &Cluster) {
        let (this, name) = (self.clone(), cluster.name.clone());
        cluster.server.observe(move |key, before, after| {
            if key.resource == "pods" {
                this.0.lock().pod(&name, key, before, after);
            }
        });
    }

    /// People wish something that may move pods.
    pub fn wish(&self) {
        let mut seen = self.0.lock();
        seen.wishes += 1;
        seen.wished = Some(Instant::now());
    }

    /// The number of local pods that were moved, by drains of people, too.
    pub fn moved(&self) -> usize {
        self.0.lock().moved.len()
    }

    pub fn violations(&self) -> Vec<String> {
        self.0.lock().violations.iter().cloned().collect()
    }
}

impl Seen {
    fn pod(&mut self, cluster: &str, key: &Key, before: Option<&Value>, after: Option<&Value>) {
        let about = format!("pod {}/{} of {cluster}", key.namespace, key.name);
        if let (Some(before), Some(after)) = (before, after) {
            let (was, is) = (phase(before), phase(after));
            if is_terminal(was) && is != was {
                self.violations
                    .insert(format!("{about} was {was}, and is {is} again"));
            }
        }
        let Some(pod) = after.or(before) else { return };
        let Some(local) = pod["metadata"]["labels"][labels::SHADOW_POD].as_str() else {
            return self.local_pod(&about, pod);
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let running = self.running.entry(local.to_owned()).or_default();
        let is_there = after.is_some_and(|pod| {
            pod["metadata"]["deletionTimestamp"].is_null() && !is_terminal(phase(pod))
        });
        if is_there {
            running.insert(uid.to_owned());
        } else {
            running.remove(uid);
        }
        if running.len() > 1 {
            self.violations.insert(format!(
                "{about} is one of {} that run for the same pod",
                running.len()
            ));
        }
        if pod["spec"]["restartPolicy"] == "Never" && ["Running", "Succeeded"].contains(&phase(pod))
        {
            let started = self.started.entry(local.to_owned()).or_default();
            started.insert(uid.to_owned());
            if started.len() > 1 {
                self.violations
                    .insert(format!("{about} may run only once, and runs a second time"));
            }
        }
    }
}

impl Seen {
    /// One wish moves each pod of a controller once, and soon.
    fn local_pod(&mut self, about: &str, pod: &Value) {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let (created, seen) = *self
            .created
            .entry(uid.to_owned())
            .or_insert((self.wishes, Instant::now()));
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let is_moved =
            conditions.any(|one| one["type"] == "DisruptionTarget" && one["status"] == "True");
        if !is_moved || !self.moved.insert(uid.to_owned()) {
            return;
        }
        // A pod that is younger than the wish may be refused where it was sent.
        if let Some(late) = self
            .wished
            .map(|wished| wished.max(seen).elapsed())
            .filter(|late| *late > LATEST_MOVE)
        {
            self.violations
                .insert(format!("{about} is moved {late:?} after the last wish"));
        }
        let controller = pod["metadata"]["ownerReferences"][0]["uid"].as_str();
        if let Some(controller) = controller.filter(|_| created == self.wishes) {
            let again = self
                .moved_again
                .entry((controller.to_owned(), created))
                .or_default();
            *again += 1;
            if *again > REPLICAS {
                self.violations.insert(format!(
                    "{about} is one of {again} of its controller that are moved again for one wish"
                ));
            }
        }
    }
}

fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or_default()
}

fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}
