//! The provider's side of a peering: what one consumer is given, and how it is taken back.
//!
//! ```text
//!  liqo-tenant-<id>      labels and annotations: whose it is        namespace liqo
//!    RoleBinding liqo-tenant ───────── subject ───────────────────▶ ServiceAccount liqo-consumer-<id>
//!    ResourceQuota, Lease provider, Lease consumer                  Secret         liqo-consumer-<id> ◀── tokens are bound to it
//! ```
//!
//! The tenant namespace is the record of the grant: while it stands and is not ending, the consumer's key is approved.
//! Granting and ending of one tenancy never run at the same time.

mod records;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    coordination::v1::Lease,
    core::v1::{Namespace, ResourceQuota, Secret, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams},
};
use liqo_api::{
    ClusterId, ForeignCluster, NamespaceMap, PeeringPolicy, ReflectedObject, ResourceOffer, ResourceRequest, ShadowPod, Wish,
    consumer_service_account, labels, leases, roles, tenant_namespace,
};
use liqo_kit::{
    Cache, Context, Queue,
    unread::{Unread, unread},
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use crate::{
    addresses::Addresses,
    auth::{
        decide::{Known, OneTimeToken, Room, TokenVerdict, reasons},
        server::{Consumer, Tenancies, TenancyError},
        tokens,
    },
    decide::{ConsumerHealth, ConsumerPulse, Waiting},
    identity::PublicKey,
    namespace::LiqoNamespace,
    objects::{self, KIND_MAPPED, Step, StepError, create_missing, create_missing_in_new, delete_present},
    protocol::{Grant, Refusal, SecretText},
};

/// How often the lease in each tenant namespace is renewed, and the consumer's looked at.
const BEAT: Duration = Duration::from_secs(5);
/// How many tenants are served at a time.
const AT_A_TIME: usize = 16;
/// How many objects of an ending tenancy are looked at in one step.
const CLEARED_AT_ONCE: u32 = 500;
/// What the names of our own finalizers begin with.
const OUR_FINALIZERS: &str = "liqo.io/";
/// How long a credential is good.
const CREDENTIAL_SECONDS: i64 = 3600;

/// All consumers of this cluster.
pub struct Tenants {
    client: Client,
    namespace: String,
    own: ClusterId,
    context: Context,
    addresses: watch::Receiver<Option<Addresses>>,
    foreign_clusters: Cache<ForeignCluster>,
    policies: Cache<PeeringPolicy>,
    namespaces: Cache<LiqoNamespace>,
    queue: Queue<ClusterId>,
    pulses: Mutex<HashMap<ClusterId, (ConsumerPulse, ConsumerHealth)>>,
    locks: Mutex<HashMap<ClusterId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Tenants {
    /// The consumers of the cluster of `context`. Changes of a consumer's health add its ID to `queue`.
    pub fn new(
        context: &Context,
        addresses: watch::Receiver<Option<Addresses>>,
        foreign_clusters: Cache<ForeignCluster>,
        policies: Cache<PeeringPolicy>,
        namespaces: Cache<LiqoNamespace>,
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
            queue,
            pulses: Mutex::default(),
            locks: Mutex::default(),
        }
    }

    /// How a consumer is, as far as this process knows.
    pub fn health(&self, consumer: &ClusterId) -> ConsumerHealth {
        self.pulses().get(consumer).map_or(ConsumerHealth::Unknown, |(_, health)| *health)
    }

    /// Makes what is missing of a tenancy that stands.
    pub async fn keep(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let _alone = self.lock(consumer).await;
        // The cache may be behind an ending that was just begun.
        match self.live_namespace(consumer).await? {
            Some(namespace) if !namespace.terminating && !namespace.ending => self.make_parts(consumer).await,
            _ => Ok(()),
        }
    }

    /// Does what can be done now to end a tenancy. Returns whether the namespace is on its way out.
    pub async fn end_step(&self, consumer: &ClusterId) -> Result<bool, StepError> {
        let _alone = self.lock(consumer).await;
        let name = tenant_namespace(consumer);
        match self.live_namespace(consumer).await? {
            None => return Ok(true),
            Some(namespace) if namespace.terminating => return Ok(true),
            Some(namespace) if namespace.ending => {}
            Some(_) => self.mark_ending(consumer).await?,
        }
        self.take_rights(consumer, true).await?;
        // Without it we could not even look; a grant that was interrupted may have left it out.
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &name);
        create_missing(&bindings, &objects::manager_binding(&self.namespace)).await?;
        let mapped = self.has_mapped_namespaces(consumer).await?;
        let left = self.empty(&name, mapped).await?;
        if left || mapped {
            return Ok(false);
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        delete_present(&namespaces, &name).await?;
        tracing::info!(%consumer, "ended the tenancy");
        Ok(true)
    }

    /// Takes away what gives access, of a consumer without a tenant namespace.
    pub async fn sweep(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let _alone = self.lock(consumer).await;
        self.pulses().remove(consumer);
        if self.live_namespace(consumer).await?.is_some_and(|namespace| !namespace.terminating) {
            return Ok(());
        }
        self.take_rights(consumer, false).await
    }

    /// Whether a consumer has no namespace at all, asked of the API server.
    pub async fn is_gone(&self, consumer: &ClusterId) -> Result<bool, StepError> {
        Ok(self.live_namespace(consumer).await?.is_none())
    }

    /// Consumers that have an account but no tenant namespace: left over from a namespace that somebody deleted.
    pub async fn strays(&self) -> Result<Vec<ClusterId>, StepError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = accounts.list_metadata(&ListParams::default().labels(labels::CONSUMER_ID)).await;
        let list = list.step(|| "list the accounts of consumers".to_owned())?;
        Ok(list.iter().filter_map(|account| account.labels().get(labels::CONSUMER_ID)?.parse().ok()).collect())
    }

    /// Renews the provider's lease for every tenant, and looks at the consumer's, until `context.stop`.
    pub async fn beat(&self) {
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.context.stop.cancelled() => return,
                _ = beats.tick() => {}
            }
            let serving =
                self.namespaces.all().into_iter().filter(|(_, namespace)| {
                    namespace.kind == objects::KIND_TENANT && !namespace.terminating && !namespace.ending
                });
            futures::stream::iter(serving)
                .for_each_concurrent(AT_A_TIME, |(_, namespace)| async move {
                    if let Err(error) = self.beat_one(&namespace.cluster).await {
                        tracing::debug!(consumer = %namespace.cluster, %error, "cannot renew the lease of a tenant");
                    }
                })
                .await;
        }
    }

    async fn beat_one(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &tenant_namespace(consumer));
        let renewal = Patch::Merge(objects::renewal(&self.own, Timestamp::now()));
        let parameters = PatchParams::default();
        let (renewed, seen) = tokio::join!(api.patch(leases::PROVIDER, &parameters, &renewal), api.get(leases::CONSUMER));
        renewed.step(|| format!("renew Lease {} for {consumer}", leases::PROVIDER))?;
        let seen = seen.step(|| format!("read Lease {} of {consumer}", leases::CONSUMER))?;
        let expiry = Duration::from_secs(self.context.config().spec.peering.consumer_expiry_seconds.into());
        let (lease, now) = (objects::lease_version(&seen), Instant::now());
        let mut pulses = self.pulses();
        let (pulse, health) =
            pulses.entry(consumer.clone()).or_insert_with(|| (ConsumerPulse::new(lease.clone(), now), ConsumerHealth::Unknown));
        pulse.saw(lease, now);
        let current = pulse.health(expiry, now);
        let changed = *health != current;
        *health = current;
        drop(pulses);
        if changed {
            self.queue.add(consumer.clone());
        }
        Ok(())
    }

    async fn make_parts(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let name = tenant_namespace(consumer);
        let (client, own) = (self.client.clone(), &self.namespace);
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &name);
        create_missing(&bindings, &objects::manager_binding(own)).await?;
        create_missing(&Api::namespaced(client.clone(), own), &objects::account(consumer)).await?;
        create_missing(&Api::namespaced(client.clone(), own), &objects::session_secret(consumer)).await?;
        let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &name);
        let quota = create_missing_in_new(&quotas, &objects::quota()).await?;
        if let Some(status) = objects::first_count(&quota) {
            let patch = Patch::Merge(json!({ "status": status }));
            let counted = quotas.patch_status(objects::QUOTA, &PatchParams::default(), &patch).await;
            counted.map(|_| ()).step(|| format!("start the count of the quota in {name}"))?;
        }
        for lease in objects::tenant_leases() {
            create_missing_in_new(&Api::<Lease>::namespaced(client.clone(), &name), &lease).await?;
        }
        create_missing(&bindings, &objects::tenant_binding(consumer, own)).await?;
        Ok(())
    }

    async fn issue_token(&self, consumer: &ClusterId) -> Result<(String, u64), StepError> {
        let name = consumer_service_account(consumer);
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let session = secrets.get(&name).await.step(|| format!("read Secret {name}"))?;
        let request = TokenRequest {
            metadata: ObjectMeta::default(),
            spec: TokenRequestSpec {
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(name.clone()),
                    uid: session.uid(),
                }),
                expiration_seconds: Some(CREDENTIAL_SECONDS),
                ..TokenRequestSpec::default()
            },
            status: None,
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let issued = accounts.create_token_request(&name, &PostParams::default(), &request).await;
        let issued = issued.step(|| format!("issue a token for ServiceAccount {name}"))?;
        let seconds = issued.spec.expiration_seconds.unwrap_or(CREDENTIAL_SECONDS);
        let token = issued.status.map(|status| status.token).unwrap_or_default();
        Ok((token, u64::try_from(seconds).unwrap_or_default()))
    }

    async fn mark_ending(&self, consumer: &ClusterId) -> Result<(), StepError> {
        let name = tenant_namespace(consumer);
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let mark = json!({"metadata": {"annotations": {objects::ENDING: Timestamp::now().to_string()}}});
        namespaces
            .patch(&name, &PatchParams::default(), &Patch::Merge(mark))
            .await
            .step(|| format!("mark namespace {name} as ending"))?;
        self.pulses().remove(consumer);
        Ok(())
    }

    /// Rights first, for they end at once; then what the tokens are bound to, which takes up to 10 s to be noticed.
    async fn take_rights(&self, consumer: &ClusterId, in_namespaces: bool) -> Result<(), StepError> {
        if in_namespaces {
            let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &tenant_namespace(consumer));
            delete_present(&bindings, roles::TENANT).await?;
            for (key, namespace) in self.namespaces.all() {
                if namespace.kind == KIND_MAPPED && namespace.cluster == *consumer {
                    let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &key.name);
                    delete_present(&bindings, roles::TENANT_POD_ACCESS).await?;
                }
            }
        }
        let name = consumer_service_account(consumer);
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        delete_present(&secrets, &name).await?;
        delete_present(&accounts, &name).await
    }

    /// Starts the deletion of all that the two clusters said to each other; whoever made more of it cleans up. Returns
    /// whether something is left that has to be gone before the namespace (and with it our rights there) may go.
    async fn empty(&self, namespace: &str, mapped: bool) -> Result<bool, StepError> {
        Ok(self.clear::<ResourceRequest>(namespace, mapped).await?
            | self.clear::<ResourceOffer>(namespace, mapped).await?
            | self.clear::<NamespaceMap>(namespace, mapped).await?
            | self.clear::<ShadowPod>(namespace, mapped).await?
            | self.clear::<ReflectedObject>(namespace, mapped).await?
            | self.clear::<Secret>(namespace, mapped).await?
            | self.clear::<Lease>(namespace, mapped).await?)
    }

    /// Deletes all objects of a kind. They were written by the consumer, so nothing of them is read that need not be, and
    /// they are deleted one by one: to delete a collection answers with all that was in it.
    async fn clear<K>(&self, namespace: &str, mapped: bool) -> Result<bool, StepError>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()> + 'static,
    {
        let api = unread(Api::<PartialObjectMeta<K>>::namespaced(self.client.clone(), namespace));
        let page = ListParams::default().limit(CLEARED_AT_ONCE);
        let found = api.list(&page).await.step(|| format!("list every {} in {namespace}", K::kind(&())))?.items;
        let step = |object: &Unread<_>| format!("remove {} {namespace}/{}", K::kind(&()), object.name_any());
        futures::stream::iter(&found)
            .map(Ok)
            .try_for_each_concurrent(AT_A_TIME, async |object| remove(&api, object, mapped).await.step(|| step(object)))
            .await?;
        Ok(!found.is_empty())
    }

    async fn has_mapped_namespaces(&self, consumer: &ClusterId) -> Result<bool, StepError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let selector = format!("{}={KIND_MAPPED},{}={consumer}", labels::NAMESPACE_KIND, labels::CONSUMER_ID);
        let mapped = namespaces.list_metadata(&ListParams::default().labels(&selector).limit(1)).await;
        Ok(!mapped.step(|| format!("list the mapped namespaces of {consumer}"))?.items.is_empty())
    }

    /// The tenant namespace as it is now; a namespace of that name that is not ours counts as none.
    async fn live_namespace(&self, consumer: &ClusterId) -> Result<Option<LiqoNamespace>, StepError> {
        let name = tenant_namespace(consumer);
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = namespaces.get_opt(&name).await.step(|| format!("read namespace {name}"))?;
        Ok(found
            .and_then(LiqoNamespace::of)
            .filter(|namespace| namespace.kind == objects::KIND_TENANT && namespace.cluster == *consumer))
    }

    async fn lock(&self, consumer: &ClusterId) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            // Locks that nobody holds or waits for are dropped, so that strangers leave nothing behind.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(consumer.clone()).or_default())
        };
        lock.lock_owned().await
    }

    fn pulses(&self) -> MutexGuard<'_, HashMap<ClusterId, (ConsumerPulse, ConsumerHealth)>> {
        self.pulses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenancies for Tenants {
    fn cluster_name(&self) -> String {
        self.context.config().spec.cluster_name.clone()
    }

    async fn known(&self, consumer: &ClusterId, name: &str) -> Result<Known, TenancyError> {
        let namespace = self.live_namespace(consumer).await?;
        let approved = namespace.as_ref().is_some_and(|namespace| !namespace.terminating && !namespace.ending);
        let (cached, by_hand) = (self.find_record(consumer), self.is_approved_by_hand(consumer));
        let may_wait = !approved && (by_hand || cached.as_ref().is_some_and(|record| self.waiting(record) != Waiting::No));
        let record = if may_wait { self.live_record(consumer, name, cached).await? } else { cached };
        let leaving = record.as_ref().is_some_and(|record| record.metadata.deletion_timestamp.is_some());
        let noted_name = record.as_deref().and_then(records::noted_name);
        Ok(Known {
            approved,
            ending: leaving || namespace.as_ref().is_some_and(|namespace| namespace.terminating || namespace.ending),
            cluster_name: if approved { namespace.and_then(|namespace| namespace.cluster_name) } else { noted_name },
            waits: may_wait && record.as_ref().is_some_and(|record| matches!(self.waiting(record), Waiting::For(_))),
            incoming: record.map_or(Wish::Auto, |record| record.spec.incoming_peering),
            by_hand,
        })
    }

    async fn is_approved(&self, consumer: &ClusterId) -> Result<bool, TenancyError> {
        Ok(self.live_namespace(consumer).await?.is_some_and(|namespace| !namespace.terminating && !namespace.ending))
    }

    async fn room(&self, consumer: &ClusterId, name: &str) -> Result<Room, TenancyError> {
        Ok(self.look_for_room(consumer, name).await?)
    }

    async fn note(&self, consumer: &ClusterId, key: &PublicKey, name: &str) -> Result<(), TenancyError> {
        if self.record_as(consumer, name, Some(records::Noted { since: Timestamp::now(), key: *key })).await? {
            return Ok(());
        }
        Err(failed("note that a consumer waits for approval", "both names for its ForeignCluster are taken"))
    }

    async fn judge_token(&self, token: Option<&str>) -> Result<TokenVerdict, TenancyError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        tokens::look_up(&secrets, token, Timestamp::now()).await.map_err(|error| failed("judge a token", error))
    }

    async fn spend_token(&self, token: &OneTimeToken) -> Result<bool, TenancyError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        tokens::spend(&secrets, token).await.map_err(|error| failed("spend a token", error))
    }

    async fn ensure(&self, consumer: &Consumer) -> Result<Grant, TenancyError> {
        let api_server = self
            .addresses
            .borrow()
            .as_ref()
            .map_or_else(|| Err("the manager has just started".to_owned()), |addresses| addresses.api_server.clone());
        let api_server = api_server.map_err(|problem| {
            refused(reasons::ADDRESS_UNKNOWN, format!("the provider cannot say how its API server is reached: {problem}"))
        })?;
        let alone = self.lock(&consumer.id).await;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = create_missing(&namespaces, &objects::tenant(consumer)).await?;
        match LiqoNamespace::of(namespace) {
            Some(namespace) if namespace.kind == objects::KIND_TENANT && namespace.cluster == consumer.id => {
                if namespace.ending || namespace.terminating {
                    return Err(refused(
                        reasons::BUSY,
                        "the previous peering is still being cleaned up: try again in some seconds",
                    ));
                }
            }
            _ => {
                let name = tenant_namespace(&consumer.id);
                return Err(refused(
                    reasons::NAMESPACE_TAKEN,
                    format!("namespace {name} exists in the provider and was not made by Liqo: remove it"),
                ));
            }
        }
        self.make_parts(&consumer.id).await?;
        self.record(&consumer.id, &consumer.name).await?;
        let (token, expiration_seconds) = self.issue_token(&consumer.id).await?;
        drop(alone);
        self.queue.add(consumer.id.clone());
        Ok(Grant {
            tenant_namespace: tenant_namespace(&consumer.id),
            api_server,
            token: SecretText(token),
            expiration_seconds,
            protocol_version: consumer.protocol_version,
            provider_name: self.cluster_name(),
        })
    }

    async fn end(&self, consumer: &ClusterId) -> Result<(), TenancyError> {
        let _alone = self.lock(consumer).await;
        if self.live_namespace(consumer).await?.is_some_and(|namespace| !namespace.terminating && !namespace.ending) {
            self.mark_ending(consumer).await?;
            self.take_rights(consumer, true).await?;
        }
        self.queue.add(consumer.clone());
        Ok(())
    }
}

/// Deletes an object of an ending tenancy. What is on its way out goes without finalizers that the consumer made up, and once
/// there is no mapped namespace without ours, which then guard nothing.
async fn remove<K: Resource>(
    api: &Api<Unread<PartialObjectMeta<K>>>,
    object: &Unread<PartialObjectMeta<K>>,
    mapped: bool,
) -> kube::Result<()> {
    let name = object.name_any();
    let done = if object.meta().deletion_timestamp.is_none() {
        api.delete(&name, &DeleteParams::default()).await.map(drop)
    } else {
        let kept: Vec<&String> = object.finalizers().iter().filter(|name| mapped && name.starts_with(OUR_FINALIZERS)).collect();
        if kept.len() == object.finalizers().len() {
            return Ok(());
        }
        let patch = json!({"metadata": {"finalizers": kept, "resourceVersion": object.resource_version()}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    };
    match done {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        // It was done, and the answer shows an object that cannot be read.
        Err(kube::Error::SerdeError(_)) => Ok(()),
        done => done,
    }
}

impl From<StepError> for TenancyError {
    fn from(error: StepError) -> Self {
        Self::Failed { step: error.step, source: error.source.into() }
    }
}

fn failed(step: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TenancyError {
    TenancyError::Failed { step: step.to_owned(), source: source.into() }
}

fn refused(reason: &str, message: impl Into<String>) -> TenancyError {
    TenancyError::Refused(Refusal { reason: reason.to_owned(), message: message.into() })
}
