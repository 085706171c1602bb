use std::{convert::Infallible, sync::Arc};

use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn observed(holder: &str, changed_at: Instant) -> ObservedLease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(15),
        ..LeaseSpec::default()
    };
    let lease = Some(Lease {
        spec: Some(spec),
        ..Lease::default()
    });
    ObservedLease {
        lease,
        changed_at: Some(changed_at),
        ..ObservedLease::default()
    }
}

#[tokio::test]
async fn a_holder_that_renews_is_left_alone_and_a_silent_one_is_replaced() {
    let start = Instant::now();
    let seen = observed("other", start);
    assert_eq!(
        decide_on_lease(&seen, "me", start),
        LeaseDecision::Wait(POLL_PERIOD)
    );
    assert_eq!(
        decide_on_lease(&seen, "me", start + Duration::from_millis(14_800)),
        LeaseDecision::Wait(Duration::from_millis(200))
    );
    assert_eq!(
        decide_on_lease(&seen, "me", start + 15 * SECOND),
        LeaseDecision::TakeOrRenew
    );
}

#[tokio::test]
async fn a_free_or_own_lease_is_taken_and_an_absent_one_made() {
    let now = Instant::now();
    assert_eq!(
        decide_on_lease(&observed("", now), "me", now),
        LeaseDecision::TakeOrRenew
    );
    assert_eq!(
        decide_on_lease(&observed("me", now), "me", now),
        LeaseDecision::TakeOrRenew
    );
    assert_eq!(
        decide_on_lease(
            &ObservedLease {
                changed_at: Some(now),
                ..ObservedLease::default()
            },
            "me",
            now
        ),
        LeaseDecision::Create
    );
}

#[test]
fn a_holder_ends_before_another_one_starts() {
    for timing in [
        LeaseTiming::ALONE,
        LeaseTiming::WITH_STANDBY,
        LeaseTiming::of_lease(5),
    ] {
        let deadline = timing.renew_deadline();
        assert!(deadline + SECOND <= timing.lease_duration(), "{timing:?}");
        assert!(
            timing.renew_period() + timing.request_timeout() < deadline,
            "{timing:?}: one request that hangs ends it"
        );
    }
    assert!(
        LeaseTiming::WITH_STANDBY.takeover_limit() <= 8 * SECOND,
        "starting the controllers takes another second or two"
    );
}

/// When a replica that waits takes the lease of a holder that renewed it until `died_at`. Both
/// begin at zero; requests take no time.
fn taken_at(timing: LeaseTiming, died_at: Duration, first_poll: Duration) -> Duration {
    let start = Instant::now();
    let renewals =
        |until: Duration| until.min(died_at).as_millis() / timing.renew_period().as_millis();
    let seconds = i32::try_from(timing.lease_seconds()).ok();
    let (mut now, mut seen, mut changed_at) = (first_poll, None, start);
    loop {
        if seen != Some(renewals(now)) {
            (seen, changed_at) = (Some(renewals(now)), start + now);
        }
        let mut observed = observed("other", changed_at);
        observed
            .lease
            .as_mut()
            .and_then(|lease| lease.spec.as_mut())
            .unwrap()
            .lease_duration_seconds = seconds;
        match decide_on_lease(&observed, "me", start + now) {
            LeaseDecision::Wait(wait) => now += wait,
            _ => return now,
        }
    }
}

#[test]
fn a_replica_that_waits_takes_over_from_one_that_died_within_the_limit_but_not_before_that_one_gives_up()
 {
    for timing in [LeaseTiming::ALONE, LeaseTiming::WITH_STANDBY] {
        for died_at in (20_000..24_000).step_by(130).map(Duration::from_millis) {
            for first_poll in (0..1000).step_by(90).map(Duration::from_millis) {
                let silence = taken_at(timing, died_at, first_poll).saturating_sub(died_at);
                assert!(
                    silence <= timing.takeover_limit(),
                    "{timing:?}, died at {died_at:?}: {silence:?}"
                );
                assert!(
                    silence + timing.renew_period() > timing.renew_deadline(),
                    "{timing:?}, died at {died_at:?}: {silence:?}"
                );
            }
        }
    }
}

/// An API server with one Lease. Requests to it fail while it is away.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    is_away: Arc<Mutex<bool>>,
    /// It stores the next write of this holder, and its answer is lost.
    loses_answer_to: Arc<Mutex<Option<&'static str>>>,
    reads: Arc<Mutex<u32>>,
}

impl Server {
    fn election(&self, identity: &str, timing: LeaseTiming) -> Election {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Election::new(
            Client::new(service, "liqo"),
            "liqo",
            "leader",
            identity,
            timing,
            Clock::system(),
        )
    }

    /// When the lease was renewed for the last time.
    fn renewed(&self) -> Timestamp {
        self.lease.lock().as_ref().unwrap()["spec"]["renewTime"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.unwrap();
        *self.reads.lock() += u32::from(method == http::Method::GET);
        let mut stored = self.lease.lock();
        let version = |lease: &Value| {
            lease["metadata"]["resourceVersion"]
                .as_str()
                .map(str::to_owned)
        };
        let (code, answer) = match (method, stored.clone()) {
            _ if *self.is_away.lock() => {
                (503, json!({ "code": 503, "reason": "ServiceUnavailable" }))
            }
            (http::Method::GET, Some(lease)) => (200, lease),
            (http::Method::GET, None) => (404, json!({ "code": 404, "reason": "NotFound" })),
            (_, before) => {
                let mut lease: Value = serde_json::from_slice(&body).unwrap();
                let known = before.as_ref().and_then(version);
                if known == version(&lease) {
                    let next = known.map_or(1, |known| known.parse::<u64>().unwrap() + 1);
                    lease["metadata"]["resourceVersion"] = next.to_string().into();
                    *stored = Some(lease.clone());
                    let holder = lease["spec"]["holderIdentity"].as_str();
                    match self
                        .loses_answer_to
                        .lock()
                        .take_if(|loser| holder == Some(*loser))
                    {
                        Some(_) => (504, json!({ "code": 504, "reason": "Timeout" })),
                        None => (200, lease),
                    }
                } else {
                    (409, json!({ "code": 409, "reason": "Conflict" }))
                }
            }
        };
        http::Response::builder()
            .status(code)
            .body(Body::from(answer.to_string().into_bytes()))
            .unwrap()
    }
}

async fn acquired(election: &Election) -> (Leadership<'_>, Duration) {
    let start = Instant::now();
    let leadership = election.acquire(&CancellationToken::new()).await.unwrap();
    (leadership, start.elapsed())
}

#[tokio::test]
async fn a_replica_waits_as_long_as_the_holder_promised_and_knows_whom_it_replaced() {
    let server = Server::default();
    let (first, second) = (
        server.election("first", LeaseTiming::of_lease(2)),
        server.election("second", LeaseTiming::of_lease(1)),
    );
    let (dead, _) = acquired(&first).await;
    assert_eq!(
        (dead.replaced_holder(), dead.former_renewal()),
        (None, None),
        "nobody led before"
    );
    let renewed = server.renewed();
    let (leadership, took) = acquired(&second).await;
    assert_eq!(
        (leadership.replaced_holder(), leadership.former_renewal()),
        (Some("first"), Some(renewed))
    );
    assert!(took >= Duration::from_secs(2), "after {took:?}");
}

#[tokio::test]
async fn who_was_replaced_is_known_even_if_the_answer_to_the_write_was_lost() {
    let server = Server::default();
    let (first, second) = (
        server.election("first", LeaseTiming::of_lease(1)),
        server.election("second", LeaseTiming::of_lease(1)),
    );
    let _dead = acquired(&first).await;
    let died = server.renewed();
    *server.loses_answer_to.lock() = Some("second");
    let (mut leadership, _) = acquired(&second).await;
    assert_eq!(*server.loses_answer_to.lock(), None);
    assert_eq!(
        (leadership.replaced_holder(), leadership.former_renewal()),
        (Some("first"), Some(died))
    );
    // A renewal replaces nobody.
    let renewed = second.run_step(&mut leadership.observed).await.unwrap();
    assert_eq!(renewed, ElectionOutcome::Held { replaced: None });
    assert_eq!(leadership.former_renewal(), Some(died));
    // A container that starts again has the name of the former one.
    let (former, again) = (
        server.renewed(),
        server.election("second", LeaseTiming::of_lease(1)),
    );
    assert_eq!(acquired(&again).await.0.former_renewal(), Some(former));
}

#[tokio::test]
async fn a_holder_renews_without_reading_until_somebody_else_writes() {
    let server = Server::default();
    let election = server.election("first", LeaseTiming::ALONE);
    let (mut leadership, _) = acquired(&election).await;
    for _ in 0..3 {
        let renewed = election.run_step(&mut leadership.observed).await.unwrap();
        assert_eq!(
            (renewed, *server.reads.lock()),
            (ElectionOutcome::Held { replaced: None }, 1)
        );
    }
    // Somebody adds an annotation.
    server.lease.lock().as_mut().unwrap()["metadata"]["resourceVersion"] = "100".into();
    assert_eq!(
        election.run_step(&mut leadership.observed).await.unwrap(),
        ElectionOutcome::Waits(POLL_PERIOD)
    );
    assert_eq!(leadership.observed.holder(), Some("first"));
    assert_eq!(
        election.run_step(&mut leadership.observed).await.unwrap(),
        ElectionOutcome::Held { replaced: None }
    );
    // The answer to a renewal is lost.
    *server.loses_answer_to.lock() = Some("first");
    election
        .run_step(&mut leadership.observed)
        .await
        .unwrap_err();
    assert_eq!(
        election.run_step(&mut leadership.observed).await.unwrap(),
        ElectionOutcome::Held { replaced: None }
    );
    // Another replica takes it.
    let lease =
        json!({ "metadata": { "resourceVersion": "200" }, "spec": { "holderIdentity": "second" } });
    *server.lease.lock() = Some(lease);
    assert_eq!(
        election.run_step(&mut leadership.observed).await.unwrap(),
        ElectionOutcome::Waits(POLL_PERIOD)
    );
    assert_eq!(leadership.observed.holder(), Some("second"));
}

#[tokio::test]
async fn a_holder_whose_lease_was_deleted_or_emptied_goes_on() {
    let server = Server::default();
    let election = server.election("first", LeaseTiming::of_lease(2));
    let (mut leadership, _) = acquired(&election).await;
    for lease in [
        None,
        Some(json!({ "metadata": { "resourceVersion": "200" }, "spec": { "holderIdentity": "" } })),
    ] {
        *server.lease.lock() = lease;
        let stop = CancellationToken::new();
        let held_again = async {
            while server
                .lease
                .lock()
                .as_ref()
                .is_none_or(|lease| lease["spec"]["holderIdentity"] != "first")
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            stop.cancel();
        };
        let (still_leads, ()) = tokio::join!(leadership.renew(&stop), held_again);
        assert!(still_leads);
    }
}

#[tokio::test]
async fn a_lease_that_was_given_up_is_taken_before_it_expires_and_nobody_counts_as_dead() {
    let server = Server::default();
    let (first, second) = (
        server.election("first", LeaseTiming::of_lease(60)),
        server.election("second", LeaseTiming::ALONE),
    );
    let (leadership, _) = acquired(&first).await;
    let gives_up = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        leadership.release().await;
    };
    let ((leadership, took), ()) = tokio::join!(acquired(&second), gives_up);
    assert_eq!(leadership.replaced_holder(), None);
    assert!(took < Duration::from_secs(30), "after {took:?}");
}

#[tokio::test]
async fn a_holder_that_cannot_renew_ends_and_a_short_outage_does_not_end_it() {
    let server = Server::default();
    let first = server.election("first", LeaseTiming::of_lease(4));
    let (mut leadership, _) = acquired(&first).await;
    let never = CancellationToken::new();
    *server.is_away.lock() = true;
    let outages = async {
        tokio::time::sleep(SECOND).await;
        *server.is_away.lock() = false;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        *server.is_away.lock() = true;
        Instant::now()
    };
    let renewing = async { (leadership.renew(&never).await, Instant::now()) };
    let ((still_leads, ended_at), away_since) = tokio::join!(renewing, outages);
    assert!(
        !still_leads && ended_at > away_since,
        "the short outage ended it"
    );
}
