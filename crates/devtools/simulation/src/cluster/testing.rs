//! A cluster in memory for tests: an API server of a few lines, and time that moves.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_server::kinds::Kinds;

use super::{
    Memory, Objects, Settings, Write, decide,
    fields::{after, is_ending, items, text, time_text},
    pods::is_finished,
};

/// Calls without rest after which a test fails.
const MAX_CALLS: usize = 200;

pub struct Cluster {
    objects: BTreeMap<(String, String, String), Arc<Value>>,
    pub now: Timestamp,
    pub settings: Settings,
    memory: Memory,
    /// Of a hundred writes, how many fail.
    pub failures: u64,
    pub draws: u64,
    counter: u64,
    next: Option<Timestamp>,
}

impl Objects for Cluster {
    fn list(&self, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        let first = (resource.to_owned(), namespace.to_owned(), String::new());
        let following = self
            .objects
            .range(first..)
            .take_while(|(key, _)| key.0 == resource);
        following
            .filter(|(key, _)| namespace.is_empty() || key.1 == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects
            .get(&(resource.to_owned(), namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    fn resources(&self) -> Vec<String> {
        let mut all: Vec<String> = self.objects.keys().map(|key| key.0.clone()).collect();
        all.dedup();
        all
    }

    fn ownership(&self) -> u64 {
        self.counter
    }

    fn changed(&self, _: &str) -> u64 {
        self.counter
    }
}

impl Cluster {
    /// With the namespace `default` and these nodes, which have kubelets.
    pub fn with_nodes(names: &[&str]) -> Self {
        let (now, settings) = ("2026-01-01T00:00:00Z".parse().unwrap(), Settings::default());
        let mut cluster = Self {
            objects: BTreeMap::new(),
            now,
            settings,
            memory: Memory::default(),
            failures: 0,
            draws: 1,
            counter: 0,
            next: None,
        };
        for namespace in ["default", "kube-node-lease"] {
            cluster.add_namespace(namespace);
        }
        for (index, name) in names.iter().enumerate() {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": { "name": name, "labels": { "simulation.test/kubelet": "true", "host": name } },
                "status": {
                    "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "10" },
                    "addresses": [{ "type": "InternalIP", "address": format!("192.168.0.{}", index + 1) }],
                },
            });
            cluster.add("nodes", node);
        }
        cluster.settle();
        cluster
    }

    pub fn add_namespace(&mut self, name: &str) {
        let spec = json!({ "finalizers": ["kubernetes"] });
        self.add("namespaces", json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name }, "spec": spec }));
    }

    /// Creates an object, in the namespace `default` if it is of a namespaced kind and names no
    /// other.
    pub fn add(&mut self, resource: &str, mut object: Value) {
        let metadata = &mut object["metadata"];
        if !["namespaces", "nodes"].contains(&resource) && metadata["namespace"].is_null() {
            metadata["namespace"] = json!("default");
        }
        self.counter += 1;
        if metadata["name"].is_null() {
            metadata["name"] = json!(format!(
                "{}{}",
                text(&metadata["generateName"]),
                self.counter
            ));
        }
        metadata["uid"] = json!(format!("uid-{}", self.counter));
        metadata["creationTimestamp"] = json!(time_text(self.now));
        metadata["generation"] = json!(1);
        let key = (
            resource.to_owned(),
            text(&metadata["namespace"]).to_owned(),
            text(&metadata["name"]).to_owned(),
        );
        if let Some(kind) = Kinds::built_in()
            .iter()
            .find(|kind| kind.resource() == resource)
        {
            (object["apiVersion"], object["kind"]) = (json!(kind.api_version()), json!(kind.kind));
        }
        assert!(!self.objects.contains_key(&key), "{key:?} exists already");
        if resource == "pods" {
            object["status"]["phase"] = json!("Pending");
        }
        self.put(key, object);
    }

    fn put(&mut self, key: (String, String, String), mut object: Value) {
        self.counter += 1;
        object["metadata"]["resourceVersion"] = json!(self.counter.to_string());
        let is_held = !items(&object["metadata"]["finalizers"]).is_empty()
            || key.0 == "namespaces" && !items(&object["spec"]["finalizers"]).is_empty()
            || object["metadata"]["deletionGracePeriodSeconds"]
                .as_i64()
                .unwrap_or(0)
                > 0;
        if is_ending(&object) && !is_held {
            self.objects.remove(&key);
            self.counter += 1;
        } else {
            self.objects.insert(key, Arc::new(object));
        }
    }

    pub fn object(&self, resource: &str, name: &str) -> Value {
        let namespace = if ["namespaces", "nodes"].contains(&resource) {
            ""
        } else {
            "default"
        };
        self.get(resource, namespace, name)
            .map(|object| (*object).clone())
            .unwrap_or_default()
    }

    /// Changes an object as its user would.
    pub fn change(&mut self, resource: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.object(resource, name);
        assert!(!object.is_null(), "{resource} {name} does not exist");
        change(&mut object);
        object["metadata"]["generation"] =
            json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        self.put(
            (
                resource.to_owned(),
                text(&object["metadata"]["namespace"]).to_owned(),
                name.to_owned(),
            ),
            object,
        );
    }

    pub fn delete(&mut self, resource: &str, name: &str, propagation: Option<&str>) {
        let object = self.object(resource, name);
        self.remove(resource, &object, None, propagation);
    }

    fn remove(
        &mut self,
        resource: &str,
        object: &Value,
        grace: Option<i64>,
        propagation: Option<&str>,
    ) {
        let mut object = object.clone();
        let is_running =
            resource == "pods" && !object["spec"]["nodeName"].is_null() && !is_finished(&object);
        let own = object["spec"]["terminationGracePeriodSeconds"]
            .as_i64()
            .unwrap_or(30);
        let grace = if is_running { grace.unwrap_or(own) } else { 0 };
        let finalizer = [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")];
        if let Some((_, finalizer)) = finalizer
            .into_iter()
            .find(|(name, _)| Some(*name) == propagation)
        {
            let mut finalizers = items(&object["metadata"]["finalizers"]).to_vec();
            finalizers.push(json!(finalizer));
            object["metadata"]["finalizers"] = json!(finalizers);
        }
        if !is_ending(&object)
            || grace
                < object["metadata"]["deletionGracePeriodSeconds"]
                    .as_i64()
                    .unwrap_or(0)
        {
            object["metadata"]["deletionTimestamp"] = json!(time_text(after(self.now, grace)));
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        }
        let key = (
            resource.to_owned(),
            text(&object["metadata"]["namespace"]).to_owned(),
            text(&object["metadata"]["name"]).to_owned(),
        );
        self.put(key, object);
    }

    /// The next number below the bound, of a sequence that `draws` began.
    pub fn draw(&mut self, bound: u64) -> u64 {
        self.draws = self
            .draws
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) % bound
    }

    /// Applies a write. A conflict is no error.
    fn apply(&mut self, write: Write) {
        if self.failures > 0 && self.draw(100) < self.failures {
            return;
        }
        match write {
            Write::Create {
                resource,
                namespace,
                object,
            } => {
                assert_eq!(text(&object["metadata"]["namespace"]), namespace);
                let of_namespace = self.get("namespaces", "", &namespace);
                let is_open =
                    namespace.is_empty() || of_namespace.is_some_and(|one| !is_ending(&one));
                if is_open {
                    self.add(&resource, object);
                }
            }
            Write::Update {
                resource,
                namespace,
                name,
                object,
            } => self.replace(resource, namespace, name, object, false),
            Write::UpdateStatus {
                resource,
                namespace,
                name,
                object,
            } => self.replace(resource, namespace, name, object, true),
            Write::Finalize { object } => {
                let name = text(&object["metadata"]["name"]).to_owned();
                self.replace("namespaces".to_owned(), String::new(), name, object, false);
            }
            Write::Bind {
                namespace,
                pod,
                node,
            } => {
                let mut bound = (*self.get("pods", &namespace, &pod).unwrap()).clone();
                assert!(
                    bound["spec"]["nodeName"].is_null(),
                    "{pod} is bound already"
                );
                bound["spec"]["nodeName"] = json!(node);
                let condition = super::fields::new_condition("PodScheduled", true, "", "");
                super::fields::set_condition(&mut bound["status"], &condition, self.now);
                self.put(("pods".to_owned(), namespace, pod), bound);
            }
            Write::Delete {
                resource,
                namespace,
                name,
                uid,
                grace_seconds,
                propagation,
            } => {
                if let Some(object) = self
                    .get(&resource, &namespace, &name)
                    .filter(|object| object["metadata"]["uid"] == uid)
                {
                    self.remove(&resource, &object, grace_seconds, propagation);
                }
            }
        }
    }

    fn replace(
        &mut self,
        resource: String,
        namespace: String,
        name: String,
        new: Value,
        is_status: bool,
    ) {
        let Some(old) = self.get(&resource, &namespace, &name) else {
            return;
        };
        if old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"] {
            return;
        }
        let mut object = (*old).clone();
        if is_status {
            assert_ne!(
                old["status"], new["status"],
                "a status of {resource} {name} that changes nothing"
            );
            object["status"] = new["status"].clone();
        } else {
            let status = object["status"].take();
            let is_new_spec = old["spec"] != new["spec"];
            object = new;
            object["status"] = status;
            if is_new_spec {
                object["metadata"]["generation"] =
                    json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
            }
        }
        self.put((resource, namespace, name), object);
    }

    /// Lets the controllers work until they rest.
    pub fn settle(&mut self) {
        self.settle_and(|_| {});
    }

    /// The same, with a check after every change.
    pub fn settle_and(&mut self, mut check: impl FnMut(&Self)) {
        for _ in 0..MAX_CALLS {
            let writes = self.decide();
            if writes.is_empty() {
                return;
            }
            for write in writes {
                self.apply(write);
                check(self);
            }
        }
        panic!("the controllers do not come to rest: {:#?}", self.decide());
    }

    fn decide(&mut self) -> Vec<Write> {
        let mut memory = std::mem::take(&mut self.memory);
        let (writes, next) = decide(self, self.now, &self.settings, &mut memory);
        (self.memory, self.next) = (memory, next);
        writes
    }

    /// Lets time pass.
    pub fn pass(&mut self, seconds: i64) {
        self.pass_and(seconds, |_| {});
    }

    /// Lets time pass, with a check after every change.
    pub fn pass_and(&mut self, seconds: i64, mut check: impl FnMut(&Self)) {
        let end = after(self.now, seconds);
        self.settle_and(&mut check);
        while let Some(next) = self.next.filter(|next| *next <= end) {
            assert!(next > self.now, "asked for a time that has passed");
            self.now = next;
            self.settle_and(&mut check);
        }
        self.now = end;
        self.settle_and(&mut check);
    }

    pub fn pods(&self) -> Vec<Arc<Value>> {
        self.list("pods", "default")
    }

    pub fn list_all(&self, resource: &str) -> Vec<Arc<Value>> {
        self.list(resource, "")
    }

    /// Pods that are ready and do not end.
    pub fn ready(&self) -> usize {
        self.pods()
            .iter()
            .filter(|pod| super::pods::is_ready(pod) && !is_ending(pod))
            .count()
    }

    pub fn pod_names(&self) -> Vec<String> {
        self.pods()
            .iter()
            .map(|pod| text(&pod["metadata"]["name"]).to_owned())
            .collect()
    }
}

/// The spec of a set of pods with the label `app`, and a template with these annotations.
pub fn workload(app: &str, replicas: i64, annotations: &Value) -> Value {
    json!({
        "replicas": replicas, "selector": { "matchLabels": { "app": app } },
        "template": {
            "metadata": { "labels": { "app": app }, "annotations": annotations },
            "spec": { "containers": [{ "name": "c", "image": "web:1" }], "restartPolicy": "Always" },
        },
    })
}

/// The annotations that choose a pod's behaviour.
pub fn annotated(behaviour: &[(&str, &str)]) -> Value {
    behaviour
        .iter()
        .map(|(name, value)| (format!("simulation.test/{name}"), *value))
        .collect()
}

/// A pod with one container.
pub fn pod(name: &str, annotations: &Value, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name }, "annotations": annotations },
        "spec": { "containers": [{ "name": "c", "image": "web:1" }], "restartPolicy": "Always" },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}
