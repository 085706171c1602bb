//! How much may be in progress at the same time, in sum and for each address.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// A limit. Clones share it.
#[derive(Clone)]
pub struct Limit {
    total: usize,
    per_source: usize,
    used: Arc<Mutex<Used>>,
}

#[derive(Default)]
struct Used {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// What counts until it is dropped.
pub struct Permit {
    source: IpAddr,
    used: Arc<Mutex<Used>>,
}

impl Limit {
    pub fn new(total: usize, per_source: usize) -> Self {
        Self { total, per_source, used: Arc::default() }
    }

    /// `None` if the limit is reached.
    pub fn enter(&self, source: IpAddr) -> Option<Permit> {
        let mut used = self.used.lock();
        if used.total >= self.total || used.by_source.get(&source).is_some_and(|count| *count >= self.per_source) {
            return None;
        }
        used.total += 1;
        *used.by_source.entry(source).or_default() += 1;
        Some(Permit { source, used: self.used.clone() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.used.lock();
        used.total -= 1;
        if let Some(count) = used.by_source.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                used.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_takes_more_than_its_share_and_all_together_no_more_than_the_sum() {
        let limit = Limit::new(3, 2);
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let first = limit.enter(address(1));
        let second = limit.enter(address(1));
        assert!(first.is_some() && second.is_some() && limit.enter(address(1)).is_none());
        let third = limit.enter(address(2));
        assert!(third.is_some() && limit.enter(address(3)).is_none());
        drop(first);
        assert!(limit.enter(address(3)).is_some());
        drop((second, third));
        assert!(limit.used.lock().by_source.is_empty());
    }
}
