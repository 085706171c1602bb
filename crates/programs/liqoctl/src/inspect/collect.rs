//! Reads everything that `status` shows and `doctor` judges.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _, future::join_all, stream};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, ContainerStatus, Event, Node, Pod, Secret},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, LogParams},
    client::Body,
    core::{ApiResource, GroupVersionKind},
};
use liqo_api::{
    CLUSTER_CONFIG, ClusterId, ForeignCluster, NAMESPACE_MAP, NamespaceMap, NamespaceOffloading,
    ResourceList, annotations, consumer_of_tenant_namespace, labels, provider_namespace, requests,
    tenant_namespace,
};
use liqo_offloading_rules::pod::consumer_policy::with_default_amounts;

use super::{
    facts::{
        ApiServerFacts, BorrowedAndLentUsage, ClusterComponents, ClusterFacts, CredentialLifetime,
        LiqoObjects, PodDiagnostics, ReadResult, VirtualNodeUsage, WebhookCertificate,
    },
    failed_creations::{is_refusal_by_liqo, last_refusals, time_of},
    reader::{ClusterReader, MAX_CONCURRENT, TIMEOUT},
};
use crate::{
    cluster::{Cluster, full_name, is_absent},
    manifests::{self, FABRIC, FABRIC_NAMESPACE, MANAGER, NAMESPACE},
    readiness, replicas,
    settings::{InstallSettings, InstallValues, InstalledState},
};

/// Unhealthy pods beyond this number are not asked what is wrong.
const MAX_PODS_ASKED: usize = 10;

/// Everything that `doctor` judges; an error if the API server does not answer.
pub async fn collect(cluster: &Cluster) -> ReadResult<ClusterFacts> {
    let reader = ClusterReader::new(cluster);
    let api_server = reader.api_server(&cluster.server).await?;
    let all = ListParams::default();
    let of_liqo = ListParams::default().labels(labels::NAMESPACE_KIND);
    let (liqo, definitions, pods, leases, slices, webhook, webhook_certificate, rights) = tokio::join!(
        reader.liqo_objects(None),
        reader.list(&all),
        reader.own_pods(),
        reader.list_in(NAMESPACE, &all),
        reader.list_in(NAMESPACE, &all),
        reader.get_cluster_wide("liqo"),
        reader.webhook_certificate(),
        reader.installed_rights(),
    );
    let peers = liqo.peers.as_deref().unwrap_or_default();
    let providers = peers
        .iter()
        .filter(|peer| peer.wants_outgoing())
        .map(|peer| peer.spec.cluster_id.clone());
    let tenants: Vec<String> = peers
        .iter()
        .filter(|peer| is_tenant(peer))
        .map(|peer| tenant_namespace(&peer.spec.cluster_id))
        .collect();
    let (failed_creations, created_since) = reader.failed_creations().await;
    let (
        nodes,
        node_leases,
        namespaces,
        components,
        credentials,
        tenant_leases,
        announced_domains,
        local_pods,
        diagnostics,
    ) = tokio::join!(
        reader.list(&all),
        reader.list_in("kube-node-lease", &all),
        reader.list(&of_liqo),
        reader.components(),
        reader.credential_lifetimes(providers.collect()),
        reader.list_in_all(&tenants),
        reader.announced_domains(&tenants),
        reader.local_pods(&liqo.offloadings),
        reader.pod_diagnostics(pods.as_deref().unwrap_or_default()),
    );
    Ok(ClusterFacts {
        name: liqo.configuration().map_or_else(
            || cluster.context.clone(),
            |config| config.spec.cluster_name.clone(),
        ),
        api_server,
        liqo,
        definitions,
        pods,
        diagnostics,
        leases,
        node_leases,
        tenant_leases,
        slices,
        webhook,
        webhook_certificate,
        rights,
        nodes,
        components,
        namespaces,
        announced_domains,
        credentials,
        local_pods,
        failed_creations,
        created_since,
        refused: reader.forbidden_requests(),
    })
}

/// Reads the objects that `status` counts besides Liqo's own.
pub async fn collect_usage(
    reader: &ClusterReader,
    objects: &LiqoObjects,
) -> ReadResult<BorrowedAndLentUsage> {
    let virtual_nodes = objects.virtual_nodes.as_ref().map_err(Clone::clone)?;
    let names = virtual_nodes
        .iter()
        .filter_map(|node| node.status.as_ref()?.node_name.as_deref());
    let nodes = join_all(names.map(|name| reader.node_usage(name))).await;
    let peers = objects.peers.as_ref().map_err(Clone::clone)?;
    let tenants: Vec<String> = peers
        .iter()
        .filter_map(|peer| peer.status.as_ref()?.tenant_namespace.clone())
        .collect();
    let avoided = objects
        .manager
        .as_ref()
        .ok()
        .and_then(Option::as_ref)
        .map(manifests::avoided_nodes)
        .unwrap_or_default();
    let all_nodes = reader.list::<Node>(&ListParams::default()).await.ok();
    Ok(BorrowedAndLentUsage {
        nodes_for_manager: all_nodes.map(|nodes| replicas::usable_nodes(&nodes, &avoided)),
        nodes: nodes
            .into_iter()
            .filter_map(ReadResult::transpose)
            .collect::<ReadResult<_>>()?,
        shadow_pods: reader.list_in_all(&tenants).await?,
    })
}

fn is_tenant(peer: &ForeignCluster) -> bool {
    peer.status
        .as_ref()
        .is_some_and(|status| status.tenant_namespace.is_some())
}

impl ClusterReader {
    /// Liqo's own objects; of the offloaded namespaces all, or only this one. Where Liqo is not
    /// installed there are none.
    pub async fn liqo_objects(&self, namespace: Option<&str>) -> LiqoObjects {
        let all = ListParams::default();
        let (config, manager, peers, tunnels, offers, virtual_nodes, offloadings) = tokio::join!(
            self.get_cluster_wide(CLUSTER_CONFIG),
            self.get(NAMESPACE, MANAGER),
            self.list(&all),
            self.list_in(NAMESPACE, &all),
            self.list(&all),
            self.list(&all),
            self.offloadings(namespace),
        );
        LiqoObjects {
            config,
            manager,
            peers,
            tunnels,
            offers,
            virtual_nodes,
            offloadings,
        }
    }

    async fn offloadings(&self, namespace: Option<&str>) -> ReadResult<Vec<NamespaceOffloading>> {
        let all = ListParams::default();
        match namespace {
            Some(namespace) => self.list_in(namespace, &all).await,
            None => self.list(&all).await,
        }
    }

    /// The domains that consumers announce in these tenant namespaces. Reads only the metadata of a
    /// map, which may be large.
    async fn announced_domains(
        &self,
        tenants: &[String],
    ) -> ReadResult<BTreeMap<ClusterId, Option<String>>> {
        let domains: Vec<_> = stream::iter(tenants)
            .map(|tenant| self.announced_domain(tenant))
            .buffered(MAX_CONCURRENT)
            .try_collect()
            .await?;
        Ok(domains.into_iter().flatten().collect())
    }

    async fn announced_domain(
        &self,
        tenant: &str,
    ) -> ReadResult<Option<(ClusterId, Option<String>)>> {
        let api = Api::<NamespaceMap>::namespaced(self.client(), tenant);
        let what = format!("read NamespaceMap {tenant}/{NAMESPACE_MAP}");
        let map = self.await_answer(&what, async {
            match api.get_metadata_opt(NAMESPACE_MAP).await {
                Err(error) if is_absent(&error) => Ok(None),
                answer => answer,
            }
        });
        let domain = map
            .await?
            .map(|map| map.annotations().get(annotations::CLUSTER_DOMAIN).cloned());
        Ok(consumer_of_tenant_namespace(tenant).zip(domain))
    }

    /// The Node of a virtual node, and what its unfinished pods use.
    async fn node_usage(&self, name: &str) -> ReadResult<Option<(String, VirtualNodeUsage)>> {
        let Some(node) = self.get_cluster_wide::<Node>(name).await? else {
            return Ok(None);
        };
        let unfinished =
            format!("spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed");
        let parameters = ListParams::default().fields(&unfinished);
        let pods: Api<Pod> = Api::all(self.client.clone());
        let pods = self
            .await_answer(
                &format!("list the pods of Node {name}"),
                pods.list(&parameters),
            )
            .await?
            .items;
        let mut usage = VirtualNodeUsage {
            ready: readiness::node(&node),
            pods: pods.len(),
            requests: ResourceList::new(),
        };
        for Pod {
            metadata,
            spec,
            status,
        } in pods
        {
            usage.requests += &spec
                .map(|spec| {
                    requests::of_bound_pod(
                        metadata.generation,
                        with_default_amounts(spec),
                        &status.unwrap_or_default(),
                    )
                })
                .unwrap_or_default();
        }
        Ok(Some((name.to_owned(), usage)))
    }

    async fn api_server(&self, url: &str) -> ReadResult<ApiServerFacts> {
        let what = format!("reach {url}");
        let version = self
            .await_answer(&what, self.client.apiserver_version())
            .await?;
        // The connection is open now, so this measures the round trip alone.
        let request = http::Request::get("/version")
            .body(Body::empty())
            .map_err(|error| error.to_string())?;
        let before = Timestamp::now();
        let answer = self.await_answer(&what, self.client.send(request)).await?;
        let took = Timestamp::now().duration_since(before);
        let date = answer
            .headers()
            .get(http::header::DATE)
            .and_then(|value| value.to_str().ok());
        let date = date
            .and_then(|text| jiff::fmt::rfc2822::parse(text).ok())
            .map(|date| date.timestamp());
        let digits: String = version
            .minor
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        Ok(ApiServerFacts {
            url: url.to_owned(),
            version: version.git_version,
            minor: digits.parse().ok(),
            date,
            asked_at: before + took / 2,
            took,
        })
    }

    async fn own_pods(&self) -> ReadResult<Vec<Pod>> {
        let all = ListParams::default();
        let (system, fabric) = tokio::join!(
            self.list_in(NAMESPACE, &all),
            self.list_in(FABRIC_NAMESPACE, &all)
        );
        Ok([system?, fabric?].concat())
    }

    async fn webhook_certificate(&self) -> ReadResult<Option<WebhookCertificate>> {
        let secret: Option<Secret> = self.get(NAMESPACE, "liqo-webhook").await?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        Ok(secret_text(&data, "ca.crt")
            .zip(secret_text(&data, "tls.crt"))
            .map(|(ca, leaf)| WebhookCertificate { ca, leaf }))
    }

    /// The roles, admission policies and bindings that `liqoctl install` creates, as the cluster
    /// has them.
    async fn installed_rights(&self) -> ReadResult<Vec<DynamicObject>> {
        let wanted = wanted_rights()?;
        let present = stream::iter(wanted).map(|wanted| async move {
            let types = wanted.types.clone().unwrap_or_default();
            let (group, version) = types
                .api_version
                .split_once('/')
                .unwrap_or(("", &types.api_version));
            let resource =
                ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
            let api: Api<DynamicObject> = match wanted.namespace() {
                Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &resource),
                None => Api::all_with(self.client.clone(), &resource),
            };
            self.get_from(
                &format!("read {} {}", types.kind, wanted.name_any()),
                api,
                &wanted.name_any(),
            )
            .await
        });
        let present: Vec<ReadResult<Option<DynamicObject>>> =
            present.buffered(MAX_CONCURRENT).collect().await;
        Ok(present
            .into_iter()
            .collect::<ReadResult<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect())
    }

    async fn components(&self) -> ClusterComponents {
        let all = ListParams::default();
        let of_dns = ListParams::default().labels("kubernetes.io/service-name=kube-dns");
        let (daemon_sets, kube_proxy, cilium, corefile, dns) = tokio::join!(
            self.list(&all),
            self.system_config_entry("kube-proxy", "config.conf"),
            self.system_config_entry("cilium-config", "kube-proxy-replacement"),
            self.system_config_entry("coredns", "Corefile"),
            self.list_in::<EndpointSlice>("kube-system", &of_dns),
        );
        ClusterComponents {
            daemon_sets,
            kube_proxy,
            cilium_replaces_kube_proxy: cilium,
            corefile,
            dns,
        }
    }

    /// One entry of a `ConfigMap` in `kube-system`.
    async fn system_config_entry(&self, name: &str, key: &str) -> ReadResult<Option<String>> {
        let map: Option<ConfigMap> = self.get("kube-system", name).await?;
        Ok(map.and_then(|map| map.data?.remove(key)))
    }

    async fn credential_lifetimes(
        &self,
        providers: Vec<ClusterId>,
    ) -> BTreeMap<ClusterId, ReadResult<Option<CredentialLifetime>>> {
        stream::iter(providers)
            .map(|provider| async move {
                let secret = self
                    .get::<Secret>(&provider_namespace(&provider), "credential")
                    .await;
                (
                    provider,
                    secret.map(|secret| secret.as_ref().and_then(credential_lifetime)),
                )
            })
            .buffered(MAX_CONCURRENT)
            .collect()
            .await
    }

    async fn local_pods(
        &self,
        offloadings: &ReadResult<Vec<NamespaceOffloading>>,
    ) -> ReadResult<Vec<Pod>> {
        let offloadings = offloadings.as_ref().map_err(Clone::clone)?;
        let namespaces: BTreeSet<String> = offloadings
            .iter()
            .filter_map(kube::ResourceExt::namespace)
            .collect();
        self.list_in_all(&namespaces.into_iter().collect::<Vec<_>>())
            .await
    }

    /// Events about pods that Liqo refused to controllers, and who of these created a pod later.
    async fn failed_creations(&self) -> (ReadResult<Vec<Event>>, BTreeSet<String>) {
        let failed = self
            .list::<Event>(&ListParams::default().fields("reason=FailedCreate"))
            .await;
        let failed = failed.map(|all| {
            all.into_iter()
                .filter(is_refusal_by_liqo)
                .collect::<Vec<_>>()
        });
        let last = last_refusals(failed.as_deref().unwrap_or_default());
        let created = stream::iter(last).map(|(uid, last)| async move {
            let of_object = format!("reason=SuccessfulCreate,involvedObject.uid={uid}");
            let created = self
                .list::<Event>(&ListParams::default().fields(&of_object))
                .await
                .unwrap_or_default();
            created
                .iter()
                .any(|event| time_of(event) > last)
                .then_some(uid)
        });
        let created: Vec<Option<String>> = created.buffered(MAX_CONCURRENT).collect().await;
        (failed, created.into_iter().flatten().collect())
    }

    async fn pod_diagnostics(&self, pods: &[Pod]) -> PodDiagnostics {
        let restarted = pods
            .iter()
            .filter(|pod| container_statuses(pod).any(|status| status.restart_count > 0));
        let last_log_lines = join_all(
            restarted
                .take(MAX_PODS_ASKED)
                .map(|pod| self.last_log_line(pod)),
        );
        let not_ready = pods.iter().filter(|pod| {
            container_statuses(pod).any(|status| is_running(status) && !status.ready)
        });
        let not_ready = join_all(
            not_ready
                .take(MAX_PODS_ASKED)
                .map(|pod| self.readiness_answer(pod)),
        );
        let (last_log_lines, not_ready) = tokio::join!(last_log_lines, not_ready);
        PodDiagnostics {
            last_log_lines: last_log_lines.into_iter().flatten().collect(),
            not_ready: not_ready.into_iter().flatten().collect(),
        }
    }

    /// The last line that the container before the restart wrote.
    async fn last_log_line(&self, pod: &Pod) -> Option<(String, String)> {
        let parameters = LogParams {
            previous: true,
            tail_lines: Some(1),
            limit_bytes: Some(2000),
            ..LogParams::default()
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace()?);
        let logs = tokio::time::timeout(TIMEOUT, async {
            api.logs(&pod.name_any(), &parameters).await
        })
        .await
        .ok()?
        .ok()?;
        let line = logs.trim().to_owned();
        (!line.is_empty()).then(|| (full_name(pod), line))
    }

    /// The answer of the pod's readiness endpoint. The request goes through the API server, which
    /// must be able to reach the pod.
    async fn readiness_answer(&self, pod: &Pod) -> Option<(String, String)> {
        let port = pod
            .spec
            .as_ref()?
            .containers
            .first()?
            .readiness_probe
            .as_ref()?
            .http_get
            .as_ref()?
            .port
            .clone();
        let ports = pod
            .spec
            .as_ref()?
            .containers
            .first()?
            .ports
            .iter()
            .flatten();
        let port = match port {
            IntOrString::Int(number) => number,
            IntOrString::String(name) => {
                ports
                    .into_iter()
                    .find(|port| port.name.as_deref() == Some(&name))?
                    .container_port
            }
        };
        let (namespace, name) = (pod.namespace()?, pod.name_any());
        let path = format!("/api/v1/namespaces/{namespace}/pods/http:{name}:{port}/proxy/readyz");
        let request = http::Request::get(path).body(Vec::new()).ok()?;
        let answer = tokio::time::timeout(TIMEOUT, self.client.request_text(request))
            .await
            .ok()?;
        let text = match answer {
            Ok(text) => text,
            // A pod that is not ready answers 503, with the reason in the body.
            Err(kube::Error::Api(status)) if status.code == 503 => status.message.clone(),
            Err(_) => return None,
        };
        let text = text.trim();
        (!text.is_empty()).then(|| (full_name(pod), text.to_owned()))
    }
}

/// The objects that give an installation its rights, or restrict them: roles, admission policies,
/// and their bindings.
pub fn wanted_rights() -> ReadResult<Vec<DynamicObject>> {
    let values = InstallValues::resolve(
        &InstallSettings::default(),
        &InstalledState::default(),
        "cluster",
    );
    let objects = manifests::render_manifests(&values).map_err(|error| error.to_string())?;
    Ok(objects
        .into_iter()
        .filter(|object| {
            manifests::group(object) == "rbac.authorization.k8s.io"
                || manifests::is_admission_policy(object)
        })
        .collect())
}

/// The statuses of a pod's containers, without init containers.
pub fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
}

fn is_running(status: &ContainerStatus) -> bool {
    status
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some())
}

fn secret_text(data: &BTreeMap<String, ByteString>, key: &str) -> Option<String> {
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

fn credential_lifetime(secret: &Secret) -> Option<CredentialLifetime> {
    let data = secret.data.as_ref()?;
    Some(CredentialLifetime {
        issued_at: secret_text(data, "issued-at")?.parse().ok()?,
        expires_at: secret_text(data, "expires-at")?.parse().ok()?,
    })
}

/// Whether this pod belongs to the fabric.
pub fn is_fabric(pod: &Pod) -> bool {
    pod.labels()
        .get("app.kubernetes.io/name")
        .is_some_and(|name| name == FABRIC)
}
