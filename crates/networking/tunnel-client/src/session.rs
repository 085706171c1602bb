//! The consumer's side: WireGuard over UDP sockets of this process, with a [`Stack`] inside.
//! [`dial`] starts it.
//!
//! The session calls all gateways of the other cluster at all their addresses until one answers. It
//! uses that gateway as long as it answers, and then calls all of them again. When the gateway
//! changes, open streams are reset.
//!
//! A gateway may have two keys (during renewal) and several addresses. Each key at each address is
//! a candidate. Candidates that share a key or an address are the same gateway, which may answer
//! with any of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{Fuse, FusedFuture as _, join_all},
};
use gotatun::{
    noise::{Tunn, TunnResult, index_table::IndexTable, rate_limiter::RateLimiter},
    packet::{Packet, WgKind},
    x25519,
};
use tokio::{
    io::DuplexStream,
    net::{UdpSocket, lookup_host},
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::stack::{PacketLink, Stack, StackRole};

/// A gateway that sends nothing for this long is gone. It does not answer keepalives, but while
/// there is a peering, it answers the heartbeat, which is sent every three seconds. A gateway that
/// does not hear this side any more sends for longer: its TCP connections repeat what nobody
/// acknowledges.
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(8);
/// Interval of keepalives to the gateway, in seconds.
const KEEPALIVE: u16 = 5;
/// Pause between calls to all gateways while none answers. It doubles each time, up to the maximum.
const MIN_CALL_PAUSE: Duration = Duration::from_secs(1);
const MAX_CALL_PAUSE: Duration = Duration::from_secs(10);
/// Interval of name lookups while no gateway answers, and the shorter one when a name is new.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
const NEW_LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of addresses to call. The list may come from the other cluster, which is not
/// trusted.
const MAX_ADDRESSES: usize = 64;
/// Resolution of WireGuard's timers.
const TICK: Duration = Duration::from_millis(250);
/// Maximum time that a stream waits for a session. Shorter than the timeouts of callers, so that
/// they see this error and not their own.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
/// In bytes.
const MAX_DATAGRAM_LEN: usize = 2048;

/// A gateway of the other cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialedGateway {
    pub public_key: [u8; 32],
    /// `address:port` or `name:port`.
    pub endpoints: Vec<String>,
}

/// The key and the gateways to reach another cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct DialConfig {
    pub private_key: [u8; 32],
    pub gateways: Vec<DialedGateway>,
}

/// A session with another cluster. It ends when this is dropped or
/// [closed](TunnelConnection::close).
#[derive(Debug)]
pub struct TunnelConnection {
    stack: Stack,
    heard_at: watch::Receiver<Option<SocketAddr>>,
    gateways: watch::Sender<Vec<DialedGateway>>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// Starts a session, which calls the gateways at once.
pub fn dial(config: DialConfig) -> io::Result<TunnelConnection> {
    start_session(config, is_allowed_address)
}

fn start_session(
    config: DialConfig,
    is_allowed_address: fn(&SocketAddr) -> bool,
) -> io::Result<TunnelConnection> {
    let (gateways, known) = watch::channel(config.gateways);
    let session = DialedSession::new(config.private_key, known, is_allowed_address)?;
    let (inside, outside) = PacketLink::pair();
    let (stack, _) = Stack::start(StackRole::Client, inside);
    let (stop, heard_at) = (CancellationToken::new(), session.heard.subscribe());
    tokio::spawn(stop.clone().run_until_cancelled_owned(session.run(outside)));
    Ok(TunnelConnection {
        stack,
        heard_at,
        gateways,
        stop: stop.clone(),
        _stop_on_drop: stop.drop_guard(),
    })
}

impl TunnelConnection {
    /// Opens a stream to a port of the other cluster's side.
    pub async fn connect(&self, port: u16) -> io::Result<DuplexStream> {
        let mut heard_at = self.heard_at.clone();
        timeout(SESSION_TIMEOUT, heard_at.wait_for(Option::is_some))
            .await
            .map_err(|_| no_answer())?
            .map_err(|_| no_answer())?;
        self.stack.connect(port).await
    }

    /// Replaces the list of gateways. The session keeps the gateway that it uses as long as that
    /// answers.
    pub fn set_gateways(&self, gateways: &[DialedGateway]) {
        self.gateways.send_if_modified(|known| {
            let differs = *known != gateways;
            if differs {
                *known = gateways.to_vec();
            }
            differs
        });
    }

    /// Ends the session, even if others hold it. Two sessions with one key would take the other
    /// cluster's answers from each other.
    pub fn close(&self) {
        self.stop.cancel();
    }

    /// The address of the gateway in use.
    pub fn gateway(&self) -> Option<SocketAddr> {
        *self.heard_at.borrow()
    }
}

/// One socket for each address family that this machine has.
struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Sockets {
    fn open() -> io::Result<Self> {
        match (
            bind_any_port(Ipv4Addr::UNSPECIFIED.into()),
            bind_any_port(Ipv6Addr::UNSPECIFIED.into()),
        ) {
            (Err(error), Err(_)) => Err(error),
            (v4, v6) => Ok(Self {
                v4: v4.ok(),
                v6: v6.ok(),
            }),
        }
    }

    /// Sends a datagram. The protocols above repeat what gets lost.
    async fn send(&self, message: WgKind, to: SocketAddr) {
        let Some(socket) = (if to.is_ipv4() { &self.v4 } else { &self.v6 }) else {
            return;
        };
        if let Err(error) = socket.send_to(&Packet::from(message), to).await {
            tracing::debug!(%error, %to, "cannot send to a gateway");
        }
    }

    async fn receive(&self, four: &mut [u8], six: &mut [u8]) -> (bool, usize, SocketAddr) {
        loop {
            let received = tokio::select! {
                received = receive_from(self.v4.as_ref(), &mut *four) => received.map(|(length, from)| (true, length, from)),
                received = receive_from(self.v6.as_ref(), &mut *six) => received.map(|(length, from)| (false, length, from)),
            };
            match received {
                Ok(received) => return received,
                // ICMP answered an earlier datagram.
                Err(error) => tracing::debug!(%error, "receiving from gateways"),
            }
        }
    }
}

async fn receive_from(
    socket: Option<&UdpSocket>,
    buffer: &mut [u8],
) -> io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await,
        None => std::future::pending().await,
    }
}

/// A key and an address.
type CandidateId = ([u8; 32], SocketAddr);

/// One of a gateway's keys at one of its addresses.
struct DialCandidate {
    id: CandidateId,
    /// The same number for all candidates of a gateway.
    gateway: usize,
    tunn: Tunn,
}

/// The schedule of calls to all gateways.
struct CallSchedule {
    next: Instant,
    pause: Duration,
}

impl CallSchedule {
    fn at_once(now: Instant) -> Self {
        Self {
            next: now,
            pause: MIN_CALL_PAUSE,
        }
    }

    /// A gateway or an address is new.
    fn call_soon(&mut self, now: Instant) {
        *self = Self {
            next: self.next.min(now + MIN_CALL_PAUSE),
            pause: MIN_CALL_PAUSE,
        };
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            *self = Self {
                next: now + self.pause,
                pause: (self.pause * 2).min(MAX_CALL_PAUSE),
            };
        }
        is_due
    }
}

struct DialedSession {
    candidates: Vec<DialCandidate>,
    /// The candidate in use, and when it last sent something.
    active: Option<(usize, Instant)>,
    calls: CallSchedule,
    /// Endpoints that are names, with their last known addresses.
    names: BTreeMap<String, Vec<SocketAddr>>,
    indices: IndexTable,
    limiter: Arc<RateLimiter>,
    sockets: Sockets,
    private_key: x25519::StaticSecret,
    gateways: watch::Receiver<Vec<DialedGateway>>,
    is_allowed_address: fn(&SocketAddr) -> bool,
    heard: watch::Sender<Option<SocketAddr>>,
}

impl DialedSession {
    fn new(
        private_key: [u8; 32],
        gateways: watch::Receiver<Vec<DialedGateway>>,
        is_allowed_address: fn(&SocketAddr) -> bool,
    ) -> io::Result<Self> {
        let private_key = x25519::StaticSecret::from(private_key);
        Ok(Self {
            candidates: Vec::new(),
            active: None,
            calls: CallSchedule::at_once(Instant::now()),
            names: BTreeMap::new(),
            indices: IndexTable::from_os_rng(),
            limiter: Arc::new(RateLimiter::new(
                &x25519::PublicKey::from(&private_key),
                100,
            )),
            sockets: Sockets::open()?,
            private_key,
            gateways,
            is_allowed_address,
            heard: watch::Sender::new(None),
        })
    }

    /// Runs until the stack ends.
    async fn run(mut self, mut link: PacketLink) {
        let (mut four, mut six) = (vec![0; MAX_DATAGRAM_LEN], vec![0; MAX_DATAGRAM_LEN]);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked_up: Option<Instant> = None;
        let mut lookup = pin!(Fuse::terminated());
        loop {
            tokio::select! {
                packet = link.incoming.recv() => match packet {
                    Some(packet) => self.send(&packet).await,
                    None => return,
                },
                (is_v4, length, from) = self.sockets.receive(&mut four, &mut six) => {
                    let buffer = if is_v4 { &four } else { &six };
                    let Some(datagram) = buffer.get(..length) else { continue };
                    if let Some(packet) = self.receive(datagram, from).await
                        && !self.deliver_packet(packet, &mut link).await
                    {
                        return;
                    }
                }
                _ = ticks.tick() => {
                    self.run_timers().await;
                    if self.active.is_some() {
                        continue;
                    }
                    let now = Instant::now();
                    if self.gateways.has_changed().unwrap_or(false) {
                        self.calls.call_soon(now);
                    }
                    self.update_candidates();
                    let names = self.names_to_look_up(looked_up.map(|last| now - last));
                    if lookup.is_terminated() && !names.is_empty() {
                        looked_up = Some(now);
                        lookup.set(look_up(names).fuse());
                    }
                    if !self.candidates.is_empty() && self.calls.is_due(now) {
                        self.call_candidates().await;
                    }
                }
                answers = &mut lookup => {
                    for (name, addresses) in answers {
                        // A name that is not found now keeps its last addresses.
                        let known = self.names.entry(name).or_default();
                        *known = addresses.unwrap_or_else(|| std::mem::take(known));
                    }
                    self.calls.call_soon(Instant::now());
                }
            }
        }
    }

    /// Hands a packet to the stack, and takes the stack's packets meanwhile, for which it may be
    /// waiting. Returns false when the stack has ended.
    async fn deliver_packet(&mut self, packet: Vec<u8>, link: &mut PacketLink) -> bool {
        loop {
            tokio::select! {
                permit = link.outgoing.reserve() => return permit.map(|permit| permit.send(packet)).is_ok(),
                outgoing = link.incoming.recv() => match outgoing {
                    Some(packet) => self.send(&packet).await,
                    None => return false,
                },
            }
        }
    }

    /// The names among the gateways' endpoints, if it is time to look them up.
    fn names_to_look_up(&self, last: Option<Duration>) -> Vec<String> {
        let gateways = self.gateways.borrow();
        let endpoints = gateways.iter().flat_map(|gateway| &gateway.endpoints);
        let names: BTreeSet<&String> = endpoints
            .filter(|endpoint| endpoint.parse::<SocketAddr>().is_err())
            .collect();
        let period = if names.iter().all(|name| self.names.contains_key(*name)) {
            LOOKUP_INTERVAL
        } else {
            NEW_LOOKUP_INTERVAL
        };
        if last.is_some_and(|last| last < period) {
            return Vec::new();
        }
        names.into_iter().take(MAX_ADDRESSES).cloned().collect()
    }

    /// Derives the candidates from the gateways and their names. Known candidates keep their state.
    fn update_candidates(&mut self) {
        let gateways = self.gateways.borrow_and_update().clone();
        self.names.retain(|name, _| {
            gateways
                .iter()
                .any(|gateway| gateway.endpoints.contains(name))
        });
        let mut ids: Vec<CandidateId> = Vec::new();
        for gateway in &gateways {
            for endpoint in &gateway.endpoints {
                let literal = endpoint.parse::<SocketAddr>().ok();
                let addresses = literal
                    .iter()
                    .chain(self.names.get(endpoint).into_iter().flatten());
                for &address in addresses.filter(|address| (self.is_allowed_address)(address)) {
                    let id = (gateway.public_key, address);
                    if ids.len() < MAX_ADDRESSES && !ids.contains(&id) {
                        ids.push(id);
                    }
                }
            }
        }
        let mut known = std::mem::take(&mut self.candidates);
        self.candidates.clear();
        for (gateway, &id) in number_gateways(&ids).into_iter().zip(&ids) {
            let tunn = match known.iter().position(|candidate| candidate.id == id) {
                Some(at) => known.swap_remove(at).tunn,
                None => Tunn::new(
                    self.private_key.clone(),
                    x25519::PublicKey::from(id.0),
                    None,
                    Some(KEEPALIVE),
                    self.indices.clone(),
                    self.limiter.clone(),
                ),
            };
            self.candidates.push(DialCandidate { id, gateway, tunn });
        }
    }

    /// Starts a handshake with each candidate.
    async fn call_candidates(&mut self) {
        for candidate in &mut self.candidates {
            if let Some(message) = candidate.tunn.format_handshake_initiation(true) {
                self.sockets.send(message.into(), candidate.id.1).await;
            }
        }
    }

    async fn send(&mut self, packet: &[u8]) {
        // Without a gateway the packet is lost, as on any link.
        let Some(candidate) = self
            .active
            .and_then(|(active, _)| self.candidates.get_mut(active))
        else {
            return;
        };
        if let Some(message) = candidate
            .tunn
            .handle_outgoing_packet(Packet::copy_from(packet), None)
        {
            self.sockets.send(message, candidate.id.1).await;
        }
    }

    /// The packet in a datagram, if a gateway sent it and it carries one.
    async fn receive(&mut self, datagram: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
        // The receiver index in the datagram names the candidate's session; candidates at this
        // address are only tried first.
        let in_use = self
            .active
            .and_then(|(active, _)| Some((active, self.candidates.get(active)?.gateway)));
        let mut candidates: Vec<(usize, &mut DialCandidate)> =
            self.candidates.iter_mut().enumerate().collect();
        candidates.sort_by_key(|(_, candidate)| candidate.id.1 != from);
        for (number, candidate) in candidates {
            let message = Packet::copy_from(datagram).try_into_wg().ok()?;
            // Only this side starts handshakes.
            if matches!(message, WgKind::HandshakeInit(_)) {
                return None;
            }
            let is_proof = !matches!(message, WgKind::CookieReply(_));
            let packet = match candidate.tunn.handle_incoming_packet(message) {
                TunnResult::Err(_) => continue,
                TunnResult::Done => None,
                TunnResult::WriteToNetwork(reply) => {
                    self.sockets.send(reply, candidate.id.1).await;
                    None
                }
                TunnResult::WriteToTunnel(packet) => (!packet.is_empty()).then(|| packet.to_vec()),
            };
            // Answers of other gateways than the one in use are ignored.
            if in_use.is_some_and(|(_, gateway)| gateway != candidate.gateway) {
                return None;
            }
            // Answer with the key and at the address that the gateway itself uses.
            if is_proof && (packet.is_some() || in_use.is_none_or(|(active, _)| active == number)) {
                self.active = Some((number, Instant::now()));
                let address = Some(candidate.id.1);
                self.heard
                    .send_if_modified(|heard| std::mem::replace(heard, address) != address);
            }
            return packet;
        }
        None
    }

    async fn run_timers(&mut self) {
        if self
            .active
            .is_some_and(|(_, heard)| heard.elapsed() >= GATEWAY_TIMEOUT)
        {
            tracing::info!("a gateway of another cluster stopped answering");
            self.active = None;
            self.heard.send_replace(None);
            self.calls = CallSchedule::at_once(Instant::now());
        }
        for (number, candidate) in self.candidates.iter_mut().enumerate() {
            // Every candidate's timers must advance, but only the one in use sends.
            if let Ok(Some(message)) = candidate.tunn.update_timers()
                && self.active.is_some_and(|(active, _)| active == number)
            {
                self.sockets.send(message, candidate.id.1).await;
            }
        }
    }
}

fn bind_any_port(address: IpAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind((address, 0))?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

fn no_answer() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "no gateway of the other cluster answers (UDP)",
    )
}

/// A number for each candidate. Candidates that share a key or an address get the same number: they
/// are one gateway.
fn number_gateways(ids: &[CandidateId]) -> Vec<usize> {
    let mut numbered: Vec<(usize, &CandidateId)> = Vec::new();
    for (new, id) in ids.iter().enumerate() {
        let joined: Vec<usize> = numbered
            .iter()
            .filter(|(_, other)| id.0 == other.0 || id.1 == other.1)
            .map(|(number, _)| *number)
            .collect();
        for (number, _) in &mut numbered {
            if joined.contains(number) {
                *number = new;
            }
        }
        numbered.push((new, id));
    }
    numbered.into_iter().map(|(number, _)| number).collect()
}

/// The addresses of each name, or `None` if it is not found in time.
async fn look_up(names: Vec<String>) -> Vec<(String, Option<Vec<SocketAddr>>)> {
    let looks = names.into_iter().map(async |name| {
        let found = timeout(LOOKUP_TIMEOUT, lookup_host(&name))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let found = found
            .inspect_err(|error| tracing::debug!(%error, name, "cannot look up a gateway"))
            .ok();
        let addresses = found.map(Iterator::collect);
        (name, addresses)
    });
    join_all(looks).await
}

/// Whether a gateway may be called at this address. It must be another machine, and not a
/// link-local one: at link-local addresses clouds serve a machine's identity and secrets.
pub fn is_allowed_address(address: &SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let is_near = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    address.port() != 0
        && !is_near
        && !ip.is_loopback()
        && !ip.is_unspecified()
        && !ip.is_multicast()
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
