//! Recorded messages of a real handshake and of a real session with faults: the ends refuse them,
//! and get a session nevertheless.

use std::net::SocketAddr;

use gotatun::noise::handshake::parse_handshake_anon;
use liqo_byte_mutations::mutated;
use proptest::{
    prelude::{Just, any},
    prop_assert, prop_assert_eq,
    test_runner::{Config, TestRunner},
};

use super::{super::packet, *};
use crate::message::datagram_kind;

struct End {
    identity: LocalIdentity,
    link: RemoteLink,
}

/// Two ends that know each other's keys.
fn ends() -> [End; 2] {
    let keys = [PrivateKey::generate(), PrivateKey::generate()];
    [0, 1].map(|own| {
        let (identity, live) = (
            LocalIdentity::new(&keys[own]),
            Arc::new(LiveRemote::new(keys[1 - own].public_key())),
        );
        let link = RemoteLink::new(&identity, &live, None, &IndexTable::from_os_rng());
        End { identity, link }
    })
}

fn sender() -> SocketAddr {
    ([192, 0, 2, 1], 51840).into()
}

impl End {
    /// Handles a datagram whatever its first checksum (`mac1`) is: whoever knows our public key can
    /// compute it. Returns what it carries and what is answered, or `None` if it is refused.
    fn receive(&self, datagram: &[u8]) -> Option<(BytesMut, Vec<WgKind>)> {
        datagram_kind(datagram)?;
        let _ = self
            .identity
            .limiter
            .verify_packet(sender(), Packet::copy_from(datagram));
        let (mut sessions, mut replies) = (self.link.lock(), Vec::new());
        let carried = match Packet::copy_from(datagram).try_into_wg().ok()? {
            WgKind::Data(packet) => sessions.decrypt(packet).ok()?,
            handshake => {
                if let WgKind::HandshakeInit(message) = &handshake {
                    // The device looks here for the sender's key.
                    let _ =
                        parse_handshake_anon(&self.identity.secret, &self.identity.public, message);
                }
                sessions.handle_handshake(handshake, &mut replies).ok()?;
                BytesMut::new()
            }
        };
        Some((carried, replies))
    }

    fn begin(&self) -> BytesMut {
        let mut messages = Vec::new();
        self.link.lock().restart_handshake(&mut messages);
        bytes(messages.remove(0))
    }

    fn encrypt(&self, packet: &[u8]) -> BytesMut {
        let (mut packets, mut encrypted) = (vec![BytesMut::from(packet)], Vec::new());
        self.link.lock().encrypt(&mut packets, &mut encrypted);
        BytesMut::from(&encrypted[0][..])
    }
}

fn bytes(message: WgKind) -> BytesMut {
    BytesMut::from(&Packet::from(message)[..])
}

/// A handshake from the first end to the second one.
fn handshake(ends: &[End; 2]) {
    let (_, mut answer) = ends[1].receive(&ends[0].begin()).unwrap();
    let (_, mut confirmation) = ends[0].receive(&bytes(answer.remove(0))).unwrap();
    ends[1].receive(&bytes(confirmation.remove(0))).unwrap();
}

/// The bytes of a message that must not differ: in a handshake, all but both checksums and the
/// sender's index, which only they cover. No end checks the second checksum (`mac2`) unless it sent
/// a cookie.
fn checked(message: &[u8]) -> Vec<u8> {
    let mut checked = message.to_vec();
    if matches!(checked.first(), Some(1 | 2)) {
        checked.truncate(checked.len().saturating_sub(32));
        checked
            .iter_mut()
            .skip(4)
            .take(4)
            .for_each(|byte| *byte = 0);
    }
    checked
}

fn config() -> Config {
    Config {
        failure_persistence: None,
        ..Config::default()
    }
}

/// Sends a message with faults to an end, many times. It accepts nothing but the message itself.
fn attack(end: &End, message: &[u8]) {
    let run = TestRunner::new(config()).run(&mutated(Just(message.to_vec())), |datagram| {
        let is_accepted = end.receive(&datagram).is_some();
        prop_assert!(
            !is_accepted || checked(&datagram) == checked(message),
            "{:?}",
            datagram
        );
        prop_assert!(!is_accepted || datagram.len() == message.len());
        Ok(())
    });
    run.unwrap();
}

#[test]
fn mutated_handshakes_and_cookies_are_refused_and_a_session_is_established_nevertheless() {
    let ends = ends();
    let initiation = ends[0].begin();
    attack(&ends[1], &initiation);
    let cookie = RateLimiter::new(&ends[1].identity.public, 0)
        .verify_packet(sender(), Packet::copy_from(&initiation[..]));
    let Err(TunnResult::WriteToNetwork(cookie)) = cookie else {
        panic!("no cookie")
    };
    attack(&ends[0], &bytes(cookie));
    // One that was accepted, with other checksums, would make the first initiation a repetition.
    let initiation = ends[0].begin();
    let (_, mut answer) = ends[1].receive(&initiation).unwrap();
    attack(&ends[0], &bytes(answer.remove(0)));
    handshake(&ends);
    let packet = ends[0].encrypt(b"who is there?");
    assert_eq!(ends[1].receive(&packet).unwrap().0, b"who is there?"[..]);
}

#[test]
fn mutated_packets_of_a_session_are_refused_and_the_session_goes_on() {
    let ends = ends();
    handshake(&ends);
    for length in [0, 16, 1400] {
        attack(&ends[1], &ends[0].encrypt(&vec![7; length]));
    }
    // Of other messages of the session, too.
    let packet = ends[0].encrypt(b"who is there?");
    assert_eq!(ends[1].receive(&packet).unwrap().0, b"who is there?"[..]);
}

#[test]
fn hostile_packets_inside_of_a_session_arrive_as_they_are_and_the_session_goes_on() {
    let ends = ends();
    handshake(&ends);
    let hostile = (packet::tests::mutated_packets(), any::<bool>());
    let run = TestRunner::new(config()).run(&hostile, |(inside, is_first)| {
        let [from, to] = if is_first { [0, 1] } else { [1, 0] };
        let Some((packet, _)) = ends[to].receive(&ends[from].encrypt(&inside)) else {
            panic!("{inside:?} was refused")
        };
        prop_assert_eq!(&packet[..], &inside[..]);
        prop_assert!(
            packet::parse_header(&packet).is_none() || TunnelProbe::from_packet(&packet).is_none()
        );
        Ok(())
    });
    run.unwrap();
}
