//! An API server in memory.
//!
//! ```text
//!   HTTP request --> request --> access (RBAC) --> reads --------------------------------------> store
//!                                              \-> writes: patch, defaults, validation, schema --> store --> watches
//! ```
//!
//! `kinds` and `rules` say what differs between kinds; `state` contains everything that the server
//! stores.

mod access;
mod apply;
mod cause;
mod decode;
mod defaults;
mod deletion;
mod failure;
pub(crate) mod kinds;
mod known_fields;
mod lists;
mod options;
mod patch;
mod reads;
mod request;
mod reviews;
mod rules;
mod schema;
pub(crate) mod selectors;
mod state;
mod store;
mod subresources;
mod validation;
mod webhook_call;
mod webhooks;
mod writes;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{StreamExt as _, future::BoxFuture};
use http::{Method, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use jiff::Timestamp;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::Service;

pub(crate) use self::store::Store;
pub use self::{
    store::Key,
    webhook_call::{WebhookCall, Webhooks},
};

use self::{
    failure::Failure,
    request::{Request, Verb},
    state::State,
};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    /// A user who may do everything.
    pub fn administrator() -> Self {
        Self {
            name: "admin".to_owned(),
            groups: vec![
                "system:masters".to_owned(),
                "system:authenticated".to_owned(),
            ],
        }
    }

    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [
            "system:serviceaccounts",
            &format!("system:serviceaccounts:{namespace}"),
            "system:authenticated",
        ];
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        }
    }
}

/// An API server. Clones share everything.
#[derive(Clone)]
pub struct ApiServer(Arc<Mutex<State>>);

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

impl ApiServer {
    /// With the namespaces that every cluster has, and nothing else.
    pub fn new() -> Self {
        Self::seeded(0, Timestamp::now)
    }

    /// Draws uids and names from the seed, and reads the time from `clock`.
    pub fn seeded(seed: u64, clock: impl Fn() -> Timestamp + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(State::new(seed, Box::new(clock)))))
    }

    /// Another API server that begins with the objects of this one.
    #[must_use]
    pub fn copy(&self, seed: u64, clock: impl Fn() -> Timestamp + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(
            self.0.lock().copy(seed, Box::new(clock)),
        )))
    }

    /// Calls admission webhooks with this from now on. Before, none is called.
    pub fn set_webhooks(&self, webhooks: Webhooks) {
        self.0.lock().webhooks = Some(webhooks);
    }

    /// Shows each change to `observer` from now on, when it is made: the object before and after
    /// it.
    pub fn observe(
        &self,
        observer: impl FnMut(&Key, Option<&Value>, Option<&Value>) + Send + 'static,
    ) {
        self.0.lock().set_observer(Box::new(observer));
    }

    /// A client with the rights of this user.
    pub fn client(&self, user: User) -> Client {
        Client::new(self.connection(user), "default")
    }

    /// Answers a request over HTTP, whose bearer token says who asks.
    pub async fn answer_to_token(&self, request: http::Request<Body>) -> Response<Answered> {
        let bearer = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let user = bearer.and_then(|token| reviews::user_of(&self.0.lock(), token));
        let Some(user) = user else {
            let failure = Failure::unauthorized();
            return json_answer(failure.code, &failure.status());
        };
        match self.connection(user).call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }

    pub(crate) fn connection(&self, mut user: User) -> Connection {
        let authenticated = "system:authenticated".to_owned();
        if !user.groups.contains(&authenticated) {
            user.groups.push(authenticated);
        }
        Connection {
            server: self.clone(),
            user,
        }
    }

    /// Forgets the history: whoever watches from an older version must list again.
    pub fn compact(&self) {
        self.0.lock().store.compact();
    }

    /// The time of this server's clock.
    pub fn now(&self) -> Timestamp {
        self.0.lock().now()
    }

    /// A number that the seed decides.
    pub(crate) fn draw(&self) -> u64 {
        self.0.lock().draw()
    }

    /// All objects, in the order of resource, namespace and name.
    pub fn objects(&self) -> Vec<(Key, Arc<Value>)> {
        self.0
            .lock()
            .store
            .all()
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }

    /// Reads several objects at one moment.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(&self.0.lock().store)
    }

    /// How many open watches are told of changes of this object.
    pub fn watch_count(&self, resource: &str, object: &Value) -> usize {
        self.0.lock().watch_count(resource, object)
    }

    /// The number of requests so far.
    pub fn request_count(&self) -> u64 {
        self.0.lock().requests
    }

    /// Is notified of changes. For one who waits.
    pub fn changed(&self) -> Arc<Notify> {
        self.0.lock().changed.clone()
    }

    /// The path of an object or, without a name, of a collection. `resource` is the plural with its
    /// group.
    pub fn path(&self, resource: &str, namespace: &str, name: &str) -> String {
        let state = self.0.lock();
        let kind = state.kinds.iter().find(|kind| kind.resource() == resource);
        let root = kind.map_or_else(String::new, |kind| match kind.group.as_str() {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        });
        let within = if namespace.is_empty() {
            String::new()
        } else {
            format!("/namespaces/{namespace}")
        };
        let plural = kind.map_or("", |kind| kind.plural.as_str());
        let named = if name.is_empty() {
            String::new()
        } else {
            format!("/{name}")
        };
        format!("{root}{within}/{plural}{named}")
    }

    /// Lets somebody else write the object that a request is about, so that its version is another
    /// one. Returns false if there is none.
    pub(crate) fn touch(&self, parts: &http::request::Parts) -> bool {
        let state = &mut *self.0.lock();
        let Ok(request) = Request::parse(&state.kinds, parts, Vec::new()) else {
            return false;
        };
        let Some(object) = state.get(&request.kind, &request.namespace, &request.name) else {
            return false;
        };
        state.put(
            state::key(&request.kind, &request.namespace, &request.name),
            (*object).clone(),
        );
        true
    }

    /// Makes a request. Returns whether it succeeded.
    pub(crate) async fn call(
        &self,
        user: &User,
        method: &Method,
        path: &str,
        body: &Value,
    ) -> bool {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json");
        let Ok((parts, ())) = request.body(()).map(http::Request::into_parts) else {
            return false;
        };
        self.admitted(user, &parts, body.to_string().into_bytes())
            .await
            .status()
            .is_success()
    }

    /// The answer to a request, which webhooks may change before.
    async fn admitted(
        &self,
        user: &User,
        parts: &http::request::Parts,
        mut body: Vec<u8>,
    ) -> Response<Answered> {
        let (due, webhooks) = {
            let state = self.0.lock();
            (
                webhooks::due(&state, user, parts, &body),
                state.webhooks.clone(),
            )
        };
        if let Some(webhooks) = webhooks.filter(|_| !due.is_empty()) {
            match webhooks::admit(due, &webhooks).await {
                Ok(changed) => {
                    body = changed.map_or(body, |object| object.to_string().into_bytes());
                }
                Err(failure) => return json_answer(failure.code, &failure.status()),
            }
        }
        self.answer(user, parts, body)
    }

    fn answer(
        &self,
        user: &User,
        parts: &http::request::Parts,
        body: Vec<u8>,
    ) -> Response<Answered> {
        let state = &mut *self.0.lock();
        state.requests += 1;
        tracing::trace!(
            now = %state.now(), user = user.name, method = %parts.method, uri = %parts.uri, body = %String::from_utf8_lossy(&body),
            "request"
        );
        let request = match Request::parse(&state.kinds, parts, body) {
            Ok(request) => request,
            Err(failure) => return about(state, parts.uri.path(), failure),
        };
        if let Err(failure) =
            access::check(state, user, &request).and_then(|()| options::check(&request))
        {
            return json_answer(failure.code, &failure.status());
        }
        if request.verb == Verb::Watch {
            return match reads::watch(state, &request) {
                Ok(lines) => stream_answer(lines.map(|line| Ok(Frame::data(line))).boxed()),
                Err(failure) => json_answer(failure.code, &failure.status()),
            };
        }
        match serve(state, user, &request) {
            Ok((code, object)) => json_answer(code, &object),
            Err(failure) => json_answer(failure.code, &failure.status()),
        }
    }
}

fn serve(
    state: &mut State,
    user: &User,
    request: &Request,
) -> Result<(StatusCode, Arc<Value>), Failure> {
    let is_review = [
        "TokenReview",
        "SelfSubjectAccessReview",
        "SelfSubjectReview",
        "SubjectAccessReview",
    ]
    .contains(&request.kind.kind.as_str());
    if is_review && request.verb != Verb::Create {
        return Err(Failure::method_not_allowed());
    }
    if let Some(answer) = subresources::act(state, user, request) {
        return answer;
    }
    let written = match request.verb {
        Verb::Get => return reads::get(state, request).map(|object| (StatusCode::OK, object)),
        Verb::List | Verb::Watch => {
            return reads::list(state, request).map(|object| (StatusCode::OK, Arc::new(object)));
        }
        Verb::Create => writes::create(state, user, request),
        Verb::Update => writes::update(state, user, request),
        Verb::Patch => writes::patch(state, user, request),
        Verb::Delete => deletion::delete(state, request),
        Verb::DeleteCollection => {
            return deletion::delete_collection(state, request);
        }
    };
    let (code, object) = written?;
    let is_status = object["kind"] == "Status";
    Ok((
        code,
        if is_status {
            object
        } else {
            reads::in_form(request, &object)
        },
    ))
}

/// Answers what is no object: the version, and which kinds there are.
fn about(state: &State, path: &str, failure: Failure) -> Response<Answered> {
    match path.trim_matches('/') {
        "version" => json_answer(
            StatusCode::OK,
            &json!({
                "major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "", "gitTreeState": "clean",
                "buildDate": "", "goVersion": "", "compiler": "gc", "platform": "linux/amd64",
            }),
        ),
        path => match resources(state, path) {
            Some(resources) => json_answer(StatusCode::OK, &resources),
            None if failure.is_page() => {
                let mut answer = Response::new(Full::new(Bytes::from(failure.message)).boxed());
                *answer.status_mut() = failure.code;
                let text = http::HeaderValue::from_static("text/plain; charset=utf-8");
                answer.headers_mut().insert(header::CONTENT_TYPE, text);
                answer
            }
            None => json_answer(failure.code, &failure.status()),
        },
    }
}

/// The kinds of a group and version.
fn resources(state: &State, path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.split('/').collect();
    let (group, version) = match parts.as_slice() {
        ["api", version] => ("", *version),
        ["apis", group, version] => (*group, *version),
        _ => return None,
    };
    let of_group = state
        .kinds
        .iter()
        .filter(|kind| kind.group == group && kind.version == version);
    let resources: Vec<Value> = of_group
        .map(|kind| {
            json!({
                "name": kind.plural, "singularName": kind.kind.to_lowercase(), "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    state
        .kinds
        .has_group_version(group, version)
        .then(|| json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources }))
}

/// The body of an answer.
pub type Answered = BoxBody<Bytes, Infallible>;

fn json_answer(code: StatusCode, object: &Value) -> Response<Answered> {
    let mut response = Response::new(Full::new(Bytes::from(object.to_string())).boxed());
    *response.status_mut() = code;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

fn stream_answer(
    frames: futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>,
) -> Response<Answered> {
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(
        frames,
    )))));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

/// Bodies must be `Sync`. Only one task polls one, so nobody ever waits for the lock.
struct SyncStream(Mutex<futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>);

impl futures::Stream for SyncStream {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        self.get_mut().0.get_mut().poll_next_unpin(context)
    }
}

/// A user's connection to an API server.
#[derive(Clone)]
pub(crate) struct Connection {
    server: ApiServer,
    user: User,
}

impl Connection {
    pub fn server(&self) -> &ApiServer {
        &self.server
    }
}

impl Service<http::Request<Body>> for Connection {
    type Response = Response<Answered>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { server, user } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = body.collect().await else {
                let failure = Failure::bad_request("the body of the request ended early");
                return Ok(json_answer(failure.code, &failure.status()));
            };
            Ok(server
                .admitted(&user, &parts, body.to_bytes().to_vec())
                .await)
        })
    }
}
