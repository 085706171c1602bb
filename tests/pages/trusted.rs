//! `docs/reference/trusted-fields.md`: which functions open what a peer wrote, and what they rely
//! on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use regex::Regex;

use super::{read, root};

const PAGE: &str = "docs/reference/trusted-fields.md";
/// The heading of the table about what the type does not reach.
const BEYOND_THE_TYPE: &str = "\n## What the type does not reach\n";
/// Where the type is defined.
const TYPE: &str = "api/src/claimed.rs";
/// The functions of `liqo_api::Claimed` that tell something of what is inside.
const OPENS: &str = r"\b(?:into_)?unverified\b|\.says\(";
/// Fields that functions read in objects as the API server returns them, and how that looks.
const RAW: [(&str, &str); 3] = [
    ("spec.document", r"\bspec\.document\b"),
    ("spec.countersignature", r"\.countersignature\b(?:[^(]|$)"),
    ("status.pendingSignature", r"\bpending_signature\b"),
];

/// All Rust files below a folder of `crates/` that are no tests, relative to it, without their
/// tests and comments.
fn sources(folder: &str) -> BTreeMap<String, String> {
    let tests = Regex::new(r"\n#\[cfg\(test\)\]\n(?:pub )?mod \w+ \{").unwrap();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates").join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let is_test = [
            "tests",
            "benches",
            "examples",
            "tests.rs",
            "histories.rs",
            "hostile_histories.rs",
            "fixtures.rs",
            "testing.rs",
        ];
        if is_test.contains(&name.as_str()) {
            continue;
        }
        let path = if folder.is_empty() {
            name
        } else {
            format!("{folder}/{name}")
        };
        if entry.file_type().unwrap().is_dir() {
            found.extend(sources(&path));
        } else if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "rs")
        {
            let text = read(&format!("crates/{path}"));
            let product = tests.split(&text).next().unwrap();
            let code = product
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            found.insert(path, code.collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

/// The functions of a file that open a claim.
fn openings(file: &str, text: &str) -> BTreeSet<String> {
    let function =
        Regex::new(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:const )?(?:async )?fn (\w+)").unwrap();
    let opens = Regex::new(OPENS).unwrap();
    let mut found = BTreeSet::new();
    let mut inside = "outside of functions".to_owned();
    for line in text.lines() {
        if let Some(begins) = function.captures(line) {
            begins[1].clone_into(&mut inside);
        }
        if opens.is_match(line) {
            found.insert(format!("{file}:{inside}"));
        }
    }
    found
}

/// The rows of the tables in a part of the page: the code in the first cell, and that in the last
/// one. All cells say something.
fn rows(part: &str, cells: usize) -> Vec<(BTreeSet<String>, BTreeSet<String>)> {
    let code = Regex::new("`([^`]+)`").unwrap();
    let words = |cell: &str| {
        code.captures_iter(cell)
            .map(|found| found[1].to_owned())
            .collect::<BTreeSet<_>>()
    };
    let row = |row: &str| {
        let all: Vec<&str> = row.trim_matches('|').split('|').collect();
        assert_eq!(all.len(), cells, "{row}");
        assert!(
            all[cells - 2].len() > 20,
            "nothing is said about what the code relies on: {row}"
        );
        (words(all[0]), words(all[cells - 1]))
    };
    part.lines()
        .filter(|line| line.starts_with("| `"))
        .map(row)
        .collect()
}

#[test]
fn the_page_names_each_function_that_opens_what_a_peer_wrote() {
    let page = read(PAGE);
    let named: BTreeSet<String> = rows(page.split(BEYOND_THE_TYPE).next().unwrap(), 5)
        .into_iter()
        .flat_map(|(_, places)| places)
        .collect();
    let files = sources("");
    assert!(files.len() > 500, "only {} files", files.len());
    let opening: BTreeSet<String> = files
        .iter()
        .filter(|(file, _)| *file != TYPE)
        .flat_map(|(file, text)| openings(file, text))
        .collect();
    let (unnamed, gone): (Vec<_>, Vec<_>) = (
        opening.difference(&named).collect(),
        named.difference(&opening).collect(),
    );
    assert!(
        unnamed.is_empty(),
        "{PAGE} does not say what these rely on when they open a Claimed: {unnamed:#?}"
    );
    assert!(
        gone.is_empty(),
        "{PAGE} names functions that open nothing: {gone:#?}"
    );
}

#[test]
fn the_page_names_each_file_that_reads_signed_fields_of_raw_objects() {
    let page = read(PAGE);
    let (_, beyond) = page.split_once(BEYOND_THE_TYPE).unwrap();
    let named: BTreeMap<String, BTreeSet<String>> = rows(beyond, 3)
        .into_iter()
        .map(|(fields, files)| (fields.into_iter().next().unwrap(), files))
        .collect();
    let files: BTreeMap<String, String> = [
        "market/src",
        "metering/src",
        "sharing/src",
        "offloading/rules/src",
        "offloading/controllers/src",
    ]
    .into_iter()
    .flat_map(sources)
    .collect();
    assert_eq!(
        named.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        RAW.map(|(name, _)| name).into()
    );
    for (name, pattern) in RAW {
        let pattern = Regex::new(pattern).unwrap();
        let read_in: BTreeSet<String> = files
            .iter()
            .filter(|(_, text)| pattern.is_match(text))
            .map(|(file, _)| file.clone())
            .collect();
        assert!(
            !read_in.is_empty(),
            "nobody reads {name}: is it named otherwise now?"
        );
        assert_eq!(
            named[name], read_in,
            "{PAGE} and the code differ in who reads {name}"
        );
    }
}
