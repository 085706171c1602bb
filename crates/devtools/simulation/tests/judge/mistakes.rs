//! Requests that a server has to refuse, and that clients of ours may send.

use serde_json::json;

use crate::{
    generate::{Generator, Place},
    request::Request,
};

const BAD_NAMES: &[&str] = &["UPPER", "under_score", "-dash", "dot.", "slash/ed", "a..b"];

impl<'a> Generator<'a> {
    pub fn mistake(&mut self) -> Request {
        let kinds = self.kinds;
        let with_objects: Vec<_> = kinds
            .kinds
            .iter()
            .filter(|kind| !kind.review && kind.weight > 0)
            .collect();
        let kind = *self.rng.pick(&with_objects);
        let place = self.place(kind);
        match self.rng.below(5) {
            0 => self.wrong_path(&place),
            1 | 2 => self.wrong_identity(&place),
            3 => self.unknown_fields(&place),
            _ => self.wrong_apply(&place),
        }
    }

    /// A kind whose definition is missing, or a subresource that an older Kubernetes does not have.
    fn wrong_path(&mut self, place: &Place<'a>) -> Request {
        let paths = [
            "/apis/none.example.com/v1/things".to_owned(),
            "/apis/virtualkubelet.liqo.io/v1alpha1/unicorns".to_owned(),
            format!("/api/v1/namespaces/{}/unicorns", place.namespace),
            format!("{}/odd", place.path()),
        ];
        let path = self.rng.pick(&paths).clone();
        let method = *self.rng.pick(&["GET", "GET", "POST", "DELETE"]);
        let request = Request::new(method, "get", "mistakes".to_owned(), path);
        if method == "POST" {
            request.json(json!({}))
        } else {
            request
        }
    }

    fn wrong_identity(&mut self, place: &Place<'a>) -> Request {
        let mut body = self.new_body(place);
        let metadata = &mut body["metadata"];
        match self.rng.below(5) {
            0 => metadata["namespace"] = "other".into(),
            1 => drop(
                metadata
                    .as_object_mut()
                    .map(|metadata| metadata.remove("name")),
            ),
            2 => metadata["name"] = (*self.rng.pick(BAD_NAMES)).into(),
            3 => metadata["name"] = "x".repeat(*self.rng.pick(&[64, 254])).into(),
            _ => metadata["resourceVersion"] = "1".into(),
        }
        let (method, verb, path) = if self.rng.chance(60) {
            ("POST", "create", place.collection())
        } else {
            ("PUT", "update", place.path())
        };
        Request::new(method, verb, place.kind.resource(), path).json(body)
    }

    fn unknown_fields(&mut self, place: &Place<'a>) -> Request {
        let mut body = self.new_body(place);
        match self.rng.below(3) {
            0 => body["unknown"] = json!({ "a": 1 }),
            1 if body["spec"].is_object() => body["spec"]["unknown"] = json!([1]),
            _ => body["metadata"]["unknown"] = "x".into(),
        }
        let how = *self.rng.pick(&["Strict", "Warn", "Ignore"]);
        let create = Request::new("POST", "create", place.kind.resource(), place.collection());
        let update = Request::new("PUT", "update", place.kind.resource(), place.path());
        let request = if self.rng.chance(60) { create } else { update };
        let request = request
            .json(body)
            .key(&place.path())
            .settles(place.kind.settle);
        if self.rng.chance(80) {
            request.parameter("fieldValidation", how)
        } else {
            request
        }
    }

    /// Without an owner, or with an object that was read instead of the wanted fields.
    fn wrong_apply(&mut self, place: &Place<'a>) -> Request {
        let request =
            Request::new("PATCH", "patch", place.kind.resource(), place.path()).key(&place.path());
        let request = request.content("application/apply-patch+yaml");
        let mut body = self.new_body(place);
        if self.rng.chance(50) {
            return request.json(body);
        }
        body["metadata"]["managedFields"] = json!([{ "manager": "left", "operation": "Apply" }]);
        request.json(body).parameter("fieldManager", "left")
    }
}
