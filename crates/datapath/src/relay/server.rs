//! The end that is connected to.

use std::{
    collections::HashMap,
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
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    PATIENCE, beside,
    carry::{Traffic, carry},
    tls,
};

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Altogether.
    pub connections: usize,
    /// Of those on which the tunnel did not answer yet.
    pub unproven: usize,
    /// From one address, or one network of IPv6.
    pub per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 1024, unproven: 128, per_address: 32 }
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
        let now: u64 = open.values().map(|one| one.traffic.dropped.load(Relaxed)).sum();
        Counts {
            proven,
            unproven: open.len() - proven,
            refused: self.book.refused.load(Relaxed),
            dropped: self.book.dropped.load(Relaxed) + now,
        }
    }
}

/// The connections that there are.
#[derive(Debug, Default)]
struct Book {
    limits: Limits,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Open {
    from: SocketAddr,
    /// Where it speaks to the tunnel from.
    address: Option<SocketAddr>,
    traffic: Arc<Traffic>,
}

impl Open {
    fn is_proven(&self) -> bool {
        self.traffic.is_proven.load(Relaxed)
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection, if there is one.
    fn enter(self: &Arc<Self>, from: SocketAddr) -> Option<Place> {
        let mut open = self.lock();
        let alike = open.values().filter(|one| neighbourhood(one.from.ip()) == neighbourhood(from.ip())).count();
        let unproven = open.values().filter(|one| !one.is_proven()).count();
        let Limits { connections, unproven: most_unproven, per_address } = self.limits;
        if open.len() >= connections || unproven >= most_unproven || alike >= per_address {
            self.refused.fetch_add(1, Relaxed);
            return None;
        }
        let number = self.next.fetch_add(1, Relaxed);
        let traffic = Arc::new(Traffic::default());
        open.insert(number, Open { from, address: None, traffic: traffic.clone() });
        Some(Place { book: self.clone(), number, traffic })
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
        if self.book.lock().remove(&self.number).is_some() {
            self.book.dropped.fetch_add(self.traffic.dropped.load(Relaxed), Relaxed);
        }
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
                        let ended = serve(stream, tunnel, acceptor, &place).await;
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

    #[test]
    fn there_are_only_so_many_connections_and_a_place_is_free_again_when_one_ends() {
        let book = Arc::new(Book { limits: Limits { connections: 4, unproven: 3, per_address: 2 }, ..Book::default() });
        let first = book.enter(from(1)).unwrap();
        let second = book.enter(from(1)).unwrap();
        assert!(book.enter(from(1)).is_none(), "two from one address");
        let third = book.enter(from(2)).unwrap();
        assert!(book.enter(from(3)).is_none(), "three that are not proven");
        first.traffic.is_proven.store(true, Relaxed);
        let fourth = book.enter(from(3)).unwrap();
        for place in [&second, &third, &fourth] {
            place.traffic.is_proven.store(true, Relaxed);
        }
        assert!(book.enter(from(4)).is_none(), "four altogether");
        drop(first);
        assert!(book.enter(from(4)).is_some());
        assert_eq!(book.refused.load(Relaxed), 3);
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
