//! The way through a provider's tunnel, where that is how it is reached.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use data_encoding::BASE64;
use liqo_api::GatewayAddress;
use liqo_passage::{
    keys,
    session::{Gateway, Passage, Way, dial},
};

use super::lock;
use crate::{identity::ClusterIdentity, protocol::SecretText};

/// The passages of one session with a provider. They end with it.
pub struct Passages {
    gateways: Mutex<Vec<Gateway>>,
    /// The key that the provider knows us by once it granted access, or began to wait for approval.
    own: Option<[u8; 32]>,
    /// Whether it said that it knows us.
    is_known: AtomicBool,
    /// Nothing once they have ended.
    open: Mutex<Option<HashMap<[u8; 32], Arc<Passage>>>>,
}

impl Passages {
    /// Those to a provider with these gateways; none is open before it is asked for.
    pub fn new(tunnel: &[GatewayAddress], identity: &ClusterIdentity) -> Self {
        Self {
            gateways: Mutex::new(gateways(tunnel)),
            own: identity.tunnel_key(),
            is_known: AtomicBool::new(false),
            open: Mutex::new(Some(HashMap::new())),
        }
    }

    /// Calls these gateways from now on.
    pub fn know(&self, tunnel: &[GatewayAddress]) {
        let gateways = gateways(tunnel);
        lock(&self.open).iter().flat_map(HashMap::values).for_each(|passage| passage.know(&gateways));
        *lock(&self.gateways) = gateways;
    }

    /// Where the gateway is through which the provider is called now.
    pub(super) fn gateway(&self) -> Option<SocketAddr> {
        lock(&self.open).as_ref()?.get(&self.own?)?.gateway()
    }

    /// The passage of a cluster that has a tenancy there; none if the provider is called directly.
    pub(super) fn own(&self) -> io::Result<Option<Arc<Passage>>> {
        self.open(self.own_way()?)
    }

    /// The ways to try, in order: by which key, none if the provider is called directly. Who has a token still may be known already: it
    /// could not be told before.
    pub(super) fn ways(&self, token: Option<&SecretText>) -> io::Result<Vec<Option<[u8; 32]>>> {
        let own = self.own_way()?;
        let mut ways: Vec<_> = token.filter(|_| own.is_some()).map(|token| Some(keys::of_token(&token.0))).into_iter().collect();
        ways.push(own);
        if self.is_known.load(Ordering::Relaxed) {
            ways.reverse();
        }
        Ok(ways)
    }

    /// The passage by this key.
    pub(super) fn open(&self, way: Option<[u8; 32]>) -> io::Result<Option<Arc<Passage>>> {
        way.map(|key| self.with(key)).transpose()
    }

    /// The provider answered: by a token it is not called any more, unless it does not know us yet and we come again.
    pub(super) fn answered(&self, is_known: bool) {
        let own = self.own;
        self.is_known.store(is_known, Ordering::Relaxed);
        lock(&self.open).iter_mut().for_each(|open| open.retain(|key, _| Some(*key) == own));
    }

    /// Ends them, whoever holds them, and opens no others: two by one key would take the provider's answers from each other.
    pub fn end(&self) {
        lock(&self.open).take().iter().flat_map(HashMap::values).for_each(|passage| passage.end());
    }

    fn own_way(&self) -> io::Result<Option<[u8; 32]>> {
        if lock(&self.gateways).is_empty() {
            return Ok(None);
        }
        self.own.map(Some).ok_or_else(|| io::Error::other("this cluster's key has no form for the tunnel"))
    }

    fn with(&self, private_key: [u8; 32]) -> io::Result<Arc<Passage>> {
        let mut open = lock(&self.open);
        let open = open.as_mut().ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the session has ended"))?;
        if let Some(passage) = open.get(&private_key) {
            return Ok(Arc::clone(passage));
        }
        let passage = Arc::new(dial(Way { private_key, gateways: lock(&self.gateways).clone() })?);
        open.insert(private_key, Arc::clone(&passage));
        Ok(passage)
    }
}

/// The gateways through which a provider is called, if it is called through its tunnel at all: those that it told last, and those that
/// were written down when it was peered with. So it is found although all of these are gone, and although it has told nothing yet. Names
/// are looked up only if they were written down: what a provider tells is not to keep our name servers busy.
pub fn to_call(written: &[GatewayAddress], told: &[GatewayAddress]) -> Vec<GatewayAddress> {
    let mut all: Vec<GatewayAddress> = Vec::new();
    let is_address = |endpoint: &String| {
        endpoint.parse::<SocketAddr>().is_ok() || written.iter().any(|gateway| gateway.endpoints.contains(endpoint))
    };
    let told = told.iter().filter(|_| !written.is_empty()).map(|gateway| {
        let endpoints = gateway.endpoints.iter().filter(|endpoint| is_address(endpoint)).cloned().collect();
        GatewayAddress { endpoints, ..gateway.clone() }
    });
    for gateway in told.chain(written.iter().cloned()) {
        let Some(known) = all.iter_mut().find(|known| known.public_key == gateway.public_key) else {
            all.push(gateway);
            continue;
        };
        let new = gateway.endpoints.iter().filter(|endpoint| !known.endpoints.contains(endpoint));
        let new: Vec<String> = new.cloned().collect();
        known.endpoints.extend(new);
    }
    all
}

impl Drop for Passages {
    fn drop(&mut self) {
        // Clients that were made of them may live a little longer.
        self.end();
    }
}

fn gateways(tunnel: &[GatewayAddress]) -> Vec<Gateway> {
    let gateway = |gateway: &GatewayAddress| {
        let public_key = BASE64.decode(gateway.public_key.as_bytes()).ok()?.try_into().ok()?;
        Some(Gateway { public_key, endpoints: gateway.endpoints.clone() })
    };
    tunnel.iter().filter_map(gateway).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(key: &str, endpoints: &[&str]) -> GatewayAddress {
        let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
        GatewayAddress { public_key: key.to_owned(), first_key: None, endpoints, tls: Vec::new() }
    }

    #[test]
    fn what_a_provider_told_last_is_called_beside_what_was_written_down() {
        let written = [gateway("a", &["203.0.113.5:51840"]), gateway("b", &["203.0.113.6:51840"])];
        let told = [gateway("b", &["203.0.113.9:51840"]), gateway("c", &["203.0.113.7:51840"])];
        let all = [
            gateway("b", &["203.0.113.9:51840", "203.0.113.6:51840"]),
            gateway("c", &["203.0.113.7:51840"]),
            gateway("a", &["203.0.113.5:51840"]),
        ];
        assert_eq!(to_call(&written, &told), all);
        assert_eq!(to_call(&written, &[]), written);
        assert_eq!(to_call(&[], &told), [], "who is called directly is not called otherwise because it has gateways");
    }

    #[test]
    fn a_name_is_looked_up_only_if_it_was_written_down() {
        let written = [gateway("a", &["gateway.milan.example:51840"])];
        let told = [gateway("b", &["gateway.milan.example:51840", "other.example:51840", "[2001:db8::1]:51840"])];
        assert_eq!(to_call(&written, &told)[0], gateway("b", &["gateway.milan.example:51840", "[2001:db8::1]:51840"]));
    }

    #[tokio::test]
    async fn by_a_token_nobody_is_called_after_the_answer() {
        let identity = ClusterIdentity::generate().unwrap();
        let key = BASE64.encode(&[7; 32]);
        let passages = Passages::new(&[gateway(&key, &["203.0.113.5:51840"])], &identity);
        let (token, own) = (SecretText("token".to_owned()), identity.tunnel_key());
        let by_token = Some(keys::of_token("token"));
        assert_eq!(passages.ways(Some(&token)).unwrap(), [by_token, own]);
        drop(passages.open(by_token).unwrap());
        passages.answered(false);
        assert!(lock(&passages.open).as_ref().unwrap().is_empty());
        assert_eq!(passages.ways(Some(&token)).unwrap(), [by_token, own]);
        passages.answered(true);
        assert_eq!(passages.ways(Some(&token)).unwrap(), [own, by_token]);
        drop(passages.open(own).unwrap());
        passages.end();
        assert!(passages.open(own).is_err() && passages.open(None).is_ok(), "nothing is opened once they have ended");
        let direct = Passages::new(&[], &identity);
        assert_eq!(direct.ways(Some(&token)).unwrap(), [None]);
    }
}
