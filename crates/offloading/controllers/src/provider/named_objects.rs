//! `ConfigMap`s and Secrets in mapped namespaces that are no replicas: somebody of this cluster made them for its own purposes, for
//! example credentials for a registry in every namespace. A consumer's pod does not get to read them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Resource, ResourceExt, api::ListParams, core::NamespaceResourceScope};
use liqo_api::labels;
use liqo_controller_runtime::Key;
use liqo_controller_runtime::writes::Step as _;
use liqo_offloading_rules::pod::admission::Refusal;
use liqo_offloading_rules::pod::references::{References, first_of_provider};
use serde::de::DeserializeOwned;

use super::state::{Error, Provider};

/// The refusal of a pod that names such an object. Whatever the pod names, this lists each kind at most once, and only what is not
/// a replica.
pub async fn refusal(provider: &Provider, named: &References, namespace: &str) -> Result<Option<Refusal>, Error> {
    let mut own = References::default();
    if !named.config_maps.is_empty() {
        own.config_maps = not_reflected::<ConfigMap>(provider, namespace, "ConfigMap").await?;
    }
    if !named.secrets.is_empty() {
        own.secrets = not_reflected::<Secret>(provider, namespace, "Secret").await?;
    }
    Ok(first_of_provider(named, &own).map(|(kind, name)| Refusal::not_a_replica(kind, name)))
}

async fn not_reflected<K>(provider: &Provider, namespace: &str, kind: &'static str) -> Result<BTreeSet<String>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(provider.context.client.clone(), namespace);
    let others = ListParams::default().labels(&format!("{}!=true", labels::REFLECTED));
    let found = api.list_metadata(&others).await.step("list", kind, Key::new(namespace, ""))?;
    Ok(found.items.iter().map(ResourceExt::name_any).collect())
}
