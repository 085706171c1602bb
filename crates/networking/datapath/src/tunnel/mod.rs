//! A WireGuard endpoint in user space. `interface` says what callers can ask for; `userspace`
//! starts the threads.
//!
//! gotatun's `Tunn`, unmodified, is the protocol: handshake, keys, replay window, timers, cookies.
//! This module reads packets, cuts them, spreads them over remotes, joins them and writes them. One
//! thread carries packets out, one for each socket carries packets in, one drives the timers. They
//! share only the locks of sessions, taken once a batch.
//! ```text
//!   out      TUN device                                                                       UDP socket
//!  (device)  64 KiB a read  -> segment -> prefixes, spread -> sessions: encrypt -> group ---> 64 datagrams a call
//!                              (packets)  (which remote)      (one lock a batch)   (one size)
//!
//!   in       TUN device                                                                       UDP socket
//!  (socket)  64 KiB a write <- coalesce <- prefixes <------- sessions: decrypt <- by index <- 64 datagrams a call
//!                              (one flow)  (its own source?)                      (whose session)
//! ```

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
pub use direct::{DirectPathConfig, LocalAddresses};
pub use fake::FakeTunnel;
pub use interface::{
    EndpointConfig, InwardChannel, RemoteConfig, Tunnel, TunnelError, TunnelRemoteState,
    TunnelState,
};
pub use keys::{InvalidKey, PrivateKey, PublicKey};
pub use measure::PathMeasurement;
pub use userspace::UserspaceTunnel;
