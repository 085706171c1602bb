//! The metrics of the resolver.

use std::sync::OnceLock;

use liqo_controller_runtime::metrics::register;
use prometheus_client::metrics::{counter::Counter, family::Family};

use crate::limits::Refused;

type Labels = [(&'static str, &'static str); 2];

/// Counts a question or connection that exceeds a limit.
pub fn refused(what: &'static str, reason: Refused) {
    static REFUSED: OnceLock<Family<Labels, Counter>> = OnceLock::new();
    let counters = REFUSED.get_or_init(|| {
        register(
            "dns_refused",
            "Questions and connections that exceeded a limit, and got no answer",
            Family::default(),
        )
    });
    let reason = match reason {
        Refused::Source => "source",
        Refused::Consumer => "consumer",
        Refused::Total => "total",
    };
    counters
        .get_or_create(&[("what", what), ("reason", reason)])
        .inc();
}
