//! Results as tables for people.

use liqo_playground::{ClusterStatus, Status};
use liqoctl::output::{self, Paint};

use crate::{
    conformance::{Conformance, FailedTest, GroupResult},
    demo::DemoPod,
    up::{UpCluster, UpResult},
};

pub fn up(up: &UpResult) -> String {
    let row = |cluster: &UpCluster| {
        let id = cluster
            .cluster_id
            .clone()
            .unwrap_or_else(|| "no Liqo".to_owned());
        vec![
            cluster.name.clone(),
            id,
            cluster.virtual_nodes.join(", "),
            cluster.kubeconfig.display().to_string(),
        ]
    };
    let mut text = output::format_table(
        &["CLUSTER", "ID", "VIRTUAL NODES", "KUBECONFIG"],
        up.clusters.iter().map(row),
    );
    if !up.demo.is_empty() {
        let has_broker = up.demo.iter().any(|line| line.broker_node.is_some());
        let row = |line: &DemoPod| {
            let there = line.broker_node.clone().unwrap_or_else(|| "-".to_owned());
            let cells = [
                Some(line.pod.clone()),
                Some(line.phase.clone()),
                Some(line.node.clone()),
                has_broker.then_some(there),
            ];
            cells
                .into_iter()
                .flatten()
                .chain([line.answers.to_string()])
                .collect()
        };
        let calls: usize = up.demo.iter().map(|line| line.answers).sum();
        let heading = format!("OF {calls} CALLS");
        let header = ["POD", "STATUS", "NODE"]
            .into_iter()
            .chain(has_broker.then_some("BROKER'S NODE"))
            .chain([heading.as_str()]);
        let header: Vec<&str> = header.collect();
        text = format!(
            "{text}\n\n{}",
            output::format_table(&header, up.demo.iter().map(row))
        );
    }
    text + "\n\nWorth trying:\n  " + &up.commands.join("\n  ")
}

pub fn conformance(results: &Conformance) -> String {
    let row = |group: &GroupResult| {
        vec![
            group.group.to_string(),
            group.listed.to_string(),
            group.run.to_string(),
            group.passed.to_string(),
        ]
    };
    let mut blocks = vec![output::format_table(
        &["GROUP", "LISTED", "RUN", "PASSED"],
        results.groups.iter().map(row),
    )];
    let pods = results.pods;
    blocks.push(format!(
        "Of {} pods that the scheduler placed, {} ran on the virtual node.",
        pods.placed, pods.remote
    ));
    if !results.failed.is_empty() {
        // Messages can have many lines.
        let short = |text: &str| {
            text.lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(120)
                .collect()
        };
        let row = |test: &FailedTest| {
            let known = test.known.as_deref().unwrap_or("NOT EXPLAINED");
            vec![test.test.clone(), short(&test.message), known.to_owned()]
        };
        blocks.push(output::format_table(
            &["NOT PASSED", "MESSAGE", "ROW OF docs/reference/kubectl.md"],
            results.failed.iter().map(row),
        ));
    }
    let passed = results.passed_unexpectedly.iter().map(|test| {
        format!("docs/reference/kubectl.md says that this fails, but it passed: {test}")
    });
    blocks.extend(passed);
    blocks.join("\n\n")
}

pub fn status(status: &Status, paint: Paint) -> String {
    if status.clusters.is_empty() {
        return "No clusters: `cargo playground up` starts some.".to_owned();
    }
    let mut blocks = Vec::new();
    for cluster in &status.clusters {
        let ready = if cluster.ready {
            paint.good("ready")
        } else {
            paint.bad("not ready")
        };
        let heading = format!(
            "{} {} at {}, kubeconfig {}",
            paint.strong(&cluster.name),
            ready,
            cluster.api_url,
            cluster.kubeconfig.display()
        );
        blocks.push(format!("{heading}\n{}", node_table(cluster, paint)));
        let rows = cluster.components.iter().map(|component| {
            vec![
                component.component.clone(),
                format!("{:?}", component.state),
                component.pid.map(|pid| pid.to_string()).unwrap_or_default(),
                component.restarts.to_string(),
                component.last_exit.clone().unwrap_or_default(),
            ]
        });
        blocks.push(output::format_table(
            &["COMPONENT", "STATE", "PID", "RESTARTS", "LAST EXIT"],
            rows,
        ));
    }
    blocks.join("\n\n")
}

/// One row for each real node, and one row for all fake nodes.
fn node_table(cluster: &ClusterStatus, paint: Paint) -> String {
    let ready = |ready: Option<bool>| match ready {
        Some(true) => paint.good("yes"),
        Some(false) => paint.bad("no"),
        None => "unknown".to_owned(),
    };
    let real = cluster.nodes.iter().map(|status| {
        let node = &status.node;
        let addresses: Vec<_> = [
            Some(node.address.to_string()),
            node.address_v6.map(|address| address.to_string()),
        ]
        .into_iter()
        .flatten()
        .collect();
        vec![
            node.name.clone(),
            ready(status.ready),
            addresses.join(", "),
            node.network_namespace.clone(),
        ]
    });
    let fake = cluster.fake_nodes;
    let fake = (fake.wanted > 0 || fake.found > 0).then(|| {
        let text = format!("{} of {}", fake.ready, fake.wanted);
        let whole =
            cluster.ready && fake.ready == usize::from(fake.wanted) && fake.found == fake.ready;
        vec![
            "fake nodes".to_owned(),
            if whole {
                paint.good(&text)
            } else {
                paint.bad(&text)
            },
            String::new(),
            String::new(),
        ]
    });
    output::format_table(
        &["NODE", "READY", "ADDRESS", "NETWORK NAMESPACE"],
        real.chain(fake),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Group, Pods};

    #[test]
    fn a_failure_without_a_reason_catches_the_eye() {
        let failed = |test: &str, known: Option<&str>| FailedTest {
            test: test.to_owned(),
            message: "timed out\nafter 5 s".to_owned(),
            known: known.map(str::to_owned),
        };
        let results = Conformance {
            groups: vec![GroupResult {
                group: Group::Node,
                listed: 9,
                run: 7,
                passed: 5,
            }],
            failed: vec![failed("a", None), failed("b", Some("no token"))],
            passed_unexpectedly: vec!["c".to_owned()],
            pods: Pods {
                placed: 20,
                remote: 18,
            },
        };
        let text = conformance(&results);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(rows.contains(&vec!["node", "9", "7", "5"]), "{text}");
        assert!(
            rows.contains(&vec!["a", "timed", "out", "NOT", "EXPLAINED"]),
            "{text}"
        );
        assert!(
            rows.contains(&vec!["b", "timed", "out", "no", "token"]),
            "{text}"
        );
        assert!(
            text.contains("20 pods") && text.ends_with("it passed: c"),
            "{text}"
        );
    }

    #[test]
    fn only_with_a_broker_there_is_a_column_for_its_nodes() {
        let line = |node: &str, broker_node: Option<&str>| DemoPod {
            pod: "a".into(),
            phase: "Running".into(),
            node: node.into(),
            broker_node: broker_node.map(str::to_owned),
            answers: 5,
        };
        let shown = |demo| {
            up(&UpResult {
                clusters: Vec::new(),
                demo,
                commands: Vec::new(),
            })
        };
        assert!(!shown(vec![line("milan", None)]).contains("BROKER'S NODE"));
        let with_broker = shown(vec![line("milan", Some("turin")), line("rome-1", None)]);
        let rows: Vec<Vec<&str>> = with_broker
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(
            rows.contains(&vec!["a", "Running", "milan", "turin", "5"]),
            "{with_broker}"
        );
        assert!(
            rows.contains(&vec!["a", "Running", "rome-1", "-", "5"]),
            "{with_broker}"
        );
    }
}
