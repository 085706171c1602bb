//! `test` and `renew`.

use std::time::Duration;

use clap::Subcommand;

use crate::{network_test::NetworkTestOptions, token};

/// `test ...`.
#[derive(Debug, Subcommand)]
pub enum TestCommand {
    /// Test whether pods and nodes of each pair of clusters reach each other, and print what to do
    /// if they do not
    ///
    /// In each cluster that borrows, the test creates a namespace, offloads it, and starts pods on
    /// the nodes of that cluster and of its providers. The pods call each other by address and by
    /// name, over TCP and UDP, with small and large packets. The namespaces are removed at the end.
    /// The exit code is 1 if something does not work.
    Network(NetworkTestOptions),
}

/// `renew ...`.
#[derive(Debug, Subcommand)]
pub enum RenewCommand {
    /// Give the gateways of this cluster new WireGuard keys, without losing packets
    ///
    /// Peers get the new keys in addition to the former ones. This cluster announces the former
    /// keys for five more minutes and accepts them for one day. If you renew twice, the keys before
    /// the first renewal become invalid.
    GatewayKeys {
        /// Do not wait until all gateways have new keys
        #[arg(long)]
        no_wait: bool,
        /// How long to wait for the new keys
        #[arg(long, default_value = "2m", value_parser = token::parse_duration, value_name = "DURATION", conflicts_with = "no_wait")]
        timeout: Duration,
    },
}
