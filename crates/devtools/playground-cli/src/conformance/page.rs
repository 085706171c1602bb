//! The rows of docs/reference/kubectl.md about single tests: the only list of tests that do not run, or fail
//! for a known reason.

use anyhow::{Context as _, ensure};

pub const PAGE: &str = include_str!("../../../../../docs/reference/kubectl.md");

/// A row of the page: `| OUTCOME | TEST, ... | WHY |`, where each test is a part of its name in
/// backquotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub outcome: Outcome,
    pub tests: Vec<String>,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    NotRun,
    Fails,
}

impl Outcome {
    const ALL: [(&'static str, Self); 2] = [("not run", Self::NotRun), ("fails", Self::Fails)];
}

impl Row {
    /// Whether the row is about this test.
    pub fn names(&self, test: &str) -> bool {
        self.tests.iter().any(|part| test.contains(part.as_str()))
    }

    /// The row in a line; nothing if the line is something else.
    fn parse(line: &str) -> anyhow::Result<Option<Self>> {
        let cells = line
            .strip_prefix("| ")
            .and_then(|rest| rest.strip_suffix(" |"));
        let Some((first, rest)) = cells.and_then(|cells| cells.split_once(" | ")) else {
            return Ok(None);
        };
        let Some((_, outcome)) = Outcome::ALL.into_iter().find(|(text, _)| *text == first) else {
            return Ok(None);
        };
        let (tests, why) = rest
            .split_once(" | ")
            .with_context(|| format!("no reason in {line}"))?;
        let tests: Vec<_> = tests
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect();
        ensure!(
            !tests.is_empty() && !why.trim().is_empty(),
            "no test or no reason in {line}"
        );
        Ok(Some(Self {
            outcome,
            tests,
            why: why.to_owned(),
        }))
    }
}

/// The rows of a page, in its order.
pub fn rows(page: &str) -> anyhow::Result<Vec<Row>> {
    page.lines()
        .map(Row::parse)
        .filter_map(Result::transpose)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_row_has_an_outcome_tests_and_a_reason() {
        let page = "text\n| outcome | tests | why |\n|---|---|---|\n| fails | `a b`, `c` | because of `d` |\n| `x` | y |\n";
        let row = Row {
            outcome: Outcome::Fails,
            tests: vec!["a b".into(), "c".into()],
            why: "because of `d`".into(),
        };
        assert_eq!(rows(page).unwrap(), std::slice::from_ref(&row));
        assert!(row.names("[sig-x] a b [y]") && !row.names("[sig-x] a") && !row.names("d"));
        for wrong in [
            "| fails | `a` |",
            "| not run | a | why |",
            "| fails | `a` |  |",
        ] {
            assert!(rows(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_page_has_one_row_for_each_test() {
        let rows = rows(PAGE).unwrap();
        assert!(
            rows.iter().any(|row| row.outcome == Outcome::NotRun)
                && rows.iter().any(|row| row.outcome == Outcome::Fails)
        );
        let mut seen = BTreeSet::new();
        let twice = rows
            .iter()
            .flat_map(|row| &row.tests)
            .find(|test| !seen.insert(*test));
        assert_eq!(twice, None);
    }
}
