//! Discovery on the local network. One node of the cluster announces it by DNS-SD and listens for
//! others. It writes what it hears into a `ConfigMap`, from which the manager creates
//! `ForeignCluster`s.

pub mod service;
mod socket;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_api::{CLUSTER_CONFIG, CLUSTERS_KEY, Key, LAN_CLUSTERS};
use liqo_discovery::{
    announcement::Announcement, responder::OwnAnnouncement, write_pace::WritePace,
    written_list::WrittenList,
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{decide::lan::is_announcer, gateway_leases::GatewayLeases, watches::NodeWatches};
use service::LanConfig;

/// The versions of the protocol that this program's version of Liqo speaks: those of the manager.
const PROTOCOL: [u32; 2] = [1, 1];
/// Interval between two reads of the configuration and the gateways in use.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A node that has listened for less than this has not heard everybody: it removes nobody from the
/// list.
const LISTEN_FIRST: Duration = Duration::from_secs(6);

pub struct LanDiscoverer {
    /// The `ConfigMap`s of Liqo's namespace.
    pub api: Api<ConfigMap>,
    pub node: String,
    pub watches: NodeWatches,
    pub gateways: Arc<GatewayLeases>,
    pub stop: CancellationToken,
}

impl LanDiscoverer {
    /// Runs until `stop`.
    pub async fn run(self) {
        let (configure, config) = watch::channel(None);
        let (publish, found) = watch::channel(None);
        tokio::join!(
            service::run_service(config, publish, self.stop.clone()),
            self.follow_found(configure, found)
        );
    }

    async fn follow_found(
        &self,
        configure: watch::Sender<Option<LanConfig>>,
        mut found: watch::Receiver<Option<Vec<Announcement>>>,
    ) {
        let mut pace = WritePace::default();
        let mut written = WrittenList::default();
        let mut listens_since = Instant::now();
        loop {
            let wanted = self.config();
            let is_new = configure.send_if_modified(|current| {
                let changed = *current != wanted;
                current.clone_from(&wanted);
                changed
            });
            let now = Instant::now();
            let clusters = found.borrow_and_update().clone();
            if is_new || clusters.is_none() {
                listens_since = now;
            }
            match clusters {
                Some(clusters) if wanted.is_some() && !is_new => {
                    let list = json!(clusters).to_string();
                    if written.is_due(&list, now) && pace.next(now).is_none() {
                        let may_remove = now.duration_since(listens_since) >= LISTEN_FIRST;
                        let outcome = self.write_list(&clusters, &list, may_remove).await;
                        // Also if it fails, so that it is logged rarely.
                        if outcome != ListWriteOutcome::AlreadyThere {
                            pace.record_write(now);
                        }
                        match outcome {
                            ListWriteOutcome::AlreadyThere | ListWriteOutcome::Written => {
                                written.is_stored(list, now);
                            }
                            ListWriteOutcome::NotWritten => written.forget_stored(),
                        }
                    }
                }
                _ => written.forget_stored(),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// The configuration of the announcements, if this node makes them.
    fn config(&self) -> Option<LanConfig> {
        let config = self.watches.config.get(&Key::new("", CLUSTER_CONFIG))?;
        let (lan, identity) = (&config.discovery.lan, config.identity.as_ref()?);
        if !lan.enabled {
            return None;
        }
        let settings = &config.settings;
        // With a network, the gateways decide.
        let nodes = if settings.enabled {
            BTreeMap::new()
        } else {
            let all = self.watches.nodes.all().into_iter();
            all.map(|(key, node)| (key.name, node)).collect()
        };
        if !is_announcer(
            &self.node,
            settings.enabled,
            &self.gateways.in_use(),
            &settings.gateways,
            &nodes,
        ) {
            return None;
        }
        let own = identity.auth_url.as_deref().and_then(|url| {
            OwnAnnouncement::new(
                identity.cluster_id.clone(),
                identity.cluster_name.clone(),
                PROTOCOL,
                url,
            )
        });
        let pods = config
            .ranges
            .as_ref()
            .map(|ranges| ranges.pods.clone())
            .unwrap_or_default();
        Some(LanConfig {
            own_id: identity.cluster_id.clone(),
            own,
            interfaces: lan.interfaces.clone(),
            pods,
        })
    }

    /// Writes the list, unless it is there already.
    async fn write_list(
        &self,
        clusters: &[Announcement],
        list: &str,
        may_remove: bool,
    ) -> ListWriteOutcome {
        let write = async {
            let current = self.api.get(LAN_CLUSTERS).await?;
            let stored = current
                .data
                .as_ref()
                .and_then(|data| data.get(CLUSTERS_KEY))
                .map_or("[]", String::as_str);
            if stored == list {
                return Ok(ListWriteOutcome::AlreadyThere);
            }
            if !may_remove && removes_clusters(stored, clusters) {
                return Ok(ListWriteOutcome::NotWritten);
            }
            let patch = json!({
                "metadata": { "resourceVersion": current.resource_version() },
                "data": { CLUSTERS_KEY: list },
            });
            self.api
                .patch(LAN_CLUSTERS, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .map(|_| ListWriteOutcome::Written)
        };
        match tokio::time::timeout(WRITE_TIMEOUT, write).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the list of clusters on the local network cannot be written, trying again");
            }
            Err(_) => tracing::warn!(
                "the API server does not answer; what is on the local network is written later"
            ),
        }
        ListWriteOutcome::NotWritten
    }
}

/// Outcome of an attempt to store a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListWriteOutcome {
    AlreadyThere,
    Written,
    NotWritten,
}

/// Whether a cluster of the stored list is not in the new one.
fn removes_clusters(stored: &str, clusters: &[Announcement]) -> bool {
    let stored: Vec<Announcement> = serde_json::from_str(stored).unwrap_or_default();
    stored
        .iter()
        .any(|old| clusters.iter().all(|new| new.cluster_id != old.cluster_id))
}

#[cfg(test)]
mod tests {
    use liqo_api::ClusterId;

    use super::*;

    #[test]
    fn a_list_without_a_known_cluster_removes_it() {
        let cluster = |number| Announcement {
            cluster_id: ClusterId::of_public_key(&[number; 32]),
            cluster_name: "milan".into(),
            auth_urls: Vec::new(),
            protocol: PROTOCOL,
        };
        let stored = json!([cluster(1)]).to_string();
        assert!(removes_clusters(&stored, &[cluster(2)]) && removes_clusters(&stored, &[]));
        assert!(
            !removes_clusters(&stored, &[cluster(2), cluster(1)])
                && !removes_clusters("[]", &[])
                && !removes_clusters("broken", &[])
        );
    }
}
