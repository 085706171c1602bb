//! `fixed-resources`: offers the same amount to each peer.
//!
//! ```text
//!   --resource=cpu=2000m --resource=memory=2G --resource=pods=10
//!                          │
//!                          ▼
//!   rome  asks ──▶ cpu=2, memory=2G, pods=10
//!   milan asks ──▶ cpu=2, memory=2G, pods=10
//! ```
//!
//! The amounts are promises: the plugin does not compare them with what the cluster has, or with what it offers to other peers. They
//! never change while the program runs, so it reports no changes.

use std::process::ExitCode;

use clap::Parser;
use liqo_quantity::ResourceList;
use liqo_resource_plugin::{
    Options, Pool, ResourceSource, SourceError,
    arguments::{missing, resources},
    async_trait, serve,
};

/// Offer the same amount of resources to each peer of this cluster
#[derive(Debug, Parser)]
#[command(name = "fixed-resources", version)]
struct Arguments {
    /// Amount of a resource that each peer is offered, such as cpu=2000m or nvidia.com/gpu=1; repeat the flag, or separate amounts by commas
    #[arg(long = "resource", value_name = "NAME=QUANTITY", required = true)]
    resources: Vec<String>,
    #[command(flatten)]
    options: Options,
}

struct Fixed(ResourceList);

#[async_trait]
impl ResourceSource for Fixed {
    async fn read(&self, _cluster: &str) -> Result<Vec<Pool>, SourceError> {
        Ok(vec![self.0.clone().into()])
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let offered = match resources(&arguments.resources) {
        Ok(offered) => offered,
        Err(error) => {
            eprintln!("fixed-resources: --resource: {error}");
            return ExitCode::from(2);
        }
    };
    arguments.options.start_logging();
    let missing = missing(&offered);
    if !missing.is_empty() {
        let missing = missing.join(", ");
        tracing::warn!("no {missing} is offered, so consumers cannot run pods here: add it with --resource");
    }
    tracing::info!(%offered, "offering the same to each peer");
    serve(Fixed(offered), arguments.options).await
}
