//! The consumer side: asks each provider for resources, answers its offers, and keeps its virtual nodes.
//!
//! A provider that does not answer changes nothing here: its virtual nodes stay, and what is to be said to it waits. What is
//! here goes only when the provider takes its offer back, or when the provider is not wanted any more.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    core::DeserializeGuard,
    runtime::watcher::Config,
};
use liqo_api::{
    ANSWERED, ClusterId, ForeignCluster, PeeringPolicy, RESOURCE_REQUEST, ResourceOffer, ResourceRequest, ResourceRequestSpec,
    VirtualNode, labels, links, provider_namespace,
};
use liqo_kit::{
    Cache, Context, Key, Next, PeerConnection, Queue,
    cache::whole,
    conditions::{Wanted, namespaced},
    peers::{self, PeerError},
    policies::{self, PolicyPeer},
    put::{marked, put},
    queue::error_chain,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, FIELD_MANAGER, SETTLE,
    decide::{
        consumer::{Action, Local, Node, Wish, give_up, judge},
        reduce::{self, Request},
    },
    links::Links,
};

/// So many providers are dealt with at the same time.
const CONCURRENCY: usize = 32;

/// The consumer side.
pub struct Consumer {
    context: Context,
    /// Of this cluster: the copies, and our own offers.
    offers: Cache<ResourceOffer>,
    nodes: Cache<Node>,
    policies: Cache<PeeringPolicy>,
    remotes: Mutex<HashMap<ClusterId, Arc<Remote>>>,
    links: Arc<Links>,
    queue: Queue<ClusterId>,
}

/// What a provider shows us.
struct Remote {
    connection: Arc<PeerConnection>,
    offers: Cache<ResourceOffer>,
    requests: Cache<Request>,
}

impl Remote {
    fn is_usable(&self) -> bool {
        let connection = &self.connection;
        !connection.ended.is_cancelled() && connection.is_reachable() && self.offers.is_synced() && self.requests.is_synced()
    }

    fn request(&self) -> Option<Arc<Request>> {
        self.requests.get(&Key::new(&self.connection.tenant_namespace, RESOURCE_REQUEST))
    }

    /// Why the provider does not offer anything, in its words.
    fn excuse(&self) -> Option<String> {
        let request = self.request()?;
        let answer = request.conditions.iter().find(|condition| condition.type_ == ANSWERED && condition.status == "False")?;
        Some(answer.message.clone())
    }
}

/// The provider that this provider namespace is for.
pub fn provider_of(namespace: &str) -> Option<ClusterId> {
    let id: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
    (provider_namespace(&id) == namespace).then_some(id)
}

impl Consumer {
    /// Starts watching.
    pub fn start(
        context: &Context,
        stop: &CancellationToken,
        offers: Cache<ResourceOffer>,
        policies: Cache<PeeringPolicy>,
        links: Arc<Links>,
        queue: Queue<ClusterId>,
    ) -> Arc<Self> {
        let changed = queue.clone();
        let reduce = |node: VirtualNode| Some(Node { deleting: node.metadata.deletion_timestamp.is_some(), spec: node.spec });
        let nodes = Cache::watch(Api::all(context.client.clone()), Config::default(), stop.clone(), reduce, move |key, _, _| {
            if let Some(provider) = provider_of(&key.namespace) {
                changed.add_after(provider, SETTLE);
            }
        });
        Arc::new(Self { context: context.clone(), offers, nodes, policies, remotes: Mutex::default(), links, queue })
    }

    /// Keeps requests, answers and virtual nodes as they should be, until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let synced = [
            self.offers.synced().await,
            self.nodes.synced().await,
            self.policies.synced().await,
            self.links.foreign_clusters().synced().await,
        ];
        if synced.contains(&false) {
            return;
        }
        let consumer = self.clone();
        let work = self.queue.run("resources-of-providers", CONCURRENCY, stop.clone(), move |id| {
            let consumer = consumer.clone();
            async move { consumer.reconcile(&id).await }
        });
        let connections = self.context.peers.for_each(stop, |connection| self.clone().follow(connection));
        tokio::join!(work, connections);
    }

    /// Watches what a provider shows us as long as the connection holds.
    async fn follow(self: Arc<Self>, connection: Arc<PeerConnection>) {
        let id = connection.cluster_id.clone();
        let stop = connection.ended.child_token();
        let _guard = stop.clone().drop_guard();
        let (of_offers, of_requests, wake) = (self.queue.clone(), self.queue.clone(), id.clone());
        let client = || connection.client.clone();
        let offers = Cache::watch(
            Api::<ResourceOffer>::namespaced(client(), &connection.tenant_namespace),
            Config::default(),
            stop.clone(),
            whole,
            move |_, _, _| of_offers.add_after(wake.clone(), SETTLE),
        );
        let wake = id.clone();
        let requests = Cache::watch(
            Api::<DeserializeGuard<ResourceRequest>>::namespaced(client(), &connection.tenant_namespace),
            Config::default().fields(&format!("metadata.name={RESOURCE_REQUEST}")),
            stop,
            reduce::request,
            move |_, _, _| of_requests.add_after(wake.clone(), SETTLE),
        );
        let remote = Arc::new(Remote { connection: connection.clone(), offers, requests });
        self.remotes().insert(id.clone(), remote.clone());
        let mut health = connection.health.clone();
        let follow = async {
            if remote.offers.synced().await && remote.requests.synced().await {
                self.queue.add_after(id.clone(), SETTLE);
            }
            while health.changed().await.is_ok() {
                self.queue.add_after(id.clone(), SETTLE);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = connection.ended.cancelled() => {}
            () = follow => {}
        }
        let mut remotes = self.remotes();
        if remotes.get(&id).is_some_and(|current| Arc::ptr_eq(current, &remote)) {
            remotes.remove(&id);
        }
    }

    async fn reconcile(&self, id: &ClusterId) -> Result<Next, Error> {
        let remote = self.remotes().get(id).cloned().filter(|remote| remote.is_usable());
        let local = self.local(id);
        match (self.links.foreign_cluster(id).filter(|peer| peer.wants_resources()), remote) {
            (None, remote) => {
                // What was said of former offers is not to come back with the next wish.
                self.links.say_of_provider(id, Vec::new());
                self.give_up(id, &local, remote.as_deref()).await?;
            }
            // What is here stays until the provider can be asked.
            (Some(_), None) => {}
            (Some(peer), Some(remote)) => self.follow_up(id, &peer, &local, &remote).await?,
        }
        Ok(Next::OnChange)
    }

    /// What exists here for this provider.
    fn local(&self, id: &ClusterId) -> Local {
        let namespace = provider_namespace(id);
        let here = |key: &Key| key.namespace == namespace;
        let mirrors = self.offers.all().into_iter().filter(|(key, _)| here(key));
        let nodes = self.nodes.all().into_iter().filter(|(key, _)| here(key));
        Local {
            mirrors: mirrors.map(|(key, mirror)| (key.name, mirror)).collect(),
            nodes: nodes.map(|(key, node)| (key.name, node)).collect(),
        }
    }

    async fn follow_up(&self, id: &ClusterId, peer: &ForeignCluster, local: &Local, remote: &Remote) -> Result<(), Error> {
        let wish = Wish {
            own: self.context.cluster_id.clone(),
            provider: id.clone(),
            cluster_name: peer.display_name(),
            peer: peer.metadata.name.clone().unwrap_or_default(),
            request: peer.spec.request.clone(),
            consume: policies::held(&self.policies, &PolicyPeer::new(id, Some(peer))).map(|policy| policy.spec.consume.clone()),
            decisions: peer.spec.offers.clone(),
        };
        let requested = self.request(&wish, remote).await;
        let offers = remote.offers.all().into_iter().map(|(key, offer)| (key.name, offer)).collect();
        let judgement = judge(&wish, &offers, local, remote.excuse().as_deref());
        let carried_out = self.carry_out(id, judgement.actions, Some(remote)).await;
        let link = match &requested {
            Ok(()) => Wanted::yes(links::RESOURCES_REQUESTED, "Requested", "our request stands at the provider"),
            Err(error) => Wanted::no(links::RESOURCES_REQUESTED, "RequestFailed", in_short(error)),
        };
        self.links.say_of_provider(id, vec![link, judgement.link]);
        requested.and(carried_out)
    }

    /// Writes our request at the provider, unless it stands there.
    async fn request(&self, wish: &Wish, remote: &Remote) -> Result<(), Error> {
        if remote.request().is_some_and(|standing| standing.resources.as_ref() == Ok(&wish.request.resources)) {
            return Ok(());
        }
        let connection = &remote.connection;
        let api: Api<ResourceRequest> = namespaced(&connection.client, &connection.tenant_namespace);
        let spec = ResourceRequestSpec { resources: wish.request.resources.clone() };
        let request = marked(ResourceRequest::new(RESOURCE_REQUEST, spec), labels::CONSUMER_ID, &wish.own);
        peers::call(put(&api, FIELD_MANAGER, &request, remote.request().is_some()))
            .await
            .map_err(|source| Error::Request { provider: wish.provider.clone(), source })?;
        tracing::info!(provider = %wish.provider, limits = %wish.request.resources, "resources requested");
        Ok(())
    }

    /// Removes what is here, and takes the request back when the last virtual node is gone: the tenancy may go on for the network.
    async fn give_up(&self, id: &ClusterId, local: &Local, remote: Option<&Remote>) -> Result<(), Error> {
        self.carry_out(id, give_up(local), None).await?;
        let Some(remote) = remote.filter(|remote| local.nodes.is_empty() && remote.request().is_some()) else {
            return Ok(());
        };
        let connection = &remote.connection;
        let api: Api<ResourceRequest> = namespaced(&connection.client, &connection.tenant_namespace);
        let deleted = peers::call(async { gone(api.delete(RESOURCE_REQUEST, &DeleteParams::default()).await) }).await;
        deleted.map_err(|source| Error::TakeBack { provider: id.clone(), source })
    }

    /// Does all that can be done; what fails is tried again later.
    async fn carry_out(&self, id: &ClusterId, actions: Vec<Action>, remote: Option<&Remote>) -> Result<(), Error> {
        let mut failures = Vec::new();
        for action in actions {
            failures.extend(self.act(id, action, remote).await.err());
        }
        crate::first(failures)
    }

    async fn act(&self, id: &ClusterId, action: Action, remote: Option<&Remote>) -> Result<(), Error> {
        let namespace = provider_namespace(id);
        let key = |name: &str| Key::new(&namespace, name);
        let nodes: Api<VirtualNode> = namespaced(&self.context.client, &namespace);
        let mirrors: Api<ResourceOffer> = namespaced(&self.context.client, &namespace);
        match action {
            Action::DeleteNode(name) => {
                let deleted = gone(nodes.delete(&name, &DeleteParams::default()).await);
                deleted.map_err(|source| Error::DeleteNode { key: key(&name), source })
            }
            Action::ApplyNode(spec) => {
                tracing::info!(provider = %id, pool = spec.pool, resources = %spec.resources, "virtual node written");
                let pool = spec.pool.clone();
                let exists = self.nodes.get(&key(&pool)).is_some();
                let node = marked(VirtualNode::new(&pool, spec), labels::PROVIDER_ID, id);
                let written = put(&nodes, FIELD_MANAGER, &node, exists).await;
                written.map_err(|source| Error::WriteNode { key: key(&pool), source })
            }
            Action::DeleteMirror(name) => {
                let deleted = gone(mirrors.delete(&name, &DeleteParams::default()).await);
                deleted.map_err(|source| Error::DeleteOffer { key: key(&name), source })
            }
            Action::ApplyMirror(spec) => {
                let pool = spec.pool.clone();
                let exists = self.offers.get(&key(&pool)).is_some();
                let mirror = marked(ResourceOffer::new(&pool, spec), labels::PROVIDER_ID, id);
                let written = put(&mirrors, FIELD_MANAGER, &mirror, exists).await;
                written.map_err(|source| Error::WriteOffer { namespace: namespace.clone(), source })
            }
            Action::AnswerMirror(name, status) => {
                let body = json!({ "status": { "phase": status.phase, "message": status.message } });
                let patched = mirrors.patch_status(&name, &PatchParams::default(), &Patch::Merge(&body)).await;
                gone(patched).map_err(|source| Error::WriteOffer { namespace: namespace.clone(), source })
            }
            Action::Answer(name, status) => {
                let Some(Remote { connection, .. }) = remote else { return Ok(()) };
                let body = json!({ "status": { "phase": status.phase, "message": status.message } });
                let offers: Api<ResourceOffer> = namespaced(&connection.client, &connection.tenant_namespace);
                let merge = (PatchParams::default(), Patch::Merge(&body));
                let patched = peers::call(async { gone(offers.patch_status(&name, &merge.0, &merge.1).await) }).await;
                patched.map_err(|source| Error::AnswerOffer { provider: id.clone(), offer: name, source })
            }
        }
    }

    fn remotes(&self) -> MutexGuard<'_, HashMap<ClusterId, Arc<Remote>>> {
        self.remotes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What failed, in the words of the API server if it answered.
fn in_short(error: &Error) -> String {
    match error {
        Error::Request { source: PeerError::Api(kube::Error::Api(status)), .. } => {
            format!("the provider did not take our request: {}", status.message)
        }
        other => error_chain(other),
    }
}

/// What is gone needs neither deletion nor an answer.
fn gone<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::cluster;

    #[test]
    fn only_a_provider_namespace_tells_a_provider() {
        assert_eq!(provider_of(&provider_namespace(&cluster(1))), Some(cluster(1)));
        assert_eq!(provider_of(&liqo_api::tenant_namespace(&cluster(1))), None);
        assert_eq!(provider_of("liqo-provider-rome"), None);
        assert_eq!(provider_of(cluster(1).as_str()), None);
    }
}
