//! From the wire to the device.

use std::{
    io, mem,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use gotatun::{
    noise::{TunnResult, errors::WireGuardError, handshake::parse_handshake_anon},
    packet::{Packet, WgData, WgKind},
};

use super::{
    coalesce::Coalescer,
    counters::{add_count, count_one},
    interface::InwardChannel,
    keys::PublicKey,
    live_remote::LiveRemote,
    outgoing::{Outbox, send_all, send_one},
    packet,
    probe::{ProbePurpose, TunnelProbe},
    sessions::{RemoteLink, Sessions},
    shared::{RemoteTable, SharedTunnel},
    socket::{DatagramPath, MAX_BATCH_LEN, TunnelSocket},
    worker::StopSignal,
};
use crate::message::{DatagramKind, datagram_kind};

/// A tunnel client that is silent for this long has no session: it sends a keepalive every five
/// seconds.
const CLIENT_SILENCE: Duration = Duration::from_secs(15);

/// Carries packets from a socket to the device until it is stopped.
pub(super) fn carry_incoming(
    shared: &SharedTunnel,
    socket: &TunnelSocket,
    stop: &StopSignal,
) -> io::Result<()> {
    let mut incoming = IncomingPackets::new(shared);
    let mut space = ReceiveBuffer::default();
    while !stop.is_requested() {
        stop.wait(Some(socket.as_fd()), None)?;
        while let Some(received) = socket.receive(space.free_space())? {
            let datagrams = space.take_received(received.length);
            incoming.carry_datagrams(datagrams, received.segment, received.path);
            if stop.is_requested() {
                break;
            }
        }
    }
    Ok(())
}

/// A large receive buffer. Each call takes its part; the memory is cleared only when the whole
/// buffer is reused.
#[derive(Default)]
struct ReceiveBuffer(BytesMut);

impl ReceiveBuffer {
    const SIZE: usize = 4 * MAX_BATCH_LEN;

    /// Space for one call.
    #[expect(
        clippy::indexing_slicing,
        reason = "the buffer has this length: it gets a larger one if it is shorter"
    )]
    fn free_space(&mut self) -> &mut [u8] {
        if self.0.len() < MAX_BATCH_LEN {
            self.0.clear();
            // Reuses the memory if all parts were dropped.
            self.0.reserve(Self::SIZE);
            self.0.resize(Self::SIZE, 0);
        }
        &mut self.0[..MAX_BATCH_LEN]
    }

    fn take_received(&mut self, length: usize) -> BytesMut {
        self.0.split_to(length)
    }
}

struct IncomingPackets<'a> {
    shared: &'a SharedTunnel,
    coalescer: Coalescer,
    /// Encrypted packets of one session, to decrypt under one lock.
    batch: Vec<Packet<WgData>>,
    decrypted: Vec<BytesMut>,
    probes: Vec<TunnelProbe>,
    replies: Vec<WgKind>,
    outbox: Outbox,
}

impl<'a> IncomingPackets<'a> {
    fn new(shared: &'a SharedTunnel) -> Self {
        Self {
            shared,
            coalescer: Coalescer::new(shared.table().device.joins_udp()),
            batch: Vec::new(),
            decrypted: Vec::new(),
            probes: Vec::new(),
            replies: Vec::new(),
            outbox: Outbox::default(),
        }
    }

    /// Handles datagrams of one size from one sender.
    fn carry_datagrams(&mut self, mut datagrams: BytesMut, segment: usize, path: DatagramPath) {
        let table = self.shared.table();
        let mut session = None;
        while !datagrams.is_empty() {
            let datagram = datagrams.split_to(segment.clamp(1, datagrams.len()));
            match datagram_kind(&datagram) {
                Some(DatagramKind::Data(index)) => {
                    if session != Some(index) {
                        self.finish_batch(&table, session, path);
                        session = Some(index);
                    }
                    match Packet::from_bytes(datagram).try_into_wg() {
                        Ok(WgKind::Data(packet)) => self.batch.push(packet),
                        _ => count_one(&self.shared.dropped.not_wireguard),
                    }
                }
                Some(DatagramKind::Handshake) => {
                    self.finish_batch(&table, session.take(), path);
                    self.handle_handshake(&table, &datagram, path);
                }
                None => count_one(&self.shared.dropped.not_wireguard),
            }
        }
        self.finish_batch(&table, session, path);
        let dropped = &self.shared.dropped;
        self.coalescer.drain(|parts| {
            if let Err(error) = table.device.write(parts) {
                tracing::debug!(%error, "the device does not take a packet");
                add_count(&dropped.write_failed, parts.len() - 1);
            }
        });
    }

    /// Decrypts the batch of one session and accepts the packets that its remote may send.
    fn finish_batch(&mut self, table: &RemoteTable, session: Option<u32>, path: DatagramPath) {
        let Some(index) = session.filter(|_| !self.batch.is_empty()) else {
            return;
        };
        let Some(link) = self.shared.link_by_index(index) else {
            add_count(&self.shared.dropped.unknown_session, self.batch.len());
            return self.batch.clear();
        };
        let (live, mut bytes) = (&link.live, 0);
        let mut is_heard = false;
        let mut sessions = link.lock();
        for packet in self.batch.drain(..) {
            let length = packet.encrypted_encapsulated_packet_and_tag.len() + 16;
            match sessions.decrypt(packet) {
                Ok(packet) => {
                    bytes += length;
                    if let Some(probe) = TunnelProbe::from_packet(&packet) {
                        is_heard |= !probe.is_trial();
                        self.probes.push(probe);
                    } else {
                        is_heard = true;
                        self.decrypted.push(packet);
                    }
                }
                Err(WireGuardError::DuplicateCounter | WireGuardError::InvalidCounter) => {
                    count_one(&live.dropped.replayed);
                }
                Err(WireGuardError::NoCurrentSession) => count_one(&live.dropped.unknown_session),
                Err(_) => count_one(&live.dropped.forged),
            }
        }
        add_count(&live.received_bytes, bytes);
        if is_heard {
            live.record_heard(path);
        }
        for probe in self.probes.drain(..) {
            handle_probe(table, live, &mut sessions, probe, path);
        }
        if bytes > 0 {
            sessions.flush_waiting(&mut self.replies);
            self.send_answers(table, &link);
        }
        drop(sessions);
        self.accept_packets(table, &link);
    }

    fn accept_packets(&mut self, table: &RemoteTable, link: &RemoteLink) {
        let live = &link.live;
        if let Some(InwardChannel(inward)) = table
            .entry(&live.public_key)
            .and_then(|entry| entry.inward.as_ref())
        {
            for packet in self.decrypted.drain(..).filter(|packet| !packet.is_empty()) {
                // The channel is bounded in packets, so packets must be bounded in size.
                if packet.len() > usize::from(table.device.mtu())
                    || inward.try_send(packet.to_vec()).is_err()
                {
                    count_one(&live.dropped.write_failed);
                }
            }
            return;
        }
        let direct = table
            .entry(&live.public_key)
            .and_then(|entry| entry.direct.as_ref());
        // Packets of a batch usually have the same source.
        let mut allowed = None;
        for mut packet in self.decrypted.drain(..).filter(|packet| !packet.is_empty()) {
            let Some(mut header) = packet::parse_header(&packet) else {
                count_one(&live.dropped.not_ip);
                continue;
            };
            if let Some(direct) = direct {
                if !direct.admits(header.flow.destination) {
                    count_one(&live.dropped.wrong_destination);
                    continue;
                }
                let Some(translated) = direct
                    .translate_incoming(&mut packet)
                    .and_then(|()| packet::parse_header(&packet))
                else {
                    count_one(&live.dropped.wrong_source);
                    continue;
                };
                header = translated;
            }
            let source = header.flow.source;
            if allowed != Some(source) {
                if !table.may_send(live, source) {
                    count_one(&live.dropped.wrong_source);
                    continue;
                }
                allowed = Some(source);
            }
            packet.truncate(header.length);
            self.coalescer.push(packet, &header);
        }
    }

    fn handle_handshake(&mut self, table: &RemoteTable, datagram: &[u8], path: DatagramPath) {
        let shared = self.shared;
        let Some((identity, message)) = self.verify_handshake(table, datagram, path) else {
            return;
        };
        let link = match &message {
            WgKind::HandshakeInit(message) => table.identities.get(identity).and_then(|own| {
                let half = parse_handshake_anon(&own.secret, &own.public, message).ok()?;
                let entry = table
                    .entries
                    .get(*table.by_key.get(&PublicKey(half.peer_static_public))?)?;
                entry.links.get(identity).cloned()
            }),
            WgKind::HandshakeResp(message) => shared.link_by_index(message.receiver_idx.get()),
            WgKind::CookieReply(message) => shared.link_by_index(message.receiver_idx.get()),
            WgKind::Data(_) => None,
        };
        let Some(link) = link else {
            return count_one(&shared.dropped.bad_handshake);
        };
        // A cookie reply does not prove who sent it.
        let proves = !matches!(message, WgKind::CookieReply(_));
        let mut sessions = link.lock();
        match sessions.handle_handshake(message, &mut self.replies) {
            Ok(()) if proves => {
                link.live.record_heard(path);
                sessions.flush_waiting(&mut self.replies);
                // Under the lock: packets of the new session must not overtake the handshake's
                // answer.
                self.send_answers(table, &link);
            }
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(?error, remote = %link.live.public_key, from = %path.remote, "handshake refused");
                count_one(&link.live.dropped.bad_handshake);
                // The process of a tunnel client may have moved to a node whose clock is behind. It
                // calls again.
                if matches!(error, WireGuardError::WrongTai64nTimestamp)
                    && is_silent_client(table, &link.live)
                    && let Some(own) = table.identities.get(identity)
                {
                    sessions.forget_sessions(own, &link.live, &shared.indices);
                }
            }
        }
    }

    /// Finds out which of our keys a handshake message is for. Under load the sender must show a
    /// cookie first.
    fn verify_handshake(
        &self,
        table: &RemoteTable,
        datagram: &[u8],
        path: DatagramPath,
    ) -> Option<(usize, WgKind)> {
        for (number, identity) in table.identities.iter().enumerate() {
            let message = Packet::copy_from(datagram);
            match identity.limiter.verify_packet(path.remote, message) {
                Ok(message) => return Some((number, message)),
                Err(TunnResult::WriteToNetwork(cookie)) => {
                    send_cookie(table, cookie, path);
                    return None;
                }
                Err(_) => {}
            }
        }
        count_one(&self.shared.dropped.bad_handshake);
        None
    }

    /// Sends answers, and packets that waited for a session in groups.
    fn send_answers(&mut self, table: &RemoteTable, link: &Arc<RemoteLink>) {
        if self.replies.len() < 2 {
            return send_all(self.shared, table, link, &mut self.replies);
        }
        let Some(path) = link.live.path() else {
            return self.replies.clear();
        };
        for reply in mem::take(&mut self.replies) {
            self.shared.remember(link, &reply);
            self.outbox.push(table, &link.live, path, reply.into());
        }
        self.outbox.flush(table);
    }
}

/// Whether a remote is a tunnel client without a session.
fn is_silent_client(table: &RemoteTable, live: &LiveRemote) -> bool {
    let is_client = table
        .entry(&live.public_key)
        .is_some_and(|entry| entry.inward.is_some());
    is_client
        && live
            .last_received()
            .is_some_and(|silence| silence >= CLIENT_SILENCE)
}

/// Handles a probe: answers a question over the path that it came, or records an answer.
fn handle_probe(
    table: &RemoteTable,
    live: &Arc<LiveRemote>,
    sessions: &mut Sessions,
    probe: TunnelProbe,
    path: DatagramPath,
) {
    if probe.purpose == ProbePurpose::Direct {
        let entry = table.entry(&live.public_key);
        let direct = entry.and_then(|entry| entry.direct.as_ref());
        if !direct.is_some_and(|direct| direct.is_named_by(probe.token)) {
            return;
        }
    }
    if let Some(answer) = probe
        .answer()
        .and_then(|answer| sessions.encrypt_probe(answer))
    {
        return send_one(table, live, path, WgKind::Data(answer));
    }
    if matches!(
        probe.purpose,
        ProbePurpose::Answer | ProbePurpose::DirectAnswer
    ) {
        live.with_measure(|measure| measure.record_answer(probe.token, Instant::now()));
    }
    if probe.purpose == ProbePurpose::TrialAnswer
        && live.with_paths(|paths| paths.record_trial_answer(probe.token, Instant::now()))
    {
        tracing::info!(remote = %live.public_key, "UDP passes again and takes over from the relay");
        // A question over UDP makes the remote change its path, too.
        let question = sessions.encrypt_probe(TunnelProbe {
            purpose: ProbePurpose::Question,
            token: rand::random(),
        });
        if let (Some(question), Some(path)) = (question, live.path()) {
            send_one(table, live, path, WgKind::Data(question));
        }
    }
}

/// No remote's counters include the cookie, because the sender is not known yet.
fn send_cookie(table: &RemoteTable, cookie: WgKind, path: DatagramPath) {
    let cookie = Packet::from(cookie);
    let result = table.socket_for(path).map(|socket| {
        socket.send(
            &[io::IoSlice::new(&cookie)],
            None,
            path,
            nix::sys::socket::MsgFlags::empty(),
        )
    });
    if let Some(Err(error)) = result {
        tracing::debug!(%error, to = %path.remote, "cannot send a cookie");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_once_it_is_free() {
        let mut space = ReceiveBuffer::default();
        let place = space.free_space().as_ptr();
        for _ in 0..100 {
            space.free_space();
            drop(space.take_received(50_000));
        }
        while space.0.len() >= MAX_BATCH_LEN {
            drop(space.take_received(1000));
        }
        assert_eq!(space.free_space().as_ptr(), place);
    }
}
