//! Changes that concern many keys: these controllers find the keys, so that the watches' tasks need
//! not.

use std::collections::{BTreeSet, HashMap};
use std::future::Ready;
use std::sync::Arc;

use liqo_controller_runtime::Requeue;
use liqo_offloading_rules::namespace::mapped::NamespaceKind;
use liqo_offloading_rules::pod::consumer_policy::ConsumerPolicy;
use liqo_offloading_rules::replica::isolation;
use liqo_quantity::ResourceList;
use parking_lot::Mutex;

use crate::provider::state::{ProviderError, ProviderState};
use crate::provider::triggers;

/// The policy of each tenant at the last change, with the overhead of its `RuntimeClass`. Lost at a
/// restart, which costs one pass.
type UsageMemory = Mutex<HashMap<String, (Option<ConsumerPolicy>, ResourceList)>>;

/// Runs until the context's `stop`.
pub async fn run_controller(provider: Arc<ProviderState>) {
    let (queues, stop) = (&provider.queues, provider.context.stop.clone());
    let (secrets, pods, usage, isolation) = (
        provider.clone(),
        provider.clone(),
        provider.clone(),
        provider.clone(),
    );
    let memory = UsageMemory::default();
    tokio::join!(
        queues
            .tenant_secrets
            .run("tenant-secrets", 1, stop.clone(), move |tenant| {
                secrets.follow_secrets(tenant);
                key_is_done()
            }),
        queues
            .tenant_pods
            .run("tenant-pods", 1, stop.clone(), move |concerned| {
                let shadows = pods.shadows.in_namespace(&concerned.tenant);
                let shadows = shadows.iter().map(|(key, shadow)| (key, shadow.as_ref()));
                pods.queues
                    .add(triggers::tenant_pods_changed(&concerned, shadows));
                pods.queues.add(triggers::shadow_pods_due(
                    pods.ledger.lock().deferred_resizes(&concerned.tenant),
                ));
                key_is_done()
            }),
        queues.usage.run("usage", 1, stop.clone(), move |()| {
            usage_changed(&usage, &memory);
            key_is_done()
        }),
        queues
            .isolation
            .run("isolation", 1, stop.clone(), move |()| {
                isolation_changed(&isolation);
                key_is_done()
            }),
        follow_config(&provider),
    );
}

fn key_is_done() -> Ready<Result<Requeue, ProviderError>> {
    std::future::ready(Ok(Requeue::OnChange))
}

async fn follow_config(provider: &ProviderState) {
    let mut config = provider.context.config.clone();
    while let Some(Ok(())) = provider
        .context
        .stop
        .run_until_cancelled(config.changed())
        .await
    {
        provider.queues.add(triggers::config_changed());
    }
}

/// Finds the tenants whose policy or overhead changed.
fn usage_changed(provider: &ProviderState, memory: &UsageMemory) {
    let offers = provider.offers.all();
    let mut memory = memory.lock();
    let mut present = BTreeSet::new();
    for (key, namespace) in provider.namespaces.all() {
        if !matches!(namespace.kind, NamespaceKind::Tenant { .. }) {
            continue;
        }
        let policy = provider.policy_of(&namespace.consumer);
        let overhead = policy
            .as_ref()
            .map(|policy| provider.overhead(policy))
            .unwrap_or_default();
        let (tenant, now) = (key.name, (policy, overhead));
        if memory.get(&tenant) != Some(&now) {
            let offers = offers.iter().map(|(offer, _)| offer);
            provider.queues.add(triggers::usage_changed(
                &tenant,
                offers,
                provider.map(&tenant).as_deref(),
            ));
            memory.insert(tenant.clone(), now);
        }
        present.insert(tenant);
    }
    memory.retain(|tenant, _| present.contains(tenant));
}

fn isolation_changed(provider: &ProviderState) {
    if isolation::leave_no_internet(&provider.internal_networks()) {
        tracing::warn!(
            "nodes, peers and this cluster have more than a thousand networks with public addresses, and policies have no room for \
             more: pods of consumers do not reach the internet"
        );
    }
    provider.queues.add(triggers::isolation_changed(
        provider.all_namespaces().values().map(AsRef::as_ref),
    ));
}
