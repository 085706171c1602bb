//! Requests that create, read and delete single objects.

use serde_json::{Value, json};

use crate::{
    generate::{Generator, Place, with_body},
    request::{Body, JSON, Request, Version},
};

pub const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// One of the bodies of a kind.
fn body_of(place: &Place, index: usize) -> Value {
    place.kind.bodies.get(index).cloned().unwrap_or_default()
}

impl<'a> Generator<'a> {
    /// The content of an object, with kind, name, namespace and the label that every object has.
    pub fn with_identity(&self, mut body: Value, place: &Place) -> Value {
        let labels = json!({ "metadata": { "labels": { "judge": self.prefix } } });
        json_patch::merge(&mut body, &labels);
        body["apiVersion"] = place.kind.api_version.clone().into();
        body["kind"] = place.kind.kind.clone().into();
        body["metadata"]["name"] = place.name.clone().into();
        if !place.kind.cluster {
            body["metadata"]["namespace"] = place.namespace.clone().into();
        }
        self.fill(&body, place)
    }

    pub fn create_plainly(&mut self, place: &Place<'a>) -> Request {
        let body = self.with_identity(body_of(place, 0), place);
        let request = Request::new("POST", "create", place.kind.resource(), place.collection());
        request
            .json(body)
            .key(&place.path())
            .settles(place.kind.settle)
    }

    pub fn new_body(&mut self, place: &Place<'a>) -> Value {
        let index = self.rng.below(place.kind.bodies.len());
        let mut body = body_of(place, index);
        for _ in 0..self.rng.below(3) {
            json_patch::merge(&mut body, &self.change(place, 5));
        }
        self.with_identity(body, place)
    }

    pub fn create(&mut self, place: &Place<'a>) -> Request {
        let mut body = self.new_body(place);
        let metadata = &mut body["metadata"];
        let mut request = Request::new("POST", "create", place.kind.resource(), place.collection())
            .key(&place.path());
        if place.kind.review {
            body.as_object_mut().map(|object| object.remove("metadata"));
            return with_body(request, Body::Json(body)).key("");
        }
        if self.rng.chance(20) {
            let slot = self.new_slot();
            let prefix = if place.kind.cluster {
                format!("{}-", self.prefix)
            } else {
                String::new()
            };
            // The prefix differs each time, so that lists have the same order at both servers.
            metadata["generateName"] = format!("{prefix}g{slot:03}-").into();
            metadata
                .as_object_mut()
                .map(|metadata| metadata.remove("name"));
            let generated = Place {
                name: format!("@{slot}@"),
                ..place.clone()
            };
            request = Request {
                name_slot: Some(slot),
                ..request.key(&generated.path())
            };
        }
        if self.rng.chance(30) {
            metadata
                .as_object_mut()
                .map(|metadata| metadata.remove("namespace"));
        }
        if self.rng.chance(10)
            && let Some(owner) = self.owner()
        {
            metadata["ownerReferences"] = json!([owner]);
        }
        let request = with_body(request, Body::Json(body)).settles(place.kind.settle);
        self.with_write_options(request)
    }

    /// A reference to an object that exists.
    pub fn owner(&mut self) -> Option<Value> {
        let place = self.any_object()?;
        let (api_version, kind) = (&place.kind.api_version, &place.kind.kind);
        let uid = format!("${{uid:{}}}", place.path());
        let mut owner =
            json!({ "apiVersion": api_version, "kind": kind, "name": place.name, "uid": uid });
        if self.rng.chance(40) {
            owner["controller"] = true.into();
        }
        if self.rng.chance(40) {
            owner["blockOwnerDeletion"] = true.into();
        }
        Some(owner)
    }

    pub fn with_write_options(&mut self, request: Request) -> Request {
        match self.rng.below(100) {
            0..4 => request.parameter("dryRun", "All"),
            4..10 => request.parameter("fieldValidation", "Strict"),
            10..13 => request.parameter("fieldValidation", "Ignore"),
            13..18 => request.parameter("fieldManager", *self.rng.pick(&["left", "right"])),
            18..21 => Request {
                accept: PARTIAL,
                ..request
            },
            _ => request,
        }
    }

    pub fn create_by(&mut self, place: &Place<'a>, subresource: &str) -> Request {
        let creates = &place.kind.subresources[subresource].creates;
        let body = self.rng.pick(creates).clone();
        let body = self.fill(&body, place);
        let resource = format!("{}/{subresource}", place.kind.resource());
        let request = Request::new(
            "POST",
            "create",
            resource,
            format!("{}/{subresource}", place.path()),
        )
        .json(body);
        if self.rng.chance(5) {
            request.parameter("dryRun", "All")
        } else {
            request
        }
    }

    pub fn get(&mut self, place: &Place<'a>, subresource: &str) -> Request {
        let (resource, path, key) = target(place, subresource);
        let request = Request::new("GET", "get", resource, path).key(&key);
        match self.rng.below(100) {
            0..5 => Request {
                waits_for_caches: true,
                ..request.parameter("resourceVersion", "0")
            },
            5..12 => Request {
                accept: PARTIAL,
                ..request
            },
            12..15 => {
                let request =
                    request.parameter("resourceVersion", format!("${{rv:{}}}", place.path()));
                Request {
                    waits_for_caches: true,
                    ..request
                }
            }
            _ => request,
        }
    }

    pub fn delete(&mut self, place: &Place<'a>) -> Request {
        let request = Request::new("DELETE", "delete", place.kind.resource(), place.path())
            .key(&place.path());
        let request = request.settles(place.kind.settle);
        if self.rng.chance(30) {
            return request;
        }
        if self.rng.chance(25) {
            let policy = *self.rng.pick(&["Foreground", "Background", "Orphan"]);
            return request.parameter("propagationPolicy", policy);
        }
        if self.rng.chance(20) {
            return request.parameter("gracePeriodSeconds", *self.rng.pick(&["0", "1", "30"]));
        }
        let options = self.delete_options(place);
        request.content(JSON).json(options)
    }

    pub fn delete_options(&mut self, place: &Place) -> Value {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        let path = place.path();
        match self.rng.below(9) {
            0 => options["preconditions"] = json!({ "uid": format!("${{uid:{path}}}") }),
            1 => {
                options["preconditions"] = json!({ "uid": "11111111-2222-3333-4444-555555555555" })
            }
            2 => options["preconditions"] = json!({ "resourceVersion": format!("${{rv:{path}}}") }),
            3 => {
                options["preconditions"] =
                    json!({ "resourceVersion": format!("${{oldrv:{path}}}") })
            }
            4 => options["gracePeriodSeconds"] = (*self.rng.pick(&[0, 0, 5, 60])).into(),
            5 => {
                options["propagationPolicy"] =
                    (*self.rng.pick(&["Foreground", "Background", "Orphan"])).into()
            }
            6 => options["dryRun"] = json!(["All"]),
            _ => {}
        }
        options
    }

    pub fn update(&mut self, place: &Place<'a>, subresource: &str) -> Request {
        let (resource, path, key) = target(place, subresource);
        let mut request = Request::new("PUT", "update", resource, path)
            .key(&key)
            .settles(place.kind.settle);
        let changes = vec![self.change_by(place, subresource)];
        let version = match self.rng.below(100) {
            0..70 => Version::Current,
            70..88 => Version::None,
            _ => Version::Old,
        };
        request.body = Body::Seen {
            key,
            changes,
            version,
        };
        if subresource.is_empty() && self.rng.chance(25) {
            let mut body = self.new_body(place);
            if self.rng.chance(60) {
                body["metadata"]["resourceVersion"] = format!("${{rv:{}}}", place.path()).into();
            }
            request.body = Body::Json(body);
        }
        self.with_write_options(request)
    }
}

/// The resource, the path and the key of the answer of an object or its subresource.
pub fn target(place: &Place, subresource: &str) -> (String, String, String) {
    let (resource, path) = (place.kind.resource(), place.path());
    match subresource {
        "" => (resource, path.clone(), path),
        "scale" => (
            format!("{resource}/scale"),
            format!("{path}/scale"),
            format!("{path}/scale"),
        ),
        _ => (
            format!("{resource}/{subresource}"),
            format!("{path}/{subresource}"),
            path,
        ),
    }
}
