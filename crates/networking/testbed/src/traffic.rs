//! Generates traffic and measures it.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::namespace::NetworkNamespace;

const BLOCK: usize = 128 << 10;

/// The throughput of one kind of traffic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throughput {
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Datagrams that arrived. 0 for TCP.
    pub messages: u64,
    pub time: Duration,
}

impl Throughput {
    /// In 10^9 bits per second.
    pub fn gigabits(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.time.as_secs_f64()
    }

    /// Datagrams per second.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.time.as_secs_f64()
    }
}

/// Sends as much as possible over this number of TCP connections.
pub fn send_tcp(
    from: &NetworkNamespace,
    to: &NetworkNamespace,
    server: SocketAddr,
    streams: usize,
    time: Duration,
) -> io::Result<Throughput> {
    let listener = to.run(|| TcpListener::bind(server))??;
    let address = listener.local_addr()?;
    let (bytes, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let mut senders = Vec::new();
        for _ in 0..streams {
            let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(10));
            let mut sender = from.run(connect)??;
            let (mut receiver, _) = listener.accept()?;
            receiver.set_read_timeout(Some(Duration::from_secs(10)))?;
            let (bytes, done) = (&bytes, &done);
            senders.push(sender.try_clone()?);
            scope.spawn(move || {
                let mut block = vec![0; BLOCK];
                while let Ok(length @ 1..) = receiver.read(&mut block) {
                    bytes.fetch_add(length as u64, Relaxed);
                }
            });
            scope.spawn(move || {
                let block = vec![7; BLOCK];
                while !done.load(Relaxed) && sender.write_all(&block).is_ok() {}
            });
        }
        // Leave out the beginning, when windows grow.
        thread::sleep(time / 10);
        let (start, before) = (Instant::now(), bytes.load(Relaxed));
        thread::sleep(time);
        let achieved = Throughput {
            bytes: bytes.load(Relaxed) - before,
            messages: 0,
            time: start.elapsed(),
        };
        done.store(true, Relaxed);
        for sender in senders {
            let _ = sender.shutdown(std::net::Shutdown::Both);
        }
        Ok(achieved)
    })
}

/// Sends datagrams of one size as fast as possible, one per call, and counts those that arrive.
pub fn send_udp(
    from: &NetworkNamespace,
    to: &NetworkNamespace,
    server: SocketAddr,
    size: usize,
    time: Duration,
) -> io::Result<Throughput> {
    let receiver = to.run(|| UdpSocket::bind(server))??;
    receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
    let address = receiver.local_addr()?;
    let local: SocketAddr = if address.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let sender = from.run(|| {
        UdpSocket::bind(local).and_then(|socket| socket.connect(address).map(|()| socket))
    })??;
    let (messages, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            while !done.load(Relaxed) {
                if receiver.recv(&mut buffer).is_ok() {
                    messages.fetch_add(1, Relaxed);
                }
            }
        });
        scope.spawn(|| {
            let datagram = vec![7; size];
            while !done.load(Relaxed) {
                // A full queue is expected.
                let _ = sender.send(&datagram);
            }
        });
        thread::sleep(time / 10);
        let (start, before) = (Instant::now(), messages.load(Relaxed));
        thread::sleep(time);
        let messages = messages.load(Relaxed) - before;
        done.store(true, Relaxed);
        Ok(Throughput {
            bytes: messages * size as u64,
            messages,
            time: start.elapsed(),
        })
    })
}

/// Sorted times of round trips of small messages over one TCP connection.
pub fn round_trips(
    from: &NetworkNamespace,
    to: &NetworkNamespace,
    server: SocketAddr,
    time: Duration,
) -> io::Result<Vec<Duration>> {
    let listener = to.run(|| TcpListener::bind(server))??;
    let address = listener.local_addr()?;
    let mut client =
        from.run(|| TcpStream::connect_timeout(&address, Duration::from_secs(10)))??;
    let (mut peer, _) = listener.accept()?;
    for stream in [&client, &peer] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    }
    let echo = thread::spawn(move || {
        let mut message = [0; 64];
        while peer.read_exact(&mut message).is_ok() && peer.write_all(&message).is_ok() {}
    });
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let (asked, mut message) = (Instant::now(), [7; 64]);
        client.write_all(&message)?;
        client.read_exact(&mut message)?;
        times.push(asked.elapsed());
    }
    drop(client);
    let _ = echo.join();
    times.sort_unstable();
    Ok(times)
}

/// Sends random bytes over TCP and returns whether they arrived unchanged.
pub fn arrives_unchanged(
    from: &NetworkNamespace,
    to: &NetworkNamespace,
    server: SocketAddr,
    length: usize,
) -> io::Result<bool> {
    let listener = to.run(|| TcpListener::bind(server))??;
    let address = listener.local_addr()?;
    let mut client =
        from.run(|| TcpStream::connect_timeout(&address, Duration::from_secs(10)))??;
    let (mut peer, _) = listener.accept()?;
    peer.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut sent = vec![0; length];
    rand::RngCore::fill_bytes(&mut rand::rng(), &mut sent);
    let sent = Arc::new(sent);
    let to_send = Arc::clone(&sent);
    let sender = thread::spawn(move || client.write_all(&to_send));
    let mut arrived = Vec::with_capacity(length);
    peer.read_to_end(&mut arrived)?;
    sender
        .join()
        .map_err(|_| io::Error::other("the sender ended"))??;
    Ok(arrived == *sent)
}
