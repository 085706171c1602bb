//! Joins two upgraded connections: forwards the bytes in both directions without changing them.
//!
//! So every protocol over an upgrade works (SPDY, WebSocket, port-forward through either),
//! including future ones. Of exec and attach the frames to the caller are followed, so that a
//! connection that breaks never looks like a command that succeeded.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use http::header::{CONNECTION, HeaderName, UPGRADE};
use http::{HeaderMap, Method, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, WriteHalf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::exec_result::{NO_RESULT, ResultWatch};
use super::waiting_line::WaitingLine;
use super::{CallFailure, PeerResponse, ask_peer, failure_of_answer};

/// Limit for the last bytes of a connection that is cut.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes to the caller that are read at once.
const BUFFER_LEN: usize = 16 * 1024;

/// Headers of the upgrade; no other header of either side is forwarded.
const UPGRADE_HEADERS: [&str; 8] = [
    "connection",
    "upgrade",
    "x-stream-protocol-version",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-extensions",
    "sec-websocket-accept",
];

/// The limits that end a spliced connection, if neither side ends it.
pub(super) struct SpliceLimits {
    pub idle: Duration,
    pub stop: CancellationToken,
    /// Contains the open connections.
    pub open: TaskTracker,
}

/// The reason why a connection did not end in order.
#[derive(Debug, thiserror::Error)]
enum SpliceCut {
    #[error(
        "the kubelet API of the virtual node stopped (Liqo's manager restarts, or the node goes), and the command may still run"
    )]
    Stopped,
    #[error("nothing was sent for {} s, so the connection was closed", .0.as_secs())]
    Idle(Duration),
    #[error("{NO_RESULT}")]
    NoResult,
    #[error("the connection to the other cluster broke, and the command may still run: {0}")]
    Broke(#[source] io::Error),
}

/// Repeats the caller's upgrade towards the peer, and joins the two connections if the peer agrees.
/// Waits in the line, if there is one.
pub(super) async fn splice_connection(
    client: &Client,
    uri: &str,
    mut request: Request,
    line: Option<&WaitingLine>,
    limits: SpliceLimits,
) -> Result<Response, CallFailure> {
    if !request.headers().contains_key(UPGRADE) {
        return Err(CallFailure::NoUpgrade);
    }
    let caller = hyper::upgrade::on(&mut request);
    let (method, headers) = (request.method(), request.headers());
    let mut answer = match line {
        Some(line) => {
            line.ask_in_turn(|| request_upgrade(client, uri, method, headers))
                .await?
        }
        None => request_upgrade(client, uri, method, headers).await?,
    };
    let watch = ResultWatch::for_answer(answer.headers());
    let peer = hyper::upgrade::on(&mut answer);
    limits.open.clone().spawn(async move {
        // The caller's connection is upgraded once our answer was sent.
        let (caller, peer) = match tokio::try_join!(caller, peer) {
            Ok(upgraded) => upgraded,
            Err(error) => return tracing::debug!(%error, "connection not upgraded"),
        };
        if let Err(cut) =
            copy_both_ways(TokioIo::new(caller), TokioIo::new(peer), watch, &limits).await
        {
            tracing::debug!(error = %cut, "spliced connection cut");
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    copy_headers(answer.headers(), response.headers_mut());
    Ok(response)
}

/// Asks the peer for the upgrade that the caller asked for.
async fn request_upgrade(
    client: &Client,
    uri: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Result<PeerResponse, CallFailure> {
    let repeated = http::Request::builder()
        .method(method)
        .uri(uri)
        .body(kube::client::Body::empty());
    let mut repeated =
        repeated.map_err(|error| CallFailure::Peer(kube::Error::HttpError(error)))?;
    copy_headers(headers, repeated.headers_mut());
    let answer = ask_peer(client, repeated).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        Ok(answer)
    } else {
        Err(failure_of_answer(answer).await)
    }
}

fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for name in UPGRADE_HEADERS {
        for value in from.get_all(name) {
            to.append(HeaderName::from_static(name), value.clone());
        }
    }
    // Callers may list more headers there.
    if to.contains_key(UPGRADE) {
        to.insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
    }
}

/// Copies in both directions until both sides have ended, one fails, or a limit is reached. A
/// connection that is cut ends without TLS's farewell (`close_notify`), and tells the result of a
/// command first if there was none.
async fn copy_both_ways(
    caller: impl AsyncRead + AsyncWrite + Unpin,
    peer: impl AsyncRead + AsyncWrite + Unpin,
    watch: Option<ResultWatch>,
    limits: &SpliceLimits,
) -> Result<(), SpliceCut> {
    let last = Arc::new(Mutex::new(Instant::now()));
    let (mut from_caller, to_caller) = tokio::io::split(ReadTracker {
        inner: caller,
        last: last.clone(),
    });
    let (mut from_peer, mut to_peer) = tokio::io::split(ReadTracker {
        inner: peer,
        last: last.clone(),
    });
    let mut to_caller = CallerWriter {
        stream: to_caller,
        watch,
        unsent: Bytes::new(),
    };
    let silence = async {
        loop {
            let end = *last.lock() + limits.idle;
            if end <= Instant::now() {
                break;
            }
            tokio::time::sleep_until(end).await;
        }
    };
    let upwards = async {
        let sent = async {
            tokio::io::copy(&mut from_caller, &mut to_peer).await?;
            to_peer.shutdown().await
        };
        if let Err(error) = sent.await {
            // A peer that takes nothing more may have ended in order: its last words are still on
            // the way.
            tokio::time::sleep(FAREWELL_TIMEOUT).await;
            return Err(SpliceCut::Broke(error));
        }
        Ok(())
    };
    let ended = tokio::select! {
        // What ended in order counts, even if the process ends at that moment.
        biased;
        ended = async { tokio::try_join!(upwards, to_caller.forward_from(&mut from_peer)) } => ended.map(|_| ()),
        () = limits.stop.cancelled() => Err(SpliceCut::Stopped),
        () = silence => Err(SpliceCut::Idle(limits.idle)),
    };
    if let Err(cut) = &ended {
        _ = tokio::time::timeout(FAREWELL_TIMEOUT, to_caller.tell_reason(cut)).await;
    }
    ended
}

/// The way to the caller.
struct CallerWriter<S> {
    stream: WriteHalf<S>,
    watch: Option<ResultWatch>,
    /// The rest of the last frames, if sending them was interrupted.
    unsent: Bytes,
}

impl<S: AsyncWrite> CallerWriter<S> {
    /// Copies until the peer's end.
    async fn forward_from(&mut self, peer: &mut (impl AsyncRead + Unpin)) -> Result<(), SpliceCut> {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let read = peer.read(&mut buffer).await.map_err(SpliceCut::Broke)?;
            if read == 0 {
                break;
            }
            self.unsent = match &mut self.watch {
                Some(watch) => watch.pass_through(&buffer[..read]).into(),
                None => Bytes::copy_from_slice(&buffer[..read]),
            };
            self.send_pending().await.map_err(SpliceCut::Broke)?;
        }
        if self
            .watch
            .as_ref()
            .is_some_and(|watch| !watch.is_complete())
        {
            return Err(SpliceCut::NoResult);
        }
        self.stream.shutdown().await.map_err(SpliceCut::Broke)
    }

    /// Tells a caller that still waits for a result why there is none.
    async fn tell_reason(&mut self, cut: &SpliceCut) -> io::Result<()> {
        self.send_pending().await?;
        if let Some(watch) = &mut self.watch {
            self.unsent = watch.failure_frames(&cut.to_string()).into();
        }
        self.send_pending().await
    }

    /// Continues where it was interrupted.
    async fn send_pending(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(&mut self.unsent).await?;
        self.stream.flush().await
    }
}

/// A stream that records when it was last read.
struct ReadTracker<S> {
    inner: S,
    last: Arc<Mutex<Instant>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadTracker<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if read.is_ready() {
            *self.last.lock() = Instant::now();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadTracker<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn limits(idle: Duration) -> SpliceLimits {
        SpliceLimits {
            idle,
            stop: CancellationToken::new(),
            open: TaskTracker::new(),
        }
    }

    #[tokio::test]
    async fn a_silent_connection_is_closed() {
        let (_caller, here) = duplex(64);
        let (there, _peer) = duplex(64);
        let cut = copy_both_ways(here, there, None, &limits(Duration::from_millis(10)))
            .await
            .unwrap_err();
        assert!(matches!(cut, SpliceCut::Idle(_)), "{cut}");
    }

    #[tokio::test]
    async fn a_connection_on_which_one_side_talks_stays_open() {
        let (mut caller, here) = duplex(64);
        let (there, mut peer) = duplex(64);
        let joined = tokio::spawn(async move {
            copy_both_ways(here, there, None, &limits(Duration::from_secs(1))).await
        });
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1500) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            peer.write_all(b"x").await.unwrap();
            assert_eq!(caller.read_u8().await.unwrap(), b'x');
        }
        drop((caller, peer));
        joined.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_end_of_one_side_is_told_to_the_other() {
        let (caller, here) = duplex(64);
        let (there, mut peer) = duplex(64);
        let joined = tokio::spawn(async move {
            copy_both_ways(here, there, None, &limits(Duration::from_mins(1))).await
        });
        drop(caller);
        assert_eq!(peer.read(&mut [0; 8]).await.unwrap(), 0);
        drop(peer);
        joined.await.unwrap().unwrap();
    }

    #[test]
    fn only_headers_of_the_upgrade_pass() {
        let mut from = HeaderMap::new();
        for (name, value) in [
            ("connection", "Upgrade, authorization"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v5.channel.k8s.io"),
            ("authorization", "Bearer secret"),
            ("impersonate-user", "system:admin"),
            ("cookie", "x"),
        ] {
            from.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        let mut to = HeaderMap::new();
        copy_headers(&from, &mut to);
        let mut names: Vec<&str> = to.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["connection", "upgrade", "x-stream-protocol-version"]
        );
        assert_eq!(to[CONNECTION], "Upgrade");
    }
}
