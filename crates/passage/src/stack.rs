//! A TCP stack over packets, as one task.

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

use self::packets::Packets;

/// So many packets wait on the way in or out; more are dropped, as on any wire.
const PACKETS: usize = 128;
/// Bytes that wait in each direction of a connection: what is on the way at a time.
const BUFFER: usize = 64 * 1024;
/// Bytes that wait in each direction between a connection and who uses it.
const STREAM: usize = 16 * 1024;
/// So many connections one session has. Each watch of an API server is one.
pub const MOST_STREAMS: usize = 128;
/// So many calls wait for the stack.
const BACKLOG: usize = 8;
/// A stream that the other end does not confirm for so long ends.
const SILENCE: inner::Duration = inner::Duration::from_secs(30);
/// How often an idle stream asks whether the other end is there.
const KEEPALIVE: inner::Duration = inner::Duration::from_secs(10);
/// How long a connection may take to stand.
const CONNECT: Duration = Duration::from_secs(5);
/// The clock is not looked at more often.
const SHORTEST: Duration = Duration::from_millis(1);
/// Ports that connections begin from.
const EPHEMERAL: std::ops::Range<u16> = 49152..65535;

/// Which end of a session a stack is. Nobody else is in the session, so the addresses are always the same.
#[derive(Clone, Debug)]
pub enum End {
    /// It begins streams.
    Near,
    /// It accepts what is open now, and nothing else.
    Far(watch::Receiver<Doors>),
}

/// What an end accepts.
#[derive(Clone, Debug)]
pub struct Doors {
    /// Streams to these ports.
    pub ports: Vec<u16>,
    /// So many connections at a time, in whatever state: those that wait for a stream and those that end among them.
    pub most: usize,
    /// Where each connection takes a place, which it may share with other sessions. Without one no stream can begin.
    pub room: Arc<Semaphore>,
}

impl End {
    const NEAR: Ipv6Address = Ipv6Address::new(0xfd4c, 0x6971, 0x6f00, 0, 0, 0, 0, 1);
    const FAR: Ipv6Address = Ipv6Address::new(0xfd4c, 0x6971, 0x6f00, 0, 0, 0, 0, 2);

    fn own(&self) -> Ipv6Address {
        match self {
            Self::Near => Self::NEAR,
            Self::Far(_) => Self::FAR,
        }
    }
}

/// Where packets come from and go to. Who drops its half ends the stack.
pub struct Wire {
    /// Packets from the other end.
    pub incoming: mpsc::Receiver<Vec<u8>>,
    /// Packets to the other end.
    pub outgoing: mpsc::Sender<Vec<u8>>,
}

impl Wire {
    /// Two wires of which each is the other one's end.
    pub fn pair() -> (Self, Self) {
        let ((one_out, other_in), (other_out, one_in)) = (mpsc::channel(PACKETS), mpsc::channel(PACKETS));
        (Self { incoming: one_in, outgoing: one_out }, Self { incoming: other_in, outgoing: other_out })
    }
}

/// A stream that the other end began.
#[derive(Debug)]
pub struct Accepted {
    /// The port that it is for.
    pub port: u16,
    /// What it carries.
    pub stream: DuplexStream,
    /// Its place in [`Doors::room`], which is free again when this and the connection are gone.
    pub place: Place,
}

/// A place in [`Doors::room`].
pub type Place = Arc<OwnedSemaphorePermit>;

/// A TCP stack. It ends when all its handles are gone and its streams have ended, or the wire does.
#[derive(Clone, Debug)]
pub struct Stack {
    wanted: mpsc::Sender<Connect>,
}

#[derive(Debug)]
struct Connect {
    port: u16,
    stands: oneshot::Sender<io::Result<DuplexStream>>,
}

impl Stack {
    /// Starts a stack. What the other end begins comes out of the receiver.
    pub fn start(end: End, wire: Wire) -> (Self, mpsc::Receiver<Accepted>) {
        let (wanted, requests) = mpsc::channel(BACKLOG);
        let (accepted, streams) = mpsc::channel(MOST_STREAMS);
        tokio::spawn(Driver::new(end, wire, requests, accepted));
        (Self { wanted }, streams)
    }

    /// Begins a stream to this port of the other end.
    pub async fn connect(&self, port: u16) -> io::Result<DuplexStream> {
        let (stands, answer) = oneshot::channel();
        let ended = || io::Error::new(io::ErrorKind::NotConnected, "the session has ended");
        self.wanted.send(Connect { port, stands }).await.map_err(|_| ended())?;
        let answer = tokio::time::timeout(CONNECT, answer).await;
        answer
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the other end of the session does not answer"))?
            .map_err(|_| ended())?
    }
}

/// A TCP connection and what it is joined with.
struct Connection {
    handle: SocketHandle,
    side: Side,
}

enum Side {
    /// Waits for the other end to begin.
    Listening(u16, Place),
    /// Has not been answered yet.
    Connecting(oneshot::Sender<io::Result<DuplexStream>>),
    Joined {
        stream: DuplexStream,
        /// Our side has said all, and so was told.
        sent_end: bool,
        /// The other end has said all, and so was passed on.
        received_end: bool,
    },
}

struct Driver {
    end: End,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: Vec<Connection>,
    /// Places of the connections that the other end began.
    places: Vec<(SocketHandle, Place)>,
    packets: Packets,
    incoming: mpsc::Receiver<Vec<u8>>,
    outgoing: PollSender<Vec<u8>>,
    requests: Option<mpsc::Receiver<Connect>>,
    accepted: mpsc::Sender<Accepted>,
    next_port: u16,
    start: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Driver {
    fn new(end: End, wire: Wire, requests: mpsc::Receiver<Connect>, accepted: mpsc::Sender<Accepted>) -> Self {
        let mut packets = Packets::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rand::random();
        let mut interface = Interface::new(config, &mut packets, inner::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // There is room for more than one.
            let _ = addresses.push(IpCidr::new(IpAddress::Ipv6(end.own()), 64));
        });
        let mut driver = Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            connections: Vec::new(),
            places: Vec::new(),
            packets,
            incoming: wire.incoming,
            outgoing: PollSender::new(wire.outgoing),
            requests: Some(requests),
            accepted,
            next_port: rand::random_range(EPHEMERAL),
            start: Instant::now(),
            alarm: Box::pin(sleep_until(Instant::now())),
            end,
        };
        driver.listen();
        driver
    }

    fn now(&self) -> inner::Instant {
        inner::Instant::from_micros(i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    fn socket() -> tcp::Socket<'static> {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_timeout(Some(SILENCE));
        socket.set_keep_alive(Some(KEEPALIVE));
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(tcp::CongestionControl::Cubic);
        socket
    }

    /// Sees to it that the next connection finds somebody on each open port, as long as there may be more, and on no other one.
    fn listen(&mut self) {
        let End::Far(doors) = &self.end else { return };
        let doors = doors.borrow().clone();
        let sockets = &mut self.sockets;
        self.connections.retain(|connection| {
            let is_closed = matches!(connection.side, Side::Listening(port, _) if !doors.ports.contains(&port));
            if is_closed {
                sockets.get_mut::<tcp::Socket>(connection.handle).abort();
            }
            !is_closed
        });
        for port in doors.ports {
            let waits = |connection: &Connection| {
                matches!(connection.side, Side::Listening(on, _) if on == port)
                    && self.sockets.get::<tcp::Socket>(connection.handle).state() == tcp::State::Listen
            };
            if self.sockets.iter().count() >= doors.most || self.connections.iter().any(waits) {
                continue;
            }
            let Ok(place) = doors.room.clone().try_acquire_owned().map(Arc::new) else { continue };
            let mut socket = Self::socket();
            if socket.listen(port).is_ok() {
                let handle = self.sockets.add(socket);
                self.places.push((handle, place.clone()));
                self.connections.push(Connection { handle, side: Side::Listening(port, place) });
            }
        }
    }

    fn begin(&mut self, request: Connect) {
        if self.sockets.iter().count() >= MOST_STREAMS {
            let error = io::Error::new(io::ErrorKind::QuotaExceeded, "the session carries as many streams as it may");
            drop(request.stands.send(Err(error)));
            return;
        }
        self.next_port = self.free_port();
        let mut socket = Self::socket();
        let remote = (IpAddress::Ipv6(End::FAR), request.port);
        match socket.connect(self.interface.context(), remote, self.next_port) {
            Ok(()) => {
                let handle = self.sockets.add(socket);
                self.connections.push(Connection { handle, side: Side::Connecting(request.stands) });
            }
            Err(error) => drop(request.stands.send(Err(io::Error::other(error.to_string())))),
        }
    }

    /// The next port that no connection has; there are more than connections.
    fn free_port(&self) -> u16 {
        let used = |port: u16| {
            let mut sockets = self.sockets.iter();
            sockets.any(|(_, Socket::Tcp(socket))| socket.local_endpoint().is_some_and(|local| local.port == port))
        };
        let next = |port: u16| if port + 1 < EPHEMERAL.end { port + 1 } else { EPHEMERAL.start };
        let mut port = next(self.next_port);
        while used(port) {
            port = next(port);
        }
        port
    }

    /// Takes what was asked for and what came in, if the wire is still there: whether there may be more.
    fn take(&mut self, context: &mut Context<'_>) -> Option<bool> {
        while let Some(requests) = &mut self.requests {
            match requests.poll_recv(context) {
                Poll::Ready(Some(request)) => self.begin(request),
                Poll::Ready(None) => self.requests = None,
                Poll::Pending => break,
            }
        }
        while self.packets.incoming.len() < PACKETS {
            match self.incoming.poll_recv(context) {
                Poll::Ready(Some(packet)) => self.packets.incoming.push_back(packet),
                Poll::Ready(None) => return None,
                Poll::Pending => return (!self.outgoing.is_closed()).then_some(false),
            }
        }
        (!self.outgoing.is_closed()).then_some(true)
    }

    /// Hands out packets as far as there is room; the stack holds back what does not fit. Whether the wire is still there.
    fn give(&mut self, context: &mut Context<'_>) -> bool {
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

    /// Whether nobody can ever ask for anything more.
    fn is_over(&self) -> bool {
        let listens = |connection: &Connection| matches!(connection.side, Side::Listening(..));
        self.requests.is_none()
            && (matches!(self.end, End::Near) || self.accepted.is_closed())
            && self.connections.iter().all(listens)
            && self.sockets.iter().count() == self.connections.len()
    }

    /// Moves bytes between connections and streams; whether anything moved.
    fn join(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        for connection in std::mem::take(&mut self.connections) {
            let socket = self.sockets.get_mut::<tcp::Socket>(connection.handle);
            let (side, progress) = advance(socket, connection.side, &self.accepted, context);
            moved |= progress;
            match side {
                Some(side) => self.connections.push(Connection { side, ..connection }),
                // Nor does it wait for packets that are late: each connection has a port of its own.
                None => socket.abort(),
            }
        }
        let kept: Vec<SocketHandle> = self.connections.iter().map(|connection| connection.handle).collect();
        let over: Vec<SocketHandle> = self
            .sockets
            .iter()
            .filter(|(handle, Socket::Tcp(socket))| !kept.contains(handle) && has_nothing_to_say(socket))
            .map(|(handle, _)| handle)
            .collect();
        for handle in over {
            self.sockets.remove(handle);
            self.places.retain(|(of, _)| *of != handle);
        }
        if self.packets.reached.len() > self.sockets.iter().count() {
            let ports = |socket: &tcp::Socket<'_>| Some((socket.local_endpoint()?.port, socket.remote_endpoint()?.port));
            let open: HashSet<_> = self.sockets.iter().filter_map(|(_, Socket::Tcp(socket))| ports(socket)).collect();
            self.packets.reached.retain(|ports, _| open.contains(ports));
        }
        moved
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let Some(is_more) = this.take(context) else { return Poll::Ready(()) };
            let now = this.now();
            this.listen();
            // One packet at a time, so that each new connection finds somebody.
            while this.interface.poll_ingress_single(now, &mut this.packets, &mut this.sockets) != PollIngressSingleResult::None {
                this.listen();
            }
            this.interface.poll(now, &mut this.packets, &mut this.sockets);
            let moved = this.join(context);
            if !this.give(context) || this.is_over() {
                return Poll::Ready(());
            }
            let is_full = this.packets.outgoing.len() >= PACKETS;
            if moved || ((is_more || !this.packets.incoming.is_empty()) && !is_full) {
                continue;
            }
            // When there is room again, the wire says so.
            let due = this.interface.poll_delay(now, &this.sockets).filter(|_| !is_full);
            let Some(due) = due else { return Poll::Pending };
            this.alarm.as_mut().reset(Instant::now() + Duration::from_micros(due.total_micros()).max(SHORTEST));
            if this.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// It has ended, and the other end was told.
fn has_nothing_to_say(socket: &tcp::Socket<'_>) -> bool {
    !socket.is_open() && socket.remote_endpoint().is_none()
}

/// What becomes of a connection, `None` if it is over, and whether bytes moved.
fn advance(
    socket: &mut tcp::Socket<'_>,
    side: Side,
    accepted: &mpsc::Sender<Accepted>,
    context: &mut Context<'_>,
) -> (Option<Side>, bool) {
    let joined = |stream| Side::Joined { stream, sent_end: false, received_end: false };
    match side {
        Side::Listening(port, place) if socket.may_send() || socket.may_recv() => {
            let (ours, stream) = duplex(STREAM);
            let taken = accepted.try_send(Accepted { port, stream, place }).is_ok();
            (taken.then(|| joined(ours)), taken)
        }
        // Who began it went away before it stood.
        Side::Listening(..) if !socket.is_open() => (None, false),
        Side::Connecting(stands) if socket.may_send() => {
            let (ours, stream) = duplex(STREAM);
            let taken = stands.send(Ok(stream)).is_ok();
            (taken.then(|| joined(ours)), taken)
        }
        Side::Connecting(stands) if !socket.is_open() => {
            let error = io::Error::new(io::ErrorKind::ConnectionRefused, "the other end of the session refuses");
            drop(stands.send(Err(error)));
            (None, false)
        }
        Side::Connecting(stands) if stands.is_closed() => (None, false),
        Side::Joined { mut stream, mut sent_end, mut received_end } => {
            let mut moved = false;
            while !sent_end && socket.can_send() {
                match socket.send(|space| said(&mut stream, space, context)) {
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
                match socket.recv(|bytes| told(&mut stream, bytes, context)) {
                    Ok(Some(0)) | Err(_) => return (None, true),
                    Ok(Some(_)) => moved = true,
                    Ok(None) => break,
                }
            }
            if !received_end && !socket.can_recv() && !socket.may_recv() {
                received_end = Pin::new(&mut stream).poll_shutdown(context).is_ready();
                moved = true;
            }
            // Nobody is there any more to hear what the other end may say yet.
            let is_gone = sent_end && matches!(Pin::new(&mut stream).poll_write(context, &[]), Poll::Ready(Err(_)));
            let over = match socket.state() {
                tcp::State::Closed | tcp::State::TimeWait => received_end,
                tcp::State::FinWait2 => is_gone,
                _ => false,
            };
            ((!over).then_some(Side::Joined { stream, sent_end, received_end }), moved)
        }
        waiting => (Some(waiting), false),
    }
}

/// Reads from our side into the connection: how much, 0 at its end, or `None` if there is nothing now.
fn said(stream: &mut DuplexStream, space: &mut [u8], context: &mut Context<'_>) -> (usize, Option<usize>) {
    let mut space = ReadBuf::new(space);
    match Pin::new(stream).poll_read(context, &mut space) {
        Poll::Ready(Ok(())) => (space.filled().len(), Some(space.filled().len())),
        Poll::Ready(Err(_)) => (0, Some(0)),
        Poll::Pending => (0, None),
    }
}

/// Writes to our side from the connection: how much, 0 if it is gone, or `None` if it takes nothing now.
fn told(stream: &mut DuplexStream, bytes: &mut [u8], context: &mut Context<'_>) -> (usize, Option<usize>) {
    match Pin::new(stream).poll_write(context, bytes) {
        Poll::Ready(Ok(count)) => (count, Some(count)),
        Poll::Ready(Err(_)) => (0, Some(0)),
        Poll::Pending => (0, None),
    }
}

#[cfg(test)]
mod tests;
