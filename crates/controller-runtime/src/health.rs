//! The server of `/healthz`, `/readyz` and `/metrics`.
//!
//! Whoever reaches the port may connect. A new connection ends an older one where there are too
//! many, so silent ones keep neither kubelets nor Prometheus out.

use std::{net::SocketAddr, time::Duration};

use axum::Router;
use liqo_api::connection_limits::{ConnectionAdmission, ConnectionLimits, OpenConnections};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::http1::{self, RequestHeadLimits, RequestsPerConnection};

/// Maximum length of a request's head in bytes.
const MAX_HEAD_LEN: usize = 16 * 1024;
/// Pause after a connection could not be accepted, for example because of too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The limits for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HealthServerLimits {
    /// No connection is ever proven.
    pub connections: ConnectionLimits,
    /// Timeout of the head of a request.
    pub head: Duration,
    /// Maximum lifetime of a connection, whatever it does. Clients connect again.
    pub lifetime: Duration,
}

impl Default for HealthServerLimits {
    fn default() -> Self {
        let connections = ConnectionLimits {
            connections: 128,
            unproven: 128,
            per_source: 16,
        };
        Self {
            connections,
            head: Duration::from_secs(5),
            lifetime: Duration::from_mins(1),
        }
    }
}

/// Serves until it is dropped.
pub(crate) async fn serve_routes(
    listener: TcpListener,
    routes: Router,
    limits: HealthServerLimits,
) {
    let (mut tasks, mut open) = (JoinSet::new(), OpenConnections::new(limits.connections));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(ACCEPT_RETRY).await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        let routes = routes.clone();
        let task = tasks.spawn(async move {
            _ = timeout(
                limits.lifetime,
                serve_connection(stream, routes, limits.head),
            )
            .await;
        });
        if let Some(ended) = add_connection(&mut open, from, task) {
            ended.abort();
        }
    }
}

async fn serve_connection(stream: TcpStream, routes: Router, head: Duration) {
    let limits = RequestHeadLimits {
        max_len: MAX_HEAD_LEN,
        timeout: head,
    };
    let serving = http1::serve_connection(stream, routes, limits, RequestsPerConnection::Many);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "a connection to the health server broke");
    }
}

/// Adds a connection. Returns the one that has to end for it. Addresses count, not networks: pods
/// of one network belong to many.
fn add_connection(
    open: &mut OpenConnections<AbortHandle>,
    from: SocketAddr,
    task: AbortHandle,
) -> Option<AbortHandle> {
    open.retain(|task| !task.is_finished());
    match open.add(from.ip().to_canonical(), task, |_| false) {
        ConnectionAdmission::Instead { ended, .. } => Some(ended),
        ConnectionAdmission::Open(_) | ConnectionAdmission::Refused => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LIMITS: HealthServerLimits = HealthServerLimits {
        connections: ConnectionLimits {
            connections: 4,
            unproven: 4,
            per_source: 3,
        },
        head: Duration::from_mins(1),
        lifetime: Duration::from_mins(1),
    };

    async fn server(limits: HealthServerLimits) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_routes(
            listener,
            Router::new().route("/healthz", get(|| async { "ok" })),
            limits,
        ));
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
        caller
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        timeout(Duration::from_secs(5), caller.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"),
            "{answer}"
        );
        for stream in silent.iter_mut().take(97) {
            assert!(
                timeout(Duration::from_secs(5), ends(stream)).await.unwrap(),
                "an old connection ends"
            );
        }
    }

    #[tokio::test]
    async fn a_head_that_does_not_come_and_a_connection_that_stays_end() {
        for limits in [
            HealthServerLimits {
                head: Duration::from_millis(50),
                ..LIMITS
            },
            HealthServerLimits {
                lifetime: Duration::from_millis(50),
                ..LIMITS
            },
        ] {
            let (address, _server) = server(limits).await;
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(b"GET /healthz HTTP/1.1\r\nHost")
                .await
                .unwrap();
            let ended = timeout(Duration::from_secs(5), slow.read_to_end(&mut Vec::new())).await;
            assert!(ended.is_ok(), "{limits:?}");
        }
    }

    #[tokio::test]
    async fn a_crowd_from_one_address_ends_no_connection_from_another() {
        let (mut open, mut tasks) = (OpenConnections::new(LIMITS.connections), JoinSet::new());
        let mut task = || tasks.spawn(std::future::pending::<()>());
        let from = |last: u8| SocketAddr::from(([192, 0, 2, last], 1000));
        let honest = task();
        assert!(add_connection(&mut open, from(1), honest.clone()).is_none());
        let first = task();
        assert!(add_connection(&mut open, from(2), first.clone()).is_none());
        assert!(
            add_connection(&mut open, from(2), task()).is_none()
                && add_connection(&mut open, from(2), task()).is_none()
        );
        add_connection(&mut open, from(2), task()).unwrap().abort();
        while !first.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(open.iter().count(), 4);
        add_connection(&mut open, from(3), task()).unwrap().abort();
        while !honest.is_finished() {
            tokio::task::yield_now().await;
        }
    }
}
