//! Only one module of the manager takes local pods away, and one of `liqoctl`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

use super::root;

/// Evicts and deletes, for all controllers of the manager.
const DEPARTURES: &str = "crates/controller-runtime/src/departures.rs";
/// Ends pods of consumers, which is a provider's own protection.
const PROVIDER: &str = "crates/offloading/controllers/src/provider/controllers/shadow_pods.rs";
/// Evicts with the rights of whoever runs `liqoctl`.
const COMMANDS: &str = "crates/programs/liqoctl/src/evict/mod.rs";
/// Sends the request that both of the others are made of.
const REQUEST: &str = "crates/controller-runtime/src/eviction.rs";

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        if entry.is_dir() {
            let is_of_tests = ["tests", "target", "devtools", "benches", "examples"]
                .iter()
                .any(|name| entry.ends_with(name));
            if !is_of_tests {
                sources(&entry, found);
            }
        } else if entry.extension().is_some_and(|extension| extension == "rs")
            && !entry.ends_with("tests.rs")
        {
            found.push(entry);
        }
    }
}

/// The files of the product in which this occurs outside of tests.
fn files_with(pattern: &str) -> Vec<String> {
    let (pattern, mut files) = (Regex::new(pattern).unwrap(), Vec::new());
    sources(&root().join("crates"), &mut files);
    let occurs = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        pattern.is_match(text.split("\n#[cfg(test)]").next().unwrap_or_default())
    };
    let mut found: Vec<String> = files
        .into_iter()
        .filter(occurs)
        .map(|path| relative(&path))
        .collect();
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn only_one_module_evicts_pods() {
    assert_eq!(
        files_with(r"\beviction::evict(_version)?\("),
        [DEPARTURES, PROVIDER, COMMANDS]
    );
    assert_eq!(files_with("/eviction\""), [REQUEST]);
}

/// Each request names what it does for its errors.
#[test]
fn only_one_module_deletes_pods() {
    assert_eq!(
        files_with(r#"\.step\(\s*"(evict|delete)",\s*"Pod""#),
        [DEPARTURES, PROVIDER]
    );
}
