//! Sends a request and reads the answer, or the events of a watch.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use kube::client::Body as HttpBody;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    answer::Answer,
    pace::Pace,
    request::{Request, Watching},
    side::{Resolved, Side},
};

/// How long a watch must have been quiet at both servers to be compared.
const QUIET: Duration = Duration::from_millis(150);
/// How long the server with fewer events gets to catch up.
const CATCH_UP: Duration = Duration::from_secs(4);
/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_mins(1);

/// An answer, or a watch that has begun.
pub enum Reply {
    Whole(Answer),
    Watch(Watch),
}

impl Reply {
    pub fn into_answer(self) -> Answer {
        match self {
            Self::Whole(answer) => answer,
            Self::Watch(watch) => watch.answer(false),
        }
    }
}

/// An open watch; its events arrive in a task of its own.
pub struct Watch {
    head: Answer,
    received: Arc<Mutex<Received>>,
    task: JoinHandle<()>,
}

struct Received {
    events: Vec<Value>,
    last: Instant,
    ended: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub async fn send(side: &Side, request: &Request, resolved: &Resolved) -> Reply {
    let attempt = tokio::time::timeout(TIMEOUT, try_send(side, request, resolved)).await;
    match attempt {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => Reply::Whole(Answer {
            value: json!({ "code": 0, "failed": format!("{error:#}") }),
        }),
        Err(_) => Reply::Whole(Answer {
            value: json!({ "code": 0, "failed": "no answer" }),
        }),
    }
}

async fn try_send(side: &Side, request: &Request, resolved: &Resolved) -> anyhow::Result<Reply> {
    let mut builder = http::Request::builder()
        .method(request.method)
        .uri(&resolved.path_and_query);
    builder = builder
        .header("accept", request.accept)
        .header("user-agent", "judge/1");
    if !request.content_type.is_empty() {
        builder = builder.header("content-type", request.content_type);
    }
    let response = side
        .client(request)
        .send(builder.body(HttpBody::from(resolved.body.clone().into_bytes()))?)
        .await?;
    let (parts, body) = response.into_parts();
    let code = parts.status.as_u16();
    if request.watching != Watching::No && code == 200 {
        let head = Answer::new(code, &parts.headers, &Value::Null);
        return Ok(Reply::Watch(Watch::open(head, body)));
    }
    let bytes = body.collect().await?.to_bytes();
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into());
    Ok(Reply::Whole(Answer::new(code, &parts.headers, &body)))
}

impl Watch {
    fn open(head: Answer, body: HttpBody) -> Self {
        let received = Received {
            events: Vec::new(),
            last: Instant::now(),
            ended: false,
        };
        let received = Arc::new(Mutex::new(received));
        let task = tokio::spawn(read_events(body, Arc::clone(&received)));
        Self {
            head,
            received,
            task,
        }
    }

    fn count(&self) -> usize {
        self.received.lock().events.len()
    }

    fn has_ended(&self) -> bool {
        self.received.lock().ended
    }

    fn quiet_for(&self) -> Duration {
        self.received.lock().last.elapsed()
    }

    /// The answer with the events so far.
    fn answer(&self, is_end_compared: bool) -> Answer {
        let mut answer = self.head.clone();
        let received = self.received.lock();
        answer.value["body"] = json!({ "events": received.events });
        if is_end_compared {
            answer.value["body"]["ended"] = received.ended.into();
        }
        answer
    }
}

/// Waits until both watches have as many events as the other and are quiet, or one does not catch
/// up.
pub async fn finish(
    real: &Watch,
    simulated: &Watch,
    watching: Watching,
    pace: Pace,
) -> (Answer, Answer) {
    let began = Instant::now();
    let waits_for_end = watching == Watching::UntilTimeout;
    loop {
        let quiet = real.quiet_for().min(simulated.quiet_for());
        let have_ended = real.has_ended() && simulated.has_ended();
        let is_even = real.count() == simulated.count() && !waits_for_end && quiet > pace.of(QUIET);
        if have_ended || is_even || quiet.min(began.elapsed()) > pace.of(CATCH_UP) {
            return (real.answer(waits_for_end), simulated.answer(waits_for_end));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn read_events(body: HttpBody, received: Arc<Mutex<Received>>) {
    let mut chunks = body.into_data_stream();
    let mut buffer = Vec::new();
    while let Some(Ok(chunk)) = chunks.next().await {
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let event = serde_json::from_slice(&line)
                .unwrap_or_else(|_| String::from_utf8_lossy(&line).into_owned().into());
            if !is_plain_bookmark(&event) {
                let mut received = received.lock();
                received.events.push(event);
                received.last = Instant::now();
            }
        }
    }
    received.lock().ended = true;
}

/// Servers send bookmarks when they like, but for the one after the initial events.
fn is_plain_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK"
        && event["object"]["metadata"]["annotations"]
            .get("k8s.io/initial-events-end")
            .is_none()
}
