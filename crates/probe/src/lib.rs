//! What pods ask each other to see whether a network works, and how fast it is.
//!
//! One pod serves, on one port, TCP and UDP; another asks. Both say who they are, so that it is seen whether the right one answered, and
//! whom it took the asker for. It needs no rights: it runs in pods that may do nothing.
//!
//! ```text
//!   liqoctl --exec--> ask  --who?----------------> serve     on PORT, TCP and UDP
//!                          <--pod, node, source---
//! ```
//!
//! What is asked comes as one line of JSON on standard input ([`Request`]); for each question a line comes back ([`Report`]). Over TCP a
//! connection carries lines: `who`, `bulk BYTES` (as many bytes follow, and come back), `sink` (bytes until the end of the sender's half
//! are counted), and `GET ...` for those who have nothing but an HTTP client. A datagram is `who NONCE`, `flood NUMBER` or
//! `count NUMBER`, and anything behind that; one that is shorter than its answer is not answered, because its source may be another's
//! address. Who serves where strangers reach it is given a token, which then stands before each line and in each datagram.

pub mod ask;
mod measure;
mod path;
pub mod serve;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Where it serves unless told otherwise.
pub const PORT: u16 = 7462;

/// What `ask` is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// All at once, as far as `at_once` allows.
    pub questions: Vec<Question>,
    /// How long one answer may take. Short questions are asked three times.
    pub patience_millis: u64,
    /// So many questions are open at a time.
    pub at_once: usize,
    /// What those who are asked want to hear first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// `address:port` or `name:port`.
    pub to: String,
    /// What is to be found out.
    pub what: What,
}

/// What is to be found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum What {
    /// Who answers on TCP.
    Tcp,
    /// Who answers a datagram of so many bytes, which may travel in pieces.
    Udp {
        /// Its length, at least that of the shortest one that is answered.
        bytes: usize,
    },
    /// Whether so many bytes arrive, and come back.
    Bulk {
        /// How many.
        bytes: u64,
    },
    /// The largest packet (with its headers) that passes in one piece.
    Path {
        /// The largest to try.
        largest: u16,
    },
    /// The addresses of a name.
    Resolve,
    /// How long question and answer take on one connection.
    Latency {
        /// For how long to ask.
        seconds: f64,
    },
    /// How much passes over TCP.
    Stream {
        /// For how long to send.
        seconds: f64,
        /// On how many connections.
        connections: usize,
    },
    /// How much passes over UDP when as much is sent as can be.
    Flood {
        /// For how long to send.
        seconds: f64,
        /// Bytes in each datagram.
        bytes: usize,
    },
}

/// What came of one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its place among the questions.
    pub question: usize,
    /// What was found, or why nothing was.
    pub outcome: Result<Finding, Problem>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Finding {
    /// Somebody answered.
    Answered {
        /// Who.
        by: Identity,
        /// The shortest time from question to answer, in milliseconds.
        millis: f64,
    },
    /// Packets of this length (with their headers) pass in one piece.
    Passes {
        /// The largest.
        largest: u16,
        /// The shortest that vanished without a word, which breaks connections.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vanished: Option<u16>,
    },
    /// A name has these addresses.
    Addresses {
        /// All of them, sorted.
        addresses: Vec<IpAddr>,
    },
    /// Question and answer, in milliseconds.
    Latency {
        /// Half took no longer.
        p50: f64,
        /// Ninety-nine of a hundred took no longer.
        p99: f64,
        /// So many were asked.
        count: usize,
    },
    /// So much arrived.
    Carried {
        /// Bytes.
        bytes: u64,
        /// In this time.
        seconds: f64,
        /// Bytes that were sent.
        sent: u64,
    },
}

/// Who answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its pod.
    pub pod: String,
    /// The node that it runs on, as that node's cluster calls it.
    pub node: String,
    /// Whom it takes the asker for.
    pub source: SocketAddr,
}

/// Why nothing was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Problem {
    /// In one word.
    pub kind: ProblemKind,
    /// In a sentence.
    pub text: String,
}

/// Why nothing was found, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProblemKind {
    /// Silence.
    NoAnswer,
    /// Somebody is there and does not listen.
    Refused,
    /// Somebody on the way says that there is no way, or that it is forbidden.
    Unreachable,
    /// The name is not known.
    UnknownName,
    /// It began and did not end well.
    Broken,
}

impl Problem {
    fn new(kind: ProblemKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    fn silence() -> Self {
        Self::new(ProblemKind::NoAnswer, "no answer")
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        let kind = match error.kind() {
            ErrorKind::ConnectionRefused => ProblemKind::Refused,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::PermissionDenied => ProblemKind::Unreachable,
            ErrorKind::TimedOut => ProblemKind::NoAnswer,
            _ => ProblemKind::Broken,
        };
        Self::new(kind, error.to_string())
    }
}

/// Whom to ask.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Where it is.
    pub address: SocketAddr,
    /// What it wants to hear first.
    pub token: Option<String>,
}

impl Server {
    /// These words as it wants to hear them.
    pub fn say(&self, words: &str) -> String {
        self.token.as_ref().map_or_else(|| words.to_owned(), |token| format!("{token} {words}"))
    }
}

/// Bytes of a pattern by which it is seen that what arrives is what was sent.
pub(crate) fn pattern(offset: u64, buffer: &mut [u8]) {
    for (place, byte) in (offset..).zip(buffer.iter_mut()) {
        // The period is no power of two, so that nothing that is shifted looks right.
        *byte = (place % 251) as u8;
    }
}

/// Whether these bytes are those of the pattern.
pub(crate) fn is_pattern(offset: u64, buffer: &[u8]) -> bool {
    (offset..).zip(buffer).all(|(place, byte)| u64::from(*byte) == place % 251)
}
