//! Connections through a provider's tunnel, for a provider that exposes only the tunnel's port.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use liqo_api::GatewayAddress;
use liqo_signing::ClusterIdentity;
use liqo_tunnel_client::{
    keys,
    session::{DialConfig, DialedGateway, TunnelConnection, dial},
};
use parking_lot::Mutex;

use crate::{decide::gateways::gateways_to_dial, identity::tunnel_key, protocol::SecretText};

/// The connections of one session, at most one for each key. They end with the session.
pub struct TunnelConnections {
    gateways: Mutex<Vec<DialedGateway>>,
    /// Our own key for the tunnel. The provider knows it once it granted access, or recorded that
    /// we wait for approval.
    own: Option<[u8; 32]>,
    /// Whether the provider said that it knows us.
    is_known: AtomicBool,
    /// `None` once the session has ended.
    open: Mutex<Option<HashMap<[u8; 32], Arc<TunnelConnection>>>>,
}

impl TunnelConnections {
    /// Opens no connection yet. Without gateways the provider is called directly.
    pub fn new(tunnel: &[GatewayAddress], identity: &ClusterIdentity) -> Self {
        Self {
            gateways: Mutex::new(gateways_to_dial(tunnel)),
            own: tunnel_key(identity),
            is_known: AtomicBool::new(false),
            open: Mutex::new(Some(HashMap::new())),
        }
    }

    pub fn set_gateways(&self, tunnel: &[GatewayAddress]) {
        let gateways = gateways_to_dial(tunnel);
        self.open
            .lock()
            .iter()
            .flat_map(HashMap::values)
            .for_each(|connection| connection.set_gateways(&gateways));
        *self.gateways.lock() = gateways;
    }

    /// Address of the gateway that carries our own connection now.
    pub(super) fn gateway(&self) -> Option<SocketAddr> {
        self.open.lock().as_ref()?.get(&self.own?)?.gateway()
    }

    /// The connection under our own key; `None` if the provider is called directly.
    pub(super) fn own_connection(&self) -> io::Result<Option<Arc<TunnelConnection>>> {
        self.connection_for_key(self.own_key()?)
    }

    /// The keys to try, in this order; `None` means a direct call. If the provider's answer got
    /// lost, the provider may already know us although we still have the token.
    pub(super) fn keys_to_try(
        &self,
        token: Option<&SecretText>,
    ) -> io::Result<Vec<Option<[u8; 32]>>> {
        let own = self.own_key()?;
        let mut keys: Vec<_> = token
            .filter(|_| own.is_some())
            .map(|token| Some(keys::private_key_of_token(&token.0)))
            .into_iter()
            .collect();
        keys.push(own);
        if self.is_known.load(Ordering::Relaxed) {
            keys.reverse();
        }
        Ok(keys)
    }

    /// The connection under this key.
    pub(super) fn connection_for_key(
        &self,
        key: Option<[u8; 32]>,
    ) -> io::Result<Option<Arc<TunnelConnection>>> {
        key.map(|key| self.open_with_key(key)).transpose()
    }

    /// The provider answered. Closes the connections under a token's key; a later try opens one
    /// again if the provider does not know us yet.
    pub(super) fn record_answer(&self, is_known: bool) {
        let own = self.own;
        self.is_known.store(is_known, Ordering::Relaxed);
        self.open
            .lock()
            .iter_mut()
            .for_each(|open| open.retain(|key, _| Some(*key) == own));
    }

    /// Ends all connections, even if they are in use, and opens no more: two with the same key
    /// would get each other's answers.
    pub fn end_all(&self) {
        self.open
            .lock()
            .take()
            .iter()
            .flat_map(HashMap::values)
            .for_each(|connection| connection.close());
    }

    fn own_key(&self) -> io::Result<Option<[u8; 32]>> {
        if self.gateways.lock().is_empty() {
            return Ok(None);
        }
        self.own
            .map(Some)
            .ok_or_else(|| io::Error::other("this cluster's key has no form for the tunnel"))
    }

    fn open_with_key(&self, private_key: [u8; 32]) -> io::Result<Arc<TunnelConnection>> {
        let mut open = self.open.lock();
        let open = open
            .as_mut()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the session has ended"))?;
        if let Some(connection) = open.get(&private_key) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(dial(DialConfig {
            private_key,
            gateways: self.gateways.lock().clone(),
        })?);
        open.insert(private_key, Arc::clone(&connection));
        Ok(connection)
    }
}

impl Drop for TunnelConnections {
    fn drop(&mut self) {
        // Clients that use them may exist a little longer.
        self.end_all();
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::*;

    fn gateway(key: &str, endpoints: &[&str]) -> GatewayAddress {
        let endpoints = endpoints
            .iter()
            .map(|&endpoint| endpoint.to_owned())
            .collect();
        GatewayAddress {
            public_key: key.to_owned(),
            first_key: None,
            endpoints,
            tls: Vec::new(),
        }
    }

    #[tokio::test]
    async fn by_a_token_nobody_is_called_after_the_answer() {
        let identity = ClusterIdentity::generate().unwrap();
        let key = BASE64.encode(&[7; 32]);
        let tunnel_connections =
            TunnelConnections::new(&[gateway(&key, &["203.0.113.5:51840"])], &identity);
        let (token, own) = (SecretText("token".to_owned()), tunnel_key(&identity));
        let by_token = Some(keys::private_key_of_token("token"));
        assert_eq!(
            tunnel_connections.keys_to_try(Some(&token)).unwrap(),
            [by_token, own]
        );
        drop(tunnel_connections.connection_for_key(by_token).unwrap());
        tunnel_connections.record_answer(false);
        assert!(tunnel_connections.open.lock().as_ref().unwrap().is_empty());
        assert_eq!(
            tunnel_connections.keys_to_try(Some(&token)).unwrap(),
            [by_token, own]
        );
        tunnel_connections.record_answer(true);
        assert_eq!(
            tunnel_connections.keys_to_try(Some(&token)).unwrap(),
            [own, by_token]
        );
        drop(tunnel_connections.connection_for_key(own).unwrap());
        tunnel_connections.end_all();
        assert!(
            tunnel_connections.connection_for_key(own).is_err()
                && tunnel_connections.connection_for_key(None).is_ok(),
            "nothing is opened once they have ended"
        );
        let direct = TunnelConnections::new(&[], &identity);
        assert_eq!(direct.keys_to_try(Some(&token)).unwrap(), [None]);
    }
}
