//! Reading objects: get, list and watch.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use data_encoding::BASE64;
use futures::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::{
    defaults,
    failure::Failure,
    kinds::Kind,
    known_fields,
    request::{Form, Request},
    selectors::Selector,
    state::{State, WatchEvent, Watcher},
    store::Key,
};

/// How long a watch lasts that does not say so itself.
const WATCH_TIMEOUT: Duration = Duration::from_mins(40);
/// How often a watch that wants bookmarks gets one.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);
const TOO_OLD: &str = "The resourceVersion for the provided watch is too old.";
const CONTINUATION_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

pub fn get(state: &State, request: &Request) -> Result<Arc<Value>, Failure> {
    let found = state.get(&request.kind, &request.namespace, &request.name);
    let object = found.ok_or_else(|| Failure::not_found(&request.kind, &request.name))?;
    Ok(in_form(request, &object))
}

/// The object as the request wants to see it.
pub fn in_form(request: &Request, object: &Arc<Value>) -> Arc<Value> {
    match request.form {
        Form::Full => as_requested(&request.kind, object),
        Form::Metadata => Arc::new(json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
        })),
    }
}

/// The object as the group of the request writes it.
pub fn as_requested(kind: &Kind, object: &Arc<Value>) -> Arc<Value> {
    if !kind.is_converted() {
        return object.clone();
    }
    let mut converted = (**object).clone();
    defaults::convert_event(&kind.group, &mut converted);
    known_fields::prune((&kind.kind, &kind.group), &mut converted);
    Arc::new(converted)
}

fn selector(request: &Request) -> Result<Selector, Failure> {
    let selector = Selector::parse(
        request.parameter("labelSelector"),
        request.parameter("fieldSelector"),
    )?;
    selector.check(&request.kind)?;
    Ok(if request.name.is_empty() {
        selector
    } else {
        selector.with_name(&request.name)
    })
}

fn version_of(text: &str) -> Result<u64, Failure> {
    text.parse()
        .map_err(|_| Failure::bad_request(format!("the resourceVersion {text} is no number")))
}

pub fn list(state: &State, request: &Request) -> Result<Value, Failure> {
    let selector = selector(request)?;
    let resource = request.kind.resource();
    let continuation = request
        .parameter("continue")
        .map(Continuation::parse)
        .transpose()?;
    let version = match &continuation {
        Some(continuation) => continuation.version,
        None => listed_version(state, request)?,
    };
    let all = state.store.list_at(&resource, &request.namespace, version);
    let all = all.map_err(|_| Failure::expired(CONTINUATION_TOO_OLD))?;
    let begin = continuation.map(|continuation| continuation.after);
    let rest: Vec<_> = all
        .into_iter()
        .filter(|(key, _)| begin.as_ref().is_none_or(|begin| begin < *key))
        .collect();
    let end = rest.last().map(|(key, _)| *key);
    let mut selected: Vec<(&Key, &Arc<Value>)> = rest
        .into_iter()
        .filter(|(_, object)| selector.matches(object))
        .collect();
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    let limit = request
        .parameter("limit")
        .and_then(|limit| limit.parse::<usize>().ok())
        .filter(|limit| *limit > 0);
    // What may come from a cache comes as a whole.
    let limit = limit.filter(|_| request.parameter("resourceVersion") != Some("0"));
    // A full answer goes on if there is any other object, whether it is selected or not.
    if let Some(limit) = limit
        && selected.len() >= limit
        && selected.get(limit - 1).map(|(key, _)| *key) != end
    {
        let remaining = selected.len() - limit;
        selected.truncate(limit);
        if let Some((after, _)) = selected.last() {
            metadata["continue"] = json!(
                Continuation {
                    version,
                    after: (*after).clone()
                }
                .to_text()
            );
        }
        if selector.is_empty() {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    Ok(list_in_form(request, &selected, &metadata))
}

fn list_in_form(request: &Request, objects: &[(&Key, &Arc<Value>)], metadata: &Value) -> Value {
    let items: Vec<Value> = objects
        .iter()
        .map(|(_, object)| in_list(request, object))
        .collect();
    match request.form {
        Form::Full => json!({
            "kind": format!("{}List", request.kind.kind), "apiVersion": request.kind.api_version(),
            "metadata": metadata, "items": items,
        }),
        Form::Metadata => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items,
        }),
    }
}

/// Items of lists have no kind of their own, but for custom kinds.
fn in_list(request: &Request, object: &Arc<Value>) -> Value {
    let mut item = (*in_form(request, object)).clone();
    if request.form == Form::Full
        && !request.kind.is_custom()
        && let Some(fields) = item.as_object_mut()
    {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    item
}

fn listed_version(state: &State, request: &Request) -> Result<u64, Failure> {
    let now = state.store.version();
    let Some(text) = request.parameter("resourceVersion") else {
        return Ok(now);
    };
    let wanted = version_of(text)?;
    Ok(
        if request.parameter("resourceVersionMatch") == Some("Exact") {
            wanted
        } else {
            now
        },
    )
}

/// Where a list goes on.
struct Continuation {
    version: u64,
    after: Key,
}

impl Continuation {
    fn to_text(&self) -> String {
        let Key {
            resource,
            namespace,
            name,
        } = &self.after;
        BASE64.encode(
            json!([self.version, resource, namespace, name])
                .to_string()
                .as_bytes(),
        )
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let parse = || {
            let (version, resource, namespace, name) =
                serde_json::from_slice(&BASE64.decode(text.as_bytes()).ok()?).ok()?;
            Some(Self {
                version,
                after: Key {
                    resource,
                    namespace,
                    name,
                },
            })
        };
        parse().ok_or_else(|| {
            Failure::bad_request("invalid continue token: continue key is not valid")
        })
    }
}

/// Begins a watch. The stream has one JSON document a line.
pub fn watch(
    state: &mut State,
    request: &Request,
) -> Result<impl Stream<Item = Bytes> + Send + use<>, Failure> {
    let selector = selector(request)?;
    let (events, received) = mpsc::unbounded_channel();
    let (resource, namespace) = (request.kind.resource(), request.namespace.clone());
    let watcher = Watcher {
        resource,
        namespace,
        selector,
        events,
    };
    let begins_now = matches!(request.parameter("resourceVersion"), None | Some("0"));
    let is_unsaid = request.parameter("sendInitialEvents").is_none()
        && request.parameter("resourceVersionMatch").is_none();
    let wants_initial = if is_unsaid {
        begins_now
    } else {
        request.flag("sendInitialEvents")
    };
    let from = match request
        .parameter("resourceVersion")
        .map(version_of)
        .transpose()?
    {
        None | Some(0) => None,
        Some(_) if wants_initial => None,
        Some(version) => Some(version),
    };
    let begun = begin(state, &watcher, from);
    let initial =
        begun.unwrap_or_else(|failure| vec![WatchEvent::new("ERROR", Arc::new(failure.status()))]);
    let is_over = initial.iter().any(|event| event.kind == "ERROR");
    let mut lines: Vec<Bytes> = initial.iter().map(|event| line(request, event)).collect();
    let allows_bookmarks = request.flag("allowWatchBookmarks");
    if wants_initial && allows_bookmarks {
        lines.push(bookmark(request, state.store.version(), true));
    }
    if !is_over {
        state.watch(watcher);
    }
    let seconds = request
        .parameter("timeoutSeconds")
        .and_then(|seconds| seconds.parse().ok());
    let timeout = seconds
        .filter(|seconds| *seconds > 0)
        .map_or(WATCH_TIMEOUT, Duration::from_secs);
    let follow = Following {
        received: (!is_over).then_some(received),
        request: request.clone(),
        end: Instant::now() + timeout,
        bookmark: allows_bookmarks.then(|| Instant::now() + BOOKMARK_INTERVAL),
        version: state.store.version(),
    };
    Ok(stream::iter(lines).chain(stream::unfold(follow, Following::next)))
}

/// What a watch says first: everything that exists, or what changed since a version.
fn begin(state: &State, watcher: &Watcher, from: Option<u64>) -> Result<Vec<WatchEvent>, Failure> {
    let Some(version) = from else {
        let all = state.store.list(&watcher.resource, &watcher.namespace);
        let selected = all.filter(|(_, object)| watcher.selector.matches(object));
        return Ok(selected
            .map(|(_, object)| WatchEvent::new("ADDED", object.clone()))
            .collect());
    };
    let changes = state
        .store
        .since(version)
        .map_err(|_| Failure::expired(TOO_OLD))?;
    Ok(changes
        .filter_map(|change| watcher.event(change, &Arc::default()))
        .collect())
}

struct Following {
    /// `None` when the watch is over.
    received: Option<mpsc::UnboundedReceiver<WatchEvent>>,
    request: Request,
    end: Instant,
    /// When the next bookmark is due, if the watch wants any.
    bookmark: Option<Instant>,
    version: u64,
}

impl Following {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let received = self.received.as_mut()?;
        let bookmark = self.bookmark.unwrap_or(self.end + BOOKMARK_INTERVAL);
        let said = tokio::select! {
            biased;
            event = received.recv() => event.map(|event| {
                let version = event.object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
                self.version = version.unwrap_or(self.version);
                line(&self.request, &event)
            }),
            () = tokio::time::sleep_until(self.end) => None,
            () = tokio::time::sleep_until(bookmark) => {
                self.bookmark = Some(Instant::now() + BOOKMARK_INTERVAL);
                Some(self::bookmark(&self.request, self.version, false))
            }
        };
        said.map(|said| (said, self))
    }
}

fn line(request: &Request, event: &WatchEvent) -> Bytes {
    let WatchEvent { kind, object, text } = event;
    let is_as_stored =
        *kind == "ERROR" || request.form == Form::Full && !request.kind.is_converted();
    if is_as_stored {
        event_line(kind, text.get_or_init(|| object.to_string()))
    } else {
        event_line(kind, &in_form(request, object))
    }
}

/// A line of a watch. The type comes first, as readers expect.
fn event_line(kind: &str, object: &impl fmt::Display) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

fn bookmark(request: &Request, version: u64, ends_initial: bool) -> Bytes {
    let mut object = json!({ "kind": request.kind.kind, "apiVersion": request.kind.api_version() });
    for (field, value) in request
        .kind
        .lists
        .empty_object()
        .as_object()
        .into_iter()
        .flatten()
    {
        object[field] = value.clone();
    }
    object["metadata"] = json!({ "resourceVersion": version.to_string() });
    if ends_initial {
        object["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    event_line("BOOKMARK", &in_form(request, &Arc::new(object)))
}
