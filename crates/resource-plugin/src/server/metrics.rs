//! The metrics of a plugin, and the HTTP port that serves them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router, http::StatusCode, http::header::CONTENT_TYPE, response::IntoResponse as _, routing::get,
};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

type ReadsByOutcome = [(&'static str, &'static str); 1];

#[derive(Debug, Default)]
pub(crate) struct ServerMetrics {
    reads: Family<ReadsByOutcome, Counter>,
    seconds: Counter<f64, AtomicU64>,
    removals: Counter,
    pub(crate) notifications: Counter,
    pub(crate) subscribers: Gauge<i64, AtomicI64>,
    ready: AtomicBool,
}

impl ServerMetrics {
    pub(crate) fn record_read(&self, outcome: &'static str, took: Duration) {
        self.reads.get_or_create(&[("outcome", outcome)]).inc();
        self.seconds.inc_by(took.as_secs_f64());
    }

    pub(crate) fn record_removal(&self) {
        self.removals.inc();
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("liqo_plugin");
        registry.register(
            "reads",
            "Number of calls of ReadResources, by outcome",
            self.reads.clone(),
        );
        registry.register(
            "read_seconds",
            "Total duration of calls of ReadResources",
            self.seconds.clone(),
        );
        registry.register(
            "removals",
            "Number of calls of RemoveCluster",
            self.removals.clone(),
        );
        registry.register(
            "notifications",
            "Number of notifications sent to subscribers",
            self.notifications.clone(),
        );
        registry.register(
            "subscribers",
            "Number of subscribers",
            self.subscribers.clone(),
        );
        registry
    }
}

/// Serves metrics and probes until `stop`.
pub(crate) async fn serve_metrics(
    listener: TcpListener,
    metrics: Arc<ServerMetrics>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let registry = Arc::new(metrics.registry());
    let text = move || {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = encode(&mut text, &registry);
        async {
            (
                [(
                    CONTENT_TYPE,
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                )],
                text,
            )
                .into_response()
        }
    };
    let ready = move || {
        let ready = metrics.ready.load(Ordering::Acquire);
        async move {
            if ready {
                (StatusCode::OK, "ok")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "the source is not ready")
            }
        }
    };
    let routes = Router::new()
        .route("/metrics", get(text))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready));
    axum::serve(listener, routes)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}
