//! Whether an exec or attach told its result before its connection ended. Pure.
//!
//! Clients and API servers take an SPDY connection that merely ends for a success: a command that
//! still runs would look as if it had succeeded. So the frames on their way to the caller are
//! followed here, and a connection that ends without a result gets one: a failure. Frames pass
//! unchanged, and their contents are not looked at.

use http::HeaderMap;
use http::header::{SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use serde_json::json;

/// A longer frame passes piece by piece, and nothing can be told if it is cut. Kubelets send frames
/// of 32 KiB.
const MAX_HELD_LEN: usize = 64 * 1024;

/// The versions of the protocol in which each command ends with a result. The earlier ones tell
/// errors only.
const VERSIONS: [&str; 2] = ["v4.channel.k8s.io", "v5.channel.k8s.io"];

/// The SPDY stream of results: the first one that a client opens.
const SPDY_RESULTS: u32 = 1;
/// The WebSocket channel of results.
const WEBSOCKET_RESULTS: u8 = 3;

#[derive(Debug, Clone, Copy)]
enum StreamFraming {
    Spdy,
    WebSocket,
}

/// The meaning of a frame for the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameMeaning {
    Result,
    /// Callers read nothing after it.
    End,
    Other,
}

/// Follows the frames to the caller.
#[derive(Debug)]
pub(super) struct ResultWatch {
    framing: StreamFraming,
    /// The beginning of a frame. It passes when it is complete.
    held: Vec<u8>,
    /// Missing bytes of a frame that is too long to be held.
    passing: usize,
    told: bool,
}

impl ResultWatch {
    /// For the headers of the answer that agrees to the upgrade; `None` if its protocol does not
    /// tell each result.
    pub(super) fn for_answer(answer: &HeaderMap) -> Option<Self> {
        let upgrade = header_text(answer, UPGRADE.as_str());
        let (framing, version) = if upgrade.eq_ignore_ascii_case("SPDY/3.1") {
            (
                StreamFraming::Spdy,
                header_text(answer, "x-stream-protocol-version"),
            )
        } else if upgrade.eq_ignore_ascii_case("websocket")
            && !answer.contains_key(SEC_WEBSOCKET_EXTENSIONS)
        {
            (
                StreamFraming::WebSocket,
                header_text(answer, SEC_WEBSOCKET_PROTOCOL.as_str()),
            )
        } else {
            return None;
        };
        VERSIONS.contains(&version).then(|| Self {
            framing,
            held: Vec::new(),
            passing: 0,
            told: false,
        })
    }

    /// Takes what the peer sent, and returns what the caller gets now.
    pub(super) fn pass_through(&mut self, mut arrived: &[u8]) -> Vec<u8> {
        let mut passed = Vec::new();
        if let Some((rest, others)) = arrived.split_at_checked(self.passing) {
            passed.extend_from_slice(rest);
            (self.passing, arrived) = (0, others);
        } else {
            self.passing -= arrived.len();
            return arrived.to_vec();
        }
        self.held.extend_from_slice(arrived);
        let mut start = 0;
        while let Some((len, meaning)) = self.framing.parse_frame(&self.held[start..]) {
            let here = len.min(self.held.len() - start);
            if here < len && len <= MAX_HELD_LEN {
                break;
            }
            if meaning == FrameMeaning::End {
                passed.extend(self.failure_frames(NO_RESULT));
            }
            self.told |= meaning != FrameMeaning::Other;
            passed.extend_from_slice(&self.held[start..start + here]);
            (start, self.passing) = (start + here, len - here);
        }
        self.held.drain(..start);
        passed
    }

    /// Whether the connection may end here, as far as the caller can tell.
    pub(super) fn is_complete(&self) -> bool {
        self.told && self.held.is_empty() && self.passing == 0
    }

    /// Returns the last bytes for the caller: a failure with this message. Empty if it has a
    /// result, or is in the middle of a frame.
    pub(super) fn failure_frames(&mut self, message: &str) -> Vec<u8> {
        if self.told || self.passing > 0 {
            return Vec::new();
        }
        self.told = true;
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "reason": "InternalError", "code": 500, "message": message,
        });
        self.framing.result_frame(status.to_string().as_bytes())
    }
}

/// The peer ended a command in order, but without a result.
pub(super) const NO_RESULT: &str =
    "the other cluster ended the connection without a result: the command may still run";

impl StreamFraming {
    /// Length and meaning of the first frame. `None` until its header is there.
    fn parse_frame(self, bytes: &[u8]) -> Option<(usize, FrameMeaning)> {
        match self {
            Self::Spdy => spdy_frame(bytes),
            Self::WebSocket => websocket_frame(bytes),
        }
    }

    /// A frame with a result, and the end.
    fn result_frame(self, status: &[u8]) -> Vec<u8> {
        match self {
            Self::Spdy => {
                let mut frame = SPDY_RESULTS.to_be_bytes().to_vec();
                // The length has three bytes; in the place of the fourth is the flag for the last
                // frame of the stream.
                let len = u32::try_from(status.len()).unwrap_or_default() & 0x00ff_ffff;
                frame.extend((len | 0x0100_0000).to_be_bytes());
                [frame.as_slice(), status].concat()
            }
            Self::WebSocket => {
                let len = u16::try_from(status.len() + 1).unwrap_or_default();
                let header = [&[0x82, 126], &len.to_be_bytes()[..], &[WEBSOCKET_RESULTS]].concat();
                // A close frame with the code of an internal error (RFC 6455, 7.4.1).
                [
                    header.as_slice(),
                    status,
                    &[0x88, 2],
                    &1011_u16.to_be_bytes(),
                ]
                .concat()
            }
        }
    }
}

fn header_text<'a>(answer: &'a HeaderMap, name: &str) -> &'a str {
    answer
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Source: SPDY protocol, draft 3.1, section 2.2. Data frames are not compressed.
fn spdy_frame(bytes: &[u8]) -> Option<(usize, FrameMeaning)> {
    let &[first, second, third, fourth, _, high, middle, low, ..] = bytes else {
        return None;
    };
    let len = u32::from_be_bytes([0, high, middle, low]);
    let meaning = if first & 0x80 == 0 {
        let stream = u32::from_be_bytes([first, second, third, fourth]);
        if stream == SPDY_RESULTS && len > 0 {
            FrameMeaning::Result
        } else {
            FrameMeaning::Other
        }
    } else {
        const GO_AWAY: u16 = 7;
        if u16::from_be_bytes([third, fourth]) == GO_AWAY {
            FrameMeaning::End
        } else {
            FrameMeaning::Other
        }
    };
    Some((8 + usize::try_from(len).ok()?, meaning))
}

/// Source: RFC 6455, section 5.2. The first byte of a message is its channel.
fn websocket_frame(bytes: &[u8]) -> Option<(usize, FrameMeaning)> {
    let &[first, second, ..] = bytes else {
        return None;
    };
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let payload = match extended {
        0 => u64::from(second & 0x7f),
        _ => bytes
            .get(2..2 + extended)?
            .iter()
            .fold(0, |len: u64, &byte| (len << 8) | u64::from(byte)),
    };
    let header = 2 + extended + if second & 0x80 == 0 { 0 } else { 4 };
    let meaning = match first & 0x0f {
        8 => FrameMeaning::End,
        1 | 2 if payload > 1 && *bytes.get(header)? == WEBSOCKET_RESULTS => FrameMeaning::Result,
        _ => FrameMeaning::Other,
    };
    // A length that no machine has lasts until the end of the connection.
    Some((
        usize::try_from(payload)
            .unwrap_or(usize::MAX)
            .saturating_add(header),
        meaning,
    ))
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated;
    use proptest::prelude::*;

    use super::*;

    fn watch(upgrade: &str, version: &str) -> Option<ResultWatch> {
        let mut answer = HeaderMap::new();
        answer.insert(UPGRADE, upgrade.parse().unwrap());
        for name in ["x-stream-protocol-version", "sec-websocket-protocol"] {
            answer.insert(name, version.parse().unwrap());
        }
        ResultWatch::for_answer(&answer)
    }

    fn spdy() -> ResultWatch {
        watch("SPDY/3.1", "v5.channel.k8s.io").unwrap()
    }

    fn data(stream: u8, content: &[u8]) -> Vec<u8> {
        let len = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[0, 0, 0, stream, 0, 0, len[0], len[1]], content].concat()
    }

    const GO_AWAY: [u8; 16] = [0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];

    /// The message of the only status in some bytes.
    fn message(bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        let (start, end) = (text.find('{').unwrap(), text.rfind('}').unwrap());
        let status: serde_json::Value = serde_json::from_str(&text[start..=end]).unwrap();
        assert_eq!(
            (&status["kind"], &status["status"]),
            (&json!("Status"), &json!("Failure"))
        );
        status["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn only_protocols_that_tell_each_result_are_watched() {
        assert!(watch("SPDY/3.1", "v4.channel.k8s.io").is_some());
        assert!(watch("websocket", "v5.channel.k8s.io").is_some());
        for (upgrade, version) in [
            ("SPDY/3.1", "v3.channel.k8s.io"),
            ("SPDY/3.1", "portforward.k8s.io"),
            ("websocket", "v4.base64.channel.k8s.io"),
            ("websocket", "SPDY/3.1+portforward.k8s.io"),
            ("h2c", "v5.channel.k8s.io"),
        ] {
            assert!(watch(upgrade, version).is_none(), "{upgrade} {version}");
        }
    }

    #[test]
    fn frames_pass_unchanged_however_they_arrive() {
        let sent = [
            data(5, b"hello"),
            data(1, b"{}"),
            data(5, &[7; 5000]),
            GO_AWAY.to_vec(),
        ]
        .concat();
        for size in [1, 3, 8, 100, sent.len()] {
            let mut watch = spdy();
            let passed: Vec<u8> = sent
                .chunks(size)
                .flat_map(|piece| watch.pass_through(piece))
                .collect();
            assert_eq!(passed, sent, "{size}");
            assert!(watch.is_complete());
            assert!(watch.failure_frames("cut").is_empty());
        }
    }

    #[test]
    fn a_command_without_a_result_is_told_to_have_failed_after_its_last_whole_frame() {
        let mut watch = spdy();
        let cut = [data(5, b"hello"), data(5, b"world")[..9].to_vec()].concat();
        assert_eq!(watch.pass_through(&cut), data(5, b"hello"));
        assert!(!watch.is_complete());
        let told = watch.failure_frames("cut");
        assert_eq!(
            (&told[..5], usize::from(told[7])),
            (&[0, 0, 0, 1, 1][..], told.len() - 8)
        );
        assert_eq!(message(&told), "cut");
        assert!(watch.failure_frames("again").is_empty());
    }

    #[test]
    fn the_failure_comes_before_an_end_in_order() {
        let passed = spdy().pass_through(&GO_AWAY);
        assert!(passed.ends_with(&GO_AWAY) && passed.starts_with(&[0, 0, 0, 1, 1]));
        assert_eq!(message(&passed[..passed.len() - GO_AWAY.len()]), NO_RESULT);
        // Closed normally: a client would take it for a success.
        let close = [0x88, 2, 3, 0xe8];
        assert!(
            watch("websocket", "v5.channel.k8s.io")
                .unwrap()
                .pass_through(&close)
                .len()
                > close.len()
        );
    }

    #[test]
    fn a_long_frame_is_not_held_and_nothing_is_told_within() {
        let mut watch = spdy();
        let begin = [0, 0, 0, 5, 0, 0xff, 0, 0, 42];
        assert_eq!(watch.pass_through(&begin), begin);
        assert!(watch.failure_frames("cut").is_empty());
        assert_eq!(
            watch.pass_through(&vec![0; 0x00ff_0000 - 1]).len(),
            0x00ff_0000 - 1
        );
        assert_eq!(watch.passing, 0);
        assert_eq!(message(&watch.failure_frames("cut")), "cut");
    }

    #[test]
    fn results_over_websocket_are_known_and_made() {
        let mut result = watch("websocket", "v4.channel.k8s.io").unwrap();
        let frame = [&[0x82, 3][..], &[3], b"{}"].concat();
        assert_eq!(result.pass_through(&frame), frame);
        assert!(result.is_complete());

        let mut output = watch("websocket", "v4.channel.k8s.io").unwrap();
        for frame in [
            vec![0x82, 2, 1, 3],
            vec![0x82, 1, 3],
            [&[0x82, 126, 1, 0][..], &[1; 256]].concat(),
        ] {
            assert_eq!(output.pass_through(&frame), frame);
        }
        let told = output.failure_frames("cut");
        assert_eq!((told[0], told[1], told[4]), (0x82, 126, 3));
        assert_eq!(
            usize::from(told[2]) * 256 + usize::from(told[3]),
            told.len() - 4 - 4,
            "the length, without the close frame"
        );
        assert!(told.ends_with(&[0x88, 2, 0x03, 0xf3]));
        assert_eq!(message(&told), "cut");
    }

    fn frames(is_spdy: bool) -> Vec<u8> {
        if is_spdy {
            [
                data(3, &[7; 300]),
                data(5, b""),
                data(1, br#"{"status":"Success"}"#),
                GO_AWAY.to_vec(),
            ]
            .concat()
        } else {
            let result = [
                &[0x82, 21, WEBSOCKET_RESULTS][..],
                br#"{"status":"Success"}"#,
            ]
            .concat();
            [
                &[0x82, 126, 1, 44][..],
                &[1; 300],
                &result,
                &[0x88, 2, 3, 232],
            ]
            .concat()
        }
    }

    proptest! {
        #[test]
        fn mutated_frames_pass_unchanged_and_few_are_held(
            (is_spdy, bytes) in any::<bool>().prop_flat_map(|is_spdy| (Just(is_spdy), mutated(Just(frames(is_spdy))))),
            cut in 1..500_usize,
        ) {
            let mut watch = if is_spdy { spdy() } else { watch("websocket", "v4.channel.k8s.io").unwrap() };
            let mut passed = Vec::new();
            for part in bytes.chunks(cut) {
                passed.extend(watch.pass_through(part));
                prop_assert!(watch.held.len() <= MAX_HELD_LEN);
            }
            let told = watch.failure_frames("cut");
            prop_assert!(told.len() < 1000);
            // Only a result may be added, once, before the end.
            let added = (passed.len() + watch.held.len()).checked_sub(bytes.len()).unwrap();
            prop_assert!(added == 0 || told.is_empty());
            prop_assert!(added < 1000, "{} bytes were added", added);
            if added == 0 {
                prop_assert_eq!([passed, watch.held].concat(), bytes);
            }
        }
    }
}
