//! Pages that say what proves the claims of scenarios that are gone, or that wait for their turn.

use std::collections::BTreeSet;

use liqo_tests::{compare, turns};
use regex::Regex;

use super::{functions, read, root};

const REPLACED: &str = "tests/replaced-scenarios.md";
const HEADER_LINES: usize = 2;

/// The tests in a place: functions, or rows of a comparison that must be equal.
fn tests_in(place: &str) -> BTreeSet<String> {
    if !place.ends_with("/rows.txt") {
        return functions(&root().join(place));
    }
    let different = compare::listed(&read("docs/kubectl.md"));
    let rows = compare::sections(&read(place)).unwrap().into_iter().flat_map(|section| section.rows);
    rows.map(|row| row.name).filter(|name| !different.contains(name)).collect()
}

/// What stands in backquotes.
fn names(text: &str) -> Vec<String> {
    Regex::new("`([^`]+)`").unwrap().captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Fails if one of these tests, each after its place, does not exist, or does not run each time. Returns their number.
fn check_proofs(scenario: &str, proofs: &[String], waiting: &BTreeSet<String>) -> usize {
    let scenarios = read("tests/scenarios/main.rs");
    let mut known = None;
    let mut found = 0;
    for proof in proofs {
        if proof.contains('/') {
            known = Some((proof, tests_in(proof)));
            continue;
        }
        let (place, tests) = known.as_ref().unwrap_or_else(|| panic!("{scenario}: {proof} has no place"));
        assert!(tests.contains(proof), "{scenario}: {place} has no {proof}");
        let is_scenario = place.starts_with("tests/scenarios/") && !place.contains("/as_at_home/");
        assert!(!is_scenario || scenarios.contains(proof.as_str()), "{scenario}: no set runs {proof}");
        assert!(!is_scenario || !waiting.contains(proof), "{scenario}: {proof} runs by turns itself");
        found += 1;
    }
    found
}

/// The functions of the scenarios that run by turns.
fn by_turns() -> BTreeSet<String> {
    let all = turns::table().unwrap();
    all.into_iter().filter_map(|turn| Some(turn.scenario.split_once("::")?.1.to_owned())).collect()
}

#[test]
fn each_named_proof_exists_and_is_no_listed_difference() {
    let page = read(REPLACED);
    let rows: Vec<Vec<String>> = page.lines().filter(|line| line.starts_with('|')).skip(HEADER_LINES).map(names).collect();
    assert!(rows.len() >= 13, "only {} rows", rows.len());
    for row in rows {
        let (gone, proofs) = row.split_first().unwrap();
        let (module, name) = gone.split_once("::").unwrap();
        let file = functions(&root().join(format!("tests/scenarios/{module}.rs")));
        assert!(!file.contains(name), "{gone} is still there");
        assert!(check_proofs(gone, proofs, &BTreeSet::new()) > 0, "nothing proves the claim of {gone}");
    }
}

#[test]
fn what_runs_by_turns_exists_and_other_tests_prove_its_rules_each_time() {
    let (rows, waiting, scenarios) = (turns::table().unwrap(), by_turns(), read("tests/scenarios/main.rs"));
    assert_eq!(waiting.len(), rows.len(), "a scenario has two turns");
    for row in rows {
        let (_, name) = row.scenario.split_once("::").unwrap();
        assert!(scenarios.contains(&format!("{name},")) || scenarios.contains(&format!("{name};")), "no set runs {name}");
        assert!(check_proofs(&row.scenario, &names(&row.proofs), &waiting) > 0, "nothing proves the rules of {name}");
    }
}
