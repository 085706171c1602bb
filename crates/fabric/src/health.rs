//! `/healthz`, `/readyz` and `/metrics`, over plain HTTP.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse as _,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How this node is, in words.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Option<Result<String, String>>>>);

impl Health {
    /// It is as it should be.
    pub fn good(&self, words: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ok(words));
    }

    /// It is not.
    pub fn failing(&self, words: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(words));
    }

    fn answer(&self) -> (StatusCode, String) {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            Some(Ok(words)) => (StatusCode::OK, words),
            Some(Err(words)) => (StatusCode::SERVICE_UNAVAILABLE, words),
            None => (StatusCode::SERVICE_UNAVAILABLE, "the API server has not told yet what is to be on this node".to_owned()),
        }
    }
}

/// Answers until `stop`.
pub async fn serve(address: SocketAddr, health: Health, stop: CancellationToken) -> anyhow::Result<()> {
    let ready = move || {
        let answer = health.answer();
        async move { answer }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_once_it_is_as_it_should_be_and_says_why_it_is_not() {
        let health = Health::default();
        assert_eq!(health.answer().0, StatusCode::SERVICE_UNAVAILABLE);
        health.good("fine".to_owned());
        assert_eq!(health.answer(), (StatusCode::OK, "fine".to_owned()));
        health.failing("no device".to_owned());
        assert_eq!(health.answer(), (StatusCode::SERVICE_UNAVAILABLE, "no device".to_owned()));
    }
}
