//! Keeps twins of a consumer's objects in its mapped namespaces.
//!
//! The twins of a mapped namespace are listed whenever something may have changed, and now and then: that also finds those
//! whose source vanished while nobody looked. Endpoints change much more often than what pods name, so they are looked at apart.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::PartialObjectMeta,
    runtime::watcher::Config,
};
use liqo_api::{ClusterId, Exposure, ReflectedObject, annotations, finalizers, labels};
use liqo_kit::{Cache, Key, Next};
use liqo_network::Here;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Error, Provider,
    exposed::Leave,
    finalizer,
    lifecycle::PlaceState,
    lock,
    mapped_namespaces::walls,
    reflection::{Problem, Source, Step, Twin, in_place_of, plan, plan_without_namespace, twin, walled},
    remote_pods::RemotePod,
    unless_gone_or_replaced,
    usage::Held,
    walls::{Walls, is_own},
};
use crate::decide::{exposure, kind::Kind, network_policies::NetworkPolicy, services};

/// How often the twins of a namespace are looked at although nothing changed.
const CHECK: Duration = Duration::from_secs(300);
/// How often a name that is taken is looked at.
const NAME_TAKEN_CHECK: Duration = Duration::from_secs(60);
/// How often a twin is looked at that is not gone yet, or is young and the world does not reach it yet.
const SOON: Duration = Duration::from_secs(10);
/// So long one is young.
const YOUNG: Duration = Duration::from_secs(900);
/// How often an older one is looked at that the world does not reach yet.
const ADDRESS_CHECK: Duration = Duration::from_secs(60);

/// What is looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// What pods name.
    Named,
    /// Services and their endpoints.
    Services,
    /// Ingresses.
    Ingresses,
    /// `NetworkPolicy`s, and what is open by default.
    Policies,
}

/// The reflected objects of one group from one home namespace of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// The tenant namespace.
    pub tenant: String,
    /// The namespace at home.
    pub home: String,
    /// Which of them.
    pub group: Group,
}

impl Work {
    /// All of a home namespace.
    pub fn all(tenant: &str, home: &str) -> [Self; 4] {
        [Group::Named, Group::Services, Group::Ingresses, Group::Policies].map(|group| Self {
            tenant: tenant.to_owned(),
            home: home.to_owned(),
            group,
        })
    }

    /// Where this source is looked at.
    pub fn of(source: &Source) -> Self {
        let group = match source.kind {
            Kind::ConfigMap | Kind::Secret => Group::Named,
            Kind::Service | Kind::EndpointSlice => Group::Services,
            Kind::Ingress => Group::Ingresses,
            Kind::NetworkPolicy => Group::Policies,
        };
        Self { tenant: source.key.namespace.clone(), home: source.home.clone(), group }
    }
}

/// The Secrets of one tenant namespace. They are watched there and nowhere else: there is no right to see those of others.
pub struct TenantSecrets {
    uid: String,
    secrets: Cache<Source>,
    stop: CancellationToken,
}

/// Starts or ends the watch of a tenant's Secrets.
pub fn follow_tenant(provider: &Provider, tenant: String) {
    let uid = provider.tenant(&tenant).map(|found| found.uid.clone());
    let mut watched = lock(&provider.secrets);
    if watched.get(&tenant).map(|known| &known.uid) == uid.as_ref() {
        return;
    }
    if let Some(old) = watched.remove(&tenant) {
        old.stop.cancel();
    }
    if let Some(uid) = uid {
        let stop = provider.context.stop.child_token();
        let api: Api<Secret> = Api::namespaced(provider.context.client.clone(), &tenant);
        let only_reflected = Config::default().labels(&format!("{}=true", labels::REFLECTED));
        let twins = provider.queues.twins.clone();
        let secrets = Cache::watch(api, only_reflected, stop.clone(), Source::of_secret, move |_, old, new| {
            for source in [old, new].into_iter().flatten() {
                twins.add(Work::of(source));
            }
        });
        // Those whose source is gone already are found when the list is complete.
        let (twins, listed, homes) = (provider.queues.twins.clone(), secrets.clone(), provider.map(&tenant));
        let of_tenant = tenant.clone();
        tokio::spawn(async move {
            if listed.synced().await {
                for home in homes.iter().flat_map(|map| map.spec.mappings.keys()) {
                    twins.add(Work { tenant: of_tenant.clone(), home: home.clone(), group: Group::Named });
                }
            }
        });
        watched.insert(tenant, TenantSecrets { uid, secrets, stop });
    }
}

/// Looks at the twins of one group in one home namespace of one tenant.
pub async fn reconcile(provider: Arc<Provider>, work: Work) -> Result<Next, Error> {
    let Work { tenant, home, group } = &work;
    let Some(consumer) = provider.tenant(tenant).map(|found| found.consumer.clone()) else { return Ok(Next::OnChange) };
    let place = provider.place(tenant, home);
    let (mut sources, complete) = sources(&provider, &work);
    let mut acting = Acting { provider: &provider, namespace: &place.namespace, home, next: Next::OnChange, failure: None };
    match &place.state {
        PlaceState::Ready => {
            if !sources.is_empty() {
                acting.look_after(CHECK);
            }
            let held = provider.held(&consumer);
            match group {
                Group::Named => {
                    let twins = acting.twins(&Kind::NAMED).await?;
                    acting.look_soon_for(&twins);
                    acting.act_all(plan(&sources, &twins, &complete, held.as_ref())).await;
                }
                Group::Services => {
                    // Services first: what endpoints may be here depends on them.
                    let slices = sources.extract_if(.., |source| source.kind == Kind::EndpointSlice).collect::<Vec<_>>();
                    let leave = provider.leave(tenant, held.as_ref());
                    let families = provider.families_of_services();
                    let here = |one: Source| one.within(&leave, &BTreeSet::new()).of_families(&families);
                    let services: Vec<Source> = sources.into_iter().map(here).collect();
                    let plan_services = |twins: &[Twin]| plan(&services, twins, &BTreeSet::from([Kind::Service]), held.as_ref());
                    let (_, steps) = showing(plan_services(&acting.twins(&[Kind::Service]).await?));
                    let ways_change = steps.iter().any(|step| matches!(step, Step::Create(_) | Step::Delete(_)));
                    acting.act_all(steps).await;
                    let twins = acting.twins(&[Kind::Service, Kind::EndpointSlice]).await?;
                    acting.look_soon_for(&twins);
                    let (services, twins): (Vec<Twin>, Vec<Twin>) =
                        twins.into_iter().partition(|twin| twin.kind == Kind::Service);
                    // How the world reaches them now.
                    acting.act_all(showing(plan_services(&services)).0).await;
                    let ingresses = Work { group: Group::Ingresses, ..work.clone() };
                    if ways_change && provider.objects.all().iter().any(|(_, source)| Work::of(source) == ingresses) {
                        provider.queues.twins.add(ingresses);
                    }
                    let services = services.into_iter().map(|service| service.name).collect();
                    let allowed = provider.addresses_of(&consumer, &place.namespace);
                    let slices: Vec<Source> = slices.into_iter().map(|slice| slice.bounded(&services, &allowed)).collect();
                    acting.act_all(plan(&slices, &twins, &BTreeSet::from([Kind::EndpointSlice]), held.as_ref())).await;
                }
                Group::Ingresses => {
                    let leave = provider.leave(tenant, held.as_ref());
                    let services = acting.twins(&[Kind::Service]).await?.into_iter().map(|service| service.name).collect();
                    let ingresses: Vec<Source> = sources.into_iter().map(|one| one.within(&leave, &services)).collect();
                    let plan_ingresses =
                        |twins: &[Twin]| plan(&ingresses, twins, &BTreeSet::from([Kind::Ingress]), held.as_ref());
                    let twins = acting.twins(&[Kind::Ingress]).await?;
                    let (shows, steps) = showing(plan_ingresses(&twins));
                    let (shows, twins) = if steps.is_empty() {
                        (shows, twins)
                    } else {
                        acting.act_all(steps).await;
                        let twins = acting.twins(&[Kind::Ingress]).await?;
                        (showing(plan_ingresses(&twins)).0, twins)
                    };
                    acting.look_soon_for(&twins);
                    acting.act_all(shows).await;
                }
                Group::Policies => {
                    acting.look_after(CHECK);
                    let walls = walls(&provider, &consumer);
                    let policies = walled(sources, &walls);
                    // What is open by default goes before what a new policy opens in its place comes.
                    acting.own_policies(&walls, &policies).await?;
                    let twins = acting.twins(&[Kind::NetworkPolicy]).await?;
                    acting.act_all(plan(&policies, &twins, &BTreeSet::from([Kind::NetworkPolicy]), held.as_ref())).await;
                }
            }
        }
        PlaceState::NotReady(why) => acting.act_all(plan_without_namespace(&sources, why)).await,
        PlaceState::Unwanted => {
            let why = format!("namespace {home} is not offloaded to this cluster");
            acting.act_all(plan_without_namespace(&sources, &why)).await;
        }
    }
    acting.failure.map_or(Ok(acting.next), Err)
}

/// Apart from the others, the steps that say how the world reaches what is there: they come last.
fn showing(steps: Vec<Step>) -> (Vec<Step>, Vec<Step>) {
    steps.into_iter().partition(|step| matches!(step, Step::Show(..)))
}

/// The sources to look at, and the kinds of which all are known.
fn sources(provider: &Provider, work: &Work) -> (Vec<Source>, BTreeSet<Kind>) {
    let belongs = |source: &Arc<Source>| Work::of(source) == *work;
    let mut sources: Vec<Source> =
        provider.objects.all().into_iter().map(|(_, source)| source).filter(belongs).map(Arc::unwrap_or_clone).collect();
    let mut complete = BTreeSet::from([Kind::ConfigMap]);
    let secrets = lock(&provider.secrets);
    if let Some(known) = secrets.get(&work.tenant).filter(|known| known.secrets.is_synced()) {
        complete.insert(Kind::Secret);
        let secrets = known.secrets.all().into_iter().map(|(_, source)| source);
        sources.extend(secrets.filter(belongs).map(Arc::unwrap_or_clone));
    }
    (sources, complete)
}

impl Provider {
    /// What a tenant may show to the world.
    fn leave(&self, tenant: &str, held: Option<&Held>) -> Leave {
        let records: Vec<Arc<Source>> =
            self.objects.all().into_iter().filter(|(key, _)| key.namespace == tenant).map(|(_, source)| source).collect();
        Leave::new(held, records.iter().map(AsRef::as_ref))
    }

    /// The families of which Services have addresses here, as far as that is known.
    fn families_of_services(&self) -> Vec<&'static str> {
        let config = self.context.config();
        let network = config.status.as_ref().and_then(|status| status.network.as_ref());
        network.map(|ranges| services::families(&ranges.services)).unwrap_or_default()
    }

    /// Whether endpoints of a consumer may have an address in its mapped namespace: that of its pods there, or one that is in
    /// its own prefixes, as we see them.
    fn addresses_of(&self, consumer: &ClusterId, namespace: &str) -> impl Fn(IpAddr) -> bool + use<> {
        let of_it = |pod: &RemotePod| pod.consumer == *consumer && pod.key.namespace == namespace;
        let pods = self.pods.all().into_iter().filter(|(_, pod)| of_it(pod));
        let own: BTreeSet<IpAddr> = pods.flat_map(|(_, pod)| pod.addresses.clone()).collect();
        let network = self.networks.of(consumer);
        move |address| {
            own.contains(&address) || network.as_ref().is_some_and(|network| network.maps.imported.there(Here(address)).is_some())
        }
    }
}

struct Acting<'a> {
    provider: &'a Provider,
    namespace: &'a str,
    home: &'a str,
    /// When to look again.
    next: Next,
    /// What failed first.
    failure: Option<Error>,
}

impl Acting<'_> {
    /// Does all of these steps. One object that cannot be written holds up no other.
    async fn act_all(&mut self, steps: Vec<Step>) {
        for step in steps {
            match self.act(step).await {
                Ok(true) => {}
                Ok(false) => self.look_after(NAME_TAKEN_CHECK),
                Err(error) => self.failure = self.failure.take().or(Some(error)),
            }
        }
    }

    /// Looks again after this time at the latest.
    fn look_after(&mut self, time: Duration) {
        self.next = Next::After(match self.next {
            Next::After(sooner) => sooner.min(time),
            Next::OnChange => time,
        });
    }

    /// Looks again soon while one of these is not gone yet, or has no address: nobody tells.
    fn look_soon_for(&mut self, twins: &[Twin]) {
        for twin in twins {
            let has_no_address = twin.exposure.as_ref().is_some_and(|exposure| exposure.addresses.is_empty());
            let is_young = Duration::try_from(Timestamp::now().duration_since(twin.since)).is_ok_and(|age| age < YOUNG);
            match (twin.deleted || (has_no_address && is_young), has_no_address) {
                (true, _) => self.look_after(SOON),
                (false, true) => self.look_after(ADDRESS_CHECK),
                (false, false) => {}
            }
        }
    }

    /// Does one step. Says whether it came to what it should.
    async fn act(&self, step: Step) -> Result<bool, Error> {
        let (problem, source) = match step {
            Step::Delete(twin) => return self.delete(&twin).await.map(|()| true),
            Step::Tell(source, problem) => return self.tell(&source, problem.as_ref()).await.map(|()| true),
            Step::Show(source, exposure) => return self.show(&source, exposure.as_ref()).await.map(|()| true),
            Step::Release(source, position) => return self.release(&source, position).await,
            Step::Create(source) => (self.create(&source).await?, source),
            Step::Change(source, twin) => (self.change(&source, &twin).await?, source),
        };
        let made = problem.is_none();
        self.tell(&source, problem.or(source.partial.clone()).as_ref()).await?;
        Ok(made)
    }

    async fn twins(&self, kinds: &[Kind]) -> Result<Vec<Twin>, Error> {
        let reflected = ListParams::default().labels(&format!("{}=true", labels::REFLECTED));
        let mut twins = Vec::new();
        for &kind in kinds {
            let found = self.api(kind, self.namespace).list(&reflected).await;
            let found = found.map_err(|source| Error::Read { kind: kind.name(), key: Key::new(self.namespace, ""), source })?;
            twins.extend(found.items.into_iter().filter_map(|object| Twin::of(kind, object)));
        }
        Ok(twins)
    }

    /// Makes the twin of this source, if nobody else has its name.
    async fn create(&self, source: &Source) -> Result<Option<Problem>, Error> {
        let api = self.api(source.kind, self.namespace);
        let key = || Key::new(self.namespace, source.name.clone());
        let kind = source.kind.name();
        let found = api.get_metadata_opt(&source.name).await.map_err(|source| Error::Read { kind, key: key(), source })?;
        if found.is_some() {
            return Ok(Some(Problem::name_taken(source.kind, &source.name)));
        }
        let Some(wanted) = self.wanted(source).await? else { return Ok(None) };
        let answer = api.create(&PostParams::default(), &wanted).await;
        Self::written(source, answer).map_err(|source| Error::Create { kind, key: key(), source })
    }

    /// Makes an existing twin hold what its source holds.
    async fn change(&self, source: &Source, twin: &Twin) -> Result<Option<Problem>, Error> {
        let Some(mut wanted) = self.wanted(source).await? else { return Ok(None) };
        let api = self.api(source.kind, self.namespace);
        let key = Key::new(self.namespace, source.name.clone());
        let whole = serde_json::to_value(&wanted);
        let encode = |error| Error::Encode { kind: source.kind.name(), key: source.key.clone(), source: error };
        let whole = whole.map_err(encode)?;
        let answer = if twin.must_be_remade_for(&whole) {
            // What stands goes only for something that will be taken. That its name is taken is said after all else was looked at.
            let tried = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &wanted).await;
            match tried {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                tried => {
                    let tried = Self::written(source, tried);
                    let key = key.clone();
                    let tried = tried.map_err(|error| Error::Change { kind: source.kind.name(), key, source: error })?;
                    if tried.is_some() {
                        return Ok(tried);
                    }
                }
            }
            self.delete(twin).await?;
            match api.create(&PostParams::default(), &wanted).await {
                // Something here holds the old one for a while.
                Err(kube::Error::Api(status)) if status.code == 409 => return Ok(None),
                answer => answer,
            }
        } else if exposure::class(source.kind, &whole).is_some() || twin.exposure.is_some() {
            let standing = api.get_opt(&source.name).await;
            let read = |error| Error::Read { kind: source.kind.name(), key: key.clone(), source: error };
            let Some(standing) = standing.map_err(read)?.filter(|one| one.uid().as_ref() == Some(&twin.uid)) else {
                return Ok(None);
            };
            let standing = serde_json::to_value(standing).map_err(encode)?;
            let wanted: DynamicObject = serde_json::from_value(in_place_of(&standing, whole)).map_err(encode)?;
            api.replace(&source.name, &PostParams::default(), &wanted).await
        } else {
            wanted.metadata.uid = Some(twin.uid.clone());
            api.replace(&source.name, &PostParams::default(), &wanted).await
        };
        Self::written(source, answer).map_err(|error| Error::Change { kind: source.kind.name(), key, source: error })
    }

    /// What a write came to: done, a problem to be told, or a failure to be tried again.
    fn written(source: &Source, answer: kube::Result<DynamicObject>) -> kube::Result<Option<Problem>> {
        match answer {
            Ok(_) => {
                tracing::debug!(kind = source.kind.name(), source = %source.key, twin = source.name, "wrote a twin");
                Ok(None)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                Ok(Some(Problem::invalid(&status.message)))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes our own policies be what they are to be beside these of the consumer.
    async fn own_policies(&self, walls: &Walls, policies: &[Source]) -> Result<(), Error> {
        let api = self.api(Kind::NetworkPolicy, self.namespace);
        let kind = Kind::NetworkPolicy.name();
        let key = |name: &str| Key::new(self.namespace, name);
        let object = |name: &str, policy: &NetworkPolicy| {
            serde_json::from_value::<DynamicObject>(Walls::object(self.namespace, name, policy))
        };
        let encode = |name: &str| {
            let key = key(name);
            |source| Error::Encode { kind, key, source }
        };
        let policies: Vec<NetworkPolicy> = policies.iter().filter(|one| !one.deleted).map(Source::policy).collect();
        let mut wanted = walls.own_policies(&policies);
        let ours = ListParams::default().labels(&format!("{}=true,!{}", labels::MANAGED, labels::REFLECTED));
        let found = api.list(&ours).await.map_err(|source| Error::Read { kind, key: key(""), source })?;
        for live in found.items.into_iter().filter(|live| is_own(&live.name_any())) {
            let name = live.name_any();
            let Some(policy) = wanted.remove(&name) else {
                let only_this = DeleteParams::default().preconditions(Preconditions { uid: live.uid(), resource_version: None });
                let answer = unless_gone_or_replaced(api.delete(&name, &only_this).await);
                answer.map_err(|source| Error::Delete { kind, key: key(&name), source })?;
                continue;
            };
            if NetworkPolicy::of(&live.data["spec"]).to_json() != policy.to_json() {
                let mut object = object(&name, &policy).map_err(encode(&name))?;
                object.metadata.resource_version = live.resource_version();
                let answer = unless_gone_or_replaced(api.replace(&name, &PostParams::default(), &object).await);
                answer.map_err(|source| Error::Change { kind, key: key(&name), source })?;
            }
        }
        for (name, policy) in wanted {
            let object = object(&name, &policy).map_err(encode(&name))?;
            let answer = api.create(&PostParams::default(), &object).await;
            answer.map_err(|source| Error::Create { kind, key: key(&name), source })?;
        }
        Ok(())
    }

    async fn delete(&self, twin: &Twin) -> Result<(), Error> {
        let only_this =
            DeleteParams::default().preconditions(Preconditions { uid: Some(twin.uid.clone()), resource_version: None });
        let answer = unless_gone_or_replaced(self.api(twin.kind, self.namespace).delete(&twin.name, &only_this).await);
        let key = Key::new(self.namespace, twin.name.clone());
        answer.map_err(|source| Error::Delete { kind: twin.kind.name(), key, source })?;
        Ok(())
    }

    /// The twin to make of this source, with its content as it is now; nothing when the source is gone, or was replaced.
    async fn wanted(&self, source: &Source) -> Result<Option<DynamicObject>, Error> {
        let client = self.provider.context.client.clone();
        let content = match source.kind {
            Kind::Service | Kind::EndpointSlice | Kind::Ingress | Kind::NetworkPolicy => {
                Ok(source.content().map(|content| (Some(source.uid.clone()), content)))
            }
            Kind::ConfigMap => {
                let api: Api<ReflectedObject> = Api::namespaced(client, &source.key.namespace);
                let found = api.get_opt(&source.key.name).await;
                found.map(|object| object.map(|object| (object.metadata.uid, object.spec.object)))
            }
            Kind::Secret => self
                .api(Kind::Secret, &source.key.namespace)
                .get_opt(&source.key.name)
                .await
                .map(|object| object.map(|object| (object.metadata.uid, object.data))),
        };
        let read = |error| Error::Read { kind: source.kind.name(), key: source.key.clone(), source: error };
        let Some((_, content)) = content.map_err(read)?.filter(|(uid, _)| uid.as_ref() == Some(&source.uid)) else {
            return Ok(None);
        };
        let wanted: Value = twin(source.kind, &content, &source.name, self.namespace, self.home);
        let encode = |error| Error::Encode { kind: source.kind.name(), key: source.key.clone(), source: error };
        Ok(Some(serde_json::from_value(wanted).map_err(encode)?))
    }

    /// Says why the source has no twin, or nothing when it has one.
    async fn tell(&self, source: &Source, problem: Option<&Problem>) -> Result<(), Error> {
        if source.told.as_ref() == problem {
            return Ok(());
        }
        let (client, parameters) = (self.provider.context.client.clone(), PatchParams::default());
        let (kind, answer) = if source.kind == Kind::Secret {
            // It has no status to say it in.
            let said = json!({ annotations::NOT_REFLECTED: problem.map(Problem::to_annotation) });
            let patch = Patch::Merge(json!({ "metadata": { "uid": source.uid, "annotations": said } }));
            let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(client, &source.key.namespace);
            ("Secret", api.patch(&source.key.name, &parameters, &patch).await.map(drop))
        } else {
            let (reason, message) = problem.map(|problem| (&problem.reason, &problem.message)).unzip();
            let status = json!({ "reason": reason, "message": message });
            let patch = Patch::Merge(json!({ "metadata": { "uid": source.uid }, "status": status }));
            let api: Api<ReflectedObject> = Api::namespaced(client, &source.key.namespace);
            ("ReflectedObject", api.patch_status(&source.key.name, &parameters, &patch).await.map(drop))
        };
        let failed = |error| Error::Change { kind, key: source.key.clone(), source: error };
        unless_gone_or_replaced(answer).map(drop).map_err(failed)
    }

    /// Says how the world reaches the twin of this source.
    async fn show(&self, source: &Source, exposure: Option<&Exposure>) -> Result<(), Error> {
        let api: Api<ReflectedObject> = Api::namespaced(self.provider.context.client.clone(), &source.key.namespace);
        let patch = Patch::Merge(json!({ "metadata": { "uid": source.uid }, "status": { "exposure": exposure } }));
        let answer = api.patch_status(&source.key.name, &PatchParams::default(), &patch).await;
        let failed = |error| Error::Change { kind: "ReflectedObject", key: source.key.clone(), source: error };
        unless_gone_or_replaced(answer).map(drop).map_err(failed)
    }

    /// Lets a source go that waited for its twin to be gone. Says whether it did.
    async fn release(&self, source: &Source, position: usize) -> Result<bool, Error> {
        let patch = finalizer::removal(&source.uid, position, finalizers::REFLECTED_OBJECT);
        let api: Api<ReflectedObject> = Api::namespaced(self.provider.context.client.clone(), &source.key.namespace);
        let answer = api.patch(&source.key.name, &PatchParams::default(), &patch).await;
        let failed = |error| Error::Change { kind: "ReflectedObject", key: source.key.clone(), source: error };
        finalizer::is_off(answer, finalizers::REFLECTED_OBJECT).map_err(failed)
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.provider.context.client.clone(), namespace, &kind.resource())
    }
}
