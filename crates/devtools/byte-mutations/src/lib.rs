//! Valid bytes with faults, as an attacker sends them. Only tests depend on this crate.
//!
//! ```text
//!  valid bytes ──▶ flipped bits, extreme numbers, parts cut, repeated or inserted ──▶ a parser refuses, or stays within its bounds
//! ```
//!
//! Random bytes rarely get beyond the first check of a parser. Bytes that are almost valid do.

use proptest::{prelude::*, sample::Index};

/// Maximum length of mutated bytes.
pub const MAX_LEN: usize = 64 * 1024;
/// Maximum number of faults in one input.
const MAX_MUTATIONS: usize = 5;

/// One fault. Positions are relative to the length of the bytes.
#[derive(Clone, Debug)]
enum Mutation {
    FlipBit(Index, u8),
    /// Replaces bytes, for example those of a length.
    Overwrite(Index, Vec<u8>),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    Repeat(Index, Index, usize),
    Truncate(Index),
}

/// Numbers of one, two, four and eight bytes that parsers of lengths get wrong: none, all, the
/// largest positive one, and one more.
fn extreme_numbers() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(u64::MAX >> 1),
        Just(1 << 63),
        Just(1),
        0..300_u64
    ];
    (
        number,
        prop::sample::select(vec![1_usize, 2, 4, 8]),
        any::<bool>(),
    )
        .prop_map(|(number, width, is_big_endian)| {
            let shifted = if number > u64::from(u32::MAX) {
                number >> (64 - 8 * width)
            } else {
                number
            };
            let mut bytes = shifted.to_le_bytes()[..width].to_vec();
            if is_big_endian {
                bytes.reverse();
            }
            bytes
        })
}

/// Parts of texts that parsers of JSON, of paths and of numbers get wrong.
fn tokens() -> impl Strategy<Value = Vec<u8>> {
    const TOKENS: [&str; 24] = [
        "\"",
        "\\",
        "{",
        "[",
        "]",
        "}",
        ",",
        ":",
        "null",
        "-",
        "-1",
        "1e999",
        "1e-999",
        "99999999999999999999",
        "\\u0000",
        "\\ud800",
        "\0",
        "\n",
        "/..",
        "%2F",
        "?",
        "&",
        "=",
        "é",
    ];
    prop::sample::select(TOKENS.to_vec()).prop_map(|token| token.as_bytes().to_vec())
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let part = || {
        prop_oneof![
            extreme_numbers(),
            tokens(),
            prop::collection::vec(any::<u8>(), 1..9)
        ]
    };
    prop_oneof![
        4 => (at(), 0..8_u8).prop_map(|(at, bit)| Mutation::FlipBit(at, bit)),
        4 => (at(), part()).prop_map(|(at, bytes)| Mutation::Overwrite(at, bytes)),
        3 => (at(), part()).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        2 => (at(), at()).prop_map(|(from, to)| Mutation::Remove(from, to)),
        2 => (at(), at(), 1..200_usize).prop_map(|(from, to, times)| Mutation::Repeat(from, to, times)),
        2 => at().prop_map(Mutation::Truncate),
    ]
}

impl Mutation {
    fn apply(self, bytes: &mut Vec<u8>) {
        let length = bytes.len();
        let at = |index: Index| index.index(length + 1);
        let range = |from: Index, to: Index| at(from).min(at(to))..at(from).max(at(to));
        match self {
            Self::FlipBit(index, bit) => {
                let at = at(index);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Overwrite(index, part) => {
                let at = at(index);
                for (byte, new) in bytes.iter_mut().skip(at).zip(part) {
                    *byte = new;
                }
            }
            Self::Insert(index, part) => {
                let at = at(index);
                bytes.splice(at..at, part);
            }
            Self::Remove(from, to) => drop(bytes.drain(range(from, to))),
            Self::Repeat(from, to, times) => {
                let range = range(from, to);
                let times = times.min(MAX_LEN / range.len().max(1));
                let repeated = bytes[range.clone()].repeat(times);
                bytes.splice(range.end..range.end, repeated);
            }
            Self::Truncate(index) => bytes.truncate(at(index)),
        }
        bytes.truncate(MAX_LEN);
    }
}

/// Bytes of `valid` with a few faults.
pub fn mutated(valid: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (valid, prop::collection::vec(mutation(), 1..=MAX_MUTATIONS)).prop_map(
        |(mut bytes, mutations)| {
            for mutation in mutations {
                mutation.apply(&mut bytes);
            }
            bytes
        },
    )
}

/// A text of `valid` with a few faults.
pub fn mutated_text(valid: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    mutated(valid.prop_map(String::into_bytes))
        .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::test_runner::TestRunner;

    use super::*;

    #[test]
    fn most_inputs_differ_from_the_valid_one_and_all_are_bounded() {
        let (changed, longer, shorter) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let count =
            |counter: &Cell<u32>, holds: bool| counter.set(counter.get() + u32::from(holds));
        TestRunner::default()
            .run(&mutated(Just(b"some valid bytes".to_vec())), |bytes| {
                prop_assert!(bytes.len() <= MAX_LEN);
                count(&changed, bytes != b"some valid bytes");
                count(&longer, bytes.len() > 16);
                count(&shorter, bytes.len() < 16);
                Ok(())
            })
            .unwrap();
        assert!(
            changed.get() > 128 && longer.get() > 16 && shorter.get() > 16,
            "{changed:?} {longer:?} {shorter:?}"
        );
    }

    proptest! {
        #[test]
        fn nothing_is_not_a_problem(bytes in mutated(Just(Vec::new()))) {
            prop_assert!(bytes.len() <= MAX_LEN);
        }
    }
}
