//! The namespaces of one run, from their making to their end.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use rand::Rng as _;
use serde_json::json;
use tokio::{sync::oneshot, task::JoinSet};

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

/// How long requests that make something may still take once the run is over.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// The namespaces of one run.
pub struct Stage {
    /// What tells this run from others.
    pub suffix: String,
    over_at: i64,
    keep: bool,
    made: Mutex<Vec<(Cluster, String)>>,
    /// Requests that make them. They are brought to an end even where nobody waits for it: what arrives after it was deleted would stay.
    making: Mutex<JoinSet<()>>,
}

/// What came of a run.
#[derive(Debug)]
pub struct Played<T> {
    /// What it found.
    pub found: T,
    /// What of it could not be removed, and why.
    pub left: Vec<String>,
}

impl Stage {
    /// Nothing is there yet. The run may take so long.
    pub fn new(limit: Duration, keep: bool) -> Self {
        let mut random = rand::rng();
        // Letters that make no words.
        let suffix = (0..5).map(|_| char::from(b"bcdfghjkmnpqrstvwxz2456789"[random.random_range(0..26)])).collect();
        let lasts = if keep { Duration::ZERO } else { limit + TIDYING };
        let over_at = Timestamp::now().as_second().saturating_add(i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX));
        Self { suffix, over_at, keep, made: Mutex::default(), making: Mutex::default() }
    }

    /// Does something with the stage, for so long at most and until somebody presses Ctrl-C; what was made is removed then, whatever
    /// came of it. What cannot be removed is told beside that.
    pub async fn play<T>(
        &self,
        limit: Duration,
        progress: &Progress,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Played<T>> {
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
            return Ok(Played { found: outcome?, left: Vec::new() });
        }
        let left = self.remove(progress, TIDYING / 2).await;
        match outcome {
            Ok(found) => Ok(Played { found, left }),
            Err(error) if left.is_empty() => Err(error),
            Err(error) => Err(anyhow!("{error:#}; besides, {}", left.join("; "))),
        }
    }

    /// Makes a namespace with a name that begins so. Pods in a privileged one may use the network of their node.
    pub async fn namespace(&self, cluster: &Cluster, name: &str, privileged: bool) -> anyhow::Result<String> {
        let name = format!("{name}-{}", self.suffix);
        let level = if privileged { "privileged" } else { "restricted" };
        let object = json!({
            "metadata": { "name": name, "labels": { OVER_AT: self.over_at.to_string(), "pod-security.kubernetes.io/enforce": level } },
        });
        let object: Namespace = serde_json::from_value(object)?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((cluster.clone(), name.clone()));
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        let (tell, made) = oneshot::channel();
        self.making.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move {
            // Nobody listens once the run was interrupted.
            let _ = tell.send(api.create(&PostParams::default(), &object).await);
        });
        made.await.context("the request was given up")?.doing(format!("make namespace {name}"))?;
        Ok(name)
    }

    /// Removes everything, each for so long; the words for what is left.
    async fn remove(&self, progress: &Progress, patience: Duration) -> Vec<String> {
        let making = std::mem::take(&mut *self.making.lock().unwrap_or_else(PoisonError::into_inner));
        // One that takes longer is dropped; the next run removes what comes of it.
        let _ = tokio::time::timeout(LAST_REQUESTS, making.join_all()).await;
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        if made.is_empty() {
            return Vec::new();
        }
        progress.started(REMOVING);
        let words = |cluster: &Cluster, namespace: &str| format!("namespace {namespace} of {}", cluster.context);
        let still: Mutex<BTreeSet<String>> =
            Mutex::new(made.iter().map(|(cluster, namespace)| words(cluster, namespace)).collect());
        let tell = |gone: Option<String>| {
            let mut still = still.lock().unwrap_or_else(PoisonError::into_inner);
            still.retain(|one| Some(one) != gone.as_ref());
            if !still.is_empty() {
                progress.message(REMOVING, &still.iter().cloned().collect::<Vec<_>>().join(", "));
            }
        };
        tell(None);
        let tell = &tell;
        let removing = made.iter().map(|(cluster, namespace)| async move {
            let removed = gone(cluster, namespace, patience).await;
            tell(Some(words(cluster, namespace)));
            removed.err().map(|error| format!("{} stays: {error:#}", words(cluster, namespace)))
        });
        let left: Vec<String> = join_all(removing).await.into_iter().flatten().collect();
        if left.is_empty() {
            progress.finished(REMOVING);
        } else {
            progress.failed(REMOVING);
        }
        left
    }
}

/// Deletes a namespace, again where that fails, and waits until it is gone.
async fn gone(cluster: &Cluster, namespace: &str, patience: Duration) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    until(
        "it is gone",
        patience,
        |_| {},
        || async {
            match api.get_metadata_opt(namespace).await.doing(format!("read namespace {namespace}"))? {
                None => return Ok(Look::Done(())),
                Some(left) if left.metadata.deletion_timestamp.is_none() => delete(cluster, namespace).await?,
                Some(_) => {}
            }
            Ok(Look::NotYet(format!("namespace {namespace}")))
        },
    )
    .await
}

/// Removes what runs left that were killed: all that can be, and an error if something cannot.
pub async fn sweep(clusters: &[Cluster]) -> anyhow::Result<()> {
    let now = Timestamp::now().as_second();
    let mut failures = Vec::new();
    for cluster in clusters {
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        let labelled = ListParams::default().labels(OVER_AT);
        for left in api.list_metadata(&labelled).await.doing("list what earlier runs left")?.items {
            let over_at = left.labels().get(OVER_AT).and_then(|text| text.parse::<i64>().ok());
            if over_at.is_some_and(|over_at| over_at <= now) {
                failures.extend(delete(cluster, &left.name_any()).await.err().map(|error| format!("{error:#}")));
            }
        }
    }
    ensure!(failures.is_empty(), "what earlier runs left stays: {}", failures.join("; "));
    Ok(())
}

async fn delete(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    match api.delete(namespace, &DeleteParams::background()).await {
        Err(error) if is_absent(&error) => Ok(()),
        deleted => deleted.map(drop).doing(format!("delete namespace {namespace} of {}", cluster.context)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use kube::{Client, client::Body};

    use super::*;
    use crate::cluster::Access;

    /// An API server that knows namespaces only. Making one takes a while; those that are called so cannot be deleted, and of each
    /// the first try to delete it fails.
    fn server(stubborn: &'static str) -> (Cluster, Arc<Mutex<BTreeSet<String>>>) {
        let there: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (namespaces, tried) = (there.clone(), Arc::new(Mutex::new(BTreeSet::new())));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (namespaces, tried) = (namespaces.clone(), tried.clone());
            async move {
                let (parts, body) = request.into_parts();
                let name = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
                let mut found = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
                let mut code = 200;
                if parts.method == Method::POST {
                    let object: Namespace = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    namespaces.lock().unwrap().insert(object.name_any());
                } else if !namespaces.lock().unwrap().contains(&name) {
                    code = 404;
                } else if parts.method == Method::DELETE {
                    let is_first = tried.lock().unwrap().insert(name.clone());
                    if is_first || name.starts_with(stubborn) {
                        code = 500;
                    } else {
                        namespaces.lock().unwrap().remove(&name);
                    }
                }
                if code != 200 {
                    let reason = if code == 404 { "NotFound" } else { "InternalError" };
                    found =
                        json!({ "kind": "Status", "status": "Failure", "message": "not now", "reason": reason, "code": code });
                }
                let body = Body::from(serde_json::to_vec(&found).unwrap());
                Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let client = Client::new(service, "default");
        (Cluster { client, access: Access::default(), context: "rome".into(), server: "https://rome".into() }, there)
    }

    #[tokio::test]
    async fn everything_is_removed_though_a_request_fails_and_what_stays_is_named() {
        let (cluster, there) = server("first");
        let stage = Stage::new(Duration::from_secs(1), false);
        let first = stage.namespace(&cluster, "first", false).await.unwrap();
        stage.namespace(&cluster, "second", false).await.unwrap();
        let left = stage.remove(&Progress::silent(), Duration::from_secs(1)).await;
        assert_eq!(*there.lock().unwrap(), BTreeSet::from([first.clone()]));
        assert_eq!(left.len(), 1);
        assert!(left[0].contains(&first) && left[0].contains("of rome stays") && left[0].contains("not now"), "{left:?}");
    }

    #[tokio::test]
    async fn a_namespace_that_was_just_being_made_is_removed_too() {
        let (cluster, there) = server("none");
        let stage = Stage::new(Duration::from_secs(60), false);
        let played = stage.play(Duration::from_millis(50), &Progress::silent(), stage.namespace(&cluster, "late", false)).await;
        let error = played.unwrap_err().to_string();
        assert!(error.contains("not done") && !error.contains("stays"), "{error}");
        assert!(there.lock().unwrap().is_empty());
    }
}
