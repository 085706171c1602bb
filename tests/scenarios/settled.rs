//! A settled system is silent.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use liqo_tests::World;

use crate::pods::deployment;

/// What may be written when a peer or the own API server was away for a moment: that it was, and what a restarted manager needs.
const TOLD_OF_AN_OUTAGE: [&str; 4] = [" foreignclusters ", " nodes ", " certificatesigningrequests ", " pods liqo/"];

/// What the clock asks for, as it does for leases: a credential for a provider is renewed at 60% of its life, and when a provider
/// whose API server has just started, and does not know its tokens yet, refuses it. The provider issues a token, and the consumer keeps it.
fn is_renewed_credential(write: &str) -> bool {
    write.contains(" secrets liqo-provider-")
        || (write.contains(" serviceaccounts liqo/liqo-consumer-") && write.contains("/token by "))
}

/// Nothing but leases is written for this long.
async fn silent(world: &World, period: Duration) -> Result<()> {
    let clusters = [&world.rome, &world.milan];
    let from = [clusters[0].audit_length()?, clusters[1].audit_length()?];
    tokio::time::sleep(period).await;
    for (cluster, from) in clusters.into_iter().zip(from) {
        let mut writes = cluster.liqo_writes(from)?;
        writes.retain(|write| !is_renewed_credential(write));
        ensure!(writes.is_empty(), "{} saw writes in {} settled seconds: {writes:#?}", cluster.name, period.as_secs());
    }
    Ok(())
}

pub async fn a_settled_system_writes_nothing_but_leases(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    rome.offloaded_namespace("settled", "LocalAndRemote").await?;
    rome.apply(&deployment("settled", "web", 6)).await?;
    rome.ready_pods("settled", "app=web", 6).await?;
    world.quiet(&[rome, milan]).await?;
    silent(&world, Duration::from_secs(120)).await?;
    // A forced resync: every watch of the managers breaks and starts again. While an API server is away its peers may say so.
    let from = [rome.audit_length()?, milan.audit_length()?];
    for cluster in [rome, milan] {
        world.break_watches(cluster).await?;
    }
    world.quiet(&[rome, milan]).await?;
    for (cluster, from) in [rome, milan].into_iter().zip(from) {
        let mut writes = cluster.liqo_writes(from)?;
        writes
            .retain(|write| !is_renewed_credential(write) && TOLD_OF_AN_OUTAGE.iter().all(|resource| !write.contains(resource)));
        ensure!(writes.is_empty(), "a resync wrote at {}: {writes:#?}", cluster.name);
    }
    silent(&world, Duration::from_secs(60)).await?;
    rome.delete_namespace("settled").await
}
