//! `conformance`: runs Kubernetes' own conformance tests, with the pods of the tests on a virtual
//! node.
//!
//! ```text
//!   list      e2e --ginkgo.dry-run                           ──▶ the names of all tests
//!   select    groups, and what the page about kubectl leaves out    ──▶ the tests of each process
//!   run       one e2e for each process, all at the same time ──▶ reports
//!   compare   reports, and the failures in the page about kubectl   ──▶ a table; failures that no row explains end with exit code 1
//! ```
//!
//! The program e2e is Kubernetes' own, except that it offloads each namespace of a test before the
//! test uses it (`go/conformance` in the library of the playground). Its tests want an untainted
//! real node, and pin some pods to it. So the real nodes get a taint that only makes the scheduler
//! prefer the virtual node.

mod images;
mod page;
mod report;
mod selection;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, bail};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::labels;
use liqo_playground::{KubernetesTests, Playground, Requirements};
use liqoctl::{
    cluster::{Cluster, ClusterAccess, ExplainFailure as _},
    progress::StepProgress,
};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::{
    arguments::{Conformance as Arguments, Up},
    up::{Steps, up},
};
use report::{Suite, TestResult};

pub use report::{Conformance, FailedTest, GroupResult, Pods};
pub use selection::Group;

const CONSUMER: &str = "rome";
const PROVIDER: &str = "milan";
const TAINT: &str = "playground.liqo.io/tests";
const STEP: &str = "Running Kubernetes' conformance tests";

/// The names of the tests that [`run`] would run.
pub async fn list(arguments: &Arguments, progress: &StepProgress) -> anyhow::Result<Vec<String>> {
    let KubernetesTests { tests: program, .. } =
        liqo_playground::kubernetes_tests(&Steps(progress)).await?;
    let log = program.with_extension("list.log");
    // To list tests, the program needs no cluster.
    let tests = Tests {
        program,
        kubeconfig: PathBuf::new(),
        kubectl: PathBuf::new(),
    };
    let all = progress
        .run_step("Listing the tests", tests.list(&log))
        .await?;
    selection::select(
        &all,
        &arguments.group,
        &arguments.test,
        &page::rows(page::PAGE)?,
    )
}

/// Runs the tests on a playground with two clusters, which stays up.
pub async fn run(
    playground: &Playground,
    arguments: &Arguments,
    progress: &StepProgress,
) -> anyhow::Result<Conformance> {
    let rows = page::rows(page::PAGE)?;
    let steps = Steps(progress);
    Requirements::of_programs(&images::PROGRAMS)
        .install(&steps)
        .await?;
    let programs = liqo_playground::kubernetes_tests(&steps).await?;
    let kubectl = liqo_playground::kubectl(&steps).await?;
    if !arguments.running {
        let clusters = vec![CONSUMER.parse()?, PROVIDER.parse()?];
        Box::pin(up(
            playground,
            &Up {
                clusters,
                ..Up::default()
            },
            progress,
        ))
        .await?;
    }
    let (consumer, provider) = (playground.cluster(CONSUMER)?, playground.cluster(PROVIDER)?);
    let tests = Tests {
        program: programs.tests,
        kubeconfig: consumer.kubeconfig(),
        kubectl,
    };
    progress
        .run_step(
            "Loading the images of the tests",
            load_images(playground, &consumer, programs.agnhost),
        )
        .await?;

    let all = progress
        .run_step(
            "Listing the tests",
            tests.list(&consumer.log("conformance-list")),
        )
        .await?;
    let selected = selection::select(&all, &arguments.group, &arguments.test, &rows)?;
    let cluster = Cluster::connect(&ClusterAccess::from_file(consumer.kubeconfig())).await?;
    let [before, before_there] = [consumer.audit_position()?, provider.audit_position()?];
    set_taint(&cluster, true).await?;
    let log = |process| consumer.log(&format!("conformance-{process}"));
    let results = progress
        .run_step(
            STEP,
            tests.run(&selected, arguments.processes.into(), log, progress),
        )
        .await;
    set_taint(&cluster, false).await?;
    let pods = Pods {
        placed: count_created(&consumer, before, "binding", "")?,
        remote: count_created(&provider, before_there, "", liqo_api::CONTROLLER_MANAGER)?,
    };
    Ok(Conformance::new(
        &arguments.group,
        &all,
        &selected,
        &results?,
        &rows,
        pods,
    ))
}

async fn load_images(
    playground: &Playground,
    consumer: &liqo_playground::Cluster,
    agnhost: PathBuf,
) -> anyhow::Result<()> {
    let listed = Command::new("busybox")
        .arg("--list")
        .output()
        .await
        .context("cannot run busybox")?;
    let applets = String::from_utf8_lossy(&listed.stdout);
    let page = consumer.log("conformance-page").with_extension("html");
    fs::write(&page, "It works\n").with_context(|| format!("cannot write {}", page.display()))?;
    let files = images::Files {
        agnhost,
        certificate: consumer.serving_certificate(),
        page,
    };
    for image in images::images(&files, &applets.lines().collect::<Vec<_>>()) {
        playground.load_image(&image).await?;
    }
    Ok(())
}

/// Adds the taint of the tests to all real nodes, or removes it.
async fn set_taint(cluster: &Cluster, wanted: bool) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let real =
        ListParams::default().labels(&format!("{}!={}", labels::TYPE, labels::TYPE_VIRTUAL_NODE));
    for node in nodes.list(&real).await.doing("list the nodes")? {
        let mut taints = node
            .spec
            .clone()
            .and_then(|spec| spec.taints)
            .unwrap_or_default();
        taints.retain(|taint| taint.key != TAINT);
        if wanted {
            taints.push(Taint {
                key: TAINT.to_owned(),
                effect: "PreferNoSchedule".to_owned(),
                ..Taint::default()
            });
        }
        let patch = json!({ "metadata": { "resourceVersion": node.resource_version() }, "spec": { "taints": taints } });
        nodes
            .patch(
                &node.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await
            .doing("taint the nodes")?;
    }
    Ok(())
}

/// Pods, or their bindings, that users with this in their names created since a position in the
/// audit log.
fn count_created(
    cluster: &liqo_playground::Cluster,
    since: u64,
    subresource: &str,
    user: &str,
) -> anyhow::Result<usize> {
    let is_counted = |write: &liqo_playground::Write| {
        let is_pod = write.resource == "pods" && write.subresource == subresource;
        is_pod && write.verb == "create" && write.code == 201 && write.user.contains(user)
    };
    Ok(cluster
        .writes_since(since)?
        .iter()
        .filter(|write| is_counted(write))
        .count())
}

/// Kubernetes' tests, and what each of their processes needs.
struct Tests {
    program: PathBuf,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
}

impl Tests {
    /// The names of all tests.
    async fn list(&self, log: &Path) -> anyhow::Result<Vec<String>> {
        let listed = self
            .start(&["--ginkgo.dry-run".to_owned()], log, |_| {})
            .await?;
        Ok(listed.into_keys().collect())
    }

    /// Runs these tests, and returns the results of all of them that ran.
    async fn run(
        &self,
        tests: &[String],
        processes: usize,
        log: impl Fn(usize) -> PathBuf,
        progress: &StepProgress,
    ) -> anyhow::Result<BTreeMap<String, TestResult>> {
        let (done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ended = |end: TestEnd| {
            let failures = usize::from(end == TestEnd::Failed);
            let (done, failed) = (
                done.fetch_add(1, Ordering::Relaxed) + 1,
                failed.fetch_add(failures, Ordering::Relaxed) + failures,
            );
            progress.message(
                STEP,
                &format!("{done} of {} done, {failed} failed", tests.len()),
            );
        };
        let shares = selection::deal(tests, processes);
        let logs: Vec<_> = (1..=shares.len()).map(log).collect();
        let runs = shares.iter().zip(&logs).map(|(share, log)| async move {
            let mut results = self
                .start(
                    &[
                        "--ginkgo.v".to_owned(),
                        format!("--ginkgo.focus={}", selection::focus(share)),
                    ],
                    log,
                    ended,
                )
                .await?;
            results.retain(|test, _| share.contains(test));
            anyhow::Ok(results)
        });
        Ok(try_join_all(runs).await?.into_iter().flatten().collect())
    }

    /// Runs a process with its output in this log; next to it is the report of Ginkgo.
    async fn start(
        &self,
        arguments: &[String],
        log: &Path,
        ended: impl Fn(TestEnd),
    ) -> anyhow::Result<BTreeMap<String, TestResult>> {
        let report = log.with_extension("json");
        let _ = fs::remove_file(&report);
        let mut written =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = Command::new(&self.program)
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--kubectl-path={}", self.kubectl.display()))
            .arg(format!("--ginkgo.json-report={}", report.display()))
            // The virtual node and the node of the control plane are all there is.
            .args([
                "--provider=skeleton",
                "--allowed-not-ready-nodes=10",
                "--ginkgo.no-color",
                "--ginkgo.timeout=6h",
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(written.try_clone()?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let Some(stdout) = child.stdout.take() else {
            bail!("{} has no output", self.program.display())
        };
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines
            .next_line()
            .await
            .context("cannot read the output of the tests")?
        {
            writeln!(written, "{line}")
                .with_context(|| format!("cannot write {}", log.display()))?;
            if let Some(end) = TestEnd::of_line(&line) {
                ended(end);
            }
        }
        child.wait().await.context("cannot wait for the tests")?;
        let text = fs::read(&report)
            .with_context(|| format!("the tests wrote no report: see {}", log.display()))?;
        let suites: Vec<Suite> = serde_json::from_slice(&text)
            .with_context(|| format!("cannot read {}", report.display()))?;
        Ok(report::results(&suites))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestEnd {
    Failed,
    Otherwise,
}

impl TestEnd {
    /// Reads the line that Ginkgo prints after a test: `• [4.043 seconds]`,
    /// `• [FAILED] [4.043 seconds]` or `S [SKIPPED] [0.1 seconds]`.
    fn of_line(line: &str) -> Option<Self> {
        if line.starts_with("S [SKIPPED] [") {
            return Some(Self::Otherwise);
        }
        let has_passed = line
            .strip_prefix("• [")?
            .starts_with(|c: char| c.is_ascii_digit());
        Some(if has_passed {
            Self::Otherwise
        } else {
            Self::Failed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_test_is_seen_in_the_output() {
        assert_eq!(
            TestEnd::of_line("• [4.043 seconds]"),
            Some(TestEnd::Otherwise)
        );
        assert_eq!(
            TestEnd::of_line("• [FAILED] [304.043 seconds]"),
            Some(TestEnd::Failed)
        );
        assert_eq!(
            TestEnd::of_line("S [SKIPPED] [0.020 seconds]"),
            Some(TestEnd::Otherwise)
        );
        assert_eq!(TestEnd::of_line("SSSS•"), None);
        assert_eq!(TestEnd::of_line("  STEP: Creating a pod"), None);
    }
}
