//! Computes the namespaces that should exist at a provider, and what the status of a
//! `NamespaceOffloading` says about them. Pure.

use std::collections::BTreeMap;

use liqo_api::conditions::DesiredCondition;
use liqo_api::{
    ClusterId, MappedNamespacePhase, NamespaceMap, NamespaceMappingStrategy, NamespaceOffloading,
    NamespaceReadyReason, OffloadedReason, PodOffloadingStrategy, RemoteNamespace, WantedNamespace,
    alternative_mapped_namespace, annotations, mapped_namespace,
};
use serde_json::{Map, Value, json};

use crate::json::set_at;
use crate::namespace::mapping::{LONGER_NAME, NAME_TAKEN};
use crate::namespace::node_selector;
use crate::pod::local::RemoteNamespaceState;

/// Type of the condition of a `NamespaceOffloading`.
pub const READY: &str = "Ready";

/// The fields of a virtual node that placement looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CandidateNode {
    /// Name of the Node.
    pub node: String,
    pub labels: BTreeMap<String, String>,
}

/// Whether a namespace is wanted at a provider with these virtual nodes.
pub fn is_wanted(offloading: &NamespaceOffloading, nodes: &[CandidateNode]) -> bool {
    let selector = offloading.spec.cluster_selector.as_ref();
    nodes
        .iter()
        .any(|node| node_selector::selects_node(selector, &node.node, &node.labels))
}

/// The mappings that a provider should have: one for each namespace that selects one of its virtual
/// nodes. A namespace that stops selecting it, or that is being unoffloaded, keeps its mapping
/// while pods run in it (`in_use`).
pub fn wanted_mappings<'a>(
    offloadings: impl IntoIterator<Item = (&'a str, &'a NamespaceOffloading)>,
    nodes: &[CandidateNode],
    us: (&str, &ClusterId),
    in_use: impl Fn(&str) -> bool,
) -> BTreeMap<String, WantedNamespace> {
    offloadings
        .into_iter()
        .filter(|(namespace, offloading)| {
            let stays = offloading.metadata.deletion_timestamp.is_none();
            (stays && is_wanted(offloading, nodes)) || in_use(namespace)
        })
        .map(|(namespace, offloading)| {
            (
                namespace.to_owned(),
                WantedNamespace {
                    remote_name: remote_name(namespace, offloading, us),
                },
            )
        })
        .collect()
}

/// The name that a namespace should have at its providers; `us` is this cluster's name and ID.
pub fn remote_name(
    namespace: &str,
    offloading: &NamespaceOffloading,
    us: (&str, &ClusterId),
) -> String {
    match (
        offloading.spec.namespace_mapping_strategy,
        &offloading.spec.remote_namespace_name,
    ) {
        (NamespaceMappingStrategy::EnforceSameName, _) => namespace.to_owned(),
        (NamespaceMappingStrategy::SelectedName, Some(name)) => name.clone(),
        _ => mapped_namespace(namespace, us.0, us.1),
    }
}

/// Whether a namespace has a name at the provider that an earlier `NamespaceOffloading` chose: the
/// namespace was unoffloaded and offloaded again with another strategy while the provider did not
/// answer. It gets the name that is `wanted` now when nothing runs in it any more. That this
/// cluster (`us`) is called differently now is no reason.
pub fn has_outdated_name(
    map: &NamespaceMap,
    namespace: &str,
    wanted: &str,
    us: &ClusterId,
) -> bool {
    let ending = format!("-{}", us.short_id());
    let standing = map
        .spec
        .mappings
        .get(namespace)
        .map(|standing| standing.remote_name.as_str());
    if standing.is_some() && standing == alternative_mapped_namespace(wanted, us).as_deref() {
        return false;
    }
    standing.is_some_and(|standing| {
        standing != wanted
            && [standing, wanted]
                .iter()
                .any(|name| *name == namespace || !name.ends_with(&ending))
    })
}

/// The name to ask for instead of a `wanted` default name that somebody else has taken at the
/// provider.
fn alternative_name(
    map: &NamespaceMap,
    namespace: &str,
    wanted: &str,
    us: &ClusterId,
) -> Option<String> {
    let alternative = alternative_mapped_namespace(wanted, us)?;
    let standing = &map.spec.mappings.get(namespace)?.remote_name;
    let said = map
        .status
        .as_ref()?
        .namespaces
        .get(namespace)
        .filter(|said| said.remote_name == *standing)?;
    let message = said.message.as_deref().unwrap_or_default();
    let knows_both = message.starts_with(NAME_TAKEN) && message.contains(LONGER_NAME);
    let is_taken = standing == wanted && said.phase == MappedNamespacePhase::Refused && knows_both;
    // Once chosen it stays, even if the provider refuses it, too: the two must not take turns.
    (is_taken || *standing == alternative).then_some(alternative)
}

/// The merge patch from a map to the wanted mappings; `None` if they are equal. A mapping keeps its
/// name, unless the provider refused that name, or the name is outdated and nothing `runs` in the
/// namespace there.
pub fn patch(
    map: &NamespaceMap,
    wanted: &BTreeMap<String, WantedNamespace>,
    us: &ClusterId,
    runs: impl Fn(&str) -> bool,
) -> Option<Value> {
    let standing = &map.spec.mappings;

    let added = wanted.iter().filter_map(|(namespace, mapping)| {
        let instead = alternative_name(map, namespace, &mapping.remote_name, us);
        let mapping = instead.map_or_else(
            || mapping.clone(),
            |remote_name| WantedNamespace { remote_name },
        );
        let differs = match standing.get(namespace) {
            Some(standing) => {
                *standing != mapping
                    && (is_refused(map, namespace)
                        || (has_outdated_name(map, namespace, &mapping.remote_name, us)
                            && !runs(namespace)))
            }
            None => true,
        };
        differs.then_some((namespace, mapping))
    });
    let removed = standing
        .keys()
        .filter(|namespace| !wanted.contains_key(*namespace));
    let changes: Map<String, Value> = added
        .map(|(namespace, mapping)| (namespace.clone(), json!(mapping)))
        .chain(removed.map(|namespace| (namespace.clone(), Value::Null)))
        .collect();
    (!changes.is_empty()).then(|| json!({ "spec": { "mappings": changes } }))
}

fn is_refused(map: &NamespaceMap, namespace: &str) -> bool {
    matches!(
        namespace_state(Some(map), namespace),
        RemoteNamespaceState::Refused { .. }
    )
}

/// Adds to the patch of a map that it announces this domain of our cluster, unless it does already.
/// If the domain is unknown for now, the announced one stays: pods at the provider use it.
pub fn announce_domain(
    patch: Option<Value>,
    map: &NamespaceMap,
    domain: Option<&str>,
) -> Option<Value> {
    let standing = map
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotations::CLUSTER_DOMAIN));
    if domain.is_none() || standing.map(String::as_str) == domain {
        return patch;
    }
    let mut patch = patch.unwrap_or_else(|| json!({}));
    set_at(
        &mut patch,
        &["metadata", "annotations", annotations::CLUSTER_DOMAIN],
        json!(domain),
    );
    Some(patch)
}

/// The state of a namespace at a provider, for its pods.
pub fn namespace_state(map: Option<&NamespaceMap>, namespace: &str) -> RemoteNamespaceState {
    let asked = map
        .and_then(|map| map.spec.mappings.get(namespace))
        .map(|asked| &asked.remote_name);
    let mapped = map.and_then(|map| map.status.as_ref()?.namespaces.get(namespace));
    // An answer about an earlier name says nothing about this one.
    let mapped = mapped.filter(|mapped| asked.is_none_or(|asked| *asked == mapped.remote_name));
    match mapped.map(|mapped| mapped.phase) {
        Some(MappedNamespacePhase::Ready) => RemoteNamespaceState::Ready,
        Some(MappedNamespacePhase::Refused) => {
            let why = mapped
                .and_then(|mapped| mapped.message.clone())
                .unwrap_or_default();
            RemoteNamespaceState::Refused {
                reason: OffloadedReason::NamespaceRefused.as_str(),
                message: format!("the provider refuses namespace {namespace}: {why}"),
            }
        }
        Some(MappedNamespacePhase::Terminating) | None => RemoteNamespaceState::Waiting,
    }
}

/// A provider, as the status of a `NamespaceOffloading` shows it.
pub struct OffloadingProvider<'a> {
    pub cluster_id: &'a ClusterId,
    pub cluster_name: &'a str,
    /// Its map, if it is known.
    pub map: Option<&'a NamespaceMap>,
    pub answers: bool,
}

/// The remote namespace at one selected provider, where it should have the name `wanted`; `us` is
/// this cluster.
pub fn remote_namespace(
    namespace: &str,
    wanted: &str,
    us: &ClusterId,
    provider: &OffloadingProvider,
) -> RemoteNamespace {
    let mapped = provider
        .map
        .and_then(|map| map.status.as_ref()?.namespaces.get(namespace));
    let asked = provider
        .map
        .and_then(|map| map.spec.mappings.get(namespace))
        .map(|asked| asked.remote_name.as_str());
    let message = match mapped {
        _ if !provider.answers => Some("the cluster does not answer".to_owned()),
        _ if provider
            .map
            .is_some_and(|map| has_outdated_name(map, namespace, wanted, us)) =>
        {
            Some(format!(
                "it has another name there from an earlier offloading; it becomes {wanted} when its pods there are gone"
            ))
        }
        Some(mapped) if asked.is_some_and(|asked| asked != mapped.remote_name) => Some(format!(
            "its earlier namespace {} is deleted first",
            mapped.remote_name
        )),
        Some(mapped) if mapped.phase == MappedNamespacePhase::Ready => None,
        Some(mapped) => Some(
            mapped
                .message
                .clone()
                .unwrap_or_else(|| format!("the cluster says {:?}", mapped.phase)),
        ),
        None => Some("the cluster has not answered yet".to_owned()),
    };
    RemoteNamespace {
        cluster_id: provider.cluster_id.clone(),
        cluster_name: provider.cluster_name.chars().take(63).collect(),
        namespace: asked
            .or(mapped.map(|mapped| mapped.remote_name.as_str()))
            .unwrap_or(wanted)
            .to_owned(),
        ready: message.is_none(),
        message: message.map(|message| {
            message
                .chars()
                .filter(|character| !character.is_control())
                .take(1000)
                .collect()
        }),
        exposed: Vec::new(),
    }
}

/// The condition of a namespace that may not be offloaded. `is_system`: it is Liqo's own.
///
/// Brokers of earlier versions offloaded Liqo's namespace without its pods, so that customers reach
/// the Service of their network manager. Here the network between clusters translates the addresses
/// of pods behind a broker, so such an object has nothing to do.
pub fn not_allowed_condition(is_system: bool, strategy: PodOffloadingStrategy) -> DesiredCondition {
    if is_system && strategy == PodOffloadingStrategy::Local {
        return DesiredCondition::yes(
            READY,
            NamespaceReadyReason::NotNeeded,
            "nothing of Liqo's own namespace is reflected: customers reach their pods behind this cluster through the network between clusters",
        );
    }
    DesiredCondition::no(
        READY,
        NamespaceReadyReason::NamespaceNotAllowed,
        "clusters keep default, kube-*, openshift-* and liqo* for themselves, so such namespaces cannot be offloaded; delete this object",
    )
}

/// Sums up the remote namespaces. `placed`: the webhook handles new pods of the namespace.
pub fn ready_condition(remotes: &[RemoteNamespace], placed: bool) -> DesiredCondition {
    let missing: Vec<&RemoteNamespace> = remotes.iter().filter(|remote| !remote.ready).collect();
    match (remotes, missing.as_slice()) {
        ([], _) => DesiredCondition::no(
            READY,
            NamespaceReadyReason::NoClusterSelected,
            "no virtual node is selected; see `kubectl get nodes -l liqo.io/type=virtual-node --show-labels`",
        ),
        (_, []) if !placed => DesiredCondition::no(
            READY,
            NamespaceReadyReason::WebhookPending,
            "the admission webhook does not see this namespace's new pods yet; it does in a moment, if the manager runs",
        ),
        (all, []) => DesiredCondition::yes(
            READY,
            NamespaceReadyReason::NamespacesReady,
            format!("the namespace exists in {} cluster(s)", all.len()),
        ),
        (_, missing) => {
            let each = missing.iter().map(|remote| {
                format!(
                    "{}: {}",
                    remote.cluster_name,
                    remote.message.as_deref().unwrap_or_default()
                )
            });
            DesiredCondition::no(
                READY,
                NamespaceReadyReason::NamespacesNotReady,
                each.collect::<Vec<_>>().join("; "),
            )
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use liqo_api::{MappedNamespace, NamespaceMapSpec, NamespaceMapStatus};

    use super::*;

    fn us() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    fn offloading(value: Value) -> NamespaceOffloading {
        let mut whole = json!({"apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading"}, "spec": {}});
        json_patch::merge(&mut whole, &value);
        serde_json::from_value(whole).unwrap()
    }

    fn nodes(region: &str) -> Vec<CandidateNode> {
        vec![CandidateNode {
            node: "milan".into(),
            labels: [("region".to_owned(), region.to_owned())].into(),
        }]
    }

    fn names(found: &BTreeMap<String, WantedNamespace>) -> Vec<&str> {
        found.keys().map(String::as_str).collect()
    }

    fn map(phase: MappedNamespacePhase) -> NamespaceMap {
        let mapped = MappedNamespace {
            remote_name: "demo-x".into(),
            uid: None,
            phase,
            message: Some("why".into()),
        };
        NamespaceMap {
            metadata: kube::core::ObjectMeta::default(),
            spec: NamespaceMapSpec::default(),
            status: Some(NamespaceMapStatus {
                namespaces: [("demo".to_owned(), mapped)].into(),
            }),
        }
    }

    #[test]
    fn liqos_own_namespace_without_its_pods_needs_no_offloading_and_nothing_else_of_it_is_allowed()
    {
        let reason = |is_system, strategy| not_allowed_condition(is_system, strategy).reason;
        assert_eq!(
            reason(true, PodOffloadingStrategy::Local),
            NamespaceReadyReason::NotNeeded.as_str()
        );
        for (is_system, strategy) in [
            (true, PodOffloadingStrategy::Remote),
            (false, PodOffloadingStrategy::Local),
        ] {
            assert_eq!(
                reason(is_system, strategy),
                NamespaceReadyReason::NamespaceNotAllowed.as_str()
            );
        }
    }

    #[test]
    fn only_selected_providers_get_the_namespace() {
        let only_eu = offloading(
            json!({"spec": {"clusterSelector": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "region", "operator": "In", "values": ["eu"]}]}]}}}),
        );
        let everywhere = offloading(json!({}));
        let at = |region| {
            wanted_mappings(
                [("demo", &only_eu), ("all", &everywhere)],
                &nodes(region),
                ("rome", &us()),
                |_| false,
            )
        };
        assert_eq!(names(&at("eu")), ["all", "demo"]);
        assert_eq!(names(&at("us")), ["all"]);
        assert_eq!(
            at("eu")["demo"].remote_name,
            mapped_namespace("demo", "rome", &us())
        );
    }

    #[test]
    fn a_namespace_has_the_name_at_the_provider_that_its_owner_chose() {
        let with = |spec: Value| {
            remote_name(
                "demo",
                &offloading(json!({ "spec": spec })),
                ("rome", &us()),
            )
        };
        assert_eq!(with(json!({})), mapped_namespace("demo", "rome", &us()));
        assert_eq!(
            with(json!({"namespaceMappingStrategy": "EnforceSameName"})),
            "demo"
        );
        assert_eq!(
            with(
                json!({"namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "team-a"})
            ),
            "team-a"
        );
        let same = offloading(json!({"spec": {"namespaceMappingStrategy": "EnforceSameName"}}));
        let found = wanted_mappings([("demo", &same)], &nodes("eu"), ("rome", &us()), |_| false);
        assert_eq!(found["demo"].remote_name, "demo");
    }

    #[test]
    fn a_provider_without_virtual_nodes_gets_nothing() {
        assert!(
            wanted_mappings(
                [("demo", &offloading(json!({})))],
                &[],
                ("rome", &us()),
                |_| false
            )
            .is_empty()
        );
    }

    #[test]
    fn a_namespace_whose_pods_run_somewhere_stays_there_when_it_is_no_longer_selected() {
        let all = offloading(json!({}));
        let found = wanted_mappings(
            [("demo", &all), ("idle", &all)],
            &[],
            ("rome", &us()),
            |one| one == "demo",
        );
        assert_eq!(names(&found), ["demo"]);
    }

    #[test]
    fn a_namespace_that_is_unoffloaded_keeps_its_mapping_until_its_pods_are_gone() {
        let ending = offloading(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let with = |in_use: bool| {
            wanted_mappings([("demo", &ending)], &nodes("eu"), ("rome", &us()), |_| {
                in_use
            })
        };
        assert_eq!(names(&with(true)), ["demo"]);
        assert!(with(false).is_empty());
    }

    /// A map with these mappings, all in this phase.
    fn map_of(mappings: &[(&str, &str)], phase: MappedNamespacePhase) -> NamespaceMap {
        let mut whole = map(phase);
        for (namespace, name) in mappings {
            whole.spec.mappings.insert(
                (*namespace).to_owned(),
                WantedNamespace {
                    remote_name: (*name).to_owned(),
                },
            );
            let mapped = MappedNamespace {
                remote_name: (*name).to_owned(),
                uid: None,
                phase,
                message: None,
            };
            whole
                .status
                .get_or_insert_default()
                .namespaces
                .insert((*namespace).to_owned(), mapped);
        }
        whole
    }

    #[test]
    fn nothing_is_written_when_the_mappings_stand() {
        let standing = map_of(
            &[("demo", "demo-rome-x"), ("old", "old-rome-x")],
            MappedNamespacePhase::Ready,
        );
        let patch = |map: &NamespaceMap, wanted| patch(map, wanted, &us(), |_| false);
        assert_eq!(patch(&standing, &standing.spec.mappings), None);
        let other = map_of(
            &[("demo", "demo-rome-x"), ("new", "new-rome-x")],
            MappedNamespacePhase::Ready,
        );
        let changes =
            json!({"spec": {"mappings": {"new": {"remoteName": "new-rome-x"}, "old": null}}});
        assert_eq!(patch(&standing, &other.spec.mappings), Some(changes));
    }

    #[test]
    fn a_map_announces_the_domain_of_our_cluster_once() {
        let mut map = map_of(&[], MappedNamespacePhase::Ready);
        let patch = |map: &NamespaceMap, domain| announce_domain(None, map, domain);
        assert_eq!(patch(&map, None), None);
        let announced =
            json!({ "metadata": { "annotations": { annotations::CLUSTER_DOMAIN: "corp.local" } } });
        assert_eq!(patch(&map, Some("corp.local")), Some(announced));
        let with_mappings = announce_domain(
            Some(json!({ "spec": { "mappings": {} } })),
            &map,
            Some("corp.local"),
        )
        .unwrap();
        assert!(with_mappings["spec"].is_object() && with_mappings["metadata"].is_object());
        map.metadata.annotations = Some(
            [(
                annotations::CLUSTER_DOMAIN.to_owned(),
                "corp.local".to_owned(),
            )]
            .into(),
        );
        assert_eq!(
            patch(&map, Some("corp.local")),
            None,
            "nothing is written when it stands there"
        );
        assert_eq!(
            patch(&map, None),
            None,
            "an unknown domain does not take the announced one away"
        );
        let mappings = json!({ "spec": { "mappings": { "old": null } } });
        assert_eq!(
            announce_domain(Some(mappings.clone()), &map, None),
            Some(mappings)
        );
    }

    #[test]
    fn a_mapping_keeps_its_name_unless_it_was_refused() {
        let (before, now) = (
            mapped_namespace("demo", "rome", &us()),
            mapped_namespace("demo", "turin", &us()),
        );
        let patch = |map: &NamespaceMap, wanted| patch(map, wanted, &us(), |_| false);
        let renamed = map_of(&[("demo", &now)], MappedNamespacePhase::Ready)
            .spec
            .mappings;
        assert_eq!(
            patch(
                &map_of(&[("demo", &before)], MappedNamespacePhase::Ready),
                &renamed
            ),
            None
        );
        let refused = map_of(&[("demo", &before)], MappedNamespacePhase::Refused);
        assert_eq!(
            patch(&refused, &renamed),
            Some(json!({"spec": {"mappings": {"demo": {"remoteName": now}}}}))
        );
        assert_eq!(patch(&refused, &refused.spec.mappings), None);
    }

    #[test]
    fn a_default_name_that_somebody_else_has_taken_is_replaced_once() {
        let (wanted, longer) = (mapped_namespace("demo", "rome", &us()), {
            let default = mapped_namespace("demo", "rome", &us());
            alternative_mapped_namespace(&default, &us()).unwrap()
        });
        let said = |name: &str, phase, message: &str| {
            let mut map = map_of(&[("demo", name)], phase);
            map.status
                .as_mut()
                .unwrap()
                .namespaces
                .get_mut("demo")
                .unwrap()
                .message = Some(message.to_owned());
            map
        };
        let mappings = map_of(&[("demo", &wanted)], MappedNamespacePhase::Ready)
            .spec
            .mappings;
        let patch = |map: &NamespaceMap| patch(map, &mappings, &us(), |_| false);
        let taken =
            "NameTaken: namespace x exists in this cluster. A longer default name is possible";
        let by_an_older_provider = "NameTaken: namespace x exists in this cluster";
        let changed = json!({"spec": {"mappings": {"demo": {"remoteName": longer}}}});
        assert_eq!(
            patch(&said(&wanted, MappedNamespacePhase::Refused, taken)),
            Some(changed)
        );
        for other in ["another reason", by_an_older_provider] {
            assert_eq!(
                patch(&said(&wanted, MappedNamespacePhase::Refused, other)),
                None
            );
        }
        for (phase, message) in [
            (MappedNamespacePhase::Ready, ""),
            (MappedNamespacePhase::Refused, taken),
        ] {
            let standing = said(&longer, phase, message);
            assert_eq!(patch(&standing), None, "{phase:?}");
            assert!(!has_outdated_name(&standing, "demo", &wanted, &us()));
        }
        let chosen = said("shop", MappedNamespacePhase::Refused, taken);
        let by_name = map_of(&[("demo", "shop")], MappedNamespacePhase::Ready)
            .spec
            .mappings;
        assert_eq!(
            super::patch(&chosen, &by_name, &us(), |_| false),
            None,
            "a name that the user chose stays"
        );
    }

    #[test]
    fn a_namespace_that_is_offloaded_again_with_another_strategy_gets_its_new_name_when_nothing_runs_there()
     {
        let default = mapped_namespace("demo", "rome", &us());
        for (before, now) in [
            (default.as_str(), "demo"),
            ("demo", default.as_str()),
            ("team-a", "team-b"),
            ("demo", "team-a"),
        ] {
            let map = map_of(&[("demo", before)], MappedNamespacePhase::Ready);
            let wanted = map_of(&[("demo", now)], MappedNamespacePhase::Ready)
                .spec
                .mappings;
            let with = |runs: bool| patch(&map, &wanted, &us(), |_| runs);
            assert_eq!(
                with(false),
                Some(json!({"spec": {"mappings": {"demo": {"remoteName": now}}}}))
            );
            assert_eq!(with(true), None, "{before} has pods");
            assert!(
                has_outdated_name(&map, "demo", now, &us())
                    && !has_outdated_name(&map, "demo", before, &us())
            );
            let (id, answers) = (us(), true);
            let provider = OffloadingProvider {
                cluster_id: &id,
                cluster_name: "milan",
                map: Some(&map),
                answers,
            };
            let shown = remote_namespace("demo", now, &us(), &provider);
            assert!(
                !shown.ready
                    && shown.namespace == before
                    && shown.message.unwrap().contains(&format!("becomes {now} "))
            );
        }
    }

    #[test]
    fn the_answer_about_an_earlier_name_says_nothing_about_this_one() {
        let mut map = map_of(&[("demo", "demo")], MappedNamespacePhase::Ready);
        map.status
            .as_mut()
            .unwrap()
            .namespaces
            .get_mut("demo")
            .unwrap()
            .remote_name = "earlier".into();
        assert_eq!(
            namespace_state(Some(&map), "demo"),
            RemoteNamespaceState::Waiting
        );
        let id = us();
        let provider = OffloadingProvider {
            cluster_id: &id,
            cluster_name: "milan",
            map: Some(&map),
            answers: true,
        };
        let shown = remote_namespace("demo", "demo", &id, &provider);
        assert_eq!((shown.ready, shown.namespace.as_str()), (false, "demo"));
        assert_eq!(
            shown.message.as_deref(),
            Some("its earlier namespace earlier is deleted first")
        );
    }

    #[test]
    fn pods_wait_for_a_namespace_that_is_not_there_yet() {
        assert_eq!(namespace_state(None, "demo"), RemoteNamespaceState::Waiting);
        assert_eq!(
            namespace_state(Some(&map(MappedNamespacePhase::Ready)), "demo"),
            RemoteNamespaceState::Ready
        );
        assert_eq!(
            namespace_state(Some(&map(MappedNamespacePhase::Ready)), "other"),
            RemoteNamespaceState::Waiting
        );
        assert_eq!(
            namespace_state(Some(&map(MappedNamespacePhase::Terminating)), "demo"),
            RemoteNamespaceState::Waiting
        );
        assert!(matches!(
            namespace_state(Some(&map(MappedNamespacePhase::Refused)), "demo"),
            RemoteNamespaceState::Refused { .. }
        ));
    }

    #[test]
    fn the_status_says_where_the_namespace_is_missing_and_why() {
        let id = us();
        let remote_with = |map: &NamespaceMap, answers| {
            let provider = OffloadingProvider {
                cluster_id: &id,
                cluster_name: "milan",
                map: Some(map),
                answers,
            };
            remote_namespace("demo", "demo-rome-y", &id, &provider)
        };
        let fine = remote_with(&map(MappedNamespacePhase::Ready), true);
        assert!(fine.ready && fine.message.is_none() && fine.namespace == "demo-x");
        let silent = remote_with(&map(MappedNamespacePhase::Ready), false);
        let refused = remote_with(&map(MappedNamespacePhase::Refused), true);
        assert!(!silent.ready && !refused.ready);
        assert_eq!(refused.message.as_deref(), Some("why"));
        assert_eq!(
            ready_condition(std::slice::from_ref(&fine), true).status,
            Some(true)
        );
        assert_eq!(
            ready_condition(std::slice::from_ref(&fine), false).reason,
            "WebhookPending"
        );
        assert_eq!(
            ready_condition(&[fine, refused], true).message,
            "milan: why"
        );
        assert_eq!(ready_condition(&[], true).reason, "NoClusterSelected");
    }
}
