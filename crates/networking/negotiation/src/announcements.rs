//! The two halves of each `NetworkConfig`: our announcements to peers, and theirs to us.
//!
//! If two clusters borrow from each other there are two such objects with the same content. We
//! write both, and read the one at the provider while it is reachable, because it is fresher.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::DeleteParams,
    core::{DeserializeGuard, ObjectMeta},
    runtime::watcher::Config,
};
use liqo_api::{
    Claimed, ClusterId, DirectPath, GatewayAddress, MAX_BEHIND, MAX_DIRECT, MAX_DIRECT_ADDRESSES,
    MAX_DIRECT_NAMESPACES, MAX_WAY_LEN, NETWORK_CONFIG, NetworkAnnouncement, NetworkConfig,
    NetworkConfigSpec, NetworkConfigStatus, labels,
    peer_namespace::{PeerNamespace, PeerNamespaceKind},
    tenant_namespace,
};
use liqo_controller_runtime::{
    Cache, Context, Key, PeerConnection, Peers, Queue,
    cache::parsed_len,
    conditions::namespaced_api,
    peers,
    put::{create_or_replace, replace_status, with_peer_labels},
    writes::{RequestError, StepContext as _, delete_if_present},
};
use liqo_network_model::gateways::is_key;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{FIELD_MANAGER, decide::exchange::PeerOutcome};

/// However often peers write, we reconcile their changes at most once in this time.
const PEER_CHANGE_DELAY: Duration = Duration::from_millis(500);
/// Maximum number of addresses of a gateway over one transport.
const MAX_GATEWAY_ADDRESSES: usize = 8;
/// Maximum length of the name of a namespace.
const MAX_NAMESPACE_LEN: usize = 63;
/// Maximum length of a stored error, in characters.
const MAX_ERROR_LEN: usize = 300;
const ANNOUNCE: &str = "announce our network to";

/// A `NetworkConfig` that a peer wrote, or why it cannot be used.
type ReceivedConfig = Result<NetworkConfig, String>;

/// A namespace that was created here for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantOrMappedNamespace {
    pub consumer: ClusterId,
    /// Whether it is the tenant namespace, where both clusters talk. Otherwise it is a mapped
    /// namespace, where pods of the consumer run.
    pub is_tenant: bool,
}

impl TenantOrMappedNamespace {
    /// `None` also if it is a tenant namespace that is being deleted. The pods of a mapped namespace
    /// need their network until they are gone.
    #[allow(clippy::needless_pass_by_value)] // A cache calls it with a value.
    pub fn from_namespace(namespace: Namespace) -> Option<Self> {
        let PeerNamespace { peer, kind } = PeerNamespace::from_metadata(&namespace.metadata)?;
        let is_tenant = match kind {
            PeerNamespaceKind::Tenant if namespace.metadata.deletion_timestamp.is_none() => true,
            PeerNamespaceKind::Mapped { .. } => false,
            PeerNamespaceKind::Tenant | PeerNamespaceKind::Provider => return None,
        };
        Some(Self {
            consumer: peer,
            is_tenant,
        })
    }
}

/// The announcements of all peers.
pub struct AnnouncementExchange {
    own: ClusterId,
    /// In tenant namespaces of this cluster.
    from_consumers: Cache<ReceivedConfig>,
    /// In our tenant namespaces at providers.
    from_providers: Mutex<BTreeMap<ClusterId, Cache<ReceivedConfig>>>,
    queue: Queue<()>,
}

impl AnnouncementExchange {
    pub fn start(context: &Context, stop: &CancellationToken, queue: Queue<()>) -> Arc<Self> {
        let from_consumers = watch_configs(Api::all(context.client.clone()), stop.clone(), &queue);
        Arc::new(Self {
            own: context.cluster_id.clone(),
            from_consumers,
            from_providers: Mutex::default(),
            queue,
        })
    }

    pub async fn wait_until_synced(&self) -> bool {
        self.from_consumers.wait_until_synced().await
    }

    /// Forgets the announcements of former providers. If such a cluster borrows from us, only what
    /// it stores here counts.
    pub fn keep_providers(&self, is_provider: impl Fn(&ClusterId) -> bool) {
        self.from_providers.lock().retain(|id, _| is_provider(id));
    }

    /// Follows the announcements of providers while they are connected.
    pub async fn follow_providers(self: &Arc<Self>, peers: &Peers, stop: CancellationToken) {
        peers
            .for_each(stop, |connection| self.clone().follow_provider(connection))
            .await;
    }

    async fn follow_provider(self: Arc<Self>, connection: Arc<PeerConnection>) {
        let id = connection.cluster_id.clone();
        let stop = connection.ended.child_token();
        let _guard = stop.clone().drop_guard();
        let queue = self.queue.clone();
        let cache = Cache::watch_provider(
            &connection,
            only_ours(),
            stop,
            stored_len,
            |config: Claimed<_>| read_config(config.into_unverified()),
            move |_, _, _| queue.add_after((), PEER_CHANGE_DELAY),
        );
        let mut health = connection.health.clone();
        let follow = async {
            // Until then the announcement read over the former connection counts.
            if cache.wait_until_synced().await {
                self.from_providers.lock().insert(id.clone(), cache.clone());
                self.queue.add(());
            }
            while health.changed().await.is_ok() {
                self.queue.add(());
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = connection.ended.cancelled() => {}
            () = follow => {}
        }
        // Its last announcement stays valid.
        self.queue.add(());
    }

    /// A peer's last announcement. A reachable provider's comes first, then the one that a consumer
    /// stored here.
    pub fn last_announcement(
        &self,
        peers: &Peers,
        id: &ClusterId,
    ) -> Option<Result<NetworkAnnouncement, String>> {
        let provider = self.from_providers.lock().get(id).cloned();
        let provider = provider
            .and_then(|cache| single_config(&cache))
            .map(|received| {
                received
                    .as_ref()
                    .clone()
                    .map(|config| config.status.unwrap_or_default().announcement)
            });
        let consumer = self
            .from_consumers
            .get(&Key::new(tenant_namespace(id), NETWORK_CONFIG));
        let consumer = consumer.map(|received| {
            received
                .as_ref()
                .clone()
                .map(|config| config.spec.announcement)
        });
        let is_reachable = peers
            .get(id)
            .is_some_and(|connection| connection.is_reachable());
        let both = if is_reachable {
            [provider, consumer]
        } else {
            [consumer, provider]
        };
        let mut both = both.into_iter().flatten();
        let first = both.next()?;
        if first
            .as_ref()
            .is_ok_and(|one| *one == NetworkAnnouncement::default())
        {
            both.next().or(Some(first))
        } else {
            Some(first)
        }
    }

    /// Writes our announcement to each peer, and withdraws it from peers without an outcome. Writes
    /// only differences. Announcements to the peers in `unknown` stay as they are.
    pub async fn send_announcements(
        &self,
        context: &Context,
        outcomes: &BTreeMap<ClusterId, PeerOutcome>,
        unknown: &[ClusterId],
    ) -> Vec<RequestError> {
        let mut failures = self.announce_to_consumers(context, outcomes, unknown).await;
        failures.extend(self.announce_to_providers(context, outcomes, unknown).await);
        failures
    }

    async fn announce_to_consumers(
        &self,
        context: &Context,
        outcomes: &BTreeMap<ClusterId, PeerOutcome>,
        unknown: &[ClusterId],
    ) -> Vec<RequestError> {
        let mut failures = Vec::new();
        let nothing = NetworkAnnouncement::default();
        for (key, received) in self.from_consumers.all() {
            // Other namespaces than tenant namespaces do not count.
            let consumer = key
                .namespace
                .rsplit('-')
                .next()
                .and_then(|id| id.parse::<ClusterId>().ok());
            let Some(consumer) = consumer
                .filter(|id| tenant_namespace(id) == key.namespace && key.name == NETWORK_CONFIG)
            else {
                continue;
            };
            let wanted = outcomes
                .get(&consumer)
                .map_or(&nothing, |outcome| &outcome.announcement);
            // If the object cannot be read, neither can our own half in it.
            let Ok(config) = received.as_ref() else {
                continue;
            };
            let current = config.status.clone().unwrap_or_default().announcement;
            if current == *wanted || unknown.contains(&consumer) {
                continue;
            }
            let api: Api<NetworkConfig> = namespaced_api(&context.client, &key.namespace);
            let status = NetworkConfigStatus {
                announcement: wanted.clone(),
            };
            let written = replace_status(&api, FIELD_MANAGER, NETWORK_CONFIG, &status).await;
            failures.extend(
                written
                    .step(ANNOUNCE, "consumer", Key::new("", consumer.as_str()))
                    .err()
                    .map(RequestError::from),
            );
        }
        failures
    }

    async fn announce_to_providers(
        &self,
        context: &Context,
        outcomes: &BTreeMap<ClusterId, PeerOutcome>,
        unknown: &[ClusterId],
    ) -> Vec<RequestError> {
        let caches: Vec<_> = self
            .from_providers
            .lock()
            .iter()
            .map(|(id, cache)| (id.clone(), cache.clone()))
            .collect();
        let writes = caches
            .into_iter()
            .filter(|(id, _)| !unknown.contains(id))
            .filter_map(|(id, cache)| {
                let connection = context
                    .peers
                    .get(&id)
                    .filter(|connection| connection.is_reachable())?;
                let wanted = outcomes
                    .get(&id)
                    .map(|outcome| outcome.announcement.clone());
                Some(async move {
                    let written = self
                        .announce_to_provider(
                            &connection,
                            wanted.as_ref(),
                            single_config(&cache).as_deref(),
                        )
                        .await;
                    written
                        .step(ANNOUNCE, "provider", Key::new("", id.as_str()))
                        .err()
                        .map(RequestError::from)
                })
            });
        join_all(writes).await.into_iter().flatten().collect()
    }

    async fn announce_to_provider(
        &self,
        connection: &PeerConnection,
        wanted: Option<&NetworkAnnouncement>,
        current: Option<&ReceivedConfig>,
    ) -> Result<(), peers::PeerError> {
        let api: Api<NetworkConfig> =
            namespaced_api(&connection.client, &connection.tenant_namespace);
        let current =
            current.map(|config| config.as_ref().ok().map(|config| &config.spec.announcement));
        match (wanted, current) {
            // Writing again does not help if the object cannot be read.
            (None, None) | (Some(_), Some(None)) => Ok(()),
            (None, Some(_)) => peers::call(delete_if_present(
                &api,
                NETWORK_CONFIG,
                &DeleteParams::default(),
            ))
            .await
            .map(drop),
            (Some(wanted), Some(Some(current))) if current == wanted => Ok(()),
            (Some(wanted), current) => {
                let spec = NetworkConfigSpec {
                    announcement: wanted.clone(),
                };
                let config = with_peer_labels(
                    NetworkConfig::new(NETWORK_CONFIG, spec),
                    labels::CONSUMER_ID,
                    &self.own,
                );
                peers::call(create_or_replace(
                    &api,
                    FIELD_MANAGER,
                    &config,
                    current.is_some(),
                ))
                .await
            }
        }
    }
}

fn watch_configs(
    api: Api<DeserializeGuard<NetworkConfig>>,
    stop: CancellationToken,
    queue: &Queue<()>,
) -> Cache<ReceivedConfig> {
    let queue = queue.clone();
    Cache::watch(api, only_ours(), stop, read_config, move |_, _, _| {
        queue.add_after((), PEER_CHANGE_DELAY);
    })
}

fn only_ours() -> Config {
    Config::default().fields(&format!("metadata.name={NETWORK_CONFIG}"))
}

/// Estimated memory in bytes.
fn stored_len(config: &ReceivedConfig) -> usize {
    config.as_ref().map_or_else(String::len, parsed_len)
}

fn single_config(cache: &Cache<ReceivedConfig>) -> Option<Arc<ReceivedConfig>> {
    cache.all().into_iter().map(|(_, config)| config).next()
}

/// A peer may write objects that the schema admits and we cannot read, and its own API server may
/// have another schema. An object that cannot be used becomes a short error.
fn read_config(config: DeserializeGuard<NetworkConfig>) -> Option<ReceivedConfig> {
    let (metadata, content) = match config.0 {
        Ok(config) => (config.metadata, Ok((config.spec, config.status))),
        Err(invalid) => (invalid.metadata, Err(invalid.error)),
    };
    if metadata.deletion_timestamp.is_some() || metadata.name.as_deref() != Some(NETWORK_CONFIG) {
        return None;
    }
    Some(
        content
            .map_err(|error| error.chars().take(MAX_ERROR_LEN).collect())
            .and_then(|(spec, status)| {
                let status = status.unwrap_or_default();
                for announcement in [&spec.announcement, &status.announcement] {
                    check_limits(announcement).map_err(str::to_owned)?;
                }
                Ok(NetworkConfig {
                    metadata: ObjectMeta::default(),
                    spec,
                    status: Some(status),
                })
            }),
    )
}

/// Checks the limits of our own schema: the announcement's content ends up in objects here.
fn check_limits(announcement: &NetworkAnnouncement) -> Result<(), &'static str> {
    let NetworkAnnouncement {
        exports,
        transit,
        behind,
        views,
        gateways,
        path_mtus,
        direct,
        ..
    } = announcement;
    if [exports.len(), transit.len(), views.len(), path_mtus.len()]
        .into_iter()
        .any(|count| count > 1024)
    {
        return Err("it names more than 1024 prefixes");
    }
    let mut ways = behind.values();
    if behind.len() > MAX_BEHIND || !ways.all(|way| (1..=MAX_WAY_LEN).contains(&way.len())) {
        return Err(
            "it names more than 64 prefixes behind it, or one without a way of at most 8 clusters",
        );
    }
    if !are_few(gateways, MAX_GATEWAY_ADDRESSES) {
        return Err("it names more than 16 gateways, or one with more than 8 addresses");
    }
    if direct.len() > MAX_DIRECT || !direct.values().all(is_within_limits) {
        return Err(
            "it names more than 16 direct paths, or one with more gateways, addresses or namespaces than are allowed",
        );
    }
    let mut all = gateways
        .iter()
        .chain(direct.values().flat_map(|path| &path.gateways));
    if all.all(|gateway| has_valid_keys(gateway) && has_short_addresses(gateway)) {
        Ok(())
    } else {
        Err("one of its gateways has no key of 32 bytes, or an address that is too long")
    }
}

fn are_few(gateways: &[GatewayAddress], most_addresses: usize) -> bool {
    gateways.len() <= 16
        && gateways
            .iter()
            .all(|gateway| gateway.endpoints.len().max(gateway.tls.len()) <= most_addresses)
}

fn is_within_limits(path: &DirectPath) -> bool {
    let has_tls = path.gateways.iter().any(|gateway| !gateway.tls.is_empty());
    are_few(&path.gateways, MAX_DIRECT_ADDRESSES)
        && !has_tls
        && path.namespaces.as_ref().is_none_or(|names| {
            names.len() <= MAX_DIRECT_NAMESPACES
                && names.iter().all(|name| name.len() <= MAX_NAMESPACE_LEN)
        })
}

fn has_valid_keys(gateway: &GatewayAddress) -> bool {
    is_key(&gateway.public_key) && gateway.first_key.as_deref().is_none_or(is_key)
}

fn has_short_addresses(gateway: &GatewayAddress) -> bool {
    let mut addresses = gateway.endpoints.iter().chain(&gateway.tls);
    addresses.all(|address| address.chars().count() <= 300)
}

#[cfg(test)]
mod tests {
    use data_encoding::{BASE32_NOPAD, BASE64};
    use serde_json::{Value, json};

    use super::*;

    fn received(name: &str, announcement: &Value) -> Option<ReceivedConfig> {
        let object = json!({ "apiVersion": "net.liqo.io/v1alpha1", "kind": "NetworkConfig", "metadata": { "name": name },
            "spec": { "announcement": announcement } });
        read_config(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_mapped_namespace_counts_until_it_is_gone_and_a_tenant_namespace_only_under_its_name() {
        let id = "a".repeat(32);
        let found = |name: &str, kind: &str, is_deleted: bool, managed: &str| {
            let labels = json!({ labels::CONSUMER_ID: id, labels::NAMESPACE_KIND: kind, labels::MANAGED: managed, labels::HOME_NAMESPACE: "demo" });
            let deleted = is_deleted.then_some("2026-01-01T00:00:00Z");
            let namespace = json!({ "metadata": { "name": name, "labels": labels, "deletionTimestamp": deleted } });
            TenantOrMappedNamespace::from_namespace(serde_json::from_value(namespace).unwrap())
                .map(|found| found.is_tenant)
        };
        let tenant = format!("liqo-tenant-{id}");
        assert_eq!(found(&tenant, "tenant", false, "true"), Some(true));
        assert_eq!(
            (
                found(&tenant, "tenant", true, "true"),
                found("other", "tenant", false, "true")
            ),
            (None, None)
        );
        assert_eq!(
            (
                found("demo-rome", "mapped", true, "true"),
                found("demo-rome", "mapped", false, "")
            ),
            (Some(false), None)
        );
    }

    #[test]
    fn an_announcement_that_cannot_be_used_is_kept_as_a_short_error() {
        let key = BASE64.encode(&[7; 32]);
        assert!(
            received(
                NETWORK_CONFIG,
                &json!({ "gateways": [{ "publicKey": key, "endpoints": ["192.0.2.1:1"] }] })
            )
            .unwrap()
            .is_ok()
        );
        assert_eq!(received("another", &json!({})), None);
        let endpoints: Vec<String> = (0..9).map(|port| format!("192.0.2.1:{port}")).collect();
        for refused in [
            json!({ "exports": ["x"] }),
            json!({ "mtu": "1".repeat(100_000) }),
            json!({ "pathMTUs": (0..1025).map(|n| (format!("10.{}.{}.0/24", n / 256, n % 256), json!(1280))).collect::<serde_json::Map<_, _>>() }),
            json!({ "gateways": [{ "publicKey": "short" }] }),
            json!({ "gateways": [{ "publicKey": key, "endpoints": endpoints }] }),
            json!({ "gateways": [{ "publicKey": key, "tls": endpoints }] }),
            json!({ "gateways": [{ "publicKey": key, "tls": ["a".repeat(301)] }] }),
            json!({ "behind": { "10.1.0.0/16": [] } }),
            json!({ "behind": { "10.1.0.0/16": vec!["a".repeat(32); 9] } }),
            json!({ "behind": (0..65).map(|n| (format!("10.{n}.0.0/16"), json!(["a".repeat(32)]))).collect::<serde_json::Map<_, _>>() }),
            json!({ "exports": (0..1025).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect::<Vec<_>>() }),
        ] {
            assert!(
                received(NETWORK_CONFIG, &refused)
                    .unwrap()
                    .unwrap_err()
                    .len()
                    <= MAX_ERROR_LEN
            );
        }
    }

    #[test]
    fn direct_paths_are_bounded() {
        let key = BASE64.encode(&[7; 32]);
        let id = |number: usize| {
            BASE32_NOPAD
                .encode(&[u8::try_from(number).unwrap(); 20])
                .to_lowercase()
        };
        let is_accepted =
            |paths: usize, gateways: usize, endpoint: &Value, namespaces: usize, name: &str| {
                let gateway = json!({ "publicKey": key, "endpoints": endpoint });
                let names: Vec<String> = (0..namespaces)
                    .map(|number| format!("{name}{number}"))
                    .collect();
                let path = json!({ "gateways": vec![gateway; gateways], "namespaces": names });
                let paths: serde_json::Map<_, _> = (0..paths)
                    .map(|number| (id(number), path.clone()))
                    .collect();
                received(NETWORK_CONFIG, &json!({ "direct": paths }))
                    .unwrap()
                    .is_ok()
            };
        let one = json!(["192.0.2.1:1"]);
        assert!(is_accepted(
            16,
            16,
            &json!(["192.0.2.1:1", "192.0.2.2:1"]),
            256,
            "shop"
        ));
        assert!(!is_accepted(17, 1, &one, 1, "shop"));
        assert!(!is_accepted(1, 17, &one, 1, "shop"));
        assert!(!is_accepted(
            1,
            1,
            &json!(["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"]),
            1,
            "shop"
        ));
        assert!(!is_accepted(1, 1, &json!(["a".repeat(301)]), 1, "shop"));
        assert!(!is_accepted(1, 1, &one, 257, "shop"));
        let over_tls = json!({ "gateways": [{ "publicKey": key, "tls": ["192.0.2.1:443"] }] });
        assert!(
            received(NETWORK_CONFIG, &json!({ "direct": { id(1): over_tls } }))
                .unwrap()
                .is_err()
        );
        assert!(!is_accepted(1, 1, &one, 1, &"a".repeat(63)));
    }
}
