//! Probes between the ends of a tunnel, inside the session. They are not IP packets, so other
//! implementations of WireGuard drop them. The session authenticates them. An answer is as large as
//! its question.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
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
pub(super) struct Probe {
    pub(super) purpose: Purpose,
    /// Random, at least in its lower half, and the same in question and answer.
    pub(super) token: u64,
}

impl Probe {
    /// WireGuard adds no padding to this length.
    const LENGTH: usize = 16;
    /// The zero is where the IP version would be.
    const PREFIX: [u8; 7] = *b"\0liqo-1";

    pub(super) fn bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..7].copy_from_slice(&Self::PREFIX);
        bytes[7] = match self.purpose {
            Purpose::Question => 1,
            Purpose::Answer => 2,
            Purpose::Trial => 3,
            Purpose::TrialAnswer => 4,
            Purpose::Direct => 5,
            Purpose::DirectAnswer => 6,
        };
        bytes[8..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let (begin, rest) = packet.split_first_chunk::<7>()?;
        let (purpose, token) = rest.split_first()?;
        let purpose = match purpose {
            1 => Purpose::Question,
            2 => Purpose::Answer,
            3 => Purpose::Trial,
            4 => Purpose::TrialAnswer,
            5 => Purpose::Direct,
            6 => Purpose::DirectAnswer,
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
            Purpose::Question => Some(Self {
                purpose: Purpose::Answer,
                ..self
            }),
            Purpose::Trial => Some(Self {
                purpose: Purpose::TrialAnswer,
                ..self
            }),
            Purpose::Direct => Some(Self {
                purpose: Purpose::DirectAnswer,
                ..self
            }),
            Purpose::Answer | Purpose::TrialAnswer | Purpose::DirectAnswer => None,
        }
    }

    pub(super) fn is_trial(self) -> bool {
        matches!(self.purpose, Purpose::Trial | Purpose::TrialAnswer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_as_it_was_written_and_is_not_an_ip_packet() {
        use Purpose::{Answer, Direct, DirectAnswer, Question, Trial, TrialAnswer};
        for purpose in [Question, Answer, Trial, TrialAnswer, Direct, DirectAnswer] {
            let probe = Probe {
                purpose,
                token: 0x1234_5678_9abc_def0,
            };
            assert_eq!(Probe::read(&probe.bytes()), Some(probe));
            assert_eq!(super::super::packet::parse(&probe.bytes()), None);
            assert_eq!(Probe::read(&probe.bytes()[..15]), None);
            assert_eq!(Probe::read(&[&probe.bytes()[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn an_answer_is_not_answered() {
        let answer = Probe {
            purpose: Purpose::Trial,
            token: 1,
        }
        .answer()
        .unwrap();
        assert_eq!(
            (answer.purpose, answer.token, answer.answer()),
            (Purpose::TrialAnswer, 1, None)
        );
    }
}
