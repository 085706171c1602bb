use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Dropped, Endpoint, PublicKey, RemoteState, State, Tunnel, TunnelError};

/// A tunnel that carries nothing, for tests of those who use one: it remembers what was wanted, and says what it is told to say.
#[derive(Debug, Default)]
pub struct FakeTunnel(Mutex<Fake>);

#[derive(Debug, Default)]
struct Fake {
    applied: Vec<Endpoint>,
    removed: Vec<String>,
    running: bool,
    remotes: Option<Vec<RemoteState>>,
}

impl FakeTunnel {
    fn lock(&self) -> MutexGuard<'_, Fake> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that was applied, in order.
    pub fn applied(&self) -> Vec<Endpoint> {
        self.lock().applied.clone()
    }

    /// The names of the devices that were removed.
    pub fn removed(&self) -> Vec<String> {
        self.lock().removed.clone()
    }

    /// From now on the remotes are said to be like this. Before, they are what was applied, without a session.
    pub fn set_remotes(&self, remotes: Vec<RemoteState>) {
        self.lock().remotes = Some(remotes);
    }
}

impl Tunnel for FakeTunnel {
    fn apply(&self, wanted: &Endpoint) -> Result<(), TunnelError> {
        super::userspace::check(wanted)?;
        let mut fake = self.lock();
        fake.applied.push(wanted.clone());
        fake.running = true;
        Ok(())
    }

    fn send(&self, _: PublicKey, _: &[u8]) {}

    fn state(&self) -> State {
        let fake = self.lock();
        let remotes = fake.applied.last().filter(|_| fake.running).map(|endpoint| &endpoint.remotes[..]).unwrap_or_default();
        let silent = |remote: &super::Remote| RemoteState {
            public_key: remote.public_key,
            endpoint: remote.endpoint,
            last_handshake: None,
            last_received: None,
            sent_bytes: 0,
            received_bytes: 0,
            dropped: Dropped::default(),
            measured: None,
            unanswered: 0,
        };
        let remotes = fake.remotes.clone().unwrap_or_else(|| remotes.iter().map(silent).collect());
        State { running: fake.running, remotes, dropped: Dropped::default() }
    }

    fn stop(&self) {
        self.lock().running = false;
    }

    fn remove_device(&self, name: &str) -> Result<(), TunnelError> {
        self.lock().removed.push(name.to_owned());
        Ok(())
    }
}
