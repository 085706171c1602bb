//! How patient a sequence is.

use std::time::Duration;

/// How long a sequence waits for what happens behind an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Usual,
    /// For a sequence that found a difference, and runs once more, alone: a busy machine may have
    /// been late.
    Patient,
}

impl Pace {
    pub fn of(self, usual: Duration) -> Duration {
        match self {
            Self::Usual => usual,
            Self::Patient => usual * 10,
        }
    }

    /// The first letter of names, which differ from those of the first attempt.
    pub fn letter(self) -> char {
        match self {
            Self::Usual => 's',
            Self::Patient => 'r',
        }
    }
}
