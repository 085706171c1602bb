//! The server of `/healthz`, `/readyz` and `/metrics`.
//!
//! Whoever reaches the port may connect. A new connection ends an older one where there are too many, so silent ones keep neither
//! kubelets nor Prometheus out.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::Router;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tower::ServiceExt as _;

/// Maximum length of a request's head in bytes.
const MAX_HEAD_LEN: usize = 16 * 1024;
/// Pause after a connection could not be accepted, for example because of too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The limits for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub connections: usize,
    /// Connections from one address.
    pub per_address: usize,
    /// How long the head of a request may take.
    pub head: Duration,
    /// How long a connection may exist, whatever it does. Clients connect again.
    pub lifetime: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 128, per_address: 16, head: Duration::from_secs(5), lifetime: Duration::from_secs(60) }
    }
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, routes: Router, limits: Limits) {
    let (mut tasks, mut open) = (JoinSet::new(), OpenConnections::default());
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(ACCEPT_RETRY).await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        let routes = routes.clone();
        let task = tasks.spawn(async move { _ = timeout(limits.lifetime, connection(stream, routes, limits.head)).await });
        if let Some(ended) = open.add(from, task, limits) {
            ended.abort();
        }
    }
}

async fn connection(stream: TcpStream, routes: Router, head: Duration) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let routes = routes.clone();
        async move { routes.oneshot(request).await.map_err(|never: Infallible| match never {}) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(MAX_HEAD_LEN)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the health server broke");
    }
}

/// The open connections, the oldest first.
#[derive(Default)]
struct OpenConnections(VecDeque<(IpAddr, AbortHandle)>);

impl OpenConnections {
    /// Adds a connection. Returns the one that has to end for it: the oldest from the same address if there are too many from there, or
    /// else the oldest of all.
    fn add(&mut self, from: SocketAddr, task: AbortHandle, limits: Limits) -> Option<AbortHandle> {
        self.0.retain(|(_, task)| !task.is_finished());
        let from = from.ip().to_canonical();
        let alike = self.0.iter().filter(|(address, _)| *address == from).count();
        let ended = if alike >= limits.per_address {
            self.0.iter().position(|(address, _)| *address == from)
        } else {
            (self.0.len() >= limits.connections).then_some(0)
        };
        let ended = ended.and_then(|position| self.0.remove(position));
        self.0.push_back((from, task));
        ended.map(|(_, task)| task)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LIMITS: Limits =
        Limits { connections: 4, per_address: 3, head: Duration::from_secs(60), lifetime: Duration::from_secs(60) };

    async fn server(limits: Limits) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Router::new().route("/healthz", get(|| async { "ok" })), limits));
        (address, tasks)
    }

    async fn ends(stream: &mut TcpStream) -> bool {
        matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_))
    }

    #[tokio::test]
    async fn many_silent_connections_keep_nobody_out_and_the_oldest_ends() {
        let (address, _server) = server(LIMITS).await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut caller = TcpStream::connect(address).await.unwrap();
        caller.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        timeout(Duration::from_secs(5), caller.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
        for stream in silent.iter_mut().take(97) {
            assert!(timeout(Duration::from_secs(5), ends(stream)).await.unwrap(), "an old connection ends");
        }
    }

    #[tokio::test]
    async fn a_head_that_does_not_come_and_a_connection_that_stays_end() {
        for limits in
            [Limits { head: Duration::from_millis(50), ..LIMITS }, Limits { lifetime: Duration::from_millis(50), ..LIMITS }]
        {
            let (address, _server) = server(limits).await;
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(b"GET /healthz HTTP/1.1\r\nHost").await.unwrap();
            let ended = timeout(Duration::from_secs(5), slow.read_to_end(&mut Vec::new())).await;
            assert!(ended.is_ok(), "{limits:?}");
        }
    }

    #[tokio::test]
    async fn a_crowd_from_one_address_ends_no_connection_from_another() {
        let (mut open, mut tasks) = (OpenConnections::default(), JoinSet::new());
        let mut task = || tasks.spawn(std::future::pending::<()>());
        let from = |last: u8| SocketAddr::from(([192, 0, 2, last], 1000));
        assert!(open.add(from(1), task(), LIMITS).is_none());
        let first = task();
        assert!(open.add(from(2), first.clone(), LIMITS).is_none());
        assert!(open.add(from(2), task(), LIMITS).is_none() && open.add(from(2), task(), LIMITS).is_none());
        open.add(from(2), task(), LIMITS).unwrap().abort();
        while !first.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(open.0.len(), 4);
        assert!(open.add(from(3), task(), LIMITS).is_some(), "now there are too many from all addresses");
        assert!(open.0.iter().all(|(address, _)| *address != from(1).ip()), "the oldest of all makes room");
    }
}
