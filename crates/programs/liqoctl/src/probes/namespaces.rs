//! The namespaces of one run, from their creation to their removal.

use std::{collections::BTreeSet, fmt, time::Duration};

use anyhow::{Context as _, anyhow, ensure};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NodeSelector};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use liqo_api::PodOffloadingStrategy;
use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::json;
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    cluster::{Cluster, ExplainFailure as _, is_absent},
    interrupts::Interrupts,
    offload::{self, OffloadResult},
    progress::StepProgress,
    wait::{PollResult, until},
};

/// Label on the objects of a run: the latest end of the run, in seconds since 1970.
const RUN_ENDS_AT: &str = "network-test.liqo.io/ends-at";
/// Time that a run may take to clean up, beyond its own limit.
const CLEANUP_TIMEOUT: Duration = Duration::from_mins(5);
/// Name of the step that removes everything.
const REMOVING: &str = "Removing what was created";

/// Time that create requests may still take once the run is over.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10);

/// The level of Pod Security of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceSecurity {
    Restricted,
    /// Pods may use the network of their node.
    Privileged,
}

struct CreatedNamespace {
    cluster: Cluster,
    name: String,
}

impl fmt::Display for CreatedNamespace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "namespace {} of {}",
            self.name, self.cluster.context
        )
    }
}

/// The namespaces of one run.
pub struct TestNamespaces {
    /// A random text that is different for each run.
    pub suffix: String,
    over_at: i64,
    keep: bool,
    created: Mutex<Vec<CreatedNamespace>>,
    /// Create requests. They finish even if nobody waits for them: a namespace that is created
    /// after its deletion would stay.
    creating: Mutex<JoinSet<()>>,
}

/// The result of a run.
#[derive(Debug)]
pub struct RunResult<T> {
    pub found: T,
    /// Namespaces that could not be removed, with reasons.
    pub left: Vec<String>,
}

impl TestNamespaces {
    /// Creates nothing yet. `limit` is the time limit of the run.
    pub fn new(limit: Duration, keep: bool) -> Self {
        let mut random = rand::rng();
        // Letters that form no words.
        let suffix = (0..5)
            .map(|_| char::from(b"bcdfghjkmnpqrstvwxz2456789"[random.random_range(0..26)]))
            .collect();
        let lasts = if keep {
            Duration::ZERO
        } else {
            limit + CLEANUP_TIMEOUT
        };
        let over_at = Timestamp::now()
            .as_second()
            .saturating_add(i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX));
        Self {
            suffix,
            over_at,
            keep,
            created: Mutex::default(),
            creating: Mutex::default(),
        }
    }

    /// Runs `work` until it is done, the time limit is over, or the user interrupts it. Then
    /// removes everything that was created, whatever the outcome. The result lists what could not
    /// be removed.
    pub async fn run_and_clean_up<T>(
        &self,
        limit: Duration,
        progress: &StepProgress,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<RunResult<T>> {
        let mut interrupts = Interrupts::listen()?;
        let outcome = tokio::select! {
            done = tokio::time::timeout(limit, work) => {
                done.unwrap_or_else(|_| Err(anyhow!("it was not finished after {} s: see --timeout", limit.as_secs())))
            }
            () = interrupts.next() => Err(anyhow!("interrupted")),
        };
        if self.keep {
            for CreatedNamespace { cluster, name } in self.created.lock().iter() {
                progress.print_line(&format!("Namespace {name} of {} is kept.", cluster.context));
            }
            return Ok(RunResult {
                found: outcome?,
                left: Vec::new(),
            });
        }
        let left = self.remove(progress, CLEANUP_TIMEOUT / 2).await;
        match outcome {
            Ok(found) => Ok(RunResult { found, left }),
            Err(error) if left.is_empty() => Err(error),
            Err(error) => Err(anyhow!("{error:#}; besides, {}", left.join("; "))),
        }
    }

    /// Creates a namespace with this prefix.
    pub async fn create_namespace(
        &self,
        cluster: &Cluster,
        name: &str,
        security: NamespaceSecurity,
    ) -> anyhow::Result<String> {
        let name = format!("{name}-{}", self.suffix);
        let level = match security {
            NamespaceSecurity::Restricted => "restricted",
            NamespaceSecurity::Privileged => "privileged",
        };
        let object = json!({
            "metadata": { "name": name, "labels": { RUN_ENDS_AT: self.over_at.to_string(), "pod-security.kubernetes.io/enforce": level } },
        });
        let object: Namespace = serde_json::from_value(object)?;
        self.created.lock().push(CreatedNamespace {
            cluster: cluster.clone(),
            name: name.clone(),
        });
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        let (sender, answer) = oneshot::channel();
        self.creating.lock().spawn(async move {
            // Nobody listens after an interruption.
            let _ = sender.send(api.create(&PostParams::default(), &object).await);
        });
        answer
            .await
            .context("the request was cancelled")?
            .doing(format!("create namespace {name}"))?;
        Ok(name)
    }

    /// Creates a namespace in the home cluster, whose pods may run at the selected peers; waits
    /// until it exists there.
    pub async fn offloaded_namespace(
        &self,
        home: &Cluster,
        name: &str,
        selector: Option<NodeSelector>,
        timeout: Duration,
        progress: &StepProgress,
    ) -> anyhow::Result<OffloadResult> {
        let namespace = self
            .create_namespace(home, name, NamespaceSecurity::Restricted)
            .await?;
        let clusters = selector.map(offload::SelectedClusters::Matching);
        let strategy = Some(PodOffloadingStrategy::LocalAndRemote);
        let options = offload::OffloadOptions {
            strategy,
            clusters,
            timeout,
            ..offload::OffloadOptions::default()
        };
        let offloaded = offload::offload(home, &namespace, &options, progress).await;
        offloaded.context("cannot offload the namespace of the run, so none of its pods can run in other clusters")
    }

    /// Removes everything, with a time limit for each; returns texts for what is left.
    async fn remove(&self, progress: &StepProgress, timeout: Duration) -> Vec<String> {
        let creating = std::mem::take(&mut *self.creating.lock());
        // Drops requests that take longer; the next run removes their results.
        let _ = tokio::time::timeout(CREATE_TIMEOUT, creating.join_all()).await;
        let created = std::mem::take(&mut *self.created.lock());
        if created.is_empty() {
            return Vec::new();
        }
        progress.start_step(REMOVING);
        let still: BTreeSet<String> = created.iter().map(ToString::to_string).collect();
        show_what_is_removed(progress, &still);
        let still = &Mutex::new(still);
        let removing = created.iter().map(|namespace| async move {
            let removed = remove_namespace(&namespace.cluster, &namespace.name, timeout).await;
            let mut still = still.lock();
            still.remove(&namespace.to_string());
            show_what_is_removed(progress, &still);
            removed
                .err()
                .map(|error| format!("{namespace} was not removed: {error:#}"))
        });
        let left: Vec<String> = join_all(removing).await.into_iter().flatten().collect();
        if left.is_empty() {
            progress.finish_step(REMOVING);
        } else {
            progress.fail_step(REMOVING);
        }
        left
    }
}

fn show_what_is_removed(progress: &StepProgress, still: &BTreeSet<String>) {
    if !still.is_empty() {
        let names: Vec<&str> = still.iter().map(String::as_str).collect();
        progress.message(REMOVING, &names.join(", "));
    }
}

/// Deletes a namespace, with retries, and waits until it is gone.
async fn remove_namespace(
    cluster: &Cluster,
    namespace: &str,
    timeout: Duration,
) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    until(
        "it is gone",
        timeout,
        |_| {},
        || async {
            match api
                .get_metadata_opt(namespace)
                .await
                .doing(format!("read namespace {namespace}"))?
            {
                None => return Ok(PollResult::Done(())),
                Some(left) if left.metadata.deletion_timestamp.is_none() => {
                    delete_namespace(cluster, namespace).await?;
                }
                Some(_) => {}
            }
            Ok(PollResult::NotYet(format!("namespace {namespace}")))
        },
    )
    .await
}

/// Removes what killed runs left: as much as possible, and an error if something is left.
pub async fn remove_leftovers(clusters: &[Cluster]) -> anyhow::Result<()> {
    let now = Timestamp::now().as_second();
    let mut failures = Vec::new();
    for cluster in clusters {
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        let labelled = ListParams::default().labels(RUN_ENDS_AT);
        for left in api
            .list_metadata(&labelled)
            .await
            .doing("list what earlier runs left")?
            .items
        {
            let over_at = left
                .labels()
                .get(RUN_ENDS_AT)
                .and_then(|text| text.parse::<i64>().ok());
            if over_at.is_some_and(|over_at| over_at <= now) {
                failures.extend(
                    delete_namespace(cluster, &left.name_any())
                        .await
                        .err()
                        .map(|error| format!("{error:#}")),
                );
            }
        }
    }
    ensure!(
        failures.is_empty(),
        "cannot remove what earlier runs left: {}",
        failures.join("; ")
    );
    Ok(())
}

async fn delete_namespace(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    match api.delete(namespace, &DeleteParams::background()).await {
        Err(error) if is_absent(&error) => Ok(()),
        deleted => deleted.map(drop).doing(format!(
            "delete namespace {namespace} of {}",
            cluster.context
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use kube::{Client, client::Body};

    use super::*;
    use crate::cluster::ClusterAccess;

    /// An API server that only knows namespaces. Creating one takes a while; some cannot be
    /// deleted, and for each the first deletion fails.
    fn server(stubborn: &'static str) -> (Cluster, Arc<Mutex<BTreeSet<String>>>) {
        let there: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (namespaces, tried) = (there.clone(), Arc::new(Mutex::new(BTreeSet::new())));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (namespaces, tried) = (namespaces.clone(), tried.clone());
            async move {
                let (parts, body) = request.into_parts();
                let name = parts
                    .uri
                    .path()
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                let mut found = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
                let mut code = 200;
                if parts.method == Method::POST {
                    let object: Namespace =
                        serde_json::from_slice(&body.collect_bytes().await?).unwrap();
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    namespaces.lock().insert(object.name_any());
                } else if !namespaces.lock().contains(&name) {
                    code = 404;
                } else if parts.method == Method::DELETE {
                    let is_first = tried.lock().insert(name.clone());
                    if is_first || name.starts_with(stubborn) {
                        code = 500;
                    } else {
                        namespaces.lock().remove(&name);
                    }
                }
                if code != 200 {
                    let reason = if code == 404 {
                        "NotFound"
                    } else {
                        "InternalError"
                    };
                    found = json!({ "kind": "Status", "status": "Failure", "message": "not now", "reason": reason, "code": code });
                }
                let body = Body::from(serde_json::to_vec(&found).unwrap());
                Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let client = Client::new(service, "default");
        (
            Cluster {
                client,
                access: ClusterAccess::default(),
                context: "rome".into(),
                server: "https://rome".into(),
            },
            there,
        )
    }

    #[tokio::test]
    async fn everything_is_removed_though_a_request_fails_and_what_stays_is_named() {
        let (cluster, there) = server("first");
        let namespaces = TestNamespaces::new(Duration::from_secs(1), false);
        let first = namespaces
            .create_namespace(&cluster, "first", NamespaceSecurity::Restricted)
            .await
            .unwrap();
        namespaces
            .create_namespace(&cluster, "second", NamespaceSecurity::Restricted)
            .await
            .unwrap();
        let left = namespaces
            .remove(&StepProgress::silent(), Duration::from_secs(1))
            .await;
        assert_eq!(*there.lock(), BTreeSet::from([first.clone()]));
        assert_eq!(left.len(), 1);
        assert!(
            left[0].contains(&first)
                && left[0].contains("of rome was not removed")
                && left[0].contains("not now"),
            "{left:?}"
        );
    }

    #[tokio::test]
    async fn a_namespace_that_was_just_being_made_is_removed_too() {
        let (cluster, there) = server("none");
        let namespaces = TestNamespaces::new(Duration::from_mins(1), false);
        let run = namespaces
            .run_and_clean_up(
                Duration::from_millis(50),
                &StepProgress::silent(),
                namespaces.create_namespace(&cluster, "late", NamespaceSecurity::Restricted),
            )
            .await;
        let error = run.unwrap_err().to_string();
        assert!(
            error.contains("not finished") && !error.contains("not removed"),
            "{error}"
        );
        assert!(there.lock().is_empty());
    }
}
