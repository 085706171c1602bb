//! A colleague of the administrator has the role `edit` in one namespace, and nothing else: she
//! offloads that namespace and understands its pods, and every other command tells her in one line
//! what she may not do. With the role `liqo-user` she also sees costs and plans.
//!
//! [`COMMANDS`] has a row for each command of liqoctl. A command without a row fails the scenario.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use liqo_tests::{Cluster, Output, World, docs::with_names, eventually};
use serde_json::Value;

use crate::pods::{deployment, name_of, node_of};

const NAMESPACE: &str = "colleague";
const ACCOUNT: &str = "ann";
/// Commands that run at the same time.
const AT_ONCE: usize = 4;
/// Time until a role that was bound counts.
const UNTIL_BOUND: Duration = Duration::from_secs(20);

/// Has a heading for each command; a test of liqoctl keeps it current.
const PAGE_OF_COMMANDS: &str = include_str!("../../docs/reference/commands.md");
/// Commands without a heading there: one that has commands below it, and that of completion. Hidden
/// commands that generate files of the repository have neither heading nor row.
const WITHOUT_HEADING: [&str; 2] = ["cost", "__complete"];
/// Commands that are not tried. `playground` only passes its arguments to another program, which
/// reads no cluster of the user's.
const NOT_TRIED: [&str; 1] = ["playground"];

/// The ID of a cluster that does not exist.
const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// What a command does for her.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// It succeeds, and its output has these words.
    Works(&'static str),
    /// Its output has these words. The state of the clusters decides whether it succeeds.
    Reports(&'static str),
    /// It fails with one line: she may not do this.
    Refused(&'static str),
    /// It fails with one line that has these words and is about something else than rights.
    Fails(&'static str),
}
use Outcome::{Fails, Refused, Reports, Works};

const NO_CONFIG: Outcome = Refused("get clusterconfigs in the whole cluster");
const NO_CONTRACTS: Outcome = Refused("list contracts in the whole cluster");
const NO_MANAGER: Outcome = Refused("get deployments in namespace liqo");
const NO_NODES: Outcome = Refused("list nodes in the whole cluster");
const NO_OFFERS: Outcome = Refused("list resourceoffers");
const NO_PEERS: Outcome = Refused("list foreignclusters in the whole cluster");
const NO_PODS: Outcome = Refused("list pods in the whole cluster");
const NO_POLICIES: Outcome = Refused("list peeringpolicies in the whole cluster");
const NO_RECEIPTS: Outcome = Refused("list receipts in the whole cluster");
const NO_TOKENS: Outcome = Refused("list secrets in namespace liqo");
const READ_ONLY_CONFIG: Outcome = Refused("patch clusterconfigs in the whole cluster");
const READ_ONLY_PEERS: Outcome = Refused("patch foreignclusters in the whole cluster");

/// A command and its arguments, what it does for her with `edit` in her namespace, and what it does
/// if she has `liqo-user`, too. `other-team` is a namespace in which she has no rights.
///
/// None of them changes anything, not even those that work.
const COMMANDS: [(&str, Outcome, Outcome); 54] = [
    // The installation.
    (
        "install --timeout 10s",
        Refused("create namespaces"),
        Refused("create namespaces"),
    ),
    (
        "install --dry-run",
        Refused("create namespaces"),
        Refused("create namespaces"),
    ),
    ("uninstall -y", NO_MANAGER, NO_MANAGER),
    ("untether --no-wait", NO_CONFIG, READ_ONLY_CONFIG),
    (
        "renew gateway-keys --no-wait",
        NO_CONFIG,
        Refused("list leases in namespace liqo"),
    ),
    // Peers.
    (
        "peer --id ID --auth-url https://203.0.113.5:1 --token none --timeout 10s -y",
        NO_CONFIG,
        Refused("patch secrets in namespace liqo"),
    ),
    ("unpeer milan -y", NO_PEERS, NO_PODS),
    ("approve milan", NO_PEERS, READ_ONLY_PEERS),
    ("refuse milan -y", NO_PEERS, READ_ONLY_PEERS),
    ("tether milan --no-wait", NO_PEERS, READ_ONLY_CONFIG),
    (
        "discover",
        NO_CONFIG,
        Refused("get configmaps in namespace liqo"),
    ),
    ("token create", NO_CONFIG, NO_TOKENS),
    ("token list", NO_CONFIG, NO_TOKENS),
    (
        "token delete none",
        NO_CONFIG,
        Refused("get secrets in namespace liqo"),
    ),
    ("generate peer-command", NO_CONFIG, NO_TOKENS),
    // Namespaces and pods.
    (
        "offload namespace colleague -o yaml",
        Works("kind: NamespaceOffloading"),
        Works("kind: NamespaceOffloading"),
    ),
    (
        "offload namespace other-team",
        Refused("get namespaces in namespace other-team"),
        Refused("get namespaces in namespace other-team"),
    ),
    (
        "offload namespace --namespace-selector team=a",
        Refused("list namespaces in the whole cluster"),
        Refused("list namespaces in the whole cluster"),
    ),
    (
        "unoffload namespace colleague -o json",
        Works("lostPods"),
        Works("lostPods"),
    ),
    (
        "unoffload namespace other-team -y",
        Refused("list pods in namespace other-team"),
        Refused("get namespaceoffloadings in namespace other-team"),
    ),
    (
        "move pods POD -n colleague --from milan --dry-run",
        NO_PEERS,
        Works("POD"),
    ),
    (
        "move pods POD -n colleague --from milan -y",
        NO_PEERS,
        Refused("patch nodes in the whole cluster"),
    ),
    (
        "move pods -n other-team --from milan -y",
        NO_PEERS,
        Refused("list pods in namespace other-team"),
    ),
    (
        "explain pod POD -n colleague",
        Works("you may not"),
        Works("local-pod"),
    ),
    (
        "explain pod other-team/web",
        Refused("get pods in namespace other-team"),
        Refused("get pods in namespace other-team"),
    ),
    // Offers, policies and contracts.
    ("offer list", NO_CONFIG, NO_OFFERS),
    ("offer accept milan -y", NO_CONFIG, NO_CONTRACTS),
    ("offer refuse milan -y", NO_CONFIG, NO_OFFERS),
    (
        "offer forget milan none",
        NO_CONFIG,
        Fails("no decision on pool none"),
    ),
    ("policy list", NO_CONFIG, NO_POLICIES),
    ("policy explain milan", NO_CONFIG, NO_POLICIES),
    ("broker status", NO_CONFIG, NO_POLICIES),
    ("broker enable -y", NO_CONFIG, NO_POLICIES),
    ("broker disable -y", NO_CONFIG, NO_POLICIES),
    (
        "catalog",
        Refused("list pods in namespace liqo"),
        Refused("list pods in namespace liqo"),
    ),
    (
        "catalog milan --url https://203.0.113.5:1 --insecure-skip-tls-verify",
        NO_CONFIG,
        Refused("get secrets in namespace liqo"),
    ),
    ("contract list", NO_CONFIG, NO_CONTRACTS),
    ("contract show milan", NO_CONFIG, NO_CONTRACTS),
    ("contract end milan -y", NO_CONFIG, NO_CONTRACTS),
    (
        "contract forget milan",
        NO_CONFIG,
        Fails("no decision on a contract"),
    ),
    // Money.
    ("usage", NO_CONFIG, NO_CONTRACTS),
    ("receipt list", NO_CONFIG, NO_RECEIPTS),
    ("receipt show none", NO_CONFIG, NO_RECEIPTS),
    ("receipt export csv", NO_CONFIG, NO_RECEIPTS),
    ("cost -n colleague", NO_NODES, Works("milan")),
    (
        "cost -n other-team",
        NO_NODES,
        Refused("list pods in namespace other-team"),
    ),
    ("cost", NO_NODES, NO_PODS),
    ("cost plan -f FILE", NO_NODES, Works("1/1")),
    // What commands show of the cluster.
    (
        "status",
        Refused("list virtualnodes in the whole cluster"),
        NO_PODS,
    ),
    (
        "status -n colleague",
        Works("colleague (LocalAndRemote)"),
        Works("colleague (LocalAndRemote)"),
    ),
    (
        "doctor",
        Reports("this user may not"),
        Reports("this user may not"),
    ),
    (
        "test network --timeout 30s",
        NO_CONFIG,
        Refused("list tunnelendpoints in namespace liqo"),
    ),
    (
        "version",
        Works("not visible to you"),
        Works("Kubernetes: "),
    ),
    (
        "__complete -- --kubeconfig CONFIG unpeer mi",
        Works(""),
        Works("milan"),
    ),
];

/// Commands that need no cluster work for her as for everybody.
const WITHOUT_CLUSTER: [(&str, Outcome); 5] = [
    ("version --client", Works("Client: ")),
    ("completion bash", Works("_liqoctl")),
    (
        "plugin new ann --dir FOLDER --sdk LIQO",
        Works("Plugin ann is in"),
    ),
    (
        "contract verify /nowhere/contract.yaml",
        Fails("cannot read /nowhere/contract.yaml"),
    ),
    (
        "receipt verify /nowhere/receipt.yaml",
        Fails("cannot read /nowhere/receipt.yaml"),
    ),
];

pub async fn a_colleague_with_one_namespace_offloads_it_and_nothing_else(
    world: Arc<World>,
) -> Result<()> {
    every_command_is_tried()?;
    let rome = &world.rome;
    let ann = colleague(&world).await?;
    offload(&ann, "Remote").await?;
    ann.apply(&deployment(NAMESPACE, "web", 1)).await?;
    ann.wait_for(
        &["-n", NAMESPACE, "deployment/web"],
        "condition=Available",
        90,
    )
    .await?;
    let pods = ann
        .api::<Pod>(NAMESPACE)
        .list(&ListParams::default())
        .await?;
    let pod = pods.items.first().context("there is no pod")?;
    ensure!(node_of(pod) == "milan", "it is on {}", node_of(pod));
    let pod = name_of(pod);
    ann.kubectl(&["-n", NAMESPACE, "logs", pod]).await?;
    // With strategy Remote there is no other cluster to which the pod could move.
    offload(&ann, "LocalAndRemote").await?;

    let (file, folder) = (world.scratch("plan.yaml"), world.scratch("plugins"));
    std::fs::write(&file, deployment(NAMESPACE, "planned", 1))?;
    std::fs::create_dir_all(&folder)?;
    let (file, folder) = (file.display().to_string(), folder.display().to_string());
    let config = ann.kubeconfig.display().to_string();
    let names: [(&str, &str); 6] = [
        ("POD", pod),
        ("FILE", &file),
        ("FOLDER", &folder),
        ("CONFIG", &config),
        ("ID", ID),
        ("LIQO", concat!(env!("CARGO_MANIFEST_DIR"), "/..")),
    ];
    let with_edit: Vec<_> = COMMANDS
        .iter()
        .map(|(command, with_edit, _)| (*command, *with_edit))
        .chain(WITHOUT_CLUSTER)
        .collect();
    try_commands(&ann, &with_edit, &names)
        .await
        .context("with the role edit")?;
    see_costs_in_a_group_that_may(rome, &ann, &names).await?;

    ann.liqoctl(&["unoffload", "namespace", NAMESPACE, "-y"])
        .await?;
    rome.kubectl(&["delete", "namespace", NAMESPACE]).await?;
    Ok(())
}

/// Fails if a command has no row, or if a row is of no command.
fn every_command_is_tried() -> Result<()> {
    let known: BTreeSet<&str> = PAGE_OF_COMMANDS
        .lines()
        .filter_map(|line| line.strip_prefix("## liqoctl "))
        .chain(WITHOUT_HEADING)
        .collect();
    let rows = COMMANDS.iter().map(|(command, ..)| *command);
    let without_cluster = WITHOUT_CLUSTER.iter().map(|(command, _)| *command);
    let mut tried = BTreeSet::new();
    for row in rows.chain(without_cluster).chain(NOT_TRIED) {
        let command = command_of(row, &known);
        tried.insert(command.with_context(|| format!("liqoctl has no command for {row:?}"))?);
    }
    let missing: Vec<&&str> = known.difference(&tried).collect();
    ensure!(
        missing.is_empty(),
        "COMMANDS in colleague.rs has no row for {missing:?}"
    );
    Ok(())
}

/// The command at the beginning of these words: `cost plan` rather than `cost`.
fn command_of<'a>(words: &str, known: &BTreeSet<&'a str>) -> Option<&'a str> {
    let words = format!("{words} ");
    known
        .iter()
        .copied()
        .filter(|command| words.starts_with(&format!("{command} ")))
        .max_by_key(|command| command.len())
}

/// The cluster rome with the rights of a person who has the role `edit` in one namespace.
async fn colleague(world: &World) -> Result<Cluster> {
    let rome = &world.rome;
    rome.kubectl(&["create", "namespace", NAMESPACE]).await?;
    rome.kubectl(&["-n", NAMESPACE, "create", "serviceaccount", ACCOUNT])
        .await?;
    let account = format!("--serviceaccount={NAMESPACE}:{ACCOUNT}");
    rome.kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "rolebinding",
        ACCOUNT,
        "--clusterrole=edit",
        &account,
    ])
    .await?;
    let token = rome
        .kubectl(&["-n", NAMESPACE, "create", "token", ACCOUNT])
        .await?;
    rome.with_token(token.trim(), &world.scratch("ann.kubeconfig"))
        .await
}

async fn offload(ann: &Cluster, strategy: &str) -> Result<()> {
    ann.liqoctl(&[
        "offload",
        "namespace",
        NAMESPACE,
        "--pod-offloading-strategy",
        strategy,
    ])
    .await
    .map(drop)
}

/// An administrator binds `liqo-user` to a group, and its people see what nodes have and cost.
async fn see_costs_in_a_group_that_may(
    rome: &Cluster,
    ann: &Cluster,
    names: &[(&str, &str)],
) -> Result<()> {
    let group = format!("--group=system:serviceaccounts:{NAMESPACE}");
    rome.kubectl(&[
        "create",
        "clusterrolebinding",
        "liqo-users",
        "--clusterrole=liqo-user",
        &group,
    ])
    .await?;
    let tried = try_commands_of_users(ann, names).await;
    rome.kubectl(&["delete", "clusterrolebinding", "liqo-users"])
        .await?;
    tried.context("with the role liqo-user")
}

async fn try_commands_of_users(ann: &Cluster, names: &[(&str, &str)]) -> Result<()> {
    eventually("the role counts", UNTIL_BOUND, || async {
        let output = ann.try_liqoctl(&["cost", "-n", NAMESPACE]).await?;
        Ok(output.success.then_some(()))
    })
    .await?;
    let with_liqo_user: Vec<_> = COMMANDS
        .iter()
        .map(|(command, _, with_liqo_user)| (*command, *with_liqo_user))
        .collect();
    try_commands(ann, &with_liqo_user, names).await
}

/// Runs all these commands. Fails with all that is not as expected, and with what she changed.
async fn try_commands(
    ann: &Cluster,
    commands: &[(&str, Outcome)],
    names: &[(&str, &str)],
) -> Result<()> {
    let from = ann.audit_length()?;
    let mut faults = Vec::new();
    for some in commands.chunks(AT_ONCE) {
        let tried = some
            .iter()
            .map(|(command, expected)| fault_of(ann, command, *expected, names));
        faults.extend(try_join_all(tried).await?.into_iter().flatten());
    }
    faults.extend(changes_since(ann, from)?);
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Runs a command with the real names. Returns what it did if something else is expected.
async fn fault_of(
    ann: &Cluster,
    command: &str,
    expected: Outcome,
    names: &[(&str, &str)],
) -> Result<Option<String>> {
    let command = with_names(command, names);
    let arguments: Vec<&str> = command.split(' ').collect();
    let output = ann.try_liqoctl(&arguments).await?;
    let is_as_expected = match expected {
        Works(words) => output.success && output.stdout.contains(&with_names(words, names)),
        Reports(words) => output.stdout.contains(words),
        Refused(what) => fails_in_one_line(&output, &format!(" may not {what}")),
        Fails(words) => fails_in_one_line(&output, words),
    };
    Ok((!is_as_expected).then(|| {
        let Output { stdout, stderr, .. } = output;
        format!("liqoctl {command}: expected {expected:?}, got: {stdout}{stderr}")
    }))
}

/// Whether the command failed with one line that has these words, after the lines of its steps.
/// The line has neither the API server's own words nor the fields of a struct.
fn fails_in_one_line(output: &Output, words: &str) -> bool {
    let lines = || output.stderr.lines();
    let steps: Vec<&str> = lines()
        .filter_map(|line| line.strip_suffix(" ..."))
        .collect();
    let mut others = lines().filter(|line| !is_about_step(line, &steps));
    let (said, more) = (others.next().unwrap_or_default(), others.next());
    let is_sentence = ["forbidden", "system:serviceaccount", " { "]
        .iter()
        .all(|raw| !said.contains(raw));
    !output.success
        && output.stdout.is_empty()
        && more.is_none()
        && said.starts_with("liqoctl: ")
        && said.contains(words)
        && is_sentence
}

/// Whether a line says that one of these steps begins, or how it goes.
fn is_about_step(line: &str, steps: &[&str]) -> bool {
    steps.iter().any(|step| {
        line.strip_prefix(*step)
            .is_some_and(|rest| rest == " ..." || rest.starts_with(": "))
    })
}

/// What she changed after this position in the audit log, which has no reads. Questions about
/// rights change nothing.
fn changes_since(ann: &Cluster, from: u64) -> Result<Vec<String>> {
    let mut log = File::open(&ann.audit_log)?;
    log.seek(SeekFrom::Start(from))?;
    let mut events = String::new();
    log.read_to_string(&mut events)?;
    let user = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    let is_change = |event: &Value| {
        let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
        let code = event["responseStatus"]["code"].as_u64();
        event["user"]["username"] == user.as_str()
            && code.is_some_and(|code| code < 300)
            && !resource.ends_with("reviews")
    };
    Ok(events
        .lines()
        .filter(|line| line.contains(&user))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(is_change)
        .map(|event| format!("she changed: {} {}", event["verb"], event["requestURI"]))
        .collect())
}
