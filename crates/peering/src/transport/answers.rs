//! Limits what is read of each answer of a peer: its length, its rate, and one page of a list at a
//! time.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Uri;
use hyper::body::{Body, Buf, Bytes, Frame};
use liqo_controller_runtime::provider_limits::{
    EVENT_COST, LimitExceeded, MAX_ANSWER_LEN, MAX_EVENT_ANSWER_LEN, MAX_PAGE_LEN,
    MAX_PAGE_OBJECTS, MAX_PAGE_VALUES, MAX_VALUES, PAGE_TIMEOUT, ProviderLimits, REQUEST_COST,
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tower::BoxError;

/// The kinds of answers, by what limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// The log of a pod. It is streamed to the caller, so its length does not matter.
    Log,
    /// One object.
    Object,
    /// The metrics of many pods, in one answer.
    Metrics,
    /// One page of a list.
    Page(ContentKind),
    /// A stream of lines.
    Watch(ContentKind),
}

/// The kinds of objects in a list or a watch, by what limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// Kubernetes events. More of them than are read are no fault: some are skipped.
    Events,
    Objects,
}

impl AnswerKind {
    pub fn for_request(uri: &Uri) -> Self {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let has = |parameter: &str| query.split('&').any(|pair| pair.starts_with(parameter));
        let content = if path.ends_with("/events") {
            ContentKind::Events
        } else {
            ContentKind::Objects
        };
        // A pod may have the name of a subresource.
        let subresource = match path.split('/').collect::<Vec<_>>().as_slice() {
            ["", "api", "v1", "namespaces", _, "pods", _, subresource] => Some(*subresource),
            _ => None,
        };
        match subresource {
            Some("log") => Self::Log,
            Some(_) => Self::Object,
            _ if path.starts_with("/apis/metrics.k8s.io/") => Self::Metrics,
            _ if has("watch=true") => Self::Watch(content),
            _ if has("limit=") => Self::Page(content),
            _ => Self::Object,
        }
    }

    /// Maximum number of bytes, of a watch in one line.
    fn max_len(self) -> usize {
        match self {
            Self::Log => usize::MAX,
            Self::Page(ContentKind::Events) | Self::Watch(ContentKind::Events) => {
                MAX_EVENT_ANSWER_LEN
            }
            Self::Object | Self::Watch(ContentKind::Objects) => MAX_ANSWER_LEN,
            Self::Metrics | Self::Page(ContentKind::Objects) => MAX_PAGE_LEN,
        }
    }
}

/// The permission to read one page, and until when.
pub struct PageTurn {
    pub until: Instant,
    _permit: OwnedSemaphorePermit,
}

/// Waits until the peer may send this answer. Returns a turn for a page of a list.
pub async fn admit_answer(
    answer: AnswerKind,
    uri: &Uri,
    limits: &ProviderLimits,
) -> Result<Option<PageTurn>, BoxError> {
    let turn = match answer {
        AnswerKind::Log | AnswerKind::Object | AnswerKind::Metrics => return Ok(None),
        AnswerKind::Watch(_) => None,
        AnswerKind::Page(_) => {
            let (list, continued) = list_of(uri);
            limits
                .count_page(&list, !continued)
                .map_err(|limit| record_exceeded(answer, limits, limit))?;
            Some(limits.pages.clone().acquire_owned().await?)
        }
    };
    sleep(limits.count_bytes(REQUEST_COST)).await;
    Ok(turn.map(|permit| PageTurn {
        until: Instant::now() + PAGE_TIMEOUT,
        _permit: permit,
    }))
}

/// The list that a page belongs to, and whether the page continues it.
fn list_of(uri: &Uri) -> (String, bool) {
    let query = uri.query().unwrap_or_default();
    let (tokens, rest): (Vec<&str>, Vec<&str>) = query
        .split('&')
        .partition(|pair| pair.starts_with("continue="));
    (
        format!("{}?{}", uri.path(), rest.join("&")),
        !tokens.is_empty(),
    )
}

/// Records the exceeded limit, and returns it as an error.
pub fn record_exceeded(
    answer: AnswerKind,
    limits: &ProviderLimits,
    limit: LimitExceeded,
) -> BoxError {
    match answer {
        AnswerKind::Page(ContentKind::Events) | AnswerKind::Watch(ContentKind::Events) => {
            limits.skipped_events(limit, Instant::now());
        }
        _ => limits.record_exceeded(limit, Instant::now()),
    }
    // As an error of the connection, so that a watch does not count it as its usual end.
    io::Error::other(limit).into()
}

/// A body that ends with an error when it exceeds a limit.
pub struct LimitedBody<B> {
    inner: B,
    answer: AnswerKind,
    limits: Arc<ProviderLimits>,
    /// Bytes so far, of a watch in this line.
    len: usize,
    json: JsonCount,
    wait: Option<Pin<Box<Sleep>>>,
    deadline: Option<Pin<Box<Sleep>>>,
    _turn: Option<PageTurn>,
}

impl<B> LimitedBody<B> {
    pub fn new(
        inner: B,
        answer: AnswerKind,
        limits: Arc<ProviderLimits>,
        turn: Option<PageTurn>,
    ) -> Self {
        let deadline = turn.as_ref().map(|turn| Box::pin(sleep_until(turn.until)));
        Self {
            inner,
            answer,
            limits,
            len: 0,
            json: JsonCount::default(),
            wait: None,
            deadline,
            _turn: turn,
        }
    }

    fn count_bytes(&mut self, data: &[u8]) -> Result<(), LimitExceeded> {
        let max_len = self.answer.max_len();
        let mut cost = data.len();
        match self.answer {
            AnswerKind::Watch(_) => {
                for line in data.split_inclusive(|byte| *byte == b'\n') {
                    self.len += line.len();
                    if self.len > max_len {
                        return Err(LimitExceeded::AnswerLen(max_len));
                    }
                    if line.ends_with(b"\n") {
                        self.len = 0;
                        cost += EVENT_COST;
                    }
                }
            }
            _ => self.len = self.len.saturating_add(data.len()),
        }
        if self.len > max_len {
            return Err(LimitExceeded::AnswerLen(max_len));
        }
        match self.answer {
            AnswerKind::Object => self
                .json
                .add_text(data)
                .check_limits(MAX_VALUES, usize::MAX)?,
            // One answer has all pods of a namespace.
            AnswerKind::Metrics => self
                .json
                .add_text(data)
                .check_limits(MAX_PAGE_VALUES, usize::MAX)?,
            AnswerKind::Page(_) => self
                .json
                .add_text(data)
                .check_limits(MAX_PAGE_VALUES, MAX_PAGE_OBJECTS)?,
            AnswerKind::Log | AnswerKind::Watch(_) => {}
        }
        match self.answer {
            AnswerKind::Watch(_) | AnswerKind::Page(_) => {
                let wait = self.limits.count_bytes(cost);
                self.wait = (wait > Duration::ZERO).then(|| Box::pin(sleep(wait)));
            }
            AnswerKind::Log | AnswerKind::Object | AnswerKind::Metrics => {}
        }
        Ok(())
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this
            .deadline
            .as_mut()
            .is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
        {
            return Poll::Ready(Some(Err(record_exceeded(
                this.answer,
                &this.limits,
                LimitExceeded::PageTime,
            ))));
        }
        if let Some(wait) = &mut this.wait {
            ready!(wait.as_mut().poll(context));
            this.wait = None;
        }
        let frame = match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame.map_data(|mut data| data.copy_to_bytes(data.remaining())),
        };
        let counted = frame
            .data_ref()
            .map_or(Ok(()), |data| this.count_bytes(data));
        Poll::Ready(Some(
            counted
                .map(|()| frame)
                .map_err(|limit| record_exceeded(this.answer, &this.limits, limit)),
        ))
    }
}

/// Counts the contents of a JSON text as it arrives.
#[derive(Default)]
struct JsonCount {
    values: usize,
    /// Objects in the lists of the outermost object: the items of a page.
    items: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonCount {
    fn add_text(&mut self, text: &[u8]) -> &Self {
        for byte in text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b',' => self.values += 1,
                b'[' | b'{' => {
                    self.values += 1;
                    self.items += usize::from(*byte == b'{' && self.depth == 2);
                    self.depth += 1;
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self
    }

    fn check_limits(&self, max_values: usize, max_items: usize) -> Result<(), LimitExceeded> {
        if self.items > max_items {
            Err(LimitExceeded::PageObjects)
        } else if self.values > max_values {
            Err(LimitExceeded::Values)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_the_limit_of_its_answer() {
        let answer = |uri: &str| AnswerKind::for_request(&uri.parse().unwrap());
        assert_eq!(
            answer("/api/v1/namespaces/m/pods/p/log?follow=true&limitBytes=5"),
            AnswerKind::Log
        );
        assert_eq!(
            answer("/api/v1/namespaces/m/pods/p/exec?command=limit=&watch=true"),
            AnswerKind::Object
        );
        assert_eq!(
            answer("/apis/metrics.k8s.io/v1beta1/namespaces/m/pods?"),
            AnswerKind::Metrics
        );
        assert_eq!(
            answer("/api/v1/namespaces/t/secrets?&labelSelector=a&limit=16"),
            AnswerKind::Page(ContentKind::Objects)
        );
        assert_eq!(
            answer("/api/v1/namespaces/t/secrets?&watch=true&resourceVersion=0"),
            AnswerKind::Watch(ContentKind::Objects)
        );
        let page_of_events = answer("/api/v1/namespaces/m/events?&limit=16");
        assert_eq!(
            (page_of_events, page_of_events.max_len()),
            (AnswerKind::Page(ContentKind::Events), MAX_EVENT_ANSWER_LEN)
        );
        assert_eq!(
            answer("/api/v1/namespaces/t/secrets/log"),
            AnswerKind::Object
        );
        assert_eq!(
            answer("/api/v1/namespaces/pods/pods/log"),
            AnswerKind::Object
        );
    }

    #[test]
    fn the_pages_of_one_list_belong_together() {
        let list = |uri: &str| list_of(&uri.parse().unwrap());
        assert_eq!(list("/pods?limit=16"), ("/pods?limit=16".to_owned(), false));
        assert_eq!(
            list("/pods?limit=16&continue=abc"),
            ("/pods?limit=16".to_owned(), true)
        );
        assert_ne!(
            list("/pods?limit=16&labelSelector=a").0,
            list("/pods?limit=16").0
        );
    }

    #[test]
    fn values_and_items_are_counted_across_pieces() {
        let mut count = JsonCount::default();
        count.add_text(br#"{"a":"{{{,"#);
        assert_eq!(count.add_text(br#"\",[","b":[1,2]}"#).values, 4);
        let mut page = JsonCount::default();
        page.add_text(br#"{"metadata":{},"items":[{"a":[{},{}]"#);
        assert_eq!(page.add_text(br#"},{}],"more":{}}"#).items, 2);
    }

    #[test]
    fn an_object_may_have_fewer_values_than_a_page_and_a_page_not_any_number_of_objects() {
        let of = |values, items| JsonCount {
            values,
            items,
            ..JsonCount::default()
        };
        assert_eq!(
            of(MAX_PAGE_VALUES, MAX_PAGE_OBJECTS).check_limits(MAX_PAGE_VALUES, MAX_PAGE_OBJECTS),
            Ok(())
        );
        assert_eq!(
            of(MAX_VALUES + 1, 0).check_limits(MAX_VALUES, usize::MAX),
            Err(LimitExceeded::Values)
        );
        assert_eq!(
            of(0, MAX_PAGE_OBJECTS + 1).check_limits(MAX_PAGE_VALUES, MAX_PAGE_OBJECTS),
            Err(LimitExceeded::PageObjects)
        );
    }
}
