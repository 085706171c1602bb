//! `liqoctl install`: check the cluster, apply the objects, wait until Liqo has its identity.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, ClusterId, ForeignCluster, PeeringPolicy};
use serde::Serialize;

use crate::{
    apply,
    cluster::{Cluster, Explained as _, is_absent, list_or_none},
    manifests::{self, FABRIC, FABRIC_NAMESPACE, MANAGER, NAMESPACE, RESOLVER, group, kind},
    preflight,
    progress::Progress,
    readiness, rollout,
    settings::{Present, Settings, Values},
    wait::{Poll, until},
};

#[derive(Clone, Debug)]
pub struct Options {
    pub settings: Settings,
    /// Time limit for each of: the kinds are served, the pods are available, the identity is known.
    pub timeout: Duration,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Installed {
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    pub kubernetes: String,
    pub image: String,
    /// The changed settings; nothing at the first installation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<Vec<&'static str>>,
    /// How many peers it has.
    pub peers: usize,
    /// Why the cluster cannot be a provider, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Installs or upgrades Liqo. Idempotent.
pub async fn install(cluster: &Cluster, options: &Options, progress: &Progress) -> anyhow::Result<Installed> {
    let findings = progress.step("Checking the cluster", preflight::check(cluster)).await?;
    let (values, changed) = values(cluster, &options.settings).await?;
    let objects = manifests::render(&values)?;
    progress
        .step("Applying Liqo's objects", async {
            for stage in stages(&objects, findings.admission_policies) {
                for object in &stage {
                    apply::apply(&cluster.client, object).await?;
                }
                let definitions: Vec<_> = stage.into_iter().filter(|object| kind(object) == "CustomResourceDefinition").collect();
                apply::established(&cluster.client, &definitions, options.timeout).await?;
            }
            anyhow::Ok(())
        })
        .await?;
    let step = "Waiting for the controller manager";
    progress.step(step, available(cluster, MANAGER, options.timeout, |text| progress.message(step, text))).await?;
    let step = "Waiting for the resolver";
    progress.step(step, available(cluster, RESOLVER, options.timeout, |text| progress.message(step, text))).await?;
    let step = "Waiting for the program on each node";
    let news = |text: &str| progress.message(step, text);
    let away = progress.step(step, rollout::finished(cluster, options.timeout, false, news)).await?.away;
    if !away.is_empty() {
        let away = away.into_iter().collect::<Vec<_>>().join(", ");
        progress.line(&format!("Not ready, and skipped: node {away}. They join the network when they are ready again."));
    }
    let step = "Waiting for the cluster's identity";
    let config = progress.step(step, identity(cluster, options.timeout, |text| progress.message(step, text))).await?;
    let status = config.status.clone().unwrap_or_default();
    let peers: Api<ForeignCluster> = Api::all(cluster.client.clone());
    let peers = list_or_none(&peers, &ListParams::default()).await.doing("list the peers")?.len();
    Ok(Installed {
        cluster_id: status
            .cluster_id
            .context("the identity has disappeared: see `kubectl -n liqo logs deployment/liqo-controller-manager`")?,
        cluster_name: config.spec.cluster_name,
        kubernetes: findings.version,
        image: values.image,
        changed,
        peers,
        warning: status
            .conditions
            .iter()
            .find(|condition| condition.type_ == liqo_api::ADDRESSES_KNOWN && condition.status == "False")
            .map(|condition| format!("other clusters cannot borrow from this one yet: {}", condition.message)),
    })
}

/// The objects that would be applied.
pub async fn dry_run(cluster: &Cluster, settings: &Settings) -> anyhow::Result<Vec<DynamicObject>> {
    let findings = preflight::check(cluster).await?;
    let objects = manifests::render(&values(cluster, settings).await?.0)?;
    Ok(stages(&objects, findings.admission_policies).into_iter().flatten().cloned().collect())
}

/// The resulting values, and those that change an existing installation.
async fn values(cluster: &Cluster, settings: &Settings) -> anyhow::Result<(Values, Option<Vec<&'static str>>)> {
    let policies: Api<PeeringPolicy> = Api::all(cluster.client.clone());
    let policy = match policies.get_opt("default").await {
        Err(error) if is_absent(&error) => None,
        policy => policy.doing("read PeeringPolicy default")?,
    };
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let deployment = deployments.get_opt(MANAGER).await.doing("read the Deployment of the controller manager")?;
    let avoid_nodes = deployment.as_ref().map(manifests::avoided_nodes).unwrap_or_default();
    let spec = deployment.and_then(|deployment| deployment.spec);
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), FABRIC_NAMESPACE);
    let set = sets.get_opt(FABRIC).await.doing("read DaemonSet liqo-fabric")?.and_then(|set| set.spec);
    let present = Present {
        config: cluster.config().await?,
        policy,
        replicas: spec.as_ref().and_then(|spec| u16::try_from(spec.replicas?).ok()).filter(|count| *count > 0),
        image: spec.and_then(|spec| spec.template.spec?.containers.into_iter().next()?.image),
        fabric_image: set.and_then(|spec| spec.template.spec?.containers.into_iter().next()?.image),
        avoid_nodes,
    };
    let wanted = Values::resolve(settings, &present, &cluster.context);
    let mut before = Values::resolve(&Settings::default(), &present, &cluster.context);
    before.image = present.image.unwrap_or_default();
    before.fabric_image = present.fabric_image.unwrap_or_default();
    let changed = present.config.is_some().then(|| changes(&before, &wanted));
    Ok((wanted, changed))
}

fn changes(before: &Values, after: &Values) -> Vec<&'static str> {
    let parts = [
        ("the cluster's name", before.cluster_name != after.cluster_name),
        ("its labels", before.cluster_labels != after.cluster_labels),
        ("the API server's address", before.api_server_address != after.api_server_address),
        ("its certificates", before.api_server_ca != after.api_server_ca),
        ("the auth endpoint's address", before.authentication_address != after.authentication_address),
        ("the policy default", before.policy != after.policy),
        ("the replicas", before.replicas != after.replicas),
        ("the nodes to avoid", before.avoid_nodes != after.avoid_nodes),
        ("the manager's image", before.image != after.image),
        ("the image of the program on each node", before.fabric_image != after.fabric_image),
        ("the network", before.network != after.network),
    ];
    parts.into_iter().filter_map(|(part, changed)| changed.then_some(part)).collect()
}

/// The custom resource definitions must be served before the rest is applied.
fn stages(objects: &[DynamicObject], admission_policies: bool) -> Vec<Vec<&DynamicObject>> {
    let fits = |object: &&DynamicObject| admission_policies || !kind(object).starts_with("ValidatingAdmissionPolicy");
    let (definitions, rest): (Vec<_>, Vec<_>) =
        objects.iter().filter(fits).partition(|object| group(object) == "apiextensions.k8s.io");
    vec![definitions, rest]
}

/// Waits until every replica of the current version of a Deployment is available.
async fn available(cluster: &Cluster, name: &str, timeout: Duration, news: impl FnMut(&str)) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    until(&format!("Deployment {name} is available"), timeout, news, || async {
        let deployment = deployments.get(name).await.doing(format!("read Deployment {name}"))?;
        if is_available(&deployment) {
            return Ok(Poll::Done(()));
        }
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={name}"));
        let pods = pods.list(&ours).await.doing(format!("list the pods of Deployment {name}"))?;
        let obstacle = pods.items.iter().find_map(|pod| Some((pod, readiness::obstacle(pod.status.as_ref()?)?)));
        Ok(Poll::NotYet(match obstacle {
            Some((pod, obstacle)) => format!("pod {}: {obstacle}", pod.name_any()),
            None => "its pods are starting".to_owned(),
        }))
    })
    .await
}

/// Whether all replicas run the current version of the Deployment.
fn is_available(deployment: &Deployment) -> bool {
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else { return false };
    let wanted = spec.replicas.unwrap_or(1);
    status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) >= wanted
        && status.available_replicas.unwrap_or(0) >= wanted
        && status.replicas.unwrap_or(0) <= wanted
}

async fn identity(cluster: &Cluster, timeout: Duration, news: impl FnMut(&str)) -> anyhow::Result<ClusterConfig> {
    let api: Api<ClusterConfig> = Api::all(cluster.client.clone());
    until("the identity of the cluster is known", timeout, news, || async {
        let config = api.get(CLUSTER_CONFIG).await.doing("read ClusterConfig liqo")?;
        let status = config.status.as_ref();
        let missing = match status {
            Some(status) if status.cluster_id.is_none() => "no cluster ID yet",
            Some(status) if status.conditions.iter().all(|condition| condition.type_ != liqo_api::ADDRESSES_KNOWN) => {
                "the addresses are being looked up"
            }
            Some(_) => return Ok(Poll::Done(config)),
            None => "the manager has not written anything yet",
        };
        Ok(Poll::NotYet(missing.to_owned()))
    })
    .await
}

/// The result as text for people.
pub fn table(installed: &Installed) -> String {
    let mut text = format!(
        "Liqo runs in cluster {} (ID {}, Kubernetes {}).",
        installed.cluster_name, installed.cluster_id, installed.kubernetes
    );
    match installed.changed.as_deref() {
        None => {}
        Some([]) => text += " Its settings are unchanged.",
        Some(changed) => text = format!("{text} Changed: {}.", changed.join(", ")),
    }
    if let Some(warning) = &installed.warning {
        text = format!("{text}\nNote: {warning}");
    }
    let peer = "`liqoctl peer --remote-kubeconfig FILE` to borrow from another cluster, ";
    format!("{text}\nNext: {}`liqoctl status` to see the cluster.", if installed.peers == 0 { peer } else { "" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn admission_policies_are_left_out_where_they_are_not_served() {
        let objects = manifests::render(&Values::resolve(&Settings::default(), &Present::default(), "x")).unwrap();
        let count = |served| {
            stages(&objects, served)
                .concat()
                .iter()
                .filter(|object| kind(object).starts_with("ValidatingAdmissionPolicy"))
                .count()
        };
        assert_eq!((count(true), count(false)), (10, 0));
        assert!(stages(&objects, true)[0].iter().all(|object| kind(object) == "CustomResourceDefinition"));
    }

    #[test]
    fn what_was_changed_is_told_and_what_comes_next_only_to_those_who_have_not_done_it() {
        let resolve = |set: &[&str]| Values::resolve(&Settings::parse(set).unwrap(), &Present::default(), "x");
        let (before, after) =
            (resolve(&[]), resolve(&["controllerManager.config.resourceSharingPercentage=10", "controllerManager.replicas=2"]));
        let text = |changed, peers| {
            let (cluster_id, name) = (ClusterId::of_public_key(&[1; 32]), String::from);
            table(&Installed {
                cluster_id,
                cluster_name: name("rome"),
                kubernetes: name("v1"),
                image: name("i"),
                changed,
                peers,
                warning: None,
            })
        };
        assert!(
            text(Some(changes(&before, &after)), 1)
                .contains("Changed: the policy default, the replicas.\nNext: `liqoctl status`")
        );
        assert!(text(Some(changes(&before, &before)), 1).contains("unchanged"));
        assert!(text(None, 0).contains("Kubernetes v1).\nNext: `liqoctl peer"));
    }

    #[test]
    fn a_deployment_counts_as_available_only_in_its_present_form() {
        let deployment = |observed: i64, updated: i32, available: i32, all: i32| -> Deployment {
            serde_json::from_value(json!({
                "metadata": { "generation": 2 },
                "spec": { "replicas": 1, "selector": {}, "template": {} },
                "status": { "observedGeneration": observed, "updatedReplicas": updated, "availableReplicas": available, "replicas": all },
            }))
            .unwrap()
        };
        assert!(is_available(&deployment(2, 1, 1, 1)));
        assert!(!is_available(&deployment(1, 1, 1, 1)));
        assert!(!is_available(&deployment(2, 0, 1, 1)));
        assert!(!is_available(&deployment(2, 1, 1, 2)));
    }
}
