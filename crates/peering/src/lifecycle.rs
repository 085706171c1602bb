//! The controller for peers. For each peer it takes a snapshot of this cluster's objects, calls
//! [`plan`], and does the next step of each direction: it starts a session with a provider, or
//! repairs or ends the tenancy of a consumer.
//!
//! Both directions of a peering share one `ForeignCluster`. Only this controller writes its
//! finalizer and the conditions of peering.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use liqo_api::conditions::{DesiredCondition, owners};
use liqo_api::{
    ClusterId, ForeignCluster, GatewayAddress, IdentityVerifiedReason, VirtualNode, finalizers,
    links, peer_namespace::PeerNamespaceKind, provider_namespace, tenant_namespace,
};
use liqo_controller_runtime::{
    Cache, Context, Key, Queue, Requeue, conditions, foreign_clusters,
    queue::error_chain,
    writes::{StepContext as _, StepError, add_finalizer, remove_finalizer, unless_gone},
};
use liqo_signing::ClusterIdentity;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;

use crate::{
    KeepHook,
    decide::{
        credential::CREDENTIAL_SECRET,
        gateways::gateways_to_call,
        heartbeats::ConsumerHealth,
        manifests,
        namespace::LiqoNamespace,
        peer::{
            ApprovalWait, IncomingAction, OutgoingAction, PeerFacts, PeerNamespaceState, PeerPlan,
            PeerSnapshot, RecordAction, plan,
        },
        peer_status::{keep_previous_true, wanted_conditions, wanted_status},
        session_view::SessionPurpose,
    },
    objects, run_keep_hook,
    session::{ProviderSession, TunnelConnections, end_at_provider},
    tenancy::Tenants,
};

const CLEANUP_POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Interval between two looks at a namespace that Kubernetes is deleting.
const TERMINATING_POLL_INTERVAL: Duration = Duration::from_secs(3);

pub struct Lifecycle {
    pub context: Context,
    pub identity: Arc<ClusterIdentity>,
    pub foreign_clusters: Cache<ForeignCluster>,
    /// The namespaces that Liqo created.
    pub namespaces: Cache<LiqoNamespace>,
    /// The gateways that peers announced last, by the name of the `TunnelEndpoint`.
    pub tunnels: Cache<Vec<GatewayAddress>>,
    pub tenants: Arc<Tenants>,
    /// The peers to reconcile.
    pub queue: Queue<ClusterId>,
    pub keep: KeepHook,
    /// The consumer's side: one session for each provider.
    pub sessions: Mutex<HashMap<ClusterId, ProviderSession>>,
}

impl Lifecycle {
    /// Does the next step for one peer.
    pub async fn reconcile(&self, id: ClusterId) -> Result<Requeue, StepError> {
        let records = foreign_clusters::of_peer(&self.foreign_clusters, &id);
        let record = records.first();
        if id == *self.identity.id() {
            let text = "this is the ID of this cluster itself: delete this ForeignCluster, and peer with another cluster";
            return self
                .reject_records(&records, IdentityVerifiedReason::OwnCluster, text)
                .await;
        }
        self.reject_records(
            records.get(1..).unwrap_or_default(),
            IdentityVerifiedReason::Duplicate,
            "another ForeignCluster already has the same cluster ID",
        )
        .await?;
        let snapshot = self.take_snapshot(&id, record.map(AsRef::as_ref));
        let plan = plan(snapshot);
        tracing::debug!(peer = %id, ?plan, "reconciling a peer");
        if plan.record == RecordAction::Hold
            && let Some(record) = record
        {
            let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
            let added = add_finalizer(&api, record, finalizers::PEERING).await;
            if !added.step(
                "add the finalizer to",
                "ForeignCluster",
                Key::of_object(&**record),
            )? {
                // It changed since it was read: the watch triggers another reconcile.
                return Ok(Requeue::OnChange);
            }
        }
        // Neither direction waits for the other.
        let outgoing = self
            .apply_outgoing(&id, plan.outgoing, record.map(AsRef::as_ref))
            .await;
        let incoming = self.apply_incoming(&id, plan.incoming).await;
        if let Some(record) = record {
            self.write_status(&id, record, snapshot, plan).await?;
        }
        let (outgoing, incoming) = match (outgoing, incoming) {
            (Ok(outgoing), Ok(incoming)) => (outgoing, incoming),
            (Err(error), Err(other)) => {
                tracing::warn!(peer = %id, error = error_chain(&other), "the other direction failed, too");
                return Err(error);
            }
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
        };
        self.apply_record(&id, plan, record).await?;
        Ok(
            match (outgoing, incoming, snapshot.peer.map(|peer| peer.waiting)) {
                (Requeue::OnChange, Requeue::OnChange, Some(ApprovalWait::For(left))) => {
                    Requeue::After(left)
                }
                (Requeue::OnChange, incoming, _) => incoming,
                (outgoing, ..) => outgoing,
            },
        )
    }

    fn take_snapshot(&self, id: &ClusterId, record: Option<&ForeignCluster>) -> PeerSnapshot {
        PeerSnapshot {
            peer: record
                .map(|record| PeerFacts::from_record(record, self.tenants.approval_wait(record))),
            provider_namespace: self
                .namespace_state(provider_namespace(id), &PeerNamespaceKind::Provider),
            tenant_namespace: self
                .namespace_state(tenant_namespace(id), &PeerNamespaceKind::Tenant),
            consumer_expired: self.tenants.health(id) == ConsumerHealth::Expired,
        }
    }

    fn namespace_state(&self, name: String, kind: &PeerNamespaceKind) -> PeerNamespaceState {
        PeerNamespaceState::of_kind(self.namespaces.get(&Key::new("", name)).as_deref(), kind)
    }

    async fn apply_outgoing(
        &self,
        id: &ClusterId,
        step: OutgoingAction,
        record: Option<&ForeignCluster>,
    ) -> Result<Requeue, StepError> {
        match (step, record) {
            (OutgoingAction::Run, Some(record)) => {
                self.provider_namespace(id).await?;
                self.run_session(record);
                Ok(Requeue::OnChange)
            }
            (OutgoingAction::TearDown, _) => self.tear_down(id, record).await,
            (OutgoingAction::Nothing | OutgoingAction::AwaitGone, _)
            | (OutgoingAction::Run, None) => {
                drop(self.end_session(id));
                Ok(Requeue::OnChange)
            }
        }
    }

    async fn provider_namespace(&self, id: &ClusterId) -> Result<(), StepError> {
        let client = &self.context.client;
        let namespace = manifests::namespace_of_provider(id);
        let name = namespace.name_any();
        let found = objects::ensure(&Api::<Namespace>::all(client.clone()), &namespace).await?;
        // The credential must not go into a namespace that somebody else created to get it.
        if !LiqoNamespace::from_namespace(found)
            .is_some_and(|found| found.kind == PeerNamespaceKind::Provider && found.cluster == *id)
        {
            let source =
                kube::Error::Service("it exists, and Liqo did not create it: remove it".into());
            return Err(source).step("use", "Namespace", Key::new("", name));
        }
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &name);
        objects::ensure_in_new(
            &bindings,
            &manifests::manager_binding(&self.context.namespace),
        )
        .await?;
        Ok(())
    }

    fn run_session(&self, record: &ForeignCluster) {
        let purpose = SessionPurpose {
            cluster_id: record.spec.cluster_id.clone(),
            cluster_name: record.display_name(),
            foreign_cluster: record.name_any(),
            auth_url: record.spec.auth_url.clone(),
            through_tunnel: !record.spec.tunnel.is_empty(),
            token_secret: record.spec.token_secret_name.clone(),
        };
        let mut sessions = self.sessions();
        let gateways = self.gateways(record);
        if let Some(session) = sessions
            .get(&purpose.cluster_id)
            .filter(|session| session.takes_over(&purpose))
        {
            session.set_gateways(&gateways);
            return;
        }
        let (id, queue) = (purpose.cluster_id.clone(), self.queue.clone());
        // Dropping the old session ends it and its connection.
        if let Some(old) = sessions.remove(&id) {
            old.tunnel_connections().end_all();
            self.context.peers.withdraw(&id);
        }
        sessions.insert(
            id,
            ProviderSession::start(&self.context, &self.identity, purpose, &gateways, queue),
        );
    }

    /// The gateways through which a provider is called.
    fn gateways(&self, record: &ForeignCluster) -> Vec<GatewayAddress> {
        let announced = self.tunnels.get(&Key::new(
            &self.context.namespace,
            record.spec.cluster_id.as_str(),
        ));
        gateways_to_call(
            &record.spec.tunnel,
            announced.as_deref().map(Vec::as_slice).unwrap_or_default(),
        )
    }

    /// Ends the session. The returned connections through its tunnel stay open until they are
    /// dropped.
    fn end_session(&self, id: &ClusterId) -> Option<Arc<TunnelConnections>> {
        let session = self.sessions().remove(id);
        self.context.peers.withdraw(id);
        session.map(|session| session.tunnel_connections())
    }

    /// Removes the virtual nodes first, which need the connection to end their pods. Then tells the
    /// provider, and removes the rest.
    async fn tear_down(
        &self,
        id: &ClusterId,
        record: Option<&ForeignCluster>,
    ) -> Result<Requeue, StepError> {
        let client = &self.context.client;
        let name = provider_namespace(id);
        let nodes: Api<VirtualNode> = Api::namespaced(client.clone(), &name);
        let left = nodes
            .list_metadata(&ListParams::default().limit(1))
            .await
            .step("list", "VirtualNodes", Key::new(&name, ""))?;
        if !left.items.is_empty() {
            if let Some(record) = record {
                // After a restart there is no connection yet.
                self.run_session(record);
            } else {
                // Without a record, nobody else deletes them.
                let deleted = nodes
                    .delete_collection(&DeleteParams::default(), &ListParams::default())
                    .await;
                deleted.step("delete", "VirtualNodes", Key::new(&name, ""))?;
            }
            return Ok(Requeue::After(CLEANUP_POLL_INTERVAL));
        }
        run_keep_hook(&self.keep, &name, record.map(ForeignCluster::display_name)).await?;
        let answered = self
            .sessions()
            .get(id)
            .is_some_and(|session| session.view().is_answering());
        let tunnel_connections = self.end_session(id);
        if let (Some(tunnel_connections), Some(record)) = (&tunnel_connections, record) {
            tunnel_connections.set_gateways(&self.gateways(record));
        }
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &name);
        objects::ensure(
            &bindings,
            &manifests::manager_binding(&self.context.namespace),
        )
        .await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &name);
        let credential = secrets.get_opt(CREDENTIAL_SECRET).await.step(
            "read",
            "Secret",
            Key::new(&name, CREDENTIAL_SECRET),
        )?;
        if credential.is_some()
            && let Some((record, url)) =
                record.and_then(|record| Some((record, record.spec.auth_url.as_deref()?)))
        {
            let tunnel_connections = tunnel_connections.unwrap_or_else(|| {
                TunnelConnections::new(&self.gateways(record), &self.identity).into()
            });
            end_at_provider(
                &self.context.network,
                &self.identity,
                id,
                url,
                &tunnel_connections,
                answered,
            )
            .await;
        }
        objects::delete(&secrets, CREDENTIAL_SECRET).await?;
        objects::delete(&Api::<Namespace>::all(client.clone()), &name).await?;
        tracing::info!(provider = %id, "ended the peering");
        Ok(Requeue::OnChange)
    }

    async fn apply_incoming(
        &self,
        id: &ClusterId,
        step: IncomingAction,
    ) -> Result<Requeue, StepError> {
        match step {
            IncomingAction::Serve => self.tenants.repair(id).await.map(|()| Requeue::OnChange),
            IncomingAction::End => {
                let gone = self.tenants.end_step(id, &self.keep).await?;
                Ok(if gone {
                    Requeue::OnChange
                } else {
                    Requeue::After(CLEANUP_POLL_INTERVAL)
                })
            }
            IncomingAction::Nothing | IncomingAction::AwaitGone => {
                let gone = self.tenants.remove_leftover_rights(id).await?;
                Ok(if gone {
                    Requeue::OnChange
                } else {
                    Requeue::After(TERMINATING_POLL_INTERVAL)
                })
            }
        }
    }

    async fn apply_record(
        &self,
        id: &ClusterId,
        plan: PeerPlan,
        record: Option<&Arc<ForeignCluster>>,
    ) -> Result<(), StepError> {
        match (plan.record, record) {
            (RecordAction::Create, _) => {
                let namespace = self.namespaces.get(&Key::new("", tenant_namespace(id)));
                let name = namespace
                    .and_then(|namespace| namespace.cluster_name.clone())
                    .unwrap_or_else(|| id.to_string());
                self.tenants.create_record(id, &name).await
            }
            (RecordAction::Release, Some(record)) => self.remove_our_finalizer(record).await,
            (RecordAction::Forget, Some(record)) => self.tenants.clear_waiting_mark(record).await,
            (RecordAction::Delete, Some(record)) => self.tenants.delete_record(record).await,
            _ => Ok(()),
        }
    }

    /// Removes our finalizer. If the record changed since it was read, the watch triggers another
    /// reconcile.
    async fn remove_our_finalizer(&self, record: &ForeignCluster) -> Result<(), StepError> {
        let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
        let removed = remove_finalizer(&api, record, finalizers::PEERING).await;
        removed.map(drop).step(
            "remove the finalizer from",
            "ForeignCluster",
            Key::of_object(record),
        )
    }

    /// Writes conditions and status fields if they changed.
    async fn write_status(
        &self,
        id: &ClusterId,
        record: &ForeignCluster,
        snapshot: PeerSnapshot,
        plan: PeerPlan,
    ) -> Result<(), StepError> {
        let view = if plan.outgoing == OutgoingAction::Run {
            self.sessions().get(id).map(ProviderSession::view)
        } else {
            None
        };
        let wanted = wanted_conditions(view.as_ref(), plan, snapshot, self.tenants.health(id), id);
        let wanted = keep_previous_true(wanted, record);
        let old = record.status.clone().unwrap_or_default();
        let new = wanted_status(&old, view.as_ref(), plan, id);
        if new != old {
            let status = json!({
                "remoteTenantNamespace": new.remote_tenant_namespace, "tenantNamespace": new.tenant_namespace,
                "protocolVersion": new.protocol_version, "apiServerURL": new.api_server_url, "calledThrough": new.called_through,
            });
            let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
            let written = api
                .patch_status(
                    &record.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(json!({ "status": status })),
                )
                .await;
            if unless_gone(written)
                .step(
                    "write the status of",
                    "ForeignCluster",
                    Key::of_object(record),
                )?
                .is_none()
            {
                return Ok(());
            }
        }
        self.write_links(record, &wanted).await
    }

    async fn write_links(
        &self,
        record: &ForeignCluster,
        wanted: &[DesiredCondition],
    ) -> Result<(), StepError> {
        let written = conditions::apply_links(&self.context, record, owners::PEERING, wanted).await;
        written.step(
            "write the conditions of",
            "ForeignCluster",
            Key::of_object(record),
        )
    }

    /// Writes why these records are not served. Their deletion does not wait for anything.
    async fn reject_records(
        &self,
        records: &[Arc<ForeignCluster>],
        reason: IdentityVerifiedReason,
        text: &str,
    ) -> Result<Requeue, StepError> {
        for record in records {
            if record.metadata.deletion_timestamp.is_some() {
                self.remove_our_finalizer(record).await?;
            }
            self.write_links(
                record,
                &[DesiredCondition::no(links::IDENTITY_VERIFIED, reason, text)],
            )
            .await?;
        }
        Ok(Requeue::OnChange)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<ClusterId, ProviderSession>> {
        self.sessions.lock()
    }
}
