//! `liqo-controller-manager dns`: the resolver for remote pods. This module starts it;
//! `liqo-resolver` answers the questions.
//!
//! Every replica answers. It stores nothing and writes nothing, and its account may only read the
//! objects that names depend on.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use liqo_api::CLOSED_PORT;
use liqo_controller_runtime::{
    context::every_address,
    process::{self, LogFormat, Readiness},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Delay after a failed accept: for a moment there may be no memory or no file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The first argument that selects this process.
pub const COMMAND: &str = "dns";

/// Answers DNS questions of remote pods, so that they resolve names as at home.
#[derive(Parser)]
#[command(version, about, bin_name = "liqo-controller-manager dns")]
struct DnsArguments {
    /// Addresses of this pod, at which it answers.
    #[arg(long, env = "POD_IPS", value_delimiter = ',', required = true)]
    pod_ips: Vec<IpAddr>,
    /// Port of /healthz, /readyz and /metrics.
    #[arg(long, default_value_t = 8080)]
    health_port: u16,
    /// Format of log lines. The environment variable `RUST_LOG` sets their level, for example
    /// `info,liqo_resolver=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Runs until SIGTERM.
pub async fn main() -> anyhow::Result<()> {
    let arguments = DnsArguments::parse_from(std::env::args_os().skip(1));
    let first = *arguments
        .pod_ips
        .first()
        .context("the pod has no address")?;
    let readiness = Readiness::waiting("not all namespaces, Services and pods are known yet");
    let health_address = every_address(first, arguments.health_port);
    process::run_program(
        arguments.log_format,
        health_address,
        readiness.clone(),
        |stop| run(arguments, readiness, stop),
    )
    .await
}

async fn run(
    arguments: DnsArguments,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let client = process::api_client().await?;
    // Before it is ready: the manager takes a ready pod that accepts no connection there for one
    // whose port is closed.
    for address in &arguments.pod_ips {
        let address = SocketAddr::new(*address, CLOSED_PORT);
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listening at {address}"))?;
        tokio::spawn(accept_only(listener, stop.clone()));
    }
    let ready = move || readiness.set_ready("ok".to_owned());
    liqo_resolver::answer_questions(client, &arguments.pod_ips, ready, stop)
        .await
        .context("the resolver")
}

/// Accepts connections and closes them at once. A `NetworkPolicy` closes this port, see
/// [`CLOSED_PORT`].
async fn accept_only(listener: TcpListener, stop: CancellationToken) {
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        if let Err(error) = accepted {
            tracing::debug!(%error, "cannot accept a connection");
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_closed_port_accepts_connections_until_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving = tokio::spawn(accept_only(listener, stop.clone()));
        for _ in 0..3 {
            tokio::net::TcpStream::connect(address).await.unwrap();
        }
        stop.cancel();
        serving.await.unwrap();
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    }

    #[test]
    fn it_needs_the_addresses_of_its_pod() {
        let parsed =
            |arguments: &[&str]| DnsArguments::try_parse_from([&[COMMAND], arguments].concat());
        let found = parsed(&["--pod-ips=10.244.0.9,fd00::9", "--log-format=json"]).unwrap();
        assert_eq!(
            found.pod_ips,
            ["10.244.0.9", "fd00::9"].map(|address| address.parse::<IpAddr>().unwrap())
        );
        assert!(parsed(&[]).is_err());
    }
}
