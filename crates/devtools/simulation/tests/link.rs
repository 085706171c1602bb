//! A controller whose connection to the API server is bad: it sees late what happens, hears of its
//! own writes or not, and is refused.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
    runtime::{WatchStreamExt as _, reflector, watcher},
};
use liqo_simulation::{ApiServer, Faults, Link, User};
use serde_json::json;
use tokio::time::Instant;

const BAD: Faults = Faults {
    delay: Duration::from_secs(2),
    lost_requests: 50,
    lost_answers: 50,
    late_requests: 50,
    lateness: Duration::from_secs(20),
    refusals: 100,
    broken_watches: 100,
};

fn start() -> ApiServer {
    let (base, started) = (
        Timestamp::from_second(1_800_000_000).unwrap(),
        Instant::now(),
    );
    ApiServer::seeded(1, move || base + started.elapsed())
}

fn api(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

fn config_map(name: &str, number: u32) -> ConfigMap {
    serde_json::from_value(
        json!({ "metadata": { "name": name }, "data": { "number": number.to_string() } }),
    )
    .unwrap()
}

/// What exists, by name.
async fn stored(server: &ApiServer) -> BTreeMap<String, Option<BTreeMap<String, String>>> {
    let all = api(server.client(User::administrator()))
        .list(&ListParams::default())
        .await
        .unwrap();
    all.items
        .into_iter()
        .map(|object| (object.name_any(), object.data))
        .collect()
}

/// Follows all `ConfigMap`s, and returns what it knows.
fn follow(client: Client) -> reflector::Store<ConfigMap> {
    let (store, writer) = reflector::store();
    let stream = watcher(api(client), watcher::Config::default())
        .default_backoff()
        .reflect(writer);
    tokio::spawn(stream.for_each(|_| std::future::ready(())));
    store
}

fn known(
    store: &reflector::Store<ConfigMap>,
) -> BTreeMap<String, Option<BTreeMap<String, String>>> {
    store
        .state()
        .iter()
        .map(|object| (object.name_any(), object.data.clone()))
        .collect()
}

/// Tries until it is done. Who wrote may have heard nothing of it.
async fn write(api: &Api<ConfigMap>, name: &str, number: u32) {
    loop {
        let outcome = match api.get_opt(name).await {
            Ok(Some(mut object)) => {
                object.data = config_map(name, number).data;
                api.replace(name, &PostParams::default(), &object)
                    .await
                    .map(drop)
            }
            Ok(None) => api
                .create(&PostParams::default(), &config_map(name, number))
                .await
                .map(drop),
            Err(error) => Err(error),
        };
        if outcome.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_over_a_bad_link_knows_everything_in_the_end() {
    let server = start();
    let fragile = Faults {
        broken_watches: 400,
        ..BAD
    };
    let (writing, watching) = (Link::new(2, BAD), Link::new(3, fragile));
    let store = follow(watching.client(&server, User::administrator()));
    let writer = api(writing.client(&server, User::administrator()));
    for round in 0..10 {
        for name in ["a", "b", "c", "d"] {
            write(&writer, name, round).await;
        }
        let _ = writer.delete("d", &DeleteParams::default()).await;
        if round == 5 {
            server.compact();
        }
    }
    let faults = |link: &Link| link.counts().into_values().sum::<u64>();
    assert!(
        faults(&writing) > 10 && faults(&watching) > 3,
        "{:?} {:?}",
        writing.counts(),
        watching.counts()
    );
    watching.set_faults(Faults::default());
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(known(&store), stored(&server).await);
    assert_eq!(known(&store)["c"], config_map("c", 9).data);
}

#[tokio::test(start_paused = true)]
async fn a_partition_hides_changes_until_it_heals() {
    let server = start();
    let link = Link::new(4, Faults::default());
    let store = follow(link.client(&server, User::administrator()));
    let near = api(server.client(User::administrator()));
    write(&near, "a", 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(known(&store).len(), 1);
    link.cut();
    write(&near, "b", 1).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(known(&store).len(), 1);
    link.heal();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(known(&store).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dead_process_writes_nothing_and_is_told_nothing() {
    let server = start();
    let slow = Link::new(
        5,
        Faults {
            delay: Duration::from_secs(2),
            ..Faults::default()
        },
    );
    let client = api(slow.client(&server, User::administrator()));
    let asked = tokio::spawn(async move {
        client
            .create(&PostParams::default(), &config_map("a", 1))
            .await
    });
    tokio::task::yield_now().await;
    slow.end();
    slow.heal();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(!asked.is_finished());
    assert!(stored(&server).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_faults() {
    let mut histories = Vec::new();
    for _ in 0..2 {
        let server = start();
        let link = Link::new(6, BAD);
        let writer = api(link.client(&server, User::administrator()));
        for number in 0..20 {
            write(&writer, "a", number).await;
        }
        histories.push((server.objects(), link.counts()));
    }
    assert_eq!(histories[0], histories[1]);
}
