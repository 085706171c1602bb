//! `liqoctl status --watch`: shows the status again whenever it changes.

use std::{io::IsTerminal as _, time::Duration};

use jiff::Timestamp;

use super::{StatusReport, collect};
use crate::{
    cluster::Cluster,
    output::{self, OutputFormat},
};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Shows the status until the user interrupts it, or the reader closes the output. A failure after
/// the first look is shown in the place of the status, and the next look follows.
pub async fn watch_status(
    cluster: &Cluster,
    namespace: Option<&str>,
    format: OutputFormat,
    show: impl Fn(StatusReport) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let screen = Screen {
        is_terminal: std::io::stdout().is_terminal(),
        format,
    };
    let mut shown = show(collect(cluster, namespace).await?)?;
    while output::write_while_open(&screen.draw(&shown, Timestamp::now()))? {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let text = match collect(cluster, namespace).await {
                Ok(found) => show(found)?,
                Err(error) => format!("{error:#}"),
            };
            if text != shown {
                shown = text;
                break;
            }
        }
    }
    Ok(())
}

struct Screen {
    is_terminal: bool,
    format: OutputFormat,
}

impl Screen {
    /// On a terminal the text replaces the one before; elsewhere it follows as a block of its own.
    fn draw(&self, text: &str, now: Timestamp) -> String {
        let clear = if self.is_terminal {
            "\u{1b}[H\u{1b}[2J"
        } else {
            ""
        };
        let head = match self.format {
            OutputFormat::Table => format!("# {}\n", now.strftime("%FT%TZ")),
            OutputFormat::Json => String::new(),
            OutputFormat::Yaml => "---\n".to_owned(),
        };
        format!("{clear}{head}{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_redrawn_and_a_file_gets_blocks() {
        let text = |is_terminal, format| {
            Screen {
                is_terminal,
                format,
            }
            .draw("rome", Timestamp::UNIX_EPOCH)
        };
        assert_eq!(
            text(true, OutputFormat::Table),
            "\u{1b}[H\u{1b}[2J# 1970-01-01T00:00:00Z\nrome"
        );
        assert_eq!(
            text(false, OutputFormat::Table),
            "# 1970-01-01T00:00:00Z\nrome"
        );
        assert_eq!(
            (
                text(false, OutputFormat::Json).as_str(),
                text(false, OutputFormat::Yaml).as_str()
            ),
            ("rome", "---\nrome")
        );
    }
}
