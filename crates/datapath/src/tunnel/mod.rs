//! A WireGuard endpoint in user space.
//!
//! The protocol (handshake, keys, replay window, timers, cookies) is gotatun's `Tunn`, unmodified; on the wire we cannot be told from
//! the kernel's WireGuard. Ours is what is around it: how packets are read, cut, spread over remotes, joined and written. One
//! thread carries packets out, one for each socket carries packets in, one looks at the clock; none of them waits for another but
//! for the lock of a session, taken once for a batch.
//!
//! ```text
//!   out      TUN device                                                                           UDP socket
//!  (device)  up to 64 KiB -> segment -> prefixes, spread -> sessions: encrypt -> group ----------> up to 64 datagrams
//!            in one read     (packets)  (which remote)      (one lock a batch)   (one size)        in one call
//!
//!   in       TUN device                                                                           UDP socket
//!  (socket)  up to 64 KiB <- coalesce <- prefixes <------- sessions: decrypt <- by index <-------- up to 64 datagrams
//!            in one write   (one flow)   (its own source?)                      (whose session)    in one call
//! ```
//!
//! **Several gateways, one cluster.** Unlike the kernel's WireGuard, where a prefix belongs to one peer, several remotes may have the
//! same prefixes. What goes out is spread over those that are enabled, by the low bits of its addresses ([`liqo_network::spread`]); what
//! comes in is taken from each of them.
//!
//! **Changing keys without a pause.** A peer's new key is one more remote with the same prefixes. Our own new key goes beside the
//! former one ([`Endpoint::previous_key`]): sessions of the former go on until the new ones stand, and peers that know only the
//! former still reach us.
//!
//! **Measuring.** Each remote that packets are sent to is asked every two seconds, within the session, and answers. When there are very
//! many, each is asked less often.
//!
//! **Restarts.** The device is the kernel's and stays, with its routes; handshakes with all remotes whose address is known begin at
//! once, so connections see a short pause.
//!
//! **Remotes that are not for the kernel.** What comes from a remote with [`Remote::inward`] stays in this process, and [`Tunnel::send`]
//! answers it. It has no way to the device.
//!
//! **Bounds.** For a remote that does not answer 64 packets wait, no more; an address that sends garbage takes none, and one that begins handshakes some for a second. What is dropped is
//! counted by its reason.

mod checksum;
mod coalesce;
mod counters;
mod device;
mod fake;
mod group;
mod incoming;
mod keys;
mod measure;
pub(crate) mod message;
mod offload;
mod outgoing;
mod packet;
mod prefixes;
mod probe;
mod segment;
mod sessions;
mod shared;
mod socket;
mod timers;
mod userspace;
mod way;
mod worker;

use std::{io, net::SocketAddr, time::Duration};

use ipnet::IpNet;
use tokio::sync::mpsc;

pub use counters::Dropped;
pub use fake::FakeTunnel;
pub use keys::{InvalidKey, PrivateKey, PublicKey};
pub use measure::Measured;
pub use userspace::UserspaceTunnel;

/// Something that carries packets to remotes, encrypted.
pub trait Tunnel: Send + Sync {
    /// Makes what runs match what is wanted. May be called at any time and again; what did not change is not disturbed. What died
    /// since, is started again. When it fails, what ran before goes on as far as it can, and the next call tries again.
    /// Device and sockets are those of the network namespace of the thread that calls.
    fn apply(&self, wanted: &Endpoint) -> Result<(), TunnelError>;

    /// Sends a packet to a remote, as if it had come out of the device. For remotes whose packets go [inward](Remote::inward).
    fn send(&self, to: PublicKey, packet: &[u8]);

    /// How it is.
    fn state(&self) -> State;

    /// Ends all work and forgets all sessions. The device stays, and so do the routes to it.
    fn stop(&self);

    /// Removes the device of this name, whoever made it, and with it all routes to it. No error if it is not there.
    fn remove_device(&self, name: &str) -> Result<(), TunnelError>;
}

/// One end of a tunnel: what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Our key.
    pub private_key: PrivateKey,
    /// The key that we had before, while some remotes may not know the new one.
    pub previous_key: Option<PrivateKey>,
    /// Where we wait for datagrams: mostly the unspecified address of each family.
    pub listen: Vec<SocketAddr>,
    /// The name of the network device that packets go through.
    pub device: String,
    /// The largest packet that the device takes. On the wire 60 bytes (IPv4) or 80 (IPv6) are added.
    pub mtu: u16,
    /// The other ends.
    pub remotes: Vec<Remote>,
}

/// Another end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Who it is. Each remote of an endpoint has a key of its own.
    pub public_key: PublicKey,
    /// The first key that it had, if it was renewed: its part of the flows follows from it ([`liqo_network::spread`]). Two remotes with
    /// the same first key are one gateway, and the last of them that is enabled is sent to.
    pub first_key: Option<PublicKey>,
    /// Where it is. Unknown, if it has to begin. When it speaks from another address, it is answered there; an address that is set here
    /// counts from when it changes.
    pub endpoint: Option<SocketAddr>,
    /// Our [relay](crate::relay) to it, while UDP does not pass: counts from when it changes. Meanwhile UDP is tried at `endpoint`, and taken
    /// again when it passes.
    pub relay: Option<SocketAddr>,
    /// How often at least something is sent, which keeps address translators between us and it in the know. Whole seconds.
    pub keepalive: Option<Duration>,
    /// What it may send from, and what is sent to it. Everything else is dropped and counted.
    pub prefixes: Vec<IpNet>,
    /// Whether packets are sent to it. It is listened to in any case.
    pub enabled: bool,
    /// Where its packets go, if they are not for the kernel. Such a remote needs no prefixes: nothing of it gets to the device, and nothing
    /// from there to it.
    pub inward: Option<Inward>,
}

/// A place in this process for packets of a remote. What it has no room for is dropped.
#[derive(Clone, Debug)]
pub struct Inward(pub mpsc::Sender<Vec<u8>>);

impl PartialEq for Inward {
    fn eq(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

impl Eq for Inward {}

/// How a tunnel is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// It was applied, and all its threads run.
    pub running: bool,
    /// Each remote, in the order in which they were applied.
    pub remotes: Vec<RemoteState>,
    /// What was dropped and belongs to no remote.
    pub dropped: Dropped,
}

/// How a remote is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteState {
    /// Who it is.
    pub public_key: PublicKey,
    /// Where it is now.
    pub endpoint: Option<SocketAddr>,
    /// How long ago the session began that is used now; none, if there is none.
    pub last_handshake: Option<Duration>,
    /// How long ago something came that was truly from it.
    pub last_received: Option<Duration>,
    /// Bytes of datagrams to it.
    pub sent_bytes: u64,
    /// Bytes of datagrams from it.
    pub received_bytes: u64,
    /// Packets that were not carried.
    pub dropped: Dropped,
    /// How the way to it is, if packets are sent to it. Both ends must be ours for that.
    pub measured: Option<Measured>,
    /// So many of the last questions that it was asked are not answered, or not yet; none where it never answered any.
    pub unanswered: usize,
}

impl RemoteState {
    /// Whether a relay carries what is sent to it, and not UDP.
    pub fn is_relayed(&self) -> bool {
        self.endpoint.as_ref().is_some_and(crate::relay::is_relay)
    }
}

/// Why a tunnel is not as it is wanted.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The device cannot be made or attached to.
    #[error(
        "cannot open the network device {device}: {source}; does this process have NET_ADMIN and /dev/net/tun, and does no other process use the device?"
    )]
    Device {
        /// Its name.
        device: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The device cannot be removed.
    #[error("cannot remove the network device {device}: {source}")]
    Remove {
        /// Its name.
        device: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The socket cannot be opened.
    #[error("cannot listen on {address} (UDP): {source}; does another process use the port?")]
    Listen {
        /// Its address.
        address: SocketAddr,
        /// What the kernel says.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread of the tunnel: {0}")]
    Thread(#[source] io::Error),
    /// Two remotes have one key.
    #[error("two remotes have the key {0}: each needs its own")]
    DuplicateKey(PublicKey),
    /// A remote has our own key.
    #[error("the remote {0} has the key of this endpoint")]
    OwnKey(PublicKey),
}
