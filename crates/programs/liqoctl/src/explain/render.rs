//! The way of a pod as a tree for people.

use super::PodExplanation;
use crate::{
    branch::Branch,
    finding::{FindingLook, finding_branch},
    output::{Paint, strip_control_characters},
};

pub fn render_pod_explanation(explanation: &PodExplanation, paint: Paint) -> String {
    let PodExplanation {
        namespace,
        pod,
        phase,
        waits_for,
        steps,
    } = explanation;
    let see = waits_for
        .map(|step| format!(", see {}", paint.unsure(step)))
        .unwrap_or_default();
    let text = format!(
        "{}: {}{see}",
        paint.strong(&format!("{namespace}/{pod}")),
        strip_control_characters(phase)
    );
    let mut out = String::new();
    Branch {
        text,
        children: steps
            .iter()
            .map(|step| finding_branch(step.check.as_str(), step, FindingLook::Marked, paint))
            .collect(),
    }
    .draw("", &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        explain::{PodStep, PodStepName},
        finding::CheckVerdict,
    };

    #[test]
    fn each_step_has_its_mark_and_its_advice() {
        let step = |step, verdict, what: &str, advice: Option<&str>| PodStep {
            advice: advice.map(Into::into),
            ..PodStep::new(step, verdict, what)
        };
        let explanation = PodExplanation {
            namespace: "demo".into(),
            pod: "web".into(),
            phase: "Pending".into(),
            waits_for: Some(PodStepName::ShadowPod.as_str()),
            steps: vec![
                step(
                    PodStepName::LocalPod,
                    CheckVerdict::Ok,
                    "Pending, on node milan",
                    None,
                ),
                step(
                    PodStepName::ShadowPod,
                    CheckVerdict::Fail,
                    "Refused: \u{1b}[2JOfferExceeded: cpu",
                    Some("request less"),
                ),
                step(
                    PodStepName::RemotePod,
                    CheckVerdict::Skipped,
                    "there is none",
                    None,
                ),
            ],
        };
        let expected = "\
demo/web: Pending, see shadow-pod
├─ ✓ local-pod: Pending, on node milan
├─ ✗ shadow-pod: Refused: [2JOfferExceeded: cpu
│  └─ → request less
└─ - remote-pod: there is none
";
        assert_eq!(render_pod_explanation(&explanation, Paint::off()), expected);
        let json = serde_json::to_string(&explanation).unwrap();
        let head = r#"{"namespace":"demo","pod":"web","phase":"Pending","waitsFor":"shadow-pod","steps":[{"step":"local-pod","verdict":"Ok","what":"Pending, on node milan"},{"step":"shadow-pod","verdict":"Fail","what":"#;
        assert!(
            json.starts_with(head) && json.contains(r#","advice":"request less"},"#),
            "{json}"
        );
    }
}
