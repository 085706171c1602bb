//! Keys in lanes that take turns, so that one long lane delays no other.

use std::collections::{HashMap, VecDeque};

/// Keys that wait, in the order in which they are taken.
pub(super) struct Lanes<K> {
    lane_of: fn(&K) -> String,
    by_name: HashMap<String, VecDeque<K>>,
    /// The lanes that are not empty. The first one is next.
    turns: VecDeque<String>,
    len: usize,
}

impl<K> Lanes<K> {
    pub fn new(lane_of: fn(&K) -> String) -> Self {
        Self {
            lane_of,
            by_name: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
        }
    }

    pub fn push(&mut self, key: K) {
        let name = (self.lane_of)(&key);
        let lane = self.by_name.entry(name.clone()).or_default();
        if lane.is_empty() {
            self.turns.push_back(name);
        }
        lane.push_back(key);
        self.len += 1;
    }

    /// Takes the first key of the next lane.
    pub fn pop(&mut self) -> Option<K> {
        let name = self.turns.pop_front()?;
        let lane = self.by_name.get_mut(&name)?;
        let key = lane.pop_front();
        if lane.is_empty() {
            self.by_name.remove(&name);
        } else {
            self.turns.push_back(name);
        }
        self.len -= usize::from(key.is_some());
        key
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_lane_delays_no_other() {
        let mut lanes = Lanes::new(|key: &(&str, u8)| key.0.to_owned());
        for number in 0..4 {
            lanes.push(("a", number));
        }
        lanes.push(("b", 0));
        lanes.push(("c", 0));
        assert_eq!(lanes.pop(), Some(("a", 0)));
        lanes.push(("d", 0));
        let order: Vec<_> = std::iter::from_fn(|| lanes.pop()).collect();
        assert_eq!(
            order,
            [("b", 0), ("c", 0), ("a", 1), ("d", 0), ("a", 2), ("a", 3)]
        );
        assert!(
            lanes.len() == 0 && lanes.by_name.is_empty(),
            "an empty lane leaves nothing"
        );
    }
}
