//! Changes of objects, and patches of the four kinds.

use serde_json::{Value, json};

use crate::{
    generate::{Generator, Place},
    lifecycle::target,
    request::{Body, Request},
};

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

impl<'a> Generator<'a> {
    /// A change as a merge patch, which is wrong in so many percent of all cases.
    pub fn change(&mut self, place: &Place<'a>, wrong_percent: usize) -> Value {
        let (kind, common) = (place.kind, &self.kinds.common);
        let is_common = self.rng.chance(40);
        let list = match (self.rng.chance(wrong_percent), is_common) {
            (true, true) => &common.invalid,
            (true, false) => &kind.invalid,
            (false, true) => &common.patches,
            (false, false) => &kind.patches,
        };
        let change = self
            .rng
            .pick_any(list)
            .cloned()
            .unwrap_or_else(|| json!({}));
        let mut change = self.fill(&change, place);
        if self.rng.chance(3)
            && let Some(owner) = self.owner()
        {
            change = json!({ "metadata": { "ownerReferences": [owner] } });
        }
        change
    }

    /// A change for an object or one of its subresources.
    pub fn change_by(&mut self, place: &Place<'a>, subresource: &str) -> Value {
        if subresource.is_empty() || self.rng.chance(8) {
            return self.change(place, 15);
        }
        let change = self
            .rng
            .pick(&place.kind.subresources[subresource].patches)
            .clone();
        self.fill(&change, place)
    }

    pub fn patch(&mut self, place: &Place<'a>, subresource: &str) -> Request {
        let (resource, path, key) = target(place, subresource);
        let request = Request::new("PATCH", "patch", resource, path)
            .key(&key)
            .settles(place.kind.settle);
        let request = match self.rng.below(100) {
            0..25 => self.merge_patch(request, place, subresource),
            25..45 => self.json_patch(request, place, subresource),
            45..60 => self.strategic_patch(request, place, subresource),
            // Nobody applies events, and the real server loses their managers when it converts
            // them.
            60.. if place.kind.api_version == "events.k8s.io/v1" => {
                self.merge_patch(request, place, subresource)
            }
            _ => return self.apply(request, place, subresource),
        };
        self.with_write_options(request)
    }

    fn merge_patch(&mut self, request: Request, place: &Place<'a>, subresource: &str) -> Request {
        let mut change = self.change_by(place, subresource);
        if self.rng.chance(10) && (change["metadata"].is_object() || change["metadata"].is_null()) {
            let which = *self.rng.pick(&["rv", "oldrv"]);
            change["metadata"]["resourceVersion"] = format!("${{{which}:{}}}", place.path()).into();
        }
        request.content(MERGE).json(change)
    }

    fn strategic_patch(
        &mut self,
        request: Request,
        place: &Place<'a>,
        subresource: &str,
    ) -> Request {
        let special = if self.rng.chance(60) {
            &place.kind.strategic
        } else {
            &self.kinds.common.strategic
        };
        let change = match self.rng.pick_any(special) {
            Some(change) if subresource.is_empty() && self.rng.chance(40) => {
                self.fill(&change.clone(), place)
            }
            _ => self.change_by(place, subresource),
        };
        request.content(STRATEGIC).json(change)
    }

    fn json_patch(&mut self, request: Request, place: &Place<'a>, subresource: &str) -> Request {
        let change = self.change_by(place, subresource);
        let mut operations = Vec::new();
        match self.rng.below(10) {
            0 => operations.push(json!({ "op": "test", "path": "/metadata/labels/judge", "value": self.prefix })),
            1 => operations.push(json!({ "op": "test", "path": "/metadata/labels/judge", "value": "other" })),
            2 => operations.push(json!({ "op": "remove", "path": "/metadata/labels/missing" })),
            3 => operations.push(json!({ "op": "add", "path": "/metadata/finalizers/-", "value": "example.com/added" })),
            _ => {}
        }
        let is_replace = self.rng.chance(25);
        add_operations(&mut operations, "", &change, is_replace);
        request.content(JSON_PATCH).json(Value::Array(operations))
    }

    fn apply(&mut self, request: Request, place: &Place<'a>, subresource: &str) -> Request {
        let mut body = json!({});
        if subresource.is_empty() && self.rng.chance(80) {
            body = self.new_body(place);
        }
        if self.rng.chance(60) {
            json_patch::merge(&mut body, &self.change_by(place, subresource));
        }
        let mut body = if subresource == "scale" {
            body
        } else {
            self.with_identity(body, place)
        };
        if self.rng.chance(40) {
            // The other manager does not own the label that all objects have.
            body["metadata"]["labels"]
                .as_object_mut()
                .map(|labels| labels.remove("judge"));
        }
        let manager = *self.rng.pick(&["left", "right"]);
        let mut request = request.content(APPLY).parameter("fieldManager", manager);
        if self.rng.chance(35) {
            request = request.parameter("force", "true");
        }
        if self.rng.chance(4) {
            request = request.parameter("dryRun", "All");
        }
        request.body = Body::Json(body);
        request
    }
}

/// The operations that have the effect of a merge patch, if all parents exist.
fn add_operations(operations: &mut Vec<Value>, path: &str, change: &Value, is_replace: bool) {
    let Some(fields) = change.as_object() else {
        return;
    };
    for (name, value) in fields {
        let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
        let goes_deeper = path.matches('/').count() < 3
            && value.as_object().is_some_and(|fields| !fields.is_empty());
        if value.is_null() {
            operations.push(json!({ "op": "remove", "path": path }));
        } else if goes_deeper && (is_replace || path != "/status") {
            add_operations(operations, &path, value, is_replace);
        } else {
            operations.push(json!({ "op": if is_replace { "replace" } else { "add" }, "path": path, "value": value }));
        }
    }
}
