//! Decides which mapped namespaces of one consumer to create, check and delete, and computes the
//! status of its `NamespaceMap`.

use std::{collections::BTreeMap, sync::Arc};

use liqo_api::{
    ClusterId, MappedNamespace, MappedNamespacePhase, NamespaceMap, Usage, WantedNamespace,
    alternative_mapped_namespace, is_reserved, mapped_namespace,
};

use crate::dns_names;
use crate::namespace::mapped::{ConsumerNamespace, NamespaceKind};
use crate::pod::consumer_policy::{self, ConsumerPolicy};

/// The message begins with this if somebody else has a namespace of the wanted name. Consumers look
/// for it.
pub(super) const NAME_TAKEN: &str = "NameTaken";
/// Says to the consumer that this provider accepts the alternative name of a namespace, too. Older
/// ones do not.
pub(super) const LONGER_NAME: &str = "A longer default name is possible";

/// Top-level domains of more than two letters that are often asked for, and those that networks use
/// for themselves.
const TOP_LEVEL_DOMAINS: [&str; 40] = [
    "aero", "agency", "app", "arpa", "asia", "biz", "cat", "cloud", "com", "coop", "corp", "dev",
    "digital", "edu", "global", "gov", "group", "home", "info", "int", "internal", "jobs", "lan",
    "live", "local", "mil", "mobi", "name", "net", "network", "online", "org", "pro", "services",
    "site", "systems", "tech", "travel", "xyz", "zone",
];

/// The input of a plan.
pub struct MappingSnapshot<'a> {
    /// `None` if it is gone.
    pub tenant: Option<&'a ConsumerNamespace>,
    pub map: Option<&'a NamespaceMap>,
    /// All namespaces that we created, by name.
    pub namespaces: &'a BTreeMap<String, Arc<ConsumerNamespace>>,
    pub policy: Option<&'a ConsumerPolicy>,
    /// Whether the contents of the namespace with this UID are known to be complete.
    pub prepared: &'a (dyn Fn(&str) -> bool + Sync),
    /// Whether the namespace with this name has remote pods.
    pub has_pods: &'a (dyn Fn(&str) -> bool + Sync),
    /// Names that belong to namespaces which we did not create.
    pub taken: &'a (dyn Fn(&str) -> bool + Sync),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingStep {
    Create {
        home: String,
        name: String,
    },
    /// Change the Pod Security standard that the namespace enforces.
    SetPodSecurity {
        name: String,
        uid: String,
        level: &'static str,
    },
    /// Create the contents of the namespace.
    Prepare {
        name: String,
        uid: String,
    },
    Delete {
        name: String,
        uid: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MappingPlan {
    pub steps: Vec<MappingStep>,
    pub status: BTreeMap<String, MappedNamespace>,
}

/// Plans for one consumer. Namespaces of other consumers only occupy names.
pub fn plan_mappings(consumer: &ClusterId, snapshot: &MappingSnapshot) -> MappingPlan {
    let mut plan = MappingPlan::default();
    let tenant = snapshot.tenant.filter(|tenant| !tenant.terminating);
    let nothing = BTreeMap::new();
    let wanted = snapshot
        .map
        .filter(|_| tenant.is_some())
        .map_or(&nothing, |map| &map.spec.mappings);
    plan.delete_unwanted(consumer, snapshot, wanted);

    let mut number = snapshot
        .namespaces
        .values()
        .filter(|found| {
            found.consumer == *consumer && matches!(found.kind, NamespaceKind::Mapped { .. })
        })
        .count();
    for (home, wanted) in wanted {
        // Delete a namespace under its former name first.
        if plan.status.contains_key(home) {
            continue;
        }
        let name = &wanted.remote_name;
        let entry = match snapshot.namespaces.get(name) {
            Some(found) if found.is_mapped_from(consumer, home) => {
                plan.keep_namespace(snapshot, home, name, found)
            }
            Some(_) => Some(map_entry(
                name,
                None,
                MappedNamespacePhase::Refused,
                &name_taken_message(name),
            )),
            None => {
                let refusal = check_name(consumer, tenant, snapshot.policy, home, name)
                    .and_then(|()| has_room(snapshot, name, number))
                    .err();
                if refusal.is_none() {
                    number += 1;
                    plan.steps.push(MappingStep::Create {
                        home: home.clone(),
                        name: name.clone(),
                    });
                }
                refusal
                    .map(|message| map_entry(name, None, MappedNamespacePhase::Refused, &message))
            }
        };
        plan.status.extend(entry.map(|entry| (home.clone(), entry)));
    }
    plan
}

impl MappingPlan {
    /// Deletes the consumer's namespaces that it does not want any more, once they have no pods.
    fn delete_unwanted(
        &mut self,
        consumer: &ClusterId,
        snapshot: &MappingSnapshot,
        wanted: &BTreeMap<String, WantedNamespace>,
    ) {
        for (name, namespace) in snapshot.namespaces {
            let NamespaceKind::Mapped { home } = &namespace.kind else {
                continue;
            };
            let stays = wanted
                .get(home)
                .is_some_and(|wanted| wanted.remote_name == *name);
            if namespace.consumer != *consumer || stays {
                continue;
            }
            if !namespace.terminating && !(snapshot.has_pods)(name) {
                self.steps.push(MappingStep::Delete {
                    name: name.clone(),
                    uid: namespace.uid.clone(),
                });
            }
            let message = "no longer offloaded; it is deleted when its pods are gone";
            self.status.insert(
                home.clone(),
                map_entry(
                    name,
                    Some(&namespace.uid),
                    MappedNamespacePhase::Terminating,
                    message,
                ),
            );
        }
    }

    /// Brings a namespace that exists up to date. Returns its status; `None` while its contents are
    /// created.
    fn keep_namespace(
        &mut self,
        snapshot: &MappingSnapshot,
        home: &str,
        name: &str,
        found: &ConsumerNamespace,
    ) -> Option<MappedNamespace> {
        if found.terminating {
            return Some(map_entry(
                name,
                Some(&found.uid),
                MappedNamespacePhase::Terminating,
                "it was deleted; Liqo creates it again when the deletion is complete",
            ));
        }
        if let Some(level) = consumer_policy::pod_security_to_set(found, snapshot.policy) {
            self.steps.push(MappingStep::SetPodSecurity {
                name: name.to_owned(),
                uid: found.uid.clone(),
                level,
            });
        }
        if (snapshot.prepared)(&found.uid) {
            return Some(MappedNamespace {
                message: None,
                ..map_entry(name, Some(&found.uid), MappedNamespacePhase::Ready, "")
            });
        }
        self.steps.push(MappingStep::Prepare {
            name: name.to_owned(),
            uid: found.uid.clone(),
        });
        let known = snapshot
            .map
            .and_then(|map| map.status.as_ref()?.namespaces.get(home));
        // The namespace is only checked again.
        known
            .filter(|known| known.uid.as_ref() == Some(&found.uid))
            .cloned()
    }
}

/// Whether a consumer with this number of namespaces can have a new one of this name.
fn has_room(snapshot: &MappingSnapshot, name: &str, number: usize) -> Result<(), String> {
    if (snapshot.taken)(name) {
        Err(name_taken_message(name))
    } else if number >= max_namespaces(snapshot.policy) {
        Err(too_many_message(snapshot.policy))
    } else {
        Ok(())
    }
}

fn max_namespaces(policy: Option<&ConsumerPolicy>) -> usize {
    policy
        .map_or_else(
            || Usage::default().max_namespaces,
            |policy| policy.usage.max_namespaces,
        )
        .into()
}

fn too_many_message(policy: Option<&ConsumerPolicy>) -> String {
    let whose = policy.map_or_else(String::new, |policy| {
        format!(", as PeeringPolicy {} says", policy.name)
    });
    format!(
        "LimitReached: a consumer has at most {} namespaces in this cluster{whose}",
        max_namespaces(policy)
    )
}

fn name_taken_message(name: &str) -> String {
    format!(
        "{NAME_TAKEN}: namespace {name} exists in this cluster and is not this consumer's; Liqo does not change it. {LONGER_NAME}"
    )
}

fn map_entry(
    name: &str,
    uid: Option<&String>,
    phase: MappedNamespacePhase,
    message: &str,
) -> MappedNamespace {
    MappedNamespace {
        remote_name: name.to_owned(),
        uid: uid.cloned(),
        phase,
        message: Some(message.to_owned()),
    }
}

/// Whether pods would look up public names in a namespace of this name. With the search domain
/// `svc.cluster.local`, `example.com` first means the Service `example` of the namespace `com`.
/// These are the domains of countries and others that are often asked for, not all.
fn is_top_level_domain(name: &str) -> bool {
    let is_country = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_lowercase());
    is_country || name.starts_with("xn--") || TOP_LEVEL_DOMAINS.contains(&name)
}

/// Whether this name is valid for the mapped namespace of this home namespace.
fn check_name(
    consumer: &ClusterId,
    tenant: Option<&ConsumerNamespace>,
    policy: Option<&ConsumerPolicy>,
    home: &str,
    name: &str,
) -> Result<(), String> {
    for name in [home, name] {
        if !dns_names::is_label(name) {
            let name: String = name.chars().take(80).collect();
            return Err(format!("{name:?} is no name of a namespace"));
        }
        if is_reserved(name) {
            return Err(format!(
                "{name} is a name that clusters keep for themselves; offload another namespace"
            ));
        }
    }
    let others = policy
        .map(|policy| policy.usage.namespace_names.as_slice())
        .unwrap_or_default();
    if consumer_policy::matches_any_pattern(others, name) {
        let is_domain = is_top_level_domain(name) && !others.iter().any(|other| other == name);
        if is_domain {
            return Err(format!(
                "{name} is a top-level domain: pods here would find Services of this namespace under public names; the provider's policy must contain the full name in namespaceNames"
            ));
        }
        return Ok(());
    }
    let Some(NamespaceKind::Tenant {
        cluster_name: Some(cluster_name),
    }) = tenant.map(|tenant| &tenant.kind)
    else {
        return Err("the name of the consumer's cluster is not known here yet".to_owned());
    };
    let expected = mapped_namespace(home, cluster_name, consumer);
    if expected != name
        && alternative_mapped_namespace(&expected, consumer).as_deref() != Some(name)
    {
        return Err(if others.is_empty() {
            format!("the only name that this cluster allows for the namespace is {expected}")
        } else {
            format!(
                "the names that this cluster allows for the namespace are {expected} and {}",
                others.join(", ")
            )
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{consumer, map, mapped, policy, tenant};

    fn name(home: &str) -> String {
        mapped_namespace(home, "rome", &consumer())
    }

    /// Plans for maps and namespaces, where the namespaces in `prepared` are and those in `busy`
    /// have pods.
    fn planned(
        map: Option<&NamespaceMap>,
        ours: &[(&str, ConsumerNamespace)],
        prepared: &[&str],
        busy: &[&str],
    ) -> MappingPlan {
        planned_by(None, map, ours, prepared, busy)
    }

    /// The same under a policy.
    fn planned_by(
        policy: Option<&ConsumerPolicy>,
        map: Option<&NamespaceMap>,
        ours: &[(&str, ConsumerNamespace)],
        prepared: &[&str],
        busy: &[&str],
    ) -> MappingPlan {
        let namespaces = ours
            .iter()
            .map(|(name, namespace)| ((*name).to_owned(), Arc::new(namespace.clone())))
            .collect();
        let tenant = tenant();
        let snapshot = MappingSnapshot {
            tenant: Some(&tenant),
            map,
            namespaces: &namespaces,
            policy,
            prepared: &|uid| prepared.contains(&uid),
            has_pods: &|name| busy.contains(&name),
            taken: &|name| name.starts_with("taken"),
        };
        plan_mappings(&consumer(), &snapshot)
    }

    fn refusal(home: &str, remote: &str) -> String {
        let plan = planned(Some(&map(&[(home, remote)], &[])), &[], &[], &[]);
        assert_eq!(plan.steps, []);
        assert_eq!(plan.status[home].phase, MappedNamespacePhase::Refused);
        plan.status[home].message.clone().unwrap()
    }

    #[test]
    fn a_wanted_namespace_is_made_prepared_and_then_ready() {
        let name = name("demo");
        let wanted = map(&[("demo", &name)], &[]);
        let first = planned(Some(&wanted), &[], &[], &[]);
        assert_eq!(
            first.steps,
            [MappingStep::Create {
                home: "demo".into(),
                name: name.clone()
            }]
        );
        let made = [(name.as_str(), mapped("demo", "u1"))];
        let second = planned(Some(&wanted), &made, &[], &[]);
        assert_eq!(
            second.steps,
            [MappingStep::Prepare {
                name: name.clone(),
                uid: "u1".into()
            }]
        );
        assert!(
            second.status.is_empty(),
            "the status has no mapping before it is ready"
        );
        let third = planned(Some(&wanted), &made, &["u1"], &[]);
        assert_eq!(
            (third.steps, third.status["demo"].phase),
            (vec![], MappedNamespacePhase::Ready)
        );
        assert_eq!(third.status["demo"].uid.as_deref(), Some("u1"));
    }

    #[test]
    fn a_consumer_has_only_as_many_namespaces_as_the_policy_says() {
        let (a, b, c) = (name("a"), name("b"), name("c"));
        let wanted = map(&[("a", &a), ("b", &b), ("c", &c)], &[]);
        let two = policy(json!({ "maxNamespaces": 2 }));
        let first = planned_by(Some(&two), Some(&wanted), &[], &[], &[]);
        assert_eq!(first.steps.len(), 2);
        assert_eq!(first.status["c"].phase, MappedNamespacePhase::Refused);
        let message = first.status["c"].message.clone().unwrap();
        assert!(message.contains("at most 2 namespaces"), "{message}");
        // Those that exist stay, and are counted.
        let one = policy(json!({ "maxNamespaces": 1 }));
        let ours = [
            (a.as_str(), mapped("a", "u1")),
            (b.as_str(), mapped("b", "u2")),
        ];
        let later = planned_by(Some(&one), Some(&wanted), &ours, &["u1", "u2"], &[]);
        assert!(
            later.steps.iter().all(|step| !matches!(
                step,
                MappingStep::Delete { .. } | MappingStep::Create { .. }
            )),
            "{:?}",
            later.steps
        );
        assert_eq!(later.status["c"].phase, MappedNamespacePhase::Refused);
        // Nobody has more without a policy either.
        let many: Vec<(String, String)> = (0..60)
            .map(|number| format!("n{number}"))
            .map(|home| (home.clone(), name(&home)))
            .collect();
        let many: Vec<(&str, &str)> = many
            .iter()
            .map(|(home, name)| (home.as_str(), name.as_str()))
            .collect();
        assert_eq!(
            planned(Some(&map(&many, &[])), &[], &[], &[]).steps.len(),
            50
        );
    }

    #[test]
    fn a_ready_namespace_stays_ready_while_it_is_checked_again() {
        let name = name("demo");
        let wanted = map(&[("demo", &name)], &[("demo", &name, "u1")]);
        let plan = planned(Some(&wanted), &[(&name, mapped("demo", "u1"))], &[], &[]);
        assert_eq!(plan.status, wanted.status.unwrap().namespaces);
    }

    #[test]
    fn a_namespace_that_we_did_not_make_is_never_taken_over() {
        let demo = name("demo");
        let other = ConsumerNamespace {
            consumer: ClusterId::of_public_key(&[9; 32]),
            ..mapped("demo", "u1")
        };
        for found in [other, mapped("another-home", "u1"), tenant()] {
            let plan = planned(
                Some(&map(&[("demo", &demo)], &[])),
                &[(&demo, found.clone())],
                &["u1"],
                &[],
            );
            assert_eq!(
                plan.status["demo"].phase,
                MappedNamespacePhase::Refused,
                "{found:?}"
            );
            assert!(
                plan.steps
                    .iter()
                    .all(|step| matches!(step, MappingStep::Delete { .. })),
                "{:?}",
                plan.steps
            );
        }
    }

    #[test]
    fn only_the_default_name_is_allowed_and_the_refusal_says_which() {
        assert!(refusal("demo", "prod").contains(&name("demo")));
        assert!(refusal("demo", "demo-rome-aaaaaa").contains(&name("demo")));
    }

    #[test]
    fn other_names_are_those_of_the_policy_but_never_reserved_ones() {
        let policy = policy(json!({ "namespaceNames": ["shared", "team-*", "kube-*", "*-x"] }));
        let refusal = |home: &str, remote: &str| {
            let plan = planned_by(
                Some(&policy),
                Some(&map(&[(home, remote)], &[])),
                &[],
                &[],
                &[],
            );
            plan.status
                .get(home)
                .and_then(|entry| entry.message.clone())
        };
        for name in ["shared", "team-a", &name("demo")] {
            assert_eq!(refusal("demo", name), None, "{name}");
        }
        assert!(
            refusal("demo", "kube-system")
                .unwrap()
                .contains("keep for themselves")
        );
        assert!(
            refusal("kube-system", "team-a")
                .unwrap()
                .contains("keep for themselves")
        );
        assert!(refusal("demo", "../x").unwrap().contains("no name"));
        let message = refusal("demo", "other").unwrap();
        assert!(
            message.contains(&name("demo")) && message.contains("shared, team-*"),
            "{message}"
        );
    }

    #[test]
    fn a_consumer_whose_default_name_is_taken_may_use_the_longer_one() {
        let longer = alternative_mapped_namespace(&name("demo"), &consumer()).unwrap();
        let plan = planned(Some(&map(&[("demo", &longer)], &[])), &[], &[], &[]);
        assert_eq!(
            plan.steps,
            [MappingStep::Create {
                home: "demo".into(),
                name: longer
            }]
        );
        let of_another = alternative_mapped_namespace(&name("shop"), &consumer()).unwrap();
        assert!(refusal("demo", &of_another).contains("only name"));
    }

    #[test]
    fn top_level_domains_are_namespaces_only_if_the_policy_names_them() {
        let refusal = |names: serde_json::Value, remote: &str| {
            let policy = policy(json!({ "namespaceNames": names }));
            let plan = planned_by(
                Some(&policy),
                Some(&map(&[("demo", remote)], &[])),
                &[],
                &[],
                &[],
            );
            plan.status
                .get("demo")
                .and_then(|entry| entry.message.clone())
        };
        for name in ["com", "io", "internal", "xn--p1ai"] {
            assert!(
                refusal(json!(["*"]), name)
                    .unwrap()
                    .contains("top-level domain"),
                "{name}"
            );
            assert_eq!(refusal(json!(["*", name]), name), None, "{name}");
        }
        for name in ["demo", "shop", "com-1", "a1"] {
            assert_eq!(refusal(json!(["*"]), name), None, "{name}");
        }
    }

    #[test]
    fn a_namespace_that_exists_keeps_its_name_under_a_narrower_policy() {
        let wanted = map(&[("demo", "shared")], &[("demo", "shared", "u1")]);
        let plan = planned_by(
            Some(&policy(json!({}))),
            Some(&wanted),
            &[("shared", secured("baseline"))],
            &["u1"],
            &[],
        );
        assert_eq!(
            (plan.steps, plan.status["demo"].phase),
            (vec![], MappedNamespacePhase::Ready)
        );
    }

    fn secured(level: &str) -> ConsumerNamespace {
        ConsumerNamespace {
            pod_security: vec![(consumer_policy::ENFORCE.into(), level.into())],
            ..mapped("demo", "u1")
        }
    }

    #[test]
    fn the_pod_security_of_a_namespace_that_exists_follows_the_policy() {
        let name = name("demo");
        let wanted = map(&[("demo", &name)], &[]);
        let restricted = policy(json!({ "podSecurity": "restricted" }));
        let steps = |level: &str| {
            planned_by(
                Some(&restricted),
                Some(&wanted),
                &[(&name, secured(level))],
                &["u1"],
                &[],
            )
            .steps
        };
        assert_eq!(
            steps("baseline"),
            [MappingStep::SetPodSecurity {
                name: name.clone(),
                uid: "u1".into(),
                level: "restricted"
            }]
        );
        assert_eq!(steps("restricted"), []);
        assert_eq!(steps("privileged"), [], "only a person can have set that");
    }

    #[test]
    fn namespaces_of_the_system_are_refused() {
        for home in [
            "default",
            "kube-system",
            "openshift-monitoring",
            "liqo",
            "liqo-tenant-x",
        ] {
            assert!(
                refusal(home, &name(home)).contains("keep for themselves"),
                "{home}"
            );
        }
        for home in ["", "UPPER", "a.b", "../x", "-a"] {
            assert!(refusal(home, "x").contains("no name"), "{home}");
        }
    }

    #[test]
    fn what_is_not_wanted_goes_after_its_pods() {
        let name = name("demo");
        let have = map(&[], &[("demo", &name, "u1")]);
        let ours = [(name.as_str(), mapped("demo", "u1"))];
        let busy = planned(Some(&have), &ours, &["u1"], &[&name]);
        assert_eq!(
            (busy.steps.len(), busy.status["demo"].phase),
            (0, MappedNamespacePhase::Terminating)
        );
        let delete = [MappingStep::Delete {
            name: name.clone(),
            uid: "u1".into(),
        }];
        assert_eq!(planned(Some(&have), &ours, &["u1"], &[]).steps, delete);
        assert_eq!(
            planned(None, &ours, &["u1"], &[]).steps,
            delete,
            "the map is gone"
        );
        assert_eq!(
            planned(Some(&have), &[], &[], &[]),
            MappingPlan::default(),
            "nothing is said of what is gone"
        );
    }

    #[test]
    fn namespaces_of_a_tenant_that_leaves_go_too_and_those_of_others_stay() {
        let (mine, other) = (name("demo"), "demo-paris-bbbbbb");
        let others = ConsumerNamespace {
            consumer: ClusterId::of_public_key(&[9; 32]),
            ..mapped("demo", "u2")
        };
        let namespaces = BTreeMap::from([
            (mine.clone(), Arc::new(mapped("demo", "u1"))),
            (other.to_owned(), Arc::new(others)),
        ]);
        let wanted = map(&[("demo", &mine)], &[("demo", &mine, "u1")]);
        let leaving = ConsumerNamespace {
            terminating: true,
            ..tenant()
        };
        for tenant in [None, Some(&leaving)] {
            let snapshot = MappingSnapshot {
                tenant,
                map: Some(&wanted),
                namespaces: &namespaces,
                policy: None,
                prepared: &|_| true,
                has_pods: &|_| false,
                taken: &|_| false,
            };
            assert_eq!(
                plan_mappings(&consumer(), &snapshot).steps,
                [MappingStep::Delete {
                    name: mine.clone(),
                    uid: "u1".into()
                }]
            );
        }
    }

    #[test]
    fn a_renamed_namespace_goes_before_the_new_one_is_made() {
        let old = [("demo-old", mapped("demo", "u1"))];
        let plan = planned(
            Some(&map(
                &[("demo", &name("demo"))],
                &[("demo", "demo-old", "u1")],
            )),
            &old,
            &["u1"],
            &[],
        );
        assert_eq!(
            plan.steps,
            [MappingStep::Delete {
                name: "demo-old".into(),
                uid: "u1".into()
            }]
        );
        assert_eq!(plan.status["demo"].phase, MappedNamespacePhase::Terminating);
    }

    #[test]
    fn a_namespace_is_not_deleted_twice() {
        let name = name("demo");
        let going = ConsumerNamespace {
            terminating: true,
            ..mapped("demo", "u1")
        };
        let plan = planned(
            Some(&map(&[("demo", &name)], &[])),
            &[(&name, going)],
            &["u1"],
            &[],
        );
        assert_eq!(
            (plan.steps.len(), plan.status["demo"].phase),
            (0, MappedNamespacePhase::Terminating)
        );
    }
}
