//! The page of all commands and flags, from what `--help` prints.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use super::{GENERATED, cell_value, table_cell};
use crate::cli::Cli;

/// The page `docs/reference/commands.md`.
pub fn commands_page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = format!(
        "# Commands of liqoctl\n{GENERATED}\n\nEvery command with its flags, as `liqoctl COMMAND --help` prints them.\n\n\
         ## Flags of all commands\n"
    );
    page.push_str(&table_of_flags(&root, Command::get_arguments(&root)));
    for command in shown_commands(&root) {
        add_command(command, &mut page);
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn shown_commands(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// Adds a command, or those below it.
fn add_command(command: &Command, page: &mut String) {
    if shown_commands(command).next().is_some() {
        for inner in shown_commands(command) {
            add_command(inner, page);
        }
        return;
    }
    let name = command.get_bin_name().unwrap_or_default();
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = write!(page, "\n## {name}\n{about}.\n```text\n{usage}\n```\n");
    let own = command.get_arguments().filter(|flag| !flag.is_global_set());
    page.push_str(&table_of_flags(command, own));
}

fn table_of_flags<'a>(command: &Command, flags: impl Iterator<Item = &'a Arg>) -> String {
    let mut table = String::new();
    for flag in flags.filter(|flag| !flag.is_hide_set() && is_documented(flag)) {
        if table.is_empty() {
            table.push_str("| flag | what it does |\n|---|---|\n");
        }
        let _ = writeln!(
            table,
            "| `{}` | {} |",
            name_of_flag(flag),
            description_of_flag(command, flag)
        );
    }
    table
}

/// Every command has `--help`.
fn is_documented(flag: &Arg) -> bool {
    !matches!(flag.get_id().as_str(), "help" | "version")
}

fn name_of_flag(flag: &Arg) -> String {
    let value = flag
        .get_value_names()
        .filter(|_| flag.get_action().takes_values())
        .map(|names| names.join(" "))
        .unwrap_or_default();
    match (flag.get_short(), flag.get_long()) {
        (_, None) => value,
        (None, Some(long)) => format!("--{long} {value}").trim_end().to_owned(),
        (Some(short), Some(long)) => format!("-{short}, --{long} {value}").trim_end().to_owned(),
    }
}

fn description_of_flag(command: &Command, flag: &Arg) -> String {
    let help = flag.get_long_help().or(flag.get_help());
    let mut text = table_cell(&help.map(ToString::to_string).unwrap_or_default());
    let takes_values = flag.get_action().takes_values();
    let values: Vec<String> = flag
        .get_possible_values()
        .iter()
        .filter(|value| takes_values && !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        let _ = write!(text, ". One of {}", values.join(", "));
    }
    let defaults: Vec<String> = flag
        .get_default_values()
        .iter()
        .filter(|_| takes_values && !flag.is_hide_default_value_set())
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if !defaults.is_empty() {
        let _ = write!(text, ". Default: `{}`", cell_value(&defaults.join(",")));
    }
    if flag.is_required_set() && command.get_name() != "liqoctl" {
        text.push_str(". Required");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_flags_have_their_place() {
        let page = commands_page();
        for command in ["install", "peer", "offload namespace", "doctor", "status"] {
            assert!(
                page.contains(&format!("\n## liqoctl {command}\n")),
                "{command}"
            );
        }
        assert!(!page.contains("generate crds"), "it is for developers");
        assert!(page.contains("| `--kubeconfig "), "flags of all commands");
    }
}
