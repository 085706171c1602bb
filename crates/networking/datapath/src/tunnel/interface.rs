//! The tunnel's interface: the trait, the wanted endpoint, and the reported state.
//!
//! **Several gateways of one cluster.** In the kernel's WireGuard a prefix belongs to one peer.
//! Here several remotes may have the same prefixes. Outgoing packets are spread over the enabled
//! ones by the low bits of their addresses ([`liqo_network_model::spread`]); incoming packets are
//! accepted from each of them.
//!
//! **Changing keys without a pause.** A peer's new key is one more remote with the same prefixes.
//! For our own new key, the former one stays as [`EndpointConfig::previous_key`]: its sessions go
//! on until the new ones are established, and peers that know only the former key still reach us.
//!
//! **Tunnel clients.** Packets of a remote with [`RemoteConfig::inward`] stay in this process and
//! never reach the device. [`Tunnel::send`] answers them. **Direct paths** around a broker: see
//! `direct`.

use std::{collections::HashSet, io, net::SocketAddr, time::Duration};

use ipnet::IpNet;
use tokio::sync::mpsc;

use super::{
    counters::Dropped,
    direct::DirectPathConfig,
    keys::{PrivateKey, PublicKey},
    measure::PathMeasurement,
};
use crate::relay::is_relay;

/// Carries packets to remotes, encrypted.
pub trait Tunnel: Send + Sync {
    /// Brings the tunnel to the wanted state, from whatever state. Does not disturb what did not
    /// change, and restarts threads that ended. After an error the former state goes on as far as
    /// it can, and the next call tries again. Opens device and sockets in the network namespace of
    /// the calling thread.
    fn apply(&self, wanted: &EndpointConfig) -> Result<(), TunnelError>;

    /// Sends a packet of this process to a remote with [`RemoteConfig::inward`].
    fn send(&self, to: PublicKey, packet: &[u8]);

    fn state(&self) -> TunnelState;

    /// Ends all threads and forgets all sessions. The device and its routes stay.
    fn stop(&self);

    /// Removes the device of this name, whoever created it, and with it all its routes. No error if
    /// it does not exist.
    fn remove_device(&self, name: &str) -> Result<(), TunnelError>;
}

/// The wanted state of this end of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    pub private_key: PrivateKey,
    /// Our former key, while some remotes may not know the new one yet.
    pub previous_key: Option<PrivateKey>,
    /// Addresses of the UDP sockets, usually the unspecified address of each family.
    pub listen: Vec<SocketAddr>,
    /// The name of the TUN device.
    pub device: String,
    /// MTU of the device in bytes. WireGuard adds 60 bytes (IPv4) or 80 bytes (IPv6) on the wire.
    pub mtu: u16,
    pub remotes: Vec<RemoteConfig>,
}

impl EndpointConfig {
    /// Refuses remotes that share a key with each other or with this endpoint.
    pub(super) fn check_keys(&self) -> Result<(), TunnelError> {
        let own = [
            Some(self.private_key.public_key()),
            self.previous_key.as_ref().map(PrivateKey::public_key),
        ];
        let mut keys = HashSet::new();
        for remote in &self.remotes {
            if own.contains(&Some(remote.public_key)) {
                return Err(TunnelError::OwnKey(remote.public_key));
            }
            if !keys.insert(remote.public_key) {
                return Err(TunnelError::DuplicateKey(remote.public_key));
            }
        }
        Ok(())
    }
}

/// The wanted state of one remote: another end of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Identifies the remote. Each remote of an endpoint has another key.
    pub public_key: PublicKey,
    /// The remote's first key, if its key was renewed since. It decides the remote's share of the
    /// flows ([`liqo_network_model::spread`]). Two remotes with the same first key are one gateway;
    /// the last enabled one of them receives its packets.
    pub first_key: Option<PublicKey>,
    /// The remote's address; `None` if it must send first. When the remote sends from another
    /// address, the tunnel answers there. This address takes effect when it changes.
    pub endpoint: Option<SocketAddr>,
    /// The address of our [relay](crate::relay) to the remote, while UDP does not pass. It takes
    /// effect when it changes. Meanwhile the tunnel tries UDP at `endpoint`, and returns to UDP
    /// when that passes.
    pub relay: Option<SocketAddr>,
    /// Interval of keepalives, which keep address translators on the path from forgetting the
    /// connection. Whole seconds.
    pub keepalive: Option<Duration>,
    /// The addresses behind the remote: allowed sources of its packets, and destinations of packets
    /// to it. Others are dropped and counted.
    pub prefixes: Vec<IpNet>,
    /// Whether packets are sent to the remote. Its packets are accepted in any case.
    pub enabled: bool,
    /// The remote's packets go there instead of to the device. Then the remote needs no prefixes
    /// and receives no packets from the device.
    pub inward: Option<InwardChannel>,
    /// Set if the remote is reached through another peer as well, which has the same prefixes:
    /// packets take the direct path while the remote answers on it.
    pub direct: Option<DirectPathConfig>,
}

impl RemoteConfig {
    /// An enabled remote without prefixes, which must send first.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            first_key: None,
            endpoint: None,
            relay: None,
            keepalive: None,
            prefixes: Vec::new(),
            enabled: true,
            inward: None,
            direct: None,
        }
    }
}

/// A channel for a remote's packets. Packets are dropped when it is full.
#[derive(Clone, Debug)]
pub struct InwardChannel(pub mpsc::Sender<Vec<u8>>);

impl PartialEq for InwardChannel {
    fn eq(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

impl Eq for InwardChannel {}

/// The state of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelState {
    /// It was applied and all its threads run.
    pub running: bool,
    /// In the order of [`EndpointConfig::remotes`].
    pub remotes: Vec<TunnelRemoteState>,
    /// Dropped packets that belong to no remote.
    pub dropped: Dropped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelRemoteState {
    pub public_key: PublicKey,
    /// Its current address.
    pub endpoint: Option<SocketAddr>,
    /// Age of the current session.
    pub last_handshake: Option<Duration>,
    /// Time since the last authenticated packet from it.
    pub last_received: Option<Duration>,
    /// Bytes in datagrams to it.
    pub sent_bytes: u64,
    /// Bytes in datagrams from it.
    pub received_bytes: u64,
    pub dropped: Dropped,
    /// Quality of the path to it, while it is enabled. `None` if the remote does not answer probes,
    /// as other implementations of WireGuard.
    pub measured: Option<PathMeasurement>,
    /// Number of the latest probes in a row that are not answered (yet). 0 if it never answered
    /// any.
    pub unanswered: usize,
    /// Whether packets take the [direct path](RemoteConfig::direct) to it now.
    pub is_direct: bool,
}

impl TunnelRemoteState {
    /// Whether a relay carries packets to it.
    pub fn is_relayed(&self) -> bool {
        self.endpoint.as_ref().is_some_and(is_relay)
    }
}

/// Failure to bring a tunnel into the wanted state.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error(
        "cannot open the network device {device}: {source}; does this process have NET_ADMIN and /dev/net/tun, and does no other process use the device?"
    )]
    Device { device: String, source: io::Error },
    #[error("cannot remove the network device {device}: {source}")]
    Remove { device: String, source: io::Error },
    #[error("cannot listen on {address} (UDP): {source}; does another process use the port?")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot start a thread of the tunnel: {0}")]
    Thread(#[source] io::Error),
    #[error("two remotes have the key {0}: each needs its own")]
    DuplicateKey(PublicKey),
    #[error("the remote {0} has the key of this endpoint")]
    OwnKey(PublicKey),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(keys: &[&PrivateKey]) -> EndpointConfig {
        EndpointConfig {
            private_key: PrivateKey::generate(),
            previous_key: None,
            listen: Vec::new(),
            device: "none".into(),
            mtu: 1420,
            remotes: keys
                .iter()
                .map(|key| RemoteConfig::new(key.public_key()))
                .collect(),
        }
    }

    #[test]
    fn each_remote_has_a_key_of_its_own() {
        let (one, two) = (PrivateKey::generate(), PrivateKey::generate());
        assert!(endpoint(&[&one, &two]).check_keys().is_ok());
        assert!(
            matches!(endpoint(&[&one, &two, &one]).check_keys(), Err(TunnelError::DuplicateKey(key)) if key == one.public_key())
        );
    }

    #[test]
    fn no_remote_has_our_key_or_our_previous_one() {
        let key = PrivateKey::generate();
        for own in [
            EndpointConfig {
                private_key: key.clone(),
                ..endpoint(&[&key])
            },
            EndpointConfig {
                previous_key: Some(key.clone()),
                ..endpoint(&[&key])
            },
        ] {
            assert!(matches!(own.check_keys(), Err(TunnelError::OwnKey(_))));
        }
    }
}
