//! Leader election with a Lease: one manager is active.
//!
//! A holder whose lease has not changed for a while, by the local monotonic clock, counts as dead. The times in the lease do not
//! matter, so clocks may differ.

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

/// How long a lease is valid after its last renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long the holder tries to renew before it gives up: less than [`LEASE_DURATION`], so that it ends before another one starts.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between two attempts.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Takes part in the election for one Lease.
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
}

/// The lease as it was last seen.
#[derive(Clone, Debug, Default)]
struct Observed {
    lease: Option<Lease>,
    changed_at: Option<Instant>,
}

#[derive(Debug, PartialEq)]
enum Decision {
    Create,
    TakeOrRenew,
    Wait,
}

/// Takes a lease that is free, ours, or unchanged for its whole duration; waits otherwise.
fn decide(observed: &Observed, identity: &str, now: Instant) -> Decision {
    let Some(lease) = &observed.lease else { return Decision::Create };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    let duration =
        spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(LEASE_DURATION, Duration::from_secs);
    let silent = observed.changed_at.is_none_or(|at| now.duration_since(at) >= duration);
    if holder.is_empty() || holder == identity || silent { Decision::TakeOrRenew } else { Decision::Wait }
}

impl Election {
    /// Takes part as `identity` (the pod's name) in the election for Lease `name`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.to_owned(), identity: identity.to_owned() }
    }

    /// Waits until this process is the leader. Returns `None` after `stop`.
    pub async fn acquire(&self, stop: &CancellationToken) -> Option<Leadership<'_>> {
        let mut observed = Observed::default();
        let mut announced = String::new();
        loop {
            let asked_at = Instant::now();
            match self.step(&mut observed).await {
                Ok(true) => return Some(Leadership { election: self, observed, renewed_at: asked_at }),
                Ok(false) => {
                    let holder = observed
                        .lease
                        .as_ref()
                        .and_then(|lease| lease.spec.as_ref()?.holder_identity.clone())
                        .unwrap_or_default();
                    if holder != announced {
                        tracing::info!(holder, "waiting for leadership");
                        announced = holder;
                    }
                }
                Err(error) => tracing::warn!(%error, "leader election: cannot read or write the lease"),
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(RETRY_PERIOD) => {}
            }
        }
    }

    /// Reads, decides and writes once. Returns whether the lease is ours now.
    async fn step(&self, observed: &mut Observed) -> kube::Result<bool> {
        let current = tokio::time::timeout(RENEW_DEADLINE / 2, self.api.get_opt(&self.name)).await.map_err(timed_out)??;
        let version = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        if observed.changed_at.is_none() || version(&current) != version(&observed.lease) {
            *observed = Observed { lease: current, changed_at: Some(Instant::now()) };
        }
        let written = match decide(observed, &self.identity, Instant::now()) {
            Decision::Wait => return Ok(false),
            Decision::Create => self.write(None).await,
            Decision::TakeOrRenew => self.write(observed.lease.as_ref()).await,
        };
        match written {
            Ok(lease) => {
                *observed = Observed { lease: Some(lease), changed_at: Some(Instant::now()) };
                Ok(true)
            }
            // Somebody else was faster: try again in the next round.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, before: Option<&Lease>) -> kube::Result<Lease> {
        let old = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let ours = old.holder_identity.as_deref() == Some(&self.identity);
        let now = MicroTime(Timestamp::now());
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: if ours { old.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(!ours && before.is_some())),
            ..LeaseSpec::default()
        };
        let request = async {
            match before {
                None => {
                    let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                    self.api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
                }
                Some(lease) => {
                    let mut metadata = lease.metadata.clone();
                    metadata.managed_fields = None;
                    self.api.replace(&self.name, &PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
                }
            }
        };
        tokio::time::timeout(RENEW_DEADLINE / 2, request).await.map_err(timed_out)?
    }
}

fn timed_out(_: tokio::time::error::Elapsed) -> kube::Error {
    kube::Error::Service("the API server did not answer in time".into())
}

/// This process leads. It must call [`Leadership::renew`] and end all its work when that returns.
pub struct Leadership<'a> {
    election: &'a Election,
    observed: Observed,
    /// When the last renewal was requested: others may have seen it long before its answer arrived.
    renewed_at: Instant,
}

impl Leadership<'_> {
    /// Renews the lease. Returns `false` when the lease is lost: end the process at once. Returns `true` after `stop`: call
    /// [`Leadership::release`] when the work has ended.
    pub async fn renew(&mut self, stop: &CancellationToken) -> bool {
        loop {
            tokio::select! {
                () = stop.cancelled() => return true,
                () = tokio::time::sleep(RETRY_PERIOD) => {}
            }
            let asked_at = Instant::now();
            let left = RENEW_DEADLINE.saturating_sub(self.renewed_at.elapsed()).min(RENEW_DEADLINE / 2);
            match tokio::time::timeout(left, self.election.step(&mut self.observed)).await {
                Ok(Ok(true)) => self.renewed_at = asked_at,
                Ok(Ok(false)) => return false,
                Ok(Err(error)) => tracing::warn!(%error, "lease not renewed, trying again"),
                Err(_) => tracing::warn!("lease not renewed: the API server does not answer, trying again"),
            }
            if self.renewed_at.elapsed() >= RENEW_DEADLINE {
                return false;
            }
        }
    }

    /// Gives up the lease, so that another process can take it at once.
    pub async fn release(self) {
        let Some(mut lease) = self.observed.lease else { return };
        lease.metadata.managed_fields = None;
        if let Some(spec) = lease.spec.as_mut() {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        if let Err(error) = self.election.api.replace(&self.election.name, &PostParams::default(), &lease).await {
            tracing::warn!(%error, "lease not released; it expires by itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(holder: &str, changed_at: Instant) -> Observed {
        let spec =
            LeaseSpec { holder_identity: Some(holder.to_owned()), lease_duration_seconds: Some(15), ..LeaseSpec::default() };
        Observed { lease: Some(Lease { spec: Some(spec), ..Lease::default() }), changed_at: Some(changed_at) }
    }

    #[tokio::test]
    async fn a_holder_that_renews_is_left_alone_and_a_silent_one_is_replaced() {
        let start = Instant::now();
        let seen = observed("other", start);
        assert_eq!(decide(&seen, "me", start + Duration::from_secs(14)), Decision::Wait);
        assert_eq!(decide(&seen, "me", start + Duration::from_secs(15)), Decision::TakeOrRenew);
    }

    #[tokio::test]
    async fn a_free_or_own_lease_is_taken_and_an_absent_one_made() {
        let now = Instant::now();
        assert_eq!(decide(&observed("", now), "me", now), Decision::TakeOrRenew);
        assert_eq!(decide(&observed("me", now), "me", now), Decision::TakeOrRenew);
        assert_eq!(decide(&Observed { lease: None, changed_at: Some(now) }, "me", now), Decision::Create);
    }
}
