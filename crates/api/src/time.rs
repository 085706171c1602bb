//! The format of times that Liqo writes into annotations.

use jiff::Timestamp;

/// The time in RFC 3339 with whole seconds, the format of Kubernetes.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
