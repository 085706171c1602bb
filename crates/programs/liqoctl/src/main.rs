//! `liqoctl`, and `kubectl liqo`: reads the command line, calls the library, prints.

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::bail;
use clap::{CommandFactory as _, FromArgMatches as _};
use futures::future::join_all;
use liqoctl::{
    approve, ask, broker, catalog, chart,
    cli::{
        self, BrokerCommand, BrokerEnableArguments, Cli, Command, ContractCommand, CostArguments,
        CostCommand, DoctorArguments, ExplainCommand, ExportFormat, GenerateCommand, GlobalFlags,
        InstallArguments, MoveCommand, NamespaceArguments, OfferCommand, OfferDecisionArguments,
        OffloadCommand, OffloadNamespaceArguments, PeerArguments, PluginCommand, PolicyCommand,
        ReceiptCommand, RenewCommand, TestCommand, TokenCommand, UnoffloadCommand,
        UnoffloadNamespaceArguments,
    },
    cluster::{Cluster, ClusterAccess, InstalledLiqo},
    complete, contract, cost, discover, doctor, explain, generate, install, move_pods,
    network_test, offer, offload,
    output::{self, OutputFormat, Paint},
    peer, playground, plugin, policy, probes, program,
    progress::StepProgress,
    receipt, reference_pages, renew, settings, status, terminal, tether, token, uninstall, unpeer,
    usage, version,
};

fn main() -> ExitCode {
    let cli = parse_command_line();
    terminal::fit_results();
    program::run_program("liqoctl", cli.global.verbose, run_command(cli))
}

/// A kubectl plugin shows itself as `kubectl liqo` in its help.
fn parse_command_line() -> Cli {
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

async fn run_command(cli: Cli) -> anyhow::Result<()> {
    let global = cli.global;
    let format = global.output;
    match cli.command {
        Command::Install(arguments) => Box::pin(run_install(&global, arguments)).await,
        Command::Uninstall(options) => run_uninstall(&global, &options).await,
        Command::Peer(arguments) => run_peer(&global, *arguments).await,
        Command::Unpeer(options) => run_unpeer(&global, &options).await,
        Command::Approve { peer } => {
            decide_on_consumer(&global, &peer, liqo_api::PeeringIntent::Yes, true).await
        }
        Command::Refuse { peer, yes } => {
            decide_on_consumer(&global, &peer, liqo_api::PeeringIntent::No, yes).await
        }
        Command::Renew(RenewCommand::GatewayKeys { no_wait, timeout }) => {
            renew_gateway_keys(&global, (!no_wait).then_some(timeout)).await
        }
        Command::Tether { peer, wait } => tether_to_peer(&global, &peer, wait.timeout()).await,
        Command::Untether { wait } => untether_cluster(&global, wait.timeout()).await,
        Command::Offload(OffloadCommand::Namespace(arguments)) => {
            offload_namespaces(&global, &arguments).await
        }
        Command::Unoffload(UnoffloadCommand::Namespace(arguments)) => {
            unoffload_namespaces(&global, &arguments).await
        }
        Command::Move(MoveCommand::Pods(options)) => move_pods(&global, &options).await,
        Command::Offer(command) => run_offer_command(&global, command).await,
        Command::Contract(command) => run_contract_command(&global, command).await,
        Command::Usage { peer } => show_usage(&global, peer.as_deref()).await,
        Command::Receipt(command) => run_receipt_command(&global, command).await,
        Command::Cost(arguments) => show_costs(&global, arguments).await,
        Command::Policy(command) => run_policy_command(&global, command).await,
        Command::Broker(command) => Box::pin(run_broker_command(&global, command)).await,
        Command::Catalog(options) => Box::pin(show_catalog(&global, &options)).await,
        Command::Explain(ExplainCommand::Pod { pod, namespace }) => {
            explain_pod(&global, &pod, namespace.as_deref()).await
        }
        Command::Discover => show_discovered(&global).await,
        Command::Status { watch, namespace } => {
            show_status(&global, watch, namespace.as_deref()).await
        }
        Command::Test(TestCommand::Network(options)) => test_network(&global, &options).await,
        Command::Doctor(arguments) => run_doctor(&global, &arguments).await,
        Command::Token(command) => run_token_command(&global, command).await,
        Command::Generate(command) => run_generate_command(&global, command).await,
        Command::Plugin(PluginCommand::New(options)) => {
            let created = plugin::create_plugin(&options)?;
            output::print_result(format, &created, plugin::render_next_steps)
        }
        Command::Playground { arguments } => playground::exec_playground(&global, &arguments),
        Command::Version { client: true } => {
            output::print_result(format, &version::client_version(), version::render_versions)
        }
        Command::Version { client: false } => {
            let both =
                version::client_and_cluster_versions(&Cluster::connect(&global.access()).await?)
                    .await?;
            output::print_result(format, &both, version::render_versions)
        }
        Command::Completion { shell } => output::write_out(&complete::completion_script(shell)?),
        Command::Complete { words } => match complete::completion_request(&words) {
            Some(wanted) => output::write_out(&complete::complete_names(&wanted).await.join("\n")),
            None => Ok(()),
        },
    }
}

async fn renew_gateway_keys(global: &GlobalFlags, timeout: Option<Duration>) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let outcome = renew::gateway_keys(&cluster, timeout, &StepProgress::new()).await?;
    output::print_result(global.output, &outcome, renew::render_renewal_result)
}

async fn tether_to_peer(
    global: &GlobalFlags,
    peer: &str,
    timeout: Option<Duration>,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let foreign = unpeer::peer_by_name(&cluster, peer).await?;
    let outcome = tether::tether(&cluster, &foreign, timeout, &StepProgress::new()).await?;
    output::print_result(global.output, &outcome, tether::render_tethering_result)
}

async fn untether_cluster(global: &GlobalFlags, timeout: Option<Duration>) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let outcome = tether::untether(&cluster, timeout, &StepProgress::new()).await?;
    output::print_result(global.output, &outcome, tether::render_tethering_result)
}

async fn show_catalog(
    global: &GlobalFlags,
    options: &catalog::CatalogOptions,
) -> anyhow::Result<()> {
    let offers = catalog::read_catalog(&global.access(), options).await?;
    output::print_result(global.output, &offers, |offers| {
        catalog::render_catalog_offers(offers)
    })
}

async fn run_generate_command(
    global: &GlobalFlags,
    command: GenerateCommand,
) -> anyhow::Result<()> {
    match command {
        GenerateCommand::PeerCommand(arguments) => {
            let cluster = Cluster::connect(&global.access()).await?;
            let invitation =
                generate::peer_command(&cluster, &arguments.token, arguments.through_tunnel)
                    .await?;
            output::print_result(global.output, &invitation, |invitation| {
                invitation.command.clone()
            })
        }
        GenerateCommand::Crds { directory } => generate::write_definitions(&directory),
        GenerateCommand::Chart { directory, page } => {
            chart::write_chart(&directory)?;
            chart::write_page(&page)
        }
        GenerateCommand::Rights { page } => generate::write_rights(&page),
        GenerateCommand::Reference { directory } => reference_pages::write_reference(&directory),
    }
}

async fn explain_pod(
    global: &GlobalFlags,
    pod: &str,
    namespace: Option<&str>,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let (namespace, name) =
        explain::split_pod_name(pod, namespace, cluster.client.default_namespace())?;
    let explanation = explain::pod(&cluster, namespace, name).await?;
    output::print_result(global.output, &explanation, |explanation| {
        explain::render_pod_explanation(explanation, Paint::for_stdout())
    })
}

async fn show_discovered(global: &GlobalFlags) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.require_installed().await?;
    output::print_result(
        global.output,
        &discover::collect(&cluster).await?,
        discover::render_discovery,
    )
}

async fn show_status(
    global: &GlobalFlags,
    watch: bool,
    namespace: Option<&str>,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    if watch {
        return status::watch_status(&cluster, namespace, global.output, |found| {
            format_status(global, &found)
        })
        .await;
    }
    let found = status::collect(&cluster, namespace).await?;
    output::write_out(&format_status(global, &found)?)
}

fn format_status(global: &GlobalFlags, found: &status::StatusReport) -> anyhow::Result<String> {
    output::format_result(global.output, found, |found| {
        status::render_status(found, Paint::for_stdout())
    })
}

async fn run_doctor(global: &GlobalFlags, arguments: &DoctorArguments) -> anyhow::Result<()> {
    let report =
        doctor::examine_clusters(&arguments.clusters(&global.access())?, arguments.invariants)
            .await?;
    output::print_result(global.output, &report, |report| {
        doctor::render_report(report, arguments.shown_details(), Paint::for_stdout())
    })?;
    match report.summary.fail {
        0 => Ok(()),
        1 => bail!("1 check failed"),
        number => bail!("{number} checks failed"),
    }
}

async fn run_install(global: &GlobalFlags, arguments: InstallArguments) -> anyhow::Result<()> {
    let settings =
        settings::InstallSettings::from_files_and_arguments(&arguments.values, &arguments.set)?;
    for note in &settings.notes {
        eprintln!("Note: {note}.");
    }
    let cluster = Cluster::connect(&global.access()).await?;
    let options = install::InstallOptions {
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
    let installed = Box::pin(install::install_liqo(
        &cluster,
        &options,
        &StepProgress::new(),
    ))
    .await?;
    output::print_result(global.output, &installed, install::render_install_result)
}

async fn run_uninstall(
    global: &GlobalFlags,
    options: &uninstall::UninstallOptions,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    uninstall::ensure_not_in_use(&cluster, options).await?;
    ask::require_confirmation(
        &uninstall::question_before_uninstall(&cluster, options).await?,
        options.yes,
    )?;
    let uninstalled = uninstall::uninstall_liqo(&cluster, options, &StepProgress::new()).await?;
    output::print_result(
        global.output,
        &uninstalled,
        uninstall::render_uninstall_result,
    )
}

async fn run_peer(global: &GlobalFlags, arguments: PeerArguments) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let options = peer::PeerOptions {
        name: arguments.name.clone(),
        request: arguments.request(),
        granularity: arguments.granularity,
        timeout: arguments.timeout,
        wait: !arguments.no_wait,
    };
    let source = if let (Some(cluster_id), Some(auth_url)) = (arguments.id, arguments.auth_url) {
        let auth_url = settings::parse_address_url(&auth_url)
            .map_err(|problem| anyhow::anyhow!("--auth-url {auth_url}: {problem}"))?;
        let cluster_name = arguments
            .cluster_name
            .or(arguments.name)
            .unwrap_or_else(|| format!("cluster-{}", cluster_id.short_id()));
        let tunnel = arguments
            .tunnel
            .into_iter()
            .map(|gateway| gateway.0)
            .collect();
        peer::PeeringSource::Invitation {
            target: peer::PeeringTarget {
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
        peer::PeeringSource::Remote(
            Cluster::connect(&ClusterAccess {
                kubeconfig,
                context: arguments.remote_context,
            })
            .await?,
        )
    };
    tether::refuse_other_peers(&cluster, source.cluster_id().await?.as_ref()).await?;
    if let Some(question) = peer::question_before_peering(&cluster, &source, &options).await? {
        ask::require_confirmation(&question, arguments.yes)?;
    }
    let peered = peer::peer_and_wait(&cluster, source, &options, &StepProgress::new()).await?;
    output::print_result(global.output, &peered, peer::render_peering_result)
}

async fn run_unpeer(global: &GlobalFlags, options: &unpeer::UnpeerOptions) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let foreign = unpeer::peer_by_name(&cluster, &options.name).await?;
    if let Some((_, name)) = tether::controlling_peer(&cluster)
        .await?
        .filter(|(id, _)| *id == foreign.spec.cluster_id)
    {
        bail!(tether::refusal_while_tethered(&name));
    }
    ask::require_confirmation(
        &unpeer::question_before_unpeer(&cluster, &foreign, options).await?,
        options.yes,
    )?;
    let unpeered = unpeer::end_peering(&cluster, &foreign, options, &StepProgress::new()).await?;
    output::print_result(global.output, &unpeered, unpeer::render_unpeer_result)
}

async fn decide_on_consumer(
    global: &GlobalFlags,
    peer: &str,
    intent: liqo_api::PeeringIntent,
    yes: bool,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let foreign = unpeer::peer_by_name(&cluster, peer).await?;
    if let (liqo_api::PeeringIntent::No, Some(question)) =
        (intent, approve::question_before_refusal(&foreign))
    {
        ask::require_confirmation(&question, yes)?;
    }
    output::print_result(
        global.output,
        &approve::record_peering_intent(&cluster, &foreign, intent).await?,
        approve::render_peering_intent,
    )
}

/// The namespaces that the arguments name or select.
async fn named_or_selected_namespaces(
    cluster: &Cluster,
    arguments: &NamespaceArguments,
) -> anyhow::Result<Vec<String>> {
    match &arguments.namespace_selector {
        None => Ok(arguments.distinct_names().into_iter().collect()),
        Some(selector) => offload::namespaces_matching(cluster, selector).await,
    }
}

async fn offload_namespaces(
    global: &GlobalFlags,
    arguments: &OffloadNamespaceArguments,
) -> anyhow::Result<()> {
    let options = arguments.offload_options()?;
    let cluster = Cluster::connect(&global.access()).await?;
    let names = named_or_selected_namespaces(&cluster, &arguments.namespaces).await?;
    if global.output != OutputFormat::Table {
        return output::print_objects(
            global.output,
            &offload::preview_offloading(&cluster, &names, &options).await?,
        );
    }
    let mut failures = Vec::new();
    for outcome in offload::offload_all(&cluster, &names, &options, &StepProgress::new()).await? {
        match outcome {
            Ok(offloaded) => output::write_out(&offload::render_offload_result(&offloaded))?,
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        bail!(failures.join("; "))
    }
}

async fn unoffload_namespaces(
    global: &GlobalFlags,
    arguments: &UnoffloadNamespaceArguments,
) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let names = named_or_selected_namespaces(&cluster, &arguments.namespaces).await?;
    let endings = offload::plan_unoffload(&cluster, &names).await?;
    let not_offloaded = names
        .iter()
        .find(|name| endings.iter().all(|ending| ending.namespace != **name));
    match (&arguments.namespaces.namespace_selector, not_offloaded) {
        (None, Some(name)) => bail!("namespace {name} is not offloaded"),
        (Some(selector), _) if endings.is_empty() => {
            bail!("no offloaded namespace has the labels {selector}")
        }
        _ => {}
    }
    if global.output != OutputFormat::Table {
        return output::print_result(global.output, &endings, |_| String::new());
    }
    tether::refuse_while_tethered(&cluster).await?;
    if let Some(question) = offload::question_before_unoffload(&endings, arguments.now) {
        ask::require_confirmation(&question, arguments.yes)?;
    }
    let progress = StepProgress::new();
    let (cluster, progress) = (&cluster, &progress);
    let ended = endings.iter().map(|one| async move {
        if !arguments.now {
            offload::bring_home(cluster, &one.namespace, arguments.timeout, progress).await?;
        }
        offload::unoffload_and_wait(cluster, &one.namespace, arguments.timeout, progress).await
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

async fn move_pods(global: &GlobalFlags, options: &move_pods::MoveOptions) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.visible_installation().await?;
    let plan = move_pods::plan_move(&cluster, options).await?;
    if options.dry_run || plan.pods.is_empty() || global.output != OutputFormat::Table {
        return output::print_result(global.output, &plan, move_pods::render_planned_move);
    }
    ask::require_confirmation(&move_pods::question_before_move(&plan), options.yes)?;
    let moved =
        move_pods::move_planned_pods(&cluster, &plan, options.timeout, &StepProgress::new())
            .await?;
    output::write_out(&move_pods::render_finished_move(&plan, &moved))
}

async fn run_offer_command(global: &GlobalFlags, command: OfferCommand) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.require_installed().await?;
    match command {
        OfferCommand::List { peer, made } => {
            let which = if made {
                offer::OfferDirection::Made
            } else {
                offer::OfferDirection::Received
            };
            let of = find_peer(&cluster, peer.as_deref()).await?;
            let found = offer::list_offers(&cluster, of.as_ref(), which).await?;
            let of = of.and_then(|foreign| foreign.metadata.name);
            output::print_result(global.output, &found, |found| {
                offer::render_offers(found, of.as_deref(), which)
            })
        }
        OfferCommand::Accept { offer, yes } => {
            decide_on_offer(
                global,
                &cluster,
                &offer,
                liqo_api::OfferDecision::Accept,
                yes,
            )
            .await
        }
        OfferCommand::Refuse { offer, yes } => {
            decide_on_offer(
                global,
                &cluster,
                &offer,
                liqo_api::OfferDecision::Refuse,
                yes,
            )
            .await
        }
        OfferCommand::Forget { peer, pool } => {
            let foreign = unpeer::peer_by_name(&cluster, &peer).await?;
            offer::forget_decision(&cluster, &foreign, &pool).await?;
            let result = serde_json::json!({ "peer": foreign.metadata.name, "pool": pool });
            output::print_result(global.output, &result, |_| {
                format!(
                    "There is no decision on pool {pool} of {peer} any more: the policy decides again (`liqoctl offer list {peer}`)."
                )
            })
        }
    }
}

async fn show_usage(global: &GlobalFlags, peer: Option<&str>) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.require_installed().await?;
    let of = find_peer(&cluster, peer).await?;
    output::print_result(
        global.output,
        &usage::collect(&cluster, of.as_ref()).await?,
        |used| usage::render_usage(used),
    )
}

async fn run_receipt_command(global: &GlobalFlags, command: ReceiptCommand) -> anyhow::Result<()> {
    if let ReceiptCommand::Verify { files } = &command {
        let verdicts = receipt::verify_receipt_files(files)?;
        let text = receipt::verdict_text(&verdicts)?;
        return output::print_result(global.output, &verdicts, |_| text.clone());
    }
    let cluster = Cluster::connect(&global.access()).await?;
    let InstalledLiqo { id: own, config } = cluster.require_installed().await?;
    match command {
        ReceiptCommand::List { peer } => {
            let of = find_peer(&cluster, peer.as_deref()).await?;
            let delay = receipt::answer_delay(&config);
            output::print_result(
                global.output,
                &receipt::list_receipts(&cluster, &own, of.as_ref()).await?,
                |found| receipt::render_receipts(found, delay),
            )
        }
        ReceiptCommand::Show { name } => {
            let found = receipt::choose_receipt(
                receipt::list_receipts(&cluster, &own, None).await?,
                &name,
            )?;
            output::print_result(global.output, &found, receipt::render_receipt)
        }
        ReceiptCommand::Export {
            format,
            peer,
            signed,
        } => {
            let of = find_peer(&cluster, peer.as_deref()).await?;
            let mut found = receipt::list_receipts(&cluster, &own, of.as_ref()).await?;
            found.retain(|one| !signed || one.phase == liqo_api::ReceiptPhase::Signed);
            let lines = receipt::invoice_lines(&found);
            match format {
                ExportFormat::Csv => output::write_out(&receipt::to_csv(&lines)),
                ExportFormat::Json => output::write_out(&serde_json::to_string_pretty(&lines)?),
            }
        }
        ReceiptCommand::Verify { .. } => Ok(()),
    }
}

/// The peer that the user named, if any.
async fn find_peer(
    cluster: &Cluster,
    peer: Option<&str>,
) -> anyhow::Result<Option<liqo_api::ForeignCluster>> {
    Ok(match peer {
        Some(peer) => Some(unpeer::peer_by_name(cluster, peer).await?),
        None => None,
    })
}

async fn decide_on_offer(
    global: &GlobalFlags,
    cluster: &Cluster,
    arguments: &OfferDecisionArguments,
    decision: liqo_api::OfferDecision,
    yes: bool,
) -> anyhow::Result<()> {
    let foreign = unpeer::peer_by_name(cluster, &arguments.peer).await?;
    let peer = foreign.metadata.name.clone().unwrap_or_default();
    let terms = match decision {
        liqo_api::OfferDecision::Accept => contract::contracts_to_sign(cluster, &foreign).await?,
        liqo_api::OfferDecision::Refuse => Vec::new(),
    };
    let offers = offer::received_offers(cluster, &foreign).await?;
    let accepted =
        offer::choose_what_to_accept(&peer, &offers, arguments.pool.as_deref(), !terms.is_empty())?;
    let lost_pods = match (&accepted, decision) {
        (offer::OfferOrTerms::Pool(pool), liqo_api::OfferDecision::Refuse) => {
            offer::pods_on(cluster, &foreign, pool).await?
        }
        _ => Vec::new(),
    };
    if let (offer::OfferOrTerms::Pool(pool), false) = (&accepted, lost_pods.is_empty()) {
        ask::require_confirmation(
            &offer::question_before_refusal(&peer, pool, &lost_pods),
            yes,
        )?;
    }
    accept_terms(cluster, &foreign, &peer, &terms, yes).await?;
    let offer::OfferOrTerms::Pool(pool) = accepted else {
        let names: Vec<&str> = terms.iter().map(|one| one.name.as_str()).collect();
        let result = serde_json::json!({ "peer": peer, "contracts": names });
        return output::print_result(global.output, &result, |_| {
            format!(
                "The new terms of {} with {peer} are accepted: this cluster signs them.",
                names.join(", ")
            )
        });
    };
    let node = offer::decide_and_wait(
        cluster,
        &foreign,
        &pool,
        decision,
        arguments.timeout,
        &StepProgress::new(),
    )
    .await?;
    output::print_result(
        global.output,
        &offer::DecidedOffer {
            peer,
            pool,
            decision,
            node,
            lost_pods,
        },
        offer::render_decided_offer,
    )
}

/// Shows terms that this cluster has not signed, and signs them if the person agrees.
async fn accept_terms(
    cluster: &Cluster,
    foreign: &liqo_api::ForeignCluster,
    peer: &str,
    terms: &[contract::ListedContract],
    yes: bool,
) -> anyhow::Result<()> {
    if terms.is_empty() {
        return Ok(());
    }
    for document in terms
        .iter()
        .filter_map(contract::ListedContract::unsigned_terms)
    {
        eprintln!(
            "{peer} proposes a contract:\n{}",
            contract::render_terms(&document.terms)
        );
    }
    ask::require_confirmation("This signs these terms. Continue?", yes)?;
    contract::record_acceptance(cluster, foreign, terms).await
}

async fn run_contract_command(
    global: &GlobalFlags,
    command: ContractCommand,
) -> anyhow::Result<()> {
    if let ContractCommand::Verify { files } = &command {
        let verdict = contract::verify_contract_files(files)?;
        let text = contract::render_contract_verdict(&verdict)?;
        return output::print_result(global.output, &verdict, |_| text.clone());
    }
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.require_installed().await?;
    match command {
        ContractCommand::List { peer } => {
            let of = find_peer(&cluster, peer.as_deref()).await?;
            output::print_result(
                global.output,
                &contract::list_contracts(&cluster, of.as_ref()).await?,
                |found| contract::render_contracts(found),
            )
        }
        ContractCommand::Show { peer } => {
            let foreign = unpeer::peer_by_name(&cluster, &peer).await?;
            let found = contract::contracts_to_show(
                contract::list_contracts(&cluster, Some(&foreign)).await?,
                &peer,
            )?;
            output::print_result(global.output, &found, |found| {
                found
                    .iter()
                    .map(contract::render_contract)
                    .collect::<Vec<_>>()
                    .join("\n\n")
            })
        }
        ContractCommand::End {
            peer,
            contract: name,
            reason,
            yes,
            timeout,
        } => {
            let foreign = unpeer::peer_by_name(&cluster, &peer).await?;
            let one = contract::contract_to_end(
                contract::list_contracts(&cluster, Some(&foreign)).await?,
                &peer,
                name.as_deref(),
            )?;
            ask::require_confirmation(&contract::question_of_end(&one), yes)?;
            let ended = contract::end_contract(
                &cluster,
                &foreign,
                &one,
                reason.as_deref(),
                timeout,
                &StepProgress::new(),
            )
            .await?;
            output::print_result(global.output, &ended, |ended| {
                format!(
                    "{} with {} ends at {}.",
                    ended.contract, ended.peer, ended.end.at.0
                )
            })
        }
        ContractCommand::Forget { peer } => {
            let foreign = unpeer::peer_by_name(&cluster, &peer).await?;
            let contracts = contract::forget_decisions(&cluster, &foreign).await?;
            let result =
                serde_json::json!({ "peer": foreign.metadata.name, "contracts": contracts });
            output::print_result(global.output, &result, |_| {
                format!(
                    "There is no decision on contracts with {peer} any more: the policies decide again."
                )
            })
        }
        ContractCommand::Verify { .. } => Ok(()),
    }
}

async fn show_costs(global: &GlobalFlags, arguments: CostArguments) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.visible_installation().await?;
    if let Some(CostCommand::Plan(arguments)) = arguments.command {
        let namespace = arguments
            .namespace
            .unwrap_or_else(|| cluster.client.default_namespace().to_owned());
        let planned = cost::plan_costs(&cluster, &arguments.filename, &namespace).await?;
        return output::print_result(global.output, &planned, |planned| {
            cost::plan::render_workload_costs(planned)
        });
    }
    let costs = cost::running_costs(
        &cluster,
        arguments.namespace.as_deref(),
        arguments.peer.as_deref(),
    )
    .await?;
    output::print_result(global.output, &costs, cost::running::render_costs)
}

async fn run_policy_command(global: &GlobalFlags, command: PolicyCommand) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    let own = cluster.require_installed().await?;
    match command {
        PolicyCommand::List => output::print_result(
            global.output,
            &policy::list_policies(&cluster).await?,
            |found| policy::render_policies(found),
        ),
        PolicyCommand::Explain { peer, labels } => {
            let lists = policy::collect_offer_inputs(&cluster).await?;
            let whom = policy::peer_to_explain(&lists.foreign_clusters, &peer, labels.as_ref())?;
            let (today, now) = (jiff::Timestamp::now(), tokio::time::Instant::now());
            let explanation = policy::explain_policy(
                own.id,
                own.config.spec.cluster_labels,
                lists,
                &whom,
                today,
                now,
            );
            output::print_result(global.output, &explanation, |found| {
                policy::render_policy_explanation(found, Paint::for_stdout())
            })
        }
    }
}

async fn run_broker_command(global: &GlobalFlags, command: BrokerCommand) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.require_installed().await?;
    match command {
        BrokerCommand::Status => {
            let found = broker::collect_status(&cluster).await?;
            output::print_result(global.output, &found, |found| {
                broker::render_broker_status(found, Paint::for_stdout())
            })
        }
        BrokerCommand::Enable(arguments) => enable_broker(global, &cluster, &arguments).await,
        BrokerCommand::Disable {
            policy,
            dry_run,
            yes,
        } => {
            let broker::PlannedEndings {
                endings,
                by_plugins,
            } = broker::plan_endings(&cluster, policy.as_deref()).await?;
            if dry_run && !endings.is_empty() {
                return output::print_result(global.output, &endings, |endings| {
                    broker::render_planned_endings(endings)
                });
            }
            if !endings.is_empty() {
                ask::require_confirmation(
                    &format!("{}\nContinue?", broker::render_planned_endings(&endings)),
                    yes,
                )?;
                broker::disable_lending_on(&cluster, &endings).await?;
            }
            output::print_result(global.output, &endings, |endings| {
                broker::render_disabled(endings, &by_plugins)
            })
        }
    }
}

async fn enable_broker(
    global: &GlobalFlags,
    cluster: &Cluster,
    arguments: &BrokerEnableArguments,
) -> anyhow::Result<()> {
    let plan = broker::plan_enabling(cluster, &arguments.policy_change()?).await?;
    match (arguments.dry_run, global.output) {
        (true, OutputFormat::Table) => {
            return output::write_out(&broker::render_planned_changes(&plan));
        }
        (true, format) => return output::print_objects(format, &[broker::planned_policy(&plan)]),
        (false, _) => {}
    }
    if plan.is_needed() {
        eprintln!("{}", broker::render_planned_changes(&plan));
        ask::require_confirmation(&format!("Write policy {}?", plan.policy), arguments.yes)?;
        broker::enable_lending_on(cluster, &plan).await?;
    }
    output::print_result(global.output, &plan, broker::render_enabled)
}

async fn test_network(
    global: &GlobalFlags,
    options: &network_test::NetworkTestOptions,
) -> anyhow::Result<()> {
    let clusters = probes::clusters(&global.access(), &options.others).await?;
    let found = network_test::run_network_test(&clusters, options, &StepProgress::new()).await?;
    output::print_result(global.output, &found, |found| {
        network_test::render_test_result(found, Paint::for_stdout())
    })?;
    found.ensure_all_passed()
}

async fn run_token_command(global: &GlobalFlags, command: TokenCommand) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&global.access()).await?;
    cluster.require_installed().await?;
    match command {
        TokenCommand::Create(options) => {
            let made = token::create_token(&cluster, &options).await?;
            output::print_result(global.output, &made, |made| made.token.clone())
        }
        TokenCommand::List => output::print_result(
            global.output,
            &token::list_tokens(&cluster).await?,
            |tokens| token::render_tokens(tokens),
        ),
        TokenCommand::Delete { name } => {
            token::delete_token(&cluster, &name).await?;
            output::print_result(
                global.output,
                &serde_json::json!({ "deleted": name }),
                |_| format!("Token {name} is no longer valid."),
            )
        }
    }
}
