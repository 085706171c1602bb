//! The plugin of a broker in the cluster of the kubeconfig: its pod, and a token for its catalog.

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use liqo_api::catalog::AUDIENCE;

use super::https::CatalogClient;
use crate::{
    cluster::{Cluster, ExplainFailure as _, is_absent},
    lists,
    manifests::NAMESPACE,
    readiness,
};

/// Label of the plugin's pods, as in `deploy/broker`.
pub(super) const SELECTOR: (&str, &str) = ("app.kubernetes.io/name", "liqo-broker-plugin");
/// Name of the catalog's port there.
pub(super) const PORT_NAME: &str = "catalog";
/// The account there that may read the catalog, and nothing else.
pub(super) const READER: &str = "liqo-broker-catalog-reader";
/// Lifetime of a token in seconds: the shortest that Kubernetes gives.
const TOKEN_LIFETIME: i64 = 600;

/// The reason why there is no catalog in this cluster.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum CatalogPodError {
    #[error(
        "the broker's plugin does not run in namespace {NAMESPACE} of this cluster: a broker runs `kubectl apply -n {NAMESPACE} -f \
         deploy/broker`, a customer names the broker's catalog with --url https://HOST:PORT"
    )]
    NoPlugin,
    #[error(
        "pod {pod} of the broker's plugin is not ready: see `kubectl -n {NAMESPACE} describe pod {pod}`"
    )]
    NotReady { pod: String },
    /// The pod has no port of that name.
    #[error(
        "pod {pod} of the broker's plugin has no port {PORT_NAME}: deploy/broker shows how to start it with --catalog-port"
    )]
    NoPort { pod: String },
}

/// Finds the pod of the plugin.
pub async fn find_catalog_pod(cluster: &Cluster) -> anyhow::Result<CatalogClient> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let of_plugin = ListParams::default().labels(&format!("{}={}", SELECTOR.0, SELECTOR.1));
    let found = lists::list_pods_of_namespace(cluster, NAMESPACE, &of_plugin).await?;
    let (pod, port) = choose_ready_pod(&found)?;
    CatalogClient::for_pod(pods, &pod, port)
}

/// A ready pod, and the port of its catalog.
pub(super) fn choose_ready_pod(pods: &[Pod]) -> Result<(String, u16), CatalogPodError> {
    let ready = pods.iter().find(|pod| readiness::pod(pod));
    let Some(pod) = ready else {
        return Err(pods.first().map_or(CatalogPodError::NoPlugin, |pod| {
            CatalogPodError::NotReady {
                pod: pod.name_any(),
            }
        }));
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports
        .find(|port| port.name.as_deref() == Some(PORT_NAME))
        .and_then(|port| port.container_port.try_into().ok());
    port.map(|port| (pod.name_any(), port))
        .ok_or_else(|| CatalogPodError::NoPort {
            pod: pod.name_any(),
        })
}

/// A token for the catalog.
pub async fn request_catalog_token(cluster: &Cluster) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let spec = TokenRequestSpec {
        audiences: vec![AUDIENCE.to_owned()],
        expiration_seconds: Some(TOKEN_LIFETIME),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest {
        spec,
        ..TokenRequest::default()
    };
    match accounts
        .create_token_request(READER, &PostParams::default(), &request)
        .await
    {
        Err(error) if is_absent(&error) => anyhow::bail!(
            "ServiceAccount {READER} does not exist: run `kubectl apply -n {NAMESPACE} -f deploy/broker` again, or use --token-file"
        ),
        answer => {
            let answer = answer.doing(format!(
                "get a token for ServiceAccount {READER}: --token-file names another one"
            ))?;
            Ok(answer.status.map(|status| status.token).unwrap_or_default())
        }
    }
}
