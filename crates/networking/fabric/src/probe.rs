//! `liqo-fabric probe`: the program in the pods of `liqoctl test network` and
//! `cargo playground bench network`. It does not change the node. It is part of `liqo-fabric`
//! because every cluster with a network has this image.

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use liqo_network_probe::{AskRequest, PORT, ask, serve};

/// Answers and asks in pods, to see whether the network between clusters works.
#[derive(Parser)]
#[command(name = "liqo-fabric probe", version)]
pub struct ProbeArguments {
    #[command(subcommand)]
    command: ProbeCommand,
}

#[derive(Subcommand)]
enum ProbeCommand {
    /// Answer, on TCP and UDP
    Serve {
        #[arg(long, default_value_t = PORT)]
        port: u16,
        /// Name of this pod
        #[arg(long, env = "POD_NAME", default_value = "")]
        pod: String,
        /// Name of this pod's node
        #[arg(long, env = "NODE_NAME", default_value = "")]
        node: String,
        /// Token that each request must begin with, if strangers can reach this pod
        #[arg(long)]
        token: Option<String>,
    },
    /// Do nothing until asked to end
    Wait,
    /// Read questions from standard input (one line of JSON), and print one line for each answer
    Ask,
}

/// The command line of the probe, if the first argument is `probe`.
pub fn parse_arguments() -> Option<ProbeArguments> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    arguments
        .peek()
        .is_some_and(|first| first == "probe")
        .then(|| ProbeArguments::parse_from(arguments))
}

/// Runs until the command or SIGTERM ends it.
pub async fn run_command(probe: ProbeArguments) -> anyhow::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .context("listening for SIGTERM")?;
    let working = async {
        match probe.command {
            ProbeCommand::Serve {
                port,
                pod,
                node,
                token,
            } => serve::serve_questions(port, serve::AnnouncedIdentity { pod, node, token })
                .await
                .with_context(|| format!("answering on port {port}")),
            ProbeCommand::Wait => std::future::pending().await,
            ProbeCommand::Ask => ask_all().await,
        }
    };
    tokio::select! {
        done = working => done,
        _ = terminate.recv() => Ok(()),
    }
}

async fn ask_all() -> anyhow::Result<()> {
    let line = tokio::task::spawn_blocking(|| std::io::stdin().lines().next())
        .await
        .context("reading the questions")?;
    let line = line
        .context("there are no questions")?
        .context("reading the questions")?;
    let request: AskRequest =
        serde_json::from_str(&line).context("the questions cannot be read")?;
    let mut reports = ask::ask_questions(request);
    while let Some(report) = reports.recv().await {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}
