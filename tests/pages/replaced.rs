//! Pages that name tests: for the claims of scenarios that are gone or wait for their turn, and for
//! ends that did not end.

use std::{collections::BTreeSet, path::Path};

use liqo_tests::{compare, turns};
use regex::Regex;

use super::{functions, read, root};

const REPLACED: &str = "tests/replaced-scenarios.md";
const ENDS: &str = "tests/ends.md";
const HEADER_LINES: usize = 2;

/// The tests in a place: functions, or rows of a comparison that must be equal.
fn tests_in(place: &str) -> BTreeSet<String> {
    if !place.ends_with("/rows.txt") {
        return functions(&root().join(place));
    }
    let different = compare::listed(&read("docs/reference/kubectl.md"));
    let rows = compare::sections(&read(place))
        .unwrap()
        .into_iter()
        .flat_map(|section| section.rows);
    rows.map(|row| row.name)
        .filter(|name| !different.contains(name))
        .collect()
}

/// What stands in backquotes.
fn names(text: &str) -> Vec<String> {
    Regex::new("`([^`]+)`")
        .unwrap()
        .captures_iter(text)
        .map(|found| found[1].to_owned())
        .collect()
}

/// Fails if one of these tests, each after its place, does not exist. Returns the number of those
/// that run each time.
fn check_proofs(scenario: &str, proofs: &[String], waiting: &BTreeSet<String>) -> usize {
    let scenarios = read("tests/scenarios/main.rs");
    let mut known = None;
    let mut found = 0;
    for proof in proofs {
        if proof.contains('/') {
            known = Some((proof, tests_in(proof)));
            continue;
        }
        let (place, tests) = known
            .as_ref()
            .unwrap_or_else(|| panic!("{scenario}: {proof} has no place"));
        assert!(tests.contains(proof), "{scenario}: {place} has no {proof}");
        let is_scenario = place.starts_with("tests/scenarios/") && !place.contains("/as_at_home/");
        assert!(
            !is_scenario || scenarios.contains(proof.as_str()),
            "{scenario}: no set runs {proof}"
        );
        found += usize::from(!is_scenario || !waiting.contains(proof));
    }
    found
}

/// The functions in a folder, if there is one.
fn functions_below(folder: &Path) -> BTreeSet<String> {
    if folder.is_dir() {
        functions(folder)
    } else {
        BTreeSet::new()
    }
}

/// The functions of the scenarios that run by turns.
fn by_turns() -> BTreeSet<String> {
    let all = turns::table().unwrap();
    all.into_iter()
        .filter_map(|turn| Some(turn.scenario.split_once("::")?.1.to_owned()))
        .collect()
}

#[test]
fn each_named_proof_exists_and_is_no_listed_difference() {
    let page = read(REPLACED);
    let rows: Vec<Vec<String>> = page
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(HEADER_LINES)
        .map(names)
        .collect();
    assert!(rows.len() >= 13, "only {} rows", rows.len());
    for row in rows {
        let (gone, proofs) = row.split_first().unwrap();
        let (module, name) = gone.split_once("::").unwrap();
        let file = functions(&root().join(format!("tests/scenarios/{module}.rs")));
        assert!(!file.contains(name), "{gone} is still there");
        assert!(
            check_proofs(gone, proofs, &BTreeSet::new()) > 0,
            "nothing proves the claim of {gone}"
        );
    }
}

#[test]
fn each_end_that_did_not_end_has_a_test() {
    let page = read(ENDS);
    let rows: Vec<(&str, Vec<String>)> = page
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(HEADER_LINES)
        .filter_map(|line| {
            line.trim_matches('|')
                .rsplit_once('|')
                .map(|(what, tests)| (what, names(tests)))
        })
        .collect();
    assert!(rows.len() >= 16, "only {} rows", rows.len());
    for (what, proofs) in rows {
        assert!(
            check_proofs(what, &proofs, &by_turns()) > 0,
            "no test that runs each time for: {what}"
        );
    }
}

#[test]
fn what_runs_by_turns_exists_and_other_tests_prove_its_rules_each_time() {
    let (rows, waiting, scenarios) = (
        turns::table().unwrap(),
        by_turns(),
        read("tests/scenarios/main.rs"),
    );
    assert_eq!(waiting.len(), rows.len(), "a scenario has two turns");
    for row in rows {
        let (module, name) = row.scenario.split_once("::").unwrap();
        let file = root().join(format!("tests/scenarios/{module}.rs"));
        let of_module: BTreeSet<String> = functions(&file)
            .into_iter()
            .chain(functions_below(&file.with_extension("")))
            .collect();
        assert!(of_module.contains(name), "module {module} has no {name}");
        assert!(
            scenarios.contains(&format!("{name},")) || scenarios.contains(&format!("{name};")),
            "no set runs {name}"
        );
        assert!(
            check_proofs(&row.scenario, &names(&row.proofs), &waiting) > 0,
            "nothing proves the rules of {name} each time"
        );
    }
}
