//! What of a consumer is shown to the world at a provider, and by which class: Ingresses, and Services of type `LoadBalancer`.
//!
//! A class means something in its own cluster only, so home does not send its own. Its users may name one for other clusters, by an
//! annotation; the provider gives that class if its policy allows it, and else the first that it does. The empty name stands for
//! the default of the provider's cluster: then the field stays empty, and what the cluster writes there is nobody's change.

use std::net::IpAddr;

use liqo_api::{Exposure, annotations::REMOTE_CLASS};
use serde_json::Value;

use super::{items, kind::Kind, text};

/// So many addresses of one object are shown at home.
const MOST_ADDRESSES: usize = 8;
/// The longest name of a class or host, in bytes.
const LONGEST_NAME: usize = 253;
/// What the annotation says of an object that nobody outside is to reach.
const NONE: &str = "none";

/// What the users of an object ask for in other clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Whatever is usual there.
    Any,
    /// This class.
    Class(String),
    /// Nobody outside is to reach it.
    Nothing,
}

/// What the users of this object ask for.
pub fn wish(object: &Value) -> Wish {
    match named(object).map(str::trim) {
        None | Some("") => Wish::Any,
        Some(NONE) => Wish::Nothing,
        Some(class) => Wish::Class(class.to_owned()),
    }
}

fn named(object: &Value) -> Option<&str> {
    object.pointer("/metadata/annotations")?.get(REMOTE_CLASS)?.as_str()
}

/// The field that names the class of such an object.
fn field(kind: Kind) -> &'static str {
    if kind == Kind::Ingress { "ingressClassName" } else { "loadBalancerClass" }
}

/// The class that an object names, empty where it names none; nothing for one that is not shown to the world.
pub fn class(kind: Kind, object: &Value) -> Option<&str> {
    let is_shown = kind == Kind::Ingress || (kind == Kind::Service && text(object, "/spec/type") == Some("LoadBalancer"));
    is_shown.then(|| object.get("spec").and_then(|spec| text(spec, &format!("/{}", field(kind)))).unwrap_or_default())
}

/// Gives an object this class.
pub fn set_class(kind: Kind, object: &mut Value, class: &str) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove(field(kind));
        if !class.is_empty() {
            spec.insert(field(kind).into(), class.into());
        }
    }
}

/// The class that whoever asks for this one gets; the empty name asks for none. Nothing where none is allowed.
pub fn given<'a>(asked: &str, allowed: &'a [String]) -> Option<&'a str> {
    let found = allowed.iter().find(|class| !asked.is_empty() && *class == asked);
    found.or(allowed.first()).map(String::as_str)
}

/// A twin as it was made: without the class that the cluster filled in where it was given none. And how the world reaches it.
pub fn as_made(kind: Kind, mut twin: Value) -> (Value, Option<Exposure>) {
    let Some(class) = class(kind, &twin) else { return (twin, None) };
    let class = named(&twin).unwrap_or(class).to_owned();
    let points = items(&twin, "/status/loadBalancer/ingress");
    let addresses = points.iter().filter_map(|point| text(point, "/ip").or(text(point, "/hostname"))).map(str::to_owned);
    let exposure = Exposure { addresses: addresses.collect(), class };
    if exposure.class.is_empty() {
        set_class(kind, &mut twin, "");
    }
    (twin, clean(exposure))
}

/// What is believed and kept of that; nothing of what is no class.
pub fn clean(mut exposure: Exposure) -> Option<Exposure> {
    let is_name = |name: &str, more: &[char]| {
        name.len() <= LONGEST_NAME
            && name.chars().all(|one| one.is_ascii_alphanumeric() || ['-', '.'].contains(&one) || more.contains(&one))
    };
    exposure.addresses.retain(|one| one.parse::<IpAddr>().is_ok() || (!one.is_empty() && is_name(one, &[])));
    exposure.addresses.sort();
    exposure.addresses.dedup();
    exposure.addresses.truncate(MOST_ADDRESSES);
    is_name(&exposure.class, &['/', '_']).then_some(exposure)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_asks_for_a_class_that_is_not_allowed_gets_the_first_that_is() {
        let allowed = ["public".to_owned(), String::new(), "edge".to_owned()];
        assert_eq!(
            (given("edge", &allowed), given("", &allowed), given("mine", &allowed)),
            (Some("edge"), Some("public"), Some("public"))
        );
        assert_eq!((given("edge", &allowed[1..2]), given("edge", &[])), (Some(""), None));
    }

    #[test]
    fn the_annotation_says_what_is_asked_for() {
        let asked = |value: &str| wish(&json!({ "metadata": { "annotations": { REMOTE_CLASS: value } } }));
        assert_eq!((asked(" edge "), asked("none"), asked("")), (Wish::Class("edge".into()), Wish::Nothing, Wish::Any));
        assert_eq!(wish(&json!({})), Wish::Any);
    }

    #[test]
    fn a_class_that_the_cluster_filled_in_is_no_change_and_one_that_somebody_wrote_is() {
        let twin = |given: &str| {
            json!({ "metadata": { "annotations": { REMOTE_CLASS: given } }, "spec": { "ingressClassName": "nginx" },
                "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.7" }, { "hostname": "lb.example.com" }, { "ip": "a b" }] } } })
        };
        let (made, exposure) = as_made(Kind::Ingress, twin(""));
        assert_eq!(made["spec"], json!({}));
        let addresses = vec!["203.0.113.7".to_owned(), "lb.example.com".to_owned()];
        assert_eq!(exposure, Some(Exposure { class: String::new(), addresses }));
        let (made, exposure) = as_made(Kind::Ingress, twin("public"));
        assert_eq!((made["spec"]["ingressClassName"].as_str(), exposure.unwrap().class.as_str()), (Some("nginx"), "public"));
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
        assert_eq!(clean(Exposure { class: "a/b_c".into(), addresses: many }).unwrap().addresses.len(), MOST_ADDRESSES);
        assert_eq!(clean(Exposure { class: "a\u{1b}[2J".into(), addresses: Vec::new() }), None);
    }
}
