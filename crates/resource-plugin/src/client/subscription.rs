//! Keeps a subscription to a plugin: it subscribes again after every failure.
//!
//! ```text
//!             no answer                 the stream ends, or Subscribe is refused
//!   Unreachable <──────── attempt ────────────────────────────────> NotSubscribed
//!        │                 ▲   │ an answer                               │
//!        │     growing     │   ▼                                         │
//!        └──── delay ──────┤ Connected: All, then the plugin's changes   │
//!                          └─────────────────── delay ───────────────────┘
//! ```
//!
//! A plugin may send nothing before the first change, not even that it accepted the subscription.
//! So the client calls the standard health check at intervals. Every answer proves that the plugin
//! is alive, even an error that there is no such method.

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

use super::{CallFault, PluginConnection, SubscriptionState, fault_of_status};
use crate::{
    changes::Announcer,
    codec::RawCodec,
    model::Change,
    server::error_chain,
    wire::{self, SUBSCRIBE},
};

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// Maximum size of a notification in bytes. A notification contains one cluster ID.
const MAX_NOTIFICATION_LEN: usize = 4096;
/// After this many notifications the client pauses, because it cannot act on more.
const BURST: u32 = 256;
const PAUSE: Duration = Duration::from_millis(20);

/// Delay of the first health check after subscribing.
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// A stream counts as a subscription once it has lasted this long: some plugins end each stream at
/// once.
const SETTLED: Duration = Duration::from_millis(250);

/// The task that keeps the subscription. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct SubscriptionTask(JoinHandle<()>);

impl SubscriptionTask {
    pub(super) fn start(
        connection: Arc<PluginConnection>,
        announcer: Announcer,
        state: watch::Sender<SubscriptionState>,
    ) -> Self {
        Self(tokio::spawn(async move {
            let mut failures = 0;
            loop {
                let started = Instant::now();
                let mut attempt = SubscriptionAttempt {
                    connection: &connection,
                    announcer: &announcer,
                    state: &state,
                    announced_all: false,
                    settled: false,
                };
                let ended = attempt.run().await;
                attempt.finish_attempt(&ended);
                // A long subscription resets the delay; short ones increase it.
                let settings = &connection.settings;
                failures = if started.elapsed() > settings.longest_delay {
                    1
                } else {
                    failures + 1
                };
                let longest =
                    retry_delay(settings.shortest_delay, settings.longest_delay, failures);
                let jitter = rand::rng().random_range(0.5..=1.0);
                sleep(longest.mul_f64(jitter)).await;
            }
        }))
    }
}

impl Drop for SubscriptionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The delay doubles with each consecutive failure.
fn retry_delay(shortest: Duration, longest: Duration, failures: u32) -> Duration {
    shortest
        .saturating_mul(1 << failures.saturating_sub(1).min(20))
        .min(longest)
}

/// Why an attempt ended.
enum SubscriptionEnd {
    /// The plugin did not answer.
    Silent(CallFault),
    /// The plugin ended or refused the subscription.
    Ended(String),
}

struct SubscriptionAttempt<'a> {
    connection: &'a PluginConnection,
    announcer: &'a Announcer,
    state: &'a watch::Sender<SubscriptionState>,
    /// Whether this attempt has announced [`Change::All`].
    announced_all: bool,
    /// Whether the subscription is established.
    settled: bool,
}

impl SubscriptionAttempt<'_> {
    /// Subscribes and listens until the subscription ends.
    async fn run(&mut self) -> SubscriptionEnd {
        let deadline = self.connection.settings.deadline;
        let channel = match self.connection.channel() {
            Ok(channel) => channel,
            Err(error) => return SubscriptionEnd::Silent(error.into()),
        };
        let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_NOTIFICATION_LEN);
        if let Err(error) = grpc.ready().await {
            return SubscriptionEnd::Silent(CallFault::Unreachable(error_chain(&error)));
        }
        let mut probes = interval_at(
            Instant::now() + FIRST_PROBE.min(deadline),
            self.connection.settings.probe,
        );
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);

        let mut stream = {
            let subscribe = grpc.server_streaming(
                Request::new(Bytes::new()),
                PathAndQuery::from_static(SUBSCRIBE),
                RawCodec,
            );
            tokio::pin!(subscribe);
            loop {
                tokio::select! {
                    answer = &mut subscribe => match answer {
                        Ok(stream) => break stream.into_inner(),
                        Err(status) => return self.ended_by(&status),
                    },
                    // It may have accepted the subscription and have nothing to send yet.
                    _ = probes.tick() => match self.check_alive().await {
                        Ok(()) => self.mark_settled(),
                        Err(fault) => return SubscriptionEnd::Silent(fault),
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
                        Ok(Some(message)) => self.announce_notification(&message),
                        Ok(None) => return SubscriptionEnd::Ended("it ended the subscription".to_owned()),
                        Err(status) => return self.ended_by(&status),
                    }
                    burst += 1;
                    if burst == BURST {
                        burst = 0;
                        sleep(PAUSE).await;
                    }
                }
                () = &mut settled, if !self.settled => self.mark_settled(),
                _ = probes.tick() => {
                    if let Err(fault) = self.check_alive().await {
                        return SubscriptionEnd::Silent(fault);
                    }
                }
            }
        }
    }

    /// Every answer proves that the plugin is alive.
    async fn check_alive(&self) -> Result<(), CallFault> {
        match self.connection.call(HEALTH_CHECK, Bytes::new()).await {
            Err(
                fault @ (CallFault::Unreachable(_) | CallFault::Timeout(_) | CallFault::Tls(_)),
            ) => Err(fault),
            _ => Ok(()),
        }
    }

    fn ended_by(&self, status: &Status) -> SubscriptionEnd {
        match fault_of_status(status, self.connection.settings.deadline) {
            fault @ (CallFault::Unreachable(_) | CallFault::Timeout(_)) => {
                SubscriptionEnd::Silent(fault)
            }
            CallFault::Refused {
                code: Code::Unimplemented,
                ..
            } => SubscriptionEnd::Ended("it has no method Subscribe".to_owned()),
            fault => SubscriptionEnd::Ended(fault.to_string()),
        }
    }

    /// Announces a notification. One that cannot be decoded may mean that anything changed.
    fn announce_notification(&mut self, notification: &[u8]) {
        match wire::decode_cluster(notification) {
            Ok(cluster) if !cluster.is_empty() => {
                self.announcer.announce(&Change::Cluster(cluster));
            }
            _ => self.announce_all(),
        }
    }

    fn announce_all(&mut self) {
        self.announced_all = true;
        self.announcer.announce(&Change::All);
    }

    /// The plugin reports changes from now on. Earlier ones are unknown.
    fn mark_settled(&mut self) {
        self.settled = true;
        if !self.announced_all {
            self.announce_all();
        }
        if self.set_state(SubscriptionState::Connected) {
            tracing::info!(plugin = %self.connection.address, "subscribed to the resource plugin");
        }
    }

    fn finish_attempt(&mut self, end: &SubscriptionEnd) {
        let plugin = &self.connection.address;
        match end {
            SubscriptionEnd::Silent(fault) => {
                self.connection.forget();
                let reason = fault.to_string();
                if self.set_state(SubscriptionState::Unreachable(reason.clone())) {
                    tracing::warn!(%plugin, reason, "the resource plugin does not answer; trying again");
                }
            }
            SubscriptionEnd::Ended(reason) => {
                // Nobody reports changes, so each attempt counts as one.
                if !self.settled && !self.announced_all {
                    self.announce_all();
                }
                if self.set_state(SubscriptionState::NotSubscribed(reason.clone())) {
                    tracing::warn!(%plugin, reason, "the resource plugin does not report changes; trying again");
                }
            }
        }
    }

    /// Returns whether the state has changed.
    fn set_state(&self, state: SubscriptionState) -> bool {
        self.state.send_if_modified(|current| {
            let new = *current != state;
            *current = state;
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_between_attempts_grow_up_to_a_limit() {
        let (shortest, longest) = (Duration::from_millis(200), Duration::from_secs(30));
        let delays: Vec<u128> = (1..=10)
            .map(|failures| retry_delay(shortest, longest, failures).as_millis())
            .collect();
        assert_eq!(
            delays,
            [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
        );
        assert_eq!(retry_delay(shortest, longest, u32::MAX), longest);
    }
}
