//! Prefix maps: which address of one cluster is which address in another. [`PeerMaps`] has both
//! directions for one peer; [`ExternalAddresses`] gives single addresses a stand-in in the external
//! prefix.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::TunnelEndpointSpec;

use crate::{
    space::{Here, There, prefixes_overlap, translate_address},
    spread::{BUCKETS, low_bits},
};

/// Pairs of prefixes of equal length: ours, and the peer's name for it. The prefixes of each side
/// do not overlap, so each address has at most one translation in either direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixMap {
    pairs: BTreeMap<Here<IpNet>, There<IpNet>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMap {
    #[error("{here} and {there} differ in size or family")]
    Size { here: IpNet, there: IpNet },
    /// Two prefixes of one side share addresses.
    #[error("{one} and {other} overlap")]
    Overlap { one: IpNet, other: IpNet },
}

impl PrefixMap {
    pub fn new(
        pairs: impl IntoIterator<Item = (Here<IpNet>, There<IpNet>)>,
    ) -> Result<Self, InvalidMap> {
        let mut map = Self::default();
        for (here, there) in pairs {
            map.insert(here, there)?;
        }
        Ok(map)
    }

    pub fn insert(&mut self, here: Here<IpNet>, there: There<IpNet>) -> Result<(), InvalidMap> {
        let (here, there) = (Here(here.0.trunc()), There(there.0.trunc()));
        let are_same_size = here.0.prefix_len() == there.0.prefix_len()
            && here.0.addr().is_ipv4() == there.0.addr().is_ipv4();
        if !are_same_size {
            return Err(InvalidMap::Size {
                here: here.0,
                there: there.0,
            });
        }
        for (other_here, other_there) in &self.pairs {
            for (one, other) in [(here.0, other_here.0), (there.0, other_there.0)] {
                if prefixes_overlap(&one, &other) {
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

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Translates an address of ours into the peer's address space.
    pub fn to_there(&self, address: Here<IpAddr>) -> Option<There<IpAddr>> {
        self.pairs
            .iter()
            .find_map(|(here, there)| translate_address(address.0, &here.0, &there.0))
            .map(There)
    }

    /// Translates an address of the peer into our address space.
    pub fn to_here(&self, address: There<IpAddr>) -> Option<Here<IpAddr>> {
        self.pairs
            .iter()
            .find_map(|(here, there)| translate_address(address.0, &there.0, &here.0))
            .map(Here)
    }
}

/// The prefixes that this cluster and one peer export to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerMaps {
    /// Our prefixes, and where they appear in the peer's address space.
    pub exported: PrefixMap,
    /// The peer's prefixes as they appear in our address space, and the prefixes themselves.
    pub imported: PrefixMap,
}

impl TryFrom<&TunnelEndpointSpec> for PeerMaps {
    type Error = InvalidMap;

    fn try_from(endpoint: &TunnelEndpointSpec) -> Result<Self, InvalidMap> {
        let exported = endpoint
            .exported
            .iter()
            .map(|(ours, view)| (Here(*ours), There(*view)));
        let imported = endpoint
            .imported
            .iter()
            .map(|(theirs, view)| (Here(*view), There(*theirs)));
        Ok(Self {
            exported: PrefixMap::new(exported)?,
            imported: PrefixMap::new(imported)?,
        })
    }
}

impl PeerMaps {
    /// Translates an address of our space as the peer sees it: its own pods have their own
    /// addresses, ours those that it mapped.
    pub fn seen_there(&self, address: Here<IpAddr>) -> Option<There<IpAddr>> {
        self.imported
            .to_there(address)
            .or_else(|| self.exported.to_there(address))
    }

    /// The maps between us and a cluster behind the peer, if the peer and that cluster see each
    /// other by `next`: the prefixes that it exports to us, and those of ours that the peer passes
    /// on to it.
    #[must_use]
    pub fn followed_by(&self, next: &Self) -> Self {
        // Prefixes of both maps do not overlap, so neither do these.
        Self {
            exported: self.through_peer(&next.exported),
            imported: self.through_peer(&next.imported),
        }
    }

    /// The pairs of our prefixes and those to which `last` maps them as the peer sees them.
    fn through_peer(&self, last: &PrefixMap) -> PrefixMap {
        let all = self.imported.pairs().chain(self.exported.pairs());
        PrefixMap {
            pairs: all
                .filter_map(|(here, at_peer)| Some((here, *last.pairs.get(&Here(at_peer.0))?)))
                .collect(),
        }
    }
}

/// Single addresses outside of all exported prefixes that peers may reach (an API server, for
/// example). Each has a stand-in within the external prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalAddresses {
    stand_ins: BTreeMap<IpAddr, IpAddr>,
}

impl ExternalAddresses {
    /// Gives each address a stand-in from the external prefix of its family. Stand-ins of
    /// `previous` stay if they still fit. Returns the addresses for which no stand-in is left, too.
    /// A stand-in has the low bits of its address, so a flow takes the same gateways on both sides
    /// ([`crate::spread`]).
    pub fn assign_stand_ins(
        external: &[IpNet],
        addresses: impl IntoIterator<Item = IpAddr>,
        previous: &Self,
    ) -> (Self, Vec<IpAddr>) {
        let wanted: BTreeSet<IpAddr> = addresses.into_iter().collect();
        let mut stand_ins: BTreeMap<IpAddr, IpAddr> = wanted
            .iter()
            .filter_map(|address| Some((*address, previous.kept_stand_in(external, address)?)))
            .collect();
        let mut used: BTreeSet<IpAddr> = stand_ins.values().copied().collect();
        let mut without = Vec::new();
        for address in wanted {
            if stand_ins.contains_key(&address) {
                continue;
            }
            let free = prefix_of_family(external, &address).and_then(|prefix| {
                // The first addresses are reserved: see `fallback_stand_in`.
                let first = fallback_stand_in(prefix, low_bits(address));
                std::iter::successors(Some(first), |one| Some(offset_address(*one, BUCKETS)))
                    .skip(1)
                    .take_while(|one| prefix.contains(one))
                    .find(|one| !used.contains(one))
            });
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

    /// The stand-in that an address has, if it still fits.
    fn kept_stand_in(&self, external: &[IpNet], address: &IpAddr) -> Option<IpAddr> {
        let before = *self.stand_ins.get(address)?;
        let prefix = prefix_of_family(external, address)?;
        let is_fallback = (0..BUCKETS).any(|bits| fallback_stand_in(prefix, bits) == before);
        let fits =
            prefix.contains(&before) && !is_fallback && low_bits(before) == low_bits(*address);
        fits.then_some(before)
    }

    /// Restores recorded pairs.
    pub fn from_recorded(pairs: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> Self {
        Self {
            stand_ins: pairs.into_iter().collect(),
        }
    }

    /// Addresses and their stand-ins.
    pub fn pairs(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.stand_ins
            .iter()
            .map(|(address, stand_in)| (*address, *stand_in))
    }
}

fn prefix_of_family<'a>(prefixes: &'a [IpNet], address: &IpAddr) -> Option<&'a IpNet> {
    prefixes
        .iter()
        .find(|prefix| prefix.addr().is_ipv4() == address.is_ipv4())
}

/// The stand-in with these low bits, for all sources without an address at the peer: nodes, clients
/// of node ports. The external prefix begins with sixteen of them, so a gateway can choose one
/// whose answers come back to it.
pub fn fallback_stand_in(external: &IpNet, low_bits: u8) -> IpAddr {
    offset_address(external.network(), low_bits)
}

/// Adds to an address, with wrapping at the end of its family.
fn offset_address(address: IpAddr, by: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4(address.to_bits().wrapping_add(by.into()).into()),
        IpAddr::V6(address) => IpAddr::V6(address.to_bits().wrapping_add(by.into()).into()),
    }
}

#[cfg(test)]
mod tests;
