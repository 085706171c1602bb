//! `broker`: a resource plugin that offers to each peer what other clusters offer to this one.
//!
//! ```text
//!   offers of providers, their virtual nodes ─┐
//!   pods there, requests of customers ────────┤ decide.rs: the ledger of liqo-sharing, under a policy
//!   policies, clusters, namespaces ───────────┘ that lends what this cluster borrows
//!                                             │
//!                       rome asks ──▶ what this cluster borrows, less what others get
//! ```
//!
//! Liqo itself has the same rules without a plugin: `provide.source.offers` of a policy. This
//! plugin is for programs that call a plugin, and for its catalog: with `--catalog-port` it also
//! shows all offers that this cluster received, over HTTPS (`catalog`). See
//! `docs/how-to/use-the-broker-plugin.md`.
//!
//! A moment after a relevant change, the plugin computes everything again from the current objects
//! (`source.rs`), and notifies subscribers if an answer differs. It stores nothing for a cluster,
//! so the end of a peering needs no work: the request is gone.

mod catalog;
mod decide;
mod source;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Parser;
use kube::Client;
use liqo_api::SYSTEM_NAMESPACE;
use liqo_resource_plugin::{Options, kubernetes, serve};
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{Catalog, CatalogCertificate, CatalogError},
    source::{Broker, CatalogOffers, LedgerWatches},
};

/// Offer to each peer of this cluster what other clusters offer to it
#[derive(Debug, Parser)]
#[command(name = "broker", version, mut_arg("port", |port| port.default_value("7000")))]
struct BrokerArguments {
    /// Name of the Service by which policies name this plugin. Their peers share what is borrowed
    #[arg(long, default_value = "liqo-broker-plugin", value_name = "NAME")]
    service: String,
    /// Port of the catalog of all offers, over HTTPS; 0 for none
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    catalog_port: u16,
    /// Certificate chain of the catalog (PEM) [default: one that nobody has signed]
    #[arg(long, value_name = "FILE", requires = "catalog_tls_key")]
    catalog_tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "catalog_tls_cert")]
    catalog_tls_key: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = BrokerArguments::parse();
    arguments.options.start_logging();
    let client = match kubernetes::client().await {
        Ok(client) => client,
        Err(error) => return report_failure(&error),
    };
    tracing::info!(
        service = arguments.service,
        "offering what other clusters offer to this one"
    );
    let stop = CancellationToken::new();
    let cluster = LedgerWatches::watch(&client, &stop);
    if arguments.catalog_port != 0
        && let Err(error) = start_catalog(&arguments, client, &cluster, &stop).await
    {
        return report_failure(&error);
    }
    let source = Broker::start(
        cluster,
        arguments.service,
        arguments.options.generation,
        &stop,
    );
    let outcome = serve(source, arguments.options).await;
    stop.cancel();
    outcome
}

/// Serves the catalog until `stop`, once all objects are listed.
async fn start_catalog(
    arguments: &BrokerArguments,
    client: Client,
    cluster: &LedgerWatches,
    stop: &CancellationToken,
) -> Result<(), CatalogError> {
    let certified = if let (Some(chain), Some(key)) =
        (&arguments.catalog_tls_cert, &arguments.catalog_tls_key)
    {
        CatalogCertificate::read(chain, key)?
    } else {
        tracing::info!(
            "nobody has signed the certificate of the catalog: --catalog-tls-cert names another one"
        );
        let service = &arguments.service;
        let names = [
            service.clone(),
            format!("{service}.{SYSTEM_NAMESPACE}"),
            format!("{service}.{SYSTEM_NAMESPACE}.svc"),
        ];
        CatalogCertificate::self_signed(
            names.into_iter().chain(["localhost".to_owned()]).collect(),
        )?
    };
    let received = CatalogOffers::watch(&client, cluster, stop);
    let listed = received.wait_until_listed();
    let address = SocketAddr::new(arguments.options.address, arguments.catalog_port);
    let catalog = Catalog::bind(address, certified, client, received).await?;
    let stop = stop.clone();
    tokio::spawn(async move {
        if listed.await {
            tracing::info!(address = ?catalog.address(), "serving the catalog");
            catalog.run(stop).await;
        }
    });
    Ok(())
}

fn report_failure(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("broker: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_valid_and_the_port_is_that_of_brokers() {
        BrokerArguments::command().debug_assert();
        let parse =
            |arguments: &[&str]| BrokerArguments::try_parse_from([&["broker"], arguments].concat());
        let arguments = parse(&[]).unwrap();
        assert_eq!(
            (arguments.options.port, arguments.service.as_str()),
            (7000, "liqo-broker-plugin")
        );
        assert_eq!(parse(&["--port=6001"]).unwrap().options.port, 6001);
        for wrong in [
            &["--port=0"][..],
            &["--catalog-tls-cert=a"],
            &["--catalog-tls-key=a"],
            &["--catalog-port=65536"],
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
    }
}
