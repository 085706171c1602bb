//! Decides which of a consumer's Services and Ingresses clients outside the provider's cluster may
//! reach, by the provider's policy.

use std::collections::BTreeSet;

use jiff::Timestamp;
use liqo_api::{Key, Usage};
use serde_json::Value;

use crate::pod::consumer_policy::ConsumerPolicy;
use crate::replica::ingress::{ClampedIngress, IngressLimits};
use crate::replica::kind::ReplicaKind;
use crate::replica::replica_source::{ReplicaProblem, ReplicaSource};
use crate::replica::{exposure, service};

/// Maximum number of names that one message lists.
const MAX_NAMES: usize = 10;

/// The objects that one consumer may expose to clients outside the cluster.
#[derive(Clone, Debug, Default)]
pub struct ExposureGrant {
    policy: String,
    usage: Usage,
    /// UIDs of the records of Services that may have load balancers.
    balanced: BTreeSet<String>,
}

impl ExposureGrant {
    /// The grant of this policy to a consumer with these sources in all its namespaces. If more
    /// Services ask for a load balancer than may have one, those that have one keep it, then the
    /// oldest get one.
    pub fn new<'a>(
        policy: Option<&ConsumerPolicy>,
        sources: impl IntoIterator<Item = &'a ReplicaSource>,
    ) -> Self {
        let Some(ConsumerPolicy {
            name: policy,
            usage,
            ..
        }) = policy.cloned()
        else {
            return Self::default();
        };
        let mut asking: Vec<&ReplicaSource> = sources
            .into_iter()
            .filter(|source| source.asks_for_balancer())
            .collect();
        asking.sort_by(|one, other| grant_order(one).cmp(&grant_order(other)));
        let most = if usage.load_balancer_classes.is_empty() {
            0
        } else {
            usage.max_load_balancers.into()
        };
        let balanced = asking
            .into_iter()
            .take(most)
            .map(|source| source.uid.clone())
            .collect();
        Self {
            policy,
            usage,
            balanced,
        }
    }

    /// Limits a Service or Ingress to what is granted. `services` are those that an Ingress may
    /// route to.
    pub fn limit_source(
        &self,
        source: ReplicaSource,
        services: &BTreeSet<String>,
    ) -> ReplicaSource {
        match (
            source.kind,
            source.content().filter(|_| source.problem.is_none()),
        ) {
            (Some(ReplicaKind::Service), Some(content)) => self.limit_service(source, content),
            (Some(ReplicaKind::Ingress), Some(content)) => {
                self.limit_ingress(source, &content, services)
            }
            _ => source,
        }
    }

    fn limit_service(&self, source: ReplicaSource, mut content: Value) -> ReplicaSource {
        let Some(asked) = source.asked_class() else {
            return source;
        };
        match exposure::granted_class(&asked, &self.usage.load_balancer_classes) {
            Some(class) if self.balanced.contains(&source.uid) => {
                exposure::set_class(ReplicaKind::Service, &mut content, class);
                let problem = self.other_class_problem(&asked, class);
                source.with_content(ReplicaKind::Service, &content, problem)
            }
            Some(_) => {
                let most = self.usage.max_load_balancers;
                let message = format!(
                    "the Service is of type ClusterIP at the provider, whose PeeringPolicy {} gives {most} load balancers",
                    self.policy
                );
                source.with_content(
                    ReplicaKind::Service,
                    &service::without_load_balancer(content),
                    Some(ReplicaProblem::new("LimitReached", message)),
                )
            }
            // Users who name no class for other clusters do not expect a load balancer there.
            None => {
                let message = format!(
                    "the Service is of type ClusterIP at the provider, whose PeeringPolicy {} gives no load balancers",
                    self.policy
                );
                let problem =
                    (!asked.is_empty()).then(|| ReplicaProblem::new("ClassNotAllowed", message));
                source.with_content(
                    ReplicaKind::Service,
                    &service::without_load_balancer(content),
                    problem,
                )
            }
        }
    }

    fn limit_ingress(
        &self,
        mut source: ReplicaSource,
        content: &Value,
        services: &BTreeSet<String>,
    ) -> ReplicaSource {
        let asked = source.asked_class().unwrap_or_default();
        let Some(class) = exposure::granted_class(&asked, &self.usage.ingress_classes) else {
            source.problem = Some(ReplicaProblem::not_allowed(
                ReplicaKind::Ingress,
                &self.policy,
            ));
            return source;
        };
        let limits = IngressLimits {
            hosts: &self.usage.ingress_hosts,
            annotations: &self.usage.ingress_annotations,
            services,
        };
        let ClampedIngress {
            content,
            hosts,
            services,
            paths,
            annotations,
        } = limits.clamp_ingress(content);
        let hosts = hosts
            .iter()
            .map(|host| if host.is_empty() { "every host" } else { host });
        let policy = &self.policy;
        let problems = [
            left_out_problem(
                "HostNotAllowed",
                &format!(
                    "left out: rules for hosts that the provider's PeeringPolicy {policy} does not allow"
                ),
                &hosts.collect::<Vec<_>>(),
            ),
            left_out_problem(
                "NoService",
                "left out: paths to Services that are not reflected to the provider",
                &services.iter().map(String::as_str).collect::<Vec<_>>(),
            ),
            left_out_problem(
                "Invalid",
                "left out: paths with other characters than letters, digits and -._~%!&*+,=:@/",
                &paths.iter().map(String::as_str).collect::<Vec<_>>(),
            ),
            left_out_problem(
                "AnnotationNotAllowed",
                &format!(
                    "left out: annotations that the provider's PeeringPolicy {policy} does not keep"
                ),
                &annotations.iter().map(String::as_str).collect::<Vec<_>>(),
            ),
            self.other_class_problem(&asked, class),
        ];
        let problem = problems
            .into_iter()
            .flatten()
            .reduce(|first, next| ReplicaProblem {
                message: format!("{}; {}", first.message, next.message),
                reason: first.reason,
            });
        let Some(mut content) = content else {
            let problem = problem.unwrap_or_else(|| {
                ReplicaProblem::new("Invalid", "the Ingress has no valid backend")
            });
            // What the policy does not allow, or what leads nowhere, goes.
            let is_mistake = problem.reason == "Invalid";
            (source.problem, source.refused, source.content) = if is_mistake {
                (None, Some(problem), None)
            } else {
                (Some(problem), None, None)
            };
            return source;
        };
        exposure::set_class(ReplicaKind::Ingress, &mut content, class);
        source.with_content(ReplicaKind::Ingress, &content, problem)
    }

    /// The problem of an object that asks for a class and gets another one.
    fn other_class_problem(&self, asked: &str, class: &str) -> Option<ReplicaProblem> {
        let class_there = if class.is_empty() {
            "the default class of its cluster"
        } else {
            class
        };
        (!asked.is_empty() && asked != class).then(|| {
            let message = format!(
                "the provider's PeeringPolicy {} does not give class {asked:.317}; the object has {class_there} there",
                self.policy
            );
            ReplicaProblem::new("ClassNotAllowed", message)
        })
    }
}

/// Those that have a load balancer come first, then the oldest.
fn grant_order(source: &ReplicaSource) -> (bool, Timestamp, &Key) {
    (
        source.reported_exposure.is_none(),
        source.since,
        &source.key,
    )
}

/// The problem of an object of which these parts were left out; `None` if none was.
fn left_out_problem(reason: &str, what: &str, names: &[&str]) -> Option<ReplicaProblem> {
    if names.is_empty() {
        return None;
    }
    let more = if names.len() > MAX_NAMES {
        ", and others"
    } else {
        ""
    };
    let list = names
        .iter()
        .take(MAX_NAMES)
        .map(|name| name.chars().take(253).collect::<String>())
        .collect::<Vec<_>>()
        .join(", ");
    Some(ReplicaProblem::new(reason, format!("{what}: {list}{more}")))
}

#[cfg(test)]
mod tests {
    use liqo_api::Exposure;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{object, policy};

    fn service(name: &str, second: u8, class: &str) -> ReplicaSource {
        let mut content = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }], "loadBalancerSourceRanges": ["198.51.100.0/24"] } });
        if !class.is_empty() {
            content["spec"]["loadBalancerClass"] = class.into();
        }
        object(&format!("service-{name}"), &content, |object| {
            object["metadata"]["uid"] = name.into();
            object["metadata"]["creationTimestamp"] =
                format!("2026-01-01T00:00:{second:02}Z").into();
        })
    }

    fn ingress(class: &str, hosts: &[&str]) -> ReplicaSource {
        let rule = |host: &&str| {
            json!({ "host": host, "http": { "paths": [{ "path": "/", "pathType": "Prefix",
                "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } })
        };
        let rules: Vec<Value> = hosts.iter().map(rule).collect();
        let content = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "shop" },
            "spec": { "ingressClassName": class, "rules": rules } });
        object("ingress-1", &content, |_| {})
    }

    fn within(source: &ReplicaSource, usage: Value) -> ReplicaSource {
        let grant = ExposureGrant::new(Some(&policy(usage)), [source]);
        grant.limit_source(source.clone(), &BTreeSet::from(["web".to_owned()]))
    }

    /// Type and class of a Service here, and its problem.
    fn balanced(source: &ReplicaSource, usage: Value) -> (String, Option<String>, Option<String>) {
        let source = within(source, usage);
        let content = source.content().unwrap();
        let class = content["spec"]["loadBalancerClass"]
            .as_str()
            .map(str::to_owned);
        (
            content["spec"]["type"].as_str().unwrap().to_owned(),
            class,
            source.partial.map(|problem| problem.reason),
        )
    }

    #[test]
    fn a_load_balancer_is_given_where_the_policy_says_so_and_by_its_class() {
        let (inside, outside) = ("ClusterIP".to_owned(), "LoadBalancer".to_owned());
        let some = |text: &str| Some(text.to_owned());
        let usual = service("web", 0, "");
        assert_eq!(
            balanced(&usual, json!({})),
            (inside.clone(), None, None),
            "closed by default, as ever"
        );
        assert_eq!(
            balanced(&usual, json!({ "loadBalancerClasses": ["edge", "x"] })),
            (outside.clone(), some("edge"), None)
        );
        assert_eq!(
            balanced(&usual, json!({ "loadBalancerClasses": [""] })),
            (outside.clone(), None, None)
        );
        let asking = service("web", 0, "x");
        assert_eq!(
            balanced(&asking, json!({ "loadBalancerClasses": ["edge", "x"] })),
            (outside.clone(), some("x"), None)
        );
        assert_eq!(
            balanced(&asking, json!({ "loadBalancerClasses": ["edge"] })),
            (outside.clone(), some("edge"), some("ClassNotAllowed"))
        );
        assert_eq!(
            balanced(&asking, json!({ "loadBalancerClasses": [""] })),
            (outside, None, some("ClassNotAllowed"))
        );
        assert_eq!(
            balanced(&asking, json!({})),
            (inside.clone(), None, some("ClassNotAllowed"))
        );
        let none = json!({ "loadBalancerClasses": [""], "maxLoadBalancers": 0 });
        assert_eq!(balanced(&usual, none), (inside, None, some("LimitReached")));
    }

    #[test]
    fn whom_a_load_balancer_is_for_stays_and_is_nothing_to_a_service_that_has_none() {
        let source = service("web", 0, "");
        let ranges = |usage: Value| {
            within(&source, usage).content().unwrap()["spec"]["loadBalancerSourceRanges"].clone()
        };
        assert_eq!(
            ranges(json!({ "loadBalancerClasses": [""] })),
            json!(["198.51.100.0/24"])
        );
        let closed = within(&source, json!({}));
        let plain = object(
            "p",
            &json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] } }),
            |_| {},
        );
        assert_eq!(
            closed.fingerprint, plain.fingerprint,
            "it is what it was before there were load balancers"
        );
    }

    #[test]
    fn of_more_services_than_may_have_load_balancers_those_have_that_had_and_then_the_oldest() {
        let mut all = [
            service("new", 9, ""),
            service("old", 1, ""),
            service("middle", 5, ""),
        ];
        let grant = ExposureGrant::new(
            Some(&policy(
                json!({ "loadBalancerClasses": [""], "maxLoadBalancers": 2 }),
            )),
            &all,
        );
        let have: Vec<&str> = grant.balanced.iter().map(String::as_str).collect();
        assert_eq!(have, ["middle", "old"]);
        all[0].reported_exposure = Some(Exposure::default());
        let grant = ExposureGrant::new(
            Some(&policy(
                json!({ "loadBalancerClasses": [""], "maxLoadBalancers": 2 }),
            )),
            &all,
        );
        assert_eq!(
            grant
                .balanced
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
            ["new", "old"]
        );
        assert!(
            ExposureGrant::new(None, &all).balanced.is_empty(),
            "without a policy nobody has one"
        );
    }

    #[test]
    fn an_ingress_needs_a_class_and_its_hosts() {
        let reason = |source: &ReplicaSource, usage: Value| {
            within(source, usage).problem.map(|problem| problem.reason)
        };
        let shop = ingress("", &["shop.example.com"]);
        assert_eq!(reason(&shop, json!({})).as_deref(), Some("KindNotAllowed"));
        assert_eq!(
            reason(&shop, json!({ "ingressHosts": ["*"] })).as_deref(),
            Some("KindNotAllowed")
        );
        assert_eq!(
            reason(&shop, json!({ "ingressClasses": ["public"] })).as_deref(),
            Some("HostNotAllowed")
        );
        assert_eq!(
            reason(
                &shop,
                json!({ "ingressClasses": ["public"], "ingressHosts": ["*.example.com"] })
            ),
            None
        );
    }

    #[test]
    fn an_ingress_gets_the_class_that_it_may_have_and_says_what_is_left_out() {
        let usage = |classes: Value| json!({ "ingressClasses": classes, "ingressHosts": ["*.example.com"] });
        let class = |source: &ReplicaSource| {
            source.content().unwrap()["spec"]
                .get("ingressClassName")
                .cloned()
        };
        let one = within(
            &ingress("inside", &["a.example.com"]),
            usage(json!(["public", "inside"])),
        );
        assert_eq!((class(&one), one.partial), (Some(json!("inside")), None));
        let other = within(
            &ingress("mine", &["a.example.com", "bank.test"]),
            usage(json!([""])),
        );
        assert_eq!(class(&other), None);
        let problem = other.partial.unwrap();
        assert_eq!(problem.reason, "HostNotAllowed");
        assert!(
            problem.message.contains("bank.test; ") && problem.message.contains("class mine"),
            "{}",
            problem.message
        );
        let elsewhere = ExposureGrant::new(Some(&policy(usage(json!([""])))), [])
            .limit_source(ingress("", &["a.example.com"]), &BTreeSet::new());
        assert_eq!(elsewhere.problem.unwrap().reason, "NoService");
    }
}
