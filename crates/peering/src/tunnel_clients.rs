//! Writes the list of tunnel clients: who may reach the auth endpoint and the API server through
//! our own tunnel. Gateways read it.
//!
//! The list contains public keys. A consumer with a tenancy has the key of its cluster, an invited
//! consumer a key that is derived from its token. Both are computed from existing objects.
//!
//! A spent token stays in the list for some seconds, because the answer to the request that spent
//! it has to get out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams},
    runtime::watcher,
};
use liqo_api::{ForeignCluster, TUNNEL_CLIENTS, labels};
use liqo_controller_runtime::{Cache, Context, Key};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    FIELD_MANAGER,
    decide::{
        namespace::LiqoNamespace,
        tunnel_clients::{
            RecentTokens, UnusedToken, list_changes, waiting_consumer_key, wanted_clients,
        },
    },
    queues::PeeringQueues,
    triggers,
};

/// Interval at which the list is computed again, because tokens expire, and because an update may
/// have failed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The objects that the list is computed from.
pub struct TunnelClientSources {
    /// The tenancies.
    pub namespaces: Cache<LiqoNamespace>,
    pub records: Cache<ForeignCluster>,
    pub queues: PeeringQueues,
}

/// Keeps the list up to date until `context.stop`.
pub async fn keep_list_current(context: Context, known: TunnelClientSources) {
    let queues = known.queues.clone();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
    let tokens = watcher::Config::default().labels(labels::PEERING_TOKEN);
    let invitations = Cache::watch(
        secrets,
        tokens,
        context.stop.clone(),
        UnusedToken::from_secret,
        move |_, _, _| queues.add(triggers::invitation_changed()),
    );
    let queues = known.queues.clone();
    let lists: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={TUNNEL_CLIENTS}"));
    let list = Cache::watch(
        lists.clone(),
        only_ours,
        context.stop.clone(),
        |list: ConfigMap| Some(list.data.unwrap_or_default()),
        move |_, _, _| queues.add(triggers::tunnel_client_list_changed()),
    );
    if !(invitations.wait_until_synced().await && list.wait_until_synced().await) {
        return;
    }
    let (mut seen, mut written) = (RecentTokens::default(), BTreeMap::new());
    loop {
        let invited = seen.observe_tokens(cached_values(&invitations), Instant::now());
        let current = list.get(&Key::new(&context.namespace, TUNNEL_CLIENTS));
        match update_list(
            &context,
            &lists,
            current.as_deref(),
            &written,
            &known,
            &invited,
        )
        .await
        {
            Ok(now) => written = now,
            Err(error) => {
                tracing::warn!(%error, "cannot write the list of tunnel clients, trying again");
            }
        }
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            () = known.queues.tunnel_clients.notified() => {}
            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
        }
    }
}

fn cached_values<R: Send + Sync + PartialEq + 'static>(cache: &Cache<R>) -> Vec<Arc<R>> {
    cache.all().into_iter().map(|(_, one)| one).collect()
}

/// Applies the changes, and returns the new list.
async fn update_list(
    context: &Context,
    api: &Api<ConfigMap>,
    current: Option<&BTreeMap<String, String>>,
    written: &BTreeMap<String, String>,
    known: &TunnelClientSources,
    invited: &[Arc<UnusedToken>],
) -> kube::Result<BTreeMap<String, String>> {
    let spec = context.config().spec.clone();
    let wanted = if spec.network.enabled && spec.network.api_through_tunnel {
        let (expiry, now) = (
            Duration::from_secs(spec.peering.approval_expiry_seconds.into()),
            context.now(),
        );
        let noted: Vec<_> = known
            .records
            .all()
            .iter()
            .filter_map(|(_, record)| waiting_consumer_key(record, expiry, now))
            .collect();
        wanted_clients(&cached_values(&known.namespaces), &noted, invited, now)
    } else {
        BTreeMap::new()
    };
    let none = BTreeMap::new();
    let Some(changes) = list_changes(current.unwrap_or(&none), written, &wanted) else {
        return Ok(wanted);
    };
    if current.is_some() {
        let ours = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        api.patch(
            TUNNEL_CLIENTS,
            &ours,
            &Patch::Merge(json!({ "data": changes })),
        )
        .await?;
        return Ok(wanted);
    }
    let list = ConfigMap {
        metadata: ObjectMeta {
            name: Some(TUNNEL_CLIENTS.to_owned()),
            labels: Some([(labels::MANAGED.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(wanted.clone()),
        ..ConfigMap::default()
    };
    api.patch(
        TUNNEL_CLIENTS,
        &PatchParams::apply(FIELD_MANAGER).force(),
        &Patch::Apply(&list),
    )
    .await?;
    Ok(wanted)
}
