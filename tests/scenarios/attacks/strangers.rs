//! The auth endpoint of a real cluster while strangers and other consumers attack it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::future::{join_all, try_join_all};
use liqo_api::tenant_namespace;
use liqo_peering::{
    auth::client::{Applicant, AuthClient},
    protocol::{AccessGrant, PeeringAnswer, SecretText},
};
use liqo_signing::ClusterIdentity;
use liqo_tests::{World, eventually};
use serde_json::Value;
use tokio::{net::TcpStream, task::JoinSet};

use super::{
    RECORDS,
    flood::{client, request, send},
    honest::{Paces, is_renewed, renewals, show},
    nothing_is_left,
};
use crate::peering::milan;

/// Connections that never send anything.
const SILENT: usize = 500;
/// Strangers that send signed requests under new keys, one after another.
const STRANGERS: usize = 8;
/// Renewals of one consumer at the same time.
const PARALLEL: usize = 128;
const TOKEN: &str = "crowd";
/// Clusters that the token is for, and clusters that use it.
const USES: usize = 2;
const USERS: usize = 5;
const LENGTH: Duration = Duration::from_secs(8);

async fn ask(
    endpoint: &AuthClient,
    key: &ClusterIdentity,
    token: Option<&SecretText>,
) -> Result<PeeringAnswer> {
    // Two clusters cannot have the same name.
    let name = format!("crowd-{}", &key.id().as_str()[..8]);
    Ok(endpoint
        .request_peering(&Applicant {
            identity: key,
            cluster_name: &name,
            token,
        })
        .await?)
}

/// More clusters than a reusable token is for use it. Returns those that get in, with their grants.
async fn a_reusable_token_is_used_up(
    world: &World,
    endpoint: &AuthClient,
) -> Result<Vec<(ClusterIdentity, AccessGrant)>> {
    let uses = USES.to_string();
    let create = [
        "token",
        "create",
        "--name",
        TOKEN,
        "--replace",
        "--reusable",
        "--max-uses",
        &uses,
        "-o",
        "json",
    ];
    let created = world.milan.liqoctl(&create).await?;
    let created: Value = serde_json::from_str(&created)?;
    let token = SecretText(
        created["token"]
            .as_str()
            .context("no token printed")?
            .to_owned(),
    );
    let mut granted = Vec::new();
    for _ in 0..USERS {
        let key = ClusterIdentity::generate()?;
        match ask(endpoint, &key, Some(&token)).await? {
            PeeringAnswer::Granted(grant) => granted.push((key, *grant)),
            other => println!("a cluster beyond the uses of the token: {other:?}"),
        }
    }
    ensure!(
        granted.len() == USES,
        "{} of {USERS} clusters got in with a token for {USES}",
        granted.len()
    );
    Ok(granted)
}

/// Opens connections and sends nothing. They are open until they are dropped.
async fn silent_connections(world: &World) -> Result<Vec<TcpStream>> {
    let config = world
        .milan
        .object(&["clusterconfig", "liqo"])
        .await?
        .context("no ClusterConfig")?;
    let url: http::Uri = config["status"]["authURL"]
        .as_str()
        .context("milan does not know its address")?
        .parse()?;
    let address = (
        url.host().context("no host")?.to_owned(),
        url.port_u16().unwrap_or(443),
    );
    try_join_all(
        (0..SILENT)
            .map(|_| async { Ok(TcpStream::connect((address.0.as_str(), address.1)).await?) }),
    )
    .await
}

/// How the endpoint answered, by reason.
type Reasons = BTreeMap<String, usize>;

fn reason(answer: Result<PeeringAnswer>) -> String {
    match answer {
        Ok(PeeringAnswer::Granted(_)) => "Granted".to_owned(),
        Ok(PeeringAnswer::Denied(refusal) | PeeringAnswer::Pending(refusal)) => refusal.reason,
        Ok(PeeringAnswer::Ended {}) => "Ended".to_owned(),
        Err(_) => "no answer".to_owned(),
    }
}

/// Strangers send signed requests with wrong tokens, each under a new key.
async fn signed_junk(endpoint: AuthClient, until: Instant) -> Result<Reasons> {
    let (mut reasons, wrong) = (
        Reasons::new(),
        SecretText("aaaabbbbccccddddeeeeffffgggghhhh".to_owned()),
    );
    while Instant::now() < until {
        let key = ClusterIdentity::generate()?;
        *reasons
            .entry(reason(ask(&endpoint, &key, Some(&wrong)).await))
            .or_default() += 1;
    }
    Ok(reasons)
}

/// One consumer renews its credential many times at once.
async fn parallel_renewals(
    endpoint: AuthClient,
    key: Arc<ClusterIdentity>,
    until: Instant,
) -> Result<Reasons> {
    let mut reasons = Reasons::new();
    while Instant::now() < until {
        for answer in join_all((0..PARALLEL).map(|_| ask(&endpoint, &key, None))).await {
            *reasons.entry(reason(answer)).or_default() += 1;
        }
    }
    Ok(reasons)
}

/// Checks that the credential of a consumer that ended its peering is worth nothing any more.
async fn the_old_credential_is_refused(
    world: &World,
    key: &ClusterIdentity,
    grant: &AccessGrant,
) -> Result<()> {
    let kubeconfig = world.scratch("ended.kubeconfig");
    let old = client(
        &world
            .milan
            .with_token(&grant.token.0, &kubeconfig)
            .await?
            .kubeconfig,
    )
    .await?;
    let path = format!(
        "{RECORDS}/namespaces/{}/shadowpods",
        tenant_namespace(key.id())
    );
    eventually(
        "the old credential is refused",
        Duration::from_secs(30),
        || async {
            let code = send(&old, request("GET", &path, None)?).await;
            ensure!([401, 403].contains(&code), "it is answered with {code}");
            Ok(Some(()))
        },
    )
    .await
}

pub async fn nobody_keeps_an_honest_consumer_from_renewing(world: Arc<World>) -> Result<()> {
    let endpoint = milan(&world).await?;
    let mut granted = a_reusable_token_is_used_up(&world, &endpoint).await?;
    let without = renewals(&world, Instant::now() + LENGTH).await?;

    let silent = silent_connections(&world).await?;
    let until = Instant::now() + LENGTH;
    let mut attackers = JoinSet::new();
    for _ in 0..STRANGERS {
        attackers.spawn(signed_junk(endpoint.clone(), until));
    }
    let (busy, grant) = granted.pop().context("no grant")?;
    let busy = Arc::new(busy);
    attackers.spawn(parallel_renewals(endpoint.clone(), busy.clone(), until));
    let under: Paces = renewals(&world, until).await?;
    let mut reasons = Reasons::new();
    while let Some(attacker) = attackers.join_next().await {
        for (reason, count) in attacker?? {
            *reasons.entry(reason).or_default() += count;
        }
    }
    drop(silent);
    show(&without, &under);
    println!("answers to the attackers: {reasons:?}");
    let (renewed, failed) = (under.renewal.count(), under.failed_renewals.len());
    ensure!(
        renewed > 0,
        "rome's credential was renewed {renewed} times, and {failed} times it was not"
    );
    is_renewed(&world).await?;

    let busy = (
        Arc::into_inner(busy).context("the consumer is still busy")?,
        grant,
    );
    for (key, grant) in granted.iter().chain([&busy]) {
        eventually("the peering is ended", Duration::from_mins(1), || async {
            let answer = endpoint.end_peering(key).await?;
            ensure!(matches!(answer, PeeringAnswer::Ended {}), "{answer:?}");
            Ok(Some(()))
        })
        .await?;
        the_old_credential_is_refused(&world, key, grant).await?;
        nothing_is_left(&world.milan, key.id().as_str(), Duration::from_mins(1)).await?;
    }
    world
        .milan
        .liqoctl(&["token", "delete", TOKEN])
        .await
        .map(drop)
}
