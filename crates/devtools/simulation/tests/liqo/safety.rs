//! Invariants that hold at every moment, also during faults. They are checked at each change of each cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use liqo_api::labels;
use liqo_simulation::Key;
use parking_lot::Mutex;
use serde_json::Value;

use crate::world::Cluster;

/// Sees the changes of all clusters. Clones are the same.
#[derive(Clone, Default)]
pub struct Safety(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    violations: BTreeSet<String>,
    /// The remote pods that exist for each local pod and do not end, by the local pod's uid.
    running: BTreeMap<String, BTreeSet<String>>,
    /// The remote pods that were started for each local pod that may run only once, by the local pod's uid.
    started: BTreeMap<String, BTreeSet<String>>,
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
                self.violations.insert(format!("{about} was {was}, and is {is} again"));
            }
        }
        let Some(pod) = after.or(before) else { return };
        let Some(local) = pod["metadata"]["labels"][labels::SHADOW_POD].as_str() else { return };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let running = self.running.entry(local.to_owned()).or_default();
        let is_there = after.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null() && !is_terminal(phase(pod)));
        if is_there {
            running.insert(uid.to_owned());
        } else {
            running.remove(uid);
        }
        if running.len() > 1 {
            self.violations.insert(format!("{about} is one of {} that run for the same pod", running.len()));
        }
        if pod["spec"]["restartPolicy"] == "Never" && ["Running", "Succeeded"].contains(&phase(pod)) {
            let started = self.started.entry(local.to_owned()).or_default();
            started.insert(uid.to_owned());
            if started.len() > 1 {
                self.violations.insert(format!("{about} may run only once, and runs a second time"));
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
