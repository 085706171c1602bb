//! The Ingresses, and Services of type `LoadBalancer`, that clients outside the provider's cluster
//! can reach, and their classes. A class means something in its own cluster only, so the consumer
//! does not send its own. Users may name a class for other clusters in an annotation. The provider
//! gives that class if its policy allows it, otherwise the first that the policy allows. The empty
//! name means the default of the provider's cluster: then the field stays empty, and what the
//! cluster writes there is not treated as a change.

use std::net::IpAddr;

use liqo_api::{Exposure, annotations::REMOTE_CLASS};
use serde_json::Value;

use crate::json::field_at;
use crate::replica::kind::ReplicaKind;
use crate::views::{ObjectView, ServiceView};

/// Maximum number of addresses of one object that the consumer shows.
const MAX_ADDRESSES: usize = 8;
/// Maximum length of the name of a class or host, in bytes.
const MAX_NAME_LEN: usize = 253;
/// Value of the annotation: no client outside the cluster may reach the object.
const NONE: &str = "none";

/// The class that an object's annotation names for other clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExposureRequest {
    /// No annotation: the provider decides.
    Any,
    Class(String),
    /// No client outside the cluster may reach it.
    Nothing,
}

pub fn exposure_request(object: &Value) -> ExposureRequest {
    match annotated_class(object).map(str::trim) {
        None | Some("") => ExposureRequest::Any,
        Some(NONE) => ExposureRequest::Nothing,
        Some(class) => ExposureRequest::Class(class.to_owned()),
    }
}

fn annotated_class(object: &Value) -> Option<&str> {
    ObjectView::of(object).metadata().annotation(REMOTE_CLASS)
}

fn class_field(kind: ReplicaKind) -> &'static str {
    if kind == ReplicaKind::Ingress {
        "ingressClassName"
    } else {
        "loadBalancerClass"
    }
}

/// The class that an object names, empty if it names none; `None` if it is neither an Ingress nor a
/// Service of type `LoadBalancer`.
pub fn object_class(kind: ReplicaKind, object: &Value) -> Option<&str> {
    let is_shown = kind == ReplicaKind::Ingress
        || (kind == ReplicaKind::Service
            && ServiceView::of(object).spec().kind() == Some("LoadBalancer"));
    is_shown.then(|| {
        field_at(object, &["spec", class_field(kind)])
            .and_then(Value::as_str)
            .unwrap_or_default()
    })
}

/// The part of a replica that travels on from a brokered namespace: only the cluster that the
/// consumer asked lets clients outside the cluster reach it, by its own policy. The classes of that
/// cluster mean nothing to the next one.
pub fn brokered_content(kind: ReplicaKind, mut object: Value) -> Option<Value> {
    if kind == ReplicaKind::Service && object_class(kind, &object).is_some() {
        let spec = object.get_mut("spec")?.as_object_mut()?;
        spec.retain(|field, _| {
            !field.starts_with("loadBalancer") && field != "allocateLoadBalancerNodePorts"
        });
        spec.insert("type".into(), "ClusterIP".into());
    }
    (kind != ReplicaKind::Ingress).then_some(object)
}

pub(crate) fn set_class(kind: ReplicaKind, object: &mut Value, class: &str) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove(class_field(kind));
        if !class.is_empty() {
            spec.insert(class_field(kind).into(), class.into());
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

/// A replica that was read back.
pub(crate) struct ReadReplica {
    /// The object as Liqo wrote it, without the class that the cluster filled in.
    pub(crate) object: Value,
    /// How clients outside the cluster reach it.
    pub(crate) exposure: Option<Exposure>,
}

pub(crate) fn as_written_by_liqo(kind: ReplicaKind, mut replica: Value) -> ReadReplica {
    let Some(class) = object_class(kind, &replica) else {
        return ReadReplica {
            object: replica,
            exposure: None,
        };
    };
    let class = annotated_class(&replica).unwrap_or(class).to_owned();
    let points = ServiceView::of(&replica).status().load_balancer().ingress();
    let addresses = points
        .filter_map(|point| point.ip().or(point.hostname()))
        .map(str::to_owned);
    let exposure = Exposure {
        addresses: addresses.collect(),
        class,
    };
    if exposure.class.is_empty() {
        set_class(kind, &mut replica, "");
    }
    ReadReplica {
        object: replica,
        exposure: valid_exposure(exposure),
    }
}

/// Keeps valid addresses and names, and limits their number; `None` if the class is invalid.
pub(crate) fn valid_exposure(mut exposure: Exposure) -> Option<Exposure> {
    exposure.addresses.retain(|one| {
        one.parse::<IpAddr>().is_ok() || (!one.is_empty() && is_plain_name(one, &[]))
    });
    exposure.addresses.sort();
    exposure.addresses.dedup();
    exposure.addresses.truncate(MAX_ADDRESSES);
    is_plain_name(&exposure.class, &['/', '_']).then_some(exposure)
}

fn is_plain_name(name: &str, more: &[char]) -> bool {
    name.len() <= MAX_NAME_LEN
        && name.chars().all(|one| {
            one.is_ascii_alphanumeric() || ['-', '.'].contains(&one) || more.contains(&one)
        })
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
            exposure_request(&json!({ "metadata": { "annotations": { REMOTE_CLASS: value } } }))
        };
        assert_eq!(
            (asked(" edge "), asked("none"), asked("")),
            (
                ExposureRequest::Class("edge".into()),
                ExposureRequest::Nothing,
                ExposureRequest::Any
            )
        );
        assert_eq!(exposure_request(&json!({})), ExposureRequest::Any);
    }

    #[test]
    fn a_class_that_the_cluster_filled_in_is_no_change_and_one_that_somebody_wrote_is() {
        let replica = |given: &str| {
            json!({ "metadata": { "annotations": { REMOTE_CLASS: given } }, "spec": { "ingressClassName": "nginx" },
                "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.7" }, { "hostname": "lb.example.com" }, { "ip": "a b" }] } } })
        };
        let read = as_written_by_liqo(ReplicaKind::Ingress, replica(""));
        assert_eq!(read.object["spec"], json!({}));
        let addresses = vec!["203.0.113.7".to_owned(), "lb.example.com".to_owned()];
        assert_eq!(
            read.exposure,
            Some(Exposure {
                class: String::new(),
                addresses
            })
        );
        let read = as_written_by_liqo(ReplicaKind::Ingress, replica("public"));
        assert_eq!(
            (
                read.object["spec"]["ingressClassName"].as_str(),
                read.exposure.unwrap().class.as_str()
            ),
            (Some("nginx"), "public")
        );
    }

    #[test]
    fn a_brokered_replica_is_reached_from_outside_only_where_the_consumer_asked() {
        let replica = json!({ "metadata": { "annotations": { REMOTE_CLASS: "brokers" } }, "spec": { "type": "LoadBalancer", "loadBalancerClass": "brokers",
            "loadBalancerSourceRanges": ["198.51.100.0/24"], "allocateLoadBalancerNodePorts": false, "ports": [{ "port": 80 }] } });
        let object = LocalService::from_service(serde_json::from_value(replica).unwrap())
            .unwrap()
            .to_object()
            .unwrap();
        assert_eq!(
            object_class(ReplicaKind::Service, &object),
            Some("brokers"),
            "it would ask the next cluster for this class"
        );
        let travels = brokered_content(ReplicaKind::Service, object).unwrap();
        assert_eq!(object_class(ReplicaKind::Service, &travels), None);
        assert!(!travels.to_string().contains("brokers") && travels["spec"]["type"] == "ClusterIP");
        assert_eq!(travels["spec"]["ports"][0]["port"], 80);
        assert_eq!(
            brokered_content(ReplicaKind::Ingress, json!({ "spec": {} })),
            None
        );
        assert_eq!(
            brokered_content(ReplicaKind::EndpointSlice, json!({ "endpoints": [] })),
            Some(json!({ "endpoints": [] }))
        );
    }

    #[test]
    fn only_load_balancers_and_ingresses_have_a_class() {
        let service = |kind: &str| json!({ "spec": { "type": kind, "loadBalancerClass": "edge" } });
        assert_eq!(
            object_class(ReplicaKind::Service, &service("LoadBalancer")),
            Some("edge")
        );
        assert_eq!(
            object_class(ReplicaKind::Service, &service("ClusterIP")),
            None
        );
        assert_eq!(
            object_class(ReplicaKind::Ingress, &json!({ "spec": {} })),
            Some("")
        );
        assert_eq!(
            as_written_by_liqo(ReplicaKind::Service, service("ClusterIP")).exposure,
            None
        );
    }

    #[test]
    fn what_a_provider_says_of_addresses_is_not_believed_beyond_measure() {
        let many = (0..100).map(|host| format!("192.0.2.{host}")).collect();
        assert_eq!(
            valid_exposure(Exposure {
                class: "a/b_c".into(),
                addresses: many
            })
            .unwrap()
            .addresses
            .len(),
            MAX_ADDRESSES
        );
        assert_eq!(
            valid_exposure(Exposure {
                class: "a\u{1b}[2J".into(),
                addresses: Vec::new()
            }),
            None
        );
    }
}
