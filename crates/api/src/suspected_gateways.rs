//! The gateways that a gateway suspects to be dead, as its Lease lists them.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// Gateways that answered another gateway and stopped answering it: the number of each Lease, and
/// the version (`metadata.resourceVersion`) that the Lease had then.
///
/// A live gateway renews its Lease. The Lease then has another version, so the suspicion no longer
/// applies: nobody can push a live gateway out of its Lease in this way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuspectedGateways(BTreeMap<u8, String>);

impl SuspectedGateways {
    /// Whether the Lease with this number and this version is suspected.
    pub fn contains(&self, number: u8, version: &str) -> bool {
        self.0.get(&number).is_some_and(|named| named == version)
    }

    /// Whether no gateway is suspected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(u8, String)> for SuspectedGateways {
    fn from_iter<T: IntoIterator<Item = (u8, String)>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

/// The format of the annotation: `0@1234 2@1240`.
impl fmt::Display for SuspectedGateways {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (number, version)) in self.0.iter().enumerate() {
            write!(
                formatter,
                "{}{number}@{version}",
                if index == 0 { "" } else { " " }
            )?;
        }
        Ok(())
    }
}

/// Skips words of another form: a later version may have written them.
impl FromStr for SuspectedGateways {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text
            .split_whitespace()
            .filter_map(|word| {
                let (number, version) = word.split_once('@')?;
                Some((number.parse().ok()?, version.to_owned()))
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_parses_what_it_prints_and_suspects_only_one_version() {
        let suspected: SuspectedGateways = [(2, "1240".to_owned()), (0, "1234".to_owned())]
            .into_iter()
            .collect();
        assert_eq!(suspected.to_string(), "0@1234 2@1240");
        assert_eq!(suspected.to_string().parse(), Ok(suspected.clone()));
        assert!(
            suspected.contains(0, "1234")
                && !suspected.contains(0, "1235")
                && !suspected.contains(1, "1234")
        );
    }

    #[test]
    fn words_of_another_form_are_skipped() {
        let Ok(suspected) = "x@1 3 0@7 256@1 @2".parse::<SuspectedGateways>();
        assert_eq!(suspected.to_string(), "0@7");
        assert!(
            "".parse::<SuspectedGateways>()
                .is_ok_and(|none| none.is_empty())
        );
    }
}
