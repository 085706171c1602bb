//! The program `dist` makes all artefacts twice, from small files in place of Liqo's programs:
//! they take seconds. docs/how-to/make-a-release.md says how to compare two whole runs.
//!
//! The images need a program `nft`. Tests give one of their own, so that they do not depend on what
//! this machine has installed.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

const PROGRAMS: [&str; 6] = [
    "broker",
    "fixed-resources",
    "liqo-controller-manager",
    "liqo-fabric",
    "liqoctl",
    "node-labels-resources",
];

/// A folder for one test, which is empty at the beginning.
fn scratch_folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dist-{test}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("programs")).unwrap();
    for name in PROGRAMS.iter().chain(&["nft"]) {
        let program = folder.join("programs").join(name);
        fs::write(&program, format!("#!/bin/sh\necho {name}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// Runs `dist` with the programs of the folder.
fn run_dist(folder: &Path, output: &str, more: &[&str]) -> Output {
    let programs = folder.join("programs");
    let paths = env::split_paths(&env::var_os("PATH").unwrap()).collect::<Vec<_>>();
    let paths = [vec![programs.clone()], paths].concat();
    Command::new(env!("CARGO_BIN_EXE_dist"))
        .args(["--allow-dirty", "-o", "json", "--programs"])
        .arg(programs)
        .arg("--output")
        .arg(folder.join(output))
        .args(more)
        .env("PATH", env::join_paths(paths).unwrap())
        .output()
        .unwrap()
}

/// The files of a folder that `dist` wrote, by name.
fn made_files(folder: &Path, output: &str, more: &[&str]) -> BTreeMap<String, Vec<u8>> {
    let done = run_dist(folder, output, more);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    let read_entry = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    };
    fs::read_dir(folder.join(output))
        .unwrap()
        .map(read_entry)
        .collect()
}

fn json_of(files: &BTreeMap<String, Vec<u8>>, ending: &str) -> Value {
    let (_, bytes) = files
        .iter()
        .find(|(name, _)| name.ends_with(ending))
        .unwrap();
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn two_runs_write_equal_files_and_each_has_its_checksum() {
    let folder = scratch_folder("twice");
    let first = made_files(&folder, "a", &[]);
    let second = made_files(&folder, "b", &[]);
    assert!(first.keys().eq(second.keys()));
    for (name, bytes) in &first {
        assert!(second[name] == *bytes, "{name} is not the same twice");
    }
    let checksums = String::from_utf8(first["SHA256SUMS"].clone()).unwrap();
    let listed: BTreeSet<&str> = checksums.lines().collect();
    let expected: Vec<String> = first
        .iter()
        .filter(|(name, _)| *name != "SHA256SUMS")
        .map(|(name, bytes)| {
            let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(bytes));
            format!("{digest}  {name}")
        })
        .collect();
    assert_eq!(listed, expected.iter().map(String::as_str).collect());
    // Six archives, five images, chart, kinds, manifests, bill of materials, licences, provenance,
    // notes.
    assert_eq!(expected.len(), 18, "{checksums}");
    let statement = json_of(&first, ".intoto.json");
    assert_eq!(statement["subject"].as_array().unwrap().len(), 17);
    let sbom = json_of(&first, ".cdx.json");
    let names: BTreeSet<_> = sbom["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|component| component["name"].as_str().unwrap())
        .collect();
    assert!(names.contains("gotatun") && names.contains("liqo-fabric"));
    assert!(!names.contains("proptest") && !names.contains("liqo-dist"));
}

#[test]
fn only_what_is_named_is_made_and_replaces_what_an_earlier_run_made() {
    let folder = scratch_folder("only");
    let files = made_files(&folder, "a", &["--only", "notes,crds"]);
    assert_eq!(files.len(), 3, "{:?}", files.keys());
    let files = made_files(&folder, "a", &["--only", "chart"]);
    assert_eq!(files.len(), 2, "{:?}", files.keys());
    let fixed = made_files(&folder, "b", &["--only", "chart"]);
    assert_eq!(files, fixed);
}

#[test]
fn a_folder_with_other_files_is_refused_and_stays() {
    let folder = scratch_folder("strangers");
    fs::create_dir(folder.join("a")).unwrap();
    fs::write(folder.join("a/thesis.txt"), "text").unwrap();
    let done = run_dist(&folder, "a", &["--only", "notes"]);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success());
    assert!(errors.contains("thesis.txt is in "), "{errors}");
    assert_eq!(
        fs::read_to_string(folder.join("a/thesis.txt")).unwrap(),
        "text"
    );
}

#[test]
fn a_missing_program_is_named() {
    let folder = scratch_folder("missing");
    fs::remove_file(folder.join("programs/liqo-fabric")).unwrap();
    let done = run_dist(&folder, "a", &["--only", "binaries"]);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        errors.contains("liqo-fabric is missing in ") && !folder.join("a").exists(),
        "{errors}"
    );
}
