//! A tunnel that carries nothing, for tests.

use parking_lot::{Mutex, MutexGuard};

use super::{
    counters::Dropped,
    interface::{EndpointConfig, Tunnel, TunnelError, TunnelRemoteState, TunnelState},
    keys::PublicKey,
};

/// A tunnel that carries nothing. It remembers what was applied.
#[derive(Debug, Default)]
pub struct FakeTunnel(Mutex<Fake>);

#[derive(Debug, Default)]
struct Fake {
    applied: Vec<EndpointConfig>,
    removed: Vec<String>,
    running: bool,
}

impl FakeTunnel {
    fn lock(&self) -> MutexGuard<'_, Fake> {
        self.0.lock()
    }

    /// All applied endpoints, in order.
    pub fn applied(&self) -> Vec<EndpointConfig> {
        self.lock().applied.clone()
    }

    /// Names of the removed devices.
    pub fn removed(&self) -> Vec<String> {
        self.lock().removed.clone()
    }
}

impl TunnelRemoteState {
    /// A remote that was never heard.
    pub fn silent(public_key: PublicKey) -> Self {
        Self {
            public_key,
            endpoint: None,
            last_handshake: None,
            last_received: None,
            sent_bytes: 0,
            received_bytes: 0,
            dropped: Dropped::default(),
            measured: None,
            unanswered: 0,
            is_direct: false,
        }
    }
}

impl Tunnel for FakeTunnel {
    fn apply(&self, wanted: &EndpointConfig) -> Result<(), TunnelError> {
        wanted.check_keys()?;
        let mut fake = self.lock();
        fake.applied.push(wanted.clone());
        fake.running = true;
        Ok(())
    }

    fn send(&self, _: PublicKey, _: &[u8]) {}

    fn state(&self) -> TunnelState {
        let fake = self.lock();
        let remotes = fake
            .applied
            .last()
            .filter(|_| fake.running)
            .map(|endpoint| &endpoint.remotes[..])
            .unwrap_or_default();
        let silent = remotes.iter().map(|remote| TunnelRemoteState {
            endpoint: remote.endpoint,
            ..TunnelRemoteState::silent(remote.public_key)
        });
        TunnelState {
            running: fake.running,
            remotes: silent.collect(),
            dropped: Dropped::default(),
        }
    }

    fn stop(&self) {
        self.lock().running = false;
    }

    fn remove_device(&self, name: &str) -> Result<(), TunnelError> {
        self.lock().removed.push(name.to_owned());
        Ok(())
    }
}
