//! What the tests of every module write down.

use std::{fmt::Debug, str::FromStr};

use ipnet::IpNet;
use liqo_api::ClusterId;

use crate::{Here, PrefixMap, There};

fn parsed<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

pub fn net(text: &str) -> IpNet {
    parsed(text)
}

pub fn ip(text: &str) -> std::net::IpAddr {
    parsed(text)
}

pub fn id(letter: char) -> ClusterId {
    parsed(&letter.to_string().repeat(32))
}

/// Prefixes here, and what they are there.
pub fn map(pairs: &[(&str, &str)]) -> PrefixMap {
    PrefixMap::new(pairs.iter().map(|(here, there)| (Here(net(here)), There(net(there))))).unwrap()
}
