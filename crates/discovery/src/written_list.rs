//! Decides when to compare the list of clusters with the stored one: after a change, and regularly,
//! because somebody may have emptied the stored list.

use std::time::{Duration, Instant};

/// Interval between two comparisons of an unchanged list with the stored one.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The list that was stored when this process looked last.
#[derive(Clone, Debug, Default)]
pub struct WrittenList {
    stored: Option<(String, Instant)>,
}

impl WrittenList {
    /// Whether to compare this list with the stored one, and to write it if they differ.
    pub fn is_due(&self, list: &str, now: Instant) -> bool {
        let Some((stored, at)) = &self.stored else {
            return true;
        };
        stored != list || now.saturating_duration_since(*at) >= CHECK_INTERVAL
    }

    /// Records that this list is stored now.
    pub fn is_stored(&mut self, list: String, now: Instant) {
        self.stored = Some((list, now));
    }

    /// Nothing is known about the stored list: another process may write it.
    pub fn forget_stored(&mut self) {
        self.stored = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_did_not_change_is_compared_again_because_somebody_may_have_emptied_it() {
        let (mut list, start) = (WrittenList::default(), Instant::now());
        assert!(list.is_due("[]", start));
        list.is_stored("[]".to_owned(), start);
        assert!(!list.is_due("[]", start + CHECK_INTERVAL / 2) && list.is_due("[1]", start));
        assert!(list.is_due("[]", start + CHECK_INTERVAL));
        list.is_stored("[]".to_owned(), start + CHECK_INTERVAL);
        assert!(!list.is_due("[]", start + CHECK_INTERVAL));
        list.forget_stored();
        assert!(list.is_due("[]", start));
    }
}
