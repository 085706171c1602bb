//! Progress of a long command: on a terminal one spinner for each step, otherwise plain lines on
//! standard error.

use std::{
    collections::HashMap,
    io::IsTerminal as _,
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;

/// Shows the steps of a long operation. Clones share the same lines.
#[derive(Clone)]
pub struct StepProgress {
    shared: Arc<ProgressState>,
}

struct ProgressState {
    kind: ProgressKind,
    steps: Mutex<HashMap<String, RunningStep>>,
}

enum ProgressKind {
    Bars(MultiProgress),
    Lines,
    Silent,
}

struct RunningStep {
    since: Instant,
    bar: Option<ProgressBar>,
    said: String,
}

impl StepProgress {
    /// Spinners on a terminal, otherwise plain lines.
    pub fn new() -> Self {
        Self::with_kind(if std::io::stderr().is_terminal() {
            ProgressKind::Bars(MultiProgress::new())
        } else {
            ProgressKind::Lines
        })
    }

    pub fn silent() -> Self {
        Self::with_kind(ProgressKind::Silent)
    }

    fn with_kind(kind: ProgressKind) -> Self {
        Self {
            shared: Arc::new(ProgressState {
                kind,
                steps: Mutex::default(),
            }),
        }
    }

    /// A step begins. Names of steps are unique.
    pub fn start_step(&self, name: &str) {
        let bar = match &self.shared.kind {
            ProgressKind::Bars(bars) => {
                let bar = bars.add(
                    ProgressBar::new_spinner()
                        .with_style(running_style())
                        .with_prefix(name.to_owned()),
                );
                bar.enable_steady_tick(Duration::from_millis(100));
                Some(bar)
            }
            ProgressKind::Lines => {
                eprintln!("{name} ...");
                None
            }
            ProgressKind::Silent => None,
        };
        let old = self.steps().insert(
            name.to_owned(),
            RunningStep {
                since: Instant::now(),
                bar,
                said: String::new(),
            },
        );
        if let Some(bar) = old.and_then(|step| step.bar) {
            bar.finish_and_clear();
        }
    }

    /// News about a running step; repeated news is shown once.
    pub fn message(&self, name: &str, text: &str) {
        let mut steps = self.steps();
        let Some(step) = steps.get_mut(name).filter(|step| step.said != text) else {
            return;
        };
        text.clone_into(&mut step.said);
        match (&step.bar, &self.shared.kind) {
            (Some(bar), _) => bar.set_message(text.to_owned()),
            (None, ProgressKind::Lines) => eprintln!("{name}: {text}"),
            (None, _) => {}
        }
    }

    /// A step succeeded.
    pub fn finish_step(&self, name: &str) {
        let Some(step) = self.steps().remove(name) else {
            return;
        };
        let seconds = step.since.elapsed().as_secs_f32();
        match (step.bar, &self.shared.kind) {
            (Some(bar), _) => {
                bar.set_style(done_style());
                bar.finish_with_message(format!("({seconds:.1} s)"));
            }
            (None, ProgressKind::Lines) => eprintln!("{name}: done ({seconds:.1} s)"),
            (None, _) => {}
        }
    }

    /// A line between the steps.
    pub fn print_line(&self, text: &str) {
        match &self.shared.kind {
            // A failure to draw must not end the command.
            ProgressKind::Bars(bars) => drop(bars.println(text)),
            ProgressKind::Lines => eprintln!("{text}"),
            ProgressKind::Silent => {}
        }
    }

    /// Runs one step and shows it, and whether it succeeded.
    pub async fn run_step<T, E>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.start_step(name);
        let result = work.await;
        if result.is_ok() {
            self.finish_step(name);
        } else {
            self.fail_step(name);
        }
        result
    }

    /// A step failed. The caller shows the error.
    pub fn fail_step(&self, name: &str) {
        let Some(step) = self.steps().remove(name) else {
            return;
        };
        if let Some(bar) = step.bar {
            bar.set_style(failed_style());
            bar.finish();
        }
    }

    fn steps(&self) -> parking_lot::MutexGuard<'_, HashMap<String, RunningStep>> {
        self.shared.steps.lock()
    }
}

impl Default for StepProgress {
    fn default() -> Self {
        Self::new()
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn running_style() -> ProgressStyle {
    style("{spinner:.cyan} {prefix} {wide_msg:.dim}")
}

fn done_style() -> ProgressStyle {
    style("{prefix:.green} {msg:.dim}")
}

fn failed_style() -> ProgressStyle {
    style("{prefix:.red} {wide_msg:.dim}")
}
