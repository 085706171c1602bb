//! Finds the addresses at which other clusters reach this one, and writes them, with the cluster's
//! identity, into the status of the `ClusterConfig`. [`find_addresses`] has the rules.

use std::{sync::Arc, time::Duration};

use data_encoding::BASE64;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::{AUTH_SERVICE, CLUSTER_CONFIG, ClusterConfig, ClusterConfigSpec, labels};
use liqo_controller_runtime::{
    Context, Key, conditions, watch,
    writes::{StepContext as _, StepError},
};
use liqo_signing::ClusterIdentity;
use serde_json::json;

use crate::{
    FIELD_MANAGER,
    decide::addresses::{AddressSources, AnnouncedAddresses, addresses_condition, find_addresses},
};

/// Name of the `ConfigMap` with the API server's CA, which Kubernetes creates in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Time until the next look at the cluster, while something is missing.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// The same, while nothing is missing.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// Keeps the addresses and the status of the `ClusterConfig` current until `context.stop`.
pub async fn keep_addresses_current(
    context: Context,
    identity: Arc<ClusterIdentity>,
    found: watch::Sender<Option<AnnouncedAddresses>>,
) {
    let mut config = context.config.clone();
    loop {
        let current = config.borrow_and_update().clone();
        let delay = match update_addresses(&context, &identity, &current, &found).await {
            Ok(true) => REFRESH_INTERVAL,
            Ok(false) => RETRY_DELAY,
            Err(error) => {
                tracing::warn!(%error, "cannot find out how other clusters reach this one, will try again");
                RETRY_DELAY
            }
        };
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            changed = config.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(delay) => {}
        }
    }
}

async fn update_addresses(
    context: &Context,
    identity: &ClusterIdentity,
    config: &ClusterConfig,
    found: &watch::Sender<Option<AnnouncedAddresses>>,
) -> Result<bool, StepError> {
    let addresses = find_addresses(
        &config.spec,
        &read_environment(context, &config.spec).await?,
    );
    let complete = addresses.auth_url.is_ok() && addresses.api_server.is_ok();
    write_status(context, identity, config, &addresses).await?;
    found.send_if_modified(|old| {
        let changed = old.as_ref() != Some(&addresses);
        *old = Some(addresses);
        changed
    });
    Ok(complete)
}

async fn read_environment(
    context: &Context,
    spec: &ClusterConfigSpec,
) -> Result<AddressSources, StepError> {
    let client = &context.client;
    let mut environment = AddressSources::default();
    if spec.authentication.address.is_none() {
        let services: Api<Service> = Api::namespaced(client.clone(), &context.namespace);
        environment.auth_service = services.get_opt(AUTH_SERVICE).await.step(
            "read",
            "Service",
            Key::new(&context.namespace, AUTH_SERVICE),
        )?;
    }
    if spec.api_server.address.is_none() || spec.api_server.ca.is_none() {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
        // Many clusters have none, or do not let us read it.
        environment.cluster_info = match maps.get_opt("cluster-info").await {
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => None,
            read => read.step("read", "ConfigMap", Key::new("kube-public", "cluster-info"))?,
        };
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &context.namespace);
        environment.root_ca = maps.get_opt(ROOT_CA).await.step(
            "read",
            "ConfigMap",
            Key::new(&context.namespace, ROOT_CA),
        )?;
    }
    if spec.authentication.address.is_none() || spec.api_server.address.is_none() {
        let nodes: Api<Node> = Api::all(client.clone());
        let control_plane = ListParams::default()
            .labels("node-role.kubernetes.io/control-plane")
            .limit(20);
        let others = ListParams::default()
            .labels(&format!("{}!={}", labels::TYPE, labels::TYPE_VIRTUAL_NODE))
            .limit(20);
        environment.nodes = nodes
            .list(&control_plane)
            .await
            .step("list", "Nodes", Key::default())?
            .items;
        if environment.nodes.is_empty() {
            environment.nodes = nodes
                .list(&others)
                .await
                .step("list", "Nodes", Key::default())?
                .items;
        }
    }
    Ok(environment)
}

async fn write_status(
    context: &Context,
    identity: &ClusterIdentity,
    config: &ClusterConfig,
    addresses: &AnnouncedAddresses,
) -> Result<(), StepError> {
    let api: Api<ClusterConfig> = Api::all(context.client.clone());
    let old = config.status.clone().unwrap_or_default();
    let mut new = old.clone();
    new.cluster_id = Some(identity.id().clone());
    new.public_key = Some(BASE64.encode(identity.public_key()));
    new.version = Some(env!("CARGO_PKG_VERSION").to_owned());
    new.auth_url = addresses.auth_url.clone().ok();
    new.api_server_url = addresses
        .api_server
        .as_ref()
        .ok()
        .map(|server| server.url.clone());
    if new != old {
        let status = json!({
            "clusterID": new.cluster_id, "publicKey": new.public_key, "version": new.version,
            "authURL": new.auth_url, "apiServerURL": new.api_server_url,
        });
        let written = api
            .patch_status(
                CLUSTER_CONFIG,
                &PatchParams::default(),
                &Patch::Merge(json!({ "status": status })),
            )
            .await;
        written.step(
            "write the status of",
            "ClusterConfig",
            Key::of_object(config),
        )?;
    }
    let written = conditions::apply_to_config(
        context,
        config,
        FIELD_MANAGER,
        &[addresses_condition(addresses)],
    )
    .await;
    written
        .step(
            "write the conditions of",
            "ClusterConfig",
            Key::of_object(config),
        )
        .map(drop)
}
