//! The syntax of nftables: families, sets and chains.

use std::fmt::{Display, Write as _};

use ipnet::IpNet;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    pub(super) fn keyword(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    pub(super) fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "ipv4_addr",
            Self::V6 => "ipv6_addr",
        }
    }

    /// The low bits of an address, as an address.
    pub(super) fn low_bits_address(self, bits: u8) -> String {
        match self {
            Self::V4 => format!("0.0.0.{bits}"),
            Self::V6 => format!("::{bits:x}"),
        }
    }

    pub(super) fn is_v4(self) -> bool {
        self == Self::V4
    }

    pub(super) fn contains_prefix(self, prefix: &IpNet) -> bool {
        prefix.addr().is_ipv4() == self.is_v4()
    }
}

pub(super) fn define_set<T: Display>(
    family: IpFamily,
    name: &str,
    flags: &str,
    members: impl IntoIterator<Item = T>,
) -> String {
    let members = join_elements(members);
    // nft refuses an empty list.
    let members = if members.is_empty() {
        String::new()
    } else {
        format!(" elements = {{ {members} }};")
    };
    format!(
        "\tset {name} {{ type {};{flags}{members} }}\n",
        family.address_type()
    )
}

/// A set of prefixes.
pub(super) const INTERVAL: &str = " flags interval;";

pub(super) fn add_chain(text: &mut String, name: &str, hook: &str, rules: &[String]) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "\tchain {name} {{");
    for line in [hook.to_owned()]
        .iter()
        .filter(|hook| !hook.is_empty())
        .chain(rules)
    {
        let _ = writeln!(text, "\t\t{line}");
    }
    text.push_str("\t}\n");
}

pub(super) fn join_elements<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter()
        .map(|one| one.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
