//! The signals by which a user, a terminal that closes, or a system that stops ends a program.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of a program that a signal ended, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Interrupts {
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns at the next signal that comes after [`Self::listen`].
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Lets the next signal end the program. It would do nothing otherwise, because tokio's handlers
/// stay as long as the program runs.
pub fn exit_when_interrupted() {
    if let Ok(mut interrupts) = Interrupts::listen() {
        tokio::spawn(async move {
            interrupts.next().await;
            std::process::exit(INTERRUPTED);
        });
    }
}
