//! The connection of a process to an API server, and what goes wrong on it.
//!
//! ```text
//!   client --> delay --> lost? --> refused? --> API server --> answer lost? --> delay --> client
//!                                                     watch --> lag, end in the middle of an event
//! ```

use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, future::BoxFuture, stream};
use http::{Method, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tower::{BoxError, Service};

use crate::{
    ApiServer, User,
    api_server::{Answered, Connection},
    random::Draws,
};

/// How long a request waits that gets no answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often what goes wrong, in 1,000 requests, and how late things are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// The longest that a request, an answer or an event of a watch takes.
    pub delay: Duration,
    /// The request never arrives.
    pub lost_requests: u32,
    /// The request is done, and its answer never arrives.
    pub lost_answers: u32,
    /// The request arrives, but only after up to `lateness`, even if its sender has ended
    /// meanwhile.
    pub late_requests: u32,
    pub lateness: Duration,
    /// The API server refuses: 429, 500, 503 or, for a change of an object that somebody else
    /// changes at the same moment, 409.
    pub refusals: u32,
    /// A watch ends, in the middle of an event; counted in events.
    pub broken_watches: u32,
}

/// Whether anything passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// A partition: nothing arrives.
    Cut,
    /// The process is dead: nothing arrives, and nothing will.
    Ended,
}

/// A process' connection to an API server. Clones are the same connection.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

struct Shared {
    faults: Mutex<Faults>,
    draws: Mutex<Draws>,
    way: Mutex<Way>,
    /// Tells who waits that the way changed.
    changed: Notify,
    /// How often each kind of fault was drawn.
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Link {
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self(Arc::new(Shared {
            faults: Mutex::new(faults),
            draws: Mutex::new(Draws::new(seed)),
            way: Mutex::new(Way::Open),
            changed: Notify::new(),
            counts: Mutex::default(),
        }))
    }

    pub fn client(&self, server: &ApiServer, user: User) -> Client {
        Client::new(
            OverLink {
                link: self.clone(),
                connection: server.connection(user),
            },
            "default",
        )
    }

    pub fn faults(&self) -> Faults {
        *self.0.faults.lock()
    }

    pub fn set_faults(&self, faults: Faults) {
        *self.0.faults.lock() = faults;
    }

    /// How often each kind of fault was drawn so far. Partitions do not count.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.counts.lock().clone()
    }

    /// Nothing passes any more until [`Link::heal`]. Watches hear nothing.
    pub fn cut(&self) {
        self.go(Way::Cut);
    }

    pub fn heal(&self) {
        self.go(Way::Open);
    }

    /// The process ends: none of its requests is answered or done from now on.
    pub fn end(&self) {
        self.go(Way::Ended);
    }

    fn go(&self, to: Way) {
        let mut way = self.0.way.lock();
        if *way != Way::Ended {
            *way = to;
            self.0.changed.notify_waiters();
        }
    }

    fn way(&self) -> Way {
        *self.0.way.lock()
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Draws, Faults) -> T) -> T {
        draw(&mut self.0.draws.lock(), *self.0.faults.lock())
    }

    /// Whether something with this chance goes wrong now.
    fn fails(&self, kind: &'static str, chance: impl FnOnce(Faults) -> u32) -> bool {
        let fails = self.draw(|draws, faults| draws.per_mille(chance(faults)));
        if fails {
            *self.0.counts.lock().entry(kind).or_default() += 1;
        }
        fails
    }

    async fn delay(&self) {
        let delay = self.draw(|draws, faults| {
            if faults.delay.is_zero() {
                Duration::ZERO
            } else {
                draws.up_to(faults.delay)
            }
        });
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    /// Returns when the connection is open: never, if the process is dead.
    async fn opened(&self) {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.way() == Way::Open {
                return;
            }
            changed.await;
        }
    }

    /// Waits for an answer that does not come, and gives up.
    async fn silence(&self) -> BoxError {
        tokio::time::sleep(TIMEOUT).await;
        if self.way() == Way::Ended {
            std::future::pending::<()>().await;
        }
        std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer").into()
    }
}

const REFUSALS: [(StatusCode, &str); 4] = [
    (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
    (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
    (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
    (StatusCode::CONFLICT, "Conflict"),
];

/// A refusal of the API server, for a reason of its own.
fn refusal(code: StatusCode, reason: &str) -> Response<Carried> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "simulated", "reason": reason,
        "code": code.as_u16(),
    });
    let body = Full::new(Bytes::from(status.to_string()))
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

type Carried = UnsyncBoxBody<Bytes, BoxError>;

#[derive(Clone)]
struct OverLink {
    link: Link,
    connection: Connection,
}

impl OverLink {
    async fn carry(
        mut self,
        mut request: http::Request<Body>,
    ) -> Result<Response<Carried>, BoxError> {
        let link = self.link.clone();
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=true"));
        link.delay().await;
        if link.way() != Way::Open || link.fails("request lost", |faults| faults.lost_requests) {
            return Err(link.silence().await);
        }
        if link.fails("request refused", |faults| faults.refusals) {
            let (parts, body) = request.into_parts();
            let (code, reason) = link.draw(|draws, _| draws.one_of(&REFUSALS));
            // A conflict means that somebody else changed the object, and watches tell about that.
            let is_change = [Method::PUT, Method::PATCH].contains(&parts.method);
            if code != StatusCode::CONFLICT || is_change && self.connection.server().touch(&parts) {
                return Ok(refusal(code, reason));
            }
            request = http::Request::from_parts(parts, body);
        }
        let answered = if link.fails("request late", |faults| faults.late_requests) {
            let lateness = link.draw(|draws, faults| draws.up_to(faults.lateness));
            // It is on its way, and arrives whatever becomes of its sender.
            let arrives = tokio::spawn(async move {
                tokio::time::sleep(lateness).await;
                self.connection.call(request).await
            });
            arrives.await?
        } else {
            self.connection.call(request).await
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        link.delay().await;
        if link.way() != Way::Open || link.fails("answer lost", |faults| faults.lost_answers) {
            return Err(link.silence().await);
        }
        let (parts, body) = answer.into_parts();
        let body = if is_watch {
            watched(link, body)
        } else {
            body.map_err(|never| match never {}).boxed_unsync()
        };
        Ok(Response::from_parts(parts, body))
    }
}

/// The events of a watch, late, until one breaks off.
fn watched(link: Link, body: Answered) -> Carried {
    let frames = BodyStream::new(body);
    let late = stream::unfold(Some((link, frames)), |state| async move {
        let (link, mut frames) = state?;
        let data = frames.next().await?.ok()?.into_data().ok()?;
        link.opened().await;
        link.delay().await;
        if link.fails("watch broken off", |faults| faults.broken_watches) {
            let half = data.slice(..data.len() / 2);
            return Some((Ok::<_, BoxError>(Frame::data(half)), None));
        }
        Some((Ok(Frame::data(data)), Some((link, frames))))
    });
    BodyExt::boxed_unsync(StreamBody::new(
        Box::pin(late) as Pin<Box<dyn Stream<Item = _> + Send>>
    ))
}

impl Service<http::Request<Body>> for OverLink {
    type Response = Response<Carried>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.clone().carry(request))
    }
}
