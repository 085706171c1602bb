//! The sessions with one remote under one of our keys, and the packets that wait for a session.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use gotatun::{
    noise::{
        Tunn, TunnResult, errors::WireGuardError, index_table::IndexTable,
        rate_limiter::RateLimiter,
    },
    packet::{Packet, WgData, WgKind},
    x25519,
};
use parking_lot::{Mutex, MutexGuard};

use super::{
    counters::{DroppedCounters, add_count},
    keys::{PrivateKey, PublicKey},
    live_remote::LiveRemote,
    probe::TunnelProbe,
};

/// Maximum number of packets that wait for a session; further ones are dropped. It is enough for
/// the first flight of a connection, and small enough for hundreds of remotes that do not answer.
pub(super) const MAX_WAITING: usize = 64;

/// One of our keys, with its rate limiter for handshakes.
pub(super) struct LocalIdentity {
    pub(super) key: PrivateKey,
    pub(super) secret: x25519::StaticSecret,
    pub(super) public: x25519::PublicKey,
    pub(super) limiter: Arc<RateLimiter>,
}

impl LocalIdentity {
    /// Handshakes per second from one address before it must show a cookie.
    const MAX_HANDSHAKES: u64 = 100;

    pub(super) fn new(key: &PrivateKey) -> Self {
        let public = x25519::PublicKey::from(key.public_key().0);
        Self {
            key: key.clone(),
            secret: key.x25519_secret(),
            public,
            limiter: Arc::new(RateLimiter::new(&public, Self::MAX_HANDSHAKES)),
        }
    }
}

/// The connection of a remote with one of our keys.
pub(super) struct RemoteLink {
    pub(super) live: Arc<LiveRemote>,
    /// Our key.
    pub(super) own: PublicKey,
    sessions: Mutex<Sessions>,
}

pub(super) struct Sessions {
    tunn: Tunn,
    /// Whether the remote has ever shown that it has a session with us. The first session that the
    /// remote begins may not be used before: if our answer was lost or late, the remote does not
    /// have it, and loses what we send. gotatun sees to that for later sessions only.
    is_confirmed: bool,
    /// Packets that wait for a session, oldest first.
    waiting: Vec<BytesMut>,
    keepalive: Option<Duration>,
}

impl RemoteLink {
    pub(super) fn new(
        identity: &LocalIdentity,
        live: &Arc<LiveRemote>,
        keepalive: Option<Duration>,
        indices: &IndexTable,
    ) -> Self {
        let tunn = new_tunn(identity, live, keepalive, indices);
        let sessions = Mutex::new(Sessions {
            tunn,
            is_confirmed: false,
            waiting: Vec::new(),
            keepalive,
        });
        Self {
            live: Arc::clone(live),
            own: identity.key.public_key(),
            sessions,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }
}

fn new_tunn(
    identity: &LocalIdentity,
    live: &LiveRemote,
    keepalive: Option<Duration>,
    indices: &IndexTable,
) -> Tunn {
    let remote = x25519::PublicKey::from(live.public_key.0);
    let limiter = Arc::clone(&identity.limiter);
    Tunn::new(
        identity.secret.clone(),
        remote,
        None,
        whole_seconds(keepalive),
        indices.clone(),
        limiter,
    )
}

fn whole_seconds(duration: Option<Duration>) -> Option<u16> {
    duration.map(|duration| u16::try_from(duration.as_secs()).unwrap_or(u16::MAX))
}

impl Sessions {
    /// Changes settings without disturbing the current session.
    pub(super) fn set_keepalive(&mut self, keepalive: Option<Duration>) {
        if self.keepalive != keepalive {
            self.tunn.set_persistent_keepalive(whole_seconds(keepalive));
            self.keepalive = keepalive;
        }
    }

    /// Forgets all sessions, and the time in the last call of the remote: WireGuard accepts only
    /// later calls. Only for a remote that is silent: for others that time keeps old calls, which
    /// somebody recorded, from disturbing the session.
    pub(super) fn forget_sessions(
        &mut self,
        identity: &LocalIdentity,
        live: &LiveRemote,
        indices: &IndexTable,
    ) {
        self.tunn = new_tunn(identity, live, self.keepalive, indices);
        self.is_confirmed = false;
        self.waiting.clear();
    }

    pub(super) fn last_handshake(&self) -> Option<Duration> {
        self.tunn.time_since_last_handshake()
    }

    /// Encrypts packets. Without a session they stay in `packets`.
    pub(super) fn encrypt(&mut self, packets: &mut Vec<BytesMut>, encrypted: &mut Vec<Packet>) {
        if !self.is_confirmed {
            return;
        }
        let mut packets_left = packets.drain(..);
        let refused = loop {
            let Some(packet) = packets_left.next() else {
                break None;
            };
            match self
                .tunn
                .encapsulate_with_session(Packet::from_bytes(packet))
            {
                Ok(packet) => encrypted.push(packet.into()),
                Err(mut packet) => break Some(std::mem::take(packet.buf_mut())),
            }
        };
        if let Some(refused) = refused {
            let rest: Vec<_> = std::iter::once(refused).chain(packets_left).collect();
            *packets = rest;
        }
    }

    /// Encrypts a probe, if there is a session.
    pub(super) fn encrypt_probe(&mut self, probe: TunnelProbe) -> Option<Packet<WgData>> {
        if !self.is_confirmed {
            return None;
        }
        self.tunn
            .encapsulate_with_session(Packet::copy_from(&probe.bytes()[..]))
            .ok()
    }

    /// Queues packets until there is a session, and starts a handshake if none is under way.
    pub(super) fn queue_packets(
        &mut self,
        packets: &mut Vec<BytesMut>,
        dropped: &DroppedCounters,
        replies: &mut Vec<WgKind>,
    ) {
        let room = MAX_WAITING.saturating_sub(self.waiting.len());
        add_count(&dropped.no_session, packets.len().saturating_sub(room));
        // Copies: a packet is a slice of a large buffer and would keep it alive.
        self.waiting.extend(
            packets
                .drain(..)
                .take(room)
                .map(|packet| BytesMut::from(&packet[..])),
        );
        // The session may have begun since the packets were refused.
        self.flush_waiting(replies);
        if !self.waiting.is_empty() {
            self.begin_handshake(replies);
        }
    }

    /// Starts a handshake, unless one is under way.
    pub(super) fn begin_handshake(&mut self, replies: &mut Vec<WgKind>) {
        replies.extend(
            self.tunn
                .format_handshake_initiation(false)
                .map(WgKind::from),
        );
    }

    /// Starts a handshake even if one is under way, which went to an outdated address.
    pub(super) fn restart_handshake(&mut self, replies: &mut Vec<WgKind>) {
        replies.extend(
            self.tunn
                .format_handshake_initiation(true)
                .map(WgKind::from),
        );
    }

    /// Decrypts a packet in place. An empty one is a keepalive.
    pub(super) fn decrypt(&mut self, packet: Packet<WgData>) -> Result<BytesMut, WireGuardError> {
        match self.tunn.handle_incoming_packet(WgKind::Data(packet)) {
            TunnResult::WriteToTunnel(mut packet) => {
                self.is_confirmed = true;
                Ok(std::mem::take(packet.buf_mut()))
            }
            TunnResult::Err(error) => Err(error),
            TunnResult::Done | TunnResult::WriteToNetwork(_) => {
                Err(WireGuardError::UnexpectedPacket)
            }
        }
    }

    /// Handles a handshake message and adds the answer to the replies.
    pub(super) fn handle_handshake(
        &mut self,
        message: WgKind,
        replies: &mut Vec<WgKind>,
    ) -> Result<(), WireGuardError> {
        let is_answer = matches!(message, WgKind::HandshakeResp(_));
        match self.tunn.handle_incoming_packet(message) {
            TunnResult::WriteToNetwork(reply) => {
                self.is_confirmed |= is_answer;
                replies.push(reply);
            }
            TunnResult::Err(error) => return Err(error),
            TunnResult::Done | TunnResult::WriteToTunnel(_) => {}
        }
        Ok(())
    }

    /// Encrypts the waiting packets, if there is a session now.
    pub(super) fn flush_waiting(&mut self, replies: &mut Vec<WgKind>) {
        if !self.is_confirmed {
            return;
        }
        for packet in std::mem::take(&mut self.waiting) {
            match self
                .tunn
                .encapsulate_with_session(Packet::from_bytes(packet))
            {
                Ok(packet) => replies.push(packet.into()),
                Err(mut packet) => self.waiting.push(std::mem::take(packet.buf_mut())),
            }
        }
    }

    /// Runs the timers: repeats handshakes, sends keepalives, ends sessions.
    pub(super) fn run_timers(&mut self, dropped: &DroppedCounters, replies: &mut Vec<WgKind>) {
        match self.tunn.update_timers() {
            Ok(reply) => replies.extend(reply),
            Err(WireGuardError::ConnectionExpired) => {
                add_count(&dropped.no_session, std::mem::take(&mut self.waiting).len());
                // A remote with keepalives is never given up.
                if self.keepalive.is_some() {
                    self.begin_handshake(replies);
                }
            }
            Err(error) => tracing::debug!(?error, "timers of a session"),
        }
    }
}

#[cfg(test)]
mod hostile;

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends that know each other's keys.
    fn pair() -> [RemoteLink; 2] {
        let keys = [PrivateKey::generate(), PrivateKey::generate()];
        [0, 1].map(|own| {
            let live = Arc::new(LiveRemote::new(keys[1 - own].public_key()));
            RemoteLink::new(
                &LocalIdentity::new(&keys[own]),
                &live,
                None,
                &IndexTable::from_os_rng(),
            )
        })
    }

    /// Exchanges messages until neither end has any left. Returns the decrypted packets.
    fn converse(ends: &[RemoteLink; 2], mut messages: Vec<WgKind>, mut to: usize) -> Vec<BytesMut> {
        let mut arrived = Vec::new();
        while !messages.is_empty() {
            let (mut sessions, mut replies) = (ends[to].lock(), Vec::new());
            for message in messages {
                match message {
                    WgKind::Data(packet) => arrived.push(sessions.decrypt(packet).unwrap()),
                    handshake => sessions.handle_handshake(handshake, &mut replies).unwrap(),
                }
            }
            sessions.flush_waiting(&mut replies);
            (messages, to) = (replies, 1 - to);
        }
        arrived.retain(|packet| !packet.is_empty());
        arrived
    }

    fn packets(count: u8) -> Vec<BytesMut> {
        (0..count)
            .map(|number| BytesMut::from(&[number; 32][..]))
            .collect()
    }

    #[test]
    fn waiting_packets_are_sent_in_order_when_the_session_is_established() {
        let ends = pair();
        let (mut waiting, mut first) = (packets(5), Vec::new());
        let mut sessions = ends[0].lock();
        sessions.begin_handshake(&mut first);
        sessions.queue_packets(&mut waiting, &ends[0].live.dropped, &mut first);
        drop(sessions);
        assert_eq!(first.len(), 1, "one handshake, however many packets wait");
        assert_eq!(converse(&ends, first, 1), packets(5));
        assert_eq!(
            ends[0].live.dropped.read(),
            super::super::Dropped::default()
        );
    }

    #[test]
    fn packets_wait_until_the_remote_has_the_session_that_it_began() {
        let ends = pair();
        let (mut lost, mut call, mut answer, mut call_again) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        ends[0]
            .lock()
            .queue_packets(&mut packets(2), &ends[0].live.dropped, &mut lost);
        ends[1].lock().begin_handshake(&mut call);
        let mut sessions = ends[0].lock();
        sessions
            .handle_handshake(call.remove(0), &mut answer)
            .unwrap();
        sessions.flush_waiting(&mut answer);
        sessions.queue_packets(&mut packets(1), &ends[0].live.dropped, &mut answer);
        drop(sessions);
        assert!(
            !answer
                .iter()
                .any(|message| matches!(message, WgKind::Data(_)))
        );
        // All of these are lost. The remote calls again.
        ends[1].lock().restart_handshake(&mut call_again);
        assert_eq!(
            converse(&ends, call_again, 0),
            [packets(2), packets(1)].concat()
        );
    }

    #[test]
    fn without_an_answer_a_bounded_number_of_packets_waits() {
        let ends = pair();
        let mut replies = Vec::new();
        for _ in 0..10 {
            ends[0]
                .lock()
                .queue_packets(&mut packets(20), &ends[0].live.dropped, &mut replies);
        }
        assert_eq!(
            ends[0].live.dropped.read().no_session,
            200 - MAX_WAITING as u64
        );
        assert_eq!(converse(&ends, replies, 1).len(), MAX_WAITING);
    }

    #[test]
    fn a_remote_whose_clock_went_back_is_accepted_once_its_last_call_is_forgotten() {
        let (own, remote) = (PrivateKey::generate(), PrivateKey::generate());
        let (identity, indices) = (LocalIdentity::new(&own), IndexTable::from_os_rng());
        let gateway = RemoteLink::new(
            &identity,
            &Arc::new(LiveRemote::new(remote.public_key())),
            None,
            &indices,
        );
        let call = || {
            let live = Arc::new(LiveRemote::new(own.public_key()));
            let client = RemoteLink::new(
                &LocalIdentity::new(&remote),
                &live,
                None,
                &IndexTable::from_os_rng(),
            );
            let mut calls = Vec::new();
            client.lock().begin_handshake(&mut calls);
            calls.remove(0)
        };
        // Each call is later than the one before, and they arrive in another order.
        let (first, second, third) = (call(), call(), call());
        let (mut sessions, mut replies) = (gateway.lock(), Vec::new());
        sessions.handle_handshake(third, &mut replies).unwrap();
        assert!(matches!(
            sessions.handle_handshake(second, &mut replies),
            Err(WireGuardError::WrongTai64nTimestamp)
        ));
        sessions.forget_sessions(&identity, &gateway.live, &indices);
        sessions.handle_handshake(first, &mut replies).unwrap();
        assert_eq!(replies.len(), 2, "an answer to each call that was accepted");
    }

    #[test]
    fn packets_without_a_session_stay_in_order() {
        let (mut left, mut encrypted) = (packets(3), Vec::new());
        pair()[0].lock().encrypt(&mut left, &mut encrypted);
        assert_eq!(left, packets(3));
        assert!(encrypted.is_empty());
    }

    #[test]
    fn other_settings_do_not_end_the_session() {
        let ends = pair();
        let mut first = Vec::new();
        ends[0].lock().begin_handshake(&mut first);
        converse(&ends, first, 1);
        let mut sessions = ends[0].lock();
        sessions.set_keepalive(Some(Duration::from_secs(5)));
        let (mut left, mut encrypted) = (packets(1), Vec::new());
        sessions.encrypt(&mut left, &mut encrypted);
        assert_eq!((left.len(), encrypted.len()), (0, 1));
    }
}
