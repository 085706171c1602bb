//! Asks the resource plugins that policies name: once for each consumer, and again when a plugin
//! reports a change. Tells plugins when a peering has ended.
//!
//! A `ConfigMap` records which plugins were asked about which consumer. So a plugin also hears of a
//! peering that ended while the plugin or this process was down.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use liqo_api::{ClusterId, PluginGeneration, PluginSource, labels};
use liqo_controller_runtime::{
    Context, Key, Queue, Requeue, watch,
    writes::{StepContext as _, StepError, unless_gone},
};
use liqo_resource_plugin::{
    AddressError, Change, ClientTls, Generation, Pem, PluginClient, PluginError, Settings,
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::decide::{
    plugin::{NamedPools, PluginTask, named_pools, next_task, pause_before_call, record_source},
    snapshot::PluginAnswer,
};

/// The `ConfigMap` in Liqo's namespace: cluster IDs, and the plugins that were asked about each.
const RECORD: &str = "liqo-plugin-clusters";
/// Number of consumers that plugins are asked about at the same time.
const CONCURRENCY: usize = 8;
/// Interval between two calls of a plugin that reports no change. It may have stopped to report.
const POLL_INTERVAL: Duration = Duration::from_mins(5);
/// Delay before the record is read again after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of attempts to tell a plugin about the end of a peering if no policy names the
/// plugin any more.
const MAX_REMOVE_ATTEMPTS: u32 = 10;

/// A call to a plugin failed, or one of its inputs is missing.
#[derive(Debug, thiserror::Error)]
pub enum PluginCallError {
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("resource plugin {plugin}, asked about cluster {cluster}: {problem}")]
    Pools {
        plugin: String,
        cluster: ClusterId,
        problem: String,
    },
    #[error("the TLS material of resource plugin {plugin}: {source}")]
    Secret { plugin: String, source: StepError },
    #[error("Secret {name} for resource plugin {plugin} has no {key}")]
    Key {
        name: String,
        plugin: String,
        key: &'static str,
    },
    #[error(transparent)]
    Record(#[from] StepError),
}

pub struct Plugins {
    context: Context,
    queue: Queue<ClusterId>,
    /// Triggers a new decision on all offers.
    offers_queue: Queue<()>,
    /// The consumers, each with the plugin that its policy names; `None` until the first decision.
    wanted: watch::Sender<Option<WantedPlugins>>,
    state: Mutex<PluginsState>,
    /// All plugins that policies name, including policies that no consumer uses.
    sources: Mutex<Vec<PluginSource>>,
    /// The content of the `ConfigMap`; `None` until it was read.
    record: tokio::sync::Mutex<Option<PluginRecord>>,
}

/// All consumers with a request. One without a plugin is still a consumer: its peering has not
/// ended.
type WantedPlugins = BTreeMap<ClusterId, Option<PluginSource>>;
/// The plugins that were ever asked about a cluster. Each of them hears of the end of its peering.
type PluginRecord = BTreeMap<ClusterId, Vec<PluginSource>>;

#[derive(Default)]
struct PluginsState {
    clients: Vec<OpenPluginClient>,
    answers: HashMap<ClusterId, (PluginSource, PluginAnswer)>,
    last_asked: HashMap<ClusterId, Instant>,
    remove_attempts: HashMap<ClusterId, u32>,
}

/// The connection to one plugin.
struct OpenPluginClient {
    source: PluginSource,
    tls: Option<TlsMaterial>,
    connection: PluginClient,
    _changes: DropGuard,
}

/// The content of the Secret for TLS, as PEM.
#[derive(Clone, PartialEq, Eq)]
struct TlsMaterial {
    authority: Vec<u8>,
    /// Certificate and key.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Plugins {
    pub fn new(context: Context, offers_queue: Queue<()>) -> Arc<Self> {
        let (wanted, _) = watch::channel(None);
        let (state, sources, record) = (
            Mutex::default(),
            Mutex::default(),
            tokio::sync::Mutex::new(None),
        );
        Arc::new(Self {
            context,
            queue: Queue::new(),
            offers_queue,
            wanted,
            state,
            sources,
            record,
        })
    }

    /// Sets the consumers with the plugin of each, and all plugins that policies name.
    pub fn set_wanted(&self, wanted: &WantedPlugins, sources: Vec<PluginSource>) {
        *self.sources.lock().unwrap_or_else(PoisonError::into_inner) = sources;
        self.wanted.send_if_modified(|before| {
            if before.as_ref() == Some(wanted) {
                return false;
            }
            let old = before.take().unwrap_or_default();
            for id in old
                .keys()
                .chain(wanted.keys())
                .filter(|id| old.get(*id) != wanted.get(*id))
            {
                self.queue.add(id.clone());
            }
            *before = Some(wanted.clone());
            true
        });
    }

    /// The last answers of the plugins that are wanted now.
    pub fn answers(&self) -> HashMap<ClusterId, PluginAnswer> {
        let wanted = self.wanted.borrow();
        let state = self.lock_state();
        let answers = state.answers.iter().filter(|(id, (source, _))| {
            wanted.as_ref().and_then(|all| all.get(*id)?.as_ref()) == Some(source)
        });
        answers
            .map(|(id, (_, answer))| (id.clone(), answer.clone()))
            .collect()
    }

    /// Calls plugins until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let plugins = self.clone();
        let work = self
            .queue
            .run("resource-plugins", CONCURRENCY, stop.clone(), move |id| {
                let plugins = plugins.clone();
                async move { plugins.reconcile(&id).await }
            });
        tokio::join!(work, self.enqueue_recorded(stop));
    }

    /// Enqueues every recorded cluster once, as soon as the wanted ones are known.
    async fn enqueue_recorded(&self, stop: CancellationToken) {
        let mut wanted = self.wanted.subscribe();
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            known = wanted.wait_for(Option::is_some) => if known.is_err() { return },
        }
        while !stop.is_cancelled() {
            match self.read_record().await {
                Ok(record) => return record.into_keys().for_each(|id| self.queue.add(id)),
                Err(error) => {
                    tracing::warn!(%error, "trying again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    async fn reconcile(self: &Arc<Self>, id: &ClusterId) -> Result<Requeue, PluginCallError> {
        let wanted = self
            .wanted
            .borrow()
            .as_ref()
            .map(|all| all.get(id).cloned());
        let Some(wanted) = wanted else {
            return Ok(Requeue::OnChange);
        };
        let recorded = self.read_record().await?.remove(id).unwrap_or_default();
        let mut outcome = Ok(());
        match next_task(wanted.as_ref(), &recorded) {
            PluginTask::Ask(source) => {
                if recorded.as_slice() != std::slice::from_ref(source) {
                    self.write_record(id, |recorded| record_source(recorded, source))
                        .await?;
                    self.prune_clients().await;
                }
                self.read_pools(id, source).await?;
                return Ok(Requeue::After(POLL_INTERVAL));
            }
            PluginTask::Nothing => {}
            PluginTask::Remove(plugins) => {
                for plugin in plugins {
                    let removed = self.remove(id, plugin).await;
                    outcome = outcome.and(removed);
                }
            }
        }
        {
            let mut state = self.lock_state();
            state.answers.remove(id);
            state.last_asked.remove(id);
        }
        self.prune_clients().await;
        outcome.map(|()| Requeue::OnChange)
    }

    async fn read_pools(
        self: &Arc<Self>,
        id: &ClusterId,
        source: &PluginSource,
    ) -> Result<(), PluginCallError> {
        self.lock_state()
            .last_asked
            .insert(id.clone(), Instant::now());
        let pools = self.ask_for_pools(id, source).await;
        let mut state = self.lock_state();
        let old = state.answers.get(id).filter(|(asked, _)| asked == source);
        let (answer, outcome) = match pools {
            Ok(NamedPools {
                amounts,
                prices,
                hops,
            }) => (
                PluginAnswer {
                    pools: Some(amounts),
                    prices,
                    hops,
                    problem: None,
                },
                Ok(()),
            ),
            Err(error) => {
                let last = old.map(|(_, answer)| answer.clone()).unwrap_or_default();
                (
                    PluginAnswer {
                        problem: Some(error.to_string()),
                        ..last
                    },
                    Err(error),
                )
            }
        };
        let new = (source.clone(), answer);
        if state.answers.get(id) != Some(&new) {
            state.answers.insert(id.clone(), new);
            self.offers_queue.add(());
        }
        outcome
    }

    async fn ask_for_pools(
        self: &Arc<Self>,
        id: &ClusterId,
        source: &PluginSource,
    ) -> Result<NamedPools, PluginCallError> {
        let client = self.client_for(source).await?;
        let answer = client.read(id.as_str()).await?;
        let own_name = self.context.config().spec.cluster_name.clone();
        named_pools(answer, &own_name).map_err(|problem| PluginCallError::Pools {
            plugin: source.address.clone(),
            cluster: id.clone(),
            problem,
        })
    }

    /// Tells a plugin that a peering has ended, and removes the plugin from the record.
    async fn remove(
        self: &Arc<Self>,
        id: &ClusterId,
        source: &PluginSource,
    ) -> Result<(), PluginCallError> {
        let removed = match self.client_for(source).await {
            Ok(client) => client
                .remove(id.as_str())
                .await
                .map_err(PluginCallError::from),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            let is_named = self
                .sources
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(source);
            let attempts = {
                let mut state = self.lock_state();
                let attempts = state.remove_attempts.entry(id.clone()).or_default();
                *attempts += 1;
                *attempts
            };
            if is_named || attempts < MAX_REMOVE_ATTEMPTS {
                return Err(error);
            }
            tracing::warn!(%error, cluster = %id, "gives up telling a resource plugin that the peering ended: no policy names it, and it does not answer");
        } else {
            tracing::info!(plugin = source.address, cluster = %id, "told the resource plugin that the peering ended");
        }
        self.lock_state().remove_attempts.remove(id);
        self.write_record(id, |recorded| recorded.retain(|other| other != source))
            .await
    }

    /// Closes the connections to plugins that are neither asked nor waiting to hear of the end of a
    /// peering.
    async fn prune_clients(&self) {
        let record = self.record.lock().await;
        let wanted = self.wanted.borrow();
        let asked = wanted.iter().flat_map(BTreeMap::values).flatten();
        let ended = record.iter().flatten().filter(|(id, _)| {
            wanted
                .as_ref()
                .is_some_and(|wanted| !wanted.contains_key(*id))
        });
        let to_tell = ended.flat_map(|(_, plugins)| plugins);
        let needed: Vec<&PluginSource> = asked.chain(to_tell).collect();
        self.lock_state()
            .clients
            .retain(|client| needed.contains(&&client.source));
    }

    /// The connection to a plugin. Opens a new one if the TLS material changed.
    async fn client_for(
        self: &Arc<Self>,
        source: &PluginSource,
    ) -> Result<PluginClient, PluginCallError> {
        let tls_material = self.tls_material(source).await?;
        let mut state = self.lock_state();
        if let Some(found) = state
            .clients
            .iter()
            .find(|client| client.source == *source && client.tls == tls_material)
        {
            return Ok(found.connection.clone());
        }
        let tls = tls_material.clone().map(|material| ClientTls {
            authority: Pem::Bytes(material.authority),
            identity: material
                .identity
                .map(|(certificate, key)| (Pem::Bytes(certificate), Pem::Bytes(key))),
            server_name: source.tls.as_ref().and_then(|tls| tls.server_name.clone()),
        });
        let generation = match source.generation {
            PluginGeneration::P1 => Generation::P1,
            PluginGeneration::P2 => Generation::P2,
            PluginGeneration::P3 => Generation::P3,
        };
        let client = PluginClient::new(Settings {
            generation,
            tls,
            ..Settings::new(&source.address)
        })?;
        state.clients.retain(|client| client.source != *source);
        let changes = self.watch_changes(source.clone(), &client);
        state.clients.push(OpenPluginClient {
            source: source.clone(),
            tls: tls_material,
            connection: client.clone(),
            _changes: changes,
        });
        Ok(client)
    }

    /// Enqueues the consumers that a plugin reports, and all of its consumers when the plugin
    /// connects or disconnects.
    fn watch_changes(self: &Arc<Self>, source: PluginSource, client: &PluginClient) -> DropGuard {
        let stop = self.context.stop.child_token();
        let (mut changes, mut state) = (client.changes(), client.subscription_state());
        let (plugins, ended) = (Arc::downgrade(self), stop.clone());
        tokio::spawn(async move {
            loop {
                let change = tokio::select! {
                    biased;
                    () = ended.cancelled() => return,
                    // Before what the plugin reports, which may be much.
                    connection = state.changed() => connection.ok().map(|()| Change::All),
                    change = changes.next() => change,
                };
                let (Some(change), Some(plugins)) = (change, plugins.upgrade()) else {
                    return;
                };
                plugins.enqueue_changed(&source, &change);
            }
        });
        stop.drop_guard()
    }

    fn enqueue_changed(&self, source: &PluginSource, change: &Change) {
        let wanted = self.wanted.borrow();
        let mut consumers = wanted
            .iter()
            .flatten()
            .filter(|(_, other)| other.as_ref() == Some(source))
            .map(|(id, _)| id);
        match change {
            Change::All => consumers.for_each(|id| self.enqueue_consumer(id)),
            Change::Cluster(named) => match consumers.find(|id| id.as_str() == named) {
                Some(id) => self.enqueue_consumer(id),
                None => {
                    tracing::debug!(
                        plugin = source.address,
                        cluster = named,
                        "the resource plugin reports a change for a cluster that it is not asked about"
                    );
                }
            },
        }
    }

    /// Asks about a consumer at once, unless the plugin was asked just now.
    fn enqueue_consumer(&self, id: &ClusterId) {
        let pause = pause_before_call(
            self.lock_state().last_asked.get(id).copied(),
            Instant::now(),
        );
        self.queue.add_after(id.clone(), pause);
    }

    async fn tls_material(
        &self,
        source: &PluginSource,
    ) -> Result<Option<TlsMaterial>, PluginCallError> {
        let Some(tls) = &source.tls else {
            return Ok(None);
        };
        let (name, plugin) = (&tls.secret_name, &source.address);
        let secrets: Api<Secret> =
            Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let secret =
            secrets
                .get(name)
                .await
                .step("read", "Secret", Key::new(&self.context.namespace, name));
        let secret = secret.map_err(|source| PluginCallError::Secret {
            plugin: plugin.clone(),
            source,
        })?;
        let mut data = secret.data.unwrap_or_default();
        let lacks = |key| PluginCallError::Key {
            name: name.clone(),
            plugin: plugin.clone(),
            key,
        };
        let authority = data.remove("ca.crt").ok_or_else(|| lacks("ca.crt"))?.0;
        let identity = match (data.remove("tls.crt"), data.remove("tls.key")) {
            (Some(certificate), Some(key)) => Some((certificate.0, key.0)),
            (None, None) => None,
            (Some(_), None) => return Err(lacks("tls.key")),
            (None, Some(_)) => return Err(lacks("tls.crt")),
        };
        Ok(Some(TlsMaterial {
            authority,
            identity,
        }))
    }

    /// The content of the record. Ignores entries that cannot be parsed.
    async fn read_record(&self) -> Result<PluginRecord, PluginCallError> {
        let mut record = self.record.lock().await;
        if let Some(record) = &*record {
            return Ok(record.clone());
        }
        let maps: Api<ConfigMap> =
            Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let found = maps
            .get_opt(RECORD)
            .await
            .step("read", "ConfigMap", self.record_key())?;
        let entries = found.and_then(|map| map.data).unwrap_or_default();
        let all: PluginRecord = entries
            .into_iter()
            .filter_map(|(id, source)| {
                Some((id.parse().ok()?, serde_json::from_str(&source).ok()?))
            })
            .collect();
        *record = Some(all.clone());
        Ok(all)
    }

    async fn write_record(
        &self,
        id: &ClusterId,
        change: impl FnOnce(&mut Vec<PluginSource>),
    ) -> Result<(), PluginCallError> {
        let mut record = self.record.lock().await;
        let before = record
            .as_ref()
            .and_then(|record| record.get(id))
            .cloned()
            .unwrap_or_default();
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        let maps: Api<ConfigMap> =
            Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let value = serde_json::to_string(&after)
            .ok()
            .filter(|_| !after.is_empty());
        let patch = Patch::Merge(json!({ "data": { id.as_str(): value } }));
        let patched = unless_gone(maps.patch(RECORD, &PatchParams::default(), &patch).await);
        if patched
            .step("change", "ConfigMap", self.record_key())?
            .is_none()
        {
            let managed = [(labels::MANAGED.to_owned(), "true".to_owned())].into();
            let metadata = ObjectMeta {
                name: Some(RECORD.to_owned()),
                labels: Some(managed),
                ..ObjectMeta::default()
            };
            let data = value.map(|value| [(id.to_string(), value)].into());
            let map = ConfigMap {
                metadata,
                data,
                ..ConfigMap::default()
            };
            maps.create(&PostParams::default(), &map).await.step(
                "create",
                "ConfigMap",
                self.record_key(),
            )?;
        }
        if let Some(record) = &mut *record {
            if after.is_empty() {
                record.remove(id);
            } else {
                record.insert(id.clone(), after);
            }
        }
        Ok(())
    }

    fn record_key(&self) -> Key {
        Key::new(&self.context.namespace, RECORD)
    }

    fn lock_state(&self) -> MutexGuard<'_, PluginsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
