//! The addresses at which other clusters reach this one.
//!
//! The user's settings take precedence. Other values come from the cluster: the Service of the auth
//! endpoint, `ConfigMap` `kube-public/cluster-info`, control-plane nodes. Liqo never announces an
//! address that means the machine itself.

use std::net::IpAddr;

use data_encoding::BASE64;
use http::Uri;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use liqo_api::conditions::DesiredCondition;
use liqo_api::{ADDRESSES_KNOWN, AUTH_SERVICE, AddressesKnownReason, ClusterConfigSpec};
use serde::Deserialize;

use crate::protocol::GrantedApiServer;

/// The addresses by which other clusters reach this one. If one is not known, the text says what to
/// do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedAddresses {
    /// URL of the auth endpoint.
    pub auth_url: Result<String, String>,
    /// URL and CA of the API server.
    pub api_server: Result<GrantedApiServer, String>,
}

/// The objects that addresses can be derived from.
#[derive(Clone, Debug, Default)]
pub struct AddressSources {
    /// Service `liqo-auth`.
    pub auth_service: Option<Service>,
    /// Nodes of the control plane, else some others.
    pub nodes: Vec<Node>,
    /// `ConfigMap` `kube-public/cluster-info`.
    pub cluster_info: Option<ConfigMap>,
    /// `ConfigMap` `kube-root-ca.crt` of Liqo's namespace.
    pub root_ca: Option<ConfigMap>,
}

/// Finds the addresses to give out.
pub fn find_addresses(
    spec: &ClusterConfigSpec,
    environment: &AddressSources,
) -> AnnouncedAddresses {
    AnnouncedAddresses {
        auth_url: auth_url(spec, environment),
        api_server: api_server(spec, environment),
    }
}

fn auth_url(spec: &ClusterConfigSpec, environment: &AddressSources) -> Result<String, String> {
    let flag = "authentication.address";
    if let Some(url) = &spec.authentication.address {
        return checked_url(url, flag);
    }
    let unset =
        |why: &str| format!("{why}: set it with `liqoctl install --set {flag}=https://HOST:PORT`");
    let Some(service) = environment
        .auth_service
        .as_ref()
        .and_then(|service| service.spec.as_ref())
    else {
        return Err(unset(&format!(
            "there is no Service {AUTH_SERVICE} to take the address of the auth endpoint from"
        )));
    };
    let port = service.ports.as_ref().and_then(|ports| ports.first());
    let status = environment
        .auth_service
        .as_ref()
        .and_then(|service| service.status.as_ref());
    let ingress =
        status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref()?.first());
    if let (Some(host), Some(port)) = (
        ingress.and_then(|ingress| ingress.ip.as_ref().or(ingress.hostname.as_ref())),
        port,
    ) {
        return Ok(https_url(host, port.port));
    }
    let Some(node_port) = port.and_then(|port| port.node_port) else {
        return Err(unset(&format!(
            "Service {AUTH_SERVICE} has neither a load balancer's address nor a node port"
        )));
    };
    match internal_ip(&environment.nodes) {
        Some(host) => Ok(https_url(&host, node_port)),
        None => Err(unset(
            "no node has an InternalIP that other machines can reach",
        )),
    }
}

fn api_server(
    spec: &ClusterConfigSpec,
    environment: &AddressSources,
) -> Result<GrantedApiServer, String> {
    let info = environment
        .cluster_info
        .as_ref()
        .and_then(read_cluster_info);
    let root_ca = environment
        .root_ca
        .as_ref()
        .and_then(|map| map.data.as_ref()?.get("ca.crt").cloned());
    let published = info
        .as_ref()
        .map(|info| info.ca.clone())
        .filter(|ca| !ca.is_empty());
    let found = match (published, root_ca) {
        (Some(published), Some(root_ca)) => Some(join_certificates(published, &root_ca)),
        (published, root_ca) => published.or(root_ca),
    };
    let Some(ca) = spec.api_server.ca.clone().or(found) else {
        return Err("the CA of the API server was not found: set it with `liqoctl install --set apiServer.ca=...`".to_owned());
    };
    if let Some(url) = &spec.api_server.address {
        return Ok(GrantedApiServer {
            url: checked_url(url, "apiServer.address")?,
            ca,
        });
    }
    if let Some(url) = info.and_then(|info| checked_url(&info.url, "apiServer.address").ok()) {
        return Ok(GrantedApiServer { url, ca });
    }
    let control_plane: Vec<Node> = environment
        .nodes
        .iter()
        .filter(|node| is_control_plane(node))
        .cloned()
        .collect();
    match internal_ip(&control_plane) {
        Some(host) => Ok(GrantedApiServer { url: https_url(&host, 6443), ca }),
        None => Err("the address of the API server was not found: set it with `liqoctl install --set apiServer.address=https://HOST:PORT`".to_owned()),
    }
}

/// The published CA certificates, and then those that the cluster's own pods verify with, each
/// once. While a cluster gets a new CA, one of the two is often older than the other.
fn join_certificates(published: String, root_ca: &str) -> String {
    let mut all = published;
    for certificate in root_ca
        .split_inclusive("-----END CERTIFICATE-----")
        .map(str::trim)
    {
        if !all.contains(certificate) {
            all = format!("{}\n{certificate}\n", all.trim_end());
        }
    }
    all
}

/// Checks a URL that other clusters will get.
fn checked_url(url: &str, flag: &str) -> Result<String, String> {
    let host = url
        .parse::<Uri>()
        .ok()
        .filter(|uri| uri.scheme_str() == Some("https"))
        .and_then(|uri| uri.host().map(str::to_owned));
    match host {
        None => Err(format!(
            "{url:?} is not an address like https://203.0.113.5:6443: correct `--set {flag}`"
        )),
        Some(host) if is_local(&host) => Err(format!(
            "only the machine itself can reach {url}: set an address that other clusters can reach with `--set {flag}`"
        )),
        Some(_) => Ok(url.trim_end_matches('/').to_owned()),
    }
}

/// Whether the host part of a URL means the machine itself.
pub fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(only_local)
}

/// Whether an address means the machine that uses it, or its link, where services of clouds give
/// out credentials.
pub fn only_local(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_of_link = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    address.is_loopback() || address.is_unspecified() || is_of_link
}

fn https_url(host: &str, port: i32) -> String {
    if host.contains(':') {
        format!("https://[{host}]:{port}")
    } else {
        format!("https://{host}:{port}")
    }
}

fn is_control_plane(node: &Node) -> bool {
    let found = node.metadata.labels.as_ref();
    found.is_some_and(|labels| {
        labels.keys().any(|key| {
            key == "node-role.kubernetes.io/control-plane"
                || key == "node-role.kubernetes.io/master"
        })
    })
}

/// The `InternalIP` of the first node by name, so that it does not change at random. Control-plane
/// nodes come first.
fn internal_ip(nodes: &[Node]) -> Option<String> {
    let mut candidates: Vec<(bool, Option<&String>, &str)> = nodes
        .iter()
        .filter_map(|node| {
            let addresses = node.status.as_ref()?.addresses.as_ref()?;
            let address = addresses
                .iter()
                .find(|address| address.type_ == "InternalIP" && !is_local(&address.address))?;
            Some((
                !is_control_plane(node),
                node.metadata.name.as_ref(),
                address.address.as_str(),
            ))
        })
        .collect();
    candidates.sort_unstable();
    candidates
        .first()
        .map(|(_, _, address)| (*address).to_owned())
}

#[derive(Deserialize)]
struct PublishedKubeconfig {
    clusters: Vec<PublishedCluster>,
}

#[derive(Deserialize)]
struct PublishedCluster {
    cluster: PublishedServer,
}

#[derive(Deserialize)]
struct PublishedServer {
    server: String,
    #[serde(rename = "certificate-authority-data", default)]
    ca: String,
}

/// The API server as kubeadm and others publish it, in the form of a kubeconfig.
fn read_cluster_info(map: &ConfigMap) -> Option<GrantedApiServer> {
    let text = map.data.as_ref()?.get("kubeconfig")?;
    let config: PublishedKubeconfig = serde_saphyr::from_str(text).ok()?;
    let server = config.clusters.into_iter().next()?.cluster;
    let ca = BASE64
        .decode(server.ca.as_bytes())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_default();
    Some(GrantedApiServer {
        url: server.server,
        ca,
    })
}

/// Condition `AddressesKnown`.
pub fn addresses_condition(addresses: &AnnouncedAddresses) -> DesiredCondition {
    match (&addresses.auth_url, &addresses.api_server) {
        (Ok(auth), Ok(server)) => DesiredCondition::yes(
            ADDRESSES_KNOWN,
            AddressesKnownReason::Found,
            format!("auth endpoint {auth}, API server {}", server.url),
        ),
        (Err(problem), _) => DesiredCondition::no(
            ADDRESSES_KNOWN,
            AddressesKnownReason::AuthenticationAddress,
            problem,
        ),
        (_, Err(problem)) => DesiredCondition::no(
            ADDRESSES_KNOWN,
            AddressesKnownReason::ApiServerAddress,
            problem,
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn node(name: &str, address: &str, control_plane: bool) -> Node {
        let labels = if control_plane {
            json!({"node-role.kubernetes.io/control-plane": ""})
        } else {
            json!({})
        };
        json(json!({
            "metadata": {"name": name, "labels": labels},
            "status": {"addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]},
        }))
    }

    fn environment() -> AddressSources {
        AddressSources {
            auth_service: Some(json(
                json!({"spec": {"ports": [{"port": 443, "nodePort": 30443}]}}),
            )),
            nodes: vec![node("b", "10.0.0.2", false), node("c", "10.0.0.3", true)],
            cluster_info: None,
            root_ca: Some(json(json!({"data": {"ca.crt": "root"}}))),
        }
    }

    fn info(server: &str) -> ConfigMap {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    certificate-authority-data: cGVt\n    server: {server}\n"
        );
        json(json!({"data": {"kubeconfig": text}}))
    }

    #[test]
    fn what_the_user_set_counts() {
        let mut spec = ClusterConfigSpec::default();
        spec.authentication.address = Some("https://auth.example/".into());
        spec.api_server.address = Some("https://api.example:6443".into());
        spec.api_server.ca = Some("mine".into());
        let found = find_addresses(&spec, &environment());
        assert_eq!(found.auth_url.unwrap(), "https://auth.example");
        assert_eq!(
            found.api_server.unwrap(),
            GrantedApiServer {
                url: "https://api.example:6443".into(),
                ca: "mine".into()
            }
        );
    }

    #[test]
    fn a_node_port_is_reached_at_a_control_plane_node_if_there_is_one() {
        let spec = ClusterConfigSpec::default();
        assert_eq!(
            find_addresses(&spec, &environment()).auth_url.unwrap(),
            "https://10.0.0.3:30443"
        );
        let environment = AddressSources {
            nodes: vec![node("z", "10.0.0.9", false), node("b", "10.0.0.2", false)],
            ..environment()
        };
        assert_eq!(
            find_addresses(&spec, &environment).auth_url.unwrap(),
            "https://10.0.0.2:30443"
        );
    }

    #[test]
    fn a_load_balancer_goes_before_a_node_port() {
        let service = json!({
            "spec": {"ports": [{"port": 443, "nodePort": 30443}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}},
        });
        let environment = AddressSources {
            auth_service: Some(json(service)),
            ..environment()
        };
        assert_eq!(
            find_addresses(&ClusterConfigSpec::default(), &environment)
                .auth_url
                .unwrap(),
            "https://203.0.113.9:443"
        );
    }

    #[test]
    fn the_api_server_is_taken_from_cluster_info_else_from_the_control_plane() {
        let spec = ClusterConfigSpec::default();
        let server = find_addresses(&spec, &environment()).api_server.unwrap();
        assert_eq!(
            server,
            GrantedApiServer {
                url: "https://10.0.0.3:6443".into(),
                ca: "root".into()
            }
        );
        let published = AddressSources {
            cluster_info: Some(info("https://203.0.113.5:6443")),
            ..environment()
        };
        let server = find_addresses(&spec, &published).api_server.unwrap();
        assert_eq!(server.url, "https://203.0.113.5:6443");
        // A published address that only the machine itself can reach helps nobody.
        let local = AddressSources {
            cluster_info: Some(info("https://127.0.0.1:6443")),
            ..environment()
        };
        assert_eq!(
            find_addresses(&spec, &local).api_server.unwrap().url,
            "https://10.0.0.3:6443"
        );
    }

    #[test]
    fn consumers_get_the_published_ca_and_that_of_the_clusters_own_pods() {
        let ca = |root_ca: &str| {
            let root_ca = Some(json(json!({"data": {"ca.crt": root_ca}})));
            let environment = AddressSources {
                cluster_info: Some(info("https://203.0.113.5:6443")),
                root_ca,
                ..environment()
            };
            find_addresses(&ClusterConfigSpec::default(), &environment)
                .api_server
                .unwrap()
                .ca
        };
        assert_eq!(ca("pem\n"), "pem", "usually they are the same");
        assert_eq!(ca("new\n"), "pem\nnew\n");
        let [first, second] =
            ["pem", "new"].map(|name| format!("{name}\n-----END CERTIFICATE-----\n"));
        assert_eq!(
            ca(&format!("{first}{second}{second}")),
            format!("pem\n{first}{second}"),
            "each once"
        );
    }

    #[test]
    fn local_addresses_are_refused_with_the_flag_to_set() {
        let mut spec = ClusterConfigSpec::default();
        for url in [
            "https://127.0.0.1:1",
            "https://localhost:1",
            "https://[::1]:1",
            "https://0.0.0.0:1",
            "http://10.0.0.1",
            "10.0.0.1",
        ] {
            spec.authentication.address = Some(url.into());
            spec.api_server.address = Some(url.into());
            let found = find_addresses(&spec, &environment());
            assert!(
                found
                    .auth_url
                    .unwrap_err()
                    .contains("--set authentication.address"),
                "{url}"
            );
            assert!(
                found
                    .api_server
                    .unwrap_err()
                    .contains("--set apiServer.address"),
                "{url}"
            );
        }
    }

    #[test]
    fn where_nothing_is_found_the_text_says_what_to_set() {
        let found = find_addresses(&ClusterConfigSpec::default(), &AddressSources::default());
        let wanted = addresses_condition(&found);
        assert_eq!(
            (wanted.status, wanted.reason.as_str()),
            (Some(false), "AuthenticationAddress")
        );
        assert!(found.api_server.unwrap_err().contains("--set apiServer.ca"));
    }

    #[test]
    fn addresses_that_mean_the_machine_itself_are_known() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
        ] {
            assert!(only_local(text.parse().unwrap()), "{text}");
        }
        assert!(!only_local("10.0.0.1".parse().unwrap()));
    }
}
