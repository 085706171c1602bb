//! `liqoctl version`.

use serde::Serialize;

use crate::cluster::{Cluster, ExplainFailure as _};

/// Version of this program.
pub const CLIENT: &str = env!("CARGO_PKG_VERSION");

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
