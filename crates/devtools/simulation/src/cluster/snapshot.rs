//! The objects of one decision, with the indexes that several controllers use.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    MissingNodes, Objects, Settings,
    fields::{controller, name, namespace, text},
};

pub struct Snapshot<'a> {
    pub objects: &'a dyn Objects,
    pub now: Timestamp,
    pub settings: &'a Settings,
    pub missing_nodes: MissingNodes,
    pub nodes: Vec<Arc<Value>>,
    pub pods: Vec<Arc<Value>>,
    pods_by_controller: HashMap<String, Vec<usize>>,
    pods_by_namespace: HashMap<String, Vec<usize>>,
    pods_by_node: HashMap<String, Vec<usize>>,
}

impl<'a> Snapshot<'a> {
    pub fn read(objects: &'a dyn Objects, now: Timestamp, settings: &'a Settings) -> Self {
        let pods = objects.list("pods", "");
        let mut snapshot = Self {
            objects,
            now,
            settings,
            missing_nodes: MissingNodes::new(),
            nodes: objects.list("nodes", ""),
            pods: Vec::new(),
            pods_by_controller: HashMap::new(),
            pods_by_namespace: HashMap::new(),
            pods_by_node: HashMap::new(),
        };
        for (index, pod) in pods.iter().enumerate() {
            snapshot
                .pods_by_namespace
                .entry(namespace(pod).to_owned())
                .or_default()
                .push(index);
            if let Some(owner) = controller(pod) {
                snapshot
                    .pods_by_controller
                    .entry(text(&owner["uid"]).to_owned())
                    .or_default()
                    .push(index);
            }
            if !text(&pod["spec"]["nodeName"]).is_empty() {
                snapshot
                    .pods_by_node
                    .entry(text(&pod["spec"]["nodeName"]).to_owned())
                    .or_default()
                    .push(index);
            }
        }
        snapshot.pods = pods;
        snapshot
    }

    pub fn list(&self, resource: &str) -> Vec<Arc<Value>> {
        self.objects.list(resource, "")
    }

    pub fn node(&self, wanted: &str) -> Option<&Value> {
        self.nodes
            .iter()
            .map(|node| &**node)
            .find(|node| name(node) == wanted)
    }

    pub fn pods_of(&self, controller_uid: &str) -> impl Iterator<Item = &Value> {
        self.select(self.pods_by_controller.get(controller_uid))
    }

    pub fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &Value> {
        self.select(self.pods_by_namespace.get(namespace))
    }

    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Value> {
        self.select(self.pods_by_node.get(node))
    }

    fn select<'s>(&'s self, indexes: Option<&'s Vec<usize>>) -> impl Iterator<Item = &'s Value> {
        indexes
            .into_iter()
            .flatten()
            .filter_map(|index| self.pods.get(*index))
            .map(|pod| &**pod)
    }
}
