//! Sends local pods, and carries their changes.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Resource as _,
    api::{Patch, PostParams},
    core::Request,
};
use liqo_api::record_text::{self, MAX_POD_LEN};
use liqo_api::{
    Claimed, MetadataOnly, OffloadedReason, ShadowPod, VirtualNode, annotations, finalizers,
    labels, pods, rfc3339,
};
use liqo_controller_runtime::{
    Cache, Requeue,
    peers::{PeerError, call},
    writes::{RequestError, StepContext as _},
};
use liqo_network_model::Here;
use serde_json::{Value, json};

use super::{LocalPodReconciliation, missing_objects};
use crate::consumer::records;
use crate::consumer::state::RemoteObjects;
use liqo_offloading_rules::node::object::descriptive_labels;
use liqo_offloading_rules::pod::carry::PodRefusal;
use liqo_offloading_rules::pod::carry::api_server::ApiServerChoice;
use liqo_offloading_rules::pod::carry::api_server::ApiServerFacts;
use liqo_offloading_rules::pod::carry::api_server::Start;
use liqo_offloading_rules::pod::carry::api_server::api_server_secret_name;
use liqo_offloading_rules::pod::carry::api_server::bound_at;
use liqo_offloading_rules::pod::carry::api_server::decide_api_server_access;
use liqo_offloading_rules::pod::carry::api_server::point_to_api_server;
use liqo_offloading_rules::pod::carry::api_server::withhold_api_server;
use liqo_offloading_rules::pod::carry::pod_record_text;
use liqo_offloading_rules::pod::carry::{outgoing_part, outgoing_pod};
use liqo_offloading_rules::pod::local::{
    PodObstacle, SENDING, decide_unsendable, missing_object_actions,
};
use liqo_offloading_rules::pod::local_state::ConsumerShadowPod;
use liqo_offloading_rules::pod::local_state::{with_changed_fields, with_recorded_annotations};
use liqo_offloading_rules::pod::references::{leave_out_pull_secrets, pull_secrets};
use liqo_offloading_rules::replica::isolation;
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::record::{Reference, ReflectionRecord, travels_with_pods};

/// Delay before a pod is tried again that was gone, or confused with another one, just before it
/// was sent.
const UNMARKED_RETRY: Duration = Duration::from_secs(5);

/// Delay before a pod is tried again whose provider does not have the policies of its namespace
/// yet.
pub(super) const NO_POLICIES_RETRY: Duration = Duration::from_secs(2);

/// Time that a pod waits for policies before this is shown on the pod, counted from when it was
/// bound to its node.
const NO_POLICIES_SHOWN_AFTER: Duration = Duration::from_secs(30);

const NO_POLICIES: &str = "the NetworkPolicies of the pod's namespace are not recorded at the provider yet, or it refuses them, and without them the \
     pod would be open to more than they say; it is sent when they are. The log of the manager here and events of the policies say what fails";

/// Delay before a pod is tried again that cannot reach our API server from the provider.
const NO_API_SERVER_RETRY: Duration = Duration::from_secs(10);

const NO_API_SERVER: &str = "the provider has no way to this cluster's API server. See `liqoctl status` for the network between the two, and \
     network.apiServer of the PeeringPolicy here; or annotate the pod with liqo.io/api-server: none";

const NO_TOKENS: &str = "the pod's namespace gives providers no tokens of its ServiceAccounts, because a provider can use them. To allow it: \
     `liqoctl offload namespace NAMESPACE --api-server true`; otherwise annotate the pod with liqo.io/api-server: none";

/// Delay before a pod is tried again that names an object which does not get to the provider.
const KEPT_RETRY: Duration = Duration::from_mins(1);

/// The facts that decide whether a pod can be sent now.
struct SendFacts {
    /// The remaining delay after the provider's API server did not accept the pod.
    waits_for: Option<Duration>,
    /// The part of the pod that travels.
    carried: Result<Value, PodRefusal>,
    /// Whether the provider has the policies of the pod's namespace. Without them it would not
    /// isolate the pod.
    policies_recorded: bool,
    /// Time since the pod was bound to its node.
    bound_for: Option<Duration>,
    /// For a pod that uses the API server here.
    api_server: Option<Start>,
}

/// The way to send a pod, or the reason why it cannot be sent now.
#[derive(Debug, PartialEq)]
enum SendDecision {
    Send {
        carried: Value,
        /// The addresses at which the pod reaches our API server from there.
        api_server: Option<Vec<IpAddr>>,
        /// The reason why the pod goes without our API server, if it uses it.
        without_api_server: Option<&'static str>,
    },
    Wait(Duration),
    /// The pod is not sent now for this reason.
    KeepBack(PodObstacle, Option<Duration>),
}

/// Whether a pod can be sent now.
fn decide_sending(readiness: SendFacts) -> SendDecision {
    let SendFacts {
        waits_for,
        carried,
        policies_recorded,
        bound_for,
        api_server,
    } = readiness;
    match (waits_for, carried, api_server) {
        (Some(rest), ..) => SendDecision::Wait(rest),
        (_, Err(refusal), _) => SendDecision::KeepBack(
            PodObstacle::for_reason(refusal.reason, refusal.message),
            None,
        ),
        _ if !policies_recorded => {
            if bound_for.is_some_and(|waited| waited >= NO_POLICIES_SHOWN_AFTER) {
                SendDecision::KeepBack(
                    PodObstacle::for_reason(pods::NOT_REFLECTED, NO_POLICIES.to_owned()),
                    Some(NO_POLICIES_RETRY),
                )
            } else {
                SendDecision::Wait(NO_POLICIES_RETRY)
            }
        }
        (_, _, Some(Start::Wait(rest))) => SendDecision::Wait(rest),
        // A network may come.
        (_, _, Some(Start::Refuse)) => SendDecision::KeepBack(
            missing_api_server(NO_API_SERVER).into_passing(),
            Some(NO_API_SERVER_RETRY),
        ),
        (_, _, Some(Start::NotAllowed { required: true })) => {
            SendDecision::KeepBack(missing_api_server(NO_TOKENS), Some(NO_API_SERVER_RETRY))
        }
        (_, Ok(carried), Some(Start::With(addresses))) => SendDecision::Send {
            carried,
            api_server: Some(addresses),
            without_api_server: None,
        },
        (_, Ok(carried), Some(Start::NotAllowed { .. })) => {
            SendDecision::without_api_server(carried, Some(NO_TOKENS))
        }
        (_, Ok(carried), Some(Start::Without)) => {
            SendDecision::without_api_server(carried, Some(NO_API_SERVER))
        }
        (_, Ok(carried), None) => SendDecision::without_api_server(carried, None),
    }
}

impl SendDecision {
    fn without_api_server(carried: Value, why: Option<&'static str>) -> Self {
        Self::Send {
            carried,
            api_server: None,
            without_api_server: why,
        }
    }
}

fn missing_api_server(message: &str) -> PodObstacle {
    PodObstacle::for_reason(pods::NO_API_SERVER, message.to_owned())
}

/// Whether a pod is marked before it is sent, so that everybody knows later that it may run there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendingMark {
    Write,
    LeaveAsIs,
}

/// The part of a pod that a change of its shadow pod carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordUpdate {
    /// All of it that travels.
    WholePod,
    ChangedFields,
}

impl LocalPodReconciliation<'_> {
    /// Sends the pod, if it can be sent now. Returns when to try again otherwise.
    pub(super) async fn send_pod(&self, mark: SendingMark) -> Result<Requeue, RequestError> {
        let (Some(remote), Some(node)) = (self.remote, self.node) else {
            return Ok(Requeue::OnChange);
        };
        let now = self.consumer.context.now();
        match decide_sending(self.send_facts(remote, node, now).await) {
            SendDecision::Wait(rest) => Ok(Requeue::After(rest)),
            SendDecision::KeepBack(obstacle, again) => self.show_obstacle(obstacle, again).await,
            SendDecision::Send {
                mut carried,
                api_server,
                without_api_server,
            } => {
                if let Some(addresses) = api_server {
                    self.give_api_server(&mut carried, &addresses);
                    records::ensure_token(self.consumer, self.peer, remote, self.pod).await;
                } else {
                    withhold_api_server(&mut carried, &self.pod.to_json());
                }
                let record = match pod_record_text(&carried, MAX_POD_LEN) {
                    Ok(record) => record,
                    Err(refusal) => {
                        return self
                            .show_obstacle(
                                PodObstacle::for_reason(refusal.reason, refusal.message),
                                None,
                            )
                            .await;
                    }
                };
                records::ensure_records(
                    self.consumer,
                    self.peer,
                    remote,
                    &Reference::all_of_pod(self.pod),
                )
                .await;
                if let Some(again) = self.withhold_from_provider(remote).await? {
                    return Ok(Requeue::After(again));
                }
                if mark == SendingMark::Write && !self.mark_sending(remote).await? {
                    return Ok(Requeue::After(UNMARKED_RETRY));
                }
                let look_again = self.create_shadow_pod(remote, node, record).await?;
                if let Some(why) = without_api_server.filter(|_| look_again == Requeue::OnChange) {
                    let message = format!("the pod runs without access to an API server: {why}");
                    self.warn_owner(pods::NO_API_SERVER, &message).await;
                }
                Ok(look_again)
            }
        }
    }

    /// Shows why a pod is not sent, and replaces it when its time is over. Returns when to look
    /// again.
    async fn show_obstacle(
        &self,
        obstacle: PodObstacle,
        again: Option<Duration>,
    ) -> Result<Requeue, RequestError> {
        let decision = decide_unsendable(self.facts, self.pod, obstacle);
        let again = [again, decision.again].into_iter().flatten().min();
        let mut next = again.map_or(Requeue::OnChange, Requeue::After);
        for action in decision.actions {
            let look_again = Box::pin(self.act(action, None)).await?;
            if look_again != Requeue::OnChange {
                next = look_again;
            }
        }
        Ok(next)
    }

    /// Keeps a pod here that would wait at the provider for an object that does not get there.
    /// Returns when to look again, if so.
    async fn withhold_from_provider(
        &self,
        remote: &RemoteObjects,
    ) -> Result<Option<Duration>, RequestError> {
        let Some(missing) = missing_objects(self.peer, remote, &Reference::needed_by(self.pod))
        else {
            return Ok(None);
        };
        let mut again = None;
        for action in
            missing_object_actions(self.pod, &missing, self.facts.may_run_here == Some(true))
        {
            again = match Box::pin(self.act(action, None)).await? {
                Requeue::After(delay) => Some(delay),
                Requeue::OnChange => Some(KEPT_RETRY),
            };
        }
        Ok(again)
    }

    async fn send_facts(
        &self,
        remote: &RemoteObjects,
        node: &VirtualNode,
        now: Timestamp,
    ) -> SendFacts {
        let (waits_for, carried) = (
            self.peer.remaining_delay(&self.pod.uid),
            self.carried_pod(node).await,
        );
        let policies_recorded =
            waits_for.is_none() && carried.is_ok() && self.record_policies(remote).await;
        let bound_at = bound_at(&self.pod.to_json());
        let bound_for =
            bound_at.map(|at| Duration::try_from(now.duration_since(at)).unwrap_or_default());
        SendFacts {
            waits_for,
            carried,
            policies_recorded,
            bound_for,
            api_server: self.api_server(bound_for),
        }
    }

    /// Records the policies of the pod's namespace at the provider. Returns whether it has all of
    /// them.
    async fn record_policies(&self, remote: &RemoteObjects) -> bool {
        let Some(policies) = self.consumer.network_policies(&self.pod.key.namespace) else {
            return false;
        };
        let policies: Vec<_> = Cache::all(&policies)
            .iter()
            .map(|(key, _)| Reference::new(ReplicaKind::NetworkPolicy, key))
            .collect();
        // Without them, the pods of one of our consumers would reach those of the others there.
        let closed = isolation::brokered_closed_copy(&self.consumer.context.cluster_id);
        let closed = policies.iter().find(|one| one.name == closed);
        let is_brokered = self.consumer.is_brokered(&self.pod.key.namespace);
        if is_brokered && closed.is_none() {
            return false;
        }
        let recorded = records::ensure_records(self.consumer, self.peer, remote, &policies).await
            && closed
                .filter(|_| is_brokered)
                .is_none_or(|closed| is_policy_recorded(remote.record(closed).as_deref()));
        if !recorded {
            tracing::debug!(peer = %self.peer.id, pod = %self.pod.key, "pod waits for the NetworkPolicies of its namespace");
        }
        recorded
    }

    /// Marks the pod as being sent. Returns whether the pod still exists.
    async fn mark_sending(&self, remote: &RemoteObjects) -> Result<bool, RequestError> {
        let mark = mark_as_sending(remote.tenancy_uid().as_deref(), self.consumer.context.now());
        let exists = self.patch_status(Some(mark)).await?;
        if exists {
            self.peer.mark_sending(&self.pod.uid);
        }
        Ok(exists)
    }

    /// Creates the shadow pod. Returns when to try again, if the provider's API server does not
    /// accept it.
    async fn create_shadow_pod(
        &self,
        remote: &RemoteObjects,
        node: &VirtualNode,
        record: String,
    ) -> Result<Requeue, RequestError> {
        let voucher =
            self.consumer
                .pod_voucher(&self.peer.id, self.pod, &node.spec.pool, Claimed::default());
        let mut annotations = json!({ annotations::HOME_NAME: self.pod.key.name });
        if let Some(voucher) = voucher {
            annotations[annotations::VOUCHER] = voucher.into();
        }
        let shadow = json!({
            "apiVersion": ShadowPod::api_version(&()),
            "kind": ShadowPod::kind(&()),
            "metadata": {
                "name": self.pod.uid,
                "labels": {
                    labels::MANAGED: "true",
                    labels::PROVIDER_ID: self.peer.id,
                    labels::POOL: node.spec.pool,
                    labels::HOME_NAMESPACE: self.pod.key.namespace,
                },
                // Shown by `kubectl get shadowpods`.
                "annotations": annotations,
                "finalizers": [finalizers::SHADOW_POD],
            },
            "spec": { "namespace": self.pod.key.namespace, "pool": node.spec.pool, "pod": record },
        });
        match call(post_shadow_pod(
            &remote.connection.client,
            &remote.connection.tenant_namespace,
            &shadow,
        ))
        .await
        {
            // Its name is the pod's UID: it is this pod's, whoever was faster.
            Err(PeerError::Api(kube::Error::Api(status))) if status.is_already_exists() => {}
            Err(PeerError::Api(kube::Error::Api(status)))
                if status.is_invalid() || status.is_forbidden() =>
            {
                let message = format!(
                    "the provider's API server does not accept the pod: {}",
                    status.message
                );
                let again = Some(self.peer.note_rejection(&self.pod.uid));
                return self
                    .show_obstacle(
                        PodObstacle::for_reason(OffloadedReason::NotAccepted.as_str(), message),
                        again,
                    )
                    .await;
            }
            created => created.step("create the ShadowPod of", "Pod", &self.pod.key)?,
        }
        self.peer.mark_created(&self.pod.uid, remote);
        tracing::debug!(peer = %self.peer.id, pod = %self.pod.key, "pod sent");
        Ok(Requeue::OnChange)
    }

    /// The part of the pod that travels. This cluster's own image pull secrets do not: the API
    /// server here gives those of the `ServiceAccount` also to the pods of our consumers.
    async fn carried_pod(&self, node: &VirtualNode) -> Result<Value, PodRefusal> {
        let mut carried = outgoing_pod(&self.pod.to_json(), &advertised_labels(node))?;
        if self.consumer.is_brokered(&self.pod.key.namespace) {
            let own = self.own_secrets(pull_secrets(&carried)).await;
            leave_out_pull_secrets(&mut carried, &own);
        }
        Ok(carried)
    }

    /// Those of these Secrets that are no replicas. One that cannot be read counts as a replica:
    /// only its name travels with the pod.
    async fn own_secrets(&self, names: BTreeSet<String>) -> BTreeSet<String> {
        let api: Api<Secret> = Api::namespaced(
            self.consumer.context.client.clone(),
            &self.pod.key.namespace,
        );
        let mut own = BTreeSet::new();
        for name in names {
            if let Ok(Some(secret)) = api.get_metadata_opt(&name).await
                && !travels_with_pods(&secret, true)
            {
                own.insert(name);
            }
        }
        own
    }

    /// Decides how to send the pod, if it uses the API server here.
    fn api_server(&self, bound_for: Option<Duration>) -> Option<Start> {
        let ApiServerChoice::Home { required } = self.pod.api_server else {
            return None;
        };
        let has_network = self.consumer.context.config().spec.network.enabled;
        Some(decide_api_server_access(ApiServerFacts {
            required,
            allowed: self.consumer.gives_tokens(&self.pod.key.namespace),
            addresses: self.api_server_addresses(),
            bound_for: bound_for.filter(|_| has_network),
        }))
    }

    /// Lets a pod that is sent find our API servers at these addresses.
    fn give_api_server(&self, carried: &mut Value, addresses: &[IpAddr]) {
        let domain = self.consumer.context.cluster_domain.as_deref();
        point_to_api_server(
            carried,
            &self.pod.to_json(),
            &api_server_secret_name(&self.pod.uid),
            addresses,
            domain,
        );
    }

    /// Returns the addresses at which pods at this provider reach our API servers. Empty if they
    /// may not, or cannot.
    fn api_server_addresses(&self) -> Vec<IpAddr> {
        let network = self
            .consumer
            .networks
            .network_of_peer(&self.peer.id)
            .filter(|network| network.api_server);
        let Some(network) = network else {
            return Vec::new();
        };
        let config = self.consumer.context.config();
        let servers = config
            .status
            .iter()
            .filter_map(|status| status.network.as_ref())
            .flat_map(|network| &network.api_servers);
        servers
            .filter_map(|server| network.maps.exported.to_there(Here(server.stand_in)))
            .map(|there| there.0)
            .collect()
    }

    /// Updates the shadow pod with what changed in the pod: with all of it that travels, if the
    /// change is refused.
    pub(super) async fn update_shadow_pod(
        &self,
        update: RecordUpdate,
        shadow: Option<&ConsumerShadowPod>,
    ) -> Result<(), RequestError> {
        let Some(node) = self.node else { return Ok(()) };
        let (carried, part) = match self.carried_pod(node).await {
            Ok(carried) => (Some(carried), None),
            Err(_) => (
                None,
                outgoing_part(&self.pod.to_json(), &advertised_labels(node)),
            ),
        };
        let addresses = self.api_server_addresses();
        let uses_api_server = shadow.is_some_and(|shadow| shadow.uses_api_server);
        // While the addresses are unknown, those that the shadow pod has stay.
        let whole = update == RecordUpdate::WholePod
            && carried.is_some()
            && !(uses_api_server && addresses.is_empty());
        let recorded = if whole {
            None
        } else {
            self.recorded_pod().await?
        };
        let carried =
            carried.or_else(|| Some(with_recorded_annotations(part?, recorded.as_ref()?)));
        let Some(mut carried) = carried else {
            return Ok(());
        };
        if uses_api_server {
            self.give_api_server(&mut carried, &addresses);
        } else {
            withhold_api_server(&mut carried, &self.pod.to_json());
        }
        if !whole {
            let Some(recorded) = recorded else {
                return Ok(());
            };
            carried = with_changed_fields(recorded, &carried);
        }
        let record = match pod_record_text(&carried, MAX_POD_LEN) {
            Ok(record) => record,
            Err(refusal) => {
                if self.peer.may_warn(&self.pod.uid) {
                    self.warn_owner(pods::CHANGE_REFUSED, &refusal.message)
                        .await;
                }
                return Ok(());
            }
        };
        let mut patch = json!({ "spec": { "pod": record } });
        let former = shadow
            .map(|shadow| shadow.voucher.by_ref().map(|text| text.as_deref()))
            .unwrap_or_default();
        if let Some(voucher) =
            self.consumer
                .pod_voucher(&self.peer.id, self.pod, &node.spec.pool, former)
        {
            patch["metadata"]["annotations"][annotations::VOUCHER] = voucher.into();
        }
        self.patch_shadow("change the ShadowPod of", &Patch::Merge(patch))
            .await
    }

    /// The pod in the shadow pod, as the provider shows it. `None` if the shadow pod is gone.
    async fn recorded_pod(&self) -> Result<Option<Value>, RequestError> {
        let Some(remote) = self.remote else {
            return Ok(None);
        };
        let (client, namespace) = (
            remote.connection.client.clone(),
            &remote.connection.tenant_namespace,
        );
        let live =
            call(Api::<ShadowPod>::namespaced(client, namespace).get_opt(&self.pod.uid)).await;
        let live = live.step("read the ShadowPod of", "Pod", &self.pod.key)?;
        Ok(live
            .map(|live| record_text::parse_object(&live.spec.pod, MAX_POD_LEN).unwrap_or_default()))
    }
}

/// The keys of the node labels that the provider's offer names.
fn advertised_labels(node: &VirtualNode) -> BTreeSet<String> {
    descriptive_labels(&node.spec.labels).into_keys().collect()
}

/// Whether the provider shows the record of a policy, and no reason why it does not apply it.
fn is_policy_recorded(record: Option<&ReflectionRecord>) -> bool {
    record.is_some_and(|record| !record.terminating && record.problem.is_none())
}

/// The condition of a pod that may run only once, from before it is sent.
fn mark_as_sending(tenancy: Option<&str>, now: Timestamp) -> Value {
    let condition = json!({
        "type": pods::OFFLOADED,
        "status": "Unknown",
        "reason": SENDING,
        "message": "the pod is being sent to the provider",
        "lastTransitionTime": rfc3339(now),
    });
    json!({
        "metadata": { "annotations": { annotations::SENT_TO: tenancy } },
        "status": { "conditions": [condition] },
    })
}

/// Creates a shadow pod without reading back what was sent.
async fn post_shadow_pod(client: &Client, namespace: &str, shadow: &Value) -> kube::Result<()> {
    let body = serde_json::to_vec(shadow).map_err(kube::Error::SerdeError)?;
    let request = Request::new(ShadowPod::url_path(&(), Some(namespace)))
        .create(&PostParams::default(), body)
        .map_err(kube::Error::BuildRequest)?;
    client
        .request::<MetadataOnly<ShadowPod>>(request)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> SendFacts {
        SendFacts {
            waits_for: None,
            carried: Ok(json!({})),
            policies_recorded: true,
            bound_for: None,
            api_server: None,
        }
    }

    fn refusal() -> PodRefusal {
        PodRefusal {
            reason: "HostPath",
            message: "no".to_owned(),
        }
    }

    #[test]
    fn a_pod_that_was_not_accepted_waits_whatever_else_is_the_matter() {
        let rest = Duration::from_secs(9);
        let waiting = SendFacts {
            waits_for: Some(rest),
            carried: Err(refusal()),
            policies_recorded: false,
            ..ready()
        };
        assert_eq!(decide_sending(waiting), SendDecision::Wait(rest));
    }

    #[test]
    fn a_pod_that_cannot_travel_is_refused_before_anything_is_recorded_for_it() {
        let verdict = decide_sending(SendFacts {
            carried: Err(refusal()),
            policies_recorded: false,
            ..ready()
        });
        assert_eq!(
            verdict,
            SendDecision::KeepBack(PodObstacle::for_reason("HostPath", "no".into()), None)
        );
    }

    #[test]
    fn a_pod_waits_for_the_policies_of_its_namespace_and_says_so_after_a_while() {
        let waits = |bound_for| {
            decide_sending(SendFacts {
                policies_recorded: false,
                bound_for,
                ..ready()
            })
        };
        assert_eq!(waits(None), SendDecision::Wait(NO_POLICIES_RETRY));
        assert_eq!(
            waits(Some(Duration::from_secs(29))),
            SendDecision::Wait(NO_POLICIES_RETRY)
        );
        let SendDecision::KeepBack(obstacle, again) = waits(Some(NO_POLICIES_SHOWN_AFTER)) else {
            panic!("it says nothing")
        };
        assert_eq!(
            (obstacle.reason.as_str(), again),
            ("NotReflected", Some(NO_POLICIES_RETRY))
        );
    }

    #[test]
    fn a_policy_is_taken_when_the_provider_shows_it_and_names_no_problem() {
        let record = |status: Value, deleted: Option<&str>| {
            let policy = json!({ "kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1", "metadata": { "name": "all" } });
            let object = json!({
                "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
                "metadata": { "name": "r", "deletionTimestamp": deleted },
                "spec": { "namespace": "demo", "object": policy.to_string() }, "status": status,
            });
            ReflectionRecord::from_object(serde_json::from_value(object).unwrap()).unwrap()
        };
        assert!(is_policy_recorded(Some(&record(Value::Null, None))));
        assert!(
            !is_policy_recorded(None),
            "nobody knows what the provider makes of it"
        );
        assert!(!is_policy_recorded(Some(&record(
            json!({ "reason": "KindNotAllowed", "message": "no" }),
            None
        ))));
        assert!(!is_policy_recorded(Some(&record(
            Value::Null,
            Some("2026-01-01T00:00:00Z")
        ))));
    }

    #[test]
    fn a_pod_that_uses_the_api_server_here_is_sent_with_its_addresses_or_as_its_annotation_says() {
        let with = |start| {
            decide_sending(SendFacts {
                api_server: Some(start),
                ..ready()
            })
        };
        let addresses = vec!["10.0.0.1".parse::<IpAddr>().unwrap()];
        let sent = SendDecision::Send {
            carried: json!({}),
            api_server: Some(addresses.clone()),
            without_api_server: None,
        };
        assert_eq!(with(Start::With(addresses)), sent);
        let rest = Duration::from_secs(3);
        assert_eq!(with(Start::Wait(rest)), SendDecision::Wait(rest));
        let no_api_server =
            |message: &str| PodObstacle::for_reason("NoApiServer", message.to_owned());
        let waits = SendDecision::KeepBack(
            no_api_server(NO_API_SERVER).into_passing(),
            Some(NO_API_SERVER_RETRY),
        );
        assert_eq!(with(Start::Refuse), waits);
        assert_ne!(
            no_api_server("").into_passing(),
            no_api_server(""),
            "a namespace without tokens stays one"
        );
        assert!(matches!(
            with(Start::Without),
            SendDecision::Send {
                without_api_server: Some(NO_API_SERVER),
                ..
            }
        ));
        assert!(matches!(
            decide_sending(ready()),
            SendDecision::Send {
                api_server: None,
                without_api_server: None,
                ..
            }
        ));
    }

    #[test]
    fn a_pod_whose_namespace_gives_no_tokens_goes_without_and_says_so_or_stays_if_it_requires_one()
    {
        let with = |required| {
            decide_sending(SendFacts {
                api_server: Some(Start::NotAllowed { required }),
                ..ready()
            })
        };
        let sent = SendDecision::Send {
            carried: json!({}),
            api_server: None,
            without_api_server: Some(NO_TOKENS),
        };
        assert_eq!(with(false), sent);
        let kept = SendDecision::KeepBack(
            PodObstacle::for_reason(pods::NO_API_SERVER, NO_TOKENS.to_owned()),
            Some(NO_API_SERVER_RETRY),
        );
        assert_eq!(with(true), kept);
        assert!(NO_TOKENS.contains("--api-server true"));
    }
}
