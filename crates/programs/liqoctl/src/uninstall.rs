//! `liqoctl uninstall`: removes everything; without `--purge`, everything except the cluster's
//! identity.
//!
//! The order matters: first the running controllers clean up what they created, here and at the
//! peers. Then they are removed, and then the objects that their finalizers still hold.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Namespace, Pod, Secret},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, ListParams, ObjectMeta, PartialObjectMeta,
        Patch, PatchParams, TypeMeta,
    },
};
use liqo_api::{
    CLUSTER_CONFIG, ClusterConfig, ForeignCluster, NamespaceOffloading, PeeringPolicy, Receipt,
    SearchDomain, labels, pods::OFFLOADING_GATE,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    apply,
    cluster::{Cluster, ExplainFailure as _, is_absent},
    lists::{self, NodeSelection},
    manifests::{self, FABRIC, FABRIC_NAMESPACE, INSTALLED_BY, MANAGER, NAMESPACE, RESOLVER, kind},
    offload, preflight,
    progress::StepProgress,
    rollout::{self, FabricForm},
    settings::{InstallSettings, InstallValues, InstalledState},
    tether, token, unpeer,
    wait::{PollResult, until},
};

/// The Secret with the cluster's key.
const IDENTITY: &str = "liqo-identity";
/// On everything that a running Liqo created.
const CREATED_BY_LIQO: &str = "liqo.io/managed=true";

/// Options of `uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallOptions {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// First end all peerings and offloading, and remove the remaining objects even if the
    /// controllers do not answer
    #[arg(long)]
    pub force: bool,
    /// Also remove the cluster's identity
    #[arg(long)]
    pub purge: bool,
    /// How long to wait for each step
    #[arg(long, default_value = "2m", value_parser = token::parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// The parts of Liqo that are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartsInUse {
    pub peerings: Vec<String>,
    pub namespaces: Vec<String>,
    /// Number of receipts that are kept of ended peerings.
    pub receipts: usize,
    /// The peer that controls this cluster.
    pub tethered_to: Option<String>,
}

impl PartsInUse {
    /// The parts in use, as text; nothing if there are none.
    pub fn describe(&self) -> Option<String> {
        let tethered = self
            .tethered_to
            .iter()
            .map(|peer| format!("this cluster is tethered to {peer}"));
        let mut parts: Vec<String> = tethered.chain(self.peerings.iter().cloned()).collect();
        if !self.namespaces.is_empty() {
            parts.push(format!(
                "namespaces {} are offloaded",
                self.namespaces.join(", ")
            ));
        }
        if self.receipts > 0 {
            let receipts = self.receipts;
            parts.push(format!(
                "{receipts} receipts of ended peerings are stored here (`liqoctl receipt export csv` prints them)"
            ));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn advice(&self) -> &'static str {
        if self.tethered_to.is_some() {
            "First end that (`liqoctl untether`, then `liqoctl unpeer` and `liqoctl unoffload namespace`), or add --force"
        } else if self.peerings.is_empty() && self.namespaces.is_empty() {
            "--force deletes them"
        } else {
            "First end that (`liqoctl unpeer`, `liqoctl unoffload namespace`), or add --force"
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UninstallResult {
    /// Whether the cluster's identity was kept.
    pub identity_kept: bool,
    /// Nodes whose kernel may still contain parts of the network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes_not_cleared: Vec<String>,
    /// Deployments in Liqo's namespace that are not Liqo's own, such as that of a resource plugin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deployments_left: Vec<String>,
}

/// Finds what uninstalling would end.
pub async fn find_parts_in_use(cluster: &Cluster) -> anyhow::Result<PartsInUse> {
    let foreign = lists::list_peers(cluster).await?;
    let offloadings = lists::list_offloadings(cluster, None).await;
    let kept = ListParams::default().labels(labels::FORMER_PEER_ID);
    let receipts = lists::list_selected(
        &Api::<Receipt>::namespaced(cluster.client.clone(), NAMESPACE),
        &kept,
        "the receipts of ended peerings",
    )
    .await;
    Ok(PartsInUse {
        tethered_to: tether::controlling_peer(cluster)
            .await?
            .map(|(_, peer)| peer),
        receipts: receipts?.len(),
        peerings: foreign.iter().filter_map(describe_peering).collect(),
        namespaces: offloadings?
            .iter()
            .filter_map(kube::ResourceExt::namespace)
            .collect(),
    })
}

fn describe_peering(foreign: &ForeignCluster) -> Option<String> {
    let name = foreign.name_any();
    match (foreign.wants_outgoing(), unpeer::lends_to(foreign)) {
        (true, true) => Some(format!("this cluster borrows from {name} and lends to it")),
        (true, false) => Some(format!("this cluster borrows from {name}")),
        (false, true) => Some(format!("this cluster lends to {name}")),
        (false, false) => None,
    }
}

/// An error if something is in use and `force` is not set.
pub async fn ensure_not_in_use(
    cluster: &Cluster,
    options: &UninstallOptions,
) -> anyhow::Result<()> {
    let advice = "end what is in use (`liqoctl unpeer`, `liqoctl unoffload namespace`), and then uninstall it with `helm uninstall`";
    preflight::refuse_release_of_helm(cluster, advice).await?;
    let in_use = find_parts_in_use(cluster).await?;
    match in_use.describe() {
        Some(uses) if !options.force => bail!("Liqo is in use: {uses}. {}", in_use.advice()),
        _ => Ok(()),
    }
}

/// Removes Liqo. Idempotent.
pub async fn uninstall_liqo(
    cluster: &Cluster,
    options: &UninstallOptions,
    progress: &StepProgress,
) -> anyhow::Result<UninstallResult> {
    ensure_not_in_use(cluster, options).await?;
    let step = "Ending what is in use";
    progress.start_step(step);
    // Without a running controller nobody cleans up.
    let timeout = if options.force && !is_running(cluster).await? {
        Duration::from_secs(5).min(options.timeout)
    } else {
        options.timeout
    };
    match end_everything_in_use(cluster, timeout, |text| progress.message(step, text)).await {
        Ok(()) => progress.finish_step(step),
        Err(error) if options.force => {
            progress.fail_step(step);
            progress.print_line(&format!(
                "The controllers did not finish ({error:#}); their objects are removed anyway."
            ));
        }
        Err(error) => {
            progress.fail_step(step);
            return Err(error.context("--force removes the objects of the controllers anyway"));
        }
    }
    Box::pin(progress.run_step(
        "Stopping the controller manager",
        stop_manager(cluster, options.timeout),
    ))
    .await?;
    let step = "Removing the network from the nodes";
    let nodes_not_cleared = Box::pin(progress.run_step(
        step,
        clear_nodes(cluster, options.timeout, |text| {
            progress.message(step, text);
        }),
    ))
    .await?;
    Box::pin(progress.run_step(
        "Removing what Liqo created",
        remove_created(cluster, options.timeout),
    ))
    .await?;
    progress
        .run_step(
            "Removing Liqo's kinds",
            remove_definitions(cluster, options.timeout),
        )
        .await?;
    progress
        .run_step("Removing rights and policies", remove_installed(cluster))
        .await?;
    let identity_kept = Box::pin(progress.run_step(
        "Removing Liqo's namespaces",
        remove_namespace(cluster, options),
    ))
    .await?;
    let deployments = Api::<Deployment>::namespaced(cluster.client.clone(), NAMESPACE)
        .list_metadata(&ListParams::default())
        .await;
    // What ended all the same must not fail now.
    let deployments_left = deployments
        .map(|all| all.items.iter().map(ResourceExt::name_any).collect())
        .unwrap_or_default();
    Ok(UninstallResult {
        identity_kept,
        nodes_not_cleared,
        deployments_left,
    })
}

/// Makes the agent on each node remove its changes there: it is ready when nothing is left. Returns
/// the nodes on which it was not in time.
async fn clear_nodes(
    cluster: &Cluster,
    timeout: Duration,
    news: impl FnMut(&str),
) -> anyhow::Result<Vec<String>> {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), FABRIC_NAMESPACE);
    let reading = "read DaemonSet liqo-fabric";
    let Some(set) = sets.get_opt(FABRIC).await.doing(reading)? else {
        return Ok(Vec::new());
    };
    let container = set
        .spec
        .and_then(|spec| spec.template.spec?.containers.into_iter().next())
        .unwrap_or_default();
    let mut arguments = container.args.unwrap_or_default();
    if !arguments.iter().any(|argument| argument == rollout::CLEAR) {
        arguments.push(rollout::CLEAR.to_owned());
    }
    let patch = json!({ "spec": {
        "updateStrategy": { "rollingUpdate": { "maxUnavailable": "100%" } },
        "template": { "spec": { "containers": [{ "name": container.name, "args": arguments }] } },
    } });
    sets.patch(FABRIC, &PatchParams::default(), &Patch::Strategic(&patch))
        .await
        .doing("change the program on each node")?;
    let waited = rollout::wait_for_rollout(cluster, timeout, FabricForm::Clearing, news).await;
    // An object that cannot be removed must not prevent the removal of others.
    let left = match waited {
        Ok(rollout) => rollout,
        Err(_) => rollout::read_rollout(cluster, FabricForm::Clearing).await?,
    };
    Ok(left.waiting.into_keys().chain(left.away).collect())
}

async fn is_running(cluster: &Cluster) -> anyhow::Result<bool> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let deployment = deployments
        .get_opt(MANAGER)
        .await
        .doing("read the Deployment of the controller manager")?;
    Ok(deployment
        .and_then(|deployment| deployment.status?.available_replicas)
        .unwrap_or(0)
        > 0)
}

/// Lets the controllers clean up, here and at the peers.
async fn end_everything_in_use(
    cluster: &Cluster,
    timeout: Duration,
    news: impl FnMut(&str),
) -> anyhow::Result<()> {
    // As long as a peer decides, nobody may end offloadings.
    tether::withdraw_tethering(cluster, timeout).await?;
    for offloading in lists::list_offloadings(cluster, None).await? {
        let namespace = offloading.metadata.namespace.as_deref();
        offload::label_namespace(cluster, namespace.unwrap_or_default(), None).await?;
        apply::delete_if_present(
            &dynamic_api::<NamespaceOffloading>(cluster, namespace),
            &offloading.name_any(),
        )
        .await?;
    }
    stop_discovery(cluster).await?;
    for peer in lists::list_peers(cluster).await? {
        apply::delete_if_present(
            &dynamic_api::<ForeignCluster>(cluster, None),
            &peer.name_any(),
        )
        .await?;
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    until("all peerings are ended", timeout, news, || async {
        let mut left = Vec::new();
        for offloading in lists::list_offloadings(cluster, None).await? {
            left.extend(
                offloading
                    .namespace()
                    .map(|name| format!("the NamespaceOffloading of namespace {name}")),
            );
        }
        for peer in lists::list_peers(cluster).await? {
            left.push(format!("the ForeignCluster {}", peer.name_any()));
        }
        let created = created_by_liqo();
        for namespace in lists::list_metadata(&namespaces, &created, "Liqo's namespaces").await? {
            left.push(format!("namespace {}", namespace.name_any()));
        }
        Ok(if left.is_empty() {
            PollResult::Done(())
        } else {
            PollResult::NotYet(format!("{} is being removed", left.join(", ")))
        })
    })
    .await
}

/// Without this, the manager would create `ForeignCluster`s again, and consumers that need no token
/// would come back.
async fn stop_discovery(cluster: &Cluster) -> anyhow::Result<()> {
    let all = lists::list_peering_policies(cluster).await?;
    for policy in all
        .iter()
        .filter(|policy| !policy.spec.provide.token_required)
    {
        apply::delete_if_present(
            &dynamic_api::<PeeringPolicy>(cluster, None),
            &policy.name_any(),
        )
        .await?;
    }
    for domain in lists::list_search_domains(cluster).await? {
        apply::delete_if_present(
            &dynamic_api::<SearchDomain>(cluster, None),
            &domain.name_any(),
        )
        .await?;
    }
    if cluster
        .read_configuration()
        .await?
        .is_some_and(|config| !config.spec.discovery.is_default())
    {
        let configs: Api<ClusterConfig> = Api::all(cluster.client.clone());
        let off = Patch::Merge(json!({ "spec": { "discovery": null } }));
        configs
            .patch(CLUSTER_CONFIG, &PatchParams::default(), &off)
            .await
            .doing("switch discovery off")?;
    }
    Ok(())
}

fn created_by_liqo() -> ListParams {
    ListParams::default().labels(CREATED_BY_LIQO)
}

fn dynamic_api<K: Resource<DynamicType = ()>>(
    cluster: &Cluster,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(cluster.client.clone(), namespace, &resource),
        None => Api::all_with(cluster.client.clone(), &resource),
    }
}

fn api_of_kind(
    cluster: &Cluster,
    group: &str,
    version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(cluster.client.clone(), namespace, &resource),
        None => Api::all_with(cluster.client.clone(), &resource),
    }
}

/// Removes the webhook first: without the manager it would refuse pods.
async fn stop_manager(cluster: &Cluster, timeout: Duration) -> anyhow::Result<()> {
    apply::delete_if_present(
        &api_of_kind(
            cluster,
            "admissionregistration.k8s.io",
            "v1",
            "MutatingWebhookConfiguration",
            None,
        ),
        "liqo",
    )
    .await?;
    // Pods of consumers, which ask the resolver, have ended.
    for name in [MANAGER, RESOLVER] {
        apply::delete_if_present(
            &api_of_kind(cluster, "apps", "v1", "Deployment", Some(NAMESPACE)),
            name,
        )
        .await?;
    }
    rollout::forget_pods(
        cluster,
        NAMESPACE,
        &rollout::nodes_not_ready(cluster).await?,
    )
    .await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let ours =
        ListParams::default().labels(&format!("app.kubernetes.io/name in ({MANAGER},{RESOLVER})"));
    until(
        "the controller manager has stopped",
        timeout,
        |_| {},
        || async {
            let what = "the pods of the controller manager";
            let left = lists::list_metadata(&pods, &ours, what).await?;
            Ok(if left.is_empty() {
                PollResult::Done(())
            } else {
                PollResult::NotYet("its pods are ending".to_owned())
            })
        },
    )
    .await
}

/// Releases the pods that wait for the strategy of their namespace: nobody else removes the gate of
/// the webhook.
async fn release_waiting(cluster: &Cluster) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let without_node = ListParams::default().fields("spec.nodeName=");
    let waiting = lists::list_selected(&pods, &without_node, "the pods without a node").await?;
    for pod in waiting.into_iter().filter(is_gated) {
        let gone = json!({ "name": OFFLOADING_GATE, "$patch": "delete" });
        let patch =
            json!({ "metadata": { "uid": pod.uid() }, "spec": { "schedulingGates": [gone] } });
        let api: Api<Pod> =
            Api::namespaced(cluster.client.clone(), &pod.namespace().unwrap_or_default());
        match api
            .patch(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await
        {
            // It is gone, or another pod has its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            patched => drop(patched.doing(format!("release pod {}", pod.name_any()))?),
        }
    }
    Ok(())
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod
        .spec
        .iter()
        .flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == OFFLOADING_GATE)
}

/// Removes what a running Liqo created and nobody cleans up any more.
async fn remove_created(cluster: &Cluster, timeout: Duration) -> anyhow::Result<()> {
    release_waiting(cluster).await?;
    for definition in liqo_api::custom_resource_definitions() {
        let version = definition
            .spec
            .versions
            .first()
            .map(|version| version.name.clone())
            .unwrap_or_default();
        let objects = api_of_kind(
            cluster,
            &definition.spec.group,
            &version,
            &definition.spec.names.kind,
            None,
        );
        for object in list_metadata(&objects, &ListParams::default()).await? {
            let api = api_of_kind(
                cluster,
                &definition.spec.group,
                &version,
                &definition.spec.names.kind,
                object.namespace().as_deref(),
            );
            delete_and_release(&api, &object).await?;
        }
    }
    let mapped = ListParams::default().labels(&format!(
        "{}=true,{}={}",
        labels::MANAGED,
        labels::NAMESPACE_KIND,
        labels::KIND_MAPPED
    ));
    let mapped = list_metadata(&dynamic_api::<Namespace>(cluster, None), &mapped).await?;
    // A pod elsewhere that has this label is not Liqo's.
    let pods = list_metadata(
        &dynamic_api::<Pod>(cluster, None),
        &ListParams::default().labels(labels::SHADOW_POD),
    )
    .await?;
    let ours = pods.into_iter().filter(|pod| {
        mapped
            .iter()
            .any(|one| Some(one.name_any()) == pod.namespace())
    });
    for pod in ours {
        delete_and_release(
            &dynamic_api::<Pod>(cluster, pod.namespace().as_deref()),
            &pod,
        )
        .await?;
    }
    let nodes = api_of_kind(cluster, "", "v1", "Node", None);
    let virtual_nodes = NodeSelection::Virtual.parameters();
    for node in list_metadata(&nodes, &virtual_nodes).await? {
        apply::delete_if_present(&nodes, &node.name_any()).await?;
        apply::delete_if_present(
            &api_of_kind(
                cluster,
                "coordination.k8s.io",
                "v1",
                "Lease",
                Some("kube-node-lease"),
            ),
            &node.name_any(),
        )
        .await?;
    }
    for (group, kind) in [
        ("rbac.authorization.k8s.io", "RoleBinding"),
        ("certificates.k8s.io", "CertificateSigningRequest"),
    ] {
        for object in list_metadata(
            &api_of_kind(cluster, group, "v1", kind, None),
            &created_by_liqo(),
        )
        .await?
        {
            apply::delete_if_present(
                &api_of_kind(cluster, group, "v1", kind, object.namespace().as_deref()),
                &object.name_any(),
            )
            .await?;
        }
    }
    let namespaces = dynamic_api::<Namespace>(cluster, None);
    let left: BTreeSet<String> = list_metadata(&namespaces, &created_by_liqo())
        .await?
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    for name in &left {
        apply::delete_if_present(&namespaces, name).await?;
    }
    for name in &left {
        apply::wait_until_gone(&namespaces, name, timeout).await?;
    }
    Ok(())
}

async fn list_metadata(
    api: &Api<DynamicObject>,
    parameters: &ListParams,
) -> anyhow::Result<Vec<PartialObjectMeta<DynamicObject>>> {
    match api.list_metadata(parameters).await {
        Ok(list) => Ok(list.items),
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(error).doing(format!("list {}", api.resource_url())),
    }
}

/// Deletes an object, and removes its finalizers.
async fn delete_and_release(
    api: &Api<DynamicObject>,
    object: &PartialObjectMeta<DynamicObject>,
) -> anyhow::Result<()> {
    let name = object.name_any();
    apply::delete_if_present(api, &name).await?;
    if object.finalizers().is_empty() {
        return Ok(());
    }
    let patch = json!({ "metadata": { "finalizers": null, "uid": object.uid() } });
    match api
        .patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Err(error) if is_absent(&error) => Ok(()),
        patched => patched
            .map(drop)
            .doing(format!("remove the finalizers of {name}")),
    }
}

async fn remove_definitions(cluster: &Cluster, timeout: Duration) -> anyhow::Result<()> {
    let api = api_of_kind(
        cluster,
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        None,
    );
    let names: Vec<String> = liqo_api::custom_resource_definitions()
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    for name in &names {
        apply::delete_if_present(&api, name).await?;
    }
    for name in &names {
        apply::wait_until_gone(&api, name, timeout).await?;
    }
    Ok(())
}

/// Removes what `install` applied, in this version or an earlier one: by label, for every kind that
/// it applies.
async fn remove_installed(cluster: &Cluster) -> anyhow::Result<()> {
    let objects = manifests::render_manifests(&InstallValues::resolve(
        &InstallSettings::default(),
        &InstalledState::default(),
        "",
    ))?;
    let ours = ListParams::default().labels(&format!(
        "{}={},app.kubernetes.io/part-of=liqo",
        INSTALLED_BY.0, INSTALLED_BY.1
    ));
    let mut kinds: Vec<&TypeMeta> = Vec::new();
    for types in objects
        .iter()
        .filter(|object| kind(object) != "Namespace")
        .filter_map(|object| object.types.as_ref())
    {
        if !kinds.contains(&types) {
            kinds.push(types);
        }
    }
    // The reverse order of installation: bindings before the roles that they bind, and the contents
    // of namespaces first.
    for types in kinds.into_iter().rev() {
        let gvk = GroupVersionKind::try_from(types)
            .context("an object of this program has a broken kind")?;
        for object in list_metadata(
            &api_of_kind(cluster, &gvk.group, &gvk.version, &gvk.kind, None),
            &ours,
        )
        .await?
        {
            let api = api_of_kind(
                cluster,
                &gvk.group,
                &gvk.version,
                &gvk.kind,
                object.namespace().as_deref(),
            );
            apply::delete_if_present(&api, &object.name_any()).await?;
        }
    }
    Ok(())
}

/// Removes the namespace, or everything in it except the identity. Returns whether the identity was
/// kept.
async fn remove_namespace(cluster: &Cluster, options: &UninstallOptions) -> anyhow::Result<bool> {
    let namespaces = dynamic_api::<Namespace>(cluster, None);
    rollout::forget_pods(
        cluster,
        FABRIC_NAMESPACE,
        &rollout::nodes_not_ready(cluster).await?,
    )
    .await?;
    apply::delete_if_present(&namespaces, FABRIC_NAMESPACE).await?;
    apply::wait_until_gone(&namespaces, FABRIC_NAMESPACE, options.timeout).await?;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let identity = secrets
        .get_metadata_opt(IDENTITY)
        .await
        .doing(format!("read Secret {IDENTITY}"))?;
    if options.purge || identity.is_none() {
        apply::delete_if_present(&namespaces, NAMESPACE).await?;
        apply::wait_until_gone(&namespaces, NAMESPACE, options.timeout).await?;
        return Ok(false);
    }
    for (group, kind) in [
        ("", "Secret"),
        ("", "ConfigMap"),
        ("", "ServiceAccount"),
        ("coordination.k8s.io", "Lease"),
        ("", "Service"),
    ] {
        let api = api_of_kind(cluster, group, "v1", kind, Some(NAMESPACE));
        for object in list_metadata(&api, &ListParams::default())
            .await?
            .iter()
            .filter(|object| !stays_in_namespace(kind, &object.metadata))
        {
            apply::delete_if_present(&api, &object.name_any()).await?;
        }
    }
    Ok(true)
}

/// Whether an object stays if the identity is kept.
fn stays_in_namespace(kind: &str, meta: &ObjectMeta) -> bool {
    match kind {
        "Secret" => meta.name.as_deref() == Some(IDENTITY),
        "ServiceAccount" => meta.name.as_deref() == Some("default"),
        // Kubernetes creates it in every namespace.
        "ConfigMap" => meta.name.as_deref() == Some("kube-root-ca.crt"),
        _ => false,
    }
}

/// The question to ask first.
pub async fn question_before_uninstall(
    cluster: &Cluster,
    options: &UninstallOptions,
) -> anyhow::Result<String> {
    let mut text = format!("This removes Liqo from cluster {}.", cluster.context);
    let in_use = find_parts_in_use(cluster).await?;
    if let Some(in_use) = in_use.describe().filter(|_| options.force) {
        text = format!("{text} It also ends what is in use: {in_use}.");
    }
    let mut lost = Vec::new();
    for namespace in &in_use.namespaces {
        lost.extend(
            offload::remote_pods(cluster, namespace)
                .await?
                .into_iter()
                .map(|pod| format!("{namespace}/{pod}")),
        );
    }
    if !lost.is_empty() {
        text = format!("{text} These pods end: {}.", lost.join(", "));
    }
    if options.purge {
        text += " It also removes the cluster's identity: for peers, it will be another cluster afterwards.";
    }
    Ok(text + " Continue?")
}

/// The result as text for people.
pub fn render_uninstall_result(uninstalled: &UninstallResult) -> String {
    let mut text = identity_note(uninstalled.identity_kept);
    if !uninstalled.deployments_left.is_empty() {
        let left = uninstalled.deployments_left.join(", ");
        text = format!(
            "{text} These Deployments there are not Liqo's, and lost their accounts and Services: {left}; delete them."
        );
    }
    if uninstalled.nodes_not_cleared.is_empty() {
        return text;
    }
    format!(
        "{text}\nNodes that did not answer in time: {}. Routes, devices and nftables of the network may remain there; a restart of the node removes them.",
        uninstalled.nodes_not_cleared.join(", ")
    )
}

fn identity_note(identity_kept: bool) -> String {
    if identity_kept {
        format!(
            "Liqo is uninstalled. Namespace {NAMESPACE} stays, with Secret {IDENTITY}, so that the cluster keeps its identity; `liqoctl uninstall --purge` removes that, too."
        )
    } else {
        "Liqo is uninstalled, and nothing of it is left.".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(outgoing: &str, tenant: Option<&str>) -> ForeignCluster {
        serde_json::from_value(json!({
            "metadata": { "name": "milan" },
            "spec": { "clusterID": liqo_api::ClusterId::of_public_key(&[1; 32]), "outgoingPeering": outgoing },
            "status": { "tenantNamespace": tenant },
        }))
        .unwrap()
    }

    #[test]
    fn what_is_left_in_liqos_namespace_is_named() {
        let done = |left: &[&str]| {
            let deployments_left = left.iter().map(|&name| name.to_owned()).collect();
            render_uninstall_result(&UninstallResult {
                identity_kept: true,
                nodes_not_cleared: Vec::new(),
                deployments_left,
            })
        };
        assert!(
            done(&["broker"]).ends_with("lost their accounts and Services: broker; delete them.")
        );
        assert!(!done(&[]).contains("Deployments"));
    }

    #[test]
    fn a_known_cluster_without_a_peering_is_not_in_use() {
        assert_eq!(describe_peering(&foreign("No", None)), None);
        assert_eq!(describe_peering(&foreign("Auto", None)), None);
        assert_eq!(
            describe_peering(&foreign("Yes", None)).unwrap(),
            "this cluster borrows from milan"
        );
        assert_eq!(
            describe_peering(&foreign("Auto", Some("liqo-tenant-x"))).unwrap(),
            "this cluster lends to milan"
        );
        let mut ending = foreign("Yes", Some("liqo-tenant-x"));
        ending.metadata.deletion_timestamp = Some(liqo_api::Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(describe_peering(&ending), None);
    }

    #[test]
    fn what_is_in_use_is_said_in_one_sentence() {
        assert_eq!(PartsInUse::default().describe(), None);
        let peerings = vec!["this cluster lends to rome".into()];
        let in_use = PartsInUse {
            peerings,
            namespaces: vec!["demo".into()],
            receipts: 0,
            tethered_to: None,
        };
        assert_eq!(
            in_use.describe().unwrap(),
            "this cluster lends to rome; namespaces demo are offloaded"
        );
        assert!(in_use.advice().contains("unpeer"));
        let tethered = PartsInUse {
            tethered_to: Some("milan".into()),
            ..in_use
        };
        assert!(
            tethered
                .describe()
                .unwrap()
                .starts_with("this cluster is tethered to milan; ")
        );
        assert!(tethered.advice().contains("`liqoctl untether`"));
        let receipts = PartsInUse {
            receipts: 3,
            ..PartsInUse::default()
        };
        let expected = "3 receipts of ended peerings are stored here (`liqoctl receipt export csv` prints them)";
        assert_eq!(
            (receipts.describe().unwrap().as_str(), receipts.advice()),
            (expected, "--force deletes them")
        );
    }
}
