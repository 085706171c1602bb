//! Packets that are translated at both ends arrive as if the broker had forwarded them.

use proptest::prelude::*;

use super::{
    super::packet::{
        Flow,
        tests::{Make, is_intact, mutated_packets},
    },
    *,
};

/// What the customer sees of the provider, and the provider of the customer.
fn paths() -> [DirectPathConfig; 2] {
    let path = |pairs: &[[&str; 2]]| {
        let pairs = pairs
            .iter()
            .map(|[here, there]| (Here(here.parse().unwrap()), There(there.parse().unwrap())));
        DirectPathConfig {
            number: 7,
            prefixes: PrefixMap::new(pairs).unwrap(),
            local: LocalAddresses::Prefixes(Vec::new()),
        }
    };
    [
        path(&[["10.67.0.0/16", "10.65.0.0/16"], ["fd67::/64", "fd65::/64"]]),
        path(&[["10.68.0.0/16", "10.66.0.0/16"], ["fd68::/64", "fd66::/64"]]),
    ]
}

/// A flow from the customer as it leaves its device, and as it reaches the device of the provider.
fn flows(is_v4: bool) -> [(IpAddr, IpAddr); 2] {
    let texts = if is_v4 {
        [("10.66.1.5", "10.67.0.9"), ("10.68.1.5", "10.65.0.9")]
    } else {
        [("fd66::1:5", "fd67::9"), ("fd68::1:5", "fd65::9")]
    };
    texts.map(|(source, destination)| (source.parse().unwrap(), destination.parse().unwrap()))
}

fn with(make: &Make, (source, destination): (IpAddr, IpAddr)) -> Make {
    Make {
        flow: Flow {
            source,
            destination,
            ..make.flow
        },
        ..make.clone()
    }
}

/// The packet at the device of the other end.
fn carried(mut packet: Vec<u8>) -> Option<Vec<u8>> {
    let [customer, provider] = paths();
    customer.translate_outgoing(&mut packet)?;
    provider.translate_incoming(&mut packet)?;
    Some(packet)
}

#[test]
fn a_packet_arrives_with_the_addresses_that_it_has_through_the_broker() {
    let makes = [
        Make::tcp4(b"hello"),
        Make::udp4(b"hello"),
        Make::tcp6(b"hello"),
        Make::udp4(b"hello").v6(),
    ];
    for make in makes {
        let [leaves, arrives] = flows(make.flow.source.is_ipv4());
        let came = carried(with(&make, leaves).bytes()).unwrap();
        assert_eq!(came, with(&make, arrives).bytes());
        assert!(is_intact(&came));
    }
}

#[test]
fn an_answer_takes_the_path_back() {
    let [leaves, arrives] = flows(true);
    let make = Make::tcp4(b"hello");
    let mut packet = with(&make, (arrives.1, arrives.0)).bytes();
    let [customer, provider] = paths();
    provider.translate_outgoing(&mut packet).unwrap();
    customer.translate_incoming(&mut packet).unwrap();
    assert_eq!(packet, with(&make, (leaves.1, leaves.0)).bytes());
}

#[test]
fn a_datagram_without_a_checksum_stays_without_one() {
    let [leaves, arrives] = flows(true);
    let make = Make::udp4(b"hello");
    let [mut packet, mut expected] = [leaves, arrives].map(|flow| with(&make, flow).bytes());
    for packet in [&mut packet, &mut expected] {
        packet[26..28].copy_from_slice(&[0, 0]);
    }
    assert_eq!(carried(packet).unwrap(), expected);
}

/// An ICMP error about a packet that the other end sent, with the first bytes of that packet.
fn icmp_error((source, destination): (IpAddr, IpAddr), about: &[u8]) -> Vec<u8> {
    let is_v4 = source.is_ipv4();
    // Destination unreachable (port), and packet too big.
    let mut message = if is_v4 {
        vec![3, 3, 0, 0, 0, 0, 0, 0]
    } else {
        vec![2, 0, 0, 0, 0, 0, 5, 0]
    };
    message.extend_from_slice(about);
    let pseudo = PartialChecksum::pseudo_header(source, destination, ICMPV6, message.len());
    let sum = if is_v4 {
        PartialChecksum::of_bytes(&message)
    } else {
        pseudo.add(&message)
    };
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    // Build it as UDP and replace what follows the IP header.
    let mut make = Make::udp4(&vec![0; message.len() - 8]);
    make.flow = Flow {
        source,
        destination,
        protocol: UDP,
        source_port: 0,
        destination_port: 0,
    };
    let mut packet = make.bytes();
    let at = if is_v4 { IPV4_HEADER } else { IPV6_HEADER };
    packet[at..].copy_from_slice(&message);
    if is_v4 {
        packet[9] = ICMP;
        packet[10..12].copy_from_slice(&[0, 0]);
        let checksum = PartialChecksum::of_bytes(&packet[..IPV4_HEADER]).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet[6] = ICMPV6;
    }
    packet
}

#[test]
fn an_error_arrives_about_the_packet_that_the_receiver_sent() {
    for make in [
        Make::tcp4(b"hello"),
        Make::udp4(b"hello"),
        Make::tcp6(b"hello"),
        Make::udp4(b"hello").v6(),
    ] {
        let [at_customer, at_provider] = flows(make.flow.source.is_ipv4());
        // The provider sent a packet to the customer, which answers with an error.
        let sent = with(&make, (at_provider.1, at_provider.0)).bytes();
        let received = with(&make, (at_customer.1, at_customer.0)).bytes();
        for length in [received.len() - 4, received.len()] {
            let error = icmp_error(at_customer, &received[..length]);
            assert_eq!(
                carried(error).unwrap(),
                icmp_error(at_provider, &sent[..length])
            );
        }
    }
}

#[test]
fn all_fragments_are_translated_and_only_the_first_one_has_a_checksum() {
    let [leaves, arrives] = flows(true);
    let make = Make::udp4(&[7; 64]);
    let fragments = |flow| {
        let whole = with(&make, flow).bytes();
        let cut = |from: usize, to: usize, is_last: bool| {
            let mut packet = [
                &whole[..IPV4_HEADER],
                &whole[IPV4_HEADER + from..IPV4_HEADER + to],
            ]
            .concat();
            let length = u16::try_from(packet.len()).unwrap();
            packet[2..4].copy_from_slice(&length.to_be_bytes());
            let place = u16::try_from(from / 8).unwrap() | if is_last { 0 } else { 0x2000 };
            packet[6..8].copy_from_slice(&place.to_be_bytes());
            packet[10..12].copy_from_slice(&[0, 0]);
            let checksum = PartialChecksum::of_bytes(&packet[..IPV4_HEADER]).checksum();
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            packet
        };
        [cut(0, 32, false), cut(32, 72, true)]
    };
    assert_eq!(
        fragments(leaves).map(|fragment| carried(fragment).unwrap()),
        fragments(arrives)
    );
}

#[test]
fn the_transport_is_found_behind_extension_headers() {
    let [leaves, arrives] = flows(false);
    let make = Make::udp4(b"hello").v6();
    let extended = |flow| {
        let plain = with(&make, flow).bytes();
        // Hop-by-hop options with padding, then a fragment header of the only fragment.
        let extensions = [44, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 0, 0, 0, 0, 0, 1];
        let mut packet = [&plain[..IPV6_HEADER], &extensions, &plain[IPV6_HEADER..]].concat();
        let length = u16::try_from(packet.len() - IPV6_HEADER).unwrap();
        packet[4..6].copy_from_slice(&length.to_be_bytes());
        packet[6] = 0;
        packet
    };
    assert_eq!(carried(extended(leaves)).unwrap(), extended(arrives));
}

#[test]
fn other_addresses_than_those_of_the_remote_do_not_pass_and_stay() {
    let [customer, provider] = paths();
    let make = with(
        &Make::tcp4(b"hello"),
        ("10.66.1.5".parse().unwrap(), "10.69.0.9".parse().unwrap()),
    );
    let mut packet = make.bytes();
    assert_eq!(
        (
            customer.translate_outgoing(&mut packet),
            packet == make.bytes()
        ),
        (None, true)
    );
    let make = with(
        &Make::tcp4(b"hello"),
        ("10.99.1.5".parse().unwrap(), "10.65.0.9".parse().unwrap()),
    );
    let mut packet = make.bytes();
    assert_eq!(
        (
            provider.translate_incoming(&mut packet),
            packet == make.bytes()
        ),
        (None, true)
    );
}

#[test]
fn a_path_is_for_what_is_the_ends_own_or_for_pods_of_the_customer() {
    let admitted = |local: LocalAddresses| {
        let path = DirectPathConfig {
            local,
            ..paths()[0].clone()
        };
        ["10.66.1.5", "10.66.1.6", "10.99.1.5"].map(|address| path.admits(address.parse().unwrap()))
    };
    assert_eq!(
        admitted(LocalAddresses::Prefixes(vec![
            "10.66.0.0/16".parse().unwrap()
        ])),
        [true, true, false]
    );
    assert_eq!(
        admitted(LocalAddresses::Pods(Arc::new(
            ["10.66.1.5".parse().unwrap()].into()
        ))),
        [true, false, false]
    );
}

#[test]
fn a_path_is_used_after_four_answers_in_a_row_and_left_after_four_missing_ones() {
    assert_eq!(
        [0, 3, 4, 9].map(|answered| is_used(false, answered, 0)),
        [false, false, true, true]
    );
    assert_eq!(
        [0, 3, 4, 9].map(|unanswered| is_used(true, 0, unanswered)),
        [true, true, false, false]
    );
}

#[test]
fn only_an_end_with_the_same_broker_answers_a_probe() {
    let [customer, provider] = paths();
    let other = DirectPathConfig {
        number: 8,
        ..customer.clone()
    };
    for random in [0, 1, u32::MAX] {
        let token = customer.probe_token(random);
        assert!(provider.is_named_by(token) && !other.is_named_by(token));
    }
}

proptest! {
    #[test]
    fn mutated_packets_are_refused_or_translated_within_their_bytes(mut packet in mutated_packets(), is_outgoing in any::<bool>()) {
        let everything = |address: IpAddr| match address {
            IpAddr::V4(address) => Some(IpAddr::from(!address)),
            IpAddr::V6(address) => Some(IpAddr::from(!address)),
        };
        let (before, side) = (packet.clone(), if is_outgoing { AddressSide::Destination } else { AddressSide::Source });
        if translate_packet(&mut packet, side, &everything).is_some() {
            // The other way round it is the same packet: nothing else was changed.
            translate_packet(&mut packet, side, &everything).unwrap();
        }
        // But for the two forms of zero that a checksum may have.
        let differs = before.iter().zip(&packet).filter(|(one, other)| one != other);
        prop_assert!(differs.clone().count() <= 6 && differs.into_iter().all(|(one, other)| [0, 0xff].contains(one) && one == &!other));
        prop_assert_eq!(before.len(), packet.len());
    }
}
