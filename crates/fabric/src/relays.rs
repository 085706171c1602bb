//! The way over TLS for where UDP does not pass: takes connections while the tunnel is here, and makes those that are needed.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use liqo_datapath::{
    relay::{Client, Counts, Limits, Server},
    tunnel::{PublicKey, Tunnel as _, UserspaceTunnel},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{TunnelEnd, fallback::Fallback},
    gateways::Gateways,
    metrics,
    node::Held,
};

/// Time between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// A port that others use is tried again after this time.
const RETRY: Duration = Duration::from_secs(30);

/// What there is now.
#[derive(Default)]
pub(crate) struct Relays(Mutex<State>);

#[derive(Default)]
struct State {
    clients: BTreeMap<PublicKey, Client>,
    server: Option<Server>,
    /// What the server was started for, or would have been: the port, and where the tunnel is.
    wanted: Option<(u16, SocketAddr)>,
    problem: Option<(String, Instant)>,
    /// Datagrams that connections which were begun here were too slow for.
    dropped: Arc<AtomicU64>,
}

impl Relays {
    /// Where the tunnel sends to what goes by relays that are connected.
    pub(crate) fn connected(&self) -> BTreeMap<PublicKey, SocketAddr> {
        let state = self.state();
        let connected = state.clients.iter().filter(|(_, client)| client.server().is_some());
        connected.map(|(key, client)| (*key, client.address())).collect()
    }

    /// The port on which connections are taken, if they are.
    pub(crate) fn port(&self) -> Option<u16> {
        self.state().server.as_ref().and_then(|server| server.listen().first()).map(SocketAddr::port)
    }

    /// Why no connections are taken although they should be.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state().problem.as_ref().map(|(problem, _)| problem.clone())
    }

    /// Who is at the other end of the relay that the tunnel knows by this address.
    pub(crate) fn behind(&self, address: SocketAddr) -> Option<SocketAddr> {
        let state = self.state();
        let client = state.clients.values().find(|client| client.address() == address);
        client.and_then(Client::server).or_else(|| state.server.as_ref()?.peer(address))
    }

    fn counts(&self) -> (usize, Counts) {
        let state = self.state();
        let counts = state.server.as_ref().map(Server::counts).unwrap_or_default();
        (state.clients.len(), Counts { dropped: counts.dropped + state.dropped.load(Relaxed), ..counts })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes connections as it is wanted.
    fn serve(&self, end: Option<&TunnelEnd>) {
        let mut state = self.state();
        let wanted = end.filter(|end| end.tls_port != 0).and_then(|end| Some((end.tls_port, beside(end)?)));
        if state.wanted != wanted {
            state.problem = None;
            state.wanted = wanted;
            if state.server.take().is_some() {
                // Its port is free only a moment later, which the next look is.
                return;
            }
        }
        let (Some((port, tunnel)), Some(end)) = (wanted, end) else { return };
        let waits = state.problem.as_ref().is_some_and(|(_, at)| at.elapsed() < RETRY);
        if state.server.is_some() || waits {
            return;
        }
        let listen: Vec<SocketAddr> = end.listen.iter().map(|address| SocketAddr::new(address.ip(), port)).collect();
        match Server::start(&listen, tunnel, Limits::default()) {
            Ok(server) => {
                tracing::info!(port, "connections over TLS are taken");
                state.server = Some(server);
                state.problem = None;
            }
            Err(error) => {
                let problem = format!(
                    "no connections over TLS are taken on TCP {port}: {error}; if another program of the node uses the port, set network.gateways.tlsPort to a free one"
                );
                if state.problem.as_ref().is_none_or(|(before, _)| *before != problem) {
                    tracing::warn!(problem, "peers that UDP does not get through to will not reach this gateway");
                }
                state.problem = Some((problem, Instant::now()));
            }
        }
    }
}

/// Where the tunnel of this machine is found on it.
fn beside(end: &TunnelEnd) -> Option<SocketAddr> {
    let of = |is_v4: bool, ip: IpAddr| {
        let listens = end.listen.iter().find(|address| address.is_ipv4() == is_v4);
        listens.map(|address| SocketAddr::new(ip, address.port()))
    };
    of(true, Ipv4Addr::LOCALHOST.into()).or_else(|| of(false, Ipv6Addr::LOCALHOST.into()))
}

/// What it takes to keep them.
pub(crate) struct Keeper {
    pub relays: Arc<Relays>,
    pub tunnel: Arc<UserspaceTunnel>,
    pub gateways: Arc<Gateways>,
    pub held: watch::Receiver<Held>,
    /// Told when a relay is connected, or is not any more.
    pub changed: Arc<Notify>,
    pub stop: CancellationToken,
}

impl Keeper {
    /// Until it is asked to stop. Connections end then, and peers connect again.
    pub(crate) async fn keep(mut self) {
        let mut fallback = Fallback::default();
        loop {
            let held = self.held.borrow_and_update().clone();
            let end = held.as_ref().and_then(|held| held.tunnel.as_ref());
            self.relays.serve(end);
            self.connect(end, &mut fallback).await;
            let (clients, counts) = self.relays.counts();
            metrics::relays(clients, counts);
            tokio::select! {
                () = self.stop.cancelled() => break,
                _ = self.held.changed() => {}
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
        *self.relays.state() = State::default();
    }

    /// Makes the relays that are needed, and ends the others.
    async fn connect(&self, end: Option<&TunnelEnd>, fallback: &mut Fallback) {
        let place = end.and_then(|end| Some((end, beside(end)?)));
        let Some((end, tunnel)) = place else { return self.relays.state().clients.clear() };
        let there = self.relays.state().clients.iter().map(|(key, client)| (*key, client.address())).collect();
        let ours = self.relays.port().map(|_| self.gateways.key());
        let states = self.tunnel.state().remotes;
        let needed = fallback.needed(end, &states, &there, ours, Instant::now());
        let is_right = |key: &PublicKey, client: &mut Client| {
            needed.contains(key) && end.tls.get(key).is_some_and(|servers| servers == client.servers())
        };
        let before = self.relays.connected();
        self.relays.state().clients.retain(is_right);
        for key in &needed {
            let Some(servers) = end.tls.get(key).filter(|_| !self.relays.state().clients.contains_key(key)) else { continue };
            let (changed, dropped) = (self.changed.clone(), self.relays.state().dropped.clone());
            match Client::start(servers.clone(), tunnel, dropped, move || changed.notify_one()).await {
                Ok(client) => {
                    tracing::info!(remote = %key, ?servers, "a gateway is not heard over UDP, it is called over TLS");
                    self.relays.state().clients.insert(*key, client);
                }
                Err(error) => tracing::warn!(%error, remote = %key, "no relay can be started, trying again"),
            }
        }
        if before != self.relays.connected() {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_port_of_the_tunnel_does_not_cost_that_of_the_relay() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let end = |port| TunnelEnd { listen: vec![([127, 0, 0, 1], port).into()], tls_port: free.port(), ..TunnelEnd::default() };
        let relays = Relays::default();
        relays.serve(Some(&end(51_840)));
        assert_eq!(relays.port(), Some(free.port()));
        for _ in 0..10 {
            relays.serve(Some(&end(51_841)));
            assert_eq!(relays.problem(), None);
            tokio::task::yield_now().await;
        }
        assert_eq!(relays.port(), Some(free.port()));
    }
}
