//! Ingresses as they travel. Both sides rebuild each from the fields that mean the same in another
//! cluster, and the provider limits it to its policy.
//!
//! | field of an Ingress | what happens |
//! |---|---|
//! | class | the one that the annotation names for other clusters, see [`exposure`](crate::replica::exposure) |
//! | hosts of rules, of TLS | those that the provider's policy lets this consumer claim; a rule, TLS entry or default backend without one claims every host |
//! | paths | travel if they are plain characters: some controllers write paths into a configuration |
//! | backends | Services of the consumer that exist there; no other resources |
//! | names of TLS Secrets | become those of the replicas; the Secrets follow when the provider accepted the Ingress |
//! | annotations | those that the provider's policy names. An Ingress with an annotation that restricts access stays here, unless
//! its users name a class for other clusters |

use std::collections::BTreeSet;

use liqo_api::is_own;
use serde_json::{Map, Value, json};

use crate::json::{field_mut, select_fields};
use crate::replica::kind::ReplicaKind;
use crate::replica::name::replica_name;
use crate::views::{
    IngressBackendView, IngressPathView, IngressRuleView, IngressTlsView, IngressView,
};

/// Annotations that mean something in this cluster only, or that name a class.
const NEVER: [&str; 2] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubernetes.io/ingress.class",
];

/// Parts of annotation names that restrict access.
const GUARDS: [&str; 9] = [
    "auth",
    "whitelist",
    "white-list",
    "allowlist",
    "allow-list",
    "denylist",
    "deny-list",
    "source-range",
    "middleware",
];

/// Whether an annotation restricts access. Another cluster may not know it, and would not enforce
/// it.
pub(crate) fn is_guarded(object: &Value) -> bool {
    let annotations = IngressView::of(object).metadata().annotations();
    annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.to_lowercase(), value.as_str()?.trim())))
        .any(|(key, value)| {
            let is_off = value.is_empty() || value.eq_ignore_ascii_case("false");
            (!is_off
                && GUARDS
                    .iter()
                    .any(|guard| name_without_domain(&key).contains(guard)))
                || is_internal(&key, value)
        })
}

/// The name of an annotation without its domain.
fn name_without_domain(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

/// Whether an annotation says that its object is internal.
pub(crate) fn is_internal(key: &str, value: &str) -> bool {
    let says_so = ["internal", "intranet", "private"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word));
    let names_it = ["internal", "private", "disable-public"]
        .iter()
        .any(|word| name_without_domain(key).contains(word));
    says_so || (names_it && !value.is_empty() && !value.eq_ignore_ascii_case("false"))
}

/// The fields of an Ingress that mean the same in another cluster.
pub fn travelling_ingress(object: &Value) -> Map<String, Value> {
    let object = IngressView::of(object);
    let view = object.spec();
    let mut spec = select_fields(view.json(), &["ingressClassName"]);
    spec.extend(
        service_backend(view.default_backend())
            .map(|backend| ("defaultBackend".to_owned(), backend)),
    );
    for (field, all) in [
        (
            "rules",
            view.rules().map(travelling_rule).collect::<Vec<Value>>(),
        ),
        ("tls", view.tls().map(travelling_tls).collect()),
    ] {
        if !all.is_empty() {
            spec.insert(field.into(), all.into());
        }
    }
    let annotations = object.metadata().annotations();
    let mut annotations = annotations.cloned().unwrap_or_default();
    annotations
        .retain(|key, value| value.is_string() && !is_own(key) && !NEVER.contains(&key.as_str()));
    let mut known = Map::from_iter([("spec".to_owned(), spec.into())]);
    if !annotations.is_empty() {
        known.insert("metadata".into(), json!({ "annotations": annotations }));
    }
    known
}

fn travelling_rule(rule: IngressRuleView<'_>) -> Value {
    let mut known = select_fields(rule.json(), &["host"]);
    if rule.http().json().is_object() {
        let mut paths = Vec::new();
        for path in rule.http().paths() {
            if let Some(backend) = service_backend(path.backend()) {
                let mut known = select_fields(path.json(), &["path", "pathType"]);
                known.insert("backend".into(), backend);
                paths.push(known);
            }
        }
        known.insert("http".into(), json!({ "paths": paths }));
    }
    known.into()
}

fn travelling_tls(entry: IngressTlsView<'_>) -> Value {
    let mut known = select_fields(entry.json(), &["secretName"]);
    let hosts: Vec<&str> = entry.hosts().iter().filter_map(Value::as_str).collect();
    if !hosts.is_empty() {
        known.insert("hosts".into(), json!(hosts));
    }
    known.into()
}

/// A backend that is a Service.
fn service_backend(backend: IngressBackendView<'_>) -> Option<Value> {
    let mut service = select_fields(backend.service().json(), &["name"]);
    service.contains_key("name").then_some(())?;
    let port = select_fields(backend.service().port().json(), &["name", "number"]);
    service.insert("port".into(), port.into());
    Some(json!({ "service": service }))
}

/// The Secrets that an Ingress names.
pub fn secret_names(object: &Value) -> BTreeSet<String> {
    IngressView::of(object)
        .spec()
        .tls()
        .filter_map(IngressTlsView::secret_name)
        .map(str::to_owned)
        .collect()
}

/// The provider's side: gives the Secrets that an Ingress names the names of their replicas.
pub(crate) fn name_replicas(ingress: &mut Map<String, Value>) {
    let entries = ingress
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("tls"))
        .and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        if let Some(Value::String(name)) = entry.get_mut("secretName") {
            *name = replica_name(ReplicaKind::Secret, name);
        }
    }
}

/// The limits for a consumer's Ingresses.
pub(crate) struct IngressLimits<'a> {
    /// The hosts that they may claim, as patterns.
    pub hosts: &'a [String],
    /// The names of annotations that they keep.
    pub annotations: &'a [String],
    /// The Services that exist.
    pub services: &'a BTreeSet<String>,
}

/// A clamped Ingress.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClampedIngress {
    /// `None` if no backend is left.
    pub content: Option<Value>,
    /// Hosts that it may not claim; the empty one is every host.
    pub hosts: BTreeSet<String>,
    /// Services that do not exist.
    pub services: BTreeSet<String>,
    /// Paths with other characters than plain ones.
    pub paths: BTreeSet<String>,
    pub annotations: BTreeSet<String>,
}

impl IngressLimits<'_> {
    pub fn clamp_ingress(&self, object: &Value) -> ClampedIngress {
        let mut known = travelling_ingress(object);
        let mut clamped = ClampedIngress::default();
        let Some(spec) = known.get_mut("spec").and_then(Value::as_object_mut) else {
            return clamped;
        };
        let rules: Vec<Value> = list_or_empty(spec.remove("rules"))
            .into_iter()
            .filter_map(|one| self.clamp_rule(one, &mut clamped))
            .collect();
        let default = spec.remove("defaultBackend").filter(|backend| {
            self.may_claim_host("", &mut clamped) & self.is_existing_service(backend, &mut clamped)
        });
        let leads = default.is_some() || rules.iter().any(|rule| rule.get("http").is_some());
        spec.extend(default.map(|backend| ("defaultBackend".to_owned(), backend)));
        if !rules.is_empty() {
            spec.insert("rules".into(), rules.into());
        }
        let tls: Vec<Value> = list_or_empty(spec.remove("tls"))
            .into_iter()
            .filter_map(|entry| self.clamp_tls(entry, &mut clamped))
            .collect();
        if !tls.is_empty() {
            spec.insert("tls".into(), tls.into());
        }
        if let Some(mut annotations) = known
            .remove("metadata")
            .and_then(|metadata| metadata.get("annotations")?.as_object().cloned())
        {
            annotations.retain(|key, _| {
                let is_kept = self.annotations.contains(key);
                if !is_kept {
                    clamped.annotations.insert(key.clone());
                }
                is_kept
            });
            if !annotations.is_empty() {
                known.insert("metadata".into(), json!({ "annotations": annotations }));
            }
        }
        clamped.content = leads.then(|| known.into());
        clamped
    }

    fn clamp_rule(&self, mut rule: Value, clamped: &mut ClampedIngress) -> Option<Value> {
        if !self.may_claim_host(IngressRuleView::of(&rule).host(), clamped) {
            return None;
        }
        let paths = field_mut(&mut rule, &["http", "paths"]);
        if let Some(paths) = paths.and_then(Value::as_array_mut) {
            paths.retain(|path| {
                let named = IngressPathView::of(path).path();
                let is_plain = named
                    .chars()
                    .all(|one| one.is_ascii_alphanumeric() || "-._~%!&*+,=:@/".contains(one));
                if !is_plain {
                    clamped
                        .paths
                        .insert(named.escape_debug().take(100).collect());
                }
                is_plain && self.is_existing_service(&path["backend"], clamped)
            });
            if paths.is_empty() {
                return None;
            }
        }
        Some(rule)
    }

    fn clamp_tls(&self, mut entry: Value, clamped: &mut ClampedIngress) -> Option<Value> {
        let Some(hosts) = entry.get_mut("hosts").and_then(Value::as_array_mut) else {
            return self.may_claim_host("", clamped).then_some(entry);
        };
        hosts.retain(|host| self.may_claim_host(host.as_str().unwrap_or_default(), clamped));
        (!hosts.is_empty()).then_some(entry)
    }

    /// Whether a backend is a Service that exists.
    fn is_existing_service(&self, backend: &Value, clamped: &mut ClampedIngress) -> bool {
        let service = IngressBackendView::of(backend).service().name();
        let is_there = self.services.contains(service);
        if !is_there {
            clamped.services.insert(service.to_owned());
        }
        is_there
    }

    /// Whether a host may be claimed; the empty one is every host.
    fn may_claim_host(&self, host: &str, clamped: &mut ClampedIngress) -> bool {
        let fits = self
            .hosts
            .iter()
            .any(|pattern| match pattern.strip_prefix('*') {
                Some("") => true,
                // The dot makes it a whole domain, and the host needs something in front of it.
                Some(domain) => {
                    domain.starts_with('.') && host.len() > domain.len() && host.ends_with(domain)
                }
                None => !host.is_empty() && pattern == host,
            });
        if !fits {
            clamped.hosts.insert(host.to_owned());
        }
        fits
    }
}

fn list_or_empty(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(all)) => all,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::items_at;

    fn to(service: &str) -> Value {
        json!({ "service": { "name": service, "port": { "number": 80 } } })
    }

    fn path(path: &str, service: &str) -> Value {
        json!({ "path": path, "pathType": "Prefix", "backend": to(service) })
    }

    fn home(spec: &Value) -> Value {
        json!({ "metadata": { "name": "shop", "annotations": { "example.com/size": "1m", "example.com/server-snippet": "evil",
                "kubernetes.io/ingress.class": "other", "liqo.io/remote-class": "x" } }, "spec": spec })
    }

    fn clamp(hosts: &[&str], annotations: &[&str], spec: &Value) -> ClampedIngress {
        let strings = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let services = BTreeSet::from(["web".to_owned()]);
        let (hosts, annotations) = (strings(hosts), strings(annotations));
        IngressLimits {
            hosts: &hosts,
            annotations: &annotations,
            services: &services,
        }
        .clamp_ingress(&home(spec))
    }

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|&one| one.to_owned()).collect()
    }

    #[test]
    fn what_is_known_travels_and_is_rebuilt_the_same() {
        let spec = json!({ "ingressClassName": "public", "somethingNew": 1, "defaultBackend": to("web"),
            "rules": [{ "host": "a.example.com", "http": { "paths": [path("/", "web"),
                { "pathType": "Exact", "path": "/x", "backend": { "resource": { "kind": "Bucket", "name": "b" } } }] } },
                { "host": "b.example.com" }],
            "tls": [{ "hosts": ["a.example.com"], "secretName": "cert", "new": 1 }] });
        let known = Value::from(travelling_ingress(&home(&spec)));
        let expected = json!({ "ingressClassName": "public", "defaultBackend": to("web"),
            "rules": [{ "host": "a.example.com", "http": { "paths": [path("/", "web")] } }, { "host": "b.example.com" }],
            "tls": [{ "hosts": ["a.example.com"], "secretName": "cert" }] });
        assert_eq!(known["spec"], expected);
        assert_eq!(
            known["metadata"]["annotations"],
            json!({ "example.com/size": "1m", "example.com/server-snippet": "evil" })
        );
        assert_eq!(Value::from(travelling_ingress(&known)), known);
        assert_eq!(secret_names(&known), names(&["cert"]));
    }

    #[test]
    fn only_hosts_that_the_policy_names_are_claimed() {
        let rules: Vec<Value> = [
            "a.example.com",
            "a.b.example.com",
            "*.example.com",
            "example.com",
            "evilexample.com",
            "bank.test",
            "bank.test.evil",
        ]
        .iter()
        .map(|host| json!({ "host": host, "http": { "paths": [path("/", "web")] } }))
        .collect();
        let claimed = |patterns: &[&str]| {
            let clamped = clamp(patterns, &[], &json!({ "rules": rules }));
            let content = clamped.content.unwrap_or_default();
            items_at(&content, "/spec/rules")
                .iter()
                .map(|rule| rule["host"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            claimed(&["*.example.com"]),
            ["a.example.com", "a.b.example.com", "*.example.com"]
        );
        assert_eq!(claimed(&["bank.test"]), ["bank.test"]);
        assert_eq!(claimed(&["*"]).len(), rules.len());
        assert!(claimed(&[]).is_empty());
        let refused = clamp(&["bank.test"], &[], &json!({ "rules": rules })).hosts;
        assert!(refused.contains("evilexample.com") && !refused.contains("bank.test"));
    }

    #[test]
    fn what_names_no_host_claims_all_of_them() {
        let spec = json!({ "defaultBackend": to("web"), "rules": [{ "http": { "paths": [path("/", "web")] } }],
            "tls": [{ "secretName": "cert" }] });
        let clamped = clamp(&["*.example.com"], &[], &spec);
        assert_eq!((clamped.content, clamped.hosts), (None, names(&[""])));
        assert_eq!(clamp(&["*"], &[], &spec).content.unwrap()["spec"], spec);
    }

    #[test]
    fn a_certificate_is_shown_for_hosts_that_may_be_claimed_only() {
        let spec = json!({ "rules": [{ "host": "a.example.com", "http": { "paths": [path("/", "web")] } }],
            "tls": [{ "hosts": ["a.example.com", "bank.test"], "secretName": "one" }, { "hosts": ["bank.test"], "secretName": "two" }] });
        let clamped = clamp(&["*.example.com"], &[], &spec);
        assert_eq!(
            clamped.content.unwrap()["spec"]["tls"],
            json!([{ "hosts": ["a.example.com"], "secretName": "one" }])
        );
        assert_eq!(clamped.hosts, names(&["bank.test"]));
    }

    #[test]
    fn paths_lead_to_services_of_home_only_and_are_plain_text() {
        let spec = json!({ "rules": [{ "host": "a.example.com", "http": { "paths": [path("/ok/%20a", "web"), path("/", "admins"),
            path("/x{}\n location", "web"), path("/y;z", "web")] } }, { "host": "b.example.com", "http": { "paths": [path("/", "admins")] } }] });
        let clamped = clamp(&["*"], &[], &spec);
        assert_eq!(
            clamped.content.unwrap()["spec"]["rules"],
            json!([{ "host": "a.example.com", "http": { "paths": [path("/ok/%20a", "web")] } }])
        );
        assert_eq!(
            (clamped.services, clamped.paths),
            (names(&["admins"]), names(&["/x{}\\n location", "/y;z"]))
        );
        assert_eq!(
            clamp(
                &["*"],
                &[],
                &json!({ "defaultBackend": to("admins"), "rules": [{ "host": "b.example.com" }] })
            )
            .content,
            None
        );
    }

    #[test]
    fn annotations_are_kept_by_their_whole_name_and_what_is_left_out_is_told() {
        let kept = |names: &[&str]| {
            let clamped = clamp(&["*"], names, &json!({ "defaultBackend": to("web") }));
            let content = clamped.content.unwrap();
            let kept = content
                .pointer("/metadata/annotations")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default();
            (
                kept.keys().cloned().collect::<BTreeSet<_>>(),
                clamped.annotations,
            )
        };
        let (size, snippet) = ("example.com/size", "example.com/server-snippet");
        assert_eq!(kept(&[]), (names(&[]), names(&[size, snippet])));
        assert_eq!(kept(&[size]), (names(&[size]), names(&[snippet])));
        assert_eq!(
            kept(&["*", "example.com/*"]).0,
            names(&[]),
            "a pattern would let through what claims other hosts"
        );
        assert_eq!(
            kept(&["kubernetes.io/ingress.class", "liqo.io/remote-class"]).0,
            names(&[])
        );
    }

    #[test]
    fn an_ingress_that_not_everybody_may_use_is_known_by_its_annotations() {
        let guarded = |key: &str, value: &str| {
            is_guarded(&json!({ "metadata": { "annotations": { key: value } } }))
        };
        for (key, value) in [
            (
                "nginx.ingress.kubernetes.io/auth-url",
                "https://sso.example.com",
            ),
            (
                "nginx.ingress.kubernetes.io/whitelist-source-range",
                "192.0.2.0/24",
            ),
            ("alb.ingress.kubernetes.io/scheme", "internal"),
            (
                "traefik.ingress.kubernetes.io/router.middlewares",
                "demo-auth@kubernetescrd",
            ),
            ("haproxy.org/allow-list", "192.0.2.1"),
        ] {
            assert!(guarded(key, value), "{key}");
        }
        for (key, value) in [
            ("nginx.ingress.kubernetes.io/proxy-body-size", "1m"),
            ("nginx.ingress.kubernetes.io/enable-global-auth", "false"),
            ("authority.example.com/size", "1"),
        ] {
            assert!(!guarded(key, value), "{key}");
        }
    }
}
