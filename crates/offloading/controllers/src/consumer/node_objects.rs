//! The Node and the Lease of a virtual node.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use liqo_api::{ClusterId, Key, labels, rfc3339};
use liqo_controller_runtime::Context;
use liqo_controller_runtime::writes::{
    StepContext as _, StepError, delete_if_present, only_with_uid, unless_changed, unless_gone,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use liqo_offloading_rules::node::difference::is_node_of_pool;
use liqo_offloading_rules::node::difference::metadata_patch;
use liqo_offloading_rules::node::difference::new_node;
use liqo_offloading_rules::node::difference::status_patch;
use liqo_offloading_rules::node::object::NodeSpec;
use liqo_offloading_rules::node::object::taints_patch;
use liqo_offloading_rules::views::NodeObjectView;

/// The namespace in which kubelets renew their leases.
const LEASES: &str = "kube-node-lease";

/// As kubelets do.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;

/// Delay after a renewal that failed.
const RENEWAL_RETRY: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum NodeObjectError {
    #[error(transparent)]
    Step(#[from] StepError),
    /// The Node of that name belongs to somebody else.
    #[error("a node named {node} exists and is not this virtual node; rename or remove it")]
    NameTaken { node: String },
    /// The object that we would create is not a Node.
    #[error("cannot encode Node {node}: {source}")]
    Malformed {
        node: String,
        source: serde_json::Error,
    },
}

/// The reduced form of a Node.
pub fn as_json(mut node: DynamicObject) -> Option<Value> {
    node.metadata.managed_fields = None;
    serde_json::to_value(node).ok()
}

fn node_api(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()))
}

/// Reads a Node.
pub async fn read_node(client: &Client, name: &str) -> Result<Option<Value>, NodeObjectError> {
    Ok(node_api(client)
        .get_opt(name)
        .await
        .step("read", "Node", node_key(name))?
        .and_then(as_json))
}

/// Creates the Node, or changes what differs from `spec`. `known` is the Node as the watch shows
/// it.
pub async fn ensure_node(
    context: &Context,
    cluster: &ClusterId,
    spec: &NodeSpec<'_>,
    known: Option<&Value>,
) -> Result<(), NodeObjectError> {
    let (now, key) = (rfc3339(context.now()), node_key(spec.name));
    let client = &context.client;
    let api = node_api(client);
    let live = match known {
        Some(known) => Some(known.clone()),
        None => read_node(client, spec.name).await?,
    };
    let Some(live) = live else {
        let node = serde_json::from_value(new_node(spec, &now)).map_err(|source| {
            NodeObjectError::Malformed {
                node: spec.name.to_owned(),
                source,
            }
        })?;
        api.create(&PostParams::default(), &node)
            .await
            .step("create", "Node", key)?;
        tracing::info!(node = spec.name, cluster = %cluster, pool = spec.pool, "virtual node created");
        return Ok(());
    };
    if !is_node_of_pool(&live, cluster, spec.pool) {
        return Err(NodeObjectError::NameTaken {
            node: spec.name.to_owned(),
        });
    }
    let parameters = PatchParams::default();
    // First, because it names the version that it was decided on.
    if let Some(patch) = taints_patch(&live, spec) {
        let answer = api
            .patch(spec.name, &parameters, &Patch::Merge(&patch))
            .await;
        // If somebody else wrote the Node meanwhile, the watch tells, and it is tried again.
        unless_changed(answer).step("taint", "Node", &key)?;
    }
    if let Some(patch) = metadata_patch(spec, &live) {
        api.patch(spec.name, &parameters, &Patch::Merge(&patch))
            .await
            .step("label", "Node", &key)?;
    }
    if let Some(patch) = status_patch(spec, &live, &now) {
        api.patch_status(spec.name, &parameters, &Patch::Strategic(&patch))
            .await
            .step("write the status of", "Node", key)?;
    }
    Ok(())
}

/// Keeps the scheduler off the Node.
pub async fn cordon_node(
    client: &Client,
    name: &str,
    known: &Value,
) -> Result<(), NodeObjectError> {
    if NodeObjectView::of(known).is_cordoned() {
        return Ok(());
    }
    patch(
        client,
        "cordon",
        name,
        &json!({ "spec": { "unschedulable": true } }),
    )
    .await
}

/// Applies a merge patch to a Node that may be gone.
pub async fn patch(
    client: &Client,
    verb: &'static str,
    name: &str,
    patch: &Value,
) -> Result<(), NodeObjectError> {
    let answer = node_api(client)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    unless_gone(answer).step(verb, "Node", node_key(name))?;
    Ok(())
}

/// Removes the Node, if it is ours, and its Lease.
pub async fn remove(
    client: &Client,
    name: &str,
    cluster: &ClusterId,
    pool: &str,
) -> Result<(), NodeObjectError> {
    let live = read_node(client, name).await?;
    if live
        .as_ref()
        .is_some_and(|live| !is_node_of_pool(live, cluster, pool))
    {
        return Ok(());
    }
    if let Some(live) = live {
        let uid = NodeObjectView::of(&live)
            .metadata()
            .uid()
            .unwrap_or_default();
        delete_if_present(&node_api(client), name, &only_with_uid(uid))
            .await
            .step("delete", "Node", node_key(name))?;
        tracing::info!(node = name, cluster = %cluster, pool, "virtual node deleted");
    }
    // Also if an earlier attempt came no further. A lease that is created at this moment goes with
    // the Node, which owns it.
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    delete_if_present(&leases, name, &DeleteParams::default())
        .await
        .step("delete", "Lease", Key::new(LEASES, name))?;
    Ok(())
}

/// Renews the lease of a Node until `stop`. Kubernetes takes it as the heartbeat of a kubelet.
pub async fn renew_lease(context: Context, name: String, stop: CancellationToken) {
    loop {
        let wait = match renew_lease_once(&context, &name).await {
            Ok(true) => RENEWAL_INTERVAL,
            Ok(false) => RENEWAL_RETRY,
            Err(error) => {
                tracing::warn!(node = name, %error, "lease not renewed");
                RENEWAL_RETRY
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Returns false if there is no Node yet.
async fn renew_lease_once(context: &Context, name: &str) -> Result<bool, NodeObjectError> {
    let leases: Api<Lease> = Api::namespaced(context.client.clone(), LEASES);
    let (now, key) = (MicroTime(context.now()), Key::new(LEASES, name));
    let patch = json!({ "spec": { "renewTime": now } });
    let answer = leases
        .patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    if unless_gone(answer).step("renew", "Lease", &key)?.is_some() {
        return Ok(true);
    }
    let Some(node) = read_node(&context.client, name).await? else {
        return Ok(false);
    };
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(labels::MANAGED.to_owned(), "true".to_owned())].into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.to_owned(),
                uid: NodeObjectView::of(&node)
                    .metadata()
                    .uid()
                    .unwrap_or_default()
                    .to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    leases
        .create(&PostParams::default(), &lease)
        .await
        .step("create", "Lease", key)?;
    Ok(true)
}

fn node_key(name: &str) -> Key {
    Key::new("", name)
}
