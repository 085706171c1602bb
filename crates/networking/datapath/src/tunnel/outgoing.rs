//! From the device to the wire.

use std::{
    io::{self, IoSlice},
    os::fd::AsFd,
    sync::Arc,
};

use bytes::BytesMut;
use gotatun::packet::{Packet, WgKind};
use nix::{
    libc::{EADDRNOTAVAIL, EINVAL, EIO, EMSGSIZE, ENETUNREACH},
    sys::socket::MsgFlags,
};

use super::{
    counters::{add_count, count_one},
    device::TunDevice,
    group::DatagramGroup,
    keys::PublicKey,
    live_remote::LiveRemote,
    offload::{self, OffloadHeader},
    packet,
    path_selection::PathSelection,
    segment::cut_segments,
    sessions::RemoteLink,
    shared::{RemoteEntry, RemoteTable, SharedTunnel},
    socket::{DatagramPath, MAX_BATCH_LEN},
    worker::StopSignal,
};

/// Carries packets from the device to the remotes until it is stopped or the device is gone.
pub(super) fn carry_outgoing(
    shared: &SharedTunnel,
    device: &TunDevice,
    stop: &StopSignal,
) -> io::Result<()> {
    let mut buffer = vec![0; offload::LENGTH + MAX_BATCH_LEN];
    let mut outgoing = OutgoingPackets::default();
    while !stop.is_requested() {
        stop.wait(Some(device.as_fd()), None)?;
        let mut table = shared.table();
        while let Some(length) = device.read(&mut buffer)? {
            let Some(bytes) = buffer.get(..length) else {
                continue;
            };
            outgoing.carry_packet(shared, &table, bytes);
            if stop.is_requested() {
                break;
            }
            table = shared.table();
        }
        outgoing.outbox.flush(&table);
    }
    Ok(())
}

/// Buffers that are reused for each packet.
#[derive(Default)]
struct OutgoingPackets {
    space: BytesMut,
    segments: Vec<BytesMut>,
    encrypted: Vec<Packet>,
    handshakes: Vec<WgKind>,
    outbox: Outbox,
}

impl OutgoingPackets {
    fn carry_packet(&mut self, shared: &SharedTunnel, table: &RemoteTable, bytes: &[u8]) {
        let Some((offload, header, packet)) = split_packet(bytes) else {
            return count_one(&shared.dropped.not_ip);
        };
        let Some(entry) = table.remote_for(&header.flow) else {
            return count_one(&shared.dropped.no_remote);
        };
        if self.space.capacity() < MAX_BATCH_LEN {
            self.space.reserve(2 * MAX_BATCH_LEN);
        }
        if cut_segments(
            offload,
            packet,
            &header,
            table.device.mtu(),
            &mut self.space,
            &mut self.segments,
        )
        .is_err()
        {
            self.space.clear();
            self.segments.clear();
            return count_one(&shared.dropped.not_ip);
        }
        if let Some(direct) = &entry.direct {
            let total = self.segments.len();
            self.segments
                .retain_mut(|segment| direct.translate_outgoing(segment).is_some());
            add_count(&entry.live.dropped.no_remote, total - self.segments.len());
        }
        self.send_segments(shared, table, entry);
    }

    /// Encrypts and sends the segments to a remote. Without a session they wait for one.
    fn send_segments(&mut self, shared: &SharedTunnel, table: &RemoteTable, entry: &RemoteEntry) {
        let (Some(path), Some(newest)) = (entry.live.path(), entry.links.first()) else {
            return self.segments.clear();
        };
        for link in &entry.links {
            let mut sessions = link.lock();
            sessions.encrypt(&mut self.segments, &mut self.encrypted);
            if self.segments.is_empty() {
                break;
            }
            // Until the newest key has a session, use that of the previous key.
            sessions.begin_handshake(&mut self.handshakes);
            drop(sessions);
            self.start_handshake(shared, table, link);
        }
        for packet in self.encrypted.drain(..) {
            self.outbox.push(table, &entry.live, path, packet);
        }
        if !self.segments.is_empty() {
            newest.lock().queue_packets(
                &mut self.segments,
                &entry.live.dropped,
                &mut self.handshakes,
            );
            self.start_handshake(shared, table, newest);
        }
    }

    fn start_handshake(
        &mut self,
        shared: &SharedTunnel,
        table: &RemoteTable,
        link: &Arc<RemoteLink>,
    ) {
        for message in self.handshakes.drain(..) {
            shared.remember(link, &message);
            if let Some(path) = link.live.path() {
                self.outbox.push(table, &link.live, path, message.into());
            }
        }
    }
}

/// Sends a packet of this process to a remote without blocking: if the socket is full, the packet
/// is lost, as on any link.
pub(super) fn send_inner(shared: &SharedTunnel, to: PublicKey, packet: &[u8]) {
    let table = shared.table();
    let Some(entry) = table.entry(&to) else {
        return count_one(&shared.dropped.no_remote);
    };
    let outbox = Outbox {
        flags: MsgFlags::MSG_DONTWAIT,
        ..Outbox::default()
    };
    let mut outgoing = OutgoingPackets {
        segments: vec![BytesMut::from(packet)],
        outbox,
        ..OutgoingPackets::default()
    };
    outgoing.send_segments(shared, &table, entry);
    outgoing.outbox.flush(&table);
}

fn split_packet(bytes: &[u8]) -> Option<(OffloadHeader, packet::PacketHeader, &[u8])> {
    let (offload, packet) = OffloadHeader::split_header(bytes)?;
    Some((offload, packet::parse_header(packet)?, packet))
}

/// Encrypted packets to send with one call.
pub(super) struct Outbox {
    flags: MsgFlags,
    packets: Vec<Packet>,
    group: DatagramGroup,
    target: Option<(Arc<LiveRemote>, DatagramPath)>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            flags: MsgFlags::empty(),
            packets: Vec::new(),
            group: DatagramGroup::default(),
            target: None,
        }
    }
}

impl Outbox {
    pub(super) fn push(
        &mut self,
        table: &RemoteTable,
        live: &Arc<LiveRemote>,
        path: DatagramPath,
        packet: Packet,
    ) {
        let same = self
            .target
            .as_ref()
            .is_some_and(|(target, current)| Arc::ptr_eq(target, live) && *current == path);
        if !same || !self.group.add(packet.len()) {
            self.flush(table);
            self.target = Some((Arc::clone(live), path));
            self.group.add(packet.len());
        }
        self.packets.push(packet);
    }

    pub(super) fn flush(&mut self, table: &RemoteTable) {
        if let Some((live, path)) = self.target.take() {
            let parts: Vec<_> = self
                .packets
                .iter()
                .map(|packet| IoSlice::new(packet))
                .collect();
            send_parts(
                table,
                &live,
                path,
                &parts,
                self.group.segment_size(),
                self.flags,
            );
        }
        self.group = DatagramGroup::default();
        self.packets.clear();
    }
}

/// Sends messages one by one over the remote's current path.
pub(super) fn send_all(
    shared: &SharedTunnel,
    table: &RemoteTable,
    link: &Arc<RemoteLink>,
    messages: &mut Vec<WgKind>,
) {
    for message in messages.drain(..) {
        shared.remember(link, &message);
        if let Some(path) = link.live.path() {
            send_one(table, &link.live, path, message);
        }
    }
}

/// Sends one message over this path.
pub(super) fn send_one(
    table: &RemoteTable,
    live: &LiveRemote,
    path: DatagramPath,
    message: WgKind,
) {
    send_parts(
        table,
        live,
        path,
        &[IoSlice::new(&Packet::from(message))],
        None,
        MsgFlags::empty(),
    );
}

fn send_parts(
    table: &RemoteTable,
    live: &LiveRemote,
    path: DatagramPath,
    parts: &[IoSlice<'_>],
    segment: Option<u16>,
    flags: MsgFlags,
) {
    let Some(socket) = table.socket_for(path) else {
        return add_count(&live.dropped.send_failed, parts.len());
    };
    let Err(error) = socket.send(parts, segment, path, flags) else {
        return add_count(&live.sent_bytes, parts.iter().map(|part| part.len()).sum());
    };
    match (error.raw_os_error(), path.local) {
        // The datagrams exceed the path MTU, so that IP must fragment each of them, or the device
        // does not support segmentation.
        (Some(EINVAL | EMSGSIZE | EIO), _) if segment.is_some() => {
            for part in parts {
                send_parts(table, live, path, &[*part], None, flags);
            }
        }
        // The address that the remote sent to is not ours any more.
        (Some(EINVAL | EADDRNOTAVAIL | ENETUNREACH), Some(_)) => {
            let path = DatagramPath {
                local: None,
                ..path
            };
            live.with_paths(PathSelection::forget_local);
            send_parts(table, live, path, parts, segment, flags);
        }
        _ => {
            tracing::debug!(%error, remote = %live.public_key, endpoint = %path.remote, "cannot send");
            add_count(&live.dropped.send_failed, parts.len());
        }
    }
}
