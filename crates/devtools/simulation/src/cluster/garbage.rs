//! The garbage collector: objects whose owners are gone, and owners that wait for what they own.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::Value;

use super::{
    fields::{has_finalizer, is_ending, items, namespace, remove_finalizer, text, uid},
    plan::Plan,
    snapshot::Snapshot,
};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Cluster-scoped kinds of Kubernetes that own something, or are owned.
const CLUSTER_SCOPED: [&str; 14] = [
    "certificatesigningrequests.certificates.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "ingressclasses.networking.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "namespaces",
    "nodes",
    "persistentvolumes",
    "priorityclasses.scheduling.k8s.io",
    "storageclasses.storage.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
];

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let all: Vec<(String, Vec<Arc<Value>>)> =
        resources(snapshot).into_iter().map(|resource| (resource.clone(), snapshot.list(&resource))).collect();
    let graph = Graph::of(all.iter().flat_map(|(_, objects)| objects).map(|object| &**object));
    for (resource, objects) in &all {
        for object in objects {
            graph.collect(resource, object, plan);
            graph.finish(resource, object, plan);
        }
    }
}

/// The kinds whose objects can own or be owned.
fn resources(snapshot: &Snapshot) -> BTreeSet<String> {
    let mut resources: BTreeSet<String> = CLUSTER_SCOPED.iter().map(|resource| (*resource).to_owned()).collect();
    resources.extend(snapshot.objects.resources());
    for definition in snapshot.list("customresourcedefinitions.apiextensions.k8s.io") {
        let spec = &definition["spec"];
        if spec["scope"] == "Cluster" {
            resources.insert(format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"])));
        }
    }
    resources
}

/// Who owns whom.
struct Graph<'a> {
    objects: HashMap<&'a str, &'a Value>,
    dependents: HashMap<&'a str, Vec<&'a Value>>,
}

/// What an owner reference refers to.
#[derive(PartialEq)]
enum Owner {
    Gone,
    /// It ends, and waits until what it owns is gone.
    Waits,
    /// It ends, and leaves what it owns.
    Leaves,
    Exists,
}

impl<'a> Graph<'a> {
    fn of(all: impl Iterator<Item = &'a Value>) -> Self {
        let mut graph = Self { objects: HashMap::new(), dependents: HashMap::new() };
        for object in all {
            graph.objects.insert(uid(object), object);
            for owner in items(&object["metadata"]["ownerReferences"]) {
                graph.dependents.entry(text(&owner["uid"])).or_default().push(object);
            }
        }
        graph
    }

    fn dependents(&self, object: &Value) -> &[&'a Value] {
        self.dependents.get(uid(object)).map_or(&[], Vec::as_slice)
    }

    fn owner(&self, object: &Value, reference: &Value) -> Owner {
        // As in Kubernetes: an owner in another namespace does not count, and one in a namespace never owns what is in none.
        let is_near = |owner: &&&Value| [namespace(object), ""].contains(&namespace(owner)) || namespace(object).is_empty();
        match self.objects.get(text(&reference["uid"])).filter(is_near) {
            None => Owner::Gone,
            Some(owner) if is_ending(owner) && has_finalizer(owner, FOREGROUND) => Owner::Waits,
            Some(owner) if is_ending(owner) && has_finalizer(owner, ORPHAN) => Owner::Leaves,
            Some(_) => Owner::Exists,
        }
    }

    /// Deletes an object without owners, or removes references to those that are gone.
    fn collect(&self, resource: &str, object: &Value, plan: &mut Plan) {
        let references = items(&object["metadata"]["ownerReferences"]);
        if references.is_empty() || is_ending(object) {
            return;
        }
        let owners: Vec<Owner> = references.iter().map(|reference| self.owner(object, reference)).collect();
        if owners.iter().all(|owner| *owner == Owner::Exists) {
            return;
        }
        if owners.contains(&Owner::Exists) || owners.contains(&Owner::Leaves) {
            let kept =
                references.iter().zip(&owners).filter(|(_, owner)| **owner == Owner::Exists).map(|(reference, _)| reference);
            let mut next = object.clone();
            next["metadata"]["ownerReferences"] = kept.cloned().collect();
            return plan.update(resource, object, next);
        }
        let waits = owners.contains(&Owner::Waits) && !self.dependents(object).is_empty();
        let propagation = match () {
            () if waits || has_finalizer(object, FOREGROUND) => "Foreground",
            () if has_finalizer(object, ORPHAN) => "Orphan",
            () => "Background",
        };
        plan.delete_with(resource, object, None, Some(propagation));
    }

    /// Removes the finalizers of propagation when they are no longer needed.
    fn finish(&self, resource: &str, object: &Value, plan: &mut Plan) {
        if !is_ending(object) {
            return;
        }
        let is_own = |reference: &&Value| text(&reference["uid"]) == uid(object);
        let blocks = |dependent: &&Value| {
            items(&dependent["metadata"]["ownerReferences"]).iter().filter(is_own).any(|one| one["blockOwnerDeletion"] == true)
        };
        if has_finalizer(object, FOREGROUND) && !self.dependents(object).iter().any(blocks) {
            return release(resource, object, FOREGROUND, plan);
        }
        if has_finalizer(object, ORPHAN) && self.dependents(object).is_empty() {
            release(resource, object, ORPHAN, plan);
        }
    }
}

fn release(resource: &str, object: &Value, finalizer: &str, plan: &mut Plan) {
    let mut next = object.clone();
    remove_finalizer(&mut next, finalizer);
    plan.update(resource, object, next);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::testing::Cluster, *};

    /// An object with owners, which may be of another namespace or not exist.
    fn add(cluster: &mut Cluster, name: &str, owners: &[&str]) {
        let owners: Vec<Value> = owners.iter().map(|owner| json!({ "uid": owner, "blockOwnerDeletion": true })).collect();
        cluster.add("configmaps", json!({ "metadata": { "name": name, "ownerReferences": owners } }));
    }

    fn uid_of(cluster: &Cluster, name: &str) -> String {
        uid(&cluster.object("configmaps", name)).to_owned()
    }

    fn exists(cluster: &Cluster, name: &str) -> bool {
        !cluster.object("configmaps", name).is_null()
    }

    #[test]
    fn an_object_goes_with_its_last_owner() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        add(&mut cluster, "a", &[]);
        add(&mut cluster, "b", &[]);
        let owners = [uid_of(&cluster, "a"), uid_of(&cluster, "b")];
        add(&mut cluster, "child", &[&owners[0], &owners[1]]);
        let node = cluster.object("nodes", "n1");
        add(&mut cluster, "of-node", &[uid(&node)]);
        cluster.delete("configmaps", "a", None);
        cluster.settle();
        assert_eq!(items(&cluster.object("configmaps", "child")["metadata"]["ownerReferences"]).len(), 1);
        cluster.delete("configmaps", "b", None);
        cluster.settle();
        assert!(!exists(&cluster, "child") && exists(&cluster, "of-node"));
        cluster.delete("nodes", "n1", None);
        cluster.settle();
        assert!(!exists(&cluster, "of-node"));
    }

    #[test]
    fn an_owner_in_another_namespace_does_not_count() {
        let mut cluster = Cluster::with_nodes(&[]);
        cluster.add_namespace("other");
        cluster.add("configmaps", json!({ "metadata": { "name": "owner", "namespace": "other" } }));
        let owner =
            cluster.list_all("configmaps").iter().find(|map| map["metadata"]["name"] == "owner").map(|map| uid(map).to_owned());
        add(&mut cluster, "child", &[&owner.unwrap()]);
        cluster.settle();
        assert!(!exists(&cluster, "child"));
    }

    #[test]
    fn in_the_foreground_the_owner_waits() {
        let mut cluster = Cluster::with_nodes(&[]);
        add(&mut cluster, "owner", &[]);
        let owner = uid_of(&cluster, "owner");
        add(&mut cluster, "child", &[&owner]);
        let child = uid_of(&cluster, "child");
        add(&mut cluster, "grandchild", &[&child]);
        cluster.change("configmaps", "grandchild", |object| object["metadata"]["finalizers"] = json!(["example.com/hold"]));
        cluster.delete("configmaps", "owner", Some("Foreground"));
        cluster.settle();
        assert!(["owner", "child", "grandchild"].iter().all(|name| exists(&cluster, name)));
        cluster.change("configmaps", "grandchild", |object| object["metadata"]["finalizers"] = json!([]));
        cluster.settle();
        assert!(!["owner", "child", "grandchild"].iter().any(|name| exists(&cluster, name)));
    }

    #[test]
    fn an_owner_may_leave_what_it_owns() {
        let mut cluster = Cluster::with_nodes(&[]);
        add(&mut cluster, "owner", &[]);
        let owner = uid_of(&cluster, "owner");
        add(&mut cluster, "child", &[&owner]);
        cluster.delete("configmaps", "owner", Some("Orphan"));
        cluster.settle();
        assert!(!exists(&cluster, "owner") && exists(&cluster, "child"));
    }
}
