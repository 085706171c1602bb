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
    counters::{add, count},
    device::Device,
    group::Group,
    keys::PublicKey,
    live_remote::LiveRemote,
    offload::{self, Offload},
    packet,
    path_selection::PathSelection,
    segment::segment,
    sessions::Link,
    shared::{RemoteEntry, RemoteTable, Shared},
    socket::{MAX_BATCH_LEN, Path},
    worker::Stop,
};

/// Carries packets from the device to the remotes until it is stopped or the device is gone.
pub(super) fn run(shared: &Shared, device: &Device, stop: &Stop) -> io::Result<()> {
    let mut buffer = vec![0; offload::LENGTH + MAX_BATCH_LEN];
    let mut outgoing = Outgoing::default();
    while !stop.requested() {
        stop.wait(Some(device.as_fd()), None)?;
        let mut table = shared.table();
        while let Some(length) = device.read(&mut buffer)? {
            let Some(bytes) = buffer.get(..length) else {
                continue;
            };
            outgoing.carry(shared, &table, bytes);
            if stop.requested() {
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
struct Outgoing {
    space: BytesMut,
    segments: Vec<BytesMut>,
    encrypted: Vec<Packet>,
    handshakes: Vec<WgKind>,
    outbox: Outbox,
}

impl Outgoing {
    fn carry(&mut self, shared: &Shared, table: &RemoteTable, bytes: &[u8]) {
        let Some((offload, header, packet)) = read(bytes) else {
            return count(&shared.dropped.not_ip);
        };
        let Some(entry) = table.remote_for(&header.flow) else {
            return count(&shared.dropped.no_remote);
        };
        if self.space.capacity() < MAX_BATCH_LEN {
            self.space.reserve(2 * MAX_BATCH_LEN);
        }
        if segment(
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
            return count(&shared.dropped.not_ip);
        }
        if let Some(direct) = &entry.direct {
            let total = self.segments.len();
            self.segments
                .retain_mut(|segment| direct.outgoing(segment).is_some());
            add(&entry.live.dropped.no_remote, total - self.segments.len());
        }
        self.send(shared, table, entry);
    }

    /// Encrypts and sends the segments to a remote. Without a session they wait for one.
    fn send(&mut self, shared: &Shared, table: &RemoteTable, entry: &RemoteEntry) {
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
            sessions.begin(&mut self.handshakes);
            drop(sessions);
            self.greet(shared, table, link);
        }
        for packet in self.encrypted.drain(..) {
            self.outbox.push(table, &entry.live, path, packet);
        }
        if !self.segments.is_empty() {
            newest.lock().queue(
                &mut self.segments,
                &entry.live.dropped,
                &mut self.handshakes,
            );
            self.greet(shared, table, newest);
        }
    }

    fn greet(&mut self, shared: &Shared, table: &RemoteTable, link: &Arc<Link>) {
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
pub(super) fn send_inner(shared: &Shared, to: PublicKey, packet: &[u8]) {
    let table = shared.table();
    let Some(entry) = table.entry(&to) else {
        return count(&shared.dropped.no_remote);
    };
    let outbox = Outbox {
        flags: MsgFlags::MSG_DONTWAIT,
        ..Outbox::default()
    };
    let mut outgoing = Outgoing {
        segments: vec![BytesMut::from(packet)],
        outbox,
        ..Outgoing::default()
    };
    outgoing.send(shared, &table, entry);
    outgoing.outbox.flush(&table);
}

fn read(bytes: &[u8]) -> Option<(Offload, packet::Header, &[u8])> {
    let (offload, packet) = Offload::read(bytes)?;
    Some((offload, packet::parse(packet)?, packet))
}

/// Encrypted packets to send with one call.
pub(super) struct Outbox {
    flags: MsgFlags,
    packets: Vec<Packet>,
    group: Group,
    target: Option<(Arc<LiveRemote>, Path)>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            flags: MsgFlags::empty(),
            packets: Vec::new(),
            group: Group::default(),
            target: None,
        }
    }
}

impl Outbox {
    pub(super) fn push(
        &mut self,
        table: &RemoteTable,
        live: &Arc<LiveRemote>,
        path: Path,
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
            send(table, &live, path, &parts, self.group.segment(), self.flags);
        }
        self.group = Group::default();
        self.packets.clear();
    }
}

/// Sends messages one by one over the remote's current path.
pub(super) fn send_all(
    shared: &Shared,
    table: &RemoteTable,
    link: &Arc<Link>,
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
pub(super) fn send_one(table: &RemoteTable, live: &LiveRemote, path: Path, message: WgKind) {
    send(
        table,
        live,
        path,
        &[IoSlice::new(&Packet::from(message))],
        None,
        MsgFlags::empty(),
    );
}

fn send(
    table: &RemoteTable,
    live: &LiveRemote,
    path: Path,
    parts: &[IoSlice<'_>],
    segment: Option<u16>,
    flags: MsgFlags,
) {
    let Some(socket) = table.socket_for(path) else {
        return add(&live.dropped.send_failed, parts.len());
    };
    let Err(error) = socket.send(parts, segment, path, flags) else {
        return add(&live.sent_bytes, parts.iter().map(|part| part.len()).sum());
    };
    match (error.raw_os_error(), path.local) {
        // The datagrams exceed the path MTU, so that IP must fragment each of them, or the device
        // does not support segmentation.
        (Some(EINVAL | EMSGSIZE | EIO), _) if segment.is_some() => {
            for part in parts {
                send(table, live, path, &[*part], None, flags);
            }
        }
        // The address that the remote sent to is not ours any more.
        (Some(EINVAL | EADDRNOTAVAIL | ENETUNREACH), Some(_)) => {
            let path = Path {
                local: None,
                ..path
            };
            live.with_paths(PathSelection::forget_local);
            send(table, live, path, parts, segment, flags);
        }
        _ => {
            tracing::debug!(%error, remote = %live.public_key, endpoint = %path.remote, "cannot send");
            add(&live.dropped.send_failed, parts.len());
        }
    }
}
