//! A hostile gateway, or somebody on the way to it, sends to a session: recorded messages with
//! faults, and hostile packets in valid messages. The session refuses the former, and it and its
//! stack survive the latter.

use std::cell::RefCell;

use liqo_byte_mutations::mutated;
use proptest::{
    prelude::Just,
    prop_assert, prop_assert_eq,
    strategy::Strategy,
    test_runner::{Config, TestCaseResult, TestRunner},
};
use tokio::runtime::Runtime;

use super::*;
use crate::{
    keys::public_key,
    stack::tests::{hostile_packets, to_client},
};

const OURS: [u8; 32] = [1; 32];
const THEIRS: [u8; 32] = [2; 32];

/// A session that calls one gateway, and the gateway's end, whose messages the test carries.
struct Call {
    runtime: Runtime,
    session: RefCell<DialedSession>,
    gateway: RefCell<Tunn>,
    address: SocketAddr,
    /// Receives what the session sends by itself.
    _socket: std::net::UdpSocket,
}

/// Runs a test with new inputs each time. The session changes with each input, so a failure cannot
/// be made smaller.
fn run<S: Strategy>(strategy: &S, test: impl Fn(S::Value) -> TestCaseResult) {
    TestRunner::new(Config {
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Config::default()
    })
    .run(strategy, test)
    .unwrap();
}

impl Call {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let gateways = vec![DialedGateway {
            public_key: public_key(THEIRS),
            endpoints: vec![address.to_string()],
        }];
        let session = runtime.block_on(async {
            let mut session =
                DialedSession::new(OURS, watch::channel(gateways).1, |_| true).unwrap();
            session.update_candidates();
            session
        });
        let secret = x25519::StaticSecret::from(THEIRS);
        let limiter = Arc::new(RateLimiter::new(&x25519::PublicKey::from(&secret), 100));
        let gateway = Tunn::new(
            secret,
            public_key(OURS).into(),
            None,
            None,
            IndexTable::from_os_rng(),
            limiter,
        );
        Self {
            runtime,
            session: session.into(),
            gateway: gateway.into(),
            address,
            _socket: socket,
        }
    }

    /// The packet that the session takes out of a datagram.
    fn receive(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        self.runtime
            .block_on(self.session.borrow_mut().receive(datagram, self.address))
    }

    fn encrypt(&self, packet: &[u8]) -> Vec<u8> {
        let message = self
            .gateway
            .borrow_mut()
            .encapsulate_with_session(Packet::copy_from(packet));
        message
            .map(|message| Packet::from(WgKind::Data(message)).to_vec())
            .unwrap_or_default()
    }

    /// Sends a message with faults to the session, many times. It takes nothing out of them but
    /// what was sent. Three bytes after the kind are reserved, and nobody reads them.
    fn attack(&self, message: &[u8]) {
        run(&mutated(Just(message.to_vec())), |datagram| {
            let carried = self.receive(&datagram);
            let is_same =
                datagram.get(4..) == message.get(4..) && datagram.first() == message.first();
            prop_assert!(
                carried.is_none() || is_same,
                "{:?} carries {:?}",
                datagram,
                carried
            );
            Ok(())
        });
    }

    /// Establishes the session. Before each message of the gateway, `before` gets it.
    fn establish(&self, before: impl Fn(&[u8])) {
        let initiation = self.session.borrow_mut().candidates[0]
            .tunn
            .format_handshake_initiation(true)
            .unwrap();
        let initiation = Packet::from(WgKind::from(initiation)).to_vec();
        let public_key = x25519::PublicKey::from(public_key(THEIRS));
        let cookie = RateLimiter::new(&public_key, 0)
            .verify_packet(self.address, Packet::copy_from(&initiation[..]));
        let Err(TunnResult::WriteToNetwork(cookie)) = cookie else {
            panic!("no cookie")
        };
        before(&Packet::from(cookie));
        let message = Packet::copy_from(&initiation[..]).try_into_wg().unwrap();
        let TunnResult::WriteToNetwork(answer) =
            self.gateway.borrow_mut().handle_incoming_packet(message)
        else {
            panic!("no answer")
        };
        let answer = Packet::from(answer).to_vec();
        before(&answer);
        assert_eq!(self.receive(&answer), None);
        assert!(
            self.session.borrow().active.is_some(),
            "the gateway has answered"
        );
    }
}

#[test]
fn mutated_answers_of_a_gateway_are_refused_and_the_session_is_established_nevertheless() {
    let call = Call::new();
    call.establish(|message| call.attack(message));
    for length in [1, 16, 1280] {
        call.attack(&call.encrypt(&vec![7; length]));
    }
    assert_eq!(
        call.receive(&call.encrypt(b"who is there?")).as_deref(),
        Some(&b"who is there?"[..])
    );
}

#[test]
fn hostile_packets_of_a_gateway_end_neither_the_session_nor_its_stack() {
    let call = Call::new();
    call.establish(|_| {});
    let (inside, link) = PacketLink::pair();
    let (stack, _) = call
        .runtime
        .block_on(async { Stack::start(StackRole::Client, inside) });
    let PacketLink { outgoing, incoming } = link;
    let incoming = RefCell::new(incoming);
    run(&hostile_packets(), |packets| {
        for (packet, is_repaired) in packets {
            let packet = if is_repaired {
                to_client(packet)
            } else {
                packet
            };
            let carried = call.receive(&call.encrypt(&packet));
            prop_assert_eq!(
                carried.as_ref(),
                Some(&packet).filter(|packet| !packet.is_empty())
            );
            call.runtime.block_on(async {
                if let Some(packet) = carried {
                    outgoing.send(packet).await.unwrap();
                }
                tokio::task::yield_now().await;
            });
            // Its answers; with a full link it would take nothing more.
            while incoming.borrow_mut().try_recv().is_ok() {}
        }
        prop_assert!(!outgoing.is_closed(), "the stack has ended");
        Ok(())
    });
    drop(stack);
}
