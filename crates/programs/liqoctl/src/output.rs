//! Prints results: a table for people, JSON and YAML for programs. Uses colours only on a terminal.

use std::io::{IsTerminal as _, Write as _};

use clap::ValueEnum;
use serde::Serialize;

/// How a result is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Prints a result as a document, or as the text that `table` returns.
pub fn print_result<T: Serialize>(
    format: OutputFormat,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    write_out(&format_result(format, value, table)?)
}

/// A result as a document, or the text that `table` returns.
pub fn format_result<T: Serialize>(
    format: OutputFormat,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    Ok(match format {
        OutputFormat::Table => table(value),
        OutputFormat::Json => serde_json::to_string_pretty(value)?,
        OutputFormat::Yaml => to_yaml(value)?,
    })
}

/// Prints objects as `kubectl apply` reads them: a list in JSON, else documents in YAML.
pub fn print_objects<T: Serialize>(format: OutputFormat, objects: &[T]) -> anyhow::Result<()> {
    if format == OutputFormat::Json {
        let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        return write_out(&serde_json::to_string_pretty(&list)?);
    }
    let documents: Vec<_> = objects.iter().map(to_yaml).collect::<Result<_, _>>()?;
    write_out(&documents.join("---\n"))
}

/// `there is milan`, `there are milan, turin`: names that the user could have meant.
pub fn existing_names<S: AsRef<str>>(names: &[S]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!(
        "there {verb} {}",
        names
            .iter()
            .map(AsRef::as_ref)
            .collect::<Vec<_>>()
            .join(", ")
    )
}

/// Writes to standard output. It is no error if the reader closes it (`| head`).
pub fn write_out(text: &str) -> anyhow::Result<()> {
    write_while_open(text).map(drop)
}

/// Writes to standard output; false if the reader has closed it.
pub fn write_while_open(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// A peer's text without control characters, which could change the terminal.
pub fn strip_control_characters(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .collect()
}

/// A time in RFC 3339 without fractions of a second. Any other text stays.
pub fn to_the_second(time: &str) -> String {
    let second = time
        .parse::<jiff::Timestamp>()
        .and_then(|time| jiff::Timestamp::from_second(time.as_second()));
    second.map_or_else(|_| time.to_owned(), |time| time.to_string())
}

/// YAML of any value.
pub fn to_yaml<T: Serialize>(value: &T) -> anyhow::Result<String> {
    Ok(serde_saphyr::to_string(value)?)
}

/// Colours, or their absence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Colours if standard output is a terminal and `NO_COLOR` is not set.
    pub fn for_stdout() -> Self {
        Self {
            on: std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        }
    }

    /// No colours.
    pub fn off() -> Self {
        Self { on: false }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    /// Good news.
    pub fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Bad news.
    pub fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Not known yet.
    pub fn unsure(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// A heading.
    pub fn strong(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Less important.
    pub fn faint(self, text: &str) -> String {
        self.wrap("2", text)
    }
}

/// A table without lines, as kubectl prints them.
pub fn format_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let text = table.to_string();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}
