//! Watches the CA of the kubelet API's clients.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, runtime::watcher};
use liqo_controller_runtime::{Cache, watch};
use tokio_util::sync::CancellationToken;

use crate::https_listener::{ClientAuthority, ServingTlsError};

/// The API server publishes its client CA here.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";

/// The cluster's client CA. Until it is known, and in clusters that publish none, callers need a
/// token. An invalid PEM text changes nothing.
pub fn follow_client_ca(
    client: Client,
    stop: CancellationToken,
) -> watch::Receiver<ClientAuthority> {
    let (sender, authority) = watch::channel(ClientAuthority::default());
    let published = Api::<ConfigMap>::namespaced(client, NAMESPACE);
    let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    Cache::watch(
        published,
        only,
        stop,
        |map: ConfigMap| map.data.and_then(|mut data| data.remove(KEY)),
        move |_, _, pem| match pem.map(|pem| ClientAuthority::from_pem(pem)) {
            Some(Ok(authority)) => {
                sender.send_replace(authority);
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "{KEY} in ConfigMap {NAMESPACE}/{NAME} cannot be used; the former CA stays in use");
            }
            None => tracing::warn!(
                "{KEY} is gone from ConfigMap {NAMESPACE}/{NAME}; the former CA stays in use"
            ),
        },
    );
    authority
}

/// A client CA from a file, for clusters whose API server calls kubelets with certificates of
/// another CA than the published one.
pub fn client_ca_from_pem(pem: &str) -> Result<watch::Receiver<ClientAuthority>, ServingTlsError> {
    Ok(watch::channel(ClientAuthority::from_pem(pem)?).1)
}
