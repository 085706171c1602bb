//! The two halves of each `NetworkConfig`: what we tell peers, and what they told us.
//!
//! Where both clusters borrow from each other there are two such objects with the same content. Both are written; the one at a
//! provider that answers is read, because it is as fresh as can be.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::DeleteParams,
    core::{DeserializeGuard, ObjectMeta},
    runtime::watcher::Config,
};
use liqo_api::{
    ClusterId, GatewayAddress, NETWORK_CONFIG, NetworkAnnouncement, NetworkConfig, NetworkConfigSpec, NetworkConfigStatus,
    labels, tenant_namespace,
};
use liqo_kit::{
    Cache, Context, Key, PeerConnection, Peers, Queue,
    conditions::namespaced,
    peers,
    put::{marked, put, put_status},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, FIELD_MANAGER, Said,
    decide::{exchange::Outcome, gateways::is_key},
    is_network_config, lock,
};

/// What peers write is looked at once in this time, however often they write.
const PACE: Duration = Duration::from_millis(500);
/// Value of the label for namespaces of tenants.
pub const TENANT: &str = "tenant";

/// A consumer that has a tenant namespace here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The consumer.
    pub consumer: ClusterId,
}

impl Tenant {
    /// Reduces a namespace; none if it is going, or is not what it says.
    #[allow(clippy::needless_pass_by_value)] // The form that a cache wants.
    pub fn of(namespace: Namespace) -> Option<Self> {
        let consumer: ClusterId = namespace.labels().get(labels::CONSUMER_ID)?.parse().ok()?;
        let is_its_own = namespace.name_any() == tenant_namespace(&consumer);
        (is_its_own && namespace.metadata.deletion_timestamp.is_none()).then_some(Self { consumer })
    }
}

/// What stands in all of them.
pub struct Announcements {
    own: ClusterId,
    /// In tenant namespaces here.
    here: Cache<Said>,
    /// In ours at providers.
    there: Mutex<HashMap<ClusterId, Cache<Said>>>,
    queue: Queue<()>,
}

impl Announcements {
    pub fn start(context: &Context, stop: &CancellationToken, queue: Queue<()>) -> Arc<Self> {
        let wake = queue.clone();
        let all: Api<DeserializeGuard<NetworkConfig>> = Api::all(context.client.clone());
        let only = Config::default().fields(&format!("metadata.name={NETWORK_CONFIG}"));
        let here = Cache::watch(all, only, stop.clone(), read, move |_, _, _| wake.add_after((), PACE));
        Arc::new(Self { own: context.cluster_id.clone(), here, there: Mutex::default(), queue })
    }

    pub async fn synced(&self) -> bool {
        self.here.synced().await
    }

    /// Reads what providers say as long as there is a connection.
    pub async fn follow(self: &Arc<Self>, peers: &Peers, stop: CancellationToken) {
        peers.for_each(stop, |connection| self.clone().follow_one(connection)).await;
    }

    async fn follow_one(self: Arc<Self>, connection: Arc<PeerConnection>) {
        let id = connection.cluster_id.clone();
        let stop = connection.ended.child_token();
        let _guard = stop.clone().drop_guard();
        let wake = self.queue.clone();
        let cache = Cache::watch(
            Api::<DeserializeGuard<NetworkConfig>>::namespaced(connection.client.clone(), &connection.tenant_namespace),
            Config::default().fields(&format!("metadata.name={NETWORK_CONFIG}")),
            stop,
            read,
            move |_, _, _| wake.add_after((), PACE),
        );
        let mut health = connection.health.clone();
        let follow = async {
            // Until then what it said over the former connection counts.
            if cache.synced().await {
                lock(&self.there).insert(id.clone(), cache.clone());
                self.queue.add(());
            }
            while health.changed().await.is_ok() {
                self.queue.add(());
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = connection.ended.cancelled() => {}
            () = follow => {}
        }
        // What it said last still stands, unless another connection took over.
        self.queue.add(());
    }

    /// What a peer said last. What a provider says that answers goes before what a consumer left here.
    pub fn of(&self, peers: &Peers, id: &ClusterId) -> Option<Result<NetworkAnnouncement, String>> {
        let there = lock(&self.there).get(id).cloned();
        let there = there
            .and_then(|cache| only(&cache))
            .map(|said| said.as_ref().clone().map(|config| config.status.unwrap_or_default().announcement));
        let here = self.here.get(&Key::new(tenant_namespace(id), NETWORK_CONFIG));
        let here = here.map(|said| said.as_ref().clone().map(|config| config.spec.announcement));
        let is_reachable = peers.get(id).is_some_and(|connection| connection.is_reachable());
        let both = if is_reachable { [there, here] } else { [here, there] };
        let is_empty =
            |said: &Result<NetworkAnnouncement, String>| said.as_ref().is_ok_and(|said| *said == NetworkAnnouncement::default());
        let mut both = both.into_iter().flatten();
        let first = both.next()?;
        if is_empty(&first) { both.next().or(Some(first)) } else { Some(first) }
    }

    /// Tells all peers what they are to know, and those that are to know nothing, nothing. Writes what differs only.
    /// Peers in `unknown` are told nothing new.
    pub async fn tell(&self, context: &Context, outcomes: &BTreeMap<ClusterId, Outcome>, unknown: &[ClusterId]) -> Vec<Error> {
        let mut failures = Vec::new();
        let nothing = NetworkAnnouncement::default();
        let announcement = |id: &ClusterId| outcomes.get(id).map_or(&nothing, |outcome| &outcome.announcement);
        for (key, said) in self.here.all() {
            // A namespace whose name is not of a tenant's form is none.
            let consumer = key.namespace.rsplit('-').next().and_then(|id| id.parse::<ClusterId>().ok());
            let Some(consumer) = consumer.filter(|id| tenant_namespace(id) == key.namespace && is_network_config(&key)) else {
                continue;
            };
            let wanted = announcement(&consumer);
            // Who writes what cannot be read is told nothing: what stands there cannot be read either.
            let Ok(config) = said.as_ref() else { continue };
            let standing = config.status.clone().unwrap_or_default().announcement;
            if standing == *wanted || unknown.contains(&consumer) {
                continue;
            }
            let api: Api<NetworkConfig> = namespaced(&context.client, &key.namespace);
            let status = NetworkConfigStatus { announcement: wanted.clone() };
            let written = put_status(&api, FIELD_MANAGER, NETWORK_CONFIG, &status).await;
            failures.extend(written.err().map(|source| Error::TellConsumer { consumer, source }));
        }
        let is_known = |id: &ClusterId| outcomes.contains_key(id) || unknown.contains(id) || context.peers.get(id).is_some();
        lock(&self.there).retain(|id, _| is_known(id));
        let there: Vec<_> = lock(&self.there).iter().map(|(id, cache)| (id.clone(), cache.clone())).collect();
        let told = there.into_iter().filter(|(id, _)| !unknown.contains(id)).filter_map(|(id, cache)| {
            let connection = context.peers.get(&id).filter(|connection| connection.is_reachable())?;
            let wanted = outcomes.get(&id).map(|outcome| outcome.announcement.clone());
            Some(async move {
                let told = self.tell_provider(&connection, wanted.as_ref(), only(&cache).as_deref()).await;
                told.err().map(|source| Error::TellProvider { provider: id, source })
            })
        });
        failures.extend(join_all(told).await.into_iter().flatten());
        failures
    }

    async fn tell_provider(
        &self,
        connection: &PeerConnection,
        wanted: Option<&NetworkAnnouncement>,
        standing: Option<&Said>,
    ) -> Result<(), peers::PeerError> {
        let api: Api<NetworkConfig> = namespaced(&connection.client, &connection.tenant_namespace);
        let said = standing.map(|said| said.as_ref().ok().map(|config| &config.spec.announcement));
        match (wanted, said) {
            // What stands there and cannot be read is not changed by writing again.
            (None, None) | (Some(_), Some(None)) => Ok(()),
            (None, Some(_)) => peers::call(async { api.delete(NETWORK_CONFIG, &DeleteParams::default()).await.map(drop) }).await,
            (Some(wanted), Some(Some(said))) if said == wanted => Ok(()),
            (Some(wanted), said) => {
                let spec = NetworkConfigSpec { announcement: wanted.clone() };
                let config = marked(NetworkConfig::new(NETWORK_CONFIG, spec), labels::CONSUMER_ID, &self.own);
                peers::call(put(&api, FIELD_MANAGER, &config, said.is_some())).await
            }
        }
    }
}

fn only(cache: &Cache<Said>) -> Option<Arc<Said>> {
    cache.all().into_iter().map(|(_, said)| said).next()
}

/// A peer may write what the schema admits and we cannot read, and its own API server may have another schema: what cannot be used is
/// kept as an error, and a short one.
fn read(config: DeserializeGuard<NetworkConfig>) -> Option<Said> {
    let (metadata, said) = match config.0 {
        Ok(config) => (config.metadata, Ok((config.spec, config.status))),
        Err(invalid) => (invalid.metadata, Err(invalid.error)),
    };
    if metadata.deletion_timestamp.is_some() || metadata.name.as_deref() != Some(NETWORK_CONFIG) {
        return None;
    }
    Some(said.map_err(|error| error.chars().take(LONGEST_ERROR).collect()).and_then(|(spec, status)| {
        let status = status.unwrap_or_default();
        for announcement in [&spec.announcement, &status.announcement] {
            fits(announcement).map_err(str::to_owned)?;
        }
        Ok(NetworkConfig { metadata: ObjectMeta::default(), spec, status: Some(status) })
    }))
}

/// How much of an error is kept, in characters.
const LONGEST_ERROR: usize = 300;

/// Whether an announcement keeps to the bounds of our own schema: what follows from it is to be written here.
fn fits(announcement: &NetworkAnnouncement) -> Result<(), &'static str> {
    let NetworkAnnouncement { exports, transit, views, gateways, .. } = announcement;
    if [exports.len(), transit.len(), views.len()].into_iter().any(|count| count > 1024) {
        return Err("it names more than 1024 prefixes");
    }
    if gateways.len() > 16 || gateways.iter().any(|gateway| gateway.endpoints.len().max(gateway.tls.len()) > 8) {
        return Err("it names more than 16 gateways, or one with more than 8 addresses");
    }
    let is_short = |address: &String| address.chars().count() <= 300;
    let are_short = |gateway: &GatewayAddress| gateway.endpoints.iter().chain(&gateway.tls).all(is_short);
    let has_keys = |gateway: &GatewayAddress| is_key(&gateway.public_key) && gateway.first_key.as_deref().is_none_or(is_key);
    if gateways.iter().all(|gateway| has_keys(gateway) && are_short(gateway)) {
        Ok(())
    } else {
        Err("one of its gateways has no key of 32 bytes, or an address that is too long")
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;
    use serde_json::{Value, json};

    use super::*;

    fn said(name: &str, announcement: &Value) -> Option<Said> {
        let object = json!({ "apiVersion": "net.liqo.io/v1alpha1", "kind": "NetworkConfig", "metadata": { "name": name },
            "spec": { "announcement": announcement } });
        read(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn what_a_peer_says_is_kept_as_far_as_it_can_be_used() {
        let key = BASE64.encode(&[7; 32]);
        assert!(
            said(NETWORK_CONFIG, &json!({ "gateways": [{ "publicKey": key, "endpoints": ["192.0.2.1:1"] }] })).unwrap().is_ok()
        );
        assert_eq!(said("another", &json!({})), None);
        let endpoints: Vec<String> = (0..9).map(|port| format!("192.0.2.1:{port}")).collect();
        for refused in [
            json!({ "exports": ["x"] }),
            json!({ "mtu": "1".repeat(100_000) }),
            json!({ "gateways": [{ "publicKey": "short" }] }),
            json!({ "gateways": [{ "publicKey": key, "endpoints": endpoints }] }),
            json!({ "gateways": [{ "publicKey": key, "tls": endpoints }] }),
            json!({ "gateways": [{ "publicKey": key, "tls": ["a".repeat(301)] }] }),
            json!({ "exports": (0..1025).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect::<Vec<_>>() }),
        ] {
            assert!(said(NETWORK_CONFIG, &refused).unwrap().unwrap_err().len() <= LONGEST_ERROR);
        }
    }
}
