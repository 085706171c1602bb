//! Creates and deletes the pods, and takes the time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams},
};
use liqoctl::{
    cluster::{Cluster, ExplainFailure as _},
    readiness,
};
use serde_json::{Value, json};

use super::setup::BenchVariant;

const NAME: &str = "bench";
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit until a single pod has become Ready, and is then gone.
const SINGLE_POD_TIMEOUT: Duration = Duration::from_mins(1);

/// Nothing runs on a fake node, so the image is never pulled.
fn pod_spec(side: &BenchVariant) -> Value {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "main",
            "image": "localhost/never-pulled:1",
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
    });
    for (key, value) in side.placement.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

/// Creates the Deployment; returns the time until all its pods are Ready.
pub(super) async fn create_deployment(
    side: &BenchVariant,
    pods: u32,
    news: &impl Fn(&str),
) -> anyhow::Result<Duration> {
    let labels = json!({ "app": NAME });
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": {
            "replicas": pods,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod_spec(side) },
        },
    }))?;
    let api: Api<Deployment> = Api::namespaced(side.cluster.client.clone(), &side.namespace);
    let begin = Instant::now();
    api.create(&PostParams::default(), &deployment)
        .await
        .doing(format!("create Deployment {NAME}"))?;
    loop {
        let status = api
            .get(NAME)
            .await
            .doing(format!("read Deployment {NAME}"))?
            .status
            .unwrap_or_default();
        let ready = status
            .ready_replicas
            .and_then(|ready| u32::try_from(ready).ok())
            .unwrap_or_default();
        if ready >= pods {
            return Ok(begin.elapsed());
        }
        news(&progress_in_tenths(ready, pods, "Ready"));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// In steps of a tenth, because without a terminal every new text is a line.
fn progress_in_tenths(count: u32, of: u32, what: &str) -> String {
    let tenth = (of / 10).max(1);
    format!("{} of {of} pods {what}", count / tenth * tenth)
}

/// Times from the deletion of a Deployment until its pods are gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeletionTimes<T> {
    /// In the cluster of the Deployment.
    pub here: T,
    /// At the provider; the same for plain pods.
    pub at_provider: T,
}

impl<T> DeletionTimes<T> {
    pub fn map<U>(self, change: impl Fn(T) -> U) -> DeletionTimes<U> {
        DeletionTimes {
            here: change(self.here),
            at_provider: change(self.at_provider),
        }
    }
}

/// Deletes the Deployment, and waits until all pods are gone.
pub(super) async fn delete_deployment(
    side: &BenchVariant,
    news: &impl Fn(&str),
) -> anyhow::Result<DeletionTimes<Duration>> {
    let api: Api<Deployment> = Api::namespaced(side.cluster.client.clone(), &side.namespace);
    let begin = Instant::now();
    api.delete(NAME, &DeleteParams::background())
        .await
        .doing(format!("delete Deployment {NAME}"))?;
    news("deleting");
    let here = time_until_gone(&side.cluster, &side.namespace, begin);
    let Some((provider, namespace)) = &side.remote else {
        let here = here.await?;
        return Ok(DeletionTimes {
            here,
            at_provider: here,
        });
    };
    let (here, at_provider) = tokio::try_join!(here, time_until_gone(provider, namespace, begin))?;
    Ok(DeletionTimes { here, at_provider })
}

/// The time from `begin` until a namespace has no pods.
async fn time_until_gone(
    cluster: &Cluster,
    namespace: &str,
    begin: Instant,
) -> anyhow::Result<Duration> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let one = ListParams::default().limit(1);
    while !api
        .list_metadata(&one)
        .await
        .doing(format!("list the pods of namespace {namespace}"))?
        .items
        .is_empty()
    {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(begin.elapsed())
}

/// Creates one pod, and deletes it again; returns the time from the request until a watch showed it
/// as Ready.
pub(super) async fn single_pod(side: &BenchVariant, number: usize) -> anyhow::Result<Duration> {
    let name = format!("single-{number}");
    let measured =
        tokio::time::timeout(SINGLE_POD_TIMEOUT, Box::pin(watched_pod(side, &name))).await;
    measured.with_context(|| {
        format!(
            "pod {name} of namespace {} was not Ready and gone after {} s",
            side.namespace,
            SINGLE_POD_TIMEOUT.as_secs()
        )
    })?
}

async fn watched_pod(side: &BenchVariant, name: &str) -> anyhow::Result<Duration> {
    let pod: Pod =
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": pod_spec(side) }))?;
    let api: Api<Pod> = Api::namespaced(side.cluster.client.clone(), &side.namespace);
    let what = format!("watch pod {name}");
    let only_this = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = Box::pin(api.watch(&only_this, "0").await.doing(&what)?);
    let begin = Instant::now();
    api.create(&PostParams::default(), &pod)
        .await
        .doing(format!("create pod {name}"))?;
    let mut ready = None;
    while let Some(event) = events.try_next().await.doing(&what)? {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod)
                if ready.is_none() && readiness::pod(&pod) =>
            {
                ready = Some(begin.elapsed());
                api.delete(name, &DeleteParams::default())
                    .await
                    .doing(format!("delete pod {name}"))?;
            }
            WatchEvent::Deleted(_) => {
                if let Some((provider, namespace)) = &side.remote {
                    time_until_gone(provider, namespace, begin).await?;
                }
                return ready
                    .with_context(|| format!("somebody deleted pod {name} before it was Ready"));
            }
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)).doing(&what),
            _ => {}
        }
    }
    bail!("the watch of pod {name} ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_in_tenths() {
        assert_eq!(progress_in_tenths(0, 1000, "Ready"), "0 of 1000 pods Ready");
        assert_eq!(
            progress_in_tenths(399, 1000, "Ready"),
            "300 of 1000 pods Ready"
        );
        assert_eq!(progress_in_tenths(3, 5, "Ready"), "3 of 5 pods Ready");
    }
}
