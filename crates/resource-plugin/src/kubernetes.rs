//! A client of the cluster's API server, for plugins that use it.

use kube::{Client, Config};

/// No client of the API server can be created.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// There is no service account and no kubeconfig.
    #[error(
        "no access to the API server: there is no service account and no kubeconfig (in a pod, mount the token; elsewhere, set KUBECONFIG): {0}"
    )]
    Access(#[from] kube::config::InferConfigError),
    /// The service account or the kubeconfig is invalid.
    #[error("cannot create a client of the API server: {0}")]
    Client(#[from] kube::Error),
}

/// A client that uses the kubeconfig of `KUBECONFIG` or of the home folder, else the pod's service
/// account. Call it after the flags were parsed, so that `--help` needs no cluster.
pub async fn client() -> Result<Client, KubernetesError> {
    // If a plugin links two providers, rustls needs an explicit choice.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(Client::try_from(Config::infer().await?)?)
}
