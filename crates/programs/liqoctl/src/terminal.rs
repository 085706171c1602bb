//! The width of the terminal, and text that fits it.

use std::sync::OnceLock;

/// Columns of the terminal that shows the results.
static COLUMNS: OnceLock<usize> = OnceLock::new();

/// Fits tables and trees to the terminal from now on, if standard output is one.
pub fn fit_results() {
    if let Some((terminal_size::Width(columns), _)) =
        terminal_size::terminal_size_of(std::io::stdout())
    {
        let _ = COLUMNS.set(columns.into());
    }
}

/// The columns to which results are fitted, if there is a limit.
pub fn columns() -> Option<usize> {
    COLUMNS.get().copied()
}

/// A text that begins this many columns from the left, and whose further lines do, too.
pub fn hang(text: &str, indent: usize) -> String {
    hang_within(columns(), text, indent)
}

fn hang_within(columns: Option<usize>, text: &str, indent: usize) -> String {
    match columns {
        Some(columns) if columns > indent => {
            wrap(text, columns - indent).join(&format!("\n{}", " ".repeat(indent)))
        }
        _ => text.to_owned(),
    }
}

/// Lines of at most this many columns, as far as words allow: a word stays whole, and so does what
/// is between backticks, so that commands can be copied.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in words(text) {
        let width = shown_width(&word);
        match lines.last_mut() {
            Some(line) if used == 0 => line.push_str(&word),
            Some(line) if used + 1 + width <= columns => {
                line.push(' ');
                line.push_str(&word);
                used += 1;
            }
            _ => {
                lines.push(word);
                used = 0;
            }
        }
        used += width;
    }
    lines
}

/// The parts of a text in which no line breaks: its words, and what is between backticks.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for character in text.chars() {
        is_quoted ^= character == '`';
        match words.last_mut() {
            Some(word) if character != ' ' || is_quoted => word.push(character),
            _ => words.push(String::new()),
        }
    }
    words
}

/// How many columns a text takes: colours take none.
fn shown_width(text: &str) -> usize {
    let mut is_colour = false;
    text.chars()
        .filter(|character| {
            let begins = *character == '\u{1b}';
            let is_shown = !is_colour && !begins;
            is_colour = begins || (is_colour && *character != 'm');
            is_shown
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn lines_end_between_words() {
        assert_eq!(
            wrap("two of three nodes are ready", 12),
            ["two of three", "nodes are", "ready"]
        );
        assert_eq!(
            wrap("a-word-that-is-too-long fits", 5),
            ["a-word-that-is-too-long", "fits"]
        );
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn a_text_beside_a_word_stays_right_of_it() {
        let hung = |columns| hang_within(columns, "what is free on all nodes", 4);
        assert_eq!(hung(Some(20)), "what is free on\n    all nodes");
        assert_eq!(hung(None), hung(Some(3)), "there is no room at all");
    }

    #[test]
    fn a_command_stays_on_one_line() {
        assert_eq!(
            wrap("see `kubectl get pods -A` for more", 12),
            ["see", "`kubectl get pods -A`", "for more"]
        );
    }

    #[test]
    fn colours_take_no_room() {
        let text = format!("\u{1b}[31mno\u{1b}[0m {}", Paint::off().bad("way"));
        assert_eq!(wrap(&text, 6).len(), 1);
    }
}
