//! Where the simulated server may differ, and why.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A pattern, and the reason why requests that it matches may have different answers.
struct Exception {
    /// The beginning of the resource.
    resource: &'static str,
    /// A path as the report prints it.
    path: &'static str,
    /// A text that must occur in the real server's value; empty for any value.
    contains: &'static str,
    #[allow(dead_code, reason = "for readers")]
    reason: &'static str,
}

/// Each must be needed: the test names those that are not.
const DIFFERENCES: &[Exception] = &[
    Exception {
        resource: "tokenreviews",
        path: "body/status/error",
        contains: "[invalid bearer token, token lookup failed]",
        reason: "depends on which of its ways to look up a token the real server has used before",
    },
    Exception {
        resource: "subjectaccessreviews",
        path: "body/status/reason",
        contains: "RBAC: ",
        reason: "tells people why an access is allowed; our controllers read whether it is",
    },
];

static USED: [AtomicUsize; DIFFERENCES.len()] = [const { AtomicUsize::new(0) }; DIFFERENCES.len()];

/// Whether a difference is on the list; counts it.
pub fn is_expected(resource: &str, path: &str, real: &str) -> bool {
    let matches = |exception: &Exception| {
        resource.starts_with(exception.resource)
            && real.contains(exception.contains)
            && path == exception.path
    };
    let found = DIFFERENCES.iter().position(matches);
    if let Some(index) = found {
        USED[index].fetch_add(1, Ordering::Relaxed);
    }
    found.is_some()
}

/// How often each exception was needed, with its pattern.
pub fn used() -> Vec<(String, usize)> {
    let pattern = |exception: &Exception| {
        format!(
            "{} {} {:?}",
            exception.resource, exception.path, exception.contains
        )
    };
    DIFFERENCES
        .iter()
        .zip(&USED)
        .map(|(exception, used)| (pattern(exception), used.load(Ordering::Relaxed)))
        .collect()
}
