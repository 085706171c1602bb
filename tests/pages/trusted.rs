//! `docs/trusted-fields.md`: which fields of peers' objects are read, and where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use regex::Regex;

use super::{read, root};

const PAGE: &str = "docs/trusted-fields.md";
const FOLDERS: [&str; 5] = ["market/src", "metering/src", "sharing/src", "offloading/rules/src", "offloading/controllers/src"];

/// Each field, and how it looks where it is read. Rows of one name share their places: contracts and receipts have a document.
const FIELDS: [(&str, &str); 15] = [
    ("spec.document", r"\bspec\.document\b"),
    ("spec.terms", r"\bspec\.terms\b"),
    ("spec.earlier", r"\bspec\.earlier\b"),
    ("spec.inForceSince", r"\bin_force_since\b"),
    ("spec.pending", r"\bspec\.pending\b"),
    ("spec.ended", r"\bspec\.ended\b"),
    ("spec.breaches", r"\bspec\.breaches\b"),
    ("spec.countersignature", r"\.countersignature\b(?:[^(]|$)"),
    ("status.pendingSignature", r"\bpending_signature\b"),
    ("status.endRequested", r"\bend_requested\b"),
    ("spec.statement", r"\bspec\.statement\b"),
    ("spec.entries", r"\bspec\.entries\b"),
    ("status.charges", r"\.charges\b"),
    ("liqo.io/voucher", r"\.voucher\b"),
    ("spec.prices", r"\bspec\.prices\b"),
];

/// All Rust files below a folder that are no tests, relative to `crates/`, without their tests.
fn sources(folder: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates").join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        let is_test = ["tests", "tests.rs", "histories.rs", "hostile_histories.rs", "fixtures.rs", "testing.rs"];
        if is_test.iter().any(|test| name.ends_with(&format!("/{test}"))) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            found.extend(sources(&name));
        } else {
            let text = read(&format!("crates/{name}"));
            let product = text.split("\n#[cfg(test)]").next().unwrap();
            let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
            found.insert(name, code.collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

#[test]
fn the_page_names_each_place_that_reads_what_a_peer_wrote() {
    let page = read(PAGE);
    let code = Regex::new("`([^`]+)`").unwrap();
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 5, "{row}");
        let words = |cell: &str| code.captures_iter(cell).map(|found| found[1].to_owned()).collect::<Vec<_>>();
        assert!(cells[3].len() > 20, "nothing is said about what the code relies on: {row}");
        named.entry(words(cells[0]).remove(0)).or_default().extend(words(cells[4]));
    }
    let files: BTreeMap<String, String> = FOLDERS.iter().flat_map(|folder| sources(folder)).collect();
    assert!(files.len() > 100, "only {} files", files.len());
    assert_eq!(named.keys().map(String::as_str).collect::<BTreeSet<_>>(), FIELDS.map(|(name, _)| name).into());
    for (name, pattern) in FIELDS {
        let pattern = Regex::new(pattern).unwrap();
        let read_in: BTreeSet<String> =
            files.iter().filter(|(_, text)| pattern.is_match(text)).map(|(file, _)| file.clone()).collect();
        assert!(!read_in.is_empty(), "nobody reads {name}: is it named otherwise now?");
        assert_eq!(named[name], read_in, "{PAGE} and the code differ in who reads {name}");
    }
}
