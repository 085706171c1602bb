//! The garbage collector: objects whose owners are gone, and owners that wait for what they own.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;

use super::{
    fields::{has_finalizer, is_ending, items, namespace, remove_finalizer, text, uid},
    plan::Plan,
    snapshot::Snapshot,
};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let all: Vec<(String, Vec<Arc<Value>>)> = snapshot
        .resources()
        .into_iter()
        .map(|resource| {
            let objects = snapshot.list(&resource);
            (resource, objects)
        })
        .collect();
    let graph = Graph::of(snapshot, &all);
    for (resource, object) in &graph.owned {
        graph.collect(resource, object, plan);
    }
    for (resource, objects) in &all {
        for object in objects {
            graph.finish(resource, object, plan);
        }
    }
}

/// Who owns whom.
struct Graph<'a> {
    snapshot: &'a Snapshot<'a>,
    /// By `apiVersion` and kind.
    resources: HashMap<(&'a str, &'a str), &'a str>,
    /// The objects that name owners, with their resources.
    owned: Vec<(&'a str, &'a Value)>,
    /// By the uid of the owner.
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
    fn of(snapshot: &'a Snapshot<'a>, all: &'a [(String, Vec<Arc<Value>>)]) -> Self {
        let mut graph = Self {
            snapshot,
            resources: HashMap::new(),
            owned: Vec::new(),
            dependents: HashMap::new(),
        };
        for (resource, objects) in all {
            if let Some(first) = objects.first() {
                graph
                    .resources
                    .insert((text(&first["apiVersion"]), text(&first["kind"])), resource);
            }
            for object in objects {
                let owners = items(&object["metadata"]["ownerReferences"]);
                if !owners.is_empty() {
                    graph.owned.push((resource, object));
                }
                for owner in owners {
                    graph
                        .dependents
                        .entry(text(&owner["uid"]))
                        .or_default()
                        .push(object);
                }
            }
        }
        graph
    }

    fn dependents(&self, object: &Value) -> &[&'a Value] {
        self.dependents.get(uid(object)).map_or(&[], Vec::as_slice)
    }

    fn owner(&self, object: &Value, reference: &Value) -> Owner {
        match self
            .named_by(object, reference)
            .filter(|owner| uid(owner) == text(&reference["uid"]))
        {
            None => Owner::Gone,
            Some(owner) if is_ending(&owner) && has_finalizer(&owner, FOREGROUND) => Owner::Waits,
            Some(owner) if is_ending(&owner) && has_finalizer(&owner, ORPHAN) => Owner::Leaves,
            Some(_) => Owner::Exists,
        }
    }

    /// The object that a reference names: in the same namespace, or in none. As in Kubernetes, one
    /// in another namespace does not count.
    fn named_by(&self, object: &Value, reference: &Value) -> Option<Arc<Value>> {
        let resource = self
            .resources
            .get(&(text(&reference["apiVersion"]), text(&reference["kind"])))?;
        let in_namespace = |namespace: &str| {
            self.snapshot
                .get(resource, namespace, text(&reference["name"]))
        };
        in_namespace(namespace(object)).or_else(|| in_namespace(""))
    }

    /// Deletes an object without owners, or removes references to those that are gone.
    fn collect(&self, resource: &str, object: &Value, plan: &mut Plan) {
        let references = items(&object["metadata"]["ownerReferences"]);
        if references.is_empty() || is_ending(object) {
            return;
        }
        let owners: Vec<Owner> = references
            .iter()
            .map(|reference| self.owner(object, reference))
            .collect();
        if owners.iter().all(|owner| *owner == Owner::Exists) {
            return;
        }
        if owners.contains(&Owner::Exists) || owners.contains(&Owner::Leaves) {
            let kept = references
                .iter()
                .zip(&owners)
                .filter(|(_, owner)| **owner == Owner::Exists)
                .map(|(reference, _)| reference);
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
            items(&dependent["metadata"]["ownerReferences"])
                .iter()
                .filter(is_own)
                .any(|one| one["blockOwnerDeletion"] == true)
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

    /// An object with owners, which may be of another namespace.
    fn add(cluster: &mut Cluster, name: &str, owners: &[&Value]) {
        let reference = |owner: &&Value| {
            let metadata = &owner["metadata"];
            json!({
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"],
                "blockOwnerDeletion": true,
            })
        };
        let owners: Vec<Value> = owners.iter().map(reference).collect();
        cluster.add(
            "configmaps",
            json!({ "metadata": { "name": name, "ownerReferences": owners } }),
        );
    }

    fn map(cluster: &Cluster, name: &str) -> Value {
        cluster.object("configmaps", name)
    }

    fn exists(cluster: &Cluster, name: &str) -> bool {
        !map(cluster, name).is_null()
    }

    #[test]
    fn an_object_goes_with_its_last_owner() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        add(&mut cluster, "a", &[]);
        add(&mut cluster, "b", &[]);
        let owners = [map(&cluster, "a"), map(&cluster, "b")];
        add(&mut cluster, "child", &[&owners[0], &owners[1]]);
        let node = cluster.object("nodes", "n1");
        add(&mut cluster, "of-node", &[&node]);
        cluster.delete("configmaps", "a", None);
        cluster.settle();
        assert_eq!(
            items(&cluster.object("configmaps", "child")["metadata"]["ownerReferences"]).len(),
            1
        );
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
        cluster.add(
            "configmaps",
            json!({ "metadata": { "name": "owner", "namespace": "other" } }),
        );
        let all = cluster.list_all("configmaps");
        let owner = all
            .iter()
            .find(|map| map["metadata"]["name"] == "owner")
            .unwrap();
        add(&mut cluster, "child", &[owner]);
        cluster.settle();
        assert!(!exists(&cluster, "child"));
    }

    #[test]
    fn in_the_foreground_the_owner_waits() {
        let mut cluster = Cluster::with_nodes(&[]);
        add(&mut cluster, "owner", &[]);
        let owner = map(&cluster, "owner");
        add(&mut cluster, "child", &[&owner]);
        let child = map(&cluster, "child");
        add(&mut cluster, "grandchild", &[&child]);
        cluster.change("configmaps", "grandchild", |object| {
            object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        });
        cluster.delete("configmaps", "owner", Some("Foreground"));
        cluster.settle();
        assert!(
            ["owner", "child", "grandchild"]
                .iter()
                .all(|name| exists(&cluster, name))
        );
        cluster.change("configmaps", "grandchild", |object| {
            object["metadata"]["finalizers"] = json!([]);
        });
        cluster.settle();
        assert!(
            !["owner", "child", "grandchild"]
                .iter()
                .any(|name| exists(&cluster, name))
        );
    }

    #[test]
    fn an_owner_may_leave_what_it_owns() {
        let mut cluster = Cluster::with_nodes(&[]);
        add(&mut cluster, "owner", &[]);
        let owner = map(&cluster, "owner");
        add(&mut cluster, "child", &[&owner]);
        cluster.delete("configmaps", "owner", Some("Orphan"));
        cluster.settle();
        assert!(!exists(&cluster, "owner") && exists(&cluster, "child"));
    }
}
