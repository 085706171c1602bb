//! What the clock demands of each session.

use std::{
    io,
    time::{Duration, Instant},
};

use gotatun::packet::WgKind;

use super::{
    outgoing::{send_all, send_one},
    probe::{Probe, Purpose},
    shared::{Entry, Shared, Table},
    worker::Stop,
};

/// How exact the protocol's timers are; they count seconds.
const TICK: Duration = Duration::from_millis(250);

pub(super) fn run(shared: &Shared, stop: &Stop) -> io::Result<()> {
    let mut messages = Vec::new();
    while !stop.requested() {
        let table = shared.table();
        for link in table.entries.iter().flat_map(|entry| &entry.links) {
            link.lock().tick(&link.live.dropped, &mut messages);
            send_all(shared, &table, link, &mut messages);
        }
        table.entries.iter().for_each(|entry| try_directly(&table, entry));
        // Sessions do that, too; but there may be none.
        for identity in &table.identities {
            identity.limiter.try_reset_count();
        }
        shared.forget_indices();
        drop(table);
        stop.wait(None, Some(TICK))?;
    }
    Ok(())
}

/// Asks over UDP, when it is time to, while a relay carries packets.
fn try_directly(table: &Table, entry: &Entry) {
    let token = rand::random();
    let Some(path) = entry.live.with_way(|way| way.trial(token, Instant::now())) else { return };
    let question = entry.links.iter().find_map(|link| link.lock().probe(Probe { purpose: Purpose::Trial, token }));
    if let Some(question) = question {
        send_one(table, &entry.live, path, WgKind::Data(question));
    }
}
