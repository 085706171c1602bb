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
    EVENT_COST, LimitExceeded, MAX_PAGE_OBJECTS, MAX_PAGE_VALUES, MAX_VALUES, PAGE_TIMEOUT,
    ProviderLimits, REQUEST_COST,
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tower::BoxError;

use crate::decide::answers::{AnswerKind, ContentKind, JsonCount, list_of};

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
