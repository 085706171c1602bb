use liqo_byte_mutations::mutated;
use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_oneof, proptest};
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, TcpControl, TcpPacket},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{packets::tests::packet, *};

const PORT: u16 = 443;

fn server(ports: &[u16]) -> StackRole {
    StackRole::Server(watch::channel(policy(ports, &Arc::new(Semaphore::new(MAX_STREAMS)))).1)
}

fn policy(ports: &[u16], permits: &Arc<Semaphore>) -> ListenPolicy {
    ListenPolicy {
        ports: ports.to_vec(),
        max_connections: MAX_STREAMS,
        permits: permits.clone(),
    }
}

fn pair() -> (Stack, mpsc::Receiver<IncomingStream>) {
    let (near, far) = PacketLink::pair();
    let (_, accepted) = Stack::start(server(&[PORT]), far);
    (Stack::start(StackRole::Client, near).0, accepted)
}

/// Sends everything back.
fn echo(mut accepted: mpsc::Receiver<IncomingStream>) {
    tokio::spawn(async move {
        while let Some(IncomingStream { stream, permit, .. }) = accepted.recv().await {
            tokio::spawn(async move {
                let _permit = permit;
                let (mut read, mut write) = tokio::io::split(stream);
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
            });
        }
    });
}

async fn call(near: &Stack, length: usize) {
    let sent: Vec<u8> = (0..length)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    let (mut read, mut write) = tokio::io::split(near.connect(PORT).await.unwrap());
    let mut received = Vec::new();
    let writing = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let ((), read) = tokio::join!(writing, read.read_to_end(&mut received));
    read.unwrap();
    assert!(
        received == sent,
        "{} bytes came back of {length}",
        received.len()
    );
}

#[tokio::test]
async fn bytes_arrive_complete_and_so_does_the_end_of_the_stream() {
    let (near, accepted) = pair();
    echo(accepted);
    for length in [0, 1, 1000, 3_000_000] {
        call(&near, length).await;
    }
}

#[tokio::test]
async fn many_streams_are_open_at_a_time_up_to_the_maximum() {
    let (near, mut accepted) = pair();
    let mut streams = Vec::new();
    for number in 0..MAX_STREAMS {
        let (ours, theirs) = tokio::join!(near.connect(PORT), accepted.recv());
        streams.push((
            ours.unwrap_or_else(|error| panic!("stream {number}: {error}")),
            theirs.unwrap(),
        ));
    }
    assert_eq!(
        near.connect(PORT).await.unwrap_err().kind(),
        io::ErrorKind::QuotaExceeded
    );
    for (ours, theirs) in &mut streams {
        ours.write_all(b"x").await.unwrap();
        assert_eq!(theirs.stream.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test]
async fn many_streams_may_begin_at_the_same_moment() {
    let (near, mut accepted) = pair();
    let taking = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Some(one) = accepted.recv().await {
            taken.push(one);
            if taken.len() == MAX_STREAMS / 2 {
                break;
            }
        }
        taken.len()
    });
    let calls: Vec<_> = (0..MAX_STREAMS / 2)
        .map(|_| {
            let near = near.clone();
            tokio::spawn(async move { near.connect(PORT).await.map(drop) })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(taking.await.unwrap(), MAX_STREAMS / 2);
}

#[tokio::test]
async fn a_closed_port_refuses_and_a_port_that_opens_accepts() {
    let (near, far) = PacketLink::pair();
    let policy = watch::Sender::new(policy(&[PORT], &Arc::new(Semaphore::new(MAX_STREAMS))));
    let (_, mut accepted) = Stack::start(StackRole::Server(policy.subscribe()), far);
    let (near, _) = Stack::start(StackRole::Client, near);
    assert!(near.connect(PORT + 1).await.is_err());
    policy.send_modify(|policy| policy.ports = vec![PORT + 1]);
    assert_eq!(
        near.connect(PORT).await.unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused
    );
    let (ours, theirs) = tokio::join!(near.connect(PORT + 1), accepted.recv());
    assert!(ours.is_ok() && theirs.is_some_and(|one| one.port == PORT + 1));
}

#[tokio::test]
async fn another_port_is_refused_at_once() {
    let (near, _accepted) = pair();
    assert_eq!(
        near.connect(PORT + 1).await.unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused
    );
}

#[tokio::test]
async fn connecting_fails_when_nobody_answers_and_when_the_link_ends() {
    let (near, mut far) = PacketLink::pair();
    let (stack, _) = Stack::start(StackRole::Client, near);
    let (outcome, ()) = tokio::join!(stack.connect(PORT), async {
        while far.incoming.try_recv().is_ok() {}
    });
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(far);
    assert_eq!(
        stack.connect(PORT).await.unwrap_err().kind(),
        io::ErrorKind::NotConnected
    );
}

#[tokio::test]
async fn a_link_that_loses_packets_loses_no_bytes() {
    let ((near, mut one), (mut other, far)) = (PacketLink::pair(), PacketLink::pair());
    let (_, accepted) = Stack::start(server(&[PORT]), far);
    echo(accepted);
    tokio::spawn(async move {
        let mut count = 0_u32;
        loop {
            count += 1;
            tokio::select! {
                Some(packet) = one.incoming.recv() => if !count.is_multiple_of(17) { drop(other.outgoing.send(packet).await) },
                Some(packet) = other.incoming.recv() => if !count.is_multiple_of(23) { drop(one.outgoing.send(packet).await) },
                else => return,
            }
        }
    });
    call(&Stack::start(StackRole::Client, near).0, 200_000).await;
}

#[tokio::test]
async fn a_stream_that_is_dropped_ends_on_the_other_side() {
    let (near, mut accepted) = pair();
    let (ours, theirs) = tokio::join!(near.connect(PORT), accepted.recv());
    let mut theirs = theirs.unwrap().stream;
    drop(ours);
    assert_eq!(theirs.read(&mut [0; 1]).await.unwrap(), 0);
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(2), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn a_client_that_connects_and_resets_leaves_nothing_behind() {
    let ((_wanted, requests), (accepted, _streams)) = (mpsc::channel(BACKLOG), mpsc::channel(1));
    let (mut near, far) = PacketLink::pair();
    let mut driver = StackDriver::new(server(&[PORT]), far, requests, accepted);
    for port in 0..200_u16 {
        for control in [TcpControl::Syn, TcpControl::Rst] {
            let mut bytes = packet(100 + i32::from(control == TcpControl::Rst), control, &[]);
            let mut around = Ipv6Packet::new_unchecked(&mut bytes[..]);
            let mut segment = TcpPacket::new_unchecked(around.payload_mut());
            segment.set_src_port(50_000 + port);
            segment.fill_checksum(&StackRole::CLIENT.into(), &StackRole::SERVER.into());
            driver.packets.incoming.push_back(bytes);
            std::future::poll_fn(|context| {
                assert!(Pin::new(&mut driver).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        assert!(near.incoming.recv().await.is_some(), "{port} was answered");
        // Tokio makes a task wait that was polled for this long without a pause.
        tokio::task::yield_now().await;
        assert!(
            driver.packets.sent_up_to.len() <= driver.sockets.iter().count(),
            "after {port}"
        );
    }
}

#[tokio::test]
async fn a_connection_that_ended_holds_no_permit() {
    let (near, far) = PacketLink::pair();
    let permits = Arc::new(Semaphore::new(2));
    let (_, mut accepted) = Stack::start(
        StackRole::Server(watch::channel(policy(&[PORT], &permits)).1),
        far,
    );
    let near = Stack::start(StackRole::Client, near).0;
    for _ in 0..20 {
        let (ours, theirs) = tokio::join!(near.connect(PORT), accepted.recv());
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
        // The side that closes first would stay in TIME-WAIT.
        theirs.stream.shutdown().await.unwrap();
        assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 0);
        ours.shutdown().await.unwrap();
        assert_eq!(theirs.stream.read(&mut [0; 1]).await.unwrap(), 0);
        drop((ours, theirs));
        until("a stream that ended returns its permit", || {
            permits.available_permits() > 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_stream_that_waits_to_be_accepted_holds_a_permit() {
    let (near, far) = PacketLink::pair();
    let permits = Arc::new(Semaphore::new(3));
    let (_, mut accepted) = Stack::start(
        StackRole::Server(watch::channel(policy(&[PORT], &permits)).1),
        far,
    );
    let near = Stack::start(StackRole::Client, near).0;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(near.connect(PORT).await.unwrap());
    }
    until("three connections hold three permits", || {
        permits.available_permits() == 0
    })
    .await;
    assert_eq!(
        near.connect(PORT).await.unwrap_err().kind(),
        io::ErrorKind::ConnectionRefused
    );
    drop((accepted.recv().await, streams.remove(0)));
    let again = async { while near.connect(PORT).await.is_err() {} };
    timeout(Duration::from_secs(2), again)
        .await
        .expect("a permit that is free again is taken");
}

#[tokio::test]
async fn no_two_connections_share_a_source_port() {
    let ((_, requests), (near, _far)) = (mpsc::channel(BACKLOG), PacketLink::pair());
    let mut driver = StackDriver::new(StackRole::Client, near, requests, mpsc::channel(1).0);
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (connected, answer) = oneshot::channel();
        driver.connect(ConnectRequest {
            port: PORT,
            connected,
        });
        answers.push(answer);
        // As after all ports have been used once.
        driver.next_port = EPHEMERAL.end - 1;
    }
    let mut ports: Vec<_> = driver
        .sockets
        .iter()
        .filter_map(|(_, Socket::Tcp(socket))| socket.local_endpoint().map(|local| local.port))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 3);
}

/// The address and checksum of a packet to the other side, so that it gets beyond the first check.
fn repaired(mut bytes: Vec<u8>, from: &StackRole, to: &StackRole) -> Vec<u8> {
    let mut packet = Ipv6Packet::new_unchecked(&mut bytes[..]);
    if packet.check_len().is_ok() {
        packet.set_src_addr(from.address());
        packet.set_dst_addr(to.address());
        if packet.next_header() == IpProtocol::Icmpv6 {
            let mut message = Icmpv6Packet::new_unchecked(packet.payload_mut());
            if message.check_len().is_ok() {
                message.fill_checksum(&from.address(), &to.address());
            }
        } else {
            let mut segment = TcpPacket::new_unchecked(packet.payload_mut());
            if segment.check_len().is_ok() {
                segment.fill_checksum(&from.address().into(), &to.address().into());
            }
        }
    }
    bytes
}

/// The same for a packet from the server to the client.
pub fn to_client(bytes: Vec<u8>) -> Vec<u8> {
    repaired(bytes, &server(&[]), &StackRole::Client)
}

/// An echo request of the client.
fn echo_request(length: usize) -> Vec<u8> {
    let data = vec![7; length];
    let message = Icmpv6Repr::EchoRequest {
        ident: 1,
        seq_no: 1,
        data: &data,
    };
    let around = Ipv6Repr {
        src_addr: StackRole::CLIENT,
        dst_addr: StackRole::SERVER,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: 255,
    };
    let mut bytes = vec![0; around.buffer_len() + message.buffer_len()];
    let mut packet = Ipv6Packet::new_unchecked(&mut bytes[..]);
    around.emit(&mut packet);
    let mut inside = Icmpv6Packet::new_unchecked(packet.payload_mut());
    message.emit(
        &StackRole::CLIENT,
        &StackRole::SERVER,
        &mut inside,
        &ChecksumCapabilities::default(),
    );
    bytes
}

/// Protocols and extension headers of IPv6 that the stack reads, or refuses: hop-by-hop options,
/// UDP, routing, fragment, none, options for the destination.
const NEXT_HEADERS: [u8; 6] = [0, 17, 43, 44, 59, 60];

/// A segment that claims to be something else.
fn disguised() -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(NEXT_HEADERS.to_vec()), 0..100_usize).prop_map(|(next, length)| {
        let mut bytes = packet(1, TcpControl::None, &vec![0; length]);
        bytes[6] = next;
        // The first bytes of an extension header: what follows it, and its length.
        bytes[40..42].copy_from_slice(&[6, 0]);
        bytes
    })
}

/// Segments of a connection, in any order, with faults; most with a valid checksum. Others between
/// them.
pub fn hostile_packets() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
    let control = prop::sample::select(vec![
        TcpControl::Syn,
        TcpControl::None,
        TcpControl::Psh,
        TcpControl::Fin,
        TcpControl::Rst,
    ]);
    let valid = || {
        let length = prop_oneof![Just(0), 1..1200_usize];
        (0..5000_i32, control.clone(), length)
            .prop_map(|(begin, control, length)| packet(begin, control, &vec![7; length]))
    };
    let other = || prop_oneof![(0..1200_usize).prop_map(echo_request), disguised()];
    let any = prop_oneof![3 => valid(), 3 => mutated(valid()), 1 => other(), 1 => mutated(other())];
    prop::collection::vec((any, prop::bool::weighted(0.8)), 1..40)
}

proptest! {
    #[test]
    fn hostile_packets_open_no_more_than_the_policy_allows_and_fill_no_queue(packets in hostile_packets(), to_server in prop::bool::ANY) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let ((wanted, requests), (accepted, _streams)) = (mpsc::channel(BACKLOG), mpsc::channel(1));
            let (_near, far) = PacketLink::pair();
            let permits = Arc::new(Semaphore::new(3));
            let policy = ListenPolicy { max_connections: 3, ..policy(&[PORT], &permits) };
            let role = if to_server { StackRole::Server(watch::channel(policy).1) } else { StackRole::Client };
            let mut driver = StackDriver::new(role, far, requests, accepted);
            if !to_server {
                // As if the client had opened a connection from the port to which the packets go.
                driver.next_port = PORT - 1;
                let (connected, _answer) = oneshot::channel();
                wanted.try_send(ConnectRequest { port: 50_000, connected }).unwrap();
            }
            for (bytes, is_repaired) in packets {
                let (from, to) = if to_server { (StackRole::Client, server(&[])) } else { (server(&[]), StackRole::Client) };
                driver.packets.incoming.push_back(if is_repaired { repaired(bytes, &from, &to) } else { bytes });
                std::future::poll_fn(|context| {
                    assert!(Pin::new(&mut driver).poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                prop_assert!(driver.sockets.iter().count() <= 3 && driver.connections.len() <= 3);
                prop_assert!(driver.packets.outgoing.len() <= MAX_PACKETS && driver.packets.sent_up_to.len() <= 3);
                tokio::task::yield_now().await;
            }
            Ok(())
        })?;
    }
}
