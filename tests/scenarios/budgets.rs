//! A budget that is spent stops new remote pods with the reason on the pod, and what runs goes on
//! or moves home.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_tests::{Cluster, World, eventually, still};
use serde_json::{Value, json};

use crate::contracts::pay_at_most;
use crate::pods::{deployment, node_of};
use crate::policies::apply_policy;

const KEPT: &str = "budget-keeps";
const MOVED: &str = "budget-moves";
const POLICY: &str = "budgets";
/// A round takes ten seconds, and running pods move every thirty seconds.
const TIMEOUT: Duration = Duration::from_mins(2);
/// So little that any pod has spent it.
const NOTHING: &str = "0.000000001";

/// Milan sells under a contract, so dearly that a pod costs something in its first second.
async fn sold_under_a_contract(world: &World) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let spec = json!({ "priority": 20, "peers": { "clusterIDs": [rome.cluster_id().await?] }, "provide": {
        "percentage": 100,
        "noticeSeconds": 10,
        "contract": {},
        "prices": { "currency": "EUR", "rates": { "cpu": "36" } },
    } });
    pay_at_most(rome, json!({ "currency": "EUR", "rates": { "cpu": "36" } })).await?;
    apply_policy(milan, POLICY, spec).await?;
    let copies = format!("liqo-provider-{}", milan.cluster_id().await?);
    eventually(
        "rome has a contract in force, and node milan its price",
        TIMEOUT,
        || async {
            let contracts = rome.items(&["-n", &copies, "contracts"]).await?;
            let in_force = contracts.iter().any(|one| {
                one["spec"]["inForceSince"].is_string() && one["status"]["phase"] == "InForce"
            });
            let node = rome.object(&["node", "milan"]).await?.unwrap_or_default();
            let conditions = node["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            // The provider admits no pods before the offer says that its contract is in force.
            let is_closed = conditions
                .iter()
                .any(|one| one["type"] == "NoNewPods" && one["status"] == "True");
            Ok(
                (in_force && !is_closed && node["metadata"]["labels"]["price.liqo.io/cpu"] == "36")
                    .then_some(()),
            )
        },
    )
    .await
}

/// Sets the budget of a namespace, as docs/how-to/give-a-namespace-a-budget.md says.
async fn set_budget(rome: &Cluster, namespace: &str, amount: &str, when_spent: &str) -> Result<()> {
    let budget =
        json!({ "currency": "EUR", "amount": amount, "period": "Month", "whenSpent": when_spent });
    let patch = json!({ "spec": { "budget": budget } }).to_string();
    rome.kubectl(&[
        "-n",
        namespace,
        "patch",
        "namespaceoffloading",
        "offloading",
        "--type",
        "merge",
        "-p",
        &patch,
    ])
    .await
    .map(drop)
}

/// Waits until the budget of a namespace has this reason.
async fn budget_is(rome: &Cluster, namespace: &str, reason: &str) -> Result<()> {
    eventually(
        &format!("the budget of {namespace} is {reason}"),
        TIMEOUT,
        || async {
            let offloading = rome
                .object(&["-n", namespace, "namespaceoffloading", "offloading"])
                .await?
                .unwrap_or_default();
            let conditions = offloading["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            Ok(conditions
                .iter()
                .any(|one| one["type"] == "WithinBudget" && one["reason"] == reason)
                .then_some(()))
        },
    )
    .await
}

/// What `liqoctl cost` says about the budget of a namespace.
async fn shown(rome: &Cluster, namespace: &str) -> Result<Value> {
    let costs: Value = serde_json::from_str(
        &rome
            .liqoctl(&["cost", "-n", namespace, "-o", "json"])
            .await?,
    )?;
    let budgets = costs["budgets"].as_array().cloned().unwrap_or_default();
    let of = format!("namespace {namespace}");
    budgets
        .into_iter()
        .find(|budget| budget["of"] == *of)
        .with_context(|| format!("no budget of {namespace}: {costs:#}"))
}

pub async fn a_spent_budget_stops_new_pods_or_brings_running_ones_home(
    world: Arc<World>,
) -> Result<()> {
    sold_under_a_contract(&world).await?;
    tokio::try_join!(
        new_pods_wait_and_say_why(&world.rome),
        running_pods_move_home(&world.rome)
    )?;
    without_contract(&world).await
}

async fn new_pods_wait_and_say_why(rome: &Cluster) -> Result<()> {
    rome.offloaded_namespace(KEPT, "Remote").await?;
    set_budget(rome, KEPT, "1000000", "Keep").await?;
    budget_is(rome, KEPT, "WithinBudget").await?;
    rome.apply(&deployment(KEPT, "web", 1)).await?;
    let first = rome
        .ready_pods(KEPT, "app=web", 1)
        .await?
        .remove(0)
        .metadata
        .uid;
    eventually("liqoctl shows what was spent", TIMEOUT, || async {
        let budget = shown(rome, KEPT).await?;
        ensure!(
            budget["open"] == true && budget["spent"] != "0",
            "{budget:#}"
        );
        Ok(Some(()))
    })
    .await?;

    set_budget(rome, KEPT, NOTHING, "Keep").await?;
    budget_is(rome, KEPT, "BudgetSpent").await?;
    rome.kubectl(&["-n", KEPT, "scale", "deployment/web", "--replicas=2"])
        .await?;
    eventually("the second pod says why it waits", TIMEOUT, || async {
        let pods = rome.pods(KEPT, "app=web").await?;
        let Some(second) = pods.iter().find(|pod| pod.metadata.uid != first) else {
            return Ok(None);
        };
        ensure!(
            node_of(second).is_empty(),
            "it is on node {}",
            node_of(second)
        );
        let name = second.metadata.name.as_deref().unwrap_or_default();
        let events = rome
            .items(&[
                "-n",
                KEPT,
                "events",
                "--field-selector",
                &format!("involvedObject.name={name}"),
            ])
            .await?;
        let says = |event: &Value| {
            event["reason"] == "NotPlaced"
                && event["message"]
                    .as_str()
                    .is_some_and(|it| it.contains("is spent"))
        };
        Ok(events.iter().any(says).then_some(()))
    })
    .await?;
    // The new manager judges from what is stored.
    rome.restart_manager().await?;
    still(
        "the first pod runs, and the second waits",
        Duration::from_secs(12),
        true,
        || async {
            let pods = rome.pods(KEPT, "app=web").await?;
            let mut bound = pods.iter().filter(|pod| !node_of(pod).is_empty());
            Ok(bound.all(|pod| pod.metadata.uid == first)
                && pods.iter().any(|pod| pod.metadata.uid == first))
        },
    )
    .await?;
    let budget = shown(rome, KEPT).await?;
    ensure!(
        budget["open"] == false && budget["left"] == "0",
        "{budget:#}"
    );

    set_budget(rome, KEPT, "1000000", "Keep").await?;
    rome.ready_pods(KEPT, "app=web", 2).await?;
    rome.end_namespace(KEPT).await
}

async fn running_pods_move_home(rome: &Cluster) -> Result<()> {
    rome.offloaded_namespace(MOVED, "LocalAndRemote").await?;
    set_budget(rome, MOVED, "1000000", "MoveHome").await?;
    budget_is(rome, MOVED, "WithinBudget").await?;
    rome.apply(&deployment(MOVED, "web", 1)).await?;
    // The pods prefer virtual nodes.
    let virtual_node =
        json!({ "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] });
    let preferred =
        json!([{ "weight": 100, "preference": { "matchExpressions": [virtual_node] } }]);
    let affinity =
        json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } });
    let patch = json!({ "spec": { "template": { "spec": { "affinity": affinity } } } }).to_string();
    rome.kubectl(&[
        "-n",
        MOVED,
        "patch",
        "deployment",
        "web",
        "--type",
        "merge",
        "-p",
        &patch,
    ])
    .await?;
    eventually("the pod runs at milan", TIMEOUT, || async {
        let pods = rome.ready_pods(MOVED, "app=web", 1).await?;
        Ok(pods.iter().all(|pod| node_of(pod) == "milan").then_some(()))
    })
    .await?;

    set_budget(rome, MOVED, NOTHING, "MoveHome").await?;
    budget_is(rome, MOVED, "BudgetSpent").await?;
    eventually("the pod runs at home", TIMEOUT, || async {
        let pods = rome.ready_pods(MOVED, "app=web", 1).await?;
        Ok(pods.iter().all(|pod| node_of(pod) != "milan").then_some(()))
    })
    .await?;
    let events = rome.items(&["-n", MOVED, "events"]).await?;
    ensure!(
        events.iter().any(|event| event["reason"] == "MovedHome"),
        "no event MovedHome"
    );
    rome.end_namespace(MOVED).await
}

/// Everything as before.
async fn without_contract(world: &World) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    milan.kubectl(&["delete", "peeringpolicy", POLICY]).await?;
    pay_at_most(rome, Value::Null).await?;
    let tenant = format!("liqo-tenant-{}", rome.cluster_id().await?);
    eventually("rome's offer needs no contract", TIMEOUT, || async {
        let offer = milan
            .object(&["-n", &tenant, "resourceoffers", "default"])
            .await?;
        Ok(offer
            .is_some_and(|offer| offer["spec"]["contract"].is_null())
            .then_some(()))
    })
    .await?;
    rome.wait_for(&["node", "milan"], "condition=Ready", 60)
        .await
}
