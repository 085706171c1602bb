//! Stays subscribed to a plugin, whatever happens to it.
//!
//! ```text
//!             no answer                 the stream ends, or Subscribe is refused
//!   Unreachable <──────── attempt ────────────────────────────────> NotSubscribed
//!        │                 ▲   │ an answer                               │
//!        │   ever longer   │   ▼                                         │
//!        └──── delay ──────┤ Connected: All, then what the plugin tells  │
//!                          └─────────────────── delay ───────────────────┘
//! ```
//!
//! A plugin need not say anything before the first change, not even that it took the subscription. So it is asked now and
//! then whether it is alive, by the usual health check: any answer will do, also that there is no such method.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::uri::PathAndQuery;
use rand::Rng as _;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};
use tonic::{Code, Request, Status, client::Grpc};

use super::{Connection, Fault, State, fault};
use crate::{
    changes::Announcer,
    codec::Raw,
    model::Change,
    server::chain,
    wire::{self, SUBSCRIBE},
};

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// A notification holds the ID of one cluster.
const LARGEST_NOTIFICATION: usize = 4096;
/// After so many notifications in a row the plugin has to wait a little: nobody could act on more.
const BURST: u32 = 256;
const PAUSE: Duration = Duration::from_millis(20);

/// How long a plugin may say nothing at all before it is asked whether it is alive.
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// A stream counts as a subscription when it lasted this long: some plugins end each at once.
const SETTLED: Duration = Duration::from_millis(250);

/// The task that stays subscribed; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Task(JoinHandle<()>);

impl Task {
    pub(super) fn start(connection: Arc<Connection>, announcer: Announcer, state: watch::Sender<State>) -> Self {
        Self(tokio::spawn(async move {
            let mut failures = 0;
            loop {
                let started = Instant::now();
                let mut attempt =
                    Attempt { connection: &connection, announcer: &announcer, state: &state, told_all: false, settled: false };
                let ended = attempt.run().await;
                attempt.end(&ended);
                // What held for long was no failure; what ended soon is tried ever more slowly.
                let settings = &connection.settings;
                failures = if started.elapsed() > settings.longest_delay { 1 } else { failures + 1 };
                let longest = delay(settings.shortest_delay, settings.longest_delay, failures);
                let jitter = rand::rng().random_range(0.5..=1.0);
                sleep(longest.mul_f64(jitter)).await;
            }
        }))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Twice as long after each failure in a row.
fn delay(shortest: Duration, longest: Duration, failures: u32) -> Duration {
    shortest.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(longest)
}

/// Why an attempt ended.
enum End {
    /// No sign of life.
    Silent(Fault),
    /// The plugin ended it.
    Ended(String),
}

struct Attempt<'a> {
    connection: &'a Connection,
    announcer: &'a Announcer,
    state: &'a watch::Sender<State>,
    /// Whether it was said in this attempt that everything may have changed.
    told_all: bool,
    /// Whether the plugin counts as subscribed to.
    settled: bool,
}

impl Attempt<'_> {
    /// Subscribes, and listens until that ends.
    async fn run(&mut self) -> End {
        let deadline = self.connection.settings.deadline;
        let channel = match self.connection.channel() {
            Ok(channel) => channel,
            Err(error) => return End::Silent(error.into()),
        };
        let mut grpc = Grpc::new(channel).max_decoding_message_size(LARGEST_NOTIFICATION);
        if let Err(error) = grpc.ready().await {
            return End::Silent(Fault::Unreachable(chain(&error)));
        }
        let mut probes = interval_at(Instant::now() + FIRST_PROBE.min(deadline), self.connection.settings.probe);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);

        let mut stream = {
            let subscribe = grpc.server_streaming(Request::new(Bytes::new()), PathAndQuery::from_static(SUBSCRIBE), Raw);
            tokio::pin!(subscribe);
            loop {
                tokio::select! {
                    answer = &mut subscribe => match answer {
                        Ok(stream) => break stream.into_inner(),
                        Err(status) => return self.ended_by(&status),
                    },
                    // It may have taken the subscription, and have nothing to say yet.
                    _ = probes.tick() => match self.probe().await {
                        Ok(()) => self.settle(),
                        Err(fault) => return End::Silent(fault),
                    },
                }
            }
        };
        let settled = sleep(SETTLED);
        tokio::pin!(settled);
        let mut burst = 0;
        loop {
            tokio::select! {
                message = stream.message() => {
                    match message {
                        Ok(Some(message)) => self.tell(&message),
                        Ok(None) => return End::Ended("it ended the subscription".to_owned()),
                        Err(status) => return self.ended_by(&status),
                    }
                    burst += 1;
                    if burst == BURST {
                        burst = 0;
                        sleep(PAUSE).await;
                    }
                }
                () = &mut settled, if !self.settled => self.settle(),
                _ = probes.tick() => {
                    if let Err(fault) = self.probe().await {
                        return End::Silent(fault);
                    }
                }
            }
        }
    }

    /// Any answer is a sign of life.
    async fn probe(&self) -> Result<(), Fault> {
        match self.connection.call(HEALTH_CHECK, Bytes::new()).await {
            Err(fault @ (Fault::Unreachable(_) | Fault::Timeout(_) | Fault::Tls(_))) => Err(fault),
            _ => Ok(()),
        }
    }

    fn ended_by(&self, status: &Status) -> End {
        match fault(status, self.connection.settings.deadline) {
            fault @ (Fault::Unreachable(_) | Fault::Timeout(_)) => End::Silent(fault),
            Fault::Refused { code: Code::Unimplemented, .. } => End::Ended("it knows no method Subscribe".to_owned()),
            fault => End::Ended(fault.to_string()),
        }
    }

    /// Passes on what the plugin said. What cannot be read may mean anything.
    fn tell(&mut self, notification: &[u8]) {
        match wire::decode_cluster(notification) {
            Ok(cluster) if !cluster.is_empty() => self.announcer.announce(&Change::Cluster(cluster)),
            _ => self.tell_all(),
        }
    }

    fn tell_all(&mut self) {
        self.told_all = true;
        self.announcer.announce(&Change::All);
    }

    /// The plugin is there and tells of changes from now on; those before are unknown.
    fn settle(&mut self) {
        self.settled = true;
        if !self.told_all {
            self.tell_all();
        }
        if self.say(State::Connected) {
            tracing::info!(plugin = %self.connection.address, "subscribed to the resource plugin");
        }
    }

    fn end(&mut self, end: &End) {
        let plugin = &self.connection.address;
        match end {
            End::Silent(fault) => {
                self.connection.forget();
                let reason = fault.to_string();
                if self.say(State::Unreachable(reason.clone())) {
                    tracing::warn!(%plugin, reason, "the resource plugin does not answer, trying on");
                }
            }
            End::Ended(reason) => {
                // Nobody will tell of changes, so each attempt stands for one.
                if !self.settled && !self.told_all {
                    self.tell_all();
                }
                if self.say(State::NotSubscribed(reason.clone())) {
                    tracing::warn!(%plugin, reason, "the resource plugin tells of no changes, trying on");
                }
            }
        }
    }

    /// Returns whether that is new.
    fn say(&self, state: State) -> bool {
        self.state.send_if_modified(|said| {
            let new = *said != state;
            *said = state;
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_ever_more_slowly_up_to_a_limit() {
        let (shortest, longest) = (Duration::from_millis(200), Duration::from_secs(30));
        let delays: Vec<u128> = (1..=10).map(|failures| delay(shortest, longest, failures).as_millis()).collect();
        assert_eq!(delays, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(delay(shortest, longest, u32::MAX), longest);
    }
}
