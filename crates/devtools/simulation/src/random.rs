//! Random numbers from a seed: the same seed gives the same numbers.

use std::time::Duration;

/// A sequence of numbers (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// True with this chance, in thousandths.
    pub fn per_mille(&mut self, chance: u32) -> bool {
        self.number() % 1000 < u64::from(chance)
    }

    /// Less than `end`, which is not zero.
    pub fn up_to(&mut self, end: Duration) -> Duration {
        let nanos = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.number() % nanos)
    }

    /// One of these, of which there is at least one.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = usize::try_from(self.number() % choices.len() as u64).unwrap_or_default();
        choices[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let numbers = |seed| {
            let mut draws = Draws::new(seed);
            std::array::from_fn::<u64, 5, _>(|_| draws.number())
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn chances_are_met() {
        let mut draws = Draws::new(3);
        let hits = (0..10_000).filter(|_| draws.per_mille(200)).count();
        assert!((1_800..2_200).contains(&hits), "{hits}");
    }
}
