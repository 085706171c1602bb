//! `tests/scenarios-by-turns.md`: long scenarios, of which `.ci/run` runs a fifth each time.

use anyhow::{Context as _, Result, ensure};

/// Chooses one turn. Without it, all scenarios run.
pub const VARIABLE: &str = "LIQO_TEST_TURN";
/// Number of turns.
pub const TURNS: u8 = 5;
const PAGE: &str = include_str!("../scenarios-by-turns.md");
/// The header of the table and the line below it.
const HEADER_LINES: usize = 2;

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Below [`TURNS`].
    pub turn: u8,
    /// Such as `attacks::a_scenario`.
    pub scenario: String,
    /// The tests that prove its rules in each run: places and names, each in backquotes.
    pub proofs: String,
}

/// All lines of the table.
pub fn table() -> Result<Vec<Turn>> {
    let lines = PAGE
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(HEADER_LINES);
    lines
        .map(|line| {
            row(line).with_context(|| format!("not turn, scenario, proofs and witness: {line}"))
        })
        .collect()
}

fn row(line: &str) -> Option<Turn> {
    let cells: Vec<&str> = line
        .strip_prefix('|')?
        .strip_suffix('|')?
        .split('|')
        .map(str::trim)
        .collect();
    let [turn, scenario, proofs, _] = cells.as_slice() else {
        return None;
    };
    let turn = turn.parse().ok().filter(|turn| *turn < TURNS)?;
    Some(Turn {
        turn,
        scenario: scenario.trim_matches('`').to_owned(),
        proofs: (*proofs).to_owned(),
    })
}

/// The scenarios of the table that wait for another turn, as the environment chooses it.
pub fn waiting() -> Result<Vec<String>> {
    match std::env::var(VARIABLE) {
        Ok(text) => waiting_in(&text),
        Err(_) => Ok(Vec::new()),
    }
}

fn waiting_in(turn: &str) -> Result<Vec<String>> {
    let number = turn.parse().unwrap_or(TURNS);
    ensure!(
        number < TURNS,
        "the variable {VARIABLE}: {turn:?} is no number from 0 to {}",
        TURNS - 1
    );
    Ok(table()?
        .into_iter()
        .filter(|row| row.turn != number)
        .map(|row| row.scenario)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_turn_a_scenario_and_what_proves_it() {
        let turn = row("| 2 | `a::b` | `crates/x` `y` | packets |").unwrap();
        assert_eq!(
            turn,
            Turn {
                turn: 2,
                scenario: "a::b".into(),
                proofs: "`crates/x` `y`".into()
            }
        );
        assert_eq!(row("| 5 | `a::b` | `crates/x` `y` | packets |"), None);
        assert_eq!(row("| 2 | `a::b` | packets |"), None);
    }

    #[test]
    fn each_scenario_of_the_table_has_exactly_one_turn() {
        let all = table().unwrap().len();
        let ran: usize = (0..TURNS)
            .map(|turn| all - waiting_in(&turn.to_string()).unwrap().len())
            .sum();
        assert_eq!(ran, all);
        assert!(waiting_in("5").is_err() && waiting_in("all").is_err());
    }
}
