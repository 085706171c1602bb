//! What the tests of several files need.

use liqo_api::{ClusterId, Quantity, ResourceList};

/// A cluster; a higher number has a higher ID.
pub fn cluster(number: u8) -> ClusterId {
    let letter = char::from(b'a' + number % 26);
    std::iter::repeat_n(letter, ClusterId::LENGTH).collect::<String>().parse().unwrap()
}

/// Reads `cpu=2, memory=4Gi`.
pub fn list(text: &str) -> ResourceList {
    let pair = |pair: &str| {
        let (name, quantity) = pair.split_once('=').unwrap();
        (name.to_owned(), quantity.parse::<Quantity>().unwrap())
    };
    text.split(", ").filter(|pair| !pair.is_empty()).map(pair).collect()
}
