//! The table of attacks in docs/reference/attacks.md.

use std::fmt;

const PAGE: &str = include_str!("../../docs/reference/attacks.md");
const HEADING: &str = "## Attacks and their tests";
/// The header of the table and the line below it.
const HEADER_LINES: usize = 2;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attack {
    pub attacker: String,
    /// What the attacker tries.
    pub attack: String,
    /// The file of a scenario, or the folder of the crate with the unit test.
    pub place: String,
    /// The function.
    pub test: String,
}

impl Attack {
    /// The name of its scenario, such as `attacks::a_scenario`; `None` for a unit test.
    pub fn scenario(&self) -> Option<String> {
        let file = self
            .place
            .strip_prefix("tests/scenarios/")?
            .strip_suffix(".rs")?;
        let module = file.split('/').next()?;
        Some(format!("{module}::{}", self.test))
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} ({} {})",
            self.attacker, self.attack, self.place, self.test
        )
    }
}

/// All lines of the table. The error is the first line that cannot be read.
pub fn table() -> Result<Vec<Attack>, String> {
    parse(PAGE)
}

fn parse(page: &str) -> Result<Vec<Attack>, String> {
    let (_, part) = page
        .split_once(HEADING)
        .ok_or_else(|| format!("the page has no heading {HEADING}"))?;
    let lines = part
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(HEADER_LINES);
    lines
        .map(|line| row(line).ok_or_else(|| format!("not attacker, attack, path and test: {line}")))
        .collect()
}

fn row(line: &str) -> Option<Attack> {
    let cells: Vec<&str> = line
        .strip_prefix('|')?
        .strip_suffix('|')?
        .split('|')
        .map(str::trim)
        .collect();
    let [attacker, attack, test] = cells.as_slice() else {
        return None;
    };
    let (place, test) = test
        .strip_prefix('`')?
        .strip_suffix('`')?
        .split_once("` `")?;
    Some(Attack {
        attacker: (*attacker).into(),
        attack: (*attack).into(),
        place: place.into(),
        test: test.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_names_a_scenario_or_a_unit_test() {
        let page = "x\n## Attacks and their tests\nText.\n\n| attacker | attack | test |\n|---|---|---|\n\
            | stranger | guess a token | `tests/scenarios/attacks/strangers.rs` `a_wrong_token_is_refused` |\n\
            | consumer | claim an ID | `crates/peering` `an_id_is_refused` |\n";
        let table = parse(page).unwrap();
        assert_eq!(
            table[0].scenario().as_deref(),
            Some("attacks::a_wrong_token_is_refused")
        );
        assert_eq!(
            (table[1].attack.as_str(), table[1].place.as_str()),
            ("claim an ID", "crates/peering")
        );
        assert_eq!(table[1].scenario(), None);
        assert!(
            parse(&page.replace("`crates/peering` ", ""))
                .unwrap_err()
                .contains("claim an ID")
        );
        assert!(parse("nothing").is_err());
    }

    #[test]
    fn the_table_of_attacks_on_the_page_is_read() {
        assert!(table().unwrap().len() > 100);
    }
}
