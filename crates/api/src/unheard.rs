//! What a gateway says in its Lease of other gateways that do not answer it any more.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// Gateways that another one heard, and hears no more: the numbers of their Leases, and the version (`metadata.resourceVersion`) that
/// each had then.
///
/// A gateway that lives renews its Lease, which has another version from then on: so what is said of it is void within a moment, and
/// nobody can keep a gateway that lives from its place by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unheard(BTreeMap<u8, String>);

impl Unheard {
    /// Whether it names a Lease as it is now.
    pub fn names(&self, number: u8, version: &str) -> bool {
        self.0.get(&number).is_some_and(|named| named == version)
    }

    /// Whether it names nobody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(u8, String)> for Unheard {
    fn from_iter<T: IntoIterator<Item = (u8, String)>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

/// As in the annotation: `0@1234 2@1240`.
impl fmt::Display for Unheard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (number, version)) in self.0.iter().enumerate() {
            write!(formatter, "{}{number}@{version}", if place == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// What is no such word is passed over: it may come from a later version.
impl FromStr for Unheard {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = |word: &str| {
            let (number, version) = word.split_once('@')?;
            Some((number.parse().ok()?, version.to_owned()))
        };
        Ok(text.split_whitespace().filter_map(word).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_names_one_version() {
        let unheard: Unheard = [(2, "1240".to_owned()), (0, "1234".to_owned())].into_iter().collect();
        assert_eq!(unheard.to_string(), "0@1234 2@1240");
        assert_eq!(unheard.to_string().parse(), Ok(unheard.clone()));
        assert!(unheard.names(0, "1234") && !unheard.names(0, "1235") && !unheard.names(1, "1234"));
    }

    #[test]
    fn words_of_another_kind_are_passed_over() {
        let Ok(unheard) = "x@1 3 0@7 256@1 @2".parse::<Unheard>();
        assert_eq!(unheard.to_string(), "0@7");
        assert!("".parse::<Unheard>().is_ok_and(|none| none.is_empty()));
    }
}
