//! The consumer's end: WireGuard over UDP sockets of the process, with a [`Stack`] inside.
//!
//! All gateways of the other cluster are called at all their addresses until one answers; that one is spoken to as long as it is heard,
//! and then all are called again. Streams do not survive that: another one does not know them, and says so at once.
//!
//! While a gateway's key is renewed it has two, and with several addresses it is met several times: each key at each address is a
//! candidate, and which candidates are one gateway follows from the keys and addresses that they share. A gateway speaks by whichever of
//! them it likes.

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

use crate::stack::{End, Stack, Wire};

/// A gateway that says nothing for so long is not there any more: what is in use is spoken to more often, and answers.
const SILENCE: Duration = Duration::from_secs(8);
/// How often something is said to the gateway, in seconds.
const KEEPALIVE: u16 = 5;
/// How often all gateways are called while none answers: at first, and after twice as long each time up to this.
const CALL: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often names are looked up while none answers, and at most where there is a new one.
const LOOK_UP: Duration = Duration::from_secs(30);
const LOOK_UP_NEW: Duration = Duration::from_secs(5);
/// How long that may take.
const LOOKING: Duration = Duration::from_secs(2);
/// So many addresses are called at most: who the gateways are may be what the other cluster said.
const MOST_ADDRESSES: usize = 64;
/// How exact the protocol's timers are.
const TICK: Duration = Duration::from_millis(250);
/// How long a stream waits for a session: less than any call takes at most, so that it is said what is missing.
const PATIENCE: Duration = Duration::from_secs(2);
/// The largest datagram.
const LARGEST: usize = 2048;

/// A gateway of the other cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its WireGuard key.
    pub public_key: [u8; 32],
    /// Where it is, `address:port`.
    pub endpoints: Vec<String>,
}

/// The way to another cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Way {
    /// Our key.
    pub private_key: [u8; 32],
    /// Its gateways.
    pub gateways: Vec<Gateway>,
}

/// A session with a cluster, as long as this is held and it was not [ended](Passage::end).
#[derive(Debug)]
pub struct Passage {
    stack: Stack,
    heard_at: watch::Receiver<Option<SocketAddr>>,
    gateways: watch::Sender<Vec<Gateway>>,
    until: CancellationToken,
    _until: DropGuard,
}

/// Begins to call.
pub fn dial(way: Way) -> io::Result<Passage> {
    start(way, may_be_called)
}

fn start(way: Way, may_be_called: fn(&SocketAddr) -> bool) -> io::Result<Passage> {
    let (gateways, known) = watch::channel(way.gateways);
    let session = Session::new(way.private_key, known, may_be_called)?;
    let (inside, outside) = Wire::pair();
    let (stack, _) = Stack::start(End::Near, inside);
    let (stop, heard_at) = (CancellationToken::new(), session.heard.subscribe());
    tokio::spawn(stop.clone().run_until_cancelled_owned(session.run(outside)));
    Ok(Passage { stack, heard_at, gateways, until: stop.clone(), _until: stop.drop_guard() })
}

impl Passage {
    /// Begins a stream to a port of the other cluster's end.
    pub async fn connect(&self, port: u16) -> io::Result<DuplexStream> {
        let mut heard_at = self.heard_at.clone();
        let error = || io::Error::new(io::ErrorKind::TimedOut, "no gateway of the other cluster answers (UDP)");
        timeout(PATIENCE, heard_at.wait_for(Option::is_some)).await.map_err(|_| error())?.map_err(|_| error())?;
        self.stack.connect(port).await
    }

    /// Calls these gateways from now on. The one that answers now is kept as long as it does.
    pub fn know(&self, gateways: &[Gateway]) {
        self.gateways.send_if_modified(|known| {
            let differs = *known != gateways;
            if differs {
                *known = gateways.to_vec();
            }
            differs
        });
    }

    /// Ends it, whoever holds it still. Two sessions by one key would take the other cluster's answers from each other.
    pub fn end(&self) {
        self.until.cancel();
    }

    /// Where the gateway is that answers.
    pub fn gateway(&self) -> Option<SocketAddr> {
        *self.heard_at.borrow()
    }
}

/// A socket of each family that there is.
struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Sockets {
    fn open() -> io::Result<Self> {
        let open = |any: IpAddr| {
            let socket = std::net::UdpSocket::bind((any, 0))?;
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket)
        };
        match (open(Ipv4Addr::UNSPECIFIED.into()), open(Ipv6Addr::UNSPECIFIED.into())) {
            (Err(error), Err(_)) => Err(error),
            (v4, v6) => Ok(Self { v4: v4.ok(), v6: v6.ok() }),
        }
    }

    /// Sends a datagram. One that is lost is sent again by whoever needs it.
    async fn send(&self, message: WgKind, to: SocketAddr) {
        let Some(socket) = (if to.is_ipv4() { &self.v4 } else { &self.v6 }) else { return };
        if let Err(error) = socket.send_to(&Packet::from(message), to).await {
            tracing::debug!(%error, %to, "cannot send to a gateway");
        }
    }

    async fn receive(&self, four: &mut [u8], six: &mut [u8]) -> (bool, usize, SocketAddr) {
        loop {
            let received = tokio::select! {
                received = from(self.v4.as_ref(), &mut *four) => received.map(|(length, from)| (true, length, from)),
                received = from(self.v6.as_ref(), &mut *six) => received.map(|(length, from)| (false, length, from)),
            };
            match received {
                Ok(received) => return received,
                // An answer by ICMP to what was sent before.
                Err(error) => tracing::debug!(%error, "receiving from gateways"),
            }
        }
    }
}

async fn from(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await,
        None => std::future::pending().await,
    }
}

/// One key at one address.
type Place = ([u8; 32], SocketAddr);

/// A gateway by one of its keys at one of its addresses.
struct Candidate {
    place: Place,
    /// The same for all candidates that are one gateway.
    gateway: usize,
    tunn: Tunn,
}

/// When all are called next.
struct Calls {
    next: Instant,
    pause: Duration,
}

impl Calls {
    fn at_once(now: Instant) -> Self {
        Self { next: now, pause: CALL }
    }

    /// There is somebody new to call.
    fn soon(&mut self, now: Instant) {
        *self = Self { next: self.next.min(now + CALL), pause: CALL };
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            *self = Self { next: now + self.pause, pause: (self.pause * 2).min(LONGEST_PAUSE) };
        }
        is_due
    }
}

struct Session {
    candidates: Vec<Candidate>,
    /// The one that answers, and when it was heard last.
    active: Option<(usize, Instant)>,
    calls: Calls,
    /// Endpoints that are names, and where they led last.
    names: BTreeMap<String, Vec<SocketAddr>>,
    indices: IndexTable,
    limiter: Arc<RateLimiter>,
    sockets: Sockets,
    private_key: x25519::StaticSecret,
    gateways: watch::Receiver<Vec<Gateway>>,
    may_be_called: fn(&SocketAddr) -> bool,
    heard: watch::Sender<Option<SocketAddr>>,
}

impl Session {
    /// With nobody called yet.
    fn new(
        private_key: [u8; 32],
        gateways: watch::Receiver<Vec<Gateway>>,
        may_be_called: fn(&SocketAddr) -> bool,
    ) -> io::Result<Self> {
        let private_key = x25519::StaticSecret::from(private_key);
        Ok(Self {
            candidates: Vec::new(),
            active: None,
            calls: Calls::at_once(Instant::now()),
            names: BTreeMap::new(),
            indices: IndexTable::from_os_rng(),
            limiter: Arc::new(RateLimiter::new(&x25519::PublicKey::from(&private_key), 100)),
            sockets: Sockets::open()?,
            private_key,
            gateways,
            may_be_called,
            heard: watch::Sender::new(None),
        })
    }

    /// Until the stack ends.
    async fn run(mut self, mut wire: Wire) {
        let (mut four, mut six) = (vec![0; LARGEST], vec![0; LARGEST]);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked_up: Option<Instant> = None;
        let mut looking = pin!(Fuse::terminated());
        loop {
            tokio::select! {
                packet = wire.incoming.recv() => match packet {
                    Some(packet) => self.say(&packet).await,
                    None => return,
                },
                (is_v4, length, from) = self.sockets.receive(&mut four, &mut six) => {
                    let datagram = if is_v4 { &four[..length] } else { &six[..length] };
                    if let Some(packet) = self.hear(datagram, from).await
                        && !self.hand_in(packet, &mut wire).await
                    {
                        return;
                    }
                }
                _ = ticks.tick() => {
                    self.tick().await;
                    if self.active.is_some() {
                        continue;
                    }
                    let now = Instant::now();
                    if self.gateways.has_changed().unwrap_or(false) {
                        self.calls.soon(now);
                    }
                    self.arrange();
                    let names = self.names_to_look_up(looked_up.map(|last| now - last));
                    if looking.is_terminated() && !names.is_empty() {
                        looked_up = Some(now);
                        looking.set(look_up(names).fuse());
                    }
                    if !self.candidates.is_empty() && self.calls.is_due(now) {
                        self.call().await;
                    }
                }
                found = &mut looking => {
                    for (name, addresses) in found {
                        // A name that is not found now leads where it did.
                        let known = self.names.entry(name).or_default();
                        *known = addresses.unwrap_or_else(|| std::mem::take(known));
                    }
                    self.calls.soon(Instant::now());
                }
            }
        }
    }

    /// Hands a packet to the stack; whether that is still there. It may be waiting itself for somebody to take packets from it.
    async fn hand_in(&mut self, packet: Vec<u8>, wire: &mut Wire) -> bool {
        loop {
            tokio::select! {
                room = wire.outgoing.reserve() => return room.map(|room| room.send(packet)).is_ok(),
                said = wire.incoming.recv() => match said {
                    Some(said) => self.say(&said).await,
                    None => return false,
                },
            }
        }
    }

    /// The names among the endpoints of gateways, if it is time to look them up.
    fn names_to_look_up(&self, last: Option<Duration>) -> Vec<String> {
        let gateways = self.gateways.borrow();
        let endpoints = gateways.iter().flat_map(|gateway| &gateway.endpoints);
        let names: BTreeSet<&String> = endpoints.filter(|endpoint| endpoint.parse::<SocketAddr>().is_err()).collect();
        let period = if names.iter().all(|name| self.names.contains_key(*name)) { LOOK_UP } else { LOOK_UP_NEW };
        if last.is_some_and(|last| last < period) {
            return Vec::new();
        }
        names.into_iter().take(MOST_ADDRESSES).cloned().collect()
    }

    /// Makes the candidates those that follow from the gateways and their names. Those that are known stay as they are.
    fn arrange(&mut self) {
        let gateways = self.gateways.borrow_and_update().clone();
        self.names.retain(|name, _| gateways.iter().any(|gateway| gateway.endpoints.contains(name)));
        let mut places: Vec<Place> = Vec::new();
        for gateway in &gateways {
            for endpoint in &gateway.endpoints {
                let literal = endpoint.parse::<SocketAddr>().ok();
                let addresses = literal.iter().chain(self.names.get(endpoint).into_iter().flatten());
                for &address in addresses.filter(|address| (self.may_be_called)(address)) {
                    let place = (gateway.public_key, address);
                    if places.len() < MOST_ADDRESSES && !places.contains(&place) {
                        places.push(place);
                    }
                }
            }
        }
        let mut known = std::mem::take(&mut self.candidates);
        let candidate = |(gateway, &place): (usize, &Place)| {
            let tunn = match known.iter().position(|candidate| candidate.place == place) {
                Some(at) => known.swap_remove(at).tunn,
                None => Tunn::new(
                    self.private_key.clone(),
                    x25519::PublicKey::from(place.0),
                    None,
                    Some(KEEPALIVE),
                    self.indices.clone(),
                    self.limiter.clone(),
                ),
            };
            Candidate { place, gateway, tunn }
        };
        self.candidates = which_gateway(&places).into_iter().zip(&places).map(candidate).collect();
    }

    /// Begins a handshake with each gateway.
    async fn call(&mut self) {
        for candidate in &mut self.candidates {
            if let Some(message) = candidate.tunn.format_handshake_initiation(true) {
                self.sockets.send(message.into(), candidate.place.1).await;
            }
        }
    }

    async fn say(&mut self, packet: &[u8]) {
        // Without a gateway it is lost, as on any wire.
        let Some(candidate) = self.active.and_then(|(active, _)| self.candidates.get_mut(active)) else { return };
        if let Some(message) = candidate.tunn.handle_outgoing_packet(Packet::copy_from(packet), None) {
            self.sockets.send(message, candidate.place.1).await;
        }
    }

    /// What a datagram carries, if it is from a gateway and carries something.
    async fn hear(&mut self, datagram: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
        // It says by a number of ours whom it is from; the address is only where to look first.
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by_key(|&number| self.candidates[number].place.1 != from);
        let spoken_to = self.active.and_then(|(active, _)| Some((active, self.candidates.get(active)?.gateway)));
        for number in order {
            let candidate = &mut self.candidates[number];
            let message = Packet::copy_from(datagram).try_into_wg().ok()?;
            // It is always us who call: a gateway that wants to begin is called again when it is silent.
            if matches!(message, WgKind::HandshakeInit(_)) {
                return None;
            }
            let is_proof = !matches!(message, WgKind::CookieReply(_));
            let packet = match candidate.tunn.handle_incoming_packet(message) {
                TunnResult::Err(_) => continue,
                TunnResult::Done => None,
                TunnResult::WriteToNetwork(reply) => {
                    self.sockets.send(reply, candidate.place.1).await;
                    None
                }
                TunnResult::WriteToTunnel(packet) => (!packet.is_empty()).then(|| packet.to_vec()),
            };
            // One gateway is spoken to; that others answer as well is of no use.
            if spoken_to.is_some_and(|(_, gateway)| gateway != candidate.gateway) {
                return None;
            }
            // By the key and at the address that it speaks by itself.
            if is_proof && (packet.is_some() || spoken_to.is_none_or(|(active, _)| active == number)) {
                self.active = Some((number, Instant::now()));
                let address = Some(candidate.place.1);
                self.heard.send_if_modified(|heard| std::mem::replace(heard, address) != address);
            }
            return packet;
        }
        None
    }

    async fn tick(&mut self) {
        if self.active.is_some_and(|(_, heard)| heard.elapsed() >= SILENCE) {
            tracing::info!("a gateway of another cluster does not answer any more");
            self.active = None;
            self.heard.send_replace(None);
            self.calls = Calls::at_once(Instant::now());
        }
        for (number, candidate) in self.candidates.iter_mut().enumerate() {
            // Each has a clock of its own that goes on by this. What is due is said to the one that is spoken to.
            if let Ok(Some(message)) = candidate.tunn.update_timers()
                && self.active.is_some_and(|(active, _)| active == number)
            {
                self.sockets.send(message, candidate.place.1).await;
            }
        }
    }
}

/// A number for each place, the same for those that are one gateway: what has one key, and what is at one address.
fn which_gateway(places: &[Place]) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..places.len()).collect();
    for (at, place) in places.iter().enumerate() {
        for other in 0..at {
            if place.0 == places[other].0 || place.1 == places[other].1 {
                let (from, to) = (numbers[at], numbers[other]);
                numbers.iter_mut().filter(|number| **number == from).for_each(|number| *number = to);
            }
        }
    }
    numbers
}

/// Where names lead; none for one that is not found in time.
async fn look_up(names: Vec<String>) -> Vec<(String, Option<Vec<SocketAddr>>)> {
    let looks = names.into_iter().map(async |name| {
        let found = timeout(LOOKING, lookup_host(&name)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let found = found.inspect_err(|error| tracing::debug!(%error, name, "cannot look up a gateway")).ok();
        let addresses = found.map(Iterator::collect);
        (name, addresses)
    });
    join_all(looks).await
}

/// A gateway is one machine, not this one, and not one that can only be met on the same wire: there a node finds its own helpers.
fn may_be_called(address: &SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let is_near = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    address.port() != 0 && !is_near && !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast()
}

#[cfg(test)]
mod tests;
