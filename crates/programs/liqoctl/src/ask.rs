//! Asks for confirmation before something is destroyed.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::bail;

/// Returns if the person agrees. Without a terminal, `--yes` is required.
pub fn require_confirmation(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        bail!("{question} There is no terminal to answer on: add --yes to confirm");
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    bail!("nothing was changed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_nothing_is_destroyed_unless_yes_was_said() {
        assert!(require_confirmation("Remove everything?", true).is_ok());
        // The test harness may run on a terminal, where this would wait for an answer.
        if !std::io::stdin().is_terminal() {
            assert!(
                require_confirmation("Remove everything?", false)
                    .unwrap_err()
                    .to_string()
                    .contains("--yes")
            );
        }
    }
}
