//! The relay server.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use liqo_api::connection_limits::{
    ConnectionAdmission, ConnectionLimits, OpenConnections, network_of,
};
use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    carry::{RelayTraffic, carry_datagrams},
    loopback::loopback_for,
    tls::{self, CONNECT_TIMEOUT},
};

/// The kernel's send buffer of a connection in bytes: enough for 100 Mbit/s over 20 ms, and
/// affordable for a few hundred connections.
const SEND_BUFFER: usize = 256 << 10;

/// The limits of a relay. Connections are proven when the tunnel has answered on them. With the
/// buffers of queue, TLS and kernel, each takes up to one megabyte.
pub const LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 256,
    unproven: 128,
    per_source: 16,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Connections on which the tunnel answered.
    pub proven: usize,
    /// Other open connections.
    pub unproven: usize,
    /// Connections over the limits, since the start.
    pub refused: u64,
    /// Datagrams that were dropped because TCP was too slow, since the start.
    pub dropped: u64,
}

/// Accepts connections for the tunnel on this machine, until it is dropped.
#[derive(Debug)]
pub struct RelayServer {
    listen: Vec<SocketAddr>,
    connections: Arc<RelayConnections>,
    _tasks: JoinSet<()>,
}

impl RelayServer {
    /// Listens on these TCP addresses, for the tunnel that listens at `tunnel` on this machine.
    pub fn start(
        listen: &[SocketAddr],
        tunnel: SocketAddr,
        limits: ConnectionLimits,
    ) -> io::Result<Self> {
        let acceptor = tls::acceptor().map_err(io::Error::other)?;
        let listeners = listen
            .iter()
            .map(|address| open_listener(*address))
            .collect::<io::Result<Vec<_>>>()?;
        let listen = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<_>>()?;
        let connections = Arc::new(RelayConnections::new(limits));
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn(accept_connections(
                listener,
                tunnel,
                acceptor.clone(),
                connections.clone(),
            ));
        }
        Ok(Self {
            listen,
            connections,
            _tasks: tasks,
        })
    }

    pub fn listen_addresses(&self) -> &[SocketAddr] {
        &self.listen
    }

    /// The client whose datagrams reach the tunnel from `address`.
    pub fn client_address(&self, address: SocketAddr) -> Option<SocketAddr> {
        self.connections
            .lock()
            .iter()
            .find(|one| one.address == Some(address))
            .map(|one| one.from)
    }

    pub fn counts(&self) -> RelayCounts {
        let open = self.connections.lock();
        let (proven, unproven): (Vec<_>, Vec<_>) = open.iter().partition(|one| one.is_proven());
        RelayCounts {
            proven: proven.len(),
            unproven: unproven.len(),
            refused: self.connections.refused.load(Relaxed),
            dropped: self.connections.dropped.load(Relaxed),
        }
    }
}

/// The open connections.
#[derive(Debug)]
struct RelayConnections {
    open: Mutex<OpenConnections<RelayConnection>>,
    refused: AtomicU64,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct RelayConnection {
    from: SocketAddr,
    /// The loopback address of its UDP socket.
    address: Option<SocketAddr>,
    traffic: Arc<RelayTraffic>,
    /// Notified when it must make room.
    evicted: Arc<Notify>,
}

impl RelayConnection {
    fn is_proven(&self) -> bool {
        self.traffic.is_proven.load(Relaxed)
    }
}

impl RelayConnections {
    fn new(limits: ConnectionLimits) -> Self {
        Self {
            open: Mutex::new(OpenConnections::new(limits)),
            refused: AtomicU64::default(),
            dropped: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections<RelayConnection>> {
        self.open.lock()
    }

    /// Registers a connection, if there is room or another one can be ended for it.
    fn register(self: &Arc<Self>, from: SocketAddr) -> Option<RelayRegistration> {
        let (traffic, evicted) = (
            Arc::new(RelayTraffic::new(&self.dropped)),
            Arc::new(Notify::new()),
        );
        let connection = RelayConnection {
            from,
            address: None,
            traffic: traffic.clone(),
            evicted: evicted.clone(),
        };
        let added = self.lock().add(
            network_of(from.ip()),
            connection,
            RelayConnection::is_proven,
        );
        if !matches!(added, ConnectionAdmission::Open(_)) {
            self.refused.fetch_add(1, Relaxed);
        }
        let number = match added {
            ConnectionAdmission::Open(number) => number,
            ConnectionAdmission::Instead { number, ended } => {
                ended.evicted.notify_one();
                number
            }
            ConnectionAdmission::Refused => return None,
        };
        Some(RelayRegistration {
            connections: self.clone(),
            number,
            traffic,
            evicted,
        })
    }
}

/// The registration of an open connection.
struct RelayRegistration {
    connections: Arc<RelayConnections>,
    number: u64,
    traffic: Arc<RelayTraffic>,
    evicted: Arc<Notify>,
}

impl RelayRegistration {
    fn set_address(&self, address: SocketAddr) {
        if let Some(open) = self.connections.lock().get_mut(self.number) {
            open.address = Some(address);
        }
    }
}

impl Drop for RelayRegistration {
    fn drop(&mut self) {
        self.connections.lock().remove(self.number);
    }
}

fn open_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        let socket = TcpSocket::new_v6()?;
        // Each family has its own socket.
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
        socket
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(128)
}

async fn accept_connections(
    listener: TcpListener,
    tunnel: SocketAddr,
    acceptor: TlsAcceptor,
    connections: Arc<RelayConnections>,
) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    // Dropping the stream closes it.
                    let Some(registration) = connections.register(from) else { continue };
                    let acceptor = acceptor.clone();
                    tasks.spawn(async move {
                        let ended = tokio::select! {
                            ended = serve_connection(stream, tunnel, acceptor, &registration) => ended,
                            () = registration.evicted.notified() => Err(io::Error::other("it made room for another connection")),
                        };
                        tracing::debug!(%from, ended = ended.err().map(|error| error.to_string()), "a connection ended");
                    });
                }
                Err(error) => {
                    // The connection may be gone, or too many files may be open; the latter lasts a
                    // while.
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    tunnel: SocketAddr,
    acceptor: TlsAcceptor,
    registration: &RelayRegistration,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(&stream, sockopt::SndBuf, &SEND_BUFFER)?;
    let stream = timeout(CONNECT_TIMEOUT, acceptor.accept(stream))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"))??;
    let udp = UdpSocket::bind(loopback_for(tunnel)).await?;
    udp.connect(tunnel).await?;
    registration.set_address(udp.local_addr()?);
    carry_datagrams(stream, &udp, &registration.traffic).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 1000).into()
    }

    fn prove(registration: &RelayRegistration) {
        registration.traffic.is_proven.store(true, Relaxed);
    }

    async fn is_evicted(registration: &RelayRegistration) -> bool {
        timeout(Duration::ZERO, registration.evicted.notified())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn the_oldest_unproven_connection_makes_room() {
        let connections = Arc::new(RelayConnections::new(ConnectionLimits {
            connections: 4,
            unproven: 2,
            per_source: 2,
        }));
        let proven = connections.register(from(1)).unwrap();
        prove(&proven);
        let (oldest, other) = (
            connections.register(from(2)).unwrap(),
            connections.register(from(2)).unwrap(),
        );
        let newest = connections.register(from(3)).unwrap();
        assert!(is_evicted(&oldest).await, "two that are not proven");
        drop(oldest);
        prove(&newest);
        let fourth = connections.register(from(4)).unwrap();
        prove(&other);
        let fifth = connections.register(from(5)).unwrap();
        assert!(is_evicted(&fourth).await, "four altogether");
        for registration in [&proven, &other, &newest, &fifth] {
            assert!(!is_evicted(registration).await);
        }
        drop(fourth);
        prove(&fifth);
        assert!(connections.register(from(6)).is_none(), "all are proven");
        assert_eq!(
            (
                connections.lock().iter().count(),
                connections.refused.load(Relaxed)
            ),
            (4, 3)
        );
    }
}
