//! Leader election with a Lease: of all replicas of the manager, one leads.
//!
//! A replica takes over when the lease has not changed for a while, by its own monotonic clock. It
//! does not compare the times in the lease with its clock, so clocks may differ. These times only
//! tell a new leader since when nobody led.
//!
//! The holder writes into the lease how long it is valid, and others wait that long. So replicas
//! with different [`LeaseTiming`]s may take part in one election, for example during an update.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// Maximum time between two reads of the lease by a replica that waits.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// Delay before the next attempt after a renewal that failed.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The times of one participant. A short lease lets others replace a dead holder soon, but a slow
/// API server ends a holder soon, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// Whole seconds for which the lease is valid after a renewal.
    lease_seconds: u64,
}

impl LeaseTiming {
    /// For a single replica: a new pod replaces it, and nothing is won if it gives up early.
    pub const ALONE: Self = Self::of_lease(15);
    /// For several replicas: another one waits.
    pub const WITH_STANDBY: Self = Self::of_lease(7);

    pub const fn of_lease(lease_seconds: u64) -> Self {
        Self { lease_seconds }
    }

    pub const fn lease_seconds(self) -> u64 {
        self.lease_seconds
    }

    pub const fn lease_duration(self) -> Duration {
        Duration::from_secs(self.lease_seconds)
    }

    /// Time for which the holder tries to renew before it gives up: less than the lease, so that it
    /// ends before another one starts.
    const fn renew_deadline(self) -> Duration {
        Duration::from_millis(self.lease_seconds * 2000 / 3)
    }

    /// Time between two renewals.
    const fn renew_period(self) -> Duration {
        Duration::from_millis(self.lease_seconds * 1000 / 7)
    }

    /// Timeout of one attempt.
    const fn request_timeout(self) -> Duration {
        Duration::from_millis(self.lease_seconds * 1000 / 3)
    }

    /// Maximum time from the death of the holder until another replica has the lease, if the API
    /// server answers at once. The other replica may have seen the last renewal one poll late.
    pub const fn takeover_limit(self) -> Duration {
        Duration::from_secs(self.lease_seconds + POLL_PERIOD.as_secs())
    }
}

/// Takes part in the election for one Lease.
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    timing: LeaseTiming,
    clock: Clock,
}

/// The lease as it was last seen.
#[derive(Clone, Debug, Default)]
struct ObservedLease {
    lease: Option<Lease>,
    changed_at: Option<Instant>,
    /// The silent holder whom our last write replaces, if it was stored: its answer may have been
    /// lost.
    replacing: Option<String>,
    /// The last time at which a process before this one renewed or released the lease, by that
    /// process's clock.
    former_renewal: Option<Timestamp>,
    /// Whether it is as our last write left it, as far as we know: then the next write needs no
    /// read before it.
    is_our_write: bool,
}

impl ObservedLease {
    fn holder(&self) -> Option<&str> {
        self.lease
            .as_ref()?
            .spec
            .as_ref()?
            .holder_identity
            .as_deref()
            .filter(|holder| !holder.is_empty())
    }

    /// Takes note of a lease that another process wrote, or a former process of the same name.
    fn note_renewal(&mut self, identity: &str) {
        if self.holder() != Some(identity) || self.former_renewal.is_none() {
            let spec = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
            self.former_renewal = spec.and_then(|spec| Some(spec.renew_time.as_ref()?.0));
        }
    }
}

#[derive(Debug, PartialEq)]
enum LeaseDecision {
    Create,
    TakeOrRenew,
    /// Read the lease again after this time.
    Wait(Duration),
}

/// The outcome of one step.
#[derive(Debug, PartialEq)]
enum ElectionOutcome {
    /// The lease is ours, since before or from now on.
    Held {
        /// The holder that was silent for too long, and that we replaced.
        replaced: Option<String>,
    },
    /// It is not ours: read it again after this time.
    Waits(Duration),
}

/// Takes a lease that is free, ours, or unchanged for its whole duration; waits otherwise, at most
/// until that duration is over.
fn decide_on_lease(observed: &ObservedLease, identity: &str, now: Instant) -> LeaseDecision {
    let Some(lease) = &observed.lease else {
        return LeaseDecision::Create;
    };
    match observed.holder() {
        None => return LeaseDecision::TakeOrRenew,
        Some(holder) if holder == identity => return LeaseDecision::TakeOrRenew,
        Some(_) => {}
    }
    let seconds = lease
        .spec
        .as_ref()
        .and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok());
    let duration = seconds.map_or(LeaseTiming::ALONE.lease_duration(), Duration::from_secs);
    let silent_for = observed
        .changed_at
        .map_or(duration, |at| now.saturating_duration_since(at));
    match duration.checked_sub(silent_for) {
        Some(left) if !left.is_zero() => LeaseDecision::Wait(left.min(POLL_PERIOD)),
        _ => LeaseDecision::TakeOrRenew,
    }
}

impl Election {
    /// Takes part as `identity` (the pod's name) in the election for Lease `name`.
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: &str,
        timing: LeaseTiming,
        clock: Clock,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            timing,
            clock,
        }
    }

    /// Waits until this process is the leader. Returns `None` after `stop`.
    pub async fn acquire(&self, stop: &CancellationToken) -> Option<Leadership<'_>> {
        let mut observed = ObservedLease::default();
        let mut announced = String::new();
        loop {
            let asked_at = Instant::now();
            let wait = match self.run_step(&mut observed).await {
                Ok(ElectionOutcome::Held { replaced }) => {
                    return Some(Leadership {
                        election: self,
                        observed,
                        renewed_at: asked_at,
                        replaced,
                    });
                }
                Ok(ElectionOutcome::Waits(wait)) => {
                    let holder = observed.holder().unwrap_or_default();
                    if holder != announced {
                        tracing::info!(holder, "waiting for leadership");
                        announced = holder.to_owned();
                    }
                    wait
                }
                Err(error) => {
                    tracing::warn!(%error, "leader election: cannot read or write the lease");
                    POLL_PERIOD
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Reads, decides and writes once. A holder that renews only writes: the API server refuses
    /// that if somebody else wrote meanwhile.
    async fn run_step(&self, observed: &mut ObservedLease) -> kube::Result<ElectionOutcome> {
        if !std::mem::take(&mut observed.is_our_write) {
            self.read_lease(observed).await?;
        }
        let replaced = match observed.holder() {
            Some(holder) if holder == self.identity => observed.replacing.clone(),
            other => other.map(str::to_owned),
        };
        let written = match decide_on_lease(observed, &self.identity, Instant::now()) {
            LeaseDecision::Wait(wait) => return Ok(ElectionOutcome::Waits(wait)),
            LeaseDecision::Create => self.write_lease(None).await,
            LeaseDecision::TakeOrRenew => {
                observed.replacing.clone_from(&replaced);
                self.write_lease(observed.lease.as_ref()).await
            }
        };
        match written {
            Ok(lease) => {
                let (lease, changed_at) = (Some(lease), Some(Instant::now()));
                let former_renewal = observed.former_renewal;
                *observed = ObservedLease {
                    lease,
                    changed_at,
                    replacing: None,
                    former_renewal,
                    is_our_write: true,
                };
                Ok(ElectionOutcome::Held { replaced })
            }
            // Somebody else was faster: see who holds it now, and try again in the next round.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                self.read_lease(observed).await?;
                Ok(ElectionOutcome::Waits(POLL_PERIOD))
            }
            Err(error) => Err(error),
        }
    }

    async fn read_lease(&self, observed: &mut ObservedLease) -> kube::Result<()> {
        let limit = self.timing.request_timeout();
        let current = tokio::time::timeout(limit, self.api.get_opt(&self.name))
            .await
            .map_err(timed_out)??;
        let [version, known] = [&current, &observed.lease]
            .map(|lease| lease.as_ref()?.metadata.resource_version.as_deref());
        if observed.changed_at.is_none() || version != known {
            observed.lease = current;
            observed.changed_at = Some(Instant::now());
            observed.note_renewal(&self.identity);
        }
        Ok(())
    }

    async fn write_lease(&self, before: Option<&Lease>) -> kube::Result<Lease> {
        let old = before
            .and_then(|lease| lease.spec.clone())
            .unwrap_or_default();
        let ours = old.holder_identity.as_deref() == Some(&self.identity);
        let now = MicroTime(self.clock.now());
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.timing.lease_seconds()).ok(),
            acquire_time: if ours {
                old.acquire_time
            } else {
                Some(now.clone())
            },
            renew_time: Some(now),
            lease_transitions: Some(
                old.lease_transitions.unwrap_or(0) + i32::from(!ours && before.is_some()),
            ),
            ..LeaseSpec::default()
        };
        let request = async {
            match before {
                None => {
                    let metadata = ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    };
                    self.api
                        .create(
                            &PostParams::default(),
                            &Lease {
                                metadata,
                                spec: Some(spec),
                            },
                        )
                        .await
                }
                Some(lease) => {
                    let mut metadata = lease.metadata.clone();
                    metadata.managed_fields = None;
                    self.api
                        .replace(
                            &self.name,
                            &PostParams::default(),
                            &Lease {
                                metadata,
                                spec: Some(spec),
                            },
                        )
                        .await
                }
            }
        };
        tokio::time::timeout(self.timing.request_timeout(), request)
            .await
            .map_err(timed_out)?
    }
}

fn timed_out(_: tokio::time::error::Elapsed) -> kube::Error {
    kube::Error::Service("the API server did not answer in time".into())
}

/// This process leads. It must call [`Leadership::renew`] and end all its work when that returns.
pub struct Leadership<'a> {
    election: &'a Election,
    observed: ObservedLease,
    /// The time at which the last renewal was requested: others may have seen it long before its
    /// answer arrived.
    renewed_at: Instant,
    replaced: Option<String>,
}

impl Leadership<'_> {
    /// The former holder, if it did not give up the lease but was silent for too long: it is dead,
    /// or cut off.
    pub fn replaced_holder(&self) -> Option<&str> {
        self.replaced.as_deref()
    }

    /// The last time at which the former leader was alive, by its own clock; `None` if nobody led
    /// before.
    pub fn former_renewal(&self) -> Option<Timestamp> {
        self.observed.former_renewal
    }

    /// Renews the lease. Returns `false` when the lease is lost: end the process at once. Returns
    /// `true` after `stop`: call [`Leadership::release`] when the work has ended.
    pub async fn renew(&mut self, stop: &CancellationToken) -> bool {
        let timing = self.election.timing;
        let mut wait = timing.renew_period();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return true,
                () = tokio::time::sleep(wait) => {}
            }
            let asked_at = Instant::now();
            let left = timing
                .renew_deadline()
                .saturating_sub(self.renewed_at.elapsed())
                .min(timing.request_timeout());
            wait = RETRY_DELAY;
            match tokio::time::timeout(left, self.election.run_step(&mut self.observed)).await {
                Ok(Ok(ElectionOutcome::Held { .. })) => {
                    self.renewed_at = asked_at;
                    wait = timing.renew_period();
                }
                Ok(Ok(ElectionOutcome::Waits(_)))
                    if self
                        .observed
                        .holder()
                        .is_some_and(|holder| holder != self.election.identity) =>
                {
                    return false;
                }
                // For example a lease that somebody deleted, or a renewal whose answer was lost,
                // and which was stored after the lease was read again.
                Ok(Ok(ElectionOutcome::Waits(_))) => {
                    tracing::warn!("lease not renewed: it changed meanwhile, trying again");
                }
                Ok(Err(error)) => tracing::warn!(%error, "lease not renewed, trying again"),
                Err(_) => tracing::warn!(
                    "lease not renewed: the API server does not answer, trying again"
                ),
            }
            if self.renewed_at.elapsed() >= timing.renew_deadline() {
                return false;
            }
        }
    }

    /// Gives up the lease, so that another process can take it at once.
    pub async fn release(self) {
        let Some(mut lease) = self.observed.lease else {
            return;
        };
        lease.metadata.managed_fields = None;
        if let Some(spec) = lease.spec.as_mut() {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(self.election.clock.now()));
        }
        let params = PostParams::default();
        let request = self
            .election
            .api
            .replace(&self.election.name, &params, &lease);
        let answer = tokio::time::timeout(self.election.timing.request_timeout(), request)
            .await
            .map_err(timed_out);
        if let Err(error) = answer.and_then(|answer| answer) {
            tracing::warn!(%error, "lease not released; it expires by itself");
        }
    }
}

#[cfg(test)]
mod tests;
