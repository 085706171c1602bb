//! Checks the table of attacks in docs/reference/attacks.md against the sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use liqo_tests::attacks::{self, Attack};
use regex::Regex;

use super::{functions, read, root};

/// All scenarios in these files, and in the files of this folder, are attacks.
const SCENARIOS_OF_ATTACKS: [&str; 2] = [
    "tests/scenarios/attacks.rs",
    "tests/scenarios/hostile_pods.rs",
];
const ATTACKS: &str = "tests/scenarios/attacks";

/// All lines of the table.
fn table() -> Vec<Attack> {
    attacks::table().unwrap_or_else(|line| panic!("docs/reference/attacks.md: {line}"))
}

/// The files of all scenarios that are attacks.
fn files_of_attacks() -> Vec<String> {
    let parts = fs::read_dir(root().join(ATTACKS)).unwrap();
    let parts = parts.map(|file| {
        format!(
            "{ATTACKS}/{}",
            file.unwrap().file_name().into_string().unwrap()
        )
    });
    SCENARIOS_OF_ATTACKS
        .into_iter()
        .map(str::to_owned)
        .chain(parts)
        .collect()
}

#[test]
fn every_test_in_the_table_of_attacks_exists() {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (table, scenarios) = (table(), read("tests/scenarios/main.rs"));
    assert!(table.len() >= 60, "only {} lines", table.len());
    let missing = table.iter().filter(|Attack { place, test, .. }| {
        let found = known
            .entry(place.clone())
            .or_insert_with(|| functions(&root().join(place)));
        let runs = !place.starts_with("tests/scenarios/") || scenarios.contains(test.as_str());
        !(runs && found.contains(test))
    });
    let missing: Vec<_> = missing.collect();
    assert!(
        missing.is_empty(),
        "docs/reference/attacks.md names tests that do not exist: {missing:#?}"
    );
}

#[test]
fn every_scenario_of_an_attack_is_in_the_table() {
    let named: BTreeSet<(String, String)> = table()
        .into_iter()
        .map(|attack| (attack.place, attack.test))
        .collect();
    let scenario = Regex::new(r"pub async fn ([a-z0-9_]+)\(\s*world: Arc<World>,?\s*\)").unwrap();
    let mut found = 0;
    for path in files_of_attacks() {
        for name in scenario
            .captures_iter(&read(&path))
            .map(|found| found[1].to_owned())
        {
            found += 1;
            assert!(
                named.contains(&(path.clone(), name.clone())),
                "docs/reference/attacks.md does not name {name} of {path}"
            );
        }
    }
    assert!(found >= 12, "only {found} scenarios of attacks");
}

#[test]
fn no_test_is_named_twice() {
    let table = table();
    let named: BTreeSet<_> = table
        .iter()
        .map(|attack| (&attack.place, &attack.test))
        .collect();
    assert_eq!(named.len(), table.len());
}
