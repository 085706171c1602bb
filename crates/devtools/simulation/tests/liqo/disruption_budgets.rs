//! Disruption budgets at home, and drains at providers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, PostParams},
};
use liqo_simulation::ApiServer;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    json::object,
    lending::provide,
    users::{SOON, template},
    world::{Cluster, Start, World},
};

const RETRY: Duration = Duration::from_secs(5);

async fn protect(cluster: &Cluster, least: usize) {
    let budget: PodDisruptionBudget = object(json!({
        "metadata": { "name": "web" }, "spec": { "minAvailable": least, "selector": { "matchLabels": { "app": "web" } } },
    }));
    cluster
        .api::<PodDisruptionBudget>("demo")
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
}

/// How many pods of the consumer's budget must stay healthy at a provider; 0 without a budget
/// there.
fn least_at(provider: &Cluster) -> i64 {
    let objects = provider.server.objects().into_iter();
    let mut budgets = objects
        .filter(|(key, _)| key.resource == "poddisruptionbudgets.policy" && key.name == "web");
    budgets
        .next()
        .and_then(|(_, budget)| budget["spec"]["minAvailable"].as_i64())
        .unwrap_or_default()
}

/// Creates a Deployment whose pods take half a minute to end.
async fn deploy(cluster: &Cluster, replicas: u8) {
    let environment = json!([{ "name": "SIMULATION_STOP_SECONDS", "value": "25" }]);
    let deployment: Deployment = object(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": template("web", &environment, "Always"),
        },
    }));
    cluster
        .api::<Deployment>("demo")
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
}

/// The fewest healthy pods since, counted where they really run: a pod that ends is not healthy.
fn fewest_healthy(world: &World) -> Arc<AtomicUsize> {
    let fewest = Arc::new(AtomicUsize::new(usize::MAX));
    let servers: Vec<_> = world
        .clusters
        .iter()
        .map(|cluster| (cluster.name.clone(), cluster.server.clone()))
        .collect();
    let seen = fewest.clone();
    tokio::spawn(async move {
        loop {
            let is_healthy = |name: &str, pod: &Value| {
                let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                let runs_here = pod["spec"]["nodeName"]
                    .as_str()
                    .is_some_and(|node| node.starts_with(&format!("{name}-")));
                runs_here
                    && pod["metadata"]["labels"]["app"] == "web"
                    && pod["metadata"]["deletionTimestamp"].is_null()
                    && conditions.any(|condition| {
                        condition["type"] == "Ready" && condition["status"] == "True"
                    })
            };
            let healthy = |(name, server): &(String, ApiServer)| {
                let pods = server
                    .objects()
                    .into_iter()
                    .filter(|(key, _)| key.resource == "pods");
                pods.filter(|(_, pod)| is_healthy(name, pod)).count()
            };
            seen.fetch_min(servers.iter().map(healthy).sum(), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    fewest
}

/// The pods on a node, by namespace and name.
fn pods_on(cluster: &Cluster, node: &str) -> Vec<Pod> {
    cluster
        .pods_of("web")
        .into_iter()
        .filter(|pod| pod["spec"]["nodeName"] == node)
        .map(object)
        .collect()
}

/// Drains a node as `kubectl drain` does: evicts what is there again and again. Returns how long
/// that took; `None` if it takes too long.
async fn drain_patiently(cluster: &Cluster, node: &str, limit: Duration) -> Option<Duration> {
    let started = Instant::now();
    while started.elapsed() < limit {
        assert!(cluster.drain(node).await);
        tokio::time::sleep(RETRY).await;
        if pods_on(cluster, node).is_empty() {
            return Some(started.elapsed());
        }
    }
    None
}

/// Lets new pods go only to these nodes.
async fn open_only(cluster: &Cluster, nodes: &[&str]) {
    for node in ["rome-1", "rome-2", "milan", "turin"] {
        if nodes.contains(&node) {
            cluster.uncordon(node).await;
        } else {
            cluster.cordon(node).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_at_the_provider_waits_for_what_home_allows() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "LocalAndRemote").await;
    open_only(rome, &["milan"]).await;
    deploy(rome, 3).await;
    world
        .until("three pods run at milan", SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    open_only(rome, &["rome-1"]).await;
    rome.scale("demo", "web", 4).await;
    world
        .until("one pod runs at home", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    protect(rome, 3).await;
    world
        .until(
            "two of three must stay healthy at milan",
            SOON,
            async || least_at(milan) == 2,
        )
        .await;

    rome.settings
        .send_modify(|settings| _ = settings.nodes_without_power.insert("rome-1".to_owned()));
    world
        .until("all three must stay healthy at milan", SOON, async || {
            least_at(milan) == 3
        })
        .await;
    let node = ["milan-1", "milan-2"]
        .into_iter()
        .max_by_key(|node| pods_on(milan, node).len())
        .unwrap();
    let before: Vec<_> = pods_on(milan, node).iter().map(ResourceExt::uid).collect();
    assert!(before.len() > 1);
    assert_eq!(
        drain_patiently(milan, node, SOON).await,
        None,
        "home allows no disruption"
    );
    assert_eq!(
        pods_on(milan, node)
            .iter()
            .map(ResourceExt::uid)
            .collect::<Vec<_>>(),
        before
    );

    rome.settings
        .send_modify(|settings| settings.nodes_without_power.clear());
    world
        .until("four pods are healthy", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    let fewest = fewest_healthy(&world);
    assert!(
        drain_patiently(milan, node, SOON).await.is_some(),
        "home allows one disruption at a time"
    );
    world
        .until("four pods are healthy", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    assert_eq!(fewest.load(Ordering::Relaxed), 3);

    rome.api::<PodDisruptionBudget>("demo")
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the budget is gone at milan", SOON, async || {
            least_at(milan) == 0
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_allows_nothing_holds_as_long_as_the_notice_of_the_provider() {
    const NOTICE: Duration = Duration::from_secs(90);
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    provide(milan, json!({ "noticeSeconds": NOTICE.as_secs() })).await;
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 3).await;
    world
        .until("three pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    protect(rome, 3).await;
    world
        .until("all must stay healthy at milan", SOON, async || {
            least_at(milan) == 3
        })
        .await;
    let node = ["milan-1", "milan-2"]
        .into_iter()
        .max_by_key(|node| pods_on(milan, node).len())
        .unwrap();
    let took = drain_patiently(milan, node, 3 * NOTICE)
        .await
        .unwrap_or_else(|| panic!("{}", world.to_text()));
    assert!(
        took > NOTICE && took < NOTICE + Duration::from_secs(40),
        "{took:?}"
    );
    let events = rome
        .api::<Event>("demo")
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let tells = |event: &Event| {
        event.involved_object.kind.as_deref() == Some("PodDisruptionBudget")
            && event
                .message
                .as_deref()
                .is_some_and(|message| message.contains("NoticeOver") && message.contains(node))
    };
    assert!(events.iter().any(tells), "{events:?}");
    milan.uncordon(node).await;
    world
        .until("all must stay healthy at milan again", SOON, async || {
            least_at(milan) == 3
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn drains_at_two_providers_do_not_use_twice_what_home_allows() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, providers) = (&world.clusters[0], [&world.clusters[1], &world.clusters[2]]);
    for provider in [1, 2] {
        world.peer_and_wait(0, provider).await;
    }
    world.offload(0, "demo", "LocalAndRemote").await;
    open_only(rome, &["milan"]).await;
    deploy(rome, 4).await;
    world
        .until("four pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    open_only(rome, &["turin"]).await;
    rome.scale("demo", "web", 8).await;
    world
        .until("eight pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 8
        })
        .await;
    protect(rome, 7).await;
    world
        .until("no provider may end a pod unasked", SOON, async || {
            providers.map(least_at) == [4, 4]
        })
        .await;
    let fewest = fewest_healthy(&world);
    let drains = providers.map(|provider| {
        drain_patiently(
            provider,
            if provider.name == "milan" {
                "milan-1"
            } else {
                "turin-1"
            },
            5 * SOON,
        )
    });
    let [one, other] = drains;
    let (one, other) = tokio::join!(one, other);
    assert!(
        one.is_some() && other.is_some(),
        "{one:?} {other:?} {}",
        world.to_text()
    );
    world
        .until("eight pods are healthy", SOON, async || {
            rome.ready_pods("demo").await.len() == 8
        })
        .await;
    assert_eq!(fewest.load(Ordering::Relaxed), 7);
}

/// `liqoctl unpeer` evicts like this before it ends the peering.
#[tokio::test(start_paused = true)]
async fn the_budget_of_a_customer_counts_when_its_broker_leaves_a_provider() {
    let world = World::start(&["rome", "milan", "turin", "genoa"], Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    for provider in [2, 3] {
        world.peer_and_wait(1, provider).await;
    }
    provide(
        milan,
        json!({ "percentage": 100, "source": { "offers": {} } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    deploy(rome, 6).await;
    world
        .until("six pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 6
        })
        .await;
    protect(rome, 5).await;
    world
        .until("one of the six may go", SOON, async || least_at(milan) == 5)
        .await;
    let node = ["turin", "genoa"]
        .into_iter()
        .max_by_key(|node| pods_on(milan, node).len())
        .unwrap();
    assert!(pods_on(milan, node).len() > 1);
    let fewest = fewest_healthy(&world);
    assert!(
        drain_patiently(milan, node, 10 * SOON).await.is_some(),
        "{}",
        world.to_text()
    );
    milan.unpeer(node).await;
    world
        .until("six pods run at the other one", SOON, async || {
            rome.ready_pods("demo").await.len() == 6
        })
        .await;
    assert_eq!(fewest.load(Ordering::Relaxed), 5);
}

/// Waits until all pods have moved, and checks that this was before the end of a notice of 300 s.
async fn move_within_the_notice(world: &World, have_moved: impl AsyncFn() -> bool) {
    let took = world
        .until("all have moved", Duration::from_secs(400), have_moved)
        .await;
    println!("all have moved {} s after the change", took.as_secs());
    assert!(
        took < Duration::from_secs(290),
        "they were moved by the end of the notice only"
    );
}

/// The provider says which pods will end, and home moves them as the budget allows: else they would
/// all end at once.
#[tokio::test(start_paused = true)]
async fn the_budget_of_a_customer_counts_when_its_provider_becomes_a_broker_and_ends_it() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    world.peer_and_wait(1, 2).await;
    provide(milan, json!({ "percentage": 50, "noticeSeconds": 300 })).await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    protect(rome, 3).await;
    deploy(rome, 4).await;
    world
        .until("four pods run at milan", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    let fewest = fewest_healthy(&world);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for source in [json!({ "offers": {} }), Value::Null] {
        provide(milan, json!({ "source": source })).await;
        let all_have_moved = async || {
            let at_turin = pods_on(turin, "turin-1").len() + pods_on(turin, "turin-2").len();
            let is_broker = !source.is_null();
            rome.ready_pods("demo").await.len() == 4
                && at_turin == if is_broker { 4 } else { 0 }
                && milan.pods_of("web").len() == 4
        };
        move_within_the_notice(&world, all_have_moved).await;
    }
    assert_eq!(
        fewest.load(Ordering::Relaxed),
        3,
        "never more than one of them is away"
    );
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_a_customer_counts_when_its_provider_lends_less() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    provide(milan, json!({ "percentage": 50, "noticeSeconds": 300 })).await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    protect(rome, 3).await;
    deploy(rome, 4).await;
    world
        .until("four pods run at milan", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    world.peer_and_wait(0, 2).await;
    let fewest = fewest_healthy(&world);
    provide(milan, json!({ "percentage": 0 })).await;
    let all_have_moved =
        async || rome.ready_pods("demo").await.len() == 4 && turin.pods_of("web").len() == 4;
    move_within_the_notice(&world, all_have_moved).await;
    assert_eq!(
        fewest.load(Ordering::Relaxed),
        3,
        "never more than one of them is away"
    );
    assert!(milan.pods_of("web").is_empty());
}

/// The broker says the same of its customers' pods, and moves none of them itself.
#[tokio::test(start_paused = true)]
async fn the_budget_of_a_customer_counts_when_a_cluster_behind_its_broker_lends_less() {
    let world = World::start(&["rome", "milan", "turin", "genoa"], Start::default()).await;
    let (rome, milan, turin, genoa) = (
        &world.clusters[0],
        &world.clusters[1],
        &world.clusters[2],
        &world.clusters[3],
    );
    provide(turin, json!({ "percentage": 50, "noticeSeconds": 300 })).await;
    world.peer_and_wait(1, 2).await;
    provide(
        milan,
        json!({ "percentage": 100, "source": { "offers": {} } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    protect(rome, 3).await;
    deploy(rome, 4).await;
    world
        .until("four pods run at turin", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    world.peer_and_wait(1, 3).await;
    let fewest = fewest_healthy(&world);
    provide(turin, json!({ "percentage": 0 })).await;
    let all_have_moved =
        async || rome.ready_pods("demo").await.len() == 4 && genoa.pods_of("web").len() == 4;
    move_within_the_notice(&world, all_have_moved).await;
    assert_eq!(
        fewest.load(Ordering::Relaxed),
        3,
        "never more than one of them is away"
    );
    assert!(turin.pods_of("web").is_empty());
}

/// Also if its own notice is shorter. Those of a Job are not moved before.
#[tokio::test(start_paused = true)]
async fn pods_behind_a_broker_have_the_notice_of_the_cluster_that_runs_them() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    provide(turin, json!({ "percentage": 50, "noticeSeconds": 60 })).await;
    world.peer_and_wait(1, 2).await;
    provide(
        milan,
        json!({ "percentage": 100, "noticeSeconds": 4, "source": { "offers": {} } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    rome.run_job("demo", "work", 4, 100_000, 6).await;
    let at_turin = || turin.pods_of("work").len();
    world
        .until("four pods run at turin", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    provide(turin, json!({ "percentage": 0 })).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(
        (at_turin(), rome.ready_pods("demo").await.len()),
        (4, 4),
        "they run on until their notice is over"
    );
    world
        .until("they have ended", SOON, async || at_turin() == 0)
        .await;
}

/// A Deployment's pods are evicted only where another one finds a place, and the broker tells soon
/// enough that there is none.
#[tokio::test(start_paused = true)]
async fn pods_behind_a_broker_for_which_nobody_has_room_run_until_the_notice_is_over() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    provide(turin, json!({ "percentage": 50, "noticeSeconds": 60 })).await;
    world.peer_and_wait(1, 2).await;
    provide(
        milan,
        json!({ "percentage": 100, "source": { "offers": {} } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    deploy(rome, 4).await;
    world
        .until("four pods run at turin", SOON, async || {
            rome.ready_pods("demo").await.len() == 4
        })
        .await;
    let fewest = fewest_healthy(&world);
    provide(turin, json!({ "percentage": 0 })).await;
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert_eq!(fewest.load(Ordering::Relaxed), 4);
    world
        .until("they have ended", SOON, async || {
            turin.pods_of("web").is_empty()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn two_budgets_of_a_consumer_for_one_pod_do_not_stop_a_drain() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 3).await;
    world
        .until("three pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 3
        })
        .await;
    protect(rome, 2).await;
    let everything: PodDisruptionBudget = object(json!({
        "metadata": { "name": "everything" }, "spec": { "minAvailable": 2, "selector": {} },
    }));
    rome.api::<PodDisruptionBudget>("demo")
        .create(&PostParams::default(), &everything)
        .await
        .unwrap();
    world
        .until("one of three may go", SOON, async || least_at(milan) == 2)
        .await;
    let node = ["milan-1", "milan-2"]
        .into_iter()
        .max_by_key(|node| pods_on(milan, node).len())
        .unwrap();
    assert!(drain_patiently(milan, node, SOON).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_a_provider_takes_back_ends_whatever_the_budgets_of_its_consumer_say() {
    const NOTICE: u64 = 4;
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    provide(milan, json!({ "noticeSeconds": NOTICE })).await;
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 2).await;
    world
        .until("two pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
    protect(rome, 2).await;
    world
        .until("both must stay healthy at milan", SOON, async || {
            least_at(milan) == 2
        })
        .await;
    let pods: Api<Pod> = rome.api("demo");
    let name = rome.ready_pods("demo").await[0].name_any();
    assert!(
        pods.evict(&name, &EvictParams::default()).await.is_err(),
        "home allows nothing"
    );
    provide(milan, json!({ "percentage": 0 })).await;
    world
        .until("no pod is left at milan", SOON, async || {
            milan.pods_of("web").is_empty()
        })
        .await;
}
