//! Spreads flows over the gateways of one cluster.
//!
//! Each gateway draws a number from the flow and its own key; the highest wins (rendezvous hashing). So all packets of a flow take
//! one way, and when a gateway goes, only its own flows move.

use std::net::IpAddr;

use super::packet::Flow;

/// A number for a flow. The same in every process, so that flows keep their way over a restart.
pub(super) fn flow_number(flow: &Flow) -> u64 {
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => [u64::from(address.to_bits()), 0],
        IpAddr::V6(address) => {
            let octets = address.octets();
            let (halves, _) = octets.as_chunks::<8>();
            [halves[0], halves[1]].map(u64::from_be_bytes)
        }
    };
    let rest = u64::from(flow.source_port) << 32 | u64::from(flow.destination_port) << 16 | u64::from(flow.protocol);
    let parts = [address(flow.source), address(flow.destination), [rest, 0]];
    parts.into_iter().flatten().fold(0, |number, part| mix(number ^ part))
}

/// A number for a remote, from its public key.
pub(super) fn remote_number(public_key: &[u8; 32]) -> u64 {
    let (words, _) = public_key.as_chunks::<8>();
    words.iter().fold(0, |number, word| mix(number ^ u64::from_le_bytes(*word)))
}

/// Which of the candidates carries a flow.
pub(super) fn choose<T>(flow: u64, candidates: impl IntoIterator<Item = (u64, T)>) -> Option<T> {
    let best = candidates.into_iter().max_by_key(|(remote, _)| mix(flow ^ remote));
    best.map(|(_, candidate)| candidate)
}

/// Turns a change of any bit into a change of about half of them (the finalizer of `SplitMix64`).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(count: u16) -> impl Iterator<Item = Flow> {
        (0..count).map(|port| Flow {
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.1.0.1".parse().unwrap(),
            protocol: 6,
            source_port: 32_768 + port,
            destination_port: 80,
        })
    }

    fn remotes(count: u8) -> Vec<(u64, u8)> {
        (0..count).map(|number| (remote_number(&[number; 32]), number)).collect()
    }

    #[test]
    fn each_of_several_gateways_gets_its_share() {
        let mut shares = [0; 4];
        for flow in flows(4000) {
            shares[usize::from(choose(flow_number(&flow), remotes(4)).unwrap())] += 1;
        }
        assert!(shares.iter().all(|share| (900..1100).contains(share)), "{shares:?}");
    }

    #[test]
    fn losing_a_gateway_moves_only_its_flows() {
        for flow in flows(1000) {
            let number = flow_number(&flow);
            let before = choose(number, remotes(4)).unwrap();
            let after = choose(number, remotes(4).into_iter().filter(|(_, remote)| *remote != 2)).unwrap();
            assert!(before == after || before == 2);
        }
    }

    #[test]
    fn the_order_of_the_gateways_does_not_matter() {
        for flow in flows(100) {
            let number = flow_number(&flow);
            assert_eq!(choose(number, remotes(5)), choose(number, remotes(5).into_iter().rev()));
        }
    }

    #[test]
    fn a_flow_takes_the_same_way_in_every_version() {
        let flow = flows(1).next().unwrap();
        assert_eq!(flow_number(&flow), 13_336_896_746_016_258_925);
    }

    #[test]
    fn nobody_can_carry_a_flow_when_nobody_is_there() {
        assert_eq!(choose::<u8>(1, []), None);
    }
}
