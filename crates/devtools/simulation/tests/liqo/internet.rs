//! The network between the clusters: streams in memory in the place of TCP.
//!
//! ```text
//!   manager of rome --> Host --> connect(milan, 8443) --> wire, wire --> listener of the Host of milan
//!                                                          late, stopped by a partition, broken by a fault,
//!                                                          ended with the process
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use liqo_controller_runtime::{
    Network,
    network::{AddressFilter, BoxNetworkStream, Listener},
    watch,
};
use liqo_simulation::Draws;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex, split},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

/// Bytes on the way in one direction.
const WIRE_LEN: usize = 256 * 1024;
/// How long one waits for an address at which nobody is.
const NOBODY_ANSWERS: Duration = Duration::from_secs(130);

/// Whoever listens: where connections arrive, and when the process has ended.
#[derive(Clone)]
struct Listening {
    arrivals: mpsc::UnboundedSender<(BoxNetworkStream, SocketAddr)>,
    ended: CancellationToken,
}

/// Faults between clusters. Chances are in thousandths of the messages; one is often a request, an
/// answer or an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireFaults {
    /// It gets lost, and both ends see that the connection is closed. The sender of a request
    /// cannot know whether it arrived.
    pub broken: u32,
    /// It arrives after less than `lateness`, and so does all that follows.
    pub late: u32,
    pub lateness: Duration,
}

/// The faults, and what has gone wrong so far.
struct Wire {
    faults: WireFaults,
    draws: Draws,
    counts: BTreeMap<&'static str, u64>,
}

impl Wire {
    fn strikes(&mut self, kind: &'static str, chance: u32) -> bool {
        let strikes = chance > 0 && self.draws.per_mille(chance);
        if strikes {
            *self.counts.entry(kind).or_default() += 1;
        }
        strikes
    }

    /// How much later what is sent now arrives; `None` if the connection breaks.
    fn delay(&mut self) -> Option<Duration> {
        if self.strikes("connection broken", self.faults.broken) {
            return None;
        }
        let is_late = self.strikes("message late", self.faults.late);
        Some(if is_late {
            self.draws.up_to(self.faults.lateness)
        } else {
            Duration::ZERO
        })
    }
}

/// Everything that can be reached. Clones are the same.
#[derive(Clone)]
pub struct Internet(Arc<Shared>);

struct Shared {
    listeners: Mutex<BTreeMap<SocketAddr, Listening>>,
    /// The addresses of Services, and of the processes that may answer there.
    services: Mutex<BTreeMap<SocketAddr, Vec<SocketAddr>>>,
    /// From whom nothing reaches whom.
    cuts: watch::Sender<BTreeSet<(IpAddr, IpAddr)>>,
    wire: Mutex<Wire>,
    /// How long bytes take from one machine to another.
    latency: Duration,
}

impl Internet {
    pub fn new(latency: Duration, seed: u64) -> Self {
        let wire = Wire {
            faults: WireFaults::default(),
            draws: Draws::new(seed),
            counts: BTreeMap::new(),
        };
        Self(Arc::new(Shared {
            listeners: Mutex::default(),
            services: Mutex::default(),
            cuts: watch::channel(BTreeSet::new()).0,
            wire: Mutex::new(wire),
            latency,
        }))
    }

    /// A process at this address.
    pub fn host(&self, address: IpAddr) -> Host {
        Host {
            internet: self.clone(),
            address,
            ended: CancellationToken::new(),
        }
    }

    /// The first of these processes that listens answers at the address of the Service.
    pub fn add_service(&self, address: SocketAddr, processes: Vec<SocketAddr>) {
        self.0.services.lock().insert(address, processes);
    }

    fn process_at(&self, address: SocketAddr) -> SocketAddr {
        let (services, listeners) = (self.0.services.lock(), self.0.listeners.lock());
        let listens = |process: &&SocketAddr| {
            listeners
                .get(*process)
                .is_some_and(|open| !open.arrivals.is_closed())
        };
        services
            .get(&address)
            .and_then(|processes| processes.iter().find(listens))
            .copied()
            .unwrap_or(address)
    }

    /// From now on nothing reaches `to` from `from`, until [`Internet::heal`].
    pub fn cut(&self, from: IpAddr, to: IpAddr) {
        self.0.cuts.send_modify(|cuts| _ = cuts.insert((from, to)));
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.0.cuts.send_modify(BTreeSet::clear);
    }

    /// Sets the faults between clusters from now on.
    pub fn set_faults(&self, faults: WireFaults) {
        self.0.wire.lock().faults = faults;
    }

    /// How often something went wrong between clusters, by kind.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.wire.lock().counts.clone()
    }

    async fn opened(&self, from: IpAddr, to: IpAddr) {
        // The sender lives as long as this.
        let _ = self
            .0
            .cuts
            .subscribe()
            .wait_for(|cuts| !cuts.contains(&(from, to)))
            .await;
    }

    /// Carries bytes in one direction until either end has gone, or the connection breaks.
    async fn carry(
        self,
        (from, to): (IpAddr, IpAddr),
        mut source: impl AsyncRead + Unpin,
        mut sink: impl AsyncWrite + Unpin,
        broken: CancellationToken,
    ) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(len @ 1..) = source.read(&mut buffer).await {
            let delay = if is_of_another_cluster(from, to) {
                self.0.wire.lock().delay()
            } else {
                Some(Duration::ZERO)
            };
            let Some(delay) = delay else {
                return broken.cancel();
            };
            tokio::time::sleep(self.0.latency + delay).await;
            self.opened(from, to).await;
            if sink.write_all(&buffer[..len]).await.is_err() {
                return;
            }
        }
        let _ = sink.shutdown().await;
    }
}

/// Each cluster has a network of its own, whose number is in the second byte.
fn is_of_another_cluster(from: IpAddr, to: IpAddr) -> bool {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => from.octets()[..2] != to.octets()[..2],
        _ => true,
    }
}

/// The view of one process on the internet. It ends with the process.
#[derive(Clone)]
pub struct Host {
    internet: Internet,
    address: IpAddr,
    ended: CancellationToken,
}

impl fmt::Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the host {}", self.address)
    }
}

impl Host {
    /// Ends all connections, and what listens.
    pub fn end(&self) {
        self.ended.cancel();
        self.internet
            .0
            .listeners
            .lock()
            .retain(|address, _| address.ip() != self.address);
    }

    async fn call(self, to: SocketAddr) -> io::Result<(BoxNetworkStream, SocketAddr)> {
        let (from, internet) = (self.address, &self.internet);
        let to = internet.process_at(to);
        tokio::time::sleep(internet.0.latency).await;
        internet.opened(from, to.ip()).await;
        internet.opened(to.ip(), from).await;
        let found = internet.0.listeners.lock().get(&to).cloned();
        let Some(listening) = found else {
            let is_known = internet
                .0
                .listeners
                .lock()
                .keys()
                .any(|address| address.ip() == to.ip());
            if !is_known {
                tokio::time::sleep(NOBODY_ANSWERS).await;
            }
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let ((near, near_wire), (far, far_wire)) = (duplex(WIRE_LEN), duplex(WIRE_LEN));
        let ((from_near, to_near), (from_far, to_far)) = (split(near_wire), split(far_wire));
        let broken = CancellationToken::new();
        let there = internet
            .clone()
            .carry((from, to.ip()), from_near, to_far, broken.clone());
        let back = internet
            .clone()
            .carry((to.ip(), from), from_far, to_near, broken.clone());
        let wires = broken.run_until_cancelled_owned(async move { tokio::join!(there, back) });
        let (ended, there_ended) = (self.ended.clone(), listening.ended);
        tokio::spawn(ended.run_until_cancelled_owned(there_ended.run_until_cancelled_owned(wires)));
        let caller = SocketAddr::new(from, 0);
        listening
            .arrivals
            .send((Box::new(far), caller))
            .map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok((Box::new(near), to))
    }
}

impl Network for Host {
    fn connect(
        &self,
        host: &str,
        port: u16,
        _: AddressFilter,
    ) -> BoxFuture<'static, io::Result<(BoxNetworkStream, SocketAddr)>> {
        let (this, address) = (self.clone(), host.parse());
        Box::pin(async move {
            let address =
                address.map_err(|_| io::Error::new(io::ErrorKind::NotFound, "no such name"))?;
            this.call(SocketAddr::new(address, port)).await
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let (sender, arrivals) = mpsc::unbounded_channel();
        let address = SocketAddr::new(self.address, address.port());
        let (internet, ended) = (self.internet.clone(), self.ended.clone());
        Box::pin(async move {
            let mut listeners = internet.0.listeners.lock();
            if listeners
                .get(&address)
                .is_some_and(|open| !open.arrivals.is_closed())
            {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            listeners.insert(
                address,
                Listening {
                    arrivals: sender,
                    ended: ended.clone(),
                },
            );
            Ok(Box::new(Door {
                arrivals: tokio::sync::Mutex::new(arrivals),
                ended,
            }) as Box<dyn Listener>)
        })
    }
}

struct Door {
    arrivals: tokio::sync::Mutex<mpsc::UnboundedReceiver<(BoxNetworkStream, SocketAddr)>>,
    ended: CancellationToken,
}

impl Listener for Door {
    fn accept(&self) -> BoxFuture<'_, io::Result<(BoxNetworkStream, SocketAddr)>> {
        Box::pin(async move {
            let mut arrivals = self.arrivals.lock().await;
            match self
                .ended
                .run_until_cancelled(arrivals.recv())
                .await
                .flatten()
            {
                Some(arrived) => Ok(arrived),
                None => std::future::pending().await,
            }
        })
    }
}
