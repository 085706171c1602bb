//! The Node and the Lease of a virtual node.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
};
use liqo_api::{ClusterId, labels};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::node_decide::{is_ours, labels_patch, new_node, status_patch};
use crate::decide::{
    node::{NodeSpec, taints_patch},
    text,
};

/// Where kubelets renew their leases.
const LEASES: &str = "kube-node-lease";

/// How often a lease is renewed, and for how long it holds.
const RENEWED_EVERY: Duration = Duration::from_secs(10);
const HOLDS_SECONDS: i32 = 40;

/// When to try again after a renewal failed.
const RETRY: Duration = Duration::from_secs(2);

/// A Node or its Lease could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What failed.
    #[error("{step} node {node}: {source}")]
    Api {
        /// What was tried.
        step: &'static str,
        /// The Node.
        node: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// A Node of that name is somebody else's.
    #[error("a node named {node} exists and is not this virtual node; rename or remove it")]
    NameTaken {
        /// The Node.
        node: String,
    },
    /// The Node is not what the API server calls one.
    #[error("node {node} cannot be written down: {source}")]
    Malformed {
        /// The Node.
        node: String,
        /// Why.
        source: serde_json::Error,
    },
}

/// A Node as it is kept.
pub fn as_json(mut node: DynamicObject) -> Option<Value> {
    node.metadata.managed_fields = None;
    serde_json::to_value(node).ok()
}

fn nodes(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()))
}

/// A Node as it is now.
pub async fn live(client: &Client, name: &str) -> Result<Option<Value>, Error> {
    let node = nodes(client).get_opt(name).await.map_err(failed("reading", name))?;
    Ok(node.and_then(as_json))
}

/// Makes the Node be what it should be. `known` is the Node as the watch knows it.
pub async fn ensure(client: &Client, cluster: &ClusterId, spec: &NodeSpec<'_>, known: Option<&Value>) -> Result<(), Error> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let api = nodes(client);
    let live = match known {
        Some(known) => Some(known.clone()),
        None => live(client, spec.name).await?,
    };
    let Some(standing) = live else {
        let malformed = |source| Error::Malformed { node: spec.name.to_owned(), source };
        let node = serde_json::from_value(new_node(spec, &now)).map_err(malformed)?;
        api.create(&PostParams::default(), &node).await.map_err(failed("creating", spec.name))?;
        tracing::info!(node = spec.name, cluster = %cluster, pool = spec.pool, "virtual node created");
        return Ok(());
    };
    if !is_ours(&standing, cluster, spec.pool) {
        return Err(Error::NameTaken { node: spec.name.to_owned() });
    }
    let parameters = PatchParams::default();
    // First, because it names the version that it was decided on.
    if let Some(patch) = taints_patch(&standing, spec.outage) {
        match api.patch(spec.name, &parameters, &Patch::Merge(&patch)).await {
            // Somebody else wrote the Node meanwhile: its event brings us here again.
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            result => drop(result.map_err(failed("tainting", spec.name))?),
        }
    }
    if let Some(patch) = labels_patch(spec, &standing) {
        api.patch(spec.name, &parameters, &Patch::Merge(&patch)).await.map_err(failed("labelling", spec.name))?;
    }
    if let Some(patch) = status_patch(spec, &standing, &now) {
        api.patch_status(spec.name, &parameters, &Patch::Strategic(&patch))
            .await
            .map_err(failed("writing the status of", spec.name))?;
    }
    Ok(())
}

/// Keeps the scheduler off the Node.
pub async fn cordon(client: &Client, name: &str, known: &Value) -> Result<(), Error> {
    if known.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        return Ok(());
    }
    patch(client, "cordoning", name, &json!({ "spec": { "unschedulable": true } })).await
}

/// Applies a merge patch to a Node that may be gone.
pub async fn patch(client: &Client, step: &'static str, name: &str, patch: &Value) -> Result<(), Error> {
    let patched = nodes(client).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(drop).or_else(unless_gone).map_err(failed(step, name))
}

/// Removes the Node, if it is ours, and its Lease.
pub async fn remove(client: &Client, name: &str, cluster: &ClusterId, pool: &str) -> Result<(), Error> {
    if let Some(live) = live(client, name).await?.filter(|live| is_ours(live, cluster, pool)) {
        let uid = text(&live, "/metadata/uid").map(str::to_owned);
        let only_this = DeleteParams::default().preconditions(Preconditions { uid, ..Preconditions::default() });
        nodes(client).delete(name, &only_this).await.map(drop).or_else(unless_gone).map_err(failed("deleting", name))?;
        tracing::info!(node = name, cluster = %cluster, pool, "virtual node deleted");
        let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
        let deleted = leases.delete(name, &DeleteParams::default()).await;
        deleted.map(drop).or_else(unless_gone).map_err(failed("deleting the lease of", name))?;
    }
    Ok(())
}

/// Renews the lease of a Node until `stop`: for Kubernetes it is the sign of life of a kubelet.
pub async fn keep_lease(client: Client, name: String, stop: CancellationToken) {
    loop {
        let wait = match renew(&client, &name).await {
            Ok(()) => RENEWED_EVERY,
            Err(error) => {
                tracing::warn!(node = name, %error, "lease not renewed");
                RETRY
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn renew(client: &Client, name: &str) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let now = MicroTime(Timestamp::now());
    let patch = json!({ "spec": { "renewTime": now } });
    match leases.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            let mut lease = Lease {
                spec: Some(LeaseSpec {
                    holder_identity: Some(name.to_owned()),
                    lease_duration_seconds: Some(HOLDS_SECONDS),
                    renew_time: Some(now),
                    ..LeaseSpec::default()
                }),
                ..Lease::default()
            };
            lease.metadata.name = Some(name.to_owned());
            lease.metadata.labels = Some([(labels::MANAGED.to_owned(), "true".to_owned())].into());
            leases.create(&PostParams::default(), &lease).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

fn failed(step: &'static str, node: &str) -> impl FnOnce(kube::Error) -> Error {
    let node = node.to_owned();
    move |source| Error::Api { step, node, source }
}

fn unless_gone(error: kube::Error) -> kube::Result<()> {
    match error {
        // A conflict: the object of that name is another one by now.
        kube::Error::Api(status) if status.is_not_found() || status.is_conflict() => Ok(()),
        error => Err(error),
    }
}
