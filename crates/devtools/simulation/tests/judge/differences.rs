//! Where the simulated server may differ, and why.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A pattern, and the reason why requests that it matches may have different answers.
struct Exception {
    /// `*` for every verb.
    verb: &'static str,
    /// The resource with its subresource; `*` for every one.
    resource: &'static str,
    /// A path as the report prints it; `*` matches one step, `**` any number.
    path: &'static str,
    /// A text that must occur in the real server's value; empty for any value.
    contains: &'static str,
    #[allow(dead_code, reason = "for readers")]
    reason: &'static str,
}

/// Each must be needed: the test names those that are not.
const DIFFERENCES: &[Exception] = &[
    Exception {
        verb: "patch",
        resource: "*",
        path: "body/message",
        contains: "error decoding patch",
        reason: "the parsers of JSON word their errors differently",
    },
    Exception {
        verb: "*",
        resource: "*",
        path: "body/message",
        contains: "json parse error",
        reason: "the parsers of JSON word their errors differently",
    },
    Exception {
        verb: "patch",
        resource: "*",
        path: "body/message",
        contains: "error decoding YAML",
        reason: "our controllers apply JSON, so the simulated server reads no YAML",
    },
    Exception {
        verb: "*",
        resource: "pods",
        path: "body/message",
        contains: "pod updates may not change fields other than",
        reason: "what follows is the difference of two Go structs",
    },
    Exception {
        verb: "*",
        resource: "pods",
        path: "body/details/causes/*/message",
        contains: "pod updates may not change fields other than",
        reason: "what follows is the difference of two Go structs",
    },
    Exception {
        verb: "*",
        resource: "jobs.batch",
        path: "warnings",
        contains: "child pods are preserved by default",
        reason: "warnings for people",
    },
    Exception {
        verb: "*",
        resource: "endpointslices.discovery.k8s.io",
        path: "warnings",
        contains: "FQDN endpoints are deprecated",
        reason: "warnings for people",
    },
    Exception {
        verb: "create",
        resource: "tokenreviews.authentication.k8s.io",
        path: "body/status/error",
        contains: "[invalid bearer token, token lookup failed]",
        reason: "depends on which of its ways to look up a token the real server has used before",
    },
    Exception {
        verb: "*",
        resource: "*",
        path: "body/message",
        contains: "Object 'Kind' is missing",
        reason: "the parsers of JSON word their errors differently",
    },
    Exception {
        verb: "create",
        resource: "*",
        path: "body/status/reason",
        contains: "RBAC: ",
        reason: "tells people why an access is allowed; our controllers read whether it is",
    },
    Exception {
        verb: "*",
        resource: "jobs.batch",
        path: "body/message",
        contains: "spec.template: Invalid value",
        reason: "contains the whole template in Go's format",
    },
    Exception {
        verb: "*",
        resource: "jobs.batch",
        path: "body/details/causes/*/message",
        contains: "Invalid value: {",
        reason: "contains the whole template in Go's format",
    },
    Exception {
        verb: "list",
        resource: "*",
        path: "body/message",
        contains: "invalid continue token",
        reason: "the parsers of JSON word their errors differently",
    },
    Exception {
        verb: "*",
        resource: "services",
        path: "warnings",
        contains: "spec.SessionAffinity is ignored",
        reason: "warnings for people",
    },
    Exception {
        verb: "*",
        resource: "replicasets.apps",
        path: "warnings",
        contains: "a DNS label is recommended",
        reason: "warnings for people",
    },
    Exception {
        verb: "*",
        resource: "secrets",
        path: "warnings",
        contains: "tls: failed to find any PEM data",
        reason: "warnings for people",
    },
    Exception {
        verb: "patch",
        resource: "*",
        path: "body/message",
        contains: "is invalid: patch: Invalid value",
        reason: "contains the whole object in Go's format",
    },
    Exception {
        verb: "patch",
        resource: "*",
        path: "body/details/causes/*/message",
        contains: "Invalid value",
        reason: "contains the whole object in Go's format",
    },
    Exception {
        verb: "*",
        resource: "services",
        path: "warnings",
        contains: "spec.externalIPs is ignored",
        reason: "warnings for people",
    },
];

static USED: [AtomicUsize; DIFFERENCES.len()] = [const { AtomicUsize::new(0) }; DIFFERENCES.len()];

/// Whether a difference is on the list; counts it.
pub fn is_expected(verb: &str, resource: &str, path: &str, real: &str) -> bool {
    let matches = |exception: &Exception| {
        (exception.verb == "*" || exception.verb == verb)
            && (exception.resource == "*" || exception.resource == resource)
            && real.contains(exception.contains)
            && matches_path(exception.path, path)
    };
    match DIFFERENCES.iter().position(matches) {
        Some(index) => {
            USED[index].fetch_add(1, Ordering::Relaxed);
            true
        }
        None => false,
    }
}

/// How often each exception was needed, with its pattern.
pub fn used() -> Vec<(String, usize)> {
    let pattern = |exception: &Exception| {
        let Exception { verb, resource, path, contains, .. } = exception;
        format!("{verb} {resource} {path} {contains:?}")
    };
    DIFFERENCES.iter().zip(&USED).map(|(exception, used)| (pattern(exception), used.load(Ordering::Relaxed))).collect()
}

fn matches_path(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    matches_steps(&pattern, &path)
}

fn matches_steps(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => (0..=path.len()).any(|skipped| matches_steps(rest, &path[skipped..])),
        (Some((step, pattern)), Some((first, path))) => (step == first || *step == "*") && matches_steps(pattern, path),
        _ => false,
    }
}

#[test]
fn patterns_match_paths() {
    assert!(matches_path("body/**/time", "body/metadata/managedFields/*/time"));
    assert!(matches_path("body/*/uid", "body/metadata/uid") && matches_path("**", "body"));
    assert!(!matches_path("body/*", "body/a/b") && !matches_path("body/a/**/c", "body/b/c"));
}
