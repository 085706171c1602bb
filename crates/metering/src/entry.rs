//! One line of a usage record.
//!
//! ```text
//! line    = uid " " pool " " time " " time " " amounts [" " namespace]
//! time    = ["~"] digits              seconds since 1970; "~": by the writer's own clock, not yet the provider's fact
//! amounts = "-" | amount *("," amount)    sorted by name, no zeros
//! amount  = name "=" quantity         a Kubernetes quantity in powers of ten, such as 500m or 1073741824
//! ```
//! Only a consumer writes the namespace, for its own budgets.
//!
//! Example: `0f9a...-77 default 1767225600 1767225900 cpu=500m,memory=1073741824,pods=1`

use std::fmt;
use std::str::FromStr;

use liqo_quantity::{Notation, Quantity, ResourceList};

use crate::Seconds;

/// Maximum length of a line in bytes. A line with the 64 resources that a pod may name fits.
pub const MAX_LINE_LEN: usize = 8 * 1024;

/// Maximum time: the year 9999.
const MAX_TIME: Seconds = 253_402_300_799;

/// The charge for one pod between two times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageEntry {
    /// UID of the local pod, which is the name of its shadow pod.
    pub uid: String,
    /// The pool that it used.
    pub pool: String,
    /// First second that counts.
    pub from: EntryTime,
    /// First second that does not count any more. It equals `from` only if one of them is an
    /// estimate: then the pod may have been there, by the other side's clock.
    pub until: EntryTime,
    /// The charged amounts, without zeros.
    pub amounts: ResourceList,
    /// Namespace of the local pod; empty if it is not known. A provider does not write it.
    pub namespace: String,
}

/// A time in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryTime {
    /// Seconds since 1970.
    pub at: Seconds,
    /// Whether it is the writer's own clock, because it does not know the provider's time.
    pub is_estimate: bool,
}

/// Reason why a line is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Longer than [`MAX_LINE_LEN`].
    #[error("a line takes more than {MAX_LINE_LEN} bytes")]
    TooLong,
    /// Neither five nor six fields.
    #[error("a line has five fields, and six with a namespace, separated by single spaces")]
    Fields,
    /// A UID, or the name of a pool or of a namespace.
    #[error(
        "{0} of a line is empty, too long, or has characters other than a-z, A-Z, 0-9, - and ."
    )]
    Name(&'static str),
    /// A time.
    #[error("a time of a line is no number of seconds since 1970")]
    Time,
    /// The end comes before the start, or equals it without an estimate.
    #[error("a line ends before it begins")]
    Order,
    /// The amounts.
    #[error("the amounts of a line are not sorted, or one of them is no positive quantity")]
    Amounts,
}

impl EntryTime {
    /// A time that the provider states.
    pub const fn exact(at: Seconds) -> Self {
        Self {
            at,
            is_estimate: false,
        }
    }

    /// A time by the writer's own clock.
    pub const fn estimate(at: Seconds) -> Self {
        Self {
            at,
            is_estimate: true,
        }
    }
}

impl UsageEntry {
    /// An entry between two facts. `None` if it has no second.
    pub fn exact(
        uid: &str,
        pool: &str,
        from: Seconds,
        until: Seconds,
        amounts: &ResourceList,
    ) -> Option<Self> {
        let (from, until) = (EntryTime::exact(from), EntryTime::exact(until));
        let (uid, pool, amounts) = (uid.to_owned(), pool.to_owned(), normalized_amounts(amounts));
        Self {
            uid,
            pool,
            from,
            until,
            amounts,
            namespace: String::new(),
        }
        .if_valid()
    }

    /// The entry, if it has a second or an estimate.
    #[must_use]
    pub fn if_valid(self) -> Option<Self> {
        self.is_ordered().then_some(self)
    }

    fn is_ordered(&self) -> bool {
        let may_be_empty = self.from.is_estimate || self.until.is_estimate;
        self.from.at < self.until.at || (may_be_empty && self.from.at == self.until.at)
    }

    /// Number of seconds that it counts.
    pub fn seconds(&self) -> Seconds {
        self.until.at - self.from.at
    }
}

/// The amounts without zeros, each in powers of ten, so that equal amounts have equal text.
pub fn normalized_amounts(amounts: &ResourceList) -> ResourceList {
    let mut normal = ResourceList::new();
    for (name, amount) in amounts
        .iter()
        .filter(|(_, amount)| *amount > Quantity::ZERO)
    {
        normal.insert(
            name,
            Quantity::from_nanos(amount.nanos(), Notation::DecimalSi),
        );
    }
    normal
}

/// The text of normalized amounts.
pub(crate) fn amounts_text(amounts: &ResourceList) -> String {
    if amounts.is_empty() {
        return "-".to_owned();
    }
    amounts
        .iter()
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect::<Vec<_>>()
        .join(",")
}

pub(crate) fn read_amounts(text: &str) -> Result<ResourceList, EntryError> {
    let mut amounts = ResourceList::new();
    if text == "-" {
        return Ok(amounts);
    }
    for part in text.split(',') {
        let (name, amount) = part.split_once('=').ok_or(EntryError::Amounts)?;
        let has_known_bytes = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte));
        if name.is_empty() || name.len() > 317 || !has_known_bytes {
            return Err(EntryError::Amounts);
        }
        let amount: Quantity = amount.parse().map_err(|_| EntryError::Amounts)?;
        amounts.insert(name, amount);
    }
    // Only the canonical text is accepted, so that a text has one reading and a reading has one
    // text.
    if amounts_text(&normalized_amounts(&amounts)) == text {
        Ok(normalized_amounts(&amounts))
    } else {
        Err(EntryError::Amounts)
    }
}

/// Whether a text can be a UID, or the name of a pool or namespace, in a line.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

impl fmt::Display for EntryTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_estimate { "~" } else { "" }, self.at)
    }
}

impl FromStr for EntryTime {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        let (digits, is_estimate) = text
            .strip_prefix('~')
            .map_or((text, false), |digits| (digits, true));
        let plain = !digits.is_empty()
            && digits.len() <= 12
            && digits.bytes().all(|byte| byte.is_ascii_digit());
        let zeros_lead = digits.len() > 1 && digits.starts_with('0');
        let at: Seconds = digits.parse().map_err(|_| EntryError::Time)?;
        if plain && !zeros_lead && at <= MAX_TIME {
            Ok(Self { at, is_estimate })
        } else {
            Err(EntryError::Time)
        }
    }
}

impl fmt::Display for UsageEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            uid,
            pool,
            from,
            until,
            amounts,
            namespace,
        } = self;
        let space = if namespace.is_empty() { "" } else { " " };
        write!(
            f,
            "{uid} {pool} {from} {until} {}{space}{namespace}",
            amounts_text(amounts)
        )
    }
}

impl FromStr for UsageEntry {
    type Err = EntryError;

    fn from_str(line: &str) -> Result<Self, EntryError> {
        if line.len() > MAX_LINE_LEN {
            return Err(EntryError::TooLong);
        }
        let fields: Vec<&str> = line.split(' ').collect();
        let (fields, namespace) = match fields.as_slice() {
            [fields @ .., namespace] if fields.len() == 5 => (fields, Some(*namespace)),
            fields => (fields, None),
        };
        let [uid, pool, from, until, amounts] = fields else {
            return Err(EntryError::Fields);
        };
        let names = [("the UID", *uid), ("the pool", *pool)];
        for (what, name) in names
            .into_iter()
            .chain(namespace.map(|namespace| ("the namespace", namespace)))
        {
            if !is_name(name) {
                return Err(EntryError::Name(what));
            }
        }
        let entry = Self {
            uid: (*uid).to_owned(),
            pool: (*pool).to_owned(),
            from: from.parse()?,
            until: until.parse()?,
            amounts: read_amounts(amounts)?,
            namespace: namespace.unwrap_or_default().to_owned(),
        };
        entry.if_valid().ok_or(EntryError::Order)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn list(text: &str) -> ResourceList {
        let pairs = text
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| part.split_once('=').unwrap());
        pairs
            .map(|(name, amount)| (name, amount.parse().unwrap()))
            .collect()
    }

    #[test]
    fn equal_amounts_have_equal_text_whatever_their_notation() {
        let one =
            UsageEntry::exact("u", "p", 10, 20, &list("memory=1Gi,cpu=0.5,nothing=0")).unwrap();
        let other = UsageEntry::exact("u", "p", 10, 20, &list("cpu=500m,memory=1024Mi")).unwrap();
        assert_eq!(one.to_string(), "u p 10 20 cpu=500m,memory=1073741824");
        assert_eq!(one.to_string(), other.to_string());
        assert_eq!(one.seconds(), 10);
    }

    #[test]
    fn an_entry_without_a_second_is_none_unless_it_is_an_estimate() {
        assert_eq!(UsageEntry::exact("u", "p", 10, 10, &list("cpu=1")), None);
        assert_eq!(
            "u p 10 10 cpu=1".parse::<UsageEntry>(),
            Err(EntryError::Order)
        );
        assert_eq!(
            "u p 10 ~10 cpu=1".parse::<UsageEntry>().unwrap().seconds(),
            0
        );
    }

    #[test]
    fn only_the_canonical_text_is_an_entry() {
        for (line, error) in [
            ("u p 1 2", EntryError::Fields),
            ("u p 1 2 - demo x", EntryError::Fields),
            ("u p 1 2 - ", EntryError::Name("the namespace")),
            ("u  p 1 2 -", EntryError::Name("the pool")),
            ("u/ p 1 2 -", EntryError::Name("the UID")),
            ("u  1 2 -", EntryError::Name("the pool")),
            ("u p 01 2 -", EntryError::Time),
            ("u p -1 2 -", EntryError::Time),
            ("u p 1 9999999999999 -", EntryError::Time),
            ("u p 2 1 -", EntryError::Order),
            ("u p 1 2 cpu=1000m", EntryError::Amounts),
            ("u p 1 2 memory=1,cpu=1", EntryError::Amounts),
            ("u p 1 2 cpu=0", EntryError::Amounts),
            ("u p 1 2 cpu=-1", EntryError::Amounts),
            ("u p 1 2 cpu=1,cpu=1", EntryError::Amounts),
        ] {
            assert_eq!(line.parse::<UsageEntry>(), Err(error), "{line}");
        }
        assert!("u p 1 2 -".parse::<UsageEntry>().is_ok());
    }

    #[test]
    fn a_consumer_adds_the_namespace_of_the_pod() {
        let entry: UsageEntry = "u p 1 2 cpu=1 demo".parse().unwrap();
        assert_eq!(
            (entry.namespace.as_str(), entry.to_string().as_str()),
            ("demo", "u p 1 2 cpu=1 demo")
        );
        assert_eq!("u p 1 2 cpu=1".parse::<UsageEntry>().unwrap().namespace, "");
    }

    pub(crate) fn entries() -> impl Strategy<Value = UsageEntry> {
        let amounts =
            prop::collection::btree_map("[a-c]/[a-z]{1,3}|cpu|memory", 1..1_000_000_i64, 0..4);
        let namespaces = prop::sample::select(vec!["", "demo", "shop"]);
        (
            "[a-z]{1,3}",
            "[a-z]{1,2}",
            any::<bool>(),
            0..5000_i64,
            any::<bool>(),
            1..500_i64,
            amounts,
            namespaces,
        )
            .prop_map(
                |(
                    uid,
                    pool,
                    estimated_from,
                    from,
                    estimated_until,
                    seconds,
                    amounts,
                    namespace,
                )| UsageEntry {
                    uid,
                    pool,
                    from: EntryTime {
                        at: from,
                        is_estimate: estimated_from,
                    },
                    until: EntryTime {
                        at: from + seconds,
                        is_estimate: estimated_until,
                    },
                    amounts: amounts
                        .into_iter()
                        .map(|(name, millis)| (name, Quantity::from_millis(millis)))
                        .collect(),
                    namespace: namespace.to_owned(),
                },
            )
    }

    proptest! {
        #[test]
        fn an_entry_is_read_as_it_was_written(entry in entries()) {
            prop_assert_eq!(entry.to_string().parse::<UsageEntry>(), Ok(entry));
        }

        #[test]
        fn a_mutated_line_is_refused_or_is_its_own_canonical_text(line in mutated_text(entries().prop_map(|entry| entry.to_string()))) {
            if let Ok(entry) = line.parse::<UsageEntry>() {
                prop_assert_eq!(entry.to_string(), line);
            }
        }
    }
}
