//! The program itself, where there is no cluster.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// Exit code and what was said on standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_node-labels-resources"))
        .args(arguments)
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn help_needs_no_cluster() {
    assert_eq!(run(&["--help"]), (Some(0), String::new()));
}

#[test]
fn a_selector_that_cannot_be_read_is_refused_with_its_reason() {
    for (selector, reason) in [
        ("", "it is empty"),
        ("a in (b", "parentheses"),
        ("-a", "cannot be the name of a label"),
        ("a=b=c", "cannot be the value"),
    ] {
        let (code, said) = run(&[&format!("--node-label={selector}")]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(reason), "{selector:?}: {said}");
    }
}

#[test]
fn without_a_cluster_it_says_so_and_fails() {
    let (code, said) = run(&["--node-label=a=b", "--log-level=off"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("node-labels-resources: no access to the API server"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
