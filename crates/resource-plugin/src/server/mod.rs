//! The SDK: serves a [`ResourceSource`] over gRPC, with health checks, reflection, metrics and an
//! orderly shutdown.

mod metrics;
mod options;
mod service;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Certificate, Identity, ServerTlsConfig},
};
use tonic_health::{ServingStatus, server::HealthReporter};

use self::{
    metrics::ServerMetrics,
    service::{ResourceReader, SharedService},
};
use crate::{changes::Announcer, source::ResourceSource, wire};

pub use options::{DEFAULT_PORT, Options};

/// How often a silent connection is pinged, and the timeout of the answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_mins(1), Duration::from_secs(20));
/// Maximum number of concurrent calls of one connection.
const MAX_CALLS: u32 = 256;
/// Timeout of one `read`.
const READ_DEADLINE: Duration = Duration::from_secs(30);
/// How long a plugin answers after SIGTERM: for about this time its Service may still send callers.
const LINGER: Duration = Duration::from_millis(1200);
/// How long open calls may then take to end.
const GRACE: Duration = Duration::from_secs(5);

/// Why the plugin cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It cannot listen on a port.
    #[error("cannot listen on {address}: {source} (--port and --metrics-port choose others)")]
    Listen {
        /// The address and port.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// It cannot read a file that a flag names.
    #[error("cannot read {}: {source} ({flag} names it)", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The flag.
        flag: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Certificate or key is invalid, or they do not belong together.
    #[error("cannot serve with TLS: {0} (see --tls-cert, --tls-key and --tls-client-ca)")]
    Tls(String),
    /// The compiled .proto files in this program are damaged.
    #[error("cannot offer reflection: {0}")]
    Reflection(tonic_reflection::server::Error),
    /// It cannot install signal handlers.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// The server failed.
    #[error("serving failed: {0}")]
    Serve(tonic::transport::Error),
    /// The server of metrics failed.
    #[error("serving metrics failed: {0}")]
    Metrics(io::Error),
}

/// Serves the source until SIGTERM or SIGINT. This is all that a plugin's `main` needs. If it
/// fails, it prints one line to standard error.
pub async fn serve(source: impl ResourceSource, options: Options) -> ExitCode {
    options.start_logging();
    match try_serve(source, options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let program = std::env::args_os().next().unwrap_or_default();
            let name = Path::new(&program).file_name().unwrap_or_default();
            eprintln!("{}: {error}", name.display());
            ExitCode::FAILURE
        }
    }
}

async fn try_serve(source: impl ResourceSource, options: Options) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let server = Server::bind(&options).await?.lingering(LINGER);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("shutting down");
    };
    server.run(source, stop).await
}

/// A plugin that listens but does not serve yet.
#[derive(Debug)]
pub struct Server {
    options: Options,
    tls: Option<ServerTlsConfig>,
    listener: TcpListener,
    metrics: Option<TcpListener>,
    linger: Duration,
}

impl Server {
    /// Listens on the ports and reads the files that the options name.
    pub async fn bind(options: &Options) -> Result<Self, ServeError> {
        let tls = tls_config(options)?;
        let listener = open_listener(SocketAddr::new(options.address, options.port)).await?;
        let metrics = match options.metrics_port {
            0 => None,
            port => Some(open_listener(SocketAddr::new(options.address, port)).await?),
        };
        Ok(Self {
            options: options.clone(),
            tls,
            listener,
            metrics,
            linger: Duration::ZERO,
        })
    }

    /// After it is told to stop, it answers for this time, while its health checks already fail.
    #[must_use]
    pub fn lingering(self, linger: Duration) -> Self {
        Self { linger, ..self }
    }

    /// The address on which it listens. It contains the chosen port if the options have port 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is ready, then lingers. Then it ends open subscriptions at once; other
    /// calls have five seconds to end.
    pub async fn run(
        self,
        source: impl ResourceSource,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let Self {
            options,
            tls,
            listener,
            metrics: metrics_listener,
            linger,
        } = self;
        let (lingering, ending) = (CancellationToken::new(), CancellationToken::new());
        let _ends_with_us = ending.clone().drop_guard();
        let metrics = Arc::new(ServerMetrics::default());
        let source: Arc<dyn ResourceSource> = Arc::new(source);
        let announcer = Announcer::new();
        let shared = SharedService {
            source: source.clone(),
            generation: options.generation,
            announcer: announcer.clone(),
            metrics: metrics.clone(),
            stop: ending.clone(),
        };
        let health = HealthReporter::new();
        health
            .set_service_status(wire::SERVICE, ServingStatus::NotServing)
            .await;

        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, generation = %options.generation, tls = tls.is_some(), "listening");
        }
        let serving = serve_grpc(listener, tls, shared, &health, ending.clone())?;
        let counting = async {
            match metrics_listener {
                Some(listener) => metrics::serve_metrics(listener, metrics.clone(), ending.clone())
                    .await
                    .map_err(ServeError::Metrics),
                None => std::future::pending().await,
            }
        };
        let changes = async {
            let mut changes = source.changes();
            source.ready().await;
            if !lingering.is_cancelled() {
                tracing::info!("ready");
                metrics.set_ready(true);
                health
                    .set_service_status(wire::SERVICE, ServingStatus::Serving)
                    .await;
            }
            while let Some(change) = changes.next().await {
                announcer.announce(&change);
            }
            std::future::pending::<()>().await;
        };
        let stop = async {
            stop.await;
            lingering.cancel();
            metrics.set_ready(false);
            health
                .set_service_status(wire::SERVICE, ServingStatus::NotServing)
                .await;
            tokio::time::sleep(linger).await;
        };
        tokio::pin!(serving);
        tokio::select! {
            outcome = &mut serving => return outcome,
            outcome = counting => return outcome,
            () = changes => {}
            () = stop => {}
        }
        ending.cancel();
        let Ok(outcome) = tokio::time::timeout(GRACE, serving).await else {
            tracing::warn!("some calls did not end in time");
            return Ok(());
        };
        tracing::info!("stopped");
        outcome
    }
}

/// Serves the protocol, health checks and reflection on one port.
fn serve_grpc(
    listener: TcpListener,
    tls: Option<ServerTlsConfig>,
    shared: SharedService,
    health: &HealthReporter,
    stop: CancellationToken,
) -> Result<impl Future<Output = Result<(), ServeError>>, ServeError> {
    let descriptors = shared.generation.descriptors();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(descriptors)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let health = tonic_health::server::HealthService::from_health_reporter(health.clone());
    let routes = Routes::new(ResourceReader(Arc::new(shared)))
        .add_service(tonic_health::pb::health_server::HealthServer::new(health))
        .add_service(reflection().build_v1().map_err(ServeError::Reflection)?)
        .add_service(
            reflection()
                .build_v1alpha()
                .map_err(ServeError::Reflection)?,
        );
    let mut server = tonic::transport::Server::builder()
        .timeout(READ_DEADLINE)
        .max_concurrent_streams(MAX_CALLS)
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1));
    if let Some(tls) = tls {
        server = server
            .tls_config(tls)
            .map_err(|error| ServeError::Tls(error_chain(&error)))?;
    }
    let serving = server.add_routes(routes);
    Ok(async move {
        // The end of an answer is a separate segment, which Nagle's algorithm would delay until an
        // acknowledgement.
        let incoming =
            TcpListenerStream::new(listener).inspect_ok(|stream| drop(stream.set_nodelay(true)));
        serving
            .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
            .await
            .map_err(ServeError::Serve)
    })
}

/// The unspecified address listens on IPv6 and IPv4, or only on IPv4 if the machine has no IPv6.
async fn open_listener(address: SocketAddr) -> Result<TcpListener, ServeError> {
    match TcpListener::bind(address).await {
        Err(_) if address.ip().is_unspecified() && address.is_ipv6() => {
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            TcpListener::bind(address)
                .await
                .map_err(|source| ServeError::Listen { address, source })
        }
        bound => bound.map_err(|source| ServeError::Listen { address, source }),
    }
}

fn tls_config(options: &Options) -> Result<Option<ServerTlsConfig>, ServeError> {
    let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) else {
        return Ok(None);
    };
    let identity = Identity::from_pem(
        read_file(certificate, "--tls-cert")?,
        read_file(key, "--tls-key")?,
    );
    let mut tls = ServerTlsConfig::new().identity(identity);
    if let Some(authority) = &options.tls_client_ca {
        tls = tls.client_ca_root(Certificate::from_pem(read_file(
            authority,
            "--tls-client-ca",
        )?));
    }
    // This only checks the files, so that errors appear before anything is served.
    tonic::transport::Server::builder()
        .tls_config(tls.clone())
        .map_err(|error| ServeError::Tls(error_chain(&error)))?;
    Ok(Some(tls))
}

fn read_file(path: &Path, flag: &'static str) -> Result<Vec<u8>, ServeError> {
    std::fs::read(path).map_err(|source| ServeError::File {
        path: path.to_owned(),
        flag,
        source,
    })
}

/// The error and its causes in one line.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
