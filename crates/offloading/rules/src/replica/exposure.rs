//! The Ingresses, and Services of type `LoadBalancer`, that clients outside the provider's cluster
//! can reach, and their classes. A class means something in its own cluster only, so the consumer
//! does not send its own. Users may name a class for other clusters in an annotation. The provider
//! gives that class if its policy allows it, otherwise the first that the policy allows. The empty
//! name means the default of the provider's cluster: then the field stays empty, and what the
//! cluster writes there is not treated as a change.

use std::net::IpAddr;

use liqo_api::{Exposure, annotations::REMOTE_CLASS};
use serde_json::Value;

use crate::json::{items, text};
use crate::replica::kind::Kind;

/// Maximum number of addresses of one object that the consumer shows.
const MAX_ADDRESSES: usize = 8;
/// Maximum length of the name of a class or host, in bytes.
const MAX_NAME_LEN: usize = 253;
/// Value of the annotation: no client outside the cluster may reach the object.
const NONE: &str = "none";

/// The class that an object's annotation names for other clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// No annotation: the provider decides.
    Any,
    Class(String),
    /// No client outside the cluster may reach it.
    Nothing,
}

pub fn request(object: &Value) -> Request {
    match named(object).map(str::trim) {
        None | Some("") => Request::Any,
        Some(NONE) => Request::Nothing,
        Some(class) => Request::Class(class.to_owned()),
    }
}

fn named(object: &Value) -> Option<&str> {
    object
        .pointer("/metadata/annotations")?
        .get(REMOTE_CLASS)?
        .as_str()
}

fn field(kind: Kind) -> &'static str {
    if kind == Kind::Ingress {
        "ingressClassName"
    } else {
        "loadBalancerClass"
    }
}

/// The class that an object names, empty if it names none; `None` if it is neither an Ingress nor a
/// Service of type `LoadBalancer`.
pub fn class(kind: Kind, object: &Value) -> Option<&str> {
    let is_shown = kind == Kind::Ingress
        || (kind == Kind::Service && text(object, "/spec/type") == Some("LoadBalancer"));
    is_shown.then(|| {
        object
            .get("spec")
            .and_then(|spec| text(spec, &format!("/{}", field(kind))))
            .unwrap_or_default()
    })
}

/// The part of a replica that travels on from a namespace that is lent on: only the cluster that
/// the consumer asked lets clients outside the cluster reach it, by its own policy. The classes of
/// that cluster mean nothing to the next one.
pub fn lent_on(kind: Kind, mut object: Value) -> Option<Value> {
    if kind == Kind::Service && class(kind, &object).is_some() {
        let spec = object.get_mut("spec")?.as_object_mut()?;
        spec.retain(|field, _| {
            !field.starts_with("loadBalancer") && field != "allocateLoadBalancerNodePorts"
        });
        spec.insert("type".into(), "ClusterIP".into());
    }
    (kind != Kind::Ingress).then_some(object)
}

pub(crate) fn set_class(kind: Kind, object: &mut Value, class: &str) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove(field(kind));
        if !class.is_empty() {
            spec.insert(field(kind).into(), class.into());
        }
    }
}

/// The class that a request for `asked` gets; the empty name asks for none. `None` if the policy
/// allows no class.
pub(crate) fn granted_class<'a>(asked: &str, allowed: &'a [String]) -> Option<&'a str> {
    let found = allowed
        .iter()
        .find(|class| !asked.is_empty() && *class == asked);
    found.or(allowed.first()).map(String::as_str)
}

/// The replica as Liqo wrote it, without the class that the cluster filled in; and how clients
/// outside the cluster reach it.
pub(crate) fn as_made(kind: Kind, mut replica: Value) -> (Value, Option<Exposure>) {
    let Some(class) = class(kind, &replica) else {
        return (replica, None);
    };
    let class = named(&replica).unwrap_or(class).to_owned();
    let points = items(&replica, "/status/loadBalancer/ingress");
    let addresses = points
        .iter()
        .filter_map(|point| text(point, "/ip").or(text(point, "/hostname")))
        .map(str::to_owned);
    let exposure = Exposure {
        addresses: addresses.collect(),
        class,
    };
    if exposure.class.is_empty() {
        set_class(kind, &mut replica, "");
    }
    (replica, clean(exposure))
}

/// Keeps valid addresses and names, and limits their number; `None` if the class is invalid.
pub(crate) fn clean(mut exposure: Exposure) -> Option<Exposure> {
    let is_name = |name: &str, more: &[char]| {
        name.len() <= MAX_NAME_LEN
            && name.chars().all(|one| {
                one.is_ascii_alphanumeric() || ['-', '.'].contains(&one) || more.contains(&one)
            })
    };
    exposure
        .addresses
        .retain(|one| one.parse::<IpAddr>().is_ok() || (!one.is_empty() && is_name(one, &[])));
    exposure.addresses.sort();
    exposure.addresses.dedup();
    exposure.addresses.truncate(MAX_ADDRESSES);
    is_name(&exposure.class, &['/', '_']).then_some(exposure)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::replica::record::LocalService;

    #[test]
    fn who_asks_for_a_class_that_is_not_allowed_gets_the_first_that_is() {
        let allowed = ["public".to_owned(), String::new(), "edge".to_owned()];
        assert_eq!(
            (
                granted_class("edge", &allowed),
                granted_class("", &allowed),
                granted_class("mine", &allowed)
            ),
            (Some("edge"), Some("public"), Some("public"))
        );
        assert_eq!(
            (
                granted_class("edge", &allowed[1..2]),
                granted_class("edge", &[])
            ),
            (Some(""), None)
        );
    }

    #[test]
    fn the_annotation_says_what_is_asked_for() {
        let asked = |value: &str| {
            request(&json!({ "metadata": { "annotations": { REMOTE_CLASS: value } } }))
        };
        assert_eq!(
            (asked(" edge "), asked("none"), asked("")),
            (
                Request::Class("edge".into()),
                Request::Nothing,
                Request::Any
            )
        );
        assert_eq!(request(&json!({})), Request::Any);
    }

    #[test]
    fn a_class_that_the_cluster_filled_in_is_no_change_and_one_that_somebody_wrote_is() {
        let replica = |given: &str| {
            json!({ "metadata": { "annotations": { REMOTE_CLASS: given } }, "spec": { "ingressClassName": "nginx" },
                "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.7" }, { "hostname": "lb.example.com" }, { "ip": "a b" }] } } })
        };
        let (made, exposure) = as_made(Kind::Ingress, replica(""));
        assert_eq!(made["spec"], json!({}));
        let addresses = vec!["203.0.113.7".to_owned(), "lb.example.com".to_owned()];
        assert_eq!(
            exposure,
            Some(Exposure {
                class: String::new(),
                addresses
            })
        );
        let (made, exposure) = as_made(Kind::Ingress, replica("public"));
        assert_eq!(
            (
                made["spec"]["ingressClassName"].as_str(),
                exposure.unwrap().class.as_str()
            ),
            (Some("nginx"), "public")
        );
    }

    #[test]
    fn what_is_lent_on_is_reached_from_outside_only_where_the_consumer_asked() {
        let replica = json!({ "metadata": { "annotations": { REMOTE_CLASS: "brokers" } }, "spec": { "type": "LoadBalancer", "loadBalancerClass": "brokers",
            "loadBalancerSourceRanges": ["198.51.100.0/24"], "allocateLoadBalancerNodePorts": false, "ports": [{ "port": 80 }] } });
        let object = LocalService::of(serde_json::from_value(replica).unwrap())
            .unwrap()
            .object()
            .unwrap();
        assert_eq!(
            class(Kind::Service, &object),
            Some("brokers"),
            "it would ask the next cluster for this class"
        );
        let travels = lent_on(Kind::Service, object).unwrap();
        assert_eq!(class(Kind::Service, &travels), None);
        assert!(!travels.to_string().contains("brokers") && travels["spec"]["type"] == "ClusterIP");
        assert_eq!(travels["spec"]["ports"][0]["port"], 80);
        assert_eq!(lent_on(Kind::Ingress, json!({ "spec": {} })), None);
        assert_eq!(
            lent_on(Kind::EndpointSlice, json!({ "endpoints": [] })),
            Some(json!({ "endpoints": [] }))
        );
    }

    #[test]
    fn only_load_balancers_and_ingresses_have_a_class() {
        let service = |kind: &str| json!({ "spec": { "type": kind, "loadBalancerClass": "edge" } });
        assert_eq!(class(Kind::Service, &service("LoadBalancer")), Some("edge"));
        assert_eq!(class(Kind::Service, &service("ClusterIP")), None);
        assert_eq!(class(Kind::Ingress, &json!({ "spec": {} })), Some(""));
        assert_eq!(as_made(Kind::Service, service("ClusterIP")).1, None);
    }

    #[test]
    fn what_a_provider_says_of_addresses_is_not_believed_beyond_measure() {
        let many = (0..100).map(|host| format!("192.0.2.{host}")).collect();
        assert_eq!(
            clean(Exposure {
                class: "a/b_c".into(),
                addresses: many
            })
            .unwrap()
            .addresses
            .len(),
            MAX_ADDRESSES
        );
        assert_eq!(
            clean(Exposure {
                class: "a\u{1b}[2J".into(),
                addresses: Vec::new()
            }),
            None
        );
    }
}
