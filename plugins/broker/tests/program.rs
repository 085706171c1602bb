//! Tests of the program without a cluster.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// Exit code and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_broker"))
        .args(arguments)
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn help_needs_no_cluster() {
    assert_eq!(run(&["--help"]), (Some(0), String::new()));
}

#[test]
fn without_a_cluster_it_fails_with_an_error() {
    let (code, stderr) = run(&["--log-level=off"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.starts_with("broker: no access to the API server"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
