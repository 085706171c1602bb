//! `liqoctl version`.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use liqo_api::SYSTEM_NAMESPACE;
use serde::Serialize;

use crate::{
    cluster::{Cluster, ExplainFailure as _},
    manifests::MANAGER,
};

/// Version of this program.
pub const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// Says which build of Liqo a benchmark measures: the image of each cluster's manager, and the
/// profile of this program.
pub async fn measured_builds(clusters: &[&Cluster]) -> anyhow::Result<String> {
    let mut images = Vec::new();
    for cluster in clusters {
        let managers: Api<Deployment> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
        let manager = managers
            .get(MANAGER)
            .await
            .doing(format!("read Deployment {MANAGER}"))?;
        let pod = manager
            .spec
            .and_then(|spec| spec.template.spec)
            .unwrap_or_default();
        images.extend(
            pod.containers
                .into_iter()
                .filter_map(|container| container.image),
        );
    }
    images.dedup();
    let profile = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    Ok(format!(
        "measured with manager {}, and with this liqoctl in profile {profile}",
        images.join(" and ")
    ))
}

/// Versions on both sides.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    pub client: String,
    /// Liqo in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Kubernetes in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
}

pub fn client_version() -> Versions {
    Versions {
        client: CLIENT.to_owned(),
        server: None,
        kubernetes: None,
    }
}

/// This program and the cluster.
pub async fn client_and_cluster_versions(cluster: &Cluster) -> anyhow::Result<Versions> {
    let kubernetes = cluster
        .client
        .apiserver_version()
        .await
        .doing(format!("reach {}", cluster.server))?
        .git_version;
    let server = cluster
        .visible_configuration()
        .await?
        .and_then(|config| config.status?.version);
    Ok(Versions {
        server,
        kubernetes: Some(kubernetes),
        ..client_version()
    })
}

pub fn render_versions(versions: &Versions) -> String {
    let mut text = format!("Client: {}", versions.client);
    if let Some(kubernetes) = &versions.kubernetes {
        text = format!(
            "{text}\nServer: {}\nKubernetes: {kubernetes}",
            versions
                .server
                .as_deref()
                .unwrap_or("not installed, or not visible to you")
        );
    }
    text
}
