//! The consumer side's controller: requests resources from each provider, answers its offers, and
//! writes its virtual nodes.
//!
//! While a provider does not answer, its virtual nodes stay, and writes to it wait. A virtual node
//! is deleted only when the provider withdraws its offer, or when this cluster no longer wants
//! resources from the provider.

pub mod contracts;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    runtime::watcher::Config,
};
use liqo_api::{
    Claimed, ClusterId, ForeignCluster, PeeringPolicy, RESOURCE_REQUEST, ResourceOffer,
    ResourceOfferStatus, ResourceRequest, ResourceRequestSpec, ResourcesRequestedReason,
    VirtualNode, labels, links, provider_namespace,
};
use liqo_api::{conditions::DesiredCondition, policies::PolicyPeer};
use liqo_controller_runtime::{
    Cache, Context, Key, PeerConnection, Requeue,
    cache::parsed_len,
    conditions::namespaced_api,
    peers::{self, PeerError},
    policies,
    put::{create_or_replace, with_peer_labels},
    queue::error_chain,
    writes::{StepContext as _, StepError, delete_if_present, unless_gone},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::contracts::{ConsumerContracts, ObservedProvider, WatchedContracts};
use crate::{
    FIELD_MANAGER, SharedCaches, SharingError,
    decide::{
        consumer::{
            BorrowingIntent, ConsumerAction, ObjectsOfProvider, VirtualNodeState, judge_offers,
            remove_all,
        },
        reduce::{self, ConsumerRequest},
        request_answers::{
            is_request_current, no_offer_message, pool_for_each_node, tethering_granted,
        },
        snapshot::OwnWorkingMode,
        tethering::OwnNodesReturn,
    },
    peer_conditions::PeerConditions,
    peer_ids,
    queues::SharingQueues,
    triggers,
};

/// Number of providers that are reconciled at the same time.
const CONCURRENCY: usize = 32;

pub struct ConsumerController {
    context: Context,
    /// The offers in this cluster: copies, and our own ones.
    offers: Cache<ResourceOffer>,
    virtual_nodes: Cache<VirtualNodeState>,
    policies: Cache<PeeringPolicy>,
    contracts: ConsumerContracts,
    /// The UIDs of the provider namespaces.
    peerings: Cache<String>,
    providers: Mutex<HashMap<ClusterId, Arc<ProviderWatches>>>,
    conditions: Arc<PeerConditions>,
    queues: SharingQueues,
}

/// The objects that we see in our tenant namespace at a provider.
struct ProviderWatches {
    connection: Arc<PeerConnection>,
    offers: Cache<Claimed<ResourceOffer>>,
    requests: Cache<ConsumerRequest>,
    contracts: WatchedContracts,
}

impl ProviderWatches {
    fn is_usable(&self) -> bool {
        let connection = &self.connection;
        !connection.ended.is_cancelled()
            && connection.is_reachable()
            && self.offers.is_synced()
            && self.requests.is_synced()
    }

    fn own_request(&self) -> Option<Arc<ConsumerRequest>> {
        self.requests.get(&Key::new(
            &self.connection.tenant_namespace,
            RESOURCE_REQUEST,
        ))
    }
}

/// The objects in a namespace, by name.
fn objects_in<T>(namespace: &str, all: Vec<(Key, Arc<T>)>) -> BTreeMap<String, Arc<T>> {
    all.into_iter()
        .filter(|(key, _)| key.namespace == namespace)
        .map(|(key, object)| (key.name, object))
        .collect()
}

impl ConsumerController {
    /// Starts the watches of this cluster's objects.
    pub fn start(
        context: &Context,
        stop: &CancellationToken,
        shared: &SharedCaches,
        contracts: ConsumerContracts,
        queues: SharingQueues,
    ) -> Arc<Self> {
        let changed = queues.clone();
        let virtual_nodes = context.informers.of_kind::<VirtualNode>().reduced_cache(
            stop.clone(),
            |node: VirtualNode| {
                Some(VirtualNodeState {
                    deleting: node.metadata.deletion_timestamp.is_some(),
                    spec: node.spec,
                })
            },
            move |key, _, _| changed.add(triggers::virtual_node_changed(key)),
        );
        let providers = Mutex::default();
        let (offers, policies, conditions) = (
            shared.offers.clone(),
            shared.policies.clone(),
            shared.conditions.clone(),
        );
        let (context, peerings) = (context.clone(), shared.peerings.clone());
        Arc::new(Self {
            context,
            offers,
            virtual_nodes,
            policies,
            contracts,
            peerings,
            providers,
            conditions,
            queues,
        })
    }

    /// Writes requests, answers and virtual nodes until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let synced = [
            self.offers.wait_until_synced().await,
            self.virtual_nodes.wait_until_synced().await,
            self.policies.wait_until_synced().await,
            self.contracts.synced().await,
            self.peerings.wait_until_synced().await,
            self.conditions.foreign_clusters().wait_until_synced().await,
        ];
        if synced.contains(&false) {
            return;
        }
        let controller = self.clone();
        let work = self.queues.providers.run(
            "resources-of-providers",
            CONCURRENCY,
            stop.clone(),
            move |id| {
                let controller = controller.clone();
                async move { controller.reconcile(&id).await }
            },
        );
        let connections = self
            .context
            .peers
            .for_each(stop, |connection| self.clone().watch_provider(connection));
        let mut config = self.context.config.clone();
        // The working mode decides what is asked for and what is accepted.
        let follow_mode = async {
            let mut mode = OwnWorkingMode::of_config(&self.context.config());
            while config.changed().await.is_ok() {
                let new = OwnWorkingMode::of_config(&config.borrow_and_update().clone());
                if new != mode {
                    mode = new;
                    let peers = peer_ids(self.conditions.foreign_clusters());
                    self.queues.add(triggers::working_mode_changed(peers));
                }
            }
            std::future::pending::<()>().await;
        };
        let all = async { tokio::join!(work, connections) };
        tokio::select! {
            biased;
            _ = all => {}
            () = follow_mode => {}
        }
    }

    /// Watches our tenant namespace at a provider until the connection ends.
    async fn watch_provider(self: Arc<Self>, connection: Arc<PeerConnection>) {
        let id = connection.cluster_id.clone();
        let stop = connection.ended.child_token();
        let _guard = stop.clone().drop_guard();
        let (queues, changed) = (self.queues.clone(), id.clone());
        let offers = Cache::watch_provider(
            &connection,
            Config::default(),
            stop.clone(),
            |offer: &Claimed<ResourceOffer>| parsed_len(offer.unverified()),
            Some,
            move |_, _, _| queues.add(triggers::object_at_provider_changed(&changed)),
        );
        let (queues, changed) = (self.queues.clone(), id.clone());
        let requests = Cache::watch_provider(
            &connection,
            Config::default().fields(&format!("metadata.name={RESOURCE_REQUEST}")),
            stop.clone(),
            |request: &ConsumerRequest| {
                parsed_len(&request.conditions)
                    + request
                        .resources
                        .as_ref()
                        .map_or_else(String::len, parsed_len)
            },
            |request: Claimed<_>| reduce::request(request.into_unverified()),
            move |_, _, _| queues.add(triggers::object_at_provider_changed(&changed)),
        );
        let watches = Arc::new(ProviderWatches {
            connection: connection.clone(),
            offers,
            requests,
            contracts: WatchedContracts::new(stop),
        });
        watches.contracts.note_health(connection.is_reachable());
        self.lock_providers().insert(id.clone(), watches.clone());
        let mut health = connection.health.clone();
        let follow_health = async {
            if watches.offers.wait_until_synced().await
                && watches.requests.wait_until_synced().await
            {
                self.queues.add(triggers::connection_changed(&id));
            }
            while health.changed().await.is_ok() {
                watches.contracts.note_health(connection.is_reachable());
                self.queues.add(triggers::connection_changed(&id));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = connection.ended.cancelled() => {}
            () = follow_health => {}
        }
        let mut providers = self.lock_providers();
        if providers
            .get(&id)
            .is_some_and(|current| Arc::ptr_eq(current, &watches))
        {
            providers.remove(&id);
        }
    }

    async fn reconcile(&self, id: &ClusterId) -> Result<Requeue, SharingError> {
        let provider = self
            .lock_providers()
            .get(id)
            .cloned()
            .filter(|provider| provider.is_usable());
        let local = self.local_objects(id);
        match (
            self.conditions
                .foreign_cluster(id)
                .filter(|peer| peer.wants_resources()),
            provider,
        ) {
            (None, provider) => {
                // Without this, the conditions about old offers would come back with the next
                // request.
                self.conditions.report_provider(id, Vec::new());
                self.stop_borrowing(id, &local, provider.as_deref()).await?;
            }
            // Local objects stay until the provider is reachable.
            (Some(_), None) => {}
            (Some(peer), Some(provider)) => {
                return self.borrow_resources(id, &peer, &local, &provider).await;
            }
        }
        Ok(Requeue::OnChange)
    }

    fn local_objects(&self, id: &ClusterId) -> ObjectsOfProvider {
        let namespace = provider_namespace(id);
        ObjectsOfProvider {
            mirrors: objects_in(&namespace, self.offers.all()),
            nodes: objects_in(&namespace, self.virtual_nodes.all()),
        }
    }

    async fn borrow_resources(
        &self,
        id: &ClusterId,
        peer: &ForeignCluster,
        local: &ObjectsOfProvider,
        provider: &ProviderWatches,
    ) -> Result<Requeue, SharingError> {
        let offers: BTreeMap<String, Arc<Claimed<ResourceOffer>>> = provider
            .offers
            .all()
            .into_iter()
            .map(|(key, offer)| (key.name, offer))
            .collect();
        let consume = policies::effective_policy(&self.policies, &PolicyPeer::new(id, Some(peer)))
            .map(|policy| policy.spec.consume.clone());
        // Without it, the peering is about to end.
        let Some(peering) = self.peerings.get(&Key::new("", provider_namespace(id))) else {
            return Ok(Requeue::OnChange);
        };
        let seen = ObservedProvider {
            id,
            peer,
            consume: consume.as_ref(),
            peering: &peering,
            connection: &provider.connection,
            watched: &provider.contracts,
            offers: &offers,
            offer_copies: &local.mirrors,
        };
        let of_contracts = self.contracts.judge_provider(&seen).await;
        let mut failures = self
            .contracts
            .carry_out(id, of_contracts.actions, &provider.connection)
            .await;
        let config = self.context.config();
        let intent = BorrowingIntent {
            own: self.context.cluster_id.clone(),
            provider: id.clone(),
            cluster_name: peer.display_name(),
            peer: peer.metadata.name.clone().unwrap_or_default(),
            request: peer.spec.request.clone(),
            consume,
            decisions: peer.spec.offers.clone(),
            contracts: of_contracts.contract_stances,
            returns: OwnNodesReturn::of_request(
                config.tethers_to(id),
                provider.own_request().as_deref(),
            ),
            tethered_elsewhere: config.exclusive_peer().filter(|peer| *peer != id).cloned(),
        };
        let requested = self.write_request(&intent, &peering, provider).await;
        let judgement = judge_offers(
            &intent,
            &offers,
            local,
            provider
                .own_request()
                .and_then(|request| no_offer_message(&request))
                .as_deref(),
        );
        let carried_out = self.carry_out(id, judgement.actions, Some(provider)).await;
        let kind = links::RESOURCES_REQUESTED;
        let condition = match &requested {
            Ok(()) => DesiredCondition::yes(
                kind,
                ResourcesRequestedReason::Requested,
                "the provider has our request",
            ),
            Err(error) => DesiredCondition::no(
                kind,
                ResourcesRequestedReason::RequestFailed,
                short_text(error),
            ),
        };
        let tethers = intent.returns == OwnNodesReturn::Allowed;
        let granted = tethers
            .then(|| provider.own_request())
            .flatten()
            .and_then(|request| tethering_granted(&request));
        let divided = provider
            .own_request()
            .and_then(|request| pool_for_each_node(&request));
        let conditions = [condition, judgement.condition]
            .into_iter()
            .chain(granted)
            .chain(divided);
        self.conditions.report_provider(id, conditions.collect());
        failures.extend([requested, carried_out].into_iter().filter_map(Result::err));
        crate::first_failure(failures)?;
        let left = of_contracts.next.map(|next| {
            Duration::try_from(next.duration_since(self.context.now())).unwrap_or_default()
        });
        Ok(left.map_or(Requeue::OnChange, Requeue::After))
    }

    /// Writes our request at the provider, unless it is there already.
    async fn write_request(
        &self,
        intent: &BorrowingIntent,
        peering: &str,
        provider: &ProviderWatches,
    ) -> Result<(), SharingError> {
        let existing = provider.own_request();
        let tethers = intent.returns == OwnNodesReturn::Allowed;
        let is_written = existing
            .as_deref()
            .is_some_and(|existing| is_request_current(existing, intent, peering));
        if is_written {
            return Ok(());
        }
        let connection = &provider.connection;
        let api: Api<ResourceRequest> =
            namespaced_api(&connection.client, &connection.tenant_namespace);
        let (resources, granularity) =
            (intent.request.resources.clone(), intent.request.granularity);
        let spec = ResourceRequestSpec {
            resources,
            granularity,
            tethering: tethers,
            peering: Some(peering.to_owned()),
        };
        let request = with_peer_labels(
            ResourceRequest::new(RESOURCE_REQUEST, spec),
            labels::CONSUMER_ID,
            &intent.own,
        );
        let written = peers::call(create_or_replace(
            &api,
            FIELD_MANAGER,
            &request,
            existing.is_some(),
        ))
        .await;
        let key = Key::new(&connection.tenant_namespace, RESOURCE_REQUEST);
        at_provider(
            &intent.provider,
            written.step("write", "ResourceRequest", key),
        )?;
        tracing::info!(provider = %intent.provider, limits = %intent.request.resources, "resources requested");
        Ok(())
    }

    /// Deletes the virtual nodes and the copies of offers, then the request. The tenancy may go on
    /// for the network.
    async fn stop_borrowing(
        &self,
        id: &ClusterId,
        local: &ObjectsOfProvider,
        provider: Option<&ProviderWatches>,
    ) -> Result<(), SharingError> {
        self.carry_out(id, remove_all(local), None).await?;
        self.contracts.close_contracts(id).await?;
        let Some(provider) =
            provider.filter(|provider| local.nodes.is_empty() && provider.own_request().is_some())
        else {
            return Ok(());
        };
        let connection = &provider.connection;
        let api: Api<ResourceRequest> =
            namespaced_api(&connection.client, &connection.tenant_namespace);
        let deleted = peers::call(delete_if_present(
            &api,
            RESOURCE_REQUEST,
            &DeleteParams::default(),
        ))
        .await;
        let key = Key::new(&connection.tenant_namespace, RESOURCE_REQUEST);
        at_provider(id, deleted.map(drop).step("delete", "ResourceRequest", key))
    }

    /// Carries out as much as possible; the queue tries failed actions again.
    async fn carry_out(
        &self,
        id: &ClusterId,
        actions: Vec<ConsumerAction>,
        provider: Option<&ProviderWatches>,
    ) -> Result<(), SharingError> {
        let mut failures = Vec::new();
        for action in actions {
            failures.extend(self.carry_out_action(id, action, provider).await.err());
        }
        crate::first_failure(failures)
    }

    async fn carry_out_action(
        &self,
        id: &ClusterId,
        action: ConsumerAction,
        provider: Option<&ProviderWatches>,
    ) -> Result<(), SharingError> {
        let namespace = provider_namespace(id);
        let nodes: Api<VirtualNode> = namespaced_api(&self.context.client, &namespace);
        let mirrors: Api<ResourceOffer> = namespaced_api(&self.context.client, &namespace);
        let delete = DeleteParams::default();
        match action {
            ConsumerAction::DeleteNode(name) => {
                let deleted = delete_if_present(&nodes, &name, &delete).await;
                deleted.step("delete", "VirtualNode", Key::new(&namespace, name))?;
            }
            ConsumerAction::ApplyNode(spec) => {
                tracing::info!(provider = %id, pool = spec.pool, resources = %spec.resources, "writing a virtual node");
                let key = Key::new(&namespace, &spec.pool);
                let node =
                    with_peer_labels(VirtualNode::new(&key.name, spec), labels::PROVIDER_ID, id);
                let exists = self.virtual_nodes.get(&key).is_some();
                create_or_replace(&nodes, FIELD_MANAGER, &node, exists)
                    .await
                    .step("write", "VirtualNode", key)?;
            }
            ConsumerAction::DeleteMirror(name) => {
                let deleted = delete_if_present(&mirrors, &name, &delete).await;
                deleted.step("delete", "ResourceOffer", Key::new(&namespace, name))?;
            }
            ConsumerAction::ApplyMirror(spec) => {
                let key = Key::new(&namespace, &spec.pool);
                let mirror =
                    with_peer_labels(ResourceOffer::new(&key.name, spec), labels::PROVIDER_ID, id);
                let exists = self.offers.get(&key).is_some();
                create_or_replace(&mirrors, FIELD_MANAGER, &mirror, exists)
                    .await
                    .step("write", "ResourceOffer", key)?;
            }
            ConsumerAction::AnswerMirror(name, status) => {
                let written = write_answer(&mirrors, &name, status).await;
                let key = Key::new(&namespace, name);
                written.step("write the status of", "ResourceOffer", key)?;
            }
            ConsumerAction::Answer(name, status) => {
                let Some(ProviderWatches { connection, .. }) = provider else {
                    return Ok(());
                };
                let offers: Api<ResourceOffer> =
                    namespaced_api(&connection.client, &connection.tenant_namespace);
                let written = peers::call(write_answer(&offers, &name, status)).await;
                let key = Key::new(&connection.tenant_namespace, name);
                at_provider(
                    id,
                    written.step("write the status of", "ResourceOffer", key),
                )?;
            }
        }
        Ok(())
    }

    fn lock_providers(&self) -> MutexGuard<'_, HashMap<ClusterId, Arc<ProviderWatches>>> {
        self.providers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write_answer(
    offers: &Api<ResourceOffer>,
    name: &str,
    status: ResourceOfferStatus,
) -> kube::Result<()> {
    let body = json!({ "status": { "phase": status.phase, "message": status.message } });
    unless_gone(
        offers
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&body))
            .await,
    )
    .map(drop)
}

fn at_provider<T>(
    provider: &ClusterId,
    outcome: Result<T, StepError<PeerError>>,
) -> Result<T, SharingError> {
    outcome.map_err(|source| SharingError::Provider {
        provider: provider.clone(),
        source: Box::new(source),
    })
}

/// The error for a condition: the API server's own words if it answered.
fn short_text(error: &SharingError) -> String {
    if let SharingError::Provider { source, .. } = error
        && let PeerError::Api(kube::Error::Api(status)) = &source.source
    {
        return format!("the provider did not take our request: {}", status.message);
    }
    error_chain(error)
}
