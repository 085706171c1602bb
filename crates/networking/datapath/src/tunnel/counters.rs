//! Counters of dropped packets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! dropped {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// Number of dropped packets, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Dropped {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct DroppedCounters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl DroppedCounters {
            pub(super) fn read(&self) -> Dropped {
                Dropped { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl Dropped {
            /// Each reason with its count.
            pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

dropped! {
    /// Outgoing: no enabled remote with a known address has the prefix.
    no_remote
    /// Outgoing: there is no session yet, and the queue of waiting packets is full.
    no_session
    /// Outgoing: the kernel refused it.
    send_failed
    /// Incoming: not WireGuard, or truncated.
    not_wireguard
    /// Incoming: for an unknown session, from before a restart or forged.
    unknown_session
    /// Incoming: a handshake for another key, from an unknown remote, or replayed.
    bad_handshake
    /// Incoming: not encrypted with the session's key.
    forged
    /// Incoming: received before, or too old to tell.
    replayed
    /// Incoming: the remote may not use this source address.
    wrong_source
    /// Incoming on a direct path: for an address here that the remote may not reach this way.
    wrong_destination
    /// Not an IP packet, in either direction.
    not_ip
    /// Incoming: the device, or the channel of a tunnel client, refused it.
    write_failed
}

pub(super) fn count_one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(super) fn add_count(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Relaxed);
}
