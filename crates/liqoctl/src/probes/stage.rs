//! The namespaces of one run, from their making to their end.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::anyhow;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use rand::Rng as _;
use serde_json::json;

use crate::{
    cluster::{Cluster, Explained as _, is_absent},
    progress::Progress,
    wait::{Look, until},
};

/// Label of what a run makes: the second, since 1970, at which the run is over at the latest.
const OVER_AT: &str = "network-test.liqo.io/over-at";
/// So much longer than its own limit a run may take to tidy up.
const TIDYING: Duration = Duration::from_secs(120);
/// What is said while things are removed.
const REMOVING: &str = "Removing what was made";

/// The namespaces of one run.
pub struct Stage {
    /// What tells this run from others.
    pub suffix: String,
    over_at: i64,
    keep: bool,
    made: Mutex<Vec<(Cluster, String)>>,
}

impl Stage {
    /// Nothing is there yet. The run may take so long.
    pub fn new(limit: Duration, keep: bool) -> Self {
        let mut random = rand::rng();
        // Letters that make no words.
        let suffix = (0..5).map(|_| char::from(b"bcdfghjkmnpqrstvwxz2456789"[random.random_range(0..26)])).collect();
        let lasts = if keep { Duration::ZERO } else { limit + TIDYING };
        let over_at = Timestamp::now().as_second().saturating_add(i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX));
        Self { suffix, over_at, keep, made: Mutex::default() }
    }

    /// Does something with the stage, for so long at most and until somebody presses Ctrl-C; what was made is removed then, whatever
    /// came of it.
    pub async fn play<T>(
        &self,
        limit: Duration,
        progress: &Progress,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let outcome = tokio::select! {
            done = tokio::time::timeout(limit, work) => {
                done.unwrap_or_else(|_| Err(anyhow!("it was not done after {} s: see --timeout", limit.as_secs())))
            }
            _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
            _ = terminate.recv() => Err(anyhow!("interrupted")),
        };
        if self.keep {
            for (cluster, namespace) in self.made.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                progress.line(&format!("Namespace {namespace} of {} stays.", cluster.context));
            }
            return outcome;
        }
        let removed = self.remove(progress).await;
        let value = outcome?;
        removed?;
        Ok(value)
    }

    /// Makes a namespace with a name that begins so. Pods in a privileged one may use the network of their node.
    pub async fn namespace(&self, cluster: &Cluster, name: &str, privileged: bool) -> anyhow::Result<String> {
        let name = format!("{name}-{}", self.suffix);
        let level = if privileged { "privileged" } else { "restricted" };
        let object = json!({
            "metadata": { "name": name, "labels": { OVER_AT: self.over_at.to_string(), "pod-security.kubernetes.io/enforce": level } },
        });
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((cluster.clone(), name.clone()));
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await.doing(format!("make namespace {name}"))?;
        Ok(name)
    }

    async fn remove(&self, progress: &Progress) -> anyhow::Result<()> {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let removing = async {
            for (cluster, namespace) in &made {
                delete(cluster, namespace).await?;
            }
            for (cluster, namespace) in &made {
                let api: Api<Namespace> = Api::all(cluster.client.clone());
                let news = |text: &str| progress.message(REMOVING, text);
                until(&format!("namespace {namespace} is gone"), TIDYING / 2, news, || async {
                    let left = api.get_metadata_opt(namespace).await.doing(format!("read namespace {namespace}"))?;
                    Ok(left.map_or(Look::Done(()), |_| Look::NotYet(format!("namespace {namespace}"))))
                })
                .await?;
            }
            anyhow::Ok(())
        };
        if made.is_empty() {
            return Ok(());
        }
        progress.step(REMOVING, removing).await
    }
}

/// Removes what runs left that were killed.
pub async fn sweep(clusters: &[Cluster]) -> anyhow::Result<()> {
    let now = Timestamp::now().as_second();
    for cluster in clusters {
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        let labelled = ListParams::default().labels(OVER_AT);
        for left in api.list_metadata(&labelled).await.doing("list what earlier runs left")?.items {
            let over_at = left.labels().get(OVER_AT).and_then(|text| text.parse::<i64>().ok());
            if over_at.is_some_and(|over_at| over_at <= now) {
                delete(cluster, &left.name_any()).await?;
            }
        }
    }
    Ok(())
}

async fn delete(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    match api.delete(namespace, &DeleteParams::background()).await {
        Err(error) if is_absent(&error) => Ok(()),
        deleted => deleted.map(drop).doing(format!("delete namespace {namespace} of {}", cluster.context)),
    }
}
