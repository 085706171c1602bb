//! The findings as a list for people.

use std::{collections::BTreeSet, fmt::Write as _};

use super::check::{Area, CheckFinding, DoctorReport, ExaminedClusters, VerdictCounts};
use crate::{
    branch::Branch,
    finding::{CheckVerdict, FindingLook, finding_branch},
    output::{Paint, strip_control_characters},
};

/// The findings that are shown one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownDetails {
    All,
    /// Checks that are `Ok` share one line for each area.
    OfFaults,
}

/// Renders the list.
pub fn render_report(report: &DoctorReport, details: ShownDetails, paint: Paint) -> String {
    let mut out = String::new();
    for examined in &report.examined {
        out.push_str(&paint.strong(&examined.clusters.join(" and ")));
        out.push('\n');
        for group in group_findings(examined) {
            draw_group(&group, details, paint, &mut out);
        }
        out.push('\n');
    }
    out.push_str(&summary_line(report.summary, paint));
    out.push('\n');
    out
}

/// Findings under one title.
struct FindingGroup<'a> {
    title: String,
    findings: Vec<&'a CheckFinding>,
}

/// Groups findings by area, and those of peers by peer.
fn group_findings(examined: &ExaminedClusters) -> Vec<FindingGroup<'_>> {
    let keys: BTreeSet<(Area, Option<&String>)> = examined
        .findings
        .iter()
        .map(|finding| (finding.check.area(), finding.peer.as_ref()))
        .collect();
    keys.into_iter()
        .map(|(area, peer): (Area, Option<&String>)| {
            let title = peer.map_or_else(
                || area.title().to_owned(),
                |peer| format!("peer {}", strip_control_characters(peer)),
            );
            let of_it = examined
                .findings
                .iter()
                .filter(|finding| finding.check.area() == area && finding.peer.as_ref() == peer);
            FindingGroup {
                title,
                findings: of_it.collect(),
            }
        })
        .collect()
}

fn draw_group(
    FindingGroup { title, findings }: &FindingGroup,
    details: ShownDetails,
    paint: Paint,
    out: &mut String,
) {
    let (well, rest): (Vec<&&CheckFinding>, Vec<&&CheckFinding>) =
        findings.iter().partition(|finding| {
            finding.verdict == CheckVerdict::Ok && details == ShownDetails::OfFaults
        });
    if rest.is_empty() {
        let mark = CheckVerdict::Ok.mark(paint);
        Branch::leaf(format!("{mark} {title}{}", names(": ", &well, paint))).draw_list("  ", out);
        return;
    }
    let _ = writeln!(out, "  {title}");
    // The name of a check that found a fault in one object is not shown as well because of another
    // object.
    let well: Vec<&&CheckFinding> = well
        .into_iter()
        .filter(|one| rest.iter().all(|other| other.check != one.check))
        .collect();
    if !well.is_empty() {
        let mark = CheckVerdict::Ok.mark(paint);
        Branch::leaf(format!("{mark}{}", names(" ", &well, paint))).draw_list("    ", out);
    }
    // Equal findings of several checks are shown once.
    for alike in rest.chunk_by(|one, next| {
        (one.verdict, &one.what, &one.advice) == (next.verdict, &next.what, &next.advice)
    }) {
        let names: Vec<&str> = alike.iter().map(|finding| finding.check.name()).collect();
        let Some(finding) = alike.first() else {
            continue;
        };
        finding_branch(&names.join(", "), finding, FindingLook::Marked, paint)
            .draw_list("    ", out);
    }
}

/// The names of checks that are `Ok`, each once.
fn names(before: &str, findings: &[&&CheckFinding], paint: Paint) -> String {
    let mut names: Vec<&str> = findings
        .iter()
        .map(|finding| finding.check.name())
        .collect();
    names.dedup();
    paint.faint(&format!("{before}{}", names.join(", ")))
}

fn summary_line(summary: VerdictCounts, paint: Paint) -> String {
    let VerdictCounts {
        ok,
        warn,
        fail,
        unknown,
        skipped,
    } = summary;
    [
        colored_count(ok, "ok", |text| paint.good(text)),
        colored_count(warn, "to check", |text| paint.unsure(text)),
        colored_count(fail, "failed", |text| paint.bad(text)),
        colored_count(unknown, "unknown", |text| paint.unsure(text)),
        colored_count(skipped, "skipped", |text| paint.faint(text)),
    ]
    .join(", ")
}

fn colored_count(number: usize, text: &str, paint: impl Fn(&str) -> String) -> String {
    let text = format!("{number} {text}");
    if number == 0 { text } else { paint(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Check;

    fn report() -> DoctorReport {
        let findings = vec![
            CheckFinding::ok(Check::ApiServer, "https://rome answers"),
            CheckFinding::ok(Check::Manager, "1 of 1 replicas available"),
            CheckFinding::ok(Check::OwnClock, "0 s apart"),
            CheckFinding::unknown(Check::KubeProxy, "not seen"),
            CheckFinding::fail(
                Check::PeerReachable,
                "Unreachable: \u{1b}[2Jno answer",
                "open the way",
            )
            .about_peer("milan"),
            CheckFinding::skipped(Check::OfferAccepted, "follows from peer-reachable")
                .about_peer("milan"),
            CheckFinding::skipped(Check::VirtualNodesReady, "follows from peer-reachable")
                .about_peer("milan"),
        ];
        DoctorReport::new(vec![ExaminedClusters {
            clusters: vec!["rome".to_owned()],
            findings,
        }])
    }

    #[test]
    fn what_is_well_takes_one_line_and_what_is_not_says_what_to_do() {
        let expected = "\
rome
  ✓ cluster: api-server, manager
  ✓ clocks: own-clock
  nodes
    ? kube-proxy: not seen
  peer milan
    ✗ peer-reachable: Unreachable: [2Jno answer
      → open the way
    - offer-accepted, virtual-nodes-ready: follows from peer-reachable

3 ok, 0 to check, 1 failed, 1 unknown, 2 skipped
";
        assert_eq!(
            render_report(&report(), ShownDetails::OfFaults, Paint::off()),
            expected
        );
    }

    #[test]
    fn a_check_that_failed_once_is_not_shown_as_ok() {
        let findings = vec![
            CheckFinding::ok(Check::Namespaces, "a: a-rome in milan"),
            CheckFinding::fail(Check::Namespaces, "b: NoClusterSelected: m", "peer"),
            CheckFinding::ok(Check::NamespaceWebhook, "all of them"),
        ];
        let report = DoctorReport::new(vec![ExaminedClusters {
            clusters: vec!["rome".to_owned()],
            findings,
        }]);
        let text = render_report(&report, ShownDetails::OfFaults, Paint::off());
        assert!(
            text.contains("    ✓ namespace-webhook\n    ✗ namespaces: b: NoClusterSelected: m\n"),
            "{text}"
        );
    }

    #[test]
    fn all_of_it_is_shown_if_wanted() {
        assert!(
            render_report(&report(), ShownDetails::All, Paint::off())
                .contains("    ✓ manager: 1 of 1 replicas available\n")
        );
    }
}
