//! The provider's side of a peering: what a consumer gets, and how it is taken back.
//!
//! ```text
//!  liqo-tenant-<id>      labels and annotations: its consumer       namespace liqo
//!    RoleBinding liqo-tenant ───────── subject ───────────────────▶ ServiceAccount liqo-consumer-<id>
//!    ResourceQuota, Lease provider, Lease consumer                  Secret         liqo-consumer-<id> ◀── tokens are bound to it
//!                                                                   Role and RoleBinding of that name: it may renew its token
//! ```
//!
//! The tenant namespace records the grant: the consumer has access while it exists and is not
//! ending. Granting and ending one tenancy never run at the same time.

mod records;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    coordination::v1::Lease,
    core::v1::{Namespace, ResourceQuota, Secret, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Resource as _, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, PartialObjectMeta, Patch,
        PatchParams, PostParams,
    },
};
use liqo_api::{
    CLUSTER_CONFIG, ClusterConfig, ClusterId, ForeignCluster, PeeringIntent, PeeringPolicy,
    consumer_service_account, labels, leases, peer_namespace::PeerNamespaceKind, roles,
    tenant_namespace,
};
use liqo_controller_runtime::{
    Cache, Context, Key, Queue,
    unread::{UnparsedObject, unparsed_api},
    watch,
    writes::{StepContext as _, StepError, unless_changed},
};
use liqo_signing::PublicKey;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    KeepHook,
    auth::{
        server::{Tenancies, TenancyError},
        tokens::{self, Tokens},
    },
    decide::{
        access::{
            ApprovalQueue, GrantedConsumer, KnownConsumer, TokenClaim, TokenVerdict, reasons,
            refusal_because, still_ending,
        },
        addresses::AnnouncedAddresses,
        consumer_records::{AdmissionRequirements, WaitingConsumer, noted_name},
        heartbeats::{ConsumerHealth, ConsumerHeartbeat},
        manifests,
        namespace::LiqoNamespace,
        peer::ApprovalWait,
        tenancy_kinds,
    },
    objects,
    protocol::{AccessGrant, SecretText},
    run_keep_hook,
};

pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of concurrent requests.
const MAX_CONCURRENT: usize = 16;
/// Page size of the lists of an ending tenancy's objects. The metadata of each may take the 1.5 MiB
/// that etcd allows.
const CLEAR_PAGE_SIZE: u32 = 16;
/// Maximum time that controllers have to remove our finalizers, once there is no mapped namespace.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(10);
/// Prefix of the names of our own finalizers.
const OUR_FINALIZERS: &str = "liqo.io/";

/// All consumers of this cluster.
pub struct Tenants {
    client: Client,
    namespace: String,
    own: ClusterId,
    context: Context,
    addresses: watch::Receiver<Option<AnnouncedAddresses>>,
    foreign_clusters: Cache<ForeignCluster>,
    policies: Cache<PeeringPolicy>,
    namespaces: Cache<LiqoNamespace>,
    tokens: Tokens,
    queue: Queue<ClusterId>,
    consumer_heartbeats: Mutex<HashMap<ClusterId, (ConsumerHeartbeat, ConsumerHealth)>>,
    locks: Mutex<HashMap<ClusterId, Arc<tokio::sync::Mutex<()>>>>,
    /// The time since which a consumer whose tenancy ends has no mapped namespace.
    unmapped: Mutex<HashMap<ClusterId, Instant>>,
}

impl Tenants {
    /// Adds a consumer's ID to `queue` when its health changes.
    pub fn new(
        context: &Context,
        addresses: watch::Receiver<Option<AnnouncedAddresses>>,
        foreign_clusters: Cache<ForeignCluster>,
        policies: Cache<PeeringPolicy>,
        namespaces: Cache<LiqoNamespace>,
        secrets: Cache<Secret>,
        queue: Queue<ClusterId>,
    ) -> Self {
        Self {
            client: context.client.clone(),
            namespace: context.namespace.clone(),
            own: context.cluster_id.clone(),
            context: context.clone(),
            addresses,
            foreign_clusters,
            policies,
            namespaces,
            tokens: Tokens::new(secrets, context.clock),
            queue,
            consumer_heartbeats: Mutex::default(),
            locks: Mutex::default(),
            unmapped: Mutex::default(),
        }
    }

    pub fn health(&self, consumer: &ClusterId) -> ConsumerHealth {
        self.consumer_heartbeats()
            .get(consumer)
            .map_or(ConsumerHealth::Unknown, |(_, health)| *health)
    }

    /// Creates what is missing in an existing tenancy.
    pub async fn repair(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let _alone = self.lock(consumer).await;
        // The cache may not show yet that the tenancy is ending.
        match self.live_namespace(consumer).await? {
            Some(namespace) if !namespace.terminating && !namespace.ending => {
                Box::pin(self.make_parts(consumer)).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Does what is possible now to end a tenancy. Returns whether Kubernetes is deleting the
    /// namespace, or has deleted it.
    pub async fn end_step(&self, consumer: &ClusterId, keep: &KeepHook) -> Result<bool, StepError> {
        let _alone = self.lock(consumer).await;
        let name = tenant_namespace(consumer);
        let consumer_name = match self.live_namespace(consumer).await? {
            None => return Ok(true),
            Some(namespace) if namespace.terminating => return Ok(true),
            Some(namespace) => {
                if !namespace.ending {
                    self.mark_ending(consumer).await?;
                }
                namespace.cluster_name
            }
        };
        self.revoke_rights(consumer, true).await?;
        // Needed to list the contents; an interrupted grant may not have created it.
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &name);
        objects::ensure(&bindings, &manifests::manager_binding(&self.namespace)).await?;
        let mapped = self.has_mapped_namespaces(consumer).await?;
        let left = self
            .empty_namespace(&name, mapped || self.was_mapped_lately(consumer, mapped))
            .await?;
        if left || mapped {
            return Ok(false);
        }
        self.unmapped.lock().remove(consumer);
        run_keep_hook(keep, &name, consumer_name).await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        objects::delete(&namespaces, &name).await?;
        tracing::info!(%consumer, "ended the tenancy");
        Ok(true)
    }

    /// Removes the rights of a consumer whose tenant namespace Kubernetes is deleting, or has
    /// deleted. Somebody may have deleted it directly: then finalizers that the consumer wrote
    /// would hold it for ever. Returns whether it is gone.
    pub async fn remove_leftover_rights(&self, consumer: &ClusterId) -> Result<bool, StepError> {
        let _alone = self.lock(consumer).await;
        self.consumer_heartbeats().remove(consumer);
        let found = self.live_namespace(consumer).await?;
        if found
            .as_ref()
            .is_some_and(|namespace| !namespace.terminating)
        {
            return Ok(true);
        }
        self.revoke_rights(consumer, false).await?;
        if found.is_none() {
            return Ok(true);
        }
        let mapped = self.has_mapped_namespaces(consumer).await?;
        let name = tenant_namespace(consumer);
        for kind in tenancy_kinds::of_liqo() {
            self.clear(&kind, &name, mapped).await?;
        }
        // Our rights to these kinds end when Kubernetes deletes our binding there.
        for kind in tenancy_kinds::of_kubernetes() {
            if let Err(error) = self.clear(&kind, &name, mapped).await {
                tracing::debug!(%consumer, %error, "cannot clear a tenant namespace that is being deleted");
            }
        }
        Ok(false)
    }

    /// Consumers that have an account. Some may have no tenant namespace, if somebody deleted it.
    pub async fn consumers_with_accounts(&self) -> Result<Vec<ClusterId>, StepError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = accounts
            .list_metadata(&ListParams::default().labels(labels::CONSUMER_ID))
            .await;
        let list = list.step("list", "ServiceAccounts", Key::new(&self.namespace, ""))?;
        Ok(list
            .iter()
            .filter_map(|account| account.labels().get(labels::CONSUMER_ID)?.parse().ok())
            .collect())
    }

    /// Renews the provider's lease in every tenant namespace, and reads the consumer's, until
    /// `context.stop`.
    pub async fn run_heartbeats(&self) {
        let mut heartbeats = tokio::time::interval(HEARTBEAT_INTERVAL);
        heartbeats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.context.stop.cancelled() => return,
                _ = heartbeats.tick() => {}
            }
            let serving = self.namespaces.all().into_iter().filter(|(_, namespace)| {
                namespace.kind == PeerNamespaceKind::Tenant
                    && !namespace.terminating
                    && !namespace.ending
            });
            futures::stream::iter(serving)
                .for_each_concurrent(MAX_CONCURRENT, |(_, namespace)| async move {
                    if let Err(error) = self.heartbeat_of(&namespace.cluster).await {
                        tracing::debug!(consumer = %namespace.cluster, %error, "cannot renew the lease of a tenant");
                    }
                })
                .await;
        }
    }

    async fn heartbeat_of(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let namespace = tenant_namespace(consumer);
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &namespace);
        let renewal = Patch::Merge(manifests::lease_renewal(&self.own, self.context.now()));
        let parameters = PatchParams::default();
        let (renewed, seen) = tokio::join!(
            api.patch(leases::PROVIDER, &parameters, &renewal),
            api.get(leases::CONSUMER)
        );
        renewed.step("renew", "Lease", Key::new(&namespace, leases::PROVIDER))?;
        let seen = seen.step("read", "Lease", Key::new(&namespace, leases::CONSUMER))?;
        let expiry = Duration::from_secs(
            self.context
                .config()
                .spec
                .peering
                .consumer_expiry_seconds
                .into(),
        );
        let (lease, now) = (manifests::lease_version(&seen), Instant::now());
        let mut consumer_heartbeats = self.consumer_heartbeats();
        let (heartbeat, health) =
            consumer_heartbeats
                .entry(consumer.clone())
                .or_insert_with(|| {
                    (
                        ConsumerHeartbeat::new(lease.clone(), now),
                        ConsumerHealth::Unknown,
                    )
                });
        heartbeat.observe_lease(lease, now);
        let current = heartbeat.health(expiry, now);
        let changed = *health != current;
        *health = current;
        drop(consumer_heartbeats);
        if changed {
            self.queue.add(consumer.clone());
        }
        Ok(())
    }

    /// The Secret that tokens of the consumer are bound to, if nothing is missing that a token
    /// needs: the account and both bindings. The bindings are made last, so the other parts were
    /// there once. [`Tenants::repair`] runs after each renewal of a credential, and makes again
    /// what somebody deleted since.
    async fn usable_session_secret(
        &self,
        consumer: &ClusterId,
    ) -> Result<Option<Secret>, StepError> {
        let (client, own, name) = (
            self.client.clone(),
            &self.namespace,
            consumer_service_account(consumer),
        );
        let bindings: Api<RoleBinding> =
            Api::namespaced(client.clone(), &tenant_namespace(consumer));
        let renewal_bindings: Api<RoleBinding> = Api::namespaced(client.clone(), own);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), own);
        let secrets: Api<Secret> = Api::namespaced(client, own);
        let (session, has_account, has_rights, can_renew) = tokio::try_join!(
            async {
                secrets
                    .get_opt(&name)
                    .await
                    .step("read", "Secret", Key::new(own, &name))
            },
            objects::exists(&accounts, &name),
            objects::exists(&bindings, roles::TENANT),
            objects::exists(&renewal_bindings, &name),
        )?;
        Ok(session.filter(|_| has_account && has_rights && can_renew))
    }

    /// Creates what is missing of a tenancy whose namespace exists, and returns the Secret that
    /// tokens of the consumer are bound to. One request after another would take long on a busy API
    /// server: most have no order.
    async fn make_parts(&self, consumer: &ClusterId) -> Result<Secret, StepError> {
        let (name, client, own) = (
            tenant_namespace(consumer),
            self.client.clone(),
            &self.namespace,
        );
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &name);
        let renewal_bindings: Api<RoleBinding> = Api::namespaced(client.clone(), own);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), own);
        let (secrets, roles) = (
            Api::<Secret>::namespaced(client.clone(), own),
            Api::<Role>::namespaced(client, own),
        );
        let (manager, account) = (
            manifests::manager_binding(own),
            manifests::consumer_account(consumer),
        );
        let (session, role) = (
            manifests::session_secret(consumer),
            manifests::renewal_role(consumer),
        );
        let (_, session, _, ()) = tokio::try_join!(
            objects::ensure(&accounts, &account),
            objects::ensure(&secrets, &session),
            objects::ensure(&roles, &role),
            async {
                objects::ensure(&bindings, &manager).await?;
                self.make_quota_and_leases(&name).await
            },
        )?;
        // The consumer gets rights only now that the quota limits what it does with them.
        let (tenant, renewal) = (
            manifests::tenant_binding(consumer, own),
            manifests::renewal_binding(consumer, own),
        );
        tokio::try_join!(
            objects::ensure(&bindings, &tenant),
            objects::ensure(&renewal_bindings, &renewal)
        )?;
        Ok(session)
    }

    /// In a new namespace it has to wait until our `RoleBinding` there has an effect.
    async fn make_quota_and_leases(&self, namespace: &str) -> Result<(), StepError> {
        let quotas: Api<ResourceQuota> = Api::namespaced(self.client.clone(), namespace);
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let (quota, [provider, consumer]) = (manifests::tenant_quota(), manifests::tenant_leases());
        let (quota, _, _) = tokio::try_join!(
            objects::ensure_in_new(&quotas, &quota),
            objects::ensure_in_new(&leases, &provider),
            objects::ensure_in_new(&leases, &consumer),
        )?;
        if let Some(status) = manifests::first_count(&quota) {
            let patch = Patch::Merge(json!({ "status": status }));
            let counted = quotas
                .patch_status(manifests::QUOTA, &PatchParams::default(), &patch)
                .await;
            counted.step(
                "start the count of",
                "ResourceQuota",
                Key::new(namespace, manifests::QUOTA),
            )?;
        }
        Ok(())
    }

    /// A token that is bound to this Secret, and its lifetime in seconds.
    async fn issue_token(
        &self,
        consumer: &ClusterId,
        mut session: Secret,
    ) -> Result<(String, u64), StepError> {
        let name = consumer_service_account(consumer);
        // The consumer has just proved its key. Tokens that somebody else renewed over the API
        // server end now.
        if manifests::is_session_over(session.creation_timestamp().as_ref(), self.context.now()) {
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
            objects::delete(&secrets, &name).await?;
            session = objects::ensure(&secrets, &manifests::session_secret(consumer)).await?;
        }
        let lifetime = i64::from(
            self.context
                .config()
                .spec
                .peering
                .credential_lifetime_seconds,
        );
        let request = TokenRequest {
            metadata: ObjectMeta::default(),
            spec: TokenRequestSpec {
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(name.clone()),
                    uid: session.uid(),
                }),
                expiration_seconds: Some(lifetime),
                ..TokenRequestSpec::default()
            },
            status: None,
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let issued = accounts
            .create_token_request(&name, &PostParams::default(), &request)
            .await;
        let issued = issued.step(
            "issue a token for",
            "ServiceAccount",
            Key::new(&self.namespace, &name),
        )?;
        self.show_audiences(&issued.spec.audiences).await?;
        // The API server may shorten the lifetime.
        let seconds = issued.spec.expiration_seconds.unwrap_or(lifetime);
        let token = issued.status.map(|status| status.token).unwrap_or_default();
        Ok((token, u64::try_from(seconds).unwrap_or_default()))
    }

    /// Writes the audiences of the API server where its admission policy for renewed tokens looks
    /// for them.
    async fn show_audiences(&self, audiences: &[String]) -> Result<(), StepError> {
        let config = self.context.config();
        let shown = config
            .status
            .as_ref()
            .map(|status| status.token_audiences.as_slice())
            .unwrap_or_default();
        if shown == audiences {
            return Ok(());
        }
        let configs: Api<ClusterConfig> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "status": { "tokenAudiences": audiences } }));
        let written = configs
            .patch_status(CLUSTER_CONFIG, &PatchParams::default(), &patch)
            .await;
        written.step(
            "write the status of",
            "ClusterConfig",
            Key::new("", CLUSTER_CONFIG),
        )?;
        Ok(())
    }

    async fn mark_ending(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let name = tenant_namespace(consumer);
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let mark = json!({"metadata": {"annotations": {manifests::ENDING: self.context.now().to_string()}}});
        namespaces
            .patch(&name, &PatchParams::default(), &Patch::Merge(mark))
            .await
            .step("mark as ending", "Namespace", Key::new("", &name))?;
        self.consumer_heartbeats().remove(consumer);
        Ok(())
    }

    /// Removes the rights first, which takes effect at once; then what the tokens are bound to,
    /// which may take 10 s.
    async fn revoke_rights(
        &self,
        consumer: &ClusterId,
        in_namespaces: bool,
    ) -> Result<(), StepError> {
        if in_namespaces {
            let bindings: Api<RoleBinding> =
                Api::namespaced(self.client.clone(), &tenant_namespace(consumer));
            objects::delete(&bindings, roles::TENANT).await?;
            for (key, namespace) in self.namespaces.all() {
                if matches!(namespace.kind, PeerNamespaceKind::Mapped { .. })
                    && namespace.cluster == *consumer
                {
                    let bindings: Api<RoleBinding> =
                        Api::namespaced(self.client.clone(), &key.name);
                    objects::delete(&bindings, roles::TENANT_POD_ACCESS).await?;
                }
            }
        }
        let name = consumer_service_account(consumer);
        objects::delete(
            &Api::<RoleBinding>::namespaced(self.client.clone(), &self.namespace),
            &name,
        )
        .await?;
        objects::delete(
            &Api::<Role>::namespaced(self.client.clone(), &self.namespace),
            &name,
        )
        .await?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        objects::delete(&secrets, &name).await?;
        objects::delete(&accounts, &name).await
    }

    /// Starts to delete everything that the two clusters wrote there; other controllers clean up
    /// what they derived from it. Returns whether something is left that must be gone before the
    /// namespace is deleted, and with it our rights there.
    async fn empty_namespace(&self, namespace: &str, mapped: bool) -> Result<bool, StepError> {
        let mut left = false;
        for kind in tenancy_kinds::all() {
            left |= self.clear(&kind, namespace, mapped).await?;
        }
        Ok(left)
    }

    /// Deletes all objects of a kind. The consumer may have written anything into them, so this
    /// reads only their metadata, and deletes them one by one: the deletion of a collection would
    /// return all of them.
    async fn clear(
        &self,
        kind: &ApiResource,
        namespace: &str,
        mapped: bool,
    ) -> Result<bool, StepError> {
        let api = unparsed_api(Api::<PartialObjectMeta<DynamicObject>>::namespaced_with(
            self.client.clone(),
            namespace,
            kind,
        ));
        let (mut page, mut any) = (ListParams::default().limit(CLEAR_PAGE_SIZE), false);
        loop {
            let found = api.list(&page).await.step(
                "list every",
                kind.kind.clone(),
                Key::new(namespace, ""),
            )?;
            any |= !found.items.is_empty();
            futures::stream::iter(&found.items)
                .map(Ok)
                .try_for_each_concurrent(MAX_CONCURRENT, async |object| {
                    let key = Key::new(namespace, object.name_any());
                    remove(&api, object, mapped)
                        .await
                        .step("remove", kind.kind.clone(), key)
                })
                .await?;
            match found.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(any),
            }
        }
    }

    /// Controllers need a moment to let objects go whose pods have just gone: they still store what
    /// these used.
    fn was_mapped_lately(&self, consumer: &ClusterId, mapped: bool) -> bool {
        let mut unmapped = self.unmapped.lock();
        if mapped {
            unmapped.remove(consumer);
            return false;
        }
        unmapped
            .entry(consumer.clone())
            .or_insert_with(Instant::now)
            .elapsed()
            < LET_GO_TIMEOUT
    }

    async fn has_mapped_namespaces(&self, consumer: &ClusterId) -> Result<bool, StepError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let selector = format!(
            "{}={},{}={consumer}",
            labels::NAMESPACE_KIND,
            labels::KIND_MAPPED,
            labels::CONSUMER_ID
        );
        let mapped = namespaces
            .list_metadata(&ListParams::default().labels(&selector).limit(1))
            .await;
        Ok(!mapped
            .step("list", "mapped Namespaces", Key::default())?
            .items
            .is_empty())
    }

    /// Asks the API server for the tenant namespace. A namespace of that name that Liqo did not
    /// create counts as none.
    async fn live_namespace(
        &self,
        consumer: &ClusterId,
    ) -> Result<Option<LiqoNamespace>, StepError> {
        let name = tenant_namespace(consumer);
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found =
            namespaces
                .get_opt(&name)
                .await
                .step("read", "Namespace", Key::new("", name))?;
        Ok(found
            .and_then(LiqoNamespace::from_namespace)
            .filter(|namespace| {
                namespace.kind == PeerNamespaceKind::Tenant && namespace.cluster == *consumer
            }))
    }

    async fn lock(&self, consumer: &ClusterId) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            // Drop unused locks, so that strangers cannot fill the memory.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(consumer.clone()).or_default())
        };
        lock.lock_owned().await
    }

    fn consumer_heartbeats(
        &self,
    ) -> MutexGuard<'_, HashMap<ClusterId, (ConsumerHeartbeat, ConsumerHealth)>> {
        self.consumer_heartbeats.lock()
    }
}

impl Tenancies for Tenants {
    fn cluster_name(&self) -> String {
        self.context.config().spec.cluster_name.clone()
    }

    fn is_known(&self, consumer: &ClusterId) -> bool {
        self.namespaces
            .get(&Key::new("", tenant_namespace(consumer)))
            .is_some()
            || self.find_record(consumer).is_some()
    }

    fn needs_no_token(&self, consumer: &ClusterId) -> bool {
        self.admission_without_record(consumer).needs_no_token
    }

    async fn known_consumer(
        &self,
        consumer: &ClusterId,
        name: &str,
    ) -> Result<KnownConsumer, TenancyError> {
        let namespace = self.live_namespace(consumer).await?;
        let approved = namespace
            .as_ref()
            .is_some_and(|namespace| !namespace.terminating && !namespace.ending);
        let AdmissionRequirements {
            by_hand,
            needs_no_token,
        } = self.admission_requirements(consumer, approved).await?;
        let cached = self.find_record(consumer);
        let may_wait = !approved
            && (by_hand
                || cached
                    .as_ref()
                    .is_some_and(|record| self.approval_wait(record) != ApprovalWait::No));
        let record = if may_wait {
            self.live_record(consumer, name, cached).await?
        } else {
            cached
        };
        let leaving = record
            .as_ref()
            .is_some_and(|record| record.metadata.deletion_timestamp.is_some());
        let noted_name = record.as_deref().and_then(noted_name);
        Ok(KnownConsumer {
            approved,
            ending: leaving
                || namespace
                    .as_ref()
                    .is_some_and(|namespace| namespace.terminating || namespace.ending),
            cluster_name: if approved {
                namespace.and_then(|namespace| namespace.cluster_name)
            } else {
                noted_name
            },
            waits: may_wait
                && record.as_ref().is_some_and(|record| {
                    matches!(self.approval_wait(record), ApprovalWait::For(_))
                }),
            incoming: record.map_or(PeeringIntent::Auto, |record| record.spec.incoming_peering),
            by_hand,
            needs_no_token,
        })
    }

    async fn is_approved(&self, consumer: &ClusterId) -> Result<bool, TenancyError> {
        Ok(self
            .live_namespace(consumer)
            .await?
            .is_some_and(|namespace| !namespace.terminating && !namespace.ending))
    }

    async fn approval_queue(
        &self,
        consumer: &ClusterId,
        name: &str,
    ) -> Result<ApprovalQueue, TenancyError> {
        Ok(self.find_approval_queue(consumer, name).await?)
    }

    async fn note_waiting(
        &self,
        consumer: &ClusterId,
        key: &PublicKey,
        name: &str,
    ) -> Result<(), TenancyError> {
        if self
            .create_or_annotate(
                consumer,
                name,
                Some(WaitingConsumer {
                    since: self.context.now(),
                    key: *key,
                }),
            )
            .await?
        {
            return Ok(());
        }
        Err(TenancyError::NamesTaken)
    }

    async fn judge_token(
        &self,
        token: Option<&str>,
        consumer: &ClusterId,
    ) -> Result<TokenVerdict, TenancyError> {
        Ok(self
            .tokens
            .judge_presented(token, consumer, !self.is_known(consumer))
            .await)
    }

    async fn claim_token(
        &self,
        token: &TokenClaim,
        _consumer: &ClusterId,
    ) -> Result<bool, TenancyError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(tokens::claim_for_consumer(&secrets, token).await?)
    }

    async fn discard_token(&self, token: &TokenClaim) -> Result<(), TenancyError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(tokens::delete_used_token(&secrets, token).await?)
    }

    async fn ensure_tenancy(
        &self,
        consumer: &GrantedConsumer,
    ) -> Result<AccessGrant, TenancyError> {
        let api_server = self.addresses.borrow().as_ref().map_or_else(
            || Err("its manager has just started".to_owned()),
            |addresses| addresses.api_server.clone(),
        );
        let api_server = api_server.map_err(|problem| {
            TenancyError::Refused(refusal_because(
                reasons::ADDRESS_UNKNOWN,
                format!("the provider does not know the address of its API server: {problem}"),
            ))
        })?;
        let alone = self.lock(&consumer.id).await;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let tenant = manifests::namespace_of_tenant(consumer);
        let (is_leaving, found, session) = tokio::try_join!(
            self.is_record_leaving(&consumer.id),
            async {
                let name = tenant.name_any();
                namespaces
                    .get_opt(&name)
                    .await
                    .step("read", "Namespace", Key::new("", name))
            },
            self.usable_session_secret(&consumer.id),
        )?;
        if is_leaving {
            return Err(TenancyError::Refused(still_ending()));
        }
        let (namespace, session) = match found {
            Some(namespace) => (namespace, session),
            None => (objects::ensure(&namespaces, &tenant).await?, None),
        };
        match LiqoNamespace::from_namespace(namespace) {
            Some(namespace)
                if namespace.kind == PeerNamespaceKind::Tenant
                    && namespace.cluster == consumer.id =>
            {
                if namespace.ending || namespace.terminating {
                    return Err(TenancyError::Refused(still_ending()));
                }
            }
            _ => {
                let name = tenant_namespace(&consumer.id);
                return Err(TenancyError::Refused(refusal_because(
                    reasons::NAMESPACE_TAKEN,
                    format!(
                        "namespace {name} exists in the provider, and Liqo did not create it: remove it"
                    ),
                )));
            }
        }
        let session = match session {
            Some(session) => session,
            None => Box::pin(self.make_parts(&consumer.id)).await?,
        };
        self.create_record(&consumer.id, &consumer.name).await?;
        let (token, expiration_seconds) = self.issue_token(&consumer.id, session).await?;
        drop(alone);
        self.queue.add(consumer.id.clone());
        Ok(AccessGrant {
            tenant_namespace: tenant_namespace(&consumer.id),
            api_server,
            token: SecretText(token),
            expiration_seconds,
            protocol_version: consumer.protocol_version,
            provider_name: self.cluster_name(),
        })
    }

    async fn end_tenancy(&self, consumer: &ClusterId) -> Result<(), TenancyError> {
        let _alone = self.lock(consumer).await;
        if self
            .live_namespace(consumer)
            .await?
            .is_some_and(|namespace| !namespace.terminating && !namespace.ending)
        {
            self.mark_ending(consumer).await?;
            self.revoke_rights(consumer, true).await?;
        }
        self.queue.add(consumer.clone());
        Ok(())
    }
}

/// The metadata of an object of any kind.
type ObjectMetadata = UnparsedObject<PartialObjectMeta<DynamicObject>>;

/// Deletes an object of an ending tenancy. If it is already being deleted, removes the finalizers
/// that are not ours, and ours as well once there is no mapped namespace, because then they protect
/// nothing.
async fn remove(
    api: &Api<ObjectMetadata>,
    object: &ObjectMetadata,
    mapped: bool,
) -> kube::Result<()> {
    let name = object.name_any();
    let done = if object.meta().deletion_timestamp.is_none() {
        api.delete(&name, &DeleteParams::default()).await.map(drop)
    } else {
        let kept: Vec<&String> = object
            .finalizers()
            .iter()
            .filter(|name| mapped && name.starts_with(OUR_FINALIZERS))
            .collect();
        if kept.len() == object.finalizers().len() {
            return Ok(());
        }
        let patch =
            json!({"metadata": {"finalizers": kept, "resourceVersion": object.resource_version()}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
    };
    match unless_changed(done) {
        // The request succeeded, but the returned object cannot be parsed.
        Err(kube::Error::SerdeError(_)) => Ok(()),
        done => done.map(drop),
    }
}
