//! The API server that a pod uses when it runs at a provider.
//!
//! The home API server gives its pods a token, its CA and its address. At a provider the pod finds
//! them in the same places: a volume of the same name with a token bound to the local pod, the home
//! CA and the home namespace, all from one Secret; the environment variables that clients read; and
//! the API server's name in the hosts file, with the address at which the provider sees it. The
//! certificate of every API server is valid for that name, and pods read the hosts file before they
//! ask the provider's DNS.
//!
//! A pod that uses no API server finds the namespace and the CA all the same: programs learn from
//! these files where they run.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{OffloadedReason, annotations};
use serde_json::{Map, Value, json};

use crate::json::name;
use crate::pod::carry::metadata::PASSED_ON;
use crate::pod::carry::{PodRefusal, listed_items};
use crate::pod::injected::{PREFIX, injected_volumes};
use crate::pod::references::ROOT_CA;
use crate::replica::name::MARK;
use crate::views::{
    ConditionView, ContainerList, ContainerView, PodView, ProjectionView, TokenProjectionView,
    VolumeMountView, VolumeView,
};

/// The names of an API server in its own cluster, without those with the cluster's domain; clients
/// use the first.
const HOSTS: [&str; 2] = ["kubernetes.default.svc", "kubernetes.default"];
/// The domain of most clusters, and of those whose domain is unknown.
const USUAL_DOMAIN: &str = "cluster.local";
const HOST_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
/// The port of the Service `kubernetes`.
const PORT: &str = "443";

/// Maximum lifetime of a token that leaves home, in seconds. Pods ask for a little more than an
/// hour by default; the API server would take that for the request of an old client, and issue a
/// token for a year.
const MAX_TOKEN_SECONDS: i64 = 3600;
/// The API server issues no token with a shorter lifetime.
const MIN_TOKEN_SECONDS: i64 = 600;
/// Minimum time between two tokens of a pod, whatever the provider says about the first.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_mins(1);
/// A pod that does not require its home API server waits at most this long for the network to a new
/// provider.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(10);

/// The API server that a pod uses at a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiServerChoice {
    None,
    /// The API server of its home cluster.
    Home {
        /// The pod must not run without it.
        required: bool,
    },
    /// The API server of the provider.
    Remote,
    /// The annotation says nothing valid. The pod is not sent; one that was sent keeps what it has.
    Unclear,
}

/// Reads the choice from a pod's annotation. Without one, a pod with a `ServiceAccount` of its own
/// and a token of it uses the home API server. The account `default` has no rights in most
/// clusters, and every pod has its token.
pub fn chosen_api_server(pod: &Value) -> Result<ApiServerChoice, PodRefusal> {
    let metadata = PodView::of(pod).metadata();
    let said = metadata.annotation(annotations::API_SERVER);
    let has_token = !injected_volumes(pod).is_empty();
    match said {
        Some("none") => Ok(ApiServerChoice::None),
        Some("remote") => Ok(ApiServerChoice::Remote),
        Some("home") if has_token => Ok(ApiServerChoice::Home { required: true }),
        Some("home") => Err(PodRefusal::new(
            OffloadedReason::Malformed.as_str(),
            format!(
                "the pod's annotation {} says home, but it mounts no token of its ServiceAccount",
                annotations::API_SERVER
            ),
        )),
        Some(other) => Err(PodRefusal::new(
            OffloadedReason::Malformed.as_str(),
            format!(
                "the pod's annotation {} says {other:.60}; it may say home, remote or none",
                annotations::API_SERVER
            ),
        )),
        None if has_token && service_account(pod) != "default" => {
            Ok(ApiServerChoice::Home { required: false })
        }
        None => Ok(ApiServerChoice::None),
    }
}

pub fn service_account(pod: &Value) -> &str {
    match PodView::of(pod).spec().service_account_name() {
        "" => "default",
        name => name,
    }
}

/// Name of the Secret for this local pod, in the remote namespace.
pub fn api_server_secret_name(uid: &str) -> String {
    format!("{SECRET}{uid}")
}

/// UID of the local pod that a Secret of this name is for.
pub(crate) fn pod_uid_of_secret(secret: &str) -> Option<&str> {
    secret.strip_prefix(SECRET)
}

const SECRET: &str = "liqo-api-server-";

/// Whether a carried pod finds its home API server through this Secret.
pub fn uses_secret(carried: &Value, secret: &str) -> bool {
    let mut volumes = PodView::of(carried).spec().volumes();
    volumes.any(|volume| volume.secret().secret_name() == Some(secret))
}

/// The way to send a pod that uses its home API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With these addresses of the API server.
    With(Vec<IpAddr>),
    Wait(Duration),
    /// Send it without, and say so in its condition.
    Without,
    Refuse,
    /// Its namespace gives providers no tokens: send it without, and say so, or refuse it if it
    /// requires one.
    NotAllowed {
        required: bool,
    },
}

/// The facts on which depends how a pod is sent that uses its home API server.
#[derive(Debug, Clone)]
pub struct ApiServerFacts {
    /// Whether the pod does not run without it.
    pub required: bool,
    /// Whether providers get tokens of the pod's namespace.
    pub allowed: bool,
    /// The addresses of the API server at the provider.
    pub addresses: Vec<IpAddr>,
    /// Time since the pod was bound to its node.
    pub bound_for: Option<Duration>,
}

/// Decides how to send a pod that uses its home API server.
pub fn decide_api_server_access(facts: ApiServerFacts) -> Start {
    let required = facts.required;
    let rest = facts.bound_for.map_or(Duration::ZERO, |bound_for| {
        NETWORK_TIMEOUT.saturating_sub(bound_for)
    });
    if !facts.allowed {
        Start::NotAllowed { required }
    } else if !facts.addresses.is_empty() {
        Start::With(facts.addresses)
    } else if required {
        Start::Refuse
    } else if rest.is_zero() {
        Start::Without
    } else {
        Start::Wait(rest)
    }
}

/// Time of the pod's binding to its node.
pub fn bound_at(pod: &Value) -> Option<Timestamp> {
    let scheduled = PodView::of(pod).status().condition("PodScheduled");
    scheduled.and_then(ConditionView::changed_at)
}

/// Makes the carried form of a local pod of a cluster with this domain find its home API server at
/// these addresses of the provider.
pub fn point_to_api_server(
    carried: &mut Value,
    home: &Value,
    secret: &str,
    addresses: &[IpAddr],
    domain: Option<&str>,
) {
    let injected = injected_volumes(home);
    let Some(spec) = carried.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let full = format!("{}.{}", HOSTS[0], domain.unwrap_or(USUAL_DOMAIN));
    let hosts = [HOSTS[0], HOSTS[1], full.as_str()];
    prepend_items(
        spec,
        "hostAliases",
        addresses
            .iter()
            .map(|address| json!({ "ip": address, "hostnames": hosts }))
            .collect(),
    );
    let source = json!({ "secretName": secret, "defaultMode": 0o644 });
    prepend_items(
        spec,
        "volumes",
        injected
            .iter()
            .map(|name| json!({ "name": name, "secret": source }))
            .collect(),
    );
    for (list, container) in containers_with_lists(spec) {
        let is_given = mount_injected(container, list, home, &injected);
        if is_given {
            set_variables(container, HOSTS[0], PORT);
        } else {
            clear_variables(container);
        }
    }
}

/// Makes a carried pod that uses no API server find none. A kubelet gives every container the
/// address of its own cluster's API server, unless the container has variables of the same names;
/// clients take an empty address for none, and say so at once. The pod finds the namespace and the
/// CA of home where it has them there.
pub fn withhold_api_server(carried: &mut Value, home: &Value) {
    if chosen_api_server(home) == Ok(ApiServerChoice::Remote) {
        return;
    }
    let injected = injected_volumes(home);
    let Some(spec) = carried.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    prepend_items(
        spec,
        "volumes",
        injected
            .iter()
            .map(|name| volume_without_token(name))
            .collect(),
    );
    for (list, container) in containers_with_lists(spec) {
        mount_injected(container, list, home, &injected);
        clear_variables(container);
    }
}

/// Whether a pod of this cluster finds the CA of its cluster in an injected volume, also at a
/// provider.
pub fn finds_ca(home: &Value) -> bool {
    !injected_volumes(home).is_empty() && chosen_api_server(home) != Ok(ApiServerChoice::Remote)
}

/// The field with the namespace of a pod.
const NAMESPACE_FIELD: &str = "metadata.namespace";

/// The volume that a pod without a token has in place of an injected one.
fn volume_without_token(name: &str) -> Value {
    volume_of_names(name, ROOT_CA, NAMESPACE_FIELD)
}

/// The same with the CA in this `ConfigMap` and the namespace in this field of the pod. A provider
/// may reflect no `ConfigMap`s, so the CA is optional.
fn volume_of_names(name: &str, config_map: &str, namespace_field: &str) -> Value {
    let namespace = json!({ "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": namespace_field } });
    json!({ "name": name, "projected": { "defaultMode": 0o644, "sources": [
        { "configMap": { "name": config_map, "items": [{ "key": "ca.crt", "path": "ca.crt" }], "optional": true } },
        { "downwardAPI": { "items": [namespace] } },
    ] } })
}

/// Whether this is such a volume. A broker has other names for the `ConfigMap` and the field.
pub(super) fn is_without_token(volume: &Value) -> bool {
    let view = VolumeView::of(volume);
    let mut sources = view.projected().sources();
    let config_map = sources.next().and_then(|source| source.config_map().name());
    let files = sources.next().map(ProjectionView::downward_api);
    let namespace = files.and_then(|files| files.items().next()?.field_ref().field_path());
    // A broker writes other names.
    let wanted = volume_of_names(
        view.name(),
        config_map
            .filter(|name| name.starts_with(&format!("{ROOT_CA}-{MARK}")))
            .unwrap_or(ROOT_CA),
        namespace
            .filter(|field| field.starts_with(&format!("metadata.annotations['{PASSED_ON}/")))
            .unwrap_or(NAMESPACE_FIELD),
    );
    view.name().starts_with(PREFIX) && wanted == *volume
}

/// The containers of a carried pod, each with the list that it is in.
fn containers_with_lists(
    spec: &mut Map<String, Value>,
) -> impl Iterator<Item = (ContainerList, &mut Map<String, Value>)> {
    let lists = spec.iter_mut().filter_map(|(field, containers)| {
        let list = ContainerList::ALL
            .into_iter()
            .find(|list| list.spec_field() == field)?;
        Some((list, containers.as_array_mut()?))
    });
    lists.flat_map(|(list, containers)| {
        containers
            .iter_mut()
            .filter_map(move |one| Some((list, one.as_object_mut()?)))
    })
}

/// Mounts the injected volumes where the container has them at home. Returns whether it has any.
fn mount_injected(
    container: &mut Map<String, Value>,
    list: ContainerList,
    home: &Value,
    injected: &BTreeSet<String>,
) -> bool {
    let before = PodView::of(home)
        .spec()
        .containers_in(list)
        .find(|before| before.json().get("name") == container.get("name"));
    let mounts = before.into_iter().flat_map(ContainerView::volume_mounts);
    let mounts: Vec<Value> = mounts
        .map(VolumeMountView::json)
        .filter(|mount| injected.contains(name(mount)))
        .cloned()
        .collect();
    let is_mounted = !mounts.is_empty();
    if is_mounted {
        prepend_items(container, "volumeMounts", mounts);
    }
    is_mounted
}

fn clear_variables(container: &mut Map<String, Value>) {
    let chooses = listed_items(container, "env")
        .iter()
        .any(|variable| name(variable) == HOST_VARIABLE);
    // What a ConfigMap or Secret sets is not known here, and a variable of the container would
    // override it.
    if !chooses && listed_items(container, "envFrom").is_empty() {
        set_variables(container, "", "");
    }
}

/// Sets the variables that clients read, except those that the container sets itself.
fn set_variables(container: &mut Map<String, Value>, host: &str, port: &str) {
    let own = listed_items(container, "env");
    let variables = [
        (HOST_VARIABLE, host),
        ("KUBERNETES_SERVICE_PORT", port),
        ("KUBERNETES_SERVICE_PORT_HTTPS", port),
    ];
    let variables = variables
        .iter()
        .filter(|(variable, _)| own.iter().all(|known| name(known) != *variable))
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    prepend_items(container, "env", variables);
}

fn prepend_items(object: &mut Map<String, Value>, field: &str, mut first: Vec<Value>) {
    if let Some(Value::Array(others)) = object.get_mut(field).map(Value::take) {
        first.extend(others);
    }
    if !first.is_empty() {
        object.insert(field.into(), first.into());
    }
}

/// The token to request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedToken {
    /// The audience; `None` means the API server itself.
    pub audience: Option<String>,
    /// Lifetime in seconds.
    pub seconds: i64,
}

/// The token that the volume of this pod requests.
pub fn requested_token(home: &Value) -> RequestedToken {
    let volumes = PodView::of(home)
        .spec()
        .volumes()
        .filter(|volume| injected_volumes(home).contains(volume.name()));
    let source = volumes
        .flat_map(|volume| volume.projected().sources())
        .find_map(ProjectionView::service_account_token);
    let seconds = source
        .and_then(TokenProjectionView::expiration_seconds)
        .unwrap_or(MAX_TOKEN_SECONDS);
    let audience = source
        .map(TokenProjectionView::audience)
        .filter(|audience| !audience.is_empty());
    RequestedToken {
        audience: audience.map(str::to_owned),
        seconds: seconds.clamp(MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS),
    }
}

/// Computes when to renew a token with this lifetime: early enough for a kubelet to bring the new
/// one to the pod before the old one ends.
pub fn token_renewal_time(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_add(SignedDuration::from_secs(seconds * 4 / 5))
        .unwrap_or(now)
}

/// Time until a token must be requested; zero means now. `renew_at` is in the record of the current
/// token, where the provider may change it; `asked` is the time since this process last requested
/// one.
pub fn time_until_renewal(
    renew_at: Option<Timestamp>,
    asked: Option<Duration>,
    now: Timestamp,
) -> Duration {
    let due = renew_at.map_or(Duration::ZERO, |at| {
        Duration::try_from(at.duration_since(now)).unwrap_or_default()
    });
    let due = due.min(Duration::from_secs(MAX_TOKEN_SECONDS.unsigned_abs()));
    due.max(asked.map_or(Duration::ZERO, |ago| {
        MIN_RENEWAL_INTERVAL.saturating_sub(ago)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{items_at, text_at};
    use crate::pod::carry::{ProviderRules, RemoteIdentity, outgoing_pod, remote_pod};
    use crate::replica::{kind::ReplicaKind, name::replica_name};

    fn pod(account: &str, annotation: Option<&str>) -> Value {
        let mount = json!({ "name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true });
        json!({
            "metadata": { "name": "web", "namespace": "demo",
                "annotations": annotation.map(|said| json!({ annotations::API_SERVER: said })) },
            "spec": {
                "serviceAccountName": account,
                "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["db"] }],
                "volumes": [{ "name": "v", "emptyDir": {} }, { "name": "kube-api-access-x", "projected": { "sources": [
                    { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
                    { "configMap": { "name": "kube-root-ca.crt" } } ] } }],
                "initContainers": [{ "name": "without", "image": "i" }],
                "containers": [{ "name": "c", "image": "i", "volumeMounts": [{ "name": "v", "mountPath": "/v" }, mount],
                    "env": [{ "name": "KUBERNETES_SERVICE_PORT", "value": "8443" }] }],
            },
        })
    }

    fn bare(account: &str, annotation: Option<&str>) -> Value {
        let mut pod = pod(account, annotation);
        pod["spec"]["volumes"] = json!([]);
        pod
    }

    #[test]
    fn a_pod_with_an_account_of_its_own_wants_its_home_and_one_that_says_something_gets_that() {
        let home = |required| Ok(ApiServerChoice::Home { required });
        assert_eq!(chosen_api_server(&pod("reader", None)), home(false));
        assert_eq!(
            chosen_api_server(&pod("default", None)),
            Ok(ApiServerChoice::None)
        );
        assert_eq!(
            chosen_api_server(&bare("reader", None)),
            Ok(ApiServerChoice::None)
        );
        assert_eq!(chosen_api_server(&pod("default", Some("home"))), home(true));
        assert_eq!(
            chosen_api_server(&pod("reader", Some("none"))),
            Ok(ApiServerChoice::None)
        );
        assert_eq!(
            chosen_api_server(&pod("reader", Some("remote"))),
            Ok(ApiServerChoice::Remote)
        );
        for wrong in [pod("reader", Some("milan")), bare("reader", Some("home"))] {
            assert_eq!(chosen_api_server(&wrong).unwrap_err().reason, "Malformed");
            assert_eq!(
                outgoing_pod(&wrong, &[].into()).unwrap_err().reason,
                "Malformed"
            );
        }
    }

    #[test]
    fn what_a_client_goes_by_stands_where_it_stands_at_home_and_the_provider_takes_it_as_it_is() {
        let home = pod("reader", None);
        let mut carried = outgoing_pod(&home, &[].into()).unwrap();
        point_to_api_server(
            &mut carried,
            &home,
            "liqo-api-server-u",
            &["10.71.0.2".parse().unwrap()],
            Some("corp.local"),
        );
        let identity = RemoteIdentity {
            namespace: "demo-rome-x",
            name: "web",
            consumer: "c",
            pool: "default",
            shadow_pod: "u",
            home_namespace: "demo",
        };
        let remote = remote_pod(&carried, &identity, &ProviderRules::default()).unwrap();
        let spec = &remote["spec"];
        assert_eq!(
            spec["volumes"],
            json!([{ "name": "kube-api-access-x", "secret": { "secretName": replica_name(ReplicaKind::Secret, "liqo-api-server-u"), "defaultMode": 420 } },
                { "name": "v", "emptyDir": {} }])
        );
        let container = &spec["containers"][0];
        assert_eq!(
            container["volumeMounts"][0],
            json!({ "name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true })
        );
        assert_eq!(container["volumeMounts"].as_array().map(Vec::len), Some(2));
        assert_eq!(
            container["env"],
            json!([{ "name": "KUBERNETES_SERVICE_HOST", "value": "kubernetes.default.svc" },
                { "name": "KUBERNETES_SERVICE_PORT_HTTPS", "value": "443" }, { "name": "KUBERNETES_SERVICE_PORT", "value": "8443" }])
        );
        assert_eq!(
            spec["hostAliases"][0],
            json!({ "ip": "10.71.0.2",
            "hostnames": ["kubernetes.default.svc", "kubernetes.default", "kubernetes.default.svc.corp.local"] })
        );
        assert_eq!(spec["hostAliases"][1]["ip"], "192.0.2.1");
        let hosts = items_at(&spec["initContainers"][0], "/env")
            .iter()
            .map(|variable| text_at(variable, "/value"));
        assert_eq!(
            hosts.collect::<Vec<_>>(),
            [Some(""); 3],
            "what has no token there has none here"
        );
        assert!(spec["initContainers"][0].get("volumeMounts").is_none());
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert!(
            uses_secret(&carried, "liqo-api-server-u")
                && !uses_secret(&carried, "liqo-api-server-v")
        );
    }

    #[test]
    fn an_ephemeral_container_finds_the_api_server_if_it_mounts_the_token_and_otherwise_none() {
        let mut home = pod("reader", None);
        let mount = home["spec"]["containers"][0]["volumeMounts"][1].clone();
        home["spec"]["ephemeralContainers"] = json!([{ "name": "with", "image": "i", "volumeMounts": [mount] }, { "name": "without", "image": "i" }]);
        let hosts = |carried: &Value| {
            let containers = items_at(carried, "/spec/ephemeralContainers").iter();
            containers
                .map(|one| text_at(one, "/env/0/value").map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let (none, ours) = (Some(String::new()), Some(HOSTS[0].to_owned()));
        let mut given = outgoing_pod(&home, &[].into()).unwrap();
        point_to_api_server(
            &mut given,
            &home,
            "liqo-api-server-u",
            &["10.71.0.2".parse().unwrap()],
            None,
        );
        assert_eq!(hosts(&given), [ours, none.clone()]);
        assert_eq!(
            given["spec"]["ephemeralContainers"][0]["volumeMounts"],
            json!([mount])
        );
        let mut withheld = outgoing_pod(&home, &[].into()).unwrap();
        withhold_api_server(&mut withheld, &home);
        assert_eq!(hosts(&withheld), [none.clone(), none]);
        assert_eq!(
            withheld["spec"]["ephemeralContainers"][0]["volumeMounts"],
            json!([mount])
        );
    }

    #[test]
    fn a_pod_that_uses_no_api_server_is_not_told_the_address_of_the_providers() {
        let home = pod("default", None);
        let sent = |home: &Value| {
            let mut carried = outgoing_pod(home, &[].into()).unwrap();
            withhold_api_server(&mut carried, home);
            carried["spec"].clone()
        };
        let variables = |container: &Value| -> Vec<(String, String)> {
            let said =
                |variable: &Value| text_at(variable, "/value").unwrap_or_default().to_owned();
            items_at(container, "/env")
                .iter()
                .map(|variable| (name(variable).to_owned(), said(variable)))
                .collect()
        };
        let all = |of_port: &str| {
            [
                ("KUBERNETES_SERVICE_HOST", ""),
                ("KUBERNETES_SERVICE_PORT_HTTPS", ""),
                ("KUBERNETES_SERVICE_PORT", of_port),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let spec = sent(&home);
        assert_eq!(
            variables(&spec["containers"][0]),
            all("8443"),
            "what the pod sets itself stays"
        );
        let mut of_init = variables(&spec["initContainers"][0]);
        of_init.sort();
        let mut wanted = all("");
        wanted.sort();
        assert_eq!(of_init, wanted);

        let mut with_map = home;
        with_map["spec"]["initContainers"][0]["envFrom"] =
            json!([{ "configMapRef": { "name": "endpoint" } }]);
        assert!(
            sent(&with_map)["initContainers"][0].get("env").is_none(),
            "a ConfigMap may set them"
        );
        let proxy = json!([{ "name": "KUBERNETES_SERVICE_HOST", "value": "proxy" }]);
        with_map["spec"]["containers"][0]["env"] = proxy.clone();
        assert_eq!(
            sent(&with_map)["containers"][0]["env"],
            proxy,
            "it uses an API server of its own choice"
        );
        let remote = pod("reader", Some("remote"));
        assert!(
            sent(&remote)["initContainers"][0].get("env").is_none(),
            "it uses the provider's"
        );
    }

    #[test]
    fn a_pod_without_a_token_finds_the_namespace_and_the_ca_of_home() {
        let identity = RemoteIdentity {
            namespace: "demo-rome",
            name: "web",
            consumer: "c",
            pool: "p",
            shadow_pod: "u",
            home_namespace: "demo",
        };
        // The policy of the provider allows no volumes that pods name, and no ConfigMaps.
        let strict = ProviderRules {
            volume_types: ["emptyDir".into()].into(),
            reflected_kinds: vec![],
            ..ProviderRules::default()
        };
        let remote = |home: &Value| {
            let mut carried = outgoing_pod(home, &[].into()).unwrap();
            withhold_api_server(&mut carried, home);
            remote_pod(&carried, &identity, &strict).unwrap()
        };
        for (account, said) in [
            ("default", None),
            ("reader", Some("none")),
            ("reader", None),
        ] {
            let home = pod(account, said);
            assert!(finds_ca(&home));
            let there = remote(&home);
            let volume = &there["spec"]["volumes"][0];
            assert_eq!(
                volume["projected"]["sources"],
                json!([
                    { "configMap": { "name": replica_name(ReplicaKind::ConfigMap, "kube-root-ca.crt"), "optional": true,
                        "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                    { "downwardAPI": { "items": [{ "path": "namespace",
                        "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.labels['liqo.io/home-namespace']" } }] } },
                ])
            );
            assert_eq!(
                there["metadata"]["labels"]["liqo.io/home-namespace"],
                "demo"
            );
            let mount = json!({ "name": volume["name"], "readOnly": true,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" });
            assert_eq!(there["spec"]["containers"][0]["volumeMounts"][0], mount);
            assert!(
                there["spec"]["initContainers"][0]
                    .get("volumeMounts")
                    .is_none(),
                "it has none at home"
            );
            // At a broker, the pod is a pod of a home in turn.
            assert!(!finds_ca(&there), "it names the ConfigMap itself");
            assert_eq!(remote(&there)["spec"]["volumes"][0]["name"], volume["name"]);
        }
        assert!(!finds_ca(&bare("default", None)) && !finds_ca(&pod("reader", Some("remote"))));
        assert_eq!(remote(&bare("default", None))["spec"].get("volumes"), None);
    }

    #[test]
    fn a_volume_of_that_name_with_anything_else_needs_the_providers_permission() {
        assert!(is_without_token(&volume_without_token("kube-api-access-x")));
        assert!(!is_without_token(&volume_without_token("other")));
        for (path, other) in [
            ("/projected/sources/0/configMap/name", "settings"),
            (
                "/projected/sources/1/downwardAPI/items/0/fieldRef/fieldPath",
                "spec.serviceAccountName",
            ),
        ] {
            let mut more = volume_without_token("kube-api-access-x");
            *more.pointer_mut(path).unwrap() = other.into();
            assert!(!is_without_token(&more), "{path}");
        }
        let mut more = volume_without_token("kube-api-access-x");
        more["projected"]["sources"][1] = json!({ "secret": { "name": "s" } });
        assert!(!is_without_token(&more));
        more["projected"]["sources"][0]["configMap"]["items"] =
            json!([{ "key": "k", "path": "k" }]);
        assert!(
            !is_without_token(&more)
                && !is_without_token(&json!({ "name": "kube-api-access-x", "emptyDir": {} }))
        );
    }

    #[test]
    fn only_a_provider_that_allows_it_gives_a_pod_its_own_token() {
        let identity = RemoteIdentity {
            namespace: "n",
            name: "web",
            consumer: "c",
            pool: "p",
            shadow_pod: "u",
            home_namespace: "demo",
        };
        let sent = |said: Option<&str>, allowed: bool| {
            let carried = outgoing_pod(&pod("reader", said), &[].into()).unwrap();
            remote_pod(
                &carried,
                &identity,
                &ProviderRules {
                    api_server: allowed,
                    ..ProviderRules::default()
                },
            )
        };
        assert_eq!(
            sent(Some("remote"), true).unwrap()["spec"]["automountServiceAccountToken"],
            true
        );
        assert_eq!(
            sent(Some("remote"), false).unwrap_err().reason,
            "ApiServerNotAllowed"
        );
        for said in [None, Some("none"), Some("home")] {
            assert_eq!(
                sent(said, true).unwrap()["spec"]["automountServiceAccountToken"],
                false
            );
        }
    }

    #[test]
    fn without_a_way_there_a_pod_that_requires_it_stays_and_another_waits_a_little_and_starts() {
        let address: IpAddr = "10.71.0.2".parse().unwrap();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let start = |required, addresses, bound_for| {
            decide_api_server_access(ApiServerFacts {
                required,
                allowed: true,
                addresses,
                bound_for,
            })
        };
        assert_eq!(
            start(true, vec![address], seconds(0)),
            Start::With(vec![address])
        );
        assert_eq!(start(true, vec![], seconds(100)), Start::Refuse);
        assert_eq!(
            start(false, vec![], seconds(4)),
            Start::Wait(Duration::from_secs(6))
        );
        assert_eq!(start(false, vec![], seconds(10)), Start::Without);
        assert_eq!(start(false, vec![], None), Start::Without);
        let pod = json!({ "status": { "conditions": [{ "type": "PodScheduled", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        assert_eq!(bound_at(&pod), "2026-01-01T00:00:00Z".parse().ok());
    }

    #[test]
    fn where_the_namespace_does_not_allow_it_no_pod_is_sent_with_a_token_even_if_there_is_a_way() {
        let address: IpAddr = "10.71.0.2".parse().unwrap();
        for required in [true, false] {
            assert_eq!(
                decide_api_server_access(ApiServerFacts {
                    required,
                    allowed: false,
                    addresses: vec![address],
                    bound_for: None,
                }),
                Start::NotAllowed { required }
            );
        }
    }

    #[test]
    fn no_token_lives_longer_than_an_hour() {
        let mut home = pod("reader", None);
        assert_eq!(
            requested_token(&home),
            RequestedToken {
                audience: None,
                seconds: 3600
            }
        );
        for (wanted, given) in [(7200, 3600), (60, 600), (900, 900)] {
            let source = json!({ "expirationSeconds": wanted, "audience": "vault" });
            home["spec"]["volumes"][1]["projected"]["sources"][0]["serviceAccountToken"] = source;
            assert_eq!(
                requested_token(&home),
                RequestedToken {
                    audience: Some("vault".into()),
                    seconds: given
                }
            );
        }
    }

    #[test]
    fn a_token_is_renewed_after_four_fifths_of_its_life_and_no_provider_makes_us_ask_without_end() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let due = token_renewal_time(now, 600);
        assert_eq!(due.to_string(), "2026-01-01T00:08:00Z");
        let seconds = Duration::from_secs;
        assert_eq!(time_until_renewal(Some(due), None, now), seconds(480));
        assert_eq!(time_until_renewal(Some(due), None, due), Duration::ZERO);
        assert_eq!(time_until_renewal(None, None, now), Duration::ZERO);
        assert_eq!(
            time_until_renewal(Some(now), Some(seconds(10)), due),
            seconds(50)
        );
        assert_eq!(
            time_until_renewal(None, Some(seconds(61)), now),
            Duration::ZERO
        );
        assert_eq!(
            time_until_renewal("2027-01-01T00:00:00Z".parse().ok(), None, now),
            seconds(3600)
        );
    }

    #[test]
    fn a_secret_is_one_pods() {
        assert_eq!(pod_uid_of_secret(&api_server_secret_name("u")), Some("u"));
        assert_eq!(pod_uid_of_secret("web"), None);
    }
}
