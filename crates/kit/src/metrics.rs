//! The metrics that every slice adds to.

use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family},
    registry::{Metric, Registry},
};

fn registry() -> &'static Mutex<Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    REGISTRY.get_or_init(|| Mutex::new(Registry::with_prefix("liqo")))
}

/// Adds a metric under `liqo_<name>` and returns it.
pub fn register<M: Metric + Clone>(name: &str, help: &str, metric: M) -> M {
    registry().lock().unwrap_or_else(PoisonError::into_inner).register(name, help, metric.clone());
    metric
}

/// All metrics in the text form that Prometheus reads.
pub fn render() -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = encode(&mut text, &registry().lock().unwrap_or_else(PoisonError::into_inner));
    text
}

type ByController = [(&'static str, &'static str); 1];
type ByOutcome = [(&'static str, &'static str); 2];

/// Counts one look of a controller at one key.
pub(crate) fn reconciled(controller: &'static str, succeeded: bool, took: Duration) {
    static COUNTS: OnceLock<Family<ByOutcome, Counter>> = OnceLock::new();
    static SECONDS: OnceLock<Family<ByController, Counter<f64, std::sync::atomic::AtomicU64>>> = OnceLock::new();
    let counts = COUNTS.get_or_init(|| register("reconciles", "How often controllers looked at an object", Family::default()));
    let seconds = SECONDS.get_or_init(|| register("reconcile_seconds", "How long that took in all", Family::default()));
    let outcome = if succeeded { "success" } else { "error" };
    counts.get_or_create(&[("controller", controller), ("outcome", outcome)]).inc();
    seconds.get_or_create(&[("controller", controller)]).inc_by(took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controllers_do_shows_in_the_metrics() {
        reconciled("test-controller", false, Duration::from_millis(500));
        let text = render();
        assert!(text.contains(r#"liqo_reconciles_total{controller="test-controller",outcome="error"} 1"#), "{text}");
        assert!(text.contains(r#"liqo_reconcile_seconds_total{controller="test-controller"} 0.5"#), "{text}");
    }
}
