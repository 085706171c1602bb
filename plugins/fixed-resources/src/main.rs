//! `fixed-resources`: a resource plugin that offers the same amount to each peer. It is the
//! smallest of the plugins here.
//!
//! ```text
//!   --resource=cpu=2000m --resource=memory=2G --resource=pods=10
//!                          │
//!                          ▼
//!   rome  asks ──▶ cpu=2, memory=2G, pods=10
//!   milan asks ──▶ cpu=2, memory=2G, pods=10
//! ```
//!
//! With `--price=cpu=0.04 --currency=EUR` it also says what they cost.
//!
//! The plugin does not compare the amounts with what the cluster has, or with what it offers to
//! other peers. They never change while the program runs, so it reports no changes.

use std::process::ExitCode;

use clap::Parser;
use liqo_quantity::{RateArgument, ResourceList, is_currency};
use liqo_resource_plugin::{
    Generation, Options, Pool, Prices, ResourceSource, SourceError,
    arguments::{missing_resources, resources},
    async_trait, serve,
};

/// Offer the same amount of resources to each peer of this cluster
#[derive(Debug, Parser)]
#[command(name = "fixed-resources", version)]
struct FixedOfferArguments {
    /// Amount of a resource that each peer is offered, such as cpu=2000m or nvidia.com/gpu=1;
    /// repeat the flag, or separate amounts by commas
    #[arg(long = "resource", value_name = "NAME=QUANTITY", required = true)]
    resources: Vec<String>,
    /// Price of a resource for one hour, such as cpu=0.04: of a core of cpu, a GiB of memory or
    /// storage, a piece of everything else; repeat the flag, or separate prices by commas
    #[arg(
        long = "price",
        value_name = "NAME=PRICE",
        value_delimiter = ',',
        requires = "currency"
    )]
    prices: Vec<RateArgument>,
    /// Currency of the prices, such as EUR
    #[arg(long, value_parser = parse_currency, requires = "prices")]
    currency: Option<String>,
    #[command(flatten)]
    options: Options,
}

fn parse_currency(text: &str) -> Result<String, &'static str> {
    let valid = is_currency(text).then(|| text.to_owned());
    valid.ok_or("a currency has letters, digits and dashes, at most 12, and begins with a letter")
}

/// What each peer is offered, and what it costs.
struct FixedOffer {
    resources: ResourceList,
    prices: Option<Prices>,
}

#[async_trait]
impl ResourceSource for FixedOffer {
    async fn read(&self, _cluster: &str) -> Result<Vec<Pool>, SourceError> {
        Ok(vec![self.resources.clone().into()])
    }

    fn prices(&self, _cluster: &str) -> Option<Prices> {
        self.prices.clone()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = FixedOfferArguments::parse();
    let offered = match resources(&arguments.resources) {
        Ok(offered) => offered,
        Err(error) => {
            eprintln!("fixed-resources: --resource: {error}");
            return ExitCode::from(2);
        }
    };
    let prices = arguments.currency.map(|currency| Prices {
        currency,
        rates: arguments.prices.into_iter().collect(),
    });
    if prices.is_some() && arguments.options.generation != Generation::P3 {
        eprintln!("fixed-resources: --price: only generation p3 of the protocol has prices");
        return ExitCode::from(2);
    }
    arguments.options.start_logging();
    let missing = missing_resources(&offered);
    if !missing.is_empty() {
        let missing = missing.join(", ");
        tracing::warn!(
            "no {missing} is offered, so consumers cannot run pods here: add it with --resource"
        );
    }
    let per_hour = prices
        .as_ref()
        .map(|prices| format!("{} {}", prices.rates, prices.currency));
    tracing::info!(%offered, per_hour, "offering the same to each peer");
    serve(
        FixedOffer {
            resources: offered,
            prices,
        },
        arguments.options,
    )
    .await
}
