//! How the way to a remote is: how long a question and its answer take, and how many are lost. Pure.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// So many questions are looked back at.
const KEPT: usize = 60;
/// An answer that takes longer is none.
const LATE: Duration = Duration::from_secs(3);
/// Time between two questions to one remote.
const PERIOD: Duration = Duration::from_millis(500);
/// Between two questions of which only the remotes' number matters: 250 in a second.
const SHARE: Duration = Duration::from_millis(4);
/// Before so many are done, nothing is said.
const ENOUGH: usize = 5;

/// What was measured with the last sixty questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// How long a question and its answer take at present, smoothed; none while nothing is answered.
    pub latency: Option<Duration>,
    /// The shortest of those times: the way itself, without what waits on it.
    pub shortest: Option<Duration>,
    /// Of a thousand questions, so many are not answered.
    pub lost_per_thousand: u16,
}

/// The questions to one remote.
#[derive(Clone, Debug, Default)]
pub(super) struct Measure {
    asked: VecDeque<Asked>,
    smoothed: Option<Duration>,
    next: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    token: u64,
    at: Instant,
    took: Option<Duration>,
}

/// How often each of so many remotes is asked.
pub(super) fn period(remotes: usize) -> Duration {
    PERIOD.max(SHARE * u32::try_from(remotes).unwrap_or(u32::MAX))
}

impl Measure {
    /// Whether it is time to ask. The first time depends on the token, so that not all remotes are asked at once.
    pub(super) fn is_due(&mut self, period: Duration, token: u64, now: Instant) -> bool {
        let offset = Duration::from_millis(token % u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1));
        let next = *self.next.get_or_insert(now + offset);
        if now < next {
            return false;
        }
        self.next = Some(now + period);
        true
    }

    /// A question is sent now.
    pub(super) fn ask(&mut self, token: u64, now: Instant) {
        self.asked.push_back(Asked { token, at: now, took: None });
        let is_old = |asked: &Asked| asked.took.is_some() || now.saturating_duration_since(asked.at) >= LATE;
        while self.asked.len() > KEPT && self.asked.front().is_some_and(is_old) {
            self.asked.pop_front();
        }
    }

    /// An answer came.
    pub(super) fn answered(&mut self, token: u64, now: Instant) {
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.token == token && asked.took.is_none()) else { return };
        let took = now.saturating_duration_since(asked.at);
        if took >= LATE {
            return;
        }
        asked.took = Some(took);
        // As TCP does it.
        self.smoothed = Some(self.smoothed.map_or(took, |smoothed| (smoothed * 7 + took) / 8));
    }

    /// What was measured, once that is enough. Of one that never answered nothing is known: it may be another WireGuard.
    pub(super) fn measured(&self, now: Instant) -> Option<Measured> {
        let smoothed = self.smoothed?;
        let is_done = |asked: &&Asked| asked.took.is_some() || now.saturating_duration_since(asked.at) >= LATE;
        let (done, answered) = self
            .asked
            .iter()
            .filter(is_done)
            .fold((0, 0), |(done, answered), asked| (done + 1, answered + usize::from(asked.took.is_some())));
        if done < ENOUGH {
            return None;
        }
        let lost = u16::try_from((done - answered) * 1000 / done).unwrap_or(1000);
        let shortest = self.asked.iter().filter_map(|asked| asked.took).min();
        Some(Measured { latency: (answered > 0).then_some(smoothed), shortest, lost_per_thousand: lost })
    }

    /// So many of the last questions are not answered, or not yet. Of one that never answered nothing is known.
    pub(super) fn unanswered(&self) -> usize {
        self.smoothed.map_or(0, |_| self.asked.iter().rev().take_while(|asked| asked.took.is_none()).count())
    }

    /// It is not measured any more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        measure: Measure,
        now: Instant,
        token: u64,
    }

    impl Case {
        fn new() -> Self {
            Self { measure: Measure::default(), now: Instant::now(), token: 0 }
        }

        /// One question after the other, answered after so many milliseconds, or not.
        fn ask(&mut self, answers: impl IntoIterator<Item = Option<u64>>) -> Option<Measured> {
            for answer in answers {
                self.now += PERIOD;
                self.token += 1;
                self.measure.ask(self.token, self.now);
                if let Some(milliseconds) = answer {
                    self.measure.answered(self.token, self.now + Duration::from_millis(milliseconds));
                }
            }
            self.measure.measured(self.now + LATE)
        }
    }

    #[test]
    fn latency_is_smoothed_and_the_shortest_is_the_ways_own() {
        let measured = Case::new().ask([Some(10); 20]).unwrap();
        assert_eq!((measured.latency, measured.lost_per_thousand), (Some(Duration::from_millis(10)), 0));
        let jumped = Case::new().ask([Some(10); 20].into_iter().chain([Some(90)])).unwrap();
        assert_eq!(jumped.latency, Some(Duration::from_millis(20)));
        assert_eq!(jumped.shortest, Some(Duration::from_millis(10)));
    }

    #[test]
    fn what_is_not_answered_in_time_is_lost() {
        let some = (0..30).map(|number| (number % 10 != 0).then_some(5));
        assert_eq!(Case::new().ask(some).unwrap().lost_per_thousand, 100);
        let late = Case::new().ask([Some(5)].into_iter().chain([Some(3000); KEPT])).unwrap();
        assert_eq!((late.latency, late.shortest, late.lost_per_thousand), (None, None, 1000));
        let mut case = Case::new();
        case.ask([Some(5), None, Some(5), None, None]);
        assert_eq!(case.measure.unanswered(), 2);
    }

    #[test]
    fn only_the_last_ones_count() {
        let mut case = Case::new();
        assert_eq!(case.ask([None; 100]), None, "it never answered");
        assert_eq!(case.measure.unanswered(), 0);
        assert_eq!(case.ask([Some(5); KEPT / 2]).unwrap().lost_per_thousand, 500);
        assert_eq!(case.ask([Some(5); KEPT / 2]).unwrap().lost_per_thousand, 0);
        assert!(case.measure.asked.len() <= KEPT + 1);
    }

    #[test]
    fn little_says_nothing_and_a_question_that_may_be_answered_yet_is_not_lost() {
        let mut case = Case::new();
        assert_eq!(case.ask([Some(5); 4]), None);
        case.ask([Some(5); 26]);
        case.measure.ask(1000, case.now);
        assert_eq!(case.measure.measured(case.now).unwrap().lost_per_thousand, 0);
    }

    #[test]
    fn an_answer_that_nobody_asked_for_or_that_comes_twice_changes_nothing() {
        let mut case = Case::new();
        let before = case.ask([Some(5); 10]);
        for token in [case.token, 1000] {
            case.measure.answered(token, case.now + Duration::from_millis(900));
        }
        assert_eq!(case.measure.measured(case.now + LATE), before);
    }

    #[test]
    fn questions_are_few_however_many_remotes_there_are() {
        for remotes in [1, 500, 5000] {
            assert!(u128::try_from(remotes).unwrap() * 1000 <= 250 * period(remotes).as_millis());
        }
        let (mut measure, start) = (Measure::default(), Instant::now());
        let due = |tick: u32, measure: &mut Measure| measure.is_due(PERIOD, 1234, start + Duration::from_millis(250) * tick);
        assert_eq!((0..800).filter(|tick| due(*tick, &mut measure)).count(), 400);
    }
}
