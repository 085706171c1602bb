//! Real tokens of a consumer, of a manager and of a node, and requests that the API server must
//! refuse to each.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use liqo_api::{
    CONTROLLER_MANAGER, FABRIC_NAMESPACE, SYSTEM_NAMESPACE, consumer_service_account,
    tenant_namespace,
};
use liqo_tests::{Cluster, World};
use serde_json::{Value, json};

use super::{CORE, RECORDS, REQUESTS, flood::client, idle_pod, reflected_object, shadow_pod};
use crate::{isolation::token, pods::deployment};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const OFFERS: &str = "/apis/sharing.liqo.io/v1alpha1";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const LEASES: &str = "/apis/coordination.k8s.io/v1";
const CERTIFICATES: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The error of RBAC.
const NO_RIGHT: &str = "cannot";

/// A request that must be refused.
struct Case {
    /// Method, a blank, and path.
    request: String,
    body: Value,
    /// A part of the message.
    words: &'static str,
}

fn case(request: impl Into<String>, body: Value, words: &'static str) -> Case {
    Case {
        request: request.into(),
        body,
        words,
    }
}

fn read(path: impl AsRef<str>) -> Case {
    case(format!("GET {}", path.as_ref()), Value::Null, NO_RIGHT)
}

fn delete(path: impl AsRef<str>, words: &'static str) -> Case {
    case(format!("DELETE {}", path.as_ref()), Value::Null, words)
}

/// Sends a request that changes nothing even if it is accepted. Returns the status code and the
/// message.
async fn answer(client: &Client, case: &Case, user: Option<&str>) -> Result<(u16, String)> {
    let (method, path) = case.request.split_once(' ').context("no method")?;
    let path = if method == "GET" {
        path.to_owned()
    } else {
        format!("{path}?dryRun=All")
    };
    let kind = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind);
    if let Some(user) = user {
        request = request.header("impersonate-user", user);
    }
    let body = if case.body.is_null() {
        Vec::new()
    } else {
        serde_json::to_vec(&case.body)?
    };
    match client.request_text(request.body(body)?).await {
        Ok(text) => Ok((200, text)),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// Prints the answer to each request, and fails if one was not refused with these words.
async fn all_are_refused(who: &str, client: &Client, cases: &[Case]) -> Result<()> {
    let mut wrong = Vec::new();
    for case in cases {
        let (code, message) = answer(client, case, None).await?;
        println!("{who}: {}: {code}", case.request);
        // 422: an admission policy whose parameter does not exist.
        if ![403, 422].contains(&code) || !message.contains(case.words) {
            wrong.push(format!(
                "{}: {code} {message:.300}, expected a refusal with {:?}",
                case.request, case.words
            ));
        }
    }
    let anything = read(format!("{CORE}/namespaces"));
    for user in [
        "system:admin",
        "system:kube-controller-manager",
        "system:serviceaccount:kube-system:default",
    ] {
        let (code, message) = answer(client, &anything, Some(user)).await?;
        println!("{who}: as {user}: {code}");
        if code != 403 {
            wrong.push(format!("as {user}: {code} {message:.300}"));
        }
    }
    ensure!(wrong.is_empty(), "{who} is not refused: {wrong:#?}");
    Ok(())
}

/// The identity that a token of a cluster gives.
async fn identity(cluster: &Cluster, token: &str, kubeconfig: &Path) -> Result<Client> {
    client(&cluster.with_token(token, kubeconfig).await?.kubeconfig).await
}

fn token_request(seconds: u32, bound: &Value) -> Value {
    json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [], "expirationSeconds": seconds, "boundObjectRef": bound } })
}

fn binding(name: &str, role: &str, account: &str) -> Value {
    json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE }] })
}

fn plain_pod() -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "stolen" },
        "spec": { "containers": [{ "name": "c", "image": "localhost/busybox:1" }] } })
}

fn certificate_request(signer: &str) -> Value {
    json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "stolen" },
        "spec": { "request": super::NODE_CERTIFICATE, "signerName": signer, "usages": ["digital signature", "client auth"] } })
}

/// In its own tenant namespace a consumer writes only what it wants, and leaves nothing that holds
/// the namespace.
fn in_its_tenant_namespace(tenant: &str) -> Vec<Case> {
    let of = |api: &str, rest: &str| format!("{api}/namespaces/{tenant}/{rest}");
    let stays = json!({ "metadata": { "finalizers": ["example.com/stays"] } });
    let with_finalizer = |mut object: Value| {
        object["metadata"]["finalizers"] = json!(["example.com/stays"]);
        object
    };
    let of_account = json!({ "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": { "name": "stolen", "annotations": { "kubernetes.io/service-account.name": "default" } } });
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "stolen" } });
    let owner = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "x" }] } });
    let pod = plain_pod().to_string();
    vec![
        case(
            format!("POST {}", of(CORE, "secrets")),
            of_account,
            "no Secrets of this type",
        ),
        case(
            format!("POST {}", of(CORE, "secrets")),
            with_finalizer(secret),
            "finalizers",
        ),
        case(
            format!("POST {}", of(RECORDS, "shadowpods")),
            with_finalizer(shadow_pod(&json!(pod))),
            "finalizers",
        ),
        case(
            format!("POST {}", of(RECORDS, "reflectedobjects")),
            with_finalizer(reflected_object(&json!(pod))),
            "finalizers",
        ),
        case(
            format!("PATCH {}", of(RECORDS, "namespacemaps/namespaces")),
            stays.clone(),
            "finalizers",
        ),
        case(
            format!("PATCH {}", of(REQUESTS, "resourcerequests/request")),
            stays.clone(),
            "finalizers",
        ),
        case(
            format!(
                "PATCH {}",
                of("/apis/net.liqo.io/v1alpha1", "networkconfigs/network")
            ),
            stays,
            "finalizers",
        ),
        case(
            format!("PATCH {}", of(REQUESTS, "resourcerequests/request")),
            owner,
            "owners",
        ),
        case(
            format!("PATCH {}", of(RECORDS, "shadowpods/x/status")),
            json!({ "status": {} }),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {}", of(RECORDS, "namespacemaps/namespaces/status")),
            json!({ "status": {} }),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {}", of(OFFERS, "resourceoffers/default")),
            json!({ "spec": {} }),
            NO_RIGHT,
        ),
        delete(of(OFFERS, "resourceoffers/default"), NO_RIGHT),
        case(
            format!("PATCH {}", of(LEASES, "leases/provider")),
            json!({ "spec": {} }),
            NO_RIGHT,
        ),
        delete(of(CORE, "resourcequotas/liqo-tenant"), NO_RIGHT),
        case(
            format!("PATCH {}", of(CORE, "resourcequotas/liqo-tenant")),
            json!({ "spec": {} }),
            NO_RIGHT,
        ),
        case(
            format!("POST {}", of(RBAC, "rolebindings")),
            binding("stolen", "admin", CONTROLLER_MANAGER),
            NO_RIGHT,
        ),
        case(format!("POST {}", of(CORE, "pods")), plain_pod(), NO_RIGHT),
        case(
            format!("POST {}", of(CORE, "configmaps")),
            json!({ "metadata": { "name": "stolen" } }),
            NO_RIGHT,
        ),
        case(
            format!("POST {}", of(CORE, "serviceaccounts/default/token")),
            token_request(3600, &Value::Null),
            NO_RIGHT,
        ),
        delete(of(CORE, "secrets"), NO_RIGHT),
    ]
}

/// In its mapped namespaces a consumer reads and enters single pods.
fn in_its_mapped_namespace(mapped: &str, pod: &str) -> Vec<Case> {
    let of = |api: &str, rest: &str| format!("{api}/namespaces/{mapped}/{rest}");
    let own = of(CORE, &format!("pods/{pod}"));
    let eviction =
        json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod } });
    vec![
        read(of(CORE, "pods")),
        read(of(CORE, "secrets")),
        read(of(CORE, "configmaps/kube-root-ca.crt")),
        read(of(CORE, "services")),
        delete(&own, NO_RIGHT),
        case(
            format!("PATCH {own}"),
            json!({ "metadata": { "labels": { "liqo.io/shadow-pod": "x" } } }),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {own}/status"),
            json!({ "status": { "phase": "Failed" } }),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {own}/ephemeralcontainers"),
            json!({ "spec": {} }),
            NO_RIGHT,
        ),
        case(format!("POST {own}/eviction"), eviction, NO_RIGHT),
        case(
            format!("POST {own}/binding"),
            json!({ "target": { "name": "milan-1" } }),
            NO_RIGHT,
        ),
        case(format!("POST {}", of(CORE, "pods")), plain_pod(), NO_RIGHT),
        case(
            format!("POST {}", of(CORE, "serviceaccounts/default/token")),
            token_request(3600, &Value::Null),
            NO_RIGHT,
        ),
        case(
            format!("POST {}", of(RBAC, "rolebindings")),
            binding("stolen", "admin", CONTROLLER_MANAGER),
            NO_RIGHT,
        ),
        delete(
            of("/apis/networking.k8s.io/v1", "networkpolicies"),
            NO_RIGHT,
        ),
        delete(of(CORE, "limitranges"), NO_RIGHT),
        read(of(CORE, &format!("pods/{pod}/proxy/"))),
    ]
}

/// Everywhere else a consumer has no rights but to renew its token.
fn elsewhere(account: &str, session: &Value) -> Vec<Case> {
    let liqo = |rest: &str| format!("{CORE}/namespaces/{SYSTEM_NAMESPACE}/{rest}");
    let token = |of: &str| format!("POST {}", liqo(&format!("serviceaccounts/{of}/token")));
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": "x" } });
    let access = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": { "user": "x" } });
    vec![
        case(
            token(account),
            token_request(7200, session),
            "lives no longer than",
        ),
        case(
            token(account),
            token_request(3600, &Value::Null),
            "lives no longer than",
        ),
        case(
            token(CONTROLLER_MANAGER),
            token_request(3600, session),
            NO_RIGHT,
        ),
        read(liqo("secrets")),
        read(liqo("secrets/liqo-identity")),
        read(liqo(&format!("secrets/{account}"))),
        read(liqo(&format!("serviceaccounts/{account}"))),
        read(liqo("pods")),
        read(format!("{CORE}/secrets")),
        read(format!("{CORE}/pods")),
        read(format!("{CORE}/nodes")),
        read(format!("{CORE}/nodes/milan-1/proxy/pods")),
        read(format!("{CORE}/namespaces")),
        read(format!("{CORE}/namespaces/kube-system/secrets")),
        read(format!("{RECORDS}/shadowpods")),
        read(format!("{REQUESTS}/foreignclusters")),
        read(format!("{OFFERS}/peeringpolicies")),
        read(format!("{RBAC}/clusterroles")),
        read("/metrics"),
        read("/debug/pprof/profile"),
        read("/logs/"),
        delete(
            format!("{ADMISSION}/validatingadmissionpolicies/liqo-consumer-writes"),
            NO_RIGHT,
        ),
        delete(
            "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/liqo-consumers",
            NO_RIGHT,
        ),
        delete(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/shadowpods.virtualkubelet.liqo.io",
            NO_RIGHT,
        ),
        case(
            format!("POST {CERTIFICATES}"),
            certificate_request("kubernetes.io/kube-apiserver-client"),
            NO_RIGHT,
        ),
        case(
            "POST /apis/authentication.k8s.io/v1/tokenreviews",
            review,
            NO_RIGHT,
        ),
        case(
            "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
            access,
            NO_RIGHT,
        ),
        case(
            format!("POST {RBAC}/clusterrolebindings"),
            binding("stolen", "cluster-admin", account),
            NO_RIGHT,
        ),
    ]
}

pub async fn what_a_consumers_token_must_not_do(world: Arc<World>) -> Result<()> {
    let (rome, milan, namespace) = (&world.rome, &world.milan, "stolen-consumer");
    rome.offloaded_namespace(namespace, "Remote").await?;
    rome.apply(&deployment(namespace, "web", 1)).await?;
    let pod = rome
        .ready_pods(namespace, "app=web", 1)
        .await?
        .remove(0)
        .metadata
        .name
        .unwrap_or_default();
    let mapped = rome.remote_namespace(namespace, milan).await?;
    let id = rome.cluster_id().await?.parse()?;
    let account = consumer_service_account(&id);
    let uid = milan
        .kubectl(&[
            "-n",
            SYSTEM_NAMESPACE,
            "get",
            "secret",
            &account,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
        .await?;
    let session = json!({ "apiVersion": "v1", "kind": "Secret", "name": account, "uid": uid });
    let stolen = identity(
        milan,
        &token(&world, rome).await?,
        &world.scratch("stolen-consumer.kubeconfig"),
    )
    .await?;

    // The token works where it should, or the refusals would prove nothing.
    let own = format!("GET {CORE}/namespaces/{mapped}/pods/{pod}");
    ensure!(
        answer(&stolen, &case(own, Value::Null, ""), None).await?.0 == 200,
        "the token does not work at all"
    );
    let mut cases = in_its_tenant_namespace(&tenant_namespace(&id));
    cases.extend(in_its_mapped_namespace(&mapped, &pod));
    cases.extend(elsewhere(&account, &session));
    all_are_refused("a consumer", &stolen, &cases).await?;
    rome.end_namespace(namespace).await
}

/// What a manager must not do, in a namespace of the system and in one of a user.
fn beyond_a_manager(system: &str, users: &str) -> Vec<Case> {
    let of = |namespace: &str, rest: &str| format!("{CORE}/namespaces/{namespace}/{rest}");
    let bindings = |namespace: &str| format!("POST {RBAC}/namespaces/{namespace}/rolebindings");
    let eviction =
        json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "idle" } });
    let label = json!({ "metadata": { "labels": { "liqo.io/managed": "true" } } });
    let failed = json!({ "status": { "phase": "Failed" } });
    let own_role = "liqo-own-namespace";
    vec![
        case(
            format!("PATCH {}", of(system, "pods/idle/status")),
            failed,
            "which is not its own",
        ),
        case(
            format!("POST {}", of(system, "pods/idle/eviction")),
            eviction,
            "which is not its own",
        ),
        delete(of(system, "pods/idle"), "which is not its own"),
        case(
            format!("POST {}", of(system, "pods")),
            plain_pod(),
            NO_RIGHT,
        ),
        case(
            bindings(system),
            binding("stolen", own_role, CONTROLLER_MANAGER),
            "which is not its own",
        ),
        case(
            bindings("kube-system"),
            binding("stolen", own_role, CONTROLLER_MANAGER),
            "which is not its own",
        ),
        case(
            bindings(users),
            binding("stolen", own_role, CONTROLLER_MANAGER),
            "which is not its own",
        ),
        // Nobody offloaded the namespace.
        case(
            bindings(users),
            binding(
                "liqo-manager",
                "liqo-offloaded-namespace",
                CONTROLLER_MANAGER,
            ),
            "",
        ),
        case(
            bindings(SYSTEM_NAMESPACE),
            binding("stolen", "cluster-admin", CONTROLLER_MANAGER),
            "",
        ),
        case(
            format!("POST {RBAC}/clusterrolebindings"),
            binding("stolen", own_role, CONTROLLER_MANAGER),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {RBAC}/clusterroles/{own_role}"),
            json!({ "rules": [] }),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {}", of(users, "pods/idle")),
            json!({ "metadata": { "labels": { "x": "y" } } }),
            NO_RIGHT,
        ),
        read(of(users, "secrets")),
        read(of("kube-system", "secrets")),
        read(format!("{CORE}/secrets")),
        case(
            format!("POST {}", of(users, "serviceaccounts/default/token")),
            token_request(3600, &Value::Null),
            NO_RIGHT,
        ),
        case(
            format!(
                "POST {}",
                of("kube-system", "serviceaccounts/default/token")
            ),
            token_request(3600, &Value::Null),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {CORE}/namespaces/{users}"),
            label,
            "which is not its own",
        ),
        delete(format!("{CORE}/namespaces/{users}"), "which is not its own"),
        delete(format!("{CORE}/namespaces/kube-system"), ""),
        case(
            format!("PATCH {CORE}/nodes/rome-1"),
            json!({ "spec": { "unschedulable": true } }),
            "which is not a virtual one",
        ),
        case(
            format!("PATCH {CORE}/nodes/rome-1/status"),
            json!({ "status": { "phase": "x" } }),
            "which is not a virtual one",
        ),
        case(
            format!("POST {CERTIFICATES}"),
            certificate_request("kubernetes.io/kube-apiserver-client"),
            "serving certificates",
        ),
        delete(
            format!("{ADMISSION}/validatingadmissionpolicies/liqo-manager-writes"),
            NO_RIGHT,
        ),
        delete(
            format!("{ADMISSION}/validatingadmissionpolicybindings/liqo-manager-writes"),
            NO_RIGHT,
        ),
        case(
            format!("POST {}", of(SYSTEM_NAMESPACE, "pods")),
            plain_pod(),
            NO_RIGHT,
        ),
        case(
            format!(
                "PATCH /apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/{CONTROLLER_MANAGER}"
            ),
            json!({ "spec": { "replicas": 0 } }),
            NO_RIGHT,
        ),
    ]
}

/// What the program on a node must not do.
fn beyond_a_node(node: &str) -> Vec<Case> {
    let leases = format!("POST {LEASES}/namespaces/{SYSTEM_NAMESPACE}/leases");
    let lease = |name: &str, holder: &str, annotations: Value| {
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name, "annotations": annotations },
            "spec": { "holderIdentity": holder } })
    };
    let liqo = |rest: &str| format!("{CORE}/namespaces/{SYSTEM_NAMESPACE}/{rest}");
    vec![
        case(
            &leases,
            lease("liqo-gateway-6", "another-node", json!({})),
            "in the name of that node only",
        ),
        case(
            &leases,
            lease("stolen", node, json!({})),
            "only Leases of gateways",
        ),
        case(
            &leases,
            lease("liqo-gateway-6", node, json!({ "x": "x".repeat(9000) })),
            "at most 8 KiB",
        ),
        delete(
            format!("{LEASES}/namespaces/{SYSTEM_NAMESPACE}/leases/liqo-gateway-0"),
            NO_RIGHT,
        ),
        case(
            format!("POST {LEASES}/namespaces/kube-system/leases"),
            lease("stolen", node, json!({})),
            NO_RIGHT,
        ),
        read(liqo("secrets")),
        read(liqo("secrets/liqo-identity")),
        case(
            format!("PATCH {}", liqo("configmaps/liqo-tunnel-clients")),
            json!({ "data": {} }),
            NO_RIGHT,
        ),
        case(
            format!(
                "POST {}",
                liqo("serviceaccounts/liqo-controller-manager/token")
            ),
            token_request(3600, &Value::Null),
            NO_RIGHT,
        ),
        case(
            format!("PATCH {CORE}/nodes/{node}"),
            json!({ "spec": { "unschedulable": true } }),
            NO_RIGHT,
        ),
        case(format!("POST {}", liqo("pods")), plain_pod(), NO_RIGHT),
        case(
            format!(
                "POST /apis/net.liqo.io/v1alpha1/namespaces/{SYSTEM_NAMESPACE}/tunnelendpoints"
            ),
            json!({ "apiVersion": "net.liqo.io/v1alpha1", "kind": "TunnelEndpoint", "metadata": { "name": "stolen" } }),
            NO_RIGHT,
        ),
        read(format!("{CORE}/secrets")),
        read(format!("{CORE}/nodes/{node}/proxy/pods")),
    ]
}

pub async fn what_the_tokens_of_a_manager_and_of_a_node_must_not_do(
    world: Arc<World>,
) -> Result<()> {
    let (rome, system, users) = (&world.rome, "kube-stolen", "stolen-manager");
    for namespace in [system, users] {
        rome.kubectl(&["create", "namespace", namespace]).await?;
        idle_pod(rome, namespace, "idle", &json!([])).await?;
    }
    let token = rome
        .kubectl(&[
            "-n",
            SYSTEM_NAMESPACE,
            "create",
            "token",
            CONTROLLER_MANAGER,
        ])
        .await?;
    let manager = identity(
        rome,
        token.trim(),
        &world.scratch("stolen-manager.kubeconfig"),
    )
    .await?;
    let works = answer(
        &manager,
        &case(format!("GET {CORE}/nodes"), Value::Null, ""),
        None,
    )
    .await?;
    ensure!(
        works.0 == 200,
        "the manager's token does not work at all: {works:?}"
    );
    all_are_refused("a manager", &manager, &beyond_a_manager(system, users)).await?;

    let pods = rome
        .items(&[
            "-n",
            FABRIC_NAMESPACE,
            "pods",
            "--field-selector",
            "spec.nodeName=rome-1",
        ])
        .await?;
    let pod = pods
        .first()
        .and_then(|pod| pod["metadata"]["name"].as_str())
        .context("liqo-fabric does not run on rome-1")?;
    let bound = ["--bound-object-kind", "Pod", "--bound-object-name", pod];
    let create = [
        &["-n", FABRIC_NAMESPACE, "create", "token", "liqo-fabric"][..],
        &bound,
    ]
    .concat();
    let node = identity(
        rome,
        rome.kubectl(&create).await?.trim(),
        &world.scratch("stolen-node.kubeconfig"),
    )
    .await?;
    let works = answer(
        &node,
        &case(format!("GET {CORE}/nodes"), Value::Null, ""),
        None,
    )
    .await?;
    ensure!(
        works.0 == 200,
        "the node's token does not work at all: {works:?}"
    );
    all_are_refused("a node", &node, &beyond_a_node("rome-1")).await?;
    tokio::try_join!(rome.end_namespace(system), rome.end_namespace(users)).map(drop)
}
