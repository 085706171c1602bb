//! What was carried and what was dropped, counted by many threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! dropped {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// How many packets were dropped, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Dropped {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, while it is counted.
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
            /// Each reason with its number.
            pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

dropped! {
    /// To be sent, but no remote that is enabled and can be reached has the prefix.
    no_remote
    /// To be sent, but there is no session yet and enough packets wait for one.
    no_session
    /// To be sent, but the kernel refused it.
    send_failed
    /// Received, but not WireGuard, or cut.
    not_wireguard
    /// Received for a session that we do not have: from before a restart, or made up.
    unknown_session
    /// A handshake that is not meant for us, from somebody whom we do not know, or repeated.
    bad_handshake
    /// Received, but not encrypted with the session's key.
    forged
    /// Received for a second time, or too late to be told from that.
    replayed
    /// Received from an address that is not the remote's to use.
    wrong_source
    /// Not an IP packet, on either side.
    not_ip
    /// Decrypted, but the device did not take it.
    write_failed
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(super) fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Relaxed);
}
