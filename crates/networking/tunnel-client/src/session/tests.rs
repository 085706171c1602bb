use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::{
    keys::public_key,
    stack::{IncomingStream, ListenPolicy},
};

struct Server {
    public_keys: Vec<[u8; 32]>,
    address: SocketAddr,
    accepted: tokio::sync::mpsc::Receiver<IncomingStream>,
    _until: DropGuard,
}

/// A gateway that accepts one client key.
async fn gateway(secret: [u8; 32], known: [u8; 32], address: &str) -> Server {
    gateway_with(&[secret], known, address).await
}

/// A gateway that answers handshakes for any of these keys, and sends with the first that has a
/// session.
async fn gateway_with(secrets: &[[u8; 32]], known: [u8; 32], address: &str) -> Server {
    let socket = UdpSocket::bind(address).await.unwrap();
    let address = socket.local_addr().unwrap();
    let indices = IndexTable::from_os_rng();
    let tunn = |&secret: &[u8; 32]| {
        let secret = x25519::StaticSecret::from(secret);
        let limiter = Arc::new(RateLimiter::new(&x25519::PublicKey::from(&secret), 100));
        Tunn::new(secret, known.into(), None, None, indices.clone(), limiter)
    };
    let mut tunns: Vec<Tunn> = secrets.iter().map(tunn).collect();
    let (inside, mut outside) = PacketLink::pair();
    let permits = Arc::new(tokio::sync::Semaphore::new(8));
    let policy = ListenPolicy {
        ports: vec![crate::AUTH_PORT],
        max_connections: 8,
        permits,
    };
    let (_, accepted) = Stack::start(StackRole::Server(watch::channel(policy).1), inside);
    let stop = CancellationToken::new();
    let run = async move {
        let (mut buffer, mut caller) = (vec![0; MAX_DATAGRAM_LEN], None);
        loop {
            tokio::select! {
                received = socket.recv_from(&mut buffer) => {
                    let (length, from) = received.unwrap();
                    caller = Some(from);
                    for tunn in &mut tunns {
                        let Ok(message) = Packet::copy_from(&buffer[..length]).try_into_wg() else { break };
                        match tunn.handle_incoming_packet(message) {
                            TunnResult::Err(_) => continue,
                            TunnResult::WriteToNetwork(reply) => {
                                socket.send_to(&Packet::from(reply), from).await.unwrap();
                            }
                            TunnResult::WriteToTunnel(packet) if !packet.is_empty() => {
                                outside.outgoing.send(packet.to_vec()).await.unwrap();
                            }
                            _ => {}
                        }
                        break;
                    }
                }
                Some(packet) = outside.incoming.recv() => {
                    let Some(tunn) = tunns.iter_mut().find(|tunn| tunn.has_active_session()) else { continue };
                    let message = tunn.handle_outgoing_packet(Packet::copy_from(&packet[..]), None);
                    if let (Some(message), Some(caller)) = (message, caller) {
                        socket.send_to(&Packet::from(message), caller).await.unwrap();
                    }
                }
            }
        }
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(run));
    Server {
        public_keys: secrets.iter().copied().map(public_key).collect(),
        address,
        accepted,
        _until: stop.drop_guard(),
    }
}

fn config(private_key: [u8; 32], gateways: &[&Server]) -> DialConfig {
    let one = |&server: &&Server| {
        let by = |&public_key: &[u8; 32]| DialedGateway {
            public_key,
            endpoints: vec![server.address.to_string()],
        };
        server.public_keys.iter().rev().map(by).collect::<Vec<_>>()
    };
    DialConfig {
        private_key,
        gateways: gateways.iter().flat_map(one).collect(),
    }
}

/// Like [`super::dial`], but gateways may be on this machine.
fn dial(config: DialConfig) -> io::Result<TunnelConnection> {
    start_session(config, |_| true)
}

/// Sends something to the gateway, which must receive it.
async fn echo(connection: &TunnelConnection, server: &mut Server) {
    let both = async { tokio::join!(connection.connect(crate::AUTH_PORT), server.accepted.recv()) };
    let (ours, theirs) = timeout(GATEWAY_TIMEOUT * 2, both).await.unwrap();
    let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().stream);
    ours.write_all(b"who is there?").await.unwrap();
    let mut heard = [0; 13];
    theirs.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"who is there?");
}

#[tokio::test]
async fn a_stream_goes_through_a_session() {
    let mut server = gateway([2; 32], public_key([1; 32]), "127.0.0.1:0").await;
    let connection = dial(config([1; 32], &[&server])).unwrap();
    echo(&connection, &mut server).await;
    assert_eq!(connection.gateway(), Some(server.address));
}

#[tokio::test]
async fn a_gateway_with_two_keys_is_reached_by_the_one_that_it_sends_with() {
    // The former key is announced, and called, first.
    let mut server = gateway_with(&[[3; 32], [2; 32]], public_key([1; 32]), "127.0.0.1:0").await;
    let connection = dial(config([1; 32], &[&server])).unwrap();
    echo(&connection, &mut server).await;
}

#[test]
fn candidates_that_share_a_key_or_an_address_are_one_gateway() {
    let at = |key: u8, port: u16| ([key; 32], SocketAddr::from(([203, 0, 113, 5], port)));
    let numbers = number_gateways(&[at(1, 1), at(2, 2), at(3, 9), at(1, 3), at(2, 3)]);
    assert_eq!(numbers, [numbers[0], numbers[0], 2, numbers[0], numbers[0]]);
    assert_ne!(numbers[0], numbers[2]);
}

#[test]
fn gateways_that_do_not_answer_are_called_less_and_less_often() {
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut calls = CallSchedule::at_once(start);
    let called: Vec<u64> = (0..60).filter(|&second| calls.is_due(at(second))).collect();
    assert_eq!(called, [0, 1, 3, 7, 15, 25, 35, 45, 55]);
    calls.call_soon(at(60));
    assert!(!calls.is_due(at(60)) && calls.is_due(at(61)) && calls.is_due(at(62)));
}

#[tokio::test]
async fn a_gateways_state_survives_a_change_of_the_list_and_names_are_not_looked_up_at_each_change()
{
    let known = |endpoints: &[&str]| {
        let endpoints = endpoints
            .iter()
            .map(|&endpoint| endpoint.to_owned())
            .collect();
        vec![DialedGateway {
            public_key: public_key([2; 32]),
            endpoints,
        }]
    };
    let (gateways, receiver) = watch::channel(known(&["203.0.113.5:51840", "milan.example:51840"]));
    let mut session = DialedSession::new([1; 32], receiver, is_allowed_address).unwrap();
    session.update_candidates();
    assert_eq!(session.names_to_look_up(None), ["milan.example:51840"]);
    session.names.insert(
        "milan.example:51840".to_owned(),
        vec!["203.0.113.5:51840".parse().unwrap()],
    );
    drop(
        session.candidates[0]
            .tunn
            .format_handshake_initiation(true)
            .unwrap(),
    );
    gateways.send_replace(known(&[
        "203.0.113.6:51840",
        "203.0.113.5:51840",
        "milan.example:51840",
        "rome.example:51840",
    ]));
    session.update_candidates();
    assert_eq!(session.candidates.len(), 2);
    assert!(
        session.candidates[1]
            .tunn
            .format_handshake_initiation(false)
            .is_none(),
        "it was called already"
    );
    assert!(
        session
            .names_to_look_up(Some(NEW_LOOKUP_INTERVAL / 2))
            .is_empty()
    );
    assert_eq!(session.names_to_look_up(Some(NEW_LOOKUP_INTERVAL)).len(), 2);
    session
        .names
        .insert("rome.example:51840".to_owned(), Vec::new());
    assert!(
        session
            .names_to_look_up(Some(LOOKUP_INTERVAL / 2))
            .is_empty()
    );
}

#[tokio::test]
async fn the_session_uses_the_gateway_that_answers() {
    let silent = gateway([2; 32], public_key([9; 32]), "127.0.0.1:0").await;
    let mut server = gateway([3; 32], public_key([1; 32]), "127.0.0.1:0").await;
    let connection = dial(config([1; 32], &[&silent, &server])).unwrap();
    echo(&connection, &mut server).await;
    assert_eq!(connection.gateway(), Some(server.address));
}

#[tokio::test]
async fn the_session_uses_one_gateway_when_several_answer() {
    let mut one = gateway([2; 32], public_key([1; 32]), "127.0.0.1:0").await;
    let mut other = gateway([3; 32], public_key([1; 32]), "127.0.0.1:0").await;
    let connection = dial(config([1; 32], &[&one, &other])).unwrap();
    drop(
        timeout(
            SESSION_TIMEOUT,
            connection.heard_at.clone().wait_for(Option::is_some),
        )
        .await
        .unwrap(),
    );
    let first = connection.gateway();
    let server = if first == Some(one.address) {
        &mut one
    } else {
        &mut other
    };
    let (ours, theirs) = tokio::join!(connection.connect(crate::AUTH_PORT), server.accepted.recv());
    let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().stream);
    let large = vec![7; 300_000];
    let mut heard = vec![0; large.len()];
    let (said, read) = tokio::join!(ours.write_all(&large), theirs.read_exact(&mut heard));
    said.and(read.map(drop)).unwrap();
    assert!(heard == large && connection.gateway() == first);
}

#[tokio::test]
async fn a_gateway_that_is_added_later_is_called_when_the_first_is_gone() {
    let first = gateway([2; 32], public_key([1; 32]), "127.0.0.1:0").await;
    let mut second = gateway([3; 32], public_key([1; 32]), "127.0.0.1:0").await;
    let connection = dial(config([1; 32], &[&first])).unwrap();
    let mut heard_at = connection.heard_at.clone();
    drop(
        timeout(SESSION_TIMEOUT, heard_at.wait_for(Option::is_some))
            .await
            .unwrap(),
    );
    connection.set_gateways(&config([1; 32], &[&first, &second]).gateways);
    drop(first);
    let address = second.address;
    drop(
        timeout(
            GATEWAY_TIMEOUT * 2,
            heard_at.wait_for(|at| *at == Some(address)),
        )
        .await
        .unwrap(),
    );
    echo(&connection, &mut second).await;
}

#[test]
fn addresses_that_are_no_other_machine_are_not_called() {
    let others = [
        "169.254.169.254:51840",
        "224.0.0.1:51840",
        "0.0.0.0:51840",
        "[fe80::1]:51840",
        "203.0.113.5:0",
        "127.0.0.1:51840",
    ];
    for address in others
        .into_iter()
        .chain(["[::1]:51840", "[::ffff:127.0.0.1]:51840"])
    {
        assert!(!is_allowed_address(&address.parse().unwrap()), "{address}");
    }
    assert!(is_allowed_address(&"203.0.113.5:51840".parse().unwrap()));
}

#[tokio::test]
async fn a_client_that_the_gateway_does_not_know_gets_no_session() {
    let server = gateway([2; 32], public_key([9; 32]), "127.0.0.1:0").await;
    let connection = dial(config([1; 32], &[&server])).unwrap();
    assert_eq!(
        connection
            .connect(crate::AUTH_PORT)
            .await
            .unwrap_err()
            .kind(),
        io::ErrorKind::TimedOut
    );
}
