//! The admission webhook: it lets new pods of offloaded namespaces run on virtual nodes, as their
//! strategy says. It also limits the commands that consumers start in their pods here.
//!
//! Every replica of the manager serves it. Only the leader writes the
//! `MutatingWebhookConfiguration`, which lists the offloaded namespaces by name, so that pods of
//! other namespaces never wait for it. Where a label asks for offloading, a pod that comes before
//! the `NamespaceOffloading` gets a scheduling gate.
//! ```text
//!   API server ── new pod ──▶ /mutate ──▶ pod::scheduling, pod::preference ──▶ JSON patch
//!   webhook of the configuration `liqo`      it covers                           if nobody answers
//!     remote.liqo.io                         strategy Remote                     no pod is created
//!     local-and-remote.liqo.io               strategy LocalAndRemote             the pod is created unchanged
//!     new-namespaces.liqo.io                 label, but no strategy yet          no pod is created
//!     commands.liqo.io, at /commands         commands of consumers in pods here  no limit
//! ```

mod certificate;
mod commands;
mod configuration;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use k8s_openapi::api::core::v1::{Namespace, Node, NodeSelector, Secret};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use liqo_api::{
    BudgetStatus, ClusterConfig, ClusterId, NAMESPACE_OFFLOADING, NamespaceOffloading,
    PodOffloadingStrategy, PodPlacement, TetheringState, annotations, labels, may_be_offloaded,
    tethered_offloading,
};
use liqo_controller_runtime::Key;
use liqo_controller_runtime::start::retry_at_start;
use liqo_controller_runtime::{Cache, Clock, Context, watch};
use parking_lot::Mutex;
use serde_json::Value;

use crate::https_listener::{self, Certificate, ListenerTls, ServingTlsError};
use liqo_offloading_rules::namespace::{brokered, node_selector};
use liqo_offloading_rules::node::priced::{PricedNode, default_charge_of_json};
use liqo_offloading_rules::pod::preference::{self, add_preference};
use liqo_offloading_rules::pod::refusals::{Refusals, RefusedOwner, avoided_message};
use liqo_offloading_rules::pod::room::ClusterRoom;
use liqo_offloading_rules::pod::scheduling::{
    NewPodPlacement, hold_back, named_node, place_on_named_node, place_pod,
    place_without_toleration,
};

pub use certificate::CertificateError;
use commands::ConsumerCommands;
pub use configuration::{
    SelectedNamespaces, follow_configuration, keep_configured, selected_namespaces,
};

/// The Service of the webhook, as the installer names it.
const SERVICE: &str = "liqo-webhook";
const PATH: &str = "/mutate";
const COMMANDS_PATH: &str = "/commands";
/// Limit for an answer; the API server enforces it.
const TIMEOUT_SECONDS: i32 = 3;
/// How often each replica checks whether the certificate must be renewed, or whether another
/// replica renewed it. When the leader created a new CA, the API server does not trust a replica
/// before its next check.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// How long pods of a new namespace wait for its `NamespaceOffloading`, if its label announces one.
/// Whoever applies a file creates both in seconds. Pods that are created later run here, so a label
/// that is left behind holds nothing up.
const ANNOUNCEMENT: SignedDuration = SignedDuration::from_mins(5);
/// For who creates a pod that waits.
const WAITS: &str = "the pod waits until its namespace has a NamespaceOffloading, as label liqo.io/scheduling-enabled of the namespace announces";
/// For who creates a pod that names a virtual node.
const LOCAL_ONLY: &str = "the pods of its namespace run in this cluster only";
/// A review contains a pod, which etcd limits to 1.5 MiB, and its former version.
const MAX_REVIEW_LEN: usize = 8 * 1024 * 1024;

/// The webhook cannot be served or configured.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The certificate cannot be used for TLS.
    #[error(transparent)]
    Tls(#[from] ServingTlsError),
    #[error("listening on port {port} for the admission webhook: {source}")]
    Listen { port: u16, source: std::io::Error },
    #[error("{step} MutatingWebhookConfiguration {name}: {source}; if it is missing, run `liqoctl install` again", name = configuration::NAME)]
    Configure {
        step: &'static str,
        source: kube::Error,
    },
}

/// Where the pods of one namespace may run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Offloading {
    strategy: PodOffloadingStrategy,
    /// The terms of the cluster selector, as JSON.
    selector: Option<Vec<Value>>,
    /// The same, as nodes are compared with it.
    cluster_selector: Option<NodeSelector>,
    /// Which nodes new pods prefer.
    placement: Option<PodPlacement>,
    /// Providers that refused pods.
    refusals: Refusals,
    /// What its budget does, if it has one.
    budget: Option<BudgetStatus>,
}

/// What follows for the new pods of a namespace.
enum NamespaceRule {
    /// They go where this says.
    Offloaded(Arc<Offloading>),
    /// They wait until the namespace has a `NamespaceOffloading`.
    Announced,
    /// They stay as they are.
    Unchanged,
}

/// What the room and the preferences of pods depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacementContext<'a> {
    nodes: &'a [Arc<PricedNode>],
    /// Name of this cluster.
    own_name: &'a str,
}

impl Offloading {
    /// A namespace that is being unoffloaded sends no new pods. The pods of a brokered one have
    /// what they need: they run on the nodes of their pools.
    pub(crate) fn from_object(object: NamespaceOffloading) -> Option<Self> {
        let is_leaving = object.metadata.deletion_timestamp.is_some();
        if is_leaving
            || object.metadata.name.as_deref() != Some(NAMESPACE_OFFLOADING)
            || brokered::is_brokered(&object)
        {
            return None;
        }
        let refusals = namespace_refusals(&object);
        let (spec, status) = (object.spec, object.status.unwrap_or_default());
        let budget = status.budget.filter(|_| spec.budget.is_some());
        let selector = spec.cluster_selector.as_ref().map(|selector| {
            let terms = selector.node_selector_terms.iter();
            terms
                .map(|term| serde_json::to_value(term).unwrap_or_default())
                .collect()
        });
        let strategy = spec.pod_offloading_strategy;
        let (cluster_selector, placement) = (spec.cluster_selector, spec.placement);
        Some(Self {
            strategy,
            selector,
            cluster_selector,
            placement,
            refusals,
            budget,
        })
    }

    /// Where a new pod of the namespace may run, and where it prefers to.
    fn place_pod(&self, pod: &Value, choice: PlacementContext, now: Timestamp) -> NewPodPlacement {
        let room = self.room_for_pod(pod, choice.nodes);
        let avoided = self.avoided_clusters(pod, &room, now);
        let mut placed = self.hold_pod(
            pod,
            place_pod(pod, self.strategy, self.selector.as_deref(), &avoided),
        );
        placed.caution = room.warning().filter(|_| placed.may_leave);
        let placement = self.placement.as_ref().filter(|_| placed.may_leave);
        if let Some((placement, amounts)) =
            placement.and_then(|placement| Some((placement, default_charge_of_json(pod)?)))
        {
            let nodes: Vec<&PricedNode> = choice
                .nodes
                .iter()
                .map(AsRef::as_ref)
                .filter(|node| self.selects_node(node) && !avoided.contains(&node.cluster_id()))
                .collect();
            let (strategy, own_name) = (self.strategy, choice.own_name);
            let facts = preference::PreferenceFacts {
                placement,
                strategy,
                nodes: &nodes,
                amounts: &amounts,
                own_name,
            };
            add_preference(pod, &mut placed.patch, &facts);
        }
        placed
    }

    /// What a new pod needs that names this virtual node itself.
    fn place_on(&self, pod: &Value, node: &PricedNode) -> NewPodPlacement {
        let closed = match self.strategy {
            PodOffloadingStrategy::Local => Some(LOCAL_ONLY),
            _ if !self.selects_node(node) => {
                Some("the cluster selector of its namespace does not select this node")
            }
            _ if self.is_held() => Some("the budget of its namespace is spent"),
            _ => None,
        };
        place_on_named_node(pod, &node.name, closed)
    }

    fn selects_node(&self, node: &PricedNode) -> bool {
        node_selector::selects_node(self.cluster_selector.as_ref(), &node.name, &node.labels)
    }

    /// Where it may run, if no provider had refused a pod of its owner.
    pub(crate) fn place_anywhere(&self, pod: &Value) -> NewPodPlacement {
        self.hold_pod(
            pod,
            place_pod(pod, self.strategy, self.selector.as_deref(), &[]),
        )
    }

    /// The clusters (IDs) from which the pod is kept off if it is new: those that refused one of
    /// its owner, that a budget closes, or that have no room for it on any node.
    pub(crate) fn avoided_clusters<'a>(
        &'a self,
        pod: &Value,
        room: &ClusterRoom<'a>,
        now: Timestamp,
    ) -> Vec<&'a str> {
        let refused = self
            .refusals_of_pod(pod, now)
            .into_iter()
            .map(|one| one.cluster_id.as_str());
        refused
            .chain(self.closed_clusters())
            .chain(room.avoided_clusters())
            .collect::<BTreeSet<&str>>()
            .into_iter()
            .collect()
    }

    /// The clusters (IDs) that a budget closes, if it does not close all.
    fn closed_clusters(&self) -> impl Iterator<Item = &str> {
        let budget = self.budget.iter().filter(|budget| !budget.all_closed);
        budget
            .flat_map(|budget| &budget.closed_cluster_ids)
            .map(ClusterId::as_str)
    }

    /// The room that the clusters which are open to the namespace have for the pod on single nodes.
    pub(crate) fn room_for_pod<'a>(
        &self,
        pod: &Value,
        nodes: &'a [Arc<PricedNode>],
    ) -> ClusterRoom<'a> {
        let open: Vec<&PricedNode> = nodes
            .iter()
            .map(AsRef::as_ref)
            .filter(|node| {
                let is_closed = self.closed_clusters().any(|id| id == node.cluster_id());
                self.selects_node(node) && !is_closed
            })
            .collect();
        ClusterRoom::for_pod(pod, self.strategy, &open)
    }

    /// Whether a budget lets no cluster have new pods of the namespace.
    pub(crate) fn is_held(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.all_closed)
    }

    fn hold_pod(&self, pod: &Value, placed: NewPodPlacement) -> NewPodPlacement {
        if self.is_held() {
            place_without_toleration(pod, self.strategy, placed)
        } else {
            placed
        }
    }

    /// The providers to which the pod would not be sent, because they refused one of its owner.
    /// None where pods may run only at providers: there a pod without a node would still avoid them
    /// after their policies have changed.
    pub(crate) fn refusals_of_pod(&self, pod: &Value, now: Timestamp) -> Vec<&RefusedOwner> {
        if self.strategy == PodOffloadingStrategy::LocalAndRemote {
            self.refusals.refusals_of_pod(pod, now)
        } else {
            Vec::new()
        }
    }
}

/// The providers that refused pods of this namespace.
pub(crate) fn namespace_refusals(object: &NamespaceOffloading) -> Refusals {
    Refusals::parse(
        object
            .annotations()
            .get(annotations::REFUSED_PODS)
            .map(String::as_str),
    )
}

/// The state behind the webhook's endpoint.
struct Webhook {
    client: Client,
    offloadings: Cache<Offloading>,
    /// The virtual nodes.
    nodes: Cache<PricedNode>,
    config: watch::Receiver<Arc<ClusterConfig>>,
    clock: Clock,
    commands: ConsumerCommands,
    ended: EndedOffloadings,
    /// The namespace that Liqo runs in.
    system: String,
}

/// When this replica saw that a namespace is offloaded no more, in the last [`ANNOUNCEMENT`].
type EndedOffloadings = Arc<Mutex<HashMap<String, Timestamp>>>;

/// Serves the webhook until `context.stop`. Calls `ready` as soon as it answers.
pub async fn serve_webhook(
    context: Context,
    port: u16,
    ready: impl FnOnce(),
) -> Result<(), WebhookError> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), &context.namespace);
    let material =
        retry_at_start(|| certificate::load_or_create(&secrets, &context.namespace, context.now()))
            .await?;
    let certificate = Arc::new(material.certificate()?);
    let listener = context
        .listen(port)
        .await
        .map_err(|source| WebhookError::Listen { port, source })?;
    let ended = EndedOffloadings::default();
    let (noted, clock) = (ended.clone(), context.clock);
    let offloadings = watch_offloadings(&context, move |key, is_there| {
        let (mut noted, now) = (noted.lock(), clock.now());
        noted.retain(|_, at| now.duration_since(*at) < ANNOUNCEMENT);
        if !is_there {
            noted.insert(key.namespace.clone(), now);
        }
    });
    let nodes = watch_nodes(&context);
    if !offloadings.wait_until_synced().await || !nodes.wait_until_synced().await {
        return Ok(());
    }
    ready();
    let (client, config, system) = (
        context.client.clone(),
        context.config.clone(),
        context.namespace.clone(),
    );
    let commands = ConsumerCommands::new(&system);
    let webhook = Arc::new(Webhook {
        client,
        offloadings,
        nodes,
        config,
        clock: context.clock,
        commands,
        ended,
        system,
    });
    tokio::select! {
        biased;
        () = https_listener::serve_routes(listener, ListenerTls::anonymous(certificate.clone()), webhook_routes(webhook), context.stop.clone()) => {}
        () = renew_certificate(&context, &secrets, &certificate) => {}
    }
    Ok(())
}

/// Each change calls `changed` with the key, and whether the namespace is offloaded.
fn watch_offloadings(
    context: &Context,
    mut changed: impl FnMut(&Key, bool) + Send + 'static,
) -> Cache<Offloading> {
    let offloadings = context.informers.of_kind::<NamespaceOffloading>();
    offloadings.reduced_cache(
        context.stop.clone(),
        Offloading::from_object,
        move |key, _, new| {
            changed(key, new.is_some());
        },
    )
}

/// Watches what placement needs of the virtual nodes.
fn watch_nodes(context: &Context) -> Cache<PricedNode> {
    let only_ours = watcher::Config::default().labels(&format!(
        "{}={}",
        labels::TYPE,
        labels::TYPE_VIRTUAL_NODE
    ));
    Cache::watch(
        Api::<Node>::all(context.client.clone()),
        only_ours,
        context.stop.clone(),
        priced_node,
        |_, _, _| (),
    )
}

fn priced_node(node: Node) -> Option<PricedNode> {
    let annotations = node.metadata.annotations.unwrap_or_default();
    Some(PricedNode::from_metadata(
        &node.metadata.name?,
        node.metadata.labels.unwrap_or_default(),
        &annotations,
    ))
}

/// Renews the certificate in time, and uses one that another replica renewed. Never ends.
async fn renew_certificate(context: &Context, secrets: &Api<Secret>, certificate: &Certificate) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let renewed =
            match certificate::load_or_create(secrets, &context.namespace, context.now()).await {
                Ok(material) => material.put_into(certificate).map_err(WebhookError::from),
                Err(error) => Err(error.into()),
            };
        if let Err(error) = renewed {
            tracing::warn!(%error, "certificate of the admission webhook not renewed, trying again");
        }
    }
}

fn webhook_routes(webhook: Arc<Webhook>) -> Router {
    let router = Router::new()
        .route(PATH, post(mutate))
        .route(COMMANDS_PATH, post(pace_command));
    router
        .layer(DefaultBodyLimit::max(MAX_REVIEW_LEN))
        .with_state(webhook)
}

/// Reads a review. What cannot be read gets an answer that says why. The API server takes it for
/// none, because it has no UID.
fn read_review(body: &Bytes) -> Result<AdmissionRequest<DynamicObject>, Box<AdmissionResponse>> {
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(body)
        .map_err(|error| Box::new(AdmissionResponse::invalid(error)))?;
    review
        .try_into()
        .map_err(|error| Box::new(AdmissionResponse::invalid(error)))
}

fn admission_reply(response: AdmissionResponse) -> Response {
    Json(response.into_review()).into_response()
}

async fn pace_command(State(webhook): State<Arc<Webhook>>, body: Bytes) -> Response {
    match read_review(&body) {
        Ok(request) => admission_reply(webhook.commands.respond(&request).await),
        Err(response) => admission_reply(*response),
    }
}

/// Only if this replica cannot know the answer, it leaves the decision to the entry's failure
/// policy.
async fn mutate(State(webhook): State<Arc<Webhook>>, body: Bytes) -> Response {
    let request = match read_review(&body) {
        Ok(request) => request,
        Err(response) => return admission_reply(*response),
    };
    let rule = match &request.namespace {
        Some(namespace) => webhook.namespace_rule(namespace).await,
        None => Ok(NamespaceRule::Unchanged),
    };
    match rule {
        Ok(rule) => admission_reply(webhook.respond(&request, &rule)),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("reading the namespace's NamespaceOffloading: {error}\n"),
        )
            .into_response(),
    }
}

/// Whether the owner of a namespace says that it is to be offloaded, and may still do so. `ended`:
/// when an offloading of a namespace of this name ended.
fn announces_offloading(namespace: &Namespace, ended: Option<Timestamp>, now: Timestamp) -> bool {
    let Some(created) = namespace.creation_timestamp().map(|created| created.0) else {
        return false;
    };
    // The API server truncates times to the second.
    let was_offloaded = ended.is_some_and(|ended| ended.as_second() > created.as_second());
    let is_new = now.duration_since(created) < ANNOUNCEMENT && !was_offloaded;
    is_labelled_true(namespace, labels::SCHEDULING_ENABLED)
        && !is_labelled_true(namespace, labels::MANAGED)
        && is_new
}

fn is_labelled_true(namespace: &Namespace, label: &str) -> bool {
    namespace
        .labels()
        .get(label)
        .is_some_and(|value| value == "true")
}

impl NamespaceRule {
    fn of_offloading(object: NamespaceOffloading) -> Self {
        Offloading::from_object(object)
            .map_or(Self::Unchanged, |one| Self::Offloaded(Arc::new(one)))
    }
}

impl Webhook {
    /// If this replica does not know an offloaded namespace, it is new.
    async fn namespace_rule(&self, namespace: &str) -> kube::Result<NamespaceRule> {
        if let Some(known) = self
            .offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
        {
            return Ok(NamespaceRule::Offloaded(known));
        }
        let api = Api::<NamespaceOffloading>::namespaced(self.client.clone(), namespace);
        if let Some(object) = api.get_opt(NAMESPACE_OFFLOADING).await? {
            return Ok(NamespaceRule::of_offloading(object));
        }
        let config = self.config.borrow().clone();
        if let (TetheringState::Tethered, Some(peer)) = config.tethering()
            && config.spec.tethering.sends_pods_of(namespace, &self.system)
        {
            return Ok(NamespaceRule::of_offloading(tethered_offloading(
                namespace, peer,
            )));
        }
        let object = Api::<Namespace>::all(self.client.clone())
            .get_opt(namespace)
            .await?;
        let may_come = may_be_offloaded(namespace, &self.system);
        let (ended, now) = (self.ended.lock().get(namespace).copied(), self.clock.now());
        let is_announced =
            may_come && object.is_some_and(|object| announces_offloading(&object, ended, now));
        Ok(if is_announced {
            NamespaceRule::Announced
        } else {
            NamespaceRule::Unchanged
        })
    }

    fn respond(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        rule: &NamespaceRule,
    ) -> AdmissionResponse {
        let mut response = AdmissionResponse::from(request);
        let Some(object) = &request.object else {
            return response;
        };
        let pod = match serde_json::to_value(object) {
            Ok(pod) => pod,
            Err(error) => return AdmissionResponse::invalid(error),
        };
        let (placement, warning) = match rule {
            NamespaceRule::Unchanged => return response,
            NamespaceRule::Announced => {
                let placement = hold_back(&pod);
                let waits = placement.obstacle.is_none() && !placement.patch.is_empty();
                (placement, waits.then(|| WAITS.to_owned()))
            }
            NamespaceRule::Offloaded(offloading) => self.placement_with_warning(offloading, &pod),
        };
        let warnings: Vec<String> = placement.warning().into_iter().chain(warning).collect();
        response.warnings = (!warnings.is_empty()).then_some(warnings);
        if placement.patch.is_empty() {
            return response;
        }
        let patch: Result<Patch, _> = serde_json::from_value(placement.patch.into());
        match patch.map(|patch| response.with_patch(patch)) {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => AdmissionResponse::invalid(error),
            Err(error) => AdmissionResponse::invalid(error),
        }
    }

    /// The change to the pod, and a warning for who creates it.
    fn placement_with_warning(
        &self,
        offloading: &Offloading,
        pod: &Value,
    ) -> (NewPodPlacement, Option<String>) {
        let nodes: Vec<Arc<PricedNode>> =
            self.nodes.all().into_iter().map(|(_, node)| node).collect();
        if let Some(node) =
            named_node(pod).and_then(|name| nodes.iter().find(|node| node.name == name))
        {
            return (offloading.place_on(pod, node), None);
        }
        let config = self.config.borrow().clone();
        let choice = PlacementContext {
            nodes: &nodes,
            own_name: &config.spec.cluster_name,
        };
        let now = self.clock.now();
        let placement = offloading.place_pod(pod, choice, now);
        let refusals = offloading.refusals_of_pod(pod, now);
        let kept =
            (placement.may_leave && !refusals.is_empty()).then(|| avoided_message(&refusals));
        (placement, kept)
    }
}
