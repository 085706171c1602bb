//! `/healthz`, `/readyz` and `/metrics`, over plain HTTP.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Whether this replica can serve the webhook. Leadership does not matter here: a replica that waits is ready, too.
#[derive(Clone, Default)]
pub struct Health {
    ready: Arc<AtomicBool>,
}

impl Health {
    /// The webhook answers.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }
}

/// Answers until `stop`.
pub async fn serve(address: SocketAddr, health: Health, stop: CancellationToken) -> anyhow::Result<()> {
    let ready = move || {
        let ready = health.is_ready();
        async move {
            if ready { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "the webhook does not answer yet") }
        }
    };
    let metrics = || async {
        ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], liqo_kit::metrics::render())
            .into_response()
    };
    let routes =
        Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(ready)).route("/metrics", get(metrics));
    let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address} for health checks"))?;
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await.context("answering health checks")
}
