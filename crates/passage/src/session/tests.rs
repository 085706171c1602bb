use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::stack::{Accepted, Doors};

struct Far {
    public_keys: Vec<[u8; 32]>,
    address: SocketAddr,
    accepted: tokio::sync::mpsc::Receiver<Accepted>,
    _until: DropGuard,
}

/// A gateway that knows one key.
async fn gateway(secret: [u8; 32], known: [u8; 32], address: &str) -> Far {
    gateway_with(&[secret], known, address).await
}

/// A gateway that is called by any of these keys, and speaks by the first one that has a session.
async fn gateway_with(secrets: &[[u8; 32]], known: [u8; 32], address: &str) -> Far {
    let socket = UdpSocket::bind(address).await.unwrap();
    let address = socket.local_addr().unwrap();
    let indices = IndexTable::from_os_rng();
    let tunn = |&secret: &[u8; 32]| {
        let secret = x25519::StaticSecret::from(secret);
        let limiter = Arc::new(RateLimiter::new(&x25519::PublicKey::from(&secret), 100));
        Tunn::new(secret, known.into(), None, None, indices.clone(), limiter)
    };
    let mut tunns: Vec<Tunn> = secrets.iter().map(tunn).collect();
    let (inside, mut outside) = Wire::pair();
    let doors = Doors { ports: vec![crate::AUTH_PORT], most: 8, room: Arc::new(tokio::sync::Semaphore::new(8)) };
    let (_, accepted) = Stack::start(End::Far(watch::channel(doors).1), inside);
    let stop = CancellationToken::new();
    let run = async move {
        let (mut buffer, mut caller) = (vec![0; LARGEST], None);
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
    Far { public_keys: secrets.iter().copied().map(public).collect(), address, accepted, _until: stop.drop_guard() }
}

fn public(secret: [u8; 32]) -> [u8; 32] {
    x25519::PublicKey::from(&x25519::StaticSecret::from(secret)).to_bytes()
}

fn way(private_key: [u8; 32], gateways: &[&Far]) -> Way {
    let one = |&far: &&Far| {
        let by = |&public_key: &[u8; 32]| Gateway { public_key, endpoints: vec![far.address.to_string()] };
        far.public_keys.iter().rev().map(by).collect::<Vec<_>>()
    };
    Way { private_key, gateways: gateways.iter().flat_map(one).collect() }
}

/// Gateways of tests are on this machine.
fn dial(way: Way) -> io::Result<Passage> {
    start(way, |_| true)
}

/// Says something and hears it again.
async fn echo(passage: &Passage, far: &mut Far) {
    let both = async { tokio::join!(passage.connect(crate::AUTH_PORT), far.accepted.recv()) };
    let (ours, theirs) = timeout(SILENCE * 2, both).await.unwrap();
    let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().stream);
    ours.write_all(b"who is there?").await.unwrap();
    let mut heard = [0; 13];
    theirs.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"who is there?");
}

#[tokio::test]
async fn a_stream_goes_through_a_session() {
    let mut far = gateway([2; 32], public([1; 32]), "127.0.0.1:0").await;
    let passage = dial(way([1; 32], &[&far])).unwrap();
    echo(&passage, &mut far).await;
    assert_eq!(passage.gateway(), Some(far.address));
}

#[tokio::test]
async fn a_gateway_with_two_keys_is_heard_by_the_one_that_it_speaks_by() {
    // It is called by the former one first, as it is announced.
    let mut far = gateway_with(&[[3; 32], [2; 32]], public([1; 32]), "127.0.0.1:0").await;
    let passage = dial(way([1; 32], &[&far])).unwrap();
    echo(&passage, &mut far).await;
}

#[test]
fn one_gateway_is_what_shares_a_key_or_an_address() {
    let at = |key: u8, port: u16| ([key; 32], SocketAddr::from(([203, 0, 113, 5], port)));
    let numbers = which_gateway(&[at(1, 1), at(2, 2), at(3, 9), at(1, 3), at(2, 3)]);
    assert_eq!(numbers, [numbers[0], numbers[0], 2, numbers[0], numbers[0]]);
    assert_ne!(numbers[0], numbers[2]);
}

#[test]
fn who_does_not_answer_is_called_more_and_more_seldom() {
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut calls = Calls::at_once(start);
    let called: Vec<u64> = (0..60).filter(|&second| calls.is_due(at(second))).collect();
    assert_eq!(called, [0, 1, 3, 7, 15, 25, 35, 45, 55]);
    calls.soon(at(60));
    assert!(!calls.is_due(at(60)) && calls.is_due(at(61)) && calls.is_due(at(62)));
}

#[tokio::test]
async fn what_is_known_of_a_gateway_stays_when_another_becomes_known_and_names_are_not_looked_up_at_each_news() {
    let known = |endpoints: &[&str]| {
        let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
        vec![Gateway { public_key: public([2; 32]), endpoints }]
    };
    let (gateways, receiver) = watch::channel(known(&["203.0.113.5:51840", "milan.example:51840"]));
    let mut session = Session::new([1; 32], receiver, may_be_called).unwrap();
    session.arrange();
    assert_eq!(session.names_to_look_up(None), ["milan.example:51840"]);
    session.names.insert("milan.example:51840".to_owned(), vec!["203.0.113.5:51840".parse().unwrap()]);
    drop(session.candidates[0].tunn.format_handshake_initiation(true).unwrap());
    gateways.send_replace(known(&["203.0.113.6:51840", "203.0.113.5:51840", "milan.example:51840", "rome.example:51840"]));
    session.arrange();
    assert_eq!(session.candidates.len(), 2);
    assert!(session.candidates[1].tunn.format_handshake_initiation(false).is_none(), "it was called already");
    assert!(session.names_to_look_up(Some(LOOK_UP_NEW / 2)).is_empty());
    assert_eq!(session.names_to_look_up(Some(LOOK_UP_NEW)).len(), 2);
    session.names.insert("rome.example:51840".to_owned(), Vec::new());
    assert!(session.names_to_look_up(Some(LOOK_UP / 2)).is_empty());
}

#[tokio::test]
async fn of_several_gateways_the_one_that_answers_is_spoken_to() {
    let silent = gateway([2; 32], public([9; 32]), "127.0.0.1:0").await;
    let mut far = gateway([3; 32], public([1; 32]), "127.0.0.1:0").await;
    let passage = dial(way([1; 32], &[&silent, &far])).unwrap();
    echo(&passage, &mut far).await;
    assert_eq!(passage.gateway(), Some(far.address));
}

#[tokio::test]
async fn one_gateway_is_spoken_to_where_several_answer() {
    let mut one = gateway([2; 32], public([1; 32]), "127.0.0.1:0").await;
    let mut other = gateway([3; 32], public([1; 32]), "127.0.0.1:0").await;
    let passage = dial(way([1; 32], &[&one, &other])).unwrap();
    drop(timeout(PATIENCE, passage.heard_at.clone().wait_for(Option::is_some)).await.unwrap());
    let first = passage.gateway();
    let far = if first == Some(one.address) { &mut one } else { &mut other };
    let (ours, theirs) = tokio::join!(passage.connect(crate::AUTH_PORT), far.accepted.recv());
    let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().stream);
    let large = vec![7; 300_000];
    let mut heard = vec![0; large.len()];
    let (said, read) = tokio::join!(ours.write_all(&large), theirs.read_exact(&mut heard));
    said.and(read.map(drop)).unwrap();
    assert!(heard == large && passage.gateway() == first);
}

#[tokio::test]
async fn a_gateway_that_is_known_later_is_called_when_the_first_is_gone() {
    let first = gateway([2; 32], public([1; 32]), "127.0.0.1:0").await;
    let mut second = gateway([3; 32], public([1; 32]), "127.0.0.1:0").await;
    let passage = dial(way([1; 32], &[&first])).unwrap();
    let mut heard_at = passage.heard_at.clone();
    drop(timeout(PATIENCE, heard_at.wait_for(Option::is_some)).await.unwrap());
    passage.know(&way([1; 32], &[&first, &second]).gateways);
    drop(first);
    let address = second.address;
    drop(timeout(SILENCE * 2, heard_at.wait_for(|at| *at == Some(address))).await.unwrap());
    echo(&passage, &mut second).await;
}

#[test]
fn what_is_no_other_machine_is_not_called() {
    let others =
        ["169.254.169.254:51840", "224.0.0.1:51840", "0.0.0.0:51840", "[fe80::1]:51840", "203.0.113.5:0", "127.0.0.1:51840"];
    for address in others.into_iter().chain(["[::1]:51840", "[::ffff:127.0.0.1]:51840"]) {
        assert!(!may_be_called(&address.parse().unwrap()), "{address}");
    }
    assert!(may_be_called(&"203.0.113.5:51840".parse().unwrap()));
}

#[tokio::test]
async fn who_is_not_known_there_gets_nowhere() {
    let far = gateway([2; 32], public([9; 32]), "127.0.0.1:0").await;
    let passage = dial(way([1; 32], &[&far])).unwrap();
    assert_eq!(passage.connect(crate::AUTH_PORT).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
}
