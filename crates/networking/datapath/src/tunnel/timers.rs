//! The timer thread: sessions, probes and trials.

use std::{
    io,
    time::{Duration, Instant},
};

use gotatun::packet::WgKind;

use super::{
    measure::{self, Measure},
    outgoing::{send_all, send_one},
    probe::{Probe, Purpose},
    shared::{RemoteEntry, RemoteTable, Shared},
    worker::Stop,
};

/// Resolution of WireGuard's timers, which count seconds.
const TICK: Duration = Duration::from_millis(250);

pub(super) fn run(shared: &Shared, stop: &Stop) -> io::Result<()> {
    let mut messages = Vec::new();
    while !stop.requested() {
        let table = shared.table();
        for link in table.entries.iter().flat_map(|entry| &entry.links) {
            link.lock().tick(&link.live.dropped, &mut messages);
            send_all(shared, &table, link, &mut messages);
        }
        table.entries.iter().for_each(|entry| try_udp(&table, entry));
        measure(&table);
        // Sessions do this, too, but there may be none.
        for identity in &table.identities {
            identity.limiter.try_reset_count();
        }
        shared.forget_indices();
        drop(table);
        stop.wait(None, Some(TICK))?;
    }
    Ok(())
}

/// Sends the probes that are due.
fn measure(table: &RemoteTable) {
    let period = measure::period(table.entries.iter().filter(|entry| entry.probed).count());
    for entry in &table.entries {
        if !entry.probed {
            entry.live.with_measure(Measure::forget);
            continue;
        }
        let token = rand::random();
        if entry.live.with_measure(|measure| measure.is_due(period, token, Instant::now())) {
            let Some(path) = entry.live.path() else { continue };
            let question = question(entry, Purpose::Question, token);
            // Without a session the probe counts as unanswered.
            entry.live.with_measure(|measure| measure.ask(token, Instant::now()));
            if let Some(question) = question {
                send_one(table, &entry.live, path, question);
            }
        }
    }
}

fn question(entry: &RemoteEntry, purpose: Purpose, token: u64) -> Option<WgKind> {
    entry.links.iter().find_map(|link| link.lock().probe(Probe { purpose, token })).map(WgKind::Data)
}

/// Sends a trial over UDP, if one is due.
fn try_udp(table: &RemoteTable, entry: &RemoteEntry) {
    let token = rand::random();
    let Some(path) = entry.live.with_paths(|paths| paths.trial(token, Instant::now())) else { return };
    if let Some(question) = question(entry, Purpose::Trial, token) {
        send_one(table, &entry.live, path, question);
    }
}
