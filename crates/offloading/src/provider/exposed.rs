//! What of a consumer the world may reach here: what its policy says of load balancers and Ingresses. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use liqo_api::Usage;
use liqo_kit::Key;
use serde_json::Value;

use super::{
    reflection::{Problem, Source},
    usage::Held,
};
use crate::decide::{
    exposure,
    ingresses::{Bounded, Limits},
    kind::Kind,
    services,
};

/// So many names stand in one message.
const NAMED: usize = 10;

/// What one consumer may show to the world.
#[derive(Clone, Debug, Default)]
pub struct Leave {
    policy: String,
    usage: Usage,
    /// UIDs of the records of Services that may have load balancers.
    balanced: BTreeSet<String>,
}

impl Leave {
    /// By this policy, for a consumer with these records, all its namespaces together. Of more Services than may have load balancers those
    /// keep theirs that have one, then come the oldest.
    pub fn new<'a>(held: Option<&Held>, records: impl IntoIterator<Item = &'a Source>) -> Self {
        let Some(Held { policy, usage }) = held.cloned() else { return Self::default() };
        let mut asking: Vec<&Source> = records.into_iter().filter(|source| source.asks_for_balancer()).collect();
        asking.sort_by(|one, other| order(one).cmp(&order(other)));
        let most = if usage.load_balancer_classes.is_empty() { 0 } else { usage.max_load_balancers.into() };
        let balanced = asking.into_iter().take(most).map(|source| source.uid.clone()).collect();
        Self { policy, usage, balanced }
    }

    /// A Service with this content: with a load balancer only if it may have one.
    pub fn service(&self, source: Source, mut content: Value) -> Source {
        let Some(asked) = source.asked_class() else { return source };
        match exposure::given(&asked, &self.usage.load_balancer_classes) {
            Some(class) if self.balanced.contains(&source.uid) => {
                exposure::set_class(Kind::Service, &mut content, class);
                let problem = self.other_class(&asked, class);
                source.exposed(&content, problem)
            }
            Some(_) => {
                let most = self.usage.max_load_balancers;
                let message = format!(
                    "it is of type ClusterIP at the provider, whose PeeringPolicy {} gives {most} load balancers",
                    self.policy
                );
                source.exposed(&services::closed(content), Some(Problem::new("LimitReached", message)))
            }
            // Who does not ask for a class there does not miss it.
            None => {
                let message = format!(
                    "it is of type ClusterIP at the provider, whose PeeringPolicy {} gives no load balancers",
                    self.policy
                );
                let problem = (!asked.is_empty()).then(|| Problem::new("ClassNotAllowed", message));
                source.exposed(&services::closed(content), problem)
            }
        }
    }

    /// An Ingress with this content, as far as it may be, in front of these Services.
    pub fn ingress(&self, mut source: Source, content: &Value, services: &BTreeSet<String>) -> Source {
        let asked = source.asked_class().unwrap_or_default();
        let Some(class) = exposure::given(&asked, &self.usage.ingress_classes) else {
            source.problem = Some(Problem::not_allowed(Kind::Ingress, &self.policy));
            return source;
        };
        let limits = Limits { hosts: &self.usage.ingress_hosts, annotations: &self.usage.ingress_annotations, services };
        let Bounded { content, hosts, services, paths, annotations } = limits.bound(content);
        let hosts = hosts.iter().map(|host| if host.is_empty() { "every host" } else { host });
        let named = |names: Vec<&str>| {
            let more = if names.len() > NAMED { ", and others" } else { "" };
            format!(
                "{}{more}",
                names
                    .into_iter()
                    .take(NAMED)
                    .map(|name| name.chars().take(253).collect::<String>())
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        };
        let said = |reason: &str, what: String, names: Vec<&str>| {
            (!names.is_empty()).then(|| Problem::new(reason, format!("{what}: {}", named(names))))
        };
        let policy = &self.policy;
        let problems = [
            said(
                "HostNotAllowed",
                format!("left out is what claims hosts that the provider's PeeringPolicy {policy} does not give"),
                hosts.collect(),
            ),
            said(
                "NoService",
                "left out are ways to Services that are not reflected to the provider".into(),
                services.iter().map(String::as_str).collect(),
            ),
            said(
                "Invalid",
                "left out are paths with other characters than letters, digits and -._~%!&*+,=:@/".into(),
                paths.iter().map(String::as_str).collect(),
            ),
            said(
                "AnnotationNotAllowed",
                format!("left out are annotations that the provider's PeeringPolicy {policy} does not keep"),
                annotations.iter().map(String::as_str).collect(),
            ),
            self.other_class(&asked, class),
        ];
        let problem = problems
            .into_iter()
            .flatten()
            .reduce(|first, next| Problem { message: format!("{}; {}", first.message, next.message), reason: first.reason });
        let Some(mut content) = content else {
            source.problem = problem.or_else(|| Some(Problem::new("Invalid", "the Ingress leads nowhere")));
            return source;
        };
        exposure::set_class(Kind::Ingress, &mut content, class);
        source.exposed(&content, problem)
    }

    /// What is said of an object that asks for a class and gets another one.
    fn other_class(&self, asked: &str, class: &str) -> Option<Problem> {
        let class_there = if class.is_empty() { "the default class of its cluster" } else { class };
        (!asked.is_empty() && asked != class).then(|| {
            let message = format!(
                "the provider's PeeringPolicy {} does not give class {asked:.317}; it has {class_there} there",
                self.policy
            );
            Problem::new("ClassNotAllowed", message)
        })
    }
}

/// Those that have a load balancer come first, then the oldest.
fn order(source: &Source) -> (bool, Timestamp, &Key) {
    (source.shown.is_none(), source.since, &source.key)
}

#[cfg(test)]
mod tests {
    use liqo_api::Exposure;
    use serde_json::json;

    use super::{
        super::{reflection::tests::object, usage::tests::held},
        *,
    };

    fn service(name: &str, second: u8, class: &str) -> Source {
        let mut content = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }], "loadBalancerSourceRanges": ["198.51.100.0/24"] } });
        if !class.is_empty() {
            content["spec"]["loadBalancerClass"] = class.into();
        }
        object(&format!("service-{name}"), &content, |object| {
            object["metadata"]["uid"] = name.into();
            object["metadata"]["creationTimestamp"] = format!("2026-01-01T00:00:{second:02}Z").into();
        })
    }

    fn ingress(class: &str, hosts: &[&str]) -> Source {
        let rule = |host: &&str| {
            json!({ "host": host, "http": { "paths": [{ "path": "/", "pathType": "Prefix",
                "backend": { "service": { "name": "web", "port": { "number": 80 } } } }] } })
        };
        let rules: Vec<Value> = hosts.iter().map(rule).collect();
        let content = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "shop" },
            "spec": { "ingressClassName": class, "rules": rules } });
        object("ingress-1", &content, |_| {})
    }

    fn within(source: &Source, usage: Value) -> Source {
        let leave = Leave::new(Some(&held(usage)), [source]);
        source.clone().within(&leave, &BTreeSet::from(["web".to_owned()]))
    }

    /// Type and class of a Service here, and what is said of it.
    fn balanced(source: &Source, usage: Value) -> (String, Option<String>, Option<String>) {
        let source = within(source, usage);
        let content = source.content().unwrap();
        let class = content["spec"]["loadBalancerClass"].as_str().map(str::to_owned);
        (content["spec"]["type"].as_str().unwrap().to_owned(), class, source.partial.map(|problem| problem.reason))
    }

    #[test]
    fn a_load_balancer_is_given_where_the_policy_says_so_and_by_its_class() {
        let (inside, outside) = ("ClusterIP".to_owned(), "LoadBalancer".to_owned());
        let some = |text: &str| Some(text.to_owned());
        let usual = service("web", 0, "");
        assert_eq!(balanced(&usual, json!({})), (inside.clone(), None, None), "closed by default, as ever");
        assert_eq!(balanced(&usual, json!({ "loadBalancerClasses": ["edge", "x"] })), (outside.clone(), some("edge"), None));
        assert_eq!(balanced(&usual, json!({ "loadBalancerClasses": [""] })), (outside.clone(), None, None));
        let asking = service("web", 0, "x");
        assert_eq!(balanced(&asking, json!({ "loadBalancerClasses": ["edge", "x"] })), (outside.clone(), some("x"), None));
        assert_eq!(
            balanced(&asking, json!({ "loadBalancerClasses": ["edge"] })),
            (outside.clone(), some("edge"), some("ClassNotAllowed"))
        );
        assert_eq!(balanced(&asking, json!({ "loadBalancerClasses": [""] })), (outside, None, some("ClassNotAllowed")));
        assert_eq!(balanced(&asking, json!({})), (inside.clone(), None, some("ClassNotAllowed")));
        let none = json!({ "loadBalancerClasses": [""], "maxLoadBalancers": 0 });
        assert_eq!(balanced(&usual, none), (inside, None, some("LimitReached")));
    }

    #[test]
    fn whom_a_load_balancer_is_for_stays_and_is_nothing_to_a_service_that_has_none() {
        let source = service("web", 0, "");
        let ranges = |usage: Value| within(&source, usage).content().unwrap()["spec"]["loadBalancerSourceRanges"].clone();
        assert_eq!(ranges(json!({ "loadBalancerClasses": [""] })), json!(["198.51.100.0/24"]));
        let closed = within(&source, json!({}));
        let plain = object(
            "p",
            &json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] } }),
            |_| {},
        );
        assert_eq!(closed.fingerprint, plain.fingerprint, "it is what it was before there were load balancers");
    }

    #[test]
    fn of_more_services_than_may_have_load_balancers_those_have_that_had_and_then_the_oldest() {
        let mut all = [service("new", 9, ""), service("old", 1, ""), service("middle", 5, "")];
        let leave = Leave::new(Some(&held(json!({ "loadBalancerClasses": [""], "maxLoadBalancers": 2 }))), &all);
        let have: Vec<&str> = leave.balanced.iter().map(String::as_str).collect();
        assert_eq!(have, ["middle", "old"]);
        all[0].shown = Some(Exposure::default());
        let leave = Leave::new(Some(&held(json!({ "loadBalancerClasses": [""], "maxLoadBalancers": 2 }))), &all);
        assert_eq!(leave.balanced.iter().map(String::as_str).collect::<Vec<_>>(), ["new", "old"]);
        assert!(Leave::new(None, &all).balanced.is_empty(), "without a policy nobody has one");
    }

    #[test]
    fn an_ingress_needs_a_class_and_its_hosts() {
        let reason = |source: &Source, usage: Value| within(source, usage).problem.map(|problem| problem.reason);
        let shop = ingress("", &["shop.example.com"]);
        assert_eq!(reason(&shop, json!({})).as_deref(), Some("KindNotAllowed"));
        assert_eq!(reason(&shop, json!({ "ingressHosts": ["*"] })).as_deref(), Some("KindNotAllowed"));
        assert_eq!(reason(&shop, json!({ "ingressClasses": ["public"] })).as_deref(), Some("HostNotAllowed"));
        assert_eq!(reason(&shop, json!({ "ingressClasses": ["public"], "ingressHosts": ["*.example.com"] })), None);
    }

    #[test]
    fn an_ingress_gets_the_class_that_it_may_have_and_says_what_is_left_out() {
        let usage = |classes: Value| json!({ "ingressClasses": classes, "ingressHosts": ["*.example.com"] });
        let class = |source: &Source| source.content().unwrap()["spec"].get("ingressClassName").cloned();
        let one = within(&ingress("inside", &["a.example.com"]), usage(json!(["public", "inside"])));
        assert_eq!((class(&one), one.partial), (Some(json!("inside")), None));
        let other = within(&ingress("mine", &["a.example.com", "bank.test"]), usage(json!([""])));
        assert_eq!(class(&other), None);
        let problem = other.partial.unwrap();
        assert_eq!(problem.reason, "HostNotAllowed");
        assert!(problem.message.contains("bank.test; ") && problem.message.contains("class mine"), "{}", problem.message);
        let elsewhere =
            ingress("", &["a.example.com"]).within(&Leave::new(Some(&held(usage(json!([""])))), []), &BTreeSet::new());
        assert_eq!(elsewhere.problem.unwrap().reason, "NoService");
    }
}
