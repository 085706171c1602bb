//! A person decides on offers.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_api::OfferPhase;
use liqo_tests::{World, eventually};
use serde_json::{Value, json};

use crate::{
    pods::{node_of, pod},
    policies::{apply_policy, offer},
};

const TIMEOUT: Duration = Duration::from_secs(20);

pub async fn a_person_accepts_refuses_and_forgets_an_offer(world: Arc<World>) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    apply_policy(
        turin,
        "careful",
        json!({ "priority": 10, "consume": { "accept": "Manual" } }),
    )
    .await?;
    turin
        .liqoctl(&[
            "peer",
            "--no-wait",
            "--remote-kubeconfig",
            &milan.kubeconfig.display().to_string(),
        ])
        .await?;
    let provider_sees = async |phase: OfferPhase| {
        eventually(
            &format!("the provider sees that the offer is {phase:?}"),
            TIMEOUT,
            || async {
                let status = offer(milan, turin)
                    .await?
                    .and_then(|offer| offer.status)
                    .context("the offer has no status yet")?;
                Ok((status.phase == phase).then_some(()))
            },
        )
        .await
    };
    let listed = async || {
        let rows: Value = serde_json::from_str(
            &turin
                .liqoctl(&["offer", "list", "milan", "-o", "json"])
                .await?,
        )?;
        let [row] = rows.as_array().map(Vec::as_slice).unwrap_or_default() else {
            anyhow::bail!("not one offer: {rows}")
        };
        ensure!(
            (&row["peer"], &row["pool"]) == (&json!("milan"), &json!("default")),
            "{row}"
        );
        Ok((row["phase"].clone(), row["decision"].clone()))
    };

    provider_sees(OfferPhase::ManualActionRequired).await?;
    ensure!(
        turin.object(&["node", "milan"]).await?.is_none(),
        "there is a node although nobody accepted the offer"
    );
    ensure!(listed().await? == (json!("ManualActionRequired"), Value::Null));
    let table = turin.liqoctl(&["offer", "list"]).await?;
    ensure!(
        table.contains("you have to decide: `liqoctl offer accept milan default`"),
        "{table}"
    );
    let made = milan.liqoctl(&["offer", "list", "turin", "--made"]).await?;
    ensure!(
        made.contains("ManualActionRequired") && made.contains("the consumer has to decide"),
        "{made}"
    );

    let accepted = turin.liqoctl(&["offer", "accept", "milan"]).await?;
    ensure!(
        accepted.trim() == "Pool default of milan is accepted: it is Node milan here.",
        "{accepted}"
    );
    turin
        .wait_for(&["node/milan"], "condition=Ready", 60)
        .await?;
    ensure!(listed().await? == (json!("Accepted"), json!("Accept")));
    provider_sees(OfferPhase::Accepted).await?;
    let again = turin.try_liqoctl(&["offer", "accept", "milan"]).await?;
    let none_waits =
        "no offer of milan waits for a decision: name a pool; there is default (Accepted)";
    ensure!(
        !again.success && again.stderr.contains(none_waits),
        "{again:?}"
    );

    turin.offloaded_namespace("borrowed", "Remote").await?;
    turin
        .apply(&pod("borrowed", "web", "Always", "sleep 600"))
        .await?;
    ensure!(node_of(&turin.ready_pods("borrowed", "app=web", 1).await?[0]) == "milan");
    let asked = turin
        .try_liqoctl(&["offer", "refuse", "milan", "default"])
        .await?;
    let question = "This ends the pods that run on pool default of milan: borrowed/web. Continue?";
    ensure!(
        !asked.success && asked.stderr.contains(question) && asked.stderr.contains("--yes"),
        "{asked:?}"
    );
    ensure!(
        listed().await? == (json!("Accepted"), json!("Accept")),
        "a question without an answer decided something"
    );
    turin.ready_pods("borrowed", "app=web", 1).await?;

    let refused = turin
        .liqoctl(&["offer", "refuse", "milan", "default", "--yes", "-o", "json"])
        .await?;
    let refused: Value = serde_json::from_str(&refused)?;
    let expected = json!({ "peer": "milan", "pool": "default", "decision": "Refuse", "lostPods": ["borrowed/web"] });
    ensure!(refused == expected, "{refused}");
    ensure!(listed().await? == (json!("Refused"), json!("Refuse")));
    eventually("node and pod are gone", TIMEOUT, || async {
        let left = (
            turin.object(&["node", "milan"]).await?,
            turin.pods("borrowed", "app=web").await?,
        );
        Ok((left.0.is_none() && left.1.is_empty()).then_some(()))
    })
    .await?;
    provider_sees(OfferPhase::Refused).await?;

    let forgotten = turin
        .liqoctl(&["offer", "forget", "milan", "default"])
        .await?;
    ensure!(
        forgotten.contains(
            "There is no decision on pool default of milan any more: the policy decides again"
        ),
        "{forgotten}"
    );
    provider_sees(OfferPhase::ManualActionRequired).await?;
    ensure!(listed().await? == (json!("ManualActionRequired"), Value::Null));
    let twice = turin
        .try_liqoctl(&["offer", "forget", "milan", "default"])
        .await?;
    ensure!(
        !twice.success
            && twice
                .stderr
                .contains("there is no decision on pool default of milan"),
        "{twice:?}"
    );
    turin.end_namespace("borrowed").await?;
    turin
        .kubectl(&["delete", "peeringpolicy", "careful"])
        .await?;
    turin.liqoctl(&["unpeer", "milan", "--yes"]).await.map(drop)
}
