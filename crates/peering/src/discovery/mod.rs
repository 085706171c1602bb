//! Creates a `ForeignCluster` for each cluster that discovery finds, and decides from which of them
//! this cluster borrows automatically.
//!
//! `liqo-fabric` writes what it hears on the local network into a `ConfigMap`. [`search_domains`]
//! writes what DNS domains contain into the status of `SearchDomain`s. Both are only claims:
//! [`verification`] calls the announced URLs, and only a cluster that proved its ID there gets an
//! object.

pub mod dns;
pub mod search_domains;
pub mod verification;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::watcher,
};
use liqo_api::policies::PolicyPeer;
use liqo_api::{
    CLUSTERS_KEY, ClusterId, DISCOVERED_CLUSTERS, Discovery, ForeignCluster, LAN_CLUSTERS,
    PeeringPolicy, SearchDomain, labels,
};
use liqo_controller_runtime::{
    Cache, Context, Key, cache, foreign_clusters, policies,
    writes::{StepContext as _, StepError, delete_if_present, unless_changed, unless_gone},
};
use liqo_discovery::{
    announcement::Announcement,
    merge::{
        DiscoveryListEntry, ForeignClusterChange, FoundCluster, KnownForeignCluster, decide_change,
        listed_announcements, merge_announcements, reason_not_created,
    },
    write_pace::WritePace,
    written_list::WrittenList,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    decide::{
        consumer_records::object_names,
        discovery::{automatic_outgoing_change, lan_list},
    },
    objects,
    queues::PeeringQueues,
    triggers,
};
use verification::Verification;

/// After a step that failed.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The state is checked after this time even if nothing changed.
const PERIOD: Duration = Duration::from_mins(1);

/// The objects that discovery reads.
pub struct Discoverer {
    pub context: Context,
    pub foreign_clusters: Cache<ForeignCluster>,
    pub policies: Cache<PeeringPolicy>,
    pub queues: PeeringQueues,
}

/// The watched objects with the clusters that are found now.
struct DiscoverySources {
    lan: Cache<Vec<Announcement>>,
    domains: Cache<SearchDomain>,
}

impl Discoverer {
    /// Runs until `context.stop`.
    pub async fn run(self) {
        let sources = self.watch_sources();
        if !(sources.lan.wait_until_synced().await && sources.domains.wait_until_synced().await) {
            return;
        }
        tokio::join!(
            search_domains::run_lookups(
                self.context.clone(),
                sources.domains.clone(),
                self.queues.lookups.clone()
            ),
            self.follow_sources(&sources)
        );
    }

    fn watch_sources(&self) -> DiscoverySources {
        let context = &self.context;
        let (queues, domain_queues) = (self.queues.clone(), self.queues.clone());
        let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
        let only_list = watcher::Config::default().fields(&format!("metadata.name={LAN_CLUSTERS}"));
        let lan = Cache::watch(
            maps,
            only_list,
            context.stop.clone(),
            readable_lan_list,
            move |_, _, _| queues.add(triggers::lan_list_changed()),
        );
        let domains: Api<SearchDomain> = Api::all(context.client.clone());
        let domains = Cache::watch(
            domains,
            watcher::Config::default(),
            context.stop.clone(),
            cache::without_managed_fields,
            move |_, _, _| domain_queues.add(triggers::search_domain_changed()),
        );
        DiscoverySources { lan, domains }
    }

    async fn follow_sources(&self, sources: &DiscoverySources) {
        let mut config = self.context.config.clone();
        let (mut verification, mut list) = (
            Verification::new(self.context.network.clone()),
            DiscoveredList::default(),
        );
        loop {
            let lan_is_on = config.borrow_and_update().spec.discovery.lan.enabled;
            let found = self.found_clusters(sources, lan_is_on);
            let now = Instant::now();
            verification.update_targets(&found, now);
            let mut next = verification
                .checks
                .next_due()
                .unwrap_or(now + PERIOD)
                .min(now + PERIOD);
            if let Err(error) = self.apply_found(&found, &verification, &mut list).await {
                tracing::warn!(%error, "cannot apply what discovery found, trying again");
                next = now + RETRY_DELAY;
            }
            if let Some(due) = list.next_write() {
                next = next.min(due);
            }
            tokio::select! {
                biased;
                () = self.context.stop.cancelled() => return,
                () = verification.next() => {}
                changed = config.changed() => if changed.is_err() { return },
                () = self.queues.discovery.notified() => {}
                // A URL that is due waits while as many calls as allowed run.
                () = tokio::time::sleep_until(next.max(now + Duration::from_millis(200))) => {}
            }
        }
    }

    fn found_clusters(
        &self,
        sources: &DiscoverySources,
        lan_is_on: bool,
    ) -> BTreeMap<ClusterId, FoundCluster> {
        let lan = sources
            .lan
            .get(&Key::new(&self.context.namespace, LAN_CLUSTERS))
            .filter(|_| lan_is_on);
        let lan = lan.as_deref().map(Vec::as_slice).unwrap_or_default();
        let domains = sources.domains.all().into_iter();
        let domains = domains
            .map(|(key, domain)| (key.name, listed_announcements(&domain)))
            .collect();
        merge_announcements(&self.context.cluster_id, lan, &domains)
    }

    async fn apply_found(
        &self,
        found: &BTreeMap<ClusterId, FoundCluster>,
        verification: &Verification,
        list: &mut DiscoveredList,
    ) -> Result<(), StepError> {
        let records = foreign_clusters::by_peer(&self.foreign_clusters);
        let known: BTreeMap<&ClusterId, KnownForeignCluster> = records
            .iter()
            .map(|(id, record)| (id, KnownForeignCluster::from_foreign_cluster(record)))
            .collect();
        let mut created = known
            .values()
            .filter(|known| known.way.is_some() && !known.by_person)
            .count();
        let (mut discovered, mut failure) = (Vec::new(), None);
        // What fails for one cluster does not hold up the others.
        for (id, found) in found {
            let (known, verified) = (known.get(id), verification.checks.verified_urls(id));
            let change = decide_change(Some(found), known, &verified, created);
            created += usize::from(matches!(change, ForeignClusterChange::Create { .. }));
            discovered.push(DiscoveryListEntry {
                announcement: found.announcement.clone(),
                sources: found.sources.clone(),
                problem: reason_not_created(found, known, &verified, created),
            });
            let record = records.get(id).map(AsRef::as_ref);
            failure = self
                .carry_out(id, change, record, verification)
                .await
                .err()
                .or(failure);
        }
        for (id, known) in known.iter().filter(|(id, _)| !found.contains_key(**id)) {
            let change = decide_change(
                None,
                Some(known),
                &verification.checks.verified_urls(id),
                created,
            );
            let record = records.get(*id).map(AsRef::as_ref);
            failure = self
                .carry_out(id, change, record, verification)
                .await
                .err()
                .or(failure);
        }
        for record in records.values() {
            failure = self.decide_outgoing(record).await.err().or(failure);
        }
        list.write_if_due(&self.context, &discovered).await?;
        failure.map_or(Ok(()), Err)
    }

    async fn carry_out(
        &self,
        id: &ClusterId,
        change: ForeignClusterChange,
        record: Option<&ForeignCluster>,
        verification: &Verification,
    ) -> Result<(), StepError> {
        let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
        match (change, record) {
            (ForeignClusterChange::Create { way, auth_url }, _) => {
                let Some(name) = verification.checks.name_at(id, &auth_url) else {
                    return Ok(());
                };
                self.create_foreign_cluster(&api, id, &name, way, &auth_url)
                    .await
            }
            (ForeignClusterChange::Update { way, auth_url }, Some(record)) => {
                let mut patch =
                    json!({ "metadata": { "resourceVersion": record.resource_version() } });
                if let Some(way) = way {
                    patch["metadata"]["labels"] = json!({ labels::DISCOVERED_BY: way.as_label() });
                }
                if let Some(url) = &auth_url {
                    patch["spec"] = json!({ "authURL": url });
                }
                let patched = api
                    .patch(
                        &record.name_any(),
                        &PatchParams::default(),
                        &Patch::Merge(patch),
                    )
                    .await;
                unless_changed(patched).step("change", "ForeignCluster", Key::of_object(record))?;
                tracing::info!(peer = %id, ?way, auth_url, "discovery changed a ForeignCluster");
                Ok(())
            }
            (ForeignClusterChange::Delete, Some(record)) => {
                let preconditions = Preconditions {
                    resource_version: record.resource_version(),
                    uid: record.uid(),
                };
                let params = DeleteParams::default().preconditions(preconditions);
                let deleted =
                    unless_changed(delete_if_present(&api, &record.name_any(), &params).await);
                deleted.step("delete", "ForeignCluster", Key::of_object(record))?;
                tracing::info!(peer = %id, "nobody sees the cluster any more");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn create_foreign_cluster(
        &self,
        api: &Api<ForeignCluster>,
        id: &ClusterId,
        name: &str,
        way: Discovery,
        auth_url: &str,
    ) -> Result<(), StepError> {
        for object_name in object_names(id, name) {
            let object = json!({
                "metadata": {
                    "name": object_name,
                    "labels": { labels::MANAGED: "true", labels::DISCOVERED_BY: way.as_label() },
                },
                "spec": { "clusterID": id, "clusterName": name, "authURL": auth_url },
            });
            let object: ForeignCluster = serde_json::from_value(object)
                .map_err(kube::Error::SerdeError)
                .step("describe", "ForeignCluster", Key::new("", &object_name))?;
            if objects::ensure(api, &object).await?.spec.cluster_id == *id {
                tracing::info!(peer = %id, name = object_name, ?way, "found a cluster");
                return Ok(());
            }
        }
        tracing::warn!(peer = %id, name, "cannot create a ForeignCluster: all names for it are taken");
        Ok(())
    }

    /// Writes whether this cluster borrows from the peer because of the policy, if that changed.
    async fn decide_outgoing(&self, record: &ForeignCluster) -> Result<(), StepError> {
        let policy = policies::effective_policy(
            &self.policies,
            &PolicyPeer::new(&record.spec.cluster_id, Some(record)),
        );
        let Some(wanted) = automatic_outgoing_change(record, policy.as_deref()) else {
            return Ok(());
        };
        let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
        let body = json!({ "status": { "automaticOutgoingPeering": wanted } });
        let written = api
            .patch_status(
                &record.name_any(),
                &PatchParams::default(),
                &Patch::Merge(body),
            )
            .await;
        unless_gone(written).map(drop).step(
            "write the status of",
            "ForeignCluster",
            Key::of_object(record),
        )
    }
}

/// Reads the list that `liqo-fabric` wrote. What cannot be read counts as nothing.
#[allow(clippy::unnecessary_wraps, clippy::needless_pass_by_value)] // The signature that a cache requires.
fn readable_lan_list(map: ConfigMap) -> Option<Vec<Announcement>> {
    let list = lan_list(&map).inspect_err(|error| {
        tracing::warn!(%error, "the list of clusters on the local network cannot be read");
    });
    Some(list.unwrap_or_default())
}

/// The list that `liqoctl discover` reads.
#[derive(Default)]
struct DiscoveredList {
    written: WrittenList,
    is_due: bool,
    pace: WritePace,
}

impl DiscoveredList {
    /// Writes the list if it differs from the stored one, but not too often.
    async fn write_if_due(
        &mut self,
        context: &Context,
        discovered: &[DiscoveryListEntry],
    ) -> Result<(), StepError> {
        let text = json!(discovered).to_string();
        let now = Instant::now().into_std();
        self.is_due = self.written.is_due(&text, now);
        if !self.is_due || self.pace.next(now).is_some() {
            return Ok(());
        }
        let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
        let key = Key::new(&context.namespace, DISCOVERED_CLUSTERS);
        let current = api
            .get(DISCOVERED_CLUSTERS)
            .await
            .step("read", "ConfigMap", key.clone())?;
        let stored = current
            .data
            .as_ref()
            .and_then(|data| data.get(CLUSTERS_KEY));
        // Nothing stored is an empty list.
        if stored.map_or("[]", String::as_str) != text {
            let body = json!({ "data": { CLUSTERS_KEY: text } });
            let written = api
                .patch(
                    DISCOVERED_CLUSTERS,
                    &PatchParams::default(),
                    &Patch::Merge(body),
                )
                .await;
            written.step("write", "ConfigMap", key)?;
            self.pace.record_write(now);
        }
        self.written.is_stored(text, now);
        self.is_due = false;
        Ok(())
    }

    /// The earliest time at which a list that was not written yet may be written.
    fn next_write(&self) -> Option<Instant> {
        self.pace
            .next(Instant::now().into_std())
            .filter(|_| self.is_due)
            .map(Instant::from_std)
    }
}
