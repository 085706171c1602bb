//! The way of a pod as a tree for people.

use super::{Explanation, Step};
use crate::{
    doctor::mark,
    output::{Paint, plain},
    status::Branch,
};

pub fn render(explanation: &Explanation, paint: Paint) -> String {
    let Explanation {
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
        plain(phase)
    );
    let mut out = String::new();
    Branch {
        text,
        children: steps.iter().map(|step| branch(step, paint)).collect(),
    }
    .draw("", &mut out);
    out
}

fn branch(step: &Step, paint: Paint) -> Branch {
    let advice = step
        .advice
        .iter()
        .map(|advice| Branch::leaf(format!("{} {}", paint.faint("→"), plain(advice))));
    Branch {
        text: format!(
            "{} {}: {}",
            mark(step.verdict, paint),
            step.step.as_str(),
            plain(&step.what)
        ),
        children: advice.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{doctor::Verdict, explain::StepName};

    #[test]
    fn each_step_has_its_mark_and_its_advice() {
        let step = |step, verdict, what: &str, advice: Option<&str>| Step {
            step,
            verdict,
            what: what.into(),
            advice: advice.map(Into::into),
        };
        let explanation = Explanation {
            namespace: "demo".into(),
            pod: "web".into(),
            phase: "Pending".into(),
            waits_for: Some(StepName::ShadowPod),
            steps: vec![
                step(
                    StepName::LocalPod,
                    Verdict::Ok,
                    "Pending, on node milan",
                    None,
                ),
                step(
                    StepName::ShadowPod,
                    Verdict::Fail,
                    "Refused: \u{1b}[2JOfferExceeded: cpu",
                    Some("request less"),
                ),
                step(StepName::RemotePod, Verdict::Skipped, "there is none", None),
            ],
        };
        let expected = "\
demo/web: Pending, see shadow-pod
├─ ✓ local-pod: Pending, on node milan
├─ ✗ shadow-pod: Refused: [2JOfferExceeded: cpu
│  └─ → request less
└─ - remote-pod: there is none
";
        assert_eq!(render(&explanation, Paint::off()), expected);
        let json = serde_json::to_value(&explanation).unwrap();
        assert_eq!(
            (&json["waitsFor"], &json["steps"][1]["verdict"]),
            (&"shadow-pod".into(), &"Fail".into())
        );
    }
}
