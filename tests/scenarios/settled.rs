//! A settled system writes nothing.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use liqo_tests::World;

use crate::pods::deployment;

/// Everything in Liqo that is done again and again is done at least once in this time.
const EVERY_PERIOD: Duration = Duration::from_secs(75);
/// Resources that may be written after a peer or its own API server was away for a moment: status,
/// what a restarted manager needs, and warnings of kubelets that needed the API server.
const WRITTEN_AFTER_AN_OUTAGE: [&str; 6] = [
    " foreignclusters ",
    " nodes ",
    " namespaceoffloadings settled/offloading/status ",
    " certificatesigningrequests ",
    " pods liqo/",
    " events ",
];

/// Whether a write renews a credential for a provider. The consumer renews it at 60% of its
/// lifetime, and after the provider's API server has refused it, which happens just after that has
/// started. The provider issues a token, and the consumer stores it.
fn is_renewed_credential(write: &str) -> bool {
    write.contains(" secrets liqo-provider-")
        || (write.contains(" serviceaccounts liqo/liqo-consumer-") && write.contains("/token by "))
}

/// Whether a write publishes latency or loss of a path. They change with the load of this machine,
/// and are written twice a minute at most.
fn is_of_a_path(write: &str) -> bool {
    write.starts_with("patch tunnelendpoints liqo/")
        && write.contains("/status by system:serviceaccount:liqo-fabric:liqo-fabric")
}

/// Checks that only leases, credentials and what a path is like are written during this period.
async fn writes_nothing(world: &World, period: Duration) -> Result<()> {
    let clusters = [&world.rome, &world.milan];
    let from = [clusters[0].audit_length()?, clusters[1].audit_length()?];
    tokio::time::sleep(period).await;
    for (cluster, from) in clusters.into_iter().zip(from) {
        let mut writes = cluster.liqo_writes(from)?;
        let mut of_a_path = period.as_secs().div_ceil(30);
        writes.retain(|write| {
            let is_change = is_of_a_path(write) && of_a_path > 0;
            of_a_path -= u64::from(is_change);
            !is_change && !is_renewed_credential(write)
        });
        ensure!(
            writes.is_empty(),
            "{} saw writes in {} settled seconds: {writes:#?}",
            cluster.name,
            period.as_secs()
        );
    }
    Ok(())
}

pub async fn a_settled_system_writes_only_leases(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let part = world.machine.read().await;
    rome.offloaded_namespace("settled", "LocalAndRemote")
        .await?;
    rome.apply(&deployment("settled", "web", 6)).await?;
    rome.ready_pods("settled", "app=web", 6).await?;
    world.quiet(&[rome, milan]).await?;
    writes_nothing(&world, EVERY_PERIOD).await?;
    // A forced resync: every watch of the managers breaks and starts again. Peers may report that
    // an API server was away.
    drop(part);
    let whole = world.machine.write().await;
    world.quiet(&[rome, milan]).await?;
    let from = [rome.audit_length()?, milan.audit_length()?];
    for cluster in [rome, milan] {
        world.break_watches(cluster).await?;
    }
    world.quiet(&[rome, milan]).await?;
    for (cluster, from) in [rome, milan].into_iter().zip(from) {
        let mut writes = cluster.liqo_writes(from)?;
        // On a slow machine the API server is away for so long that Kubernetes takes the virtual
        // node for dead.
        let marked = cluster.marked_not_ready(from)?;
        let is_restored = |write: &str| {
            marked
                .iter()
                .any(|pod| write.starts_with(&format!("patch pods settled/{pod}/status ")))
        };
        writes.retain(|write| {
            !is_renewed_credential(write)
                && !is_restored(write)
                && !is_of_a_path(write)
                && WRITTEN_AFTER_AN_OUTAGE
                    .iter()
                    .all(|resource| !write.contains(resource))
        });
        ensure!(
            writes.is_empty(),
            "a resync wrote at {}: {writes:#?}",
            cluster.name
        );
    }
    let _part = whole.downgrade();
    writes_nothing(&world, EVERY_PERIOD).await?;
    rome.end_namespace("settled").await
}
