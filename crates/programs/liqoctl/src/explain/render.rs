//! The way of a pod as a tree for people.

use super::{PodExplanation, PodStep};
use crate::{
    doctor::verdict_mark,
    output::{Paint, strip_control_characters},
    status::Branch,
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
        .map(|step| format!(", see {}", paint.unsure(step.as_str())))
        .unwrap_or_default();
    let text = format!(
        "{}: {}{see}",
        paint.strong(&format!("{namespace}/{pod}")),
        strip_control_characters(phase)
    );
    let mut out = String::new();
    Branch {
        text,
        children: steps.iter().map(|step| step_branch(step, paint)).collect(),
    }
    .draw("", &mut out);
    out
}

fn step_branch(step: &PodStep, paint: Paint) -> Branch {
    let advice = step.advice.iter().map(|advice| {
        Branch::leaf(format!(
            "{} {}",
            paint.faint("→"),
            strip_control_characters(advice)
        ))
    });
    Branch {
        text: format!(
            "{} {}: {}",
            verdict_mark(step.verdict, paint),
            step.step.as_str(),
            strip_control_characters(&step.what)
        ),
        children: advice.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{doctor::CheckVerdict, explain::PodStepName};

    #[test]
    fn each_step_has_its_mark_and_its_advice() {
        let step = |step, verdict, what: &str, advice: Option<&str>| PodStep {
            step,
            verdict,
            what: what.into(),
            advice: advice.map(Into::into),
        };
        let explanation = PodExplanation {
            namespace: "demo".into(),
            pod: "web".into(),
            phase: "Pending".into(),
            waits_for: Some(PodStepName::ShadowPod),
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
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(
            (&json["waitsFor"], &json["steps"][1]["verdict"]),
            (&"shadow-pod".into(), &"Fail".into())
        );
    }
}
