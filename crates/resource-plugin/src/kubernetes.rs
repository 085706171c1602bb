//! The cluster's API server, for plugins that look at it.

use kube::{Client, Config};

/// There is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// Neither in a cluster nor on a machine with a kubeconfig.
    #[error(
        "no access to the API server: this is no pod with a service account, and there is no kubeconfig (set KUBECONFIG): {0}"
    )]
    Access(#[from] kube::config::InferConfigError),
    /// What was found cannot be used.
    #[error("the client for the API server: {0}")]
    Client(#[from] kube::Error),
}

/// A client by the kubeconfig that `KUBECONFIG` or the home folder names, or else by the pod's service account. To be called
/// after the flags were read, so that `--help` needs no cluster.
pub async fn client() -> Result<Client, KubernetesError> {
    // Two providers may be linked into somebody's plugin; then rustls wants to be told.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(Client::try_from(Config::infer().await?)?)
}
