//! A set of entries: merging, canonical text, digest, and the chunks of a record.
//!
//! The key of an entry is the UID of its pod and its start. If two entries have one key, the one
//! that ends earlier counts. This happens only if a process stored the end and died, and the next
//! process saw the end later. So the order of adding entries does not matter, and adding one twice
//! changes nothing. An entry that lasts zero seconds never replaces a longer one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use crate::Seconds;
use crate::entry::{EntryError, UsageEntry, amounts_text};

/// Maximum number of lines in one object.
pub const MAX_LINES: usize = 2000;
/// Maximum length in bytes of the text in one object.
pub const MAX_TEXT_LEN: usize = 256 * 1024;

/// The entries of one period, or of any other set of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageEntries {
    entries: BTreeMap<(String, Seconds), UsageEntry>,
}

impl UsageEntries {
    /// Adds an entry. Returns whether that changed anything.
    pub fn add(&mut self, entry: UsageEntry) -> bool {
        let key = (entry.uid.clone(), entry.from.at);
        match self.entries.get(&key) {
            Some(known) if entry_rank(known) <= entry_rank(&entry) => false,
            _ => {
                self.entries.insert(key, entry);
                true
            }
        }
    }

    /// Reads the lines of a text. Stops at the first line that is no entry.
    pub fn parse(text: &str) -> Result<Self, EntryError> {
        let mut usage = Self::default();
        for line in text.lines() {
            usage.add(line.parse()?);
        }
        Ok(usage)
    }

    /// Whether there is an entry for this pod and start.
    pub fn contains(&self, entry: &UsageEntry) -> bool {
        self.entries
            .contains_key(&(entry.uid.clone(), entry.from.at))
    }

    /// The entries, sorted by pod and start.
    pub fn entries(&self) -> impl Iterator<Item = &UsageEntry> {
        self.entries.values()
    }

    /// The entries of one pod, sorted by start.
    pub fn of_pod(&self, uid: &str) -> impl Iterator<Item = &UsageEntry> {
        let first = (uid.to_owned(), Seconds::MIN);
        self.entries
            .range(first..)
            .map(|(_, entry)| entry)
            .take_while(move |entry| entry.uid == uid)
    }

    /// The UIDs of all pods, sorted.
    pub fn pods(&self) -> Vec<&str> {
        let mut pods: Vec<&str> = self.entries.keys().map(|(uid, _)| uid.as_str()).collect();
        pods.dedup();
        pods
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The canonical text: a line for each entry, sorted by UID and start, each with a line feed.
    pub fn canonical_text(&self) -> String {
        text_of(self.entries())
    }

    /// SHA-256 of the canonical text, in lower-case hexadecimal.
    pub fn digest(&self) -> String {
        sha256(self.canonical_text().as_bytes())
    }

    /// The seconds of all entries that count twice, because a pod's entries overlap.
    pub fn overlap_seconds(&self) -> Seconds {
        let neighbours = self.entries.values().zip(self.entries.values().skip(1));
        let same_pod = neighbours.filter(|(one, next)| one.uid == next.uid);
        same_pod
            .map(|(one, next)| (one.until.at - next.from.at).max(0))
            .sum()
    }
}

impl FromIterator<UsageEntry> for UsageEntries {
    fn from_iter<I: IntoIterator<Item = UsageEntry>>(entries: I) -> Self {
        let mut usage = Self::default();
        entries.into_iter().for_each(|entry| {
            usage.add(entry);
        });
        usage
    }
}

impl Extend<UsageEntry> for UsageEntries {
    fn extend<I: IntoIterator<Item = UsageEntry>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| {
            self.add(entry);
        });
    }
}

/// The entry with the lower rank counts. A fact comes before an estimate.
fn entry_rank(entry: &UsageEntry) -> (bool, bool, Seconds, bool, &str, String) {
    let is_empty = entry.until.at <= entry.from.at;
    (
        is_empty,
        entry.until.is_estimate,
        entry.until.at,
        entry.from.is_estimate,
        &entry.pool,
        amounts_text(&entry.amounts),
    )
}

/// SHA-256 in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

/// The text of entries, a line for each.
pub fn text_of<'a>(entries: impl IntoIterator<Item = &'a UsageEntry>) -> String {
    entries.into_iter().fold(String::new(), |mut text, entry| {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{entry}");
        text
    })
}

/// Adds entries to the text of a chunk, as far as they fit, and returns the rest.
pub fn fill_chunk(text: &mut String, entries: Vec<UsageEntry>) -> Vec<UsageEntry> {
    let mut lines = text.lines().count();
    let mut rest = entries.into_iter();
    while let Some(entry) = rest.next() {
        let line = entry.to_string();
        if lines >= MAX_LINES || text.len() + line.len() + 1 > MAX_TEXT_LEN {
            return std::iter::once(entry).chain(rest).collect();
        }
        text.push_str(&line);
        text.push('\n');
        lines += 1;
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::entry::tests::entries;

    #[test]
    fn the_earlier_end_counts_and_a_fact_counts_before_an_estimate() {
        let merged = |lines: [&str; 2]| {
            lines
                .iter()
                .map(|line| line.parse().unwrap())
                .collect::<UsageEntries>()
                .canonical_text()
        };
        assert_eq!(merged(["u p 1 9 -", "u p 1 5 -"]), "u p 1 5 -\n");
        assert_eq!(merged(["u p 1 ~4 -", "u p 1 5 -"]), "u p 1 5 -\n");
        assert_eq!(merged(["u p ~1 ~1 -", "u p ~1 ~5 -"]), "u p ~1 ~5 -\n");
    }

    #[test]
    fn entries_that_overlap_are_seen() {
        assert_eq!(
            UsageEntries::parse("u p 1 9 -\nu p 7 10 -\nv p 1 9 -\n")
                .unwrap()
                .overlap_seconds(),
            2
        );
        assert_eq!(
            UsageEntries::parse("u p 1 7 -\nu p 7 10 -\n")
                .unwrap()
                .overlap_seconds(),
            0
        );
    }

    #[test]
    fn a_chunk_takes_a_bounded_number_of_lines() {
        let all: Vec<UsageEntry> = (0..2500)
            .map(|n| format!("u{n} p 1 9 cpu=1").parse().unwrap())
            .collect();
        let (mut first, mut second) = (String::new(), String::new());
        let rest = fill_chunk(&mut first, all);
        assert_eq!((first.lines().count(), rest.len()), (2000, 500));
        assert!(fill_chunk(&mut second, rest).is_empty());
        let long: Vec<UsageEntry> = (0..200)
            .map(|n| {
                format!("{}{n} {} 1 9 -", "u".repeat(200), "p".repeat(60))
                    .parse()
                    .unwrap()
            })
            .collect();
        let mut text = "x".repeat(MAX_TEXT_LEN - 1000);
        assert_eq!(fill_chunk(&mut text, long).len(), 197);
        assert!(text.len() <= MAX_TEXT_LEN);
    }

    proptest! {
        #[test]
        fn order_and_repetition_change_nothing(all in prop::collection::vec(entries(), 0..20), again in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
            let once: UsageEntries = all.iter().cloned().collect();
            let mut other: UsageEntries = all.iter().rev().cloned().collect();
            if !all.is_empty() {
                other.extend(again.iter().map(|index| index.get(&all).clone()));
            }
            prop_assert_eq!(&once, &other);
            prop_assert_eq!(once.digest(), other.digest());
            prop_assert_eq!(UsageEntries::parse(&once.canonical_text()), Ok(once));
        }
    }
}
