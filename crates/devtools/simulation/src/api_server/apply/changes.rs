//! The paths in which two objects differ.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    super::lists::{List, Node},
    paths::{Element, Path, Set},
    values::{Shape, fields_of, is_leaf, items_of, shape_of},
};

#[derive(Default)]
pub struct Changes {
    pub removed: Set,
    /// Paths with another value, or with one for the first time.
    pub written: Set,
}

impl Changes {
    pub fn between(root: Node, old: &Value, new: &Value) -> Self {
        let mut changes = Self::default();
        changes.compare(root, Some(old), Some(new), &mut Path::new());
        changes
    }

    fn compare(&mut self, node: Node, old: Option<&Value>, new: Option<&Value>, path: &mut Path) {
        let kind = node.kind();
        let shapes = [old, new].map(|value| value.map(|value| shape_of(kind, value)));
        let is_leaf = match shapes {
            [None, None] => return,
            [Some(shape), None] | [None, Some(shape)] => {
                self.descend(node, shape, [old, new], path)
            }
            [Some(before), Some(after)] => {
                if before != after {
                    self.descend(node, before, [old, new], path);
                }
                self.descend(node, after, [old, new], path)
            }
        };
        if path.is_empty() {
            return;
        }
        match (old, new) {
            (_, None) => drop(self.removed.insert(path.clone())),
            (None, _) => drop(self.written.insert(path.clone())),
            _ if is_leaf && old != new => drop(self.written.insert(path.clone())),
            _ => {}
        }
    }

    /// Compares what the values hold, unless they are a leaf.
    fn descend(
        &mut self,
        node: Node,
        shape: Shape,
        values: [Option<&Value>; 2],
        path: &mut Path,
    ) -> bool {
        let kind = node.kind();
        if is_leaf(kind, shape, values) {
            return true;
        }
        if let (Shape::List, Some(list)) = (shape, &kind.list) {
            self.compare_items(node, list, values, path);
            return false;
        }
        let names: BTreeSet<&String> = values
            .into_iter()
            .flat_map(fields_of)
            .map(|(name, _)| name)
            .collect();
        for name in names {
            let [old, new] = values.map(|value| value.and_then(|value| value.get(name)));
            if let Some(node) = node.field(name) {
                path.push(Element::Field(name.clone()));
                self.compare(node, old, new, path);
                path.pop();
            }
        }
        false
    }

    fn compare_items(
        &mut self,
        node: Node,
        list: &List,
        values: [Option<&Value>; 2],
        path: &mut Path,
    ) {
        let Some(node) = node.items() else { return };
        // Of items with the same keys, the last one counts.
        let [old, new] = values.map(|value| {
            items_of(list, value)
                .into_iter()
                .collect::<BTreeMap<_, _>>()
        });
        let elements: BTreeSet<&Element> = old.keys().chain(new.keys()).collect();
        for element in elements {
            path.push(element.clone());
            self.compare(
                node,
                old.get(element).copied(),
                new.get(element).copied(),
                path,
            );
            path.pop();
        }
    }
}
