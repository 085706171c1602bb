//! Deployments: they scale `ReplicaSets`, one for each version of the pods.

use serde_json::{Value, json};

use super::{
    fields::{
        controller, created_at, drop_field, fingerprint, is_ending, name, namespace, text, uid,
    },
    plan::Plan,
    pods::owner_reference,
    rollout::{Deployment, TEMPLATE_HASH, available, wanted},
    snapshot::Snapshot,
};

const REVISION: &str = "deployment.kubernetes.io/revision";
const SETS: &str = "replicasets.apps";

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let sets = snapshot.list(SETS);
    for deployment in snapshot.list("deployments.apps") {
        let is_owned = |set: &&Value| {
            controller(set).is_some_and(|owner| text(&owner["uid"]) == uid(&deployment))
        };
        let mut owned: Vec<&Value> = sets.iter().map(|set| &**set).filter(is_owned).collect();
        owned.sort_by_key(|set| created_at(set));
        Deployment::new(&deployment, &owned).sync(snapshot, plan);
    }
}

impl Deployment<'_> {
    fn sync(&self, snapshot: &Snapshot, plan: &mut Plan) {
        let status = self.status(snapshot.now);
        if !is_ending(self.object) {
            self.roll(snapshot, plan);
        }
        match self.new.and_then(revision) {
            Some(newest) if revision(self.object) != Some(newest) => {
                let mut annotated = self.object.clone();
                annotated["metadata"]["annotations"][REVISION] = json!(newest.to_string());
                plan.update("deployments.apps", self.object, annotated);
            }
            _ => plan.update_status("deployments.apps", self.object, status),
        }
    }

    fn roll(&self, snapshot: &Snapshot, plan: &mut Plan) {
        let total: i64 = self.sets().map(wanted).sum();
        let room = (self.replicas + self.max_surge - total).max(0);
        let current = self.new.map_or(0, wanted);
        let next = if current > self.replicas {
            self.replicas
        } else {
            current + room.min(self.replicas - current)
        };
        if self.ensure_new(snapshot, next, plan) {
            return;
        }
        let Some(new) = self.new else { return };
        let min_available = self.replicas - self.max_unavailable;
        let mut removable = total - min_available - (wanted(new) - available(new));
        for set in self.old.iter().filter(|set| wanted(set) > 0) {
            // Pods that are not available go first, whichever set they are in.
            let unhealthy = removable.max(0).min(wanted(set) - available(set));
            removable -= unhealthy;
            let all_available: i64 = self.sets().map(available).sum();
            let spare = removable
                .min(all_available - min_available)
                .min(available(set))
                .max(0);
            let healthy = if unhealthy > 0 { 0 } else { spare };
            removable -= healthy;
            scale(set, wanted(set) - unhealthy - healthy, plan);
            if healthy > 0 {
                return;
            }
        }
    }

    /// Creates or scales the set with today's template. Returns false if there is nothing to do.
    fn ensure_new(&self, snapshot: &Snapshot, replicas: i64, plan: &mut Plan) -> bool {
        let revision = self
            .old
            .iter()
            .filter_map(|set| revision(set))
            .max()
            .unwrap_or(0)
            + 1;
        let Some(new) = self.new else {
            let set = self.new_set(replicas, revision);
            if snapshot
                .get(SETS, namespace(self.object), name(&set))
                .is_none()
            {
                plan.create(SETS, set);
            }
            return true;
        };
        let seconds = &self.object["spec"]["minReadySeconds"];
        let is_newest = self::revision(new).is_some_and(|current| current >= revision);
        if wanted(new) == replicas && is_newest && new["spec"]["minReadySeconds"] == *seconds {
            return false;
        }
        let mut next = new.clone();
        next["spec"]["replicas"] = json!(replicas);
        if !is_newest {
            next["metadata"]["annotations"][REVISION] = json!(revision.to_string());
        }
        next["spec"]["minReadySeconds"] = seconds.clone();
        plan.update(SETS, new, next);
        true
    }

    fn new_set(&self, replicas: i64, revision: i64) -> Value {
        let template = &self.object["spec"]["template"];
        let digest = fingerprint(&json!([template, uid(self.object)]));
        let mut set = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": format!("{}-{digest}", name(self.object)), "namespace": namespace(self.object),
                "labels": template["metadata"]["labels"], "annotations": self.object["metadata"]["annotations"],
                "ownerReferences": [owner_reference(self.object, "apps/v1", "Deployment")],
            },
            "spec": {
                "replicas": replicas, "selector": self.object["spec"]["selector"], "template": template,
            },
        });
        if !self.object["spec"]["minReadySeconds"].is_null() {
            set["spec"]["minReadySeconds"] = self.object["spec"]["minReadySeconds"].clone();
        }
        set["metadata"]["labels"][TEMPLATE_HASH] = json!(digest);
        set["spec"]["selector"]["matchLabels"][TEMPLATE_HASH] = json!(digest);
        set["spec"]["template"]["metadata"]["labels"][TEMPLATE_HASH] = json!(digest);
        set["metadata"]["annotations"][REVISION] = json!(revision.to_string());
        drop_field(
            &mut set["metadata"]["annotations"],
            "kubectl.kubernetes.io/last-applied-configuration",
        );
        set
    }
}

/// The revision of a Deployment or a `ReplicaSet`.
fn revision(object: &Value) -> Option<i64> {
    text(&object["metadata"]["annotations"][REVISION])
        .parse()
        .ok()
}

fn scale(set: &Value, replicas: i64, plan: &mut Plan) {
    if wanted(set) == replicas {
        return;
    }
    let mut next = set.clone();
    next["spec"]["replicas"] = json!(replicas);
    plan.update(SETS, set, next);
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            fields::{condition, items},
            testing::{Cluster, workload},
        },
        *,
    };

    fn deployment(replicas: i64, strategy: &Value) -> Value {
        let mut spec = workload("web", replicas, &json!({}));
        spec["strategy"] = strategy.clone();
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": spec })
    }

    fn three(strategy: &Value) -> Cluster {
        let mut cluster = Cluster::with_nodes(&["n1", "n2"]);
        cluster.add("deployments.apps", deployment(3, strategy));
        cluster.pass(2);
        cluster
    }

    fn images(cluster: &Cluster) -> Vec<String> {
        cluster
            .pods()
            .iter()
            .map(|pod| text(&pod["spec"]["containers"][0]["image"]).to_owned())
            .collect()
    }

    fn set_image(cluster: &mut Cluster, image: &str) {
        cluster.change("deployments.apps", "web", |web| {
            web["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        });
    }

    #[test]
    fn a_deployment_of_three_comes_up() {
        let cluster = three(&json!({}));
        let web = cluster.object("deployments.apps", "web");
        assert_eq!(
            (cluster.ready(), web["status"]["availableReplicas"].as_i64()),
            (3, Some(3)),
            "{web:#}"
        );
        let addresses: std::collections::BTreeSet<String> = cluster
            .pods()
            .iter()
            .map(|pod| text(&pod["status"]["podIP"]).to_owned())
            .collect();
        assert_eq!(addresses.len(), 3);
        assert_eq!(
            web["status"]["observedGeneration"],
            web["metadata"]["generation"]
        );
        assert_eq!(web["metadata"]["annotations"][REVISION], "1");
        assert_eq!(condition(&web, "Available")["status"], "True");
    }

    #[test]
    fn a_rolling_update_never_goes_below() {
        for (strategy, least, most) in [
            (
                json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } }),
                3,
                4,
            ),
            (
                json!({ "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 } }),
                2,
                3,
            ),
            (
                json!({ "rollingUpdate": { "maxSurge": "100%", "maxUnavailable": "50%" } }),
                2,
                6,
            ),
        ] {
            let mut cluster = three(&strategy);
            set_image(&mut cluster, "web:2");
            cluster.pass_and(60, |cluster| {
                let active = cluster.pods().iter().filter(|pod| !is_ending(pod)).count();
                assert!(
                    cluster.ready() >= least && active <= most,
                    "{strategy}: {} of {active}",
                    cluster.ready()
                );
            });
            assert_eq!(images(&cluster), ["web:2"; 3]);
            assert_eq!(
                cluster.object("deployments.apps", "web")["metadata"]["annotations"][REVISION],
                "2"
            );
        }
    }

    #[test]
    fn an_update_that_does_not_start_leaves_the_old_pods() {
        let mut cluster = three(&json!({}));
        cluster.change("deployments.apps", "web", |web| {
            web["spec"]["template"]["metadata"]["annotations"] =
                json!({ "simulation.test/image-missing": "true" });
        });
        cluster.pass(700);
        assert_eq!((cluster.ready(), cluster.pods().len()), (3, 4));
        // The template of the first revision is wanted again.
        cluster.change("deployments.apps", "web", |web| {
            web["spec"]["template"]["metadata"]["annotations"] = json!({});
        });
        cluster.pass(10);
        assert_eq!((cluster.ready(), cluster.pods().len()), (3, 3));
        assert_eq!(
            cluster.object("deployments.apps", "web")["metadata"]["annotations"][REVISION],
            "3"
        );
    }

    #[test]
    fn a_deployment_takes_its_pods_along() {
        for propagation in ["Background", "Foreground"] {
            let mut cluster = three(&json!({}));
            cluster.delete("deployments.apps", "web", Some(propagation));
            cluster.pass(60);
            assert!(cluster.pods().is_empty() && cluster.list_all("replicasets.apps").is_empty());
        }
        let mut cluster = three(&json!({}));
        cluster.delete("deployments.apps", "web", Some("Orphan"));
        cluster.pass(60);
        let sets = cluster.list_all("replicasets.apps");
        assert!(
            sets.len() == 1
                && items(&sets[0]["metadata"]["ownerReferences"]).is_empty()
                && cluster.ready() == 3
        );
    }
}
