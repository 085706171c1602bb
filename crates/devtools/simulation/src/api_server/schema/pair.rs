//! A value and what it was before: errors of what did not change are not errors of a change.

use serde_json::Value;

use super::Node;

#[derive(Clone, Copy)]
pub struct Pair<'a> {
    pub node: &'a Node,
    pub new: &'a Value,
    pub old: &'a Value,
}

impl<'a> Pair<'a> {
    /// The pair of a field, if both objects have the field.
    pub fn field(self, key: &str) -> Option<Pair<'a>> {
        let (new, old) = (
            self.new.as_object()?.get(key)?,
            self.old.as_object()?.get(key)?,
        );
        Some(Pair {
            node: self.node.field(key)?,
            new,
            old,
        })
    }

    /// The pair of an item: only lists with keys tell which item was which.
    pub fn item(self, index: usize) -> Option<Pair<'a>> {
        let new = self.new.as_array()?.get(index)?;
        let old = self.node.item_like(new, self.old)?;
        Some(Pair {
            node: self.node.items.as_deref()?,
            new,
            old,
        })
    }

    /// Whether the value is the old one, as kube-apiserver compares: what a schema does not know
    /// has changed.
    pub fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                let same = |index| {
                    self.item(index)
                        .map_or(self.node.keys.is_empty() && new == old, Pair::is_unchanged)
                };
                new.len() == old.len() && (0..new.len()).all(same)
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && new
                        .keys()
                        .all(|key| self.field(key).is_some_and(Pair::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}
