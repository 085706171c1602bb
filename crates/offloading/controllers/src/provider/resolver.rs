//! Liqo's resolver as pods in mapped namespaces use it.

use std::net::IpAddr;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, runtime::watcher::Config};
use liqo_api::RESOLVER;
use liqo_controller_runtime::{Cache, Context, Key};
use liqo_offloading_rules::pod::carry::home_names::ClusterResolver;

/// The Service of the resolver, and whether it answers.
pub struct ResolverService {
    namespace: String,
    services: Cache<Vec<IpAddr>>,
    /// For each slice of the Service whether an endpoint is ready.
    slices: Cache<bool>,
    /// The domain of this cluster, if it is known.
    domain: Option<String>,
}

impl ResolverService {
    /// Starts the watches. Calls `changed` when pods have to ask at another address, or at none.
    pub fn follow(context: &Context, changed: impl Fn() + Send + 'static) -> Self {
        let (client, namespace, stop) = (&context.client, context.namespace.clone(), &context.stop);
        let only = Config::default().fields(&format!("metadata.name={RESOLVER}"));
        let services = Api::namespaced(client.clone(), &namespace);
        let of_service =
            Config::default().labels(&format!("kubernetes.io/service-name={RESOLVER}"));
        let slices = Api::namespaced(client.clone(), &namespace);
        Self {
            namespace,
            services: Cache::watch(
                services,
                only,
                stop.clone(),
                |service| Some(service_addresses(service)),
                move |_, old, new| {
                    if old != new {
                        changed();
                    }
                },
            ),
            slices: Cache::watch(
                slices,
                of_service,
                stop.clone(),
                |slice| Some(has_ready_endpoint(&slice)),
                |_, _, _| {},
            ),
            domain: context.cluster_domain.clone(),
        }
    }

    /// Waits for the initial lists. `false` if a watch ended before.
    pub async fn synced(&self) -> bool {
        self.services.wait_until_synced().await && self.slices.wait_until_synced().await
    }

    /// The domain of this cluster, if it is known.
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// The resolver, for pods of a cluster with this domain, or with ours if it announces none.
    /// `None` if there is none. Pods ask it even if no pod of it is ready now, because they keep
    /// their name servers for life.
    pub fn resolver_for_pods(&self, home_domain: Option<&str>) -> Option<ClusterResolver> {
        let addresses = self
            .services
            .get(&Key::new(self.namespace.clone(), RESOLVER))?
            .to_vec();
        let is_ready = self.slices.all().iter().any(|(_, is_ready)| **is_ready);
        resolver_at(addresses, is_ready, self.domain.as_deref(), home_domain)
    }
}

/// Without a domain of this cluster, the resolver translates nothing.
fn resolver_at(
    addresses: Vec<IpAddr>,
    is_ready: bool,
    domain: Option<&str>,
    home_domain: Option<&str>,
) -> Option<ClusterResolver> {
    let domain = domain.filter(|_| !addresses.is_empty())?;
    Some(ClusterResolver {
        addresses,
        domain: home_domain.unwrap_or(domain).to_owned(),
        is_ready,
    })
}

fn service_addresses(service: Service) -> Vec<IpAddr> {
    let addresses = service
        .spec
        .and_then(|spec| spec.cluster_ips)
        .unwrap_or_default();
    addresses
        .iter()
        .filter_map(|address| address.parse().ok())
        .collect()
}

fn has_ready_endpoint(slice: &EndpointSlice) -> bool {
    let mut conditions = slice
        .endpoints
        .iter()
        .map(|endpoint| endpoint.conditions.as_ref());
    conditions.any(|conditions| conditions.is_none_or(|conditions| conditions.ready != Some(false)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_has_an_address_of_each_family_unless_it_has_none() {
        let found = |addresses_of: serde_json::Value| {
            service_addresses(
                serde_json::from_value(json!({ "spec": { "clusterIPs": addresses_of } })).unwrap(),
            )
        };
        assert_eq!(found(json!(["10.96.5.5", "fd00::5"])).len(), 2);
        assert_eq!(found(json!(["None"])), [] as [IpAddr; 0]);
    }

    #[test]
    fn pods_ask_a_resolver_that_is_not_ready_yet_in_the_domain_of_their_home() {
        let found = |is_ready, domain, home_domain| {
            resolver_at(vec![[10, 96, 5, 5].into()], is_ready, domain, home_domain)
        };
        let of = |domain: &str, is_ready| {
            Some(ClusterResolver {
                addresses: vec![[10, 96, 5, 5].into()],
                domain: domain.to_owned(),
                is_ready,
            })
        };
        assert_eq!(
            found(true, Some("cluster.local"), None),
            of("cluster.local", true)
        );
        assert_eq!(
            found(false, Some("cluster.local"), Some("corp.local")),
            of("corp.local", false)
        );
        assert_eq!(found(true, None, Some("corp.local")), None);
        assert_eq!(
            resolver_at(Vec::new(), true, Some("cluster.local"), None),
            None,
            "the Service has no address"
        );
    }

    #[test]
    fn a_slice_counts_only_with_a_ready_endpoint() {
        let is_ready = |endpoints: serde_json::Value| {
            let slice = json!({ "addressType": "IPv4", "endpoints": endpoints });
            has_ready_endpoint(&serde_json::from_value(slice).unwrap())
        };
        let endpoint =
            |ready: bool| json!({ "addresses": ["10.244.0.9"], "conditions": { "ready": ready } });
        assert!(is_ready(json!([endpoint(false), endpoint(true)])));
        assert!(!is_ready(json!([endpoint(false)])) && !is_ready(json!([])));
    }
}
