//! Prefix maps: how one cluster's addresses look from another.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::TunnelEndpointSpec;

use crate::{
    space::{Here, There, overlap, translate},
    spread::{BUCKETS, low_bits},
};

/// Pairs of prefixes of equal length, the same address here and there. Neither side overlaps itself, so that each address has
/// at most one other form in either direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixMap {
    pairs: BTreeMap<Here<IpNet>, There<IpNet>>,
}

/// Why prefixes make no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMap {
    /// Two prefixes that differ in family or length.
    #[error("{here} and {there} are not of one size")]
    Size {
        /// The prefix here.
        here: IpNet,
        /// The prefix there.
        there: IpNet,
    },
    /// Two prefixes of one side that share addresses.
    #[error("{one} and {other} overlap")]
    Overlap {
        /// One of them.
        one: IpNet,
        /// The other.
        other: IpNet,
    },
}

impl PrefixMap {
    /// Makes a map of pairs.
    pub fn new(pairs: impl IntoIterator<Item = (Here<IpNet>, There<IpNet>)>) -> Result<Self, InvalidMap> {
        let mut map = Self::default();
        for (here, there) in pairs {
            map.insert(here, there)?;
        }
        Ok(map)
    }

    /// Adds a pair.
    pub fn insert(&mut self, here: Here<IpNet>, there: There<IpNet>) -> Result<(), InvalidMap> {
        let (here, there) = (Here(here.0.trunc()), There(there.0.trunc()));
        let is_v4 = |prefix: &IpNet| matches!(prefix, IpNet::V4(_));
        if here.0.prefix_len() != there.0.prefix_len() || is_v4(&here.0) != is_v4(&there.0) {
            return Err(InvalidMap::Size { here: here.0, there: there.0 });
        }
        for (other_here, other_there) in &self.pairs {
            for (one, other) in [(here.0, other_here.0), (there.0, other_there.0)] {
                if overlap(&one, &other) {
                    return Err(InvalidMap::Overlap { one, other });
                }
            }
        }
        self.pairs.insert(here, there);
        Ok(())
    }

    /// The pairs, in the order of the prefixes here.
    pub fn pairs(&self) -> impl Iterator<Item = (Here<IpNet>, There<IpNet>)> {
        self.pairs.iter().map(|(here, there)| (*here, *there))
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// What this address of ours is there.
    pub fn there(&self, address: Here<IpAddr>) -> Option<There<IpAddr>> {
        self.pairs.iter().find_map(|(here, there)| translate(address.0, &here.0, &there.0)).map(There)
    }

    /// What that address of theirs is here.
    pub fn here(&self, address: There<IpAddr>) -> Option<Here<IpAddr>> {
        self.pairs.iter().find_map(|(here, there)| translate(address.0, &there.0, &here.0)).map(Here)
    }
}

/// What this cluster and one peer show each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerMaps {
    /// What we show: our prefixes, and where the peer put them in its space.
    pub exported: PrefixMap,
    /// What the peer shows: where we put them in our space, and its own prefixes.
    pub imported: PrefixMap,
}

impl TryFrom<&TunnelEndpointSpec> for PeerMaps {
    type Error = InvalidMap;

    fn try_from(endpoint: &TunnelEndpointSpec) -> Result<Self, InvalidMap> {
        let exported = endpoint.exported.iter().map(|(ours, view)| (Here(*ours), There(*view)));
        let imported = endpoint.imported.iter().map(|(theirs, view)| (Here(*view), There(*theirs)));
        Ok(Self { exported: PrefixMap::new(exported)?, imported: PrefixMap::new(imported)? })
    }
}

impl PeerMaps {
    /// How the peer sees an address of our space: its own pods by their own address, ours as it mapped them.
    pub fn seen_there(&self, address: Here<IpAddr>) -> Option<There<IpAddr>> {
        self.imported.there(address).or_else(|| self.exported.there(address))
    }

    /// How we see an address of the peer's space: the inverse of [`Self::seen_there`].
    pub fn seen_here(&self, address: There<IpAddr>) -> Option<Here<IpAddr>> {
        self.imported.here(address).or_else(|| self.exported.here(address))
    }
}

/// Single addresses outside of every exported prefix that peers may reach all the same (a database on a machine, say): each has
/// a stand-in within the external prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Externals {
    stand_ins: BTreeMap<IpAddr, IpAddr>,
}

impl Externals {
    /// Gives each address a stand-in of the external prefix of its family, and those of `previous` the same as before as far as
    /// they still fit. Addresses for which no place is left are returned. A stand-in has the low bits of the address that it stands
    /// for, so that a flow takes the same gateways on both sides ([`crate::spread`]).
    pub fn assign(external: &[IpNet], addresses: impl IntoIterator<Item = IpAddr>, previous: &Self) -> (Self, Vec<IpAddr>) {
        let wanted: BTreeSet<IpAddr> = addresses.into_iter().collect();
        let prefix_of = |address: &IpAddr| external.iter().find(|prefix| prefix.addr().is_ipv4() == address.is_ipv4());
        let kept = |address: &IpAddr| {
            let before = *previous.stand_ins.get(address)?;
            let is_nobodys = |prefix: &IpNet| (0..BUCKETS).any(|bits| fallback(prefix, bits) == before);
            let fits =
                |prefix: &&IpNet| prefix.contains(&before) && !is_nobodys(prefix) && low_bits(before) == low_bits(*address);
            prefix_of(address).filter(fits).map(|_| before)
        };
        let mut stand_ins: BTreeMap<IpAddr, IpAddr> =
            wanted.iter().filter_map(|address| Some((*address, kept(address)?))).collect();
        let mut used: BTreeSet<IpAddr> = stand_ins.values().copied().collect();
        let mut without = Vec::new();
        for address in wanted {
            if stand_ins.contains_key(&address) {
                continue;
            }
            // The first addresses stand for whoever has no other: see `fallback`.
            let next = |before: &IpAddr| Some(behind(*before, BUCKETS));
            let candidates = |prefix| std::iter::successors(Some(fallback(prefix, low_bits(address))), next).skip(1);
            let free = prefix_of(&address)
                .and_then(|prefix| candidates(prefix).take_while(|one| prefix.contains(one)).find(|one| !used.contains(one)));
            match free {
                Some(free) => {
                    used.insert(free);
                    stand_ins.insert(address, free);
                }
                None => without.push(address),
            }
        }
        (Self { stand_ins }, without)
    }

    /// From what was recorded.
    pub fn recorded(pairs: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> Self {
        Self { stand_ins: pairs.into_iter().collect() }
    }

    /// Addresses and their stand-ins.
    pub fn pairs(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.stand_ins.iter().map(|(address, stand_in)| (*address, *stand_in))
    }
}

/// The address with these low bits that stands for sources without an address of their own there: nodes, clients of node ports. The
/// external prefix begins with sixteen of them, so that gateways can choose one by which answers come back to them.
pub fn fallback(external: &IpNet, low_bits: u8) -> IpAddr {
    behind(external.network(), low_bits)
}

/// The address so many places behind another one; the last one of its family is followed by the first.
fn behind(address: IpAddr, places: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(address.to_bits().wrapping_add(places.into()).into()),
        IpAddr::V6(address) => IpAddr::V6(address.to_bits().wrapping_add(places.into()).into()),
    }
}

#[cfg(test)]
mod tests;
