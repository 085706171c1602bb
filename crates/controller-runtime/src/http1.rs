//! Serves HTTP/1.1 on a connection of a caller that may be hostile: the head of each request is
//! bounded in length and in time. The caller of this module bounds bodies, the life of a connection
//! and the number of connections.

use std::{convert::Infallible, time::Duration};

use axum::Router;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

/// Limits for the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeadLimits {
    /// Maximum length in bytes.
    pub max_len: usize,
    /// Maximum time until it is complete.
    pub timeout: Duration,
}

/// How many requests a connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestsPerConnection {
    /// The connection ends with the answer.
    One,
    /// The caller decides.
    Many,
}

/// Answers the requests of a connection.
pub async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    routes: Router,
    limits: RequestHeadLimits,
    requests: RequestsPerConnection,
) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let routes = routes.clone();
        async move {
            routes
                .oneshot(request)
                .await
                .map_err(|never: Infallible| match never {})
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.timeout)
        .max_buf_size(limits.max_len)
        .keep_alive(requests == RequestsPerConnection::Many)
        .serve_connection(TokioIo::new(stream), service)
        .await
}
