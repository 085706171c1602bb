//! Checks the table of attacks in docs/SECURITY.md against the sources.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

const HEADING: &str = "## Attacks and their tests";
/// All scenarios in these files are attacks.
const SCENARIOS_OF_ATTACKS: [&str; 2] = ["tests/scenarios/attacks.rs", "tests/scenarios/hostile_pods.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The file or crate and the name of the test in each line of the table.
fn table() -> Vec<(String, String)> {
    let page = read("docs/SECURITY.md");
    let (_, part) = page.split_once(HEADING).expect("the page has a table of attacks");
    let lines = part.lines().filter(|line| line.starts_with('|')).skip(2);
    let last = Regex::new(r"\| `([^`]+)` `([a-z0-9_]+)` \|$").unwrap();
    lines
        .map(|line| {
            let found = last.captures(line).unwrap_or_else(|| panic!("{line} does not end with a path and a test"));
            (found[1].to_owned(), found[2].to_owned())
        })
        .collect()
}

/// The names of all functions in a file, or in the Rust files of a folder.
fn functions(path: &Path) -> BTreeSet<String> {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        return entries.filter(|path| !path.ends_with("target")).flat_map(|path| functions(&path)).collect();
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return BTreeSet::new();
    }
    let text = fs::read_to_string(path).unwrap();
    Regex::new(r"\bfn ([a-z0-9_]+)").unwrap().captures_iter(&text).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_test_in_the_table_of_attacks_exists() {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (table, scenarios) = (table(), read("tests/scenarios/main.rs"));
    assert!(table.len() >= 60, "only {} lines", table.len());
    let missing = table.iter().filter(|(path, test)| {
        let found = known.entry(path.clone()).or_insert_with(|| functions(&root().join(path)));
        let runs = !path.starts_with("tests/scenarios/") || scenarios.contains(test.as_str());
        !(runs && found.contains(test))
    });
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "docs/SECURITY.md names tests that do not exist: {missing:#?}");
}

#[test]
fn every_scenario_of_an_attack_is_in_the_table() {
    let named: BTreeSet<(String, String)> = table().into_iter().collect();
    let scenario = Regex::new(r"pub async fn ([a-z0-9_]+)\(world: Arc<World>\)").unwrap();
    for path in SCENARIOS_OF_ATTACKS {
        let text = read(path);
        let mut found = scenario.captures_iter(&text).map(|found| found[1].to_owned()).peekable();
        assert!(found.peek().is_some(), "{path} has no scenarios");
        for name in found {
            assert!(named.contains(&(path.to_owned(), name.clone())), "docs/SECURITY.md does not name {name} of {path}");
        }
    }
}

#[test]
fn no_test_is_named_twice() {
    let table = table();
    let named: BTreeSet<_> = table.iter().collect();
    assert_eq!(named.len(), table.len());
}
