//! The findings as a list for people.

use std::{collections::BTreeSet, fmt::Write as _};

use super::finding::{Area, Examined, Finding, Report, Summary, Verdict};
use crate::output::{Paint, plain};

/// Renders the list. Checks that are `Ok` share one line for each area, unless `all` is set.
pub fn render(report: &Report, all: bool, paint: Paint) -> String {
    let mut out = String::new();
    for examined in &report.examined {
        out.push_str(&paint.strong(&examined.clusters.join(" and ")));
        out.push('\n');
        for group in groups(examined) {
            draw(&group, all, paint, &mut out);
        }
        out.push('\n');
    }
    out.push_str(&sum(report.summary, paint));
    out.push('\n');
    out
}

/// Groups findings by area, and those of peers by peer.
fn groups(examined: &Examined) -> Vec<(String, Vec<&Finding>)> {
    let keys: BTreeSet<(Area, Option<&String>)> = examined
        .findings
        .iter()
        .map(|finding| (finding.area, finding.peer.as_ref()))
        .collect();
    let group = |(area, peer): (Area, Option<&String>)| {
        let title = peer.map_or_else(
            || area.title().to_owned(),
            |peer| format!("peer {}", plain(peer)),
        );
        let of_it = examined
            .findings
            .iter()
            .filter(|finding| finding.area == area && finding.peer.as_ref() == peer);
        (title, of_it.collect())
    };
    keys.into_iter().map(group).collect()
}

fn draw((title, findings): &(String, Vec<&Finding>), all: bool, paint: Paint, out: &mut String) {
    let (well, rest): (Vec<&&Finding>, Vec<&&Finding>) = findings
        .iter()
        .partition(|finding| finding.verdict == Verdict::Ok && !all);
    if rest.is_empty() {
        let _ = writeln!(
            out,
            "  {} {title}{}",
            mark(Verdict::Ok, paint),
            names(": ", &well, paint)
        );
        return;
    }
    let _ = writeln!(out, "  {title}");
    // The name of a check that found a fault in one object is not shown as well because of another
    // object.
    let well: Vec<&&Finding> = well
        .into_iter()
        .filter(|one| rest.iter().all(|other| other.check != one.check))
        .collect();
    if !well.is_empty() {
        let _ = writeln!(
            out,
            "    {}{}",
            mark(Verdict::Ok, paint),
            names(" ", &well, paint)
        );
    }
    // Equal findings of several checks are shown once.
    for alike in rest.chunk_by(|one, next| {
        (one.verdict, &one.what, &one.advice) == (next.verdict, &next.what, &next.advice)
    }) {
        let names: Vec<&str> = alike.iter().map(|finding| finding.check.name()).collect();
        let Some(finding) = alike.first() else {
            continue;
        };
        let _ = writeln!(
            out,
            "    {} {}: {}",
            mark(finding.verdict, paint),
            names.join(", "),
            plain(&finding.what)
        );
        if let Some(advice) = &finding.advice {
            let _ = writeln!(out, "      {} {}", paint.faint("→"), plain(advice));
        }
    }
}

/// The names of checks that are `Ok`, each once.
fn names(before: &str, findings: &[&&Finding], paint: Paint) -> String {
    let mut names: Vec<&str> = findings
        .iter()
        .map(|finding| finding.check.name())
        .collect();
    names.dedup();
    paint.faint(&format!("{before}{}", names.join(", ")))
}

/// The sign of a verdict.
pub fn mark(verdict: Verdict, paint: Paint) -> String {
    match verdict {
        Verdict::Ok => paint.good("✓"),
        Verdict::Warn => paint.unsure("!"),
        Verdict::Fail => paint.bad("✗"),
        Verdict::Unknown => paint.unsure("?"),
        Verdict::Skipped => paint.faint("-"),
    }
}

fn sum(summary: Summary, paint: Paint) -> String {
    let Summary {
        ok,
        warn,
        fail,
        unknown,
        skipped,
    } = summary;
    let counted = |number: usize, text: &str, paint: &dyn Fn(&str) -> String| {
        let text = format!("{number} {text}");
        if number == 0 { text } else { paint(&text) }
    };
    [
        counted(ok, "ok", &|text| paint.good(text)),
        counted(warn, "to check", &|text| paint.unsure(text)),
        counted(fail, "failed", &|text| paint.bad(text)),
        counted(unknown, "unknown", &|text| paint.unsure(text)),
        counted(skipped, "skipped", &|text| paint.faint(text)),
    ]
    .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Check;

    fn report() -> Report {
        let findings = vec![
            Finding::ok(Check::ApiServer, "https://rome answers"),
            Finding::ok(Check::Manager, "1 of 1 replicas available"),
            Finding::ok(Check::OwnClock, "0 s apart"),
            Finding::unknown(Check::KubeProxy, "not seen"),
            Finding::fail(
                Check::PeerReachable,
                "Unreachable: \u{1b}[2Jno answer",
                "open the way",
            )
            .of("milan"),
            Finding::skipped(Check::OfferAccepted, "follows from peer-reachable").of("milan"),
            Finding::skipped(Check::VirtualNodesReady, "follows from peer-reachable").of("milan"),
        ];
        Report::new(vec![Examined {
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
        assert_eq!(render(&report(), false, Paint::off()), expected);
    }

    #[test]
    fn a_check_that_failed_once_is_not_shown_as_ok() {
        let findings = vec![
            Finding::ok(Check::Namespaces, "a: a-rome in milan"),
            Finding::fail(Check::Namespaces, "b: NoClusterSelected: m", "peer"),
            Finding::ok(Check::NamespaceWebhook, "all of them"),
        ];
        let report = Report::new(vec![Examined {
            clusters: vec!["rome".to_owned()],
            findings,
        }]);
        let text = render(&report, false, Paint::off());
        assert!(
            text.contains("    ✓ namespace-webhook\n    ✗ namespaces: b: NoClusterSelected: m\n"),
            "{text}"
        );
    }

    #[test]
    fn all_of_it_is_shown_if_wanted() {
        assert!(
            render(&report(), true, Paint::off())
                .contains("    ✓ manager: 1 of 1 replicas available\n")
        );
    }
}
