//! The parts of `--help` besides flags: the commands by group, and examples.

use std::fmt::Write as _;

use clap::{
    Subcommand as _,
    builder::{StyledStr, Styles},
};

use super::Command;

/// Maximum width of the list of commands, in characters.
const WIDTH: usize = 80;
/// Width of the names of commands and the space around them.
const NAME_WIDTH: usize = 14;

/// The commands by what they are for. Hidden commands are in no group.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Install", &["install", "uninstall", "version"]),
    (
        "Connect clusters",
        &[
            "generate", "token", "peer", "unpeer", "discover", "approve", "refuse", "renew",
            "tether", "untether",
        ],
    ),
    (
        "Run pods in other clusters",
        &["offload", "unoffload", "move", "cost"],
    ),
    (
        "Lend and borrow",
        &[
            "offer", "policy", "contract", "usage", "receipt", "broker", "catalog",
        ],
    ),
    ("Find faults", &["status", "explain", "doctor", "test"]),
    (
        "Develop, and this program",
        &["playground", "plugin", "completion"],
    ),
];

/// The template of `liqoctl --help`.
pub fn grouped_help() -> StyledStr {
    let commands = Command::augment_subcommands(clap::Command::new("liqoctl"));
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{}", styled_heading(heading));
        for command in names
            .iter()
            .filter_map(|name| commands.find_subcommand(name))
        {
            push_command(command, &mut text);
        }
        text.push('\n');
    }
    let _ = write!(
        text,
        "{}\n{{options}}\n\nAdd --help to a command for its flags and examples.",
        styled_heading("Options")
    );
    text.into()
}

/// The last lines of a command's `--help`.
pub fn examples(lines: &[&str]) -> StyledStr {
    let mut text = styled_heading("Examples");
    for line in lines {
        let _ = write!(text, "\n  {line}");
    }
    text.into()
}

fn styled_heading(heading: &str) -> String {
    let styles = Styles::styled();
    let header = styles.get_header();
    format!("{header}{heading}:{header:#}")
}

/// The name of a command, and what it does in as many lines as that takes.
fn push_command(command: &clap::Command, text: &mut String) {
    let styles = Styles::styled();
    let literal = styles.get_literal();
    let name = command.get_name();
    let about = command.get_about().map(ToString::to_string);
    let gap = " ".repeat(NAME_WIDTH.saturating_sub(2 + name.len()));
    let _ = write!(text, "  {literal}{name}{literal:#}{gap}");
    let lines = wrapped_lines(&about.unwrap_or_default(), WIDTH - NAME_WIDTH);
    let _ = writeln!(
        text,
        "{}",
        lines.join(&format!("\n{}", " ".repeat(NAME_WIDTH)))
    );
}

/// The words of a text in lines of at most this many characters.
fn wrapped_lines(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let root = Cli::command();
        let mut shown: Vec<&str> = root
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        shown.sort_unstable();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }

    #[test]
    fn the_help_names_groups_commands_and_options_in_short_lines() {
        let help = Cli::command().render_help().to_string();
        for part in [
            "\nUsage: liqoctl [OPTIONS] <COMMAND>\n\nInstall:\n  install     Install Liqo",
            "\n\nFind faults:\n  status      Show this cluster",
            "\n\nOptions:\n",
            "-V, --version",
        ] {
            assert!(help.contains(part), "{part:?}\n{help}");
        }
        let words: Vec<&str> = help.split_whitespace().collect();
        let preview = "With json or yaml, `offload`, `unoffload` and `move` only print";
        assert!(words.join(" ").contains(preview), "{help}");
        let groups = help.split("\nOptions:").next().unwrap();
        let long = groups
            .lines()
            .skip_while(|line| *line != "Install:")
            .find(|line| line.chars().count() > WIDTH);
        assert_eq!(long, None);
    }

    #[test]
    fn a_long_text_goes_on_in_the_next_line() {
        assert_eq!(wrapped_lines("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped_lines("everything", 3), ["everything"]);
        assert_eq!(wrapped_lines("", 3), [""; 0]);
    }

    /// The examples of a command and of those below it.
    fn examples_below(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string);
        let own: Vec<String> = help
            .unwrap_or_default()
            .lines()
            .skip(1)
            .map(|line| line.trim().to_owned())
            .collect();
        let below = command.get_subcommands().flat_map(examples_below);
        own.into_iter().chain(below).collect()
    }

    #[test]
    fn every_example_is_a_command_line_that_works() {
        let examples = examples_below(&Cli::command());
        assert!(examples.len() > 10, "{examples:?}");
        for example in examples {
            let words = example.split_whitespace();
            assert!(Cli::try_parse_from(words).is_ok(), "{example}");
        }
    }

    #[test]
    fn only_the_program_itself_has_a_version_flag() {
        let error = |words: &[&str]| Cli::try_parse_from(words).unwrap_err().kind();
        assert_eq!(
            error(&["liqoctl", "-V"]),
            clap::error::ErrorKind::DisplayVersion
        );
        assert_eq!(
            error(&["liqoctl", "status", "-V"]),
            clap::error::ErrorKind::UnknownArgument
        );
    }
}
