//! The published latency and loss of the tunnel to a peer. They change so rarely that a settled
//! system writes nothing.

use std::time::Duration;

use liqo_datapath::tunnel::PathMeasurement;

/// The minimum time between two changes.
pub const MIN_INTERVAL: Duration = Duration::from_secs(30);
/// A latency counts as unchanged if it differs by less than this, in microseconds, or by less than
/// a quarter.
const MIN_DIFFERENCE: u32 = 5000;
/// Losses are rounded down to one of these, in percent.
const LOSS_STEPS: [u8; 4] = [100, 50, 20, 5];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedQuality {
    /// The shortest round-trip time, in microseconds.
    pub latency: Option<u32>,
    /// The minimum loss, in percent.
    pub loss: Option<u8>,
}

impl ReportedQuality {
    /// The loss only goes to a lower step when it falls below half of the former one.
    fn from_measurement(measured: PathMeasurement, before: Option<u8>) -> Self {
        let percent = measured.lost_per_thousand / 10;
        let at_least = LOSS_STEPS
            .into_iter()
            .find(|some| percent >= u16::from(*some))
            .unwrap_or(0);
        let about_the_same =
            before.filter(|before| *before > at_least && percent * 2 >= u16::from(*before));
        Self {
            latency: measured.shortest.map(rounded_micros),
            loss: about_the_same.or(Some(at_least)),
        }
    }

    /// The figures to publish now, if the last change was published `ago`.
    #[must_use]
    pub fn next(self, measured: Option<PathMeasurement>, ago: Duration) -> Self {
        let Some(new) = measured.map(|measured| Self::from_measurement(measured, self.loss)) else {
            return self;
        };
        let differs = match (self.latency, new.latency) {
            (Some(before), Some(now)) => {
                let by = before.abs_diff(now);
                by > MIN_DIFFERENCE && by > before / 4
            }
            (before, now) => before != now,
        };
        let is_first = self == Self::default();
        if is_first || ((differs || self.loss != new.loss) && ago >= MIN_INTERVAL) {
            new
        } else {
            self
        }
    }
}

/// In microseconds, with two significant digits.
fn rounded_micros(time: Duration) -> u32 {
    let exact = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let unit = 10u32.pow(exact.checked_ilog10().unwrap_or(0).saturating_sub(1));
    exact / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(microseconds: u64, lost_per_thousand: u16) -> PathMeasurement {
        let time = Some(Duration::from_micros(microseconds));
        PathMeasurement {
            latency: time,
            shortest: time,
            lost_per_thousand,
        }
    }

    fn published(latency: u32, loss: u8) -> ReportedQuality {
        ReportedQuality {
            latency: Some(latency),
            loss: Some(loss),
        }
    }

    #[test]
    fn the_first_figures_are_published_at_once_and_rounded() {
        assert_eq!(
            ReportedQuality::default().next(None, Duration::ZERO),
            ReportedQuality::default()
        );
        assert_eq!(
            ReportedQuality::default().next(Some(measured(12_345, 42)), Duration::ZERO),
            published(12_000, 0)
        );
        assert_eq!(
            [7, 99, 100, 1999].map(|time| rounded_micros(Duration::from_micros(time))),
            [7, 99, 100, 1900]
        );
    }

    #[test]
    fn small_differences_do_not_count() {
        for (before, now) in [(400, 5300), (20_000, 24_900), (20_000, 15_100)] {
            assert_eq!(
                published(before, 0).next(Some(measured(now, 0)), MIN_INTERVAL),
                published(before, 0),
                "{before} {now}"
            );
        }
        for (before, now, then) in [
            (400, 5500, 5500),
            (20_000, 26_000, 26_000),
            (20_000, 14_000, 14_000),
        ] {
            assert_eq!(
                published(before, 0).next(Some(measured(now, 0)), MIN_INTERVAL),
                published(then, 0)
            );
        }
    }

    #[test]
    fn nothing_is_published_twice_in_half_a_minute() {
        let before = published(1000, 0);
        assert_eq!(
            before.next(
                Some(measured(90_000, 500)),
                MIN_INTERVAL.saturating_sub(Duration::from_secs(1))
            ),
            before
        );
        assert_eq!(
            before.next(Some(measured(90_000, 500)), MIN_INTERVAL),
            published(90_000, 50)
        );
    }

    #[test]
    fn losses_are_rounded_to_steps() {
        let loss = |lost| {
            published(1000, 0)
                .next(Some(measured(1000, lost)), MIN_INTERVAL)
                .loss
                .unwrap()
        };
        assert_eq!(
            [0, 33, 49, 50, 199, 200, 500, 999, 1000].map(loss),
            [0, 0, 0, 5, 5, 20, 50, 50, 100]
        );
        let from = |before, lost| {
            published(1000, before)
                .next(Some(measured(1000, lost)), MIN_INTERVAL)
                .loss
                .unwrap()
        };
        assert_eq!(
            [
                from(5, 30),
                from(5, 20),
                from(20, 120),
                from(20, 90),
                from(5, 200)
            ],
            [5, 0, 20, 5, 20]
        );
        let dead = PathMeasurement {
            latency: None,
            shortest: None,
            lost_per_thousand: 1000,
        };
        assert_eq!(
            published(1000, 0).next(Some(dead), MIN_INTERVAL),
            ReportedQuality {
                latency: None,
                loss: Some(100)
            }
        );
    }
}
