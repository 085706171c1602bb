//! `tests/replaced-scenarios.md`: what proves the claims of scenarios that went.

use std::collections::BTreeSet;

use liqo_tests::compare;
use regex::Regex;

use super::{functions, read, root};

const PAGE: &str = "tests/replaced-scenarios.md";
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

#[test]
fn each_named_proof_exists_and_is_no_listed_difference() {
    let (page, scenarios) = (read(PAGE), read("tests/scenarios/main.rs"));
    let code = Regex::new("`([^`]+)`").unwrap();
    let rows: Vec<Vec<String>> = page
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(HEADER_LINES)
        .map(|line| code.captures_iter(line).map(|found| found[1].to_owned()).collect())
        .collect();
    assert!(rows.len() >= 13, "only {} rows", rows.len());
    for row in rows {
        let (gone, proofs) = row.split_first().unwrap();
        let (module, name) = gone.split_once("::").unwrap();
        let file = functions(&root().join(format!("tests/scenarios/{module}.rs")));
        assert!(!file.contains(name), "{gone} is still there");
        let mut known = None;
        let mut found = 0;
        for proof in proofs {
            if proof.contains('/') {
                known = Some((proof, tests_in(proof)));
                continue;
            }
            let (place, tests) = known.as_ref().unwrap_or_else(|| panic!("{gone}: {proof} has no place"));
            assert!(tests.contains(proof), "{gone}: {place} has no {proof}");
            let is_scenario = place.starts_with("tests/scenarios/") && !place.contains("/as_at_home/");
            let runs = !is_scenario || scenarios.contains(proof.as_str());
            assert!(runs, "{gone}: no set runs {proof}");
            found += 1;
        }
        assert!(found > 0, "nothing proves the claim of {gone}");
    }
}
