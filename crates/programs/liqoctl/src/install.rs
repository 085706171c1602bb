//! `liqoctl install`: check the cluster, apply the objects, wait until Liqo has its identity.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Container, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
};
use liqo_api::isolation::{self, Lending};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, ClusterId, PeeringPolicy};
use parking_lot::Mutex;
use serde::Serialize;

use crate::{
    apply,
    cluster::{Cluster, ExplainFailure as _, is_absent},
    image_pulls::{FailedPulls, PullOutlook, missing_images_of_version},
    lists::{self, NodeSelection},
    manifests::{
        self, FABRIC, FABRIC_NAMESPACE, LEADER_LOG, MANAGER, ManifestError, NAMESPACE, RESOLVER,
        group, is_admission_policy, kind,
    },
    preflight,
    progress::StepProgress,
    readiness, replicas, rollout,
    settings::{InstallSettings, InstallValues, InstalledState},
    wait::{PollResult, final_error, until},
};

/// Exit code of a program that does not know its arguments.
const UNKNOWN_ARGUMENT: i32 = 2;
/// Maximum wait for the result of the manager's first test of the pod network. Nothing fails
/// without it.
const ISOLATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two checks for it.
const ISOLATION_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct InstallOptions {
    pub settings: InstallSettings,
    /// Whether to install where Kubernetes has no admission policies.
    pub allow_no_policies: bool,
    /// Time limit for each of: the kinds are served, the pods are available, the identity is known.
    pub timeout: Duration,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstallResult {
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    pub kubernetes: String,
    pub image: String,
    /// The changed settings; nothing at the first installation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<Vec<&'static str>>,
    pub peers: usize,
    /// Whether it looks for other clusters on the local network or in domains.
    pub discovers: bool,
    /// Advice if the present number of replicas does not fit the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_note: Option<String>,
    /// The consequences of the pod network for lending, unless it isolates the pods of consumers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation_note: Option<String>,
    /// The reason why the cluster cannot be a provider, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Installs or upgrades Liqo. Idempotent.
pub async fn install_liqo(
    cluster: &Cluster,
    options: &InstallOptions,
    progress: &StepProgress,
) -> anyhow::Result<InstallResult> {
    let findings = progress
        .run_step(
            "Checking the cluster",
            preflight::check_before_install(cluster, options.allow_no_policies),
        )
        .await?;
    let ResolvedSettings {
        values,
        changed,
        replicas_note,
    } = Box::pin(resolve_settings(cluster, &options.settings)).await?;
    let objects = manifests::render_manifests(&values)?;
    progress
        .run_step(
            "Applying Liqo's objects",
            apply_objects(
                cluster,
                &objects,
                &values,
                findings.admission_policies,
                options.timeout,
            ),
        )
        .await?;
    let step = "Waiting for the controller manager";
    wait_for_deployment(cluster, MANAGER, step, options.timeout, progress).await?;
    wait_for_nodes(cluster, options.timeout, progress).await?;
    let step = "Waiting for the cluster's identity";
    let config = progress
        .run_step(
            step,
            wait_for_identity(cluster, options.timeout, |text| {
                progress.message(step, text);
            }),
        )
        .await?;
    // Last, because everything else works without it.
    let step = "Waiting for the resolver";
    wait_for_deployment(cluster, RESOLVER, step, options.timeout, progress).await?;
    let step = "Testing whether NetworkPolicies are enforced";
    let isolation_note = isolation_note(&progress.run_step(step, isolation_test(cluster)).await?);
    let status = config.status.clone().unwrap_or_default();
    let peers = lists::list_peers(cluster).await?.len();
    let domains = lists::list_search_domains(cluster).await?;
    Ok(InstallResult {
        cluster_id: status
            .cluster_id
            .with_context(|| format!("the identity has disappeared: see `{LEADER_LOG}`"))?,
        cluster_name: config.spec.cluster_name,
        kubernetes: findings.version,
        image: values.image,
        changed,
        peers,
        discovers: config.spec.discovery.lan.enabled || !domains.is_empty(),
        replicas_note,
        isolation_note,
        warning: lending_warning(&status.conditions),
    })
}

/// Applies those objects that have a use with these values, and deletes the others.
async fn apply_objects(
    cluster: &Cluster,
    objects: &[DynamicObject],
    values: &InstallValues,
    admission_policies: bool,
    timeout: Duration,
) -> anyhow::Result<()> {
    for stage in apply_stages(objects, values, admission_policies) {
        for object in &stage {
            apply::apply_object(&cluster.client, object).await?;
        }
        let definitions: Vec<_> = stage
            .into_iter()
            .filter(|object| kind(object) == "CustomResourceDefinition")
            .collect();
        apply::wait_until_established(&cluster.client, &definitions, timeout).await?;
    }
    for object in objects.iter().filter(|object| !is_needed(object, values)) {
        apply::delete_if_present(&apply::api_of(&cluster.client, object)?, &object.name_any())
            .await?;
    }
    Ok(())
}

async fn wait_for_deployment(
    cluster: &Cluster,
    name: &str,
    step: &str,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<()> {
    progress
        .run_step(
            step,
            wait_until_available(cluster, name, timeout, |text| progress.message(step, text)),
        )
        .await
}

/// Waits for the program on each node, and tells which nodes were skipped.
async fn wait_for_nodes(
    cluster: &Cluster,
    timeout: Duration,
    progress: &StepProgress,
) -> anyhow::Result<()> {
    let step = "Waiting for the program on each node";
    let away = progress
        .run_step(
            step,
            rollout::wait_for_rollout(cluster, timeout, rollout::FabricForm::Normal, |text| {
                progress.message(step, text);
            }),
        )
        .await?
        .away;
    if !away.is_empty() {
        let away = away.into_iter().collect::<Vec<_>>().join(", ");
        progress.print_line(&format!(
            "Not ready, and skipped: node {away}. They join the network when they are ready again."
        ));
    }
    Ok(())
}

/// The reason why the cluster cannot be a provider, if it cannot.
fn lending_warning(conditions: &[Condition]) -> Option<String> {
    let unknown = conditions.iter().find(|condition| {
        condition.type_ == liqo_api::ADDRESSES_KNOWN && condition.status == "False"
    })?;
    Some(format!(
        "other clusters cannot borrow from this one yet: {}",
        unknown.message
    ))
}

/// The objects that would be applied.
pub async fn dry_run(
    cluster: &Cluster,
    options: &InstallOptions,
) -> anyhow::Result<Vec<DynamicObject>> {
    let findings = preflight::check_before_install(cluster, options.allow_no_policies).await?;
    let values = Box::pin(resolve_settings(cluster, &options.settings))
        .await?
        .values;
    Ok(installation_objects(&values, findings.admission_policies)?)
}

/// The objects that an installation with these values applies.
pub fn installation_objects(
    values: &InstallValues,
    admission_policies: bool,
) -> Result<Vec<DynamicObject>, ManifestError> {
    let objects = manifests::render_manifests(values)?;
    Ok(apply_stages(&objects, values, admission_policies)
        .into_iter()
        .flatten()
        .cloned()
        .collect())
}

/// The settings as they are resolved for this cluster.
struct ResolvedSettings {
    values: InstallValues,
    /// The settings that change an existing installation.
    changed: Option<Vec<&'static str>>,
    replicas_note: Option<String>,
}

async fn resolve_settings(
    cluster: &Cluster,
    settings: &InstallSettings,
) -> anyhow::Result<ResolvedSettings> {
    let policies: Api<PeeringPolicy> = Api::all(cluster.client.clone());
    let policy = read_policy(&policies, "default").await?;
    let auto_peering = read_policy(&policies, manifests::AUTO_PEERING).await?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let deployment = deployments
        .get_opt(MANAGER)
        .await
        .doing("read the Deployment of the controller manager")?;
    let avoid_nodes = deployment
        .as_ref()
        .map(manifests::avoided_nodes)
        .unwrap_or_default();
    let spec = deployment.and_then(|deployment| deployment.spec);
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), FABRIC_NAMESPACE);
    let set = sets
        .get_opt(FABRIC)
        .await
        .doing("read DaemonSet liqo-fabric")?
        .and_then(|set| set.spec?.template.spec);
    let present = InstalledState {
        config: cluster.read_configuration().await?,
        policy,
        auto_peering,
        replicas: spec
            .as_ref()
            .and_then(|spec| u16::try_from(spec.replicas?).ok())
            .filter(|count| *count > 0),
        image: spec.and_then(|spec| spec.template.spec?.containers.into_iter().next()?.image),
        key_directory: set.as_ref().and_then(manifests::key_directory),
        fabric_image: set.and_then(|pod| pod.containers.into_iter().next()?.image),
        avoid_nodes,
        nodes: lists::list_nodes(cluster, NodeSelection::All).await?,
    };
    let wanted = InstallValues::resolve(settings, &present, &cluster.context);
    let mut before =
        InstallValues::resolve(&InstallSettings::default(), &present, &cluster.context);
    before.image = present.image.unwrap_or_default();
    before.fabric_image = present.fabric_image.unwrap_or_default();
    let changed = present
        .config
        .is_some()
        .then(|| changed_settings(&before, &wanted));
    let usable = replicas::usable_nodes(&present.nodes, &wanted.avoid_nodes);
    // A user who sets a number has a reason.
    let misfit = replicas::replica_mismatch(wanted.replicas.into(), usable)
        .filter(|_| settings.replicas.is_none());
    let replicas_note = misfit.map(|misfit| format!("{}; {}", misfit.what, misfit.advice));
    Ok(ResolvedSettings {
        values: wanted,
        changed,
        replicas_note,
    })
}

async fn read_policy(
    policies: &Api<PeeringPolicy>,
    name: &str,
) -> anyhow::Result<Option<PeeringPolicy>> {
    match policies.get_opt(name).await {
        Err(error) if is_absent(&error) => Ok(None),
        policy => policy.doing(format!("read PeeringPolicy {name}")),
    }
}

fn changed_settings(before: &InstallValues, after: &InstallValues) -> Vec<&'static str> {
    let parts = [
        (
            "the cluster's name",
            before.cluster_name != after.cluster_name,
        ),
        ("its labels", before.cluster_labels != after.cluster_labels),
        (
            "the API server's address",
            before.api_server_address != after.api_server_address,
        ),
        (
            "its certificates",
            before.api_server_ca != after.api_server_ca,
        ),
        (
            "the auth endpoint's address",
            before.authentication_address != after.authentication_address,
        ),
        ("the policy default", before.policy != after.policy),
        ("the replicas", before.replicas != after.replicas),
        (
            "the nodes to avoid",
            before.avoid_nodes != after.avoid_nodes,
        ),
        ("the manager's image", before.image != after.image),
        (
            "the image of the program on each node",
            before.fabric_image != after.fabric_image,
        ),
        (
            "the directory of the gateways' keys",
            before.key_directory != after.key_directory,
        ),
        (
            "whether it lends without NetworkPolicies",
            before.lend_without_network_policies != after.lend_without_network_policies,
        ),
        (
            "the lifetime of credentials",
            before.credential_lifetime_seconds != after.credential_lifetime_seconds,
        ),
        ("the network", before.network != after.network),
        ("discovery", before.discovery != after.discovery),
        (
            "automatic peering",
            before.auto_peering != after.auto_peering,
        ),
    ];
    parts
        .into_iter()
        .filter_map(|(part, changed)| changed.then_some(part))
        .collect()
}

/// Whether the cluster should have this object. A disruption budget says nothing about a single
/// replica.
pub(crate) fn is_needed(object: &DynamicObject, values: &InstallValues) -> bool {
    match kind(object) {
        "PodDisruptionBudget" => values.replicas > 1,
        "PeeringPolicy" if object.name_any() == manifests::AUTO_PEERING => {
            values.auto_peering.is_some()
        }
        _ => true,
    }
}

/// The custom resource definitions must be served before the rest is applied.
fn apply_stages<'a>(
    objects: &'a [DynamicObject],
    values: &InstallValues,
    admission_policies: bool,
) -> Vec<Vec<&'a DynamicObject>> {
    let (definitions, rest): (Vec<_>, Vec<_>) = objects
        .iter()
        .filter(|object| admission_policies || !is_admission_policy(object))
        .filter(|object| is_needed(object, values))
        .partition(|object| group(object) == "apiextensions.k8s.io");
    vec![definitions, rest]
}

/// Waits until every replica of the current version of a Deployment is available. Fails early if
/// its image has no resolver, or if a node cannot get the image.
async fn wait_until_available(
    cluster: &Cluster,
    name: &str,
    timeout: Duration,
    news: impl FnMut(&str),
) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let pulls = Mutex::new(FailedPulls::default());
    until(&format!("Deployment {name} is available"), timeout, news, || async {
        let deployment = deployments.get(name).await.doing(format!("read Deployment {name}"))?;
        if is_available(&deployment) {
            return Ok(PollResult::Done(()));
        }
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={name}"));
        let pods = lists::list_pods_of_namespace(cluster, NAMESPACE, &ours).await?;
        if let Some(image) = too_old_image(&deployment, &pods) {
            return Err(final_error(format!(
                "image {image} has no {name}: it is older than this liqoctl. Liqo runs, but remote pods resolve names as in this cluster. \
                 Set controllerManager.image to one of this version, or install with the liqoctl of the image's version"
            )));
        }
        let missing = missing_images_of_version(&pods, containers_of(&deployment));
        let outlook = pulls.lock().observe(missing);
        match outlook {
            PullOutlook::Hopeless(text) => Err(final_error(text)),
            PullOutlook::TriedAgain(text) => Ok(PollResult::NotYet(text)),
            PullOutlook::NothingMissing => Ok(PollResult::NotYet(why_not_available(&deployment, &pods))),
        }
    })
    .await
}

/// The containers of the current version of a Deployment.
fn containers_of(deployment: &Deployment) -> &[Container] {
    let spec = deployment.spec.as_ref();
    let pod = spec.and_then(|spec| spec.template.spec.as_ref());
    pod.map(|pod| pod.containers.as_slice()).unwrap_or_default()
}

/// The first thing that a Deployment waits for.
fn why_not_available(deployment: &Deployment, pods: &[Pod]) -> String {
    if let Some(refusal) = readiness::why_pods_refused(deployment) {
        return format!("its pods are refused: {refusal}");
    }
    let obstacle = pods.iter().find_map(|pod| {
        let why = readiness::why_pod_not_ready(pod.status.as_ref()?)?;
        Some(format!("pod {}: {why}", pod.name_any()))
    });
    obstacle.unwrap_or_else(|| "its pods are starting".to_owned())
}

/// The image of the resolver's Deployment if its program ended because it does not know the
/// resolver. Every version knows the manager.
fn too_old_image<'a>(deployment: &'a Deployment, pods: &[Pod]) -> Option<&'a str> {
    if deployment.metadata.name.as_deref() != Some(RESOLVER) {
        return None;
    }
    let wanted = containers_of(deployment).first()?.image.as_deref()?;
    pods.iter()
        .any(|pod| runs_image(pod, wanted) && ended_for_unknown_argument(pod))
        .then_some(wanted)
}

fn runs_image(pod: &Pod, image: &str) -> bool {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|one| one.image.as_deref()) == Some(image)
}

fn ended_for_unknown_argument(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref())
        .into_iter()
        .flatten();
    let mut states = statuses
        .flat_map(|status| [&status.state, &status.last_state])
        .flatten();
    states.any(|state| {
        state
            .terminated
            .as_ref()
            .is_some_and(|ended| ended.exit_code == UNKNOWN_ARGUMENT)
    })
}

/// Whether all replicas run the current version of the Deployment.
fn is_available(deployment: &Deployment) -> bool {
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else {
        return false;
    };
    let wanted = spec.replicas.unwrap_or(1);
    status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) >= wanted
        && status.available_replicas.unwrap_or(0) >= wanted
        && status.replicas.unwrap_or(0) <= wanted
}

async fn wait_for_identity(
    cluster: &Cluster,
    timeout: Duration,
    news: impl FnMut(&str),
) -> anyhow::Result<ClusterConfig> {
    let api: Api<ClusterConfig> = Api::all(cluster.client.clone());
    until(
        "the identity of the cluster is known",
        timeout,
        news,
        || async {
            let config = api
                .get(CLUSTER_CONFIG)
                .await
                .doing("read ClusterConfig liqo")?;
            let status = config.status.as_ref();
            let missing = match status {
                Some(status) if status.cluster_id.is_none() => "no cluster ID yet",
                Some(status)
                    if status
                        .conditions
                        .iter()
                        .all(|condition| condition.type_ != liqo_api::ADDRESSES_KNOWN) =>
                {
                    "the addresses are being looked up"
                }
                Some(_) => return Ok(PollResult::Done(config)),
                None => "the manager has not written anything yet",
            };
            Ok(PollResult::NotYet(missing.to_owned()))
        },
    )
    .await
}

/// Waits a while until the manager knows whether the pod network enforces `NetworkPolicies`. Does
/// not wait where nothing depends on it.
async fn isolation_test(cluster: &Cluster) -> anyhow::Result<ClusterConfig> {
    let api: Api<ClusterConfig> = Api::all(cluster.client.clone());
    let deadline = tokio::time::Instant::now() + ISOLATION_TIMEOUT;
    loop {
        let config = api
            .get(CLUSTER_CONFIG)
            .await
            .doing("read ClusterConfig liqo")?;
        if Lending::of_config(&config) != Lending::Untested
            || tokio::time::Instant::now() >= deadline
        {
            return Ok(config);
        }
        tokio::time::sleep(ISOLATION_INTERVAL).await;
    }
}

/// A note to the user about the isolation of consumers' pods; nothing if they are isolated.
fn isolation_note(config: &ClusterConfig) -> Option<String> {
    let allowed = config.spec.lend_without_network_policies;
    (Lending::of_config(config) != Lending::Isolated)
        .then(|| isolation::describe_lending(isolation::are_policies_enforced(config), allowed))
}

/// The result as text for people.
pub fn render_install_result(installed: &InstallResult) -> String {
    let mut text = format!(
        "Liqo runs in cluster {} (ID {}, Kubernetes {}).",
        installed.cluster_name, installed.cluster_id, installed.kubernetes
    );
    match installed.changed.as_deref() {
        None => {}
        Some([]) => text += " Its settings are unchanged.",
        Some(changed) => text = format!("{text} Changed: {}.", changed.join(", ")),
    }
    for note in installed
        .replicas_note
        .iter()
        .chain(&installed.isolation_note)
        .chain(&installed.warning)
    {
        text = format!("{text}\nNote: {note}");
    }
    let next = match (installed.discovers, installed.peers) {
        (true, _) => "`liqoctl discover` to see which clusters are found and peered, ",
        (false, 0) => "`liqoctl peer --remote-kubeconfig FILE` to borrow from another cluster, ",
        (false, _) => "",
    };
    format!("{text}\nNext: {next}`liqoctl status` to see the cluster.")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn admission_policies_are_left_out_where_they_are_not_served() {
        let values =
            InstallValues::resolve(&InstallSettings::default(), &InstalledState::default(), "x");
        let objects = manifests::render_manifests(&values).unwrap();
        let count = |served| {
            apply_stages(&objects, &values, served)
                .concat()
                .iter()
                .filter(|object| is_admission_policy(object))
                .count()
        };
        assert_eq!((count(true), count(false)), (26, 0));
        assert!(
            apply_stages(&objects, &values, true)[0]
                .iter()
                .all(|object| kind(object) == "CustomResourceDefinition")
        );
    }

    #[test]
    fn only_several_replicas_have_a_disruption_budget_which_lets_one_of_them_go() {
        let budget = |set: &str| {
            let values = InstallValues::resolve(
                &InstallSettings::parse(&[set]).unwrap(),
                &InstalledState::default(),
                "x",
            );
            let objects = manifests::render_manifests(&values).unwrap();
            let applied = apply_stages(&objects, &values, true).concat();
            applied
                .into_iter()
                .find(|object| kind(object) == "PodDisruptionBudget")
                .map(|budget| budget.data["spec"].clone())
        };
        assert_eq!(budget("controllerManager.replicas=1"), None);
        let two = budget("controllerManager.replicas=2").unwrap();
        assert_eq!(
            (&two["maxUnavailable"], &two["minAvailable"]),
            (&json!(1), &serde_json::Value::Null)
        );
    }

    #[test]
    fn what_was_changed_is_told_and_what_comes_next_only_to_those_who_have_not_done_it() {
        let resolve = |set: &[&str]| {
            InstallValues::resolve(
                &InstallSettings::parse(set).unwrap(),
                &InstalledState::default(),
                "x",
            )
        };
        let (before, after) = (
            resolve(&[]),
            resolve(&[
                "controllerManager.config.resourceSharingPercentage=10",
                "controllerManager.replicas=2",
            ]),
        );
        let next = |changed, peers, discovers| {
            let (cluster_id, name) = (ClusterId::of_public_key(&[1; 32]), String::from);
            render_install_result(&InstallResult {
                cluster_id,
                cluster_name: name("rome"),
                kubernetes: name("v1"),
                image: name("i"),
                changed,
                peers,
                discovers,
                replicas_note: None,
                isolation_note: Some(name("not isolated")),
                warning: None,
            })
        };
        let text = |changed, peers| next(changed, peers, false);
        assert!(text(Some(changed_settings(&before, &after)), 1).contains(
            "Changed: the policy default, the replicas.\nNote: not isolated\nNext: `liqoctl status`"
        ));
        assert!(text(Some(changed_settings(&before, &before)), 1).contains("unchanged"));
        assert!(text(None, 0).contains("Kubernetes v1).\nNote: not isolated\nNext: `liqoctl peer"));
        assert!(
            next(None, 0, true).contains("Next: `liqoctl discover`"),
            "discovery peers, or says why not"
        );
    }

    #[test]
    fn an_image_without_the_program_is_told_from_one_that_only_crashes() {
        let deployment = |name: &str| -> Deployment {
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "selector": {},
                "template": { "spec": { "containers": [{ "name": "dns", "image": "example.org/manager:1" }] } } } }))
            .unwrap()
        };
        let (deployment, manager) = (deployment(RESOLVER), deployment(MANAGER));
        let pod = |image: &str, state: &str, exit_code: i32| -> Pod {
            serde_json::from_value(json!({
                "spec": { "containers": [{ "name": "dns", "image": image }] },
                "status": { "containerStatuses": [{ "name": "dns", "image": "", "imageID": "", "ready": false, "restartCount": 1,
                    state: { "terminated": { "exitCode": exit_code } } }] },
            }))
            .unwrap()
        };
        let found = |pod: Pod| too_old_image(&deployment, &[pod]).map(str::to_owned);
        for state in ["state", "lastState"] {
            assert_eq!(
                found(pod("example.org/manager:1", state, 2)).as_deref(),
                Some("example.org/manager:1")
            );
            assert_eq!(found(pod("example.org/manager:1", state, 1)), None);
            assert_eq!(
                found(pod("example.org/manager:0", state, 2)),
                None,
                "a pod of the version before, which goes"
            );
        }
        assert_eq!(too_old_image(&deployment, &[]), None);
        assert_eq!(
            too_old_image(&manager, &[pod("example.org/manager:1", "state", 2)]),
            None,
            "every image has the manager"
        );
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
