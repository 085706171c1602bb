//! Attacks on real clusters, with real credentials.
//!
//! This file: what a hostile consumer sends so that the manager or the API server of its provider
//! runs out of memory, and stolen identities of Liqo's own programs. The other files: attacks at
//! full speed beside honest peers, requests with stolen tokens, and a consumer that is refused.

mod flood;
mod honest;
mod hostile_consumer;
mod hostile_provider;
mod refused_consumer;
mod stolen_tokens;
mod strangers;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
    client::Body,
    core::Request,
};
use liqo_api::{
    CONTROLLER_MANAGER, FABRIC_NAMESPACE, ShadowPod, TunnelEndpoint, consumer_service_account,
    tenant_namespace,
};
use liqo_tests::{Cluster, World, eventually};
use serde_json::{Map, Value, json};

use crate::{approval::record, isolation::token, network::connected};

pub use self::{
    hostile_consumer::an_honest_consumer_keeps_its_pace_beside_a_hostile_one,
    hostile_provider::an_honest_provider_is_used_undisturbed_beside_a_hostile_one,
    refused_consumer::a_refused_consumer_is_out_within_seconds,
    stolen_tokens::{
        what_a_consumers_token_must_not_do, what_the_tokens_of_a_manager_and_of_a_node_must_not_do,
    },
    strangers::nobody_keeps_an_honest_consumer_from_renewing,
};

/// The limit of the manager's container is 512 MiB.
const MAX_MANAGER_MEMORY_KIB: u64 = 384 * 1024;
/// How many requests the attacker sends at the same time.
const CONCURRENT: usize = 16;
/// The attacker's own namespace, which milan has.
const NAMESPACE: &str = "attacks";
/// Label of what the attacker creates.
const LABEL: &str = "attack";
/// Length of what takes most of a request of 1.5 MiB.
const LARGE: usize = 1_400_000;
/// What a schema says of a text that is too long, and of a list that has too many entries.
const TOO_LONG: &str = "may not be more than";
const TOO_MANY: &str = "must have at most 64 items";

const RECORDS: &str = "/apis/virtualkubelet.liqo.io/v1alpha1";
const REQUESTS: &str = "/apis/discovery.liqo.io/v1alpha1";
const CORE: &str = "/api/v1";

/// Rome's identity at milan, and its tenant namespace there.
struct Attacker {
    cluster: Cluster,
    tenant: String,
}

impl Attacker {
    /// Creates an object. Returns code and message of the refusal; `None` if the API server accepts
    /// it.
    async fn create(
        &self,
        api: &str,
        plural: &str,
        object: &Value,
    ) -> Result<Option<(u16, String)>> {
        let url = format!("{api}/namespaces/{}/{plural}", self.tenant);
        let request =
            Request::new(url).create(&PostParams::default(), serde_json::to_vec(object)?)?;
        match self.cluster.client.request::<Value>(request).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) => Ok(Some((status.code, status.message.clone()))),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that the API server refuses an object with this code and these words.
    async fn refused(
        &self,
        what: &str,
        (api, plural): (&str, &str),
        object: Value,
        code: u16,
        words: &str,
    ) -> Result<()> {
        let answer = self
            .create(api, plural, &object)
            .await?
            .with_context(|| format!("{what}: it was accepted"))?;
        ensure!(
            answer.0 == code && answer.1.contains(words),
            "{what}: {} {:.500}",
            answer.0,
            answer.1
        );
        Ok(())
    }

    /// Checks that the API server refuses a Secret of this type and size.
    async fn secret_refused(
        &self,
        kind: &str,
        bytes: usize,
        metadata: &Value,
        words: &str,
    ) -> Result<()> {
        let mut object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "generateName": "attack-" }, "type": kind,
            "stringData": { "x": "x".repeat(bytes) } });
        for (field, value) in metadata.as_object().into_iter().flatten() {
            object["metadata"][field] = value.clone();
        }
        self.refused(
            &format!(
                "a Secret of type {kind} and {bytes} bytes with {:.60}",
                metadata.to_string()
            ),
            (CORE, "secrets"),
            object,
            403,
            words,
        )
        .await
    }
}

/// A shadow pod with this pod in it, which is usually text.
fn shadow_pod(pod: &Value) -> Value {
    json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": { "generateName": "attack-", "labels": { LABEL: "yes" } },
        "spec": { "namespace": NAMESPACE, "pool": "default", "pod": pod } })
}

fn reflected_object(object: &Value) -> Value {
    json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
        "metadata": { "generateName": "attack-", "labels": { LABEL: "yes" } },
        "spec": { "namespace": NAMESPACE, "object": object } })
}

/// A pod whose JSON takes a little less than 64 KB and contains as many values as possible.
fn tiny_values() -> Value {
    json!({ "metadata": { "name": "attack" }, "spec": { "containers": [], "x": vec![1; 30_000] } })
}

/// A pod with a container that requests many resources.
fn with_resources(number: usize) -> Value {
    let limits: Map<String, Value> = (0..number)
        .map(|n| (format!("a.b/r{n}"), json!("1")))
        .collect();
    json!({ "metadata": { "name": "attack" }, "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "limits": limits } }] } })
}

/// Waits until nothing of a consumer is left at its provider but the `ForeignCluster`.
async fn nothing_is_left(provider: &Cluster, id: &str, within: Duration) -> Result<()> {
    eventually(
        &format!("nothing of {id} is left at {}", provider.name),
        within,
        || async {
            let left = provider
                .kubectl(&[
                    "get",
                    "namespaces,serviceaccounts,roles,rolebindings",
                    "-A",
                    "-o",
                    "yaml",
                ])
                .await?;
            Ok((!left.contains(id)).then_some(()))
        },
    )
    .await
}

/// Deletes the `ForeignCluster` of a consumer that was refused.
async fn forget(provider: &Cluster, id: &str) -> Result<()> {
    let Some(known) = record(provider, id).await? else {
        return Ok(());
    };
    let name = known["metadata"]["name"]
        .as_str()
        .context("a peer without a name")?;
    provider
        .kubectl(&["delete", "foreigncluster", name])
        .await
        .map(drop)
}

/// What the schemas and the policy refuse.
async fn the_api_server_refuses(attacker: &Attacker) -> Result<()> {
    let pods = (RECORDS, "shadowpods");
    attacker
        .refused(
            "a pod that is no text",
            pods,
            shadow_pod(&tiny_values()),
            422,
            "spec.pod",
        )
        .await?;
    attacker
        .refused(
            "a pod of 1.4 MB",
            pods,
            shadow_pod(&json!("x".repeat(LARGE))),
            422,
            TOO_LONG,
        )
        .await?;
    let ten = (0..10).map(|_| {
        attacker.refused(
            "one of ten pods of 1.4 MB",
            pods,
            shadow_pod(&json!("x".repeat(LARGE))),
            422,
            TOO_LONG,
        )
    });
    futures::future::try_join_all(ten).await?;
    let many = shadow_pod(&json!(with_resources(100_000).to_string()));
    attacker
        .refused(
            "a pod that names 100,000 resources",
            pods,
            many,
            422,
            TOO_LONG,
        )
        .await?;
    attacker
        .refused(
            "an escaped text",
            pods,
            shadow_pod(&json!("<")),
            422,
            "printable ASCII",
        )
        .await?;
    let objects = (RECORDS, "reflectedobjects");
    attacker
        .refused(
            "an object of 1.4 MB",
            objects,
            reflected_object(&json!("x".repeat(LARGE))),
            422,
            TOO_LONG,
        )
        .await?;
    let resources: Map<String, Value> = (0..100_000)
        .map(|n| (format!("r{n}"), json!("1")))
        .collect();
    let request = json!({ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
        "metadata": { "name": "attack" }, "spec": { "resources": resources } });
    attacker
        .refused(
            "a request for 100,000 resources",
            (REQUESTS, "resourcerequests"),
            request,
            422,
            TOO_MANY,
        )
        .await?;

    let of_account = json!({ "annotations": { "kubernetes.io/service-account.name": "default" } });
    attacker
        .secret_refused(
            "kubernetes.io/service-account-token",
            10,
            &of_account,
            "no Secrets of this type",
        )
        .await?;
    for bytes in [40_000, 1_000_000] {
        attacker
            .secret_refused("Opaque", bytes, &json!({}), "")
            .await?;
    }
    attacker
        .secret_refused(
            "Opaque",
            10,
            &json!({ "annotations": { "x": "x".repeat(200_000) } }),
            "annotations",
        )
        .await?;
    attacker
        .secret_refused(
            "Opaque",
            10,
            &json!({ "finalizers": ["example.com/attack"] }),
            "finalizers",
        )
        .await?;
    let owner = json!({ "apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "x" });
    attacker
        .secret_refused(
            "Opaque",
            10,
            &json!({ "ownerReferences": [owner] }),
            "owners",
        )
        .await?;
    large_managed_fields_are_refused(attacker).await
}

/// Managed fields that name a million bytes of fields which no object has: in every kind that a
/// consumer creates, and in its Lease.
async fn large_managed_fields_are_refused(attacker: &Attacker) -> Result<()> {
    let invented = |api_version: &str| {
        let fields: Map<String, Value> = (0..10_000)
            .map(|n| (format!("f:{n:0100}"), json!({})))
            .collect();
        json!([{ "manager": "attack", "operation": "Update", "apiVersion": api_version, "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:x": fields } } }])
    };
    let kinds = [
        (
            RECORDS,
            "shadowpods",
            "ShadowPod",
            shadow_pod(&json!("{}"))["spec"].clone(),
        ),
        (
            RECORDS,
            "reflectedobjects",
            "ReflectedObject",
            reflected_object(&json!("{}"))["spec"].clone(),
        ),
        (RECORDS, "namespacemaps", "NamespaceMap", json!({})),
        (REQUESTS, "resourcerequests", "ResourceRequest", json!({})),
    ];
    for (api, plural, kind, spec) in kinds {
        let api_version = api.trim_start_matches("/apis/");
        let object = json!({ "apiVersion": api_version, "kind": kind,
            "metadata": { "generateName": "attack-", "managedFields": invented(api_version) }, "spec": spec });
        attacker
            .refused(
                &format!("managed fields of a {kind}"),
                (api, plural),
                object,
                403,
                "managed fields",
            )
            .await?;
    }
    let leases: Api<Lease> = Api::namespaced(attacker.cluster.client.clone(), &attacker.tenant);
    let mut lease = serde_json::to_value(leases.get("consumer").await?)?;
    lease["metadata"]["managedFields"] = invented("coordination.k8s.io/v1");
    let written = leases
        .replace(
            "consumer",
            &PostParams::default(),
            &serde_json::from_value(lease)?,
        )
        .await;
    ensure!(
        matches!(&written, Err(kube::Error::Api(status)) if status.code == 403),
        "the Lease: {written:?}"
    );
    Ok(())
}

/// What only the manager refuses: 150 pods of tiny values, and one that names 1,500 resources.
async fn the_manager_refuses(attacker: &Attacker, milan: &Cluster) -> Result<()> {
    let texts = (0..150)
        .map(|_| tiny_values().to_string())
        .chain([with_resources(1500).to_string()]);
    stream::iter(texts)
        .map(|text| async move {
            let refused = attacker
                .create(RECORDS, "shadowpods", &shadow_pod(&json!(text)))
                .await?;
            ensure!(refused.is_none(), "a pod of less than 64 KiB: {refused:?}");
            Ok(())
        })
        .buffer_unordered(CONCURRENT)
        .try_collect::<Vec<()>>()
        .await?;
    let ours = ListParams::default().labels(LABEL);
    eventually(
        "the manager refuses all of them",
        Duration::from_secs(30),
        || async {
            let all = milan
                .api::<ShadowPod>(&attacker.tenant)
                .list(&ours)
                .await?
                .items;
            let mut said: BTreeMap<String, usize> = BTreeMap::new();
            for message in all.into_iter().filter_map(|one| one.status?.message) {
                *said.entry(message).or_default() += 1;
            }
            let count = |words: &str| {
                said.iter()
                    .filter(|(message, _)| message.contains(words))
                    .map(|(_, count)| count)
                    .sum::<usize>()
            };
            ensure!(
                count("more than 10000 values") == 150 && count("more than 64 resources") == 1,
                "{said:?}"
            );
            Ok(Some(()))
        },
    )
    .await
}

/// Whether the API server counts the attacker's requests to the few that consumers may have at the
/// same time.
async fn few_requests_are_handled_at_a_time(attacker: &Attacker, milan: &Cluster) -> Result<()> {
    let schema = milan
        .kubectl(&[
            "get",
            "flowschema",
            "liqo-consumers",
            "-o",
            "jsonpath={.metadata.uid}",
        ])
        .await?;
    let url = format!(
        "{RECORDS}/namespaces/{}/shadowpods?limit=1",
        attacker.tenant
    );
    let answer = attacker
        .cluster
        .client
        .send(http::Request::get(url).body(Body::empty())?)
        .await?;
    let applied = answer
        .headers()
        .get("x-kubernetes-pf-flowschema-uid")
        .context("the answer names no FlowSchema")?;
    ensure!(
        applied.as_bytes() == schema.as_bytes(),
        "FlowSchema {applied:?} applies, not {schema}"
    );
    Ok(())
}

/// A credential renews itself: its own account gets a token that is bound to its session and lives
/// an hour, and no other.
async fn only_its_own_token_is_renewed(
    attacker: &Attacker,
    account: &str,
    milan: &Cluster,
) -> Result<()> {
    let uid = milan
        .kubectl(&[
            "-n",
            "liqo",
            "get",
            "secret",
            account,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
        .await?;
    let session = json!({ "apiVersion": "v1", "kind": "Secret", "name": account, "uid": uid });
    for (of, audiences, seconds, bound, expected) in [
        (account, json!([]), 3600, &session, 201),
        (account, json!([]), 7200, &session, 403),
        (account, json!([]), 3600, &Value::Null, 403),
        (account, json!(["sts.example.com"]), 3600, &session, 403),
        (CONTROLLER_MANAGER, json!([]), 3600, &session, 403),
    ] {
        let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound } });
        let url = format!("{CORE}/namespaces/liqo/serviceaccounts/{of}/token");
        let request = http::Request::post(url)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&body)?)?;
        let code = match attacker.cluster.client.request::<Value>(request).await {
            Ok(_) => 201,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => return Err(error.into()),
        };
        ensure!(
            code == expected,
            "a token of {of} for {audiences} and {seconds} s, bound to {bound}: {code}"
        );
    }
    Ok(())
}

pub async fn a_consumer_cannot_exhaust_the_memory_of_its_provider(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let id = rome.cluster_id().await?.parse()?;
    let tenant = tenant_namespace(&id);
    rome.offloaded_namespace(NAMESPACE, "Local").await?;
    // A running manager would delete what it did not create.
    rome.stop_manager().await?;
    let cluster = milan
        .with_token(
            &token(&world, rome).await?,
            &world.scratch("attacker.kubeconfig"),
        )
        .await?;
    let attacker = Attacker { cluster, tenant };
    let before = world.managers(milan)?;

    few_requests_are_handled_at_a_time(&attacker, milan).await?;
    only_its_own_token_is_renewed(&attacker, &consumer_service_account(&id), milan).await?;
    the_api_server_refuses(&attacker).await?;
    the_manager_refuses(&attacker, milan).await?;

    let after = world.managers(milan)?;
    ensure!(
        before.keys().eq(after.keys()),
        "the manager was restarted: {before:?}, {after:?}"
    );
    ensure!(
        after
            .values()
            .all(|memory| memory.peak < MAX_MANAGER_MEMORY_KIB),
        "the manager took (KiB): {before:?}, {after:?}"
    );
    eprintln!(
        "peak memory of milan's manager in KiB: {before:?} before, {after:?} after the attacks"
    );
    milan
        .kubectl(&[
            "-n",
            &attacker.tenant,
            "delete",
            "shadowpods",
            "-l",
            LABEL,
            "--wait=false",
        ])
        .await?;
    rome.start_manager().await?;
    rome.end_namespace(NAMESPACE).await
}

/// A certificate request in the name of a node, in base64:
/// `openssl req -new -newkey ed25519 -subj /O=system:nodes/CN=system:node:rome-1`.
const NODE_CERTIFICATE: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIV01JR0pBZ0VBTURReEZUQVRCZ05WQkFvTURITjVjM1JsYlRwdWIyUmxjekViTUJrR0ExVUVBd3dTYzNsegpkR1Z0T201dlpHVTZjbTl0WlMweE1Db3dCUVlESzJWd0F5RUFNVzg1Ym56bVgzSmxUVGJMd0NzZ0VGK3IrWHV1CmR1bVoxWG53N3RmYm9XbWdJakFnQmdrcWhraUc5dzBCQ1E0eEV6QVJNQThHQTFVZEVRUUlNQWFIQkFvQUFBRXcKQlFZREsyVndBMEVBMUVyZEh6MW9VVWRhWjhUdGtJakdjWHVKeWZmMXphc1VSTGVYYWY2V2JWVVRDamVhM0JNdQpwZm8ydTF3MHl0OEozWVJzc3VKakNKQ215THkrNGdHL0J3PT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";

/// Creates a pod that does nothing, with these tolerations. A new namespace gets its account a
/// moment later.
async fn idle_pod(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    tolerations: &Value,
) -> Result<()> {
    let overrides =
        json!({ "spec": { "tolerations": tolerations, "terminationGracePeriodSeconds": 1 } })
            .to_string();
    let (image, overrides) = (
        "--image=localhost/busybox:1",
        format!("--overrides={overrides}"),
    );
    let run = [
        "-n",
        namespace,
        "run",
        name,
        image,
        "--restart=Never",
        &overrides,
        "--command",
        "--",
        "sleep",
        "600",
    ];
    eventually(
        &format!("pod {namespace}/{name} is created"),
        Duration::from_secs(30),
        || async {
            let created = cluster.try_kubectl(&run).await?;
            Ok((created.success || created.stderr.contains("already exists")).then_some(()))
        },
    )
    .await
}

const MANAGER_ACCOUNT: &str = "system:serviceaccount:liqo:liqo-controller-manager";

/// The manager may wake the controller of a workload by an annotation, and change nothing else of
/// it.
async fn only_wakes(rome: &Cluster, namespace: &str) -> Result<()> {
    let spec = json!({ "replicas": 0, "selector": { "matchLabels": { "app": "asleep" } }, "template": {
        "metadata": { "labels": { "app": "asleep" } }, "spec": { "containers": [{ "name": "main", "image": "localhost/busybox:1" }] },
    } });
    let metadata = json!({ "name": "asleep", "namespace": namespace });
    let object = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec });
    rome.apply(&object.to_string()).await?;
    // `kubectl patch` reads the object first, which the manager may not do.
    let write = async |change: Value| {
        let request = http::Request::patch(format!(
            "/apis/apps/v1/namespaces/{namespace}/replicasets/asleep/status"
        ))
        .header("Content-Type", "application/merge-patch+json")
        .header("Impersonate-User", MANAGER_ACCOUNT)
        .body(change.to_string().into_bytes())?;
        anyhow::Ok(
            rome.client
                .request::<Value>(request)
                .await
                .map_err(|error| format!("{error:?}")),
        )
    };
    for change in [
        json!({ "status": { "replicas": 7 } }),
        json!({ "metadata": { "labels": { "app": "mine" } } }),
        json!({ "metadata": { "annotations": { "mine": "yes", "liqo.io/woken-at": "now" } } }),
        json!({ "metadata": { "finalizers": ["example.org/mine"] } }),
    ] {
        let refused = write(change.clone()).await?;
        let said = refused
            .err()
            .with_context(|| format!("the manager writes {change}"))?;
        ensure!(said.contains("which is not its own"), "{said}");
    }
    write(json!({ "metadata": { "annotations": { "liqo.io/woken-at": "now" } } }))
        .await?
        .map(drop)
        .map_err(anyhow::Error::msg)
}

pub async fn a_stolen_manager_touches_neither_pods_of_the_system_nor_certificates_of_others(
    world: Arc<World>,
) -> Result<()> {
    const MANAGER: &str = "--as=system:serviceaccount:liqo:liqo-controller-manager";
    let rome = &world.rome;
    let (system, other, request) = ("kube-attacked", "attacked", "attacked-by-the-manager");
    for namespace in [system, other] {
        rome.kubectl(&["create", "namespace", namespace]).await?;
        idle_pod(rome, namespace, "idle", &json!([])).await?;
    }
    idle_pod(
        rome,
        system,
        "everywhere",
        &json!([{ "operator": "Exists" }]),
    )
    .await?;
    for (namespace, pod, is_allowed) in [
        (system, "idle", false),
        (system, "everywhere", true),
        (other, "idle", true),
    ] {
        let deleted = rome
            .try_kubectl(&[
                "-n",
                namespace,
                "delete",
                "pod",
                pod,
                "--dry-run=server",
                MANAGER,
            ])
            .await?;
        let as_expected = if is_allowed {
            deleted.success
        } else {
            deleted.stderr.contains("which is not its own")
        };
        ensure!(
            as_expected,
            "the manager deletes pod {namespace}/{pod}: {deleted:?}"
        );
    }
    only_wakes(rome, other).await?;
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": request },
        "spec": { "request": NODE_CERTIFICATE, "signerName": "kubernetes.io/kubelet-serving", "usages": ["digital signature", "server auth"] },
    });
    rome.apply(&object.to_string()).await?;
    let approved = rome
        .try_kubectl(&["certificate", "approve", request, MANAGER])
        .await?;
    ensure!(
        approved.stderr.contains("which is not its own"),
        "the manager approves a certificate of a node: {approved:?}"
    );
    rome.kubectl(&["delete", "certificatesigningrequest", request])
        .await?;
    tokio::try_join!(rome.end_namespace(system), rome.end_namespace(other)).map(drop)
}

pub async fn a_stolen_token_of_a_node_changes_no_report_of_another_gateway(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    connected(rome, milan).await?;
    let pods = rome
        .api::<Pod>(FABRIC_NAMESPACE)
        .list(&ListParams::default())
        .await?
        .items;
    let pod = pods.first().context("a pod of the fabric")?;
    let node = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .context("its node")?;
    let bound = format!("--bound-object-name={}", pod.name_any());
    let token = rome
        .kubectl(&[
            "-n",
            FABRIC_NAMESPACE,
            "create",
            "token",
            "liqo-fabric",
            "--bound-object-kind=Pod",
            &bound,
        ])
        .await?;
    let thief = rome
        .with_token(token.trim(), &world.scratch("node.kubeconfig"))
        .await?;
    let id = milan.cluster_id().await?;
    let write = async |status: Value| {
        let patch = json!({ "status": status }).to_string();
        let to = [
            "-n",
            "liqo",
            "patch",
            "tunnelendpoint",
            &id,
            "--subresource=status",
            "--type=merge",
            "--dry-run=server",
            "-p",
        ];
        thief
            .try_kubectl(&[&to[..], &[patch.as_str()]].concat())
            .await
    };
    let report = |node: &str, is_connected: bool| {
        if is_connected {
            json!({ "gateways": [{ "node": node, "connected": true, "transport": "UDP" }], "transport": "UDP" })
        } else {
            json!({ "gateways": [{ "node": node, "connected": false }], "transport": null })
        }
    };
    let forged = write(report("elsewhere", true)).await?;
    ensure!(
        forged.stderr.contains("no reports of other gateways"),
        "it forges the report of another gateway: {forged:?}"
    );
    let mut lie = report(node, false);
    lie["transport"] = json!("UDP");
    let lied = write(lie).await?;
    ensure!(
        lied.stderr.contains("is that of its gateways"),
        "it says what no gateway reports: {lied:?}"
    );
    let endpoint = rome.api::<TunnelEndpoint>("liqo").get(&id).await?;
    let mut conditions = json!(endpoint.status.context("a status")?.conditions);
    conditions[0]["message"] = json!("forged");
    let mut silent = report(node, false);
    silent["conditions"] = conditions;
    let lied = write(silent).await?;
    ensure!(
        lied.stderr.contains("if one of its gateways is"),
        "it says that a silent tunnel is connected: {lied:?}"
    );
    let own = write(report(node, true)).await?;
    ensure!(own.success, "it cannot write its own report: {own:?}");
    Ok(())
}

/// A text of this length that differs for each number.
fn filled(number: u64, len: usize) -> String {
    let number = number.to_string();
    format!("{number}{}", "x".repeat(len - number.len()))
}
