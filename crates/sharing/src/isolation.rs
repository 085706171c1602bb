//! Tests whether the pod network enforces `NetworkPolicies`, and reports it as a condition of the
//! `ClusterConfig`.
//!
//! The pods of the resolver listen on one port that a `NetworkPolicy` closes. If the manager can
//! connect to it, the pod network does not enforce the policy. These pods run anyway, so the test
//! creates nothing and leaves nothing behind.

use std::{net::IpAddr, time::Duration};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use liqo_api::{
    CLOSED_PORT, CLUSTER_CONFIG, ClusterConfig, Key, NETWORK_POLICIES_ENFORCED, RESOLVER,
    RESOLVER_PORT, isolation,
};
use liqo_controller_runtime::{Context, Network, conditions::apply_to_config, events::object_ref};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    FIELD_MANAGER,
    decide::isolation::{
        ConnectionAttempts, RoundOutcome, RoundOutcomes, isolation_condition, pod_addresses,
    },
};

/// Packets that a policy forbids usually vanish. A lost packet is sent again after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after a condition that could not be written.
const WRITE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of pods that are tried.
const MAX_PODS: u32 = 20;
/// Maximum number of addresses that are tried at the same time.
const CONCURRENCY: usize = 20;

/// Tries now and then until `stop`.
pub async fn test_repeatedly(context: &Context, stop: CancellationToken) {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &context.namespace);
    let mut config = context.config.clone();
    let mut outcomes = RoundOutcomes::default();
    let mut due = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // A setting changes the message.
            changed = config.changed() => if changed.is_err() { return },
            () = sleep_until(due) => {
                let Some(outcome) = stop.run_until_cancelled(attempt_round(&*context.network, &pods)).await else { return };
                due = Instant::now() + outcomes.add(outcome, isolation::are_policies_enforced(&config.borrow()));
                tracing::debug!(?outcome, "tried whether NetworkPolicies are enforced");
            }
        }
        let current = config.borrow_and_update().clone();
        if let Err(error) = write_condition(context, &current, outcomes.last_result()).await {
            tracing::warn!(%error, "cannot report whether NetworkPolicies are enforced, will try again");
            due = due.min(Instant::now() + WRITE_RETRY_DELAY);
        }
    }
}

/// Tries all addresses of the resolver's pods.
async fn attempt_round(network: &dyn Network, pods: &Api<Pod>) -> RoundOutcome {
    let of_resolver = ListParams::default()
        .labels(&format!("app.kubernetes.io/name={RESOLVER}"))
        .limit(MAX_PODS);
    let listed = match pods.list(&of_resolver).await {
        Ok(listed) => listed,
        Err(error) => {
            tracing::warn!(%error, "cannot list the pods of {RESOLVER}");
            return RoundOutcome::Unknown;
        }
    };
    let addresses: Vec<IpAddr> = listed.items.iter().flat_map(pod_addresses).collect();
    let attempts = stream::iter(addresses)
        .map(|address| attempt_address(network, address, RESOLVER_PORT, CLOSED_PORT));
    RoundOutcome::of_attempts(
        &attempts
            .buffer_unordered(CONCURRENCY)
            .collect::<Vec<_>>()
            .await,
    )
}

async fn attempt_address(
    network: &dyn Network,
    address: IpAddr,
    open: u16,
    closed: u16,
) -> ConnectionAttempts {
    let accepts = async |port: u16| {
        let connected = network.connect(&address.to_string(), port, |_| true);
        matches!(timeout(CONNECT_TIMEOUT, connected).await, Ok(Ok(_)))
    };
    let before = accepts(open).await;
    let closed = accepts(closed).await;
    ConnectionAttempts {
        open: before && accepts(open).await,
        closed,
    }
}

/// Writes the condition if it changed. Without a result the last known one stays.
async fn write_condition(
    context: &Context,
    config: &ClusterConfig,
    result: Option<bool>,
) -> kube::Result<()> {
    let known = isolation::are_policies_enforced(config);
    let wanted = isolation_condition(result.or(known), config.spec.lend_without_network_policies);
    if !apply_to_config(
        context,
        config,
        FIELD_MANAGER,
        std::slice::from_ref(&wanted),
    )
    .await?
        || result == known
    {
        return Ok(());
    }
    match result {
        Some(true) => tracing::info!("the pod network enforces NetworkPolicies"),
        Some(false) => {
            tracing::warn!("{}", wanted.message);
            let object = object_ref(
                "config.liqo.io/v1alpha1",
                "ClusterConfig",
                &Key::of_object(config),
                config.metadata.uid.clone(),
            );
            let effect = if config.spec.lend_without_network_policies {
                "this cluster lends nevertheless"
            } else {
                "nothing is offered"
            };
            let note = format!(
                "the pod network does not enforce NetworkPolicies; {effect}: see condition {NETWORK_POLICIES_ENFORCED} of ClusterConfig {CLUSTER_CONFIG}"
            );
            context
                .events
                .record_warning(&object, &wanted.reason, note)
                .await;
        }
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use liqo_controller_runtime::Tcp;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_port_counts_as_open_if_it_accepts_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gone = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let found =
            |open, closed| attempt_address(&Tcp, IpAddr::from([127, 0, 0, 1]), open, closed);
        assert_eq!(
            found(port, port).await,
            ConnectionAttempts {
                open: true,
                closed: true
            }
        );
        assert_eq!(
            found(port, gone).await,
            ConnectionAttempts {
                open: true,
                closed: false
            }
        );
        assert_eq!(
            found(gone, gone).await,
            ConnectionAttempts {
                open: false,
                closed: false
            }
        );
    }
}
