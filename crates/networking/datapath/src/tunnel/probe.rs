//! Probes between the ends of a tunnel, inside the session. They are not IP packets, so other
//! implementations of WireGuard drop them. The session authenticates them. An answer is as large as
//! its question.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbePurpose {
    /// Asks whether the other end is there.
    Question,
    Answer,
    /// Asks whether UDP passes while a relay carries packets. It does not change the receiver's
    /// path.
    Trial,
    TrialAnswer,
    /// Asks whether the other end has the same [direct path](super::direct), which the token names.
    Direct,
    DirectAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TunnelProbe {
    pub(super) purpose: ProbePurpose,
    /// Random, at least in its lower half, and the same in question and answer.
    pub(super) token: u64,
}

impl TunnelProbe {
    /// WireGuard adds no padding to this length.
    const LENGTH: usize = 16;
    /// The zero is where the IP version would be.
    const PREFIX: [u8; 7] = *b"\0liqo-1";

    pub(super) fn bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..7].copy_from_slice(&Self::PREFIX);
        bytes[7] = match self.purpose {
            ProbePurpose::Question => 1,
            ProbePurpose::Answer => 2,
            ProbePurpose::Trial => 3,
            ProbePurpose::TrialAnswer => 4,
            ProbePurpose::Direct => 5,
            ProbePurpose::DirectAnswer => 6,
        };
        bytes[8..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    pub(super) fn from_packet(packet: &[u8]) -> Option<Self> {
        let (begin, rest) = packet.split_first_chunk::<7>()?;
        let (purpose, token) = rest.split_first()?;
        let purpose = match purpose {
            1 => ProbePurpose::Question,
            2 => ProbePurpose::Answer,
            3 => ProbePurpose::Trial,
            4 => ProbePurpose::TrialAnswer,
            5 => ProbePurpose::Direct,
            6 => ProbePurpose::DirectAnswer,
            _ => return None,
        };
        (*begin == Self::PREFIX).then_some(Self {
            purpose,
            token: u64::from_le_bytes(token.try_into().ok()?),
        })
    }

    /// The answer to a question.
    pub(super) fn answer(self) -> Option<Self> {
        match self.purpose {
            ProbePurpose::Question => Some(Self {
                purpose: ProbePurpose::Answer,
                ..self
            }),
            ProbePurpose::Trial => Some(Self {
                purpose: ProbePurpose::TrialAnswer,
                ..self
            }),
            ProbePurpose::Direct => Some(Self {
                purpose: ProbePurpose::DirectAnswer,
                ..self
            }),
            ProbePurpose::Answer | ProbePurpose::TrialAnswer | ProbePurpose::DirectAnswer => None,
        }
    }

    pub(super) fn is_trial(self) -> bool {
        matches!(
            self.purpose,
            ProbePurpose::Trial | ProbePurpose::TrialAnswer
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_as_it_was_written_and_is_not_an_ip_packet() {
        use ProbePurpose::{Answer, Direct, DirectAnswer, Question, Trial, TrialAnswer};
        for purpose in [Question, Answer, Trial, TrialAnswer, Direct, DirectAnswer] {
            let probe = TunnelProbe {
                purpose,
                token: 0x1234_5678_9abc_def0,
            };
            assert_eq!(TunnelProbe::from_packet(&probe.bytes()), Some(probe));
            assert_eq!(super::super::packet::parse_header(&probe.bytes()), None);
            assert_eq!(TunnelProbe::from_packet(&probe.bytes()[..15]), None);
            assert_eq!(
                TunnelProbe::from_packet(&[&probe.bytes()[..], &[0]].concat()),
                None
            );
        }
    }

    #[test]
    fn an_answer_is_not_answered() {
        let answer = TunnelProbe {
            purpose: ProbePurpose::Trial,
            token: 1,
        }
        .answer()
        .unwrap();
        assert_eq!(
            (answer.purpose, answer.token, answer.answer()),
            (ProbePurpose::TrialAnswer, 1, None)
        );
    }
}
