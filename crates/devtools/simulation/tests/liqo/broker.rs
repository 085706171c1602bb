//! A broker: rome borrows from milan what milan borrows from others.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use liqo_api::{NamespaceOffloading, PeeringPolicy, Quantity, ResourceOffer};
use liqoctl::manifests;
use serde_json::{Value, json};

use crate::{
    json::object,
    users::SOON,
    world::{Cluster, Start, World},
};

/// How much cpu the node of a provider has, in thousandths.
async fn cpu(cluster: &Cluster, node: &str) -> i64 {
    let node = cluster.all::<Node>().get_opt(node).await.unwrap();
    let amounts = node
        .and_then(|node| node.status?.allocatable)
        .unwrap_or_default();
    let cpu = amounts
        .get("cpu")
        .map(|amount| amount.0.parse::<Quantity>().unwrap())
        .unwrap_or_default();
    cpu.milli_value()
}

/// The documents of the original broker create this object, so that customers reach the Service of
/// its network manager.
#[tokio::test(start_paused = true)]
async fn the_offloading_of_liqos_own_namespace_is_accepted_says_that_it_does_nothing_and_does_nothing()
 {
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (milan, turin) = (&world.clusters[1], &world.clusters[2]);
    world.peer_and_wait(0, 1).await;
    world.peer_and_wait(1, 2).await;
    let terms = json!([{ "matchExpressions": [{ "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] }] }]);
    let offloading: NamespaceOffloading = object(json!({
        "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading", "metadata": { "name": "offloading" },
        "spec": {
            "namespaceMappingStrategy": "DefaultName", "podOffloadingStrategy": "Local",
            "clusterSelector": { "nodeSelectorTerms": terms },
        },
    }));
    let offloadings = milan.api::<NamespaceOffloading>(manifests::NAMESPACE);
    offloadings
        .create(&PostParams::default(), &offloading)
        .await
        .unwrap();
    let ready = async || {
        let status = offloadings
            .get("offloading")
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        status
            .conditions
            .into_iter()
            .find(|one| one.type_ == "Ready")
    };
    world
        .until("it has a condition", SOON, async || ready().await.is_some())
        .await;
    let condition = ready().await.unwrap();
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("True", "NotNeeded")
    );
    assert!(
        condition
            .message
            .contains("nothing of Liqo's own namespace is reflected"),
        "{}",
        condition.message
    );
    tokio::time::sleep(SOON).await;
    let namespaces = turin
        .all::<Namespace>()
        .list(&ListParams::default().labels("liqo.io/namespace-kind=mapped"))
        .await
        .unwrap();
    assert!(namespaces.items.is_empty(), "{namespaces:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_broker_lends_the_sum_of_its_providers_and_one_that_leaves_and_returns_takes_only_its_part_along()
 {
    let world = World::start(
        &["rome", "milan", "turin", "venice", "genoa"],
        Start::default(),
    )
    .await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    let providers = &world.clusters[2..];
    for provider in [2, 3, 4] {
        world.peer_and_wait(1, provider).await;
    }
    let lends_on =
        json!({ "spec": { "provide": { "percentage": 100, "source": { "offers": {} } } } });
    milan
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &Patch::Merge(lends_on))
        .await
        .unwrap();
    world.peer_and_wait(0, 1).await;
    let sum = async |names: &[&str]| {
        let mut sum = 0;
        for name in names {
            sum += cpu(milan, name).await;
        }
        sum
    };
    let all = ["turin", "venice", "genoa"];
    world
        .until("rome is offered the sum", SOON, async || {
            let offered = cpu(rome, "milan").await;
            offered > 0 && offered == sum(&all).await
        })
        .await;
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 6).await;
    world
        .until("six pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 6
        })
        .await;
    let at = |provider: &Cluster| -> Vec<Pod> {
        provider.pods_of("web").into_iter().map(object).collect()
    };
    assert_eq!(providers.iter().map(|one| at(one).len()).sum::<usize>(), 6);
    let served = |provider: &Cluster| {
        at(provider)
            .iter()
            .filter_map(ResourceExt::uid)
            .collect::<Vec<_>>()
    };
    let before: Vec<Vec<String>> = providers[..2].iter().map(served).collect();

    milan.unpeer("genoa").await;
    world
        .until(
            "rome is offered what the others have",
            3 * SOON,
            async || {
                let offered = cpu(rome, "milan").await;
                milan
                    .all::<Node>()
                    .get_opt("genoa")
                    .await
                    .unwrap()
                    .is_none()
                    && offered == sum(&all[..2]).await
            },
        )
        .await;
    world
        .until("six pods run at the others", 3 * SOON, async || {
            rome.ready_pods("demo").await.len() == 6 && at(&providers[2]).is_empty()
        })
        .await;
    for (provider, before) in providers.iter().zip(&before) {
        let now = served(provider);
        assert!(
            before.iter().all(|uid| now.contains(uid)),
            "a pod at {} ended although its provider stayed",
            provider.name
        );
    }

    world
        .until("nothing is left of the peering", SOON, async || {
            !milan.knows("genoa").await
        })
        .await;
    // What was taken back behind the broker is told without the names there.
    let less = json!({ "spec": { "provide": { "percentage": 0, "noticeSeconds": 0 } } });
    providers[0]
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &Patch::Merge(less))
        .await
        .unwrap();
    world
        .until("turin has none of the pods", 5 * SOON, async || {
            at(&providers[0]).is_empty()
        })
        .await;
    world
        .until("six pods run again", 5 * SOON, async || {
            rome.ready_pods("demo").await.len() == 6
        })
        .await;
    let told = said_to(rome).await;
    assert!(
        told.iter()
            .any(|text| text.contains("a cluster behind the provider took back")),
        "{told:#?}"
    );
    let named: Vec<&String> = told
        .iter()
        .filter(|text| all.iter().any(|name| text.contains(name)))
        .collect();
    assert!(named.is_empty(), "{named:#?}");
    let as_before = json!({ "spec": { "provide": { "percentage": 100 } } });
    providers[0]
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &Patch::Merge(as_before))
        .await
        .unwrap();
    world.peer_as(1, 4, 1).await;
    world
        .until("rome is offered the sum again", 3 * SOON, async || {
            milan.node_is_ready("genoa").await && cpu(rome, "milan").await == sum(&all).await
        })
        .await;
    rome.scale("demo", "web", 12).await;
    world
        .until("twelve pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 12
        })
        .await;
}

/// All pods and events of a cluster, as text.
async fn said_to(cluster: &Cluster) -> Vec<String> {
    let (everything, mut said) = (ListParams::default(), Vec::new());
    said.extend(
        cluster
            .all::<Pod>()
            .list(&everything)
            .await
            .unwrap()
            .iter()
            .map(|pod| json!(pod).to_string()),
    );
    said.extend(
        cluster
            .all::<Event>()
            .list(&everything)
            .await
            .unwrap()
            .iter()
            .map(|event| json!(event).to_string()),
    );
    said
}

/// The nodes of the pods of an app that run at a cluster.
async fn nodes_of(cluster: &Cluster, app: &str) -> Vec<String> {
    let pods = cluster
        .all::<Pod>()
        .list(&ListParams::default().labels(&format!("app={app}")))
        .await
        .unwrap();
    let running = pods.items.iter().filter(|pod| {
        pod.status
            .as_ref()
            .is_some_and(|status| status.phase.as_deref() == Some("Running"))
    });
    running
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect()
}

/// How many pods of an app a provider ended.
async fn ended_by_provider(home: &Cluster, app: &str) -> usize {
    let pods = home
        .api::<Pod>("demo")
        .list(&ListParams::default().labels(&format!("app={app}")))
        .await
        .unwrap();
    let is_evicted = |pod: &&Pod| {
        pod.status
            .as_ref()
            .is_some_and(|status| status.reason.as_deref() == Some("Evicted"))
    };
    pods.items.iter().filter(is_evicted).count()
}

/// How many pods home moved before their provider ended them.
async fn moved_before(home: &Cluster) -> usize {
    let events = home
        .api::<Event>("demo")
        .list(&ListParams::default())
        .await
        .unwrap();
    events
        .items
        .iter()
        .filter(|event| event.reason.as_deref() == Some("MovedAway"))
        .count()
}

/// Pods of a Deployment move during the notice. The pod of a Job has all of it.
#[tokio::test(start_paused = true)]
async fn pods_leave_the_nodes_that_a_pool_does_not_have_any_more_when_their_cluster_becomes_a_broker_and_ends_it()
 {
    const PODS: usize = 4;
    const NOTICE: Duration = Duration::from_mins(1);
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.peer_and_wait(1, 2).await;
    let lend = async |provide: Value| {
        let change = json!({ "spec": { "provide": provide } });
        milan
            .all::<PeeringPolicy>()
            .patch("default", &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap();
    };
    lend(json!({ "percentage": 50, "noticeSeconds": NOTICE.as_secs() })).await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 4).await;
    rome.run_job("demo", "batch", 1, 100_000, 6).await;
    let are_on = async |app: &str, number: usize, beginning: &str| {
        let nodes = nodes_of(milan, app).await;
        nodes.len() == number && nodes.iter().all(|node| node.starts_with(beginning))
    };
    let all_are_on = async |beginning: &str| {
        are_on("web", PODS, beginning).await && are_on("batch", 1, beginning).await
    };
    world
        .until("the pods run on milan's own nodes", SOON, async || {
            all_are_on("milan-").await
        })
        .await;
    let (offers, mut changes, mut former) = (json!({ "offers": {} }), 0, "milan-");
    for (source, beginning) in [
        (&offers, "turin"),
        (&Value::Null, "milan-"),
        (&offers, "turin"),
    ] {
        changes += 1;
        lend(json!({ "source": source })).await;
        let took = world
            .until("those of the Deployment have moved", NOTICE, async || {
                are_on("web", PODS, beginning).await
            })
            .await;
        println!("on {beginning} {} s after the change", took.as_secs());
        assert_eq!(
            moved_before(rome).await,
            changes * PODS,
            "each of them once"
        );
        assert!(
            are_on("batch", 1, former).await,
            "that of the Job has its notice"
        );
        former = beginning;
        // A Job creates another one later and later.
        let left = world
            .until("that of the Job has moved, too", 3 * NOTICE, async || {
                all_are_on(beginning).await
            })
            .await;
        println!(
            "all on {beginning} {} s after the change",
            (took + left).as_secs()
        );
        assert_eq!(
            (
                ended_by_provider(rome, "web").await,
                ended_by_provider(rome, "batch").await
            ),
            (0, changes)
        );
        world
            .until("nothing is announced any more", SOON, async || {
                let offers = milan
                    .all::<ResourceOffer>()
                    .list(&ListParams::default())
                    .await
                    .unwrap();
                offers
                    .items
                    .iter()
                    .all(|offer| offer.spec.drain_timestamp.is_none())
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_was_cut_off_from_everybody_has_ended_nothing_when_it_is_back() {
    const PODS: usize = 8;
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    world.peer_and_wait(1, 2).await;
    let lends_on = json!({ "spec": { "provide": { "percentage": 100, "noticeSeconds": 30, "source": { "offers": {} } } } });
    milan
        .all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &Patch::Merge(lends_on))
        .await
        .unwrap();
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "Remote").await;
    rome.deploy("demo", "web", 8).await;
    world
        .until("all run at turin", SOON, async || {
            turin.pods_of("web").len() == PODS
        })
        .await;
    world
        .until("all are ready at home", SOON, async || {
            rome.ready_pods("demo").await.len() == PODS
        })
        .await;
    let uids = || -> BTreeSet<String> {
        turin
            .pods_of("web")
            .iter()
            .filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned))
            .collect()
    };
    let before = uids();
    for other in [rome, turin] {
        for (here, there) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            world
                .internet
                .cut(milan.address(here), other.address(there));
            world
                .internet
                .cut(other.address(there), milan.address(here));
        }
    }
    tokio::time::sleep(Duration::from_secs(150)).await;
    assert!(
        !milan.node_is_ready("turin").await,
        "milan does not hear turin"
    );
    world.internet.heal();
    world
        .until("all are ready at home again", SOON, async || {
            rome.ready_pods("demo").await.len() == PODS
        })
        .await;
    tokio::time::sleep(SOON).await;
    assert_eq!(uids(), before, "no pod ended");
    assert_eq!(
        ended_by_provider(rome, "web").await + moved_before(rome).await,
        0,
        "none was evicted"
    );
}

/// This holds for what runs already, too, once its notice is over.
#[tokio::test(start_paused = true)]
async fn a_customer_that_wants_only_what_its_provider_owns_has_no_pod_behind_it_when_that_becomes_a_broker()
 {
    const PODS: usize = 4;
    let world = World::start(&["rome", "milan", "turin"], Start::default()).await;
    let (rome, milan, turin) = (&world.clusters[0], &world.clusters[1], &world.clusters[2]);
    let change = async |cluster: &Cluster, spec: Value| {
        let change = Patch::Merge(json!({ "spec": spec }));
        cluster
            .all::<PeeringPolicy>()
            .patch("default", &PatchParams::default(), &change)
            .await
            .unwrap();
    };
    world.peer_and_wait(1, 2).await;
    change(rome, json!({ "consume": { "maxHops": 1 } })).await;
    change(
        milan,
        json!({ "provide": { "percentage": 50, "noticeSeconds": 60 } }),
    )
    .await;
    world.peer_and_wait(0, 1).await;
    world.offload(0, "demo", "LocalAndRemote").await;
    assert!(rome.drain("rome-1").await && rome.drain("rome-2").await);
    rome.deploy("demo", "web", 4).await;
    rome.run_job("demo", "batch", 1, 100_000, 6).await;
    let at_milan = async || {
        (
            nodes_of(milan, "web").await.len(),
            nodes_of(milan, "batch").await.len(),
        )
    };
    world
        .until("the pods run on milan's own nodes", SOON, async || {
            at_milan().await == (PODS, 1)
        })
        .await;
    rome.uncordon("rome-1").await;

    change(milan, json!({ "provide": { "source": { "offers": {} } } })).await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!(at_milan().await.1, 1, "the pod of a Job has its notice");
    let is_home = async || {
        let ready = rome.ready_pods("demo").await;
        ready.len() == PODS + 1
            && ready
                .iter()
                .all(|pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some("rome-1"))
    };
    let took = world.until("all pods are at home", 2 * SOON, is_home).await;
    println!(
        "at home {} s after the provider became a broker",
        took.as_secs() + 45
    );
    assert!(
        [turin, milan]
            .iter()
            .all(|one| one.pods_of("web").is_empty() && one.pods_of("batch").is_empty())
    );
    change(milan, json!({ "provide": { "source": null } })).await;
    world
        .until("rome borrows again", SOON, async || {
            rome.node_is_ready("milan").await
        })
        .await;
}
