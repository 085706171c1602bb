//! `StatefulSets`: pods with stable names, in order.

use serde_json::{Value, json};

use super::{
    fields::{count, fingerprint, is_ending, label, name, namespace, set_count, text, uid},
    plan::Plan,
    pods::{from_template, is_available, is_finished, is_ready, min_ready_seconds, set_name},
    snapshot::Snapshot,
};

const REVISION: &str = "controller-revision-hash";

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    for set in snapshot.list("statefulsets.apps") {
        StatefulSet::read(snapshot, &set).sync(snapshot, plan);
    }
}

struct StatefulSet<'a> {
    object: &'a Value,
    /// Its pods by ordinal.
    pods: Vec<(i64, &'a Value)>,
    revision: String,
    replicas: i64,
    is_parallel: bool,
}

impl<'a> StatefulSet<'a> {
    fn read(snapshot: &'a Snapshot, object: &'a Value) -> Self {
        let prefix = format!("{}-", name(object));
        let ordinal =
            |pod: &'a Value| Some((name(pod).strip_prefix(&prefix)?.parse::<i64>().ok()?, pod));
        let mut pods: Vec<(i64, &Value)> =
            snapshot.pods_of(uid(object)).filter_map(ordinal).collect();
        pods.sort_by_key(|(ordinal, _)| *ordinal);
        Self {
            object,
            pods,
            revision: format!(
                "{}-{}",
                name(object),
                fingerprint(&object["spec"]["template"])
            ),
            replicas: object["spec"]["replicas"].as_i64().unwrap_or(1),
            is_parallel: object["spec"]["podManagementPolicy"] == "Parallel",
        }
    }

    fn sync(&self, snapshot: &Snapshot, plan: &mut Plan) {
        if !is_ending(self.object) && self.fill(snapshot, plan) && self.shrink(plan) {
            self.replace(plan);
        }
        let status = self.status(plan);
        plan.update_status("statefulsets.apps", self.object, status);
    }

    fn pod(&self, ordinal: i64) -> Option<&'a Value> {
        self.pods
            .iter()
            .find(|(of_pod, _)| *of_pod == ordinal)
            .map(|(_, pod)| *pod)
    }

    fn is_healthy(&self, pod: &Value, plan: &mut Plan) -> bool {
        !is_ending(pod) && is_available(pod, min_ready_seconds(self.object), plan)
    }

    /// Creates what is missing. Returns true if the next step may begin.
    fn fill(&self, snapshot: &Snapshot, plan: &mut Plan) -> bool {
        let mut is_full = true;
        for ordinal in 0..self.replicas {
            let pod = self.pod(ordinal);
            match pod {
                None => self.create(snapshot, ordinal, plan),
                Some(pod) if is_finished(pod) && !is_ending(pod) => plan.delete("pods", pod),
                Some(_) => {}
            }
            let is_there = pod.is_some_and(|pod| !is_ending(pod) && !is_finished(pod));
            is_full &= is_there;
            if !self.is_parallel && !pod.is_some_and(|pod| self.is_healthy(pod, plan)) {
                return false;
            }
        }
        is_full
    }

    fn create(&self, snapshot: &Snapshot, ordinal: i64, plan: &mut Plan) {
        let (own, index) = (
            format!("{}-{ordinal}", name(self.object)),
            ordinal.to_string(),
        );
        // A pod of that name that belongs to somebody else must go first.
        if snapshot.get("pods", namespace(self.object), &own).is_some() {
            return;
        }
        let labels = [
            ("statefulset.kubernetes.io/pod-name", own.as_str()),
            ("apps.kubernetes.io/pod-index", index.as_str()),
            (REVISION, self.revision.as_str()),
        ];
        let mut pod = from_template(self.object, "apps/v1", "StatefulSet", &labels);
        set_name(&mut pod, &own);
        pod["spec"]["hostname"] = json!(own);
        if !text(&self.object["spec"]["serviceName"]).is_empty() {
            pod["spec"]["subdomain"] = self.object["spec"]["serviceName"].clone();
        }
        plan.create("pods", pod);
    }

    /// Deletes what is too much, the highest first. Returns true if nothing is.
    fn shrink(&self, plan: &mut Plan) -> bool {
        let condemned: Vec<&Value> = self
            .pods
            .iter()
            .rev()
            .filter(|(ordinal, _)| *ordinal >= self.replicas)
            .map(|(_, pod)| *pod)
            .collect();
        let at_once = if self.is_parallel { condemned.len() } else { 1 };
        condemned
            .iter()
            .take(at_once)
            .filter(|pod| !is_ending(pod))
            .for_each(|pod| plan.delete("pods", pod));
        condemned.is_empty()
    }

    /// Deletes one pod with an old template, the highest first, if those above it are healthy.
    fn replace(&self, plan: &mut Plan) {
        for (_, pod) in self.pods.iter().rev() {
            if label(pod, REVISION) != self.revision && !is_ending(pod) {
                return plan.delete("pods", pod);
            }
            if !self.is_healthy(pod, plan) {
                return;
            }
        }
    }

    fn status(&self, plan: &mut Plan) -> Value {
        let mut status = self.object["status"].clone();
        let pods = || {
            self.pods
                .iter()
                .map(|(_, pod)| *pod)
                .filter(|pod| !is_finished(pod))
        };
        let seconds = min_ready_seconds(self.object);
        let (all, ready) = (count(pods()), count(pods().filter(|pod| is_ready(pod))));
        let updated =
            count(pods().filter(|pod| label(pod, REVISION) == self.revision && !is_ending(pod)));
        let is_settled = updated == self.replicas && ready == self.replicas && all == self.replicas;
        if is_settled || text(&status["currentRevision"]).is_empty() {
            status["currentRevision"] = json!(self.revision);
        }
        let current = text(&status["currentRevision"]).to_owned();
        status["updateRevision"] = json!(self.revision);
        status["replicas"] = json!(all);
        status["availableReplicas"] =
            json!(count(pods().filter(|pod| is_available(pod, seconds, plan))));
        set_count(&mut status, "readyReplicas", ready);
        set_count(&mut status, "updatedReplicas", updated);
        let is_current = |pod: &&Value| label(pod, REVISION) == current && !is_ending(pod);
        set_count(
            &mut status,
            "currentReplicas",
            count(pods().filter(is_current)),
        );
        status["collisionCount"] = json!(0);
        if !self.object["metadata"]["generation"].is_null() {
            status["observedGeneration"] = self.object["metadata"]["generation"].clone();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{Cluster, workload},
        *,
    };

    fn three(policy: &str) -> Cluster {
        let mut cluster = Cluster::with_nodes(&["n1", "n2"]);
        let mut spec = workload("db", 3, &json!({}));
        spec["podManagementPolicy"] = json!(policy);
        spec["serviceName"] = json!("db");
        cluster.add(
            "statefulsets.apps",
            json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" }, "spec": spec }),
        );
        cluster
    }

    fn ready_names(cluster: &Cluster) -> Vec<String> {
        let pods = cluster.pods();
        pods.iter()
            .filter(|pod| is_ready(pod) && !is_ending(pod))
            .map(|pod| name(pod).to_owned())
            .collect()
    }

    #[test]
    fn pods_come_up_one_after_the_other_or_all_at_once() {
        let mut cluster = three("OrderedReady");
        cluster.pass_and(10, |cluster| {
            assert!(cluster.pods().len() <= cluster.ready() + 1);
        });
        assert_eq!(ready_names(&cluster), ["db-0", "db-1", "db-2"]);
        let mut cluster = three("Parallel");
        cluster.settle();
        assert_eq!(cluster.pod_names(), ["db-0", "db-1", "db-2"]);
    }

    #[test]
    fn a_drained_set_comes_back_in_order() {
        let mut cluster = three("OrderedReady");
        cluster.pass(10);
        cluster
            .pod_names()
            .iter()
            .for_each(|pod| cluster.delete("pods", pod, None));
        let mut seen = Vec::new();
        cluster.pass_and(30, |cluster| {
            let ready = ready_names(cluster);
            if ready.len() < 4 && seen.last() != Some(&ready) {
                seen.push(ready);
            }
        });
        assert_eq!(
            seen,
            [
                vec![],
                vec!["db-0"],
                vec!["db-0", "db-1"],
                vec!["db-0", "db-1", "db-2"]
            ]
        );
    }

    #[test]
    fn an_update_begins_at_the_highest() {
        let mut cluster = three("OrderedReady");
        cluster.pass(10);
        cluster.change("statefulsets.apps", "db", |set| {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:2");
        });
        cluster.pass_and(30, |cluster| {
            let is_updated = |name: &str| {
                cluster.object("pods", name)["spec"]["containers"][0]["image"] == "web:2"
            };
            assert!(cluster.ready() >= 2 && (is_updated("db-2") || !is_updated("db-1")));
        });
        let pods = cluster.pods();
        assert!(
            pods.iter()
                .all(|pod| pod["spec"]["containers"][0]["image"] == "web:2")
        );
        let status = &cluster.object("statefulsets.apps", "db")["status"];
        assert_eq!(
            (&status["updatedReplicas"], &status["currentRevision"]),
            (&json!(3), &status["updateRevision"])
        );
    }

    #[test]
    fn the_highest_goes_first() {
        let mut cluster = three("OrderedReady");
        cluster.pass(10);
        cluster.change("statefulsets.apps", "db", |set| {
            set["spec"]["replicas"] = json!(1);
        });
        cluster.settle();
        assert_eq!(ready_names(&cluster), ["db-0", "db-1"]);
        cluster.pass(10);
        assert_eq!(cluster.pod_names(), ["db-0"]);
    }
}
