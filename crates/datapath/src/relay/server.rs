//! The end that is connected to.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    PATIENCE, beside,
    carry::{Traffic, carry},
    tls,
};

/// What the kernel keeps of what a connection has not taken yet, in bytes: enough for 100 Mbit/s over 20 ms, and no more than a few
/// hundred connections together may cost.
const SEND_BUFFER: usize = 256 << 10;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Altogether.
    pub connections: usize,
    /// Of those on which the tunnel did not answer yet. One more, and the oldest of them ends.
    pub unproven: usize,
    /// From one address, or one network of IPv6.
    pub per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        // With its queue and buffers, those of TLS and those of the kernel, each takes up to a megabyte.
        Self { connections: 256, unproven: 128, per_address: 16 }
    }
}

/// What a server counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections on which the tunnel answered.
    pub proven: usize,
    /// Other connections.
    pub unproven: usize,
    /// Connections that were one too many, since it started.
    pub refused: u64,
    /// Datagrams that TCP was too slow for, since it started.
    pub dropped: u64,
}

/// Takes connections for the tunnel on this machine, until it is dropped.
#[derive(Debug)]
pub struct Server {
    listen: Vec<SocketAddr>,
    book: Arc<Book>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Listens at these addresses (TCP), for the tunnel that waits for datagrams at `tunnel` on this machine.
    pub fn start(listen: &[SocketAddr], tunnel: SocketAddr, limits: Limits) -> io::Result<Self> {
        let acceptor = tls::acceptor().map_err(io::Error::other)?;
        let listeners = listen.iter().map(|address| open(*address)).collect::<io::Result<Vec<_>>>()?;
        let listen = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let book = Arc::new(Book { limits, ..Book::default() });
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn(accept(listener, tunnel, acceptor.clone(), book.clone()));
        }
        Ok(Self { listen, book, _tasks: tasks })
    }

    /// Where it listens.
    pub fn listen(&self) -> &[SocketAddr] {
        &self.listen
    }

    /// Whose connection it is that speaks to the tunnel from `address`.
    pub fn peer(&self, address: SocketAddr) -> Option<SocketAddr> {
        self.book.lock().values().find(|one| one.address == Some(address)).map(|one| one.from)
    }

    /// What it counted.
    pub fn counts(&self) -> Counts {
        let open = self.book.lock();
        let proven = open.values().filter(|one| one.is_proven()).count();
        Counts {
            proven,
            unproven: open.len() - proven,
            refused: self.book.refused.load(Relaxed),
            dropped: self.book.dropped.load(Relaxed),
        }
    }
}

/// The connections that there are.
#[derive(Debug, Default)]
struct Book {
    limits: Limits,
    open: Mutex<BTreeMap<u64, Open>>,
    next: AtomicU64,
    refused: AtomicU64,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Open {
    from: SocketAddr,
    /// Where it speaks to the tunnel from.
    address: Option<SocketAddr>,
    traffic: Arc<Traffic>,
    /// Told when it has to make room.
    ended: Arc<Notify>,
}

impl Open {
    fn is_proven(&self) -> bool {
        self.traffic.is_proven.load(Relaxed)
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection, if there is one, or another one can be ended for it.
    fn enter(self: &Arc<Self>, from: SocketAddr) -> Option<Place> {
        let mut open = self.lock();
        let alike = open.values().filter(|one| neighbourhood(one.from.ip()) == neighbourhood(from.ip())).count();
        let unproven = open.values().filter(|one| !one.is_proven()).count();
        let Limits { connections, unproven: most_unproven, per_address } = self.limits;
        let is_full = open.len() >= connections || unproven >= most_unproven;
        // Who belongs here is proven at once, so that strangers do not keep others out by saying nothing.
        let oldest = open.iter().find(|(_, one)| !one.is_proven()).map(|(number, _)| *number);
        if is_full || alike >= per_address {
            self.refused.fetch_add(1, Relaxed);
            let ended = oldest.filter(|_| alike < per_address).and_then(|oldest| open.remove(&oldest))?;
            ended.ended.notify_one();
        }
        let number = self.next.fetch_add(1, Relaxed);
        let (traffic, ended) = (Arc::new(Traffic::new(&self.dropped)), Arc::new(Notify::new()));
        open.insert(number, Open { from, address: None, traffic: traffic.clone(), ended: ended.clone() });
        Some(Place { book: self.clone(), number, traffic, ended })
    }
}

/// Who has one address of a network of IPv6 has them all.
fn neighbourhood(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// What a connection holds as long as it is open.
struct Place {
    book: Arc<Book>,
    number: u64,
    traffic: Arc<Traffic>,
    ended: Arc<Notify>,
}

impl Place {
    fn speaks_from(&self, address: SocketAddr) {
        if let Some(open) = self.book.lock().get_mut(&self.number) {
            open.address = Some(address);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.book.lock().remove(&self.number);
    }
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        let socket = TcpSocket::new_v6()?;
        // Both families have a socket of their own.
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        socket
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(128)
}

async fn accept(listener: TcpListener, tunnel: SocketAddr, acceptor: TlsAcceptor, book: Arc<Book>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    // Without a place it is closed at once.
                    let Some(place) = book.enter(from) else { continue };
                    let acceptor = acceptor.clone();
                    connections.spawn(async move {
                        let ended = tokio::select! {
                            ended = serve(stream, tunnel, acceptor, &place) => ended,
                            () = place.ended.notified() => Err(io::Error::other("another one takes its place")),
                        };
                        tracing::debug!(%from, ended = ended.err().map(|error| error.to_string()), "a connection ended");
                    });
                }
                Err(error) => {
                    // Of the connection, or of too many open files: the latter does not go away at once.
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, tunnel: SocketAddr, acceptor: TlsAcceptor, place: &Place) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(&stream, sockopt::SndBuf, &SEND_BUFFER)?;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
    let stream = timeout(PATIENCE, acceptor.accept(stream)).await.map_err(late)??;
    let udp = UdpSocket::bind(beside(tunnel)).await?;
    udp.connect(tunnel).await?;
    place.speaks_from(udp.local_addr()?);
    carry(stream, &udp, &place.traffic).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 1000).into()
    }

    fn prove(place: &Place) {
        place.traffic.is_proven.store(true, Relaxed);
    }

    async fn is_ended(place: &Place) -> bool {
        timeout(Duration::ZERO, place.ended.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn there_are_only_so_many_connections_and_a_place_is_free_again_when_one_ends() {
        let book = Arc::new(Book { limits: Limits { connections: 4, unproven: 3, per_address: 2 }, ..Book::default() });
        let first = book.enter(from(1)).unwrap();
        prove(&first);
        let second = book.enter(from(1)).unwrap();
        assert!(book.enter(from(1)).is_none() && !is_ended(&second).await, "two from one address");
        let (third, fourth) = (book.enter(from(2)).unwrap(), book.enter(from(3)).unwrap());
        for place in [&second, &third, &fourth] {
            prove(place);
        }
        assert!(book.enter(from(4)).is_none(), "four altogether");
        drop(first);
        assert!(book.enter(from(4)).is_some());
        assert_eq!(book.refused.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn of_connections_that_are_not_proven_the_oldest_makes_room() {
        let book = Arc::new(Book { limits: Limits { connections: 4, unproven: 2, per_address: 2 }, ..Book::default() });
        let proven = book.enter(from(1)).unwrap();
        prove(&proven);
        let (oldest, other) = (book.enter(from(2)).unwrap(), book.enter(from(2)).unwrap());
        let newest = book.enter(from(3)).unwrap();
        assert!(is_ended(&oldest).await, "two that are not proven");
        drop(oldest);
        prove(&newest);
        let fourth = book.enter(from(4)).unwrap();
        prove(&other);
        let fifth = book.enter(from(5)).unwrap();
        assert!(is_ended(&fourth).await, "four altogether");
        for place in [&proven, &other, &newest, &fifth] {
            assert!(!is_ended(place).await);
        }
        drop(fourth);
        assert_eq!((book.lock().len(), book.refused.load(Relaxed)), (4, 2));
    }

    #[test]
    fn one_network_of_ipv6_is_one_address() {
        let same = |one: &str, other: &str| neighbourhood(one.parse().unwrap()) == neighbourhood(other.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff:0:0:2"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
    }
}
