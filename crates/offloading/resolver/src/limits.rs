//! Limits how many questions and connections are in progress at the same time: in sum, for each
//! consumer, for each address.

use std::{collections::HashMap, hash::Hash, net::IpAddr, sync::Arc};

use liqo_api::ClusterId;
use parking_lot::Mutex;

/// Maximum numbers in progress.
#[derive(Clone, Copy, Debug)]
pub struct MaximumInProgress {
    pub total: usize,
    /// For each consumer, and for all unknown addresses together.
    pub per_consumer: usize,
    pub per_source: usize,
}

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    Source,
    Consumer,
    Total,
}

/// A limit. Clones share it.
#[derive(Clone)]
pub struct ConcurrencyLimit {
    maximum: MaximumInProgress,
    used: Arc<Mutex<UsedCounts>>,
}

#[derive(Debug, Default)]
struct UsedCounts {
    total: usize,
    by_consumer: HashMap<Option<ClusterId>, usize>,
    by_source: HashMap<IpAddr, usize>,
}

/// Counts against the limit until it is dropped.
#[derive(Debug)]
pub struct LimitPermit {
    source: IpAddr,
    consumer: Option<ClusterId>,
    used: Arc<Mutex<UsedCounts>>,
}

impl ConcurrencyLimit {
    pub fn new(maximum: MaximumInProgress) -> Self {
        Self {
            maximum,
            used: Arc::default(),
        }
    }

    /// Counts one more of this address, which belongs to a pod of this consumer if that is known.
    pub fn acquire_permit(
        &self,
        source: IpAddr,
        consumer: Option<ClusterId>,
    ) -> Result<LimitPermit, LimitReached> {
        let mut used = self.used.lock();
        if used
            .by_source
            .get(&source)
            .is_some_and(|count| *count >= self.maximum.per_source)
        {
            return Err(LimitReached::Source);
        }
        if used
            .by_consumer
            .get(&consumer)
            .is_some_and(|count| *count >= self.maximum.per_consumer)
        {
            return Err(LimitReached::Consumer);
        }
        if used.total >= self.maximum.total {
            return Err(LimitReached::Total);
        }
        used.total += 1;
        *used.by_consumer.entry(consumer.clone()).or_default() += 1;
        *used.by_source.entry(source).or_default() += 1;
        Ok(LimitPermit {
            source,
            consumer,
            used: self.used.clone(),
        })
    }
}

impl Drop for LimitPermit {
    fn drop(&mut self) {
        let mut used = self.used.lock();
        used.total -= 1;
        one_less(&mut used.by_consumer, &self.consumer);
        one_less(&mut used.by_source, &self.source);
    }
}

fn one_less<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn consumer(number: u8) -> ClusterId {
        ClusterId::of_public_key(&[number; 32])
    }

    #[test]
    fn no_address_and_no_consumer_takes_more_than_its_share_and_all_together_no_more_than_the_sum()
    {
        let limit = ConcurrencyLimit::new(MaximumInProgress {
            total: 4,
            per_consumer: 3,
            per_source: 2,
        });
        let enter = |last, number| limit.acquire_permit(address(last), Some(consumer(number)));
        let refused = |last, number| enter(last, number).unwrap_err();
        let first = enter(1, 1).unwrap();
        let second = enter(1, 1).unwrap();
        assert_eq!(refused(1, 1), LimitReached::Source);
        let third = enter(2, 1).unwrap();
        assert_eq!(refused(3, 1), LimitReached::Consumer);
        let fourth = enter(4, 2).unwrap();
        assert_eq!(refused(5, 2), LimitReached::Total);
        drop(first);
        assert!(enter(5, 2).is_ok());
        drop((second, third, fourth));
        let used = limit.used.lock();
        assert!(used.total == 0 && used.by_source.is_empty() && used.by_consumer.is_empty());
    }

    #[test]
    fn all_unknown_addresses_share_one_part() {
        let limit = ConcurrencyLimit::new(MaximumInProgress {
            total: 9,
            per_consumer: 2,
            per_source: 2,
        });
        let unknown = [1, 2].map(|last| limit.acquire_permit(address(last), None).unwrap());
        assert_eq!(
            limit.acquire_permit(address(3), None).unwrap_err(),
            LimitReached::Consumer
        );
        assert!(limit.acquire_permit(address(3), Some(consumer(1))).is_ok());
        drop(unknown);
        assert!(limit.acquire_permit(address(3), None).is_ok());
    }
}
