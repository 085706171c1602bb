//! Server-side apply: which manager owns which fields.
//!
//! The rules are those of `sigs.k8s.io/structured-merge-diff`, and of `managedfields` in
//! k8s.io/apimachinery:
//!
//! - A manager owns the fields that it applied last, or that its updates changed.
//! - An update takes fields from their owners. An apply does so only if it is forced.
//! - A field that its manager no longer applies is removed, unless another manager owns it.
//!
//! ```text
//!   configuration --> fit --> merge --> prune --> changes: conflicts? --> managers
//!   new object of an update ------------------> changes ----------------> managers
//! ```
//!
//! Kubernetes keeps at most ten managers of updates. Here an object has as many as write it.

mod changes;
mod fit;
mod managers;
mod merge;
mod paths;
mod prune;
#[cfg(test)]
mod tests;
mod values;

use serde_json::{Value, json};

use super::lists::Lists;

use changes::Changes;
use managers::{
    Entry, Managers, decode_managers, find_conflicts, is_unowned, put_managed, take_fields,
    take_managed,
};
use paths::{Element, Path};

/// Who writes, as a request says it.
pub struct Manager<'a> {
    pub name: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub api_version: &'a str,
    /// The time of the request (RFC 3339).
    pub time: &'a str,
}

/// Why a configuration is not applied.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// Managers that own fields with other values, as messages name them, each with one of these
    /// fields.
    Conflicts(Vec<(String, String)>),
    /// The configuration may not have this field.
    ManagedFields,
    Unfit(String),
}

/// How a configuration is applied.
pub struct How {
    /// Fields at the top that the request cannot change, so that nobody comes to own them.
    pub untouched: &'static [&'static str],
    pub is_forced: bool,
}

impl How {
    fn touches(&self, path: &Path) -> bool {
        !matches!(path.first(), Some(Element::Field(name)) if self.untouched.contains(&name.as_str()))
    }
}

/// Gives the fields that an update added or changed to the manager: sets `metadata.managedFields`
/// of the new object.
///
/// `new` still has the `managedFields` of the request, and none of the changes that admission
/// makes.
pub fn track_update(lists: &Lists, old: Option<&Value>, new: &mut Value, manager: &Manager) {
    let given = take_managed(new);
    // A request for a subresource cannot set managers.
    let given = if manager.subresource.is_empty() {
        given
    } else {
        Value::Null
    };
    let mut managers = decode_managers(&given);
    if managers.is_empty() && given != json!([]) {
        managers = old
            .map(|old| decode_managers(&old["metadata"]["managedFields"]))
            .unwrap_or_default();
    }
    // Nobody follows the fields of an object whose managers were removed, until somebody applies
    // it.
    if old.is_some() && managers.is_empty() {
        return;
    }
    record_update(
        lists,
        old.unwrap_or_else(|| lists.empty_object()),
        new,
        &mut managers,
        manager,
    );
    put_managed(new, &managers);
}

/// Applies a configuration, and returns the object that results.
pub fn apply(
    lists: &Lists,
    live: Option<&Value>,
    configuration: &Value,
    manager: &Manager,
    how: &How,
) -> Result<Value, Refusal> {
    if !configuration["metadata"]["managedFields"].is_null() {
        return Err(Refusal::ManagedFields);
    }
    fit::check(lists, configuration).map_err(Refusal::Unfit)?;
    let mut live = live.unwrap_or_else(|| lists.empty_object()).clone();
    let mut managers = decode_managers(&take_managed(&mut live));
    if managers.is_empty() {
        let before = Manager {
            name: "before-first-apply",
            ..*manager
        };
        record_update(lists, lists.empty_object(), &live, &mut managers, &before);
    }

    let root = lists.root();
    let mut fields = values::paths_of(root, configuration);
    fields.retain(|path| how.touches(path));
    let merged = merge::merge(root, Some(&live), Some(configuration)).unwrap_or_default();
    let mut entry = Entry::new(manager, true, fields);
    let id = entry.id();
    let (last_fields, last_time) = managers
        .insert(id.clone(), entry.clone())
        .map(|last| (last.fields, last.time))
        .unwrap_or_default();
    let mut applied = prune::prune(root, merged, &last_fields, &managers);
    managers.remove(&id);

    let mut changes = Changes::between(root, &live, &applied);
    changes.written.retain(|path| how.touches(path));
    changes.removed.retain(|path| how.touches(path));
    if !how.is_forced {
        let conflicts = find_conflicts(&managers, &changes);
        if !conflicts.is_empty() {
            return Err(Refusal::Conflicts(conflicts));
        }
    }
    take_fields(&mut managers, &changes);
    entry.fields.retain(|path| !is_unowned(path));
    // An apply that changes nothing keeps the time of the one before it.
    entry.time = if applied == live {
        last_time
    } else {
        Some(manager.time.to_owned())
    };
    if !entry.fields.is_empty() {
        managers.insert(id, entry);
    }
    put_managed(&mut applied, &managers);
    Ok(applied)
}

/// Gives the fields in which `new` differs to an update manager.
fn record_update(
    lists: &Lists,
    old: &Value,
    new: &Value,
    managers: &mut Managers,
    manager: &Manager,
) {
    let changes = Changes::between(lists.root(), old, new);
    take_fields(managers, &changes);
    let written = changes
        .written
        .into_iter()
        .filter(|path| !is_unowned(path))
        .collect();
    let mut entry = Entry::new(manager, false, written);
    if entry.fields.is_empty() {
        return;
    }
    let id = entry.id();
    if let Some(previous) = managers.remove(&id) {
        entry.fields.extend(previous.fields);
    }
    managers.insert(id, entry);
}
