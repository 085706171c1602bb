//! Credentials of consumers are replaced while they are in use.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use liqo_api::{ClusterConfig, ClusterId, provider_namespace};
use liqo_peering::decide::credential::{CREDENTIAL_SECRET, Credential};
use liqo_tests::{Cluster, Measurement, PATIENCE, World, eventually};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{peering, pods::pod};

const NAMESPACE: &str = "rotations";
const OTHER_CA: &str = "other-ca";
/// How many credentials there are.
const ROTATIONS: u64 = 20;
/// The same in a run that measures them.
const MEASURED_ROTATIONS: u64 = 60;
/// A lifetime that is not the default.
const LIFETIME: i64 = 1200;
/// The shortest lifetime.
const SHORTEST: i64 = 600;
/// How many requests in a row the auth endpoint answers.
const BURST: u64 = 8;

/// Rome's credential for milan.
struct RomesCredential {
    secrets: Api<Secret>,
}

impl RomesCredential {
    async fn of(world: &World) -> Result<Self> {
        let milan: ClusterId = world.milan.cluster_id().await?.parse()?;
        Ok(Self {
            secrets: world.rome.api(&provider_namespace(&milan)),
        })
    }

    async fn read(&self) -> Result<Credential> {
        let secret = self.secrets.get(CREDENTIAL_SECRET).await?;
        Credential::of_secret(&secret).context("the credential is incomplete")
    }

    /// Deletes the Secret, and returns the credential that replaces it.
    async fn renew(&self) -> Result<Credential> {
        let before = self.secrets.get(CREDENTIAL_SECRET).await?.metadata.uid;
        self.secrets
            .delete(CREDENTIAL_SECRET, &DeleteParams::default())
            .await?;
        eventually(
            "there is a new credential",
            Duration::from_secs(30),
            || async {
                let secret = self.secrets.get_opt(CREDENTIAL_SECRET).await?;
                Ok(secret
                    .filter(|secret| secret.metadata.uid != before)
                    .as_ref()
                    .and_then(Credential::of_secret))
            },
        )
        .await
    }

    /// The same, and checks the lifetime.
    async fn renew_for(&self, seconds: i64) -> Result<()> {
        let life = life(&self.renew().await?);
        ensure!(
            life == seconds,
            "the credential lives for {life} s, not {seconds}"
        );
        Ok(())
    }
}

fn life(credential: &Credential) -> i64 {
    credential.expires_at.as_second() - credential.issued_at.as_second()
}

async fn set_lifetime(provider: &Cluster, seconds: Option<i64>) -> Result<()> {
    let configs: Api<ClusterConfig> = Api::all(provider.client.clone());
    let patch = json!({ "spec": { "peering": { "credentialLifetimeSeconds": seconds } } });
    configs
        .patch("liqo", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(drop)
        .map_err(Into::into)
}

/// Takes the auth endpoint away, or brings it back: its Service selects no pod. Waits until nobody,
/// or somebody, answers.
async fn serve_auth(world: &World, is_there: bool) -> Result<()> {
    let milan = &world.milan;
    let leader = if is_there { "true" } else { "nobody" };
    let patch = json!({ "spec": { "selector": { liqo_api::labels::LEADER: leader } } }).to_string();
    milan
        .kubectl(&[
            "-n",
            "liqo",
            "patch",
            "service",
            "liqo-auth",
            "--type=merge",
            "-p",
            &patch,
        ])
        .await?;
    let client = peering::milan(world).await?;
    eventually(
        &format!("the auth endpoint answers: {is_there}"),
        Duration::from_secs(30),
        || async { Ok((client.request_identification().await.is_ok() == is_there).then_some(())) },
    )
    .await
}

/// How many requests failed because of their credentials: every answer 401 of the API server,
/// whoever asked.
async fn failed_authentications(cluster: &Cluster) -> Result<f64> {
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]).await?;
    let attempts: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("authentication_attempts{"))
        .collect();
    ensure!(
        attempts
            .iter()
            .any(|line| line.contains(r#"result="success""#)),
        "no metric counts authentications: {attempts:?}"
    );
    let mut failed = 0.0;
    for line in attempts
        .iter()
        .filter(|line| !line.contains(r#"result="success""#))
    {
        failed += line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?;
    }
    Ok(failed)
}

/// When each condition of the peering, and of the virtual node, changed last.
async fn last_changes(rome: &Cluster) -> Result<Vec<String>> {
    let mut changes = Vec::new();
    for (object, kinds) in [
        (
            ["foreigncluster", "milan"],
            ["Authenticated", "PeerReachable"],
        ),
        (["node", "milan"], ["Ready", "NetworkUnavailable"]),
    ] {
        let found = rome
            .object(&object)
            .await?
            .with_context(|| format!("there is no {object:?}"))?;
        let conditions = found["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let shown = conditions
            .iter()
            .filter(|one| kinds.iter().any(|kind| one["type"] == *kind));
        changes.extend(shown.map(|one| {
            format!(
                "{object:?}: {} {} {}",
                one["type"], one["status"], one["lastTransitionTime"]
            )
        }));
    }
    Ok(changes)
}

/// A command in a pod that answers each line with `got` and the line.
struct Echo {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Echo {
    fn start(rome: &Cluster) -> Result<Self> {
        let line = rome.kubectl_line(&format!(
            "-n {NAMESPACE} exec -i echo -- sh -c 'while read -r line; do echo got $line; done'"
        ));
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec {line}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn()?;
        let input = process.stdin.take().context("no standard input")?;
        let output = BufReader::new(process.stdout.take().context("no standard output")?).lines();
        Ok(Self {
            _process: process,
            input,
            output,
        })
    }

    async fn answers(&mut self, line: &str) -> Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        let answer =
            tokio::time::timeout(Duration::from_secs(10) * PATIENCE, self.output.next_line()).await;
        let answer = answer.with_context(|| format!("the command does not answer {line}"))??;
        ensure!(
            answer.as_deref() == Some(format!("got {line}").as_str()),
            "the command answered {answer:?} to {line}"
        );
        Ok(())
    }
}

/// Creates pods and deletes them, one after another, until `done`. Returns how many.
async fn come_and_go(rome: &Cluster, done: &AtomicBool) -> Result<u32> {
    let mut count = 0;
    while !done.load(Ordering::Relaxed) {
        count += 1;
        let name = format!("guest-{count}");
        rome.apply(&pod(
            NAMESPACE,
            &name,
            "Always",
            "trap exit TERM; sleep 3600 & wait",
        ))
        .await?;
        rome.ready_pods(NAMESPACE, &format!("app={name}"), 1)
            .await?;
        rome.kubectl(&[
            "-n",
            NAMESPACE,
            "delete",
            "pod",
            &name,
            "--wait",
            "--timeout=60s",
        ])
        .await?;
    }
    Ok(count)
}

/// Renews the credential again and again, in the second half without the auth endpoint.
async fn rotate(
    world: &World,
    credential: &RomesCredential,
    echo: &mut Echo,
    rotations: u64,
    done: &AtomicBool,
) -> Result<()> {
    let begun = Instant::now();
    let outcome = async {
        for number in 1..=rotations {
            if number == rotations / 2 + 1 {
                println!(
                    "{} renewals at the auth endpoint took {:.1} s",
                    number - 1,
                    begun.elapsed().as_secs_f64()
                );
                serve_auth(world, false).await?;
            }
            credential
                .renew_for(LIFETIME)
                .await
                .with_context(|| format!("renewal {number}"))?;
            echo.answers(&format!("renewal {number}")).await?;
        }
        println!(
            "{rotations} renewals took {:.1} s",
            begun.elapsed().as_secs_f64()
        );
        Ok::<(), anyhow::Error>(())
    };
    let outcome = outcome.await;
    done.store(true, Ordering::Relaxed);
    outcome
}

/// Checks the numbers that a followed log must contain, from the first to the last.
fn is_complete(log: &str) -> Result<()> {
    let lines: Vec<&str> = log.lines().collect();
    ensure!(
        lines.last() == Some(&"end"),
        "the log was cut: it ends with {:?}",
        lines.last()
    );
    let wrong = lines[..lines.len() - 1]
        .iter()
        .zip(1_u64..)
        .find(|(line, number)| **line != number.to_string());
    ensure!(
        wrong.is_none() && lines.len() > 10,
        "{} lines, and a line is missing: {wrong:?}",
        lines.len()
    );
    Ok(())
}

/// Who issued tokens for rome after this line of milan's audit log: the manager, and rome itself.
fn issued_tokens(milan: &Cluster, account: &str, from: u64) -> Result<(usize, usize)> {
    let writes = milan.liqo_writes(from)?;
    let issued: Vec<&String> = writes
        .iter()
        .filter(|write| {
            write.starts_with(&format!("create serviceaccounts liqo/{account}/token by "))
        })
        .collect();
    let itself = issued
        .iter()
        .filter(|write| write.contains(&format!("by system:serviceaccount:liqo:{account}")))
        .count();
    Ok((issued.len() - itself, itself))
}

pub async fn nothing_fails_while_credentials_are_renewed(world: Arc<World>) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let rotations = Measurement::Renewals.choose(ROTATIONS, MEASURED_ROTATIONS)?;
    let account = liqo_api::consumer_service_account(&rome.cluster_id().await?.parse()?);
    let credential = RomesCredential::of(&world).await?;
    set_lifetime(milan, Some(LIFETIME)).await?;
    rome.offloaded_namespace(NAMESPACE, "Remote").await?;
    rome.apply(&pod(
        NAMESPACE,
        "echo",
        "Always",
        "trap exit TERM; sleep 3600 & wait",
    ))
    .await?;
    let count =
        "i=0; while [ ! -e /tmp/enough ]; do i=$((i+1)); echo $i; usleep 100000; done; echo end";
    rome.apply(&pod(NAMESPACE, "counter", "Never", count))
        .await?;
    rome.ready_pods(NAMESPACE, "app=echo", 1).await?;
    rome.ready_pods(NAMESPACE, "app=counter", 1).await?;
    let log = format!(
        "timeout 3600 {}",
        rome.kubectl_line(&format!("-n {NAMESPACE} logs -f counter"))
    );
    let following = tokio::spawn({
        let world = world.clone();
        async move { world.shell(&log, 3600).await }
    });
    let mut echo = Echo::start(rome)?;
    echo.answers("before").await?;

    let (from, failed, before) = (
        milan.audit_length()?,
        failed_authentications(milan).await?,
        last_changes(rome).await?,
    );
    let done = AtomicBool::new(false);
    let (guests, ()) = tokio::try_join!(
        come_and_go(rome, &done),
        rotate(&world, &credential, &mut echo, rotations, &done)
    )?;
    println!("{guests} pods came and went meanwhile");
    ensure!(
        failed_authentications(milan).await? <= failed,
        "requests were refused with 401"
    );
    let denied = milan.denied_consumers(from)?;
    ensure!(
        denied.is_empty(),
        "requests of consumers were denied: {denied:#?}"
    );
    let after = last_changes(rome).await?;
    ensure!(
        before == after,
        "the peering was disturbed: before {before:#?}, after {after:#?}"
    );
    let (by_manager, by_rome) = issued_tokens(milan, &account, from)?;
    let half = rotations / 2;
    let wanted = (
        usize::try_from(half.min(BURST))?,
        usize::try_from(rotations - half)?,
    );
    ensure!(
        by_manager >= wanted.0 && by_rome >= wanted.1,
        "{by_manager} at the auth endpoint, {by_rome} without it"
    );

    a_shorter_lifetime_is_accepted(milan, &credential).await?;
    serve_auth(&world, true).await?;
    set_lifetime(milan, None).await?;
    drop(echo);
    rome.kubectl(&[
        "-n",
        NAMESPACE,
        "exec",
        "counter",
        "--",
        "touch",
        "/tmp/enough",
    ])
    .await?;
    is_complete(&following.await??)?;
    rome.end_namespace(NAMESPACE).await
}

/// The number of certificates in a PEM text.
fn certificates(pem: &str) -> usize {
    pem.matches("BEGIN CERTIFICATE").count()
}

/// With how many CA certificates Liqo's manager and resolver in milan verify their API server, for
/// each process.
fn cas_of_the_managers(world: &World) -> Result<Vec<usize>> {
    let processes = world.machinery(&world.milan)?.processes();
    let file =
        |pid: i32| format!("/proc/{pid}/root/var/run/secrets/kubernetes.io/serviceaccount/ca.crt");
    let managers = processes
        .iter()
        .filter(|process| process.program == "liqo-controller-manager");
    Ok(managers
        .map(|process| {
            certificates(&std::fs::read_to_string(file(process.pid)).unwrap_or_default())
        })
        .collect())
}

/// Waits until rome reaches milan and a pod there.
async fn the_peering_works(world: &World, what: &str) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let begun = Instant::now();
    eventually(what, Duration::from_mins(1), || async {
        ensure!(
            milan
                .try_kubectl(&["get", "--raw", "/readyz"])
                .await?
                .success,
            "milan's API server does not answer"
        );
        let peer = rome
            .object(&["foreigncluster", "milan"])
            .await?
            .unwrap_or_default();
        let conditions = peer["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let reachable = conditions
            .into_iter()
            .find(|one| one["type"] == "PeerReachable")
            .unwrap_or_default();
        ensure!(reachable["status"] == "True", "{reachable}");
        let called = rome
            .try_kubectl(&["-n", OTHER_CA, "exec", "echo", "--", "echo", "here"])
            .await?;
        ensure!(called.stdout == "here\n", "{called:?}");
        Ok(Some(()))
    })
    .await?;
    println!("{what}: after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

pub async fn a_peering_heals_when_the_providers_api_server_gets_another_ca(
    world: Arc<World>,
) -> Result<()> {
    let (rome, milan) = (&world.rome, &world.milan);
    let (machinery, credential) = (world.machinery(milan)?, RomesCredential::of(&world).await?);
    rome.offloaded_namespace(OTHER_CA, "Remote").await?;
    rome.apply(&pod(
        OTHER_CA,
        "echo",
        "Always",
        "trap exit TERM; sleep 3600 & wait",
    ))
    .await?;
    let before = rome
        .ready_pods(OTHER_CA, "app=echo", 1)
        .await?
        .remove(0)
        .metadata
        .uid;
    ensure!(
        certificates(&credential.read().await?.api_server.ca) == 1,
        "rome knows the second CA already"
    );
    // As an administrator would do it: pods trust both CAs before the API server uses the second
    // one.
    machinery.publish_cas(true).await?;
    eventually(
        "milan's managers trust both CAs",
        Duration::from_mins(1),
        || async {
            let counts = cas_of_the_managers(&world)?;
            ensure!(
                !counts.is_empty() && counts.iter().all(|count| *count == 2),
                "they trust {counts:?}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    machinery.use_next_ca(true).await?;
    eventually("rome has the second CA", Duration::from_mins(1), || async {
        let count = certificates(&credential.read().await?.api_server.ca);
        ensure!(count == 2, "rome has {count} CA certificates");
        Ok(Some(()))
    })
    .await?;
    the_peering_works(&world, "the peering works with the second CA").await?;
    let after = rome
        .ready_pods(OTHER_CA, "app=echo", 1)
        .await?
        .remove(0)
        .metadata
        .uid;
    ensure!(before == after, "the pod was replaced");
    machinery.use_next_ca(false).await?;
    the_peering_works(&world, "the peering works with the first CA again").await?;
    machinery.publish_cas(false).await?;
    milan
        .kubectl(&[
            "-n",
            "liqo",
            "rollout",
            "status",
            "deployment/liqo-controller-manager",
            "--timeout=90s",
        ])
        .await?;
    rome.wait_for(&["node/milan"], "condition=Ready", 60)
        .await?;
    rome.end_namespace(OTHER_CA).await
}

/// Without the auth endpoint the credential asks for another one like itself, which the provider
/// does not issue any more.
async fn a_shorter_lifetime_is_accepted(
    milan: &Cluster,
    credential: &RomesCredential,
) -> Result<()> {
    set_lifetime(milan, Some(SHORTEST)).await?;
    eventually(
        "the credential lives as long as the provider allows now",
        Duration::from_secs(30),
        || async { Ok((life(&credential.renew().await?) == SHORTEST).then_some(())) },
    )
    .await
}
