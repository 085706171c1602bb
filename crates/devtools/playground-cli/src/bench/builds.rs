//! Which build of Liqo a bench measures.

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use liqo_api::SYSTEM_NAMESPACE;
use liqoctl::{
    cluster::{Cluster, ExplainFailure as _},
    manifests::MANAGER,
};

/// The builds in words: the image of each cluster's manager, and the
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
        "measured with manager {}, and with this liqo-playground in profile {profile}",
        images.join(" and ")
    ))
}
