//! Contracts, and what was used under them.

use std::time::Duration;

use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::{
    ClusterConfig, Contract, PeeringPolicy, Receipt, ReceiptPhase, UsageRecord, labels,
};
use liqo_simulation::Faults;
use liqoctl::manifests;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    lending::provide,
    users::SOON,
    world::{Cluster, Start, World},
};

/// A contract between rome and milan, with periods of a minute.
async fn under_contract() -> World {
    let world = World::peered(Start::default()).await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    let prices = json!({ "currency": "EUR", "rates": { "cpu": "0.04" } });
    let pays = Patch::Merge(json!({ "spec": { "consume": { "maxPrices": prices } } }));
    rome.all::<PeeringPolicy>()
        .patch("default", &PatchParams::default(), &pays)
        .await
        .unwrap();
    let tolerance = Patch::Merge(json!({ "spec": { "metering": { "clockToleranceSeconds": 5 } } }));
    rome.all::<ClusterConfig>()
        .patch("liqo", &PatchParams::default(), &tolerance)
        .await
        .unwrap();
    provide(
        milan,
        json!({ "contract": { "meteringPeriodSeconds": 60 }, "prices": prices }),
    )
    .await;
    let in_force = async || {
        let contracts = milan
            .all::<Contract>()
            .list(&ListParams::default())
            .await
            .unwrap();
        contracts
            .iter()
            .any(|contract| contract.spec.in_force_since.is_some())
    };
    world.until("a contract is in force", SOON, in_force).await;
    world
}

/// What is kept of ended peerings.
async fn kept<K>(cluster: &Cluster) -> Vec<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.user.clone(), manifests::NAMESPACE);
    api.list(&ListParams::default().labels(labels::FORMER_PEER_ID))
        .await
        .unwrap()
        .items
}

/// The seconds of pods in these receipts.
fn pod_seconds(receipts: &[Receipt]) -> f64 {
    let pools = receipts
        .iter()
        .flat_map(|receipt| &receipt.spec.statement.pools);
    pools
        .filter_map(|pool| pool.resources.get("pods"))
        .map(|line| line.amount_seconds.to_string().parse::<f64>().unwrap())
        .sum()
}

/// Two pods run for three minutes, then one of the clusters (0: rome) ends the peering.
async fn ended_by(side: usize) {
    const PODS: u8 = 2;
    let world = under_contract().await;
    let (rome, milan) = (&world.clusters[0], &world.clusters[1]);
    world.offload(0, "demo", "Remote").await;
    let before = Instant::now();
    rome.deploy("demo", "web", PODS).await;
    world
        .until("the pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == usize::from(PODS)
        })
        .await;
    let ready = Instant::now();
    let signed = async |least: usize| {
        let all = milan
            .all::<Receipt>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let is_signed = |receipt: &&Receipt| {
            receipt
                .status
                .as_ref()
                .is_some_and(|one| one.phase == ReceiptPhase::Signed)
        };
        all.iter().filter(is_signed).count() >= least
    };
    world
        .until("both signed two receipts", 4 * SOON, async || {
            signed(2).await
        })
        .await;
    // Its cache shows pods that are gone, and records late.
    milan.manager(1).link.set_faults(Faults {
        delay: Duration::from_millis(300),
        ..Faults::default()
    });
    let ended = Instant::now();
    let (ends, peer) = if side == 0 {
        (rome, "milan")
    } else {
        (milan, "rome")
    };
    ends.unpeer(peer).await;
    let is_over = async || {
        let tenant = liqo_api::tenant_namespace(&rome.id);
        let namespaces = milan.all::<k8s_openapi::api::core::v1::Namespace>();
        !milan.knows("rome").await && namespaces.get_opt(&tenant).await.unwrap().is_none()
    };
    world
        .until("milan has nothing of the peering", 4 * SOON, is_over)
        .await;
    let gone = Instant::now();

    let receipts: Vec<Receipt> = kept(milan).await;
    let (least, most) = ((ended - ready).as_secs_f64(), (gone - before).as_secs_f64());
    let (counted, pods) = (pod_seconds(&receipts), f64::from(PODS));
    assert!(
        (pods * least..=pods * most).contains(&counted),
        "{counted} s of {PODS} pods that ran for {least} to {most} s each"
    );
    let mut starts: Vec<Timestamp> = receipts
        .iter()
        .map(|receipt| receipt.spec.statement.period.start.0)
        .collect();
    starts.sort_unstable();
    assert!(
        starts
            .windows(2)
            .all(|pair| pair[1].as_second() - pair[0].as_second() == 60),
        "{starts:?}"
    );
    let contracts: Vec<Contract> = kept(milan).await;
    assert!(
        contracts.len() == 1 && contracts[0].spec.countersignature.is_some(),
        "{contracts:#?}"
    );
    assert!(
        receipts
            .iter()
            .filter(|receipt| receipt.spec.countersignature.is_some())
            .count()
            >= 2
    );

    if side == 1 {
        rome.unpeer("milan").await;
    }
    world
        .until("rome has nothing of the peering", 4 * SOON, async || {
            !rome.knows("milan").await
        })
        .await;
    let (own, copies): (Vec<UsageRecord>, Vec<Receipt>) = (kept(rome).await, kept(rome).await);
    assert!(copies.len() >= 2 && !own.is_empty(), "{copies:#?} {own:#?}");
    assert!(
        own.iter()
            .all(|record| record.labels()[labels::FORMER_ROLE] == "consumer")
    );
    assert_eq!(kept::<Contract>(rome).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn receipts_and_the_unfinished_period_stay_when_the_consumer_ends_the_peering() {
    ended_by(0).await;
}

#[tokio::test(start_paused = true)]
async fn receipts_and_the_unfinished_period_stay_when_the_provider_ends_the_peering() {
    ended_by(1).await;
}

/// One side's manager (0: the consumer's) is away for ten minutes, over many boundaries, while the
/// pods run.
async fn away_for_ten_minutes(side: usize) {
    let mut world = under_contract().await;
    world.offload(0, "demo", "Remote").await;
    world.clusters[0].deploy("demo", "web", 2).await;
    let rome = &world.clusters[0];
    world
        .until("the pods run", SOON, async || {
            rome.ready_pods("demo").await.len() == 2
        })
        .await;
    let from = Instant::now();
    world.clusters[side].manager(1).kill();
    tokio::time::sleep(Duration::from_mins(10)).await;
    world.clusters[side].restart_manager(1);
    let (milan, away) = (&world.clusters[1], (Instant::now() - from).as_secs_f64());
    let all = async || {
        milan
            .all::<Receipt>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    };
    let is_signed = |receipt: &Receipt| {
        receipt
            .status
            .as_ref()
            .is_some_and(|one| one.phase == ReceiptPhase::Signed)
    };
    world
        .until(
            "both signed all receipts of that time",
            10 * SOON,
            async || {
                let receipts = all().await;
                assert!(
                    receipts.iter().all(|one| one
                        .status
                        .as_ref()
                        .is_none_or(|one| one.phase != ReceiptPhase::Disputed)),
                    "two honest clusters dispute: {receipts:#?}"
                );
                pod_seconds(&receipts) >= 2.0 * away && receipts.iter().all(is_signed)
            },
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_was_away_over_many_periods_signs_their_receipts() {
    away_for_ten_minutes(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_was_away_over_many_periods_writes_their_receipts_and_both_sign() {
    away_for_ten_minutes(1).await;
}
