//! Comparing what a command prints about two pods that should look the same.
//!
//! ```text
//!   rows.txt ---> [Section] ---> command here  ---> [normalized] --+
//!                           \--> command there ---> [normalized] --+--> equal, or listed as different in docs/reference/kubectl.md
//! ```

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use regex::Regex;

/// Commands that run one after another.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    /// Whether it begins when the pods that end have ended.
    pub is_late: bool,
    /// Whether one process may answer several of its rows, see [`grouped`].
    pub is_joined: bool,
    /// Whether it runs after the sections that do not say so.
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

/// Reads sections: `== NAME`, which `, late`, `, joined` and `, alone` may follow, then `ROW: LINE`
/// for each row. Lines that begin with `#` are comments.
pub fn sections(text: &str) -> Result<Vec<Section>> {
    let (mut sections, mut names) = (Vec::<Section>::new(), BTreeSet::new());
    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(heading) = line.strip_prefix("== ") {
            sections.push(section(heading)?);
            continue;
        }
        let (name, command) = line
            .split_once(": ")
            .with_context(|| format!("not a row: {line}"))?;
        ensure!(names.insert(name), "two rows are called {name}");
        let section = sections
            .last_mut()
            .with_context(|| format!("{name} is in no section"))?;
        section.rows.push(Row {
            name: name.to_owned(),
            line: command.to_owned(),
        });
    }
    Ok(sections)
}

fn section(heading: &str) -> Result<Section> {
    let mut words = heading.split(", ");
    let name = words.next().unwrap_or_default().to_owned();
    let mut section = Section {
        name,
        is_late: false,
        is_joined: false,
        is_alone: false,
        rows: Vec::new(),
    };
    for word in words {
        match word {
            "late" => section.is_late = true,
            "joined" => section.is_joined = true,
            "alone" => section.is_alone = true,
            _ => bail!("a section is late, joined or alone, not {word}"),
        }
    }
    Ok(section)
}

/// Follows the output of each row of a joined line.
const END_OF_ROW: &str = "\n==row==\n";

/// What rows have in common that one process can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joint {
    JsonPath,
    GoTemplate,
    Exec,
    Describe,
}

impl Joint {
    const ALL: [Self; 4] = [Self::JsonPath, Self::GoTemplate, Self::Exec, Self::Describe];

    fn prefix(self) -> &'static str {
        match self {
            Self::JsonPath => "k get pod main -o jsonpath=",
            Self::GoTemplate => "k get pod main -o go-template=",
            Self::Exec => "k exec main -c main -- ",
            Self::Describe => "k describe pod main | ",
        }
    }

    /// What only this row has, if it means the same in a joined line.
    fn rest(self, row: &Row) -> Option<&str> {
        let rest = row.line.strip_prefix(self.prefix())?;
        match self {
            Self::JsonPath | Self::GoTemplate => template(rest),
            Self::Exec => is_plain(rest).then_some(rest),
            // The same shell runs it.
            Self::Describe => Some(rest),
        }
    }

    /// A line that prints what each of the rows prints, with [`END_OF_ROW`] after each.
    fn line(self, rests: &[&str]) -> String {
        let marker = END_OF_ROW.escape_default();
        let end = format!("c=$?; [ $c = 0 ] || echo \"exit code $c\"; printf '{marker}'");
        let each = |before: &str, after: &str| {
            rests
                .iter()
                .map(|rest| format!("{before}{rest}{after}"))
                .collect::<Vec<_>>()
                .concat()
        };
        let prefix = self.prefix();
        match self {
            Self::JsonPath => format!(
                "{prefix}{}",
                quoted(&each("", &format!("{{\"{marker}\"}}")))
            ),
            Self::GoTemplate => format!(
                "{prefix}{}",
                quoted(&each("", &format!("{{{{\"{marker}\"}}}}")))
            ),
            // The script is part of the URL of a request, so it should be short: hence the
            // function.
            Self::Exec => format!(
                "{prefix}sh -c {}",
                quoted(&format!("e() {{ {end}; }}\n{}", each("(", ") 2>&1; e\n")))
            ),
            Self::Describe => {
                format!(
                    "described=$(k describe pod main) && {{\n{}}}",
                    each("(", &format!(") <<<\"$described\"; {end}\n"))
                )
            }
        }
    }
}

/// The rows that one process can answer together, at the place of the first, and the other rows one
/// by one.
pub fn grouped(rows: Vec<Row>) -> Vec<Vec<Row>> {
    let mut groups = Vec::<(Option<Joint>, Vec<Row>)>::new();
    for row in rows {
        let joint = Joint::ALL
            .into_iter()
            .find(|joint| joint.rest(&row).is_some());
        match groups
            .iter_mut()
            .find(|group| joint.is_some() && group.0 == joint)
        {
            Some((_, group)) => group.push(row),
            None => groups.push((joint, vec![row])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// One line for all rows of a group, whose output [`split`] takes apart. None if they cannot be
/// joined.
pub fn joined(rows: &[Row]) -> Option<String> {
    Joint::ALL.into_iter().find_map(|joint| {
        let rests = rows
            .iter()
            .map(|row| joint.rest(row))
            .collect::<Option<Vec<_>>>()?;
        Some(joint.line(&rests))
    })
}

/// The outputs of so many rows in that of a joined line. None if it failed or did not answer all of
/// them.
pub fn split(output: &str, rows: usize) -> Option<Vec<&str>> {
    let mut parts: Vec<_> = output.split(END_OF_ROW).collect();
    // What follows the last row comes from kubectl, for example that it failed.
    let is_complete = parts.pop()?.is_empty() && parts.len() == rows;
    is_complete.then_some(parts)
}

/// The text of a template that is one word in single quotes, or one that needs no quotes.
fn template(word: &str) -> Option<&str> {
    let is_bare = |word: &str| {
        word.chars()
            .all(|c| c.is_ascii_alphanumeric() || "{}._".contains(c))
    };
    match word.strip_prefix('\'') {
        Some(rest) => rest.strip_suffix('\'').filter(|text| !text.contains('\'')),
        None => is_bare(word).then_some(word),
    }
}

/// Whether every shell takes this for the same words: outside single quotes nothing has a meaning.
fn is_plain(command: &str) -> bool {
    let parts: Vec<_> = command.split('\'').collect();
    let is_harmless = |part: &&str| {
        part.chars()
            .all(|c| c.is_ascii_alphanumeric() || " ./+%:_-".contains(c))
    };
    parts.len() % 2 == 1 && parts.iter().step_by(2).all(is_harmless)
}

/// The text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The names of rows in the first column of all tables of a page: what it lists as different.
pub fn listed(page: &str) -> BTreeSet<String> {
    let first_cells = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    first_cells
        .flat_map(|cell| cell.split('`').step_by(2))
        .map(str::to_owned)
        .filter(|name| !name.is_empty())
        .collect()
}

/// Replaces what differs between two pods of the same node, too: the namespace, addresses, times,
/// IDs, generated names and the width of columns.
pub struct Normalizer(Vec<(Regex, &'static str)>);

impl Normalizer {
    /// For pods in this namespace, which run on one of these nodes.
    pub fn new(namespace: &str, nodes: &[&str]) -> Result<Self> {
        let namespace = format!(r"(\b|_){}\b", regex::escape(namespace));
        let nodes = nodes
            .iter()
            .map(|node| regex::escape(node))
            .collect::<Vec<_>>()
            .join("|");
        let nodes = format!(r"\b({nodes})\b");
        let rules = [
            (namespace.as_str(), "${1}NAMESPACE"),
            (&nodes, "NODE"),
            (
                r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
                "UID",
            ),
            (r"\b[0-9a-f]{64}\b", "HASH"),
            (
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
                "TIME",
            ),
            (
                r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}",
                "TIME",
            ),
            (r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "ADDRESS"),
            (r"\b[0-9a-f]{1,4}(:[0-9a-f]{0,4}){2,7}\b", "ADDRESS"),
            // The age in the last column of a table, if it is whole minutes.
            (r"(?m)\s\d+m$", " AGE"),
            (
                r"(?m)^E\d{4} .*Unknown stream id \d, discarding message\n",
                "",
            ),
            // kubectl attached too late: the program had ended.
            (
                r"(?m)^warning: couldn't attach to pod/.*, falling back to streaming logs: .*\n",
                "",
            ),
            (
                r"\b([a-z][a-z0-9-]*)-[bcdfghjklmnpqrstvwxz2456789]{8,10}\b",
                "$1-TEMPLATE",
            ),
            (
                r"\b([a-z][a-zA-Z0-9-]*)-[bcdfghjklmnpqrstvwxz2456789]{5}\b",
                "$1-NAME",
            ),
            // After the names, which may end like an age.
            (
                r"(\b|<)(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b( ago)?|<invalid>",
                "AGE",
            ),
            (r"127\.0\.0\.1:\d+|ADDRESS:\d+ ->|localhost:\d+", "PORT"),
            (r"[ \t]+", " "),
        ];
        rules
            .iter()
            .map(|(pattern, with)| Ok((Regex::new(pattern)?, *with)))
            .collect::<Result<_>>()
            .map(Self)
    }

    pub fn normalize(&self, output: &str) -> String {
        let replaced = self
            .0
            .iter()
            .fold(output.to_owned(), |text, (pattern, with)| {
                pattern.replace_all(&text, *with).into_owned()
            });
        replaced
            .lines()
            .map(str::trim)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn row(name: &str, line: &str) -> Row {
        Row {
            name: name.to_owned(),
            line: line.to_owned(),
        }
    }

    #[test]
    fn rows_belong_to_sections_and_have_names_of_their_own() {
        let read = sections(
            "# a\n== one\na: k get pod: b\n\n== two, late, joined\nb: true\n== three, alone\n",
        )
        .unwrap();
        let (one, two, three) = (&read[0], &read[1], &read[2]);
        assert_eq!(
            (one.name.as_str(), two.name.as_str(), three.name.as_str()),
            ("one", "two", "three")
        );
        assert_eq!(
            (&one.rows, &two.rows),
            (&vec![row("a", "k get pod: b")], &vec![row("b", "true")])
        );
        assert_eq!([one.is_late, one.is_joined, one.is_alone], [false; 3]);
        assert_eq!(
            [two.is_late, two.is_joined, two.is_alone],
            [true, true, false]
        );
        assert_eq!(
            [three.is_late, three.is_joined, three.is_alone],
            [false, false, true]
        );
        assert!(sections("a: true\n").is_err(), "a row without a section");
        assert!(
            sections("== one\na: true\na: false\n").is_err(),
            "two rows with the same name"
        );
        assert!(
            sections("== one, soon\n").is_err(),
            "a word without a meaning"
        );
    }

    #[test]
    fn rows_with_the_same_beginning_are_one_group_at_the_place_of_the_first() {
        let lines = [
            "k get pod main --no-headers",
            "k get pod main -o jsonpath={.a}",
            "k get pod main -o wide",
            "k get pod main -o jsonpath='{.b} {.c}'",
            "k exec main -c main -- id",
        ];
        let groups = grouped(lines.map(|line| row("a", line)).to_vec());
        let lines_of =
            |group: &Vec<Row>| group.iter().map(|row| row.line.clone()).collect::<Vec<_>>();
        let expected = [
            vec![lines[0]],
            vec![lines[1], lines[3]],
            vec![lines[2]],
            vec![lines[4]],
        ];
        assert_eq!(groups.iter().map(lines_of).collect::<Vec<_>>(), expected);
        assert_eq!(joined(&groups[0]), None);
        assert_eq!(
            joined(&groups[1]).unwrap(),
            r#"k get pod main -o jsonpath='{.a}{"\n==row==\n"}{.b} {.c}{"\n==row==\n"}'"#
        );
    }

    #[test]
    fn a_row_that_a_shell_might_read_differently_is_not_joined() {
        let alone = [
            "k get pod main -o jsonpath='{.a}' | sort",
            "k get pod main -o jsonpath=\"{.a}\"",
            "k get pod main -o jsonpath={.a,.b}",
            "k get pod main -o go-template='{{.a}}' --ignore-not-found",
            "k exec main -c main -- cat /a | sort",
            "k exec main -c main -- echo $NS",
            "k exec main -c main -- sh -c 'a' 2>&1",
            "k exec main -c main -- sh -c \"a\"",
            "k exec main -c main -- sh -c 'a",
            "k exec main -c main -- a; b",
            "k exec db-0 -- id",
        ];
        for line in alone {
            assert_eq!(joined(&[row("a", line)]), None, "{line}");
        }
    }

    /// What bash prints for a line, with a kubectl that executes at home, or prints what it was
    /// given.
    fn run(line: &str) -> String {
        let kubectl =
            "k() { case $1 in exec) shift 5; \"$@\";; *) printf '%s\\n' one two three;; esac; }\n";
        let output = Command::new("bash")
            .args(["-c", &format!("{kubectl}{line}")])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_joined_line_prints_what_its_rows_print() {
        let programs = [
            "echo a b",
            "sh -c 'printf \"%s\" \"$((1 + 1))\" | cat; echo bad >&2'",
            "sh -c 'exit 7'",
            "true",
        ];
        let rows = programs.map(|program| row("a", &format!("k exec main -c main -- {program}")));
        let output = run(&joined(&rows).unwrap());
        assert_eq!(
            split(&output, 4).unwrap(),
            ["a b\n", "2bad\n", "exit code 7\n", ""]
        );

        let filters = ["sed -n '/^one/,/^two/p'", "tail -1", "grep four"];
        let rows = filters.map(|filter| row("a", &format!("k describe pod main | {filter}")));
        let output = run(&joined(&rows).unwrap());
        assert_eq!(
            split(&output, 3).unwrap(),
            ["one\ntwo\n", "three\n", "exit code 1\n"]
        );
    }

    #[test]
    fn an_output_that_does_not_answer_all_rows_is_not_split() {
        assert_eq!(split("a\n==row==\n\n==row==\n", 2), Some(vec!["a", ""]));
        assert_eq!(split("a\n==row==\n", 2), None, "a row is missing");
        assert_eq!(
            split("a\n==row==\nb\n==row==\n\nexit code 1", 2),
            None,
            "kubectl failed"
        );
        assert_eq!(split("", 1), None, "nothing was printed");
    }

    #[test]
    fn the_first_column_of_a_page_lists_rows() {
        let page = "text with `a`\n| row | why |\n|---|---|\n| `a`, `b-c` | because of `d` |\n| plain | `e` |\n";
        assert_eq!(
            listed(page),
            BTreeSet::from(["a".to_owned(), "b-c".to_owned()])
        );
    }

    #[test]
    fn what_differs_between_any_two_pods_is_replaced() {
        let normalizer = Normalizer::new("there", &["milan"]).unwrap();
        let same = [
            (
                "web-5d4f8c7b9d-x2k4z 1/1 Running 0 12s 10.244.0.7 milan",
                "web-TEMPLATE-NAME 1/1 Running 0 AGE ADDRESS NODE",
            ),
            ("by-hand-7xqzd   1/1  2m30s", "by-hand-NAME 1/1 AGE"),
            ("pod/sum-44m6s", "pod/sum-NAME"),
            (
                "web.there.svc.cluster.local",
                "web.NAMESPACE.svc.cluster.local",
            ),
            ("at 2026-11-23T14:50:01.123456789Z", "at TIME"),
            (
                "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                "containerd://HASH",
            ),
            (
                "unhealthy_there(x) fd64::13 fd00:10:244::8",
                "unhealthy_NAMESPACE(x) ADDRESS ADDRESS",
            ),
            ("web 1/1 4m", "web 1/1 AGE"),
            ("restarted 3 (14s ago)", "restarted 3 (AGE)"),
            (
                "warning: couldn't attach to pod/once, falling back to streaming logs: Internal error\nran once",
                "ran once",
            ),
        ];
        for (output, expected) in same {
            assert_eq!(normalizer.normalize(output), expected);
        }
        // Words of a status stay.
        let kept = "Running CrashLoopBackOff exit code 137 main-host all done";
        assert_eq!(normalizer.normalize(kept), kept);
    }
}
