//! Keeps twins of a consumer's `ConfigMap`s and Secrets in its mapped namespaces.
//!
//! The twins of a mapped namespace are listed whenever something may have changed, and now and then: that also finds those
//! whose source vanished while nobody looked.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::PartialObjectMeta,
    runtime::watcher::Config,
};
use liqo_api::{ReflectedObject, annotations, finalizers, labels};
use liqo_kit::{Cache, Key, Next};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Error, Provider, finalizer,
    lifecycle::PlaceState,
    lock,
    reflection::{Kind, Problem, Source, Step, Twin, plan, plan_without_namespace, twin},
    unless_gone_or_replaced,
};

/// How often the twins of a namespace are looked at although nothing changed.
const CHECK: Duration = Duration::from_secs(300);
/// How often a name that is taken is looked at.
const NAME_TAKEN_CHECK: Duration = Duration::from_secs(60);

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
                twins.add(source.twins_key());
            }
        });
        // Those whose source is gone already are found when the list is complete.
        let (twins, listed, homes) = (provider.queues.twins.clone(), secrets.clone(), provider.map(&tenant));
        let of_tenant = tenant.clone();
        tokio::spawn(async move {
            if listed.synced().await {
                for home in homes.iter().flat_map(|map| map.spec.mappings.keys()) {
                    twins.add(Key::new(of_tenant.clone(), home.clone()));
                }
            }
        });
        watched.insert(tenant, TenantSecrets { uid, secrets, stop });
    }
}

/// Looks at the twins of one home namespace of one tenant.
pub async fn reconcile(provider: Arc<Provider>, key: Key) -> Result<Next, Error> {
    let (tenant, home) = (&key.namespace, &key.name);
    let Some(consumer) = provider.tenant(tenant).map(|found| found.consumer.clone()) else { return Ok(Next::OnChange) };
    let place = provider.place(tenant, home);
    let belongs = |source: &Arc<Source>| source.key.namespace == *tenant && source.home == *home;
    let mut sources: Vec<Source> =
        provider.objects.all().into_iter().map(|(_, source)| source).filter(belongs).map(Arc::unwrap_or_clone).collect();
    let secrets = lock(&provider.secrets).get(tenant).filter(|known| known.secrets.is_synced()).map(|known| known.secrets.all());
    let mut complete = BTreeSet::from([Kind::ConfigMap]);
    if let Some(secrets) = secrets {
        complete.insert(Kind::Secret);
        sources.extend(secrets.into_iter().map(|(_, source)| source).filter(belongs).map(Arc::unwrap_or_clone));
    }

    let work = Work { provider: &provider, namespace: &place.namespace, home };
    let steps = match &place.state {
        PlaceState::Ready => plan(&sources, &work.twins().await?, &complete, provider.held(&consumer).as_ref()),
        PlaceState::NotReady(why) => plan_without_namespace(&sources, why),
        PlaceState::Unwanted => plan_without_namespace(&sources, &format!("namespace {home} is not offloaded to this cluster")),
    };
    let mut next = if place.state == PlaceState::Ready && !sources.is_empty() { Next::After(CHECK) } else { Next::OnChange };
    // One object that cannot be written holds up no other.
    let mut failure = None;
    for step in steps {
        match work.act(step).await {
            Ok(true) => {}
            Ok(false) => next = Next::After(NAME_TAKEN_CHECK),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(next), Err)
}

struct Work<'a> {
    provider: &'a Provider,
    namespace: &'a str,
    home: &'a str,
}

impl Work<'_> {
    /// Does one step. Says whether it came to what it should.
    async fn act(&self, step: Step) -> Result<bool, Error> {
        let (problem, source) = match step {
            Step::Delete(twin) => return self.delete(&twin).await.map(|()| true),
            Step::Tell(source, problem) => return self.tell(&source, problem.as_ref()).await.map(|()| true),
            Step::Release(source, position) => return self.release(&source, position).await,
            Step::Create(source) => (self.create(&source).await?, source),
            Step::Change(source, twin) => (self.change(&source, &twin).await?, source),
        };
        self.tell(&source, problem.as_ref()).await?;
        Ok(problem.is_none())
    }

    async fn twins(&self) -> Result<Vec<Twin>, Error> {
        let reflected = ListParams::default().labels(&format!("{}=true", labels::REFLECTED));
        let client = &self.provider.context.client;
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), self.namespace);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), self.namespace);
        let read = |kind, source| Error::Read { kind, key: Key::new(self.namespace, ""), source };
        let config_maps = config_maps.list(&reflected).await.map_err(|source| read("ConfigMap", source))?;
        let secrets = secrets.list(&reflected).await.map_err(|source| read("Secret", source))?;
        let config_maps = config_maps.items.into_iter().filter_map(Twin::of_config_map);
        Ok(config_maps.chain(secrets.items.into_iter().filter_map(Twin::of_secret)).collect())
    }

    /// Makes the twin of this source, if nobody else has its name.
    async fn create(&self, source: &Source) -> Result<Option<Problem>, Error> {
        let api = self.api(source.kind, self.namespace);
        let key = || Key::new(self.namespace, source.name.clone());
        let kind = kind_name(source.kind);
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
        let same_type = source.kind == Kind::ConfigMap || wanted.data["type"] == twin.type_.as_str();
        let answer = if twin.immutable || !same_type {
            self.delete(twin).await?;
            api.create(&PostParams::default(), &wanted).await
        } else {
            wanted.metadata.uid = Some(twin.uid.clone());
            api.replace(&source.name, &PostParams::default(), &wanted).await
        };
        Self::written(source, answer).map_err(|error| Error::Change { kind: kind_name(source.kind), key, source: error })
    }

    /// What a write came to: done, a problem to be told, or a failure to be tried again.
    fn written(source: &Source, answer: kube::Result<DynamicObject>) -> kube::Result<Option<Problem>> {
        match answer {
            Ok(_) => {
                tracing::debug!(kind = kind_name(source.kind), source = %source.key, twin = source.name, "wrote a twin");
                Ok(None)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                Ok(Some(Problem::invalid(&status.message)))
            }
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, twin: &Twin) -> Result<(), Error> {
        let only_this =
            DeleteParams::default().preconditions(Preconditions { uid: Some(twin.uid.clone()), resource_version: None });
        let answer = unless_gone_or_replaced(self.api(twin.kind, self.namespace).delete(&twin.name, &only_this).await);
        let key = Key::new(self.namespace, twin.name.clone());
        answer.map_err(|source| Error::Delete { kind: kind_name(twin.kind), key, source })?;
        Ok(())
    }

    /// The twin to make of this source, with its content as it is now; nothing when the source is gone, or was replaced.
    async fn wanted(&self, source: &Source) -> Result<Option<DynamicObject>, Error> {
        let client = self.provider.context.client.clone();
        let content = match source.kind {
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
        let read = |error| Error::Read { kind: kind_name(source.kind), key: source.key.clone(), source: error };
        let Some((_, content)) = content.map_err(read)?.filter(|(uid, _)| uid.as_ref() == Some(&source.uid)) else {
            return Ok(None);
        };
        let wanted: Value = twin(source.kind, &content, &source.name, self.namespace, self.home);
        let encode = |error| Error::Encode { kind: kind_name(source.kind), key: source.key.clone(), source: error };
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

    /// Lets a source go that waited for its twin to be gone. Says whether it did.
    async fn release(&self, source: &Source, position: usize) -> Result<bool, Error> {
        let patch = finalizer::removal(&source.uid, position, finalizers::REFLECTED_OBJECT);
        let api: Api<ReflectedObject> = Api::namespaced(self.provider.context.client.clone(), &source.key.namespace);
        let answer = api.patch(&source.key.name, &PatchParams::default(), &patch).await;
        let failed = |error| Error::Change { kind: "ReflectedObject", key: source.key.clone(), source: error };
        finalizer::is_off(answer, finalizers::REFLECTED_OBJECT).map_err(failed)
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        let resource = match kind {
            Kind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Kind::Secret => ApiResource::erase::<Secret>(&()),
        };
        Api::namespaced_with(self.provider.context.client.clone(), namespace, &resource)
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::ConfigMap => "ConfigMap",
        Kind::Secret => "Secret",
    }
}
