//! When to write what changes: the first change at once, further ones with growing delays. So whoever makes the list change all the
//! time causes few writes.

use std::time::{Duration, Instant};

const MIN_DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The pace of writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// When the next write may happen. `None`: at once.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.last.map(|(at, delay)| at + delay).filter(|next| *next > now)
    }

    /// Records a write. The delay doubles with each write that follows soon, and starts again after a quiet time.
    pub fn wrote(&mut self, now: Instant) {
        let delay = match self.last {
            Some((at, delay)) if now.saturating_duration_since(at) < delay * 4 => (delay * 2).min(MAX_DELAY),
            _ => MIN_DELAY,
        };
        self.last = Some((now, delay));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_is_written_at_once_and_many_changes_rarely() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let (mut now, mut writes) = (start, 0);
        while now < start + Duration::from_secs(600) {
            if pace.next(now).is_none() {
                pace.wrote(now);
                writes += 1;
            }
            now += Duration::from_millis(100);
        }
        assert!((10..=16).contains(&writes), "{writes} writes in ten minutes");
        let quiet = now + MAX_DELAY * 4;
        pace.wrote(quiet);
        assert_eq!(pace.next(quiet), Some(quiet + MIN_DELAY));
    }
}
