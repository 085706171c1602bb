//! Chooses the next request of a sequence. The same seed and the same answers give the same
//! requests.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use crate::{
    answer::Answer,
    kinds::{Kind, Kinds},
    pairs::{self, Pair},
    request::{Body, Request, Watching},
    rng::Rng,
    side::Side,
};

/// Few names, so that requests meet.
const NAMES: [&str; 3] = ["one", "two", "three"];

/// A certificate request of a kubelet, in PEM and base64. Its key was thrown away.
const CSR: &str = include_str!("request.csr").trim_ascii();

pub struct Generator<'a> {
    pub rng: Rng,
    pub kinds: &'a Kinds,
    /// `s7`: the prefix of cluster-scoped names, and the label of all objects.
    pub prefix: String,
    objects: BTreeMap<String, Place<'a>>,
    /// Requests that come before others.
    pub queue: VecDeque<Request>,
    slots: usize,
    quota: usize,
}

/// Where an object is.
#[derive(Clone)]
pub struct Place<'a> {
    pub kind: &'a Kind,
    pub namespace: String,
    /// May be a placeholder.
    pub name: String,
}

impl Place<'_> {
    pub fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    pub fn collection(&self) -> String {
        self.kind.collection(Some(&self.namespace))
    }
}

impl<'a> Generator<'a> {
    pub fn new(kinds: &'a Kinds, seed: u64, letter: char) -> Self {
        let mut generator = Self {
            rng: Rng::new(seed),
            kinds,
            prefix: format!("{letter}{seed}"),
            objects: BTreeMap::new(),
            queue: VecDeque::new(),
            slots: 0,
            quota: 0,
        };
        let namespaces = kinds.of_resource("namespaces");
        for name in ["a", "b"] {
            let place = Place {
                kind: namespaces,
                namespace: String::new(),
                name: format!("{}-{name}", generator.prefix),
            };
            let body = generator.with_identity(json!({}), &place);
            let request = Request::new("POST", "create", namespaces.resource(), place.collection());
            generator
                .queue
                .push_back(request.json(body).key(&place.path()));
        }
        // Without it there are no pods.
        let accounts = kinds.of_resource("serviceaccounts");
        for name in ["a", "b"] {
            let namespace = format!("{}-{name}", generator.prefix);
            let place = Place {
                kind: accounts,
                namespace,
                name: "default".to_owned(),
            };
            let body = generator.with_identity(json!({}), &place);
            let request = Request::new("POST", "create", accounts.resource(), place.collection());
            generator
                .queue
                .push_back(request.json(body).key(&place.path()));
        }
        generator.open_live_watches();
        generator
    }

    /// Every pair comes up once in a while, by the number of the sequence.
    pub fn add_tour(&mut self, seed: u64, length: usize) {
        let all = pairs::all();
        let start = usize::try_from(seed)
            .unwrap_or_default()
            .wrapping_mul(length)
            % all.len();
        for pair in all.iter().cycle().skip(start).take(length) {
            self.prepare(*pair);
        }
    }

    /// Adds a request for a pair, and before it one that creates its object.
    fn prepare(&mut self, (verb, resource): Pair) {
        let (resource, subresource) = split_resource(resource);
        let kind = self.kinds.of_resource(&resource);
        let place = self.new_place(kind);
        let needs_object = !matches!(verb, "create" | "list" | "watch") || !subresource.is_empty();
        if needs_object {
            let create = self.create_plainly(&place);
            self.queue.push_back(create);
        }
        let request = self.request(verb, &place, &subresource);
        self.queue.push_back(request);
    }

    /// The next request, and whether it was chosen rather than taken from the queue.
    pub fn next_request(&mut self) -> Request {
        if let Some(request) = self.queue.pop_front() {
            return request;
        }
        match self.rng.below(100) {
            0..8 => self.mistake(),
            8..10 => self.ordinary(),
            10 if self.rng.chance(60) => self.quota_story(),
            _ => self.usual(),
        }
    }

    /// A request of another user, who has only the rights that roles give.
    fn ordinary(&mut self) -> Request {
        let request = self.usual();
        Request {
            is_ordinary: true,
            waits_for_caches: true,
            key: String::new(),
            name_slot: None,
            ..request
        }
    }

    fn usual(&mut self) -> Request {
        let kind = &self.kinds.kinds[self
            .rng
            .weighted(self.kinds.kinds.iter().map(|kind| kind.weight))];
        let place = self.place(kind);
        if kind.review {
            return self.create(&place);
        }
        if !self.objects.contains_key(&place.path()) && self.rng.chance(60) {
            return self.create(&place);
        }
        let subresources: Vec<&String> = kind.subresources.keys().collect();
        if !subresources.is_empty() && self.rng.chance(25) {
            let subresource = (*self.rng.pick(&subresources)).clone();
            let verb = self.verb_of(kind, &subresource);
            return self.request(verb, &place, &subresource);
        }
        let verbs = [
            "create",
            "get",
            "list",
            "watch",
            "update",
            "patch",
            "delete",
            "deletecollection",
        ];
        let weights = [17, 9, 12, 4, 14, 30, 9, 2];
        let verb = verbs[self.rng.weighted(weights.into_iter())];
        let place = if verb == "create" && self.rng.chance(70) {
            self.new_place(kind)
        } else {
            place
        };
        self.request(verb, &place, "")
    }

    fn verb_of(&mut self, kind: &Kind, subresource: &str) -> &'static str {
        let rules = &kind.subresources[subresource];
        if !rules.creates.is_empty() {
            "create"
        } else if rules.updates {
            "update"
        } else {
            *self.rng.pick(&["get", "update", "patch", "patch"])
        }
    }

    pub fn request(&mut self, verb: &'static str, place: &Place<'a>, subresource: &str) -> Request {
        match (verb, subresource) {
            ("create", "") => self.create(place),
            ("create", _) => self.create_by(place, subresource),
            ("get", _) => self.get(place, subresource),
            ("list", _) => self.list(place),
            ("watch", _) => self.watch(place),
            ("update", _) => self.update(place, subresource),
            ("patch", _) => self.patch(place, subresource),
            ("delete", _) => self.delete(place),
            _ => self.delete_collection(place),
        }
    }

    /// Mostly a place with an object, sometimes any.
    pub fn place(&mut self, kind: &'a Kind) -> Place<'a> {
        match self.same_kind(kind) {
            Some(place) if self.rng.chance(88) => place,
            _ => self.new_place(kind),
        }
    }

    fn new_place(&mut self, kind: &'a Kind) -> Place<'a> {
        let prefix = &self.prefix;
        let name = *self.rng.pick(&NAMES);
        if kind.cluster {
            return Place {
                kind,
                namespace: String::new(),
                name: format!("{prefix}-{name}"),
            };
        }
        let namespace = *self.rng.pick(&[
            "a", "a", "a", "b", "b", "three", "b", "a", "a", "a", "b", "a",
        ]);
        Place {
            kind,
            namespace: format!("{prefix}-{namespace}"),
            name: name.to_owned(),
        }
    }

    /// Any object of a kind.
    pub fn same_kind(&mut self, kind: &Kind) -> Option<Place<'a>> {
        let all: Vec<&Place> = self
            .objects
            .values()
            .filter(|place| std::ptr::eq(place.kind, kind))
            .collect();
        self.rng.pick_any(&all).map(|place| (*place).clone())
    }

    /// Any object.
    pub fn any_object(&mut self) -> Option<Place<'a>> {
        let all: Vec<&Place> = self.objects.values().collect();
        self.rng.pick_any(&all).map(|place| (*place).clone())
    }

    pub fn new_slot(&mut self) -> usize {
        self.slots += 1;
        self.slots
    }

    /// Fills in what an object's content refers to.
    pub fn fill(&self, value: &Value, place: &Place) -> Value {
        let namespace = if place.kind.cluster {
            format!("{}-a", self.prefix)
        } else {
            place.namespace.clone()
        };
        let replace = |text: &str| {
            let text = text.replace("@seed@", &self.prefix).replace("@csr@", CSR);
            text.replace("@ns@", &namespace)
                .replace("@name@", &place.name)
        };
        map_texts(value, &replace)
    }

    /// Learns from the real server's answer which objects exist.
    pub fn learn(&mut self, request: &Request, answer: &Answer, real: &Side) {
        if request.key.is_empty() || request.is_dry() {
            return;
        }
        let body = answer.json().cloned().unwrap_or_default();
        match (request.verb, answer.code()) {
            ("delete", 200) if is_gone(&body) => drop(self.objects.remove(&request.key)),
            (_, 404) => drop(self.objects.remove(&request.key)),
            ("create" | "patch" | "get" | "update", 200 | 201) => self.add_object(request, real),
            _ => {}
        }
        if let (Some(slot), true) = (request.list_slot, body["metadata"]["continue"].is_string()) {
            self.continue_list(request, slot);
        }
    }

    fn add_object(&mut self, request: &Request, real: &Side) {
        let (resource, _) = split_resource(&request.resource);
        let kind = self.kinds.of_resource(&resource);
        if kind.review || request.key.ends_with("/scale") || real.seen(&request.key).is_none() {
            return;
        }
        let mut parts = request.key.rsplit('/');
        let name = parts.next().unwrap_or_default().to_owned();
        let namespace = if kind.cluster {
            String::new()
        } else {
            parts.nth(1).unwrap_or_default().to_owned()
        };
        self.objects.insert(
            request.key.clone(),
            Place {
                kind,
                namespace,
                name,
            },
        );
    }

    fn open_live_watches(&mut self) {
        for _ in 0..4 {
            let kind = &self.kinds.kinds[self
                .rng
                .weighted(self.kinds.kinds.iter().map(|kind| kind.weight.pow(2)))];
            if !kind.review {
                let place = self.new_place(kind);
                let request = self.watch_of(&place);
                self.queue.push_back(Request {
                    watching: Watching::Live,
                    ..request
                });
            }
        }
    }

    /// A quota that counts, in a namespace of its own: the real server's plugin needs a moment to
    /// see it.
    fn quota_story(&mut self) -> Request {
        self.quota += 1;
        let namespace = format!("{}-quota-{}", self.prefix, self.quota);
        let quotas = self.kinds.of_resource("resourcequotas");
        let pods = self.kinds.of_resource("pods");
        let namespaces = self.kinds.of_resource("namespaces");
        let at = |kind, name: &str| Place {
            kind,
            namespace: namespace.clone(),
            name: name.to_owned(),
        };
        let create = |generator: &Self, place: &Place, body: Value| {
            let body = generator.with_identity(body, place);
            Request::new("POST", "create", place.kind.resource(), place.collection())
                .json(body)
                .key(&place.path())
        };
        let hard = json!({ "pods": "1", "requests.cpu": "1" });
        let quota = at(quotas, "one");
        let status =
            json!({ "status": { "hard": hard, "used": { "pods": "0", "requests.cpu": "0" } } });
        let patch_path = format!("{}/status", quota.path());
        let container = |resources: Value| json!({ "spec": { "containers": [{ "name": "main", "image": "x", "resources": resources }] } });
        let small = container(json!({ "requests": { "cpu": "500m" } }));
        let steps = [
            create(self, &quota, json!({ "spec": { "hard": hard } })),
            Request::new(
                "PATCH",
                "patch",
                "resourcequotas/status".to_owned(),
                patch_path,
            )
            .json(status)
            .content("application/merge-patch+json")
            .key(&quota.path())
            .settles(true),
            create(self, &at(pods, "one"), container(json!({}))),
            create(
                self,
                &at(pods, "one"),
                container(json!({ "requests": { "cpu": "2" } })),
            ),
            create(self, &at(pods, "one"), small.clone()),
            Request::new("GET", "get", "resourcequotas".to_owned(), quota.path())
                .key(&quota.path()),
            create(self, &at(pods, "two"), small),
        ];
        self.queue.extend(steps);
        let place = Place {
            kind: namespaces,
            namespace: String::new(),
            name: namespace.clone(),
        };
        create(self, &place, json!({}))
    }
}

/// `deployments.apps/scale` is `deployments.apps` and `scale`.
pub fn split_resource(resource: &str) -> (String, String) {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    (resource.to_owned(), subresource.to_owned())
}

/// Whether the answer to a deletion means that nothing is left.
fn is_gone(body: &Value) -> bool {
    let metadata = &body["metadata"];
    let waits = metadata["deletionGracePeriodSeconds"]
        .as_u64()
        .is_some_and(|seconds| seconds > 0);
    let is_finalized = |list: &Value| list.as_array().is_some_and(|items| !items.is_empty());
    !waits && !is_finalized(&metadata["finalizers"]) && !is_finalized(&body["spec"]["finalizers"])
}

pub fn map_texts(value: &Value, map: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => map(text).into(),
        Value::Array(items) => items.iter().map(|item| map_texts(item, map)).collect(),
        Value::Object(fields) => {
            let mapped = fields
                .iter()
                .map(|(key, value)| (key.clone(), map_texts(value, map)));
            Value::Object(mapped.collect())
        }
        other => other.clone(),
    }
}

/// A request that only has a body to send.
pub fn with_body(request: Request, body: Body) -> Request {
    Request { body, ..request }
}
