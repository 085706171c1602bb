//! Connections that the kernel tracks, with their address translations, over ctnetlink.
//!
//! A connection keeps the translation that it began with. That is wrong on a node that becomes, or
//! stops being, its gateway. Once the kernel forgets the connection, it translates the next packet
//! as the prefix maps say, and the connection goes on.
//!
//! The kernel also remembers which bytes of a TCP connection it saw, and takes packets with others
//! for invalid: it translates them no longer. A connection that took another way for some time has
//! such a gap. The kernel can be told to be liberal about one connection.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use ipnet::IpNet;
use liqo_network_model::spread::{Buckets, bucket_between};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// Message types: `NFNL_SUBSYS_CTNETLINK` and the operation
/// (`linux/netfilter/nfnetlink_conntrack.h`).
const CHANGE: u16 = 0x0100;
const GET: u16 = 0x0101;
const DELETE: u16 = 0x0102;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Lengths in bytes of netlink's header, of that with netfilter's header behind it, and of an
/// attribute's header.
const HEADER: usize = 16;
const HEADERS: usize = HEADER + 4;
const ATTRIBUTE: usize = 4;
/// Attributes of a connection, and of a direction.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const PROTOCOL_STATE: u16 = 4;
const IDENTIFIER: u16 = 12;
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
/// Attributes of a connection's state in TCP.
const OF_TCP: u16 = 1;
const FLAGS: [u16; 2] = [4, 5];
/// The flag of a direction in which any packet of the connection is valid
/// (`IP_CT_TCP_FLAG_BE_LIBERAL`).
const LIBERAL: u8 = 8;
/// The flag of an attribute that contains others.
const NESTED: u16 = 0x8000;
const TCP: u8 = 6;
/// Masks the flag bits of an attribute's type.
const KIND: u16 = 0x3fff;

const V4: u8 = 2;
const V6: u8 = 10;

/// A netlink socket in this thread's network namespace.
pub(super) fn open_netlink() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?)
}

/// Deletes the connections of these buckets that have an address within these prefixes on either
/// side. Returns how many. Blocks.
pub(super) fn forget_within(
    netlink: &OwnedFd,
    prefixes: &[IpNet],
    buckets: Buckets,
) -> io::Result<usize> {
    let mut forgotten = 0;
    for family in [V4, V6] {
        if !prefixes
            .iter()
            .any(|prefix| prefix.addr().is_ipv4() == (family == V4))
        {
            continue;
        }
        let within = select_connections(netlink, family, |connection| {
            let addresses = addresses_of_connection(connection);
            let mut of_connection = addresses.iter();
            of_connection.any(|address| is_within_any(prefixes, address))
                && is_in_buckets(&addresses, buckets)
        })?;
        for connection in within {
            forget_connection(netlink, family, &connection)?;
            forgotten += 1;
        }
    }
    Ok(forgotten)
}

/// Two sets of prefixes with connections between them.
pub type PrefixPair = [Vec<IpNet>; 2];

/// Makes the kernel of this network namespace liberal about the TCP connections between each pair
/// that exist now. Returns how many it was strict about.
pub async fn allow_gaps(pairs: Vec<PrefixPair>) -> io::Result<usize> {
    let netlink = open_netlink()?;
    // The kernel may list hundreds of thousands of connections.
    tokio::task::spawn_blocking(move || make_liberal(&netlink, &pairs)).await?
}

fn make_liberal(netlink: &OwnedFd, pairs: &[PrefixPair]) -> io::Result<usize> {
    let mut changed = 0;
    for family in [V4, V6] {
        if !pairs
            .iter()
            .flatten()
            .flatten()
            .any(|prefix| prefix.addr().is_ipv4() == (family == V4))
        {
            continue;
        }
        let wanted = select_connections(netlink, family, |connection| {
            is_strict(connection) && is_between(&addresses_of_connection(connection), pairs)
        })?;
        for connection in wanted {
            let original = split_attributes(&connection).filter(|(kind, _, _)| *kind == ORIGINAL);
            let mut message: Vec<u8> = original
                .flat_map(|(_, whole, _)| whole.iter().copied())
                .collect();
            let flags = FLAGS
                .map(|kind| encode_attribute(kind, &[LIBERAL, LIBERAL]))
                .concat();
            message.extend(encode_attribute(
                NESTED | PROTOCOL_STATE,
                &encode_attribute(NESTED | OF_TCP, &flags),
            ));
            request_change(netlink, CHANGE, family, &message)?;
            changed += 1;
        }
    }
    Ok(changed)
}

/// Whether it is a TCP connection of which the kernel takes packets for invalid.
fn is_strict(connection: &[u8]) -> bool {
    let protocol = find_attribute(connection, &[ORIGINAL, PROTOCOL, PROTOCOL_NUMBER]);
    let are_liberal = FLAGS.iter().all(|kind| {
        let flags = find_attribute(connection, &[PROTOCOL_STATE, OF_TCP, *kind]);
        flags
            .and_then(<[u8]>::first)
            .is_some_and(|flags| flags & LIBERAL != 0)
    });
    protocol == Some(&[TCP]) && !are_liberal
}

/// Whether the client is within one side of a pair, and the server within the other one.
fn is_between(addresses: &[IpAddr], pairs: &[PrefixPair]) -> bool {
    let [client, _, server, _] = addresses else {
        return false;
    };
    pairs.iter().any(|[one, other]| {
        (is_within_any(one, client) && is_within_any(other, server))
            || (is_within_any(other, client) && is_within_any(one, server))
    })
}

fn is_within_any(prefixes: &[IpNet], address: &IpAddr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(address))
}

/// The attributes of the selected connections of a family. Others are not kept in memory: there may
/// be very many.
fn select_connections(
    netlink: &OwnedFd,
    family: u8,
    is_wanted: impl Fn(&&[u8]) -> bool,
) -> io::Result<Vec<Vec<u8>>> {
    send_message(netlink, GET, DUMP, family, &[])?;
    let mut connections = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let received = buffer.get(..length).ok_or(io::ErrorKind::UnexpectedEof)?;
        for (kind, body) in netlink_messages(received) {
            match kind {
                DONE => return Ok(connections),
                ERROR => acknowledgement_of(body)?,
                _ => connections.extend(
                    body.get(HEADERS - HEADER..)
                        .filter(&is_wanted)
                        .map(<[u8]>::to_vec),
                ),
            }
        }
    }
}

/// Whether a connection belongs to one of these buckets. The client's and the server's real
/// addresses give the bucket of requests; the server's address and the address that it answers to
/// give the bucket of answers. The two differ where the client is translated.
fn is_in_buckets(addresses: &[IpAddr], buckets: Buckets) -> bool {
    let [client, _, server, answered] = addresses else {
        return true;
    };
    [client, answered]
        .iter()
        .any(|other| buckets >> bucket_between(**other, *server) & 1 == 1)
}

fn forget_connection(netlink: &OwnedFd, family: u8, connection: &[u8]) -> io::Result<()> {
    // A newer connection with the same addresses and ports has another identifier.
    let named =
        split_attributes(connection).filter(|(kind, _, _)| [ORIGINAL, IDENTIFIER].contains(kind));
    let named: Vec<u8> = named
        .flat_map(|(_, whole, _)| whole.iter().copied())
        .collect();
    request_change(netlink, DELETE, family, &named)
}

/// Asks for a change of a connection, which may have ended meanwhile.
fn request_change(netlink: &OwnedFd, kind: u16, family: u8, attributes: &[u8]) -> io::Result<()> {
    send_message(netlink, kind, ACKNOWLEDGE, family, attributes)?;
    let mut answer = [0; 1024];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let answer = answer.get(..length).ok_or(io::ErrorKind::UnexpectedEof)?;
    match netlink_messages(answer).next() {
        Some((ERROR, body)) => match acknowledgement_of(body) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        },
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn send_message(
    netlink: &OwnedFd,
    kind: u16,
    flags: u16,
    family: u8,
    attributes: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(HEADERS + attributes.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([family, 0, 0, 0]);
    message.extend(attributes);
    send(netlink.as_raw_fd(), &message, MsgFlags::empty())?;
    Ok(())
}

/// The answer to a request: zero, or an errno.
fn acknowledgement_of(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Kind and body of each message.
fn netlink_messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The value of an attribute within others.
fn find_attribute<'a>(bytes: &'a [u8], kinds: &[u16]) -> Option<&'a [u8]> {
    kinds.iter().try_fold(bytes, |bytes, wanted| {
        split_attributes(bytes)
            .find(|(kind, _, _)| kind == wanted)
            .map(|(_, _, value)| value)
    })
}

/// Kind, bytes including the header, and value of each attribute.
fn split_attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?) & KIND;
        let value = bytes.get(ATTRIBUTE..length)?;
        let (whole, rest) = bytes.split_at_checked(length.next_multiple_of(4).min(bytes.len()))?;
        bytes = rest;
        Some((kind, whole, value))
    })
}

fn encode_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ATTRIBUTE + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Source and destination of a connection's requests, then those of its answers.
fn addresses_of_connection(connection: &[u8]) -> Vec<IpAddr> {
    let directions =
        split_attributes(connection).filter(|(kind, _, _)| [ORIGINAL, REPLY].contains(kind));
    let pairs = directions.flat_map(|(_, _, value)| {
        split_attributes(value).filter(|(kind, _, _)| *kind == ADDRESSES)
    });
    let values =
        pairs.flat_map(|(_, _, value)| split_attributes(value).map(|(_, _, address)| address));
    values.filter_map(address_of).collect()
}

/// Reads the bytes of an address of either family.
pub(super) fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(kind: u16, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let ports = encode_attribute(0x8002, &encode_attribute(1, &[6]));
        let pair = encode_attribute(
            0x8000 | ADDRESSES,
            &[encode_attribute(1, &from), encode_attribute(2, &to)].concat(),
        );
        encode_attribute(0x8000 | kind, &[pair, ports].concat())
    }

    #[test]
    fn the_addresses_of_both_directions_are_read() {
        let connection = [
            direction(ORIGINAL, [10, 244, 0, 1], [10, 96, 0, 1]),
            direction(REPLY, [10, 65, 0, 9], [10, 244, 0, 1]),
            encode_attribute(3, &[0, 0, 0, 8]),
        ]
        .concat();
        let expected = [
            [10, 244, 0, 1],
            [10, 96, 0, 1],
            [10, 65, 0, 9],
            [10, 244, 0, 1],
        ]
        .map(IpAddr::from);
        assert_eq!(addresses_of_connection(&connection), expected);
    }

    #[test]
    fn the_buckets_of_a_connection_are_those_of_its_packets() {
        // The pod .5 calls the Service .1, and .9 answers.
        let service = [
            [10, 244, 0, 5],
            [10, 96, 0, 1],
            [10, 65, 0, 9],
            [10, 244, 0, 5],
        ]
        .map(IpAddr::from);
        assert!(is_in_buckets(&service, 1 << (5 ^ 9)));
        assert!(!is_in_buckets(&service, !(1 << (5 ^ 9))));
        // The node .2 is translated to .7.
        let node = [
            [172, 18, 0, 2],
            [10, 65, 0, 9],
            [10, 65, 0, 9],
            [10, 70, 0, 7],
        ]
        .map(IpAddr::from);
        assert!(is_in_buckets(&node, 1 << (2 ^ 9)) && is_in_buckets(&node, 1 << (7 ^ 9)));
        assert!(!is_in_buckets(&node, !(1 << (2 ^ 9) | 1 << (7 ^ 9))));
    }

    #[test]
    fn only_tcp_connections_about_which_the_kernel_is_strict_are_changed() {
        let state = |flags: [u8; 2]| {
            let flags = [
                encode_attribute(4, &[flags[0], 0]),
                encode_attribute(5, &[flags[1], 0]),
            ]
            .concat();
            encode_attribute(
                NESTED | PROTOCOL_STATE,
                &encode_attribute(NESTED | OF_TCP, &flags),
            )
        };
        let tcp = direction(ORIGINAL, [10, 66, 0, 5], [10, 67, 0, 9]);
        let strict = |flags| is_strict(&[tcp.clone(), state(flags)].concat());
        assert_eq!(
            [[0, 0], [0x0b, 3], [3, 0x0b], [0x0b, 0x0b]].map(strict),
            [true, true, true, false]
        );
        let ports = encode_attribute(NESTED | PROTOCOL, &encode_attribute(PROTOCOL_NUMBER, &[17]));
        assert!(
            !is_strict(&encode_attribute(NESTED | ORIGINAL, &ports)),
            "it is UDP"
        );
    }

    #[test]
    fn a_connection_is_between_two_clusters_whichever_began_it() {
        let net = |text: &str| vec![text.parse::<IpNet>().unwrap()];
        let pairs = [[net("10.66.0.0/16"), net("10.65.0.0/16")]];
        let between = |client: [u8; 4], server: [u8; 4]| {
            is_between(&[client, [9; 4], server, [9; 4]].map(IpAddr::from), &pairs)
        };
        assert!(between([10, 66, 0, 5], [10, 65, 0, 9]) && between([10, 65, 0, 9], [10, 66, 0, 5]));
        assert!(
            !between([10, 66, 0, 5], [10, 66, 0, 9]) && !between([10, 99, 0, 5], [10, 65, 0, 9])
        );
    }

    #[test]
    fn truncated_messages_are_not_read() {
        let connection = direction(ORIGINAL, [10, 244, 0, 1], [10, 96, 0, 1]);
        for length in 0..connection.len() {
            assert!(addresses_of_connection(&connection[..length]).is_empty());
        }
        assert!(
            netlink_messages(&[200, 0, 0, 0, 1, 1, 0, 0])
                .next()
                .is_none()
        );
    }
}
