//! `node-labels-resources`: a resource plugin that offers what is free on the nodes with given
//! labels.
//!
//! ```text
//!   nodes ──────▶ selected by --node-label? open to new pods? ──▶ allocatable ─┐
//!   pods ───────▶ bound to one of them, not finished ──▶ requests ─────────────┤ decide.rs
//!   namespaces ─▶ mapped ones, by consumer ────────────────────────────────────┤
//!                                                                              ▼
//!                       rome asks ──▶ free, plus what rome's own pods use: using an offer
//!                                     does not make it smaller
//! ```
//!
//! Mapped namespaces contain the pods of consumers. The plugin does not divide what is free: it
//! offers all of it to each peer.
//!
//! A moment after a relevant change, the plugin computes everything again from the current objects
//! (`source.rs`). There is no running total that could drift. Subscribers get one notification for
//! each real change of an answer.

mod decide;
mod source;

use std::process::ExitCode;

use clap::Parser;
use liqo_resource_plugin::{Options, kubernetes, selector::Selector, serve};
use tokio_util::sync::CancellationToken;

use crate::source::NodeLabels;

/// Offer to each peer of this cluster what is free on the nodes with given labels
#[derive(Debug, Parser)]
#[command(name = "node-labels-resources", version)]
struct NodeLabelsArguments {
    /// Selects nodes by labels, as kubectl does: pool=shared, 'zone in (a,b),!gpu', or
    /// node-role.kubernetes.io/worker. A node must meet all parts of a selector; repeat the flag
    /// for alternatives
    #[arg(long = "node-label", value_name = "SELECTOR", required = true)]
    selectors: Vec<Selector>,
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = NodeLabelsArguments::parse();
    arguments.options.start_logging();
    let selectors: Vec<String> = arguments
        .selectors
        .iter()
        .map(ToString::to_string)
        .collect();
    tracing::info!(
        selectors = selectors.join(" or "),
        "offering what is free on nodes with these labels"
    );
    let client = match kubernetes::client().await {
        Ok(client) => client,
        Err(error) => return report_failure(&error),
    };
    let stop = CancellationToken::new();
    let source = NodeLabels::start(&client, arguments.selectors, &stop);
    let outcome = serve(source, arguments.options).await;
    stop.cancel();
    outcome
}

fn report_failure(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("node-labels-resources: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        NodeLabelsArguments::command().debug_assert();
        let parse = |arguments: &[&str]| {
            NodeLabelsArguments::try_parse_from([&["node-labels-resources"], arguments].concat())
        };
        let arguments = parse(&[
            "--node-label",
            "a=b,c in (x,y),!d,e",
            "--node-label=node-role.kubernetes.io/worker=",
        ])
        .unwrap();
        assert_eq!(
            arguments.selectors.len(),
            2,
            "a comma does not end a selector"
        );
        for wrong in [
            &[][..],
            &["--node-label="],
            &["--node-label", "a=-b"],
            &["--node-label", "a=b", "--port=0"],
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
    }
}
