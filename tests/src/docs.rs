//! The commands that a page of the docs prints, so that scenarios run them as a reader would.

use anyhow::{Context as _, Result, ensure};

/// The commands of a page that no scenario has run yet.
pub struct Page {
    name: &'static str,
    /// Those in blocks, which begin with `$`.
    commands: Vec<String>,
    /// Those in tables, each with the words of its first cell.
    rows: Vec<(String, String)>,
}

impl Page {
    pub fn new(name: &'static str, text: &str) -> Self {
        let commands = text
            .lines()
            .filter_map(|line| line.strip_prefix("$ "))
            .map(str::to_owned)
            .collect();
        let rows = text.lines().filter_map(row).collect();
        Self {
            name,
            commands,
            rows,
        }
    }

    /// Takes the command with these words. If several have them, the one that is nothing else.
    pub fn take(&mut self, words: &str) -> Result<String> {
        let with_words: Vec<usize> = (0..self.commands.len())
            .filter(|&at| self.commands[at].contains(words))
            .collect();
        let exact = with_words
            .iter()
            .copied()
            .find(|&at| self.commands[at] == words);
        let at = exact.or_else(|| {
            with_words
                .first()
                .copied()
                .filter(|_| with_words.len() == 1)
        });
        let taken = at.map(|at| self.commands.remove(at));
        taken.with_context(|| {
            format!(
                "{} has {} commands with {words:?}",
                self.name,
                with_words.len()
            )
        })
    }

    /// Takes the commands in tables: who runs it, as the first cell says, and the command.
    pub fn take_rows(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.rows)
    }

    /// Fails if a command is left: somebody added one that no scenario runs.
    pub fn all_were_taken(&self) -> Result<()> {
        let rows = self.rows.iter().map(|(_, command)| command);
        let left: Vec<&String> = self.commands.iter().chain(rows).collect();
        ensure!(
            left.is_empty(),
            "no scenario runs these commands of {}: {left:#?}",
            self.name
        );
        Ok(())
    }
}

/// A row of a table whose second cell is nothing but a command.
fn row(line: &str) -> Option<(String, String)> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
    let command = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
    let is_command = ["kubectl ", "liqoctl "]
        .iter()
        .any(|program| command.starts_with(program));
    is_command.then(|| (cells[0].to_owned(), command.to_owned()))
}

/// The command with real names for those that the page uses.
pub fn with_names(command: &str, names: &[(&str, &str)]) -> String {
    names
        .iter()
        .fold(command.to_owned(), |command, (printed, real)| {
            command.replace(printed, real)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A page\n```console\n$ liqoctl usage\n$ liqoctl usage milan\n```\nSays `liqoctl status`.\n\
        | who | command | shows |\n|---|---|---|\n| rome | `liqoctl offer list` | offers |\n| a | `cpu` | one core |\n";

    #[test]
    fn the_commands_of_blocks_and_tables_are_found() {
        let mut page = Page::new("page", TEXT);
        assert_eq!(page.take("liqoctl usage").unwrap(), "liqoctl usage");
        assert_eq!(page.take("milan").unwrap(), "liqoctl usage milan");
        assert!(page.take("milan").is_err(), "it was taken");
        assert!(
            page.all_were_taken()
                .unwrap_err()
                .to_string()
                .contains("liqoctl offer list")
        );
        assert_eq!(
            page.take_rows(),
            [("rome".to_owned(), "liqoctl offer list".to_owned())]
        );
        assert!(page.all_were_taken().is_ok());
    }

    #[test]
    fn words_of_two_commands_choose_none() {
        let mut page = Page::new("page", "$ liqoctl usage -o json\n$ liqoctl usage milan\n");
        assert!(
            page.take("liqoctl usage")
                .unwrap_err()
                .to_string()
                .contains("has 2 commands")
        );
    }

    #[test]
    fn names_are_replaced() {
        assert_eq!(
            with_names("get -n liqo-tenant-ROME > milan.yaml", &[("ROME", "aaa")]),
            "get -n liqo-tenant-aaa > milan.yaml"
        );
    }
}
