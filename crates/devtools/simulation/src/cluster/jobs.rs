//! Jobs: pods that run to their end.
//!
//! A pod that ended is counted in three steps, as in Kubernetes, so that it counts once whatever
//! fails in between: its uid is written to `uncountedTerminatedPods`, its finalizer is removed, its
//! uid moves into the count.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    fields::{
        after, condition, controller, count, has_finalizer, is_ending, is_true, items, name,
        new_condition, remove_finalizer, set_condition, set_count, text, time, time_text, uid,
    },
    plan::Plan,
    pods::{finished_at, from_template, is_active, is_finished, is_ready},
    replica_sets::first_to_go,
    snapshot::Snapshot,
};

const JOBS: &str = "jobs.batch";
const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// Seconds until a failed pod is replaced, for the first one, and at most.
const BACKOFF: (i64, i64) = (10, 600);

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let jobs = snapshot.list(JOBS);
    for job in &jobs {
        Job::read(snapshot, job).sync(plan);
    }
    let uids: HashSet<&str> = jobs.iter().map(|job| uid(job)).collect();
    for pod in snapshot
        .pods()
        .iter()
        .filter(|pod| has_finalizer(pod, TRACKING))
    {
        if !controller(pod).is_some_and(|owner| uids.contains(text(&owner["uid"]))) {
            release(pod, plan);
        }
    }
}

fn release(pod: &Value, plan: &mut Plan) {
    let mut next = pod.clone();
    remove_finalizer(&mut next, TRACKING);
    plan.update("pods", pod, next);
}

struct Job<'a> {
    object: &'a Value,
    pods: Vec<&'a Value>,
    now: Timestamp,
    /// Uids of pods that ended and are not in the counts yet.
    uncounted: [Vec<&'a str>; 2],
    succeeded: i64,
    failed: i64,
    parallelism: i64,
    completions: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Succeeded,
    Failed,
}

/// How a pod counts: as failed also as soon as its deletion begins.
fn end_of(pod: &Value) -> Option<End> {
    match text(&pod["status"]["phase"]) {
        "Succeeded" => Some(End::Succeeded),
        "Failed" => Some(End::Failed),
        _ => is_ending(pod).then_some(End::Failed),
    }
}

/// The fields of the counts, and of the lists of uids.
const ENDS: [&str; 2] = ["succeeded", "failed"];

impl<'a> Job<'a> {
    fn read(snapshot: &'a Snapshot, object: &'a Value) -> Self {
        let uncounted = ENDS.map(|end| {
            items(&object["status"]["uncountedTerminatedPods"][end])
                .iter()
                .map(text)
                .collect()
        });
        let mut job = Self {
            object,
            pods: snapshot.pods_of(uid(object)).collect(),
            now: snapshot.now,
            uncounted,
            succeeded: 0,
            failed: 0,
            parallelism: object["spec"]["parallelism"].as_i64().unwrap_or(1),
            completions: object["spec"]["completions"].as_i64().unwrap_or(1),
        };
        let tracked: Vec<&Value> = job
            .pods
            .iter()
            .copied()
            .filter(|pod| has_finalizer(pod, TRACKING))
            .collect();
        let mut counts = ENDS.map(|end| object["status"][end].as_i64().unwrap_or(0));
        for (index, end) in [End::Succeeded, End::Failed].into_iter().enumerate() {
            let before = job.uncounted[index].len();
            job.uncounted[index].retain(|one| tracked.iter().any(|pod| uid(pod) == *one));
            counts[index] += i64::try_from(before - job.uncounted[index].len()).unwrap_or(0);
            let ended = tracked
                .iter()
                .filter(|pod| end_of(pod) == Some(end))
                .map(|pod| uid(pod));
            let new: Vec<&str> = ended
                .filter(|one| !job.uncounted.iter().flatten().any(|other| other == one))
                .collect();
            job.uncounted[index].extend(new);
            counts[index] += count(job.uncounted[index].iter());
        }
        [job.succeeded, job.failed] = counts;
        job
    }

    fn active(&self) -> Vec<&'a Value> {
        self.pods
            .iter()
            .copied()
            .filter(|pod| is_active(pod))
            .collect()
    }

    fn terminating(&self) -> i64 {
        count(
            self.pods
                .iter()
                .filter(|pod| is_ending(pod) && !is_finished(pod)),
        )
    }

    fn is_over(&self) -> bool {
        is_true(self.object, "Complete") || is_true(self.object, "Failed")
    }

    fn sync(&self, plan: &mut Plan) {
        self.release_counted(plan);
        if is_ending(self.object) {
            return;
        }
        if self.is_over() {
            return self.delete_after_ttl(plan);
        }
        let outcome = self.outcome(plan);
        if outcome.is_some() {
            self.active()
                .iter()
                .for_each(|pod| plan.delete("pods", pod));
        } else {
            self.fill(plan);
        }
        plan.update_status(JOBS, self.object, self.status(outcome.as_ref()));
    }

    /// Removes the finalizer of pods whose uid was written down, and of all pods of a Job that is
    /// over.
    fn release_counted(&self, plan: &mut Plan) {
        let lists = &self.object["status"]["uncountedTerminatedPods"];
        let is_written = |pod: &Value| {
            ENDS.iter()
                .any(|end| items(&lists[*end]).iter().any(|one| one == uid(pod)))
        };
        let all_go = is_ending(self.object) || self.is_over();
        let goes = |pod: &Value| all_go || is_written(pod);
        self.pods
            .iter()
            .filter(|pod| has_finalizer(pod, TRACKING) && goes(pod))
            .for_each(|pod| release(pod, plan));
    }

    fn delete_after_ttl(&self, plan: &mut Plan) {
        let end = ["Complete", "Failed"]
            .into_iter()
            .find(|kind| is_true(self.object, kind));
        let end = end.and_then(|kind| time(&condition(self.object, kind)["lastTransitionTime"]));
        if let (Some(end), Some(seconds)) =
            (end, self.object["spec"]["ttlSecondsAfterFinished"].as_i64())
            && plan.is_due(after(end, seconds))
        {
            plan.delete_with(JOBS, self.object, None, Some("Foreground"));
        }
    }

    /// Whether the Job has reached its end: the condition that says so.
    fn outcome(&self, plan: &mut Plan) -> Option<Value> {
        for kind in ["SuccessCriteriaMet", "FailureTarget"] {
            if is_true(self.object, kind) {
                return Some(condition(self.object, kind).clone());
            }
        }
        let failure = |reason: &str, message: &str| {
            Some(new_condition("FailureTarget", true, reason, message))
        };
        let limit = self.object["spec"]["backoffLimit"].as_i64().unwrap_or(6);
        let start = time(&self.object["status"]["startTime"]);
        let deadline = self.object["spec"]["activeDeadlineSeconds"]
            .as_i64()
            .zip(start)
            .map(|(seconds, start)| after(start, seconds));
        if self.failed > limit || self.has_restarted_beyond(limit) {
            return failure(
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            );
        }
        if deadline.is_some_and(|deadline| plan.is_due(deadline)) {
            return failure(
                "DeadlineExceeded",
                "Job was active longer than specified deadline",
            );
        }
        let message = "Reached expected number of succeeded pods";
        (self.succeeded >= self.completions)
            .then(|| new_condition("SuccessCriteriaMet", true, "CompletionsReached", message))
    }

    /// With the restart policy `OnFailure`, restarts count as failures.
    fn has_restarted_beyond(&self, limit: i64) -> bool {
        if self.object["spec"]["template"]["spec"]["restartPolicy"] != "OnFailure" {
            return false;
        }
        let active = self.active();
        let statuses = active
            .iter()
            .flat_map(|pod| items(&pod["status"]["containerStatuses"]));
        let restarts: i64 = statuses
            .filter_map(|status| status["restartCount"].as_i64())
            .sum();
        restarts > 0 && restarts >= limit
    }

    /// Creates or deletes pods, until as many run as should.
    fn fill(&self, plan: &mut Plan) {
        let active = self.active();
        let running = count(active.iter());
        let wanted = self.parallelism.min(self.completions - self.succeeded);
        let surplus = usize::try_from(running - wanted).unwrap_or(0);
        for pod in first_to_go(&active, surplus) {
            plan.delete("pods", pod);
        }
        if wanted > running && self.backoff_ends().is_none_or(|end| plan.is_due(end)) {
            (running..wanted).for_each(|_| plan.create("pods", self.new_pod()));
        }
    }

    /// When a pod may be created after the last failures.
    fn backoff_ends(&self) -> Option<Timestamp> {
        let last_success = self
            .pods
            .iter()
            .filter(|pod| pod["status"]["phase"] == "Succeeded")
            .filter_map(|pod| finished_at(pod))
            .max();
        let failed = self
            .pods
            .iter()
            .filter(|pod| !is_active(pod) && pod["status"]["phase"] != "Succeeded");
        let is_later = |end: &Timestamp| last_success.is_none_or(|success| *end > success);
        let failures: Vec<Timestamp> = failed
            .filter_map(|pod| finished_at(pod))
            .filter(is_later)
            .collect();
        let doublings = u32::try_from(failures.len()).ok()?.checked_sub(1)?.min(10);
        Some(after(
            failures.into_iter().max()?,
            (BACKOFF.0 << doublings).min(BACKOFF.1),
        ))
    }

    fn new_pod(&self) -> Value {
        let (own, uid) = (name(self.object), uid(self.object));
        let labels = [
            ("batch.kubernetes.io/controller-uid", uid),
            ("batch.kubernetes.io/job-name", own),
            ("controller-uid", uid),
            ("job-name", own),
        ];
        let mut pod = from_template(self.object, "batch/v1", "Job", &labels);
        let mut finalizers = pod["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        finalizers.push(json!(TRACKING));
        pod["metadata"]["finalizers"] = Value::Array(finalizers);
        pod
    }

    fn status(&self, outcome: Option<&Value>) -> Value {
        let mut status = self.object["status"].clone();
        let active = self.active();
        set_count(&mut status, "active", count(active.iter()));
        status["ready"] = json!(count(active.iter().filter(|pod| is_ready(pod))));
        status["terminating"] = json!(self.terminating());
        let uncounted = self.uncounted.each_ref().map(|uids| count(uids.iter()));
        set_count(&mut status, "succeeded", self.succeeded - uncounted[0]);
        set_count(&mut status, "failed", self.failed - uncounted[1]);
        status["uncountedTerminatedPods"] = json!({});
        for (end, uids) in ENDS.iter().zip(&self.uncounted) {
            if !uids.is_empty() {
                status["uncountedTerminatedPods"][*end] = json!(uids);
            }
        }
        if status["startTime"].is_null() {
            status["startTime"] = json!(time_text(self.now));
        }
        if let Some(outcome) = outcome {
            set_condition(&mut status, outcome, self.now);
            self.end(
                &mut status,
                outcome,
                active.is_empty() && uncounted == [0, 0],
            );
        }
        status
    }

    /// Writes the last condition when no pod runs any more and all are counted.
    fn end(&self, status: &mut Value, outcome: &Value, is_counted: bool) {
        if !is_counted || self.terminating() > 0 {
            return;
        }
        let is_success = outcome["type"] == "SuccessCriteriaMet";
        let kind = if is_success { "Complete" } else { "Failed" };
        set_condition(
            status,
            &new_condition(
                kind,
                true,
                text(&outcome["reason"]),
                text(&outcome["message"]),
            ),
            self.now,
        );
        if is_success {
            status["completionTime"] = json!(time_text(self.now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::Cluster, *};

    /// A Job whose pods run for ten seconds.
    fn with_job(annotations: &Value, fields: &Value) -> Cluster {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        let mut annotations = annotations.clone();
        annotations["simulation.test/run-seconds"] = json!("10");
        let spec =
            json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "work:1" }] });
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "work" },
            "spec": { "completions": 1, "template": { "metadata": { "annotations": annotations }, "spec": spec } },
        });
        for (field, value) in fields.as_object().unwrap() {
            job["spec"][field] = value.clone();
        }
        cluster.add(JOBS, job);
        cluster
    }

    fn status(cluster: &Cluster) -> Value {
        cluster.object(JOBS, "work")["status"].clone()
    }

    fn running(cluster: &Cluster) -> usize {
        cluster.pods().iter().filter(|pod| is_active(pod)).count()
    }

    #[test]
    fn a_job_runs_once() {
        let mut cluster = with_job(&json!({}), &json!({}));
        cluster.pass(5);
        assert_eq!(status(&cluster)["active"], 1);
        cluster.pass(60);
        let (job, pods) = (cluster.object(JOBS, "work"), cluster.pods());
        assert!(
            pods.len() == 1
                && pods[0]["status"]["phase"] == "Succeeded"
                && !has_finalizer(&pods[0], TRACKING)
        );
        assert!(
            is_true(&job, "Complete") && is_true(&job, "SuccessCriteriaMet"),
            "{job:#}"
        );
        assert_eq!(
            (
                &job["status"]["succeeded"],
                &job["status"]["uncountedTerminatedPods"]
            ),
            (&json!(1), &json!({}))
        );
    }

    #[test]
    fn as_many_pods_run_at_once_as_may() {
        let mut cluster = with_job(&json!({}), &json!({ "parallelism": 2, "completions": 5 }));
        cluster.pass_and(60, |cluster| assert!(running(cluster) <= 2));
        assert_eq!(
            (status(&cluster)["succeeded"].as_i64(), cluster.pods().len()),
            (Some(5), 5)
        );
    }

    #[test]
    fn failures_are_counted_up_to_the_limit() {
        let mut cluster = with_job(
            &json!({ "simulation.test/exit-code": "3" }),
            &json!({ "backoffLimit": 1 }),
        );
        cluster.pass(15);
        assert_eq!(
            (status(&cluster)["failed"].as_i64(), running(&cluster)),
            (Some(1), 0)
        );
        cluster.pass(60);
        let job = cluster.object(JOBS, "work");
        assert_eq!(
            (
                condition(&job, "Failed")["reason"].as_str(),
                cluster.pods().len()
            ),
            (Some("BackoffLimitExceeded"), 2)
        );
        assert_eq!(job["status"]["failed"], 2);
    }

    #[test]
    fn a_pod_that_is_deleted_counts_as_failed_whatever_it_does_then() {
        let mut cluster = with_job(&json!({ "simulation.test/stop-seconds": "20" }), &json!({}));
        cluster.pass(5);
        let first = cluster.pod_names()[0].clone();
        cluster.delete("pods", &first, None);
        cluster.pass(12);
        assert_eq!(
            (status(&cluster)["failed"].as_i64(), cluster.pods().len()),
            (Some(1), 2)
        );
        cluster.pass(60);
        assert_eq!(
            ["succeeded", "failed"].map(|end| status(&cluster)[end].as_i64()),
            [Some(1), Some(1)]
        );
    }

    #[test]
    fn a_finished_job_goes_with_its_pods_after_its_time() {
        let mut cluster = with_job(&json!({}), &json!({ "ttlSecondsAfterFinished": 100 }));
        cluster.pass(105);
        assert_eq!(cluster.pods().len(), 1);
        cluster.pass(20);
        assert!(cluster.pods().is_empty() && cluster.object(JOBS, "work").is_null());
    }

    #[test]
    fn a_job_that_is_deleted_leaves_no_pod_behind() {
        let mut cluster = with_job(&json!({}), &json!({}));
        cluster.pass(5);
        cluster.delete(JOBS, "work", Some("Background"));
        cluster.pass(60);
        assert!(cluster.pods().is_empty());
    }
}
