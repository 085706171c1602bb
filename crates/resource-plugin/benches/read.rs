//! How long a plugin's answer takes: `cargo bench -p liqo-resource-plugin`.
//!
//! The client calls the SDK over loopback, one call after another. The answers have one pool and
//! sixteen pools.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use liqo_resource_plugin::{
    Options, PluginClient, Pool, ResourceSource, Server, Settings, SourceError,
    arguments::resources,
};

const READS: usize = 500;

struct Pools(Vec<Pool>);

#[async_trait]
impl ResourceSource for Pools {
    async fn read(&self, _: &str) -> Result<Vec<Pool>, SourceError> {
        Ok(self.0.clone())
    }
}

fn pools(count: usize) -> Vec<Pool> {
    let amounts = resources([
        "cpu=16",
        "memory=64Gi",
        "pods=110",
        "ephemeral-storage=1Ti",
        "nvidia.com/gpu=4",
    ]);
    let amounts = amounts.unwrap_or_else(|error| unreachable!("{error}"));
    (0..count)
        .map(|number| Pool::named(format!("pool-{number}"), amounts.clone()))
        .collect()
}

async fn measure(count: usize) -> Result<(), Box<dyn std::error::Error>> {
    let options = Options {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: 0,
        ..Options::default()
    };
    let server = Server::bind(&options).await?;
    let address = server.address()?;
    let serving = tokio::spawn(server.run(Pools(pools(count)), std::future::pending()));
    let client = PluginClient::new(Settings::new(address.to_string()))?;
    // The first call opens the connection.
    client.read("rome").await?;
    let mut times = Vec::with_capacity(READS);
    for _ in 0..READS {
        let start = Instant::now();
        client.read("rome").await?;
        times.push(start.elapsed());
    }
    times.sort();
    let at = |share: usize| times[READS * share / 100];
    let all: Duration = times.iter().sum();
    println!(
        "  {count:>2} pools: median {:>7.1?}, P99 {:>7.1?}, mean {:>7.1?}",
        at(50),
        at(99),
        all / u32::try_from(READS)?
    );
    serving.abort();
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("ReadResources over loopback, {READS} times");
    for count in [1, 16] {
        measure(count).await?;
    }
    Ok(())
}
