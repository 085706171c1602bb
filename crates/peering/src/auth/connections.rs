//! Decides which connections to the auth endpoint stay open.
//!
//! Whoever connects is a stranger. A connection is proven when a consumer that may get something
//! signed its request; until then it makes room for newer ones. An honest caller needs some
//! milliseconds, so silent ones cannot keep it out.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use liqo_api::connection_limits::{
    ConnectionAdmission, ConnectionLimits, OpenConnections, network_of,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Many connections may come from one source, because a load balancer may hide all consumers behind
/// one address.
const LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 384,
    unproven: 256,
    per_source: 128,
};

/// The open connections.
#[derive(Debug)]
pub(super) struct AuthConnections {
    open: Mutex<OpenConnections<AuthConnection>>,
}

impl Default for AuthConnections {
    fn default() -> Self {
        Self {
            open: Mutex::new(OpenConnections::new(LIMITS)),
        }
    }
}

#[derive(Debug)]
struct AuthConnection {
    is_proven: ConnectionProof,
    evicted: Arc<Notify>,
}

/// Whether a connection is proven. Clones share one state.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionProof(Arc<AtomicBool>);

impl ConnectionProof {
    /// The connection does not make room for others from now on.
    pub fn mark_proven(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_proven(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl AuthConnections {
    /// Registers a connection, if there is room or another one can be ended for it. The second
    /// value says whether a limit was reached.
    pub fn register(self: &Arc<Self>, from: SocketAddr) -> (Option<ConnectionRegistration>, bool) {
        let (proof, evicted) = (ConnectionProof::default(), Arc::new(Notify::new()));
        let connection = AuthConnection {
            is_proven: proof.clone(),
            evicted: Arc::clone(&evicted),
        };
        let added = self
            .open
            .lock()
            .add(network_of(from.ip()), connection, |one| {
                one.is_proven.is_proven()
            });
        let (number, is_full) = match added {
            ConnectionAdmission::Open(number) => (number, false),
            ConnectionAdmission::Instead { number, ended } => {
                ended.evicted.notify_one();
                (number, true)
            }
            ConnectionAdmission::Refused => return (None, true),
        };
        (
            Some(ConnectionRegistration {
                connections: Arc::clone(self),
                number,
                proof,
                evicted,
            }),
            is_full,
        )
    }
}

/// The registration of an open connection. Dropping it makes room.
#[derive(Debug)]
pub(super) struct ConnectionRegistration {
    connections: Arc<AuthConnections>,
    number: u64,
    pub proof: ConnectionProof,
    /// Notified when the connection must make room.
    pub evicted: Arc<Notify>,
}

impl Drop for ConnectionRegistration {
    fn drop(&mut self) {
        self.connections.open.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn from(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 1000).into()
    }

    fn register(connections: &Arc<AuthConnections>, last: u8) -> ConnectionRegistration {
        connections.register(from(last)).0.unwrap()
    }

    async fn is_evicted(registration: &ConnectionRegistration) -> bool {
        timeout(Duration::ZERO, registration.evicted.notified())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn a_crowd_from_one_address_makes_room_among_itself() {
        let connections = Arc::new(AuthConnections::default());
        let honest = register(&connections, 1);
        let crowd: Vec<ConnectionRegistration> = (0..LIMITS.per_source)
            .map(|_| register(&connections, 2))
            .collect();
        crowd[0].proof.mark_proven();
        let (newest, is_full) = connections.register(from(2));
        assert!(newest.is_some() && is_full && is_evicted(&crowd[1]).await);
        assert!(!is_evicted(&honest).await && !is_evicted(&crowd[0]).await);
        drop(crowd);
        assert!(
            !connections.register(from(2)).1,
            "those that ended made room"
        );
    }
}
