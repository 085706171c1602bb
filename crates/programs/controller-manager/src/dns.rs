//! `liqo-controller-manager dns`: the resolver for remote pods.
//!
//! Every replica answers. It stores nothing, writes nothing, and its account may only read what names come from.

use std::net::IpAddr;

use anyhow::Context as _;
use clap::Parser;
use liqo_controller_runtime::{
    context::every_address,
    process::{self, LogFormat, Readiness},
};
use tokio_util::sync::CancellationToken;

/// The first argument that selects this process.
pub const COMMAND: &str = "dns";

/// Answers DNS questions of remote pods, so that they resolve names as at home.
#[derive(Parser)]
#[command(version, about, bin_name = "liqo-controller-manager dns")]
struct Arguments {
    /// Addresses of this pod, at which it answers.
    #[arg(long, env = "POD_IPS", value_delimiter = ',', required = true)]
    pod_ips: Vec<IpAddr>,
    /// Port of /healthz, /readyz and /metrics.
    #[arg(long, default_value_t = 8080)]
    health_port: u16,
    /// Format of log lines. The environment variable `RUST_LOG` sets their level, for example `info,liqo_resolver=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Runs until SIGTERM.
pub async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    let first = *arguments.pod_ips.first().context("the pod has no address")?;
    let readiness = Readiness::waiting("not all namespaces, Services and pods are known yet");
    let health_address = every_address(first, arguments.health_port);
    process::run(arguments.log_format, health_address, readiness.clone(), |stop| run(arguments, readiness, stop)).await
}

async fn run(arguments: Arguments, readiness: Readiness, stop: CancellationToken) -> anyhow::Result<()> {
    let client = process::client().await?;
    let ready = move || readiness.ready("ok".to_owned());
    liqo_resolver::run(client, &arguments.pod_ips, ready, stop).await.context("the resolver")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_needs_the_addresses_of_its_pod() {
        let parsed = |arguments: &[&str]| Arguments::try_parse_from([&[COMMAND], arguments].concat());
        let found = parsed(&["--pod-ips=10.244.0.9,fd00::9", "--log-format=json"]).unwrap();
        assert_eq!(found.pod_ips, ["10.244.0.9", "fd00::9"].map(|address| address.parse::<IpAddr>().unwrap()));
        assert!(parsed(&[]).is_err());
    }
}
