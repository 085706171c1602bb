//! What the clock demands of each session.

use std::{io, time::Duration};

use super::{outgoing::send_all, shared::Shared, worker::Stop};

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
