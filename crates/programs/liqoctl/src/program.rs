//! The common part of the programs `liqoctl` and `liqo-playground`: logging, TLS, the async
//! runtime, and the output of a failure.

use std::process::ExitCode;

use anyhow::anyhow;

/// Runs a command and prints its failure.
pub fn run_program(
    program: &str,
    verbose: bool,
    command: impl Future<Output = anyhow::Result<()>>,
) -> ExitCode {
    start_logging(verbose);
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        return print_failure(
            program,
            &anyhow!("a second TLS provider is linked in; this is a fault of the build"),
        );
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return print_failure(program, &error.into()),
    };
    match runtime.block_on(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print_failure(program, &error),
    }
}

/// Prints why a program failed.
pub fn print_failure(program: &str, error: &anyhow::Error) -> ExitCode {
    eprintln!("{program}: {}", error_sentence(error));
    ExitCode::FAILURE
}

/// The error and its causes. A cause that an earlier part already contains is left out.
fn error_sentence(error: &anyhow::Error) -> String {
    error
        .chain()
        .fold(String::new(), |text, cause| match cause.to_string() {
            cause if text.is_empty() => cause,
            cause if text.contains(&cause) => text,
            cause => format!("{text}: {cause}"),
        })
}

fn start_logging(verbose: bool) {
    let default = if verbose {
        "info,liqoctl=debug,kube=debug"
    } else {
        "off"
    };
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_sentence_that_repeats_nothing() {
        let error = anyhow!("no such file")
            .context("cannot read x: no such file")
            .context("cannot start");
        assert_eq!(
            error_sentence(&error),
            "cannot start: cannot read x: no such file"
        );
    }
}
