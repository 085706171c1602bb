//! Relays carry the tunnel's datagrams over TLS while UDP does not pass. A gateway accepts
//! connections from peers' gateways, and `controller` opens connections to those that UDP does not
//! reach.

pub mod controller;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use liqo_datapath::{
    relay::{LIMITS, RelayClient, RelayCounts, RelayServer},
    tunnel::PublicKey,
};
use parking_lot::{Mutex, MutexGuard};

use crate::decide::TunnelEnd;

/// Delay before the next attempt to listen on a port that another program uses.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The relays that exist now.
#[derive(Default)]
pub struct Relays(Mutex<RelayState>);

#[derive(Default)]
struct RelayState {
    clients: BTreeMap<PublicKey, RelayClient>,
    server: Option<RelayServer>,
    /// The port and the tunnel's address of the last attempt to start the server.
    wanted: Option<(u16, SocketAddr)>,
    /// The reason why no connections are accepted, and the time of the last failed attempt.
    problem: Option<(String, Instant)>,
    /// Datagrams that were dropped because connections opened here were too slow.
    dropped: Arc<AtomicU64>,
}

impl Relays {
    /// The local addresses of the relays that are connected: the tunnel sends datagrams there.
    pub fn connected_addresses(&self) -> BTreeMap<PublicKey, SocketAddr> {
        let state = self.state();
        let connected = state
            .clients
            .iter()
            .filter(|(_, client)| client.server().is_some());
        connected
            .map(|(key, client)| (*key, client.address()))
            .collect()
    }

    /// The port on which the server accepts connections.
    pub fn port(&self) -> Option<u16> {
        self.state()
            .server
            .as_ref()
            .and_then(|server| server.listen_addresses().first())
            .map(SocketAddr::port)
    }

    /// The reason why the server does not accept connections although it should.
    pub fn problem(&self) -> Option<String> {
        self.state()
            .problem
            .as_ref()
            .map(|(problem, _)| problem.clone())
    }

    /// The other end of the relay that has this local address.
    pub fn remote_end(&self, address: SocketAddr) -> Option<SocketAddr> {
        let state = self.state();
        let client = state
            .clients
            .values()
            .find(|client| client.address() == address);
        client
            .and_then(RelayClient::server)
            .or_else(|| state.server.as_ref()?.client_address(address))
    }

    fn counts(&self) -> (usize, RelayCounts) {
        let state = self.state();
        let counts = state
            .server
            .as_ref()
            .map(RelayServer::counts)
            .unwrap_or_default();
        (
            state.clients.len(),
            RelayCounts {
                dropped: counts.dropped + state.dropped.load(Relaxed),
                ..counts
            },
        )
    }

    fn state(&self) -> MutexGuard<'_, RelayState> {
        self.0.lock()
    }

    /// Accepts connections as the tunnel's end says.
    fn accept_clients(&self, end: Option<&TunnelEnd>) {
        let mut state = self.state();
        let wanted = end
            .filter(|end| end.tls_port != 0)
            .and_then(|end| Some((end.tls_port, local_address(end)?)));
        if state.wanted != wanted {
            state.problem = None;
            state.wanted = wanted;
            if state.server.take().is_some() {
                // Its port is free only a moment later, at the next pass.
                return;
            }
        }
        let (Some((port, tunnel)), Some(end)) = (wanted, end) else {
            return;
        };
        let waits = state
            .problem
            .as_ref()
            .is_some_and(|(_, at)| at.elapsed() < RETRY_DELAY);
        if state.server.is_some() || waits {
            return;
        }
        let listen: Vec<SocketAddr> = end
            .listen
            .iter()
            .map(|address| SocketAddr::new(address.ip(), port))
            .collect();
        match RelayServer::start(&listen, tunnel, LIMITS) {
            Ok(server) => {
                tracing::info!(port, "accepting connections over TLS");
                state.server = Some(server);
                state.problem = None;
            }
            Err(error) => {
                let problem = format!(
                    "connections over TLS cannot be accepted on TCP {port}: {error}; if another program of the node uses the port, set network.gateways.tlsPort to a free one"
                );
                if state
                    .problem
                    .as_ref()
                    .is_none_or(|(before, _)| *before != problem)
                {
                    tracing::warn!(
                        problem,
                        "peers that UDP does not reach will not reach this gateway"
                    );
                }
                state.problem = Some((problem, Instant::now()));
            }
        }
    }
}

/// The tunnel's address on this machine.
fn local_address(end: &TunnelEnd) -> Option<SocketAddr> {
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    loopback.into_iter().find_map(|ip| {
        let mut listen = end.listen.iter();
        let found = listen.find(|address| address.is_ipv4() == ip.is_ipv4())?;
        Some(SocketAddr::new(ip, found.port()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changing_the_tunnels_port_does_not_cost_the_relays_port() {
        let free = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let end = |port| TunnelEnd {
            listen: vec![([127, 0, 0, 1], port).into()],
            tls_port: free.port(),
            ..TunnelEnd::default()
        };
        let relays = Relays::default();
        relays.accept_clients(Some(&end(51_840)));
        assert_eq!(relays.port(), Some(free.port()));
        for _ in 0..10 {
            relays.accept_clients(Some(&end(51_841)));
            assert_eq!(relays.problem(), None);
            tokio::task::yield_now().await;
        }
        assert_eq!(relays.port(), Some(free.port()));
    }
}
