//! Keeps new pods off nodes while pods leave them.

use std::collections::BTreeSet;

use anyhow::anyhow;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::{Cluster, Explained as _, is_absent};

/// When the nodes are uncordoned again. One that was cordoned before stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncordon {
    Always,
    /// If the work failed, or the user interrupted it.
    OnFailure,
}

/// Cordons nodes and runs `work`, until it is done or the user interrupts it. Then uncordons the nodes.
pub async fn with_cordon<T>(
    cluster: &Cluster,
    nodes: &BTreeSet<String>,
    uncordon: Uncordon,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let api: Api<Node> = Api::all(cluster.client.clone());
    let cordoned = Mutex::new(Vec::new());
    let outcome = interruptible(Box::pin(async {
        for node in nodes {
            let live = api.get(node).await.doing(format!("read Node {node}"))?;
            if live.spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
                continue;
            }
            // Before the request: an interruption may come while it is on its way.
            cordoned.lock().push(node.clone());
            set(&api, node, json!(true)).await.doing(format!("cordon Node {node}"))?;
        }
        work.await
    }))
    .await;
    if outcome.is_ok() && uncordon == Uncordon::OnFailure {
        return outcome;
    }
    let mut left = Vec::new();
    for node in cordoned.into_inner() {
        match set(&api, &node, Value::Null).await {
            Err(error) if !is_absent(&error) => left.push(node),
            _ => {}
        }
    }
    if left.is_empty() {
        return outcome;
    }
    let stays = format!("cannot uncordon nodes: run `kubectl{} uncordon {}`", cluster.access.flags(), left.join(" "));
    match outcome {
        Ok(_) => Err(anyhow!(stays)),
        Err(error) => Err(anyhow!("{error:#}; besides, {stays}")),
    }
}

async fn set(api: &Api<Node>, node: &str, unschedulable: Value) -> kube::Result<()> {
    let change = json!({ "spec": { "unschedulable": unschedulable } });
    api.patch_metadata(node, &PatchParams::default(), &Patch::Merge(&change)).await.map(drop)
}

async fn interruptible<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow!("interrupted")),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use anyhow::bail;
    use http::{Method, Request, Response};
    use kube::{Client, client::Body};

    use super::*;
    use crate::cluster::Access;

    type Cordoned = Arc<Mutex<BTreeMap<String, bool>>>;

    /// An API server that only knows these nodes.
    fn server(nodes: &[(&str, bool)]) -> (Cluster, Cordoned) {
        let nodes: Cordoned =
            Arc::new(Mutex::new(nodes.iter().map(|(name, cordoned)| ((*name).to_owned(), *cordoned)).collect()));
        let known = nodes.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let known = known.clone();
            async move {
                let (parts, body) = request.into_parts();
                let name = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
                if parts.method == Method::PATCH {
                    let change: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
                    known.lock().insert(name.clone(), change["spec"]["unschedulable"] == json!(true));
                }
                let spec = json!({ "unschedulable": known.lock()[&name] });
                let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "spec": spec });
                Ok::<_, kube::Error>(Response::new(Body::from(serde_json::to_vec(&node).unwrap())))
            }
        });
        let client = Client::new(service, "default");
        (Cluster { client, access: Access::default(), context: "rome".into(), server: "https://rome".into() }, nodes)
    }

    #[tokio::test]
    async fn nodes_are_uncordoned_again_except_those_that_were_cordoned_before() {
        let before = [("milan", false), ("turin", true)];
        let (cluster, nodes) = server(&before);
        let all: BTreeSet<String> = ["milan", "turin"].map(str::to_owned).into();
        let cordoned = async { Ok(nodes.lock().values().all(|cordoned| *cordoned)) };
        assert!(with_cordon(&cluster, &all, Uncordon::Always, cordoned).await.unwrap());
        let as_before: BTreeMap<String, bool> = before.map(|(name, cordoned)| (name.to_owned(), cordoned)).into();
        assert_eq!(*nodes.lock(), as_before);

        let failed = async { bail!("timed out") };
        assert!(with_cordon::<()>(&cluster, &all, Uncordon::OnFailure, failed).await.is_err());
        assert_eq!(*nodes.lock(), as_before);

        with_cordon(&cluster, &all, Uncordon::OnFailure, async { Ok(()) }).await.unwrap();
        assert!(nodes.lock()["milan"], "the virtual node goes next");
    }
}
