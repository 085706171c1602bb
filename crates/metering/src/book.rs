//! The book of one namespace: which objects store its entries. Every period has numbered chunks,
//! and only the last one grows.
//!
//! A chunk is closed early, so that each write is small. After a restart, the process begins a new
//! chunk; entries that are in two chunks count once. When a period is over and all its entries are
//! stored, the last chunk says how many chunks there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::Seconds;
use crate::entry::UsageEntry;
use crate::period::Period;
use crate::usage_entries::fill_chunk;

/// A chunk with so many lines does not grow any more.
const CLOSED_FROM: usize = 256;

/// The chunks of all periods of one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChunkBook {
    pages: BTreeMap<(String, Period), PeriodChunks>,
}

/// The chunks of one period.
#[derive(Clone, Debug, Default, PartialEq)]
struct PeriodChunks {
    /// The number of the next chunk.
    next: u32,
    /// The chunk that grows, which this process created.
    open: Option<(u32, String)>,
    is_complete: bool,
}

/// One object to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkWrite {
    /// ID of the contract.
    pub contract: String,
    /// The period.
    pub period: Period,
    /// The number of the chunk.
    pub chunk: u32,
    /// Number of chunks, if no more entries will follow.
    pub chunks: Option<u32>,
    /// All lines of the chunk.
    pub entries: String,
    /// Whether the object does not exist yet. If it does after all, another process wrote it: the
    /// caller must not replace it.
    pub is_new: bool,
}

impl ChunkBook {
    /// Records a chunk that exists.
    pub fn note_chunk(&mut self, contract: &str, period: Period, chunk: u32, chunks: Option<u32>) {
        let page = self.pages.entry((contract.to_owned(), period)).or_default();
        page.next = page.next.max(chunk.saturating_add(1));
        page.is_complete |= chunks.is_some();
    }

    /// Adds entries to a period. Returns what to write; nothing if the period is complete.
    pub fn append_entries(
        &mut self,
        contract: &str,
        period: Period,
        mut entries: Vec<UsageEntry>,
    ) -> Vec<ChunkWrite> {
        let page = self.pages.entry((contract.to_owned(), period)).or_default();
        let mut writes = Vec::new();
        while !page.is_complete && !entries.is_empty() {
            let is_new = page.open.is_none();
            let (chunk, mut text) = page.open.take().unwrap_or_else(|| page.new_chunk());
            let before = entries.len();
            entries = fill_chunk(&mut text, entries);
            if entries.len() < before {
                let (contract, entries) = (contract.to_owned(), text.clone());
                writes.push(ChunkWrite {
                    contract,
                    period,
                    chunk,
                    chunks: None,
                    entries,
                    is_new,
                });
            } else if is_new {
                // A line that does not fit into an empty chunk fits nowhere.
                entries.remove(0);
            }
            if text.lines().count() < CLOSED_FROM && entries.is_empty() {
                page.open = Some((chunk, text));
            }
        }
        writes
    }

    /// No more entries will follow. Returns what to write; nothing if the period is complete, or
    /// has no entries at all.
    pub fn complete_period(&mut self, contract: &str, period: Period) -> Option<ChunkWrite> {
        let has_entries = self
            .pages
            .get(&(contract.to_owned(), period))
            .is_some_and(|page| page.next > 0);
        if has_entries {
            self.close_period(contract, period)
        } else {
            None
        }
    }

    /// The same, and a period without entries gets an empty record: it tells others that this side
    /// has counted nothing until its end.
    pub fn close_period(&mut self, contract: &str, period: Period) -> Option<ChunkWrite> {
        let page = self.pages.entry((contract.to_owned(), period)).or_default();
        if std::mem::replace(&mut page.is_complete, true) {
            return None;
        }
        let is_new = page.open.is_none();
        let (chunk, entries) = page.open.take().unwrap_or_else(|| page.new_chunk());
        let chunks = Some(page.next);
        Some(ChunkWrite {
            contract: contract.to_owned(),
            period,
            chunk,
            chunks,
            entries,
            is_new,
        })
    }

    /// The name of the first of these chunks, a new one, is taken. It gets another number, in later
    /// writes, too; these know how many chunks there are now.
    pub fn renumber(&mut self, writes: &mut [ChunkWrite]) {
        let Some(ChunkWrite {
            contract,
            period,
            chunk: taken,
            ..
        }) = writes.first().cloned()
        else {
            return;
        };
        let page = self.pages.entry((contract.clone(), period)).or_default();
        page.next = page.next.max(taken.saturating_add(1));
        let (chunk, _) = page.new_chunk();
        if let Some(open) = page.open.as_mut().filter(|open| open.0 == taken) {
            open.0 = chunk;
        }
        for write in writes
            .iter_mut()
            .filter(|write| write.contract == contract && write.period == period)
        {
            if write.chunk == taken {
                write.chunk = chunk;
            }
            write.chunks = write.chunks.map(|_| page.next);
        }
    }

    /// Whether the entries of a period are complete.
    pub fn is_complete(&self, contract: &str, period: Period) -> bool {
        self.pages
            .get(&(contract.to_owned(), period))
            .is_some_and(|page| page.is_complete)
    }

    /// The end of the last complete period of any contract.
    pub fn settled_until(&self) -> Option<Seconds> {
        self.pages
            .iter()
            .filter(|(_, page)| page.is_complete)
            .map(|((_, period), _)| period.end())
            .max()
    }

    /// The periods of a contract that are over since `grace` seconds and not complete: those with
    /// entries, and those since `first`, at most the latest 500.
    pub fn due_periods(
        &self,
        contract: &str,
        seconds: u32,
        first: Seconds,
        now: Seconds,
        grace: Seconds,
    ) -> Vec<Period> {
        let with_entries = self
            .pages
            .iter()
            .filter(|((id, _), page)| id == contract && !page.is_complete);
        let mut due: BTreeSet<Period> = with_entries
            .map(|((_, period), _)| *period)
            .filter(|period| period.end().saturating_add(grace) <= now)
            .collect();
        let mut period = Period::at(now, seconds);
        for _ in 0..500 {
            period = period.previous();
            if period.end() <= first {
                break;
            }
            let is_over = period.end().saturating_add(grace) <= now;
            if is_over && !self.is_complete(contract, period) {
                due.insert(period);
            }
        }
        due.into_iter().collect()
    }
}

impl PeriodChunks {
    fn new_chunk(&mut self) -> (u32, String) {
        let chunk = self.next;
        self.next += 1;
        (chunk, String::new())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::usage_entries::UsageEntries;

    fn entries(names: std::ops::Range<usize>) -> Vec<UsageEntry> {
        names
            .map(|n| format!("u{n} p 1 9 cpu=1").parse().unwrap())
            .collect()
    }

    fn numbers(writes: &[ChunkWrite]) -> Vec<(u32, usize, bool)> {
        writes
            .iter()
            .map(|write| (write.chunk, write.entries.lines().count(), write.is_new))
            .collect()
    }

    #[test]
    fn a_chunk_grows_until_it_has_enough_lines() {
        let (mut book, period) = (ChunkBook::default(), Period::at(0, 60));
        assert_eq!(
            numbers(&book.append_entries("c", period, entries(0..10))),
            [(0, 10, true)]
        );
        assert_eq!(
            numbers(&book.append_entries("c", period, entries(10..300))),
            [(0, 300, false)]
        );
        assert_eq!(
            numbers(&book.append_entries("c", period, entries(300..301))),
            [(1, 1, true)]
        );
        assert_eq!(
            numbers(&book.append_entries("c", period, entries(301..2500))),
            [(1, 2000, false), (2, 200, true)]
        );
        let last = book.complete_period("c", period).unwrap();
        assert_eq!((last.chunk, last.chunks, last.is_new), (2, Some(3), false));
        assert_eq!(
            (
                book.complete_period("c", period),
                book.append_entries("c", period, entries(0..1))
            ),
            (None, Vec::new())
        );
        assert_eq!(book.settled_until(), Some(60));
    }

    #[test]
    fn a_process_that_starts_again_begins_another_chunk() {
        let (mut book, period) = (ChunkBook::default(), Period::at(0, 60));
        book.note_chunk("c", period, 3, None);
        let mut writes = book.append_entries("c", period, entries(0..1));
        assert_eq!(numbers(&writes), [(4, 1, true)]);
        book.renumber(&mut writes);
        assert_eq!(numbers(&writes), [(5, 1, true)]);
        assert_eq!(
            numbers(&book.append_entries("c", period, entries(1..2))),
            [(5, 2, false)]
        );
        let mut other = ChunkBook::default();
        other.note_chunk("c", period, 3, None);
        let last = other.complete_period("c", period).unwrap();
        assert_eq!(
            (last.chunk, last.chunks, last.is_new, last.entries.as_str()),
            (4, Some(5), true, "")
        );
    }

    #[test]
    fn later_writes_of_a_chunk_follow_it_to_its_new_number() {
        let (mut book, period) = (ChunkBook::default(), Period::at(0, 60));
        let mut writes = book.append_entries("c", period, entries(0..1));
        writes.extend(book.append_entries("other", period, entries(0..1)));
        writes.extend(book.complete_period("c", period));
        book.renumber(&mut writes);
        assert_eq!(
            numbers(&writes),
            [(1, 1, true), (0, 1, true), (1, 1, false)],
            "nothing replaces chunk 0 of another process"
        );
        assert_eq!(writes[2].chunks, Some(2));
    }

    #[test]
    fn the_chunk_that_grows_keeps_its_number_if_that_of_a_closed_one_is_taken() {
        let (mut book, period) = (ChunkBook::default(), Period::at(0, 60));
        let mut writes = book.append_entries("c", period, entries(0..CLOSED_FROM));
        writes.extend(book.append_entries("c", period, entries(CLOSED_FROM..CLOSED_FROM + 1)));
        book.renumber(&mut writes);
        assert_eq!(numbers(&writes), [(2, CLOSED_FROM, true), (1, 1, true)]);
        assert_eq!(
            numbers(&book.append_entries("c", period, entries(0..1))),
            [(1, 2, false)]
        );
        assert_eq!(book.complete_period("c", period).unwrap().chunks, Some(3));
    }

    #[test]
    fn periods_are_due_when_they_are_over_and_were_not_completed() {
        let mut book = ChunkBook::default();
        book.note_chunk("c", Period::at(0, 60), 0, Some(1));
        book.note_chunk("c", Period::at(60, 60), 0, None);
        let due = |first, now| {
            book.due_periods("c", 60, first, now, 30)
                .iter()
                .map(|period| period.start)
                .collect::<Vec<_>>()
        };
        assert_eq!(due(0, 209), [60]);
        assert_eq!(due(0, 210), [60, 120]);
        assert_eq!(due(200, 210), [60]);
        assert!(book.due_periods("other", 60, 150, 170, 30).is_empty());
    }

    #[test]
    fn a_period_without_entries_needs_no_record() {
        assert_eq!(
            ChunkBook::default().complete_period("c", Period::at(0, 60)),
            None
        );
    }

    #[test]
    fn a_side_that_counted_nothing_can_say_so_once() {
        let (mut book, period) = (ChunkBook::default(), Period::at(0, 60));
        let empty = book.close_period("c", period).unwrap();
        assert_eq!(
            (
                empty.chunk,
                empty.chunks,
                empty.entries.as_str(),
                empty.is_new
            ),
            (0, Some(1), "", true)
        );
        assert_eq!(
            (
                book.close_period("c", period),
                book.append_entries("c", period, entries(0..1)),
                book.settled_until()
            ),
            (None, Vec::new(), Some(60))
        );
    }

    proptest! {
        // Each case reads and writes thousands of lines.
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn no_entry_is_lost_however_they_arrive(sizes in prop::collection::vec(0..500_usize, 1..6), crashes in prop::collection::vec(any::<bool>(), 8)) {
            let (mut book, period) = (ChunkBook::default(), Period::at(0, 60));
            let mut stored: BTreeMap<u32, String> = BTreeMap::new();
            let mut from = 0;
            for (size, crash) in sizes.into_iter().zip(crashes) {
                for write in book.append_entries("c", period, entries(from..from + size)) {
                    prop_assert_eq!(write.is_new, !stored.contains_key(&write.chunk));
                    stored.insert(write.chunk, write.entries);
                }
                from += size;
                if crash {
                    book = ChunkBook::default();
                    for chunk in stored.keys() {
                        book.note_chunk("c", period, *chunk, None);
                    }
                }
            }
            let all = UsageEntries::parse(&stored.values().cloned().collect::<String>()).unwrap();
            prop_assert_eq!(all.len(), from);
            prop_assert!(stored.values().all(|text| text.lines().count() <= crate::usage_entries::MAX_LINES));
        }
    }
}
