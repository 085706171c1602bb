//! Keeps replicas of a consumer's objects in its mapped namespaces.
//!
//! A pass lists the replicas of one group in one namespace: after a change, and regularly. That
//! also finds replicas whose source vanished while no controller ran. Endpoints change much more
//! often than what pods reference, so each [`SourceGroup`] has its own passes.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
};
use liqo_api::record_text::{self, MAX_OBJECT_LEN};
use liqo_api::{ClusterId, Exposure, Provide, ReflectedObject, annotations, finalizers, labels};
use liqo_controller_runtime::writes::{
    StepContext as _, StepError, delete_if_present, only_with_uid, remove_finalizer_at,
    unless_changed,
};
use liqo_controller_runtime::{Key, Requeue};
use liqo_network_model::Here;
use liqo_offloading_rules::namespace::mapped::DestinationState;
use liqo_offloading_rules::pod::consumer_policy::ConsumerPolicy;
use liqo_offloading_rules::pod::reclaim::PodReclaim;
use liqo_offloading_rules::pod::remote_pod::RemotePod;
use liqo_offloading_rules::replica::chunk::Chunk;
use liqo_offloading_rules::replica::chunks::{self, ChunkJoinError, ChunkJoiner};
use liqo_offloading_rules::replica::exposure_grant::ExposureGrant;
use liqo_offloading_rules::replica::held_budgets::{LeavingPod, LeavingReason};
use liqo_offloading_rules::replica::isolation::{
    IsolationPolicy, brokered_copy_prefix, is_own, with_brokered_copies,
};
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::network_policy::NormalizedPolicy;
use liqo_offloading_rules::replica::replica_plan::{
    Replica, ReplicaStep, limit_sources, plan_replicas, plan_without_namespace, replacement_object,
    replica_object,
};
use liqo_offloading_rules::replica::replica_source::{
    ReplicaProblem, ReplicaSource, clamp_policies,
};
use liqo_offloading_rules::replica::service_quota::ServiceQuota;
use liqo_offloading_rules::replica::{exposure, held_budgets, lost_endpoints, service};
use serde_json::{Value, json};

use crate::provider::state::{ProviderError, ProviderState};
use crate::provider::triggers::{self, ReplicaGroup, SourceGroup};

/// Maximum number of groups that are reconciled at the same time.
const WORKERS: usize = 4;
/// Page size of lists of replicas: each may hold as much as a consumer may send.
const PAGE_SIZE: u32 = 50;
/// The same for a `ConfigMap` or Secret, which may take a MiB.
const LARGE_PAGE_SIZE: u32 = 10;
/// Interval between two checks of a group although nothing changed.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);
/// Interval between two tries of objects without room.
const QUOTA_RETRY: Duration = Duration::from_mins(1);
/// Delay before another namespace of the consumer, which lost its room, is looked at.
const QUOTA_DELAY: Duration = Duration::from_secs(5);
/// Interval between two tries of a name that is taken.
const NAME_TAKEN_RETRY: Duration = Duration::from_mins(1);
/// Interval between two checks of a replica that is being deleted, or is young and has no address
/// yet.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Age up to which a replica counts as young.
const MAX_YOUNG_AGE: Duration = Duration::from_mins(15);
/// Interval between two checks of an older replica without an address.
const ADDRESS_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Runs until the context's `stop`.
pub async fn run_controller(provider: Arc<ProviderState>) {
    let (queue, stop) = (
        provider.queues.replicas.clone(),
        provider.context.stop.clone(),
    );
    queue
        .run("replicas", WORKERS, stop, move |group| {
            let provider = provider.clone();
            async move { reconcile_group(&provider, &group).await }
        })
        .await;
}

/// Reconciles one group of replicas.
async fn reconcile_group(
    provider: &ProviderState,
    group: &ReplicaGroup,
) -> Result<Requeue, ProviderError> {
    let Some(tenant) = provider.tenant(&group.tenant) else {
        return Ok(Requeue::OnChange);
    };
    let destination = provider.destination(&group.tenant, &group.home);
    let GroupSources {
        mut sources,
        complete,
    } = group_sources(provider, group);
    if group.group == SourceGroup::Named {
        sources = chunks::join_sources(sources);
    }
    let mut pass = ReplicaGroupReconciliation {
        provider,
        group,
        consumer: &tenant.consumer,
        namespace: &destination.namespace,
        policy: provider.policy_of(&tenant.consumer),
        next: Requeue::OnChange,
        failure: None,
    };
    match &destination.state {
        DestinationState::Ready => {
            if !sources.is_empty() {
                pass.check_after(CHECK_INTERVAL);
            }
            match group.group {
                SourceGroup::Named => pass.reconcile_named(&sources, &complete).await?,
                SourceGroup::Services => pass.reconcile_services(sources).await?,
                SourceGroup::Ingresses => pass.reconcile_ingresses(sources).await?,
                SourceGroup::Policies => pass.reconcile_policies(sources).await?,
                SourceGroup::Budgets => pass.reconcile_budgets(sources).await?,
            }
        }
        DestinationState::NotReady(why) => {
            pass.perform_steps(plan_without_namespace(&sources, why))
                .await;
        }
        DestinationState::Unwanted => {
            let why = format!("namespace {} is not offloaded to this cluster", group.home);
            pass.perform_steps(plan_without_namespace(&sources, &why))
                .await;
        }
    }
    pass.failure.map_or(Ok(pass.next), Err)
}

struct GroupSources {
    sources: Vec<ReplicaSource>,
    /// The kinds whose sources are all known.
    complete: BTreeSet<ReplicaKind>,
}

fn group_sources(provider: &ProviderState, group: &ReplicaGroup) -> GroupSources {
    let mut complete = BTreeSet::from([ReplicaKind::ConfigMap]);
    let secrets = provider.secrets_of_tenant(&group.tenant);
    if secrets.is_some() {
        complete.insert(ReplicaKind::Secret);
    }
    let records = provider.records.all().into_iter().map(|(_, source)| source);
    let sources = records
        .chain(secrets.into_iter().flatten())
        .filter(|source| ReplicaGroup::of_source(source) == *group)
        .map(Arc::unwrap_or_clone)
        .collect();
    GroupSources { sources, complete }
}

/// Separates the reports of exposure from the other steps.
fn split_exposure(steps: Vec<ReplicaStep>) -> (Vec<ReplicaStep>, Vec<ReplicaStep>) {
    steps
        .into_iter()
        .partition(|step| matches!(step, ReplicaStep::ReportExposure(..)))
}

fn replica_names(replicas: &[Replica]) -> BTreeSet<String> {
    replicas
        .iter()
        .map(|replica| replica.name.clone())
        .collect()
}

/// The outcome of a pass over one kind that clients outside the cluster may reach.
struct ExposedOutcome {
    replicas: Vec<Replica>,
    /// The sources within the limits.
    sources: Vec<ReplicaSource>,
    /// Whether replicas were created or deleted.
    names_change: bool,
}

/// One pass over one group of replicas.
struct ReplicaGroupReconciliation<'a> {
    provider: &'a ProviderState,
    group: &'a ReplicaGroup,
    consumer: &'a ClusterId,
    /// The mapped namespace.
    namespace: &'a str,
    policy: Option<ConsumerPolicy>,
    next: Requeue,
    /// The first error.
    failure: Option<ProviderError>,
}

/// The passes over the groups.
impl ReplicaGroupReconciliation<'_> {
    async fn reconcile_named(
        &mut self,
        sources: &[ReplicaSource],
        complete: &BTreeSet<ReplicaKind>,
    ) -> Result<(), ProviderError> {
        let replicas = self.list_replicas(&ReplicaKind::NAMED).await?;
        self.check_soon_for(&replicas);
        self.perform_steps(plan_replicas(
            sources,
            &replicas,
            complete,
            self.policy.as_ref(),
        ))
        .await;
        Ok(())
    }

    /// Services go first: which endpoints may exist here depends on them.
    async fn reconcile_services(
        &mut self,
        sources: Vec<ReplicaSource>,
    ) -> Result<(), ProviderError> {
        let mut sources = self.within_quota(sources);
        let slices = sources
            .extract_if(.., |source| source.kind == Some(ReplicaKind::EndpointSlice))
            .collect::<Vec<_>>();
        let (grant, families) = (self.exposure_grant(), self.families_of_services());
        let none = BTreeSet::new();
        let ExposedOutcome {
            replicas: live,
            sources: services,
            names_change,
        } = self
            .reconcile_exposed(ReplicaKind::Service, sources, |source| {
                grant.limit_source(source, &none).with_families(&families)
            })
            .await?;
        if names_change {
            let records = self.provider.records.all();
            let records = records.iter().map(|(_, source)| source.as_ref());
            self.provider
                .queues
                .add(triggers::services_changed(self.group, records));
        }
        let own = self.own_addresses();
        let (live, allowed) = (replica_names(&live), self.allowed_addresses(&own));
        let mut slices: Vec<ReplicaSource> = slices
            .into_iter()
            .map(|slice| slice.clamp_slice(&live, &allowed))
            .collect();
        if self.is_tunnel_lost() {
            let publishing = lost_endpoints::services_publishing_unready(&services);
            slices = slices
                .into_iter()
                .map(|slice| {
                    slice.with_lost_endpoints(&publishing, |address| own.contains(&address))
                })
                .collect();
        }
        let replicas = self.list_replicas(&[ReplicaKind::EndpointSlice]).await?;
        self.check_soon_for(&replicas);
        self.perform_steps(self.plan_steps(ReplicaKind::EndpointSlice, &slices, &replicas))
            .await;
        Ok(())
    }

    /// Whether the endpoints behind the tunnel are not ready. The next pass is due when they become
    /// so.
    fn is_tunnel_lost(&mut self) -> bool {
        let broken_since = self
            .provider
            .networks
            .network_of_peer(self.consumer)
            .and_then(|network| network.broken_since);
        let lost_in = lost_endpoints::time_until_lost(broken_since, self.provider.context.now());
        if let Some(left) = lost_in.filter(|left| !left.is_zero()) {
            self.check_after(left);
        }
        lost_in == Some(Duration::ZERO)
    }

    async fn reconcile_ingresses(
        &mut self,
        sources: Vec<ReplicaSource>,
    ) -> Result<(), ProviderError> {
        let grant = self.exposure_grant();
        let services = replica_names(&self.list_replicas(&[ReplicaKind::Service]).await?);
        self.reconcile_exposed(ReplicaKind::Ingress, sources, |source| {
            grant.limit_source(source, &services)
        })
        .await?;
        Ok(())
    }

    /// The pass over one kind that clients outside the cluster may reach: reports of exposure come
    /// last, and are about what is there then.
    async fn reconcile_exposed(
        &mut self,
        kind: ReplicaKind,
        sources: Vec<ReplicaSource>,
        limits: impl Fn(ReplicaSource) -> ReplicaSource,
    ) -> Result<ExposedOutcome, ProviderError> {
        let mut replicas = self.list_replicas(&[kind]).await?;
        let sources = limit_sources(sources, &replicas, limits);
        let (mut reports, steps) = split_exposure(self.plan_steps(kind, &sources, &replicas));
        let names_change = steps
            .iter()
            .any(|step| matches!(step, ReplicaStep::Create(..) | ReplicaStep::Delete(_)));
        if !steps.is_empty() {
            self.perform_steps(steps).await;
            replicas = self.list_replicas(&[kind]).await?;
            reports = split_exposure(self.plan_steps(kind, &sources, &replicas)).0;
        }
        self.check_soon_for(&replicas);
        self.perform_steps(reports).await;
        Ok(ExposedOutcome {
            replicas,
            sources,
            names_change,
        })
    }

    async fn reconcile_policies(
        &mut self,
        sources: Vec<ReplicaSource>,
    ) -> Result<(), ProviderError> {
        self.check_after(CHECK_INTERVAL);
        let isolation =
            self.provider
                .isolation_of(self.consumer, &self.group.home, self.policy.as_ref());
        let policies = clamp_policies(sources, &isolation, &self.provider.context.cluster_id);
        // Remove the default before a new policy of the consumer replaces it: pods must not be more
        // open in between.
        self.write_own_policies(&isolation, &policies).await?;
        let replicas = self.list_replicas(&[ReplicaKind::NetworkPolicy]).await?;
        self.perform_steps(self.plan_steps(ReplicaKind::NetworkPolicy, &policies, &replicas))
            .await;
        Ok(())
    }

    async fn reconcile_budgets(
        &mut self,
        sources: Vec<ReplicaSource>,
    ) -> Result<(), ProviderError> {
        let leaving = if sources.is_empty() {
            Vec::new()
        } else {
            self.leaving_pods()
        };
        if !leaving.is_empty() {
            self.check_after(POLL_INTERVAL);
        }
        let notice = self
            .policy
            .as_ref()
            .map_or_else(default_notice, |policy| policy.notice);
        let budgets =
            held_budgets::limit_budgets(sources, &leaving, notice, self.provider.context.now());
        if let Some(next_end) = budgets.next_end {
            self.check_after(next_end);
        }
        let replicas = self
            .list_replicas(&[ReplicaKind::PodDisruptionBudget])
            .await?;
        let steps = self.plan_steps(
            ReplicaKind::PodDisruptionBudget,
            &budgets.sources,
            &replicas,
        );
        self.perform_steps(steps).await;
        Ok(())
    }

    /// The consumer's pods in this namespace that are to leave their nodes.
    fn leaving_pods(&self) -> Vec<LeavingPod> {
        let mut leaving = Vec::new();
        for (_, pod) in self.provider.pods.in_namespace(self.namespace) {
            // One that ends already is not evicted.
            let stays =
                pod.end.is_none() && pod.deletion_grace.is_none() && pod.consumer == *self.consumer;
            if stays && let Some(why) = self.leaving_reason(&pod) {
                leaving.push(LeavingPod {
                    labels: pod.labels.clone(),
                    why,
                });
            }
        }
        leaving
    }

    fn leaving_reason(&self, pod: &RemotePod) -> Option<LeavingReason> {
        let taken_back = self
            .provider
            .resources_taken_back(&pod.shadow_key(), &pod.pool);
        if matches!(taken_back, Some(PodReclaim::Now(_))) {
            Some(LeavingReason::TakenBack)
        } else {
            self.drained_since(pod)
        }
    }

    fn drained_since(&self, pod: &RemotePod) -> Option<LeavingReason> {
        let node = pod.node.as_deref()?.to_owned();
        let since = self
            .provider
            .nodes
            .get(&Key::new("", node.as_str()))?
            .cordoned_since?;
        Some(LeavingReason::Drained { node, since })
    }

    /// The plan for one kind whose sources are all known.
    fn plan_steps(
        &self,
        kind: ReplicaKind,
        sources: &[ReplicaSource],
        replicas: &[Replica],
    ) -> Vec<ReplicaStep> {
        plan_replicas(
            sources,
            replicas,
            &BTreeSet::from([kind]),
            self.policy.as_ref(),
        )
    }

    /// Computes what the tenant may expose to clients outside the cluster.
    fn exposure_grant(&self) -> ExposureGrant {
        let records = self.provider.records.all();
        let of_tenant = records
            .iter()
            .filter(|(key, _)| key.namespace == self.group.tenant);
        ExposureGrant::new(
            self.policy.as_ref(),
            of_tenant.map(|(_, source)| source.as_ref()),
        )
    }

    /// Refuses Services and endpoints without room. Others that lost theirs, in other namespaces,
    /// are enqueued.
    fn within_quota(&mut self, sources: Vec<ReplicaSource>) -> Vec<ReplicaSource> {
        let records = self.provider.records.all();
        let of_tenant = records
            .iter()
            .filter(|(key, _)| key.namespace == self.group.tenant);
        let quota = ServiceQuota::new(
            self.policy.as_ref(),
            of_tenant.map(|(_, source)| source.as_ref()),
        );
        if quota.is_exceeded() {
            self.check_after(QUOTA_RETRY);
        }
        for home in quota
            .changed_namespaces()
            .filter(|home| **home != self.group.home)
        {
            // Not at once: two namespaces that enqueue each other would never rest.
            let group = ReplicaGroup {
                home: home.clone(),
                ..self.group.clone()
            };
            self.provider.queues.replicas.add_after(group, QUOTA_DELAY);
        }
        sources
            .into_iter()
            .map(|source| quota.limit_source(source))
            .collect()
    }

    /// The address families of this cluster's Services, as far as they are known.
    fn families_of_services(&self) -> Vec<&'static str> {
        let config = self.provider.context.config();
        let network = config
            .status
            .as_ref()
            .and_then(|status| status.network.as_ref());
        network
            .map(|ranges| service::ip_families(&ranges.services))
            .unwrap_or_default()
    }

    /// The addresses of the consumer's pods in this namespace.
    fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let pods = self
            .provider
            .pods
            .in_namespace(self.namespace)
            .into_iter()
            .filter(|(_, pod)| pod.consumer == *self.consumer);
        pods.flat_map(|(_, pod)| pod.addresses.clone()).collect()
    }

    /// Returns a test for the addresses that the consumer's endpoints may have: `own`, and those in
    /// its own prefixes.
    fn allowed_addresses<'a>(
        &self,
        own: &'a BTreeSet<IpAddr>,
    ) -> impl Fn(IpAddr) -> bool + use<'a> {
        let network = self.provider.networks.network_of_peer(self.consumer);
        move |address| {
            own.contains(&address)
                || network
                    .as_ref()
                    .is_some_and(|network| network.maps.imported.to_there(Here(address)).is_some())
        }
    }

    /// Brings the next pass forward, if it is not due before.
    fn check_after(&mut self, delay: Duration) {
        self.next = Requeue::After(match self.next {
            Requeue::After(sooner) => sooner.min(delay),
            Requeue::OnChange => delay,
        });
    }

    /// Polls while a replica is being deleted or has no address: no watch tells when that ends.
    fn check_soon_for(&mut self, replicas: &[Replica]) {
        for replica in replicas {
            let has_no_address = replica
                .exposure
                .as_ref()
                .is_some_and(|exposure| exposure.addresses.is_empty());
            let is_young =
                Duration::try_from(self.provider.context.now().duration_since(replica.since))
                    .is_ok_and(|age| age < MAX_YOUNG_AGE);
            if replica.deleted || (has_no_address && is_young) {
                self.check_after(POLL_INTERVAL);
            } else if has_no_address {
                self.check_after(ADDRESS_CHECK_INTERVAL);
            }
        }
    }
}

/// The steps.
impl ReplicaGroupReconciliation<'_> {
    /// Does all of these steps. One object that cannot be written holds up no other.
    async fn perform_steps(&mut self, steps: Vec<ReplicaStep>) {
        for step in steps {
            match self.perform_step(step).await {
                Ok(true) => {}
                Ok(false) => self.check_after(NAME_TAKEN_RETRY),
                Err(error) => self.failure = self.failure.take().or(Some(error)),
            }
        }
    }

    /// Does one step. Returns whether it succeeded.
    async fn perform_step(&self, step: ReplicaStep) -> Result<bool, ProviderError> {
        let (problem, source) = match step {
            ReplicaStep::Delete(replica) => {
                return self.delete_replica(&replica).await.map(|()| true);
            }
            ReplicaStep::ReportProblem(source, problem) => {
                return self
                    .report_problem(&source, problem.as_ref())
                    .await
                    .map(|()| true);
            }
            ReplicaStep::ReportExposure(source, exposure) => {
                return self
                    .report_exposure(&source, exposure.as_ref())
                    .await
                    .map(|()| true);
            }
            ReplicaStep::ReportDraining(source) => {
                return self
                    .patch_status(&source, json!({ "draining": source.is_draining }))
                    .await
                    .map(|()| true);
            }
            ReplicaStep::Release(source, position) => {
                let (api, key) = (self.record_api(&source), &source.key);
                let removed = remove_finalizer_at(
                    &api,
                    &key.name,
                    &source.uid,
                    position,
                    finalizers::REFLECTED_OBJECT,
                )
                .await;
                return Ok(removed.step("change", "ReflectedObject", key)?);
            }
            ReplicaStep::Create(kind, source) => {
                (self.create_replica(kind, &source).await?, source)
            }
            ReplicaStep::Change(source, replica) => {
                (self.change_replica(&source, &replica).await?, source)
            }
        };
        let succeeded = problem.is_none();
        self.report_problem(&source, problem.or(source.partial.clone()).as_ref())
            .await?;
        Ok(succeeded)
    }

    async fn list_replicas(&self, kinds: &[ReplicaKind]) -> Result<Vec<Replica>, ProviderError> {
        let mut replicas = Vec::new();
        for &kind in kinds {
            let page_size = if ReplicaKind::NAMED.contains(&kind) {
                LARGE_PAGE_SIZE
            } else {
                PAGE_SIZE
            };
            let mut page = ListParams::default()
                .labels(&format!("{}=true", labels::REFLECTED))
                .limit(page_size);
            loop {
                let found = self.kind_api(kind, self.namespace).list(&page).await;
                let found = found.step("read", kind.name(), self.key(""))?;
                replicas.extend(
                    found
                        .items
                        .into_iter()
                        .filter_map(|object| Replica::from_object(kind, object)),
                );
                match found.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => break,
                }
            }
        }
        Ok(replicas)
    }

    /// Creates the replica of this source, unless somebody else's object has its name.
    async fn create_replica(
        &self,
        kind: ReplicaKind,
        source: &ReplicaSource,
    ) -> Result<Option<ReplicaProblem>, ProviderError> {
        let (api, key) = (self.kind_api(kind, self.namespace), self.key(&source.name));
        if api
            .get_metadata_opt(&source.name)
            .await
            .step("read", kind.name(), &key)?
            .is_some()
        {
            return Ok(Some(ReplicaProblem::name_taken(kind, &source.name)));
        }
        let wanted = match self.wanted_replica(kind, source).await? {
            Some(Ok(wanted)) => wanted,
            other => return Ok(other.and_then(Result::err)),
        };
        let answer = api.create(&PostParams::default(), &wanted).await;
        Ok(problem_of_write(source, answer).step("create", kind.name(), key)?)
    }

    /// Gives an existing replica the content of its source.
    async fn change_replica(
        &self,
        source: &ReplicaSource,
        replica: &Replica,
    ) -> Result<Option<ReplicaProblem>, ProviderError> {
        let kind = replica.kind;
        let mut wanted = match self.wanted_replica(kind, source).await? {
            Some(Ok(wanted)) => wanted,
            other => return Ok(other.and_then(Result::err)),
        };
        let (api, key) = (self.kind_api(kind, self.namespace), self.key(&source.name));
        let whole = serde_json::to_value(&wanted).step("encode", kind.name(), &source.key)?;
        if replica.must_be_recreated_for(&whole) {
            return self.recreate_replica(source, replica, &wanted).await;
        }
        // The API server replaces a budget only in the version that was read.
        let is_read_before =
            exposure::object_class(kind, &whole).is_some() || replica.exposure.is_some();
        if is_read_before || kind == ReplicaKind::PodDisruptionBudget {
            let live = api
                .get_opt(&source.name)
                .await
                .step("read", kind.name(), &key)?;
            let Some(live) = live.filter(|one| one.uid().as_ref() == Some(&replica.uid)) else {
                return Ok(None);
            };
            let live = serde_json::to_value(live).step("encode", kind.name(), &source.key)?;
            wanted = serde_json::from_value(replacement_object(&live, whole)).step(
                "encode",
                kind.name(),
                &source.key,
            )?;
        } else {
            wanted.metadata.uid = Some(replica.uid.clone());
        }
        let answer = api
            .replace(&source.name, &PostParams::default(), &wanted)
            .await;
        Ok(problem_of_write(source, answer).step("change", kind.name(), key)?)
    }

    /// Deletes a replica and creates it again.
    async fn recreate_replica(
        &self,
        source: &ReplicaSource,
        replica: &Replica,
        wanted: &DynamicObject,
    ) -> Result<Option<ReplicaProblem>, ProviderError> {
        let kind = replica.kind;
        let (api, key) = (self.kind_api(kind, self.namespace), self.key(&source.name));
        // The old one is deleted only if the API server would accept the new one. It checks the
        // name after everything else.
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match api.create(&dry_run, wanted).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            answer => {
                if let Some(problem) =
                    problem_of_write(source, answer).step("change", kind.name(), &key)?
                {
                    return Ok(Some(problem));
                }
            }
        }
        self.delete_replica(replica).await?;
        match api.create(&PostParams::default(), wanted).await {
            // A finalizer keeps the old one for a while.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            answer => Ok(problem_of_write(source, answer).step("change", kind.name(), key)?),
        }
    }

    fn own_policy_object(
        &self,
        name: &str,
        policy: &NormalizedPolicy,
    ) -> Result<DynamicObject, StepError<serde_json::Error>> {
        serde_json::from_value(IsolationPolicy::policy_object(self.namespace, name, policy)).step(
            "encode",
            ReplicaKind::NetworkPolicy.name(),
            self.key(name),
        )
    }

    /// Writes our own policies, which complement those of the consumer.
    async fn write_own_policies(
        &self,
        isolation: &IsolationPolicy,
        policies: &[ReplicaSource],
    ) -> Result<(), ProviderError> {
        let kind = ReplicaKind::NetworkPolicy;
        let api = self.kind_api(kind, self.namespace);
        let policies: Vec<NormalizedPolicy> = policies
            .iter()
            .filter(|one| !one.deleted)
            .map(ReplicaSource::network_policy)
            .collect();
        let mut wanted = isolation.own_policies(&policies);
        let cluster = &self.provider.context.cluster_id;
        if self.provider.is_brokered(self.namespace) {
            wanted = with_brokered_copies(wanted, cluster);
        }
        let prefix = brokered_copy_prefix(cluster);
        let ours = ListParams::default().labels(&format!(
            "{}=true,!{}",
            labels::MANAGED,
            labels::REFLECTED
        ));
        let found = api
            .list(&ours)
            .await
            .step("read", kind.name(), self.key(""))?;
        for live in found
            .items
            .into_iter()
            .filter(|live| is_own(&live.name_any()) || live.name_any().starts_with(&prefix))
        {
            let name = live.name_any();
            let Some(policy) = wanted.remove(&name) else {
                let this_one = only_with_uid(live.uid().unwrap_or_default());
                delete_if_present(&api, &name, &this_one).await.step(
                    "delete",
                    kind.name(),
                    self.key(&name),
                )?;
                continue;
            };
            if NormalizedPolicy::from_spec(&live.data["spec"]).to_json() != policy.to_json() {
                let (former, spec) = (&live.data["spec"], policy.to_json());
                tracing::info!(namespace = self.namespace, policy = name, %former, %spec, "the isolation of a mapped namespace changes");
                let mut object = self.own_policy_object(&name, &policy)?;
                object.metadata.resource_version = live.resource_version();
                let answer = api.replace(&name, &PostParams::default(), &object).await;
                unless_changed(answer).step("change", kind.name(), self.key(&name))?;
            }
        }
        for (name, policy) in wanted {
            let object = self.own_policy_object(&name, &policy)?;
            api.create(&PostParams::default(), &object).await.step(
                "create",
                kind.name(),
                self.key(&name),
            )?;
        }
        Ok(())
    }

    async fn delete_replica(&self, replica: &Replica) -> Result<(), ProviderError> {
        let api = self.kind_api(replica.kind, self.namespace);
        let answer =
            delete_if_present(&api, &replica.name, &only_with_uid(replica.uid.clone())).await;
        answer.step("delete", replica.kind.name(), self.key(&replica.name))?;
        Ok(())
    }

    /// The replica with the source's present content; a problem if the content is invalid. `None`
    /// if the source is gone or was replaced.
    async fn wanted_replica(
        &self,
        kind: ReplicaKind,
        source: &ReplicaSource,
    ) -> Result<Option<Result<DynamicObject, ReplicaProblem>>, ProviderError> {
        let content = match kind {
            ReplicaKind::Service
            | ReplicaKind::EndpointSlice
            | ReplicaKind::Ingress
            | ReplicaKind::NetworkPolicy
            | ReplicaKind::PodDisruptionBudget => source.content().map(Ok),
            ReplicaKind::ConfigMap | ReplicaKind::Secret => match &source.chunk {
                Some(chunk) => self.join_chunks(kind, source, chunk).await?,
                None => self
                    .read_record(kind, &source.key, &source.uid)
                    .await?
                    .map(Ok),
            },
        };
        let content = match content {
            Some(Ok(content)) => content,
            Some(Err(problem)) => return Ok(Some(Err(problem))),
            None => return Ok(None),
        };
        let wanted: Value = replica_object(
            kind,
            &content,
            &source.name,
            self.namespace,
            &self.group.home,
        );
        Ok(Some(Ok(serde_json::from_value(wanted).step(
            "encode",
            kind.name(),
            &source.key,
        )?)))
    }

    /// The content of an object that came in chunks.
    async fn join_chunks(
        &self,
        kind: ReplicaKind,
        source: &ReplicaSource,
        whole: &Chunk,
    ) -> Result<Option<Result<Value, ReplicaProblem>>, ProviderError> {
        let mut joiner = ChunkJoiner::new(kind, whole);
        let first = [(source.key.clone(), source.uid.clone())];
        for (key, uid) in first.iter().chain(&source.other_chunks) {
            let Some(chunk) = self.read_record(kind, key, uid).await? else {
                return Ok(None);
            };
            match joiner.add_chunk(&chunk) {
                Ok(()) => {}
                Err(ChunkJoinError::Other) => return Ok(None),
                Err(ChunkJoinError::Wrong(problem)) => return Ok(Some(Err(problem))),
            }
        }
        Ok(match joiner.finish() {
            Ok(content) => Some(Ok(content)),
            Err(ChunkJoinError::Wrong(problem)) => Some(Err(problem)),
            Err(ChunkJoinError::Other) => None,
        })
    }

    /// The present content of the record of a `ConfigMap` or Secret, from the API server.
    async fn read_record(
        &self,
        kind: ReplicaKind,
        key: &Key,
        uid: &str,
    ) -> Result<Option<Value>, ProviderError> {
        if kind == ReplicaKind::Secret {
            let found = self
                .kind_api(kind, &key.namespace)
                .get_opt(&key.name)
                .await
                .step("read", kind.name(), key)?;
            let found = found.filter(|record| record.metadata.uid.as_deref() == Some(uid));
            return Ok(found.map(serde_json::to_value).transpose().step(
                "encode",
                kind.name(),
                key,
            )?);
        }
        let records: Api<ReflectedObject> =
            Api::namespaced(self.provider.context.client.clone(), &key.namespace);
        let found = records
            .get_opt(&key.name)
            .await
            .step("read", kind.name(), key)?;
        let found = found.filter(|record| record.metadata.uid.as_deref() == Some(uid));
        Ok(found
            .and_then(|record| record_text::parse_object(&record.spec.object, MAX_OBJECT_LEN).ok()))
    }

    /// Reports why the source has no replica, or that it has one.
    async fn report_problem(
        &self,
        source: &ReplicaSource,
        problem: Option<&ReplicaProblem>,
    ) -> Result<(), ProviderError> {
        if source.reported.as_ref() == problem {
            return Ok(());
        }
        if source.kind != Some(ReplicaKind::Secret) {
            let (reason, message) = problem
                .map(|problem| (&problem.reason, &problem.message))
                .unzip();
            return self
                .patch_status(source, json!({ "reason": reason, "message": message }))
                .await;
        }
        // A Secret has no status.
        let annotations =
            json!({ annotations::NOT_REFLECTED: problem.map(ReplicaProblem::to_annotation) });
        let patch =
            Patch::Merge(json!({ "metadata": { "uid": source.uid, "annotations": annotations } }));
        let api: Api<PartialObjectMeta<Secret>> =
            Api::namespaced(self.provider.context.client.clone(), &source.key.namespace);
        let answer = api
            .patch(&source.key.name, &PatchParams::default(), &patch)
            .await;
        unless_changed(answer).step("change", "Secret", &source.key)?;
        Ok(())
    }

    /// Reports under which addresses the replica of this source is reached.
    async fn report_exposure(
        &self,
        source: &ReplicaSource,
        exposure: Option<&Exposure>,
    ) -> Result<(), ProviderError> {
        self.patch_status(source, json!({ "exposure": exposure }))
            .await
    }

    async fn patch_status(
        &self,
        source: &ReplicaSource,
        status: Value,
    ) -> Result<(), ProviderError> {
        let patch = Patch::Merge(json!({ "metadata": { "uid": source.uid }, "status": status }));
        let answer = self
            .record_api(source)
            .patch_status(&source.key.name, &PatchParams::default(), &patch)
            .await;
        unless_changed(answer).step("change", "ReflectedObject", &source.key)?;
        Ok(())
    }

    /// The key of an object in the mapped namespace.
    fn key(&self, name: &str) -> Key {
        Key::new(self.namespace, name)
    }

    fn record_api(&self, source: &ReplicaSource) -> Api<ReflectedObject> {
        Api::namespaced(self.provider.context.client.clone(), &source.key.namespace)
    }

    fn kind_api(&self, kind: ReplicaKind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.provider.context.client.clone(),
            namespace,
            &kind.api_resource(),
        )
    }
}

/// The notice of a consumer that no policy selects any more.
fn default_notice() -> Duration {
    Duration::from_secs(Provide::default().notice_seconds.into())
}

/// The outcome of a write: `None`, a problem to report, or an error to try again.
fn problem_of_write(
    source: &ReplicaSource,
    answer: kube::Result<DynamicObject>,
) -> kube::Result<Option<ReplicaProblem>> {
    match answer {
        Ok(object) => {
            tracing::debug!(source = %source.key, replica = object.name_any(), "wrote a replica");
            Ok(None)
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 413 | 422) => {
            Ok(Some(ReplicaProblem::invalid(&status.message)))
        }
        Err(error) => Err(error),
    }
}
