//! Comparing what a command prints about two pods that should look the same.
//!
//! ```text
//!   rows.txt ---> [Section] ---> command here  ---> [normalized] --+
//!                           \--> command there ---> [normalized] --+--> equal, or listed as different in docs/kubectl.md
//! ```

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

/// Commands that run one after another.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    /// Whether it runs after all other sections.
    pub is_alone: bool,
    pub rows: Vec<Row>,
}

/// A command whose output is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    /// A line for bash.
    pub line: String,
}

/// Reads sections: `== NAME` or `== NAME, alone`, then `ROW: LINE` for each row. Lines that begin with `#` are comments.
pub fn sections(text: &str) -> Result<Vec<Section>> {
    let (mut sections, mut names) = (Vec::<Section>::new(), BTreeSet::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(heading) = line.strip_prefix("== ") {
            let (name, is_alone) = heading.strip_suffix(", alone").map_or((heading, false), |name| (name, true));
            sections.push(Section { name: name.to_owned(), is_alone, rows: Vec::new() });
            continue;
        }
        let (name, command) = line.split_once(": ").with_context(|| format!("not a row: {line}"))?;
        ensure!(names.insert(name), "two rows are called {name}");
        let section = sections.last_mut().with_context(|| format!("{name} is in no section"))?;
        section.rows.push(Row { name: name.to_owned(), line: command.to_owned() });
    }
    Ok(sections)
}

/// The names of rows in the first column of all tables of a page: what it lists as different.
pub fn listed(page: &str) -> BTreeSet<String> {
    let first_cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    first_cells.flat_map(|cell| cell.split('`').step_by(2)).map(str::to_owned).filter(|name| !name.is_empty()).collect()
}

/// Replaces what differs between two pods of the same node, too: the namespace, addresses, times, IDs, generated names and the width of
/// columns.
pub struct Normalizer(Vec<(Regex, &'static str)>);

impl Normalizer {
    /// For pods in this namespace, which run on one of these nodes.
    pub fn new(namespace: &str, nodes: &[&str]) -> Result<Self> {
        let namespace = format!(r"(\b|_){}\b", regex::escape(namespace));
        let nodes = nodes.iter().map(|node| regex::escape(node)).collect::<Vec<_>>().join("|");
        let nodes = format!(r"\b({nodes})\b");
        let rules = [
            (namespace.as_str(), "${1}NAMESPACE"),
            (&nodes, "NODE"),
            (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UID"),
            (r"\b[0-9a-f]{64}\b", "HASH"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "TIME"),
            (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
            (r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "ADDRESS"),
            (r"\b[0-9a-f]{1,4}(:[0-9a-f]{0,4}){2,7}\b", "ADDRESS"),
            // The age in the last column of a table, if it is whole minutes.
            (r"(?m)\s\d+m$", " AGE"),
            (r"(?m)^E\d{4} .*Unknown stream id \d, discarding message\n", ""),
            // kubectl attached too late: the program had ended.
            (r"(?m)^warning: couldn't attach to pod/.*, falling back to streaming logs: .*\n", ""),
            (r"(\b|<)(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b( ago)?|<invalid>", "AGE"),
            (r"\b([a-z][a-z0-9-]*)-[bcdfghjklmnpqrstvwxz2456789]{8,10}\b", "$1-TEMPLATE"),
            (r"\b([a-z][a-zA-Z0-9-]*)-[bcdfghjklmnpqrstvwxz2456789]{5}\b", "$1-NAME"),
            (r"127\.0\.0\.1:\d+|ADDRESS:\d+ ->|localhost:\d+", "PORT"),
            (r"[ \t]+", " "),
        ];
        rules.iter().map(|(pattern, with)| Ok((Regex::new(pattern)?, *with))).collect::<Result<_>>().map(Self)
    }

    pub fn normalize(&self, output: &str) -> String {
        let replaced =
            self.0.iter().fold(output.to_owned(), |text, (pattern, with)| pattern.replace_all(&text, *with).into_owned());
        replaced.lines().map(str::trim).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_belong_to_sections_and_have_names_of_their_own() {
        let read = sections("# a\n== one\na: k get pod: b\n\n== two, alone\nb: true\n").unwrap();
        let row = |name: &str, line: &str| Row { name: name.to_owned(), line: line.to_owned() };
        assert_eq!(read[0], Section { name: "one".to_owned(), is_alone: false, rows: vec![row("a", "k get pod: b")] });
        assert_eq!(read[1], Section { name: "two".to_owned(), is_alone: true, rows: vec![row("b", "true")] });
        assert!(sections("a: true\n").is_err(), "a row without a section");
        assert!(sections("== one\na: true\na: false\n").is_err(), "two rows with the same name");
    }

    #[test]
    fn the_first_column_of_a_page_lists_rows() {
        let page = "text with `a`\n| row | why |\n|---|---|\n| `a`, `b-c` | because of `d` |\n| plain | `e` |\n";
        assert_eq!(listed(page), BTreeSet::from(["a".to_owned(), "b-c".to_owned()]));
    }

    #[test]
    fn what_differs_between_any_two_pods_is_replaced() {
        let normalizer = Normalizer::new("there", &["milan"]).unwrap();
        let same = [
            ("web-5d4f8c7b9d-x2k4z 1/1 Running 0 12s 10.244.0.7 milan", "web-TEMPLATE-NAME 1/1 Running 0 AGE ADDRESS NODE"),
            ("by-hand-7xqzd   1/1  2m30s", "by-hand-NAME 1/1 AGE"),
            ("web.there.svc.cluster.local", "web.NAMESPACE.svc.cluster.local"),
            ("at 2026-11-23T14:50:01.123456789Z", "at TIME"),
            ("containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "containerd://HASH"),
            ("unhealthy_there(x) fd64::13 fd00:10:244::8", "unhealthy_NAMESPACE(x) ADDRESS ADDRESS"),
            ("web 1/1 4m", "web 1/1 AGE"),
            ("restarted 3 (14s ago)", "restarted 3 (AGE)"),
            ("warning: couldn't attach to pod/once, falling back to streaming logs: Internal error\nran once", "ran once"),
        ];
        for (output, expected) in same {
            assert_eq!(normalizer.normalize(output), expected);
        }
        // Words of a status stay.
        let kept = "Running CrashLoopBackOff exit code 137 main-host all done";
        assert_eq!(normalizer.normalize(kept), kept);
    }
}
