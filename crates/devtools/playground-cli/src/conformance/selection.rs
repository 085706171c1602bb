//! Which tests run, and which process runs which of them.

use std::fmt;

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

use super::page::{Outcome, Row};

/// Tests of one area of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Volumes: emptyDir, projected, `ConfigMap`, Secret, downward API
    Storage,
    /// Deployments, `StatefulSets`, Jobs and the other controllers
    Apps,
    /// Pods, probes, hooks, variables, security contexts
    Node,
    /// Services
    Network,
}

impl Group {
    /// The beginning of the names of its tests.
    const fn area(self) -> &'static str {
        match self {
            Self::Storage => "[sig-storage] ",
            Self::Apps => "[sig-apps] ",
            Self::Node => "[sig-node] ",
            // The other tests of this area are about nodes and addresses.
            Self::Network => "[sig-network] Services ",
        }
    }

    pub fn has(self, test: &str) -> bool {
        let is_conformance = test.contains("[Conformance]") || test.contains("[NodeConformance]");
        is_conformance && test.starts_with(self.area())
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Storage => "storage",
            Self::Apps => "apps",
            Self::Node => "node",
            Self::Network => "network",
        })
    }
}

/// The tests of these groups that a run includes: those that no row of the page leaves out, and
/// that contain one of the parts, if there are any. Fails if there are none, or if a part is in the
/// name of none of them.
pub fn select(
    tests: &[String],
    groups: &[Group],
    parts: &[String],
    rows: &[Row],
) -> anyhow::Result<Vec<String>> {
    let is_left_out = |test: &str| {
        rows.iter()
            .any(|row| row.outcome == Outcome::NotRun && row.names(test))
    };
    let is_wanted = |test: &&String| {
        let is_named = parts.is_empty() || parts.iter().any(|part| test.contains(part));
        is_named && groups.iter().any(|group| group.has(test)) && !is_left_out(test)
    };
    let mut selected: Vec<String> = tests.iter().filter(is_wanted).cloned().collect();
    selected.sort();
    selected.dedup();
    ensure!(
        !selected.is_empty(),
        "docs/reference/kubectl.md leaves out all tests of these groups"
    );
    for part in parts {
        ensure!(
            selected.iter().any(|test| test.contains(part)),
            "no test of these groups has a name with the text {part:?}"
        );
    }
    Ok(selected)
}

/// The tests of each process. Neighbours take similar time, so they go to different processes.
pub fn deal(tests: &[String], processes: usize) -> Vec<Vec<String>> {
    let share = |first: usize| {
        tests
            .iter()
            .skip(first)
            .step_by(processes.max(1))
            .cloned()
            .collect()
    };
    (0..processes.min(tests.len())).map(share).collect()
}

/// A regular expression of Go that matches only these tests.
pub fn focus(tests: &[String]) -> String {
    let escaped = |test: &String| {
        let escape = |c: char| {
            [r"\.+*?()|[]{}^$".contains(c).then_some('\\'), Some(c)]
                .into_iter()
                .flatten()
        };
        test.chars().flat_map(escape).collect::<String>()
    };
    format!(
        "(?:{})$",
        tests.iter().map(escaped).collect::<Vec<_>>().join("|")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tests: &[&str]) -> Vec<String> {
        tests.iter().map(|test| (*test).to_owned()).collect()
    }

    #[test]
    fn conformance_tests_of_the_groups_run_unless_the_page_leaves_them_out() {
        let tests = names(&[
            "[sig-node] Pods should be updated [NodeConformance] [Conformance]",
            "[sig-node] Taints [Serial] evict [Conformance]",
            "[sig-node] Pods should do something new",
            "[sig-apps] Job should run [Conformance]",
            "[sig-storage] Secrets should be consumable [NodeConformance]",
        ]);
        let rows = [Row {
            outcome: Outcome::NotRun,
            tests: names(&["[Serial]"]),
            why: String::new(),
        }];
        assert_eq!(
            select(&tests, &[Group::Node], &[], &rows).unwrap(),
            [tests[0].clone()]
        );
        let both = select(&tests, &[Group::Node, Group::Storage], &[], &[]).unwrap();
        assert_eq!(both, [tests[0].clone(), tests[1].clone(), tests[4].clone()]);
        assert_eq!(
            select(
                &tests,
                &[Group::Node, Group::Apps],
                &names(&["Job", "should run"]),
                &rows
            )
            .unwrap(),
            [tests[3].clone()]
        );
        let error = select(
            &tests,
            &[Group::Node, Group::Apps],
            &names(&["Job", "Taints"]),
            &rows,
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"no test of these groups has a name with the text "Taints""#
        );
    }

    #[test]
    fn each_test_runs_in_one_process() {
        let tests = names(&["a", "b", "c", "d", "e"]);
        assert_eq!(
            deal(&tests, 2),
            [names(&["a", "c", "e"]), names(&["b", "d"])]
        );
        assert_eq!(deal(&tests[..1], 4), [names(&["a"])]);
        assert_eq!(deal(&[], 4), Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_focus_takes_names_literally() {
        assert_eq!(
            focus(&names(&["[x] *not* (a.b)", "c"])),
            r"(?:\[x\] \*not\* \(a\.b\)|c)$"
        );
    }

    #[test]
    fn a_group_is_printed_as_it_is_typed() {
        for group in Group::value_variants() {
            let value = group.to_possible_value().unwrap();
            assert_eq!(group.to_string(), value.get_name());
        }
    }
}
