//! Opens the relays that are needed, and closes the others.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use liqo_datapath::{
    relay::RelayClient,
    tunnel::{Tunnel as _, UserspaceTunnel},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{RelayState, Relays, local_address};
use crate::{
    decide::{AppliedState, TunnelEnd, fallback::RelayFallback},
    gateway_leases::GatewayLeases,
    metrics,
};

/// Time between two passes.
const PERIOD: Duration = Duration::from_secs(1);

pub struct RelayController {
    pub relays: Arc<Relays>,
    pub tunnel: Arc<UserspaceTunnel>,
    pub gateways: Arc<GatewayLeases>,
    pub applied: watch::Receiver<AppliedState>,
    /// Notified when a relay is connected, or is no longer.
    pub changed: Arc<Notify>,
    pub stop: CancellationToken,
}

impl RelayController {
    /// Runs until it is asked to stop. Connections end then, and peers connect again.
    pub async fn run(mut self) {
        let mut fallback = RelayFallback::default();
        loop {
            let applied = self.applied.borrow_and_update().clone();
            let end = applied.as_ref().and_then(|applied| applied.tunnel.as_ref());
            self.relays.accept_clients(end);
            self.connect_needed(end, &mut fallback).await;
            let (clients, counts) = self.relays.counts();
            metrics::record_relays(clients, counts);
            tokio::select! {
                () = self.stop.cancelled() => break,
                _ = self.applied.changed() => {}
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
        *self.relays.state() = RelayState::default();
    }

    async fn connect_needed(&self, end: Option<&TunnelEnd>, fallback: &mut RelayFallback) {
        let end = end.and_then(|end| Some((end, local_address(end)?)));
        let Some((end, tunnel)) = end else {
            return self.relays.state().clients.clear();
        };
        let existing = self
            .relays
            .state()
            .clients
            .iter()
            .map(|(key, client)| (*key, client.address()))
            .collect();
        let ours = self.relays.port().map(|_| self.gateways.key());
        let states = self.tunnel.state().remotes;
        let needed = fallback.needed_relays(end, &states, &existing, ours, Instant::now());
        let before = self.relays.connected_addresses();
        self.relays.state().clients.retain(|key, client| {
            let servers = end.tls.get(key).filter(|_| needed.contains(key));
            servers.is_some_and(|servers| servers == client.servers())
        });
        for key in &needed {
            let Some(servers) = end
                .tls
                .get(key)
                .filter(|_| !self.relays.state().clients.contains_key(key))
            else {
                continue;
            };
            let (changed, dropped) = (self.changed.clone(), self.relays.state().dropped.clone());
            match RelayClient::start(servers.clone(), tunnel, dropped, move || {
                changed.notify_one();
            })
            .await
            {
                Ok(client) => {
                    tracing::info!(remote = %key, ?servers, "a gateway does not answer over UDP, calling it over TLS");
                    self.relays.state().clients.insert(*key, client);
                }
                Err(error) => {
                    tracing::warn!(%error, remote = %key, "no relay can be started, trying again");
                }
            }
        }
        if before != self.relays.connected_addresses() {
            self.changed.notify_one();
        }
    }
}
