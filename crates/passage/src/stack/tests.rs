use smoltcp::wire::{Ipv6Packet, TcpControl, TcpPacket};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{packets::tests::packet, *};

const PORT: u16 = 443;

fn open(ports: &[u16]) -> End {
    End::Far(watch::channel(doors(ports, &Arc::new(Semaphore::new(MOST_STREAMS)))).1)
}

fn doors(ports: &[u16], room: &Arc<Semaphore>) -> Doors {
    Doors { ports: ports.to_vec(), most: MOST_STREAMS, room: room.clone() }
}

fn ends() -> (Stack, mpsc::Receiver<Accepted>) {
    let (near, far) = Wire::pair();
    let (_, accepted) = Stack::start(open(&[PORT]), far);
    (Stack::start(End::Near, near).0, accepted)
}

/// Answers with what it is told.
fn echo(mut accepted: mpsc::Receiver<Accepted>) {
    tokio::spawn(async move {
        while let Some(Accepted { stream, place, .. }) = accepted.recv().await {
            tokio::spawn(async move {
                let _place = place;
                let (mut read, mut write) = tokio::io::split(stream);
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
            });
        }
    });
}

async fn call(near: &Stack, length: usize) {
    let sent: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let (mut read, mut write) = tokio::io::split(near.connect(PORT).await.unwrap());
    let mut received = Vec::new();
    let writing = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let ((), read) = tokio::join!(writing, read.read_to_end(&mut received));
    read.unwrap();
    assert!(received == sent, "{} bytes came back of {length}", received.len());
}

#[tokio::test]
async fn what_is_said_arrives_whole_and_so_does_the_end() {
    let (near, accepted) = ends();
    echo(accepted);
    for length in [0, 1, 1000, 3_000_000] {
        call(&near, length).await;
    }
}

#[tokio::test]
async fn many_streams_stand_side_by_side_and_no_more_than_there_may_be() {
    let (near, mut accepted) = ends();
    let mut streams = Vec::new();
    for number in 0..MOST_STREAMS {
        let (ours, theirs) = tokio::join!(near.connect(PORT), accepted.recv());
        streams.push((ours.unwrap_or_else(|error| panic!("stream {number}: {error}")), theirs.unwrap()));
    }
    assert_eq!(near.connect(PORT).await.unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    for (ours, theirs) in &mut streams {
        ours.write_all(b"x").await.unwrap();
        assert_eq!(theirs.stream.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test]
async fn many_streams_may_begin_at_the_same_moment() {
    let (near, mut accepted) = ends();
    let taking = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Some(one) = accepted.recv().await {
            taken.push(one);
            if taken.len() == MOST_STREAMS / 2 {
                break;
            }
        }
        taken.len()
    });
    let calls: Vec<_> = (0..MOST_STREAMS / 2)
        .map(|_| {
            let near = near.clone();
            tokio::spawn(async move { near.connect(PORT).await.map(drop) })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(taking.await.unwrap(), MOST_STREAMS / 2);
}

#[tokio::test]
async fn a_door_that_is_shut_takes_nobody_and_one_that_opens_does() {
    let (near, far) = Wire::pair();
    let doors = watch::Sender::new(doors(&[PORT], &Arc::new(Semaphore::new(MOST_STREAMS))));
    let (_, mut accepted) = Stack::start(End::Far(doors.subscribe()), far);
    let (near, _) = Stack::start(End::Near, near);
    assert!(near.connect(PORT + 1).await.is_err());
    doors.send_modify(|doors| doors.ports = vec![PORT + 1]);
    assert_eq!(near.connect(PORT).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let (ours, theirs) = tokio::join!(near.connect(PORT + 1), accepted.recv());
    assert!(ours.is_ok() && theirs.is_some_and(|one| one.port == PORT + 1));
}

#[tokio::test]
async fn another_port_is_refused_at_once() {
    let (near, _accepted) = ends();
    assert_eq!(near.connect(PORT + 1).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn where_nobody_answers_it_is_said_and_what_stood_ends() {
    let (near, mut far) = Wire::pair();
    let (stack, _) = Stack::start(End::Near, near);
    let (outcome, ()) = tokio::join!(stack.connect(PORT), async { while far.incoming.try_recv().is_ok() {} });
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(far);
    assert_eq!(stack.connect(PORT).await.unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[tokio::test]
async fn a_wire_that_loses_packets_loses_no_bytes() {
    let ((near, mut one), (mut other, far)) = (Wire::pair(), Wire::pair());
    let (_, accepted) = Stack::start(open(&[PORT]), far);
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
    call(&Stack::start(End::Near, near).0, 200_000).await;
}

#[tokio::test]
async fn who_hangs_up_is_gone_for_the_other_end() {
    let (near, mut accepted) = ends();
    let (ours, theirs) = tokio::join!(near.connect(PORT), accepted.recv());
    let mut theirs = theirs.unwrap().stream;
    drop(ours);
    assert_eq!(theirs.read(&mut [0; 1]).await.unwrap(), 0);
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(2), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn who_begins_and_hangs_up_leaves_nothing() {
    let ((_wanted, requests), (accepted, _streams)) = (mpsc::channel(BACKLOG), mpsc::channel(1));
    let (mut near, far) = Wire::pair();
    let mut driver = Driver::new(open(&[PORT]), far, requests, accepted);
    for port in 0..200_u16 {
        for control in [TcpControl::Syn, TcpControl::Rst] {
            let mut bytes = packet(100 + i32::from(control == TcpControl::Rst), control, &[]);
            let mut around = Ipv6Packet::new_unchecked(&mut bytes[..]);
            let mut segment = TcpPacket::new_unchecked(around.payload_mut());
            segment.set_src_port(50_000 + port);
            segment.fill_checksum(&End::NEAR.into(), &End::FAR.into());
            driver.packets.incoming.push_back(bytes);
            std::future::poll_fn(|context| {
                assert!(Pin::new(&mut driver).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        assert!(near.incoming.recv().await.is_some(), "{port} was answered");
        // Whoever is polled for so long without a pause is told to wait.
        tokio::task::yield_now().await;
        assert!(driver.packets.reached.len() <= driver.sockets.iter().count(), "after {port}");
    }
}

#[tokio::test]
async fn a_connection_that_ended_takes_no_place() {
    let (near, far) = Wire::pair();
    let room = Arc::new(Semaphore::new(2));
    let (_, mut accepted) = Stack::start(End::Far(watch::channel(doors(&[PORT], &room)).1), far);
    let near = Stack::start(End::Near, near).0;
    for _ in 0..20 {
        let (ours, theirs) = tokio::join!(near.connect(PORT), accepted.recv());
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap());
        // Who ends first would have to wait for packets that are late.
        theirs.stream.shutdown().await.unwrap();
        assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 0);
        ours.shutdown().await.unwrap();
        assert_eq!(theirs.stream.read(&mut [0; 1]).await.unwrap(), 0);
        drop((ours, theirs));
        until("a stream that ended leaves its place", || room.available_permits() > 0).await;
    }
}

#[tokio::test]
async fn what_waits_to_be_accepted_takes_a_place() {
    let (near, far) = Wire::pair();
    let room = Arc::new(Semaphore::new(3));
    let (_, mut accepted) = Stack::start(End::Far(watch::channel(doors(&[PORT], &room)).1), far);
    let near = Stack::start(End::Near, near).0;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(near.connect(PORT).await.unwrap());
    }
    until("three connections take three places", || room.available_permits() == 0).await;
    assert_eq!(near.connect(PORT).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    drop((accepted.recv().await, streams.remove(0)));
    let again = async { while near.connect(PORT).await.is_err() {} };
    timeout(Duration::from_secs(2), again).await.expect("a place that is free again is taken");
}

#[tokio::test]
async fn no_two_connections_have_one_port() {
    let ((_, requests), (near, _far)) = (mpsc::channel(BACKLOG), Wire::pair());
    let mut driver = Driver::new(End::Near, near, requests, mpsc::channel(1).0);
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (stands, answer) = oneshot::channel();
        driver.begin(Connect { port: PORT, stands });
        answers.push(answer);
        // As after all ports have been used once.
        driver.next_port = EPHEMERAL.end - 1;
    }
    let mut ports: Vec<_> =
        driver.sockets.iter().filter_map(|(_, Socket::Tcp(socket))| socket.local_endpoint().map(|local| local.port)).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 3);
}
