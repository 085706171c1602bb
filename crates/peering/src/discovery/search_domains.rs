//! Reads the domains of all `SearchDomain`s as often as their records ask for, and writes what was
//! found into their status.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use liqo_api::conditions::updated_conditions;
use liqo_api::{SearchDomain, SearchDomainEntry};
use liqo_controller_runtime::{Cache, Context, Key, writes::unless_gone};
use liqo_discovery::domain_lookup::DomainLookup;
use serde_json::json;
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use super::dns::look_up;
use crate::decide::search_domains::{RETRY_DELAY, ScheduledLookup, wanted_status};

/// Maximum number of domains that are read at the same time.
const MAX_CONCURRENT: usize = 4;

/// Runs until `context.stop`. `changed` is notified when a `SearchDomain` changes.
pub async fn run_lookups(context: Context, domains: Cache<SearchDomain>, changed: Arc<Notify>) {
    let mut schedule: BTreeMap<Key, ScheduledLookup> = BTreeMap::new();
    let mut running: HashSet<Key> = HashSet::new();
    let mut lookups: JoinSet<(Key, String, DomainLookup)> = JoinSet::new();
    loop {
        let current: BTreeMap<Key, Arc<SearchDomain>> = domains.all().into_iter().collect();
        let now = Instant::now();
        schedule.retain(|key, known| {
            current
                .get(key)
                .is_some_and(|object| object.spec.domain == known.domain)
        });
        for (key, object) in &current {
            let scheduled = schedule
                .entry(key.clone())
                .or_insert_with(|| ScheduledLookup {
                    domain: object.spec.domain.clone(),
                    due: now,
                    listed: None,
                });
            scheduled.due = scheduled.due_after_status(object.status.as_ref(), now);
            if scheduled.due <= now && lookups.len() < MAX_CONCURRENT && running.insert(key.clone())
            {
                let (key, domain) = (key.clone(), scheduled.domain.clone());
                lookups.spawn(async move {
                    let lookup = look_up(&domain).await;
                    (key, domain, lookup)
                });
            }
        }
        let idle = schedule
            .iter()
            .filter(|(key, _)| !running.contains(*key))
            .map(|(_, known)| known.due);
        let next = idle
            .min()
            .filter(|_| lookups.len() < MAX_CONCURRENT)
            .unwrap_or_else(|| now + Duration::from_mins(1));
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            Some(Ok((key, domain, lookup))) = lookups.join_next() => {
                running.remove(&key);
                let Some(object) = domains.get(&key).filter(|object| object.spec.domain == domain) else { continue };
                let (delay, listed) = match write_status(&context, &object, &lookup).await {
                    Ok(listed) => (lookup.ask_again_after(), Some(listed)),
                    Err(error) => {
                        tracing::warn!(%error, domain, "cannot write the status of a SearchDomain, trying again");
                        (RETRY_DELAY, None)
                    }
                };
                schedule.insert(key, ScheduledLookup { domain, due: Instant::now() + delay, listed });
            }
            () = changed.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Writes the status if it changed. Returns its entries.
async fn write_status(
    context: &Context,
    object: &SearchDomain,
    lookup: &DomainLookup,
) -> kube::Result<Vec<SearchDomainEntry>> {
    let old = object.status.clone().unwrap_or_default();
    let (clusters, condition) = wanted_status(&old, lookup);
    let conditions = updated_conditions(&old.conditions, &[condition], context.now());
    if clusters == old.clusters && conditions.is_none() {
        return Ok(clusters);
    }
    let status =
        json!({ "clusters": clusters, "conditions": conditions.unwrap_or(old.conditions) });
    let api: Api<SearchDomain> = Api::all(context.client.clone());
    let body = json!({ "status": status });
    unless_gone(
        api.patch_status(
            &object.name_any(),
            &PatchParams::default(),
            &Patch::Merge(body),
        )
        .await,
    )
    .map(|_| clusters)
}
