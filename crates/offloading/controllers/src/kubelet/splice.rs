//! Joins two upgraded connections: forwards the bytes in both directions without looking at them.
//!
//! So every protocol over an upgrade works (SPDY, WebSocket, port-forward through either), including future ones.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{CONNECTION, HeaderName, UPGRADE};
use http::{HeaderMap, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Failure, ask, refusal};

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

/// Repeats the caller's upgrade towards the peer, and joins the two connections if the peer agrees.
pub(super) async fn splice(
    client: &Client,
    uri: &str,
    mut request: Request,
    idle: Duration,
    stop: CancellationToken,
) -> Result<Response, Failure> {
    if !request.headers().contains_key(UPGRADE) {
        return Err(Failure::NoUpgrade);
    }
    let caller = hyper::upgrade::on(&mut request);
    let mut repeated = http::Request::builder().method(request.method()).uri(uri).body(kube::client::Body::empty());
    if let Ok(repeated) = &mut repeated {
        copy_headers(request.headers(), repeated.headers_mut());
    }
    let mut answer = ask(client, repeated.map_err(|error| Failure::Peer(kube::Error::HttpError(error)))?).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(answer).await);
    }
    let peer = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        let joined = async {
            // The caller's connection is upgraded once our answer was sent.
            let (caller, peer) = tokio::try_join!(caller, peer).map_err(io::Error::other)?;
            join(TokioIo::new(caller), TokioIo::new(peer), idle).await
        };
        let ended = tokio::select! {
            ended = joined => ended,
            () = stop.cancelled() => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "spliced connection ended");
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    copy_headers(answer.headers(), response.headers_mut());
    Ok(response)
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

/// Copies in both directions until both sides have ended, one fails, or both were silent for `idle`.
async fn join(
    caller: impl AsyncRead + AsyncWrite + Unpin,
    peer: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
) -> io::Result<()> {
    let last = Arc::new(Mutex::new(Instant::now()));
    let mut caller = Heard { inner: caller, last: last.clone() };
    let mut peer = Heard { inner: peer, last: last.clone() };
    let silence = async {
        loop {
            let end = *last.lock() + idle;
            if end <= Instant::now() {
                break;
            }
            tokio::time::sleep_until(end).await;
        }
    };
    tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut caller, &mut peer) => copied.map(|_| ()),
        () = silence => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was said for too long")),
    }
}

/// A stream that records when it was last read.
struct Heard<S> {
    inner: S,
    last: Arc<Mutex<Instant>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if read.is_ready() {
            *self.last.lock() = Instant::now();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_silent_connection_is_closed() {
        let (_caller, here) = duplex(64);
        let (there, _peer) = duplex(64);
        let error = join(here, there, Duration::from_millis(10)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_connection_on_which_one_side_talks_stays_open() {
        let (mut caller, here) = duplex(64);
        let (there, mut peer) = duplex(64);
        let joined = tokio::spawn(join(here, there, Duration::from_secs(1)));
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
        let joined = tokio::spawn(join(here, there, Duration::from_secs(60)));
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
        assert_eq!(names, ["connection", "upgrade", "x-stream-protocol-version"]);
        assert_eq!(to[CONNECTION], "Upgrade");
    }
}
