//! One controller for each peer: it looks at what stands in the cluster, decides, and does the next step.
//!
//! Both directions of a peering meet in one `ForeignCluster`, whose finalizer and conditions have one writer: this one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
};
use liqo_api::{
    ClusterId, ForeignCluster, ForeignClusterStatus, GatewayAddress, VirtualNode, Wish, finalizers, labels, links,
    provider_namespace, tenant_namespace,
};
use liqo_kit::{
    Cache, Context, Key, Next, Queue,
    conditions::{self, Wanted},
    foreign_clusters,
    queue::error_chain,
};
use serde_json::json;

use crate::{
    FIELD_MANAGER,
    decide::{ConsumerHealth, Incoming, Outgoing, Peer, Place, Plan, Record, Snapshot, Waiting, plan},
    identity::ClusterIdentity,
    namespace::LiqoNamespace,
    objects::{self, KIND_PROVIDER, KIND_TENANT, Step, StepError, create_missing, create_missing_in_new, delete_present},
    session::{Passages, Purpose, Session, View, end_at_provider, to_call},
    tenancy::Tenants,
};

/// How soon to look again while something is being cleaned up.
const CLEANING: Duration = Duration::from_millis(300);

/// Everything that the steps need.
pub struct Lifecycle {
    /// What every slice is given.
    pub context: Context,
    /// This cluster's key.
    pub identity: Arc<ClusterIdentity>,
    /// Every `ForeignCluster`.
    pub foreign_clusters: Cache<ForeignCluster>,
    /// The namespaces that Liqo made.
    pub namespaces: Cache<LiqoNamespace>,
    /// The gateways of peers, as they were told last: one `TunnelEndpoint` for each.
    pub tunnels: Cache<Vec<GatewayAddress>>,
    /// The provider's side.
    pub tenants: Arc<Tenants>,
    /// The peers to look at.
    pub queue: Queue<ClusterId>,
    /// The consumer's side: one session for each provider.
    pub sessions: Mutex<HashMap<ClusterId, Session>>,
}

impl Lifecycle {
    /// Does the next step for one peer.
    pub async fn reconcile(&self, id: ClusterId) -> Result<Next, StepError> {
        let records = foreign_clusters::of_peer(&self.foreign_clusters, &id);
        let record = records.first();
        if id == *self.identity.id() {
            let text = "this is the ID of this cluster itself: delete this ForeignCluster and name another cluster";
            return self.reject(&records, "OwnCluster", text).await;
        }
        self.reject(
            records.get(1..).unwrap_or_default(),
            "Duplicate",
            "another ForeignCluster stands for the same cluster already",
        )
        .await?;
        let snapshot = self.snapshot(&id, record.map(AsRef::as_ref));
        let plan = plan(snapshot);
        tracing::debug!(peer = %id, ?plan, "looking at a peer");
        if plan.record == Record::Hold
            && let Some(record) = record
        {
            self.set_finalizer(record, true).await?;
        }
        // Neither direction waits for the other one.
        let outgoing = self.outgoing(&id, plan.outgoing, record.map(AsRef::as_ref)).await;
        let incoming = self.incoming(&id, plan.incoming).await;
        if let Some(record) = record {
            self.show(&id, record, snapshot, plan).await?;
        }
        let (outgoing, incoming) = match (outgoing, incoming) {
            (Ok(outgoing), Ok(incoming)) => (outgoing, incoming),
            (Err(error), Err(other)) => {
                tracing::warn!(peer = %id, error = error_chain(&other), "failed as well");
                return Err(error);
            }
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
        };
        self.keep_record(&id, plan, record).await?;
        Ok(match (outgoing, incoming, snapshot.peer.map(|peer| peer.waiting)) {
            (Next::OnChange, Next::OnChange, Some(Waiting::For(left))) => Next::After(left),
            (Next::OnChange, incoming, _) => incoming,
            (outgoing, ..) => outgoing,
        })
    }

    fn snapshot(&self, id: &ClusterId, record: Option<&ForeignCluster>) -> Snapshot {
        let place = |name: String, kind: &str| match self.namespaces.get(&Key::new("", name)) {
            Some(namespace) if namespace.kind == kind && namespace.terminating => Place::Terminating,
            Some(namespace) if namespace.kind == kind && namespace.ending => Place::Ending,
            Some(namespace) if namespace.kind == kind => Place::Present,
            _ => Place::Absent,
        };
        Snapshot {
            peer: record.map(|record| Peer {
                wants_outgoing: record.wants_outgoing(),
                incoming: record.spec.incoming_peering,
                deleting: record.metadata.deletion_timestamp.is_some(),
                automatic: record.labels().get(labels::MANAGED).is_some_and(|value| value == "true"),
                waiting: self.tenants.waiting(record),
                finalizer: record.finalizers().iter().any(|name| name == finalizers::PEERING),
            }),
            provider_namespace: place(provider_namespace(id), KIND_PROVIDER),
            tenant_namespace: place(tenant_namespace(id), KIND_TENANT),
            consumer_expired: self.tenants.health(id) == ConsumerHealth::Expired,
        }
    }

    async fn outgoing(&self, id: &ClusterId, step: Outgoing, record: Option<&ForeignCluster>) -> Result<Next, StepError> {
        match (step, record) {
            (Outgoing::Run, Some(record)) => {
                self.provider_namespace(id).await?;
                self.run_session(record);
                Ok(Next::OnChange)
            }
            (Outgoing::TearDown, _) => self.tear_down(id, record).await,
            (Outgoing::Nothing | Outgoing::AwaitGone, _) | (Outgoing::Run, None) => {
                drop(self.end_session(id));
                Ok(Next::OnChange)
            }
        }
    }

    async fn provider_namespace(&self, id: &ClusterId) -> Result<(), StepError> {
        let client = &self.context.client;
        let namespace = objects::provider(id);
        let name = namespace.name_any();
        let found = create_missing(&Api::<Namespace>::all(client.clone()), &namespace).await?;
        // The credential must not get into a namespace that somebody else prepared for it.
        if !LiqoNamespace::of(found).is_some_and(|found| found.kind == KIND_PROVIDER && found.cluster == *id) {
            let source = kube::Error::Service("it exists and was not made by Liqo: remove it".into());
            return Err(source).step(|| format!("use namespace {name}"));
        }
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &name);
        create_missing_in_new(&bindings, &objects::manager_binding(&self.context.namespace)).await?;
        Ok(())
    }

    fn run_session(&self, record: &ForeignCluster) {
        let purpose = Purpose {
            cluster_id: record.spec.cluster_id.clone(),
            cluster_name: record.display_name(),
            foreign_cluster: record.name_any(),
            auth_url: record.spec.auth_url.clone(),
            through_tunnel: !record.spec.tunnel.is_empty(),
            token_secret: record.spec.token_secret_name.clone(),
        };
        let mut sessions = self.sessions();
        let gateways = self.gateways(record);
        if let Some(session) = sessions.get(&purpose.cluster_id).filter(|session| *session.purpose() == purpose) {
            session.know(&gateways);
            return;
        }
        let (id, queue) = (purpose.cluster_id.clone(), self.queue.clone());
        // The old one ends when it is dropped, and its connection with it.
        if let Some(old) = sessions.remove(&id) {
            old.passages().end();
            self.context.peers.withdraw(&id);
        }
        sessions.insert(id, Session::start(&self.context, &self.identity, purpose, &gateways, queue));
    }

    /// The gateways through which a provider is called.
    fn gateways(&self, record: &ForeignCluster) -> Vec<GatewayAddress> {
        let told = self.tunnels.get(&Key::new(&self.context.namespace, record.spec.cluster_id.as_str()));
        to_call(&record.spec.tunnel, told.as_deref().map(Vec::as_slice).unwrap_or_default())
    }

    /// Ends the session; its passages last as long as they are held.
    fn end_session(&self, id: &ClusterId) -> Option<Arc<Passages>> {
        let session = self.sessions().remove(id);
        self.context.peers.withdraw(id);
        session.map(|session| session.passages())
    }

    /// Virtual nodes first (they need the connection to end their pods well), then the provider is told, then all goes.
    async fn tear_down(&self, id: &ClusterId, record: Option<&ForeignCluster>) -> Result<Next, StepError> {
        let client = &self.context.client;
        let name = provider_namespace(id);
        let nodes: Api<VirtualNode> = Api::namespaced(client.clone(), &name);
        let left =
            nodes.list_metadata(&ListParams::default().limit(1)).await.step(|| format!("list the virtual nodes in {name}"))?;
        if !left.items.is_empty() {
            if let Some(record) = record {
                // After a restart the connection is not there yet.
                self.run_session(record);
            } else {
                // Without a record nobody else knows that they are to go.
                let deleted = nodes.delete_collection(&DeleteParams::default(), &ListParams::default()).await;
                deleted.map(|_| ()).step(|| format!("delete the virtual nodes in {name}"))?;
            }
            return Ok(Next::After(CLEANING));
        }
        let passages = self.end_session(id);
        if let (Some(passages), Some(record)) = (&passages, record) {
            passages.know(&self.gateways(record));
        }
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &name);
        create_missing(&bindings, &objects::manager_binding(&self.context.namespace)).await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &name);
        let credential =
            secrets.get_opt(crate::credential::CREDENTIAL_SECRET).await.step(|| format!("read the credential in {name}"))?;
        if credential.is_some()
            && let Some((record, url)) = record.and_then(|record| Some((record, record.spec.auth_url.as_deref()?)))
        {
            let passages = passages.unwrap_or_else(|| Passages::new(&self.gateways(record), &self.identity).into());
            end_at_provider(&self.identity, id, url, &passages).await;
        }
        delete_present(&secrets, crate::credential::CREDENTIAL_SECRET).await?;
        delete_present(&Api::<Namespace>::all(client.clone()), &name).await?;
        tracing::info!(provider = %id, "ended the peering");
        Ok(Next::OnChange)
    }

    async fn incoming(&self, id: &ClusterId, step: Incoming) -> Result<Next, StepError> {
        match step {
            Incoming::Serve => self.tenants.keep(id).await.map(|()| Next::OnChange),
            Incoming::End => {
                let gone = self.tenants.end_step(id).await?;
                Ok(if gone { Next::OnChange } else { Next::After(CLEANING) })
            }
            Incoming::Nothing | Incoming::AwaitGone => self.tenants.sweep(id).await.map(|()| Next::OnChange),
        }
    }

    async fn keep_record(&self, id: &ClusterId, plan: Plan, record: Option<&Arc<ForeignCluster>>) -> Result<(), StepError> {
        match (plan.record, record) {
            (Record::Create, _) => {
                let namespace = self.namespaces.get(&Key::new("", tenant_namespace(id)));
                let name = namespace.and_then(|namespace| namespace.cluster_name.clone()).unwrap_or_else(|| id.to_string());
                self.tenants.record(id, &name).await
            }
            (Record::Release, Some(record)) => self.set_finalizer(record, false).await,
            (Record::Forget, Some(record)) => self.tenants.forget(record).await,
            // The consumer may just be coming back: the cache would not know yet.
            (Record::Delete, Some(record)) if self.tenants.is_gone(id).await? => {
                let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
                let preconditions = Preconditions { resource_version: record.resource_version(), uid: record.uid() };
                match api.delete(&record.name_any(), &DeleteParams::default().preconditions(preconditions)).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                    done => done.map(|_| ()).step(|| format!("delete ForeignCluster {}", record.name_any())),
                }
            }
            _ => Ok(()),
        }
    }

    /// Adds or removes our finalizer, and nothing else: the list is replaced only if nobody changed it meanwhile.
    async fn set_finalizer(&self, record: &ForeignCluster, wanted: bool) -> Result<(), StepError> {
        let mut list: Vec<String> = record.finalizers().iter().filter(|name| *name != finalizers::PEERING).cloned().collect();
        if wanted {
            list.push(finalizers::PEERING.to_owned());
        }
        let patch = json!({"metadata": {"finalizers": list, "resourceVersion": record.resource_version()}});
        let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
        match api.patch(&record.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            // Somebody else wrote: the change brings us here again.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            done => done.map(|_| ()).step(|| format!("change the finalizers of ForeignCluster {}", record.name_any())),
        }
    }

    /// Writes conditions and status fields, if they say something new.
    async fn show(&self, id: &ClusterId, record: &ForeignCluster, snapshot: Snapshot, plan: Plan) -> Result<(), StepError> {
        let view = if plan.outgoing == Outgoing::Run { self.sessions().get(id).map(Session::view) } else { None };
        let wanted = wanted_conditions(view.as_ref(), plan, snapshot, self.tenants.health(id), id);
        let wanted = undecided_stay(wanted, record);
        let step = || format!("write the status of ForeignCluster {}", record.name_any());
        let old = record.status.clone().unwrap_or_default();
        let new = wanted_status(&old, view.as_ref(), plan, id);
        if new != old {
            let status = json!({
                "remoteTenantNamespace": new.remote_tenant_namespace, "tenantNamespace": new.tenant_namespace,
                "protocolVersion": new.protocol_version, "apiServerURL": new.api_server_url, "calledThrough": new.called_through,
            });
            let api: Api<ForeignCluster> = Api::all(self.context.client.clone());
            let written =
                api.patch_status(&record.name_any(), &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await;
            match written {
                // What is gone needs no status.
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                written => written.map(|_| ()).step(step)?,
            }
        }
        conditions::apply_links(&self.context.client, record, FIELD_MANAGER, &wanted).await.step(step)
    }

    /// Says on records that cannot be served why, and lets them go.
    async fn reject(&self, records: &[Arc<ForeignCluster>], reason: &str, text: &str) -> Result<Next, StepError> {
        for record in records {
            if record.metadata.deletion_timestamp.is_some() && record.finalizers().iter().any(|name| name == finalizers::PEERING)
            {
                self.set_finalizer(record, false).await?;
            }
            let wanted = [Wanted::no(links::IDENTITY_VERIFIED, reason, text)];
            let done = conditions::apply_links(&self.context.client, record, FIELD_MANAGER, &wanted).await;
            done.step(|| format!("write the status of ForeignCluster {}", record.name_any()))?;
        }
        Ok(Next::OnChange)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<ClusterId, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wanted_conditions(view: Option<&View>, plan: Plan, snapshot: Snapshot, health: ConsumerHealth, id: &ClusterId) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    match (plan.outgoing, view) {
        (Outgoing::Run, Some(view)) => wanted.extend([view.identity.clone(), view.authenticated.clone(), view.reachable.clone()]),
        (Outgoing::TearDown | Outgoing::AwaitGone, _) => {
            wanted.push(Wanted::no(links::AUTHENTICATED, "Ending", "the peering is being ended"));
        }
        _ => {}
    }
    match plan.incoming {
        Incoming::Serve => {
            let text = format!("it may use namespace {}", tenant_namespace(id));
            wanted.extend([Wanted::yes(links::CONSUMER_AUTHORIZED, "Granted", text), consumer_reachable(health)]);
        }
        Incoming::End | Incoming::AwaitGone => {
            let text = "what was lent to it is being taken back";
            wanted.push(Wanted::no(links::CONSUMER_AUTHORIZED, "Ending", text));
        }
        Incoming::Nothing if snapshot.peer.is_some_and(|peer| peer.incoming == Wish::No) => {
            wanted.push(Wanted::no(links::CONSUMER_AUTHORIZED, "Blocked", "spec.incomingPeering is No"));
        }
        Incoming::Nothing if snapshot.peer.is_some_and(|peer| matches!(peer.waiting, Waiting::For(_))) => {
            let text = format!(
                "it asks to borrow from here, and somebody is to decide: `liqoctl approve {id}` or `liqoctl refuse {id}`"
            );
            wanted.push(Wanted::no(links::CONSUMER_AUTHORIZED, "PendingApproval", text));
        }
        Incoming::Nothing => {}
    }
    wanted
}

/// After a restart nothing is known at first: what was known to be well stays so until something else is found.
fn undecided_stay(mut wanted: Vec<Wanted>, record: &ForeignCluster) -> Vec<Wanted> {
    for undecided in wanted.iter_mut().filter(|wanted| wanted.status.is_none()) {
        if let Some(known) = record.condition(undecided.kind).filter(|known| known.status == "True") {
            *undecided = Wanted::yes(undecided.kind, known.reason.clone(), known.message.clone());
        }
    }
    wanted
}

fn consumer_reachable(health: ConsumerHealth) -> Wanted {
    let kind = links::CONSUMER_REACHABLE;
    match health {
        ConsumerHealth::Unknown => Wanted::unknown(kind, "Waiting", "the consumer was not heard yet"),
        ConsumerHealth::Reachable => Wanted::yes(kind, "Reachable", "the consumer renews its lease"),
        ConsumerHealth::Silent => {
            Wanted::no(kind, "Silent", "the consumer does not renew its lease: is it up, and is the way from it to here open?")
        }
        ConsumerHealth::Expired => Wanted::no(kind, "Expired", "the consumer was silent for longer than anything is held for it"),
    }
}

fn wanted_status(old: &ForeignClusterStatus, view: Option<&View>, plan: Plan, id: &ClusterId) -> ForeignClusterStatus {
    let granted = view.and_then(|view| view.granted.clone());
    // A session that has just started knows nothing yet: what an earlier one found out stays.
    let keep = plan.outgoing == Outgoing::Run && granted.is_none();
    let (namespace, url, version) = match granted {
        Some(granted) => (Some(granted.tenant_namespace), Some(granted.api_server_url), Some(granted.protocol_version)),
        None if keep => (old.remote_tenant_namespace.clone(), old.api_server_url.clone(), old.protocol_version),
        None => (None, None, None),
    };
    ForeignClusterStatus {
        remote_tenant_namespace: namespace,
        api_server_url: url,
        protocol_version: version,
        called_through: view.and_then(|view| view.gateway).map(|gateway| gateway.to_string()),
        tenant_namespace: (plan.incoming != Incoming::Nothing).then(|| tenant_namespace(id)),
        ..old.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    fn planned(outgoing: Outgoing, incoming: Incoming) -> Plan {
        Plan { outgoing, incoming, record: Record::Keep }
    }

    fn kinds(plan: Plan, incoming: Wish) -> Vec<(&'static str, Option<bool>)> {
        let peer =
            Peer { wants_outgoing: false, incoming, deleting: false, automatic: false, finalizer: true, waiting: Waiting::No };
        let snapshot = Snapshot {
            peer: Some(peer),
            provider_namespace: Place::Absent,
            tenant_namespace: Place::Absent,
            consumer_expired: false,
        };
        let wanted = wanted_conditions(None, plan, snapshot, ConsumerHealth::Reachable, &id());
        wanted.into_iter().map(|wanted| (wanted.kind, wanted.status)).collect()
    }

    #[test]
    fn each_direction_shows_its_own_links_only() {
        let serving = planned(Outgoing::Nothing, Incoming::Serve);
        assert_eq!(
            kinds(serving, Wish::Auto),
            [(links::CONSUMER_AUTHORIZED, Some(true)), (links::CONSUMER_REACHABLE, Some(true))]
        );
        assert_eq!(kinds(planned(Outgoing::TearDown, Incoming::Nothing), Wish::Auto), [(links::AUTHENTICATED, Some(false))]);
        assert_eq!(kinds(planned(Outgoing::Nothing, Incoming::Nothing), Wish::Auto), []);
        assert_eq!(kinds(planned(Outgoing::Nothing, Incoming::Nothing), Wish::No), [(links::CONSUMER_AUTHORIZED, Some(false))]);
    }

    #[test]
    fn a_restart_does_not_make_good_conditions_flicker() {
        let mut record: ForeignCluster =
            serde_json::from_value(json!({"metadata": {"name": "milan"}, "spec": {"clusterID": id()}})).unwrap();
        let waiting = [Wanted::unknown(links::PEER_REACHABLE, "Waiting", "")];
        assert_eq!(undecided_stay(waiting.to_vec(), &record), waiting);
        let conditions = |status: &str| json!({"conditions": [{"type": "PeerReachable", "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        record.status = Some(serde_json::from_value(conditions("True")).unwrap());
        assert_eq!(undecided_stay(waiting.to_vec(), &record), [Wanted::yes(links::PEER_REACHABLE, "R", "m")]);
        record.status = Some(serde_json::from_value(conditions("False")).unwrap());
        assert_eq!(undecided_stay(waiting.to_vec(), &record), waiting);
    }

    #[test]
    fn a_restart_does_not_wipe_what_is_known_of_a_provider() {
        let old =
            ForeignClusterStatus { remote_tenant_namespace: Some("t".into()), protocol_version: Some(1), ..Default::default() };
        let run = planned(Outgoing::Run, Incoming::Nothing);
        assert_eq!(wanted_status(&old, None, run, &id()), old);
        let over = wanted_status(&old, None, planned(Outgoing::Nothing, Incoming::Nothing), &id());
        assert_eq!((over.remote_tenant_namespace, over.protocol_version), (None, None));
    }
}
