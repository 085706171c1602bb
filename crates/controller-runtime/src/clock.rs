//! The time of day. A process reads it only here, so everything that runs for one cluster sees the
//! same clock, and a test can set it.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The clock of one cluster.
#[derive(Clone, Copy, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Copy, Debug)]
enum ClockSource {
    System,
    /// The time that the clock showed at an instant. It goes on with tokio's time, which tests can
    /// pause and advance.
    Tokio(Timestamp, Instant),
}

impl Clock {
    /// The clock of this machine.
    pub const fn system() -> Self {
        Self(ClockSource::System)
    }

    /// A clock that follows tokio's time, and showed `base` plus `offset` at `started`. Clocks of
    /// clusters may be wrong: several of them share `base` and `started`, and differ in `offset`.
    pub fn simulated(base: Timestamp, started: Instant, offset: SignedDuration) -> Self {
        Self(ClockSource::Tokio(base + offset, started))
    }

    pub fn now(&self) -> Timestamp {
        match self.0 {
            ClockSource::System => Timestamp::now(),
            ClockSource::Tokio(base, started) => base + started.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_simulated_clock_starts_at_its_offset_and_goes_on_with_tokios_time() {
        let clock = |started, offset| {
            Clock::simulated(
                Timestamp::UNIX_EPOCH,
                started,
                SignedDuration::from_secs(offset),
            )
        };
        let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
        let ahead = Instant::now() + hour;
        assert_eq!(
            [90, -90].map(|offset| clock(ahead, offset).now().as_second()),
            [90, -90]
        );
        let behind = Instant::now().checked_sub(second).unwrap();
        assert!(clock(behind, 90).now().as_second() > 90);
    }
}
