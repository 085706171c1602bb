//! A TCP stack over packets, driven by one task.

mod packets;

use std::{
    collections::HashSet,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use smoltcp::{
    iface::{Config, Interface, PollIngressSingleResult, SocketHandle, SocketSet},
    socket::{Socket, tcp},
    time as inner,
    wire::{HardwareAddress, IpAddress, IpCidr, Ipv6Address},
};
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, DuplexStream, ReadBuf, duplex},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{Instant, Sleep, sleep_until},
};
use tokio_util::sync::PollSender;

use self::packets::{MAX_PACKETS, PacketQueues};

pub use self::packets::MTU;

/// TCP buffer of a connection in each direction, in bytes. It bounds what is in flight.
const TCP_BUFFER: usize = 64 * 1024;
/// Buffer between a connection and its user in each direction, in bytes.
const STREAM_BUFFER: usize = 16 * 1024;
/// Maximum number of connections in a session. Each watch of an API server is one.
pub const MAX_STREAMS: usize = 128;
/// Connect requests that may wait for the stack.
const BACKLOG: usize = 8;
/// A connection ends when the other side acknowledges nothing for this long.
const TIMEOUT: inner::Duration = inner::Duration::from_secs(30);
/// Interval of TCP keepalives on idle connections.
const KEEPALIVE: inner::Duration = inner::Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest delay between two polls by timer.
const MIN_POLL_DELAY: Duration = Duration::from_millis(1);
/// Source ports of outgoing connections.
const EPHEMERAL: std::ops::Range<u16> = 49152..65535;

/// The role of a stack in a session. A session has only these two, so their addresses are fixed.
#[derive(Clone, Debug)]
pub enum StackRole {
    /// Opens streams.
    Client,
    /// Accepts streams as its current policy allows.
    Server(watch::Receiver<ListenPolicy>),
}

/// The streams that a server accepts.
#[derive(Clone, Debug)]
pub struct ListenPolicy {
    /// Ports that accept streams.
    pub ports: Vec<u16>,
    /// Maximum number of connections in this session, in any TCP state, listening and closing ones
    /// included.
    pub max_connections: usize,
    /// Each connection holds a permit. Several sessions may share the semaphore. Without a permit
    /// no stream opens.
    pub permits: Arc<Semaphore>,
}

impl StackRole {
    const CLIENT: Ipv6Address = Ipv6Address::new(0xfd4c, 0x6971, 0x6f00, 0, 0, 0, 0, 1);
    const SERVER: Ipv6Address = Ipv6Address::new(0xfd4c, 0x6971, 0x6f00, 0, 0, 0, 0, 2);

    fn address(&self) -> Ipv6Address {
        match self {
            Self::Client => Self::CLIENT,
            Self::Server(_) => Self::SERVER,
        }
    }
}

/// Source and destination of a stack's packets. The stack ends when the other half is dropped.
pub struct PacketLink {
    /// Packets from the other side.
    pub incoming: mpsc::Receiver<Vec<u8>>,
    /// Packets to the other side.
    pub outgoing: mpsc::Sender<Vec<u8>>,
}

impl PacketLink {
    /// Two links that are connected to each other.
    pub fn pair() -> (Self, Self) {
        let ((one_out, other_in), (other_out, one_in)) =
            (mpsc::channel(MAX_PACKETS), mpsc::channel(MAX_PACKETS));
        (
            Self {
                incoming: one_in,
                outgoing: one_out,
            },
            Self {
                incoming: other_in,
                outgoing: other_out,
            },
        )
    }
}

/// A stream that the other side opened.
#[derive(Debug)]
pub struct IncomingStream {
    /// The port that the client connected to.
    pub port: u16,
    pub stream: DuplexStream,
    /// Its permit of [`ListenPolicy::permits`], which becomes free when this and the connection are
    /// gone.
    pub permit: StreamPermit,
}

/// A permit of [`ListenPolicy::permits`].
pub type StreamPermit = Arc<OwnedSemaphorePermit>;

/// A handle to a TCP stack. The stack ends when its link ends, or when all handles are gone and all
/// streams have ended.
#[derive(Clone, Debug)]
pub struct Stack {
    requests: mpsc::Sender<ConnectRequest>,
}

#[derive(Debug)]
struct ConnectRequest {
    port: u16,
    connected: oneshot::Sender<io::Result<DuplexStream>>,
}

impl Stack {
    /// Starts a stack. The receiver yields the streams that the other side opens.
    pub fn start(role: StackRole, link: PacketLink) -> (Self, mpsc::Receiver<IncomingStream>) {
        let (sender, requests) = mpsc::channel(BACKLOG);
        let (accepted, streams) = mpsc::channel(MAX_STREAMS);
        tokio::spawn(StackDriver::new(role, link, requests, accepted));
        (Self { requests: sender }, streams)
    }

    /// Opens a stream to this port of the other side.
    pub async fn connect(&self, port: u16) -> io::Result<DuplexStream> {
        let (connected, answer) = oneshot::channel();
        self.requests
            .send(ConnectRequest { port, connected })
            .await
            .map_err(|_| session_ended())?;
        let answer = tokio::time::timeout(CONNECT_TIMEOUT, answer).await;
        answer
            .map_err(|_| {
                io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the other side of the session does not answer",
                )
            })?
            .map_err(|_| session_ended())?
    }
}

/// A TCP connection and the stream of its user.
struct StackConnection {
    handle: SocketHandle,
    state: ConnectionState,
}

enum ConnectionState {
    /// Waits for the other side to connect.
    Listening(u16, StreamPermit),
    Connecting(oneshot::Sender<io::Result<DuplexStream>>),
    Open {
        stream: DuplexStream,
        /// The user closed its sending half, and the other side knows.
        sent_end: bool,
        /// The other side closed its sending half, and the user knows.
        received_end: bool,
    },
}

impl ConnectionState {
    fn opened(stream: DuplexStream) -> Self {
        Self::Open {
            stream,
            sent_end: false,
            received_end: false,
        }
    }
}

struct StackDriver {
    role: StackRole,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<StackConnection>,
    /// Permits of the connections that the other side opened.
    permits: Vec<(SocketHandle, StreamPermit)>,
    packets: PacketQueues,
    incoming: mpsc::Receiver<Vec<u8>>,
    outgoing: PollSender<Vec<u8>>,
    requests: Option<mpsc::Receiver<ConnectRequest>>,
    accepted: mpsc::Sender<IncomingStream>,
    next_port: u16,
    start: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl StackDriver {
    fn new(
        role: StackRole,
        link: PacketLink,
        requests: mpsc::Receiver<ConnectRequest>,
        accepted: mpsc::Sender<IncomingStream>,
    ) -> Self {
        let mut packets = PacketQueues::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rand::random();
        let mut interface = Interface::new(config, &mut packets, inner::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // The list has room for more than one.
            let _ = addresses.push(IpCidr::new(IpAddress::Ipv6(role.address()), 64));
        });
        let mut driver = Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            connections: Vec::new(),
            permits: Vec::new(),
            packets,
            incoming: link.incoming,
            outgoing: PollSender::new(link.outgoing),
            requests: Some(requests),
            accepted,
            next_port: rand::random_range(EPHEMERAL),
            start: Instant::now(),
            alarm: Box::pin(sleep_until(Instant::now())),
            role,
        };
        driver.update_listeners();
        driver
    }

    fn now(&self) -> inner::Instant {
        inner::Instant::from_micros(
            i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX),
        )
    }

    fn new_socket() -> tcp::Socket<'static> {
        let [receive, send] = [(); 2].map(|()| tcp::SocketBuffer::new(vec![0; TCP_BUFFER]));
        let mut socket = tcp::Socket::new(receive, send);
        socket.set_timeout(Some(TIMEOUT));
        socket.set_keep_alive(Some(KEEPALIVE));
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(tcp::CongestionControl::Cubic);
        socket
    }

    /// Keeps one listening socket on each open port, within the policy's limits, and none on other
    /// ports.
    fn update_listeners(&mut self) {
        let StackRole::Server(policy) = &self.role else {
            return;
        };
        let policy = policy.borrow().clone();
        let sockets = &mut self.sockets;
        self.connections.retain(|connection| {
            let is_closed = matches!(connection.state, ConnectionState::Listening(port, _) if !policy.ports.contains(&port));
            if is_closed {
                sockets.get_mut::<tcp::Socket>(connection.handle).abort();
            }
            !is_closed
        });
        for port in policy.ports {
            if self.sockets.iter().count() >= policy.max_connections || self.waits_on(port) {
                continue;
            }
            let Ok(permit) = policy.permits.clone().try_acquire_owned().map(Arc::new) else {
                continue;
            };
            let mut socket = Self::new_socket();
            if socket.listen(port).is_ok() {
                let handle = self.sockets.add(socket);
                self.permits.push((handle, permit.clone()));
                self.connections.push(StackConnection {
                    handle,
                    state: ConnectionState::Listening(port, permit),
                });
            }
        }
    }

    fn waits_on(&self, port: u16) -> bool {
        self.connections.iter().any(|connection| {
            matches!(connection.state, ConnectionState::Listening(on, _) if on == port)
                && self.sockets.get::<tcp::Socket>(connection.handle).state() == tcp::State::Listen
        })
    }

    fn connect(&mut self, request: ConnectRequest) {
        if self.sockets.iter().count() >= MAX_STREAMS {
            let error = io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "the session has reached its maximum number of streams",
            );
            drop(request.connected.send(Err(error)));
            return;
        }
        self.next_port = self.free_port();
        let mut socket = Self::new_socket();
        let remote = (IpAddress::Ipv6(StackRole::SERVER), request.port);
        match socket.connect(self.interface.context(), remote, self.next_port) {
            Ok(()) => {
                let handle = self.sockets.add(socket);
                self.connections.push(StackConnection {
                    handle,
                    state: ConnectionState::Connecting(request.connected),
                });
            }
            Err(error) => drop(
                request
                    .connected
                    .send(Err(io::Error::other(error.to_string()))),
            ),
        }
    }

    /// The next source port that no connection uses. There are more ports than connections.
    fn free_port(&self) -> u16 {
        let mut port = port_after(self.next_port);
        while self.is_port_used(port) {
            port = port_after(port);
        }
        port
    }

    fn is_port_used(&self, port: u16) -> bool {
        let mut sockets = self.sockets.iter();
        sockets.any(|(_, Socket::Tcp(socket))| {
            socket
                .local_endpoint()
                .is_some_and(|local| local.port == port)
        })
    }

    /// Takes requests and incoming packets. Returns whether there may be more, or `None` when the
    /// link has ended.
    fn receive(&mut self, context: &mut Context<'_>) -> Option<bool> {
        while let Some(requests) = &mut self.requests {
            match requests.poll_recv(context) {
                Poll::Ready(Some(request)) => self.connect(request),
                Poll::Ready(None) => self.requests = None,
                Poll::Pending => break,
            }
        }
        while self.packets.incoming.len() < MAX_PACKETS {
            match self.incoming.poll_recv(context) {
                Poll::Ready(Some(packet)) => self.packets.incoming.push_back(packet),
                Poll::Ready(None) => return None,
                Poll::Pending => return (!self.outgoing.is_closed()).then_some(false),
            }
        }
        (!self.outgoing.is_closed()).then_some(true)
    }

    /// Sends packets as far as the link has room; the stack holds back the rest. Returns false when
    /// the link has ended.
    fn send(&mut self, context: &mut Context<'_>) -> bool {
        while !self.packets.outgoing.is_empty() {
            match self.outgoing.poll_reserve(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => break,
            }
            if let Some(packet) = self.packets.outgoing.pop_front()
                && self.outgoing.send_item(packet).is_err()
            {
                return false;
            }
        }
        true
    }

    /// Whether no stream is open and none can be opened any more.
    fn is_over(&self) -> bool {
        self.requests.is_none()
            && (matches!(self.role, StackRole::Client) || self.accepted.is_closed())
            && self
                .connections
                .iter()
                .all(|connection| matches!(connection.state, ConnectionState::Listening(..)))
            && self.sockets.iter().count() == self.connections.len()
    }

    /// Moves bytes between connections and streams, and returns whether anything moved.
    fn transfer(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        for connection in std::mem::take(&mut self.connections) {
            let socket = self.sockets.get_mut::<tcp::Socket>(connection.handle);
            let (state, progress) =
                advance_connection(socket, connection.state, &self.accepted, context);
            moved |= progress;
            match state {
                Some(state) => self.connections.push(StackConnection {
                    state,
                    ..connection
                }),
                // No TIME-WAIT: each connection has its own port.
                None => socket.abort(),
            }
        }
        let kept: Vec<SocketHandle> = self
            .connections
            .iter()
            .map(|connection| connection.handle)
            .collect();
        let over: Vec<SocketHandle> = self
            .sockets
            .iter()
            .filter(|(handle, Socket::Tcp(socket))| !kept.contains(handle) && is_finished(socket))
            .map(|(handle, _)| handle)
            .collect();
        for handle in over {
            self.sockets.remove(handle);
            self.permits.retain(|(of, _)| *of != handle);
        }
        if self.packets.sent_up_to.len() > self.sockets.iter().count() {
            let open: HashSet<_> = self
                .sockets
                .iter()
                .filter_map(|(_, Socket::Tcp(socket))| {
                    let (local, remote) = (socket.local_endpoint()?, socket.remote_endpoint()?);
                    Some((local.port, remote.port))
                })
                .collect();
            self.packets
                .sent_up_to
                .retain(|ports, _| open.contains(ports));
        }
        moved
    }
}

impl Future for StackDriver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let Some(is_more) = this.receive(context) else {
                return Poll::Ready(());
            };
            let now = this.now();
            this.update_listeners();
            // One packet at a time: each new connection needs a listening socket.
            while this
                .interface
                .poll_ingress_single(now, &mut this.packets, &mut this.sockets)
                != PollIngressSingleResult::None
            {
                this.update_listeners();
            }
            this.interface
                .poll(now, &mut this.packets, &mut this.sockets);
            let moved = this.transfer(context);
            if !this.send(context) || this.is_over() {
                return Poll::Ready(());
            }
            let is_full = this.packets.outgoing.len() >= MAX_PACKETS;
            if moved || ((is_more || !this.packets.incoming.is_empty()) && !is_full) {
                continue;
            }
            // A full link wakes this task when there is room again.
            let due = this
                .interface
                .poll_delay(now, &this.sockets)
                .filter(|_| !is_full);
            let Some(due) = due else { return Poll::Pending };
            this.alarm.as_mut().reset(
                Instant::now() + Duration::from_micros(due.total_micros()).max(MIN_POLL_DELAY),
            );
            if this.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// Whether the socket is closed and the other side knows.
fn is_finished(socket: &tcp::Socket<'_>) -> bool {
    !socket.is_open() && socket.remote_endpoint().is_none()
}

fn session_ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the session has ended")
}

fn port_after(port: u16) -> u16 {
    if port + 1 < EPHEMERAL.end {
        port + 1
    } else {
        EPHEMERAL.start
    }
}

/// Advances a connection. Returns its next state, `None` if it is over, and whether bytes moved.
fn advance_connection(
    socket: &mut tcp::Socket<'_>,
    state: ConnectionState,
    accepted: &mpsc::Sender<IncomingStream>,
    context: &mut Context<'_>,
) -> (Option<ConnectionState>, bool) {
    match state {
        ConnectionState::Listening(port, permit) if socket.may_send() || socket.may_recv() => {
            let (ours, stream) = duplex(STREAM_BUFFER);
            let taken = accepted
                .try_send(IncomingStream {
                    port,
                    stream,
                    permit,
                })
                .is_ok();
            (taken.then(|| ConnectionState::opened(ours)), taken)
        }
        // The client went away before the connection was established.
        ConnectionState::Listening(..) if !socket.is_open() => (None, false),
        ConnectionState::Connecting(connected) if socket.may_send() => {
            let (ours, stream) = duplex(STREAM_BUFFER);
            let taken = connected.send(Ok(stream)).is_ok();
            (taken.then(|| ConnectionState::opened(ours)), taken)
        }
        ConnectionState::Connecting(connected) if !socket.is_open() => {
            let error = io::Error::new(
                io::ErrorKind::ConnectionRefused,
                "the other side of the session refuses",
            );
            drop(connected.send(Err(error)));
            (None, false)
        }
        ConnectionState::Connecting(connected) if connected.is_closed() => (None, false),
        ConnectionState::Open {
            mut stream,
            mut sent_end,
            mut received_end,
        } => {
            let mut moved = false;
            while !sent_end && socket.can_send() {
                match socket.send(|space| read_from_user(&mut stream, space, context)) {
                    Ok(Some(0)) => {
                        socket.close();
                        sent_end = true;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
                moved = true;
            }
            while socket.can_recv() {
                match socket.recv(|bytes| write_to_user(&mut stream, bytes, context)) {
                    Ok(Some(0)) | Err(_) => return (None, true),
                    Ok(Some(_)) => moved = true,
                    Ok(None) => break,
                }
            }
            if !received_end && !socket.can_recv() && !socket.may_recv() {
                received_end = Pin::new(&mut stream).poll_shutdown(context).is_ready();
                moved = true;
            }
            // Nobody reads what the other side may still send.
            let is_gone = sent_end
                && matches!(
                    Pin::new(&mut stream).poll_write(context, &[]),
                    Poll::Ready(Err(_))
                );
            let over = match socket.state() {
                tcp::State::Closed | tcp::State::TimeWait => received_end,
                tcp::State::FinWait2 => is_gone,
                _ => false,
            };
            (
                (!over).then_some(ConnectionState::Open {
                    stream,
                    sent_end,
                    received_end,
                }),
                moved,
            )
        }
        waiting => (Some(waiting), false),
    }
}

/// Reads from the user's stream into the connection: the number of bytes, 0 at its end, or `None`
/// if there is nothing now.
fn read_from_user(
    stream: &mut DuplexStream,
    space: &mut [u8],
    context: &mut Context<'_>,
) -> (usize, Option<usize>) {
    let mut space = ReadBuf::new(space);
    match Pin::new(stream).poll_read(context, &mut space) {
        Poll::Ready(Ok(())) => (space.filled().len(), Some(space.filled().len())),
        Poll::Ready(Err(_)) => (0, Some(0)),
        Poll::Pending => (0, None),
    }
}

/// Writes to the user's stream from the connection: the number of bytes, 0 if it is gone, or `None`
/// if it takes nothing now.
fn write_to_user(
    stream: &mut DuplexStream,
    bytes: &mut [u8],
    context: &mut Context<'_>,
) -> (usize, Option<usize>) {
    match Pin::new(stream).poll_write(context, bytes) {
        Poll::Ready(Ok(count)) => (count, Some(count)),
        Poll::Ready(Err(_)) => (0, Some(0)),
        Poll::Pending => (0, None),
    }
}

#[cfg(test)]
pub(crate) mod tests;
