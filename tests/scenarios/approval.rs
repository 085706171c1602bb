//! If the policy requires approval by a person, a consumer gets nothing before.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use liqo_api::tenant_namespace;
use liqo_controller_runtime::Tcp;
use liqo_peering::{
    auth::client::{Applicant, AuthClient},
    protocol::{PeeringAnswer, SecretText},
};
use liqo_signing::ClusterIdentity;
use liqo_tests::{Cluster, World, eventually, still};
use serde_json::{Value, json};

use crate::policies::apply_policy;

/// Timeout for news to get from one cluster to the other: a consumer asks every five seconds if it
/// was refused, and every fifteen if nobody answered, for example because the manager was just
/// replaced.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Creates a one-time token of milan.
pub async fn token(milan: &Cluster) -> Result<String> {
    let created: Value =
        serde_json::from_str(&milan.liqoctl(&["token", "create", "-o", "json"]).await?)?;
    Ok(created["token"]
        .as_str()
        .context("no token printed")?
        .to_owned())
}

async fn auth_url(milan: &Cluster) -> Result<String> {
    let config = milan
        .object(&["clusterconfig", "liqo"])
        .await?
        .context("no ClusterConfig")?;
    Ok(config["status"]["authURL"]
        .as_str()
        .context("milan does not know its address")?
        .to_owned())
}

/// Makes turin request a peering with milan, with this token.
async fn ask(world: &World, token: &str) -> Result<()> {
    let (id, url) = (
        world.milan.cluster_id().await?,
        auth_url(&world.milan).await?,
    );
    let arguments = [
        "peer",
        "--id",
        &id,
        "--auth-url",
        &url,
        "--cluster-name",
        "milan",
        "--token",
        token,
        "--no-wait",
    ];
    world.turin.liqoctl(&arguments).await.map(drop)
}

/// Waits until `liqoctl status` prints a line with all of these words.
pub async fn shows(cluster: &Cluster, words: &[&str]) -> Result<()> {
    eventually(
        &format!("the status of {} shows {words:?}", cluster.name),
        TIMEOUT,
        || async {
            let status = cluster.liqoctl(&["status"]).await?;
            let is_shown = status
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)));
            ensure!(is_shown, "it shows:\n{status}");
            Ok(Some(()))
        },
    )
    .await
}

/// The `ForeignCluster` of a peer.
pub async fn record(cluster: &Cluster, id: &str) -> Result<Option<Value>> {
    Ok(cluster
        .items(&["foreignclusters"])
        .await?
        .into_iter()
        .find(|peer| peer["spec"]["clusterID"] == id))
}

pub async fn a_consumer_waits_until_a_person_approves_it(world: Arc<World>) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    apply_policy(
        milan,
        "careful",
        json!({ "priority": 10, "provide": { "approval": "Manual" } }),
    )
    .await?;
    let (id, token) = (turin.cluster_id().await?, token(milan).await?);
    ask(&world, &token).await?;

    let approve = format!("liqoctl approve {id}");
    shows(turin, &["Authenticated", "PendingApproval", &approve]).await?;
    shows(milan, &["ConsumerAuthorized", "PendingApproval", &approve]).await?;
    let namespace = tenant_namespace(&id.parse()?);
    let given = || async {
        Ok((
            milan.object(&["namespace", &namespace]).await?.is_some(),
            turin.object(&["node", "milan"]).await?.is_some(),
        ))
    };
    // During this time it asks again, with the used token.
    still(
        "nothing is given meanwhile",
        Duration::from_secs(7),
        (false, false),
        given,
    )
    .await?;
    shows(turin, &["Authenticated", "PendingApproval"]).await?;

    let (client, second) = (
        AuthClient::new(
            &Tcp::network(),
            &milan.cluster_id().await?.parse()?,
            &auth_url(milan).await?,
        )?,
        ClusterIdentity::generate()?,
    );
    let used = SecretText(token);
    let answer = client
        .request_peering(&Applicant {
            identity: &second,
            cluster_name: "second",
            token: Some(&used),
        })
        .await?;
    let PeeringAnswer::Denied(refusal) = answer else {
        anyhow::bail!("a second cluster was accepted with the used token: {answer:?}")
    };
    ensure!(
        refusal.reason == "TokenInvalid" && refusal.message.contains("was used before"),
        "{refusal:?}"
    );
    ensure!(
        record(milan, second.id().as_str()).await?.is_none(),
        "a refused cluster has a ForeignCluster"
    );

    milan.liqoctl(&["approve", &id]).await?;
    turin
        .wait_for(&["foreignclusters", "milan"], "condition=OfferAccepted", 60)
        .await?;
    turin
        .wait_for(&["node/milan"], "condition=Ready", 60)
        .await?;
    let known = record(milan, &id).await?.context("milan forgot turin")?;
    ensure!(
        known["metadata"]["annotations"]["liqo.io/pending-approval"].is_null(),
        "it still counts as waiting: {known}"
    );

    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    eventually(
        "milan forgets turin, and the approval with it",
        TIMEOUT,
        || async { Ok(record(milan, &id).await?.is_none().then_some(())) },
    )
    .await?;
    milan
        .kubectl(&["delete", "peeringpolicy", "careful"])
        .await
        .map(drop)
}

pub async fn a_refused_consumer_sees_that_in_its_status(world: Arc<World>) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    apply_policy(
        milan,
        "careful",
        json!({ "priority": 10, "provide": { "approval": "Manual" } }),
    )
    .await?;
    let id = turin.cluster_id().await?;
    ask(&world, &token(milan).await?).await?;
    shows(milan, &["ConsumerAuthorized", "PendingApproval"]).await?;

    milan.liqoctl(&["refuse", &id]).await?;
    shows(
        turin,
        &["Authenticated", "Blocked", "does not lend to this cluster"],
    )
    .await?;
    shows(milan, &["ConsumerAuthorized", "Blocked"]).await?;
    ensure!(
        turin.object(&["node", "milan"]).await?.is_none(),
        "a refused consumer has a node"
    );

    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    let known = record(milan, &id)
        .await?
        .and_then(|known| Some(known["metadata"]["name"].as_str()?.to_owned()));
    milan
        .kubectl(&[
            "delete",
            "foreigncluster",
            &known.context("milan forgot that it refused turin")?,
        ])
        .await?;
    milan
        .kubectl(&["delete", "peeringpolicy", "careful"])
        .await
        .map(drop)
}

pub async fn a_consumer_that_nobody_approves_expires(world: Arc<World>) -> Result<()> {
    let (turin, milan) = (&world.turin, &world.milan);
    apply_policy(
        milan,
        "careful",
        json!({ "priority": 10, "provide": { "approval": "Manual" } }),
    )
    .await?;
    let id = turin.cluster_id().await?;
    ask(&world, &token(milan).await?).await?;
    shows(milan, &["ConsumerAuthorized", "PendingApproval"]).await?;

    let known = record(milan, &id)
        .await?
        .and_then(|known| Some(known["metadata"]["name"].as_str()?.to_owned()));
    let long_ago = "liqo.io/pending-approval=2026-01-01T00:00:00Z";
    milan
        .kubectl(&[
            "annotate",
            "foreigncluster",
            &known.context("turin does not wait")?,
            long_ago,
            "--overwrite",
        ])
        .await?;
    eventually("milan forgets turin", TIMEOUT, || async {
        Ok(record(milan, &id).await?.is_none().then_some(()))
    })
    .await?;
    shows(turin, &["Authenticated", "TokenInvalid"]).await?;

    turin.liqoctl(&["unpeer", "milan", "--yes"]).await?;
    milan
        .kubectl(&["delete", "peeringpolicy", "careful"])
        .await
        .map(drop)
}
