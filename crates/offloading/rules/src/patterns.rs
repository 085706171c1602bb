//! Matches names against the patterns in policies.

/// Whether one of these patterns matches a name; `*` at the end of a pattern matches any text.
pub fn matches_any_pattern(patterns: &[String], name: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => pattern == name,
        })
}
