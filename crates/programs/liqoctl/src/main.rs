//! `liqoctl`, and `kubectl liqo`: reads the command line, calls the library, prints.

use std::{path::Path, process::ExitCode};

use anyhow::bail;
use clap::{CommandFactory as _, FromArgMatches as _};
use futures::future::join_all;
use liqoctl::{
    approve, ask, broker, catalog, chart,
    cli::{
        self, Bench, BenchNetwork, BenchOffload, Broker, BrokerEnable, Cli, Command, Contracts,
        Cost, CostCommand, Doctor, Explain, ExportFormat, Generate, Global, Install, Move,
        MovePods, Namespaces, Offer, OfferDecide, Offload, OffloadNamespace, Peer, Plugin, Policy,
        Receipts, Renew, Test, TestNetwork, Token, Uninstall, Unoffload, UnoffloadNamespace,
        Unpeer,
    },
    cluster::{Access, Cluster, Installed},
    complete, contract, cost, discover, doctor, explain, generate, install, move_pods,
    network_bench, network_test, offer, offload, offload_bench,
    output::{self, Format, Paint},
    peer, playground, plugin, policy, probes, program,
    progress::Progress,
    receipt, renew, settings, status, tether, token, uninstall, unpeer, usage, version,
};

fn main() -> ExitCode {
    let cli = parse();
    program::run("liqoctl", cli.global.verbose, run(cli))
}

/// A kubectl plugin shows itself as `kubectl liqo` in its help.
fn parse() -> Cli {
    let mut command = Cli::command();
    let called = std::env::args_os().next().unwrap_or_default();
    if Path::new(&called)
        .file_stem()
        .is_some_and(|name| name == "kubectl-liqo" || name == "kubectl_liqo")
    {
        command = command
            .name("kubectl-liqo")
            .bin_name("kubectl liqo")
            .display_name("kubectl liqo");
    }
    let matches = command
        .try_get_matches()
        .map_err(cli::with_near_suggestions)
        .unwrap_or_else(|error| error.exit());
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let global = cli.global;
    let format = global.output;
    match cli.command {
        Command::Install(arguments) => Box::pin(install(&global, arguments)).await,
        Command::Uninstall(arguments) => uninstall(&global, &arguments).await,
        Command::Peer(arguments) => peer(&global, *arguments).await,
        Command::Unpeer(arguments) => unpeer(&global, &arguments).await,
        Command::Approve { peer } => {
            decide_on_consumer(&global, &peer, liqo_api::PeeringIntent::Yes, true).await
        }
        Command::Refuse { peer, yes } => {
            decide_on_consumer(&global, &peer, liqo_api::PeeringIntent::No, yes).await
        }
        Command::Renew(Renew::GatewayKeys { no_wait, timeout }) => {
            let cluster = Cluster::connect(&global.access()).await?;
            let outcome =
                renew::gateway_keys(&cluster, (!no_wait).then_some(timeout), &Progress::new())
                    .await?;
            output::print(format, &outcome, renew::table)
        }
        Command::Tether { peer, wait } => {
            let cluster = Cluster::connect(&global.access()).await?;
            let foreign = unpeer::find(&cluster, &peer).await?;
            let outcome =
                tether::tether(&cluster, &foreign, wait.timeout(), &Progress::new()).await?;
            output::print(format, &outcome, tether::table)
        }
        Command::Untether { wait } => {
            let cluster = Cluster::connect(&global.access()).await?;
            let outcome = tether::untether(&cluster, wait.timeout(), &Progress::new()).await?;
            output::print(format, &outcome, tether::table)
        }
        Command::Offload(Offload::Namespace(arguments)) => {
            offload_namespaces(&global, &arguments).await
        }
        Command::Unoffload(Unoffload::Namespace(arguments)) => unoffload(&global, &arguments).await,
        Command::Move(Move::Pods(arguments)) => move_pods(&global, &arguments).await,
        Command::Offer(command) => offers(&global, command).await,
        Command::Contract(command) => contracts(&global, command).await,
        Command::Usage { peer } => show_usage(&global, peer.as_deref()).await,
        Command::Receipt(command) => receipts(&global, command).await,
        Command::Cost(arguments) => costs(&global, arguments).await,
        Command::Policy(command) => policies(&global, command).await,
        Command::Broker(command) => Box::pin(brokers(&global, command)).await,
        Command::Catalog(arguments) => {
            let offers = Box::pin(catalog::read(&global.access(), &arguments.options())).await?;
            output::print(format, &offers, |offers| catalog::table(offers))
        }
        Command::Explain(Explain::Pod { pod, namespace }) => {
            explain_pod(&global, &pod, namespace.as_deref()).await
        }
        Command::Discover => show_discovered(&global).await,
        Command::Status { watch, namespace } => {
            show_status(&global, watch, namespace.as_deref()).await
        }
        Command::Test(Test::Network(arguments)) => test_network(&global, arguments).await,
        Command::Bench(Bench::Network(arguments)) => bench_network(&global, arguments).await,
        Command::Bench(Bench::Offload(arguments)) => bench_offload(&global, arguments).await,
        Command::Doctor(arguments) => examine(&global, &arguments).await,
        Command::Token(command) => tokens(&global, command).await,
        Command::Generate(Generate::PeerCommand(arguments)) => {
            let cluster = Cluster::connect(&global.access()).await?;
            let invitation = generate::peer_command(
                &cluster,
                &arguments.token.wanted(),
                arguments.through_tunnel,
            )
            .await?;
            output::print(format, &invitation, |invitation| invitation.command.clone())
        }
        Command::Generate(Generate::Crds { directory }) => generate::write_definitions(&directory),
        Command::Generate(Generate::Chart { directory, page }) => {
            chart::write(&directory)?;
            chart::write_page(&page)
        }
        Command::Generate(Generate::Rights { page }) => generate::write_rights(&page),
        Command::Plugin(Plugin::New { name, dir, sdk }) => {
            let created = plugin::create(&plugin::Options {
                name,
                directory: dir,
                sdk,
            })?;
            output::print(format, &created, plugin::table)
        }
        Command::Playground { arguments } => playground::exec(&global, &arguments),
        Command::Version { client: true } => {
            output::print(format, &version::client(), version::table)
        }
        Command::Version { client: false } => {
            let both = version::both(&Cluster::connect(&global.access()).await?).await?;
            output::print(format, &both, version::table)
        }
        Command::Completion { shell } => output::write_out(&complete::script(shell)?),
        Command::Complete { words } => match complete::wanted(&words) {
            Some(wanted) => output::write_out(&complete::names(&wanted).await.join("\n")),
            None => Ok(()),
        },
    }
}

async fn explain_pod(global: &Global, pod: &str, namespace: Option<&str>) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let (namespace, name) = explain::split(pod, namespace, cluster.client.default_namespace())?;
    let explanation = explain::pod(&cluster, namespace, name).await?;
    output::print(global.output, &explanation, |explanation| {
        explain::render(explanation, Paint::for_stdout())
    })
}

async fn show_discovered(global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    output::print(
        global.output,
        &discover::collect(&cluster).await?,
        discover::table,
    )
}

async fn show_status(global: &Global, watch: bool, namespace: Option<&str>) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let show = |found: status::Status| {
        let found = found.of_namespace(namespace);
        output::text(global.output, &found, |found| {
            status::render(found, Paint::for_stdout())
        })
    };
    if watch {
        return status::watch(&cluster, global.output, show).await;
    }
    output::write_out(&show(status::collect(&cluster).await?)?)
}

async fn examine(global: &Global, arguments: &Doctor) -> anyhow::Result<()> {
    let report =
        doctor::examine(&arguments.clusters(&global.access())?, arguments.invariants).await?;
    output::print(global.output, &report, |report| {
        doctor::render(report, arguments.all, Paint::for_stdout())
    })?;
    match report.summary.fail {
        0 => Ok(()),
        1 => bail!("1 check failed"),
        number => bail!("{number} checks failed"),
    }
}

async fn install(global: &Global, arguments: Install) -> anyhow::Result<()> {
    let settings = settings::Settings::read(&arguments.values, &arguments.set)?;
    for note in &settings.notes {
        eprintln!("Note: {note}.");
    }
    let cluster = Cluster::connect(&global.access()).await?;
    let options = install::Options {
        settings,
        allow_no_policies: arguments.without_admission_policies,
        timeout: arguments.timeout,
    };
    if arguments.dry_run {
        return output::print_objects(
            global.output,
            &Box::pin(install::dry_run(&cluster, &options)).await?,
        );
    }
    let installed = Box::pin(install::install(&cluster, &options, &Progress::new())).await?;
    output::print(global.output, &installed, install::table)
}

async fn uninstall(global: &Global, arguments: &Uninstall) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let options = uninstall::Options {
        purge: arguments.purge,
        force: arguments.force,
        timeout: arguments.timeout,
    };
    uninstall::check(&cluster, &options).await?;
    ask::confirm(
        &uninstall::question(&cluster, &options).await?,
        arguments.yes,
    )?;
    let uninstalled = uninstall::uninstall(&cluster, &options, &Progress::new()).await?;
    output::print(global.output, &uninstalled, uninstall::table)
}

async fn peer(global: &Global, arguments: Peer) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let options = peer::Options {
        name: arguments.name.clone(),
        request: arguments.request(),
        granularity: arguments.granularity,
        timeout: arguments.timeout,
        wait: !arguments.no_wait,
    };
    let source = if let (Some(cluster_id), Some(auth_url)) = (arguments.id, arguments.auth_url) {
        let auth_url = settings::address(&auth_url)
            .map_err(|problem| anyhow::anyhow!("--auth-url {auth_url}: {problem}"))?;
        let cluster_name = arguments
            .cluster_name
            .or(arguments.name)
            .unwrap_or_else(|| format!("cluster-{}", cluster_id.short()));
        let tunnel = arguments
            .tunnel
            .into_iter()
            .map(|gateway| gateway.0)
            .collect();
        peer::Source::Invitation {
            target: peer::Target {
                cluster_id,
                cluster_name,
                auth_url,
                tunnel,
            },
            token: arguments.token,
        }
    } else {
        let kubeconfig = arguments
            .remote_kubeconfig
            .or_else(|| global.kubeconfig.clone());
        peer::Source::Remote(
            Cluster::connect(&Access {
                kubeconfig,
                context: arguments.remote_context,
            })
            .await?,
        )
    };
    tether::refuse_other_peers(&cluster, source.cluster_id().await?.as_ref()).await?;
    if let Some(question) = peer::question(&cluster, &source, &options).await? {
        ask::confirm(&question, arguments.yes)?;
    }
    let peered = peer::peer(&cluster, source, &options, &Progress::new()).await?;
    output::print(global.output, &peered, peer::table)
}

async fn unpeer(global: &Global, arguments: &Unpeer) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let foreign = unpeer::find(&cluster, &arguments.name).await?;
    let options = unpeer::Options {
        incoming: arguments.incoming,
        now: arguments.now,
        timeout: arguments.timeout,
    };
    if let Some((_, name)) = tether::controlling_peer(&cluster)
        .await?
        .filter(|(id, _)| *id == foreign.spec.cluster_id)
    {
        bail!(tether::refusal(&name));
    }
    ask::confirm(
        &unpeer::question(&cluster, &foreign, &options).await?,
        arguments.yes,
    )?;
    let unpeered = unpeer::unpeer(&cluster, &foreign, &options, &Progress::new()).await?;
    output::print(global.output, &unpeered, unpeer::table)
}

async fn decide_on_consumer(
    global: &Global,
    peer: &str,
    intent: liqo_api::PeeringIntent,
    yes: bool,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let foreign = unpeer::find(&cluster, peer).await?;
    if let (liqo_api::PeeringIntent::No, Some(question)) = (intent, approve::question(&foreign)) {
        ask::confirm(&question, yes)?;
    }
    output::print(
        global.output,
        &approve::decide(&cluster, &foreign, intent).await?,
        approve::table,
    )
}

/// The namespaces that the arguments name or select.
async fn namespaces(cluster: &Cluster, arguments: &Namespaces) -> anyhow::Result<Vec<String>> {
    match &arguments.namespace_selector {
        None => Ok(arguments.named().into_iter().collect()),
        Some(selector) => offload::matching(cluster, selector).await,
    }
}

async fn offload_namespaces(global: &Global, arguments: &OffloadNamespace) -> anyhow::Result<()> {
    let options = arguments.options()?;
    let cluster = Cluster::connect(&global.access()).await?;
    let names = namespaces(&cluster, &arguments.namespaces).await?;
    if global.output != Format::Table {
        return output::print_objects(
            global.output,
            &offload::preview(&cluster, &names, &options).await?,
        );
    }
    let mut failures = Vec::new();
    for outcome in offload::offload_all(&cluster, &names, &options, &Progress::new()).await? {
        match outcome {
            Ok(offloaded) => output::write_out(&offload::table(&offloaded))?,
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        bail!(failures.join("; "))
    }
}

async fn unoffload(global: &Global, arguments: &UnoffloadNamespace) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let names = namespaces(&cluster, &arguments.namespaces).await?;
    let endings = offload::to_end(&cluster, &names).await?;
    let is_offloaded = |name: &&String| endings.iter().any(|ending| ending.namespace == **name);
    match (
        &arguments.namespaces.namespace_selector,
        names.iter().find(|name| !is_offloaded(name)),
    ) {
        (None, Some(name)) => bail!("namespace {name} is not offloaded"),
        (Some(selector), _) if endings.is_empty() => {
            bail!("no offloaded namespace has the labels {selector}")
        }
        _ => {}
    }
    if global.output != Format::Table {
        return output::print(global.output, &endings, |_| String::new());
    }
    tether::refuse_while_tethered(&cluster).await?;
    if let Some(question) = offload::question(&endings, arguments.now) {
        ask::confirm(&question, arguments.yes)?;
    }
    let progress = Progress::new();
    let (cluster, progress) = (&cluster, &progress);
    let ended = endings.iter().map(|one| async move {
        if !arguments.now {
            offload::bring_home(cluster, &one.namespace, arguments.timeout, progress).await?;
        }
        offload::unoffload(cluster, &one.namespace, arguments.timeout, progress).await
    });
    let mut failures = Vec::new();
    for (one, outcome) in endings.iter().zip(join_all(ended).await) {
        match outcome {
            Ok(()) => output::write_out(&format!(
                "Namespace {} is not offloaded any more.",
                one.namespace
            ))?,
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        bail!(failures.join("; "))
    }
}

async fn move_pods(global: &Global, arguments: &MovePods) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    let plan = move_pods::plan(
        &cluster,
        &arguments.options(cluster.client.default_namespace()),
    )
    .await?;
    if arguments.dry_run || plan.pods.is_empty() || global.output != Format::Table {
        return output::print(global.output, &plan, move_pods::preview);
    }
    ask::confirm(&move_pods::question(&plan), arguments.yes)?;
    let moved = move_pods::run(&cluster, &plan, arguments.timeout, &Progress::new()).await?;
    output::write_out(&move_pods::table(&plan, &moved))
}

async fn offers(global: &Global, command: Offer) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    match command {
        Offer::List { peer, made } => {
            let which = if made {
                offer::Which::Made
            } else {
                offer::Which::Received
            };
            let of = find_peer(&cluster, peer.as_deref()).await?;
            let found = offer::list(&cluster, of.as_ref(), which).await?;
            let of = of.and_then(|foreign| foreign.metadata.name);
            output::print(global.output, &found, |found| {
                offer::table(found, of.as_deref(), which)
            })
        }
        Offer::Accept { offer, yes } => {
            decide(
                global,
                &cluster,
                &offer,
                liqo_api::OfferDecision::Accept,
                yes,
            )
            .await
        }
        Offer::Refuse { offer, yes } => {
            decide(
                global,
                &cluster,
                &offer,
                liqo_api::OfferDecision::Refuse,
                yes,
            )
            .await
        }
        Offer::Forget { peer, pool } => {
            let foreign = unpeer::find(&cluster, &peer).await?;
            offer::forget(&cluster, &foreign, &pool).await?;
            let result = serde_json::json!({ "peer": foreign.metadata.name, "pool": pool });
            output::print(global.output, &result, |_| {
                format!(
                    "There is no decision on pool {pool} of {peer} any more: the policy decides again (`liqoctl offer list {peer}`)."
                )
            })
        }
    }
}

async fn show_usage(global: &Global, peer: Option<&str>) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    let of = find_peer(&cluster, peer).await?;
    output::print(
        global.output,
        &usage::collect(&cluster, of.as_ref()).await?,
        |used| usage::table(used),
    )
}

async fn receipts(global: &Global, command: Receipts) -> anyhow::Result<()> {
    if let Receipts::Verify { files } = &command {
        let verdicts = receipt::verify(files)?;
        let text = receipt::verdict_text(&verdicts)?;
        return output::print(global.output, &verdicts, |_| text.clone());
    }
    let cluster = Cluster::connect(&global.access()).await?;
    let Installed { id: own, config } = cluster.installed().await?;
    match command {
        Receipts::List { peer } => {
            let of = find_peer(&cluster, peer.as_deref()).await?;
            let delay = receipt::answer_delay(&config);
            output::print(
                global.output,
                &receipt::list(&cluster, &own, of.as_ref()).await?,
                |found| receipt::table(found, delay),
            )
        }
        Receipts::Show { name } => {
            let found = receipt::choose(receipt::list(&cluster, &own, None).await?, &name)?;
            output::print(global.output, &found, receipt::show)
        }
        Receipts::Export {
            format,
            peer,
            signed,
        } => {
            let of = find_peer(&cluster, peer.as_deref()).await?;
            let mut found = receipt::list(&cluster, &own, of.as_ref()).await?;
            found.retain(|one| !signed || one.phase == liqo_api::ReceiptPhase::Signed);
            let lines = receipt::lines(&found);
            match format {
                ExportFormat::Csv => output::write_out(&receipt::csv(&lines)),
                ExportFormat::Json => output::write_out(&serde_json::to_string_pretty(&lines)?),
            }
        }
        Receipts::Verify { .. } => Ok(()),
    }
}

/// The peer that the user named, if any.
async fn find_peer(
    cluster: &Cluster,
    peer: Option<&str>,
) -> anyhow::Result<Option<liqo_api::ForeignCluster>> {
    Ok(match peer {
        Some(peer) => Some(unpeer::find(cluster, peer).await?),
        None => None,
    })
}

async fn decide(
    global: &Global,
    cluster: &Cluster,
    arguments: &OfferDecide,
    decision: liqo_api::OfferDecision,
    yes: bool,
) -> anyhow::Result<()> {
    let foreign = unpeer::find(cluster, &arguments.peer).await?;
    let peer = foreign.metadata.name.clone().unwrap_or_default();
    let terms = match decision {
        liqo_api::OfferDecision::Accept => contract::waiting(cluster, &foreign).await?,
        liqo_api::OfferDecision::Refuse => Vec::new(),
    };
    let offers = offer::received(cluster, &foreign).await?;
    let accepted = offer::to_accept(&peer, &offers, arguments.pool.as_deref(), !terms.is_empty())?;
    let lost_pods = match (&accepted, decision) {
        (offer::Accepted::Pool(pool), liqo_api::OfferDecision::Refuse) => {
            offer::pods_on(cluster, &foreign, pool).await?
        }
        _ => Vec::new(),
    };
    if let (offer::Accepted::Pool(pool), false) = (&accepted, lost_pods.is_empty()) {
        ask::confirm(&offer::question(&peer, pool, &lost_pods), yes)?;
    }
    accept_terms(cluster, &foreign, &peer, &terms, yes).await?;
    let offer::Accepted::Pool(pool) = accepted else {
        let names: Vec<&str> = terms.iter().map(|one| one.name.as_str()).collect();
        let result = serde_json::json!({ "peer": peer, "contracts": names });
        return output::print(global.output, &result, |_| {
            format!(
                "The new terms of {} with {peer} are accepted: this cluster signs them.",
                names.join(", ")
            )
        });
    };
    let node = offer::decide(
        cluster,
        &foreign,
        &pool,
        decision,
        arguments.timeout,
        &Progress::new(),
    )
    .await?;
    output::print(
        global.output,
        &offer::Decided {
            peer,
            pool,
            decision,
            node,
            lost_pods,
        },
        offer::outcome,
    )
}

/// Shows terms that this cluster has not signed, and signs them if the person agrees.
async fn accept_terms(
    cluster: &Cluster,
    foreign: &liqo_api::ForeignCluster,
    peer: &str,
    terms: &[contract::Found],
    yes: bool,
) -> anyhow::Result<()> {
    if terms.is_empty() {
        return Ok(());
    }
    for document in terms.iter().filter_map(contract::Found::unsigned) {
        eprintln!(
            "{peer} proposes a contract:\n{}",
            contract::terms(&document.terms)
        );
    }
    ask::confirm("This signs these terms. Continue?", yes)?;
    contract::accept(cluster, foreign, terms).await
}

async fn contracts(global: &Global, command: Contracts) -> anyhow::Result<()> {
    if let Contracts::Verify { files } = &command {
        let verdict = contract::verify(files)?;
        let text = contract::verdict(&verdict)?;
        return output::print(global.output, &verdict, |_| text.clone());
    }
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    match command {
        Contracts::List { peer } => {
            let of = find_peer(&cluster, peer.as_deref()).await?;
            output::print(
                global.output,
                &contract::list(&cluster, of.as_ref()).await?,
                |found| contract::table(found),
            )
        }
        Contracts::Show { peer } => {
            let foreign = unpeer::find(&cluster, &peer).await?;
            let found = contract::to_show(contract::list(&cluster, Some(&foreign)).await?, &peer)?;
            output::print(global.output, &found, |found| {
                found
                    .iter()
                    .map(contract::show)
                    .collect::<Vec<_>>()
                    .join("\n\n")
            })
        }
        Contracts::End {
            peer,
            contract: name,
            reason,
            yes,
            timeout,
        } => {
            let foreign = unpeer::find(&cluster, &peer).await?;
            let one = contract::to_end(
                contract::list(&cluster, Some(&foreign)).await?,
                &peer,
                name.as_deref(),
            )?;
            ask::confirm(&contract::question_of_end(&one), yes)?;
            let ended = contract::end(
                &cluster,
                &foreign,
                &one,
                reason.as_deref(),
                timeout,
                &Progress::new(),
            )
            .await?;
            output::print(global.output, &ended, |ended| {
                format!(
                    "{} with {} ends at {}.",
                    ended.contract, ended.peer, ended.end.at.0
                )
            })
        }
        Contracts::Forget { peer } => {
            let foreign = unpeer::find(&cluster, &peer).await?;
            let contracts = contract::forget(&cluster, &foreign).await?;
            let result =
                serde_json::json!({ "peer": foreign.metadata.name, "contracts": contracts });
            output::print(global.output, &result, |_| {
                format!(
                    "There is no decision on contracts with {peer} any more: the policies decide again."
                )
            })
        }
        Contracts::Verify { .. } => Ok(()),
    }
}

async fn costs(global: &Global, arguments: Cost) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    if let Some(CostCommand::Plan(arguments)) = arguments.command {
        let namespace = arguments
            .namespace
            .unwrap_or_else(|| cluster.client.default_namespace().to_owned());
        let planned = cost::plan(&cluster, &arguments.filename, &namespace).await?;
        return output::print(global.output, &planned, |planned| {
            cost::plan::table(planned)
        });
    }
    let costs = cost::running(
        &cluster,
        arguments.namespace.as_deref(),
        arguments.peer.as_deref(),
    )
    .await?;
    output::print(global.output, &costs, cost::running::table)
}

async fn policies(global: &Global, command: Policy) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let own = cluster.installed().await?;
    match command {
        Policy::List => output::print(global.output, &policy::list(&cluster).await?, |found| {
            policy::table(found)
        }),
        Policy::Explain { peer, labels } => {
            let lists = policy::gather(&cluster).await?;
            let whom = policy::whom(&lists.foreign_clusters, &peer, labels.as_ref())?;
            let (today, now) = (jiff::Timestamp::now(), tokio::time::Instant::now());
            let explanation = policy::explain(
                own.id,
                own.config.spec.cluster_labels,
                lists,
                &whom,
                today,
                now,
            );
            output::print(global.output, &explanation, |found| {
                policy::render(found, Paint::for_stdout())
            })
        }
    }
}

async fn brokers(global: &Global, command: Broker) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    match command {
        Broker::Status => {
            let found = broker::status(&cluster).await?;
            output::print(global.output, &found, |found| {
                broker::render(found, Paint::for_stdout())
            })
        }
        Broker::Enable(arguments) => enable_broker(global, &cluster, &arguments).await,
        Broker::Disable {
            policy,
            dry_run,
            yes,
        } => {
            let (endings, plugins) = broker::plan_endings(&cluster, policy.as_deref()).await?;
            if dry_run && !endings.is_empty() {
                return output::print(global.output, &endings, |endings| broker::endings(endings));
            }
            if !endings.is_empty() {
                ask::confirm(&format!("{}\nContinue?", broker::endings(&endings)), yes)?;
                broker::disable(&cluster, &endings).await?;
            }
            output::print(global.output, &endings, |endings| {
                broker::disabled(endings, &plugins)
            })
        }
    }
}

async fn enable_broker(
    global: &Global,
    cluster: &Cluster,
    arguments: &BrokerEnable,
) -> anyhow::Result<()> {
    let plan = broker::plan_enabling(cluster, &arguments.wanted()?).await?;
    match (arguments.dry_run, global.output) {
        (true, Format::Table) => return output::write_out(&broker::changes(&plan)),
        (true, format) => return output::print_objects(format, &[broker::object(&plan)]),
        (false, _) => {}
    }
    if plan.is_needed() {
        eprintln!("{}", broker::changes(&plan));
        ask::confirm(&format!("Write policy {}?", plan.policy), arguments.yes)?;
        broker::enable(cluster, &plan).await?;
    }
    output::print(global.output, &plan, broker::enabled)
}

async fn test_network(global: &Global, arguments: TestNetwork) -> anyhow::Result<()> {
    let clusters = probes::clusters(global, &arguments.others).await?;
    let options = network_test::Options {
        nodes: arguments.nodes.into(),
        image: arguments.image,
        keep: arguments.keep,
        timeout: arguments.timeout,
    };
    let found = network_test::run(&clusters, &options, &Progress::new()).await?;
    output::print(global.output, &found, |found| {
        network_test::render(found, Paint::for_stdout())
    })?;
    found.verdict()
}

async fn bench_network(global: &Global, arguments: BenchNetwork) -> anyhow::Result<()> {
    let clusters = probes::clusters(global, &arguments.others).await?;
    let options = network_bench::Options {
        peer: arguments.peer,
        seconds: arguments.seconds,
        rounds: arguments.rounds,
        image: arguments.image,
        timeout: arguments.timeout,
    };
    let measured = network_bench::run(&clusters, &options, &Progress::new()).await?;
    output::print(global.output, &measured, |measured| {
        network_bench::table(measured, Paint::for_stdout())
    })?;
    measured.report.verdict()
}

async fn bench_offload(global: &Global, arguments: BenchOffload) -> anyhow::Result<()> {
    let (clusters, playground) = probes::clusters_and_playground(global, &arguments.others).await?;
    let options = offload_bench::Options {
        pods: arguments.pods,
        rounds: arguments.rounds,
        provider: arguments.provider,
        namespace: arguments.namespace,
        timeout: arguments.timeout,
    };
    let measured =
        offload_bench::run(&clusters, playground.as_ref(), &options, &Progress::new()).await?;
    output::print(global.output, &measured, |measured| {
        offload_bench::table(measured, Paint::for_stdout())
    })?;
    measured.report.verdict()
}

async fn tokens(global: &Global, command: Token) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.installed().await?;
    match command {
        Token::Create(arguments) => {
            let made = token::create(&cluster, &arguments.wanted()).await?;
            output::print(global.output, &made, |made| made.token.clone())
        }
        Token::List => output::print(global.output, &token::list(&cluster).await?, |tokens| {
            token::table(tokens)
        }),
        Token::Delete { name } => {
            token::delete(&cluster, &name).await?;
            output::print(
                global.output,
                &serde_json::json!({ "deleted": name }),
                |_| format!("Token {name} is no longer valid."),
            )
        }
    }
}
