//! What every program of Liqo needs besides its work: logs, TLS, signals, the client, and the
//! health server.

use std::{fmt, io, net::SocketAddr, pin::pin, sync::Arc};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use futures::future::{Either, select};
use kube::{Client, Config, config::InferConfigError};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::health;

/// The default of the log filter; `RUST_LOG` adds to it. The client's warnings are off unless
/// `RUST_LOG` names its crates: they repeat what Liqo logs, and some contain the whole text of an
/// answer, which may contain secrets.
const DEFAULT_LOG_FILTER: &str = "info,kube_client=error,kube_runtime=error";
/// Libraries that log each frame of a connection, which would hide Liqo's own messages if
/// `RUST_LOG` is `debug`.
const QUIET_LIBRARIES: &str =
    "h2=info,hyper=info,hyper_util=info,rustls=info,tonic=info,tower=info";

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("a second TLS provider is linked in; this is a fault of the build")]
    SecondTlsProvider,
    #[error("listening for {name}")]
    Signal {
        name: &'static str,
        source: io::Error,
    },
    #[error("no access to the API server: neither a service account nor a kubeconfig")]
    NoApiServer(#[from] InferConfigError),
    #[error("building the client for the API server")]
    Client(#[from] kube::Error),
    #[error("listening on {address} for health checks")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Runs a program: `work` gets a token that SIGTERM or SIGINT cancels. Serves `/healthz`, `/readyz`
/// and `/metrics` at `health_address` until then, and logs the error if one of them fails.
pub async fn run_program<E, F>(
    format: LogFormat,
    health_address: SocketAddr,
    readiness: Readiness,
    work: impl FnOnce(CancellationToken) -> F,
) -> Result<(), E>
where
    E: From<ProcessError> + fmt::Display,
    F: Future<Output = Result<(), E>>,
{
    start_logging(format);
    let running = async {
        let stop = install_tls_and_signals()?;
        let serving = serve_health(health_address, readiness, stop.clone());
        // Whoever still asks for health does not keep a process whose work is done.
        match select(pin!(work(stop.clone())), pin!(serving)).await {
            Either::Left((done, _)) => done,
            Either::Right((served, work)) => {
                served?;
                work.await
            }
        }
    };
    running
        .await
        .inspect_err(|error: &E| tracing::error!(error = format!("{error:#}"), "ending"))
}

/// Installs the TLS provider. Returns a token that SIGTERM or SIGINT cancels.
fn install_tls_and_signals() -> Result<CancellationToken, ProcessError> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| ProcessError::SecondTlsProvider)?;
    let stop = CancellationToken::new();
    stop_on_signal(stop.clone())?;
    Ok(stop)
}

fn start_logging(format: LogFormat) {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let filter =
        EnvFilter::try_new(log_filter(&wanted)).unwrap_or_else(|_| DEFAULT_LOG_FILTER.into());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// The defaults, and after them what `RUST_LOG` contains: the last directive for a target counts.
fn log_filter(wanted: &str) -> String {
    let quiet = if wanted.split(',').any(is_detailed) {
        QUIET_LIBRARIES
    } else {
        ""
    };
    format!("{DEFAULT_LOG_FILTER},{quiet},{wanted}")
}

fn is_detailed(directive: &str) -> bool {
    matches!(
        directive.trim().parse(),
        Ok(LevelFilter::DEBUG | LevelFilter::TRACE)
    )
}

fn stop_on_signal(stop: CancellationToken) -> Result<(), ProcessError> {
    let mut terminate = listen_for(SignalKind::terminate(), "SIGTERM")?;
    let mut interrupt = listen_for(SignalKind::interrupt(), "SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("received a signal to end");
        stop.cancel();
    });
    Ok(())
}

fn listen_for(kind: SignalKind, name: &'static str) -> Result<Signal, ProcessError> {
    signal(kind).map_err(|source| ProcessError::Signal { name, source })
}

/// A client for the API server, with the pod's service account or a kubeconfig. It makes each
/// request once: queues and loops try again what failed, and what a program needs to start is tried
/// by [`retry_at_start`](crate::start::retry_at_start).
pub async fn api_client() -> Result<Client, ProcessError> {
    Ok(Client::try_from(without_retries(Config::infer().await?))?)
}

/// By default the client waits as long as an answer "429" says, and tries again 15 times. The
/// answer to an eviction that a disruption budget does not allow is of that kind: it would hold up
/// a controller for minutes.
fn without_retries(mut config: Config) -> Config {
    config.default_retry = false;
    config
}

/// The answer of `/readyz`. Clones share it.
#[derive(Clone)]
pub struct Readiness(Arc<Mutex<Result<String, String>>>);

impl Readiness {
    pub fn waiting(reason: &str) -> Self {
        Self(Arc::new(Mutex::new(Err(reason.to_owned()))))
    }

    pub fn set_ready(&self, text: String) {
        *self.0.lock() = Ok(text);
    }

    pub fn set_not_ready(&self, reason: String) {
        *self.0.lock() = Err(reason);
    }

    fn answer(&self) -> (StatusCode, String) {
        match self.0.lock().clone() {
            Ok(text) => (StatusCode::OK, text),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
        }
    }
}

async fn serve_health(
    address: SocketAddr,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), ProcessError> {
    let ready = move || std::future::ready(readiness.answer());
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(answer_metrics));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ProcessError::Listen { address, source })?;
    _ = stop
        .run_until_cancelled(health::serve_routes(
            listener,
            routes,
            health::HealthServerLimits::default(),
        ))
        .await;
    Ok(())
}

async fn answer_metrics() -> Response {
    (
        [(
            CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        crate::metrics::render(),
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_liqos_messages_and_no_frames() {
        let shown = |wanted: &str| {
            let filter = EnvFilter::try_new(log_filter(wanted)).unwrap();
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(io::sink)
                .finish();
            tracing::subscriber::with_default(log, || {
                (
                    tracing::enabled!(target: "liqo_peering", tracing::Level::DEBUG),
                    tracing::enabled!(target: "h2::codec::framed_read", tracing::Level::DEBUG),
                )
            })
        };
        assert_eq!(shown(""), (false, false));
        assert_eq!(shown("debug"), (true, false));
        assert_eq!(
            shown("debug,h2=debug"),
            (true, true),
            "somebody wants to see them"
        );
    }

    #[test]
    fn the_client_makes_each_request_once() {
        let config = Config::new("https://192.0.2.1".parse().unwrap());
        assert!(config.default_retry && !without_retries(config).default_retry);
    }

    #[test]
    fn a_program_is_ready_once_it_is_as_it_should_be_and_says_why_it_is_not() {
        let readiness = Readiness::waiting("not yet");
        assert_eq!(
            readiness.answer(),
            (StatusCode::SERVICE_UNAVAILABLE, "not yet".to_owned())
        );
        readiness.set_ready("fine".to_owned());
        assert_eq!(readiness.answer(), (StatusCode::OK, "fine".to_owned()));
        readiness.set_not_ready("no device".to_owned());
        assert_eq!(
            readiness.answer(),
            (StatusCode::SERVICE_UNAVAILABLE, "no device".to_owned())
        );
    }
}
