//! Values for the tests of all modules.

use std::{fmt::Debug, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use liqo_api::ClusterId;

use crate::{Here, PeerMaps, PrefixMap, There};

fn parsed<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

pub fn net(text: &str) -> IpNet {
    parsed(text)
}

pub fn ip(text: &str) -> IpAddr {
    parsed(text)
}

pub fn id(letter: char) -> ClusterId {
    parsed(&letter.to_string().repeat(32))
}

/// Prefixes here, and what they are there.
pub fn map(pairs: &[(&str, &str)]) -> PrefixMap {
    PrefixMap::new(
        pairs
            .iter()
            .map(|(here, there)| (Here(net(here)), There(net(there)))),
    )
    .unwrap()
}

/// The inverse of [`PeerMaps::seen_there`].
pub fn seen_here(maps: &PeerMaps, address: There<IpAddr>) -> Option<Here<IpAddr>> {
    maps.imported
        .to_here(address)
        .or_else(|| maps.exported.to_here(address))
}
