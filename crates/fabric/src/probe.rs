//! `liqo-fabric probe`: what the pods of `liqoctl test network` and `liqoctl bench network` run. It has nothing to do with the node; it
//! stands here because the image of this program is wherever there is a network.

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use liqo_probe::{PORT, Request, ask, serve};

/// Answers and asks in pods, to see whether the network between clusters works.
#[derive(Parser)]
#[command(name = "liqo-fabric probe", version)]
pub struct Probe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer, on TCP and UDP
    Serve {
        /// The port
        #[arg(long, default_value_t = PORT)]
        port: u16,
        /// Name of this pod
        #[arg(long, env = "POD_NAME", default_value = "")]
        pod: String,
        /// The node that it is on
        #[arg(long, env = "NODE_NAME", default_value = "")]
        node: String,
        /// What has to be said before anything is answered, where strangers reach this pod
        #[arg(long)]
        token: Option<String>,
    },
    /// Do nothing until asked to end
    Wait,
    /// Ask what standard input says, in one line of JSON; each answer is a line
    Ask,
}

/// The probe that the command line asks for: its first word is `probe`.
pub fn wanted() -> Option<Probe> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    arguments.peek().is_some_and(|first| first == "probe").then(|| Probe::parse_from(arguments))
}

/// Does it, until SIGTERM where it has no end of its own.
pub async fn run(probe: Probe) -> anyhow::Result<()> {
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).context("listening for SIGTERM")?;
    let working = async {
        match probe.command {
            Command::Serve { port, pod, node, token } => {
                serve::serve(port, serve::Name { pod, node, token }).await.with_context(|| format!("answering on port {port}"))
            }
            Command::Wait => std::future::pending().await,
            Command::Ask => ask_all().await,
        }
    };
    tokio::select! {
        done = working => done,
        _ = terminate.recv() => Ok(()),
    }
}

async fn ask_all() -> anyhow::Result<()> {
    let line = tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await.context("reading the questions")?;
    let line = line.context("there are no questions")?.context("reading the questions")?;
    let request: Request = serde_json::from_str(&line).context("the questions cannot be read")?;
    let mut reports = ask::ask(request);
    while let Some(report) = reports.recv().await {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}
