//! Which CA the clients of the kubelet API have their certificates from, followed live.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, runtime::watcher};
use liqo_kit::Cache;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::server::{ClientAuthority, TlsError};

/// Where every API server publishes the CA of its clients.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";

/// The client CA of the cluster, as it changes. Until it is known, and where the cluster publishes none, callers need a
/// token. A text that cannot be read changes nothing.
pub fn follow(client: Client, stop: CancellationToken) -> watch::Receiver<ClientAuthority> {
    let (sender, authority) = watch::channel(ClientAuthority::default());
    let published = Api::<ConfigMap>::namespaced(client, NAMESPACE);
    let only = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let reduce = |map: ConfigMap| map.data.and_then(|mut data| data.remove(KEY));
    Cache::watch(published, only, stop, reduce, move |_, _, pem| match pem.map(|pem| ClientAuthority::from_pem(pem)) {
        Some(Ok(authority)) => {
            sender.send_replace(authority);
        }
        Some(Err(error)) => {
            tracing::warn!(%error, "{KEY} in ConfigMap {NAMESPACE}/{NAME} cannot be used; what was known before stays in force");
        }
        None => tracing::warn!("{KEY} is gone from ConfigMap {NAMESPACE}/{NAME}; what was before holds"),
    });
    authority
}

/// A client CA that was configured by hand, for clusters whose API server calls kubelets with certificates of another CA
/// than the one that it publishes.
pub fn fixed(pem: &str) -> Result<watch::Receiver<ClientAuthority>, TlsError> {
    Ok(watch::channel(ClientAuthority::from_pem(pem)?).1)
}
