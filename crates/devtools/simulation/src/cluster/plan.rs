//! The writes that the controllers want, and when they want to look again.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Write,
    fields::{name, namespace, uid},
};

pub struct Plan {
    now: Timestamp,
    writes: Vec<Write>,
    next: Option<Timestamp>,
}

impl Plan {
    pub fn at(now: Timestamp) -> Self {
        Self {
            now,
            writes: Vec::new(),
            next: None,
        }
    }

    pub fn finish(self) -> (Vec<Write>, Option<Timestamp>) {
        (self.writes, self.next)
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Adds the writes of another plan, and the time that it waits for.
    pub fn append(&mut self, other: Self) {
        self.writes.extend(other.writes);
        self.look_again(other.next);
    }

    /// The time of the next look that was asked for.
    pub fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Asks for a look at a time, if it is one.
    pub fn look_again(&mut self, time: Option<Timestamp>) {
        self.next = self.next.into_iter().chain(time).min();
    }

    /// Returns true if the time has come, or asks for a look at that time.
    pub fn is_due(&mut self, time: Timestamp) -> bool {
        if time <= self.now {
            return true;
        }
        self.look_again(Some(time));
        false
    }

    pub fn push(&mut self, write: Write) {
        self.writes.push(write);
    }

    pub fn create(&mut self, resource: &str, object: Value) {
        let namespace = namespace(&object).to_owned();
        self.push(Write::Create {
            resource: resource.to_owned(),
            namespace,
            object,
        });
    }

    /// Writes nothing if nothing changed.
    pub fn update(&mut self, resource: &str, old: &Value, object: Value) {
        if *old != object {
            let (namespace, name) = (namespace(old).to_owned(), name(old).to_owned());
            self.push(Write::Update {
                resource: resource.to_owned(),
                namespace,
                name,
                object,
            });
        }
    }

    /// Writes nothing if the status is the same.
    pub fn update_status(&mut self, resource: &str, old: &Value, status: Value) {
        if old["status"] != status {
            let mut object = old.clone();
            object["status"] = status;
            let (namespace, name) = (namespace(old).to_owned(), name(old).to_owned());
            self.push(Write::UpdateStatus {
                resource: resource.to_owned(),
                namespace,
                name,
                object,
            });
        }
    }

    /// Deletes with the default grace, in the background.
    pub fn delete(&mut self, resource: &str, object: &Value) {
        self.delete_with(resource, object, None, None);
    }

    pub fn delete_with(
        &mut self,
        resource: &str,
        object: &Value,
        grace: Option<i64>,
        propagation: Option<&'static str>,
    ) {
        let (resource, uid) = (resource.to_owned(), uid(object).to_owned());
        let (namespace, name) = (namespace(object).to_owned(), name(object).to_owned());
        self.push(Write::Delete {
            resource,
            namespace,
            name,
            uid,
            grace_seconds: grace,
            propagation,
        });
    }
}
