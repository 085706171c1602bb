//! A remote pod resolves names as at home: `web.demo` is a Service in the home namespace `demo`,
//! which may be called `demo-rome-x7k2qd` here, in a cluster with another domain.
//!
//! The pod asks Liqo's resolver instead of the cluster's own, with the search domains that it would
//! have at home: then its `/etc/resolv.conf` differs only in the address of the name server. The
//! resolver translates the names.

use std::net::IpAddr;

use liqo_api::{NamespaceMap, annotations};
use serde_json::{Map, Value, json};

use crate::dns_names;
use crate::json::name;
use crate::views::PodSpecView;

/// Maximum number of name servers of a pod, as the API server allows.
const MAX_SERVERS: usize = 3;
/// Maximum number of search domains of a pod, as the API server allows.
const MAX_SEARCHES: usize = 32;
/// Maximum length of all search domains of a pod in characters, with spaces between them, as the
/// API server allows.
const MAX_SEARCHES_LEN: usize = 2048;
/// Maximum length of a cluster's domain: the search domain of a namespace with the longest name is
/// a valid name.
const MAX_DOMAIN_LEN: usize = 253 - 63 - ".svc.".len();

/// Liqo's resolver in this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterResolver {
    /// The addresses of its Service.
    pub addresses: Vec<IpAddr>,
    /// The domain of the pods' home cluster, such as `cluster.local`.
    pub domain: String,
    /// Whether one of its pods is ready.
    pub is_ready: bool,
}

/// The domain that a consumer announces for its cluster. `None` if it announces none, or no valid
/// one.
pub fn announced_domain(map: &NamespaceMap) -> Option<&str> {
    let domain = map
        .metadata
        .annotations
        .as_ref()?
        .get(annotations::CLUSTER_DOMAIN)?;
    (domain.len() <= MAX_DOMAIN_LEN && dns_names::is_dns_name(domain)).then_some(domain)
}

/// Reason and message of an event of a new pod that does not resolve names as at home.
pub fn resolver_warning(
    resolver: Option<&ClusterResolver>,
) -> Option<(&'static str, &'static str)> {
    match resolver {
        None => Some((
            "NoResolver",
            "the cluster that runs the pod has no Service liqo-dns, or its manager does not know the cluster's domain: the pod resolves \
             names as they are there, not as at home, until it is created again",
        )),
        Some(ClusterResolver {
            is_ready: false, ..
        }) => Some((
            "ResolverNotReady",
            "no pod of liqo-dns is ready in the cluster that runs the pod: the pod resolves no name until one is",
        )),
        Some(_) => None,
    }
}

/// Whether a pod asks the name servers of its cluster. No remote pod is in the network of its node.
pub fn uses_cluster_dns(spec: &Value) -> bool {
    matches!(
        PodSpecView::of(spec).dns_policy(),
        None | Some("ClusterFirst" | "ClusterFirstWithHostNet")
    )
}

/// Lets a pod of this home namespace ask the resolver, unless the pod chose other name servers than
/// the cluster's.
pub fn use_resolver(spec: &mut Value, home_namespace: &str, resolver: &ClusterResolver) {
    if !uses_cluster_dns(spec) {
        return;
    }
    let domain = &resolver.domain;
    let own = PodSpecView::of(spec).dns_config();

    let servers = without_repetitions(
        resolver
            .addresses
            .iter()
            .map(ToString::to_string)
            .chain(owned_texts(own.nameservers())),
    );
    let cluster = [
        format!("{home_namespace}.svc.{domain}"),
        format!("svc.{domain}"),
        domain.clone(),
    ];
    let mut length = 0;
    let searches = without_repetitions(cluster.into_iter().chain(owned_texts(own.searches())))
        .into_iter()
        .take(MAX_SEARCHES)
        .take_while(|search| {
            length += search.len() + 1;
            length <= MAX_SEARCHES_LEN
        });
    let ndots = json!({ "name": "ndots", "value": "5" });
    let options = Some(&ndots)
        .filter(|_| own.options().iter().all(|option| name(option) != "ndots"))
        .into_iter()
        .chain(own.options());
    // What the kubelet does for ClusterFirst: the cluster's servers, search domains and options
    // first, and then those of the pod.
    let config = json!({
        "nameservers": servers.into_iter().take(MAX_SERVERS).collect::<Vec<_>>(),
        "searches": searches.collect::<Vec<_>>(),
        "options": options.collect::<Vec<_>>(),
    });
    if let Some(spec) = spec.as_object_mut() {
        spec.extend(Map::from_iter([
            ("dnsPolicy".to_owned(), "None".into()),
            ("dnsConfig".to_owned(), config),
        ]));
    }
}

fn owned_texts(texts: &[Value]) -> impl Iterator<Item = String> {
    texts.iter().filter_map(Value::as_str).map(str::to_owned)
}

/// The texts without repetitions, in the same order.
fn without_repetitions(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::map;
    use crate::json::items_at;

    fn resolver() -> ClusterResolver {
        let addresses = ["10.96.5.5", "fd00::5"]
            .map(|one| one.parse().unwrap())
            .into();
        ClusterResolver {
            addresses,
            domain: "cluster.local".into(),
            is_ready: true,
        }
    }

    fn asking(spec: Value) -> Value {
        let mut spec = spec;
        use_resolver(&mut spec, "demo", &resolver());
        spec
    }

    #[test]
    fn a_pod_has_the_search_domains_of_its_home_namespace() {
        let usual = json!({ "nameservers": ["10.96.5.5", "fd00::5"],
            "searches": ["demo.svc.cluster.local", "svc.cluster.local", "cluster.local"],
            "options": [{ "name": "ndots", "value": "5" }] });
        for policy in ["ClusterFirst", "ClusterFirstWithHostNet"] {
            let found = asking(json!({ "hostname": "web", "dnsPolicy": policy }));
            assert_eq!(
                found,
                json!({ "hostname": "web", "dnsPolicy": "None", "dnsConfig": usual })
            );
        }
        assert_eq!(
            asking(json!({})),
            json!({ "dnsPolicy": "None", "dnsConfig": usual })
        );
    }

    #[test]
    fn a_pod_that_chose_its_own_name_servers_keeps_them() {
        for spec in [
            json!({ "dnsPolicy": "Default" }),
            json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["1.1.1.1"] } }),
        ] {
            assert_eq!(asking(spec.clone()), spec);
        }
    }

    #[test]
    fn what_a_pod_adds_to_the_clusters_configuration_is_added() {
        let own = json!({ "nameservers": ["1.1.1.1", "10.96.5.5", "9.9.9.9"], "searches": ["example.org", "cluster.local"],
            "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }] });
        let found = asking(json!({ "dnsPolicy": "ClusterFirst", "dnsConfig": own }));
        let wanted = json!({ "nameservers": ["10.96.5.5", "fd00::5", "1.1.1.1"],
            "searches": ["demo.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"],
            "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }] });
        assert_eq!(found["dnsConfig"], wanted);
        let options = asking(json!({ "dnsConfig": { "options": [{ "name": "edns0" }] } }))["dnsConfig"]["options"].clone();
        assert_eq!(
            options,
            json!([{ "name": "ndots", "value": "5" }, { "name": "edns0" }])
        );
    }

    #[test]
    fn search_domains_stay_within_what_the_api_server_allows() {
        let count = |searches: Vec<String>| {
            let found = asking(json!({ "dnsConfig": { "searches": searches } }));
            items_at(&found, "/dnsConfig/searches").len()
        };
        assert_eq!(
            count((0..32).map(|number| format!("d{number}")).collect()),
            32
        );
        assert_eq!(
            count(
                (0..20)
                    .map(|number| format!("{number}{}", "d".repeat(198)))
                    .collect()
            ),
            3 + 9
        );
    }

    #[test]
    fn only_a_valid_domain_is_announced() {
        let announced = |domain: &str| {
            let mut map = map(&[], &[]);
            map.metadata.annotations =
                Some([(annotations::CLUSTER_DOMAIN.to_owned(), domain.to_owned())].into());
            announced_domain(&map).map(str::to_owned)
        };
        assert_eq!(announced("corp.local").as_deref(), Some("corp.local"));
        let long = vec!["a".repeat(61); 3].join(".");
        assert_eq!(long.len(), MAX_DOMAIN_LEN);
        assert!(
            announced(&long).is_some(),
            "a search domain with the longest namespace is a name"
        );
        for domain in [
            "",
            ".",
            "corp.local.",
            "Corp.local",
            "a b",
            "a\nnameserver 192.0.2.1",
            &"a".repeat(64),
            &format!("{long}a"),
        ] {
            assert_eq!(announced(domain), None, "{domain}");
        }
        assert_eq!(announced_domain(&map(&[], &[])), None);
    }

    #[test]
    fn a_pod_that_does_not_resolve_names_as_at_home_says_so() {
        let reason = |resolver: Option<ClusterResolver>| {
            resolver_warning(resolver.as_ref()).map(|(reason, _)| reason)
        };
        assert_eq!(reason(Some(resolver())), None);
        assert_eq!(
            reason(Some(ClusterResolver {
                is_ready: false,
                ..resolver()
            })),
            Some("ResolverNotReady")
        );
        assert_eq!(reason(None), Some("NoResolver"));
        assert!(
            resolver_warning(None)
                .unwrap()
                .1
                .contains("or its manager does not know the cluster's domain")
        );
        assert!(
            uses_cluster_dns(&json!({})) && !uses_cluster_dns(&json!({ "dnsPolicy": "Default" }))
        );
    }
}
