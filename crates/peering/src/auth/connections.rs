//! Which connections to the auth endpoint stay open.
//!
//! Whoever connects is a stranger. A connection is proven when a consumer that may get something signed its request; until then it makes
//! room for newer ones. An honest caller needs some milliseconds, so silent ones cannot keep it out.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub connections: usize,
    /// A new connection ends the oldest unproven one.
    pub unproven: usize,
    /// Connections from one IPv4 address or one IPv6 /64 network. A new one ends the oldest unproven one from there. It is large, because
    /// a load balancer may hide all consumers behind one address.
    pub per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 384, unproven: 256, per_address: 128 }
    }
}

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    limits: Limits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By number, so the oldest comes first.
    all: BTreeMap<u64, Connection>,
    next: u64,
}

#[derive(Debug)]
struct Connection {
    network: IpAddr,
    is_proven: Proof,
    evicted: Arc<Notify>,
}

/// Whether a connection is proven. Clones share one state.
#[derive(Clone, Debug, Default)]
pub(super) struct Proof(Arc<AtomicBool>);

impl Proof {
    /// The connection does not make room for others from now on.
    pub fn give(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_given(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Connections {
    /// Registers a connection, if there is room or another one can be ended for it. The second value says whether a limit was reached.
    pub fn register(self: &Arc<Self>, from: SocketAddr) -> (Option<Registration>, bool) {
        let network = network_of(from.ip());
        let mut open = self.open.lock();
        let alike = open.all.values().filter(|one| one.network == network).count();
        let unproven = open.all.values().filter(|one| !one.is_proven.is_given()).count();
        let Limits { connections, unproven: max_unproven, per_address } = self.limits;
        let is_crowd = alike >= per_address;
        let is_full = is_crowd || open.all.len() >= connections || unproven >= max_unproven;
        if is_full {
            let may_go = |one: &Connection| !one.is_proven.is_given() && (!is_crowd || one.network == network);
            let oldest = open.all.iter().find(|(_, one)| may_go(one)).map(|(number, _)| *number);
            let Some(oldest) = oldest.and_then(|number| open.all.remove(&number)) else { return (None, true) };
            oldest.evicted.notify_one();
        }
        let number = open.next;
        open.next += 1;
        let (is_proven, evicted) = (Proof::default(), Arc::new(Notify::new()));
        open.all.insert(number, Connection { network, is_proven: is_proven.clone(), evicted: Arc::clone(&evicted) });
        (Some(Registration { connections: Arc::clone(self), number, proof: is_proven, evicted }), is_full)
    }
}

/// The network that one owner controls: an IPv4 address or an IPv6 /64.
fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The registration of an open connection. Dropping it makes room.
#[derive(Debug)]
pub(super) struct Registration {
    connections: Arc<Connections>,
    number: u64,
    pub proof: Proof,
    /// Notified when the connection must make room.
    pub evicted: Arc<Notify>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.connections.open.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn with(limits: Limits) -> Arc<Connections> {
        Arc::new(Connections { limits, ..Connections::default() })
    }

    fn from(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 1000).into()
    }

    fn register(connections: &Arc<Connections>, last: u8) -> Registration {
        connections.register(from(last)).0.unwrap()
    }

    async fn is_evicted(registration: &Registration) -> bool {
        timeout(Duration::ZERO, registration.evicted.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn the_oldest_unproven_connection_makes_room() {
        let connections = with(Limits { connections: 4, unproven: 2, per_address: 2 });
        let proven = register(&connections, 1);
        proven.proof.give();
        let (oldest, other) = (register(&connections, 2), register(&connections, 3));
        let newest = register(&connections, 4);
        assert!(is_evicted(&oldest).await);
        for registration in [&proven, &other, &newest] {
            assert!(!is_evicted(registration).await);
        }
    }

    #[tokio::test]
    async fn a_crowd_from_one_address_makes_room_among_itself() {
        let connections = with(Limits { connections: 8, unproven: 8, per_address: 2 });
        let honest = register(&connections, 1);
        let crowd = [register(&connections, 2), register(&connections, 2)];
        let (newest, is_full) = connections.register(from(2));
        assert!(newest.is_some() && is_full && is_evicted(&crowd[0]).await);
        assert!(!is_evicted(&honest).await && !is_evicted(&crowd[1]).await);
    }

    #[tokio::test]
    async fn proven_connections_never_make_room() {
        let connections = with(Limits { connections: 2, unproven: 2, per_address: 2 });
        let (first, second) = (register(&connections, 1), register(&connections, 2));
        first.proof.give();
        second.proof.give();
        assert!(connections.register(from(3)).0.is_none());
        drop(first);
        assert!(connections.register(from(3)).0.is_some() && !is_evicted(&second).await);
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let same = |one: &str, other: &str| network_of(one.parse().unwrap()) == network_of(other.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff:0:0:2"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
    }
}
