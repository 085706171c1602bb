//! Checks between pods: whether a network works, and how fast it is.
//!
//! `liqoctl test network` and `cargo playground bench network` create pods with the image of
//! `liqo-fabric`. Pods that serve run `liqo-fabric probe serve`; in another pod, the command starts
//! `liqo-fabric probe ask` by exec. The answer names the server and the client's address, which
//! shows whether the right pod answered and how the client's address was translated. The pods need
//! no privileges. The command decides whom to ask, and judges the answers.
//!
//! ```text
//!   liqoctl --exec, Request--> ask  --who?----------------> serve     on PORT, TCP and UDP
//!           <--Report, ...-----     <--pod, node, source---
//! ```
//!
//! `ask` reads an [`AskRequest`] as one line of JSON on standard input, and prints a
//! [`QuestionReport`] as one line for each question. [`QuestionKind`] lists the kinds of questions.
//! Between the pods:
//! - A TCP connection carries lines: `who`, `bulk BYTES` (that many bytes follow, and come back),
//!   `sink` (the server counts bytes until the client closes its half), and `GET ...` for plain
//!   HTTP clients.
//! - A datagram is `who NONCE`, `flood NUMBER` or `count NUMBER`, followed by any padding. The
//!   server ignores datagrams that are shorter than their answer, because their source may be
//!   forged.
//!
//! A server that strangers can reach has a token, which clients put at the beginning of each line
//! and each datagram.

pub mod ask;
mod datagram;
mod measure;
mod path;
mod pattern;
pub mod serve;

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Default port of the server, TCP and UDP.
pub const PORT: u16 = 7462;

/// The input of `ask`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskRequest {
    /// All questions. Up to `at_once` of them run at a time.
    pub questions: Vec<AskedQuestion>,
    /// Timeout of one answer. Short questions are asked up to three times.
    #[serde(rename = "patienceMillis")]
    pub timeout_millis: u64,
    /// Maximum number of questions at a time, from 1 to 64.
    pub at_once: usize,
    /// The servers' token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AskedQuestion {
    /// `address:port` or `name:port`.
    pub to: String,
    pub what: QuestionKind,
}

/// The kind of a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum QuestionKind {
    /// The server that answers over TCP.
    Tcp,
    /// The server that answers a datagram of this size, which may be fragmented.
    Udp {
        /// Length of the datagram; shorter ones are padded to 512 bytes.
        bytes: usize,
    },
    /// Whether this many bytes arrive and come back unchanged.
    Bulk { bytes: u64 },
    /// The path MTU: the largest packet, with its headers, that passes unfragmented.
    Path {
        /// The largest packet to try, in bytes.
        largest: u16,
    },
    /// The addresses of a name.
    Resolve,
    /// Round-trip time on one TCP connection.
    Latency { seconds: f64 },
    /// Throughput over TCP.
    Stream {
        seconds: f64,
        /// From 1 to 64.
        connections: usize,
    },
    /// Throughput over UDP when the client sends as fast as possible.
    Flood {
        seconds: f64,
        /// Length of each datagram.
        bytes: usize,
    },
}

/// The outcome of one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuestionReport {
    /// Index of the question in the request.
    pub question: usize,
    pub outcome: Result<MeasuredAnswer, AnswerProblem>,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum MeasuredAnswer {
    Answered {
        by: ServerIdentity,
        /// Shortest round-trip time in milliseconds.
        millis: f64,
    },
    /// Path MTU.
    Passes {
        /// The largest packet, with its headers, that passes unfragmented, in bytes.
        largest: u16,
        /// The smallest packet that was dropped without an ICMP error, which breaks TCP
        /// connections.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vanished: Option<u16>,
    },
    Addresses {
        /// Sorted addresses of a name.
        addresses: Vec<IpAddr>,
    },
    /// Round-trip times in milliseconds.
    Latency {
        /// Median.
        p50: f64,
        /// 99th percentile.
        p99: f64,
        /// Number of round trips.
        count: usize,
    },
    /// Throughput.
    Carried {
        /// Bytes that arrived.
        bytes: u64,
        seconds: f64,
        /// Bytes that were sent.
        sent: u64,
    },
}

/// The server that answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    pub pod: String,
    /// The name of the server's node in its own cluster.
    pub node: String,
    /// The client's address, as the server observed it.
    pub source: SocketAddr,
}

/// The reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct AnswerProblem {
    pub kind: ProblemKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProblemKind {
    NoAnswer,
    /// The machine answers, but does not listen on the port.
    Refused,
    /// ICMP: no route, or forbidden.
    Unreachable,
    UnknownName,
    /// The exchange began and failed.
    Broken,
}

impl AnswerProblem {
    fn new(kind: ProblemKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    fn no_answer() -> Self {
        Self::new(ProblemKind::NoAnswer, "no answer")
    }
}

impl From<std::io::Error> for AnswerProblem {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        let kind = match error.kind() {
            ErrorKind::ConnectionRefused => ProblemKind::Refused,
            ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied => ProblemKind::Unreachable,
            ErrorKind::TimedOut => ProblemKind::NoAnswer,
            _ => ProblemKind::Broken,
        };
        Self::new(kind, error.to_string())
    }
}

/// A server to ask.
#[derive(Clone, Debug)]
pub(crate) struct AskedServer {
    pub address: SocketAddr,
    pub token: Option<String>,
}

impl AskedServer {
    /// Puts the token before these words.
    pub fn with_token(&self, words: &str) -> String {
        self.token
            .as_ref()
            .map_or_else(|| words.to_owned(), |token| format!("{token} {words}"))
    }
}
