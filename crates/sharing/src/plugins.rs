//! The resource plugins that policies name: asked for each consumer, again when they say so, and told when one is gone.
//!
//! Which consumers a plugin was asked about is recorded in a `ConfigMap`, so that a plugin also hears of a peering that ended
//! while nobody was there to tell it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use liqo_api::{ClusterId, PluginGeneration, PluginSource, labels};
use liqo_kit::{Context, Next, Queue};
use liqo_resource_plugin::{AddressError, Change, Generation, Pem, PluginClient, PluginError, Settings, Tls};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::decide::{
    picture::Reading,
    plugin::{Task, pause, pools, remember, task},
};

/// The `ConfigMap` in Liqo's namespace: cluster IDs, and the plugins that were asked about each.
const RECORD: &str = "liqo-plugin-clusters";
/// So many consumers are asked about at the same time.
const CONCURRENCY: usize = 8;
/// How often a plugin is asked although it says nothing: it may have lost its tongue.
const REREAD: Duration = Duration::from_secs(300);
/// A plugin that no policy names any more is told so many times of a peering that ended.
const FAREWELLS: u32 = 10;

/// A plugin could not be asked, or told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its answer cannot be had.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The policy's address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// What it offers cannot be.
    #[error("resource plugin {plugin}, asked about cluster {cluster}: {problem}")]
    Pools {
        /// Its address.
        plugin: String,
        /// The cluster in question.
        cluster: ClusterId,
        /// What is wrong.
        problem: String,
    },
    /// The Secret for TLS.
    #[error("reading Secret {name} with the TLS material for resource plugin {plugin}: {source}")]
    Secret {
        /// The Secret.
        name: String,
        /// The plugin's address.
        plugin: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// The Secret for TLS lacks something.
    #[error("Secret {name} for resource plugin {plugin} has no {key}")]
    Key {
        /// The Secret.
        name: String,
        /// The plugin's address.
        plugin: String,
        /// What it should have.
        key: &'static str,
    },
    /// The record of which clusters plugins were asked about.
    #[error("{step} ConfigMap {RECORD}: {source}")]
    Record {
        /// What was tried.
        step: &'static str,
        /// What the API server said.
        source: kube::Error,
    },
}

/// All plugins.
pub struct Plugins {
    context: Context,
    /// Consumers to look at.
    queue: Queue<ClusterId>,
    /// To be told of what plugins say.
    recompute: Queue<()>,
    /// The consumers, and the plugin of each that has one; nothing before that is known.
    wanted: watch::Sender<Option<Wanted>>,
    state: Mutex<State>,
    /// The plugins that policies name, also those that nobody is asking for now.
    named: Mutex<Vec<PluginSource>>,
    /// The plugins that were asked about each cluster, as it is recorded; nothing before it was read.
    record: tokio::sync::Mutex<Option<Record>>,
}

/// Who is in it asks for something; that does not end when a policy has another source for it.
type Wanted = BTreeMap<ClusterId, Option<PluginSource>>;
/// The plugins that know of a cluster: the one that is asked, and those that were before. All are told when the peering ends.
type Record = BTreeMap<ClusterId, Vec<PluginSource>>;

#[derive(Default)]
struct State {
    clients: Vec<Client>,
    readings: HashMap<ClusterId, (PluginSource, Reading)>,
    /// When a plugin was asked about each last.
    asked: HashMap<ClusterId, Instant>,
    farewells: HashMap<ClusterId, u32>,
}

/// The connection to one plugin.
struct Client {
    source: PluginSource,
    material: Option<Material>,
    connection: PluginClient,
    _follows: DropGuard,
}

/// What the Secret for TLS holds.
#[derive(Clone, PartialEq, Eq)]
struct Material {
    authority: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Plugins {
    /// No plugin is known yet.
    pub fn new(context: Context, recompute: Queue<()>) -> Arc<Self> {
        let (wanted, _) = watch::channel(None);
        let (state, named, record) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::new(None));
        Arc::new(Self { context, queue: Queue::new(), recompute, wanted, state, named, record })
    }

    /// Says which consumers there are and which plugin is to be asked about each, from now on, and which plugins policies name.
    pub fn want(&self, wanted: &Wanted, named: Vec<PluginSource>) {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = named;
        self.wanted.send_if_modified(|before| {
            if before.as_ref() == Some(wanted) {
                return false;
            }
            let known = before.take().unwrap_or_default();
            for id in known.keys().chain(wanted.keys()).filter(|id| known.get(*id) != wanted.get(*id)) {
                self.queue.add(id.clone());
            }
            *before = Some(wanted.clone());
            true
        });
    }

    /// What plugins said last.
    pub fn readings(&self) -> HashMap<ClusterId, Reading> {
        let wanted = self.wanted.borrow();
        let current =
            |id: &ClusterId, source: &PluginSource| wanted.as_ref().and_then(|all| all.get(id)?.as_ref()) == Some(source);
        let state = self.state();
        let readings = state.readings.iter().filter(|(id, (source, _))| current(id, source));
        readings.map(|(id, (_, reading))| (id.clone(), reading.clone())).collect()
    }

    /// Asks and tells until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let plugins = self.clone();
        let work = self.queue.run("resource-plugins", CONCURRENCY, stop.clone(), move |id| {
            let plugins = plugins.clone();
            async move { plugins.reconcile(&id).await }
        });
        tokio::join!(work, self.remember(stop));
    }

    /// Looks at every recorded cluster once, when it is known which ones are wanted.
    async fn remember(&self, stop: CancellationToken) {
        let mut wanted = self.wanted.subscribe();
        tokio::select! {
            () = stop.cancelled() => return,
            known = wanted.wait_for(Option::is_some) => if known.is_err() { return },
        }
        while !stop.is_cancelled() {
            match self.recorded().await {
                Ok(record) => return record.into_keys().for_each(|id| self.queue.add(id)),
                Err(error) => {
                    tracing::warn!(%error, "trying again");
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
            }
        }
    }

    async fn reconcile(self: &Arc<Self>, id: &ClusterId) -> Result<Next, Error> {
        let wanted = self.wanted.borrow().as_ref().map(|all| all.get(id).cloned());
        let Some(wanted) = wanted else { return Ok(Next::OnChange) };
        let known = self.recorded().await?.remove(id).unwrap_or_default();
        let mut farewells = Ok(());
        match task(wanted.as_ref(), &known) {
            Task::Ask(source) => {
                if known.as_slice() != std::slice::from_ref(source) {
                    self.write_record(id, |known| remember(known, source)).await?;
                    self.prune().await;
                }
                self.read(id, source).await?;
                return Ok(Next::After(REREAD));
            }
            Task::Nothing => {}
            Task::Tell(plugins) => {
                for plugin in plugins {
                    let said = self.say_farewell(id, plugin).await;
                    farewells = farewells.and(said);
                }
            }
        }
        {
            let mut state = self.state();
            state.readings.remove(id);
            state.asked.remove(id);
        }
        self.prune().await;
        farewells.map(|()| Next::OnChange)
    }

    async fn read(self: &Arc<Self>, id: &ClusterId, source: &PluginSource) -> Result<(), Error> {
        self.state().asked.insert(id.clone(), Instant::now());
        let answer = self.ask(id, source).await;
        let mut state = self.state();
        let known = state.readings.get(id).filter(|(of, _)| of == source).map(|(_, reading)| reading.clone());
        let before = known.and_then(|reading| reading.pools);
        let (reading, outcome) = match answer {
            Ok(pools) => (Reading { pools: Some(pools), problem: None }, Ok(())),
            Err(error) => (Reading { pools: before, problem: Some(error.to_string()) }, Err(error)),
        };
        let new = Some((source.clone(), reading));
        if state.readings.get(id) != new.as_ref() {
            state.readings.extend(new.map(|new| (id.clone(), new)));
            self.recompute.add(());
        }
        outcome
    }

    async fn ask(
        self: &Arc<Self>,
        id: &ClusterId,
        source: &PluginSource,
    ) -> Result<BTreeMap<String, liqo_api::ResourceList>, Error> {
        let client = self.client(source).await?;
        let answer = client.read(id.as_str()).await?;
        let own_name = self.context.config().spec.cluster_name.clone();
        pools(answer, &own_name).map_err(|problem| Error::Pools { plugin: source.address.clone(), cluster: id.clone(), problem })
    }

    /// Tells a plugin that a peering has ended, and forgets it.
    async fn say_farewell(self: &Arc<Self>, id: &ClusterId, source: &PluginSource) -> Result<(), Error> {
        let told = match self.client(source).await {
            Ok(client) => client.remove(id.as_str()).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            let named = self.named.lock().unwrap_or_else(PoisonError::into_inner).contains(source);
            let tries = {
                let mut state = self.state();
                let tries = state.farewells.entry(id.clone()).or_default();
                *tries += 1;
                *tries
            };
            if named || tries < FAREWELLS {
                return Err(error);
            }
            tracing::warn!(%error, cluster = %id, "no policy names this plugin any more, and it does not answer: giving up");
        } else {
            tracing::info!(plugin = source.address, cluster = %id, "told the resource plugin that the peering ended");
        }
        self.state().farewells.remove(id);
        self.write_record(id, |known| known.retain(|other| other != source)).await
    }

    /// Ends the connections to plugins that nobody needs any more: who is neither asked, nor still to be told of an end.
    async fn prune(&self) {
        let record = self.record.lock().await;
        let wanted = self.wanted.borrow();
        let ended = |id: &ClusterId| wanted.as_ref().is_some_and(|wanted| !wanted.contains_key(id));
        let asked = wanted.iter().flat_map(BTreeMap::values).flatten();
        let told = record.iter().flatten().filter(|(id, _)| ended(id)).flat_map(|(_, plugins)| plugins);
        let needed: Vec<&PluginSource> = asked.chain(told).collect();
        let needed = |source: &PluginSource| needed.contains(&source);
        self.state().clients.retain(|client| needed(&client.source));
    }

    /// The connection to a plugin; a new one if the TLS material is another.
    async fn client(self: &Arc<Self>, source: &PluginSource) -> Result<PluginClient, Error> {
        let material = self.material(source).await?;
        let mut state = self.state();
        let fits = |client: &&Client| client.source == *source && client.material == material;
        if let Some(found) = state.clients.iter().find(fits) {
            return Ok(found.connection.clone());
        }
        let tls = material.clone().map(|material| Tls {
            authority: Pem::Bytes(material.authority),
            identity: material.identity.map(|(certificate, key)| (Pem::Bytes(certificate), Pem::Bytes(key))),
            server_name: source.tls.as_ref().and_then(|tls| tls.server_name.clone()),
        });
        let generation = match source.generation {
            PluginGeneration::P1 => Generation::P1,
            PluginGeneration::P2 => Generation::P2,
            PluginGeneration::P3 => Generation::P3,
        };
        let client = PluginClient::new(Settings { generation, tls, ..Settings::new(&source.address) })?;
        state.clients.retain(|client| client.source != *source);
        let follows = self.follow(source.clone(), &client);
        state.clients.push(Client { source: source.clone(), material, connection: client.clone(), _follows: follows });
        Ok(client)
    }

    /// Asks again about the consumers that a plugin names, and about all of its consumers when it comes or goes.
    fn follow(self: &Arc<Self>, source: PluginSource, client: &PluginClient) -> DropGuard {
        let stop = self.context.stop.child_token();
        let (mut news, mut state) = (client.changes(), client.state());
        let (plugins, ended) = (Arc::downgrade(self), stop.clone());
        tokio::spawn(async move {
            loop {
                let change = tokio::select! {
                    () = ended.cancelled() => return,
                    change = news.next() => change,
                    changed = state.changed() => changed.ok().map(|()| Change::All),
                };
                let (Some(change), Some(plugins)) = (change, plugins.upgrade()) else { return };
                plugins.changed(&source, &change);
            }
        });
        stop.drop_guard()
    }

    fn changed(&self, source: &PluginSource, change: &Change) {
        let wanted = self.wanted.borrow();
        let ours = wanted.iter().flatten().filter(|(_, other)| other.as_ref() == Some(source)).map(|(id, _)| id);
        match change {
            Change::All => ours.for_each(|id| self.look_again(id)),
            Change::Cluster(named) => match ours.into_iter().find(|id| id.as_str() == named) {
                Some(id) => self.look_again(id),
                None => {
                    tracing::debug!(
                        plugin = source.address,
                        cluster = named,
                        "the resource plugin names a cluster that it is not asked about"
                    );
                }
            },
        }
    }

    /// At once, unless the plugin was asked just now.
    fn look_again(&self, id: &ClusterId) {
        let pause = pause(self.state().asked.get(id).copied(), Instant::now());
        self.queue.add_after(id.clone(), pause);
    }

    async fn material(&self, source: &PluginSource) -> Result<Option<Material>, Error> {
        let Some(tls) = &source.tls else { return Ok(None) };
        let (name, plugin) = (tls.secret_name.clone(), source.address.clone());
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let failed = |source| Error::Secret { name: name.clone(), plugin: plugin.clone(), source };
        let mut data = secrets.get(&name).await.map_err(failed)?.data.unwrap_or_default();
        let mut take = |key: &'static str| data.remove(key).map(|bytes| bytes.0);
        let lacks = |key| Error::Key { name: name.clone(), plugin: plugin.clone(), key };
        let authority = take("ca.crt").ok_or_else(|| lacks("ca.crt"))?;
        let identity = match (take("tls.crt"), take("tls.key")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(lacks("tls.key")),
            (None, Some(_)) => return Err(lacks("tls.crt")),
        };
        Ok(Some(Material { authority, identity }))
    }

    /// Which plugin was asked about which cluster. Entries that cannot be read are of no use to anybody.
    async fn recorded(&self) -> Result<Record, Error> {
        let mut record = self.record.lock().await;
        if let Some(record) = &*record {
            return Ok(record.clone());
        }
        let maps: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let found = maps.get_opt(RECORD).await.map_err(|source| Error::Record { step: "reading", source })?;
        let entries = found.and_then(|map| map.data).unwrap_or_default();
        let read = |(id, source): (String, String)| Some((id.parse().ok()?, serde_json::from_str(&source).ok()?));
        let all: Record = entries.into_iter().filter_map(read).collect();
        *record = Some(all.clone());
        Ok(all)
    }

    async fn write_record(&self, id: &ClusterId, change: impl FnOnce(&mut Vec<PluginSource>)) -> Result<(), Error> {
        let mut record = self.record.lock().await;
        let before = record.as_ref().and_then(|record| record.get(id)).cloned().unwrap_or_default();
        let mut known = before.clone();
        change(&mut known);
        if known == before {
            return Ok(());
        }
        let maps: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let value = serde_json::to_string(&known).ok().filter(|_| !known.is_empty());
        let patch = Patch::Merge(json!({ "data": { id.as_str(): value } }));
        match maps.patch(RECORD, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                let managed = [(labels::MANAGED.to_owned(), "true".to_owned())].into();
                let metadata = ObjectMeta { name: Some(RECORD.to_owned()), labels: Some(managed), ..ObjectMeta::default() };
                let data = value.map(|value| [(id.to_string(), value)].into());
                let map = ConfigMap { metadata, data, ..ConfigMap::default() };
                let made = maps.create(&PostParams::default(), &map).await;
                made.map_err(|source| Error::Record { step: "creating", source })?;
            }
            patched => drop(patched.map_err(|source| Error::Record { step: "changing", source })?),
        }
        if let Some(record) = &mut *record {
            if known.is_empty() {
                record.remove(id);
            } else {
                record.insert(id.clone(), known);
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
