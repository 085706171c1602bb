//! What a command found out about one thing: how it is, and what to do about it.
//!
//! `doctor`, `explain`, `test network` and `broker status` judge, each by rules of its own. They
//! return findings. [`finding_branch`] turns one into a line with the advice below it, which is
//! drawn in a tree or in a list.

use serde::{Serialize, Serializer};

use crate::{
    branch::Branch,
    output::{Paint, strip_control_characters},
};

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CheckVerdict {
    Ok,
    /// It works, or waits for a person, and needs attention.
    Warn,
    /// It does not work.
    Fail,
    /// Not known: something could not be read, or cannot be seen from here.
    Unknown,
    /// Not judged: it follows from another failure, or is not in use.
    Skipped,
}

impl CheckVerdict {
    /// The sign of a verdict on the terminal.
    pub fn mark(self, paint: Paint) -> String {
        match self {
            Self::Ok => paint.good("✓"),
            Self::Warn => paint.unsure("!"),
            Self::Fail => paint.bad("✗"),
            Self::Unknown => paint.unsure("?"),
            Self::Skipped => paint.faint("-"),
        }
    }
}

/// The verdict of one check, with a text. `C` says what was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding<C> {
    /// In JSON, its fields are next to those of the finding.
    #[serde(flatten)]
    pub check: C,
    /// Name of the peer, for a finding about one peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    pub verdict: CheckVerdict,
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl<C> Finding<C> {
    pub fn new(check: C, verdict: CheckVerdict, what: impl Into<String>) -> Self {
        Self {
            check,
            peer: None,
            verdict,
            what: what.into(),
            advice: None,
        }
    }

    pub fn ok(check: C, what: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Ok, what)
    }

    pub fn warn(check: C, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Warn, what).with_advice(advice)
    }

    /// It does not work.
    pub fn fail(check: C, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Fail, what).with_advice(advice)
    }

    pub fn unknown(check: C, what: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Unknown, what)
    }

    pub fn skipped(check: C, what: impl Into<String>) -> Self {
        Self::new(check, CheckVerdict::Skipped, what)
    }

    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    #[must_use]
    pub fn about_peer(mut self, peer: &str) -> Self {
        self.peer = Some(peer.to_owned());
        self
    }

    /// What was found and what to do, in one sentence.
    pub fn sentence(&self) -> String {
        match &self.advice {
            Some(advice) => format!("{}: {advice}", self.what),
            None => self.what.clone(),
        }
    }
}

/// Serializes findings as a list of sentences.
pub fn serialize_sentences<C, S: Serializer>(
    findings: &[Finding<C>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(findings.iter().map(Finding::sentence))
}

/// How findings look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingLook {
    /// With the mark of the verdict, and an arrow in front of the advice.
    Marked,
    /// In words: all of them are failures.
    InWords,
}

/// A finding under this name, and the advice below it.
pub fn finding_branch<C>(
    name: &str,
    finding: &Finding<C>,
    look: FindingLook,
    paint: Paint,
) -> Branch {
    let mark = match look {
        FindingLook::Marked => format!("{} ", finding.verdict.mark(paint)),
        FindingLook::InWords => String::new(),
    };
    let lead = match look {
        FindingLook::Marked => paint.faint("→"),
        FindingLook::InWords => paint.unsure("what to do:"),
    };
    let advice = finding
        .advice
        .iter()
        .map(|advice| Branch::leaf(format!("{lead} {}", strip_control_characters(advice))));
    Branch {
        text: format!("{mark}{name}: {}", strip_control_characters(&finding.what)),
        children: advice.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_drawn_in_a_tree_in_a_list_and_as_a_sentence() {
        let finding = Finding::fail((), "no \u{1b}[2Janswer", "open the way");
        let drawn = |look| {
            let branch = finding_branch("leader", &finding, look, Paint::off());
            let (mut tree, mut list) = (String::new(), String::new());
            branch.draw("", &mut tree);
            branch.draw_list("  ", &mut list);
            [tree, list]
        };
        assert_eq!(
            drawn(FindingLook::Marked),
            [
                "✗ leader: no [2Janswer\n└─ → open the way\n",
                "  ✗ leader: no [2Janswer\n    → open the way\n"
            ]
        );
        assert_eq!(
            drawn(FindingLook::InWords)[1],
            "  leader: no [2Janswer\n    what to do: open the way\n"
        );
        assert_eq!(
            (
                finding.sentence().as_str(),
                Finding::ok((), "it answers").sentence().as_str()
            ),
            ("no \u{1b}[2Janswer: open the way", "it answers")
        );
    }
}
