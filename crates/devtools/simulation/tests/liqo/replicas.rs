//! `ConfigMap`s and Secrets that pods name: at a provider they get those of home, and nothing else.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading, ReflectedObject, annotations, labels};
use serde_json::{Value, json};

use crate::{
    json::object,
    lending::provide,
    users::SOON,
    world::{Cluster, Start, World},
};

async fn run(cluster: &Cluster, name: &str, spec: Value) {
    let mut pod = json!({ "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "main", "image": "example.com/main:1" }] } });
    for (field, value) in spec.as_object().unwrap() {
        if field == "envFrom" {
            pod["spec"]["containers"][0]["envFrom"] = value.clone();
        } else {
            pod["spec"][field] = value.clone();
        }
    }
    cluster
        .api::<Pod>("demo")
        .create(&PostParams::default(), &object(pod))
        .await
        .unwrap();
}

async fn create_secret(cluster: &Cluster, namespace: &str, name: &str, type_: &str, whose: &str) {
    let secret =
        json!({ "metadata": { "name": name }, "type": type_, "stringData": { "password": whose } });
    cluster
        .api::<Secret>(namespace)
        .create(&PostParams::default(), &object(secret))
        .await
        .unwrap();
}

async fn create_config_map(cluster: &Cluster, namespace: &str, name: &str, whose: &str) {
    let map = json!({ "metadata": { "name": name }, "data": { "whose": whose } });
    cluster
        .api::<ConfigMap>(namespace)
        .create(&PostParams::default(), &object(map))
        .await
        .unwrap();
}

async fn is_ready(cluster: &Cluster, name: &str) -> bool {
    cluster
        .ready_pods("demo")
        .await
        .iter()
        .any(|pod| pod.name_any() == name)
}

/// Reads why the only container of a pod waits.
async fn waits_for(cluster: &Cluster, name: &str) -> String {
    let status = cluster
        .api::<Pod>("demo")
        .get(name)
        .await
        .unwrap()
        .status
        .unwrap_or_default();
    let state = status
        .container_statuses
        .into_iter()
        .flatten()
        .find_map(|one| one.state?.waiting?.message);
    state.unwrap_or_default()
}

/// The replicas of a consumer's objects in all namespaces of a provider, with what they say.
async fn replicas(provider: &Cluster) -> BTreeMap<String, String> {
    let made = ListParams::default().labels("liqo.io/reflected=true");
    let maps = provider.all::<ConfigMap>().list(&made).await.unwrap().items;
    let maps = maps.into_iter().map(|map| {
        (
            map.name_any(),
            map.data
                .unwrap_or_default()
                .into_values()
                .collect::<String>(),
        )
    });
    let secrets = provider.all::<Secret>().list(&made).await.unwrap().items;
    // The records of Secrets are Secrets, too.
    let secrets = secrets
        .into_iter()
        .filter(|secret| !secret.annotations().contains_key(annotations::HOME_NAME));
    let said = |secret: Secret| {
        let data = secret
            .data
            .unwrap_or_default()
            .into_values()
            .map(|value| String::from_utf8(value.0).unwrap());
        format!(
            "{}: {}",
            secret.type_.unwrap_or_default(),
            data.collect::<String>()
        )
    };
    maps.chain(secrets.map(|secret| (secret.name_any(), said(secret))))
        .collect()
}

/// The one replica of an object of home.
fn replica_of(replicas: &BTreeMap<String, String>, home: &str) -> Option<(String, String)> {
    let start = format!("{home}-liqo-");
    let mut found = replicas.iter().filter(|(name, _)| name.starts_with(&start));
    let replica = found
        .next()
        .map(|(name, said)| (name.clone(), said.clone()));
    assert!(
        found.next().is_none(),
        "two replicas of {home}: {replicas:?}"
    );
    replica
}

async fn mapped(consumer: &Cluster) -> String {
    let offloading = consumer
        .api::<NamespaceOffloading>("demo")
        .get(NAMESPACE_OFFLOADING)
        .await
        .unwrap();
    offloading
        .status
        .unwrap()
        .remote_namespaces
        .remove(0)
        .namespace
}

/// An attack: rome's pods name what milan has, or will have, in their namespace.
#[tokio::test(start_paused = true)]
async fn a_pod_gets_nothing_of_the_provider_that_was_there_before_or_comes_later() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    let mapped = mapped(rome).await;
    create_secret(milan, &mapped, "registry", "Opaque", "milan").await;
    let pods = [
        (
            "needs-before",
            json!({ "envFrom": [{ "secretRef": { "name": "registry" } }] }),
        ),
        (
            "needs-later",
            json!({ "envFrom": [{ "secretRef": { "name": "later" } }] }),
        ),
        (
            "wants",
            json!({ "imagePullSecrets": [{ "name": "registry" }], "volumes": [
            { "name": "a", "secret": { "secretName": "registry", "optional": true } },
            { "name": "b", "projected": { "sources": [{ "secret": { "name": "later", "optional": true } }] } }] }),
        ),
    ];
    for (name, spec) in pods.clone() {
        run(rome, name, spec).await;
    }
    world
        .until(
            "the pod that can start without them runs",
            SOON,
            async || is_ready(rome, "wants").await,
        )
        .await;
    create_secret(milan, &mapped, "later", "Opaque", "milan").await;
    tokio::time::sleep(5 * SOON).await;
    for (name, _) in &pods {
        let there = milan.pods_of(name).remove(0)["spec"].to_string();
        assert!(
            !there.contains(r#""registry""#) && !there.contains(r#""later""#),
            "{name}: {there}"
        );
    }
    assert!(
        !is_ready(rome, "needs-before").await && !is_ready(rome, "needs-later").await,
        "they got milan's Secrets"
    );
    assert_eq!(
        waits_for(rome, "needs-before").await,
        "secret \"registry\" not found",
        "in the words of home"
    );
    assert_eq!(
        waits_for(rome, "needs-later").await,
        "secret \"later\" not found"
    );

    // They get those of home, which may have the type of an operator.
    create_secret(rome, "demo", "registry", "example.com/own", "rome").await;
    create_secret(rome, "demo", "later", "Opaque", "rome").await;
    let both = async || is_ready(rome, "needs-before").await && is_ready(rome, "needs-later").await;
    world
        .until("the pods have what they need", SOON, both)
        .await;
    let made = replicas(milan).await;
    for home in ["registry", "later"] {
        assert_eq!(replica_of(&made, home).unwrap().1, "Opaque: rome", "{home}");
    }
    let own = milan.api::<Secret>(&mapped).get("registry").await.unwrap();
    assert_eq!(
        own.data.unwrap()["password"].0,
        b"milan",
        "milan's own is as it was"
    );
}

#[tokio::test(start_paused = true)]
async fn what_both_clusters_have_in_each_namespace_comes_from_home_if_a_pod_names_it() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    let mapped = mapped(rome).await;
    let ca = Patch::Merge(json!({ "data": { "ca.crt": "rome" } }));
    rome.api::<ConfigMap>("demo")
        .patch("kube-root-ca.crt", &PatchParams::default(), &ca)
        .await
        .unwrap();
    create_config_map(rome, "demo", "istio-ca-root-cert", "rome").await;
    create_config_map(milan, &mapped, "istio-ca-root-cert", "milan").await;
    let volumes = json!([{ "name": "ca", "configMap": { "name": "kube-root-ca.crt" } },
        { "name": "istio", "projected": { "sources": [{ "configMap": { "name": "istio-ca-root-cert" } }] } }]);
    run(rome, "proxy", json!({ "volumes": volumes })).await;
    world
        .until("the pod runs", SOON, async || is_ready(rome, "proxy").await)
        .await;
    let made = replicas(milan).await;
    let there = milan.pods_of("proxy").remove(0)["spec"]["volumes"].to_string();
    for home in ["kube-root-ca.crt", "istio-ca-root-cert"] {
        let (name, said) = replica_of(&made, home).unwrap();
        assert_eq!(said, "rome");
        assert!(
            there.contains(&name) && !there.contains(&format!("\"{home}\"")),
            "{there}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_account_default_has_the_namespace_and_the_ca_of_home_and_no_token() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    run(rome, "reader", json!({})).await;
    world
        .until("the pod runs", SOON, async || {
            is_ready(rome, "reader").await
        })
        .await;
    let has_ca = async || replica_of(&replicas(milan).await, "kube-root-ca.crt").is_some();
    world.until("milan has the CA", SOON, has_ca).await;
    let pod = milan.pods_of("reader").remove(0);
    let volume = pod["spec"]["volumes"].to_string();
    let (name, _) = replica_of(&replicas(milan).await, "kube-root-ca.crt").unwrap();
    assert!(
        volume.contains(&name)
            && volume.contains("liqo.io/home-namespace")
            && !volume.contains("oken"),
        "{volume}"
    );
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].to_string();
    assert!(
        mounts.contains("/var/run/secrets/kubernetes.io/serviceaccount"),
        "{mounts}"
    );
    rome.api::<Pod>("demo")
        .delete("reader", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the CA goes with the last pod", SOON, async || {
            !has_ca().await
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_derived_name_that_another_object_has_is_taken() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    let mapped = mapped(rome).await;
    run(
        rome,
        "reader",
        json!({ "envFrom": [{ "configMapRef": { "name": "settings", "optional": true } }] }),
    )
    .await;
    world
        .until("the pod runs", SOON, async || {
            is_ready(rome, "reader").await
        })
        .await;
    let named = milan.pods_of("reader").remove(0)["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"].clone();
    create_config_map(milan, &mapped, named.as_str().unwrap(), "milan").await;
    create_config_map(rome, "demo", "settings", "rome").await;
    let is_told = async || {
        let status = rome
            .api::<Pod>("demo")
            .get("reader")
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        let said = status
            .conditions
            .into_iter()
            .flatten()
            .filter_map(|condition| condition.message);
        said.into_iter().any(|text| {
            text.contains(
                "ConfigMap settings: NameTaken: the provider has a ConfigMap settings-liqo-",
            )
        })
    };
    world.until("the pod says so", SOON, is_told).await;
    let left = milan
        .api::<ConfigMap>(&mapped)
        .get(named.as_str().unwrap())
        .await
        .unwrap();
    assert_eq!(
        left.data.unwrap()["whose"],
        "milan",
        "Liqo does not change it"
    );
}

#[tokio::test(start_paused = true)]
async fn behind_a_broker_names_are_derived_once_more_and_people_read_their_own() {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    world.peer_and_wait(1, 2).await;
    provide(
        milan,
        json!({ "percentage": 100, "source": { "offers": {} } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    create_config_map(rome, "demo", "settings", "rome").await;
    let named =
        json!([{ "configMapRef": { "name": "settings" } }, { "secretRef": { "name": "login" } }]);
    run(rome, "reader", json!({ "envFrom": named })).await;
    let waits = async || waits_for(rome, "reader").await == "secret \"login\" not found";
    world
        .until(
            "the pod says what it lacks, as home calls it",
            2 * SOON,
            waits,
        )
        .await;
    // Secrets of the broker's own, by both names, are not for it.
    let broker = milan.pods_of("reader").remove(0);
    let (namespace, derived) = (
        broker["metadata"]["namespace"].as_str().unwrap(),
        &broker["spec"]["containers"][0]["envFrom"],
    );
    assert_eq!(
        broker["metadata"]["labels"][labels::CONSUMER_ID],
        json!(rome.id)
    );
    assert!(!derived.to_string().contains(r#""login""#), "{derived}");
    create_secret(milan, namespace, "login", "Opaque", "milan").await;
    tokio::time::sleep(2 * SOON).await;
    assert!(!is_ready(rome, "reader").await);
    create_secret(rome, "demo", "login", "Opaque", "rome").await;
    world
        .until("the pod runs", SOON, async || {
            is_ready(rome, "reader").await
        })
        .await;
    for home in ["settings", "login"] {
        let (once, at_broker) = replica_of(&replicas(milan).await, home).unwrap();
        let (twice, behind) = replica_of(&replicas(turin).await, home).unwrap();
        assert!(
            twice.starts_with(&format!("{once}-liqo-")),
            "{twice} of {once}"
        );
        assert!(
            at_broker.ends_with("rome") && behind.ends_with("rome"),
            "{at_broker} {behind}"
        );
    }
    assert_eq!(turin.pods_of("reader").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replica_follows_its_object_and_goes_with_the_last_pod_that_names_it() {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    create_config_map(rome, "demo", "settings", "old").await;
    run(
        rome,
        "reader",
        json!({ "volumes": [{ "name": "v", "configMap": { "name": "settings" } }] }),
    )
    .await;
    world
        .until("the pod runs", SOON, async || {
            is_ready(rome, "reader").await
        })
        .await;
    let said = async || replica_of(&replicas(milan).await, "settings").map(|(_, said)| said);
    assert_eq!(said().await.as_deref(), Some("old"));
    let change = Patch::Merge(json!({ "data": { "whose": "new" } }));
    let maps: Api<ConfigMap> = rome.api("demo");
    maps.patch("settings", &PatchParams::default(), &change)
        .await
        .unwrap();
    world
        .until("the replica follows", SOON, async || {
            said().await.as_deref() == Some("new")
        })
        .await;
    rome.api::<Pod>("demo")
        .delete("reader", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the replica is gone", SOON, async || said().await.is_none())
        .await;
}

/// The first `ConfigMap` and the first Secret in the namespaces of a consumer's pods.
async fn contents(provider: &Cluster) -> (Option<String>, Option<usize>) {
    let made = ListParams::default().labels("liqo.io/reflected=true");
    let mut maps = provider
        .all::<ConfigMap>()
        .list(&made)
        .await
        .unwrap()
        .items
        .into_iter();
    let map = maps.find_map(|map| map.data?.remove("a.xml"));
    let secrets = provider
        .all::<Secret>()
        .list(&made)
        .await
        .unwrap()
        .items
        .into_iter();
    let mut replicas =
        secrets.filter(|secret| !secret.annotations().contains_key(annotations::HOME_NAME));
    (
        map,
        replicas.find_map(|secret| Some(secret.data?.remove("key")?.0.len())),
    )
}

/// How many records of `ConfigMap`s and Secrets a provider keeps.
async fn records(provider: &Cluster) -> usize {
    let made = ListParams::default().labels("liqo.io/reflected=true");
    let secrets = provider.all::<Secret>().list(&made).await.unwrap().items;
    let secrets = secrets
        .into_iter()
        .filter(|secret| secret.annotations().contains_key(annotations::HOME_NAME))
        .count();
    let maps = provider
        .all::<ReflectedObject>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    secrets
        + maps
            .into_iter()
            .filter(|one| one.spec.object.contains("\"kind\":\"ConfigMap\""))
            .count()
}

#[tokio::test(start_paused = true)]
async fn what_is_as_large_as_kubernetes_allows_arrives_whole_and_follows_changes_also_behind_a_broker()
 {
    const SECRET_LEN: usize = 900 << 10;
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    world.peer_and_wait(1, 2).await;
    provide(
        milan,
        json!({ "percentage": 100, "source": { "offers": {} } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    let xml = |items: usize| "<item name=\"ä\">&amp;</item>\n".repeat(items);
    let map = json!({ "metadata": { "name": "settings" }, "data": { "a.xml": xml(32 * 1024) } });
    let maps = rome.api::<ConfigMap>("demo");
    maps.create(&PostParams::default(), &object(map))
        .await
        .unwrap();
    let secret =
        json!({ "metadata": { "name": "keys" }, "stringData": { "key": "k".repeat(SECRET_LEN) } });
    rome.api::<Secret>("demo")
        .create(&PostParams::default(), &object(secret))
        .await
        .unwrap();
    run(rome, "web", json!({ "volumes": [{ "name": "a", "configMap": { "name": "settings" } }, { "name": "b", "secret": { "secretName": "keys" } }] })).await;
    world
        .until("the pod runs", SOON, async || is_ready(rome, "web").await)
        .await;
    let has = async |items: usize| contents(turin).await == (Some(xml(items)), Some(SECRET_LEN));
    assert!(
        has(32 * 1024).await,
        "its pod does not run before both are there"
    );
    println!(
        "{} records at milan, {} at turin",
        records(milan).await,
        records(turin).await
    );

    for items in [20_000, 30_000, 10] {
        let change = Patch::Merge(json!({ "data": { "a.xml": xml(items) } }));
        maps.patch("settings", &PatchParams::default(), &change)
            .await
            .unwrap();
        world
            .until("the change arrives", SOON, async || has(items).await)
            .await;
    }
    // Those of the Secret, and one for the map and for the CA of home.
    let left = SECRET_LEN.div_ceil(32 << 10) + 2;
    world
        .until("no chunk of the map is left", SOON, async || {
            records(turin).await <= left
        })
        .await;
    assert_eq!(records(turin).await, left);
    rome.api::<Pod>("demo")
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("nothing is left", 2 * SOON, async || {
            records(milan).await + records(turin).await == 0
        })
        .await;
    assert_eq!(contents(turin).await, (None, None));
}
