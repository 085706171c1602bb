//! The objects of one decision, with the indexes that several controllers use. It remembers what
//! was read.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    MissingNodes, Objects, Settings,
    fields::{controller, name, namespace, text},
};

pub struct Snapshot<'a> {
    objects: &'a dyn Objects,
    pub now: Timestamp,
    pub settings: &'a Settings,
    pub missing_nodes: MissingNodes,
    nodes: OnceCell<Vec<Arc<Value>>>,
    pods: OnceCell<Pods>,
    read: RefCell<ReadObjects>,
}

/// The lists and objects that a controller has read, each with its version.
#[derive(Debug, Default)]
pub struct ReadObjects {
    /// Which resources have objects, whatever they are.
    resources: bool,
    /// By resource, the number of its newest change.
    lists: BTreeMap<String, u64>,
    /// By resource, namespace and name.
    objects: BTreeMap<[String; 3], Option<Arc<Value>>>,
}

impl ReadObjects {
    /// Whether somebody who reads it again reads the same.
    pub fn is_still_so(&self, objects: &dyn Objects) -> bool {
        let is_same_list =
            |(resource, number): (&String, &u64)| objects.changed(resource) == *number;
        let is_same_object = |([resource, namespace, name], object): (&[String; 3], &Option<_>)| {
            is_same(
                objects.get(resource, namespace, name).as_ref(),
                object.as_ref(),
            )
        };
        !self.resources
            && self.lists.iter().all(is_same_list)
            && self.objects.iter().all(is_same_object)
    }
}

/// Whether this is one object in one version: objects are replaced, not changed.
fn is_same(one: Option<&Arc<Value>>, other: Option<&Arc<Value>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

/// All pods, and where each one is in the list.
struct Pods {
    all: Vec<Arc<Value>>,
    by_controller: HashMap<String, Vec<usize>>,
    by_namespace: HashMap<String, Vec<usize>>,
    by_node: HashMap<String, Vec<usize>>,
}

impl Pods {
    fn of(all: Vec<Arc<Value>>) -> Self {
        let mut by_controller: HashMap<String, Vec<usize>> = HashMap::new();
        let mut by_namespace: HashMap<String, Vec<usize>> = HashMap::new();
        let mut by_node: HashMap<String, Vec<usize>> = HashMap::new();
        let add = |to: &mut HashMap<String, Vec<usize>>, key: &str, index| {
            to.entry(key.to_owned()).or_default().push(index);
        };
        for (index, pod) in all.iter().enumerate() {
            add(&mut by_namespace, namespace(pod), index);
            if let Some(owner) = controller(pod) {
                add(&mut by_controller, text(&owner["uid"]), index);
            }
            let node = text(&pod["spec"]["nodeName"]);
            if !node.is_empty() {
                add(&mut by_node, node, index);
            }
        }
        Self {
            all,
            by_controller,
            by_namespace,
            by_node,
        }
    }

    fn select<'s>(&'s self, indexes: Option<&'s Vec<usize>>) -> impl Iterator<Item = &'s Value> {
        indexes
            .into_iter()
            .flatten()
            .filter_map(|index| self.all.get(*index))
            .map(|pod| &**pod)
    }
}

impl<'a> Snapshot<'a> {
    pub fn new(objects: &'a dyn Objects, now: Timestamp, settings: &'a Settings) -> Self {
        Self {
            objects,
            now,
            settings,
            missing_nodes: MissingNodes::new(),
            nodes: OnceCell::new(),
            pods: OnceCell::new(),
            read: RefCell::default(),
        }
    }

    /// Returns what was read since the last call.
    pub fn take_read(&self) -> ReadObjects {
        self.read.take()
    }

    pub fn list(&self, resource: &str) -> Vec<Arc<Value>> {
        self.list_in(resource, "")
    }

    /// An empty namespace means all.
    pub fn list_in(&self, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.note_list(resource);
        self.objects.list(resource, namespace)
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let object = self.objects.get(resource, namespace, name);
        let key = [resource, namespace, name].map(str::to_owned);
        self.read.borrow_mut().objects.insert(key, object.clone());
        object
    }

    /// All resources that have objects.
    pub fn resources(&self) -> Vec<String> {
        self.read.borrow_mut().resources = true;
        self.objects.resources()
    }

    fn note_list(&self, resource: &str) {
        let mut read = self.read.borrow_mut();
        if !read.lists.contains_key(resource) {
            let number = self.objects.changed(resource);
            read.lists.insert(resource.to_owned(), number);
        }
    }

    pub fn nodes(&self) -> &[Arc<Value>] {
        self.note_list("nodes");
        self.nodes.get_or_init(|| self.objects.list("nodes", ""))
    }

    pub fn node(&self, wanted: &str) -> Option<&Value> {
        self.nodes()
            .iter()
            .map(|node| &**node)
            .find(|node| name(node) == wanted)
    }

    pub fn pods(&self) -> &[Arc<Value>] {
        &self.indexed_pods().all
    }

    pub fn pods_of(&self, controller_uid: &str) -> impl Iterator<Item = &Value> {
        let pods = self.indexed_pods();
        pods.select(pods.by_controller.get(controller_uid))
    }

    pub fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &Value> {
        let pods = self.indexed_pods();
        pods.select(pods.by_namespace.get(namespace))
    }

    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Value> {
        let pods = self.indexed_pods();
        pods.select(pods.by_node.get(node))
    }

    fn indexed_pods(&self) -> &Pods {
        self.note_list("pods");
        self.pods
            .get_or_init(|| Pods::of(self.objects.list("pods", "")))
    }
}
