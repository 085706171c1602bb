//! Lists, watches and deletions of many objects.

use crate::{
    generate::{Generator, Place},
    lifecycle::PARTIAL,
    request::{JSON, Request, Watching},
};

const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

const SELECTORS: &[&str] = &[
    "color=red",
    "color==blue",
    "color!=red",
    "color in (red,blue)",
    "color notin (red)",
    "color",
    "!color",
    "tier=front,color=blue",
    "color in (red, green),!tier",
];

impl<'a> Generator<'a> {
    /// The path and the selectors of a list or a watch. Only objects of this sequence are selected.
    fn selection(&mut self, request: Request, place: &Place<'a>, is_everywhere: bool) -> Request {
        let mut labels = Vec::new();
        if is_everywhere || place.kind.cluster {
            labels.push(format!("judge={}", self.prefix));
        }
        if self.rng.chance(35) {
            labels.push((*self.rng.pick(SELECTORS)).to_owned());
        }
        let mut request = request;
        if !labels.is_empty() {
            request = request.parameter("labelSelector", labels.join(","));
        }
        if self.rng.chance(20) {
            let fields = self.field_selector(place);
            request = request.parameter("fieldSelector", fields);
        }
        request
    }

    fn field_selector(&mut self, place: &Place<'a>) -> String {
        let fields = &place.kind.fields;
        let special = self
            .rng
            .pick_any(fields)
            .filter(|_| !fields.is_empty())
            .cloned();
        match special {
            Some(selector) if self.rng.chance(60) => {
                let selector = self.fill(&selector.into(), place);
                selector.as_str().unwrap_or_default().to_owned()
            }
            _ => match self.rng.below(4) {
                0 => format!("metadata.name!={}", place.name),
                1 if !place.namespace.is_empty() => {
                    format!("metadata.namespace={}", place.namespace)
                }
                2 => format!(
                    "metadata.name={},metadata.namespace={}",
                    place.name, place.namespace
                ),
                _ => format!("metadata.name={}", place.name),
            },
        }
    }

    fn many(&mut self, method: &'static str, verb: &'static str, place: &Place<'a>) -> Request {
        let is_everywhere = verb != "deletecollection" && self.rng.chance(15);
        let namespace = Some(place.namespace.as_str()).filter(|_| !is_everywhere);
        let request = Request::new(
            method,
            verb,
            place.kind.resource(),
            place.kind.collection(namespace),
        );
        self.selection(request, place, is_everywhere)
    }

    pub fn list(&mut self, place: &Place<'a>) -> Request {
        let mut request = self.many("GET", "list", place);
        // Whether a page of the whole cluster is the last one depends on the objects of other
        // sequences.
        if request.path.contains("/namespaces/") && self.rng.chance(40) {
            let slot = self.new_slot();
            request.list_slot = Some(slot);
            let limit = self.rng.pick(&["1", "2", "3", "500"]).to_owned();
            request = request.parameter("limit", limit);
        }
        match self.rng.below(100) {
            0..10 => request.accept = PARTIAL_LIST,
            15..22 => {
                request = Request {
                    waits_for_caches: true,
                    ..request.parameter("resourceVersion", "0")
                }
            }
            22..30 => request = self.at_version(request, place),
            _ => {}
        }
        request
    }

    /// At the version of an object of the kind: the caches of the real server know no others in
    /// time.
    fn at_version(&mut self, request: Request, place: &Place<'a>) -> Request {
        let Some(place) = self.same_kind(place.kind) else {
            return request;
        };
        let which = *self.rng.pick(&["rv", "oldrv"]);
        let request =
            request.parameter("resourceVersion", format!("${{{which}:{}}}", place.path()));
        let request = Request {
            waits_for_caches: true,
            ..request
        };
        match self.rng.below(4) {
            0 => request.parameter("resourceVersionMatch", "Exact"),
            1 => request.parameter("resourceVersionMatch", "NotOlderThan"),
            _ => request,
        }
    }

    /// Mostly asks for the next page of a list, with what happened in between.
    pub fn continue_list(&mut self, request: &Request, slot: usize) {
        if self.rng.chance(15) {
            return;
        }
        let mut next = request.clone();
        next.query.retain(|(name, _)| {
            !matches!(
                *name,
                "continue" | "resourceVersion" | "resourceVersionMatch"
            )
        });
        let next = next.parameter("continue", format!("${{token:{slot}}}"));
        if self.rng.chance(50)
            && let Some(place) = self.any_object()
        {
            let between = self.patch(&place, "");
            self.queue.push_back(between);
        }
        self.queue.push_back(next);
    }

    /// A watch from now on, or from the beginning.
    pub fn watch_of(&mut self, place: &Place<'a>) -> Request {
        let mut request = self.many("GET", "watch", place).parameter("watch", "true");
        request.query.retain(|(name, _)| *name != "fieldSelector");
        if self.rng.chance(20) {
            Request {
                accept: PARTIAL,
                ..request
            }
        } else {
            request
        }
    }

    pub fn watch(&mut self, place: &Place<'a>) -> Request {
        let mut request = self.many("GET", "watch", place).parameter("watch", "true");
        request.watching = Watching::Past;
        if self.rng.chance(20) {
            request.accept = PARTIAL;
        }
        if self.rng.chance(60) {
            request = request.parameter("allowWatchBookmarks", *self.rng.pick(&["true", "false"]));
        }
        match (self.rng.below(10), self.any_object()) {
            // Where the history of a custom kind begins is the real server's choice.
            (0, _) if !place.kind.api_version.contains("liqo.io") => {
                request = request.parameter("resourceVersion", "1")
            }
            (1, _) => request = request.parameter("resourceVersion", "0"),
            (2 | 3, _) => request = initial_events(request),
            (0 | 4, _) => {}
            (5..8, _) => {
                let beginning = format!("${{rv:/api/v1/namespaces/{}-a}}", self.prefix);
                request = request.parameter("resourceVersion", beginning);
            }
            (_, Some(object)) => {
                request =
                    request.parameter("resourceVersion", format!("${{oldrv:{}}}", object.path()))
            }
            _ => {}
        }
        request.waits_for_caches = true;
        if self.rng.chance(8) {
            request = Request {
                watching: Watching::UntilTimeout,
                ..request.parameter("timeoutSeconds", "1")
            };
        }
        request
    }

    pub fn delete_collection(&mut self, place: &Place<'a>) -> Request {
        let request = self
            .many("DELETE", "deletecollection", place)
            .settles(place.kind.settle);
        match self.rng.below(4) {
            0 => request.parameter(
                "propagationPolicy",
                *self.rng.pick(&["Foreground", "Background", "Orphan"]),
            ),
            1 => request.parameter("gracePeriodSeconds", "0"),
            2 => request
                .content(JSON)
                .json(serde_json::json!({ "gracePeriodSeconds": 0 })),
            _ => request,
        }
    }
}

fn initial_events(request: Request) -> Request {
    let request = request
        .parameter("sendInitialEvents", "true")
        .parameter("resourceVersionMatch", "NotOlderThan");
    let has_bookmarks = request
        .query
        .iter()
        .any(|(name, _)| *name == "allowWatchBookmarks");
    if has_bookmarks {
        request
    } else {
        request.parameter("allowWatchBookmarks", "true")
    }
}
