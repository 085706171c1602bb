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
    offload::{self, Offload},
    packet,
    segment::segment,
    sessions::Link,
    shared::{Entry, Live, Shared, Table},
    socket::{LARGEST, Path},
    way::Way,
    worker::Stop,
};

/// Carries packets from the device to the remotes until the end is wanted or the device is gone.
pub(super) fn run(shared: &Shared, device: &Device, stop: &Stop) -> io::Result<()> {
    let mut buffer = vec![0; offload::LENGTH + LARGEST];
    let mut outgoing = Outgoing::default();
    while !stop.requested() {
        stop.wait(Some(device.as_fd()), None)?;
        let mut table = shared.table();
        while let Some(length) = device.read(&mut buffer)? {
            outgoing.carry(shared, &table, &buffer[..length]);
            if stop.requested() {
                break;
            }
            table = shared.table();
        }
        outgoing.outbox.flush(&table);
    }
    Ok(())
}

/// Memory that is used again for each packet.
#[derive(Default)]
struct Outgoing {
    space: BytesMut,
    segments: Vec<BytesMut>,
    encrypted: Vec<Packet>,
    handshakes: Vec<WgKind>,
    outbox: Outbox,
}

impl Outgoing {
    fn carry(&mut self, shared: &Shared, table: &Table, bytes: &[u8]) {
        let Some((offload, header, packet)) = read(bytes) else { return count(&shared.dropped.not_ip) };
        let Some(entry) = table.remote_for(&header.flow) else { return count(&shared.dropped.no_remote) };
        if self.space.capacity() < LARGEST {
            self.space.reserve(2 * LARGEST);
        }
        if segment(offload, packet, &header, table.device.mtu(), &mut self.space, &mut self.segments).is_err() {
            self.space.clear();
            self.segments.clear();
            return count(&shared.dropped.not_ip);
        }
        self.send(shared, table, entry);
    }

    /// Encrypts the packets that were made ready for a remote. They are sent, or wait for its session.
    fn send(&mut self, shared: &Shared, table: &Table, entry: &Entry) {
        let (Some(path), Some(newest)) = (entry.live.path(), entry.links.first()) else { return self.segments.clear() };
        for link in &entry.links {
            let mut sessions = link.lock();
            sessions.encrypt(&mut self.segments, &mut self.encrypted);
            if self.segments.is_empty() {
                break;
            }
            // Until the newest key has a session, that of the previous one is good.
            sessions.begin(&mut self.handshakes);
            drop(sessions);
            self.greet(shared, table, link);
        }
        for packet in self.encrypted.drain(..) {
            self.outbox.push(table, &entry.live, path, packet);
        }
        if !self.segments.is_empty() {
            newest.lock().queue(&mut self.segments, &entry.live.dropped, &mut self.handshakes);
            self.greet(shared, table, newest);
        }
    }

    fn greet(&mut self, shared: &Shared, table: &Table, link: &Arc<Link>) {
        for message in self.handshakes.drain(..) {
            shared.remember(link, &message);
            if let Some(path) = link.live.path() {
                self.outbox.push(table, &link.live, path, message.into());
            }
        }
    }
}

/// Sends a packet of this process to a remote. Who calls is not made to wait: what the socket has no room for is lost, as on any wire.
pub(super) fn send_inner(shared: &Shared, to: PublicKey, packet: &[u8]) {
    let table = shared.table();
    let Some(entry) = table.entry(&to) else { return count(&shared.dropped.no_remote) };
    let outbox = Outbox { flags: MsgFlags::MSG_DONTWAIT, ..Outbox::default() };
    let mut outgoing = Outgoing { segments: vec![BytesMut::from(packet)], outbox, ..Outgoing::default() };
    outgoing.send(shared, &table, entry);
    outgoing.outbox.flush(&table);
}

fn read(bytes: &[u8]) -> Option<(Offload, packet::Header, &[u8])> {
    let (offload, packet) = Offload::read(bytes)?;
    Some((offload, packet::parse(packet)?, packet))
}

/// Encrypted packets that wait to be sent with one call.
pub(super) struct Outbox {
    flags: MsgFlags,
    packets: Vec<Packet>,
    group: Group,
    target: Option<(Arc<Live>, Path)>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { flags: MsgFlags::empty(), packets: Vec::new(), group: Group::default(), target: None }
    }
}

impl Outbox {
    pub(super) fn push(&mut self, table: &Table, live: &Arc<Live>, path: Path, packet: Packet) {
        let same = self.target.as_ref().is_some_and(|(target, way)| Arc::ptr_eq(target, live) && *way == path);
        if !same || !self.group.add(packet.len()) {
            self.flush(table);
            self.target = Some((Arc::clone(live), path));
            self.group.add(packet.len());
        }
        self.packets.push(packet);
    }

    pub(super) fn flush(&mut self, table: &Table) {
        if let Some((live, path)) = self.target.take() {
            let parts: Vec<_> = self.packets.iter().map(|packet| IoSlice::new(packet)).collect();
            send(table, &live, path, &parts, self.group.segment(), self.flags);
        }
        self.group = Group::default();
        self.packets.clear();
    }
}

/// Sends handshake messages and single packets to the remote of a link.
pub(super) fn send_all(shared: &Shared, table: &Table, link: &Arc<Link>, messages: &mut Vec<WgKind>) {
    for message in messages.drain(..) {
        shared.remember(link, &message);
        if let Some(path) = link.live.path() {
            send_one(table, &link.live, path, message);
        }
    }
}

/// Sends one message a way of its own.
pub(super) fn send_one(table: &Table, live: &Live, path: Path, message: WgKind) {
    send(table, live, path, &[IoSlice::new(&Packet::from(message))], None, MsgFlags::empty());
}

fn send(table: &Table, live: &Live, path: Path, parts: &[IoSlice<'_>], segment: Option<u16>, flags: MsgFlags) {
    let Some(socket) = table.socket_for(path) else { return add(&live.dropped.send_failed, parts.len()) };
    let Err(error) = socket.send(parts, segment, path, flags) else {
        return add(&live.sent_bytes, parts.iter().map(|part| part.len()).sum());
    };
    match (error.raw_os_error(), path.local) {
        // Datagrams that are larger than the way to the remote must be cut by IP, one by one; and not every device cuts for us.
        (Some(EINVAL | EMSGSIZE | EIO), _) if segment.is_some() => {
            for part in parts {
                send(table, live, path, &[*part], None, flags);
            }
        }
        // The address that the remote spoke to is not ours any more.
        (Some(EINVAL | EADDRNOTAVAIL | ENETUNREACH), Some(_)) => {
            let path = Path { local: None, ..path };
            live.with_way(Way::forget_local);
            send(table, live, path, parts, segment, flags);
        }
        _ => {
            tracing::debug!(%error, remote = %live.public_key, endpoint = %path.remote, "cannot send");
            add(&live.dropped.send_failed, parts.len());
        }
    }
}
