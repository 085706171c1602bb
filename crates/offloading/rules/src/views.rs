//! Typed views of objects that are kept as JSON, because fields that this version does not know
//! must survive.
//!
//! A view borrows the JSON and reads a field when it is asked for: nothing is parsed or copied. Each
//! field has its name here, once, and its type. A field of another type counts as missing, whoever
//! wrote it: it makes neither another field nor the list around it unreadable.
//!
//! [`ObjectView`] and [`ConditionView`] are of all kinds, [`PodView`] and [`NodeObjectView`] of pods
//! and nodes. The others are in `network` and `workload`.

use std::iter::Map as Mapped;
use std::slice::Iter;

use serde_json::{Map, Value};

/// Defines views by their fields: the name of a function, its type, and the field's name in JSON.
macro_rules! json_views {
    ($($(#[$doc:meta])* $view:ident { $($(#[$field_doc:meta])* $function:ident: $type:ty = $field:expr,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $view<'a>(&'a Value);

        impl<'a> $view<'a> {
            pub const fn of(json: &'a Value) -> Self {
                Self(json)
            }

            /// The whole JSON; null if it is missing.
            pub const fn json(self) -> &'a Value {
                self.0
            }

            $(
                $(#[$field_doc])*
                pub fn $function(self) -> $type {
                    $crate::views::FieldType::read(self.0.get($field))
                }
            )*
        }

        impl<'a> $crate::views::JsonView<'a> for $view<'a> {
            fn view(json: &'a Value) -> Self {
                Self(json)
            }
        }

        impl<'a> $crate::views::FieldType<'a> for $view<'a> {
            fn read(field: Option<&'a Value>) -> Self {
                Self(field.unwrap_or(&Value::Null))
            }
        }
    )*};
}

mod network;
mod node;
mod object;
mod pod;
mod workload;

pub use network::{
    EndpointSliceView, EndpointView, IngressBackendView, IngressPathView, IngressRuleView,
    IngressTlsView, IngressView, ServicePortView, ServiceView,
};
pub use node::{LeaseView, NodeObjectStatusView, NodeObjectView, TaintView};
pub use object::{ConditionView, LabelSelectorView, MetadataView, NamedView, ObjectView};
pub use pod::{
    AddressView, AffinityView, CapabilitiesView, ContainerList, ContainerPortView,
    ContainerStatusView, ContainerView, DownwardFilesView, PatchView, PodSpecView, PodStatusView,
    PodView, PreferredTermView, ProjectionView, ReadinessGateView, RequirementView,
    RunningStateView, TermView, TerminatedStateView, TokenProjectionView, TolerationView,
    TravelledView, VariableView, VolumeMountView, VolumeView, WaitingStateView,
};
pub(crate) use pod::{PREFERRED_TERMS, REQUIRED_TERMS};
pub use workload::{WorkloadSpecView, WorkloadView};

/// The elements of a list, each through its view.
pub type Views<'a, V> = Mapped<Iter<'a, Value>, fn(&'a Value) -> V>;

/// A view of JSON.
trait JsonView<'a>: Sized {
    fn view(json: &'a Value) -> Self;
}

/// A type in which fields are read. A missing field and one of another type give the same, unless
/// the type is optional JSON or an optional view.
trait FieldType<'a> {
    fn read(field: Option<&'a Value>) -> Self;
}

impl<'a> FieldType<'a> for Option<&'a Value> {
    fn read(field: Self) -> Self {
        field
    }
}

impl<'a> FieldType<'a> for Option<&'a str> {
    fn read(field: Option<&'a Value>) -> Self {
        field?.as_str()
    }
}

/// Empty if there is none.
impl<'a> FieldType<'a> for &'a str {
    fn read(field: Option<&'a Value>) -> Self {
        field.and_then(Value::as_str).unwrap_or_default()
    }
}

impl<'a> FieldType<'a> for Option<bool> {
    fn read(field: Option<&'a Value>) -> Self {
        field?.as_bool()
    }
}

impl<'a> FieldType<'a> for Option<i64> {
    fn read(field: Option<&'a Value>) -> Self {
        field?.as_i64()
    }
}

impl<'a> FieldType<'a> for Option<u64> {
    fn read(field: Option<&'a Value>) -> Self {
        field?.as_u64()
    }
}

impl<'a> FieldType<'a> for Option<&'a Map<String, Value>> {
    fn read(field: Option<&'a Value>) -> Self {
        field?.as_object()
    }
}

impl<'a> FieldType<'a> for Option<&'a [Value]> {
    fn read(field: Option<&'a Value>) -> Self {
        Some(field?.as_array()?.as_slice())
    }
}

/// Empty if there is none.
impl<'a> FieldType<'a> for &'a [Value] {
    fn read(field: Option<&'a Value>) -> Self {
        field.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

/// Empty if there is none.
impl<'a, V: JsonView<'a>> FieldType<'a> for Views<'a, V> {
    fn read(field: Option<&'a Value>) -> Self {
        <&[Value]>::read(field).iter().map(V::view)
    }
}

/// `None` only if the field is missing, whatever it contains.
impl<'a, V: JsonView<'a>> FieldType<'a> for Option<V> {
    fn read(field: Option<&'a Value>) -> Self {
        field.map(V::view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_of_another_type_counts_as_missing_and_hides_no_other_field() {
        for wrong in [
            json!(null),
            json!(7),
            json!("text"),
            json!([7]),
            json!({ "a": 7 }),
        ] {
            let pod = json!({
                "metadata": { "name": "web", "labels": wrong },
                "spec": { "containers": [wrong, { "name": "c", "env": wrong }], "volumes": wrong,
                    "nodeName": "milan", "setHostnameAsFQDN": wrong },
                "status": wrong,
            });
            let pod = PodView::of(&pod);
            assert_eq!(pod.metadata().name(), Some("web"));
            assert_eq!(pod.metadata().label("b"), None);
            let containers = pod.spec().containers().map(ContainerView::name);
            assert_eq!(containers.collect::<Vec<_>>(), ["", "c"]);
            assert!(
                pod.spec()
                    .containers()
                    .all(|one| one.image_text().is_none())
            );
            assert!(pod.spec().volumes().all(|one| one.name().is_empty()));
            assert_eq!(pod.spec().node_name(), Some("milan"));
            assert_eq!(pod.spec().set_hostname_as_fqdn(), None);
            assert_eq!(pod.status().phase(), None);
            assert_eq!(pod.status().conditions().len(), 0);
        }
    }

    #[test]
    fn nothing_is_in_the_view_of_what_is_missing() {
        let pod = PodView::of(&Value::Null);
        assert_eq!(pod.spec().json(), &Value::Null);
        assert_eq!(pod.spec().affinity().required_terms(), &[] as &[Value]);
        assert!(
            pod.status()
                .statuses_in(ContainerList::Init)
                .next()
                .is_none()
        );
    }

    #[test]
    fn a_state_exists_even_if_it_says_nothing() {
        let status = json!({ "state": { "running": null }, "lastState": {} });
        let status = ContainerStatusView::of(&status);
        assert!(status.state().running().is_some());
        assert!(status.last_state().running().is_none());
    }
}
