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
pub struct Progress {
    shared: Arc<Shared>,
}

struct Shared {
    kind: Kind,
    steps: Mutex<HashMap<String, Step>>,
}

enum Kind {
    Bars(MultiProgress),
    Lines,
    Silent,
}

struct Step {
    since: Instant,
    bar: Option<ProgressBar>,
    said: String,
}

impl Progress {
    /// Spinners on a terminal, otherwise plain lines.
    pub fn new() -> Self {
        Self::of(if std::io::stderr().is_terminal() {
            Kind::Bars(MultiProgress::new())
        } else {
            Kind::Lines
        })
    }

    pub fn silent() -> Self {
        Self::of(Kind::Silent)
    }

    fn of(kind: Kind) -> Self {
        Self {
            shared: Arc::new(Shared {
                kind,
                steps: Mutex::default(),
            }),
        }
    }

    /// A step begins. Names of steps are unique.
    pub fn started(&self, name: &str) {
        let bar = match &self.shared.kind {
            Kind::Bars(bars) => {
                let bar = bars.add(
                    ProgressBar::new_spinner()
                        .with_style(running())
                        .with_prefix(name.to_owned()),
                );
                bar.enable_steady_tick(Duration::from_millis(100));
                Some(bar)
            }
            Kind::Lines => {
                eprintln!("{name} ...");
                None
            }
            Kind::Silent => None,
        };
        let old = self.steps().insert(
            name.to_owned(),
            Step {
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
            (None, Kind::Lines) => eprintln!("{name}: {text}"),
            (None, _) => {}
        }
    }

    /// A step succeeded.
    pub fn finished(&self, name: &str) {
        let Some(step) = self.steps().remove(name) else {
            return;
        };
        let seconds = step.since.elapsed().as_secs_f32();
        match (step.bar, &self.shared.kind) {
            (Some(bar), _) => {
                bar.set_style(done());
                bar.finish_with_message(format!("({seconds:.1} s)"));
            }
            (None, Kind::Lines) => eprintln!("{name}: done ({seconds:.1} s)"),
            (None, _) => {}
        }
    }

    /// A line between the steps.
    pub fn line(&self, text: &str) {
        match &self.shared.kind {
            // A failure to draw must not end the command.
            Kind::Bars(bars) => drop(bars.println(text)),
            Kind::Lines => eprintln!("{text}"),
            Kind::Silent => {}
        }
    }

    /// Runs one step and shows it, and whether it succeeded.
    pub async fn step<T, E>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.started(name);
        let result = work.await;
        if result.is_ok() {
            self.finished(name);
        } else {
            self.failed(name);
        }
        result
    }

    /// A step failed. The caller shows the error.
    pub fn failed(&self, name: &str) {
        let Some(step) = self.steps().remove(name) else {
            return;
        };
        if let Some(bar) = step.bar {
            bar.set_style(broken());
            bar.finish();
        }
    }

    fn steps(&self) -> parking_lot::MutexGuard<'_, HashMap<String, Step>> {
        self.shared.steps.lock()
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn running() -> ProgressStyle {
    style("{spinner:.cyan} {prefix} {wide_msg:.dim}")
}

fn done() -> ProgressStyle {
    style("{prefix:.green} {msg:.dim}")
}

fn broken() -> ProgressStyle {
    style("{prefix:.red} {wide_msg:.dim}")
}
