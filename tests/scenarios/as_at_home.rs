//! Whoever knows kubectl knows Liqo: about 200 commands are run on pods at home and on the same
//! pods at the peer, and their outputs compared.

use std::{
    collections::BTreeSet,
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, future::try_join, stream, try_join};
use liqo_tests::{
    Cluster, SHORT_LIVED, World,
    compare::{Normalizer, Row, Section, grouped, joined, listed, sections, split},
    eventually,
};
use tokio::{process::Command, sync::OnceCell};

/// Where pods run at home, and where at the peer.
const NAMESPACES: [&str; 2] = ["as-here", "as-there"];

/// How many pods in endings.yaml have the label `app=once`: they end, and stay as they are then.
const ENDINGS: usize = 4;

/// How many sections run at a time.
const CONCURRENCY: usize = 2;

/// How often a row is compared before it counts as different, since what a command prints may
/// differ from run to run at home, too. Sections that run alone change what they print about, so
/// their rows have one try.
const TRIES: usize = 3;

/// How long a command may take. Those of kubectl that wait end before.
const TIMEOUT: Duration = Duration::from_secs(150);

/// What the lines use: kubectl in the namespace, a request through `kubectl port-forward`, another
/// size for a pod's container, and waiting for a number of restarts, of pods behind the Service,
/// and for an event about a pod.
const FUNCTIONS: &str = r#"
k() { $KUBECTL -n "$NS" "$@"; }
forward() {
    timeout 60 $KUBECTL -n "$NS" port-forward "$1" ":$2" >"$TMP/forward" 2>&1 &
    forwarder=$!
    until grep -q Forwarding "$TMP/forward" || ! kill -0 $forwarder 2>/dev/null; do sleep 0.1; done
    port=$(sed -n 's/.*127.0.0.1:\([0-9]*\) .*/\1/p' "$TMP/forward" | head -1)
    timeout 10 busybox wget -qO- "http://127.0.0.1:$port"
    kill $forwarder; wait $forwarder 2>/dev/null
}
size() {
    k patch pod "$1" --subresource=resize -p '{"spec":{"containers":[{"name":"main","resources":'"$2"'}]}}'
}
restarts() {
    until [ "$(k get pod "$1" -o jsonpath='{.status.containerStatuses[0].restartCount}')" -ge "$2" ] 2>/dev/null; do sleep 1; done
}
pods() {
    until [ "$(k get pods -l app=web -o name | wc -l)" = "$1" ]; do sleep 0.5; done
}
event() {
    until k get events --field-selector "involvedObject.name=$1,reason=$2" -o name | grep -q .; do sleep 1; done
}
exec 2>&1
"#;

/// A row with both outputs.
struct Compared {
    name: String,
    outputs: [String; 2],
}

impl Compared {
    fn is_equal(&self) -> bool {
        self.outputs[0] == self.outputs[1]
    }
}

pub async fn kubectl_says_the_same_of_a_pod_at_home_and_of_one_at_the_peer(
    world: Arc<World>,
) -> Result<()> {
    let rome = &world.rome;
    let [here, there] = NAMESPACES;
    for namespace in NAMESPACES {
        rome.kubectl(&["create", "namespace", namespace]).await?;
    }
    // One of the pods uses the API server with an account of its own.
    rome.liqoctl(&[
        "offload",
        "namespace",
        there,
        "--pod-offloading-strategy",
        "Remote",
        "--api-server",
        "true",
    ])
    .await?;
    rome.wait_for(
        &["-n", there, "namespaceoffloading/offloading"],
        "condition=Ready",
        90,
    )
    .await?;
    apply(&world, "objects", include_str!("as_at_home/objects.yaml")).await?;
    try_join(ready(rome, here), ready(rome, there)).await?;

    let all = sections(include_str!("as_at_home/rows.txt"))?;
    let (last, mut first): (Vec<_>, Vec<_>) = all.into_iter().partition(|section| section.is_alone);
    // The endings take a while, during which the other sections run.
    first.sort_by_key(|section| section.is_late);
    let listed = listed(include_str!("../../docs/reference/kubectl.md"));
    let endings = OnceCell::new();
    let ((), mut compared) = try_join!(
        endings.get_or_try_init(|| end(&world)),
        run_side_by_side(&world, first, &listed, &endings)
    )?;
    compared.extend(run_side_by_side(&world, last, &listed, &endings).await?);
    judge(&compared, &listed)?;
    try_join(rome.end_namespace(here), rome.end_namespace(there))
        .await
        .map(drop)
}

/// Applies manifests in both namespaces at the same time.
async fn apply(world: &World, name: &str, manifests: &str) -> Result<()> {
    let file = world.scratch(name);
    std::fs::write(&file, manifests)?;
    let file = file.display().to_string();
    let [at_home, at_peer] =
        NAMESPACES.map(|namespace| ["-n", namespace, "apply", "-f", file.as_str()]);
    // On a busy machine a manager may have to start again, and its webhook is away meanwhile.
    let applied = async |arguments: [&str; 5]| {
        eventually(
            &format!("{name} are applied in {}", arguments[1]),
            Duration::from_secs(30),
            || async { world.rome.kubectl(&arguments).await.map(Some) },
        )
        .await
    };
    try_join(applied(at_home), applied(at_peer)).await.map(drop)
}

/// Creates the pods that end, fail or wait, and waits until those that end have ended.
async fn end(world: &World) -> Result<()> {
    apply(world, "endings", include_str!("as_at_home/endings.yaml")).await?;
    let [here, there] = NAMESPACES;
    try_join(ended(&world.rome, here), ended(&world.rome, there))
        .await
        .map(drop)
}

async fn ended(rome: &Cluster, namespace: &str) -> Result<()> {
    eventually(
        &format!("the pods app=once in {namespace} have ended"),
        Duration::from_secs(90),
        || async {
            let pods = rome.pods(namespace, "app=once").await?;
            let phases = pods
                .iter()
                .filter_map(|pod| pod.status.as_ref()?.phase.as_deref());
            Ok((phases
                .filter(|phase| matches!(*phase, "Succeeded" | "Failed"))
                .count()
                == ENDINGS)
                .then_some(()))
        },
    )
    .await
}

/// Waits until the pods that most rows use are ready.
async fn ready(rome: &Cluster, namespace: &str) -> Result<()> {
    for (selector, count) in [
        ("app=web", 2),
        ("app=db", 2),
        ("app=main", 1),
        ("app=sized", 1),
        ("app=account", 1),
    ] {
        rome.ready_pods(namespace, selector, count).await?;
    }
    Ok(())
}

/// Prints how many rows are equal, and fails if others differ than those that are listed.
fn judge(compared: &[Compared], listed: &BTreeSet<String>) -> Result<()> {
    let names: BTreeSet<_> = compared.iter().map(|row| row.name.clone()).collect();
    let different: Vec<_> = compared.iter().filter(|row| !row.is_equal()).collect();
    eprintln!(
        "{} rows: {} equal, {} different, {} listed",
        names.len(),
        names.len() - different.len(),
        different.len(),
        listed.len()
    );
    let unexpected: Vec<_> = different
        .iter()
        .filter(|row| !listed.contains(&row.name))
        .collect();
    let equal: Vec<_> = listed
        .iter()
        .filter(|name| !different.iter().any(|row| row.name == **name))
        .collect();
    let show = |row: &&&Compared| {
        format!(
            "--- {}\nat home:\n{}\nat the peer:\n{}\n",
            row.name, row.outputs[0], row.outputs[1]
        )
    };
    ensure!(
        unexpected.is_empty(),
        "not in docs/reference/kubectl.md:\n{}",
        unexpected.iter().map(show).collect::<String>()
    );
    ensure!(
        equal.is_empty(),
        "docs/reference/kubectl.md lists rows that are equal, or do not exist: {equal:?}"
    );
    Ok(())
}

/// Runs sections, some at a time. `endings` is what late ones wait for.
async fn run_side_by_side(
    world: &World,
    sections: Vec<Section>,
    listed: &BTreeSet<String>,
    endings: &OnceCell<()>,
) -> Result<Vec<Compared>> {
    let mut compared = Vec::new();
    let mut running = stream::iter(sections)
        .map(|section| run(world, section, listed, endings))
        .buffer_unordered(CONCURRENCY);
    while let Some(section) = running.next().await {
        compared.extend(section?);
    }
    Ok(compared)
}

async fn run(
    world: &World,
    section: Section,
    listed: &BTreeSet<String>,
    endings: &OnceCell<()>,
) -> Result<Vec<Compared>> {
    if section.is_late {
        endings.get_or_try_init(|| end(world)).await?;
    }
    let (begun, mut compared) = (Instant::now(), Vec::new());
    let groups = if section.is_joined {
        grouped(section.rows)
    } else {
        section.rows.into_iter().map(|row| vec![row]).collect()
    };
    for group in groups {
        let outputs = if group.len() > 1 {
            compare_joined(world, &group).await?
        } else {
            Vec::new()
        };
        let mut outputs = outputs.into_iter();
        for row in group {
            let is_listed = listed.contains(&row.name);
            let tries = if section.is_alone || is_listed {
                1
            } else {
                TRIES
            };
            compared.push(match outputs.next() {
                Some(outputs) if is_listed || outputs[0] == outputs[1] => Compared {
                    name: row.name,
                    outputs,
                },
                _ => compare(world, row, tries).await?,
            });
        }
    }
    eprintln!(
        "{} s: the rows of section {}",
        begun.elapsed().as_secs(),
        section.name
    );
    Ok(compared)
}

/// Both outputs of each row, from one process at each side. None of them if it could not answer all
/// rows.
async fn compare_joined(world: &World, rows: &[Row]) -> Result<Vec<[String; 2]>> {
    let [here, there] = NAMESPACES;
    let name = format!("{}-and-others", rows[0].name);
    let row = Row {
        line: joined(rows).context("these rows cannot be joined")?,
        name,
    };
    let (at_home, at_peer) = try_join!(answer(world, here, &row), answer(world, there, &row))?;
    let (Some(at_home), Some(at_peer)) = (split(&at_home, rows.len()), split(&at_peer, rows.len()))
    else {
        eprintln!(
            "rows {} are compared one by one:\nat home:\n{at_home}\nat the peer:\n{at_peer}",
            row.name
        );
        return Ok(Vec::new());
    };
    let normalize = |namespace, output: &str| anyhow::Ok(normalizer(namespace)?.normalize(output));
    at_home
        .into_iter()
        .zip(at_peer)
        .map(|(at_home, at_peer)| Ok([normalize(here, at_home)?, normalize(there, at_peer)?]))
        .collect()
}

async fn compare(world: &World, row: Row, tries: usize) -> Result<Compared> {
    let [here, there] = NAMESPACES;
    let mut attempt = 1;
    loop {
        let (at_home, at_peer) = try_join!(output(world, here, &row), output(world, there, &row))?;
        let is_equal = at_home == at_peer;
        if is_equal && attempt > 1 {
            eprintln!("row {} differed at first", row.name);
        }
        if is_equal || attempt == tries {
            return Ok(Compared {
                name: row.name,
                outputs: [at_home, at_peer],
            });
        }
        attempt += 1;
    }
}

async fn output(world: &World, namespace: &str, row: &Row) -> Result<String> {
    Ok(normalizer(namespace)?.normalize(&answer(world, namespace, row).await?))
}

fn normalizer(namespace: &str) -> Result<Normalizer> {
    Normalizer::new(namespace, &["milan", "rome-1"])
}

/// What a row prints in a namespace, standard error included, and its exit code if that is not 0.
async fn answer(world: &World, namespace: &str, row: &Row) -> Result<String> {
    let scratch = world.scratch(&format!("{namespace}-{}", row.name));
    std::fs::create_dir_all(&scratch)?;
    let kubectl = world.rome.kubectl_line("");
    let script = format!("{FUNCTIONS}{}", row.line);
    let answer =
        tokio::time::timeout(TIMEOUT, bash(&script, &scratch, namespace, kubectl.trim())).await;
    let answer = answer.unwrap_or_else(|_| Ok("it did not end".to_owned()))?;
    Ok(answer
        .replace(&scratch.display().to_string(), "TMP")
        .replace(kubectl.trim(), "kubectl"))
}

async fn bash(script: &str, scratch: &Path, namespace: &str, kubectl: &str) -> Result<String> {
    // Some lines wait in a loop, which must not outlive a test that is killed.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "bash", "-c", script])
        .env("NS", namespace)
        .env("TMP", scratch)
        .env("KUBECTL", kubectl);
    command.envs(SHORT_LIVED);
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("starting bash")?;
    let code = output.status.code().filter(|code| *code != 0);
    let code = code
        .map(|code| format!("\nexit code {code}"))
        .unwrap_or_default();
    Ok(format!("{}{code}", String::from_utf8_lossy(&output.stdout)))
}
