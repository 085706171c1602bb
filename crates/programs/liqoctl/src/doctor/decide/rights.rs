//! Whether Liqo's programs have their rights, and no more: compares roles and admission policies in
//! the cluster with those that this program would install.

use std::collections::BTreeSet;

use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::Value;

use super::{cluster::contains, count_of, first_few, unread_finding};
use crate::{
    doctor::{Check, CheckFinding},
    inspect::{ClusterFacts, wanted_rights},
    manifests::{FABRIC, MANAGER, RESOLVER, is_admission_policy, kind},
    preflight::POLICIES_SINCE,
};

pub fn check_rights(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let checks = [
        Check::ManagerRights,
        Check::FabricRights,
        Check::BoundRoles,
        Check::AdmissionPolicies,
    ];
    let has_policies = facts
        .api_server
        .minor
        .is_none_or(|minor| minor >= POLICIES_SINCE);
    let both = facts
        .rights
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|present| Ok((present, wanted_rights()?)));
    let (present, wanted) = match both {
        Ok(both) => both,
        Err(why) => {
            return checks
                .into_iter()
                .map(|check| unread_finding(check, &why))
                .collect();
        }
    };
    checks
        .into_iter()
        .map(|check| {
            if check == Check::AdmissionPolicies && !has_policies {
                return CheckFinding::skipped(check, "this version of Kubernetes has none");
            }
            check_objects(check, &wanted, present)
        })
        .collect()
}

/// Compares the objects of one check with those in the cluster.
fn check_objects(
    check: Check,
    wanted: &[DynamicObject],
    present: &[DynamicObject],
) -> CheckFinding {
    let wanted: Vec<&DynamicObject> = wanted
        .iter()
        .filter(|object| check_of(object) == check)
        .collect();
    let missing: Vec<String> = wanted
        .iter()
        .filter_map(|wanted| missing_parts(wanted, present))
        .collect();
    if missing.is_empty() {
        return CheckFinding::ok(
            check,
            format!(
                "{} as this program installs them",
                count_of(wanted.len(), "object")
            ),
        );
    }
    CheckFinding::fail(
        check,
        first_few(&missing),
        "run `liqoctl install` of the version that runs here: it repairs that, and restarts nothing",
    )
}

/// The check for the program that the object gives rights to.
fn check_of(object: &DynamicObject) -> Check {
    if is_admission_policy(object) {
        return Check::AdmissionPolicies;
    }
    match object.name_any().as_str() {
        // The resolver is the same program.
        MANAGER | RESOLVER => Check::ManagerRights,
        FABRIC => Check::FabricRights,
        _ => Check::BoundRoles,
    }
}

/// Describes the missing parts of an object in the cluster.
fn missing_parts(wanted: &DynamicObject, present: &[DynamicObject]) -> Option<String> {
    let name = match wanted.namespace() {
        Some(namespace) => format!("{} {namespace}/{}", kind(wanted), wanted.name_any()),
        None => format!("{} {}", kind(wanted), wanted.name_any()),
    };
    let Some(present) = present.iter().find(|one| is_same_object(one, wanted)) else {
        return Some(format!("{name} is gone"));
    };
    if is_admission_policy(wanted) {
        let is_other = !contains(&present.data["spec"], &wanted.data["spec"]);
        return is_other.then(|| format!("{name} is not what this program installs"));
    }
    if kind(wanted).ends_with("Binding") {
        let all = present.data["roleRef"] == wanted.data["roleRef"]
            && bound_subjects(present).is_superset(&bound_subjects(wanted));
        return (!all).then(|| format!("{name} does not bind what it should"));
    }
    let have = grants_of_rules(&present.data["rules"]);
    let lacks: BTreeSet<String> = grants_of_rules(&wanted.data["rules"])
        .into_iter()
        .filter(|grant| !have.iter().any(|one| one.covers(grant)))
        .map(|grant| grant.in_words())
        .collect();
    (!lacks.is_empty()).then(|| {
        format!(
            "{name} lacks {}",
            first_few(&lacks.into_iter().collect::<Vec<_>>())
        )
    })
}

/// The subjects of a binding, as `kind/namespace/name`.
fn bound_subjects(binding: &DynamicObject) -> BTreeSet<String> {
    let subjects = binding.data["subjects"].as_array().into_iter().flatten();
    subjects
        .map(|one| format!("{}/{}/{}", one["kind"], one["namespace"], one["name"]))
        .collect()
}

fn is_same_object(one: &DynamicObject, other: &DynamicObject) -> bool {
    kind(one) == kind(other)
        && one.name_any() == other.name_any()
        && one.namespace() == other.namespace()
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuleGrant {
    group: String,
    resource: String,
    /// Empty: all of them.
    name: String,
    verb: String,
}

impl RuleGrant {
    fn covers(&self, other: &Self) -> bool {
        covers_word(&self.group, &other.group)
            && covers_word(&self.resource, &other.resource)
            && covers_word(&self.verb, &other.verb)
            && (self.name.is_empty() || self.name == other.name)
    }

    fn in_words(&self) -> String {
        let name = if self.name.is_empty() {
            String::new()
        } else {
            format!(" {}", self.name)
        };
        format!("{} {}{name}", self.verb, self.resource)
    }
}

fn covers_word(have: &str, want: &str) -> bool {
    have == "*" || have == want
}

fn grants_of_rules(rules: &Value) -> Vec<RuleGrant> {
    let mut all = Vec::new();
    for rule in rules.as_array().into_iter().flatten() {
        let mut names = words_of_rule(&rule["resourceNames"]);
        if names.is_empty() {
            names.push(String::new());
        }
        for group in words_of_rule(&rule["apiGroups"]) {
            for resource in words_of_rule(&rule["resources"]) {
                for name in &names {
                    for verb in words_of_rule(&rule["verbs"]) {
                        all.push(RuleGrant {
                            group: group.clone(),
                            resource: resource.clone(),
                            name: name.clone(),
                            verb,
                        });
                    }
                }
            }
        }
    }
    all
}

fn words_of_rule(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|word| word.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{finding::CheckVerdict, inspect::fixtures::facts};

    fn found(roles: Vec<DynamicObject>) -> Vec<CheckFinding> {
        let mut facts = facts();
        facts.rights = Ok(roles);
        check_rights(&facts)
    }

    fn find<'a>(
        roles: &'a mut [DynamicObject],
        of_kind: &str,
        name: &str,
    ) -> &'a mut DynamicObject {
        roles
            .iter_mut()
            .find(|one| kind(one) == of_kind && one.name_any() == name)
            .unwrap()
    }

    #[test]
    fn what_this_program_installs_is_enough() {
        let found = found(wanted_rights().unwrap());
        assert_eq!(
            found.iter().map(|one| one.verdict).collect::<Vec<_>>(),
            [CheckVerdict::Ok; 4]
        );
    }

    #[test]
    fn a_right_that_was_taken_away_is_named() {
        let mut roles = wanted_rights().unwrap();
        let granted = find(&mut roles, "ClusterRole", FABRIC).data["rules"]
            .as_array_mut()
            .unwrap();
        granted.retain(|rule| rule["resources"] != json!(["nodes"]));
        let found = found(roles);
        assert_eq!(
            (found[0].verdict, found[1].verdict),
            (CheckVerdict::Ok, CheckVerdict::Fail)
        );
        assert!(
            found[1]
                .what
                .contains("ClusterRole liqo-fabric lacks get nodes, list nodes, watch nodes"),
            "{}",
            found[1].what
        );
    }

    #[test]
    fn a_binding_that_is_gone_or_binds_another_is_named() {
        let mut roles = wanted_rights().unwrap();
        roles.retain(|one| kind(one) != "ClusterRoleBinding" || one.name_any() != MANAGER);
        assert!(
            found(roles)[0]
                .what
                .contains("ClusterRoleBinding liqo-controller-manager is gone")
        );
        let mut roles = wanted_rights().unwrap();
        find(&mut roles, "ClusterRoleBinding", FABRIC).data["subjects"][0]["name"] = json!("other");
        assert!(
            found(roles)[1]
                .what
                .contains("does not bind what it should")
        );
    }

    #[test]
    fn an_admission_policy_that_is_gone_or_binds_nothing_is_named() {
        let (kind_of_binding, name) = ("ValidatingAdmissionPolicyBinding", "liqo-tethered");
        let mut rights = wanted_rights().unwrap();
        rights.retain(|one| kind(one) != kind_of_binding || one.name_any() != name);
        let gone = &found(rights)[3];
        assert!(
            gone.verdict == CheckVerdict::Fail
                && gone
                    .what
                    .contains("ValidatingAdmissionPolicyBinding liqo-tethered is gone")
        );
        let mut rights = wanted_rights().unwrap();
        find(&mut rights, kind_of_binding, name).data["spec"]["validationActions"] =
            json!(["Audit"]);
        assert!(
            found(rights)[3]
                .what
                .contains("is not what this program installs")
        );
        let mut old = facts();
        old.api_server.minor = Some(29);
        old.rights = Ok(Vec::new());
        assert_eq!(check_rights(&old)[3].verdict, CheckVerdict::Skipped);
    }

    #[test]
    fn more_rights_than_needed_are_no_fault_here() {
        let mut roles = wanted_rights().unwrap();
        let all = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
        find(&mut roles, "ClusterRole", liqo_api::roles::TENANT).data["rules"] = all;
        assert_eq!(found(roles)[2].verdict, CheckVerdict::Ok);
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let mut facts = facts();
        facts.rights = Err("cannot read".to_owned());
        assert!(
            check_rights(&facts)
                .iter()
                .all(|one| one.verdict == CheckVerdict::Unknown)
        );
    }
}
