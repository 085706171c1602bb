//! Reads everything that is judged. It changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, future::join_all, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Secret},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DynamicObject, ListParams, LogParams},
    client::Body,
    core::{ApiResource, GroupVersionKind},
};
use liqo_api::{CLUSTER_CONFIG, ClusterId, NamespaceOffloading, Wish, labels, provider_namespace, tenant_namespace};
use serde::de::DeserializeOwned;

use super::facts::{ApiServer, Credential, Facts, Read, Surroundings, WebhookCertificate};
use crate::{
    cluster::{Cluster, explain, full_name, is_absent},
    manifests::{self, FABRIC, FABRIC_NAMESPACE, MANAGER, NAMESPACE},
    settings::{Present, Settings, Values},
};

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// So many requests of one kind run at the same time.
const AT_ONCE: usize = 8;
/// More pods than this are not asked what is wrong with them.
const MOST_ASKED: usize = 10;

/// Looks at a cluster; an error if its API server does not answer.
pub async fn collect(cluster: &Cluster) -> Read<Facts> {
    let reader = Reader { client: cluster.client.clone(), refused: Mutex::default() };
    let api_server = reader.api_server(&cluster.server).await?;
    let everything = ListParams::default();
    let gateways_and_leader = reader.list_in(NAMESPACE, &everything);
    let of_liqo = ListParams::default().labels(labels::NAMESPACE_KIND);
    let (
        definitions,
        config,
        manager,
        pods,
        leases,
        node_leases,
        slices,
        webhook,
        webhook_certificate,
        roles,
        nodes,
        surroundings,
    ) = tokio::join!(
        reader.list(&everything),
        reader.get_cluster_wide(CLUSTER_CONFIG),
        reader.get(NAMESPACE, MANAGER),
        reader.own_pods(),
        gateways_and_leader,
        reader.list_in("kube-node-lease", &everything),
        reader.list_in(NAMESPACE, &everything),
        reader.get_cluster_wide("liqo"),
        reader.webhook_certificate(),
        reader.roles(),
        reader.list(&everything),
        reader.surroundings(),
    );
    let (peers, tunnels, offers, virtual_nodes, namespaces, offloadings) = tokio::join!(
        reader.list(&everything),
        reader.list_in(NAMESPACE, &everything),
        reader.list(&everything),
        reader.list(&everything),
        reader.list(&of_liqo),
        reader.list(&everything),
    );
    let peers: Read<Vec<liqo_api::ForeignCluster>> = peers;
    let known: Vec<&liqo_api::ForeignCluster> = peers.iter().flatten().collect();
    let providers = known.iter().filter(|peer| peer.spec.outgoing_peering == Wish::Yes).map(|peer| &peer.spec.cluster_id);
    let tenants = known.iter().filter(|peer| peer.status.as_ref().is_some_and(|status| status.tenant_namespace.is_some()));
    let tenants: Vec<String> = tenants.map(|peer| tenant_namespace(&peer.spec.cluster_id)).collect();
    let (credentials, tenant_leases, home_pods, (last_words, complaints)) = tokio::join!(
        reader.credentials(providers.cloned().collect()),
        reader.list_in_all(&tenants),
        reader.home_pods(&offloadings),
        reader.voices(pods.as_deref().unwrap_or_default()),
    );
    let config: Read<Option<liqo_api::ClusterConfig>> = config;
    let name = config.as_ref().ok().and_then(Option::as_ref).map(|config| config.spec.cluster_name.clone());
    Ok(Facts {
        name: name.unwrap_or_else(|| cluster.context.clone()),
        api_server,
        definitions,
        config,
        manager,
        pods,
        last_words,
        complaints,
        leases,
        node_leases,
        tenant_leases,
        slices,
        webhook,
        webhook_certificate,
        roles,
        nodes,
        surroundings,
        peers,
        tunnels,
        offers,
        virtual_nodes,
        namespaces,
        credentials,
        offloadings,
        home_pods,
        refused: reader.refused.into_inner().unwrap_or_else(PoisonError::into_inner),
    })
}

struct Reader {
    client: Client,
    refused: Mutex<Vec<String>>,
}

impl Reader {
    /// Waits for an answer, and puts a failure into words.
    async fn read<T>(&self, what: &str, request: impl Future<Output = kube::Result<T>>) -> Read<T> {
        match tokio::time::timeout(PATIENCE, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if matches!(&error, kube::Error::Api(status) if status.code == 403) {
                    self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_owned());
                }
                Err(format!("cannot {what}: {}", explain(error)))
            }
            Err(_) => Err(format!("cannot {what}: no answer in {} s", PATIENCE.as_secs())),
        }
    }

    async fn list<K>(&self, parameters: &ListParams) -> Read<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.listed(&format!("list {}", K::plural(&())), Api::all(self.client.clone()), parameters).await
    }

    async fn list_in<K>(&self, namespace: &str, parameters: &ListParams) -> Read<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let api = Api::namespaced(self.client.clone(), namespace);
        self.listed(&format!("list {} in {namespace}", K::plural(&())), api, parameters).await
    }

    async fn listed<K>(&self, what: &str, api: Api<K>, parameters: &ListParams) -> Read<Vec<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.read(what, async {
            match api.list(parameters).await {
                Ok(list) => Ok(list.items),
                // The kind is unknown: there are none.
                Err(error) if is_absent(&error) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        })
        .await
    }

    async fn list_in_all<K>(&self, namespaces: &[String]) -> Read<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let everything = ListParams::default();
        let lists = stream::iter(namespaces).map(|namespace| self.list_in::<K>(namespace, &everything));
        let lists: Vec<Vec<K>> = lists.buffered(AT_ONCE).try_collect().await?;
        Ok(lists.into_iter().flatten().collect())
    }

    async fn get_cluster_wide<K>(&self, name: &str) -> Read<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope> + Clone + DeserializeOwned + Debug,
    {
        self.got(&format!("read {} {name}", K::kind(&())), Api::all(self.client.clone()), name).await
    }

    async fn get<K>(&self, namespace: &str, name: &str) -> Read<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let api = Api::namespaced(self.client.clone(), namespace);
        self.got(&format!("read {} {namespace}/{name}", K::kind(&())), api, name).await
    }

    async fn got<K>(&self, what: &str, api: Api<K>, name: &str) -> Read<Option<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.read(what, async {
            match api.get(name).await {
                Ok(object) => Ok(Some(object)),
                Err(error) if is_absent(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }

    async fn api_server(&self, url: &str) -> Read<ApiServer> {
        let what = format!("reach {url}");
        let version = self.read(&what, self.client.apiserver_version()).await?;
        // The connection stands: what this takes is the way alone.
        let request = http::Request::get("/version").body(Body::empty()).map_err(|error| error.to_string())?;
        let before = Timestamp::now();
        let answer = self.read(&what, self.client.send(request)).await?;
        let took = Timestamp::now().duration_since(before);
        let date = answer.headers().get(http::header::DATE).and_then(|value| value.to_str().ok());
        let date = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok()).map(|date| date.timestamp());
        let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
        Ok(ApiServer {
            url: url.to_owned(),
            version: version.git_version,
            minor: digits.parse().ok(),
            date,
            asked_at: before + took / 2,
            took,
        })
    }

    async fn own_pods(&self) -> Read<Vec<Pod>> {
        let everything = ListParams::default();
        let (system, fabric) = tokio::join!(self.list_in(NAMESPACE, &everything), self.list_in(FABRIC_NAMESPACE, &everything));
        Ok([system?, fabric?].concat())
    }

    async fn webhook_certificate(&self) -> Read<Option<WebhookCertificate>> {
        let secret: Option<Secret> = self.get(NAMESPACE, "liqo-webhook").await?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        Ok(text("ca.crt").zip(text("tls.crt")).map(|(ca, leaf)| WebhookCertificate { ca, leaf }))
    }

    /// The objects of an installation that give rights, as they stand.
    async fn roles(&self) -> Read<Vec<DynamicObject>> {
        let wanted = wanted_roles()?;
        let present = stream::iter(wanted).map(|wanted| async move {
            let types = wanted.types.clone().unwrap_or_default();
            let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
            let api: Api<DynamicObject> = match wanted.namespace() {
                Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &resource),
                None => Api::all_with(self.client.clone(), &resource),
            };
            self.got(&format!("read {} {}", types.kind, wanted.name_any()), api, &wanted.name_any()).await
        });
        let present: Vec<Read<Option<DynamicObject>>> = present.buffered(AT_ONCE).collect().await;
        Ok(present.into_iter().collect::<Read<Vec<_>>>()?.into_iter().flatten().collect())
    }

    async fn surroundings(&self) -> Surroundings {
        let everything = ListParams::default();
        let of_dns = ListParams::default().labels("kubernetes.io/service-name=kube-dns");
        let (daemon_sets, kube_proxy, cilium, corefile, dns) = tokio::join!(
            self.list(&everything),
            self.entry("kube-proxy", "config.conf"),
            self.entry("cilium-config", "kube-proxy-replacement"),
            self.entry("coredns", "Corefile"),
            self.list_in::<EndpointSlice>("kube-system", &of_dns),
        );
        Surroundings { daemon_sets, kube_proxy, cilium_replaces_kube_proxy: cilium, corefile, dns }
    }

    /// One entry of a `ConfigMap` of Kubernetes.
    async fn entry(&self, name: &str, key: &str) -> Read<Option<String>> {
        let map: Option<ConfigMap> = self.get("kube-system", name).await?;
        Ok(map.and_then(|map| map.data?.remove(key)))
    }

    async fn credentials(&self, providers: Vec<ClusterId>) -> BTreeMap<ClusterId, Read<Option<Credential>>> {
        let read = |provider: ClusterId| async move {
            let secret = self.get::<Secret>(&provider_namespace(&provider), "credential").await;
            (provider, secret.map(|secret| secret.as_ref().and_then(times)))
        };
        stream::iter(providers).map(read).buffered(AT_ONCE).collect().await
    }

    async fn home_pods(&self, offloadings: &Read<Vec<NamespaceOffloading>>) -> Read<Vec<Pod>> {
        let offloadings = offloadings.as_ref().map_err(Clone::clone)?;
        let namespaces: BTreeSet<String> = offloadings.iter().filter_map(kube::ResourceExt::namespace).collect();
        self.list_in_all(&namespaces.into_iter().collect::<Vec<_>>()).await
    }

    /// What pods that restart wrote last, and what those that run but are not Ready say.
    async fn voices(&self, pods: &[Pod]) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let restarted = pods.iter().filter(|pod| statuses(pod).any(|status| status.restart_count > 0)).take(MOST_ASKED);
        let last_words = join_all(restarted.map(|pod| self.last_words(pod)));
        let complaining = pods.iter().filter(|pod| statuses(pod).any(|status| is_running(status) && !status.ready));
        let complaints = join_all(complaining.take(MOST_ASKED).map(|pod| self.complaint(pod)));
        let (last_words, complaints) = tokio::join!(last_words, complaints);
        (last_words.into_iter().flatten().collect(), complaints.into_iter().flatten().collect())
    }

    async fn last_words(&self, pod: &Pod) -> Option<(String, String)> {
        let parameters = LogParams { previous: true, tail_lines: Some(1), limit_bytes: Some(2000), ..LogParams::default() };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace()?);
        let logs = tokio::time::timeout(PATIENCE, async { api.logs(&pod.name_any(), &parameters).await }).await.ok()?.ok()?;
        let line = logs.trim().to_owned();
        (!line.is_empty()).then(|| (full_name(pod), line))
    }

    /// What a pod's own readiness probe is told. Asked through the API server, which must be able to reach the pod for that.
    async fn complaint(&self, pod: &Pod) -> Option<(String, String)> {
        let port = pod.spec.as_ref()?.containers.first()?.readiness_probe.as_ref()?.http_get.as_ref()?.port.clone();
        let ports = pod.spec.as_ref()?.containers.first()?.ports.iter().flatten();
        let port = match port {
            k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(number) => number,
            k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String(name) => {
                ports.into_iter().find(|port| port.name.as_deref() == Some(&name))?.container_port
            }
        };
        let (namespace, name) = (pod.namespace()?, pod.name_any());
        let path = format!("/api/v1/namespaces/{namespace}/pods/http:{name}:{port}/proxy/readyz");
        let request = http::Request::get(path).body(Vec::new()).ok()?;
        let answer = tokio::time::timeout(PATIENCE, self.client.request_text(request)).await.ok()?;
        let text = match answer {
            Ok(text) => text,
            // What is not ready answers 503, with its words.
            Err(kube::Error::Api(status)) if status.code == 503 => status.message.clone(),
            Err(_) => return None,
        };
        let text = text.trim();
        (!text.is_empty()).then(|| (full_name(pod), text.to_owned()))
    }
}

/// Roles and bindings of an installation.
pub fn wanted_roles() -> Read<Vec<DynamicObject>> {
    let values = Values::resolve(&Settings::default(), &Present::default(), "cluster");
    let objects = manifests::render(&values).map_err(|error| error.to_string())?;
    Ok(objects.into_iter().filter(|object| manifests::group(object) == "rbac.authorization.k8s.io").collect())
}

/// Of each container of a pod.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = &k8s_openapi::api::core::v1::ContainerStatus> {
    pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten())
}

fn is_running(status: &k8s_openapi::api::core::v1::ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

fn times(secret: &Secret) -> Option<Credential> {
    let data = secret.data.as_ref()?;
    let time = |key: &str| std::str::from_utf8(&data.get(key)?.0).ok()?.parse().ok();
    Some(Credential { issued_at: time("issued-at")?, expires_at: time("expires-at")? })
}

/// Whether this pod belongs to the fabric.
pub fn is_fabric(pod: &Pod) -> bool {
    pod.labels().get("app.kubernetes.io/name").is_some_and(|name| name == FABRIC)
}
