//! The metrics of the resolver.

use std::sync::OnceLock;

use liqo_controller_runtime::metrics::register;
use prometheus_client::metrics::{counter::Counter, family::Family};

use crate::limits::LimitReached;

type RefusedLabels = [(&'static str, &'static str); 2];

/// Counts a question or connection that exceeds a limit.
pub fn count_refused(what: &'static str, reason: LimitReached) {
    static REFUSED: OnceLock<Family<RefusedLabels, Counter>> = OnceLock::new();
    let counters = REFUSED.get_or_init(|| {
        register(
            "dns_refused",
            "Questions and connections that exceeded a limit, and got no answer",
            Family::default(),
        )
    });
    let reason = match reason {
        LimitReached::Source => "source",
        LimitReached::Consumer => "consumer",
        LimitReached::Total => "total",
    };
    counters
        .get_or_create(&[("what", what), ("reason", reason)])
        .inc();
}
