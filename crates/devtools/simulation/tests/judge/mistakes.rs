//! Requests that a server has to refuse, each for a reason of its own.

use serde_json::{Value, json};

use crate::{
    generate::{Generator, Place},
    request::{Body, JSON, Request},
};

const BAD_NAMES: &[&str] = &["UPPER", "under_score", "-dash", "dot.", "..", "sp ace", "slash/ed", "a..b", "Ünicode", "x%y"];

const BAD_PARAMETERS: &[(&str, &str)] = &[
    ("limit", "x"),
    ("limit", "-1"),
    ("resourceVersion", "x"),
    ("resourceVersion", "-5"),
    ("resourceVersionMatch", "Odd"),
    ("resourceVersionMatch", "Exact"),
    ("continue", "nonsense"),
    ("timeoutSeconds", "x"),
    ("labelSelector", "a=b=c"),
    ("labelSelector", "bad key!=x"),
    ("labelSelector", "a in ()"),
    ("fieldSelector", "spec.odd=x"),
    ("fieldSelector", "metadata.name"),
    ("sendInitialEvents", "true"),
    ("unknown", "x"),
];

const BAD_WRITE_PARAMETERS: &[(&str, &str)] = &[
    ("dryRun", "Some"),
    ("fieldValidation", "Odd"),
    ("fieldManager", "not\tprintable"),
    ("force", "true"),
    ("pretty", "x"),
    ("unknown", "x"),
];

impl<'a> Generator<'a> {
    pub fn mistake(&mut self) -> Request {
        let kinds = self.kinds;
        let with_objects: Vec<_> = kinds.kinds.iter().filter(|kind| !kind.review && kind.weight > 0).collect();
        let kind = *self.rng.pick(&with_objects);
        let place = self.place(kind);
        match self.rng.below(10) {
            0 => self.wrong_path(&place),
            1 => self.wrong_method(&place),
            2 => self.wrong_content_type(&place),
            3 | 4 => self.wrong_text(&place),
            5 | 6 => self.wrong_identity(&place),
            7 => self.wrong_fields(&place),
            8 => self.wrong_parameter(&place),
            _ => self.wrong_patch(&place),
        }
    }

    fn wrong_path(&mut self, place: &Place<'a>) -> Request {
        let namespace = &place.namespace;
        let paths = [
            "/api/v1/unicorns".to_owned(),
            format!("/api/v1/namespaces/{namespace}/unicorns"),
            "/api/v9/pods".to_owned(),
            "/apis/none.example.com/v1/things".to_owned(),
            "/apis/apps/v9/deployments".to_owned(),
            "/apis/virtualkubelet.liqo.io/v9/shadowpods".to_owned(),
            "/apis/virtualkubelet.liqo.io/v1alpha1/unicorns".to_owned(),
            format!("{}/odd", place.path()),
            format!("{}/status/odd", place.path()),
            format!("/api/v1/namespaces/{namespace}/nodes"),
            "/nowhere".to_owned(),
        ];
        let path = self.rng.pick(&paths).clone();
        let method = *self.rng.pick(&["GET", "GET", "POST", "DELETE"]);
        let request = Request::new(method, "get", "mistakes".to_owned(), path);
        if method == "POST" { request.json(json!({})) } else { request }
    }

    fn wrong_method(&mut self, place: &Place<'a>) -> Request {
        let (object, collection) = (place.path(), place.collection());
        let choices = [("POST", &object), ("PUT", &collection), ("PATCH", &collection), ("OPTIONS", &object)];
        // The real server creates a custom object also at a path with a name, and words other refusals differently.
        let is_custom = place.kind.api_version.contains("liqo.io");
        let (method, path) = *self.rng.pick(if is_custom { &choices[1..3] } else { &choices[..] });
        let body = self.new_body(place);
        let content = if method == "PATCH" { "application/merge-patch+json" } else { JSON };
        Request::new(method, "update", place.kind.resource(), path.clone()).content(content).json(body)
    }

    fn wrong_content_type(&mut self, place: &Place<'a>) -> Request {
        let body = self.new_body(place);
        let content = *self.rng.pick(&[
            "text/plain",
            "application/xml",
            "application/merge-patch+json",
            "nonsense",
            "",
            "application/json-patch+json",
        ]);
        if self.rng.chance(20) {
            let request = Request::new("GET", "get", place.kind.resource(), place.path());
            return Request { accept: *self.rng.pick(&["application/xml", "text/html", "nonsense", ""]), ..request };
        }
        let (method, verb, path) =
            if self.rng.chance(50) { ("PATCH", "patch", place.path()) } else { ("POST", "create", place.collection()) };
        Request::new(method, verb, place.kind.resource(), path).content(content).json(body).key(&place.path())
    }

    fn wrong_text(&mut self, place: &Place<'a>) -> Request {
        let good = self.new_body(place).to_string();
        let text = match self.rng.below(6) {
            0 => "{".to_owned(),
            1 => String::new(),
            2 => "null".to_owned(),
            3 => "[]".to_owned(),
            4 => good[..good.len() / 2].to_owned(),
            _ => format!("{good} trailing"),
        };
        let choices = [
            ("POST", "create", place.collection(), JSON),
            ("PUT", "update", place.path(), JSON),
            ("PATCH", "patch", place.path(), "application/merge-patch+json"),
            ("PATCH", "patch", place.path(), "application/json-patch+json"),
            ("DELETE", "delete", place.path(), JSON),
        ];
        let (method, verb, path, content) = self.rng.pick(&choices).clone();
        let request = Request::new(method, verb, place.kind.resource(), path.clone()).content(content).key(&place.path());
        let request = Request { body: Body::Text(text), ..request };
        if self.rng.chance(30) && method != "DELETE" { request.parameter("fieldValidation", "Strict") } else { request }
    }

    fn wrong_identity(&mut self, place: &Place<'a>) -> Request {
        let mut body = self.new_body(place);
        let metadata = &mut body["metadata"];
        match self.rng.below(9) {
            0 => body["kind"] = "Pod".into(),
            1 => body["apiVersion"] = "v9".into(),
            2 => metadata["namespace"] = "other".into(),
            3 => drop(metadata.as_object_mut().map(|metadata| metadata.remove("name"))),
            4 => metadata["name"] = (*self.rng.pick(BAD_NAMES)).into(),
            5 => metadata["name"] = "x".repeat(*self.rng.pick(&[64, 254])).into(),
            6 => metadata["resourceVersion"] = "1".into(),
            7 => drop(body.as_object_mut().map(|body| body.remove("kind"))),
            _ => drop(body.as_object_mut().map(|body| body.remove("apiVersion"))),
        }
        let (method, verb, path) =
            if self.rng.chance(60) { ("POST", "create", place.collection()) } else { ("PUT", "update", place.path()) };
        Request::new(method, verb, place.kind.resource(), path).json(body)
    }

    fn wrong_fields(&mut self, place: &Place<'a>) -> Request {
        let mut body = self.new_body(place);
        match self.rng.below(4) {
            0 => body["unknown"] = json!({ "a": 1 }),
            1 => body["metadata"]["unknown"] = "x".into(),
            2 if body["spec"].is_object() => body["spec"]["unknown"] = json!([1]),
            _ => body["spec"] = "text".into(),
        }
        let how = *self.rng.pick(&["Strict", "Warn", "Ignore"]);
        let create = Request::new("POST", "create", place.kind.resource(), place.collection());
        let update = Request::new("PUT", "update", place.kind.resource(), place.path());
        let request = if self.rng.chance(60) { create } else { update };
        let request = request.json(body).key(&place.path()).settles(place.kind.settle);
        if self.rng.chance(80) { request.parameter("fieldValidation", how) } else { request }
    }

    fn wrong_parameter(&mut self, place: &Place<'a>) -> Request {
        if self.rng.chance(60) {
            let (name, value) = *self.rng.pick(BAD_PARAMETERS);
            let request = Request::new("GET", "list", place.kind.resource(), place.collection());
            let selector = format!("judge={}", self.prefix);
            let request = if name == "labelSelector" { request } else { request.parameter("labelSelector", selector) };
            return request.parameter(name, value);
        }
        let (name, value) = *self.rng.pick(BAD_WRITE_PARAMETERS);
        let change: Value = self.change(place, 0);
        let request = Request::new("PATCH", "patch", place.kind.resource(), place.path());
        request.content("application/merge-patch+json").json(change).parameter(name, value).settles(place.kind.settle)
    }

    fn wrong_patch(&mut self, place: &Place<'a>) -> Request {
        let request = Request::new("PATCH", "patch", place.kind.resource(), place.path()).key(&place.path());
        let apply = "application/apply-patch+yaml";
        let body = self.new_body(place);
        match self.rng.below(6) {
            0 => request.content(apply).json(body),
            1 => request.content(apply).json(json!({})).parameter("fieldManager", "left"),
            2 => Request { body: Body::Text("a: [".to_owned()), ..request.content(apply).parameter("fieldManager", "left") },
            3 => request.content("application/json-patch+json").json(json!([{ "op": "replace", "path": "", "value": 7 }])),
            4 => request.content("application/json-patch+json").json(json!([{ "op": "add", "path": "x", "value": 7 }])),
            _ => {
                let mut body = body;
                body["metadata"]["managedFields"] = json!([]);
                request.content(apply).json(body).parameter("fieldManager", "left")
            }
        }
    }
}
