//! Prints results: a table for people, JSON and YAML for programs. Uses colours only on a terminal.

use std::io::{IsTerminal as _, Write as _};

use clap::ValueEnum;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};
use serde::Serialize;

use crate::terminal;

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
    format_table_within(terminal::columns(), header, rows)
}

/// Between two columns of a table.
const GAP: u16 = 3;

/// Where the table has more columns than these, cells of several words get several lines. Words stay
/// whole: a table that does not fit even so is as wide as it is.
fn format_table_within(
    columns: Option<usize>,
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    let text = without_trailing_spaces(&table);
    match columns {
        Some(columns) if widest(&text) > Some(columns) => {
            fit_table(&mut table, columns);
            without_trailing_spaces(&table)
        }
        _ => text,
    }
}

fn without_trailing_spaces(table: &Table) -> String {
    let text = table.to_string();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Gives each column at least the width of its longest word, and shares the rest.
fn fit_table(table: &mut Table, columns: usize) {
    let mut longest = vec![0; table.column_count()];
    let rows = table.row_iter().chain(table.header());
    for (index, cell) in rows.flat_map(|row| row.cell_iter().enumerate()) {
        let words = cell.content();
        let words = words.split_whitespace().map(|word| word.chars().count());
        longest[index] = words.fold(longest[index], usize::max);
    }
    // The gap after the last column may be outside.
    let width = columns + usize::from(GAP);
    let least: usize = longest.iter().map(|word| word + usize::from(GAP)).sum();
    if least > width {
        return;
    }
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(width).unwrap_or(u16::MAX));
    for (column, word) in table.column_iter_mut().zip(longest) {
        let least = u16::try_from(word).unwrap_or(u16::MAX).saturating_add(GAP);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(columns: Option<usize>) -> String {
        let rows = [
            ["milan", "cpu=4, memory=8Gi", "the largest node has cpu=2"],
            ["turin", "cpu=2", "-"],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        format_table_within(columns, &["PEER", "RESOURCES", "NOTES"], rows)
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells() {
        let natural = offers(None);
        assert_eq!(natural.lines().count(), 3);
        assert_eq!(offers(Some(200)), natural);
        assert_eq!(offers(Some(20)), natural, "no word is broken");
    }

    #[test]
    fn cells_of_several_words_get_several_lines_where_the_terminal_is_narrow() {
        let fitted = offers(Some(44));
        assert!(fitted.lines().count() > 3, "{fitted}");
        assert!(
            fitted.lines().all(|line| line.chars().count() <= 44),
            "{fitted}"
        );
        for word in ["memory=8Gi", "RESOURCES", "largest", "cpu=2"] {
            assert!(fitted.contains(word), "{fitted}");
        }
    }
}
