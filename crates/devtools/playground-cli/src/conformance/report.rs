//! Reads the reports of Ginkgo, with which Kubernetes' tests are written, and compares them with
//! the page.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    page::{Outcome, Row},
    selection::Group,
};

/// A suite of a report, as `--ginkgo.json-report` writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Suite {
    #[serde(default)]
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    /// `It` for a test; other nodes prepare and clean up.
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
}

impl Spec {
    fn name(&self) -> String {
        let parts = self
            .container_hierarchy_texts
            .iter()
            .flatten()
            .chain([&self.leaf_node_text]);
        parts.map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    fn result(&self) -> TestResult {
        match self.state.as_str() {
            "passed" => TestResult::Passed,
            "skipped" | "pending" => TestResult::Skipped(self.failure.message.clone()),
            _ => TestResult::Failed(self.failure.message.clone()),
        }
    }
}

/// With the text that Ginkgo gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestResult {
    Passed,
    Failed(String),
    /// The test itself found that it cannot run here; without a text, nobody asked for it.
    Skipped(String),
}

/// The results in a report, by the name of the test.
pub fn results(suites: &[Suite]) -> BTreeMap<String, TestResult> {
    let specs = suites
        .iter()
        .flat_map(|suite| suite.spec_reports.iter().flatten());
    specs
        .filter(|spec| spec.leaf_node_type == "It")
        .map(|spec| (spec.name(), spec.result()))
        .collect()
}

/// The result of a run.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conformance {
    pub groups: Vec<GroupResult>,
    /// Tests that did not pass, or did not run although the page does not leave them out.
    pub failed: Vec<FailedTest>,
    /// Tests that passed, although the page says that they fail.
    pub passed_unexpectedly: Vec<String>,
    pub pods: Pods,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupResult {
    pub group: Group,
    /// Conformance tests in the group, also those that do not run.
    pub listed: usize,
    pub run: usize,
    pub passed: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedTest {
    pub test: String,
    pub message: String,
    /// The reason that the page gives.
    pub known: Option<String>,
}

/// Pods that the scheduler of the first cluster placed while the tests ran, and how many of them
/// ran at the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    pub placed: usize,
    pub remote: usize,
}

impl Conformance {
    /// Compares the results of the tests that were selected with the page. `all` are the names of
    /// all tests.
    pub fn new(
        groups: &[Group],
        all: &[String],
        selected: &[String],
        results: &BTreeMap<String, TestResult>,
        rows: &[Row],
        pods: Pods,
    ) -> Self {
        let known = |test: &str| {
            rows.iter()
                .find(|row| row.outcome == Outcome::Fails && row.names(test))
        };
        let (mut failed, mut passed_unexpectedly) = (Vec::new(), Vec::new());
        for test in selected {
            let message = match results.get(test) {
                Some(TestResult::Passed) => {
                    passed_unexpectedly.extend(known(test).map(|_| test.clone()));
                    continue;
                }
                Some(TestResult::Failed(message)) => message.clone(),
                Some(TestResult::Skipped(message)) if !message.is_empty() => {
                    format!("skipped: {message}")
                }
                _ => "did not run: its process ended before".to_owned(),
            };
            failed.push(FailedTest {
                test: test.clone(),
                message,
                known: known(test).map(|row| row.why.clone()),
            });
        }
        let count = |group: Group, counts: fn(&TestResult) -> bool| {
            let of_group = selected.iter().filter(|test| group.has(test));
            of_group
                .filter(|test| results.get(*test).is_some_and(counts))
                .count()
        };
        let of_group = |group: &Group| GroupResult {
            group: *group,
            listed: all.iter().filter(|test| group.has(test)).count(),
            run: count(*group, |result| !matches!(result, TestResult::Skipped(_))),
            passed: count(*group, |result| *result == TestResult::Passed),
        };
        Self {
            groups: groups.iter().map(of_group).collect(),
            failed,
            passed_unexpectedly,
            pods,
        }
    }

    /// The number of tests that did not pass, and that the page does not explain.
    pub fn unexplained(&self) -> usize {
        self.failed
            .iter()
            .filter(|test| test.known.is_none())
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{ "SuitePath": "x", "SpecReports": [
        { "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed", "ContainerHierarchyTexts": null },
        { "LeafNodeType": "It", "LeafNodeText": "a [Conformance]", "State": "passed", "ContainerHierarchyTexts": ["[sig-node] Pods"] },
        { "LeafNodeType": "It", "LeafNodeText": "b [Conformance]", "State": "failed", "ContainerHierarchyTexts": ["[sig-node] Pods"],
          "Failure": { "Message": "timed out" } },
        { "LeafNodeType": "It", "LeafNodeText": "c [Conformance]", "State": "skipped", "ContainerHierarchyTexts": ["[sig-node] Pods"],
          "Failure": { "Message": "needs 2 nodes" } },
        { "LeafNodeType": "It", "LeafNodeText": "d [Conformance]", "State": "skipped", "ContainerHierarchyTexts": ["[sig-node] Pods"] }
    ] }, { "SpecReports": null }]"#;

    fn test(name: &str) -> String {
        format!("[sig-node] Pods {name} [Conformance]")
    }

    fn read() -> BTreeMap<String, TestResult> {
        results(&serde_json::from_str::<Vec<Suite>>(REPORT).unwrap())
    }

    #[test]
    fn a_report_has_the_result_of_each_test_by_its_full_name() {
        let results = read();
        assert_eq!(results.len(), 4);
        assert_eq!(results[&test("a")], TestResult::Passed);
        assert_eq!(results[&test("b")], TestResult::Failed("timed out".into()));
        assert_eq!(
            results[&test("c")],
            TestResult::Skipped("needs 2 nodes".into())
        );
    }

    #[test]
    fn only_what_no_row_explains_is_unexplained() {
        let all = ["a", "b", "c", "d", "e"].map(test);
        let row = |part: &str| Row {
            outcome: Outcome::Fails,
            tests: vec![part.to_owned()],
            why: "known".to_owned(),
        };
        let compared = |rows: &[Row]| {
            Conformance::new(
                &[Group::Node],
                &all,
                &all[..4],
                &read(),
                rows,
                Pods::default(),
            )
        };
        let without_rows = compared(&[]);
        assert_eq!(
            without_rows.groups,
            [GroupResult {
                group: Group::Node,
                listed: 5,
                run: 2,
                passed: 1
            }]
        );
        let messages: Vec<_> = without_rows
            .failed
            .iter()
            .map(|test| test.message.as_str())
            .collect();
        assert_eq!(
            messages,
            [
                "timed out",
                "skipped: needs 2 nodes",
                "did not run: its process ended before"
            ]
        );
        assert_eq!(without_rows.unexplained(), 3);
        let with_rows = compared(&[row("Pods b"), row("Pods a")]);
        assert_eq!(
            (
                with_rows.failed[0].known.as_deref(),
                with_rows.unexplained()
            ),
            (Some("known"), 2)
        );
        assert_eq!(with_rows.passed_unexpectedly, [test("a")]);
    }
}
