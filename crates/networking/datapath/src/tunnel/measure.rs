//! Measures the path to a remote: latency and loss of probes. Pure.
//!
//! Every half second the tunnel probes each remote that it sends packets to, inside the session.
//! With more than 125 remotes it probes each less often.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Number of probes that the figures cover.
const WINDOW: usize = 60;
/// A later answer counts as lost.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum interval of probes to one remote.
const MIN_PERIOD: Duration = Duration::from_millis(500);
/// Minimum interval of probes to all remotes together: 250 per second.
const MIN_PERIOD_OF_ALL: Duration = Duration::from_millis(4);
/// Fewer finished probes give no figures.
const MIN_SAMPLES: usize = 5;

/// The quality of a path, from the last 60 probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMeasurement {
    /// Smoothed round-trip time. `None` while no probe is answered.
    pub latency: Option<Duration>,
    /// Shortest round-trip time: the path without its queues.
    pub shortest: Option<Duration>,
    /// Unanswered probes out of a thousand.
    pub lost_per_thousand: u16,
}

/// The probes to one remote.
#[derive(Clone, Debug, Default)]
pub(super) struct RemoteProbes {
    probes: VecDeque<SentProbe>,
    smoothed: Option<Duration>,
    next: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct SentProbe {
    token: u64,
    at: Instant,
    took: Option<Duration>,
}

impl SentProbe {
    /// Whether it was answered, or is lost.
    fn is_done(&self, now: Instant) -> bool {
        self.took.is_some() || now.saturating_duration_since(self.at) >= TIMEOUT
    }
}

/// Interval of probes to each remote, for this number of remotes.
pub(super) fn probe_period(remotes: usize) -> Duration {
    MIN_PERIOD.max(MIN_PERIOD_OF_ALL * u32::try_from(remotes).unwrap_or(u32::MAX))
}

impl RemoteProbes {
    /// Whether a probe is due. The first one is delayed by the random token, so that probes to many
    /// remotes are spread over time.
    pub(super) fn is_due(&mut self, period: Duration, token: u64, now: Instant) -> bool {
        let offset = Duration::from_millis(
            token % u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1),
        );
        let next = *self.next.get_or_insert(now + offset);
        if now < next {
            return false;
        }
        self.next = Some(now + period);
        true
    }

    pub(super) fn record_question(&mut self, token: u64, now: Instant) {
        self.probes.push_back(SentProbe {
            token,
            at: now,
            took: None,
        });
        while self.probes.len() > WINDOW
            && self.probes.front().is_some_and(|probe| probe.is_done(now))
        {
            self.probes.pop_front();
        }
    }

    pub(super) fn record_answer(&mut self, token: u64, now: Instant) {
        let Some(probe) = self
            .probes
            .iter_mut()
            .find(|probe| probe.token == token && probe.took.is_none())
        else {
            return;
        };
        let took = now.saturating_duration_since(probe.at);
        if took >= TIMEOUT {
            return;
        }
        probe.took = Some(took);
        // As TCP does (RFC 6298).
        self.smoothed = Some(
            self.smoothed
                .map_or(took, |smoothed| (smoothed * 7 + took) / 8),
        );
    }

    /// The figures, if there are enough samples. `None` for a remote that never answered: it may be
    /// another WireGuard.
    pub(super) fn measurement(&self, now: Instant) -> Option<PathMeasurement> {
        let smoothed = self.smoothed?;
        let (done, answered) = self
            .probes
            .iter()
            .filter(|probe| probe.is_done(now))
            .fold((0, 0), |(done, answered), probe| {
                (done + 1, answered + usize::from(probe.took.is_some()))
            });
        if done < MIN_SAMPLES {
            return None;
        }
        let lost = u16::try_from((done - answered) * 1000 / done).unwrap_or(1000);
        let shortest = self.probes.iter().filter_map(|probe| probe.took).min();
        Some(PathMeasurement {
            latency: (answered > 0).then_some(smoothed),
            shortest,
            lost_per_thousand: lost,
        })
    }

    /// Number of the latest probes in a row that are not answered (yet). 0 for a remote that never
    /// answered.
    pub(super) fn unanswered(&self) -> usize {
        self.smoothed.map_or(0, |_| {
            self.probes
                .iter()
                .rev()
                .take_while(|probe| probe.took.is_none())
                .count()
        })
    }

    /// Number of answered probes in a row, up to the latest answered one: later answers may still
    /// be under way.
    pub(super) fn answered_in_a_row(&self) -> usize {
        let latest = self
            .probes
            .iter()
            .rev()
            .skip_while(|probe| probe.took.is_none());
        latest.take_while(|probe| probe.took.is_some()).count()
    }

    pub(super) fn forget_probes(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        measure: RemoteProbes,
        now: Instant,
        token: u64,
    }

    impl Case {
        fn new() -> Self {
            Self {
                measure: RemoteProbes::default(),
                now: Instant::now(),
                token: 0,
            }
        }

        /// Sends one probe for each item, answered after that many milliseconds or not.
        fn ask(
            &mut self,
            answers: impl IntoIterator<Item = Option<u64>>,
        ) -> Option<PathMeasurement> {
            for answer in answers {
                self.now += MIN_PERIOD;
                self.token += 1;
                self.measure.record_question(self.token, self.now);
                if let Some(milliseconds) = answer {
                    self.measure
                        .record_answer(self.token, self.now + Duration::from_millis(milliseconds));
                }
            }
            self.measure.measurement(self.now + TIMEOUT)
        }
    }

    #[test]
    fn answers_in_a_row_are_counted_up_to_those_that_are_under_way() {
        let (mut measure, start) = (RemoteProbes::default(), Instant::now());
        assert_eq!(measure.answered_in_a_row(), 0);
        for (token, is_answered) in [
            (1, true),
            (2, false),
            (3, true),
            (4, true),
            (5, false),
            (6, false),
        ] {
            measure.record_question(token, start);
            if is_answered {
                measure.record_answer(token, start);
            }
        }
        assert_eq!((measure.answered_in_a_row(), measure.unanswered()), (2, 2));
        measure.record_answer(6, start);
        assert_eq!((measure.answered_in_a_row(), measure.unanswered()), (1, 0));
    }

    #[test]
    fn latency_is_smoothed_and_the_shortest_time_is_kept() {
        let measured = Case::new().ask([Some(10); 20]).unwrap();
        assert_eq!(
            (measured.latency, measured.lost_per_thousand),
            (Some(Duration::from_millis(10)), 0)
        );
        let jumped = Case::new()
            .ask([Some(10); 20].into_iter().chain([Some(90)]))
            .unwrap();
        assert_eq!(jumped.latency, Some(Duration::from_millis(20)));
        assert_eq!(jumped.shortest, Some(Duration::from_millis(10)));
    }

    #[test]
    fn a_probe_that_is_not_answered_in_time_is_lost() {
        let some = (0..30).map(|number| (number % 10 != 0).then_some(5));
        assert_eq!(Case::new().ask(some).unwrap().lost_per_thousand, 100);
        let late = Case::new()
            .ask([Some(5)].into_iter().chain([Some(3000); WINDOW]))
            .unwrap();
        assert_eq!(
            (late.latency, late.shortest, late.lost_per_thousand),
            (None, None, 1000)
        );
        let mut case = Case::new();
        case.ask([Some(5), None, Some(5), None, None]);
        assert_eq!(case.measure.unanswered(), 2);
    }

    #[test]
    fn only_the_last_probes_count() {
        let mut case = Case::new();
        assert_eq!(case.ask([None; 100]), None, "it never answered");
        assert_eq!(case.measure.unanswered(), 0);
        assert_eq!(
            case.ask([Some(5); WINDOW / 2]).unwrap().lost_per_thousand,
            500
        );
        assert_eq!(
            case.ask([Some(5); WINDOW / 2]).unwrap().lost_per_thousand,
            0
        );
        assert!(case.measure.probes.len() <= WINDOW + 1);
    }

    #[test]
    fn few_samples_give_no_figures_and_a_probe_under_way_is_not_lost() {
        let mut case = Case::new();
        assert_eq!(case.ask([Some(5); 4]), None);
        case.ask([Some(5); 26]);
        case.measure.record_question(1000, case.now);
        assert_eq!(
            case.measure
                .measurement(case.now)
                .unwrap()
                .lost_per_thousand,
            0
        );
    }

    #[test]
    fn unknown_and_repeated_answers_change_nothing() {
        let mut case = Case::new();
        let before = case.ask([Some(5); 10]);
        for token in [case.token, 1000] {
            case.measure
                .record_answer(token, case.now + Duration::from_millis(900));
        }
        assert_eq!(case.measure.measurement(case.now + TIMEOUT), before);
    }

    #[test]
    fn the_rate_of_probes_is_bounded_for_any_number_of_remotes() {
        for remotes in [1, 500, 5000] {
            assert!(
                u128::try_from(remotes).unwrap() * 1000 <= 250 * probe_period(remotes).as_millis()
            );
        }
        let (mut measure, start) = (RemoteProbes::default(), Instant::now());
        let due = |tick: u32, measure: &mut RemoteProbes| {
            measure.is_due(MIN_PERIOD, 1234, start + Duration::from_millis(250) * tick)
        };
        assert_eq!(
            (0..800).filter(|tick| due(*tick, &mut measure)).count(),
            400
        );
    }
}
