//! The common parts of the reports of `bench network` and `bench offload`: Liqo's figures next to
//! those without Liqo, notes, and leftovers. Pure.

use std::collections::BTreeMap;

use anyhow::ensure;
use liqoctl::output::{self, Paint};
use serde::Serialize;

/// The way that each bench compares with another one.
const PLAIN: &str = "plain";

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchReport {
    /// Repetitions of each measurement; the figures are medians.
    pub rounds: u16,
    pub figures: Vec<BenchFigure>,
    /// The missing figures, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Leftovers that could not be removed at the end, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchFigure {
    pub what: String,
    pub unit: &'static str,
    /// The median of each way that was measured.
    #[serde(flatten)]
    pub values: BTreeMap<&'static str, f64>,
    /// The value of the other way divided by the plain one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

impl BenchFigure {
    /// A plain value below `negligible` gives no ratio.
    pub fn new(
        what: impl Into<String>,
        unit: &'static str,
        way: &'static str,
        values: [Option<f64>; 2],
        negligible: f64,
    ) -> Self {
        let [value, plain] = values;
        let ratio = plain
            .filter(|plain| *plain >= negligible && *plain > 0.0)
            .and_then(|plain| Some(value? / plain));
        let values = [way, PLAIN]
            .into_iter()
            .zip(values)
            .filter_map(|(way, value)| Some((way, value?)))
            .collect();
        Self {
            what: what.into(),
            unit,
            values,
            ratio,
        }
    }

    fn table_row(&self, way: &str) -> Vec<String> {
        let ratio = self
            .ratio
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        vec![
            self.what.clone(),
            self.value_in_words(way),
            self.value_in_words(PLAIN),
            ratio,
        ]
    }

    fn value_in_words(&self, way: &str) -> String {
        self.values
            .get(way)
            .map_or_else(|| "-".to_owned(), |value| with_unit(*value, self.unit))
    }
}

impl BenchReport {
    /// An error if something could not be removed.
    pub fn ensure_all_removed(&self) -> anyhow::Result<()> {
        ensure!(
            self.left.is_empty(),
            "what was created for measuring could not be removed"
        );
        Ok(())
    }

    /// The figures as a table; `way` is compared with the plain one.
    pub fn render_figures(&self, way: &str, plain_title: &str) -> String {
        output::format_table(
            &["", &way.to_uppercase(), plain_title, "RATIO"],
            self.figures.iter().map(|figure| figure.table_row(way)),
        )
    }

    /// `medians of 3 rounds`, `1 round`.
    pub fn rounds_in_words(&self) -> String {
        match self.rounds {
            1 => "1 round".to_owned(),
            rounds => format!("medians of {rounds} rounds"),
        }
    }

    /// The lines after the tables.
    pub fn remarks(&self, paint: Paint) -> impl Iterator<Item = String> {
        let notes = self
            .notes
            .iter()
            .map(move |note| paint.faint(&format!("Note: {note}.")));
        notes.chain(
            self.left
                .iter()
                .map(move |left| format!("{} {left}", paint.bad("LEFT"))),
        )
    }
}

/// A value with its unit, as tables show it.
pub fn with_unit(value: f64, unit: &str) -> String {
    let digits = if value < 100.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    };
    format!("{digits} {unit}").trim_end().to_owned()
}
