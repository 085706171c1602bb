//! IP addresses and ranges of them, as older Go read them: with zeros in front.

use super::Cause;
use std::net::IpAddr;

/// Reads an address; parts of IPv4 may begin with zeros, and IPv4 within IPv6 is IPv4.
pub fn parse(text: &str) -> Option<IpAddr> {
    let strip = |part: &str| {
        let digits = part.trim_start_matches('0');
        if digits.is_empty() && !part.is_empty() { "0".to_owned() } else { digits.to_owned() }
    };
    let parsed = if text.contains(':') {
        text.parse::<IpAddr>()
    } else {
        text.split('.').map(strip).collect::<Vec<_>>().join(".").parse()
    };
    parsed.ok().map(|address| address.to_canonical())
}

pub fn address(causes: &mut Vec<Cause>, path: &str, text: &str) -> bool {
    let valid = parse(text).is_some();
    if !valid {
        causes.push(Cause::invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"));
    }
    valid
}

/// Reads a range such as `10.0.0.0/8`: its first address and how many bits it fixes.
pub fn parse_range(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address = parse(address)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
    bits.parse().ok().filter(|bits| digits && *bits <= most).map(|bits| (address, bits))
}

pub fn range(causes: &mut Vec<Cause>, path: &str, text: &str) -> bool {
    let valid = parse_range(text).is_some();
    if !valid {
        causes.push(Cause::invalid(path, text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"));
    }
    valid
}

/// Addresses at which no endpoint can be.
pub fn endpoint_address(causes: &mut Vec<Cause>, path: &str, text: &str) {
    let Some(address) = parse(text) else {
        causes.push(Cause::invalid(path, text, "must be a valid IP address"));
        return;
    };
    let (link_local, multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => (address.is_unicast_link_local(), address.segments()[0] & 0xff0f == 0xff02),
    };
    let rules = [
        (address.is_unspecified(), format!("may not be unspecified ({text})")),
        (address.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()),
        (link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()),
        (multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned()),
    ];
    causes.extend(rules.into_iter().filter(|(broken, _)| *broken).map(|(_, detail)| Cause::invalid(path, text, detail)));
}
