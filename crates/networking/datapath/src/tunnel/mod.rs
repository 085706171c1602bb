//! A WireGuard endpoint in user space.
//!
//! gotatun's `Tunn`, unmodified, is the protocol: handshake, keys, replay window, timers, cookies. On the wire this tunnel looks like the
//! kernel's WireGuard. The code here is around it: it reads packets, cuts them, spreads them over remotes, joins them and writes them.
//! One thread carries packets out, one per socket carries packets in, and one drives the timers. They share nothing but the locks of
//! sessions, which they take once per batch.
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
//! **Several gateways of one cluster.** In the kernel's WireGuard a prefix belongs to one peer. Here several remotes may have the same
//! prefixes. Outgoing packets are spread over the enabled ones by the low bits of their addresses ([`liqo_network_model::spread`]);
//! incoming packets are accepted from each of them.
//!
//! **Changing keys without a pause.** A peer's new key is one more remote with the same prefixes. For our own new key, the former one
//! stays as [`Endpoint::previous_key`]: its sessions go on until the new ones are established, and peers that know only the former key
//! still reach us.
//!
//! **Measuring.** Every half second the tunnel probes each remote that it sends packets to, inside the session. With more than 125 remotes
//! it probes each less often.
//!
//! **Restarts.** The kernel keeps the device and its routes. A new process starts handshakes with all remotes at known addresses at once,
//! so connections only see a short pause.
//!
//! **Tunnel clients.** Packets of a remote with [`Remote::inward`] stay in this process and never reach the device. [`Tunnel::send`]
//! answers them.
//!
//! **Direct paths.** Packets to some prefixes of a peer, a broker, may go directly to the gateways of a cluster behind it ([`Direct`]), while
//! these answer. They are translated here, so the kernel does not know which way they take.
//!
//! **Bounds.** At most 64 packets wait for a remote that does not answer. A sender of garbage costs no memory, a sender of handshakes a
//! little for a second. Dropped packets are counted by reason.

mod checksum;
mod coalesce;
mod counters;
mod device;
mod direct;
mod fake;
mod group;
mod incoming;
mod interface;
mod keys;
mod live_remote;
mod measure;
mod offload;
mod outgoing;
mod packet;
mod path_selection;
mod prefixes;
mod probe;
mod segment;
mod sessions;
mod shared;
mod socket;
mod timers;
mod userspace;
mod worker;

pub use counters::Dropped;
pub use direct::{Direct, Local};
pub use fake::FakeTunnel;
pub use interface::{Endpoint, Inward, Remote, RemoteState, State, Tunnel, TunnelError};
pub use keys::{InvalidKey, PrivateKey, PublicKey};
pub use measure::Measured;
pub use userspace::UserspaceTunnel;
