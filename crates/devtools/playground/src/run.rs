//! Runs other programs; their output becomes part of the error when they fail.

use std::{ffi::OsStr, process::Stdio};

use tokio::{io::AsyncWriteExt, process::Command};

use crate::error::{Error, Result};

/// Runs a program to its end and returns what it printed.
pub(crate) async fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    run_with_input(program, arguments, "").await
}

/// Like [`run`], with text on its standard input.
pub(crate) async fn run_with_input<S: AsRef<OsStr>>(
    program: &str,
    arguments: &[S],
    input: &str,
) -> Result<String> {
    let failed = |source| Error::Run {
        program: program.to_owned(),
        source,
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading its input explains that by its exit status.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let arguments: Vec<_> = arguments
        .iter()
        .map(|argument| argument.as_ref().to_string_lossy())
        .collect();
    Err(Error::Command {
        command: format!("{program} {}", arguments.join(" ")),
        status: output.status.to_string(),
        output: last_lines(&String::from_utf8_lossy(&output.stderr), 5),
    })
}

/// The end of a text, as one line.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}
