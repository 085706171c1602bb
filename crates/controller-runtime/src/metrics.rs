//! The metrics of the process, to which every part adds its own.

use std::{sync::OnceLock, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeMetric as _,
        text::{encode_eof, encode_registry},
    },
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
    },
    registry::{Metric, Registry},
};

/// Clock ticks per second in `/proc`, a constant of Linux.
const TICKS: f64 = 100.0;

fn registry() -> &'static Mutex<Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    REGISTRY.get_or_init(|| Mutex::new(Registry::with_prefix("liqo")))
}

/// Adds a metric under `liqo_<name>` and returns it.
pub fn register<M: Metric + Clone>(name: &str, help: &str, metric: M) -> M {
    registry().lock().register(name, help, metric.clone());
    metric
}

/// All metrics in the text form that Prometheus reads.
pub fn render() -> String {
    let mut text = String::new();
    let mut process = Registry::default();
    process.register_collector(Box::new(ProcessCpuTime));
    // Writing into a String cannot fail.
    let _ = encode_registry(&mut text, &registry().lock())
        .and_then(|()| encode_registry(&mut text, &process))
        .and_then(|()| encode_eof(&mut text));
    text
}

/// The CPU time of the process, under its usual name.
#[derive(Debug)]
struct ProcessCpuTime;

impl Collector for ProcessCpuTime {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(seconds) = std::fs::read_to_string("/proc/self/stat")
            .ok()
            .as_deref()
            .and_then(cpu_seconds)
        else {
            return Ok(());
        };
        let counter = ConstCounter::new(seconds);
        let help = "CPU time of this program, in user space and in the kernel";
        counter.encode(encoder.encode_descriptor(
            "process_cpu_seconds",
            help,
            None,
            counter.metric_type(),
        )?)
    }
}

/// The user and system time in `/proc/PID/stat`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The program's name may contain spaces.
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let ticks: Vec<f64> = fields
        .take(2)
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    (ticks.len() == 2).then(|| (ticks[0] + ticks[1]) / TICKS)
}

type ByController = [(&'static str, &'static str); 1];
type ReconcilesByOutcome = [(&'static str, &'static str); 2];

/// Counts one reconcile.
pub(crate) fn count_reconcile(controller: &'static str, succeeded: bool, took: Duration) {
    static COUNTS: OnceLock<Family<ReconcilesByOutcome, Counter>> = OnceLock::new();
    static SECONDS: OnceLock<Family<ByController, Counter<f64, std::sync::atomic::AtomicU64>>> =
        OnceLock::new();
    let counts =
        COUNTS.get_or_init(|| register("reconciles", "Number of reconciles", Family::default()));
    let seconds = SECONDS.get_or_init(|| {
        register(
            "reconcile_seconds",
            "Total time of reconciles",
            Family::default(),
        )
    });
    let outcome = if succeeded { "success" } else { "error" };
    counts
        .get_or_create(&[("controller", controller), ("outcome", outcome)])
        .inc();
    seconds
        .get_or_create(&[("controller", controller)])
        .inc_by(took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_tells_how_much_time_it_took() {
        assert_eq!(
            cpu_seconds("7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 9 0"),
            Some(3.0)
        );
        let text = render();
        assert!(
            text.contains("\nprocess_cpu_seconds_total ") && text.ends_with("# EOF\n"),
            "{text}"
        );
    }

    #[test]
    fn what_controllers_do_shows_in_the_metrics() {
        count_reconcile("test-controller", false, Duration::from_millis(500));
        let text = render();
        assert!(
            text.contains(
                r#"liqo_reconciles_total{controller="test-controller",outcome="error"} 1"#
            ),
            "{text}"
        );
        assert!(
            text.contains(r#"liqo_reconcile_seconds_total{controller="test-controller"} 0.5"#),
            "{text}"
        );
    }
}
