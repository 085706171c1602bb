//! The timer thread: sessions, probes and trials.

use std::{
    io,
    time::{Duration, Instant},
};

use gotatun::packet::WgKind;

use super::{
    direct,
    live_remote::LiveRemote,
    measure::{self, RemoteProbes},
    outgoing::{send_all, send_one},
    probe::{ProbePurpose, TunnelProbe},
    shared::{RemoteEntry, RemoteTable, SharedTunnel},
    worker::StopSignal,
};

/// Resolution of WireGuard's timers, which count seconds.
const TICK: Duration = Duration::from_millis(250);

pub(super) fn run_timers(shared: &SharedTunnel, stop: &StopSignal) -> io::Result<()> {
    let mut messages = Vec::new();
    while !stop.is_requested() {
        let table = shared.table();
        for link in table.entries.iter().flat_map(|entry| &entry.links) {
            link.lock().run_timers(&link.live.dropped, &mut messages);
            send_all(shared, &table, link, &mut messages);
        }
        table
            .entries
            .iter()
            .for_each(|entry| try_udp(&table, entry));
        send_due_probes(&table);
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
fn send_due_probes(table: &RemoteTable) {
    // Clusters behind a peer may be many. They must not delay how soon the loss of a peer's
    // gateway is noticed.
    let [usual_period, direct_period] = [false, true].map(|is_direct| {
        let entries = table.entries.iter();
        let of_kind = entries.filter(|entry| entry.probed && entry.direct.is_some() == is_direct);
        measure::probe_period(of_kind.count())
    });
    for entry in &table.entries {
        if !entry.probed {
            entry.live.with_measure(RemoteProbes::forget_probes);
            continue;
        }
        let direct = entry.direct.as_ref();
        let token = direct.map_or_else(rand::random, |direct| direct.probe_token(rand::random()));
        let period = if direct.is_some() {
            direct_period
        } else {
            usual_period
        };
        if entry
            .live
            .with_measure(|measure| measure.is_due(period, token, Instant::now()))
        {
            if direct.is_some() {
                choose_path(&entry.live);
            }
            let Some(path) = entry.live.path() else {
                continue;
            };
            let purpose = if direct.is_some() {
                ProbePurpose::Direct
            } else {
                ProbePurpose::Question
            };
            let question = encrypt_question(entry, purpose, token);
            // Without a session the probe counts as unanswered.
            entry
                .live
                .with_measure(|measure| measure.record_question(token, Instant::now()));
            if let Some(question) = question {
                send_one(table, &entry.live, path, question);
            }
        }
    }
}

/// Decides whether packets take the direct path to a remote.
fn choose_path(live: &LiveRemote) {
    let (answered, unanswered) =
        live.with_measure(|measure| (measure.answered_in_a_row(), measure.unanswered()));
    let is_used = direct::is_used(live.is_direct(), answered, unanswered);
    if live.set_direct(is_used) != is_used {
        tracing::info!(remote = %live.public_key, is_used, "a direct path is used, or no longer");
    }
}

fn encrypt_question(entry: &RemoteEntry, purpose: ProbePurpose, token: u64) -> Option<WgKind> {
    entry
        .links
        .iter()
        .find_map(|link| link.lock().encrypt_probe(TunnelProbe { purpose, token }))
        .map(WgKind::Data)
}

/// Sends a trial over UDP, if one is due.
fn try_udp(table: &RemoteTable, entry: &RemoteEntry) {
    let token = rand::random();
    let Some(path) = entry
        .live
        .with_paths(|paths| paths.next_trial(token, Instant::now()))
    else {
        return;
    };
    if let Some(question) = encrypt_question(entry, ProbePurpose::Trial, token) {
        send_one(table, &entry.live, path, question);
    }
}
