//! Liqo's managers in simulated clusters.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]
#![allow(
    clippy::too_many_lines,
    reason = "a story is told from its beginning to its end"
)]

mod api_endpoint;
mod broker;
mod coming_home;
mod disruption_budgets;
mod installed;
mod internet;
mod jobs;
mod json;
mod lending;
mod market;
mod one_file;
mod refused_changes;
mod remote_events;
mod replicas;
mod safety;
mod single_pods;
mod story;
mod tethered;
mod users;
mod world;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{batch::v1::Job, core::v1::Node};
use kube::api::{DeleteParams, Patch, PatchParams};
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading};
use liqo_simulation::Faults;
use serde_json::json;
use tokio::time::Instant;

use self::{
    internet::WireFaults,
    users::SOON,
    world::{Start, World},
};

/// How many stories are told if nobody asks for more.
const STORIES: u64 = 16;

#[tokio::test(start_paused = true)]
async fn the_pods_of_an_offloaded_namespace_run_at_the_provider_and_nothing_is_left_of_an_ended_peering()
 {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 5).await;
    world
        .until("all pods are ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 5
        })
        .await;
    assert_eq!(milan.pods_of("web").len(), 5);
    rome.scale("demo", "web", 2).await;
    world
        .until("two pods are left", SOON, async || {
            (rome.pods_of("web").len(), milan.pods_of("web").len()) == (2, 2)
        })
        .await;
    rome.unpeer("milan").await;
    world
        .until("nothing is left of the peering", SOON, async || {
            milan.kept_for(rome).is_empty() && rome.kept_for(milan).is_empty()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_a_virtual_node_come_home_with_their_namespace() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    world.offload(0, "demo", "Remote").await;
    assert!(rome.drain("milan").await);
    rome.deploy("demo", "web", 2).await;
    world
        .until("two pods wait", SOON, async || {
            rome.pods_of("web").len() == 2
        })
        .await;
    assert!(rome.ready_pods("demo").await.is_empty());
    rome.unoffload("demo").await;
    world
        .until("they run at home", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
}

/// One a minute would take ten minutes. The next pods do not tolerate virtual nodes, so none goes
/// back.
#[tokio::test(start_paused = true)]
async fn pods_that_never_reached_a_provider_come_home_together_when_all_of_their_namespace_stay_home()
 {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    world.offload(0, "demo", "Remote").await;
    world.internet.set_faults(WireFaults {
        broken: 1000,
        ..WireFaults::default()
    });
    rome.deploy("demo", "web", 6).await;
    let sent = async || {
        rome.pods_of("web")
            .iter()
            .filter(|pod| pod["spec"]["nodeName"] == "milan")
            .count()
    };
    world
        .until("the pods have the virtual node", SOON, async || {
            sent().await == 6
        })
        .await;
    let change = Patch::Merge(json!({ "spec": { "podOffloadingStrategy": "Local" } }));
    let offloadings = rome.api::<NamespaceOffloading>("demo");
    offloadings
        .patch(NAMESPACE_OFFLOADING, &PatchParams::default(), &change)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.internet.set_faults(WireFaults::default());
    // The refusal timeout is five minutes.
    world
        .until("all run at home", 3 * SOON, async || {
            rome.ready_pods("demo").await.len() == 6 && sent().await == 0
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_job_that_wait_for_a_virtual_node_come_home_unless_it_would_fail() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    world.offload(0, "demo", "Remote").await;
    assert!(rome.drain("milan").await);
    rome.run_job("demo", "patient", 3, 5, 6).await;
    rome.run_job("demo", "strict", 1, 5, 0).await;
    world
        .until("four pods wait", SOON, async || {
            rome.pods_of("patient").len() + rome.pods_of("strict").len() == 4
        })
        .await;
    let change = Patch::Merge(json!({ "spec": { "podOffloadingStrategy": "Local" } }));
    let offloadings = rome.api::<NamespaceOffloading>("demo");
    offloadings
        .patch(NAMESPACE_OFFLOADING, &PatchParams::default(), &change)
        .await
        .unwrap();
    let succeeded = async |name: &str| {
        let status = rome
            .api::<Job>("demo")
            .get(name)
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        status.succeeded.unwrap_or_default()
    };
    world
        .until("the Job runs at home", 3 * SOON, async || {
            succeeded("patient").await == 3
        })
        .await;
    let status = rome
        .api::<Job>("demo")
        .get("strict")
        .await
        .unwrap()
        .status
        .unwrap_or_default();
    assert_eq!(
        (status.succeeded, status.failed.unwrap_or_default()),
        (None, 0),
        "one failure would end it"
    );
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_virtual_node_goes_with_it() {
    let world = World::peered(Start::default()).await;
    let rome = &world.clusters[0];
    let lease = || {
        rome.server
            .objects()
            .into_iter()
            .find(|(key, _)| (&*key.namespace, &*key.name) == ("kube-node-lease", "milan"))
    };
    world
        .until("a lease", SOON, async || lease().is_some())
        .await;
    // Somebody else deletes the node: the lease goes with it, and Liqo makes both again.
    let before = lease().unwrap().1;
    rome.all::<Node>()
        .delete("milan", &DeleteParams::default())
        .await
        .unwrap();
    let is_another =
        || lease().is_some_and(|(_, lease)| lease["metadata"]["uid"] != before["metadata"]["uid"]);
    world
        .until("another lease", SOON, async || is_another())
        .await;
    rome.unpeer("milan").await;
    world
        .until("no lease is left", SOON, async || lease().is_none())
        .await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_goes_on_when_the_leader_dies() {
    let mut world = World::peered(Start {
        replicas: 2,
        ..Start::default()
    })
    .await;
    world.offload(0, "demo", "Remote").await;
    for cluster in &mut world.clusters {
        cluster.kill_leader().await;
    }
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    rome.deploy("demo", "web", 5).await;
    world
        .until("all pods are ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 5
        })
        .await;
    assert_eq!(milan.pods_of("web").len(), 5);
}

#[tokio::test(start_paused = true)]
async fn while_the_clusters_cannot_talk_nothing_is_lost() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 3).await;
    world
        .until("all pods are ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    let before = milan.pods_of("web");
    world.internet.cut(rome.address(1), milan.address(0));
    world
        .until("the outage shows", SOON, async || {
            !rome.node_is_ready("milan").await
        })
        .await;
    rome.scale("demo", "web", 5).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(milan.pods_of("web"), before);
    world.internet.heal();
    world
        .until("all pods are ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 5
        })
        .await;
    let uids = |pods: &[serde_json::Value]| {
        pods.iter()
            .map(|pod| pod["metadata"]["uid"].to_string())
            .collect::<Vec<_>>()
    };
    let after = uids(&milan.pods_of("web"));
    assert!(
        uids(&before).iter().all(|uid| after.contains(uid)),
        "{before:?} {after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn in_an_hour_a_settled_system_writes_only_leases_and_credentials() {
    let world = World::peered(Start {
        replicas: 2,
        ..Start::default()
    })
    .await;
    world.offload(0, "demo", "Remote").await;
    let rome = &world.clusters[0];
    rome.deploy("demo", "web", 5).await;
    world
        .until("all pods are ready", SOON, async || {
            rome.ready_pods("demo").await.len() == 5
        })
        .await;
    tokio::time::sleep(SOON).await;
    let changed: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    for cluster in &world.clusters {
        let (changed, name) = (changed.clone(), cluster.name.clone());
        cluster.server.observe(move |key, _, _| {
            // Nobody signs the requests for certificates here.
            let is_awaited = key.resource.starts_with("certificatesigningrequests.");
            if key.resource != "leases.coordination.k8s.io" && !is_awaited {
                changed.lock().unwrap().insert(format!(
                    "{name}: {} {}/{}",
                    key.resource, key.namespace, key.name
                ));
            }
        });
    }
    tokio::time::sleep(Duration::from_hours(1)).await;
    let changed = changed.lock().unwrap();
    let is_credential = |what: &&String| what.contains(" secrets ");
    assert!(
        changed.iter().all(|what| is_credential(&what)),
        "{changed:#?}"
    );
    assert_eq!(
        changed.iter().filter(is_credential).count(),
        1,
        "{changed:#?}"
    );
}

/// A status may be written although no answer says so. While the watches lag, that of a pod that
/// starts is written several times.
#[tokio::test(start_paused = true)]
async fn home_sees_that_its_pods_are_ready_whatever_answers_the_provider_lost() {
    let mut world = World::peered(Start::default()).await;
    world.offload(0, "demo", "Remote").await;
    let bad = Faults {
        delay: Duration::from_millis(800),
        lost_answers: 50,
        ..Faults::default()
    };
    world.clusters[1].manager(1).link.set_faults(bad);
    world.clusters[0].deploy("demo", "web", 30).await;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // A manager ends itself if it could not renew its lease.
        if world.clusters[1].manager(1).has_ended() {
            world.clusters[1].restart_manager(1);
        }
    }
    let (milan, link) = (&world.clusters[1], &world.clusters[1].manager(1).link);
    assert!(
        milan
            .former_links
            .iter()
            .chain([link])
            .any(|link| link.counts().contains_key("answer lost"))
    );
    link.set_faults(Faults::default());
    // It may end only now, because the answers to its last renewals were lost.
    let healed = Instant::now();
    while world.clusters[0].ready_pods("demo").await.len() < 30 {
        assert!(
            healed.elapsed() < SOON,
            "home does not see that all are ready\n{}",
            world.to_text()
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        if world.clusters[1].manager(1).has_ended() {
            world.clusters[1].restart_manager(1);
        }
    }
}

/// Tells a story, in its own time.
fn story(seed: u64) -> Result<story::Report, story::Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let begun = std::time::Instant::now();
    let told = runtime.block_on(story::run(seed));
    match &told {
        Ok(report) => println!(
            "seed {seed}: {report}, {:.1} s",
            begun.elapsed().as_secs_f64()
        ),
        Err(failure) if number("LIQO_SEEDS").is_none() => {
            println!(
                "{failure}\n\nthe whole story:\n{}\n{}",
                failure.events.join("\n"),
                failure.objects
            );
        }
        Err(failure) => println!("{failure}"),
    }
    told
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap())
}

/// `LIQO_SEED` chooses the first seed, `LIQO_SEEDS` how many. Two at a time, as each needs one
/// processor.
#[test]
fn stories_end_well() {
    let first = number("LIQO_SEED").unwrap_or(1);
    let count = number("LIQO_SEEDS").unwrap_or(if number("LIQO_SEED").is_none() {
        STORIES
    } else {
        1
    });
    let (next, failed) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let tell = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            // One that stops for another reason counts, too.
            if !std::panic::catch_unwind(|| story(seed))
                .is_ok_and(|told| told.is_ok_and(|report| report.tells_much()))
            {
                failed.lock().unwrap().push(seed);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| _ = scope.spawn(tell)));
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "{} of {count} stories ended badly, or told too little: {failed:?}",
        failed.len()
    );
}

#[test]
fn the_same_seed_tells_the_same_story() {
    // In the second one, rome is a laptop.
    for seed in [501, 505] {
        let history = || story(seed).unwrap().history;
        assert_eq!(history(), history(), "seed {seed}");
    }
}
