//! Checks pages that name tests against the sources.
#![allow(clippy::unwrap_used, clippy::panic)]

mod departures;
mod links;
mod replaced;
mod security;
mod trusted;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of all functions in a file, or in the Rust files of a folder.
fn functions(path: &Path) -> BTreeSet<String> {
    if path.is_dir() {
        let entries = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        return entries
            .filter(|path| !path.ends_with("target"))
            .flat_map(|path| functions(&path))
            .collect();
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return BTreeSet::new();
    }
    let text = fs::read_to_string(path).unwrap();
    Regex::new(r"\bfn ([a-z0-9_]+)")
        .unwrap()
        .captures_iter(&text)
        .map(|found| found[1].to_owned())
        .collect()
}
