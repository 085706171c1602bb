//! Asks the cluster's own name servers.

use std::{net::SocketAddr, time::Duration};

use liqo_controller_runtime::dns::{ask_over_tcp, ask_over_udp};
use tokio::time::timeout;

use crate::message::{id, is_answer, set_id};

/// Maximum time for the answer of one server. Usual clients wait for five seconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum number of tries of a question, at one server after another.
const ATTEMPTS: usize = 2;
/// Maximum length of an answer in bytes: what DNS allows.
const MAX_LEN: usize = u16::MAX as usize;

/// The protocol of a question. The question goes upstream over the same one, so that size and
/// truncation are the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionTransport {
    Udp,
    Tcp,
}

/// The cluster's name servers.
#[derive(Clone, Debug)]
pub struct NameServers {
    servers: Vec<SocketAddr>,
}

impl NameServers {
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers }
    }

    /// Asks the servers in turn. The answer has the ID of the question. `None` if none answers in
    /// time.
    pub async fn ask(&self, question: &[u8], transport: QuestionTransport) -> Option<Vec<u8>> {
        for server in self
            .servers
            .iter()
            .cycle()
            .take(ATTEMPTS.max(self.servers.len()))
        {
            let mut asked = question.to_vec();
            set_id(&mut asked, rand::random());
            let read = |answer: &[u8]| is_answer(&asked, answer).then(|| answer.to_vec());
            let answer = async {
                match transport {
                    QuestionTransport::Udp => ask_over_udp(*server, &asked, MAX_LEN, read).await,
                    QuestionTransport::Tcp => ask_over_tcp(*server, &asked, MAX_LEN, read).await,
                }
            };
            match timeout(TIMEOUT, answer).await {
                Ok(Ok(mut answer)) => {
                    set_id(&mut answer, id(question));
                    return Some(answer);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server cannot be asked"),
                Err(_) => tracing::debug!(%server, "a name server does not answer"),
            }
        }
        None
    }
}
