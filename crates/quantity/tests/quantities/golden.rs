//! Compares quantities line by line with the results of Kubernetes' own implementation.

use std::collections::BTreeMap;

use liqo_quantity::Quantity;

const VECTORS: &str = include_str!("golden/quantities.tsv");

fn q(text: &str) -> Result<Quantity, String> {
    text.parse()
        .map_err(|error| format!("{text} is refused: {error}"))
}

/// Checks one line. An error describes the difference.
fn check(fields: &[&str]) -> Result<(), String> {
    let equal = |what: &str, have: String, want: &str| {
        if have == want {
            Ok(())
        } else {
            Err(format!("{what} is {have}, not {want}"))
        }
    };
    match *fields {
        ["parse", text, canonical, nanos, value, milli_value] => {
            let quantity = q(text)?;
            equal("text", quantity.to_string(), canonical)?;
            equal("value in nano-units", quantity.nanos().to_string(), nanos)?;
            if value != "-" {
                equal("value", quantity.value().to_string(), value)?;
                equal(
                    "value in thousandths",
                    quantity.milli_value().to_string(),
                    milli_value,
                )?;
            }
            equal("text read again", q(canonical)?.to_string(), canonical)
        }
        ["refuse", text] => match text.parse::<Quantity>() {
            Ok(quantity) => Err(format!("read as {quantity}")),
            Err(_) => Ok(()),
        },
        ["add", left, right, sum] => equal("sum", (q(left)? + q(right)?).to_string(), sum),
        ["sub", left, right, difference] => {
            equal("difference", (q(left)? - q(right)?).to_string(), difference)
        }
        ["compare", left, right, order] => {
            equal("order", (q(left)?.cmp(&q(right)?) as i8).to_string(), order)
        }
        _ => Err("no such kind of line".to_owned()),
    }
}

#[test]
fn every_quantity_is_the_same_as_in_kubernetes() {
    let mut checked = BTreeMap::new();
    let mut differences = Vec::new();
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        *checked.entry(fields[0]).or_insert(0) += 1;
        if let Err(difference) = check(&fields) {
            differences.push(format!("{line}: {difference}"));
        }
    }
    assert!(
        differences.is_empty(),
        "{} lines differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    for kind in ["parse", "refuse", "add", "sub", "compare"] {
        assert!(
            checked[kind] >= 30,
            "only {} lines of {kind}",
            checked[kind]
        );
    }
}
