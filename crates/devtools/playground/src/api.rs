//! Clients for the clusters' API servers.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::error::{Error, Result};

/// Limit for a connection, and for the answer to `/readyz`: many clusters may share few cores.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client with the rights of the kubeconfig's user.
pub(crate) async fn client(cluster: &str, kubeconfig: &Path) -> Result<Client> {
    let failed = |reason: String| Error::Kubeconfig {
        cluster: cluster.to_owned(),
        reason,
    };
    let kubeconfig =
        Kubeconfig::read_from(kubeconfig).map_err(|error| failed(error.to_string()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(error.to_string()))?;
    // The clusters are on this machine, so proxies of the environment do not apply.
    config.proxy_url = None;
    config.connect_timeout = Some(TIMEOUT);
    Client::try_from(config).map_err(|error| failed(error.to_string()))
}

/// Whether the API server reports that it is ready. An open port is not enough: the default RBAC
/// rules come later.
pub(crate) async fn is_ready(client: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    let answer = tokio::time::timeout(TIMEOUT, client.request_text(request)).await;
    matches!(answer, Ok(Ok(text)) if text == "ok")
}
