//! The provider side: keeps the picture of the cluster, and writes the offers that follow from it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{Api, api::DeleteParams, core::DeserializeGuard, runtime::watcher::Config};
use liqo_api::{ClusterId, PeeringPolicy, RESOURCE_REQUEST, ResourceList, ResourceOffer, ResourceRequest, labels};
use liqo_kit::{
    Cache, Context, Key, Next, Queue,
    conditions::{self, namespaced},
    put::{marked, put, put_status},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, FIELD_MANAGER,
    decide::{
        picture::{OfferId, OfferWrite, Picture, Plan, PolicyVersion, Written},
        pods::Pods,
        provider::decide,
        publish::PACE,
        reduce::{self, ConsumerNamespace, LocalNode, PodUse, Request},
    },
    links::Links,
    plugins::Plugins,
};

/// Changes of nodes and pods wait this long for others, so that a burst of pods is counted a few times, not a thousand.
pub const DEBOUNCE: Duration = Duration::from_millis(200);
/// Changes that somebody waits for.
pub const PROMPT: Duration = Duration::from_millis(20);

/// The provider side.
pub struct Provider {
    context: Context,
    nodes: Cache<LocalNode>,
    pods: Cache<PodUse>,
    /// The same, summed by node. A picture that was taken of it stays as it is.
    summed: Arc<Mutex<Arc<Pods>>>,
    namespaces: Cache<ConsumerNamespace>,
    requests: Cache<Request>,
    policies: Cache<PeeringPolicy>,
    plugins: Arc<Plugins>,
    offers: Cache<ResourceOffer>,
    links: Arc<Links>,
    queue: Queue<()>,
    written: Mutex<HashMap<OfferId, Written>>,
    followed: Mutex<HashMap<ClusterId, PolicyVersion>>,
}

/// The status code of an object that its schema refuses.
const INVALID: u16 = 422;

impl Provider {
    /// Starts watching.
    pub fn start(
        context: &Context,
        stop: &CancellationToken,
        offers: Cache<ResourceOffer>,
        policies: Cache<PeeringPolicy>,
        links: Arc<Links>,
        queue: Queue<()>,
    ) -> Arc<Self> {
        let client = || context.client.clone();
        let (nodes, pods, namespaces, requests) = (queue.clone(), queue.clone(), queue.clone(), queue.clone());
        let summed: Arc<Mutex<Arc<Pods>>> = Arc::default();
        let sums = summed.clone();
        // Finished pods use nothing: the API server need not even send them.
        let unfinished = Config::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        let ours = Config::default().labels(&format!("{},{}", labels::NAMESPACE_KIND, labels::CONSUMER_ID));
        Arc::new(Self {
            context: context.clone(),
            nodes: Cache::watch(Api::<Node>::all(client()), Config::default(), stop.clone(), reduce::node, move |_, _, _| {
                nodes.add_after((), DEBOUNCE);
            }),
            pods: Cache::watch(Api::<Pod>::all(client()), unfinished, stop.clone(), reduce::pod, move |_, old, new| {
                Arc::make_mut(&mut lock(&sums)).changed(old, new);
                pods.add_after((), DEBOUNCE);
            }),
            namespaces: Cache::watch(Api::<Namespace>::all(client()), ours, stop.clone(), reduce::namespace, move |_, _, _| {
                namespaces.add_after((), PROMPT);
            }),
            requests: Cache::watch(
                Api::<DeserializeGuard<ResourceRequest>>::all(client()),
                Config::default(),
                stop.clone(),
                reduce::request,
                move |_, _, _| requests.add_after((), PROMPT),
            ),
            summed,
            policies,
            plugins: Plugins::new(context.clone(), queue.clone()),
            offers,
            links,
            queue,
            written: Mutex::default(),
            followed: Mutex::default(),
        })
    }

    /// Keeps the offers as they should be, until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let synced = [
            self.nodes.synced().await,
            self.pods.synced().await,
            self.namespaces.synced().await,
            self.requests.synced().await,
            self.policies.synced().await,
            self.offers.synced().await,
            self.links.foreign_clusters().synced().await,
        ];
        if synced.contains(&false) {
            return;
        }
        self.queue.add(());
        let provider = self.clone();
        let work = self.queue.run("offers", 1, stop.clone(), move |()| {
            let provider = provider.clone();
            async move { provider.recompute().await }
        });
        let mut config = self.context.config.clone();
        let follow_config = async {
            while config.changed().await.is_ok() {
                self.queue.add_after((), PROMPT);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            () = self.plugins.run(stop.clone()) => {}
            () = follow_config => {}
        }
    }

    async fn recompute(&self) -> Result<Next, Error> {
        let now = Instant::now();
        let picture = self.picture(now);
        let sources = picture.policies.iter().filter_map(|policy| policy.spec.provide.source.plugin.clone());
        self.plugins.want(&picture.plugins(), sources.collect());
        let mut plan = decide(&picture, now);
        let wake = plan.wake;
        let followed = std::mem::take(&mut plan.followed);
        let mut failed = BTreeSet::new();
        let done = self.carry_out(plan, &mut failed).await;
        let mut standing = lock(&self.followed);
        // What could not be written is still to follow the new rules.
        standing.retain(|consumer, _| failed.contains(consumer));
        standing.extend(followed.into_iter().filter(|(consumer, _)| !failed.contains(consumer)));
        drop(standing);
        done?;
        Ok(wake.map_or(Next::OnChange, Next::After))
    }

    fn picture(&self, now: Instant) -> Picture {
        let config = self.context.config();
        let mut written = lock(&self.written);
        written.retain(|_, written| now.saturating_duration_since(written.at) < PACE);
        Picture {
            own: self.context.cluster_id.clone(),
            policies: self.policies.all().into_iter().map(|(_, policy)| policy).collect(),
            peers: self.links.policy_peers(),
            readings: self.plugins.readings(),
            cluster_labels: config.spec.cluster_labels.clone(),
            nodes: self.nodes.all(),
            pods: lock(&self.summed).clone(),
            namespaces: self.namespaces.all().into_iter().map(|(key, namespace)| (key.name, namespace)).collect(),
            requests: self.requests.all(),
            offers: self.offers.all(),
            written: written.clone(),
            followed: lock(&self.followed).clone(),
            today: Timestamp::now(),
        }
    }

    /// Does all that can be done; one tenant's failure is not another's.
    async fn carry_out(&self, plan: Plan, failed: &mut BTreeSet<ClusterId>) -> Result<(), Error> {
        let mut failures = Vec::new();
        for key in plan.deletions {
            failures.extend(self.delete(key).await.err());
        }
        let mut shrunk = true;
        for write in plan.writes {
            // What was not given up cannot be given to another.
            if write.grows && !shrunk {
                continue;
            }
            let (grows, consumer) = (write.grows, write.consumer.clone());
            let newcomer = (!write.exists).then(|| (write.namespace_uid.clone(), write.spec.pool.clone()));
            if let Err(failure) = self.write(write).await {
                shrunk &= grows;
                failed.insert(consumer);
                // The others do not make room for it at once again.
                if let Some(offer) = newcomer {
                    lock(&self.written).insert(offer, Written { at: Instant::now(), hard: ResourceList::new() });
                }
                failures.push(failure);
            }
        }
        for answer in plan.answers {
            let api: Api<ResourceRequest> = namespaced(&self.context.client, &answer.namespace);
            let done = conditions::merge(&api, RESOURCE_REQUEST, &answer.current, &[answer.wanted]).await;
            failures.extend(done.err().map(|source| Error::AnswerRequest { namespace: answer.namespace, source }));
        }
        for write in plan.policies {
            let api: Api<PeeringPolicy> = Api::all(self.context.client.clone());
            match put_status(&api, FIELD_MANAGER, &write.name, &write.status).await {
                Ok(()) => {}
                // An old policy that the present schema refuses; where Kubernetes does not let that pass, it has no status.
                Err(kube::Error::Api(refused)) if refused.code == INVALID => {
                    tracing::warn!(policy = write.name, error = refused.message, "the status of a policy is refused");
                }
                Err(source) => failures.push(Error::WritePolicy { policy: write.name, source }),
            }
        }
        self.links.say_of_consumers(plan.links);
        crate::first(failures)
    }

    async fn write(&self, write: OfferWrite) -> Result<(), Error> {
        let OfferWrite { namespace, namespace_uid, consumer, spec, exists, .. } = write;
        let api: Api<ResourceOffer> = namespaced(&self.context.client, &namespace);
        let pool = spec.pool.clone();
        let offer = marked(ResourceOffer::new(&pool, spec), labels::CONSUMER_ID, &consumer);
        if let Err(source) = put(&api, FIELD_MANAGER, &offer, exists).await {
            return Err(Error::WriteOffer { namespace, source });
        }
        let hard = offer.spec.resource_quota.hard;
        tracing::info!(%consumer, pool, offered = %hard, "offer written");
        lock(&self.written).insert((namespace_uid, pool), Written { at: Instant::now(), hard });
        Ok(())
    }

    async fn delete(&self, key: Key) -> Result<(), Error> {
        let api: Api<ResourceOffer> = namespaced(&self.context.client, &key.namespace);
        match api.delete(&key.name, &DeleteParams::default()).await {
            Ok(_) => {
                tracing::info!(offer = %key, "offer deleted");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(source) => Err(Error::DeleteOffer { key, source }),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
