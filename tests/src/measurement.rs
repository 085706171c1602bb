//! Longer variants of scenarios, for runs that also measure. The usual length is enough for a
//! proof.

use anyhow::{Context as _, Result, bail};

/// Says what is measured: [`ALL`], or a number from 0 to 4 for one [`Measurement`].
const VARIABLE: &str = "LIQO_TEST_MEASURE";
const ALL: &str = "all";

/// Something that a scenario measures if `LIQO_TEST_MEASURE` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measurement {
    HostileConsumer,
    HostileProvider,
    Rollouts,
    Renewals,
    MeteredPods,
}

impl Measurement {
    /// `proof` is enough to prove what the scenario promises; `measured` is for a run that measures
    /// this.
    pub fn choose<T>(self, proof: T, measured: T) -> Result<T> {
        let wanted = std::env::var(VARIABLE).unwrap_or_default();
        let is_wanted = self
            .is_in(&wanted)
            .with_context(|| format!("the variable {VARIABLE}"))?;
        Ok(if is_wanted { measured } else { proof })
    }

    fn is_in(self, wanted: &str) -> Result<bool> {
        match wanted {
            "" => Ok(false),
            ALL => Ok(true),
            number => match number.parse::<u8>() {
                Ok(number @ 0..5) => Ok(number == self as u8),
                _ => bail!("{number:?} is neither {ALL} nor a number from 0 to 4"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_measurement_has_its_turn_or_all_or_none() {
        use Measurement::*;
        let every = [
            HostileConsumer,
            HostileProvider,
            Rollouts,
            Renewals,
            MeteredPods,
        ];
        let wanted = |text: &str| every.map(|one| one.is_in(text).unwrap());
        assert_eq!(wanted(""), [false; 5]);
        assert_eq!(wanted("all"), [true; 5]);
        assert_eq!(wanted("2"), [false, false, true, false, false]);
        assert!(Rollouts.is_in("5").is_err() && Rollouts.is_in("yes").is_err());
    }
}
